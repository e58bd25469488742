//! Who this node is, and whom it believes: one file, replaced as a whole.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cluster::name::NodeName;
use rustls::client::Resumption;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::files;
use crate::report::now;

/// What a node has after it has joined.
#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    /// The node.
    pub node: NodeName,
    /// The controller's address, `HOST:PORT`; of several controllers all, with commas between.
    pub controller: String,
    /// The private key, PKCS #8, DER.
    pub(super) key: Vec<u8>,
    /// The certificate, X.509, DER.
    pub(super) certificate: Vec<u8>,
    /// The authority's certificate, X.509, DER.
    pub(super) authority: Vec<u8>,
    /// When the certificate was given, milliseconds since 1970.
    pub(super) since_ms: u64,
    /// When it ends.
    pub(super) until_ms: u64,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} of the controller at {}", self.node, self.controller)
    }
}

/// Why a node is nobody.
#[derive(Debug)]
pub enum NoIdentity {
    /// It has not joined.
    NotJoined,
    /// The file can not be read.
    Unreadable(io::Error),
}

impl fmt::Display for NoIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoIdentity::NotJoined => f.write_str(
                "this node has not joined a cluster; make a token on the controller, then run \
                 `ashlar node join TOKEN` here",
            ),
            NoIdentity::Unreadable(error) => write!(f, "who this node is can not be read: {error}"),
        }
    }
}

impl std::error::Error for NoIdentity {}

fn path(directory: &Path) -> PathBuf {
    directory.join("identity.json")
}

impl Identity {
    /// What is kept in the agent's folder.
    ///
    /// # Errors
    /// If the node has not joined.
    pub fn read(directory: &Path) -> Result<Identity, NoIdentity> {
        let identity = files::read_json(&path(directory)).map_err(NoIdentity::Unreadable)?;
        identity.ok_or(NoIdentity::NotJoined)
    }

    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        files::replace_json(&path(directory), self)
    }

    /// How long until a new certificate is due: two thirds of its time after it was given.
    pub(super) fn renew_in(&self) -> Duration {
        let valid = self.until_ms.saturating_sub(self.since_ms);
        let due = self.since_ms + valid / 3 * 2;
        Duration::from_millis(due.saturating_sub(now().0))
    }

    /// This node's end of TLS: it has its certificate and believes the authority's only.
    pub(super) fn client(&self) -> Result<ClientConfig, Error> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(self.authority.clone()))?;
        let key = PrivateKeyDer::try_from(self.key.clone())
            .map_err(|why| Error::General(why.to_owned()))?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![CertificateDer::from(self.certificate.clone())], key)?;
        Ok(finished(config))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn finished(mut config: ClientConfig) -> ClientConfig {
    // Each link is a full handshake, with the certificates of that moment.
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// The end of TLS of a node that joins: it knows the digest of the authority's certificate from its
/// token, and takes whom that authority has signed.
pub(super) fn stranger(authority: [u8; 32]) -> Result<ClientConfig, Error> {
    let verifier = Arc::new(Pinned { authority });
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(finished(config))
}

/// Believes one authority, whose certificate comes in the handshake.
#[derive(Debug)]
struct Pinned {
    authority: [u8; 32],
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let known = |shown: &&CertificateDer<'_>| Sha256::digest(shown)[..] == self.authority;
        let Some(authority) = intermediates.iter().find(known) else {
            return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
        };
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
