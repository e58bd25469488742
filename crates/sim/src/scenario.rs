//! Hand-written scenarios: the same world as a run of a seed, step by step.
//!
//! ```no_run
//! use sim::plan::Plan;
//! use sim::scenario::scenario;
//!
//! scenario(Plan::quiet(2, 0), |w| {
//!     w.form();
//!     let opener = w.open(0);
//!     w.write(0, 8);
//!     w.close(0, opener);
//!     w.settle();
//! });
//! ```
//!
//! Every scenario runs with several seeds, so that delays and orders vary. All checkers watch.

use codec::wire::Packet;
use replication::io::{AdminCommand, Input, IoError, OpenError};
use vocab::{ConnState, DiskState, Refusal, Role, SectorRange, Sectors, VolumeNr};

use crate::client::Op;
use crate::net::Pace;
use crate::plan::{Plan, SECOND, node_id};
use crate::rng::Rng;
use crate::run;
use crate::trace::Trace;
use crate::view::{DeviceView, View};
use crate::watch::Watch;
use crate::world::{Tap, World};

/// Longest time anything in a scenario may take, in nanoseconds.
const PATIENCE: u64 = 300 * SECOND;
/// Client number of what a scenario itself does.
const SELF: usize = usize::MAX;
/// Seeds each scenario runs with.
const SEEDS: u64 = 12;

/// Runs a scenario with several seeds. `SIM_SEED=n` runs one of them and prints its trace, and with
/// `SIM_WATCH=volume:sector` in it what every node holds there. `SIM_SEEDS=n` runs so many.
///
/// # Panics
/// If a rule is broken or something the scenario waits for does not happen.
pub fn scenario(plan: Plan, script: impl Fn(&mut World)) {
    let number = |name| std::env::var(name).ok().and_then(|s: String| s.parse::<u64>().ok());
    let only = number("SIM_SEED");
    let all = number("SIM_SEEDS").unwrap_or(SEEDS);
    for seed in only.map_or(0..all, |seed| seed..seed + 1) {
        let trace = match only {
            Some(_) => Trace::to(|line| eprintln!("{line}")).watching(watched()),
            None => Trace::off(),
        };
        let mut world = World::new(plan.clone(), Rng::new(seed), trace);
        script(&mut world);
        if let Some(violation) = &world.violation {
            panic!("seed {seed}: {} at {}: {}", violation.rule, violation.at, violation.message);
        }
    }
}

/// What `SIM_WATCH=volume:sector` says.
fn watched() -> Option<Watch> {
    let place = std::env::var("SIM_WATCH").ok()?;
    Some(place.parse().unwrap_or_else(|error| panic!("SIM_WATCH: {error}")))
}

/// Steps of a scenario. All of them stop doing anything once a rule is broken.
impl World {
    /// Runs until the condition holds; broken rule "wait" if it does not in time.
    pub fn wait(&mut self, what: &str, condition: impl Fn(&World) -> bool) {
        let limit = self.now() + PATIENCE;
        while self.violation.is_none() && !condition(self) {
            if self.queue.next_at().is_none_or(|at| at > limit) {
                self.violate("wait", self.describe(&format!("waited in vain: {what}")));
                return;
            }
            self.step();
        }
    }

    /// Runs for so many seconds.
    pub fn run_seconds(&mut self, seconds: u64) {
        self.run_for(seconds * SECOND);
    }

    /// Boots every node and makes the data UpToDate without a resync.
    pub fn form(&mut self) {
        self.wait("all nodes are connected", World::all_connected);
        for volume in 0..self.plan.volumes {
            if self.lacks(0, usize::from(volume)) {
                continue;
            }
            let volume = VolumeNr(volume);
            let command = AdminCommand::NewCurrentUuid { volume, clear_bitmap: true };
            self.granted(0, command);
        }
        self.wait("the data is UpToDate everywhere", World::formed);
    }

    /// Gives a wish to a node and waits for the answer.
    pub fn ask(&mut self, node: usize, command: AdminCommand) -> Result<(), Refusal> {
        let id = self.admin(node, command);
        self.wait("the wish is answered", |w| w.answers.contains_key(&id));
        self.answers.remove(&id).unwrap_or(Ok(()))
    }

    /// True if a wish given with [`admin`](Self::admin) is answered.
    pub fn has_answer(&self, id: u64) -> bool {
        self.answers.contains_key(&id)
    }

    /// Hands an input to a node that no other step makes.
    pub fn input_of_scenario(&mut self, node: usize, input: Input) {
        self.input(node, input);
    }

