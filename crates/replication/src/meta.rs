//! Durability: the metadata of an attached disk, and what waits for it to be written.
//!
//! At most one metadata write per volume is in flight, so that no two versions of a block can
//! pass each other on the way to the disk. What needs the metadata to be durable hands over a
//! piece of [`Work`] that is queued once a write that started later has completed.

mod moving;

use std::collections::VecDeque;

use codec::disk::{MdFlags, PeerFlags, Superblock};
use serde::{Deserialize, Serialize};
use vocab::{
    ConnState, Dagtag, DiskState, GenUuid, HandlerEvent, Instant, MAX_NODES, NodeId, NodeMask,
    Role, SectorRange, Sectors,
};

use crate::activity_log::ActivityLog;
use crate::bitmap::{Bitmap, Changed};
use crate::bound::ANYTHING;
use crate::gather::Gather;
use crate::generation::Generations;
use crate::io::{DiskError, DiskLimits, LogLevel, MetaBlock, MetaPlace, MetaWrite, OpId, Output};
use crate::parting::Parting;
use crate::peers_in_sync::Claim;
use crate::request::WaitingOn;
use crate::resize::Measure;
use crate::resource::{Op, Resource, Work};
use crate::state::VolIx;
use moving::Moving;
pub(crate) use moving::is_half_moved;
use vocab::options::{Fencing, OnIoError};

/// An attached disk.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Backing {
    /// As read or last written, except for generations and state flags, see [`Resource::superblock`].
    pub sb: Superblock,
    pub gens: Generations,
    pub bitmap: Bitmap,
    pub al: ActivityLog,
    /// What peers have said lately about ranges in which they are equal to this node.
    pub claims: VecDeque<Claim>,
    /// Ranges that a node got from here, to be claimed when the application does not write them.
    pub unclaimed: VecDeque<(NodeId, SectorRange)>,
    /// Ranges that this resync target was told to miss, and whose bits are not on disk yet; the first
    /// so many are being written.
    pub told: VecDeque<SectorRange>,
    pub told_writing: usize,
    pub limits: DiskLimits,
    /// What the device offers for data.
    pub capacity: Sectors,
    pub measure: Measure,
    /// Some node is or was Primary and the activity log matters (metadata §5.2).
    pub primary_ind: bool,
    /// The last completed superblock write said PRIMARY_IND.
    primary_ind_durable: bool,
    /// A generation adopted from a peer is not durable yet: its writes wait.
    held_writes: u32,
    /// What this resync target takes part in is not on record yet: its writes wait.
    unbound: u32,
    /// The size of the volume is not on record yet: its writes wait. None is ever beyond what the
    /// metadata knows.
    unrecorded_size: u32,
    /// The generation before those that writes wait for: the one that is durable.
    durable_before: Option<GenUuid>,
    /// At attach, the metadata said that this node alone held quorum.
    pub restore_quorum: bool,
    /// Peers whose answer the attach waits for.
    pub negotiating: Option<NodeMask>,
    meta: MetaQueue,
}

/// Metadata writes of one disk.
#[derive(Debug, Default, Serialize, Deserialize)]
struct MetaQueue {
    #[serde(skip)]
    in_flight: Option<InFlight>,
    /// The superblock on disk; none before this attach has written one.
    durable: Option<Box<Superblock>>,
    /// Counts changes of the superblock.
    changed: u64,
    /// The last change on disk.
    written: u64,
    /// Bitmap blocks are to be written with or before the next superblock.
    bitmap: bool,
    waiters: VecDeque<(u64, Work)>,
    /// Write a changed superblock at the latest now.
    sync_at: Option<Instant>,
    /// Write lazily changed bitmap blocks now.
    pub lazy_at: Option<Instant>,
    log: Log,
    /// Blocks of the activity log.
    log_blocks: u32,
    /// When the next activity log transaction is to start.
    gather: Gather,
    moving: Moving,
}

/// The activity log of a disk that was just attached.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Log {
    /// Replayed into the bitmap. What it says is needed until that is on disk.
    #[default]
    Replayed,
    /// The bitmap has everything, and the superblock says that the log is not to be replayed.
    Clean,
    /// Initialised: transactions may go there.
    Ready,
}

