//! The data of all resources as they should be, and which of them somebody wants.

use std::collections::BTreeMap;

use ::cluster::model::Model;
use ::cluster::name::{ResourceName, SnapshotName};
use ::cluster::objects::{DefinitionFlag, Generation, ResourceFlag, VolumeDefinitionFlag};
use vocab::VolumeNr;

/// A snapshot, by its resource definition and name.
pub type Source = (ResourceName, SnapshotName);

/// The data of a volume at a point in time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version {
    /// Where they began. Data of two beginnings have nothing in common.
    pub lineage: u64,
    /// Writes since.
    pub write: u64,
}

/// What is known of all data.
#[derive(Default)]
pub struct Data {
    /// The last write of each volume.
    last: BTreeMap<(ResourceName, u16), Version>,
    /// How often the data of a volume were given up for good.
    given_up: BTreeMap<(ResourceName, u16), u64>,
    /// What `given_up` was when data began.
    born: BTreeMap<u64, u64>,
    /// What was restored from which snapshot: all nodes get the same data.
    restored: BTreeMap<(ResourceName, u16, u64, Source, Version), u64>,
    /// What was rolled back for which token: all nodes get the same data.
    rolled_back: BTreeMap<(ResourceName, u16, Generation, Version), u64>,
}

impl Data {
    fn epoch(&self, name: &ResourceName, volume: u16) -> u64 {
        self.given_up.get(&(name.clone(), volume)).copied().unwrap_or_default()
    }

    fn lineage(&mut self, name: &ResourceName, volume: u16) -> u64 {
        let lineage = self.born.len() as u64;
        self.born.insert(lineage, self.epoch(name, volume));
        lineage
    }

    /// Data begin.
    pub fn begin(&mut self, name: &ResourceName, volume: u16) -> Version {
        let version = Version { lineage: self.lineage(name, volume), write: 0 };
        self.last.insert((name.clone(), volume), version);
        version
    }

    /// A snapshot's data are the beginning of a volume's.
    pub fn restore(
        &mut self,
        name: &ResourceName,
        volume: u16,
        source: &Source,
        from: Version,
    ) -> Version {
        let key = (name.clone(), volume, self.epoch(name, volume), source.clone(), from);
        let Some(lineage) = self.restored.get(&key).copied() else {
            let version = self.begin(name, volume);
            self.restored.insert(key, version.lineage);
            return version;
        };
        Version { lineage, write: 0 }
    }

    /// The data go on from an older write. What was written since is no part of them any more.
    pub fn roll_back(
        &mut self,
        name: &ResourceName,
        volume: u16,
        token: Generation,
        from: Version,
    ) -> Version {
        let key = (name.clone(), volume, token, from);
        let Some(lineage) = self.rolled_back.get(&key).copied() else {
            let version = self.begin(name, volume);
            self.rolled_back.insert(key, version.lineage);
            return version;
        };
        Version { lineage, write: 0 }
    }

    /// True if this is the last write.
    pub fn is_current(&self, name: &ResourceName, volume: u16, version: Option<Version>) -> bool {
        version.is_some() && version == self.last(name, volume)
    }

    /// The last write of a volume.
    pub fn last(&self, name: &ResourceName, volume: u16) -> Option<Version> {
        self.last.get(&(name.clone(), volume)).copied()
    }

    /// The last write of each volume of a resource definition.
    pub fn volumes(&self, name: &ResourceName) -> Vec<(u16, Version)> {
        let own = self.last.iter().filter(|((other, _), _)| other == name);
        own.map(|((_, number), last)| (*number, *last)).collect()
    }

    /// Every volume that has data.
    pub fn keys(&self) -> Vec<(ResourceName, u16)> {
        self.last.keys().cloned().collect()
    }

    /// Sets the last write, or that there is none.
    pub fn set(&mut self, name: &ResourceName, volume: u16, last: Option<Version>) {
        let key = (name.clone(), volume);
        match last {
            Some(last) => drop(self.last.insert(key, last)),
            None => drop(self.last.remove(&key)),
        }
    }

    /// Data have begun that count for nothing; the last write is what it was before.
    pub fn disown(
        &mut self,
        name: &ResourceName,
        volume: u16,
        begun: Version,
        last: Option<Version>,
    ) {
        self.born.insert(begun.lineage, u64::MAX);
        self.set(name, volume, last);
    }

    /// True if nobody has given up the data since they began.
    pub fn is_live(&self, name: &ResourceName, volume: u16, version: Version) -> bool {
        self.born.get(&version.lineage) == Some(&self.epoch(name, volume))
    }

    /// The data of a volume are given up for good.
    pub fn give_up(&mut self, name: &ResourceName, volume: u16) {
        *self.given_up.entry((name.clone(), volume)).or_default() += 1;
    }

    /// Gives up what the model says nobody wants, now and for good: the resource definition or the
    /// volume is deleted, or every resource of it was and has begun to go.
    pub fn follow(&mut self, model: &Model) {
        for (name, number) in self.keys() {
            let definition = model.definition(&name);
            let definition =
                definition.filter(|found| !found.flags.contains(&DefinitionFlag::Delete));
            let volume = definition.and_then(|found| found.volumes.get(&VolumeNr(number)));
            let volume =
                volume.filter(|found| !found.flags.contains(&VolumeDefinitionFlag::Delete));
            let stays = model.resources_of(&name).any(|resource| {
                !resource.flags.contains(&ResourceFlag::DrbdDelete) && !resource.is_tie_breaker()
            });
            if volume.is_none() || !stays {
                self.give_up(&name, number);
            }
        }
    }
}
