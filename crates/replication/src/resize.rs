//! Changing the size of a volume by command (semantics §10). The transaction is in `twopc::resize`,
//! the move of internal metadata in `meta::moving`.
//!
//! 1. Every node with a disk looks at its device, and moves metadata to where the end is now. That
//!    changes nothing but the room there is, and stays if nothing else comes of it.
//! 2. The nodes agree on a size: what all have room for, or less if less is asked for.
//! 3. Every node records it, together with the bits of what is new, and writes wait for that. Then
//!    users hear of it. What is new is resynced from a Primary with a disk, or else in the direction
//!    in which the question went.
//!
//! A volume shrinks only if a size is named, and only while no node is Primary.

use std::time::Duration;

use codec::disk::{PeerFlags, Version};
use codec::wire::{DDS_ASSUME_PEER_HAS_SPACE, DDS_NO_RESYNC};
use serde::{Deserialize, Serialize};
use vocab::{
    Bytes, ConfigError, DiskState, Instant, NodeId, NodeMask, Refusal, RefusalCode, ReplState,
    Role, SECTOR_SIZE, SectorRange, Sectors, StateError, VolumeNr,
};

use crate::io::{DiskError, DiskMeasure, DiskOp, LogLevel, Output};
use crate::jobs::{MEASURING, RECORDING, Start};
use crate::resource::{Op, Resource, Work};
use crate::state::{PeerIx, VolIx};

/// A device that was found too small is looked at again at most this often.
const MEASURE_AGAIN: Duration = Duration::from_secs(60);

/// What an operator wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResizeWish {
    pub size: Option<Sectors>,
    pub assume_peer_has_space: bool,
    pub assume_clean: bool,
}

impl ResizeWish {
    /// dds_flags on the wire.
    pub(crate) const fn flags(&self) -> u16 {
        let space = if self.assume_peer_has_space { DDS_ASSUME_PEER_HAS_SPACE } else { 0 };
        space | if self.assume_clean { DDS_NO_RESYNC } else { 0 }
    }
}

/// A look at the device of a disk.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measure {
    running: bool,
    /// The room there is once the metadata has moved.
    capacity: Option<Sectors>,
    /// Metadata was there, and zeroes are not.
    left: Option<SectorRange>,
    /// The device can not be used as it is now.
    trouble: Option<String>,
    since: Option<Instant>,
    /// What goes on then.
    pub waiting: Vec<Work>,
}

impl Measure {
    pub(crate) const fn is_running(&self) -> bool {
        self.running
    }
}

/// Who has what in a resize that is agreed on.
pub(crate) struct Agreed {
    pub size: Sectors,
    pub flags: u16,
    pub diskful_primaries: NodeMask,
    /// Nodes that this node has asked, and those that have asked it.
    pub children: NodeMask,
    pub parents: NodeMask,
}

impl Resource {
    // ---- the device ----------------------------------------------------------------------

    /// Looks at the device of the disk, brings its metadata to where they belong, and does `then`.
    pub(crate) fn measure(&mut self, vol: VolIx, then: Work) {
        let (now, volume) = (self.now, self.vols[vol].nr);
        let Some(backing) = &mut self.vols[vol].backing else { return self.work.push_back(then) };
        backing.measure.waiting.push(then);
        if !std::mem::replace(&mut backing.measure.running, true) {
            backing.measure.trouble = None;
            backing.measure.since = Some(now);
            self.out.push_back(Output::MeasureDisk { volume });
        }
    }

    /// What the device offers now.
    pub(crate) fn disk_measured(&mut self, nr: VolumeNr, result: Result<DiskMeasure, String>) {
        let Some(vol) = self.vol_ix(nr) else { return };
        let size = self.vols[vol].size;
        let Some(backing) = &mut self.vols[vol].backing else { return };
        if !backing.measure.running || backing.measure.capacity.is_some() {
            // Asked about a disk before this one.
            return;
        }
        let trouble = match &result {
            Err(why) => Some(why.clone()),
            Ok(found) if found.capacity < size => Some(format!(
                "its device has room for {} sectors now, the volume has {}; give it back what it had",
                found.capacity.0, size.0
            )),
            Ok(found) if found.moved.is_some() && backing.sb.version == Version::V08 => Some(
                "its metadata has version v08, which moves only while it is detached: convert it with \
                 `ashlar convert-md`, or detach it and move it with `drbdmeta`"
                    .to_owned(),
            ),
            Ok(_) => None,
        };
        match (result, trouble) {
            (Ok(DiskMeasure { capacity, moved: Some(moved) }), None) => {
                backing.measure.capacity = Some(capacity);
                backing.capacity = backing.capacity.min(capacity);
                backing.measure.left = Some(moved.left);
                self.move_metadata(vol, moved);
            }
            (Ok(found), None) => {
                backing.measure.capacity = Some(found.capacity);
                self.measured(vol);
            }
            (_, trouble) => {
                let why = trouble.clone().unwrap_or_default();
                backing.measure.trouble = trouble;
                let text = format!("{}/{nr}: {why}", self.name);
                self.log(LogLevel::Warn, text);
                self.measured(vol);
            }
        }
    }

