//! Nodes that leave, on purpose or not, and what is due by the time of day (control plane §4.9).

use crate::change::Key;
use crate::command::NewResource;
use crate::edit::Edit;
use crate::eviction::evictions;
use crate::layer::Layer;
use crate::name::*;
use crate::objects::*;
use crate::place;
use crate::props::{chain, is_true};
use crate::redundancy::{MIGRATE_FROM, replaces};
use crate::refusal::{Code, NoteCode, Refusal};

use super::resources::{self, DISKFUL_BY};
use super::{clone, helpers, join, nodes, rollback, series, toggle};

const MINUTE: u64 = 60_000;
/// Resources younger than this are left to whoever made them, in milliseconds.
const GRACE: u64 = 3_600_000;

/// Begins to empty a node.
pub fn evacuate(
    edit: &mut Edit<'_>,
    name: &NodeName,
    to: Option<Vec<NodeName>>,
    not_to: Vec<NodeName>,
) -> Result<(), Refusal> {
    let key = Key::Node(name.clone());
    let node = edit.node(name)?;
    let refuse = |code, cause: &str, correction: &str| {
        Err(Refusal::new(code, format!("{key} can not be evacuated"))
            .cause(cause)
            .correction(correction)
            .about(key.clone()))
    };
    if to.as_ref().is_some_and(|to| !to.is_empty()) && !not_to.is_empty() {
        return refuse(
            Code::InvalidConfig,
            "nodes to go to and nodes not to go to exclude each other",
            "give one of the lists",
        );
    }
    if node.flags.contains(&NodeFlag::Evicted) || node.flags.contains(&NodeFlag::Delete) {
        return refuse(
            Code::InvalidRequest,
            "it is evicted or being deleted",
            "restore it first, or remove it with `node lost`",
        );
    }
    edit.modify_node(name, |node| {
        node.flags.insert(NodeFlag::Evacuate);
        node.evacuate_to = to.filter(|to| !to.is_empty());
        node.evacuate_not_to = not_to;
    });
    let names: Vec<ResourceName> = edit.model.resources_on(name).cloned().collect();
    for resource in &names {
        edit.modify_resource(resource, name, |r| {
            r.flags.insert(ResourceFlag::Evacuate);
        });
        evacuate_one(edit, resource, name, true)?;
        helpers::review(edit, resource)?;
    }
    Ok(())
}

/// Goes on emptying a node of one resource: deletes it if it is not needed, else makes another.
/// `tell` says whether it is noted where that can not be done.
pub fn evacuate_one(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    node: &NodeName,
    tell: bool,
) -> Result<(), Refusal> {
    let key = Key::Resource(name.clone(), node.clone());
    let Ok(definition) = edit.definition(name).cloned() else { return Ok(()) };
    let Some(resource) = edit.model.resource(name, node) else { return Ok(()) };
    if resource.is_deleting() || !resource.flags.contains(&ResourceFlag::Evacuate) {
        return Ok(());
    }
    if rollback::is_busy(edit, name) {
        if tell {
            let text = format!("{key} stays until {name} has been rolled back");
            edit.note(NoteCode::NotEvacuating, key, text);
        }
        return Ok(());
    }
    if !definition.layers.contains(&Layer::Drbd) {
        if tell {
            let text = format!("{key} stays: without DRBD it can not be copied elsewhere");
            edit.note(NoteCode::NotEvacuating, key, text);
        }
        return Ok(());
    }
    if edit.observed().in_use(name, node) {
        if tell {
            let text = format!("{key} stays until it is closed on node {node}");
            edit.note(NoteCode::NotEvacuating, key, text);
        }
        return Ok(());
    }
    if !resource.is_diskful() {
        resources::mark_deleted(edit, name, node);
        return Ok(());
    }
    let replaced = edit.model.resources_of(name).any(|r| replaces(r).as_ref() == Some(node));
    if replaced {
        return Ok(());
    }
    let wanted = place_count(edit, &definition);
    let safe = edit.model.resources_of(name).filter(|other| {
        other.is_replica()
            && !other.flags.contains(&ResourceFlag::Evacuate)
            && edit.observed().is_up_to_date(name, &other.node, definition.volumes.keys())
    });
    if safe.count() >= wanted as usize {
        resources::mark_deleted(edit, name, node);
        return Ok(());
    }
    let Some((target, pool)) = evacuation_target(edit, &definition, node) else {
        if tell {
            let text = format!("{key} stays: no other node has a storage pool that fits");
            edit.note(NoteCode::NotEvacuating, key, text);
        }
        return Ok(());
    };
    let made = match edit.model.resource(name, &target).is_some() {
        true => toggle::to_diskful(edit, name, &target, Some(pool), Some(node), "auto-placer"),
        false => {
            let new = NewResource { pool: Some(pool), ..NewResource::default() };
            resources::create(edit, name, &target, &new, "auto-placer")
        }
    };
    // The others go on, and this is tried again.
    if let Err(refusal) = made {
        if tell {
            edit.note(NoteCode::NotEvacuating, key, refusal.to_string());
        }
        return Ok(());
    }
    edit.modify_resource(name, &target, |resource| {
        resource.props.insert(MIGRATE_FROM.to_owned(), node.to_string());
    });
    Ok(())
}

