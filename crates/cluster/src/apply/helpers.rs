//! What follows from other changes: quorum, the tie-breaker, and which replica begins the data
//! (control plane §4.7, §7).

use vocab::DiskState;

use crate::change::Key;
use crate::command::NewResource;
use crate::edit::Edit;
use crate::layer::Layer;
use crate::name::*;
use crate::objects::*;
use crate::observed::Observed;
use crate::place;
use crate::props::chain::Either;
use crate::props::{AUTO_QUORUM, PropsEdit, QUORUM_SET_BY, chain};
use crate::redundancy::replaces;
use crate::refusal::{NoteCode, Refusal};

use super::{resources, rollback, toggle};

/// Whether a tie-breaker is made where one is missing.
pub const AUTO_TIE_BREAKER: &str = "DrbdOptions/auto-add-quorum-tiebreaker";
pub const QUORUM: &str = "DrbdOptions/Resource/quorum";
/// True if an edit of a group's or the controller's properties may change what follows from them.
pub fn concerns(change: &PropsEdit) -> bool {
    [QUORUM, AUTO_QUORUM, AUTO_TIE_BREAKER].iter().any(|key| change.touches(key))
}

/// Remembers that a user set, or gave up, the quorum of a resource definition.
pub fn remember_who_sets_quorum(change: &PropsEdit, props: &mut Props) {
    if !change.touches(QUORUM) {
        return;
    }
    match props.contains_key(QUORUM) {
        true => props.insert(QUORUM_SET_BY.to_owned(), "user".to_owned()),
        false => props.remove(QUORUM_SET_BY),
    };
}

/// True if a connected node is known to have no data of a resource: nothing is there, or its disk
/// never had all of them.
pub fn has_no_data(observed: &Observed, name: &ResourceName, node: &NodeName) -> bool {
    if !observed.is_connected(node) {
        return false;
    }
    let Some(replica) = observed.replica(name, node) else { return true };
    replica.volumes.values().all(|volume| {
        volume.backing.is_none() || !volume.metadata || volume.disk == Some(DiskState::Inconsistent)
    })
}

/// Brings everything up to date that follows from a resource definition's resources.
pub fn review(edit: &mut Edit<'_>, name: &ResourceName) -> Result<(), Refusal> {
    let Some(definition) = edit.model.definition(name) else { return Ok(()) };
    let going = definition.flags.contains(&DefinitionFlag::Delete);
    let busy = rollback::is_busy(edit, name);
    if going || busy || !definition.layers.contains(&Layer::Drbd) {
        return Ok(());
    }
    initial_replica(edit, name);
    tie_breaker(edit, name)?;
    quorum(edit, name);
    Ok(())
}

/// Names the replica on which each volume's first data generation begins: the one in use, or the
/// first one whose node is connected. As soon as one has begun it, none may again. One that was
/// named and is gone may have begun, and others have its data, without anybody having heard of it.
fn initial_replica(edit: &mut Edit<'_>, name: &ResourceName) {
    let model = &*edit.model;
    let Some(definition) = model.definition(name) else { return };
    let restored = definition.flags.contains(&DefinitionFlag::RestoreTarget);
    let replicas = || model.resources_of(name).filter(|resource| resource.is_replica());
    let in_use = replicas().find(|r| edit.observed().in_use(name, &r.node));
    let away = |resource: &Resource| !edit.observed().is_connected(&resource.node);
    let first = replicas().min_by_key(|r| (away(r), r.created, r.node_id.map(|id| id.get())));
    let winner = in_use.or(first).map(|resource| resource.node.clone());
    // One that is being deleted may still begin: another is named only when it is gone.
    let named_is_there =
        |node: &NodeName| model.resource(name, node).is_some_and(Resource::is_diskful);
    let open = |volume: &VolumeDefinition| {
        !volume.flags.contains(&VolumeDefinitionFlag::DrbdInitialized)
            && !volume.initial_on.as_ref().is_some_and(named_is_there)
    };
    if restored || winner.is_none() || !definition.volumes.values().any(open) {
        return;
    }
    let mut changed = definition.clone();
    for volume in changed.volumes.values_mut().filter(|volume| open(volume)) {
        volume.passed_on |= volume.initial_on.is_some();
        volume.initial_on = winner.clone();
    }
    edit.put(crate::change::Object::Definition(changed));
}

