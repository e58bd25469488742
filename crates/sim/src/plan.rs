//! What a seed decides before a run begins: topology, options, disks, workload, fault budget.
//!
//! A scenario starts from [`Plan::quiet`] and states what it needs instead.

use std::time::Duration;

use replication::config::{PeerConfig, ResourceConfig, VolumeConfig};
use vocab::options::{
    DiskOptions, Fencing, KibPerSecond, NetOptions, OnCongestion, OnNoDataAccessible, OnNoQuorum,
    OnSuspendedPrimaryOutdated, PeerDeviceOptions, Protocol, Quorum, ReadBalancing,
    ResourceOptions, RrConflict, Secret,
};
use vocab::{Bytes, HandlerSet, Minor, NodeId, Sectors, VolumeNr};

use crate::rng::Rng;

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;
/// Nanoseconds in a millisecond.
pub const MILLISECOND: u64 = 1_000_000;

/// How the data of a fresh cluster becomes UpToDate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// `new-current-uuid --clear-bitmap` on blank disks.
    SkipInitialSync,
    /// `primary --force` on node 0 whose disk has data, and a full resync.
    InitialSync,
}

/// Kinds of faults, as counted in the report.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// A node's process is killed and started again.
    Kill,
    /// A node loses power and boots again.
    PowerLoss,
    /// Both directions between two nodes are cut for a while.
    Cut,
    /// One direction between two nodes is cut for a while.
    OneWayCut,
    /// Two sets of nodes are separated for a while.
    Partition,
    /// The sockets of a link break.
    Reset,
    /// A link is slow for a while.
    SlowLink,
    /// A process does not run for a while.
    Pause,
    /// A disk is slow for a while.
    SlowDisk,
    /// Operations of a disk do not complete for a while.
    StuckDisk,
    /// Reads fail for a while.
    ReadErrors,
    /// Writes fail for a while.
    WriteErrors,
    /// Metadata writes fail for a while.
    MetaErrors,
    /// Operator: disconnect, and connect later.
    Disconnect,
    /// Operator: detach, and attach later.
    Detach,
    /// Operator: invalidate a Secondary.
    Invalidate,
    /// Operator: start a verify.
    Verify,
    /// Operator: pause a resync, and resume it later.
    PauseSync,
    /// Operator: suspend I/O, and resume it later.
    SuspendIo,
    /// Operator: demote by force.
    ForceSecondary,
    /// Data are damaged on the way; only with digests that show it.
    Damage,
    /// Disks are given more room, most of them, and an operator resizes a volume.
    Resize,
    /// No fault: a node's process hands over to another one while all goes on.
    Swap,
}

impl Fault {
    /// Every kind.
    pub const ALL: [Fault; 23] = [
        Fault::Kill,
        Fault::PowerLoss,
        Fault::Cut,
        Fault::OneWayCut,
        Fault::Partition,
        Fault::Reset,
        Fault::SlowLink,
        Fault::Pause,
        Fault::SlowDisk,
        Fault::StuckDisk,
        Fault::ReadErrors,
        Fault::WriteErrors,
        Fault::MetaErrors,
        Fault::Disconnect,
        Fault::Detach,
        Fault::Invalidate,
        Fault::Verify,
        Fault::PauseSync,
        Fault::SuspendIo,
        Fault::ForceSecondary,
        Fault::Damage,
        Fault::Resize,
        Fault::Swap,
    ];

