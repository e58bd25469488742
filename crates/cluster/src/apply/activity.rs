//! Taking a resource down on one node, and bringing it up again (control plane §4.8).
//!
//! ```text
//! (none) ──deactivate──► INACTIVE ──activate, make available──► REACTIVATE
//!    ▲                       │delete                                │
//!    └───────────────────────┴────────────UpToDate──────────────────┘
//! ```
//! Its storage stays as it is, with the metadata of DRBD: when it comes up again it gets what it has
//! missed. Its peers know it meanwhile, and keep account of that. It is no copy that anybody counts on,
//! has no vote, and keeps its place.

use crate::change::Key;
use crate::edit::Edit;
use crate::layer::Layer;
use crate::name::*;
use crate::objects::*;
use crate::props::chain;
use crate::redundancy::replaces;
use crate::refusal::{Code, NoteCode, Refusal};

use super::helpers::{self, QUORUM};
use super::rollback::MOVING;

#[cfg(test)]
mod tests;

pub fn deactivate(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    node: &NodeName,
) -> Result<(), Refusal> {
    let key = Key::Resource(name.clone(), node.clone());
    let definition = edit.definition(name)?;
    edit.node(node)?;
    let resource = edit.resource(name, node)?;
    if resource.deactivated.is_some() {
        edit.note(NoteCode::NothingToDo, key.clone(), format!("{key} is inactive already"));
        return Ok(());
    }
    is_free(edit, definition, resource, &key)?;
    if resource.is_diskful() {
        others_go_on(edit, definition, resource, &key)?;
    }
    // What its node says that it is down for: agents do not begin one twice.
    let token = Generation(edit.model.generation().0 + 1);
    edit.modify_resource(name, node, |resource| {
        resource.deactivated = Some(token);
        resource.flags.remove(&ResourceFlag::Reactivate);
        resource.flags.insert(ResourceFlag::Inactive);
    });
    let text = format!("{key} is inactive: it gets no writes until it is activated");
    edit.note(NoteCode::Deactivated, key.clone(), text);
    if !edit.observed().is_connected(node) {
        let text = format!("node {node} is not connected; {key} is taken down when it is");
        edit.note(NoteCode::NotConnected, key, text);
    }
    helpers::review(edit, name)
}

fn not_deactivated(key: &Key, code: Code, cause: String, next: String) -> Refusal {
    let text = format!("{key} can not be deactivated");
    Refusal::new(code, text).cause(cause).correction(next).about(key.clone())
}

/// Checks that nobody uses a resource, and nothing else is being done to it.
fn is_free(
    edit: &Edit<'_>,
    definition: &Definition,
    resource: &Resource,
    key: &Key,
) -> Result<(), Refusal> {
    let (name, node) = (&resource.name, &resource.node);
    let refuse = |code, cause, next| Err(not_deactivated(key, code, cause, next));
    let wait = || "wait until that is done".to_owned();
    if !definition.layers.contains(&Layer::Drbd) {
        let cause = "without the layer DRBD nothing of it is above its storage".to_owned();
        return refuse(Code::InvalidLayerStack, cause, "leave it as it is".to_owned());
    }
    if edit.observed().in_use(name, node) {
        let next = format!("close it on node {node}: unmount it, or stop what uses it");
        return refuse(Code::InUse, "it is Primary or open".to_owned(), next);
    }
    if resource.is_deleting() {
        let next = "make it available again first".to_owned();
        return refuse(Code::InUse, "it is being deleted".to_owned(), next);
    }
    if resource.is_tie_breaker() {
        let cause = "it is there for its vote, which it would not have".to_owned();
        return refuse(Code::InvalidResourceState, cause, "delete it, if it is to go".to_owned());
    }
    use ResourceFlag::{Evacuate, Evicted};
    if let Some(flag) = MOVING.iter().find(|flag| resource.flags.contains(flag)) {
        let cause = format!("it has the flag {flag}: something else is being done to it");
        let next = match flag {
            Evicted | Evacuate => format!("restore node {node} first"),
            _ => wait(),
        };
        return refuse(Code::InvalidResourceState, cause, next);
    }
    let mut others = edit.model.resources_of(name);
    let migrated = |other: &Resource| replaces(other).as_ref() == Some(node);
    if replaces(resource).is_some() || others.any(migrated) {
        let cause = "it is being migrated".to_owned();
        return refuse(Code::InvalidResourceState, cause, wait());
    }
    let mut snapshots = edit.model.snapshots_of(name);
    if let Some(snapshot) = snapshots.find(|snapshot| snapshot.is_pending()) {
        let cause = format!("snapshot {} of {name} is being made", snapshot.name);
        return refuse(Code::InUse, cause, wait());
    }
    let changing = [VolumeDefinitionFlag::Resize, VolumeDefinitionFlag::Delete];
    let mut volumes = definition.volumes.iter();
    let busy = volumes.find(|(_, v)| changing.iter().any(|flag| v.flags.contains(flag)));
    if let Some((number, _)) = busy {
        let cause = format!("volume {number} is growing or being deleted");
        return refuse(Code::InUse, cause, wait());
    }
    Ok(())
}

