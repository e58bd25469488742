//! Snapshots, and what is made from them (control plane §8).

use std::collections::{BTreeMap, BTreeSet};

use crate::change::{Key, Object};
use crate::edit::Edit;
use crate::layer::Layer;
use crate::name::*;
use crate::objects::*;
use crate::props::{Owner, PropsEdit, check_all};
use crate::refusal::{Code, NoteCode, Refusal};

use super::resources::{self, DISKFUL_BY};
use super::{clone, helpers, nodes, passphrase, small};

/// The property of a restored resource that names the snapshot, as `<resource>/<snapshot>`.
pub const RESTORE_FROM: &str = "RestoreFromSnapshot";

pub fn create(
    edit: &mut Edit<'_>,
    wanted: Vec<(ResourceName, SnapshotName, Vec<NodeName>)>,
    props: &Props,
) -> Result<(), Refusal> {
    check_all(Owner::Snapshot, props)?;
    // One token: all of them are suspended together.
    let token = Generation(edit.model.generation().0 + 1);
    for (name, snapshot, nodes) in wanted {
        create_one(edit, &name, snapshot, &nodes, props, token)?;
    }
    Ok(())
}

fn create_one(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    snapshot: SnapshotName,
    nodes: &[NodeName],
    props: &Props,
    token: Generation,
) -> Result<(), Refusal> {
    let key = Key::Snapshot(name.clone(), snapshot.clone());
    let definition = edit.definition(name)?.clone();
    let refuse = |code, cause: String, correction: &str| {
        Err(Refusal::new(code, format!("{key} can not be made"))
            .cause(cause)
            .correction(correction)
            .about(key.clone()))
    };
    if edit.model.snapshot(name, &snapshot).is_some() {
        let cause = "the resource definition has a snapshot of this name".to_owned();
        return refuse(Code::SnapshotExists, cause, "choose another name, or delete that one");
    }
    if edit.model.snapshots_of(name).any(SnapshotDefinition::is_pending) {
        let cause = "another snapshot of this resource definition is being made".to_owned();
        return refuse(Code::InUse, cause, "wait until it is done");
    }
    let changing = definition.volumes.iter().find(|(_, volume)| {
        let flags = [VolumeDefinitionFlag::Delete, VolumeDefinitionFlag::Resize];
        flags.iter().any(|flag| volume.flags.contains(flag))
    });
    if let Some((number, _)) = changing {
        let cause = format!("volume {number} is growing or being deleted");
        return refuse(Code::InUse, cause, "wait until that is done");
    }
    passphrase::settled(edit, name, &format!("{key} can not be made"))?;
    for node in nodes {
        let resource = edit.resource(name, node)?;
        if resource.deactivated.is_some() {
            let cause = format!("the resource of node {node} is inactive");
            return refuse(Code::InvalidResourceState, cause, "activate it, or leave the node out");
        }
        if !resource.is_replica() {
            let cause = format!("the resource of node {node} has no disk");
            return refuse(Code::SnapshotsUnsupported, cause, "leave the node out");
        }
    }
    let inactive = edit.model.resources_of(name).filter(|r| r.deactivated.is_some());
    let inactive = inactive.filter(|r| r.takes_a_place()).map(|resource| resource.node.clone());
    for node in inactive.collect::<Vec<_>>() {
        let text = format!("{key} is not made on node {node}: {name} is inactive there");
        edit.note(NoteCode::Deactivated, key.clone(), text);
    }
    let mut chosen = BTreeMap::new();
    let replicas: Vec<Resource> =
        edit.model.resources_of(name).filter(|r| r.is_replica()).cloned().collect();
    let listed = |resource: &&Resource| nodes.is_empty() || nodes.contains(&resource.node);
    for resource in replicas.iter().filter(listed) {
        let node = &resource.node;
        let evacuating = resource.flags.contains(&ResourceFlag::Evacuate);
        if !edit.observed().is_connected(node) || evacuating {
            let text = format!("{key} is not made on node {node}: it is away, or being evacuated");
            edit.note(NoteCode::NotConnected, key.clone(), text);
            continue;
        }
        if let Some(cause) = why_not(edit, resource) {
            let next = "move the replicas to pools that can, such as thin ones, or make the snapshot \
                        without the node";
            return refuse(Code::SnapshotsUnsupported, cause, next);
        }
        let replicated = definition.layers.contains(&Layer::Drbd);
        let numbers = definition.volumes.keys();
        if replicated && !edit.observed().is_up_to_date(name, node, numbers) {
            let cause = format!("the replica of node {node} is not UpToDate");
            return refuse(Code::SnapshotSourceNotUpToDate, cause, "wait until it is");
        }
        let pools = resource.volumes.iter().map(|(nr, volume)| (*nr, volume.pool.clone()));
        let pools = pools.collect();
        let (created, node_id) = (edit.context.now, resource.node_id);
        let uuid = edit.uuid();
        let one = Snapshot { uuid, created, deleting: false, node_id, pools };
        chosen.insert(node.clone(), one);
    }
    if chosen.is_empty() {
        let cause = "no node with a replica is connected".to_owned();
        return refuse(Code::NotConnected, cause, "wait until one is");
    }
    // Writes have to stop everywhere, also where nothing is snapshotted.
    let observed = edit.observed();
    let writer = edit.model.resources_of(name).map(|resource| &resource.node).find(|node| {
        let alive = observed.in_use(name, node) || observed.is_alive(name, node);
        !observed.is_connected(node) && alive
    });
    if let Some(writer) = writer {
        let cause = format!("it may be in use on node {writer}, whose agent is not connected");
        return refuse(Code::NotConnected, cause, "wait until that node is back");
    }
    put(edit, &definition, snapshot, props.clone(), token, chosen);
    Ok(())
}

