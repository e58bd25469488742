//! The world of a run: nodes, disks, network and clients under one virtual clock.
//!
//! This file is the hub: it owns the data, dispatches the events and drives the resources
//! exactly as `replication::io` asks of a driver. What happens on top is elsewhere: `client`
//! (what users do), `inject` (faults), `operator` (bring-up, repair, convergence) and `check`
//! (what must hold).

use std::collections::BTreeMap;

use codec::wire::{Packet, Stream};
use replication::Resource;
use replication::io::{
    AdminCommand, BufId, DiskData, DiskError, DiskOp, Input, IoError, LinkLoss, MetaPlace,
    MetaWrite, OpId, OpenError, Output, Request,
};
use vocab::{Dagtag, NodeId, Refusal, VolumeNr};

use crate::check::Checks;
use crate::client::Clients;
use crate::content::{Data, ZERO};
use crate::disk::Job;
use crate::handlers::{HandlerStep, Handlers};
use crate::history::{History, Stamp};
use crate::inject::Injector;
use crate::liar::Liar;
use crate::net::{Net, NetEvent};
use crate::node::{Claim, Clock, Drive, Late, Node, OpKind, Origin};
use crate::operator::Operator;
use crate::plan::{Fault, Moment, Plan, node_id};
use crate::queue::Queue;
use crate::rng::Rng;
use crate::sizes::Sizes;
use crate::trace::Trace;
use crate::{blank, trace};

/// A rule that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The rule: the number of an invariant of semantics §13, or a name.
    pub rule: &'static str,
    /// What happened.
    pub message: String,
    /// When, in nanoseconds since the start of the run.
    pub at: u64,
}

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Events handled.
    pub events: u64,
    /// Virtual time in nanoseconds.
    pub time: u64,
    /// Writes acknowledged.
    pub writes: u64,
    /// Reads answered.
    pub reads: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Promotions seen.
    pub promotions: u64,
    /// Resyncs that were seen to run.
    pub resyncs: u64,
    /// Processes that handed over to another one, and those that could not.
    pub swaps: u64,
    /// See there.
    pub swaps_refused: u64,
    /// Nodes that became Primary beside another one, or found the next one.
    pub joins: u64,
    /// Faults by kind.
    pub faults: BTreeMap<Fault, u64>,
}

impl Stats {
    /// Adds another run's.
    pub fn add(&mut self, other: &Stats) {
        self.events += other.events;
        self.time += other.time;
        self.writes += other.writes;
        self.reads += other.reads;
        self.failed += other.failed;
        self.promotions += other.promotions;
        self.resyncs += other.resyncs;
        self.swaps += other.swaps;
        self.swaps_refused += other.swaps_refused;
        self.joins += other.joins;
        for (fault, count) in &other.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
    }

    /// As names and values.
    pub fn lines(&self) -> Vec<(String, u64)> {
        let mut lines = vec![
            ("events".to_owned(), self.events),
            ("virtual-seconds".to_owned(), self.time / 1_000_000_000),
            ("writes".to_owned(), self.writes),
            ("reads".to_owned(), self.reads),
            ("failed-requests".to_owned(), self.failed),
            ("promotions".to_owned(), self.promotions),
            ("resyncs".to_owned(), self.resyncs),
            ("swaps".to_owned(), self.swaps),
            ("swaps-refused".to_owned(), self.swaps_refused),
            ("joins".to_owned(), self.joins),
        ];
        lines.extend(self.faults.iter().map(|(f, n)| (format!("fault-{}", f.name()), *n)));
        lines
    }
}

/// What moment an effect is, if it is one that faults like.
fn moment_of(output: &Output) -> Option<Moment> {
    match output {
        Output::Complete { result: Ok(None), .. } => Some(Moment::Ack),
        Output::MetaWrite { .. } => Some(Moment::Metadata),
        Output::StateChanged => Some(Moment::State),
        Output::Disk { io: DiskOp::Flush, .. } => Some(Moment::Flush),
        Output::Send { packet, .. } => match packet {
            Packet::Data(..) => Some(Moment::Data),
            Packet::TwoPcCommit(..) | Packet::StateChgReply(..) => Some(Moment::Commit),
            Packet::TwoPcPrepare(..) | Packet::StateChgReq(..) => Some(Moment::Prepare),
            Packet::Uuids110(..)
            | Packet::CurrentUuid(..)
            | Packet::Uuids(..)
            | Packet::SyncUuid(..) => Some(Moment::Generation),
            Packet::CompressedBitmap(..) | Packet::Bitmap(..) => Some(Moment::Bitmap),
            Packet::RsDataReply(..) | Packet::RsWriteAck(..) => Some(Moment::Resync),
            Packet::PeerDagtag(..) => Some(Moment::Reconcile),
            _ => None,
        },
        _ => None,
    }
}

