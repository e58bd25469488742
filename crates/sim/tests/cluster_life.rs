//! The control plane, scripted: each of these broke a rule once.

use cluster::command::{Command, NewDefinition, NewResource, NewVolumeDefinition};
use cluster::name::{PoolName, ResourceName, SnapshotName};
use cluster::objects::{Props, ResourceFlag, RollbackPhase};
use cluster::refusal::Code;
use sim::cluster::scenario::Scenario;
use vocab::Bytes;

const GIB: u64 = 1 << 30;

fn name() -> ResourceName {
    ResourceName::new("disk").expect("a valid name")
}

fn definition(scenario: &mut Scenario<'_>) {
    let definition = NewDefinition { name: Some(name()), ..NewDefinition::default() };
    scenario.command(Command::CreateDefinition { definition }).expect("it is carried out");
    let volume = NewVolumeDefinition { size: Bytes(GIB), ..NewVolumeDefinition::default() };
    scenario
        .command(Command::CreateVolumeDefinition { name: name(), volume })
        .expect("it is carried out");
}

fn create(on: usize) -> Command {
    let pool = Some(PoolName::new("thin").expect("a valid name"));
    let resource = NewResource { pool, ..NewResource::default() };
    Command::CreateResource { name: name(), node: Scenario::node(on), resource }
}

fn delete(on: usize) -> Command {
    Command::DeleteResource { name: name(), node: Scenario::node(on), keep_tie_breaker: false }
}

fn toggle(on: usize, diskful: bool, from: Option<usize>) -> Command {
    Command::ToggleDisk {
        name: name(),
        node: Scenario::node(on),
        diskful,
        pool: diskful.then(|| PoolName::new("thin").expect("a valid name")),
        migrate_from: from.map(Scenario::node),
        client: false,
    }
}

fn evict(on: usize) -> Command {
    Command::EvictNode { name: Scenario::node(on) }
}

/// A volume with replicas on some nodes, all of them UpToDate, and no tie-breaker.
fn deployed(scenario: &mut Scenario<'_>, nodes: &[usize]) {
    definition(scenario);
    let props = cluster::props::PropsEdit::set("DrbdOptions/auto-add-quorum-tiebreaker", "False");
    scenario.command(Command::ModifyController { props }).expect("it is carried out");
    for node in nodes {
        scenario.command(create(*node)).expect("it is carried out");
    }
    scenario.run(5_000);
    assert!(nodes.iter().all(|node| scenario.is_current(*node, &name())));
}

#[test]
fn the_last_replica_stays_while_an_evicted_one_may_want_its_data_back() {
    let mut nothing = |_: &str| {};
    let mut scenario = Scenario::new(&mut nothing);
    deployed(&mut scenario, &[0, 1]);
    scenario.set_up(1, false);
    scenario.open(0, &name(), true);
    scenario.write();
    scenario.open(0, &name(), false);
    // Nobody is left who could take its place.
    for node in [2, 3, 4] {
        scenario.cut(node);
    }
    scenario.command(evict(1)).unwrap();
    let refusal = scenario.command(delete(0)).unwrap_err();
    assert_eq!(refusal.code, Code::InUse, "{refusal}");
    scenario.run(5_000);
    assert!(scenario.is_current(0, &name()));
    scenario.end();
}

#[test]
fn a_deletion_is_taken_back_when_the_replica_that_was_to_stay_is_evicted() {
    let mut nothing = |_: &str| {};
    let mut scenario = Scenario::new(&mut nothing);
    deployed(&mut scenario, &[0, 1]);
    for node in [2, 3, 4] {
        scenario.cut(node);
    }
    scenario.hold(0, true);
    scenario.command(delete(0)).unwrap();
    scenario.run(1_000);
    scenario.set_up(1, false);
    scenario.command(evict(1)).unwrap();
    scenario.run(1_000);
    let resource = scenario.model().resource(&name(), &Scenario::node(0)).unwrap();
    assert!(resource.is_replica(), "{:?}", resource.flags);
    // What was sent before takes nothing: its guard does not hold, and it is old.
    scenario.hold(0, false);
    scenario.run(10_000);
    assert!(scenario.is_current(0, &name()));
    scenario.end();
}

