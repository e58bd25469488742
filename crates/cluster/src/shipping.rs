//! Snapshots that are shipped: to stores of objects, as backups, and to other clusters; where they go, and
//! how far each is (control plane §8.4).
//!
//! What is shipped belongs to its snapshot definition: an upload by the remote that it goes to, a download
//! for a snapshot that is made from a backup. Agents do it by themselves; what they report ends it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use vocab::{Bytes, NodeId, VolumeNr};

use crate::layer::Layer;
use crate::name::*;
use crate::objects::{Generation, Millis, Props, SnapshotDefinition, Uuid, words};
use crate::row;

/// Key by which an operator says how many backups a node makes at the same time; -1 or none: any number.
pub const MAX_CONCURRENT: &str = "BackupShipping/MaxConcurrentBackupsPerNode";
/// The controller's property that has the cluster's id.
pub const CLUSTER_ID: &str = "Cluster/LocalID";
/// Key by which an operator says at which TCP ports nodes receive what other clusters ship to them.
pub const PORTS: &str = "SnapshotShipping/TcpPortRange";
/// Those ports if nobody says anything: LINSTOR's.
pub const DEFAULT_PORTS: &str = "12000-12999";
/// Key of what the names of a backup's objects end with.
pub const KEY_SUFFIX: &str = "BackupShipping/S3KeySuffix";

/// A bucket in a store that speaks S3. Keys are encrypted under the master key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bucket {
    /// URL of the store.
    pub endpoint: String,
    /// The bucket's name.
    pub bucket: String,
    /// The store's region.
    pub region: String,
    /// The bucket is in the path of addresses, and not in the host's name.
    pub path_style: bool,
    /// Name of the key that is used, sealed.
    pub access_key: String,
    /// The key, sealed.
    pub secret_key: String,
}

/// Another cluster, or this one. What is secret is encrypted under the master key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OtherCluster {
    /// URL of its REST API, with nobody's name in it.
    pub url: String,
    /// Its id, if that is known: by which it is known again when it ships something to this one.
    #[serde(default)]
    pub id: Option<String>,
    /// A token of its REST API, sealed, if it wants one.
    #[serde(default)]
    pub token: Option<String>,
    /// Its master passphrase, sealed: for the keys of encrypted volumes that it ships to this one.
    #[serde(default)]
    pub passphrase: Option<String>,
}

/// What a remote is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Place {
    /// Backups are kept there.
    #[serde(rename = "bucket")]
    Bucket(Bucket),
    /// Snapshots are shipped there, or come from there.
    #[serde(rename = "cluster")]
    Cluster(OtherCluster),
}

/// Where snapshots are shipped to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Remote {
    /// Its name.
    pub name: RemoteName,
    /// Unique id.
    pub uuid: Uuid,
    /// What it is.
    #[serde(flatten)]
    pub place: Place,
    /// Goes when nothing is shipped with it any more.
    #[serde(default)]
    pub deleting: bool,
}

impl Remote {
    /// The bucket, if it is one.
    pub fn bucket(&self) -> Option<&Bucket> {
        match &self.place {
            Place::Bucket(bucket) => Some(bucket),
            Place::Cluster(_) => None,
        }
    }

    /// The other cluster, if it is one.
    pub fn cluster(&self) -> Option<&OtherCluster> {
        match &self.place {
            Place::Bucket(_) => None,
            Place::Cluster(cluster) => Some(cluster),
        }
    }
}

words! {
    /// How far a shipment is, in LINSTOR's words.
    Phase {
        /// It waits for its snapshot, or for its turn.
        Waiting = "Prepare Shipping",
        /// Data are on their way.
        Shipping = "Shipping",
        /// Data are there, and their description is on its way.
        Finishing = "Uploading Metadata",
        /// It is done.
        Success = "Success",
        /// It could not be done.
        Failed = "Failed",
        /// It is being given up.
        Aborting = "Aborting",
        /// It was given up.
        Aborted = "Aborted",
    }
}

impl Phase {
    /// True until nothing more happens.
    pub const fn is_active(self) -> bool {
        !matches!(self, Phase::Success | Phase::Failed | Phase::Aborted)
    }

    /// True while an agent works on it, as far as is known.
    pub const fn is_running(self) -> bool {
        matches!(self, Phase::Shipping | Phase::Finishing | Phase::Aborting)
    }
}

/// Where a node listens for a snapshot that is shipped to it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Door {
    /// Its address.
    pub address: IpAddr,
    /// The TCP port.
    pub port: u16,
    /// SHA-256 of its certificate, in hexadecimal digits.
    pub fingerprint: String,
}

