//! What the agent remembers of each resource, durably: what it has begun and what it has made.
//!
//! A record says what is about to be done before it is done, and what has been done after. So
//! whatever is in a pool has a record, and a step that was cut short by a crash is taken up where
//! it was: what has begun may be made again, or removed, for it is ours.
//!
//! One file for each resource, replaced as a whole. A record with nothing in it is dropped; its
//! generation goes into the floor below which steps of unknown resources are refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use cluster::name::{PoolName, ResourceName, SnapshotName};
use cluster::objects::{Generation, Provider};
use cluster::observed::{DownForRollback, Suspension, SuspensionState};
use cluster::plan::ResourceConfig;
use codec::admin::Listen;
use serde::{Deserialize, Serialize};

use crate::failed::Failed;
use crate::files;

/// The pool of each volume.
pub type Parts = BTreeMap<u16, (PoolName, Provider)>;

/// What the agent knows of a resource. Fields that older releases have not written have defaults.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The resource definition, as it is spelled.
    pub name: ResourceName,
    /// Generation of the newest step that was begun.
    #[serde(default)]
    pub seen: Generation,
    /// Generation of the newest configuration or removal that was carried out.
    #[serde(default)]
    pub confirmed: Generation,
    /// The newest configuration, from when it was begun until its removal.
    #[serde(default)]
    pub config: Option<ResourceConfig>,
    /// Its backing volumes.
    #[serde(default)]
    pub volumes: BTreeMap<u16, Volume>,
    /// Its snapshots.
    #[serde(default)]
    pub snapshots: BTreeMap<SnapshotName, Snapshot>,
    /// The last suspension of I/O for a snapshot.
    #[serde(default)]
    pub suspension: Option<Held>,
    /// Connections that peers may have given up while this node was different from them are tried
    /// again until all are there.
    #[serde(default)]
    pub reconnect: bool,
    /// It is kept down, and comes up only when it is configured again.
    #[serde(default)]
    pub down: Option<Down>,
    /// The snapshot that is being made from a backup, and the pools of its volumes.
    #[serde(default)]
    pub receiving: Option<(SnapshotName, Parts)>,
    /// Volumes through which snapshots are read, with their pools.
    #[serde(default)]
    pub copies: BTreeMap<String, PoolName>,
}

/// A backing volume.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Volume {
    /// The pool.
    pub pool: PoolName,
    /// What manages it.
    pub provider: Provider,
    /// Its size in bytes; 0 while it is being made.
    pub size: u64,
    /// Where it is opened.
    pub path: String,
    /// There was nothing in its place before.
    pub fresh: bool,
    /// Whether it has metadata.
    pub metadata: Metadata,
    /// It is being removed: it was decided, and there is no way back.
    #[serde(default)]
    pub removing: bool,
    /// It has grown, or is about to, and its metadata may not be at its end yet.
    #[serde(default)]
    pub growing: Option<Growing>,
    /// Its passphrase, encrypted under the cluster's master key, if it is encrypted.
    #[serde(default)]
    pub luks: Option<String>,
    /// Where its data are once the kernel decrypts them, if it does and not the engine: decided when it
    /// was made.
    #[serde(default)]
    pub mapped: Option<String>,
    /// How often its passphrase was changed.
    #[serde(default)]
    pub passphrase_changes: u32,
    /// The passphrase that it is about to have, or has: until it is known which, both are tried.
    #[serde(default)]
    pub next: Option<Next>,
}

impl Volume {
    /// True if it is encrypted, and the engine decrypts it.
    pub fn is_for_engine(&self) -> bool {
        self.luks.is_some() && self.mapped.is_none()
    }
}

/// A passphrase that takes the place of another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Next {
    /// Encrypted under the cluster's master key.
    pub passphrase: String,
    /// How often it was changed with that.
    pub changes: u32,
}

/// Whether a volume has metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Metadata {
    /// Not by us.
    None,
    /// They are being made: what is there is no one's.
    Begun,
    /// It has.
    Made,
}

/// Where the metadata of a volume can be that has grown.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Growing {
    /// What tells them from those of others.
    pub device_uuid: u64,
    /// Sizes, in bytes, that the device had since they were known to be at its end.
    pub ends: Vec<u64>,
}

/// A resource that is kept down: it is rolled back, or was deactivated.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Down {
    /// What for.
    pub token: Generation,
    /// How far it is.
    pub state: DownState,
    /// Exports of the resource that are to be there again.
    pub exports: Vec<Export>,
    /// DRBD node ids of peers that have left since.
    #[serde(default)]
    pub left: BTreeSet<u8>,
}

/// How far a resource is that is kept down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DownState {
    /// It is being taken down.
    Going,
    /// It is down.
    Down,
    /// It is down, and its disks have the snapshot's data, or are gone.
    Changed,
    /// It is being brought up again.
    Back,
}

/// An export over NBD.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Export {
    /// Name clients ask for.
    pub name: String,
    /// The volume.
    pub volume: u16,
    /// Where it listens.
    pub listen: Listen,
    /// Clients may only read.
    pub read_only: bool,
}

