//! Nodes and their network interfaces.

use std::collections::{BTreeMap, BTreeSet};

use crate::change::{Key, Object};
use crate::command::NewNetInterface;
use crate::edit::{Edit, unknown};
use crate::name::*;
use crate::objects::*;
use crate::props::{Owner, PropsEdit, check_all};
use crate::redundancy;
use crate::refusal::{Code, NoteCode, Refusal};

use super::{helpers, resources, small};

/// The property of a node that names the interface the controller dials.
const ACTIVE: &str = "CurStltConnName";

pub fn create(
    edit: &mut Edit<'_>,
    name: NodeName,
    kind: NodeKind,
    net_interfaces: Vec<NewNetInterface>,
    mut props: Props,
) -> Result<(), Refusal> {
    let key = Key::Node(name.clone());
    if edit.model.node(&name).is_some() {
        return Err(Refusal::new(Code::NodeExists, format!("{key} exists"))
            .cause("names of nodes are unique, without regard to case")
            .correction("choose another name, or delete that node first")
            .about(key));
    }
    check_all(Owner::Node, &props)?;
    if net_interfaces.is_empty() {
        return Err(Refusal::new(
            Code::MissingNetInterface,
            format!("{key} has no network interface"),
        )
        .cause("the controller has to know under which address it reaches the node")
        .correction("give at least one interface with an address")
        .about(key));
    }
    let mut interfaces = BTreeMap::new();
    for new in net_interfaces {
        let name = new.name.clone();
        if let (Some(_), false) = (&new.agent, props.contains_key(ACTIVE)) {
            props.insert(ACTIVE.to_owned(), name.to_string());
        }
        let interface = interface(edit, &new)?;
        if interfaces.insert(name.clone(), interface).is_some() {
            return Err(Refusal::new(Code::NetIfExists, format!("{name} of {key} is given twice"))
                .cause("names of a node's interfaces are unique")
                .correction("name each interface once")
                .about(key));
        }
    }
    let uuid = edit.uuid();
    edit.put(Object::Node(Node {
        name: name.clone(),
        uuid,
        kind,
        props,
        flags: BTreeSet::new(),
        net_interfaces: interfaces,
        evicted_at: None,
        evacuate_to: None,
        evacuate_not_to: Vec::new(),
        generation: Generation(0),
    }));
    let uuid = edit.uuid();
    edit.put(Object::Pool(Pool {
        node: name,
        name: PoolName::diskless(),
        uuid,
        provider: Provider::Diskless,
        props: Props::new(),
        shared_space: None,
        external_locking: false,
    }));
    Ok(())
}

fn interface(edit: &mut Edit<'_>, new: &NewNetInterface) -> Result<NetInterface, Refusal> {
    let name = &new.name;
    if new.address.is_unspecified() || new.address.is_multicast() {
        return Err(Refusal::new(
            Code::InvalidNetAddress,
            format!("interface {name} can not have the address {}", new.address),
        )
        .cause("peers have to be able to reach it")
        .correction("give an address of one host"));
    }
    if new.agent.is_some_and(|(port, _)| port == 0) {
        return Err(Refusal::new(Code::InvalidNetPort, format!("interface {name} has port 0"))
            .cause("an agent listens on a port from 1 to 65535")
            .correction("give the agent's port, 3366 unless it was changed"));
    }
    Ok(NetInterface { uuid: edit.uuid(), address: new.address, agent: new.agent })
}

pub fn modify(
    edit: &mut Edit<'_>,
    name: &NodeName,
    kind: Option<NodeKind>,
    props: &PropsEdit,
) -> Result<(), Refusal> {
    let key = Key::Node(name.clone());
    let mut node = edit.node(name)?.clone();
    if let Some(kind) = kind {
        let holds = edit.model.resources_on(name).next().is_some();
        if holds && !kind.holds_resources() {
            return Err(Refusal::new(Code::InvalidNodeType, format!("{key} can not be {kind}"))
                .cause("it has resources")
                .correction("delete or evacuate them first")
                .about(key));
        }
        node.kind = kind;
    }
    small::edit_props(edit, Owner::Node, &key, props, &mut node.props)?;
    if let Some(active) = node.props.get(ACTIVE) {
        if !NetIfName::new(active).is_ok_and(|name| node.net_interfaces.contains_key(&name)) {
            return Err(Refusal::new(
                Code::UnknownNetIf,
                format!("{key} has no interface {active}"),
            )
            .cause(format!("{ACTIVE} names the interface that the controller dials"))
            .correction("create the interface first")
            .about(key));
        }
    }
    edit.put(Object::Node(node));
    Ok(())
}

