//! Resource groups, and what is made from them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use vocab::Bytes;

use super::super::error::Error;
use super::answer::Entry;
use super::args::GroupCommand;
use super::http::{Change, Http, part, query};
use super::table::{self, Cell, Row};
use super::view::{Definition, Group, Resource, settled};
use super::wait::Progress;
use super::{Follow, Session, volumes};

pub(super) fn run(session: &mut Session<'_>, command: &GroupCommand) -> Result<(), Error> {
    match command {
        GroupCommand::List => {
            let groups: Vec<Group> = session.get("resource groups", "/v1/resource-groups")?;
            let volumes: Vec<Definition> = session.get("volumes", "/v1/resource-definitions")?;
            let row = |group| GroupRow::of(group, &volumes);
            session.list(&groups.iter().map(row).collect::<Vec<_>>())
        }
        GroupCommand::Create { name, description, encrypted, placement } => {
            let filter = with_layers(placement.filter(), *encrypted);
            let mut body = json!({ "name": name, "select_filter": filter });
            if let Some(text) = description {
                body["description"] = json!(text);
            }
            let change = Change::Post("/v1/resource-groups".to_owned(), body);
            session.change(&format!("resource group {name}: create"), &change, None).map(drop)
        }
        GroupCommand::Modify { name, description, placement } => {
            let filter = placement.filter();
            let mut body = json!({});
            if filter.as_object().is_some_and(|filter| !filter.is_empty()) {
                body["select_filter"] = filter;
            }
            if let Some(text) = description {
                body["description"] = json!(text);
            }
            if body == json!({}) {
                let why = "there is nothing to change; `ashlar resource-group modify --help` \
                           lists what can be";
                let object = format!("resource group {name}");
                return Err(Error::Object { object, why: why.to_owned() });
            }
            let change = Change::Put(format!("/v1/resource-groups/{}", part(name)), body);
            session.change(&format!("resource group {name}: modify"), &change, None).map(drop)
        }
        GroupCommand::Delete { name } => {
            let change = Change::Delete(format!("/v1/resource-groups/{}", part(name)));
            session.change(&format!("resource group {name}: delete"), &change, None).map(drop)
        }
        GroupCommand::Spawn { name, volume, sizes, placement, definition_only, encrypted, how } => {
            let (definition_only, encrypted) = (*definition_only, *encrypted);
            let new = Spawn { group: name, volume, sizes, definition_only, encrypted };
            spawn(session, &new, &placement.filter(), how.no_wait)
        }
        GroupCommand::Adjust { name, how } => adjust(session, name, how.no_wait),
        GroupCommand::Capacity { name, placement } => capacity(session, name, &placement.filter()),
    }
}

/// A volume to be made.
pub(super) struct Spawn<'a> {
    pub group: &'a str,
    pub volume: &'a str,
    pub sizes: &'a [u64],
    pub definition_only: bool,
    /// Whatever the group says.
    pub encrypted: bool,
}

/// Adds the layers of encrypted volumes to a filter.
fn with_layers(mut filter: Value, encrypted: bool) -> Value {
    if encrypted {
        filter["layer_stack"] = json!(["DRBD", "LUKS", "STORAGE"]);
    }
    filter
}

/// Makes a volume of a group.
pub(super) fn spawn(
    session: &mut Session<'_>,
    new: &Spawn<'_>,
    filter: &Value,
    no_wait: bool,
) -> Result<(), Error> {
    let Spawn { group, volume, sizes, definition_only, encrypted } = *new;
    let sizes: Vec<u64> = sizes.iter().map(|bytes| bytes / 1024).collect();
    let body = json!({
        "resource_definition_name": volume,
        "volume_sizes": sizes,
        "select_filter": with_layers(filter.clone(), encrypted),
        "definitions_only": definition_only,
    });
    let change = Change::Post(format!("/v1/resource-groups/{}/spawn", part(group)), body);
    let what = format!("volume {volume}: create");
    // Without a place count nothing is placed, which the answer says.
    let settled = |http: &Http| {
        let resources = super::resources_of(http, volume)?;
        Ok(settled(&resources, true))
    };
    let follow: Follow<'_> = &settled;
    let waits = !(no_wait || definition_only);
    session.change(&what, &change, waits.then_some(follow))?;
    volumes::say_where(session, volume)
}

fn adjust(session: &mut Session<'_>, name: &str, no_wait: bool) -> Result<(), Error> {
    let what = format!("resource group {name}: adjust");
    let change = Change::Post(format!("/v1/resource-groups/{}/adjust", part(name)), json!({}));
    let whole = |http: &Http| group_settled(http, name);
    let follow: Follow<'_> = &whole;
    session.change(&what, &change, (!no_wait).then_some(follow)).map(drop)
}

