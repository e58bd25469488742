//! The target's side of a resync: the pull loop, and the writes of what comes (semantics §9.3).

use std::time::Duration;

use codec::wire::{BlockAck, BlockId, DagtagDep, Data, Packet, RsReq, UuidFlags, feature};
use serde::{Deserialize, Serialize};
use vocab::{
    ConnState, Instant, NodeId, NodeMask, ReplState, Role, SectorRange, Sectors, VolumeNr,
};

use crate::handshake::AfterLoss;
use crate::intervals::Slot;
use crate::io::{BufId, DiskError, DiskOp, LogLevel, Output};
use crate::rate::{Controller, Done, DrbdPace, Room, TURN, Turn};
use crate::resource::{IdKind, Op, Owner, Resource, Work};
use crate::state::{PeerIx, PeerState, VolIx};

use super::{BIT_SECTORS, MAX_REQUEST_BITS};

/// What could not be asked for, or was refused, is tried again after that.
const RETRY: Duration = Duration::from_millis(20);

/// So many ranges are remembered until their bits are written.
const MAX_TOLD: usize = 1024;

/// How a block is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    Data,
    /// "All zero" is an answer.
    Thin,
    /// "Equal" is one.
    Digest,
}

/// A request of the target.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RsRequest {
    pub(super) range: SectorRange,
    pub(super) key: Slot,
    pub(super) since: Instant,
    #[serde(skip)]
    buf: Option<BufId>,
    /// The answer arrived.
    pub(super) answered: bool,
    /// A Primary has said meanwhile that this node misses a write to that range, and the source
    /// may have read it before: it is asked for again.
    pub(super) outdated: bool,
    /// It is asked for by the digest of what is here.
    pub(super) by_digest: bool,
    /// What the request will depend on, while that digest is computed.
    pub(super) unsent: Option<DagtagDep>,
}

impl super::Resync {
    /// Blocks that were received are not on disk.
    pub(crate) fn holds_data(&self) -> bool {
        self.requests.values().any(|request| request.buf.is_some())
    }
}

/// What a request comes to that brings no data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The block may be asked for again.
    Later,
    /// It may once the source is not Ahead any more.
    Ahead,
    /// It can not be read.
    Failed,
}

/// A resync write whose resync ended before the disk did.
#[derive(Debug)]
pub(crate) struct LateWrite {
    pub peer: PeerIx,
    vol: VolIx,
    id: u64,
    key: Slot,
    buf: Option<BufId>,
}

impl Resource {
    pub(crate) fn resync_may_write(&mut self, peer: PeerIx, vol: VolIx) {
        let now = self.now;
        if matches!(self.repl(peer, vol), ReplState::SyncTarget | ReplState::PausedSyncT) {
            let resync = self.resync_mut(peer, vol);
            resync.may_write = true;
            resync.next_turn = Some(now);
            self.resync_turn(peer, vol);
        }
    }

    /// Next time a resync wants a turn.
    pub(crate) fn resync_deadline(&self, peer: PeerIx, vol: VolIx) -> Option<Instant> {
        let resync = self.peers[peer].devs[vol].resync.as_ref()?;
        let runs = self.repl(peer, vol) == ReplState::SyncTarget && resync.may_write;
        let rests = resync.finishing || resync.halted;
        if runs && !rests { resync.next_turn } else { None }
    }

    /// Asks for as much as is right now.
    pub(crate) fn resync_turn(&mut self, peer: PeerIx, vol: VolIx) {
        if self.repl(peer, vol) != ReplState::SyncTarget {
            return;
        }
        let now = self.now;
        let dev = &self.peers[peer].devs[vol];
        let Some(resync) = dev.resync.as_ref() else { return };
        if !resync.may_write || resync.finishing || resync.halted {
            return;
        }
        if resync.next_turn.is_none_or(|at| at > now) {
            return;
        }
        match DrbdPace::if_set(&dev.opts) {
            Some(pace) => self.controlled_turn(peer, vol, &pace),
            None => self.fill_window(peer, vol),
        }
        self.finish_if_done(peer, vol);
    }