    /// Its name in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill",
            Fault::PowerLoss => "power-loss",
            Fault::Cut => "cut",
            Fault::OneWayCut => "one-way-cut",
            Fault::Partition => "partition",
            Fault::Reset => "reset",
            Fault::SlowLink => "slow-link",
            Fault::Pause => "pause",
            Fault::SlowDisk => "slow-disk",
            Fault::StuckDisk => "stuck-disk",
            Fault::ReadErrors => "read-errors",
            Fault::WriteErrors => "write-errors",
            Fault::MetaErrors => "meta-errors",
            Fault::Disconnect => "disconnect",
            Fault::Detach => "detach",
            Fault::Invalidate => "invalidate",
            Fault::Verify => "verify",
            Fault::PauseSync => "pause-sync",
            Fault::SuspendIo => "suspend-io",
            Fault::ForceSecondary => "force-secondary",
            Fault::Damage => "damage",
            Fault::Resize => "resize",
            Fault::Swap => "swap",
        }
    }
}

/// Moments at which a fault is worth most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// A write of a client was acknowledged.
    Ack,
    /// A write of a client was sent to a peer.
    Data,
    /// A transaction of the cluster was committed.
    Commit,
    /// A transaction of the cluster was prepared.
    Prepare,
    /// Identifiers of a generation were sent.
    Generation,
    /// A bitmap was sent.
    Bitmap,
    /// A block of a resync was sent or written.
    Resync,
    /// A position of a lost Primary was sent.
    Reconcile,
    /// Metadata is being written.
    Metadata,
    /// A disk flush was submitted.
    Flush,
    /// A state changed.
    State,
}

impl Moment {
    /// Every moment.
    pub const ALL: [Moment; 11] = [
        Moment::Ack,
        Moment::Data,
        Moment::Commit,
        Moment::Prepare,
        Moment::Generation,
        Moment::Bitmap,
        Moment::Resync,
        Moment::Reconcile,
        Moment::Metadata,
        Moment::Flush,
        Moment::State,
    ];
}

/// One node.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// It has a disk for every volume; otherwise it is diskless by intent.
    pub diskful: bool,
    /// Parts per million by which its clock is fast, or slow if negative.
    pub clock_ppm: i64,
    /// It may break a tie, if it has no disk.
    pub tiebreaker: bool,
    /// Sectors that its disks have beyond those of the smallest ones.
    pub spare_sectors: u64,
    /// It is taken for a node that speaks no newer version.
    pub newest: Option<u32>,
}

/// What the clients do.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Number of clients, each with an opener of its own.
    pub clients: usize,
    /// Requests in flight per client.
    pub depth: usize,
    /// Requests of all clients together.
    pub requests: u64,
    /// First sectors of the ranges that are worked on.
    pub hot: Vec<u64>,
    /// Nodes where clients may run.
    pub nodes: Vec<usize>,
    /// Percentage of opens that go to another node than the last.
    pub roam: u64,
    /// Longest pause between requests in nanoseconds.
    pub pause: u64,
}

/// Everything decided before a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The nodes, by node id.
    pub nodes: Vec<NodePlan>,
    /// Number of volumes.
    pub volumes: u16,
    /// Size of each volume in sectors.
    pub sectors: u64,
    /// Disks lose completed writes that were not flushed when power is lost.
    pub volatile_cache: bool,
    /// Bitmap slots beyond those the diskful peers need.
    pub spare_slots: usize,
    /// How the cluster is brought up.
    pub start: Start,
    /// The two nodes take each other for nodes of protocol 8.
    pub legacy: bool,
    /// The disks of the two nodes have the metadata of DRBD 8.
    pub old_metadata: bool,
    /// Options of the resource, the same everywhere.
    pub resource: ResourceOptions,
    /// Options of all connections.
    pub net: NetOptions,
    /// Options of all disks.
    pub disk: DiskOptions,
    /// Options of all peer devices (`bitmap` is set where it belongs).
    pub peer_device: PeerDeviceOptions,
    /// The clients.
    pub workload: Workload,
    /// Kinds of faults that may happen, with their weights.
    pub faults: Vec<(Fault, u64)>,
    /// Number of faults.
    pub fault_budget: u64,
    /// Time in which they happen, in nanoseconds.
    pub fault_time: u64,
    /// Longest time between two of them.
    pub fault_pause: u64,
    /// Percentage of the faults that wait for a [`Moment`].
    pub aimed: u64,
    /// Volumes may become larger than that.
    pub may_grow: bool,
    /// When nodes get the last volume.
    pub last_volume: LastVolume,
    /// Handlers that there are.
    pub handlers: HandlerSet,
}

