//! The objects of the control plane, as LINSTOR has them (control plane §1.2).
//!
//! Each struct is also the row that a store keeps. Volume definitions are rows inside their
//! resource definition, volumes inside their resource, network interfaces inside their node, volume
//! groups inside their resource group, and the snapshots of nodes inside their definition: they
//! change together, and no reader ever sees one without the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use vocab::{Bytes, GenUuid, Minor, NodeId, VolumeNr};

use crate::layer::Layer;
use crate::name::*;
use crate::row;
use crate::schedule::Scheduled;
use crate::shipping::{Download, Upload};

/// Properties of an object: LINSTOR's keys, paths with `/`, and their values.
pub type Props = BTreeMap<String, String>;

/// Milliseconds since 1970-01-01 00:00 UTC, as the caller's clock says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Millis(pub u64);

impl Millis {
    /// Milliseconds passed since `earlier`; zero if that lies ahead.
    pub const fn since(self, earlier: Millis) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Counts changes of the wanted state. Every command that changes something has the next number.
///
/// Plans carry it, and agents refuse steps that are older than what they have carried out for the
/// same resource.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Generation(pub u64);

/// The unique id of an object. Two objects that had the same name at different times differ in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Uuid(pub u128);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", self.0);
        let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        write!(f, "{a}-{b}-{c}-{d}-{e}")
    }
}

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
        pub enum $name { $($(#[$vmeta])* #[serde(rename = $word)] $variant,)+ }

        impl $name {
            /// Every value.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// LINSTOR's word.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// The value of a word in any case.
            pub fn from_word(word: &str) -> Option<$name> {
                Self::ALL.iter().copied().find(|value| value.word().eq_ignore_ascii_case(word))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }
    };
}
pub(crate) use words;

words! {
    /// What a node is there for.
    NodeKind {
        /// Only a controller; holds no resource.
        Controller = "CONTROLLER",
        /// Holds resources.
        Satellite = "SATELLITE",
        /// Both.
        Combined = "COMBINED",
        /// Known by name only.
        Auxiliary = "AUXILIARY",
    }
}

impl NodeKind {
    /// True if resources can be on such a node.
    pub const fn holds_resources(self) -> bool {
        matches!(self, NodeKind::Satellite | NodeKind::Combined)
    }
}

words! {
    /// Marks of a node.
    NodeFlag {
        /// Is being deleted.
        Delete = "DELETE",
        /// Was away for too long: its replicas are made elsewhere and it is not dialled any more.
        Evicted = "EVICTED",
        /// Is being emptied.
        Evacuate = "EVACUATE",
    }
}

words! {
    /// Marks of a resource definition.
    DefinitionFlag {
        /// Is being deleted.
        Delete = "DELETE",
        /// Is made from a snapshot.
        RestoreTarget = "RESTORE_TARGET",
        /// Is being made from another one.
        Cloning = "CLONING",
        /// Could not be made from another one.
        Failed = "FAILED",
    }
}

words! {
    /// Marks of a volume definition.
    VolumeDefinitionFlag {
        /// Is being deleted.
        Delete = "DELETE",
        /// Is growing.
        Resize = "RESIZE",
        /// The size includes DRBD's metadata.
        GrossSize = "GROSS_SIZE",
        /// One replica has begun the first data generation: no later one may.
        DrbdInitialized = "DRBD_INITIALIZED",
    }
}

words! {
    /// Marks of a resource.
    ResourceFlag {
        /// Is to be deleted.
        Delete = "DELETE",
        /// Its data are no longer needed: peers leave it, then it goes. There is no way back.
        DrbdDelete = "DRBD_DELETE",
        /// Has no storage.
        Diskless = "DISKLESS",
        /// Uses its peers' disks over DRBD.
        DrbdDiskless = "DRBD_DISKLESS",
        /// Is there for its vote only.
        TieBreaker = "TIE_BREAKER",
        /// Layers above storage are down.
        Inactive = "INACTIVE",
        /// Is active again, and has no vote until it is UpToDate.
        Reactivate = "REACTIVATE",
        /// Lost with its evicted node.
        Evicted = "EVICTED",
        /// Is to be somewhere else.
        Evacuate = "EVACUATE",
        /// A disk is to be added.
        DiskAddRequested = "DISK_ADD_REQUESTED",
        /// A disk is being added.
        DiskAdding = "DISK_ADDING",
        /// The disk is to be removed.
        DiskRemoveRequested = "DISK_REMOVE_REQUESTED",
        /// The disk is being removed.
        DiskRemoving = "DISK_REMOVING",
        /// Gets its data from a snapshot.
        RestoreFromSnapshot = "RESTORE_FROM_SNAPSHOT",
        /// A diskless peer without a vote.
        Client = "CLIENT",
    }
}

words! {
    /// Marks of a snapshot definition.
    SnapshotFlag {
        /// All its snapshots are of one point in time.
        Successful = "SUCCESSFUL",
        /// It could not be made.
        FailedDeployment = "FAILED_DEPLOYMENT",
        /// A node went away while it was made.
        FailedDisconnect = "FAILED_DISCONNECT",
        /// Is being deleted.
        Delete = "DELETE",
    }
}

words! {
    /// What manages the storage of a pool.
    Provider {
        /// Nothing: for diskless resources.
        Diskless = "DISKLESS",
        /// Thick logical volumes.
        Lvm = "LVM",
        /// Thin logical volumes.
        LvmThin = "LVM_THIN",
        /// ZFS volumes with reserved space.
        Zfs = "ZFS",
        /// ZFS volumes without.
        ZfsThin = "ZFS_THIN",
        /// Allocated files.
        File = "FILE",
        /// Sparse files.
        FileThin = "FILE_THIN",
    }
}

impl Provider {
    /// True if space is taken when it is written.
    pub const fn is_thin(self) -> bool {
        matches!(self, Provider::LvmThin | Provider::ZfsThin | Provider::FileThin)
    }

    /// True if there is a device.
    pub const fn has_device(self) -> bool {
        !matches!(self, Provider::Diskless)
    }

    /// True if volumes of it can be snapshotted (control plane §6).
    pub const fn has_snapshots(self) -> bool {
        !matches!(self, Provider::Diskless | Provider::Lvm)
    }

    /// True if unwritten blocks of a new volume read as zeroes, so that a replica need not copy
    /// what was never written.
    pub const fn starts_zeroed(self) -> bool {
        !matches!(self, Provider::Diskless | Provider::Lvm)
    }
}

words! {
    /// How the controller talks to an agent.
    Encryption {
        /// In the clear.
        Plain = "PLAIN",
        /// With TLS.
        Ssl = "SSL",
    }
}

/// What belongs to the controller itself: there is one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Controller {
    /// Properties that everything inherits.
    pub props: Props,
    /// Generation of the last command that changed something.
    pub generation: Generation,
    /// Generation of the last command that changed [`Controller::props`].
    pub props_generation: Generation,
    /// The key above all volumes' passphrases, encrypted under the master passphrase (`crypt::seal`), once
    /// there is one.
    #[serde(default)]
    pub master_key: Option<String>,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Its name, the host's.
    pub name: NodeName,
    /// Unique id.
    pub uuid: Uuid,
    /// What it is there for.
    pub kind: NodeKind,
    /// Properties; `CurStltConnName` names the interface that the controller dials.
    pub props: Props,
    /// Marks.
    pub flags: BTreeSet<NodeFlag>,
    /// Interfaces by name.
    pub net_interfaces: BTreeMap<NetIfName, NetInterface>,
    /// When it was evicted.
    pub evicted_at: Option<Millis>,
    /// Where its replicas may go while it is emptied; none means anywhere.
    pub evacuate_to: Option<Vec<NodeName>>,
    /// Where they may not go.
    pub evacuate_not_to: Vec<NodeName>,
    /// Generation of the last change.
    pub generation: Generation,
}

/// An address of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NetInterface {
    /// Unique id.
    pub uuid: Uuid,
    /// The address.
    pub address: IpAddr,
    /// Port and encryption of the agent, if it listens there.
    pub agent: Option<(u16, Encryption)>,
}