#[derive(Debug)]
pub(crate) struct InFlight {
    op: OpId,
    /// The superblock it carries.
    superblock: Option<Written>,
    al: bool,
    /// Blocks of the bitmap.
    blocks: Vec<u64>,
}

impl InFlight {
    /// It is that operation.
    pub(crate) fn is(&self, op: OpId) -> bool {
        self.op == op
    }

    pub(crate) const fn has_superblock(&self) -> bool {
        self.superblock.is_some()
    }

    /// The superblock it carries.
    pub(crate) fn into_superblock(self) -> Option<Box<Superblock>> {
        self.superblock.map(|written| written.content)
    }
}

/// A superblock that is being written.
#[derive(Debug)]
struct Written {
    /// The change it carries.
    change: u64,
    content: Box<Superblock>,
}

/// A changed superblock is written at the latest after this time (metadata §6).
const SYNC_DELAY: std::time::Duration = std::time::Duration::from_secs(5);
/// Bits cleared by a resync are written at most this often.
const LAZY_DELAY: std::time::Duration = std::time::Duration::from_secs(2);

/// What tells that a disk and its content are those seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Content {
    device: u64,
    current: GenUuid,
}

impl Backing {
    /// Something is under way that only its driver knows all of.
    pub(crate) const fn is_being_changed(&self) -> bool {
        self.meta.in_flight.is_some() || self.measure.is_running() || self.negotiating.is_some()
    }

    /// The disk and the generation it holds.
    pub(crate) fn content(&self) -> Content {
        Content { device: self.sb.device_uuid, current: self.gens.current() }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a disk, named once")]
    pub(crate) fn new(
        sb: Superblock,
        gens: Generations,
        bitmap: Bitmap,
        al: ActivityLog,
        limits: DiskLimits,
        capacity: Sectors,
        restore_quorum: bool,
        log_blocks: u32,
    ) -> Backing {
        let primary_ind = sb.flags.contains(MdFlags::PRIMARY_IND);
        let meta = MetaQueue { log_blocks, ..MetaQueue::default() };
        Backing {
            sb,
            gens,
            bitmap,
            al,
            claims: VecDeque::new(),
            unclaimed: VecDeque::new(),
            told: VecDeque::new(),
            told_writing: 0,
            limits,
            capacity,
            measure: Measure::default(),
            primary_ind,
            primary_ind_durable: primary_ind,
            held_writes: 0,
            unbound: 0,
            unrecorded_size: 0,
            durable_before: None,
            restore_quorum,
            negotiating: None,
            meta,
        }
    }

    /// The bitmap slot of a node.
    pub(crate) fn slot_of(&self, node: NodeId) -> Option<usize> {
        self.sb.peers[node.index()].bitmap_index.map(usize::from)
    }

    /// The node a bitmap slot is allocated to.
    pub(crate) fn node_of_slot(&self, slot: usize) -> Option<NodeId> {
        NodeId::all().find(|n| self.slot_of(*n) == Some(slot))
    }

    /// Blocks of this disk, or of the slot's node, have changed: they may differ now, whatever was
    /// said about that range before.
    pub(crate) fn set_range(&mut self, slot: usize, range: SectorRange) {
        self.bitmap.set_range(slot, range);
        self.claims.retain(|claim| !claim.range.overlaps(range));
    }

    /// Any block may differ now.
    pub(crate) fn set_all(&mut self, slot: usize) {
        self.bitmap.set_all(slot);
        self.claims.clear();
    }

    /// Whatever differs from the node of `from` may differ from that of `to`.
    pub(crate) fn merge_slot(&mut self, from: usize, to: usize) {
        self.bitmap.merge_slot(from, to);
        self.claims.clear();
    }

    /// Clears bits of a slot whose node got those blocks, and remembers that the slot does not
    /// tell everything since its generation any more.
    pub(crate) fn clear_range(&mut self, slot: usize, range: SectorRange) {
        if self.bitmap.clear_range(slot, range) > 0 {
            if let Some(node) = self.node_of_slot(slot) {
                self.gens.bits_cleared(node);
            }
        }
    }

    /// Out-of-sync blocks towards a node; a node without slot has none that are known.
    pub(crate) fn oos(&self, node: NodeId) -> u64 {
        self.slot_of(node).map_or(0, |slot| self.bitmap.count(slot))
    }

    /// Bitmap generation towards a node.
    pub(crate) fn bitmap_uuid(&self, node: NodeId) -> GenUuid {
        self.gens.bitmap(node).uuid
    }

    /// A user's write is complete, so long after it went to the disks.
    pub(crate) fn write_done(&mut self, took: std::time::Duration) {
        self.meta.gather.write_done(took);
    }

    /// After a crash now, the activity log would be applied: writes may start.
    pub(crate) const fn may_write(&self) -> bool {
        self.primary_ind_durable
            && self.held_writes == 0
            && self.unbound == 0
            && self.unrecorded_size == 0
    }

    /// Writes wait until the size of the volume is on record.
    pub(crate) const fn hold_for_size(&mut self) {
        self.unrecorded_size += 1;
    }

    /// The inverse of [`Self::hold_for_size`].
    pub(crate) const fn release_for_size(&mut self) {
        self.unrecorded_size = self.unrecorded_size.saturating_sub(1);
    }

    /// Writes wait until it is on record what this resync target takes part in.
    pub(crate) const fn hold_for_bound(&mut self) {
        self.unbound += 1;
    }

    /// The inverse of [`Self::hold_for_bound`].
    pub(crate) const fn release_for_bound(&mut self) {
        self.unbound = self.unbound.saturating_sub(1);
    }

    /// That is not on record yet.
    pub(crate) const fn is_binding(&self) -> bool {
        self.unbound > 0
    }

    /// Writes wait for a generation, that follows `previous`, to become durable.
    pub(crate) fn hold_writes(&mut self, previous: GenUuid) {
        self.held_writes += 1;
        self.durable_before.get_or_insert(previous);
    }

    /// A generation adopted from a peer is not durable yet.
    pub(crate) const fn is_adopting(&self) -> bool {
        self.held_writes > 0
    }

    /// The inverse of [`Self::hold_writes`].
    pub(crate) fn release_writes(&mut self) {
        self.held_writes = self.held_writes.saturating_sub(1);
        if self.held_writes == 0 {
            self.durable_before = None;
        }
    }

    /// The metadata as read says that the data is consistent.
    pub(crate) const fn md_consistent(&self) -> bool {
        self.sb.flags.contains(MdFlags::CONSISTENT)
    }
}

impl Resource {
    /// The superblock has changed; it is written soon.
    pub(crate) fn md_changed(&mut self, vol: VolIx) {
        let at = self.now + SYNC_DELAY;
        if let Some(backing) = &mut self.vols[vol].backing {
            backing.meta.changed += 1;
            backing.meta.sync_at.get_or_insert(at);
        }
    }

