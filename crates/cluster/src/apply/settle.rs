//! Taking note of what agents report: what is done is no longer wanted.
//!
//! This is the only place where a life cycle goes on by facts. It runs after each report that
//! concerns a resource definition, and may run any number of times.

use std::collections::BTreeSet;

use vocab::{DiskState, VolumeNr};

use crate::change::Key;
use crate::edit::Edit;
use crate::layer::Layer;
use crate::name::*;
use crate::objects::*;
use crate::observed::{ReplicaState, SuspensionState};
use crate::redundancy;
use crate::refusal::Refusal;
use crate::size;

use super::{
    clone, definitions, helpers, nodes, resources, rollback, series, shipping, snapshots, trouble,
};

/// How long a snapshot may be in the making, in milliseconds. Agents end suspensions long before.
const MAKE_WITHIN: u64 = 120_000;

pub fn settle(edit: &mut Edit<'_>, name: &ResourceName) -> Result<(), Refusal> {
    if edit.model.definition(name).is_none() {
        return Ok(());
    }
    initialized(edit, name);
    will_not_begin(edit, name);
    resized(edit, name);
    let nodes: Vec<NodeName> = edit.model.resources_of(name).map(|r| r.node.clone()).collect();
    let busy = rollback::go_on(edit, name);
    if !busy {
        for node in &nodes {
            trouble::evacuate_one(edit, name, node, false)?;
            migrated(edit, name, node);
            toggled(edit, name, node);
            returned(edit, name, node);
            restored(edit, name, node);
            adopted(edit, name, node);
        }
        all_restored(edit, name);
        clone::review(edit, name);
        withdraw(edit, name, &nodes);
        leave(edit, name, &nodes);
    }
    let snapshotted = edit.model.snapshots_of(name).flat_map(|snapshot| snapshot.nodes.keys());
    let snapshotted: BTreeSet<NodeName> = snapshotted.cloned().collect();
    if !busy {
        for node in &nodes {
            gone(edit, name, node);
        }
        volumes_gone(edit, name);
    }
    let names: Vec<SnapshotName> =
        edit.model.snapshots_of(name).map(|snapshot| snapshot.name.clone()).collect();
    for snapshot in &names {
        snapshot_done(edit, name, snapshot);
        shipping::settle(edit, name, snapshot)?;
    }
    series::settle(edit, name);
    if busy {
        // It may have waited for one of them.
        rollback::go_on(edit, name);
    }
    helpers::review(edit, name)?;
    definitions::drop_if_empty(edit, name);
    for node in nodes.iter().chain(&snapshotted) {
        nodes::drop_if_empty(edit, node);
    }
    Ok(())
}

/// What a connected node has reported, if it has confirmed everything that is wanted.
fn confirmed<'a>(
    edit: &Edit<'a>,
    name: &ResourceName,
    node: &NodeName,
) -> Option<&'a ReplicaState> {
    let current = redundancy::is_confirmed(edit.model, edit.observed(), name, node);
    let replica = edit.observed().replica(name, node);
    replica.filter(|_| edit.observed().is_connected(node) && current)
}

/// Volumes of which a replica has become UpToDate have begun: no other may begin anew.
fn initialized(edit: &mut Edit<'_>, name: &ResourceName) {
    let Some(definition) = edit.model.definition(name) else { return };
    let begun = |number: &VolumeNr| {
        edit.observed().replicas(name).any(|(node, replica)| {
            let disk = replica.volumes.get(number).and_then(|volume| volume.disk);
            let resource = edit.model.resource(name, node);
            let counts = resource.is_some_and(|r| !r.flags.contains(&ResourceFlag::DrbdDelete));
            counts && edit.observed().is_connected(node) && disk == Some(DiskState::UpToDate)
        })
    };
    let new = |(number, volume): &(&VolumeNr, &VolumeDefinition)| {
        !volume.flags.contains(&VolumeDefinitionFlag::DrbdInitialized)
            && volume.initial_on.is_some()
            && begun(number)
    };
    let numbers: Vec<VolumeNr> = definition.volumes.iter().filter(new).map(|(nr, _)| *nr).collect();
    if numbers.is_empty() {
        return;
    }
    edit.modify_definition(name, |definition| {
        for (_, volume) in definition.volumes.iter_mut().filter(|(nr, _)| numbers.contains(nr)) {
            volume.flags.insert(VolumeDefinitionFlag::DrbdInitialized);
        }
    });
}

