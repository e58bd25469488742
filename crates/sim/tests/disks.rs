//! Disks that fail, are slow, or are lost at a bad moment.

use std::time::Duration;

use codec::wire::Packet;
use replication::io::AdminCommand;
use sim::disk::Behaviour;
use sim::net::Pace;
use sim::plan::{MILLISECOND, Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::{OnIoError, OnNoDataAccessible, OnNoQuorum, Protocol};
use vocab::{DiskState, VolumeNr};

const V0: VolumeNr = VolumeNr(0);
const EXTENT: u64 = 8192;
const WRITE: Op = Op::Write { fua: false };

fn behave(w: &mut World, node: usize, behaviour: Behaviour) {
    w.nodes[node].drives[0].as_mut().expect("a disk").disk.behaviour = behaviour;
}

#[test]
fn io_goes_on_after_a_resume_that_meets_an_unfinished_generation() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.granted(0, AdminCommand::SuspendIo);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        let held = w.start(0, WRITE, EXTENT, 8);
        w.stall_disk(0, 5);
        w.granted(0, AdminCommand::ResumeIo);
        w.run_for(1_000_000_000);
        w.granted(0, AdminCommand::ResumeIo);
        w.finish(held).ok();
        w.expect("nothing is suspended", |w| !w.seen(0).suspended.any());
        w.heal(0, 1);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_disk_that_is_lost_while_it_detaches_can_be_attached_again() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let command = |force| AdminCommand::Detach { volume: V0, force, intentional: false };
        // The answer of the other node takes its time.
        w.cut(1, 0);
        let polite = w.admin(1, command(false));
        w.granted(1, command(true));
        w.heal(1, 0);
        w.wait("the first wish is answered, too", |w| w.has_answer(polite));
        w.expect("the disk is gone", |w| w.disk(1) == DiskState::Diskless);
        w.attach_again(1);
        // The cut may have cost a ping.
        w.run_seconds(2);
        w.settle();
    });
}

#[test]
fn a_block_that_can_not_be_read_is_no_difference_to_a_verify() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        // A disk that has only just become UpToDate would end the verify.
        w.wait("each sees the other", |w| w.device(0, 1).disk == DiskState::UpToDate);
        behave(w, 0, Behaviour { read_errors: 100, ..Behaviour::default() });
        let peer = node_id(1);
        w.granted(0, AdminCommand::Verify { peer, volume: V0, start: Some(0), stop: None });
        w.wait_disk(0, DiskState::Diskless);
        behave(w, 0, Behaviour::default());
        w.attach_again(0);
        w.settle();
    });
}

#[test]
fn an_activity_log_is_replayed_however_often_the_attach_fails() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        w.open(0);
        w.write(0, 0);
        for i in 1..6 {
            w.write(0, i * EXTENT);
        }
        w.cut(0, 1);
        let open = w.start(0, WRITE, 3 * EXTENT, 64);
        w.kill(0);
        assert!(!w.is_answered(open));
        for _ in 0..4 {
            behave(w, 0, Behaviour { meta_errors: 50, ..Behaviour::default() });
            w.start_node(0);
            w.run_for(200_000_000);
            w.power_loss(0);
        }
        behave(w, 0, Behaviour::default());
        w.heal(0, 1);
        w.start_node(0);
        w.settle();
    });
}

#[test]
fn many_that_lost_their_power_do_not_win_over_one_that_stayed() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        w.open(0);
        w.write(0, 0);
        w.run_seconds(1);
        for i in 0..6 {
            w.write(0, i * EXTENT);
        }
        w.power_loss(0);
        w.power_loss(2);
        w.wait_lost(1, 0);
        w.wait_lost(1, 2);
        w.cut_off(1, [0, 2]);
        // They meet first, and have quorum.
        w.start_node(0);
        w.start_node(2);
        w.wait_connected(0, 2);
        w.run_seconds(10);
        w.expect("neither takes itself for current", |w| {
            w.disk(0) < DiskState::UpToDate && w.disk(2) < DiskState::UpToDate
        });
        w.heal(1, 2);
        w.heal(0, 1);
        w.settle();
    });
}