    /// By DRBD's options.
    fn controlled_turn(&mut self, peer: PeerIx, vol: VolIx, pace: &DrbdPace) {
        let now = self.now;
        let max_buffers = u64::from(self.peers[peer].net.max_buffers);
        let resync = self.resync_mut(peer, vol);
        let turn = Turn {
            elapsed: now.since(resync.last_turn),
            replied: Sectors(std::mem::take(&mut resync.replied)),
            in_flight: Sectors(resync.in_flight),
            max_buffers_pages: max_buffers,
            bitmap_block: Sectors(BIT_SECTORS),
        };
        let budget = resync.controller.turn(pace, &turn);
        resync.last_turn = now;
        let requested = self.request_blocks(peer, vol, budget.0, MAX_REQUEST_BITS);
        let resync = self.resync_mut(peer, vol);
        resync.next_turn = Some(now + Controller::next_turn(Sectors(requested), budget).min(TURN));
    }

    /// Without them.
    fn fill_window(&mut self, peer: PeerIx, vol: VolIx) {
        let (now, next) = (self.now, self.next_resync_request);
        let users_total = self.users_total(vol);
        // What is resynced as discards is asked for as a whole.
        let thin_bits = self.thin_bits(vol).filter(|_| !self.asks_by_digest(peer, vol));
        let unit = Sectors(thin_bits.unwrap_or(0) * BIT_SECTORS);
        let p = &mut self.peers[peer];
        let runs =
            |st: &PeerState| st.devs.iter().filter(|dev| dev.repl == ReplState::SyncTarget).count();
        let sharers = runs(&self.st.peers[peer]) as u64;
        let dev = &mut p.devs[vol];
        let Some(resync) = dev.resync.as_mut() else { return };
        let room = Room {
            in_flight: Sectors(resync.in_flight),
            max_buffers_pages: u64::from(p.net.max_buffers),
            sharers,
            unit,
            users_total,
            c_min_rate: dev.opts.c_min_rate,
        };
        let grant = resync.window.grant(now, next, &room);
        // DRBD's controller begins here if it is wanted from now on.
        (resync.last_turn, resync.replied) = (now, 0);
        resync.next_turn = Some(grant.again);
        if grant.all.0 == 0 {
            return;
        }
        let all = grant.all.0;
        let requested = self.request_blocks(peer, vol, all, grant.each.0 / BIT_SECTORS);
        let resync = self.resync_mut(peer, vol);
        resync.stuck = requested < all;
        if resync.stuck {
            resync.next_turn = Some(now + RETRY);
        }
    }

    /// What the disk of a volume has transferred for users.
    pub(super) fn users_total(&self, vol: VolIx) -> Sectors {
        let stats = &self.vols[vol].stats;
        Sectors(stats.read_sectors + stats.written_sectors)
    }

    /// How many bits a request has that may be answered with "all zero"; none if the option
    /// `rs-discard-granularity` is not set. A source says that of a whole request only.
    fn thin_bits(&self, vol: VolIx) -> Option<u64> {
        let granularity = self.vols[vol].disk_opts.rs_discard_granularity.0 / vocab::SECTOR_SIZE;
        let bits = (granularity / BIT_SECTORS).clamp(1, MAX_REQUEST_BITS);
        (granularity != 0).then(|| 1 << bits.ilog2())
    }

    /// Sends requests for up to `budget` sectors, each for `most` bits at most, and says how many
    /// sectors were requested. Where zeroes are to take no space no request is larger than what is
    /// looked at as one, and the last one is not cut to the budget: its parts would be written.
    fn request_blocks(&mut self, peer: PeerIx, vol: VolIx, budget: u64, most: u64) -> u64 {
        let node = self.peers[peer].node;
        let most = most.clamp(1, MAX_REQUEST_BITS);
        // By its digest nothing is answered with "all zero".
        let by_digest = self.asks_by_digest(peer, vol);
        let thin_bits = self.thin_bits(vol).filter(|bits| *bits <= most && !by_digest);
        let most = thin_bits.unwrap_or(most);
        let mut requested = 0;
        let mut wrapped = false;
        while requested < budget {
            let Some(backing) = self.vols[vol].backing.as_ref() else { break };
            let Some(slot) = backing.slot_of(node) else { break };
            let cursor = self.resync_mut(peer, vol).cursor;
            let backing = self.vols[vol].backing.as_ref().expect("looked at above");
            let Some((start, run)) = backing.bitmap.next_run(slot, cursor, most) else {
                // Blocks may have become out of sync, or were skipped, behind the cursor.
                if wrapped || cursor == 0 {
                    break;
                }
                wrapped = true;
                self.resync_mut(peer, vol).cursor = 0;
                continue;
            };
            let aligned = if start == 0 { most } else { 1 << start.trailing_zeros().min(8) };
            let left = (budget - requested).div_ceil(BIT_SECTORS);
            let mut len = run.min(aligned).min(left.max(thin_bits.unwrap_or(1)));
            if len > 1 {
                len = 1 << len.ilog2();
            }
            let range = backing.bitmap.sectors_of(start..start + len);
            let told = backing.told.iter().any(|t| t.overlaps(range));
            self.resync_mut(peer, vol).cursor = start + len;
            if range.len.0 == 0 || told || self.fetch_waits(peer, vol, range) {
                continue;
            }
            let Ok(dep) = self.dagtag_dependency() else { break };
            let thin = thin_bits.is_some_and(|bits| range.len.0 == bits * BIT_SECTORS);
            let ask = match thin {
                _ if by_digest => Ask::Digest,
                true => Ask::Thin,
                false => Ask::Data,
            };
            self.request_block(peer, vol, range, dep, ask);
            requested += range.len.0;
        }
        requested
    }