/// Replicas, and diskless resources that vote, once what is leaving and what is being replaced is gone.
fn voters(edit: &Edit<'_>, name: &ResourceName) -> (usize, usize) {
    let resources: Vec<&Resource> = edit.model.resources_of(name).collect();
    let replaced: Vec<NodeName> = resources.iter().filter_map(|r| replaces(r)).collect();
    let back = |r: &Resource| !r.flags.contains(&ResourceFlag::Reactivate);
    let diskful =
        resources.iter().filter(|r| r.is_replica() && back(r) && !replaced.contains(&r.node));
    let diskless = resources.iter().filter(|resource| {
        use ResourceFlag::{Client, Delete, DiskRemoveRequested, Evicted, Inactive};
        let others = [Client, Delete, Evicted, Inactive];
        (!resource.is_diskful() || resource.flags.contains(&DiskRemoveRequested))
            && !resource.is_tie_breaker()
            && !others.iter().any(|flag| resource.flags.contains(flag))
    });
    (diskful.count(), diskless.count())
}

/// True if those that are there now can decide by majority, those that are leaving among them.
fn has_majority(edit: &Edit<'_>, name: &ResourceName) -> bool {
    use ResourceFlag::{Client, Evicted, Inactive};
    let there = edit.model.resources_of(name).filter(|resource| {
        let others = [Client, Evicted, Inactive];
        edit.observed().is_connected(&resource.node)
            && !others.iter().any(|flag| resource.flags.contains(flag))
    });
    let (diskful, diskless): (Vec<&Resource>, Vec<&Resource>) =
        there.partition(|resource| resource.is_diskful());
    decides(diskful.len(), diskless.len())
}

/// True if so many replicas and so many others that vote are to decide by majority.
const fn decides(diskful: usize, diskless: usize) -> bool {
    diskful >= 3 || diskful == 2 && diskless >= 1
}

/// The quorum that a user wants, wherever it was set.
fn quorum_by_user(edit: &Edit<'_>, definition: &Definition) -> Option<String> {
    let own = definition.props.contains_key(QUORUM_SET_BY);
    let own = own.then(|| definition.props.get(QUORUM)).flatten();
    let group = edit.model.group(&definition.group);
    own.or_else(|| group.and_then(|group| group.props.get(QUORUM)))
        .or_else(|| edit.model.controller().props.get(QUORUM))
        .cloned()
}

/// True if a user wants no quorum and says so in LINSTOR's former way.
fn is_off_by_user(edit: &Edit<'_>, definition: &Definition) -> bool {
    // What it has without that was set by itself, and counts for nothing.
    if definition.props.contains_key(QUORUM_SET_BY) {
        return false;
    }
    if let Some(value) = definition.props.get(AUTO_QUORUM) {
        return value == "disabled";
    }
    let group = edit.model.group(&definition.group);
    let chain =
        group.map_or_else(|| chain::controller(edit.model), |g| chain::group(edit.model, g));
    chain.either(QUORUM, AUTO_QUORUM) == Some(Either::Second("disabled"))
}

