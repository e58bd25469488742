//! Hard cases 54 to 69 of semantics §14: resyncs among several nodes, and beside writes.

use std::collections::VecDeque;
use std::time::Duration;

use replication::io::AdminCommand;
use sim::plan::{Plan, Start, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::{OnNoDataAccessible, OnNoQuorum, Quorum};
use vocab::{DiskState, ReplState, SectorRange, VolumeNr};

const EXTENT: u64 = 8192;
const WRITE: Op = Op::Write { fua: false };

fn three() -> Plan {
    Plan::majority(3, 0)
}

/// Writes so much that its resync takes a while.
fn write_much(w: &mut World, node: usize, first: u64) {
    for i in 0..12 {
        let id = w.start(node, WRITE, (first + i) * EXTENT % (15 * EXTENT), 512);
        w.finish(id).ok();
    }
}

fn syncing(w: &World, node: usize, peer: usize) -> bool {
    let repl = w.view(node).map(|_| w.device(node, peer).repl);
    matches!(repl, Some(ReplState::SyncTarget | ReplState::SyncSource))
}

#[test]
fn a_chain_closes_during_a_resync_case_54() {
    let mut plan = three();
    plan.resource.quorum = Quorum::Off;
    scenario(plan, |w| {
        w.form();
        w.cut_off(0, [2, 1]);
        w.wait_lost(0, 1);
        w.wait_lost(0, 2);
        let opener = w.open(0);
        write_much(w, 0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.heal(0, 2);
        w.settle();
    });
}

#[test]
fn a_target_goes_on_from_another_that_is_done_case_55() {
    // The Primary goes on alone for a moment, which quorum would refuse.
    let mut plan = three();
    plan.resource.quorum = Quorum::Off;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.kill(1);
        write_much(w, 0, 0);
        w.disconnect(0, 2);
        w.connect(2, 0);
        w.connect(0, 2);
        w.start_node(1);
        w.wait_connected(0, 1);
        w.close(0, opener);
        w.run_for(200_000_000);
        w.kill(0);
        w.run_seconds(5);
        w.start_node(0);
        w.settle();
    });
}

#[test]
fn a_source_that_finds_newer_data_brings_it_to_its_targets_case_56() {
    let mut plan = three();
    plan.resource.quorum = Quorum::Off;
    scenario(plan, |w| {
        w.form();
        // n2 is oldest, n1 in between, n0 newest.
        let opener = w.open(0);
        w.cut(0, 2);
        w.cut(1, 2);
        w.wait_lost(0, 2);
        write_much(w, 0, 0);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        write_much(w, 0, 3);
        w.close(0, opener);
        w.wait_secondary(0);
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.run_for(30_000_000);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.heal(0, 2);
        w.settle();
    });
}

