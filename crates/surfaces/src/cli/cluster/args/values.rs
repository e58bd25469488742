//! What words of the command line stand for: controllers, nodes, sizes, volumes, objects.

use std::net::IpAddr;

use clap::ValueEnum;

/// LINSTOR's ports.
const HTTP_PORT: u16 = 3370;
const HTTPS_PORT: u16 = 3371;

/// A controller as a URL with scheme and port.
pub(super) fn url(text: &str) -> Result<String, String> {
    let (scheme, rest) = match text.split_once("://") {
        None => ("http", text),
        Some(("http" | "linstor", rest)) => ("http", rest),
        Some(("https" | "linstor+ssl", rest)) => ("https", rest),
        Some((other, _)) => return Err(format!("`{other}` is no scheme here; give http or https")),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let odd = |c: char| c.is_whitespace() || c.is_control() || "/?#@".contains(c);
    if rest.is_empty() || rest.contains(odd) {
        return Err("give HOST, HOST:PORT, http://HOST:PORT or https://HOST:PORT".to_owned());
    }
    let bare_v6 = rest.parse::<std::net::Ipv6Addr>().is_ok();
    let host = if bare_v6 { format!("[{rest}]") } else { rest.to_owned() };
    let after_brackets = host.rsplit_once(']').map_or(host.as_str(), |(_, after)| after);
    match after_brackets.split_once(':') {
        None if scheme == "https" => Ok(format!("{scheme}://{host}:{HTTPS_PORT}")),
        None => Ok(format!("{scheme}://{host}:{HTTP_PORT}")),
        Some((_, port)) if port.parse::<u16>().is_ok_and(|port| port > 0) => {
            Ok(format!("{scheme}://{host}"))
        }
        Some((_, port)) => Err(format!("`{port}` is not a port")),
    }
}

/// Kinds of storage.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProviderName {
    /// Files with their space reserved
    File,
    /// Files that take space as they are written; snapshots need XFS or btrfs
    FileThin,
    /// Logical volumes
    Lvm,
    /// Thin logical volumes
    LvmThin,
    /// ZFS volumes with their space reserved
    Zfs,
    /// ZFS volumes that take space as they are written
    ZfsThin,
}

impl ProviderName {
    /// As the API has it.
    pub const fn word(self) -> &'static str {
        match self {
            ProviderName::File => "FILE",
            ProviderName::FileThin => "FILE_THIN",
            ProviderName::Lvm => "LVM",
            ProviderName::LvmThin => "LVM_THIN",
            ProviderName::Zfs => "ZFS",
            ProviderName::ZfsThin => "ZFS_THIN",
        }
    }
}

/// A node and its address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewNode {
    /// Its name.
    pub name: String,
    /// Where replication goes.
    pub address: IpAddr,
}

/// Reads `NAME=ADDRESS`.
///
/// # Errors
/// If it is something else.
pub fn new_node(text: &str) -> Result<NewNode, String> {
    let (name, address) = text.split_once('=').ok_or("give NAME=ADDRESS")?;
    if name.is_empty() {
        return Err("give NAME=ADDRESS".to_owned());
    }
    let address = address.parse().map_err(|_| {
        format!("`{address}` is not an IPv4 or IPv6 address; names are not resolved")
    })?;
    Ok(NewNode { name: name.to_owned(), address })
}

/// Bytes from `10G`, `10GiB`, `512M`.
///
/// # Errors
/// If it is something else, or no whole number of KiB.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        "T" | "t" | "TiB" => 40,
        "P" | "p" | "PiB" => 50,
        "" => return Err("give a unit, too: K, M, G, T or P".to_owned()),
        unit => return Err(format!("`{unit}` is no unit; give K, M, G, T or P")),
    };
    let number: u64 = digits.parse().map_err(|_| "give a size such as 10G".to_owned())?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes > 0);
    // The API counts KiB in a signed number.
    bytes.filter(|bytes| *bytes < 1 << 63).ok_or_else(|| "give 1K to 8191P".to_owned())
}

/// A volume: `NAME` or `NAME/NUMBER`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeName {
    /// The resource definition.
    pub name: String,
    /// Its volume; 0 if none was given.
    pub number: u16,
}

/// Reads `NAME` or `NAME/NUMBER`.
pub(super) fn volume_name(text: &str) -> Result<VolumeName, String> {
    let (name, number) = match text.split_once('/') {
        None => (text, 0),
        Some((name, number)) => {
            (name, number.parse().map_err(|_| format!("`{number}` is not a volume number"))?)
        }
    };
    if name.is_empty() {
        Err("give NAME or NAME/NUMBER".to_owned())
    } else {
        Ok(VolumeName { name: name.to_owned(), number })
    }
}

