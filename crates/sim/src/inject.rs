//! Faults: what may go wrong, for how long, and how it is undone.

use replication::io::AdminCommand;
use vocab::{ConnState, DiskState, ReplState, VolumeNr};

use crate::disk::Behaviour;
use crate::net::Pace;
use crate::plan::{Fault, MILLISECOND, Moment, SECOND, node_id};
use crate::rng::Rng;
use crate::trace;
use crate::view::PeerView;
use crate::world::{Event, World};

/// How a fault ends.
#[derive(Clone, Debug)]
enum Undo {
    Uncut(Vec<(usize, usize)>),
    Pace(usize, usize),
    Disk(usize, usize),
    Attach(usize, usize),
    Connect(usize, usize),
    ResumeIo(usize),
    ResumeSync(usize, usize, usize),
}

/// Faults of a run.
#[derive(Debug)]
pub(crate) struct Injector {
    rng: Rng,
    left: u64,
    undo: Vec<Option<Undo>>,
    /// A fault that waits for the n-th occurrence of a moment.
    aim: Option<(Moment, u64)>,
    /// The node where the moment has come.
    struck: Option<usize>,
    /// The fault that strikes once the node is done with what it does.
    next: Option<Fault>,
}

impl Injector {
    pub(crate) fn new(rng: Rng) -> Injector {
        Injector { rng, left: 0, undo: Vec::new(), aim: None, struck: None, next: None }
    }

    /// True if no more faults will come.
    pub(crate) fn exhausted(&self) -> bool {
        self.left == 0
    }
}

impl World {
    /// Lets faults begin.
    pub(crate) fn start_faults(&mut self) {
        if !self.plan.faults.is_empty() {
            self.injector.left = self.plan.fault_budget;
        }
        self.schedule_fault();
    }

    fn schedule_fault(&mut self) {
        if self.injector.left == 0 {
            return;
        }
        let rng = &mut self.injector.rng;
        let mut pause = rng.skewed(MILLISECOND, self.plan.fault_pause);
        if rng.percent(self.plan.aimed) {
            let moment = *rng.pick(&Moment::ALL);
            self.injector.aim = Some((moment, rng.skewed(1, 30)));
            // The moment may never come.
            pause += self.plan.fault_pause;
        }
        self.queue.at(self.now() + pause, Event::Fault);
    }

    /// A moment has come on a node: a fault may have waited for it.
    pub(crate) fn moment(&mut self, node: usize, moment: Moment) {
        if let Some((wanted, left)) = &mut self.injector.aim {
            if *wanted == moment {
                *left -= 1;
                if *left == 0 {
                    self.injector.aim = None;
                    self.injector.struck = Some(node);
                }
            }
        }
    }

    /// True if a fault strikes now.
    pub(crate) const fn is_struck(&self) -> bool {
        self.injector.struck.is_some()
    }

    /// The fault that has waited for this moment happens, most often where the moment was: a
    /// crash at once, in the middle of what the node does, anything else when it is done.
    pub(crate) fn strike(&mut self, in_the_middle: bool) {
        if !self.is_struck() {
            return;
        }
        if in_the_middle && self.injector.next.is_none() {
            self.injector.next = self.draw_fault();
        }
        let crash = matches!(self.injector.next, Some(Fault::Kill | Fault::PowerLoss));
        if crash || !in_the_middle {
            if let Some(fault) = self.injector.next.take() {
                self.inject(fault);
            }
            self.injector.struck = None;
        }
    }

    pub(crate) fn fault_event(&mut self) {
        self.injector.aim = None;
        if let Some(fault) = self.draw_fault() {
            self.inject(fault);
        }
        self.schedule_fault();
    }

    /// The next fault, if there is one left.
    fn draw_fault(&mut self) -> Option<Fault> {
        if self.injector.left == 0 {
            return None;
        }
        self.injector.left -= 1;
        let weights: Vec<u64> = self.plan.faults.iter().map(|(_, weight)| *weight).collect();
        let fault = self.plan.faults[self.injector.rng.weighted(&weights)].0;
        trace!(self, "fault: {}", fault.name());
        *self.stats.faults.entry(fault).or_default() += 1;
        Some(fault)
    }

    fn random_node(&mut self) -> usize {
        match self.injector.struck {
            Some(node) if self.injector.rng.percent(70) => node,
            _ => self.injector.rng.below(self.nodes.len() as u64) as usize,
        }
    }

    fn random_pair(&mut self) -> (usize, usize) {
        let a = self.random_node();
        let b = self.injector.rng.below(self.nodes.len() as u64 - 1) as usize;
        let b = if b < a { b } else { b + 1 };
        if self.injector.rng.one_in(2) { (a, b) } else { (b, a) }
    }

