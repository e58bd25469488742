//! One node's view of its configuration: plain data, checked, nothing left to look up.

use std::net::SocketAddr;

use vocab::options::{DeviceOptions, DiskOptions, NetOptions, PeerDeviceOptions, ResourceOptions};
use vocab::{Minor, NodeId, VolumeNr};

/// A resource as configured for one node.
#[derive(Clone, PartialEq, Debug)]
pub struct ResourceConfig {
    /// Its name: `0-9A-Za-z+._-`, at most 127 bytes.
    pub name: String,
    /// This node's id.
    pub node_id: NodeId,
    /// This node's name in the configuration.
    pub host: String,
    /// Options of the resource.
    pub options: ResourceOptions,
    /// Its volumes, ascending.
    pub volumes: Vec<VolumeConfig>,
    /// The nodes it is connected with, ascending by node id.
    pub peers: Vec<PeerConfig>,
}

/// A volume on one node.
#[derive(Clone, PartialEq, Debug)]
pub struct VolumeConfig {
    /// Its number.
    pub nr: VolumeNr,
    /// Its minor on this node.
    pub minor: Minor,
    /// The device name: `/dev/drbdN` unless the configuration names another.
    pub device: String,
    /// Options of the device; `diskless` is set iff there is no backing disk.
    pub device_options: DeviceOptions,
    /// The disk, or `None` for `disk none`.
    pub backing: Option<BackingConfig>,
}

/// A backing disk.
#[derive(Clone, PartialEq, Debug)]
pub struct BackingConfig {
    /// Path of the data device.
    pub disk: String,
    /// Where the metadata lives.
    pub meta_disk: MetaDisk,
    /// Options of the disk.
    pub options: DiskOptions,
}

/// Where the metadata of a disk lives (metadata §2).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum MetaDisk {
    /// At the end of the data device.
    Internal,
    /// On a device of its own.
    External {
        /// Path of the metadata device.
        device: String,
        /// Slot of 128 MiB within it, or `None` if the device holds one volume's metadata only.
        index: Option<u32>,
    },
}

/// A peer and the connection to it.
#[derive(Clone, PartialEq, Debug)]
pub struct PeerConfig {
    /// Its id.
    pub node_id: NodeId,
    /// Its name, which is the connection's name too.
    pub name: String,
    /// Address pairs, in the order they are tried. At least one.
    pub paths: Vec<PathConfig>,
    /// Options of the connection.
    pub net: NetOptions,
    /// Per volume, ascending; the same volumes as the resource's.
    pub volumes: Vec<PeerVolumeConfig>,
}

/// One path of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PathConfig {
    /// This node listens here and connects from this address.
    pub local: SocketAddr,
    /// The peer as seen from here.
    pub remote: SocketAddr,
}

/// A volume towards one peer.
#[derive(Clone, PartialEq, Debug)]
pub struct PeerVolumeConfig {
    /// The volume.
    pub nr: VolumeNr,
    /// The peer is diskless by intent; `options.bitmap` is `false` then.
    pub diskless: bool,
    /// Options of the peer device.
    pub options: PeerDeviceOptions,
}