/// When nodes get the last volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LastVolume {
    /// Always at their start.
    AtStart,
    /// Now and then some time after a start that is not their first.
    AfterRestarts,
    /// When a scenario adds it.
    ByHand,
}

impl Plan {
    /// A cluster of so many diskful nodes and no faults, for scenarios.
    pub fn quiet(diskful: usize, diskless: usize) -> Plan {
        let nodes = (0..diskful + diskless)
            .map(|i| NodePlan {
                diskful: i < diskful,
                clock_ppm: 0,
                tiebreaker: true,
                spare_sectors: 0,
                newest: None,
            })
            .collect();
        let net = NetOptions { verify_alg: "crc32c".to_owned(), ..NetOptions::default() };
        Plan {
            nodes,
            volumes: 1,
            sectors: 16 * 8192 + 24,
            volatile_cache: true,
            spare_slots: 0,
            start: Start::SkipInitialSync,
            legacy: false,
            old_metadata: false,
            resource: ResourceOptions::default(),
            net,
            disk: DiskOptions { al_extents: 7, ..DiskOptions::default() },
            // How far a resync gets in a scenario does not depend on who writes meanwhile.
            peer_device: PeerDeviceOptions {
                c_min_rate: Some(KibPerSecond(0)),
                ..PeerDeviceOptions::default()
            },
            workload: Workload {
                clients: 0,
                depth: 1,
                requests: 0,
                hot: Vec::new(),
                nodes: vec![0],
                roam: 0,
                pause: MILLISECOND,
            },
            faults: Vec::new(),
            fault_budget: 0,
            fault_time: 0,
            fault_pause: SECOND,
            aimed: 0,
            may_grow: false,
            last_volume: LastVolume::AtStart,
            handlers: HandlerSet::NONE,
        }
    }

    /// The same with quorum of the majority.
    pub fn majority(diskful: usize, diskless: usize) -> Plan {
        let mut plan = Plan::quiet(diskful, diskless);
        plan.resource.quorum = Quorum::Majority;
        plan
    }

    /// The plan of a seed.
    pub fn random(rng: &mut Rng) -> Plan {
        Plan::random_with(rng, None)
    }

    /// The same with all faults, but under protocol A: an acknowledged write may be on the disk of
    /// the Primary alone, and that disk may fail, too.
    pub fn asynchronous(rng: &mut Rng) -> Plan {
        Plan::random_with(rng, Some(Protocol::A))
    }

    /// The same with two volumes, of which nodes may start without the second one.
    pub fn adding(rng: &mut Rng) -> Plan {
        let mut plan = Plan::random_with(rng, Some(Protocol::C));
        (plan.legacy, plan.old_metadata) = (false, false);
        plan.nodes.iter_mut().for_each(|node| node.newest = None);
        plan.volumes = 2;
        plan.faults.push((Fault::Kill, 20));
        // A disk that has grown alone is refused beside the others, for good.
        plan.faults.retain(|(fault, _)| *fault != Fault::Resize);
        plan.may_grow = false;
        plan.random_last_volume();
        plan
    }

    /// The same with two Primaries and more: clients work on all nodes at once, each of which becomes
    /// Primary beside the first one.
    pub fn joint(rng: &mut Rng) -> Plan {
        let mut plan = Plan::random_with(rng, Some(Protocol::C));
        (plan.legacy, plan.old_metadata) = (false, false);
        plan.nodes.iter_mut().for_each(|node| node.newest = None);
        plan.net.allow_two_primaries = true;
        plan.last_volume = LastVolume::AtStart;
        // Without, users of two nodes that lose each other go on independently.
        if !plan.fences_firmly() {
            plan.resource.quorum = Quorum::Majority;
        }
        let workload = &mut plan.workload;
        workload.clients = 2 + workload.clients % 3;
        workload.nodes = (0..plan.nodes.len()).collect();
        workload.roam = workload.roam.min(30);
        plan
    }

