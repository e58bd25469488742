//! Backups in remotes: what there is, and making, restoring, deleting and giving up (control plane §8.4).
//!
//! What is in a bucket is looked at each time: others may use it, too. What is being shipped is in the
//! wanted state.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use axum::http::Method;
use cluster::change::Key;
use cluster::command::Command;
use cluster::name::{GroupName, NodeName, PoolName, RemoteName, ResourceName, SnapshotName};
use cluster::objects::SnapshotDefinition;
use cluster::refusal::{Code, Refusal};
use cluster::shipping::{Phase, Upload};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use shipping::bucket;
use shipping::catalog::{Backup, Catalog, Missing};
use shipping::description::Description;
use shipping::name::Id;
use shipping::s3::{Client, Error};
use time::OffsetDateTime;
use vocab::VolumeNr;
use vocab::options::Secret;

use crate::answer::{Answer, Call, Changed, Entry, Found, Read, without_empty};
use crate::ask::{App, Asked, Body, Path, unsupported};
use crate::code::{Kind, Operation, Severity, code, number};
use crate::routes::Routes;

mod found;

pub fn routes() -> Routes {
    const B: &str = "/v1/remotes/{remote}/backups";
    Routes::new()
        .get(B, list)
        .asks(&["rsc_name", "snap_name"])
        .user(Method::POST, B, create)
        .user(Method::DELETE, B, delete)
        .asks(&[
            "all",
            "all_local_cluster",
            "cascading",
            "dryrun",
            "id",
            "id_prefix",
            "keep_snaps",
            "node_name",
            "resource_name",
            "s3key",
            "s3key_force",
            "timestamp",
        ])
        .user(Method::POST, &format!("{B}/restore"), restore)
        .user(Method::POST, &format!("{B}/abort"), abort)
        .call(Method::POST, &format!("{B}/info"), crate::access::Role::Read, info)
        .get("/v1/view/backup/queue", queue)
        .asks(&["nodes", "remotes", "resources", "snap_to_node", "snapshots"])
}

/// What a snapshot definition has beside its own properties: how far its shipments are. Clients read it.
pub fn props(snapshot: &SnapshotDefinition) -> BTreeMap<String, String> {
    let mut props = snapshot.props.clone();
    let mut put = |key: String, value: String| drop(props.insert(key, value));
    for (remote, upload) in &snapshot.uploads {
        let key = |name: &str| format!("BackupShipping/Source/{remote}/{name}");
        put(key("BackupTargetRemote"), remote.to_string());
        put(key("ShippingStatus"), upload.phase.word().to_owned());
        put(key("BackupStartTimestamp"), upload.since.0.to_string());
        // Ours.
        if let Some(cause) = &upload.cause {
            put(key("Cause"), cause.clone());
        }
        if let Some((base, _)) = upload.base.as_ref().filter(|_| upload.sending.is_some()) {
            put(key("BasedOn"), base.to_string());
        }
    }
    if let Some(download) = &snapshot.download {
        put("BackupShipping/Target/BackupSrcRemote".to_owned(), download.remote.to_string());
        put("BackupShipping/Target/ShippingStatus".to_owned(), download.phase.word().to_owned());
        if let Some(cause) = &download.cause {
            put("BackupShipping/Target/Cause".to_owned(), cause.clone());
        }
        let base = download.receiving.as_ref().and_then(|receiving| receiving.base.as_ref());
        if let Some((base, _)) = base {
            put("BackupShipping/Target/BasedOn".to_owned(), base.to_string());
        }
    }
    props
}

/// Milliseconds since 1970 as `yyyyMMdd_HHmmss`, UTC.
fn stamp(millis: u64) -> String {
    let seconds = i64::try_from(millis / 1000).unwrap_or_default();
    let at = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, second) = at.to_hms();
    format!("{year:04}{:02}{day:02}_{hour:02}{minute:02}{second:02}", u8::from(month))
}

pub fn now() -> String {
    let seconds = OffsetDateTime::now_utc().unix_timestamp();
    stamp(u64::try_from(seconds).unwrap_or_default() * 1000)
}

