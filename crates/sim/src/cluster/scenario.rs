//! Scripted runs of the control plane: what happens is told, not drawn.
//!
//! Nothing gets lost or late by itself. A scenario cuts nodes off, keeps steps or reports back, and
//! looks at what the agents have on their disks.

use ::cluster::command::Command;
use ::cluster::edit::Context;
use ::cluster::model::Model;
use ::cluster::name::{NodeName, ResourceName};
use ::cluster::objects::Millis;
use ::cluster::plan::{Plan, plan};
use ::cluster::refusal::Refusal;

use super::commands::{self, NODES};
use super::world::World;
use crate::rng::Rng;

/// A cluster of five nodes with a pool each, and a script.
pub struct Scenario<'t>(World<'t>);

impl<'t> Scenario<'t> {
    /// Begins one; `trace` is told what happens.
    pub fn new(trace: &'t mut dyn FnMut(&str)) -> Scenario<'t> {
        let mut world = World::new(Rng::new(1), trace);
        world.calm = true;
        for command in commands::nodes() {
            world.command(command);
        }
        (0..NODES).for_each(|index| world.hello(index));
        world.look_regularly();
        let mut scenario = Scenario(world);
        scenario.run(100);
        scenario
    }

    /// A node's name.
    pub fn node(index: usize) -> NodeName {
        commands::node(index)
    }

    /// The wanted state.
    pub fn model(&self) -> &Model {
        &self.0.model
    }

    /// The plan of a resource definition, as it is now.
    pub fn plan(&self, name: &ResourceName) -> Plan {
        plan(&self.0.model, &self.0.observed, name)
    }

    /// A command.
    ///
    /// # Errors
    /// If it is refused.
    pub fn command(&mut self, command: Command) -> Result<(), Refusal> {
        // The world's own way of doing it tells the checker, but does not say why it refused.
        let observed = &self.0.observed;
        let context = Context { observed, now: Millis(self.0.now), entropy: [7; 32] };
        let mut copy = self.0.model.clone();
        ::cluster::apply::apply(&mut copy, &context, command.clone())?;
        self.0.command(command);
        self.0.look_at_all();
        Ok(())
    }

    /// Lets time pass.
    ///
    /// # Panics
    /// If a rule of the checker is broken.
    pub fn run(&mut self, milliseconds: u64) {
        let end = self.0.now + milliseconds;
        if let Err(rule) = self.0.until(end) {
            panic!("{rule}");
        }
    }

    /// The controller does not reach a node, which goes on.
    pub fn cut(&mut self, index: usize) {
        self.0.unlink(index);
    }

    /// It reaches it again.
    pub fn link(&mut self, index: usize) {
        self.0.relink(index);
    }

    /// A node ends, or is back.
    pub fn set_up(&mut self, index: usize, up: bool) {
        self.0.agents[index].up = up;
        match up {
            true => self.0.relink(index),
            false => self.0.unlink(index),
        }
    }

    /// Whether what a node reports gets lost.
    pub fn mute(&mut self, index: usize, muted: bool) {
        match muted {
            true => self.0.muted.insert(index),
            false => self.0.muted.remove(&index),
        };
    }

    /// Whether steps for a node are kept back: they arrive when this ends, late.
    pub fn hold(&mut self, index: usize, held: bool) {
        match held {
            true => drop(self.0.held.insert(index, Vec::new())),
            false => self.0.release(index),
        }
    }

    /// True if a node's disks have every write of a resource definition.
    pub fn is_current(&self, index: usize, name: &ResourceName) -> bool {
        let record = self.0.agents[index].records.get(name);
        record.is_some_and(|record| record.is_current(name, &self.0.data))
    }

    /// How many backing volumes a node has of a resource definition.
    pub fn disks(&self, index: usize, name: &ResourceName) -> usize {
        self.0.agents[index].records.get(name).map_or(0, |record| record.volumes.len())
    }

    /// Opens a resource on a node, or closes it.
    pub fn open(&mut self, index: usize, name: &ResourceName, open: bool) {
        let now = Millis(self.0.now);
        if let Some(record) = self.0.agents[index].records.get_mut(name) {
            record.primary = open.then_some(now);
        }
        self.0.tell(index, name);
    }

    /// Whoever is Primary writes.
    pub fn write(&mut self) {
        self.0.write();
    }

    /// Heals everything, and checks that it becomes as wanted.
    ///
    /// # Panics
    /// If it does not.
    pub fn end(mut self) {
        self.0.heal();
        self.run(60_000);
        if let Err(rule) = self.0.everything_is_as_wanted() {
            panic!("{rule}");
        }
    }
}
