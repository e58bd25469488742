//! The simulation: threads that take turns on the cores of nodes, ports, disks, and clients that
//! keep so many requests in flight. The same seed gives the same run.
//!
//! ```text
//! client ── request ──► front shard ─┬─ its own disk ──────────────┐
//!    ▲                               └─ port, switch, port ──► peer shard ── its disk
//!    └─────────── reply ◄── front shard ◄──────── port, switch, port ◄──┘
//! ```
//!
//! A shard works as the engine's does: it wakes up, takes all that has come meanwhile, works on it,
//! sends everything at the end of the turn, and pauses if nothing more has come. The client is fio,
//! which sends each request by itself.
//!
//! The first answer to a user in an epoch ends it. A peer flushes its disk when all writes of the
//! epoch are there, and begins with the next epoch when that is done.
//!
//! A thread that is woken goes to the core where it was, or to another one that is idle. While none
//! is, it waits where it was, as Linux has it: a core that becomes idle meanwhile does not come for
//! it. One that has more to do after a turn lets those that wait for its core go first.

use std::collections::VecDeque;

use super::costs::{Case, Cost};
use super::model::{Hardware, Load};
use super::station::{Events, Station, Time, nanoseconds, unit};
use super::wire;
use crate::torture::random::Random;

/// How long, and from which seed.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub seed: u64,
    /// Before anything is counted.
    pub warm_up_us: f64,
    /// What is counted.
    pub window_us: f64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Outcome {
    /// Requests per second, of all clients.
    pub iops: f64,
    /// From making a request until its answer, as fio counts.
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Shares of the time: of all cores,
    pub cores: f64,
    /// of the clients' threads,
    pub client: f64,
    /// of the shards that serve them (where these are only that),
    pub front: f64,
    /// of all ports, sending,
    pub sending: f64,
    /// and of all disks.
    pub disks: f64,
    /// How often the threads that serve a request pause for it: client, front shard, all peers.
    pub pauses: [f64; 3],
    /// How often peers flush their disks for a request, all together.
    pub flushes: f64,
}

/// Who works on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Client,
    Front,
    Peer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// To the front shard: a client's request.
    Request,
    /// To the front shard: its own disk is done.
    OwnDisk,
    /// To a peer: a write, or a wish to read.
    Forwarded,
    /// To a peer: its disk is done.
    PeerDisk,
    /// To the front shard: a peer has it.
    Answer,
    /// To a peer: the end of an epoch.
    Barrier,
    /// To a peer: its disk is flushed.
    Flushed,
    /// To the front shard: the epoch is on stable storage.
    BarrierAck,
    /// To the client.
    Reply,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    kind: Kind,
    request: u32,
    /// Whoever sent it, to be answered.
    from: u32,
    /// The port of the connection, on both nodes.
    port: u32,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A message is there for a thread.
    Deliver(u32, Message),
    /// Its last byte is at the port of the thread's node, which may be busy.
    Arrive(u32, Message, f64),
    /// A thread has its core, and takes what is there.
    Begin(u32),
    /// The end of its turn.
    End(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asleep,
    /// Waits for a core, or is at work.
    Awake,
}

#[derive(Debug)]
struct Thread {
    node: usize,
    role: Role,
    /// Where it runs, or ran last, among all cores.
    core: usize,
    state: State,
    /// Another has run, or nobody, since its last turn.
    paused: bool,
    inbox: Vec<Message>,
    /// What the turn under way works on.
    batch: Vec<Message>,
    busy: Time,
    pauses: u64,
}

#[derive(Debug, Default)]
struct Core {
    busy: bool,
    waiting: VecDeque<u32>,
}

#[derive(Debug)]
struct Port {
    sending: Station,
    receiving: Station,
}

#[derive(Debug)]
struct Workload {
    client: u32,
    front: u32,
    replicas: Vec<Replica>,
    /// Whose turn it is to be read from.
    next: usize,
    /// Number of the epoch that writes now belong to.
    epoch: u32,
}

#[derive(Debug)]
struct Replica {
    shard: u32,
    disk: usize,
    /// Writes that the disk has not answered.
    writing: u32,
    /// The barrier of the epoch that is being ended.
    barrier: Option<Message>,
    /// What came behind it: the next epoch begins when this one is on stable storage.
    held: VecDeque<Message>,
}

/// One of the client's slots: it is in use all the time.
#[derive(Clone, Copy, Debug)]
struct Slot {
    workload: u32,
    begun: Time,
    /// Disks that have not answered.
    missing: u8,
    epoch: u32,
}

/// What has been counted at a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    cores: Time,
    client: Time,
    front: Time,
    sending: Time,
    disks: Time,
    pauses: [u64; 3],
    flushes: u64,
}