#[test]
fn a_crashed_primary_is_not_current_by_meeting_a_disk_that_was_left_behind() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        w.open(0);
        w.write(0, 0);
        w.cut_off(2, [0, 1]);
        w.wait_lost_all(2, [0, 1]);
        w.wait_lost(0, 2);
        for i in 0..6 {
            w.write(0, i * EXTENT);
        }
        // What was in its cache is on n1 alone, which goes on.
        w.power_loss(0);
        w.wait_lost(1, 0);
        w.cut(0, 1);
        w.heal(0, 2);
        w.start_node(0);
        w.wait_connected(0, 2);
        w.run_seconds(5);
        w.expect("nobody serves", |w| w.disk(0) < DiskState::UpToDate);
        assert!(w.try_open(2).is_err());
        w.heal(0, 1);
        w.heal(1, 2);
        w.settle();
    });
}

#[test]
fn disks_that_all_lost_their_power_serve_again_once_they_have_met() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        w.open(0);
        w.write(0, 0);
        w.run_seconds(1);
        for i in 0..6 {
            w.write(0, i * EXTENT);
        }
        for node in 0..3 {
            w.power_loss(node);
        }
        w.start_node(1);
        w.start_node(2);
        w.wait_connected(1, 2);
        w.run_seconds(5);
        w.expect("n0 may have more", |w| w.disk(1) < DiskState::UpToDate);
        w.start_node(0);
        w.settle();
        let opener = w.open(2);
        w.close(2, opener);
    });
}

#[test]
fn a_survivor_that_attached_its_disk_again_still_has_what_it_confirmed() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        w.open(0);
        for i in 0..6 {
            w.write(0, i * EXTENT);
        }
        w.power_loss(0);
        w.wait_lost(1, 0);
        w.granted(1, AdminCommand::Detach { volume: V0, force: true, intentional: false });
        w.attach_again(1);
        w.start_node(0);
        w.settle();
    });
}

#[test]
fn a_crashed_primary_is_not_promoted_before_its_own_disk_is_back() {
    let mut plan = Plan::quiet(2, 0);
    plan.net.protocol = Protocol::A;
    scenario(plan, |w| {
        w.form();
        w.open(0);
        w.write(0, 0);
        // Acknowledged, and on its way when both stop.
        w.cut(0, 1);
        for i in 0..4 {
            w.write(0, i * EXTENT);
        }
        w.kill(0);
        w.kill(1);
        w.heal(0, 1);
        w.start_node(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.stall_disk(0, 5);
        w.start_node(0);
        w.wait_connected(0, 1);
        let mut opener = w.try_open(0);
        while opener.is_err() && w.violation.is_none() {
            w.run_seconds(1);
            opener = w.try_open(0);
        }
        for i in 0..4 {
            w.read(0, i * EXTENT);
        }
        w.close(0, opener.unwrap_or(0));
        w.settle();
    });
}

#[test]
fn an_attach_does_not_wait_for_a_peer_that_has_lost_its_disk_meanwhile() {
    scenario(Plan::quiet(3, 0), |w| {
        w.form();
        w.detach(0);
        // n1 answers on the other stream than it says what becomes of its disk.
        let late = Pace { delay: (100_000, 400_000_000), ..Pace::default() };
        w.net.set_pace(1, 0, late);
        let gone = AdminCommand::Detach { volume: V0, force: true, intentional: false };
        w.granted(1, gone);
        w.attach_again(0);
        w.net.set_pace(1, 0, Pace::default());
        w.attach_again(1);
        w.settle();
    });
}

#[test]
fn two_disks_that_are_attached_at_the_same_time_compare_what_they_have() {
    scenario(Plan::quiet(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.detach(0);
        w.write(2, 0);
        w.close(2, opener);
        w.wait_secondary(2);
        w.detach(1);
        w.wait("both are known to be without disk", |w| {
            [0, 1].iter().all(|n| w.device(*n, 1 - n).disk == DiskState::Diskless)
        });
        w.attach(0, 0);
        w.attach(1, 0);
        w.settle();
    });
}

#[test]
fn a_disk_that_joins_a_crashed_primary_gets_what_that_wrote_last() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        w.open(0);
        for i in 0..4 {
            w.write(0, i * EXTENT);
        }
        w.cut_off(0, [1, 2]);
        for i in 0..4 {
            w.start(0, WRITE, i * EXTENT, 8);
        }
        w.run_for(50_000_000);
        w.kill(0);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        w.run_seconds(1);
        w.kill(1);
        w.kill(2);
        // n1 comes back, and meets n0 without its disk at first.
        w.start_node(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.granted(1, AdminCommand::Detach { volume: V0, force: true, intentional: false });
        w.heal(0, 1);
        w.start_node(0);
        w.wait_connected(0, 1);
        w.attach_again(1);
        w.heal(0, 2);
        w.start_node(2);
        w.settle();
    });
}

