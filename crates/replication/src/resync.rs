//! Resync: exchange of bitmaps, the pull loop of the target, the answers of the source, and the
//! end (semantics §9, wire §7).
//!
//! The target asks, the source answers; every request carries the position in the Primary's
//! write stream that the answer must include, so that an answer never brings back older data.
//! A range under resync is locked at both ends against overlapping writes.

mod digests;
mod end;
mod exchange;
mod source;
mod target;

use std::collections::BTreeMap;

use codec::wire::{Agreed, BitmapReceiver, UuidFlags};
use serde::{Deserialize, Serialize};
use vocab::options::Protocol;
use vocab::{
    Bytes, Dagtag, GenUuid, HandlerEvent, Instant, NodeMask, ReplState, SectorRange, Sectors,
};

use crate::handlers::Leave;
use crate::io::LogLevel;
use crate::rate::{Controller, Throttle, Window};
use crate::resource::{Resource, Volume, Work};
use crate::state::{PeerIx, State, VolIx};

pub(crate) use exchange::BitmapChunk;
pub(crate) use source::{Serve, ServeKind, read_buf};
use target::RsRequest;
pub(crate) use target::{LateWrite, Refused};

/// Largest single request (wire §7.3).
pub(crate) const MAX_REQUEST_BITS: u64 = 256;
/// Sectors of one bit on the wire.
const BIT_SECTORS: u64 = 8;

/// State of one resync, or of the bitmap exchange before it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Resync {
    /// Receives the peer's bitmap.
    receiver: Option<BitmapReceiver>,
    /// The peer's bitmap is complete.
    received: bool,
    /// This node's bitmap is sent.
    sent: bool,
    /// Target: whether it may begin.
    pub leave: Leave,
    /// Next bit to look at.
    cursor: u64,
    /// Requests without their data on disk, by number.
    requests: BTreeMap<u64, RsRequest>,
    /// Requests of earlier resyncs have lower numbers.
    first_id: u64,
    in_flight: u64,
    replied: u64,
    /// The pace by DRBD's options, and the one without.
    controller: Controller,
    window: Window,
    /// There was less to ask for than there was room: more is looked for by the clock, not with
    /// every answer.
    stuck: bool,
    last_turn: Instant,
    next_turn: Option<Instant>,
    /// The metadata says Inconsistent.
    may_write: bool,
    /// The generation this disk had when the resync began.
    start: GenUuid,
    /// Sectors out of sync when it began.
    pub total: u64,
    pub failed: u64,
    /// Target: blocks are asked for by their digests.
    by_digest: bool,
    /// Sectors that were found to be equal by their digests.
    pub same_digest: u64,
    pub since: Instant,
    finishing: bool,
    /// Target: the source is Ahead, and has said so of a request. It is asked for nothing more.
    halted: bool,
    /// Requests of before it was Ahead last have lower numbers.
    resumed_at: u64,
    /// The nodes whose answer the end waits for.
    asked: NodeMask,
    /// The source has sent data in this resync, and thereby everything that it had to say before.
    heard: bool,
    /// Only the answer to this request or a later one counts for that.
    hears_from: u64,
    /// Source: holds the resync back in favour of users' I/O.
    throttle: Option<Throttle>,
    /// Source: some requests wait until then.
    release_at: Option<Instant>,
}

impl Resync {
    fn new(now: Instant, first_id: u64) -> Resync {
        Resync {
            receiver: None,
            received: false,
            sent: false,
            leave: Leave::Unasked,
            cursor: 0,
            requests: BTreeMap::new(),
            first_id,
            in_flight: 0,
            replied: 0,
            controller: Controller::new(),
            window: Window::new(now, first_id, Sectors(0)),
            stuck: false,
            last_turn: now,
            next_turn: None,
            may_write: false,
            start: GenUuid::NONE,
            total: 0,
            failed: 0,
            by_digest: false,
            same_digest: 0,
            since: now,
            finishing: false,
            halted: false,
            resumed_at: first_id,
            asked: NodeMask::EMPTY,
            heard: false,
            hears_from: 0,
            throttle: None,
            release_at: None,
        }
    }
}

impl Resync {
    #[cfg(test)]
    pub(crate) const fn is_halted(&self) -> bool {
        self.halted
    }

    /// The source is Ahead: nothing more is asked for, and no end is near.
    pub(crate) fn call_off(&mut self) {
        (self.receiver, self.received, self.finishing) = (None, false, false);
        self.next_turn = None;
    }
}

impl Resource {
    fn agreed(&self, peer: PeerIx) -> Agreed {
        Agreed::new(self.peers[peer].agreed_version, self.peers[peer].agreed_features)
    }

