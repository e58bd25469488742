//! Steps that make, change and remove resources.

use vocab::{DiskState, VolumeNr};

use super::step::{Action, Backing, Begin, Guard, StepId, number};
use super::{Ask, Plan, config};
use crate::apply::has_no_data;
use crate::apply::snapshots::RESTORE_FROM;
use crate::layer::Layer;
use crate::name::*;
use crate::objects::*;
use crate::observed::{ReplicaState, VolumeState};
use crate::place;
use crate::props::chain;
use crate::redundancy;
use crate::size;

/// Adds the steps of every resource.
pub(super) fn plan(ask: &Ask<'_>, plan: &mut Plan) {
    for (node, resource) in &ask.resources {
        let evicted = resource.flags.contains(&ResourceFlag::Evicted);
        let on_node = ask.model.node(node);
        if evicted || on_node.is_some_and(|node| node.flags.contains(&NodeFlag::Evicted)) {
            continue;
        }
        if !ask.observed.is_connected(node) {
            away(ask, resource, plan);
            continue;
        }
        match resource.deactivated {
            _ if resource.flags.contains(&ResourceFlag::DrbdDelete) => remove(ask, resource, plan),
            Some(token) => keep_down(ask, resource, token, plan),
            None => keep(ask, resource, plan),
        }
    }
    grow_devices(ask, plan);
}

/// A node that is not connected: what it has to do is said, for deletions wait for it.
fn away(ask: &Ask<'_>, resource: &Resource, plan: &mut Plan) {
    let (name, node) = (&ask.definition.name, &resource.node);
    let done = match resource.deactivated {
        Some(token) => ask.observed.is_down(name, node, token),
        None => redundancy::is_confirmed(ask.model, ask.observed, name, node),
    };
    if resource.is_deleting() {
        plan.wait(
            Some(node),
            format!(
                "node {node} is not connected: what it has of {name} is deleted when it is back; \
                 if it never is, `node lost {node}` forgets it"
            ),
        );
    } else if !done {
        plan.wait(Some(node), format!("node {node} is not connected: it follows when it is back"));
    }
}

/// A resource whose data are no longer needed, once its peers have left it.
fn remove(ask: &Ask<'_>, resource: &Resource, plan: &mut Plan) {
    let (name, node) = (&ask.definition.name, &resource.node);
    let behind = redundancy::unconfirmed(ask.model, ask.observed, name, node);
    if let Some(peer) = behind.first() {
        plan.wait(Some(peer), format!("node {peer} has to leave {node} first"));
        return;
    }
    let replica = ask.observed.replica(name, node);
    if replica.is_some_and(|replica| replica.in_use.is_some()) {
        plan.wait(Some(node), format!("{name} is in use on node {node}: close it there"));
        return;
    }
    // It was decided that its data may go when it got DRBD_DELETE, and its peers have left it: it
    // could not see their disks any more.
    plan.push(node, Action::Remove(guard(ask, node)), Vec::new());
}

/// A resource that is to be there.
fn keep(ask: &Ask<'_>, resource: &Resource, plan: &mut Plan) {
    let (name, node) = (&ask.definition.name, &resource.node);
    let nothing = ReplicaState::default();
    let replica = ask.observed.replica(name, node).unwrap_or(&nothing);
    let mut before = Vec::new();
    let leaving = resource.is_deleting() || resource.flags.contains(&ResourceFlag::DiskRemoving);
    if resource.is_diskful() && !leaving {
        for (number, wanted) in &ask.definition.volumes {
            if !wanted.flags.contains(&VolumeDefinitionFlag::Delete) {
                make_volume(ask, resource, replica, *number, wanted, plan, &mut before);
            }
        }
    }
    let wanted = ask.model.wanted_generation(name);
    let confirmed = replica.up && replica.generation >= wanted;
    if !confirmed || !before.is_empty() {
        let config = config::of(ask, resource);
        plan.push(node, Action::Configure(config), before);
        waits(ask, resource, plan);
        return;
    }
    if !leaving {
        begin_data(ask, resource, plan);
    }
    change_passphrases(ask, resource, replica, plan);
    remove_volumes(ask, resource, replica, plan);
    if resource.flags.contains(&ResourceFlag::DiskRemoving) {
        remove_disk(ask, resource, replica, plan);
    }
    waits(ask, resource, plan);
}