#[test]
fn a_generation_that_was_lost_with_the_disk_before_anybody_heard_of_it_never_was() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.kill(2);
        w.wait_lost(0, 2);
        // The disk is lost while it writes down the generation that the next write starts.
        behave(w, 0, Behaviour { latency: (20_000_000, 30_000_000), ..Behaviour::default() });
        let id = w.start(0, WRITE, 8, 8);
        w.run_for(10_000_000);
        w.granted(0, AdminCommand::Detach { volume: V0, force: true, intentional: false });
        behave(w, 0, Behaviour::default());
        w.finish(id).ok();
        w.write(0, 16);
        w.attach_again(0);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(0, opener);
        w.start_node(2);
        w.settle();
    });
}

#[test]
fn a_generation_that_no_peer_took_before_the_power_failed_never_began() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        w.open(0);
        for peer in [1, 2] {
            w.slow(0, peer, 30_000_000);
        }
        // It is durable here, and on its way to the others.
        let before = w.seen(0).volumes[0].current;
        w.start(0, WRITE, 0, 8);
        w.wait("n0 has a generation", |w| !w.seen(0).volumes[0].current.same(before));
        w.cut_off(0, [1, 2]);
        w.power_loss(0);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        let opener = w.open(1);
        w.write(1, 8);
        for peer in [1, 2] {
            w.slow(0, peer, 100_000);
        }
        w.rejoin(0, [1, 2]);
        w.start_node(0);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(1, opener);
        w.settle();
    });
}