pub fn put_interface(
    edit: &mut Edit<'_>,
    node: &NodeName,
    new: NewNetInterface,
    activate: bool,
    exists: bool,
) -> Result<(), Refusal> {
    let key = Key::Node(node.clone());
    let mut changed = edit.node(node)?.clone();
    let name = new.name.clone();
    match (exists, changed.net_interfaces.get(&name)) {
        (true, None) => {
            let text = format!("{key} has no interface {name}");
            return Err(Refusal::new(Code::UnknownNetIf, text)
                .cause("no interface has this name")
                .correction("create it first")
                .about(key));
        }
        (false, Some(_)) => {
            let text = format!("{key} has an interface {name} already");
            return Err(Refusal::new(Code::NetIfExists, text)
                .cause("names of a node's interfaces are unique")
                .correction("modify it, or choose another name")
                .about(key));
        }
        _ => {}
    }
    let mut interface = interface(edit, &new)?;
    if let Some(old) = changed.net_interfaces.get(&name) {
        interface.uuid = old.uuid;
    }
    if activate {
        if interface.agent.is_none() {
            let text = format!("interface {name} of {key} can not be the active one");
            return Err(Refusal::new(Code::InvalidNetPort, text)
                .cause("the controller does not know on which port an agent listens there")
                .correction("give the agent's port and encryption")
                .about(key));
        }
        changed.props.insert(ACTIVE.to_owned(), name.to_string());
    }
    changed.net_interfaces.insert(name, interface);
    edit.put(Object::Node(changed));
    Ok(())
}

pub fn delete_interface(
    edit: &mut Edit<'_>,
    node: &NodeName,
    name: &NetIfName,
) -> Result<(), Refusal> {
    let key = Key::Node(node.clone());
    if small::absent(edit, &key) {
        return Ok(());
    }
    let mut changed = edit.node(node)?.clone();
    if changed.net_interfaces.remove(name).is_none() {
        edit.note(NoteCode::NotFound, key.clone(), format!("{key} has no interface {name}"));
        return Ok(());
    }
    if changed.props.get(ACTIVE).is_some_and(|active| active.eq_ignore_ascii_case(name.as_str())) {
        changed.props.remove(ACTIVE);
        let other = changed.net_interfaces.iter().find(|(_, other)| other.agent.is_some());
        match other.map(|(name, _)| name.to_string()) {
            Some(other) => drop(changed.props.insert(ACTIVE.to_owned(), other)),
            None => {
                let text = format!("{key} can not be reached: no interface with an agent is left");
                edit.note(NoteCode::NotConnected, key, text);
            }
        }
    }
    edit.put(Object::Node(changed));
    Ok(())
}

/// Deletes a node: everything on it goes first, and the record when nothing is left.
pub fn delete(edit: &mut Edit<'_>, name: &NodeName) -> Result<(), Refusal> {
    let key = Key::Node(name.clone());
    if small::absent(edit, &key) {
        return Ok(());
    }
    let node = edit.node(name)?;
    if node.flags.contains(&NodeFlag::Evicted) {
        edit.note(
            NoteCode::Evicted,
            key.clone(),
            format!("{key} is evicted and stays: restore it, or remove it with `node lost`"),
        );
        return Ok(());
    }
    let names: Vec<ResourceName> = edit.model.resources_on(name).cloned().collect();
    let mut kept = Vec::new();
    for resource in &names {
        if let Err(refusal) = resources::may_delete(edit, resource, name) {
            kept.push(refusal.to_string());
        }
    }
    if !kept.is_empty() {
        return Err(Refusal::new(Code::NodeHasUsedResource, format!("{key} can not be deleted"))
            .cause("resources on it are in use, or have the only copy of their data")
            .correction("evacuate the node, or delete these resources first")
            .details(kept.join("\n"))
            .about(key));
    }
    edit.modify_node(name, |node| {
        node.flags.insert(NodeFlag::Delete);
    });
    for resource in &names {
        resources::mark_deleted(edit, resource, name);
        helpers::review(edit, resource)?;
    }
    delete_snapshots(edit, name);
    drop_if_empty(edit, name);
    Ok(())
}

/// Marks the snapshots of a node for deletion.
pub fn delete_snapshots(edit: &mut Edit<'_>, node: &NodeName) {
    let on_node = |snapshot: &&SnapshotDefinition| snapshot.nodes.contains_key(node);
    let found: Vec<_> = edit.model.snapshots().filter(on_node).cloned().collect();
    for mut snapshot in found {
        if let Some(on_node) = snapshot.nodes.get_mut(node) {
            on_node.deleting = true;
        }
        if snapshot.nodes.values().all(|on_node| on_node.deleting) {
            snapshot.flags.insert(SnapshotFlag::Delete);
        }
        edit.put(Object::Snapshot(snapshot));
    }
}

