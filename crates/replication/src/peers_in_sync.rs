//! Ranges that have become identical on several nodes: telling those nodes, so that they drop the
//! bits which they hold against each other (semantics §9.3, wire §7.4).
//!
//! Whoever receives a block in a resync can not know who else has this version and counts it as
//! out of sync towards everyone but its source. The source knows better once it has brought the
//! others to the same state. Without its word each of them would be resynced from the next one,
//! round and round.

use codec::disk::activity_log::EXTENT_SECTORS;
use codec::wire::{Packet, PeerBlockDesc};
use vocab::{DiskState, Instant, NodeId, NodeMask, ReplState, SectorRange, VolumeNr};

use crate::resource::{Resource, Work};
use crate::state::{PeerIx, VolIx};

/// So many claims are remembered; they are needed for a moment only.
const MAX_CLAIMS: usize = 256;

/// A peer has said that it is equal to this node in a range, and so are others.
#[derive(Debug)]
pub(crate) struct Claim {
    from: NodeId,
    pub range: SectorRange,
    others: NodeMask,
    at: Instant,
}

impl Resource {
    /// Bits towards a peer in that range are gone, because it has got those blocks from this node.
    /// Each piece in which none is left is told to all who have it.
    pub(crate) fn became_in_sync(&mut self, peer: PeerIx, vol: VolIx, range: SectorRange) {
        let size = self.vols[vol].size.0;
        let first = range.start.0 / EXTENT_SECTORS;
        let last = (range.end() - 1) / EXTENT_SECTORS;
        for extent in first..=last {
            let start = extent * EXTENT_SECTORS;
            let piece = SectorRange::new(start, EXTENT_SECTORS.min(size.saturating_sub(start)));
            // Where the application writes, others may be ahead or behind by these writes.
            let busy = self.vols[vol]
                .backing
                .as_ref()
                .is_none_or(|backing| u32::try_from(extent).is_ok_and(|e| backing.al.is_in_use(e)));
            if piece.len.0 == 0 || busy || self.differs(peer, vol, piece) {
                continue;
            }
            let mask: NodeMask = self
                .st
                .connected()
                .filter(|p| *p == peer || self.is_equal(*p, vol, piece))
                .map(|p| self.peers[p].node)
                .collect();
            if mask.len() < 2 {
                continue;
            }
            let packet = PeerBlockDesc { range: piece, mask };
            for node in mask.iter() {
                let to = self.peer_ix(node).expect("connected peers are configured");
                self.send(to, Packet::PeersInSync(self.vols[vol].nr, packet));
            }
        }
    }

    /// This node counts a block there as out of sync towards the peer.
    fn differs(&self, peer: PeerIx, vol: VolIx, range: SectorRange) -> bool {
        self.vols[vol].backing.as_ref().is_none_or(|backing| {
            let slot = backing.slot_of(self.peers[peer].node);
            slot.is_none_or(|slot| backing.bitmap.test_any(slot, range))
        })
    }

    /// The peer's disk has what this node has there: what it misses of the same generation, or
    /// did not get yet in a resync between the two, would be in the bits.
    fn is_equal(&self, peer: PeerIx, vol: VolIx, range: SectorRange) -> bool {
        use ReplState::{Established, PausedSyncS, PausedSyncT, SyncSource, SyncTarget};
        let dev = &self.st.peers[peer].devs[vol];
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        let same = uuids.is_some_and(|u| u.current.same(self.presented(vol)));
        let comparable = match dev.repl {
            Established => dev.disk == DiskState::UpToDate && same,
            SyncSource | SyncTarget | PausedSyncS | PausedSyncT => true,
            _ => false,
        };
        comparable && !self.differs(peer, vol, range)
    }

