//! What is shipped with remotes (control plane §8.4).

use std::collections::{BTreeMap, BTreeSet};

use vocab::VolumeNr;

use crate::change::{Key, Object};
use crate::command::{Command, NewDefinition, NewVolumeDefinition};
use crate::edit::Edit;
use crate::layer::Layer;
use crate::name::*;
use crate::objects::*;
use crate::props::{Owner, chain, check_all};
use crate::refusal::{Code, NoteCode, Refusal};
use crate::shipping::*;

use super::{crossing, definitions, nodes, remotes, series, snapshots};

#[cfg(test)]
pub(super) mod tests;

/// A backup as it is wished for.
pub struct Wish {
    pub snapshot: Option<SnapshotName>,
    pub stamp: String,
    pub node: Option<NodeName>,
    pub incremental: bool,
    pub present: Vec<String>,
    /// The schedule that makes it, if one does.
    pub schedule: Option<ScheduleName>,
    /// The other cluster's part, if it goes to one.
    pub sending: Option<Box<Sending>>,
}

/// Between what something is shipped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A node and a bucket.
    Bucket,
    /// Nodes of two clusters.
    Cluster,
}

fn way_of(upload: &Upload) -> Way {
    if upload.sending.is_some() { Way::Cluster } else { Way::Bucket }
}

/// What is made of a backup.
pub struct Target {
    pub snapshot: SnapshotName,
    pub to: ResourceName,
    pub group: Option<GroupName>,
    pub node: NodeName,
    pub pools: BTreeMap<PoolName, PoolName>,
    pub download_only: bool,
}

/// What is given up.
pub struct Which {
    pub name: Option<ResourceName>,
    pub snapshot: Option<SnapshotName>,
    pub uploads: bool,
    pub downloads: bool,
}

/// A remote that something can be shipped with. That it is not there is told as clients expect it.
pub fn usable<'a>(edit: &'a Edit<'_>, name: &RemoteName) -> Result<&'a Remote, Refusal> {
    let key = Key::Remote(name.clone());
    let Some(remote) = edit.model.remote(name) else {
        return Err(Refusal::new(Code::InvalidRemoteName, format!("{key} does not exist"))
            .cause("no remote has this name")
            .correction("see `ashlar remote list`, or create it first")
            .about(key));
    };
    if remote.deleting {
        return Err(Refusal::new(Code::InUse, format!("{key} can not be used"))
            .cause("it is being deleted")
            .correction("use another one")
            .about(key));
    }
    if edit.observed().master.is_none() {
        return Err(Refusal::new(Code::NoMasterKey, format!("{key} can not be used"))
            .cause("its keys are encrypted, and the master passphrase was not entered")
            .correction("enter it (`ashlar encryption unlock`)")
            .about(key));
    }
    Ok(remote)
}

/// A remote in which backups are.
fn usable_bucket(edit: &Edit<'_>, name: &RemoteName) -> Result<(), Refusal> {
    if edit.model.remote(name).is_some_and(|remote| remote.bucket().is_none()) {
        return Err(remotes::no_bucket(name));
    }
    usable(edit, name).map(drop)
}

/// Refuses a node that can not ship what has these layers, in that way.
pub fn ships(edit: &Edit<'_>, node: &NodeName, layers: &[Layer], way: Way) -> Result<(), Refusal> {
    let key = Key::Node(node.clone());
    edit.node(node)?;
    let state = edit.observed().nodes.get(node).filter(|state| state.connected);
    let (code, cause, next) = match state {
        None => {
            (Code::NotConnected, "it is not connected", "wait until it is, or name another node")
        }
        Some(state)
            if !state.ships
                || layers.contains(&Layer::Luks) && !state.ships_encrypted
                || way == Way::Cluster && !state.ships_to_clusters =>
        {
            (
                Code::ProviderUnsupported,
                "its agent is too old",
                "update it to the controller's release, or name another node",
            )
        }
        Some(_) => return Ok(()),
    };
    Err(Refusal::new(code, format!("{key} can not ship snapshots"))
        .cause(format!("node {node}: {cause}"))
        .correction(next)
        .about(key))
}

