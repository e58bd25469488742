//! What `ashlar doctor` asks an engine to measure, and the figures that come back.
//!
//! A command is a series of steps, each bounded by the time it states, so that whoever asked can
//! show progress and stop between two. Times are nanoseconds and sizes bytes unless a name says
//! otherwise; shares and averages are plain numbers.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use vocab::{NodeId, VolumeNr};

use super::fields;

/// Longest step an engine accepts, milliseconds.
pub const DOCTOR_STEP_MAX_MS: u32 = 60_000;

/// One thing to measure. No step writes to a volume or its disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case",
    tag = "step",
    deny_unknown_fields
)]
pub enum DoctorStep {
    /// Facts about machine and engine: [`DoctorFigures::Machine`].
    Machine,
    /// Looks on for so long and causes no load: [`DoctorFigures::Watch`].
    Watch {
        /// For so long.
        ms: u32,
    },
    /// Reads a backing disk, in bursts with pauses: [`DoctorFigures::Reads`].
    Reads {
        /// The volume.
        #[serde(with = "fields::volume")]
        volume: VolumeNr,
        /// For so long in all.
        ms: u32,
    },
    /// Writes to a new file without a name, on the same disks: [`DoctorFigures::Writes`].
    Scratch {
        /// The volume whose disk is meant.
        #[serde(with = "fields::volume")]
        volume: VolumeNr,
        /// Absolute path of the folder it is in.
        folder: String,
        /// For so long in all.
        ms: u32,
    },
    /// Sends to a peer that serves probes, and has it send: [`DoctorFigures::Network`].
    Probe {
        /// The peer.
        #[serde(with = "fields::node_id")]
        peer: NodeId,
        /// Where it serves.
        port: u16,
        /// For so long in all.
        ms: u32,
    },
    /// Serves probes of the resource's peers for so long from now on, at once answered with
    /// [`DoctorFigures::Serving`]. Asked again, it goes on.
    Serve {
        /// Where, at each address that the resource has on this node.
        port: u16,
        /// For so long.
        ms: u32,
    },
}

/// The answer to a [`DoctorStep`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DoctorFigures {
    /// To [`DoctorStep::Machine`].
    Machine(Machine),
    /// To [`DoctorStep::Watch`].
    Watch(Watch),
    /// To [`DoctorStep::Reads`].
    Reads(DiskReads),
    /// To [`DoctorStep::Scratch`].
    Writes(DiskWrites),
    /// To [`DoctorStep::Probe`].
    Network(Network),
    /// To [`DoctorStep::Serve`].
    Serving(Serving),
}

/// Equal operations, one after the other or several at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Series {
    /// Size of an operation.
    pub block: u32,
    /// Operations at a time.
    pub depth: u32,
    /// Operations done.
    pub operations: u64,
    /// Time they took, pauses left out.
    pub nanoseconds: u64,
    /// Half of them took at most so long.
    pub median: u64,
    /// 99 of 100 took at most so long.
    pub p99: u64,
}

impl Series {
    /// Operations per second; 0 if nothing was measured.
    pub fn per_second(&self) -> f64 {
        if self.nanoseconds == 0 {
            0.0
        } else {
            self.operations as f64 * 1e9 / self.nanoseconds as f64
        }
    }

    /// Throughput in MiB/s.
    pub fn mib_per_second(&self) -> f64 {
        self.per_second() * f64::from(self.block) / f64::from(1 << 20)
    }
}

/// Facts about the machine and the engine.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Machine {
    /// Release of the kernel.
    pub kernel: String,
    /// CPUs that are online; 0 if not known.
    pub cpus: u32,
    /// Clock source in use; empty if not known.
    pub clock_source: String,
    /// Frequency governors in use with their drivers, as `governor (driver)`; empty if the
    /// frequency is not ours to govern.
    pub governors: Vec<String>,
    /// Limit of locked memory of the engine; `None` is unlimited.
    pub locked_memory_limit: Option<u64>,
    /// Threads of the engine that were refused to pin their buffers.
    pub unpinned_threads: u32,
}

/// What went on while nobody but the users caused load.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Watch {
    /// For so long.
    pub nanoseconds: u64,
    /// Looks taken at what is in flight.
    pub samples: u32,
    /// Volumes, ascending.
    pub volumes: Vec<WatchedVolume>,
    /// Peers, ascending.
    pub peers: Vec<WatchedPeer>,
    /// Threads of the engine, by name.
    pub threads: Vec<WatchedThread>,
    /// Name of the thread that the resource belongs to.
    pub thread: String,
}