    fn random_with(rng: &mut Rng, protocol: Option<Protocol>) -> Plan {
        let (diskful, diskless) = [(2, 0), (3, 0), (2, 1), (1, 1), (3, 1), (4, 0), (5, 0), (2, 2)]
            [rng.weighted(&[30, 28, 20, 4, 8, 4, 2, 4])];
        let mut plan = Plan::quiet(diskful, diskless);
        for node in &mut plan.nodes {
            node.clock_ppm = rng.range(0, 2000) as i64 - 1000;
        }
        plan.volumes = if rng.one_in(6) { 2 } else { 1 };
        plan.sectors = *rng.pick(&[2 * 8192, 9 * 8192 + 8, 16 * 8192 + 24, 20 * 8192]);
        plan.volatile_cache = rng.one_in(2);
        plan.spare_slots = rng.below(3) as usize;
        plan.start = if rng.one_in(5) { Start::InitialSync } else { Start::SkipInitialSync };
        plan.random_options(rng, diskful, diskless);
        plan.random_workload(rng, diskful);
        plan.random_faults(rng, protocol);
        plan.random_sizes(diskful as u64);
        // Not drawn either.
        plan.legacy = plan.may_be_legacy() && plan.fault_pause % 7 < 3;
        plan.old_metadata = plan.may_be_pair() && plan.fault_pause % 11 < 4;
        plan.random_versions();
        // Not drawn either.
        if plan.fault_pause % 3 == 1 {
            plan.random_last_volume();
        }
        plan
    }

    fn random_last_volume(&mut self) {
        let new = self.nodes.iter().all(|node| node.newest.is_none());
        if self.volumes == 2 && new && !self.is_ordered() && !self.may_grow {
            self.last_volume = LastVolume::AfterRestarts;
        }
    }

    /// The metadata of DRBD 8 have room for all there is.
    fn may_be_pair(&self) -> bool {
        self.may_be_legacy() && self.resource.quorum == Quorum::Off
    }

    /// Two nodes of protocol 8 can be configured so.
    pub fn may_be_legacy(&self) -> bool {
        let diskful = self.nodes.iter().all(|node| node.diskful);
        self.nodes.len() == 2 && diskful && self.volumes == 1 && !self.failover_is_safe()
    }

    /// The second of two volumes is resynced after the first one.
    pub fn is_ordered(&self) -> bool {
        self.volumes == 2 && self.fault_budget > 0 && self.fault_pause.is_multiple_of(5)
    }

    /// Not drawn, so that all other seeds stay what they were when all disks had the same size.
    fn random_sizes(&mut self, diskful: u64) {
        if !self.fault_pause.is_multiple_of(3) {
            return;
        }
        let smallest = self.fault_pause / 3 % diskful;
        for (i, node) in (0..diskful).zip(&mut self.nodes) {
            node.spare_sectors =
                [0, 8, 8192, 24, 16][((i + diskful - smallest) % diskful) as usize];
        }
    }

    /// Not drawn, so that all other seeds stay what they were: all nodes are before protocol 122, or one of
    /// them, or all but one. Not under a client: no disk becomes current there by a resync without
    /// positions, and the client would wait for ever if that were the last one.
    fn random_versions(&mut self) {
        if self.legacy || self.nodes.iter().any(|node| !node.diskful) {
            return;
        }
        let one = self.fault_pause / 17 % self.nodes.len() as u64;
        for (i, node) in (0..).zip(&mut self.nodes) {
            let old = match self.fault_pause % 17 {
                3 => true,
                4 => i == one,
                5 => i != one,
                _ => false,
            };
            node.newest = old.then_some(121);
        }
    }