/// Drops a node that is being deleted and has nothing left.
pub fn drop_if_empty(edit: &mut Edit<'_>, name: &NodeName) {
    let deleting = edit.model.node(name).is_some_and(|n| n.flags.contains(&NodeFlag::Delete));
    let empty = edit.model.resources_on(name).next().is_none();
    if deleting && empty && !edit.model.snapshots().any(|s| s.nodes.contains_key(name)) {
        drop_record(edit, name);
    }
}

fn drop_record(edit: &mut Edit<'_>, name: &NodeName) {
    let pools: Vec<PoolName> = edit.model.pools_of(name).map(|pool| pool.name.clone()).collect();
    for pool in pools {
        edit.remove(Key::Pool(name.clone(), pool));
    }
    let concerns = |(a, b): &&(NodeName, NodeName)| a == name || b == name;
    let connections = edit.model.node_connections().map(|(pair, _)| pair);
    let connections: Vec<_> = connections.filter(concerns).cloned().collect();
    for (a, b) in connections {
        edit.remove(Key::NodeConnection(a, b));
    }
    edit.remove(Key::Node(name.clone()));
}

/// Forgets a node, whatever was on it.
pub fn lose(edit: &mut Edit<'_>, name: &NodeName) -> Result<(), Refusal> {
    let key = Key::Node(name.clone());
    if small::absent(edit, &key) {
        return Ok(());
    }
    if edit.observed().is_connected(name) {
        return Err(Refusal::new(Code::NodeConnected, format!("{key} is not lost"))
            .cause("its agent is connected")
            .correction("delete the node, or evacuate it first")
            .about(key));
    }
    let snapshots = edit.model.snapshots().filter(|snapshot| snapshot.nodes.contains_key(name));
    let snapshots: Vec<_> = snapshots.cloned().collect();
    for mut snapshot in snapshots {
        snapshot.nodes.remove(name);
        if snapshot.is_pending() {
            snapshot.flags.insert(SnapshotFlag::FailedDisconnect);
        }
        match snapshot.nodes.is_empty() {
            true => edit.remove(Object::Snapshot(snapshot).key()),
            false => edit.put(Object::Snapshot(snapshot)),
        }
    }
    let names: Vec<ResourceName> = edit.model.resources_on(name).cloned().collect();
    for resource in &names {
        let wanted = redundancy::is_wanted(edit.model, resource);
        resources::drop_record(edit, resource, name);
        if wanted && !redundancy::is_wanted(edit.model, resource) {
            others_stay(edit, resource);
        }
    }
    drop_record(edit, name);
    for resource in &names {
        helpers::review(edit, resource)?;
    }
    Ok(())
}

/// The lost node was the only one that was to keep the data: those that were to be deleted because
/// it had them stay.
fn others_stay(edit: &mut Edit<'_>, name: &ResourceName) {
    let stays = |r: &&Resource| r.is_diskful() && !r.flags.contains(&ResourceFlag::DrbdDelete);
    let nodes = edit.model.resources_of(name).filter(stays).map(|r| r.node.clone());
    for node in nodes.collect::<Vec<_>>() {
        resources::keep_after_all(edit, name, &node);
    }
}

/// A node that can take a new resource.
///
/// # Errors
/// If it is unknown, holds no resources, or is on its way out.
pub fn accepting(edit: &Edit<'_>, name: &NodeName) -> Result<(), Refusal> {
    let node = edit.model.node(name);
    let key = Key::Node(name.clone());
    let node = node.ok_or_else(|| unknown(Code::UnknownNode, key.clone()))?;
    let (code, cause) = if node.flags.contains(&NodeFlag::Evacuate) {
        (Code::Evacuating, "it is being evacuated")
    } else if node.flags.contains(&NodeFlag::Delete) {
        (Code::InUse, "it is being deleted")
    } else if node.flags.contains(&NodeFlag::Evicted) {
        (Code::InUse, "it is evicted")
    } else if !node.kind.holds_resources() {
        (Code::InvalidNodeType, "nodes of its type hold no resources")
    } else {
        return Ok(());
    };
    Err(Refusal::new(code, format!("{key} can not take a resource"))
        .cause(cause)
        .correction("choose another node, or restore this one")
        .about(key))
}