#[test]
fn a_proposal_is_left_behind_by_the_own_disk_that_is_back() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.granted(2, AdminCommand::Detach { volume: V0, force: true, intentional: false });
        w.run_seconds(1);
        // n0 takes the generation that the write starts, and is lost before it can say so.
        w.slow(2, 1, 20_000_000);
        w.slow(0, 2, 20_000_000);
        let before = w.seen(0).volumes[0].current;
        let id = w.start(2, WRITE, 8, 8);
        w.wait("n0 has a generation", |w| !w.seen(0).volumes[0].current.same(before));
        w.cut_off(0, [1, 2]);
        w.cut(1, 2);
        w.run_for(10_000_000);
        w.kill(0);
        w.wait_lost_all(1, [2]);
        w.heal(1, 2);
        w.slow(2, 1, 100_000);
        w.slow(0, 2, 100_000);
        w.attach_again(2);
        w.finish(id).ok();
        w.rejoin(0, [1, 2]);
        w.start_node(0);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_disk_that_is_attached_again_at_once_is_told_the_primarys_position_again() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.detach(1);
        w.write(0, 0);
        for _ in 0..2 {
            w.attach_again(1);
            w.granted(1, AdminCommand::Detach { volume: V0, force: true, intentional: false });
        }
        w.attach_again(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn an_attach_that_failed_leaves_the_next_one_alone() {
    scenario(Plan::quiet(3, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.detach(1);
        for round in 0..8 {
            for i in 0..4 {
                w.write(0, i * EXTENT + round * 8);
            }
            // The metadata fails while the cluster is asked, or a little earlier or later.
            behave(w, 1, Behaviour { meta_errors: 60, ..Behaviour::default() });
            w.attach(1, 0);
            w.run_for(2_000_000);
            behave(w, 1, Behaviour::default());
            w.run_for(20_000_000);
            if w.disk(1) == DiskState::Diskless {
                w.attach_again(1);
            }
            w.wait_disk(1, DiskState::UpToDate);
            // Bits that are left are resynced now, unless the disk leaves just then.
            w.run_seconds(1);
            w.detach(1);
        }
        w.attach_again(1);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_disk_is_not_current_if_the_primary_went_on_while_it_was_being_attached() {
    scenario(Plan::quiet(2, 1), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.granted(1, AdminCommand::Detach { volume: V0, force: true, intentional: false });
        w.wait("it is known", |w| w.device(0, 1).disk == DiskState::Diskless);
        w.wait_disk_free(1);
        // The question whether the disk may come is on its way, the generation comes back first.
        w.net.set_pace(1, 0, Pace { delay: (300_000_000, 300_000_000), ..Pace::default() });
        w.attach(1, 0);
        w.start(0, WRITE, 8, 8);
        w.run_for(310_000_000);
        w.cut(0, 1);
        w.wait("the attach has ended", |w| w.disk(1) >= DiskState::Inconsistent);
        w.expect("the disk is known to be behind", |w| w.disk(1) <= DiskState::Outdated);
        w.net.set_pace(1, 0, Pace::default());
        w.heal(0, 1);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_node_that_restarted_has_no_vote_until_its_disk_is_attached() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        w.kill(0);
        w.wait_lost(1, 0);
        // n0 is back, but its disk takes its time; n2 is cut off.
        w.stall_disk(0, 60);
        w.cut_off(2, [0, 1]);
        w.wait_lost(1, 2);
        w.start_node(0);
        w.wait_connected(0, 1);
        w.expect("n1 has no quorum", |w| !w.seen(1).volumes[0].quorum);
        w.release_disk(0);
        w.wait_disk(0, DiskState::UpToDate);
        let opener = w.open(1);
        w.write(1, 0);
        w.close(1, opener);
        w.wait_secondary(1);
        w.kill(1);
        w.wait_lost(0, 1);
        // Now the two others meet, of which one has the write.
        w.heal(2, 0);
        w.wait_connected(0, 2);
        w.run_seconds(1);
        let opener = w.open(2);
        w.read(2, 0);
        w.close(2, opener);
        w.heal(2, 1);
        w.start_node(1);
        w.settle();
    });
}

#[test]
fn a_node_that_restarted_without_its_disk_does_not_vote_for_an_older_one() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        w.kill(2);
        w.wait_lost(0, 2);
        let opener = w.open(0);
        w.write(0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        // n1 has the write, but is back without its disk; n2 is back with one that lacks it.
        w.kill(0);
        w.kill(1);
        w.stall_disk(1, 60);
        w.start_node(1);
        w.start_node(2);
        w.wait_connected(1, 2);
        w.run_seconds(1);
        for node in [1, 2] {
            if w.try_open(node).is_ok() {
                w.violate("expect", "a disk that lacks a write is used");
            }
        }
        w.release_disk(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.wait_connected(1, 2);
        w.wait_disk(2, DiskState::UpToDate);
        let opener = w.open(2);
        w.read(2, 0);
        w.close(2, opener);
        w.start_node(0);
        w.settle();
    });
}

#[test]
fn a_disk_that_is_back_gets_what_is_under_way_in_a_generation_that_is_durable() {
    let mut plan = Plan::quiet(2, 0);
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        behave(w, 0, Behaviour { write_errors: 100, ..Behaviour::default() });
        behave(w, 1, Behaviour { write_errors: 100, ..Behaviour::default() });
        let held = w.start(0, WRITE, 3 * EXTENT, 8);
        w.wait_disk(0, DiskState::Diskless);
        w.wait_disk(1, DiskState::Diskless);
        // The generation that starts without n1 is not on the disk before what the disk lacks is
        // on record.
        let slow = (500_000, 3_000_000);
        behave(w, 0, Behaviour { latency: slow, ..Behaviour::default() });
        behave(w, 1, Behaviour::default());
        w.attach_again(0);
        w.run_seconds(1);
        // Where n1 has lost its disk last, n0 waits for that.
        w.attach_again(1);
        w.finish(held).ok();
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_disk_that_is_back_gets_what_is_under_way() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        w.kill(2);
        w.wait_lost(0, 2);
        let opener = w.open(0);
        w.write(0, 0);
        // Without the own disk there is no quorum: what only the peer has is held.
        behave(w, 0, Behaviour { write_errors: 1000, ..Behaviour::default() });
        let held = w.start(0, WRITE, 0, 8);
        w.wait_disk(0, DiskState::Diskless);
        w.run_for(50_000_000);
        behave(w, 0, Behaviour::default());
        w.attach_again(0);
        w.finish(held).ok();
        w.read(0, 0);
        w.start_node(2);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_disk_that_is_back_fetches_what_its_source_is_still_to_write() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.detach(0);
        w.wait("it is known", |w| w.device(1, 0).disk == DiskState::Diskless);
        w.write(0, EXTENT);
        // Only this write is late: what the disk of n1 is given after it is done before.
        w.stall_disk(1, 30);
        let held = w.start(0, WRITE, EXTENT + 64, 8);
        w.run_for(100_000_000);
        w.release_disk(1);
        w.attach_again(0);
        w.finish(held).ok();
        w.read(0, EXTENT + 64);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_flush_that_fails_takes_back_what_was_acknowledged() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        for round in 0..6 {
            w.write(0, round * 8);
            // Its epoch is over: the next write begins one of its own.
            w.run_seconds(1);
            // What tells that the disk is gone is late.
            w.net.set_pace(1, 0, Pace { delay: (20_000, 3_000_000), ..Pace::default() });
            let write = w.start(0, WRITE, round * 8, 8);
            w.wait("n1 has it", |w| w.is_answered(write));
            behave(w, 1, Behaviour { write_errors: 1000, ..Behaviour::default() });
            w.flush(0);
            w.wait_disk(1, DiskState::Diskless);
            behave(w, 1, Behaviour::default());
            w.net.set_pace(1, 0, Pace::default());
            w.attach_again(1);
            w.wait_disk(1, DiskState::UpToDate);
        }
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_flush_of_a_client_fails_with_its_only_disk() {
    scenario(Plan::quiet(1, 1), |w| {
        w.form();
        w.run_seconds(1);
        let opener = w.open(1);
        w.write(1, 0);
        let write = w.start(1, WRITE, 0, 8);
        w.wait("n0 has it", |w| w.is_answered(write));
        behave(w, 0, Behaviour { write_errors: 1000, ..Behaviour::default() });
        let result = w.request_and_wait(1, Op::Flush, 0);
        w.expect("the flush has failed", |_| result.is_err());
        behave(w, 0, Behaviour::default());
        w.wait_disk(0, DiskState::Diskless);
        w.attach_again(0);
        w.close(1, opener);
        w.settle();
    });
}

#[test]
fn a_disk_that_its_primary_gave_up_is_current_as_long_as_users_have_seen_nothing_else() {
    let mut plan = Plan::quiet(2, 0);
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        // The other disk does not get to what is written without this one.
        w.stall_disk(1, 60);
        w.detach(0);
        let id = w.start(0, WRITE, 8, 8);
        w.run_seconds(1);
        w.granted(1, AdminCommand::Detach { volume: V0, force: true, intentional: false });
        w.attach_again(0);
        w.finish(id).ok();
        w.write(0, 16);
        w.release_disk(1);
        w.attach_again(1);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_disk_that_is_found_to_be_current_gets_what_its_primary_still_holds() {
    let mut plan = Plan::majority(2, 0);
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.detach(0);
        // The ping before the write arrives, and nothing after it.
        w.slow(0, 1, 5 * MILLISECOND);
        let held = w.start(0, WRITE, 0, 8);
        w.run_for(8 * MILLISECOND);
        w.cut(0, 1);
        let attach = w.attach(0, 0).expect("a disk");
        w.wait("n0 has its disk", |w| w.has_answer(attach));
        w.heal(0, 1);
        w.finish(held).ok();
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_disk_is_not_current_beside_one_that_is_being_detached_and_was_newer() {
    let mut plan = Plan::majority(3, 0);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        let old = w.open(1);
        w.write(1, 0);
        w.granted(1, AdminCommand::Detach { volume: V0, force: true, intentional: false });
        w.cut_off(1, [0, 2]);
        w.wait_lost_all(1, [0, 2]);
        let new = w.open(0);
        w.write(0, 0);
        w.close(0, new);
        w.wait_secondary(0);
        // The disk of n2 takes its time to go.
        w.stall_disk(2, 60);
        let read = w.start(2, Op::Read, 0, 8);
        let command = AdminCommand::Detach { volume: V0, force: false, intentional: false };
        let detach = w.admin(2, command);
        w.wait_disk(2, DiskState::Detaching);
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.attach(1, 0);
        w.run_seconds(2);
        w.expect("the disk is behind", |w| w.disk(1) != DiskState::UpToDate);
        w.close(1, old);
        w.release_disk(2);
        w.wait("it is detached", |w| w.has_answer(detach));
        let _ = read;
        w.attach_again(2);
        w.heal(1, 0);
        w.settle();
    });
}

#[test]
fn a_disk_that_is_still_to_be_attached_may_be_the_newer_one() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        w.kill(0);
        w.wait_lost(1, 0);
        let opener = w.open(2);
        w.write(2, 0);
        w.close(2, opener);
        w.wait_secondary(2);
        w.kill(1);
        w.kill(2);
        // All nodes are there, but the disk that has the write is not.
        w.stall_disk(1, 60);
        (0..3).for_each(|n| w.start_node(n));
        w.wait_connected(0, 1);
        w.wait_connected(0, 2);
        w.run_seconds(5);
        for node in [0, 2] {
            if w.try_open(node).is_ok() {
                w.violate("expect", "a disk that lacks a write is used");
            }
        }
        w.release_disk(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.settle();
        let opener = w.open(2);
        w.read(2, 0);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_disk_that_is_back_knows_what_its_node_took_part_in_without_it() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.granted(1, AdminCommand::Detach { volume: V0, force: true, intentional: false });
        w.wait("it is known", |w| w.device(0, 1).disk == DiskState::Diskless);
        w.cut_off(2, [0, 1]);
        w.wait_lost_all(2, [0, 1]);
        w.write(0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        w.kill(0);
        w.wait_lost(1, 0);
        w.attach_again(1);
        w.heal(1, 2);
        w.run_seconds(5);
        for node in [1, 2] {
            if w.try_open(node).is_ok() {
                w.violate("expect", "a disk that lacks a write is used");
            }
        }
        w.heal(0, 2);
        w.start_node(0);
        w.settle();
    });
}

/// A Primary without quorum has writes of a generation that is still to begin, which takes quorum. The
/// disk that brings it is attached all the same.
#[test]
fn a_disk_that_brings_quorum_is_attached_beside_writes_that_wait_for_it() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        let opener = w.open(1);
        w.write(1, 0);
        let held = w.start(1, WRITE, 8, 8);
        w.cut_off(1, [0, 2]);
        w.wait_lost_all(1, [0, 2]);
        w.kill(0);
        w.stall_disk(0, 60);
        w.start_node(0);
        w.rejoin(1, [0, 2]);
        w.wait_connected(1, 0);
        w.wait_connected(1, 2);
        w.release_disk(0);
        w.finish(held).ok();
        w.write(1, 16);
        w.close(1, opener);
        w.settle();
    });
}

