//! The everyday life of a resource, one scenario each.

use replication::io::AdminCommand;
use sim::plan::{Plan, Start};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::{NetOptions, OnNoQuorum, Protocol, Quorum};
use vocab::{ConnState, DiskState, ReplState, SectorRange, VolumeNr};

const V0: VolumeNr = VolumeNr(0);
/// Sectors of an activity log extent.
const EXTENT: u64 = 8192;

fn with_quorum(diskful: usize, diskless: usize) -> Plan {
    let mut plan = Plan::quiet(diskful, diskless);
    plan.resource.quorum = Quorum::Majority;
    plan
}

#[test]
fn two_fresh_nodes_connect_and_skip_the_initial_sync() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        w.expect("nothing was resynced", |w| w.stats.resyncs == 0);
        w.settle();
    });
}

#[test]
fn a_forced_promotion_starts_the_initial_sync_of_everyone_else() {
    let mut plan = Plan::quiet(3, 0);
    plan.start = Start::InitialSync;
    scenario(plan, |w| {
        w.wait("all are connected", |w| (1..3).all(|n| w.connected(0, n)) && w.connected(1, 2));
        w.granted(0, AdminCommand::Primary { force: true });
        w.demote(0);
        w.settle();
    });
}

#[test]
fn writes_reach_the_peer_before_they_are_acknowledged() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        for i in 0..20 {
            w.write(0, i * 100);
            w.read(0, i * 100);
        }
        w.request_and_wait(0, Op::Write { fua: true }, 7).ok();
        w.flush(0);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn overlapping_writes_in_flight_end_equal_on_all_replicas() {
    scenario(Plan::quiet(3, 0), |w| {
        w.form();
        let opener = w.open(0);
        let ids: Vec<u64> =
            (0..30).map(|i| w.start(0, Op::Write { fua: false }, i % 5 * 3, 8)).collect();
        for id in ids {
            w.finish(id).ok();
        }
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn what_was_written_while_disconnected_is_resynced() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.disconnect(0, 1);
        w.wait_lost(1, 0);
        for i in 0..10 {
            w.write(0, i * EXTENT);
        }
        w.connect(0, 1);
        w.connect(1, 0);
        w.wait_connected(0, 1);
        w.write(0, 3 * EXTENT);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_cut_link_is_noticed_and_heals_by_resync() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.cut(0, 1);
        let id = w.start(0, Op::Write { fua: false }, 8, 8);
        w.wait_lost(0, 1);
        w.finish(id).ok();
        w.write(0, 2 * EXTENT);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_diskless_client_reads_and_writes_through_its_peers() {
    scenario(Plan::quiet(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        for i in 0..10 {
            w.write(2, i * 50);
            w.read(2, i * 50);
        }
        w.flush(2);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_diskless_client_survives_the_loss_of_one_server() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.kill(0);
        w.write(2, 8);
        w.read(2, 0);
        w.start_node(0);
        w.wait_connected(0, 2);
        w.wait_disk(0, DiskState::UpToDate);
        w.read(2, 8);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn after_a_primary_is_killed_another_node_takes_over_with_every_acknowledged_write() {
    scenario(with_quorum(3, 0), |w| {
        w.form();
        w.open(0);
        for i in 0..8 {
            w.write(0, i * 8);
        }
        let _in_flight = w.start(0, Op::Write { fua: false }, 4, 8);
        w.kill(0);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        w.wait("n1 can be opened", |w| w.disk(1) == DiskState::UpToDate);
        let opener = w.open(1);
        for i in 0..8 {
            w.read(1, i * 8);
        }
        w.write(1, 8);
        w.start_node(0);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(1, opener);
        w.settle();
    });
}

#[test]
fn after_a_power_loss_of_the_primary_its_unflushed_writes_come_back_from_the_peers() {
    scenario(with_quorum(3, 0), |w| {
        w.form();
        w.open(0);
        for i in 0..12 {
            w.write(0, i * EXTENT);
        }
        w.power_loss(0);
        w.start_node(0);
        w.wait_disk(0, DiskState::UpToDate);
        let opener = w.open(2);
        for i in 0..12 {
            w.read(2, i * EXTENT);
        }
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_flushed_write_survives_a_power_loss_of_all_nodes() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        w.open(0);
        w.write(0, 0);
        w.request_and_wait(0, Op::Write { fua: true }, 3 * EXTENT).ok();
        w.flush(0);
        w.write(0, EXTENT);
        w.power_loss(0);
        w.power_loss(1);
        w.start_node(0);
        w.start_node(1);
        w.wait_connected(0, 1);
        w.wait_disk(0, DiskState::UpToDate);
        let opener = w.open(0);
        w.read(0, 0);
        w.read(0, 3 * EXTENT);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn without_quorum_io_waits_and_goes_on_when_it_returns() {
    scenario(with_quorum(3, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.cut_off(0, [1, 2]);
        let id = w.start(0, Op::Write { fua: false }, 8, 8);
        w.wait("I/O is suspended", |w| w.seen(0).suspended.quorum);
        w.run_seconds(20);
        w.expect("the write waits", |w| !w.is_answered(id));
        w.rejoin(0, [1, 2]);
        w.finish(id).ok();
        w.wait("I/O goes on", |w| !w.seen(0).suspended.any());
        w.write(0, 16);
        w.close(0, opener);
        w.settle();
    });
}

/// The end of a snapshot is no operator's order to go on without quorum.
#[test]
fn what_was_frozen_for_a_snapshot_goes_on_only_if_nothing_else_holds_it() {
    scenario(with_quorum(3, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.granted(0, AdminCommand::SuspendIo);
        w.granted(0, AdminCommand::Thaw);
        w.expect("nothing is suspended", |w| !w.seen(0).suspended.any());
        w.write(0, 8);
        w.granted(0, AdminCommand::SuspendIo);
        w.cut_off(0, [1, 2]);
        w.wait("quorum is lost, too", |w| w.seen(0).suspended.quorum && w.seen(0).suspended.user);
        let id = w.start(0, Op::Write { fua: false }, 16, 8);
        w.granted(0, AdminCommand::Thaw);
        w.run_seconds(5);
        w.expect("the freeze is over", |w| !w.seen(0).suspended.user);
        w.expect("the write waits", |w| w.seen(0).suspended.quorum && !w.is_answered(id));
        w.rejoin(0, [1, 2]);
        w.finish(id).ok();
        w.write(0, 24);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn without_quorum_io_fails_if_it_is_so_configured() {
    let mut plan = with_quorum(3, 0);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.cut_off(0, [1, 2]);
        w.write_fails(0, 8);
        w.rejoin(0, [1, 2]);
        w.wait("quorum is back", |w| w.seen(0).volumes[0].quorum);
        w.write(0, 16);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn an_isolated_primary_is_replaced_and_comes_back_as_secondary() {
    let mut plan = with_quorum(3, 0);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        let old = w.open(0);
        w.write(0, 0);
        w.cut_off(0, [1, 2]);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        w.wait_disk(1, DiskState::UpToDate);
        let opener = w.open(1);
        w.write(1, 0);
        w.wait_lost(0, 1);
        w.wait_lost(0, 2);
        w.write_fails(0, 0);
        w.close(0, old);
        w.rejoin(0, [1, 2]);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(1, opener);
        w.settle();
    });
}

#[test]
fn a_verify_finds_what_differs_and_changes_nothing() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        // A disk rots behind everybody's back: 12 sectors in two 4 KiB blocks.
        let rot = SectorRange::new(5 * EXTENT, 12);
        w.nodes[1].drives[0].as_mut().expect("a disk").disk.fill(rot, 999_999);
        let command = AdminCommand::Verify {
            peer: sim::plan::node_id(1),
            volume: V0,
            start: Some(0),
            stop: None,
        };
        w.granted(0, command);
        w.wait("the verify ends", |w| {
            w.device(0, 1).repl == ReplState::Established && w.device(0, 1).out_of_sync > 0
        });
        w.run_seconds(1);
        w.expect("both count at least two blocks", |w| {
            let count = w.device(0, 1).out_of_sync;
            (2..=16).contains(&count) && w.device(1, 0).out_of_sync == count
        });
        w.expect("the data is as it was", |w| {
            w.nodes[1].drive(0).is_some_and(|d| d.disk.tag(5 * EXTENT) == 999_999)
        });
    });
}

#[test]
fn a_verify_beside_writes_reports_nothing() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        let command = AdminCommand::Verify {
            peer: sim::plan::node_id(1),
            volume: V0,
            start: Some(0),
            stop: None,
        };
        w.granted(0, command);
        for i in 0..40 {
            w.write(0, i * 800);
        }
        w.wait("the verify ends", |w| w.device(0, 1).repl == ReplState::Established);
        w.expect("nothing is out of sync", |w| w.device(0, 1).out_of_sync == 0);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_verify_uses_an_algorithm_that_was_set_while_connected_case_103() {
    let mut plan = Plan::quiet(2, 0);
    plan.net.verify_alg = String::new();
    let net = NetOptions { verify_alg: "crc32c".to_owned(), ..plan.net.clone() };
    scenario(plan, |w| {
        w.form();
        let peer = sim::plan::node_id(1);
        let verify = AdminCommand::Verify { peer, volume: V0, start: Some(0), stop: None };
        w.refused(0, verify.clone());
        w.granted(0, AdminCommand::NetOptions(peer, Box::new(net.clone())));
        w.refused(0, verify.clone());
        w.granted(1, AdminCommand::NetOptions(sim::plan::node_id(0), Box::new(net.clone())));
        w.run_seconds(1);
        w.granted(0, verify);
        w.wait("the verify ends", |w| w.device(0, 1).repl == ReplState::Established);
        w.settle();
    });
}

#[test]
fn a_split_brain_is_seen_by_both_and_resolved_by_hand_case_73() {
    let mut plan = Plan::quiet(2, 0);
    plan.workload.nodes.clear(); // One side's writes are to be thrown away.
    scenario(plan, |w| {
        w.form();
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.wait_lost(1, 0);
        let a = w.open(0);
        let b = w.open(1);
        w.write(0, 0);
        w.write(1, 8);
        w.close(0, a);
        w.close(1, b);
        w.heal(0, 1);
        w.wait("both are StandAlone", |w| {
            [(0, 1), (1, 0)].iter().all(|(a, b)| {
                w.seen(*a).peers[*b].as_ref().is_some_and(|p| p.conn == ConnState::StandAlone)
            })
        });
        let discard = AdminCommand::Connect { peer: sim::plan::node_id(0), discard_my_data: true };
        w.granted(1, discard);
        w.connect(0, 1);
        w.wait_disk(1, DiskState::UpToDate);
        w.settle();
        w.expect("n0 has won", |w| w.nodes[1].drive(0).is_some_and(|d| d.disk.tag(8) == 0));
    });
}

/// A client wrote to n1 alone, and later to n0 alone, whose node was connected to that of n1 all the
/// while. The disk of n1 is refused as often as it is attached; who gives in is said when connecting.
#[test]
fn a_split_brain_that_an_attach_finds_is_resolved_by_hand() {
    let mut plan = Plan::quiet(2, 1);
    plan.workload.nodes = vec![2];
    scenario(plan, |w| {
        w.form();
        w.kill(0);
        w.wait_lost(2, 0);
        w.open(2);
        w.write(2, 0);
        w.kill(2);
        w.kill(1);
        w.stall_disk(1, 60);
        [0, 1, 2].into_iter().for_each(|node| w.start_node(node));
        w.wait_connected(0, 1);
        w.wait_connected(0, 2);
        w.wait_connected(1, 2);
        let opener = w.open(2);
        w.write(2, 8);
        w.close(2, opener);
        w.wait_disk(1, DiskState::Diskless);
        w.wait_disk_free(1);
        w.attach(1, 0);
        w.wait_disk(1, DiskState::Diskless);
        w.wait_disk_free(1);
        w.expect("they are connected", |w| w.connected(0, 1));
        let peer = sim::plan::node_id(0);
        w.granted(1, AdminCommand::Disconnect { peer, force: true });
        w.attach_again(1);
        w.granted(1, AdminCommand::Connect { peer, discard_my_data: true });
        w.wait_disk(1, DiskState::UpToDate);
        w.settle();
        w.expect("n0 has won", |w| w.nodes[1].drive(0).is_some_and(|d| d.disk.tag(0) == 0));
    });
}

#[test]
fn a_detached_node_serves_from_its_peer_and_is_resynced_when_attached() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.detach(0);
        w.wait_disk(0, DiskState::Diskless);
        w.read(0, 0);
        w.write(0, 8);
        w.attach_again(0);
        w.wait_disk(0, DiskState::UpToDate);
        w.read(0, 8);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn the_last_up_to_date_disk_of_a_primary_can_not_be_detached() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.disconnect(0, 1);
        let command = AdminCommand::Detach { volume: V0, force: false, intentional: false };
        w.refused(0, command);
        w.write(0, 8);
        w.close(0, opener);
        w.connect(0, 1);
        w.connect(1, 0);
        w.settle();
    });
}

#[test]
fn a_secondary_that_restarts_is_brought_up_to_date() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        for i in 0..10 {
            w.write(0, i * EXTENT);
        }
        w.kill(1);
        for i in 5..15 {
            w.write(0, i * EXTENT);
        }
        w.start_node(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_secondary_that_loses_power_gets_back_what_its_cache_lost() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        let ids: Vec<u64> =
            (0..20).map(|i| w.start(0, Op::Write { fua: false }, i * EXTENT / 2, 16)).collect();
        w.run_for(2_000_000);
        w.power_loss(1);
        w.start_node(1);
        for id in ids {
            w.finish(id).ok();
        }
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_primary_that_dies_alone_serves_its_writes_after_it_restarts() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let first = w.open(0);
        w.write(0, 0);
        w.kill(1);
        for i in 0..12 {
            w.write(0, i * EXTENT + 64);
        }
        w.close(0, first);
        w.open(0);
        w.write(0, 32);
        w.kill(0);
        w.start_node(0);
        w.wait_disk(0, DiskState::UpToDate);
        let opener = w.open(0);
        w.read(0, 32);
        w.start_node(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn suspended_io_leaves_all_replicas_equal_case_96() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        let ids: Vec<u64> =
            (0..10).map(|i| w.start(0, Op::Write { fua: false }, i * 64, 8)).collect();
        w.granted(0, AdminCommand::SuspendIo);
        let later = w.start(0, Op::Write { fua: false }, 0, 8);
        w.run_seconds(5);
        w.expect("new writes wait", |w| !w.is_answered(later));
        w.expect("snapshots are equal", |w| {
            let (a, b) = (w.nodes[0].drive(0), w.nodes[1].drive(0));
            a.zip(b).is_some_and(|(a, b)| a.disk.first_difference(&b.disk, 0).is_none())
        });
        w.granted(0, AdminCommand::ResumeIo);
        for id in ids.into_iter().chain([later]) {
            w.finish(id).ok();
        }
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn an_invalidated_secondary_is_resynced_completely() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.granted(1, AdminCommand::Invalidate { volume: V0, from: None });
        w.write(0, 8);
        w.wait_disk(1, DiskState::Inconsistent);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn writes_to_more_extents_than_the_activity_log_holds_go_through_case_105() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        let ids: Vec<u64> =
            (0..64).map(|i| w.start(0, Op::Write { fua: false }, i % 16 * EXTENT + i, 8)).collect();
        for id in ids {
            w.finish(id).ok();
        }
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_write_across_an_extent_boundary_needs_both_extents() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        for i in 1..16 {
            let id = w.start(0, Op::Write { fua: false }, i * EXTENT - 4, 8);
            w.finish(id).ok();
        }
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn discards_and_zeroes_are_replicated() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        for i in 0..8 {
            w.write(0, i * 8);
        }
        for (op, sector) in
            [(Op::Discard, 0), (Op::Zeroes { unmap: true }, 16), (Op::Zeroes { unmap: false }, 32)]
        {
            let id = w.start(0, op, sector, 16);
            w.finish(id).ok();
        }
        w.read(0, 16);
        w.write(0, 20);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn only_one_of_two_nodes_can_be_opened_for_writing() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.expect("n0 is Primary", |w| w.is_primary(0));
        if w.try_open(1).is_ok() {
            w.violate("expect", "n1 was opened beside n0");
        }
        w.close(0, opener);
        let other = w.open(1);
        w.write(1, 0);
        w.close(1, other);
        w.settle();
    });
}

#[test]
fn an_explicit_primary_stays_until_it_is_demoted() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        w.promote(0);
        let opener = w.open(0);
        w.write(0, 0);
        w.refused(0, AdminCommand::Secondary { force: false });
        w.close(0, opener);
        w.run_seconds(5);
        w.expect("n0 is still Primary", |w| w.is_primary(0));
        w.refused(1, AdminCommand::Primary { force: false });
        w.demote(0);
        w.promote(1);
        w.demote(1);
        w.settle();
    });
}

#[test]
fn the_write_stream_of_a_node_goes_on_beyond_what_it_wrote_before_a_restart() {
    let position = |w: &World| w.nodes[0].resource.as_ref().expect("n0 runs").dagtag();
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        (0..16).for_each(|i| w.write(0, i * 8));
        w.close(0, opener);
        let before = position(w);
        w.kill(0);
        w.start_node(0);
        w.expect("nobody waits for what was never written", |w| position(w) > before);
        w.settle();
    });
}

