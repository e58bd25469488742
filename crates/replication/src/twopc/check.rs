//! What a participant looks at before it agrees to a transaction between its own disk and another.

use codec::wire::Operation;
use vocab::{DiskState, GenUuid, Refusal, ReplState, Role, StateError};

use super::Held;
use crate::resource::Resource;
use crate::state::{PeerIx, VolIx};

impl Resource {
    /// A Primary wants to connect, and this node hears another one. If the initiator hears that one
    /// too, as a Secondary, it may have restarted, or been demoted, and a link be dead without this
    /// node knowing: nobody asks it what it is now, so this node does.
    pub(super) fn follows_no_other(&mut self, held: &Held) -> Result<(), Refusal> {
        let other = self.st.primary_peers().without(held.initiator).minus(held.nodes_to_reach);
        if held.op != Operation::Connect(Role::Primary) || other.is_empty() {
            return Ok(());
        }
        for node in other.iter() {
            if let Some(peer) = self.peer_ix(node).filter(|p| self.peers[*p].pings_out == 0) {
                self.ping(peer);
            }
        }
        Err(StateError::InTransientState.into())
    }

    /// Both disks take part, and nothing else runs between them.
    pub(super) fn check_resync_pair(
        &self,
        peer: PeerIx,
        vol: Option<VolIx>,
    ) -> Result<(), Refusal> {
        let Some(vol) = vol else { return Err(StateError::NotSupported.into()) };
        let dev = &self.st.peers[peer].devs[vol];
        if self.st.vols[vol].disk < DiskState::Inconsistent {
            return Err(StateError::NoRemoteDisk.into());
        }
        if dev.disk < DiskState::Inconsistent || dev.disk == DiskState::DUnknown {
            return Err(StateError::NoLocalDisk.into());
        }
        if dev.repl != ReplState::Established {
            return Err(StateError::ResyncRunning.into());
        }
        Ok(())
    }

    /// The generation on the own disk of a volume, if there is one.
    pub(super) fn own_generation(&self, vol: Option<VolIx>) -> GenUuid {
        let backing = vol.and_then(|vol| self.vols[vol].backing.as_ref());
        backing.map_or(GenUuid::NONE, |backing| backing.gens.current())
    }

    /// The generation of this disk is about to change: peers do not know yet what it will be.
    pub(crate) fn generation_moves(&self, vol: VolIx) -> bool {
        let volume = &self.vols[vol];
        volume.bump_running || volume.backing.as_ref().is_some_and(|b| b.is_adopting())
    }

    /// The disk that this node wants to give up has got to a generation meanwhile that the other one
    /// was not asked about.
    pub(super) fn has_moved_on(&self, held: &Held) -> bool {
        let moved = |vol| {
            self.generation_moves(vol) || !self.own_generation(Some(vol)).same(held.generation)
        };
        held.op == Operation::Invalidate && held.vol.is_some_and(moved)
    }

    /// A disk is given up only beside one that has its generation on disk, or a later one. To one
    /// of an older generation it would look like the newer data, with nothing in it.
    pub(super) fn check_successor(
        &self,
        initiator: PeerIx,
        op: Operation,
        vol: Option<VolIx>,
    ) -> Result<(), Refusal> {
        let backing = vol.and_then(|vol| self.vols[vol].backing.as_ref());
        let theirs = vol.and_then(|vol| self.peers[initiator].devs[vol].uuids.as_ref());
        let (Some(backing), Some(theirs)) = (backing, theirs) else { return Ok(()) };
        let own = self.own_generation(vol);
        let succeeds = own.same(theirs.current)
            || match op {
                Operation::Invalidate => backing.gens.has_passed(theirs.current),
                Operation::InvalidateRemote => theirs.succeeds(own),
                _ => return Ok(()),
            };
        match succeeds && !backing.is_adopting() {
            true => Ok(()),
            false => Err(StateError::InTransientState.into()),
        }
    }
}
