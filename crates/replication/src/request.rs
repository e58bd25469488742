//! Writes of users: admission, the transfer log, and when a write is complete and done.
//!
//! A write passes: *admission* (may this node write now?), *conflict* (no overlapping I/O in
//! flight), *activity log* (its extents are durably active), then it enters the transfer log in
//! one step: it gets its dagtag and its epoch, is submitted to the local disk and sent to the
//! peers. It is *complete* when the user may be told, and *done* when every peer's barrier ack
//! is in; entries leave the log strictly in order (semantics §8).

mod log;
mod lost;

use std::collections::VecDeque;

use codec::wire::{BlockAck, Data, DataFlags, Packet, Trim};
use vocab::options::{OnNoDataAccessible, OnNoQuorum, Protocol};
use vocab::{
    ConnState, Dagtag, DiskState, MAX_NODES, NodeId, NodeMask, ReplState, Role, SectorRange,
};

use crate::activity_log::Begin;
use crate::intervals::Slot;
use crate::io::{DiskError, DiskOp, IoError, Output, Request, RequestOp};
use crate::resource::{Decision, IdKind, Op, Owner, Resource, Work};
use crate::state::{PeerIx, VolIx};

pub(crate) use log::{Local, Part, TransferLog, Write};

/// Someone waits for an overlapping operation or an activity log transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitingOn {
    User(Request),
    /// Sequence number of a write that the own disk, which is back, gets now.
    Again(u64),
    /// Key in `peer_writes`.
    Peer(usize),
    /// Key in `serves`.
    Serve(usize),
}

/// May a request start now?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Go,
    Wait,
    Fail(IoError),
}

impl Resource {
    /// A user's request arrives.
    pub(crate) fn user_request(&mut self, request: Request) {
        let Some(vol) = self.vol_ix(request.volume) else {
            return self.reject(request, IoError::Io);
        };
        if request.op != RequestOp::Flush
            && (request.range.len.0 == 0 || !request.range.fits(self.vols[vol].size))
        {
            return self.reject(request, IoError::Invalid);
        }
        if self.joint.on {
            return self.forward_request(vol, request);
        }
        // What was held first goes first, or a stream of new requests could starve it.
        if !self.vols[vol].held.is_empty() {
            self.vols[vol].held.push_back(request);
            return self.work.push_back(Work::Kick(vol));
        }
        if !self.start_request(vol, request) {
            self.vols[vol].held.push_back(request);
        }
    }

    /// Fails a request that was never admitted.
    pub(crate) fn reject(&mut self, request: Request, error: IoError) {
        if let RequestOp::Write { buf, .. } = request.op {
            self.free(Some(buf));
        }
        self.complete(request.volume, request.id, Err(error));
    }

    /// Starts or fails the request, or says that it must be held.
    fn start_request(&mut self, vol: VolIx, request: Request) -> bool {
        if self.is_dead(&request) {
            self.drop_dead(request);
            return true;
        }
        match self.admission(vol, request.op == RequestOp::Read) {
            Admission::Wait => return false,
            Admission::Fail(error) => self.reject(request, error),
            Admission::Go => match request.op {
                RequestOp::Read => self.start_read(vol, request),
                RequestOp::Flush => self.start_flush(vol, request),
                RequestOp::Zeroes { .. } if !self.all_take_zeroes() => {
                    self.reject(request, IoError::Unsupported);
                }
                _ => self.try_write(vol, request),
            },
        }
        true
    }

    /// Looks at held requests again.
    pub(crate) fn kick(&mut self, vol: VolIx) {
        while let Some(request) = self.vols[vol].held.pop_front() {
            if !self.start_request(vol, request) {
                self.vols[vol].held.push_front(request);
                break;
            }
        }
    }

    pub(crate) fn kick_all(&mut self) {
        for vol in 0..self.vols.len() {
            if !self.vols[vol].held.is_empty() {
                self.work.push_back(Work::Kick(vol));
            }
        }
        self.send_forwarded();
    }