/// Something that happens at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The network.
    Net(NetEvent),
    /// A disk operation ends.
    Disk { node: usize, incarnation: u32, volume: usize, slot: usize },
    /// A disk in use has been looked at.
    Measured { node: usize, incarnation: u32, volume: VolumeNr },
    /// A node's timer.
    Timer { node: usize, incarnation: u32, at: u64 },
    /// A client acts.
    Client(usize),
    /// The next fault.
    Fault,
    /// A fault ends.
    Heal(usize),
    /// A handler has something to do, or ends.
    Handler(HandlerStep),
    /// A node boots.
    Boot { node: usize, incarnation: u32 },
    /// A process that is to hand over goes on with that.
    Swap { node: usize, incarnation: u32 },
    /// Volumes of a node hear who has to wait.
    Order { node: usize, incarnation: u32 },
    /// A node gets the volume that it has started without.
    AddVolume { node: usize, incarnation: u32 },
    /// The operator looks around.
    Operator,
}

/// Packets that somebody counts: of one node to another, as they are handed to the network.
pub(crate) struct Tap {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) counts: fn(&Packet) -> bool,
    pub(crate) seen: u64,
    pub(crate) last: Option<Packet>,
}

/// A world.
pub struct World {
    /// What was decided beforehand.
    pub plan: Plan,
    /// The nodes, by node id.
    pub nodes: Vec<Node>,
    /// The network.
    pub net: Net,
    /// The content clients may see, by volume.
    pub histories: Vec<History>,
    /// What was done.
    pub stats: Stats,
    /// The first broken rule.
    pub violation: Option<Violation>,
    /// What nodes were frozen to, if that is to be kept.
    pub frozen: Option<Vec<Vec<u8>>>,
    pub(crate) queue: Queue<Event>,
    pub(crate) rng: Rng,
    pub(crate) stamp: Stamp,
    pub(crate) next_id: u64,
    /// Wishes not answered, by id: node, and whether it is to suspend I/O.
    pub(crate) wishes: BTreeMap<u64, (usize, bool)>,
    /// Answers not fetched yet.
    pub(crate) answers: BTreeMap<u64, Result<(), Refusal>>,
    /// Opens and requests of a scenario that were answered.
    pub(crate) answers_of_opens: BTreeMap<u64, Result<(), OpenError>>,
    pub(crate) answers_of_requests: BTreeMap<u64, Result<(), IoError>>,
    pub(crate) clients: Clients,
    pub(crate) injector: Injector,
    pub(crate) operator: Operator,
    pub(crate) checks: Checks,
    pub(crate) sizes: Sizes,
    /// A node that lies, if there is one.
    pub(crate) liar: Option<Liar>,
    /// What a scenario counts.
    pub(crate) taps: Vec<Tap>,
    pub(crate) handlers: Handlers,
    pub(crate) trace: Trace,
}

