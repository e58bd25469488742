//! Resources: making, placing and deleting them.

use std::collections::{BTreeMap, BTreeSet};

use vocab::{Bytes, NodeId, VolumeNr};

use crate::change::{Key, Object};
use crate::command::NewResource;
use crate::edit::{Edit, unknown};
use crate::layer::Layer;
use crate::name::*;
use crate::objects::*;
use crate::place::{self, space};
use crate::props::{self, Owner, PropsEdit, chain, check_all};
use crate::redundancy::{MIGRATE_FROM, replaces};
use crate::refusal::{Code, NoteCode, Refusal};

use super::{activity, definitions, groups, helpers, nodes, small, toggle};

/// The property that names the pool for the volumes of a resource.
pub const POOL: &str = "StorPoolName";
/// The property that says who made a replica: `user`, `auto-placer`, `auto-diskful`.
pub const DISKFUL_BY: &str = "DiskfulBy";

/// Makes a resource on a node. `by` says who wants it.
pub fn create(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    node: &NodeName,
    new: &NewResource,
    by: &str,
) -> Result<(), Refusal> {
    let key = Key::Resource(name.clone(), node.clone());
    let definition = edit.definition(name)?.clone();
    nodes::accepting(edit, node)?;
    check_all(Owner::Resource, &new.props)?;
    if let Some(existing) = edit.model.resource(name, node).cloned() {
        return existing_wanted(edit, &existing, new, by);
    }
    let diskless = new.diskless || new.client;
    let drbd = definition.layers.contains(&Layer::Drbd);
    if diskless && !drbd {
        return Err(Refusal::new(Code::InvalidLayerStack, format!("{key} can not be diskless"))
            .cause("without the layer DRBD it could not reach the data")
            .correction("create it with a disk")
            .about(key));
    }
    supports(edit, node, &definition.layers, &key)?;
    for (number, volume) in &definition.volumes {
        definitions::has_room(&definition, *number, volume)?;
    }
    let pools = match diskless {
        true => diskless_volumes(&definition),
        false => choose_pools(edit, &definition, node, new.pool.as_ref(), &new.props)?,
    };
    let (node_id, port) = match drbd {
        true => {
            let id = node_id(edit, &definition, new.node_id, &key)?;
            let wanted = definition.port.filter(|_| new.port.is_none());
            let free = |port: &u16| !edit.model.port_in_use(node, *port);
            let chosen = port(edit, node, new.port.or(wanted.filter(free)), &key)?;
            if let Some(wanted) = wanted.filter(|wanted| *wanted != chosen) {
                let text =
                    format!("TCP port {wanted} is taken on node {node}: {key} has port {chosen}");
                edit.note(NoteCode::OtherPort, key.clone(), text);
            }
            (Some(id), Some(chosen))
        }
        false => (None, None),
    };
    let mut props = new.props.clone();
    if let Some(pool) = &new.pool {
        props.insert(POOL.to_owned(), pool.to_string());
    }
    let mut flags = BTreeSet::new();
    if diskless {
        flags.extend([ResourceFlag::Diskless, ResourceFlag::DrbdDiskless]);
        flags.extend(new.client.then_some(ResourceFlag::Client));
    } else {
        props.insert(DISKFUL_BY.to_owned(), by.to_owned());
    }
    let volumes = pools.into_iter().map(|(number, pool)| {
        (number, Volume { uuid: edit.uuid(), pool, props: Props::new(), adopt: false })
    });
    let volumes = volumes.collect();
    let uuid = edit.uuid();
    edit.put(Object::Resource(Resource {
        name: name.clone(),
        node: node.clone(),
        uuid,
        created: edit.context.now,
        props,
        flags,
        node_id,
        port,
        volumes,
        deactivated: None,
    }));
    if !edit.observed().is_connected(node) {
        let text = format!("node {node} is not connected; {key} is made when it is");
        edit.note(NoteCode::NotConnected, key, text);
    }
    Ok(())
}

