//! What a node has voted for, and it or its disk knows nothing of (invariants 5 and 32).
//! What it has given up since.

use std::time::Duration;

use replication::io::{AdminCommand, Input, LinkLoss};
use sim::plan::{MILLISECOND, Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::{OnNoQuorum, OnSuspendedPrimaryOutdated, RrConflict};
use vocab::{DiskState, ReplState, VolumeNr};

const WRITE: Op = Op::Write { fua: false };

fn quorate(w: &World, node: usize) -> bool {
    w.view(node).is_some_and(|v| v.volumes[0].quorum)
}

fn detach(w: &mut World, node: usize, force: bool) {
    let volume = VolumeNr(0);
    w.granted(node, AdminCommand::Detach { volume, force, intentional: false });
    w.wait_disk(node, DiskState::Diskless);
}

fn metadata_fails(w: &mut World, node: usize, percent: u64) {
    w.nodes[node].drives[0].as_mut().expect("a disk").disk.behaviour.meta_errors = percent;
}

fn pause_sync(w: &mut World, node: usize, peer: usize, pause: bool) {
    let (peer, volume) = (node_id(peer), VolumeNr(0));
    w.granted(node, AdminCommand::PauseSync { peer, volume, pause });
}

/// n0 votes without its disk for what n1 writes alone; then it is back with the disk, beside n2.
fn votes_without_its_disk(force: bool) {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(1);
        w.write(1, 0);
        detach(w, 0, force);
        w.write(1, 8);
        w.run_seconds(1);
        w.cut_off(2, [0, 1]);
        w.wait_lost(1, 2);
        w.write(1, 16);
        w.close(1, opener);
        w.wait_secondary(1);
        w.kill(1);
        w.power_loss(0);
        w.start_node(0);
        w.rejoin(2, [0, 1]);
        w.wait_connected(0, 2);
        w.run_seconds(10);
        w.expect("two that lack the write have no quorum", |w| !quorate(w, 0) && !quorate(w, 2));
        w.start_node(1);
        w.settle();
        let opener = w.open(0);
        w.read(0, 16);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_disk_that_was_given_up_knows_that_its_node_went_on() {
    votes_without_its_disk(true);
}

#[test]
fn a_disk_that_was_detached_knows_that_its_node_went_on() {
    votes_without_its_disk(false);
}

#[test]
fn a_node_whose_disk_can_not_tell_has_no_vote_without_it() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(1);
        w.write(1, 0);
        metadata_fails(w, 0, 100);
        detach(w, 0, true);
        // Three are connected, and two of them have disks.
        w.write(1, 8);
        w.cut_off(2, [0, 1]);
        w.wait_lost(1, 2);
        w.expect("n1 has no quorum", |w| !quorate(w, 1));
        let waits = w.start(1, WRITE, 16, 8);
        w.run_seconds(5);
        w.expect("nothing is written", |w| !w.is_answered(waits));
        metadata_fails(w, 0, 0);
        w.attach_again(0);
        w.finish(waits).expect("n0 has its vote again");
        w.rejoin(2, [0, 1]);
        w.close(1, opener);
        w.settle();
    });
}

#[test]
fn a_node_whose_disk_can_not_tell_is_not_harmless_when_it_is_gone() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(1);
        w.write(1, 0);
        metadata_fails(w, 0, 100);
        detach(w, 0, true);
        w.run_seconds(1);
        w.kill(0);
        w.wait_lost(1, 0);
        // n1 alone would have no quorum.
        w.refused(2, AdminCommand::Disconnect { peer: node_id(1), force: false });
        w.write(1, 16);
        metadata_fails(w, 0, 0);
        w.start_node(0);
        w.close(1, opener);
        w.settle();
    });
}

#[test]
fn of_two_nodes_one_goes_on_with_the_disk_of_the_other() {
    scenario(Plan::majority(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        metadata_fails(w, 0, 100);
        detach(w, 0, true);
        w.write(0, 8);
        w.kill(0);
        metadata_fails(w, 0, 0);
        w.start_node(0);
        w.run_seconds(5);
        w.settle();
        let opener_again = w.open(1);
        w.read(1, 8);
        w.close(1, opener_again);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_cluster_that_was_stopped_starts_with_a_majority() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(1);
        w.write(1, 0);
        w.close(1, opener);
        w.wait_secondary(1);
        for node in 0..3 {
            for peer in (0..3).filter(|p| *p != node) {
                if w.connected(node, peer) {
                    w.disconnect(node, peer);
                }
            }
            detach(w, node, false);
            w.kill(node);
        }
        w.start_node(1);
        w.start_node(2);
        w.wait("they have quorum", |w| quorate(w, 1) && quorate(w, 2));
        w.start_node(0);
        w.settle();
    });
}