    /// A block is not asked for while something else is done to it.
    ///
    /// A write of a user that only waits to be reported is no such thing once the source has it, and
    /// what is fetched contains it. That may wait for quorum, which may wait for the end of this resync.
    fn fetch_waits(&self, peer: PeerIx, vol: VolIx, range: SectorRange) -> bool {
        let conflicts = |owner| match owner {
            Owner::Verify(_) => false,
            Owner::Local(seq) => !self.is_only_unreported(seq, peer),
            _ => true,
        };
        // A write that waits for its epoch would put older data over what is fetched now.
        self.vols[vol].conflict(range, conflicts).is_some()
            || self.has_waiting_write(vol, range)
            || self.is_plain(peer) && self.may_be_undone(peer, vol, range)
    }

    /// The bits of a range that this target was told to miss are written before it asks for the
    /// blocks. The source forgets them once they have arrived; if this node then lost its power, and
    /// with it what was not flushed, nobody would know.
    pub(crate) fn note_told(&mut self, vol: VolIx, range: SectorRange) {
        let whole = SectorRange::new(0, self.vols[vol].size.0);
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        match backing.told.len() < MAX_TOLD {
            true => backing.told.push_back(range),
            false => {
                // Everything waits, then.
                backing.told.truncate(MAX_TOLD - 1);
                backing.told_writing = backing.told_writing.min(MAX_TOLD - 1);
                backing.told.push_back(whole);
            }
        }
        if backing.told_writing == 0 {
            self.write_told(vol);
        }
    }

    fn write_told(&mut self, vol: VolIx) {
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        backing.told_writing = backing.told.len();
        if backing.told_writing > 0 {
            self.persist_with_bitmap(vol, Work::ToldWritten(vol));
        }
    }

    /// These bits are on disk.
    pub(crate) fn told_written(&mut self, vol: VolIx) {
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        backing.told.drain(..backing.told_writing);
        self.write_told(vol);
        for peer in 0..self.peers.len() {
            if let Some(resync) = self.peers[peer].devs[vol].resync.as_mut() {
                resync.next_turn = Some(self.now);
            }
        }
    }

    pub(super) fn request_block(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        range: SectorRange,
        dep: DagtagDep,
        ask: Ask,
    ) {
        let nr = self.vols[vol].nr;
        self.verify_sees_write(vol, range);
        let key = self.vols[vol].claim(range, Owner::ResyncTarget(peer));
        let (id, since) = (self.next_resync_request, self.now);
        self.next_resync_request += 1;
        let resync = self.resync_mut(peer, vol);
        resync.in_flight += range.len.0;
        resync.requests.insert(
            id,
            RsRequest {
                range,
                key,
                since,
                buf: None,
                answered: false,
                outdated: false,
                by_digest: ask == Ask::Digest,
                unsent: (ask == Ask::Digest).then_some(dep),
            },
        );
        let block_id = Resource::block_id(IdKind::Resync, id);
        let req = RsReq { range, block_id, dep };
        match ask {
            Ask::Data => self.send(peer, Packet::RsDagtagReq(nr, req)),
            Ask::Thin => self.send(peer, Packet::RsThinDagtagReq(nr, req)),
            Ask::Digest => self.compute_digest(peer, vol, id, range),
        }
    }

