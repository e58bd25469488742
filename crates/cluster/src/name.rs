//! Names of objects: LINSTOR's rules, checked once, where a name enters.
//!
//! Two names are the same if they differ only in case; the spelling of the creation is kept
//! (control plane §1.1). Copies share their text, so a name is cheap as a key.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::refusal::{Code, Refusal};

/// The text of a name, ordered without regard to case.
#[derive(Clone)]
struct Text(Arc<str>);

impl Ord for Text {
    fn cmp(&self, other: &Text) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) {
            return Ordering::Equal;
        }
        let (a, b) = (self.0.bytes(), other.0.bytes());
        a.map(|b| b.to_ascii_lowercase()).cmp(b.map(|b| b.to_ascii_lowercase()))
    }
}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Text) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self.0.eq_ignore_ascii_case(&other.0)
    }
}

impl Eq for Text {}

macro_rules! name {
    ($(#[$meta:meta])* $name:ident, $what:literal, $code:ident, $rule:expr) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Text);

        impl $name {
            /// The name, if it follows the rule of its kind.
            ///
            /// # Errors
            /// A refusal that quotes the name and says the rule.
            pub fn new(text: &str) -> Result<$name, Refusal> {
                let rule: fn(&str) -> Result<(), String> = $rule;
                match rule(text) {
                    Ok(()) => Ok($name(Text(text.into()))),
                    Err(rule) => Err(Refusal::new(
                        Code::$code,
                        format!("`{text}` is not a valid name of a {}", $what),
                    )
                    .cause(rule)
                    .correction("choose a name that follows this rule")),
                }
            }

            /// The spelling of the creation.
            pub fn as_str(&self) -> &str {
                &self.0.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = Refusal;
            fn try_from(text: String) -> Result<$name, Refusal> {
                $name::new(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.as_str().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

name! {
    /// A node: a host name, 2 to 255 bytes.
    NodeName, "node", InvalidNodeName, host
}
name! {
    /// A network interface of a node, 3 to 32 bytes.
    NetIfName, "network interface", InvalidNetIfName, |text| id(text, 3, 32)
}
name! {
    /// A storage pool and its definition, 3 to 48 bytes.
    PoolName, "storage pool", InvalidPoolName, |text| id(text, 3, 48)
}
name! {
    /// A resource group, 2 to 48 bytes.
    GroupName, "resource group", InvalidGroupName, |text| id(text, 2, 48)
}
name! {
    /// A resource definition and its resources, 2 to 48 bytes.
    ResourceName, "resource definition", InvalidResourceName, resource
}
name! {
    /// A snapshot, 2 to 48 bytes.
    SnapshotName, "snapshot", InvalidSnapshotName, |text| id(text, 2, 48)
}
name! {
    /// An instance of the key-value store, 2 to 48 bytes.
    StoreName, "key-value store instance", InvalidStoreName, |text| id(text, 2, 48)
}
name! {
    /// A remote, which backups go to: as a host name, 2 to 255 bytes.
    RemoteName, "remote", InvalidRemoteName, host
}
name! {
    /// A schedule, by which backups are made: as a host name, 2 to 255 bytes.
    ScheduleName, "schedule", InvalidScheduleName, host
}
name! {
    /// A space that pools of several nodes share, 1 to 48 bytes.
    SharedSpaceName, "shared space", InvalidFreeSpaceManager, shared_space
}
name! {
    /// An external file: an absolute path, at most 1,024 bytes.
    FilePath, "external file", InvalidFileName, path
}

impl PoolName {
    /// The built-in pool of diskless resources, `DfltDisklessStorPool`.
    pub fn diskless() -> PoolName {
        PoolName(Text("DfltDisklessStorPool".into()))
    }

    /// The pool that is tried when nothing names one, `DfltStorPool`.
    pub fn default_pool() -> PoolName {
        PoolName(Text("DfltStorPool".into()))
    }
}

impl GroupName {
    /// The built-in group, `DfltRscGrp`.
    pub fn default_group() -> GroupName {
        GroupName(Text("DfltRscGrp".into()))
    }
}

/// LINSTOR's rule "id" with its bounds in bytes.
fn id(text: &str, min: usize, max: usize) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let valid = (min..=max).contains(&text.len())
        && begins
        && text.chars().all(allowed)
        && text.contains(|c: char| c.is_ascii_alphabetic());
    if valid {
        return Ok(());
    }
    Err(format!(
        "it has {min} to {max} ASCII letters, digits, `_` and `-`, begins with a letter or `_`, \
         and has at least one letter"
    ))
}

fn resource(text: &str) -> Result<(), String> {
    if ["all", "proxy"].iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return Err("`all` and `proxy` are words of DRBD's tools".to_owned());
    }
    id(text, 2, 48)
}

fn host(text: &str) -> Result<(), String> {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if (2..=255).contains(&text.len()) && text.split('.').all(label) {
        return Ok(());
    }
    Err("it is a host name of 2 to 255 bytes: labels of at most 63 ASCII letters, digits and `-`, \
         separated by dots, with `-` only inside a label"
        .to_owned())
}

fn shared_space(text: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let outer = |c: Option<char>| c.is_some_and(|c| c != '.');
    let ends = outer(text.chars().next()) && outer(text.chars().next_back());
    if (1..=48).contains(&text.len()) && ends && text.chars().all(allowed) {
        return Ok(());
    }
    Err("it has 1 to 48 ASCII letters, digits, `_`, `-`, and `.` inside".to_owned())
}

fn path(text: &str) -> Result<(), String> {
    let printable = text.bytes().all(|b| (0x20..0x7f).contains(&b));
    let climbs = text.split('/').any(|part| part == "..");
    if text.len() <= 1024 && text.len() > 1 && text.starts_with('/') && printable && !climbs {
        return Ok(());
    }
    Err("it is an absolute path of at most 1,024 printable ASCII bytes without `..`".to_owned())
}

/// A resource name for an external name: a UUID gets a prefix, a valid name is taken, in any
/// other bad characters are replaced (control plane §1.1).
///
/// # Errors
/// If nothing valid is left, as for an empty name.
pub fn from_external(external: &str) -> Result<ResourceName, Refusal> {
    if let Ok(name) = ResourceName::new(external) {
        return Ok(name);
    }
    let kept = |c: char| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' };
    let mut name: String = external.chars().map(kept).collect();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        || !name.contains(|c: char| c.is_ascii_alphabetic())
    {
        name.insert_str(0, "LS_");
    }
    name.truncate(48);
    ResourceName::new(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_equal_without_regard_to_case_and_keep_their_spelling() {
        let (a, b) = (NodeName::new("Alpha").unwrap(), NodeName::new("aLPHA").unwrap());
        assert_eq!(a, b);
        assert_eq!(a.cmp(&b), Ordering::Equal);
        assert_eq!(a.to_string(), "Alpha");
        assert!(NodeName::new("alph").unwrap() < a);
    }

    #[test]
    fn each_kind_has_its_rule() {
        for (text, valid) in [
            ("a", false),
            ("ab", true),
            ("_1", false),
            ("_a", true),
            ("1a", false),
            ("a b", false),
            ("all", false),
            ("Proxy", false),
            ("pvc-1_x", true),
        ] {
            assert_eq!(ResourceName::new(text).is_ok(), valid, "{text}");
        }
        assert!(ResourceName::new(&"a".repeat(48)).is_ok());
        assert!(ResourceName::new(&"a".repeat(49)).is_err());
        for (text, valid) in [
            ("n1.example.com", true),
            (".n1", false),
            ("n1-", false),
            ("-n1", false),
            ("n_1", false),
            ("a..b", false),
        ] {
            assert_eq!(NodeName::new(text).is_ok(), valid, "{text}");
        }
        assert!(PoolName::new("ab").is_err() && NetIfName::new("eth").is_ok());
        assert!(SharedSpaceName::new("1.a").is_ok() && SharedSpaceName::new(".a").is_err());
        assert!(FilePath::new("/etc/x").is_ok() && FilePath::new("/etc/../x").is_err());
    }

    #[test]
    fn a_refused_name_says_the_rule() {
        let refusal = PoolName::new("x").unwrap_err();
        assert_eq!(refusal.code.number(), 208);
        assert!(refusal.cause.contains("3 to 48"), "{refusal}");
    }

    #[test]
    fn external_names_become_valid_ones() {
        let uuid = "0f3c0000-1111-2222-3333-444455556666";
        assert_eq!(from_external(uuid).unwrap().as_str(), format!("LS_{uuid}"));
        assert_eq!(from_external("my disk").unwrap().as_str(), "my_disk");
        assert_eq!(from_external("fine").unwrap().as_str(), "fine");
        assert!(from_external("").is_ok_and(|name| name.as_str() == "LS_"));
    }
}
