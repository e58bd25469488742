//! What a disk is on its way to: one that is being resynced, or is back after its node went on.
//!
//! Its node takes part in the generation of the source, and in those that follow, but the disk
//! holds none of them before the resync has ended. If the node forgot that in a restart, it would
//! help a disk to quorum that has never got there, and the writes that counted on its vote would
//! be gone (invariants 5, 32 and 35). So the metadata name that generation, in the slot that they
//! have for this node itself and that nobody uses; and the node has no vote before it is connected
//! to one that has got that far, or to a Primary that works with it. (The reference has no such
//! record.)
//!
//! A disk that goes while its node stays can not name what the node will take part in without it.
//! It says [`ANYTHING`], as its last word (see `parting`); attached after a restart, it does not
//! count before it is known who has the newest data.

use vocab::{DiskState, GenUuid, NodeMask, Role};

use crate::generation::{UNKNOWN, is_generation};
use crate::meta::Backing;
use crate::peer_uuids::PeerUuids;
use crate::resource::{Resource, Work};
use crate::state::{PeerIx, State, VolIx};

/// What the node took part in without this disk can not be told.
pub(crate) const ANYTHING: GenUuid = UNKNOWN;

/// The disk is on its way to something.
pub(crate) const fn is_bound(uuid: GenUuid) -> bool {
    is_generation(uuid) || uuid.same(ANYTHING)
}

impl Backing {
    /// The generation that the metadata say the disk was on its way to.
    pub(crate) fn take_bound(&mut self, me: vocab::NodeId) -> GenUuid {
        let bound = std::mem::replace(&mut self.sb.peer_mut(me).bitmap_uuid, GenUuid::NONE);
        match self.has_reached(bound) {
            true => GenUuid::NONE,
            false => bound,
        }
    }

    /// The disk holds that generation, or one after it.
    pub(crate) fn has_reached(&self, uuid: GenUuid) -> bool {
        match uuid.same(ANYTHING) {
            true => false,
            false => {
                let gens = &self.gens;
                !is_generation(uuid) || gens.current().same(uuid) || gens.has_passed(uuid)
            }
        }
    }
}

impl Resource {
    /// What a disk that is being attached is on its way to; `on_disk` is what it says.
    pub(crate) fn bound_of_attached(
        &self,
        vol: VolIx,
        backing: &Backing,
        on_disk: GenUuid,
    ) -> GenUuid {
        let volume = &self.vols[vol];
        // What this node went on to while it had no disk, it had its vote in, if it had one.
        let seen = volume.exposed;
        let known = is_generation(seen) && !backing.has_reached(seen);
        match volume.remembers {
            // What the disk does not know this node does.
            true if self.is_astray(&self.st, vol) => volume.bound_for,
            true if known => seen,
            true if is_bound(volume.bound_for) => volume.bound_for,
            true if on_disk.same(ANYTHING) => GenUuid::NONE,
            false if known && !is_bound(on_disk) => seen,
            _ => on_disk,
        }
    }

    /// The generation that this disk is on its way to; none if it is there.
    pub(crate) fn bound_for(&self, vol: VolIx) -> GenUuid {
        let bound = self.vols[vol].bound_for;
        let reached = self.vols[vol].backing.as_ref().is_some_and(|b| b.has_reached(bound));
        if reached { GenUuid::NONE } else { bound }
    }

    /// What this node has taken part in, neither its disk holds nor one that it is connected to; or
    /// its disk looks current all the same.
    pub(crate) fn is_astray(&self, st: &State, vol: VolIx) -> bool {
        is_bound(self.bound_for(vol))
            && (st.vols[vol].disk == DiskState::UpToDate
                || !st.connected().any(|p| self.peers[p].devs[vol].holds_bound))
    }

    /// The peer takes its disk for current, and it has not got as far as this node has taken part:
    /// this vote is not for it. A peer that has not said anything yet may be one of those.
    pub(crate) fn is_behind_bound(&self, peer: PeerIx, vol: VolIx) -> bool {
        let word = self.peers[peer].devs[vol].last_word;
        let current = word.is_none_or(|w| w.disk() == Some(DiskState::UpToDate));
        let holds = self.peers[peer].devs[vol].holds_bound;
        current && !holds && is_bound(self.bound_for(vol))
    }