impl World {
    /// A world whose nodes are configured, formatted and not booted yet.
    pub fn new(plan: Plan, rng: Rng, trace: Trace) -> World {
        let mut rng = rng;
        let count = plan.nodes.len();
        let mut net = Net::new(count, rng.fork());
        if plan.legacy {
            net.speak_legacy();
        }
        for (i, node) in plan.nodes.iter().enumerate() {
            if let Some(newest) = node.newest {
                net.limit_version(i, newest);
            }
        }
        let mut nodes = Vec::new();
        for (i, node) in plan.nodes.iter().enumerate() {
            let drives = (0..plan.volumes).map(|_| {
                node.diskful.then(|| Drive {
                    disk: blank::disk(&plan, i),
                    claim: Claim::Free,
                    ops: Vec::new(),
                    transactions: Vec::new(),
                })
            });
            nodes.push(Node {
                resource: None,
                incarnation: 0,
                clock: Clock { offset: rng.below(1 << 40), ppm: node.clock_ppm },
                buffers: Default::default(),
                drives: drives.collect(),
                timer: None,
                idle_timeouts: 0,
                paused_until: 0,
                late: Late::Has,
                swap: None,
                swap_step: 0,
                deaf_until: 0,
                requests: BTreeMap::new(),
                openers: BTreeMap::new(),
                order: Default::default(),
            });
        }
        let histories = (0..plan.volumes).map(|_| History::of_plan(&plan)).collect();
        // Not drawn, so that what follows is what it was when there were no handlers.
        let rng_of_handlers = rng.clone().fork();
        let mut world = World {
            clients: Clients::new(&plan, rng.fork()),
            injector: Injector::new(rng.fork()),
            operator: Operator::default(),
            checks: Checks::new(&plan),
            sizes: Sizes::new(&plan),
            plan,
            nodes,
            net,
            histories,
            stats: Stats::default(),
            violation: None,
            frozen: None,
            queue: Queue::default(),
            rng,
            stamp: 1,
            next_id: 1,
            wishes: BTreeMap::new(),
            answers: BTreeMap::new(),
            answers_of_opens: BTreeMap::new(),
            answers_of_requests: BTreeMap::new(),
            liar: None,
            taps: Vec::new(),
            handlers: Handlers::new(rng_of_handlers),
            trace,
        };
        world.prepare_content();
        if world.plan.is_ordered() {
            (0..count).for_each(|node| world.resync_after(node, 1, Some(0)));
        }
        for node in 0..count {
            let at = world.rng.skewed(1, 500_000_000);
            world.queue.at(at, Event::Boot { node, incarnation: 0 });
        }
        world
    }

    /// Virtual time in nanoseconds.
    pub fn now(&self) -> u64 {
        self.queue.now()
    }

    /// The next point in the order of what clients see.
    pub(crate) fn tick(&mut self) -> Stamp {
        self.stamp += 1;
        self.stamp
    }

    /// A number never used before in this run.
    pub(crate) fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Notes that a rule is broken; the first one counts.
    pub fn violate(&mut self, rule: &'static str, message: impl Into<String>) {
        if self.violation.is_some() || (self.liar.is_some() && Liar::may_break(rule)) {
            return;
        }
        let message = message.into();
        trace!(self, "VIOLATION of {rule}: {message}");
        self.violation = Some(Violation { rule, message, at: self.now() });
    }

    /// Runs until a time, or until a rule is broken.
    pub fn run_until(&mut self, end: u64) {
        while self.violation.is_none() && self.queue.next_at().is_some_and(|at| at <= end) {
            self.step();
        }
        if self.violation.is_none() {
            self.queue.advance(end);
        }
        self.stats.time = self.now();
    }

    /// Runs for a while, or until a rule is broken.
    pub fn run_for(&mut self, nanoseconds: u64) {
        self.run_until(self.now() + nanoseconds);
    }

    /// Handles the next event.
    pub(crate) fn step(&mut self) {
        let Some(event) = self.queue.pop() else { return };
        self.stats.events += 1;
        if let Some(until) = self.pause_of(&event) {
            self.queue.at(until, event);
            return;
        }
        match event {
            Event::Net(event) => self.net_event(event),
            Event::Disk { node, incarnation, volume, slot } => {
                self.disk_event(node, incarnation, volume, slot);
            }
            Event::Timer { node, incarnation, at } => {
                let n = &mut self.nodes[node];
                if n.incarnation == incarnation && n.timer == Some(at) {
                    n.timer = None;
                    self.input(node, Input::Timeout);
                    self.check_timer(node);
                }
            }
            Event::Client(client) => self.client_event(client),
            Event::Fault => self.fault_event(),
            Event::Heal(heal) => self.heal_event(heal),
            Event::Handler(event) => self.handler_event(event),
            Event::Boot { node, incarnation } => {
                if self.nodes[node].incarnation == incarnation && !self.nodes[node].up() {
                    self.boot(node);
                }
            }
            Event::Swap { node, incarnation } => self.swap_event(node, incarnation),
            Event::Order { node, incarnation } => self.order_event(node, incarnation),
            Event::AddVolume { node, incarnation } => self.add_volume_event(node, incarnation),
            Event::Operator => self.operator_event(),
            Event::Measured { node, incarnation, volume } => {
                self.measured_event(node, incarnation, volume);
            }
        }
        self.look_at_watched();
    }