    /// What waits for the metadata of a volume.
    pub(crate) fn wait_for_metadata_mut(&mut self, vol: VolIx) -> impl Iterator<Item = &mut Work> {
        let backing = self.vols[vol].backing.iter_mut();
        backing.flat_map(|backing| backing.meta.waiters.iter_mut().map(|(_, then)| then))
    }

    /// Writes the superblock as it is now, then does `then`. Without a disk there is nothing to
    /// wait for.
    pub(crate) fn persist(&mut self, vol: VolIx, then: Work) {
        match &mut self.vols[vol].backing {
            Some(backing) => {
                backing.meta.changed += 1;
                let change = backing.meta.changed;
                backing.meta.waiters.push_back((change, then));
            }
            None => self.work.push_back(then),
        }
    }

    /// Like [`Self::persist`], with every changed bitmap block on disk before.
    pub(crate) fn persist_with_bitmap(&mut self, vol: VolIx, then: Work) {
        if let Some(backing) = &mut self.vols[vol].backing {
            backing.meta.bitmap = true;
        }
        self.persist(vol, then);
    }

    /// Changed bitmap blocks are written, at some time soon.
    pub(crate) fn write_bitmap(&mut self, vol: VolIx) {
        if let Some(backing) = &mut self.vols[vol].backing {
            backing.meta.bitmap = true;
        }
    }

    /// Bits were cleared: they are written lazily.
    pub(crate) fn write_bitmap_lazily(&mut self, vol: VolIx) {
        let at = self.now + LAZY_DELAY;
        if let Some(backing) = &mut self.vols[vol].backing {
            backing.meta.lazy_at.get_or_insert(at);
        }
    }

