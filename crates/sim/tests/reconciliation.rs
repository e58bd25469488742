//! Hard cases 15 to 25 of semantics §14: what remains after a Primary is lost.

use std::time::Duration;

use replication::io::AdminCommand;
use sim::plan::{Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::OnNoQuorum;
use vocab::{ConnState, DiskState, ReplState, VolumeNr};

fn three() -> Plan {
    Plan::majority(3, 0)
}

const WRITE: Op = Op::Write { fua: false };

#[test]
fn survivors_at_different_positions_are_equal_before_either_is_promoted_case_15() {
    scenario(three(), |w| {
        w.form();
        w.open(0);
        w.write(0, 0);
        // The last writes reach only one of the survivors before the Primary dies.
        w.cut(0, 2);
        for i in 0..6 {
            w.start(0, WRITE, i * 8, 8);
        }
        w.run_for(30_000_000);
        w.kill(0);
        w.heal(0, 2);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        w.wait("both survivors are UpToDate", |w| {
            w.disk(1) == DiskState::UpToDate && w.disk(2) == DiskState::UpToDate
        });
        w.expect("the survivors are equal", |w| {
            let (a, b) = (w.nodes[1].drive(0), w.nodes[2].drive(0));
            a.zip(b).is_some_and(|(a, b)| a.disk.first_difference(&b.disk, 0).is_none())
        });
        let opener = w.open(2);
        w.read(2, 0);
        w.start_node(0);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn survivors_that_are_cut_from_each_other_reconcile_when_they_meet_case_16() {
    scenario(three(), |w| {
        w.form();
        w.open(0);
        w.write(0, 0);
        w.cut(1, 2);
        w.cut(0, 2);
        for i in 0..6 {
            w.start(0, WRITE, i * 8, 8);
        }
        w.run_for(30_000_000);
        w.kill(0);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        w.wait_lost(1, 2);
        w.heal(1, 2);
        w.heal(0, 2);
        w.wait_connected(1, 2);
        w.wait("both survivors are UpToDate", |w| {
            w.disk(1) == DiskState::UpToDate && w.disk(2) == DiskState::UpToDate
        });
        w.start_node(0);
        w.settle();
    });
}

#[test]
fn bits_without_a_lost_primary_are_dropped_case_17() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        w.run_seconds(2);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.wait_lost(1, 0);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.settle();
        w.expect("nothing was resynced", |w| w.stats.resyncs == 0);
    });
}

#[test]
fn a_stale_survivor_never_loses_what_reached_the_other_case_18() {
    scenario(three(), |w| {
        w.form();
        w.open(0);
        // n2 is behind: it has lost the Primary while the others went on.
        w.cut(0, 2);
        w.cut(1, 2);
        w.wait_lost(0, 2);
        w.write(0, 0);
        w.write(0, 8);
        w.heal(1, 2);
        w.kill(0);
        // Its immediate promotion is refused, waits, or comes after reconciliation.
        if let Ok(opener) = w.try_open(2) {
            w.read(2, 0);
            w.read(2, 8);
            w.close(2, opener);
        }
        w.heal(0, 2);
        w.start_node(0);
        w.settle();
    });
}

#[test]
fn a_survivor_that_is_alone_with_its_data_becomes_up_to_date_again_case_19() {
    let mut plan = Plan::quiet(3, 0);
    plan.workload.nodes = vec![1];
    scenario(plan, |w| {
        w.form();
        // Only n1 is connected to the Primary n0.
        w.cut(0, 2);
        w.cut(1, 2);
        w.wait_lost(0, 2);
        w.wait_lost(1, 2);
        w.open(0);
        w.write(0, 0);
        w.kill(0);
        w.wait_lost(1, 0);
        w.wait_disk(1, DiskState::UpToDate);
        let opener = w.open(1);
        w.read(1, 0);
        w.close(1, opener);
        w.heal(0, 2);
        w.heal(1, 2);
        w.start_node(0);
        w.settle();
    });
}

#[test]
fn a_lost_diskless_primary_leaves_equal_servers_case_21() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        w.open(2);
        w.write(2, 0);
        for i in 0..8 {
            w.start(2, WRITE, i * 8, 8);
        }
        w.run_for(1_000_000);
        w.kill(2);
        w.wait_lost(0, 2);
        w.wait_lost(1, 2);
        w.wait("both servers are UpToDate", |w| {
            w.disk(0) == DiskState::UpToDate && w.disk(1) == DiskState::UpToDate
        });
        w.start_node(2);
        let opener = w.open(0);
        w.read(0, 0);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_crashed_primary_whose_peers_wrote_nothing_comes_back_equal_case_70() {
    scenario(three(), |w| {
        w.form();
        w.open(0);
        for i in 0..4 {
            w.write(0, i * 8);
        }
        w.start(0, WRITE, 4, 8);
        w.start(0, WRITE, 20, 8);
        w.run_for(200_000);
        w.power_loss(0);
        w.wait_lost(1, 0);
        w.wait_disk(1, DiskState::UpToDate);
        let opener = w.open(1);
        w.close(1, opener);
        w.start_node(0);
        w.wait_connected(0, 1);
        w.settle();
    });
}

#[test]
fn a_peer_dropped_by_a_timeout_knows_that_it_is_behind_case_25() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        // n1's disk does not answer: n0 drops it after ko-count times timeout and goes on.
        w.stall_disk(1, 120);
        let id = w.start(0, WRITE, 8, 8);
        w.wait("the write is acknowledged without n1", |w| w.is_answered(id));
        w.finish(id).ok();
        w.write(0, 16);
        w.close(0, opener);
        w.release_disk(1);
        w.wait_secondary(0);
        w.wait_connected(0, 1);
        w.wait_disk(1, DiskState::UpToDate);
        let opener = w.open(1);
        w.read(1, 8);
        w.read(1, 16);
        w.close(1, opener);
        w.settle();
    });
}

