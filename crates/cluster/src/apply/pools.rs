//! Storage pools and their definitions.

use crate::change::{Key, Object};
use crate::edit::{Edit, unknown};
use crate::name::*;
use crate::objects::*;
use crate::props::{Owner, PropsEdit, check_all};
use crate::refusal::{Code, Refusal};

use super::small;

pub fn create_definition(edit: &mut Edit<'_>, name: PoolName, props: Props) -> Result<(), Refusal> {
    let key = Key::PoolDefinition(name.clone());
    if edit.model.pool_definition(&name).is_some() {
        return Err(Refusal::new(Code::PoolDefinitionExists, format!("{key} exists"))
            .cause("names of storage pool definitions are unique")
            .correction("modify it, or choose another name")
            .about(key));
    }
    check_all(Owner::PoolDefinition, &props)?;
    let uuid = edit.uuid();
    edit.put(Object::PoolDefinition(PoolDefinition { name, uuid, props }));
    Ok(())
}

pub fn modify_definition(
    edit: &mut Edit<'_>,
    name: &PoolName,
    change: &PropsEdit,
) -> Result<(), Refusal> {
    let key = Key::PoolDefinition(name.clone());
    let found = edit.model.pool_definition(name).cloned();
    let mut found = found.ok_or_else(|| unknown(Code::UnknownPoolDefinition, key.clone()))?;
    small::edit_props(edit, Owner::PoolDefinition, &key, change, &mut found.props)?;
    edit.put(Object::PoolDefinition(found));
    Ok(())
}

pub fn delete_definition(edit: &mut Edit<'_>, name: &PoolName) -> Result<(), Refusal> {
    let key = Key::PoolDefinition(name.clone());
    if small::absent(edit, &key) {
        return Ok(());
    }
    builtin(name, &key)?;
    if let Some(pool) = edit.model.pools().find(|pool| pool.name == *name) {
        return Err(Refusal::new(Code::InUse, format!("{key} can not be deleted"))
            .cause(format!("node {} has a pool of that name", pool.node))
            .correction("delete the pools first")
            .about(key));
    }
    edit.remove(key);
    Ok(())
}

pub fn create(
    edit: &mut Edit<'_>,
    node: NodeName,
    name: PoolName,
    provider: Provider,
    mut props: Props,
    shared_space: Option<SharedSpaceName>,
    external_locking: bool,
) -> Result<(), Refusal> {
    edit.node(&node)?;
    let key = Key::Pool(node.clone(), name.clone());
    if edit.model.pool(&node, &name).is_some() {
        return Err(Refusal::new(Code::PoolExists, format!("{key} exists"))
            .cause("names of a node's storage pools are unique")
            .correction("modify it, or choose another name")
            .about(key));
    }
    check_all(Owner::Pool, &props)?;
    if provider != Provider::Diskless {
        backing(&key, provider, &mut props)?;
    }
    let supported = edit.observed().nodes.get(&node).filter(|state| state.connected);
    if supported.is_some_and(|s| provider.has_device() && !s.providers.contains(&provider)) {
        return Err(Refusal::new(
            Code::ProviderUnsupported,
            format!("{key} can not be {provider}"),
        )
        .cause("the node's agent does not find the programs that it takes")
        .correction("install them on the node and reconnect it")
        .about(key));
    }
    if shared_space.is_some() && provider != Provider::Lvm {
        return Err(Refusal::new(
            Code::InvalidFreeSpaceManager,
            format!("{key} can not share its space"),
        )
        .cause("only LVM pools can be one volume group on several nodes")
        .correction("leave the shared space out")
        .about(key));
    }
    if edit.model.pool_definition(&name).is_none() {
        create_definition(edit, name.clone(), Props::new())?;
    }
    let uuid = edit.uuid();
    edit.put(Object::Pool(Pool {
        node,
        name,
        uuid,
        provider,
        props,
        shared_space,
        external_locking,
    }));
    Ok(())
}

/// The property that says what a pool is made of.
const PLACE: &str = "StorDriver/StorPoolName";

/// What [`PLACE`] was called for each kind of pool.
const fn former(provider: Provider) -> &'static str {
    match provider {
        Provider::Diskless => PLACE,
        Provider::Lvm => "StorDriver/LvmVg",
        Provider::LvmThin => "StorDriver/ThinPool",
        Provider::Zfs => "StorDriver/ZPool",
        Provider::ZfsThin => "StorDriver/ZPoolThin",
        Provider::File | Provider::FileThin => "StorDriver/FileDir",
    }
}

/// Checks that the properties name what the pool is made of, and has them do so by today's name, by
/// which clients look for it.
fn backing(key: &Key, provider: Provider, props: &mut Props) -> Result<(), Refusal> {
    let former = former(provider);
    if let Some(place) = props.remove(former) {
        let named = props.entry(PLACE.to_owned()).or_insert_with(|| place.clone());
        if *named != place {
            return Err(Refusal::new(Code::InvalidProperty, format!("{key} has two places"))
                .cause(format!("{PLACE} says `{named}`, and {former} `{place}`"))
                .correction(format!("give {PLACE} alone"))
                .about(key.clone()));
        }
    }
    if props.contains_key(PLACE) {
        return Ok(());
    }
    Err(Refusal::new(Code::InvalidProperty, format!("{key} says not what it is made of"))
        .cause(format!("a pool of kind {provider} needs the property {PLACE}, or {former}"))
        .correction("give the volume group, the dataset or the folder")
        .about(key.clone()))
}

pub fn modify(
    edit: &mut Edit<'_>,
    node: &NodeName,
    name: &PoolName,
    change: &PropsEdit,
) -> Result<(), Refusal> {
    let key = Key::Pool(node.clone(), name.clone());
    let pool = edit.model.pool(node, name).cloned();
    let mut pool = pool.ok_or_else(|| unknown(Code::UnknownPool, key.clone()))?;
    let made_of_something = pool.provider != Provider::Diskless;
    let moves = made_of_something && change.set.contains_key(former(pool.provider));
    if moves && !change.set.contains_key(PLACE) {
        pool.props.remove(PLACE);
    }
    small::edit_props(edit, Owner::Pool, &key, change, &mut pool.props)?;
    if made_of_something {
        backing(&key, pool.provider, &mut pool.props)?;
    }
    edit.put(Object::Pool(pool));
    Ok(())
}

pub fn delete(edit: &mut Edit<'_>, node: &NodeName, name: &PoolName) -> Result<(), Refusal> {
    let key = Key::Pool(node.clone(), name.clone());
    if small::absent(edit, &key) {
        return Ok(());
    }
    builtin(name, &key)?;
    let uses = edit.model.pool_use(node, name);
    if uses != Default::default() {
        return Err(Refusal::new(Code::InUse, format!("{key} can not be deleted"))
            .cause(format!("{} resources, or snapshots, are in it", uses.resources))
            .correction("delete or migrate them first")
            .about(key));
    }
    edit.remove(key);
    Ok(())
}

fn builtin(name: &PoolName, key: &Key) -> Result<(), Refusal> {
    if *name != PoolName::diskless() {
        return Ok(());
    }
    Err(Refusal::new(Code::InvalidPoolName, format!("{key} can not be deleted"))
        .cause("every node has this pool for diskless resources")
        .correction("leave it")
        .about(key.clone()))
}
