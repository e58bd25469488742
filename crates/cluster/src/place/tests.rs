//! What is chosen, and why the others are not.

use vocab::Bytes;

use super::{Candidate, Reason, Verdict, place};
use crate::apply::tests::{Bed, node, pool, rd};
use crate::command::Command;
use crate::name::*;
use crate::objects::*;
use crate::observed::PoolState;
use crate::props::PropsEdit;
use crate::refusal::Code;

const GIB: u64 = 1 << 30;

/// Six nodes at two per site, the first with the most space, and a resource definition of 1 GiB.
fn bed() -> Bed {
    let mut bed = Bed::new(6);
    for index in 0..6 {
        for (key, value) in [("Aux/site", format!("{}", index / 2)), ("Aux/rack", "r".to_owned())] {
            let props = PropsEdit::set(key, &value);
            bed.ok(Command::ModifyNode { name: node(index), kind: None, props });
        }
    }
    bed.define("disk");
    bed
}

fn count(place_count: u32) -> Filter {
    Filter { place_count: Some(place_count), ..Filter::default() }
}

fn chosen(bed: &Bed, filter: &Filter) -> Vec<usize> {
    let placement = place(&bed.model, &bed.observed, &rd("disk"), filter).unwrap();
    placement.chosen.iter().map(|c| (0..).find(|i| node(*i) == c.node).unwrap()).collect()
}

fn keys(list: &[&str]) -> Option<Vec<String>> {
    Some(list.iter().map(|key| (*key).to_owned()).collect())
}

fn reason(bed: &Bed, filter: &Filter, index: usize) -> Reason {
    let placement = place(&bed.model, &bed.observed, &rd("disk"), filter).unwrap();
    let found = placement.candidates.into_iter().find(|c| c.node == node(index));
    match found.unwrap() {
        Candidate { verdict: Verdict::Out(reason), .. } => reason,
        other => panic!("node {index} is not out: {other}"),
    }
}

#[test]
fn the_pools_with_the_most_free_space_are_chosen_and_names_decide_ties() {
    let mut bed = bed();
    assert_eq!(chosen(&bed, &count(3)), [0, 1, 2]);
    for state in bed.observed.nodes.values_mut() {
        state.pools.get_mut(&pool()).unwrap().free = Bytes(50 * GIB);
    }
    assert_eq!(chosen(&bed, &count(3)), [0, 1, 2]);
    bed.replica("disk", 4);
    assert_eq!(chosen(&bed, &count(3)), [0, 1]);
    assert!(chosen(&bed, &count(1)).is_empty());
    let more = Filter { additional_place_count: Some(1), ..count(1) };
    assert_eq!(chosen(&bed, &more), [0]);
}

#[test]
fn weights_change_what_is_best() {
    let mut bed = bed();
    bed.replica("disk", 0);
    let key = "Autoplacer/Weights/MinRscCount";
    bed.ok(Command::ModifyController { props: PropsEdit::set(key, "10") });
    bed.ok(Command::CreateDefinition {
        definition: crate::command::NewDefinition { name: Some(rd("other")), ..Default::default() },
    });
    let placement = place(&bed.model, &bed.observed, &rd("other"), &count(1)).unwrap();
    assert_eq!(placement.chosen[0].node, node(1));
}

#[test]
fn replicas_share_a_value_or_differ_in_it() {
    let bed = bed();
    let same = Filter { on_same: keys(&["Aux/site"]), ..count(2) };
    assert_eq!(chosen(&bed, &same), [0, 1]);
    let fixed = Filter { on_same: keys(&["Aux/site=2"]), ..count(2) };
    assert_eq!(chosen(&bed, &fixed), [4, 5]);
    let different = Filter { on_different: keys(&["Aux/site"]), ..count(3) };
    assert_eq!(chosen(&bed, &different), [0, 2, 4]);
    let never = Filter { on_different: keys(&["Aux/site=0"]), ..count(2) };
    assert_eq!(chosen(&bed, &never), [2, 3]);
    let sites = [("Aux/site".to_owned(), 2)].into();
    let pairs = Filter { x_on_different: Some(sites), ..count(4) };
    assert_eq!(chosen(&bed, &pairs), [0, 1, 2, 3]);
    // Backtracking: the best node has no partner once its site is down to one.
    let sites = [("Aux/site".to_owned(), 2)].into();
    let nodes = Some([0, 2, 3, 4, 5].map(node).to_vec());
    let pairs = Filter { x_on_different: Some(sites), nodes, ..count(4) };
    assert_eq!(chosen(&bed, &pairs), [2, 3, 4, 5]);
}

#[test]
fn existing_replicas_bind_the_constraints_and_may_contradict_them() {
    let mut bed = bed();
    for index in [2, 5] {
        bed.replica("disk", index);
    }
    let different = Filter { on_different: keys(&["Aux/site"]), ..count(3) };
    assert_eq!(chosen(&bed, &different), [0]);
    let taken = Reason::ValueTaken { key: "Aux/site".to_owned(), value: "1".to_owned() };
    assert_eq!(reason(&bed, &different, 3), taken);
    assert_eq!(reason(&bed, &different, 2), Reason::HasReplica);
    let same = Filter { on_same: keys(&["Aux/site"]), ..count(3) };
    let refusal = place(&bed.model, &bed.observed, &rd("disk"), &same).unwrap_err();
    assert_eq!(refusal.code, Code::UndecidablePlacement);
}