/// Refuses what would change a resource definition that a backup is restored to.
pub fn refuse_while_downloading(edit: &Edit<'_>, command: &Command) -> Result<(), Refusal> {
    use Command::*;
    let name = match command {
        CreateVolumeDefinition { name, .. }
        | DeleteVolumeDefinition { name, .. }
        | ModifyVolumeDefinition { name, size: Some(_), .. }
        | CreateResource { name, .. }
        | Autoplace { name, .. }
        | MakeAvailable { name, .. }
        | ToggleDisk { name, .. }
        | DeleteDefinition { name }
        | RestoreVolumeDefinitions { to: name, .. }
        | RestoreResources { to: name, .. }
        | RestoreBackup { to: name, .. } => name,
        ReceiveSnapshot { snapshot, .. } if crossing::is_known(edit, snapshot) => return Ok(()),
        ReceiveSnapshot { snapshot, .. } => &snapshot.to,
        _ => return Ok(()),
    };
    let Some(busy) = edit.model.snapshots_of(name).find(|snapshot| snapshot.is_downloading())
    else {
        return Ok(());
    };
    let key = Key::Definition(name.clone());
    Err(Refusal::new(Code::InUse, format!("{key} can not be changed"))
        .cause(format!("a backup is being restored to it, as snapshot {}", busy.name))
        .correction("wait until that is done, or abort it (`ashlar backup abort`)")
        .about(key))
}

/// Refuses to delete a snapshot that is shipped, or that another is compared with.
pub fn not_shipped(
    edit: &Edit<'_>,
    name: &ResourceName,
    snapshot: &SnapshotName,
) -> Result<(), Refusal> {
    let found = edit.snapshot(name, snapshot)?;
    let base = edit.model.snapshots_of(name).any(|other| {
        let on = |upload: &Upload| upload.base.as_ref().is_some_and(|(base, _)| base == snapshot);
        let receives = other.download.as_ref().filter(|download| download.phase.is_active());
        let receives = receives.and_then(|download| download.receiving.as_ref()?.base.as_ref());
        other.uploads.values().any(|upload| upload.phase.is_active() && on(upload))
            || receives.is_some_and(|(base, _)| base == snapshot)
    });
    let cause = match found {
        found if found.is_downloading() => "it is being made from a backup",
        found if found.is_uploading() => "it is being shipped, or waits for its turn",
        _ if base => "a backup is being made of what has changed since it",
        _ => return Ok(()),
    };
    let key = Key::Snapshot(name.clone(), snapshot.clone());
    Err(Refusal::new(Code::InUse, format!("{key} can not be deleted"))
        .cause(cause)
        .correction("wait until that is done, or abort it (`ashlar backup abort`)")
        .about(key))
}

// Backups.