    /// Semantics §8.1 and §8.5.
    fn admission(&mut self, vol: VolIx, read: bool) -> Admission {
        if !read && self.st.role != Role::Primary {
            return Admission::Fail(IoError::NotPrimary);
        }
        if self.st.fail_io {
            return Admission::Fail(IoError::Io);
        }
        if self.st.susp.any() {
            return Admission::Wait;
        }
        if !self.st.vols[vol].quorum {
            match self.opts.on_no_quorum {
                OnNoQuorum::IoError => return Admission::Fail(IoError::Io),
                OnNoQuorum::SuspendIo if self.st.vols[vol].aside => return Admission::Wait,
                OnNoQuorum::SuspendIo => {}
            }
        }
        if matches!(self.st.vols[vol].disk, DiskState::Attaching | DiskState::Negotiating) {
            return Admission::Wait;
        }
        if !self.has_data(&self.st, vol) {
            // With on-no-data-accessible=suspend-io a Primary is suspended already.
            return match self.opts.on_no_data_accessible {
                OnNoDataAccessible::SuspendIo if self.st.role == Role::Primary => Admission::Wait,
                _ => Admission::Fail(IoError::Io),
            };
        }
        if read {
            return Admission::Go;
        }
        // First what the disk that is back lacks: it may need all extents there are, and newer
        // writes hold theirs until the older ones are done.
        if self.demoting || self.vols[vol].again > 0 {
            return Admission::Wait;
        }
        self.relieve_congested(vol);
        if self.bump_blocks(vol) {
            self.start_bump(vol);
            if self.bump_blocks(vol) {
                return Admission::Wait;
            }
        }
        // What its resync has blocked is free already, but a generation may be due without it.
        if self.st.connected().any(|p| self.peers[p].hs.losing) {
            return Admission::Wait;
        }
        let exchanging = self.st.peers.iter().any(|p| {
            let repl = p.devs[vol].repl;
            matches!(repl, ReplState::WFBitMapT | ReplState::WFSyncUUID | ReplState::Behind)
        });
        if exchanging || self.log.len() >= self.opts.max_io_depth as usize {
            return Admission::Wait;
        }
        Admission::Go
    }

    /// An admitted write: wait for conflicts and the activity log, or go.
    pub(crate) fn try_write(&mut self, vol: VolIx, request: Request) {
        let volume = &mut self.vols[vol];
        // A resync read at the source, a resync write at a promoted target, a peer's write that
        // still drains, an earlier write of a user: all of them first. Verify never blocks.
        if volume.conflict(request.range, |o| !matches!(o, Owner::Verify(_))).is_some() {
            volume.conflict_wait.push_back(WaitingOn::User(request));
            return;
        }
        let in_use = self.disk_in_use(vol);
        if !in_use || self.al_begin(vol, request.range, WaitingOn::User(request)) {
            self.start_write(vol, request, in_use);
        }
    }

    /// Takes the extents of a write that is about to start. False if it has to wait: it is
    /// queued, and comes back through [`Self::al_transaction_done`] or [`Self::retry_al`].
    pub(crate) fn al_begin(&mut self, vol: VolIx, range: SectorRange, who: WaitingOn) -> bool {
        let volume = &mut self.vols[vol];
        let backing = volume.backing.as_mut().expect("the disk is in use");
        if !backing.may_write() || volume.bump_announce.is_some() {
            volume.al_wait.push_back(who);
            return false;
        }
        match backing.al.begin(range) {
            Begin::Active => return true,
            Begin::Queued => volume.al_queued.push(who),
            Begin::Wait => {
                volume.al_wait.push_back(who);
                // Writes of the open epoch may be what holds the extents.
                self.close_epoch();
            }
        }
        false
    }

    /// An activity log transaction is durable: the writes that took part may start.
    pub(crate) fn al_transaction_done(&mut self, vol: VolIx) {
        for waiting in std::mem::take(&mut self.vols[vol].al_queued) {
            match waiting {
                WaitingOn::Peer(key) => self.submit_peer_write(key),
                WaitingOn::Again(seq) if self.vols[vol].bump_announce.is_none() => {
                    self.submit_again(seq);
                }
                WaitingOn::Again(seq) => {
                    let range = self.log.get(seq).map_or(SectorRange::default(), |w| w.range);
                    self.al_end(vol, range);
                    self.vols[vol].al_wait.push_back(waiting);
                }
                WaitingOn::User(request) => {
                    // A suspension, a lost disk or an overlapping write may have come first.
                    let go = !self.is_dead(&request)
                        && self.admission(vol, false) == Admission::Go
                        && self.disk_in_use(vol)
                        && self.vols[vol]
                            .conflict(request.range, |o| !matches!(o, Owner::Verify(_)))
                            .is_none();
                    if go {
                        self.start_write(vol, request, true);
                    } else {
                        self.al_end(vol, request.range);
                        self.vols[vol].held.push_back(request);
                        self.work.push_back(Work::Kick(vol));
                    }
                }
                WaitingOn::Serve(_) => {}
            }
        }
        self.retry_al(vol);
    }

