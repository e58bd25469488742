//! Attaching a disk: reading its metadata, replaying its activity log, and negotiating its
//! state with the connected peers (semantics §1.3, §4.2; metadata §3.5, §4.4).

use codec::disk::{MdFlags, PeerFlags, Superblock, activity_log as al_format};
use codec::wire::{Packet, StateWord, UuidFlags, feature};
use vocab::options::{DiskOptions, Quorum};
use vocab::{
    ConfigError, ConnState, DiskState, GenUuid, MAX_NODES, NodeId, NodeMask, Refusal, ReplState,
    Role, SectorRange, Sectors, StateError, VolumeNr,
};

use crate::activity_log::ActivityLog;
use crate::bitmap::Bitmap;
use crate::bound::ANYTHING;
use crate::compare::{Decided, Start};
use crate::disk_timeout::DiskWatch;
use crate::generation::{BitmapUuid, Generations};
use crate::io::{AttachImage, LogLevel, Output};
use crate::jobs::JobKind;
use crate::meta::{Backing, is_half_moved};
use crate::pair_metadata::check_log;
use crate::resource::{Resource, Volume, Work};
use crate::state::{PeerIx, VolIx};

impl Volume {
    /// The disk stopped under writes, may have lost its cache then, and nothing is settled yet.
    pub(crate) fn has_lost_cache(&self) -> bool {
        self.lost_cache && (self.crashed_primary || self.crashed_secondary)
    }
}

impl Resource {
    /// An operator attaches a disk.
    pub(crate) fn attach(
        &mut self,
        nr: VolumeNr,
        image: &AttachImage,
        admin: u64,
    ) -> Result<(), Refusal> {
        let Some(vol) = self.vol_ix(nr) else {
            return Err(ConfigError::MinorInvalid.into());
        };
        if self.vols[vol].backing.is_some() || self.st.vols[vol].disk != DiskState::Diskless {
            let detail = format!("volume {nr} has a disk; detach it first");
            return Err(Refusal::config(ConfigError::DiskConfigured, detail));
        }
        if self.vols[vol].added_by.is_some() {
            // Of what size it is, and what it would be compared with.
            let detail =
                format!("peers have not said yet what they have of volume {nr}; try again");
            return Err(Refusal::state(StateError::InTransientState, detail));
        }
        if self.vols[vol].parting.is_some() {
            let detail = format!("volume {nr} is still giving up its disk; try again");
            return Err(Refusal::config(ConfigError::DiskConfigured, detail));
        }
        let mut backing = self.read_metadata(vol, image)?;
        if let Some((started, before)) = self.vols[vol].unannounced.as_deref() {
            // Nothing was ever written in it. To peers it would look like another branch.
            if backing.gens.current().same(*started) {
                backing.gens = before.clone();
            }
        }
        // What this disk has given up, users here have gone over to without it.
        if !backing.gens.current().same(self.vols[vol].exposed) {
            backing.gens.unlearn(self.vols[vol].exposed);
        }
        self.check_attach(vol, &backing)?;
        let on_disk = backing.take_bound(self.me);
        self.vols[vol].says_adrift = on_disk.same(ANYTHING);
        let bound = self.bound_of_attached(vol, &backing, on_disk);
        self.set_bound(vol, bound);
        // What an engine that died had written is still there if the machine has run on since.
        let ran_on = image.boot != 0 && backing.sb.peer(self.me).bitmap_dagtag.0 == image.boot;
        let crashed = backing.sb.flags.contains(MdFlags::CRASHED_PRIMARY);
        let unclean = backing.sb.flags.contains(MdFlags::PRIMARY_IND) && !crashed;
        // A disk that is back has what this node has told its peers that it has. If it was given up
        // under writes, these were never acknowledged from here, and the activity log names them.
        let same = self.vols[vol].detached.take() == Some(backing.content());
        for peer in &mut self.peers {
            peer.devs[vol].together &= same;
        }
        let lost_quorum = backing.sb.flags.contains(MdFlags::PRIMARY_LOST_QUORUM);
        let size = self.size_of_attached(vol, &backing);
        if size != backing.bitmap.size() {
            // The others have gone on to that without this disk: it lacks what is new.
            backing.bitmap.resize(size, true);
        }
        backing.sb.effective_size = size;
        let grows = self.vols[vol].size.0 != 0 && size > self.vols[vol].size;
        let restored = backing.sb.members;
        let volume = &mut self.vols[vol];
        // A disk that is back has not crashed since, nor has that of a Primary which goes on without it.
        // What it had lost before is still lost.
        let ran = same || self.st.role == Role::Primary && volume.exposed.is_real();
        volume.crashed_primary = crashed && (volume.crashed_primary || !ran);
        volume.crashed_secondary = unclean && (volume.crashed_secondary || !ran);
        // As a Primary it goes by what it knows itself: it may have lost quorum while it had no disk.
        volume.lost_quorum = if ran { volume.lost_quorum } else { lost_quorum };
        volume.told_behind = false;
        volume.lost_cache = image.volatile_cache && !ran_on;
        volume.boot = image.boot;
        volume.intentional_diskless = false;
        if volume.size.0 == 0 {
            // Users see a size from here on, so it is the one this disk has agreed to.
            (volume.size, volume.told_size) = (size, size);
            self.out.push_back(Output::SizeChanged { volume: nr, size });
        }
        volume.backing = Some(Box::new(backing));
        volume.watch = DiskWatch::new(self.now);
        self.peers.iter_mut().for_each(|peer| peer.devs[vol].plain.lapse());
        if grows {
            self.set_volume_size(vol, size, true);
        }
        // Its bits are about all that it may have missed, of which the writes that were received
        // before it was given up know nothing.
        self.outrun_unacked(vol, SectorRange::new(0, size.0), NodeMask::ALL);
        if self.members == self.me.mask()
            && !restored.is_empty()
            && self.st.connected().next().is_none()
        {
            self.members = restored.with(self.me);
        }
        let known_outdated = self.outdated_slots(vol);
        self.change_hard(|st| {
            st.vols[vol].disk = DiskState::Attaching;
            // What was known of absent peers is known again.
            for peer in st.peers.iter_mut().filter(|p| known_outdated.contains(p.node)) {
                if peer.conn != ConnState::Connected {
                    peer.devs[vol].disk = DiskState::Outdated;
                }
            }
        });
        self.settle_size(vol);
        let id = self.want(JobKind::Attach(vol), Some(admin));
        self.persist_with_bitmap(vol, Work::Job(id));
        self.hold_job(id);
        Ok(())
    }

