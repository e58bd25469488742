//! Resource definitions and volume definitions.

use std::collections::{BTreeMap, BTreeSet};

use vocab::{Bytes, Minor, VolumeNr};

use crate::change::{Key, Object};
use crate::command::{Command, NewDefinition, NewVolumeDefinition};
use crate::edit::{Edit, unknown};
use crate::layer::{Layer, stack};
use crate::name::*;
use crate::objects::*;
use crate::place::space;
use crate::props::{Owner, PropsEdit, chain, check_all};
use crate::refusal::{Code, NoteCode, Refusal};
use crate::schedule::Level;
use crate::size;

use super::{clone, helpers, resources, rollback, schedules, series, small};

/// Volumes are counted in KiB.
const KIB: u64 = 1024;

/// Largest volume: DRBD's limit of 1 PiB.
const MAX_SIZE: u64 = 1 << 50;

pub fn create(edit: &mut Edit<'_>, new: NewDefinition) -> Result<ResourceName, Refusal> {
    let name = match (new.name, &new.external_name) {
        (Some(name), _) => name,
        // Whoever says that it has no name of its own gets one.
        (None, Some(external)) if external.is_empty() => {
            ResourceName::new(&format!("LS_{}", edit.uuid()))?
        }
        (None, Some(external)) => from_external(external)?,
        (None, None) => {
            return Err(Refusal::new(
                Code::InvalidResourceName,
                "the resource definition has no name",
            )
            .cause("neither a name nor an external name was given")
            .correction("give one of them"));
        }
    };
    let key = Key::Definition(name.clone());
    let external_name = new.external_name.filter(|external| !external.is_empty());
    if let Some(external) = &external_name {
        if let Some(other) = edit.model.by_external_name(external) {
            let text = format!("the external name `{external}` is taken");
            return Err(Refusal::new(Code::ExternalNameExists, text)
                .cause(format!("resource definition {other} has it"))
                .correction("choose another name")
                .about(key));
        }
    }
    if edit.model.definition(&name).is_some() {
        return Err(Refusal::new(Code::DefinitionExists, format!("{key} exists"))
            .cause("names of resource definitions are unique, without regard to case")
            .correction("choose another name, or delete that one first")
            .about(key));
    }
    if new.port == Some(0) {
        return Err(Refusal::new(Code::InvalidResourcePort, format!("{key} can not have port 0"))
            .cause("TCP ports are 1 to 65535")
            .correction("give one of them, or leave it out")
            .about(key));
    }
    check_all(Owner::Definition, &new.props)?;
    let group = new.group.unwrap_or_else(GroupName::default_group);
    let in_group = edit.group(&group)?;
    let layers = new.layers.or_else(|| in_group.filter.layers.clone());
    let slots = new.peer_slots.or(in_group.peer_slots);
    let inherited = edit.model.controller().props.get("PeerSlotsNewResource");
    let inherited = in_group.props.get("PeerSlotsNewResource").or(inherited);
    let slots = slots.or_else(|| inherited.and_then(|slots| slots.parse().ok()));
    let peer_slots = slots_in_range(slots.unwrap_or(7), &key)?;
    let (layers, added) = stack(&layers.unwrap_or_else(|| vec![Layer::Drbd, Layer::Storage]))?;
    if added {
        let text = format!("the layer STORAGE was added to {key}");
        edit.note(NoteCode::StorageLayerAdded, key, text);
    }
    let uuid = edit.uuid();
    let secret = new.secret.unwrap_or_else(|| edit.secret());
    edit.put(Object::Definition(Definition {
        name: name.clone(),
        external_name,
        uuid,
        group,
        props: new.props,
        flags: BTreeSet::new(),
        layers,
        secret,
        peer_slots,
        port: new.port,
        next_node_id: 0,
        volumes: BTreeMap::new(),
        rollback: None,
        clone_of: None,
        generation: Generation(0),
    }));
    series::begin_all(edit, &name);
    Ok(name)
}

/// The number of peer slots, if there can be so many.
pub fn slots_in_range(slots: u8, key: &Key) -> Result<u8, Refusal> {
    if (1..=31).contains(&slots) {
        return Ok(slots);
    }
    Err(Refusal::new(Code::PeerSlotsExhausted, format!("{key} can not have {slots} peer slots"))
        .cause("a disk keeps bitmaps for 1 to 31 peers")
        .correction("give a number in this range; 7 is the default")
        .about(key.clone()))
}