#[test]
fn two_wishes_do_not_each_count_on_the_other_replica() {
    let mut nothing = |_: &str| {};
    let mut scenario = Scenario::new(&mut nothing);
    deployed(&mut scenario, &[0, 1]);
    scenario.hold(0, true);
    scenario.command(toggle(0, false, None)).unwrap();
    let refusal = scenario.command(delete(1)).unwrap_err();
    assert_eq!(refusal.code, Code::InUse, "{refusal}");
    scenario.hold(0, false);
    scenario.run(5_000);
    assert!(scenario.is_current(1, &name()));
    assert_eq!(scenario.disks(0, &name()), 0);
    scenario.end();
}

#[test]
fn data_that_nobody_has_heard_of_are_not_taken_away_nor_begun_again() {
    let mut nothing = |_: &str| {};
    let mut scenario = Scenario::new(&mut nothing);
    definition(&mut scenario);
    scenario.command(create(0)).unwrap();
    while scenario.disks(0, &name()) == 0 {
        scenario.run(5);
    }
    // It begins, and its reports get lost.
    scenario.mute(0, true);
    scenario.run(3_000);
    assert!(scenario.is_current(0, &name()));
    // As far as is known it has nothing, so it may be deleted, and another begin.
    scenario.command(create(1)).unwrap();
    scenario.command(delete(0)).unwrap();
    scenario.run(10_000);
    assert!(scenario.is_current(1, &name()), "it has copied them");
    scenario.mute(0, false);
    scenario.end();
}

#[test]
fn a_replica_whose_place_was_to_be_taken_goes_although_the_other_does_not_come() {
    let mut nothing = |_: &str| {};
    let mut scenario = Scenario::new(&mut nothing);
    deployed(&mut scenario, &[0, 1]);
    scenario.hold(2, true);
    let command = Command::CreateResource {
        name: name(),
        node: Scenario::node(2),
        resource: NewResource { diskless: true, ..NewResource::default() },
    };
    scenario.command(command).unwrap();
    scenario.command(toggle(2, true, Some(0))).unwrap();
    scenario.command(delete(0)).unwrap();
    scenario.command(delete(2)).unwrap();
    scenario.run(5_000);
    assert_eq!(scenario.disks(0, &name()), 0, "node 1 has the data: {:?}", scenario.plan(&name()));
    scenario.hold(2, false);
    scenario.end();
}

#[test]
fn replicas_do_not_take_each_others_place() {
    let mut nothing = |_: &str| {};
    let mut scenario = Scenario::new(&mut nothing);
    deployed(&mut scenario, &[0]);
    for node in [1, 2] {
        let resource = NewResource { diskless: true, ..NewResource::default() };
        let (name, node) = (name(), Scenario::node(node));
        scenario.command(Command::CreateResource { name, node, resource }).unwrap();
    }
    scenario.run(5_000);
    scenario.hold(1, true);
    scenario.hold(2, true);
    scenario.command(toggle(1, true, None)).unwrap();
    scenario.command(toggle(2, true, Some(1))).unwrap();
    let refusal = scenario.command(toggle(1, true, Some(2))).unwrap_err();
    assert_eq!(refusal.code, Code::InUse, "{refusal}");
    scenario.hold(1, false);
    scenario.hold(2, false);
    scenario.run(20_000);
    assert!(scenario.is_current(2, &name()));
    assert_eq!(scenario.disks(1, &name()), 0, "it has been replaced");
    scenario.end();
}

