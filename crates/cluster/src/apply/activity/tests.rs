//! What an inactive replica means for everything else.

use vocab::{Bytes, DiskState, VolumeNr};

use crate::apply::tests::{Bed, node, pool, rd};
use crate::change::{Change, Object};
use crate::command::{Command, NewDefinition, NewResource, NewVolumeDefinition};
use crate::dry_run::{What, dry_run};
use crate::edit::{Applied, Context};
use crate::name::SnapshotName;
use crate::objects::*;
use crate::plan::{Action, Guard, Plan, plan};
use crate::props::PropsEdit;
use crate::refusal::{Code, NoteCode, Refusal};

const GIB: u64 = 1 << 30;

fn deactivate(index: usize) -> Command {
    Command::DeactivateResource { name: rd("disk"), node: node(index) }
}

fn activate(index: usize) -> Command {
    Command::ActivateResource { name: rd("disk"), node: node(index) }
}

fn has(applied: &Applied, code: NoteCode) -> bool {
    applied.notes.iter().any(|note| note.code == code)
}

/// So many replicas that are UpToDate.
fn deployed(nodes: usize, replicas: u32) -> Bed {
    let mut bed = Bed::new(nodes);
    bed.define("disk");
    bed.place("disk", replicas).unwrap();
    bed.settle("disk");
    bed
}

fn resource(bed: &Bed, index: usize) -> Resource {
    bed.model.resource(&rd("disk"), &node(index)).unwrap().clone()
}

fn plan_of(bed: &Bed) -> Plan {
    plan(&bed.model, &bed.observed, &rd("disk"))
}

fn steps(bed: &Bed) -> Vec<String> {
    plan_of(bed).steps.iter().map(|step| format!("{}: {}", step.node, step.action)).collect()
}

/// Waits, of which there has to be one.
fn waits(bed: &Bed) -> String {
    let waits = plan_of(bed).waits;
    assert!(!waits.is_empty(), "{:?}", steps(bed));
    waits.into_iter().map(|wait| wait.reason).collect::<Vec<_>>().join("; ")
}

/// The nodes say that they have done what is wanted, those that are to be down as well if `down`.
fn confirm(bed: &mut Bed, down: bool) {
    let generation = bed.model.wanted_generation(&rd("disk"));
    let tokens: Vec<_> =
        bed.model.resources_of(&rd("disk")).map(|r| (r.node.clone(), r.deactivated)).collect();
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    for (node, token) in tokens {
        let replica = replicas.entry(node).or_default();
        match token {
            None => (replica.generation, replica.up, replica.rollback) = (generation, true, None),
            Some(token) if down => replica.take_down(token),
            Some(_) if replica.up => replica.generation = generation,
            Some(_) => {}
        }
    }
    bed.ok(Command::Settle { name: rd("disk") });
}

/// One node says that it has the newest configuration.
fn confirm_one(bed: &mut Bed, index: usize) {
    let generation = bed.model.wanted_generation(&rd("disk"));
    replicas_of(bed, index).generation = generation;
}

fn volume_state(bed: &mut Bed, index: usize, disk: DiskState) {
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    let volumes = &mut replicas.get_mut(&node(index)).unwrap().volumes;
    volumes.get_mut(&VolumeNr(0)).unwrap().disk = Some(disk);
}

fn quorum(bed: &Bed) -> String {
    bed.model.definition(&rd("disk")).unwrap().props["DrbdOptions/Resource/quorum"].clone()
}

