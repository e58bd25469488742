//! Where the time of requests goes: some of them are timed, by watching what goes into the core and
//! what comes out of it (docs/design/observability.md).
//!
//! ```text
//! Waterfalls::begin ─► outputs: disk, packets ─► inputs: their ends ─► completed ─► answered
//! ```
//!
//! What the kernel tells (data, acknowledgements, ends of disk operations) counts as of the begin of
//! the turn that found it; what this thread does is timed with the clock, at most three times for a
//! request. Requests that are not timed cost a counter, and a look at the few that are.

use std::time::Duration;

use codec::admin::{ReplicaWaterfall, Traffic, VolumeStatistics, Waterfall};
use codec::wire::{BlockId, Packet};
use replication::io::{BufId, DiskOp, OpId};
use replication::{Input, Output};
use vocab::{Instant, MAX_NODES, Minor, NodeId, NodeMask, SectorRange, VolumeNr};

/// Requests timed at the same time, of one resource. With more in flight fewer are timed.
const TIMED_MAX: usize = 64;
/// One request of so many is timed on average, but for those that follow one at some distance.
const ONE_OF: u32 = 16;
/// If the last timed request began so long ago, the next one is timed, too.
const SELDOM: Duration = Duration::from_millis(1);

/// If the last timed request began so long ago, nothing is passed over: what was chosen while
/// requests came fast would be a long time without any.
const IDLE: Duration = Duration::from_millis(100);

/// Chooses which requests are timed.
///
/// Neither the distance of two nor their place among those that arrive together is fixed: a client
/// with a rhythm of its own would otherwise have the same one of its requests timed each time.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// Requests to be passed over.
    skip: u32,
    /// Requests passed over since the last one that was timed.
    passed: u32,
    last: Option<Instant>,
    random: u32,
}

impl Default for Sampler {
    fn default() -> Sampler {
        Sampler { skip: 0, passed: 0, last: None, random: 0x9E37_79B9 }
    }
}

impl Sampler {
    /// A request begins at `now`: for how many it counts if it is to be timed.
    fn pick(&mut self, now: Instant) -> Option<u64> {
        let since = self.last.map(|last| now.since(last));
        if self.skip > 0 && since.is_some_and(|since| since < IDLE) {
            self.skip -= 1;
            self.passed += 1;
            return None;
        }
        let seldom = since.is_none_or(|since| since >= SELDOM);
        (self.last, self.skip) = (Some(now), 0);
        if !seldom {
            // Xorshift: the mean of 0 to 2n - 2 is one less than n.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 17;
            self.random ^= self.random << 5;
            self.skip = self.random % (2 * ONE_OF - 1);
        }
        Some(u64::from(std::mem::take(&mut self.passed)) + 1)
    }
}

/// What is counted of a volume.
#[derive(Debug, Default)]
pub(crate) struct VolumeCounters {
    pub(crate) reads: Traffic,
    pub(crate) writes: Traffic,
    pub(crate) discards: Traffic,
    pub(crate) zeroes: Traffic,
    pub(crate) flushes: Traffic,
    pub(crate) replica_writes: Traffic,
    /// Requests of users that the core has completed.
    pub(crate) completed: u64,
    samplers: [Sampler; 3],
    /// Made with the first request: a volume that nobody uses shall cost nothing.
    read: Option<Box<Waterfall>>,
    write: Option<Box<Waterfall>>,
    replica: Option<Box<ReplicaWaterfall>>,
}

impl VolumeCounters {
    /// Requests of users that the core has and has not completed.
    fn in_flight(&self) -> u64 {
        let kinds = [self.reads, self.writes, self.discards, self.zeroes, self.flushes];
        kinds.iter().map(|kind| kind.requests).sum::<u64>().saturating_sub(self.completed)
    }

    /// If a request that begins at `now` is to be timed, for how many it counts.
    pub(crate) fn pick(&mut self, kind: Kind, now: Instant) -> Option<u64> {
        self.samplers[kind as usize].pick(now)
    }