/// A resource that exists is as wanted, becomes it, or can not.
fn existing_wanted(
    edit: &mut Edit<'_>,
    existing: &Resource,
    new: &NewResource,
    by: &str,
) -> Result<(), Refusal> {
    let (name, node) = (&existing.name, &existing.node);
    let key = Key::Resource(name.clone(), node.clone());
    let diskless = new.diskless || new.client;
    if existing.is_deleting() {
        return Err(Refusal::new(Code::ResourceExists, format!("{key} exists"))
            .cause("it is being deleted")
            .correction("wait until it is gone, or make it available again")
            .about(key));
    }
    if existing.deactivated.is_some() {
        let text = format!("{key} exists, and is inactive until it is activated");
        edit.note(NoteCode::Deactivated, key, text);
        return Ok(());
    }
    let losing = existing.flags.contains(&ResourceFlag::DiskRemoveRequested);
    if !diskless && (losing || !existing.is_diskful()) {
        return toggle::to_diskful(edit, name, node, new.pool.clone(), None, by);
    }
    if diskless && existing.is_tie_breaker() {
        edit.modify_resource(name, node, |resource| {
            resource.flags.remove(&ResourceFlag::TieBreaker);
            if new.client {
                resource.flags.insert(ResourceFlag::Client);
            }
        });
    }
    edit.note(NoteCode::ResourceExists, key.clone(), format!("{key} exists"));
    Ok(())
}

/// Checks that a node's agent can make the layers, where it is known.
pub fn supports(
    edit: &Edit<'_>,
    node: &NodeName,
    layers: &[Layer],
    key: &Key,
) -> Result<(), Refusal> {
    let Some(state) = edit.observed().nodes.get(node).filter(|state| state.connected) else {
        return Ok(());
    };
    let Some(missing) = layers.iter().find(|layer| !state.layers.contains(layer)) else {
        return Ok(());
    };
    Err(Refusal::new(Code::LayerUnsupported, format!("{key} can not be created"))
        .cause(format!("the agent of node {node} has no layer {missing}"))
        .correction("install what the layer needs on that node, or choose another node")
        .about(key.clone()))
}

fn diskless_volumes(definition: &Definition) -> BTreeMap<VolumeNr, PoolName> {
    definition.volumes.keys().map(|number| (*number, PoolName::diskless())).collect()
}

/// The pool of each volume of a new replica (control plane §5, "pool name"), checked for space and
/// for kinds that do not mix.
pub fn choose_pools(
    edit: &Edit<'_>,
    definition: &Definition,
    node: &NodeName,
    given: Option<&PoolName>,
    own: &Props,
) -> Result<BTreeMap<VolumeNr, PoolName>, Refusal> {
    let mut chosen = BTreeMap::new();
    for (number, volume) in &definition.volumes {
        if volume.flags.contains(&VolumeDefinitionFlag::Delete) {
            continue;
        }
        let pool = match given {
            Some(pool) => pool.clone(),
            None => default_pool(edit, definition, node, *number, own)?,
        };
        chosen.insert(*number, pool);
    }
    check_pools(edit, definition, node, &chosen)?;
    Ok(chosen)
}

fn default_pool(
    edit: &Edit<'_>,
    definition: &Definition,
    node: &NodeName,
    number: VolumeNr,
    own: &Props,
) -> Result<PoolName, Refusal> {
    let model = &*edit.model;
    let group = model.group(&definition.group);
    let named = own
        .get(POOL)
        .or_else(|| definition.volumes[&number].props.get(POOL))
        .or_else(|| definition.props.get(POOL))
        .or_else(|| group.and_then(|group| group.props.get(POOL)))
        .or_else(|| model.node(node).and_then(|node| node.props.get(POOL)));
    if let Some(named) = named {
        return PoolName::new(named);
    }
    let peers = model.resources_of(&definition.name).filter(|resource| resource.is_replica());
    let mut used = peers.filter_map(|peer| peer.volumes.get(&number)).map(|volume| &volume.pool);
    if let Some(pool) = used.find(|pool| model.pool(node, pool).is_some()) {
        return Ok(pool.clone());
    }
    let default = PoolName::default_pool();
    if model.pool(node, &default).is_some() {
        return Ok(default);
    }
    let key = Key::Resource(definition.name.clone(), node.clone());
    Err(Refusal::new(Code::NoDefaultPool, format!("{key} can not be created"))
        .cause(format!("no storage pool is named, and node {node} has no pool {default}"))
        .correction("name a pool, or set the property StorPoolName on the resource definition")
        .about(key))
}

