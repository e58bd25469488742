//! Resources, their volumes, and what makes and changes them.

use std::borrow::Cow;
use std::collections::BTreeSet;

use axum::extract::State;
use axum::http::Method;
use cluster::change::Key;
use cluster::command::{Command, NewResource};
use cluster::layer::Layer;
use cluster::name::{NodeName, PoolName, ResourceName};
use cluster::objects::{
    Definition, Props, Provider, Resource, ResourceFlag, Volume, VolumeDefinition,
};
use cluster::observed::{ReplicaState, VolumeState};
use cluster::refusal::{Code, Refusal};
use cluster::size;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use vocab::{DiskState, NodeId, VolumeNr};

use crate::answer::{Answer, Call, Changed, Found, Read, without_empty};
use crate::ask::{App, Asked, Body, Modify, Path, SelectFilter, layers, unsupported};
use crate::code::{Kind, Operation, number};
use crate::controller;
use crate::definitions::{find, show_drbd, show_drbd_volume};
use crate::may_promote;
use crate::nodes::unknown;
use crate::routes::{PAGE, Routes};
use crate::shown::{List, Piece, View};

pub fn routes() -> Routes {
    const D: &str = "/v1/resource-definitions/{resource}";
    const R: &str = "/v1/resource-definitions/{resource}/resources/{node}";
    let volume = format!("{R}/volumes/{{number}}");
    let connection = format!("{D}/resource-connections/{{a}}/{{b}}");
    let (toggle, migrate) = (format!("{R}/toggle-disk"), format!("{R}/migrate-disk/{{from}}"));
    Routes::new()
        .get("/v1/view/resources", view)
        .asks(&["nodes", "resources", "storage_pools", "props", "limit", "offset"])
        .get(&format!("{D}/resources"), list)
        .asks(PAGE)
        .user(Method::POST, &format!("{D}/resources"), create_several)
        .user(Method::POST, &format!("{D}/autoplace"), autoplace)
        .get(R, one)
        .user(Method::POST, R, create)
        .user(Method::PUT, R, modify)
        .user(Method::DELETE, R, delete)
        .asks(&["keep_tiebreaker"])
        .get(&format!("{R}/volumes"), volumes)
        .asks(PAGE)
        .get(&volume, self::volume)
        .user(Method::PUT, &volume, modify_volume)
        .user(Method::POST, &format!("{R}/make-available"), make_available)
        .user(Method::POST, &format!("{R}/activate"), activate)
        .user(Method::POST, &format!("{R}/deactivate"), deactivate)
        .get(&format!("{D}/resource-connections"), connections)
        .get(&connection, self::connection)
        .user(Method::PUT, &connection, modify_connection)
        .user(Method::PUT, &toggle, toggle_by_body)
        .user(Method::PUT, &format!("{toggle}/diskless"), to_diskless)
        .user(Method::PUT, &format!("{toggle}/diskless/{{pool}}"), to_diskless)
        .user(Method::PUT, &format!("{toggle}/diskful"), to_diskful)
        .user(Method::PUT, &format!("{toggle}/diskful/{{pool}}"), to_diskful)
        .user(Method::PUT, &migrate, to_diskful)
        .user(Method::PUT, &format!("{migrate}/{{pool}}"), to_diskful)
}

/// A resource and what is around it.
pub struct Seen<'a> {
    state: &'a controller::State,
    /// Its resource definition.
    pub definition: &'a Definition,
    /// It.
    pub resource: &'a Resource,
    /// What its agent says, if it is connected.
    pub replica: Option<&'a ReplicaState>,
}