#[test]
fn each_candidate_that_is_out_has_its_reason() {
    let mut bed = bed();
    bed.define("loud");
    bed.replica("loud", 0);
    bed.ok(Command::EvacuateNode { name: node(1), to: None, not_to: vec![] });
    let props = PropsEdit::set("AutoplaceTarget", "False");
    bed.ok(Command::ModifyNode { name: node(2), kind: None, props });
    bed.observed.nodes.get_mut(&node(3)).unwrap().connected = false;
    let small = bed.observed.nodes.get_mut(&node(4)).unwrap().pools.get_mut(&pool()).unwrap();
    small.free = Bytes(0);
    let filter = Filter { not_with_regex: Some("^LO.d$".to_owned()), ..count(1) };
    assert_eq!(chosen(&bed, &filter), [5]);
    assert_eq!(reason(&bed, &filter, 0), Reason::BesideResource(rd("loud")));
    assert_eq!(reason(&bed, &filter, 1), Reason::NodeLeaving(NodeFlag::Evacuate));
    assert_eq!(reason(&bed, &filter, 2), Reason::NodeNoTarget);
    assert_eq!(reason(&bed, &filter, 3), Reason::NotConnected);
    assert_eq!(
        reason(&bed, &filter, 4),
        Reason::NotEnoughSpace { free: Bytes(0), needed: Bytes(GIB) }
    );
    let filter = Filter { pools: Some(vec![PoolName::new("other").unwrap()]), ..count(1) };
    let refusal = place(&bed.model, &bed.observed, &rd("disk"), &filter).unwrap_err();
    assert_eq!(refusal.code, Code::NotEnoughNodes);
    assert!(refusal.details.contains("not in the storage pool list"), "{}", refusal.details);
    let filter = Filter { providers: Some(vec![Provider::Zfs]), ..count(1) };
    let refusal = place(&bed.model, &bed.observed, &rd("disk"), &filter).unwrap_err();
    assert!(refusal.details.contains("LVM_THIN is not in the provider list"), "{refusal}");
    let filter = Filter { not_with_regex: Some("(".to_owned()), ..count(1) };
    let refusal = place(&bed.model, &bed.observed, &rd("disk"), &filter).unwrap_err();
    assert_eq!(refusal.code, Code::InvalidRequest);
}

#[test]
fn promises_are_bounded_by_free_and_by_total_space() {
    let mut bed = bed();
    // 20 times 1 GiB of free space, of which a tenth of the capacity has to be left to begin with.
    let set = |bed: &mut Bed, free: u64, total: u64| {
        for state in bed.observed.nodes.values_mut() {
            let state = state.pools.get_mut(&pool()).unwrap();
            (state.free, state.total) = (Bytes(free), Bytes(total));
        }
    };
    let estimate = |bed: &Bed| {
        let found = bed.model.pool(&node(0), &pool()).unwrap();
        super::space::estimate(&bed.model, &bed.observed, found).unwrap().0
    };
    set(&mut bed, GIB, 100 * GIB);
    assert_eq!(estimate(&bed), 20 * GIB);
    let key = "MaxTotalCapacityOversubscriptionRatio";
    let props = PropsEdit::set(key, "0.05");
    bed.ok(Command::ModifyPool { node: node(0), name: pool(), props });
    assert_eq!(estimate(&bed), 5 * GIB);
    bed.replica("disk", 0);
    assert_eq!(estimate(&bed), 4 * GIB, "what was promised is gone");
    let filter = Filter { additional_place_count: Some(1), ..count(1) };
    let refusal = place(&bed.model, &bed.observed, &rd("disk"), &filter);
    assert!(refusal.is_ok(), "{refusal:?}");
    set(&mut bed, GIB / 4, 100 * GIB);
    let refusal = place(&bed.model, &bed.observed, &rd("disk"), &filter).unwrap_err();
    assert!(refusal.details.contains("MinThinFreeSpace"), "{}", refusal.details);
}

#[test]
fn the_search_for_what_does_not_exist_ends() {
    let mut bed = Bed::new(40);
    for index in 0..40 {
        let props = PropsEdit::set("Aux/site", &format!("{}", index % 4));
        bed.ok(Command::ModifyNode { name: node(index), kind: None, props });
    }
    bed.define("disk");
    let filter = Filter { on_different: keys(&["Aux/site"]), ..count(5) };
    let refusal = place(&bed.model, &bed.observed, &rd("disk"), &filter).unwrap_err();
    assert_eq!(refusal.code, Code::NotEnoughNodes);
}

#[test]
fn a_thin_pool_is_told_of_before_it_is_full_and_takes_nothing_when_its_metadata_are() {
    let state = |free: u64, metadata_used| PoolState {
        free: Bytes(free),
        total: Bytes(100),
        metadata_used,
        ..PoolState::default()
    };
    for (state, says) in [
        (state(30, None), None),
        (state(20, None), Some("80 % of its data")),
        (state(3, Some(90)), Some("97 % of its data are in use: enlarge it at once")),
        (state(30, Some(96)), Some("96 % of its metadata are in use: enlarge it at once")),
    ] {
        let alarm = state.alarm(Provider::LvmThin);
        assert_eq!(alarm.is_some(), says.is_some(), "{alarm:?}");
        assert!(alarm.is_none_or(|alarm| alarm.starts_with(says.unwrap())));
        assert_eq!(state.alarm(Provider::Lvm), None, "what is thick may be full");
    }
    let mut bed = Bed::new(2);
    bed.define("disk");
    let pools = &mut bed.observed.nodes.get_mut(&node(0)).unwrap().pools;
    pools.values_mut().for_each(|pool| pool.metadata_used = Some(95));
    bed.place("disk", 1).unwrap();
    assert_eq!(bed.nodes_of("disk"), ["node-1"]);
    let refusal = bed.place("disk", 2).unwrap_err();
    assert!(refusal.details.contains("95 % of the pool's metadata"), "{refusal}");
}
