//! What agents report: facts, as last heard.
//!
//! They are kept beside the wanted state and are not persisted: after a restart a controller knows
//! nothing until agents have reported, and treats what it does not know as not there to rely on.

use std::collections::{BTreeMap, BTreeSet};

pub use crypt::seal::MasterKey;
use serde::{Deserialize, Serialize};
use vocab::{Bytes, DiskState, VolumeNr};

use crate::layer::Layer;
use crate::name::*;
use crate::objects::{Generation, Millis, Provider};
use crate::row;
use crate::shipping::ShipmentState;

/// Everything that was reported.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Observed {
    /// Each node that was ever heard of.
    pub nodes: BTreeMap<NodeName, NodeState>,
    /// What nodes have of a resource.
    pub resources: BTreeMap<ResourceName, BTreeMap<NodeName, ReplicaState>>,
    /// The key above all volumes' passphrases, once somebody has entered the master passphrase.
    pub master: Option<MasterKey>,
}

/// A node.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct NodeState {
    /// Its agent is connected and has reported everything.
    pub connected: bool,
    /// Since when that is so, or not so.
    pub since: Millis,
    /// Layers that it supports.
    pub layers: BTreeSet<Layer>,
    /// Kinds of pools that it supports.
    pub providers: BTreeSet<Provider>,
    /// Its pools.
    pub pools: BTreeMap<PoolName, PoolState>,
    /// Its agent can ship snapshots: those of older releases can not.
    #[serde(default)]
    pub ships: bool,
    /// It can ship those of encrypted volumes, too.
    #[serde(default)]
    pub ships_encrypted: bool,
    /// It can ship to agents of other clusters, and receive from them.
    #[serde(default)]
    pub ships_to_clusters: bool,
}

/// A pool.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PoolState {
    /// Free space.
    #[serde(with = "row::bytes")]
    pub free: Bytes,
    /// All of its space.
    #[serde(with = "row::bytes")]
    pub total: Bytes,
    /// Space that snapshots take.
    #[serde(with = "row::bytes")]
    pub snapshots: Bytes,
    /// How much of its metadata is in use, in percent, where a thin pool has any: with none left it
    /// takes no more data, however much space it has.
    #[serde(default)]
    pub metadata_used: Option<u8>,
    /// Why it can not make snapshots, though pools of its kind can.
    #[serde(default)]
    pub no_snapshots: Option<String>,
    /// What is wrong with it.
    pub error: Option<String>,
}

/// Percents of a thin pool that are in use when somebody should look at it, and when it is about to
/// hold up writes.
const FILLING: (u8, u8) = (80, 95);

impl PoolState {
    /// True if nothing more should be made in a thin pool, whatever space it has.
    pub fn is_metadata_full(&self) -> bool {
        self.metadata_used.is_some_and(|percent| percent >= FILLING.1)
    }

    /// What somebody should know of a thin pool before it is full, if anything.
    pub fn alarm(&self, provider: Provider) -> Option<String> {
        let used = self.total.0.saturating_sub(self.free.0);
        let data = u128::from(used) * 100 / u128::from(self.total.0.max(1));
        let data = u8::try_from(data).unwrap_or(100);
        let metadata = self.metadata_used.unwrap_or(0);
        let (what, percent) = if metadata > data { ("metadata", metadata) } else { ("data", data) };
        let next = match percent {
            _ if percent < FILLING.0 || !provider.is_thin() => return None,
            _ if percent < FILLING.1 => "enlarge it, or delete what nobody needs",
            _ => "enlarge it at once: writes to its volumes are about to wait",
        };
        Some(format!("{percent} % of its {what} are in use: {next}"))
    }
}

/// What a node has of a resource.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ReplicaState {
    /// Generation of the newest configuration, or removal, that its agent has carried out for the
    /// resource. It refuses every step that is older than any it has begun.
    pub generation: Generation,
    /// The resource is configured and up.
    pub up: bool,
    /// Since when it is Primary, or open.
    pub in_use: Option<Millis>,
    /// Its volumes.
    #[serde(with = "row::by_volume")]
    pub volumes: BTreeMap<VolumeNr, VolumeState>,
    /// Peers and whether they are connected.
    pub connections: BTreeMap<NodeName, bool>,
    /// The last suspension of I/O for a snapshot.
    pub suspension: Option<Suspension>,
    /// Its snapshots.
    pub snapshots: BTreeMap<SnapshotName, SnapshotState>,
    /// It is down for a rollback, or because it was deactivated.
    #[serde(default)]
    pub rollback: Option<DownForRollback>,
    /// What it ships, or has shipped since its agent was started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shipments: Vec<ShipmentState>,
}

impl ReplicaState {
    /// It is taken down for a token: storage and metadata are all that is left to see.
    pub fn take_down(&mut self, token: Generation) {
        let down = DownForRollback { token, changed: false };
        (self.rollback, self.up) = (Some(down), false);
        self.connections.clear();
        for state in self.volumes.values_mut() {
            (state.disk, state.size) = (None, Bytes(0));
        }
    }
}

