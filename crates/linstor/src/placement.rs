//! Why replicas are placed where they are: every node that could have one, as lines of a dry run and
//! as data. `/v1/ashlar/placement/{rd}` says where one more would go.

use axum::extract::State;
use cluster::name::{NodeName, ResourceName};
use cluster::place::{self, Candidate, Placed, Verdict};
use serde_json::{Value, json};

use crate::answer::{Found, Read};
use crate::ask::{App, Path};
use crate::routes::Routes;

pub fn routes() -> Routes {
    Routes::new().get("/v1/ashlar/placement/{rd}", explain)
}

async fn explain(State(app): State<App>, Path(name): Path<String>) -> Read {
    let state = app.state();
    let placed = place::explain(&state.model, &state.observed, &ResourceName::new(&name)?)?;
    Ok(Found(show(&placed).collect()))
}

/// Why a node is out that has nowhere to put anything.
const NO_POOL: &str = "the node has no storage pool";

/// A sentence for every pool, and for every node without one.
pub fn lines(placed: &Placed) -> impl Iterator<Item = String> {
    let name = &placed.name;
    let pools = placed.candidates.iter().map(move |found| format!("{name} on {found}"));
    pools.chain(
        placed.without_pool.iter().map(move |node| format!("{name} on node {node}: {NO_POOL}")),
    )
}

/// The same as data.
pub fn show(placed: &Placed) -> impl Iterator<Item = Value> {
    let name = &placed.name;
    let pools = placed.candidates.iter().map(move |found| candidate(name, found));
    pools.chain(placed.without_pool.iter().map(move |node| out(name, node, None, NO_POOL)))
}

fn candidate(name: &ResourceName, found: &Candidate) -> Value {
    let verdict = match &found.verdict {
        Verdict::Chosen => "CHOSEN",
        Verdict::NotNeeded => "FITS",
        Verdict::Out(reason) => {
            return out(name, &found.node, Some(found.pool.as_str()), &reason.to_string());
        }
    };
    json!({
        "resource_name": name.as_str(),
        "node_name": found.node.as_str(),
        "storage_pool_name": found.pool.as_str(),
        "verdict": verdict,
        "score": found.score,
    })
}

fn out(name: &ResourceName, node: &NodeName, pool: Option<&str>, reason: &str) -> Value {
    let mut out = json!({
        "resource_name": name.as_str(),
        "node_name": node.as_str(),
        "verdict": "OUT",
        "reason": reason,
    });
    if let Some(pool) = pool {
        out["storage_pool_name"] = json!(pool);
    }
    out
}