#[test]
fn a_replica_goes_down_after_its_peers_know_and_stays_so_whoever_restarts() {
    let mut bed = deployed(3, 2);
    assert_eq!(bed.nodes_of("disk"), ["node-0", "node-1", "tie-breaker node-2"]);
    let applied = bed.ok(deactivate(0));
    assert!(has(&applied, NoteCode::Deactivated), "{:?}", applied.notes);
    let token = resource(&bed, 0).deactivated.unwrap();
    assert!(resource(&bed, 0).flags.contains(&ResourceFlag::Inactive));
    // One that is active needs no quorum. The tie-breaker is there for when there are two again.
    assert_eq!(quorum(&bed), "off");
    assert!(resource(&bed, 2).is_tie_breaker() && !resource(&bed, 2).is_deleting());
    // It has to see who has the data, and they have to know that it goes.
    assert!(steps(&bed).contains(&"node-0: configure".to_owned()), "{:?}", steps(&bed));
    confirm_one(&mut bed, 0);
    assert!(waits(&bed).contains("node node-1 has to know first that node-0 goes down"));
    assert!(!steps(&bed).iter().any(|step| step.starts_with("node-0")), "{:?}", steps(&bed));
    confirm(&mut bed, false);
    let guard = Some(Guard { at_least: 1, of: vec![node(1)] });
    let take_down = Action::TakeDown { token, guard };
    let is_it = |step: &crate::plan::Step| step.node == node(0) && step.action == take_down;
    assert!(plan_of(&bed).steps.iter().any(is_it), "{:?}", steps(&bed));
    // Its peers keep it in their configuration: they remember what it misses.
    for _ in 0..4 {
        bed.settle("disk");
    }
    assert!(plan_of(&bed).is_done(), "{:?}", plan_of(&bed));
    assert!(!resource(&bed, 0).is_replica() && resource(&bed, 0).takes_a_place());
    let other = bed.ok(Command::ModifyDefinition {
        name: rd("disk"),
        props: PropsEdit::set("Aux/x", "1"),
        group: None,
        layers: None,
        peer_slots: None,
    });
    assert!(!other.changes.is_empty());
    let plan = plan_of(&bed);
    assert_eq!(plan.steps.len(), 2, "{plan:?}");
    let Action::Configure(config) = &plan.steps[0].action else { panic!("{plan:?}") };
    assert!(config.connections.contains_key(&node(0)));
    confirm(&mut bed, false);
    assert!(plan_of(&bed).is_done(), "{:?}", plan_of(&bed));
    // Controllers know what they stored and what they are told.
    bed.model = crate::model::Model::from_rows(bed.model.rows());
    assert!(plan_of(&bed).is_done());
    let again = bed.ok(deactivate(0));
    assert!(again.changes.is_empty() && has(&again, NoteCode::NothingToDo), "{again:?}");

    // An operator brings it up by hand.
    let replicas = bed.observed.resources.get_mut(&rd("disk")).unwrap();
    replicas.get_mut(&node(0)).unwrap().up = true;
    assert!(waits(&bed).contains("ashlar down disk"), "{}", waits(&bed));
    replicas_of(&mut bed, 0).up = false;

    bed.ok(activate(0));
    assert!(resource(&bed, 0).is_replica());
    assert!(resource(&bed, 0).flags.contains(&ResourceFlag::Reactivate));
    assert!(steps(&bed).contains(&"node-0: configure".to_owned()), "{:?}", steps(&bed));
    // It has no vote before it is there: the others would lack it.
    confirm(&mut bed, false);
    assert_eq!(quorum(&bed), "off");
    bed.settle("disk");
    assert_eq!(quorum(&bed), "majority", "with a tie-breaker: {:?}", bed.nodes_of("disk"));
    assert!(!resource(&bed, 0).flags.contains(&ResourceFlag::Reactivate));
    assert!(plan_of(&bed).is_done(), "{:?}", plan_of(&bed));
    let again = bed.ok(activate(0));
    assert!(again.changes.is_empty() && has(&again, NoteCode::NothingToDo), "{again:?}");
}

fn replicas_of(bed: &mut Bed, index: usize) -> &mut crate::observed::ReplicaState {
    bed.observed.resources.get_mut(&rd("disk")).unwrap().get_mut(&node(index)).unwrap()
}

#[test]
fn rows_of_older_releases_have_no_such_mark_and_rows_without_it_have_none_to_read() {
    let mut bed = deployed(2, 2);
    let row = serde_json::to_string(&Change::Put(Object::Resource(resource(&bed, 0)))).unwrap();
    assert!(!row.contains("deactivated"), "{row}");
    let read: Change = serde_json::from_str(&row).unwrap();
    assert_eq!(read, Change::Put(Object::Resource(resource(&bed, 0))));
    bed.ok(deactivate(0));
    let row = serde_json::to_string(&resource(&bed, 0)).unwrap();
    let read: Resource = serde_json::from_str(&row).unwrap();
    assert_eq!(read, resource(&bed, 0));
}