pub fn create(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    remote: &RemoteName,
    wish: Wish,
) -> Result<(), Refusal> {
    let way = match &wish.sending {
        None => {
            usable_bucket(edit, remote)?;
            Way::Bucket
        }
        Some(_) => {
            crossing::usable(edit, remote)?;
            Way::Cluster
        }
    };
    let definition = edit.definition(name)?.clone();
    let default = SnapshotName::new(&format!("back_{}", wish.stamp))?;
    let snapshot = wish.snapshot.clone().unwrap_or_else(|| default.clone());
    let key = Key::Snapshot(name.clone(), snapshot.clone());
    let refuse = |code, cause: String, next: &str| {
        Err(Refusal::new(code, format!("no backup can be made of {key}"))
            .cause(cause)
            .correction(next)
            .about(key.clone()))
    };
    let layers = &definition.layers;
    let chosen: Vec<NodeName> = wish.node.iter().cloned().collect();
    chosen.iter().try_for_each(|node| ships(edit, node, layers, way))?;
    match edit.model.snapshot(name, &snapshot) {
        None => {
            let new = vec![(name.clone(), snapshot.clone(), Vec::new())];
            snapshots::create(edit, new, &Props::new())?;
        }
        Some(found) if !found.is_successful() && !found.is_pending() => {
            let cause = "the snapshot is not complete".to_owned();
            return refuse(Code::InvalidResourceState, cause, "use one with the flag SUCCESSFUL");
        }
        Some(found) if found.uploads.get(remote).is_some_and(|u| u.phase.is_active()) => {
            let cause = format!("it is being shipped to remote {remote} already");
            return refuse(Code::ShippingExists, cause, "wait until that is done");
        }
        Some(found) if found.uploads.get(remote).is_some_and(|u| u.call().is_some()) => {
            let cause = format!("remote {remote} is being told that the last time came to nothing");
            return refuse(Code::ShippingExists, cause, "wait until that is done");
        }
        // It may go to another cluster several times, under several names.
        Some(found)
            if way == Way::Bucket
                && found.uploads.get(remote).is_some_and(|u| u.phase == Phase::Success) =>
        {
            let cause = format!("remote {remote} has it already");
            return refuse(Code::ShippingExists, cause, "make another snapshot");
        }
        Some(_) => {}
    }
    let found = edit.snapshot(name, &snapshot)?;
    let able: Vec<&NodeName> =
        found.nodes.keys().filter(|node| ships(edit, node, layers, way).is_ok()).collect();
    if let Some(node) = chosen.iter().find(|node| !found.nodes.contains_key(node)) {
        let cause = format!("node {node} has no such snapshot");
        return refuse(Code::UnknownSnapshot, cause, "name a node with a replica, or none");
    }
    if able.is_empty() {
        let nodes: Vec<String> = found.nodes.keys().map(|node| format!("node {node}")).collect();
        let cause = format!("its agent is too old, or away: {}", nodes.join(", "));
        return refuse(Code::NotConnected, cause, "update the agents to the controller's release");
    }
    let suffix = chain::definition(edit.model, &definition).get(KEY_SUFFIX).unwrap_or_default();
    let mut backup = format!("{name}_back_{}{suffix}", wish.stamp);
    if snapshot != default {
        backup = format!("{backup}^{snapshot}");
    }
    let base = wish.incremental.then(|| newest(edit, name, remote, &snapshot, &wish)).flatten();
    let upload = Upload {
        token: Generation(edit.model.generation().0 + 1),
        backup,
        since: edit.context.now,
        node: wish.node,
        base,
        phase: Phase::Waiting,
        cause: None,
        sending: wish.sending,
    };
    edit.modify_snapshot(name, &snapshot, |found| {
        found.uploads.insert(remote.clone(), upload);
    });
    start(edit);
    Ok(())
}

/// The newest snapshot that is in the remote and still here, with its backup.
fn newest(
    edit: &Edit<'_>,
    name: &ResourceName,
    remote: &RemoteName,
    not: &SnapshotName,
    wish: &Wish,
) -> Option<(SnapshotName, String)> {
    let numbers = |snapshot: &SnapshotDefinition| -> Vec<VolumeNr> {
        snapshot.sizes.keys().copied().collect()
    };
    let wanted = edit.model.snapshot(name, not).map(numbers)?;
    let others = edit.model.snapshots_of(name).filter(|other| other.name != *not);
    let others = others.filter(|other| other.is_successful() && numbers(other) == wanted);
    // What a schedule makes builds on nothing else: so it can go as a whole. Nothing builds on what goes.
    let fits = |other: &&SnapshotDefinition| match &other.scheduled {
        Some(own) => {
            let series = edit.model.series(name, &own.remote, &own.schedule);
            let going = series.is_some_and(|series| series.is_going(own.since));
            !(going && own.remote == *remote)
                && wish.schedule.as_ref().is_none_or(|wanted| own.fits(remote, wanted))
        }
        None => wish.schedule.is_none(),
    };
    let shipped = others.filter(fits).filter_map(|other| {
        let upload = other.uploads.get(remote).filter(|upload| upload.phase == Phase::Success)?;
        Some((upload.since, other.name.clone(), upload.backup.clone()))
    });
    // What another cluster has it says when it is asked.
    let cluster = wish.sending.is_some();
    let there = shipped.filter(|(_, _, backup)| cluster || wish.present.contains(backup));
    let newest = there.max_by_key(|(since, _, _)| *since)?;
    Some((newest.1, newest.2))
}