    /// A timer that is due again at once, over and over, is one that its handler forgets.
    fn check_timer(&mut self, node: usize) {
        let now = self.queue.now();
        let n = &mut self.nodes[node];
        if n.timer != Some(now) {
            n.idle_timeouts = 0;
            return;
        }
        n.idle_timeouts += 1;
        if n.idle_timeouts > 1000 {
            let deadline = n.resource.as_ref().and_then(Resource::deadline);
            self.violate("timer", format!("n{node} does not deal with {deadline:?}"));
        }
    }

    /// The time until which the event has to wait because its node does not run.
    fn pause_of(&self, event: &Event) -> Option<u64> {
        let until = match event {
            Event::Disk { node, .. }
            | Event::Timer { node, .. }
            | Event::Swap { node, .. }
            | Event::Order { node, .. }
            | Event::AddVolume { node, .. }
            | Event::Measured { node, .. } => self.nodes[*node].paused_until,
            Event::Handler(step) => self.nodes[step.node()].paused_until,
            Event::Net(NetEvent::Arrive { pair, end, .. } | NetEvent::Down { pair, end, .. })
            | Event::Net(NetEvent::Up { pair, end, .. }) => {
                let node = &self.nodes[self.net.nodes_of(*pair)[*end]];
                node.paused_until.max(node.deaf_until)
            }
            _ => return None,
        };
        (until > self.now()).then_some(until)
    }

    // ---- processes ----

    /// Starts a node's process as the engine does at `up`: attach, then connect.
    pub(crate) fn boot(&mut self, node: usize) {
        let seed = self.rng.bits();
        trace!(self, "n{node} boots");
        // Nobody writes as many sectors as nanoseconds pass.
        let position = Dagtag((1 << 32) + self.now());
        let mut config = self.plan.config(node);
        self.leave_out_volume(node, &mut config);
        let n = &mut self.nodes[node];
        assert!(n.resource.is_none(), "a running node does not boot");
        n.incarnation += 1;
        let mut resource = Resource::new(config, seed, position);
        if self.plan.nodes.iter().any(|node| node.newest.is_some()) {
            resource.take_protocol_121();
        }
        n.resource = Some(resource);
        n.buffers = Default::default();
        n.paused_until = 0;
        n.deaf_until = 0;
        let connect_first = self.rng.one_in(4);
        if connect_first {
            self.connect_all(node);
        }
        for volume in 0..self.nodes[node].drives.len() {
            self.attach(node, volume);
        }
        if !connect_first {
            self.connect_all(node);
        }
    }

    fn connect_all(&mut self, node: usize) {
        for peer in (0..self.nodes.len()).filter(|p| *p != node) {
            let command = AdminCommand::Connect { peer: node_id(peer), discard_my_data: false };
            self.admin(node, command);
        }
    }

    /// Attaches the disk of a volume, if there is one and nobody has it.
    pub fn attach(&mut self, node: usize, volume: usize) -> Option<u64> {
        if !self.nodes[node].up() {
            // A fault may have struck while it booted.
            return None;
        }
        let lacked = self.lacks(node, volume);
        let drive = self.nodes[node].drives[volume].as_mut().filter(|_| !lacked)?;
        if drive.claim != Claim::Free {
            return None;
        }
        drive.claim = Claim::Held;
        drive.disk.find_metadata();
        self.checks.attached(node, volume);
        let image = Box::new(drive.disk.image());
        let command = AdminCommand::Attach { volume: VolumeNr(volume as u16), image };
        Some(self.admin(node, command))
    }