#[test]
fn a_far_node_is_outdated_before_its_neighbours_primary_goes_on_case_22() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        // n1 is reachable only through n0.
        w.cut(1, 2);
        w.wait_lost(2, 1);
        w.wait_lost(1, 2);
        w.write(2, 8);
        w.wait("n1 is not UpToDate or is written through", |w| {
            w.disk(1) != DiskState::UpToDate
                || w.nodes[1].drive(0).is_some_and(|d| d.disk.tag(8) != 0)
        });
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn all_nodes_dying_at_once_come_back_with_everything() {
    let mut plan = three();
    plan.volatile_cache = false;
    scenario(plan, |w| {
        w.form();
        w.open(0);
        for i in 0..10 {
            w.write(0, i * 4096);
        }
        for i in 0..10 {
            w.start(0, WRITE, i * 4096 + 4, 8);
        }
        w.run_for(500_000);
        for node in 0..3 {
            w.power_loss(node);
        }
        for node in 0..3 {
            w.start_node(node);
        }
        w.settle();
        w.expect("they are connected", |w| {
            w.seen(0).peers[1].as_ref().is_some_and(|p| p.conn == ConnState::Connected)
        });
    });
}

#[test]
fn a_survivor_that_meets_the_primary_again_takes_what_that_still_owes_it() {
    let mut plan = three();
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        for i in 0..12 {
            w.write(0, i * 8192);
        }
        // n2 has more than n1, and is its source, as soon as both have lost n0.
        let (peer, volume) = (node_id(2), VolumeNr(0));
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: true });
        w.cut(0, 2);
        for i in 0..6 {
            w.start(0, WRITE, i * 8192, 8);
        }
        w.wait_lost(0, 2);
        w.wait_lost(2, 0);
        w.wait("n1 is a target", |w| w.device(1, 2).repl == ReplState::PausedSyncT);
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: false });
        w.wait_disk(2, DiskState::UpToDate);
        w.heal(0, 1);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_survivor_that_only_follows_does_not_make_the_primary_start_over() {
    let mut plan = three();
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        // Both lose n0, and n2 has more. It is Consistent as long as it is the source of n1.
        let (peer, volume) = (node_id(2), VolumeNr(0));
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: true });
        w.cut(0, 1);
        for i in 0..6 {
            w.start(0, WRITE, i * 8192, 8);
        }
        w.run_for(30_000_000);
        w.cut(0, 2);
        w.wait_lost(0, 1);
        w.wait_lost(0, 2);
        w.wait_lost(2, 0);
        w.wait("n1 is a target", |w| w.device(1, 2).repl == ReplState::PausedSyncT);
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.write(0, 8);
        let generation = w.seen(0).volumes[0].current;
        for i in 0..20 {
            w.write(0, i * 8);
            w.run_for(10_000_000);
        }
        w.expect("it is one generation", |w| w.seen(0).volumes[0].current == generation);
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: false });
        w.heal(0, 1);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_primary_that_lost_its_power_is_not_the_source_of_survivors_that_reconcile() {
    for apart in [0, 1, 2, 4, 8] {
        scenario(three(), |w| {
            w.form();
            w.open(0);
            for i in 0..6 {
                w.write(0, i * 8192);
            }
            // The survivors differ in what was under write.
            w.cut(0, 1);
            w.start(0, WRITE, 64, 8);
            w.run_for(3_000_000);
            w.power_loss(0);
            w.heal(0, 1);
            w.run_for(apart * 10_000_000);
            w.start_node(0);
            w.settle();
        });
    }
}