/// Without quorum the data of the one node that ever writes is what counts.
fn at_home(node: usize, protocol: Protocol) -> Plan {
    let mut plan = Plan::quiet(2, 0);
    plan.net.protocol = protocol;
    plan.workload.nodes = vec![node];
    plan
}

#[test]
fn a_write_that_a_lost_peer_may_lack_belongs_to_a_new_generation_although_it_is_reported_case_99() {
    scenario(at_home(1, Protocol::A), |w| {
        w.form();
        let opener = w.open(1);
        w.write(1, 0);
        w.write(1, EXTENT);
        w.cut(0, 1);
        w.write(1, 0);
        w.kill(0);
        w.wait_lost(1, 0);
        w.close(1, opener);
        w.wait_secondary(1);
        w.run_seconds(1);
        w.kill(1);
        w.heal(0, 1);
        w.start_node(0);
        w.start_node(1);
        w.settle();
    });
}

#[test]
fn a_source_that_never_heard_of_the_end_of_a_resync_writes_in_a_new_generation() {
    scenario(at_home(1, Protocol::C), |w| {
        w.form();
        let opener = w.open(1);
        w.cut(0, 1);
        w.wait_lost(1, 0);
        w.write(1, 0);
        w.close(1, opener);
        w.heal(0, 1);
        w.wait_disk(0, DiskState::Inconsistent);
        w.wait_disk(0, DiskState::UpToDate);
        w.kill(1);
        w.kill(0);
        w.start_node(1);
        let opener = w.open(1);
        w.write(1, EXTENT);
        w.close(1, opener);
        w.wait_secondary(1);
        w.start_node(0);
        w.settle();
    });
}