/// Has disks opened by the passphrases that are wanted by now.
fn change_passphrases(ask: &Ask<'_>, resource: &Resource, replica: &ReplicaState, plan: &mut Plan) {
    let (name, node) = (&ask.definition.name, &resource.node);
    for (nr, wanted) in &ask.definition.volumes {
        let Some(passphrase) = &wanted.passphrase else { continue };
        let state = replica.volumes.get(nr).filter(|state| state.backing.is_some());
        if state.is_none_or(|state| state.passphrase_changes >= wanted.passphrase_changes) {
            continue;
        }
        if ask.observed.master.is_none() {
            plan.wait(
                Some(node),
                format!(
                    "volume {nr} of {name} is opened by its old passphrase on node {node}: enter the \
                     master passphrase (`ashlar encryption unlock`)"
                ),
            );
            continue;
        }
        let (volume, passphrase) = (number(*nr), passphrase.clone());
        let changes = wanted.passphrase_changes;
        plan.push(node, Action::ChangePassphrase { volume, passphrase, changes }, Vec::new());
    }
}

/// Takes away the volumes whose definitions go, once the peers have taken them down.
fn remove_volumes(ask: &Ask<'_>, resource: &Resource, replica: &ReplicaState, plan: &mut Plan) {
    let (name, node) = (&ask.definition.name, &resource.node);
    let gone: Vec<VolumeNr> = replica
        .volumes
        .keys()
        .filter(|number| {
            let wanted = ask.definition.volumes.get(number);
            wanted.is_none_or(|volume| volume.flags.contains(&VolumeDefinitionFlag::Delete))
        })
        .copied()
        .collect();
    let behind = redundancy::unconfirmed(ask.model, ask.observed, name, node);
    if let (false, Some(peer)) = (gone.is_empty(), behind.first()) {
        plan.wait(Some(peer), format!("node {peer} has to take the volumes down first"));
    } else {
        for volume in gone {
            plan.push(node, Action::RemoveVolume { volume: number(volume) }, Vec::new());
        }
    }
}

/// A resource that was deactivated: only its storage is there.
fn keep_down(ask: &Ask<'_>, resource: &Resource, token: Generation, plan: &mut Plan) {
    let (name, node) = (&ask.definition.name, &resource.node);
    if ask.observed.rollback(name, node, token).is_none() {
        return take_down(ask, resource, token, plan);
    }
    let Some(replica) = ask.observed.replica(name, node) else { return };
    if replica.up {
        plan.wait(
            Some(node),
            format!(
                "{name} is inactive on node {node}, and somebody has brought it up there: take it down \
                 (`ashlar down {name}`), or activate it"
            ),
        );
        return;
    }
    change_passphrases(ask, resource, replica, plan);
    remove_volumes(ask, resource, replica, plan);
}

/// Takes a resource down that was deactivated, when those that stay up can do without it: they know
/// by then that it has no vote any more, and have the data.
fn take_down(ask: &Ask<'_>, resource: &Resource, token: Generation, plan: &mut Plan) {
    let (name, node) = (&ask.definition.name, &resource.node);
    let replica = ask.observed.replica(name, node);
    let wanted = ask.model.wanted_generation(name);
    if replica.is_some_and(|replica| replica.up && replica.generation < wanted) {
        // It has to know the peers that have the data: its agent looks whether they do.
        plan.push(node, Action::Configure(config::of(ask, resource)), Vec::new());
        return;
    }
    let before = (plan.steps.len(), plan.waits.len());
    if let Some(replica) = replica {
        remove_volumes(ask, resource, replica, plan);
    }
    if before != (plan.steps.len(), plan.waits.len()) {
        return;
    }
    // Others that go down, too, are not waited for: they wait for the same nodes.
    let up = |peer: &&NodeName| ask.resources.get(*peer).is_some_and(|r| r.deactivated.is_none());
    let behind = redundancy::unconfirmed(ask.model, ask.observed, name, node);
    if let Some(peer) = behind.iter().find(up) {
        plan.wait(Some(peer), format!("node {peer} has to know first that {node} goes down"));
        return;
    }
    if ask.observed.in_use(name, node) {
        plan.wait(Some(node), format!("{name} is in use on node {node}: close it there"));
        return;
    }
    let data = resource.is_diskful() && !has_no_data(ask.observed, name, node);
    let left = redundancy::may_go(ask.model, ask.observed, name, node);
    if let (true, Err(reason)) = (data, left) {
        plan.wait(Some(node), format!("{name} stays up on node {node}: {reason}"));
        return;
    }
    let guard = if data { guard(ask, node) } else { Guard::default() };
    plan.push(node, Action::TakeDown { token, guard: Some(guard) }, Vec::new());
}

