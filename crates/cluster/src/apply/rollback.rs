//! Rolling all replicas of a resource definition back to a snapshot (control plane §8.3).
//!
//! ```text
//! Stopping ──down everywhere, and kept──► Changing ──every disk changed──► Done
//!     │                                    │    │
//!     └─away, in use, too long─► GivenUp ◄─┘    └─one can not be changed─► back
//!                      the snapshot is lost
//! ```
//!
//! What is kept is a snapshot of everything as it is when all are down. The way back is a rollback to
//! that, which begins where the other one stopped, and ends in `GivenUp`.

use std::collections::BTreeSet;

use crate::change::Key;
use crate::command::Command;
use crate::edit::Edit;
use crate::layer::Layer;
use crate::name::*;
use crate::objects::*;
use crate::refusal::{Code, NoteCode, Refusal};

use super::{passphrase, snapshots};

#[cfg(test)]
mod tests;

/// Flags of a resource to which something is being done.
pub const MOVING: [ResourceFlag; 7] = [
    ResourceFlag::Evicted,
    ResourceFlag::Evacuate,
    ResourceFlag::DiskAddRequested,
    ResourceFlag::DiskAdding,
    ResourceFlag::DiskRemoveRequested,
    ResourceFlag::DiskRemoving,
    ResourceFlag::RestoreFromSnapshot,
];

/// How long a resource may be held down before anything is changed, in milliseconds.
const PATIENCE: u64 = 60_000;

/// How long a node that is connected may take to change its disks, in milliseconds: it tries again
/// some times meanwhile.
const PATIENCE_TO_CHANGE: u64 = 300_000;