/// What the pools of one name have in common.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolDefinition {
    /// Its name.
    pub name: PoolName,
    /// Unique id.
    pub uuid: Uuid,
    /// Properties that the pools inherit.
    pub props: Props,
}

/// Storage of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pool {
    /// The node.
    pub node: NodeName,
    /// Its name.
    pub name: PoolName,
    /// Unique id.
    pub uuid: Uuid,
    /// What manages it.
    pub provider: Provider,
    /// Properties, the driver's among them.
    pub props: Props,
    /// The space it shares with pools of other nodes.
    pub shared_space: Option<SharedSpaceName>,
    /// Somebody else serialises changes of the shared space.
    pub external_locking: bool,
}

/// Where replicas may be (control plane §4.1). A field that is `None` is taken from the resource
/// group; one that is given wins as a whole, even if it is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Filter {
    /// Replicas wanted in all.
    pub place_count: Option<u32>,
    /// Replicas wanted beside those that exist.
    pub additional_place_count: Option<u32>,
    /// Only these nodes.
    pub nodes: Option<Vec<NodeName>>,
    /// Only these pools.
    pub pools: Option<Vec<PoolName>>,
    /// Only these pools for diskless resources.
    pub diskless_pools: Option<Vec<PoolName>>,
    /// Not beside these resources.
    pub not_with: Option<Vec<ResourceName>>,
    /// Not beside resources whose name matches; searched without regard to case.
    pub not_with_regex: Option<String>,
    /// `key` or `key=value` of node properties that all replicas share.
    pub on_same: Option<Vec<String>>,
    /// `key` or `key=value` of node properties that no two replicas share.
    pub on_different: Option<Vec<String>>,
    /// Replicas for each value of a node property.
    pub x_on_different: Option<BTreeMap<String, u32>>,
    /// Layers that a node has to support.
    pub layers: Option<Vec<Layer>>,
    /// Only pools of these kinds.
    pub providers: Option<Vec<Provider>>,
    /// A diskless resource on every other node.
    pub diskless_on_remaining: Option<bool>,
    /// It is diskless resources that are placed, and not replicas. Not of groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diskless: Option<bool>,
}

