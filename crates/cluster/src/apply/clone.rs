//! Cloning a resource definition with its data (control plane §8.5).
//!
//! The clone is there at once, with the flag CLONING and without resources. A snapshot of the source
//! is made as any other; when it is good, the clone is restored from it, and when all of that is
//! there the snapshot goes. What goes wrong in between leaves the clone with the flag FAILED.

use std::collections::BTreeMap;

use crate::change::Key;
use crate::command::{NewDefinition, NewResource, NewVolumeDefinition};
use crate::edit::Edit;
use crate::layer::{Layer, stack};
use crate::name::*;
use crate::objects::*;
use crate::props::{Owner, PropsEdit};
use crate::refusal::{Code, NoteCode, Refusal};

use super::{definitions, helpers, nodes, passphrase, resources, rollback, small, snapshots};

#[cfg(test)]
mod tests;

pub fn begin(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    to: NewDefinition,
    change: &PropsEdit,
) -> Result<(), Refusal> {
    let source = edit.definition(name)?.clone();
    rollback::refuse_if_busy(edit, name)?;
    let key = Key::Definition(name.clone());
    passphrase::settled(edit, name, &format!("{key} can not be cloned"))?;
    let refuse = |code, cause: String, correction: &str| {
        Err(Refusal::new(code, format!("{key} can not be cloned"))
            .cause(cause)
            .correction(correction)
            .about(key.clone()))
    };
    if source.flags.contains(&DefinitionFlag::RestoreTarget) {
        let cause = "it is being made from a snapshot".to_owned();
        return refuse(Code::InUse, cause, "wait until that is done");
    }
    if let Some(layers) = &to.layers {
        if stack(layers)?.0 != source.layers {
            let cause = "the clone shares blocks with the source: its layers are the same";
            let next = "leave the layers out";
            return refuse(Code::InvalidLayerStack, cause.to_owned(), next);
        }
    }
    let group = to.group.clone().unwrap_or_else(|| source.group.clone());
    let allowed = edit.group(&group)?.filter.pools.clone().unwrap_or_default();
    let mut on = Vec::new();
    for resource in edit.model.resources_of(name).filter(|resource| resource.is_diskful()) {
        let node = &resource.node;
        if resource.flags.contains(&ResourceFlag::Evacuate) {
            continue;
        }
        if resource.deactivated.is_some() {
            let cause = format!("the replica of node {node} is inactive");
            return refuse(Code::InvalidResourceState, cause, "activate it first, or delete it");
        }
        if !resource.is_replica() {
            let cause = format!("the replica of node {node} is being given up");
            return refuse(Code::InvalidResourceState, cause, "wait until that is done");
        }
        if !edit.observed().is_connected(node) {
            let cause = format!("node {node} is not connected");
            return refuse(Code::NotConnected, cause, "wait until it is back");
        }
        let current = edit.observed().is_up_to_date(name, node, source.volumes.keys());
        if source.layers.contains(&Layer::Drbd) && !current {
            let cause = format!("the replica of node {node} is not UpToDate");
            return refuse(Code::NotUpToDate, cause, "wait until it is");
        }
        let mut pools = resource.volumes.values().map(|volume| &volume.pool);
        if let Some(pool) = pools.find(|p| !allowed.is_empty() && !allowed.contains(p)) {
            let cause = format!(
                "the clone is made in the source's pool {pool} of node {node}, which resource \
                 group {group} does not allow"
            );
            return refuse(Code::NotEnoughNodes, cause, "choose another resource group");
        }
        on.push(node.clone());
    }
    if on.is_empty() {
        let cause = "it has no replica that stays".to_owned();
        return refuse(Code::UnknownResource, cause, "create one first");
    }
    let new = NewDefinition {
        group: Some(group),
        props: Props::new(),
        layers: Some(source.layers.clone()),
        // The metadata that are copied have bitmaps for so many.
        peer_slots: Some(source.peer_slots),
        ..to
    };
    let target = definitions::create(edit, new)?;
    for (number, volume) in &source.volumes {
        let new = NewVolumeDefinition {
            number: Some(number.0),
            size: volume.size,
            minor: None,
            gross_size: volume.flags.contains(&VolumeDefinitionFlag::GrossSize),
            props: volume.props.clone(),
            passphrase: volume.passphrase.clone(),
        };
        definitions::create_volume(edit, &target, new)?;
    }
    let mut props = source.props.clone();
    let key = Key::Definition(target.clone());
    small::edit_props(edit, Owner::Definition, &key, change, &mut props)?;
    helpers::remember_who_sets_quorum(change, &mut props);
    let drawn: String = edit.secret().chars().take(10).collect();
    let snapshot = SnapshotName::new(&format!("clone-{drawn}"))?;
    edit.modify_definition(&target, |definition| {
        definition.props = props;
        definition.flags.insert(DefinitionFlag::Cloning);
        definition.clone_of = Some((name.clone(), snapshot.clone()));
    });
    snapshots::create(edit, vec![(name.clone(), snapshot.clone(), on)], &Props::new())?;
    edit.modify_snapshot(name, &snapshot, |snapshot| {
        snapshot.clone_to = Some(target);
        // The clone has its properties already, without those that were to be left out.
        snapshot.frozen_props.clear();
    });
    Ok(())
}

