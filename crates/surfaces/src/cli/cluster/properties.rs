//! Properties of objects, and error reports.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::error::Error;
use super::Session;
use super::args::{Owner, PropertyCommand, ReportCommand};
use super::http::{Change, part};
use super::table::{self, Cell, Row};
use super::view::{Props, Report};
use super::volumes;

pub(super) fn run(session: &mut Session<'_>, command: &PropertyCommand) -> Result<(), Error> {
    match command {
        PropertyCommand::List { object } => {
            let props = read(session, object)?;
            if session.json {
                return table::as_json(session.out, &props);
            }
            let rows: Vec<PropertyRow> =
                props.iter().map(|(key, value)| PropertyRow { key, value }).collect();
            session.list(&rows)
        }
        PropertyCommand::Set { object, properties } => {
            let set: serde_json::Map<String, Value> =
                properties.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
            modify(session, object, json!({ "override_props": set }), "set properties")
        }
        PropertyCommand::Unset { object, keys } => {
            modify(session, object, json!({ "delete_props": keys }), "unset properties")
        }
    }
}

fn path(object: &Owner) -> String {
    match object {
        Owner::Controller => "/v1/controller/properties".to_owned(),
        Owner::Node(node) => format!("/v1/nodes/{}", part(node)),
        Owner::Pool { node, pool } => {
            format!("/v1/nodes/{}/storage-pools/{}", part(node), part(pool))
        }
        Owner::Group(group) => format!("/v1/resource-groups/{}", part(group)),
        Owner::Volume { name, number: None } => volumes::of(name),
        Owner::Volume { name, number: Some(number) } => {
            format!("{}/volume-definitions/{number}", volumes::of(name))
        }
        Owner::Replica { name, node, number } => {
            let number = number.map_or(String::new(), |number| format!("/volumes/{number}"));
            format!("{}/resources/{}{number}", volumes::of(name), part(node))
        }
        Owner::Snapshot { name, snapshot } => {
            format!("{}/snapshots/{}", volumes::of(name), part(snapshot))
        }
    }
}

fn name(object: &Owner) -> String {
    match object {
        Owner::Controller => "controller".to_owned(),
        Owner::Node(node) => format!("node {node}"),
        Owner::Pool { node, pool } => format!("storage pool {pool} of node {node}"),
        Owner::Group(group) => format!("resource group {group}"),
        Owner::Volume { name, number: None } => format!("volume {name}"),
        Owner::Volume { name, number: Some(number) } => format!("volume {name}/{number}"),
        Owner::Replica { name, node, number: None } => format!("replica of {name} on {node}"),
        Owner::Replica { name, node, number: Some(number) } => {
            format!("volume {number} of the replica of {name} on {node}")
        }
        Owner::Snapshot { name, snapshot } => format!("snapshot {snapshot} of {name}"),
    }
}

fn read(session: &Session<'_>, object: &Owner) -> Result<Props, Error> {
    #[derive(Deserialize)]
    struct Owned {
        #[serde(default)]
        props: Props,
    }
    let (what, path) = (name(object), path(object));
    match object {
        // Its properties are all that there is to it.
        Owner::Controller => session.get(&what, &path),
        _ => Ok(session.get::<Owned>(&what, &path)?.props),
    }
}

fn modify(session: &mut Session<'_>, object: &Owner, body: Value, verb: &str) -> Result<(), Error> {
    let path = path(object);
    let change = match object {
        Owner::Controller => Change::Post(path, body),
        _ => Change::Put(path, body),
    };
    session.change(&format!("{}: {verb}", name(object)), &change, None).map(drop)
}

struct PropertyRow<'a> {
    key: &'a str,
    value: &'a str,
}

impl Serialize for PropertyRow<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.key, self.value).serialize(serializer)
    }
}

impl Row for PropertyRow<'_> {
    const COLUMNS: &'static [&'static str] = &["PROPERTY", "VALUE"];
    fn cells(&self) -> Vec<Cell> {
        vec![self.key.into(), self.value.into()]
    }
}

pub(super) fn reports(session: &mut Session<'_>, command: &ReportCommand) -> Result<(), Error> {
    match command {
        ReportCommand::List { on, limit } => {
            let mut path = format!("/v1/error-reports?limit={limit}");
            for node in on {
                path.push_str(&format!("&node={}", part(node)));
            }
            let reports: Vec<Report> = session.get("error reports", &path)?;
            session.list(&reports.iter().map(ReportRow::of).collect::<Vec<_>>())
        }
        ReportCommand::Show { id } => {
            let path = format!("/v1/error-reports/{}", part(id));
            let reports: Vec<Report> = session.get(&format!("error report {id}"), &path)?;
            for report in reports {
                writeln!(session.out, "{}", report.text.trim_end())?;
            }
            Ok(())
        }
    }
}

/// An error report in a list.
#[derive(Serialize)]
struct ReportRow<'a> {
    id: &'a str,
    time_ms: u64,
    node: &'a str,
    message: &'a str,
}

impl<'a> ReportRow<'a> {
    fn of(report: &'a Report) -> ReportRow<'a> {
        ReportRow {
            id: report.id(),
            time_ms: report.error_time,
            node: &report.node_name,
            message: &report.exception_message,
        }
    }
}

impl Row for ReportRow<'_> {
    const COLUMNS: &'static [&'static str] = &["ID", "TIME (UTC)", "NODE", "MESSAGE"];
    fn cells(&self) -> Vec<Cell> {
        let time = table::time(self.time_ms);
        vec![self.id.into(), time.into(), self.node.into(), self.message.into()]
    }
}
