//! Rollbacks, from outside: what is refused, what is done in which order, and when it is given up.

use vocab::Bytes;

use crate::apply::tests::{Bed, node, rd};
use crate::change::Object;
use crate::command::{Command, NewVolumeDefinition};
use crate::model::Model;
use crate::name::*;
use crate::objects::*;
use crate::observed::{DownForRollback, SnapshotState, Suspension, SuspensionState, VolumeState};
use crate::plan::{Action, Plan, plan};
use crate::props::PropsEdit;
use crate::refusal::Code;

const GIB: u64 = 1 << 30;

fn snap() -> SnapshotName {
    SnapshotName::new("monday").unwrap()
}

fn plan_of(bed: &Bed) -> Plan {
    plan(&bed.model, &bed.observed, &rd("disk"))
}

fn lines(bed: &Bed) -> Vec<String> {
    plan_of(bed).steps.iter().map(|s| format!("{}: {}", s.node, s.action)).collect()
}

fn back() -> Command {
    Command::RollBack { name: rd("disk"), snapshot: snap() }
}

fn phase(bed: &Bed) -> RollbackPhase {
    bed.model.definition(&rd("disk")).unwrap().rollback.clone().unwrap().phase
}

/// Two replicas and a tie-breaker, with a good snapshot; then a third replica, and the volume grew.
fn snapshotted() -> Bed {
    let mut bed = Bed::new(4);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    let snapshots = vec![(rd("disk"), snap(), vec![])];
    bed.ok(Command::CreateSnapshots { snapshots, props: Props::new() });
    let mut made = bed.model.snapshot(&rd("disk"), &snap()).unwrap().clone();
    made.flags.insert(SnapshotFlag::Successful);
    bed.model.put(Object::Snapshot(made.clone()));
    for node in made.nodes.keys() {
        let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
        let replica = replicas.get_mut(node).unwrap();
        replica.snapshots.insert(snap(), SnapshotState { token: made.token });
    }
    bed
}

fn with_a_third() -> Bed {
    let mut bed = snapshotted();
    bed.replica("disk", 3);
    bed.settle("disk");
    bed.ok(Command::ModifyVolumeDefinition {
        name: rd("disk"),
        number: 0,
        size: Some(2 * GIB),
        props: PropsEdit::default(),
        gross_size: None,
    });
    bed.model = Model::from_rows(bed.model.rows().map(|row| match row {
        Object::Definition(mut definition) => {
            for volume in definition.volumes.values_mut() {
                volume.flags.remove(&VolumeDefinitionFlag::Resize);
            }
            Object::Definition(definition)
        }
        other => other,
    }));
    bed
}

fn report(bed: &mut Bed, index: usize, changed: bool) {
    let rollback = bed.model.definition(&rd("disk")).unwrap().rollback.clone().unwrap();
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    let replica = replicas.get_mut(&node(index)).unwrap();
    replica.up = false;
    replica.rollback = Some(DownForRollback { token: rollback.token, changed });
    let has = rollback.holders.contains(&node(index));
    for volume in replica.volumes.values_mut() {
        *volume = match has || !changed {
            true => VolumeState { disk: None, ..volume.clone() },
            false => VolumeState::default(),
        };
    }
}

fn settle(bed: &mut Bed) {
    bed.ok(Command::Settle { name: rd("disk") });
}

fn rollback(bed: &Bed) -> Rollback {
    bed.model.definition(&rd("disk")).unwrap().rollback.clone().unwrap()
}

/// What is there before the rollback is kept, by all who are down.
fn keep(bed: &mut Bed) -> SnapshotName {
    let name = rollback(bed).safety.expect("there is something to keep").name;
    let token = bed.model.snapshot(&rd("disk"), &name).unwrap().token;
    let on: Vec<NodeName> =
        bed.model.snapshot(&rd("disk"), &name).unwrap().nodes.keys().cloned().collect();
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    for node in &on {
        replicas.get_mut(node).unwrap().snapshots.insert(name.clone(), SnapshotState { token });
    }
    for replica in replicas.values_mut() {
        replica.suspension = Some(Suspension { token, state: SuspensionState::Released });
    }
    settle(bed);
    name
}

