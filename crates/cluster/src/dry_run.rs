//! What a command would lead to, without carrying it out.
//!
//! The command is applied to a copy, and the plans of the resource definitions that it concerns are
//! carried out by agents that do everything at once and never fail, on a copy of what was observed,
//! until nothing is left to do. So what is foretold comes from the very code that will do it. What
//! waits for a node that is away, or for a user to close a device, waits here, too, and is said.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use vocab::{Bytes, DiskState, VolumeNr};

use crate::apply::apply;
use crate::command::Command;
use crate::edit::{Applied, Context};
use crate::model::Model;
use crate::name::*;
use crate::objects::Generation;
use crate::observed::*;
use crate::plan::{Action, Affected, Begin, Plan, Wait, affected, plan};
use crate::redundancy;
use crate::refusal::Refusal;
use crate::shipping::{Phase, ShipmentState};

/// Rounds of plans after which a prediction ends: a deletion takes seven.
const ROUNDS: usize = 100;

/// What a command would lead to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Prediction {
    /// The rows that it would change, and what an operator would be told.
    pub applied: Applied,
    /// What would happen, in this order; of several resource definitions side by side.
    pub events: Vec<Event>,
    /// What would be waited for in the end.
    pub waits: Vec<(ResourceName, Wait)>,
}

impl Prediction {
    /// Bytes that would be copied between nodes, at most.
    pub fn moved(&self) -> Bytes {
        let moved = self.events.iter().map(|event| match &event.what {
            What::Resync { bytes, .. } => bytes.0,
            What::Step(_) => 0,
        });
        Bytes(moved.fold(0, u64::saturating_add))
    }

    /// The least number of copies that a resource definition would have at any time.
    pub fn least_copies(&self, name: &ResourceName) -> Option<usize> {
        let own = self.events.iter().filter(|event| event.resource == *name);
        own.map(|event| event.copies_before.min(event.copies_after)).min()
    }
}

/// Something that would happen.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// The resource definition.
    pub resource: ResourceName,
    /// The node.
    pub node: NodeName,
    /// What happens there.
    pub what: What,
    /// Copies of the data that can be relied on before it.
    pub copies_before: usize,
    /// And after it.
    pub copies_after: usize,
}

/// A step, or what DRBD does because of one.
#[derive(Clone, PartialEq, Debug)]
pub enum What {
    /// A step of a plan.
    Step(Action),
    /// A disk becomes UpToDate by copying from its peers.
    Resync {
        /// Number of the volume.
        volume: VolumeNr,
        /// The size of the volume. Less is copied where blocks were never written.
        bytes: Bytes,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}: ", self.resource, self.node)?;
        match &self.what {
            What::Step(action) => action.fmt(f)?,
            What::Resync { volume, bytes } => {
                write!(f, "resync volume {volume}, {} KiB at most", bytes.0 / 1024)?;
            }
        }
        if self.copies_before != self.copies_after {
            write!(f, " (copies {} -> {})", self.copies_before, self.copies_after)?;
        }
        Ok(())
    }
}

/// Foretells what a command leads to. `model` stays as it is, and is copied once.
///
/// # Errors
/// If the command would be refused, with the same refusal.
pub fn dry_run(
    model: &Model,
    context: &Context<'_>,
    command: Command,
) -> Result<Prediction, Refusal> {
    dry_run_all(model, context, vec![command])
}

/// Foretells what commands lead to that are given one after the other.
///
/// # Errors
/// If one of them would be refused after those before it, with the same refusal.
pub fn dry_run_all(
    model: &Model,
    context: &Context<'_>,
    commands: Vec<Command>,
) -> Result<Prediction, Refusal> {
    let mut model = model.clone();
    let mut applied = Applied::default();
    for command in commands {
        let one = apply(&mut model, context, command)?;
        applied.changes.extend(one.changes);
        applied.notes.extend(one.notes);
        applied.placed.extend(one.placed);
    }
    let names: Vec<ResourceName> = match affected(&model, &applied.changes) {
        Affected::Some(names) => names.into_iter().collect(),
        Affected::All => model.definitions().map(|definition| definition.name.clone()).collect(),
    };
    let own = |(name, replicas): (&ResourceName, &BTreeMap<NodeName, ReplicaState>)| {
        names.contains(name).then(|| (name.clone(), replicas.clone()))
    };
    let resources = context.observed.resources.iter().filter_map(own).collect();
    let (nodes, master) = (context.observed.nodes.clone(), context.observed.master.clone());
    let observed = Observed { nodes, resources, master };
    let mut future = Future { model, observed, context, prediction: Prediction::default() };
    let mut open = names.clone();
    for _ in 0..ROUNDS {
        open.retain(|name| future.round(name));
        if open.is_empty() {
            break;
        }
        // Snapshots of several resource definitions go on together.
        open.clone_from(&names);
    }
    for name in names {
        let left = plan(&future.model, &future.observed, &name);
        let waits = left.waits.into_iter().map(|wait| (name.clone(), wait));
        future.prediction.waits.extend(waits);
    }
    future.prediction.applied = applied;
    Ok(future.prediction)
}