struct Simulation<'a> {
    hardware: &'a Hardware,
    load: &'a Load,
    case: &'a Case,
    random: Random,
    events: Events<Event>,
    threads: Vec<Thread>,
    /// Those of each machine one after the other.
    cores: Vec<Core>,
    ports: Vec<Vec<Port>>,
    disks: Vec<Station>,
    workloads: Vec<Workload>,
    slots: Vec<Slot>,
    flushes: u64,
    count_from: Time,
    latencies: Vec<u32>,
}

/// Runs a load. It must fit the hardware.
pub fn run(hardware: &Hardware, load: &Load, case: &Case, run: Run) -> Outcome {
    let count_from = nanoseconds(run.warm_up_us);
    let end = count_from + nanoseconds(run.window_us);
    let mut simulation = Simulation::new(hardware, load, case, run.seed, count_from);
    let mut before = None;
    while let Some((now, event)) = simulation.events.pop() {
        if now >= count_from && before.is_none() {
            before = Some(simulation.counted());
        }
        if now >= end {
            break;
        }
        simulation.happens(now, event);
    }
    simulation.outcome(before.unwrap_or_default(), end)
}

impl<'a> Simulation<'a> {
    fn new(
        hardware: &'a Hardware,
        load: &'a Load,
        case: &'a Case,
        seed: u64,
        count_from: Time,
    ) -> Self {
        let machines = if hardware.network.is_some() { hardware.nodes } else { 1 };
        let service = hardware.disk.service(load.write);
        let channels = (service.iops * service.latency_us / 1e6).round() as usize;
        let mut simulation = Simulation {
            hardware,
            load,
            case,
            random: Random(seed),
            events: Events::default(),
            threads: Vec::new(),
            cores: (0..machines * hardware.cores).map(|_| Core::default()).collect(),
            ports: Vec::new(),
            disks: vec![Station::new(channels); hardware.nodes * hardware.disks],
            workloads: Vec::new(),
            slots: Vec::new(),
            flushes: 0,
            count_from,
            latencies: Vec::new(),
        };
        for _ in 0..hardware.nodes {
            let ports = hardware.network.map_or(0, |network| network.ports);
            let port = || Port { sending: Station::new(1), receiving: Station::new(1) };
            simulation.ports.push((0..ports).map(|_| port()).collect());
        }
        simulation.place();
        simulation.begin();
        simulation
    }

    /// Gives each workload its threads and disks. The engine puts a resource on the shard with the
    /// fewest.
    fn place(&mut self) {
        let shards = self.hardware.cores;
        let mut shard_of: Vec<Vec<u32>> = vec![Vec::new(); self.hardware.nodes];
        let mut resources = vec![0; self.hardware.nodes];
        let mut held = vec![0; self.hardware.nodes];
        // With a local replica, a client is on one of the nodes that hold it. On one machine only
        // the clients of a single node were measured.
        let client_nodes = if self.hardware.network.is_some() { self.hardware.nodes } else { 1 };
        for node in 0..client_nodes {
            for workload in 0..self.load.workloads {
                let client = self.add_thread(node, Role::Client);
                let mut shard = |simulation: &mut Self, node: usize, role| {
                    let nth = resources[node] % shards;
                    resources[node] += 1;
                    if nth == shard_of[node].len() {
                        let thread = simulation.add_thread(node, role);
                        shard_of[node].push(thread);
                    }
                    shard_of[node][nth]
                };
                let front = shard(self, node, Role::Front);
                let mut replicas = Vec::new();
                for replica in 0..self.load.replicas {
                    let at = self.hardware.place(self.load, node, workload, replica);
                    let disk = at * self.hardware.disks + held[at] % self.hardware.disks;
                    held[at] += 1;
                    let thread = match at == node {
                        true => front,
                        false => shard(self, at, Role::Peer),
                    };
                    let (writing, barrier, held) = (0, None, VecDeque::new());
                    replicas.push(Replica { shard: thread, disk, writing, barrier, held });
                }
                self.workloads.push(Workload { client, front, replicas, next: 0, epoch: 0 });
            }
        }
    }

    fn add_thread(&mut self, node: usize, role: Role) -> u32 {
        // Those of a node begin on one core after the other.
        let first = self.first_core(node);
        let others = self.threads.iter().filter(|other| self.first_core(other.node) == first);
        let core = first + others.count() % self.hardware.cores;
        self.threads.push(Thread {
            node,
            role,
            core,
            state: State::Asleep,
            paused: true,
            inbox: Vec::new(),
            batch: Vec::new(),
            busy: 0,
            pauses: 0,
        });
        (self.threads.len() - 1) as u32
    }

