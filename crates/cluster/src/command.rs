//! Commands: everything that can be wished for. `apply` carries them out.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use vocab::{Bytes, Minor, NodeId, VolumeNr};

use crate::layer::Layer;
use crate::name::*;
use crate::objects::{Encryption, Filter, Generation, JoinToken, NodeKind, Props, Provider};
use crate::props::PropsEdit;
use crate::row;
use crate::schedule::{Level, OnFailure};
use crate::shipping::{Bucket, Door, Found, OtherCluster};

/// A network interface as it is wished for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewNetInterface {
    /// Its name.
    pub name: NetIfName,
    /// Its address.
    pub address: IpAddr,
    /// Port and encryption of the agent, if it listens there.
    pub agent: Option<(u16, Encryption)>,
}

/// A resource definition as it is wished for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NewDefinition {
    /// Its name; without one it is derived from the external name.
    pub name: Option<ResourceName>,
    /// The name that others gave it.
    pub external_name: Option<String>,
    /// Its group; the default group if there is none.
    pub group: Option<GroupName>,
    /// Properties.
    pub props: Props,
    /// Layers; the group's, or DRBD over STORAGE, if there are none.
    pub layers: Option<Vec<Layer>>,
    /// Peers for which a new disk keeps a bitmap.
    pub peer_slots: Option<u8>,
    /// The secret that DRBD peers share; drawn if there is none.
    pub secret: Option<String>,
    /// The TCP port of its resources on every node where that is free; if there is none each has the
    /// smallest free one of its node.
    pub port: Option<u16>,
}

/// A volume definition as it is wished for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NewVolumeDefinition {
    /// Its number; the smallest free one if there is none.
    pub number: Option<u16>,
    /// Its size in bytes, a whole number of KiB.
    #[serde(with = "row::bytes")]
    pub size: Bytes,
    /// Minor number of its device; the smallest free one if there is none.
    #[serde(with = "row::minor")]
    pub minor: Option<Minor>,
    /// The size includes DRBD's metadata.
    pub gross_size: bool,
    /// Properties.
    pub props: Props,
    /// The key of a layer LUKS, encrypted under the master key.
    pub passphrase: Option<String>,
}

/// A resource as it is wished for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NewResource {
    /// The pool of all its volumes; looked up by LINSTOR's order if there is none.
    pub pool: Option<PoolName>,
    /// Without storage.
    pub diskless: bool,
    /// A diskless peer without a vote.
    pub client: bool,
    /// DRBD node id; the next free one if there is none.
    #[serde(with = "row::node_id")]
    pub node_id: Option<NodeId>,
    /// TCP port; the smallest free one of the node if there is none.
    pub port: Option<u16>,
    /// Properties.
    pub props: Props,
}

/// Changes of a remote: what is not given stays.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BucketEdit {
    /// URL of the store.
    pub endpoint: Option<String>,
    /// The bucket's name.
    pub bucket: Option<String>,
    /// The store's region.
    pub region: Option<String>,
    /// The bucket is in the path of addresses.
    pub path_style: Option<bool>,
    /// Name of the key, encrypted under the master key.
    pub access_key: Option<String>,
    /// The key, encrypted under the master key.
    pub secret_key: Option<String>,
}

/// What is asked of another cluster that is to get a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewSending {
    /// The resource definition there.
    pub to: ResourceName,
    /// The snapshot there; called as it is here if there is none.
    pub snapshot: Option<SnapshotName>,
    /// The node that gets it; the other cluster chooses if there is none.
    pub node: Option<NodeName>,
    /// The network interface of that node through which it gets it.
    pub net_if: Option<NetIfName>,
    /// The pool for all volumes that `pools` says nothing of.
    pub pool: Option<PoolName>,
    /// Pools there, by what the pools are called here.
    pub pools: BTreeMap<PoolName, PoolName>,
    /// The resource group there.
    pub group: Option<GroupName>,
    /// Nothing is made of the snapshot there.
    pub download_only: bool,
    /// Only what has changed is shipped, if the other cluster has something to compare with.
    pub incremental: bool,
}

