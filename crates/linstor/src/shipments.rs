//! Snapshots that are shipped from cluster to cluster (control plane §8.4): LINSTOR's call that begins it, and the
//! calls of our own by which the controllers of the two speak with each other (`shipping::other`).
//!
//! Nothing is taken from a cluster for which there is no remote with its id, but from this one.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::Method;
use cluster::change::Key;
use cluster::command::{Command, NewReceiving, NewSending};
use cluster::layer::Layer;
use cluster::name::{
    GroupName, NetIfName, NodeName, PoolName, RemoteName, ResourceName, SnapshotName,
};
use cluster::objects::SnapshotDefinition;
use cluster::refusal::{Code, Refusal};
use cluster::shipping::{CLUSTER_ID, Found as FoundBackup, FoundVolume, OtherCluster};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use shipping::other::{Answer as Told, Client, Door, Offer, Trouble, VERSION};
use vocab::options::Secret;
use vocab::{Bytes, NodeId, VolumeNr};

use crate::answer::{Answer, Call, Changed, Entry, Found, Read};
use crate::ask::{App, Asked, Body, Path, unsupported};
use crate::backups::{now, pools, some};
use crate::code::{Kind, Operation, Severity, code, number};
use crate::routes::{Routes, Says};

const OURS: &str = "/v1/ashlar/shipments";

pub fn routes() -> Routes {
    Routes::new()
        .user(Method::POST, "/v1/remotes/{remote}/backups/ship", ship)
        .user(Method::GET, OURS, terms)
        .asks(&["cluster"])
        .says(Says::Json)
        .at_once()
        .user(Method::POST, OURS, receive)
        .says(Says::Json)
        .at_once()
        .user(Method::GET, &format!("{OURS}/{{cluster}}/{{shipment}}"), state)
        .says(Says::Json)
        .at_once()
        .user(Method::DELETE, &format!("{OURS}/{{cluster}}/{{shipment}}"), close)
        .at_once()
}

