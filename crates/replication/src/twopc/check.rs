//! What the nodes of two disks look at before these take part in a transaction: the one that is asked
//! before it agrees, both before it is committed.

use codec::wire::Operation;
use vocab::{ConnState, DiskState, NodeMask, Refusal, ReplState, Role, StateError};

use super::apply::apply_remote;
use super::{Held, ReplyMasks};
use crate::generation::is_generation;
use crate::resource::{Pings, Resource};
use crate::state::{PeerIx, VolIx};

impl Resource {
    /// Would this node agree (semantics §2.3 step 3, §1.9, §2.6)?
    pub(super) fn validate_remote(&mut self, held: &Held) -> Result<(), Refusal> {
        let initiator = self.peer_ix(held.initiator).filter(|p| self.st.is_connected(*p));
        if let (Some(resize), Some(vol)) = (&held.resize, held.vol) {
            return self.may_take_part(vol, resize.user_size);
        }
        if let Operation::Connect(_) = held.op {
            if held.target == Some(self.me) {
                self.connect_wanted(held.initiator)?;
                return self.follows_no_other(held);
            }
            return Ok(());
        }
        if let (Operation::Promote { .. }, None) = (held.op, initiator) {
            return match self.st.role {
                Role::Primary => Err(StateError::TwoPrimaries.into()),
                _ => Ok(()),
            };
        }
        let Some(initiator) = initiator else { return Ok(()) };
        self.check_told(held, initiator)?;
        let busy = self.handshake_running() || (held.op == Operation::Attach && self.negotiating());
        if let (Operation::Attach | Operation::Detach, true) = (held.op, busy) {
            return Err(StateError::InTransientState.into());
        }
        if let (Operation::Attach, Some(vol)) = (held.op, held.vol) {
            // The disk that comes back missed what is being written: that has to be on record
            // before the generations are compared.
            // Without data nothing is being written, and a generation can not even start.
            let backing = self.vols[vol].backing.as_ref();
            if backing.is_some_and(|b| b.is_adopting()) {
                // It would be compared with what may never get to the disk here.
                return Err(StateError::InTransientState.into());
            }
            let writes = self.st.role == Role::Primary && self.has_data(&self.st, vol);
            if writes && self.bump_blocks(vol) {
                let owed = self.log.iter().any(|w| w.vol == vol);
                if owed && self.st.vols[vol].quorum {
                    self.start_bump(vol);
                    return Err(StateError::InTransientState.into());
                }
                if owed {
                    // No generation starts without quorum, and that may be what this disk brings.
                    self.mark_unfinished(vol, held.initiator);
                }
            }
        }
        let target_is_me = held.target == Some(self.me);
        if held.op == Operation::Verify && target_is_me {
            self.check_verify(initiator, held.vol)?;
        }
        if target_is_me && (is_resync(held.op) || held.op == Operation::Verify) {
            self.check_resync_pair(initiator, held.vol)?;
        }
        if let (true, true, Some(vol)) = (target_is_me, is_resync(held.op), held.vol) {
            self.may_resync(held.op, false, initiator, vol)?;
        }
        let (op, vol) = (held.op, held.vol);
        self.tentative(|st| apply_remote(st, op, initiator, vol, target_is_me)).map(|_| ())
    }

    /// A Primary wants to connect, and this node hears another one. If the initiator hears that one
    /// too, as a Secondary, it may have restarted, or been demoted, and a link be dead without this
    /// node knowing: nobody asks it what it is now, so this node does.
    pub(super) fn follows_no_other(&mut self, held: &Held) -> Result<(), Refusal> {
        let other = self.st.primary_peers().without(held.initiator).minus(held.nodes_to_reach);
        if held.op != Operation::Connect(Role::Primary) || other.is_empty() {
            return Ok(());
        }
        for node in other.iter() {
            if let Some(peer) = self.peer_ix(node).filter(|p| self.peers[*p].pings == Pings::None) {
                self.ping(peer);
            }
        }
        Err(StateError::InTransientState.into())
    }