#[test]
fn nobody_changes_data_before_all_are_down_and_nobody_loses_data_before_others_have_them() {
    let mut bed = with_a_third();
    let nodes = bed.nodes_of("disk").len();
    assert_eq!(nodes, 3, "{:?}", bed.nodes_of("disk"));
    bed.ok(back());
    let down = |index| format!("node-{index}: take it down for a rollback");
    let on: Vec<usize> =
        (0..4).filter(|i| bed.model.resource(&rd("disk"), &node(*i)).is_some()).collect();
    assert_eq!(lines(&bed), on.iter().map(|i| down(*i)).collect::<Vec<_>>());
    for index in &on[1..] {
        report(&mut bed, *index, false);
    }
    settle(&mut bed);
    assert_eq!(phase(&bed), RollbackPhase::Stopping);
    assert_eq!(lines(&bed), [down(on[0])]);
    report(&mut bed, on[0], false);
    settle(&mut bed);
    assert_eq!(phase(&bed), RollbackPhase::Stopping, "nothing was kept");
    let suspend = |index| format!("node-{index}: suspend I/O");
    assert_eq!(lines(&bed), on.iter().map(|i| suspend(*i)).collect::<Vec<_>>());
    let kept = keep(&mut bed);
    assert_eq!(phase(&bed), RollbackPhase::Changing);
    let holders = bed.model.definition(&rd("disk")).unwrap().rollback.clone().unwrap().holders;
    let holders: Vec<usize> = on.iter().copied().filter(|i| holders.contains(&node(*i))).collect();
    assert_eq!(holders.len(), 2);
    let roll = |index| format!("node-{index}: roll back to snapshot monday");
    assert_eq!(lines(&bed), holders.iter().map(|i| roll(*i)).collect::<Vec<_>>());
    report(&mut bed, holders[0], true);
    settle(&mut bed);
    assert_eq!(lines(&bed), [roll(holders[1])], "the third keeps its data for now");
    // A node that goes away in between holds everything up, and is named.
    bed.observed.nodes.get_mut(&node(holders[1])).unwrap().connected = false;
    settle(&mut bed);
    assert_eq!(phase(&bed), RollbackPhase::Changing);
    assert!(plan_of(&bed).waits[0].reason.contains("node lost"), "{:?}", plan_of(&bed).waits);
    bed.observed.nodes.get_mut(&node(holders[1])).unwrap().connected = true;
    report(&mut bed, holders[1], true);
    settle(&mut bed);
    assert_eq!(lines(&bed), ["node-3: discard the data that were not rolled back"]);
    report(&mut bed, 3, true);
    settle(&mut bed);
    assert_eq!(phase(&bed), RollbackPhase::Done);
    let volume = &bed.model.definition(&rd("disk")).unwrap().volumes[&vocab::VolumeNr(0)];
    assert_eq!((volume.size, &volume.initial_on), (Bytes(GIB), &None), "as in the snapshot");
    let steps = plan_of(&bed).steps;
    let configured = steps.iter().filter(|s| matches!(s.action, Action::Configure(_)));
    assert_eq!(configured.count(), 3);
    let delete = Action::DeleteSnapshot { snapshot: kept.clone() };
    assert_eq!(steps.iter().filter(|step| step.action == delete).count(), 3);
    for replica in bed.observed.resources.get_mut(&rd("disk")).unwrap().values_mut() {
        replica.snapshots.remove(&kept);
    }
    let begins = steps.iter().find_map(|step| match &step.action {
        Action::CreateMetadata { begin, .. } => Some((step.node.clone(), *begin)),
        _ => None,
    });
    assert_eq!(begins, Some((node(3), crate::plan::Begin::Empty)), "it copies everything");
    bed.settle("disk");
    assert!(plan_of(&bed).is_done(), "{:?}", plan_of(&bed));
}

#[test]
fn as_long_as_nothing_was_changed_it_is_given_up_when_a_node_goes_away_or_takes_too_long() {
    let mut bed = snapshotted();
    bed.ok(back());
    report(&mut bed, 0, false);
    bed.observed.nodes.get_mut(&node(1)).unwrap().connected = false;
    settle(&mut bed);
    let RollbackPhase::GivenUp(why) = phase(&bed) else { panic!("{:?}", phase(&bed)) };
    assert!(why.contains("node-1"), "{why}");
    let configure = lines(&bed).contains(&"node-0: configure".to_owned());
    assert!(configure, "what was taken down comes back: {:?}", lines(&bed));
    bed.observed.nodes.get_mut(&node(1)).unwrap().connected = true;
    bed.settle("disk");

    bed.ok(back());
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    replicas.get_mut(&node(1)).unwrap().in_use = Some(Millis(1));
    settle(&mut bed);
    assert!(matches!(phase(&bed), RollbackPhase::GivenUp(why) if why.contains("in use")));
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    replicas.get_mut(&node(1)).unwrap().in_use = None;
    bed.settle("disk");

    bed.ok(back());
    settle(&mut bed);
    assert_eq!(phase(&bed), RollbackPhase::Stopping);
    bed.pass(super::PATIENCE);
    settle(&mut bed);
    assert!(matches!(phase(&bed), RollbackPhase::GivenUp(why) if why.contains("60 seconds")));
}