    /// Nothing was to be fetched, or only zeroes came: one block is fetched all the same. What
    /// the source has said on the stream of its data before, the ranges of writes that this node
    /// missed among it, has arrived with that block.
    pub(super) fn hear_source(&mut self, peer: PeerIx, vol: VolIx) {
        let range = SectorRange::new(0, BIT_SECTORS.min(self.vols[vol].size.0));
        let busy = self.fetch_waits(peer, vol, range);
        match self.dagtag_dependency() {
            Ok(dep) if !busy => self.request_block(peer, vol, range, dep, Ask::Data),
            _ => {
                let at = self.now + RETRY;
                self.resync_mut(peer, vol).next_turn = Some(at);
            }
        }
    }

    /// The Primary whose stream an answer must have caught up with (wire §7.4).
    pub(super) fn dagtag_dependency(&self) -> Result<DagtagDep, ()> {
        if self.st.role == Role::Primary {
            return Ok(DagtagDep { node_id: u32::from(self.me.get()), dagtag: self.dagtag });
        }
        let mut dep = DagtagDep::default();
        for p in self.st.connected() {
            if self.st.peers[p].role == Role::Primary {
                let recv = &self.peers[p].recv;
                let tells = self.peers[p].agreed_features & feature::BITS_OF_EQUALS != 0;
                if dep != DagtagDep::default() || tells && !recv.is_placed {
                    return Err(());
                }
                dep.node_id = u32::from(self.peers[p].node.get());
                dep.dagtag = self.peers[p].recv.last_dagtag;
            }
        }
        Ok(dep)
    }