/// Has a snapshot be made.
fn put(
    edit: &mut Edit<'_>,
    definition: &Definition,
    snapshot: SnapshotName,
    props: Props,
    token: Generation,
    nodes: BTreeMap<NodeName, Snapshot>,
) {
    let sizes = definition.volumes.iter().map(|(number, volume)| (*number, volume.size));
    let uuid = edit.uuid();
    edit.put(Object::Snapshot(SnapshotDefinition {
        resource: definition.name.clone(),
        name: snapshot,
        uuid,
        props,
        flags: BTreeSet::new(),
        layers: definition.layers.clone(),
        sizes: sizes.collect(),
        frozen_props: definition.props.clone(),
        token,
        nodes,
        clone_to: None,
        passphrases: BTreeMap::new(),
        uploads: BTreeMap::new(),
        scheduled: None,
        download: None,
    }));
}

/// Has a snapshot be made of a resource definition that is down everywhere: nobody can write to it,
/// whatever its disks are.
pub fn keep(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    snapshot: SnapshotName,
    on: &BTreeSet<NodeName>,
) {
    let Some(definition) = edit.model.definition(name).cloned() else { return };
    let token = Generation(edit.model.generation().0 + 1);
    let mut nodes = BTreeMap::new();
    for node in on {
        let Some(resource) = edit.model.resource(name, node) else { continue };
        let pools = resource.volumes.iter().map(|(nr, volume)| (*nr, volume.pool.clone()));
        let (pools, node_id, created) = (pools.collect(), resource.node_id, edit.context.now);
        let one = Snapshot { uuid: edit.uuid(), created, deleting: false, node_id, pools };
        nodes.insert(node.clone(), one);
    }
    put(edit, &definition, snapshot, Props::new(), token, nodes);
}

/// Why snapshots of a replica can not be made, if they can not.
pub fn why_not(edit: &Edit<'_>, resource: &Resource) -> Option<String> {
    let node = &resource.node;
    let provider = |volume: &Volume| edit.model.pool(node, &volume.pool).map(|p| p.provider);
    let mut kinds = resource.volumes.values().filter_map(provider);
    if let Some(kind) = kinds.find(|kind| !kind.has_snapshots()) {
        return Some(format!("pools of kind {kind} can not make snapshots (node {node})"));
    }
    resource.volumes.values().find_map(|volume| {
        let why = edit.observed().pool(node, &volume.pool)?.no_snapshots.as_ref()?;
        Some(format!("pool {} of node {node} can not make snapshots: {why}", volume.pool))
    })
}

/// Deletes a snapshot that is there for something else, which has ended.
pub fn give_up(edit: &mut Edit<'_>, name: &ResourceName, snapshot: &SnapshotName) {
    edit.modify_snapshot(name, snapshot, |snapshot| {
        if snapshot.is_pending() {
            snapshot.flags.insert(SnapshotFlag::FailedDeployment);
        }
        snapshot.flags.insert(SnapshotFlag::Delete);
        snapshot.nodes.values_mut().for_each(|on_node| on_node.deleting = true);
    });
}