    /// Registers, submits and sends a write; from here on it can not be refused.
    fn start_write(&mut self, vol: VolIx, request: Request, local: bool) {
        let decisions = self.decide_all(vol);
        self.dagtag.0 += request.range.len.0;
        let seq = self.log.seqs().end;
        self.verify_sees_write(vol, request.range);
        let interval = self.vols[vol].claim(request.range, Owner::Local(seq));
        let mut write = Write {
            vol,
            id: request.id,
            op: request.op,
            range: request.range,
            dagtag: self.dagtag,
            epoch: self.log.epoch,
            local: if local { Local::Pending } else { Local::None },
            parts: [Part::None; MAX_NODES],
            completed: false,
            since: self.now,
            interval: Some(interval),
            al: local,
        };
        if self.log.epoch_writes == 0 {
            self.log.epoch_since = self.now;
        }
        self.log.epoch_writes += 1;
        for (peer, decision) in decisions.iter().enumerate().take(self.peers.len()) {
            write.parts[self.peers[peer].node.index()] = match decision {
                Decision::Nothing => self.leave_out(peer),
                Decision::OutOfSync => self.send_out_of_sync(peer, &write),
                Decision::Data => self.send_write(peer, seq, &write),
            };
        }
        self.log.push(write);
        if local {
            let io = local_io(request.op, request.range);
            let op = self.op(Op::Write(seq));
            self.vols[vol].stats.written_sectors += request.range.len.0;
            self.vols[vol].unflushed = true;
            self.out.push_back(Output::Disk { volume: request.volume, op, io });
        }
        // A peer confirms a generation only by a barrier ack (semantics §4.3 rule 4).
        let unconfirmed = self.vols[vol].unconfirmed.is_some();
        if unconfirmed || self.log.epoch_writes >= self.max_epoch_size() {
            self.close_epoch();
        }
        // A diskless Primary whose peers have all just gone has nothing to wait for.
        self.advance(seq);
    }

    /// The write is not for the peer, which has no disk for the volume. If it has one for another
    /// volume, it may be asked there for what was written up to here, and must know that it has it.
    fn leave_out(&mut self, peer: PeerIx) -> Part {
        if (0..self.vols.len()).any(|vol| self.st.has_disk(peer, vol)) {
            self.tell_position(peer);
        }
        Part::None
    }

    /// Tells the peer where this node's write stream stands, unless it has just been told: what it
    /// is to get of that stream, it has got (wire §5.5). Who is asked for blocks of a resync waits
    /// until it has what the requester has seen of the stream.
    pub(crate) fn tell_position(&mut self, peer: PeerIx) {
        let dagtag = self.dagtag;
        if self.peers[peer].send.dagtag.replace(dagtag) != Some(dagtag) {
            self.send(peer, Packet::Dagtag(dagtag));
        }
    }

    /// The peer is to miss the write, and hears of it before it can hear anything else that this
    /// node does after the write: a resync to it must not end without the block, and must not get
    /// it from a source that the write has not reached yet.
    fn send_out_of_sync(&mut self, peer: PeerIx, write: &Write) -> Part {
        let (vol, range) = (write.vol, write.range);
        let (node, nr) = (self.peers[peer].node, self.vols[vol].nr);
        if let Some(backing) = self.vols[vol].backing.as_mut() {
            if let Some(slot) = backing.slot_of(node) {
                backing.set_range(slot, range);
            }
        }
        self.tell_position(peer);
        self.send(peer, Packet::OutOfSync(nr, range));
        Part::OutOfSync
    }

    fn max_epoch_size(&self) -> u32 {
        self.peers.iter().map(|p| p.net.max_epoch_size).min().unwrap_or(u32::MAX)
    }

    /// What each peer gets of a write now. A change for any peer starts a new epoch, so that no
    /// epoch mixes both kinds (semantics §8.2).
    fn decide_all(&mut self, vol: VolIx) -> [Decision; MAX_NODES] {
        let mut decisions = [Decision::Nothing; MAX_NODES];
        let mut changed = false;
        for (peer, decision) in decisions.iter_mut().enumerate().take(self.peers.len()) {
            *decision = self.decide(peer, vol);
            let last = &mut self.peers[peer].devs[vol].decision;
            changed |= *last != *decision;
            *last = *decision;
        }
        if changed {
            self.close_epoch();
        }
        decisions
    }

