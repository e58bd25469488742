//! Snapshots that go from cluster to cluster: at the end that ships them, and at the one that gets them
//! (control plane §8.4).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use vocab::VolumeNr;
use vocab::options::Secret;

use super::remotes;
use super::shipping::{self, Target, Way, Wish};
use crate::change::{Key, Object};
use crate::command::{NewReceiving, NewSending};
use crate::edit::Edit;
use crate::name::*;
use crate::objects::*;
use crate::props;
use crate::refusal::{Code, Refusal};
use crate::shipping::*;

#[cfg(test)]
mod tests;

/// Bytes of a secret before it is written in hexadecimal digits.
const SECRET: usize = 32;

/// A remote that is another cluster, and can be used.
pub fn usable(edit: &Edit<'_>, name: &RemoteName) -> Result<(), Refusal> {
    if edit.model.remote(name).is_some_and(|remote| remote.cluster().is_none()) {
        return Err(remotes::no_cluster(name));
    }
    shipping::usable(edit, name).map(drop)
}

// The end that ships.

pub fn ship(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    remote: &RemoteName,
    snapshot: Option<SnapshotName>,
    stamp: String,
    node: Option<NodeName>,
    to: NewSending,
) -> Result<(), Refusal> {
    usable(edit, remote)?;
    super::rollback::refuse_if_busy(edit, name)?;
    let Some(master) = edit.observed().master.as_ref() else { return Ok(()) };
    let mut bytes = [0; SECRET];
    edit.random(&mut bytes);
    let secret = bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    let secret = master.seal(&Secret::from(secret), &mut |bytes| edit.random(bytes));
    let default = SnapshotName::new(&format!("back_{stamp}"))?;
    let here = snapshot.clone().unwrap_or(default);
    let incremental = to.incremental;
    let sending = Sending {
        id: edit.uuid(),
        to: to.to,
        snapshot: to.snapshot.unwrap_or(here),
        node: to.node,
        net_if: to.net_if,
        pool: to.pool,
        pools: to.pools,
        group: to.group,
        download_only: to.download_only,
        incremental,
        secret,
        door: None,
        // Nobody was asked yet.
        closed: true,
    };
    let sending = Some(Box::new(sending));
    let (present, schedule) = (Vec::new(), None);
    let wish = Wish { snapshot, stamp, node, incremental, present, schedule, sending };
    shipping::create(edit, name, remote, wish)
}

/// The other cluster waits for it, or does not take it.
pub fn note_door(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    snapshot: &SnapshotName,
    remote: &RemoteName,
    token: Generation,
    door: Result<(Door, Option<String>), String>,
) {
    let Some(found) = edit.model.snapshot(name, snapshot) else { return };
    let Some(upload) = found.uploads.get(remote) else { return };
    if upload.token != token || upload.call() != Some(CallWhat::Ask) {
        return;
    }
    let base = |called: &String| {
        let node = upload.node.as_ref()?;
        let others = edit.model.snapshots_of(name).filter(|other| other.is_successful());
        let mut held =
            others.filter(|other| other.nodes.get(node).is_some_and(|on_node| !on_node.deleting));
        let base = held.find(|other| origin(other, node) == *called)?;
        Some((base.name.clone(), called.clone()))
    };
    let next = door.and_then(|(door, called)| match called.as_ref().map(base) {
        Some(None) => Err("the snapshot that it was to be compared with is gone".to_owned()),
        base => Ok((door, base.flatten())),
    });
    let failed = next.is_err();
    shipping::change(edit, name, snapshot, remote, |upload| match next {
        Ok((door, base)) => {
            upload.base = base;
            if let Some(sending) = &mut upload.sending {
                sending.door = Some(door);
            }
        }
        Err(cause) => (upload.phase, upload.cause) = (Phase::Failed, Some(cause)),
    });
    if failed {
        // Another may have its turn.
        shipping::start(edit);
    }
}