    /// The request that an answer belongs to. An answer may cross the end of its resync, and then
    /// belongs to none.
    pub(super) fn request_of(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        id: BlockId,
        range: SectorRange,
    ) -> Result<Option<u64>, &'static str> {
        const WRONG: &str = "an answer matches no resync request";
        let id = Resource::block_key(id, IdKind::Resync).ok_or(WRONG)?;
        let is_target = self.repl(peer, vol).is_target();
        let Some(resync) = self.peers[peer].devs[vol].resync.as_mut().filter(|_| is_target) else {
            return Ok(None);
        };
        if id < resync.first_id {
            return Ok(None);
        }
        let request = resync.requests.get_mut(&id).ok_or(WRONG)?;
        if request.range != range || request.answered || request.unsent.is_some() {
            return Err(WRONG);
        }
        request.answered = true;
        resync.replied += range.len.0;
        Ok(Some(id))
    }

    /// P_RS_DATA_REPLY.
    pub(crate) fn resync_data(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        data: Data,
        buf: BufId,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr);
        let id = match vol {
            Some(vol) => {
                let id = self.request_of(peer, vol, data.block_id, data.range);
                id.map(|id| id.map(|id| (vol, id)))
            }
            None => Err("resync data for an unknown volume"),
        };
        let Ok(Some((vol, id))) = id else {
            self.free(Some(buf));
            return id.map(|_| ());
        };
        self.peers[peer].devs[vol].received_sectors += data.range.len.0;
        let resync = self.resync_mut(peer, vol);
        resync.heard |= id >= resync.hears_from;
        resync.requests.get_mut(&id).expect("found above").buf = Some(buf);
        let io = DiskOp::Write { range: data.range, buf, fua: false };
        self.write_resync_block(peer, vol, id, data.range, io);
        Ok(())
    }

    /// P_RS_DEALLOCATED_ID: the block reads as zeroes at the source.
    pub(crate) fn resync_deallocated(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        ack: BlockAck,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("resync data for an unknown volume")?;
        let Some(id) = self.request_of(peer, vol, ack.block_id, ack.range)? else { return Ok(()) };
        let io = DiskOp::Zeroes { range: ack.range, unmap: true };
        self.write_resync_block(peer, vol, id, ack.range, io);
        Ok(())
    }

    pub(super) fn write_resync_block(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        id: u64,
        range: SectorRange,
        io: DiskOp,
    ) {
        if !self.disk_in_use(vol) {
            return self.resync_block_ended(peer, vol, id, false);
        }
        self.leave_outrun_primaries(peer, vol, range);
        let resync = self.peers[peer].devs[vol].resync.as_mut();
        let Some(request) = resync.and_then(|r| r.requests.get_mut(&id)) else {
            // The resync has ended with that Primary, and its buffers are free.
            return;
        };
        request.key = self.vols[vol].claim_as(request.key, Owner::ResyncWrite(peer));
        // Until it is known who else has this version, everyone else may lack it (semantics §9.3).
        let source = self.peers[peer].node;
        self.outrun_unacked(vol, range, NodeMask::ALL.without(source));
        let nr = self.vols[vol].nr;
        let backing = self.vols[vol].backing.as_mut().expect("the disk is in use");
        let own = backing.slot_of(source);
        for slot in 0..backing.bitmap.slots() {
            if Some(slot) != own {
                backing.set_range(slot, range);
            }
        }
        for other in 0..self.peers.len() {
            if other != peer && self.repl(other, vol).is_source() {
                self.send(other, Packet::OutOfSync(nr, range));
            }
        }
        let op = self.op(Op::ResyncWrite(peer, vol, id));
        self.out.push_back(Output::Disk { volume: nr, op, io });
    }

    /// A block from a source that does not hear a Primary may bring back what was there before that
    /// wrote to it. The Primary has the word of this disk for what it wrote, and would report it by
    /// that once the disk is current: it hears that it is to begin anew.
    fn leave_outrun_primaries(&mut self, source: PeerIx, vol: VolIx, range: SectorRange) {
        let outrun = |p: &PeerIx| {
            let st = &self.st.peers[*p];
            let node = self.peers[*p].node;
            let recv = &self.peers[*p].recv;
            *p != source
                && self.st.is_connected(*p)
                && st.role == Role::Primary
                && !self.hears_primary(source, vol, node)
                && recv.has_taken(vol, range, self.reported_position(source, node))
        };
        let outrun: Vec<PeerIx> = (0..self.peers.len()).filter(outrun).collect();
        for peer in outrun {
            let text = format!(
                "{}/{}: {} may lack what {} has written here; connecting anew",
                self.name, self.vols[vol].nr, self.peers[source].name, self.peers[peer].name
            );
            self.log(LogLevel::Info, text);
            self.lose(peer, ConnState::NetworkFailure, AfterLoss::Reconnect);
        }
    }

    /// The peer has said last that it hears this Primary: what it answers with includes what the
    /// Primary wrote before it was asked.
    fn hears_primary(&self, peer: PeerIx, vol: VolIx, primary: NodeId) -> bool {
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        uuids.is_some_and(|u| !u.flags.has(UuidFlags::STABLE) && u.node_mask.contains(primary))
    }

    /// The disk has a resync block, or failed to take it.
    pub(crate) fn resync_written(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        id: u64,
        result: Result<(), DiskError>,
    ) {
        if let Err(error) = result {
            if error != DiskError::Unsupported {
                self.disk_failed(vol, None, "a resync write failed");
            }
        }
        self.resync_block_ended(peer, vol, id, result.is_ok());
    }

    pub(super) fn resync_block_ended(&mut self, peer: PeerIx, vol: VolIx, id: u64, ok: bool) {
        let nr = self.vols[vol].nr;
        let node = self.peers[peer].node;
        let (now, next, users_total) = (self.now, self.next_resync_request, self.users_total(vol));
        let Some(resync) = self.peers[peer].devs[vol].resync.as_mut() else { return };
        let Some(request) = resync.requests.remove(&id) else { return };
        let (len, took) = (request.range.len, now.since(request.since));
        let in_flight = Sectors(resync.in_flight);
        resync.in_flight -= len.0;
        resync.window.done(now, &Done { id, next, len, took, in_flight, users_total });
        if !ok {
            resync.failed += request.range.len.0;
        }
        let range = request.range;
        self.free(request.buf);
        if ok && !request.outdated {
            if let Some(backing) = self.vols[vol].backing.as_mut() {
                if let Some(slot) = backing.slot_of(node) {
                    backing.clear_range(slot, range);
                }
            }
            self.write_bitmap_lazily(vol);
        }
        let block_id = Resource::block_id(IdKind::Resync, id);
        let ack = self.block_ack(peer, vol, range, block_id);
        let packet = if ok { Packet::RsWriteAck(nr, ack) } else { Packet::RsNegAck(nr, ack) };
        self.send(peer, packet);
        self.end_interval(vol, request.key);
        self.resync_progress(peer, vol);
    }

    /// P_RS_CANCEL, P_RS_CANCEL_AHEAD or P_NEG_RS_DREPLY: no data for a request, now or at all.
    pub(crate) fn resync_refused(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        ack: BlockAck,
        refused: Refused,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("an answer names an unknown volume")?;
        if Resource::block_key(ack.block_id, IdKind::Verify).is_some() {
            return self.verify_skipped(peer, vol, ack);
        }
        let Some(id) = self.request_of(peer, vol, ack.block_id, ack.range)? else { return Ok(()) };
        let (now, next) = (self.now, self.next_resync_request);
        let resync = self.resync_mut(peer, vol);
        let request = resync.requests.remove(&id).expect("found above");
        resync.in_flight -= request.range.len.0;
        resync.window.refused(next);
        if refused == Refused::Failed {
            resync.failed += request.range.len.0;
        }
        // This may come late, on a stream of its own.
        resync.halted |= refused == Refused::Ahead && id >= resync.resumed_at;
        resync.next_turn = Some(now + RETRY);
        self.end_interval(vol, request.key);
        Ok(())
    }

    /// Something moved: the end may be reached, or there is room to ask for more.
    pub(crate) fn resync_progress(&mut self, peer: PeerIx, vol: VolIx) {
        if self.repl(peer, vol) != ReplState::SyncTarget {
            return;
        }
        let now = self.now;
        let dev = &mut self.peers[peer].devs[vol];
        let by_answers = DrbdPace::if_set(&dev.opts).is_none();
        if let Some(resync) = dev.resync.as_mut() {
            // An idle pipe does not wait for the next turn, and a window is filled with each answer.
            let due = resync.requests.is_empty() || by_answers && !resync.stuck;
            if due && resync.may_write && !resync.finishing {
                resync.next_turn = Some(now);
                self.work.push_back(Work::ResyncMayWrite(peer, vol));
            }
        }
        self.finish_if_done(peer, vol);
    }

    /// Bits appeared: a running resync comes back to them.
    pub(crate) fn resync_more(&mut self, peer: PeerIx, vol: VolIx) {
        let now = self.now;
        if self.repl(peer, vol) == ReplState::SyncTarget {
            if let Some(resync) = self.peers[peer].devs[vol].resync.as_mut() {
                resync.finishing = false;
                resync.next_turn.get_or_insert(now);
            }
        }
    }

    /// `peer` has said that this node misses a write to that range: what others were asked for
    /// before may lack it, too.
    pub(crate) fn resync_overtaken(&mut self, peer: PeerIx, vol: VolIx, range: SectorRange) {
        for source in 0..self.peers.len() {
            if let Some(resync) = self.peers[source].devs[vol].resync.as_mut() {
                for request in resync.requests.values_mut() {
                    // That a block is equal comes on another stream, on which it may have been
                    // overtaken by what the source has said later.
                    let in_order = source == peer && !request.by_digest;
                    request.outdated |= !in_order && request.range.overlaps(range);
                }
            }
        }
    }

    /// Nobody waits for what a request brings any more.
    pub(super) fn drop_request(&mut self, peer: PeerIx, vol: VolIx, id: u64, request: &RsRequest) {
        let wanted = Op::ResyncWrite(peer, vol, id);
        if request.answered && self.ops.iter().any(|(_, running)| running.op == wanted) {
            // The disk still works on it; its buffer and range live until then.
            let late = LateWrite { peer, vol, id, key: request.key, buf: request.buf };
            self.late_writes.push(late);
        } else {
            self.free(request.buf);
            self.end_interval(vol, request.key);
        }
    }

    /// The disk was given up: nothing that it still does is in anybody's way. The buffer of such a
    /// write remains the disk's.
    pub(crate) fn abandon_late_write(&mut self, op: Op) -> Option<BufId> {
        let same = |l: &LateWrite| Op::ResyncWrite(l.peer, l.vol, l.id) == op;
        let index = self.late_writes.iter().position(same)?;
        let late = self.late_writes.swap_remove(index);
        self.end_interval(late.vol, late.key);
        late.buf
    }

    /// A resync write whose resync is over has ended: its range was locked until now.
    pub(crate) fn late_write_done(&mut self, peer: PeerIx, vol: VolIx, id: u64) -> bool {
        let found = |l: &LateWrite| l.peer == peer && l.vol == vol && l.id == id;
        let Some(index) = self.late_writes.iter().position(found) else { return false };
        let late = self.late_writes.swap_remove(index);
        self.free(late.buf);
        self.end_interval(vol, late.key);
        true
    }
}

#[cfg(test)]
impl Resource {
    /// Asks peer 0 for a block of volume 0, and gives the number of the request.
    pub(crate) fn ask_of_test(&mut self, range: SectorRange) -> u64 {
        let id = self.next_resync_request;
        self.request_block(0, 0, range, DagtagDep::default(), Ask::Data);
        id
    }
}
