//! The authority that says who is who on the link: it signs the certificates of the controller and
//! of the nodes, and makes the tokens by which a node becomes known.
//!
//! It is kept in the file `authority.pem` of one folder: key and certificate in one, so that there are
//! both or none. Which tokens are good is for others to say ([`Joins`]): they are in the store.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::token::{SECRET, Token, hex};
use api::wire::{CONTROLLER, node_subject};
use cluster::name::NodeName;
use cluster::objects::{JoinToken, Millis};
use linstor::controller::Later;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::files::{replace, sync_folder, write};

/// How long the authority's own certificate holds.
const AUTHORITY_VALID: Duration = Duration::from_secs(20 * 365 * 24 * 3600);

/// How long a certificate of a node or of the controller holds. Agents renew theirs after two
/// thirds of it.
pub const VALID: Duration = Duration::from_secs(30 * 24 * 3600);

/// Where a certificate begins in a PEM file.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

/// Clocks of nodes may be behind by so much.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// The authority of a cluster.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    /// The certificate as PEM.
    pem: String,
    valid: Duration,
    /// The controller's own end, and until when it is used.
    own: Mutex<Option<(Arc<ServerConfig>, SystemTime)>>,
}

/// A certificate for a node.
pub struct Issued {
    /// X.509, DER.
    pub certificate: Vec<u8>,
    /// Its end, milliseconds since 1970.
    pub not_after_ms: u64,
}

/// Why a node does not become known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Denied {
    /// The token is not good for that: why, and what to do.
    Token(String),
    /// What it sent is no request for a certificate.
    Request(String),
    /// The tokens can not be read or written.
    Store(String),
}

/// Who keeps the tokens by which nodes join.
pub trait Joins: Send + Sync + 'static {
    /// Uses a token up, for a node: of two that try, one succeeds. `digest` is its secret's
    /// ([`digest`]).
    ///
    /// # Errors
    /// Why it is not good for that node; then it is not used up, unless it is not known what the store
    /// has done.
    fn take<'a>(&'a self, node: &'a NodeName, digest: String) -> Later<'a, Result<(), Denied>>;
}

/// What is kept of a token's secret: who reads that can not join.
pub fn digest(secret: &[u8]) -> String {
    hex(&Sha256::digest(secret))
}

