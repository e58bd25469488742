//! What is foretold, and that nothing is changed by it.

use super::*;
use crate::apply::tests::{Bed, node, rd};
use crate::command::{NewDefinition, NewResource};
use crate::objects::{Filter, Millis};

const GIB: u64 = 1 << 30;

fn foretell(bed: &Bed, command: Command) -> Result<Prediction, Refusal> {
    let before = bed.model.clone();
    let context = Context { observed: &bed.observed, now: Millis(1_000), entropy: [9; 32] };
    let prediction = dry_run(&bed.model, &context, command);
    assert!(bed.model == before, "a dry run changed something");
    prediction
}

fn spawn(count: u32) -> Command {
    Command::Spawn {
        group: GroupName::default_group(),
        definition: NewDefinition { name: Some(rd("disk")), ..NewDefinition::default() },
        sizes: vec![GIB],
        filter: Filter { place_count: Some(count), ..Filter::default() },
        partial: true,
        definitions_only: false,
        passphrases: vec![],
    }
}

/// Node and text of each event.
fn told(prediction: &Prediction) -> Vec<String> {
    prediction.events.iter().map(ToString::to_string).collect()
}

#[test]
fn a_spawn_ends_with_all_replicas_up_to_date_and_nothing_to_wait_for() {
    let bed = Bed::new(3);
    let prediction = foretell(&bed, spawn(2)).unwrap();
    let told = told(&prediction);
    assert!(prediction.waits.is_empty(), "{:?}", prediction.waits);
    assert!(told.contains(&"disk on node-0: create volume 0 in pool thin".to_owned()), "{told:#?}");
    assert!(told.iter().any(|line| line.contains("resync volume 0, 1048576 KiB at most")));
    assert_eq!(prediction.moved(), Bytes(GIB), "to the second replica");
    assert_eq!(prediction.events.last().unwrap().copies_after, 2);
    assert!(prediction.applied.changes.len() > 3);
}

#[test]
fn an_evacuation_copies_before_it_removes() {
    let mut bed = Bed::new(4);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    let command = Command::EvacuateNode { name: node(0), to: None, not_to: vec![] };
    let prediction = foretell(&bed, command).unwrap();
    let told = told(&prediction);
    assert!(prediction.waits.is_empty(), "{:?}", prediction.waits);
    let place = |text: &str| told.iter().position(|line| line.contains(text));
    let (copied, removed) = (place("resync"), place("disk on node-0: remove the disk"));
    assert!(copied.is_some() && copied < removed, "{told:#?}");
    assert!(place("disk on node-0: remove").is_some());
    assert_eq!(prediction.moved(), Bytes(GIB));
    assert_eq!(prediction.events.last().unwrap().copies_after, 2);
}

#[test]
fn what_would_wait_is_said_with_the_node() {
    let mut bed = Bed::new(4);
    bed.define("disk");
    bed.place("disk", 3).unwrap();
    bed.settle("disk");
    bed.observed.nodes.get_mut(&node(0)).unwrap().connected = false;
    let command =
        Command::DeleteResource { name: rd("disk"), node: node(0), keep_tie_breaker: false };
    let prediction = foretell(&bed, command).unwrap();
    let waits: Vec<_> = prediction.waits.iter().map(|(_, wait)| wait.node.clone()).collect();
    assert!(waits.contains(&Some(node(0))), "{:?}", prediction.waits);
    assert!(!told(&prediction).iter().any(|line| line.starts_with("disk on node-0")));
    assert_eq!(prediction.least_copies(&rd("disk")), Some(0), "until all have confirmed it");
    assert_eq!(prediction.events.last().unwrap().copies_after, 2);
}

#[test]
fn a_deleted_resource_definition_leaves_nothing() {
    let mut bed = Bed::new(3);
    bed.define("disk");
    bed.place("disk", 2).unwrap();
    bed.settle("disk");
    let prediction = foretell(&bed, Command::DeleteDefinition { name: rd("disk") }).unwrap();
    assert!(prediction.waits.is_empty(), "{:?}", prediction.waits);
    let removed = told(&prediction).iter().filter(|line| line.ends_with(": remove")).count();
    assert_eq!(removed, 3);
    assert_eq!(prediction.moved(), Bytes(0));
}

#[test]
fn what_would_be_refused_is_refused_with_the_same_words() {
    let mut bed = Bed::new(1);
    let foretold = foretell(&bed, spawn(2)).unwrap_err();
    assert_eq!(foretold, bed.refused(spawn(2)));
    let unknown = Command::CreateResource {
        name: rd("none"),
        node: node(0),
        resource: NewResource::default(),
    };
    assert_eq!(foretell(&bed, unknown.clone()).unwrap_err(), bed.refused(unknown));
}

#[test]
fn every_node_has_the_reason_why_it_is_chosen_or_not() {
    let mut bed = Bed::new(4);
    bed.observed.nodes.get_mut(&node(1)).unwrap().connected = false;
    let name = crate::apply::tests::pool();
    bed.run(Command::DeletePool { node: node(3), name }).unwrap();
    let prediction = foretell(&bed, spawn(1)).unwrap();
    let [placed] = &prediction.applied.placed[..] else { panic!("one placement") };
    assert_eq!(placed.name, rd("disk"));
    let said: Vec<String> = placed.candidates.iter().map(ToString::to_string).collect();
    assert!(said[0].contains("node node-0: chosen"), "{said:?}");
    assert!(said[1].contains("node node-1: the node is not connected"), "{said:?}");
    assert!(said[2].contains("node node-2: fits") && said.len() == 3, "{said:?}");
    assert_eq!(placed.without_pool, [node(3)]);
    bed.run(spawn(1)).unwrap();
    let placed = crate::place::explain(&bed.model, &bed.observed, &rd("disk")).unwrap();
    let said: Vec<String> = placed.candidates.iter().map(ToString::to_string).collect();
    assert!(said[0].contains("the node has a replica"), "{said:?}");
    assert!(said[2].contains("node node-2: fits"), "{said:?}");
    assert!(crate::place::explain(&bed.model, &bed.observed, &rd("never")).is_err());
}