#[test]
fn what_others_need_or_somebody_uses_stays_active() {
    let mut bed = deployed(4, 2);
    let refused = |bed: &mut Bed, index, code, word: &str| {
        let refusal = bed.refused(deactivate(index));
        assert_eq!(refusal.code, code, "{refusal}");
        assert!(refusal.to_string().contains(word), "{refusal}");
    };
    replicas_of(&mut bed, 0).in_use = Some(Millis(1));
    refused(&mut bed, 0, Code::InUse, "Primary");
    // Who has it open goes on without the other.
    bed.ok(deactivate(1));
    bed.ok(activate(1));
    bed.settle("disk");
    replicas_of(&mut bed, 0).in_use = None;
    volume_state(&mut bed, 1, DiskState::Inconsistent);
    refused(&mut bed, 0, Code::InsufficientReplicas, "UpToDate");
    bed.settle("disk");
    let is_one = |index: &usize| {
        let found = bed.model.resource(&rd("disk"), &node(*index));
        found.is_some_and(Resource::is_tie_breaker)
    };
    let tie_breaker = (2..4).find(is_one).unwrap();
    refused(&mut bed, tie_breaker, Code::InvalidResourceState, "vote");
    refused(&mut bed, 5 - tie_breaker, Code::UnknownResource, "does not exist");
    bed.ok(deactivate(0));
    refused(&mut bed, 1, Code::InsufficientReplicas, "activate one");
    bed.ok(activate(0));
    bed.settle("disk");
    bed.ok(Command::EvacuateNode { name: node(0), to: None, not_to: vec![] });
    refused(&mut bed, 0, Code::InvalidResourceState, "restore node node-0");
    let target = bed
        .model
        .resources_of(&rd("disk"))
        .find(|r| crate::redundancy::replaces(r) == Some(node(0)))
        .map(|resource| resource.node.clone());
    let target = (0..4).find(|index| target == Some(node(*index))).unwrap();
    refused(&mut bed, target, Code::InvalidResourceState, "");
    // The new replica is there, and the old one is still in use by nobody.
    bed.report("disk");
    refused(&mut bed, target, Code::InvalidResourceState, "");
    for (name, index, code) in [("never", 0, 301), ("disk", 9, 300)] {
        let (name, node) = (rd(name), node(index));
        let command = Command::ActivateResource { name: name.clone(), node: node.clone() };
        assert_eq!(bed.refused(command).code.number(), code);
        let command = Command::DeactivateResource { name, node };
        assert_eq!(bed.refused(command).code.number(), code);
    }
    // Without DRBD there is nothing that could be taken down.
    let layers = Some(vec![crate::layer::Layer::Storage]);
    let name = Some(rd("plain"));
    let definition = NewDefinition { name, layers, ..NewDefinition::default() };
    bed.ok(Command::CreateDefinition { definition });
    let volume = NewVolumeDefinition { size: Bytes(GIB), ..NewVolumeDefinition::default() };
    bed.ok(Command::CreateVolumeDefinition { name: rd("plain"), volume });
    bed.replica("plain", 1);
    let refusal = bed.refused(Command::DeactivateResource { name: rd("plain"), node: node(1) });
    assert_eq!(refusal.code, Code::InvalidLayerStack, "{refusal}");
}

#[test]
fn votes_that_are_missing_already_are_not_made_fewer() {
    let mut bed = deployed(3, 3);
    bed.ok(deactivate(0));
    bed.ok(activate(0));
    bed.settle("disk");
    bed.observed.nodes.get_mut(&node(2)).unwrap().connected = false;
    let refusal = bed.refused(deactivate(0));
    assert_eq!(refusal.code, Code::InsufficientReplicas);
    assert!(refusal.cause.contains("node-2") && refusal.cause.contains("quorum"), "{refusal}");
    // The one that is away has no vote in what the others do without it, once it is down itself.
    bed.observed.nodes.get_mut(&node(2)).unwrap().connected = true;
    bed.ok(deactivate(2));
    bed.settle("disk");
    bed.ok(deactivate(0));
    assert_eq!(quorum(&bed), "off");
}