impl Authority {
    /// The authority kept in a folder; made there at the first time.
    ///
    /// # Errors
    /// If the folder can not be written, or has something else in it.
    pub fn open(directory: &Path, valid: Duration) -> io::Result<Authority> {
        fs::create_dir_all(directory)?;
        let path = directory.join("authority.pem");
        if !path.exists() {
            make_once(&path)?;
        }
        let damaged = |why: String| {
            let text = format!(
                "{}: {why}; restore it from a backup, or remove it to begin with a new authority, \
                 which every node has to join again",
                path.display()
            );
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        let text = fs::read_to_string(&path)?;
        let key = KeyPair::from_pem(&text).map_err(|e| damaged(e.to_string()))?;
        let certificate =
            CertificateDer::from_pem_slice(text.as_bytes()).map_err(|e| damaged(e.to_string()))?;
        let issuer =
            Issuer::from_ca_cert_der(&certificate, key).map_err(|e| damaged(e.to_string()))?;
        // The key stands before it, and is nobody else's.
        let pem = text.find(CERTIFICATE).map_or_else(String::new, |at| text[at..].to_owned());
        Ok(Authority { issuer, certificate, pem, valid, own: Mutex::new(None) })
    }

    /// Its certificate, X.509, DER.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Its certificate as PEM, for those who are to believe it.
    pub fn certificate_pem(&self) -> &str {
        &self.pem
    }

    /// A token by which a node finds this authority at an address, `HOST:PORT` or several with commas
    /// between, and what is to be kept of it. None if the address is none.
    ///
    /// # Errors
    /// If the kernel gives no random bytes.
    pub fn invite(&self, address: &str) -> io::Result<Option<(Token, String)>> {
        let mut secret = [0; SECRET];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        let authority = Sha256::digest(&self.certificate).into();
        let token = Token { address: address.to_owned(), authority, secret };
        let good = token.to_string().parse() == Ok(token.clone());
        Ok(good.then(|| (token, digest(&secret))))
    }

    /// Lets a node join that has a token: uses the token and signs the node's key.
    ///
    /// # Errors
    /// Why not; what is no request has not used the token up.
    pub async fn join(
        &self,
        joins: &dyn Joins,
        node: &NodeName,
        secret: &[u8],
        request: &[u8],
    ) -> Result<Issued, Denied> {
        let request = read_request(request)?;
        joins.take(node, digest(secret)).await?;
        self.sign_node(node, &request)
    }

    /// A new certificate for a node that is known.
    ///
    /// # Errors
    /// If the request can not be read.
    pub fn renew(&self, node: &NodeName, request: &[u8]) -> Result<Issued, Denied> {
        self.sign_node(node, &read_request(request)?)
    }

    /// Of a request only the key is taken: who it is for is decided here.
    fn sign_node(
        &self,
        node: &NodeName,
        request: &CertificateSigningRequestParams,
    ) -> Result<Issued, Denied> {
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        let (params, end) = self.params(vec![node_subject(node.as_str())], usage);
        let signed = params.and_then(|params| params.signed_by(&request.public_key, &self.issuer));
        let signed = signed.map_err(|error| Denied::Request(error.to_string()))?;
        Ok(Issued { certificate: signed.der().to_vec(), not_after_ms: millis(end) })
    }

    fn params(
        &self,
        names: Vec<String>,
        usage: ExtendedKeyUsagePurpose,
    ) -> (Result<CertificateParams, rcgen::Error>, SystemTime) {
        let now = SystemTime::now();
        let end = now + self.valid;
        let params = CertificateParams::new(names).map(|mut params| {
            params.distinguished_name.remove(DnType::CommonName);
            params.not_before = OffsetDateTime::from(now - CLOCK_SKEW);
            params.not_after = OffsetDateTime::from(end);
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![usage];
            params.use_authority_key_identifier_extension = true;
            params
        });
        (params, end)
    }

    /// The controller's end of TLS, with a certificate that is renewed in time.
    ///
    /// # Errors
    /// If it can not be made.
    pub fn server(&self) -> Result<Arc<ServerConfig>, String> {
        let now = SystemTime::now();
        let mut own = self.own.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((config, until)) = &*own {
            if now < *until {
                return Ok(config.clone());
            }
        }
        let config = Arc::new(self.make_server().map_err(|error| error.to_string())?);
        *own = Some((config.clone(), now + self.valid * 2 / 3));
        Ok(config)
    }

    fn make_server(&self) -> Result<ServerConfig, Box<dyn std::error::Error + Send + Sync>> {
        let Server { chain, key, .. } = self.sign_server(vec![CONTROLLER.to_owned()])?;
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        // A node that joins has no certificate yet; what else it asks for is refused (`service`).
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .allow_unauthenticated()
                .build()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        // Each link is a full handshake: who is no longer known is not let in by an old one.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

/// A certificate for a server.
pub struct Server {
    /// It, and that of the authority.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
    /// When it should be made anew.
    pub until: SystemTime,
}

impl Authority {
    /// A certificate and a new key for a server of these names and addresses.
    ///
    /// # Errors
    /// If one of them is neither.
    pub fn sign_server(
        &self,
        names: Vec<String>,
    ) -> Result<Server, Box<dyn std::error::Error + Send + Sync>> {
        let key = KeyPair::generate()?;
        let (params, _) = self.params(names, ExtendedKeyUsagePurpose::ServerAuth);
        let signed = params?.signed_by(&key, &self.issuer)?;
        let chain = vec![signed.der().clone(), self.certificate.clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der())?;
        Ok(Server { chain, key, until: SystemTime::now() + self.valid * 2 / 3 })
    }
}

/// The authority of a folder as text, key and certificate; made there at the first time.
///
/// # Errors
/// If the folder can not be used, or has something else in it.
pub fn text(directory: &Path) -> io::Result<String> {
    // What is damaged is not shared.
    Authority::open(directory, VALID)?;
    fs::read_to_string(directory.join("authority.pem"))
}

/// Has the authority of a folder be that one, which all controllers of the cluster share.
///
/// # Errors
/// If the folder can not be used.
pub fn adopt(directory: &Path, shared: &str) -> io::Result<()> {
    if text(directory)? == shared {
        return Ok(());
    }
    replace(&directory.join("authority.pem"), shared.as_bytes())
}

/// What older versions have kept of a token, in a file of the folder `tokens`.
#[derive(Deserialize)]
struct Kept {
    node: Option<NodeName>,
    expires_ms: u64,
}

/// Tokens that an older version has kept in files of an authority's folder. The files are gone when
/// this returns: a token that was then used elsewhere can not come back from them.
///
/// # Errors
/// If the files can not be read or removed.
pub fn take_over_tokens(directory: &Path) -> io::Result<Vec<JoinToken>> {
    let folder = directory.join("tokens");
    let files = match fs::read_dir(&folder) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for file in files {
        let file = file?;
        // One that was not whole yet when its writer was killed was told to nobody.
        if let Ok(Kept { node, expires_ms }) = serde_json::from_slice(&fs::read(file.path())?) {
            let digest = file.file_name().to_string_lossy().into_owned();
            found.push(JoinToken { digest, node, expires: Millis(expires_ms) });
        }
        fs::remove_file(file.path())?;
    }
    File::open(&folder)?.sync_all()?;
    fs::remove_dir(&folder)?;
    sync_folder(&folder)?;
    Ok(found)
}

/// A new authority: its key and its certificate.
fn make() -> Result<String, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Ashlar link authority");
    let now = SystemTime::now();
    params.not_before = OffsetDateTime::from(now - CLOCK_SKEW);
    params.not_after = OffsetDateTime::from(now + AUTHORITY_VALID);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key)?;
    Ok(key.serialize_pem() + &certificate.pem())
}

fn read_request(request: &[u8]) -> Result<CertificateSigningRequestParams, Denied> {
    CertificateSigningRequestParams::from_der(&request.into())
        .map_err(|error| Denied::Request(error.to_string()))
}

fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Makes the authority. Of a controller that starts and a command that makes a token at the same
/// time one makes it, and both use that.
fn make_once(path: &Path) -> io::Result<()> {
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    write(&beside, make().map_err(io::Error::other)?.as_bytes())?;
    let linked = fs::hard_link(&beside, path);
    fs::remove_file(&beside)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => sync_folder(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn node(name: &str) -> NodeName {
        NodeName::new(name).unwrap()
    }

    fn request() -> Vec<u8> {
        let key = KeyPair::generate().unwrap();
        let request = CertificateParams::new(vec!["somebody.else".to_owned()]).unwrap();
        request.serialize_request(&key).unwrap().der().to_vec()
    }

    fn authority(directory: &Path) -> Authority {
        Authority::open(directory, VALID).unwrap()
    }

    #[test]
    fn an_authority_is_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let first = authority(directory.path()).certificate().to_vec();
        assert_eq!(authority(directory.path()).certificate(), first);
        make_once(&directory.path().join("authority.pem")).unwrap();
        assert_eq!(authority(directory.path()).certificate(), first, "who is later uses it");
        fs::write(directory.path().join("authority.pem"), "nothing").unwrap();
        let error = Authority::open(directory.path(), VALID).err().unwrap().to_string();
        assert!(error.contains("restore it"), "{error}");
    }

    #[test]
    fn controllers_of_one_cluster_come_to_have_one_authority() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut kept: Option<String> = None;
        for directory in [&one, &two, &one] {
            let own = text(directory.path()).unwrap();
            adopt(directory.path(), kept.get_or_insert(own)).unwrap();
        }
        let of = |directory: &Path| authority(directory).certificate().to_vec();
        assert_eq!(of(one.path()), of(two.path()));
    }

