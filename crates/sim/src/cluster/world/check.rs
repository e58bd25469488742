//! What is checked, from what the agents have on their disks.

use std::collections::BTreeMap;

use ::cluster::command::Command;
use ::cluster::name::{ResourceName, SnapshotName};
use ::cluster::objects::{DefinitionFlag, NodeFlag, ResourceFlag, VolumeDefinitionFlag};
use ::cluster::observed::SuspensionState;
use ::cluster::plan::plan;

use super::{Action, Generation, NODES, World, commands, node, successful};

impl World<'_> {
    /// Data were removed from a node by a step of a generation: somebody wanted that then, and another
    /// node has what somebody wants still.
    pub(super) fn check_removal(
        &mut self,
        index: usize,
        name: &ResourceName,
        generation: Generation,
        before: &BTreeMap<u16, Vec<usize>>,
    ) {
        // A late step may have brought data of what is being deleted since.
        self.data.follow(&self.model);
        let on = node(index);
        let after = self.holders(name);
        for (number, _) in before.iter().filter(|(_, had)| had.contains(&index)) {
            let left = after.get(number).map_or(0, Vec::len);
            let last = self.data.last(name, *number);
            let kept = after.get(number).is_some_and(|left| left.contains(&index));
            if kept || !last.is_some_and(|last| self.data.is_live(name, *number, last)) {
                continue;
            }
            self.stats.removed_copies += 1;
            let left_for = self.leaving.get(&(index, name.clone()));
            if left_for.is_none_or(|wanted| *wanted < generation) {
                self.broken = Some(format!("data of {name} on {on} were removed, and are wanted"));
            } else if left == 0 {
                self.broken = Some(format!("{on} removed the last copy of {name}"));
            }
        }
    }

    /// Data begin once: nobody else may have any, unless they were given up for good.
    pub(super) fn check_beginning(&mut self, index: usize, name: &ResourceName, volume: u16) {
        for (other, agent) in self.agents.iter().enumerate().filter(|(other, _)| *other != index) {
            let disk = agent.records.get(name).and_then(|record| record.volumes.get(&volume));
            let version = disk.and_then(|disk| disk.version);
            if version.is_some_and(|version| self.data.is_live(name, volume, version)) {
                let text = format!("{name} began on {} and on {}", node(other), node(index));
                self.broken = Some(text);
            }
        }
    }

    /// Disks change under a rollback only while the resource is down on every node that has it, also
    /// on those that are away: one that came up with newer data would give them to the others. What
    /// was not rolled back goes only when others have been.
    pub(super) fn check_rollback(&mut self, index: usize, name: &ResourceName, action: &Action) {
        let Some(record) = self.agents[index].records.get(name) else { return };
        let (Action::RollBack { token, .. } | Action::Discard { token }) = action else { return };
        let will = record.down.is_some_and(|down| down.token == *token && !down.changed);
        let running = self.model.definition(name).and_then(|d| d.rolling_back());
        let running = running.is_some_and(|running| running.token == *token);
        if !will || !running {
            return;
        }
        let up = self.agents.iter().enumerate().find(|(_, agent)| {
            agent.records.get(name).is_some_and(|record| record.peers.is_some())
        });
        if let Some((up, _)) = up {
            let text = format!("{name} is up on {} while {} is rolled back", node(up), node(index));
            self.broken = Some(text);
        }
        if let Action::RollBack { .. } = action {
            self.stats.rollbacks += 1;
            return;
        }
        for (number, had) in self.holders(name) {
            let last = self.data.last(name, number);
            let live = last.is_some_and(|last| self.data.is_live(name, number, last));
            if live && !had.iter().any(|other| *other != index) {
                self.broken = Some(format!("{} discards the only data of {name}", node(index)));
            }
        }
    }

    /// A snapshot that has become usable is of one point in time on all of its nodes.
    pub(super) fn check_snapshots(&mut self, name: &ResourceName, before: &[SnapshotName]) {
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
    pub(crate) fn heal(&mut self) {
        self.say(format_args!("faults end"));
        self.calm = true;
        self.running = true;
        for index in 0..NODES {
            self.agents[index].up = true;
            self.demote(index);
            self.expire(index);
            self.relink(index);
        }
        for command in commands::nodes() {
            self.command(command);
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
        self.activate_some();
        self.heal_schedules();
    }

    /// An operator activates some of what is inactive, and what nobody can do without.
    fn activate_some(&mut self) {
        let resources = self.model.definitions().flat_map(|d| self.model.resources_of(&d.name));
        let inactive = resources.filter(|resource| resource.deactivated.is_some());
        let inactive = inactive.map(|r| (r.name.clone(), r.node.clone())).collect::<Vec<_>>();
        for (name, node) in inactive {
            let active = |index: &usize| {
                let resource = self.model.resource(&name, &commands::node(*index));
                resource.is_some_and(|resource| resource.is_replica())
            };
            let held = self.holders(&name).into_values().all(|had| had.iter().any(active));
            if !held || self.rng.one_in(2) {
                self.command(Command::ActivateResource { name, node });
            } else {
                self.stats.inactive += 1;
            }
        }
    }

    /// Tells what is wanted of each resource definition, and what its nodes have.
    fn describe(&mut self) {
        let mut lines = Vec::new();
        for definition in self.model.definitions() {
            let name = &definition.name;
            for (number, volume) in &definition.volumes {
                let (on, flags) = (&volume.initial_on, &volume.flags);
                let last = self.data.last(name, number.0);
                lines.push(format!("{name} volume {number} {flags:?} begins on {on:?}: {last:?}"));
            }
            for resource in self.model.resources_of(name) {
                let index = (0..NODES).find(|i| node(*i) == resource.node).expect("a node");
                let (on, flags) = (&resource.node, &resource.flags);
                let from = resource.props.get("MigrateFrom");
                let disks = self.agents[index].records.get(name).map(|record| &record.volumes);
                lines.push(format!("{name} on {on} {flags:?} replaces {from:?}: {disks:?}"));
            }
        }
        for line in lines {
            self.say(format_args!("{line}"));
        }
    }

    /// Nothing is to be done any more, and the agents have what the model says.
    pub(crate) fn everything_is_as_wanted(&mut self) -> Result<(), String> {
        self.describe();
        for definition in self.model.definitions() {
            let name = &definition.name;
            if self.forgiven.contains(name) {
                continue;
            }
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
                let up = record.is_some_and(|record| record.peers.is_some());
                if up == resource.deactivated.is_some() {
                    let is = if up { "up" } else { "down" };
                    return Err(format!("{name} on {} is {is}", resource.node));
                }
                if up == resource.flags.contains(&ResourceFlag::Inactive) {
                    return Err(format!("{name} on {}: {:?}", resource.node, resource.flags));
                }
                if resource.flags.contains(&ResourceFlag::Reactivate) {
                    return Err(format!("{name} on {} does not end to return", resource.node));
                }
                if !up {
                    // What came meanwhile is made when it is activated; what went is gone.
                    let wanted = if resource.is_diskful() { resource.volumes.len() } else { 0 };
                    if volumes > wanted {
                        return Err(format!("{name} on {} has {volumes} volumes", resource.node));
                    }
                    continue;
                }
                let wanted = if resource.is_replica() { resource.volumes.len() } else { 0 };
                if volumes != wanted {
                    return Err(format!("{name} on {} has {volumes} volumes", resource.node));
                }
                let current = record.is_some_and(|record| record.is_current(name, &self.data));
                if wanted > 0 && !current {
                    return Err(format!("{name} on {} is not UpToDate", resource.node));
                }
            }
            if definition.flags.contains(&DefinitionFlag::Cloning) {
                return Err(format!("{name} does not end being cloned"));
            }
            if definition.rolling_back().is_some() {
                return Err(format!("{name} does not end being rolled back"));
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

    pub(super) fn delete_all(&mut self) -> Result<(), String> {
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

    pub(super) fn nothing_is_left(&mut self) -> Result<(), String> {
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