/// A resource group: how its resource definitions are made and placed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Its name.
    pub name: GroupName,
    /// Unique id.
    pub uuid: Uuid,
    /// Free text.
    pub description: String,
    /// Properties that its resource definitions inherit.
    pub props: Props,
    /// Where replicas may be.
    pub filter: Filter,
    /// Peers for which a new disk keeps a bitmap.
    pub peer_slots: Option<u8>,
    /// What a spawned volume begins with.
    #[serde(with = "row::by_volume")]
    pub volume_groups: BTreeMap<VolumeNr, VolumeGroup>,
    /// Generation of the last change.
    pub generation: Generation,
}

/// What one volume of a resource group's resource definitions begins with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeGroup {
    /// Unique id.
    pub uuid: Uuid,
    /// Properties that the volume inherits.
    pub props: Props,
    /// Sizes include DRBD's metadata.
    pub gross_size: bool,
}

/// A resource definition: what its replicas have in common.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Definition {
    /// Its name.
    pub name: ResourceName,
    /// The name that others gave it.
    pub external_name: Option<String>,
    /// Unique id.
    pub uuid: Uuid,
    /// Its group.
    pub group: GroupName,
    /// Properties that its resources inherit.
    pub props: Props,
    /// Marks.
    pub flags: BTreeSet<DefinitionFlag>,
    /// Layers from top to bottom.
    pub layers: Vec<Layer>,
    /// The secret that DRBD peers share.
    pub secret: String,
    /// Peers for which a new disk keeps a bitmap, 1 to 31.
    pub peer_slots: u8,
    /// The TCP port of its resources on every node where that is free when they are made.
    #[serde(default)]
    pub port: Option<u16>,
    /// The id from which the next free one is looked for: ids go round, so that one is used again
    /// as late as possible.
    pub next_node_id: u8,
    /// Its volumes.
    #[serde(with = "row::by_volume")]
    pub volumes: BTreeMap<VolumeNr, VolumeDefinition>,
    /// The last time that its data were rolled back to a snapshot.
    #[serde(default)]
    pub rollback: Option<Rollback>,
    /// The snapshot that it is, or was to be, cloned from. It is there for that alone.
    #[serde(default)]
    pub clone_of: Option<(ResourceName, SnapshotName)>,
    /// Generation of the last change of it, of a resource or of a snapshot of it.
    pub generation: Generation,
}

impl Definition {
    /// The rollback that is under way.
    pub fn rolling_back(&self) -> Option<&Rollback> {
        self.rollback.as_ref().filter(|rollback| rollback.is_under_way())
    }
}

/// All replicas go back to the data of a snapshot.
///
/// First the resource is taken down on every node, and a snapshot is made of what is there; until that
/// is done it can be given up. Then disks are changed: a node that still had the newer data would
/// bring them back, so none comes up before all have the older ones. If one can not take them on, all
/// go back to what was there before.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rollback {
    /// The snapshot.
    pub snapshot: SnapshotName,
    /// The generation in which it was asked for: what nodes say that they are down for.
    pub token: Generation,
    /// When it was asked for, or since when disks are changed.
    pub since: Millis,
    /// The nodes whose replicas get the snapshot's data. Others get theirs from these.
    pub holders: BTreeSet<NodeName>,
    /// How far it is.
    pub phase: RollbackPhase,
    /// The snapshot of what was there before, if one can be made. A step of its own before [`Changing`]
    /// (in the row it is the same phase: programs that do not know it go on without).
    ///
    /// [`Changing`]: RollbackPhase::Changing
    #[serde(default)]
    pub safety: Option<Safety>,
    /// Why another rollback could not be done, of which this is the way back.
    #[serde(default)]
    pub back_because: Option<String>,
}

