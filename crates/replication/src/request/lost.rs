//! Writes in flight when a peer or the own disk is lost, and when the peer is back (semantics §8.6).

use vocab::options::Protocol;
use vocab::{ConnState, DiskState, GenUuid, NodeId, ReplState, Role, SectorRange};

use super::{Local, Part, WaitingOn, Write, local_io};
use crate::handshake::Phase;
use crate::io::{Output, RequestOp};
use crate::resource::{Decision, Op, Resource, Work};
use crate::state::{PeerIx, State, VolIx};

impl Write {
    /// The node was not sent it, or has not got it, and is told nothing of it.
    fn is_missing_on(&self, node: NodeId) -> bool {
        matches!(self.parts[node.index()], Part::None | Part::Lost | Part::Neg)
    }
}

impl Resource {
    /// The peer may not have what a client was told of already, as protocol A does.
    fn note_lacking(&mut self, node: NodeId, only: Option<VolIx>) {
        // It may have been removed.
        let peer = self.peers.iter().find(|peer| peer.node == node);
        for write in self.log.iter().filter(|w| only.is_none_or(|vol| vol == w.vol)) {
            let reported = write.completed && write.op != RequestOp::Flush;
            if reported && write.parts[node.index()] == Part::Sent {
                let lost_at = peer.map_or(GenUuid::NONE, |peer| peer.devs[write.vol].lost_at);
                self.vols[write.vol].lacking.insert(node, lost_at);
            }
        }
    }

    /// The connection is lost and the generation settled: its parts count no longer (L1).
    /// Of one volume, or of all.
    pub(crate) fn forget_parts(&mut self, node: NodeId, only: Option<VolIx>) {
        self.note_lacking(node, only);
        for seq in self.log.seqs() {
            let write = self.log.get_mut(seq).expect("in range");
            if only.is_some_and(|vol| vol != write.vol) {
                continue;
            }
            let part = &mut write.parts[node.index()];
            match *part {
                Part::Pending | Part::Sent | Part::Acked | Part::InSync => *part = Part::Lost,
                Part::Stable => *part = Part::Kept,
                _ => {}
            }
        }
        self.advance_all();
    }

    /// The connection is lost while suspended (L2): acknowledged parts keep their ok, others
    /// stay pending, so that their writes are held. Protocol A is treated as if not suspended,
    /// except for what the own disk does not have.
    pub(crate) fn freeze_parts(&mut self, peer: PeerIx) {
        let node = self.peers[peer].node;
        let lax = self.peers[peer].net.protocol == Protocol::A;
        self.note_lacking(node, None);
        for seq in self.log.seqs() {
            let write = self.log.get_mut(seq).expect("in range");
            let held = !lax || write.op != RequestOp::Flush && write.local.is_missing();
            let part = &mut write.parts[node.index()];
            match *part {
                Part::Stable => *part = Part::Kept,
                Part::Sent => *part = Part::Lost,
                Part::Pending | Part::Acked | Part::InSync if !held => *part = Part::Lost,
                _ => {}
            }
        }
        if lax {
            self.advance_all();
        }
    }

    /// The write may end without a peer that had acknowledged it and is away. That may have been
    /// resynced since, from one that does not have the write or gets it only now: it counts as
    /// missing there, also where an operator's suspension has kept its word (L5).
    pub(super) fn forget_absent(&mut self, seq: u64) {
        let Some(write) = self.log.get_mut(seq) else { return };
        for (peer, st) in self.peers.iter().zip(&self.st.peers) {
            let part = &mut write.parts[peer.node.index()];
            if st.conn != ConnState::Connected && part.counts_as_written() {
                *part = Part::Lost;
            }
        }
    }

    /// True if writes to the volume are held for a peer that is gone.
    pub(crate) fn has_frozen_parts(&self, node: NodeId, vol: VolIx) -> bool {
        let owed = |p: Part| matches!(p, Part::Pending | Part::Acked | Part::InSync);
        let held = |w: &Write| w.vol == vol && w.op != RequestOp::Flush;
        self.log.iter().any(|w| held(w) && owed(w.parts[node.index()]))
    }

