//! From agent to agent: the two ends of a shipment to another cluster, as far as they are about how the one
//! comes to the other.
//!
//! The receiver makes a certificate for this one shipment, listens, and says where. Who comes has to show the
//! secret of the shipment within a few seconds; whoever does not is sent away and costs a thread until then,
//! of which there are few: when more come the ones that have been there longest go. The first who shows it is
//! the sender, and nobody else is listened to. The sender takes no other certificate than the one whose
//! fingerprint it was told.

use std::fmt::Write as _;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use cluster::shipping::{Door, Listen, Peer};
use logging::{Level, log};
use rcgen::{CertificateParams, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, ServerConfig,
    ServerConnection, SignatureScheme,
};
use sha2::{Digest, Sha256};

use super::line::{Line, greeting};
use super::{Work, of_io};
use crate::failed::Failed;

/// The name in the certificate: nobody relies on it.
const NAME: &str = "shipment.ashlar.internal";
/// How long a receiver waits for the sender.
const WAIT: Duration = Duration::from_secs(300);
/// How long who comes may take to show the secret.
const SHOW: Duration = Duration::from_secs(10);
/// Who may be about to show it at the same time.
const STRANGERS: usize = 16;
/// How long a sender tries to reach the receiver.
const REACH: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });
/// How often it is looked whether there is something to do.
const LOOK: Duration = Duration::from_millis(100);