#[test]
fn what_is_decided_goes_also_when_somebody_wants_data_again() {
    let mut nothing = |_: &str| {};
    let mut scenario = Scenario::new(&mut nothing);
    deployed(&mut scenario, &[0, 1]);
    // One loses its disk because of the other, then that one is deleted, too.
    scenario.hold(0, true);
    scenario.command(delete(0)).unwrap();
    scenario.run(1_000);
    let resource = scenario.model().resource(&name(), &Scenario::node(0)).unwrap();
    assert!(resource.flags.contains(&ResourceFlag::DiskRemoving));
    scenario.command(delete(1)).unwrap();
    scenario.command(create(2)).unwrap();
    scenario.hold(0, false);
    scenario.run(20_000);
    for node in [0, 1] {
        assert!(scenario.model().resource(&name(), &Scenario::node(node)).is_none());
        assert_eq!(scenario.disks(node, &name()), 0);
    }
    assert!(scenario.is_current(2, &name()), "it has begun anew");
    scenario.end();
}

#[test]
fn a_disk_stays_if_that_is_wanted_again_in_time_and_is_made_again_if_not() {
    let mut nothing = |_: &str| {};
    for late in [false, true] {
        let mut scenario = Scenario::new(&mut nothing);
        deployed(&mut scenario, &[0, 1]);
        scenario.hold(0, true);
        scenario.command(toggle(0, false, None)).unwrap();
        scenario.run(1_000);
        if late {
            scenario.hold(0, false);
            scenario.run(3_000);
            assert_eq!(scenario.disks(0, &name()), 0);
        }
        scenario.command(toggle(0, true, None)).unwrap();
        scenario.hold(0, false);
        scenario.run(10_000);
        assert!(scenario.is_current(0, &name()), "late: {late}");
        scenario.end();
    }
}

#[test]
fn a_deletion_is_taken_back_when_the_node_with_the_other_replica_is_lost() {
    let mut nothing = |_: &str| {};
    let mut scenario = Scenario::new(&mut nothing);
    deployed(&mut scenario, &[0, 1]);
    scenario.hold(0, true);
    scenario.command(delete(0)).unwrap();
    scenario.cut(1);
    scenario.command(Command::LoseNode { name: Scenario::node(1) }).unwrap();
    scenario.hold(0, false);
    scenario.run(10_000);
    assert!(scenario.is_current(0, &name()));
    let resource = scenario.model().resource(&name(), &Scenario::node(0)).unwrap();
    assert!(resource.is_replica(), "{:?}", resource.flags);
}

#[test]
fn a_suspension_that_begins_late_ends() {
    let mut nothing = |_: &str| {};
    let mut scenario = Scenario::new(&mut nothing);
    deployed(&mut scenario, &[0, 1]);
    let client = NewResource { client: true, ..NewResource::default() };
    let node = Scenario::node(2);
    scenario.command(Command::CreateResource { name: name(), node, resource: client }).unwrap();
    scenario.run(5_000);
    let snapshot = SnapshotName::new("snap").unwrap();
    let snapshots = vec![(name(), snapshot.clone(), vec![])];
    scenario.command(Command::CreateSnapshots { snapshots, props: Props::new() }).unwrap();
    // Only the suspension is on its way, and comes when the snapshot is gone.
    scenario.run(500);
    scenario.hold(2, true);
    scenario.run(3_000);
    scenario.command(Command::DeleteSnapshot { name: name(), snapshot, nodes: vec![] }).unwrap();
    scenario.run(10_000);
    scenario.hold(2, false);
    scenario.end();
}

#[test]
fn volumes_do_not_change_while_a_snapshot_of_them_is_made() {
    let mut nothing = |_: &str| {};
    let mut scenario = Scenario::new(&mut nothing);
    deployed(&mut scenario, &[0, 1]);
    let snapshots = vec![(name(), SnapshotName::new("snap").unwrap(), vec![])];
    scenario.hold(0, true);
    scenario.command(Command::CreateSnapshots { snapshots, props: Props::new() }).unwrap();
    let volume = NewVolumeDefinition { size: Bytes(GIB), ..NewVolumeDefinition::default() };
    let refusal =
        scenario.command(Command::CreateVolumeDefinition { name: name(), volume }).unwrap_err();
    assert_eq!(refusal.code, Code::InUse, "{refusal}");
    scenario.hold(0, false);
    scenario.run(5_000);
    scenario.end();
}

