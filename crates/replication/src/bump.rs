//! New data generations: when this node starts one, and what it makes of those of its peers
//! (semantics §4.2, §4.3; wire §9.2).
//!
//! A new generation is durable before any write belongs to it, and every connected peer has
//! answered a ping before it starts, so that "connected" means what it says.

use codec::wire::{Packet, UuidFlags, Uuids110};
use vocab::options::OnNoQuorum;
use vocab::{
    ConnState, DiskState, GenUuid, MAX_NODES, NodeId, NodeMask, ReplState, Role, VolumeNr,
};

use crate::generation::{
    Adoption, Generations, Neighbour, Situation, UNKNOWN, is_generation, weak_nodes,
};
use crate::io::LogLevel;
use crate::meta::Backing;
use crate::peer_device::SentUuids;
use crate::peer_uuids::PeerUuids;
use crate::request::Write;
use crate::resource::{Decision, NewGeneration, Resource, Volume, Work};
use crate::state::{PeerIx, PeerState, VolIx};

impl Resource {
    /// What a change of generations depends on.
    pub(crate) fn situation(&self, vol: VolIx) -> Situation {
        let mut nodes = [Neighbour::NOBODY; MAX_NODES];
        let backing = self.vols[vol].backing.as_ref();
        if let Some(backing) = backing {
            for node in NodeId::all() {
                nodes[node.index()].has_slot = backing.slot_of(node).is_some();
            }
        }
        for (peer, st) in self.peers.iter().zip(&self.st.peers) {
            let neighbour = &mut nodes[peer.node.index()];
            neighbour.configured = true;
            neighbour.connected = st.conn == ConnState::Connected;
            neighbour.disk = st.devs[vol].disk;
            neighbour.intentional_diskless = !peer.devs[vol].opts.bitmap;
        }
        let used = nodes.iter().filter(|n| n.has_slot).count();
        let pair = self.is_legacy_pair();
        for node in nodes.iter_mut().filter(|n| pair && !n.configured) {
            node.has_slot = false;
        }
        Situation {
            me: self.me,
            primary: self.st.role == Role::Primary,
            up_to_date: self.st.vols[vol].disk == DiskState::UpToDate,
            dagtag: self.dagtag,
            nodes,
            unallocated_slot: !pair && backing.is_some_and(|b| used < b.bitmap.slots()),
        }
    }

    /// Writes of a new generation may not be admitted yet: one is due, or not durable.
    pub(crate) fn bump_blocks(&self, vol: VolIx) -> bool {
        self.vols[vol].bump_pending || self.vols[vol].bump_running
    }

    /// A bump is due: make sure first that the peers that seem to be there are there.
    pub(crate) fn start_bump(&mut self, vol: VolIx) {
        if self.vols[vol].bump_running || !self.vols[vol].bump_pending || self.bump_must_wait(vol) {
            return;
        }
        self.vols[vol].bump_running = true;
        self.ping_all(Work::Bump(vol));
    }

    /// All peers answered or are known to be lost.
    pub(crate) fn bump(&mut self, vol: VolIx) {
        let wanted = self.vols[vol].bump_pending
            && self.st.role == Role::Primary
            && self.st.vols[vol].quorum
            && !self.has_to_fence()
            && self.has_data(&self.st, vol);
        if !wanted || self.handshake_running() {
            // Own identifiers must not change between sending and comparing them; whatever
            // ends the handshake looks at held requests and at losses again.
            self.vols[vol].bump_running = false;
            if !wanted {
                self.resume_cleanups();
            }
            return;
        }
        if self.vols[vol].backing.is_some() && self.st.vols[vol].disk == DiskState::UpToDate {
            self.bump_disk(vol, NodeMask::EMPTY, false);
        } else if self.is_legacy_pair() {
            // The only other disk there is takes no generation from here, and lacks nothing.
            self.vols[vol].bump_pending = false;
            self.work.push_back(Work::BumpDone(vol));
        } else {
            self.propose_generation(vol);
        }
    }