    /// The metadata is where it belongs. What was there before becomes zeroes, as far as it is room
    /// for data that the volume does not use yet.
    pub(crate) fn metadata_moved(&mut self, vol: VolIx) {
        let (nr, size) = (self.vols[vol].nr, self.vols[vol].size);
        let text = format!("{}/{nr}: the metadata is at the new end of the device", self.name);
        self.log(LogLevel::Info, text);
        let Some(backing) = &mut self.vols[vol].backing else { return };
        let end = backing.measure.capacity.map_or(0, |capacity| capacity.0);
        let left = backing.measure.left.and_then(|left| {
            let (from, to) = (left.start.0.max(size.0), left.end().min(end));
            (from < to).then(|| SectorRange::new(from, to - from))
        });
        backing.measure.left = left;
        match left {
            Some(range) => {
                let op = self.op(Op::ZeroLeft(vol));
                let io = DiskOp::Zeroes { range, unmap: false };
                self.out.push_back(Output::Disk { volume: nr, op, io });
            }
            None => self.measured(vol),
        }
    }

    /// Zeroes are where metadata was, or could not be written there.
    pub(crate) fn left_zeroed(&mut self, vol: VolIx, result: Result<(), DiskError>) {
        if let (Some(backing), Ok(())) = (&mut self.vols[vol].backing, result) {
            backing.measure.left = None;
        }
        self.measured(vol);
    }

    fn measured(&mut self, vol: VolIx) {
        let Some(backing) = &mut self.vols[vol].backing else { return };
        backing.measure.running = false;
        let had = backing.capacity;
        if let Some(capacity) = backing.measure.capacity.take() {
            // Nobody writes to what metadata was on before it is zeroes.
            backing.capacity = capacity;
        }
        let changed = backing.capacity != had;
        let waiting = std::mem::take(&mut backing.measure.waiting);
        self.work.extend(waiting);
        if changed {
            self.tell_own_kind(vol);
        }
    }

    /// The peer's data does not fit the disk as it was when it was last looked at, which may be long
    /// ago: it is looked at again before the connection is refused for that.
    pub(crate) fn measures_first(&mut self, peer: PeerIx, vol: VolIx) -> bool {
        let now = self.now;
        let sizes = self.peers[peer].devs[vol].sizes.as_ref();
        let wanted = sizes.map_or(Sectors(0), |sizes| sizes.c_size);
        let Some(backing) = &self.vols[vol].backing else { return false };
        let recent = |at: Instant| now.since(at) < MEASURE_AGAIN;
        if wanted <= backing.capacity {
            return false;
        }
        if !backing.measure.running && !backing.measure.since.is_some_and(recent) {
            self.measure(vol, Work::Kick(vol));
        }
        self.vols[vol].backing.as_ref().is_some_and(|b| b.measure.running)
    }

    /// An operator may have given devices room since.
    pub(crate) fn forget_measures(&mut self) {
        for backing in self.vols.iter_mut().filter_map(|v| v.backing.as_mut()) {
            backing.measure.since = None;
        }
    }

    // ---- the size ------------------------------------------------------------------------