#[test]
fn a_crashed_primary_that_was_promoted_and_wrote_nothing_is_still_the_one_that_crashed() {
    scenario(at_home(1, Protocol::B), |w| {
        w.form();
        w.open(1);
        w.write(1, 0);
        // Received, and not on the disk.
        w.stall_disk(0, 30);
        w.write(1, EXTENT);
        w.kill(0);
        w.kill(1);
        w.release_disk(0);
        w.start_node(1);
        let opener = w.open(1);
        w.close(1, opener);
        w.wait_secondary(1);
        w.start_node(0);
        w.settle();
    });
}

#[test]
fn who_crashed_in_a_generation_that_it_has_left_has_not_crashed_in_the_next_one() {
    let mut plan = Plan::quiet(3, 0);
    plan.net.protocol = Protocol::B;
    scenario(plan, |w| {
        w.form();
        w.open(2);
        w.write(2, 0);
        w.kill(2);
        w.wait_lost(0, 2);
        w.wait_lost(1, 2);
        w.open(0);
        w.write(0, 2 * EXTENT);
        // Received, and not on the disk.
        w.stall_disk(1, 30);
        w.write(0, EXTENT);
        w.kill(1);
        w.kill(0);
        w.release_disk(1);
        w.start_node(2);
        w.start_node(1);
        w.wait_connected(1, 2);
        w.wait("n2 has caught up", |w| w.disk(2) > DiskState::Inconsistent);
        w.run_for(100_000_000);
        w.kill(1);
        w.start_node(0);
        w.wait_connected(0, 2);
        w.run_seconds(1);
        w.start_node(1);
        w.settle();
    });
}

