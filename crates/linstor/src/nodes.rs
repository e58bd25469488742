//! Nodes, their network interfaces, and connections between nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use axum::extract::State;
use axum::http::Method;
use cluster::change::Key;
use cluster::command::{Command, NewNetInterface};
use cluster::eviction::evictions;
use cluster::layer::Layer;
use cluster::name::{NetIfName, NodeName};
use cluster::objects::{Encryption, Millis, Node, NodeFlag, NodeKind, Props, Provider};
use cluster::refusal::{Code, Refusal};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{Answer, Call, Changed, Found, Read, without_empty};
use crate::ask::{App, Asked, Body, Modify, Path, names};
use crate::code::{Kind, Operation, number};
use crate::controller;
use crate::routes::{PAGE, Routes};

/// The property that names the interface which carries the agent's link.
const ACTIVE: &str = "CurStltConnName";
/// The port of an agent, if none is given.
const PORT: u16 = 3366;

pub fn routes() -> Routes {
    const N: &str = "/v1/nodes/{node}";
    let interface = format!("{N}/net-interfaces/{{interface}}");
    Routes::new()
        .get("/v1/nodes", list)
        .asks(&["nodes", "props", "limit", "offset"])
        .admin(Method::POST, "/v1/nodes", create)
        .get(N, one)
        .admin(Method::PUT, N, modify)
        .admin(Method::DELETE, N, delete)
        .admin(Method::DELETE, &format!("{N}/lost"), lose)
        .admin(Method::PUT, &format!("{N}/reconnect"), reconnect)
        .admin(Method::PUT, &format!("{N}/restore"), restore)
        .admin(Method::PUT, &format!("{N}/evacuate"), evacuate)
        .admin(Method::PUT, &format!("{N}/evict"), evict)
        .get(&format!("{N}/net-interfaces"), interfaces)
        .asks(PAGE)
        .admin(Method::POST, &format!("{N}/net-interfaces"), create_interface)
        .get(&interface, self::interface)
        .admin(Method::PUT, &interface, modify_interface)
        .admin(Method::DELETE, &interface, delete_interface)
        .get("/v1/node-connections", connections)
        .asks(&["node_a", "node_b"])
        .get("/v1/node-connections/{a}/{b}", connection)
        .admin(Method::PUT, "/v1/node-connections/{a}/{b}", modify_connection)
        .admin(Method::POST, "/v1/nodes/ebs", ebs)
}

/// A node as clients see it.
pub fn show(
    state: &controller::State,
    evictions: &BTreeMap<NodeName, Millis>,
    node: &Node,
) -> Value {
    let observed = state.observed.nodes.get(&node.name);
    let connected = observed.is_some_and(|observed| observed.connected);
    let interfaces: Vec<Value> =
        node.net_interfaces.keys().map(|name| show_interface(node, name)).collect();
    let mut flags: Vec<&str> = node.flags.iter().map(|flag| flag.word()).collect();
    // For clients of LINSTOR an evicted node is one that is deleted, too.
    if node.flags.contains(&NodeFlag::Evicted) && !node.flags.contains(&NodeFlag::Delete) {
        flags.insert(0, NodeFlag::Delete.word());
    }
    let has_layer = |layer: &Layer| observed.is_some_and(|o| o.layers.contains(layer));
    let has_kind = |kind: &Provider| observed.is_some_and(|o| o.providers.contains(kind));
    let layers: Vec<&str> = Layer::ALL.iter().filter(|l| has_layer(l)).map(|l| l.word()).collect();
    let kinds = Provider::ALL.iter().filter(|kind| has_kind(kind)).map(|kind| kind.word());
    let why = || json!(["the node's agent does not support it"]);
    let without = |all: Vec<&str>| -> Value {
        let map = all.into_iter().map(|word| (word.to_owned(), why()));
        Value::Object(map.collect())
    };
    let (no_layers, no_kinds) = match connected {
        true => (
            Layer::ALL.iter().filter(|layer| !has_layer(layer)).map(|layer| layer.word()).collect(),
            Provider::ALL.iter().filter(|kind| !has_kind(kind)).map(|kind| kind.word()).collect(),
        ),
        false => (Vec::new(), Vec::new()),
    };
    let reachable = node.net_interfaces.values().any(|interface| interface.agent.is_some());
    let status = match (connected, reachable) {
        (true, _) => "ONLINE",
        (false, true) => "OFFLINE",
        (false, false) => "NO_STLT_CONN",
    };
    // When it was, or will be.
    let evicted_at = node.evicted_at.or_else(|| evictions.get(&node.name).copied());
    without_empty(json!({
        "name": node.name.as_str(),
        "type": node.kind.word(),
        "flags": flags,
        "props": node.props,
        "net_interfaces": interfaces,
        "connection_status": status,
        "uuid": node.uuid.to_string(),
        "storage_providers": kinds.collect::<Vec<_>>(),
        "resource_layers": layers,
        "unsupported_providers": without(no_kinds),
        "unsupported_layers": without(no_layers),
        "eviction_timestamp": evicted_at.map(|at| at.0),
    }))
}