/// The other cluster does not wait any more, as far as anything can be done about it.
pub fn note_closed(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    snapshot: &SnapshotName,
    remote: &RemoteName,
    token: Generation,
) {
    let found = edit.model.snapshot(name, snapshot);
    let upload = found.and_then(|found| found.uploads.get(remote));
    if upload.is_some_and(|upload| upload.token == token) {
        shipping::change(edit, name, snapshot, remote, |upload| {
            if let Some(sending) = &mut upload.sending {
                sending.closed = true;
            }
        });
        remotes::drop_if_unused(edit, remote);
    }
}

// The end that gets them.

/// The snapshot that a shipment of another cluster is.
fn received<'a>(
    edit: &'a Edit<'_>,
    cluster: &str,
    shipment: &str,
) -> Option<&'a SnapshotDefinition> {
    edit.model.received(cluster, shipment)
}

/// True if the shipment has begun here: who asks again only wants to know how far it is.
pub fn is_known(edit: &Edit<'_>, new: &NewReceiving) -> bool {
    received(edit, &new.cluster, &new.shipment).is_some()
}

pub fn receive(
    edit: &mut Edit<'_>,
    remote: &RemoteName,
    found: Found,
    new: NewReceiving,
) -> Result<(), Refusal> {
    if is_known(edit, &new) {
        return Ok(());
    }
    usable(edit, remote)?;
    super::rollback::refuse_if_busy(edit, &new.to)?;
    let key = Key::Definition(new.to.clone());
    if let (Some(group), Some(there)) = (&new.group, edit.model.definition(&new.to)) {
        if there.group != *group {
            return Err(Refusal::new(Code::InvalidBackup, format!("{key} is not received so"))
                .cause(format!("it is there, in resource group {}", there.group))
                .correction("name that group, or none, or a new resource definition")
                .about(key));
        }
    }
    if !new.download_only && edit.model.resources_of(&new.to).next().is_some() {
        return Err(Refusal::new(Code::ResourceExists, format!("{key} is not received so"))
            .cause("it has resources")
            .correction("ship to a new resource definition, or nothing but the snapshot")
            .about(key));
    }
    let mut pools = new.pools.clone();
    if let Some(pool) = &new.pool {
        for volume in found.volumes.values() {
            pools.entry(volume.pool.clone()).or_insert_with(|| pool.clone());
        }
    }
    let chosen = choose(edit, &found, &new, &pools)?;
    let range = edit.model.controller().props.get(PORTS).map_or(DEFAULT_PORTS, String::as_str);
    let (low, high) = props::range(range)?;
    let port = |port: u32| u16::try_from(port).unwrap_or(u16::MAX);
    let receiving = Receiving {
        cluster: new.cluster,
        shipment: new.shipment,
        origin: new.origin,
        base: chosen.base,
        secret: new.secret,
        address: chosen.address,
        ports: (port(low), port(high)),
    };
    let target = Target {
        snapshot: new.snapshot,
        to: new.to,
        group: new.group,
        node: chosen.node,
        pools,
        download_only: new.download_only,
    };
    shipping::begin(edit, remote, found, target, chosen.placed, Some(Box::new(receiving)))
}

/// Who gets it, and how.
struct Chosen {
    node: NodeName,
    placed: BTreeMap<VolumeNr, PoolName>,
    address: IpAddr,
    base: Option<(SnapshotName, String)>,
}