/// The snapshot to which a rollback goes back if it can not be done. It goes when the rollback ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Safety {
    /// Its name.
    pub name: SnapshotName,
    /// The nodes that make it.
    pub on: BTreeSet<NodeName>,
    /// It was begun, which is once.
    pub begun: bool,
}

impl Rollback {
    /// True if it has neither been done nor given up.
    pub const fn is_under_way(&self) -> bool {
        matches!(self.phase, RollbackPhase::Stopping | RollbackPhase::Changing)
    }

    /// The snapshot of what was there before.
    pub fn kept(&self) -> Option<&SnapshotName> {
        match self.back_because {
            Some(_) => Some(&self.snapshot),
            None => self.safety.as_ref().map(|safety| &safety.name),
        }
    }

    /// True if it needs that snapshot, to go to it or back.
    pub fn needs(&self, snapshot: &SnapshotName) -> bool {
        self.snapshot == *snapshot || self.kept() == Some(snapshot)
    }
}

/// How far a rollback is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RollbackPhase {
    /// The resource is taken down, and what is there is kept in a snapshot. No data have been changed.
    Stopping,
    /// It is down everywhere, and data are changed.
    Changing,
    /// All replicas have the snapshot's data, or none.
    Done,
    /// It was given up, for this reason.
    GivenUp(String),
}

/// A volume that every replica has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeDefinition {
    /// Unique id.
    pub uuid: Uuid,
    /// Size that users see; with GROSS_SIZE, that of the backing volume.
    #[serde(with = "row::bytes")]
    pub size: Bytes,
    /// Minor number of the DRBD device, the same on every node.
    #[serde(with = "row::minor")]
    pub minor: Option<Minor>,
    /// Properties.
    pub props: Props,
    /// Marks.
    pub flags: BTreeSet<VolumeDefinitionFlag>,
    /// The volume's passphrase, encrypted under the master key, where there is a layer LUKS.
    pub passphrase: Option<String>,
    /// How often it was changed: what a node says tells whether its disk has the newest.
    #[serde(default, skip_serializing_if = "row::is_zero")]
    pub passphrase_changes: u32,
    /// The generation that a disk has on which nothing was ever written.
    #[serde(with = "row::generation")]
    pub day_0: GenUuid,
    /// The node whose replica begins the first data generation: nobody else ever does.
    pub initial_on: Option<NodeName>,
    /// That right was another node's before. Whoever has it now has to see that all disks are
    /// empty, because the other one may have begun and not have been heard.
    #[serde(default)]
    pub passed_on: bool,
}

/// A replica of a resource definition, or a diskless user of it, on a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Resource {
    /// The resource definition.
    pub name: ResourceName,
    /// The node.
    pub node: NodeName,
    /// Unique id.
    pub uuid: Uuid,
    /// When it was made.
    pub created: Millis,
    /// Properties; `DiskfulBy` says who made it, `MigrateFrom` which replica it replaces.
    pub props: Props,
    /// Marks.
    pub flags: BTreeSet<ResourceFlag>,
    /// DRBD node id.
    #[serde(with = "row::node_id")]
    pub node_id: Option<NodeId>,
    /// TCP port that DRBD listens on.
    pub port: Option<u16>,
    /// Its volumes.
    #[serde(with = "row::by_volume")]
    pub volumes: BTreeMap<VolumeNr, Volume>,
    /// If an operator has deactivated it, the generation in which that was asked for: what its node
    /// says that it is down for. It has the flag INACTIVE then, which evicted ones have, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deactivated: Option<Generation>,
}

impl Resource {
    /// True if it is to have storage. One that loses its disk counts until the disk is gone.
    pub fn is_diskful(&self) -> bool {
        !self.flags.contains(&ResourceFlag::Diskless)
            || self.flags.contains(&ResourceFlag::DiskAddRequested)
    }

