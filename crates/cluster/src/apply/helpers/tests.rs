//! Quorum and the tie-breaker while replicas come and go.

use vocab::Bytes;

use super::*;
use crate::apply::tests::{Bed, node, pool, rd};
use crate::command::{Command, NewDefinition, NewVolumeDefinition};
use crate::plan::{Action, plan};

fn quorum_of(bed: &Bed) -> &str {
    &bed.model.definition(&rd("disk")).unwrap().props[QUORUM]
}

/// Runs what follows to its end, and watches quorum all the while.
fn settle_with_quorum(bed: &mut Bed) {
    for _ in 0..12 {
        assert_eq!(quorum_of(bed), "majority", "{:?}", bed.nodes_of("disk"));
        bed.report("disk");
        bed.ok(Command::Settle { name: rd("disk") });
    }
    assert_eq!(quorum_of(bed), "majority", "{:?}", bed.nodes_of("disk"));
}

fn toggle(index: usize, diskful: bool, from: Option<usize>) -> Command {
    Command::ToggleDisk {
        name: rd("disk"),
        node: node(index),
        diskful,
        pool: diskful.then(pool),
        migrate_from: from.map(node),
        client: false,
    }
}

fn delete(index: usize) -> Command {
    Command::DeleteResource { name: rd("disk"), node: node(index), keep_tie_breaker: false }
}

fn three(nodes: usize) -> Bed {
    let mut bed = Bed::new(nodes);
    bed.define("disk");
    bed.place("disk", 3).unwrap();
    bed.settle("disk");
    bed
}

#[test]
fn the_third_replica_becomes_the_tie_breaker_when_it_is_deleted() {
    let mut bed = three(3);
    let applied = bed.ok(delete(2));
    assert!(applied.notes.iter().any(|note| note.code == NoteCode::TakenOver));
    assert!(applied.notes.iter().all(|note| note.code != NoteCode::NoNodeForTieBreaker));
    settle_with_quorum(&mut bed);
    assert_eq!(bed.nodes_of("disk"), ["node-0", "node-1", "tie-breaker node-2"]);
    let volumes = &bed.model.resource(&rd("disk"), &node(2)).unwrap().volumes;
    assert!(volumes.values().all(|volume| volume.pool == PoolName::diskless()), "{volumes:?}");
    // Deleted again it goes, and no other comes.
    bed.ok(delete(2));
    bed.settle("disk");
    assert_eq!(bed.nodes_of("disk"), ["node-0", "node-1"]);
    assert_eq!(quorum_of(&bed), "off");
}

#[test]
fn one_that_becomes_the_tie_breaker_stays_a_replica_if_that_is_wanted_again() {
    let again = |bed: &mut Bed, way: usize| match way {
        0 => drop(bed.place("disk", 3).unwrap()),
        1 => bed.replica("disk", 2),
        2 => drop(bed.ok(toggle(2, true, None))),
        _ => {
            let (name, node) = (rd("disk"), node(2));
            bed.ok(Command::MakeAvailable { name, node, diskful: true });
        }
    };
    for way in 0..4 {
        for late in [false, true] {
            let mut bed = three(3);
            bed.ok(delete(2));
            if late {
                bed.report("disk");
                bed.ok(Command::Settle { name: rd("disk") });
                bed.report("disk");
            }
            again(&mut bed, way);
            settle_with_quorum(&mut bed);
            let nodes = bed.nodes_of("disk");
            assert_eq!(nodes, ["node-0", "node-1", "node-2"], "way {way}, late {late}");
        }
    }
}

#[test]
fn quorum_stays_while_the_third_replica_loses_its_disk() {
    let mut bed = three(3);
    bed.ok(toggle(2, false, None));
    settle_with_quorum(&mut bed);
    assert_eq!(bed.nodes_of("disk"), ["node-0", "node-1", "diskless node-2"]);
    bed.ok(toggle(2, true, None));
    settle_with_quorum(&mut bed);
    assert_eq!(bed.nodes_of("disk"), ["node-0", "node-1", "node-2"]);
}

#[test]
fn quorum_stays_while_a_replica_is_migrated_to_the_tie_breaker() {
    let mut bed = Bed::new(3);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    let applied = bed.ok(toggle(2, true, Some(0)));
    assert!(applied.notes.iter().all(|note| note.code != NoteCode::NoNodeForTieBreaker));
    settle_with_quorum(&mut bed);
    assert_eq!(bed.nodes_of("disk"), ["tie-breaker node-0", "node-1", "node-2"]);
}

#[test]
fn quorum_ends_with_the_vote_of_a_replica_that_has_no_tie_breaker_after_it() {
    let mut bed = three(3);
    let props = PropsEdit::set(AUTO_TIE_BREAKER, "False");
    bed.ok(Command::ModifyController { props });
    bed.ok(delete(2));
    assert_eq!(quorum_of(&bed), "majority", "it is there still");
    bed.settle("disk");
    assert_eq!(bed.nodes_of("disk"), ["node-0", "node-1"]);
    assert_eq!(quorum_of(&bed), "off");
    // Of a node that is not connected nobody knows if it votes.
    let mut bed = three(3);
    bed.ok(Command::ModifyController { props: PropsEdit::set(AUTO_TIE_BREAKER, "False") });
    bed.observed.nodes.get_mut(&node(2)).unwrap().connected = false;
    bed.ok(delete(2));
    assert_eq!(quorum_of(&bed), "off");
}