/// What is asked of another cluster that is to get a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sending {
    /// What both clusters know this shipment by.
    pub id: Uuid,
    /// The resource definition there.
    pub to: ResourceName,
    /// The snapshot there.
    pub snapshot: SnapshotName,
    /// The node that gets it; the other cluster chooses if there is none.
    #[serde(default)]
    pub node: Option<NodeName>,
    /// The network interface of that node through which it gets it.
    #[serde(default)]
    pub net_if: Option<NetIfName>,
    /// The pool for all volumes that `pools` says nothing of.
    #[serde(default)]
    pub pool: Option<PoolName>,
    /// Pools there, by what the pools are called here.
    #[serde(default)]
    pub pools: BTreeMap<PoolName, PoolName>,
    /// The resource group there.
    #[serde(default)]
    pub group: Option<GroupName>,
    /// Nothing is made of the snapshot there.
    pub download_only: bool,
    /// Only what has changed is shipped, if the other cluster has something to compare with.
    pub incremental: bool,
    /// By what the sender shows that it is the one, encrypted under the master key.
    pub secret: String,
    /// Where it is waited for, once the other cluster has said so.
    #[serde(default)]
    pub door: Option<Door>,
    /// The other cluster need not be told any more that it has come to nothing.
    #[serde(default)]
    pub closed: bool,
}

/// What is received from another cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Receiving {
    /// The id of that cluster.
    pub cluster: String,
    /// What it knows the shipment by.
    pub shipment: String,
    /// What it is, there: by which it is found when another one is to be compared with it.
    pub origin: String,
    /// The snapshot here that it is compared with, and what that was there; none if all of it comes.
    #[serde(default)]
    pub base: Option<(SnapshotName, String)>,
    /// By what the sender shows that it is the one, encrypted under the master key.
    pub secret: String,
    /// Where the node listens.
    pub address: IpAddr,
    /// The TCP ports of which it takes one.
    pub ports: (u16, u16),
}

/// A backup of a snapshot that is made, or was; or that it is shipped to another cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Upload {
    /// The generation in which it was asked for: by which an agent knows it.
    pub token: Generation,
    /// The id of the backup.
    pub backup: String,
    /// When it was asked for.
    pub since: Millis,
    /// The node that ships it, or is to.
    pub node: Option<NodeName>,
    /// The snapshot that it is compared with, and the backup of that; none for a full one.
    pub base: Option<(SnapshotName, String)>,
    /// How far it is.
    pub phase: Phase,
    /// Why it could not be done.
    #[serde(default)]
    pub cause: Option<String>,
    /// The other cluster's part, if it goes to one. What it is compared with is then called as it is called
    /// towards that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sending: Option<Box<Sending>>,
}

impl Upload {
    /// What another cluster has to be told of it, if it has to.
    pub fn call(&self) -> Option<CallWhat> {
        let sending = self.sending.as_ref()?;
        match self.phase {
            Phase::Shipping if sending.door.is_none() => Some(CallWhat::Ask),
            Phase::Failed | Phase::Aborting | Phase::Aborted if !sending.closed => {
                Some(CallWhat::Close)
            }
            _ => None,
        }
    }
}

/// What another cluster is called for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CallWhat {
    /// To wait for a snapshot.
    Ask,
    /// To wait no longer.
    Close,
}

/// A snapshot that is made from a backup, or was; or that another cluster has shipped.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Download {
    /// The generation in which it was asked for.
    pub token: Generation,
    /// Where the backup is.
    pub remote: RemoteName,
    /// The backups that lead to it, the full one first, itself last.
    pub chain: Vec<String>,
    /// When it was asked for.
    pub since: Millis,
    /// The node that gets it.
    pub node: NodeName,
    /// Size of each backing volume in bytes.
    #[serde(with = "row::sizes")]
    pub sizes: BTreeMap<VolumeNr, Bytes>,
    /// Nothing is made of the snapshot.
    pub download_only: bool,
    /// How far it is.
    pub phase: Phase,
    /// Why it could not be done.
    #[serde(default)]
    pub cause: Option<String>,
    /// The other cluster's part, if it is shipped by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiving: Option<Box<Receiving>>,
}

/// A backup as it was found in its bucket: what is made of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Found {
    /// The backups that lead to it, the full one first, itself last.
    pub chain: Vec<String>,
    /// Layers from top to bottom.
    pub layers: Vec<Layer>,
    /// DRBD node id of the replica that it is of.
    #[serde(with = "row::node_id")]
    pub node_id: Option<NodeId>,
    /// Peers for which its metadata have bitmaps.
    pub peer_slots: u8,
    /// Properties of the resource definition.
    pub props: Props,
    /// Its volumes.
    #[serde(with = "row::by_volume")]
    pub volumes: BTreeMap<VolumeNr, FoundVolume>,
    /// Passphrases of encrypted volumes, encrypted under this cluster's master key.
    #[serde(default, with = "row::by_volume")]
    pub passphrases: BTreeMap<VolumeNr, String>,
}

/// A volume of a backup.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FoundVolume {
    /// Size in bytes, as users see it.
    #[serde(with = "row::bytes")]
    pub size: Bytes,
    /// That includes DRBD's metadata.
    pub gross_size: bool,
    /// Properties of the volume definition.
    pub props: Props,
    /// The pool that it was in.
    pub pool: PoolName,
    /// Size of the backing volume in bytes.
    #[serde(with = "row::bytes")]
    pub device: Bytes,
}