pub fn modify(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    change: &PropsEdit,
    group: Option<GroupName>,
    layers: Option<Vec<Layer>>,
    peer_slots: Option<u8>,
) -> Result<(), Refusal> {
    let key = Key::Definition(name.clone());
    let mut definition = edit.definition(name)?.clone();
    small::edit_props(edit, Owner::Definition, &key, change, &mut definition.props)?;
    helpers::remember_who_sets_quorum(change, &mut definition.props);
    if let Some(group) = group {
        edit.group(&group)?;
        definition.group = group;
    }
    if let Some(layers) = layers {
        let (layers, _) = stack(&layers)?;
        if layers != definition.layers {
            if edit.model.resources_of(name).next().is_some() {
                let text = format!("the layers of {key} can not change");
                return Err(Refusal::new(Code::ResourceExists, text)
                    .cause("it has resources")
                    .correction("make another resource definition, and copy the data")
                    .about(key));
            }
            if definition.volumes.values().any(|v| v.passphrase.is_none())
                && layers.contains(&Layer::Luks)
            {
                let text = format!("the layers of {key} can not change");
                return Err(Refusal::new(Code::InvalidLayerStack, text)
                    .cause("it has volumes that were made without passphrases")
                    .correction("delete its volume definitions first, and create them anew")
                    .about(key));
            }
            definition.layers = layers;
            for volume in definition.volumes.values_mut() {
                volume.minor = None;
            }
        }
    }
    if let Some(slots) = peer_slots {
        definition.peer_slots = slots_in_range(slots, &key)?;
    }
    edit.put(Object::Definition(definition));
    give_minors(edit, name)?;
    helpers::review(edit, name)
}

/// Gives every volume of a resource definition with DRBD a minor that has none.
fn give_minors(edit: &mut Edit<'_>, name: &ResourceName) -> Result<(), Refusal> {
    let mut definition = edit.definition(name)?.clone();
    if !definition.layers.contains(&Layer::Drbd) {
        return Ok(());
    }
    let without = definition.volumes.iter().filter(|(_, volume)| volume.minor.is_none());
    for number in without.map(|(number, _)| *number).collect::<Vec<_>>() {
        let minor = edit.model.next_minor()?;
        definition.volumes.get_mut(&number).expect("it was just found").minor = Some(minor);
        edit.put(Object::Definition(definition.clone()));
    }
    Ok(())
}

/// Deletes a resource definition: first its resources, then the record.
pub fn delete(edit: &mut Edit<'_>, name: &ResourceName) -> Result<(), Refusal> {
    let key = Key::Definition(name.clone());
    if small::absent(edit, &key) {
        return Ok(());
    }
    let snapshots = edit.model.snapshots_of(name).filter(|s| !s.is_deleting()).count();
    if snapshots > 0 {
        return Err(Refusal::new(Code::SnapshotExists, format!("{key} can not be deleted"))
            .cause(match snapshots {
                1 => "it has a snapshot".to_owned(),
                _ => format!("it has {snapshots} snapshots"),
            })
            .correction("delete the snapshots first")
            .about(key));
    }
    not_in_use(edit, name, &key)?;
    rollback::end(edit, name, RollbackPhase::GivenUp("it is being deleted".to_owned()));
    edit.modify_definition(name, |d| {
        d.flags.insert(DefinitionFlag::Delete);
    });
    clone::drop_snapshot(edit, name);
    let nodes: Vec<NodeName> = edit.model.resources_of(name).map(|r| r.node.clone()).collect();
    for node in nodes {
        resources::mark_deleted(edit, name, &node);
    }
    drop_if_empty(edit, name);
    Ok(())
}

fn not_in_use(edit: &Edit<'_>, name: &ResourceName, key: &Key) -> Result<(), Refusal> {
    let mut users = edit.observed().replicas(name).filter(|(_, r)| r.in_use.is_some());
    let Some((node, _)) = users.next() else { return Ok(()) };
    Err(Refusal::new(Code::InUse, format!("{key} can not be deleted"))
        .cause(format!("it is Primary or open on node {node}"))
        .correction(format!("close it on node {node}: unmount it, or stop what uses it"))
        .about(key.clone()))
}