/// A volume while it was watched. Averages are of operations in flight.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct WatchedVolume {
    /// Its number.
    #[serde(with = "fields::volume")]
    pub volume: VolumeNr,
    /// Requests of users, from their acceptance to their completion.
    pub requests: f64,
    /// Reads in the local disk, whoever they are for.
    pub disk_reads: f64,
    /// Writes in the local disk.
    pub disk_writes: f64,
    /// Flushes and discards in the local disk.
    pub disk_flushes: f64,
    /// Writes of metadata in the local disk.
    pub disk_metadata: f64,
    /// Writes of peers that this node has not answered.
    pub unanswered: f64,
    /// Read from the local disk.
    pub read_kib: u64,
    /// Written to the local disk.
    pub written_kib: u64,
    /// Activity log transactions.
    pub al_writes: u64,
    /// What the kernel counted for the device, if there is a local disk and it is a block device
    /// or a file on one. Others may use it, too.
    pub device: Option<WatchedDevice>,
}

/// A block device while it was watched.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct WatchedDevice {
    /// Its name.
    pub name: String,
    /// Reads completed.
    pub reads: u64,
    /// Time of all reads together, milliseconds.
    pub read_ms: u64,
    /// Writes completed.
    pub writes: u64,
    /// Time of all writes together, milliseconds.
    pub write_ms: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Time of all flushes together, milliseconds.
    pub flush_ms: u64,
    /// Time with anything in flight, milliseconds.
    pub busy_ms: u64,
}

/// A connection while it was watched.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct WatchedPeer {
    /// The peer.
    #[serde(with = "fields::node_id")]
    pub peer: NodeId,
    /// Requests sent to it and not answered, on average, by volume.
    pub pending: Vec<f64>,
    /// Data of users sent to it and not answered, on average.
    pub pending_bytes: f64,
    /// Of the data stream, what was not sent yet, or the peer's machine has not confirmed, on
    /// average.
    pub unsent_bytes: f64,
    /// The data socket; `None` if there is no connection.
    pub data: Option<TcpFigures>,
    /// The last P_PING that was answered: how long that took.
    pub ping: Option<u64>,
}

/// What the kernel says of a TCP socket. Counters are differences over the time watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct TcpFigures {
    /// Smoothed round trip.
    pub rtt: u64,
    /// Shortest round trip lately.
    pub min_rtt: u64,
    /// Largest packet that fits the path, as far as known.
    pub path_mtu: u32,
    /// Largest segment sent.
    pub segment: u32,
    /// Largest segment that this node's interface takes.
    pub advertised_segment: u32,
    /// Bytes the peer's machine has confirmed.
    pub acked_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent again.
    pub resent_bytes: u64,
    /// Best recent rate of delivery, bytes per second.
    pub delivery_rate: u64,
    /// That rate was limited by what there was to send, not by the network.
    pub delivery_idle: bool,
    /// Time with anything unconfirmed.
    pub busy: u64,
    /// Of that, time in which the peer had no room to receive.
    pub receiver_limited: u64,
    /// Of that, time in which the send buffer was full.
    pub buffer_limited: u64,
    /// Send buffer.
    pub send_buffer: u64,
    /// Receive buffer.
    pub receive_buffer: u64,
}

/// A thread while it was watched.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct WatchedThread {
    /// Its name.
    pub name: String,
    /// Time on a CPU.
    pub running: u64,
    /// Time it waited for a CPU.
    pub waiting: u64,
}

/// Reads of a backing disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DiskReads {
    /// Its path.
    pub path: String,
    /// The page cache was bypassed. If not, figures may be those of memory.
    pub direct: bool,
    /// Completed writes may be lost with the power until they are flushed.
    pub volatile_cache: bool,
    /// Share of a file that has storage, percent. The rest is read without the disk.
    pub allocated_percent: u32,
    /// One after the other from one end to the other.
    pub sequential: Series,
    /// At random places, one at a time.
    pub random: Series,
    /// At random places, several at a time.
    pub random_deep: Series,
    /// Flushes with nothing to flush; `None` for a file, where that would not reach the disk.
    pub flush: Option<Series>,
}

/// Writes to a file on the disks of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DiskWrites {
    /// Path of the volume's disk.
    pub path: String,
    /// The page cache was bypassed. If not, figures may be those of memory.
    pub direct: bool,
    /// One after the other, each to a new place.
    pub sequential: Series,
    /// At random places, one at a time.
    pub random: Series,
    /// At random places, several at a time.
    pub random_deep: Series,
    /// Flushes, each after one small write.
    pub flush: Series,
}

/// A network between two nodes, measured beside the replication.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Network {
    /// This node's end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
    /// A block there, and a few bytes back.
    pub round_trip: Series,
    /// From this node to the peer; operations are bytes arrived, of size 1.
    pub to_peer: Series,
    /// From the peer to this node.
    pub from_peer: Series,
}

/// Probes that are served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Serving {
    /// Where.
    pub addresses: Vec<SocketAddr>,
    /// Probes answered there so far.
    pub answered: u64,
}
