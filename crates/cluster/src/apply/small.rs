//! Objects that are little more than properties: the controller's own, connections, the key-value
//! store, external files.

use crate::change::{Key, Object};
use crate::edit::{Edit, unknown};
use crate::model::ordered;
use crate::name::*;
use crate::objects::{ExternalFile, Props};
use crate::props::{AUTO_QUORUM, Owner, PropsEdit};
use crate::refusal::{Code, NoteCode, Refusal};

use super::helpers;

/// Applies an edit to properties, and says which keys to delete were not there.
pub fn edit_props(
    edit: &mut Edit<'_>,
    owner: Owner,
    key: &Key,
    change: &PropsEdit,
    props: &mut Props,
) -> Result<(), Refusal> {
    let missing = change.apply(owner, props).map_err(|refusal| refusal.about(key.clone()))?;
    for (name, value) in change.set.iter().filter(|(_, value)| !value.is_empty()) {
        names_an_interface(edit, key, name, value)?;
    }
    if change.set.get(AUTO_QUORUM).is_some_and(|value| !value.is_empty()) {
        let text = format!(
            "{AUTO_QUORUM} is from before {} and DrbdOptions/Resource/on-no-quorum, which have the \
             same effect; use those",
            helpers::QUORUM
        );
        edit.note(NoteCode::DeprecatedProperty, key.clone(), text);
    }
    for name in missing {
        let text = format!("{key} has no property `{name}`");
        edit.note(NoteCode::UnsetPropertyDeleted, key.clone(), text);
    }
    Ok(())
}

/// Checks that a property that names a network interface names one that its node has.
fn names_an_interface(
    edit: &Edit<'_>,
    key: &Key,
    name: &str,
    interface: &str,
) -> Result<(), Refusal> {
    let refuse = |cause: String| {
        let text = format!("the property `{name}` of {key} can not be `{interface}`");
        Err(Refusal::new(Code::InvalidProperty, text)
            .cause(cause)
            .correction("name a network interface of the node, or create it first")
            .about(key.clone()))
    };
    let node = match (key, name.strip_prefix("Paths/")) {
        (Key::Node(node) | Key::Pool(node, _) | Key::Resource(_, node), None)
            if name == "PrefNic" =>
        {
            node
        }
        (Key::NodeConnection(a, b) | Key::ResourceConnection(_, a, b), Some(path)) => {
            let end = path.split_once('/').map_or("", |(_, node)| node);
            match [a, b].into_iter().find(|node| node.as_str().eq_ignore_ascii_case(end)) {
                Some(node) => node,
                None => return refuse(format!("it is a key `Paths/PATH/NODE` of {a} or {b}")),
            }
        }
        _ => return Ok(()),
    };
    let found = edit.model.node(node);
    let mut there = found.into_iter().flat_map(|node| node.net_interfaces.keys());
    match there.any(|there| there.as_str().eq_ignore_ascii_case(interface)) {
        true => Ok(()),
        false => refuse(format!("node {node} has no network interface of that name")),
    }
}

pub fn modify_controller(edit: &mut Edit<'_>, change: &PropsEdit) -> Result<(), Refusal> {
    let mut controller = edit.model.controller().clone();
    edit_props(edit, Owner::Controller, &Key::Controller, change, &mut controller.props)?;
    edit.put(Object::Controller(controller));
    if helpers::concerns(change) {
        let names: Vec<_> = edit.model.definitions().map(|d| d.name.clone()).collect();
        for name in names {
            helpers::review(edit, &name)?;
        }
    }
    Ok(())
}

pub fn set_master_key(
    edit: &mut Edit<'_>,
    wrapped: String,
    before: Option<String>,
) -> Result<(), Refusal> {
    let mut controller = edit.model.controller().clone();
    if controller.master_key != before {
        let there = controller.master_key.is_some();
        return Err(match (there, before) {
            (true, None) => Refusal::new(Code::PassphraseExists, "there is a master passphrase")
                .cause("volumes are encrypted with the key that it protects")
                .correction("modify it, with the old one"),
            (true, Some(_)) => {
                Refusal::new(Code::WrongPassphrase, "the old passphrase is not the right one")
                    .cause("somebody else has changed it meanwhile")
                    .correction("repeat it with the passphrase as it is now")
            }
            (false, _) => Refusal::no_master_passphrase(),
        });
    }
    controller.master_key = Some(wrapped);
    edit.put(Object::Controller(controller));
    Ok(())
}