/// The disk beside it has not recorded the generation yet: after a crash it would look older than
/// the one that was given up, and be brought to what that has.
#[test]
fn a_disk_is_given_up_only_once_the_other_has_its_generation() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        w.open(0);
        w.write(0, 0);
        w.kill(2);
        w.wait_lost(0, 2);
        w.stall_disk(1, 3);
        // A generation starts for what n2 misses.
        w.start(0, WRITE, 8, 8);
        let seen = w.seen(1).volumes[0].current;
        w.wait("it has started", |w| w.seen(0).volumes[0].current != seen);
        let volume = VolumeNr(0);
        w.admin(0, AdminCommand::Invalidate { volume, from: Some(node_id(1)) });
        w.run_seconds(1);
        w.kill(0);
        w.kill(1);
        w.release_disk(1);
        (0..3).for_each(|n| w.start_node(n));
        w.settle();
    });
}

/// The peer-ack of a write says that a block is the same on both disks. It comes after a newer write there
/// that one of them has not.
fn with_late_peer_acks() -> Plan {
    let mut plan = Plan::quiet(2, 0);
    plan.resource.peer_ack_delay = Duration::from_secs(2);
    plan
}

fn is_peer_ack(packet: &Packet) -> bool {
    matches!(packet, Packet::PeerAck(_))
}