/// What another cluster wants to ship to this one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewReceiving {
    /// The id of that cluster.
    pub cluster: String,
    /// What it knows the shipment by.
    pub shipment: String,
    /// What it is there.
    pub origin: String,
    /// What it can be compared with, the newest first.
    pub bases: Vec<String>,
    /// By what the sender shows that it is the one, encrypted under the master key.
    pub secret: String,
    /// The resource definition here.
    pub to: ResourceName,
    /// The snapshot here.
    pub snapshot: SnapshotName,
    /// The resource group of a new resource definition.
    pub group: Option<GroupName>,
    /// The node that gets it; any that can if there is none.
    pub node: Option<NodeName>,
    /// The network interface of that node through which it gets it.
    pub net_if: Option<NetIfName>,
    /// The pool for all volumes that `pools` says nothing of.
    pub pool: Option<PoolName>,
    /// Pools here, by what the pools are called there.
    pub pools: BTreeMap<PoolName, PoolName>,
    /// Nothing is made of the snapshot.
    pub download_only: bool,
}

/// Changes of a remote that is another cluster: what is not given stays.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClusterEdit {
    /// URL of its REST API, with the token that it wants, encrypted under the master key, if any.
    pub url: Option<(String, Option<String>)>,
    /// Its id; none if it is empty.
    pub id: Option<String>,
    /// Its master passphrase, encrypted under the master key; none if it is empty.
    pub passphrase: Option<String>,
}

/// A schedule as it is wished for. Times are as crontabs have them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewSchedule {
    /// When full backups are made.
    pub full: String,
    /// When incremental ones are made, if any.
    pub incremental: Option<String>,
    /// Of how many full backups the snapshots stay; of all if none.
    pub keep_local: Option<u32>,
    /// How many full backups stay in the remote; all if none.
    pub keep_remote: Option<u32>,
    /// What is done about one that could not be made.
    pub on_failure: OnFailure,
    /// How often that is tried again; until it succeeds if none.
    pub max_retries: Option<u32>,
}

/// Changes of a schedule: what is not given stays.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScheduleEdit {
    /// When full backups are made.
    pub full: Option<String>,
    /// When incremental ones are made, or that none are.
    pub incremental: Option<Option<String>>,
    /// Of how many full backups the snapshots stay, or that all do.
    pub keep_local: Option<Option<u32>>,
    /// How many full backups stay in the remote, or that all do.
    pub keep_remote: Option<Option<u32>>,
    /// What is done about one that could not be made.
    pub on_failure: Option<OnFailure>,
    /// How often that is tried again, or that there is no end.
    pub max_retries: Option<Option<u32>>,
}

/// A wish.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields are named like those of the objects that they set")]
pub enum Command {
    /// Changes the controller's properties.
    ModifyController { props: PropsEdit },
    /// Keeps the master key as it is encrypted under a new passphrase, in the place of how it was before; of
    /// nothing, if it is new.
    SetMasterKey { wrapped: String, before: Option<String> },

    /// A node, with its pool for diskless resources.
    CreateNode {
        name: NodeName,
        kind: NodeKind,
        net_interfaces: Vec<NewNetInterface>,
        props: Props,
    },
    /// Changes a node.
    ModifyNode { name: NodeName, kind: Option<NodeKind>, props: PropsEdit },
    /// Deletes a node after everything on it.
    DeleteNode { name: NodeName },
    /// Forgets a node that is not connected, and everything on it, at once.
    LoseNode { name: NodeName },
    /// Empties a node: its replicas are made elsewhere first.
    EvacuateNode { name: NodeName, to: Option<Vec<NodeName>>, not_to: Vec<NodeName> },
    /// Gives up a node that is not connected: its replicas are made elsewhere.
    EvictNode { name: NodeName },
    /// Takes a node back that was evacuated or evicted.
    RestoreNode { name: NodeName, delete_resources: bool, delete_snapshots: bool },
    /// Keeps a token by which a node can join once.
    CreateJoinToken { token: JoinToken },
    /// Uses such a token up, for a node that joins.
    UseJoinToken { digest: String, node: NodeName },
    /// Adds a network interface.
    CreateNetInterface { node: NodeName, interface: NewNetInterface, activate: bool },
    /// Changes a network interface.
    ModifyNetInterface { node: NodeName, interface: NewNetInterface, activate: bool },
    /// Removes a network interface.
    DeleteNetInterface { node: NodeName, name: NetIfName },
    /// Changes the properties of a connection of nodes.
    ModifyNodeConnection { a: NodeName, b: NodeName, props: PropsEdit },