    /// Nodes whose disks the metadata knows to be Outdated.
    fn outdated_slots(&self, vol: VolIx) -> NodeMask {
        let Some(backing) = &self.vols[vol].backing else { return NodeMask::EMPTY };
        let slots = &backing.sb.peers;
        NodeId::all().filter(|n| slots[n.index()].flags.contains(PeerFlags::OUTDATED)).collect()
    }

    /// Decodes and checks what the driver read.
    fn read_metadata(&self, vol: VolIx, image: &AttachImage) -> Result<Backing, Refusal> {
        let invalid = |detail: String| Refusal::config(ConfigError::MetaInvalid, detail);
        let mut sb = Superblock::decode_any(&image.superblock, self.node_pair())
            .map_err(|e| invalid(e.to_string()))?;
        self.check_fits(&sb)?;
        sb.check_owner(self.me)
            .map_err(|e| Refusal::config(ConfigError::InvalidRequest, e.to_string()))?;
        sb.node_id = Some(self.me);
        if sb.bm_bytes_per_bit != 4096 {
            let detail = format!(
                "its bitmap has {} bytes per bit, only 4096 is supported",
                sb.bm_bytes_per_bit
            );
            return Err(invalid(detail));
        }
        if sb.effective_size > image.capacity {
            let detail = format!(
                "the device offers {} sectors, its data has {}; grow the device or use the one \
                 the data was written on",
                image.capacity.0, sb.effective_size.0
            );
            return Err(Refusal::config(ConfigError::DiskTooSmall, detail));
        }
        self.allocate_slots(vol, &mut sb)?;
        let size = if sb.effective_size.0 != 0 { sb.effective_size } else { image.capacity };
        let mut bitmap = Bitmap::new(sb.max_peers, size, sb.bm_bytes_per_bit);
        for (index, block) in &image.bitmap {
            if *index < bitmap.blocks() {
                bitmap.load_block(*index, block);
            }
        }
        let area: Vec<u8> = image.activity_log.iter().flat_map(|b| b.iter().copied()).collect();
        let half_moved = is_half_moved(&sb);
        // A clean log is in the bitmap; a crash may have torn it while it was initialised.
        let unclean =
            sb.flags.contains(MdFlags::PRIMARY_IND) && !sb.flags.contains(MdFlags::AL_CLEAN);
        if unclean && !half_moved {
            check_log(&sb, &area)?;
            let hot = al_format::recover(sb.al, &area, sb.al_nr_extents)
                .map_err(|e| Refusal::config(ConfigError::MetaUnclean, e.to_string()))?;
            for extent in &hot.extents {
                let start = u64::from(*extent) * al_format::EXTENT_SECTORS;
                if start >= size.0 {
                    continue;
                }
                let len = al_format::EXTENT_SECTORS.min(size.0 - start);
                for slot in 0..bitmap.slots() {
                    bitmap.set_range(slot, SectorRange::new(start, len));
                }
            }
        }
        // A kernel Primary that was told to keep no log, and crashed: nobody knows what it wrote. Or
        // neither log nor bitmap are where the superblock says.
        let no_log = MdFlags::AL_DISABLED.with(MdFlags::CRASHED_PRIMARY);
        if sb.flags.contains(no_log) || half_moved {
            for slot in 0..bitmap.slots() {
                bitmap.set_all(slot);
            }
        }
        // Here it is always kept.
        sb.flags.set(MdFlags::AL_DISABLED, false);
        for peer in &mut sb.peers {
            if peer.flags.contains(PeerFlags::FULL_SYNC) {
                if let Some(slot) = peer.bitmap_index {
                    bitmap.set_all(usize::from(slot));
                }
                peer.flags.set(PeerFlags::FULL_SYNC, false);
            }
        }
        if !sb.flags.contains(MdFlags::CONSISTENT) {
            // A resync was interrupted, and a block that it had brought is known on disk in one of
            // two ways: as still to be fetched from the source, or, written later and together with
            // the end of that, as missing from all others. Who the source was is not known here, so
            // whatever differs from one node may differ from each: another source brings back what
            // the first one had brought already.
            let used: Vec<usize> =
                sb.peers.iter().filter_map(|p| p.bitmap_index.map(usize::from)).collect();
            for from in used {
                (0..bitmap.slots()).for_each(|to| bitmap.merge_slot(from, to));
            }
        }
        let mut slots = [BitmapUuid::default(); MAX_NODES];
        for (slot, peer) in slots.iter_mut().zip(&sb.peers) {
            slot.uuid = peer.bitmap_uuid;
            slot.dagtag = peer.bitmap_dagtag;
        }
        // There it says where the disk is on its way to, see `Backing::take_bound`.
        slots[self.me.index()] = BitmapUuid::default();
        let gens = Generations::from_metadata(sb.current_uuid, slots, sb.history);
        let opts: &DiskOptions = &self.vols[vol].disk_opts;
        let al = ActivityLog::new(ActivityLog::slots_for(opts.al_extents, sb.al), sb.al);
        sb.al_nr_extents = u32::from(al.extents());
        let restore = sb.flags.contains(MdFlags::HAVE_QUORUM)
            && sb.flags.contains(MdFlags::WAS_UP_TO_DATE)
            && sb.members == self.me.mask();
        let blocks = sb.al.blocks();
        Ok(Backing::new(sb, gens, bitmap, al, image.limits, image.capacity, restore, blocks))
    }