#[test]
fn a_failed_write_stays_missing_when_an_older_one_is_everywhere() {
    let mut plan = with_late_peer_acks();
    plan.disk.on_io_error = OnIoError::PassOn;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        let peer_acks = w.tap(0, 1, is_peer_ack);
        w.write(0, EXTENT);
        behave(w, 1, Behaviour { write_errors: 100, ..Behaviour::default() });
        // Of one sector: a disk may have written what it says it has not, but not a part of it.
        let id = w.start(0, WRITE, EXTENT, 1);
        w.wait_sent(1, 0, "that it has not", |p| matches!(p, Packet::NegAck(..)));
        behave(w, 1, Behaviour::default());
        w.expect("the first has no peer-ack yet", |w| w.tapped(peer_acks) == 0);
        w.finish(id).expect("n0 has it");
        w.run_seconds(3);
        w.expect("both have", |w| w.tapped(peer_acks) > 0);
        w.expect("n1 misses the second", |w| {
            let resource = w.nodes[1].resource.as_ref().expect("it runs");
            w.disk(1) == DiskState::Inconsistent && resource.out_of_sync_at(V0, node_id(0), EXTENT)
        });
        // Whether the disk is any good an operator has to know.
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.heal(0, 1);
        w.wait("it is repaired", |w| w.connected(0, 1) && w.disk(1) == DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_write_without_the_own_disk_stays_missing_when_an_older_one_is_everywhere() {
    scenario(with_late_peer_acks(), |w| {
        w.form();
        let opener = w.open(0);
        let peer_acks = w.tap(0, 1, is_peer_ack);
        w.write(0, EXTENT);
        w.detach(0);
        w.expect("the first has no peer-ack yet", |w| w.tapped(peer_acks) == 0);
        w.write(0, EXTENT);
        w.run_seconds(3);
        w.expect("both have", |w| w.tapped(peer_acks) > 0);
        w.expect("n0 misses the second", |w| {
            let resource = w.nodes[1].resource.as_ref().expect("it runs");
            resource.out_of_sync_at(V0, node_id(0), EXTENT)
        });
        w.attach_again(0);
        w.wait_disk(0, DiskState::UpToDate);
        w.read(0, EXTENT);
        w.close(0, opener);
        w.settle();
    });
}
