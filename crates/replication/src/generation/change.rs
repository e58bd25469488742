//! The events that change a node's generations (semantics §4.1, §4.2; wire §9.2; metadata §5.1).

use super::{BitmapUuid, Generations, HISTORY, Neighbour, Situation, UNKNOWN, is_generation};
use codec::wire::packet::UuidFlags;
use vocab::{DiskState, GenUuid, MAX_NODES, NodeId, NodeMask};

/// A generation this node started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewGeneration {
    /// The generation that ended.
    pub previous: GenUuid,
    /// The one that began: to be durable before any write belongs to it.
    pub current: GenUuid,
    /// Nodes now recorded as being at `previous`.
    pub behind: NodeMask,
}

/// What became of a generation that a Primary started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Adoption {
    /// It is no generation at all; a peer should not send that.
    Ignored,
    /// This node holds it already, or has left it behind.
    Known,
    /// This node is a resync target or Behind: the value is now the source's current generation,
    /// this disk gets there when the resync ends. Nothing was changed here.
    OfSource,
    /// Adopted: to be durable before later writes are processed, then sent to the peers.
    Adopted {
        /// The generation that ended.
        previous: GenUuid,
        /// Nodes now recorded as being at `previous`.
        behind: NodeMask,
        /// Nodes that were behind, hear the Primary, and are now recorded as being at the new
        /// generation with the bits they had.
        moved: NodeMask,
    },
}

/// Start of a resync on the target side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResyncStart {
    /// The generation this disk leaves, for [`Generations::finish_target`]. Just created if the
    /// source has no bitmap generation to resume from.
    pub start: GenUuid,
    /// Nodes now recorded as being at it.
    pub behind: NodeMask,
}

/// End of a resync on the target side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResyncFinish {
    /// Nodes the source still has bits for: their slots keep their bits and start at the
    /// generation this disk had when the resync began. Those peers are Outdated now.
    pub behind: NodeMask,
    /// Nodes whose slot has no generation any more. Their bits are kept, but for the source's: such
    /// a node need not be where the source takes it for, and one that is may differ within that
    /// generation, by what the source alone has counted or a Primary had not yet sent to all.
    pub settled: NodeMask,
}

/// A peer's generations as it last sent them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerGenerations<'a> {
    /// The peer.
    pub node: NodeId,
    /// Its (resolved) current generation.
    pub current: GenUuid,
    /// Its bitmap generations; [`UNKNOWN`] for slots it did not send.
    pub bitmap: &'a [GenUuid; MAX_NODES],
    /// Its history.
    pub history: &'a [GenUuid],
    /// The flags it sent.
    pub flags: UuidFlags,
}

/// What a peer's generations tell about third nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Learned {
    /// Nodes that reached this node's own generation elsewhere: set their bitmap generation to
    /// none. The bits stay: they may lack what the peer has got since, from here for instance.
    pub in_sync: NodeMask,
    /// (from, to): node *to* is now where node *from* is. Add the bits of slot *from* to those of
    /// slot *to*, and give it the bitmap generation of slot *from*.
    pub copies: Vec<(NodeId, NodeId)>,
}

/// Nodes that do not see a new generation arise: all but this one, if its disk is UpToDate, and
/// the connected peers whose disk is Negotiating, Consistent or UpToDate (wire §9.1). Stricter than
/// the reference, which counts Inconsistent ones: a resync target gets to the generation only at
/// its end, and until then others need the base they have for it.
pub fn weak_nodes(situation: &Situation) -> NodeMask {
    let hears = |node: &NodeId| {
        let neighbour = situation.node(*node);
        neighbour.connected
            && matches!(
                neighbour.disk,
                DiskState::Negotiating | DiskState::Consistent | DiskState::UpToDate
            )
    };
    let mut strong: NodeMask = situation.others().filter(hears).collect();
    if situation.up_to_date {
        strong.insert(situation.me);
    }
    strong.complement()
}

/// A random generation. `fresh` is the caller's source of randomness.
fn draw(fresh: &mut impl FnMut() -> u64, primary: bool) -> GenUuid {
    (0..64)
        .map(|_| GenUuid(fresh()).with_primary(primary))
        .find(|uuid| is_generation(*uuid))
        .expect("64 random values are not all reserved ones")
}

impl Neighbour {
    /// The node misses what is written now: it is away, or its disk takes no part. A connected
    /// client without disk by intent misses nothing.
    fn misses_writes(&self, weak: bool) -> bool {
        let client =
            self.connected && self.disk == DiskState::Diskless && self.intentional_diskless;
        let absent = self.disk <= DiskState::DUnknown && self.disk != DiskState::Negotiating;
        !client && (absent || weak)
    }
}