pub fn modify(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    snapshot: &SnapshotName,
    change: &PropsEdit,
) -> Result<(), Refusal> {
    let key = Key::Snapshot(name.clone(), snapshot.clone());
    let mut found = edit.snapshot(name, snapshot)?.clone();
    small::edit_props(edit, Owner::Snapshot, &key, change, &mut found.props)?;
    edit.put(Object::Snapshot(found));
    Ok(())
}

pub fn delete(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    snapshot: &SnapshotName,
    nodes: &[NodeName],
) -> Result<(), Refusal> {
    let key = Key::Snapshot(name.clone(), snapshot.clone());
    if small::absent(edit, &key) {
        return Ok(());
    }
    let source = format!("{name}/{snapshot}");
    let restoring = edit.model.definitions().filter(|definition| {
        definition.flags.contains(&DefinitionFlag::RestoreTarget)
            && edit.model.resources_of(&definition.name).any(|resource| {
                resource.flags.contains(&ResourceFlag::RestoreFromSnapshot)
                    && resource.props.get(RESTORE_FROM) == Some(&source)
            })
    });
    if let Some(target) = restoring.map(|definition| definition.name.clone()).next() {
        return Err(Refusal::new(Code::InUse, format!("{key} can not be deleted"))
            .cause(format!("resource definition {target} is being restored from it"))
            .correction("wait until that is done")
            .about(key));
    }
    super::shipping::not_shipped(edit, name, snapshot)?;
    let mut found = edit.snapshot(name, snapshot)?.clone();
    if found.is_pending() {
        found.flags.insert(SnapshotFlag::FailedDeployment);
    }
    for (node, on_node) in &mut found.nodes {
        on_node.deleting |= nodes.is_empty() || nodes.contains(node);
    }
    if found.nodes.values().all(|on_node| on_node.deleting) {
        found.flags.insert(SnapshotFlag::Delete);
    }
    let clone = found.clone_to.clone().filter(|_| !found.is_successful());
    edit.put(Object::Snapshot(found));
    if let Some(to) = clone {
        clone::fail(edit, &to);
    }
    Ok(())
}

/// Gives up a snapshot that is being made. What there is of it is deleted with it.
pub fn abort(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    snapshot: &SnapshotName,
    disconnected: bool,
) -> Result<(), Refusal> {
    let found = edit.snapshot(name, snapshot)?.clone();
    if !found.is_pending() {
        return Ok(());
    }
    fail_all(edit, found.token, disconnected);
    Ok(())
}

/// Gives up everything that is being made with one token: all or none are made.
pub fn fail_all(edit: &mut Edit<'_>, token: Generation, disconnected: bool) {
    let flag = match disconnected {
        true => SnapshotFlag::FailedDisconnect,
        false => SnapshotFlag::FailedDeployment,
    };
    let same = edit.model.snapshots().filter(|s| s.token == token && s.is_pending());
    for mut snapshot in same.cloned().collect::<Vec<_>>() {
        snapshot.flags.extend([flag, SnapshotFlag::Delete]);
        snapshot.nodes.values_mut().for_each(|on_node| on_node.deleting = true);
        let clone = snapshot.clone_to.clone();
        edit.put(Object::Snapshot(snapshot));
        if let Some(to) = clone {
            clone::fail(edit, &to);
        }
    }
}

pub fn restore_volumes(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    snapshot: &SnapshotName,
    to: &ResourceName,
) -> Result<(), Refusal> {
    let found = usable(edit, name, snapshot)?;
    let key = Key::Definition(to.clone());
    let target = edit.definition(to)?;
    if !target.volumes.is_empty() {
        return Err(Refusal::new(Code::VolumeDefinitionExists, format!("{key} has volumes"))
            .cause("sizes of a snapshot are copied into an empty resource definition only")
            .correction("create another resource definition")
            .about(key));
    }
    let source = edit.model.definition(name).cloned();
    for (number, size) in &found.sizes {
        let volume = source.as_ref().and_then(|source| source.volumes.get(number));
        let new = crate::command::NewVolumeDefinition {
            number: Some(number.0),
            size: *size,
            gross_size: volume.is_some_and(|v| v.flags.contains(&VolumeDefinitionFlag::GrossSize)),
            props: volume.map(|volume| volume.props.clone()).unwrap_or_default(),
            // Its header is that of then.
            passphrase: found
                .passphrases
                .get(number)
                .cloned()
                .or_else(|| volume?.passphrase.clone()),
            ..Default::default()
        };
        super::definitions::create_volume(edit, to, new)?;
    }
    Ok(())
}

