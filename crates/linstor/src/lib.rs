//! LINSTOR's REST API over the control plane: translates, and decides nothing.
//!
//! - `controller`: what the surface needs of a controller
//! - `ask`, `answer`, `code`: requests, answers and return codes, the same for all calls
//! - `routes`: the calls as a table; `access`: who may make which, and what was called
//! - `foretell`: dry runs; `placement`: why replicas are where they are; `openapi`: the document of the
//!   API; `metrics`; `properties`: which there are
//! - `shown`: long lists, which are kept; `agents`: what is asked of agents at once; `diagnosis`: what
//!   helps to find out what is wrong
//! - `import`: what the database of LINSTOR itself has, as objects of this control plane
//! - one file for each kind of object, with its routes, how it is shown and how it is changed; and
//!   `ashlar` for calls of our own
//! - `refused`: calls of LINSTOR's that are not there, each with the reason
#![forbid(unsafe_code)]

pub mod access;
mod agents;
mod answer;
mod ashlar;
mod ask;
mod backups;
mod clone;
mod code;
mod control;
pub mod controller;
mod definitions;
mod diagnosis;
mod events;
mod foretell;
mod groups;
pub mod import;
mod lenient;
mod metrics;
mod nodes;
mod openapi;
mod physical;
mod placement;
mod pools;
mod properties;
mod refused;
mod remotes;
mod resources;
mod routes;
mod schedules;
mod shipments;
pub mod shown;
mod sizes;
mod small;
mod snapshots;
mod tokens;

use std::sync::Arc;

use axum::{Extension, Router};
use cluster::name::{NodeName, ResourceName};
use tower_http::compression::{CompressionLayer, Predicate, predicate};
use vocab::DiskState;

use crate::access::{Access, Guard, Open};
use crate::controller::{Controller, State};
use crate::metrics::Meters;
use crate::routes::Routes;

/// Answers smaller than this, in bytes, are sent as they are.
const COMPRESSED_FROM: u64 = 1000;

/// The REST API of a controller, for every program on its host: whoever serves it listens on a loopback
/// address.
pub fn router(controller: Arc<dyn Controller>) -> Router {
    guarded(controller, Arc::new(Open))
}

/// The REST API of a controller, for whom `access` knows. It has to be served with information about
/// who connects (`into_make_service_with_connect_info`).
pub fn guarded(controller: Arc<dyn Controller>, access: Arc<dyn Access>) -> Router {
    let compressed = predicate::SizeAbove::new(COMPRESSED_FROM)
        .and(predicate::NotForContentType::const_new("text/event-stream"))
        // Compressed already, and clients keep it as it comes.
        .and(predicate::NotForContentType::const_new("application/octet-stream"));
    let (router, table) = routes().into_parts();
    let meters = Arc::new(Meters::new(table));
    let guard = Arc::new(Guard::new(access.clone(), meters.clone()));
    router
        .fallback(refused::unknown_path)
        .method_not_allowed_fallback(refused::unknown_method)
        .layer(CompressionLayer::new().compress_when(compressed))
        .layer(Extension(access))
        .layer(Extension(meters))
        .layer(axum::middleware::from_fn_with_state(guard, access::check))
        .with_state(controller)
}

/// Every call.
fn routes() -> Routes {
    Routes::new()
        .merge(control::routes())
        .merge(agents::routes())
        .merge(diagnosis::routes())
        .merge(nodes::routes())
        .merge(pools::routes())
        .merge(physical::routes())
        .merge(groups::routes())
        .merge(sizes::routes())
        .merge(definitions::routes())
        .merge(resources::routes())
        .merge(snapshots::routes())
        .merge(clone::routes())
        .merge(small::routes())
        .merge(remotes::routes())
        .merge(backups::routes())
        .merge(shipments::routes())
        .merge(schedules::routes())
        .merge(events::routes())
        .merge(metrics::routes())
        .merge(openapi::routes())
        .merge(properties::routes())
        .merge(ashlar::routes())
        .merge(tokens::routes())
        .merge(placement::routes())
        .merge(refused::routes())
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