/// Drops a resource definition that is being deleted and has nothing left.
pub fn drop_if_empty(edit: &mut Edit<'_>, name: &ResourceName) {
    let Some(definition) = edit.model.definition(name) else { return };
    let deleting = definition.flags.contains(&DefinitionFlag::Delete);
    let empty = edit.model.resources_of(name).next().is_none()
        && edit.model.snapshots_of(name).next().is_none();
    if !deleting || !empty {
        return;
    }
    let pairs = edit.model.resource_connections_of(name).map(|(pair, _)| pair.clone());
    for (a, b) in pairs.collect::<Vec<_>>() {
        edit.remove(Key::ResourceConnection(name.clone(), a, b));
    }
    let files = edit.model.files().filter(|file| file.resources.contains(name)).cloned();
    for mut file in files.collect::<Vec<_>>() {
        file.resources.remove(name);
        edit.put(Object::File(file));
    }
    schedules::forget(edit, &Level::Definition(name.clone()));
    edit.remove(Key::Definition(name.clone()));
}

pub fn create_volume(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    new: NewVolumeDefinition,
) -> Result<(), Refusal> {
    let key = Key::Definition(name.clone());
    let mut definition = edit.definition(name)?.clone();
    let number = match new.number {
        Some(number) => volume_number(number, &key)?,
        None => free_number(definition.volumes.keys(), &key)?,
    };
    if definition.volumes.contains_key(&number) {
        let text = format!("volume {number} of {key} exists");
        return Err(Refusal::new(Code::VolumeDefinitionExists, text)
            .cause("volume numbers are unique in a resource definition")
            .correction("choose another number, or leave it out")
            .about(key));
    }
    not_snapshotted(edit, name, &key)?;
    let size = checked_size(new.size.0, &key)?;
    check_all(Owner::VolumeDefinition, &new.props)?;
    let passphrase = passphrase(edit, &definition, new.passphrase, &key)?;
    let minor = match (definition.layers.contains(&Layer::Drbd), new.minor) {
        (true, Some(minor)) => Some(given_minor(edit, minor, &key)?),
        (true, None) => Some(edit.model.next_minor()?),
        (false, _) => None,
    };
    let volume = VolumeDefinition {
        uuid: edit.uuid(),
        size,
        minor,
        props: new.props,
        flags: new.gross_size.then_some(VolumeDefinitionFlag::GrossSize).into_iter().collect(),
        passphrase,
        day_0: edit.data_generation(),
        initial_on: None,
        passed_on: false,
        passphrase_changes: 0,
    };
    has_room(&definition, number, &volume)?;
    definition.volumes.insert(number, volume);
    edit.put(Object::Definition(definition));
    resources::deploy_volume(edit, name, number)?;
    helpers::review(edit, name)
}

/// The passphrase of a new volume, encrypted under the master key: what was given, or a new one.
fn passphrase(
    edit: &mut Edit<'_>,
    definition: &Definition,
    given: Option<String>,
    key: &Key,
) -> Result<Option<String>, Refusal> {
    match (definition.layers.contains(&Layer::Luks), given) {
        (true, Some(given)) => Ok(Some(given)),
        (true, None) => match &edit.observed().master {
            Some(master) => {
                let new = crypt::seal::passphrase(&mut |bytes| edit.random(bytes));
                Ok(Some(master.seal(&new, &mut |bytes| edit.random(bytes))))
            }
            None => Err(Refusal::new(Code::NoMasterKey, format!("{key} can not be encrypted"))
                .cause("the master passphrase was not entered since the controller started, or there is none")
                .correction("enter it (`ashlar encryption unlock`), or create one")
                .about(key.clone())),
        },
        (false, None) => Ok(None),
        (false, Some(_)) => {
            Err(Refusal::new(Code::InvalidRequest, format!("{key} takes no passphrases"))
                .cause("it has no layer LUKS")
                .correction("leave the passphrase out, or use the layers DRBD,LUKS,STORAGE")
                .about(key.clone()))
        }
    }
}