    /// The volume has that size from here on. Writes wait until it is on record, and so do users for
    /// the news of it.
    pub(crate) fn set_volume_size(&mut self, vol: VolIx, size: Sectors, set_new: bool) {
        let volume = &mut self.vols[vol];
        volume.size = size;
        for peer in &mut self.peers {
            let position = &mut peer.devs[vol].verify_position;
            *position = if *position > size.0 { 0 } else { *position };
        }
        if let Some(backing) = &mut volume.backing {
            if backing.bitmap.size() != size {
                backing.bitmap.resize(size, set_new);
            }
            backing.sb.effective_size = size;
            backing.claims.clear();
            backing.hold_for_size();
        }
        self.persist_with_bitmap(vol, Work::Resized(vol, size));
        let exchanges =
            |p: &PeerIx| matches!(self.repl(*p, vol), ReplState::WFBitMapS | ReplState::WFBitMapT);
        for peer in self.st.connected().filter(exchanges).collect::<Vec<_>>() {
            self.disagree(peer, "exchanges bitmaps of another size");
        }
    }

    /// The size is on record.
    pub(crate) fn resized(&mut self, vol: VolIx, size: Sectors) {
        let volume = &mut self.vols[vol];
        if let Some(backing) = &mut volume.backing {
            backing.release_for_size();
        }
        if volume.size == size && volume.told_size != size {
            volume.told_size = size;
            self.out.push_back(Output::SizeChanged { volume: volume.nr, size });
            self.visible_change = true;
        }
        self.retry_al(vol);
    }

    /// The size that the nodes have agreed on by transaction, or that this node has alone.
    pub(crate) fn apply_resize(&mut self, vol: VolIx, agreed: &Agreed) {
        let (old, new) = (self.vols[vol].size, agreed.size);
        if new == old {
            return;
        }
        let clean = agreed.flags & DDS_NO_RESYNC != 0;
        let starts =
            if new > old && !clean { self.resyncs_of_new(vol, agreed) } else { Vec::new() };
        let bytes = |size: Sectors| Bytes(size.0 * SECTOR_SIZE);
        let text = format!(
            "{}/{}: the size changes from {} to {}",
            self.name,
            self.vols[vol].nr,
            bytes(old),
            bytes(new)
        );
        self.log(LogLevel::Info, text);
        self.set_volume_size(vol, new, !clean);
        for peer in self.st.connected().collect::<Vec<_>>() {
            // It has agreed to the same, and does not say so once more.
            if let Some(sizes) = &mut self.peers[peer].devs[vol].sizes {
                sizes.c_size = new;
                if sizes.d_size.0 != 0 {
                    sizes.d_size = sizes.d_size.max(new);
                }
            }
        }
        for (peer, repl) in &starts {
            if repl.is_source() {
                self.peers[*peer].devs[vol].joined = NodeMask::ALL;
            }
        }
        self.change_hard(|st| {
            for (peer, repl) in &starts {
                st.peers[*peer].devs[vol].repl = *repl;
            }
        });
        // Who has not heard the end of the transaction hears of the size all the same.
        self.tell_own_kind(vol);
        self.want_catch_up();
    }

    /// Nobody is connected.
    pub(crate) fn resize_alone(&mut self, vol: VolIx, wish: ResizeWish, size: Sectors) {
        let (children, parents) = (NodeMask::EMPTY, NodeMask::EMPTY);
        let diskful_primaries = NodeMask::EMPTY;
        let flags = wish.flags();
        self.apply_resize(vol, &Agreed { size, flags, diskful_primaries, children, parents });
    }

    /// Between which disks what is new is resynced at once, and in which direction (wire §8.3 "Resize
    /// commit"). Others have bits, and are resynced by them.
    fn resyncs_of_new(&self, vol: VolIx, agreed: &Agreed) -> Vec<(PeerIx, ReplState)> {
        let primaries = agreed.diskful_primaries;
        let current = |disk| disk == DiskState::UpToDate;
        let direction = |peer: PeerIx| {
            let node = self.peers[peer].node;
            let source = match (primaries.contains(self.me), primaries.contains(node)) {
                (true, true) => self.me < node,
                (true, false) => true,
                (false, true) => false,
                (false, false) if !primaries.is_empty() => return None,
                (false, false) if agreed.children.contains(node) => true,
                (false, false) if agreed.parents.contains(node) => false,
                (false, false) => return None,
            };
            Some(if source { ReplState::SyncSource } else { ReplState::SyncTarget })
        };
        let pairs = self.st.connected().filter(|p| {
            let dev = &self.st.peers[*p].devs[vol];
            current(dev.disk) && dev.repl == ReplState::Established
        });
        match current(self.st.vols[vol].disk) {
            true => pairs.filter_map(|p| direction(p).map(|repl| (p, repl))).collect(),
            false => Vec::new(),
        }
    }