    /// What a write to the peer becomes now (semantics §8.2).
    pub(crate) fn decide(&self, peer: PeerIx, vol: VolIx) -> Decision {
        if !self.st.is_connected(peer) {
            return Decision::Nothing;
        }
        let dev = &self.st.peers[peer].devs[vol];
        match (dev.repl, dev.disk) {
            (ReplState::Off, _) => Decision::Nothing,
            (ReplState::StartingSyncS | ReplState::WFBitMapS, disk)
                if disk != DiskState::Outdated && self.is_unaware(peer, vol) =>
            {
                Decision::Data
            }
            (ReplState::Ahead | ReplState::WFBitMapS, _) => Decision::OutOfSync,
            (_, DiskState::UpToDate | DiskState::Consistent) => Decision::Data,
            (repl, DiskState::Inconsistent)
                if repl == ReplState::Established
                    || (ReplState::WFBitMapT..=ReplState::PausedSyncT).contains(&repl) =>
            {
                Decision::Data
            }
            (_, DiskState::Negotiating | DiskState::Outdated | DiskState::Inconsistent) => {
                Decision::OutOfSync
            }
            _ => Decision::Nothing,
        }
    }

    /// Sends a write, or sends it again, and gives the state of its part.
    fn send_write(&mut self, peer: PeerIx, seq: u64, write: &Write) -> Part {
        if matches!(write.op, RequestOp::Zeroes { .. }) && !self.takes_zeroes(peer) {
            return self.resync_for_zeroes(peer);
        }
        let before = Dagtag(write.dagtag.0 - write.range.len.0);
        if self.peers[peer].send.epoch != write.epoch {
            self.send_barrier(peer);
        }
        if self.peers[peer].send.dagtag != Some(before) {
            self.send(peer, Packet::Dagtag(before));
        }
        let nr = self.vols[write.vol].nr;
        let repl = self.repl(peer, write.vol);
        let protocol = self.peers[peer].net.protocol;
        let p = &mut self.peers[peer];
        p.send.dagtag = Some(write.dagtag);
        p.send.epoch = write.epoch;
        p.send.epoch_writes += 1;
        p.send.app_in_flight += write.range.len.0;
        p.devs[write.vol].sent_sectors += write.range.len.0;
        let mut flags = DataFlags::SYNC;
        match protocol {
            // There is no other copy: lost on the way, it would be lost under a user who has been
            // told that it is written, and reads what was there before. Stricter than DRBD.
            Protocol::A if write.local.is_missing() || self.vols[write.vol].leaving.is_some() => {
                flags = flags.with(DataFlags::SEND_WRITE_ACK)
            }
            Protocol::A => {}
            Protocol::B => flags = flags.with(DataFlags::SEND_RECEIVE_ACK),
            Protocol::C => flags = flags.with(DataFlags::SEND_WRITE_ACK),
        }
        if repl.in_sync_states() {
            flags = flags.with(DataFlags::MAY_SET_IN_SYNC).with(DataFlags::SEND_WRITE_ACK);
        }
        let awaits_ack = flags.0 & (DataFlags::SEND_RECEIVE_ACK.0 | DataFlags::SEND_WRITE_ACK.0);
        if awaits_ack == 0 {
            p.send.epoch_sectors += write.range.len.0;
        }
        let seq_nr = p.devs[write.vol].next_seq();
        let block_id = Resource::block_id(IdKind::Write, seq);
        let (packet, payload) = match write.op {
            RequestOp::Write { buf, fua } => {
                if fua {
                    flags = flags.with(DataFlags::FUA);
                }
                let data = Data { range: write.range, block_id, seq: seq_nr, flags };
                (Packet::Data(nr, data), Some(buf))
            }
            RequestOp::Discard => {
                let flags = flags.with(DataFlags::DISCARD);
                let trim = Trim { range: write.range, block_id, seq: seq_nr, flags };
                (Packet::Trim(nr, trim), None)
            }
            RequestOp::Zeroes { unmap } => {
                flags = flags.with(DataFlags::ZEROES);
                if unmap {
                    flags = flags.with(DataFlags::DISCARD);
                }
                let trim = Trim { range: write.range, block_id, seq: seq_nr, flags };
                (Packet::Zeroes(nr, trim), None)
            }
            RequestOp::Read | RequestOp::Flush => unreachable!("only writes are sent"),
        };
        self.send_with(peer, packet, payload);
        if awaits_ack != 0 { Part::Pending } else { Part::Sent }
    }