/// A replica that is leaving and was to begin a volume's data has not, and never will: its agent has
/// confirmed that it is leaving. Another is named then. This looks at what was confirmed before this
/// command changes anything.
fn will_not_begin(edit: &mut Edit<'_>, name: &ResourceName) {
    let Some(definition) = edit.model.definition(name) else { return };
    let never = |(number, volume): &(&VolumeNr, &VolumeDefinition)| {
        let Some(node) = &volume.initial_on else { return false };
        let leaving = edit.model.resource(name, node).is_none_or(|r| !r.is_replica());
        !volume.flags.contains(&VolumeDefinitionFlag::DrbdInitialized)
            && leaving
            && confirmed(edit, name, node).is_some_and(|replica| {
                !replica.volumes.get(number).is_some_and(|volume| volume.metadata)
            })
    };
    let numbers: Vec<VolumeNr> =
        definition.volumes.iter().filter(never).map(|(nr, _)| *nr).collect();
    if !numbers.is_empty() {
        edit.modify_definition(name, |definition| {
            for (_, volume) in definition.volumes.iter_mut().filter(|(nr, _)| numbers.contains(nr))
            {
                volume.initial_on = None;
            }
        });
    }
}

/// Volumes that have grown everywhere.
fn resized(edit: &mut Edit<'_>, name: &ResourceName) {
    let Some(definition) = edit.model.definition(name) else { return };
    let done = |(number, volume): &(&VolumeNr, &VolumeDefinition)| {
        let wanted = size::backing(definition, volume);
        let mut replicas = edit.model.resources_of(name).filter(|r| r.is_replica());
        volume.flags.contains(&VolumeDefinitionFlag::Resize)
            && replicas.all(|resource| {
                let replica = confirmed(edit, name, &resource.node);
                let state = replica.and_then(|replica| replica.volumes.get(number));
                state.is_some_and(|s| {
                    s.backing.is_some_and(|size| size >= wanted)
                        && s.size >= size::usable(definition, volume)
                })
            })
    };
    let done: Vec<VolumeNr> = definition.volumes.iter().filter(done).map(|(nr, _)| *nr).collect();
    if done.is_empty() {
        return;
    }
    edit.modify_definition(name, |definition| {
        for (_, volume) in definition.volumes.iter_mut().filter(|(nr, _)| done.contains(nr)) {
            volume.flags.remove(&VolumeDefinitionFlag::Resize);
        }
    });
}

/// A replica whose successor is UpToDate goes.
fn migrated(edit: &mut Edit<'_>, name: &ResourceName, node: &NodeName) {
    let Some(resource) = edit.model.resource(name, node) else { return };
    let Some(from) = redundancy::replaces(resource) else { return };
    let Some(source) = edit.model.resource(name, &from) else {
        edit.modify_resource(name, node, |r| drop(r.props.remove(redundancy::MIGRATE_FROM)));
        return;
    };
    let there = redundancy::copies(edit.model, edit.observed(), name).contains(node);
    if there && !source.is_deleting() && !edit.observed().in_use(name, &from) {
        resources::mark_deleted(edit, name, &from);
    }
}

/// Disks that were added or removed.
fn toggled(edit: &mut Edit<'_>, name: &ResourceName, node: &NodeName) {
    let Some(resource) = edit.model.resource(name, node) else { return };
    let adding = resource.flags.contains(&ResourceFlag::DiskAddRequested);
    let removing = resource.flags.contains(&ResourceFlag::DiskRemoving) && !resource.is_deleting();
    let Some(replica) = confirmed(edit, name, node) else { return };
    let has = |number: &VolumeNr| {
        let volume = replica.volumes.get(number);
        volume.is_some_and(|volume| volume.backing.is_some() && volume.metadata)
    };
    if adding && resource.volumes.keys().all(has) {
        edit.modify_resource(name, node, |resource| {
            use ResourceFlag::*;
            resource.flags.retain(|f| !matches!(f, Diskless | DrbdDiskless | DiskAddRequested));
        });
    } else if removing && replica.volumes.values().all(|volume| volume.backing.is_none()) {
        edit.modify_resource(name, node, |resource| {
            use ResourceFlag::*;
            resource.flags.retain(|flag| !matches!(flag, DiskRemoveRequested | DiskRemoving));
            resource.flags.extend([Diskless, DrbdDiskless]);
            for volume in resource.volumes.values_mut() {
                (volume.pool, volume.adopt) = (PoolName::diskless(), false);
            }
        });
    }
}