    // ---- the wish ------------------------------------------------------------------------

    /// Goes on with the wish.
    pub(crate) fn start_resize(&mut self, id: u64, vol: VolIx, wish: ResizeWish) -> Start {
        let step = self.job_mut(id).map_or(0, |j| j.step);
        if step == RECORDING {
            return Start::Done(Ok(()));
        }
        if let Err(refusal) = self.check_resize(vol) {
            let waits = refusal.code == RefusalCode::State(StateError::InTransientState);
            return match waits {
                true => self.wait_or_fail(id, refusal),
                false => Start::Done(Err(refusal)),
            };
        }
        if step == 0 {
            if let Some(job) = self.job_mut(id) {
                job.step = MEASURING;
            }
            // The answer comes at once from a device that has not changed.
            self.hold_job(id);
            self.measure(vol, Work::Job(id));
            return Start::Running;
        }
        if let Err(refusal) = self.check_measured(vol, wish) {
            return Start::Done(Err(refusal));
        }
        if self.st.connected().next().is_some() {
            self.start_resize_twopc(id, vol, wish);
            return Start::Running;
        }
        match self.new_size(vol, wish, NodeMask::EMPTY, Sectors(u64::MAX)) {
            Ok(Some(size)) => {
                self.resize_alone(vol, wish, size);
                self.job_succeeded(id);
                Start::Running
            }
            Ok(None) => Start::Done(Ok(())),
            Err(refusal) => Start::Done(Err(refusal)),
        }
    }

    /// Why this volume can not be resized now, as far as this node can tell. `InTransientState` if
    /// it can soon.
    pub(crate) fn check_resize(&self, vol: VolIx) -> Result<(), Refusal> {
        let nr = self.vols[vol].nr;
        let invalid = |detail: String| Err(Refusal::config(ConfigError::InvalidRequest, detail));
        let disk = self.st.vols[vol].disk;
        let Some(backing) = self.vols[vol].backing.as_ref().filter(|_| disk > DiskState::Failed)
        else {
            let detail = format!("volume {nr} has no disk here; resize it on a node that has one");
            return Err(Refusal::config(ConfigError::NoDisk, detail));
        };
        if self.handshake_running() || self.negotiating() || disk < DiskState::Inconsistent {
            return Err(StateError::InTransientState.into());
        }
        let busy = |p: &PeerIx| self.repl(*p, vol) > ReplState::Established;
        if let Some(peer) = self.st.connected().find(busy) {
            let detail = format!("with {}", self.peers[peer].name);
            return Err(Refusal::config(ConfigError::ResizeDuringResync, detail));
        }
        if let Some(peer) = self.st.connected().find(|p| self.peers[*p].legacy.is_some()) {
            return invalid(format!(
                "{} speaks protocol 8 (DRBD 8.4), with which sizes are not changed while it is \
                 connected; disconnect it, and resize both with --assume-peer-has-space",
                self.peers[peer].name
            ));
        }
        let blank = backing.gens.current().is_just_created();
        if disk != DiskState::UpToDate && !blank {
            let detail = format!(
                "the disk of volume {nr} is {disk} here; resize it on a node where it is UpToDate"
            );
            return Err(Refusal::state(StateError::NoUpToDateDisk, detail));
        }
        Ok(())
    }

    /// The same for a node that is asked by another one.
    pub(crate) fn may_take_part(&self, vol: VolIx, user_size: Sectors) -> Result<(), Refusal> {
        if self.handshake_running() || self.negotiating() {
            return Err(StateError::InTransientState.into());
        }
        let settling = matches!(
            self.st.vols[vol].disk,
            DiskState::Attaching | DiskState::Detaching | DiskState::Failed
        );
        if settling {
            return Err(StateError::InTransientState.into());
        }
        let busy = |p: PeerIx| {
            self.repl(p, vol) > ReplState::Established || self.peers[p].legacy.is_some()
        };
        if self.st.connected().any(busy) {
            return Err(StateError::ResyncRunning.into());
        }
        let shrinks = user_size.0 != 0 && user_size < self.vols[vol].size;
        if shrinks && self.is_used(vol) {
            let detail = "a volume that is in use does not shrink";
            return Err(Refusal::state(StateError::DeviceInUse, detail));
        }
        Ok(())
    }