#[test]
fn it_waits_while_what_was_true_when_it_was_asked_for_is_not() {
    let mut bed = deployed(3, 2);
    bed.ok(deactivate(0));
    (0..2).for_each(|_| confirm(&mut bed, false));
    let down = |bed: &Bed| steps(bed).contains(&"node-0: take it down".to_owned());
    assert!(down(&bed), "{:?}", steps(&bed));
    replicas_of(&mut bed, 0).in_use = Some(Millis(1));
    assert!(!down(&bed) && waits(&bed).contains("in use on node node-0"), "{}", waits(&bed));
    replicas_of(&mut bed, 0).in_use = None;
    volume_state(&mut bed, 1, DiskState::Outdated);
    assert!(!down(&bed) && waits(&bed).contains("stays up on node node-0"), "{}", waits(&bed));
    volume_state(&mut bed, 1, DiskState::UpToDate);
    assert!(down(&bed), "{:?}", steps(&bed));
    bed.observed.nodes.get_mut(&node(0)).unwrap().connected = false;
    assert!(waits(&bed).contains("it follows when it is back"), "{}", waits(&bed));
}

#[test]
fn two_that_go_down_do_not_wait_for_each_other() {
    let mut bed = deployed(4, 3);
    bed.ok(deactivate(0));
    bed.ok(deactivate(1));
    // The tie-breaker that the first one brought goes with the second.
    (0..2).for_each(|_| confirm(&mut bed, false));
    for index in 0..2 {
        let step = format!("node-{index}: take it down");
        assert!(steps(&bed).contains(&step), "{:?} {:?}", steps(&bed), plan_of(&bed).waits);
    }
}

#[test]
fn what_an_inactive_replica_could_not_follow_is_refused() {
    let mut bed = deployed(4, 2);
    let snapshot = SnapshotName::new("monday").unwrap();
    let snapshots = |nodes: Vec<usize>| Command::CreateSnapshots {
        snapshots: vec![(rd("disk"), snapshot.clone(), nodes.into_iter().map(node).collect())],
        props: Props::new(),
    };
    bed.ok(snapshots(vec![]));
    // Being made.
    assert_eq!(bed.refused(deactivate(0)).code, Code::InUse);
    bed.ok(Command::AbortSnapshot {
        name: rd("disk"),
        snapshot: snapshot.clone(),
        disconnected: false,
    });
    bed.settle("disk");
    bed.ok(deactivate(0));
    bed.settle("disk");
    let toggle = |index, diskful, from: Option<usize>| Command::ToggleDisk {
        name: rd("disk"),
        node: node(index),
        diskful,
        pool: diskful.then(pool),
        migrate_from: from.map(node),
        client: false,
    };
    let grow = Command::ModifyVolumeDefinition {
        name: rd("disk"),
        number: 0,
        size: Some(2 * GIB),
        props: PropsEdit::default(),
        gross_size: None,
    };
    let to = NewDefinition { name: Some(rd("copy")), ..NewDefinition::default() };
    let clone = Command::CloneDefinition { name: rd("disk"), to, props: PropsEdit::default() };
    let delete =
        Command::DeleteResource { name: rd("disk"), node: node(1), keep_tie_breaker: false };
    let tuesday = SnapshotName::new("tuesday").unwrap();
    for (command, code) in [
        (grow, Code::NotUpToDate),
        (clone, Code::InvalidResourceState),
        (toggle(0, false, None), Code::InvalidResourceState),
        (toggle(0, true, None), Code::InvalidResourceState),
        (snapshots(vec![0]), Code::InvalidResourceState),
        (delete, Code::InUse),
    ] {
        let refusal = bed.refused(command.clone());
        assert_eq!(refusal.code, code, "{command:?}: {refusal}");
    }
    bed.replica("disk", 3);
    let refusal = bed.refused(toggle(3, true, Some(0)));
    assert!(refusal.cause.contains("inactive"), "{refusal}");
    bed.settle("disk");
    // Those that are active have a snapshot, and it is said who has none.
    let named = |nodes: Vec<usize>| Command::CreateSnapshots {
        snapshots: vec![(rd("disk"), tuesday.clone(), nodes.into_iter().map(node).collect())],
        props: Props::new(),
    };
    let refusal = bed.refused(named(vec![0]));
    assert!(refusal.cause.contains("inactive"), "{refusal}");
    let applied = bed.ok(named(vec![]));
    assert!(has(&applied, NoteCode::Deactivated), "{:?}", applied.notes);
    let found = bed.model.snapshot(&rd("disk"), &tuesday).unwrap();
    assert_eq!(found.nodes.keys().cloned().collect::<Vec<_>>(), [node(1), node(3)]);
    bed.model.put(Object::Snapshot(SnapshotDefinition {
        flags: [SnapshotFlag::Successful].into(),
        ..found.clone()
    }));
    let refusal = bed.refused(Command::RollBack { name: rd("disk"), snapshot: tuesday });
    assert!(refusal.cause.contains("inactive"), "{refusal}");
    assert!(refusal.correction.contains("activate"), "{refusal}");
}