fn phase(scenario: &Scenario<'_>) -> RollbackPhase {
    scenario
        .model()
        .definition(&name())
        .expect("it is there")
        .rollback
        .clone()
        .expect("it was rolled back")
        .phase
}

#[test]
fn a_node_that_is_away_while_others_go_back_to_a_snapshot_holds_them_until_it_has_too() {
    let mut nothing = |_: &str| {};
    let mut scenario = Scenario::new(&mut nothing);
    deployed(&mut scenario, &[0, 1, 2]);
    let snapshot = SnapshotName::new("snap").unwrap();
    let snapshots = vec![(name(), snapshot.clone(), vec![])];
    scenario.command(Command::CreateSnapshots { snapshots, props: Props::new() }).unwrap();
    scenario.run(5_000);
    scenario.open(0, &name(), true);
    scenario.write();
    scenario.run(1_000);
    let back = || Command::RollBack { name: name(), snapshot: snapshot.clone() };
    assert_eq!(scenario.command(back()).unwrap_err().code, Code::InUse);
    scenario.open(0, &name(), false);
    scenario.run(1_000);

    // One does not hear of it, and another goes away: nothing was changed.
    scenario.hold(1, true);
    scenario.command(back()).unwrap();
    scenario.run(5_000);
    assert_eq!(phase(&scenario), RollbackPhase::Stopping);
    scenario.cut(0);
    scenario.run(5_000);
    assert!(matches!(phase(&scenario), RollbackPhase::GivenUp(_)));
    scenario.hold(1, false);
    scenario.link(0);
    scenario.run(10_000);
    assert!((0..3).all(|node| scenario.is_current(node, &name())), "all have the write");

    scenario.command(back()).unwrap();
    while phase(&scenario) == RollbackPhase::Stopping {
        scenario.run(1);
    }
    scenario.set_up(1, false);
    scenario.run(30_000);
    assert_eq!(phase(&scenario), RollbackPhase::Changing);
    let plan = scenario.plan(&name());
    assert!(plan.steps.is_empty(), "nobody comes up: {:?}", plan.steps);
    assert!(plan.waits.iter().any(|wait| wait.node == Some(Scenario::node(1))), "{:?}", plan.waits);
    scenario.set_up(1, true);
    scenario.run(10_000);
    assert_eq!(phase(&scenario), RollbackPhase::Done);
    assert!((0..3).all(|node| scenario.is_current(node, &name())), "all have gone back");
    assert_eq!(scenario.model().snapshots_of(&name()).count(), 1, "what was kept is gone");
    scenario.end();
}

#[test]
fn what_was_there_before_a_rollback_comes_back_if_one_node_does_not_do_it() {
    let mut nothing = |_: &str| {};
    let mut scenario = Scenario::new(&mut nothing);
    deployed(&mut scenario, &[0, 1, 2]);
    let snapshot = SnapshotName::new("snap").unwrap();
    let snapshots = vec![(name(), snapshot.clone(), vec![])];
    scenario.command(Command::CreateSnapshots { snapshots, props: Props::new() }).unwrap();
    scenario.run(5_000);
    scenario.open(0, &name(), true);
    scenario.write();
    scenario.open(0, &name(), false);
    scenario.run(1_000);
    scenario.command(Command::RollBack { name: name(), snapshot }).unwrap();
    while phase(&scenario) == RollbackPhase::Stopping {
        scenario.run(1);
    }
    // It is connected, and never says that it has done it.
    scenario.mute(1, true);
    scenario.run(200_000);
    assert_eq!(phase(&scenario), RollbackPhase::Changing);
    scenario.run(300_000);
    scenario.mute(1, false);
    scenario.run(60_000);
    let RollbackPhase::GivenUp(why) = phase(&scenario) else { panic!("{:?}", phase(&scenario)) };
    assert!(why.contains(Scenario::node(1).as_str()), "{why}");
    assert!((0..3).all(|node| scenario.is_current(node, &name())), "all have the write");
    assert_eq!(scenario.model().snapshots_of(&name()).count(), 1, "what was kept is gone");
    scenario.end();
}