    fn random_options(&mut self, rng: &mut Rng, diskful: usize, diskless: usize) {
        self.disk.al_extents = *rng.pick(&[7, 7, 8, 16, 67]);
        self.disk.read_balancing = *rng.pick(&[
            ReadBalancing::PreferLocal,
            ReadBalancing::PreferLocal,
            ReadBalancing::PreferRemote,
            ReadBalancing::RoundRobin,
            ReadBalancing::LeastPending,
            ReadBalancing::Striping32K,
        ]);
        if rng.one_in(4) {
            self.disk.rs_discard_granularity = Bytes(65536);
        }
        self.net.ping_int = Duration::from_secs(rng.range(1, 10));
        self.net.timeout = Duration::from_millis(rng.range(5, 9) * 100);
        // Not drawn, so that seeds with DRBD's pace stay what they were when there was no other.
        let (max, min) = (Some(KibPerSecond(102_400)), Some(KibPerSecond(250)));
        let (c_max_rate, c_min_rate) = match self.net.ping_int.as_secs() {
            1 | 5 => (max, self.peer_device.c_min_rate),
            6 | 8 => (max, min),
            // DRBD's throttle at the source alone; nobody gives way; all of it is Ashlar's.
            2 => (None, min),
            3 => (None, self.peer_device.c_min_rate),
            _ => (None, None),
        };
        (self.peer_device.c_max_rate, self.peer_device.c_min_rate) = (c_max_rate, c_min_rate);
        self.net.ko_count = rng.range(2, 7) as u32;
        self.net.use_rle = rng.one_in(2);
        self.net.protocol = *rng.pick(&[
            Protocol::C,
            Protocol::C,
            Protocol::C,
            Protocol::C,
            Protocol::C,
            Protocol::B,
            Protocol::A,
        ]);
        if rng.one_in(3) {
            self.net.max_epoch_size = rng.range(1, 16) as u32;
        }
        if rng.one_in(3) {
            self.net.rr_conflict = RrConflict::RetryConnect;
        }
        let voters = diskful + diskless;
        if voters >= 3 && rng.percent(75) || rng.one_in(10) {
            self.resource.quorum = Quorum::Majority;
        }
        if rng.one_in(2) {
            self.resource.on_no_quorum = OnNoQuorum::IoError;
        }
        if rng.one_in(2) {
            self.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
        }
        if rng.one_in(2) {
            self.resource.on_suspended_primary_outdated =
                OnSuspendedPrimaryOutdated::ForceSecondary;
            self.net.rr_conflict = RrConflict::RetryConnect;
        }
        if rng.one_in(4) {
            self.resource.max_io_depth = 4;
        }
        self.random_handlers(diskful, diskless);
    }

    /// Not drawn, so that all other seeds stay what they were when there were no handlers. Those of
    /// the simulator fence two nodes.
    fn random_handlers(&mut self, diskful: usize, diskless: usize) {
        let ping_int = self.net.ping_int.as_secs();
        if ![4, 7, 9].contains(&ping_int) {
            return;
        }
        self.handlers = HandlerSet::ALL;
        let fences = (diskful, diskless) == (2, 0) && self.resource.quorum == Quorum::Off;
        match ping_int {
            7 if fences && self.net.protocol == Protocol::C => {
                self.net.fencing = Fencing::ResourceAndStonith;
            }
            7 | 9 if fences => self.net.fencing = Fencing::ResourceOnly,
            _ => {}
        }
    }

