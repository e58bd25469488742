//! The state of resources as operators see it (semantics §12), in the JSON shape of
//! `drbdsetup status --json` (drbdsetup contract §3.2). Keys that drbdsetup's JSON lacks and its
//! text has (`backing-dev`, `blocked`, …) are added under the text's names.
//!
//! Sizes and traffic are KiB unless noted.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use vocab::{
    ConnState, DiskState, Minor, NodeId, ReplState, Role, Suspended, UnknownName, VolumeNr,
};

use super::fields;

/// A resource with everything below it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ResourceStatus {
    /// Its name.
    pub name: String,
    /// This node's id.
    #[serde(with = "fields::node_id")]
    pub node_id: NodeId,
    /// This node's role.
    #[serde(with = "fields::word")]
    pub role: Role,
    /// Why I/O is suspended.
    #[serde(flatten, with = "suspended")]
    pub suspended: Suspended,
    /// All I/O fails until the role changes.
    pub force_io_failures: bool,
    /// How writes are ordered on the backing disks.
    #[serde(with = "fields::word")]
    pub write_ordering: WriteOrdering,
    /// A promotion would be granted now (drbdsetup contract §3.5).
    #[serde(default)]
    pub may_promote: bool,
    /// How good a Primary this node would make; 0 is none at all.
    #[serde(default)]
    pub promotion_score: u32,
    /// Volumes, ascending.
    pub devices: Vec<DeviceStatus>,
    /// Connections, ascending by node id.
    pub connections: Vec<ConnectionStatus>,
}

/// A volume on this node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DeviceStatus {
    /// Its number.
    #[serde(with = "fields::volume")]
    pub volume: VolumeNr,
    /// Its minor.
    #[serde(with = "fields::minor")]
    pub minor: Minor,
    /// State of its disk.
    #[serde(with = "fields::word")]
    pub disk_state: DiskState,
    /// Diskless by intent.
    pub client: bool,
    /// Held open by an application; `None` if not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<bool>,
    /// Path of the backing device, `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing_dev: Option<String>,
    /// This partition has quorum for the volume.
    pub quorum: bool,
    /// Effective size.
    pub size: u64,
    /// Read from the backing disk.
    pub read: u64,
    /// Written to the backing disk.
    pub written: u64,
    /// Activity log transactions.
    pub al_writes: u64,
    /// Bitmap blocks written.
    pub bm_writes: u64,
    /// Superblocks written; `None` if not known. DRBD does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sb_writes: Option<u64>,
    /// Application requests accepted and not completed.
    pub upper_pending: u64,
    /// Requests in the backing device.
    pub lower_pending: u64,
    /// Activity log updates rest because every block is out-of-sync towards all absent peers.
    #[serde(default)]
    pub al_suspended: bool,
    /// Where new I/O would wait.
    #[serde(default, with = "fields::word")]
    pub blocked: Blocked,
}

/// A connection to a peer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ConnectionStatus {
    /// The peer's id.
    #[serde(with = "fields::node_id")]
    pub peer_node_id: NodeId,
    /// The connection's name: the peer's.
    pub name: String,
    /// Its state.
    #[serde(with = "fields::word")]
    pub connection_state: ConnState,
    /// The socket is congested.
    pub congested: bool,
    /// The peer's role; Unknown unless connected.
    #[serde(with = "fields::word")]
    pub peer_role: Role,
    /// Encrypted; `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<bool>,
    /// Sectors of application data sent and not acknowledged.
    pub ap_in_flight: u64,
    /// Sectors of resync data sent and not acknowledged.
    pub rs_in_flight: u64,
    /// Address pairs.
    #[serde(default)]
    pub paths: Vec<PathStatus>,
    /// Volumes, ascending.
    #[serde(rename = "peer_devices")]
    pub peer_devices: Vec<PeerDeviceStatus>,
}