    /// Replaces the disk of a node that is down by a blank one.
    pub fn replace_disk(&mut self, node: usize) {
        self.replace_disk_by(node, self.plan.sectors);
    }

    /// The same by a blank one of another size, no larger than the plan's.
    pub fn replace_disk_by(&mut self, node: usize, sectors: u64) {
        assert!(sectors <= self.plan.sectors, "the histories end with the plan's size");
        let plan = Plan { sectors, ..self.plan.clone() };
        assert!(!self.nodes[node].up(), "disks are replaced while the node is down");
        for drive in self.nodes[node].drives.iter_mut().flatten() {
            drive.disk = crate::blank::disk(&plan, node);
        }
    }

    /// Gives the disks of volume 0 on these nodes so many sectors more than the plan says.
    pub fn give_room<const N: usize>(&mut self, nodes: [usize; N], more: u64) {
        let sectors = self.plan.sectors + more;
        assert!(sectors <= self.plan.most_sectors(), "the histories end there");
        nodes.into_iter().for_each(|node| self.grow_disk(node, 0, sectors));
    }

    /// What a resize of volume 0 to all the room there is comes to.
    pub fn try_resize(&mut self, node: usize, assume_peer_has_space: bool) -> Result<(), Refusal> {
        let (volume, size, assume_clean) = (VolumeNr(0), None, false);
        let command = AdminCommand::Resize { volume, size, assume_peer_has_space, assume_clean };
        self.ask(node, command)
    }

    /// Resizes volume 0 to all the room there is.
    pub fn resize(&mut self, node: usize) {
        if let Err(refusal) = self.try_resize(node, false) {
            self.violate("wait", self.describe(&format!("n{node} does not resize: {refusal}")));
        }
    }

    /// Shrinks or grows volume 0 to a size.
    pub fn resize_to(&mut self, node: usize, sectors: u64) -> Result<(), Refusal> {
        self.sizes.shrinks_to[0] = sectors;
        let (assume_peer_has_space, assume_clean) = (false, false);
        let (volume, size) = (VolumeNr(0), Some(Sectors(sectors)));
        let command = AdminCommand::Resize { volume, size, assume_peer_has_space, assume_clean };
        self.ask(node, command)
    }

    /// What users of volume 0 have been told of its size.
    pub fn told_size(&self, node: usize) -> u64 {
        self.sizes.told[node][0]
    }

    /// Gives a wish to a node that must be granted.
    pub fn granted(&mut self, node: usize, command: AdminCommand) {
        let text = format!("{command:?}");
        if let Err(refusal) = self.ask(node, command) {
            self.violate("wait", self.describe(&format!("n{node} refuses {text}: {refusal}")));
        }
    }

    /// Gives a wish to a node that must be refused.
    pub fn refused(&mut self, node: usize, command: AdminCommand) {
        let text = format!("{command:?}");
        if self.ask(node, command).is_ok() && self.violation.is_none() {
            self.violate("wait", self.describe(&format!("n{node} grants {text}")));
        }
    }

    /// Promotes.
    pub fn promote(&mut self, node: usize) {
        self.granted(node, AdminCommand::Primary { force: false });
    }

    /// Demotes.
    pub fn demote(&mut self, node: usize) {
        self.granted(node, AdminCommand::Secondary { force: false });
    }

    /// Opens volume 0 for writing; the open may fail.
    pub fn try_open(&mut self, node: usize) -> Result<u64, OpenError> {
        self.try_open_for(node, true, false)
    }

    /// Opens volume 0 for reading; the open may fail.
    pub fn try_open_reader(&mut self, node: usize) -> Result<u64, OpenError> {
        self.try_open_for(node, false, false)
    }

    /// The same, with patience while another node is Primary.
    pub fn try_open_patient_reader(&mut self, node: usize) -> Result<u64, OpenError> {
        self.try_open_for(node, false, true)
    }

    fn try_open_for(&mut self, node: usize, write: bool, patient: bool) -> Result<u64, OpenError> {
        let opener = self.fresh_id();
        self.nodes[node].openers.insert(opener, (SELF, false));
        self.input(node, Input::Open { volume: VolumeNr(0), opener, write, patient });
        self.wait("the open is answered", |w| {
            w.answers_of_opens.contains_key(&opener)
                || w.nodes[node].openers.get(&opener).is_some_and(|(_, open)| *open)
        });
        match self.answers_of_opens.remove(&opener) {
            Some(Err(error)) => Err(error),
            _ => Ok(opener),
        }
    }