/// Checks the pools of a new replica: they exist, mix with the peers', and have the space.
fn check_pools(
    edit: &Edit<'_>,
    definition: &Definition,
    node: &NodeName,
    chosen: &BTreeMap<VolumeNr, PoolName>,
) -> Result<(), Refusal> {
    let key = Key::Resource(definition.name.clone(), node.clone());
    let mut needed: BTreeMap<&PoolName, u64> = BTreeMap::new();
    for (number, name) in chosen {
        let pool = edit
            .model
            .pool(node, name)
            .ok_or_else(|| unknown(Code::UnknownPool, Key::Pool(node.clone(), name.clone())))?;
        if !pool.provider.has_device() {
            return Err(Refusal::new(Code::InvalidPoolName, format!("{key} can not be created"))
                .cause(format!("pool {name} is for diskless resources"))
                .correction("name a pool with storage, or create the resource diskless")
                .about(key));
        }
        mixes(edit, definition, pool)?;
        *needed.entry(name).or_default() += definition.volumes[number].size.0;
    }
    for (name, size) in needed {
        let pool = edit.model.pool(node, name).expect("it was found above");
        // Of a node that is not connected nothing is known, and the agent checks again.
        if !edit.observed().is_connected(node) {
            continue;
        }
        let free = space::estimate(edit.model, edit.observed(), pool);
        if free.is_some_and(|free| free < Bytes(size)) {
            return Err(Refusal::new(
                Code::NotEnoughFreeSpace,
                format!("{key} can not be created"),
            )
            .cause(format!("pool {name} of node {node} has not enough free space"))
            .correction("enlarge the pool, or choose another pool or node")
            .about(key));
        }
    }
    Ok(())
}

fn mixes(edit: &Edit<'_>, definition: &Definition, pool: &Pool) -> Result<(), Refusal> {
    let others = place::kinds_in_use(edit.model, &definition.name);
    let allowed = chain::definition(edit.model, definition).is_true("AllowMixingStoragePoolDriver");
    let Some(other) = others.iter().find(|other| !place::mix(**other, pool.provider, allowed))
    else {
        return Ok(());
    };
    let key = Key::Resource(definition.name.clone(), pool.node.clone());
    Err(Refusal::new(Code::PoolMixing, format!("{key} can not be created"))
        .cause(format!("it would be {}, and other replicas are {other}", pool.provider))
        .correction("choose a pool of the same kind, or set AllowMixingStoragePoolDriver")
        .about(key))
}

/// The DRBD node id of a new resource. Ids go round, so that bitmaps that peers keep for one that
/// was deleted are forgotten long before it is used again.
fn node_id(
    edit: &mut Edit<'_>,
    definition: &Definition,
    given: Option<NodeId>,
    key: &Key,
) -> Result<NodeId, Refusal> {
    let name = &definition.name;
    let resources = edit.model.resources_of(name);
    let used: BTreeSet<u8> = resources.filter_map(|r| r.node_id).map(NodeId::get).collect();
    let text = format!("{key} can not be created");
    if used.len() > usize::from(definition.peer_slots) {
        return Err(Refusal::new(Code::PeerSlotsExhausted, text)
            .cause(format!("disks have bitmaps for {} peers", definition.peer_slots))
            .correction("delete a resource, or make a resource definition with more peer slots")
            .about(key.clone()));
    }
    if let Some(given) = given {
        if used.contains(&given.get()) {
            return Err(Refusal::new(Code::InvalidNodeId, text)
                .cause(format!("DRBD node id {given} is in use"))
                .correction("choose another one, or leave it out")
                .about(key.clone()));
        }
        return Ok(given);
    }
    let mut round = (0..32).map(|step| (definition.next_node_id + step) % 32);
    let free = round.find(|id| !used.contains(id)).and_then(NodeId::new).ok_or_else(|| {
        Refusal::new(Code::NodeIdsExhausted, text)
            .cause("a resource has 32 nodes at most")
            .correction("delete a resource first")
            .about(key.clone())
    })?;
    edit.modify_definition(name, |definition| definition.next_node_id = (free.get() + 1) % 32);
    Ok(free)
}

