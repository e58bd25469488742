//! Backups of volumes in remotes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use vocab::Bytes;

use super::super::error::Error;
use super::super::secret::Ask;
use super::args::{BackupCommand, RestoreTo};
use super::http::{Change, Http, part, query};
use super::table::{Cell, Row, Tone};
use super::view::Snapshot;
use super::wait::{self, Bar, Progress};
use super::{Session, schedules, settled, table, volumes};

const ORIGIN: Ask = Ask::Known("master passphrase of the cluster that has made it");

pub(super) fn run(session: &mut Session<'_>, command: &BackupCommand) -> Result<(), Error> {
    match command {
        BackupCommand::List { remote, names } => {
            let path = format!("{}{}", of(remote), query("rsc_name", names));
            let found: Listed = session.get(&format!("backups in {remote}"), &path)?;
            let rows: Vec<Backup> = found.linstor.into_values().map(Backup::judged).collect();
            session.list(&rows)
        }
        BackupCommand::Queue => {
            let path = "/v1/view/backup/queue?snap_to_node=true";
            let queues: Queues = session.get("the queue", path)?;
            session.list(&queues.snap_queues)
        }
        BackupCommand::Info { remote, backup, on } => info(session, remote, backup, on.as_deref()),
        BackupCommand::Create { remote, name, snapshot, on, full, wait } => {
            let body = json!({
                "rsc_name": name, "snap_name": snapshot, "node_name": on, "incremental": !full,
            });
            let what = format!("backup of {name} to {remote}");
            session.change(&what, &Change::Post(of(remote), body), None)?;
            if wait.no_wait || session.dry_run {
                return Ok(());
            }
            let newest = newest(&session.http, name, remote)?;
            let key = format!("BackupShipping/Source/{remote}/ShippingStatus");
            follow(session, &what, name, &newest, &key)
        }
        BackupCommand::Ship { remote, name, snapshot, on, to, full, wait } => {
            let body = json!({
                "src_rsc_name": name, "src_snap_name": snapshot, "src_node_name": on,
                "dst_rsc_name": to.to.as_ref().unwrap_or(name), "dst_snap_name": to.to_snapshot,
                "dst_node_name": to.to_node, "dst_net_if_name": to.to_interface,
                "dst_stor_pool": to.to_pool, "stor_pool_rename": renamed(&to.pool)?,
                "dst_rsc_grp": to.group, "download_only": to.snapshot_only,
                "allow_incremental": !full,
            });
            let what = format!("snapshot of {name} to {remote}");
            session.change(&what, &Change::Post(format!("{}/ship", of(remote)), body), None)?;
            if wait.no_wait || session.dry_run {
                return Ok(());
            }
            let newest = newest(&session.http, name, remote)?;
            let key = format!("BackupShipping/Source/{remote}/ShippingStatus");
            follow(session, &what, name, &newest, &key)
        }
        BackupCommand::Restore { remote, backup, name, to, wait } => {
            restore(session, remote, backup, name, to, wait.no_wait)
        }
        BackupCommand::Abort { remote, name, snapshot } => {
            let body = json!({ "rsc_name": name, "snapshot": snapshot });
            let change = Change::Post(format!("{}/abort", of(remote)), body);
            session.change(&format!("backups with {remote}: abort"), &change, None).map(drop)
        }
        BackupCommand::Schedule { command } => schedules::switch(session, command),
        BackupCommand::Delete { remote, backups, cascading } => {
            for id in backups {
                let path = format!("{}?id={}&cascading={cascading}", of(remote), part(id));
                let what = format!("backup {id}: delete");
                session.change(&what, &Change::Delete(path), None)?;
            }
            Ok(())
        }
    }
}

fn of(remote: &str) -> String {
    format!("/v1/remotes/{}/backups", part(remote))
}

/// Pools by the names of those in whose place they are taken.
fn renamed(pairs: &[String]) -> Result<BTreeMap<&str, &str>, Error> {
    let pair = |pair: &'_ String| -> Error {
        let why = "pools are given as OLD=NEW".to_owned();
        Error::Object { object: format!("`{pair}`"), why }
    };
    pairs.iter().map(|text| text.split_once('=').ok_or_else(|| pair(text))).collect()
}

