//! All nodes are there, and nobody has a current disk.
//!
//! A disk is outdated while others may have gone on without it. When every node is connected and
//! every disk attached, there are no others: a disk whose generation nobody has left behind has
//! all writes that users know of. The reference waits for an operator to force one of them.
//!
//! One node asks in a transaction, and its disk becomes UpToDate; the others then follow it in
//! the ways they follow any current disk.

use std::time::Duration;

use vocab::{DiskState, ReplState, Role};

use crate::generation::is_generation;
use crate::jobs::JobKind;
use crate::resource::Resource;
use crate::state::{PeerIx, VolIx};

/// So long everything else is given time to make a disk current; and so long a node waits for
/// each one before it to ask. Longer than a link may be silent, so that the word of a disk that has
/// become current has arrived.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

impl Resource {
    /// A node that waits for current data of a volume looks now and then whether all are there.
    pub(crate) fn want_gathered(&mut self) {
        for vol in 0..self.vols.len() {
            let kind = JobKind::Gathered(vol);
            if self.lacks_current_data(vol) && !self.wants(&kind) {
                let at = self.now + self.gathered_patience(vol);
                let id = self.want(kind, None);
                self.delay_job(id, at);
            }
            let kind = JobKind::Unclean(vol);
            if self.waits_unclean(vol) && !self.wants(&kind) {
                let at = self.vols[vol].met_at + self.gathered_patience(vol);
                let id = self.want(kind, None);
                self.delay_job(id, at);
            }
        }
    }

    /// This disk stopped under writes, and what may differ between it and others is open.
    pub(crate) fn waits_unclean(&self, vol: VolIx) -> bool {
        self.st.vols[vol].disk == DiskState::Consistent
            && !self.may_lack_writes(vol)
            && self.unclean_towards_peers(vol)
    }

    /// A disk that differs and has not stopped has had time to become current.
    pub(crate) fn has_waited_unclean(&self, vol: VolIx) -> bool {
        self.now >= self.vols[vol].met_at + self.gathered_patience(vol)
    }

    /// This disk and that of the peer have met.
    pub(crate) fn note_met(&mut self, peer: PeerIx, vol: VolIx) {
        let both = self.st.vols[vol].disk >= DiskState::Inconsistent && self.st.has_disk(peer, vol);
        if both && self.st.is_connected(peer) {
            self.vols[vol].met_at = self.now;
        }
    }

    /// Who comes first is asked first.
    pub(crate) fn gathered_patience(&self, vol: VolIx) -> Duration {
        let before = self.equals(vol).filter(|p| self.peers[*p].node < self.me).count();
        PATIENCE * u32::try_from(before + 1).unwrap_or(1)
    }

    /// The disk here is whole but not current, and every node is connected with its disk, none
    /// of which is current either.
    ///
    /// A Primary that has lost its disk is there without it, as long as it works with the
    /// generation of the disk here: what it had itself was no newer.
    pub(crate) fn lacks_current_data(&self, vol: VolIx) -> bool {
        let own = self.presented(vol);
        let here = |p: PeerIx| {
            let disk = self.st.peers[p].devs[vol].disk;
            let primary = self.st.peers[p].role == Role::Primary;
            let uuids = self.peers[p].devs[vol].uuids.as_ref();
            let uses_own = primary && uuids.is_some_and(|u| u.current.same(own));
            let attached = (DiskState::Inconsistent..DiskState::UpToDate).contains(&disk);
            let needs_none = !self.peer_has_bitmap(p, vol) || uses_own;
            let client = disk == DiskState::Diskless && needs_none;
            self.st.is_connected(p) && (attached || client)
        };
        matches!(self.st.vols[vol].disk, DiskState::Outdated | DiskState::Consistent)
            && self.st.role == Role::Secondary
            && !self.peers.is_empty()
            && (0..self.peers.len()).all(here)
    }

    /// Peers whose disk holds the generation of the own one.
    fn equals(&self, vol: VolIx) -> impl Iterator<Item = PeerIx> + '_ {
        let own = self.presented(vol);
        self.st.connected().filter(move |p| {
            let whole = self.st.peers[*p].devs[vol].disk >= DiskState::Outdated;
            let uuids = self.peers[*p].devs[vol].uuids.as_ref();
            whole && uuids.is_some_and(|u| u.current.same(own))
        })
    }

    /// Nothing newer than this disk exists, and it has what all others of its generation have
    /// been told is written.
    pub(crate) fn is_newest_of_all(&self, vol: VolIx) -> bool {
        if !self.lacks_current_data(vol) {
            return false;
        }
        let Some(backing) = self.shown_backing(vol) else { return false };
        let own = backing.gens.current();
        let behind = |p: PeerIx| {
            let uuids = self.peers[p].devs[vol].uuids.as_ref();
            // A target of this disk takes nothing away from it.
            let repl = self.st.peers[p].devs[vol].repl;
            // A blank disk may have taken the place of one that was newer.
            (repl == ReplState::Established || repl.is_source())
                && uuids.is_some_and(|u| {
                    let older = match is_generation(u.current) {
                        true => backing.gens.has_passed(u.current),
                        false => !u.of_disk(),
                    };
                    u.current.same(own) || older && !self.leaves_own_behind(vol, u)
                })
        };
        let overtaken = self.is_own_overtaken(vol);
        let unheard = self.far_primaries.minus(self.st.connected_mask());
        // A disk that stopped under writes may have lost some that another one has.
        let unclean = self.vols[vol].crashed_secondary || self.vols[vol].crashed_primary;
        // So does one that was told it misses some.
        let lacks = unclean || self.vols[vol].told_behind;
        let differs = |p: PeerIx| {
            let theirs = self.peers[p].devs[vol].uuids.as_ref().map_or(0, |u| u.dirty_bits);
            backing.oos(self.peers[p].node) != 0 || theirs != 0
        };
        is_generation(own)
            && !overtaken
            && unheard.is_empty()
            && !self.loss_pending()
            && (0..self.peers.len()).all(behind)
            && !(lacks && self.equals(vol).any(differs))
    }
}
