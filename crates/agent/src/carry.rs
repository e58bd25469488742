//! Carrying out the steps of a plan on this node (`cluster::plan::Action`).
//!
//! - Here: what a node is, and which step is done where. `volumes`: backing volumes and metadata.
//!   `keys`: encrypted volumes. `mapped`: those that the kernel decrypts. `up`: the resource in the engine. `grow`: volumes that grow. `snapshots`: suspensions and
//!   snapshots. `rollback`: resources that are kept down, and those that go back to a snapshot.
//!
//! The rules that all of them follow: nothing older than what was begun is done; what is about to be
//! done is written down before, and what was done after; doing a step twice is doing it once; data go
//! only after the guard was checked against what the engine of this node sees of its peers. Steps of
//! one resource come one after the other (`work`).

mod grow;
mod keys;
mod mapped;
mod rollback;
mod snapshots;
#[cfg(test)]
mod tests;
mod up;
mod volumes;

use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use cluster::name::{NodeName, PoolName, ResourceName};
use cluster::objects::{Generation, Provider};
use cluster::plan::{Action, Guard};
use codec::admin::ResourceStatus;

use crate::engine::{self, Engine};
use crate::failed::Failed;
use crate::mapper::Mapper;
use crate::metadata;
use crate::pools::{Open, Pools};
use crate::record::{Record, Store, Volume};
use crate::ship::Shipments;
pub use keys::Master;
pub(crate) use keys::open;
pub(crate) use volumes::path_of;

/// How long a step may take. What a pool's own program needs is added where one is run.
const STEP: Duration = Duration::from_secs(120);
/// So long it is waited for peers that have to be there before data go: connections come and go while
/// resources change.
const ON_THEIR_WAY: Duration = Duration::from_secs(3);
/// How often it is looked for them.
const LOOK: Duration = Duration::from_millis(100);

/// This node.
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// The engine's control socket.
    pub socket: PathBuf,
    /// What was begun and made.
    pub store: Store,
    /// Its pools.
    pub pools: Pools,
    /// How long I/O may be suspended for a snapshot.
    pub suspend_for: Duration,
    /// Folders below which a controller may put external files; none unless an operator says so.
    pub files_below: Vec<PathBuf>,
    /// The cluster's master key, once it was told.
    pub master: Master,
    /// Its device-mapper, for encrypted volumes.
    pub mapper: Mapper,
    /// What it ships.
    pub shipments: Shipments,
    /// Our own program, for what it tells of the engine.
    pub program: Option<PathBuf>,
}

/// A step that is being carried out.
struct Step<'a> {
    node: &'a Node,
    name: &'a ResourceName,
    engine: Engine,
}

impl Node {
    /// True if an external file may be put there.
    pub fn may_put(&self, path: &Path) -> bool {
        let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
        path.components().all(plain)
            && self.files_below.iter().any(|folder| path.starts_with(folder))
    }

    /// Why an external file is not put there.
    pub fn not_taken(&self, path: &Path) -> Failed {
        Failed::new(
            format!("{} is not among the files that this node takes", path.display()),
            "start the agent with --files-below and its folder, or undeploy the file",
        )
    }

    /// Carries out a step.
    ///
    /// # Errors
    /// Why it was not, or not to its end. It can be repeated.
    pub fn carry_out(
        &self,
        name: &ResourceName,
        generation: Generation,
        action: &Action,
    ) -> Result<(), Failed> {
        self.store.begin(name, generation)?;
        let step = self.step(name);
        match action {
            Action::CreateVolume { volume, backing } => step.create_volume(*volume, backing),
            Action::AdoptVolume { volume, backing, size, metadata, node_id } => {
                let node_id = metadata.then_some(*node_id);
                step.adopt_volume(*volume, backing, *size, node_id)
            }
            Action::RestoreVolume { volume, backing, from, snapshot } => {
                step.restore_volume(*volume, backing, from, snapshot)
            }
            Action::CreateMetadata { volume, peer_slots, node_id, day_0, begin } => {
                step.create_metadata(*volume, *peer_slots, *node_id, *day_0, *begin)
            }
            Action::BeginData { volume } => step.begin_data(*volume),
            Action::GrowVolume { volume, size } => step.grow_volume(*volume, *size),
            Action::ChangePassphrase { volume, passphrase, changes } => {
                step.change_passphrase(*volume, passphrase, *changes)
            }
            Action::GrowDevice { volume, size } => step.grow_device(*volume, *size),
            Action::Configure(config) => step.configure(config, generation),
            Action::RemoveDisk(guard) => step.remove_disk(guard),
            Action::RemoveVolume { volume } => step.remove_volume(*volume),
            Action::Remove(guard) => step.remove(guard, generation),
            Action::Suspend { token } => step.suspend(*token),
            Action::TakeSnapshot { token, snapshot } => step.take_snapshot(*token, snapshot),
            Action::Resume { token } => step.resume(*token),
            Action::DeleteSnapshot { snapshot } => step.delete_snapshot(snapshot),
            Action::TakeDown { token, guard } => step.take_down(*token, guard.as_ref()),
            Action::RollBack { token, snapshot } => step.roll_back(*token, snapshot),
            Action::Discard { token } => step.discard(*token),
            // Threads of their own do it.
            Action::Upload(order) => {
                self.shipments.add(name, order.token);
                Ok(())
            }
            Action::Download(order) => {
                self.shipments.add(name, order.token);
                Ok(())
            }
            Action::StopShipping { token } => {
                self.shipments.stop(name, *token);
                Ok(())
            }
        }
    }