    /// Next time the metadata wants attention.
    pub(crate) fn meta_deadline(&self, vol: VolIx) -> Option<Instant> {
        let meta = &self.vols[vol].backing.as_ref()?.meta;
        if meta.in_flight.is_some() {
            return None;
        }
        [meta.sync_at, meta.lazy_at, meta.gather.deadline()].into_iter().flatten().min()
    }

    /// Starts the next metadata write, if one is wanted and none is in flight.
    pub(crate) fn pump_meta(&mut self, vol: VolIx) {
        let now = self.now;
        let waits = !self.vols[vol].al_wait.is_empty();
        let Some(backing) = &mut self.vols[vol].backing else { return };
        if backing.meta.in_flight.is_some() {
            return;
        }
        if backing.meta.lazy_at.is_some_and(|at| at <= now) {
            backing.meta.bitmap = true;
        }
        if self.move_on(vol) {
            return;
        }
        let Some(backing) = &mut self.vols[vol].backing else { return };
        let meta = &mut backing.meta;
        let sync_due = meta.sync_at.is_some_and(|at| at <= now);
        meta.bitmap |= meta.log == Log::Replayed;
        if meta.log != Log::Ready || !meta.waiters.is_empty() || sync_due {
            self.write_superblock(vol);
        } else if waits && !backing.primary_ind_durable {
            // The first write under a Primary: the indication comes before everything.
            backing.primary_ind = true;
            self.write_superblock(vol);
        } else if self.al_is_due(vol) && self.write_activity_log(vol) {
        } else if self.vols[vol].backing.as_ref().is_some_and(|b| b.meta.bitmap) {
            self.start_meta(vol, None, None, false, Vec::new());
        }
    }

    fn write_superblock(&mut self, vol: VolIx) {
        let mut content = Box::new(self.superblock(vol));
        self.mark_moving(vol, &mut content);
        self.recording(vol, &content);
        let block = MetaBlock { place: MetaPlace::Superblock, bytes: content.encode() };
        self.vols[vol].stats.sb_writes += 1;
        let backing = self.vols[vol].backing.as_mut().expect("checked by the caller");
        let written = Written { change: backing.meta.changed, content };
        self.start_meta(vol, Some(block), Some(written), false, Vec::new());
    }

    /// Starts the activity log transaction that writes wait for; false if there is none.
    fn write_activity_log(&mut self, vol: VolIx) -> bool {
        let backing = self.vols[vol].backing.as_mut().expect("checked by the caller");
        let Some(transaction) = backing.al.start_transaction() else { return false };
        backing.meta.gather.started(self.now);
        let mut blocks = Vec::new();
        for extent in &transaction.evicted {
            let covering = backing.bitmap.blocks_of_extent(*extent);
            backing.bitmap.take_dirty(covering, Changed::Must, usize::MAX, &mut blocks);
        }
        let place = MetaPlace::ActivityLog(transaction.block_index);
        let block = MetaBlock { place, bytes: transaction.block };
        self.start_meta(vol, Some(block), None, true, blocks);
        // Peers get the writes that wait next, and need extents for them. Those of every write
        // whose end they have not heard of they still hold.
        self.flush_peer_acks();
        true
    }

    /// True if the next activity log transaction is to start now.
    fn al_is_due(&mut self, vol: VolIx) -> bool {
        let volume = &mut self.vols[vol];
        let queued = volume.al_queued.len();
        // Received writes claim their range before they ask for extents, users' writes afterwards.
        // What resync and verify claim counts as company, too: at worst a write waits in vain.
        let claimed = volume.al_queued.iter().filter(|w| matches!(w, WaitingOn::Peer(_))).count();
        let others = volume.intervals.len() > claimed;
        let backing = volume.backing.as_mut().expect("checked by the caller");
        let (al, gather) = (&backing.al, &mut backing.meta.gather);
        // A write that asked in vain gets nothing before this transaction is done.
        if !al.has_changes() || al.is_full() || !volume.al_wait.is_empty() {
            return true;
        }
        gather.is_due(self.now, self.in_timeout, queued, others)
    }

