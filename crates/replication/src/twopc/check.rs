//! What a participant looks at before it agrees to a transaction between its own disk and another.

use codec::wire::Operation;
use vocab::{DiskState, Refusal, ReplState, Role, StateError};

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

    /// The generation of this disk is about to change, or not durable: peers do not know it yet, and
    /// this node may forget it.
    fn generation_moves(&self, vol: VolIx) -> bool {
        let volume = &self.vols[vol];
        volume.bump_running || volume.backing.as_ref().is_some_and(|b| b.is_adopting())
    }

    /// An operator gives a disk up beside another one, which is to have all that it has: it is
    /// current, and at no generation before that of this disk. It was when that was asked for, but
    /// the transaction may have had to wait for long. What counts as given up is of no use to
    /// anybody, whatever generation it is at, and the other one would wait for it for ever.
    pub(crate) fn check_invalidation(
        &self,
        op: Operation,
        peer: PeerIx,
        vol: VolIx,
        asked_by_peer: bool,
    ) -> Result<(), Refusal> {
        let own_is_given_up = match op {
            Operation::Invalidate => !asked_by_peer,
            Operation::InvalidateRemote => asked_by_peer,
            _ => return Ok(()),
        };
        let (own, theirs) = (self.st.vols[vol].disk, self.st.peers[peer].devs[vol].disk);
        let kept = if own_is_given_up { theirs } else { own };
        if kept != DiskState::UpToDate {
            let detail = "the disk that is to be the source of the resync is not UpToDate";
            return Err(Refusal::state(StateError::NoUpToDateDisk, detail));
        }
        let backing = self.vols[vol].backing.as_ref();
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        let (Some(backing), Some(uuids)) = (backing, uuids) else { return Ok(()) };
        let current = backing.gens.current();
        let is_behind = match own_is_given_up {
            true => !current.same(uuids.current) && !uuids.succeeds(current),
            false => !current.same(uuids.current) && !backing.gens.has_passed(uuids.current),
        };
        if is_behind || self.generation_moves(vol) {
            let detail =
                "the source of the resync has not taken on the data generation of that disk";
            return Err(Refusal::state(StateError::InTransientState, detail));
        }
        Ok(())
    }

    /// What an own transaction is to give up is needed by now.
    pub(super) fn is_needed_meanwhile(&self, held: &Held) -> bool {
        let peer = held.target.and_then(|t| self.peer_ix(t));
        let (Some(vol), Some(peer)) = (held.vol, peer) else { return false };
        self.check_invalidation(held.op, peer, vol, false).is_err()
    }
}
