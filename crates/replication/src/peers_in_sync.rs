//! Ranges that have become identical on several nodes: telling those nodes, so that they drop the
//! bits which they hold against each other (semantics §9.3, wire §7.4).
//!
//! Whoever receives a block in a resync can not know who else has this version and counts it as
//! out of sync towards everyone but its source. From then on it differs from any third node as
//! its source does: where source and third count nothing as different, nothing is different here.
//! Without their word each of them would be resynced from the next one, round and round.

use std::collections::VecDeque;

use codec::disk::activity_log::EXTENT_SECTORS;
use codec::wire::{Packet, PeerBlockDesc, feature};
use serde::{Deserialize, Serialize};
use vocab::{DiskState, Instant, NodeId, NodeMask, ReplState, SectorRange, VolumeNr};

use crate::resource::{Resource, Work};
use crate::state::{PeerIx, VolIx};

/// So many claims are remembered; they are needed for a moment only.
const MAX_CLAIMS: usize = 1024;
/// So many ranges are remembered to be claimed later.
const MAX_UNCLAIMED: usize = 8192;

/// A peer has said that it is equal to others in a range.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Claim {
    from: NodeId,
    pub range: SectorRange,
    others: NodeMask,
    /// Said because one of the others has said so before.
    answer: bool,
    at: Instant,
}

impl Resource {
    /// A peer has got those blocks from this node, which has no bits for them any more. All who
    /// have them are told: of the whole extent if these were the last that this node counted as
    /// different in it, else of these blocks. A target that asks for what this node counts as equal
    /// (`cleared` is false) would have it say the same of the extent with every answer.
    pub(crate) fn became_in_sync(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        range: SectorRange,
        cleared: bool,
    ) {
        // Who has not heard yet that a write is everywhere says nothing of its blocks.
        self.flush_peer_acks();
        let size = self.vols[vol].size.0;
        let first = range.start.0 / EXTENT_SECTORS;
        let last = (range.end() - 1) / EXTENT_SECTORS;
        let node = self.peers[peer].node;
        let near: Vec<PeerIx> =
            self.st.connected().filter(|p| *p == peer || self.is_comparable(*p, vol)).collect();
        for extent in first..=last {
            let start = extent * EXTENT_SECTORS;
            let whole = SectorRange::new(start, EXTENT_SECTORS.min(size.saturating_sub(start)));
            if whole.len.0 == 0 {
                continue;
            }
            let mut told = NodeMask::EMPTY;
            if cleared && self.quiet(vol, whole) == [whole] && !self.differs(peer, vol, whole) {
                told = self.equal_among(&near, vol, whole);
                self.claim_equal(vol, whole, told);
            }
            let from = range.start.0.max(start);
            let part = SectorRange::new(from, range.end().min(whole.end()).saturating_sub(from));
            for piece in self.pieces(&near, vol, part) {
                let equal = self.equal_among(&near, vol, piece);
                let news = !equal.minus(told).without(node).is_empty();
                if news && equal.contains(node) {
                    let mut from = piece.start.0;
                    for quiet in self.quiet(vol, piece) {
                        self.claim_later(vol, node, from, quiet.start.0);
                        self.claim_equal(vol, quiet, equal);
                        from = quiet.end();
                    }
                    self.claim_later(vol, node, from, piece.end());
                }
            }
        }
    }

    /// The node got blocks from here that the application writes. What it got it counts as different
    /// from all others, and the peer-ack of a write that it had received before does not change that.
    fn claim_later(&mut self, vol: VolIx, node: NodeId, start: u64, end: u64) {
        let Some(backing) = self.vols[vol].backing.as_mut().filter(|_| start < end) else { return };
        let range = SectorRange::new(start, end - start);
        if backing.unclaimed.len() == MAX_UNCLAIMED {
            backing.unclaimed.pop_front();
        }
        backing.unclaimed.push_back((node, range));
    }

