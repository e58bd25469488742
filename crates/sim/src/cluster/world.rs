//! The controller, the agents, the messages between them, and what is checked.

use std::collections::BTreeMap;

use ::cluster::apply::apply;
use ::cluster::command::Command;
use ::cluster::edit::Context;
use ::cluster::layer::Layer;
use ::cluster::model::Model;
use ::cluster::name::{NodeName, ResourceName, SnapshotName};
use ::cluster::objects::{
    DefinitionFlag, Generation, Millis, NodeFlag, Provider, ResourceFlag, SnapshotFlag, Uuid,
    VolumeDefinitionFlag,
};
use ::cluster::observed::{NodeState, Observed, PoolState, ReplicaState, SuspensionState};
use ::cluster::plan::{Action, Begin, plan};
use ::cluster::redundancy;
use vocab::Bytes;

use super::Stats;
use super::agent::{Agent, Record, Refused, Truth};
use super::commands::{self, GIB, NODES, node, pool};
use crate::rng::Rng;

/// Milliseconds of chaos.
const CHAOS: u64 = 120_000;
/// Milliseconds in which everything has to become as wanted afterwards.
const CALM: u64 = 120_000;

enum Event {
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
}

pub struct World<'t> {
    rng: Rng,
    trace: &'t mut dyn FnMut(&str),
    now: u64,
    serial: u64,
    queue: BTreeMap<(u64, u64), Event>,
    /// What is stored. The controller's own model is always equal: it stores before it acts.
    model: Model,
    observed: Observed,
    /// Nothing while it is down.
    running: bool,
    /// Steps that were sent, and when.
    sent: BTreeMap<(usize, ResourceName, String), u64>,
    links: Vec<u64>,
    agents: Vec<Agent>,
    truth: Truth,
    calm: bool,
    stats: Stats,
    broken: Option<String>,
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
            truth: Truth::new(),
            calm: false,
            stats: Stats::default(),
            broken: None,
        }
    }

    pub fn run(mut self) -> Result<Stats, String> {
        for command in commands::first(&mut self.rng) {
            self.command(command);
        }
        (0..NODES).for_each(|index| self.hello(index));
        self.at(0, Event::Look);
        self.at(0, Event::Chance);
        self.until(self.now + CHAOS)?;
        self.heal();
        self.until(self.now + CALM)?;
        self.everything_is_as_wanted()?;
        self.delete_all()?;
        self.until(self.now + CALM)?;
        self.nothing_is_left()?;
        Ok(self.stats)
    }

    fn at(&mut self, delay: u64, event: Event) {
        self.serial += 1;
        self.queue.insert((self.now + delay, self.serial), event);
    }

    fn until(&mut self, end: u64) -> Result<(), String> {
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

    fn say(&mut self, text: std::fmt::Arguments<'_>) {
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
        }
    }

    // The controller.

    fn command(&mut self, command: Command) -> bool {
        let mut entropy = [0; 32];
        for part in entropy.chunks_mut(8) {
            part.copy_from_slice(&self.rng.bits().to_be_bytes());
        }
        let context = Context { observed: &self.observed, now: Millis(self.now), entropy };
        let text = format!("{command:?}");
        match apply(&mut self.model, &context, command) {
            Ok(applied) => {
                if !applied.changes.is_empty() {
                    self.say(format_args!("{text}"));
                }
                true
            }
            Err(refusal) => {
                self.say(format_args!("{text} refused: {refusal}"));
                false
            }
        }
    }

    fn look_at_all(&mut self) {
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
    fn look(&mut self, name: &ResourceName) {
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
        self.at(delay, event);
    }

    /// Whether the controller crashes here.
    fn crash_now(&mut self) -> bool {
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
    fn hello(&mut self, index: usize) {
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

    fn relink(&mut self, index: usize) {
        self.agents[index].linked = true;
        self.links[index] += 1;
        self.hello(index);
    }

    /// The controller notices that it does not reach a node.
    fn unlink(&mut self, index: usize) {
        self.agents[index].linked = false;
        self.links[index] += 1;
        if let Some(state) = self.observed.nodes.get_mut(&node(index)) {
            (state.connected, state.since) = (false, Millis(self.now));
        }
    }

    fn state(&self, index: usize, name: &ResourceName) -> ReplicaState {
        let record = &self.agents[index].records[name];
        record.report(name, &self.truth, &self.connected(index, name))
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

    fn tell(&mut self, index: usize, name: &ResourceName) {
        let agent = &self.agents[index];
        if !agent.up || !agent.linked || !self.calm && self.rng.percent(5) {
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
        let current: Vec<NodeName> = self
            .connected(index, name)
            .into_iter()
            .filter(|peer| {
                let peer = (0..NODES).find(|index| node(*index) == *peer).expect("a node");
                self.agents[peer].records[name].is_current(name, &self.truth)
            })
            .collect();
        let copies = self.copies(name);
        let had = self.agents[index]
            .records
            .get(name)
            .is_some_and(|record| record.volumes.values().any(|disk| disk.version.is_some()));
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
        let mut truth = std::mem::take(&mut self.truth);
        let done = record.carry_out(name, generation, action, &current, &mut truth, &sources);
        self.truth = truth;
        match done {
            Ok(()) => {
                self.stats.steps += 1;
                self.say(format_args!("{} {name} {}: {action}", node(index), generation.0));
            }
            Err(Refused::Old) => self.stats.refused_steps += 1,
            Err(Refused::Not) => self.stats.refused_steps += 1,
        }
        if empty && version(&self.agents[index].records[name]).is_some() {
            self.check_beginning(index, name, number.unwrap_or_default());
        }
        if had && done.is_ok() && action.takes_a_copy() {
            self.check_removal(index, name, copies);
        }
        self.forget_truth(name);
        self.resync();
        // Peers notice, too.
        (0..NODES).for_each(|peer| self.tell(peer, name));
    }

    /// How many nodes have every write, whether they are up or not.
    fn copies(&self, name: &ResourceName) -> usize {
        let records = self.agents.iter().filter_map(|agent| agent.records.get(name));
        records.filter(|record| record.is_current(name, &self.truth)).count()
    }

    /// Data that nobody has any more because nobody wanted them are forgotten.
    fn forget_truth(&mut self, name: &ResourceName) {
        let numbers: Vec<u16> =
            self.truth.keys().filter(|(other, _)| other == name).map(|(_, nr)| *nr).collect();
        for number in numbers {
            let has = |agent: &Agent| {
                let disk = agent.records.get(name).and_then(|r| r.volumes.get(&number));
                disk.is_some_and(|disk| disk.version.is_some())
            };
            if !self.agents.iter().any(has) {
                self.truth.remove(&(name.clone(), number));
            }
        }
    }

    /// Connected replicas get what they lack, and devices the size of the smallest disk's wish.
    fn resync(&mut self) {
        let keys: Vec<_> = self.truth.iter().map(|(key, last)| (key.clone(), *last)).collect();
        for ((name, number), last) in keys {
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
                if current && disk.metadata {
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
                && record.is_some_and(|record| record.is_current(name, &self.truth))
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

    /// Every Primary that can writes something: it is on all current disks that it is connected to.
    fn write(&mut self) {
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
        let old = self.truth.clone();
        for (_, last) in self.truth.iter_mut().filter(|((other, _), _)| other == name) {
            *last += 1;
        }
        for peer in (0..NODES).filter(|p| *p == index || connected.contains(&node(*p))) {
            let Some(record) = self.agents[peer].records.get_mut(name) else { continue };
            for (number, disk) in &mut record.volumes {
                let key = (name.clone(), *number);
                if disk.version.is_some() && disk.version.as_ref() == old.get(&key) {
                    disk.version = self.truth.get(&key).copied();
                }
            }
        }
    }

    // The checker.

    /// Data were removed from a node: somebody wanted that, and another copy is left if somebody
    /// wants the data.
    fn check_removal(&mut self, index: usize, name: &ResourceName, before: usize) {
        let on = node(index);
        let Some(definition) = self.model.definition(name) else { return };
        if definition.flags.contains(&DefinitionFlag::Delete) {
            return;
        }
        let resource = self.model.resource(name, &on);
        let leaving = [
            ResourceFlag::Delete,
            ResourceFlag::DrbdDelete,
            ResourceFlag::DiskRemoveRequested,
            ResourceFlag::DiskRemoving,
        ];
        if resource.is_some_and(|r| !leaving.iter().any(|flag| r.flags.contains(flag))) {
            self.broken = Some(format!("data of {name} on {on} were removed, and are wanted"));
            return;
        }
        let minimum = redundancy::policy(&self.model, name, &on).minimum;
        self.stats.removed_copies += u64::from(minimum > 0);
        if minimum > 0 && before > 0 && self.copies(name) == 0 {
            self.broken = Some(format!("{on} removed the last copy of {name}"));
        }
    }

    /// Data begin once: nobody else may have any, but who is being deleted for good.
    fn check_beginning(&mut self, index: usize, name: &ResourceName, volume: u16) {
        for (other, agent) in self.agents.iter().enumerate().filter(|(other, _)| *other != index) {
            let disk = agent.records.get(name).and_then(|record| record.volumes.get(&volume));
            let resource = self.model.resource(name, &node(other));
            let going = resource.is_some_and(|r| r.flags.contains(&ResourceFlag::DrbdDelete));
            if !going && disk.is_some_and(|disk| disk.version.is_some()) {
                let text = format!("{name} began on {} and on {}", node(other), node(index));
                self.broken = Some(text);
            }
        }
    }

    /// A snapshot that has become usable is of one point in time on all of its nodes.
    fn check_snapshots(&mut self, name: &ResourceName, before: &[SnapshotName]) {
        for snapshot in successful(&self.model, name) {
            if before.contains(&snapshot) {
                continue;
            }
            self.stats.snapshots += 1;
            let mut versions = Vec::new();
            let Some(found) = self.model.snapshot(name, &snapshot) else { continue };
            for on in found.nodes.keys() {
                let agent = self.agents.iter().zip(0..).find(|(_, index)| node(*index) == *on);
                let record = agent.and_then(|(agent, _)| agent.records.get(name));
                versions.push(record.and_then(|r| r.snapshots.get(&snapshot)).map(|s| s.1.clone()));
            }
            if versions.windows(2).any(|pair| pair[0] != pair[1]) || versions.contains(&None) {
                self.broken = Some(format!("{name}/{snapshot} is of several times: {versions:?}"));
            }
        }
    }

    /// Faults end.
    fn heal(&mut self) {
        self.say(format_args!("faults end"));
        self.calm = true;
        self.running = true;
        for index in 0..NODES {
            self.agents[index].up = true;
            self.demote(index);
            self.expire(index);
            self.relink(index);
        }
        for index in 0..NODES {
            let gone = |node: &&::cluster::objects::Node| !node.flags.is_empty();
            let name = node(index);
            if self.model.node(&name).as_ref().is_some_and(gone) {
                self.command(Command::RestoreNode {
                    name,
                    delete_resources: false,
                    delete_snapshots: false,
                });
            }
        }
        self.resync();
        (0..NODES).for_each(|index| self.hello(index));
    }

    /// Nothing is to be done any more, and the agents have what the model says.
    fn everything_is_as_wanted(&mut self) -> Result<(), String> {
        for definition in self.model.definitions() {
            let name = &definition.name;
            let plan = plan(&self.model, &self.observed, name);
            if !plan.is_done() {
                let steps: Vec<String> =
                    plan.steps.iter().map(|s| format!("{}: {}", s.node, s.action)).collect();
                return Err(format!("{name} does not settle: {steps:?} {:?}", plan.waits));
            }
            for resource in self.model.resources_of(name) {
                let index = (0..NODES).find(|i| node(*i) == resource.node).expect("a node");
                let record = self.agents[index].records.get(name);
                let volumes = record.map_or(0, |record| record.volumes.len());
                let wanted = if resource.is_replica() { resource.volumes.len() } else { 0 };
                if volumes != wanted {
                    return Err(format!("{name} on {} has {volumes} volumes", resource.node));
                }
            }
            let resizing = VolumeDefinitionFlag::Resize;
            if definition.volumes.values().any(|volume| volume.flags.contains(&resizing)) {
                return Err(format!("{name} does not end growing"));
            }
        }
        self.no_leftovers()
    }

    fn no_leftovers(&self) -> Result<(), String> {
        for (index, agent) in self.agents.iter().enumerate() {
            for (name, record) in &agent.records {
                let on = node(index);
                let resource = self.model.resource(name, &on).is_some();
                let snapshots = record.snapshots.keys();
                let mut unknown = snapshots.filter(|s| {
                    let found = self.model.snapshot(name, s);
                    !found.is_some_and(|found| found.nodes.contains_key(&on))
                });
                if let Some(snapshot) = unknown.next() {
                    return Err(format!("{on} has a snapshot {name}/{snapshot} left"));
                }
                if !resource && (!record.volumes.is_empty() || record.peers.is_some()) {
                    return Err(format!("{on} has something of {name} left"));
                }
                let held = SuspensionState::Held;
                if record.suspension.is_some_and(|(_, state)| state == held) {
                    return Err(format!("{name} is suspended for ever on {on}"));
                }
            }
        }
        Ok(())
    }

    fn delete_all(&mut self) -> Result<(), String> {
        let snapshots: Vec<_> =
            self.model.snapshots().map(|s| (s.resource.clone(), s.name.clone())).collect();
        for (name, snapshot) in snapshots {
            self.command(Command::DeleteSnapshot { name, snapshot, nodes: vec![] });
        }
        let names: Vec<_> = self.model.definitions().map(|d| d.name.clone()).collect();
        for name in names {
            if !self.command(Command::DeleteDefinition { name: name.clone() }) {
                return Err(format!("{name} can not be deleted"));
            }
        }
        self.look_at_all();
        Ok(())
    }

    fn nothing_is_left(&mut self) -> Result<(), String> {
        if let Some(definition) = self.model.definitions().next() {
            let plan = plan(&self.model, &self.observed, &definition.name);
            let steps: Vec<String> =
                plan.steps.iter().map(|s| format!("{}: {}", s.node, s.action)).collect();
            let name = &definition.name;
            return Err(format!("{name} is not gone: {steps:?}, {:?}", plan.waits));
        }
        for (index, agent) in self.agents.iter().enumerate() {
            if let Some((name, _)) = agent.records.iter().find(|(_, record)| !record.is_empty()) {
                return Err(format!("{} has something of {name} left", node(index)));
            }
        }
        let leaving = self.model.nodes().find(|n| n.flags.contains(&NodeFlag::Delete));
        leaving.map_or(Ok(()), |node| Err(format!("node {} is not gone", node.name)))
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