    /// Opens volume 0 for writing.
    pub fn open(&mut self, node: usize) -> u64 {
        match self.try_open(node) {
            Ok(opener) => opener,
            Err(error) => {
                let message = self.describe(&format!("n{node} can not be opened: {error:?}"));
                self.violate("wait", message);
                0
            }
        }
    }

    /// Closes what [`open`](Self::open) opened.
    pub fn close(&mut self, node: usize, opener: u64) {
        if self.nodes[node].openers.remove(&opener).is_some() {
            self.input(node, Input::Close { volume: VolumeNr(0), opener });
        }
    }

    /// Submits a request for volume 0 and does not wait.
    pub fn start(&mut self, node: usize, op: Op, sector: u64, sectors: u64) -> u64 {
        self.start_on(node, 0, op, SectorRange::new(sector, sectors))
    }

    /// The same for any volume.
    pub fn start_on(&mut self, node: usize, volume: usize, op: Op, range: SectorRange) -> u64 {
        self.submit_request(SELF, node, volume, op, range)
    }

    /// True if a started request is answered.
    pub fn is_answered(&self, id: u64) -> bool {
        self.answers_of_requests.contains_key(&id)
    }

    /// Waits for a started request.
    pub fn finish(&mut self, id: u64) -> Result<(), IoError> {
        self.wait("the request is answered", |w| w.is_answered(id));
        self.answers_of_requests.remove(&id).unwrap_or(Ok(()))
    }

    /// Submits a request for volume 0 and waits.
    pub fn request_and_wait(&mut self, node: usize, op: Op, sector: u64) -> Result<(), IoError> {
        let sectors = if matches!(op, Op::Flush) { 0 } else { 8 };
        let id = self.start(node, op, sector, sectors);
        self.finish(id)
    }

    fn must(&mut self, node: usize, op: Op, sector: u64) {
        if let Err(error) = self.request_and_wait(node, op, sector) {
            let message = format!("n{node} fails {op:?} at {sector}: {error:?}");
            self.violate("wait", self.describe(&message));
        }
    }

    /// Writes 8 sectors, which must succeed.
    pub fn write(&mut self, node: usize, sector: u64) {
        self.must(node, Op::Write { fua: false }, sector);
    }

    /// Opens, writes 8 sectors, and closes again.
    pub fn write_after_open(&mut self, node: usize, sector: u64) {
        let opener = self.open(node);
        self.write(node, sector);
        self.close(node, opener);
    }

    /// Reads 8 sectors, which must succeed; the checkers look at what is read.
    pub fn read(&mut self, node: usize, sector: u64) {
        self.must(node, Op::Read, sector);
    }

    /// Flushes, which must succeed.
    pub fn flush(&mut self, node: usize) {
        self.must(node, Op::Flush, 0);
    }

    /// Writes that must fail.
    pub fn write_fails(&mut self, node: usize, sector: u64) {
        let result = self.request_and_wait(node, Op::Write { fua: false }, sector);
        if result.is_ok() && self.violation.is_none() {
            self.violate("wait", self.describe(&format!("n{node} writes {sector}")));
        }
    }

    /// Cuts both directions between two nodes.
    pub fn cut(&mut self, a: usize, b: usize) {
        self.set_cut(a, b, true);
    }

    /// Heals both directions between two nodes.
    pub fn heal(&mut self, a: usize, b: usize) {
        self.set_cut(a, b, false);
    }

    /// Cuts `a` off from each of these nodes.
    pub fn cut_off<const N: usize>(&mut self, a: usize, others: [usize; N]) {
        others.into_iter().for_each(|b| self.cut(a, b));
    }

    /// Heals what is between `a` and each of these nodes.
    pub fn rejoin<const N: usize>(&mut self, a: usize, others: [usize; N]) {
        others.into_iter().for_each(|b| self.heal(a, b));
    }

    /// Cuts one direction: what is sent waits.
    pub fn cut_one_way(&mut self, from: usize, to: usize) {
        self.set_cut_of(from, to, true);
    }

    /// Heals one direction: what waits arrives, if the connection has lived on.
    pub fn heal_one_way(&mut self, from: usize, to: usize) {
        self.set_cut_of(from, to, false);
    }

    /// Counts from now on what one node sends another; see [`tapped`](Self::tapped).
    pub fn tap(&mut self, from: usize, to: usize, counts: fn(&Packet) -> bool) -> usize {
        self.taps.push(Tap { from, to, counts, seen: 0, last: None });
        self.taps.len() - 1
    }

