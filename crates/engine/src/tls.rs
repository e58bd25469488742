//! Encryption by TLS 1.3: of the sockets between nodes (`tls yes`; wire §1.3), and of NBD clients'.
//!
//! - `credentials`: a node's files, and whose certificate is accepted.
//! - `handshake`: one socket's handshake. `traffic`: its two directions afterwards; `record`: the records.
//! - `session`: the traffic of a socket between nodes, as packets.
//!
//! Handshakes and keys are rustls's, but those of NBD clients with shared keys
//! (`frontend::nbd::shared_keys`); the records of the traffic are made here, in batches and without an
//! allocation for each, and so that another process can go on with them. The core knows nothing of it.

#[cfg(test)]
pub(crate) mod authority;
mod credentials;
mod handshake;
mod record;
mod session;
#[cfg(test)]
mod tests;
mod traffic;

pub(crate) use credentials::{Credentials, provider};
pub(crate) use handshake::{Failure, Handshake};
pub(crate) use record::{DATA_MAX, Incoming, RecordError, next_record};
pub(crate) use session::{FrozenSession, Session};
pub(crate) use traffic::{FrozenTraffic, Opened, Traffic};

use record::content;

/// True if a socket whose first byte this is can be one of TLS.
pub(crate) const fn begins_tls(first: u8) -> bool {
    matches!(first, content::CHANGE_CIPHER_SPEC..=content::DATA)
}