impl Generations {
    /// ROTATE: the current generation becomes the bitmap generation of every node that is going
    /// to miss writes, unless its slot starts further back already. Node ids nobody uses get it
    /// as well, on behalf of the unallocated slot. A disk that was just created has no generation
    /// to name; it invents one. Returns the nodes whose slot now starts at that generation.
    fn rotate(
        &mut self,
        situation: &Situation,
        weak: NodeMask,
        fresh: &mut impl FnMut() -> u64,
    ) -> NodeMask {
        let previous = match self.current.is_just_created() {
            true => draw(fresh, situation.primary),
            false => self.current,
        };
        let takes = |node: &NodeId| {
            let base = self.bitmap[node.index()].uuid;
            let neighbour = situation.node(*node);
            (base.is_none() || base.same(previous))
                && if neighbour.configured {
                    neighbour.misses_writes(weak.contains(*node))
                } else {
                    neighbour.has_slot || situation.unallocated_slot
                }
        };
        let behind: NodeMask = situation.others().filter(takes).collect();
        for node in behind.iter() {
            let value = BitmapUuid { uuid: previous, dagtag: situation.dagtag };
            if self.bitmap[node.index()].uuid.is_none() {
                self.worn.remove(node);
            }
            self.bitmap[node.index()] = value;
        }
        behind
    }

    /// BUMP: starts a new generation if some node is going to miss the writes that follow.
    ///
    /// `weak` names connected peers to be treated as absent: after forced promotion those that
    /// were never in sync. Returns `None`, with nothing changed, if no slot takes the old
    /// generation. Two exceptions start one even then: a day-0 volume, whose first write sets it
    /// apart from nodes provisioned with the same generation; and an absent node that may have
    /// been brought to the current generation unheard, see [`Generations::may_be_unheard`].
    ///
    /// The caller's disk is UpToDate. If the result can not be made durable, go back to a clone.
    pub fn bump(
        &mut self,
        situation: &Situation,
        weak: NodeMask,
        mut fresh: impl FnMut() -> u64,
    ) -> Option<NewGeneration> {
        let (day0, previous) = (self.is_day0(), self.current);
        let unheard = situation.others().any(|node| {
            let away = !situation.node(node).connected || weak.contains(node);
            let missing = situation.node(node).misses_writes(weak.contains(node));
            away && missing && self.may_be_unheard(node, situation)
        });
        let behind = self.rotate(situation, weak, &mut fresh);
        if behind.is_empty() && !day0 && !unheard {
            return None;
        }
        let current = draw(&mut fresh, situation.primary);
        self.set_current(current);
        if day0 || behind.is_empty() {
            self.push(previous);
        }
        Some(NewGeneration { previous, current, behind })
    }

    /// True if an absent node, recorded as further back, may hold the current generation by now:
    /// a third disk could have been the source of its resync, or this one, and it was lost before
    /// it could say that it was done. Writing on within that generation would make disks with
    /// different contents equal in name, and every node but those that recorded the writes would
    /// take them for equal in fact (invariant 17). Stricter than the reference, which writes on.
    fn may_be_unheard(&self, node: NodeId, situation: &Situation) -> bool {
        let neighbour = situation.node(node);
        let base = self.bitmap[node.index()].uuid;
        neighbour.configured && neighbour.has_slot && !base.is_none()
    }

    /// ADOPT: a connected Primary started generation `uuid`, unheard by the nodes in `weak`.
    /// `resync_target` says that this node is target, paused target or Behind towards any peer.
    pub fn adopt(
        &mut self,
        uuid: GenUuid,
        situation: &Situation,
        weak: NodeMask,
        resync_target: bool,
        mut fresh: impl FnMut() -> u64,
    ) -> Adoption {
        if !is_generation(uuid) {
            return Adoption::Ignored;
        }
        // What was sent before the Primary heard of the newest one may arrive behind it.
        if uuid.same(self.current) || self.has_passed(uuid) {
            return Adoption::Known;
        }
        if resync_target {
            return Adoption::OfSource;
        }
        let mut behind = NodeMask::EMPTY;
        if situation.up_to_date {
            behind = self.rotate(situation, weak, &mut fresh);
        }
        let moves = |node: &NodeId| {
            !weak.contains(*node)
                && situation.node(*node).has_slot
                && !self.bitmap[node.index()].uuid.is_none()
        };
        let moved: NodeMask = situation.others().filter(moves).collect();
        let uuid = uuid.with_primary(situation.primary);
        for node in moved.iter() {
            self.set_bitmap(node, uuid);
        }
        let previous = self.current;
        self.set_current(uuid);
        self.push(previous);
        Adoption::Adopted { previous, behind, moved }
    }