impl<'a> Seen<'a> {
    /// A resource of a state.
    pub fn new(
        state: &'a controller::State,
        definition: &'a Definition,
        resource: &'a Resource,
    ) -> Seen<'a> {
        let connected = state.observed.is_connected(&resource.node);
        let replica = state.observed.replica(&definition.name, &resource.node);
        Seen { state, definition, resource, replica: replica.filter(|_| connected) }
    }

    fn replicated(&self) -> bool {
        self.definition.layers.contains(&Layer::Drbd)
    }

    /// Volumes with what is wanted of them and what is there.
    pub fn volumes(
        &self,
    ) -> impl Iterator<Item = (VolumeNr, &'a Volume, &'a VolumeDefinition, Option<&'a VolumeState>)>
    {
        let (definition, replica) = (self.definition, self.replica);
        self.resource.volumes.iter().filter_map(move |(number, volume)| {
            let wanted = definition.volumes.get(number)?;
            let there = replica.and_then(|replica| replica.volumes.get(number));
            Some((*number, volume, wanted, there))
        })
    }

    /// What manages its storage.
    pub fn provider(&self, volume: &Volume) -> Provider {
        let pool = self.state.model.pool(&self.resource.node, &volume.pool);
        pool.map_or(Provider::Diskless, |pool| pool.provider)
    }

    /// The path of the device that users open.
    pub fn device(&self, wanted: &VolumeDefinition) -> Option<String> {
        let minor = wanted.minor.filter(|_| self.replicated())?;
        Some(format!("/dev/drbd{}", minor.0))
    }

    fn disk_state(&self, there: Option<&VolumeState>) -> Option<&'static str> {
        let there = there?;
        match self.replicated() {
            true => there.disk.map(DiskState::name),
            false => there.backing.map(|_| "Created"),
        }
    }

    fn flags(&self) -> Vec<&'static str> {
        let flags = self.resource.flags.iter().filter(|flag| **flag != ResourceFlag::Client);
        flags.map(|flag| flag.word()).collect()
    }

    /// The layers from the top down, as a tree of one branch.
    fn layers(&self) -> Value {
        let mut below = Value::Null;
        for layer in self.definition.layers.iter().rev() {
            let children = if below.is_null() { Vec::new() } else { vec![below] };
            let mut object = Map::new();
            object.insert("type".to_owned(), json!(layer.word()));
            object.insert("children".to_owned(), Value::Array(children));
            match layer {
                Layer::Drbd => drop(object.insert("drbd".to_owned(), self.drbd())),
                Layer::Storage => {
                    let volumes = self.volumes().map(|(nr, v, w, t)| self.storage(nr, v, w, t));
                    let volumes: Vec<Value> = volumes.collect();
                    let storage = json!({ "storage_volumes": volumes });
                    drop(object.insert("storage".to_owned(), storage));
                }
                Layer::Luks => {
                    let volumes = self.volumes().map(|(nr, v, w, t)| self.luks(nr, v, w, t));
                    let volumes: Vec<Value> = volumes.collect();
                    drop(object.insert("luks".to_owned(), json!({ "luks_volumes": volumes })));
                }
            }
            below = Value::Object(object);
        }
        below
    }

    fn drbd(&self) -> Value {
        let volumes: Vec<Value> =
            self.volumes().map(|(nr, v, w, t)| self.drbd_volume(nr, v, w, t)).collect();
        // A peer that is down on purpose is not missed, and not there if it says so, even if this node was not heard since.
        let name = &self.definition.name;
        let inactive = |peer: &NodeName| {
            let peer = self.state.model.resource(name, peer);
            peer.is_some_and(|peer| peer.deactivated.is_some())
        };
        let is_up = |peer: &NodeName| {
            self.state.observed.replica(name, peer).is_some_and(|replica| replica.up)
        };
        let peers = self.replica.iter().flat_map(|replica| &replica.connections);
        let peers = peers.filter(|(peer, connected)| !inactive(peer) || **connected && is_up(peer));
        let connections = peers.map(|(peer, connected)| {
            let message = if *connected { "Connected" } else { "Connecting" };
            (peer.to_string(), json!({ "connected": connected, "message": message }))
        });
        let connections: Map<String, Value> = connections.collect();
        let may = may_promote(self.state, &self.definition.name, &self.resource.node);
        let client = self.resource.flags.contains(&ResourceFlag::Client);
        let flags: &[&str] = if client { &["CLIENT", "INITIALIZED"] } else { &["INITIALIZED"] };
        let score = match (may, self.resource.is_diskful()) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 10_101,
        };
        json!({
            "drbd_resource_definition": show_drbd(self.definition),
            "node_id": self.resource.node_id.map(NodeId::get),
            "tcp_ports": self.resource.port.iter().collect::<Vec<_>>(),
            "peer_slots": self.definition.peer_slots,
            "al_stripes": 1,
            "al_size": 32,
            "flags": flags,
            "drbd_volumes": volumes,
            "connections": connections,
            "promotion_score": score,
            "may_promote": may,
        })
    }

    fn drbd_volume(
        &self,
        number: VolumeNr,
        volume: &Volume,
        wanted: &VolumeDefinition,
        there: Option<&VolumeState>,
    ) -> Value {
        let diskless = self.provider(volume) == Provider::Diskless;
        without_empty(json!({
            "drbd_volume_definition": show_drbd_volume(number, wanted),
            "device_path": self.device(wanted),
            "meta_disk": (!diskless).then_some("internal"),
            "allocated_size_kib": self.allocated(volume, wanted, there),
            "usable_size_kib": size::usable(self.definition, wanted).0 / 1024,
            "disk_state": self.disk_state(there),
        }))
    }

    fn storage(
        &self,
        number: VolumeNr,
        volume: &Volume,
        wanted: &VolumeDefinition,
        there: Option<&VolumeState>,
    ) -> Value {
        let backing = size::backing(self.definition, wanted).0 / 1024;
        without_empty(json!({
            "volume_number": number.0,
            "allocated_size_kib": self.allocated(volume, wanted, there),
            "usable_size_kib": backing,
            "disk_state": there.and_then(|there| there.backing).map(|_| "[]"),
        }))
    }

    /// The layer LUKS of a volume. Where the engine decrypts there is no device between storage and DRBD: there
    /// is no path.
    fn luks(
        &self,
        number: VolumeNr,
        volume: &Volume,
        wanted: &VolumeDefinition,
        there: Option<&VolumeState>,
    ) -> Value {
        let allocated = self.allocated(volume, wanted, there);
        let open = there.and_then(|there| there.disk).is_some_and(|d| d > DiskState::Diskless);
        let mapped = there.and_then(|there| there.mapped.as_ref());
        without_empty(json!({
            "volume_number": number.0,
            "device_path": mapped.map(|mapped| &mapped.device),
            "backing_device": mapped.map(|mapped| &mapped.backing),
            "allocated_size_kib": allocated,
            "usable_size_kib": allocated.saturating_sub(size::LUKS / 1024),
            "disk_state": if open { "Open" } else { "Closed" },
            "opened": open,
        }))
    }

    /// What it takes in its pool, in KiB. Thin volumes count in full: agents do not report how much is
    /// written.
    pub fn allocated(
        &self,
        volume: &Volume,
        wanted: &VolumeDefinition,
        there: Option<&VolumeState>,
    ) -> u64 {
        match (self.provider(volume), there.and_then(|there| there.backing)) {
            (Provider::Diskless, _) => 0,
            (_, Some(size)) => size.0 / 1024,
            (_, None) => size::backing(self.definition, wanted).0 / 1024,
        }
    }

    fn replication(&self, there: Option<&VolumeState>) -> Value {
        let Some(replica) = self.replica.filter(|_| self.replicated()) else { return Value::Null };
        let connected = replica.connections.iter().filter(|(_, connected)| **connected);
        let mut percent = there.and_then(|there| there.done_percent);
        let states = connected.map(|(peer, _)| {
            // The agent says how much is done, not with whom: one peer stands for all.
            let state = match percent.take() {
                Some(done) => json!({ "replication_state": "SyncTarget", "done_percentage": done }),
                None => json!({ "replication_state": "Established" }),
            };
            (peer.to_string(), state)
        });
        Value::Object(states.collect())
    }

    fn volume(
        &self,
        number: VolumeNr,
        volume: &Volume,
        wanted: &VolumeDefinition,
        there: Option<&VolumeState>,
    ) -> Value {
        let layers = self.definition.layers.iter().map(|layer| {
            let data = match layer {
                Layer::Drbd => self.drbd_volume(number, volume, wanted, there),
                Layer::Storage => self.storage(number, volume, wanted, there),
                Layer::Luks => self.luks(number, volume, wanted, there),
            };
            json!({ "type": layer.word(), "data": data })
        });
        let layers: Vec<Value> = layers.collect();
        let flags: Vec<&str> =
            match wanted.flags.contains(&cluster::objects::VolumeDefinitionFlag::Resize) {
                true => vec!["RESIZE"],
                false => Vec::new(),
            };
        without_empty(json!({
            "volume_number": number.0,
            "storage_pool_name": volume.pool.as_str(),
            "provider_kind": self.provider(volume).word(),
            "device_path": self.device(wanted),
            "allocated_size_kib": self.allocated(volume, wanted, there),
            "usable_size_kib": size::usable(self.definition, wanted).0 / 1024,
            "props": volume.props,
            "flags": flags,
            "state": {
                "disk_state": self.disk_state(there),
                "replication_states": self.replication(there),
            },
            "layer_data_list": layers,
            "uuid": volume.uuid.to_string(),
        }))
    }

    fn show(&self, with_volumes: bool) -> Value {
        let resource = self.resource;
        let state = self.replica.map(|replica| json!({ "in_use": replica.in_use.is_some() }));
        let mut shown = without_empty(json!({
            "name": self.definition.name.as_str(),
            "node_name": resource.node.as_str(),
            "props": shown_props(resource),
            "flags": self.flags(),
            "layer_object": self.layers(),
            "state": state,
            "uuid": resource.uuid.to_string(),
            "create_timestamp": resource.created.0,
        }));
        if with_volumes {
            let volumes = self.volumes().map(|(nr, v, w, t)| self.volume(nr, v, w, t));
            shown["volumes"] = Value::Array(volumes.collect());
        }
        shown
    }
}

