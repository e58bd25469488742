//! Writes of peers: epochs at the receiving side, execution, acks, and what is kept until the
//! Primary's peer-ack.
//!
//! A received write is executed when its epoch is the oldest one, no overlapping I/O is in
//! flight and its extents are durably active. It stays *unacked* until the Primary says who has
//! it, or until the connection is lost and it became bits (semantics §4.11, §8.2, L10).

mod unacked;

use std::collections::VecDeque;

use codec::wire::{BlockAck, BlockId, ConfirmStable, DataFlags, Packet};
use serde::{Deserialize, Serialize};
use vocab::{Dagtag, DiskState, NodeMask, ReplState, Role, SectorRange, Sectors, VolumeNr};

use crate::intervals::Slot;
use crate::io::{BufId, DiskError, DiskOp, Output};
use crate::request::WaitingOn;
use crate::resource::{Op, Owner, Resource};
use crate::state::{PeerIx, VolIx};

/// Receiving side of a connection.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Receiver {
    /// Position of the peer's write stream that this node has received.
    pub last_dagtag: Dagtag,
    /// It has said on this connection where its write stream stands.
    pub is_placed: bool,
    /// It has sent writes since this node started.
    pub has_written: bool,
    /// Oldest first; the last one is open.
    epochs: VecDeque<RxEpoch>,
    /// Ordinal of `epochs[0]`.
    first_epoch: u64,
    /// Writes of epochs that may not start yet.
    held: VecDeque<usize>,
    /// Received writes without a peer-ack, in order of the write stream.
    pub unacked: VecDeque<Unacked>,
    /// Ordinal of `unacked[0]`.
    first_unacked: u64,
    /// A flush runs to confirm writes of the open epoch: how many, and flushes outstanding.
    confirming: Option<(u64, u32)>,
    /// The connection is gone; executing what was received.
    pub draining: bool,
}

/// One epoch of a peer.
#[derive(Debug, Default, Serialize, Deserialize)]
struct RxEpoch {
    /// The peer's number, once it has closed the epoch.
    barrier: Option<u32>,
    writes: u32,
    confirmed: u32,
    /// Writes not finished yet.
    open: u32,
    /// Volumes written to.
    vols: u64,
    /// Volumes whose disk has lost what was written, or may lose it.
    unstable: u64,
    flushes: u32,
    flushing: bool,
}

/// A received write without a peer-ack.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Unacked {
    pub dagtag: Dagtag,
    pub vol: VolIx,
    pub range: SectorRange,
    block_id: BlockId,
    epoch: u64,
    /// `None` while it runs.
    ok: Option<bool>,
    confirmed: bool,
    /// Holds activity log references.
    al: bool,
    /// Nodes whose bitmap exchange counted this write already.
    covered: NodeMask,
    /// Bits towards these nodes have been set since, for what may be newer than this write.
    outrun: NodeMask,
    /// It ended on a disk that was given up since. If that is attached again, its activity log
    /// says what may differ by this write, and a resync may settle that: it counts no more.
    former: bool,
}

/// A received write that is executed.
#[derive(Debug)]
pub(crate) struct PeerWrite {
    pub peer: PeerIx,
    pub vol: VolIx,
    pub range: SectorRange,
    op: PeerOp,
    block_id: BlockId,
    flags: DataFlags,
    epoch: u64,
    unacked: u64,
    interval: Option<Slot>,
    /// The sender had a disk that takes part when it sent this.
    kept_there: bool,
}

/// What a peer's write does to the disk.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PeerOp {
    Write(BufId),
    Discard,
    Zeroes,
}

impl Default for Receiver {
    fn default() -> Receiver {
        Receiver {
            last_dagtag: Dagtag(0),
            is_placed: false,
            has_written: false,
            epochs: VecDeque::from([RxEpoch::default()]),
            first_epoch: 0,
            held: VecDeque::new(),
            unacked: VecDeque::new(),
            first_unacked: 0,
            confirming: None,
            draining: false,
        }
    }
}

impl Receiver {
    fn open_epoch(&mut self) -> (u64, &mut RxEpoch) {
        let ordinal = self.first_epoch + self.epochs.len() as u64 - 1;
        (ordinal, self.epochs.back_mut().expect("one epoch is always open"))
    }