pub fn modify_node_connection(
    edit: &mut Edit<'_>,
    a: NodeName,
    b: NodeName,
    change: &PropsEdit,
) -> Result<(), Refusal> {
    edit.node(&a)?;
    edit.node(&b)?;
    let (a, b) = two_nodes(&a, &b)?;
    let key = Key::NodeConnection(a.clone(), b.clone());
    let mut props = edit.model.node_connection(&a, &b).cloned().unwrap_or_default();
    edit_props(edit, Owner::NodeConnection, &key, change, &mut props)?;
    match props.is_empty() {
        true => edit.remove(key),
        false => edit.put(Object::NodeConnection(a, b, props)),
    }
    Ok(())
}

pub fn modify_resource_connection(
    edit: &mut Edit<'_>,
    name: ResourceName,
    a: NodeName,
    b: NodeName,
    change: &PropsEdit,
) -> Result<(), Refusal> {
    edit.definition(&name)?;
    edit.resource(&name, &a)?;
    edit.resource(&name, &b)?;
    let (a, b) = two_nodes(&a, &b)?;
    let key = Key::ResourceConnection(name.clone(), a.clone(), b.clone());
    let mut props = edit.model.resource_connection(&name, &a, &b).cloned().unwrap_or_default();
    edit_props(edit, Owner::ResourceConnection, &key, change, &mut props)?;
    match props.is_empty() {
        true => edit.remove(key),
        false => edit.put(Object::ResourceConnection(name, a, b, props)),
    }
    Ok(())
}

fn two_nodes(a: &NodeName, b: &NodeName) -> Result<(NodeName, NodeName), Refusal> {
    if a != b {
        return Ok(ordered(a, b));
    }
    Err(Refusal::new(Code::InvalidRequest, format!("node {a} has no connection with itself"))
        .cause("a connection has two nodes")
        .correction("name two different nodes"))
}

pub fn modify_store(
    edit: &mut Edit<'_>,
    name: StoreName,
    change: &PropsEdit,
) -> Result<(), Refusal> {
    let mut map = edit.model.store(&name).cloned().unwrap_or_default();
    // Keys and values of the store are its users': nothing is checked.
    for key in &change.delete {
        map.remove(key);
    }
    for space in &change.delete_namespaces {
        let space = format!("{}/", space.trim_end_matches('/'));
        map.retain(|key, _| !key.starts_with(&space));
    }
    map.extend(change.set.iter().map(|(key, value)| (key.clone(), value.clone())));
    match map.is_empty() {
        true => edit.remove(Key::Store(name)),
        false => edit.put(Object::Store(name, map)),
    }
    Ok(())
}

pub fn delete_store(edit: &mut Edit<'_>, name: StoreName) -> Result<(), Refusal> {
    let key = Key::Store(name);
    absent(edit, &key);
    edit.remove(key);
    Ok(())
}

pub fn put_file(edit: &mut Edit<'_>, path: FilePath, content: Vec<u8>) -> Result<(), Refusal> {
    let file = match edit.model.file(&path).cloned() {
        Some(file) => ExternalFile { content, ..file },
        None => {
            let uuid = edit.uuid();
            ExternalFile { path, uuid, content, resources: Default::default() }
        }
    };
    edit.put(Object::File(file));
    Ok(())
}

pub fn delete_file(edit: &mut Edit<'_>, path: FilePath) -> Result<(), Refusal> {
    let key = Key::File(path);
    absent(edit, &key);
    edit.remove(key);
    Ok(())
}

pub fn deploy_file(
    edit: &mut Edit<'_>,
    path: &FilePath,
    name: &ResourceName,
    deploy: bool,
) -> Result<(), Refusal> {
    edit.definition(name)?;
    let file = edit.model.file(path).cloned();
    let mut file = file.ok_or_else(|| unknown(Code::UnknownFile, Key::File(path.clone())))?;
    match deploy {
        true => file.resources.insert(name.clone()),
        false => file.resources.remove(name),
    };
    edit.put(Object::File(file));
    Ok(())
}

/// Says that what is to be deleted is not there, if so. That is no error (control plane §0.6).
pub fn absent(edit: &mut Edit<'_>, key: &Key) -> bool {
    let absent = crate::edit::get(edit.model, key).is_none();
    if absent {
        edit.note(NoteCode::NotFound, key.clone(), format!("{key} does not exist"));
    }
    absent
}

#[cfg(test)]
mod tests;
