//! TLS on the controller's side: connections are accepted here for the agents' link and for the REST
//! API, and the certificate of the latter is made or read.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{WebPkiClientVerifier, danger::ClientCertVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::link::authority::Authority;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The domain of names that only the link between controller and agents uses.
const RESERVED: &str = ".ashlar.internal";

/// Accepts connections, each with its handshake beside the others', for as long as somebody takes them.
/// `config` is asked for each: certificates are renewed meanwhile. `log` takes lines for people.
pub async fn accept(
    listener: TcpListener,
    config: impl Fn() -> Result<Arc<ServerConfig>, String> + Send,
    log: impl Fn(&str) + Clone + Send + 'static,
    accepted: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>,
) {
    loop {
        let (socket, from) = match listener.accept().await {
            Ok(connection) => connection,
            Err(error) => {
                // Out of files, mostly: that passes.
                log(&format!("a connection could not be accepted: {error}"));
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        // Messages are small and should not wait for each other.
        let _ = socket.set_nodelay(true);
        let config = match config() {
            Ok(config) => config,
            Err(why) => {
                log(&format!("there is no certificate: {why}"));
                continue;
            }
        };
        let (log, accepted) = (log.clone(), accepted.clone());
        tokio::spawn(async move {
            let handshake = TlsAcceptor::from(config).accept(socket);
            match tokio::time::timeout(HANDSHAKE, handshake).await {
                // Nobody takes it when the server ends.
                Ok(Ok(stream)) => _ = accepted.send((stream, from)).await,
                Ok(Err(error)) => log(&format!("a connection from {from}: {error}")),
                Err(_) => log(&format!("a connection from {from} says nothing")),
            }
        });
    }
}

/// Where the certificate of the REST API comes from, and whose it asks for.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A PEM file with the certificate and those between it and its root, and one with its key. The
    /// controller's own authority makes one if there are none.
    pub files: Option<(PathBuf, PathBuf)>,
    /// Names and addresses by which clients reach the controller, for a certificate that is made.
    pub names: Vec<String>,
    /// A PEM file with the authorities of clients' certificates. Every client needs one then.
    pub clients: Option<PathBuf>,
}

/// The certificate of the REST API as it is now.
pub struct Certificates {
    options: Options,
    authority: Arc<Authority>,
    current: Mutex<Option<Current>>,
}

struct Current {
    config: Arc<ServerConfig>,
    /// What it was made from.
    files: Vec<SystemTime>,
    /// Until when a certificate that was made is used.
    until: Option<SystemTime>,
}

impl Certificates {
    /// Reads or makes the certificate.
    ///
    /// # Errors
    /// If a file is no good, or a name is none; with what to do.
    pub fn new(options: Options, authority: Arc<Authority>) -> io::Result<Certificates> {
        let certificates = Certificates { options, authority, current: Mutex::new(None) };
        let current = certificates.make().map_err(io::Error::other)?;
        *certificates.lock() = Some(current);
        Ok(certificates)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the next connection. Files that have changed are read again, and a certificate of the
    /// controller's own is made anew in time. While that fails the old one is used.
    ///
    /// # Errors
    /// If there is none.
    pub fn config(&self) -> Result<Arc<ServerConfig>, String> {
        let mut current = self.lock();
        let old = current.as_ref().map(|current| {
            let due = current.until.is_some_and(|until| SystemTime::now() >= until);
            (current.config.clone(), !due && current.files == self.changed())
        });
        match old {
            Some((config, true)) => Ok(config),
            old => match self.make() {
                Ok(new) => Ok(current.insert(new).config.clone()),
                Err(why) => {
                    crate::log::error("rest", format_args!("{why}; the old one is used"));
                    old.map(|(config, _)| config).ok_or(why)
                }
            },
        }
    }

    /// When the files were last changed.
    fn changed(&self) -> Vec<SystemTime> {
        let own = self.options.files.iter().flat_map(|(certificate, key)| [certificate, key]);
        let files = own.chain(&self.options.clients);
        let times = files.map(|path| fs::metadata(path).and_then(|file| file.modified()));
        times.map(|time| time.unwrap_or(SystemTime::UNIX_EPOCH)).collect()
    }

    fn make(&self) -> Result<Current, String> {
        let files = self.changed();
        let (chain, key, until) = match &self.options.files {
            Some((certificate, key)) => (chain_of(certificate)?, key_of(key)?, None),
            None => {
                let names = names(&self.options.names)?;
                let made = self.authority.sign_server(names).map_err(|error| {
                    format!("no certificate can be made for the REST API: {error}")
                })?;
                (made.chain, made.key, Some(made.until))
            }
        };
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier: Arc<dyn ClientCertVerifier> = match &self.options.clients {
            None => WebPkiClientVerifier::no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in chain_of(path)? {
                    roots.add(certificate).map_err(|error| unusable(path, &error))?;
                }
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                    .build()
                    .map_err(|error| unusable(path, &error))?
            }
        };
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map(|builder| builder.with_client_cert_verifier(verifier))
            .and_then(|builder| builder.with_single_cert(chain, key));
        let mut config = config.map_err(|error| match &self.options.files {
            Some((path, _)) => unusable(path, &error),
            None => format!("the certificate of the REST API can not be used: {error}"),
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Current { config: Arc::new(config), files, until })
    }
}

fn unusable(path: &Path, why: &impl std::fmt::Display) -> String {
    format!("{}: {why}; name a PEM file with what belongs there", path.display())
}

/// The certificates of a file, at least one.
fn chain_of(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(path).map_err(|error| unusable(path, &error))?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(|error| unusable(path, &error))?;
    match all.is_empty() {
        true => Err(unusable(path, &"it has no certificate")),
        false => Ok(all),
    }
}

fn key_of(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| unusable(path, &error))
}

/// The names of a certificate: what was given, and this host. Names of the link are not the REST API's:
/// a certificate for one would be a controller's, or a node's, towards the others.
fn names(given: &[String]) -> Result<Vec<String>, String> {
    let mut names: BTreeSet<String> =
        ["localhost", "127.0.0.1", "::1"].into_iter().map(str::to_owned).collect();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    names.extend(Some(host.trim().to_ascii_lowercase()).filter(|host| is_name(host)));
    for name in given {
        let name = name.to_ascii_lowercase();
        if !is_name(&name) && name.parse::<IpAddr>().is_err() {
            return Err(format!("`{name}` is no name or address; give one that clients use"));
        }
        if name.ends_with(RESERVED) {
            return Err(format!("names that end with {RESERVED} are those of nodes; leave it out"));
        }
        names.insert(name);
    }
    names.retain(|name| !name.ends_with(RESERVED));
    Ok(names.into_iter().collect())
}

fn is_name(name: &str) -> bool {
    let label = |label: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !label.is_empty() && label.len() <= 63 && label.chars().all(fits)
    };
    name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_link_are_not_the_rest_apis() {
        let made = names(&["Ctl.Example".to_owned(), "10.0.0.1".to_owned()]).unwrap();
        for name in ["ctl.example", "10.0.0.1", "localhost", "::1"] {
            assert!(made.iter().any(|made| made == name), "{name}");
        }
        for name in ["controller.ashlar.internal", "n1.node.ASHLAR.internal", "a b", "", "a/b"] {
            assert!(names(&[name.to_owned()]).is_err(), "{name}");
        }
    }
}
