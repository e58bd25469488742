//! Data generations (semantics §4): who has seen which writes, told by random identifiers.
//!
//! - this file: what a node with a disk remembers ([`Generations`]) and the two elementary steps,
//!   PUSH and SETBM, that everything else is made of;
//! - `change`: the events that change it (bump, adoption, resync start and finish, ...);
//! - `compare`: what two nodes conclude from each other's identifiers (semantics §4.5);
//! - `resolve`: what follows from that for a connection (semantics §4.6, §5).
//!
//! Nothing here draws random numbers, writes metadata or sends packets: randomness comes in as a
//! closure, and every function says what it changed. The caller makes the change durable before
//! it acts on it, and keeps a copy to go back to where writing may fail ([`Generations`] is small
//! and `Clone`).
//!
//! ```text
//! current     the generation this disk holds
//! bitmap[n]   the generation node n was at when the bits of n's slot begin; none = nothing owed
//! history     former generations, youngest first
//! ```

use serde::{Deserialize, Serialize};
use vocab::{Dagtag, DiskState, GenUuid, MAX_NODES, NodeId, NodeMask};

mod change;
#[cfg(test)]
mod cluster_tests;
pub mod compare;
pub mod resolve;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use change::{
    Adoption, Learned, NewGeneration, PeerGenerations, ResyncFinish, ResyncStart, weak_nodes,
};

/// Entries of the history (metadata §1.2).
pub const HISTORY: usize = 32;

/// What is sent for a slot whose value can not be told, and what a missing slot reads as
/// (wire §9.1). Never equal to anything.
pub const UNKNOWN: GenUuid = GenUuid(u64::MAX);

/// True if the value names a generation of data: neither none, just created, nor unknown.
pub const fn is_generation(uuid: GenUuid) -> bool {
    uuid.is_real() && !uuid.same(UNKNOWN)
}

/// The bitmap generation of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BitmapUuid {
    /// The generation the bits start from; none if no bitmap is in use.
    pub uuid: GenUuid,
    /// This node's position in the write stream when the value was set by a rotation.
    pub dagtag: Dagtag,
}

/// What a node with a disk remembers about one volume's generations.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Generations {
    current: GenUuid,
    bitmap: [BitmapUuid; MAX_NODES],
    history: [GenUuid; HISTORY],
    /// Slots of which bits may have been cleared since they got their generation.
    worn: NodeMask,
}

/// What this node knows about one other node, or about a node id nobody uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// A connection to the node is configured.
    pub configured: bool,
    /// The connection is in state Connected.
    pub connected: bool,
    /// The node's disk in the new state; DUnknown while not connected, unless last known worse.
    pub disk: DiskState,
    /// Configured with `bitmap=no`: diskless by intent.
    pub intentional_diskless: bool,
    /// A bitmap slot is allocated to the node.
    pub has_slot: bool,
}

impl Neighbour {
    /// A node id that is neither configured nor has a slot.
    pub const NOBODY: Neighbour = Neighbour {
        configured: false,
        connected: false,
        disk: DiskState::DUnknown,
        intentional_diskless: false,
        has_slot: false,
    };
}

/// The state a change of generations depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Situation {
    /// This node.
    pub me: NodeId,
    /// This node is Primary: generations it starts carry bit 0.
    pub primary: bool,
    /// This node's disk is UpToDate.
    pub up_to_date: bool,
    /// Position in the write stream.
    pub dagtag: Dagtag,
    /// All 32 node ids; the entry of `me` is ignored.
    pub nodes: [Neighbour; MAX_NODES],
    /// A bitmap slot is allocated to nobody. It records every write since the metadata was
    /// created ("day 0") on behalf of nodes that may still come.
    pub unallocated_slot: bool,
}

impl Situation {
    /// What is known about a node.
    pub fn node(&self, node: NodeId) -> &Neighbour {
        &self.nodes[node.index()]
    }

    fn others(&self) -> impl Iterator<Item = NodeId> + use<> {
        let me = self.me;
        NodeId::all().filter(move |node| *node != me)
    }

    /// A node id without connection and slot: its bits are those of the unallocated slot.
    fn is_unallocated(&self, node: NodeId) -> bool {
        let neighbour = self.node(node);
        !neighbour.configured && !neighbour.has_slot
    }
}

impl Generations {
    /// Fresh metadata: just created, nothing else known.
    pub const JUST_CREATED: Generations = Generations {
        current: GenUuid::JUST_CREATED,
        bitmap: [BitmapUuid { uuid: GenUuid::NONE, dagtag: Dagtag(0) }; MAX_NODES],
        history: [GenUuid::NONE; HISTORY],
        worn: NodeMask::EMPTY,
    };

    /// What the metadata says. Values are taken as they are, except that the history loses what
    /// it must not contain (invariant 21) and its gaps.
    pub fn from_metadata(
        current: GenUuid,
        bitmap: [BitmapUuid; MAX_NODES],
        history: [GenUuid; HISTORY],
    ) -> Generations {
        // Nothing on disk tells whether a resync has been at a slot.
        let worn = NodeId::all().filter(|n| !bitmap[n.index()].uuid.is_none()).collect();
        let mut gens = Generations { current, bitmap, history: [GenUuid::NONE; HISTORY], worn };
        let kept = history.into_iter().filter(|h| is_generation(*h) && !h.same(current));
        for (slot, uuid) in gens.history.iter_mut().zip(kept) {
            *slot = uuid.with_primary(false);
        }
        gens
    }

