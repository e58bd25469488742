//! Where the time of requests goes, and how many there are: what `ashlar top` and the metrics are
//! made of.
//!
//! ```text
//! received ──► handed over ──► started ──────► last of the parallel ends ──► answered
//!    front end      admission, or     disk ──┤       completion
//!                   activity log      peers ─┘
//! ```
//!
//! Counters are exact. Histograms are of the requests that were timed; each of those counts for the
//! untimed ones before it, so that a histogram has about as many events as there were requests.
//! What a stage means exactly is in docs/design/observability.md.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use vocab::{Histogram, Minor, NodeId, VolumeNr};

use super::fields;

/// A resource's statistics since it came up on this node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ResourceStatistics {
    /// Its name.
    pub name: String,
    /// When they were taken, by a clock of the engine that begins anywhere, nanoseconds.
    pub taken_ns: u64,
    /// Volumes, ascending.
    pub volumes: Vec<VolumeStatistics>,
    /// Connections, ascending by node id.
    pub connections: Vec<ConnectionStatistics>,
}

/// A volume's statistics.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct VolumeStatistics {
    /// Its number.
    #[serde(with = "fields::volume")]
    pub volume: VolumeNr,
    /// Its minor.
    #[serde(with = "fields::minor")]
    pub minor: Minor,
    /// Requests of users accepted and not completed.
    pub in_flight: u64,
    /// Reads of users.
    pub reads: Traffic,
    /// Writes of users.
    pub writes: Traffic,
    /// Discards of users, in parts of at most 4 MiB.
    pub discards: Traffic,
    /// Zeroing by users, in parts of at most 4 MiB.
    pub zeroes: Traffic,
    /// Flushes by users; they have no bytes.
    pub flushes: Traffic,
    /// Writes of data that peers sent.
    pub replica_writes: Traffic,
    /// Where the time of reads goes; `None` before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Box<Waterfall>>,
    /// Where the time of writes goes; `None` before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<Box<Waterfall>>,
    /// Where the time of writes for peers goes; `None` before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<Box<ReplicaWaterfall>>,
}

/// Requests of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Requests handed to the resource.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Traffic {
    /// Counts a request.
    pub fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }
}

/// Where the time of reads or writes of users goes.
///
/// The disk and the peers work at the same time; the time between start and last end counts as
/// decided by the one that ended last. So the sums of all other stages and of all
/// [`Parallel::decided_ns`] are together the sum of `total`, to the nanosecond.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Waterfall {
    /// From received to answered.
    #[serde(with = "fields::histogram")]
    pub total: Histogram,
    /// Until the request was handed to the resource.
    #[serde(with = "fields::histogram")]
    pub front_end: Histogram,
    /// Until it started, unless it waited for the activity log: overlapping requests, suspended
    /// I/O, a new generation.
    #[serde(with = "fields::histogram")]
    pub admission: Histogram,
    /// Until it started, if it waited for the activity log. Nothing for reads.
    #[serde(with = "fields::histogram")]
    pub activity_log: Histogram,
    /// The local disk.
    pub disk: Parallel,
    /// Peers that requests were sent to, in the order of their first one.
    pub peers: Vec<PeerParallel>,
    /// From the last end until the answer was queued for the user.
    #[serde(with = "fields::histogram")]
    pub completion: Histogram,
}

/// One of those that work on a request at the same time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Parallel {
    /// From start to its own end, also where another one took longer.
    #[serde(with = "fields::histogram")]
    pub latency: Histogram,
    /// Time of the requests of which it was the last to end, nanoseconds.
    pub decided_ns: u64,
}

impl Parallel {
    /// [`Parallel::decided_ns`] as a duration.
    pub const fn decided(&self) -> Duration {
        Duration::from_nanos(self.decided_ns)
    }
}

/// A peer's part.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PeerParallel {
    /// The peer.
    #[serde(with = "fields::node_id")]
    pub peer: NodeId,
    /// From the packet's being queued until the acknowledgement, or the data of a read, had arrived.
    #[serde(flatten)]
    pub parallel: Parallel,
}

/// Where the time of writes for peers goes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ReplicaWaterfall {
    /// From the data's having arrived until the disk was asked: activity log, overlapping requests.
    #[serde(with = "fields::histogram")]
    pub wait: Histogram,
    /// The disk.
    #[serde(with = "fields::histogram")]
    pub disk: Histogram,
}

/// A connection's statistics.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ConnectionStatistics {
    /// The peer's id.
    #[serde(with = "fields::node_id")]
    pub peer_node_id: NodeId,
    /// The connection's name: the peer's.
    pub name: String,
    /// Bytes for the peer that the kernel has not taken yet, on the data socket.
    pub queued_bytes: u64,
    /// TCP's round trips on the data socket; `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip: Option<RoundTrip>,
}

/// What TCP knows of the way to a peer and back. What the peer does with a packet is not in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RoundTrip {
    /// The shortest of the last minutes, microseconds: the way itself.
    pub least_us: u32,
    /// The smoothed estimate, microseconds. Queues, and acknowledgements that TCP puts off (up to
    /// 40 ms while little is sent), are in it.
    pub smoothed_us: u32,
}

impl Waterfall {
    /// A peer's part, which begins with nothing.
    pub fn peer_mut(&mut self, peer: NodeId) -> &mut Parallel {
        let index = self.peers.iter().position(|p| p.peer == peer).unwrap_or_else(|| {
            self.peers.push(PeerParallel { peer, parallel: Parallel::default() });
            self.peers.len() - 1
        });
        &mut self.peers[index].parallel
    }

    /// What came after `earlier`, an older state of the same waterfall.
    pub fn since(&self, earlier: &Waterfall) -> Waterfall {
        let none = Parallel::default();
        let peers = self.peers.iter().map(|p| {
            let before = earlier.peers.iter().find(|e| e.peer == p.peer).map(|e| &e.parallel);
            PeerParallel { peer: p.peer, parallel: p.parallel.since(before.unwrap_or(&none)) }
        });
        Waterfall {
            total: self.total.since(&earlier.total),
            front_end: self.front_end.since(&earlier.front_end),
            admission: self.admission.since(&earlier.admission),
            activity_log: self.activity_log.since(&earlier.activity_log),
            disk: self.disk.since(&earlier.disk),
            peers: peers.collect(),
            completion: self.completion.since(&earlier.completion),
        }
    }

    /// The time of all stages together; equal to the sum of `total`.
    pub fn stages_sum(&self) -> Duration {
        let parallel: Duration = self.peers.iter().map(|p| p.parallel.decided()).sum();
        let serial = [&self.front_end, &self.admission, &self.activity_log, &self.completion];
        serial.into_iter().map(Histogram::sum).sum::<Duration>() + self.disk.decided() + parallel
    }
}

impl Parallel {
    fn since(&self, earlier: &Parallel) -> Parallel {
        let decided_ns = self.decided_ns.checked_sub(earlier.decided_ns);
        Parallel {
            latency: self.latency.since(&earlier.latency),
            decided_ns: decided_ns.unwrap_or(self.decided_ns),
        }
    }
}

impl ReplicaWaterfall {
    /// What came after `earlier`, an older state of the same.
    pub fn since(&self, earlier: &ReplicaWaterfall) -> ReplicaWaterfall {
        ReplicaWaterfall {
            wait: self.wait.since(&earlier.wait),
            disk: self.disk.since(&earlier.disk),
        }
    }
}