#[test]
fn a_flush_on_the_next_primary_covers_what_the_one_before_had_in_its_cache() {
    let mut plan = Plan::quiet(2, 0);
    plan.volatile_cache = true;
    scenario(plan, |w| {
        w.form();
        w.promote(0);
        w.write(0, 0);
        w.run_seconds(1);
        // Nothing that the demotion records gets to the disk before the flush of the next one.
        w.stall_disk(0, 3);
        w.demote(0);
        w.promote(1);
        w.flush(1);
        w.demote(1);
        w.settle();
    });
}

#[test]
fn what_is_held_on_one_volume_does_not_keep_a_peer_out_for_another() {
    let mut plan = Plan::majority(2, 0);
    plan.volumes = 2;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.cut(0, 1);
        let held = w.start(0, Op::Write { fua: false }, 8, 8);
        w.wait_lost_all(0, [1]);
        // The second volume is attached anew, and has forgotten that it lost its quorum.
        let volume = VolumeNr(1);
        w.granted(0, AdminCommand::Detach { volume, force: true, intentional: false });
        w.run_seconds(1);
        w.attach(0, 1);
        w.wait("it is attached", |w| w.seen(0).volumes[1].disk >= DiskState::Consistent);
        w.kill(1);
        w.start_node(1);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.finish(held).expect("n1 is back");
        w.close(0, opener);
        w.settle();
    });
}