    /// A flush: the local cache, and the epochs of every peer.
    ///
    /// Stricter than DRBD, which does not wait for the peers: after a flush, everything
    /// completed before is stable on every connected peer that took it.
    fn start_flush(&mut self, vol: VolIx, request: Request) {
        self.close_epoch();
        self.flush_peer_acks();
        let local = self.disk_in_use(vol);
        let mut write = Write {
            vol,
            id: request.id,
            op: RequestOp::Flush,
            range: SectorRange::default(),
            dagtag: self.dagtag,
            epoch: self.log.epoch.saturating_sub(1),
            local: if local { Local::Pending } else { Local::None },
            parts: [Part::None; MAX_NODES],
            completed: false,
            since: self.now,
            interval: None,
            al: false,
        };
        for (peer, st) in self.peers.iter().zip(&self.st.peers) {
            if st.conn == ConnState::Connected && !peer.send.barriers.is_empty() {
                write.parts[peer.node.index()] = Part::Pending;
            }
        }
        let seq = self.log.push(write);
        if local {
            let op = self.op(Op::Write(seq));
            self.out.push_back(Output::Disk { volume: request.volume, op, io: DiskOp::Flush });
        }
        self.advance(seq);
    }

    /// The local part of a write or flush has ended.
    pub(crate) fn local_write_done(&mut self, seq: u64, result: Result<(), DiskError>) {
        let Some(write) = self.log.get_mut(seq) else { return };
        if write.local != Local::Pending {
            // Aborted before, when the disk was given up.
            return;
        }
        let (vol, op, range) = (write.vol, write.op, write.range);
        write.local = if result.is_ok() { Local::Ok } else { Local::Failed };
        if let Err(error) = result {
            // What was sent under protocol A has to be confirmed now.
            self.close_epoch();
            let harmless = error == DiskError::Unsupported
                && matches!(op, RequestOp::Discard | RequestOp::Zeroes { .. });
            if !harmless {
                self.disk_failed(vol, Some(range), "a write failed");
            }
        }
        self.advance(seq);
    }