/// Checks that no snapshot is being made, which is of the volumes as they were when it was asked for.
pub fn not_snapshotted(edit: &Edit<'_>, name: &ResourceName, key: &Key) -> Result<(), Refusal> {
    let mut snapshots = edit.model.snapshots_of(name);
    let Some(snapshot) = snapshots.find(|snapshot| snapshot.is_pending()) else { return Ok(()) };
    Err(Refusal::new(Code::InUse, format!("the volumes of {key} can not be changed"))
        .cause(format!("its snapshot {} is being made", snapshot.name))
        .correction("wait until that is done, or delete the snapshot")
        .about(key.clone()))
}

fn given_minor(edit: &Edit<'_>, minor: Minor, key: &Key) -> Result<Minor, Refusal> {
    let cause = if minor.0 > 1_048_575 {
        "minors are 0 to 1048575"
    } else if edit.model.minor_in_use(minor) {
        "another volume has it"
    } else {
        return Ok(minor);
    };
    Err(Refusal::new(Code::InvalidMinor, format!("a volume of {key} can not have minor {minor}"))
        .cause(cause)
        .correction("choose another one, or leave it out")
        .about(key.clone()))
}

/// A volume number within its range.
pub fn volume_number(number: u16, key: &Key) -> Result<VolumeNr, Refusal> {
    Command::volume_number(number).ok_or_else(|| {
        Refusal::new(Code::InvalidVolumeNumber, format!("{key} can not have a volume {number}"))
            .cause(format!("volume numbers are 0 to {}", VolumeNr::MAX))
            .correction("choose a smaller one, or leave it out")
            .about(key.clone())
    })
}

/// The smallest volume number that is free.
pub fn free_number<'a>(
    used: impl Iterator<Item = &'a VolumeNr>,
    key: &Key,
) -> Result<VolumeNr, Refusal> {
    let mut free = 0;
    for number in used {
        if number.0 > free {
            break;
        }
        free = number.0 + 1;
    }
    Command::volume_number(free).ok_or_else(|| {
        Refusal::new(Code::VolumeNumbersExhausted, format!("{key} has no volume number left"))
            .cause("every number is in use")
            .correction("delete volumes first")
            .about(key.clone())
    })
}

fn checked_size(size: u64, key: &Key) -> Result<Bytes, Refusal> {
    if (KIB..=MAX_SIZE).contains(&size) && size.is_multiple_of(KIB) {
        return Ok(Bytes(size));
    }
    Err(Refusal::new(
        Code::InvalidVolumeSize,
        format!("a volume of {key} can not have {size} bytes"),
    )
    .cause("sizes are whole KiB, from 1 KiB to 1 PiB")
    .correction("choose a size in this range")
    .about(key.clone()))
}

/// Checks that a volume has data beside what its layers need for themselves.
pub fn has_room(
    definition: &Definition,
    number: VolumeNr,
    volume: &VolumeDefinition,
) -> Result<(), Refusal> {
    if size::is_enough(definition, volume) {
        return Ok(());
    }
    let key = Key::Definition(definition.name.clone());
    let text = format!("volume {number} of {key} is too small");
    let cause = match volume.flags.contains(&VolumeDefinitionFlag::GrossSize) {
        true => "its size includes DRBD's metadata, and there is no such disk of less than 1 MiB",
        false => "DRBD counts blocks of 4 KiB, and has one at least",
    };
    Err(Refusal::new(Code::InvalidVolumeSize, text)
        .cause(cause)
        .correction("choose a larger size")
        .about(key))
}

pub fn modify_volume(
    edit: &mut Edit<'_>,
    name: &ResourceName,
    number: u16,
    size: Option<u64>,
    change: &PropsEdit,
    gross_size: Option<bool>,
) -> Result<(), Refusal> {
    let key = Key::Definition(name.clone());
    let mut definition = edit.definition(name)?.clone();
    let number = volume_number(number, &key)?;
    let deployed = edit.model.resources_of(name).next().is_some();
    let Some(volume) = definition.volumes.get_mut(&number) else {
        return Err(no_volume(&key, number));
    };
    small::edit_props(edit, Owner::VolumeDefinition, &key, change, &mut volume.props)?;
    if let Some(gross) = gross_size {
        if deployed && gross != volume.flags.contains(&VolumeDefinitionFlag::GrossSize) {
            let text = format!("GROSS_SIZE of volume {number} of {key} can not change");
            return Err(Refusal::new(Code::InvalidResourceState, text)
                .cause("its volumes exist")
                .correction("set it before the first resource is created")
                .about(key));
        }
        match gross {
            true => volume.flags.insert(VolumeDefinitionFlag::GrossSize),
            false => volume.flags.remove(&VolumeDefinitionFlag::GrossSize),
        };
    }
    if let Some(size) = size {
        let size = checked_size(size, &key)?;
        if size == volume.size {
            let text = format!("volume {number} of {key} has this size already");
            edit.note(NoteCode::SameSize, key.clone(), text);
        } else if deployed {
            let old = volume.size;
            not_snapshotted(edit, name, &key)?;
            resizable(edit, name, number, old, size)?;
            volume.flags.insert(VolumeDefinitionFlag::Resize);
        }
        volume.size = size;
    }
    has_room(&definition, number, &definition.volumes[&number])?;
    edit.put(Object::Definition(definition));
    Ok(())
}