    /// The peer is a Primary without quorum, and has not got as far as this node has taken part with
    /// others that it is connected to. Joined, it would outdate them, as they do not hear it. It is
    /// met again once the disk here is where theirs are.
    pub(crate) fn is_left_behind(&self, peer: PeerIx, vol: VolIx) -> bool {
        let word = self.peers[peer].devs[vol].last_word;
        let stopped = word.is_some_and(|w| w.role() == Some(Role::Primary) && !w.quorum());
        stopped
            && is_bound(self.bound_for(vol))
            && !self.is_astray(&self.st, vol)
            && !self.peers[peer].devs[vol].holds_bound
    }

    /// A disk of this node is a resync target, or left behind, while the generation starts that its
    /// node takes part in; `weak` does not hear of it. True if that is to be recorded.
    ///
    /// Nothing changes if the disk has taken part in another one, and neither `by`, who tells of
    /// this one, has got to that, nor anybody connected who hears of this one: it does not follow
    /// the other one, and who started it does not count on the vote here.
    pub(crate) fn bind(
        &mut self,
        vol: VolIx,
        uuid: GenUuid,
        by: Option<PeerIx>,
        weak: NodeMask,
    ) -> bool {
        let bound = self.bound_for(vol);
        let Some(backing) = &self.vols[vol].backing else { return false };
        // What was said before may arrive behind what came after it.
        let passed = |p: PeerIx| {
            let uuids = self.peers[p].devs[vol].uuids.as_ref();
            uuids.is_some_and(|u| u.has_passed(uuid))
        };
        let follows = |p: PeerIx| {
            let hears = by.is_none_or(|by| by == p) || !weak.contains(self.peers[p].node);
            hears && self.peers[p].devs[vol].holds_bound
        };
        if backing.has_reached(uuid)
            || bound.same(uuid)
            || is_bound(bound) && !self.st.connected().any(follows)
            || self.st.connected().any(passed)
        {
            return false;
        }
        self.vols[vol].bound_for = uuid;
        for peer in 0..self.peers.len() {
            let heard = is_bound(bound) && !weak.contains(self.peers[peer].node);
            // The Primary that started it knows of it, whatever its own disk has.
            let started = self.st.peers[peer].role == Role::Primary;
            self.peers[peer].devs[vol].holds_bound &= heard;
            self.peers[peer].devs[vol].holds_bound |= started;
            self.note_bound(peer, vol);
        }
        self.change_hard(|_| {});
        self.broadcast_states();
        true
    }

    /// The disk that this one is, or was, brought up to date from has got further. Its Primary need
    /// not be heard here; what that writes counts on this node's vote all the same.
    pub(crate) fn bind_to_source(&mut self, peer: PeerIx, vol: VolIx) {
        let source = self.st.peers[peer].devs[vol].disk == DiskState::UpToDate;
        let behind = self.st.vols[vol].disk < DiskState::UpToDate;
        let follows = self.repl(peer, vol).is_target() || is_bound(self.bound_for(vol));
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        let Some(uuid) = uuids.map(|u| u.current).filter(|u| is_generation(*u)) else { return };
        if source && behind && follows && self.bind(vol, uuid, Some(peer), NodeMask::ALL) {
            self.record_bound(vol, uuid);
        }
    }

    /// Writes received for this disk wait until it is on record what it is on its way to.
    pub(crate) fn record_bound(&mut self, vol: VolIx, uuid: GenUuid) {
        if let Some(backing) = &mut self.vols[vol].backing {
            backing.hold_for_bound();
        }
        self.persist(vol, Work::Bound(vol, uuid));
    }

    /// It is on record.
    pub(crate) fn bound_recorded(&mut self, vol: VolIx, uuid: GenUuid) {
        if let Some(backing) = &mut self.vols[vol].backing {
            backing.release_for_bound();
        }
        self.generation_held(vol, uuid);
        self.retry_al(vol);
    }

    /// The identifiers of a peer's disk are new, or what this one is on its way to.
    pub(crate) fn note_bound(&mut self, peer: PeerIx, vol: VolIx) {
        let bound = self.vols[vol].bound_for;
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        let holds = uuids.is_some_and(|u| u.current.same(bound) || u.has_passed(bound));
        let new = is_generation(bound) && holds && !self.peers[peer].devs[vol].holds_bound;
        if new {
            self.peers[peer].devs[vol].holds_bound = true;
            self.broadcast_states();
        }
    }