#[test]
fn what_can_not_be_rolled_back_or_changed_meanwhile_is_refused() {
    let mut bed = snapshotted();
    let other = SnapshotName::new("never").unwrap();
    let unknown = Command::RollBack { name: rd("disk"), snapshot: other };
    assert_eq!(bed.refused(unknown).code, Code::UnknownSnapshot);
    bed.observed.nodes.get_mut(&node(0)).unwrap().connected = false;
    assert_eq!(bed.refused(back()).code, Code::NotConnected);
    bed.observed.nodes.get_mut(&node(0)).unwrap().connected = true;
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    replicas.get_mut(&node(0)).unwrap().in_use = Some(Millis(1));
    assert_eq!(bed.refused(back()).code, Code::InUse);
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    replicas.get_mut(&node(0)).unwrap().in_use = None;

    bed.ok(back());
    let (name, snapshot) = (rd("disk"), snap());
    let filter = Filter { place_count: Some(3), ..Filter::default() };
    let volume = NewVolumeDefinition { size: Bytes(GIB), ..NewVolumeDefinition::default() };
    let snapshots = vec![(rd("disk"), SnapshotName::new("late").unwrap(), vec![])];
    for command in [
        back(),
        Command::DeleteSnapshot { name: name.clone(), snapshot, nodes: vec![] },
        Command::Autoplace { name: name.clone(), filter },
        Command::CreateVolumeDefinition { name: name.clone(), volume },
        Command::CreateSnapshots { snapshots, props: Props::new() },
        Command::DeleteResource { name: name.clone(), node: node(0), keep_tie_breaker: false },
    ] {
        assert_eq!(bed.refused(command).code, Code::RollbackRunning);
    }

    // One that was made with other volumes is restored elsewhere.
    let mut bed = snapshotted();
    let volume = NewVolumeDefinition { size: Bytes(GIB), ..NewVolumeDefinition::default() };
    bed.ok(Command::CreateVolumeDefinition { name, volume });
    bed.settle("disk");
    assert_eq!(bed.refused(back()).code, Code::InvalidVolumeNumber);
}

/// All are down, what was there is kept, and the first of two has taken on the snapshot.
fn half_way() -> (Bed, SnapshotName) {
    let mut bed = with_a_third();
    bed.ok(back());
    (0..4).for_each(|index| {
        if bed.model.resource(&rd("disk"), &node(index)).is_some() {
            report(&mut bed, index, false);
        }
    });
    settle(&mut bed);
    let kept = keep(&mut bed);
    assert_eq!(phase(&bed), RollbackPhase::Changing);
    let first = rollback(&bed).holders.first().unwrap().clone();
    let index = (0..4).find(|index| node(*index) == first).unwrap();
    report(&mut bed, index, true);
    settle(&mut bed);
    (bed, kept)
}