    /// True if it is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.flags.contains(&ResourceFlag::Delete)
    }

    /// True if it is a tie-breaker.
    pub fn is_tie_breaker(&self) -> bool {
        self.flags.contains(&ResourceFlag::TieBreaker)
    }

    /// True if it keeps, or is to get, data that others may rely on: it is diskful and neither
    /// deleted, nor evicted, nor inactive, nor on its way to diskless.
    pub fn is_replica(&self) -> bool {
        self.takes_a_place() && !self.flags.contains(&ResourceFlag::Inactive)
    }

    /// True if it takes one of the places in which replicas are wanted: it is one, or will be when it
    /// is activated again.
    pub fn takes_a_place(&self) -> bool {
        use ResourceFlag::*;
        let leaving = [Delete, Evicted, DiskRemoveRequested, DiskRemoving];
        self.is_diskful() && !leaving.iter().any(|flag| self.flags.contains(flag))
    }

    /// Takes back that it was deactivated.
    pub fn activate(&mut self) {
        self.deactivated = None;
        if !self.flags.contains(&ResourceFlag::Evicted) {
            self.flags.remove(&ResourceFlag::Inactive);
        }
    }
}

/// A volume of a resource.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Volume {
    /// Unique id.
    pub uuid: Uuid,
    /// Where its data are.
    pub pool: PoolName,
    /// Properties.
    pub props: Props,
    /// It was there before this cluster was: its agent takes it as it is, and never makes one in its
    /// place. Until it has.
    #[serde(default, skip_serializing_if = "row::is_false")]
    pub adopt: bool,
}

/// A snapshot of all replicas at one point in time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotDefinition {
    /// The resource definition.
    pub resource: ResourceName,
    /// Its name.
    pub name: SnapshotName,
    /// Unique id.
    pub uuid: Uuid,
    /// Properties.
    pub props: Props,
    /// Marks. As long as none is set, it is being made.
    pub flags: BTreeSet<SnapshotFlag>,
    /// Layers at that time.
    pub layers: Vec<Layer>,
    /// Sizes of the volumes at that time.
    #[serde(with = "row::sizes")]
    pub sizes: BTreeMap<VolumeNr, Bytes>,
    /// Properties of the resource definition at that time.
    pub frozen_props: Props,
    /// The generation in which it was asked for: what a suspension of I/O is held for.
    pub token: Generation,
    /// The snapshot of each node.
    pub nodes: BTreeMap<NodeName, Snapshot>,
    /// The resource definition that is cloned from it, for which it is made.
    #[serde(default)]
    pub clone_to: Option<ResourceName>,
    /// The passphrases of volumes whose passphrases were changed since, as they were then.
    #[serde(default, with = "row::by_volume", skip_serializing_if = "BTreeMap::is_empty")]
    pub passphrases: BTreeMap<VolumeNr, String>,
    /// Its backups, by where they go.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub uploads: BTreeMap<RemoteName, Upload>,
    /// What it is for, if a schedule has made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<Scheduled>,
    /// The backup that it is made from, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<Download>,
}

impl SnapshotDefinition {
    /// True while it is being made from what replicas have.
    pub fn is_pending(&self) -> bool {
        self.flags.is_empty() && self.download.is_none()
    }

    /// True while it is being made from a backup.
    pub fn is_downloading(&self) -> bool {
        self.download.as_ref().is_some_and(|download| download.phase.is_active())
    }

    /// True while a backup of it is being made.
    pub fn is_uploading(&self) -> bool {
        self.uploads.values().any(|upload| upload.phase.is_active())
    }

    /// True if it can be used.
    pub fn is_successful(&self) -> bool {
        self.flags.contains(&SnapshotFlag::Successful) && !self.is_deleting()
    }

    /// True if it is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.flags.contains(&SnapshotFlag::Delete)
    }
}

/// The snapshot of one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// Unique id.
    pub uuid: Uuid,
    /// When it was asked for.
    pub created: Millis,
    /// Is being deleted.
    pub deleting: bool,
    /// DRBD node id of the replica: what is in the snapshot's metadata.
    #[serde(with = "row::node_id")]
    pub node_id: Option<NodeId>,
    /// Pool of each volume.
    #[serde(with = "row::by_volume")]
    pub pools: BTreeMap<VolumeNr, PoolName>,
}

/// A file that is put on every node that has one of the resources.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExternalFile {
    /// Where it is put.
    pub path: FilePath,
    /// Unique id.
    pub uuid: Uuid,
    /// What is in it.
    pub content: Vec<u8>,
    /// The resource definitions for which it is put there.
    pub resources: BTreeSet<ResourceName>,
}

/// A token by which a node can join once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JoinToken {
    /// Of its secret, SHA-256 in hexadecimal digits: who reads the store can not join.
    pub digest: String,
    /// The only node that may use it, if it is for one.
    pub node: Option<NodeName>,
    /// From when on it is not taken any more.
    pub expires: Millis,
}
