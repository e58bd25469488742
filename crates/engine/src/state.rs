//! What the engine was told, kept in a directory so that a restart finds it again.
//!
//! ```text
//! STATE/lock                   held while an engine runs
//! STATE/resources/NAME.json    one resource: its configuration and which peers it connects to
//! STATE/exports.json           what is served over NBD and vhost-user
//! STATE/maps.json              what is mapped as block devices
//! STATE/run.json               which run of the engine this is, or was the last one
//! ```
//!
//! A file is written beside its place, made durable, and renamed over the old one, so at any
//! moment of a crash the old or the new content is there. Nobody else may read the files: shared
//! secrets are in them. What the data itself says (generations,
//! bitmaps, roles) lives in the metadata on disk, never here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use codec::admin::{Listen, MapOptions};
use codec::config::ResourceConfig;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::engine::while_claimed;

/// Version of the files.
const VERSION: u32 = 1;
/// Mode of the files.
const OWNER_ONLY: u32 = 0o600;

/// A resource as it is kept.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Stored {
    version: u32,
    /// Everything that was configured. A volume with a backing is to have its disk attached.
    pub(crate) config: ResourceConfig,
    /// Node ids of the peers to be connected to.
    pub(crate) connected: BTreeSet<u8>,
}

impl Stored {
    pub(crate) fn new(config: ResourceConfig) -> Stored {
        Stored { version: VERSION, config, connected: BTreeSet::new() }
    }
}

/// An export as it is kept, by its name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct StoredExport {
    pub(crate) resource: String,
    pub(crate) volume: u16,
    pub(crate) listen: Listen,
    /// What engines before this field wrote may be written to.
    #[serde(default)]
    pub(crate) read_only: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct StoredExports {
    version: u32,
    exports: BTreeMap<String, StoredExport>,
}

/// A volume that is to be mapped.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct StoredMap {
    pub(crate) resource: String,
    pub(crate) volume: u16,
    pub(crate) options: MapOptions,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct StoredMaps {
    version: u32,
    maps: Vec<StoredMap>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct StoredRun {
    version: u32,
    instance: u64,
}

/// The directory.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    lock: File,
}

fn context<T>(result: io::Result<T>, path: &Path, doing: &str) -> Result<T, String> {
    result.map_err(|e| format!("{}: can not {doing} it: {e}", path.display()))
}

impl StateDir {
    /// Opens the directory, creating it if needed, for this process alone.
    ///
    /// # Errors
    /// What is wrong, in one sentence.
    pub(crate) fn open(path: &Path) -> Result<StateDir, String> {
        let resources = path.join("resources");
        context(fs::create_dir_all(&resources), &resources, "create")?;
        let lock_path = path.join("lock");
        let lock = context(File::create(&lock_path), &lock_path, "open")?;
        // One that was killed holds it until its last thread has ended.
        match while_claimed(|e| matches!(e, TryLockError::WouldBlock), || lock.try_lock()) {
            Ok(()) => Ok(StateDir { path: path.to_owned(), lock }),
            Err(TryLockError::WouldBlock) => Err(format!(
                "{}: another engine uses this directory; stop it, or give this one its own \
                 --state-dir",
                path.display()
            )),
            Err(TryLockError::Error(e)) => context(Err(e), &lock_path, "lock"),
        }
    }

    /// The directory of a process that hands over with its lock.
    pub(crate) fn inherit(path: &Path, lock: OwnedFd) -> StateDir {
        StateDir { path: path.to_owned(), lock: File::from(lock) }
    }