/// Begins what waits and may begin: of each node, the oldest first.
pub fn start(edit: &mut Edit<'_>) {
    let mut waiting = Vec::new();
    let mut running: BTreeMap<NodeName, u32> = BTreeMap::new();
    for snapshot in edit.model.snapshots() {
        for (remote, upload) in &snapshot.uploads {
            if upload.phase == Phase::Waiting && snapshot.is_successful() {
                let key = (snapshot.resource.clone(), snapshot.name.clone(), remote.clone());
                waiting.push((upload.token, key));
            }
            if let Some(node) = upload.node.as_ref().filter(|_| upload.phase.is_running()) {
                *running.entry(node.clone()).or_default() += 1;
            }
        }
    }
    waiting.sort();
    for (_, (name, snapshot, remote)) in waiting {
        let Some(found) = edit.model.snapshot(&name, &snapshot) else { continue };
        let Some(upload) = found.uploads.get(&remote) else { continue };
        let free = |node: &&NodeName| {
            let count = running.get(*node).copied().unwrap_or_default();
            ships(edit, node, &found.layers, way_of(upload)).is_ok()
                && most(edit, node).is_none_or(|most| count < most)
        };
        let wished = |node: &&NodeName| upload.node.as_ref().is_none_or(|wished| wished == *node);
        let has_base = |node: &&NodeName| {
            let (base, _) = upload.base.as_ref()?;
            let base = edit.model.snapshot(&name, base).filter(|base| base.is_successful())?;
            // Each replica is encrypted with a key of its own: another node's has nothing in common with it. To
            // other clusters nothing is shipped that builds on what came from another node.
            let by = base.uploads.get(&remote).and_then(|upload| upload.node.as_ref());
            let of_one = found.layers.contains(&Layer::Luks) || upload.sending.is_some();
            if of_one && by != Some(*node) {
                return None;
            }
            base.nodes.get(*node).filter(|on_node| !on_node.deleting).map(drop)
        };
        let holders = found.nodes.iter().filter(|(_, on_node)| !on_node.deleting);
        let able: Vec<&NodeName> = holders.map(|(node, _)| node).filter(wished).collect();
        // Who has both is waited for; who is the only one left makes a full one.
        let both: Vec<&NodeName> =
            able.iter().copied().filter(|node| has_base(node).is_some()).collect();
        let full = both.is_empty();
        let candidates = if full { able } else { both };
        let Some(node) = candidates.into_iter().find(free).cloned() else { continue };
        *running.entry(node.clone()).or_default() += 1;
        change(edit, &name, &snapshot, &remote, |upload| {
            (upload.phase, upload.node) = (Phase::Shipping, Some(node));
            if let Some(sending) = &mut upload.sending {
                // It is asked from now on.
                sending.closed = false;
            }
            if full {
                upload.base = None;
            }
        });
    }
}

/// How many backups a node makes at the same time, if there is a limit.
fn most(edit: &Edit<'_>, node: &NodeName) -> Option<u32> {
    let node = edit.model.node(node)?;
    chain::node(edit.model, node).get(MAX_CONCURRENT)?.parse().ok()
}

pub fn change(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    snapshot: &SnapshotName,
    remote: &RemoteName,
    change: impl FnOnce(&mut Upload),
) {
    edit.modify_snapshot(name, snapshot, |snapshot| {
        if let Some(upload) = snapshot.uploads.get_mut(remote) {
            change(upload);
        }
    });
}

/// What of properties can be had here: a backup may be of another release, or another cluster.
fn known(owner: Owner, props: &Props) -> Props {
    let ours = |(key, value): &(&String, &String)| {
        let one = [((*key).clone(), (*value).clone())].into();
        !key.starts_with("Internal/") && check_all(owner, &one).is_ok()
    };
    props.iter().filter(ours).map(|(key, value)| (key.clone(), value.clone())).collect()
}

pub fn restore(
    edit: &mut Edit<'_>,
    remote: &RemoteName,
    found: Found,
    target: Target,
) -> Result<(), Refusal> {
    usable_bucket(edit, remote)?;
    ships(edit, &target.node, &found.layers, Way::Bucket)?;
    let placed = places(edit, &found, &target.to, &target.node, &target.pools)?;
    begin(edit, remote, found, target, placed, None)
}

fn not_restored(to: &ResourceName, code: Code, cause: String, next: &str) -> Refusal {
    let key = Key::Definition(to.clone());
    Refusal::new(code, format!("no backup can be restored to {key}"))
        .cause(cause)
        .correction(next)
        .about(key)
}