    /// How many of such packets were sent since the tap was set.
    pub fn tapped(&self, tap: usize) -> u64 {
        self.taps[tap].seen
    }

    /// The last of such packets.
    pub fn tapped_last(&self, tap: usize) -> Option<Packet> {
        self.taps[tap].last.clone()
    }

    /// Waits until one node sends another a packet of a kind. It is still on its way then.
    pub fn wait_sent(&mut self, from: usize, to: usize, what: &str, counts: fn(&Packet) -> bool) {
        let tap = self.tap(from, to, counts);
        self.wait(&format!("n{from} sends n{to} {what}"), |w| w.tapped(tap) > 0);
    }

    /// The connection breaks, and nothing arrives of what the first node has sent and the second
    /// one has not received yet. Both directions are cut then.
    pub fn lose_what_is_under_way(&mut self, from: usize, to: usize) {
        self.cut(from, to);
        self.reset(from, to);
        self.wait_lost(from, to);
        self.wait_lost(to, from);
    }

    /// Breaks the connection between two nodes, which both notice soon.
    pub fn reset(&mut self, a: usize, b: usize) {
        let now = self.now();
        for (at, event) in self.net.reset_between(now, a, b) {
            self.queue.at(at, crate::world::Event::Net(event));
        }
    }

    fn set_cut(&mut self, a: usize, b: usize, cut: bool) {
        self.set_cut_of(a, b, cut);
        self.set_cut_of(b, a, cut);
    }

    fn set_cut_of(&mut self, from: usize, to: usize, cut: bool) {
        let now = self.now();
        for (at, event) in self.net.set_cut(now, from, to, cut) {
            self.queue.at(at, crate::world::Event::Net(event));
        }
    }

    /// Lets every packet from one node to another take so many nanoseconds.
    pub fn slow(&mut self, from: usize, to: usize, nanoseconds: u64) {
        let pace = Pace { delay: (nanoseconds, nanoseconds), ..Pace::default() };
        self.pace(from, to, pace);
    }

    /// Lets packets from one node to another take so long.
    pub fn pace(&mut self, from: usize, to: usize, pace: Pace) {
        self.net.set_pace(from, to, pace);
    }

    /// Kills a node's process.
    pub fn kill(&mut self, node: usize) {
        self.crash(node, false);
    }

    /// Takes a node's power away.
    pub fn power_loss(&mut self, node: usize) {
        self.crash(node, true);
    }

    /// A node's process does not run for so many seconds; what is sent to it waits.
    pub fn pause(&mut self, node: usize, seconds: u64) {
        self.nodes[node].paused_until = self.now() + seconds * SECOND;
    }

    /// Starts a node again.
    pub fn start_node(&mut self, node: usize) {
        self.boot(node);
    }

    /// Disconnects gracefully, seen from `a`.
    pub fn disconnect(&mut self, a: usize, b: usize) {
        self.granted(a, AdminCommand::Disconnect { peer: node_id(b), force: false });
    }

    /// Lets `a` connect to `b` again; nothing happens if it is trying already.
    pub fn connect(&mut self, a: usize, b: usize) {
        let command = AdminCommand::Connect { peer: node_id(b), discard_my_data: false };
        let alone = self.view(a).and_then(|v| v.peers[b].as_ref().map(|p| p.conn));
        if alone == Some(ConnState::StandAlone) {
            self.granted(a, command);
        }
    }

    /// Removes a StandAlone peer, trying again while its loss is being dealt with.
    pub fn remove_peer(&mut self, node: usize, peer: usize) {
        let limit = self.now() + PATIENCE;
        while let Err(refusal) = self.ask(node, AdminCommand::DelPeer(node_id(peer))) {
            if self.violation.is_some() {
                return;
            }
            if self.now() > limit {
                let what = self.describe(&format!("n{node} does not remove n{peer}: {refusal}"));
                return self.violate("wait", what);
            }
            self.run_for(SECOND / 10);
        }
    }

    /// Detaches the disk of volume 0.
    pub fn detach(&mut self, node: usize) {
        let volume = VolumeNr(0);
        self.granted(node, AdminCommand::Detach { volume, force: false, intentional: false });
    }

    /// Until the disk of volume 0 is released, and nothing is under way on it.
    pub fn wait_disk_free(&mut self, node: usize) {
        self.wait("the disk is free", |w| {
            w.nodes[node].drive(0).is_some_and(|d| d.claim == crate::node::Claim::Free)
        });
    }