/// Has a replica begin the data if the one that was to begin them has gone without. Everybody has to
/// have confirmed that: then what they say of their disks can not have come from that one since.
fn begin_data(ask: &Ask<'_>, resource: &Resource, plan: &mut Plan) {
    let name = &ask.definition.name;
    for (nr, volume) in &ask.definition.volumes {
        let begun = volume.flags.contains(&VolumeDefinitionFlag::DrbdInitialized);
        if begun || volume.initial_on.as_ref() != Some(&resource.node) {
            continue;
        }
        let empty = |other: &Resource| {
            let replica = ask.observed.replica(name, &other.node);
            // Where there is no backing volume there never were data, or others have them.
            let none = |state: &VolumeState| {
                state.backing.is_none()
                    || matches!(state.disk, None | Some(DiskState::Inconsistent))
            };
            ask.observed.is_connected(&other.node)
                && replica.is_some_and(|replica| {
                    let none = replica.volumes.get(nr).is_none_or(none);
                    redundancy::is_confirmed(ask.model, ask.observed, name, &other.node)
                        && (none || !other.is_diskful())
                })
        };
        let own = ask.observed.replica(name, &resource.node).and_then(|r| r.volumes.get(nr));
        let created = own.is_some_and(|own| own.backing.is_some() && own.metadata);
        // One that has begun and is UpToDate is not waited for: it is about to be noticed.
        let unknown = |other: &&&Resource| !ask.observed.is_connected(&other.node);
        if !created {
            continue;
        } else if ask.resources.values().all(|other| empty(other)) {
            plan.push(&resource.node, Action::BeginData { volume: number(*nr) }, Vec::new());
        } else if let Some(other) = ask.resources.values().find(unknown) {
            let away = &other.node;
            plan.wait(
                Some(away),
                format!(
                    "volume {nr} of {name} has not begun, and may have on node {away}, which is not \
                     connected: it begins when that is known; if the node never is back, \
                     `node lost {away}` forgets it"
                ),
            );
        }
    }
}

/// Says what keeps a deletion, or the removal of a disk, from going on.
fn waits(ask: &Ask<'_>, resource: &Resource, plan: &mut Plan) {
    let (name, node) = (&ask.definition.name, &resource.node);
    if let Some(number) = locked(ask, resource) {
        plan.wait(
            Some(node),
            format!(
                "volume {number} of {name} is encrypted and not open on node {node}: enter the master \
                 passphrase (`ashlar encryption unlock`)"
            ),
        );
    }
    let leaving = resource.is_deleting()
        || resource.flags.contains(&ResourceFlag::DiskRemoveRequested)
            && !resource.flags.contains(&ResourceFlag::DiskRemoving);
    if !leaving {
        return;
    }
    if resource.is_deleting() && ask.observed.in_use(name, node) {
        plan.wait(Some(node), format!("{name} is in use on node {node}: close it there"));
    } else if let Err(reason) = redundancy::may_go(ask.model, ask.observed, name, node) {
        plan.wait(Some(node), format!("the data of node {node} stay: {reason}"));
    }
}

/// A volume that can not be used before somebody has entered the master passphrase.
fn locked(ask: &Ask<'_>, resource: &Resource) -> Option<VolumeNr> {
    if ask.observed.master.is_some() || !resource.is_diskful() {
        return None;
    }
    let replica = ask.observed.replica(&ask.definition.name, &resource.node);
    let open = |number: &VolumeNr| {
        let disk = replica.and_then(|replica| replica.volumes.get(number)?.disk);
        disk.is_some_and(|disk| disk > DiskState::Diskless)
    };
    let mut encrypted = ask.definition.volumes.iter().filter(|(_, v)| v.passphrase.is_some());
    encrypted.find(|(number, _)| !open(number)).map(|(number, _)| *number)
}

