//! Snapshots, and what is made of them.

use serde::Serialize;
use serde_json::json;
use vocab::Bytes;

use super::super::error::Error;
use super::args::SnapshotCommand;
use super::http::{Change, Http, part, query};
use super::table::{self, Cell, Row, Tone};
use super::view::{Snapshot, is_any};
use super::wait::Progress;
use super::{Follow, Session, volumes};

pub(super) fn run(session: &mut Session<'_>, command: &SnapshotCommand) -> Result<(), Error> {
    match command {
        SnapshotCommand::List { names } => {
            let path = format!("/v1/view/snapshots{}", query("resources", names));
            let snapshots: Vec<Snapshot> = session.get("snapshots", &path)?;
            session.list(&snapshots.iter().map(SnapshotRow::of).collect::<Vec<_>>())
        }
        SnapshotCommand::Create { name, snapshot, with } => create(session, name, snapshot, with),
        SnapshotCommand::Restore { name, snapshot, new, group, wait } => {
            restore(session, name, snapshot, new, group.as_deref(), wait.no_wait)
        }
        SnapshotCommand::Rollback { name, snapshot, how } => {
            let path = format!("{}/snapshot-rollback/{}", volumes::of(name), part(snapshot));
            let what = format!("volume {name}: roll back to {snapshot}");
            volumes::changed(session, name, &what, &Change::Post(path, json!({})), how.no_wait)
        }
        SnapshotCommand::Delete { name, snapshot, how } => {
            let change =
                Change::Delete(format!("{}/snapshots/{}", volumes::of(name), part(snapshot)));
            let gone = |http: &Http| {
                let left = find(http, name, snapshot)?;
                Ok(left.map_or(Progress::Done, |left| {
                    Progress::going(&format!("it is still on {}", left.nodes.join(", ")), 0.5)
                }))
            };
            let follow: Follow<'_> = &gone;
            let what = format!("snapshot {snapshot} of {name}: delete");
            session.change(&what, &change, (!how.no_wait).then_some(follow)).map(drop)
        }
    }
}

fn find(http: &Http, name: &str, snapshot: &str) -> Result<Option<Snapshot>, Error> {
    let path = format!("/v1/view/snapshots{}", query("resources", &[name.to_owned()]));
    let all: Vec<Snapshot> = http.get(&format!("snapshots of {name}"), &path)?;
    Ok(all.into_iter().find(|found| found.name.eq_ignore_ascii_case(snapshot)))
}

fn create(
    session: &mut Session<'_>,
    name: &str,
    snapshot: &str,
    with: &[String],
) -> Result<(), Error> {
    let one = |name: &str| json!({ "name": snapshot, "resource_name": name });
    let all: Vec<&str> = std::iter::once(name).chain(with.iter().map(String::as_str)).collect();
    let change = match with.is_empty() {
        true => Change::Post(format!("{}/snapshots", volumes::of(name)), one(name)),
        false => {
            let each: Vec<_> = all.iter().map(|name| one(name)).collect();
            Change::Post("/v1/actions/snapshot/multi".to_owned(), json!({ "snapshots": each }))
        }
    };
    let what = format!("snapshot {snapshot} of {}", all.join(", "));
    let taken = |http: &Http| {
        for name in &all {
            match find(http, name, snapshot)? {
                Some(found) if is_any(&found.flags, &["SUCCESSFUL"]) => {}
                Some(found) if found.flags.is_empty() => {
                    return Ok(Progress::going(&format!("{name} is not taken yet"), 0.5));
                }
                _ => {
                    let why = format!(
                        "it was not taken of {name}: a node went away, or resumed I/O, before \
                         all of it was made; delete it and try again"
                    );
                    return Err(Error::Object { object: format!("snapshot {snapshot}"), why });
                }
            }
        }
        Ok(Progress::Done)
    };
    // A snapshot is of the moment at which it was asked for.
    session.at_once = true;
    session.change(&what, &change, Some(&taken)).map(drop)
}

fn restore(
    session: &mut Session<'_>,
    name: &str,
    snapshot: &str,
    new: &str,
    group: Option<&str>,
    no_wait: bool,
) -> Result<(), Error> {
    let what = format!("snapshot {snapshot} of {name}: restore as {new}");
    if find(&session.http, name, snapshot)?.is_none() {
        let why = "there is no such snapshot; `ashlar snapshot list` names all".to_owned();
        return Err(Error::Object { object: format!("snapshot {snapshot} of {name}"), why });
    }
    let group = match group {
        Some(group) => group.to_owned(),
        None => volumes::definition(&session.http, name)?.resource_group_name,
    };
    let definition = json!({ "name": new, "resource_group_name": group });
    let body = json!({ "resource_definition": definition });
    session.change(&what, &Change::Post("/v1/resource-definitions".to_owned(), body), None)?;
    let to = json!({ "to_resource": new });
    let of =
        |kind: &str| format!("{}/snapshot-restore-{kind}/{}", volumes::of(name), part(snapshot));
    let sizes = Change::Post(of("volume-definition"), to.clone());
    let made = session.change(&what, &sizes, None).and_then(|_| {
        let replicas = Change::Post(of("resource"), to);
        volumes::changed(session, new, &what, &replicas, no_wait)
    });
    match made {
        Ok(()) => volumes::say_where(session, new),
        Err(error @ Error::Denied { .. }) => {
            // Nothing is on a node yet: the name is free again.
            session.change(&what, &Change::Delete(volumes::of(new)), None)?;
            Err(error)
        }
        Err(error) => Err(error),
    }
}

/// A snapshot in a list.
#[derive(Serialize)]
struct SnapshotRow<'a> {
    volume: &'a str,
    snapshot: &'a str,
    state: &'static str,
    taken_ms: Option<u64>,
    sizes_kib: Vec<u64>,
    nodes: &'a [String],
}

impl<'a> SnapshotRow<'a> {
    fn of(snapshot: &'a Snapshot) -> SnapshotRow<'a> {
        let has = |flag| is_any(&snapshot.flags, &[flag]);
        let state = match () {
            () if has("DELETE") => "deleting",
            () if has("SUCCESSFUL") => "complete",
            () if snapshot.flags.is_empty() => "being taken",
            () => "failed",
        };
        SnapshotRow {
            volume: &snapshot.resource_name,
            snapshot: &snapshot.name,
            state,
            taken_ms: snapshot.snapshots.iter().filter_map(|s| s.create_timestamp).min(),
            sizes_kib: snapshot.volume_definitions.iter().map(|v| v.size_kib).collect(),
            nodes: &snapshot.nodes,
        }
    }
}

impl Row for SnapshotRow<'_> {
    const COLUMNS: &'static [&'static str] =
        &["VOLUME", "SNAPSHOT", "STATE", "TAKEN (UTC)", "SIZE", "NODES"];
    fn cells(&self) -> Vec<Cell> {
        let tone = match self.state {
            "complete" => Tone::Good,
            "failed" => Tone::Bad,
            _ => Tone::Busy,
        };
        let taken = self.taken_ms.map(table::time);
        let sizes = self.sizes_kib.iter().map(|kib| Bytes(kib.saturating_mul(1024)).to_string());
        vec![
            self.volume.into(),
            self.snapshot.into(),
            Cell::toned(self.state, tone),
            taken.unwrap_or_default().into(),
            sizes.collect::<Vec<_>>().join(" + ").into(),
            self.nodes.join(" ").into(),
        ]
    }
}