#[test]
fn a_survivor_that_is_still_to_settle_with_others_follows_no_crashed_primary() {
    let mut plan = three();
    plan.volatile_cache = true;
    scenario(plan, |w| {
        w.form();
        w.open(0);
        for i in 0..8 {
            w.write(0, i * 8);
        }
        // n2 waits for n1, whose disk has a write to end, while n0 is back. It has lost what it did
        // not flush.
        w.stall_disk(1, 60);
        w.start(0, WRITE, 80, 8);
        w.run_for(5_000_000);
        w.power_loss(0);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        w.start_node(0);
        w.wait_connected(0, 2);
        w.settle();
        let opener = w.open(2);
        for i in 0..8 {
            w.read(2, i * 8);
        }
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_survivor_with_a_write_to_execute_is_not_yet_what_its_neighbour_is() {
    let mut plan = three();
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        // The last write does not get onto the disk of n1.
        w.stall_disk(1, 120);
        let id = w.start(0, WRITE, 8, 8);
        let flush = w.start(0, Op::Flush, 0, 0);
        w.run_for(30_000_000);
        w.cut_off(0, [1, 2]);
        w.wait_lost_all(0, [1, 2]);
        w.finish(id).ok();
        w.finish(flush).ok();
        w.close(0, opener);
        w.wait_secondary(0);
        // n2 has nothing to settle with n0, and is as good as that.
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.wait_disk(2, DiskState::UpToDate);
        w.run_for(200_000_000);
        w.expect("n1 has not executed it", |w| w.disk(1) == DiskState::Consistent);
        w.release_disk(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.heal(0, 1);
        w.settle();
    });
}

#[test]
fn a_survivor_with_a_write_to_execute_hears_that_a_neighbour_owes_it_nothing() {
    let mut plan = Plan::majority(4, 0);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.stall_disk(1, 120);
        let id = w.start(0, WRITE, 8, 8);
        w.run_for(30_000_000);
        w.cut_off(0, [1, 2]);
        w.wait_lost_all(0, [1, 2]);
        // n3 has not lost n0, which has demoted itself when n1 has executed everything.
        w.finish(id).ok();
        w.close(0, opener);
        w.wait_secondary(0);
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.wait_disk(1, DiskState::UpToDate);
        w.heal(0, 1);
        w.settle();
    });
}

/// n1 loses a Primary of a generation that it has not got, while its connection to n2 is dead and
/// it has not noticed: what n2 said of itself was before that generation.
#[test]
fn a_survivor_does_not_take_old_words_of_another_for_what_it_has_now() {
    let mut plan = three();
    plan.net.ping_int = Duration::from_secs(60);
    scenario(plan, |w| {
        w.form();
        w.kill(0);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        w.wait_disk(1, DiskState::UpToDate);
        w.wait_disk(2, DiskState::UpToDate);
        w.run_seconds(1);
        w.cut(1, 2);
        w.granted(2, AdminCommand::Disconnect { peer: node_id(1), force: true });
        w.cut(0, 1);
        w.start_node(0);
        w.wait_connected(0, 2);
        w.open(0);
        w.write(0, 0);
        w.heal(0, 1);
        w.wait("n1 has met the Primary", |w| {
            matches!(w.device(1, 0).repl, ReplState::WFBitMapT | ReplState::SyncTarget)
        });
        w.expect("n1 still counts on n2", |w| w.device(1, 2).disk == DiskState::UpToDate);
        w.kill(0);
        w.wait_lost(1, 2);
        w.start_node(0);
        w.heal(1, 2);
        w.connect(2, 1);
        w.settle();
    });
}