fn show_interface(node: &Node, name: &NetIfName) -> Value {
    let Some(found) = node.net_interfaces.get(name) else { return Value::Null };
    let active = node.props.get(ACTIVE).is_some_and(|a| a.eq_ignore_ascii_case(name.as_str()));
    without_empty(json!({
        "name": name.as_str(),
        "address": found.address.to_string(),
        "satellite_port": found.agent.map(|(port, _)| port),
        "satellite_encryption_type": found.agent.map(|(_, encryption)| encryption.word()),
        "is_active": active,
        "uuid": found.uuid.to_string(),
    }))
}

/// A node that is there.
fn find<'a>(state: &'a controller::State, name: &str) -> Result<&'a Node, Answer> {
    let name = NodeName::new(name)?;
    state.model.node(&name).ok_or_else(|| unknown(Code::UnknownNode, &Key::Node(name)).into())
}

/// A refusal for what is not there.
pub fn unknown(code: Code, key: &Key) -> Refusal {
    Refusal::new(code, format!("{key} does not exist"))
        .cause("there is no object of that name")
        .correction("list what there is, or create it")
        .about(key.clone())
}

async fn list(State(app): State<App>, asked: Asked) -> Found {
    let state = app.state();
    let nodes = state
        .model
        .nodes()
        .filter(|node| asked.wants("nodes", node.name.as_str()) && asked.wants_props(&node.props));
    let evictions = evictions(&state.model, &state.observed);
    Found(asked.page(nodes.map(|node| show(&state, &evictions, node)).collect()))
}

async fn one(State(app): State<App>, Path(name): Path<String>) -> Read {
    let state = app.state();
    let evictions = evictions(&state.model, &state.observed);
    Ok(Found(show(&state, &evictions, find(&state, &name)?)))
}

#[derive(Deserialize, JsonSchema)]
struct NewInterface {
    name: String,
    #[serde(default)]
    address: String,
    satellite_port: Option<u16>,
    satellite_encryption_type: Option<String>,
    is_active: Option<bool>,
}

impl NewInterface {
    /// As the control plane has it. With `always` it carries the agent's link whatever it says.
    fn interface(&self, always: bool) -> Result<NewNetInterface, Refusal> {
        let name = NetIfName::new(&self.name)?;
        let address: IpAddr = self.address.parse().map_err(|_| {
            let text = format!("`{}` is not an address", self.address);
            Refusal::new(Code::InvalidNetAddress, text)
                .cause("names are not resolved here")
                .correction("give an IPv4 or IPv6 address")
        })?;
        let encryption = match self.satellite_encryption_type.as_deref() {
            None | Some("") => Encryption::Plain,
            Some(word) => Encryption::from_word(word).ok_or_else(|| {
                Refusal::new(Code::InvalidRequest, format!("`{word}` is not a kind of encryption"))
                    .cause("there are PLAIN and SSL")
                    .correction("use one of them")
            })?,
        };
        let agent = match self.satellite_port {
            None if !always => None,
            port => Some((port.unwrap_or(PORT), encryption)),
        };
        Ok(NewNetInterface { name, address, agent })
    }
}

#[derive(Deserialize, JsonSchema)]
struct NewNode {
    name: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    props: Props,
    #[serde(default)]
    net_interfaces: Vec<NewInterface>,
}

fn kind(word: &str) -> Result<NodeKind, Refusal> {
    NodeKind::from_word(word).ok_or_else(|| {
        Refusal::new(Code::InvalidNodeType, format!("`{word}` is not a type of a node here"))
            .cause("there are Controller, Satellite, Combined and Auxiliary")
            .correction("use one of these")
    })
}

async fn create(State(app): State<App>, Body(body): Body<NewNode>) -> Changed {
    let name = NodeName::new(&body.name)?;
    let kind = kind(body.kind.as_deref().unwrap_or("Satellite"))?;
    let first = body.net_interfaces.iter().position(|i| i.is_active == Some(true)).unwrap_or(0);
    let mut interfaces = Vec::new();
    for (index, interface) in body.net_interfaces.iter().enumerate() {
        let new = interface.interface(kind.holds_resources() && index == first)?;
        // The first one is active.
        if index == first { interfaces.insert(0, new) } else { interfaces.push(new) }
    }
    let call = Call::one(Operation::Create, Kind::Node, &name);
    let (net_interfaces, props) = (interfaces, body.props);
    Ok(call.run(&app, Command::CreateNode { name, kind, net_interfaces, props }).await)
}

