//! Volumes and their replicas.

use serde::Serialize;
use serde_json::{Value, json};
use vocab::Bytes;

use super::super::each::EachInTurn;
use super::super::error::Error;
use super::args::{VolumeCommand, VolumeName};
use super::groups::{self, Spawn};
use super::http::{Change, Http, part, query};
use super::table::{Cell, Row, Tone};
use super::view::{Definition, Health, Resource, health, is_any};
use super::wait::Progress;
use super::{Follow, Session, encryption, resources_of, settled, why};

pub(super) fn run(session: &mut Session<'_>, command: &VolumeCommand) -> Result<(), Error> {
    match command {
        VolumeCommand::List { names } => list(session, names),
        VolumeCommand::Info { name } => {
            definition(&session.http, name)?;
            let resources = resources_of(&session.http, name)?;
            let rows: Vec<ReplicaRow> = resources.iter().flat_map(ReplicaRow::of).collect();
            session.list(&rows)
        }
        VolumeCommand::Why { name } => why::run(session, name),
        VolumeCommand::Create {
            name,
            sizes,
            group,
            placement,
            definition_only,
            encrypted,
            how,
        } => {
            let (definition_only, encrypted) = (*definition_only, *encrypted);
            let new = Spawn { group, volume: name, sizes, definition_only, encrypted };
            groups::spawn(session, &new, &placement.filter(), how.no_wait)
        }
        VolumeCommand::Resize { volume, size, how } => resize(session, volume, *size, how.no_wait),
        VolumeCommand::Delete { names, how } => session.all(names, |session, name| {
            let change = Change::Delete(of(name));
            let gone = |http: &Http| is_gone(http, name);
            let follow: Follow<'_> = &gone;
            let what = format!("volume {name}: delete");
            session.change(&what, &change, (!how.no_wait).then_some(follow)).map(drop)
        }),
        VolumeCommand::Place { name, on, more, diskless, placement, how } => {
            if !on.is_empty() {
                return place_on(session, name, on, *diskless, &placement.pool, how.no_wait);
            }
            let mut filter = placement.filter();
            if let Some(more) = more {
                filter["additional_place_count"] = json!(more);
            }
            autoplace(session, name, filter, how.no_wait)?;
            say_where(session, name)
        }
        VolumeCommand::Unplace { name, from, how } => {
            let change = Change::Delete(on_node(name, from));
            let left = |http: &Http| has_left(http, name, from);
            let follow: Follow<'_> = &left;
            let what = format!("volume {name}: unplace from {from}");
            session.change(&what, &change, (!how.no_wait).then_some(follow)).map(drop)
        }
        VolumeCommand::ToggleDisk { name, on, diskless, pool, how } => {
            let tail = match (diskless, pool) {
                (true, _) => "diskless".to_owned(),
                (false, None) => "diskful".to_owned(),
                (false, Some(pool)) => format!("diskful/{}", part(pool)),
            };
            let path = format!("{}/toggle-disk/{tail}", on_node(name, on));
            let what = format!("volume {name}: toggle the disk of {on}");
            changed(session, name, &what, &Change::Put(path, json!({})), how.no_wait)
        }
        VolumeCommand::Migrate { name, from, to, pool, how } => {
            let pool = pool.as_ref().map_or(String::new(), |pool| format!("/{}", part(pool)));
            let path = format!("{}/migrate-disk/{}{pool}", on_node(name, to), part(from));
            let moved = |http: &Http| has_moved(http, name, from);
            let follow: Follow<'_> = &moved;
            let what = format!("volume {name}: migrate from {from} to {to}");
            let change = Change::Put(path, json!({}));
            session.change(&what, &change, (!how.no_wait).then_some(follow)).map(drop)
        }
        VolumeCommand::MakeAvailable { name, on, diskful, how } => {
            let path = format!("{}/make-available", on_node(name, on));
            let what = format!("volume {name}: make available on {on}");
            let change = Change::Post(path, json!({ "diskful": diskful }));
            changed(session, name, &what, &change, how.no_wait)
        }
        VolumeCommand::Deactivate { name, on, how } => {
            activity(session, name, on, "deactivate", how.no_wait)
        }
        VolumeCommand::Activate { name, on, how } => {
            activity(session, name, on, "activate", how.no_wait)
        }
        VolumeCommand::Passphrase { volume, how } => {
            encryption::change_volume(session, volume, how.no_wait)
        }
        VolumeCommand::Adjust { names, how } => {
            session.all(names, |session, name| autoplace(session, name, json!({}), how.no_wait))
        }
    }
}