/// A client of a remote's bucket.
fn open(app: &App, remote: &RemoteName) -> Result<Client, Answer> {
    let bucket = app.state().model.remote(remote).map(|remote| remote.bucket().cloned());
    let Some(bucket) = bucket else {
        return Err(Refusal::new(
            Code::InvalidRemoteName,
            format!("{} does not exist", Key::Remote(remote.clone())),
        )
        .cause("no remote has this name")
        .correction("see `ashlar remote list`, or create it first")
        .about(Key::Remote(remote.clone()))
        .into());
    };
    let Some(bucket) = bucket else {
        let key = Key::Remote(remote.clone());
        return Err(Refusal::new(Code::InvalidBackup, format!("{key} has no backups"))
            .cause("it is another cluster, and not a bucket")
            .correction("see the snapshots of that cluster")
            .about(key)
            .into());
    };
    Ok(app.open_bucket(&bucket)?)
}

/// Does something in a bucket, which may take its time.
async fn ask<T: Send + 'static>(
    client: Client,
    work: impl FnOnce(&Client) -> Result<T, Error> + Send + 'static,
) -> Result<T, Answer> {
    match tokio::task::spawn_blocking(move || work(&client)).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => {
            let number = match error {
                Error::Place(_) | Error::Denied(_) | Error::NotFound(_) => {
                    Code::InvalidBackup.number()
                }
                _ => number::UNSUPPORTED,
            };
            let text = "the remote's bucket can not be used";
            let next = error.correction();
            Err(Answer::refused(Kind::Remote, number, text, &error.to_string(), next))
        }
        Err(_) => Err(crate::controller::Failure::Stopping.into()),
    }
}

/// The upload that makes, or made, a backup.
fn upload_of(app: &App, remote: &RemoteName, id: &str) -> Option<Upload> {
    let state = app.state();
    let mut uploads = state.model.snapshots().filter_map(|found| found.uploads.get(remote));
    uploads.find(|upload| upload.backup == id).cloned()
}

fn show(backup: &Backup, upload: Option<&Upload>) -> Value {
    let described = backup.description.as_ref().ok();
    let finished = |millis: u64| json!({ "time": stamp(millis), "millis": millis });
    let vlms: Vec<Value> = match described {
        Some(described) => described
            .objects()
            .map(|(number, object)| {
                let at = finished(object.finished_timestamp);
                json!({
                    "vlm_nr": number, "finished_time": at["time"],
                    "finished_timestamp": at["millis"], "s3": { "key": object.name },
                })
            })
            .collect(),
        None => backup
            .archives
            .iter()
            .map(|(number, key)| json!({ "vlm_nr": number, "s3": { "key": key } }))
            .collect(),
    };
    let started = described.map(|described| described.start_timestamp);
    let ended = described.map(|described| described.finish_timestamp);
    let failed = match (&backup.description, upload) {
        (Err(Missing::NotTaken(why)), _) => Some(why.to_string()),
        (_, Some(upload)) => upload.cause.clone(),
        _ => None,
    };
    let mut shown = without_empty(json!({
        "id": backup.id.to_string(),
        "start_time": started.map_or_else(|| backup.id.stamp.clone(), stamp),
        "start_timestamp": started,
        "finished_time": ended.map(stamp),
        "finished_timestamp": ended,
        "origin_rsc": backup.id.resource,
        "origin_snap": backup.id.snapshot_name(),
        "origin_node": described.map(|described| described.node_name.clone()),
        "fail_messages": failed,
        "success": described.is_some(),
        "shipping": upload.is_some_and(|upload| upload.phase.is_active()),
        "restorable": backup.restorable,
        "based_on_id": described.and_then(|described| described.based_on.clone()),
        "s3": described.map(|_| json!({ "meta_name": backup.id.description() })),
    }));
    // It is required, also when there are none.
    shown["vlms"] = Value::Array(vlms);
    shown
}

