//! A node's process hands over to another one while connections, resyncs and clients go on.

use codec::wire::Packet;
use replication::io::AdminCommand;
use sim::plan::{Fault, MILLISECOND, Plan, SECOND, node_id};
use sim::rng::Rng;
use sim::scenario::scenario;
use sim::trace::Trace;
use sim::{Op, World, run};
use vocab::{DiskState, ReplState, VolumeNr};

const EXTENT: u64 = 8192;
const WRITE: Op = Op::Write { fua: false };
const STEP: u64 = 20 * MILLISECOND;

/// Hands over and waits for it.
fn swap(w: &mut World, node: usize) {
    let done = w.stats.swaps;
    w.swap(node, STEP);
    w.wait("the node has handed over", |w| w.nodes[node].swap.is_none());
    w.expect("the swap was not refused", |w| w.stats.swaps == done + 1);
}

fn handshakes(w: &mut World, nodes: usize) -> Vec<usize> {
    let hello = |packet: &Packet| matches!(packet, Packet::ConnectionFeatures(..));
    let pairs = (0..nodes).flat_map(|a| (0..nodes).map(move |b| (a, b)));
    pairs.filter(|(a, b)| a != b).map(|(a, b)| w.tap(a, b, hello)).collect()
}

fn expect_no_handshake(w: &mut World, taps: &[usize]) {
    w.expect("no connection was made anew", |w| taps.iter().all(|tap| w.tapped(*tap) == 0));
}

#[test]
fn every_node_hands_over_between_writes() {
    scenario(Plan::majority(3, 1), |w| {
        w.form();
        let taps = handshakes(w, 4);
        let opener = w.open(0);
        for node in [0, 1, 2, 3, 0, 0] {
            w.write(0, 8);
            swap(w, node);
            w.read(0, 8);
            w.write(0, 8 * (node as u64 + 2));
            w.flush(0);
        }
        w.close(0, opener);
        w.wait_secondary(0);
        swap(w, 0);
        w.write_after_open(1, 8);
        expect_no_handshake(w, &taps);
        w.settle();
    });
}

#[test]
fn a_write_that_is_acknowledged_and_not_confirmed_is_known_to_the_next_process() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 8);
        swap(w, 0);
        // The epoch was open when it was frozen: if the peers are lost now, they have to be told
        // what they may not have.
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.write(0, 16);
        w.heal(0, 1);
        w.close(0, opener);
        w.settle();
    });
}

fn resync(w: &mut World) {
    let opener = w.open(0);
    w.cut(0, 1);
    w.wait_lost(0, 1);
    for i in 0..12 {
        let id = w.start(0, WRITE, i * EXTENT, 512);
        w.finish(id).ok();
    }
    w.close(0, opener);
    w.wait_secondary(0);
    w.heal(0, 1);
    w.wait("the resync runs", |w| w.device(1, 0).repl == ReplState::SyncTarget);
}

#[test]
fn a_resync_goes_on_behind_either_end() {
    for node in [0, 1] {
        scenario(Plan::quiet(2, 0), |w| {
            w.form();
            resync(w);
            let taps = handshakes(w, 2);
            w.run_for(2 * MILLISECOND);
            let done = w.stats.swaps;
            w.swap(node, 2 * MILLISECOND);
            w.wait("the node has handed over", |w| w.nodes[node].swap.is_none());
            w.wait("in sync", |w| w.disk(1) == DiskState::UpToDate);
            if w.stats.swaps == done {
                // Its disk was slower than that.
                swap(w, node);
            }
            expect_no_handshake(w, &taps);
            w.settle();
        });
    }
}

#[test]
fn a_verify_goes_on() {
    for node in [0, 1] {
        scenario(Plan::quiet(2, 0), |w| {
            w.form();
            w.write_after_open(0, 8);
            w.wait_secondary(0);
            let volume = VolumeNr(0);
            let peer = node_id(1);
            w.granted(0, AdminCommand::Verify { peer, volume, start: Some(0), stop: None });
            w.expect("it runs", |w| w.device(0, 1).repl == ReplState::VerifyS);
            w.swap(node, 2 * MILLISECOND);
            w.wait("the node has handed over", |w| w.nodes[node].swap.is_none());
            w.wait("it ends", |w| w.device(0, 1).repl == ReplState::Established);
            w.settle();
        });
    }
}

#[test]
fn what_is_under_way_is_waited_for_and_then_the_node_goes_on_as_it_is() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.stall_disk(0, 5);
        let id = w.start(0, WRITE, 8, 8);
        w.swap(0, STEP);
        w.wait("it gives up", |w| w.nodes[0].swap.is_none());
        w.expect("it was refused", |w| (w.stats.swaps, w.stats.swaps_refused) == (0, 1));
        w.expect("the write is under way", |w| !w.is_answered(id));
        w.release_disk(0);
        w.finish(id).ok();
        swap(w, 0);
        w.read(0, 8);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_connection_of_protocol_8_goes_on() {
    for node in [0, 1] {
        scenario(Plan { legacy: true, ..Plan::quiet(2, 0) }, |w| {
            w.form();
            let taps = handshakes(w, 2);
            let opener = w.open(0);
            w.write(0, 8);
            swap(w, node);
            w.write(0, EXTENT);
            w.flush(0);
            swap(w, 1 - node);
            w.read(0, 8);
            w.close(0, opener);
            w.wait_secondary(0);
            swap(w, node);
            w.write_after_open(1, 8);
            let (volume, peer) = (VolumeNr(0), node_id(1));
            w.granted(0, AdminCommand::Verify { peer, volume, start: Some(0), stop: None });
            swap(w, node);
            w.wait("the verify ends", |w| {
                w.device(0, 1).repl == ReplState::Established
                    && w.device(1, 0).repl == ReplState::Established
            });
            expect_no_handshake(w, &taps);
            w.settle();
        });
    }
}

/// Nothing but swaps, and many of them: each of these runs has to see some.
#[test]
fn random_work_with_many_swaps() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut plan = Plan::random(&mut rng);
        plan.faults = vec![(Fault::Swap, 1)];
        plan.fault_budget = 60;
        plan.fault_pause = SECOND;
        let verdict = run::judge(plan, rng, Trace::off(), World::run_plan);
        if let Some(violation) = verdict.violation {
            panic!("seed {seed}: {} at {}: {}", violation.rule, violation.at, violation.message);
        }
        assert!(verdict.stats.swaps > 0, "seed {seed}: {:?}", verdict.stats);
    }
}