/// Resource definitions that are shown one after the other before others have their turn.
const AT_ONCE: usize = 100;

/// What is shown of a resource definition.
fn piece(state: &controller::State, definition: &Definition) -> Piece {
    state.shown.piece(View::Resources, &definition.name, || {
        let resources = state.model.resources_of(&definition.name);
        resources.map(|resource| Seen::new(state, definition, resource).show(true)).collect()
    })
}

/// Makes what is not kept yet, some at a time: nobody can change anything meanwhile.
async fn prepare(app: &App) {
    let missing = {
        let state = app.state();
        let names = state.model.definitions().map(|definition| &definition.name);
        state.shown.missing(View::Resources, names)
    };
    for names in missing.chunks(AT_ONCE) {
        {
            let state = app.state();
            for definition in names.iter().filter_map(|name| state.model.definition(name)) {
                piece(&state, definition);
            }
        }
        tokio::task::yield_now().await;
    }
}

async fn view(State(app): State<App>, asked: Asked) -> List {
    let named = asked.all("resources");
    let nodes = asked.all("nodes");
    if named.is_empty() && nodes.is_empty() {
        prepare(&app).await;
    }
    let state = app.state();
    let model = &state.model;
    // What is named is looked up: the answer to a narrow question does not read everything.
    let definitions: Vec<&Definition> = match (named.is_empty(), nodes.is_empty()) {
        (false, _) => named
            .iter()
            .filter_map(|name| model.definition(&ResourceName::new(name).ok()?))
            .collect(),
        (true, false) => {
            let names = nodes.iter().filter_map(|node| NodeName::new(node).ok());
            let names: BTreeSet<&ResourceName> =
                names.flat_map(|node| model.resources_on(&node)).collect();
            names.into_iter().filter_map(|name| model.definition(name)).collect()
        }
        (true, true) => model.definitions().collect(),
    };
    let pools = !asked.all("storage_pools").is_empty();
    let all = asked.all("props").is_empty();
    let wanted = |resource: &Resource| {
        let in_pool = |volume: &Volume| asked.wants("storage_pools", volume.pool.as_str());
        asked.wants("nodes", resource.node.as_str())
            && (!pools || resource.volumes.values().any(in_pool))
            && (all || asked.wants_props(&shown_props(resource)))
    };
    let piece = |definition: &Definition| piece(&state, definition);
    let (mut offset, mut limit) = asked.part();
    let whole = nodes.is_empty() && !pools && all && limit == usize::MAX;
    let mut list = List::default();
    if whole && named.is_empty() {
        let pieces = definitions.into_iter().map(|found| (&found.name, piece(found)));
        list.push(state.shown.whole(View::Resources, pieces));
        return list;
    }
    for definition in definitions {
        if whole {
            list.push(piece(definition).all());
            continue;
        }
        let resources = model.resources_of(&definition.name).enumerate();
        for (index, _) in resources.filter(|(_, resource)| wanted(resource)) {
            if offset > 0 {
                offset -= 1;
            } else if limit > 0 {
                limit -= 1;
                list.push(piece(definition).one(index));
            } else {
                return list;
            }
        }
    }
    list
}