/// n1 meets the Primary again, which counts blocks as missing there, while n2 is brought to what
/// n1 has. That n2 is UpToDate without these blocks makes n1 no better.
#[test]
fn a_survivor_is_not_current_by_the_word_of_one_that_lacks_the_same() {
    let mut plan = three();
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.cut(0, 2);
        for i in 0..6 {
            w.start(0, WRITE, i * 8, 8);
        }
        w.run_for(30_000_000);
        w.cut(0, 1);
        for i in 0..6 {
            w.start(0, WRITE, 64 + i * 8, 8);
        }
        w.stall_disk(2, 30);
        w.wait_lost_all(0, [1, 2]);
        w.wait("n2 is resynced from n1", |w| w.device(1, 2).repl == ReplState::SyncSource);
        w.close(0, opener);
        w.wait_secondary(0);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.release_disk(2);
        w.wait_disk(1, DiskState::UpToDate);
        w.heal(0, 2);
        w.settle();
    });
}

#[test]
fn what_was_under_write_in_a_generation_does_not_matter_in_the_next_one() {
    scenario(Plan::quiet(3, 0), |w| {
        w.form();
        let opener = w.open(0);
        for extent in 0..3 {
            w.write(0, extent * 8192);
        }
        w.kill(1);
        w.kill(2);
        w.wait_lost(0, 1);
        w.wait_lost(0, 2);
        w.write(0, 8);
        w.close(0, opener);
        w.wait_secondary(0);
        w.granted(0, AdminCommand::Outdate { volume: VolumeNr(0) });
        // Both get to the generation of n0, and count blocks as missing on each other.
        w.cut(1, 2);
        w.start_node(1);
        w.start_node(2);
        let current = |w: &World, node: usize| w.seen(node).volumes[0].current;
        w.wait("both are where n0 is", |w| {
            let there = |n| current(w, n).same(current(w, 0)) && w.disk(n) >= DiskState::Outdated;
            there(1) && there(2)
        });
        w.heal(1, 2);
        w.settle();
    });
}

/// A Primary without quorum is heard by one node only, which has its last write. Of those that have
/// lost it, one that was told to leave has kept its state; it does not vouch for what the other
/// misses of that write.
#[test]
fn who_has_left_a_primary_vouches_for_nobody_while_another_one_hears_it() {
    let mut plan = Plan::majority(4, 0);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.run_seconds(1);
        w.slow(0, 1, 900_000_000);
        w.slow(0, 3, 900_000_000);
        let id = w.start(0, WRITE, 64, 8);
        w.run_for(10_000_000);
        w.granted(3, AdminCommand::Disconnect { peer: node_id(0), force: true });
        w.cut_off(0, [1, 3]);
        w.reset(0, 1);
        w.wait_lost_all(0, [1, 3]);
        w.finish(id).ok();
        w.run_seconds(5);
        w.slow(0, 1, 100_000);
        w.slow(0, 3, 100_000);
        w.rejoin(0, [1, 3]);
        w.connect(3, 0);
        w.wait_connected(0, 1);
        w.close(0, opener);
        w.settle();
    });
}

/// The source of a resync has lost the Primary that only it heard. Until it has executed what it
/// received from there, and counts it as missing at the target, the resync does not end.
#[test]
fn a_resync_does_not_end_while_its_source_executes_what_a_lost_primary_sent() {
    scenario(Plan::majority(2, 1), |w| {
        let (volume, peer) = (VolumeNr(0), node_id(0));
        w.form();
        w.open(2);
        w.write(2, 0);
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: true });
        w.cut_off(1, [0, 2]);
        w.wait_lost_all(1, [0, 2]);
        w.write(2, 64);
        w.heal(0, 1);
        w.wait("n1 is to be resynced", |w| w.device(1, 0).repl == ReplState::PausedSyncT);
        w.run_seconds(1);
        w.write(2, 128);
        w.stall_disk(0, 20);
        w.start(2, WRITE, 256, 8);
        w.run_for(2_000_000);
        w.release_disk(0);
        w.kill(2);
        w.wait_lost(0, 2);
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: false });
        w.run_seconds(5);
        w.start_node(2);
        w.heal(1, 2);
        w.run_seconds(20);
        w.settle();
    });
}

