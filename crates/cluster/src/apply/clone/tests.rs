//! Clones, from outside: what they are made of, when they are complete, and what becomes of those
//! that are not.

use std::collections::BTreeMap;

use crate::apply::tests::{Bed, node, rd};
use crate::command::{Command, NewDefinition};
use crate::name::*;
use crate::objects::*;
use crate::observed::{SnapshotState, Suspension, SuspensionState};
use crate::plan::{Action, plan};
use crate::props::PropsEdit;
use crate::refusal::Code;

fn deployed() -> Bed {
    let mut bed = Bed::new(4);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    bed.ok(Command::ModifyDefinition {
        name: rd("disk"),
        props: PropsEdit {
            set: [("Aux/a".to_owned(), "1".to_owned()), ("Aux/b".to_owned(), "2".to_owned())]
                .into(),
            ..PropsEdit::default()
        },
        group: None,
        layers: None,
        peer_slots: None,
    });
    bed.settle("disk");
    bed
}

fn clone(props: PropsEdit) -> Command {
    let to = NewDefinition { name: Some(rd("copy")), ..NewDefinition::default() };
    Command::CloneDefinition { name: rd("disk"), to, props }
}

fn flags(bed: &Bed) -> Vec<DefinitionFlag> {
    bed.model.definition(&rd("copy")).unwrap().flags.iter().copied().collect()
}

/// Agents have made the snapshot, and gone on.
fn snapshot(bed: &mut Bed) -> SnapshotName {
    let made = bed.model.snapshots_of(&rd("disk")).next().unwrap().clone();
    let suspension = Suspension { token: made.token, state: SuspensionState::Released };
    let nodes: Vec<NodeName> =
        bed.model.resources_of(&rd("disk")).map(|resource| resource.node.clone()).collect();
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    for node in nodes {
        let replica = replicas.get_mut(&node).unwrap();
        replica.suspension = Some(suspension);
        if made.nodes.contains_key(&node) {
            replica.snapshots.insert(made.name.clone(), SnapshotState { token: made.token });
        }
    }
    bed.ok(Command::Settle { name: rd("disk") });
    made.name
}

#[test]
fn a_clone_is_restored_from_a_snapshot_of_its_own_which_goes_when_it_is_complete() {
    let mut bed = deployed();
    let props = PropsEdit {
        set: [("Aux/a".to_owned(), "3".to_owned())].into(),
        delete: vec!["Aux/b".to_owned()],
        ..PropsEdit::default()
    };
    bed.ok(clone(props));
    assert_eq!(flags(&bed), [DefinitionFlag::Cloning]);
    assert_eq!(bed.model.resources_of(&rd("copy")).count(), 0);
    let busy = Command::Autoplace { name: rd("copy"), filter: Filter::default() };
    assert_eq!(bed.refused(busy).code, Code::RollbackRunning);

    let name = snapshot(&mut bed);
    assert_eq!(bed.nodes_of("copy"), ["node-0", "node-1"]);
    let made = plan(&bed.model, &bed.observed, &rd("copy")).steps;
    let from = |action: &Action| match action {
        Action::RestoreVolume { from, snapshot, .. } => Some((from.clone(), snapshot.clone())),
        _ => None,
    };
    let sources: Vec<_> = made.iter().filter_map(|step| from(&step.action)).collect();
    assert_eq!(sources, [(rd("disk"), name.clone()), (rd("disk"), name.clone())]);
    // It is not deleted before everybody has its data.
    let name_of = rd("disk");
    let delete = Command::DeleteSnapshot { name: name_of, snapshot: name.clone(), nodes: vec![] };
    assert_eq!(bed.refused(delete).code, Code::InUse);
    bed.settle("copy");
    assert_eq!(flags(&bed), []);
    let copy = bed.model.definition(&rd("copy")).unwrap();
    assert_eq!(copy.props.get("Aux/a").map(String::as_str), Some("3"));
    assert_eq!(copy.props.get("Aux/b"), None, "also not by way of the snapshot");
    assert_eq!(copy.peer_slots, bed.model.definition(&rd("disk")).unwrap().peer_slots);
    let tie_breaker = bed.nodes_of("copy");
    assert_eq!(tie_breaker.len(), 3, "what follows from replicas follows then: {tie_breaker:?}");
    assert!(bed.model.snapshot(&rd("disk"), &name).unwrap().is_deleting());
}

