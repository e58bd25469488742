//! What a stream of requests costs the core, on two connected nodes in one process.
//!
//! No allocation: they exchange the packets of writes and reads, as bytes of DRBD's protocol, and a
//! counting allocator sees nothing once every queue is as long as it gets. Only the steady state
//! counts: extents are active, nobody comes or goes. A metadata write allocates its blocks; so do
//! state changes.
//!
//! Few metadata writes: also on a machine that has other things to do, in its own time.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "this whole file is a test")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use codec::disk::{MdParams, Placement, Superblock, activity_log};
use codec::wire::{self, Agreed, Packet};
use replication::Resource;
use replication::config::{PeerConfig, ResourceConfig, VolumeConfig};
use replication::io::{
    AdminCommand, AttachImage, BufId, DiskData, DiskLimits, DiskOp, Input, OpId, Output, Request,
    RequestOp,
};
use runtime::counting::{Counting, allocations};
use vocab::options::{DiskOptions, NetOptions, ReadBalancing, ResourceOptions};
use vocab::{Bytes, Dagtag, Instant, Minor, NodeId, SectorRange, VolumeNr};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NR: VolumeNr = VolumeNr(0);
const NODES: usize = 2;
const DEPTH: u64 = 32;
const EXTENT: u64 = 4 << 20;
/// Of the volume.
const EXTENTS: u64 = 1024;
/// Of the activity log.
const AL_EXTENTS: u32 = 256;
/// The protocol of two nodes of ours, with all features.
const AGREED: Agreed = Agreed::new(122, 0x7f);

fn id(node: usize) -> NodeId {
    NodeId::new(node as u8).unwrap()
}

/// How long things take.
#[derive(Clone, Copy)]
struct Machine {
    network: Duration,
    disk: Duration,
    metadata: Duration,
    /// Both nodes and the client share a CPU with others: each has it for `slice`, then has to wait
    /// for so many slices. 0 for as many CPUs as one likes.
    slice: Duration,
    others: u32,
}

const IDEAL: Machine = Machine {
    network: Duration::ZERO,
    disk: Duration::ZERO,
    metadata: Duration::ZERO,
    slice: Duration::ZERO,
    others: 0,
};

impl Machine {
    /// When `who` can go on that has something to do from `at` on.
    fn runs(&self, who: usize, at: Instant) -> Instant {
        if self.slice.is_zero() {
            return at;
        }
        let slice = self.slice.as_nanos() as u64;
        let turn = slice * u64::from(self.others + 1);
        let begin = slice * (who as u64 * 2);
        let within = (at.0 + turn - begin % turn) % turn;
        if within < slice { at } else { Instant(at.0 + turn - within) }
    }
}

/// Something that is going to happen.
struct Event {
    at: Instant,
    /// Of two at the same time, who was first.
    number: u64,
    node: usize,
    input: Input,
}