    /// Writes have had their peer-ack: what could not be said because of them is said now.
    pub(crate) fn claim_what_is_quiet(&mut self) {
        for vol in 0..self.vols.len() {
            let Some(backing) = self.vols[vol].backing.as_mut() else { continue };
            if backing.unclaimed.is_empty() {
                continue;
            }
            let all = std::mem::take(&mut backing.unclaimed);
            let busy = self.busy_ranges(vol);
            let is_busy = |range: SectorRange| {
                let next = busy.partition_point(|b| b.end() <= range.start.0);
                busy.get(next).is_some_and(|b| b.overlaps(range))
            };
            let (still, quiet): (VecDeque<_>, VecDeque<_>) =
                all.into_iter().partition(|(_, range)| is_busy(*range));
            let near: Vec<PeerIx> =
                self.st.connected().filter(|p| self.is_comparable(*p, vol)).collect();
            for (node, range) in quiet {
                for piece in self.pieces(&near, vol, range) {
                    let equal = self.equal_among(&near, vol, piece);
                    if equal.contains(node) {
                        self.claim_equal(vol, piece, equal);
                    }
                }
            }
            if let Some(backing) = self.vols[vol].backing.as_mut() {
                backing.unclaimed = still;
            }
        }
    }

    /// The blocks that the application writes, in order and apart from each other.
    fn busy_ranges(&self, vol: VolIx) -> Vec<SectorRange> {
        let Some(backing) = &self.vols[vol].backing else { return Vec::new() };
        let whole = |range| backing.bitmap.sectors_of(backing.bitmap.bits_touched(range));
        let mut busy: Vec<SectorRange> = self.written(vol).map(whole).collect();
        busy.sort_unstable_by_key(|range| range.start.0);
        busy.dedup_by(|next, last| {
            let joined = next.start.0 <= last.end();
            if joined {
                let end = last.end().max(next.end());
                *last = SectorRange::new(last.start.0, end - last.start.0);
            }
            joined
        });
        busy
    }