    /// Takes any token, once.
    #[derive(Default)]
    struct Any(Mutex<BTreeSet<String>>);

    impl Joins for Any {
        fn take<'a>(&'a self, _: &'a NodeName, digest: String) -> Later<'a, Result<(), Denied>> {
            let taken = match self.0.lock().unwrap().insert(digest) {
                true => Ok(()),
                false => Err(Denied::Token("used".to_owned())),
            };
            Box::pin(std::future::ready(taken))
        }
    }

    #[tokio::test]
    async fn what_is_no_request_does_not_use_a_token_up() {
        let directory = tempfile::tempdir().unwrap();
        let (authority, any) = (authority(directory.path()), Any::default());
        let (token, kept) = authority.invite("a:1").unwrap().unwrap();
        let alpha = node("alpha");
        let garbage = authority.join(&any, &alpha, &token.secret, b"garbage").await;
        assert!(matches!(garbage.err(), Some(Denied::Request(_))));
        assert!(any.0.lock().unwrap().is_empty());
        authority.join(&any, &alpha, &token.secret, &request()).await.ok().unwrap();
        assert_eq!(*any.0.lock().unwrap(), BTreeSet::from([kept]));
        let again = authority.join(&any, &alpha, &token.secret, &request()).await;
        assert!(matches!(again.err(), Some(Denied::Token(_))));
        for address in ["", "a", "a b", "a:1,", "a:x"] {
            assert!(authority.invite(address).unwrap().is_none(), "{address}");
        }
    }

    #[test]
    fn tokens_of_an_older_version_are_taken_over_once() {
        let directory = tempfile::tempdir().unwrap();
        let tokens = directory.path().join("tokens");
        fs::create_dir(&tokens).unwrap();
        fs::write(tokens.join("aa"), r#"{"node":"alpha","expires_ms":7}"#).unwrap();
        fs::write(tokens.join("bb"), r#"{"node":null,"expires_ms":8}"#).unwrap();
        fs::write(tokens.join("cc.new"), r#"{"node":"#).unwrap();
        let mut found = take_over_tokens(directory.path()).unwrap();
        found.sort_by_key(|token| token.expires);
        let token = |digest: &str, of: Option<&str>, end| JoinToken {
            digest: digest.to_owned(),
            node: of.map(node),
            expires: Millis(end),
        };
        assert_eq!(found, [token("aa", Some("alpha"), 7), token("bb", None, 8)]);
        assert_eq!(take_over_tokens(directory.path()).unwrap(), []);
    }
}