/// Checks that the volumes of a deployed volume definition can get another size.
fn resizable(
    edit: &Edit<'_>,
    name: &ResourceName,
    number: VolumeNr,
    old: Bytes,
    new: Bytes,
) -> Result<(), Refusal> {
    let key = Key::Definition(name.clone());
    let text = format!("volume {number} of {key} can not get another size");
    if new < old {
        return Err(Refusal::new(Code::InvalidVolumeSize, text)
            .cause("volumes that exist do not shrink")
            .correction("make a smaller volume, and copy the data")
            .about(key));
    }
    let definition = edit.definition(name)?;
    if chain::definition(edit.model, definition).is_true("DrbdOptions/ExactSize") {
        return Err(Refusal::new(Code::InvalidProperty, text)
            .cause("DrbdOptions/ExactSize is set")
            .correction("delete that property first")
            .about(key));
    }
    let inactive = |r: &&Resource| r.deactivated.is_some() && r.takes_a_place();
    if let Some(inactive) = edit.model.resources_of(name).find(inactive) {
        let node = &inactive.node;
        return Err(Refusal::new(Code::NotUpToDate, text)
            .cause(format!("it is inactive on node {node}, and all replicas grow together"))
            .correction(format!("activate it on node {node} first, or delete it there"))
            .about(key));
    }
    for resource in edit.model.resources_of(name).filter(|resource| resource.is_replica()) {
        let node = &resource.node;
        let Some(volume) = resource.volumes.get(&number) else { continue };
        if !edit.observed().is_connected(node) {
            return Err(Refusal::new(Code::NotUpToDate, text)
                .cause(format!("node {node} is not connected, and all replicas grow together"))
                .correction(format!("wait until node {node} is back"))
                .about(key));
        }
        let Some(pool) = edit.model.pool(node, &volume.pool) else { continue };
        let free = space::estimate(edit.model, edit.observed(), pool);
        if free.is_some_and(|free| free < Bytes(new.0 - old.0)) {
            return Err(Refusal::new(Code::NotEnoughFreeSpace, text)
                .cause(format!("pool {} of node {node} has not enough free space", pool.name))
                .correction("enlarge the pool, or choose a smaller size")
                .about(key));
        }
    }
    Ok(())
}

pub fn delete_volume(edit: &mut Edit<'_>, name: &ResourceName, number: u16) -> Result<(), Refusal> {
    let key = Key::Definition(name.clone());
    if small::absent(edit, &key) {
        return Ok(());
    }
    let mut definition = edit.definition(name)?.clone();
    let number = volume_number(number, &key)?;
    let Some(volume) = definition.volumes.get_mut(&number) else {
        let text = format!("{key} has no volume {number}");
        edit.note(NoteCode::NotFound, key, text);
        return Ok(());
    };
    not_in_use(edit, name, &key)?;
    not_snapshotted(edit, name, &key)?;
    volume.flags.insert(VolumeDefinitionFlag::Delete);
    if edit.model.resources_of(name).next().is_none() {
        definition.volumes.remove(&number);
    }
    edit.put(Object::Definition(definition));
    Ok(())
}

pub fn no_volume(key: &Key, number: VolumeNr) -> Refusal {
    let mut refusal = unknown(Code::UnknownVolumeDefinition, key.clone());
    refusal.message = format!("{key} has no volume {number}").into();
    refusal
}