/// Replicas that were activated, and have what they had missed.
fn returned(edit: &mut Edit<'_>, name: &ResourceName, node: &NodeName) {
    let Some(resource) = edit.model.resource(name, node) else { return };
    let Some(definition) = edit.model.definition(name) else { return };
    let there = confirmed(edit, name, node).is_some()
        && edit.observed().is_up_to_date(name, node, definition.volumes.keys());
    if resource.flags.contains(&ResourceFlag::Reactivate) && (there || !resource.is_diskful()) {
        edit.modify_resource(name, node, |resource| {
            resource.flags.remove(&ResourceFlag::Reactivate);
        });
    }
}

/// Resources that have got a snapshot's data.
fn restored(edit: &mut Edit<'_>, name: &ResourceName, node: &NodeName) {
    let Some(resource) = edit.model.resource(name, node) else { return };
    let Some(replica) = confirmed(edit, name, node) else { return };
    let restoring = resource.flags.contains(&ResourceFlag::RestoreFromSnapshot);
    let has = |number: &VolumeNr| {
        replica.volumes.get(number).is_some_and(|volume| volume.backing.is_some())
    };
    if !restoring || !resource.volumes.keys().all(has) {
        return;
    }
    edit.modify_resource(name, node, |resource| {
        resource.flags.remove(&ResourceFlag::RestoreFromSnapshot);
        resource.props.remove(snapshots::RESTORE_FROM);
    });
}

/// Volumes that were there before this cluster was, and that their agent has taken.
fn adopted(edit: &mut Edit<'_>, name: &ResourceName, node: &NodeName) {
    let Some(resource) = edit.model.resource(name, node) else { return };
    let Some(replica) = confirmed(edit, name, node) else { return };
    let taken = |(number, volume): &(&VolumeNr, &Volume)| {
        let state = replica.volumes.get(number);
        volume.adopt && state.is_some_and(|state| state.backing.is_some())
    };
    let taken: Vec<VolumeNr> =
        resource.volumes.iter().filter(taken).map(|(number, _)| *number).collect();
    if taken.is_empty() {
        return;
    }
    edit.modify_resource(name, node, |resource| {
        for (_, volume) in resource.volumes.iter_mut().filter(|(nr, _)| taken.contains(nr)) {
            volume.adopt = false;
        }
    });
}

/// A resource definition of which every resource has got a snapshot's data, or is gone.
fn all_restored(edit: &mut Edit<'_>, name: &ResourceName) {
    let restoring = ResourceFlag::RestoreFromSnapshot;
    let is_target = edit
        .model
        .definition(name)
        .is_some_and(|definition| definition.flags.contains(&DefinitionFlag::RestoreTarget));
    let left = edit.model.resources_of(name).any(|r| r.flags.contains(&restoring));
    if is_target && !left {
        edit.modify_definition(name, |definition| {
            definition.flags.remove(&DefinitionFlag::RestoreTarget);
        });
    }
}

/// Takes back what would take the last data that somebody wants: wishes that were right when they
/// were made, until the replicas that were to stay were evicted or lost theirs. One replica that is
/// UpToDate stays then, whether it was to be deleted or to lose its disk.
fn withdraw(edit: &mut Edit<'_>, name: &ResourceName, nodes: &[NodeName]) {
    use ResourceFlag::*;
    let Some(definition) = edit.model.definition(name) else { return };
    let replicated = definition.layers.contains(&Layer::Drbd);
    // Volumes that never began have nothing to lose.
    let begun = definition.volumes.iter().filter(|(_, volume)| {
        volume.flags.contains(&VolumeDefinitionFlag::DrbdInitialized)
            && !volume.flags.contains(&VolumeDefinitionFlag::Delete)
    });
    let begun: Vec<VolumeNr> = begun.map(|(number, _)| *number).collect();
    let any_stays = edit.model.resources_of(name).any(Resource::is_replica);
    if !replicated || begun.is_empty() || any_stays || !redundancy::is_wanted(edit.model, name) {
        return;
    }
    let has_data = |node: &&NodeName| {
        edit.model.resource(name, node).is_some_and(|resource| {
            let out = [DrbdDelete, Evicted, Inactive];
            !out.iter().any(|flag| resource.flags.contains(flag))
                && edit.observed().is_up_to_date(name, node, begun.iter())
        })
    };
    let Some(node) = nodes.iter().find(has_data) else { return };
    resources::keep_after_all(edit, name, node);
}

