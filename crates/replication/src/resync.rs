//! Resync: exchange of bitmaps, the pull loop of the target, the answers of the source, and the
//! end (semantics §9, wire §7).
//!
//! The target asks, the source answers; every request carries the position in the Primary's
//! write stream that the answer must include, so that an answer never brings back older data.
//! A range under resync is locked at both ends against overlapping writes.

use std::collections::BTreeMap;
use std::time::Duration;

use codec::wire::{
    Agreed, BitmapReceiver, BitmapSender, BitmapSource, BitmapWords, BlockAck, BlockId,
    CompressedBitmap, DagtagDep, Data, DataFlags, Packet, RsReq, UuidFlags, bitmap::Progress,
    feature,
};
use vocab::{
    Bytes, Dagtag, DiskState, GenUuid, Instant, MAX_NODES, NodeId, NodeMask, ReplState, Role,
    SectorRange, Sectors, VolumeNr,
};

use crate::bitmap::Bitmap;
use crate::compare::Decided;
use crate::generation::{PeerGenerations, is_generation};
use crate::intervals::Slot;
use crate::io::{BufId, DiskData, DiskError, DiskOp, LogLevel, Output};
use crate::rate::{Controller, TURN, Turn};
use crate::request::WaitingOn;
use crate::resource::{IdKind, Op, Owner, Resource, Work};
use crate::state::{PeerIx, State, VolIx};

/// Largest single request (wire §7.3).
const MAX_REQUEST_BITS: u64 = 256;
/// Sectors of one bit on the wire.
const BIT_SECTORS: u64 = 8;

/// State of one resync, or of the bitmap exchange before it.
#[derive(Debug)]
pub(crate) struct Resync {
    /// Receives the peer's bitmap.
    receiver: Option<BitmapReceiver>,
    /// The peer's bitmap is complete.
    received: bool,
    /// This node's bitmap is sent.
    sent: bool,
    /// Next bit to look at.
    cursor: u64,
    /// Requests without their data on disk, by number.
    requests: BTreeMap<u64, RsRequest>,
    next_id: u64,
    in_flight: u64,
    replied: u64,
    controller: Controller,
    last_turn: Instant,
    next_turn: Option<Instant>,
    /// The metadata says Inconsistent.
    may_write: bool,
    /// The generation this disk had when the resync began.
    start: GenUuid,
    /// Sectors out of sync when it began.
    pub total: u64,
    pub failed: u64,
    pub since: Instant,
    finishing: bool,
    /// The nodes whose answer the end waits for.
    asked: NodeMask,
    /// The source has sent data in this resync, and thereby everything that it had to say before.
    heard: bool,
    /// Only the answer to this request or a later one counts for that.
    hears_from: u64,
}

/// A request of the target.
#[derive(Debug)]
struct RsRequest {
    range: SectorRange,
    key: Slot,
    buf: Option<BufId>,
    /// The answer arrived.
    answered: bool,
    /// A Primary has said meanwhile that this node misses a write to that range, and the source
    /// may have read it before: it is asked for again.
    outdated: bool,
}

/// A request of a peer that this node answers: resync or verify.
#[derive(Debug)]
pub(crate) struct Serve {
    pub peer: PeerIx,
    pub vol: VolIx,
    pub range: SectorRange,
    block_id: BlockId,
    kind: ServeKind,
    dep: DagtagDep,
    interval: Option<Slot>,
    reading: bool,
    replied: bool,
    /// The connection is gone, or the answer is not wanted any more.
    dead: bool,
}

/// What the peer wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServeKind {
    Data,
    Thin,
    Verify,
}

/// One slot of the bitmap as the wire sees it.
struct SlotBits<'a> {
    bitmap: &'a Bitmap,
    slot: usize,
}

impl BitmapSource for SlotBits<'_> {
    fn run(&self, from: u64) -> (bool, u64) {
        let end = self.bitmap.bits();
        if from >= end {
            return (false, u64::MAX);
        }
        match self.bitmap.next_set(self.slot, from) {
            Some(at) if at == from => {
                let clear = self.bitmap.next_clear(self.slot, from).unwrap_or(end);
                (true, clear - from)
            }
            next => (false, next.unwrap_or(end) - from),
        }
    }

    fn word(&self, index: u64) -> u64 {
        self.bitmap.word(self.slot, index)
    }
}

impl Resync {
    fn new(now: Instant) -> Resync {
        Resync {
            receiver: None,
            received: false,
            sent: false,
            cursor: 0,
            requests: BTreeMap::new(),
            next_id: 1,
            in_flight: 0,
            replied: 0,
            controller: Controller::new(),
            last_turn: now,
            next_turn: None,
            may_write: false,
            start: GenUuid::NONE,
            total: 0,
            failed: 0,
            since: now,
            finishing: false,
            asked: NodeMask::EMPTY,
            heard: false,
            hears_from: 0,
        }
    }
}

impl Resource {
    fn agreed(&self, peer: PeerIx) -> Agreed {
        Agreed::new(self.peers[peer].agreed_version, self.peers[peer].agreed_features)
    }

    fn resync_mut(&mut self, peer: PeerIx, vol: VolIx) -> &mut Resync {
        let now = self.now;
        self.peers[peer].devs[vol].resync.get_or_insert_with(|| Box::new(Resync::new(now)))
    }

    /// Sectors this node has to fetch from, or to serve to, the peer.
    pub(crate) fn out_of_sync(&self, peer: PeerIx, vol: VolIx) -> Sectors {
        let node = self.peers[peer].node;
        match &self.vols[vol].backing {
            Some(b) => b.slot_of(node).map_or(Sectors(0), |slot| b.bitmap.out_of_sync(slot)),
            None => Sectors(0),
        }
    }