    /// Attaches the disk of volume 0 again.
    pub fn attach_again(&mut self, node: usize) {
        self.wait_disk_free(node);
        let id = self.attach(node, 0).unwrap_or(0);
        self.wait("the attach is answered", |w| w.answers.contains_key(&id));
        if let Some(Err(refusal)) = self.answers.remove(&id) {
            self.violate("wait", self.describe(&format!("n{node} refuses to attach: {refusal}")));
        }
    }

    /// The disk of volume 0 answers nothing for so many seconds, or until
    /// [`release_disk`](Self::release_disk).
    pub fn stall_disk(&mut self, node: usize, seconds: u64) {
        let until = self.now() + seconds * SECOND;
        self.nodes[node].drives[0].as_mut().expect("a disk").disk.behaviour.stuck_until = until;
    }

    /// The disk of volume 0 answers again.
    pub fn release_disk(&mut self, node: usize) {
        self.nodes[node].drives[0].as_mut().expect("a disk").disk.behaviour.stuck_until = 0;
    }

    /// Lets background metadata writes happen.
    pub fn flush_disks(&mut self) {
        self.run_seconds(10);
    }

    /// What a running node says.
    pub fn seen(&self, node: usize) -> View {
        self.view(node).expect("the node runs")
    }

    /// State of the disk of volume 0.
    pub fn disk(&self, node: usize) -> DiskState {
        self.view(node).map_or(DiskState::DUnknown, |v| v.volumes[0].disk)
    }

    /// What `node` says about volume 0 on `peer`.
    pub fn device(&self, node: usize, peer: usize) -> DeviceView {
        self.seen(node).peers[peer].as_ref().expect("another node").devices[0]
    }

    /// True if both nodes say that they are connected.
    pub fn connected(&self, a: usize, b: usize) -> bool {
        let one = |a: usize, b: usize| {
            self.view(a).is_some_and(|v| {
                v.peers[b].as_ref().is_some_and(|p| p.conn == ConnState::Connected)
            })
        };
        one(a, b) && one(b, a)
    }

    /// Waits until two nodes are connected.
    pub fn wait_connected(&mut self, a: usize, b: usize) {
        self.wait(&format!("n{a} and n{b} are connected"), |w| w.connected(a, b));
    }

    /// Waits until `a` has noticed that it has lost `b`.
    pub fn wait_lost(&mut self, a: usize, b: usize) {
        self.wait(&format!("n{a} has lost n{b}"), |w| {
            w.view(a).is_some_and(|v| {
                v.peers[b].as_ref().is_some_and(|p| p.conn != ConnState::Connected)
            })
        });
    }

    /// Waits until `a` and each of these nodes have noticed that they have lost each other.
    pub fn wait_lost_all<const N: usize>(&mut self, a: usize, others: [usize; N]) {
        for b in others {
            self.wait_lost(a, b);
            self.wait_lost(b, a);
        }
    }

    /// Waits until nothing uses the node as Primary any more.
    pub fn wait_secondary(&mut self, node: usize) {
        self.wait(&format!("n{node} is Secondary"), |w| !w.is_primary(node));
    }

    /// Waits for a state of the disk of volume 0.
    pub fn wait_disk(&mut self, node: usize, state: DiskState) {
        self.wait(&format!("the disk of n{node} is {state}"), |w| w.disk(node) == state);
    }

    /// A condition that must hold now.
    pub fn expect(&mut self, what: &str, condition: impl Fn(&World) -> bool) {
        if self.violation.is_none() && !condition(self) {
            self.violate("expect", self.describe(&format!("it does not hold that {what}")));
        }
    }

    /// True if the node is Primary.
    pub fn is_primary(&self, node: usize) -> bool {
        self.view(node).is_some_and(|v| v.role == Role::Primary)
    }

    /// Waits until everything is in sync and nobody is Primary, and compares all replicas.
    pub fn settle(&mut self) {
        self.wait("everything settles", |w| w.unsettled().is_none());
        // A peer-ack that comes behind the end of a resync leaves a bit for a while.
        self.run_seconds(3);
        self.wait("everything settles", |w| w.unsettled().is_none());
        self.run_seconds(1);
        if let Some(what) = self.unsettled() {
            self.violate("46", self.describe(&what));
        }
        self.check_final();
    }
}

/// Runs a scenario that must break a rule; for tests of the checkers. Returns the rule.
pub fn broken_rule(plan: Plan, seed: u64, script: impl FnOnce(&mut World)) -> Option<&'static str> {
    run::judge(plan, Rng::new(seed), Trace::off(), script).violation.map(|v| v.rule)
}