/// A node that can get it: one that has something to compare it with, or the one with most room.
fn choose(
    edit: &Edit<'_>,
    found: &Found,
    new: &NewReceiving,
    pools: &BTreeMap<PoolName, PoolName>,
) -> Result<Chosen, Refusal> {
    let able = |node: &NodeName| -> Result<Chosen, Refusal> {
        shipping::ships(edit, node, &found.layers, Way::Cluster)?;
        let placed = shipping::places(edit, found, &new.to, node, pools)?;
        let address = address(edit, node, new.net_if.as_ref())?;
        Ok(Chosen { node: node.clone(), placed, address, base: None })
    };
    let candidates: Vec<Chosen> = match &new.node {
        Some(node) => vec![able(node)?],
        None => {
            let holds = |node: &&Node| node.kind.holds_resources();
            let all: Vec<_> =
                edit.model.nodes().filter(holds).map(|node| able(&node.name)).collect();
            let (able, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
            let mut refused = refused.into_iter().filter_map(Result::err);
            match (able.is_empty(), refused.next()) {
                (true, Some(first)) => return Err(first),
                (true, None) => {
                    let key = Key::Definition(new.to.clone());
                    let text = format!("{key} can not be received");
                    return Err(Refusal::new(Code::NotEnoughNodes, text)
                        .cause("the cluster has no node that could get it")
                        .correction("create one")
                        .about(key));
                }
                (false, _) => able.into_iter().filter_map(Result::ok).collect(),
            }
        }
    };
    for base in &new.bases {
        let Some(there) = held(edit, found, new, base) else { continue };
        let same = |chosen: &&Chosen| {
            // A copy of it is in the same pools.
            let on_node = there.nodes.get(&chosen.node);
            on_node.is_some_and(|on_node| !on_node.deleting && on_node.pools == chosen.placed)
        };
        if let Some(chosen) = candidates.iter().find(same) {
            return Ok(Chosen {
                node: chosen.node.clone(),
                placed: chosen.placed.clone(),
                address: chosen.address,
                base: Some((there.name.clone(), base.clone())),
            });
        }
    }
    let room = |chosen: &Chosen| {
        let used: BTreeSet<&PoolName> = chosen.placed.values().collect();
        let free = used.into_iter().map(|pool| edit.observed().pool(&chosen.node, pool));
        free.map(|state| state.map_or(0, |state| state.free.0)).min().unwrap_or(0)
    };
    let best = candidates.into_iter().max_by_key(room);
    best.ok_or_else(|| Refusal::new(Code::NotEnoughNodes, "no node can receive it"))
}

/// The snapshot that was shipped as this before, whole, and of which the new one can be made.
fn held<'a>(
    edit: &'a Edit<'_>,
    found: &Found,
    new: &NewReceiving,
    origin: &str,
) -> Option<&'a SnapshotDefinition> {
    let sizes = || found.volumes.iter().map(|(number, volume)| (*number, volume.size));
    edit.model.snapshots_of(&new.to).find(|there| {
        let receiving = there.download.as_ref().and_then(|download| download.receiving.as_ref());
        let same = receiving.is_some_and(|r| r.cluster == new.cluster && r.origin == origin);
        let complete = there.download.as_ref().is_some_and(|d| d.phase == Phase::Success);
        same && complete
            && there.is_successful()
            && there.layers == found.layers
            && there.sizes.iter().map(|(number, size)| (*number, *size)).eq(sizes())
    })
}

/// Where a node listens: at the address of that interface, or of the one that the controller uses.
fn address(
    edit: &Edit<'_>,
    node: &NodeName,
    net_if: Option<&NetIfName>,
) -> Result<IpAddr, Refusal> {
    let found = edit.node(node)?;
    let key = Key::Node(node.clone());
    let named = match net_if {
        Some(name) => found.net_interfaces.get(name).ok_or_else(|| {
            Refusal::new(Code::UnknownNetIf, format!("{key} can not receive a snapshot"))
                .cause(format!("it has no network interface {name}"))
                .correction("see `ashlar node list`, or name none")
                .about(key.clone())
        })?,
        None => {
            let active = found.props.get("CurStltConnName");
            let active = active.and_then(|name| NetIfName::new(name).ok());
            let active = active.and_then(|name| found.net_interfaces.get(&name));
            active.or_else(|| found.net_interfaces.values().next()).ok_or_else(|| {
                Refusal::new(Code::MissingNetInterface, format!("{key} can not receive a snapshot"))
                    .cause("it has no network interface")
                    .correction("create one")
                    .about(key.clone())
            })?
        }
    };
    Ok(named.address)
}

/// The other cluster has given it up.
pub fn abort_received(edit: &mut Edit<'_>, cluster: &str, shipment: &str) {
    let Some(mut snapshot) = received(edit, cluster, shipment).cloned() else { return };
    let active =
        |download: &&mut Download| download.phase.is_active() && download.phase != Phase::Aborting;
    if let Some(download) = snapshot.download.as_mut().filter(active) {
        download.phase = Phase::Aborting;
        download.cause = Some("the cluster that ships it has given it up".to_owned());
        edit.put(Object::Snapshot(snapshot));
    }
}