    fn start_meta(
        &mut self,
        vol: VolIx,
        commit: Option<MetaBlock>,
        superblock: Option<Written>,
        al: bool,
        mut blocks: Vec<u64>,
    ) {
        let op = self.op(Op::Meta(vol));
        let volume = &mut self.vols[vol];
        let backing = volume.backing.as_mut().expect("checked by the caller");
        let mut plain = Vec::new();
        if std::mem::take(&mut backing.meta.bitmap) {
            backing.meta.lazy_at = None;
            let area = 0..backing.bitmap.blocks();
            backing.bitmap.take_dirty(area, Changed::Any, usize::MAX, &mut blocks);
        }
        for index in &blocks {
            let mut bytes = codec::disk::zeroed_block();
            backing.bitmap.encode_block(*index, &mut bytes);
            plain.push(MetaBlock { place: MetaPlace::Bitmap(*index), bytes });
        }
        volume.stats.bm_writes += plain.len() as u64;
        if backing.meta.log == Log::Clean || backing.meta.moving == Moving::Fill {
            for index in 0..backing.meta.log_blocks {
                let bytes = codec::disk::activity_log::empty_block();
                plain.push(MetaBlock { place: MetaPlace::ActivityLog(index), bytes });
            }
        }
        if superblock.is_some() {
            backing.meta.sync_at = None;
        }
        backing.meta.in_flight = Some(InFlight { op, superblock, al, blocks });
        let flush = volume.disk_opts.md_flushes;
        let write = MetaWrite { plain, commit, flush };
        self.out.push_back(Output::MetaWrite { volume: volume.nr, op, write });
    }

    /// A metadata write has ended.
    pub(crate) fn meta_done(&mut self, op: OpId, result: Result<(), DiskError>) {
        let ended = self.ops.remove(op.0 as usize).map(|running| running.op);
        let Some(Op::Meta(vol)) = ended else { return };
        self.parting_done(vol, op, result.is_ok());
        let Some(backing) = &mut self.vols[vol].backing else { return };
        let Some(done) = backing.meta.in_flight.take_if(|f| f.op == op) else { return };
        for block in done.blocks {
            backing.bitmap.block_written(block, result.is_ok());
        }
        if result.is_err() {
            // Nothing that relied on this write may go on here (metadata §3.4).
            self.tell_io_error(vol);
            return self.give_up_disk(vol, "a metadata write failed");
        }
        backing.meta.log = match backing.meta.log {
            Log::Replayed => Log::Clean,
            Log::Clean | Log::Ready => Log::Ready,
        };
        if let Some(Written { change, content }) = done.superblock {
            let primary_ind = content.flags.contains(MdFlags::PRIMARY_IND);
            backing.meta.written = change;
            backing.primary_ind_durable = primary_ind;
            while backing.meta.waiters.front().is_some_and(|(c, _)| *c <= change) {
                let (_, work) = backing.meta.waiters.pop_front().expect("looked at above");
                self.work.push_back(work);
            }
            let content = backing.meta.durable.insert(content);
            let adrift = content.peer(self.me).bitmap_uuid.same(ANYTHING);
            if primary_ind {
                self.retry_al(vol);
            }
            self.recorded(vol, adrift);
            self.moved_on(vol);
        }
        if done.al {
            let volume = &mut self.vols[vol];
            let backing = volume.backing.as_mut().expect("looked at above");
            backing.meta.gather.ended(self.now, volume.al_queued.len() + volume.al_wait.len());
            backing.al.transaction_done();
            self.al_transaction_done(vol);
        }
    }

