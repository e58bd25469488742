//! What both sides of a connection have agreed on, as far as it shapes bytes (wire §2, §3.1, §4.1).

use serde::{Deserialize, Serialize};

use super::header::HeaderVersion;
use super::packet::feature;

/// Everything besides the bytes themselves that decoding and encoding depend on.
///
/// A connection starts with [`Agreed::NOTHING`]; once both P_CONNECTION_FEATURES are read it
/// becomes what they have in common, and P_PROTOCOL and P_PROTOCOL_UPDATE set the digest lengths
/// from their point of the stream on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Agreed {
    /// Agreed protocol version; 0 until the features are exchanged.
    pub version: u32,
    /// Agreed feature flags ([`feature`]).
    pub features: u32,
    /// Bytes of the peer's data-integrity digest, in front of the data it sends; 0 without one.
    pub peer_digest_len: usize,
    /// Bytes of our data-integrity digest, in front of the data we send; 0 without one.
    pub own_digest_len: usize,
}

impl Agreed {
    /// The state before P_CONNECTION_FEATURES: only initial packets, features and pings exist.
    pub const NOTHING: Agreed =
        Agreed { version: 0, features: 0, peer_digest_len: 0, own_digest_len: 0 };

    /// That version and those feature flags, no data-integrity digests.
    pub const fn new(version: u32, features: u32) -> Agreed {
        Agreed { version, features, peer_digest_len: 0, own_digest_len: 0 }
    }

    /// True if every one of these feature flags is agreed.
    pub const fn has(&self, features: u32) -> bool {
        self.features & features == features
    }

    /// True for a peer below protocol 110 ("protocol 8"): no node ids, other disk numbers.
    pub const fn is_protocol8(&self) -> bool {
        self.version < 110
    }

    /// Largest amount of data in one packet, in bytes (wire §2).
    pub const fn max_data(&self) -> u32 {
        match self.version {
            100.. => 1 << 20,
            95.. => 128 << 10,
            _ => 32 << 10,
        }
    }

    /// Largest discard or write of zeroes, in bytes (wire §2).
    pub const fn max_discard(&self) -> u32 {
        if self.has(feature::WSAME) { 128 << 20 } else { 4 << 20 }
    }

    /// The header in front of a packet of that many payload bytes. Initial packets and
    /// P_CONNECTION_FEATURES have version 80 always, which [`Agreed::NOTHING`] gives.
    pub const fn header_version(&self, payload: u32) -> HeaderVersion {
        const SMALL_TOTAL: u32 = 32 << 10;
        match self.version {
            100.. => HeaderVersion::V100,
            95.. if payload > SMALL_TOTAL - HeaderVersion::V80.size() as u32 => HeaderVersion::V95,
            _ => HeaderVersion::V80,
        }
    }
}