    fn epoch_mut(&mut self, ordinal: u64) -> Option<&mut RxEpoch> {
        let index = usize::try_from(ordinal.checked_sub(self.first_epoch)?).ok()?;
        self.epochs.get_mut(index)
    }

    fn unacked_mut(&mut self, ordinal: u64) -> Option<&mut Unacked> {
        let index = usize::try_from(ordinal.checked_sub(self.first_unacked)?).ok()?;
        self.unacked.get_mut(index)
    }

    /// Everything received is executed, and has a peer-ack or is in the bits.
    pub(crate) fn is_settled(&self) -> bool {
        !self.draining && self.is_idle() && self.unacked.is_empty()
    }

    /// A write to the range is on the disk, of those behind a position that have no peer-ack.
    pub(crate) fn has_taken(&self, vol: VolIx, range: SectorRange, behind: Dagtag) -> bool {
        let taken = |u: &Unacked| u.vol == vol && u.ok == Some(true) && u.dagtag > behind;
        self.unacked.iter().any(|u| taken(u) && u.range.overlaps(range))
    }

    /// A write to the range has come, and no peer-ack for it.
    pub(crate) fn has_unacked(&self, vol: VolIx, range: SectorRange) -> bool {
        self.unacked.iter().any(|u| u.vol == vol && u.range.overlaps(range))
    }

    /// Nothing received is left to execute.
    fn is_idle(&self) -> bool {
        self.held.is_empty()
            && self.epochs.len() == 1
            && self.epochs[0].open == 0
            && self.confirming.is_none()
    }

    /// A new connection starts counting from nothing.
    pub(crate) fn reset(&mut self) {
        debug_assert!(self.is_idle(), "a connection starts only when the last one has drained");
        self.first_epoch += 1;
        self.epochs[0] = RxEpoch::default();
        self.draining = false;
        self.is_placed = false;
    }
}