    /// What the application writes and not every node is known to have.
    pub(crate) fn written(&self, vol: VolIx) -> impl Iterator<Item = SectorRange> + '_ {
        let sent = self.log.iter().filter(move |w| w.vol == vol).map(|w| w.range);
        let unacked = self.peers.iter().flat_map(|p| p.recv.unacked.iter());
        sent.chain(unacked.filter(move |u| u.vol == vol).map(|u| u.range))
    }

    /// Tells these nodes that they are equal to this one there.
    fn claim_equal(&mut self, vol: VolIx, range: SectorRange, mask: NodeMask) {
        if mask.len() < 2 {
            return;
        }
        let packet = PeerBlockDesc { range, mask };
        for node in mask.iter() {
            let to = self.peer_ix(node).expect("connected peers are configured");
            self.send(to, Packet::PeersInSync(self.vols[vol].nr, packet));
        }
    }

    /// The pieces of a range in which all blocks differ from the same of these peers.
    fn pieces(&self, peers: &[PeerIx], vol: VolIx, range: SectorRange) -> Vec<SectorRange> {
        let Some(backing) = &self.vols[vol].backing else { return Vec::new() };
        let slots: Vec<usize> =
            peers.iter().filter_map(|p| backing.slot_of(self.peers[*p].node)).collect();
        backing.bitmap.pieces(&slots, range)
    }

    /// Those of the peers from which this node differs nowhere in the range.
    fn equal_among(&self, peers: &[PeerIx], vol: VolIx, range: SectorRange) -> NodeMask {
        let equal = peers.iter().filter(|p| !self.differs(**p, vol, range));
        equal.map(|p| self.peers[*p].node).collect()
    }

    /// The parts of a range that the application does not write. Where it does, others may be ahead
    /// or behind by these writes, as long as not every node is known to have them.
    fn quiet(&self, vol: VolIx, range: SectorRange) -> Vec<SectorRange> {
        let Some(backing) = &self.vols[vol].backing else { return Vec::new() };
        let mut left = vec![range];
        let extents = range.start.0 / EXTENT_SECTORS..=(range.end() - 1) / EXTENT_SECTORS;
        let in_use = |e: u64| u32::try_from(e).is_ok_and(|e| backing.al.is_in_use(e));
        if !extents.into_iter().any(in_use) {
            return left;
        }
        for written in self.written(vol).filter(|w| w.overlaps(range)) {
            let written = backing.bitmap.sectors_of(backing.bitmap.bits_touched(written));
            let without = |part: SectorRange| {
                let before = part.end().min(written.start.0).saturating_sub(part.start.0);
                let after = part.start.0.max(written.end());
                let after = SectorRange::new(after, part.end().saturating_sub(after));
                [SectorRange::new(part.start.0, before), after]
            };
            left = left.into_iter().flat_map(without).filter(|part| part.len.0 > 0).collect();
        }
        left
    }

    /// The application writes all blocks that this node counts as out of sync towards the peer:
    /// the Primary of both says before long who has these writes.
    pub(crate) fn differs_in_writes_only(&self, peer: PeerIx, vol: VolIx) -> bool {
        let Some(backing) = &self.vols[vol].backing else { return false };
        let Some(slot) = backing.slot_of(self.peers[peer].node) else { return false };
        let mut from = 0;
        while let Some((start, len)) = backing.bitmap.next_run(slot, from, u64::MAX) {
            let range = backing.bitmap.sectors_of(start..start + len);
            if !self.quiet(vol, range).is_empty() {
                return false;
            }
            from = start + len;
        }
        true
    }

    /// This node counts a block there as out of sync towards the peer.
    fn differs(&self, peer: PeerIx, vol: VolIx, range: SectorRange) -> bool {
        self.vols[vol].backing.as_ref().is_none_or(|backing| {
            let slot = backing.slot_of(self.peers[peer].node);
            slot.is_none_or(|slot| backing.bitmap.test_any(slot, range))
        })
    }

    /// What the peer's disk misses of the same generation, or did not get yet in a resync between
    /// the two, would be in the bits.
    fn is_comparable(&self, peer: PeerIx, vol: VolIx) -> bool {
        use ReplState::{Established, PausedSyncS, PausedSyncT, SyncSource, SyncTarget};
        let dev = &self.st.peers[peer].devs[vol];
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        let same = uuids.is_some_and(|u| u.current.same(self.presented(vol)));
        match dev.repl {
            Established => dev.disk == DiskState::UpToDate && same,
            SyncSource | SyncTarget | PausedSyncS | PausedSyncT => true,
            _ => false,
        }
    }

    /// P_PEERS_IN_SYNC: the sender and these nodes have the same content there.
    ///
    /// A source that brought one node to its state knows about that one. That a third one is equal
    /// it only believes: the third may have restarted, or have been written to, without the source
    /// knowing yet. So each node that finds itself equal to the source says so to the others, and
    /// bits between two nodes are cleared only when both the source and the other have spoken. An
    /// answer names its sender, too. Where a node counts the source as different although the
    /// source does not, it says nothing: it counts the others, too.
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
        let answer = desc.mask.contains(from);
        let others = desc.mask.without(self.me).without(from);
        if others.is_empty() {
            return Ok(());
        }
        if answer {
            self.hear_claim(peer, vol, desc.range, others, true);
            return Ok(());
        }
        for piece in self.pieces(&[peer], vol, desc.range) {
            if self.differs(peer, vol, piece) {
                if !self.brings_up_to_date(peer, vol) {
                    self.count_as_source(vol, piece, others);
                }
                continue;
            }
            // A write under way here is none of the bits yet.
            for quiet in self.quiet(vol, piece) {
                for node in others.iter() {
                    self.answer_claim(vol, node, from, quiet);
                }
            }
            self.hear_claim(peer, vol, piece, others, false);
        }
        Ok(())
    }

    /// A kernel node is resynced from here. What this node counts as different from it is what it has not asked for, or not
    /// confirmed yet: one with two sources gets some from the other one, and says then to whom it is equal, to this
    /// node, too. That says nothing of the others; the end of the resync says that it has all.
    fn brings_up_to_date(&self, peer: PeerIx, vol: VolIx) -> bool {
        let ours = self.peers[peer].agreed_features & feature::BITS_OF_EQUALS != 0;
        let repl = self.st.peers[peer].devs[vol].repl;
        !ours && matches!(repl, ReplState::SyncSource | ReplState::PausedSyncS)
    }

    /// Tells another node that this one is equal to the source of both.
    fn answer_claim(&mut self, vol: VolIx, node: NodeId, source: NodeId, range: SectorRange) {
        let ours = |p: &PeerIx| self.peers[*p].agreed_features & feature::BITS_OF_EQUALS != 0;
        if let Some(to) = self.peer_ix(node).filter(|p| self.st.is_connected(*p)).filter(ours) {
            let mask = node.mask().with(source).with(self.me);
            self.send(to, Packet::PeersInSync(self.vols[vol].nr, PeerBlockDesc { range, mask }));
        }
    }

    /// Those nodes have what the source has there, and this one counts the source as different
    /// although the source does not: it counts them, too, as they do it.
    fn count_as_source(&mut self, vol: VolIx, range: SectorRange, others: NodeMask) {
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        for node in others.iter() {
            if let Some(slot) = backing.slot_of(node) {
                backing.set_range(slot, range);
            }
        }
        self.write_bitmap(vol);
    }

    /// Takes down what a peer has said about others, if it knew what this node knows.
    fn hear_claim(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        range: SectorRange,
        others: NodeMask,
        answer: bool,
    ) {
        let from = self.peers[peer].node;
        let heard_at = self.peers[peer].heard_at;
        let missed_at = &self.vols[vol].missed_at;
        let concerned = if answer { from.mask() } else { others };
        let doubted: NodeMask =
            concerned.iter().filter(|n| missed_at[n.index()] >= heard_at).collect();
        if !doubted.is_empty() {
            self.hear(peer);
        }
        let others = if answer { others } else { others.minus(doubted) };
        if others.is_empty() || doubted.contains(from) {
            return;
        }
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        let claims = &mut backing.claims;
        if claims.len() == MAX_CLAIMS {
            claims.pop_front();
        }
        claims.push_back(Claim { from, range, others, answer, at: self.now });
        self.believe(vol);
    }

    /// What was said last, together with what was said before it: clears the bits towards a node
    /// where a source has named it and it has named the source.
    fn believe(&mut self, vol: VolIx) {
        let Some(backing) = &self.vols[vol].backing else { return };
        let Some(last) = backing.claims.back() else { return };
        let missed_at = &self.vols[vol].missed_at;
        let names = |a: &Claim, b: &Claim| !a.answer && a.others.contains(b.from);
        let mut found = Vec::new();
        for claim in backing.claims.iter().filter(|c| c.range.overlaps(last.range)) {
            for (source, other) in [(claim, last), (last, claim)] {
                let known = missed_at[other.from.index()] < source.at.min(other.at);
                let mutual = names(source, other) && other.others.contains(source.from);
                let start = claim.range.start.0.max(last.range.start.0);
                let end = claim.range.end().min(last.range.end());
                let range = SectorRange::new(start, end - start);
                if mutual && known {
                    found.extend(self.quiet(vol, range).into_iter().map(|r| (other.from, r)));
                }
            }
        }
        let mut cleared = false;
        for (node, range) in found {
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
            for claim in &mut backing.claims {
                claim.others = claim.others.without(node);
            }
            backing.claims.retain(|c| c.from != node && !c.others.is_empty());
            backing.unclaimed.retain(|(to, _)| *to != node);
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