/// The pools of a node that take the volumes of what is restored.
pub fn places(
    edit: &Edit<'_>,
    found: &Found,
    to: &ResourceName,
    node: &NodeName,
    pools: &BTreeMap<PoolName, PoolName>,
) -> Result<BTreeMap<VolumeNr, PoolName>, Refusal> {
    nodes::accepting(edit, node)?;
    let refuse = |code, cause, next: &str| Err(not_restored(to, code, cause, next));
    let mut placed = BTreeMap::new();
    for (number, volume) in &found.volumes {
        let pool = pools.get(&volume.pool).unwrap_or(&volume.pool);
        let Some(there) = edit.model.pool(node, pool) else {
            let cause = format!("node {node} has no pool {pool}");
            return refuse(Code::UnknownPool, cause, "create it, or name another one in its place");
        };
        let why = edit.observed().pool(node, pool).and_then(|state| state.no_snapshots.clone());
        if !there.provider.has_snapshots() || why.is_some() {
            let why = why.unwrap_or_else(|| format!("pools of kind {} can not", there.provider));
            let cause = format!("pool {pool} of node {node} can not make snapshots: {why}");
            return refuse(Code::SnapshotsUnsupported, cause, "name a pool that can in its place");
        }
        placed.insert(*number, pool.clone());
    }
    if edit.model.resources_of(to).any(|resource| resource.node == *node) {
        let cause = format!("node {node} has a resource of it");
        let next = "name another node, or a new resource definition";
        return refuse(Code::ResourceExists, cause, next);
    }
    Ok(placed)
}

/// Has a snapshot be made of what comes from a bucket, or from another cluster.
pub fn begin(
    edit: &mut Edit<'_>,
    remote: &RemoteName,
    mut found: Found,
    target: Target,
    placed: BTreeMap<VolumeNr, PoolName>,
    receiving: Option<Box<Receiving>>,
) -> Result<(), Refusal> {
    found.props = known(Owner::Definition, &found.props);
    for volume in found.volumes.values_mut() {
        volume.props = known(Owner::VolumeDefinition, &volume.props);
    }
    let Target { snapshot, to, group, node, pools: _, download_only } = target;
    let refuse = |code, cause, next: &str| Err(not_restored(&to, code, cause, next));
    let encrypted = found.layers.contains(&Layer::Luks);
    if encrypted && !found.volumes.keys().all(|number| found.passphrases.contains_key(number)) {
        let cause = "its volumes are encrypted, and it lacks a passphrase".to_owned();
        return refuse(Code::InvalidBackup, cause, "restore another backup");
    }
    if edit.model.definition(&to).is_none() {
        definitions::create(
            edit,
            NewDefinition {
                name: Some(to.clone()),
                group,
                props: found.props.clone(),
                layers: Some(found.layers.clone()),
                peer_slots: Some(found.peer_slots),
                ..NewDefinition::default()
            },
        )?;
    }
    let definition = edit.definition(&to)?;
    if edit.model.resources_of(&to).next().is_some() && !download_only {
        let cause = "it has resources".to_owned();
        return refuse(Code::ResourceExists, cause, "restore to a new resource definition");
    }
    if edit.model.snapshot(&to, &snapshot).is_some() {
        let cause = format!("it has a snapshot {snapshot}");
        return refuse(Code::SnapshotExists, cause, "delete it, or name the new one otherwise");
    }
    if definition.layers != found.layers {
        let cause = "its layers are not those of the backup".to_owned();
        return refuse(Code::InvalidLayerStack, cause, "restore to a new resource definition");
    }
    let layers = found.layers.clone();
    // As it is in the definition, unless that has other ones.
    let mut passphrases = BTreeMap::new();
    if !definition.volumes.is_empty() && encrypted {
        if !download_only {
            let cause = "its volumes have passphrases of their own".to_owned();
            return refuse(
                Code::VolumeDefinitionExists,
                cause,
                "restore to a new resource definition",
            );
        }
        passphrases = found.passphrases.clone();
    }
    if definition.volumes.is_empty() {
        for (number, volume) in &found.volumes {
            let new = NewVolumeDefinition {
                number: Some(number.0),
                size: volume.size,
                gross_size: volume.gross_size,
                props: volume.props.clone(),
                passphrase: found.passphrases.get(number).filter(|_| encrypted).cloned(),
                ..NewVolumeDefinition::default()
            };
            definitions::create_volume(edit, &to, new)?;
        }
    }
    let sizes: BTreeMap<_, _> = found.volumes.iter().map(|(nr, v)| (*nr, v.size)).collect();
    let there = edit.definition(&to)?.volumes.iter().map(|(nr, volume)| (*nr, volume.size));
    if !there.eq(sizes.clone()) {
        let cause = "its volumes have not the backup's numbers and sizes".to_owned();
        return refuse(Code::InvalidVolumeSize, cause, "restore to a new resource definition");
    }
    let token = Generation(edit.model.generation().0 + 1);
    let now = edit.context.now;
    let on_node = Snapshot {
        uuid: edit.uuid(),
        created: now,
        deleting: false,
        node_id: found.node_id,
        pools: placed,
    };
    let download = Download {
        token,
        remote: remote.clone(),
        chain: found.chain,
        since: now,
        node: node.clone(),
        sizes: found.volumes.iter().map(|(number, volume)| (*number, volume.device)).collect(),
        download_only,
        phase: Phase::Shipping,
        cause: None,
        receiving,
    };
    let uuid = edit.uuid();
    edit.put(Object::Snapshot(SnapshotDefinition {
        resource: to.clone(),
        name: snapshot.clone(),
        uuid,
        props: Props::new(),
        flags: BTreeSet::new(),
        layers,
        sizes,
        frozen_props: found.props,
        token,
        nodes: [(node, on_node)].into(),
        clone_to: None,
        passphrases,
        uploads: BTreeMap::new(),
        scheduled: None,
        download: Some(download),
    }));
    if download_only {
        let text = format!("nothing but snapshot {snapshot} of {to} is made of the backup");
        edit.note(NoteCode::DownloadOnly, Key::Snapshot(to, snapshot), text);
    }
    Ok(())
}