fn snapshots(http: &Http, name: &str) -> Result<Vec<Snapshot>, Error> {
    let path = format!("/v1/view/snapshots{}", query("resources", &[name.to_owned()]));
    http.get(&format!("snapshots of {name}"), &path)
}

/// The snapshot that was asked to be backed up last.
fn newest(http: &Http, name: &str, remote: &str) -> Result<String, Error> {
    let key = format!("BackupShipping/Source/{remote}/BackupStartTimestamp");
    let all = snapshots(http, name)?.into_iter();
    let shipped = all.filter_map(|found| {
        let since = found.props.iter().find(|(known, _)| known.eq_ignore_ascii_case(&key))?.1;
        Some((since.parse::<u64>().ok()?, found.name))
    });
    shipped.max().map(|(_, name)| name).ok_or_else(|| Error::Object {
        object: format!("volume {name}"),
        why: "its snapshot is gone: it could not be taken; see `ashlar error-report list`"
            .to_owned(),
    })
}

/// Waits until a shipment has ended.
fn follow(
    session: &mut Session<'_>,
    what: &str,
    name: &str,
    snapshot: &str,
    key: &str,
) -> Result<(), Error> {
    let failed =
        |why: String| Error::Object { object: format!("snapshot {snapshot} of {name}"), why };
    let done = |http: &Http| {
        let all = snapshots(http, name)?;
        let Some(found) = all.iter().find(|one| one.name.eq_ignore_ascii_case(snapshot)) else {
            return Err(failed("it is gone: it could not be taken".to_owned()));
        };
        let status = found.props.iter().find(|(known, _)| known.eq_ignore_ascii_case(key));
        match status.map(|(_, status)| status.as_str()) {
            Some("Success") => Ok(Progress::Done),
            Some(ended @ ("Failed" | "Aborted")) => {
                let cause = key.replace("ShippingStatus", "Cause");
                let cause =
                    found.props.iter().find(|(known, _)| known.eq_ignore_ascii_case(&cause));
                let cause = cause.map_or_else(String::new, |(_, cause)| format!(": {cause}"));
                Err(failed(format!("shipping it has ended with {ended}{cause}")))
            }
            status => Ok(Progress::going(status.unwrap_or("not begun"), 0.5)),
        }
    };
    let bar = Bar::new(session.look, what);
    wait::until_done(&session.http, &bar, what, &done)
}

fn restore(
    session: &mut Session<'_>,
    remote: &str,
    backup: &str,
    name: &str,
    to: &RestoreTo,
    no_wait: bool,
) -> Result<(), Error> {
    let what = format!("backup {backup}: restore as {name}");
    let pools = renamed(&to.pool)?;
    let mut body = json!({
        "last_backup": backup, "target_rsc_name": name, "node_name": to.on,
        "stor_pool_map": pools, "dst_rsc_grp": to.group, "download_only": to.snapshot_only,
    });
    if to.other_cluster {
        let [origin] = session.passphrases(&what, [ORIGIN])?;
        body["passphrase"] = json!(origin.expose());
    }
    let before: Vec<String> =
        snapshots(&session.http, name)?.into_iter().map(|found| found.name).collect();
    session.change(&what, &Change::Post(format!("{}/restore", of(remote)), body), None)?;
    if no_wait || session.dry_run {
        return Ok(());
    }
    let new = snapshots(&session.http, name)?;
    let new = new.into_iter().map(|found| found.name).find(|found| !before.contains(found));
    let Some(snapshot) = new else { return Ok(()) };
    follow(session, &what, name, &snapshot, "BackupShipping/Target/ShippingStatus")?;
    if to.snapshot_only {
        return Ok(());
    }
    let bar = Bar::new(session.look, &what);
    wait::until_done(&session.http, &bar, &what, &settled(name))?;
    drop(bar);
    volumes::say_where(session, name)
}

/// What a remote has.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Listed {
    linstor: BTreeMap<String, Backup>,
}