/// Lets replicas go whose data are no longer needed.
///
/// One that is deleted first loses its disk while it is still connected, so that its own node can
/// see that others have the data, and then its peers (DRBD_DELETE). From there is no way back. If
/// nobody wants the data any more, all go to DRBD_DELETE at once: if only some did, the others could
/// be made available again without the data.
fn leave(edit: &mut Edit<'_>, name: &ResourceName, nodes: &[NodeName]) {
    use ResourceFlag::*;
    let held = |edit: &Edit<'_>, node: &NodeName| {
        let mut snapshots = edit.model.snapshots_of(name);
        snapshots.any(|snapshot| snapshot.is_pending() && snapshot.nodes.contains_key(node))
    };
    let in_use = |edit: &Edit<'_>| {
        nodes.iter().any(|node| edit.observed().in_use(name, node) || held(edit, node))
    };
    let nobody_wants_them = !redundancy::is_wanted(edit.model, name) && !in_use(edit);
    let mut begin_anew = false;
    for node in nodes {
        let Some(resource) = edit.model.resource(name, node) else { continue };
        let deleting = resource.is_deleting() && !resource.flags.contains(&DrbdDelete);
        let removing = resource.flags.contains(&DiskRemoveRequested) && !resource.is_deleting();
        let begun = resource.flags.contains(&DiskRemoving);
        if held(edit, node) || deleting && edit.observed().in_use(name, node) {
            continue;
        }
        // The whole resource definition goes, or there is no DRBD.
        let decided = redundancy::policy(edit.model, name, node).minimum == 0;
        let nothing = !resource.is_diskful()
            || confirmed(edit, name, node).is_some_and(|replica| {
                replica.volumes.values().all(|volume| volume.backing.is_none())
            });
        let safe = helpers::has_no_data(edit.observed(), name, node)
            || redundancy::may_go(edit.model, edit.observed(), name, node).is_ok();
        let flag = match (deleting, removing) {
            (true, _) if nothing || decided || nobody_wants_them => DrbdDelete,
            (true, _) | (_, true) if safe && !begun => DiskRemoving,
            _ => continue,
        };
        begin_anew |= flag == DrbdDelete && nobody_wants_them && resource.is_diskful();
        edit.modify_resource(name, node, |resource| {
            resource.flags.insert(flag);
        });
    }
    if begin_anew {
        resources::begin_anew(edit, name);
    }
}

/// Drops a resource of which its node has nothing left.
fn gone(edit: &mut Edit<'_>, name: &ResourceName, node: &NodeName) {
    let Some(resource) = edit.model.resource(name, node) else { return };
    let leaving = resource.flags.contains(&ResourceFlag::DrbdDelete);
    let Some(replica) = confirmed(edit, name, node) else { return };
    if leaving && !replica.up && replica.volumes.values().all(|v| v.backing.is_none()) {
        resources::drop_record(edit, name, node);
    }
}

/// Drops volume definitions of which no node has anything left.
fn volumes_gone(edit: &mut Edit<'_>, name: &ResourceName) {
    let Some(definition) = edit.model.definition(name) else { return };
    let deleting =
        |(_, v): &(&VolumeNr, &VolumeDefinition)| v.flags.contains(&VolumeDefinitionFlag::Delete);
    let gone = |number: &VolumeNr| {
        edit.model.resources_of(name).all(|resource| {
            let replica = confirmed(edit, name, &resource.node);
            replica.is_some_and(|replica| !replica.volumes.contains_key(number))
        })
    };
    let numbers: BTreeSet<VolumeNr> =
        definition.volumes.iter().filter(deleting).map(|(nr, _)| *nr).filter(gone).collect();
    if numbers.is_empty() {
        return;
    }
    let nodes: Vec<NodeName> = edit.model.resources_of(name).map(|r| r.node.clone()).collect();
    for node in nodes {
        edit.modify_resource(name, &node, |r| r.volumes.retain(|nr, _| !numbers.contains(nr)));
    }
    edit.modify_definition(name, |d| d.volumes.retain(|nr, _| !numbers.contains(nr)));
}