    /// The peer is back in the same generation: send what it did not acknowledge, in the
    /// original order (L3).
    ///
    /// That is also what it was not sent, or was lost on the way, and is not answered yet: with
    /// quorum lost no new generation tells the peer that it misses these, and they may end well
    /// now that it is back.
    pub(crate) fn resend(&mut self, peer: PeerIx) {
        let node = self.peers[peer].node;
        for seq in self.log.seqs() {
            let Some(write) = self.log.get_mut(seq) else { continue };
            let part = &mut write.parts[node.index()];
            if matches!(*part, Part::Acked | Part::InSync | Part::Kept) {
                // The peer has run on since, so what it had written it still has. Unless it was
                // resynced from another one, which need not have what no user has been told of.
                *part = if write.completed { Part::Kept } else { Part::Lost };
            }
            let (part, vol, epoch) = (*part, write.vol, write.epoch);
            let unanswered = matches!(part, Part::None | Part::Lost) && !write.completed;
            if write.op == RequestOp::Flush || part != Part::Pending && !unanswered {
                // The epochs of a flush are confirmed by the barriers that follow.
                continue;
            }
            // One that is to be resynced first makes nothing end well, and its source, which need
            // not hear this node, might bring back what was there before. One that this node is to be
            // resynced from is current as it is, and would go on in the generation of the write
            // without it.
            let repl = self.repl(peer, vol);
            let disk = self.st.peers[peer].devs[vol].disk;
            let whole = repl == ReplState::Established && disk > DiskState::Outdated
                || repl.is_target() && disk == DiskState::UpToDate;
            let follows = whole && self.decide(peer, vol) == Decision::Data;
            if unanswered && !follows {
                continue;
            }
            // The peer may have confirmed that epoch already, without this write.
            let send = &mut self.peers[peer].send;
            send.acked_epoch = send.acked_epoch.min(epoch.saturating_sub(1));
            let Some(write) = self.log.get_mut(seq) else { continue };
            let copy = Write { parts: write.parts, ..*write };
            let part = self.send_write(peer, seq, &copy);
            let entry = self.log.get_mut(seq).expect("in range");
            entry.parts[node.index()] = part;
            entry.since = self.now;
            self.tell_others_of_resent(peer, seq, &copy);
        }
        if self.peers[peer].send.epoch < self.log.epoch {
            self.send_barrier(peer);
        }
        // A flush that has nothing left to wait for on this peer.
        if self.peers[peer].send.barriers.is_empty() {
            self.peers[peer].send.acked_epoch = self.log.epoch.saturating_sub(1);
        }
        self.advance_all();
    }

    /// A disk that came while the write was held is no party to it. It may have fetched the block
    /// from the peer that only gets the write now. So may one that is not current any more, whatever
    /// it had acknowledged before, and one that was told already.
    fn tell_others_of_resent(&mut self, peer: PeerIx, seq: u64, write: &Write) {
        let vol = write.vol;
        let source = self.st.peers[peer].devs[vol].disk == DiskState::UpToDate;
        for other in (0..self.peers.len()).filter(|p| *p != peer) {
            let node = self.peers[other].node;
            let part = write.parts[node.index()];
            let behind = self.st.peers[other].devs[vol].disk < DiskState::Consistent;
            let fetched = match part {
                Part::OutOfSync => behind || source,
                part => part.counts_as_written() && behind && !self.repl(other, vol).is_source(),
            };
            if (fetched || write.is_missing_on(node)) && self.st.has_disk(other, vol) {
                let part = self.send_out_of_sync(other, write);
                self.log.get_mut(seq).expect("in range").parts[node.index()] = part;
                // It was all there was while the other one was away (see `tell_under_way`).
                let current = self.st.is_connected(other)
                    && self.st.peers[other].devs[vol].disk == DiskState::UpToDate;
                if current && !write.completed && source && !self.disk_in_use(vol) {
                    self.change_hard(|st| st.peers[other].devs[vol].disk = DiskState::Outdated);
                }
            }
        }
    }

