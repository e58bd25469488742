//! Steps that ship snapshots. An agent begins what it is told once and goes on by itself; what is not
//! wanted any more is stopped, whoever began it.

use std::collections::BTreeMap;

use vocab::VolumeNr;

use super::step::Action;
use super::{Ask, Plan};
use crate::layer::Layer;
use crate::model::Model;
use crate::name::*;
use crate::objects::*;
use crate::shipping::{
    Bucket, CLUSTER_ID, Described, DescribedKeys, DescribedVolume, Download, DownloadFrom,
    DownloadOrder, Listen, Peer, Phase, Upload, UploadOrder, UploadTo, origin,
};

/// Adds the steps of everything that is shipped.
pub(super) fn plan(ask: &Ask<'_>, plan: &mut Plan) {
    let name = &ask.definition.name;
    for snapshot in ask.model.snapshots_of(name) {
        for (remote, upload) in &snapshot.uploads {
            if let Some(node) = upload.node.as_ref().filter(|_| is_to_run(upload.phase)) {
                let order = || upload_order(ask, snapshot, remote, upload, node);
                begin(ask, node, upload.token, plan, || Some(Action::Upload(Box::new(order()?))));
            }
        }
        if let Some(download) = snapshot.download.as_ref().filter(|d| is_to_run(d.phase)) {
            let order = || download_order(ask, snapshot, download);
            let action = || Some(Action::Download(Box::new(order()?)));
            begin(ask, &download.node, download.token, plan, action);
        }
    }
    for (node, replica) in ask.observed.replicas(name) {
        for shipment in &replica.shipments {
            let unwanted = shipment.phase.is_active() && !is_wanted(ask, shipment.token);
            if unwanted && ask.observed.is_connected(node) {
                let token = shipment.token;
                plan.push(node, Action::StopShipping { token }, Vec::new());
            }
        }
    }
}

const fn is_to_run(phase: Phase) -> bool {
    matches!(phase, Phase::Shipping | Phase::Finishing)
}

fn is_wanted(ask: &Ask<'_>, token: Generation) -> bool {
    ask.model.snapshots_of(&ask.definition.name).any(|snapshot| {
        let upload = |upload: &Upload| upload.token == token && is_to_run(upload.phase);
        let download = |download: &Download| download.token == token && is_to_run(download.phase);
        snapshot.uploads.values().any(upload) || snapshot.download.as_ref().is_some_and(download)
    })
}

/// Has a node begin what it does not know of.
fn begin(
    ask: &Ask<'_>,
    node: &NodeName,
    token: Generation,
    plan: &mut Plan,
    action: impl FnOnce() -> Option<Action>,
) {
    let name = &ask.definition.name;
    if !ask.observed.is_connected(node) {
        let text =
            format!("node {node} is not connected: what it ships of {name} goes on by itself");
        plan.wait(Some(node), text);
    } else if ask.observed.master.is_none() {
        let text = "what is shipped waits for the master passphrase (`ashlar encryption unlock`)";
        plan.wait(Some(node), text);
    } else if ask.observed.shipment(name, node, token).is_none() {
        if let Some(action) = action() {
            plan.push(node, action, Vec::new());
        }
    }
}

fn bucket(ask: &Ask<'_>, remote: &RemoteName) -> Option<Bucket> {
    ask.model.remote(remote)?.bucket().cloned()
}

fn upload_order(
    ask: &Ask<'_>,
    snapshot: &SnapshotDefinition,
    remote: &RemoteName,
    upload: &Upload,
    node: &NodeName,
) -> Option<UploadOrder> {
    Some(UploadOrder {
        token: upload.token,
        snapshot: snapshot.name.clone(),
        to: match &upload.sending {
            // It is not waited for yet.
            Some(sending) => {
                UploadTo::Peer(Peer { door: sending.door.clone()?, secret: sending.secret.clone() })
            }
            None => UploadTo::Bucket(bucket(ask, remote)?),
        },
        backup: match &upload.sending {
            Some(_) => origin(snapshot, node),
            None => upload.backup.clone(),
        },
        base: upload.base.clone(),
        described: described(ask.model, snapshot, node, upload.since)?,
    })
}

/// What is told of a node's snapshot beside its data.
pub(crate) fn described(
    model: &Model,
    snapshot: &SnapshotDefinition,
    node: &NodeName,
    since: Millis,
) -> Option<Described> {
    let definition = model.definition(&snapshot.resource)?;
    let on_node = snapshot.nodes.get(node)?;
    let volumes = snapshot.sizes.iter().filter_map(|(number, size)| {
        let volume = definition.volumes.get(number);
        let gross = VolumeDefinitionFlag::GrossSize;
        let described = DescribedVolume {
            size: *size,
            gross_size: volume.is_some_and(|volume| volume.flags.contains(&gross)),
            props: volume.map(|volume| volume.props.clone()).unwrap_or_default(),
            pool: on_node.pools.get(number)?.clone(),
        };
        Some((*number, described))
    });
    let cluster = model.controller().props.get(CLUSTER_ID);
    Some(Described {
        since,
        cluster: cluster.cloned().unwrap_or_default(),
        uuid: snapshot.uuid.to_string(),
        layers: snapshot.layers.clone(),
        node_id: on_node.node_id,
        peer_slots: definition.peer_slots,
        props: snapshot.frozen_props.clone(),
        volumes: volumes.collect(),
        keys: match snapshot.layers.contains(&Layer::Luks) {
            true => Some(DescribedKeys {
                master: model.controller().master_key.clone()?,
                passphrases: passphrases(definition, snapshot)?,
            }),
            false => None,
        },
    })
}

/// The passphrases of an encrypted snapshot's volumes.
fn passphrases(
    definition: &Definition,
    snapshot: &SnapshotDefinition,
) -> Option<BTreeMap<VolumeNr, String>> {
    let of = |number: &VolumeNr| {
        let now = || definition.volumes.get(number)?.passphrase.as_ref();
        Some((*number, snapshot.passphrases.get(number).or_else(now)?.clone()))
    };
    snapshot.sizes.keys().map(of).collect()
}

fn download_order(
    ask: &Ask<'_>,
    snapshot: &SnapshotDefinition,
    download: &Download,
) -> Option<DownloadOrder> {
    let on_node = snapshot.nodes.get(&download.node)?;
    let volume = |(number, pool): (&VolumeNr, &PoolName)| {
        let provider = ask.model.pool(&download.node, pool)?.provider;
        let size = download.sizes.get(number)?.0;
        Some((number.0, (pool.clone(), provider, size)))
    };
    Some(DownloadOrder {
        token: download.token,
        snapshot: snapshot.name.clone(),
        from: match &download.receiving {
            Some(receiving) => DownloadFrom::Peer(Listen {
                address: receiving.address,
                ports: receiving.ports,
                secret: receiving.secret.clone(),
                origin: receiving.origin.clone(),
                base: receiving.base.clone(),
            }),
            None => DownloadFrom::Bucket(bucket(ask, &download.remote)?),
        },
        chain: download.chain.clone(),
        volumes: on_node.pools.iter().map(volume).collect::<Option<_>>()?,
        drbd: snapshot.layers.contains(&Layer::Drbd),
        passphrases: match snapshot.layers.contains(&Layer::Luks) {
            true => passphrases(ask.definition, snapshot)?
                .into_iter()
                .map(|(nr, p)| (nr.0, p))
                .collect(),
            false => BTreeMap::new(),
        },
    })
}
