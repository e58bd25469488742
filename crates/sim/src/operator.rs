//! The operator of a run: brings the cluster up, repairs it at the end, and waits until it has
//! converged (semantics §13, invariant 46).

use replication::io::AdminCommand;
use vocab::{ConnState, DiskState, GenUuid, ReplState, Role, SectorRange, VolumeNr};

use crate::blank;
use crate::plan::{MILLISECOND, SECOND, Start, node_id};
use crate::trace;
use crate::view::View;
use crate::world::{Event, World};

/// How often the operator looks.
const ROUND: u64 = 250 * MILLISECOND;
/// Longest time a fault-free cluster may take to form.
const FORMING_LIMIT: u64 = 300 * SECOND;
/// Longest time clients may take to finish after all faults have ended.
const FINISH_LIMIT: u64 = 400 * SECOND;
/// Longest time until everything is in sync after the clients are gone.
const CONVERGE_LIMIT: u64 = 900 * SECOND;

/// How long an operator lets the nodes find each other by themselves.
const PATIENCE: u64 = 20 * SECOND;

/// Most events of a run. It needs a few thousand; five nodes whose bitmaps are in pieces, some 400,000.
const EVENT_LIMIT: u64 = 1_000_000;

/// Where a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// A scenario does everything itself.
    Manual,
    /// Bringing the cluster up.
    Forming,
    /// Clients work and faults happen.
    Running,
    /// Faults have ended, clients finish.
    Finishing,
    /// Nobody asks for anything; replicas settle.
    Converging,
    /// Over.
    Done,
}

/// The operator.
#[derive(Debug)]
pub(crate) struct Operator {
    phase: Phase,
    since: u64,
    /// The answer that is awaited.
    waiting: Option<u64>,
    /// Volumes of which the content is established.
    formed: usize,
    promoted: bool,
    /// Rounds in a row in which everything was in sync.
    calm: u32,
    rounds: u64,
}

impl Default for Operator {
    fn default() -> Operator {
        Operator {
            phase: Phase::Manual,
            since: 0,
            waiting: None,
            formed: 0,
            promoted: false,
            calm: 0,
            rounds: 0,
        }
    }
}

impl World {
    /// Where the run is.
    pub fn phase(&self) -> Phase {
        self.operator.phase
    }

    /// Lets the operator run everything by the plan.
    pub fn run_plan(&mut self) {
        self.run_to(Phase::Done);
    }

    /// Begins to run the plan, up to a phase.
    pub(crate) fn run_to(&mut self, phase: Phase) {
        self.enter(Phase::Forming);
        self.queue.at(self.now() + ROUND, Event::Operator);
        while self.violation.is_none() && self.operator.phase != phase {
            self.step();
            if self.stats.events > EVENT_LIMIT {
                self.violate("46", self.describe("something goes on and on"));
            }
        }
        self.stats.time = self.now();
    }

    fn enter(&mut self, phase: Phase) {
        trace!(self, "phase {phase:?}");
        self.operator.phase = phase;
        self.operator.since = self.now();
        self.operator.waiting = None;
    }

    pub(crate) fn operator_event(&mut self) {
        self.operator.rounds += 1;
        let elapsed = self.now() - self.operator.since;
        match self.operator.phase {
            Phase::Manual | Phase::Done => return,
            Phase::Forming => {
                if self.form_step() {
                    self.enter(Phase::Running);
                    self.start_clients();
                    self.start_faults();
                } else if elapsed > FORMING_LIMIT {
                    self.violate("46", self.describe("the cluster does not form"));
                }
            }
            Phase::Running => {
                let over = self.injector.exhausted() && self.clients.exhausted();
                if over || elapsed > self.plan.fault_time {
                    self.heal_all();
                    self.enter(Phase::Finishing);
                }
            }
            Phase::Finishing => {
                self.repair();
                if self.clients.exhausted() || elapsed > FINISH_LIMIT / 2 {
                    self.stop_clients();
                }
                if self.clients.idle() {
                    self.enter(Phase::Converging);
                } else if elapsed > FINISH_LIMIT {
                    self.violate("7", self.describe("requests are never completed"));
                }
            }
            Phase::Converging => {
                self.repair();
                match self.unsettled() {
                    None => self.operator.calm += 1,
                    Some(what) => {
                        self.operator.calm = 0;
                        if elapsed > CONVERGE_LIMIT {
                            self.violate("46", self.describe(&what));
                        }
                    }
                }
                if self.operator.calm >= 8 {
                    self.check_final();
                    self.enter(Phase::Done);
                }
            }
        }
        self.queue.at(self.now() + ROUND, Event::Operator);
    }