    /// Every client makes its first requests within the first moments.
    fn begin(&mut self) {
        for workload in 0..self.workloads.len() as u32 {
            for _ in 0..self.load.depth {
                let request = self.slots.len() as u32;
                let begun = nanoseconds(unit(&mut self.random) * 100.0);
                self.slots.push(Slot { workload, begun, missing: 0, epoch: 0 });
                let Workload { front, client, .. } = self.workloads[workload as usize];
                let message = Message { kind: Kind::Request, request, from: client, port: 0 };
                self.events.push(begun, Event::Deliver(front, message));
            }
        }
    }

    /// The first core of a node's machine.
    fn first_core(&self, node: usize) -> usize {
        if self.hardware.network.is_some() { node * self.hardware.cores } else { 0 }
    }

    fn happens(&mut self, now: Time, event: Event) {
        match event {
            Event::Arrive(to, message, bytes) => self.arrive(now, to, message, bytes),
            Event::Deliver(to, message) => self.deliver(now, to, message),
            Event::Begin(thread) => self.begin_turn(now, thread),
            Event::End(thread) => self.end_turn(now, thread),
        }
    }

    fn deliver(&mut self, now: Time, to: u32, message: Message) {
        let thread = &mut self.threads[to as usize];
        thread.inbox.push(message);
        if thread.state == State::Awake {
            return;
        }
        thread.state = State::Awake;
        let (last, node) = (thread.core, thread.node);
        let first = self.first_core(node);
        let mut candidates = std::iter::once(last).chain(first..first + self.hardware.cores);
        let idle = candidates.find(|core| !self.cores[*core].busy);
        let Some(core) = idle else {
            self.cores[last].waiting.push_back(to);
            return;
        };
        // An idle core takes its time to notice.
        self.cores[core].busy = true;
        self.threads[to as usize].core = core;
        self.events.push(now + nanoseconds(self.case.idle_us), Event::Begin(to));
    }

    fn begin_turn(&mut self, now: Time, id: u32) {
        let thread = &mut self.threads[id as usize];
        let role = thread.role;
        std::mem::swap(&mut thread.inbox, &mut thread.batch);
        let paused = std::mem::take(&mut thread.paused);
        let batch = std::mem::take(&mut thread.batch);
        let wake = if paused { self.cost(role).wake_us } else { 0.0 };
        let mut at = now + self.varied(wake);
        for message in &batch {
            at += self.varied(self.message_us(message.kind));
            if role == Role::Client {
                self.act(at, id, *message);
            }
        }
        let thread = &mut self.threads[id as usize];
        thread.busy += at - now;
        thread.pauses += u64::from(paused);
        thread.batch = batch;
        self.events.push(at, Event::End(id));
    }

    fn end_turn(&mut self, now: Time, id: u32) {
        let mut batch = std::mem::take(&mut self.threads[id as usize].batch);
        if self.threads[id as usize].role != Role::Client {
            for message in &batch {
                self.act(now, id, *message);
            }
        }
        batch.clear();
        let thread = &mut self.threads[id as usize];
        thread.batch = batch;
        let core = &mut self.cores[thread.core];
        if thread.inbox.is_empty() {
            thread.state = State::Asleep;
            thread.paused = true;
        } else {
            thread.paused = !core.waiting.is_empty();
            core.waiting.push_back(id);
        }
        match core.waiting.pop_front() {
            Some(next) => self.events.push(now, Event::Begin(next)),
            None => core.busy = false,
        }
    }

    /// What a message causes.
    fn act(&mut self, now: Time, id: u32, message: Message) {
        let slot = self.slots[message.request as usize];
        let index = slot.workload as usize;
        let with = |kind| Message { kind, from: id, ..message };
        match message.kind {
            Kind::Request => self.forward(now, id, message),
            Kind::Forwarded | Kind::Barrier => {
                self.replica(index, id).held.push_back(message);
                self.go_on(now, index, id);
            }
            Kind::Flushed => {
                let barrier = self.replica(index, id).barrier.take().expect("it was flushed for");
                self.send(now, id, barrier.from, with(Kind::BarrierAck), wire::BARRIER);
                self.go_on(now, index, id);
            }
            Kind::PeerDisk => {
                self.replica(index, id).writing -= 1;
                self.flush_if_due(now, index, id);
                let bytes = if self.load.write { wire::SMALL } else { wire::FULL };
                self.send(now, id, message.from, with(Kind::Answer), bytes);
            }
            Kind::OwnDisk | Kind::Answer => {
                self.slots[message.request as usize].missing -= 1;
                if slot.missing == 1 {
                    let client = self.workloads[index].client;
                    self.send(now, id, client, with(Kind::Reply), 0.0);
                    if self.load.write && slot.epoch == self.workloads[index].epoch {
                        self.end_epoch(now, id, message);
                    }
                }
            }
            Kind::BarrierAck => {}
            Kind::Reply => {
                if now >= self.count_from {
                    self.latencies.push((now - slot.begun) as u32);
                }
                self.slots[message.request as usize].begun = now;
                self.send(now, id, self.workloads[index].front, with(Kind::Request), 0.0);
            }
        }
    }