    /// Adds a write for a peer.
    pub(crate) fn add_replica(&mut self, end: &ReplicaEnd) {
        let waterfall = self.replica.get_or_insert_default();
        waterfall.wait.record(end.wait, end.weight);
        waterfall.disk.record(end.disk, end.weight);
    }

    /// All of it, for those who ask.
    pub(crate) fn statistics(&self, volume: VolumeNr, minor: Minor) -> VolumeStatistics {
        VolumeStatistics {
            volume,
            minor,
            in_flight: self.in_flight(),
            reads: self.reads,
            writes: self.writes,
            discards: self.discards,
            zeroes: self.zeroes,
            flushes: self.flushes,
            replica_writes: self.replica_writes,
            read: self.read.clone(),
            write: self.write.clone(),
            replica: self.replica.clone(),
        }
    }

    /// Adds a user's request that was answered at `at`.
    fn add(&mut self, timed: &Timed, at: Instant) {
        let waterfall = match timed.kind {
            Kind::Read => self.read.get_or_insert_default(),
            Kind::Write | Kind::Replica => self.write.get_or_insert_default(),
        };
        timed.add_to(waterfall, at);
    }
}

/// What is timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A read of a user.
    Read,
    /// A write of a user's data.
    Write,
    /// A write of data that a peer sent.
    Replica,
}

/// The requests of a resource that are being timed.
#[derive(Debug, Default)]
pub(crate) struct Waterfalls {
    timed: Vec<Timed>,
    /// Those that the core has completed.
    completed: usize,
}

/// A request that is being timed.
#[derive(Debug)]
struct Timed {
    kind: Kind,
    volume: VolumeNr,
    /// As the core knows a user's request.
    id: u64,
    range: SectorRange,
    /// The data of a write.
    buf: Option<BufId>,
    /// Requests that it counts for.
    weight: u64,
    received: Instant,
    handed: Instant,
    started: Option<Instant>,
    /// It waited for the activity log when it could not start at once.
    awaits_log: bool,
    disk: Option<OpId>,
    disk_end: Option<Instant>,
    /// As peers know it.
    block: Option<BlockId>,
    /// Peers that it was sent to and that have not ended with it.
    asked: NodeMask,
    /// Peers that have.
    ended: NodeMask,
    /// When, by node id.
    ends: [Instant; MAX_NODES],
    completed: bool,
}

/// A request that begins.
pub(crate) struct Begin {
    pub(crate) kind: Kind,
    pub(crate) volume: VolumeNr,
    /// As the core knows a user's request; nothing of a peer's.
    pub(crate) id: u64,
    pub(crate) range: SectorRange,
    pub(crate) buf: Option<BufId>,
    /// Requests that it counts for.
    pub(crate) weight: u64,
    /// When its last byte was found to have arrived.
    pub(crate) received: Instant,
    /// When it was handed to the core.
    pub(crate) handed: Instant,
}

impl Waterfalls {
    /// True if nothing is timed, so that inputs and outputs need no look.
    pub(crate) fn is_empty(&self) -> bool {
        self.timed.is_empty()
    }

    /// Times a request, unless there are too many.
    pub(crate) fn begin(&mut self, begin: Begin) {
        if self.timed.len() >= TIMED_MAX {
            return;
        }
        let Begin { kind, volume, id, range, buf, weight, received, handed } = begin;
        self.timed.push(Timed {
            kind,
            volume,
            id,
            range,
            buf,
            weight,
            received,
            handed: handed.max(received),
            started: None,
            awaits_log: false,
            disk: None,
            disk_end: None,
            block: None,
            asked: NodeMask::EMPTY,
            ended: NodeMask::EMPTY,
            ends: [Instant::default(); MAX_NODES],
            completed: false,
        });
    }

    /// True if a user's request is timed, is not complete, and has not started.
    pub(crate) fn waits(&self, volume: VolumeNr, id: u64) -> bool {
        self.timed.iter().any(|t| t.is_user(volume, id) && t.started.is_none())
    }