impl Event {
    fn order(&self) -> Reverse<(Instant, u64)> {
        Reverse((self.at, self.number))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

/// Two nodes, and what is on its way to them.
struct Pair {
    now: Instant,
    machine: Machine,
    cores: [Resource; NODES],
    inputs: BinaryHeap<Event>,
    number: u64,
    /// Wants a link.
    wants: [bool; NODES],
    linked: bool,
    next_buf: u32,
    /// Buffers that cores hold.
    held: i64,
    /// Requests answered.
    completed: u64,
    /// Packets pass as bytes.
    bytes: Option<Vec<u8>>,
    /// Packets that passed so.
    passed: u64,
    metadata_writes: u64,
}

fn config(me: usize) -> ResourceConfig {
    let disk = DiskOptions { al_extents: AL_EXTENTS, ..DiskOptions::default() };
    let other = 1 - me;
    let peer = PeerConfig {
        node_id: id(other),
        name: format!("n{other}"),
        net: NetOptions::default(),
        devices: Vec::new(),
    };
    ResourceConfig {
        name: "r0".to_owned(),
        node_id: id(me),
        options: ResourceOptions::default(),
        handlers: vocab::HandlerSet::NONE,
        volumes: vec![VolumeConfig { nr: NR, minor: Minor(0), diskless: false, disk }],
        peers: vec![peer],
    }
}

fn image(me: usize) -> AttachImage {
    let params = MdParams::new(1);
    let (mut superblock, layout) =
        Superblock::create(Placement::Internal, Bytes((EXTENTS + 1) * EXTENT), &params).unwrap();
    superblock.device_uuid += me as u64;
    let empty = activity_log::empty_block();
    AttachImage {
        capacity: layout.usable,
        superblock: superblock.encode(),
        activity_log: (0..superblock.al.blocks()).map(|_| empty.clone()).collect(),
        bitmap: Vec::new(),
        limits: DiskLimits {
            logical_block_size: 512,
            physical_block_size: 4096,
            discard_zeroes: true,
            max_io: 1 << 20,
        },
        volatile_cache: true,
        boot: 1,
    }
}

impl Pair {
    /// Connected, UpToDate, and node 0 has an opener that writes.
    fn new() -> Pair {
        let core = |me| Resource::new(config(me), me as u64 + 1, Dagtag(0));
        let mut pair = Pair {
            now: Instant(1),
            machine: IDEAL,
            cores: [core(0), core(1)],
            inputs: BinaryHeap::with_capacity(4096),
            number: 0,
            wants: [false; NODES],
            linked: false,
            next_buf: 0,
            held: 0,
            completed: 0,
            bytes: None,
            passed: 0,
            metadata_writes: 0,
        };
        for node in 0..NODES {
            pair.admin(node, AdminCommand::Attach { volume: NR, image: Box::new(image(node)) });
            let connect = AdminCommand::Connect { peer: id(1 - node), discard_my_data: false };
            pair.admin(node, connect);
        }
        pair.run_until(|p| p.cores.iter().all(is_connected));
        pair.admin(0, AdminCommand::NewCurrentUuid { volume: NR, clear_bitmap: true });
        pair.run_until(|p| p.cores.iter().all(is_up_to_date));
        pair.input(0, Input::Open { volume: NR, opener: 1, write: true, patient: false });
        pair.run_until(|p| p.cores[0].status().role == vocab::Role::Primary);
        // From here on as over sockets.
        pair.bytes = Some(Vec::with_capacity(4096));
        pair
    }

    fn admin(&mut self, node: usize, command: AdminCommand) {
        self.input(node, Input::Admin { id: 1, command });
    }

    fn input(&mut self, node: usize, input: Input) {
        self.after(Duration::ZERO, node, input);
        self.run();
    }

    /// So it will happen.
    fn after(&mut self, time: Duration, node: usize, input: Input) {
        self.number += 1;
        let at = self.machine.runs(node, self.now + time);
        self.inputs.push(Event { at, number: self.number, node, input });
    }

    fn run_until(&mut self, mut done: impl FnMut(&Pair) -> bool) {
        for _ in 0..10_000 {
            if done(self) {
                return;
            }
            self.pass_time(Duration::from_millis(5));
        }
        panic!("{:#?}", self.cores[0].status());
    }

    /// So much time passes.
    fn pass_time(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.next().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.run();
            for node in 0..NODES {
                if self.timeout(node).is_some_and(|at| at <= self.now) {
                    self.cores[node].handle(self.now, Input::Timeout);
                    self.drain(node);
                }
            }
        }
        self.now = end;
        self.run();
    }

    /// When the next thing happens.
    fn next(&self) -> Option<Instant> {
        let input = self.inputs.peek().map(|event| event.at);
        (0..NODES).filter_map(|node| self.timeout(node)).chain(input).min()
    }

    /// When a node is told that its time has come.
    fn timeout(&self, node: usize) -> Option<Instant> {
        let (at, _) = self.cores[node].deadline()?;
        Some(self.machine.runs(node, at.max(self.now)))
    }

    fn buf(&mut self) -> BufId {
        self.next_buf = self.next_buf.wrapping_add(1);
        self.held += 1;
        BufId(self.next_buf)
    }

    /// Everything that happens now.
    fn run(&mut self) {
        while self.inputs.peek().is_some_and(|event| event.at <= self.now) {
            let Event { node, input, .. } = self.inputs.pop().unwrap();
            self.cores[node].handle(self.now, input);
            self.drain(node);
        }
    }

    fn drain(&mut self, node: usize) {
        while let Some(output) = self.cores[node].poll() {
            self.carry_out(node, output);
        }
    }

    fn carry_out(&mut self, node: usize, output: Output) {
        match output {
            Output::Connect { .. } => {
                self.wants[node] = true;
                if self.wants == [true; NODES] && !self.linked {
                    self.linked = true;
                    for node in 0..NODES {
                        let (peer, tie_break) = (id(1 - node), node == 0);
                        let challenge = Box::new([node as u8; 64]);
                        let up = Input::LinkUp { peer, tie_break, challenge };
                        self.after(Duration::ZERO, node, up);
                    }
                }
            }
            Output::Send { packet, payload, .. } => {
                let payload = payload.map(|_| self.buf());
                let packet = self.pass(packet);
                let input = Input::Packet { peer: id(node), packet, payload };
                self.after(self.machine.network, 1 - node, input);
            }
            Output::Disk { op, io, .. } => self.disk(node, op, io),
            Output::MetaWrite { op, .. } => {
                self.metadata_writes += 1;
                self.after(self.machine.metadata, node, Input::MetaDone { op, result: Ok(()) });
            }
            Output::Complete { result, .. } => {
                result.unwrap();
                self.completed += 1;
            }
            Output::Free(_) => self.held -= 1,
            Output::OpenDone { result, .. } => result.unwrap(),
            Output::AdminDone { result, .. } => result.unwrap(),
            Output::CloseLink { .. } => panic!("nobody leaves"),
            Output::DiskReleased { .. } => panic!("no disk fails"),
            Output::MeasureDisk { .. } | Output::MoveMetadata { .. } => {
                panic!("nobody resizes: {output:?}")
            }
            Output::StateChanged | Output::SizeChanged { .. } | Output::Log(..) => {}
            Output::CallHandler { .. } => unreachable!("there are no handlers"),
        }
    }

    fn disk(&mut self, node: usize, op: OpId, io: DiskOp) {
        let data = match io {
            DiskOp::Read { .. } => DiskData::Read { buf: self.buf(), all_zero: false },
            _ => DiskData::None,
        };
        self.after(self.machine.disk, node, Input::DiskDone { op, result: Ok(data) });
    }

    /// The packet as the other side reads it.
    fn pass(&mut self, packet: Packet) -> Packet {
        let Some(bytes) = &mut self.bytes else { return packet };
        bytes.clear();
        wire::encode(&packet, &AGREED, bytes);
        let header = wire::decode_header(bytes, packet.stream(), &AGREED).unwrap().unwrap();
        let fixed = header.size()..header.size() + header.fixed_len();
        let read = wire::decode(header, &bytes[fixed], &AGREED).unwrap();
        assert_eq!(read, packet);
        self.passed += 1;
        read
    }

    /// As many requests at once as fit, all over one extent and the next; then some time.
    fn round(&mut self, round: u64, write: bool) {
        for n in 0..DEPTH {
            let op = match write {
                true => RequestOp::Write { buf: self.buf(), fua: false },
                false => RequestOp::Read,
            };
            let range = SectorRange::new((round * 7 + n * 13) % 1000 * 8, 8);
            let request = Request { volume: NR, id: round * DEPTH + n, op, range };
            self.after(Duration::ZERO, 0, Input::Request(request));
        }
        let before = self.completed;
        self.run();
        // Peer-acks and pings have their times; so have the first writes, for the activity log.
        for _ in 0..8 {
            self.pass_time(Duration::from_millis(5));
        }
        assert_eq!(self.completed - before, DEPTH);
    }

    /// Allocations in each of some passes of `ROUNDS`.
    fn measure(&mut self, write: bool) -> [u64; 5] {
        let mut round = 0;
        let mut rounds = |pair: &mut Pair| {
            for _ in 0..ROUNDS {
                round += 1;
                pair.round(round, write);
            }
        };
        rounds(self);
        rounds(self);
        std::array::from_fn(|_| {
            let before = allocations();
            rounds(self);
            allocations() - before
        })
    }
}

/// Rounds of a pass.
const ROUNDS: u64 = 200;

fn is_connected(core: &Resource) -> bool {
    core.status().connections[0].connection_state == vocab::ConnState::Connected
}

fn is_up_to_date(core: &Resource) -> bool {
    core.status().devices[0].disk_state == vocab::DiskState::UpToDate
}

/// Queues grow to their longest, once; what allocates per request does so in every pass.
fn assert_none(what: &str, passes: [u64; 5]) {
    println!("{what}: {passes:?} allocations in passes of {} requests", ROUNDS * DEPTH);
    assert!(passes.contains(&0) && passes.iter().sum::<u64>() < 8, "{what}: {passes:?}");
}

#[test]
fn writes_and_reads_do_not_allocate() {
    let mut pair = Pair::new();
    assert!(allocations() > 0, "the counter counts");
    let passed = pair.passed;
    assert_none("writes to both disks", pair.measure(true));
    assert!(pair.passed - passed > 7 * ROUNDS * DEPTH * 2, "each was sent and acknowledged");
    assert_none("reads of the own disk", pair.measure(false));
    let remote = DiskOptions { read_balancing: ReadBalancing::PreferRemote, ..Default::default() };
    pair.admin(0, AdminCommand::DiskOptions(NR, Box::new(remote)));
    let passed = pair.passed;
    assert_none("reads of the peer's disk", pair.measure(false));
    assert!(pair.passed - passed >= 7 * ROUNDS * DEPTH * 2, "each was asked for and answered");
    assert_eq!(pair.held, 0, "every buffer was given back");
    // Few, and none of them for the requests that count.
    assert!(pair.metadata_writes < 100, "{}", pair.metadata_writes);
}

/// Writes to random extents, so many at a time, until so many are done. A client's next request
/// comes when it has the CPU.
fn write_at_random(pair: &mut Pair, depth: u64, writes: u64) {
    let (mut sent, mut state) = (0, 1u64);
    let begin = pair.completed;
    loop {
        let done = pair.completed - begin;
        if done == writes {
            return;
        }
        let client = pair.machine.runs(NODES, pair.now) == pair.now;
        while client && sent < writes && sent - done < depth {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let block = (state >> 33) % (EXTENTS * EXTENT / 4096);
            let op = RequestOp::Write { buf: pair.buf(), fua: false };
            let request =
                Request { volume: NR, id: sent, op, range: SectorRange::new(block * 8, 8) };
            pair.after(pair.machine.network, 0, Input::Request(request));
            sent += 1;
        }
        pair.pass_time(Duration::from_micros(50));
    }
}

#[test]
fn a_transaction_gathers_what_comes_on_an_idle_machine_and_on_a_busy_one() {
    let micros = Duration::from_micros;
    let idle = Machine {
        network: micros(60),
        disk: micros(300),
        metadata: micros(1000),
        slice: Duration::ZERO,
        others: 0,
    };
    let busy = |slice, others| Machine { slice: micros(slice), others, ..idle };
    for (what, machine) in [
        ("idle", idle),
        ("busy", busy(3000, 5)),
        ("busier", busy(3000, 11)),
        ("busy, for short", busy(500, 20)),
    ] {
        let mut pair = Pair::new();
        pair.machine = machine;
        write_at_random(&mut pair, 64, 2_000);
        let counts = |pair: &Pair| {
            pair.cores.each_ref().map(|core| {
                let device = &core.status().devices[0];
                device.al_writes + device.bm_writes + device.sb_writes.unwrap()
            })
        };
        let (before, begun) = (counts(&pair), pair.now);
        let writes = 20_000;
        write_at_random(&mut pair, 64, writes);
        let after = counts(&pair);
        let ratios: Vec<f64> =
            after.iter().zip(before).map(|(a, b)| writes as f64 / (a - b) as f64).collect();
        let rate = writes as f64 / pair.now.since(begun).as_secs_f64();
        println!("{what}: {ratios:.1?} writes for one of metadata, {rate:.0} writes/s");
        assert!(ratios.iter().all(|ratio| *ratio >= 60.0), "{what}: {ratios:.1?}");
    }
}