    /// Ends a node's process; `power` says that the disks lose their caches too.
    pub(crate) fn crash(&mut self, node: usize, power: bool) {
        if !self.nodes[node].up() {
            return;
        }
        trace!(self, "n{node} {}", if power { "loses power" } else { "is killed" });
        let now = self.now();
        self.nodes[node].resource = None;
        self.nodes[node].timer = None;
        self.nodes[node].swap = None;
        self.nodes[node].incarnation += 1;
        self.forget_resyncs(node);
        self.wishes.retain(|_, (of, _)| *of != node);
        for peer in (0..self.nodes.len()).filter(|p| *p != node) {
            let polite = !power && self.rng.percent(90);
            for (at, event) in self.net.close(now, node, peer, polite) {
                self.queue.at(at, Event::Net(event));
            }
        }
        let requests = std::mem::take(&mut self.nodes[node].requests);
        let openers = std::mem::take(&mut self.nodes[node].openers);
        let ended = self.tick();
        for (_, request) in requests {
            let volume = request.request.volume.0 as usize;
            match request.write {
                Some(write) => self.histories[volume].fail(ended, write),
                None => self.histories[volume].end_read(request.began),
            }
            self.clients.forget_request(request.client);
        }
        for (_, (client, _)) in openers {
            self.clients.lost_node(client);
        }
        for volume in 0..self.nodes[node].drives.len() {
            let Some(drive) = self.nodes[node].drives[volume].as_mut() else { continue };
            drive.claim = Claim::Free;
            drive.ops.clear();
            drive.transactions.clear();
            if power {
                drive.disk.lose_power(&mut self.rng);
            } else {
                drive.disk.kill(&mut self.rng);
            }
            drive.disk.find_metadata();
            self.sizes.told[node][volume] = 0;
            self.doubt(node, volume, power);
        }
        let now = self.stamp;
        self.checks.node_down(node, now);
        for volume in 0..self.nodes[node].drives.len() {
            self.check_crash(node, volume);
        }
    }

    /// Gives a wish of an operator to a node; the answer appears under the returned id.
    pub fn admin(&mut self, node: usize, command: AdminCommand) -> u64 {
        let id = self.fresh_id();
        if !self.nodes[node].up() {
            return id;
        }
        let suspends = matches!(command, AdminCommand::SuspendIo);
        let thaws = matches!(
            command,
            AdminCommand::ResumeIo | AdminCommand::Thaw | AdminCommand::Secondary { force: true }
        );
        if thaws {
            self.checks.thawed(node);
            for (of, suspends) in self.wishes.values_mut() {
                *suspends &= *of != node;
            }
        }
        self.wishes.insert(id, (node, suspends));
        self.input(node, Input::Admin { id, command });
        id
    }

    // ---- driving a resource ----

    /// Hands an input to a node's resource and carries out what it answers.
    pub(crate) fn input(&mut self, node: usize, input: Input) {
        if self.violation.is_some() {
            return;
        }
        if self.trace.on() {
            self.trace.input(self.queue.now(), node, &input);
        }
        let now = self.nodes[node].clock.local(self.queue.now());
        let Some(resource) = self.nodes[node].resource.as_mut() else { return };
        self.checks.step_begins(node, resource);
        resource.handle(now, input);
        while let Some(output) = self.nodes[node].resource.as_mut().and_then(Resource::poll) {
            if self.trace.on() {
                self.trace.output(self.queue.now(), node, &output);
            }
            let moment = moment_of(&output);
            self.output(node, output);
            if self.violation.is_some() {
                return;
            }
            if let Some(moment) = moment {
                self.moment(node, moment);
                self.strike(true);
            }
        }
        if self.nodes[node].up() {
            self.set_timer(node);
            self.check_after_input(node);
        }
        self.strike(false);
    }

    fn set_timer(&mut self, node: usize) {
        let n = &self.nodes[node];
        let deadline = n.resource.as_ref().and_then(Resource::deadline);
        let at = deadline.map(|(at, _)| n.clock.world(at).max(self.queue.now()));
        if at == n.timer {
            return;
        }
        let incarnation = n.incarnation;
        self.nodes[node].timer = at;
        if let Some(at) = at {
            self.queue.at(at, Event::Timer { node, incarnation, at });
        }
    }

