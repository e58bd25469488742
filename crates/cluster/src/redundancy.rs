//! Which copies of the data can be relied on, and what may go because of them.
//!
//! A copy counts if its node is connected, has every volume UpToDate, is to stay, and has confirmed
//! the newest generation: only then no older step can reach it any more that would remove it.

use crate::layer::Layer;
use crate::model::Model;
use crate::name::*;
use crate::objects::*;
use crate::observed::Observed;

/// The property that names the node of the replica that goes when this one is UpToDate.
pub const MIGRATE_FROM: &str = "MigrateFrom";

/// The node whose replica this one takes the place of.
pub fn replaces(resource: &Resource) -> Option<NodeName> {
    NodeName::new(resource.props.get(MIGRATE_FROM)?).ok()
}

/// The nodes with a copy of a resource definition's data that can be relied on.
pub fn copies(model: &Model, observed: &Observed, name: &ResourceName) -> Vec<NodeName> {
    let Some(definition) = model.definition(name) else { return Vec::new() };
    let wanted = model.wanted_generation(name);
    let reliable = model.resources_of(name).filter(|resource| {
        let node = &resource.node;
        let confirmed = observed.replica(name, node).is_some_and(|r| r.generation >= wanted);
        resource.is_replica()
            && confirmed
            && observed.is_up_to_date(name, node, definition.volumes.keys())
    });
    reliable.map(|resource| resource.node.clone()).collect()
}

/// True if a node has said that it has done all that is wanted of it: nothing older can still be done
/// there. One that was deactivated and is down has done so: whatever its peers are, it has none.
pub fn is_confirmed(
    model: &Model,
    observed: &Observed,
    name: &ResourceName,
    node: &NodeName,
) -> bool {
    let wanted = model.wanted_generation(name);
    let token = model.resource(name, node).and_then(|resource| resource.deactivated);
    observed.replica(name, node).is_some_and(|replica| replica.generation >= wanted)
        || token.is_some_and(|token| observed.is_down(name, node, token))
}

/// How many copies have to be left when the data of `node` go, and on which nodes they count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Copies that have to be left.
    pub minimum: usize,
    /// Only the copy of this node counts: it replaces the one that goes.
    pub successor: Option<NodeName>,
}

/// True if somebody wants the data: a resource is to stay, other than for its vote.
pub fn is_wanted(model: &Model, name: &ResourceName) -> bool {
    let Some(definition) = model.definition(name) else { return false };
    let stays = |resource: &Resource| !resource.is_deleting() && !resource.is_tie_breaker();
    !definition.flags.contains(&DefinitionFlag::Delete) && model.resources_of(name).any(stays)
}

/// What has to be left when the data of a replica go.
///
/// Nothing, if that was decided for good: the whole resource definition goes, or the replica has
/// DRBD_DELETE. One copy otherwise; and if there is a successor it is that one's. An emptied node's
/// replicas leave as many as the place count says.
///
/// Nothing here follows from who happens to be away or to be leaving, too: of two replicas that go
/// for reasons of their own neither may count on the other.
pub fn policy(model: &Model, name: &ResourceName, node: &NodeName) -> Policy {
    let none = Policy { minimum: 0, successor: None };
    let Some(definition) = model.definition(name) else { return none };
    let going = definition.flags.contains(&DefinitionFlag::Delete);
    let decided = model
        .resource(name, node)
        .is_some_and(|resource| resource.flags.contains(&ResourceFlag::DrbdDelete));
    if going || decided || !definition.layers.contains(&Layer::Drbd) {
        return none;
    }
    let others =
        || model.resources_of(name).filter(|other| other.node != *node && other.is_replica());
    let successor = others().find(|other| replaces(other).as_ref() == Some(node));
    let successor = successor.map(|other| other.node.clone());
    let evacuated = model
        .resource(name, node)
        .is_some_and(|resource| resource.flags.contains(&ResourceFlag::Evacuate));
    let group = model.group(&definition.group);
    let count = group.and_then(|group| group.filter.place_count).unwrap_or(1) as usize;
    let minimum = match (&successor, evacuated) {
        (None, true) => count.min(others().count()).max(1),
        _ => 1,
    };
    Policy { minimum, successor }
}

/// Whether the data of a replica may go, and if not, why.
pub fn may_go(
    model: &Model,
    observed: &Observed,
    name: &ResourceName,
    node: &NodeName,
) -> Result<(), String> {
    let policy = policy(model, name, node);
    if policy.minimum == 0 {
        return Ok(());
    }
    let copies = copies(model, observed, name);
    let left: Vec<&NodeName> = copies.iter().filter(|copy| *copy != node).collect();
    if let Some(successor) = policy.successor.filter(|successor| !left.contains(&successor)) {
        return Err(format!(
            "the replica of node {successor}, which takes its place, is not UpToDate"
        ));
    }
    if left.len() >= policy.minimum {
        return Ok(());
    }
    let (least, left) = (policy.minimum, left.len());
    Err(format!("{least} other UpToDate replicas have to be left, and {left} are known"))
}

/// The connected nodes, of those where the resource stays, that have not confirmed the newest
/// generation: they may still have the peer that is leaving.
pub fn unconfirmed(
    model: &Model,
    observed: &Observed,
    name: &ResourceName,
    without: &NodeName,
) -> Vec<NodeName> {
    let stays = |resource: &&Resource| {
        ![ResourceFlag::DrbdDelete, ResourceFlag::Evicted]
            .iter()
            .any(|f| resource.flags.contains(f))
    };
    let staying = model.resources_of(name).filter(stays).map(|resource| &resource.node);
    let behind = staying.filter(|node| {
        let confirmed = is_confirmed(model, observed, name, node);
        *node != without && observed.is_connected(node) && !confirmed
    });
    behind.cloned().collect()
}
