//! What the end of a resync waits for beside a Primary: a disk that becomes UpToDate has what users
//! of any Primary know of (invariants 36 and 44).

use std::time::Duration;

use replication::io::AdminCommand;
use sim::plan::{Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::{ConnState, DiskState, ReplState, VolumeNr};

const WRITE: Op = Op::Write { fua: false };

/// Writes without a pause, to a few places again and again.
fn load(w: &mut World, node: usize, milliseconds: u64) {
    for i in 0..milliseconds {
        w.start(node, WRITE, i % 16 * 8 + i % 2 * 4096, 8);
        w.run_for(1_000_000);
    }
}

/// n1 takes n2 for connected, which has noticed that it is not, has become Primary, and writes on
/// through n0. What n0 brings n1 is not all that users know of.
#[test]
fn a_primary_that_is_taken_for_a_connected_secondary_is_not_heard() {
    let mut plan = Plan::majority(3, 0);
    plan.net.ping_int = Duration::from_secs(120);
    plan.net.ping_timeout = Duration::from_secs(5);
    scenario(plan, |w| {
        w.form();
        w.run_seconds(1);
        w.cut_off(1, [0, 2]);
        // The first attempt finds out that n1 is gone, for n0 and n2.
        w.try_open(2).ok();
        w.wait_lost(0, 1);
        w.wait_lost(2, 1);
        let opener = w.open(2);
        w.write(2, 0);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.expect("n1 takes n2 for connected", |w| {
            w.seen(1).peers[2].as_ref().is_some_and(|p| p.conn == ConnState::Connected)
        });
        load(w, 2, 50);
        w.heal(1, 2);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}

/// Pauses or resumes what a node fetches from these peers.
fn pause<const N: usize>(w: &mut World, node: usize, peers: [usize; N], pause: bool) {
    for peer in peers {
        let (peer, volume) = (node_id(peer), VolumeNr(0));
        w.granted(node, AdminCommand::PauseSync { peer, volume, pause });
    }
}

/// n0 is brought up to date by n1, and gets what the Primary n2 writes. When n2 is current itself,
/// it finds that n0 is not, and begins a resync to it. The news of that takes long.
fn a_primary_begins_a_resync_while_another_one_ends(order: [usize; 2]) {
    let mut plan = Plan::quiet(3, 0);
    plan.resource.peer_ack_delay = Duration::from_secs(10);
    scenario(plan, |w| {
        w.form();
        pause(w, 0, [1], true);
        pause(w, 2, [0, 1], true);
        let opener = w.open(1);
        w.cut_off(2, [0, 1]);
        w.wait_lost_all(2, [0, 1]);
        w.write(1, 0);
        w.cut(0, 1);
        w.wait_lost_all(0, [1]);
        w.write(1, 64);
        w.close(1, opener);
        w.wait_secondary(1);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.rejoin(2, [0, 1]);
        w.wait_connected(0, 2);
        w.wait_connected(1, 2);
        let opener = w.open(2);
        w.write(2, 128);
        w.run_seconds(1);
        w.slow(2, 0, 200_000_000);
        for node in order {
            pause(w, node, [1], false);
            load(w, 2, 10);
        }
        load(w, 2, 500);
        w.slow(2, 0, 100_000);
        w.run_seconds(3);
        pause(w, 2, [0], false);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_primary_sends_data_until_its_target_knows_of_the_resync() {
    a_primary_begins_a_resync_while_another_one_ends([0, 2]);
    a_primary_begins_a_resync_while_another_one_ends([2, 0]);
}

/// What the client n2 writes while it does not see n1 takes long to get to n0. It meets n1, and then
/// n1 and n0 lose each other and begin again: n0 has not forgotten what n1 may lack.
#[test]
fn a_source_that_connects_anew_tells_what_was_written_before_its_target_met_the_primary() {
    let mut plan = Plan::majority(2, 1);
    plan.resource.peer_ack_delay = Duration::from_secs(10);
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.cut(1, 2);
        w.wait_lost_all(1, [2]);
        w.write(2, 8);
        // Only the stream of data is late.
        w.slow(2, 0, 10_000_000_000);
        let late = w.start(2, WRITE, 40960, 8);
        w.slow(2, 0, 100_000);
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.wait("the resync begins", |w| w.device(1, 0).repl == ReplState::SyncTarget);
        w.reset(0, 1);
        w.wait_lost_all(0, [1]);
        w.wait_connected(0, 1);
        w.expect("the write is on its way", |w| !w.is_answered(late));
        w.finish(late).ok();
        w.wait_disk(1, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}

/// A node dies, and is disconnected before that is noticed.
#[test]
fn a_disconnect_from_a_node_that_has_died_is_done() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        w.kill(2);
        w.granted(0, AdminCommand::Disconnect { peer: node_id(2), force: false });
        w.expect("n0 does not connect to it", |w| {
            w.seen(0).peers[2].as_ref().is_some_and(|p| p.conn == ConnState::StandAlone)
        });
        w.start_node(2);
        w.connect(0, 2);
        w.settle();
    });
}