    /// What entering or leaving a replication state sets in motion.
    pub(crate) fn after_repl_change(&mut self, old: &State, peer: PeerIx, vol: VolIx) {
        use ReplState::{
            Established, PausedSyncS, PausedSyncT, StartingSyncS, StartingSyncT, SyncSource,
            SyncTarget, VerifyS, VerifyT, WFBitMapS, WFBitMapT,
        };
        let (was, is) = (old.peers[peer].devs[vol].repl, self.repl(peer, vol));
        if was == is {
            return;
        }
        if was <= Established {
            self.peers[peer].devs[vol].source_seen = false;
        }
        if matches!(is, WFBitMapS | WFBitMapT | StartingSyncS | StartingSyncT) {
            self.peers[peer].devs[vol].verify_found = false;
        }
        if !matches!(is, WFBitMapS | WFBitMapT) {
            self.peers[peer].devs[vol].recompared = false;
        }
        self.review_agreement(peer, vol);
        match is {
            WFBitMapS => {
                self.resync_mut(peer, vol).sent = false;
                let node = self.peers[peer].node;
                self.mark_unfinished(vol, node);
                self.cover_unacked(vol, node);
                self.send_bitmap(peer, vol);
                self.exchange_progress(peer, vol);
            }
            WFBitMapT => {
                self.resync_mut(peer, vol).sent = false;
                self.exchange_progress(peer, vol);
            }
            StartingSyncT => self.set_all_bits(peer, vol, true),
            StartingSyncS => self.set_all_bits(peer, vol, false),
            SyncTarget | PausedSyncT => {
                if !matches!(was, SyncTarget | PausedSyncT) {
                    self.start_target(peer, vol);
                } else if is == SyncTarget {
                    let now = self.now;
                    self.resync_mut(peer, vol).next_turn = Some(now);
                } else {
                    // An end that was begun is called off: more bits may come before it goes on.
                    self.resync_mut(peer, vol).finishing = false;
                }
            }
            SyncSource | PausedSyncS => {
                if !matches!(was, SyncSource | PausedSyncS) {
                    let total = self.out_of_sync(peer, vol).0;
                    let resync = self.resync_mut(peer, vol);
                    resync.total = total;
                    let text = format!(
                        "{}/{}: resync of {} to {} starts",
                        self.name,
                        self.vols[vol].nr,
                        Bytes(total * vocab::SECTOR_SIZE),
                        self.peers[peer].name
                    );
                    self.log(LogLevel::Info, text);
                }
            }
            VerifyS => self.verify_started(peer, vol),
            VerifyT => self.peers[peer].devs[vol].verify_valid = true,
            Established => {
                self.end_resync(peer, vol);
                if matches!(was, VerifyS | VerifyT) {
                    self.verify_ended(peer, vol);
                }
                self.recompare_if_due(peer, vol);
            }
            _ => self.end_resync(peer, vol),
        }
    }

    /// Sends this node's bitmap towards the peer in one go: nothing may come in between.
    fn send_bitmap(&mut self, peer: PeerIx, vol: VolIx) {
        let node = self.peers[peer].node;
        let nr = self.vols[vol].nr;
        let agreed = self.agreed(peer);
        let compress = self.peers[peer].net.use_rle;
        let Some(backing) = &self.vols[vol].backing else { return };
        let Some(slot) = backing.slot_of(node) else { return };
        let source = SlotBits { bitmap: &backing.bitmap, slot };
        let mut sender = BitmapSender::new(backing.bitmap.bits(), compress, &agreed);
        let mut packets = Vec::new();
        while let Some(packet) = sender.next_packet(nr, &source) {
            packets.push(packet);
        }
        for packet in packets {
            self.send(peer, packet);
        }
        self.resync_mut(peer, vol).sent = true;
    }

    /// P_BITMAP or P_COMPRESSED_BITMAP. Bits are only ever added.
    pub(crate) fn peer_bitmap(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        chunk: BitmapChunk,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("a bitmap names an unknown volume")?;
        let agreed = self.agreed(peer);
        let node = self.peers[peer].node;
        let now = self.now;
        if self.vols[vol].backing.is_none() {
            // The disk is gone, and the peer has not heard of it yet.
            return Ok(());
        }
        // A disk that is being attached waits for the answers of all peers first.
        let negotiates = self.st.vols[vol].disk == DiskState::Negotiating;
        let exchanging =
            matches!(self.repl(peer, vol), ReplState::WFBitMapS | ReplState::WFBitMapT);
        if !exchanging && !negotiates {
            // Taken over, the bits would say that each of the two has what the other lacks.
            self.disagree(peer, "sends a bitmap for a resync that this node has not agreed to");
            return Ok(());
        }
        let Some(backing) = self.vols[vol].backing.as_mut() else { return Ok(()) };
        let slot = backing.slot_of(node).ok_or("a bitmap from a node without bitmap slot")?;
        let bits = backing.bitmap.bits();
        let dev = &mut self.peers[peer].devs[vol];
        let resync = dev.resync.get_or_insert_with(|| Box::new(Resync::new(now)));
        let receiver = resync.receiver.get_or_insert_with(|| BitmapReceiver::new(bits, &agreed));
        let bitmap = &mut backing.bitmap;
        let mut set = |start: u64, len: u64| {
            bitmap.set_bits(slot, start, len);
        };
        let progress = match chunk {
            BitmapChunk::Plain(words) => receiver.plain(&words, &mut set),
            BitmapChunk::Compressed(code) => receiver.compressed(&code, &mut set),
        };
        match progress {
            Err(_) => Err("a bitmap breaks the rules of its transfer"),
            Ok(Progress::Continues) => Ok(()),
            Ok(Progress::Complete) => {
                resync.receiver = None;
                resync.received = true;
                self.exchange_progress(peer, vol);
                Ok(())
            }
        }
    }

    /// Bits of the peer have arrived for a resync that has not begun here yet.
    pub(crate) fn has_peer_bitmap(&self, peer: PeerIx, vol: VolIx) -> bool {
        let resync = self.peers[peer].devs[vol].resync.as_ref();
        resync.is_some_and(|r| r.received || r.receiver.is_some())
    }

    /// Source first, then target; with both maps exchanged the resync starts.
    fn exchange_progress(&mut self, peer: PeerIx, vol: VolIx) {
        let Some(resync) = &self.peers[peer].devs[vol].resync else { return };
        if !resync.received {
            return;
        }
        let next = match self.repl(peer, vol) {
            ReplState::WFBitMapS => ReplState::SyncSource,
            ReplState::WFBitMapT => {
                self.send_bitmap(peer, vol);
                ReplState::SyncTarget
            }
            _ => return,
        };
        self.resync_mut(peer, vol).received = false;
        self.change_hard(|st| st.peers[peer].devs[vol].repl = next);
        self.kick_all();
    }

    /// Full resync: every bit is set, durably, before anything else happens.
    fn set_all_bits(&mut self, peer: PeerIx, vol: VolIx, all_slots: bool) {
        let node = self.peers[peer].node;
        if let Some(backing) = self.vols[vol].backing.as_mut() {
            let own = backing.slot_of(node);
            for slot in 0..backing.bitmap.slots() {
                if all_slots || Some(slot) == own {
                    backing.set_all(slot);
                }
            }
        }
        self.persist_with_bitmap(vol, Work::BitmapReady(peer, vol));
    }

    /// The bits of a full resync are durable.
    pub(crate) fn bitmap_ready(&mut self, peer: PeerIx, vol: VolIx) {
        let next = match self.repl(peer, vol) {
            ReplState::StartingSyncS => ReplState::SyncSource,
            ReplState::StartingSyncT => ReplState::SyncTarget,
            _ => return,
        };
        self.change_hard(|st| st.peers[peer].devs[vol].repl = next);
    }

