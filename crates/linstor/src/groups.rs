//! Resource groups, volume groups, and what is made from them.

use axum::extract::State;
use axum::http::Method;
use cluster::change::Key;
use cluster::command::{Command, NewDefinition};
use cluster::name::{GroupName, NodeName, PoolName, ResourceName};
use cluster::objects::{Filter, Group, Props, VolumeGroup};
use cluster::refusal::{Code, Refusal};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use vocab::options::Secret;

use crate::answer::{Answer, Call, Changed, Found, Read, without_empty};
use crate::ask::{App, Asked, Body, Modify, Path, SelectFilter, kib, unsupported};
use crate::code::{Kind, Operation};
use crate::nodes::unknown;
use crate::routes::{PAGE, Routes};

/// The only flag that a volume group or volume definition can be given.
pub const GROSS_SIZE: &str = "GROSS_SIZE";

pub fn routes() -> Routes {
    const G: &str = "/v1/resource-groups/{group}";
    let volume = format!("{G}/volume-groups/{{number}}");
    Routes::new()
        .get("/v1/resource-groups", list)
        .asks(&["resource_groups", "props", "limit", "offset"])
        .user(Method::POST, "/v1/resource-groups", create)
        .user(Method::POST, "/v1/resource-groups/adjustall", adjust_all)
        .get(G, one)
        .user(Method::PUT, G, modify)
        .user(Method::DELETE, G, delete)
        .user(Method::POST, &format!("{G}/spawn"), spawn)
        .user(Method::POST, &format!("{G}/adjust"), adjust)
        .get(&format!("{G}/volume-groups"), volumes)
        .asks(PAGE)
        .user(Method::POST, &format!("{G}/volume-groups"), create_volume)
        .get(&volume, self::volume)
        .user(Method::PUT, &volume, modify_volume)
        .user(Method::DELETE, &volume, delete_volume)
}

/// A filter as clients see it.
fn show_filter(filter: &Filter) -> Value {
    let nodes = |list: &Vec<NodeName>| list.iter().map(|n| n.to_string()).collect::<Vec<_>>();
    let pools = |list: &Vec<PoolName>| list.iter().map(|p| p.to_string()).collect::<Vec<_>>();
    let names = |list: &Vec<ResourceName>| list.iter().map(|n| n.to_string()).collect::<Vec<_>>();
    let one = filter.pools.as_ref().filter(|pools| pools.len() == 1);
    without_empty(json!({
        "place_count": filter.place_count,
        "additional_place_count": filter.additional_place_count,
        "node_name_list": filter.nodes.as_ref().map(nodes),
        "storage_pool": one.map(|pools| pools[0].to_string()),
        "storage_pool_list": filter.pools.as_ref().map(pools),
        "storage_pool_diskless_list": filter.diskless_pools.as_ref().map(pools),
        "not_place_with_rsc": filter.not_with.as_ref().map(names),
        "not_place_with_rsc_regex": filter.not_with_regex,
        "replicas_on_same": filter.on_same,
        "replicas_on_different": filter.on_different,
        "x_replicas_on_different_map": filter.x_on_different,
        "layer_stack": filter.layers.as_ref().map(|l| l.iter().map(|l| l.word()).collect::<Vec<_>>()),
        "provider_list":
            filter.providers.as_ref().map(|p| p.iter().map(|p| p.word()).collect::<Vec<_>>()),
        "diskless_on_remaining": filter.diskless_on_remaining,
    }))
}

fn show(group: &Group) -> Value {
    without_empty(json!({
        "name": group.name.as_str(),
        "description": group.description,
        "props": group.props,
        "select_filter": show_filter(&group.filter),
        "uuid": group.uuid.to_string(),
        "peer_slots": group.peer_slots,
    }))
}

fn show_volume(number: u16, volume: &VolumeGroup) -> Value {
    let flags: &[&str] = if volume.gross_size { &[GROSS_SIZE] } else { &[] };
    without_empty(json!({
        "volume_number": number,
        "props": volume.props,
        "uuid": volume.uuid.to_string(),
        "flags": flags,
    }))
}

fn find<'a>(state: &'a crate::controller::State, name: &str) -> Result<&'a Group, Answer> {
    let name = GroupName::new(name)?;
    state.model.group(&name).ok_or_else(|| unknown(Code::UnknownGroup, &Key::Group(name)).into())
}

async fn list(State(app): State<App>, asked: Asked) -> Found {
    let state = app.state();
    let groups = state.model.groups().filter(|group| {
        asked.wants("resource_groups", group.name.as_str()) && asked.wants_props(&group.props)
    });
    Found(asked.page(groups.map(show).collect()))
}

async fn one(State(app): State<App>, Path(name): Path<String>) -> Read {
    let state = app.state();
    Ok(Found(show(find(&state, &name)?)))
}