    /// A storage pool definition.
    CreatePoolDefinition { name: PoolName, props: Props },
    /// Changes a storage pool definition.
    ModifyPoolDefinition { name: PoolName, props: PropsEdit },
    /// Removes a storage pool definition that no pool uses.
    DeletePoolDefinition { name: PoolName },
    /// A storage pool.
    CreatePool {
        node: NodeName,
        name: PoolName,
        provider: Provider,
        props: Props,
        shared_space: Option<SharedSpaceName>,
        external_locking: bool,
    },
    /// Changes a storage pool.
    ModifyPool { node: NodeName, name: PoolName, props: PropsEdit },
    /// Removes a storage pool that nothing uses.
    DeletePool { node: NodeName, name: PoolName },

    /// A resource group.
    CreateGroup {
        name: GroupName,
        description: String,
        props: Props,
        filter: Filter,
        peer_slots: Option<u8>,
    },
    /// Changes a resource group. Of the filter, what is given replaces what was there.
    ModifyGroup {
        name: GroupName,
        description: Option<String>,
        props: PropsEdit,
        filter: Filter,
        peer_slots: Option<u8>,
    },
    /// Removes a resource group without resource definitions.
    DeleteGroup { name: GroupName },
    /// A volume group.
    CreateVolumeGroup { group: GroupName, number: Option<u16>, props: Props, gross_size: bool },
    /// Changes a volume group.
    ModifyVolumeGroup { group: GroupName, number: u16, props: PropsEdit, gross_size: Option<bool> },
    /// Removes a volume group.
    DeleteVolumeGroup { group: GroupName, number: u16 },
    /// A resource definition with its volumes, placed as the group says.
    Spawn {
        group: GroupName,
        definition: NewDefinition,
        /// Sizes in bytes.
        sizes: Vec<u64>,
        filter: Filter,
        /// The number of sizes need not be that of volume groups.
        partial: bool,
        definitions_only: bool,
        passphrases: Vec<String>,
    },
    /// Places what a group's resource definitions lack.
    AdjustGroup { name: GroupName, filter: Filter },

    /// A resource definition.
    CreateDefinition { definition: NewDefinition },
    /// Changes a resource definition.
    ModifyDefinition {
        name: ResourceName,
        props: PropsEdit,
        group: Option<GroupName>,
        layers: Option<Vec<Layer>>,
        peer_slots: Option<u8>,
    },
    /// Deletes a resource definition after its resources.
    DeleteDefinition { name: ResourceName },
    /// A volume definition; its volumes are made everywhere.
    CreateVolumeDefinition { name: ResourceName, volume: NewVolumeDefinition },
    /// Changes a volume definition; a larger size grows its volumes everywhere.
    ModifyVolumeDefinition {
        name: ResourceName,
        number: u16,
        /// In bytes.
        size: Option<u64>,
        props: PropsEdit,
        gross_size: Option<bool>,
    },
    /// Has an encrypted volume opened by another passphrase.
    ChangePassphrase {
        name: ResourceName,
        number: u16,
        /// Encrypted under the master key.
        passphrase: String,
    },
    /// Deletes a volume definition with its volumes.
    DeleteVolumeDefinition { name: ResourceName, number: u16 },