async fn list(State(app): State<App>, Path(name): Path<String>, asked: Asked) -> Read {
    let state = app.state();
    let definition = find(&state, &name)?;
    let resources = state.model.resources_of(&definition.name);
    let shown = resources.map(|resource| Seen::new(&state, definition, resource).show(false));
    Ok(Found(asked.page(shown.collect())))
}

/// A resource that is there.
fn seen<'a>(state: &'a controller::State, name: &str, node: &str) -> Result<Seen<'a>, Answer> {
    let definition = find(state, name)?;
    let node = NodeName::new(node)?;
    match state.model.resource(&definition.name, &node) {
        Some(resource) => Ok(Seen::new(state, definition, resource)),
        None => {
            let key = Key::Resource(definition.name.clone(), node);
            Err(unknown(Code::UnknownResource, &key).into())
        }
    }
}

async fn one(State(app): State<App>, Path((name, node)): Path<(String, String)>) -> Read {
    let state = app.state();
    Ok(Found(seen(&state, &name, &node)?.show(false)))
}

async fn volumes(
    State(app): State<App>,
    Path((name, node)): Path<(String, String)>,
    asked: Asked,
) -> Read {
    let state = app.state();
    let seen = seen(&state, &name, &node)?;
    let volumes = seen.volumes().map(|(nr, v, w, t)| seen.volume(nr, v, w, t));
    Ok(Found(asked.page(volumes.collect())))
}