    /// A peer's disk is back and takes itself for current: equal to that of another peer, to which
    /// a write of this client is still on its way. It is not, and must not follow this node into a
    /// generation in which that is written.
    pub(crate) fn tell_under_way(&mut self, old: &State) {
        if self.st.role != Role::Primary {
            return;
        }
        let peers = self.peers.len();
        for (peer, vol) in (0..self.vols.len()).flat_map(|v| (0..peers).map(move |p| (p, v))) {
            let (was, is) = (old.peers[peer].devs[vol].disk, self.st.peers[peer].devs[vol].disk);
            // What was resynced has it from its source; an own disk is compared, too.
            let came = is == DiskState::UpToDate
                && was < DiskState::UpToDate
                && was != DiskState::Inconsistent;
            if !came || self.disk_in_use(vol) || !old.is_connected(peer) {
                continue;
            }
            let node = self.peers[peer].node;
            // Which may be lost meanwhile: then this one is all there is.
            let others: Vec<NodeId> = (0..peers)
                .filter(|p| *p != peer && self.st.is_connected(*p))
                .filter(|p| self.st.peers[*p].devs[vol].disk == DiskState::UpToDate)
                .map(|p| self.peers[p].node)
                .collect();
            let gets = |w: &Write, n: NodeId| {
                let part = w.parts[n.index()];
                part == Part::Pending || part.counts_as_written()
            };
            let misses = |w: &Write| {
                w.vol == vol
                    && !w.completed
                    && w.op != RequestOp::Flush
                    && w.is_missing_on(node)
                    && others.iter().any(|n| gets(w, *n))
            };
            let seqs: Vec<u64> = self
                .log
                .seqs()
                .zip(self.log.iter())
                .filter_map(|(seq, w)| misses(w).then_some(seq))
                .collect();
            for seq in &seqs {
                let write = self.log.get(*seq).expect("in range");
                let copy = Write { parts: write.parts, ..*write };
                let part = self.send_out_of_sync(peer, &copy);
                self.log.get_mut(*seq).expect("in range").parts[node.index()] = part;
            }
            if !seqs.is_empty() {
                self.change_hard(|st| st.peers[peer].devs[vol].disk = DiskState::Outdated);
            }
        }
    }

    /// A disk that others can be brought up to date from has the write. A disk that is itself being
    /// resynced, is only Consistent, or is away may have it, too, but may have to follow one that has
    /// not.
    pub(super) fn is_kept(&self, write: &Write) -> bool {
        let vol = write.vol;
        let here = write.local == Local::Ok && self.st.vols[vol].disk == DiskState::UpToDate;
        let there = |p: PeerIx| {
            let written = write.parts[self.peers[p].node.index()].counts_as_written();
            let disk = self.st.peers[p].devs[vol].disk;
            written && self.st.is_connected(p) && disk == DiskState::UpToDate
        };
        here || (0..self.peers.len()).any(there)
    }

    /// The disk is given up: its parts of writes in flight count as failed (L8).
    pub(crate) fn abort_local(&mut self, vol: VolIx) {
        // What was sent under protocol A has to be confirmed now.
        self.close_epoch();
        for seq in self.log.seqs() {
            let write = self.log.get_mut(seq).expect("in range");
            if write.vol == vol && matches!(write.local, Local::Pending | Local::Again) {
                write.local = Local::Failed;
            }
            if write.vol == vol {
                write.al = false;
            }
        }
        self.vols[vol].again = 0;
        self.advance_all();
    }

    /// The own disk is back and takes itself for current, but lacks what was under way meanwhile:
    /// it gets that now. Should this node stop before, the bits say so.
    pub(crate) fn write_again(&mut self, vol: VolIx) {
        let mut ranges = Vec::new();
        for seq in self.log.seqs() {
            let write = self.log.get_mut(seq).expect("in range");
            let lacks = write.local.is_missing();
            if write.vol == vol && !write.completed && lacks && write.op != RequestOp::Flush {
                write.local = Local::Again;
                ranges.push(write.range);
            }
        }
        let Some(backing) = self.vols[vol].backing.as_mut().filter(|_| !ranges.is_empty()) else {
            return;
        };
        for slot in 0..backing.bitmap.slots() {
            ranges.iter().for_each(|range| backing.set_range(slot, *range));
        }
        self.vols[vol].again = ranges.len();
        self.persist_with_bitmap(vol, Work::WriteAgain(vol));
    }

    /// What the disk lacks is on record.
    pub(crate) fn written_again(&mut self, vol: VolIx) {
        let lacks = |w: &Write| w.vol == vol && w.local == Local::Again;
        let seqs: Vec<u64> = self
            .log
            .seqs()
            .zip(self.log.iter())
            .filter(|(_, w)| lacks(w))
            .map(|(s, _)| s)
            .collect();
        seqs.into_iter().for_each(|seq| self.try_again(seq));
    }