    fn is_used(&self, vol: VolIx) -> bool {
        self.st.role == Role::Primary || !self.vols[vol].openers.is_empty()
    }

    /// What the device of this node's disk is like, once it was looked at.
    pub(crate) fn check_measured(&self, vol: VolIx, wish: ResizeWish) -> Result<(), Refusal> {
        let Some(backing) = &self.vols[vol].backing else { return Ok(()) };
        if let Some(why) = &backing.measure.trouble {
            let detail = format!("volume {}: {why}", self.vols[vol].nr);
            return Err(Refusal::config(ConfigError::DiskTooSmall, detail));
        }
        if wish.assume_clean && backing.measure.left.is_some() {
            let detail = "the device can not write zeroes to where its metadata was, so what is new \
                          is not equal everywhere; resize without --assume-clean";
            return Err(Refusal::config(ConfigError::InvalidRequest, detail));
        }
        Ok(())
    }

    /// A participant agrees, once its device was looked at.
    pub(crate) fn may_be_clean(&self, vol: VolIx, flags: u16) -> bool {
        let left = self.vols[vol].backing.as_ref().and_then(|b| b.measure.left);
        flags & DDS_NO_RESYNC == 0 || left.is_none()
    }

    /// The new size, out of the room that all who were reached have: own disk apart, `room`. `None`
    /// if it is the old one.
    pub(crate) fn new_size(
        &self,
        vol: VolIx,
        wish: ResizeWish,
        reached: NodeMask,
        room: Sectors,
    ) -> Result<Option<Sectors>, Refusal> {
        let old = self.vols[vol].size;
        let own = self.vols[vol].backing.as_ref().map_or(Sectors(0), |b| b.capacity);
        let most = own.min(room);
        let new = wish.size.unwrap_or(most);
        if new > most {
            let whose = if own <= room { "the disk here" } else { "the disk of a peer" };
            let detail = format!(
                "{} sectors are asked for, and {whose} has room for {} only",
                new.0, most.0
            );
            return Err(Refusal::config(ConfigError::DiskTooSmall, detail));
        }
        if new == old {
            return Ok(None);
        }
        if new < old && wish.size.is_none() {
            let detail = format!(
                "the smallest disk has room for {} sectors, the volume has {}; name the size if it \
                 is to shrink",
                new.0, old.0
            );
            return Err(Refusal::config(ConfigError::ImplicitShrink, detail));
        }
        if new < old && (self.is_used(vol) || !self.st.primary_peers().is_empty()) {
            let detail =
                "a volume that is in use does not shrink; make its Primary Secondary first";
            return Err(Refusal::state(StateError::DeviceInUse, detail));
        }
        let away = self.away(vol, reached);
        if new > old && !away.is_empty() && !wish.assume_peer_has_space {
            let detail = format!(
                "{} may have a disk that is not there, and how much room it has is not known; \
                 connect it, or forget it, or say --assume-peer-has-space",
                away.join(", ")
            );
            return Err(Refusal::config(ConfigError::InvalidRequest, detail));
        }
        Ok(Some(new))
    }

    /// Nodes that are known to have a disk, or meant to, and have not said what room it has.
    fn away(&self, vol: VolIx, reached: NodeMask) -> Vec<String> {
        let slots = self.vols[vol].backing.as_ref().map(|b| &b.sb.peers);
        let seen = |node: NodeId| {
            slots.is_some_and(|s| s[node.index()].flags.contains(PeerFlags::DEVICE_SEEN))
        };
        let there = |node: NodeId| match self.peer_ix(node) {
            Some(peer) if self.st.is_connected(peer) => {
                !self.peer_has_bitmap(peer, vol) || self.st.has_disk(peer, vol)
            }
            _ => reached.contains(node),
        };
        let name = |node: NodeId| match self.peer_ix(node) {
            Some(peer) => self.peers[peer].name.clone(),
            None => format!("node {node}, which is not configured any more,"),
        };
        let has_one = |node: &NodeId| match self.peer_ix(*node) {
            Some(peer) => self.peer_has_bitmap(peer, vol),
            None => seen(*node),
        };
        let others = NodeId::all().filter(|node| *node != self.me);
        others.filter(has_one).filter(|node| !there(*node)).map(name).collect()
    }
}