#[test]
fn it_keeps_its_place_and_is_no_reason_to_make_another() {
    let mut bed = deployed(4, 2);
    bed.ok(deactivate(0));
    bed.settle("disk");
    let applied = bed.place("disk", 2).unwrap();
    assert!(has(&applied, NoteCode::AlreadyDeployed), "{:?}", applied.notes);
    bed.pass(2 * 3_600_000);
    assert!(bed.ok(Command::Tick).changes.is_empty(), "{:?}", bed.nodes_of("disk"));
    let exists = bed.ok(Command::CreateResource {
        name: rd("disk"),
        node: node(0),
        resource: NewResource { pool: Some(pool()), ..NewResource::default() },
    });
    assert!(has(&exists, NoteCode::Deactivated) && exists.changes.is_empty(), "{exists:?}");
    // Made available it is active.
    bed.ok(Command::MakeAvailable { name: rd("disk"), node: node(0), diskful: false });
    assert!(resource(&bed, 0).is_replica());
}

#[test]
fn an_inactive_replica_is_deleted_as_any_other_and_that_ends() {
    let mut bed = deployed(4, 2);
    bed.ok(deactivate(0));
    bed.settle("disk");
    let (name, on) = (rd("disk"), node(0));
    bed.ok(Command::DeleteResource { name, node: on, keep_tie_breaker: false });
    assert!(resource(&bed, 0).deactivated.is_none());
    assert!(steps(&bed).contains(&"node-0: configure".to_owned()), "{:?}", steps(&bed));
    bed.settle("disk");
    assert!(bed.model.resource(&rd("disk"), &node(0)).is_none(), "{:?}", bed.nodes_of("disk"));
    // With everything it goes at once, as it is.
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    let index = (0..4).find(|index| *index != 1 && replica(&bed, *index)).unwrap();
    bed.ok(deactivate(index));
    bed.settle("disk");
    bed.ok(Command::DeleteDefinition { name: rd("disk") });
    bed.settle("disk");
    assert!(bed.model.definition(&rd("disk")).is_none());
}

fn replica(bed: &Bed, index: usize) -> bool {
    bed.model.resource(&rd("disk"), &node(index)).is_some_and(Resource::is_replica)
}