    fn output(&mut self, node: usize, output: Output) {
        match output {
            Output::Connect { peer } => {
                let event = self.net.connect(self.queue.now(), node, peer.index());
                self.schedule_net(event);
            }
            Output::CloseLink { peer } => {
                let events = self.net.close(self.queue.now(), node, peer.index(), true);
                self.schedule_net(events);
            }
            Output::Send { peer, packet, payload } => self.send(node, peer, packet, payload),
            Output::Disk { volume, op, io } => self.disk_output(node, volume, op, io),
            Output::MetaWrite { volume, op, write } => {
                self.checks.writes_metadata(node, usize::from(volume.0));
                self.meta_output(node, volume, op, write);
            }
            Output::DiskReleased { volume } => self.disk_released(node, volume.0 as usize),
            Output::Complete { volume, id, result } => {
                let result = match result {
                    Ok(Some(buf)) => {
                        let Some(buffer) = self.nodes[node].buffers.get(buf) else {
                            self.violate("buffers", format!("n{node} completes with {buf:?}"));
                            return;
                        };
                        Ok(Some(buffer.data.clone()))
                    }
                    Ok(None) => Ok(None),
                    Err(error) => Err(error),
                };
                self.completed(node, volume, id, result);
            }
            Output::OpenDone { opener, result, .. } => self.opened(node, opener, result),
            Output::Free(buf) => {
                if !self.nodes[node].buffers.free(buf) {
                    self.violate("buffers", format!("n{node} frees {buf:?}, which is not its own"));
                }
            }
            Output::AdminDone { id, result } => {
                match self.wishes.remove(&id) {
                    None => {
                        let text = format!("n{node} answers the wish {id} that nobody has");
                        self.violate("7", text);
                    }
                    Some((_, true)) if result.is_ok() => self.check_suspended(node),
                    Some(_) => {}
                }
                self.note_added(node, id, result.is_ok());
                self.answers.insert(id, result);
            }
            Output::StateChanged => {
                self.checks.state_changed(node);
                self.note_resyncs(node);
            }
            Output::MeasureDisk { volume } => self.queue_measure(node, volume),
            Output::MoveMetadata { volume } => {
                if let Some(drive) = self.nodes[node].drives[volume.0 as usize].as_mut() {
                    drive.disk.move_metadata();
                }
            }
            Output::SizeChanged { volume, size } => self.size_changed(node, volume, size),
            Output::CallHandler { id, call } => self.handler_called(node, id, call),
            Output::Log(..) => {}
        }
    }

    fn schedule_net(&mut self, events: impl IntoIterator<Item = (u64, NetEvent)>) {
        for (at, event) in events {
            self.queue.at(at, Event::Net(event));
        }
    }

    // ---- network ----

    fn send(&mut self, node: usize, peer: NodeId, packet: Packet, payload: Option<BufId>) {
        let to = peer.index();
        if !self.net.may_send(node, to) {
            self.violate("driver", format!("n{node} sends {packet:?} to {peer:?} without a link"));
            return;
        }
        let data = match payload {
            None => None,
            Some(buf) => match self.nodes[node].buffers.get(buf) {
                Some(buffer) => Some(buffer.data.clone()),
                None => {
                    self.violate("buffers", format!("n{node} sends {buf:?}, which is not its own"));
                    return;
                }
            },
        };
        let length = data.as_ref().map_or(0, |d| d.sectors() * 512);
        if length != packet.payload_len() as u64 {
            self.violate("driver", format!("n{node} sends {length} bytes behind {packet:?}"));
            return;
        }
        let stream = match packet.stream() {
            Stream::Data => 0,
            Stream::Control => 1,
        };
        for tap in self.taps.iter_mut().filter(|tap| (tap.from, tap.to) == (node, to)) {
            if (tap.counts)(&packet) {
                tap.seen += 1;
                tap.last = Some(packet.clone());
            }
        }
        let packet = match self.net.transcode(node, to, &packet) {
            Ok(packet) => packet,
            Err(message) => {
                self.violate("codec", message);
                return;
            }
        };
        let now = self.queue.now();
        let event = self.net.send(now, node, to, stream, Some(packet), data);
        self.schedule_net(event);
    }