    /// A message and what every node says.
    pub(crate) fn describe(&self, what: &str) -> String {
        let mut text = what.to_owned();
        for node in 0..self.nodes.len() {
            let Some(view) = self.view(node) else {
                text.push_str(&format!("; n{node} is down"));
                continue;
            };
            text.push_str(&format!("; n{node} {} suspended:{}", view.role, view.suspended));
            if let Some(lead) = view.joint {
                text.push_str(&format!(" joint:{lead:?}"));
            }
            for (volume, v) in view.volumes.iter().enumerate() {
                let quorum = if v.quorum { "" } else { " no-quorum" };
                text.push_str(&format!(" v{volume}:{}{quorum}@{}", v.disk, v.current));
                for (peer, p) in view.peers.iter().enumerate() {
                    let Some(p) = p else { continue };
                    let d = &p.devices[volume];
                    text.push_str(&format!(
                        " n{peer}:{}/{}/{}/{}/{}",
                        p.conn, p.role, d.repl, d.disk, d.out_of_sync
                    ));
                }
            }
        }
        text
    }

    /// Sends a wish unless one is under way; true once it was granted.
    fn wish(&mut self, node: usize, command: impl FnOnce() -> AdminCommand) -> bool {
        if let Some(id) = self.operator.waiting {
            if let Some(result) = self.answers.remove(&id) {
                self.operator.waiting = None;
                return result.is_ok();
            }
            if self.wishes.contains_key(&id) {
                return false;
            }
            self.operator.waiting = None;
        }
        let id = self.admin(node, command());
        self.operator.waiting = Some(id);
        false
    }

    /// Establishes the first content; true once every volume has it.
    fn form_step(&mut self) -> bool {
        if self.operator.formed == usize::from(self.plan.volumes) {
            return self.formed();
        }
        if !self.all_connected() {
            return false;
        }
        let volume = VolumeNr(self.operator.formed as u16);
        match self.plan.start {
            Start::SkipInitialSync => {
                let command = || AdminCommand::NewCurrentUuid { volume, clear_bitmap: true };
                if self.wish(0, command) {
                    self.operator.formed += 1;
                }
            }
            Start::InitialSync if !self.operator.promoted => {
                if self.wish(0, || AdminCommand::Primary { force: true }) {
                    self.operator.promoted = true;
                }
            }
            Start::InitialSync => {
                if self.wish(0, || AdminCommand::Secondary { force: false }) {
                    self.operator.formed = usize::from(self.plan.volumes);
                }
            }
        }
        false
    }

    /// True if every node is connected to all others and sees every disk attached.
    pub(crate) fn all_connected(&self) -> bool {
        let attached = |node: usize, disk: DiskState| {
            !self.plan.nodes[node].diskful || disk >= DiskState::Inconsistent
        };
        (0..self.nodes.len()).all(|node| {
            self.view(node).is_some_and(|view| {
                let mut volumes = view.volumes.iter().enumerate();
                volumes.all(|(volume, v)| self.lacks(node, volume) || attached(node, v.disk))
                    && view.peers.iter().enumerate().all(|(other, p)| {
                        p.as_ref().is_none_or(|p| {
                            p.conn == ConnState::Connected
                                && p.devices.iter().enumerate().all(|(volume, d)| {
                                    self.lacks(other, volume)
                                        || self.lacks(node, volume)
                                        || attached(other, d.disk)
                                })
                        })
                    })
            })
        })
    }

    /// True if the data is usable; with an initial sync the others may still be behind.
    pub(crate) fn formed(&self) -> bool {
        let all = self.plan.start == Start::SkipInitialSync;
        (0..self.nodes.len()).filter(|n| all || *n == 0).all(|node| {
            let Some(view) = self.view(node) else { return false };
            !self.plan.nodes[node].diskful
                || view
                    .volumes
                    .iter()
                    .enumerate()
                    .all(|(volume, v)| self.lacks(node, volume) || v.disk == DiskState::UpToDate)
        })
    }