/// The id of this cluster.
fn own_id(app: &App) -> String {
    app.state().model.controller().props.get(CLUSTER_ID).cloned().unwrap_or_default()
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct Ship {
    src_node_name: Option<String>,
    src_rsc_name: String,
    dst_rsc_name: Option<String>,
    dst_node_name: Option<String>,
    dst_net_if_name: Option<String>,
    dst_stor_pool: Option<String>,
    stor_pool_rename: Option<BTreeMap<String, String>>,
    download_only: bool,
    force_restore: bool,
    allow_incremental: Option<bool>,
    dst_rsc_grp: Option<String>,
    force_mv_rsc_grp: bool,
    src_snap_name: Option<String>,
    dst_snap_name: Option<String>,
}

async fn ship(
    State(app): State<App>,
    Path(remote): Path<String>,
    Body(body): Body<Ship>,
) -> Changed {
    let there = "ship to a new resource definition, or with download_only";
    unsupported(&[
        ("force_restore", body.force_restore, there),
        ("force_mv_rsc_grp", body.force_mv_rsc_grp, there),
    ])?;
    let remote = RemoteName::new(&remote)?;
    let name = ResourceName::new(&body.src_rsc_name)?;
    let to = some(body.dst_rsc_name, ResourceName::new)?;
    let snapshot = some(body.src_snap_name, SnapshotName::new)?;
    let sending = NewSending {
        to: to.unwrap_or_else(|| name.clone()),
        snapshot: some(body.dst_snap_name, SnapshotName::new)?,
        node: some(body.dst_node_name, NodeName::new)?,
        net_if: some(body.dst_net_if_name, NetIfName::new)?,
        pool: some(body.dst_stor_pool, PoolName::new)?,
        pools: pools(body.stor_pool_rename)?,
        group: some(body.dst_rsc_grp, GroupName::new)?,
        download_only: body.download_only,
        incremental: body.allow_incremental.unwrap_or(true),
    };
    let node = some(body.src_node_name, NodeName::new)?;
    let (cluster, client) = open(&app, &remote)?;
    // What can not be is said now, before there is a snapshot.
    let own = own_id(&app);
    let terms = ask(move || client.terms(&own)).await?;
    if let Some(id) = cluster.id.filter(|id| !id.eq_ignore_ascii_case(&terms.cluster_id)) {
        let key = Key::Remote(remote);
        return Err(Refusal::new(Code::InvalidBackup, format!("{key} can not be used"))
            .cause(format!("the cluster at its URL is {}, and not {id}", terms.cluster_id))
            .correction("correct its URL or its cluster id (`ashlar remote modify`)")
            .about(key)
            .into());
    }
    let stamp = now();
    let taken = snapshot.clone().map_or_else(|| format!("back_{stamp}"), |name| name.to_string());
    let said = format!("shipping of snapshot {taken} of {name} to remote {remote} begun");
    let call = Call::new(Operation::Create, Kind::Backup, said).ok();
    let call = call.about("RscDfn", &name).about("Snapshot", &taken).about("Remote", &remote);
    let command = Command::ShipSnapshot { name, remote, snapshot, stamp, node, to: sending };
    Ok(call.run(&app, command).await)
}

/// A remote that is another cluster, and a client of it.
fn open(app: &App, remote: &RemoteName) -> Result<(OtherCluster, Client), Answer> {
    let key = Key::Remote(remote.clone());
    let found = app.state().model.remote(remote).map(|remote| remote.cluster().cloned());
    let refusal = match found {
        Some(Some(cluster)) => {
            let client = app.open_cluster(&cluster)?;
            return Ok((cluster, client));
        }
        Some(None) => Refusal::new(Code::InvalidBackup, format!("{key} is no other cluster"))
            .cause("it is a bucket, in which backups are kept")
            .correction(
                "name a remote that is a cluster, or make backups (`ashlar backup create`)",
            ),
        None => Refusal::new(Code::InvalidRemoteName, format!("{key} does not exist"))
            .cause("no remote has this name")
            .correction("see `ashlar remote list`, or create it first"),
    };
    Err(refusal.about(key).into())
}

/// Calls another cluster, which may take its time.
async fn ask(
    work: impl FnOnce() -> Result<Told, Trouble> + Send + 'static,
) -> Result<Told, Answer> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(told)) => Ok(told),
        Ok(Err(trouble)) => {
            let number = match trouble {
                Trouble::Refused(_) => Code::InvalidBackup.number(),
                Trouble::Unreachable(_) => number::UNSUPPORTED,
            };
            let text = "the other cluster does not take it";
            let (why, next) = (trouble.to_string(), trouble.correction());
            Err(Answer::refused(Kind::Remote, number, text, &why, next))
        }
        Err(_) => Err(crate::controller::Failure::Stopping.into()),
    }
}

// The end that gets it.

/// The remote for a cluster that ships something. This cluster may ship to itself, with any.
fn source(app: &App, cluster: &str, remote: Option<&str>) -> Result<RemoteName, Refusal> {
    let own = own_id(app);
    let state = app.state();
    let of_it = state.model.remotes().find(|remote| {
        let id = remote.cluster().and_then(|cluster| cluster.id.as_deref());
        !remote.deleting && id.is_some_and(|id| id.eq_ignore_ascii_case(cluster))
    });
    let itself = remote.and_then(|name| RemoteName::new(name).ok()).filter(|name| {
        let there = state.model.remote(name).is_some_and(|remote| remote.cluster().is_some());
        there && cluster.eq_ignore_ascii_case(&own)
    });
    itself.or_else(|| of_it.map(|remote| remote.name.clone())).ok_or_else(|| {
        Refusal::new(Code::InvalidBackup, "nothing is taken from that cluster")
            .cause(format!("cluster {own} has no remote with the cluster id {cluster}"))
            .correction(
                "create one there, with the URL and the id of the cluster that ships \
                 (`ashlar remote create NAME --url URL --cluster-id ID`)",
            )
    })
}