/// A volume of a replica.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct VolumeState {
    /// Size of the backing volume, if there is one.
    #[serde(with = "row::some_bytes")]
    pub backing: Option<Bytes>,
    /// The backing volume has metadata.
    pub metadata: bool,
    /// State of the disk.
    #[serde(with = "row::disk_state")]
    pub disk: Option<DiskState>,
    /// Size that users see; zero if there is no device.
    #[serde(with = "row::bytes")]
    pub size: Bytes,
    /// How much of a running resync is done.
    pub done_percent: Option<f32>,
    /// How often the passphrase of its disk was changed.
    #[serde(default, skip_serializing_if = "row::is_zero")]
    pub passphrase_changes: u32,
    /// Where its data are, if the kernel decrypts them; open or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped: Option<Mapped>,
}

/// A device of the kernel's behind which an encrypted volume is decrypted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mapped {
    /// Its path.
    pub device: String,
    /// The path of the volume.
    pub backing: String,
}

/// A suspension of I/O for a snapshot. An agent begins it once: one that has ended is not begun again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Suspension {
    /// What it is, or was, for.
    pub token: Generation,
    /// Where it has got to.
    pub state: SuspensionState,
}

/// Where a suspension of I/O has got to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SuspensionState {
    /// I/O is suspended.
    Held,
    /// A step ended it.
    Released,
    /// The agent, or a restart, ended it before a step did.
    Expired,
}

/// A resource that is down for a rollback, or because it was deactivated, and stays so, also after a
/// restart of its node, until it is configured again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DownForRollback {
    /// What for.
    pub token: Generation,
    /// Its disks have the snapshot's data, or are gone.
    pub changed: bool,
}

/// A snapshot on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SnapshotState {
    /// What it was taken for.
    pub token: Generation,
}

impl Observed {
    /// True if the node's agent is connected.
    pub fn is_connected(&self, node: &NodeName) -> bool {
        self.nodes.get(node).is_some_and(|state| state.connected)
    }

    /// What a node has of a resource.
    pub fn replica(&self, name: &ResourceName, node: &NodeName) -> Option<&ReplicaState> {
        self.resources.get(name)?.get(node)
    }

    /// The nodes that have something of a resource.
    pub fn replicas<'a>(
        &'a self,
        name: &ResourceName,
    ) -> impl Iterator<Item = (&'a NodeName, &'a ReplicaState)> + use<'a> {
        self.resources.get(name).into_iter().flatten()
    }

    /// True if the resource is Primary or open there, as far as is known.
    pub fn in_use(&self, name: &ResourceName, node: &NodeName) -> bool {
        self.replica(name, node).is_some_and(|replica| replica.in_use.is_some())
    }

    /// A pool of a node.
    pub fn pool(&self, node: &NodeName, pool: &PoolName) -> Option<&PoolState> {
        self.nodes.get(node)?.pools.get(pool)
    }

    /// What a node says of a shipment.
    pub fn shipment(
        &self,
        name: &ResourceName,
        node: &NodeName,
        token: Generation,
    ) -> Option<&ShipmentState> {
        self.replica(name, node)?.shipments.iter().find(|shipment| shipment.token == token)
    }

    /// Where the suspension of a token has got to on a node.
    pub fn suspension(
        &self,
        name: &ResourceName,
        node: &NodeName,
        token: Generation,
    ) -> Option<SuspensionState> {
        let suspension = self.replica(name, node)?.suspension?;
        (suspension.token == token).then_some(suspension.state)
    }

    /// What a node has done for the rollback, or the deactivation, of a token: nothing yet, or it is
    /// down.
    pub fn rollback(
        &self,
        name: &ResourceName,
        node: &NodeName,
        token: Generation,
    ) -> Option<DownForRollback> {
        let down = self.replica(name, node)?.rollback?;
        (down.token == token).then_some(down)
    }

    /// True if the resource is down there for that token, and will stay so.
    pub fn is_down(&self, name: &ResourceName, node: &NodeName, token: Generation) -> bool {
        self.rollback(name, node, token).is_some()
            && self.replica(name, node).is_some_and(|replica| !replica.up)
    }

    /// True if a peer whose agent is connected has a DRBD connection to the node.
    pub fn is_alive(&self, name: &ResourceName, node: &NodeName) -> bool {
        self.replicas(name).any(|(peer, replica)| {
            self.is_connected(peer) && replica.connections.get(node) == Some(&true)
        })
    }

    /// True if `node` was heard to have every one of `volumes` UpToDate.
    pub fn is_up_to_date<'a>(
        &self,
        name: &ResourceName,
        node: &NodeName,
        mut volumes: impl Iterator<Item = &'a VolumeNr>,
    ) -> bool {
        let Some(replica) = self.replica(name, node) else { return false };
        self.is_connected(node)
            && volumes.all(|number| {
                let volume = replica.volumes.get(number);
                volume.is_some_and(|volume| volume.disk == Some(DiskState::UpToDate))
            })
    }
}