/// A backup in a list.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Backup {
    id: String,
    #[serde(rename(deserialize = "origin_rsc"))]
    volume: String,
    #[serde(rename(deserialize = "origin_snap"))]
    snapshot: String,
    #[serde(rename(deserialize = "finished_timestamp"))]
    finished_ms: Option<u64>,
    #[serde(rename(deserialize = "based_on_id"))]
    based_on: Option<String>,
    state: String,
    #[serde(rename(deserialize = "fail_messages"))]
    why: Option<String>,
    #[serde(skip_serializing)]
    restorable: bool,
    #[serde(skip_serializing)]
    shipping: bool,
    #[serde(skip_serializing)]
    success: bool,
}

impl Backup {
    fn judged(self) -> Backup {
        let state = match () {
            () if self.restorable => "complete",
            () if self.shipping => "being uploaded",
            () if self.success => "incomplete",
            () if self.why.is_some() => "foreign",
            () => "unfinished",
        };
        let based_on = self.based_on.as_deref().map(|id| id.trim_end_matches(".meta").to_owned());
        Backup { state: state.to_owned(), based_on, ..self }
    }
}

impl Row for Backup {
    const COLUMNS: &'static [&'static str] =
        &["BACKUP", "VOLUME", "SNAPSHOT", "STATE", "MADE (UTC)", "BUILDS ON"];
    fn cells(&self) -> Vec<Cell> {
        let tone = match self.state.as_str() {
            "complete" => Tone::Good,
            "being uploaded" => Tone::Busy,
            _ => Tone::Bad,
        };
        vec![
            self.id.clone().into(),
            self.volume.clone().into(),
            self.snapshot.clone().into(),
            Cell::toned(&*self.state, tone),
            self.finished_ms.map(table::time).unwrap_or_default().into(),
            self.based_on.clone().unwrap_or_default().into(),
        ]
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Queues {
    snap_queues: Vec<Queued>,
}

/// A backup that waits.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Queued {
    #[serde(rename(deserialize = "resource_name"))]
    volume: String,
    #[serde(rename(deserialize = "snapshot_name"))]
    snapshot: String,
    #[serde(rename(deserialize = "remote_name"))]
    remote: String,
    incremental: bool,
    #[serde(rename(deserialize = "start_timestamp"))]
    since_ms: u64,
}

impl Row for Queued {
    const COLUMNS: &'static [&'static str] = &["VOLUME", "SNAPSHOT", "REMOTE", "SINCE (UTC)"];
    fn cells(&self) -> Vec<Cell> {
        vec![
            self.volume.clone().into(),
            self.snapshot.clone().into(),
            self.remote.clone().into(),
            table::time(self.since_ms).into(),
        ]
    }
}

/// What restoring a backup takes.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Info {
    full: String,
    count: u32,
    dl_size_kib: u64,
    alloc_size_kib: u64,
    storpools: Vec<Value>,
}

fn info(
    session: &mut Session<'_>,
    remote: &str,
    backup: &str,
    on: Option<&str>,
) -> Result<(), Error> {
    let body = json!({ "last_backup": backup, "node_name": on });
    let path = format!("{}/info", of(remote));
    let found: Value = session.http.question(&format!("backup {backup}"), &path, &body)?;
    if session.json {
        return table::as_json(session.out, &found);
    }
    let info: Info = serde_json::from_value(found).unwrap_or_default();
    let size = |kib: u64| Bytes(kib.saturating_mul(1024)).to_string();
    writeln!(
        session.out,
        "backup {backup}: {} to download in {} parts from {} on; {} are taken when it is restored",
        size(info.dl_size_kib),
        info.count,
        info.full,
        size(info.alloc_size_kib)
    )?;
    for pool in &info.storpools {
        let text = |name: &str| pool[name].as_str().unwrap_or_default();
        let left = pool["remaining_space_kib"].as_u64();
        let left =
            left.map_or_else(String::new, |kib| format!("; {} are left there then", size(kib)));
        writeln!(session.out, "  pool {} ({}){left}", text("target_name"), text("provider_kind"))?;
    }
    Ok(())
}