    fn random_volume(&mut self) -> usize {
        self.injector.rng.below(u64::from(self.plan.volumes)) as usize
    }

    /// A disk that exists, or `None` if the node drawn has none.
    fn random_disk(&mut self) -> Option<(usize, usize)> {
        let (node, volume) = (self.random_node(), self.random_volume());
        self.nodes[node].drives[volume].is_some().then_some((node, volume))
    }

    fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::Kill | Fault::PowerLoss => {
                let all = self.injector.rng.one_in(6);
                let chosen = self.random_node();
                for node in 0..self.nodes.len() {
                    if all || node == chosen {
                        self.crash(node, fault == Fault::PowerLoss);
                        let delay = self.injector.rng.skewed(5 * MILLISECOND, 30 * SECOND);
                        let incarnation = self.nodes[node].incarnation;
                        let boot = Event::Boot { node, incarnation };
                        self.queue.at(self.now() + delay, boot);
                    }
                }
            }
            Fault::Cut => {
                let (a, b) = self.random_pair();
                self.cut_for_a_while(vec![(a, b), (b, a)]);
            }
            Fault::OneWayCut => {
                let (a, b) = self.random_pair();
                self.cut_for_a_while(vec![(a, b)]);
            }
            Fault::Partition => self.partition(),
            Fault::Reset => {
                let (a, b) = self.random_pair();
                let now = self.now();
                for (at, event) in self.net.reset_between(now, a, b) {
                    self.queue.at(at, Event::Net(event));
                }
            }
            Fault::Resize => {
                let (node, volume) = (self.random_node(), self.random_volume());
                let chance = self.injector.rng.below(1 << 16);
                self.resize_somewhere(node, volume, chance);
            }
            Fault::Swap => {
                let node = self.random_node();
                let longest = self.injector.rng.skewed(MILLISECOND, SECOND);
                self.swap(node, longest);
            }
            Fault::Damage => {
                let (a, b) = self.random_pair();
                self.net.damage(a, b);
            }
            Fault::SlowLink => {
                let (a, b) = self.random_pair();
                let rng = &mut self.injector.rng;
                let longest = rng.skewed(10 * MILLISECOND, 2 * SECOND);
                let delay = (longest / 10, longest);
                let per_sector = rng.skewed(1_000, 200_000);
                self.net.set_pace(a, b, Pace { delay, per_sector });
                self.undo_later(Undo::Pace(a, b));
            }
            Fault::Pause => {
                let node = self.random_node();
                let pause = self.injector.rng.skewed(10 * MILLISECOND, 20 * SECOND);
                self.nodes[node].paused_until = self.now() + pause;
            }
            Fault::SlowDisk
            | Fault::StuckDisk
            | Fault::ReadErrors
            | Fault::WriteErrors
            | Fault::MetaErrors => self.disk_fault(fault),
            Fault::Disconnect
            | Fault::Detach
            | Fault::Invalidate
            | Fault::Verify
            | Fault::PauseSync
            | Fault::SuspendIo
            | Fault::ForceSecondary => self.operator_fault(fault),
        }
    }

    fn cut_for_a_while(&mut self, directions: Vec<(usize, usize)>) {
        let now = self.now();
        for (from, to) in &directions {
            self.net.set_cut(now, *from, *to, true);
        }
        if self.injector.rng.one_in(3) {
            // The sockets break as well, so that the ends notice before their pings do.
            for pair in 0..self.net.pairs() {
                let [a, b] = self.net.nodes_of(pair);
                if directions.contains(&(a, b)) || directions.contains(&(b, a)) {
                    for (at, event) in self.net.reset(now, pair) {
                        self.queue.at(at, Event::Net(event));
                    }
                }
            }
        }
        self.undo_later(Undo::Uncut(directions));
    }

    fn partition(&mut self) {
        let sides = self.injector.rng.range(1, (1 << self.nodes.len()) - 2);
        let mut directions = Vec::new();
        for a in 0..self.nodes.len() {
            for b in 0..self.nodes.len() {
                if a != b && (sides >> a & 1) != (sides >> b & 1) {
                    directions.push((a, b));
                }
            }
        }
        self.cut_for_a_while(directions);
    }

    fn disk_fault(&mut self, fault: Fault) {
        let Some((node, volume)) = self.random_disk() else { return };
        let now = self.now();
        let rng = &mut self.injector.rng;
        let slow = rng.skewed(5 * MILLISECOND, SECOND);
        let stuck = now + rng.skewed(100 * MILLISECOND, 60 * SECOND);
        let percent = *rng.pick(&[3, 30, 100]);
        let drive = self.nodes[node].drives[volume].as_mut().expect("drawn because it exists");
        let behaviour = &mut drive.disk.behaviour;
        match fault {
            Fault::SlowDisk => behaviour.latency = (slow / 10, slow),
            Fault::StuckDisk => behaviour.stuck_until = stuck,
            Fault::ReadErrors => behaviour.read_errors = percent,
            Fault::WriteErrors => behaviour.write_errors = percent,
            _ => behaviour.meta_errors = percent,
        }
        self.undo_later(Undo::Disk(node, volume));
    }

    fn operator_fault(&mut self, fault: Fault) {
        let (node, peer) = self.random_pair();
        let volume = self.random_volume();
        let nr = VolumeNr(volume as u16);
        let force = self.injector.rng.one_in(3);
        let some = self.injector.rng.one_in(2);
        let (command, undo) = match fault {
            Fault::Disconnect => {
                let command = AdminCommand::Disconnect { peer: node_id(peer), force };
                (command, Some(Undo::Connect(node, peer)))
            }
            Fault::Detach => {
                let command = AdminCommand::Detach { volume: nr, force, intentional: false };
                (command, Some(Undo::Attach(node, volume)))
            }
            Fault::Invalidate => {
                // Nobody gives up a disk without having seen that another is good.
                let good = |p: &PeerView| {
                    p.conn == ConnState::Connected
                        && p.devices[volume].disk == DiskState::UpToDate
                        && p.devices[volume].repl == ReplState::Established
                };
                if !self.view(node).is_some_and(|v| v.peers.iter().flatten().any(good)) {
                    return;
                }
                let from = some.then(|| node_id(peer));
                (AdminCommand::Invalidate { volume: nr, from }, None)
            }
            Fault::Verify => {
                let start = some.then_some(0);
                let peer = node_id(peer);
                (AdminCommand::Verify { peer, volume: nr, start, stop: None }, None)
            }
            Fault::PauseSync => {
                let peer_id = node_id(peer);
                let command = AdminCommand::PauseSync { peer: peer_id, volume: nr, pause: true };
                (command, Some(Undo::ResumeSync(node, peer, volume)))
            }
            Fault::SuspendIo => (AdminCommand::SuspendIo, Some(Undo::ResumeIo(node))),
            _ => (AdminCommand::Secondary { force: true }, None),
        };
        self.admin(node, command);
        if let Some(undo) = undo {
            self.undo_later(undo);
        }
    }

    fn undo_later(&mut self, undo: Undo) {
        let ix = self.injector.undo.len();
        self.injector.undo.push(Some(undo));
        let delay = self.injector.rng.skewed(10 * MILLISECOND, 40 * SECOND);
        self.queue.at(self.now() + delay, Event::Heal(ix));
    }

    pub(crate) fn heal_event(&mut self, ix: usize) {
        let Some(undo) = self.injector.undo[ix].take() else { return };
        trace!(self, "undo: {undo:?}");
        match undo {
            Undo::Uncut(directions) => {
                for (from, to) in directions {
                    let now = self.now();
                    for (at, event) in self.net.set_cut(now, from, to, false) {
                        self.queue.at(at, Event::Net(event));
                    }
                }
            }
            Undo::Pace(from, to) => self.net.set_pace(from, to, Pace::default()),
            Undo::Disk(node, volume) => {
                if let Some(drive) = self.nodes[node].drives[volume].as_mut() {
                    drive.disk.behaviour = Behaviour::default();
                }
                self.attach_if_detached(node, volume);
            }
            Undo::Attach(node, volume) => self.attach_if_detached(node, volume),
            Undo::Connect(node, peer) => {
                let peer = node_id(peer);
                self.admin(node, AdminCommand::Connect { peer, discard_my_data: false });
            }
            Undo::ResumeIo(node) => self.resume_io(node),
            Undo::ResumeSync(node, peer, volume) => {
                let volume = VolumeNr(volume as u16);
                let peer = node_id(peer);
                self.admin(node, AdminCommand::PauseSync { peer, volume, pause: false });
            }
        }
    }

    /// Ends what an operator has suspended. Nobody who relies on fencing overrides it.
    pub(crate) fn resume_io(&mut self, node: usize) {
        let command = match self.plan.fences_firmly() {
            true => AdminCommand::Thaw,
            false => AdminCommand::ResumeIo,
        };
        self.admin(node, command);
    }

    fn attach_if_detached(&mut self, node: usize, volume: usize) {
        if self.nodes[node].up() {
            self.attach(node, volume);
        }
    }

    /// Ends every fault.
    pub(crate) fn heal_all(&mut self) {
        self.injector.left = 0;
        self.injector.aim = None;
        for ix in 0..self.injector.undo.len() {
            self.heal_event(ix);
        }
        for node in 0..self.nodes.len() {
            self.nodes[node].paused_until = 0;
        }
    }
}