    /// A resource on a node.
    CreateResource { name: ResourceName, node: NodeName, resource: NewResource },
    /// Changes the properties of a resource.
    ModifyResource { name: ResourceName, node: NodeName, props: PropsEdit },
    /// Changes the properties of a volume on a node.
    ModifyVolume { name: ResourceName, node: NodeName, number: u16, props: PropsEdit },
    /// Deletes a resource.
    DeleteResource { name: ResourceName, node: NodeName, keep_tie_breaker: bool },
    /// Makes resources on the best nodes.
    Autoplace { name: ResourceName, filter: Filter },
    /// Makes a resource usable on a node, diskless if that will do.
    MakeAvailable { name: ResourceName, node: NodeName, diskful: bool },
    /// Gives a resource a disk or takes it away.
    ToggleDisk {
        name: ResourceName,
        node: NodeName,
        diskful: bool,
        pool: Option<PoolName>,
        /// The replica that goes when the new one is UpToDate.
        migrate_from: Option<NodeName>,
        /// Without a vote once diskless.
        client: bool,
    },
    /// Brings a resource up that was deactivated. It gets what it has missed.
    ActivateResource { name: ResourceName, node: NodeName },
    /// Takes a resource down on a node. Its storage stays, and so it is until it is activated.
    DeactivateResource { name: ResourceName, node: NodeName },
    /// Changes the properties of a connection of a resource.
    ModifyResourceConnection { name: ResourceName, a: NodeName, b: NodeName, props: PropsEdit },

    /// Snapshots of several resource definitions at one point in time, each on the nodes named, or
    /// on all that can. All or none are made.
    CreateSnapshots { snapshots: Vec<(ResourceName, SnapshotName, Vec<NodeName>)>, props: Props },
    /// Changes the properties of a snapshot.
    ModifySnapshot { name: ResourceName, snapshot: SnapshotName, props: PropsEdit },
    /// Deletes a snapshot, on the nodes named or on all.
    DeleteSnapshot { name: ResourceName, snapshot: SnapshotName, nodes: Vec<NodeName> },
    /// Gives up a snapshot that could not be made.
    AbortSnapshot { name: ResourceName, snapshot: SnapshotName, disconnected: bool },
    /// Copies sizes of a snapshot into a resource definition without volumes.
    RestoreVolumeDefinitions { name: ResourceName, snapshot: SnapshotName, to: ResourceName },
    /// Makes resources with a snapshot's data.
    RestoreResources {
        name: ResourceName,
        snapshot: SnapshotName,
        to: ResourceName,
        nodes: Vec<NodeName>,
        pools: BTreeMap<PoolName, PoolName>,
    },
    /// Gives all replicas the data of a snapshot, which stays. What was written since is lost.
    RollBack { name: ResourceName, snapshot: SnapshotName },
    /// Makes another resource definition with the data as they are now, on the nodes and in the pools
    /// of the first. Of what is new only names, group and layers count; its properties are those of
    /// the first, changed by `props`.
    CloneDefinition { name: ResourceName, to: NewDefinition, props: PropsEdit },