    fn net_event(&mut self, event: NetEvent) {
        let now = self.queue.now();
        match event {
            NetEvent::Attempt { pair } => {
                let events = self.net.attempt(now, pair);
                self.schedule_net(events);
            }
            NetEvent::Up { pair, link, end } => {
                if let Some(tie_break) = self.net.up(pair, link, end) {
                    let nodes = self.net.nodes_of(pair);
                    let peer = node_id(nodes[1 - end]);
                    let challenge = Net::challenge(link, end);
                    self.input(nodes[end], Input::LinkUp { peer, tie_break, challenge });
                }
            }
            NetEvent::Down { pair, link, end, loss } => self.link_down(pair, link, end, loss),
            NetEvent::Arrive { pair, link, end, stream } => {
                let (parcel, next) = self.net.arrive(now, pair, link, end, stream);
                self.schedule_net(next);
                let Some(parcel) = parcel else { return };
                let nodes = self.net.nodes_of(pair);
                let (node, peer) = (nodes[end], node_id(nodes[1 - end]));
                if !parcel.is_whole() {
                    trace!(self, "n{node} gets damaged data from n{}", nodes[1 - end]);
                    let events = self.net.close(now, node, nodes[1 - end], true);
                    self.schedule_net(events);
                    self.input(node, Input::LinkDown { peer, loss: LinkLoss::Garbage });
                    return;
                }
                let Some(packet) = parcel.packet else {
                    match self.net.stream_ended(now, pair, link, end, stream) {
                        None => self.link_down(pair, link, end, LinkLoss::Closed),
                        later => self.schedule_net(later),
                    }
                    return;
                };
                for (packet, data) in self.with_lies(nodes[1 - end], node, (packet, parcel.data)) {
                    // A packet before may have cost the link.
                    if self.net.may_send(node, nodes[1 - end]) {
                        self.packet_arrives(node, nodes[1 - end], packet, data);
                    }
                }
            }
        }
    }

    fn packet_arrives(&mut self, node: usize, from: usize, packet: Packet, data: Option<Data>) {
        let origin = match packet {
            Packet::Data(..) => Origin::Peer(from),
            Packet::RsDataReply(..) => Origin::Resync,
            // A user's, of another node.
            Packet::JointData(..) => Origin::Client,
            _ => Origin::Read,
        };
        let payload = data.map(|d| self.nodes[node].buffers.add(d, origin));
        self.input(node, Input::Packet { peer: node_id(from), packet, payload });
    }

    fn link_down(&mut self, pair: usize, link: u64, end: usize, loss: LinkLoss) {
        let (tell, next) = self.net.down(self.queue.now(), pair, link, end);
        self.schedule_net(next);
        if tell {
            let nodes = self.net.nodes_of(pair);
            let peer = node_id(nodes[1 - end]);
            self.input(nodes[end], Input::LinkDown { peer, loss });
        }
    }

    // ---- disks ----

    fn disk_output(&mut self, node: usize, volume: VolumeNr, op: OpId, io: DiskOp) {
        let (job, kind, origin) = match io {
            DiskOp::Read { range, .. } => (Job::Read(range), OpKind::Read, None),
            DiskOp::Digest { range, .. } => (Job::Read(range), OpKind::Digest, None),
            DiskOp::ReadWithDigest { range, .. } => {
                (Job::Read(range), OpKind::ReadWithDigest, None)
            }
            DiskOp::Discard { range } => (Job::Discard(range), OpKind::Plain, None),
            DiskOp::Flush => (Job::Flush, OpKind::Plain, None),
            DiskOp::Zeroes { range, .. } => {
                let data = Data::Fill { tag: ZERO, sectors: range.len.0 as u32 };
                (Job::Write { range, data, fua: false }, OpKind::Plain, None)
            }
            DiskOp::Write { range, buf, fua } => {
                let Some(buffer) = self.nodes[node].buffers.get(buf) else {
                    self.violate(
                        "buffers",
                        format!("n{node} writes {buf:?}, which is not its own"),
                    );
                    return;
                };
                let (data, origin) = (buffer.data.clone(), buffer.origin);
                if data.sectors() != range.len.0 {
                    self.violate("driver", format!("n{node} writes {buf:?} to {range}"));
                    return;
                }
                (Job::Write { range, data, fua }, OpKind::Plain, Some(origin))
            }
        };
        if let Job::Read(range) | Job::Discard(range) | Job::Write { range, .. } = &job {
            let drive = self.nodes[node].drives[volume.0 as usize].as_ref();
            let sectors = drive.map_or(0, |drive| drive.disk.sectors());
            if !range.fits(vocab::Sectors(sectors)) || range.len.0 == 0 {
                self.violate("driver", format!("n{node} asks the disk for {range}"));
                return;
            }
            self.check_disk_write(node, volume.0 as usize, &job, origin);
        }
        self.submit(node, volume.0 as usize, op, kind, job);
    }