#[test]
fn a_replica_that_stays_after_all_has_its_new_volumes_in_a_pool() {
    let mut bed = Bed::new(2);
    let definition = NewDefinition { name: Some(rd("disk")), ..NewDefinition::default() };
    bed.ok(Command::CreateDefinition { definition });
    bed.replica("disk", 0);
    bed.replica("disk", 1);
    bed.report("disk");
    bed.ok(delete(1));
    let volume = NewVolumeDefinition { size: Bytes(1 << 30), ..NewVolumeDefinition::default() };
    bed.ok(Command::CreateVolumeDefinition { name: rd("disk"), volume });
    let (name, node) = (rd("disk"), node(1));
    assert!(bed.model.resource(&name, &node).unwrap().volumes.is_empty());
    bed.ok(Command::MakeAvailable { name: name.clone(), node: node.clone(), diskful: true });
    let volumes = &bed.model.resource(&name, &node).unwrap().volumes;
    assert_eq!(volumes.values().map(|volume| &volume.pool).collect::<Vec<_>>(), [&pool()]);
}

#[test]
fn quorum_is_said_in_linstors_former_way_and_the_nearest_counts() {
    let mut bed = three(3);
    let group = GroupName::default_group();
    let on_group = |key: &str, value: &str| Command::ModifyGroup {
        name: group.clone(),
        description: None,
        props: PropsEdit::set(key, value),
        filter: Filter::default(),
        peer_slots: None,
    };
    let on_definition = |key: &str, value: &str| Command::ModifyDefinition {
        name: rd("disk"),
        props: PropsEdit::set(key, value),
        group: None,
        layers: None,
        peer_slots: None,
    };
    let no_quorum = |bed: &Bed| {
        let plan = plan(&bed.model, &bed.observed, &rd("disk"));
        let mut steps = plan.steps.into_iter();
        let config = steps.find_map(|step| match step.action {
            Action::Configure(config) => Some(config),
            _ => None,
        });
        config.expect("it is to be told to a node").options["on-no-quorum"].clone()
    };
    let applied = bed.ok(on_group(AUTO_QUORUM, "suspend-io"));
    assert!(applied.notes.iter().any(|note| note.code == NoteCode::DeprecatedProperty));
    assert_eq!((quorum_of(&bed), no_quorum(&bed).as_str()), ("majority", "suspend-io"));
    bed.ok(on_definition(AUTO_QUORUM, "disabled"));
    assert_eq!(quorum_of(&bed), "off");
    bed.ok(on_definition(AUTO_QUORUM, "io-error"));
    assert_eq!((quorum_of(&bed), no_quorum(&bed).as_str()), ("majority", "io-error"));
    bed.ok(on_definition(AUTO_QUORUM, ""));
    bed.ok(on_group(AUTO_QUORUM, "disabled"));
    assert_eq!(quorum_of(&bed), "off");
    // Today's options count before it, on the same object.
    bed.ok(on_group(QUORUM, "all"));
    assert!(!bed.model.definition(&rd("disk")).unwrap().props.contains_key(QUORUM));
    bed.ok(on_definition("DrbdOptions/Resource/on-no-quorum", "suspend-io"));
    bed.ok(on_definition(AUTO_QUORUM, "io-error"));
    assert_eq!(no_quorum(&bed), "suspend-io");
    let refusal = bed.refused(on_group(AUTO_QUORUM, "nope"));
    assert!(refusal.cause.contains("suspend-io"), "{refusal}");
}

#[test]
fn diskless_resources_are_placed_beside_the_replicas() {
    let mut bed = Bed::new(4);
    bed.define("disk");
    let place = |count, diskless| Command::Autoplace {
        name: rd("disk"),
        filter: Filter { place_count: Some(count), diskless: Some(diskless), ..Filter::default() },
    };
    bed.ok(place(2, false));
    bed.settle("disk");
    assert_eq!(bed.nodes_of("disk"), ["node-0", "node-1", "tie-breaker node-2"]);
    bed.ok(place(1, true));
    bed.settle("disk");
    let diskless = |bed: &Bed| {
        let all = bed.nodes_of("disk");
        all.iter().filter(|node| node.starts_with("diskless")).count()
    };
    assert_eq!(diskless(&bed), 1, "{:?}", bed.nodes_of("disk"));
    assert!(bed.ok(place(1, true)).notes.iter().any(|n| n.code == NoteCode::AlreadyDeployed));
    bed.ok(place(2, true));
    bed.settle("disk");
    assert_eq!((diskless(&bed), bed.nodes_of("disk").len()), (2, 4));
    assert_eq!(bed.refused(place(3, true)).code, crate::refusal::Code::NotEnoughNodes);
    let filter = Filter { diskless: Some(true), ..Filter::default() };
    let unsaid = Command::Autoplace { name: rd("disk"), filter };
    assert!(bed.ok(unsaid).notes.iter().any(|n| n.code == NoteCode::AlreadyDeployed));
    let filter = Filter { diskless: Some(true), ..Filter::default() };
    let group = Command::ModifyGroup {
        name: GroupName::default_group(),
        description: None,
        props: PropsEdit::default(),
        filter,
        peer_slots: None,
    };
    bed.refused(group);
}