    /// The lock, for [`StateDir::inherit`] in another process.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(crate) fn share_lock(&self) -> Result<OwnedFd, String> {
        context(self.lock.try_clone(), &self.path, "share the lock of").map(OwnedFd::from)
    }

    fn resource_path(&self, name: &str) -> PathBuf {
        self.path.join("resources").join(format!("{name}.json"))
    }

    /// The resources that were kept. Files that can not be used are reported, not removed.
    ///
    /// # Errors
    /// The directory can not be read.
    pub(crate) fn resources(&self) -> Result<(Vec<Stored>, Vec<String>), String> {
        let directory = self.path.join("resources");
        let (mut stored, mut damaged) = (Vec::new(), Vec::new());
        for entry in context(fs::read_dir(&directory), &directory, "read")? {
            let path = context(entry, &directory, "read")?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match read::<Stored>(&path) {
                Ok(Some(resource)) if resource.version == VERSION => stored.push(resource),
                Ok(Some(resource)) => damaged.push(format!(
                    "{}: has version {}, this engine knows {VERSION}",
                    path.display(),
                    resource.version
                )),
                Ok(None) => {}
                Err(error) => damaged.push(error),
            }
        }
        stored.sort_by(|a, b| a.config.name.cmp(&b.config.name));
        Ok((stored, damaged))
    }

    /// Keeps a resource.
    ///
    /// # Errors
    /// Why it could not be written; the old content is still there.
    pub(crate) fn put_resource(&self, stored: &Stored) -> Result<(), String> {
        let path = self.resource_path(&stored.config.name);
        context(replace(&path, stored), &path, "write")
    }

    /// Forgets a resource.
    ///
    /// # Errors
    /// Why its file could not be removed.
    pub(crate) fn remove_resource(&self, name: &str) -> Result<(), String> {
        let path = self.resource_path(name);
        let removed = match fs::remove_file(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.and_then(|()| sync_parent(&path)),
        };
        context(removed, &path, "remove")
    }

    /// The exports that were kept.
    ///
    /// # Errors
    /// The file can not be used.
    pub(crate) fn exports(&self) -> Result<BTreeMap<String, StoredExport>, String> {
        let path = self.path.join("exports.json");
        match read::<StoredExports>(&path)? {
            Some(stored) if stored.version == VERSION => Ok(stored.exports),
            Some(stored) => Err(format!("{}: has version {}", path.display(), stored.version)),
            None => Ok(BTreeMap::new()),
        }
    }

    /// Keeps the exports.
    ///
    /// # Errors
    /// Why they could not be written.
    pub(crate) fn put_exports(
        &self,
        exports: &BTreeMap<String, StoredExport>,
    ) -> Result<(), String> {
        let path = self.path.join("exports.json");
        let stored = StoredExports { version: VERSION, exports: exports.clone() };
        context(replace(&path, &stored), &path, "write")
    }
}

impl StateDir {
    /// Notes which run this is; returns the one before it, if that is known.
    ///
    /// # Errors
    /// The file can not be used.
    pub(crate) fn begin_run(&self, instance: u64) -> Result<Option<u64>, String> {
        let path = self.path.join("run.json");
        let before = match read::<StoredRun>(&path)? {
            Some(stored) if stored.version == VERSION => Some(stored.instance),
            Some(stored) => {
                return Err(format!("{}: has version {}", path.display(), stored.version));
            }
            None => None,
        };
        context(replace(&path, &StoredRun { version: VERSION, instance }), &path, "write")?;
        Ok(before)
    }

    /// The next run will not know of this one.
    ///
    /// # Errors
    /// The file can not be removed.
    pub(crate) fn forget_run(&self) -> Result<(), String> {
        let path = self.path.join("run.json");
        let removed = match fs::remove_file(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| sync_parent(&path)),
        };
        context(removed, &path, "remove")
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The volumes that were mapped.
    ///
    /// # Errors
    /// The file can not be used.
    pub(crate) fn maps(&self) -> Result<Vec<StoredMap>, String> {
        let path = self.path.join("maps.json");
        match read::<StoredMaps>(&path)? {
            Some(stored) if stored.version == VERSION => Ok(stored.maps),
            Some(stored) => Err(format!("{}: has version {}", path.display(), stored.version)),
            None => Ok(Vec::new()),
        }
    }

    /// Keeps which volumes are mapped.
    ///
    /// # Errors
    /// Why it could not be written.
    pub(crate) fn put_maps(&self, maps: Vec<StoredMap>) -> Result<(), String> {
        let path = self.path.join("maps.json");
        context(replace(&path, &StoredMaps { version: VERSION, maps }), &path, "write")
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, String> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return context(Err(e), path, "read"),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|e| format!("{}: is not understood: {e}", path.display()))
}