impl Work<'_> {
    /// Listens until the sender of a shipment is there.
    pub(super) fn await_sender(&mut self, listen: &Listen) -> Result<Line, Failed> {
        let secret =
            self.node.master.unseal(&listen.secret, "the secret of the shipment", AGAIN)?;
        let listener = self.listener(listen)?;
        let (config, fingerprint) = certificate()?;
        let port = listener.local_addr().map_err(|error| of_io("listen", &error))?.port();
        let door = Door { address: listen.address, port, fingerprint };
        self.node.shipments.change(self.name, self.token, |state| state.door = Some(door));
        (self.told)();
        let expected = greeting(secret.expose()).ok_or_else(|| {
            Failed::new("the secret of the shipment is none".to_owned(), AGAIN.to_owned())
        })?;
        // Compared by its digest, which says nothing by how long that takes.
        let expected: [u8; 32] = Sha256::digest(expected).into();
        listener.set_nonblocking(true).map_err(|error| of_io("listen", &error))?;
        let (found, sender) = mpsc::sync_channel(1);
        let mut strangers = Strangers::default();
        let until = Instant::now() + WAIT;
        loop {
            if self.is_stopped() {
                return Err(of_io("receive", &shipping::s3::Error::Stopped.into()));
            }
            if Instant::now() >= until {
                let cause = format!("nobody has come to ship it within {} seconds", WAIT.as_secs());
                return Err(Failed::new(cause, AGAIN));
            }
            // Not for ever: others may have shown the secret meanwhile.
            for _ in 0..STRANGERS {
                match listener.accept() {
                    Ok((socket, from)) => {
                        let config = config.clone();
                        let guest = Guest { found: found.clone(), expected, config };
                        strangers.listen(guest, socket, from);
                    }
                    // Nobody; or somebody who has gone again, or no file is left, which passes.
                    Err(_) => break,
                }
            }
            match sender.recv_timeout(LOOK) {
                Ok(mut line) => match line.welcome(self.stop.clone()) {
                    Ok(()) => return Ok(line),
                    // A sender that is gone again may come again.
                    Err(error) => log!(Level::Debug, self.name, "the sender is gone: {error}"),
                },
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// The first port of the range that nobody has.
    fn listener(&self, listen: &Listen) -> Result<TcpListener, Failed> {
        let (low, high) = listen.ports;
        for port in low..=high {
            match TcpListener::bind((listen.address, port)) {
                Ok(listener) => return Ok(listener),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => {
                    let cause =
                        format!("can not listen at {} port {port}: {error}", listen.address);
                    let next = "see to the node's network interface, or name another one; \
                                SnapshotShipping/TcpPortRange says which ports";
                    return Err(Failed::new(cause, next));
                }
            }
        }
        let cause = format!("every TCP port from {low} to {high} is in use");
        Err(Failed::new(cause, "set the property SnapshotShipping/TcpPortRange to a larger range"))
    }

    /// Goes to the receiver of a shipment.
    pub(super) fn reach(&self, peer: &Peer) -> Result<Line, Failed> {
        let secret = self.node.master.unseal(&peer.secret, "the secret of the shipment", AGAIN)?;
        let door = &peer.door;
        let at = SocketAddr::new(door.address, door.port);
        let greeting = greeting(secret.expose())
            .ok_or_else(|| Failed::new("the secret of the shipment is none", AGAIN))?;
        let not_there = |error: &io::Error| {
            let cause =
                format!("the node that is to receive it can not be reached at {at}: {error}");
            let next = "see to the network between the clusters, and whether the other one still \
                        wants it; then ship it again";
            Failed::new(cause, next)
        };
        let config = pinned(&door.fingerprint).map_err(|why| Failed::new(why, AGAIN))?;
        let name = ServerName::try_from(NAME).map_err(|e| Failed::new(e.to_string(), AGAIN))?;
        let until = Instant::now() + REACH;
        let attempt = || -> io::Result<Line> {
            let socket = TcpStream::connect_timeout(&at, SHOW)?;
            let tls = ClientConnection::new(config.clone(), name.clone());
            let tls = tls.map_err(io::Error::other)?;
            let mut line = Line::new(tls.into(), socket, true, self.stop.clone())?;
            line.greet(&greeting, Instant::now() + SHOW)?;
            Ok(line)
        };
        loop {
            match attempt() {
                Ok(line) => return Ok(line),
                Err(error) if self.is_stopped() || Instant::now() >= until => {
                    return Err(not_there(&error));
                }
                Err(_) => thread::sleep(LOOK * 5),
            }
        }
    }
}

/// What is to be done about most of what goes wrong between two agents.
const AGAIN: &str = "ship it again";

/// For who has come and may be the sender.
struct Guest {
    found: SyncSender<Line>,
    expected: [u8; 32],
    config: Arc<ServerConfig>,
}

/// Those who have come and have not shown the secret yet, the first first: the flags that end them.
#[derive(Default)]
struct Strangers(Vec<Arc<AtomicBool>>);

impl Drop for Strangers {
    fn drop(&mut self) {
        self.0.iter().for_each(|flag| flag.store(true, Ordering::Relaxed));
    }
}

impl Strangers {
    /// Listens to somebody on a thread of their own.
    fn listen(&mut self, guest: Guest, socket: TcpStream, from: SocketAddr) {
        // A thread that has ended has dropped its flag.
        self.0.retain(|flag| Arc::strong_count(flag) > 1);
        if let Some(more) = self.0.len().checked_sub(STRANGERS - 1) {
            self.0.iter().take(more).for_each(|flag| flag.store(true, Ordering::Relaxed));
        }
        if self.0.len() >= STRANGERS * 4 {
            // They come faster than they go.
            return;
        }
        let flag = Arc::new(AtomicBool::new(false));
        let own = flag.clone();
        let listen = move || match shown(&guest, &own, socket) {
            // The second one who shows it is too late.
            Ok(line) => drop(guest.found.try_send(line)),
            Err(why) => log!(Level::Debug, "ship", "{from} does not ship anything here: {why}"),
        };
        if thread::Builder::new().name("ship-guest".to_owned()).spawn(listen).is_ok() {
            self.0.push(flag);
        }
    }
}

/// The connection of who shows the secret.
fn shown(guest: &Guest, stop: &Arc<AtomicBool>, socket: TcpStream) -> io::Result<Line> {
    let until = Instant::now() + SHOW;
    let tls = ServerConnection::new(guest.config.clone()).map_err(io::Error::other)?;
    let mut line = Line::new(tls.into(), socket, false, stop.clone())?;
    let said = line.greeted(until)?;
    match <[u8; 32]>::from(Sha256::digest(said)) == guest.expected {
        true => Ok(line),
        false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "it has not the secret")),
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// A new key with its certificate, and the fingerprint of that: SHA-256 in hexadecimal digits.
fn certificate() -> Result<(Arc<ServerConfig>, String), Failed> {
    let failed = |error: &dyn std::fmt::Display| {
        Failed::new(format!("no certificate can be made for the shipment: {error}"), AGAIN)
    };
    let key = KeyPair::generate().map_err(|error| failed(&error))?;
    let params = CertificateParams::new(vec![NAME.to_owned()]).map_err(|error| failed(&error))?;
    let made = params.self_signed(&key).map_err(|error| failed(&error))?;
    let fingerprint = hexadecimal(&Sha256::digest(made.der()));
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(|error| failed(&error))?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map(|builder| builder.with_no_client_auth())
        .and_then(|builder| builder.with_single_cert(vec![made.der().clone()], key));
    let mut config = config.map_err(|error| failed(&error))?;
    // It is used once.
    config.send_tls13_tickets = 0;
    Ok((Arc::new(config), fingerprint))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The sender's end of TLS, which takes one certificate.
fn pinned(fingerprint: &str) -> Result<Arc<ClientConfig>, String> {
    let verifier = Arc::new(Pinned { fingerprint: fingerprint.to_owned() });
    ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map(|builder| {
            builder
                .dangerous()
                .with_custom_certificate_verifier(verifier)
                .with_no_client_auth()
                .into()
        })
        .map_err(|error| format!("TLS can not begin: {error}"))
}

/// Believes one certificate.
#[derive(Debug)]
struct Pinned {
    fingerprint: String,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match hexadecimal(&Sha256::digest(end_entity)) == self.fingerprint {
            true => Ok(ServerCertVerified::assertion()),
            false => {
                Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
            }
        }
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

#[cfg(test)]
mod tests {
    use super::super::line::SECRET;
    use super::*;

    /// A sign of life, or that it has failed, may come together with a receiver's word that it takes the sender.
    #[test]
    fn a_welcome_is_one_whatever_comes_with_it() {
        let greeting = greeting(&"a".repeat(SECRET)).unwrap();
        let (config, fingerprint) = certificate().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let receiver = thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            let tls = ServerConnection::new(config).unwrap();
            let mut line = Line::new(tls.into(), socket, false, Arc::default()).unwrap();
            let said = line.greeted(Instant::now() + SHOW).unwrap();
            io::Write::write_all(&mut line, b"O.F\x04\0full").unwrap();
            io::Write::flush(&mut line).unwrap();
            said
        });
        let name = ServerName::try_from(NAME).unwrap();
        let tls = ClientConnection::new(pinned(&fingerprint).unwrap(), name).unwrap();
        let socket = TcpStream::connect(at).unwrap();
        let mut line = Line::new(tls.into(), socket, true, Arc::default()).unwrap();
        line.greet(&greeting, Instant::now() + SHOW).unwrap();
        assert_eq!(line.verdict().as_deref(), Some("full"));
        assert_eq!(receiver.join().unwrap(), greeting);
    }
}
