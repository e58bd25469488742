//! One socket's handshake. The messages are rustls's, or s2n-tls's where both ends have a key; here they get to the socket and back, a record
//! at a time, so that nothing which follows the handshake is taken away from whoever reads next.

use std::fmt;
use std::sync::{Arc, Mutex};

use frontend::nbd::shared_keys::{self, Keys};
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};

use super::credentials::{Credentials, explain};
use rustls::{ClientConfig, KeyLog, ServerConfig};
use zeroize::Zeroizing;

use super::record::{Incoming, Key, RecordError, next_record};
use super::traffic::Traffic;
use crate::engine::lock;

/// Why there is no session.
#[derive(Debug)]
pub(crate) enum Failure {
    /// rustls says no.
    Refused(rustls::Error),
    /// The client has no key of ours.
    Keys(shared_keys::Refused),
    /// The peer's bytes are no records.
    Records(RecordError),
    /// There is more than the handshake where its end should be.
    Excess,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(error) => f.write_str(&explain(error)),
            Failure::Keys(refused) => refused.fmt(f),
            Failure::Records(error) => write!(f, "{error}; set `tls yes` on both nodes"),
            Failure::Excess => f.write_str("the peer sends more than the TLS handshake has"),
        }
    }
}

impl From<rustls::Error> for Failure {
    fn from(error: rustls::Error) -> Failure {
        Failure::Refused(error)
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Failure {
        Failure::Records(error)
    }
}

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
    /// Of a server with [`Keys`].
    Keys(shared_keys::Handshake),
}

/// The secrets of both directions' traffic, as rustls tells them.
#[derive(Default)]
struct Secrets {
    client: Mutex<Option<Zeroizing<Vec<u8>>>>,
    server: Mutex<Option<Zeroizing<Vec<u8>>>>,
}

impl Secrets {
    fn of(&self, label: &str) -> Option<&Mutex<Option<Zeroizing<Vec<u8>>>>> {
        match label {
            "CLIENT_TRAFFIC_SECRET_0" => Some(&self.client),
            "SERVER_TRAFFIC_SECRET_0" => Some(&self.server),
            _ => None,
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

impl KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if let Some(place) = self.of(label) {
            *lock(place) = Some(Zeroizing::new(secret.to_vec()));
        }
    }

    fn will_log(&self, label: &str) -> bool {
        self.of(label).is_some()
    }
}

/// A handshake under way.
pub(crate) struct Handshake {
    side: Side,
    secrets: Arc<Secrets>,
    /// Records that rustls has not done with.
    incoming: Vec<u8>,
}

/// What rustls wants next.
enum Step {
    /// To be asked again.
    Again,
    /// A record of the peer.
    Record,
    /// Nothing: both ends have the keys.
    Done,
    Failed(Failure),
}

impl Handshake {
    /// The side that opened the socket is TLS's client (wire §1.3).
    ///
    /// # Errors
    /// Why it can not begin.
    pub(crate) fn new(credentials: &Credentials, accepted: bool) -> Result<Handshake, Failure> {
        if accepted {
            return Handshake::of_server(&credentials.server);
        }
        let secrets = Arc::<Secrets>::default();
        let mut config = ClientConfig::clone(&credentials.client);
        config.key_log = secrets.clone();
        let side = UnbufferedClientConnection::new(Arc::new(config), credentials.peer.clone())?;
        Ok(Handshake { side: Side::Client(side), secrets, incoming: Vec::new() })
    }

    /// A server's side; `config` has TLS 1.3 and the ciphers of [`provider`](super::provider) alone, and its
    /// secrets can be taken.
    ///
    /// # Errors
    /// Why it can not begin.
    pub(crate) fn of_server(config: &ServerConfig) -> Result<Handshake, Failure> {
        let secrets = Arc::<Secrets>::default();
        let mut config = config.clone();
        config.key_log = secrets.clone();
        let side = Side::Server(UnbufferedServerConnection::new(Arc::new(config))?);
        Ok(Handshake { side, secrets, incoming: Vec::new() })
    }