/// Refuses as long as secrets can not be kept here.
fn unlocked(app: &App) -> Result<(), Refusal> {
    if app.state().observed.master.is_some() {
        return Ok(());
    }
    Err(Refusal::new(Code::NoMasterKey, "nothing is taken from other clusters")
        .cause("secrets are encrypted, and the master passphrase of this cluster was not entered")
        .correction("enter it there (`ashlar encryption unlock`), or create one"))
}

/// What the other cluster is told.
fn told(app: &App, found: Option<&SnapshotDefinition>) -> Found {
    let state = app.state();
    let download = found.and_then(|found| found.download.as_ref());
    let over = download.is_some_and(|download| !download.phase.is_active());
    let receiving = download.and_then(|download| download.receiving.as_ref());
    let door = found.zip(download).and_then(|(found, download)| {
        let says = state.observed.shipment(&found.resource, &download.node, download.token)?;
        let door = says.door.as_ref()?;
        let (port, fingerprint) = (door.port, door.fingerprint.clone());
        Some(Door { address: door.address.to_string(), port, fingerprint })
    });
    let cause = download.and_then(|download| {
        let word = || format!("it has ended there with {}", download.phase.word());
        over.then(|| download.cause.clone().unwrap_or_else(word))
    });
    let props = &state.model.controller().props;
    Found(json!(Told {
        version: VERSION,
        cluster_id: props.get(CLUSTER_ID).cloned().unwrap_or_default(),
        over,
        cause,
        base: receiving.and_then(|receiving| Some(receiving.base.as_ref()?.1.clone())),
        door,
    }))
}

async fn terms(State(app): State<App>, asked: Asked) -> Read {
    let cluster = asked.all("cluster").first().copied().unwrap_or_default().to_owned();
    if !cluster.eq_ignore_ascii_case(&own_id(&app)) {
        source(&app, &cluster, None)?;
    }
    unlocked(&app)?;
    Ok(told(&app, None))
}

async fn state(State(app): State<App>, Path((cluster, shipment)): Path<(String, String)>) -> Read {
    let found = app.state().model.received(&cluster, &shipment).cloned();
    let Some(found) = found else {
        return Err(Refusal::new(Code::UnknownSnapshot, "there is no such shipment")
            .cause("it was not begun here, or its snapshot was deleted")
            .correction("ship it again")
            .into());
    };
    Ok(told(&app, Some(&found)))
}

async fn receive(State(app): State<App>, Body(body): Body<Value>) -> Read {
    let wrong = |cause: String| {
        Refusal::new(Code::BackupVersion, "the offer of a snapshot is not understood")
            .cause(cause)
            .correction("use releases that follow each other in both clusters")
    };
    let version = body["version"].as_u64();
    if version != Some(u64::from(VERSION)) {
        return Err(wrong(format!("it is of another version than {VERSION}")).into());
    }
    let offer: Offer = serde_json::from_value(body).map_err(|error| wrong(error.to_string()))?;
    let known = |app: &App| app.state().model.received(&offer.cluster_id, &offer.shipment).cloned();
    if let Some(found) = known(&app) {
        return Ok(told(&app, Some(&found)));
    }
    let remote = source(&app, &offer.cluster_id, Some(&offer.remote))?;
    unlocked(&app)?;
    let mut found = found(&offer)?;
    if let Some(keys) = offer.keys.clone() {
        let origin = origin_passphrase(&app, &remote, &offer.cluster_id)?;
        let adopted = app.adopt(keys, origin).await?;
        found.passphrases = adopted.into_iter().map(|(nr, p)| (VolumeNr(nr), p)).collect();
    }
    let Some(secret) = app.seal(&[Secret::from(offer.secret.clone())])?.pop() else {
        return Err(wrong("it has no secret".to_owned()).into());
    };
    let snapshot = NewReceiving {
        cluster: offer.cluster_id.clone(),
        shipment: offer.shipment.clone(),
        origin: offer.origin.clone(),
        bases: offer.bases.clone(),
        secret,
        to: ResourceName::new(&offer.resource)?,
        snapshot: SnapshotName::new(&offer.snapshot)?,
        group: some(offer.group.clone(), GroupName::new)?,
        node: some(offer.node.clone(), NodeName::new)?,
        net_if: some(offer.net_if.clone(), NetIfName::new)?,
        pool: some(offer.pool.clone(), PoolName::new)?,
        pools: pools(Some(offer.pools.clone()))?,
        download_only: offer.download_only,
    };
    app.carry_out(Command::ReceiveSnapshot { remote, found, snapshot }).await?;
    Ok(told(&app, known(&app).as_ref()))
}