async fn volume(
    State(app): State<App>,
    Path((name, node, number)): Path<(String, String, u16)>,
) -> Read {
    let state = app.state();
    let seen = seen(&state, &name, &node)?;
    let found = seen.volumes().find(|(nr, ..)| nr.0 == number);
    match found {
        Some((nr, v, w, t)) => Ok(Found(seen.volume(nr, v, w, t))),
        None => {
            let text = format!("{name} has no volume {number} on node {node}");
            let cause = "there is no volume of that number";
            let answer =
                Answer::refused(Kind::Volume, number::NO_VOLUME, &text, cause, "list them");
            Err(answer)
        }
    }
}

async fn modify_volume(
    State(app): State<App>,
    Path((name, node, number)): Path<(String, String, u16)>,
    Body(body): Body<Modify>,
) -> Changed {
    let (name, node) = (ResourceName::new(&name)?, NodeName::new(&node)?);
    let said = format!("volume {number} of resource {name} of node {node} modified");
    let call = Call::new(Operation::Modify, Kind::Volume, said).about("RscDfn", &name);
    let call = call.about("Node", &node).about("VlmNr", number);
    Ok(call.run(&app, Command::ModifyVolume { name, node, number, props: body.into() }).await)
}

async fn activate(State(app): State<App>, Path((name, node)): Path<(String, String)>) -> Changed {
    let (name, node) = (ResourceName::new(&name)?, NodeName::new(&node)?);
    let said = format!("resource {name} of node {node} activated");
    let call = Call::new(Operation::Modify, Kind::Resource, said).about("RscDfn", &name);
    Ok(call.about("Node", &node).run(&app, Command::ActivateResource { name, node }).await)
}

async fn deactivate(State(app): State<App>, Path((name, node)): Path<(String, String)>) -> Changed {
    let (name, node) = (ResourceName::new(&name)?, NodeName::new(&node)?);
    let said = format!("resource {name} of node {node} deactivated");
    let call = Call::new(Operation::Modify, Kind::Resource, said).about("RscDfn", &name);
    Ok(call.about("Node", &node).run(&app, Command::DeactivateResource { name, node }).await)
}

#[derive(Deserialize, JsonSchema)]
struct NewOne {
    node_name: Option<String>,
    flags: Option<Vec<String>>,
    props: Option<Props>,
}

#[derive(Deserialize, JsonSchema)]
struct CreateResource {
    resource: Option<NewOne>,
    layer_list: Option<Vec<String>>,
    drbd_node_id: Option<u8>,
    drbd_tcp_port_count: Option<u32>,
    drbd_tcp_ports: Option<Vec<u16>>,
    snap_names: Option<Vec<String>>,
    copy_all_snaps: Option<bool>,
    drbd_client: Option<bool>,
}

const COPIES: &str = "snapshots are not copied to new replicas";

impl CreateResource {
    /// The command; `node` is that of the path.
    fn command(self, name: &ResourceName, node: Option<&str>) -> Result<Command, Refusal> {
        let ports = self.drbd_tcp_ports.unwrap_or_default();
        let snapshots = self.snap_names.is_some_and(|list| !list.is_empty());
        let one = "a resource has one port on each node";
        unsupported(&[
            ("snap_names", snapshots, COPIES),
            ("copy_all_snaps", self.copy_all_snaps == Some(true), COPIES),
            ("drbd_tcp_ports", ports.len() > 1, one),
            ("drbd_tcp_port_count", self.drbd_tcp_port_count.is_some_and(|n| n > 1), one),
        ])?;
        let new = self.resource.unwrap_or(NewOne { node_name: None, flags: None, props: None });
        let node = node.or(new.node_name.as_deref()).unwrap_or_default();
        let node = NodeName::new(node)?;
        let (mut diskless, mut client) = (false, self.drbd_client == Some(true));
        for flag in new.flags.unwrap_or_default() {
            match flag.to_ascii_uppercase().as_str() {
                "DISKLESS" | "DRBD_DISKLESS" => diskless = true,
                "CLIENT" => client = true,
                _ => {
                    let text = format!("the flag `{flag}` can not be set");
                    return Err(Refusal::new(Code::InvalidRequest, text)
                        .cause("a resource can be made with DISKLESS or DRBD_DISKLESS")
                        .correction("leave it out"));
                }
            }
        }
        let mut props = new.props.unwrap_or_default();
        let pool = props.remove("StorPoolName").filter(|pool| !pool.is_empty());
        let pool = pool.map(|pool| PoolName::new(&pool)).transpose()?;
        let diskless = diskless || client || pool.as_ref() == Some(&PoolName::diskless());
        let node_id = self.drbd_node_id.map(|id| {
            NodeId::new(id).ok_or_else(|| {
                Refusal::new(Code::InvalidNodeId, format!("{id} is not a DRBD node id"))
                    .cause("ids are 0 to 31")
                    .correction("leave it out, and one is chosen")
            })
        });
        let resource = NewResource {
            pool: pool.filter(|_| !diskless),
            diskless,
            client,
            node_id: node_id.transpose()?,
            port: ports.first().copied(),
            props,
        };
        Ok(Command::CreateResource { name: name.clone(), node, resource })
    }
}