/// Two wishes to suspend and two to resume cross each other. No write stays behind.
#[test]
fn suspends_and_resumes_that_race_leave_no_write_behind_case_96() {
    for nodes in [2, 3] {
        scenario(Plan::quiet(nodes, 0), |w| {
            w.form();
            let opener = w.open(0);
            for round in 0..4 {
                let mut ids = Vec::new();
                let mut wishes = Vec::new();
                for (i, command) in [
                    AdminCommand::SuspendIo,
                    AdminCommand::ResumeIo,
                    AdminCommand::SuspendIo,
                    AdminCommand::SuspendIo,
                    AdminCommand::ResumeIo,
                    AdminCommand::ResumeIo,
                ]
                .into_iter()
                .enumerate()
                {
                    ids.push(w.start(0, Op::Write { fua: false }, (i as u64 + round) * 64, 8));
                    wishes.push(w.admin(0, command));
                    w.run_for(round * 300_000);
                }
                w.wait("all wishes are answered", |w| wishes.iter().all(|id| w.has_answer(*id)));
                w.wait("nothing is suspended", |w| !w.seen(0).suspended.any());
                for id in ids {
                    w.finish(id).ok();
                }
            }
            w.close(0, opener);
            w.settle();
        });
    }
}

/// With `rr-conflict retry-connect` the two go on trying, and nothing is thrown away meanwhile.
#[test]
fn a_split_brain_with_retry_connect_loses_nothing_case_73() {
    let mut plan = Plan::quiet(2, 0);
    plan.net.rr_conflict = vocab::options::RrConflict::RetryConnect;
    plan.workload.nodes.clear(); // One side's writes are to be thrown away.
    scenario(plan, |w| {
        w.form();
        w.cut(0, 1);
        w.wait_lost_all(0, [1]);
        for node in [0, 1] {
            w.write_after_open(node, 8 * node as u64);
        }
        let mine = [0, 1].map(|n| w.nodes[n].drive(0).map_or(0, |d| d.disk.tag(8 * n as u64)));
        w.heal(0, 1);
        w.run_seconds(60);
        w.expect("they are not connected", |w| !w.connected(0, 1));
        w.expect("each has what it wrote, and not more", |w| {
            [0, 1].iter().all(|n| {
                let disk = &w.nodes[*n].drive(0).expect("a disk").disk;
                disk.tag(8 * *n as u64) == mine[*n] && disk.tag(8 * (1 - *n) as u64) == 0
            })
        });
        for (a, b) in [(0, 1), (1, 0)] {
            let peer = sim::plan::node_id(b);
            w.ask(a, AdminCommand::Disconnect { peer, force: true }).ok();
        }
        let discard = AdminCommand::Connect { peer: sim::plan::node_id(0), discard_my_data: true };
        w.granted(1, discard);
        w.connect(0, 1);
        w.wait("n1 follows", |w| w.connected(0, 1) && w.disk(1) == DiskState::UpToDate);
        w.settle();
        w.expect("n0 has won", |w| w.nodes[1].drive(0).is_some_and(|d| d.disk.tag(8) == 0));
    });
}