    /// The generation this disk holds.
    pub fn current(&self) -> GenUuid {
        self.current
    }

    /// The bitmap generation of a node.
    pub fn bitmap(&self, node: NodeId) -> BitmapUuid {
        self.bitmap[node.index()]
    }

    /// All bitmap generations by node id.
    pub fn bitmaps(&self) -> &[BitmapUuid; MAX_NODES] {
        &self.bitmap
    }

    /// The disk was at that generation once, and is no more.
    pub fn has_passed(&self, old: GenUuid) -> bool {
        let is = |u: &GenUuid| is_generation(*u) && u.same(old);
        let past = self.bitmap.iter().any(|b| is(&b.uuid)) || self.history.iter().any(is);
        past && !self.current.same(old)
    }

    /// Former generations, youngest first, then none.
    pub fn history(&self) -> &[GenUuid; HISTORY] {
        &self.history
    }

    /// Bits of this slot were cleared because its node got those blocks, by a resync from here
    /// or elsewhere. They no longer tell everything that changed since the slot's generation:
    /// another node at that generation must not be resynced by them.
    pub fn bits_cleared(&mut self, node: NodeId) {
        self.worn.insert(node);
    }

    /// Slots whose bits must not be copied for another node, see [`Generations::bits_cleared`].
    /// After an attach every slot that has a generation and a bitmap counts as one.
    pub fn worn(&self) -> NodeMask {
        self.worn
    }

    /// Day 0: a real generation, and nothing has ever happened to it. Such volumes are made by
    /// tools that give every node the same current generation (semantics §4.8).
    pub fn is_day0(&self) -> bool {
        is_generation(self.current)
            && self.history.iter().all(|h| h.is_none())
            && self.bitmap.iter().all(|b| b.uuid.is_none())
    }

    /// Forgets that a generation is one of the past. Returns true if it was.
    pub fn unlearn(&mut self, uuid: GenUuid) -> bool {
        let Some(at) = self.history.iter().position(|h| is_generation(uuid) && h.same(uuid)) else {
            return false;
        };
        self.history[at..].rotate_left(1);
        self.history[HISTORY - 1] = GenUuid::NONE;
        true
    }

    /// PUSH: remembers a former generation. Returns true if the history changed.
    ///
    /// Bit 0 is dropped. Nothing happens for what is no generation, for the current one, and for
    /// what the history has already. A value that some slot holds is remembered there, unless
    /// the history is still empty (wire §9.2, seen in captures 04, 15 and 18).
    pub fn push(&mut self, uuid: GenUuid) -> bool {
        let uuid = uuid.with_primary(false);
        if !is_generation(uuid) || uuid.same(self.current) {
            return false;
        }
        if self.history[0].is_none() {
            self.history[0] = uuid;
            return true;
        }
        let known = self.history.iter().any(|h| h.same(uuid))
            || self.bitmap.iter().any(|b| b.uuid.same(uuid));
        if known {
            return false;
        }
        self.history.rotate_right(1);
        self.history[0] = uuid;
        true
    }

    /// SETBM: gives a node's slot another bitmap generation and remembers the one it had.
    /// Returns true if the slot changed. With [`GenUuid::NONE`]: nothing is owed to that node.
    pub fn set_bitmap(&mut self, node: NodeId, uuid: GenUuid) -> bool {
        debug_assert!(uuid.is_none() || is_generation(uuid));
        let slot = &mut self.bitmap[node.index()];
        let old = std::mem::replace(&mut slot.uuid, uuid);
        if uuid.is_none() {
            slot.dagtag = Dagtag(0);
        }
        if old != uuid {
            self.worn.remove(node);
        }
        // Only now, so that the slot itself does not count as remembering its old value.
        self.push(old);
        old != uuid
    }

    /// Makes `uuid` the current generation. The history never holds the current one.
    fn set_current(&mut self, uuid: GenUuid) {
        self.current = uuid;
        if let Some(at) = self.history.iter().position(|h| h.same(uuid) && !h.is_none()) {
            self.history[at..].rotate_left(1);
            self.history[HISTORY - 1] = GenUuid::NONE;
        }
    }

    /// Checks invariant 21 and the form of the history.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn invariants(&self) {
        let used = self.history.iter().take_while(|h| !h.is_none()).count();
        assert!(self.history[used..].iter().all(|h| *h == GenUuid::NONE), "no gaps");
        for (i, h) in self.history[..used].iter().enumerate() {
            assert!(is_generation(*h) && !h.was_primary(), "only generations, without bit 0");
            assert!(!h.same(self.current), "never the current one");
            assert!(!self.history[..i].contains(h), "each once");
        }
        for b in &self.bitmap {
            assert!(b.uuid.is_none() || is_generation(b.uuid), "slots hold generations or none");
        }
    }
}