async fn ebs() -> Answer {
    let text = "nodes of type EBS can not be created";
    let cause = "there is no storage provider of a cloud here";
    Answer::refused(Kind::Node, Code::InvalidNodeType.number(), text, cause, "create satellites")
}

#[derive(Deserialize, JsonSchema)]
struct ModifyNode {
    node_type: Option<String>,
    #[serde(flatten)]
    props: Modify,
}

async fn modify(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<ModifyNode>,
) -> Changed {
    let name = NodeName::new(&name)?;
    let kind = body.node_type.as_deref().filter(|word| !word.is_empty()).map(kind).transpose()?;
    let call = Call::one(Operation::Modify, Kind::Node, &name);
    Ok(call.run(&app, Command::ModifyNode { name, kind, props: body.props.into() }).await)
}

async fn delete(State(app): State<App>, Path(name): Path<String>) -> Changed {
    let name = NodeName::new(&name)?;
    let call = Call::new(Operation::Delete, Kind::Node, format!("node {name} is being deleted"));
    Ok(call.about("Node", &name).run(&app, Command::DeleteNode { name }).await)
}

async fn lose(State(app): State<App>, Path(name): Path<String>) -> Changed {
    let name = NodeName::new(&name)?;
    let call = Call::new(Operation::Delete, Kind::Node, format!("node {name} is forgotten"));
    Ok(call.about("Node", &name).run(&app, Command::LoseNode { name }).await)
}

/// Agents dial the controller, and do so at once when they are cut off: there is nothing to do.
async fn reconnect(State(app): State<App>, Path(name): Path<String>) -> Changed {
    let state = app.state();
    let node = find(&state, &name)?;
    let connected = state.observed.is_connected(&node.name);
    let text = match connected {
        true => format!("node {} is connected", node.name),
        false => format!("node {} is not connected", node.name),
    };
    let (severity, number) = match connected {
        true => (crate::code::Severity::Info, 10_007),
        false => (crate::code::Severity::Warning, number::AWAY),
    };
    let code = crate::code::code(severity, Operation::Modify, Kind::Node, number);
    let cause = "agents dial the controller by themselves, again and again";
    let next = if connected { "" } else { "look whether the agent runs there" };
    Ok(crate::answer::Entry::new(code, text).because(cause, next).into())
}

#[derive(Deserialize, JsonSchema)]
struct RestoreNode {
    delete_resources: Option<bool>,
    delete_snapshots: Option<bool>,
}

async fn restore(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<RestoreNode>,
) -> Changed {
    let name = NodeName::new(&name)?;
    let call = Call::new(Operation::Modify, Kind::Node, format!("node {name} restored"));
    let call = call.about("Node", &name);
    let delete_resources = body.delete_resources.unwrap_or(false);
    let delete_snapshots = body.delete_snapshots.unwrap_or(false);
    let command = Command::RestoreNode { name, delete_resources, delete_snapshots };
    Ok(call.run(&app, command).await)
}

#[derive(Deserialize, JsonSchema)]
struct EvacuateNode {
    target: Option<Vec<String>>,
    do_not_target: Option<Vec<String>>,
}

async fn evacuate(
    State(app): State<App>,
    Path(name): Path<String>,
    Body(body): Body<EvacuateNode>,
) -> Changed {
    let name = NodeName::new(&name)?;
    let call = Call::new(Operation::Modify, Kind::Node, format!("node {name} is being evacuated"));
    let call = call.about("Node", &name);
    let to = names(body.target, NodeName::new)?.filter(|list| !list.is_empty());
    let not_to = names(body.do_not_target, NodeName::new)?.unwrap_or_default();
    Ok(call.run(&app, Command::EvacuateNode { name, to, not_to }).await)
}

async fn evict(State(app): State<App>, Path(name): Path<String>) -> Changed {
    let name = NodeName::new(&name)?;
    let call = Call::new(Operation::Modify, Kind::Node, format!("node {name} is evicted"));
    Ok(call.about("Node", &name).run(&app, Command::EvictNode { name }).await)
}

async fn interfaces(State(app): State<App>, Path(name): Path<String>, asked: Asked) -> Read {
    let state = app.state();
    let node = find(&state, &name)?;
    let all = node.net_interfaces.keys().map(|name| show_interface(node, name));
    Ok(Found(asked.page(all.collect())))
}

