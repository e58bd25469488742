//! LINSTOR's REST API over the control plane: translates, and decides nothing.
#![forbid(unsafe_code)]

pub mod controller;

use cluster::name::{NodeName, ResourceName};
use vocab::DiskState;

use crate::controller::State;

/// True if the resource could become Primary there as far as agents have reported: nobody else has
/// it open, and an UpToDate disk is there or on a connected peer. Whether quorum is there only DRBD
/// knows.
pub fn may_promote(state: &State, name: &ResourceName, node: &NodeName) -> bool {
    let observed = &state.observed;
    let Some(replica) = observed.replica(name, node) else { return false };
    let current = |replica: &cluster::observed::ReplicaState| {
        !replica.volumes.is_empty()
            && replica.volumes.values().all(|volume| volume.disk == Some(DiskState::UpToDate))
    };
    let others = || observed.replicas(name).filter(|(peer, _)| *peer != node);
    let reached = |peer: &NodeName| replica.connections.get(peer) == Some(&true);
    replica.up
        && !others().any(|(_, other)| other.in_use.is_some())
        && (current(replica) || others().any(|(peer, other)| reached(peer) && current(other)))
}