    /// Every peer that may have a disk has a bitmap slot (metadata §4.2).
    fn allocate_slots(&self, vol: VolIx, sb: &mut Superblock) -> Result<(), Refusal> {
        for peer in 0..self.peers.len() {
            let node = self.peers[peer].node;
            if !self.peer_has_bitmap(peer, vol) || sb.peer(node).bitmap_index.is_some() {
                continue;
            }
            let used = |slot: u8| sb.peers.iter().any(|p| p.bitmap_index == Some(slot));
            let free = (0..sb.max_peers).filter_map(|s| u8::try_from(s).ok()).find(|s| !used(*s));
            let Some(slot) = free else {
                let detail = format!(
                    "the metadata has {} bitmap slots, too few for {} more; create it anew with \
                     --max-peers, or forget a peer",
                    sb.max_peers, self.peers[peer].name
                );
                return Err(Refusal::config(ConfigError::InvalidRequest, detail));
            };
            sb.peer_mut(node).bitmap_index = Some(slot);
        }
        Ok(())
    }

    /// Re-attaching on a running Primary: only the data it has been using, unless a peer can
    /// bring it up to date (semantics §7.2).
    fn check_attach(&self, vol: VolIx, backing: &Backing) -> Result<(), Refusal> {
        let exposed = self.vols[vol].exposed;
        let consistent = backing.sb.flags.contains(MdFlags::CONSISTENT);
        if self.st.role == Role::Primary
            && exposed.is_real()
            && !backing.gens.current().same(exposed)
            && !self.has_data(&self.st, vol)
        {
            return Err(ConfigError::DataNotCurrent.into());
        }
        let size = self.vols[vol].size;
        if size.0 != 0 && backing.capacity < size {
            let detail = format!(
                "the device offers {} sectors, the volume has {}",
                backing.capacity.0, size.0
            );
            let code =
                if consistent { ConfigError::ImplicitShrink } else { ConfigError::DiskTooSmall };
            return Err(Refusal::config(code, detail));
        }
        let (has, smallest) = (backing.bitmap.size(), self.smallest_disk(vol, None));
        let larger = size.0 != 0 && self.size_of_attached(vol, backing) > size;
        if larger && smallest != 0 && has.0 > smallest {
            let detail = format!(
                "its data has {} sectors, the volume has {}, and another disk no more than \
                 {smallest}; give that one more room, and run resize there",
                has.0, size.0
            );
            return Err(Refusal::config(ConfigError::ImplicitShrink, detail));
        }
        Ok(())
    }