#[test]
fn all_go_back_to_what_was_kept_if_one_that_is_connected_can_not_take_on_the_snapshot() {
    let (mut bed, kept) = half_way();
    let begun = rollback(&bed);
    let second = begun.holders.last().unwrap().clone();
    // One that is away may have done it: it is waited for, and then has its time.
    bed.observed.nodes.get_mut(&second).unwrap().connected = false;
    bed.pass(super::PATIENCE_TO_CHANGE);
    settle(&mut bed);
    assert_eq!(rollback(&bed), begun);
    let now = Millis(bed.now);
    let state = bed.observed.nodes.get_mut(&second).unwrap();
    (state.connected, state.since) = (true, now);
    settle(&mut bed);
    assert_eq!(rollback(&bed), begun);
    bed.pass(super::PATIENCE_TO_CHANGE - 10);
    bed.ok(Command::Tick);
    assert_eq!(rollback(&bed), begun);
    bed.pass(10);
    bed.ok(Command::Tick);
    let way_back = rollback(&bed);
    assert_eq!((&way_back.snapshot, way_back.kept()), (&kept, Some(&kept)));
    assert!(way_back.token > begun.token && way_back.holders.len() == 3, "{way_back:?}");
    let delete =
        Command::DeleteSnapshot { name: rd("disk"), snapshot: kept.clone(), nodes: vec![] };
    assert_eq!(bed.refused(delete).code, Code::RollbackRunning);
    // From here on nothing ends it: half of the disks may have the other data.
    let on: Vec<usize> =
        (0..4).filter(|i| bed.model.resource(&rd("disk"), &node(*i)).is_some()).collect();
    let down = |index: &usize| format!("node-{index}: take it down for a rollback");
    assert_eq!(lines(&bed), on.iter().map(down).collect::<Vec<_>>());
    on.iter().for_each(|index| report(&mut bed, *index, false));
    bed.observed.nodes.get_mut(&second).unwrap().connected = false;
    bed.pass(super::PATIENCE_TO_CHANGE);
    settle(&mut bed);
    assert_eq!(rollback(&bed), way_back);
    bed.observed.nodes.get_mut(&second).unwrap().connected = true;
    let roll = |index: &&NodeName| format!("{index}: roll back to snapshot {kept}");
    let expected: Vec<String> = way_back.holders.iter().map(|node| roll(&node)).collect();
    assert_eq!(lines(&bed), expected);
    on.iter().for_each(|index| report(&mut bed, *index, true));
    settle(&mut bed);
    let RollbackPhase::GivenUp(why) = phase(&bed) else { panic!("{:?}", phase(&bed)) };
    assert!(why.contains(second.as_str()) && why.contains("5 minutes"), "{why}");
    let volume = &bed.model.definition(&rd("disk")).unwrap().volumes[&vocab::VolumeNr(0)];
    assert_eq!(volume.size, Bytes(2 * GIB), "as it was before");
    let steps = plan_of(&bed).steps;
    let delete = Action::DeleteSnapshot { snapshot: kept };
    assert_eq!(steps.iter().filter(|step| step.action == delete).count(), 3);
    let configured = steps.iter().filter(|s| matches!(s.action, Action::Configure(_)));
    assert_eq!(configured.count(), on.len());
}

#[test]
fn without_a_snapshot_of_what_is_there_nothing_is_changed_unless_there_is_nothing_to_keep() {
    // It can not be made: everything comes back as it is.
    let mut bed = snapshotted();
    bed.ok(back());
    let on: Vec<usize> =
        (0..4).filter(|i| bed.model.resource(&rd("disk"), &node(*i)).is_some()).collect();
    on.iter().for_each(|index| report(&mut bed, *index, false));
    settle(&mut bed);
    let safety = rollback(&bed).safety.unwrap();
    let token = bed.model.snapshot(&rd("disk"), &safety.name).unwrap().token;
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    let expired = Suspension { token, state: SuspensionState::Expired };
    replicas.get_mut(&node(on[0])).unwrap().suspension = Some(expired);
    settle(&mut bed);
    let RollbackPhase::GivenUp(why) = phase(&bed) else { panic!("{:?}", phase(&bed)) };
    assert!(why.contains("snapshot"), "{why}");
    assert!(bed.model.snapshot(&rd("disk"), &safety.name).is_none_or(|s| s.is_deleting()));
    assert!(lines(&bed).contains(&format!("node-{}: configure", on[0])), "{:?}", lines(&bed));

    // No replica is good: what is there is worth nothing, and that is said.
    let mut bed = snapshotted();
    for replica in bed.observed.resources.get_mut(&rd("disk")).unwrap().values_mut() {
        replica.volumes.values_mut().for_each(|v| v.disk = Some(vocab::DiskState::Inconsistent));
    }
    let said = bed.ok(back()).notes;
    assert!(said[0].code.is_warning() && said[0].message.contains("UpToDate"), "{said:?}");
    on.iter().for_each(|index| report(&mut bed, *index, false));
    settle(&mut bed);
    assert_eq!(phase(&bed), RollbackPhase::Changing);
    // Without it there is no way back.
    bed.pass(super::PATIENCE_TO_CHANGE);
    let begun = rollback(&bed);
    settle(&mut bed);
    assert_eq!(rollback(&bed), begun);
}