    /// What a neighbour wants, and whether it is one.
    ///
    /// A Primary is demoted, and this node, which takes itself for connected to it, is told by another
    /// one: the Primary has given the connection up, and may have written without this disk. Told as
    /// if it were a neighbour, this node would find a Secondary lost, and its disk as current as before.
    /// It has to find out first that it has lost a Primary.
    pub(super) fn check_told(&mut self, held: &Held, initiator: PeerIx) -> Result<(), Refusal> {
        if held.op == Operation::Demote && !held.parents.contains(&initiator) {
            if self.peers[initiator].pings == Pings::None {
                self.ping(initiator);
            }
            return Err(StateError::InTransientState.into());
        }
        match held.op {
            Operation::Disconnect(_) if held.target == Some(self.me) => {
                self.check_joint_disconnect(initiator)
            }
            _ => Ok(()),
        }
    }

    /// This node's contribution to the Primary masks: weak are those that a Primary with good
    /// data can not reach directly (semantics §2.1).
    pub(super) fn own_primary(&self, direct: NodeMask) -> ReplyMasks {
        let mut masks = ReplyMasks::default();
        if self.st.role == Role::Primary {
            masks.primary.insert(self.me);
            // One without quorum does not write: it makes nobody's data old.
            let mut after = self.st.clone();
            for (p, state) in after.peers.iter_mut().enumerate() {
                let connected = direct.contains(state.node);
                let meets = connected && state.conn != ConnState::Connected;
                state.conn = if connected { ConnState::Connected } else { ConnState::Connecting };
                for (v, dev) in state.devs.iter_mut().enumerate().filter(|_| meets) {
                    let word = self.peers[p].devs[v].last_word.unwrap_or_default();
                    dev.disk = self.real_peer_disk(p, v, word);
                }
            }
            let capable = (0..self.vols.len())
                .filter(|v| !self.st.vols[*v].aside)
                .all(|v| self.has_data(&self.st, v) && self.quorum_of(&after, v).enforced);
            if capable {
                masks.weak = direct.complement();
            }
        }
        masks
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

    /// No disk is resynced from one that has not got as far. The source may still be on its way to
    /// the generation of the target, and never get there: a client has named it to both, and one
    /// of them has not heard it yet. The writes of that generation would be nowhere then, and the
    /// client would wait for ever for a disk that has them. `here`: this node asks for the resync.
    pub(crate) fn may_resync(
        &self,
        op: Operation,
        here: bool,
        peer: PeerIx,
        vol: VolIx,
    ) -> Result<(), Refusal> {
        let by_target = matches!(op, Operation::Invalidate | Operation::ResyncAsTarget);
        let (own, theirs) = (self.st.vols[vol].disk, self.st.peers[peer].devs[vol].disk);
        let (source, target) = if by_target == here { (theirs, own) } else { (own, theirs) };
        let given_up = matches!(op, Operation::Invalidate | Operation::InvalidateRemote);
        if given_up && source != DiskState::UpToDate {
            let why = "the disk that is to be the source of the resync is not UpToDate";
            return Err(Refusal::state(StateError::NoUpToDateDisk, why));
        }
        // A mixture holds no generation.
        if target < DiskState::Outdated {
            return Ok(());
        }
        let Some(backing) = &self.vols[vol].backing else { return Ok(()) };
        let Some(uuids) = &self.peers[peer].devs[vol].uuids else { return Ok(()) };
        let (own, theirs) = (backing.gens.current(), uuids.current);
        let as_far = match by_target == here {
            true => !is_generation(own) || theirs.same(own) || uuids.has_passed(own),
            false if theirs.same(own) => !backing.is_adopting(),
            false => !is_generation(theirs) || backing.gens.has_passed(theirs),
        };
        let why = "the disk to resync from has not taken on the generation of the other one yet";
        match as_far {
            true => Ok(()),
            false => Err(Refusal::state(StateError::InTransientState, why)),
        }
    }
}

/// One of two disks is to be resynced from the other.
pub(super) const fn is_resync(op: Operation) -> bool {
    matches!(
        op,
        Operation::Invalidate
            | Operation::InvalidateRemote
            | Operation::ResyncAsTarget
            | Operation::ResyncAsSource
    )
}