    /// BUMP on a node with an UpToDate disk. Peers hear of the generation once it is durable
    /// here: one that only they had would look like a split brain after a crash of this node.
    pub(crate) fn bump_disk(&mut self, vol: VolIx, never_synced: NodeMask, forced: bool) {
        let situation = self.situation(vol);
        let current = |p: &PeerState| p.devs[vol].disk == DiskState::UpToDate;
        let stays = self.is_legacy_pair() && self.st.peers.iter().all(current);
        let rng = &mut self.rng;
        let volume = &mut self.vols[vol];
        let backing = volume.backing.as_mut().expect("checked by the caller");
        let before = Box::new(backing.gens.clone());
        let new = match stays {
            true => None,
            false => backing.gens.bump(&situation, never_synced, || rng.next()),
        };
        volume.bump_pending = false;
        let Some(new) = new else {
            // Nobody misses anything: the generation goes on, written by a Primary now.
            volume.expose(before.current());
            if forced {
                let current = before.current();
                volume.bump_announce =
                    Some(NewGeneration { current, before, never_synced, forced });
            }
            self.persist(vol, Work::BumpDone(vol));
            return;
        };
        volume.expose(new.current);
        let text = format!(
            "{}/{}: new data generation {}; behind are {:?}",
            self.name, volume.nr, new.current, new.behind
        );
        self.log(LogLevel::Info, text);
        let current = new.current;
        let announce = NewGeneration { current, before, never_synced, forced };
        self.vols[vol].bump_announce = Some(announce);
        self.close_epoch();
        self.persist(vol, Work::BumpDone(vol));
    }

    /// The generation is durable, but this node may not write any more: it took so long that others
    /// may have gone on without it. Nothing was written in it and nobody has heard of it, so it
    /// goes back to the one before. Otherwise it would look like data of its own.
    fn withdraw_generation(&mut self, vol: VolIx) -> bool {
        let primary = self.st.role == Role::Primary;
        let may_write = primary && self.st.vols[vol].quorum && !self.has_to_fence();
        let volume = &mut self.vols[vol];
        let unused = |new: &mut NewGeneration| !may_write && !new.forced;
        let Some(backing) = volume.backing.as_mut() else { return false };
        let Some(new) = volume.bump_announce.take_if(unused) else { return false };
        let previous = new.before.current();
        if previous.same(backing.gens.current()) {
            return false;
        }
        backing.gens = *new.before;
        if !primary {
            backing.gens.demote();
        }
        // Should the disk be lost before that is durable.
        volume.unannounced = Some(Box::new((new.current, backing.gens.clone())));
        volume.bump_pending = primary;
        volume.expose(previous);
        let text = format!(
            "{}/{}: the new data generation is withdrawn, this node may not write any more",
            self.name, volume.nr
        );
        self.log(LogLevel::Info, text);
        self.persist(vol, Work::BumpDone(vol));
        true
    }

    /// The generation is durable: peers take it before any write that belongs to it.
    fn announce_generation(&mut self, vol: VolIx) {
        let Some(new) = self.vols[vol].bump_announce.take() else { return };
        if self.vols[vol].backing.is_none() {
            // Lost with the disk. What follows starts from the generation that peers know.
            self.vols[vol].expose(new.before.current());
            self.vols[vol].unannounced = Some(Box::new((new.current, *new.before)));
            return;
        }
        self.vols[vol].unannounced = None;
        // What was under way at the crash, this disk has, and no other has it in this generation.
        self.vols[vol].crashed_primary = false;
        let weak = weak_nodes(&self.situation(vol)).or(new.never_synced);
        for peer in 0..self.peers.len() {
            if !self.st.is_connected(peer) {
                continue;
            }
            // To others a resync target counts as behind. It gets every write itself, and may have
            // come to the end of its resync without this node having heard of it.
            let follows = self.decide(peer, vol) == Decision::Data
                && !new.never_synced.contains(self.peers[peer].node);
            let weak = if follows { weak.without(self.peers[peer].node) } else { weak };
            let unusable = self.st.peers[peer].devs[vol].disk == DiskState::Inconsistent;
            if self.vols[vol].forcing && unusable && !self.is_ours(peer) {
                // As kernel nodes tell each other; the state that follows makes it compare.
                self.send_uuids(peer, vol, UuidFlags::default(), NodeMask::EMPTY);
                continue;
            }
            self.send_uuids(peer, vol, UuidFlags::NEW_DATAGEN, weak);
            if new.forced {
                // They may have to resync from here.
                self.send_uuids(peer, vol, UuidFlags::RESYNC, NodeMask::EMPTY);
                self.work.push_back(Work::Recompare(peer, vol));
            }
        }
        self.tell_voters(vol, new.current);
    }