    /// A remote, with its keys encrypted under the master key.
    CreateRemote { name: RemoteName, bucket: Bucket },
    /// Changes what is given of a remote.
    ModifyRemote { name: RemoteName, bucket: BucketEdit },
    /// A remote that is another cluster, with its secrets encrypted under the master key.
    CreateClusterRemote { name: RemoteName, cluster: OtherCluster },
    /// Changes what is given of one.
    ModifyClusterRemote { name: RemoteName, cluster: ClusterEdit },
    /// Removes a remote; what is shipped with it is given up. Backups stay where they are.
    DeleteRemote { name: RemoteName },
    /// Takes a snapshot, or takes one that there is, and uploads it.
    CreateBackup {
        name: ResourceName,
        remote: RemoteName,
        /// `back_` and the stamp if there is none.
        snapshot: Option<SnapshotName>,
        /// `yyyyMMdd_HHmmss`.
        stamp: String,
        /// The node that is to upload it.
        node: Option<NodeName>,
        incremental: bool,
        /// Backups of the resource definition that are in the bucket, whole.
        present: Vec<String>,
    },
    /// Makes a snapshot from a backup on a node; a resource of it, too, unless only the snapshot is wanted.
    RestoreBackup {
        remote: RemoteName,
        found: Found,
        snapshot: SnapshotName,
        to: ResourceName,
        group: Option<GroupName>,
        node: NodeName,
        pools: BTreeMap<PoolName, PoolName>,
        download_only: bool,
    },
    /// Gives up what is being shipped: all with the remote, or what is named.
    AbortBackups {
        remote: RemoteName,
        name: Option<ResourceName>,
        snapshot: Option<SnapshotName>,
        uploads: bool,
        downloads: bool,
    },
    /// Takes a snapshot, or takes one that there is, and ships it to another cluster.
    ShipSnapshot {
        name: ResourceName,
        remote: RemoteName,
        /// `back_` and the stamp if there is none.
        snapshot: Option<SnapshotName>,
        /// `yyyyMMdd_HHmmss`.
        stamp: String,
        /// The node that is to ship it.
        node: Option<NodeName>,
        to: NewSending,
    },
    /// Takes note of where another cluster waits for a snapshot, and of what it has to compare it with; or
    /// why it does not take it.
    NoteDoor {
        name: ResourceName,
        snapshot: SnapshotName,
        remote: RemoteName,
        token: Generation,
        door: Result<(Door, Option<String>), String>,
    },
    /// Takes note that another cluster knows that a shipment has come to nothing, or can not be told.
    NoteClosed { name: ResourceName, snapshot: SnapshotName, remote: RemoteName, token: Generation },
    /// Has a node receive a snapshot that another cluster ships. One that is known already is left as it is.
    ReceiveSnapshot { remote: RemoteName, found: Found, snapshot: NewReceiving },
    /// Gives up what another cluster ships, for it has given it up.
    AbortReceived { cluster: String, shipment: String },
    /// Takes note that backups were deleted: nothing builds on them any more.
    ForgetBackups { remote: RemoteName, backups: Vec<String> },

    /// Times at which backups are made, once that is switched on somewhere.
    CreateSchedule { name: ScheduleName, schedule: NewSchedule },
    /// Changes what is given of a schedule.
    ModifySchedule { name: ScheduleName, schedule: ScheduleEdit },
    /// Removes a schedule everywhere. What it has made stays, and what is being made goes on.
    DeleteSchedule { name: ScheduleName },
    /// Says that backups are, or are not, made with a remote by a schedule, of everything below a level
    /// that says nothing else.
    SetSwitch {
        level: Level,
        remote: RemoteName,
        schedule: ScheduleName,
        on: bool,
        /// The node that uploads them, if it can.
        node: Option<NodeName>,
    },
    /// Has a level say nothing of that any more: the one above decides.
    RemoveSwitch { level: Level, remote: RemoteName, schedule: ScheduleName },
    /// Begins the backup that is due, now that somebody has looked into the bucket: with the backups
    /// of the resource definition that are there, whole, or why that can not be told.
    RunSchedule {
        name: ResourceName,
        remote: RemoteName,
        schedule: ScheduleName,
        present: Result<Vec<String>, String>,
    },
    /// Takes note of what became of full backups that are to go from a remote: what was deleted with
    /// them, or why they are not.
    NoteRemoved {
        name: ResourceName,
        remote: RemoteName,
        schedule: ScheduleName,
        backups: Vec<String>,
        gone: Result<Vec<String>, String>,
    },

    /// Changes an instance of the key-value store; made with its first key, gone with its last.
    ModifyStore { name: StoreName, edit: PropsEdit },
    /// Removes an instance of the key-value store.
    DeleteStore { name: StoreName },
    /// An external file, new or changed.
    PutFile { path: FilePath, content: Vec<u8> },
    /// Removes an external file.
    DeleteFile { path: FilePath },
    /// Has an external file put on every node that has the resource, or not any more.
    DeployFile { path: FilePath, name: ResourceName, deploy: bool },

    /// Takes note of what agents have reported about a resource definition: what is done is no
    /// longer wanted.
    Settle { name: ResourceName },
    /// Does what is due by the time of day: evictions, replicas that are missing, backups.
    Tick,
}

impl Command {
    /// The volume numbers and node ids that it names are within their ranges.
    pub(crate) fn volume_number(number: u16) -> Option<VolumeNr> {
        (number <= VolumeNr::MAX.0).then_some(VolumeNr(number))
    }
}