/// Takes the disk of a resource while it is connected.
fn remove_disk(ask: &Ask<'_>, resource: &Resource, replica: &ReplicaState, plan: &mut Plan) {
    let (name, node) = (&ask.definition.name, &resource.node);
    if replica.volumes.values().all(|volume| volume.backing.is_none()) {
        return;
    }
    match redundancy::may_go(ask.model, ask.observed, name, node) {
        Err(reason) if !has_no_data(ask.observed, name, node) => {
            plan.wait(Some(node), format!("the disk of node {node} stays: {reason}"));
        }
        _ => {
            plan.push(node, Action::RemoveDisk(guard(ask, node)), Vec::new());
        }
    }
}

/// What has to be left when the data of a node go, for its agent to see.
fn guard(ask: &Ask<'_>, node: &NodeName) -> Guard {
    let name = &ask.definition.name;
    let policy = redundancy::policy(ask.model, name, node);
    let mut of = redundancy::copies(ask.model, ask.observed, name);
    of.retain(|copy| copy != node && policy.successor.as_ref().is_none_or(|one| one == copy));
    Guard { at_least: policy.minimum, of }
}

/// Makes what a volume lacks: its backing volume, metadata, size.
fn make_volume(
    ask: &Ask<'_>,
    resource: &Resource,
    replica: &ReplicaState,
    nr: VolumeNr,
    wanted: &VolumeDefinition,
    plan: &mut Plan,
    before: &mut Vec<StepId>,
) {
    let node = &resource.node;
    let Some(volume) = resource.volumes.get(&nr) else { return };
    let Some(pool) = ask.model.pool(node, &volume.pool) else {
        plan.wait(Some(node), format!("node {node} has no pool {}: create it", volume.pool));
        return;
    };
    let nothing = VolumeState::default();
    let state = replica.volumes.get(&nr).unwrap_or(&nothing);
    let size = size::backing(ask.definition, wanted);
    let restored = resource.flags.contains(&ResourceFlag::RestoreFromSnapshot);
    let replicated = ask.definition.layers.contains(&Layer::Drbd);
    if volume.adopt && (state.backing.is_none() || replicated && !state.metadata) {
        let action = Action::AdoptVolume {
            volume: number(nr),
            backing: backing(ask, resource, pool, nr, wanted),
            size: size::usable(ask.definition, wanted),
            metadata: replicated,
            node_id: resource.node_id,
        };
        before.push(plan.push(node, action, Vec::new()));
        return;
    }
    let mut after = Vec::new();
    if state.backing.is_none() {
        let backing = backing(ask, resource, pool, nr, wanted);
        let action = match source(resource).filter(|_| restored) {
            Some((from, snapshot)) => {
                Action::RestoreVolume { volume: number(nr), backing, from, snapshot }
            }
            None => Action::CreateVolume { volume: number(nr), backing },
        };
        after.push(plan.push(node, action, Vec::new()));
    } else if state.backing.is_some_and(|has| has < size)
        && wanted.flags.contains(&VolumeDefinitionFlag::Resize)
    {
        plan.push(node, Action::GrowVolume { volume: number(nr), size }, Vec::new());
    }
    // A snapshot has metadata in it, and they are kept.
    if replicated && !state.metadata && !restored {
        let action = Action::CreateMetadata {
            volume: number(nr),
            peer_slots: ask.definition.peer_slots,
            node_id: resource.node_id,
            day_0: wanted.day_0,
            begin: begin(ask, resource, pool, wanted),
        };
        after = vec![plan.push(node, action, after)];
    }
    before.extend(after);
}

