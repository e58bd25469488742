//! Resource groups, and what is made from them.

use std::collections::BTreeMap;

use vocab::Bytes;

use crate::change::{Key, Object};
use crate::command::{NewDefinition, NewVolumeDefinition};
use crate::edit::{Edit, unknown};
use crate::layer::stack;
use crate::name::*;
use crate::objects::*;
use crate::place;
use crate::props::{Owner, PropsEdit, check_all};
use crate::refusal::{Code, NoteCode, Refusal};
use crate::schedule::Level;

use super::definitions::{self, free_number, volume_number};
use super::{helpers, resources, rollback, schedules, small};

/// Replicas of a group that was made without a place count.
const PLACE_COUNT: u32 = 2;

/// What volumes a spawn makes.
pub struct Sizes {
    /// In bytes.
    pub sizes: Vec<u64>,
    /// Keys of a layer LUKS, one for each volume, or none.
    pub passphrases: Vec<String>,
    /// The number need not be that of volume groups.
    pub partial: bool,
}

pub fn create(
    edit: &mut Edit<'_>,
    name: GroupName,
    description: String,
    props: Props,
    mut filter: Filter,
    peer_slots: Option<u8>,
) -> Result<(), Refusal> {
    let key = Key::Group(name.clone());
    if edit.model.group(&name).is_some() {
        return Err(Refusal::new(Code::GroupExists, format!("{key} exists"))
            .cause("names of resource groups are unique, without regard to case")
            .correction("modify it, or choose another name")
            .about(key));
    }
    check_all(Owner::Group, &props)?;
    check_filter(&mut filter, &key)?;
    filter.place_count.get_or_insert(PLACE_COUNT);
    let peer_slots = peer_slots.map(|n| definitions::slots_in_range(n, &key)).transpose()?;
    note_unknown_pools(edit, &filter);
    let uuid = edit.uuid();
    edit.put(Object::Group(Group {
        name,
        uuid,
        description,
        props,
        filter,
        peer_slots,
        volume_groups: BTreeMap::new(),
        generation: Generation(0),
    }));
    Ok(())
}

/// Checks what can be wrong with a filter itself.
pub fn check_filter(filter: &mut Filter, key: &Key) -> Result<(), Refusal> {
    if filter.place_count == Some(0) {
        return Err(Refusal::new(
            Code::InvalidPlaceCount,
            format!("{key} can not have 0 replicas"),
        )
        .cause("a place count is 1 or more")
        .correction("give one, or leave it out")
        .about(key.clone()));
    }
    if filter.diskless == Some(true) {
        return Err(Refusal::new(
            Code::InvalidRequest,
            format!("{key} can not place diskless resources alone"),
        )
        .cause("what is spawned of a group has data")
        .correction("leave `diskless_type` out; `diskless_on_remaining` makes them beside replicas")
        .about(key.clone()));
    }
    check_lists(filter)
}

/// Says which pools of a filter are on no node, or not yet.
fn note_unknown_pools(edit: &mut Edit<'_>, filter: &Filter) {
    for pool in filter.pools.iter().flatten() {
        if !edit.model.pools().any(|there| there.name == *pool) {
            let key = Key::PoolDefinition(pool.clone());
            edit.note(NoteCode::NotFound, key, format!("no node has a storage pool {pool} yet"));
        }
    }
}

/// The same, but for the number of replicas: of a placement it may be that nothing is wanted.
pub fn check_lists(filter: &mut Filter) -> Result<(), Refusal> {
    if let Some(layers) = filter.layers.as_mut().filter(|layers| !layers.is_empty()) {
        *layers = stack(layers)?.0;
    }
    place::check_regex(filter)
}

pub fn modify(
    edit: &mut Edit<'_>,
    name: &GroupName,
    description: Option<String>,
    change: &PropsEdit,
    mut filter: Filter,
    peer_slots: Option<u8>,
) -> Result<(), Refusal> {
    let key = Key::Group(name.clone());
    let mut group = edit.group(name)?.clone();
    small::edit_props(edit, Owner::Group, &key, change, &mut group.props)?;
    check_filter(&mut filter, &key)?;
    note_unknown_pools(edit, &filter);
    group.description = description.unwrap_or(group.description);
    let peer_slots = peer_slots.map(|n| definitions::slots_in_range(n, &key)).transpose()?;
    group.peer_slots = peer_slots.or(group.peer_slots);
    let more = filter.place_count;
    group.filter = place::merge(&filter, &group.filter);
    // An empty list clears: nothing is left that a resource definition could be filtered by.
    place::clear_empty(&mut group.filter);
    edit.put(Object::Group(group));
    let names: Vec<ResourceName> = edit.model.definitions_in(name).cloned().collect();
    for definition in &names {
        if helpers::concerns(change) {
            helpers::review(edit, definition)?;
        }
        let deployed = edit.model.resources_of(definition).next().is_some();
        if more.is_some() && deployed {
            place_or_note(edit, definition, &filter)?;
        }
    }
    Ok(())
}

pub fn delete(edit: &mut Edit<'_>, name: &GroupName) -> Result<(), Refusal> {
    let key = Key::Group(name.clone());
    if small::absent(edit, &key) {
        return Ok(());
    }
    let member = edit.model.definitions_in(name).next().cloned();
    let cause = match member {
        Some(definition) => format!("resource definition {definition} belongs to it"),
        None if *name == GroupName::default_group() => {
            "resource definitions without a group belong to it".to_owned()
        }
        None => {
            schedules::forget(edit, &Level::Group(name.clone()));
            edit.remove(key);
            return Ok(());
        }
    };
    Err(Refusal::new(Code::DefinitionExists, format!("{key} can not be deleted"))
        .cause(cause)
        .correction("delete its resource definitions, or move them to another group")
        .about(key))
}

