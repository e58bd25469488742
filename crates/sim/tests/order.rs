//! Hard case 89 of semantics §14: volumes that are resynced one after the other.

use replication::io::AdminCommand;
use sim::World;
use sim::plan::{Plan, node_id};
use sim::scenario::scenario;
use vocab::{DiskState, ReplState, VolumeNr};

/// So long it may take until a change is known to all volumes of both nodes, in nanoseconds.
const KNOWN: u64 = 50_000_000;

/// Three volumes on two nodes, the first one after the second, and that after the third.
fn three_volumes() -> Plan {
    Plan { volumes: 3, ..Plan::quiet(2, 0) }
}

fn in_reverse(w: &mut World, node: usize) {
    w.resync_after(node, 0, Some(1));
    w.resync_after(node, 1, Some(2));
}

/// All volumes of node 1 are to be resynced from node 0, the first one first.
fn resync_all(w: &mut World) {
    for volume in 0..3 {
        let command = AdminCommand::Invalidate { volume: VolumeNr(volume), from: None };
        w.granted(1, command);
    }
}

fn repl(w: &World, volume: usize) -> ReplState {
    let view = w.view(1).and_then(|view| view.peers[0].clone());
    view.map_or(ReplState::Off, |peer| peer.devices[volume].repl)
}

fn is_current(w: &World, volume: usize) -> bool {
    w.view(1).is_some_and(|view| view.volumes[volume].disk == DiskState::UpToDate)
}

fn pause(w: &mut World, volume: u16, pause: bool) {
    let (peer, volume) = (node_id(0), VolumeNr(volume));
    // At its end a resync forgets nothing of an operator's.
    w.granted(1, AdminCommand::PauseSync { peer, volume, pause });
}

/// The first two rest now, and have not come to their end.
fn expect_rest(w: &mut World) {
    w.run_for(KNOWN);
    w.expect("the others rest", |w| (0..2).all(|volume| repl(w, volume) == ReplState::PausedSyncT));
}

/// Each is done before the next one goes on.
fn wait_in_order(w: &mut World) {
    for volume in [2, 1, 0] {
        w.wait(&format!("volume {volume} is resynced"), |w| is_current(w, volume));
        w.expect("the next ones are not", |w| (0..volume).all(|next| !is_current(w, next)));
    }
}

#[test]
fn a_chain_in_reverse_order_whose_last_volume_is_paused_again_and_again_case_89() {
    // Either end may be the one that has them wait, or both.
    for ends in [&[1][..], &[0], &[0, 1]] {
        scenario(three_volumes(), |w| {
            w.form();
            ends.iter().for_each(|node| in_reverse(w, *node));
            pause(w, 2, true);
            resync_all(w);
            for _ in 0..5 {
                expect_rest(w);
                pause(w, 2, false);
                pause(w, 2, true);
            }
            expect_rest(w);
            pause(w, 2, false);
            wait_in_order(w);
            w.settle();
        });
    }
}

#[test]
fn what_is_waited_for_is_lost_and_the_others_go_on_case_89() {
    scenario(three_volumes(), |w| {
        w.form();
        in_reverse(w, 1);
        pause(w, 2, true);
        resync_all(w);
        expect_rest(w);
        // Every connection ends, and nothing is being resynced until there is one again.
        w.kill(0);
        w.wait_lost(1, 0);
        w.run_for(KNOWN);
        w.start_node(0);
        w.wait("they rest again", |w| repl(w, 0) == ReplState::PausedSyncT);
        expect_rest(w);
        // Another process takes over, and has them wait on.
        w.swap(1, 1_000_000);
        expect_rest(w);
        w.expect("it has", |w| w.stats.swaps == 1);
        // Nothing is resynced after anything any more: they do not wait for the one that rests.
        w.resync_after(1, 1, None);
        w.resync_after(1, 0, None);
        w.wait("both are resynced", |w| is_current(w, 0) && is_current(w, 1));
        w.expect("the last one rests", |w| !is_current(w, 2));
        pause(w, 2, false);
        w.settle();
    });
}
