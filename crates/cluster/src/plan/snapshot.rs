//! Steps that make and delete snapshots.
//!
//! Suspend everywhere, snapshot, resume: each of the three begins when every node has reported the
//! one before, so a controller that is restarted in between goes on where the nodes are. What
//! belongs together by its token, also of other resource definitions, goes through them together.

use std::collections::BTreeSet;

use super::step::Action;
use super::{Ask, Plan};
use crate::apply::snapshots::RESTORE_FROM;
use crate::model::Model;
use crate::name::*;
use crate::objects::*;
use crate::observed::{Observed, SuspensionState};

/// Adds the steps of every snapshot.
pub(super) fn plan(ask: &Ask<'_>, plan: &mut Plan) {
    let name = &ask.definition.name;
    for snapshot in ask.model.snapshots_of(name) {
        if snapshot.is_pending() {
            make(ask, snapshot, plan);
        } else if !snapshot.is_downloading() {
            delete(ask, snapshot, plan);
        }
    }
    go_on(ask, plan);
}

/// Resource definitions with a snapshot that is being made together with one of this: their plans
/// depend on what is reported of it, too.
pub fn together(model: &Model, name: &ResourceName) -> BTreeSet<ResourceName> {
    let pending = |snapshot: &&SnapshotDefinition| snapshot.is_pending();
    let tokens: BTreeSet<_> = model.snapshots_of(name).filter(pending).map(|s| s.token).collect();
    if tokens.is_empty() {
        return BTreeSet::new();
    }
    let others = model.snapshots().filter(pending).filter(|s| tokens.contains(&s.token));
    others.map(|snapshot| snapshot.resource.clone()).filter(|other| other != name).collect()
}

/// Ends suspensions of snapshots that are made, have failed, or are gone: a step that came late may
/// have begun one when nobody was waiting for it any more.
fn go_on(ask: &Ask<'_>, plan: &mut Plan) {
    let name = &ask.definition.name;
    for (node, replica) in ask.observed.replicas(name) {
        let Some(suspension) = replica.suspension else { continue };
        let token = suspension.token;
        let mut snapshots = ask.model.snapshots_of(name);
        let wanted = snapshots.any(|snapshot| snapshot.is_pending() && snapshot.token == token);
        let held = suspension.state == SuspensionState::Held;
        if held && !wanted && ask.observed.is_connected(node) {
            plan.push(node, Action::Resume { token }, Vec::new());
        }
    }
}

/// The nodes on which a resource has to be suspended.
fn writers<'a>(
    model: &'a Model,
    observed: &'a Observed,
    name: &'a ResourceName,
) -> impl Iterator<Item = &'a NodeName> {
    let nodes = model.resources_of(name).map(|resource| &resource.node);
    nodes.filter(|node| observed.is_connected(node))
}

fn make(ask: &Ask<'_>, snapshot: &SnapshotDefinition, plan: &mut Plan) {
    let token = snapshot.token;
    let together = |other: &&SnapshotDefinition| other.token == token && other.is_pending();
    let all = || ask.model.snapshots().filter(together);
    let every = |state: SuspensionState| {
        all().all(|one| {
            writers(ask.model, ask.observed, &one.resource)
                .all(|node| ask.observed.suspension(&one.resource, node, token) == Some(state))
        })
    };
    let taken = |one: &SnapshotDefinition, node: &NodeName| {
        let replica = ask.observed.replica(&one.resource, node);
        replica.is_some_and(|replica| replica.snapshots.contains_key(&one.name))
    };
    let name = &snapshot.resource;
    let state = |node: &NodeName| ask.observed.suspension(name, node, token);
    let complete = all().all(|one| one.nodes.keys().all(|node| taken(one, node)));
    if complete {
        for node in writers(ask.model, ask.observed, name) {
            if state(node) == Some(SuspensionState::Held) {
                plan.push(node, Action::Resume { token }, Vec::new());
            }
        }
    } else if every(SuspensionState::Held) {
        for node in snapshot.nodes.keys().filter(|node| !taken(snapshot, node)) {
            let snapshot = snapshot.name.clone();
            plan.push(node, Action::TakeSnapshot { token, snapshot }, Vec::new());
        }
    } else {
        for node in writers(ask.model, ask.observed, name) {
            if state(node).is_none() {
                plan.push(node, Action::Suspend { token }, Vec::new());
            }
        }
        plan.wait(None, format!("I/O is being suspended for snapshot {}", snapshot.name));
    }
}

/// A resource of the node that still has to get its data from the snapshot.
fn restored_from<'a>(
    ask: &'a Ask<'_>,
    snapshot: &SnapshotDefinition,
    node: &NodeName,
) -> Option<&'a ResourceName> {
    let source = format!("{}/{}", snapshot.resource, snapshot.name);
    let mut resources = ask.model.resources_on(node);
    resources.find(|name| {
        ask.model.resource(name, node).is_some_and(|resource| {
            resource.flags.contains(&ResourceFlag::RestoreFromSnapshot)
                && !resource.is_deleting()
                && resource.props.get(RESTORE_FROM) == Some(&source)
        })
    })
}

/// Deletes what is not wanted.
fn delete(ask: &Ask<'_>, snapshot: &SnapshotDefinition, plan: &mut Plan) {
    let needed = ask.definition.rolling_back().filter(|r| r.needs(&snapshot.name));
    for (node, _) in snapshot.nodes.iter().filter(|(_, on_node)| on_node.deleting) {
        if needed.is_some() {
            let text = format!("snapshot {} is deleted after the rollback", snapshot.name);
            plan.wait(Some(node), text);
            continue;
        }
        if let Some(target) = restored_from(ask, snapshot, node) {
            let text = format!("snapshot {} is deleted when {target} has its data", snapshot.name);
            plan.wait(Some(node), text);
            continue;
        }
        if !ask.observed.is_connected(node) {
            plan.wait(
                Some(node),
                format!(
                    "node {node} is not connected: its snapshot {} is deleted when it is back; if \
                     it never is, `node lost {node}` forgets it",
                    snapshot.name
                ),
            );
        } else {
            let snapshot = snapshot.name.clone();
            plan.push(node, Action::DeleteSnapshot { snapshot }, Vec::new());
        }
    }
}