    /// The size that a volume has with this disk. Without data a disk takes whatever size there is;
    /// others agreed to theirs, and never shrink by themselves (invariant 48).
    fn size_of_attached(&self, vol: VolIx, backing: &Backing) -> Sectors {
        let (has, size) = (backing.bitmap.size(), self.vols[vol].size);
        let keeps = backing.md_consistent() && !backing.gens.current().is_just_created();
        match size.0 {
            0 => has,
            _ if keeps => size.max(has),
            _ => size,
        }
    }

    /// No peer that could have a disk is connected: the metadata alone says what this one is.
    pub(crate) fn attach_alone(&mut self, vol: VolIx) {
        let Some(backing) = &self.vols[vol].backing else { return };
        let state = self.attached_state(vol, backing.md_state());
        // Clients have nothing to compare, but may have seen no disk of the volume yet.
        for peer in 0..self.peers.len() {
            if self.st.is_connected(peer) {
                self.show_disk(peer, vol);
            }
        }
        self.attach_settled(vol, state, Vec::new());
    }

    /// A1 and A2: what a disk without better knowledge is.
    ///
    /// A disk that is given up beside another current one is recorded as outdated, since writes go
    /// on without it. The Primary that gave it up knows whether they did: not, as long as its users
    /// have seen no other generation (see `exposed`).
    fn attached_state(&self, vol: VolIx, md: DiskState) -> DiskState {
        let Some(backing) = &self.vols[vol].backing else { return md };
        let seen = backing.gens.current().same(self.vols[vol].exposed);
        let used = seen && self.vols[vol].given_up == Some(backing.content());
        let md = if used && md == DiskState::Outdated { DiskState::UpToDate } else { md };
        // What this node has proposed, and no disk is known to have, nobody has seen.
        let unseen = |generation: GenUuid| {
            generation.is_real()
                && !generation.same(backing.gens.current())
                && !backing.gens.has_passed(generation)
                && !self.vols[vol].proposals.contains(generation)
        };
        let client_ahead = self.st.connected().any(|p| {
            let dev = &self.st.peers[p].devs[vol];
            let current = self.peers[p].devs[vol].uuids.as_ref().map(|u| u.current);
            dev.disk < DiskState::Negotiating && current.is_some_and(unseen)
        });
        let moved_on = unseen(self.vols[vol].exposed);
        match md {
            DiskState::UpToDate if client_ahead || moved_on => DiskState::Outdated,
            // Who uses it has used nothing else, so no peer has gone on that could have left it behind.
            DiskState::UpToDate if self.may_lack_writes(vol) || self.is_unproven(vol) && !used => {
                DiskState::Consistent
            }
            md => md,
        }
    }