    /// Demotion: the generation goes on, no longer written by a Primary. Returns true if bit 0
    /// was set.
    pub fn demote(&mut self) -> bool {
        let was = self.current.was_primary();
        self.current = self.current.with_primary(false);
        was
    }

    /// A resync with this node as target begins. `source_bitmap` is the source's bitmap
    /// generation for this node.
    ///
    /// A disk that was just created takes that generation as its own, so that an interrupted
    /// initial resync can resume by bitmap, and only then do absent nodes get it (capture 15).
    pub fn start_target(
        &mut self,
        situation: &Situation,
        source_bitmap: GenUuid,
        mut fresh: impl FnMut() -> u64,
    ) -> ResyncStart {
        if self.current.is_just_created() && is_generation(source_bitmap) {
            self.set_current(source_bitmap.with_primary(situation.primary));
        }
        let behind = self.rotate(situation, NodeMask::EMPTY, &mut fresh);
        ResyncStart { start: self.current, behind }
    }

    /// P_SYNC_UUID of protocol 8: until the resync ends this disk is at the generation that the
    /// source's bits for it count from, so that it can go on by them after an interruption.
    pub fn take_sync_uuid(&mut self, uuid: GenUuid) {
        debug_assert!(is_generation(uuid));
        self.set_current(uuid);
    }

    /// A resync from a stable `source` ended without failures; `start` is from
    /// [`Generations::start_target`]. `currents` holds the last known current generation of every
    /// node, none if unknown; `ahead` the nodes whose disks are known to have left `start` behind.
    ///
    /// What the source knew of the past becomes history here. Nodes the source still has bits
    /// for, and which did not reach its generation meanwhile, miss at least what they missed when
    /// the resync began; so does a node the source says nothing about. The others owe nothing.
    /// A node that was ahead of this disk then goes by the generation it is at, which the source
    /// names, too: by the older one it would look like another heir of that.
    pub fn finish_target(
        &mut self,
        situation: &Situation,
        start: GenUuid,
        source: &PeerGenerations<'_>,
        currents: &[GenUuid; MAX_NODES],
        ahead: NodeMask,
    ) -> ResyncFinish {
        for uuid in source.history.iter().take(HISTORY).rev() {
            self.push(*uuid);
        }
        for uuid in source.bitmap {
            self.push(*uuid);
        }
        let (mut behind, mut settled) = (NodeMask::EMPTY, NodeMask::EMPTY);
        for node in situation.others().filter(|node| situation.node(*node).has_slot) {
            let owed = node != source.node
                && !source.bitmap[node.index()].is_none()
                && !currents[node.index()].same(source.current);
            let known = self.bitmap[node.index()].uuid;
            let current = currents[node.index()];
            let named = is_generation(current) && source.bitmap[node.index()].same(current);
            let base = if named && ahead.contains(node) {
                current
            } else if known.is_none() && !self.current.same(start) {
                // Settled at the end of another resync, which brought this disk here.
                self.current
            } else if is_generation(known) && start.same(source.current) {
                // A resync within a generation changes nothing about what others have left behind.
                known
            } else if is_generation(start) {
                start
            } else {
                // A disk whose start has no name keeps the base it has, if it has one.
                known
            };
            if owed && is_generation(base) {
                self.set_bitmap(node, base);
                behind.insert(node);
            } else if !owed {
                self.set_bitmap(node, GenUuid::NONE);
                settled.insert(node);
            }
        }
        // The generation this disk leaves survives in the slots of those still at it, and nowhere
        // else (wire §9.2): in the history it could pass for an ancestor of the source's, which
        // it is not if it lost a split brain.
        if is_generation(source.current) {
            self.set_current(source.current.with_primary(situation.primary));
        }
        ResyncFinish { behind, settled }
    }

    /// The generation that this disk held before a resync from `source` goes into the history, if
    /// the source knows it as one of the past. A disk that lost a split brain did not leave an
    /// ancestor of the source's data. Beyond the reference, which forgets it: when somebody without
    /// a disk names it later, it would look like one that is still to come.
    pub fn remember_left(&mut self, left: GenUuid, source: &PeerGenerations<'_>) {
        let mut past = source.history.iter().chain(source.bitmap);
        if is_generation(left) && past.any(|uuid| uuid.same(left)) {
            self.push(left);
        }
    }

    /// A peer that was told to skip the initial resync takes the sender's generation. Only a disk
    /// that was just created does; returns false, and changes nothing, otherwise.
    pub fn skip_initial_sync(&mut self, uuid: GenUuid) -> bool {
        if !self.current.is_just_created() || !is_generation(uuid) {
            return false;
        }
        self.bitmap = Generations::JUST_CREATED.bitmap;
        self.set_current(uuid.with_primary(false));
        true
    }

