//! LINSTOR's REST API over the control plane: translates, and decides nothing.
//!
//! - `controller`: what the surface needs of a controller
//! - `ask`, `answer`, `code`: requests, answers and return codes, the same for all calls
//! - `access`: who may call
//! - one file for each kind of object, with its routes, how it is shown and how it is changed
//! - `refused`: calls of LINSTOR's that are not there, each with the reason
#![forbid(unsafe_code)]

mod access;
mod answer;
mod ask;
mod code;
mod control;
pub mod controller;
mod definitions;
mod events;
mod groups;
mod lenient;
mod nodes;
mod pools;
mod refused;
mod resources;
mod sizes;
mod small;
mod snapshots;

use std::sync::Arc;

use axum::Router;
use cluster::name::{NodeName, ResourceName};
use tower_http::compression::{CompressionLayer, Predicate, predicate};
use vocab::DiskState;

use crate::controller::{Controller, State};

/// Answers smaller than this, in bytes, are sent as they are.
const COMPRESSED_FROM: u64 = 1000;

/// The REST API of a controller, for programs on its host.
pub fn router(controller: Arc<dyn Controller>) -> Router {
    let compressed = predicate::SizeAbove::new(COMPRESSED_FROM)
        .and(predicate::NotForContentType::const_new("text/event-stream"));
    Router::new()
        .merge(control::routes())
        .merge(nodes::routes())
        .merge(pools::routes())
        .merge(groups::routes())
        .merge(sizes::routes())
        .merge(definitions::routes())
        .merge(resources::routes())
        .merge(snapshots::routes())
        .merge(small::routes())
        .merge(events::routes())
        .merge(refused::routes())
        .fallback(refused::unknown_path)
        .method_not_allowed_fallback(refused::unknown_method)
        .layer(CompressionLayer::new().compress_when(compressed))
        .layer(axum::middleware::from_fn(access::only_this_host))
        .with_state(controller)
}

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