/// A snapshot that is complete, failed, or gone.
fn snapshot_done(edit: &mut Edit<'_>, name: &ResourceName, snapshot: &SnapshotName) {
    let Some(found) = edit.model.snapshot(name, snapshot).cloned() else { return };
    if found.is_pending() {
        pending(edit, &found);
        return;
    }
    // Without a suspension that is held no step makes it again.
    let gone = |node: &NodeName| {
        let held = edit.observed().suspension(name, node, found.token);
        let replica = edit.observed().replica(name, node);
        edit.observed().is_connected(node)
            && held != Some(SuspensionState::Held)
            && !replica.is_some_and(|replica| replica.snapshots.contains_key(snapshot))
    };
    let mut kept = found.clone();
    kept.nodes.retain(|node, on_node| !(on_node.deleting && gone(node)));
    if kept.nodes.is_empty() {
        edit.remove(Key::Snapshot(name.clone(), snapshot.clone()));
    } else if kept.nodes.len() != found.nodes.len() {
        edit.modify_snapshot(name, snapshot, |snapshot| *snapshot = kept);
    }
}

/// What has become of the snapshots of a token.
enum Outcome {
    Complete,
    NotYet,
    /// A node went away, or is no longer there.
    Disconnected,
    /// A node came in between, or went on by itself.
    Failed,
}

/// Takes note of what has become of snapshots that are being made together.
fn pending(edit: &mut Edit<'_>, snapshot: &SnapshotDefinition) {
    let token = snapshot.token;
    let same = |other: &&SnapshotDefinition| other.token == token && other.is_pending();
    let all: Vec<SnapshotDefinition> = edit.model.snapshots().filter(same).cloned().collect();
    let began = all.iter().flat_map(|one| one.nodes.values()).map(|on_node| on_node.created).max();
    let late = edit.context.now.since(began.unwrap_or_default()) >= MAKE_WITHIN;
    let mut complete = true;
    for one in &all {
        match outcome(edit, one) {
            Outcome::Complete => {}
            // An agent that does not answer must not keep it waiting for ever.
            Outcome::NotYet if late => return snapshots::fail_all(edit, token, false),
            Outcome::NotYet => complete = false,
            Outcome::Disconnected => return snapshots::fail_all(edit, token, true),
            Outcome::Failed => return snapshots::fail_all(edit, token, false),
        }
    }
    if complete {
        for one in &all {
            edit.modify_snapshot(&one.resource, &one.name, |one| {
                one.flags.insert(SnapshotFlag::Successful);
            });
        }
        all.iter().for_each(|one| clone::restore(edit, one));
    }
}

/// A snapshot is good if every node has it, and every node on which the resource could be written
/// held its suspension until it was told to go on, which is after all of them were taken.
fn outcome(edit: &Edit<'_>, snapshot: &SnapshotDefinition) -> Outcome {
    let (name, token) = (&snapshot.resource, snapshot.token);
    let mut complete = true;
    for node in snapshot.nodes.keys() {
        let resource = edit.model.resource(name, node);
        if !edit.observed().is_connected(node) || !resource.is_some_and(Resource::is_diskful) {
            return Outcome::Disconnected;
        }
        if resource.is_some_and(|r| r.flags.contains(&ResourceFlag::DiskRemoving)) {
            return Outcome::Failed;
        }
        let replica = edit.observed().replica(name, node);
        let state = replica.and_then(|replica| replica.snapshots.get(&snapshot.name));
        complete &= state.is_some_and(|state| state.token == token);
    }
    let made = snapshot.nodes.values().map(|on_node| on_node.created).max().unwrap_or_default();
    for resource in edit.model.resources_of(name) {
        let node = &resource.node;
        if !edit.observed().is_connected(node) {
            if edit.observed().is_alive(name, node) {
                return Outcome::Disconnected;
            }
            continue;
        }
        match edit.observed().suspension(name, node, token) {
            Some(SuspensionState::Released) => {}
            Some(SuspensionState::Expired) => return Outcome::Failed,
            _ if resource.created > made => return Outcome::Failed,
            Some(SuspensionState::Held) | None => complete = false,
        }
    }
    if complete { Outcome::Complete } else { Outcome::NotYet }
}