    /// One unconfirmed generation at a time (semantics §4.3 rule 2): the next one waits until its
    /// peers have confirmed what was written in this one, if anything was. A peer that is gone
    /// never will; its loss may be what asks for this generation.
    ///
    /// None starts while a peer's disk negotiates either: it compares what was before, and could
    /// not follow. Nor before a lost peer is fenced: it may be about to start one, too. Nor before
    /// the disk that has just gone says that it is behind.
    pub(crate) fn bump_must_wait(&self, vol: VolIx) -> bool {
        let negotiates = |p: PeerIx| self.st.peers[p].devs[vol].disk == DiskState::Negotiating;
        let fences = self.has_to_fence();
        if fences || self.awaits_last_word(vol) || self.st.connected().any(negotiates) {
            return true;
        }
        let suspend = self.opts.on_no_quorum == OnNoQuorum::SuspendIo;
        let Some(unconfirmed) = self.vols[vol].unconfirmed.as_ref().filter(|_| suspend) else {
            return false;
        };
        let owes = |w: &Write| self.st.connected().any(|p| !self.part_is_done(w, p));
        let first = unconfirmed.first_epoch;
        self.log.iter().any(|w| w.vol == vol && w.epoch >= first && owes(w))
    }

    /// A generation that is due and had to wait, for a handshake or for the confirmation of the
    /// one before, is started if anybody waits for it: a request that is not admitted, or a write
    /// that a peer misses and that is not reported before that is on record.
    pub(crate) fn retry_bumps(&mut self) {
        for vol in 0..self.vols.len() {
            let due = self.vols[vol].bump_pending && !self.vols[vol].bump_running;
            if !due || self.handshake_running() {
                continue;
            }
            if !self.vols[vol].held.is_empty() {
                self.kick(vol);
            } else if self.bump_is_awaited(vol) {
                self.start_bump(vol);
            }
        }
    }

    /// Writes of users can not be completed before the generation that is due.
    fn bump_is_awaited(&self, vol: VolIx) -> bool {
        self.st.role == Role::Primary
            && (self.st.fail_io || !self.st.susp.any())
            && self.st.vols[vol].quorum
            && self.has_data(&self.st, vol)
            && self.log.iter().any(|w| w.vol == vol && !w.completed)
    }

    /// The new generation is durable, or none was needed: writes go on.
    pub(crate) fn bump_done(&mut self, vol: VolIx) {
        if self.withdraw_generation(vol) {
            return;
        }
        self.announce_generation(vol);
        // A peer lost meanwhile leaves the mark set: another generation follows.
        self.vols[vol].bump_running = false;
        if std::mem::take(&mut self.vols[vol].forcing) {
            self.broadcast_states();
        }
        self.retry_al(vol);
        self.work.push_back(Work::Kick(vol));
        self.advance_all();
        self.resume_cleanups();
        self.work.push_back(Work::Resume);
    }

    /// Losses that waited for a generation go on, or decide again.
    pub(crate) fn resume_cleanups(&mut self) {
        for peer in 0..self.peers.len() {
            if self.peers[peer].hs.cleanup_waits {
                self.work.push_back(Work::LossCleanup(peer));
            }
        }
    }

    /// Data forced UpToDate starts a generation at once; nodes that never had it are named.
    pub(crate) fn forced_up_to_date(&mut self) {
        for vol in 0..self.vols.len() {
            if self.vols[vol].backing.is_none() {
                continue;
            }
            let never_synced: NodeMask = self
                .peers
                .iter()
                .zip(&self.st.peers)
                .filter(|(_, st)| st.devs[vol].disk < DiskState::Consistent)
                .map(|(peer, _)| peer.node)
                .collect();
            self.vols[vol].bump_running = true;
            self.forget_bound(vol);
            self.bump_disk(vol, never_synced, true);
        }
    }