    // --- target ---------------------------------------------------------------------------

    fn start_target(&mut self, peer: PeerIx, vol: VolIx) {
        let situation = self.situation(vol);
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        let source_bitmap = uuids.map_or(GenUuid::NONE, |u| u.bitmap_of(self.me));
        let stable = uuids.is_some_and(|u| u.flags.has(UuidFlags::STABLE));
        let total = self.out_of_sync(peer, vol).0;
        let rng = &mut self.rng;
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        let started = backing.gens.start_target(&situation, source_bitmap, || rng.next());
        // What is received differs from what others have (semantics §9.3), which has to be durable
        // before it is written: all of it is recorded with the start. Bits that are set block by
        // block would be lost if this node died, and one of the old generation could be its source.
        if let Some(own) = backing.slot_of(self.peers[peer].node) {
            for slot in (0..backing.bitmap.slots()).filter(|s| *s != own) {
                backing.bitmap.merge_slot(own, slot);
            }
        }
        let text = format!(
            "{}/{}: resync of {} from {} starts",
            self.name,
            self.vols[vol].nr,
            Bytes(total * vocab::SECTOR_SIZE),
            self.peers[peer].name
        );
        let now = self.now;
        let unstable = self.unstable_source(peer, vol, stable);
        self.peers[peer].devs[vol].unstable = unstable;
        let resync = self.resync_mut(peer, vol);
        resync.start = started.start;
        resync.cursor = 0;
        resync.total = total;
        resync.failed = 0;
        resync.since = now;
        resync.last_turn = now;
        resync.may_write = false;
        resync.finishing = false;
        resync.heard = false;
        resync.controller = Controller::new();
        self.log(LogLevel::Info, text);
        // Inconsistent is durable before the first block is overwritten (invariant 39).
        self.persist_with_bitmap(vol, Work::ResyncMayWrite(peer, vol));
        self.doubt_ancestors(vol);
    }

    /// The data of a source that hears a Primary which this node does not hear keeps changing:
    /// such a resync can not make this disk UpToDate (semantics §4.10).
    fn unstable_source(&self, peer: PeerIx, vol: VolIx, stable: bool) -> bool {
        let authoritative =
            self.peers[peer].devs[vol].uuids.as_ref().map_or(NodeMask::EMPTY, |u| u.node_mask);
        !stable
            && self.st.role != Role::Primary
            && authoritative.and(self.st.connected_mask()).is_empty()
    }