    /// A disk of this node or of a peer negotiates: one at a time (semantics §1.9).
    pub(crate) fn negotiating(&self) -> bool {
        let negotiates = |disk: DiskState| disk == DiskState::Negotiating;
        self.st.vols.iter().any(|v| negotiates(v.disk))
            || self.st.connected().any(|p| self.st.peers[p].devs.iter().any(|d| negotiates(d.disk)))
    }

    /// The cluster knows: show the peers what this disk holds, and wait for theirs.
    pub(crate) fn attach_negotiate(&mut self, vol: VolIx) {
        let waiting: NodeMask = self
            .st
            .connected()
            .filter(|p| {
                let disk = self.st.peers[*p].devs[vol].disk;
                let with_disk = disk >= DiskState::Negotiating && disk != DiskState::DUnknown;
                with_disk || self.st.peers[*p].role == Role::Primary
            })
            .map(|p| self.peers[p].node)
            .collect();
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        backing.negotiating = Some(waiting);
        for peer in 0..self.peers.len() {
            self.peers[peer].devs[vol].uuids_fresh = false;
            // What a Primary wrote until it knew of this disk, its peers have to tell.
            self.peers[peer].recv.is_placed = false;
            // Left over from the disk before this one.
            self.peers[peer].devs[vol].resync = None;
        }
        self.change_hard(|st| st.vols[vol].disk = DiskState::Negotiating);
        let nr = self.vols[vol].nr;
        for peer in 0..self.peers.len() {
            if !self.st.is_connected(peer) {
                continue;
            }
            self.show_disk(peer, vol);
            let word = self.state_word(peer, vol);
            self.peers[peer].devs[vol].last_sent = Some(word);
            self.send(peer, Packet::State(Some(nr), word));
        }
        self.attach_progress(vol);
    }

    /// The peer has shown that it knows of the disk that negotiates here. What it sent before is not
    /// its answer: the agreement to the attach may have overtaken it on the other stream. (Of a
    /// kernel it is only known that its answer ends with such a state.)
    pub(crate) fn knows_attach(&self, peer: PeerIx, vol: VolIx) -> bool {
        let ours = self.peers[peer].agreed_features & feature::BITS_OF_EQUALS != 0;
        let word = self.peers[peer].devs[vol].last_word;
        !ours || word.and_then(|w| w.pdsk()) == Some(DiskState::Negotiating)
    }

    /// A peer's states arrived while this disk negotiates. One that has lost its disk before it
    /// heard of this one has nothing to compare.
    pub(crate) fn attach_answer(&mut self, peer: PeerIx, vol: VolIx) {
        let node = self.peers[peer].node;
        let word = self.peers[peer].devs[vol].last_word;
        let told = self.peers[peer].devs[vol].uuids_fresh
            && word.and_then(|w| w.pdsk()) == Some(DiskState::Negotiating);
        let answered = told || self.st.peers[peer].devs[vol].disk < DiskState::Negotiating;
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        let Some(waiting) = backing.negotiating.as_mut() else { return };
        if answered && waiting.contains(node) {
            waiting.remove(node);
            self.attach_progress(vol);
        }
    }