#[test]
fn a_write_that_fails_while_a_peer_is_compared_with_is_missing_there() {
    let mut plan = Plan::majority(4, 0);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    plan.net.ping_int = Duration::from_secs(1);
    plan.net.ping_timeout = Duration::from_secs(5);
    let halves = [(0, 2), (0, 3), (1, 2), (1, 3)];
    scenario(plan, |w| {
        w.form();
        w.run_seconds(1);
        let opener = w.open(0);
        w.write(0, 0);
        w.run_seconds(1);
        halves.into_iter().for_each(|(a, b)| w.cut(a, b));
        // Without quorum it fails as soon as n1 has it.
        w.stall_disk(1, 8);
        let write = w.start(0, WRITE, 8, 8);
        w.run_for(7_900_000_000);
        for (a, b) in halves {
            w.expect("they have lost each other", |w| !w.connected(a, b));
        }
        // n1 has it, and says so when n0 and n2 have compared what they have, just before its word
        // that they may connect.
        w.pause(1, 4);
        w.run_for(200_000_000);
        w.heal(0, 2);
        w.wait("the write is answered", |w| w.is_answered(write));
        w.wait_connected(0, 2);
        w.run_for(10_000_000);
        w.expect("n2 has the write, or is known to lack it", |w| {
            let (a, b) = (w.nodes[0].drive(0), w.nodes[2].drive(0));
            let equal = a.zip(b).and_then(|(a, b)| a.disk.first_difference(&b.disk, 0)).is_none();
            equal || w.device(2, 0).out_of_sync > 0
        });
        w.close(0, opener);
        halves.into_iter().for_each(|(a, b)| w.heal(a, b));
        w.settle();
    });
}

#[test]
fn a_write_that_has_failed_is_missing_on_a_peer_that_comes_before_it_is_done_everywhere() {
    let mut plan = Plan::majority(4, 0);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    plan.net.ping_int = Duration::from_secs(1);
    let halves = [(0, 2), (0, 3), (1, 2), (1, 3)];
    scenario(plan, |w| {
        w.form();
        w.run_seconds(1);
        let opener = w.open(0);
        w.write(0, 0);
        w.run_seconds(1);
        halves.into_iter().for_each(|(a, b)| w.cut(a, b));
        w.stall_disk(1, 4);
        w.write_fails(0, 8);
        // n1 has it, but not on stable storage.
        w.stall_disk(1, 6);
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.run_for(10_000_000);
        w.expect("n2 has the write, or is known to lack it", |w| {
            let (a, b) = (w.nodes[0].drive(0), w.nodes[2].drive(0));
            let equal = a.zip(b).and_then(|(a, b)| a.disk.first_difference(&b.disk, 0)).is_none();
            equal || w.device(2, 0).out_of_sync > 0
        });
        w.close(0, opener);
        halves.into_iter().for_each(|(a, b)| w.heal(a, b));
        w.settle();
    });
}

#[test]
fn a_survivor_waits_for_all_others_before_one_of_them_vouches_for_it() {
    let mut plan = Plan::quiet(4, 0);
    plan.net.ping_int = Duration::from_secs(120);
    plan.net.ping_timeout = Duration::from_secs(20);
    plan.net.ko_count = 1;
    scenario(plan, |w| {
        w.form();
        w.run_seconds(1);
        let opener = w.open(1);
        w.write(1, 0);
        w.close(1, opener);
        w.run_seconds(1);
        // n2 and n3 take n0 for connected, and for what it was, and lose the Primary later.
        w.cut_off(0, [2, 3]);
        let opener = w.open(1);
        w.run_for(20_000_000);
        w.cut_off(1, [2, 3]);
        w.write(1, 8);
        w.wait_lost(0, 2);
        w.wait_lost(0, 3);
        w.run_seconds(1);
        w.close(1, opener);
        w.wait_secondary(1);
        w.rejoin(1, [2, 3]);
        w.wait_lost(2, 1);
        w.cut(1, 2);
        // Nobody is Primary any more, n2 hears by way of n3.
        w.wait_connected(1, 3);
        w.run_seconds(1);
        w.rejoin(0, [2, 3]);
        w.heal(1, 2);
        w.settle();
    });
}

