//! Resource definitions and their volume definitions.

use axum::extract::State;
use axum::http::Method;
use cluster::change::Key;
use cluster::command::{Command, NewDefinition, NewVolumeDefinition};
use cluster::layer::Layer;
use cluster::model::Model;
use cluster::name::{GroupName, ResourceName};
use cluster::objects::{Definition, Props, VolumeDefinition};
use cluster::refusal::{Code, Refusal};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use vocab::options::Secret;
use vocab::{Bytes, DiskState, Minor, VolumeNr};

use crate::answer::{Answer, Call, Changed, Found, Read, without_empty};
use crate::ask::{App, Asked, Body, Modify, Path, kib, layers, unsupported};
use crate::code::{Kind, Operation, number};
use crate::controller;
use crate::groups::gross_size;
use crate::nodes::unknown;
use crate::routes::{PAGE, Routes};
use crate::shown::{List, View};

pub fn routes() -> Routes {
    const D: &str = "/v1/resource-definitions/{resource}";
    let volume = format!("{D}/volume-definitions/{{number}}");
    Routes::new()
        .get("/v1/resource-definitions", list)
        .asks(&["resource_definitions", "with_volume_definitions", "props", "limit", "offset"])
        .user(Method::POST, "/v1/resource-definitions", create)
        .get(D, one)
        .asks(&["with_volume_definitions"])
        .user(Method::PUT, D, modify)
        .user(Method::DELETE, D, delete)
        .get(&format!("{D}/sync-status"), sync_status)
        .get(&format!("{D}/volume-definitions"), volumes)
        .asks(PAGE)
        .user(Method::POST, &format!("{D}/volume-definitions"), create_volume)
        .get(&volume, self::volume)
        .user(Method::PUT, &volume, modify_volume)
        .user(Method::DELETE, &volume, delete_volume)
        .user(Method::PUT, &format!("{volume}/encryption-passphrase"), change_passphrase)
}

/// What the layer DRBD says of a resource definition.
pub fn show_drbd(definition: &Definition) -> Value {
    // Ports are each node's own, and this is the one that is tried first; old clients want a number if
    // there is none, too. Clients read the field of the
    // secret but have no use for it, and whoever asks need not have a right to it.
    json!({
        "resource_name_suffix": "",
        "peer_slots": definition.peer_slots,
        "al_stripes": 1,
        "al_stripe_size_kib": 32,
        "port": definition.port.map_or(-1, i32::from),
        "transport_type": "IP",
        "secret": "(kept)",
        "down": false,
    })
}

/// What the layer DRBD says of a volume definition.
pub fn show_drbd_volume(number: VolumeNr, volume: &VolumeDefinition) -> Value {
    let minor = volume.minor.map_or(-1, |minor| i64::from(minor.0));
    json!({ "resource_name_suffix": "", "volume_number": number.0, "minor_number": minor })
}

fn show(model: &Model, definition: &Definition, with_volumes: bool) -> Value {
    let layers = definition.layers.iter().map(|layer| match layer {
        Layer::Drbd => json!({ "type": layer.word(), "data": show_drbd(definition) }),
        _ => json!({ "type": layer.word() }),
    });
    let layers: Vec<Value> = layers.collect();
    let flags: Vec<&str> = definition.flags.iter().map(|flag| flag.word()).collect();
    let volumes: Vec<Value> = match with_volumes {
        true => definition.volumes.iter().map(|(nr, v)| show_volume(definition, *nr, v)).collect(),
        false => Vec::new(),
    };
    let mut shown = without_empty(json!({
        "name": definition.name.as_str(),
        "external_name": definition.external_name,
        "props": shown_props(model, definition),
        "flags": flags,
        "uuid": definition.uuid.to_string(),
        "resource_group_name": definition.group.as_str(),
        "volume_definitions": volumes,
    }));
    shown["layer_data"] = Value::Array(layers);
    shown
}

