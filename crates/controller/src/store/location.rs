//! Where the store is, as an operator names it.

use std::fmt;
use std::path::PathBuf;

use super::Electorate;
use super::etcd::Etcd;
use super::postgres::Postgres;
use super::shared::Candidate;

/// Where the store is.
pub enum Location {
    /// In a SQLite file, of this controller alone.
    File(PathBuf),
    /// On a server that several controllers share.
    Shared(Box<dyn Electorate>),
}

impl Location {
    /// What people call it, without any password.
    pub fn name(&self) -> String {
        match self {
            Location::File(file) => format!("sqlite://{}", file.display()),
            Location::Shared(electorate) => electorate.name(),
        }
    }
}

/// Text that does not say where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoLocation {
    /// It begins with nothing that is known.
    Kind,
    /// It has a password, and everybody on this machine sees arguments.
    Password,
    /// The file that has it can not be read.
    File(PathBuf, String),
    /// The URL is not one.
    Url(String),
    /// There would be no encryption on the network.
    Clear,
    /// It has an authority of certificates, and says that there is no encryption.
    Both,
    /// A mode of encryption that does not tell who the server is.
    SslMode(String),
    /// A file of certificates can not be used.
    Certificate(PathBuf, String),
}

impl fmt::Display for NoLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoLocation::Kind => write!(
                f,
                "a store is sqlite:///FILE, postgresql://..., etcd://HOST:PORT, or @FILE with one of \
                 these in it"
            ),
            NoLocation::Password => write!(
                f,
                "the URL of the store has a password, and everybody on this machine can see \
                 arguments: write it to a file and give @FILE, or set ASHLAR_STORE"
            ),
            NoLocation::File(path, cause) => {
                write!(f, "{}, which should have the URL of the store: {cause}", path.display())
            }
            NoLocation::Url(cause) => write!(f, "the URL of the store can not be used: {cause}"),
            NoLocation::Clear => write!(
                f,
                "the store is reached over a network, where everybody could read its secrets: give \
                 the certificate of its authority, sslrootcert=FILE (PostgreSQL) or cacert=FILE (etcd)"
            ),
            NoLocation::Both => write!(
                f,
                "the URL of the store has sslrootcert and sslmode=disable: leave out one of them"
            ),
            NoLocation::SslMode(mode) => write!(
                f,
                "sslmode={mode} does not tell who the server is: leave it out, and give \
                 sslrootcert=FILE"
            ),
            NoLocation::Certificate(path, cause) => write!(f, "{}: {cause}", path.display()),
        }
    }
}

impl std::error::Error for NoLocation {}

impl Location {
    /// Reads an argument, which may not have a password in it: `@FILE` names a file that has the URL.
    ///
    /// # Errors
    /// If it names no store.
    pub fn from_argument(text: &str) -> Result<Location, NoLocation> {
        match text.strip_prefix('@') {
            Some(file) => {
                let path = PathBuf::from(file);
                match std::fs::read_to_string(&path) {
                    Ok(url) => Location::new(url.trim()),
                    Err(error) => Err(NoLocation::File(path, error.to_string())),
                }
            }
            None if has_password(text) => Err(NoLocation::Password),
            None => Location::new(text),
        }
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// If it names no store.
    pub fn new(url: &str) -> Result<Location, NoLocation> {
        let (scheme, rest) = url.split_once("://").ok_or(NoLocation::Kind)?;
        match scheme {
            "sqlite" if rest.starts_with('/') => Ok(Location::File(rest.into())),
            "sqlite" => Err(NoLocation::Url("the path of a file begins with a slash".to_owned())),
            "postgresql" | "postgres" => {
                Ok(Location::Shared(Box::new(Candidate::new(Postgres::new(url)?))))
            }
            "etcd" => Ok(Location::Shared(Box::new(Candidate::new(Etcd::new(url)?)))),
            _ => Err(NoLocation::Kind),
        }
    }
}

/// True if there is a password before the host, or among the parameters.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let user = place.rsplit_once('@').map_or("", |(user, _)| user);
    user.contains(':') || query.split('&').any(|parameter| parameter.starts_with("password="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_names_a_store_and_never_a_password() {
        let error = |text: &str| Location::from_argument(text).map(drop).unwrap_err();
        assert_eq!(error("/var/lib/store.db"), NoLocation::Kind);
        assert_eq!(error("mysql://x/y"), NoLocation::Kind);
        assert!(matches!(error("sqlite://store.db"), NoLocation::Url(_)));
        assert_eq!(error("postgresql://a:secret@127.0.0.1/x"), NoLocation::Password);
        assert_eq!(error("postgresql://127.0.0.1/x?password=secret"), NoLocation::Password);
        assert!(matches!(error("@/nonexistent/url"), NoLocation::File(..)));
        let file = Location::from_argument("sqlite:///a/b.db").unwrap();
        assert!(matches!(file, Location::File(path) if path.as_os_str() == "/a/b.db"));
        let directory = tempfile::tempdir().unwrap();
        let url = directory.path().join("url");
        std::fs::write(&url, "postgresql://a:secret@127.0.0.1/x\n").unwrap();
        let found = Location::from_argument(&format!("@{}", url.display()));
        assert!(matches!(found, Ok(Location::Shared(_))));
        let found = Location::from_argument("etcd://127.0.0.1:2379/cluster");
        assert!(matches!(found, Ok(Location::Shared(_))));
    }
}