async fn list(State(app): State<App>, Path(remote): Path<String>, asked: Asked) -> Read {
    let remote = RemoteName::new(&remote)?;
    let client = open(&app, &remote)?;
    let catalog = ask(client, |client| bucket::load(client, "")).await?;
    let mut linstor = serde_json::Map::new();
    for (id, backup) in &catalog.backups {
        let wanted = asked.wants("rsc_name", &backup.id.resource)
            && asked.wants("snap_name", &backup.id.snapshot_name());
        if wanted {
            let upload = upload_of(&app, &remote, id);
            linstor.insert(id.clone(), show(backup, upload.as_ref()));
        }
    }
    Ok(Found(json!({ "linstor": linstor, "other": { "files": catalog.other } })))
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct NewBackup {
    rsc_name: String,
    node_name: Option<String>,
    snap_name: Option<String>,
    incremental: Option<bool>,
    dst_snap_name: Option<String>,
}

pub fn some<T>(
    text: Option<String>,
    new: impl Fn(&str) -> Result<T, Refusal>,
) -> Result<Option<T>, Refusal> {
    text.filter(|text| !text.is_empty()).map(|text| new(&text)).transpose()
}

async fn create(
    State(app): State<App>,
    Path(remote): Path<String>,
    Body(body): Body<NewBackup>,
) -> Changed {
    unsupported(&[(
        "dst_snap_name",
        body.dst_snap_name.is_some_and(|name| !name.is_empty()),
        "it is for remotes that are clusters: `ship`",
    )])?;
    let remote = RemoteName::new(&remote)?;
    let name = ResourceName::new(&body.rsc_name)?;
    let node = some(body.node_name, NodeName::new)?;
    let snapshot = some(body.snap_name, SnapshotName::new)?;
    let client = open(&app, &remote)?;
    let of = name.to_string();
    let present = ask(client, move |client| bucket::present(client, &of)).await?;
    let stamp = now();
    let taken = snapshot.clone().map_or_else(|| format!("back_{stamp}"), |name| name.to_string());
    let said = format!("backup of snapshot {taken} of {name} to remote {remote} begun");
    let call = Call::new(Operation::Create, Kind::Backup, said);
    let call = call.about("RscDfn", &name).about("Snapshot", &taken).about("Remote", &remote);
    let incremental = body.incremental.unwrap_or(true);
    let command =
        Command::CreateBackup { name, remote, snapshot, stamp, node, incremental, present };
    Ok(call.run(&app, command).await)
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct Restore {
    src_rsc_name: Option<String>,
    src_snap_name: Option<String>,
    last_backup: Option<String>,
    stor_pool_map: Option<BTreeMap<String, String>>,
    target_rsc_name: Option<String>,
    passphrase: Option<String>,
    node_name: Option<String>,
    download_only: bool,
    force_restore: bool,
    dst_rsc_grp: Option<String>,
    force_mv_rsc_grp: bool,
}

pub fn pools(
    map: Option<BTreeMap<String, String>>,
) -> Result<BTreeMap<PoolName, PoolName>, Refusal> {
    let map = map.unwrap_or_default().into_iter();
    map.map(|(from, to)| Ok((PoolName::new(&from)?, PoolName::new(&to)?))).collect()
}

/// The backup that is asked for: of that id, or the newest one.
fn chosen<'a>(
    catalog: &'a Catalog,
    resource: Option<&str>,
    snapshot: Option<&str>,
    id: Option<&str>,
) -> Result<&'a Backup, Refusal> {
    let id = id.map(|id| id.strip_suffix(".meta").unwrap_or(id)).filter(|id| !id.is_empty());
    let found = match (id, resource) {
        (Some(id), _) => catalog.backups.get(id),
        (None, Some(resource)) => catalog.newest(resource, snapshot.filter(|s| !s.is_empty())),
        (None, None) => None,
    };
    let what = id.or(resource).unwrap_or_default();
    let Some(found) = found else {
        return Err(Refusal::new(Code::UnknownBackup, format!("there is no backup {what:?}"))
            .cause("no backup that can be restored is called so, or is of that")
            .correction("see `ashlar backup list`"));
    };
    if let Err(Missing::NotTaken(why)) = &found.description {
        return Err(Refusal::new(Code::BackupVersion, format!("backup {what:?} can not be used"))
            .cause(why.to_string())
            .correction("restore it with the program that has made it"));
    }
    if !found.restorable {
        let text = format!("backup {what:?} can not be used");
        return Err(Refusal::new(Code::InvalidBackup, text)
            .cause("something of it is missing, or of what it builds on")
            .correction("restore another one; see `ashlar backup list`"));
    }
    Ok(found)
}