impl Resource {
    /// P_DATA, P_TRIM or P_ZEROES.
    pub(crate) fn peer_write(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        range: SectorRange,
        block_id: BlockId,
        flags: DataFlags,
        op: PeerOp,
    ) -> Result<(), &'static str> {
        let payload = match op {
            PeerOp::Write(buf) => Some(buf),
            _ => None,
        };
        let checked = self.check_peer_write(peer, nr, range, flags);
        let vol = match checked {
            Ok(vol) => vol,
            Err(why) => {
                self.free(payload);
                return Err(why);
            }
        };
        self.peers[peer].devs[vol].received_sectors += range.len.0;
        if !self.disk_in_use(vol) {
            // Counted in its epoch, though this node does not have it. The position of the stream
            // goes on: with several volumes it would not fit the sender's any more.
            self.free(payload);
            let recv = &mut self.peers[peer].recv;
            recv.last_dagtag.0 += range.len.0;
            let (_, epoch) = recv.open_epoch();
            epoch.writes += 1;
            let ack = self.block_ack(peer, vol, range, block_id);
            self.send(peer, Packet::NegAck(nr, ack));
            return Ok(());
        }
        let recv = &mut self.peers[peer].recv;
        recv.last_dagtag.0 += range.len.0;
        recv.has_written = true;
        let (ordinal, epoch) = recv.open_epoch();
        epoch.writes += 1;
        epoch.open += 1;
        if vol < 64 {
            epoch.vols |= 1 << vol;
        }
        let unacked = recv.first_unacked + recv.unacked.len() as u64;
        recv.unacked.push_back(Unacked {
            dagtag: recv.last_dagtag,
            vol,
            range,
            block_id,
            epoch: ordinal,
            ok: None,
            confirmed: false,
            al: false,
            covered: NodeMask::EMPTY,
            outrun: NodeMask::EMPTY,
            former: false,
        });
        let may_start = ordinal == recv.first_epoch;
        let write = PeerWrite {
            peer,
            vol,
            range,
            op,
            block_id,
            flags,
            epoch: ordinal,
            unacked,
            interval: None,
            kept_there: self.st.peers[peer].devs[vol].disk >= DiskState::Inconsistent,
        };
        let key = self.peer_writes.insert(write);
        if flags.has(DataFlags::SEND_RECEIVE_ACK) {
            let ack = self.block_ack(peer, vol, range, block_id);
            self.send(peer, Packet::RecvAck(nr, ack));
        }
        if may_start {
            self.try_peer_write(key);
        } else {
            self.peers[peer].recv.held.push_back(key);
        }
        self.serve_dagtags(peer);
        Ok(())
    }

    fn check_peer_write(
        &self,
        peer: PeerIx,
        nr: VolumeNr,
        range: SectorRange,
        flags: DataFlags,
    ) -> Result<VolIx, &'static str> {
        let vol = self.vol_ix(nr).ok_or("a write names an unknown volume")?;
        if !self.st.is_connected(peer) {
            return Err("a write arrived before the connection was established");
        }
        if self.st.peers[peer].role != Role::Primary {
            // Sent before it was demoted, over a link that it gave up long ago (invariant 27).
            return Err("a write from a node that is not Primary");
        }
        if flags.has(DataFlags::WSAME) {
            return Err("a write uses the forbidden write-same flag");
        }
        if range.len.0 == 0 {
            return Err("a write is empty");
        }
        if !self.in_volume(vol, range) {
            return Err("a write lies outside the volume");
        }
        Ok(vol)
    }

    /// An ack towards `peer` with the next sequence number.
    pub(crate) fn block_ack(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        range: SectorRange,
        block_id: BlockId,
    ) -> BlockAck {
        let seq = self.peers[peer].devs[vol].next_seq();
        BlockAck { range, block_id, seq }
    }

    /// Goes as far as possible with a received write: conflicts, activity log, disk.
    pub(crate) fn try_peer_write(&mut self, key: usize) {
        let Some(write) = self.peer_writes.get(key) else { return };
        let (peer, vol, range) = (write.peer, write.vol, write.range);
        if write.interval.is_none() {
            // What the resync source itself writes is ordered by its stream (wire §7.4), as long as
            // the resync goes on. The disk may still work on a block of one that is over.
            let blocks = |o: Owner| match o {
                Owner::Verify(_) => false,
                Owner::ResyncTarget(source) => source != peer,
                Owner::Local(_)
                | Owner::Peer(..)
                | Owner::ResyncSource(..)
                | Owner::ResyncWrite(_) => true,
            };
            let unacked = write.unacked;
            // Of a Primary's own writes the earlier ones, of another one's those it left behind.
            let earlier = |o: &PeerWrite| match o.peer == peer {
                true => o.unacked < unacked,
                false => self.peers[o.peer].recv.draining,
            };
            let overtakes = self.vols[vol].conflict_wait.iter().any(|w| match w {
                WaitingOn::Peer(other) if *other != key => {
                    let other = self.peer_writes.get(*other);
                    other.is_some_and(|o| o.range.overlaps(range) && earlier(o))
                }
                _ => false,
            });
            if overtakes || self.vols[vol].conflict(range, blocks).is_some() {
                self.vols[vol].conflict_wait.push_back(WaitingOn::Peer(key));
                return;
            }
            self.verify_sees_write(vol, range);
            let interval = self.vols[vol].claim(range, Owner::Peer(peer, key));
            self.peer_writes[key].interval = Some(interval);
        }
        if !self.disk_in_use(vol) {
            return self.peer_write_done(key, Err(DiskError::Io));
        }
        if self.al_begin(vol, range, WaitingOn::Peer(key)) {
            self.submit_peer_write(key);
        } else {
            self.confirm_if_starving(peer, vol);
        }
    }

    /// A received write to that range has not reached the intervals yet, because of an earlier
    /// epoch or of a conflict. The requester of a resync may have it already, and depends on it:
    /// what is read before it would take its place there.
    pub(crate) fn has_waiting_write(&self, vol: VolIx, range: SectorRange) -> bool {
        self.peer_writes
            .iter()
            .any(|(_, w)| w.vol == vol && w.interval.is_none() && w.range.overlaps(range))
    }

    /// The extents of a received write are active: to the disk.
    pub(crate) fn submit_peer_write(&mut self, key: usize) {
        let Some(write) = self.peer_writes.get(key) else { return };
        let (peer, vol, range) = (write.peer, write.vol, write.range);
        if !self.disk_in_use(vol) {
            return self.peer_write_done(key, Err(DiskError::Io));
        }
        let write = &self.peer_writes[key];
        let unacked = write.unacked;
        let fua = write.flags.has(DataFlags::FUA);
        let io = match write.op {
            PeerOp::Write(buf) => DiskOp::Write { range, buf, fua },
            PeerOp::Discard => DiskOp::Discard { range },
            PeerOp::Zeroes => DiskOp::Zeroes { range, unmap: write.flags.has(DataFlags::DISCARD) },
        };
        if let Some(entry) = self.peers[peer].recv.unacked_mut(unacked) {
            entry.al = true;
        }
        self.vols[vol].stats.written_sectors += range.len.0;
        self.vols[vol].stats.foreign += 1;
        let op = self.op(Op::PeerWrite(key));
        self.out.push_back(Output::Disk { volume: self.vols[vol].nr, op, io });
    }

    /// The disk has executed a peer's write, or failed to.
    pub(crate) fn peer_write_done(&mut self, key: usize, result: Result<(), DiskError>) {
        let buf = self.peer_write_ended(key, result);
        self.free(buf);
    }

    /// Answers a peer's write. The data are the caller's.
    pub(crate) fn peer_write_ended(
        &mut self,
        key: usize,
        result: Result<(), DiskError>,
    ) -> Option<BufId> {
        let write = self.peer_writes.remove(key).expect("each write ends once");
        let PeerWrite { peer, vol, range, .. } = write;
        let nr = self.vols[vol].nr;
        let mut ok = result.is_ok();
        if result == Err(DiskError::Unsupported) {
            // A replica that can not discard still has the old content, which a discard allows,
            // but zeroes have to be zeroes: the driver emulates those.
            ok = matches!(write.op, PeerOp::Discard);
        }
        if let Err(error) = result {
            if error != DiskError::Unsupported {
                self.disk_failed(vol, Some(range), "a replicated write failed");
            }
        }
        let in_sync = ok
            && write.flags.has(DataFlags::MAY_SET_IN_SYNC)
            && self.repl(peer, vol).in_sync_states()
            && self.st.peers[peer].devs[vol].disk >= DiskState::Inconsistent;
        // It is executed later, maybe after the loss of the sender.
        self.note_in_sync(peer, vol, range, ok && write.kept_there, in_sync);
        let ack = self.block_ack(peer, vol, range, write.block_id);
        if !ok {
            self.send(peer, Packet::NegAck(nr, ack));
        } else if in_sync {
            self.send(peer, Packet::WriteAckInSync(nr, ack));
        } else if write.flags.has(DataFlags::SEND_WRITE_ACK) {
            self.send(peer, Packet::WriteAck(nr, ack));
        } else {
            // Nothing was sent: the number stays unused.
            let dev = &mut self.peers[peer].devs[vol];
            dev.seq = dev.seq.wrapping_sub(1);
        }
        let recv = &mut self.peers[peer].recv;
        if let Some(entry) = recv.unacked_mut(write.unacked) {
            entry.ok = Some(ok);
        }
        if let Some(epoch) = recv.epoch_mut(write.epoch) {
            epoch.open -= 1;
        }
        if let Some(interval) = write.interval {
            self.end_interval(vol, interval);
        }
        self.finish_epochs(peer);
        self.serve_dagtags(peer);
        self.retry_peer_reads(vol);
        if !self.vols[vol].al_wait.is_empty() {
            self.confirm_if_starving(peer, vol);
        }
        match write.op {
            PeerOp::Write(buf) => Some(buf),
            PeerOp::Discard | PeerOp::Zeroes => None,
        }
    }

    /// Bits that a replicated write changes at once (metadata §4.3): `both` have it now, or one of
    /// the two disks has not.
    fn note_in_sync(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        range: SectorRange,
        both: bool,
        in_sync: bool,
    ) {
        let node = self.peers[peer].node;
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        let Some(slot) = backing.slot_of(node) else { return };
        if in_sync {
            backing.clear_range(slot, range);
            self.resync_progress(peer, vol);
        } else if !both {
            backing.set_range(slot, range);
            self.write_missed(vol, range, node.mask());
        }
    }

    /// P_BARRIER: the open epoch is complete.
    pub(crate) fn peer_barrier(&mut self, peer: PeerIx, number: u32) {
        let (_, epoch) = self.peers[peer].recv.open_epoch();
        epoch.barrier = Some(number);
        self.peers[peer].recv.epochs.push_back(RxEpoch::default());
        self.finish_epochs(peer);
    }

    /// Flushes and acknowledges epochs that are complete, oldest first, and lets the writes of
    /// the next one start.
    fn finish_epochs(&mut self, peer: PeerIx) {
        loop {
            let recv = &mut self.peers[peer].recv;
            let front = recv.epochs.front_mut().expect("one epoch is always open");
            let Some(barrier) = front.barrier else { break };
            if front.open > 0 || front.flushes > 0 {
                break;
            }
            if !front.flushing {
                front.flushing = true;
                let vols = front.vols;
                if self.flush_vols(peer, vols, Op::EpochFlush) > 0 {
                    break;
                }
            }
            self.take_back_acks(peer);
            let recv = &mut self.peers[peer].recv;
            let done = recv.epochs.pop_front().expect("looked at above");
            recv.first_epoch += 1;
            let first = recv.first_epoch;
            if !recv.draining {
                self.send(peer, Packet::BarrierAck(barrier, done.writes - done.confirmed));
            }
            while let Some(&key) = self.peers[peer].recv.held.front() {
                if self.peer_writes[key].epoch != first {
                    break;
                }
                self.peers[peer].recv.held.pop_front();
                self.try_peer_write(key);
            }
        }
        if self.peers[peer].recv.draining {
            self.drained_if_idle(peer);
        }
    }

    /// Writes of the oldest epoch that are acknowledged and did not get stable, because the disk
    /// failed: the sender hears of each that this node has not got it after all, before it hears
    /// that the epoch is over.
    fn take_back_acks(&mut self, peer: PeerIx) {
        let recv = &mut self.peers[peer].recv;
        let epoch = recv.first_epoch;
        let unstable = recv.epochs.front().map_or(0, |e| e.unstable & e.vols);
        if unstable == 0 {
            return;
        }
        let mut lost = Vec::new();
        for u in recv.unacked.iter_mut().filter(|u| u.epoch == epoch && !u.confirmed) {
            if u.vol < 64 && unstable & (1 << u.vol) != 0 && u.ok == Some(true) {
                u.ok = Some(false);
                lost.push((u.vol, u.range, u.block_id));
            }
        }
        for (vol, range, block_id) in lost {
            let ack = self.block_ack(peer, vol, range, block_id);
            self.send(peer, Packet::NegAck(self.vols[vol].nr, ack));
        }
    }

    /// Issues a flush for each of the volumes and counts them.
    fn flush_vols(&mut self, peer: PeerIx, vols: u64, op: fn(PeerIx, VolIx) -> Op) -> u32 {
        let mut flushes = 0;
        for vol in 0..self.vols.len() {
            let written = vols & (1 << vol.min(63)) != 0;
            if written && !self.disk_in_use(vol) {
                self.epoch_unstable(peer, vol);
            }
            if !written || !self.disk_in_use(vol) || !self.vols[vol].disk_opts.disk_flushes {
                continue;
            }
            flushes += 1;
            let id = self.op(op(peer, vol));
            let volume = self.vols[vol].nr;
            self.out.push_back(Output::Disk { volume, op: id, io: DiskOp::Flush });
        }
        match op(peer, 0) {
            Op::EpochFlush(..) => {
                let front = self.peers[peer].recv.epochs.front_mut();
                front.expect("one epoch is always open").flushes = flushes;
            }
            _ => {
                if let Some((_, outstanding)) = &mut self.peers[peer].recv.confirming {
                    *outstanding = flushes;
                }
            }
        }
        flushes
    }

    /// A flush at the end of an epoch has ended. A failing flush is a failing disk: its writes
    /// are not known to be stable.
    pub(crate) fn epoch_flushed(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        result: Result<(), DiskError>,
    ) {
        if result.is_err() {
            self.disk_failed(vol, None, "a flush failed");
            self.epoch_unstable(peer, vol);
        }
        let front = self.peers[peer].recv.epochs.front_mut();
        let front = front.expect("one epoch is always open");
        front.flushes -= 1;
        if front.flushes == 0 {
            self.finish_epochs(peer);
        }
    }

    /// The oldest epoch did not get stable on that volume.
    fn epoch_unstable(&mut self, peer: PeerIx, vol: VolIx) {
        let front = self.peers[peer].recv.epochs.front_mut();
        front.expect("one epoch is always open").unstable |= 1 << vol.min(63);
    }

    /// The activity log has no free extent and the Primary may be waiting for exactly these
    /// writes: flush what is written and confirm it before its epoch ends (metadata §6).
    fn confirm_if_starving(&mut self, peer: PeerIx, vol: VolIx) {
        let starving = self.vols[vol].backing.as_ref().is_some_and(|b| b.al.is_starving());
        let recv = &mut self.peers[peer].recv;
        if starving && recv.draining {
            return self.release_executed(peer, vol);
        }
        if !starving || recv.confirming.is_some() {
            return;
        }
        let first_epoch = recv.first_epoch;
        let run = recv
            .unacked
            .iter()
            .skip_while(|u| u.confirmed || u.epoch < first_epoch)
            .take_while(|u| u.epoch == first_epoch && u.ok == Some(true))
            .count() as u64;
        // Once a closed epoch is executed, its own barrier ack is on the way; but not before, and
        // it may be its own writes that hold each other's extents.
        if run == 0 || (recv.epochs[0].barrier.is_some() && recv.epochs[0].open == 0) {
            return;
        }
        let vols = recv.epochs[0].vols;
        recv.confirming = Some((run, 0));
        if self.flush_vols(peer, vols, Op::ConfirmFlush) == 0 {
            self.send_confirmation(peer);
        }
    }

    /// A flush before a confirmation has ended.
    pub(crate) fn confirm_flushed(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        result: Result<(), DiskError>,
    ) {
        if result.is_err() {
            self.disk_failed(vol, None, "a flush failed");
            self.peers[peer].recv.confirming = None;
        } else if let Some((_, outstanding)) = &mut self.peers[peer].recv.confirming {
            *outstanding -= 1;
            if *outstanding == 0 {
                self.send_confirmation(peer);
                // What was executed during the flush: nothing else may ever happen here.
                for vol in 0..self.vols.len() {
                    self.confirm_if_starving(peer, vol);
                }
            }
        }
        if self.peers[peer].recv.draining {
            self.drained_if_idle(peer);
        }
    }

    fn send_confirmation(&mut self, peer: PeerIx) {
        let recv = &mut self.peers[peer].recv;
        let Some((run, _)) = recv.confirming.take() else { return };
        let first_epoch = recv.first_epoch;
        // The epoch may have been closed and confirmed as a whole meanwhile.
        let mut ids = Vec::new();
        for u in recv.unacked.iter_mut().skip_while(|u| u.confirmed || u.epoch < first_epoch) {
            if ids.len() as u64 == run || u.epoch != first_epoch || u.ok != Some(true) {
                break;
            }
            u.confirmed = true;
            ids.push(u.block_id);
        }
        let (Some(oldest), Some(youngest)) = (ids.first().copied(), ids.last().copied()) else {
            return;
        };
        let set_size = u32::try_from(ids.len()).expect("an epoch holds at most 20000 writes");
        recv.epochs[0].confirmed += set_size;
        self.send(peer, Packet::ConfirmStable(ConfirmStable { oldest, youngest, set_size }));
    }

    /// The link to the peer is gone: execute what was received, then go on with the loss.
    pub(crate) fn drain_receiver(&mut self, peer: PeerIx) {
        let recv = &mut self.peers[peer].recv;
        recv.draining = true;
        let (_, epoch) = recv.open_epoch();
        if epoch.writes > 0 {
            epoch.barrier = Some(0);
            recv.epochs.push_back(RxEpoch::default());
        }
        self.finish_epochs(peer);
        for vol in 0..self.vols.len() {
            self.confirm_if_starving(peer, vol);
        }
    }

    /// The link is gone, and what was received last waits for extents that executed writes hold.
    /// No peer-ack will come for those: they become bits now, not when all is executed.
    fn release_executed(&mut self, peer: PeerIx, vol: VolIx) {
        let mask = self.me.mask().with(self.peers[peer].node);
        let mut index = 0;
        while let Some(entry) = self.peers[peer].recv.unacked.get_mut(index) {
            index += 1;
            if entry.vol == vol && entry.al && entry.ok.is_some() {
                let executed = *entry;
                entry.al = false;
                self.settle_unacked(peer, &executed, mask, false);
            }
        }
    }

    fn drained_if_idle(&mut self, peer: PeerIx) {
        let recv = &self.peers[peer].recv;
        if recv.draining && recv.is_idle() {
            self.peers[peer].recv.draining = false;
            self.unacked_to_bits(peer);
            self.receiver_drained(peer);
        }
    }

    /// The disk is given up: nothing holds its activity log any more.
    pub(crate) fn forget_al(&mut self, vol: VolIx) {
        for peer in &mut self.peers {
            for entry in peer.recv.unacked.iter_mut().filter(|u| u.vol == vol) {
                entry.al = false;
                entry.former |= entry.ok.is_some();
            }
        }
    }

    /// Sectors received from peers and not executed yet, for statistics.
    pub(crate) fn peer_writes_pending(&self, peer: PeerIx, vol: VolIx) -> u64 {
        let writes = self.peer_writes.iter().filter(|(_, w)| w.peer == peer && w.vol == vol);
        writes.map(|_| 1).sum()
    }

    /// P_DAGTAG: the position before the peer's next write.
    pub(crate) fn set_dagtag(&mut self, peer: PeerIx, dagtag: Dagtag) -> Result<(), &'static str> {
        check_position(dagtag)?;
        let recv = &mut self.peers[peer].recv;
        recv.last_dagtag = dagtag;
        recv.is_placed = true;
        self.serve_dagtags(peer);
        Ok(())
    }

    /// P_OUT_OF_SYNC: the sender has newer data there than this node. So may have all others, and
    /// whoever this disk is brought up to date from has to be asked for it.
    pub(crate) fn peer_out_of_sync(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        range: SectorRange,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("an out-of-sync range names an unknown volume")?;
        if !self.in_volume(vol, range) || range.len == Sectors(0) {
            return Err("an out-of-sync range lies outside the volume");
        }
        let (role, theirs) = (self.st.peers[peer].role, self.st.peers[peer].devs[vol].disk);
        // A Primary without disk speaks for all that have its writes.
        let client = role == Role::Primary && theirs == DiskState::Diskless;
        let behind = self.st.vols[vol].disk < DiskState::UpToDate || client;
        let ahead: Vec<PeerIx> = (0..self.peers.len()).filter(|p| *p == peer || behind).collect();
        // What is told is newer than what was received before.
        let nodes = ahead.iter().map(|p| self.peers[*p].node).collect();
        self.outrun_unacked(vol, range, nodes);
        for p in ahead {
            let node = self.peers[p].node;
            if let Some(backing) = self.vols[vol].backing.as_mut() {
                if let Some(slot) = backing.slot_of(node) {
                    backing.set_range(slot, range);
                }
            }
            self.resync_more(p, vol);
        }
        if self.st.is_target(vol) {
            self.note_told(vol, range);
        }
        self.resync_overtaken(peer, vol, range);
        let good = self.st.vols[vol].disk > DiskState::Outdated;
        let current = theirs == DiskState::UpToDate || client;
        if good && current && self.repl(peer, vol) == ReplState::Established {
            // It became current while this was on its way. It is not; it catches up.
            self.change_hard(|st| st.vols[vol].disk = DiskState::Outdated);
        }
        self.vols[vol].told_behind |= current && self.st.vols[vol].disk < DiskState::UpToDate;
        Ok(())
    }
}