    /// This node's identifiers for a peer (wire §4.2, §9.1): P_UUIDS110 with a disk,
    /// P_CURRENT_UUID without.
    pub(crate) fn send_uuids(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        extra: UuidFlags,
        weak: NodeMask,
    ) {
        if self.is_vouching_to(peer, vol) {
            return;
        }
        let nr = self.vols[vol].nr;
        let Some(backing) = self.shown_backing(vol) else {
            let exposed = self.vols[vol].exposed;
            let handshake = !self.st.is_connected(peer);
            let weak = if handshake { weak } else { NodeMask::EMPTY };
            let sent = SentUuids {
                current: exposed,
                bitmap: GenUuid::NONE,
                flags: UuidFlags::default(),
                dirty_bits: 0,
                disk: self.st.vols[vol].disk,
                size: self.vols[vol].size,
            };
            self.peers[peer].devs[vol].sent_uuids = Some(sent);
            return self.send(peer, Packet::CurrentUuid(nr, exposed, weak));
        };
        let to = self.peers[peer].node;
        let stable = self.is_stable();
        let primary = self.st.role == Role::Primary;
        let disk = self.st.vols[vol].disk;
        let inconsistent = disk == DiskState::Inconsistent
            || (matches!(disk, DiskState::Attaching | DiskState::Negotiating)
                && !backing.md_consistent());
        let crashed = self.vols[vol].crashed_primary || self.shown_as_crashed(peer);
        let mut flags = extra
            .with_if(self.peers[peer].discard_my_data, UuidFlags::DISCARD_MY_DATA)
            .with_if(crashed && !primary, UuidFlags::CRASHED_PRIMARY)
            .with_if(inconsistent, UuidFlags::INCONSISTENT)
            .with_if(stable, UuidFlags::STABLE)
            .with_if(self.peers[peer].devs[vol].together, UuidFlags::RECONNECT)
            .with_if(self.vols[vol].lost_quorum, UuidFlags::PRIMARY_LOST_QUORUM);
        let node_mask = if stable {
            let handshake_primary = primary && !self.st.is_connected(peer);
            match extra.has(UuidFlags::NEW_DATAGEN) || handshake_primary {
                true if weak.is_empty() => weak_nodes(&self.situation(vol)),
                true => weak,
                false => NodeMask::EMPTY,
            }
        } else {
            self.st.primary_peers()
        };
        let gens = self.vols[vol].shown_generations().unwrap_or(&backing.gens);
        let seen = |n: &NodeId| {
            *n == self.me
                || backing.slot_of(*n).is_some()
                || self.peer_ix(*n).is_some()
                || !gens.bitmap(*n).uuid.is_none()
        };
        let bitmap_uuids: Vec<(u8, GenUuid)> =
            NodeId::all().filter(|n| seen(n)).map(|n| (n.get(), backing.bitmap_uuid(n))).collect();
        // One entry that belongs to nobody stands for the unallocated slots ("day 0").
        let used = NodeId::all().filter(|n| backing.slot_of(*n).is_some()).count();
        let day0 = NodeId::all().find(|n| {
            *n != self.me
                && backing.slot_of(*n).is_none()
                && self.peer_ix(*n).is_none()
                && is_generation(gens.bitmap(*n).uuid)
        });
        if let (Some(node), true) = (day0, used < backing.bitmap.slots()) {
            flags = UuidFlags(flags.0 | UuidFlags::HAS_UNALLOC.0 | u64::from(node.get()) << 56);
        }
        let uuids = Uuids110 {
            current: gens.current(),
            dirty_bits: backing.oos(to),
            flags,
            node_mask,
            bitmap_uuids,
            history: gens.history().to_vec(),
        };
        let sent = SentUuids {
            current: gens.current(),
            bitmap: gens.bitmap(to).uuid,
            flags: flags.without(UuidFlags::INCONSISTENT),
            dirty_bits: uuids.dirty_bits,
            disk,
            size: self.vols[vol].size,
        };
        if flags.has(UuidFlags::GOT_STABLE) {
            self.peers[peer].devs[vol].asked = uuids.current;
        }
        self.peers[peer].devs[vol].sent_uuids = Some(sent);
        self.send(peer, Packet::Uuids110(nr, Box::new(uuids)));
    }

    /// Tells every connected peer this node's identifiers.
    pub(crate) fn send_uuids_to_all(&mut self, vol: VolIx, flags: UuidFlags) {
        for peer in 0..self.peers.len() {
            if self.st.is_connected(peer) {
                self.send_uuids(peer, vol, flags, NodeMask::EMPTY);
            }
        }
    }

    /// The metadata of a disk that peers are told about: not while it is only being read, and no
    /// longer once it is being given up.
    pub(crate) fn shown_backing(&self, vol: VolIx) -> Option<&Backing> {
        let disk = self.st.vols[vol].disk;
        self.vols[vol].backing.as_deref().filter(|_| disk >= DiskState::Negotiating)
    }

