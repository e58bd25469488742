//! The controller, the agents, the messages between them, and what is checked.

use std::collections::{BTreeMap, BTreeSet};

use ::cluster::apply::apply;
use ::cluster::command::Command;
use ::cluster::edit::Context;
use ::cluster::layer::Layer;
use ::cluster::model::Model;
use ::cluster::name::{NodeName, ResourceName, SnapshotName};
use ::cluster::objects::{Generation, Millis, Provider, ResourceFlag, SnapshotFlag, Uuid};
use ::cluster::observed::{NodeState, Observed, PoolState, ReplicaState, SuspensionState};
use ::cluster::plan::{Action, Begin, plan};
use vocab::Bytes;

use super::Stats;
use super::agent::{Agent, Record, Refused};
use super::commands::{self, GIB, NODES, node, pool};
use super::data::{Data, Version};
use super::schedules::{Schedules, Step};
use crate::rng::Rng;

mod check;

/// Milliseconds of chaos.
const CHAOS: u64 = 120_000;
/// Milliseconds in which everything has to become as wanted afterwards.
const CALM: u64 = 120_000;

pub(super) enum Event {
    /// A step reaches its agent.
    Step { node: usize, name: ResourceName, generation: Generation, action: Box<Action> },
    /// A report of one resource reaches the controller, unless the link was lost in between.
    Report { node: usize, link: u64, name: ResourceName, state: Box<ReplicaState> },
    /// Everything of a node reaches the controller.
    Hello { node: usize, link: u64, all: Vec<(ResourceName, ReplicaState)> },
    /// The controller looks at everything again.
    Look,
    /// Chance acts.
    Chance,
    /// A node that is down comes back.
    Restart { node: usize },
    /// A node that is cut off is reached again.
    Relink { node: usize },
    /// The controller is back.
    Controller,
    /// Something about schedules.
    Schedule(Step),
}

pub struct World<'t> {
    pub(super) rng: Rng,
    trace: &'t mut dyn FnMut(&str),
    pub(super) now: u64,
    serial: u64,
    queue: BTreeMap<(u64, u64), Event>,
    /// What is stored. The controller's own model is always equal: it stores before it acts.
    pub(super) model: Model,
    pub(super) observed: Observed,
    /// Nothing while it is down.
    pub(super) running: bool,
    /// Steps that were sent, and when.
    sent: BTreeMap<(usize, ResourceName, String), u64>,
    links: Vec<u64>,
    pub(super) agents: Vec<Agent>,
    pub(super) data: Data,
    /// The newest generation in which a replica was to lose its data.
    leaving: BTreeMap<(usize, ResourceName), Generation>,
    /// Resource definitions whose data were lost with a node: their replicas have nothing to copy.
    pub(super) forgiven: BTreeSet<ResourceName>,
    /// Nodes whose reports a scenario loses, and steps that it keeps back.
    pub(super) muted: BTreeSet<usize>,
    pub(super) held: BTreeMap<usize, Vec<Event>>,
    pub(super) calm: bool,
    pub(super) stats: Stats,
    pub(super) broken: Option<String>,
    /// Backups by schedule, if there are any.
    pub(super) schedules: Option<Schedules>,
}

impl<'t> World<'t> {
    pub fn new(rng: Rng, trace: &'t mut dyn FnMut(&str)) -> World<'t> {
        World {
            rng,
            trace,
            now: 1_000,
            serial: 0,
            queue: BTreeMap::new(),
            model: Model::new(Uuid(1)),
            observed: Observed::default(),
            running: true,
            sent: BTreeMap::new(),
            links: vec![0; NODES],
            agents: (0..NODES)
                .map(|_| Agent { up: true, linked: true, ..Agent::default() })
                .collect(),
            data: Data::default(),
            leaving: BTreeMap::new(),
            forgiven: BTreeSet::new(),
            muted: BTreeSet::new(),
            held: BTreeMap::new(),
            calm: false,
            stats: Stats::default(),
            broken: None,
            schedules: None,
        }
    }

    pub fn run(mut self) -> Result<Stats, String> {
        for command in commands::first(&mut self.rng) {
            self.command(command);
        }
        (0..NODES).for_each(|index| self.hello(index));
        self.look_regularly();
        self.begin_schedules();
        self.at(0, Event::Chance);
        self.until(self.now + CHAOS)?;
        self.more_schedules()?;
        self.heal();
        self.until(self.now + CALM)?;
        self.end_schedules()?;
        self.everything_is_as_wanted()?;
        self.delete_all()?;
        self.until(self.now + CALM)?;
        self.nothing_is_left()?;
        Ok(self.stats)
    }

    pub(super) fn at(&mut self, delay: u64, event: Event) {
        self.serial += 1;
        self.queue.insert((self.now + delay, self.serial), event);
    }

    pub(super) fn until(&mut self, end: u64) -> Result<(), String> {
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= end) {
            let ((time, _), event) = entry.remove_entry();
            self.now = time;
            self.handle(event);
            if let Some(broken) = self.broken.take() {
                return Err(format!("at {} ms: {broken}", self.now));
            }
        }
        self.now = end;
        Ok(())
    }

