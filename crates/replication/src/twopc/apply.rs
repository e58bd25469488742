//! What a committed change of the cluster does to a node's states (semantics §2.6).

use codec::wire::{Operation, Outdates};
use vocab::{ConnState, DiskState, ReplState, Role};

use super::Held;
use super::check::is_resync;
use crate::resource::Resource;
use crate::state::{PeerIx, State, VolIx};

impl Resource {
    /// The disk that a resync was to begin from was current when that was asked for, and is not any
    /// more: a client has told it that it misses writes. The target may have just these, and would
    /// be brought back to what was there before.
    pub(super) fn has_lost_source(&self, held: &Held) -> bool {
        let Some(vol) = held.vol else { return false };
        let own = self.st.vols[vol].disk;
        let here = held.initiator == self.me;
        let other = if here { held.target } else { Some(held.initiator) };
        if other.and_then(|o| self.peer_ix(o)).is_some_and(|peer| {
            is_resync(held.op) && self.may_resync(held.op, here, peer, vol).is_err()
        }) {
            return true;
        }
        let target = held.target.and_then(|t| self.peer_ix(t));
        let source = match (held.op, target) {
            (Operation::ResyncAsTarget, Some(peer)) => self.st.peers[peer].devs[vol].disk,
            (Operation::ResyncAsTarget, None) => own,
            // Who has stayed beside a disk that crashed may be behind for another reason.
            (Operation::ResyncAsSource, Some(peer)) if !self.is_crashed_in_own(peer, vol) => own,
            _ => return false,
        };
        source < DiskState::UpToDate
    }
}

/// The own states after an own transaction (connections apart).
pub(crate) fn apply_own_change(
    st: &mut State,
    op: Operation,
    target: Option<PeerIx>,
    vol: Option<VolIx>,
) {
    match op {
        Operation::Promote { force } => {
            st.role = Role::Primary;
            if force {
                for vol in &mut st.vols {
                    if vol.disk >= DiskState::Inconsistent {
                        vol.disk = DiskState::UpToDate;
                    }
                }
            }
        }
        Operation::Demote => st.role = Role::Secondary,
        Operation::Attach => set_disk(st, vol, DiskState::Negotiating),
        Operation::Detach => set_disk(st, vol, DiskState::Detaching),
        Operation::Invalidate => set_repl(st, target, vol, ReplState::StartingSyncT),
        Operation::InvalidateRemote => set_repl(st, target, vol, ReplState::StartingSyncS),
        Operation::ResyncAsTarget => set_repl(st, target, vol, ReplState::WFBitMapT),
        Operation::ResyncAsSource => set_repl(st, target, vol, ReplState::WFBitMapS),
        Operation::Verify => set_repl(st, target, vol, ReplState::VerifyS),
        Operation::RemoveVolume => set_repl(st, target, vol, ReplState::Off),
        Operation::Empty | Operation::Connect(_) | Operation::Disconnect(_) | Operation::Resize => {
        }
    }
}

fn set_disk(st: &mut State, vol: Option<VolIx>, disk: DiskState) {
    if let Some(vol) = vol {
        st.vols[vol].disk = disk;
    }
}

fn set_repl(st: &mut State, peer: Option<PeerIx>, vol: Option<VolIx>, repl: ReplState) {
    if let (Some(peer), Some(vol)) = (peer, vol) {
        st.peers[peer].devs[vol].repl = repl;
    }
}

/// This node's view after a transaction of the connected peer `initiator`.
pub(crate) fn apply_remote(
    st: &mut State,
    op: Operation,
    initiator: PeerIx,
    vol: Option<VolIx>,
    target_is_me: bool,
) {
    let set = |st: &mut State, repl: ReplState| {
        if target_is_me {
            set_repl(st, Some(initiator), vol, repl);
        }
    };
    match op {
        Operation::Promote { force } => {
            st.peers[initiator].role = Role::Primary;
            if force {
                for dev in &mut st.peers[initiator].devs {
                    if dev.disk >= DiskState::Inconsistent {
                        dev.disk = DiskState::UpToDate;
                    }
                }
            }
        }
        Operation::Demote => st.peers[initiator].role = Role::Secondary,
        Operation::Attach => set_peer_disk(st, initiator, vol, DiskState::Negotiating),
        Operation::Detach => set_peer_disk(st, initiator, vol, DiskState::Diskless),
        Operation::Invalidate => set(st, ReplState::StartingSyncS),
        Operation::InvalidateRemote => set(st, ReplState::StartingSyncT),
        Operation::ResyncAsTarget => set(st, ReplState::WFBitMapS),
        Operation::ResyncAsSource => set(st, ReplState::WFBitMapT),
        Operation::Verify => set(st, ReplState::VerifyT),
        Operation::RemoveVolume => set(st, ReplState::Off),
        Operation::Disconnect(outdates) if target_is_me => {
            st.peers[initiator].conn = ConnState::TearDown;
            for (vol, dev) in st.peers[initiator].devs.iter_mut().enumerate() {
                match outdates {
                    Outdates::Initiator if dev.disk > DiskState::Outdated => {
                        dev.disk = DiskState::Outdated;
                    }
                    Outdates::Target if st.vols[vol].disk > DiskState::Outdated => {
                        st.vols[vol].disk = DiskState::Outdated;
                    }
                    _ => {}
                }
            }
        }
        Operation::Empty | Operation::Connect(_) | Operation::Disconnect(_) | Operation::Resize => {
        }
    }
}

fn set_peer_disk(st: &mut State, peer: PeerIx, vol: Option<VolIx>, disk: DiskState) {
    if let Some(vol) = vol {
        st.peers[peer].devs[vol].disk = disk;
    }
}