/// The snapshot of a clone is good: the clone gets resources with its data.
pub fn restore(edit: &mut Edit<'_>, snapshot: &SnapshotDefinition) {
    let Some(to) = &snapshot.clone_to else { return };
    let cloning = |definition: &Definition| definition.flags.contains(&DefinitionFlag::Cloning);
    if !edit.model.definition(to).is_some_and(cloning) {
        return;
    }
    let (name, node) =
        (&snapshot.resource, |node: &&NodeName| nodes::accepting(edit, node).is_ok());
    let on: Vec<NodeName> = snapshot.nodes.keys().filter(node).cloned().collect();
    let (snap, pools) = (&snapshot.name, BTreeMap::new());
    let made = match on.is_empty() {
        true => return fail(edit, to),
        false => snapshots::restore_resources(edit, name, snap, to, &on, &pools),
    };
    if made.is_err() {
        return fail(edit, to);
    }
    let diskless = edit.model.resources_of(name).filter(|resource| {
        !resource.is_diskful() && !resource.is_tie_breaker() && !resource.is_deleting()
    });
    let client = |resource: &Resource| resource.flags.contains(&ResourceFlag::Client);
    let diskless = diskless.map(|resource| (resource.node.clone(), client(resource)));
    for (node, client) in diskless.collect::<Vec<_>>() {
        let new = NewResource { diskless: true, client, ..NewResource::default() };
        // One that can not be made is no reason to do without the clone.
        if let Err(refusal) = resources::create(edit, to, &node, &new, "user") {
            let key = Key::Resource(to.clone(), node);
            edit.note(NoteCode::NotEnoughNodes, key, refusal.to_string());
        }
    }
}

/// A clone that was not made. It stays until it is deleted, so that somebody sees it.
pub fn fail(edit: &mut Edit<'_>, to: &ResourceName) {
    edit.modify_definition(to, |definition| {
        if definition.flags.remove(&DefinitionFlag::Cloning) {
            definition.flags.insert(DefinitionFlag::Failed);
        }
    });
}

/// Ends a clone that is complete, or can not become so any more.
pub fn review(edit: &mut Edit<'_>, to: &ResourceName) {
    let Some(definition) = edit.model.definition(to) else { return };
    let Some((name, snapshot)) = definition.clone_of.clone() else { return };
    if !definition.flags.contains(&DefinitionFlag::Cloning) {
        return;
    }
    let found = edit.model.snapshot(&name, &snapshot);
    if found.is_some_and(SnapshotDefinition::is_pending) {
        return;
    }
    let replicas = || edit.model.resources_of(to).filter(|resource| resource.is_diskful());
    let restoring = ResourceFlag::RestoreFromSnapshot;
    let left = replicas().any(|resource| resource.flags.contains(&restoring));
    let any = replicas().next().is_some();
    match (any, left) {
        (_, true) => {}
        (true, false) => {
            edit.modify_definition(to, |definition| {
                definition.flags.remove(&DefinitionFlag::Cloning);
            });
            drop_snapshot(edit, to);
        }
        (false, false) => fail(edit, to),
    }
}

/// Deletes the snapshot that a clone was made from.
pub fn drop_snapshot(edit: &mut Edit<'_>, to: &ResourceName) {
    let clone_of = edit.model.definition(to).and_then(|definition| definition.clone_of.clone());
    let Some((name, snapshot)) = clone_of else { return };
    snapshots::give_up(edit, &name, &snapshot);
    edit.modify_definition(to, |definition| definition.clone_of = None);
}