    /// A peer is lost while this disk negotiates.
    pub(crate) fn attach_peer_lost(&mut self, node: NodeId) {
        for vol in 0..self.vols.len() {
            if let Some(backing) = self.vols[vol].backing.as_mut() {
                if let Some(waiting) = backing.negotiating.as_mut() {
                    waiting.remove(node);
                    self.attach_progress(vol);
                }
            }
        }
    }

    fn attach_progress(&mut self, vol: VolIx) {
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        if !backing.negotiating.is_some_and(|w| w.is_empty()) {
            return;
        }
        backing.negotiating = None;
        let md = backing.md_state();
        let mut starts: Vec<(PeerIx, Start)> = Vec::new();
        let mut refused = None;
        let peers: Vec<PeerIx> = self
            .st
            .connected()
            .filter(|p| {
                let disk = self.st.peers[*p].devs[vol].disk;
                disk >= DiskState::Inconsistent && disk != DiskState::DUnknown
            })
            .collect();
        for peer in peers {
            match self.compare(peer, vol, false) {
                Decided::Start(start) => starts.push((peer, start)),
                Decided::Retry => {
                    refused = Some("a peer's data changed meanwhile; try again".to_owned())
                }
                Decided::Refuse(why) => refused = Some(why),
            }
        }
        if let (true, Some(why)) = (starts.is_empty(), refused) {
            let refusal = Refusal::config(ConfigError::DataNotCurrent, why);
            self.attach_ended(vol, Err(refusal));
            return self.drop_disk(vol);
        }
        for (peer, start) in &starts {
            self.prepare_start(*peer, vol, start);
        }
        let target = starts.iter().any(|(_, s)| s.repl.is_target());
        let neighbour = starts.iter().any(|(p, s)| {
            s.repl == ReplState::Established
                && self.st.peers[*p].devs[vol].disk == DiskState::UpToDate
        });
        let state = match (target, neighbour) {
            (true, _) => md.min(DiskState::Outdated),
            // What is out of sync is fetched first, although the generation is the same.
            (false, true) if self.differs_from_peers(vol) => DiskState::Consistent,
            (false, true) => DiskState::UpToDate,
            (false, false) => self.attached_state(vol, md),
        };
        self.attach_settled(vol, state, starts);
    }

    /// This disk stopped while its Primary wrote, and what was under write is not settled with
    /// the peers that are connected. A mixture of generations settles nothing: it is resynced, and
    /// while it is, this disk may be the only one that its users have. So it is, if there is a
    /// Primary, for any disk that gets its data from here.
    pub(crate) fn unclean_towards_peers(&self, vol: VolIx) -> bool {
        self.unclean_towards(vol, |_| true)
    }

    /// The same, of some peers.
    pub(crate) fn unclean_towards(&self, vol: VolIx, some: impl Fn(PeerIx) -> bool) -> bool {
        let Some(backing) = &self.vols[vol].backing else { return false };
        let used = !self.st.primary_peers().is_empty();
        let owed = |p: PeerIx| {
            let disk = self.st.peers[p].devs[vol].disk;
            let whole = disk > DiskState::Inconsistent && disk != DiskState::DUnknown;
            let settles = whole && !(used && self.repl(p, vol).is_source());
            settles && backing.oos(self.peers[p].node) != 0
        };
        self.vols[vol].crashed_secondary && self.st.connected().any(|p| some(p) && owed(p))
    }

    /// This disk stopped under writes, and may have lost what was in its cache: writes that were
    /// acknowledged, because they were on other disks of the generation as well. One of these is
    /// away, and nothing has been settled with it. The quorum of this node may be one that it shares
    /// with nodes which have been left behind: that says nothing.
    pub(crate) fn may_lack_writes(&self, vol: VolIx) -> bool {
        let volume = &self.vols[vol];
        let Some(backing) = &volume.backing else { return false };
        let unsettled = |p: PeerIx| {
            let node = self.peers[p].node;
            let disk = self.st.peers[p].devs[vol].disk;
            let there = self.st.is_connected(p) && disk >= DiskState::Inconsistent;
            self.peer_has_bitmap(p, vol)
                && backing.oos(node) != 0
                && backing.bitmap_uuid(node).is_none()
                && !there
        };
        self.opts.quorum != Quorum::Off
            && volume.has_lost_cache()
            && (0..self.peers.len()).any(unsettled)
    }