    /// The generation this node presents: always its own.
    ///
    /// DRBD presents that of its source while it is a resync target, so that third nodes count
    /// from there. That is right only if the resyncs end in that order. Counted from the own
    /// generation every pair is complete by itself, in whatever order they run: a block received
    /// from one source is out of sync towards all others until they have been asked, too.
    pub(crate) fn presented(&self, vol: VolIx) -> GenUuid {
        let volume = &self.vols[vol];
        match self.shown_backing(vol).and(volume.shown_generations()) {
            Some(gens) => gens.current(),
            None => volume.exposed,
        }
    }

    /// P_UUIDS110: keep them; on an established connection, act on them.
    pub(crate) fn peer_uuids(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        uuids: Uuids110,
    ) -> Result<(), &'static str> {
        let Some(vol) = self.vol_ix(nr) else { return Ok(()) };
        let mut bitmap = Box::new([UNKNOWN; MAX_NODES]);
        for (node, uuid) in &uuids.bitmap_uuids {
            let slot = bitmap.get_mut(usize::from(*node)).ok_or("UUIDs name an impossible node")?;
            *slot = *uuid;
        }
        let new = PeerUuids {
            current: uuids.current,
            dirty_bits: uuids.dirty_bits,
            flags: uuids.flags,
            node_mask: uuids.node_mask,
            bitmap,
            history: uuids.history,
        };
        let flags = new.flags;
        let current = new.current;
        let weak = new.node_mask;
        self.peers[peer].devs[vol].name(new);
        self.review_verify(peer, vol);
        self.peers[peer].devs[vol].uuids_fresh = self.knows_attach(peer, vol);
        self.note_bound(peer, vol);
        if !self.st.is_connected(peer) {
            return Ok(());
        }
        let shown = self.st.peers[peer].devs[vol].disk;
        self.peers[peer].devs[vol].uuids_attaching |= shown < DiskState::Inconsistent;
        self.review_shown_disk(peer, vol);
        if flags.has(UuidFlags::NEW_DATAGEN) {
            self.adopt(peer, vol, current, weak, false);
            let left_behind =
                weak.contains(self.me) && self.st.vols[vol].disk == DiskState::Outdated;
            if left_behind && self.repl(peer, vol) == ReplState::Established {
                // The Primary sends nothing to this disk until it is resynced.
                self.ask_recompare(peer, vol);
            }
        }
        self.bind_to_source(peer, vol);
        self.note_newer(peer, vol);
        // A disk that others have left behind may not have noticed yet, and say that it is current.
        let newest = flags.has(UuidFlags::NEW_DATAGEN)
            || self.st.role == Role::Secondary
                && self.st.peers[peer].devs[vol].disk == DiskState::UpToDate
                && !self.is_ancestor(peer, vol);
        if self.shown_backing(vol).is_none() && newest && is_generation(current) {
            self.vols[vol].expose(current);
        }
        self.generation_held(vol, current);
        if flags.has(UuidFlags::SKIP_INITIAL_SYNC) {
            self.skip_initial_sync(peer, vol);
        }
        self.resync_ended_at_peer(peer, vol);
        self.discharge_loss(peer, vol);
        self.review_resync_start(peer, vol);
        if !flags.has(UuidFlags::STABLE) {
            // It hears the Primary again that it reported as lost.
            let hs = &mut self.peers[peer].hs;
            hs.their_loss = hs.their_loss.filter(|(lost, _)| !weak.contains(*lost));
        }
        let became_stable = flags.has(UuidFlags::GOT_STABLE);
        let established = self.repl(peer, vol) == ReplState::Established;
        if became_stable && established && self.is_stable() {
            self.send_uuids(peer, vol, UuidFlags::RESYNC, NodeMask::EMPTY);
            self.work.push_back(Work::Recompare(peer, vol));
        } else if flags.has(UuidFlags::RESYNC) && established {
            if self.answer_is_stale(peer, vol, current) {
                self.send_uuids(peer, vol, UuidFlags::GOT_STABLE, NodeMask::EMPTY);
            } else {
                self.work.push_back(Work::Recompare(peer, vol));
            }
        }
        self.review_bound(vol);
        // A peer vouching for this node's data may have been waited for (A5).
        self.change_hard(|_| {});
        self.want_catch_up();
        // It may have been missing only that the peer is at the generation of the own disk.
        self.want_gathered();
        Ok(())
    }

    /// The peer compared what was equal when it was asked, and this node has moved on since. It
    /// is about to hear of that and to follow; judged by what it said, it would be far behind.
    fn answer_is_stale(&mut self, peer: PeerIx, vol: VolIx, theirs: GenUuid) -> bool {
        let asked = std::mem::take(&mut self.peers[peer].devs[vol].asked);
        is_generation(asked) && theirs.same(asked) && !self.presented(vol).same(asked)
    }

    /// A peer that this node does not take for what it says it is may have named the right generation
    /// by now, or one that was left behind.
    pub(crate) fn review_shown_disk(&mut self, peer: PeerIx, vol: VolIx) {
        let Some(word) = self.peers[peer].devs[vol].last_word else { return };
        let shown = self.st.peers[peer].devs[vol].disk;
        let doubted = shown == DiskState::Consistent
            || shown == DiskState::Outdated
                && (self.st.vols[vol].disk < DiskState::UpToDate || self.st.role == Role::Primary);
        let said = word.disk().filter(|disk| *disk >= DiskState::Consistent);
        let Some(said) = said.filter(|_| doubted) else { return };
        let disk = self.shown_peer_disk(peer, vol, said, word);
        // Writes that it was not sent because of that are on their way to it as ranges: once it has
        // heard of them it is Outdated, and catches up.
        let withheld = self.st.role == Role::Primary && shown == DiskState::Outdated && {
            let backing = self.vols[vol].backing.as_ref();
            backing.is_some_and(|b| b.oos(self.peers[peer].node) > 0)
        };
        if disk != shown && !withheld {
            self.change_hard(|st| st.peers[peer].devs[vol].disk = disk);
        }
    }

    /// P_CURRENT_UUID: a peer without a disk names the generation it has seen.
    pub(crate) fn peer_current_uuid(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        current: GenUuid,
        weak: NodeMask,
    ) -> Result<(), &'static str> {
        let Some(vol) = self.vol_ix(nr) else { return Ok(()) };
        if !self.st.is_connected(peer) {
            let mut uuids = PeerUuids::diskless(current);
            uuids.node_mask = weak;
            self.peers[peer].devs[vol].uuids = Some(uuids);
            return Ok(());
        }
        let node = self.peers[peer].node;
        let with_disk = self.st.peers[peer].devs[vol].disk >= DiskState::Inconsistent;
        if with_disk && self.st.peers[peer].role == Role::Primary {
            // Its own disk is still catching up: it starts generations as one without disk.
            self.adopt(peer, vol, current, weak.with(node), true);
            return Ok(());
        }
        if with_disk {
            // After the loss of a Primary: the peer's own generation (wire §9.2).
            if let Some(uuids) = &mut self.peers[peer].devs[vol].uuids {
                uuids.current = current;
            }
            return Ok(());
        }
        let primary = self.st.peers[peer].role == Role::Primary;
        let node = self.peers[peer].node;
        let known = self.peers[peer].devs[vol].uuids.as_ref().map(|u| u.current);
        self.peers[peer].devs[vol].uuids = Some(PeerUuids::diskless(current));
        self.peers[peer].devs[vol].uuids_fresh = true;
        let disk = self.st.vols[vol].disk;
        if primary {
            // One that has just got the volume has begun none.
            if is_generation(current) {
                self.adopt(peer, vol, current, weak.with(node), true);
            }
        } else if let Some(backing) = &self.vols[vol].backing {
            // It has moved on to a generation that this node has never seen.
            let seen = current.same(backing.gens.current())
                || backing.gens.has_passed(current)
                || !is_generation(current)
                || known.is_some_and(|k| k.same(current));
            if !seen {
                self.note_unknown_generation(vol);
                if disk > DiskState::Outdated {
                    self.change_hard(|st| st.vols[vol].disk = DiskState::Outdated);
                }
            }
        }
        self.want_gathered();
        Ok(())
    }

    /// ADOPT: a connected Primary has started a generation, or proposes one.
    fn adopt(&mut self, by: PeerIx, vol: VolIx, current: GenUuid, weak: NodeMask, proposed: bool) {
        let situation = self.situation(vol);
        let target = self.st.is_target(vol);
        let disk = self.st.vols[vol].disk;
        let shown = self.shown_backing(vol).is_some();
        let rng = &mut self.rng;
        let volume = &mut self.vols[vol];
        // A disk that is only being read knows nothing of this. The node does: its vote counts for
        // this Primary, and must not help an older disk to quorum later.
        let Some(backing) = volume.backing.as_mut().filter(|_| shown) else {
            // Nothing to adopt it on. Meant for a disk (one that was lost meanwhile), it is no more
            // than proposed.
            if is_generation(current) && weak.contains(self.me) {
                volume.expose(current);
                // What the disk is on its way to was looked at when it was read.
                if volume.backing.is_some() && self.bind(vol, current, Some(by), weak) {
                    self.record_bound(vol, current);
                }
            }
            return;
        };
        // The Primary does not count on this node (its disk is Outdated, or a mixture): the disk
        // stays where it is, and the Primary and its peers record what it misses. It may not have
        // known that yet.
        let behind = weak.contains(self.me) || disk < DiskState::Consistent;
        if behind && !target {
            if disk > DiskState::Outdated {
                self.change_hard(|st| st.vols[vol].disk = DiskState::Outdated);
                self.catch_up_from_others(vol);
            } else if disk < DiskState::Inconsistent && weak.contains(self.me) {
                // A disk that is only being attached will want to know what its users have seen.
                if is_generation(current) {
                    volume.expose(current);
                }
            }
            if self.bind(vol, current, Some(by), weak) {
                self.record_bound(vol, current);
            }
            return;
        }
        match backing.gens.adopt(current, &situation, weak, target, || rng.next()) {
            Adoption::Ignored | Adoption::Known => {}
            // While target: the generation of the source goes on; the target gets there at the end.
            Adoption::OfSource => {
                volume.stats.foreign += 1;
                self.peers_follow(vol, current, weak);
                if self.bind(vol, current, Some(by), weak) {
                    self.record_bound(vol, current);
                }
            }
            Adoption::Adopted { previous, .. } => {
                volume.stats.foreign += 1;
                let adopted = backing.gens.current();
                volume.vouch = Some(weak);
                // Later writes of the peer wait for this like for the activity log.
                backing.hold_writes(previous);
                // One that is only proposed does not exist before a disk has it.
                if !proposed {
                    volume.expose(adopted);
                }
                self.persist(vol, Work::Adopted(vol));
            }
        }
    }

    /// UpToDate peers take on a new generation: what is known of their identifiers takes the same
    /// step. A resync from one of them may end before it says so itself, and the target would
    /// not know the generation that was left, and so not who has stayed behind at it.
    pub(crate) fn peers_follow(&mut self, vol: VolIx, new: GenUuid, weak: NodeMask) {
        for peer in 0..self.peers.len() {
            let node = self.peers[peer].node;
            let follows = self.st.is_connected(peer)
                && self.st.peers[peer].devs[vol].disk == DiskState::UpToDate
                && !weak.contains(node);
            if !follows {
                continue;
            }
            if let Some(uuids) = &mut self.peers[peer].devs[vol].uuids {
                uuids.follow(new, weak);
            }
        }
    }

    /// The adopted generation is durable.
    pub(crate) fn adopted(&mut self, vol: VolIx) {
        if let Some(backing) = &mut self.vols[vol].backing {
            backing.release_writes();
            if backing.is_adopting() {
                // The next one has come meanwhile, and is not: it must not be named yet.
                return self.retry_al(vol);
            }
            let current = backing.gens.current();
            self.vols[vol].expose(current);
        }
        self.vouch(vol);
        self.send_uuids_to_all(vol, UuidFlags::default());
        self.retry_al(vol);
    }

    /// `new-current-uuid --clear-bitmap` on a peer: a just created disk joins its generation.
    fn skip_initial_sync(&mut self, peer: PeerIx, vol: VolIx) {
        let Some(uuids) = &self.peers[peer].devs[vol].uuids else { return };
        let current = uuids.current;
        let established = self.repl(peer, vol) == ReplState::Established;
        let volume = &mut self.vols[vol];
        let Some(backing) = volume.backing.as_mut() else {
            if established && volume.exposed.is_just_created() {
                volume.expose(current);
            }
            return;
        };
        if !established || !backing.gens.current().is_just_created() || !is_generation(current) {
            return;
        }
        backing.gens.skip_initial_sync(current);
        for slot in 0..backing.bitmap.slots() {
            backing.bitmap.clear_all(slot);
        }
        volume.expose(current);
        self.log(
            LogLevel::Info,
            "the initial resync is skipped: an operator declared all disks identical",
        );
        self.change_hard(|st| {
            st.vols[vol].disk = DiskState::UpToDate;
            st.peers[peer].devs[vol].disk = DiskState::UpToDate;
        });
        self.persist_with_bitmap(vol, Work::Adopted(vol));
    }
}

