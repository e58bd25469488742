//! Generation identifiers as a peer reported them, and what follows from them.

use codec::wire::UuidFlags;
use serde::{Deserialize, Serialize};
use vocab::{GenUuid, MAX_NODES, NodeId, NodeMask};

use crate::generation::{PeerGenerations, UNKNOWN, is_generation};

/// Generation identifiers a peer reported.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PeerUuids {
    pub current: GenUuid,
    pub dirty_bits: u64,
    pub flags: UuidFlags,
    pub node_mask: NodeMask,
    /// By node id; all ones where the peer has no slot.
    pub bitmap: Box<[GenUuid; MAX_NODES]>,
    pub history: Vec<GenUuid>,
}

impl PeerUuids {
    /// They are those of a disk, not only what a node without one has seen.
    pub(crate) fn of_disk(&self) -> bool {
        self.bitmap.iter().any(|base| *base != UNKNOWN)
    }

    /// That disk has left the generation behind.
    pub(crate) fn succeeds(&self, older: GenUuid) -> bool {
        self.history.iter().chain(self.bitmap.iter()).any(|u| is_generation(*u) && u.same(older))
    }

    /// As those of `node`, for the rules about generations.
    pub(crate) fn of(&self, node: NodeId) -> PeerGenerations<'_> {
        PeerGenerations {
            node,
            current: self.current,
            bitmap: &self.bitmap,
            history: &self.history,
            flags: self.flags,
        }
    }

    /// The peer's bitmap generation for `node`.
    pub(crate) fn bitmap_of(&self, node: NodeId) -> GenUuid {
        self.bitmap[node.index()]
    }

    /// The disk was at that generation once, and is no more.
    pub(crate) fn has_passed(&self, old: GenUuid) -> bool {
        !self.current.same(old) && self.succeeds(old)
    }

    /// The other disk's generation began at the one of this disk, and is one of its past: it was
    /// proposed, and given up since (see `Rule::GivenUpPeer`).
    pub(crate) fn has_given_up(&self, other: &PeerUuids) -> bool {
        gave_up(self.current, &self.history, other)
    }

    /// The peer adopts a generation after which the nodes in `weak` miss what is written: the
    /// same step as [`crate::generation::Generations::adopt`], on what the peer last sent.
    ///
    /// The peer may have said itself that it has gone further, before the Primary's word came.
    pub(crate) fn follow(&mut self, new: GenUuid, weak: NodeMask) {
        if self.current.same(new) || self.succeeds(new) {
            return;
        }
        let previous = std::mem::replace(&mut self.current, new);
        self.history.insert(0, previous);
        for node in NodeId::all() {
            let base = &mut self.bitmap[node.index()];
            if *base == UNKNOWN {
                continue;
            }
            if !weak.contains(node) {
                if !base.is_none() {
                    *base = new;
                }
            } else if base.is_none() || base.same(previous) {
                *base = previous;
            }
        }
    }
}

/// See [`PeerUuids::has_given_up`].
pub(crate) fn gave_up(current: GenUuid, history: &[GenUuid], other: &PeerUuids) -> bool {
    is_generation(current)
        && is_generation(other.current)
        && other.bitmap.iter().any(|base| base.same(current))
        && history.iter().any(|u| u.same(other.current))
}