    /// Puts content on the disks where an initial sync has to carry it over.
    pub(crate) fn prepare_content(&mut self) {
        if self.plan.start != Start::InitialSync {
            return;
        }
        for node in 0..self.nodes.len() {
            for volume in 0..self.nodes[node].drives.len() {
                for _ in 0..6 {
                    let start = self.rng.below(self.plan.sectors - 16);
                    let range = SectorRange::new(start, 16);
                    let tag = self.clients.fresh_tag();
                    let Some(drive) = self.nodes[node].drives[volume].as_mut() else { continue };
                    drive.disk.fill(range, tag);
                    if node == 0 {
                        self.histories[volume].preset(range, tag);
                    }
                }
            }
        }
    }

    /// Does what an operator does who finds the cluster after the faults.
    fn repair(&mut self) {
        if !self.operator.rounds.is_multiple_of(8) {
            return;
        }
        self.level_disks();
        for node in 0..self.nodes.len() {
            if !self.nodes[node].up() {
                self.boot(node);
                continue;
            }
            let Some(view) = self.view(node) else { continue };
            for volume in 0..self.nodes[node].drives.len() {
                if view.volumes[volume].disk != DiskState::Diskless {
                    continue;
                }
                match self.refused_beside(node, &view, volume) {
                    Some(peer) => {
                        let command = AdminCommand::Disconnect { peer: node_id(peer), force: true };
                        self.admin(node, command);
                    }
                    None => {
                        self.attach(node, volume);
                    }
                }
            }
            for (peer, p) in view.peers.iter().enumerate() {
                let Some(p) = p else { continue };
                if p.conn == ConnState::StandAlone {
                    let discard_my_data = self.gives_in(node, &view, peer);
                    let peer = node_id(peer);
                    self.admin(node, AdminCommand::Connect { peer, discard_my_data });
                }
                for (volume, device) in p.devices.iter().enumerate() {
                    if device.paused {
                        let (peer, volume) = (node_id(peer), VolumeNr(volume as u16));
                        self.admin(node, AdminCommand::PauseSync { peer, volume, pause: false });
                    }
                }
            }
            if self.is_left_behind(node, &view) || self.makes_way(node, &view) {
                self.admin(node, AdminCommand::Secondary { force: true });
            }
            if view.suspended.user {
                self.resume_io(node);
            }
            let primary = view.role == Role::Primary || view.joint.is_some();
            if primary && self.nodes[node].openers.is_empty() {
                self.admin(node, AdminCommand::Secondary { force: false });
            }
        }
        self.answers.clear();
    }

    /// Two nodes refuse each other because their disks were written independently, which they may
    /// have been, and this is the one to lose its writes: it has nothing newer to offer.
    fn gives_in(&self, node: usize, view: &View, peer: usize) -> bool {
        if !self.plan.may_split() || self.now() - self.operator.since < PATIENCE {
            return false;
        }
        let Some(theirs) = self.view(peer) else { return false };
        let good = |view: &View| {
            let disks = view.volumes.iter().filter(|v| v.disk == DiskState::UpToDate).count();
            (view.role == Role::Primary, disks)
        };
        (good(&theirs), node) > (good(view), peer)
    }

    /// The disk can not be attached while its node is connected to that peer: theirs were written
    /// independently, which they may have been. Who gives in only a handshake can be told.
    fn refused_beside(&self, node: usize, view: &View, volume: usize) -> Option<usize> {
        if !self.plan.may_split() || self.now() - self.operator.since < PATIENCE {
            return None;
        }
        let current = |node: usize| {
            let superblock =
                blank::superblock(self.nodes[node].drive(volume)?.disk.superblock(), node);
            superblock.ok().map(|s| s.current_uuid)
        };
        let mine = current(node)?;
        (0..self.nodes.len()).filter(|peer| *peer != node).find(|peer| {
            let together = view.peers[*peer].as_ref().is_some_and(|p| {
                let disk = p.devices[volume].disk;
                p.conn == ConnState::Connected && disk == DiskState::UpToDate
            });
            together
                && current(*peer).is_some_and(|theirs| {
                    !theirs.same(mine)
                        && !self.succeeds(*peer, volume, mine)
                        && !self.succeeds(node, volume, theirs)
                })
        })
    }