    /// A user's request waits for the activity log.
    pub(crate) fn awaits_log(&mut self, volume: VolumeNr, id: u64) {
        if let Some(timed) = self.timed.iter_mut().find(|t| t.is_user(volume, id)) {
            timed.awaits_log = true;
        }
    }

    /// Looks at what the core is told in a turn that began at `now`. Gives the write for a peer
    /// that ends with it: its volume, how long it waited and how long the disk took.
    pub(crate) fn input(&mut self, input: &Input, now: Instant) -> Option<ReplicaEnd> {
        match input {
            Input::DiskDone { op, result } => {
                let index = self.timed.iter().position(|t| t.disk == Some(*op))?;
                let timed = &mut self.timed[index];
                timed.disk_end.get_or_insert(now);
                if timed.kind != Kind::Replica {
                    return None;
                }
                let timed = self.timed.swap_remove(index);
                let started = timed.started?.max(timed.received);
                result.is_ok().then(|| ReplicaEnd {
                    volume: timed.volume,
                    weight: timed.weight,
                    wait: started.since(timed.received),
                    disk: now.since(started),
                })
            }
            Input::Packet { peer, packet, .. } => {
                let block = match packet {
                    Packet::RecvAck(_, ack)
                    | Packet::WriteAck(_, ack)
                    | Packet::WriteAckInSync(_, ack)
                    | Packet::NegAck(_, ack)
                    | Packet::NegDreply(_, ack) => ack.block_id,
                    Packet::DataReply(_, data) => data.block_id,
                    _ => return None,
                };
                let timed = self.timed.iter_mut().find(|t| t.block == Some(block));
                if let Some(timed) = timed {
                    timed.peer_ended(*peer, now);
                }
                None
            }
            Input::LinkDown { peer, .. } => {
                self.peer_gone(*peer, now);
                None
            }
            _ => None,
        }
    }

    /// Looks at what the core wants done; `clock` has the time.
    pub(crate) fn output(&mut self, output: &Output, now: Instant, clock: fn() -> Instant) {
        match output {
            Output::Disk { volume, op, io } => {
                let timed = self.timed.iter_mut().find(|t| t.volume == *volume && t.is_for(io));
                if let Some(timed) = timed {
                    timed.started.get_or_insert_with(clock);
                    timed.disk = Some(*op);
                    timed.disk_end = None;
                }
            }
            Output::Send { peer, packet, payload } => {
                let (kind, nr, range, block) = match packet {
                    Packet::Data(nr, data) => (Kind::Write, nr, data.range, data.block_id),
                    Packet::DataRequest(nr, req) => (Kind::Read, nr, req.range, req.block_id),
                    _ => return,
                };
                let timed = self.timed.iter_mut().find(|t| {
                    (t.kind, t.volume, t.range) == (kind, *nr, range)
                        && t.buf == *payload
                        && !t.completed
                });
                if let Some(timed) = timed {
                    timed.started.get_or_insert_with(clock);
                    timed.block = Some(block);
                    timed.asked.insert(*peer);
                    timed.ended.remove(*peer);
                }
            }
            Output::CloseLink { peer } => self.peer_gone(*peer, now),
            Output::Complete { volume, id, result } => {
                let index = self.timed.iter().position(|t| t.is_user(*volume, *id));
                let Some(index) = index else { return };
                if result.is_ok() {
                    self.timed[index].completed = true;
                    self.completed += 1;
                } else {
                    // How long failing takes says nothing about the rest.
                    self.timed.swap_remove(index);
                }
            }
            // The connection of a peer's write was lost before its disk was asked.
            Output::Free(buf) => {
                self.timed.retain(|t| t.kind != Kind::Replica || t.buf != Some(*buf));
            }
            _ => {}
        }
    }

    /// Nothing more comes from the peer: it is done with what it was asked for.
    fn peer_gone(&mut self, peer: NodeId, now: Instant) {
        for timed in &mut self.timed {
            timed.peer_ended(peer, now);
        }
    }