/// Where an agent ships a snapshot to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum UploadTo {
    /// As a backup.
    #[serde(rename = "bucket")]
    Bucket(Bucket),
    /// To another agent, which listens. Only for agents that say that they know it.
    #[serde(rename = "peer")]
    Peer(Peer),
}

/// Another agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Peer {
    /// Where it listens.
    pub door: Door,
    /// By what it knows who is to come, encrypted under the master key.
    pub secret: String,
}

/// Where an agent gets a snapshot from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DownloadFrom {
    /// From backups.
    #[serde(rename = "bucket")]
    Bucket(Bucket),
    /// From another agent, which comes. Only for agents that say that they know it.
    #[serde(rename = "peer")]
    Peer(Listen),
}

/// How an agent listens for another one. The sizes of the volumes are those that users see: the sender knows
/// how large they are with everything.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Listen {
    /// Where.
    pub address: IpAddr,
    /// The TCP ports of which it takes one.
    pub ports: (u16, u16),
    /// By what it knows who is to come, encrypted under the master key.
    pub secret: String,
    /// What the sender calls the snapshot.
    pub origin: String,
    /// The snapshot here that it is compared with, and what the sender calls that.
    #[serde(default)]
    pub base: Option<(SnapshotName, String)>,
}

/// What other clusters know a snapshot of a node by. Replicas are not the same to the byte, so it is of one.
pub fn origin(snapshot: &SnapshotDefinition, node: &NodeName) -> String {
    format!("{}/{node}", snapshot.uuid)
}

/// What an agent is to upload.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct UploadOrder {
    /// What it is known by.
    pub token: Generation,
    /// The snapshot.
    pub snapshot: SnapshotName,
    /// Where to.
    #[serde(flatten)]
    pub to: UploadTo,
    /// The id of the backup; for another agent, what the snapshot is called.
    pub backup: String,
    /// The snapshot that it is compared with, and the backup of that, or what it is called; none for a full one.
    #[serde(default)]
    pub base: Option<(SnapshotName, String)>,
    /// What is written into the backup's description.
    pub described: Described,
}

/// What the description of a backup has beside its data.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Described {
    /// When it was asked for.
    pub since: Millis,
    /// The cluster's id.
    pub cluster: String,
    /// Unique id of the snapshot definition.
    pub uuid: String,
    /// Layers from top to bottom.
    pub layers: Vec<Layer>,
    /// DRBD node id of the replica.
    #[serde(with = "row::node_id")]
    pub node_id: Option<NodeId>,
    /// Peers for which its metadata have bitmaps.
    pub peer_slots: u8,
    /// Properties of the resource definition.
    pub props: Props,
    /// Its volumes.
    #[serde(with = "row::by_volume")]
    pub volumes: BTreeMap<VolumeNr, DescribedVolume>,
    /// The keys of encrypted volumes.
    #[serde(default)]
    pub keys: Option<DescribedKeys>,
}

/// The keys of encrypted volumes in a description.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DescribedKeys {
    /// The master key, encrypted under the master passphrase.
    pub master: String,
    /// Passphrases, encrypted under the master key.
    #[serde(with = "row::by_volume")]
    pub passphrases: BTreeMap<VolumeNr, String>,
}

/// A volume in a description.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DescribedVolume {
    /// Size in bytes, as users see it.
    #[serde(with = "row::bytes")]
    pub size: Bytes,
    /// That includes DRBD's metadata.
    pub gross_size: bool,
    /// Properties of the volume definition.
    pub props: Props,
    /// Its pool.
    pub pool: PoolName,
}

/// What an agent is to download. It makes a snapshot of it, of a volume that it makes for that alone.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DownloadOrder {
    /// What it, and the snapshot, are known by.
    pub token: Generation,
    /// The snapshot.
    pub snapshot: SnapshotName,
    /// Where from.
    #[serde(flatten)]
    pub from: DownloadFrom,
    /// The backups that lead to it, the full one first, itself last.
    pub chain: Vec<String>,
    /// Pool of each volume, and the size of the backing volume in bytes.
    pub volumes: BTreeMap<u16, (PoolName, crate::objects::Provider, u64)>,
    /// At the ends of the volumes are DRBD's metadata, which know peers that are none here.
    #[serde(default)]
    pub drbd: bool,
    /// Passphrases of encrypted volumes, encrypted under the master key.
    #[serde(default)]
    pub passphrases: BTreeMap<u16, String>,
}

/// What an agent says of something that it ships, or has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShipmentState {
    /// What it was asked for by.
    pub token: Generation,
    /// How far it is; none of those in which no agent works on it.
    pub phase: Phase,
    /// How much of the volumes was read or written, in percent.
    #[serde(default)]
    pub done_percent: u8,
    /// Why it could not be done, and what to do about it.
    #[serde(default)]
    pub cause: Option<String>,
    /// Where it listens for a sender, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub door: Option<Door>,
}
