//! A change of the wanted state that is either made as a whole or not at all.
//!
//! Commands write through an [`Edit`]. It remembers the first value of each row they touch, so that
//! a refusal in the middle puts everything back, and the rows that differ in the end are the
//! changes. Here, and only here, generations are counted.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};
use vocab::{GenUuid, VolumeNr};

use crate::change::{Change, Key, Object};
use crate::model::Model;
use crate::name::*;
use crate::objects::*;
use crate::observed::Observed;
use crate::place::{Candidate, Placed};
use crate::refusal::{Code, Note, NoteCode, Refusal};

/// What comes in with a command beside its words: facts, time and chance.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// What agents have reported.
    pub observed: &'a Observed,
    /// The time of day.
    pub now: Millis,
    /// Random bits, fresh for each command: unique ids and secrets are made of them.
    pub entropy: [u8; 32],
}

/// What came of a command.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Applied {
    /// What a store has to keep, as one transaction.
    pub changes: Vec<Change>,
    /// What an operator should know.
    pub notes: Vec<Note>,
    /// Where replicas were placed, and why; of a command that places many the first ones.
    pub placed: Vec<Placed>,
    /// What is there now and was not before: names and numbers may have been chosen here.
    pub made: Vec<Made>,
}

/// Something that a command has made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Made {
    /// An object with a row of its own.
    Object(Key),
    /// A volume of a resource definition that there was.
    Volume(ResourceName, VolumeNr),
    /// A volume group of a resource group that there was.
    VolumeGroup(GroupName, VolumeNr),
}

/// Placements of one command that are told. Nobody reads more, and each has every pool in it.
const PLACED: usize = 100;

/// A command at work.
pub struct Edit<'a> {
    /// The wanted state, as changed so far.
    pub model: &'a mut Model,
    /// Facts, time and chance.
    pub context: &'a Context<'a>,
    before: BTreeMap<Key, Option<Object>>,
    notes: Vec<Note>,
    placed: Vec<Placed>,
    draws: u32,
}

impl<'a> Edit<'a> {
    /// Begins an edit.
    pub fn new(model: &'a mut Model, context: &'a Context<'a>) -> Edit<'a> {
        let (before, notes, placed) = (BTreeMap::new(), Vec::new(), Vec::new());
        Edit { model, context, before, notes, placed, draws: 0 }
    }

    /// What agents have reported.
    pub fn observed(&self) -> &'a Observed {
        self.context.observed
    }

    /// Puts a row.
    pub fn put(&mut self, object: Object) {
        let key = object.key();
        let old = self.model.put(object);
        self.before.entry(key).or_insert(old);
    }

    /// Removes a row.
    pub fn remove(&mut self, key: Key) {
        let old = self.model.remove(&key);
        self.before.entry(key).or_insert(old);
    }

    /// Says something beside the result.
    pub fn note(&mut self, code: NoteCode, object: Key, message: impl Into<String>) {
        self.notes.push(Note { code, message: message.into(), object });
    }

    /// Says where replicas were placed. That there was nothing to place is not said.
    pub fn placed(&mut self, name: &ResourceName, candidates: Vec<Candidate>) {
        if !candidates.is_empty() && self.placed.len() < PLACED {
            self.placed.push(Placed::new(self.model, name, candidates));
        }
    }

    /// How many remarks there are.
    pub fn notes(&self) -> usize {
        self.notes.len()
    }

    /// Puts every row back, and drops what was said since.
    pub fn undo(self) {
        for (key, object) in self.before {
            match object {
                Some(object) => drop(self.model.put(object)),
                None => drop(self.model.remove(&key)),
            }
        }
    }