    /// A peer acknowledged a write: P_RECV_ACK, P_WRITE_ACK, P_WRITE_ACK_IN_SYNC or P_NEG_ACK.
    /// `Err` is a protocol error: never complete by inexact match (semantics §8.6 L9).
    pub(crate) fn write_acked(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        ack: BlockAck,
        kind: Part,
    ) -> Result<(), &'static str> {
        let node = self.peers[peer].node;
        let seq = Resource::block_key(ack.block_id, IdKind::Write)
            .ok_or("an ack names no write of this node")?;
        let Some(write) = self.log.get_mut(seq) else {
            return Err("an ack names a write that is not in flight");
        };
        if write.vol != vol || write.range != ack.range || write.op == RequestOp::Flush {
            return Err("an ack does not match its write");
        }
        let part = &mut write.parts[node.index()];
        let first = *part == Part::Pending;
        match (*part, kind) {
            (Part::Pending, _) => *part = kind,
            // Protocol B in a resync gets both acks.
            (Part::Acked, Part::Acked | Part::InSync) => *part = kind,
            // What was acknowledged is taken back if it can not be made stable.
            (Part::Sent | Part::Acked | Part::InSync, Part::Neg) => *part = Part::Neg,
            // It was told meanwhile that it may miss the write.
            (Part::OutOfSync, Part::Neg) => {}
            _ => return Err("an ack was not expected"),
        }
        let len = if first { write.range.len.0 } else { 0 };
        if kind == Part::Neg {
            self.peer_disk_failed(peer, vol, seq);
        }
        let send = &mut self.peers[peer].send;
        send.app_in_flight = send.app_in_flight.saturating_sub(len);
        self.arrived(peer);
        self.advance(seq);
        Ok(())
    }

    /// The peer could not write: its disk counts as failed from here on, whatever its next state
    /// packet says when. The write completes in a generation that the peer does not have.
    ///
    /// Or it has a disk again by now, which it says nothing about. That one is told what it misses.
    fn peer_disk_failed(&mut self, peer: PeerIx, vol: VolIx, seq: u64) {
        let disk = self.st.peers[peer].devs[vol].disk;
        let Some(write) = self.log.get(seq) else { return };
        if self.st.has_disk(peer, vol) && write.since < self.peers[peer].devs[vol].disk_since {
            let copy = Write { parts: write.parts, ..*write };
            let part = self.send_out_of_sync(peer, &copy);
            let entry = self.log.get_mut(seq).expect("looked at above");
            entry.parts[self.peers[peer].node.index()] = part;
            if disk > DiskState::Outdated {
                self.change_hard(|st| st.peers[peer].devs[vol].disk = DiskState::Outdated);
            }
        } else if disk > DiskState::Failed {
            self.change_hard(|st| st.peers[peer].devs[vol].disk = DiskState::Failed);
        }
    }

    /// Completes the write if it can be, and takes what is done off the log.
    pub(crate) fn advance(&mut self, seq: u64) {
        self.try_complete(seq);
        self.retire();
    }

    /// Looks at every write again.
    pub(crate) fn advance_all(&mut self) {
        for seq in self.log.seqs() {
            self.try_complete(seq);
        }
        self.retire();
    }

    fn try_complete(&mut self, seq: u64) {
        let Some(write) = self.log.get(seq) else { return };
        if write.completed || matches!(write.local, Local::Pending | Local::Again) {
            return;
        }
        let flush = write.op == RequestOp::Flush;
        for peer in &self.peers {
            let confirmed = peer.send.acked_epoch >= write.epoch;
            match write.parts[peer.node.index()] {
                Part::Pending if !(flush && confirmed) => return,
                // What the own disk could not take is nowhere while it is on its way.
                Part::Sent if write.local == Local::Failed && !confirmed => return,
                _ => {}
            }
        }
        let susp = &self.st.susp;
        let frozen = susp.quorum || susp.no_data || susp.fencing || susp.uuid_bridge;
        if !frozen {
            self.forget_absent(seq);
        }
        let Some(write) = self.log.get(seq) else { return };
        let vol = write.vol;
        // A disk that was there and has not got it must not pass for current (semantics §8.6 L7).
        let missed = (write.parts.iter().any(|p| matches!(p, Part::Neg | Part::Lost))
            || write.local == Local::Failed)
            && self.st.vols[vol].quorum
            && self.has_data(&self.st, vol)
            && self.bump_blocks(vol)
            && !self.fails_unfenced();
        if missed || self.completion_held(write) || (frozen && !self.st.fail_io) {
            // Nothing is reported before it is known that it will last (invariant 6). One that fails
            // waits for no other volume.
            if missed && (!frozen || self.st.fail_io) {
                self.start_bump(vol);
            }
            return;
        }
        // A disk that the write is on goes on in a generation that others lack, or it can not be
        // told from those that lack the write.
        let unheld = !flush && self.is_proposing(vol);
        // Nor does one with a vote that has not heard of it.
        let untold = !flush && self.is_telling(vol) && self.st.vols[vol].quorum;
        if (unheld || untold) && !self.st.fail_io && self.has_data(&self.st, vol) {
            return;
        }
        let ok = if self.st.fail_io || unheld {
            false
        } else if flush {
            write.local == Local::Ok || self.has_data(&self.st, write.vol)
        } else {
            self.is_kept(write)
        };
        let quorate = self.opts.on_no_quorum != OnNoQuorum::IoError || self.st.is_quorate();
        let unsupported = matches!(write.op, RequestOp::Discard | RequestOp::Zeroes { .. })
            && write.local == Local::Failed
            && !ok;
        let result = match (ok && quorate, unsupported) {
            (true, _) => Ok(None),
            (false, true) => Err(IoError::Unsupported),
            (false, false) => Err(IoError::Io),
        };
        if result.is_err() && self.awaits_comparison(write) {
            return;
        }
        let (volume, id, epoch, vol) = (self.vols[write.vol].nr, write.id, write.epoch, write.vol);
        let buf = match write.op {
            RequestOp::Write { buf, .. } => Some(buf),
            _ => None,
        };
        let write = self.log.get_mut(seq).expect("looked at above");
        write.completed = true;
        let interval = write.interval.take();
        let took = self.now.since(write.since);
        if let Some(backing) = self.vols[vol].backing.as_mut().filter(|_| !flush) {
            backing.write_done(took);
        }
        self.complete(volume, id, result);
        self.free(buf);
        if let Some(key) = interval {
            self.end_interval(vol, key);
        }
        if epoch == self.log.epoch && !flush && !self.epoch_may_stay_open() {
            self.close_epoch();
        }
    }

    /// The own disk has ended with the write, and that of the peer has it.
    pub(crate) fn is_only_unreported(&self, seq: u64, peer: PeerIx) -> bool {
        let Some(write) = self.log.get(seq) else { return false };
        let ended = !matches!(write.local, Local::Pending | Local::Again);
        let protocol = self.peers[peer].net.protocol;
        ended
            && match write.parts[self.peers[peer].node.index()] {
                Part::InSync | Part::Stable => true,
                Part::Acked => protocol == Protocol::C,
                _ => false,
            }
    }

    /// A diskless Primary holds the completion of writes in a generation that its peers have
    /// not confirmed (semantics §4.3 rule 4); everyone holds what lost its peer while
    /// suspended, which is the part state `Pending` already.
    fn completion_held(&self, write: &Write) -> bool {
        let vol = &self.vols[write.vol];
        vol.unconfirmed.as_ref().is_some_and(|u| {
            self.opts.on_no_quorum == OnNoQuorum::SuspendIo
                && write.op != RequestOp::Flush
                && write.epoch >= u.first_epoch
                && !u.waiting.is_empty()
        })
    }

    pub(crate) fn part_is_done(&self, write: &Write, peer: PeerIx) -> bool {
        let send = &self.peers[peer].send;
        match write.parts[self.peers[peer].node.index()] {
            Part::None | Part::OutOfSync | Part::Neg | Part::Lost | Part::Stable | Part::Kept => {
                true
            }
            Part::Sent | Part::Acked | Part::InSync => send.acked_epoch >= write.epoch,
            Part::Pending => write.op == RequestOp::Flush && send.acked_epoch >= write.epoch,
        }
    }

    /// Takes writes that are done off the log, oldest first: bits, peer-acks and activity log
    /// references follow the order of the write stream (L11).
    fn retire(&mut self) {
        while let Some(write) = self.log.front() {
            if !write.completed || (0..self.peers.len()).any(|p| !self.part_is_done(write, p)) {
                break;
            }
            let write = self.log.pop().expect("looked at above");
            if write.op != RequestOp::Flush {
                self.record(&write);
            }
        }
        self.answer_drained();
        if self.log.len() < self.opts.max_io_depth as usize {
            self.kick_all();
        }
    }

    /// A write is done everywhere: set and clear bits, owe peer-acks, release its extents.
    fn record(&mut self, write: &Write) {
        let mut holders = NodeMask::EMPTY;
        if write.local == Local::Ok {
            holders.insert(self.me);
        }
        for peer in &self.peers {
            if write.parts[peer.node.index()].counts_as_written() {
                holders.insert(peer.node);
            }
        }
        let mut missed = NodeMask::EMPTY;
        if let Some(backing) = self.vols[write.vol].backing.as_mut() {
            let all = write.local != Local::Ok;
            for slot in 0..backing.bitmap.slots() {
                let node = backing.node_of_slot(slot);
                let part = node.map(|n| write.parts[n.index()]);
                match part {
                    Some(Part::InSync) if !all => {
                        backing.clear_range(slot, write.range);
                    }
                    Some(p) if !all && p.counts_as_written() => {}
                    // Set when the write began; a resync may have brought it over since.
                    Some(Part::OutOfSync) if !all => {}
                    _ => {
                        backing.set_range(slot, write.range);
                        missed = missed.or(node.map_or(NodeMask::EMPTY, NodeId::mask));
                    }
                }
            }
        }
        for node in missed.iter() {
            self.vols[write.vol].missed_at[node.index()] = self.now;
        }
        let received: NodeMask = self
            .peers
            .iter()
            .filter(|p| write.parts[p.node.index()].received())
            .map(|p| p.node)
            .collect();
        self.owe_peer_ack(write.dagtag, write.range.len, holders, received);
        // Last: writes that waited for the extents start, and may retire others behind this one.
        if write.al {
            self.al_end(write.vol, write.range);
        }
    }

    /// Releases activity log references and lets waiting writes try again.
    pub(crate) fn al_end(&mut self, vol: VolIx, range: SectorRange) {
        if let Some(backing) = self.vols[vol].backing.as_mut() {
            if backing.al.end(range) && !self.vols[vol].al_wait.is_empty() {
                self.retry_al(vol);
            }
        }
    }

    /// Writes waiting for the activity log try again, in order.
    pub(crate) fn retry_al(&mut self, vol: VolIx) {
        for _ in 0..self.vols[vol].al_wait.len() {
            let Some(waiting) = self.vols[vol].al_wait.pop_front() else { break };
            self.retry_waiting(vol, waiting);
        }
    }

    /// An interval ended: whoever waited for a conflict tries again, in order.
    pub(crate) fn end_interval(&mut self, vol: VolIx, key: Slot) {
        self.vols[vol].intervals.remove(key);
        for _ in 0..self.vols[vol].conflict_wait.len() {
            let Some(waiting) = self.vols[vol].conflict_wait.pop_front() else { break };
            self.retry_waiting(vol, waiting);
        }
    }

    fn retry_waiting(&mut self, vol: VolIx, waiting: WaitingOn) {
        match waiting {
            // A suspension or a lost disk may have come in between.
            WaitingOn::User(request) => {
                if !self.start_request(vol, request) {
                    self.vols[vol].held.push_back(request);
                }
            }
            WaitingOn::Again(seq) => self.try_again(seq),
            WaitingOn::Peer(key) => self.try_peer_write(key),
            WaitingOn::Serve(key) => self.try_serve(key),
        }
    }

    /// Every accepted write has completed and is confirmed by its peers.
    pub(crate) fn is_drained(&self) -> bool {
        self.log.len() == 0
            && self.joint.is_drained()
            && self.vols.iter().all(|v| {
                let waiting = v.al_wait.iter().chain(&v.conflict_wait).chain(&v.al_queued);
                !waiting.into_iter().any(|w| matches!(w, WaitingOn::User(_)))
            })
    }

    /// Fails everything that users wait for (forced demotion, quorum lost with io-error).
    pub(crate) fn fail_held(&mut self) {
        for vol in 0..self.vols.len() {
            let held = std::mem::take(&mut self.vols[vol].held);
            for request in held {
                self.reject(request, IoError::Io);
            }
            for queue in [QueueOf::Al, QueueOf::Conflict] {
                let waiting = std::mem::take(queue.of(&mut self.vols[vol]));
                for w in waiting {
                    match w {
                        WaitingOn::User(request) => self.reject(request, IoError::Io),
                        other => queue.of(&mut self.vols[vol]).push_back(other),
                    }
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
enum QueueOf {
    Al,
    Conflict,
}

impl QueueOf {
    fn of(self, vol: &mut crate::resource::Volume) -> &mut VecDeque<WaitingOn> {
        match self {
            QueueOf::Al => &mut vol.al_wait,
            QueueOf::Conflict => &mut vol.conflict_wait,
        }
    }
}

/// The disk operation that carries out a user's write.
fn local_io(op: RequestOp, range: SectorRange) -> DiskOp {
    match op {
        RequestOp::Write { buf, fua } => DiskOp::Write { range, buf, fua },
        RequestOp::Discard => DiskOp::Discard { range },
        RequestOp::Zeroes { unmap } => DiskOp::Zeroes { range, unmap },
        RequestOp::Read | RequestOp::Flush => unreachable!("only writes enter the log"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{PeerConfig, ResourceConfig, VolumeConfig};
    use vocab::options::{DiskOptions, NetOptions, ResourceOptions};
    use vocab::{Instant, Minor, NodeId, VolumeNr};

    #[test]
    fn a_write_is_kept_only_on_a_disk_that_others_follow() {
        let node = NodeId::new(1).unwrap();
        let (nr, disk) = (VolumeNr(0), DiskOptions::default());
        let peer = PeerConfig {
            node_id: node,
            name: "b".to_owned(),
            net: NetOptions::default(),
            devices: Vec::new(),
        };
        let config = ResourceConfig {
            name: "r0".to_owned(),
            node_id: NodeId::new(0).unwrap(),
            options: ResourceOptions::default(),
            handlers: vocab::HandlerSet::NONE,
            volumes: vec![VolumeConfig { nr, minor: Minor(0), diskless: true, disk }],
            peers: vec![peer],
        };
        let mut resource = Resource::new(config, 1, Dagtag(0));
        let mut parts = [Part::None; MAX_NODES];
        parts[node.index()] = Part::Acked;
        let write = Write {
            vol: 0,
            id: 0,
            op: RequestOp::Discard,
            range: SectorRange::new(0, 8),
            dagtag: Dagtag(8),
            epoch: 1,
            local: Local::None,
            parts,
            completed: false,
            since: Instant::default(),
            interval: None,
            al: false,
        };
        resource.st.peers[0].conn = ConnState::Connected;
        for disk in [DiskState::Inconsistent, DiskState::Outdated, DiskState::Consistent] {
            resource.st.peers[0].devs[0].disk = disk;
            assert!(!resource.is_kept(&write), "{disk}");
        }
        resource.st.peers[0].devs[0].disk = DiskState::UpToDate;
        assert!(resource.is_kept(&write));
        resource.st.peers[0].conn = ConnState::Unconnected;
        assert!(!resource.is_kept(&write), "away");
    }
}