/// What makes a resource, and before it the stack of layers if one is given: the first resource fixes
/// it. One that exists is as it is, whatever the call says of its layers.
fn creation(
    app: &App,
    name: &ResourceName,
    mut body: CreateResource,
    node: Option<&str>,
) -> Result<Vec<Command>, Refusal> {
    let stack = stack(name, body.layer_list.take())?;
    let command = body.command(name, node)?;
    let exists = match &command {
        Command::CreateResource { node, .. } => app.state().model.resource(name, node).is_some(),
        _ => false,
    };
    Ok(stack.filter(|_| !exists).into_iter().chain([command]).collect())
}

/// A stack of layers can be given with the first resource: it is the definition's from then on.
fn stack(name: &ResourceName, list: Option<Vec<String>>) -> Result<Option<Command>, Refusal> {
    Ok(layers(list)?.map(|layers| Command::ModifyDefinition {
        name: name.clone(),
        props: Default::default(),
        group: None,
        layers: Some(layers),
        peer_slots: None,
    }))
}

async fn create_several(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<Vec<CreateResource>>,
) -> Changed {
    let name = ResourceName::new(&name)?;
    let mut commands = Vec::new();
    for one in body {
        commands.extend(creation(&app, &name, one, None)?);
    }
    if commands.is_empty() {
        let refusal = Refusal::new(Code::InvalidRequest, format!("no resource of {name} is named"));
        return Err(refusal.cause("the list is empty").correction("name a node").into());
    }
    let said = format!("resources of {name} created");
    let call = Call::new(Operation::Create, Kind::Resource, said).about("RscDfn", &name);
    Ok(call.run_all(&app, commands).await)
}

async fn create(
    State(app): State<App>,
    Path((name, node)): Path<(String, String)>,
    Body(body): Body<CreateResource>,
) -> Changed {
    let name = ResourceName::new(&name)?;
    let commands = creation(&app, &name, body, Some(&node))?;
    let said = format!("resource {name} of node {node} created");
    let call = Call::new(Operation::Create, Kind::Resource, said).about("RscDfn", &name);
    Ok(call.about("Node", node).run_all(&app, commands).await)
}

#[derive(Deserialize, JsonSchema)]
struct ModifyResource {
    #[serde(flatten)]
    props: Modify,
    drbd_tiebreaker: Option<bool>,
    drbd_client: Option<bool>,
}

async fn modify(
    State(app): State<App>,
    Path((name, node)): Path<(String, String)>,
    Body(body): Body<ModifyResource>,
) -> Changed {
    let why = "a resource gets its part when it is made or its disk is toggled";
    unsupported(&[
        ("drbd_tiebreaker", body.drbd_tiebreaker.is_some(), why),
        ("drbd_client", body.drbd_client.is_some(), why),
    ])?;
    let (name, node) = (ResourceName::new(&name)?, NodeName::new(&node)?);
    let said = format!("resource {name} of node {node} modified");
    let call = Call::new(Operation::Modify, Kind::Resource, said).about("RscDfn", &name);
    let call = call.about("Node", &node);
    Ok(call.run(&app, Command::ModifyResource { name, node, props: body.props.into() }).await)
}

async fn delete(
    State(app): State<App>,
    Path((name, node)): Path<(String, String)>,
    asked: Asked,
) -> Changed {
    let (name, node) = (ResourceName::new(&name)?, NodeName::new(&node)?);
    let keep_tie_breaker = asked.flag("keep_tiebreaker");
    let said = format!("resource {name} of node {node} is deleted");
    let call = Call::new(Operation::Delete, Kind::Resource, said).about("RscDfn", &name);
    let call = call.about("Node", &node);
    Ok(call.run(&app, Command::DeleteResource { name, node, keep_tie_breaker }).await)
}