fn place_count(edit: &Edit<'_>, definition: &Definition) -> u32 {
    let group = edit.model.group(&definition.group);
    group.and_then(|group| group.filter.place_count).unwrap_or(1).max(1)
}

fn evacuation_target(
    edit: &mut Edit<'_>,
    definition: &Definition,
    node: &NodeName,
) -> Option<(NodeName, PoolName)> {
    let node = edit.model.node(node)?;
    let own = Filter {
        place_count: Some(0),
        additional_place_count: Some(1),
        nodes: node.evacuate_to.clone(),
        ..Filter::default()
    };
    let mut filter = place::merge(&own, &edit.model.group(&definition.group)?.filter);
    if !node.evacuate_not_to.is_empty() {
        let others = edit.model.nodes().map(|node| node.name.clone());
        let listed = filter.nodes.filter(|nodes| !nodes.is_empty());
        let listed = listed.unwrap_or_else(|| others.collect());
        let kept = listed.into_iter().filter(|name| !node.evacuate_not_to.contains(name));
        filter.nodes = Some(kept.collect());
        if filter.nodes.as_ref().is_some_and(|nodes| nodes.is_empty()) {
            return None;
        }
    }
    let placement = place::place(edit.model, edit.observed(), &definition.name, &filter).ok()?;
    edit.placed(&definition.name, placement.candidates);
    placement.chosen.into_iter().next().map(|chosen| (chosen.node, chosen.pool))
}

/// Gives up a node that is away, by an operator's or the clock's order.
pub fn evict(edit: &mut Edit<'_>, name: &NodeName) -> Result<(), Refusal> {
    let key = Key::Node(name.clone());
    let node = edit.node(name)?;
    if edit.observed().is_connected(name) {
        return Err(Refusal::new(Code::InUse, format!("{key} can not be evicted"))
            .cause("it is connected")
            .correction("evacuate it instead")
            .about(key));
    }
    if node.flags.contains(&NodeFlag::Delete) {
        return Err(Refusal::new(Code::InUse, format!("{key} can not be evicted"))
            .cause("it is being deleted")
            .correction("wait until it is back, or remove it with `node lost`")
            .about(key));
    }
    if node.flags.contains(&NodeFlag::Evicted) {
        edit.note(NoteCode::Evicted, key.clone(), format!("{key} is evicted already"));
        return Ok(());
    }
    let now = edit.context.now;
    edit.modify_node(name, |node| {
        node.flags.insert(NodeFlag::Evicted);
        node.evicted_at = Some(now);
    });
    let names: Vec<ResourceName> = edit.model.resources_on(name).cloned().collect();
    for resource in &names {
        let Some(definition) = edit.model.definition(resource) else { continue };
        if !definition.layers.contains(&Layer::Drbd) {
            continue;
        }
        edit.modify_resource(resource, name, |resource| {
            resource.flags.extend([ResourceFlag::Evicted, ResourceFlag::Inactive]);
            resource.props.remove(MIGRATE_FROM);
        });
        replace_missing(edit, resource)?;
        helpers::review(edit, resource)?;
    }
    Ok(())
}