/// The master passphrase of the cluster that ships encrypted volumes; none if that is this one.
fn origin_passphrase(
    app: &App,
    remote: &RemoteName,
    cluster: &str,
) -> Result<Option<Secret>, Answer> {
    if cluster.eq_ignore_ascii_case(&own_id(app)) {
        return Ok(None);
    }
    let found = app.state().model.remote(remote).and_then(|remote| remote.cluster().cloned());
    match found.and_then(|cluster| cluster.passphrase) {
        Some(sealed) => Ok(Some(app.unseal(&sealed)?)),
        None => Err(Refusal::new(Code::WrongPassphrase, "its encrypted volumes can not be opened")
            .cause(format!("remote {remote} has no passphrase there, the master passphrase of the cluster that ships"))
            .correction("give it one there (`ashlar remote modify --passphrase`)")
            .about(Key::Remote(remote.clone()))
            .into()),
    }
}

/// What is made of what is offered.
fn found(offer: &Offer) -> Result<FoundBackup, Refusal> {
    let strange = |cause: String| {
        Refusal::new(Code::InvalidBackup, format!("{} is not taken", offer.label))
            .cause(cause)
            .correction("use releases that follow each other in both clusters")
    };
    let layer = |word: &String| {
        Layer::ALL.iter().copied().find(|layer| layer.to_string().eq_ignore_ascii_case(word))
    };
    let layers: Option<Vec<Layer>> = offer.layers.iter().map(layer).collect();
    let layers = layers.ok_or_else(|| strange("it has a layer that is not known".to_owned()))?;
    let encrypted = layers.contains(&Layer::Luks);
    if encrypted != offer.keys.is_some() {
        return Err(strange("it has keys and is not encrypted, or lacks them".to_owned()));
    }
    let node_id = offer
        .node_id
        .map(|id| NodeId::new(id).ok_or_else(|| strange("its DRBD node id is none".to_owned())));
    if offer.volumes.is_empty() {
        return Err(strange("it has no volumes".to_owned()));
    }
    let mut volumes = BTreeMap::new();
    for (number, volume) in &offer.volumes {
        let found = FoundVolume {
            size: Bytes(volume.size),
            gross_size: volume.gross_size,
            props: volume.props.clone(),
            pool: PoolName::new(&volume.pool)?,
            // The node that ships it knows how large it is with everything.
            device: Bytes(volume.size),
        };
        volumes.insert(VolumeNr(*number), found);
    }
    Ok(FoundBackup {
        chain: vec![offer.label.clone()],
        layers,
        node_id: node_id.transpose()?,
        peer_slots: offer.peer_slots.clamp(1, 31),
        props: offer.props.clone(),
        volumes,
        passphrases: BTreeMap::new(),
    })
}

async fn close(
    State(app): State<App>,
    Path((cluster, shipment)): Path<(String, String)>,
) -> Changed {
    app.carry_out(Command::AbortReceived { cluster, shipment }).await?;
    let done = code(Severity::Success, Operation::Delete, Kind::Backup, number::DELETED);
    Ok(Entry::new(done, "what was being received of that is given up").into())
}