#[derive(Deserialize, JsonSchema)]
struct Autoplace {
    diskless_on_remaining: Option<bool>,
    select_filter: Option<SelectFilter>,
    layer_list: Option<Vec<String>>,
    snap_names: Option<Vec<String>>,
    copy_all_snaps: Option<bool>,
}

async fn autoplace(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<Autoplace>,
) -> Changed {
    let snapshots = body.snap_names.is_some_and(|list| !list.is_empty());
    unsupported(&[
        ("snap_names", snapshots, COPIES),
        ("copy_all_snaps", body.copy_all_snaps == Some(true), COPIES),
    ])?;
    let name = ResourceName::new(&name)?;
    let mut filter = body.select_filter.unwrap_or_default().filter()?;
    filter.diskless_on_remaining = body.diskless_on_remaining.or(filter.diskless_on_remaining);
    let mut commands = Vec::new();
    // The stack is fixed with the first resource.
    if app.state().model.resources_of(&name).next().is_none() {
        commands.extend(stack(&name, body.layer_list)?);
    }
    commands.push(Command::Autoplace { name: name.clone(), filter });
    let said = format!("{name} placed");
    let call = Call::new(Operation::Create, Kind::Resource, said).about("RscDfn", &name);
    Ok(call.run_all(&app, commands).await)
}

#[derive(Deserialize, JsonSchema)]
struct MakeAvailable {
    layer_list: Option<Vec<String>>,
    diskful: Option<bool>,
    drbd_tcp_ports: Option<Vec<u16>>,
    snap_names: Option<Vec<String>>,
    copy_all_snaps: Option<bool>,
}

async fn make_available(
    State(app): State<App>,
    Path((name, node)): Path<(String, String)>,
    Body(body): Body<MakeAvailable>,
) -> Changed {
    let given = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|list| !list.is_empty());
    let ports = body.drbd_tcp_ports.is_some_and(|list| !list.is_empty());
    unsupported(&[
        ("snap_names", given(&body.snap_names), COPIES),
        ("copy_all_snaps", body.copy_all_snaps == Some(true), COPIES),
        ("drbd_tcp_ports", ports, "the port is chosen here"),
    ])?;
    let (name, node) = (ResourceName::new(&name)?, NodeName::new(&node)?);
    if let Some(asked) = layers(body.layer_list)? {
        let state = app.state();
        let definition = find(&state, name.as_str())?;
        if cluster::layer::stack(&asked)?.0 != definition.layers {
            let key = Key::Definition(name);
            let text = format!("{key} has other layers");
            return Err(Refusal::new(Code::InvalidLayerStack, text)
                .cause("the layers of a resource definition are the same on every node")
                .correction("leave them out")
                .about(key)
                .into());
        }
    }
    let said = format!("{name} is available on node {node}");
    let call = Call::new(Operation::Modify, Kind::Resource, said).about("RscDfn", &name);
    let call = call.about("Node", &node);
    let diskful = body.diskful.unwrap_or(false);
    Ok(call.run(&app, Command::MakeAvailable { name, node, diskful }).await)
}

#[derive(Deserialize, JsonSchema, Default)]
#[serde(default)]
struct ToggleDisk {
    operation: Option<String>,
    storage_pool: Option<String>,
    migrate_from: Option<String>,
    layer_list: Option<Vec<String>>,
}

async fn toggle_by_body(
    State(app): State<App>,
    Path((name, node)): Path<(String, String)>,
    Body(body): Body<ToggleDisk>,
) -> Changed {
    let listed = body.layer_list.is_some_and(|list| !list.is_empty());
    unsupported(&[("layer_list", listed, "the layers are the definition's")])?;
    let word = body.operation.unwrap_or_else(|| "INTO_DRBD_DISKFUL".to_owned());
    let (diskful, client) = match word.to_ascii_uppercase().as_str() {
        "INTO_DRBD_DISKFUL" => (true, false),
        "INTO_DRBD_DISKLESS" => (false, false),
        "INTO_DRBD_CLIENT" => (false, true),
        _ => {
            let text = format!("`{word}` is not an operation on a disk");
            return Err(Refusal::new(Code::InvalidRequest, text)
                .cause("there are INTO_DRBD_DISKFUL, INTO_DRBD_DISKLESS and INTO_DRBD_CLIENT")
                .correction("use one of these")
                .into());
        }
    };
    let pool = body.storage_pool.filter(|pool| !pool.is_empty());
    let from = body.migrate_from.filter(|node| !node.is_empty());
    toggle(&app, Disk { resource: name, node, from, pool }, diskful, client).await
}