#[test]
fn volumes_come_and_go_while_a_replica_is_inactive() {
    let mut bed = deployed(3, 2);
    bed.ok(deactivate(0));
    bed.settle("disk");
    let volume = NewVolumeDefinition { size: Bytes(GIB), ..NewVolumeDefinition::default() };
    bed.ok(Command::CreateVolumeDefinition { name: rd("disk"), volume });
    assert_eq!(
        bed.model.definition(&rd("disk")).unwrap().volumes[&VolumeNr(1)].initial_on,
        Some(node(1))
    );
    bed.settle("disk");
    assert!(plan_of(&bed).is_done(), "{:?}", plan_of(&bed));
    bed.ok(Command::DeleteVolumeDefinition { name: rd("disk"), number: 0 });
    confirm(&mut bed, true);
    assert!(steps(&bed).contains(&"node-0: remove volume 0".to_owned()), "{:?}", steps(&bed));
    for index in 0..3 {
        replicas_of(&mut bed, index).volumes.remove(&VolumeNr(0));
    }
    confirm(&mut bed, true);
    let left = &bed.model.definition(&rd("disk")).unwrap().volumes;
    assert_eq!(left.keys().collect::<Vec<_>>(), [&VolumeNr(1)]);
    bed.ok(activate(0));
    let steps = steps(&bed);
    assert!(steps.contains(&"node-0: create volume 1 in pool thin".to_owned()), "{steps:?}");
}

#[test]
fn nodes_that_leave_and_come_back_have_it_as_it_was() {
    let mut bed = deployed(4, 2);
    bed.ok(deactivate(0));
    bed.settle("disk");
    bed.observed.nodes.get_mut(&node(0)).unwrap().connected = false;
    assert!(plan_of(&bed).is_done(), "it is down, and stays so: {:?}", plan_of(&bed));
    bed.ok(Command::EvictNode { name: node(0) });
    let refusal = bed.refused(activate(0));
    assert!(refusal.correction.contains("restore node"), "{refusal}");
    bed.ok(Command::RestoreNode {
        name: node(0),
        delete_resources: false,
        delete_snapshots: false,
    });
    bed.observed.nodes.get_mut(&node(0)).unwrap().connected = true;
    assert!(resource(&bed, 0).deactivated.is_some());
    assert!(resource(&bed, 0).flags.contains(&ResourceFlag::Inactive));
    // An evicted one that was not deactivated is active when it is back.
    bed.observed.nodes.get_mut(&node(1)).unwrap().connected = false;
    bed.ok(Command::EvictNode { name: node(1) });
    bed.ok(Command::RestoreNode {
        name: node(1),
        delete_resources: false,
        delete_snapshots: false,
    });
    bed.observed.nodes.get_mut(&node(1)).unwrap().connected = true;
    assert!(replica(&bed, 1));
    bed.settle("disk");
    // An evacuation makes another of it, and it goes.
    bed.ok(Command::EvacuateNode { name: node(0), to: None, not_to: vec![] });
    bed.settle("disk");
    assert!(bed.model.resource(&rd("disk"), &node(0)).is_none(), "{:?}", bed.nodes_of("disk"));
    assert_eq!(bed.model.resources_of(&rd("disk")).filter(|r| r.is_replica()).count(), 2);
}

#[test]
fn both_can_be_foretold() {
    let mut bed = deployed(3, 2);
    let foretold = |bed: &Bed, command| {
        let context = Context { observed: &bed.observed, now: Millis(bed.now), entropy: [7; 32] };
        dry_run(&bed.model, &context, command).unwrap()
    };
    let down = foretold(&bed, deactivate(0));
    let is_down = |event: &crate::dry_run::Event| {
        event.node == node(0) && matches!(event.what, What::Step(Action::TakeDown { .. }))
    };
    assert!(down.events.iter().any(is_down), "{:?}", down.events);
    assert!(down.waits.is_empty(), "{:?}", down.waits);
    assert!(resource(&bed, 0).deactivated.is_none(), "nothing has changed");
    bed.ok(deactivate(0));
    bed.settle("disk");
    let up = foretold(&bed, activate(0));
    let resync = |event: &crate::dry_run::Event| {
        event.node == node(0) && matches!(event.what, What::Resync { .. })
    };
    assert!(up.events.iter().any(resync), "{:?}", up.events);
    assert!(up.waits.is_empty(), "{:?}", up.waits);
    let refusal: Refusal = {
        let context = Context { observed: &bed.observed, now: Millis(bed.now), entropy: [7; 32] };
        dry_run(&bed.model, &context, deactivate(1)).unwrap_err()
    };
    assert_eq!(refusal.code, Code::InsufficientReplicas);
}