#[derive(Deserialize, JsonSchema)]
struct NewGroup {
    name: String,
    description: Option<String>,
    props: Option<Props>,
    select_filter: Option<SelectFilter>,
    peer_slots: Option<u8>,
}

async fn create(State(app): State<App>, Body(body): Body<NewGroup>) -> Changed {
    let name = GroupName::new(&body.name)?;
    let call = Call::one(Operation::Create, Kind::Group, &name);
    let command = Command::CreateGroup {
        name,
        description: body.description.unwrap_or_default(),
        props: body.props.unwrap_or_default(),
        filter: body.select_filter.unwrap_or_default().filter()?,
        peer_slots: body.peer_slots,
    };
    Ok(call.run(&app, command).await)
}

/// Clients that can copy snapshots to new replicas say so with these.
#[derive(Deserialize, JsonSchema)]
struct Copies {
    snap_names: Option<Vec<String>>,
    copy_all_snaps: Option<bool>,
}

impl Copies {
    fn refused(&self) -> Result<(), Refusal> {
        let why = "snapshots are not copied to new replicas";
        let named = self.snap_names.as_ref().is_some_and(|list| !list.is_empty());
        let all = self.copy_all_snaps == Some(true);
        unsupported(&[("snap_names", named, why), ("copy_all_snaps", all, why)])
    }
}

#[derive(Deserialize, JsonSchema)]
struct ModifyGroup {
    description: Option<String>,
    #[serde(flatten)]
    props: Modify,
    select_filter: Option<SelectFilter>,
    peer_slots: Option<u8>,
    #[serde(flatten)]
    copies: Copies,
}

async fn modify(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<ModifyGroup>,
) -> Changed {
    body.copies.refused()?;
    let name = GroupName::new(&name)?;
    let call = Call::one(Operation::Modify, Kind::Group, &name);
    let command = Command::ModifyGroup {
        name,
        description: body.description,
        props: body.props.into(),
        filter: body.select_filter.unwrap_or_default().filter()?,
        peer_slots: body.peer_slots,
    };
    Ok(call.run(&app, command).await)
}

async fn delete(State(app): State<App>, Path(name): Path<String>) -> Changed {
    let name = GroupName::new(&name)?;
    let call = Call::one(Operation::Delete, Kind::Group, &name);
    Ok(call.run(&app, Command::DeleteGroup { name }).await)
}

#[derive(Deserialize, JsonSchema)]
#[serde(default)]
#[derive(Default)]
struct Spawn {
    resource_definition_name: Option<String>,
    resource_definition_external_name: Option<String>,
    volume_sizes: Option<Vec<i64>>,
    select_filter: Option<SelectFilter>,
    partial: Option<bool>,
    definitions_only: Option<bool>,
    peer_slots: Option<u8>,
    volume_passphrases: Option<Vec<String>>,
    resource_definition_props: Option<Props>,
}

async fn spawn(
    State(app): State<App>,
    Path(group): Path<String>,
    Body(body): Body<Spawn>,
) -> Changed {
    let group = GroupName::new(&group)?;
    let passphrases = body.volume_passphrases.unwrap_or_default().into_iter().map(Secret::from);
    let passphrases = app.seal(&passphrases.collect::<Vec<_>>())?;
    let name = body.resource_definition_name.filter(|name| !name.is_empty());
    let name = name.map(|name| ResourceName::new(&name)).transpose()?;
    let external_name = body.resource_definition_external_name.filter(|name| !name.is_empty());
    let sizes: Result<Vec<u64>, Refusal> =
        body.volume_sizes.unwrap_or_default().into_iter().map(kib).collect();
    let shown = name.as_ref().map_or(external_name.as_deref(), |name| Some(name.as_str()));
    let said = format!("{} spawned from resource group {group}", shown.unwrap_or("a resource"));
    let mut call = Call::new(Operation::Create, Kind::Definition, said).about("RscGrp", &group);
    if let Some(name) = &name {
        call = call.about("RscDfn", name);
    }
    let definition = NewDefinition {
        name,
        external_name,
        group: Some(group.clone()),
        props: body.resource_definition_props.unwrap_or_default(),
        layers: None,
        peer_slots: body.peer_slots,
        secret: None,
        port: None,
    };
    let command = Command::Spawn {
        group,
        definition,
        sizes: sizes?,
        filter: body.select_filter.unwrap_or_default().filter()?,
        partial: body.partial.unwrap_or(false),
        definitions_only: body.definitions_only.unwrap_or(false),
        passphrases,
    };
    Ok(call.run(&app, command).await)
}

#[derive(Deserialize, JsonSchema)]
struct Adjust {
    select_filter: Option<SelectFilter>,
    #[serde(flatten)]
    copies: Copies,
}