    /// Every disk is there and current or not, and none has got to where this one was on its way:
    /// there is nothing left that it could be mistaken about.
    fn is_bound_for_nothing(&self, vol: VolIx) -> bool {
        let there = |p: PeerIx| {
            let dev = &self.peers[p].devs[vol];
            let attached = self.st.peers[p].devs[vol].disk >= DiskState::Inconsistent;
            let known = attached && dev.uuids.as_ref().is_some_and(|u| u.of_disk());
            self.st.is_connected(p) && known && !dev.holds_bound
        };
        self.st.vols[vol].disk == DiskState::UpToDate
            && (0..self.peers.len()).filter(|p| self.peer_has_bitmap(*p, vol)).all(there)
    }

    /// A peer has named what its disk holds.
    pub(crate) fn review_bound(&mut self, vol: VolIx) {
        let bound = is_bound(self.vols[vol].bound_for);
        if bound && (self.is_bound_for_nothing(vol) || !is_bound(self.bound_for(vol))) {
            self.forget_bound(vol);
        }
    }

    /// This disk has become current when all others had named what they hold, and nobody is Primary
    /// who could still bring one of them there. None of them may say anything more.
    pub(crate) fn leave_bound(&mut self, vol: VolIx) {
        let nobody = self.st.role == Role::Secondary && self.st.primary_peers().is_empty();
        if nobody && is_bound(self.vols[vol].bound_for) && self.is_bound_for_nothing(vol) {
            self.forget_bound(vol);
            self.change_hard(|_| {});
            self.broadcast_states();
        }
    }

    /// It is not known what the node took part in without this disk. It is no more than what those
    /// have that go on without its vote; nor, once all disks are there, than what the newest has.
    pub(crate) fn settle_bound(&mut self, vol: VolIx) {
        let volume = &self.vols[vol];
        if !volume.bound_for.same(ANYTHING) || self.st.vols[vol].disk < DiskState::Inconsistent {
            return;
        }
        let known = self.quorate_generation(vol).or_else(|| self.newest_of_all(vol));
        let Some(known) = known else { return };
        self.set_bound(vol, known);
        self.md_changed(vol);
        self.change_hard(|_| {});
        self.broadcast_states();
    }

    /// What a connected disk holds that is current and has quorum.
    fn quorate_generation(&self, vol: VolIx) -> Option<GenUuid> {
        self.st
            .connected()
            .filter(|p| {
                let dev = &self.st.peers[*p].devs[vol];
                dev.disk == DiskState::UpToDate && dev.peer_quorum
            })
            .filter_map(|p| self.peers[p].devs[vol].uuids.as_ref())
            .find_map(|u| is_generation(u.current).then_some(u.current))
    }

    /// All disks are there: the generation that is after all the others.
    fn newest_of_all(&self, vol: VolIx) -> Option<GenUuid> {
        let backing = self.vols[vol].backing.as_ref()?;
        let own = backing.gens.current();
        let mut others = Vec::new();
        for peer in (0..self.peers.len()).filter(|p| self.peer_has_bitmap(*p, vol)) {
            let disk = self.st.peers[peer].devs[vol].disk;
            let attached = disk >= DiskState::Inconsistent && self.st.is_connected(peer);
            others.push(
                self.peers[peer].devs[vol].uuids.as_ref().filter(|u| attached && u.of_disk())?,
            );
        }
        let real: Vec<_> = others.iter().filter(|u| is_generation(u.current)).collect();
        if real.iter().all(|u| backing.has_reached(u.current)) {
            return Some(own);
        }
        let is_newest = |u: &PeerUuids| {
            let behind = |old| u.current.same(old) || u.has_passed(old);
            behind(own) && real.iter().all(|other| behind(other.current))
        };
        real.iter().find(|u| is_newest(u)).map(|u| u.current)
    }

    /// This disk is on its way to that generation.
    pub(crate) fn set_bound(&mut self, vol: VolIx, bound: GenUuid) {
        self.vols[vol].bound_for = bound;
        for peer in 0..self.peers.len() {
            self.peers[peer].devs[vol].holds_bound = false;
            self.note_bound(peer, vol);
        }
    }

    /// Nobody is to be waited for: an operator has said which data are good, or it is known.
    pub(crate) fn forget_bound(&mut self, vol: VolIx) {
        self.vols[vol].bound_for = GenUuid::NONE;
        for peer in &mut self.peers {
            peer.devs[vol].holds_bound = false;
        }
        self.md_changed(vol);
    }
}
