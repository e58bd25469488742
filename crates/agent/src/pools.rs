//! The node's pools as the controller has told, opened.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use api::link::Pool;
use cluster::name::PoolName;
use cluster::objects::Generation;
use cluster::observed::PoolState;
use serde::{Deserialize, Serialize};
use vocab::Bytes;

use crate::command::{Runner, System};
use crate::failed::Failed;
use crate::files;
use crate::storage::file::Folder;
use crate::storage::lvm::Group;
use crate::storage::zfs::Dataset;
use crate::storage::{Kind, Name, Provider};

/// The space of a pool without any: nothing in it takes space.
const DISKLESS: Bytes = Bytes(i64::MAX as u64);

/// A pool that can be used by several threads.
pub type Open = Arc<dyn Provider + Send + Sync>;

/// What the controller has told last; kept, for steps may come before it tells again.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
struct Told {
    generation: Generation,
    pools: BTreeMap<PoolName, Pool>,
}

/// The pools of this node.
pub struct Pools {
    path: PathBuf,
    inner: Mutex<Inner>,
}

struct Inner {
    told: Told,
    /// A pool is opened once: opening it removes what a crash has left unfinished, which must not
    /// happen to what is being made.
    open: BTreeMap<PoolName, (Pool, Open)>,
}

impl Pools {
    /// The pools kept in a folder.
    ///
    /// # Errors
    /// If what is kept can not be read.
    pub fn open(directory: &Path) -> io::Result<Pools> {
        let path = directory.join("pools.json");
        let told = files::read_json(&path)?.unwrap_or_default();
        Ok(Pools { path, inner: Mutex::new(Inner { told, open: BTreeMap::new() }) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The pools that the node is to have from now on. Nothing of others is deleted.
    ///
    /// # Errors
    /// If this is older than what was told before, or can not be kept.
    pub fn tell(
        &self,
        generation: Generation,
        pools: BTreeMap<PoolName, Pool>,
    ) -> Result<(), Failed> {
        let mut inner = self.lock();
        if generation < inner.told.generation {
            return Err(Failed::stale("the list of pools", generation, inner.told.generation));
        }
        let told = Told { generation, pools };
        if told != inner.told {
            files::replace_json(&self.path, &told).map_err(|error| {
                Failed::new(
                    format!("{} can not be written: {error}", self.path.display()),
                    "see to its file system",
                )
            })?;
            inner.open.retain(|name, (pool, _)| told.pools.get(name) == Some(pool));
            inner.told = told;
        }
        Ok(())
    }

    /// An open pool.
    ///
    /// # Errors
    /// If the controller has not told of it, or it can not be opened.
    pub fn get(&self, name: &PoolName) -> Result<Open, Failed> {
        let mut inner = self.lock();
        if let Some((_, open)) = inner.open.get(name) {
            return Ok(open.clone());
        }
        let Some(pool) = inner.told.pools.get(name).cloned() else {
            let next = "create the pool on this node; if it is there, the next plan finds it";
            return Err(Failed::new(format!("this node was not told of a pool {name}"), next));
        };
        let open = open(name, &pool)?;
        inner.open.insert(name.clone(), (pool, open.clone()));
        Ok(open)
    }

    /// What a pool is made of, as the controller has told.
    pub fn provider(&self, name: &PoolName) -> Option<Kind> {
        self.lock().told.pools.get(name).map(|pool| pool.provider)
    }

    /// The state of every pool, asked now.
    pub fn states(&self) -> BTreeMap<PoolName, PoolState> {
        let names: Vec<PoolName> = self.lock().told.pools.keys().cloned().collect();
        names.into_iter().map(|name| (name.clone(), self.state(&name))).collect()
    }

    fn state(&self, name: &PoolName) -> PoolState {
        if self.provider(name) == Some(Kind::Diskless) {
            return PoolState { free: DISKLESS, total: DISKLESS, ..PoolState::default() };
        }
        let asked = self.get(name).and_then(|pool| {
            let space = pool.space()?;
            let volumes = pool.volumes()?;
            let snapshots = volumes.iter().filter(|v| v.is_snapshot).map(|v| v.allocated.0).sum();
            let snapshots = Bytes(snapshots);
            Ok(PoolState {
                free: space.free,
                total: space.total,
                snapshots,
                metadata_used: space.metadata_used,
                no_snapshots: pool.no_snapshots(),
                error: None,
            })
        });
        asked.unwrap_or_else(|failed| PoolState {
            error: Some(failed.to_string()),
            ..PoolState::default()
        })
    }
}

/// Opens a pool by what its driver is told.
fn open(name: &PoolName, pool: &Pool) -> Result<Open, Failed> {
    let told = |keys: &[&str]| {
        let found = keys.iter().find_map(|key| pool.props.get(&format!("StorDriver/{key}")));
        found.cloned().ok_or_else(|| {
            Failed::new(
                format!("pool {name} does not say where it is"),
                format!("set its property StorDriver/{}", keys[0]),
            )
        })
    };
    match pool.provider {
        Kind::File | Kind::FileThin => {
            let path = told(&["StorPoolName", "FileDir"])?;
            Ok(Arc::new(Folder::open(Path::new(&path), pool.provider == Kind::FileThin)?))
        }
        Kind::Lvm => {
            let group = Name::new(&told(&["StorPoolName", "LvmVg"])?)?;
            Ok(Arc::new(Group::open(System::default(), group, None)?))
        }
        Kind::LvmThin => {
            let path = told(&["StorPoolName", "ThinPool"])?;
            let (group, thin) = path.split_once('/').ok_or_else(|| {
                let next = "set its property StorDriver/StorPoolName to GROUP/POOL";
                Failed::new(format!("pool {name} is at `{path}`, which is no thin pool"), next)
            })?;
            let (group, thin) = (Name::new(group)?, Name::new(thin)?);
            Ok(Arc::new(Group::open(System::default(), group, Some(thin))?))
        }
        Kind::Zfs | Kind::ZfsThin => {
            let thin = pool.provider == Kind::ZfsThin;
            let dataset = told(&["StorPoolName", if thin { "ZPoolThin" } else { "ZPool" }])?;
            Ok(Arc::new(Dataset::open(System::default(), &dataset, thin)?))
        }
        Kind::Diskless => Err(Failed::new(
            format!("pool {name} is for diskless resources, and has no volumes"),
            "use a pool with storage",
        )),
    }
}

/// Kinds of pools that can be used on this node.
pub fn kinds() -> BTreeSet<Kind> {
    let mut kinds = BTreeSet::from([Kind::Diskless, Kind::File, Kind::FileThin]);
    if System::default().run(&["lvm", "version"]).is_ok() {
        kinds.extend([Kind::Lvm, Kind::LvmThin]);
    }
    // The tools may be there without the module.
    if System::default().run(&["zpool", "list", "-H", "-o", "name"]).is_ok() {
        kinds.extend([Kind::Zfs, Kind::ZfsThin]);
    }
    kinds
}