pub fn create_volume(
    edit: &mut Edit<'_>,
    name: &GroupName,
    number: Option<u16>,
    props: Props,
    gross_size: bool,
) -> Result<(), Refusal> {
    let key = Key::Group(name.clone());
    let mut group = edit.group(name)?.clone();
    check_all(Owner::VolumeGroup, &props)?;
    let number = match number {
        Some(number) => volume_number(number, &key)?,
        None => free_number(group.volume_groups.keys(), &key)?,
    };
    let uuid = edit.uuid();
    let volume = VolumeGroup { uuid, props, gross_size };
    if group.volume_groups.insert(number, volume).is_some() {
        let text = format!("volume group {number} of {key} exists");
        return Err(Refusal::new(Code::VolumeGroupExists, text)
            .cause("volume numbers are unique in a resource group")
            .correction("modify it, or choose another number")
            .about(key));
    }
    edit.put(Object::Group(group));
    Ok(())
}

pub fn modify_volume(
    edit: &mut Edit<'_>,
    name: &GroupName,
    number: u16,
    change: &PropsEdit,
    gross_size: Option<bool>,
) -> Result<(), Refusal> {
    let key = Key::Group(name.clone());
    let mut group = edit.group(name)?.clone();
    let number = volume_number(number, &key)?;
    let Some(volume) = group.volume_groups.get_mut(&number) else {
        let mut refusal = unknown(Code::UnknownVolumeGroup, key.clone());
        refusal.message = format!("{key} has no volume group {number}").into();
        return Err(refusal);
    };
    small::edit_props(edit, Owner::VolumeGroup, &key, change, &mut volume.props)?;
    volume.gross_size = gross_size.unwrap_or(volume.gross_size);
    edit.put(Object::Group(group));
    Ok(())
}

pub fn delete_volume(edit: &mut Edit<'_>, name: &GroupName, number: u16) -> Result<(), Refusal> {
    let key = Key::Group(name.clone());
    let mut group = edit.group(name)?.clone();
    let number = volume_number(number, &key)?;
    if group.volume_groups.remove(&number).is_none() {
        let text = format!("{key} has no volume group {number}");
        edit.note(NoteCode::NotFound, key, text);
    }
    edit.put(Object::Group(group));
    Ok(())
}

/// Makes a resource definition with volumes, and places it. If it can not be placed nothing is left.
pub fn spawn(
    edit: &mut Edit<'_>,
    name: GroupName,
    mut new: NewDefinition,
    sizes: Sizes,
    filter: &Filter,
    definitions_only: bool,
) -> Result<(), Refusal> {
    let key = Key::Group(name.clone());
    let group = edit.group(&name)?.clone();
    let volumes = group.volume_groups.len();
    if !sizes.partial && volumes > 0 && volumes != sizes.sizes.len() {
        let text = format!("{} sizes do not fit {key}", sizes.sizes.len());
        return Err(Refusal::new(Code::InvalidVolumeSizes, text)
            .cause(format!("it has {volumes} volume groups"))
            .correction("give one size for each, or say that it is partial")
            .about(key));
    }
    if !sizes.passphrases.is_empty() && sizes.passphrases.len() != sizes.sizes.len() {
        let text = format!("{} passphrases do not fit", sizes.passphrases.len());
        return Err(Refusal::new(Code::InvalidRequest, text)
            .cause(format!("there are {} volumes", sizes.sizes.len()))
            .correction("give one for each volume, or none")
            .about(key));
    }
    new.group = Some(name);
    new.layers = new.layers.or_else(|| filter.layers.clone()).filter(|layers| !layers.is_empty());
    let definition = definitions::create(edit, new)?;
    let mut templates: Vec<_> = group.volume_groups.iter().map(|(nr, v)| (Some(nr.0), v)).collect();
    templates.truncate(sizes.sizes.len());
    for (index, size) in sizes.sizes.iter().enumerate() {
        let template = templates.get(index);
        let volume = NewVolumeDefinition {
            number: template.and_then(|(number, _)| *number),
            size: Bytes(*size),
            gross_size: template.is_some_and(|(_, volume)| volume.gross_size),
            passphrase: sizes.passphrases.get(index).cloned(),
            ..NewVolumeDefinition::default()
        };
        definitions::create_volume(edit, &definition, volume)?;
    }
    let merged = place::merge(filter, &group.filter);
    if definitions_only || merged.place_count.is_none() {
        let text = format!("no resource of {definition} was created");
        edit.note(NoteCode::NothingSpawned, Key::Definition(definition), text);
        return Ok(());
    }
    resources::autoplace(edit, &definition, filter)
}

/// Places what the resource definitions of a group lack. One that can not be placed does not keep
/// the others from it.
pub fn adjust(edit: &mut Edit<'_>, name: &GroupName, filter: &Filter) -> Result<(), Refusal> {
    edit.group(name)?;
    let names: Vec<ResourceName> = edit.model.definitions_in(name).cloned().collect();
    names.iter().try_for_each(|definition| place_or_note(edit, definition, filter))
}

/// Autoplaces, and makes a note of it where that can not be done.
fn place_or_note(edit: &mut Edit<'_>, name: &ResourceName, filter: &Filter) -> Result<(), Refusal> {
    if edit.definition(name).is_err() || rollback::is_busy(edit, name) {
        return Ok(());
    }
    match resources::autoplace(edit, name, filter) {
        Err(refusal)
            if matches!(refusal.code, Code::NotEnoughNodes | Code::UndecidablePlacement) =>
        {
            edit.note(NoteCode::NotEnoughNodes, Key::Definition(name.clone()), refusal.to_string());
            Ok(())
        }
        other => other,
    }
}