    /// Does something that may be refused: then nothing of it is left, and the rest goes on.
    ///
    /// # Errors
    /// Its refusal.
    pub fn attempt<T>(
        &mut self,
        work: impl FnOnce(&mut Edit<'_>) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut part = Edit::new(self.model, self.context);
        part.draws = self.draws;
        let done = work(&mut part);
        self.draws = part.draws;
        match done {
            Ok(done) => {
                let (before, notes) = (part.before, part.notes);
                for (key, old) in before {
                    self.before.entry(key).or_insert(old);
                }
                self.notes.extend(notes);
                Ok(done)
            }
            Err(refusal) => {
                part.undo();
                Err(refusal)
            }
        }
    }

    /// Ends the edit: counts generations, and returns what differs.
    pub fn finish(mut self) -> Applied {
        let changed = self.changed();
        if !changed.is_empty() {
            self.count(&changed);
        }
        let changes = self.changed().into_iter().map(|key| match get(self.model, &key) {
            Some(object) => Change::Put(object),
            None => Change::Remove(key),
        });
        let changes: Vec<Change> = changes.collect();
        let made = changes.iter().flat_map(|change| self.made(change)).collect();
        Applied { changes, notes: self.notes, placed: self.placed, made }
    }

    /// What was not there before a change.
    fn made(&self, change: &Change) -> Vec<Made> {
        let Change::Put(object) = change else { return Vec::new() };
        let key = object.key();
        let old = self.before.get(&key).and_then(Option::as_ref);
        match (old, object) {
            (None, _) => vec![Made::Object(key)],
            (Some(Object::Definition(old)), Object::Definition(new)) => {
                let added = new.volumes.keys().filter(|number| !old.volumes.contains_key(number));
                added.map(|number| Made::Volume(new.name.clone(), *number)).collect()
            }
            (Some(Object::Group(old)), Object::Group(new)) => {
                let had = |number| old.volume_groups.contains_key(number);
                let added = new.volume_groups.keys().filter(|number| !had(number));
                added.map(|number| Made::VolumeGroup(new.name.clone(), *number)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The rows that are not what they were.
    fn changed(&self) -> Vec<Key> {
        let differs = |(key, old): &(&Key, &Option<Object>)| get(self.model, key) != **old;
        self.before.iter().filter(differs).map(|(key, _)| key.clone()).collect()
    }

    fn count(&mut self, changed: &[Key]) {
        let next = Generation(self.model.generation().0 + 1);
        let mut definitions = BTreeSet::new();
        for key in changed {
            definitions.extend(key.definition().cloned());
            match key {
                Key::Node(name) => self.modify_node(name, |node| node.generation = next),
                Key::Group(name) => self.modify_group(name, |group| group.generation = next),
                Key::NodeConnection(a, b) => {
                    self.modify_node(a, |node| node.generation = next);
                    self.modify_node(b, |node| node.generation = next);
                }
                Key::File(path) => {
                    let before = self.before.get(key).and_then(Option::as_ref);
                    if let Some(Object::File(file)) = before {
                        definitions.extend(file.resources.iter().cloned());
                    }
                    let file = self.model.file(path);
                    definitions.extend(file.into_iter().flat_map(|f| f.resources.iter().cloned()));
                }
                _ => {}
            }
        }
        for name in definitions {
            self.modify_definition(&name, |definition| definition.generation = next);
        }
        let mut controller = self.model.controller().clone();
        controller.generation = next;
        let old = match self.before.get(&Key::Controller) {
            Some(Some(Object::Controller(old))) => Some(&old.props),
            _ => None,
        };
        if changed.contains(&Key::Controller) && old != Some(&controller.props) {
            controller.props_generation = next;
        }
        self.put(Object::Controller(controller));
    }
}

/// Changing rows in place. A row that is not there is left alone: whoever names it has checked.
impl Edit<'_> {
    /// Changes a node.
    pub fn modify_node(&mut self, name: &NodeName, change: impl FnOnce(&mut Node)) {
        if let Some(mut node) = self.model.node(name).cloned() {
            change(&mut node);
            self.put(Object::Node(node));
        }
    }

    /// Changes a resource group.
    pub fn modify_group(&mut self, name: &GroupName, change: impl FnOnce(&mut Group)) {
        if let Some(mut group) = self.model.group(name).cloned() {
            change(&mut group);
            self.put(Object::Group(group));
        }
    }

    /// Changes a resource definition.
    pub fn modify_definition(&mut self, name: &ResourceName, change: impl FnOnce(&mut Definition)) {
        if let Some(mut definition) = self.model.definition(name).cloned() {
            change(&mut definition);
            self.put(Object::Definition(definition));
        }
    }

    /// Changes a resource.
    pub fn modify_resource(
        &mut self,
        name: &ResourceName,
        node: &NodeName,
        change: impl FnOnce(&mut Resource),
    ) {
        if let Some(mut resource) = self.model.resource(name, node).cloned() {
            change(&mut resource);
            self.put(Object::Resource(resource));
        }
    }

    /// Changes a snapshot.
    pub fn modify_snapshot(
        &mut self,
        name: &ResourceName,
        snapshot: &SnapshotName,
        change: impl FnOnce(&mut SnapshotDefinition),
    ) {
        if let Some(mut snapshot) = self.model.snapshot(name, snapshot).cloned() {
            change(&mut snapshot);
            self.put(Object::Snapshot(snapshot));
        }
    }
}

/// Looking up what a command names.
impl Edit<'_> {
    /// A node that is there.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn node(&self, name: &NodeName) -> Result<&Node, Refusal> {
        self.model.node(name).ok_or_else(|| unknown(Code::UnknownNode, Key::Node(name.clone())))
    }

    /// A resource group that is there.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn group(&self, name: &GroupName) -> Result<&Group, Refusal> {
        self.model.group(name).ok_or_else(|| unknown(Code::UnknownGroup, Key::Group(name.clone())))
    }

    /// A resource definition that is there and stays.
    ///
    /// # Errors
    /// If there is none of that name, or it is being deleted.
    pub fn definition(&self, name: &ResourceName) -> Result<&Definition, Refusal> {
        let key = || Key::Definition(name.clone());
        let found = self.model.definition(name);
        let found = found.ok_or_else(|| unknown(Code::UnknownDefinition, key()))?;
        if found.flags.contains(&DefinitionFlag::Delete) {
            return Err(Refusal::new(Code::InUse, format!("{} can not be changed", key()))
                .cause("it is being deleted")
                .correction("wait until it is gone")
                .about(key()));
        }
        Ok(found)
    }

    /// A resource that is there.
    ///
    /// # Errors
    /// If there is none on that node.
    pub fn resource(&self, name: &ResourceName, node: &NodeName) -> Result<&Resource, Refusal> {
        let key = || Key::Resource(name.clone(), node.clone());
        self.model.resource(name, node).ok_or_else(|| unknown(Code::UnknownResource, key()))
    }

    /// A snapshot that is there.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn snapshot(
        &self,
        name: &ResourceName,
        snapshot: &SnapshotName,
    ) -> Result<&SnapshotDefinition, Refusal> {
        let key = || Key::Snapshot(name.clone(), snapshot.clone());
        self.model.snapshot(name, snapshot).ok_or_else(|| unknown(Code::UnknownSnapshot, key()))
    }
}