#[test]
fn a_disk_that_was_given_up_is_released_once() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(1);
        w.write(1, 0);
        w.run_seconds(10);
        // n0 is given an extent of its activity log, and its disk does not answer.
        w.stall_disk(0, 2);
        let slow = w.start(1, WRITE, 8192, 8);
        w.run_for(10 * MILLISECOND);
        detach(w, 0, true);
        w.finish(slow).expect("two disks have it");
        w.run_seconds(3);
        w.attach_again(0);
        w.close(1, opener);
        w.settle();
    });
}

#[test]
fn a_resync_target_of_two_branches_stays_with_the_one_it_voted_for() {
    let mut plan = Plan::majority(3, 0);
    plan.resource.on_suspended_primary_outdated = OnSuspendedPrimaryOutdated::ForceSecondary;
    scenario(plan, |w| {
        w.form();
        let frozen = w.open(2);
        w.write(2, 0);
        w.flush_disks();
        // n2 starts a generation without n1, of which n0 does not hear any more.
        let before = w.seen(2).volumes[0].current;
        w.slow(2, 0, 300 * MILLISECOND);
        w.cut(1, 2);
        w.wait_lost(1, 2);
        let lost = w.start(2, WRITE, 8, 8);
        w.wait("n2 has started a generation", |w| !w.seen(2).volumes[0].current.same(before));
        w.cut(0, 2);
        w.wait_lost_all(0, [2]);
        // n1 goes on with the vote of n0, which has no disk meanwhile.
        detach(w, 0, true);
        let opener = w.open(1);
        w.write(1, 16);
        w.close(1, opener);
        w.wait_secondary(1);
        // n0 is to be brought up to date from there, and meets n2 before it is.
        pause_sync(w, 0, 1, true);
        w.attach_again(0);
        w.slow(2, 0, MILLISECOND);
        w.heal(0, 2);
        for _ in 0..100 {
            w.run_for(100 * MILLISECOND);
            w.expect("n2 has no quorum", |w| !quorate(w, 2));
        }
        pause_sync(w, 0, 1, false);
        w.heal(1, 2);
        w.finish(lost).ok();
        w.close(2, frozen);
        w.settle();
        let opener = w.open(0);
        w.read(0, 16);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn what_a_primary_has_given_up_does_not_overtake_it() {
    scenario(Plan::majority(2, 0), |w| {
        w.form();
        w.detach(1);
        let opener = w.open(0);
        w.write(0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        pause_sync(w, 1, 0, true);
        w.attach_again(1);
        w.wait_disk(1, DiskState::Inconsistent);
        w.run_seconds(1);
        // The block that n1 lacks is under way for a while when it becomes Primary.
        w.slow(0, 1, 300 * MILLISECOND);
        pause_sync(w, 1, 0, false);
        w.run_for(10 * MILLISECOND);
        w.slow(0, 1, MILLISECOND);
        w.stall_disk(0, 1);
        let opener = w.open(1);
        // What it proposes n0 takes after the disk of n1 is current without it.
        let write = w.start(1, WRITE, 8, 8);
        w.finish(write).expect("n1 goes on");
        w.close(1, opener);
        w.settle();
        w.cut(0, 1);
        w.wait_lost_all(0, [1]);
        w.heal(0, 1);
        w.settle();
    });
}

fn io_error_majority(diskful: usize, diskless: usize) -> Plan {
    let mut plan = Plan::majority(diskful, diskless);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    plan
}

#[test]
fn a_tie_breaker_hears_of_a_generation_before_users_hear_of_its_writes() {
    scenario(io_error_majority(2, 1), |w| {
        w.form();
        let opener = w.open(0);
        // What n0 says to n2 is on its way for a while.
        w.slow(0, 2, 200 * MILLISECOND);
        w.cut(0, 1);
        // The generation that n0 starts without n1 gets no further, and n1 notices later.
        let write = w.start(0, WRITE, 0, 8);
        w.wait_lost(0, 1);
        w.run_for(100 * MILLISECOND);
        w.cut(0, 2);
        w.wait_lost_all(0, [1, 2]);
        let _ = w.finish(write);
        w.close(0, opener);
        // n1 has kept its quorum with n2, unless one of them has heard of it.
        w.run_seconds(5);
        if let Ok(other) = w.try_open(1) {
            w.read(1, 0);
            w.close(1, other);
            w.wait_secondary(1);
        }
        w.rejoin(0, [1, 2]);
        w.settle();
    });
}

#[test]
fn a_node_without_its_disk_hears_of_a_generation_before_users_hear_of_its_writes() {
    scenario(io_error_majority(3, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        for node in [1, 2] {
            w.slow(0, node, 200 * MILLISECOND);
            detach(w, node, true);
        }
        w.run_seconds(2);
        // The generation that n0 starts for the write gets no further.
        let write = w.start(0, WRITE, 0, 8);
        w.run_for(300 * MILLISECOND);
        w.cut_off(0, [1, 2]);
        w.wait_lost_all(0, [1, 2]);
        let _ = w.finish(write);
        w.close(0, opener);
        for node in [1, 2] {
            w.attach_again(node);
        }
        w.wait_disk(2, DiskState::UpToDate);
        let other = w.open(2);
        w.read(2, 0);
        w.close(2, other);
        w.wait_secondary(2);
        w.rejoin(0, [1, 2]);
        w.settle();
    });
}

/// n2 attaches its disk while it helps n0 to a majority; that takes so long because n1 does not
/// answer any more.
#[test]
fn what_a_node_votes_for_while_it_attaches_its_disk_counts_for_the_disk() {
    let mut plan = io_error_majority(3, 0);
    plan.net.ping_timeout = Duration::from_secs(5);
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        w.run_seconds(1);
        detach(w, 2, true);
        w.run_seconds(1);
        w.cut_off(1, [0, 2]);
        w.attach(2, 0);
        w.granted(0, AdminCommand::Disconnect { peer: node_id(1), force: true });
        let opener = w.open(0);
        w.write(0, 8);
        if w.disk(2) != DiskState::Attaching {
            // By some seeds it has found out about n1 by now.
            return;
        }
        w.kill(0);
        w.wait_disk(2, DiskState::Outdated);
        w.kill(1);
        w.start_node(1);
        w.rejoin(1, [0, 2]);
        w.run_seconds(5);
        w.expect("two that lack the write have no quorum", |w| !quorate(w, 1) && !quorate(w, 2));
        w.start_node(0);
        w.settle();
        let other = w.open(1);
        w.read(1, 8);
        w.close(1, other);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_vote_for_what_its_source_takes_on_binds_a_disk_that_does_not_hear_the_primary() {
    scenario(Plan::majority(3, 1), |w| {
        w.form();
        let opener = w.open(3);
        w.write(3, 0);
        w.kill(2);
        w.wait_lost(3, 2);
        w.write(3, 8);
        // n2 is brought up to date by n0, and gives it the quorum that it had from n1.
        w.cut(2, 3);
        w.kill(1);
        w.wait_lost(3, 1);
        w.wait_lost(0, 1);
        w.start_node(2);
        w.wait_connected(0, 2);
        w.write(3, 16);
        w.close(3, opener);
        w.kill(2);
        w.kill(0);
        w.kill(3);
        // n1 knows nothing of that, and neither does the disk of n2.
        w.cut(0, 2);
        w.start_node(1);
        w.start_node(2);
        w.wait_connected(1, 2);
        w.run_seconds(5);
        for node in [1, 2] {
            if w.try_open(node).is_ok() {
                w.violate("expect", format!("n{node} was promoted with old data"));
            }
        }
        w.start_node(0);
        w.start_node(3);
        w.heal(0, 2);
        w.heal(2, 3);
        w.settle();
    });
}

/// n1 loses n2 with a write on its way there, and has quorum with n0, whose disk is being resynced and
/// was not sent the write. n0 does not hear of the generation that n1 starts without n2.
#[test]
fn a_resync_target_hears_of_a_generation_before_users_hear_of_writes_of_before() {
    scenario(io_error_majority(3, 0), |w| {
        w.form();
        let first = w.open(1);
        w.kill(0);
        w.wait_lost(1, 0);
        w.write(1, 0);
        w.cut_off(0, [1, 2]);
        w.start_node(0);
        for peer in [1, 2] {
            pause_sync(w, 0, peer, true);
        }
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.run_seconds(2);
        w.slow(1, 2, 10_000 * MILLISECOND);
        let write = w.start(1, WRITE, 8, 8);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.wait("n0 is to be resynced", |w| w.device(1, 0).repl == ReplState::PausedSyncS);
        w.cut(1, 2);
        w.slow(1, 0, 200 * MILLISECOND);
        let before = w.seen(1).volumes[0].current;
        let loss = LinkLoss::Stalled;
        w.input_of_scenario(1, Input::LinkDown { peer: node_id(2), loss });
        w.wait("a generation starts", |w| !w.seen(1).volumes[0].current.same(before));
        w.run_for(50 * MILLISECOND);
        w.cut(0, 1);
        w.wait_lost_all(0, [1]);
        let _ = w.finish(write);
        w.close(1, first);
        w.input_of_scenario(2, Input::LinkDown { peer: node_id(1), loss });
        pause_sync(w, 0, 2, false);
        w.run_seconds(5);
        // n0 and n2 have quorum, and go on.
        let second = w.open(2);
        w.read(2, 8);
        w.close(2, second);
    });
}

/// Only n2 has the last write, and gives up its disk. n1, which lacks it, comes back with n0, whose
/// disk was away longer and is brought up to date by n1.
#[test]
fn a_node_without_its_disk_votes_for_nothing_that_the_disk_had_left_behind() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        w.detach(0);
        let opener = w.open(0);
        w.write(0, 0);
        w.run_seconds(1);
        w.cut_off(1, [0, 2]);
        w.wait_lost_all(1, [0, 2]);
        w.write(0, 64);
        w.close(0, opener);
        w.wait_secondary(0);
        w.run_seconds(1);
        w.detach(2);
        w.attach_again(0);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.run_seconds(3);
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.run_seconds(3);
        if w.try_open(1).is_ok() {
            w.read(1, 64);
        }
        w.attach_again(2);
        w.settle();
    });
}

/// n0 is cut off, and the tie-breaker leaves. It leaves for good, and n0 is known to have no
/// quorum.
#[test]
fn a_tie_breaker_that_leaves_gracefully_takes_no_quorum_with_it_case_31() {
    for primary in [false, true] {
        scenario(io_error_majority(2, 1), |w| {
            w.form();
            let opener = primary.then(|| w.open(1));
            w.cut_off(0, [1, 2]);
            w.wait_lost_all(0, [1, 2]);
            w.expect("n1 has quorum", |w| quorate(w, 1));
            w.disconnect(2, 1);
            w.wait_lost_all(1, [2]);
            w.run_seconds(2);
            w.expect("n1 keeps quorum", |w| quorate(w, 1));
            w.expect("n0 has none", |w| !quorate(w, 0));
            let opener = opener.unwrap_or_else(|| w.open(1));
            w.write(1, 0);
            w.connect(2, 1);
            w.connect(1, 2);
            w.rejoin(0, [1, 2]);
            w.close(1, opener);
            w.settle();
        });
    }
}

/// Site 1 is n0 and the client n3. If n3 may break a tie, its loss costs n1 half of the tie-
/// breakers and with them quorum; if it may not, n2 alone decides.
#[test]
fn a_client_that_may_not_break_ties_costs_nothing_with_its_site_case_35() {
    for tiebreaker in [false, true] {
        let mut plan = io_error_majority(2, 2);
        plan.nodes[3].tiebreaker = tiebreaker;
        scenario(plan, |w| {
            w.form();
            let opener = w.open(1);
            w.write(1, 0);
            for site_1 in [0, 3] {
                w.cut_off(site_1, [1, 2]);
            }
            for site_1 in [0, 3] {
                w.wait_lost_all(site_1, [1, 2]);
            }
            w.run_seconds(5);
            w.expect("site 1 has no quorum", |w| !quorate(w, 0));
            if tiebreaker {
                w.expect("n1 has lost quorum", |w| !quorate(w, 1));
            } else {
                w.expect("n1 keeps quorum", |w| quorate(w, 1));
                w.write(1, 8);
            }
            for site_1 in [0, 3] {
                w.rejoin(site_1, [1, 2]);
            }
            w.wait_connected(0, 1);
            w.close(1, opener);
            w.settle();
        });
    }
}

/// n2 is cut off, and other nodes are to be added there: with them it would have a majority, beside
/// the one that n0 and n1 are. So would it without n0.
#[test]
fn nodes_are_added_and_removed_only_with_quorum_case_34() {
    scenario(Plan::majority(4, 0), |w| {
        let config = |w: &World, node| w.plan.config(node).peers.pop().expect("n3 is the last one");
        w.form();
        w.kill(3);
        for node in 0..3 {
            let peer = node_id(3);
            w.wait_lost(node, 3);
            w.granted(node, AdminCommand::Disconnect { peer, force: true });
            w.remove_peer(node, 3);
        }
        w.cut_off(2, [0, 1]);
        w.wait_lost_all(2, [0, 1]);
        w.wait_lost_all(0, [2]);
        w.expect("n2 has no quorum", |w| !quorate(w, 2) && quorate(w, 0));
        let peer = config(w, 2);
        w.refused(2, AdminCommand::NewPeer(peer));
        let peer = node_id(0);
        w.granted(2, AdminCommand::Disconnect { peer, force: true });
        w.refused(2, AdminCommand::DelPeer(peer));
        // The others may.
        let peer = config(w, 0);
        w.granted(0, AdminCommand::NewPeer(peer));
    });
    // Nor by a Primary without a disk: with the disks of new nodes it would go on beside them.
    scenario(Plan::majority(3, 1), |w| {
        w.form();
        let opener = w.open(3);
        w.cut_off(3, [0, 1, 2]);
        w.wait_lost_all(3, [0, 1, 2]);
        let mut peer = w.plan.config(3).peers.pop().expect("it has peers");
        peer.node_id = node_id(9);
        w.refused(3, AdminCommand::NewPeer(peer));
        w.rejoin(3, [0, 1, 2]);
        w.close(3, opener);
        w.settle();
    });
}

/// n2 is forgotten for good. It had been left behind, so n0 may go on without the others' word.
#[test]
fn a_peer_that_is_forgotten_counts_no_more_case_100() {
    scenario(io_error_majority(3, 0), |w| {
        w.form();
        w.kill(2);
        w.wait_lost(0, 2);
        w.wait_lost(1, 2);
        let opener = w.open(0);
        w.write(0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        let peer = node_id(2);
        for node in [0, 1] {
            w.refused(node, AdminCommand::ForgetPeer { peer });
            w.granted(node, AdminCommand::Disconnect { peer, force: true });
            w.remove_peer(node, 2);
            w.granted(node, AdminCommand::ForgetPeer { peer });
        }
        w.expect("both have quorum", |w| quorate(w, 0) && quorate(w, 1));
        // Two of two are left: one that leaves gracefully is no loss, one that is cut off is.
        let opener = w.open(0);
        w.disconnect(1, 0);
        w.wait_lost_all(0, [1]);
        w.expect("n0 keeps quorum", |w| quorate(w, 0));
        w.write(0, 8);
        w.refused(1, AdminCommand::Primary { force: false });
        w.connect(1, 0);
        w.connect(0, 1);
        w.wait_connected(0, 1);
        w.wait_disk(1, DiskState::UpToDate);
        w.write(0, 16);
        w.cut(0, 1);
        w.wait_lost_all(0, [1]);
        w.expect("neither has quorum", |w| !quorate(w, 0) && !quorate(w, 1));
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.close(0, opener);
        // Added again, with its old disk, it gets all that it lacks.
        for node in [0, 1] {
            let config = w.plan.config(node).peers.pop().expect("n2 is the last one");
            w.granted(node, AdminCommand::NewPeer(config));
            w.connect(node, 2);
        }
        w.start_node(2);
        w.settle();
    });
}

/// A frozen Primary has its disk back, behind what its users have written since they had none. The
/// others have gone on: that data is not put under users that have never seen it.
#[test]
fn a_frozen_primary_whose_disk_came_back_takes_no_data_of_the_next_one() {
    let mut plan = Plan::majority(3, 0);
    plan.net.rr_conflict = RrConflict::RetryConnect;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        detach(w, 2, true);
        w.write(2, 8);
        (0..2).for_each(|peer| pause_sync(w, 2, peer, true));
        w.attach_again(2);
        w.expect("it is behind", |w| w.disk(2) < DiskState::Consistent);
        w.cut_off(2, [0, 1]);
        w.wait_lost_all(2, [0, 1]);
        let held = w.start(2, WRITE, 16, 8);
        let next = w.open(0);
        w.write(0, 24);
        (0..2).for_each(|peer| pause_sync(w, 2, peer, false));
        w.rejoin(2, [0, 1]);
        for _ in 0..60 {
            w.run_seconds(1);
            w.expect("one Primary is served", |w| w.disk(2) < DiskState::UpToDate);
        }
        w.expect("its write is not answered", |w| !w.is_answered(held));
        w.close(0, next);
        w.wait_secondary(0);
        for _ in 0..60 {
            w.run_seconds(1);
            w.expect("nor after that", |w| w.disk(2) < DiskState::UpToDate);
        }
        w.granted(2, AdminCommand::Secondary { force: true });
        w.finish(held).ok();
        w.close(2, opener);
        w.settle();
    });
}

/// A frozen client meets one old disk, which takes the generation that it proposes; nothing of that
/// is completed. The others have gone on meanwhile, with quorum: they are not behind that.
#[test]
fn a_frozen_client_with_an_old_disk_outdates_nobody_who_went_on() {
    let mut plan = Plan::majority(3, 1);
    plan.resource.on_suspended_primary_outdated = OnSuspendedPrimaryOutdated::ForceSecondary;
    plan.net.rr_conflict = RrConflict::RetryConnect;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(3);
        // It waits for n2 before it proposes a generation, and proposes it when n2 is lost: to n1
        // alone, which does not hear of it.
        w.slow(2, 3, 60_000 * MILLISECOND);
        let held = w.start(3, WRITE, 8, 8);
        w.run_for(20 * MILLISECOND);
        w.cut_off(3, [0, 1, 2]);
        w.cut_off(0, [1, 2]);
        w.reset(3, 0);
        w.reset(3, 2);
        w.wait_lost_all(3, [0, 1, 2]);
        w.wait_lost_all(0, [1, 2]);
        w.wait("the others have quorum", |w| quorate(w, 1) && quorate(w, 2));
        let next = w.open(2);
        w.write(2, 16);
        w.close(2, next);
        w.wait_secondary(2);
        w.heal(3, 0);
        w.wait_connected(3, 0);
        // With most seeds the old disk takes the generation now.
        w.run_seconds(1);
        w.expect("its write is not answered", |w| !w.is_answered(held));
        w.slow(2, 3, MILLISECOND);
        w.heal(3, 2);
        for _ in 0..30 {
            w.run_seconds(1);
            w.expect("they stay current", |w| {
                [1, 2].iter().all(|n| w.disk(*n) == DiskState::UpToDate && quorate(w, *n))
            });
        }
        w.wait_secondary(3);
        w.finish(held).ok();
        w.close(3, opener);
        w.rejoin(0, [1, 2]);
        w.heal(1, 3);
        w.settle();
    });
}

/// n0 is given up beside n1, and on its way to what the client proposes to n1, whose disk is stuck.
/// Nobody has got there when n1 and the client lose power: n0 is where n1 is in the end.
#[test]
fn a_disk_does_not_wait_for_what_it_was_on_its_way_to_when_no_disk_has_got_there() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        w.open(2);
        w.write(2, 0);
        w.stall_disk(1, 30);
        let from = Some(node_id(1));
        w.granted(0, AdminCommand::Invalidate { volume: VolumeNr(0), from });
        w.start(2, WRITE, 8, 8);
        w.run_for(50 * MILLISECOND);
        w.power_loss(2);
        w.power_loss(1);
        w.wait_lost(0, 1);
        w.wait_lost(0, 2);
        w.release_disk(1);
        w.start_node(1);
        w.start_node(2);
        w.settle();
    });
}