/// Replaces a file by another, durably and at once.
fn replace<T: Serialize>(path: &Path, content: &T) -> io::Result<()> {
    let mut bytes = serde_json::to_vec_pretty(content)?;
    bytes.push(b'\n');
    let beside = path.with_extension("new");
    let mut file =
        File::options().write(true).create(true).truncate(true).mode(OWNER_ONLY).open(&beside)?;
    // It may be left over from a crash of a release that let others read.
    file.set_permissions(Permissions::from_mode(OWNER_ONLY))?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&beside, path)?;
    sync_parent(path)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().expect("files of the state lie in its directory");
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vocab::NodeId;

    fn resource(name: &str) -> Stored {
        let mut stored = Stored::new(ResourceConfig {
            name: name.to_owned(),
            node_id: NodeId::new(3).unwrap(),
            host: "alpha".to_owned(),
            options: Default::default(),
            handlers: Default::default(),
            volumes: Vec::new(),
            peers: Vec::new(),
        });
        stored.connected.insert(2);
        stored
    }

    #[test]
    fn what_is_kept_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path()).unwrap();
        state.put_resource(&resource("b")).unwrap();
        state.put_resource(&resource("a")).unwrap();
        state.put_resource(&resource("a")).unwrap();
        let (stored, damaged) = state.resources().unwrap();
        assert_eq!(stored, [resource("a"), resource("b")]);
        assert!(damaged.is_empty());
        state.remove_resource("a").unwrap();
        state.remove_resource("a").unwrap();
        assert_eq!(state.resources().unwrap().0, [resource("b")]);
        assert!(state.exports().unwrap().is_empty());
        let listen = Listen::Unix("/run/nbd".to_owned());
        let export = StoredExport { resource: "b".to_owned(), volume: 1, listen, read_only: true };
        let exports = BTreeMap::from([("b/1".to_owned(), export)]);
        state.put_exports(&exports).unwrap();
        assert_eq!(state.exports().unwrap(), exports);
        assert_eq!(state.begin_run(7), Ok(None));
        assert_eq!(state.begin_run(8), Ok(Some(7)));
        state.forget_run().unwrap();
        assert_eq!(state.begin_run(9), Ok(None));
        assert!(state.maps().unwrap().is_empty());
        let options = MapOptions { read_only: true, ..MapOptions::default() };
        let maps = vec![StoredMap { resource: "b".to_owned(), volume: 1, options }];
        state.put_maps(maps.clone()).unwrap();
        assert_eq!(state.maps().unwrap(), maps);
    }

    #[test]
    fn a_torn_write_leaves_the_old_content_and_damage_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path()).unwrap();
        state.put_resource(&resource("a")).unwrap();
        fs::write(directory.path().join("resources/a.new"), b"{\"vers").unwrap();
        fs::write(directory.path().join("resources/c.json"), b"{\"vers").unwrap();
        let (stored, damaged) = state.resources().unwrap();
        assert_eq!(stored, [resource("a")]);
        assert_eq!(damaged.len(), 1);
        assert!(damaged[0].contains("c.json"));
    }

    #[test]
    fn nobody_else_reads_what_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDir::open(directory.path()).unwrap();
        let beside = directory.path().join("resources/a.new");
        fs::write(&beside, b"").unwrap();
        fs::set_permissions(&beside, Permissions::from_mode(0o666)).unwrap();
        state.put_resource(&resource("a")).unwrap();
        let mode = fs::metadata(state.resource_path("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, OWNER_ONLY);
    }

    #[test]
    fn a_directory_serves_one_engine() {
        let directory = tempfile::tempdir().unwrap();
        let first = StateDir::open(directory.path()).unwrap();
        let second = StateDir::open(directory.path());
        assert!(second.unwrap_err().contains("another engine"));
        drop(first);
        StateDir::open(directory.path()).unwrap();
    }
}