    fn random_workload(&mut self, rng: &mut Rng, diskful: usize) {
        let roaming = self.failover_is_safe() && self.acks_are_replicated() && rng.percent(80);
        let nodes = self.nodes.len();
        let local = rng.percent(70) || !self.acks_are_replicated();
        let homes = if local { diskful } else { nodes };
        let home = rng.below(homes as u64) as usize;
        let extents = self.sectors.div_ceil(8192);
        let mut hot = Vec::new();
        for _ in 0..rng.range(3, 24) {
            let extent = rng.below(extents);
            let block = *rng.pick(&[0, 1, 2, 3, 8, 31, 32, 33, 511, 1022, 1023]);
            hot.push((extent * 8192 + block * 8).min(self.sectors - 8));
        }
        self.workload = Workload {
            hot,
            clients: rng.range(1, 3) as usize,
            depth: rng.range(1, 8) as usize,
            requests: rng.skewed(40, 400),
            nodes: if roaming { (0..nodes).collect() } else { vec![home] },
            roam: rng.below(100),
            pause: rng.skewed(MILLISECOND, SECOND),
        };
    }

    fn random_faults(&mut self, rng: &mut Rng, protocol: Option<Protocol>) {
        // Each run has its own few kinds of trouble: they combine more deeply than all at once.
        for fault in Fault::ALL {
            let rare = matches!(
                fault,
                Fault::ReadErrors | Fault::WriteErrors | Fault::MetaErrors | Fault::ForceSecondary
            );
            // Without quorum, or with acknowledgements that only the own disk backs, the loss of
            // that disk may lose writes.
            let own_disk = matches!(
                fault,
                Fault::ReadErrors | Fault::WriteErrors | Fault::MetaErrors | Fault::Detach
            );
            if own_disk && (!self.failover_is_safe() || !self.acks_are_replicated()) {
                continue;
            }
            let chance = if rare { 10 } else { 30 };
            let later =
                matches!(fault, Fault::Invalidate | Fault::Damage | Fault::Resize | Fault::Swap);
            if !later && rng.percent(chance) {
                self.faults.push((fault, rng.range(1, 10)));
            }
        }
        self.fault_budget = rng.below(16);
        self.fault_pause = rng.skewed(10 * MILLISECOND, 20 * SECOND);
        self.fault_time = 60 * SECOND;
        self.aimed = *rng.pick(&[0, 50, 80]);
        // Not drawn, so that all other seeds stay what they were before. A disk that is given up is
        // lost as one that fails.
        let firm = self.failover_is_safe() && self.acks_are_replicated();
        if firm && self.fault_pause.is_multiple_of(4) {
            self.faults.push((Fault::Invalidate, 5));
        }
        // One that is slow is, too.
        if firm && self.fault_pause % 9 < 4 {
            let timeout = [100, 500, 2_000, 10_000][(self.fault_pause % 4) as usize];
            self.disk.disk_timeout = Duration::from_millis(timeout);
        }
        if self.fault_pause.is_multiple_of(5) {
            self.net.data_integrity_alg = "crc32c".to_owned();
            self.faults.push((Fault::Damage, 5));
        }
        if self.fault_pause.is_multiple_of(6) {
            self.faults.push((Fault::Resize, 8));
            self.may_grow = true;
        }
        if self.fault_pause % 13 < 3 {
            self.faults.push((Fault::Swap, 20));
        }
        if self.fault_pause.is_multiple_of(7) {
            self.net.csums_alg = "sha256".to_owned();
            self.net.csums_after_crash_only = self.fault_pause.is_multiple_of(21);
        }
        self.net.protocol = protocol.unwrap_or(self.net.protocol);
        // Most runs have no congestion worth that name; here some writes under way are one.
        if self.net.protocol == Protocol::A && !self.fault_pause.is_multiple_of(3) {
            self.net.on_congestion = OnCongestion::PullAhead;
            self.net.congestion_fill = Sectors(16 << (self.fault_pause % 5));
            self.net.congestion_extents = self.disk.al_extents - 1;
        }
        if self.fault_pause.is_multiple_of(16) {
            self.net.cram_hmac_alg = "sha256".to_owned();
            self.net.shared_secret = Secret::from("between nodes");
        }
    }