    fn step<'a>(&'a self, name: &'a ResourceName) -> Step<'a> {
        Step { node: self, name, engine: self.engine() }
    }

    /// The engine, for as long as a step may take.
    pub fn engine(&self) -> Engine {
        Engine::new(self.socket.clone(), Instant::now() + STEP)
    }
}

impl Step<'_> {
    fn record(&self) -> Result<Record, Failed> {
        self.node.store.get(self.name).ok_or_else(|| {
            let next = "it is tried again with the next plan";
            Failed::new(format!("{} is not known on this node", self.name), next)
        })
    }

    fn update<T>(&self, change: impl FnOnce(&mut Record) -> T) -> Result<T, Failed> {
        self.node.store.update(self.name, change)
    }

    /// A pool, which has to be of the kind that the plan was made for.
    fn pool(&self, name: &PoolName, kind: Provider) -> Result<Open, Failed> {
        let pool = self.node.pools.get(name)?;
        if pool.kind() == kind {
            return Ok(pool);
        }
        Err(Failed::new(
            format!("pool {name} is of kind {}, and {} needs {kind}", pool.kind(), self.name),
            "nothing is to be done: the controller's next plan knows the pool as it is",
        ))
    }

    fn status(&self) -> Result<Option<ResourceStatus>, Failed> {
        self.engine.status(self.name.as_str())
    }

    /// Refuses while somebody uses the resource here, or on a peer that would be cut off.
    fn nobody_uses_it(&self, what: &str) -> Result<(), Failed> {
        let Some(status) = self.status()? else { return Ok(()) };
        let node = match engine::primary_peer(&status) {
            _ if engine::is_in_use(&status) => self.node.name.as_str(),
            Some(peer) => peer,
            None => return Ok(()),
        };
        Err(Failed::new(
            format!("{what} of {} needs it closed, and it is in use on node {node}", self.name),
            format!("close it on {node}; it is tried again with the next plan"),
        ))
    }

    /// Looks at what is true now before data go, or are not kept up to date any more; `stays` says what
    /// happens if they can not.
    fn check(&self, guard: &Guard, record: &Record, stays: &str) -> Result<(), Failed> {
        if guard.at_least == 0 {
            return Ok(());
        }
        let mut status = self.status()?;
        let harmless = match &status {
            Some(status) => {
                status.devices.iter().all(|device| engine::has_no_data(device.disk_state))
            }
            // It is down. What is being removed was looked at while it was up.
            None => {
                self.settle_metadata()?;
                let mut any = false;
                let there = |v: &Volume| v.size != 0 && !v.removing;
                for (number, volume) in record.volumes.iter().filter(|(_, v)| there(v)) {
                    any |= metadata::has_data(self.reach(*number, volume)?.at())?;
                }
                !any
            }
        };
        if harmless {
            return Ok(());
        }
        let deadline = Instant::now() + ON_THEIR_WAY;
        let left = loop {
            let current = status.as_ref().map(engine::peers_up_to_date).unwrap_or_default();
            let is_current = |node: &&NodeName| {
                current.iter().any(|peer| peer.eq_ignore_ascii_case(node.as_str()))
            };
            let left = guard.of.iter().filter(is_current).count();
            if left >= guard.at_least {
                return Ok(());
            }
            if status.is_none() || Instant::now() >= deadline {
                break left;
            }
            std::thread::sleep(LOOK);
            status = self.status()?;
        };
        Err(Failed::new(
            format!(
                "{stays} on node {}: {} other nodes have to be connected and UpToDate, and {left} are",
                self.node.name, guard.at_least
            ),
            "nothing is to be done if they are on their way; otherwise see to their connections",
        ))
    }
}
