//! Volumes as block devices of the engine's machine.

use serde::{Deserialize, Serialize};
use vocab::VolumeNr;

use super::fields;

/// A way to make a block device of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Face {
    /// The kernel's ublk driver.
    Ublk,
    /// The kernel's NBD client.
    Nbd,
    /// A loop device on a file of a FUSE file system.
    Fuse,
}

impl Face {
    /// All of them, the best one first.
    pub const ALL: [Face; 3] = [Face::Ublk, Face::Nbd, Face::Fuse];

    /// The name it is chosen by.
    pub const fn name(self) -> &'static str {
        match self {
            Face::Ublk => "ublk",
            Face::Nbd => "nbd",
            Face::Fuse => "fuse",
        }
    }
}

/// How a volume is to be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MapOptions {
    /// The device can only be read, and the node does not become Primary for it.
    pub read_only: bool,
    /// It has the names that DRBD's devices have, too.
    pub drbd_names: bool,
    /// Hardware queues, 1 to [`MapOptions::QUEUES_MAX`].
    pub queues: u16,
    /// Requests in flight in each, 1 to [`MapOptions::DEPTH_MAX`].
    pub depth: u16,
    /// The way to do it; the best one that there is if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub face: Option<Face>,
    /// The device is there though its volume is not open: the first request opens it, and it is closed when nobody has the
    /// device open any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub standby: bool,
}

impl MapOptions {
    /// Most queues.
    pub const QUEUES_MAX: u16 = 32;
    /// Most requests in flight in a queue.
    pub const DEPTH_MAX: u16 = 4096;

    /// These options for a device like that of `wanted`, which is there all the time, whatever its names.
    pub const fn as_standby_of(self, wanted: MapOptions) -> MapOptions {
        MapOptions { standby: true, drbd_names: self.drbd_names, ..wanted }
    }
}

impl Default for MapOptions {
    fn default() -> MapOptions {
        MapOptions {
            read_only: false,
            drbd_names: false,
            queues: 1,
            depth: 128,
            face: None,
            standby: false,
        }
    }
}

/// A volume that is mapped, or is to be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MapStatus {
    /// The resource.
    pub resource: String,
    /// The volume.
    #[serde(with = "fields::volume")]
    pub volume: VolumeNr,
    /// The device; `None` while it could not be mapped since the engine's start.
    pub device: Option<String>,
    /// Other names of the device.
    pub links: Vec<String>,
    /// It can only be read.
    pub read_only: bool,
    /// What made it.
    pub face: String,
    /// Who has it open.
    pub users: Vec<String>,
    /// Why there is no device.
    pub problem: Option<String>,
    /// What the device uses of what the kernel offers.
    #[serde(default)]
    pub features: Vec<String>,
    /// Reads since the device is served by this engine that the disk has put straight into the memory of
    /// their requests.
    #[serde(default)]
    pub reads_in_place: u64,
    /// How the volume is open, if the device is there though it may not be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby: Option<Standby>,
}

/// How the volume of a device is open that is there all the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standby {
    /// Not at all.
    Closed,
    /// For reading: no other node can become Primary.
    Reading,
    /// For writing: this node is Primary.
    Writing,
}

impl Standby {
    /// As it is shown.
    pub const fn name(self) -> &'static str {
        match self {
            Standby::Closed => "closed",
            Standby::Reading => "reading",
            Standby::Writing => "writing",
        }
    }
}

/// Whether devices can stand by.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct StandbyStatus {
    /// They can.
    pub usable: bool,
    /// Why not, and what to do.
    pub problem: Option<String>,
}

/// A way to offer volumes as block devices.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FaceStatus {
    /// Its name.
    pub name: String,
    /// It can be used here.
    pub usable: bool,
    /// Why not, and what to do.
    pub problem: Option<String>,
    /// What the kernel offers.
    pub features: Vec<String>,
}