/// A snapshot that data can be taken from.
pub fn usable(
    edit: &Edit<'_>,
    name: &ResourceName,
    snapshot: &SnapshotName,
) -> Result<SnapshotDefinition, Refusal> {
    let found = edit.snapshot(name, snapshot)?;
    if found.is_successful() {
        return Ok(found.clone());
    }
    let key = Key::Snapshot(name.clone(), snapshot.clone());
    Err(Refusal::new(Code::InvalidResourceState, format!("{key} can not be used"))
        .cause("it is not complete: it is being made or deleted, or could not be made")
        .correction("use a snapshot with the flag SUCCESSFUL")
        .about(key))
}

pub fn restore_resources(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    snapshot: &SnapshotName,
    to: &ResourceName,
    nodes: &[NodeName],
    pools: &BTreeMap<PoolName, PoolName>,
) -> Result<(), Refusal> {
    let found = usable(edit, name, snapshot)?;
    let key = Key::Definition(to.clone());
    let target = edit.definition(to)?.clone();
    let refuse = |code, cause: String, correction: &str| {
        Err(Refusal::new(code, format!("{key} can not be restored"))
            .cause(cause)
            .correction(correction)
            .about(key.clone()))
    };
    if edit.model.resources_of(to).next().is_some() {
        let cause = "it has resources".to_owned();
        return refuse(Code::ResourceExists, cause, "restore into a new resource definition");
    }
    let sizes: BTreeMap<_, _> = target.volumes.iter().map(|(nr, v)| (*nr, v.size)).collect();
    if sizes != found.sizes {
        let cause = "its volumes have not the snapshot's numbers and sizes".to_owned();
        return refuse(Code::InvalidVolumeSize, cause, "restore the volume definitions first");
    }
    if target.layers != found.layers {
        let cause = "its layers are not those of the snapshot".to_owned();
        return refuse(Code::InvalidLayerStack, cause, "create it with the same layers");
    }
    let kept = |(node, on_node): &(&NodeName, &Snapshot)| {
        !on_node.deleting && (nodes.is_empty() || nodes.contains(node))
    };
    let chosen: Vec<(NodeName, Snapshot)> =
        found.nodes.iter().filter(kept).map(|(n, s)| (n.clone(), s.clone())).collect();
    if let Some(missing) = nodes.iter().find(|node| !found.nodes.contains_key(node)) {
        let cause = format!("node {missing} has no such snapshot");
        return refuse(Code::UnknownSnapshot, cause, "name nodes that have the snapshot");
    }
    if chosen.is_empty() {
        let cause = "no node has the snapshot any more".to_owned();
        return refuse(Code::UnknownSnapshot, cause, "use another snapshot");
    }
    let frozen = found.frozen_props.clone();
    edit.modify_definition(to, |definition| {
        definition.flags.insert(DefinitionFlag::RestoreTarget);
        for (key, value) in frozen {
            if !key.starts_with("Internal/") {
                definition.props.entry(key).or_insert(value);
            }
        }
        // The data have a history: nobody begins one.
        for volume in definition.volumes.values_mut() {
            volume.flags.insert(VolumeDefinitionFlag::DrbdInitialized);
            volume.initial_on = None;
        }
    });
    for (node, on_node) in chosen {
        nodes::accepting(edit, &node)?;
        let renamed = |pool: &PoolName| pools.get(pool).unwrap_or(pool).clone();
        if let Some(pool) =
            on_node.pools.values().find(|p| edit.model.pool(&node, &renamed(p)).is_none())
        {
            let cause = format!("node {node} has no pool {}", renamed(pool));
            return refuse(
                Code::UnknownPool,
                cause,
                "create the pool, or rename it in the request",
            );
        }
        let pool = on_node.pools.values().next().map(renamed);
        let new =
            crate::command::NewResource { pool, node_id: on_node.node_id, ..Default::default() };
        resources::create(edit, to, &node, &new, "user")?;
        edit.modify_resource(to, &node, |resource| {
            resource.flags.insert(ResourceFlag::RestoreFromSnapshot);
            resource.props.insert(RESTORE_FROM.to_owned(), format!("{name}/{snapshot}"));
            resource.props.insert(DISKFUL_BY.to_owned(), "user".to_owned());
            for (number, pool) in &on_node.pools {
                if let Some(volume) = resource.volumes.get_mut(number) {
                    volume.pool = renamed(pool);
                }
            }
        });
    }
    helpers::review(edit, to)
}