/// The Primary n3 has no disk and no quorum, and its last write is on n1 alone, over a block that
/// nobody is told of any more who has it: n1 is compared with the others, which have gone on without
/// both, block by block. Gives the opener and the write.
fn last_write_on_n1_alone(w: &mut World) -> (u64, u64) {
    w.form();
    let opener = w.open(3);
    w.run_seconds(1);
    w.write(3, 0);
    APART.into_iter().for_each(|(a, b)| w.cut(a, b));
    let id = w.start(3, WRITE, 0, 8);
    for (a, b) in APART {
        w.wait_lost(a, b);
        w.wait_lost(b, a);
    }
    (opener, id)
}

const APART: [(usize, usize); 4] = [(3, 0), (3, 2), (1, 0), (1, 2)];

#[test]
fn what_a_disk_has_lost_by_a_resync_in_which_it_comes_back_is_not_reported_by_its_word() {
    scenario(Plan::majority(3, 1), |w| {
        let (opener, id) = last_write_on_n1_alone(w);
        w.cut(1, 3);
        w.wait_lost(3, 1);
        w.wait_lost(1, 3);
        w.heal(1, 2);
        w.wait("the resync begins", |w| w.disk(1) == DiskState::Inconsistent);
        w.stall_disk(2, 30);
        w.heal(1, 3);
        w.wait_connected(1, 3);
        w.expect("n1 waits for n2", |w| w.disk(1) == DiskState::Inconsistent);
        w.release_disk(2);
        // It may fail, but not be reported without a disk that has it.
        w.finish(id).ok();
        w.close(3, opener);
        APART.into_iter().for_each(|(a, b)| w.heal(a, b));
        w.settle();
    });
}

/// n0 is resynced when the Primary is cut off from the others, takes its last write in the middle of
/// that, and is resynced once more when its sources, which were lost, are back.
#[test]
fn what_a_resync_target_has_acknowledged_and_lost_is_not_reported_by_its_word() {
    scenario(Plan::majority(3, 1), |w| {
        w.form();
        let opener = w.open(3);
        w.detach(0);
        w.write(3, 0);
        w.attach_again(0);
        w.wait("the resync begins", |w| w.disk(0) == DiskState::Inconsistent);
        w.stall_disk(1, 30);
        w.stall_disk(2, 30);
        w.wait("it is known", |w| w.device(3, 0).disk == DiskState::Inconsistent);
        w.cut_off(3, [1, 2]);
        let id = w.start(3, WRITE, 0, 8);
        w.wait_lost_all(3, [1, 2]);
        w.kill(1);
        w.kill(2);
        w.release_disk(1);
        w.release_disk(2);
        w.run_seconds(1);
        w.start_node(1);
        w.start_node(2);
        // It may fail, but not be reported without a disk that has it.
        w.finish(id).ok();
        w.close(3, opener);
        w.rejoin(3, [1, 2]);
        w.settle();
    });
}

/// n0 has the last write of the Primary, and n1 has not; then n1 is its source, and has lost the
/// Primary, which does not know that when n0 is current.
#[test]
fn what_a_target_has_lost_to_a_source_that_had_lost_the_primary_is_not_reported_by_its_word() {
    scenario(Plan::majority(3, 1), |w| {
        w.form();
        let opener = w.open(3);
        let pause = |peer, pause| {
            let (peer, volume) = (node_id(peer), VolumeNr(0));
            AdminCommand::PauseSync { peer, volume, pause }
        };
        w.cut(3, 2);
        w.wait_lost(3, 2);
        w.wait_lost(2, 3);
        w.detach(0);
        w.write(3, 0);
        w.granted(0, pause(1, true));
        w.granted(0, pause(2, true));
        w.attach_again(0);
        w.wait("n0 waits for n1", |w| w.device(3, 0).disk == DiskState::Inconsistent);
        w.cut(3, 1);
        let id = w.start(3, WRITE, 0, 8);
        w.run_seconds(1);
        w.granted(0, pause(1, false));
        // n1 asks whom it hears. Most of the time it serves n0 before others tell it that the
        // Primary goes on.
        w.kill(2);
        w.wait_lost(1, 3);
        w.wait_lost(3, 1);
        w.run_seconds(1);
        w.rejoin(3, [1, 2]);
        w.start_node(2);
        w.granted(0, pause(2, false));
        // It fails where nobody was current when there was a quorum again.
        w.finish(id).ok();
        w.close(3, opener);
        w.settle();
    });
}