/// A snapshot of all volumes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// What it was taken for.
    pub token: Generation,
    /// All of it is there, and of one point in time.
    pub complete: bool,
    /// The pool of each volume.
    pub volumes: Parts,
}

/// A suspension of I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Held {
    /// What for.
    pub token: Generation,
    /// Where it has got to; nothing while it begins.
    pub state: Option<SuspensionState>,
    /// I/O was suspended by somebody else before, and is left so.
    pub not_ours: bool,
    /// The engine had the resource when it began.
    #[serde(default)]
    pub up: bool,
    /// I/O goes on, as far as this suspension is concerned.
    pub over: bool,
}

impl Record {
    fn new(name: ResourceName) -> Record {
        Record {
            name,
            seen: Generation(0),
            confirmed: Generation(0),
            config: None,
            volumes: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            suspension: None,
            reconnect: false,
            down: None,
            receiving: None,
            copies: BTreeMap::new(),
        }
    }

    /// True if there is nothing of the resource on this node.
    pub fn is_empty(&self) -> bool {
        let shipped = self.receiving.is_some() || !self.copies.is_empty();
        self.config.is_none() && self.volumes.is_empty() && self.snapshots.is_empty() && !shipped
    }

    /// What controllers know of a resource that is kept down.
    pub fn rollback(&self) -> Option<DownForRollback> {
        let down = self.down.as_ref()?;
        let changed = match down.state {
            DownState::Going | DownState::Back => return None,
            DownState::Down => false,
            DownState::Changed => true,
        };
        Some(DownForRollback { token: down.token, changed })
    }

    /// The suspension as controllers know it.
    pub fn suspension(&self) -> Option<Suspension> {
        let held = self.suspension?;
        Some(Suspension { token: held.token, state: held.state? })
    }
}

/// Below which generation steps of resources without a record are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Floor {
    generation: Generation,
}

type Slot = Arc<Mutex<Option<Record>>>;

/// All records.
pub struct Store {
    directory: PathBuf,
    slots: Mutex<BTreeMap<ResourceName, Slot>>,
    floor: Mutex<Floor>,
    /// Resources that were removed since the start, as they are reported.
    removed: Mutex<BTreeMap<ResourceName, Generation>>,
    #[cfg(test)]
    pub(crate) crash: Mutex<Option<u32>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Store {
    /// The records in a folder, which is made if needed.
    ///
    /// # Errors
    /// If it can not be read, or a file in it is damaged: what is in the pools can not be told then.
    pub fn open(directory: &Path) -> io::Result<Store> {
        let folder = directory.join("resources");
        fs::create_dir_all(&folder)?;
        fs::create_dir_all(directory.join("metadata"))?;
        let mut slots = BTreeMap::new();
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            if let Some(record) = files::read_json::<Record>(&path)? {
                slots.insert(record.name.clone(), Arc::new(Mutex::new(Some(record))));
            }
        }
        let floor = files::read_json(&directory.join("floor.json"))?.unwrap_or_default();
        Ok(Store {
            directory: directory.to_owned(),
            slots: Mutex::new(slots),
            floor: Mutex::new(floor),
            removed: Mutex::default(),
            #[cfg(test)]
            crash: Mutex::default(),
        })
    }

    /// Where the metadata of a volume is kept aside while it is brought to another place.
    pub fn aside(&self, name: &ResourceName, volume: u16) -> PathBuf {
        let name = name.as_str().to_ascii_lowercase();
        self.directory.join("metadata").join(format!("{name}_{volume:05}"))
    }

    fn path(&self, name: &ResourceName) -> PathBuf {
        // Names are equal without regard to case.
        let name = name.as_str().to_ascii_lowercase();
        self.directory.join("resources").join(format!("{name}.json"))
    }

    /// Resources with a record.
    pub fn names(&self) -> Vec<ResourceName> {
        self.select(|_| true)
    }

    /// Resources whose record is so.
    pub fn select(&self, wanted: impl Fn(&Record) -> bool) -> Vec<ResourceName> {
        // A record that is being written must not hold up who looks for another.
        let slots: Vec<(ResourceName, Slot)> =
            lock(&self.slots).iter().map(|(name, slot)| (name.clone(), slot.clone())).collect();
        let is = |slot: &Slot| lock(slot).as_ref().is_some_and(&wanted);
        slots.into_iter().filter(|(_, slot)| is(slot)).map(|(name, _)| name).collect()
    }

    /// Resources that were removed since the start, with the generation of that.
    pub fn removed(&self) -> BTreeMap<ResourceName, Generation> {
        lock(&self.removed).clone()
    }

    /// The record of a resource.
    pub fn get(&self, name: &ResourceName) -> Option<Record> {
        let slot = lock(&self.slots).get(name).cloned()?;
        let record = lock(&slot);
        record.clone()
    }

