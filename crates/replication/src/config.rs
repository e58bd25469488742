//! Configuration of one resource as seen by one node.

use vocab::options::{DiskOptions, NetOptions, PeerDeviceOptions, ResourceOptions};
use vocab::{HandlerSet, Minor, NodeId, VolumeNr};

/// A resource.
#[derive(Clone, Debug)]
pub struct ResourceConfig {
    /// Name, for messages only.
    pub name: String,
    /// This node.
    pub node_id: NodeId,
    /// Options.
    pub options: ResourceOptions,
    /// Events that there is a handler for.
    pub handlers: HandlerSet,
    /// Volumes, ascending.
    pub volumes: Vec<VolumeConfig>,
    /// Peers, ascending by node id.
    pub peers: Vec<PeerConfig>,
}

/// A volume.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// Number.
    pub nr: VolumeNr,
    /// Minor.
    pub minor: Minor,
    /// Meant to be without a disk on this node ("client").
    pub diskless: bool,
    /// Options of its disk.
    pub disk: DiskOptions,
}

/// A peer.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Its node id.
    pub node_id: NodeId,
    /// Its name, for messages.
    pub name: String,
    /// Options of the connection.
    pub net: NetOptions,
    /// Options per volume; a volume not listed has the defaults. `bitmap: false` says that the
    /// peer is meant to have no disk.
    pub devices: Vec<(VolumeNr, PeerDeviceOptions)>,
}