    /// The first answer to a user in an epoch ends it: a later write may depend on that one.
    fn end_epoch(&mut self, now: Time, id: u32, message: Message) {
        let index = self.slots[message.request as usize].workload as usize;
        self.workloads[index].epoch += 1;
        for nth in 0..self.load.replicas {
            let replica = self.workloads[index].replicas[nth].shard;
            if replica != id {
                let port = self.port(index, nth);
                let barrier = Message { kind: Kind::Barrier, from: id, port, ..message };
                self.send(now, id, replica, barrier, wire::BARRIER);
            }
        }
    }

    /// A request goes to the disks that serve it.
    fn forward(&mut self, now: Time, id: u32, message: Message) {
        let index = self.slots[message.request as usize].workload as usize;
        let all = self.load.replicas;
        let chosen = match (self.load.write, self.load.diskless) {
            (true, _) => 0..all,
            (false, false) => 0..1,
            (false, true) => {
                let next = self.workloads[index].next;
                self.workloads[index].next = (next + 1) % all;
                next..next + 1
            }
        };
        let epoch = self.workloads[index].epoch;
        let slot = &mut self.slots[message.request as usize];
        (slot.missing, slot.epoch) = (chosen.len() as u8, epoch);
        for nth in chosen {
            let Replica { shard, disk, .. } = self.workloads[index].replicas[nth];
            let port = self.port(index, nth);
            let forwarded = Message { kind: Kind::Forwarded, from: id, port, ..message };
            if shard == id {
                self.use_disk(now, id, disk, Message { kind: Kind::OwnDisk, ..forwarded });
                continue;
            }
            let bytes = if self.load.write { wire::FULL } else { wire::SMALL };
            self.send(now, id, shard, forwarded, bytes);
        }
    }

    fn replica(&mut self, workload: usize, shard: u32) -> &mut Replica {
        let mut replicas = self.workloads[workload].replicas.iter_mut();
        replicas.find(|replica| replica.shard == shard).expect("it holds a replica")
    }

    /// A peer executes what has come for a replica, as far as the end of the epoch.
    fn go_on(&mut self, now: Time, workload: usize, id: u32) {
        while self.replica(workload, id).barrier.is_none() {
            let replica = self.replica(workload, id);
            let Some(message) = replica.held.pop_front() else { return };
            if message.kind == Kind::Barrier {
                replica.barrier = Some(message);
                self.flush_if_due(now, workload, id);
                return;
            }
            replica.writing += 1;
            let disk = replica.disk;
            self.use_disk(now, id, disk, Message { kind: Kind::PeerDisk, ..message });
        }
    }

    /// Once all writes of an epoch that has ended are on the disk, it is flushed.
    fn flush_if_due(&mut self, now: Time, workload: usize, id: u32) {
        let replica = self.replica(workload, id);
        if let (0, Some(barrier)) = (replica.writing, replica.barrier) {
            self.flushes += 1;
            let flushed = Message { kind: Kind::Flushed, ..barrier };
            self.events.push(now + nanoseconds(self.case.flush_us), Event::Deliver(id, flushed));
        }
    }

    /// Connections take turns.
    fn port(&self, workload: usize, replica: usize) -> u32 {
        let ports = self.hardware.network.map_or(1, |network| network.ports);
        ((workload * self.load.replicas + replica) % ports) as u32
    }

    fn use_disk(&mut self, now: Time, id: u32, disk: usize, done: Message) {
        let service = self.hardware.disk.service(self.load.write);
        let takes = self.disks[disk].servers() as f64 / service.iops * 1e6;
        match self.disks[disk].serve(now, nanoseconds(takes)) {
            // It is there before the thread looks.
            at if at == now => self.threads[id as usize].inbox.push(done),
            at => self.events.push(at, Event::Deliver(id, done)),
        }
    }

