//! Digests of data on the wire (`data-integrity-alg`; wire §5.2).
//!
//! Each end says in P_PROTOCOL which digest comes with the data it sends, and changes that with
//! P_PROTOCOL_UPDATE, from that point of its stream on (wire §4.1 step 4). That both name the same
//! is for the core to see to; here each direction follows what was said in it.

use codec::wire::{Agreed, Packet};

use super::stream::Broken;
use crate::digest::Algorithm;

/// The digests of a connection.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Integrity {
    /// Of the data that this node sends.
    pub(crate) own: Option<Algorithm>,
    /// Of the data that the peer sends.
    pub(crate) peer: Option<Algorithm>,
}

impl Integrity {
    /// A packet was queued: it may change how those behind it are sent.
    pub(crate) fn sent(&mut self, packet: &Packet, agreed: &mut Agreed) {
        let Some(name) = named_in(packet) else { return };
        // The options of this node are checked when they are set: a name is known.
        self.own = std::str::from_utf8(name).ok().and_then(Algorithm::named);
        debug_assert_eq!(self.own.is_some(), !name.is_empty(), "only known digests are configured");
        agreed.own_digest_len = self.own.map_or(0, Algorithm::len);
    }

    /// A packet has arrived: it may change how those behind it are read.
    ///
    /// # Errors
    /// The peer names a digest that this node can not check.
    pub(crate) fn received(&mut self, packet: &Packet, agreed: &mut Agreed) -> Result<(), Broken> {
        let Some(name) = named_in(packet) else { return Ok(()) };
        self.peer = std::str::from_utf8(name).ok().and_then(Algorithm::named);
        agreed.peer_digest_len = self.peer.map_or(0, Algorithm::len);
        match packet {
            // The core refuses a connection whose ends name different digests, and for good.
            Packet::Protocol(_) => Ok(()),
            _ if self.peer.is_none() && !name.is_empty() => {
                Err(Broken::UnknownDigest(String::from_utf8_lossy(name).escape_debug().collect()))
            }
            _ => Ok(()),
        }
    }
}

/// The name that the packet gives, if it is one that does.
fn named_in(packet: &Packet) -> Option<&[u8]> {
    match packet {
        Packet::Protocol(protocol) | Packet::ProtocolUpdate(protocol) => {
            Some(&protocol.integrity_alg)
        }
        _ => None,
    }
}
