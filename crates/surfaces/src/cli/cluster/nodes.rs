//! Nodes: what they are, and bringing them in and out.

use serde::Serialize;
use serde_json::json;

use super::super::each::EachInTurn;
use super::super::error::Error;
use super::args::{NewNode, NodeCommand};
use super::http::{Change, Http, part, query};
use super::table::{self, Cell, Row, Tone};
use super::view::{Definition, Node, Pool, Resource, is_any, settled};
use super::wait::Progress;
use super::{Session, pools};

pub(super) fn run(session: &mut Session<'_>, command: &NodeCommand) -> Result<(), Error> {
    match command {
        NodeCommand::List => {
            let nodes: Vec<Node> = session.get("node list", "/v1/nodes")?;
            let rows: Vec<NodeRow> = nodes.iter().map(NodeRow::of).collect();
            session.list(&rows)
        }
        NodeCommand::Info { name } => info(session, name),
        NodeCommand::Drain { name, to, not_to, how } => {
            let body = json!({ "target": to, "do_not_target": not_to });
            let change = Change::Put(format!("/v1/nodes/{}/evacuate", part(name)), body);
            let empty = |http: &Http| is_empty(http, name);
            let follow: super::Follow<'_> = &empty;
            let what = format!("node {name}: drain");
            session.change(&what, &change, (!how.no_wait).then_some(follow)).map(drop)
        }
        NodeCommand::Restore { name, delete_replicas, delete_snapshots, .. } => {
            let body = json!({
                "delete_resources": delete_replicas, "delete_snapshots": delete_snapshots,
            });
            let change = Change::Put(format!("/v1/nodes/{}/restore", part(name)), body);
            session.change(&format!("node {name}: restore"), &change, None).map(drop)
        }
        NodeCommand::Evict { name, how } => {
            let change = Change::Put(format!("/v1/nodes/{}/evict", part(name)), json!({}));
            let concerned = resources_on(&session.http, name)?;
            let names: Vec<String> = concerned.into_iter().map(|r| r.name).collect();
            let elsewhere = |http: &Http| others_settled(http, &names, name);
            let follow: super::Follow<'_> = &elsewhere;
            let what = format!("node {name}: evict");
            session.change(&what, &change, (!how.no_wait).then_some(follow)).map(drop)
        }
        NodeCommand::Lost { name, .. } => {
            let change = Change::Delete(format!("/v1/nodes/{}/lost", part(name)));
            session.change(&format!("node {name}: lost"), &change, None).map(drop)
        }
        NodeCommand::Delete { name, how } => {
            let change = Change::Delete(format!("/v1/nodes/{}", part(name)));
            let gone = |http: &Http| is_gone(http, name);
            let follow: super::Follow<'_> = &gone;
            let what = format!("node {name}: delete");
            session.change(&what, &change, (!how.no_wait).then_some(follow)).map(drop)
        }
    }
}

pub(super) fn create(session: &mut Session<'_>, nodes: &[NewNode]) -> Result<(), Error> {
    session.all(nodes, |session, NewNode { name, address }| {
        let interface = json!({ "name": "default", "address": address, "is_active": true });
        let body = json!({ "name": name, "type": "Satellite", "net_interfaces": [interface] });
        let change = Change::Post("/v1/nodes".to_owned(), body);
        session.change(&format!("node {name}: create"), &change, None).map(drop)
    })
}

/// Every node that can hold replicas.
pub(super) fn all(http: &Http) -> Result<Vec<Node>, Error> {
    let nodes: Vec<Node> = http.get("nodes", "/v1/nodes")?;
    Ok(nodes.into_iter().filter(Node::holds_replicas).collect())
}

fn resources_on(http: &Http, node: &str) -> Result<Vec<Resource>, Error> {
    let names = [node.to_owned()];
    http.get(node, &format!("/v1/view/resources{}", query("nodes", &names)))
}

/// How far a node is from holding nothing.
fn is_empty(http: &Http, node: &str) -> Result<Progress, Error> {
    let left = resources_on(http, node)?;
    if left.is_empty() {
        return Ok(Progress::Done);
    }
    let all: Vec<Definition> = http.get(node, "/v1/resource-definitions")?;
    let names: Vec<String> = left.iter().map(drained).take(3).collect();
    let more = left.len().saturating_sub(3);
    let names = names.join(", ");
    let text = if more > 0 { format!("{names}, and {more} more") } else { names };
    let share = 1.0 - left.len() as f64 / all.len().max(left.len()) as f64;
    Ok(Progress::going(&text, share))
}

fn drained(resource: &Resource) -> String {
    let why = match (resource.is_in_use(), resource.is_leaving()) {
        (true, _) => "is in use there, close it",
        (false, true) => "is being removed",
        (false, false) => "is being copied elsewhere",
    };
    format!("{} {why}", resource.name)
}