pub fn abort(edit: &mut Edit<'_>, remote: &RemoteName, which: &Which) -> Result<(), Refusal> {
    if edit.model.remote(remote).is_none() {
        return usable(edit, remote).map(drop);
    }
    let named = |snapshot: &&SnapshotDefinition| {
        which.name.as_ref().is_none_or(|name| *name == snapshot.resource)
            && which.snapshot.as_ref().is_none_or(|name| *name == snapshot.name)
    };
    let all: Vec<SnapshotDefinition> = edit.model.snapshots().filter(named).cloned().collect();
    let mut any = false;
    for mut snapshot in all {
        let before = snapshot.clone();
        let upload =
            snapshot.uploads.get_mut(remote).filter(|u| which.uploads && u.phase.is_active());
        if let Some(upload) = upload {
            upload.phase = given_up(upload.phase);
        }
        let download = snapshot.download.as_mut().filter(|download| {
            which.downloads && download.remote == *remote && download.phase.is_active()
        });
        if let Some(download) = download {
            download.phase = given_up(download.phase);
        }
        if snapshot != before {
            any = true;
            edit.put(Object::Snapshot(snapshot));
        }
    }
    if !any {
        let text = format!("nothing of that is being shipped with remote {remote}");
        edit.note(NoteCode::NothingToDo, Key::Remote(remote.clone()), text);
    }
    start(edit);
    Ok(())
}

/// What waits has not begun anywhere.
const fn given_up(phase: Phase) -> Phase {
    if matches!(phase, Phase::Waiting) { Phase::Aborted } else { Phase::Aborting }
}

/// Takes note that backups are no more.
pub fn forget(edit: &mut Edit<'_>, remote: &RemoteName, backups: &[String]) {
    let gone = |snapshot: &&SnapshotDefinition| {
        snapshot
            .uploads
            .get(remote)
            .is_some_and(|upload| !upload.phase.is_active() && backups.contains(&upload.backup))
    };
    let all: Vec<SnapshotDefinition> = edit.model.snapshots().filter(gone).cloned().collect();
    for mut snapshot in all {
        snapshot.uploads.remove(remote);
        edit.put(Object::Snapshot(snapshot));
    }
    series::forget(edit, remote, backups);
}