    /// A server's side with keys that clients have, too.
    ///
    /// # Errors
    /// Why it can not begin.
    pub(crate) fn of_keys(keys: &Keys) -> Result<Handshake, Failure> {
        let side = Side::Keys(shared_keys::Handshake::new(keys).map_err(Failure::Keys)?);
        Ok(Handshake { side, secrets: Arc::default(), incoming: Vec::new() })
    }

    /// Goes on as far as what has arrived allows, and appends to `out` what is to be sent: after an
    /// error, too, so that the peer learns of it. True if it is over.
    ///
    /// # Errors
    /// Why there will be no session.
    pub(crate) fn advance(
        &mut self,
        rx: &mut impl Incoming,
        out: &mut Vec<u8>,
    ) -> Result<bool, Failure> {
        loop {
            match self.step(out) {
                Step::Again => {}
                Step::Done if self.incoming.is_empty() => return Ok(true),
                Step::Done => return Err(Failure::Excess),
                Step::Record => {
                    let Some(record) = next_record(rx)? else { return Ok(false) };
                    self.incoming.extend_from_slice(record);
                    let len = record.len();
                    rx.consume(len);
                }
                Step::Failed(failure) => {
                    // The alert for the peer.
                    while let Step::Again = self.step(out) {}
                    return Err(failure);
                }
            }
        }
    }

    fn step(&mut self, out: &mut Vec<u8>) -> Step {
        let (discard, step) = match &mut self.side {
            Side::Client(side) => take(side.process_tls_records(&mut self.incoming), out),
            Side::Server(side) => take(side.process_tls_records(&mut self.incoming), out),
            Side::Keys(side) => {
                return match side.advance(&mut self.incoming, out) {
                    Ok(true) => Step::Done,
                    Ok(false) => Step::Record,
                    Err(refused) => Step::Failed(Failure::Keys(refused)),
                };
            }
        };
        self.incoming.drain(..discard);
        step
    }

    /// The keys, once it is over.
    ///
    /// # Errors
    /// Why they can not be had.
    pub(crate) fn finish(self) -> Result<Traffic, Failure> {
        let Secrets { client, server } = &*self.secrets;
        let (extracted, sending, receiving) = match self.side {
            Side::Client(side) => (side.dangerous_into_kernel_connection()?.0, client, server),
            Side::Server(side) => (side.dangerous_into_kernel_connection()?.0, server, client),
            Side::Keys(side) => {
                let secrets = side.finish().map_err(Failure::Keys)?;
                let (sending, receiving) = (secrets.server, secrets.client);
                return Ok(Traffic::new(Key::of(sending)?, Key::of(receiving)?));
            }
        };
        let key = |of, told: &Mutex<Option<_>>| {
            Key::new(of, Some(lock(told).take().ok_or(RecordError::Key)?))
        };
        let (sending, receiving) = (key(extracted.tx, sending)?, key(extracted.rx, receiving)?);
        Ok(Traffic::new(sending, receiving))
    }
}

fn take<Data>(status: UnbufferedStatus<'_, '_, Data>, out: &mut Vec<u8>) -> (usize, Step) {
    let step = match status.state {
        Err(error) => Step::Failed(error.into()),
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let start = out.len();
            let encoded = match data.encode(&mut []) {
                Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
                    out.resize(start + required_size, 0);
                    data.encode(&mut out[start..])
                }
                other => other,
            };
            out.truncate(start + encoded.unwrap_or(0));
            Step::Again
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Step::Again
        }
        Ok(ConnectionState::BlockedHandshake) => Step::Record,
        Ok(ConnectionState::WriteTraffic(_)) => Step::Done,
        Ok(_) => Step::Failed(rustls::Error::HandshakeNotComplete.into()),
    };
    (status.discard, step)
}