impl Volume {
    /// The generations of this disk as others see them: one that is not durable yet does not
    /// exist, unless an operator has asked for it.
    pub(crate) fn shown_generations(&self) -> Option<&Generations> {
        let backing = self.backing.as_ref()?;
        let pending = self.bump_announce.as_ref().filter(|new| !new.forced);
        Some(pending.map_or(&backing.gens, |new| &*new.before))
    }
}

impl PeerUuids {
    /// Identifiers of a node without a disk.
    pub(crate) fn diskless(current: GenUuid) -> PeerUuids {
        PeerUuids {
            current,
            dirty_bits: 0,
            flags: UuidFlags::default(),
            node_mask: NodeMask::EMPTY,
            bitmap: Box::new([UNKNOWN; MAX_NODES]),
            history: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Output;
    use crate::resource::Link;
    use crate::testing::attached;
    use codec::disk::MdFlags;
    use codec::wire::StateWord;
    use vocab::SectorRange;
    use vocab::options::ResourceOptions;

    /// It has come to the end of a resync, and follows into the generation that it was left out of.
    #[test]
    fn a_peer_that_writes_were_withheld_from_is_not_current_before_it_knows() {
        const CURRENT: GenUuid = GenUuid(0x2000);
        for (withheld, expected) in [(false, DiskState::UpToDate), (true, DiskState::Outdated)] {
            let mut resource = attached(ResourceOptions::default(), |superblock| {
                superblock.current_uuid = CURRENT;
                superblock.flags.set(MdFlags::CONSISTENT, true);
                superblock.flags.set(MdFlags::WAS_UP_TO_DATE, true);
            });
            resource.st.role = Role::Primary;
            resource.peers[0].link = Link::Up;
            resource.st.peers[0].conn = ConnState::Connected;
            resource.st.peers[0].devs[0].repl = ReplState::Established;
            resource.st.peers[0].devs[0].disk = DiskState::Outdated;
            let said = StateWord::default().with_disk(DiskState::UpToDate);
            resource.peers[0].devs[0].last_word = Some(said);
            resource.peers[0].devs[0].uuids = Some(PeerUuids::diskless(CURRENT));
            let node = resource.peers[0].node;
            let backing = resource.vols[0].backing.as_mut().expect("it is attached");
            let slot = backing.slot_of(node).expect("the peer has a disk");
            if withheld {
                backing.set_range(slot, SectorRange::new(0, 8));
            }
            resource.review_shown_disk(0, 0);
            assert_eq!(resource.st.peers[0].devs[0].disk, expected, "withheld: {withheld}");
        }
    }

    /// A client proposes another generation while the metadata with the one before are being written.
    #[test]
    fn a_generation_is_named_only_once_it_is_durable_itself() {
        const BEFORE: GenUuid = GenUuid(0x1000);
        const NEXT: GenUuid = GenUuid(0x2000);
        let mut resource = attached(ResourceOptions::default(), |superblock| {
            superblock.current_uuid = BEFORE;
            superblock.flags.set(MdFlags::CONSISTENT, true);
            superblock.flags.set(MdFlags::WAS_UP_TO_DATE, true);
        });
        resource.peers[0].link = Link::Up;
        let peer = &mut resource.st.peers[0];
        peer.conn = ConnState::Connected;
        peer.role = Role::Primary;
        for uuid in [GenUuid(0x1800), NEXT] {
            resource.adopt(0, 0, uuid, NodeMask::EMPTY, true);
        }
        let mut named = || {
            resource.adopted(0);
            let sent = std::iter::from_fn(|| resource.poll());
            let names =
                sent.filter(|o| matches!(o, Output::Send { packet: Packet::Uuids110(..), .. }));
            (names.count() > 0, resource.vols[0].exposed.same(NEXT))
        };
        assert_eq!(named(), (false, false));
        assert_eq!(named(), (true, true));
    }
}