    fn meta_output(&mut self, node: usize, volume: VolumeNr, op: OpId, write: MetaWrite) {
        self.check_meta_write(node, volume.0 as usize, &write);
        self.submit(node, volume.0 as usize, op, OpKind::Meta, Job::Meta(write));
    }

    fn submit(&mut self, node: usize, volume: usize, op: OpId, kind: OpKind, job: Job) {
        let now = self.queue.now();
        let incarnation = self.nodes[node].incarnation;
        let drive = self.nodes[node].drives.get_mut(volume).and_then(Option::as_mut);
        let Some(drive) = drive.filter(|d| d.claim == Claim::Held) else {
            self.violate("driver", format!("n{node} uses a disk of v{volume} it does not hold"));
            return;
        };
        let transaction = match &job {
            Job::Meta(write) => write.commit.as_ref().filter(|b| b.place != MetaPlace::Superblock),
            _ => None,
        };
        let transaction = transaction.map(|block| block.bytes.clone());
        let (slot, delay) = drive.disk.submit(now, job, &mut self.rng);
        drive.transactions.extend(transaction.map(|block| (slot, block)));
        if drive.ops.len() <= slot {
            drive.ops.resize(slot + 1, None);
        }
        drive.ops[slot] = Some((op, kind));
        self.queue.at(now + delay, Event::Disk { node, incarnation, volume, slot });
    }

    fn disk_event(&mut self, node: usize, incarnation: u32, volume: usize, slot: usize) {
        let n = &mut self.nodes[node];
        if n.incarnation != incarnation {
            return;
        }
        let drive = n.drives[volume].as_mut().expect("an operation runs on a drive");
        let (op, kind) = drive.ops[slot].take().expect("an operation ends once");
        let result = drive.disk.finish(slot, &mut self.rng);
        if drive.claim == Claim::Releasing && !drive.disk.busy() {
            drive.claim = Claim::Free;
        }
        if let Some(at) = drive.transactions.iter().position(|(of, _)| *of == slot) {
            let (_, block) = drive.transactions.swap_remove(at);
            if result.is_ok() {
                self.checks.transaction(node, volume, &block);
            }
        }
        let input = match kind {
            OpKind::Meta => Input::MetaDone { op, result: result.map(|_| ()) },
            _ => Input::DiskDone { op, result: self.disk_data(node, kind, result) },
        };
        self.input(node, input);
    }

    fn disk_data(
        &mut self,
        node: usize,
        kind: OpKind,
        result: Result<Option<Data>, DiskError>,
    ) -> Result<DiskData, DiskError> {
        let data = result?;
        Ok(match (kind, data) {
            (OpKind::Digest, Some(data)) => DiskData::Digest(data.digest()),
            (OpKind::ReadWithDigest, Some(data)) => {
                let digest = data.digest();
                let buf = self.nodes[node].buffers.add(data, Origin::Read);
                DiskData::ReadWithDigest { buf, digest }
            }
            (_, Some(data)) => {
                let all_zero = data.is_zero();
                DiskData::Read { buf: self.nodes[node].buffers.add(data, Origin::Read), all_zero }
            }
            (_, None) => DiskData::None,
        })
    }

    fn disk_released(&mut self, node: usize, volume: usize) {
        match self.nodes[node].drives.get_mut(volume).and_then(Option::as_mut) {
            Some(drive) if drive.claim == Claim::Held => {
                drive.claim = if drive.disk.busy() { Claim::Releasing } else { Claim::Free };
            }
            _ => self.violate("driver", format!("n{node} releases a disk it does not hold")),
        }
    }

    /// Submits a request of a client.
    pub(crate) fn request(&mut self, node: usize, request: Request) {
        self.input(node, Input::Request(request));
    }
}