/// One path of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathStatus {
    /// This node's end.
    #[serde(with = "endpoint")]
    pub this_host: SocketAddr,
    /// The peer's end.
    #[serde(with = "endpoint")]
    pub remote_host: SocketAddr,
    /// In use.
    pub established: bool,
}

/// A volume towards one peer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PeerDeviceStatus {
    /// The volume.
    #[serde(with = "fields::volume")]
    pub volume: VolumeNr,
    /// Replication state.
    #[serde(with = "fields::word")]
    pub replication_state: ReplState,
    /// State of the peer's disk.
    #[serde(with = "fields::word")]
    pub peer_disk_state: DiskState,
    /// The peer is diskless by intent.
    pub peer_client: bool,
    /// Why a resync rests.
    #[serde(with = "fields::word")]
    pub resync_suspended: ResyncSuspended,
    /// Payload received.
    pub received: u64,
    /// Payload sent.
    pub sent: u64,
    /// Known to differ.
    pub out_of_sync: u64,
    /// Requests sent to the peer and not acknowledged.
    pub pending: u64,
    /// Requests of the peer that this node has not acknowledged.
    pub unacked: u64,
    /// `sync` is there.
    pub has_sync_details: bool,
    /// `verify` is there.
    pub has_online_verify_details: bool,
    /// Share of the volume not out-of-sync, percent.
    pub percent_in_sync: f64,
    /// While a resync or verify runs or is paused.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncDetails>,
    /// While a verify runs.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifyDetails>,
}

/// Progress of a resync or verify. Rates are MiB/s and must be finite.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SyncDetails {
    /// Work when it began, sectors.
    pub rs_total: u64,
    /// Time since it began, milliseconds.
    pub rs_dt_start_ms: u64,
    /// Of that, time it was paused, milliseconds.
    pub rs_paused_ms: u64,
    /// Time since the older speed mark, milliseconds.
    pub rs_dt0_ms: u64,
    /// Work done since the older speed mark, sectors.
    pub rs_db0_sectors: u64,
    /// Time since the younger speed mark, milliseconds.
    pub rs_dt1_ms: u64,
    /// Work done since the younger speed mark, sectors.
    pub rs_db1_sectors: u64,
    /// Sectors that could not be synced.
    #[serde(default)]
    pub rs_failed: u64,
    /// Sectors found equal by digest.
    #[serde(default)]
    pub rs_same_csum: u64,
    /// Rate the controller aims at.
    #[serde(default)]
    pub want: f64,
    /// Rate since the older mark.
    #[serde(default, rename = "db0/dt0 [MiB/s]")]
    pub rate0: f64,
    /// Rate since the younger mark.
    #[serde(default, rename = "db1/dt1 [MiB/s]")]
    pub rate1: f64,
    /// Time left; [`SyncDetails::ETA_UNKNOWN`] if not known.
    pub estimated_seconds_to_finish: u64,
    /// Rate since it began.
    #[serde(default, rename = "db/dt [MiB/s]")]
    pub rate: f64,
    /// Share done, percent.
    pub percent_resync_done: f64,
}

impl SyncDetails {
    /// What drbdsetup prints for a time it can not tell.
    pub const ETA_UNKNOWN: u64 = 987_654_321;
}

/// Progress of a verify, sectors.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct VerifyDetails {
    /// Where it began.
    pub ov_start_sector: u64,
    /// Where it will end.
    pub ov_stop_sector: u64,
    /// Where it is.
    pub ov_position: u64,
    /// What is left.
    pub ov_left: u64,
    /// What was skipped because it was being written.
    #[serde(default)]
    pub ov_skipped: u64,
}

/// How writes are ordered on the backing disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WriteOrdering {
    /// Not at all, for instance without a disk.
    #[default]
    None,
    /// By waiting for earlier writes.
    Drain,
    /// By waiting, then flushing the disk's cache.
    Flush,
    /// By barriers.
    Barrier,
}