    pub(crate) fn resync_mut(&mut self, peer: PeerIx, vol: VolIx) -> &mut Resync {
        let (now, first) = (self.now, self.next_resync_request);
        let resync = &mut self.peers[peer].devs[vol].resync;
        resync.get_or_insert_with(|| Box::new(Resync::new(now, first)))
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
            Ahead, Behind, Established, PausedSyncS, PausedSyncT, StartingSyncS, StartingSyncT,
            SyncSource, SyncTarget, VerifyS, VerifyT, WFBitMapS, WFBitMapT,
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
        self.peers[peer].devs[vol].unfollowed &= is.is_source();
        self.review_agreement(peer, vol);
        self.review_ahead(peer);
        match is {
            Ahead => self.went_ahead(peer, vol, was),
            Behind => self.fell_behind(peer, vol),
            WFBitMapS => {
                self.resync_mut(peer, vol).sent = false;
                let node = self.peers[peer].node;
                self.outrun_unacked(vol, SectorRange::new(0, self.vols[vol].size.0), node.mask());
                self.mark_unfinished(vol, node);
                self.cover_unacked(vol, node);
                self.peers[peer].devs[vol].joined = NodeMask::ALL;
                self.send_bitmap(peer, vol);
                self.exchange_progress(peer, vol);
            }
            WFBitMapT => {
                self.resync_mut(peer, vol).sent = false;
                // Not on this disk while it was away, and not yet on the one it catches up with:
                // nobody has counted them as missing here.
                let node = self.peers[peer].node;
                self.outrun_unacked(vol, SectorRange::new(0, self.vols[vol].size.0), node.mask());
                self.mark_unfinished(vol, node);
                self.exchange_progress(peer, vol);
            }
            StartingSyncT => self.set_all_bits(peer, vol, true),
            StartingSyncS => {
                self.peers[peer].devs[vol].joined = NodeMask::ALL;
                self.set_all_bits(peer, vol, false);
            }
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
                    self.notify(HandlerEvent::BeforeResyncSource, Some(peer), Some(vol));
                    let total = self.out_of_sync(peer, vol).0;
                    let (now, load) = (self.now, self.load(vol));
                    let resync = self.resync_mut(peer, vol);
                    resync.total = total;
                    resync.throttle =
                        load.map(|l| Throttle::new(now, Sectors(total), l.foreign_total));
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
                    if self.peers[peer].devs[vol].verify_found {
                        self.notify(HandlerEvent::OutOfSync, Some(peer), Some(vol));
                    }
                }
                self.recompare_if_due(peer, vol);
            }
            _ => self.end_resync(peer, vol),
        }
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
            ReplState::StartingSyncT if !self.may_begin_resync(peer, vol) => return,
            ReplState::StartingSyncT => ReplState::SyncTarget,
            _ => return,
        };
        self.change_hard(|st| st.peers[peer].devs[vol].repl = next);
    }

    fn start_target(&mut self, peer: PeerIx, vol: VolIx) {
        let situation = self.situation(vol);
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        let source_bitmap = uuids.map_or(GenUuid::NONE, |u| u.bitmap_of(self.me));
        let stable = uuids.is_some_and(|u| u.flags.has(UuidFlags::STABLE));
        let goal = uuids.map_or(GenUuid::NONE, |u| u.current);
        let total = self.out_of_sync(peer, vol).0;
        let rng = &mut self.rng;
        let protocol = self.peers[peer].net.protocol;
        let Volume { backing: Some(backing), stats, .. } = &mut self.vols[vol] else { return };
        // In the same generation, and with protocol C, the source lacks nothing that users here know of.
        stats.foreign += u64::from(!goal.same(backing.gens.current()) || protocol != Protocol::C);
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
        let (now, next) = (self.now, self.next_resync_request);
        let users_total = self.users_total(vol);
        let unstable = self.unstable_source(peer, vol, stable);
        let by_digest = self.goes_by_digests(peer, vol);
        self.peers[peer].devs[vol].unstable = unstable;
        self.peers[peer].devs[vol].plain.begin();
        let resync = self.resync_mut(peer, vol);
        resync.start = started.start;
        resync.cursor = 0;
        resync.total = total;
        resync.failed = 0;
        resync.by_digest = by_digest;
        resync.same_digest = 0;
        resync.since = now;
        resync.last_turn = now;
        resync.may_write = false;
        resync.finishing = false;
        resync.halted = false;
        resync.resumed_at = next;
        resync.heard = false;
        resync.controller = Controller::new();
        resync.window = Window::new(now, next, users_total);
        resync.stuck = false;
        self.log(LogLevel::Info, text);
        if self.bind(vol, goal, Some(peer), NodeMask::ALL) {
            self.record_bound(vol, goal);
        }
        // Inconsistent is durable before the first block is overwritten (invariant 39).
        self.persist_with_bitmap(vol, Work::ResyncMayWrite(peer, vol));
        self.doubt_ancestors(vol);
    }

    /// The source has named the generation of this disk until the resync ends (protocol 8).
    pub(crate) fn resync_starts_at(&mut self, peer: PeerIx, vol: VolIx, uuid: GenUuid) {
        if let Some(resync) = self.peers[peer].devs[vol].resync.as_mut() {
            resync.start = uuid;
        }
    }

    /// The state of a resync is left: whatever was in flight for it is forgotten.
    fn end_resync(&mut self, peer: PeerIx, vol: VolIx) {
        if let Some(resync) = self.peers[peer].devs[vol].resync.take() {
            for (id, request) in resync.requests {
                self.drop_request(peer, vol, id, &request);
            }
        }
        for key in self.serve_keys(peer, vol, |k| k != ServeKind::Verify) {
            self.drop_serve(key);
        }
        self.write_bitmap(vol);
    }

    /// The connection is lost: nothing of a resync goes on.
    pub(crate) fn resync_lost_peer(&mut self, peer: PeerIx) {
        self.serve_lost_peer(peer);
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