    /// Until it is done the write is like any other: its extents are active, and the generation of
    /// the disk is durable.
    pub(crate) fn try_again(&mut self, seq: u64) {
        let Some(write) = self.log.get(seq).filter(|w| w.local == Local::Again) else { return };
        let (vol, range) = (write.vol, write.range);
        if self.al_begin(vol, range, WaitingOn::Again(seq)) {
            self.submit_again(seq);
        }
    }

    pub(crate) fn submit_again(&mut self, seq: u64) {
        let Some(write) = self.log.get_mut(seq).filter(|w| w.local == Local::Again) else { return };
        write.local = Local::Pending;
        write.al = true;
        let (vol, io) = (write.vol, local_io(write.op, write.range));
        self.vols[vol].unflushed = true;
        let op = self.op(Op::Write(seq));
        self.out.push_back(Output::Disk { volume: self.vols[vol].nr, op, io });
        self.vols[vol].again -= 1;
        if self.vols[vol].again == 0 {
            self.work.push_back(Work::Kick(vol));
        }
    }

    /// A disk that lacks the write is being compared with. It gets the write if the two turn out to
    /// be equal (see [`Self::resend`]); one that had failed meanwhile it would lack, and nobody
    /// would know.
    pub(super) fn awaits_comparison(&self, write: &Write) -> bool {
        write.op != RequestOp::Flush
            && (0..self.peers.len()).any(|peer| {
                self.peers[peer].hs.phase == Phase::Exchanging
                    && self.peer_has_bitmap(peer, write.vol)
                    && write.is_missing_on(self.peers[peer].node)
            })
    }

    /// Writes that are answered and not done everywhere yet become bits towards a peer that lacks
    /// them, before it is told how many blocks it lacks: they are never sent to it any more.
    pub(crate) fn mark_given_up(&mut self, vol: VolIx, node: NodeId) {
        let given_up = |w: &&Write| {
            let lacks = w.is_missing_on(node) || w.local != Local::Ok;
            w.vol == vol && w.completed && lacks && w.op != RequestOp::Flush
        };
        let ranges: Vec<SectorRange> = self.log.iter().filter(given_up).map(|w| w.range).collect();
        self.mark(vol, node, &ranges);
    }

    /// Writes that are not done everywhere yet become bits towards a peer that lacks them.
    pub(crate) fn mark_missing(&mut self, vol: VolIx, node: NodeId) {
        let lacks = |w: &&Write| w.vol == vol && w.op != RequestOp::Flush && w.is_missing_on(node);
        let ranges: Vec<SectorRange> = self.log.iter().filter(lacks).map(|w| w.range).collect();
        self.mark(vol, node, &ranges);
    }

    /// Writes to the volume that are not done yet become bits towards `node`: what the bitmap
    /// exchange starts from covers them.
    pub(crate) fn mark_unfinished(&mut self, vol: VolIx, node: NodeId) {
        let ranges: Vec<SectorRange> = self
            .log
            .iter()
            .filter(|w| w.vol == vol && w.op != RequestOp::Flush)
            .map(|w| w.range)
            .collect();
        self.mark(vol, node, &ranges);
    }

    /// The peer has got by a resync what it missed of writes that are still in the log: they became
    /// bits when that began, and do not do so again.
    pub(crate) fn forget_missed(&mut self, node: NodeId, vol: VolIx) {
        for seq in self.log.seqs() {
            let write = self.log.get_mut(seq).expect("in range");
            let part = &mut write.parts[node.index()];
            let missed = matches!(part, Part::None | Part::Lost);
            // Its source waits for what is on its way to the own disk.
            if missed
                && write.vol == vol
                && write.local == Local::Ok
                && write.op != RequestOp::Flush
            {
                *part = Part::OutOfSync;
            }
        }
    }

    fn mark(&mut self, vol: VolIx, node: NodeId, ranges: &[SectorRange]) {
        if let Some(backing) = self.vols[vol].backing.as_mut() {
            if let Some(slot) = backing.slot_of(node) {
                for range in ranges {
                    backing.set_range(slot, *range);
                }
            }
        }
    }
}