/// Under protocol A a Primary dies with more than its peer has got, and in the same generation.
#[test]
fn a_crashed_primary_of_protocol_a_brings_what_the_other_lacks_case_71() {
    for power in [false, true] {
        scenario(at_home(0, Protocol::A), |w| {
            w.form();
            w.open(0);
            w.write(0, 0);
            w.slow(0, 1, 50_000_000);
            for i in 0..8 {
                w.start(0, Op::Write { fua: false }, i * 8, 8);
            }
            w.run_for(2_000_000);
            if power {
                w.power_loss(0);
            } else {
                w.kill(0);
            }
            w.wait_lost(1, 0);
            w.start_node(0);
            w.wait_connected(0, 1);
            w.settle();
        });
    }
}

/// The node id is that of n1, and the disk is n2's.
#[test]
fn a_disk_of_another_node_is_not_attached_case_101() {
    scenario(with_quorum(3, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.kill(1);
        w.wait_lost(0, 1);
        w.write(0, 8);
        w.run_seconds(2);
        let other = w.nodes[2].drive(0).expect("a disk").disk.clone();
        let drive = w.nodes[1].drives[0].as_mut().expect("a disk");
        let own = std::mem::replace(&mut drive.disk, other);
        w.start_node(1);
        w.wait_connected(0, 1);
        w.run_seconds(10);
        w.expect("the disk is not used", |w| w.disk(1) == DiskState::Diskless);
        w.write(0, 16);
        w.kill(1);
        w.nodes[1].drives[0].as_mut().expect("a disk").disk = own;
        w.wait_lost(0, 1);
        w.start_node(1);
        w.wait("n1 is back", |w| w.connected(0, 1) && w.disk(1) == DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}