    /// A Primary that this node hears goes on in a generation that the source does not have. It
    /// takes what the disk misses for the source's to tell, and the source does not know it.
    fn newer_primary(&self, source: PeerIx, vol: VolIx) -> Option<PeerIx> {
        let old = self.peers[source].devs[vol].uuids.as_ref()?.current;
        self.st.connected().filter(|p| *p != source).find(|p| {
            let st = &self.st.peers[*p];
            st.role == Role::Primary
                && st.devs[vol].disk == DiskState::UpToDate
                && self.peers[*p].devs[vol].uuids.as_ref().is_some_and(|u| u.has_passed(old))
        })
    }

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
        let running =
            self.repl(peer, vol) == ReplState::SyncTarget && resync.may_write && !resync.finishing;
        if running { resync.next_turn } else { None }
    }

    /// Asks for as much as the controller allows.
    pub(crate) fn resync_turn(&mut self, peer: PeerIx, vol: VolIx) {
        if self.repl(peer, vol) != ReplState::SyncTarget {
            return;
        }
        let now = self.now;
        let max_buffers = u64::from(self.peers[peer].net.max_buffers);
        let p = &mut self.peers[peer];
        let dev = &mut p.devs[vol];
        let Some(resync) = dev.resync.as_mut() else { return };
        if !resync.may_write || resync.finishing {
            return;
        }
        if resync.next_turn.is_none_or(|at| at > now) {
            return;
        }
        let turn = Turn {
            elapsed: now.since(resync.last_turn),
            replied: Sectors(std::mem::take(&mut resync.replied)),
            in_flight: Sectors(resync.in_flight),
            max_buffers_pages: max_buffers,
            bitmap_block: Sectors(BIT_SECTORS),
        };
        let budget = resync.controller.turn(&dev.opts, &turn);
        resync.last_turn = now;
        let requested = self.request_blocks(peer, vol, budget.0);
        let resync = self.resync_mut(peer, vol);
        resync.next_turn = Some(now + Controller::next_turn(Sectors(requested), budget).min(TURN));
        self.finish_if_done(peer, vol);
    }

    /// Sends requests for up to `budget` sectors and says how many were requested.
    fn request_blocks(&mut self, peer: PeerIx, vol: VolIx, budget: u64) -> u64 {
        let node = self.peers[peer].node;
        let mut requested = 0;
        let mut wrapped = false;
        while requested < budget {
            let Some(backing) = self.vols[vol].backing.as_ref() else { break };
            let Some(slot) = backing.slot_of(node) else { break };
            let cursor = self.resync_mut(peer, vol).cursor;
            let backing = self.vols[vol].backing.as_ref().expect("looked at above");
            let Some((start, run)) = backing.bitmap.next_run(slot, cursor, MAX_REQUEST_BITS) else {
                // Blocks may have become out of sync, or were skipped, behind the cursor.
                if wrapped || cursor == 0 {
                    break;
                }
                wrapped = true;
                self.resync_mut(peer, vol).cursor = 0;
                continue;
            };
            let aligned =
                if start == 0 { MAX_REQUEST_BITS } else { 1 << start.trailing_zeros().min(8) };
            let left = (budget - requested).div_ceil(BIT_SECTORS);
            let mut len = run.min(aligned).min(left.max(1));
            if len > 1 {
                len = 1 << len.ilog2();
            }
            let range = backing.bitmap.sectors_of(start..start + len);
            self.resync_mut(peer, vol).cursor = start + len;
            let busy = self.vols[vol].conflict(range, |o| !matches!(o, Owner::Verify(_))).is_some();
            // A write that waits for its epoch would put older data over what is fetched now.
            if range.len.0 == 0 || busy || self.has_waiting_write(vol, range) {
                continue;
            }
            let Ok(dep) = self.dagtag_dependency() else { break };
            let granularity = self.vols[vol].disk_opts.rs_discard_granularity.0;
            let thin = granularity != 0 && range.len.bytes().0 == granularity;
            self.request_block(peer, vol, range, dep, thin);
            requested += range.len.0;
        }
        requested
    }

    fn request_block(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        range: SectorRange,
        dep: DagtagDep,
        thin: bool,
    ) {
        let nr = self.vols[vol].nr;
        self.verify_sees_write(vol, range);
        let key = self.vols[vol].claim(range, Owner::ResyncTarget(peer));
        let resync = self.resync_mut(peer, vol);
        let id = resync.next_id;
        resync.next_id += 1;
        resync.in_flight += range.len.0;
        resync
            .requests
            .insert(id, RsRequest { range, key, buf: None, answered: false, outdated: false });
        let block_id = Resource::block_id(IdKind::Resync, id);
        let req = RsReq { range, block_id, dep };
        self.send(
            peer,
            match thin {
                true => Packet::RsThinDagtagReq(nr, req),
                false => Packet::RsDagtagReq(nr, req),
            },
        );
    }

    /// Nothing was to be fetched, or only zeroes came: one block is fetched all the same. What
    /// the source has said on the stream of its data before, the ranges of writes that this node
    /// missed among it, has arrived with that block.
    fn hear_source(&mut self, peer: PeerIx, vol: VolIx) {
        let range = SectorRange::new(0, BIT_SECTORS.min(self.vols[vol].size.0));
        let busy = self.vols[vol].conflict(range, |o| !matches!(o, Owner::Verify(_))).is_some();
        let busy = busy || self.has_waiting_write(vol, range);
        match self.dagtag_dependency() {
            Ok(dep) if !busy => self.request_block(peer, vol, range, dep, false),
            _ => {
                let at = self.now + Duration::from_millis(20);
                self.resync_mut(peer, vol).next_turn = Some(at);
            }
        }
    }

    /// The Primary whose stream an answer must have caught up with (wire §7.4).
    fn dagtag_dependency(&self) -> Result<DagtagDep, ()> {
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

    fn request_of(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        id: BlockId,
        range: SectorRange,
    ) -> Result<u64, &'static str> {
        const WRONG: &str = "an answer matches no resync request";
        let id = Resource::block_key(id, IdKind::Resync).ok_or(WRONG)?;
        let resync = self.peers[peer].devs[vol].resync.as_mut().ok_or(WRONG)?;
        let request = resync.requests.get_mut(&id).ok_or(WRONG)?;
        if request.range != range || request.answered {
            return Err(WRONG);
        }
        request.answered = true;
        resync.replied += range.len.0;
        Ok(id)
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
            Some(vol) => self.request_of(peer, vol, data.block_id, data.range).map(|id| (vol, id)),
            None => Err("resync data for an unknown volume"),
        };
        let (vol, id) = match id {
            Ok(found) => found,
            Err(why) => {
                self.free(Some(buf));
                // An answer may cross the end of its resync.
                let over = vol.is_some_and(|vol| !self.repl(peer, vol).is_target());
                return if over { Ok(()) } else { Err(why) };
            }
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
        let id = self.request_of(peer, vol, ack.block_id, ack.range)?;
        let io = DiskOp::Zeroes { range: ack.range, unmap: true };
        self.write_resync_block(peer, vol, id, ack.range, io);
        Ok(())
    }

    fn write_resync_block(
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
        // Until it is known who else has this version, everyone else may lack it (semantics §9.3).
        let source = self.peers[peer].node;
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

    fn resync_block_ended(&mut self, peer: PeerIx, vol: VolIx, id: u64, ok: bool) {
        let nr = self.vols[vol].nr;
        let node = self.peers[peer].node;
        let Some(resync) = self.peers[peer].devs[vol].resync.as_mut() else { return };
        let Some(request) = resync.requests.remove(&id) else { return };
        resync.in_flight -= request.range.len.0;
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
        failed: bool,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("an answer names an unknown volume")?;
        if Resource::block_key(ack.block_id, IdKind::Verify).is_some() {
            return self.verify_skipped(peer, vol, ack);
        }
        let id = self.request_of(peer, vol, ack.block_id, ack.range)?;
        let now = self.now;
        let resync = self.resync_mut(peer, vol);
        let request = resync.requests.remove(&id).expect("found above");
        resync.in_flight -= request.range.len.0;
        if failed {
            resync.failed += request.range.len.0;
        }
        resync.next_turn = Some(now + Duration::from_millis(20));
        self.end_interval(vol, request.key);
        Ok(())
    }

    /// Something moved: the end may be reached, or there is room to ask for more.
    pub(crate) fn resync_progress(&mut self, peer: PeerIx, vol: VolIx) {
        if self.repl(peer, vol) != ReplState::SyncTarget {
            return;
        }
        let now = self.now;
        if let Some(resync) = self.peers[peer].devs[vol].resync.as_mut() {
            // An idle pipe does not wait for the next turn.
            if resync.requests.is_empty() && resync.may_write && !resync.finishing {
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
        for source in (0..self.peers.len()).filter(|p| *p != peer) {
            if let Some(resync) = self.peers[source].devs[vol].resync.as_mut() {
                for request in resync.requests.values_mut() {
                    request.outdated |= request.range.overlaps(range);
                }
            }
        }
    }

    fn finish_if_done(&mut self, peer: PeerIx, vol: VolIx) {
        if self.repl(peer, vol) != ReplState::SyncTarget {
            return;
        }
        let left = self.out_of_sync(peer, vol).0;
        let Some(resync) = self.peers[peer].devs[vol].resync.as_mut() else { return };
        let idle = resync.requests.is_empty() && resync.may_write && !resync.finishing;
        // A flush for an end that was called off says nothing about blocks written since.
        let flush = Op::ResyncFlush(peer, vol);
        let idle = idle && !self.ops.iter().any(|(_, op)| *op == flush);
        let gave_up = resync.failed > 0 && left <= resync.failed;
        if !idle || (left > 0 && !gave_up) {
            return;
        }
        if !resync.heard && !gave_up {
            return self.hear_source(peer, vol);
        }
        if !self.is_mirrored(peer, vol) || self.promotion_is_prepared() {
            return;
        }
        // The source is still there, and everything it sent before the answer has arrived. So is
        // a Primary whose writes the source passes on: this node hears it, too.
        let nodes = self.st.primary_peers().with(self.peers[peer].node);
        let resync = self.resync_mut(peer, vol);
        resync.finishing = true;
        resync.asked = nodes;
        self.ping_some(nodes, Work::ResyncEndPing(peer, vol));
    }

    /// A Primary has connected: what it wrote before is known to the source, which is asked again
    /// before a resync from it ends. What it has been asked for already does not wait for that.
    pub(crate) fn primary_joined(&mut self) {
        for peer in 0..self.peers.len() {
            for dev in &mut self.peers[peer].devs {
                if let Some(resync) = dev.resync.as_mut() {
                    resync.heard = false;
                    resync.hears_from = resync.next_id;
                    resync.finishing = false;
                    resync.next_turn.get_or_insert(self.now);
                }
            }
        }
    }

    /// Every other Primary that this node hears has said that it sends data for this disk. What it
    /// counted as missed before, it has told on the same stream before.
    fn is_mirrored(&self, source: PeerIx, vol: VolIx) -> bool {
        self.st.connected().filter(|p| *p != source).all(|p| {
            let word = self.peers[p].devs[vol].last_word.unwrap_or_default();
            let tells = self.peers[p].agreed_features & feature::BITS_OF_EQUALS != 0;
            // While it waits for bitmaps it sends nothing but what is missed.
            let mirrors = word.pdsk() == Some(DiskState::Inconsistent)
                && word.repl_state() != Some(ReplState::WFBitMapS);
            self.st.peers[p].role != Role::Primary || !tells || mirrors
        })
    }

    /// There is a Primary, or about to be one, that was none when the end was prepared: it may
    /// write through the source, and not know that this node is to be told.
    fn end_is_in_doubt(&self, peer: PeerIx, vol: VolIx) -> bool {
        let asked = self.peers[peer].devs[vol].resync.as_ref().map_or(NodeMask::EMPTY, |r| r.asked);
        self.promotion_is_prepared() || !self.st.primary_peers().minus(asked).is_empty()
    }

    /// A peer's states are new: a resync may have waited for them.
    pub(crate) fn resyncs_progress(&mut self, vol: VolIx) {
        for peer in 0..self.peers.len() {
            self.finish_if_done(peer, vol);
        }
    }

    /// The source answered: flush the data, then record the end.
    pub(crate) fn resync_end_ping(&mut self, peer: PeerIx, vol: VolIx) {
        if self.repl(peer, vol) != ReplState::SyncTarget {
            return;
        }
        let Some(resync) = self.peers[peer].devs[vol].resync.as_ref() else { return };
        if !resync.finishing {
            return;
        }
        if self.out_of_sync(peer, vol).0 > 0 && resync.failed == 0 {
            self.resync_more(peer, vol);
            return;
        }
        let op = self.op(Op::ResyncFlush(peer, vol));
        self.out.push_back(Output::Disk { volume: self.vols[vol].nr, op, io: DiskOp::Flush });
    }

    /// The data is stable.
    pub(crate) fn resync_flushed(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        result: Result<(), DiskError>,
    ) {
        if result.is_err() {
            return self.disk_failed(vol, None, "a flush failed");
        }
        match self.peers[peer].devs[vol].resync.as_ref().is_some_and(|r| r.finishing) {
            true => self.work.push_back(Work::ResyncRecord(peer, vol)),
            false => self.resync_progress(peer, vol),
        }
    }

    /// Records what the end of the resync means for the generations of this disk.
    pub(crate) fn resync_record(&mut self, peer: PeerIx, vol: VolIx) {
        if self.repl(peer, vol) != ReplState::SyncTarget || self.handshake_running() {
            // A handshake compares what was sent; the end waits for it.
            if self.repl(peer, vol) == ReplState::SyncTarget {
                self.resync_more(peer, vol);
            }
            return;
        }
        if self.end_is_in_doubt(peer, vol) {
            return self.resync_more(peer, vol);
        }
        let Some(resync) = self.peers[peer].devs[vol].resync.as_ref() else { return };
        if !resync.finishing {
            return;
        }
        if self.out_of_sync(peer, vol).0 > 0 && resync.failed == 0 {
            return self.resync_more(peer, vol);
        }
        let start = resync.start;
        let failed = resync.failed > 0;
        let stable = self.peers[peer].devs[vol]
            .uuids
            .as_ref()
            .is_some_and(|u| u.flags.has(UuidFlags::STABLE));
        // Stability may have come, or gone, while the resync ran.
        let unstable = self.unstable_source(peer, vol, stable);
        self.peers[peer].devs[vol].unstable = unstable;
        let source_good = self.st.peers[peer].devs[vol].disk > DiskState::Inconsistent;
        let overtaken = self.newer_primary(peer, vol).is_some();
        if failed || unstable || overtaken || !source_good {
            return self.work.push_back(Work::ResyncRecorded(peer, vol));
        }
        let targets: NodeMask = (0..self.peers.len())
            .filter(|p| *p != peer && self.repl(*p, vol).is_target())
            .map(|p| self.peers[p].node)
            .collect();
        let situation = self.situation(vol);
        let mut currents = [GenUuid::NONE; MAX_NODES];
        // What a node without its disk has seen says nothing about that disk.
        let mut ahead = NodeMask::EMPTY;
        for p in &self.peers {
            if let Some(uuids) = p.devs[vol].uuids.as_ref().filter(|u| u.of_disk()) {
                currents[p.node.index()] = uuids.current;
                if is_generation(start) && uuids.has_passed(start) {
                    ahead.insert(p.node);
                }
            }
        }
        let Some(uuids) = self.peers[peer].devs[vol].uuids.clone() else { return };
        let node = self.peers[peer].node;
        let source = PeerGenerations {
            node,
            current: uuids.current,
            bitmap: &uuids.bitmap,
            history: &uuids.history,
            flags: uuids.flags,
        };
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        let finish = backing.gens.finish_target(&situation, start, &source, &currents, ahead);
        // The generation tells who else is in sync, unless it had told nothing to begin with: after
        // a crash, disks of the same generation differ in what was under write.
        let inherits = start.same(source.current) && uuids.flags.has(UuidFlags::CRASHED_PRIMARY);
        self.vols[vol].crashed_primary |= inherits;
        // Where another resync to this node is agreed, that one decides about its bits. Disks of
        // one generation are equal where both are UpToDate, otherwise only in name.
        let current = |n: NodeId| {
            let of = |p: PeerIx| self.st.peers[p].devs[vol].disk == DiskState::UpToDate;
            n == node || (!inherits && of(peer) && self.peer_ix(n).is_some_and(of))
        };
        let equal: Vec<NodeId> =
            finish.in_sync.minus(targets).iter().filter(|n| current(*n)).collect();
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        for n in equal {
            if let Some(slot) = backing.slot_of(n) {
                backing.bitmap.clear_all(slot);
            }
        }
        let current = backing.gens.current();
        self.vols[vol].expose(current);
        self.persist_with_bitmap(vol, Work::ResyncRecorded(peer, vol));
    }

    /// The end is on disk: tell everyone, identifiers first (wire §7.1 step 5).
    pub(crate) fn resync_recorded(&mut self, peer: PeerIx, vol: VolIx) {
        if self.repl(peer, vol) != ReplState::SyncTarget {
            return;
        }
        let resync = self.peers[peer].devs[vol].resync.as_ref();
        if resync.is_some_and(|r| !r.finishing) {
            // Called off while it was being recorded.
            return;
        }
        if self.end_is_in_doubt(peer, vol) {
            return self.resync_more(peer, vol);
        }
        let failed = resync.map_or(0, |r| r.failed);
        let unstable = self.peers[peer].devs[vol].unstable;
        let source_disk = self.st.peers[peer].devs[vol].disk;
        let newer = self.newer_primary(peer, vol);
        let good =
            failed == 0 && !unstable && newer.is_none() && source_disk > DiskState::Inconsistent;
        let moved_on = self.peers[peer].devs[vol].uuids.as_ref().is_some_and(|u| {
            let backing = self.vols[vol].backing.as_ref();
            backing.is_some_and(|b| !b.gens.current().same(u.current))
        });
        if good && moved_on {
            // The source has started a generation while the end was being recorded. What it
            // writes now belongs to that.
            return self.work.push_back(Work::ResyncRecord(peer, vol));
        }
        let text = match (good, failed > 0) {
            (true, _) => "finished".to_owned(),
            (false, true) => format!("ended, {} could not be read or written", Bytes(failed * 512)),
            (false, false) => "ended, the source does not have what is written now".to_owned(),
        };
        let text = format!(
            "{}/{}: resync from {} {text}",
            self.name, self.vols[vol].nr, self.peers[peer].name
        );
        self.log(LogLevel::Info, text);
        if good {
            // What the source had counted as missing here is here now; it does not say so itself.
            if let Some(uuids) = &mut self.peers[peer].devs[vol].uuids {
                uuids.dirty_bits = 0;
            }
            self.send_uuids_to_all(vol, UuidFlags::default());
            // Peers this disk was to resync from, too: those that have nothing newer are done.
            let others: Vec<PeerIx> = (0..self.peers.len())
                .filter(|p| {
                    let waits =
                        matches!(self.repl(*p, vol), ReplState::PausedSyncT | ReplState::WFBitMapT);
                    *p != peer && waits
                })
                .collect();
            let done: Vec<PeerIx> = others
                .into_iter()
                .filter(|p| match self.compare(*p, vol, false) {
                    Decided::Start(start) => !start.repl.is_target(),
                    Decided::Retry | Decided::Refuse(_) => true,
                })
                .collect();
            // A Primary that this node does not hear goes on writing through the source: the news of
            // that takes its time, and until then this disk only seems to be as good.
            let unheard = !self.far_primaries.minus(self.st.connected_mask()).is_empty();
            let disk = if unheard { source_disk.min(DiskState::Outdated) } else { source_disk };
            self.change_hard(|st| {
                st.peers[peer].devs[vol].repl = ReplState::Established;
                for p in &done {
                    st.peers[*p].devs[vol].repl = ReplState::Established;
                }
                if !st.is_target(vol) {
                    st.vols[vol].disk = disk;
                }
            });
            for p in done {
                self.ask_recompare(p, vol);
            }
            // This node has what the source has: nothing is left to reconcile with it.
            if self.peers[peer].loss.take().is_some() {
                self.hold_released();
            }
        } else {
            self.change_hard(|st| st.peers[peer].devs[vol].repl = ReplState::Established);
            if let Some(newer) = newer {
                self.ask_recompare(newer, vol);
            }
        }
        if std::mem::take(&mut self.peers[peer].devs[vol].resync_again) {
            self.work.push_back(Work::Recompare(peer, vol));
        }
    }

    /// The state of a resync is left: whatever was in flight for it is forgotten.
    fn end_resync(&mut self, peer: PeerIx, vol: VolIx) {
        if let Some(resync) = self.peers[peer].devs[vol].resync.take() {
            for (id, request) in resync.requests {
                if request.answered {
                    // The disk still works on it; its buffer and range live until then.
                    self.orphan_resync_write(peer, vol, id, &request);
                } else {
                    self.end_interval(vol, request.key);
                }
            }
        }
        for key in self.serve_keys(peer, vol, |k| k != ServeKind::Verify) {
            self.drop_serve(key);
        }
        self.write_bitmap(vol);
    }

    fn orphan_resync_write(&mut self, peer: PeerIx, vol: VolIx, id: u64, request: &RsRequest) {
        let wanted = Op::ResyncWrite(peer, vol, id);
        let found = self.ops.iter().any(|(_, op)| *op == wanted);
        if found {
            let late = LateWrite { peer, vol, id, key: request.key, buf: request.buf };
            self.late_writes.push(late);
        } else {
            self.free(request.buf);
            self.end_interval(vol, request.key);
        }
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

    // --- source -----------------------------------------------------------------------------

    /// A resync or verify request of a peer.
    pub(crate) fn serve(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        req: RsReq,
        kind: ServeKind,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("a resync request names an unknown volume")?;
        if !self.st.is_connected(peer) {
            return Err("a resync request before the connection was established");
        }
        if !self.in_volume(vol, req.range) || req.range.len.0 == 0 || req.range.len.0 > 2048 {
            return Err("a resync request lies outside the volume or is too large");
        }
        if req.block_id == BlockId::SYNCER {
            return Err("a resync request without an id of its own");
        }
        let repl = self.repl(peer, vol);
        let busy = match kind {
            ServeKind::Verify => repl != ReplState::VerifyT,
            _ => !matches!(repl, ReplState::SyncSource | ReplState::PausedSyncS),
        };
        if busy || !self.disk_in_use(vol) || self.st.vols[vol].disk < DiskState::Inconsistent {
            let ack = self.block_ack(peer, vol, req.range, req.block_id);
            self.send(peer, Packet::RsCancel(nr, ack));
            return Ok(());
        }
        let key = self.serves.insert(Serve {
            peer,
            vol,
            range: req.range,
            block_id: req.block_id,
            kind,
            dep: req.dep,
            interval: None,
            reading: false,
            replied: false,
            dead: false,
        });
        self.try_serve(key);
        Ok(())
    }

    /// Is what the requester has seen of the Primary's writes here, too?
    fn dependency_met(&self, dep: DagtagDep) -> Result<bool, ()> {
        if dep == DagtagDep::default() || dep.node_id == u32::from(self.me.get()) {
            return Ok(true);
        }
        let node = u8::try_from(dep.node_id).ok().and_then(NodeId::new);
        let Some(owner) = node.and_then(|n| self.peer_ix(n)) else { return Ok(true) };
        if !self.st.is_connected(owner) {
            return Ok(true);
        }
        Ok(self.peers[owner].recv.last_dagtag >= dep.dagtag)
    }

    /// Goes on with a request: dependency, then conflicts, then the read.
    pub(crate) fn try_serve(&mut self, key: usize) {
        let Some(serve) = self.serves.get(key) else { return };
        if serve.dead {
            self.serves.remove(key);
            return;
        }
        let (peer, vol, range, kind) = (serve.peer, serve.vol, serve.range, serve.kind);
        let (dep, block_id) = (serve.dep, serve.block_id);
        if self.dependency_met(dep) != Ok(true) {
            return;
        }
        if let Some(writer) = u8::try_from(dep.node_id).ok().and_then(NodeId::new) {
            if dep != DagtagDep::default() && !self.joined_at(peer, writer, dep.dagtag) {
                return;
            }
        }
        let nr = self.vols[vol].nr;
        if kind == ServeKind::Verify {
            let busy = self.vols[vol]
                .conflict(range, |o| !matches!(o, Owner::Verify(_) | Owner::ResyncSource(..)));
            if busy.is_some() || self.has_waiting_write(vol, range) {
                self.serves.remove(key);
                let ack = self.block_ack(peer, vol, range, block_id);
                return self.send(peer, Packet::RsCancel(nr, ack));
            }
        } else {
            let writes =
                |o: Owner| matches!(o, Owner::Local(_) | Owner::Peer(..) | Owner::ResyncTarget(_));
            let busy = self.vols[vol].conflict(range, writes).is_some();
            if busy || self.has_waiting_write(vol, range) {
                self.vols[vol].conflict_wait.push_back(WaitingOn::Serve(key));
                return;
            }
        }
        let owner = match kind {
            ServeKind::Verify => Owner::Verify(peer),
            _ => Owner::ResyncSource(peer, key),
        };
        let interval = self.vols[vol].claim(range, owner);
        let serve = &mut self.serves[key];
        serve.interval = Some(interval);
        serve.reading = true;
        let op = self.op(Op::Serve(key));
        let io = match kind {
            ServeKind::Verify => DiskOp::Digest { range },
            _ => DiskOp::Read { range, detect_zeroes: kind == ServeKind::Thin },
        };
        self.out.push_back(Output::Disk { volume: nr, op, io });
    }

    /// Writes of a Primary arrived, or it is gone: requests that waited for them go on.
    pub(crate) fn serve_dagtags(&mut self, peer: PeerIx) {
        if self.serves.len() == 0 {
            return;
        }
        let node = u32::from(self.peers[peer].node.get());
        let waiting: Vec<usize> = self
            .serves
            .iter()
            .filter(|(_, s)| !s.reading && !s.replied && s.dep.node_id == node && !s.dead)
            .map(|(key, _)| key)
            .collect();
        for key in waiting {
            let queued =
                self.vols[self.serves[key].vol].conflict_wait.contains(&WaitingOn::Serve(key));
            if !queued {
                self.try_serve(key);
            }
        }
    }

    /// The block for a peer has been read.
    pub(crate) fn served(&mut self, key: usize, result: Result<DiskData, DiskError>) {
        let Some(serve) = self.serves.get_mut(key) else {
            if let Ok(DiskData::Read { buf, .. }) = result {
                self.free(Some(buf));
            }
            return;
        };
        serve.reading = false;
        let (peer, vol, range, block_id) = (serve.peer, serve.vol, serve.range, serve.block_id);
        let (dead, kind) = (serve.dead, serve.kind);
        let nr = self.vols[vol].nr;
        match result {
            _ if dead => {
                if let Ok(DiskData::Read { buf, .. }) = result {
                    self.free(Some(buf));
                }
                self.end_serve(key);
            }
            Ok(DiskData::Read { buf, all_zero }) => {
                if kind == ServeKind::Thin && all_zero {
                    let ack = BlockAck { range, block_id, seq: 0 };
                    self.send(peer, Packet::RsDeallocatedId(nr, ack));
                } else {
                    let data = Data { range, block_id, seq: 0, flags: DataFlags::default() };
                    self.send_with(peer, Packet::RsDataReply(nr, data), Some(buf));
                }
                self.peers[peer].devs[vol].sent_sectors += range.len.0;
                self.free(Some(buf));
                self.serves[key].replied = true;
            }
            Ok(DiskData::Digest(digest)) => {
                let dep = self.dagtag_dependency().unwrap_or_default();
                let req = RsReq { range, block_id, dep };
                self.send(peer, Packet::OvDagtagReply(nr, req, digest));
                // The comparison is the requester's; nothing is locked for it.
                self.end_serve(key);
            }
            Ok(DiskData::None) | Err(_) => {
                let ack = self.block_ack(peer, vol, range, block_id);
                let packet = match kind {
                    ServeKind::Verify => Packet::RsCancel(nr, ack),
                    _ => Packet::NegRsDreply(nr, ack),
                };
                self.send(peer, packet);
                self.end_serve(key);
                if result.is_err() {
                    self.disk_failed(vol, Some(range), "a read for a resync failed");
                }
            }
        }
    }

    fn end_serve(&mut self, key: usize) {
        if let Some(serve) = self.serves.remove(key) {
            if let Some(interval) = serve.interval {
                self.end_interval(serve.vol, interval);
            }
        }
    }

    /// Nobody waits for the answer any more. The end of another one before may have ended it.
    fn drop_serve(&mut self, key: usize) {
        let Some(serve) = self.serves.get_mut(key).filter(|s| !s.dead) else { return };
        serve.dead = true;
        if serve.reading {
            return;
        }
        let waiting = self.vols[serve.vol].conflict_wait.contains(&WaitingOn::Serve(key));
        if !waiting {
            self.end_serve(key);
        }
    }

    fn serve_keys(&self, peer: PeerIx, vol: VolIx, kind: impl Fn(ServeKind) -> bool) -> Vec<usize> {
        self.serves
            .iter()
            .filter(|(_, s)| s.peer == peer && s.vol == vol && kind(s.kind) && !s.dead)
            .map(|(key, _)| key)
            .collect()
    }

    /// P_RS_WRITE_ACK or P_RS_NEG_ACK: the target has the block, or could not take it.
    pub(crate) fn resync_acked(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        ack: BlockAck,
        ok: bool,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("a resync ack names an unknown volume")?;
        // Left over from an earlier connection may be one of the same name that is still read.
        let found = self.serves.iter().find(|(_, s)| {
            let named = s.block_id == ack.block_id && s.range == ack.range;
            s.peer == peer && s.vol == vol && named && !s.dead
        });
        let Some((key, serve)) = found else {
            // The resync may have been cancelled here while the target was writing.
            return match self.repl(peer, vol).is_source() {
                true => Err("a resync ack matches no request"),
                false => Ok(()),
            };
        };
        if !serve.replied {
            return Err("a resync ack before its data");
        }
        let node = self.peers[peer].node;
        if ok {
            if let Some(backing) = self.vols[vol].backing.as_mut() {
                if let Some(slot) = backing.slot_of(node) {
                    backing.clear_range(slot, ack.range);
                }
            }
            self.write_bitmap_lazily(vol);
            self.became_in_sync(peer, vol, ack.range);
        } else if let Some(resync) = self.peers[peer].devs[vol].resync.as_mut() {
            resync.failed += ack.range.len.0;
        }
        self.end_serve(key);
        Ok(())
    }

    /// The target says that it is no longer syncing: the source's end (wire §7.1 step 5).
    pub(crate) fn source_finished(&mut self, peer: PeerIx, vol: VolIx, disk: DiskState) {
        let text = format!(
            "{}/{}: resync to {} ended, its disk is {disk}",
            self.name, self.vols[vol].nr, self.peers[peer].name
        );
        self.log(LogLevel::Info, text);
        self.change_hard(|st| {
            let dev = &mut st.peers[peer].devs[vol];
            dev.repl = ReplState::Established;
            dev.disk = disk;
        });
        self.hold_released();
        self.resync_ended_at_peer(peer, vol);
    }

    /// The peer's identifiers may say that the resync towards it is complete, and tell about
    /// third nodes (wire §9.2 "Source end").
    pub(crate) fn resync_ended_at_peer(&mut self, peer: PeerIx, vol: VolIx) {
        let node = self.peers[peer].node;
        let situation = self.situation(vol);
        let Some(uuids) = self.peers[peer].devs[vol].uuids.clone() else { return };
        let source = matches!(self.repl(peer, vol), ReplState::SyncSource | ReplState::PausedSyncS);
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        let theirs = PeerGenerations {
            node,
            current: uuids.current,
            bitmap: &uuids.bitmap,
            history: &uuids.history,
            flags: uuids.flags,
        };
        let owed = backing.oos(node);
        let finished = backing.gens.finished_by(&situation, &theirs)
            && !backing.bitmap_uuid(node).is_none()
            && owed == 0;
        if finished {
            backing.gens.set_bitmap(node, GenUuid::NONE);
            self.md_changed_now(vol);
            for other in 0..self.peers.len() {
                if other != peer && self.st.is_connected(other) {
                    self.send_uuids(other, vol, UuidFlags::default(), NodeMask::EMPTY);
                }
            }
        }
        if !source {
            self.learn_from(peer, vol);
        }
    }

    /// What a peer's identifiers tell about third nodes (semantics §4.2, last paragraph).
    pub(crate) fn learn_from(&mut self, peer: PeerIx, vol: VolIx) {
        if self.handshake_running() {
            return;
        }
        let node = self.peers[peer].node;
        let situation = self.situation(vol);
        let resyncing: NodeMask = (0..self.peers.len())
            .filter(|p| self.repl(*p, vol) > ReplState::Established)
            .map(|p| self.peers[p].node)
            .collect();
        let Some(uuids) = self.peers[peer].devs[vol].uuids.clone() else { return };
        // A disk that is not UpToDate follows a Primary's generations without recording who misses
        // them: that it has no base for a node says nothing.
        let up_to_date = self.st.peers[peer].devs[vol].disk == DiskState::UpToDate;
        if !self.st.is_connected(peer) || !up_to_date {
            return;
        }
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        let theirs = PeerGenerations {
            node,
            current: uuids.current,
            bitmap: &uuids.bitmap,
            history: &uuids.history,
            flags: uuids.flags,
        };
        let learned = backing.gens.learn(&situation, &theirs, resyncing);
        let mut changed = false;
        let absent = learned.in_sync.minus(self.st.connected_mask());
        for n in learned.in_sync.iter() {
            backing.gens.set_bitmap(n, GenUuid::NONE);
            if let Some(slot) = backing.slot_of(n) {
                backing.bitmap.clear_all(slot);
            }
            changed = true;
        }
        for (from, to) in learned.copies {
            let base = backing.gens.bitmap(from).uuid;
            if let (Some(a), Some(b)) = (backing.slot_of(from), backing.slot_of(to)) {
                backing.merge_slot(a, b);
                backing.gens.set_bitmap(to, base);
                changed = true;
            }
        }
        if changed {
            self.write_bitmap(vol);
            self.md_changed_now(vol);
        }
        if !absent.is_empty() && self.st.role == Role::Primary {
            // They have this generation and miss what is written from now on.
            self.vols[vol].bump_pending = true;
            self.start_bump(vol);
        }
    }

    /// The connection is lost: nothing of a resync goes on.
    pub(crate) fn resync_lost_peer(&mut self, peer: PeerIx) {
        let theirs = |s: &Serve| s.peer == peer && !s.dead;
        let keys: Vec<usize> =
            self.serves.iter().filter(|(_, s)| theirs(s)).map(|(key, _)| key).collect();
        for key in keys {
            self.drop_serve(key);
        }
        // Requests of others that waited for this peer's writes are not answerable any more.
        let node = u32::from(self.peers[peer].node.get());
        let waits = |s: &Serve| s.dep.node_id == node && !s.reading && !s.replied && !s.dead;
        let waiting: Vec<usize> =
            self.serves.iter().filter(|(_, s)| waits(s)).map(|(key, _)| key).collect();
        for key in waiting {
            let Some(s) = self.serves.get(key).filter(|s| waits(s)) else { continue };
            let (to, vol, range, id) = (s.peer, s.vol, s.range, s.block_id);
            let nr = self.vols[vol].nr;
            let ack = self.block_ack(to, vol, range, id);
            self.send(to, Packet::RsCancel(nr, ack));
            self.drop_serve(key);
        }
        for vol in 0..self.vols.len() {
            self.end_resync(peer, vol);
            self.peers[peer].devs[vol].resync_again = false;
        }
    }

    /// Percent done, for status.
    pub(crate) fn resync_done(&self, peer: PeerIx, vol: VolIx) -> Option<(u64, u64)> {
        let resync = self.peers[peer].devs[vol].resync.as_ref()?;
        self.repl(peer, vol).in_sync_states().then(|| {
            let left = self.out_of_sync(peer, vol).0;
            (resync.total.max(left) - left, resync.total.max(left))
        })
    }

    /// Position of the write stream of this node, for tests and status.
    pub fn dagtag(&self) -> Dagtag {
        self.dagtag
    }
}

/// A resync write whose resync ended before the disk did.
#[derive(Debug)]
pub(crate) struct LateWrite {
    peer: PeerIx,
    vol: VolIx,
    id: u64,
    key: Slot,
    buf: Option<BufId>,
}

/// A piece of a peer's bitmap.
pub(crate) enum BitmapChunk {
    Plain(BitmapWords),
    Compressed(CompressedBitmap),
}