/// How far these volumes are from being whole without a node.
fn others_settled(http: &Http, names: &[String], node: &str) -> Result<Progress, Error> {
    if names.is_empty() {
        return Ok(Progress::Done);
    }
    let path = format!("/v1/view/resources{}", query("resources", names));
    let resources: Vec<Resource> = http.get(node, &path)?;
    let others =
        resources.into_iter().filter(|resource| !resource.node_name.eq_ignore_ascii_case(node));
    let others: Vec<Resource> = others.collect();
    Ok(settled(&others, true))
}

fn is_gone(http: &Http, node: &str) -> Result<Progress, Error> {
    let nodes: Vec<Node> = http.get(node, "/v1/nodes")?;
    if !nodes.iter().any(|other| other.name.eq_ignore_ascii_case(node)) {
        return Ok(Progress::Done);
    }
    match is_empty(http, node)? {
        Progress::Done => Ok(Progress::going("its record is still there", 0.9)),
        going => Ok(going),
    }
}

fn info(session: &mut Session<'_>, name: &str) -> Result<(), Error> {
    let node: Node = session.get(&format!("node {name}"), &format!("/v1/nodes/{}", part(name)))?;
    let path = format!("/v1/nodes/{}/storage-pools", part(name));
    let found: Vec<Pool> = session.get(&format!("pools of {name}"), &path)?;
    let found: Vec<Pool> = found.into_iter().filter(pools::is_storage).collect();
    let resources = resources_on(&session.http, &node.name)?;
    let replicas: Vec<OnNode> = resources.iter().map(OnNode::of).collect();
    if session.json {
        let addresses: Vec<_> = node.net_interfaces.iter().map(|i| (&i.name, &i.address)).collect();
        let addresses: std::collections::BTreeMap<_, _> = addresses.into_iter().collect();
        let whole = json!({
            "node": NodeRow::of(&node),
            "addresses": addresses,
            "properties": node.props,
            "storage": node.storage_providers,
            "layers": node.resource_layers,
            "pools": found.iter().map(pools::PoolRow::of).collect::<Vec<_>>(),
            "volumes": replicas,
        });
        return table::as_json(session.out, &whole);
    }
    writeln!(session.out, "node {} is {}", node.name, node.state())?;
    for interface in &node.net_interfaces {
        let active = if interface.is_active { " (active)" } else { "" };
        writeln!(session.out, "  address {}: {}{active}", interface.name, interface.address)?;
    }
    if node.is_online() {
        writeln!(session.out, "  storage: {}", node.storage_providers.join(" "))?;
        writeln!(session.out, "  layers: {}", node.resource_layers.join(" "))?;
    }
    for (key, value) in &node.props {
        writeln!(session.out, "  property {key}={value}")?;
    }
    writeln!(session.out)?;
    session.list(&found.iter().map(pools::PoolRow::of).collect::<Vec<_>>())?;
    writeln!(session.out)?;
    session.list(&replicas)
}

/// A node in a list.
#[derive(Serialize)]
struct NodeRow<'a> {
    node: &'a str,
    state: &'static str,
    address: &'a str,
    kind: String,
    flags: &'a [String],
}

impl<'a> NodeRow<'a> {
    fn of(node: &'a Node) -> NodeRow<'a> {
        let (state, address) = (node.state(), node.address());
        let kind = node.kind.to_ascii_lowercase();
        NodeRow { node: &node.name, state, address, kind, flags: &node.flags }
    }
}

impl Row for NodeRow<'_> {
    const COLUMNS: &'static [&'static str] = &["NODE", "STATE", "ADDRESS", "KIND"];
    fn cells(&self) -> Vec<Cell> {
        let tone = match self.state {
            "online" => Tone::Good,
            "offline" | "evicted" => Tone::Bad,
            _ => Tone::Busy,
        };
        let state = Cell::toned(self.state, tone);
        vec![self.node.into(), state, self.address.into(), self.kind.as_str().into()]
    }
}

/// A volume on a node.
#[derive(Serialize)]
struct OnNode<'a> {
    volume: &'a str,
    part: String,
    disk: String,
    in_use: bool,
    #[serde(skip)]
    good: bool,
}

impl<'a> OnNode<'a> {
    fn of(resource: &'a Resource) -> OnNode<'a> {
        let moving = is_any(&resource.flags, &["EVACUATE", "EVICTED"]);
        OnNode {
            volume: &resource.name,
            part: resource.part(),
            disk: resource.disk(),
            in_use: resource.is_in_use(),
            good: !moving
                && (!resource.is_replica() || resource.is_inactive() || resource.is_up_to_date()),
        }
    }
}

impl Row for OnNode<'_> {
    const COLUMNS: &'static [&'static str] = &["VOLUME", "PART", "DISK", "IN USE"];
    fn cells(&self) -> Vec<Cell> {
        let tone = if self.good { Tone::Good } else { Tone::Busy };
        let in_use = if self.in_use { "yes" } else { "" };
        let disk = Cell::toned(self.disk.as_str(), tone);
        vec![self.volume.into(), self.part.as_str().into(), disk, in_use.into()]
    }
}