/// The cluster as it would go on.
struct Future<'a> {
    model: Model,
    observed: Observed,
    context: &'a Context<'a>,
    prediction: Prediction,
}

impl Future<'_> {
    /// Carries out what is ready. False if nothing has happened.
    fn round(&mut self, name: &ResourceName) -> bool {
        let context = Context { observed: &self.observed, ..*self.context };
        let settled = apply(&mut self.model, &context, Command::Settle { name: name.clone() });
        let changed = settled.is_ok_and(|applied| !applied.changes.is_empty());
        let plan = plan(&self.model, &self.observed, name);
        let ready: Vec<_> = plan.ready().map(|s| (s.node.clone(), s.action.clone())).collect();
        let mut acted = false;
        for (node, action) in ready {
            let before = self.copies(name);
            if self.carry_out(&plan, name, &node, &action) {
                acted = true;
                self.event(name, &node, What::Step(action), before);
            }
            self.resync(name);
        }
        changed || acted
    }

    fn copies(&self, name: &ResourceName) -> usize {
        redundancy::copies(&self.model, &self.observed, name).len()
    }

    fn event(&mut self, name: &ResourceName, node: &NodeName, what: What, before: usize) {
        let copies_after = self.copies(name);
        self.prediction.events.push(Event {
            resource: name.clone(),
            node: node.clone(),
            what,
            copies_before: before,
            copies_after,
        });
    }

    /// Does a step as an agent would. False if that changed nothing.
    fn carry_out(
        &mut self,
        plan: &Plan,
        name: &ResourceName,
        node: &NodeName,
        action: &Action,
    ) -> bool {
        let replicas = self.observed.resources.entry(name.clone()).or_default();
        let replica = replicas.entry(node.clone()).or_default();
        let before = replica.clone();
        match action {
            Action::CreateVolume { volume: number, backing } => {
                let state = state(replica, *number);
                state.backing = Some(backing.size);
                state.passphrase_changes = backing.passphrase_changes;
            }
            Action::AdoptVolume { volume: number, backing, metadata, .. } => {
                let state = state(replica, *number);
                state.backing = Some(backing.size);
                state.passphrase_changes = backing.passphrase_changes;
                (state.metadata, state.disk) = (*metadata, Some(DiskState::UpToDate));
            }
            Action::RestoreVolume { volume: number, backing, .. } => {
                let state = state(replica, *number);
                state.backing = Some(backing.size);
                state.passphrase_changes = backing.passphrase_changes;
                (state.metadata, state.disk) = (true, Some(DiskState::UpToDate));
            }
            Action::CreateMetadata { volume: number, begin, .. } => {
                let first = *begin == Begin::First;
                let disk = if first { DiskState::UpToDate } else { DiskState::Inconsistent };
                let state = state(replica, *number);
                (state.metadata, state.disk) = (true, Some(disk));
            }
            Action::BeginData { volume: number } => {
                state(replica, *number).disk = Some(DiskState::UpToDate);
            }
            Action::GrowVolume { volume: number, size } => {
                state(replica, *number).backing = Some(*size);
            }
            Action::ChangePassphrase { volume: number, changes, .. } => {
                state(replica, *number).passphrase_changes = *changes;
            }
            Action::GrowDevice { volume: number, size } => {
                // DRBD tells the others.
                for replica in replicas.values_mut() {
                    let own = replica.volumes.get_mut(&VolumeNr(*number));
                    if let Some(own) = own.filter(|own| own.size.0 > 0) {
                        own.size = *size;
                    }
                }
                return true;
            }
            Action::Configure(config) => {
                replica.generation = plan.generation;
                (replica.up, replica.rollback) = (true, None);
                replica.connections =
                    config.connections.keys().map(|peer| (peer.clone(), false)).collect();
                for (number, wanted) in &config.volumes {
                    let state = state(replica, *number);
                    if state.size.0 == 0 {
                        state.size = wanted.size;
                    }
                    // What was down meanwhile has to look at its peers.
                    let there = state.backing.is_some() && state.metadata;
                    let disk = if there { DiskState::Outdated } else { DiskState::Diskless };
                    state.disk = state.disk.or(Some(disk));
                }
            }
            Action::RemoveDisk(_) => {
                for state in replica.volumes.values_mut() {
                    (state.backing, state.metadata) = (None, false);
                    state.disk = Some(DiskState::Diskless);
                }
            }
            Action::RemoveVolume { volume: number } => {
                replica.volumes.remove(&VolumeNr(*number));
            }
            Action::Remove(_) => {
                *replica = ReplicaState { generation: plan.generation, ..ReplicaState::default() };
            }
            Action::Suspend { token } => {
                replica.suspension =
                    Some(Suspension { token: *token, state: SuspensionState::Held });
            }
            Action::TakeSnapshot { token, snapshot } => {
                replica.snapshots.insert(snapshot.clone(), SnapshotState { token: *token });
            }
            Action::Resume { token } => {
                replica.suspension =
                    Some(Suspension { token: *token, state: SuspensionState::Released });
            }
            Action::DeleteSnapshot { snapshot } => {
                replica.snapshots.remove(snapshot);
            }
            Action::TakeDown { token, .. } => {
                replica.take_down(*token);
            }
            Action::RollBack { token, .. } => {
                replica.rollback = Some(DownForRollback { token: *token, changed: true });
                for state in replica.volumes.values_mut() {
                    state.disk = Some(DiskState::UpToDate);
                }
            }
            Action::Discard { token } => {
                replica.rollback = Some(DownForRollback { token: *token, changed: true });
                replica.volumes.clear();
            }
            Action::Upload(order) => shipped(replica, order.token, Phase::Success),
            Action::Download(order) => {
                let state = SnapshotState { token: order.token };
                replica.snapshots.insert(order.snapshot.clone(), state);
                shipped(replica, order.token, Phase::Success);
            }
            Action::StopShipping { token } => shipped(replica, *token, Phase::Aborted),
        }
        *replica != before
    }

    /// Connects whoever knows each other, and brings disks up to date whose peers are.
    fn resync(&mut self, name: &ResourceName) {
        let Some(replicas) = self.observed.resources.get(name) else { return };
        let knows = |a: &NodeName, b: &NodeName| {
            replicas.get(a).is_some_and(|replica| replica.connections.contains_key(b))
        };
        let mut linked = BTreeSet::new();
        for node in replicas.keys() {
            let peers = replicas.keys().filter(|peer| knows(node, peer) && knows(peer, node));
            linked.extend(peers.map(|peer| (node.clone(), peer.clone())));
        }
        let replicas = self.observed.resources.entry(name.clone()).or_default();
        for (node, replica) in replicas.iter_mut() {
            for (peer, connected) in &mut replica.connections {
                *connected = linked.contains(&(node.clone(), peer.clone()));
            }
        }
        while let Some((node, volume)) = self.behind(name, &linked) {
            let before = self.copies(name);
            let definition = self.model.definition(name);
            let size = definition.and_then(|found| found.volumes.get(&volume)).map(|v| v.size);
            let replicas = self.observed.resources.entry(name.clone()).or_default();
            let state = replicas.get_mut(&node).and_then(|r| r.volumes.get_mut(&volume));
            if let Some(state) = state {
                state.disk = Some(DiskState::UpToDate);
            }
            let bytes = size.unwrap_or_default();
            self.event(name, &node, What::Resync { volume, bytes }, before);
        }
    }

    /// A disk that is not UpToDate, beside one that is.
    fn behind(
        &self,
        name: &ResourceName,
        linked: &BTreeSet<(NodeName, NodeName)>,
    ) -> Option<(NodeName, VolumeNr)> {
        let replicas = self.observed.resources.get(name)?;
        let disk =
            |node: &NodeName, volume: &VolumeNr| replicas.get(node)?.volumes.get(volume)?.disk;
        let here = |node: &NodeName| self.observed.is_connected(node);
        let mut all = replicas.iter().filter(|(node, replica)| replica.up && here(node)).flat_map(
            |(node, replica)| replica.volumes.iter().map(move |(nr, state)| (node, nr, state)),
        );
        let found = all.find(|(node, volume, state)| {
            let old = matches!(state.disk, Some(DiskState::Inconsistent | DiskState::Outdated));
            let source = |(from, to): &(NodeName, NodeName)| {
                to == *node && here(from) && disk(from, volume) == Some(DiskState::UpToDate)
            };
            old && state.metadata && linked.iter().any(source)
        });
        found.map(|(node, volume, _)| (node.clone(), *volume))
    }
}

/// Says what has become of something that is shipped.
fn shipped(replica: &mut ReplicaState, token: Generation, phase: Phase) {
    replica.shipments.retain(|shipment| shipment.token != token);
    replica.shipments.push(ShipmentState {
        token,
        phase,
        done_percent: 100,
        cause: None,
        door: None,
    });
}

/// The state of a volume, made if it is not there.
fn state(replica: &mut ReplicaState, volume: u16) -> &mut VolumeState {
    replica.volumes.entry(VolumeNr(volume)).or_default()
}