fn port(edit: &Edit<'_>, node: &NodeName, given: Option<u16>, key: &Key) -> Result<u16, Refusal> {
    let text = format!("{key} can not be created");
    if let Some(given) = given {
        if given == 0 || edit.model.port_in_use(node, given) {
            return Err(Refusal::new(Code::InvalidTcpPort, text)
                .cause(format!("TCP port {given} is taken on node {node}"))
                .correction("choose another one, or leave it out")
                .about(key.clone()));
        }
        return Ok(given);
    }
    let found = edit.node(node)?;
    let range = chain::node(edit.model, found).get("TcpPortAutoRange").unwrap_or("7000-7999");
    let (low, high) = props::range(range)?;
    let blocked = found.props.get("TcpPortsBlocked").map_or("", String::as_str);
    let blocked: Vec<_> = blocked.split(',').filter_map(|text| props::range(text).ok()).collect();
    let is_blocked = |port| blocked.iter().any(|(low, high)| (*low..=*high).contains(&port));
    let ports = (low..=high).filter_map(|port| u16::try_from(port).ok());
    let mut free =
        ports.filter(|port| !is_blocked(u32::from(*port)) && !edit.model.port_in_use(node, *port));
    free.next().ok_or_else(|| {
        Refusal::new(Code::TcpPortsExhausted, text)
            .cause(format!("every TCP port of {range} is in use on node {node}"))
            .correction("set the property TcpPortAutoRange to a larger range")
            .about(key.clone())
    })
}

/// Gives every resource a volume that its definition has got since.
pub fn deploy_volume(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    number: VolumeNr,
) -> Result<(), Refusal> {
    let definition = edit.definition(name)?.clone();
    let resources: Vec<Resource> = edit.model.resources_of(name).cloned().collect();
    for resource in resources.iter().filter(|resource| !resource.is_deleting()) {
        let pool = match resource.is_diskful() {
            true => {
                let given = resource.props.get(POOL).map(|pool| PoolName::new(pool));
                let given = given.transpose()?;
                let props = &resource.props;
                let own = resource.volumes.values().next().map(|volume| volume.pool.clone());
                let pools =
                    choose_pools(edit, &definition, &resource.node, given.or(own).as_ref(), props)?;
                pools[&number].clone()
            }
            false => PoolName::diskless(),
        };
        let volume = Volume { uuid: edit.uuid(), pool, props: Props::new(), adopt: false };
        edit.modify_resource(name, &resource.node, |resource| {
            resource.volumes.insert(number, volume);
        });
    }
    Ok(())
}

pub fn modify(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    node: &NodeName,
    change: &PropsEdit,
) -> Result<(), Refusal> {
    let key = Key::Resource(name.clone(), node.clone());
    let mut resource = edit.resource(name, node)?.clone();
    small::edit_props(edit, Owner::Resource, &key, change, &mut resource.props)?;
    edit.put(Object::Resource(resource));
    Ok(())
}

pub fn modify_volume(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    node: &NodeName,
    number: u16,
    change: &PropsEdit,
) -> Result<(), Refusal> {
    let key = Key::Resource(name.clone(), node.clone());
    edit.definition(name)?;
    edit.node(node)?;
    let mut resource = edit.resource(name, node)?.clone();
    let Some(volume) = resource.volumes.get_mut(&VolumeNr(number)) else {
        let text = format!("{key} has no volume {number}");
        return Err(Refusal::new(Code::UnknownVolume, text)
            .cause("a resource has the volumes of its resource definition")
            .correction("list its volumes")
            .about(key));
    };
    small::edit_props(edit, Owner::Volume, &key, change, &mut volume.props)?;
    edit.put(Object::Resource(resource));
    Ok(())
}