async fn adjust(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<Adjust>,
) -> Changed {
    body.copies.refused()?;
    let name = GroupName::new(&name)?;
    let said = format!("resource group {name} adjusted");
    let call = Call::new(Operation::Modify, Kind::Group, said).about("RscGrp", &name);
    let filter = body.select_filter.unwrap_or_default().filter()?;
    Ok(call.run(&app, Command::AdjustGroup { name, filter }).await)
}

async fn adjust_all(State(app): State<App>, Body(body): Body<Adjust>) -> Changed {
    body.copies.refused()?;
    let filter = body.select_filter.unwrap_or_default().filter()?;
    let names: Vec<GroupName> = app.state().model.groups().map(|g| g.name.clone()).collect();
    let commands = names.into_iter().map(|name| {
        let filter = filter.clone();
        Command::AdjustGroup { name, filter }
    });
    let call = Call::new(Operation::Modify, Kind::Group, "all resource groups adjusted");
    Ok(call.run_all(&app, commands.collect()).await)
}

async fn volumes(State(app): State<App>, Path(group): Path<String>, asked: Asked) -> Read {
    let state = app.state();
    let group = find(&state, &group)?;
    let all = group.volume_groups.iter().map(|(number, volume)| show_volume(number.0, volume));
    Ok(Found(asked.page(all.collect())))
}

async fn volume(State(app): State<App>, Path((group, number)): Path<(String, u16)>) -> Read {
    let state = app.state();
    let group = find(&state, &group)?;
    match group.volume_groups.get(&vocab::VolumeNr(number)) {
        Some(volume) => Ok(Found(show_volume(number, volume))),
        None => {
            let text = format!("resource group {} has no volume group {number}", group.name);
            Err(Refusal::new(Code::UnknownVolumeGroup, text).correction("list them").into())
        }
    }
}

/// The truth of GROSS_SIZE in a list of flags, `-GROSS_SIZE` taking it away.
///
/// # Errors
/// If there is another flag.
pub fn gross_size(flags: &[String]) -> Result<Option<bool>, Refusal> {
    let mut gross = None;
    for flag in flags {
        match flag.to_ascii_uppercase().as_str() {
            GROSS_SIZE => gross = Some(true),
            "-GROSS_SIZE" => gross = Some(false),
            _ => {
                let text = format!("the flag `{flag}` can not be set");
                return Err(Refusal::new(Code::InvalidRequest, text)
                    .cause("only GROSS_SIZE is for users to set")
                    .correction("leave it out"));
            }
        }
    }
    Ok(gross)
}

#[derive(Deserialize, JsonSchema)]
struct NewVolumeGroup {
    volume_number: Option<u16>,
    props: Option<Props>,
    flags: Option<Vec<String>>,
}

async fn create_volume(
    State(app): State<App>,
    Path(group): Path<String>,
    Body(body): Body<NewVolumeGroup>,
) -> Changed {
    let group = GroupName::new(&group)?;
    let gross_size = gross_size(&body.flags.unwrap_or_default())?.unwrap_or(false);
    let said = format!("volume group of resource group {group} created");
    let call = Call::new(Operation::Create, Kind::VolumeGroup, said).about("RscGrp", &group);
    let (number, props) = (body.volume_number, body.props.unwrap_or_default());
    Ok(call.run(&app, Command::CreateVolumeGroup { group, number, props, gross_size }).await)
}

#[derive(Deserialize, JsonSchema)]
struct ModifyVolumeGroup {
    #[serde(flatten)]
    props: Modify,
    flags: Option<Vec<String>>,
}

async fn modify_volume(
    State(app): State<App>,
    Path((group, number)): Path<(String, u16)>,
    Body(body): Body<ModifyVolumeGroup>,
) -> Changed {
    let group = GroupName::new(&group)?;
    let gross_size = gross_size(&body.flags.unwrap_or_default())?;
    let said = format!("volume group {number} of resource group {group} modified");
    let call = Call::new(Operation::Modify, Kind::VolumeGroup, said).about("RscGrp", &group);
    let call = call.about("VlmNr", number);
    let props = body.props.into();
    Ok(call.run(&app, Command::ModifyVolumeGroup { group, number, props, gross_size }).await)
}

async fn delete_volume(
    State(app): State<App>,
    Path((group, number)): Path<(String, u16)>,
) -> Changed {
    let group = GroupName::new(&group)?;
    let said = format!("volume group {number} of resource group {group} deleted");
    let call = Call::new(Operation::Delete, Kind::VolumeGroup, said).about("RscGrp", &group);
    let call = call.about("VlmNr", number);
    Ok(call.run(&app, Command::DeleteVolumeGroup { group, number }).await)
}