    /// new-current-uuid: an operator starts a generation. All slots, those of absent nodes
    /// included, start anew; with `clear_bitmap` the nodes in `told` (connected, just created,
    /// told to skip the initial resync) and all other configured ones owe nothing.
    pub fn new_current(
        &mut self,
        situation: &Situation,
        clear_bitmap: bool,
        told: NodeMask,
        mut fresh: impl FnMut() -> u64,
    ) -> NewGeneration {
        let previous = self.current;
        for node in situation.others() {
            self.set_bitmap(node, GenUuid::NONE);
        }
        let mut behind = self.rotate(situation, NodeMask::ALL, &mut fresh);
        let current = draw(&mut fresh, situation.primary);
        self.set_current(current);
        self.push(previous);
        if clear_bitmap {
            // The value in the slots of nodes that follow at once never named any data.
            for node in told.iter() {
                self.bitmap[node.index()] = BitmapUuid::default();
            }
            for node in situation.others().filter(|n| situation.node(*n).configured) {
                self.set_bitmap(node, GenUuid::NONE);
                behind.remove(node);
            }
        }
        NewGeneration { previous, current, behind }
    }

    /// forget-peer: the node's slot is given back; if a slot recorded everything since day 0 the
    /// node id takes its generation again. The caller clears or fills the bits (metadata §4.2).
    pub fn forget(&mut self, node: NodeId, situation: &Situation) {
        let day0 = situation
            .others()
            .filter(|n| *n != node && situation.is_unallocated(*n) && situation.unallocated_slot)
            .map(|n| self.bitmap[n.index()])
            .find(|b| !b.uuid.is_none());
        self.set_bitmap(node, GenUuid::NONE);
        self.bitmap[node.index()] = day0.unwrap_or_default();
    }

    /// What a UUID packet, received outside of handshakes, tells about third nodes: resyncs that
    /// finished elsewhere. `resyncing` are the nodes with which a resync runs here; they are left
    /// alone. A peer that is itself a resync target speaks for its source, not for itself, and is
    /// not asked. Nothing is changed.
    pub fn learn(
        &self,
        situation: &Situation,
        peer: &PeerGenerations<'_>,
        resyncing: NodeMask,
    ) -> Learned {
        let mut learned = Learned::default();
        let target = peer.flags.has(UuidFlags::SYNC_TARGET);
        if !is_generation(peer.current) || target || resyncing.contains(peer.node) {
            return learned;
        }
        for node in situation.others().filter(|n| situation.node(*n).has_slot) {
            let mine = self.bitmap[node.index()];
            let theirs = peer.bitmap[node.index()];
            if mine.uuid.is_none()
                || !theirs.is_none()
                || node == peer.node
                || resyncing.contains(node)
            {
                continue;
            }
            if peer.current.same(self.current) {
                learned.in_sync.insert(node);
                continue;
            }
            let twin = situation.others().find(|m| {
                let base = self.bitmap[m.index()];
                *m != node
                    && situation.node(*m).has_slot
                    && !self.worn.contains(*m)
                    && base.uuid.same(peer.current)
                    && base.dagtag > mine.dagtag
            });
            learned.copies.extend(twin.map(|from| (from, node)));
        }
        learned
    }

    /// A peer's UUIDs say that the resync from this node to it has finished: it holds the same
    /// generation, owes nothing, and neither end is a resync target. Then set its bitmap
    /// generation to none, clear its bits, and tell the other peers.
    pub fn finished_by(&self, situation: &Situation, peer: &PeerGenerations<'_>) -> bool {
        is_generation(self.current)
            && peer.current.same(self.current)
            && peer.bitmap[situation.me.index()].is_none()
            && !peer.flags.has(UuidFlags::SYNC_TARGET)
    }

    /// The current generation as it is sent to `receiver` (wire §9.1, "resolved"): that of the
    /// source while this node is resync target of a third one. `source` is the source of a
    /// running resync and its current generation.
    pub fn presented_current(
        &self,
        receiver: NodeId,
        source: Option<(NodeId, GenUuid)>,
    ) -> GenUuid {
        match source {
            Some((node, current)) if node != receiver => current,
            _ => self.current,
        }
    }

    /// A bitmap generation as it is sent (wire §9.1): a slot without one towards the source of a
    /// running resync is unknown while the source has another current generation.
    pub fn presented_bitmap(&self, node: NodeId, source: Option<(NodeId, GenUuid)>) -> GenUuid {
        let uuid = self.bitmap[node.index()].uuid;
        match source {
            Some((target_of, current))
                if target_of == node && uuid.is_none() && !current.same(self.current) =>
            {
                UNKNOWN
            }
            _ => uuid,
        }
    }
}
