//! Who this node is, and whom it believes: the files that `tls-certificate`, `tls-privkey` and
//! `tls-keyring` name.
//!
//! They are read anew for every connection, so certificates are renewed by replacing files.

use std::fmt::Display;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::{Resumption, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error,
    InvalidMessage, RootCertStore, ServerConfig, SignatureScheme,
};
use vocab::options::NetOptions;

/// Both ends of TLS towards one peer: which one a socket needs depends on who opened it.
pub(crate) struct Credentials {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    /// The name that the peer's certificate must have.
    pub(super) peer: ServerName<'static>,
}

impl Credentials {
    /// Reads the files for a connection to `peer`, whose certificate must be for that name.
    ///
    /// # Errors
    /// Which option and file can not be used, and why.
    pub(crate) fn read(net: &NetOptions, peer: &str) -> Result<Credentials, String> {
        let (keyring, certificate, key) =
            (&net.tls_keyring, &net.tls_certificate, &net.tls_privkey);
        let mut roots = RootCertStore::empty();
        for root in certificates("tls-keyring", keyring)? {
            roots.add(root).map_err(|e| {
                format!("tls-keyring {keyring}: a certificate can not be used: {}", explain(&e))
            })?;
        }
        let chain = certificates("tls-certificate", certificate)?;
        let private = PrivateKeyDer::from_pem_file(key)
            .map_err(|e| format!("tls-privkey {key}: no private key in PEM format: {e}"))?;
        let name = ServerName::try_from(peer.to_owned()).map_err(|_| {
            format!("tls: no certificate can be for `{peer}`; use a host name for the peer")
        })?;
        let unfit = |e: Error| {
            format!(
                "tls-privkey {key} does not belong to tls-certificate {certificate}, or is of an \
                 unknown kind: {e}"
            )
        };
        let roots = Arc::new(roots);
        let provider = Arc::new(provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|e| format!("tls-keyring {keyring}: {e}"))?;
        let verifier = Arc::new(OfPeer { chain: verifier, peer: name.clone() });
        let versions = &[&rustls::version::TLS13];
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(unfit)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), private.clone_key())
            .map_err(unfit)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.enable_secret_extraction = true;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(unfit)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, private)
            .map_err(unfit)?;
        client.resumption = Resumption::disabled();
        client.enable_secret_extraction = true;
        Ok(Credentials { client: Arc::new(client), server: Arc::new(server), peer: name })
    }
}

/// The ciphers that `record` knows. Processors of today compute them fastest, and kernel nodes can.
pub(crate) fn provider() -> CryptoProvider {
    use aws_lc_rs::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384};
    let cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384];
    CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() }
}

fn certificates(option: &str, path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let unusable = |e: &dyn Display| format!("{option} {path}: no certificates in PEM format: {e}");
    let read = CertificateDer::pem_file_iter(path).map_err(|e| unusable(&e))?;
    let read: Vec<_> = read.collect::<Result<_, _>>().map_err(|e| unusable(&e))?;
    if read.is_empty() { Err(unusable(&"there is none")) } else { Ok(read) }
}

/// A client's certificate is good if its issuer is trusted and it is the peer's: with every node of a
/// cluster trusted for itself only, a stolen key lets nobody be another node.
#[derive(Debug)]
struct OfPeer {
    chain: Arc<dyn ClientCertVerifier>,
    peer: ServerName<'static>,
}

impl ClientCertVerifier for OfPeer {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.peer)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// What a failed handshake means for the operator.
pub(super) fn explain(error: &Error) -> String {
    let words = match error {
        Error::InvalidCertificate(error) => return unacceptable(error),
        Error::NoCertificatesPresented => {
            "the peer has shown no certificate; set tls-certificate and tls-privkey there"
        }
        Error::AlertReceived(alert) => {
            return format!(
                "the peer does not go on (TLS alert {alert:?}): its log says why it does not \
                 accept this node"
            );
        }
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "what the peer sends is not TLS; set `tls yes` on both nodes"
        }
        error => return format!("the TLS handshake failed: {error}"),
    };
    words.to_owned()
}

fn unacceptable(error: &CertificateError) -> String {
    use CertificateError as E;
    let words = match error {
        E::Expired | E::ExpiredContext { .. } => {
            "the peer's certificate has expired; renew it, or correct the clock of one of the nodes"
        }
        E::NotValidYet | E::NotValidYetContext { .. } => {
            "the peer's certificate is not valid yet; correct the clock of one of the nodes"
        }
        E::UnknownIssuer | E::BadSignature => {
            "the peer's certificate is of no issuer that tls-keyring names here"
        }
        E::NotValidForName => "the peer's certificate is for another name",
        E::NotValidForNameContext { expected, presented } => {
            // rustls gives them as `DnsName("…")`.
            let bare = |name: &String| name.split('"').nth(1).unwrap_or(name).to_owned();
            let names: Vec<String> = presented.iter().map(bare).collect();
            return format!(
                "the peer's certificate is not for `{}`, but for {}; the node's name must be among \
                 its subject alternative names",
                expected.to_str(),
                if names.is_empty() { "no name".to_owned() } else { names.join(", ") }
            );
        }
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "the peer's certificate is not meant for both ends of TLS; it needs the extended key \
             usages serverAuth and clientAuth, or none"
        }
        error => return format!("the peer's certificate can not be used: {error}"),
    };
    words.to_owned()
}
