//! DRBD's replication protocol: packets as values, and their bytes.
//!
//! Reading a stream goes in two steps, so that data never pass through here:
//!
//! 1. [`decode_header`] on the first bytes. It answers `None` until there are enough and checks
//!    command, stream, version, features and length.
//! 2. [`decode`] on the [`Header::fixed_len`] bytes behind it. For P_DATA, P_DATA_REPLY and
//!    P_RS_DATA_REPLY that is the fixed part only; the data-integrity digest (if agreed) and
//!    [`Packet::payload_len`] bytes of data follow on the stream.
//!
//! [`encode`] is the inverse. Both depend on what the two sides have [`Agreed`]. A stream that travels over
//! several sockets is cut into chunks, each behind a [`ChunkHeader`].
//!
//! Promises: nothing a peer sends can make this module panic, read outside its input, or allocate
//! more than the length limit of the packet's kind (at most 4 KiB); whatever is refused is named
//! by a [`WireError`]; and encoding what was decoded gives the same bytes but for padding.

mod agreed;
mod auth;
pub mod bitmap;
mod chunk;
mod command;
mod decode;
mod digest;
mod encode;
mod error;
mod header;
pub mod packet;
mod state;

pub use agreed::Agreed;
pub use auth::{CHALLENGE_LEN, auth_message};
pub use bitmap::{BitmapError, BitmapReceiver, BitmapSender, BitmapSource};
pub use chunk::{ChunkError, ChunkHeader};
pub use command::{Command, MAX_DIGEST, Scope, Streams};
pub use decode::decode;
pub use digest::Digest;
pub use encode::encode;
pub use error::{Rule, WireError};
pub use header::{Header, HeaderVersion, MAX_HEADER, decode_header};
pub use packet::*;
pub use state::{Operation, Outdates};

#[cfg(test)]
mod tests;