/// The disk that is toggled, as paths name it.
#[derive(Deserialize, JsonSchema)]
struct Disk {
    resource: String,
    node: String,
    /// The node whose disk it takes the place of.
    from: Option<String>,
    pool: Option<String>,
}

async fn to_diskless(State(app): State<App>, Path(disk): Path<Disk>) -> Changed {
    // The pool of a diskless resource is always the same.
    let other = disk.pool.as_deref().map(PoolName::new).transpose()?;
    let other = other.is_some_and(|pool| pool != PoolName::diskless());
    unsupported(&[("pool", other, "diskless resources are in DfltDisklessStorPool")])?;
    toggle(&app, Disk { pool: None, ..disk }, false, false).await
}

async fn to_diskful(State(app): State<App>, Path(disk): Path<Disk>) -> Changed {
    toggle(&app, disk, true, false).await
}

async fn toggle(app: &App, disk: Disk, diskful: bool, client: bool) -> Changed {
    let (name, node) = (ResourceName::new(&disk.resource)?, NodeName::new(&disk.node)?);
    let pool = disk.pool.as_deref().map(PoolName::new).transpose()?;
    let migrate_from = disk.from.as_deref().map(NodeName::new).transpose()?;
    let said = match diskful {
        true => format!("resource {name} of node {node} gets a disk"),
        false => format!("resource {name} of node {node} becomes diskless"),
    };
    let call = Call::new(Operation::Modify, Kind::Resource, said).about("RscDfn", &name);
    let call = call.about("Node", &node);
    let command = Command::ToggleDisk { name, node, diskful, pool, migrate_from, client };
    Ok(call.run(app, command).await)
}

fn show_connection(a: &NodeName, b: &NodeName, props: &Props) -> Value {
    json!({ "node_a": a.as_str(), "node_b": b.as_str(), "props": props })
}

/// Every pair of nodes, whether it has properties or not: that is what can be modified.
async fn connections(State(app): State<App>, Path(name): Path<String>) -> Read {
    let state = app.state();
    let definition = find(&state, &name)?;
    let nodes: Vec<&NodeName> =
        state.model.resources_of(&definition.name).map(|resource| &resource.node).collect();
    let none = Props::new();
    let pairs = nodes
        .iter()
        .enumerate()
        .flat_map(|(index, a)| nodes[index + 1..].iter().map(move |b| (*a, *b)));
    let shown = pairs.map(|(a, b)| {
        let props = state.model.resource_connection(&definition.name, a, b).unwrap_or(&none);
        show_connection(a, b, props)
    });
    Ok(Found(Value::Array(shown.collect())))
}

async fn connection(
    State(app): State<App>,
    Path((name, a, b)): Path<(String, String, String)>,
) -> Read {
    let state = app.state();
    let a = seen(&state, &name, &a)?;
    let b = seen(&state, &name, &b)?;
    let none = Props::new();
    let (a, b) = (&a.resource.node, &b.resource.node);
    let name = ResourceName::new(&name)?;
    let props = state.model.resource_connection(&name, a, b).unwrap_or(&none);
    Ok(Found(show_connection(a, b, props)))
}

async fn modify_connection(
    State(app): State<App>,
    Path((name, a, b)): Path<(String, String, String)>,
    Body(body): Body<Modify>,
) -> Changed {
    let name = ResourceName::new(&name)?;
    let (a, b) = (NodeName::new(&a)?, NodeName::new(&b)?);
    let said = format!("connection of {name} at {a} and {b} modified");
    let call = Call::new(Operation::Modify, Kind::ResourceConnection, said);
    let call = call.about("RscDfn", &name).about("Node", &a).about("Node2", &b);
    Ok(call.run(&app, Command::ModifyResourceConnection { name, a, b, props: body.into() }).await)
}

/// The properties of a resource with its pool among them, as LINSTOR has it.
fn shown_props(resource: &Resource) -> Cow<'_, Props> {
    const POOL: &str = "StorPoolName";
    let pool = match resource.is_diskful() {
        true => resource.volumes.values().next().map(|volume| volume.pool.clone()),
        false => Some(PoolName::diskless()),
    };
    match pool {
        Some(pool) if resource.props.get(POOL).is_none_or(|own| *own != pool.as_str()) => {
            let mut props = resource.props.clone();
            props.insert(POOL.to_owned(), pool.to_string());
            Cow::Owned(props)
        }
        _ => Cow::Borrowed(&resource.props),
    }
}