/// How the data of a new disk begin: one begins, the others copy as little as they may.
fn begin(ask: &Ask<'_>, resource: &Resource, pool: &Pool, wanted: &VolumeDefinition) -> Begin {
    let begun = wanted.flags.contains(&VolumeDefinitionFlag::DrbdInitialized);
    if !begun && !wanted.passed_on && wanted.initial_on.as_ref() == Some(&resource.node) {
        return Begin::First;
    }
    // The data of a snapshot have begun elsewhere, and know nothing of this day 0.
    if begun && wanted.initial_on.is_none() {
        return Begin::Empty;
    }
    let all = chain::definition(ask.model, ask.definition).is_true("DrbdOptions/ForceInitialSync");
    let kinds = place::kinds_in_use(ask.model, &ask.definition.name);
    let one_kind = kinds.iter().all(|kind| *kind == pool.provider);
    // Zeroes that were never written are decrypted to noise, another on every node.
    let clear = !ask.definition.layers.contains(&Layer::Luks);
    match pool.provider.starts_zeroed() && one_kind && !all && clear {
        true => Begin::DayZero,
        false => Begin::Empty,
    }
}

fn backing(
    ask: &Ask<'_>,
    resource: &Resource,
    pool: &Pool,
    nr: VolumeNr,
    wanted: &VolumeDefinition,
) -> Backing {
    let inherited = chain::storage(ask.model, ask.definition, resource, nr);
    Backing {
        pool: pool.name.clone(),
        provider: pool.provider,
        size: size::backing(ask.definition, wanted),
        layers: ask.definition.layers.iter().copied().filter(|l| *l != Layer::Drbd).collect(),
        passphrase: wanted.passphrase.clone(),
        passphrase_changes: wanted.passphrase_changes,
        options: inherited.below("StorDriver/"),
    }
}

/// The snapshot that a resource is restored from.
fn source(resource: &Resource) -> Option<(ResourceName, SnapshotName)> {
    let (name, snapshot) = resource.props.get(RESTORE_FROM)?.split_once('/')?;
    Some((ResourceName::new(name).ok()?, SnapshotName::new(snapshot).ok()?))
}

/// Devices grow when all backing volumes have: on one node, DRBD tells the others.
fn grow_devices(ask: &Ask<'_>, plan: &mut Plan) {
    let name = &ask.definition.name;
    let replicated = ask.definition.layers.contains(&Layer::Drbd);
    for (nr, wanted) in &ask.definition.volumes {
        if !wanted.flags.contains(&VolumeDefinitionFlag::Resize) {
            continue;
        }
        let (backing, size) =
            (size::backing(ask.definition, wanted), size::usable(ask.definition, wanted));
        let state = |resource: &Resource| {
            let replica = ask.observed.replica(name, &resource.node)?;
            replica.volumes.get(nr).filter(|_| ask.observed.is_connected(&resource.node))
        };
        let replicas = || ask.resources.values().filter(|resource| resource.is_replica());
        let has = |r: &&&Resource| {
            state(r).is_some_and(|state| state.backing.is_some_and(|has| has >= backing))
        };
        if let Some(small) = replicas().find(|resource| !has(resource)) {
            let node = &small.node;
            plan.wait(Some(node), format!("the backing volume of node {node} has to grow first"));
            continue;
        }
        let small = |r: &&&Resource| state(r).is_some_and(|state| state.size < size);
        let current = |r: &&&Resource| {
            !replicated || state(r).is_some_and(|s| s.disk == Some(DiskState::UpToDate))
        };
        // Sizes are not changed while something is resynced. A disk that is lost is not waited for.
        let lost = |r: &&&Resource| {
            let disk = state(r).and_then(|state| state.disk);
            matches!(disk, Some(DiskState::Diskless | DiskState::Failed))
        };
        let behind = replicas().find(|r| !current(r) && !lost(r));
        let none = replicas().find(|_| !replicas().any(|r| current(&r)));
        if let Some(behind) = behind.or(none).filter(|_| replicas().any(|r| small(&r))) {
            let has_grown = |r: &&Resource| state(r).is_some_and(|state| state.size >= size);
            if replicated && replicas().any(has_grown) {
                // It has been agreed on: those that copy what is new are about to say so.
                continue;
            }
            let node = &behind.node;
            let reason = format!("volume {nr} of {name} grows when node {node} is UpToDate");
            plan.wait(Some(node), reason);
            continue;
        }
        let growing = replicas().filter(current).filter(small);
        let action = || Action::GrowDevice { volume: number(*nr), size };
        // Without DRBD each device is its own.
        let count = if replicated { 1 } else { usize::MAX };
        for resource in growing.take(count) {
            plan.push(&resource.node, action(), Vec::new());
        }
    }
}
