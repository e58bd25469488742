//! Encryption of a connection's sockets by TLS 1.3 (`tls yes`; wire §1.3).
//!
//! - `credentials`: the files, and whose certificate is accepted.
//! - `handshake`: one socket's handshake. `session`: its traffic afterwards. `record`: the records.
//!
//! Handshakes and keys are rustls's; the records of the traffic are made here, in batches and without an
//! allocation for each. The core knows nothing of it.

#[cfg(test)]
pub(super) mod authority;
mod credentials;
mod handshake;
mod record;
mod session;
#[cfg(test)]
mod tests;

pub(crate) use credentials::Credentials;
pub(super) use handshake::{Failure, Handshake};
pub(super) use record::RecordError;
pub(super) use session::{FrozenSession, Session};

use record::content;

/// True if a socket whose first byte this is can be one of TLS.
pub(super) const fn begins_tls(first: u8) -> bool {
    matches!(first, content::CHANGE_CIPHER_SPEC..=content::DATA)
}