#[test]
fn what_can_not_be_made_stays_and_says_so_until_it_is_deleted() {
    let mut bed = deployed();
    bed.ok(clone(PropsEdit::default()));
    bed.observed.nodes.get_mut(&node(1)).unwrap().connected = false;
    bed.ok(Command::Settle { name: rd("disk") });
    assert_eq!(flags(&bed), [DefinitionFlag::Failed]);
    assert!(bed.model.snapshots_of(&rd("disk")).all(SnapshotDefinition::is_deleting));
    bed.ok(Command::DeleteDefinition { name: rd("copy") });
    assert!(bed.model.definition(&rd("copy")).is_none());
    bed.observed.nodes.get_mut(&node(1)).unwrap().connected = true;
    bed.settle("disk");
    assert_eq!(bed.model.snapshots_of(&rd("disk")).count(), 0);

    // Deleted in between, nothing is left of it.
    bed.ok(clone(PropsEdit::default()));
    snapshot(&mut bed);
    bed.ok(Command::DeleteDefinition { name: rd("copy") });
    assert!(bed.model.snapshots_of(&rd("disk")).all(SnapshotDefinition::is_deleting));
    bed.settle("copy");
    assert!(bed.model.definition(&rd("copy")).is_none());

    // A node that was to have the snapshot is lost.
    let mut bed = deployed();
    bed.ok(clone(PropsEdit::default()));
    for index in [0, 1] {
        bed.observed.nodes.get_mut(&node(index)).unwrap().connected = false;
        bed.ok(Command::LoseNode { name: node(index) });
    }
    bed.ok(Command::Tick);
    assert_eq!(flags(&bed), [DefinitionFlag::Failed]);
}

#[test]
fn what_can_not_be_cloned_is_refused() {
    let mut bed = deployed();
    let unnamed = Command::CloneDefinition {
        name: rd("disk"),
        to: NewDefinition::default(),
        props: PropsEdit::default(),
    };
    assert_eq!(bed.refused(unnamed).code, Code::InvalidResourceName);
    let layers = Some(vec![crate::layer::Layer::Storage]);
    let to = NewDefinition { name: Some(rd("copy")), layers, ..NewDefinition::default() };
    let other = Command::CloneDefinition { name: rd("disk"), to, props: PropsEdit::default() };
    assert_eq!(bed.refused(other).code, Code::InvalidLayerStack);
    let wrong = clone(PropsEdit::set("Nonsense", "1"));
    assert_eq!(bed.refused(wrong).code, Code::InvalidProperty);
    bed.ok(Command::CreateGroup {
        name: GroupName::new("elsewhere").unwrap(),
        description: String::new(),
        props: BTreeMap::new(),
        filter: Filter { pools: Some(vec![PoolName::new("other").unwrap()]), ..Filter::default() },
        peer_slots: None,
    });
    let group = Some(GroupName::new("elsewhere").unwrap());
    let to = NewDefinition { name: Some(rd("copy")), group, ..NewDefinition::default() };
    let elsewhere = Command::CloneDefinition { name: rd("disk"), to, props: PropsEdit::default() };
    assert_eq!(bed.refused(elsewhere).code, Code::NotEnoughNodes);
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    replicas.get_mut(&node(0)).unwrap().volumes.values_mut().for_each(|volume| {
        volume.disk = Some(vocab::DiskState::Inconsistent);
    });
    assert_eq!(bed.refused(clone(PropsEdit::default())).code, Code::NotUpToDate);
    bed.observed.nodes.get_mut(&node(1)).unwrap().connected = false;
    bed.observed.nodes.get_mut(&node(0)).unwrap().connected = false;
    assert_eq!(bed.refused(clone(PropsEdit::default())).code, Code::NotConnected);
}

#[test]
fn a_snapshot_that_nobody_makes_is_given_up_after_a_while() {
    let mut bed = deployed();
    bed.ok(clone(PropsEdit::default()));
    let settle = Command::Settle { name: rd("disk") };
    bed.ok(settle.clone());
    assert_eq!(flags(&bed), [DefinitionFlag::Cloning]);
    bed.pass(120_000);
    bed.ok(settle);
    assert_eq!(flags(&bed), [DefinitionFlag::Failed]);
    assert!(bed.model.snapshots_of(&rd("disk")).all(SnapshotDefinition::is_deleting));
}