/// The path of a volume.
pub(super) fn of(name: &str) -> String {
    format!("/v1/resource-definitions/{}", part(name))
}

fn on_node(name: &str, node: &str) -> String {
    format!("{}/resources/{}", of(name), part(node))
}

pub(super) fn definition(http: &Http, name: &str) -> Result<Definition, Error> {
    let path = format!("{}?with_volume_definitions=true", of(name));
    http.get(&format!("volume {name}"), &path)
}

/// Changes a volume, and waits until it is as it is wanted.
pub(super) fn changed(
    session: &mut Session<'_>,
    name: &str,
    what: &str,
    change: &Change,
    no_wait: bool,
) -> Result<(), Error> {
    let settled = settled(name);
    let follow: Follow<'_> = &settled;
    session.change(what, change, (!no_wait).then_some(follow)).map(drop)
}

/// Takes a volume down on a node, or brings it up.
fn activity(
    session: &mut Session<'_>,
    name: &str,
    on: &str,
    verb: &str,
    no_wait: bool,
) -> Result<(), Error> {
    let what = format!("volume {name}: {verb} on {on}");
    let change = Change::Post(format!("{}/{verb}", on_node(name, on)), json!({}));
    changed(session, name, &what, &change, no_wait)
}

fn autoplace(
    session: &mut Session<'_>,
    name: &str,
    filter: Value,
    no_wait: bool,
) -> Result<(), Error> {
    let change =
        Change::Post(format!("{}/autoplace", of(name)), json!({ "select_filter": filter }));
    changed(session, name, &format!("volume {name}: place"), &change, no_wait)
}

fn place_on(
    session: &mut Session<'_>,
    name: &str,
    on: &[String],
    diskless: bool,
    pool: &[String],
    no_wait: bool,
) -> Result<(), Error> {
    let what = format!("volume {name}: place");
    if pool.len() > 1 {
        let why = "a replica on a named node is in one pool; name one".to_owned();
        return Err(Error::Object { object: what, why });
    }
    let flags: &[&str] = if diskless { &["DISKLESS"] } else { &[] };
    let props = pool.first().map_or(json!({}), |pool| json!({ "StorPoolName": pool }));
    let one = |node| json!({ "resource": { "node_name": node, "flags": flags, "props": props } });
    let body = Value::Array(on.iter().map(one).collect());
    let change = Change::Post(format!("{}/resources", of(name)), body);
    changed(session, name, &what, &change, no_wait)?;
    say_where(session, name)
}

fn resize(
    session: &mut Session<'_>,
    volume: &VolumeName,
    size: u64,
    no_wait: bool,
) -> Result<(), Error> {
    let VolumeName { name, number } = volume;
    let path = format!("{}/volume-definitions/{number}", of(name));
    let change = Change::Put(path, json!({ "size_kib": size / 1024 }));
    let grown = |http: &Http| {
        let growing =
            |d: &Definition| d.volume_definitions.iter().any(|v| is_any(&v.flags, &["RESIZE"]));
        match growing(&definition(http, name)?) {
            true => Ok(Progress::going("it has not grown on every node", 0.5)),
            false => settled(name)(http),
        }
    };
    let follow: Follow<'_> = &grown;
    let what = format!("volume {name}/{number}: resize to {}", Bytes(size));
    session.change(&what, &change, (!no_wait).then_some(follow)).map(drop)
}

fn is_gone(http: &Http, name: &str) -> Result<Progress, Error> {
    let names = [name.to_owned()];
    let path = format!("/v1/resource-definitions{}", query("resource_definitions", &names));
    let left: Vec<Definition> = http.get(name, &path)?;
    if left.is_empty() {
        return Ok(Progress::Done);
    }
    let nodes: Vec<String> = resources_of(http, name)?.into_iter().map(|r| r.node_name).collect();
    Ok(match nodes.is_empty() {
        true => Progress::going("its record is still there", 0.9),
        false => Progress::going(&format!("it is still on {}", nodes.join(", ")), 0.5),
    })
}