// What has become of it.

/// Takes note of what nodes say of what is shipped of a snapshot.
pub fn settle(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    snapshot: &SnapshotName,
) -> Result<(), Refusal> {
    let Some(found) = edit.model.snapshot(name, snapshot).cloned() else { return Ok(()) };
    let mut used = BTreeSet::new();
    for (remote, upload) in found.uploads.iter().filter(|(_, upload)| upload.phase.is_active()) {
        used.insert(remote.clone());
        let (phase, cause) = match &upload.node {
            _ if upload.phase == Phase::Waiting => {
                match found.flags.is_empty() || found.is_successful() {
                    true => continue,
                    false => (Phase::Failed, Some("the snapshot could not be made".to_owned())),
                }
            }
            Some(node) => {
                let there = found.nodes.get(node).is_some_and(|on_node| !on_node.deleting);
                now_at(edit, name, node, upload.token, upload.phase, there)
            }
            None => (Phase::Failed, Some("no node was chosen".to_owned())),
        };
        change(edit, name, snapshot, remote, |upload| {
            upload.phase = phase;
            upload.cause = cause.or(upload.cause.take());
        });
    }
    if found.uploads.values().any(|upload| upload.phase.is_active()) {
        // Another may have its turn.
        start(edit);
    }
    if let Some(download) = found.download.as_ref().filter(|download| download.phase.is_active()) {
        used.insert(download.remote.clone());
        downloaded(edit, &found, download)?;
    }
    used.iter().for_each(|remote| remotes::drop_if_unused(edit, remote));
    Ok(())
}

/// Where something is by what its node says; `there` if the node still has what it is about.
fn now_at(
    edit: &Edit<'_>,
    name: &ResourceName,
    node: &NodeName,
    token: Generation,
    phase: Phase,
    there: bool,
) -> (Phase, Option<String>) {
    let says = edit.observed().shipment(name, node, token);
    let connected = edit.observed().is_connected(node);
    match says {
        _ if edit.model.node(node).is_none() || !there => {
            (Phase::Failed, Some(format!("node {node} was lost, or has lost the snapshot")))
        }
        Some(says) if !says.phase.is_active() => (says.phase, says.cause.clone()),
        // It had not begun, or was started again since.
        None if connected && phase == Phase::Aborting => (Phase::Aborted, None),
        Some(says) if phase != Phase::Aborting => (says.phase, None),
        _ => (phase, None),
    }
}

fn downloaded(
    edit: &mut Edit<'_>,
    found: &SnapshotDefinition,
    download: &Download,
) -> Result<(), Refusal> {
    let (name, snapshot) = (&found.resource, &found.name);
    let there = found.nodes.contains_key(&download.node);
    let (mut phase, cause) =
        now_at(edit, name, &download.node, download.token, download.phase, there);
    let replica = edit.observed().replica(name, &download.node);
    let has = replica.and_then(|replica| replica.snapshots.get(snapshot));
    let has = has.is_some_and(|has| has.token == download.token);
    if has && edit.observed().is_connected(&download.node) {
        // Its agent may have been started again since.
        phase = Phase::Success;
    } else if phase == Phase::Success {
        // It is in the same report.
        phase = Phase::Finishing;
    }
    edit.modify_snapshot(name, snapshot, |snapshot| {
        if let Some(download) = &mut snapshot.download {
            (download.phase, download.cause) = (phase, cause.or(download.cause.take()));
        }
        match phase {
            Phase::Success => drop(snapshot.flags.insert(SnapshotFlag::Successful)),
            Phase::Failed | Phase::Aborted => {
                snapshot.flags.insert(SnapshotFlag::FailedDeployment);
            }
            _ => {}
        }
    });
    if phase == Phase::Success && !download.download_only {
        let (nodes, pools) = ([download.node.clone()], BTreeMap::new());
        let restored = snapshots::restore_resources(edit, name, snapshot, name, &nodes, &pools);
        if let Err(refusal) = restored {
            edit.modify_snapshot(name, snapshot, |snapshot| {
                if let Some(download) = &mut snapshot.download {
                    download.cause = Some(refusal.to_string());
                }
            });
        }
    }
    Ok(())
}