async fn interface(State(app): State<App>, Path((node, name)): Path<(String, String)>) -> Read {
    let state = app.state();
    let node = find(&state, &node)?;
    let name = NetIfName::new(&name)?;
    Ok(Found(show_interface(node, known(node, &name)?)))
}

/// The name of an interface that a node has.
fn known<'a>(node: &Node, name: &'a NetIfName) -> Result<&'a NetIfName, Refusal> {
    if node.net_interfaces.contains_key(name) {
        return Ok(name);
    }
    let text = format!("node {} has no interface {name}", node.name);
    Err(Refusal::new(Code::UnknownNetIf, text).correction("list its interfaces"))
}

async fn create_interface(
    State(app): State<App>,
    Path(node): Path<String>,
    Body(body): Body<NewInterface>,
) -> Changed {
    let node = NodeName::new(&node)?;
    let interface = body.interface(false)?;
    let said = format!("interface {} of node {node} created", interface.name);
    let call = Call::new(Operation::Create, Kind::NetInterface, said);
    let call = call.about("Node", &node).about("NetIf", &interface.name);
    let activate = body.is_active.unwrap_or(false);
    Ok(call.run(&app, Command::CreateNetInterface { node, interface, activate }).await)
}

async fn modify_interface(
    State(app): State<App>,
    Path((node, name)): Path<(String, String)>,
    Body(mut body): Body<Value>,
) -> Changed {
    // What is left out stays as it is.
    let current = {
        let state = app.state();
        let node = find(&state, &node)?;
        show_interface(node, known(node, &NetIfName::new(&name)?)?)
    };
    if let (Some(body), Value::Object(current)) = (body.as_object_mut(), current) {
        for (key, value) in current.into_iter().filter(|(key, _)| key != "is_active") {
            if body.get(&key).is_none_or(Value::is_null) {
                body.insert(key, value);
            }
        }
        body.insert("name".to_owned(), json!(name));
    }
    let body: NewInterface = crate::lenient::from_value(body).map_err(|error| {
        Refusal::new(Code::InvalidRequest, "the interface can not be read")
            .cause(error.to_string())
            .correction("send name, address, port and type")
    })?;
    let node = NodeName::new(&node)?;
    let interface = body.interface(false)?;
    let said = format!("interface {} of node {node} modified", interface.name);
    let call = Call::new(Operation::Modify, Kind::NetInterface, said);
    let call = call.about("Node", &node).about("NetIf", &interface.name);
    let activate = body.is_active.unwrap_or(false);
    Ok(call.run(&app, Command::ModifyNetInterface { node, interface, activate }).await)
}

async fn delete_interface(
    State(app): State<App>,
    Path((node, name)): Path<(String, String)>,
) -> Changed {
    let (node, name) = (NodeName::new(&node)?, NetIfName::new(&name)?);
    let said = format!("interface {name} of node {node} deleted");
    let call = Call::new(Operation::Delete, Kind::NetInterface, said).about("Node", &node);
    Ok(call.about("NetIf", &name).run(&app, Command::DeleteNetInterface { node, name }).await)
}

fn show_connection(a: &NodeName, b: &NodeName, props: &Props) -> Value {
    json!({ "node_a": a.as_str(), "node_b": b.as_str(), "props": props })
}

async fn connections(State(app): State<App>, asked: Asked) -> Found {
    let state = app.state();
    let all = state.model.node_connections().filter(|((a, b), _)| {
        let either = |name: &str| asked.wants(name, a.as_str()) || asked.wants(name, b.as_str());
        either("node_a") && either("node_b")
    });
    Found(Value::Array(all.map(|((a, b), props)| show_connection(a, b, props)).collect()))
}

async fn connection(State(app): State<App>, Path((a, b)): Path<(String, String)>) -> Read {
    let state = app.state();
    let (a, b) = (&find(&state, &a)?.name, &find(&state, &b)?.name);
    let none = Props::new();
    let props = state.model.node_connection(a, b).unwrap_or(&none);
    Ok(Found(show_connection(a, b, props)))
}

async fn modify_connection(
    State(app): State<App>,
    Path((a, b)): Path<(String, String)>,
    Body(body): Body<Modify>,
) -> Changed {
    let (a, b) = (NodeName::new(&a)?, NodeName::new(&b)?);
    let said = format!("connection of nodes {a} and {b} modified");
    let call = Call::new(Operation::Modify, Kind::NodeConnection, said);
    let call = call.about("Node", &a).about("Node2", &b);
    Ok(call.run(&app, Command::ModifyNodeConnection { a, b, props: body.into() }).await)
}