/// Refuses commands that would change the replicas of a resource definition while all of them are
/// being exchanged.
pub fn refuse_while_busy(edit: &Edit<'_>, command: &Command) -> Result<(), Refusal> {
    use Command::*;
    match command {
        CreateVolumeDefinition { name, .. }
        | ModifyVolumeDefinition { name, size: Some(_), .. }
        | ChangePassphrase { name, .. }
        | DeleteVolumeDefinition { name, .. }
        | CreateResource { name, .. }
        | DeleteResource { name, .. }
        | Autoplace { name, .. }
        | MakeAvailable { name, .. }
        | ToggleDisk { name, .. }
        | ActivateResource { name, .. }
        | DeactivateResource { name, .. }
        | RestoreVolumeDefinitions { to: name, .. }
        | RestoreResources { to: name, .. }
        | RollBack { name, .. } => refuse_if_busy(edit, name),
        CreateSnapshots { snapshots, .. } => {
            snapshots.iter().try_for_each(|(name, _, _)| refuse_if_busy(edit, name))
        }
        DeleteSnapshot { name, snapshot, .. } => match running(edit, name) {
            Some(running) if running.needs(snapshot) => refuse_if_busy(edit, name),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

fn running<'a>(edit: &'a Edit<'_>, name: &ResourceName) -> Option<&'a Rollback> {
    edit.model.definition(name)?.rolling_back()
}

/// True while the replicas of a resource definition are not to be touched: they are rolled back, or
/// cloned from others.
pub fn is_busy(edit: &Edit<'_>, name: &ResourceName) -> bool {
    why_busy(edit, name).is_some()
}

fn why_busy(edit: &Edit<'_>, name: &ResourceName) -> Option<(String, &'static str)> {
    let definition = edit.model.definition(name)?;
    let has = |flag| definition.flags.contains(&flag);
    let wait = "wait until that is done";
    match definition.rolling_back() {
        Some(running) => {
            Some((format!("it is being rolled back to snapshot {}", running.snapshot), wait))
        }
        None if has(DefinitionFlag::Cloning) => Some(("it is being cloned".to_owned(), wait)),
        None if has(DefinitionFlag::Failed) => {
            Some(("it could not be cloned".to_owned(), "delete it, and clone again"))
        }
        None => None,
    }
}

/// Refuses what would touch the replicas of such a resource definition.
pub fn refuse_if_busy(edit: &Edit<'_>, name: &ResourceName) -> Result<(), Refusal> {
    let Some((cause, correction)) = why_busy(edit, name) else { return Ok(()) };
    let key = Key::Definition(name.clone());
    Err(Refusal::new(Code::RollbackRunning, format!("{key} can not be changed"))
        .cause(cause)
        .correction(correction)
        .about(key))
}

pub fn begin(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    snapshot: &SnapshotName,
) -> Result<(), Refusal> {
    let found = snapshots::usable(edit, name, snapshot)?;
    let text = format!("snapshot {snapshot} of {name} can not take the place of its data");
    passphrase::same_as_then(edit, &found, &text)?;
    let definition = edit.definition(name)?;
    let key = Key::Definition(name.clone());
    let refuse = |code, cause: String, correction: &str| {
        Err(Refusal::new(code, format!("{key} can not be rolled back to snapshot {snapshot}"))
            .cause(cause)
            .correction(correction)
            .about(key.clone()))
    };
    if definition.flags.contains(&DefinitionFlag::RestoreTarget) {
        let cause = "it is being made from a snapshot".to_owned();
        return refuse(Code::InUse, cause, "wait until that is done");
    }
    if let Some(other) = edit.model.snapshots_of(name).find(|snapshot| snapshot.is_pending()) {
        let cause = format!("its snapshot {} is being made", other.name);
        return refuse(Code::InUse, cause, "wait until that is done");
    }
    if definition.layers != found.layers {
        let cause = "its layers are not those of the snapshot".to_owned();
        return refuse(Code::InvalidLayerStack, cause, "restore it into a new resource definition");
    }
    if definition.volumes.keys().ne(found.sizes.keys()) {
        let cause = "it has other volumes than the snapshot".to_owned();
        return refuse(Code::InvalidVolumeNumber, cause, "restore it into a new one");
    }
    let changing = [VolumeDefinitionFlag::Delete, VolumeDefinitionFlag::Resize];
    let mut volumes = definition.volumes.values();
    if volumes.any(|volume| changing.iter().any(|flag| volume.flags.contains(flag))) {
        let cause = "a volume is growing or being deleted".to_owned();
        return refuse(Code::InUse, cause, "wait until that is done");
    }
    for resource in edit.model.resources_of(name) {
        let node = &resource.node;
        if resource.deactivated.is_some() {
            let cause = format!("its resource on node {node} is inactive");
            return refuse(Code::InvalidResourceState, cause, "activate it first, or delete it");
        }
        if !is_settled(resource) {
            let cause = format!("its resource on node {node} is being changed or given up");
            return refuse(Code::InvalidResourceState, cause, "wait until that is done");
        }
        // One with the newer data would bring them back later.
        if !edit.observed().is_connected(node) {
            let cause = format!("node {node} is not connected");
            let next = "wait until it is back, or delete its resource";
            return refuse(Code::NotConnected, cause, next);
        }
        if edit.observed().in_use(name, node) {
            let cause = format!("it is Primary or open on node {node}");
            return refuse(Code::InUse, cause, "close it there: unmount it, or stop what uses it");
        }
    }
    let holders = edit.model.resources_of(name).filter(|resource| has(edit, &found, resource));
    let holders: BTreeSet<NodeName> = holders.map(|resource| resource.node.clone()).collect();
    if holders.is_empty() {
        let cause = "no replica has it: they were made after it, or in another pool".to_owned();
        return refuse(Code::UnknownSnapshot, cause, "restore it into a new resource definition");
    }
    let safety = safety(edit, name)?;
    let rollback = Rollback {
        snapshot: snapshot.clone(),
        token: Generation(edit.model.generation().0 + 1),
        since: edit.context.now,
        holders,
        phase: RollbackPhase::Stopping,
        safety,
        back_because: None,
    };
    edit.modify_definition(name, |definition| definition.rollback = Some(rollback));
    Ok(())
}

/// The snapshot that keeps what is there now, on those who have all of it. To others the data are
/// copied on the way back, as they would have been without a rollback.
fn safety(edit: &mut Edit<'_>, name: &ResourceName) -> Result<Option<Safety>, Refusal> {
    let definition = edit.definition(name)?;
    let replicated = definition.layers.contains(&Layer::Drbd);
    let current = |resource: &&Resource| {
        let numbers = definition.volumes.keys();
        resource.is_diskful()
            && (!replicated || edit.observed().is_up_to_date(name, &resource.node, numbers))
    };
    let (mut on, mut why) = (BTreeSet::new(), "no replica is UpToDate".to_owned());
    for resource in edit.model.resources_of(name).filter(current) {
        match snapshots::why_not(edit, resource) {
            None => {
                on.insert(resource.node.clone());
            }
            Some(cause) => why = cause,
        }
    }
    if on.is_empty() {
        let text = format!("what {name} has now is not kept while it is rolled back: {why}");
        edit.note(NoteCode::NotKept, Key::Definition(name.clone()), text);
        return Ok(None);
    }
    let drawn: String = edit.secret().chars().take(10).collect();
    let name = SnapshotName::new(&format!("safety-snap-{drawn}"))?;
    Ok(Some(Safety { name, on, begun: false }))
}

/// True if nothing is being done to the resource.
fn is_settled(resource: &Resource) -> bool {
    use ResourceFlag::{Delete, DrbdDelete, Inactive};
    let others = [Delete, DrbdDelete, Inactive];
    !MOVING.iter().chain(&others).any(|flag| resource.flags.contains(flag))
}

/// True if the snapshot is one of this very replica: its metadata have the replica's node id, and
/// its data are in the same pools.
fn has(edit: &Edit<'_>, snapshot: &SnapshotDefinition, resource: &Resource) -> bool {
    let Some(on_node) = snapshot.nodes.get(&resource.node) else { return false };
    let pools = resource.volumes.iter().map(|(number, volume)| (number, &volume.pool));
    let replica = edit.observed().replica(&resource.name, &resource.node);
    let there = replica.and_then(|replica| replica.snapshots.get(&snapshot.name));
    resource.is_diskful()
        && !on_node.deleting
        && on_node.node_id == resource.node_id
        && pools.eq(on_node.pools.iter())
        && there.is_some_and(|there| there.token == snapshot.token)
}

/// Goes on with a rollback by what nodes have reported. True while it is under way: nothing else
/// is done to the resource definition until it has ended.
pub fn go_on(edit: &mut Edit<'_>, name: &ResourceName) -> bool {
    let Some(rollback) = running(edit, name).cloned() else { return false };
    if let Some(why) = has_to_end(edit, name, &rollback) {
        end(edit, name, RollbackPhase::GivenUp(why));
        return false;
    }
    let state = |resource: &Resource| {
        edit.observed().rollback(name, &resource.node, rollback.token).filter(|_| {
            // What a node has done it has done for good, but what is known of it may be old.
            edit.observed().is_connected(&resource.node)
        })
    };
    if rollback.phase == RollbackPhase::Stopping {
        if !edit.model.resources_of(name).all(|resource| state(resource).is_some()) {
            return true;
        }
        match is_kept(edit, name, &rollback) {
            Ok(true) => {
                let since = edit.context.now;
                set(edit, name, &|rollback| {
                    (rollback.phase, rollback.since) = (RollbackPhase::Changing, since);
                });
            }
            Ok(false) => {}
            Err(why) => {
                end(edit, name, RollbackPhase::GivenUp(why));
                return false;
            }
        }
        return true;
    }
    let changed = |resource: &Resource| {
        !resource.is_diskful() || state(resource).is_some_and(|down| down.changed)
    };
    if !edit.model.resources_of(name).all(changed) {
        if let Some(why) = is_stuck(edit, name, &rollback) {
            go_back(edit, name, &rollback, why);
        }
        return true;
    }
    done(edit, name, &rollback.snapshot);
    end(
        edit,
        name,
        match rollback.back_because {
            None => RollbackPhase::Done,
            Some(why) => RollbackPhase::GivenUp(why),
        },
    );
    false
}

/// True once what is there is in a snapshot, if it can be.
///
/// # Errors
/// Why that has failed.
fn is_kept(edit: &mut Edit<'_>, name: &ResourceName, rollback: &Rollback) -> Result<bool, String> {
    let Some(safety) = &rollback.safety else { return Ok(true) };
    if !safety.begun {
        snapshots::keep(edit, name, safety.name.clone(), &safety.on);
        set(edit, name, &|rollback| {
            if let Some(safety) = &mut rollback.safety {
                safety.begun = true;
            }
        });
        return Ok(false);
    }
    match edit.model.snapshot(name, &safety.name) {
        Some(found) if found.is_pending() => Ok(false),
        Some(found) if found.is_successful() => Ok(true),
        _ => Err("what is there could not be kept in a snapshot before".to_owned()),
    }
}

/// Why a node does not take on the snapshot's data, if it has had the time and there is a way back.
/// Nobody's data were discarded then: that comes after all who have the snapshot.
fn is_stuck(edit: &Edit<'_>, name: &ResourceName, rollback: &Rollback) -> Option<String> {
    let safety = rollback.safety.as_ref()?;
    edit.model.snapshot(name, &safety.name).filter(|found| found.is_successful())?;
    let late = |node: &&NodeName| {
        let state = edit.observed().rollback(name, node, rollback.token);
        let since = edit.observed().nodes.get(*node).map_or(Millis(0), |node| node.since);
        edit.model.resource(name, node).is_some()
            && edit.observed().is_connected(node)
            && state.is_some_and(|down| !down.changed)
            && edit.context.now.since(rollback.since.max(since)) >= PATIENCE_TO_CHANGE
    };
    let node = rollback.holders.iter().find(late)?;
    Some(format!(
        "node {node} could not take on the data of snapshot {} within {} minutes: its error reports \
         say why",
        rollback.snapshot,
        PATIENCE_TO_CHANGE / 60_000
    ))
}

/// Everybody takes on what was kept. Whatever a node has done of the other rollback, it is down, and
/// refuses what comes late of that.
fn go_back(edit: &mut Edit<'_>, name: &ResourceName, rollback: &Rollback, why: String) {
    let Some(safety) = &rollback.safety else { return };
    let diskful = |node: &&NodeName| {
        edit.model.resource(name, node).is_some_and(|resource| resource.is_diskful())
    };
    let back = Rollback {
        snapshot: safety.name.clone(),
        token: Generation(edit.model.generation().0 + 1),
        since: edit.context.now,
        holders: safety.on.iter().filter(diskful).cloned().collect(),
        phase: RollbackPhase::Changing,
        safety: None,
        back_because: Some(why),
    };
    edit.modify_definition(name, |definition| definition.rollback = Some(back));
}

/// Ends a rollback, and what was kept for it goes.
pub fn end(edit: &mut Edit<'_>, name: &ResourceName, phase: RollbackPhase) {
    let Some(rollback) = running(edit, name).cloned() else { return };
    if let Some(kept) = rollback.kept() {
        snapshots::give_up(edit, name, kept);
    }
    set(edit, name, &|rollback| rollback.phase = phase.clone());
}

fn set(edit: &mut Edit<'_>, name: &ResourceName, change: &dyn Fn(&mut Rollback)) {
    edit.modify_definition(name, |definition| {
        if let Some(rollback) = &mut definition.rollback {
            change(rollback);
        }
    });
}

/// Why a rollback can not go on.
fn has_to_end(edit: &Edit<'_>, name: &ResourceName, rollback: &Rollback) -> Option<String> {
    let resources = || edit.model.resources_of(name);
    if !resources().any(|resource| rollback.holders.contains(&resource.node)) {
        return Some("the nodes that had the snapshot are gone".to_owned());
    }
    if rollback.phase == RollbackPhase::Changing {
        return None;
    }
    for resource in resources() {
        let node = &resource.node;
        if !edit.observed().is_connected(node) {
            return Some(format!("node {node} is not connected any more"));
        }
        if edit.observed().in_use(name, node) {
            return Some(format!("it is in use on node {node}"));
        }
    }
    let down = |r: &&Resource| edit.observed().rollback(name, &r.node, rollback.token).is_none();
    let late = edit.context.now.since(rollback.since) >= PATIENCE;
    let node = resources().find(down).filter(|_| late).map(|resource| &resource.node)?;
    let seconds = PATIENCE / 1000;
    Some(format!("node {node} has not taken the resource down within {seconds} seconds"))
}

/// All have the snapshot's data, or none: sizes are the snapshot's, and nobody begins any data.
fn done(edit: &mut Edit<'_>, name: &ResourceName, snapshot: &SnapshotName) {
    let Some(found) = edit.model.snapshot(name, snapshot).cloned() else { return };
    edit.modify_definition(name, |definition| {
        for (number, volume) in &mut definition.volumes {
            if let Some(size) = found.sizes.get(number) {
                volume.size = *size;
            }
            volume.flags.insert(VolumeDefinitionFlag::DrbdInitialized);
            // A new replica copies everything: what was never written is not known any more.
            (volume.initial_on, volume.passed_on) = (None, false);
        }
    });
}