#[test]
fn two_targets_of_one_source_both_end_up_to_date_case_58() {
    scenario(three(), |w| {
        w.form();
        let opener = w.open(0);
        w.kill(1);
        w.wait_lost(0, 1);
        write_much(w, 0, 0);
        w.start_node(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.kill(2);
        w.wait_lost(0, 2);
        w.write(0, 0);
        w.kill(1);
        w.start_node(1);
        w.start_node(2);
        w.wait_disk(1, DiskState::UpToDate);
        w.wait_disk(2, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_connection_that_breaks_around_the_end_of_a_resync_case_59() {
    for delay in 0..12 {
        scenario(Plan::quiet(2, 0), |w| {
            w.form();
            w.disconnect(0, 1);
            let opener = w.open(0);
            w.write(0, 0);
            w.write(0, EXTENT);
            w.connect(0, 1);
            w.connect(1, 0);
            w.wait("the resync runs", |w| syncing(w, 1, 0) || w.disk(1) == DiskState::UpToDate);
            w.run_for(delay * 500_000);
            w.cut(0, 1);
            w.wait_lost(0, 1);
            w.wait_lost(1, 0);
            w.heal(0, 1);
            w.wait_connected(0, 1);
            w.wait_disk(1, DiskState::UpToDate);
            w.close(0, opener);
            w.settle();
        });
    }
}

#[test]
fn a_target_is_promoted_during_its_initial_sync_case_60() {
    let mut plan = Plan::quiet(2, 0);
    plan.start = Start::InitialSync;
    scenario(plan, |w| {
        w.wait_connected(0, 1);
        w.granted(0, AdminCommand::Primary { force: true });
        w.demote(0);
        w.wait("the sync runs", |w| syncing(w, 1, 0));
        let opener = w.open(1);
        w.write(1, 0);
        w.read(1, 0);
        w.read(1, 9 * EXTENT);
        w.close(1, opener);
        w.kill(0);
        w.kill(1);
        w.start_node(0);
        w.start_node(1);
        w.settle();
    });
}

#[test]
fn writes_beside_a_resync_are_never_overwritten_by_it_case_63() {
    scenario(three(), |w| {
        w.form();
        let opener = w.open(0);
        w.kill(2);
        w.wait_lost(0, 2);
        write_much(w, 0, 0);
        w.start_node(2);
        w.wait_connected(0, 2);
        for round in 0..40 {
            let id = w.start(0, WRITE, round % 12 * EXTENT + round, 16);
            w.finish(id).ok();
        }
        w.wait_disk(2, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_client_writes_while_one_server_resyncs_from_the_other_case_63() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.kill(1);
        w.wait_lost(2, 1);
        write_much(w, 2, 0);
        w.start_node(1);
        w.wait("the resync runs", |w| {
            w.nodes[1].up() && (syncing(w, 1, 0) || w.disk(1) == DiskState::UpToDate)
        });
        for round in 0..40 {
            let id = w.start(2, WRITE, round % 12 * EXTENT + round, 16);
            w.finish(id).ok();
            w.read(2, round % 12 * EXTENT + round);
        }
        w.wait_disk(1, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn blocks_set_behind_the_cursor_are_synced_too_case_64() {
    scenario(three(), |w| {
        w.form();
        let opener = w.open(0);
        w.kill(2);
        w.wait_lost(0, 2);
        write_much(w, 0, 0);
        w.start_node(2);
        w.wait("the resync runs", |w| {
            w.nodes[2].up() && (syncing(w, 2, 0) || w.disk(2) == DiskState::UpToDate)
        });
        for i in 0..8 {
            w.start(0, WRITE, i * 8, 8);
        }
        w.cut(0, 2);
        w.run_seconds(15);
        w.heal(0, 2);
        w.wait_disk(2, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_thin_resync_keeps_every_byte_case_65() {
    let mut plan = three();
    plan.disk.rs_discard_granularity = vocab::Bytes(65536);
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.kill(2);
        w.wait_lost(0, 2);
        for i in 0..6 {
            w.write(0, i * 128 + i * 8);
            let id = w.start(0, Op::Zeroes { unmap: true }, 4096 + i * 200, 160);
            w.finish(id).ok();
        }
        w.start_node(2);
        w.wait_disk(2, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_target_killed_in_the_middle_goes_on_by_its_bitmap() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.kill(1);
        w.wait_lost(0, 1);
        write_much(w, 0, 0);
        for _ in 0..4 {
            w.start_node(1);
            w.wait_connected(0, 1);
            w.run_for(60_000_000);
            w.write(0, 5 * EXTENT);
            w.power_loss(1);
            w.wait_lost(0, 1);
        }
        w.start_node(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_target_killed_in_the_middle_goes_back_with_another_source() {
    let mut plan = three();
    plan.resource.quorum = Quorum::Off;
    scenario(plan, |w| {
        w.form();
        w.cut_off(0, [1, 2]);
        w.wait_lost(0, 1);
        w.wait_lost(0, 2);
        let opener = w.open(0);
        write_much(w, 0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        w.cut(1, 2);
        w.wait_lost(1, 2);
        w.heal(0, 1);
        w.wait("the resync runs", |w| syncing(w, 1, 0));
        let left = w.device(1, 0).out_of_sync;
        w.wait("a part of it has arrived", |w| w.device(1, 0).out_of_sync < left);
        w.expect("it is not done", |w| w.disk(1) == DiskState::Inconsistent);
        w.kill(1);
        w.kill(0);
        // n2 has nothing of that, and is all that is left.
        w.heal(1, 2);
        w.start_node(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.start_node(0);
        w.heal(0, 2);
        w.settle();
    });
}

#[test]
fn a_paused_resync_goes_on_when_it_is_resumed_case_67() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        w.disconnect(0, 1);
        let opener = w.open(0);
        write_much(w, 0, 0);
        let (peer, volume) = (node_id(1), VolumeNr(0));
        w.granted(0, AdminCommand::PauseSync { peer, volume, pause: true });
        w.connect(0, 1);
        w.connect(1, 0);
        w.wait_connected(0, 1);
        w.write(0, 0);
        w.write(0, 14 * EXTENT);
        w.run_seconds(10);
        w.expect("it is paused", |w| w.device(0, 1).repl == ReplState::PausedSyncS);
        w.granted(0, AdminCommand::PauseSync { peer, volume, pause: false });
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn both_servers_of_a_client_invalidated_in_turn() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        let volume = VolumeNr(0);
        for node in [0, 1] {
            w.write(2, 0);
            w.granted(node, AdminCommand::Invalidate { volume, from: None });
            w.wait_disk(node, DiskState::Inconsistent);
            w.write(2, 8);
            w.wait_disk(node, DiskState::UpToDate);
            // The client, too, knows of a good disk before the other one is given up.
            w.wait("n2 sees it", |w| w.device(2, node).disk == DiskState::UpToDate);
        }
        w.close(2, opener);
        w.settle();
    });
}

/// Two operators, or one at the wrong node: the only good disk is not given up as well.
#[test]
fn a_source_is_not_invalidated_while_its_target_needs_it() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        let volume = VolumeNr(0);
        w.granted(0, AdminCommand::Invalidate { volume, from: None });
        w.wait("the resync runs", |w| w.device(1, 0).repl == ReplState::SyncSource);
        w.refused(1, AdminCommand::Invalidate { volume, from: None });
        w.refused(1, AdminCommand::Invalidate { volume, from: Some(node_id(0)) });
        w.wait_disk(0, DiskState::UpToDate);
        // Nobody is there who needs it.
        w.disconnect(0, 1);
        w.granted(1, AdminCommand::Invalidate { volume, from: None });
        w.expect("it is given up", |w| w.disk(1) == DiskState::Inconsistent);
        w.connect(0, 1);
        w.wait_disk(1, DiskState::UpToDate);
        w.settle();
    });
}

#[test]
fn concurrent_attaches_end_case_75() {
    scenario(three(), |w| {
        w.form();
        let opener = w.open(0);
        w.detach(1);
        w.detach(2);
        w.wait_disk(1, DiskState::Diskless);
        w.wait_disk(2, DiskState::Diskless);
        w.write(0, 0);
        w.attach(1, 0);
        w.attach(2, 0);
        w.wait_disk(1, DiskState::UpToDate);
        w.wait_disk(2, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_disk_replaced_by_a_blank_one_gets_a_full_sync_case_101() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        write_much(w, 0, 0);
        w.kill(1);
        w.replace_disk(1);
        w.start_node(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
        w.expect("it has the data", |w| {
            let range = SectorRange::new(0, 8);
            w.nodes[1].drive(0).is_some_and(|d| d.disk.tag(range.start.0) != 0)
        });
    });
}

#[test]
fn a_primary_is_resynced_by_a_disk_that_was_attached_after_its_last_write() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let (peer, volume) = (node_id(1), VolumeNr(0));
        let opener = w.open(0);
        w.detach(1);
        w.wait_disk(1, DiskState::Diskless);
        w.write(0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        w.attach_again(1);
        w.wait("the peer is UpToDate", |w| w.device(0, 1).disk == DiskState::UpToDate);
        w.granted(0, AdminCommand::PauseSync { peer, volume, pause: true });
        w.granted(0, AdminCommand::Invalidate { volume, from: None });
        w.wait_disk(0, DiskState::Inconsistent);
        // It asks for what its peer has from its own last write on.
        let opener = w.open(0);
        w.granted(0, AdminCommand::PauseSync { peer, volume, pause: false });
        w.wait_disk(0, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_target_counts_for_a_third_node_from_the_generation_of_its_disk() {
    let mut plan = three();
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        // A disk that is let go by force says nothing of what it has not flushed.
        w.flush(2);
        w.detach(2);
        let volume = VolumeNr(0);
        for node in [0, 1] {
            w.granted(node, AdminCommand::Detach { volume, force: true, intentional: false });
        }
        w.attach_again(1);
        w.write(2, 8);
        // n0 has heard of the generation of this write, but its disk has not.
        w.attach_again(2);
        w.wait_disk(2, DiskState::UpToDate);
        w.attach(0, 0);
        for peer in [1, 2] {
            w.wait("its disk is compared", |w| w.device(peer, 0).repl != ReplState::Established);
            w.expect("not all is copied", |w| w.device(peer, 0).out_of_sync < 8000);
        }
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_block_that_is_missed_while_it_is_fetched_is_fetched_again() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        let opener = w.open(1);
        w.cut(0, 1);
        w.wait_lost(1, 0);
        write_much(w, 1, 0);
        w.close(1, opener);
        w.wait_secondary(1);
        let opener = w.open(2);
        w.write(2, 0);
        // It takes the new Primary a while to learn that n0 gets data again.
        w.slow(0, 2, 200_000_000);
        w.heal(0, 1);
        w.wait("the resync runs", |w| syncing(w, 0, 1));
        for round in 0..400 {
            w.start(2, WRITE, round % 12 * EXTENT + round % 512, 8);
            w.run_for(500_000);
        }
        w.slow(0, 2, 100_000);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(2, opener);
        w.run_seconds(5);
        w.settle();
    });
}

#[test]
fn a_promoted_target_does_not_take_those_for_current_that_are_as_far_behind() {
    scenario(Plan::majority(5, 0), |w| {
        w.form();
        let apart: Vec<(usize, usize)> =
            [1, 4].iter().flat_map(|a| [0, 2, 3].iter().map(|b| (*a, *b))).collect();
        apart.iter().for_each(|(a, b)| w.cut(*a, *b));
        apart.iter().for_each(|(a, b)| w.wait_lost(*a, *b));
        let opener = w.open(0);
        write_much(w, 0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        // n1 meets n3, which has everything, beside n4, which has what n1 had.
        let (peer, volume) = (node_id(3), VolumeNr(0));
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: true });
        w.heal(1, 3);
        w.wait_connected(1, 3);
        let opener = w.open(1);
        w.write(1, 14 * EXTENT);
        for i in 0..12 {
            w.read(1, i * EXTENT);
        }
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: false });
        apart.iter().for_each(|(a, b)| w.heal(*a, *b));
        w.close(1, opener);
        w.run_seconds(5);
        w.settle();
    });
}

#[test]
fn what_nodes_said_before_a_resync_says_nothing_about_its_blocks() {
    let mut plan = Plan::quiet(4, 0);
    plan.resource.quorum = Quorum::Off;
    scenario(plan, |w| {
        w.form();
        // n1 is resynced from n2, and hears from it and from n0 that all are equal.
        let opener = w.open(2);
        w.kill(1);
        w.wait_lost(2, 1);
        w.write(2, 0);
        w.start_node(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(2, opener);
        w.wait_secondary(2);
        w.run_seconds(1);
        // n3 goes on alone, and meets n1 and n2 again, but not n0.
        [0, 1, 2].iter().for_each(|n| w.cut(*n, 3));
        [0, 1, 2].iter().for_each(|n| w.wait_lost(3, *n));
        let opener = w.open(3);
        w.write(3, 0);
        w.write(3, 64);
        w.close(3, opener);
        w.wait_secondary(3);
        w.heal(2, 3);
        w.wait_connected(2, 3);
        w.heal(1, 3);
        w.wait_connected(1, 3);
        w.run_seconds(5);
        // n1 alone can tell n0 what it misses.
        w.kill(2);
        w.kill(3);
        w.cut(0, 1);
        w.wait_lost(1, 0);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.run_seconds(5);
        w.heal(0, 3);
        w.start_node(2);
        w.start_node(3);
        w.run_seconds(5);
        w.settle();
    });
}

#[test]
fn a_target_that_dies_knows_towards_all_what_it_may_have_received() {
    for delay in [5, 20, 60, 150] {
        let mut plan = Plan::quiet(3, 0);
        plan.resource.quorum = Quorum::Off;
        scenario(plan, |w| {
            w.form();
            w.cut(0, 2);
            w.cut(1, 2);
            w.wait_lost(2, 0);
            w.wait_lost(2, 1);
            let opener = w.open(2);
            write_much(w, 2, 0);
            w.close(2, opener);
            w.wait_secondary(2);
            w.heal(1, 2);
            w.wait("the resync runs", |w| syncing(w, 1, 2));
            w.run_for(delay * 1_000_000);
            w.cut(1, 2);
            w.kill(1);
            // n0 has what n1 had before.
            w.start_node(1);
            w.wait_connected(0, 1);
            w.run_seconds(5);
            w.heal(0, 2);
            w.heal(1, 2);
            w.run_seconds(5);
            w.settle();
        });
    }
}

/// n1 brings its disk up to date from a node that n2 can not reach, and is the only one from which
/// n2 can learn that it is behind.
#[test]
fn a_disk_that_its_neighbour_has_left_behind_in_a_resync_gets_what_that_has() {
    scenario(Plan::quiet(3, 0), |w| {
        w.form();
        w.cut_off(1, [0, 2]);
        w.wait_lost_all(1, [0, 2]);
        let opener = w.open(0);
        w.write(0, 0);
        w.cut(0, 2);
        w.wait_lost_all(0, [2]);
        w.write(0, 8);
        w.heal(1, 2);
        w.wait_disk(1, DiskState::UpToDate);
        w.wait_disk(2, DiskState::UpToDate);
        w.close(0, opener);
        w.wait_secondary(0);
        w.heal(0, 1);
        w.wait("n2 has what n0 wrote last", |w| {
            w.disk(2) == DiskState::UpToDate
                && w.nodes[2].drive(0).is_some_and(|d| d.disk.tag(8) != 0)
        });
        w.heal(0, 2);
        w.settle();
    });
}

#[test]
fn a_write_that_waited_for_a_resync_belongs_to_the_generation_after_its_end() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        write_much(w, 0, 0);
        let volume = VolumeNr(0);
        w.granted(1, AdminCommand::Invalidate { volume, from: Some(node_id(0)) });
        w.wait("n1 is being resynced", |w| syncing(w, 0, 1) && syncing(w, 1, 0));
        w.stall_disk(1, 30);
        w.run_for(2_000_000);
        let ids: Vec<u64> = (0..16).map(|i| w.start(0, WRITE, i * EXTENT, 8)).collect();
        w.run_for(5_000_000);
        w.kill(1);
        for id in ids {
            w.finish(id).ok();
        }
        w.release_disk(1);
        w.start_node(1);
        w.close(0, opener);
        w.settle();
    });
}

/// Writes without a pause, to a few places again and again.
fn load(w: &mut World, node: usize, milliseconds: u64) {
    for i in 0..milliseconds / 4 {
        w.start(node, Op::Write { fua: false }, i % 16 * 8 + i % 2 * 4096, 8);
        w.run_for(4_000_000);
    }
}

/// What a node copies from one of two equal ones it counts as missing on the other. That comes to
/// an end also while all of them are being written to.
#[test]
fn resyncs_among_three_nodes_end_under_load() {
    scenario(three(), |w| {
        w.form();
        w.open(0);
        load(w, 0, 100);
        for node in [1, 2, 1] {
            w.kill(node);
            w.wait_lost(0, node);
            load(w, 0, 100);
            w.start_node(node);
            load(w, 0, 100);
        }
        w.cut(1, 2);
        load(w, 0, 1000);
        w.heal(1, 2);
        // They connect after up to two seconds, and a second after a resync one catches up.
        load(w, 0, 5_000);
        let before = w.stats.resyncs;
        load(w, 0, 3_000);
        w.expect("no resync has begun for a while", |w| w.stats.resyncs == before);
        w.run_seconds(2);
        for a in 0..3 {
            for b in (0..3).filter(|b| *b != a) {
                w.expect("no resync runs", |w| {
                    w.disk(a) == DiskState::UpToDate
                        && w.device(a, b).repl == ReplState::Established
                        && w.device(a, b).out_of_sync == 0
                });
            }
        }
    });
}

/// Writes all over two extents for so long, with up to 32 writes in flight: each block is written
/// up to twice a second.
fn dense_load(w: &mut World, node: usize, milliseconds: u64) {
    let mut random = w.now();
    let mut in_flight = VecDeque::new();
    for _ in 0..milliseconds * 4 {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        in_flight.push_back(w.start(node, WRITE, (random >> 40) % 2048 * 8, 8));
        w.run_for(250_000);
        in_flight.retain(|id| !w.is_answered(*id));
        if in_flight.len() >= 32 {
            w.wait("a write ends", |w| in_flight.iter().any(|id| w.is_answered(*id)));
        }
    }
}

/// Many of the blocks that a node copies are being written: nobody can say who has them. It is said
/// once these writes have their peer-ack. Else each resync left as much for the next one, from node
/// to node as long as the load went on.
#[test]
fn blocks_under_write_are_not_resynced_round_and_round() {
    scenario(three(), |w| {
        w.form();
        w.open(0);
        dense_load(w, 0, 300);
        w.kill(1);
        w.wait_lost(0, 1);
        dense_load(w, 0, 300);
        w.start_node(1);
        w.wait_disk(1, DiskState::UpToDate);
        // A fast resync may leave the blocks of a few writes to the next one, and that fewer.
        dense_load(w, 0, 5_000);
        let before = w.stats.resyncs;
        dense_load(w, 0, 3_000);
        w.expect("no resync begins any more", |w| w.stats.resyncs == before);
    });
}

/// n0 has a write that nobody else has; without quorum it could start no generation. n1 fetches it,
/// and becomes Primary of all while it does. That n2 follows into the new generation does not give it
/// the write.
#[test]
fn a_generation_started_during_a_resync_among_equals_hides_no_difference() {
    let mut plan = Plan::majority(4, 0);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.run_seconds(1);
        w.kill(3);
        w.wait_lost(0, 3);
        w.write(0, 0);
        w.run_seconds(1);
        w.cut_off(0, [1, 2]);
        let id = w.start(0, WRITE, EXTENT, 8);
        w.wait_lost_all(0, [1, 2]);
        w.finish(id).ok();
        w.close(0, opener);
        w.wait_disk(1, DiskState::UpToDate);
        w.wait_disk(2, DiskState::UpToDate);
        w.slow(0, 1, 20_000_000);
        w.heal(0, 1);
        w.wait("n1 is being resynced", |w| syncing(w, 1, 0));
        let opener = w.open(1);
        w.write(1, 2 * EXTENT);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(1, opener);
        w.heal(0, 2);
        w.start_node(3);
        w.settle();
    });
}

/// n1 has been made equal to n0 before that gets its last write.
#[test]
fn a_node_that_is_away_is_not_where_a_target_has_got_to_since() {
    let mut plan = three();
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        // n1 misses the first block, n0 the second.
        let opener = w.open(2);
        w.cut(1, 2);
        w.wait_lost(2, 1);
        w.write(2, 0);
        w.cut(0, 2);
        let last = w.start(2, WRITE, 64, 8);
        w.wait_lost(0, 2);
        // n1 gets the first from n0, and is away when n0 gets the second.
        w.wait("n1 has the first", |w| {
            w.nodes[1].drive(0).is_some_and(|d| d.disk.tag(0) != 0)
                && w.device(0, 1).repl == ReplState::Established
                && w.device(1, 0).repl == ReplState::Established
        });
        w.run_seconds(1);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.wait_lost(1, 0);
        w.finish(last).ok();
        w.close(2, opener);
        w.wait("nobody is Primary", |w| !w.is_primary(2));
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.wait_disk(0, DiskState::UpToDate);
        w.run_seconds(1);
        // n2 alone brings it the second.
        w.kill(0);
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.wait_disk(1, DiskState::UpToDate);
        w.run_seconds(1);
        w.heal(0, 1);
        w.start_node(0);
        w.settle();
    });
}

/// What a peer-ack says of a write is old when it arrives late: meanwhile n1 has agreed on a resync
/// from n0, which has a newer write to the same block.
#[test]
fn a_late_peer_ack_does_not_take_a_block_out_of_a_resync() {
    scenario(three(), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 8);
        w.run_for(20_000_000);
        w.cut(1, 2);
        w.run_for(150_000_000);
        w.granted(2, AdminCommand::Disconnect { peer: node_id(1), force: true });
        w.write(2, 8);
        w.run_for(150_000_000);
        w.stall_disk(1, 30);
        w.close(2, opener);
        w.wait("n1 is to be resynced", |w| w.device(1, 0).repl == ReplState::SyncTarget);
        w.heal(1, 2);
        w.run_for(500_000_000);
        w.release_disk(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.connect(2, 1);
        w.settle();
    });
}

#[test]
fn what_a_peer_ack_counts_as_missing_after_the_resync_that_brought_it_is_settled() {
    let mut plan = three();
    plan.resource.peer_ack_delay = Duration::from_secs(10);
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.cut_off(2, [0, 1]);
        w.wait_lost_all(2, [0, 1]);
        w.write(0, 8);
        w.rejoin(2, [0, 1]);
        w.wait_disk(2, DiskState::UpToDate);
        w.run_seconds(12);
        w.wait("what n2 lacked is settled", |w| w.device(1, 2).out_of_sync == 0);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_target_whose_last_source_is_lost_asks_another_one() {
    scenario(three(), |w| {
        w.form();
        let opener = w.open(0);
        w.kill(2);
        w.wait_lost(0, 2);
        write_much(w, 0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        // One of them has brought it everything; the other is to say so, too.
        w.slow(0, 2, 100_000_000);
        w.slow(1, 2, 100_000_000);
        w.start_node(2);
        w.wait_disk(2, DiskState::Inconsistent);
        let rest = |w: &World, done, other| {
            let both = w.connected(2, done) && w.connected(2, other);
            let repl = |peer| w.device(2, peer).repl;
            both && repl(done) == ReplState::Established && repl(other).is_target()
        };
        w.wait("n2 gets to its second source", |w| {
            w.disk(2) == DiskState::UpToDate || rest(w, 0, 1) || rest(w, 1, 0)
        });
        let second = if rest(w, 0, 1) { 1 } else { 0 };
        w.cut(second, 2);
        w.wait_lost(2, second);
        w.wait_disk(2, DiskState::UpToDate);
        w.heal(second, 2);
        w.settle();
    });
}

/// A target is told of a block that it misses, gets it, and loses its power with what it had not
/// flushed: it still knows what it misses.
#[test]
fn a_target_that_loses_its_power_knows_what_it_was_told_to_miss() {
    let mut plan = Plan::quiet(2, 0);
    plan.volatile_cache = true;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(1);
        for round in 0..8 {
            w.cut(0, 1);
            w.wait_lost(1, 0);
            for i in 0..20 {
                let id = w.start(1, WRITE, 16_384 + i * 512, 512);
                w.finish(id).ok();
            }
            w.heal(0, 1);
            // While the bitmaps are exchanged the source tells of what is written.
            let mut sector = round * 1024;
            w.wait("they meet", |w| w.connected(0, 1));
            for _ in 0..40 {
                w.start(1, WRITE, sector, 8);
                sector += 8;
                w.run_for(100_000);
            }
            w.run_for(round * 4_000_000);
            w.power_loss(0);
            w.start_node(0);
            w.wait("it is current", |w| w.disk(0) == DiskState::UpToDate);
        }
        w.close(1, opener);
        w.settle();
    });
}

/// A disk hangs with blocks of a resync that is over. The same blocks are written by the Primary: by
/// then, or once the next resync runs.
fn write_over_what_a_hanging_disk_has(w: &mut World, connected: bool) {
    w.form();
    let opener = w.open(0);
    w.cut(0, 1);
    w.wait_lost(0, 1);
    write_much(w, 0, 0);
    w.heal(0, 1);
    w.wait("the resync runs", |w| syncing(w, 1, 0) && w.device(1, 0).out_of_sync < 6000);
    w.stall_disk(1, 30);
    w.run_for(5_000_000);
    w.release_disk(1);
    w.cut(0, 1);
    w.wait_lost(0, 1);
    if connected {
        w.heal(0, 1);
        w.wait("the resync runs", |w| syncing(w, 1, 0));
        w.run_seconds(1);
    }
    write_much(w, 0, 0);
    w.heal(0, 1);
    w.run_seconds(30);
    w.close(0, opener);
    w.settle();
}

#[test]
fn what_a_resync_brought_that_is_over_is_not_written_over_newer_data() {
    scenario(Plan::quiet(2, 0), |w| write_over_what_a_hanging_disk_has(w, false));
}

#[test]
fn the_source_of_a_resync_writes_after_what_an_earlier_one_has_brought() {
    scenario(Plan::quiet(2, 0), |w| write_over_what_a_hanging_disk_has(w, true));
}

/// A write comes to a node that has no disk, and the news of that when it has one again.
#[test]
fn a_write_that_is_refused_late_says_nothing_about_a_disk_that_was_attached_since() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.run_for(5_000_000);
        // Data to n0 is held up, what is said about the attach is not.
        w.slow(2, 0, 300_000_000);
        let id = w.start(2, WRITE, 0, 8);
        w.run_for(2_000_000);
        w.slow(2, 0, 100_000);
        let volume = VolumeNr(0);
        w.granted(0, AdminCommand::Detach { volume, force: true, intentional: false });
        w.run_for(20_000_000);
        w.attach_again(0);
        w.finish(id).ok();
        w.wait_disk(0, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}