    /// As large as a volume may become.
    pub fn most_sectors(&self) -> u64 {
        if self.may_grow { self.sectors + 4 * 8192 + 24 } else { self.sectors }
    }

    /// Another node may be promoted when the Primary is lost, and every acknowledged write must
    /// be there: quorum decides, or who is fenced (F and Q of semantics §13).
    pub fn failover_is_safe(&self) -> bool {
        self.resource.quorum == Quorum::Majority || self.fences_firmly()
    }

    /// A Primary does not go on before a peer that it has lost is fenced.
    pub fn fences_firmly(&self) -> bool {
        self.net.fencing == Fencing::ResourceAndStonith && self.handlers == HandlerSet::ALL
    }

    /// An acknowledged write can not be lost, whatever happens next: no fault in the plan takes
    /// back what disks have completed, and it is on every replica that may become the newest.
    pub fn acks_are_firm(&self) -> bool {
        !self.volatile_cache && self.acks_are_replicated()
    }

    /// A write covered by a flush can not be lost.
    pub fn flushes_are_firm(&self) -> bool {
        self.acks_are_replicated()
    }

    /// An acknowledged write is on every replica that is UpToDate.
    pub fn acks_are_replicated(&self) -> bool {
        self.net.protocol == Protocol::C
    }

    /// What clients see can be judged: either quorum protects what was acknowledged, or one node
    /// does all the work and its own disk decides. With quorum the others decide without it once
    /// it is alone; what it had acknowledged under protocol A or B and not delivered yet is lost.
    pub fn is_strict(&self) -> bool {
        match self.failover_is_safe() {
            true => self.acks_are_replicated(),
            false => self.works_at_home(),
        }
    }

    /// Disks may be written independently: without quorum a client goes on with whichever it
    /// finds, and nobody can tell that another one has writes that this one lacks.
    pub fn may_split(&self) -> bool {
        !self.failover_is_safe() && !self.works_at_home()
    }

    /// What this node has written, its own disk alone is sure to have.
    pub fn goes_by_own_disk(&self, node: usize) -> bool {
        !self.failover_is_safe() && self.works_at_home() && self.workload.nodes[0] == node
    }

    /// All work is done by one node, on a disk that always takes part.
    fn works_at_home(&self) -> bool {
        let diskful = self.nodes.iter().filter(|n| n.diskful).count();
        let homes = &self.workload.nodes;
        homes.len() == 1 && (self.nodes[homes[0]].diskful || diskful == 1)
    }

    /// The configuration of a node.
    pub fn config(&self, node: usize) -> ResourceConfig {
        let me = &self.nodes[node];
        let volumes = (0..self.volumes).map(|nr| VolumeConfig {
            nr: VolumeNr(nr),
            minor: Minor(u32::from(nr)),
            diskless: !me.diskful,
            disk: self.disk.clone(),
        });
        let peers = (0..self.nodes.len()).filter(|peer| *peer != node).map(|peer| PeerConfig {
            node_id: node_id(peer),
            name: format!("node{peer}"),
            net: self.net.clone(),
            devices: (0..self.volumes)
                .map(|nr| {
                    let bitmap = self.nodes[peer].diskful;
                    let peer_tiebreaker = self.nodes[peer].tiebreaker;
                    let options = self.peer_device.clone();
                    let options = PeerDeviceOptions { bitmap, peer_tiebreaker, ..options };
                    (VolumeNr(nr), options)
                })
                .collect(),
        });
        ResourceConfig {
            name: "r0".to_owned(),
            node_id: node_id(node),
            options: self.resource.clone(),
            handlers: self.handlers,
            volumes: volumes.collect(),
            peers: peers.collect(),
        }
    }
}

/// The node id of a node of the world.
pub fn node_id(node: usize) -> NodeId {
    NodeId::new(node as u8).expect("a world has few nodes")
}