/// Checks that the others have the data, and votes enough, without a replica.
fn others_go_on(
    edit: &Edit<'_>,
    definition: &Definition,
    resource: &Resource,
    key: &Key,
) -> Result<(), Refusal> {
    let (name, node) = (&resource.name, &resource.node);
    let refuse = |code, cause, next| Err(not_deactivated(key, code, cause, next));
    let begun =
        |volume: &VolumeDefinition| volume.flags.contains(&VolumeDefinitionFlag::DrbdInitialized);
    if let Some((number, _)) = definition.volumes.iter().find(|(_, volume)| !begun(volume)) {
        let cause = format!("volume {number} is new, and its data have not begun anywhere");
        return refuse(Code::NotUpToDate, cause, "wait until they have".to_owned());
    }
    let others = || edit.model.resources_of(name).filter(|other| other.node != *node);
    let current = |other: &&Resource| {
        other.is_replica()
            && edit.observed().is_up_to_date(name, &other.node, definition.volumes.keys())
    };
    if !others().any(|other| current(&other)) {
        return refuse(
            Code::InsufficientReplicas,
            "no other replica that is active is known to be UpToDate: its data may be the only ones"
                .to_owned(),
            "wait until another replica is UpToDate and its node connected, or activate one"
                .to_owned(),
        );
    }
    // A node that went down by itself is known to have old data, and does not count. One that was lost
    // does, and all others that have a vote do with it.
    let voters = || others().filter(|other| other.is_diskful());
    let away: Vec<String> = voters()
        .filter(|other| other.deactivated.is_none())
        .filter(|other| !edit.observed().is_connected(&other.node))
        .map(|other| other.node.to_string())
        .collect();
    let here = voters()
        .filter(|other| other.deactivated.is_none() && edit.observed().is_connected(&other.node));
    let quorum = chain::definition(edit.model, definition).get(QUORUM);
    let bound = quorum.is_some_and(|quorum| quorum != "off");
    if bound && !away.is_empty() && here.count() * 2 <= voters().count() + 1 {
        let away = away.join(", ");
        return refuse(
            Code::InsufficientReplicas,
            format!("nodes {away} are away: without this one the others might have no quorum"),
            "wait until they are back, or remove them with `node lost`".to_owned(),
        );
    }
    Ok(())
}

pub fn activate(edit: &mut Edit<'_>, name: &ResourceName, node: &NodeName) -> Result<(), Refusal> {
    let key = Key::Resource(name.clone(), node.clone());
    edit.definition(name)?;
    edit.node(node)?;
    let resource = edit.resource(name, node)?.clone();
    if resource.flags.contains(&ResourceFlag::Evicted) {
        return Err(Refusal::new(
            Code::InvalidResourceState,
            format!("{key} can not be activated"),
        )
        .cause(format!("node {node} is evicted: what is on it was given up"))
        .correction(format!("restore node {node} first"))
        .about(key));
    }
    if resource.deactivated.is_none() {
        edit.note(NoteCode::NothingToDo, key.clone(), format!("{key} is active already"));
        return Ok(());
    }
    alone_in_its_space(edit, &resource, &key)?;
    bring_back(edit, name, node);
    helpers::review(edit, name)
}

/// Brings a resource up that was deactivated, and says so where that has to wait.
pub fn bring_back(edit: &mut Edit<'_>, name: &ResourceName, node: &NodeName) {
    edit.modify_resource(name, node, |resource| {
        resource.activate();
        // The others go on with their own votes until it is there: one that holds a vote and is away
        // could cost them their quorum.
        if resource.is_diskful() {
            resource.flags.insert(ResourceFlag::Reactivate);
        }
    });
    if !edit.observed().is_connected(node) {
        let key = Key::Resource(name.clone(), node.clone());
        let text = format!("node {node} is not connected; {key} is brought up when it is");
        edit.note(NoteCode::NotConnected, key, text);
    }
}

/// Checks that no other resource of the definition is active in a space that both are in.
fn alone_in_its_space(edit: &Edit<'_>, resource: &Resource, key: &Key) -> Result<(), Refusal> {
    let spaces = |resource: &Resource| {
        let pools = resource.volumes.values().map(|volume| &volume.pool);
        let pools = pools.filter_map(|pool| edit.model.pool(&resource.node, pool));
        pools.filter_map(|pool| pool.shared_space.clone()).collect::<Vec<_>>()
    };
    let own = spaces(resource);
    let other = edit.model.resources_of(&resource.name).find(|other| {
        other.node != resource.node
            && other.deactivated.is_none()
            && spaces(other).iter().any(|space| own.contains(space))
    });
    let Some(other) = other else { return Ok(()) };
    let node = &other.node;
    Err(Refusal::new(Code::SharedSpaceActive, format!("{key} can not be activated"))
        .cause(format!("its storage is that of node {node}, where the resource is active"))
        .correction(format!("deactivate or delete it on node {node} first"))
        .about(key.clone()))
}

/// Refuses what can be done to an active resource only; `text` says what that is.
pub fn needed(resource: &Resource, text: &str) -> Result<(), Refusal> {
    if resource.deactivated.is_none() {
        return Ok(());
    }
    let node = &resource.node;
    Err(Refusal::new(Code::InvalidResourceState, text)
        .cause(format!("it is inactive on node {node}"))
        .correction("activate it first, or delete it")
        .about(Key::Resource(resource.name.clone(), node.clone())))
}