/// A refusal because something is not there.
pub fn unknown(code: Code, key: Key) -> Refusal {
    Refusal::new(code, format!("{key} does not exist"))
        .cause("no object has this name")
        .correction("check the spelling, or create it first")
        .about(key)
}

/// Chance.
impl Edit<'_> {
    fn draw(&mut self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.context.entropy);
        hash.update(self.draws.to_be_bytes());
        self.draws += 1;
        hash.finalize().into()
    }

    /// A new unique id, version 4.
    pub fn uuid(&mut self) -> Uuid {
        let mut bytes: [u8; 16] = self.draw()[..16].try_into().expect("a draw has 32 bytes");
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Uuid(u128::from_be_bytes(bytes))
    }

    /// A generation that no disk has yet.
    pub fn data_generation(&mut self) -> GenUuid {
        let bytes: [u8; 8] = self.draw()[..8].try_into().expect("a draw has 32 bytes");
        // The lowest bit means Primary, and values below 8 have meanings of their own.
        GenUuid((u64::from_be_bytes(bytes) | 8) & !1)
    }

    /// Fills a slice with bytes that nobody can guess.
    pub fn random(&mut self, to: &mut [u8]) {
        for part in to.chunks_mut(32) {
            part.copy_from_slice(&self.draw()[..part.len()]);
        }
    }

    /// Twenty letters and digits that nobody can guess.
    pub fn secret(&mut self) -> String {
        const SIGNS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789Aa";
        let sign = |byte: &u8| char::from(SIGNS[usize::from(byte & 63)]);
        self.draw()[..20].iter().map(sign).collect()
    }
}

/// The row of a key, as it is.
pub fn get(model: &Model, key: &Key) -> Option<Object> {
    match key {
        Key::Controller => Some(Object::Controller(model.controller().clone())),
        Key::Node(name) => model.node(name).cloned().map(Object::Node),
        Key::PoolDefinition(name) => {
            model.pool_definition(name).cloned().map(Object::PoolDefinition)
        }
        Key::Pool(node, name) => model.pool(node, name).cloned().map(Object::Pool),
        Key::Group(name) => model.group(name).cloned().map(Object::Group),
        Key::Definition(name) => model.definition(name).cloned().map(Object::Definition),
        Key::Resource(name, node) => model.resource(name, node).cloned().map(Object::Resource),
        Key::Snapshot(name, snapshot) => {
            model.snapshot(name, snapshot).cloned().map(Object::Snapshot)
        }
        Key::NodeConnection(a, b) => {
            let props = model.node_connection(a, b).cloned();
            props.map(|props| Object::NodeConnection(a.clone(), b.clone(), props))
        }
        Key::ResourceConnection(name, a, b) => {
            let props = model.resource_connection(name, a, b).cloned();
            props.map(|props| Object::ResourceConnection(name.clone(), a.clone(), b.clone(), props))
        }
        Key::Store(name) => model.store(name).cloned().map(|m| Object::Store(name.clone(), m)),
        Key::File(path) => model.file(path).cloned().map(Object::File),
        Key::JoinToken(digest) => model.join_token(digest).cloned().map(Object::JoinToken),
        Key::Remote(name) => model.remote(name).cloned().map(Object::Remote),
        Key::Schedule(name) => model.schedule(name).cloned().map(Object::Schedule),
        Key::Switch(level, remote, schedule) => {
            model.switch(level, remote, schedule).cloned().map(Object::Switch)
        }
        Key::Series(name, remote, schedule) => {
            model.series(name, remote, schedule).cloned().map(Object::Series)
        }
    }
}