/// Checks that a resource can be deleted: nobody uses it, and it is not the only copy of its data.
pub fn may_delete(edit: &Edit<'_>, name: &ResourceName, node: &NodeName) -> Result<(), Refusal> {
    let key = Key::Resource(name.clone(), node.clone());
    let refuse = |code, cause: String, correction: String| {
        Err(Refusal::new(code, format!("{key} can not be deleted"))
            .cause(cause)
            .correction(correction)
            .about(key.clone()))
    };
    if edit.observed().in_use(name, node) {
        return refuse(
            Code::InUse,
            "it is Primary or open".to_owned(),
            format!("close it on node {node}: unmount it, or stop what uses it"),
        );
    }
    let resource = edit.resource(name, node)?;
    let definition = edit.model.definition(name);
    let going = definition.is_none_or(|d| d.flags.contains(&DefinitionFlag::Delete));
    let drbd = definition.is_some_and(|d| d.layers.contains(&Layer::Drbd));
    if going || !drbd || !resource.is_diskful() || resource.is_deleting() {
        return Ok(());
    }
    let others = || edit.model.resources_of(name).filter(|r| r.node != *node && !r.is_deleting());
    if !others().any(Resource::is_replica) {
        let users = others().filter(|other| !other.is_tie_breaker());
        let users: Vec<String> = users.map(|other| other.node.to_string()).collect();
        if !users.is_empty() {
            let users = users.join(", ");
            return refuse(
                Code::InUse,
                format!(
                    "it is the last replica that stays, and nodes {users} have resources that need \
                     its data: they are diskless, lose their disk, are inactive, or evicted"
                ),
                "delete or activate those resources first, or make another replica".to_owned(),
            );
        }
        return Ok(());
    }
    if helpers::has_no_data(edit.observed(), name, node) {
        return Ok(());
    }
    let volumes = || definition.into_iter().flat_map(|definition| definition.volumes.keys());
    let safe = others()
        .filter(|other| other.is_replica())
        .any(|other| edit.observed().is_up_to_date(name, &other.node, volumes()));
    if safe {
        return Ok(());
    }
    refuse(
        Code::InsufficientReplicas,
        "no other replica is known to be UpToDate: its data may be the only ones".to_owned(),
        "wait until another replica is UpToDate and its node connected, or delete the whole \
         resource definition"
            .to_owned(),
    )
}

pub fn delete(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    node: &NodeName,
    keep_tie_breaker: bool,
) -> Result<(), Refusal> {
    let key = Key::Resource(name.clone(), node.clone());
    if small::absent(edit, &key) {
        return Ok(());
    }
    may_delete(edit, name, node)?;
    let was_tie_breaker = edit.resource(name, node)?.is_tie_breaker();
    if was_tie_breaker {
        let wanted = if keep_tie_breaker { "True" } else { "False" };
        edit.modify_definition(name, |definition| {
            definition.props.insert(helpers::AUTO_TIE_BREAKER.to_owned(), wanted.to_owned());
        });
        if keep_tie_breaker {
            let text = format!("{key} stays as tie-breaker");
            edit.note(NoteCode::TakenOver, key, text);
            return helpers::review(edit, name);
        }
    }
    mark_deleted(edit, name, node);
    if !edit.observed().is_connected(node) {
        edit.note(
            NoteCode::NotConnected,
            key,
            format!(
                "node {node} is not connected: what it has is deleted when it is back, or \
                     forgotten with `node lost`"
            ),
        );
    }
    helpers::review(edit, name)
}

/// Marks a resource for deletion. It takes no other's place any more. One that was deactivated comes
/// up for it: only from its peers can its node tell that they have the data.
pub fn mark_deleted(edit: &mut Edit<'_>, name: &ResourceName, node: &NodeName) {
    edit.modify_resource(name, node, |resource| {
        resource.activate();
        resource.flags.insert(ResourceFlag::Delete);
        resource.props.remove(MIGRATE_FROM);
    });
}

/// Gives a resource that stays after all the volumes that were made while it was to be deleted.
pub fn complete(edit: &mut Edit<'_>, name: &ResourceName, node: &NodeName) {
    let Some(definition) = edit.model.definition(name) else { return };
    let Some(mut resource) = edit.model.resource(name, node).cloned() else { return };
    let own = resource.volumes.values().next().map(|volume| volume.pool.clone());
    let wanted = definition.volumes.iter();
    let wanted = wanted.filter(|(_, volume)| !volume.flags.contains(&VolumeDefinitionFlag::Delete));
    // With none of its own yet, the pool is one that it could have been made in.
    let pool = |number| {
        let fits = |pool: &PoolName| {
            let pools = BTreeMap::from([(number, pool.clone())]);
            *pool != PoolName::diskless() && check_pools(edit, definition, node, &pools).is_ok()
        };
        let any = || edit.model.pools_of(node).map(|pool| pool.name.clone()).find(fits);
        let default = || default_pool(edit, definition, node, number, &resource.props).ok();
        let chosen = resource.is_diskful().then(|| own.clone().or_else(default).or_else(any));
        (number, chosen.flatten().unwrap_or_else(PoolName::diskless))
    };
    let pools: Vec<(VolumeNr, PoolName)> = wanted.map(|(number, _)| pool(*number)).collect();
    for (number, pool) in pools {
        let uuid = edit.uuid();
        let new = Volume { uuid, pool, props: Props::new(), adopt: false };
        resource.volumes.entry(number).or_insert(new);
    }
    edit.put(Object::Resource(resource));
}

