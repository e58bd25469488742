//! Finds and reads the configuration, and tells which host this is.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};

use codec::config::{self, Config, Host, ResourceConfig, SourceFile};

use super::error::Error;

/// A configuration as this host sees it.
#[derive(Debug)]
pub struct Loaded {
    /// Resources of this host, in file order.
    pub resources: Vec<ResourceConfig>,
    /// Names of the resources of other hosts only.
    pub elsewhere: Vec<String>,
    /// The name this host was looked up by.
    pub host: String,
    /// Local addresses are taken as they are.
    pub trust_addresses: bool,
    /// Statements without effect, in words.
    pub warnings: Vec<String>,
}

/// Reads the configuration from `file`, or from the first of [`config::DEFAULT_FILES`] that
/// exists. `node` stands in for the host name.
///
/// # Errors
/// If no file exists, one can not be read, or a rule is violated.
pub fn load(file: Option<&Path>, node: Option<&str>) -> Result<Loaded, Error> {
    let file = match file {
        Some(file) => file.to_owned(),
        None => default_file()?,
    };
    let first = read(&file)?;
    let mut loader = include;
    let config: Config = config::parse(first, &mut loader)?;
    let host = node.map_or_else(host_name, |name| Ok(name.to_owned()))?;
    let resolved = config.resolve(&Host { name: &host, is_local: &is_local })?;
    Ok(Loaded {
        resources: resolved.resources,
        elsewhere: resolved.elsewhere,
        host,
        trust_addresses: config.disable_ip_verification,
        warnings: config.warnings.iter().map(|(at, text)| format!("{at}: {text}")).collect(),
    })
}

fn default_file() -> Result<PathBuf, Error> {
    let found = config::DEFAULT_FILES.iter().map(Path::new).find(|path| path.exists());
    found.map(Path::to_owned).ok_or_else(|| Error::File {
        path: PathBuf::from("/etc/drbd.conf"),
        why: "there is no configuration".to_owned(),
        next: "create it or name another with --config".to_owned(),
    })
}

fn read(path: &Path) -> Result<SourceFile, Error> {
    let text = fs::read_to_string(path).map_err(|e| Error::File {
        path: path.to_owned(),
        why: format!("can not be read: {e}"),
        next: "check the name and its permissions".to_owned(),
    })?;
    Ok(SourceFile { name: path.display().to_string(), text })
}

/// The files an `include` means, relative to the file that has the statement.
fn include(from: &str, pattern: &str) -> Result<Vec<SourceFile>, String> {
    let base = Path::new(from).parent().unwrap_or(Path::new(""));
    // `join` keeps an absolute pattern as it is. Only the pattern is one: escape the directory.
    let pattern = match Path::new(pattern).is_absolute() {
        true => PathBuf::from(pattern),
        false => PathBuf::from(glob::Pattern::escape(&base.to_string_lossy())).join(pattern),
    };
    let paths = glob::glob(&pattern.to_string_lossy()).map_err(|e| e.to_string())?;
    let mut files = Vec::new();
    for path in paths {
        let path = path.map_err(|e| e.to_string())?;
        if path.is_file() {
            files.push(read(&path).map_err(|e| e.to_string())?);
        }
    }
    Ok(files)
}

/// The host name, which DRBD's tools let the environment override.
fn host_name() -> Result<String, Error> {
    if let Ok(name) = std::env::var("__DRBD_NODE__") {
        return Ok(name);
    }
    const PATH: &str = "/proc/sys/kernel/hostname";
    let name = fs::read_to_string(PATH).map_err(|e| Error::File {
        path: PathBuf::from(PATH),
        why: format!("can not be read: {e}"),
        next: "name this host with --node".to_owned(),
    })?;
    Ok(name.trim().to_owned())
}

/// Whether an address is assigned to this host: whether a socket can be bound to it.
pub fn is_local(ip: IpAddr) -> bool {
    !ip.is_unspecified() && UdpSocket::bind((ip, 0)).is_ok()
}

impl Loaded {
    /// The resource `name`, with the reason if this host has none.
    ///
    /// # Errors
    /// If the configuration has none for this host.
    pub fn resource(&self, name: &str) -> Result<&ResourceConfig, Error> {
        if let Some(found) = self.resources.iter().find(|r| r.name == name) {
            return Ok(found);
        }
        let why = if self.elsewhere.iter().any(|other| other == name) {
            format!("not configured for host `{}`; give --node or add an `on` section", self.host)
        } else {
            "not in the configuration; check the name, or add it".to_owned()
        };
        Err(Error::Object { object: format!("resource {name}"), why })
    }

    /// Checks that this host has the addresses it is to listen on.
    ///
    /// # Errors
    /// Naming the first address it does not have.
    pub fn check_addresses(&self, resource: &ResourceConfig) -> Result<(), Error> {
        let mut paths = resource.peers.iter().flat_map(|p| &p.paths).map(|p| p.local.ip());
        match paths.find(|ip| !self.trust_addresses && !is_local(*ip)) {
            None => Ok(()),
            Some(ip) => Err(Error::Object {
                object: format!("resource {}", resource.name),
                why: format!(
                    "address {ip} is not assigned to this host (`{}`); correct the configuration \
                     or the network, or set disable-ip-verification",
                    self.host
                ),
            }),
        }
    }
}