const ORDERINGS: [(WriteOrdering, &str); 4] = [
    (WriteOrdering::None, "none"),
    (WriteOrdering::Drain, "drain"),
    (WriteOrdering::Flush, "flush"),
    (WriteOrdering::Barrier, "barrier"),
];

impl fmt::Display for WriteOrdering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = ORDERINGS.iter().find(|(ordering, _)| ordering == self);
        f.write_str(row.expect("the table has every ordering").1)
    }
}

impl FromStr for WriteOrdering {
    type Err = UnknownName;
    fn from_str(word: &str) -> Result<WriteOrdering, UnknownName> {
        let row = ORDERINGS.iter().find(|(_, name)| *name == word);
        row.map(|row| row.0).ok_or_else(|| unknown("write ordering", word))
    }
}

fn unknown(kind: &'static str, word: &str) -> UnknownName {
    UnknownName { kind, word: word.to_owned() }
}

macro_rules! flags {
    ($(#[$meta:meta])* $name:ident, $kind:literal { $($(#[$fmeta:meta])* $field:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name { $($(#[$fmeta])* pub $field: bool,)+ }

        impl $name {
            /// True if any flag is set.
            pub const fn any(self) -> bool {
                $(self.$field)||+
            }
        }

        impl fmt::Display for $name {
            /// `no`, or the words joined by commas.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let words = [$((self.$field, $word)),+];
                let words: Vec<&str> = words.iter().filter(|w| w.0).map(|w| w.1).collect();
                if words.is_empty() { f.write_str("no") } else { f.write_str(&words.join(",")) }
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;
            fn from_str(text: &str) -> Result<$name, UnknownName> {
                let mut flags = $name::default();
                if text == "no" {
                    return Ok(flags);
                }
                for word in text.split(',') {
                    match word {
                        $($word => flags.$field = true,)+
                        _ => return Err(unknown($kind, text)),
                    }
                }
                Ok(flags)
            }
        }
    };
}

flags! {
    /// Why a resync rests.
    ResyncSuspended, "reason to suspend a resync" {
        /// This node's operator paused it.
        user = "user",
        /// The peer's operator did.
        peer = "peer",
        /// It waits for another volume.
        dependency = "dependency",
        /// Too many resyncs run.
        max_parallel = "max-parallel",
    }
}

flags! {
    /// Where new I/O of a volume would wait.
    Blocked, "place where I/O is blocked" {
        /// In the engine.
        upper = "upper",
        /// In the backing device.
        lower = "lower",
    }
}

/// Suspension as five booleans in the resource's object.
mod suspended {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct Fields {
        suspended: bool,
        suspended_user: bool,
        suspended_no_data: bool,
        suspended_fencing: bool,
        suspended_quorum: bool,
    }

    pub(super) fn serialize<S: Serializer>(value: &Suspended, s: S) -> Result<S::Ok, S::Error> {
        let fields = Fields {
            suspended: value.any(),
            suspended_user: value.user,
            suspended_no_data: value.no_data,
            suspended_fencing: value.fencing,
            suspended_quorum: value.quorum || value.uuid_bridge,
        };
        fields.serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Suspended, D::Error> {
        let fields = Fields::deserialize(d)?;
        Ok(Suspended {
            user: fields.suspended_user,
            no_data: fields.suspended_no_data,
            fencing: fields.suspended_fencing,
            quorum: fields.suspended_quorum,
            uuid_bridge: false,
        })
    }
}

/// `{"address":…,"port":…,"family":"ipv4"|"ipv6"}`.
mod endpoint {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Fields {
        address: IpAddr,
        port: u16,
        family: String,
    }

    pub(super) fn serialize<S: Serializer>(value: &SocketAddr, s: S) -> Result<S::Ok, S::Error> {
        let family = if value.is_ipv4() { "ipv4" } else { "ipv6" }.to_owned();
        Fields { address: value.ip(), port: value.port(), family }.serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<SocketAddr, D::Error> {
        let fields = Fields::deserialize(d)?;
        Ok(SocketAddr::new(fields.address, fields.port))
    }
}