fn tie_breaker(edit: &mut Edit<'_>, name: &ResourceName) -> Result<(), Refusal> {
    let Some(definition) = edit.model.definition(name) else { return Ok(()) };
    let (diskful, diskless) = voters(edit, name);
    let by_majority = !is_off_by_user(edit, definition)
        && quorum_by_user(edit, definition).is_none_or(|quorum| quorum == "majority");
    let wanted = chain::definition(edit.model, definition).is_true(AUTO_TIE_BREAKER)
        && by_majority
        && diskful >= 2
        && diskful.is_multiple_of(2)
        && diskless == 0;
    let is_one = |resource: &&Resource| resource.is_tie_breaker() && !resource.is_deleting();
    let existing: Vec<NodeName> =
        edit.model.resources_of(name).filter(is_one).map(|r| r.node.clone()).collect();
    if !wanted {
        // One that is inactive will be back: what is there for an even number then stays.
        let returns = [ResourceFlag::Inactive, ResourceFlag::Reactivate];
        let returns = |r: &Resource| {
            let any = returns.iter().any(|flag| r.flags.contains(flag));
            any && r.takes_a_place()
        };
        if edit.model.resources_of(name).any(returns) {
            return Ok(());
        }
        let observed = edit.observed();
        for node in existing.iter().filter(|node| observed.is_connected(node)) {
            resources::mark_deleted(edit, name, node);
        }
        return Ok(());
    }
    if !existing.is_empty() {
        return Ok(());
    }
    if let Some(node) = leaving(edit, name) {
        edit.modify_resource(name, &node, |resource| {
            resource.flags.remove(&ResourceFlag::Delete);
            resource.flags.remove(&ResourceFlag::Client);
            resource.flags.insert(ResourceFlag::TieBreaker);
            if resource.is_diskful() {
                toggle::lose_disk(resource);
            }
        });
        resources::complete(edit, name, &node);
        let key = Key::Resource(name.clone(), node);
        edit.note(NoteCode::TakenOver, key.clone(), format!("{key} stays as tie-breaker"));
        return Ok(());
    }
    let Some(node) = place::tie_breaker(edit.model, edit.observed(), name) else {
        if !frees_a_node(edit, name) {
            let key = Key::Definition(name.clone());
            let text = format!("no node can be the tie-breaker of {key}");
            edit.note(NoteCode::NoNodeForTieBreaker, key, text);
        }
        return Ok(());
    };
    let new = NewResource { diskless: true, ..NewResource::default() };
    if let Err(refusal) = resources::create(edit, name, &node, &new, "auto-placer") {
        let key = Key::Definition(name.clone());
        edit.note(NoteCode::NoNodeForTieBreaker, key, refusal.to_string());
        return Ok(());
    }
    edit.modify_resource(name, &node, |r| {
        r.flags.insert(ResourceFlag::TieBreaker);
    });
    let key = Key::Resource(name.clone(), node);
    edit.note(NoteCode::TieBreakerCreated, key.clone(), format!("{key} is the tie-breaker"));
    Ok(())
}

/// A resource that is being deleted and can stay as tie-breaker instead, rather one without a disk.
fn leaving(edit: &Edit<'_>, name: &ResourceName) -> Option<NodeName> {
    let able = edit.model.resources_of(name).filter(|resource| {
        resource.is_deleting()
            && !resource.flags.contains(&ResourceFlag::DrbdDelete)
            && !resource.flags.contains(&ResourceFlag::Evicted)
            && !resource.is_tie_breaker()
            && can_vote(edit, &resource.node)
    });
    able.min_by_key(|resource| resource.is_diskful()).map(|resource| resource.node.clone())
}

/// True if something leaves a node that can be the tie-breaker's then.
fn frees_a_node(edit: &Edit<'_>, name: &ResourceName) -> bool {
    let resources = || edit.model.resources_of(name);
    let replaced: Vec<NodeName> = resources().filter_map(replaces).collect();
    resources().any(|resource| {
        (resource.is_deleting() || replaced.contains(&resource.node))
            && can_vote(edit, &resource.node)
    })
}

fn can_vote(edit: &Edit<'_>, node: &NodeName) -> bool {
    edit.model.node(node).is_some_and(|node| node.flags.is_empty())
        && edit.observed().is_connected(node)
}

fn quorum(edit: &mut Edit<'_>, name: &ResourceName) {
    let Some(definition) = edit.model.definition(name) else { return };
    let key = Key::Definition(name.clone());
    if definition.props.contains_key(QUORUM_SET_BY) {
        return;
    }
    let now = definition.props.get(QUORUM).cloned();
    let off = is_off_by_user(edit, definition);
    if !off && quorum_by_user(edit, definition).is_some() {
        // A group's or the controller's value holds; ours would hide it.
        if now.is_some() {
            edit.modify_definition(name, |d| drop(d.props.remove(QUORUM)));
            edit.note(NoteCode::PropertyRemoved, key, format!("{QUORUM} follows the user's value"));
        }
        return;
    }
    let (diskful, voting) = voters(edit, name);
    let live = |r: &&Resource| r.is_tie_breaker() && !r.is_deleting();
    let diskless = voting + edit.model.resources_of(name).filter(live).count();
    // A vote that is leaving counts until it is gone: what comes in its place is there then.
    let stays = now.as_deref() == Some("majority") && has_majority(edit, name);
    let majority = !off && (stays || decides(diskful, diskless));
    let wanted = if majority { "majority" } else { "off" };
    if now.as_deref() != Some(wanted) {
        edit.modify_definition(name, |definition| {
            definition.props.insert(QUORUM.to_owned(), wanted.to_owned());
        });
        edit.note(NoteCode::PropertySet, key, format!("{QUORUM} of {name} is {wanted}"));
    }
}

#[cfg(test)]
mod tests;
