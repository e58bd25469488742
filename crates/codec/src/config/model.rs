//! One node's view of its configuration: plain data, checked, nothing left to look up. It travels
//! over the control socket as it is.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use vocab::options::{DeviceOptions, DiskOptions, NetOptions, PeerDeviceOptions, ResourceOptions};
use vocab::{Minor, NodeId, VolumeNr};

use crate::admin::fields;

/// A resource as configured for one node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ResourceConfig {
    /// Its name: `0-9A-Za-z+._-`, at most 127 bytes.
    pub name: String,
    /// This node's id.
    #[serde(with = "fields::node_id")]
    pub node_id: NodeId,
    /// This node's name in the configuration.
    pub host: String,
    /// Options of the resource.
    #[serde(with = "fields::options")]
    pub options: ResourceOptions,
    /// Programs that are called when something happens.
    #[serde(default, skip_serializing_if = "Handlers::is_none")]
    pub handlers: Handlers,
    /// Its volumes, ascending.
    pub volumes: Vec<VolumeConfig>,
    /// The nodes it is connected with, ascending by node id.
    pub peers: Vec<PeerConfig>,
}

/// Who knows what is to be called when something happens.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Handlers {
    /// These commands for a shell, by the name of the handler.
    Commands(BTreeMap<String, String>),
    /// The helper program of the engine, `drbdadm`.
    Helper,
}

impl Handlers {
    /// Nothing is called.
    pub fn is_none(&self) -> bool {
        matches!(self, Handlers::Commands(commands) if commands.is_empty())
    }
}

impl Default for Handlers {
    fn default() -> Handlers {
        Handlers::Commands(BTreeMap::new())
    }
}

/// A volume on one node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct VolumeConfig {
    /// Its number.
    #[serde(with = "fields::volume")]
    pub nr: VolumeNr,
    /// Its minor on this node.
    #[serde(with = "fields::minor")]
    pub minor: Minor,
    /// The device name: `/dev/drbdN` unless the configuration names another.
    pub device: String,
    /// Options of the device; `diskless` is set iff there is no backing disk.
    #[serde(with = "fields::options")]
    pub device_options: DeviceOptions,
    /// The disk, or `None` for `disk none`.
    pub backing: Option<BackingConfig>,
}

/// A backing disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BackingConfig {
    /// Path of the data device.
    pub disk: String,
    /// Where the metadata lives.
    pub meta_disk: MetaDisk,
    /// Options of the disk.
    #[serde(with = "fields::options")]
    pub options: DiskOptions,
    /// It is encrypted: the disk is what its LUKS2 header stands before. Its key is nowhere in a configuration.
    #[serde(default, skip_serializing_if = "fields::is_false")]
    pub luks: bool,
}

/// Where the metadata of a disk lives (metadata §2).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
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
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PeerConfig {
    /// Its id.
    #[serde(with = "fields::node_id")]
    pub node_id: NodeId,
    /// Its name, which is the connection's name too.
    pub name: String,
    /// Address pairs, in the order they are tried. At least one.
    pub paths: Vec<PathConfig>,
    /// Options of the connection.
    #[serde(with = "fields::options")]
    pub net: NetOptions,
    /// Per volume, ascending; the same volumes as the resource's.
    pub volumes: Vec<PeerVolumeConfig>,
}

/// One path of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PathConfig {
    /// This node listens here and connects from this address.
    pub local: SocketAddr,
    /// The peer as seen from here.
    pub remote: SocketAddr,
}

/// A volume towards one peer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PeerVolumeConfig {
    /// The volume.
    #[serde(with = "fields::volume")]
    pub nr: VolumeNr,
    /// The peer is diskless by intent; `options.bitmap` is `false` then.
    pub diskless: bool,
    /// Options of the peer device.
    #[serde(with = "fields::options")]
    pub options: PeerDeviceOptions,
}