    /// A step of `generation` begins. What is older than what was begun is refused.
    ///
    /// # Errors
    /// That, or if it can not be written down.
    pub fn begin(&self, name: &ResourceName, generation: Generation) -> Result<(), Failed> {
        let slot = lock(&self.slots).entry(name.clone()).or_default().clone();
        let mut record = lock(&slot);
        let floor = lock(&self.floor).generation;
        let seen = record.as_ref().map_or(floor, |record| record.seen);
        if generation < seen {
            return Err(Failed::stale(format_args!("a step of {name}"), generation, seen));
        }
        let mut new = record.clone().unwrap_or_else(|| Record::new(name.clone()));
        new.seen = generation;
        if record.as_ref() == Some(&new) {
            return Ok(());
        }
        self.write(&new)?;
        *record = Some(new);
        Ok(())
    }

    /// Changes a record, durably; what `change` returns is returned when it is.
    ///
    /// # Errors
    /// If it can not be written; it is as before then.
    pub fn update<T>(
        &self,
        name: &ResourceName,
        change: impl FnOnce(&mut Record) -> T,
    ) -> Result<T, Failed> {
        let slot = lock(&self.slots).entry(name.clone()).or_default().clone();
        let mut record = lock(&slot);
        let mut new = record.clone().unwrap_or_else(|| Record::new(name.clone()));
        let result = change(&mut new);
        if record.as_ref() != Some(&new) {
            self.write(&new)?;
            *record = Some(new);
        }
        Ok(result)
    }

    /// Drops the record of a resource of which there is nothing left.
    ///
    /// # Errors
    /// If that can not be written down; the record stays then.
    pub fn drop_empty(&self, name: &ResourceName) -> Result<(), Failed> {
        let Some(slot) = lock(&self.slots).get(name).cloned() else { return Ok(()) };
        let mut record = lock(&slot);
        let Some(old) = record.clone().filter(Record::is_empty) else { return Ok(()) };
        // The floor first: without a record it is what keeps older steps out.
        {
            let mut floor = lock(&self.floor);
            let new = Floor { generation: floor.generation.max(old.seen) };
            if new != *floor {
                self.durable(|| files::replace_json(&self.directory.join("floor.json"), &new))?;
                *floor = new;
            }
        }
        self.durable(|| files::remove(&self.path(name)))?;
        *record = None;
        lock(&self.removed).insert(name.clone(), old.confirmed);
        Ok(())
    }

    fn write(&self, record: &Record) -> Result<(), Failed> {
        self.durable(|| files::replace_json(&self.path(&record.name), record))?;
        lock(&self.removed).remove(&record.name);
        Ok(())
    }

    fn durable(&self, write: impl FnOnce() -> io::Result<()>) -> Result<(), Failed> {
        #[cfg(test)]
        self.crash_now(false)?;
        write().map_err(|error| {
            Failed::new(
                format!("{} can not be written: {error}", self.directory.display()),
                "see to its file system: without it nothing is begun",
            )
        })?;
        #[cfg(test)]
        self.crash_now(true)?;
        Ok(())
    }

    /// A test's crash: before or after the n-th write nothing more happens.
    #[cfg(test)]
    fn crash_now(&self, _after: bool) -> Result<(), Failed> {
        let mut left = lock(&self.crash);
        match left.as_mut() {
            Some(0) => Err(Failed::new("crash", "start again")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ResourceName {
        ResourceName::new(text).unwrap()
    }

    #[test]
    fn older_steps_are_refused_also_after_the_record_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        store.begin(&name("web"), Generation(5)).unwrap();
        assert!(store.begin(&name("WEB"), Generation(4)).is_err());
        store.begin(&name("web"), Generation(5)).unwrap();
        let store = Store::open(directory.path()).unwrap();
        assert!(store.begin(&name("web"), Generation(4)).is_err());
        store.update(&name("web"), |record| record.confirmed = Generation(5)).unwrap();
        store.drop_empty(&name("web")).unwrap();
        assert_eq!(store.removed()[&name("web")], Generation(5));
        for store in [&store, &Store::open(directory.path()).unwrap()] {
            assert_eq!(store.names(), []);
            assert!(store.begin(&name("web"), Generation(4)).is_err());
        }
        store.begin(&name("web"), Generation(6)).unwrap();
        assert!(store.removed().is_empty(), "it is there again");
    }

    #[test]
    fn what_is_there_keeps_its_record() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        store.begin(&name("web"), Generation(5)).unwrap();
        let snapshot = Snapshot { token: Generation(1), complete: true, volumes: BTreeMap::new() };
        let put = |record: &mut Record| {
            record.snapshots.insert(SnapshotName::new("s1").unwrap(), snapshot);
        };
        store.update(&name("web"), put).unwrap();
        store.drop_empty(&name("web")).unwrap();
        assert_eq!(store.get(&name("web")).unwrap().snapshots.len(), 1);
    }

    #[test]
    fn a_damaged_record_is_not_taken_for_none() {
        let directory = tempfile::tempdir().unwrap();
        Store::open(directory.path()).unwrap().begin(&name("web"), Generation(5)).unwrap();
        fs::write(directory.path().join("resources/web.json"), "{").unwrap();
        let error = Store::open(directory.path()).err().unwrap().to_string();
        assert!(error.contains("web.json") && error.contains("restore"), "{error}");
    }
}