    /// Sends a message to a thread; over a port if that is on another node.
    fn send(&mut self, now: Time, from: u32, to: u32, message: Message, bytes: f64) {
        let (source, target) = (self.threads[from as usize].node, self.threads[to as usize].node);
        let network = self.hardware.network.filter(|_| source != target);
        let Some(network) = network else {
            self.events.push(now, Event::Deliver(to, message));
            return;
        };
        let takes = line_time(network.gbit, network.framed(bytes));
        let port = message.port as usize;
        let sent = self.ports[source][port].sending.serve(now, takes);
        let at = sent + nanoseconds(network.delay_us);
        self.events.push(at, Event::Arrive(to, message, bytes));
    }

    /// The port that receives has seen the first byte as early as its line let it; another
    /// sender's may have been before.
    fn arrive(&mut self, now: Time, to: u32, message: Message, bytes: f64) {
        let network = self.hardware.network.expect("it came over a network");
        let port = message.port as usize;
        let takes = line_time(network.gbit, network.framed(bytes));
        let node = self.threads[to as usize].node;
        let acknowledgement = line_time(network.gbit, network.acknowledged(bytes));
        self.ports[node][port].sending.serve(now, acknowledgement);
        let source = self.threads[message.from as usize].node;
        self.ports[source][port].receiving.serve(now, acknowledgement);
        let at = self.ports[node][port].receiving.serve(now.saturating_sub(takes), takes);
        self.events.push(at.max(now), Event::Deliver(to, message));
    }

    fn cost(&self, role: Role) -> Cost {
        match role {
            Role::Client => self.case.client,
            Role::Front => self.case.front,
            Role::Peer => self.case.peer,
        }
    }

    /// A part of what a request costs: a role spends the same on each of its messages. Barriers
    /// are in the cost of the writes, and here only wake.
    fn message_us(&self, kind: Kind) -> f64 {
        match kind {
            Kind::Reply => self.case.client.request_us,
            Kind::Request | Kind::OwnDisk | Kind::Answer => self.case.front_message_us(self.load),
            Kind::Forwarded | Kind::PeerDisk => self.case.peer.request_us / 2.0,
            Kind::Barrier | Kind::Flushed | Kind::BarrierAck => 0.0,
        }
    }

    /// No two requests cost the same: half as much to one and a half times as much.
    fn varied(&mut self, us: f64) -> Time {
        nanoseconds(us * (0.5 + unit(&mut self.random)))
    }

    fn counted(&self) -> Counted {
        let mut counted = Counted { flushes: self.flushes, ..Counted::default() };
        for thread in &self.threads {
            let role = thread.role as usize;
            counted.pauses[role] += thread.pauses;
            counted.cores += thread.busy;
            match thread.role {
                Role::Client => counted.client += thread.busy,
                Role::Front => counted.front += thread.busy,
                Role::Peer => {}
            }
        }
        counted.sending = self.ports.iter().flatten().map(|port| port.sending.busy).sum();
        counted.disks = self.disks.iter().map(|disk| disk.busy).sum();
        counted
    }

    fn outcome(mut self, before: Counted, end: Time) -> Outcome {
        let after = self.counted();
        self.latencies.sort_unstable();
        let answered = self.latencies.len();
        let window = (end - self.count_from) as f64;
        let of = |busy: Time, servers: usize| match servers {
            0 => 0.0,
            _ => busy as f64 / (window * servers as f64),
        };
        let threads = |role| self.threads.iter().filter(|thread| thread.role == role).count();
        let at = |part: f64| match answered {
            0 => f64::NAN,
            _ => f64::from(self.latencies[((answered - 1) as f64 * part) as usize]) / 1e3,
        };
        let sum: f64 = self.latencies.iter().map(|latency| f64::from(*latency)).sum();
        let channels: usize = self.disks.iter().map(Station::servers).sum();
        let pauses = |role: Role| {
            let role = role as usize;
            (after.pauses[role] - before.pauses[role]) as f64 / answered as f64
        };
        Outcome {
            iops: answered as f64 / window * 1e9,
            mean_us: sum / answered as f64 / 1e3,
            p50_us: at(0.5),
            p99_us: at(0.99),
            cores: of(after.cores - before.cores, self.cores.len()),
            client: of(after.client - before.client, threads(Role::Client)),
            front: of(after.front - before.front, threads(Role::Front)),
            sending: of(after.sending - before.sending, self.ports.iter().flatten().count()),
            disks: of(after.disks - before.disks, channels),
            pauses: [pauses(Role::Client), pauses(Role::Front), pauses(Role::Peer)],
            flushes: (after.flushes - before.flushes) as f64 / answered as f64,
        }
    }
}

/// How long bytes take on a line.
fn line_time(gbit: f64, bytes: f64) -> Time {
    nanoseconds(bytes * 8.0 / gbit / 1e3)
}