/// Its properties, and as some more which external files its nodes are given.
fn shown_props(model: &Model, definition: &Definition) -> Props {
    let mut props = definition.props.clone();
    let files = model.files().filter(|file| file.resources.contains(&definition.name));
    props.extend(files.map(|file| (format!("files{}", file.path), "True".to_owned())));
    props
}

fn show_volume(definition: &Definition, number: VolumeNr, volume: &VolumeDefinition) -> Value {
    let layers = definition.layers.iter().map(|layer| match layer {
        Layer::Drbd => json!({ "type": layer.word(), "data": show_drbd_volume(number, volume) }),
        _ => json!({ "type": layer.word() }),
    });
    let layers: Vec<Value> = layers.collect();
    let flags: Vec<&str> = volume.flags.iter().map(|flag| flag.word()).collect();
    let mut shown = without_empty(json!({
        "volume_number": number.0,
        "size_kib": volume.size.0 / 1024,
        "props": volume.props,
        "flags": flags,
        "uuid": volume.uuid.to_string(),
    }));
    shown["layer_data"] = Value::Array(layers);
    shown
}

/// A resource definition that is there.
///
/// # Errors
/// An answer that there is none.
pub fn find<'a>(state: &'a controller::State, name: &str) -> Result<&'a Definition, Answer> {
    let name = ResourceName::new(name)?;
    let unknown = |key| unknown(Code::UnknownDefinition, &key).into();
    state.model.definition(&name).ok_or_else(|| unknown(Key::Definition(name)))
}

async fn list(State(app): State<App>, asked: Asked) -> List {
    let state = app.state();
    let named = asked.all("resource_definitions");
    let with_volumes = asked.flag("with_volume_definitions");
    let view = if with_volumes { View::WithVolumes } else { View::Definition };
    let definitions: Vec<&Definition> = match named.is_empty() {
        true => state.model.definitions().collect(),
        // A few names are looked up, not searched for.
        false => named
            .iter()
            .filter_map(|name| state.model.definition(&ResourceName::new(name).ok()?))
            .collect(),
    };
    let wanted = definitions.into_iter().filter(|definition| asked.wants_props(&definition.props));
    let (offset, limit) = asked.part();
    let mut list = List::default();
    for definition in wanted.skip(offset).take(limit) {
        let make = || vec![show(&state.model, definition, with_volumes)];
        list.push(state.shown.piece(view, &definition.name, make).all());
    }
    list
}

async fn one(State(app): State<App>, Path(name): Path<String>, asked: Asked) -> Read {
    let state = app.state();
    let definition = find(&state, &name)?;
    Ok(Found(show(&state.model, definition, asked.flag("with_volume_definitions"))))
}