    /// Users have the answers of all that the core has completed for a volume.
    pub(crate) fn answered(
        &mut self,
        volume: VolumeNr,
        counters: &mut VolumeCounters,
        clock: fn() -> Instant,
    ) {
        if self.completed == 0 {
            return;
        }
        let (at, before) = (clock(), self.timed.len());
        self.timed.retain(|timed| {
            let done = timed.completed && timed.volume == volume;
            if done {
                counters.add(timed, at);
            }
            !done
        });
        self.completed -= before - self.timed.len();
    }

    /// Forgets a volume that is removed.
    pub(crate) fn forget(&mut self, volume: VolumeNr) {
        self.timed.retain(|t| t.volume != volume);
        self.completed = self.timed.iter().filter(|t| t.completed).count();
    }
}

/// A write for a peer that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReplicaEnd {
    pub(crate) volume: VolumeNr,
    pub(crate) weight: u64,
    /// From the data's arrival until the disk was asked.
    pub(crate) wait: Duration,
    /// How long the disk took.
    pub(crate) disk: Duration,
}

impl Timed {
    /// It is this request of a user, which the core has not completed.
    fn is_user(&self, volume: VolumeNr, id: u64) -> bool {
        self.kind != Kind::Replica && !self.completed && (self.volume, self.id) == (volume, id)
    }

    /// The disk operation is for it.
    fn is_for(&self, io: &DiskOp) -> bool {
        let open = !self.completed && (self.disk.is_none() || self.disk_end.is_some());
        open && match (self.kind, *io) {
            (Kind::Read, DiskOp::Read { range, detect_zeroes: false, .. }) => self.range == range,
            (Kind::Write | Kind::Replica, DiskOp::Write { buf, .. }) => self.buf == Some(buf),
            _ => false,
        }
    }

    fn peer_ended(&mut self, peer: NodeId, now: Instant) {
        if self.asked.contains(peer) && !self.completed {
            self.asked.remove(peer);
            self.ended.insert(peer);
            self.ends[peer.index()] = now;
        }
    }

    /// Adds it to a waterfall. No stage ends before it begins, whatever the order of the readings:
    /// so the stages add up to the total.
    fn add_to(&self, waterfall: &mut Waterfall, at: Instant) {
        let weight = self.weight;
        let started = self.started.unwrap_or(self.handed).max(self.handed);
        let at = at.max(started);
        waterfall.total.record(at.since(self.received), weight);
        waterfall.front_end.record(self.handed.since(self.received), weight);
        let (waited, no) = (started.since(self.handed), Duration::ZERO);
        let (admission, log) = if self.awaits_log { (no, waited) } else { (waited, no) };
        waterfall.admission.record(admission, weight);
        if self.kind != Kind::Read {
            waterfall.activity_log.record(log, weight);
        }
        let (mut last, mut decider) = (started, None);
        if let Some(end) = self.disk_end {
            last = end.clamp(started, at);
            decider = Some(Decider::Disk);
            waterfall.disk.latency.record(last.since(started), weight);
        }
        for peer in self.ended.iter() {
            let end = self.ends[peer.index()].clamp(started, at);
            waterfall.peer_mut(peer).latency.record(end.since(started), weight);
            // The disk if several were found to have ended in one turn.
            if decider.is_none() || end > last {
                (last, decider) = (end, Some(Decider::Peer(peer)));
            }
        }
        let decided = match decider {
            Some(Decider::Disk) => Some(&mut waterfall.disk),
            Some(Decider::Peer(peer)) => Some(waterfall.peer_mut(peer)),
            None => None,
        };
        if let Some(parallel) = decided {
            let nanos = u64::try_from(last.since(started).as_nanos()).unwrap_or(u64::MAX);
            parallel.decided_ns = parallel.decided_ns.saturating_add(nanos.saturating_mul(weight));
        }
        waterfall.completion.record(at.since(last), weight);
    }
}

/// Whose end a request waited for.
enum Decider {
    Disk,
    Peer(NodeId),
}

#[cfg(test)]
mod tests;