/// Takes back that a resource was to be deleted, or to lose its disk.
pub fn keep_after_all(edit: &mut Edit<'_>, name: &ResourceName, node: &NodeName) {
    use ResourceFlag::*;
    edit.modify_resource(name, node, |resource| {
        let leaving = [Delete, DiskRemoveRequested, DiskRemoving, TieBreaker];
        resource.flags.retain(|flag| !leaving.contains(flag));
    });
    complete(edit, name, node);
    let key = Key::Resource(name.clone(), node.clone());
    let text = format!("{key} stays: no other replica that stays has its data");
    edit.note(NoteCode::TakenOver, key, text);
}

/// Drops a resource of which nothing is left, and what hangs on it.
pub fn drop_record(edit: &mut Edit<'_>, name: &ResourceName, node: &NodeName) {
    let connections = edit.model.resource_connections_of(name).map(|(pair, _)| pair);
    let connections = connections.filter(|(a, b)| a == node || b == node).cloned();
    for (a, b) in connections.collect::<Vec<_>>() {
        edit.remove(Key::ResourceConnection(name.clone(), a, b));
    }
    edit.remove(Key::Resource(name.clone(), node.clone()));
    let successors = edit.model.resources_of(name);
    let successors = successors.filter(|r| replaces(r).as_ref() == Some(node));
    for successor in successors.map(|r| r.node.clone()).collect::<Vec<_>>() {
        edit.modify_resource(name, &successor, |r| drop(r.props.remove(MIGRATE_FROM)));
    }
    if !edit.model.resources_of(name).any(Resource::is_diskful) {
        begin_anew(edit, name);
    }
    definitions::drop_if_empty(edit, name);
}

/// The data are given up: the next replica begins anew. With another generation of the first day,
/// for a disk that turns up with the old data is not to be taken for one of the new ones.
pub fn begin_anew(edit: &mut Edit<'_>, name: &ResourceName) {
    let Some(mut definition) = edit.model.definition(name).cloned() else { return };
    for volume in definition.volumes.values_mut() {
        volume.flags.remove(&VolumeDefinitionFlag::DrbdInitialized);
        volume.initial_on = None;
        volume.passed_on = false;
        volume.day_0 = edit.data_generation();
    }
    edit.put(Object::Definition(definition));
}

/// Places what is missing of a resource definition.
pub fn autoplace(edit: &mut Edit<'_>, name: &ResourceName, filter: &Filter) -> Result<(), Refusal> {
    let key = Key::Definition(name.clone());
    note_without_volumes(edit, name);
    let definition = edit.definition(name)?;
    let group = edit.group(&definition.group)?;
    let mut filter = filter.clone();
    groups::check_lists(&mut filter)?;
    let merged = place::merge(&filter, &group.filter);
    let diskless = filter.diskless == Some(true);
    let placement = match diskless {
        true => {
            // How many are wanted is not the group's to say: it counts replicas.
            let (place_count, additional_place_count) =
                (filter.place_count, filter.additional_place_count);
            let asked = Filter { place_count, additional_place_count, ..merged.clone() };
            place::place_diskless(edit.model, edit.observed(), definition, &asked)?
        }
        false => place::place(edit.model, edit.observed(), name, &merged)?,
    };
    if placement.chosen.is_empty() {
        let what = if diskless { "diskless resources" } else { "replicas" };
        let text = format!("{key} has as many {what} as wanted");
        edit.note(NoteCode::AlreadyDeployed, key, text);
    }
    for chosen in &placement.chosen {
        let pool = (!diskless).then(|| chosen.pool.clone());
        let new = NewResource { pool, diskless, ..NewResource::default() };
        create(edit, name, &chosen.node, &new, "auto-placer")?;
    }
    edit.placed(name, placement.candidates);
    if merged.diskless_on_remaining == Some(true) {
        diskless_on_remaining(edit, name)?;
    }
    helpers::review(edit, name)
}

/// Says that resources are made of nothing yet.
pub fn note_without_volumes(edit: &mut Edit<'_>, name: &ResourceName) {
    if edit.model.definition(name).is_some_and(|definition| definition.volumes.is_empty()) {
        let key = Key::Definition(name.clone());
        edit.note(NoteCode::NotFound, key.clone(), format!("{key} has no volumes yet"));
    }
}

