//! What an agent is told to do.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use vocab::{Bytes, GenUuid, NodeId, VolumeNr};

use super::config::ResourceConfig;
use crate::layer::Layer;
use crate::name::*;
use crate::objects::{Generation, Provider};
use crate::row;
use crate::shipping::{DownloadOrder, UploadOrder};

/// A step of a plan, by its place in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StepId(pub usize);

/// One thing for one agent to do.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// Its place in the plan.
    pub id: StepId,
    /// The node.
    pub node: NodeName,
    /// What to do. Doing it twice is doing it once.
    pub action: Action,
    /// Steps that have to be done before.
    pub after: Vec<StepId>,
    /// Copies of the data that can be relied on before it.
    pub copies_before: usize,
    /// And after it.
    pub copies_after: usize,
}

/// A backing volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Backing {
    /// The pool.
    pub pool: PoolName,
    /// What manages it.
    pub provider: Provider,
    /// Its size in bytes, before the pool rounds it up.
    #[serde(with = "row::bytes")]
    pub size: Bytes,
    /// Layers between it and DRBD, or the user.
    pub layers: Vec<Layer>,
    /// Passphrase of a layer LUKS, encrypted under the master key.
    pub passphrase: Option<String>,
    /// How often that was changed.
    #[serde(default, skip_serializing_if = "row::is_zero")]
    pub passphrase_changes: u32,
    /// What the pool's driver is told: the pool's own `StorDriver/…`, and what a volume inherits.
    pub options: BTreeMap<String, String>,
}

/// What to do. Everything is about one resource.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Action {
    /// Makes a backing volume, unless there is one of this size.
    CreateVolume {
        /// Its number.
        volume: u16,
        /// What it is.
        backing: Backing,
    },
    /// Takes a backing volume that was there before this cluster was, with the metadata it has. Nothing is
    /// made or written; refused if it is not there, or is somebody else's.
    AdoptVolume {
        /// Its number.
        volume: u16,
        /// What it is.
        backing: Backing,
        /// Size that users see, in bytes: it holds that at least.
        #[serde(with = "row::bytes")]
        size: Bytes,
        /// It has DRBD's metadata.
        metadata: bool,
        /// DRBD node id of this node, which they have to name.
        #[serde(with = "row::node_id")]
        node_id: Option<NodeId>,
    },
    /// Makes a backing volume with the data of a snapshot of the same pool.
    RestoreVolume {
        /// Its number.
        volume: u16,
        /// What it is.
        backing: Backing,
        /// The resource definition of the snapshot.
        from: ResourceName,
        /// The snapshot.
        snapshot: SnapshotName,
    },
    /// Makes DRBD's metadata on a backing volume that has none.
    CreateMetadata {
        /// Its number.
        volume: u16,
        /// Peers for which it keeps a bitmap.
        peer_slots: u8,
        /// DRBD node id of this node.
        #[serde(with = "row::node_id")]
        node_id: Option<NodeId>,
        /// The generation that a disk has on which nothing was ever written.
        #[serde(with = "row::generation")]
        day_0: GenUuid,
        /// How the disk begins.
        begin: Begin,
    },
    /// Begins the first data generation on a disk that has never had data, and whose peers have
    /// none. Refused if the disk, or one of a connected peer, is not Inconsistent.
    BeginData {
        /// Its number.
        volume: u16,
    },
    /// Grows a backing volume.
    GrowVolume {
        /// Its number.
        volume: u16,
        /// Its new size in bytes, before the pool rounds it up.
        #[serde(with = "row::bytes")]
        size: Bytes,
    },
    /// Has an encrypted backing volume opened by another passphrase, and by its old one no more.
    ChangePassphrase {
        /// Its number.
        volume: u16,
        /// The new one, encrypted under the master key.
        passphrase: String,
        /// How often it was changed then.
        changes: u32,
    },
    /// Has DRBD use a backing volume that has grown, once it has everywhere.
    GrowDevice {
        /// Its number.
        volume: u16,
        /// Its new size in bytes.
        #[serde(with = "row::bytes")]
        size: Bytes,
    },
    /// Brings the resource up as this says, or changes what is different. Volumes and peers that
    /// are not in it are taken down and forgotten; no backing volume is deleted.
    Configure(ResourceConfig),
    /// Takes the disk of a resource that is still connected, and deletes its backing volumes.
    RemoveDisk(Guard),
    /// Takes a volume down, and deletes its backing volume.
    RemoveVolume {
        /// Its number.
        volume: u16,
    },
    /// Takes the resource down, and deletes everything of it but its snapshots.
    Remove(Guard),
    /// Suspends I/O for a snapshot. The agent goes on by itself after a time that it decides, and
    /// says so.
    Suspend {
        /// What it is held for.
        token: Generation,
    },
    /// Takes a snapshot, if I/O is suspended for it. Refused otherwise.
    TakeSnapshot {
        /// What I/O is suspended for.
        token: Generation,
        /// Its name.
        snapshot: SnapshotName,
    },
    /// Goes on with I/O.
    Resume {
        /// What it was suspended for.
        token: Generation,
    },
    /// Deletes a snapshot.
    DeleteSnapshot {
        /// Its name.
        snapshot: SnapshotName,
    },
    /// Takes the resource down for a rollback, or because it was deactivated. It stays down, whatever
    /// is restarted, until it is configured again. Refused while somebody uses it.
    TakeDown {
        /// What it is down for.
        token: Generation,
        /// What has to be left where its peers go on without it: it is refused only while it is used
        /// on this node. None for a rollback, where it goes down on all nodes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        guard: Option<Guard>,
    },
    /// Gives the volumes of a resource that is down the data of a snapshot, as a whole.
    RollBack {
        /// What it is down for.
        token: Generation,
        /// The snapshot.
        snapshot: SnapshotName,
    },
    /// Deletes the backing volumes of a resource that is down: others have the data that count.
    Discard {
        /// What it is down for.
        token: Generation,
    },
    /// Begins to upload a snapshot. The agent goes on by itself, and says how far it is; after its
    /// restart nothing is known of it, and it is begun again.
    Upload(Box<UploadOrder>),
    /// Begins to make a snapshot from a backup, likewise.
    Download(Box<DownloadOrder>),
    /// Ends what is shipped, and what was left of it.
    StopShipping {
        /// What it is known by.
        token: Generation,
    },
}