/// Of which a backup's objects are named, as far as the request says.
fn prefix(resource: Option<&str>, id: Option<&str>) -> String {
    let of_id = id.and_then(|id| Id::parse(id.strip_suffix(".meta").unwrap_or(id)));
    let resource = of_id.map(|id| id.resource).or(resource.map(str::to_owned));
    resource.map(|resource| format!("{resource}_")).unwrap_or_default()
}

async fn restore(
    State(app): State<App>,
    Path(remote): Path<String>,
    Body(body): Body<Restore>,
) -> Changed {
    unsupported(&[
        ("force_restore", body.force_restore, "restore to a new resource definition"),
        ("force_mv_rsc_grp", body.force_mv_rsc_grp, "restore to a new resource definition"),
    ])?;
    let remote = RemoteName::new(&remote)?;
    let node = NodeName::new(&body.node_name.unwrap_or_default())?;
    let to = some(body.target_rsc_name, ResourceName::new)?;
    let group = some(body.dst_rsc_grp, GroupName::new)?;
    let pools = pools(body.stor_pool_map)?;
    let client = open(&app, &remote)?;
    let (resource, id) = (body.src_rsc_name, body.last_backup);
    let prefix = prefix(resource.as_deref(), id.as_deref());
    let catalog = ask(client, move |client| bucket::load(client, &prefix)).await?;
    let snapshot = body.src_snap_name.as_deref();
    let backup = chosen(&catalog, resource.as_deref(), snapshot, id.as_deref())?;
    let mut found = found::of(&catalog, backup)?;
    let origin = body.passphrase.filter(|passphrase| !passphrase.is_empty());
    match backup.description.as_ref().ok().and_then(|d| d.luks_info.clone()) {
        Some(keys) => {
            let adopted = app.adopt(keys, origin.map(Secret::from)).await?;
            found.passphrases = adopted.into_iter().map(|(nr, p)| (VolumeNr(nr), p)).collect();
        }
        None => {
            let why = "the backup is not encrypted: leave the passphrase out";
            unsupported(&[("passphrase", origin.is_some(), why)])?;
        }
    }
    let to = match to {
        Some(to) => to,
        None => ResourceName::new(&backup.id.resource)?,
    };
    let snapshot = SnapshotName::new(&backup.id.snapshot_name())?;
    let said = format!("restore of backup {} to {to} on node {node} begun", backup.id);
    let call = Call::new(Operation::Create, Kind::Backup, said);
    let call = call.about("RscDfn", &to).about("Snapshot", &snapshot).about("Node", &node);
    let download_only = body.download_only;
    let command =
        Command::RestoreBackup { remote, found, snapshot, to, group, node, pools, download_only };
    Ok(call.run(&app, command).await)
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct Abort {
    rsc_name: Option<String>,
    snapshot: Option<String>,
    snap_name: Option<String>,
    restore: bool,
    create: bool,
}

async fn abort(
    State(app): State<App>,
    Path(remote): Path<String>,
    Body(body): Body<Abort>,
) -> Changed {
    let remote = RemoteName::new(&remote)?;
    let name = some(body.rsc_name, ResourceName::new)?;
    let snapshot = some(body.snapshot.or(body.snap_name), SnapshotName::new)?;
    let both = !body.restore && !body.create;
    let said = format!("what is shipped with remote {remote} is given up");
    let call = Call::new(Operation::Modify, Kind::Backup, said).about("Remote", &remote);
    let (uploads, downloads) = (body.create || both, body.restore || both);
    let command = Command::AbortBackups { remote, name, snapshot, uploads, downloads };
    Ok(call.run(&app, command).await)
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct Info {
    src_rsc_name: Option<String>,
    src_snap_name: Option<String>,
    last_backup: Option<String>,
    stor_pool_map: Option<BTreeMap<String, String>>,
    node_name: Option<String>,
}

async fn info(State(app): State<App>, Path(remote): Path<String>, Body(body): Body<Info>) -> Read {
    let remote = RemoteName::new(&remote)?;
    let node = some(body.node_name, NodeName::new)?;
    let pools = pools(body.stor_pool_map)?;
    let client = open(&app, &remote)?;
    let (resource, id) = (body.src_rsc_name, body.last_backup);
    let prefix = prefix(resource.as_deref(), id.as_deref());
    let catalog = ask(client, move |client| bucket::load(client, &prefix)).await?;
    let snapshot = body.src_snap_name.as_deref();
    let backup = chosen(&catalog, resource.as_deref(), snapshot, id.as_deref())?;
    let shown = found::info(&catalog, backup, &pools, |pool| {
        let state = app.state();
        let free = state.observed.pool(node.as_ref()?, pool)?.free;
        Some(free.0 / 1024)
    });
    Ok(Found(shown))
}

/// What is to be deleted, from most to least: those that build on others first.
fn selected(catalog: &Catalog, asked: &Asked, cluster: &str) -> Result<BTreeSet<String>, Refusal> {
    let first = |name: &str| asked.all(name).first().copied().map(str::to_owned);
    let refuse = |cause: &str| {
        Err(Refusal::new(Code::InvalidBackup, "no backup is deleted")
            .cause(cause)
            .correction("name an id, or what the backups have in common"))
    };
    if let Some(id) = first("id") {
        let id = id.strip_suffix(".meta").unwrap_or(&id).to_owned();
        return Ok([id].into());
    }
    let before = first("timestamp");
    let criteria = ["id_prefix", "resource_name", "node_name", "timestamp"];
    let any = criteria.iter().any(|name| first(name).is_some());
    if !any && !asked.flag("all") && !asked.flag("all_local_cluster") {
        return refuse("nothing says which ones are meant");
    }
    let described = |backup: &Backup| -> Option<Description> { backup.description.clone().ok() };
    let wanted = |backup: &&Backup| {
        // What others have made is theirs, and what is being made is not done.
        let Some(description) = described(backup) else { return false };
        (asked.flag("all") || description.cluster_id == cluster || first("resource_name").is_some())
            && first("id_prefix").is_none_or(|p| backup.id.to_string().starts_with(&p))
            && asked.wants("resource_name", &backup.id.resource)
            && asked.wants("node_name", &description.node_name)
            && before.as_ref().is_none_or(|before| backup.id.stamp < *before)
    };
    let all = catalog.backups.values().filter(wanted);
    Ok(all.map(|backup| backup.id.to_string()).collect())
}

async fn delete(State(app): State<App>, Path(remote): Path<String>, asked: Asked) -> Changed {
    let remote = RemoteName::new(&remote)?;
    let client = open(&app, &remote)?;
    let keys: Vec<String> =
        ["s3key", "s3key_force"].iter().flat_map(|n| asked.all(n)).map(str::to_owned).collect();
    let catalog = ask(open(&app, &remote)?, |client| bucket::load(client, "")).await?;
    let entry = |severity, text: String| {
        let number = if severity == Severity::Warning { number::ABSENT } else { number::DELETED };
        Entry::new(code(severity, Operation::Delete, Kind::Backup, number), text)
    };
    if !keys.is_empty() {
        return delete_keys(&app, &remote, client, &catalog, &asked, keys).await;
    }
    let cluster = app.state().model.controller().props.get("Cluster/LocalID").cloned();
    let mut ids = selected(&catalog, &asked, &cluster.unwrap_or_default())?;
    let mut entries = Vec::new();
    for id in ids.clone() {
        if !catalog.backups.contains_key(&id) {
            entries.push(entry(Severity::Warning, format!("there is no backup {id}")));
            ids.remove(&id);
            continue;
        }
        let busy = upload_of(&app, &remote, &id).is_some_and(|upload| upload.phase.is_active());
        if busy {
            return Err(Refusal::new(Code::InUse, format!("backup {id} can not be deleted"))
                .cause("it is being made")
                .correction("wait until that is done, or abort it (`ashlar backup abort`)")
                .into());
        }
        let others = catalog.dependants(&id);
        let left: Vec<&String> = others.difference(&ids).collect();
        if !left.is_empty() && !asked.flag("cascading") {
            let text = format!("backup {id} can not be deleted");
            let names: Vec<&str> = left.iter().map(|name| name.as_str()).collect();
            return Err(Refusal::new(Code::DependentBackup, text)
                .cause(format!("others build on it: {}", names.join(", ")))
                .correction("delete them with it (cascading), or before it")
                .into());
        }
        ids.extend(others);
    }
    let dry = crate::foretell::is_asked();
    for id in &ids {
        let said = if dry { "would be deleted" } else { "deleted" };
        entries.push(entry(Severity::Success, format!("backup {id} {said}")));
    }
    if entries.is_empty() {
        entries.push(entry(Severity::Warning, "no backup is like that".to_owned()));
    }
    if !dry && !ids.is_empty() {
        let gone = ids.clone();
        ask(client, move |client| bucket::delete(client, &catalog, &gone)).await?;
        let backups = ids.into_iter().collect();
        app.carry_out(Command::ForgetBackups { remote, backups }).await?;
    }
    Ok(Answer { success: axum::http::StatusCode::OK, entries })
}

/// Deletes objects by their names: only by force such as belong to a backup.
async fn delete_keys(
    app: &App,
    remote: &RemoteName,
    client: Client,
    catalog: &Catalog,
    asked: &Asked,
    keys: Vec<String>,
) -> Changed {
    let forced = asked.all("s3key_force");
    let mut broken = BTreeSet::new();
    for key in &keys {
        let of = catalog.backups.keys().filter(|id| catalog.objects_of(id).contains(key));
        let of: Vec<String> = of.cloned().collect();
        if let Some(id) = of.first().filter(|_| !forced.contains(&key.as_str())) {
            let text = format!("object {key} is not deleted");
            return Err(Refusal::new(Code::InUse, text)
                .cause(format!("it is a part of backup {id}"))
                .correction("delete the backup, or give the name as s3key_force")
                .into());
        }
        broken.extend(of);
    }
    let dry = crate::foretell::is_asked();
    let said = if dry { "would be deleted" } else { "deleted" };
    let success = code(Severity::Success, Operation::Delete, Kind::Backup, number::DELETED);
    let entries =
        keys.iter().map(|key| Entry::new(success, format!("object {key} {said}"))).collect();
    if !dry {
        ask(client, move |client| keys.iter().try_for_each(|key| client.delete(key))).await?;
        let (remote, backups) = (remote.clone(), broken.into_iter().collect());
        app.carry_out(Command::ForgetBackups { remote, backups }).await?;
    }
    Ok(Answer { success: axum::http::StatusCode::OK, entries })
}

async fn queue(State(app): State<App>, asked: Asked) -> Found {
    let state = app.state();
    let mut by_node: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut by_snapshot: Vec<Value> = Vec::new();
    for snapshot in state.model.snapshots() {
        let waiting = |upload: &&Upload| upload.phase == Phase::Waiting;
        for (remote, upload) in &snapshot.uploads {
            let wanted = asked.wants("remotes", remote.as_str())
                && asked.wants("resources", snapshot.resource.as_str())
                && asked.wants("snapshots", snapshot.name.as_str());
            if !wanted || !waiting(&upload) {
                continue;
            }
            let mut shown = without_empty(json!({
                "resource_name": snapshot.resource.as_str(),
                "snapshot_name": snapshot.name.as_str(),
                "remote_name": remote.as_str(),
                "incremental": upload.base.is_some(),
                "based_on": upload.base.as_ref().map(|(_, backup)| backup.clone()),
                "start_timestamp": upload.since.0,
            }));
            let node = upload.node.as_ref().map_or_else(String::new, ToString::to_string);
            shown["pref_node"] = Value::String(node.clone());
            let nodes: Vec<&NodeName> = match &upload.node {
                Some(node) => vec![node],
                None => snapshot.nodes.keys().collect(),
            };
            let nodes = nodes.into_iter().filter(|node| asked.wants("nodes", node.as_str()));
            let nodes: Vec<String> = nodes.map(ToString::to_string).collect();
            for node in &nodes {
                by_node.entry(node.clone()).or_default().push(shown.clone());
            }
            let on = nodes.iter().map(|node| json!({ "node_name": node })).collect();
            shown["queue"] = Value::Array(on);
            by_snapshot.push(shown);
        }
    }
    let nodes =
        by_node.into_iter().map(|(node, queue)| json!({ "node_name": node, "queue": queue }));
    Found(match asked.flag("snap_to_node") {
        true => json!({ "snap_queues": by_snapshot }),
        false => json!({ "node_queues": nodes.collect::<Vec<_>>() }),
    })
}