/// A diskless client on every node that has no resource.
fn diskless_on_remaining(edit: &mut Edit<'_>, name: &ResourceName) -> Result<(), Refusal> {
    let nodes: Vec<NodeName> = edit.model.nodes().map(|node| node.name.clone()).collect();
    for node in nodes {
        let existing = edit.model.resource(name, &node);
        let lacking = existing.is_none_or(Resource::is_tie_breaker);
        if lacking && nodes::accepting(edit, &node).is_ok() {
            let new = NewResource { client: true, ..NewResource::default() };
            create(edit, name, &node, &new, "auto-placer")?;
        }
    }
    Ok(())
}

/// Makes a resource usable on a node (control plane §4.8).
pub fn make_available(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    node: &NodeName,
    diskful: bool,
) -> Result<(), Refusal> {
    let key = Key::Resource(name.clone(), node.clone());
    let definition = edit.definition(name)?.clone();
    edit.node(node)?;
    if let Some(existing) = edit.model.resource(name, node).cloned() {
        let inactive = existing.deactivated.is_some();
        if inactive {
            activity::bring_back(edit, name, node);
        }
        if existing.is_deleting() {
            nodes::accepting(edit, node)?;
            comes_back(&existing, &key)?;
            edit.modify_resource(name, node, |resource| {
                use ResourceFlag::*;
                resource.flags.retain(|flag| !matches!(flag, Delete | DiskRemoving));
            });
            complete(edit, name, node);
        }
        let losing = existing.flags.contains(&ResourceFlag::DiskRemoveRequested);
        if diskful && losing {
            toggle::to_diskful(edit, name, node, None, None, "user")?;
        } else if diskful && !existing.is_diskful() {
            let pool = best_pool(edit, name, node)?;
            toggle::to_diskful(edit, name, node, Some(pool), None, "user")?;
        } else if existing.is_tie_breaker() {
            edit.modify_resource(name, node, |r| {
                r.flags.remove(&ResourceFlag::TieBreaker);
            });
        } else if !existing.is_deleting() && !inactive {
            edit.note(NoteCode::NothingToDo, key.clone(), format!("{key} exists"));
        }
        return helpers::review(edit, name);
    }
    let reachable = definition.layers.contains(&Layer::Drbd)
        && edit.model.resources_of(name).any(Resource::is_replica);
    let new = match reachable && !diskful {
        true => NewResource { client: true, ..NewResource::default() },
        false => {
            let pool = Some(best_pool(edit, name, node)?);
            NewResource { pool, ..NewResource::default() }
        }
    };
    create(edit, name, node, &new, "user")?;
    helpers::review(edit, name)
}

/// Checks that a resource that is being deleted can stay.
fn comes_back(resource: &Resource, key: &Key) -> Result<(), Refusal> {
    if !resource.flags.contains(&ResourceFlag::DrbdDelete) {
        return Ok(());
    }
    Err(Refusal::new(Code::InUse, format!("{key} can not be made available"))
        .cause("it is being deleted, and its peers are leaving it")
        .correction("try again when it is gone")
        .about(key.clone()))
}

/// The best pool of one node for a replica.
pub fn best_pool(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    node: &NodeName,
) -> Result<PoolName, Refusal> {
    let definition = edit.definition(name)?;
    let group = edit.group(&definition.group)?;
    let own = Filter {
        additional_place_count: Some(1),
        place_count: Some(1),
        nodes: Some(vec![node.clone()]),
        ..Filter::default()
    };
    let filter = place::merge(&own, &group.filter);
    let placement = place::place(edit.model, edit.observed(), name, &filter);
    match placement {
        Ok(placement) if !placement.chosen.is_empty() => {
            edit.placed(name, placement.candidates);
            Ok(placement.chosen[0].pool.clone())
        }
        other => {
            let key = Key::Resource(name.clone(), node.clone());
            let details = other.err().map(|refusal| refusal.details).unwrap_or_default();
            Err(Refusal::new(Code::UnknownPool, format!("{key} can not have a disk"))
                .cause("no storage pool of the node fits")
                .correction("create a pool there, or enlarge one")
                .details(details)
                .about(key))
        }
    }
}