/// A position in the write stream of a node, as a peer names it.
///
/// # Errors
/// Nobody writes that much: what follows could not be counted.
pub(crate) const fn check_position(dagtag: Dagtag) -> Result<(), &'static str> {
    match dagtag.0 >> 63 {
        0 => Ok(()),
        _ => Err("it names a position in a write stream that nobody gets to"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Output;
    use crate::resource::Link;
    use crate::testing::attached;
    use codec::wire::PeerDagtag;
    use vocab::ConnState;
    use vocab::options::ResourceOptions;

    #[test]
    fn a_position_that_nobody_gets_to_costs_the_connection() {
        let position = |at: u64| Packet::Dagtag(Dagtag(at));
        let told = |at: u64| Packet::PeerDagtag(PeerDagtag { dagtag: Dagtag(at), node_id: 1 });
        for (packet, breaks) in [
            (position(1 << 62), false),
            (position(1 << 63), true),
            (position(u64::MAX), true),
            (told(u64::MAX), true),
        ] {
            let mut resource = attached(ResourceOptions::default(), |_| {});
            resource.peers[0].link = Link::Up;
            resource.st.peers[0].conn = ConnState::Connected;
            resource.packet(resource.peers[0].node, packet, None);
            let said = std::iter::from_fn(|| resource.poll());
            let rule = |o: &Output| matches!(o, Output::Log(_, text) if text.contains("position"));
            assert_eq!(said.into_iter().any(|o| rule(&o)), breaks);
            assert_eq!(resource.st.is_connected(0), !breaks);
        }
    }
}