    /// P_PEERS_IN_SYNC: the sender and these nodes have the same content there.
    ///
    /// A source that brought one node to its state knows about that one. That a third one is equal
    /// it only believes: the third may have restarted, or have been written to, without the source
    /// knowing yet. So each node that finds itself equal to the source says so to the others, and
    /// bits between two nodes are cleared only when both the source and the other have spoken.
    ///
    /// What is said must be newer than what this node knows itself: a write that one of those nodes
    /// missed may have been recorded here while the word of a sender that had not seen the write
    /// yet was on its way. What was said before a block changed here is dropped where that is noted
    /// (`Backing::set_range`).
    pub(crate) fn peers_in_sync(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        desc: PeerBlockDesc,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("peers-in-sync names an unknown volume")?;
        if !self.in_volume(vol, desc.range) || desc.range.len.0 == 0 {
            return Err("peers-in-sync lies outside the volume");
        }
        let from = self.peers[peer].node;
        if self.vols[vol].backing.is_none() || !desc.mask.contains(self.me) {
            return Ok(());
        }
        if self.peers[peer].heard_at <= self.vols[vol].missed_at {
            self.hear(peer);
            return Ok(());
        }
        let others = desc.mask.without(self.me);
        if !others.is_empty() {
            if self.differs(peer, vol, desc.range) {
                return Ok(());
            }
            for node in others.iter() {
                if let Some(to) = self.peer_ix(node).filter(|p| self.st.is_connected(*p)) {
                    let packet = PeerBlockDesc { range: desc.range, mask: node.mask() };
                    self.send(to, Packet::PeersInSync(nr, packet));
                }
            }
        }
        let backing = self.vols[vol].backing.as_mut().expect("looked at above");
        let claims = &mut backing.claims;
        if claims.len() == MAX_CLAIMS {
            claims.pop_front();
        }
        claims.push_back(Claim { from, range: desc.range, others, at: self.now });
        self.believe(vol, desc.range);
        Ok(())
    }

    /// Clears the bits towards nodes of which everyone concerned says that they are equal.
    fn believe(&mut self, vol: VolIx, range: SectorRange) {
        let missed_at = self.vols[vol].missed_at;
        let valid = |c: &&Claim| c.range == range && c.at > missed_at;
        let Some(backing) = &self.vols[vol].backing else { return };
        let claims = &backing.claims;
        let said: NodeMask = claims.iter().filter(valid).map(|c| c.from).collect();
        let named = claims.iter().filter(valid).fold(NodeMask::EMPTY, |m, c| m.or(c.others));
        let mut cleared = false;
        for node in said.and(named).iter() {
            let Some(backing) = self.vols[vol].backing.as_mut() else { return };
            let Some(slot) = backing.slot_of(node) else { continue };
            if backing.bitmap.test_any(slot, range) {
                backing.clear_range(slot, range);
                cleared = true;
                if let Some(other) = self.peer_ix(node) {
                    self.resync_progress(other, vol);
                }
            }
        }
        if cleared {
            self.write_bitmap_lazily(vol);
            self.want_catch_up();
        }
    }

    /// What a lost peer has said counts no longer.
    pub(crate) fn forget_claims(&mut self, node: NodeId) {
        for backing in self.vols.iter_mut().filter_map(|v| v.backing.as_mut()) {
            backing.claims.retain(|c| c.from != node);
        }
    }

    /// Asks the peer for a sign: what it says after its answer, it says knowing all that this
    /// node knows now.
    fn hear(&mut self, peer: PeerIx) {
        let (node, now) = (self.peers[peer].node, self.now);
        if std::mem::replace(&mut self.peers[peer].hearing, true) {
            return;
        }
        self.ping_some(node.mask(), Work::Heard(peer, now));
    }

    /// The peer has answered a ping sent at that time, or is lost.
    pub(crate) fn heard(&mut self, peer: PeerIx, asked: Instant) {
        self.peers[peer].hearing = false;
        if !self.st.is_connected(peer) {
            return;
        }
        self.peers[peer].heard_at = self.peers[peer].heard_at.max(asked);
        if !self.hear_after_doubt(peer) {
            // It may vouch for this node's data (A5).
            self.change_hard(|_| {});
        }
    }

    /// Asks the peer for a sign if what it has said may be older than what this node has heard of
    /// a generation since. True if so.
    pub(crate) fn hear_after_doubt(&mut self, peer: PeerIx) -> bool {
        let heard_at = self.peers[peer].heard_at;
        let doubted = self.vols.iter().any(|v| v.unknown_at > heard_at);
        if doubted {
            self.hear(peer);
        }
        doubted
    }

    /// A client has seen a generation that this disk does not know. A disk that seems to be equal
    /// to this one vouches for it no longer by what it has said so far: it may have gone on, over
    /// a link that is dead without this node knowing, and the client may be gone the next moment.
    pub(crate) fn note_unknown_generation(&mut self, vol: VolIx) {
        self.vols[vol].unknown_at = self.now;
        for peer in 0..self.peers.len() {
            if self.st.is_connected(peer) {
                self.hear(peer);
            }
        }
    }
}