    /// Blocks are out of sync between this disk and a connected one, as one of them counts.
    fn differs_from_peers(&self, vol: VolIx) -> bool {
        let Some(backing) = &self.vols[vol].backing else { return false };
        self.st.connected().any(|p| {
            let disk = self.st.peers[p].devs[vol].disk;
            let with_disk = disk >= DiskState::Inconsistent && disk != DiskState::DUnknown;
            let theirs = self.peers[p].devs[vol].uuids.as_ref().map_or(0, |u| u.dirty_bits);
            with_disk && (backing.oos(self.peers[p].node) != 0 || theirs != 0)
        })
    }

    fn attach_settled(&mut self, vol: VolIx, state: DiskState, starts: Vec<(PeerIx, Start)>) {
        if self.vols[vol].backing.is_none() {
            return;
        }
        let text = format!("{}/{}: disk attached, it is {state}", self.name, self.vols[vol].nr);
        self.log(LogLevel::Info, text);
        self.vols[vol].remembers = true;
        if state == DiskState::UpToDate {
            self.write_again(vol);
        }
        self.change_hard(|st| {
            st.vols[vol].disk = state;
            for (peer, start) in &starts {
                st.peers[*peer].devs[vol].repl = start.repl;
            }
        });
        for peer in 0..self.peers.len() {
            self.note_together(peer);
        }
        self.attach_ended(vol, Ok(()));
        self.hold_released();
        self.kick_all();
    }

    /// A peer attaches a disk: show it what this one holds, and compare (wire §7.1 "Attach").
    pub(crate) fn peer_negotiates(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        word: StateWord,
        role: Role,
    ) -> Result<(), &'static str> {
        let shown = self.st.peers[peer].devs[vol].disk;
        if !std::mem::take(&mut self.peers[peer].devs[vol].uuids_attaching) {
            // Its identifiers are still to come, or have been compared already.
            let settled = shown >= DiskState::Inconsistent && shown != DiskState::DUnknown;
            self.change_hard(|st| {
                st.peers[peer].role = role;
                if !settled {
                    st.peers[peer].devs[vol].disk = DiskState::Negotiating;
                }
            });
            return Ok(());
        }
        let real = self.real_peer_disk(peer, vol, word);
        // It may know of a size that this node has missed.
        self.settle_size(vol);
        self.change_hard(|st| {
            st.peers[peer].role = role;
            st.peers[peer].devs[vol].disk = DiskState::Negotiating;
        });
        let nr = self.vols[vol].nr;
        self.send_uuids(peer, vol, UuidFlags::default(), NodeMask::EMPTY);
        let sent = self.state_word(peer, vol);
        self.peers[peer].devs[vol].last_sent = Some(sent);
        self.send(peer, Packet::State(Some(nr), sent));
        if self.vols[vol].backing.is_none() || self.st.vols[vol].disk < DiskState::Inconsistent {
            let shown = match self.client_accepts(peer, vol) {
                true => real,
                false => real.min(DiskState::Outdated),
            };
            self.change_hard(|st| st.peers[peer].devs[vol].disk = shown);
            return Ok(());
        }
        match self.compare(peer, vol, false) {
            Decided::Start(start) => {
                self.prepare_start(peer, vol, &start);
                self.change_hard(|st| {
                    st.peers[peer].devs[vol].disk = real;
                    st.peers[peer].devs[vol].repl = start.repl;
                });
                self.note_together(peer);
            }
            Decided::Retry | Decided::Refuse(_) => {
                // The peer comes to the same conclusion and gives its disk up again.
                self.change_hard(|st| st.peers[peer].devs[vol].disk = DiskState::Diskless);
            }
        }
        Ok(())
    }

    /// A peer's disk joins: from here on it is told what it misses, and what was written before
    /// the position that it has just been told and has no peer-ack yet is for its sources to tell.
    pub(crate) fn peer_attaches(&mut self, peer: PeerIx) {
        let primaries = self.st.primary_peers().without(self.peers[peer].node);
        for dev in &mut self.peers[peer].devs {
            dev.joined = dev.joined.or(primaries);
        }
    }

    /// A node without disk trusts a disk only if it holds the generation it has seen.
    fn client_accepts(&self, peer: PeerIx, vol: VolIx) -> bool {
        let volume = &self.vols[vol];
        let current =
            self.peers[peer].devs[vol].uuids.as_ref().map_or(GenUuid::NONE, |u| u.current);
        volume.exposed.is_none() || current.same(volume.exposed)
    }
}