/// What an agent itself looks at before it takes data away. What was planned is as old as the last
/// report; what its own DRBD sees of its peers is true now.
///
/// The step is refused unless the disk is Inconsistent or not there, or at least so many of these
/// peers are connected and UpToDate.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Guard {
    /// How many; none if nobody needs the data.
    pub at_least: usize,
    /// Peers with a copy.
    pub of: Vec<NodeName>,
}

/// How the data of a new disk begin (control plane §7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Begin {
    /// UpToDate with a new generation, and day 0 in every peer's bitmap: the one that begins.
    First,
    /// With day 0: what was never written is not copied.
    DayZero,
    /// With nothing: everything is copied.
    Empty,
}

impl Action {
    /// True if it takes data away.
    pub const fn takes_a_copy(&self) -> bool {
        matches!(self, Action::RemoveDisk(_) | Action::Remove(_))
    }

    /// Bytes that peers or pools move because of it, at most.
    pub const fn moves(&self) -> Bytes {
        match self {
            Action::CreateMetadata { begin: Begin::First, .. } => Bytes(0),
            Action::CreateVolume { backing, .. } => backing.size,
            _ => Bytes(0),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::CreateVolume { volume, backing } => {
                write!(f, "create volume {volume} in pool {}", backing.pool)
            }
            Action::AdoptVolume { volume, backing, .. } => {
                write!(f, "take volume {volume} of pool {} as it is", backing.pool)
            }
            Action::RestoreVolume { volume, from, snapshot, .. } => {
                write!(f, "restore volume {volume} from {from}/{snapshot}")
            }
            Action::CreateMetadata { volume, begin, .. } => {
                write!(f, "create metadata of volume {volume}, {begin:?}")
            }
            Action::BeginData { volume } => write!(f, "begin the data of volume {volume}"),
            Action::GrowVolume { volume, size } => {
                write!(f, "grow volume {volume} to {} KiB", size.0 / 1024)
            }
            Action::GrowDevice { volume, size } => {
                write!(f, "grow the device of volume {volume} to {} KiB", size.0 / 1024)
            }
            Action::ChangePassphrase { volume, .. } => {
                write!(f, "change the passphrase of volume {volume}")
            }
            Action::Configure(_) => write!(f, "configure"),
            Action::RemoveDisk(_) => write!(f, "remove the disk"),
            Action::RemoveVolume { volume } => write!(f, "remove volume {volume}"),
            Action::Remove(_) => write!(f, "remove"),
            Action::Suspend { .. } => write!(f, "suspend I/O"),
            Action::TakeSnapshot { snapshot, .. } => write!(f, "take snapshot {snapshot}"),
            Action::Resume { .. } => write!(f, "resume I/O"),
            Action::DeleteSnapshot { snapshot } => write!(f, "delete snapshot {snapshot}"),
            Action::TakeDown { guard: None, .. } => write!(f, "take it down for a rollback"),
            Action::TakeDown { guard: Some(_), .. } => write!(f, "take it down"),
            Action::RollBack { snapshot, .. } => write!(f, "roll back to snapshot {snapshot}"),
            Action::Discard { .. } => write!(f, "discard the data that were not rolled back"),
            Action::Upload(order) => {
                write!(f, "upload snapshot {} as backup {}", order.snapshot, order.backup)
            }
            Action::Download(order) => {
                let backup = order.chain.last().map_or("", String::as_str);
                write!(f, "make snapshot {} from backup {backup}", order.snapshot)
            }
            Action::StopShipping { .. } => write!(f, "stop what is being shipped"),
        }
    }
}

/// Something that is wanted and can not be done now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    /// The node that it waits for, if it is one.
    pub node: Option<NodeName>,
    /// Why, and what to do about it.
    pub reason: String,
}

/// The volume number of a step.
pub(super) const fn number(volume: VolumeNr) -> u16 {
    volume.0
}