/// Reads `KEY=VALUE`.
pub(super) fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE")?;
    if key.is_empty() {
        Err("give KEY=VALUE".to_owned())
    } else {
        Ok((key.to_owned(), value.to_owned()))
    }
}

/// An object that has properties.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each is the object of its name")]
pub enum Owner {
    Controller,
    Node(String),
    Pool { node: String, pool: String },
    Group(String),
    Volume { name: String, number: Option<u16> },
    Replica { name: String, node: String, number: Option<u16> },
    Snapshot { name: String, snapshot: String },
}

/// Reads an object's name, as the help of `property` has it.
pub(super) fn owner(text: &str) -> Result<Owner, String> {
    let words: Vec<&str> = text.split('/').collect();
    let owned = |word: &str| word.to_owned();
    let nr = |word: &str| word.parse().map_err(|_| format!("`{word}` is no volume number"));
    if words.iter().any(|word| word.is_empty()) {
        return Err("a name is missing".to_owned());
    }
    Ok(match words[..] {
        ["controller"] => Owner::Controller,
        ["node", node] => Owner::Node(owned(node)),
        ["pool", node, pool] => Owner::Pool { node: owned(node), pool: owned(pool) },
        ["group", group] => Owner::Group(owned(group)),
        ["volume", name] => Owner::Volume { name: owned(name), number: None },
        ["volume", name, number] => Owner::Volume { name: owned(name), number: Some(nr(number)?) },
        ["replica", name, node] => {
            Owner::Replica { name: owned(name), node: owned(node), number: None }
        }
        ["replica", name, node, number] => {
            Owner::Replica { name: owned(name), node: owned(node), number: Some(nr(number)?) }
        }
        ["snapshot", name, snapshot] => {
            Owner::Snapshot { name: owned(name), snapshot: owned(snapshot) }
        }
        _ => {
            return Err("give controller, node/NODE, pool/NODE/POOL, group/GROUP, \
                        volume/VOLUME[/NUMBER], replica/VOLUME/NODE[/NUMBER] or \
                        snapshot/VOLUME/SNAPSHOT"
                .to_owned());
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_get_a_scheme_and_a_port() {
        for (given, expected) in [
            ("alpha", "http://alpha:3370"),
            ("alpha:80", "http://alpha:80"),
            ("http://alpha/", "http://alpha:3370"),
            ("linstor://alpha", "http://alpha:3370"),
            ("https://alpha", "https://alpha:3371"),
            ("https://alpha:443", "https://alpha:443"),
            ("::1", "http://[::1]:3370"),
            ("[::1]:9", "http://[::1]:9"),
        ] {
            assert_eq!(url(given).as_deref(), Ok(expected), "{given}");
        }
        for bad in ["", "ftp://a", "http://", "a/b", "user@a", "a:0", "a:x", "a?b", "a b"] {
            assert!(url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_need_a_unit() {
        for (text, bytes) in
            [("1K", 1024), ("10G", 10 << 30), ("512MiB", 512 << 20), ("2t", 2 << 40)]
        {
            assert_eq!(size(text), Ok(bytes));
        }
        for text in ["", "10", "G", "0G", "1GB", "1X", "-1G", "1.5G", "16384P", "99999999999P"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_of_nodes_volumes_and_objects() {
        let node = new_node("alpha=10.0.0.1").unwrap();
        assert_eq!((node.name.as_str(), node.address.to_string().as_str()), ("alpha", "10.0.0.1"));
        for bad in ["alpha", "=10.0.0.1", "alpha=beta", "alpha="] {
            assert!(new_node(bad).is_err(), "{bad}");
        }
        assert_eq!(volume_name("v/3"), Ok(VolumeName { name: "v".into(), number: 3 }));
        assert_eq!(volume_name("v"), Ok(VolumeName { name: "v".into(), number: 0 }));
        assert!(volume_name("/3").is_err() && volume_name("v/x").is_err());
        assert_eq!(owner("controller"), Ok(Owner::Controller));
        let volume = Owner::Volume { name: "v".into(), number: Some(1) };
        assert_eq!(owner("volume/v/1"), Ok(volume));
        let one = |number| Owner::Replica { name: "v".into(), node: "a".into(), number };
        assert_eq!(owner("replica/v/a"), Ok(one(None)));
        assert_eq!(owner("replica/v/a/1"), Ok(one(Some(1))));
        for bad in ["", "node", "node/", "volume/v/x", "replica/v/a/x", "what/v", "pool/p"] {
            assert!(owner(bad).is_err(), "{bad}");
        }
        assert_eq!(key_value("a/b=c=d"), Ok(("a/b".into(), "c=d".into())));
        assert!(key_value("a").is_err() && key_value("=a").is_err());
    }
}