    /// The superblock that describes the present state (metadata §5.2, §5.3).
    pub(crate) fn superblock(&self, vol: VolIx) -> Superblock {
        let volume = &self.vols[vol];
        let backing = volume.backing.as_ref().expect("checked by the caller");
        let state = &self.st.vols[vol];
        let mut sb = backing.sb.clone();
        sb.current_uuid = backing.gens.current();
        sb.history = *backing.gens.history();
        for (slot, uuid) in sb.peers.iter_mut().zip(backing.gens.bitmaps()) {
            slot.bitmap_uuid = uuid.uuid;
            slot.bitmap_dagtag = uuid.dagtag;
        }
        let own = sb.peer_mut(self.me);
        own.bitmap_uuid = if self.is_leaving(vol) { ANYTHING } else { self.bound_for(vol) };
        own.bitmap_dagtag = Dagtag(if volume.has_lost_cache() { 0 } else { volume.boot });
        sb.members = self.members;
        let flags = &mut sb.flags;
        if state.disk >= DiskState::Inconsistent {
            flags.set(MdFlags::CONSISTENT, state.disk > DiskState::Inconsistent);
            let current = state.disk > DiskState::Outdated && !self.may_be_outdated();
            flags.set(MdFlags::WAS_UP_TO_DATE, current);
        } else if state.disk == DiskState::Detaching {
            // From here on a Primary writes without this disk (semantics §1.6).
            if self.is_outrun(vol) {
                flags.set(MdFlags::WAS_UP_TO_DATE, false);
            }
        }
        flags.set(MdFlags::PRIMARY_IND, backing.primary_ind);
        let crashed = self.st.role == Role::Primary || volume.crashed_primary;
        flags.set(MdFlags::CRASHED_PRIMARY, crashed);
        flags.set(MdFlags::PRIMARY_LOST_QUORUM, volume.lost_quorum);
        flags.set(MdFlags::HAVE_QUORUM, state.quorum);
        // Imitates the kernel: a running device is never clean, and the log is replayed here at
        // the next attach, or by drbdmeta. Until it is initialised it may be torn.
        flags.set(MdFlags::AL_CLEAN, backing.meta.log == Log::Replayed);
        if state.disk > DiskState::Negotiating {
            for (peer, st) in self.peers.iter().zip(&self.st.peers) {
                let slot = &mut sb.peers[peer.node.index()];
                let dev = &st.devs[vol];
                let connected = st.conn == ConnState::Connected;
                slot.flags.set(PeerFlags::CONNECTED, connected);
                slot.flags.set(PeerFlags::FENCING, peer.net.fencing != Fencing::DontCare);
                // A resync that runs may come to its end while this node is away.
                let inconsistent = dev.disk == DiskState::Inconsistent
                    && !connected
                    && !peer.devs[vol].maybe_current;
                // Nor is one known to be harmless that has not heard that it is left behind.
                let heard = !peer.devs[vol].unfollowed && !peer.devs[vol].maybe_current;
                let outdated = dev.disk == DiskState::Outdated && heard || inconsistent;
                slot.flags.set(PeerFlags::OUTDATED, outdated);
                if connected {
                    slot.flags.set(PeerFlags::NODE_EXISTS, true);
                }
                if dev.disk >= DiskState::Inconsistent && dev.disk != DiskState::DUnknown {
                    slot.flags.set(PeerFlags::DEVICE_SEEN, true);
                }
                if dev.disk == DiskState::Diskless && !peer.devs[vol].opts.bitmap {
                    slot.flags.set(PeerFlags::DEVICE_SEEN, false);
                }
            }
        }
        if self.leaves_as_crashed(vol, &sb) {
            sb.flags.set(MdFlags::CRASHED_PRIMARY, true);
        }
        sb
    }

    /// Keeps what the superblock says about the disk, so that it survives a detach, and about
    /// peers, so that it survives a lost connection.
    pub(crate) fn note_md_flags(&mut self, vol: VolIx) {
        if self.vols[vol].backing.is_none() {
            return;
        }
        let sb = self.superblock(vol);
        let backing = self.vols[vol].backing.as_mut().expect("looked at above");
        backing.sb.flags = sb.flags;
        for (slot, new) in backing.sb.peers.iter_mut().zip(&sb.peers) {
            slot.flags = new.flags;
        }
    }

    /// The backing device reported an error (semantics §7.1).
    pub(crate) fn disk_failed(&mut self, vol: VolIx, range: Option<SectorRange>, what: &str) {
        if self.st.vols[vol].disk <= DiskState::Failed || self.vols[vol].backing.is_none() {
            return;
        }
        let policy = self.vols[vol].disk_opts.on_io_error;
        match (policy, range) {
            (OnIoError::PassOn, Some(range)) => {
                let backing = self.vols[vol].backing.as_mut().expect("looked at above");
                for slot in 0..backing.bitmap.slots() {
                    backing.set_range(slot, range);
                }
                self.write_missed(vol, range, NodeMask::ALL);
                let text = format!(
                    "{}/{}: {what} at {range}; the disk stays attached as Inconsistent \
                     (on-io-error pass_on)",
                    self.name, self.vols[vol].nr
                );
                self.log(LogLevel::Error, text);
                self.change_hard(|st| {
                    st.vols[vol].disk = st.vols[vol].disk.min(DiskState::Inconsistent);
                });
            }
            _ => {
                self.tell_io_error(vol);
                self.give_up_disk(vol, what);
            }
        }
    }