/// Makes the replicas that a resource definition lacks since a node was evicted, if it can.
fn replace_missing(edit: &mut Edit<'_>, name: &ResourceName) -> Result<(), Refusal> {
    let Ok(definition) = edit.definition(name) else { return Ok(()) };
    if rollback::is_busy(edit, name) {
        return Ok(());
    }
    let Some(group) = edit.model.group(&definition.group) else { return Ok(()) };
    let minimum = chain::definition(edit.model, definition)
        .number("DrbdOptions/AutoEvictMinReplicaCount")
        .or(group.filter.place_count);
    // Without a replica that is left there is nothing to copy from.
    if !edit.model.resources_of(name).any(Resource::is_replica) {
        return Ok(());
    }
    let own = Filter { place_count: minimum, ..Filter::default() };
    let filter = place::merge(&own, &group.filter);
    let placement = match place::place(edit.model, edit.observed(), name, &filter) {
        Ok(placement) => placement,
        Err(refusal) => {
            let key = Key::Definition(name.clone());
            edit.note(NoteCode::NotEnoughNodes, key, refusal.to_string());
            return Ok(());
        }
    };
    for chosen in &placement.chosen {
        let new = NewResource { pool: Some(chosen.pool.clone()), ..NewResource::default() };
        resources::create(edit, name, &chosen.node, &new, "auto-placer")?;
    }
    edit.placed(name, placement.candidates);
    Ok(())
}

/// Takes a node back.
pub fn restore(
    edit: &mut Edit<'_>,
    name: &NodeName,
    delete_resources: bool,
    delete_snapshots: bool,
) -> Result<(), Refusal> {
    let key = Key::Node(name.clone());
    let node = edit.node(name)?;
    if node.flags.contains(&NodeFlag::Delete) {
        return Err(Refusal::new(Code::InUse, format!("{key} can not be restored"))
            .cause("it is being deleted")
            .correction("wait until it is gone, and create it again")
            .about(key));
    }
    edit.modify_node(name, |node| {
        node.flags.clear();
        node.evicted_at = None;
        node.evacuate_to = None;
        node.evacuate_not_to.clear();
    });
    let names: Vec<ResourceName> = edit.model.resources_on(name).cloned().collect();
    for resource in &names {
        edit.modify_resource(resource, name, |resource| {
            use ResourceFlag::*;
            resource.flags.retain(|flag| !matches!(flag, Evacuate | Evicted));
            // What was deactivated before stays so.
            if resource.deactivated.is_none() {
                resource.flags.remove(&Inactive);
            }
        });
        if delete_resources {
            match resources::may_delete(edit, resource, name) {
                Ok(()) => resources::mark_deleted(edit, resource, name),
                Err(refusal) => {
                    let key = Key::Resource(resource.clone(), name.clone());
                    edit.note(NoteCode::NotEvacuating, key, refusal.to_string());
                }
            }
        }
        helpers::review(edit, resource)?;
    }
    if delete_snapshots {
        nodes::delete_snapshots(edit, name);
    }
    Ok(())
}

/// Does what is due.
pub fn tick(edit: &mut Edit<'_>) -> Result<(), Refusal> {
    join::forget_old(edit);
    for node in due_for_eviction(edit) {
        evict(edit, &node)?;
    }
    let names: Vec<ResourceName> = edit.model.definitions().map(|d| d.name.clone()).collect();
    for name in &names {
        clone::review(edit, name);
        rollback::go_on(edit, name);
        tick_one(edit, name)?;
    }
    series::tick(edit);
    Ok(())
}

fn due_for_eviction(edit: &Edit<'_>) -> Vec<NodeName> {
    let now = edit.context.now;
    let evictions = evictions(edit.model, edit.observed());
    evictions.into_iter().filter(|(_, at)| *at <= now).map(|(node, _)| node).collect()
}