impl Backing {
    /// A1: the disk state that the metadata tells.
    pub(crate) fn md_state(&self) -> DiskState {
        if !self.sb.flags.contains(MdFlags::CONSISTENT) {
            DiskState::Inconsistent
        } else if !self.sb.flags.contains(MdFlags::WAS_UP_TO_DATE) {
            DiskState::Outdated
        } else {
            DiskState::UpToDate
        }
    }

    /// The disk is, or was when it was written last, current.
    pub(crate) fn md_was_up_to_date(&self, now: DiskState) -> bool {
        match now {
            DiskState::Negotiating | DiskState::Attaching => self.md_state() == DiskState::UpToDate,
            disk => disk > DiskState::Outdated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ResourceConfig, VolumeConfig};
    use crate::io::{AdminCommand, Input, MetaBlock, MetaPlace};
    use crate::testing::attach_image;
    use codec::disk::{MdParams, Placement};
    use vocab::options::ResourceOptions;
    use vocab::{Bytes, Dagtag, Instant, Minor};

    #[test]
    fn a_new_disk_gives_the_volume_its_size_and_records_it() {
        let nr = VolumeNr(0);
        let disk = DiskOptions::default();
        let volume = VolumeConfig { nr, minor: Minor(0), diskless: false, disk };
        let mut resource = Resource::new(
            ResourceConfig {
                name: "r0".to_owned(),
                node_id: NodeId::new(0).unwrap(),
                options: ResourceOptions::default(),
                handlers: vocab::HandlerSet::NONE,
                volumes: vec![volume],
                peers: Vec::new(),
            },
            1,
            Dagtag(0),
        );
        let (superblock, layout) =
            Superblock::create(Placement::Internal, Bytes(64 << 20), &MdParams::new(1)).unwrap();
        let image = attach_image(&superblock, &layout);
        let command = AdminCommand::Attach { volume: nr, image: Box::new(image) };
        resource.handle(Instant(1), Input::Admin { id: 1, command });
        let mut told = None;
        let mut writes = Vec::new();
        while let Some(output) = resource.poll() {
            match output {
                Output::SizeChanged { volume, size } if volume == nr => told = Some(size),
                Output::MetaWrite { op, write, .. } => {
                    let block = write.commit.filter(|b| b.place == MetaPlace::Superblock).unwrap();
                    let log = |b: &MetaBlock| matches!(b.place, MetaPlace::ActivityLog(_));
                    let touches_log = write.plain.iter().any(log);
                    writes.push((Superblock::decode(&block.bytes).unwrap(), touches_log));
                    resource.handle(Instant(2), Input::MetaDone { op, result: Ok(()) });
                }
                _ => {}
            }
        }
        assert_eq!(told, Some(layout.usable));
        assert!(layout.usable > Sectors(0));
        assert!(writes.iter().all(|(sb, _)| sb.effective_size == layout.usable));
        // The log is only touched while the superblock says that nobody needs it.
        let clean = |sb: &Superblock| sb.flags.contains(MdFlags::AL_CLEAN);
        let order: Vec<_> = writes[..2].iter().map(|(sb, log)| (clean(sb), *log)).collect();
        assert_eq!(order, [(true, false), (false, true)]);
    }
}