    /// A frozen Primary whose peers went on without it: what it still holds can never complete,
    /// and with `on-suspended-primary-outdated disconnect` it waits for an operator to say so. They
    /// may be connected again: with disks that were brought up to date while they were.
    fn is_left_behind(&self, node: usize, view: &View) -> bool {
        let susp = view.suspended;
        let frozen = susp.quorum || susp.no_data || susp.fencing;
        if view.role != Role::Primary || !frozen || self.now() - self.operator.since < PATIENCE {
            return false;
        }
        (0..self.nodes.len()).filter(|peer| *peer != node).any(|peer| {
            let Some(p) = view.peers[peer].as_ref() else { return false };
            let Some(theirs) = self.view(peer) else { return false };
            let apart = |vol: usize| {
                p.conn != ConnState::Connected || p.devices[vol].disk < DiskState::UpToDate
            };
            theirs.volumes.iter().zip(&view.volumes).enumerate().any(|(vol, (t, mine))| {
                // They may have lost their quorum since, or be told that they lack something
                // by a client that knows no more than this Primary.
                let current = t.disk == DiskState::UpToDate && t.quorum;
                apart(vol)
                    && t.disk >= DiskState::Outdated
                    && !t.current.same(mine.current)
                    && (current || self.succeeds(peer, vol, mine.current))
            })
        })
    }

    /// Of two Primaries that have both lost their quorum, and refuse each other, one has to give up
    /// what it holds: the one without a disk of its own.
    fn makes_way(&self, node: usize, view: &View) -> bool {
        let frozen = |view: &View| view.role == Role::Primary && view.suspended.quorum;
        if !frozen(view) || self.now() - self.operator.since < PATIENCE {
            return false;
        }
        let rank = |node: usize| (self.plan.nodes[node].diskful, node);
        view.peers.iter().enumerate().any(|(peer, p)| {
            let apart = p.as_ref().is_some_and(|p| p.conn != ConnState::Connected);
            apart && rank(node) < rank(peer) && self.view(peer).is_some_and(|v| frozen(&v))
        })
    }

    /// The disk of the node has left that generation behind.
    fn succeeds(&self, node: usize, volume: usize, older: GenUuid) -> bool {
        let Some(drive) = self.nodes[node].drive(volume) else { return false };
        let Ok(superblock) = blank::superblock(drive.disk.superblock(), node) else { return false };
        // Its own slot names what it is on its way to.
        let mut others = superblock.peers.iter().enumerate().filter(|(n, _)| *n != node);
        superblock.history.iter().any(|u| u.same(older))
            || others.any(|(_, p)| p.bitmap_uuid.same(older))
    }

    /// What is not yet as it must be in the end, if anything.
    pub(crate) fn unsettled(&self) -> Option<String> {
        let views: Vec<_> = (0..self.nodes.len()).map(|node| self.view(node)).collect();
        for (node, view) in views.iter().enumerate() {
            let Some(view) = view else { return Some(format!("n{node} is down")) };
            if view.role != Role::Secondary || view.joint.is_some() || view.suspended.any() {
                let joint = view.joint.map_or("", |_| " joint");
                return Some(format!("n{node} is {}{joint} {}", view.role, view.suspended));
            }
            for (volume, v) in view.volumes.iter().enumerate() {
                let want = match self.plan.nodes[node].diskful {
                    true => DiskState::UpToDate,
                    false => DiskState::Diskless,
                };
                if v.disk != want {
                    return Some(format!("the disk of n{node} v{volume} is {}", v.disk));
                }
                for (peer, p) in view.peers.iter().enumerate() {
                    let Some(p) = p else { continue };
                    let Some(theirs) = &views[peer] else { continue };
                    if v.sectors != theirs.volumes[volume].sectors {
                        let (mine, other) = (v.sectors, theirs.volumes[volume].sectors);
                        return Some(format!("n{node} has {mine} sectors, n{peer} {other}"));
                    }
                    let d = &p.devices[volume];
                    if p.conn != ConnState::Connected || d.repl != ReplState::Established {
                        return Some(format!("n{node} to n{peer} is {} {}", p.conn, d.repl));
                    }
                    if d.disk != theirs.volumes[volume].disk || p.role != theirs.role {
                        return Some(format!("n{node} sees n{peer} as {} {}", p.role, d.disk));
                    }
                    if d.out_of_sync != 0 {
                        return Some(format!(
                            "n{node} has {} blocks out of sync to n{peer}",
                            d.out_of_sync
                        ));
                    }
                }
            }
        }
        None
    }
}