/// What is due of one resource definition.
fn tick_one(edit: &mut Edit<'_>, name: &ResourceName) -> Result<(), Refusal> {
    let Ok(definition) = edit.definition(name) else { return Ok(()) };
    if !definition.layers.contains(&Layer::Drbd) || rollback::is_busy(edit, name) {
        return Ok(());
    }
    let evicted = |r: &Resource| r.flags.contains(&ResourceFlag::Evicted);
    let chain = chain::definition(edit.model, definition);
    let keys = ["DrbdOptions/auto-diskful", "DrbdOptions/auto-diskful-allow-cleanup"];
    let asked = keys.iter().any(|key| chain.get(key).is_some());
    // Of most nothing is due, and this looks at all of them.
    if !asked && !edit.model.resources_of(name).any(evicted) && !short(edit, definition) {
        return Ok(());
    }
    let definition = definition.clone();
    let before = edit.model.resources_of(name).count();
    if edit.model.resources_of(name).any(evicted) || short(edit, &definition) {
        replace_missing(edit, name)?;
    }
    let diskful = auto_diskful(edit, &definition)?;
    let cleaned = auto_cleanup(edit, &definition);
    if diskful || cleaned || edit.model.resources_of(name).count() != before {
        helpers::review(edit, name)?;
    }
    Ok(())
}

/// True if replicas are missing that the placer would have made, and nobody is at work on it.
fn short(edit: &Edit<'_>, definition: &Definition) -> bool {
    let name = &definition.name;
    let resources = || edit.model.resources_of(name);
    let enabled = chain::definition(edit.model, definition);
    let enabled = enabled.get("BalanceResourcesEnabled").is_none_or(is_true);
    let placed = |r: &Resource| r.props.get(DISKFUL_BY).is_some_and(|by| by == "auto-placer");
    let settled = |r: &Resource| edit.context.now.since(r.created) >= GRACE && !r.is_deleting();
    let replicas = resources().filter(|resource| resource.takes_a_place()).count();
    enabled
        && resources().all(settled)
        && resources().any(placed)
        && replicas < place_count(edit, definition) as usize
}

/// Gives a disk to a diskless resource that has been Primary for long enough.
fn auto_diskful(edit: &mut Edit<'_>, definition: &Definition) -> Result<bool, Refusal> {
    let name = &definition.name;
    let after: Option<u64> =
        chain::definition(edit.model, definition).number("DrbdOptions/auto-diskful");
    let Some(after) = after else { return Ok(false) };
    let due = edit.model.resources_of(name).filter(|resource| {
        let replica = edit.observed().replica(name, &resource.node);
        let since = replica.and_then(|replica| replica.in_use);
        !resource.is_diskful()
            && !resource.is_deleting()
            && resource.deactivated.is_none()
            && since.is_some_and(|since| edit.context.now.since(since) >= after * MINUTE)
    });
    let due: Vec<NodeName> = due.map(|resource| resource.node.clone()).collect();
    let mut any = false;
    for node in due {
        let Ok(pool) = resources::best_pool(edit, name, &node) else { continue };
        toggle::to_diskful(edit, name, &node, Some(pool), None, "auto-diskful")?;
        any = true;
    }
    Ok(any)
}

/// Deletes a surplus replica that `auto_diskful` made, once it is not in use any more.
fn auto_cleanup(edit: &mut Edit<'_>, definition: &Definition) -> bool {
    let name = &definition.name;
    if !chain::definition(edit.model, definition).is_true("DrbdOptions/auto-diskful-allow-cleanup")
    {
        return false;
    }
    let replicas = || edit.model.resources_of(name).filter(|resource| resource.is_replica());
    let synced = |resource: &Resource| {
        edit.observed().is_up_to_date(name, &resource.node, definition.volumes.keys())
    };
    let made = |r: &&Resource| r.props.get(DISKFUL_BY).is_some_and(|by| by == "auto-diskful");
    if replicas().count() <= place_count(edit, definition) as usize || !replicas().all(synced) {
        return false;
    }
    let surplus = replicas().filter(made).map(|resource| resource.node.clone());
    let surplus = surplus.filter(|node| resources::may_delete(edit, name, node).is_ok());
    let Some(node) = surplus.into_iter().next() else { return false };
    resources::mark_deleted(edit, name, &node);
    true
}
