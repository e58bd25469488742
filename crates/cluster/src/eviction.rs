//! When nodes that stay away are evicted (control plane §4.9).

use std::collections::BTreeMap;

use crate::model::Model;
use crate::name::NodeName;
use crate::objects::{Millis, Node};
use crate::observed::Observed;
use crate::props::{chain, is_true};

const MINUTE: u64 = 60_000;
/// LINSTOR's default of `DrbdOptions/AutoEvictAfterTime`, in minutes.
const EVICT_AFTER: u64 = 720;
/// LINSTOR's default of `DrbdOptions/AutoEvictMaxDisconnectedNodes`, in percent.
const MAX_DISCONNECTED: usize = 34;

/// Nodes that are away, and when they are evicted if they stay so. A node that comes back, or one more that
/// goes away, may change it.
pub fn evictions(model: &Model, observed: &Observed) -> BTreeMap<NodeName, Millis> {
    let holding = || model.nodes().filter(|node| node.kind.holds_resources());
    let away = |node: &&Node| !observed.is_connected(&node.name);
    let controller = &model.controller().props;
    let share = controller.get("DrbdOptions/AutoEvictMaxDisconnectedNodes");
    let share = share.and_then(|share| share.parse().ok()).unwrap_or(MAX_DISCONNECTED);
    // Rounded: 34 % of 3 nodes is one.
    let most = (holding().count() * share + 50) / 100;
    if holding().filter(away).count() > most {
        return BTreeMap::new();
    }
    let at = |node: &Node| {
        let chain = chain::node(model, node);
        let after = chain.number("DrbdOptions/AutoEvictAfterTime").unwrap_or(EVICT_AFTER);
        let allowed = chain.get("DrbdOptions/AutoEvictAllowEviction").is_none_or(is_true);
        let state = observed.nodes.get(&node.name)?;
        let may_be = node.flags.is_empty() && allowed && !alive(model, observed, &node.name);
        let at = Millis(state.since.0.saturating_add(after.saturating_mul(MINUTE)));
        may_be.then(|| (node.name.clone(), at))
    };
    holding().filter(away).filter_map(at).collect()
}

/// True if a peer has a DRBD connection to the node: then only its agent is away.
fn alive(model: &Model, observed: &Observed, node: &NodeName) -> bool {
    model.resources_on(node).any(|name| observed.is_alive(name, node))
}