    pub(super) fn say(&mut self, text: std::fmt::Arguments<'_>) {
        let line = format!("{:>7} {text}", self.now);
        (self.trace)(&line);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Step { node, name, generation, action } => {
                self.step(node, &name, generation, &action);
            }
            Event::Report { node: index, link, name, state } => {
                if self.running && self.links[index] == link {
                    let all = self.observed.resources.entry(name.clone()).or_default();
                    all.insert(node(index), *state);
                    self.look(&name);
                }
            }
            Event::Hello { node: index, link, all } => self.welcome(index, link, all),
            Event::Look => {
                self.look_at_all();
                self.at(2_000, Event::Look);
            }
            Event::Chance => {
                if !self.calm {
                    self.chance();
                    let delay = self.rng.range(50, 600);
                    self.at(delay, Event::Chance);
                }
            }
            Event::Restart { node: index } => {
                if !self.agents[index].up {
                    self.say(format_args!("{} is back", node(index)));
                    self.agents[index].up = true;
                    self.relink(index);
                }
            }
            Event::Relink { node } => self.relink(node),
            Event::Controller => {
                self.say(format_args!("the controller is back"));
                self.running = true;
                (0..NODES).for_each(|index| self.hello(index));
            }
            Event::Schedule(step) => self.schedule(step),
        }
    }

    // The controller.

    pub(super) fn command(&mut self, command: Command) -> bool {
        let mut entropy = [0; 32];
        for part in entropy.chunks_mut(8) {
            part.copy_from_slice(&self.rng.bits().to_be_bytes());
        }
        let context = Context { observed: &self.observed, now: Millis(self.now), entropy };
        let text = format!("{command:?}");
        let lost = match &command {
            Command::LoseNode { name } => (0..NODES).find(|index| node(*index) == *name),
            _ => None,
        };
        match apply(&mut self.model, &context, command) {
            Ok(applied) => {
                if !applied.changes.is_empty() {
                    self.say(format_args!("{text}"));
                    if let Some(index) = lost {
                        self.lose(index);
                    }
                    self.follow();
                }
                true
            }
            Err(refusal) => {
                self.say(format_args!("{text} refused: {refusal}"));
                false
            }
        }
    }

    /// A lost node is lost: what comes back under its name is another machine. The data that only it
    /// had are given up with it; what others have of them is all there is.
    fn lose(&mut self, index: usize) {
        self.agents[index] = Agent::default();
        self.links[index] += 1;
        self.queue.retain(|_, event| !matches!(event, Event::Step { node, .. } if *node == index));
        if let Some(held) = self.held.get_mut(&index) {
            held.clear();
        }
        for (name, number) in self.data.keys() {
            let Some(last) = self.data.last(&name, number) else { continue };
            let has = |agent: &Agent| agent.records.get(&name)?.volumes.get(&number)?.version;
            let left = self.agents.iter().filter_map(has);
            let left = left.filter(|version| version.lineage == last.lineage).max();
            if left.is_none() && self.data.is_live(&name, number, last) {
                self.data.give_up(&name, number);
                self.forgiven.insert(name.clone());
            }
            self.data.set(&name, number, left);
        }
        let delay = self.rng.skewed(200, 30_000);
        self.at(delay, Event::Restart { node: index });
    }

    /// What the checker remembers of the wanted state.
    fn follow(&mut self) {
        use ResourceFlag::*;
        self.data.follow(&self.model);
        self.forgiven.retain(|name| self.model.definition(name).is_some());
        self.check_schedules();
        let generation = self.model.generation();
        let leaving = [Delete, DrbdDelete, DiskRemoveRequested, DiskRemoving];
        for index in 0..NODES {
            for name in self.model.resources_on(&node(index)) {
                let resource = self.model.resource(name, &node(index));
                if resource.is_some_and(|r| leaving.iter().any(|flag| r.flags.contains(flag))) {
                    self.leaving.insert((index, name.clone()), generation);
                }
            }
        }
    }

    pub(super) fn look_at_all(&mut self) {
        if !self.running {
            return;
        }
        let names: Vec<_> = self.model.definitions().map(|d| d.name.clone()).collect();
        for name in names {
            self.look(&name);
        }
    }

    /// Takes note of what was reported, and sends the steps that wait for no other. It may crash in
    /// between: what was applied is stored by then, what was not sent is not.
    pub(super) fn look(&mut self, name: &ResourceName) {
        if !self.running {
            return;
        }
        let before = successful(&self.model, name);
        self.command(Command::Settle { name: name.clone() });
        self.check_snapshots(name, &before);
        if self.crash_now() {
            return;
        }
        let plan = plan(&self.model, &self.observed, name);
        let ready: Vec<_> = plan.ready().map(|s| (s.node.clone(), s.action.clone())).collect();
        for (to, action) in ready {
            let index = (0..NODES).find(|index| node(*index) == to).expect("a known node");
            let key = (index, name.clone(), format!("{} {action}", plan.generation.0));
            if self.sent.get(&key).is_some_and(|sent| self.now - sent < 3_000) {
                continue;
            }
            self.sent.insert(key, self.now);
            self.send(index, name, plan.generation, action);
            if self.crash_now() {
                return;
            }
        }
    }

    fn send(&mut self, node: usize, name: &ResourceName, generation: Generation, action: Action) {
        if !self.calm && self.rng.percent(10) {
            self.stats.faults += 1;
            return;
        }
        // Some are late by more than it takes to try again, to restart, or to delete everything.
        let late = !self.calm && self.rng.percent(10);
        let delay = if late { self.rng.skewed(500, 60_000) } else { self.rng.range(1, 100) };
        let action = Box::new(action);
        let event = Event::Step { node, name: name.clone(), generation, action };
        match self.held.get_mut(&node) {
            Some(held) => held.push(event),
            None => self.at(delay, event),
        }
    }

    /// Steps that were kept back arrive.
    pub(super) fn release(&mut self, index: usize) {
        for event in self.held.remove(&index).unwrap_or_default() {
            self.at(1, event);
        }
    }

    /// The controller looks at everything from time to time.
    pub(super) fn look_regularly(&mut self) {
        self.at(0, Event::Look);
    }

    /// Whether the controller crashes here.
    pub(super) fn crash_now(&mut self) -> bool {
        if self.calm || !self.rng.one_in(400) {
            return false;
        }
        self.say(format_args!("the controller crashes"));
        self.stats.faults += 1;
        self.running = false;
        self.observed = Observed::default();
        self.sent.clear();
        // Like a store: only rows survive.
        self.model = Model::from_rows(self.model.rows());
        let delay = self.rng.range(100, 5_000);
        self.at(delay, Event::Controller);
        true
    }

    // The agents.

    fn welcome(&mut self, index: usize, link: u64, all: Vec<(ResourceName, ReplicaState)>) {
        if !self.running || self.links[index] != link {
            return;
        }
        let total = Bytes(1000 * GIB);
        let state = PoolState { free: total, total, ..PoolState::default() };
        let state = NodeState {
            connected: true,
            since: Millis(self.now),
            layers: Layer::ALL.iter().copied().collect(),
            providers: Provider::ALL.iter().copied().collect(),
            pools: [(pool(), state)].into(),
            ships: self.schedules.is_some(),
            ships_encrypted: self.schedules.is_some(),
            ships_to_clusters: false,
        };
        self.observed.nodes.insert(node(index), state);
        for replicas in self.observed.resources.values_mut() {
            replicas.remove(&node(index));
        }
        for (name, state) in all {
            self.observed.resources.entry(name).or_default().insert(node(index), state);
        }
        self.look_at_all();
    }

    /// An agent tells the controller everything.
    pub(super) fn hello(&mut self, index: usize) {
        let agent = &self.agents[index];
        if !agent.up || !agent.linked {
            return;
        }
        let names: Vec<_> = agent.records.keys().cloned().collect();
        let all = names.into_iter().map(|name| {
            let state = self.state(index, &name);
            (name, state)
        });
        let all = all.collect();
        let link = self.links[index];
        self.at(5, Event::Hello { node: index, link, all });
    }

    pub(super) fn relink(&mut self, index: usize) {
        self.agents[index].linked = true;
        self.links[index] += 1;
        self.hello(index);
    }

    /// The controller notices that it does not reach a node.
    pub(super) fn unlink(&mut self, index: usize) {
        self.agents[index].linked = false;
        self.links[index] += 1;
        if let Some(state) = self.observed.nodes.get_mut(&node(index)) {
            (state.connected, state.since) = (false, Millis(self.now));
        }
    }

    fn state(&self, index: usize, name: &ResourceName) -> ReplicaState {
        let record = &self.agents[index].records[name];
        record.report(name, &self.data, &self.connected(index, name))
    }

    /// Peers whose DRBD is connected.
    fn connected(&self, index: usize, name: &ResourceName) -> Vec<NodeName> {
        let has = |from: usize, to: usize| {
            let record = self.agents[from].records.get(name);
            let peers = record.and_then(|record| record.peers.as_ref());
            self.agents[from].up && peers.is_some_and(|peers| peers.contains(&node(to)))
        };
        let peers = (0..NODES).filter(|peer| has(index, *peer) && has(*peer, index));
        peers.map(node).collect()
    }

    pub(super) fn tell(&mut self, index: usize, name: &ResourceName) {
        let agent = &self.agents[index];
        if !agent.up || !agent.linked || self.muted.contains(&index) {
            return;
        }
        if !self.calm && self.rng.percent(5) {
            return;
        }
        if self.agents[index].records.contains_key(name) {
            let state = Box::new(self.state(index, name));
            let link = self.links[index];
            // In order: a link does not overtake itself.
            self.at(5, Event::Report { node: index, link, name: name.clone(), state });
        }
    }

    fn step(&mut self, index: usize, name: &ResourceName, generation: Generation, action: &Action) {
        if !self.agents[index].up {
            return;
        }
        if !self.calm && self.rng.percent(5) {
            self.stats.faults += 1;
            return self.tell(index, name);
        }
        if let Action::Upload(_) | Action::StopShipping { .. } = action {
            return self.ship(index, name, generation, action);
        }
        let current: Vec<NodeName> = self
            .connected(index, name)
            .into_iter()
            .filter(|peer| {
                let peer = (0..NODES).find(|index| node(*index) == *peer).expect("a node");
                self.agents[peer].records[name].is_current(name, &self.data)
            })
            .collect();
        let current = match action {
            Action::BeginData { volume } => self.begun(index, name, *volume),
            _ => current,
        };
        if let Action::RollBack { .. } | Action::Discard { .. } = action {
            self.check_rollback(index, name, action);
        }
        let before = self.holders(name);
        let sources = self.agents[index].records.iter().flat_map(|(name, record)| {
            let snapshots = record.snapshots.iter();
            snapshots
                .map(move |(snapshot, (_, data))| ((name.clone(), snapshot.clone()), data.clone()))
        });
        let sources = sources.collect();
        let number = beginning(action);
        let record = self.agents[index].records.entry(name.clone()).or_default();
        let version = |record: &Record| {
            number.and_then(|number| record.volumes.get(&number).and_then(|disk| disk.version))
        };
        let empty = version(record).is_none();
        let last = number.and_then(|number| self.data.last(name, number));
        let mut data = std::mem::take(&mut self.data);
        let done = record.carry_out(name, generation, action, &current, &mut data, &sources);
        self.data = data;
        match done {
            Ok(()) => {
                self.stats.steps += 1;
                self.say(format_args!("{} {name} {}: {action}", node(index), generation.0));
            }
            Err(Refused::Old) => self.stats.refused_steps += 1,
            Err(Refused::Not) => self.stats.refused_steps += 1,
        }
        if matches!(action, Action::RollBack { .. }) {
            // It may come late, when nobody wants the data any more.
            self.data.follow(&self.model);
        }
        let begun = version(&self.agents[index].records[name]);
        if let (true, Some(number), Some(begun)) = (empty, number, begun) {
            // A late step may begin data where nobody wants any: their peers have left it.
            let resource = self.model.resource(name, &node(index));
            if resource.is_none_or(|r| r.flags.contains(&ResourceFlag::DrbdDelete)) {
                self.data.disown(name, number, begun, last);
            } else {
                self.data.follow(&self.model);
                self.check_beginning(index, name, number);
            }
        }
        self.check_removal(index, name, generation, &before);
        self.forget(name);
        self.resync();
        // Peers notice, too.
        (0..NODES).for_each(|peer| self.tell(peer, name));
    }

    /// Connected peers that have data of a volume.
    fn begun(&self, index: usize, name: &ResourceName, volume: u16) -> Vec<NodeName> {
        let mut peers = self.connected(index, name);
        peers.retain(|peer| {
            let peer = (0..NODES).find(|index| node(*index) == *peer).expect("a node");
            let disk = self.agents[peer].records[name].volumes.get(&volume);
            disk.is_some_and(|disk| disk.version.is_some())
        });
        peers
    }

    /// The nodes that have the last write of each volume, whether they are up or not.
    fn holders(&self, name: &ResourceName) -> BTreeMap<u16, Vec<usize>> {
        let holds = |index: &usize, number: u16| {
            let record = self.agents[*index].records.get(name);
            let disk = record.and_then(|record| record.volumes.get(&number));
            disk.is_some_and(|disk| self.data.is_current(name, number, disk.version))
        };
        let volumes = self.data.volumes(name).into_iter();
        let all =
            volumes.map(|(nr, _)| (nr, (0..NODES).filter(|index| holds(index, nr)).collect()));
        all.collect()
    }

    /// Data that nobody has any more because nobody wanted them are forgotten.
    fn forget(&mut self, name: &ResourceName) {
        for (number, _) in self.data.volumes(name) {
            let has = |agent: &Agent| {
                let disk = agent.records.get(name).and_then(|r| r.volumes.get(&number));
                disk.is_some_and(|disk| disk.version.is_some())
            };
            if !self.agents.iter().any(has) {
                self.data.set(name, number, None);
            }
        }
    }

    /// Connected replicas get what they lack, and devices the size of the smallest disk's wish.
    fn resync(&mut self) {
        for (name, number) in self.data.keys() {
            let Some(last) = self.data.last(&name, number) else { continue };
            for index in 0..NODES {
                if !self.agents[index].up {
                    continue;
                }
                let connected = self.connected(index, &name);
                let current = (0..NODES).any(|peer| {
                    let disk = self.agents[peer].records.get(&name);
                    let disk = disk.and_then(|record| record.volumes.get(&number));
                    connected.contains(&node(peer))
                        && disk.is_some_and(|disk| disk.version == Some(last))
                });
                let Some(record) = self.agents[index].records.get_mut(&name) else { continue };
                let up = record.peers.is_some();
                let Some(disk) = record.volumes.get_mut(&number) else { continue };
                // DRBD does not connect disks whose data have nothing in common.
                let related = disk.version.is_none_or(|own| own.lineage == last.lineage);
                if current && disk.metadata && related {
                    disk.version = Some(last);
                }
                if up {
                    disk.device =
                        record.configured.get(&number).copied().unwrap_or(0).min(disk.size);
                }
            }
        }
        self.grow();
    }

    /// DRBD tells connected peers of a device that has grown.
    fn grow(&mut self) {
        let mut largest: BTreeMap<(ResourceName, u16), u64> = BTreeMap::new();
        for agent in self.agents.iter().filter(|agent| agent.up) {
            for (name, record) in &agent.records {
                for (number, size) in &record.configured {
                    let entry = largest.entry((name.clone(), *number)).or_default();
                    *entry = (*entry).max(*size);
                }
            }
        }
        for agent in self.agents.iter_mut().filter(|agent| agent.up) {
            for (name, record) in &mut agent.records {
                for (number, size) in &mut record.configured {
                    *size = largest[&(name.clone(), *number)];
                }
            }
        }
    }

    // Chance.

    fn chance(&mut self) {
        let index = self.rng.below(NODES as u64) as usize;
        match self.rng.weighted(&[40, 4, 4, 1, 25, 8, 8, 6, 2]) {
            0 if self.running => {
                let command = commands::any(&mut self.rng);
                if self.command(command) {
                    self.stats.commands += 1;
                } else {
                    self.stats.refusals += 1;
                }
                self.look_at_all();
            }
            1 if self.agents[index].up => self.crash(index),
            2 if self.agents[index].linked => {
                self.say(format_args!("{} is cut off", node(index)));
                self.stats.faults += 1;
                self.unlink(index);
                let delay = self.rng.skewed(200, 90_000);
                self.at(delay, Event::Relink { node: index });
            }
            3 => {
                self.crash_now();
            }
            4 => self.write(),
            5 => self.promote(index),
            6 => self.demote(index),
            7 if self.running => {
                self.command(Command::Tick);
            }
            8 => self.expire(index),
            _ => {}
        }
    }

    fn crash(&mut self, index: usize) {
        self.say(format_args!("{} crashes", node(index)));
        self.stats.faults += 1;
        self.agents[index].up = false;
        for record in self.agents[index].records.values_mut() {
            record.primary = None;
            // What was on its way is begun anew, if it is wanted.
            record.shipments.clear();
            expire(&mut record.suspension);
        }
        self.unlink(index);
        let delay = self.rng.skewed(200, 90_000);
        self.at(delay, Event::Restart { node: index });
    }

    /// An agent does not wait for ever for the end of a suspension.
    fn expire(&mut self, index: usize) {
        let names: Vec<_> = self.agents[index].records.keys().cloned().collect();
        for name in names {
            let record = self.agents[index].records.get_mut(&name).expect("it was listed");
            expire(&mut record.suspension);
            self.tell(index, &name);
        }
    }

    fn promote(&mut self, index: usize) {
        let names: Vec<_> = self.agents[index].records.keys().cloned().collect();
        if names.is_empty() || !self.agents[index].up {
            return;
        }
        let name = self.rng.pick(&names).clone();
        let taken = self.agents.iter().filter_map(|agent| agent.records.get(&name));
        let taken = taken.into_iter().any(|record| record.primary.is_some());
        let reaches = self.reaches(index, &name);
        let record = self.agents[index].records.get_mut(&name).expect("it was listed");
        if record.peers.is_some() && reaches && !taken {
            record.primary = Some(Millis(self.now));
            self.tell(index, &name);
        }
    }

    /// True if a node has, or is connected to, a disk with every write.
    fn reaches(&self, index: usize, name: &ResourceName) -> bool {
        let connected = self.connected(index, name);
        (0..NODES).any(|peer| {
            let record = self.agents[peer].records.get(name);
            (peer == index || connected.contains(&node(peer)))
                && record.is_some_and(|record| record.is_current(name, &self.data))
        })
    }

    fn demote(&mut self, index: usize) {
        let names: Vec<_> = self.agents[index].records.keys().cloned().collect();
        for name in names {
            let record = self.agents[index].records.get_mut(&name).expect("it was listed");
            if record.primary.take().is_some() {
                self.tell(index, &name);
            }
        }
    }

    /// Every Primary that can writes something to each volume: it is on all current disks that it is
    /// connected to, and there is no write without one.
    pub(super) fn write(&mut self) {
        for index in 0..NODES {
            let agent = &self.agents[index];
            let primary = |(_, r): &(&ResourceName, &Record)| r.primary.is_some();
            let names: Vec<_> =
                agent.records.iter().filter(primary).map(|(name, _)| name.clone()).collect();
            for name in names {
                self.write_one(index, &name);
            }
        }
    }

    fn write_one(&mut self, index: usize, name: &ResourceName) {
        let suspended = self.agents[index].records[name].suspension;
        let held = suspended.is_some_and(|(_, state)| state == SuspensionState::Held);
        if held || !self.reaches(index, name) {
            return;
        }
        let connected = self.connected(index, name);
        for (number, last) in self.data.volumes(name) {
            let new = Version { write: last.write + 1, ..last };
            for peer in (0..NODES).filter(|p| *p == index || connected.contains(&node(*p))) {
                let Some(record) = self.agents[peer].records.get_mut(name) else { continue };
                let Some(disk) = record.volumes.get_mut(&number) else { continue };
                if disk.version == Some(last) {
                    disk.version = Some(new);
                    self.data.set(name, number, Some(new));
                }
            }
        }
    }
}

/// The volume on which a step begins data.
fn beginning(action: &Action) -> Option<u16> {
    match action {
        Action::CreateMetadata { volume, begin: Begin::First, .. }
        | Action::BeginData { volume } => Some(*volume),
        _ => None,
    }
}

fn expire(suspension: &mut Option<(Generation, SuspensionState)>) {
    if let Some((_, state)) = suspension {
        if *state == SuspensionState::Held {
            *state = SuspensionState::Expired;
        }
    }
}

fn successful(model: &Model, name: &ResourceName) -> Vec<SnapshotName> {
    let good = model.snapshots_of(name).filter(|s| s.flags.contains(&SnapshotFlag::Successful));
    good.map(|snapshot| snapshot.name.clone()).collect()
}
