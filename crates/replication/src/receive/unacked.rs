//! What is kept of a peer's writes until the Primary says who has them, and what becomes of it: bits,
//! or the word to those who lack it.

use codec::wire::{self, Packet};
use vocab::{Dagtag, DiskState, NodeId, NodeMask, ReplState, SectorRange};

use super::Unacked;
use crate::resource::Resource;
use crate::state::{PeerIx, VolIx};

impl Resource {
    /// P_PEER_ACK: these nodes hold all writes up to `dagtag`.
    pub(crate) fn peer_acked(
        &mut self,
        peer: PeerIx,
        ack: wire::PeerAck,
    ) -> Result<(), &'static str> {
        let recv = &self.peers[peer].recv;
        let Some(index) = recv.unacked.iter().position(|u| u.dagtag == ack.dagtag) else {
            return Err("a peer-ack names no write of its sender");
        };
        if recv.unacked.iter().take(index + 1).any(|u| u.ok.is_none()) {
            return Err("a peer-ack names a write that is not acknowledged yet");
        }
        let now = self.now;
        for _ in 0..=index {
            let recv = &mut self.peers[peer].recv;
            let entry = recv.unacked.pop_front().expect("found above");
            recv.first_unacked += 1;
            self.settle_unacked(peer, &entry, ack.mask, true);
        }
        self.claim_what_is_quiet();
        if self.vols.iter().any(|v| v.missed_at.contains(&now)) {
            // A resync may have brought it over meanwhile, and nobody says so any more.
            self.want_catch_up();
        }
        Ok(())
    }

    /// The connection is lost and everything received is executed: what has no peer-ack may be
    /// missing anywhere, except on the Primary itself (semantics §4.12 step 2).
    pub(crate) fn unacked_to_bits(&mut self, peer: PeerIx) {
        let mask = self.me.mask().with(self.peers[peer].node);
        while let Some(entry) = self.peers[peer].recv.unacked.pop_front() {
            self.peers[peer].recv.first_unacked += 1;
            self.settle_unacked(peer, &entry, mask, false);
        }
    }

    /// Turns one received write into bits: set towards each node that is not in `mask`, but for the
    /// sender. With `clear` those in `mask`, the sender among them, are known to have the same in
    /// these blocks as this node.
    pub(super) fn settle_unacked(
        &mut self,
        peer: PeerIx,
        entry: &Unacked,
        mask: NodeMask,
        clear: bool,
    ) {
        let sender = self.peers[peer].node;
        let failed = entry.ok != Some(true);
        let (vol, range) = (entry.vol, entry.range);
        let nr = self.vols[vol].nr;
        let mut tell = Vec::new();
        if let Some(backing) = self.vols[vol].backing.as_mut().filter(|_| !entry.former) {
            for slot in 0..backing.bitmap.slots() {
                let node = backing.node_of_slot(slot);
                if node == Some(sender) && (failed || !mask.contains(sender)) {
                    continue;
                }
                if !failed && node.is_some_and(|n| mask.contains(n)) {
                    if clear && !node.is_some_and(|n| entry.outrun.contains(n)) {
                        backing.clear_range(slot, range);
                    }
                    continue;
                }
                if !failed && node.is_some_and(|n| entry.covered.contains(n)) {
                    continue;
                }
                backing.set_range(slot, range);
                tell.extend(node);
            }
        }
        for node in tell {
            self.vols[vol].missed_at[node.index()] = self.now;
            let Some(other) = self.peer_ix(node) else { continue };
            let repl = self.repl(other, vol);
            // Its bitmap may be on the way already.
            if repl.is_source() && repl != ReplState::StartingSyncS {
                self.send(other, Packet::OutOfSync(nr, range));
            }
            self.resync_more(other, vol);
        }
        if entry.al {
            self.al_end(vol, range);
        }
    }

    /// Writes of other peers without a peer-ack become bits towards `node`, which may lack them:
    /// the bitmap exchange that starts covers them, whatever their peer-ack says later.
    pub(crate) fn cover_unacked(&mut self, vol: VolIx, node: NodeId) {
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        let Some(slot) = backing.slot_of(node) else { return };
        for peer in self.peers.iter_mut().filter(|p| p.node != node) {
            for entry in peer.recv.unacked.iter_mut().filter(|u| u.vol == vol && !u.former) {
                backing.set_range(slot, entry.range);
                entry.covered = entry.covered.with(node);
            }
        }
    }

    /// Blocks are counted as different from these nodes, which may be for data that is newer than
    /// writes received there before: that the nodes have those is no reason to count them as equal.
    pub(crate) fn outrun_unacked(&mut self, vol: VolIx, range: SectorRange, nodes: NodeMask) {
        for entry in self.peers.iter_mut().flat_map(|p| p.recv.unacked.iter_mut()) {
            if entry.vol == vol && entry.range.overlaps(range) {
                entry.outrun = entry.outrun.or(nodes);
            }
        }
    }

    /// Two other nodes have connected to each other.
    pub(crate) fn others_joined(&mut self, a: NodeId, b: NodeId) {
        for (target, writer) in [(a, b), (b, a)] {
            if let Some(target) = self.peer_ix(target) {
                for dev in &mut self.peers[target].devs {
                    dev.joined.insert(writer);
                }
            }
        }
    }

    /// A target asks for data up to a position of the stream of the Primary `writer`; from there on
    /// the Primary itself tells it what it misses. What was written before and has no peer-ack yet
    /// may be missing there, if the two have just connected, or the resync has begun while it was on
    /// its way here: the target is told. False if that has to wait, since a write that is not executed
    /// yet may stand behind an answer to the target.
    pub(crate) fn joined_at(
        &mut self,
        target: PeerIx,
        vol: VolIx,
        writer: NodeId,
        position: Dagtag,
    ) -> bool {
        if !self.peers[target].devs[vol].joined.contains(writer) {
            return true;
        }
        if let Some(peer) = self.peer_ix(writer) {
            let before = |u: &Unacked| u.vol == vol && u.dagtag <= position;
            if self.peers[peer].recv.unacked.iter().any(|u| before(u) && u.ok.is_none()) {
                return false;
            }
            self.tell_unacked(target, peer, before);
        }
        self.peers[target].devs[vol].joined.remove(writer);
        true
    }

    /// The writer is Primary no more, or lost: this node's data counts as stable from now on, and a
    /// disk that is brought up to date from here may become current by it. What was written last it
    /// may lack. The peer-ack that would say so comes on a stream of its own, or never.
    pub(crate) fn tell_behind_unacked(&mut self, writer: PeerIx) {
        let connected = self.st.is_connected(writer);
        let vols = self.vols.len();
        for target in (0..self.peers.len()).filter(|p| *p != writer) {
            let behind: Vec<bool> = (0..vols)
                .map(|vol| {
                    let dev = &self.st.peers[target].devs[vol];
                    // Survivors of a lost Primary settle that by its stream (see `loss.rs`).
                    let lacks = connected && dev.disk < DiskState::UpToDate;
                    dev.repl.is_source() || lacks && self.st.has_disk(target, vol)
                })
                .collect();
            // One that is not executed yet may stand behind an answer to the target.
            self.tell_unacked(target, writer, |u| u.ok.is_some() && behind[u.vol]);
        }
    }

    fn tell_unacked(&mut self, target: PeerIx, writer: PeerIx, wanted: impl Fn(&Unacked) -> bool) {
        let node = self.peers[target].node;
        let mut ranges = Vec::new();
        for entry in self.peers[writer].recv.unacked.iter_mut() {
            if !wanted(entry) || entry.former || entry.covered.contains(node) {
                continue;
            }
            let Some(backing) = self.vols[entry.vol].backing.as_mut() else { continue };
            let Some(slot) = backing.slot_of(node) else { continue };
            backing.set_range(slot, entry.range);
            entry.covered.insert(node);
            ranges.push((self.vols[entry.vol].nr, entry.range));
        }
        for (nr, range) in ranges {
            self.send(target, Packet::OutOfSync(nr, range));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{AdminCommand, Input};
    use crate::testing::{attach_image, attached};
    use codec::disk::{Layout, MdParams, Placement, Superblock};
    use codec::wire::BlockId;
    use vocab::options::ResourceOptions;
    use vocab::{Bytes, Instant, VolumeNr};

    /// Blocks that count as different from n2 once the peer-ack for a write is in that this node
    /// got before it detached its disk, or has on it.
    fn bits_after_ack(attached_since: bool, counted_before: bool, holders: &[u8]) -> u64 {
        let node = |n| NodeId::new(n).expect("a node id");
        let range = SectorRange::new(0, 8);
        let params = MdParams::new(2);
        let (mut superblock, layout): (Superblock, Layout) =
            Superblock::create(Placement::Internal, Bytes(64 << 20), &params).expect("room");
        superblock.peer_mut(node(2)).bitmap_index = Some(1);
        let mut resource = attached(ResourceOptions::default(), |sb| *sb = superblock.clone());
        resource.peers[0].recv.unacked.push_back(Unacked {
            dagtag: Dagtag(8),
            vol: 0,
            range,
            block_id: BlockId(4),
            epoch: 0,
            ok: Some(true),
            confirmed: true,
            al: false,
            covered: NodeMask::EMPTY,
            outrun: NodeMask::EMPTY,
            former: false,
        });
        if attached_since {
            resource.drop_disk(0);
            while resource.poll().is_some() {}
            let image = Box::new(attach_image(&superblock, &layout));
            let command = AdminCommand::Attach { volume: VolumeNr(0), image };
            resource.handle(Instant(3), Input::Admin { id: 2, command });
        }
        let backing = resource.vols[0].backing.as_mut().expect("attached");
        if counted_before {
            backing.set_range(1, range);
        }
        let mask = holders.iter().map(|n| node(*n)).collect();
        resource.peer_acked(0, wire::PeerAck { mask, dagtag: Dagtag(8) }).expect("known");
        resource.vols[0].backing.as_ref().expect("attached").oos(node(2))
    }

    #[test]
    fn what_was_received_before_a_disk_was_detached_clears_no_bits_of_one_attached_since() {
        assert_eq!(bits_after_ack(false, true, &[0, 1, 2]), 0);
        assert_eq!(bits_after_ack(true, true, &[0, 1, 2]), 1);
    }

    #[test]
    fn what_was_received_before_a_disk_was_detached_sets_no_bits_of_one_attached_since() {
        assert_eq!(bits_after_ack(false, false, &[0, 1]), 1);
        assert_eq!(bits_after_ack(true, false, &[0, 1]), 0);
    }
}