    /// The device of a disk has failed.
    pub(crate) fn tell_io_error(&mut self, vol: VolIx) {
        if self.vols[vol].disk_opts.on_io_error == OnIoError::CallLocalIoError {
            self.notify(HandlerEvent::LocalIoError, None, Some(vol));
        }
    }

    /// The disk is lost: Failed, then Diskless. What was in flight on it counts as failed.
    pub(crate) fn give_up_disk(&mut self, vol: VolIx, what: &str) {
        if self.vols[vol].backing.is_none() {
            return;
        }
        let text = format!(
            "{}/{}: {what}; the disk is detached. Replace it, then attach: what it missed is \
             resynced.",
            self.name, self.vols[vol].nr
        );
        self.log(LogLevel::Error, text);
        if self.st.role == Role::Primary {
            self.vols[vol].crashed_primary = false;
        }
        self.change_hard(|st| st.vols[vol].disk = DiskState::Failed);
        self.drop_disk(vol);
    }

    /// Last step of losing or detaching a disk.
    pub(crate) fn drop_disk(&mut self, vol: VolIx) {
        let leaving = self.is_leaving(vol);
        let Some(backing) = self.vols[vol].backing.take() else { return };
        self.vols[vol].detached = Some(backing.content());
        self.vols[vol].released = Some(Box::new(backing.gens.clone()));
        if let Some(previous) = backing.durable_before {
            // Lost with the disk, before anybody was told that it has it.
            self.vols[vol].expose(previous);
        }
        self.abort_disk_change(vol);
        // Whoever waited for the metadata goes on without it: there is none any more.
        for (_, work) in backing.meta.waiters {
            self.work.push_back(work);
        }
        self.work.extend(backing.measure.waiting);
        let queued = std::mem::take(&mut self.vols[vol].al_queued);
        self.vols[vol].al_wait.extend(queued);
        self.forget_al(vol);
        self.change_hard(|st| st.vols[vol].disk = DiskState::Diskless);
        self.abort_local(vol);
        self.reads_lost_disk(vol);
        self.abandon(vol);
        self.retry_al(vol);
        self.kick_all();
        let parting = Parting::new(backing.meta.durable, backing.meta.in_flight);
        self.part_with(vol, parting, leaving);
    }

    /// PRIMARY_IND is cleared once nobody is Primary, nothing received is unsettled and the
    /// bits are on disk (metadata §5.2).
    pub(crate) fn review_primary_ind(&mut self, vol: VolIx) {
        let primary = self.st.role == Role::Primary || !self.st.primary_peers().is_empty();
        let busy = self.vols[vol].crashed_secondary
            || self.log.len() > 0
            || self.peers.iter().any(|p| p.recv.unacked.iter().any(|u| u.vol == vol))
            || self.peer_writes.iter().any(|(_, w)| w.vol == vol);
        let Some(backing) = &mut self.vols[vol].backing else { return };
        if primary {
            if !backing.primary_ind {
                backing.primary_ind = true;
                backing.meta.changed += 1;
                backing.meta.sync_at = Some(self.now);
            }
        } else if backing.primary_ind && !busy {
            backing.primary_ind = false;
            backing.meta.changed += 1;
            backing.meta.bitmap = true;
            backing.meta.sync_at = Some(self.now);
        }
    }

    /// The next pump writes a changed superblock.
    pub(crate) fn md_sync_now(&mut self, vol: VolIx) {
        let now = self.now;
        if let Some(backing) = &mut self.vols[vol].backing {
            backing.meta.sync_at = Some(now);
        }
    }

    /// Metadata invariants that hold after every input.
    pub(crate) fn meta_invariants(&self, vol: VolIx) {
        let Some(backing) = &self.vols[vol].backing else { return };
        assert!(backing.meta.written <= backing.meta.changed);
        let mut slots = NodeMask::EMPTY;
        for node in NodeId::all() {
            if let Some(slot) = backing.slot_of(node) {
                assert_ne!(node, self.me, "a node keeps no bitmap for itself");
                assert!(slot < MAX_NODES);
                assert!(!slots.contains(NodeId::new(slot as u8).expect("below 32")));
                slots.insert(NodeId::new(slot as u8).expect("below 32"));
            }
        }
    }
}