fn has_left(http: &Http, name: &str, node: &str) -> Result<Progress, Error> {
    let resources = resources_of(http, name)?;
    let own = resources.iter().find(|resource| resource.node_name.eq_ignore_ascii_case(node));
    // It may stay, as the tie-breaker.
    match own {
        Some(own) if own.is_leaving() || own.is_changing() => {
            Ok(Progress::going(&format!("it is still on {node}"), 0.5))
        }
        _ => Ok(Progress::Done),
    }
}

fn has_moved(http: &Http, name: &str, from: &str) -> Result<Progress, Error> {
    let resources = resources_of(http, name)?;
    let old = resources.iter().find(|resource| resource.node_name.eq_ignore_ascii_case(from));
    match super::view::settled(&resources, false) {
        Progress::Done if old.is_some_and(Resource::is_replica) => {
            Ok(Progress::going(&format!("it is still on {from}"), 0.9))
        }
        progress => Ok(progress),
    }
}

/// Says where a volume is, after a change.
pub(super) fn say_where(session: &mut Session<'_>, name: &str) -> Result<(), Error> {
    if session.dry_run {
        return Ok(());
    }
    let definition = definition(&session.http, name)?;
    let resources = resources_of(&session.http, name)?;
    let of: Vec<&Resource> = resources.iter().collect();
    let sizes = definition.volume_definitions.iter();
    let sizes: Vec<String> =
        sizes.map(|v| Bytes(v.size_kib.saturating_mul(1024)).to_string()).collect();
    let (state, _) = health(&definition, &of);
    let names = |wanted: &dyn Fn(&Resource) -> bool| {
        let found = resources.iter().filter(|resource| wanted(resource));
        found.map(|resource| resource.node_name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let on = names(&Resource::is_replica);
    let on = if on.is_empty() { String::new() } else { format!(" on {on}") };
    let others = names(&|resource| !resource.is_replica());
    let others = if others.is_empty() { others } else { format!("; without a disk on {others}") };
    let sizes = sizes.join(" + ");
    writeln!(session.out, "volume {}: {sizes}, {state}{on}{others}", definition.name)?;
    Ok(())
}

fn list(session: &mut Session<'_>, names: &[String]) -> Result<(), Error> {
    let named = query("resource_definitions", names);
    let joint = if named.is_empty() { "?" } else { "&" };
    let path = format!("/v1/resource-definitions{named}{joint}with_volume_definitions=true");
    let definitions: Vec<Definition> = session.get("volumes", &path)?;
    let path = format!("/v1/view/resources{}", query("resources", names));
    let resources: Vec<Resource> = session.get("replicas", &path)?;
    let mut of = std::collections::BTreeMap::<&str, Vec<&Resource>>::new();
    for resource in &resources {
        of.entry(&resource.name).or_default().push(resource);
    }
    let mut rows = Vec::new();
    for definition in &definitions {
        let own = of.get(definition.name.as_str()).map_or(&[][..], Vec::as_slice);
        rows.extend(VolumeRow::of(definition, own));
    }
    session.list(&rows)?;
    let known = |name: &&String| definitions.iter().any(|d| d.name.eq_ignore_ascii_case(name));
    let missing: Vec<&String> = names.iter().filter(|name| !known(name)).collect();
    session.all(missing, |_, name| {
        let why = "there is no such volume; `ashlar volume list` names all".to_owned();
        Err(Error::Object { object: format!("volume {name}"), why })
    })
}

/// A volume in a list.
#[derive(Serialize)]
struct VolumeRow<'a> {
    volume: &'a str,
    number: u16,
    size_kib: u64,
    group: &'a str,
    state: String,
    replicas: Vec<&'a str>,
    diskless: Vec<&'a str>,
    in_use_on: Vec<&'a str>,
    #[serde(skip)]
    health: Health,
    #[serde(skip)]
    single: bool,
}

impl<'a> VolumeRow<'a> {
    /// One for each volume of the definition.
    fn of(definition: &'a Definition, resources: &[&'a Resource]) -> Vec<VolumeRow<'a>> {
        let (state, health) = health(definition, resources);
        let names = |wanted: &dyn Fn(&Resource) -> bool| {
            let found = resources.iter().filter(|resource| wanted(resource));
            found.map(|resource| resource.node_name.as_str()).collect::<Vec<_>>()
        };
        let volumes = &definition.volume_definitions;
        let row = |volume: &super::view::VolumeDefinition| VolumeRow {
            volume: &definition.name,
            number: volume.volume_number,
            size_kib: volume.size_kib,
            group: &definition.resource_group_name,
            state: state.clone(),
            replicas: names(&Resource::is_replica),
            diskless: names(&|resource| !resource.is_replica()),
            in_use_on: names(&Resource::is_in_use),
            health,
            single: volumes.len() == 1,
        };
        volumes.iter().map(row).collect()
    }
}