fn group_settled(http: &Http, group: &str) -> Result<Progress, Error> {
    let all: Vec<Definition> = http.get(group, "/v1/resource-definitions")?;
    let own = all.into_iter().filter(|d| d.resource_group_name.eq_ignore_ascii_case(group));
    let names: Vec<String> = own.map(|definition| definition.name).collect();
    if names.is_empty() {
        return Ok(Progress::Done);
    }
    // A long list of names is longer than a request may be.
    let path = match names.len() {
        ..=100 => format!("/v1/view/resources{}", query("resources", &names)),
        _ => "/v1/view/resources".to_owned(),
    };
    let resources: Vec<Resource> = http.get(group, &path)?;
    let own = resources.into_iter().filter(|resource| names.contains(&resource.name));
    Ok(settled(&own.collect::<Vec<_>>(), true))
}

/// How much fits.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Sizes {
    space_info: Space,
    reports: Vec<Entry>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Space {
    max_vlm_size_in_kib: u64,
    available_size_in_kib: u64,
    capacity_in_kib: u64,
    next_spawn_result: Vec<Next>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Next {
    node_name: String,
    stor_pool_name: String,
}

fn sizes(http: &Http, group: &str, filter: &Value) -> Result<Sizes, Error> {
    let path = format!("/v1/resource-groups/{}/query-size-info", part(group));
    http.question(&format!("resource group {group}"), &path, &json!({ "select_filter": filter }))
}

/// Why a group's next replicas can not be placed with this filter; empty if they can.
pub(super) fn obstacles(http: &Http, group: &str, filter: &Value) -> Result<Vec<Entry>, Error> {
    Ok(sizes(http, group, filter)?.reports)
}

fn capacity(session: &mut Session<'_>, name: &str, filter: &Value) -> Result<(), Error> {
    let Sizes { space_info: space, reports } = sizes(&session.http, name, filter)?;
    let next = |next: &Next| json!({ "node": next.node_name, "pool": next.stor_pool_name });
    if session.json {
        let reasons: Vec<String> = reports.iter().map(ToString::to_string).collect();
        let whole = json!({
            "group": name,
            "largest_volume_kib": space.max_vlm_size_in_kib,
            "available_kib": space.available_size_in_kib,
            "capacity_kib": space.capacity_in_kib,
            "next": space.next_spawn_result.iter().map(next).collect::<Vec<_>>(),
            "reasons": reasons,
        });
        return table::as_json(session.out, &whole);
    }
    let size = |kib: u64| Bytes(kib.saturating_mul(1024));
    writeln!(session.out, "largest next volume: {}", size(space.max_vlm_size_in_kib))?;
    writeln!(session.out, "free for such volumes: {}", size(space.available_size_in_kib))?;
    writeln!(session.out, "capacity for such volumes: {}", size(space.capacity_in_kib))?;
    for next in &space.next_spawn_result {
        writeln!(session.out, "goes to pool {} of node {}", next.stor_pool_name, next.node_name)?;
    }
    for reason in &reports {
        writeln!(session.out, "{reason}")?;
    }
    Ok(())
}

/// A group in a list.
#[derive(Serialize)]
struct GroupRow<'a> {
    group: &'a str,
    place: Option<u32>,
    pools: &'a [String],
    nodes: &'a [String],
    providers: &'a [String],
    layers: &'a [String],
    same: &'a [String],
    different: &'a [String],
    volumes: usize,
    description: &'a str,
}

impl<'a> GroupRow<'a> {
    fn of(group: &'a Group, volumes: &[Definition]) -> GroupRow<'a> {
        let filter = &group.select_filter;
        let own = |volume: &&Definition| volume.resource_group_name == group.name;
        GroupRow {
            group: &group.name,
            place: filter.place_count,
            pools: &filter.storage_pool_list,
            nodes: &filter.node_name_list,
            providers: &filter.provider_list,
            layers: filter.layer_stack.as_deref().unwrap_or_default(),
            same: &filter.replicas_on_same,
            different: &filter.replicas_on_different,
            volumes: volumes.iter().filter(own).count(),
            description: &group.description,
        }
    }
}

impl Row for GroupRow<'_> {
    const COLUMNS: &'static [&'static str] =
        &["GROUP", "REPLICAS", "WHERE", "VOLUMES", "DESCRIPTION"];
    fn cells(&self) -> Vec<Cell> {
        let lists = [
            ("pools", self.pools),
            ("nodes", self.nodes),
            ("providers", self.providers),
            ("layers", self.layers),
            ("same", self.same),
            ("different", self.different),
        ];
        let given = lists.iter().filter(|(_, list)| !list.is_empty());
        let place: Vec<String> =
            given.map(|(name, list)| format!("{name} {}", list.join(","))).collect();
        let place = if place.is_empty() { "anywhere".to_owned() } else { place.join("; ") };
        let count = self.place.map_or("not placed".to_owned(), |count| count.to_string());
        let volumes = self.volumes.to_string();
        vec![self.group.into(), count.into(), place.into(), volumes.into(), self.description.into()]
    }
}