#[derive(Deserialize, JsonSchema)]
struct NewLayer {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct NewResourceDefinition {
    name: Option<String>,
    external_name: Option<String>,
    props: Option<Props>,
    layer_data: Option<Vec<NewLayer>>,
    resource_group_name: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct CreateDefinition {
    drbd_port: Option<i64>,
    drbd_secret: Option<String>,
    drbd_peer_slots: Option<u8>,
    drbd_transport_type: Option<String>,
    resource_definition: NewResourceDefinition,
}

const PORT: &str = "resources keep their ports; give one when the definition is created";

/// A TCP port, if one is given: clients send numbers below 1 for none.
fn port(given: Option<i64>) -> Result<Option<u16>, Refusal> {
    let Some(given) = given.filter(|port| *port > 0) else { return Ok(None) };
    u16::try_from(given).map(Some).map_err(|_| {
        Refusal::new(Code::InvalidResourcePort, format!("{given} is not a TCP port"))
            .cause("they are 1 to 65535")
            .correction("give one of them, or leave it out")
    })
}

async fn create(State(app): State<App>, Body(body): Body<CreateDefinition>) -> Changed {
    let transport = body.drbd_transport_type.is_some_and(|kind| !kind.eq_ignore_ascii_case("IP"));
    unsupported(&[("drbd_transport_type", transport, "TCP over IP is the only transport")])?;
    let new = body.resource_definition;
    let name = new.name.filter(|name| !name.is_empty());
    let external_name = new.external_name;
    let shown = name.clone().or(external_name.clone()).unwrap_or_default();
    let stack = new.layer_data.map(|list| list.into_iter().map(|layer| layer.kind).collect());
    let group = new.resource_group_name.filter(|name| !name.is_empty());
    let definition = NewDefinition {
        name: name.map(|name| ResourceName::new(&name)).transpose()?,
        external_name,
        group: group.map(|name| GroupName::new(&name)).transpose()?,
        props: new.props.unwrap_or_default(),
        layers: layers(stack)?,
        peer_slots: body.drbd_peer_slots,
        secret: body.drbd_secret.filter(|secret| !secret.is_empty()),
        port: port(body.drbd_port)?,
    };
    let said = format!("resource definition {shown} created");
    let call = Call::new(Operation::Create, Kind::Definition, said);
    Ok(call.run(&app, Command::CreateDefinition { definition }).await)
}

#[derive(Deserialize, JsonSchema)]
struct ModifyDefinition {
    #[serde(flatten)]
    props: Modify,
    drbd_port: Option<i64>,
    drbd_peer_slots: Option<u8>,
    layer_stack: Option<Vec<String>>,
    resource_group: Option<String>,
}

async fn modify(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<ModifyDefinition>,
) -> Changed {
    unsupported(&[("drbd_port", body.drbd_port.is_some_and(|port| port > 0), PORT)])?;
    let name = ResourceName::new(&name)?;
    let call = Call::one(Operation::Modify, Kind::Definition, &name);
    let group = body.resource_group.filter(|group| !group.is_empty());
    let command = Command::ModifyDefinition {
        name,
        props: body.props.into(),
        group: group.map(|group| GroupName::new(&group)).transpose()?,
        layers: layers(body.layer_stack)?,
        peer_slots: body.drbd_peer_slots,
    };
    Ok(call.run(&app, command).await)
}

async fn delete(State(app): State<App>, Path(name): Path<String>) -> Changed {
    let name = ResourceName::new(&name)?;
    let said = format!("resource definition {name} is deleted");
    let call = Call::new(Operation::Delete, Kind::Definition, said).about("RscDfn", &name);
    Ok(call.run(&app, Command::DeleteDefinition { name }).await)
}

async fn sync_status(State(app): State<App>, Path(name): Path<String>) -> Read {
    let state = app.state();
    let definition = find(&state, &name)?;
    let name = &definition.name;
    let synced = state.model.resources_of(name).filter(|r| r.is_replica()).all(|resource| {
        let known = state.observed.replica(name, &resource.node);
        definition.volumes.keys().all(|number| {
            let volume = known.and_then(|replica| replica.volumes.get(number));
            volume.is_some_and(|volume| volume.disk == Some(DiskState::UpToDate))
        })
    });
    Ok(Found(json!({ "synced_on_all": synced })))
}

async fn volumes(State(app): State<App>, Path(name): Path<String>, asked: Asked) -> Read {
    let state = app.state();
    let definition = find(&state, &name)?;
    let all = definition.volumes.iter().map(|(nr, volume)| show_volume(definition, *nr, volume));
    Ok(Found(asked.page(all.collect())))
}

async fn volume(State(app): State<App>, Path((name, number)): Path<(String, u16)>) -> Read {
    let state = app.state();
    let definition = find(&state, &name)?;
    match definition.volumes.get(&VolumeNr(number)) {
        Some(volume) => Ok(Found(show_volume(definition, VolumeNr(number), volume))),
        None => {
            let text = format!("resource definition {name} has no volume {number}");
            let refusal = Refusal::new(Code::UnknownVolumeDefinition, text);
            Err(refusal.correction("list its volume definitions").into())
        }
    }
}

#[derive(Deserialize, JsonSchema)]
struct NewVolume {
    volume_number: Option<u16>,
    size_kib: i64,
    props: Option<Props>,
    flags: Option<Vec<String>>,
}

#[derive(Deserialize, JsonSchema)]
struct CreateVolume {
    volume_definition: NewVolume,
    drbd_minor_number: Option<u32>,
    passphrase: Option<String>,
}

async fn create_volume(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<CreateVolume>,
) -> Changed {
    let given = body.passphrase.filter(|text| !text.is_empty()).map(Secret::from);
    let passphrase = app.seal(given.as_slice())?.pop();
    let name = ResourceName::new(&name)?;
    let new = body.volume_definition;
    let volume = NewVolumeDefinition {
        number: new.volume_number,
        size: Bytes(kib(new.size_kib)?),
        minor: body.drbd_minor_number.map(Minor),
        gross_size: gross_size(&new.flags.unwrap_or_default())?.unwrap_or(false),
        props: new.props.unwrap_or_default(),
        passphrase,
    };
    let said = format!("volume definition of {name} created");
    let call = Call::new(Operation::Create, Kind::VolumeDefinition, said).ok();
    let call = call.about("RscDfn", &name);
    Ok(call.run(&app, Command::CreateVolumeDefinition { name, volume }).await)
}

#[derive(Deserialize, JsonSchema)]
struct ModifyVolume {
    size_kib: Option<i64>,
    #[serde(flatten)]
    props: Modify,
    flags: Option<Vec<String>>,
}

async fn modify_volume(
    State(app): State<App>,
    Path((name, number)): Path<(String, u16)>,
    Body(body): Body<ModifyVolume>,
) -> Changed {
    let name = ResourceName::new(&name)?;
    // Clients send 0 for a size that stays.
    let size = body.size_kib.filter(|size| *size != 0).map(kib).transpose()?;
    let gross_size = gross_size(&body.flags.unwrap_or_default())?;
    let said = format!("volume definition {number} of {name} modified");
    let call = Call::new(Operation::Modify, Kind::VolumeDefinition, said).about("RscDfn", &name);
    let call = call.about("VlmNr", number);
    let props = body.props.into();
    let command = Command::ModifyVolumeDefinition { name, number, size, props, gross_size };
    Ok(call.run(&app, command).await)
}

#[derive(Deserialize, JsonSchema)]
struct NewPassphrase {
    new_passphrase: String,
}

async fn change_passphrase(
    State(app): State<App>,
    Path((name, number)): Path<(String, u16)>,
    Body(body): Body<NewPassphrase>,
) -> Changed {
    let name = ResourceName::new(&name)?;
    if body.new_passphrase.is_empty() {
        let text = format!("volume definition {number} of {name} can not be without a passphrase");
        let (cause, next) = ("the request has an empty one", "give another");
        let kind = Kind::VolumeDefinition;
        return Err(Answer::refused(kind, number::INVALID_PASSPHRASE, &text, cause, next));
    }
    let sealed = app.seal(&[Secret::from(body.new_passphrase)])?.pop().unwrap_or_default();
    let said = format!("passphrase of volume definition {number} of {name} changed");
    let call = Call::new(Operation::Modify, Kind::VolumeDefinition, said).about("RscDfn", &name);
    let call = call.about("VlmNr", number);
    Ok(call.run(&app, Command::ChangePassphrase { name, number, passphrase: sealed }).await)
}

async fn delete_volume(
    State(app): State<App>,
    Path((name, number)): Path<(String, u16)>,
) -> Changed {
    let name = ResourceName::new(&name)?;
    let said = format!("volume definition {number} of {name} is deleted");
    let call = Call::new(Operation::Delete, Kind::VolumeDefinition, said).about("RscDfn", &name);
    let call = call.about("VlmNr", number);
    Ok(call.run(&app, Command::DeleteVolumeDefinition { name, number }).await)
}