impl Row for VolumeRow<'_> {
    const COLUMNS: &'static [&'static str] =
        &["VOLUME", "SIZE", "GROUP", "STATE", "REPLICAS", "DISKLESS", "IN USE ON"];
    fn cells(&self) -> Vec<Cell> {
        let name = match self.single && self.number == 0 {
            true => self.volume.to_owned(),
            false => format!("{}/{}", self.volume, self.number),
        };
        let tone = match self.health {
            Health::Good => Tone::Good,
            Health::Busy => Tone::Busy,
            Health::Bad => Tone::Bad,
        };
        let size = Bytes(self.size_kib.saturating_mul(1024)).to_string();
        vec![
            name.into(),
            size.into(),
            self.group.into(),
            Cell::toned(self.state.as_str(), tone),
            self.replicas.join(" ").into(),
            self.diskless.join(" ").into(),
            self.in_use_on.join(" ").into(),
        ]
    }
}

/// A volume on a node.
#[derive(Serialize)]
struct ReplicaRow<'a> {
    volume: &'a str,
    number: u16,
    node: &'a str,
    part: String,
    disk: String,
    pool: &'a str,
    device: &'a str,
    allocated_kib: u64,
    in_use: bool,
    not_connected_to: Vec<&'a str>,
    #[serde(skip)]
    good: bool,
}

impl<'a> ReplicaRow<'a> {
    fn of(resource: &'a Resource) -> impl Iterator<Item = ReplicaRow<'a>> {
        let peers = resource.layer_object.drbd.connections.iter();
        let away: Vec<&str> =
            peers.filter(|(_, c)| !c.connected).map(|(peer, _)| peer.as_str()).collect();
        resource.volumes.iter().map(move |volume| {
            let none = if resource.is_inactive() { "down" } else { "not reported" };
            let state = volume.state.disk_state.as_deref().unwrap_or(none);
            let disk = match volume.resync() {
                Some((replication, percent)) => format!("{state}, {replication} {percent:.0} %"),
                None => state.to_owned(),
            };
            ReplicaRow {
                volume: &resource.name,
                number: volume.volume_number,
                node: &resource.node_name,
                part: resource.part(),
                disk,
                pool: &volume.storage_pool_name,
                device: &volume.device_path,
                allocated_kib: volume.allocated_size_kib,
                in_use: resource.is_in_use(),
                not_connected_to: away.clone(),
                good: !resource.is_replica() || resource.is_inactive() || volume.is_up_to_date(),
            }
        })
    }
}

impl Row for ReplicaRow<'_> {
    const COLUMNS: &'static [&'static str] =
        &["VOLUME", "NODE", "PART", "DISK", "POOL", "IN USE", "NOT CONNECTED TO"];
    fn cells(&self) -> Vec<Cell> {
        let tone = if self.good { Tone::Good } else { Tone::Busy };
        let away = match self.not_connected_to.is_empty() {
            true => Cell::from(""),
            false => Cell::toned(self.not_connected_to.join(" "), Tone::Bad),
        };
        vec![
            format!("{}/{}", self.volume, self.number).into(),
            self.node.into(),
            self.part.as_str().into(),
            Cell::toned(self.disk.as_str(), tone),
            self.pool.into(),
            if self.in_use { "yes" } else { "" }.into(),
            away,
        ]
    }
}
