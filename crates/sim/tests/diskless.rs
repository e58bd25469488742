//! Hard cases 1 to 14 of semantics §14: a Primary without a disk, and day 0.

use codec::wire::Packet;
use replication::io::AdminCommand;
use sim::plan::{MILLISECOND, Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::{
    OnNoDataAccessible, OnNoQuorum, OnSuspendedPrimaryOutdated, Quorum, RrConflict,
};
use vocab::{DiskState, GenUuid, ReplState, VolumeNr};

const WRITE: Op = Op::Write { fua: false };

fn current(w: &World, node: usize) -> GenUuid {
    w.seen(node).volumes[0].current
}

fn plan(diskful: usize, diskless: usize) -> Plan {
    let mut plan = Plan::quiet(diskful, diskless);
    plan.workload.nodes = vec![diskful];
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    plan
}

fn with_quorum(diskful: usize, diskless: usize) -> Plan {
    let mut plan = plan(diskful, diskless);
    plan.resource.quorum = Quorum::Majority;
    plan
}

#[test]
fn a_disk_with_an_old_generation_is_not_up_to_date_for_a_diskless_primary_case_1() {
    scenario(plan(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.detach(0);
        w.wait_disk(0, DiskState::Diskless);
        w.write(2, 8);
        let detach = AdminCommand::Detach { volume: VolumeNr(0), force: true, intentional: false };
        w.ask(1, detach).ok();
        w.wait_disk(1, DiskState::Diskless);
        let id = w.start(2, WRITE, 16, 8);
        w.attach(0, 0);
        w.run_seconds(20);
        w.expect("the old disk does not serve", |w| {
            w.disk(0) != DiskState::UpToDate && !w.is_answered(id)
        });
        w.attach_again(1);
        w.finish(id).ok();
        w.read(2, 8);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_diskless_primary_starts_a_new_generation_for_each_absence_case_11() {
    scenario(plan(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.kill(0);
        w.wait_lost(2, 0);
        w.write(2, 8);
        let after_first = current(w, 1);
        w.write(2, 16);
        w.write(2, 24);
        w.expect("one absence is one generation", |w| current(w, 1) == after_first);
        w.start_node(0);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn the_first_write_of_a_restarted_diskless_primary_starts_a_generation_case_9() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        let first = w.open(2);
        w.write(2, 0);
        w.kill(0);
        w.wait_lost(1, 0);
        w.close(2, first);
        w.wait_secondary(2);
        let before = current(w, 1);
        w.kill(2);
        w.start_node(2);
        w.wait_connected(1, 2);
        w.start_node(0);
        w.settle();
        w.cut_off(0, [2, 1]);
        w.wait_lost(1, 0);
        let opener = w.open(2);
        w.write(2, 8);
        w.expect("the generation is new", |w| !current(w, 1).same(before));
        w.rejoin(0, [2, 1]);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn two_clients_that_take_turns_leave_no_doubt_case_10() {
    scenario(with_quorum(2, 2), |w| {
        w.form();
        for round in 0..3 {
            for client in [2, 3] {
                let opener = w.open(client);
                w.write(client, round * 16 + client as u64);
                w.close(client, opener);
                w.wait("the client is Secondary", |w| !w.is_primary(client));
            }
        }
        w.settle();
    });
}

#[test]
fn a_diskless_primary_that_loses_both_servers_in_turn_confirms_nothing_early_case_5() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.cut_off(0, [2, 1]);
        let ids: Vec<u64> = (0..4).map(|i| w.start(2, WRITE, i * 8, 8)).collect();
        w.run_for(50_000_000);
        w.cut(1, 2);
        w.wait_lost(2, 0);
        w.wait_lost(2, 1);
        w.run_seconds(10);
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            w.heal(a, b);
        }
        for id in ids {
            w.finish(id).ok();
        }
        w.write(2, 64);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn the_server_lost_first_returns_first_and_is_not_trusted_case_7() {
    let mut plan = with_quorum(2, 1);
    plan.resource.on_no_quorum = OnNoQuorum::SuspendIo;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.kill(0);
        w.wait_lost(2, 0);
        w.write(2, 8);
        w.kill(1);
        w.wait_lost(2, 1);
        w.start_node(0);
        w.run_seconds(30);
        w.expect("n0 is not UpToDate", |w| w.disk(0) != DiskState::UpToDate);
        w.start_node(1);
        w.wait_disk(0, DiskState::UpToDate);
        w.read(2, 8);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_client_that_meets_only_a_stale_server_reads_nothing_from_it() {
    scenario(with_quorum(3, 1), |w| {
        w.form();
        let opener = w.open(3);
        w.write(3, 0);
        w.cut_off(0, [3, 1, 2]);
        w.wait_lost(3, 0);
        w.write(3, 0);
        w.write(3, 8);
        w.heal(0, 3);
        for _ in 0..10 {
            w.read(3, 0);
            w.read(3, 8);
            w.run_seconds(1);
        }
        w.rejoin(0, [1, 2]);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(3, opener);
        w.settle();
    });
}

#[test]
fn a_writer_without_disk_beside_a_resync_case_2() {
    scenario(with_quorum(3, 1), |w| {
        w.form();
        w.cut_off(0, [1, 3]);
        w.cut(1, 2);
        w.wait_lost(0, 1);
        w.wait_lost(3, 0);
        w.wait_lost(1, 2);
        let opener = w.open(3);
        w.write(3, 0);
        w.run_seconds(10);
        w.write(3, 8);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.run_seconds(5);
        w.heal(0, 3);
        w.heal(1, 2);
        w.write(3, 16);
        w.close(3, opener);
        w.settle();
    });
}

#[test]
fn a_write_to_fresh_nodes_always_starts_a_generation_case_12() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let before = current(w, 0);
        let opener = w.open(0);
        w.write(0, 0);
        w.close(0, opener);
        w.settle();
        w.expect("both nodes have the same generation", |w| {
            current(w, 0).same(current(w, 1)) && before.is_real()
        });
    });
}

#[test]
fn a_newer_disk_is_not_old_because_its_node_has_met_an_older_one() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.wait_lost(1, 0);
        w.write(0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        w.detach(0);
        w.wait_disk(0, DiskState::Diskless);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.attach_again(0);
        w.wait_disk(0, DiskState::UpToDate);
        w.wait_disk(1, DiskState::UpToDate);
        let opener = w.open(1);
        w.read(1, 0);
        w.close(1, opener);
        w.settle();
    });
}

#[test]
fn the_only_current_disk_does_not_doubt_itself_beside_its_resync_target_case_20() {
    scenario(plan(2, 1), |w| {
        w.form();
        w.open(0);
        for i in 0..6 {
            w.write(0, i * 8192);
        }
        w.power_loss(0);
        w.wait_lost(1, 0);
        w.start_node(0);
        // Promoted while it is resynced: all it has is on n1.
        w.wait_disk(0, DiskState::Inconsistent);
        let pause =
            |pause| AdminCommand::PauseSync { peer: node_id(1), volume: VolumeNr(0), pause };
        w.granted(0, pause(true));
        let opener = w.open(0);
        w.write(0, 0);
        w.cut(1, 2);
        w.power_loss(1);
        w.wait_lost(0, 1);
        w.start_node(1);
        w.wait("n1 is the source again", |w| {
            w.nodes[1].up()
                && w.disk(1) == DiskState::UpToDate
                && w.device(1, 0).repl == ReplState::PausedSyncS
        });
        // A client joins, which has no disk that could know better.
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.expect("n1 is UpToDate", |w| w.disk(1) == DiskState::UpToDate);
        w.write(0, 8);
        w.granted(0, pause(false));
        w.wait_disk(0, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_client_that_meets_newer_data_trusts_the_older_disk_no_more() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        let opener = w.open(1);
        w.write(1, 0);
        w.kill(0);
        w.wait_lost(1, 0);
        w.write(1, 0);
        w.write(1, 8);
        w.close(1, opener);
        w.wait_secondary(1);
        w.kill(1);
        w.kill(2);
        // The client starts anew, and the older disk is the first that it sees.
        w.cut(0, 1);
        w.start_node(0);
        w.start_node(2);
        w.wait_connected(0, 2);
        w.start_node(1);
        w.wait_connected(1, 2);
        let opener = w.open(2);
        for i in 0..6 {
            w.read(2, i % 2 * 8);
            w.write(2, 16 + i * 8);
        }
        w.heal(0, 1);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_server_without_its_disk_is_not_led_back_by_an_older_server() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.kill(0);
        w.wait_lost(2, 0);
        w.write(2, 0);
        let volume = VolumeNr(0);
        w.granted(1, AdminCommand::Detach { volume, force: true, intentional: false });
        let held = w.start(2, WRITE, 8, 8);
        // n1 meets the old disk before the client does.
        w.cut(0, 2);
        w.start_node(0);
        w.wait_connected(0, 1);
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.attach_again(1);
        w.finish(held).ok();
        w.read(2, 0);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_write_that_a_detaching_server_misses_is_reported() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        for round in 0..12 {
            // The first write of a session starts a generation; the next one is due before the
            // servers have confirmed it.
            let opener = w.open(2);
            let volume = VolumeNr(0);
            let leaves =
                w.admin(0, AdminCommand::Detach { volume, force: false, intentional: false });
            w.run_for(800_000 + round * 100_000);
            w.write(2, round * 8);
            w.wait("the server has left", |w| w.has_answer(leaves));
            w.close(2, opener);
            w.wait_secondary(2);
            w.attach_again(0);
            w.wait_disk(0, DiskState::UpToDate);
        }
        w.settle();
    });
}

#[test]
fn a_server_that_came_while_a_write_was_held_is_told_when_another_one_gets_it() {
    let mut plan = with_quorum(2, 1);
    plan.resource.peer_ack_delay = std::time::Duration::from_secs(10);
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.detach(1);
        w.wait("it is known", |w| w.device(2, 1).disk == DiskState::Diskless);
        w.write(2, 8);
        w.cut_off(0, [2, 1]);
        let held = w.start(2, WRITE, 40960, 8);
        w.wait_lost(2, 0);
        let (peer, volume) = (node_id(0), VolumeNr(0));
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: true });
        w.attach_again(1);
        w.heal(0, 1);
        w.wait("the resync is agreed on", |w| w.device(1, 0).repl == ReplState::PausedSyncT);
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: false });
        w.finish(held).ok();
        w.wait_disk(1, DiskState::UpToDate);
        for _ in 0..4 {
            w.read(2, 40960);
        }
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_client_goes_back_to_no_disk_that_has_not_noticed_how_it_was_lost() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        w.run_seconds(1);
        w.cut(0, 1);
        let opener = w.open(1);
        w.write(1, 0);
        w.write(1, 8);
        w.close(1, opener);
        w.wait_secondary(1);
        w.expect("n0 has noticed that it lost n1", |w| !w.connected(0, 1));
        let opener = w.open(2);
        for _ in 0..4 {
            w.read(2, 0);
            w.read(2, 8);
        }
        w.write(2, 16);
        w.close(2, opener);
        w.heal(0, 1);
        w.settle();
    });
}

#[test]
fn a_disk_that_a_client_has_seen_overtaken_is_not_promoted() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        w.run_seconds(1);
        w.cut(0, 1);
        let opener = w.open(1);
        w.write(1, 0);
        w.close(1, opener);
        w.wait_secondary(1);
        w.expect("n0 has noticed that it lost n1", |w| !w.connected(0, 1));
        let opened = w.try_open(0);
        w.expect("nobody uses the older disk", |_| opened.is_err());
        w.heal(0, 1);
        w.wait_disk(0, DiskState::UpToDate);
        let opener = w.open(0);
        w.read(0, 0);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_disk_is_not_current_that_clients_have_seen_overtaken_when_it_is_attached() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.kill(1);
        w.wait_lost(0, 1);
        w.write(0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        w.detach(0);
        // Nobody is Primary, and nobody has a disk, when that of n1 is back.
        w.stall_disk(1, 60);
        w.start_node(1);
        w.wait_connected(1, 0);
        w.wait_connected(1, 2);
        w.release_disk(1);
        w.wait("the disk is attached", |w| w.disk(1) >= DiskState::Inconsistent);
        w.expect("it is not current", |w| w.disk(1) == DiskState::Outdated);
        w.attach_again(0);
        w.settle();
    });
}

#[test]
fn a_generation_that_was_lost_with_the_disk_that_was_to_hold_it_never_was() {
    scenario(Plan::majority(2, 0), |w| {
        let by_force =
            AdminCommand::Detach { volume: VolumeNr(0), force: true, intentional: false };
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        // n1 is to hold the next generation of n0, which has no disk any more, but it can not.
        w.stall_disk(1, 60);
        w.granted(0, by_force.clone());
        let write = w.start(0, WRITE, 8, 8);
        w.run_seconds(1);
        w.granted(1, by_force);
        w.release_disk(1);
        w.attach_again(1);
        w.attach_again(0);
        w.finish(write).ok();
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_disk_that_could_not_take_what_was_proposed_is_current_when_it_is_back() {
    let mut plan = with_quorum(2, 1);
    plan.resource.on_no_quorum = OnNoQuorum::SuspendIo;
    scenario(plan, |w| {
        let by_force =
            AdminCommand::Detach { volume: VolumeNr(0), force: true, intentional: false };
        w.form();
        let opener = w.open(0);
        w.granted(1, by_force.clone());
        w.write(0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        // The first write of n1 starts a generation, which does not get on the only disk.
        let opener = w.open(1);
        w.stall_disk(0, 60);
        let write = w.start(1, WRITE, 0, 8);
        w.run_seconds(1);
        w.granted(0, by_force);
        w.release_disk(0);
        w.attach_again(0);
        w.wait_disk(0, DiskState::UpToDate);
        w.finish(write).ok();
        w.write(1, 8);
        w.attach_again(1);
        w.close(1, opener);
        w.settle();
    });
}

#[test]
fn a_disk_that_is_to_be_resynced_is_not_sent_what_is_held() {
    let mut plan = Plan::majority(2, 1);
    plan.resource.on_no_quorum = OnNoQuorum::SuspendIo;
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.disconnect(2, 1);
        for i in 0..8 {
            w.write(2, i * 8192);
        }
        // The rest of the block is only on n0.
        w.cut(0, 2);
        let held = w.start(2, Op::Write { fua: false }, 4, 8);
        w.stall_disk(1, 60);
        w.wait_lost(2, 0);
        w.wait_lost(0, 2);
        w.release_disk(1);
        w.wait_disk(1, DiskState::Inconsistent);
        w.cut(0, 1);
        w.wait_lost(1, 0);
        w.wait_lost(0, 1);
        w.connect(2, 1);
        w.wait_connected(1, 2);
        w.run_seconds(1);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.run_seconds(1);
        w.heal(0, 2);
        w.finish(held).ok();
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn when_all_are_there_the_newest_of_the_outdated_disks_is_used() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        // n0 gives its disk away while n2 is Primary, and n1 is told that n2 may write on unheard,
        // unless n2 notices first that it can not.
        w.detach(0);
        w.wait_disk(0, DiskState::Diskless);
        w.cut(1, 2);
        w.wait_lost(1, 2);
        w.wait_lost(2, 1);
        w.run_seconds(1);
        let held = w.start(2, WRITE, 0, 8);
        w.attach_again(0);
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.finish(held).ok();
        w.read(2, 0);
        w.write(2, 8);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn an_outdated_source_is_current_when_all_are_there() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        let opener = w.open(0);
        w.detach(1);
        w.wait_disk(1, DiskState::Diskless);
        w.write(0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        // n1 is Primary by the disk of n0, of which its own does not get to be a copy.
        let (peer, volume) = (node_id(0), VolumeNr(0));
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: true });
        w.attach_again(1);
        w.wait("the resync is agreed on", |w| w.device(1, 0).repl == ReplState::PausedSyncT);
        let opener = w.open(1);
        w.write(1, 8);
        w.cut(0, 1);
        // A resync of this block waits for the write.
        let held = w.start(1, WRITE, 0, 8);
        // n0 notices first, and hears through the client of a Primary that may write on unheard.
        w.refused(0, AdminCommand::Primary { force: false });
        w.wait_disk(0, DiskState::Outdated);
        w.wait_lost(1, 0);
        w.heal(0, 1);
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: false });
        w.finish(held).ok();
        w.close(1, opener);
        w.settle();
    });
}

#[test]
fn an_outdated_disk_is_not_used_while_the_newer_one_is_missing() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.detach(0);
        w.wait_disk(0, DiskState::Diskless);
        w.write(2, 8);
        w.close(2, opener);
        w.wait_secondary(2);
        w.detach(1);
        w.wait_disk(1, DiskState::Diskless);
        w.attach(0, 0);
        w.run_seconds(30);
        w.expect("n0 waits for the newer disk", |w| w.disk(0) != DiskState::UpToDate);
        w.attach_again(1);
        w.wait_disk(0, DiskState::UpToDate);
        w.settle();
    });
}

#[test]
fn a_proposed_generation_that_no_disk_has_yet_is_told_nobody() {
    scenario(with_quorum(2, 2), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.kill(1);
        w.wait_lost(2, 1);
        w.write(2, 8);
        w.close(2, opener);
        w.wait_secondary(2);
        w.cut(0, 3);
        w.wait_lost(0, 3);
        // n2 proposes a generation, which does not get to the disk of n0.
        w.open(2);
        w.stall_disk(0, 60);
        w.start(2, WRITE, 16, 8);
        w.run_for(50_000_000);
        w.heal(0, 3);
        w.run_seconds(2);
        w.granted(0, AdminCommand::Detach { volume: VolumeNr(0), force: true, intentional: false });
        w.kill(2);
        w.release_disk(0);
        w.start_node(2);
        w.start_node(1);
        w.attach_again(0);
        w.settle();
    });
}

/// n0 hears of what n1 wrote only from the client, which is gone the next moment. What n1 has said
/// of itself is older, over a link that is dead.
#[test]
fn a_disk_that_a_client_has_seen_overtaken_stays_so_without_the_client() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        w.run_seconds(1);
        w.cut(0, 1);
        let opener = w.open(1);
        w.write(1, 0);
        w.close(1, opener);
        w.wait_disk(0, DiskState::Outdated);
        w.expect("n0 has noticed that it lost n1", |w| !w.connected(0, 1));
        w.kill(2);
        w.wait_lost(0, 2);
        w.expect("n0 does not count as current", |w| w.disk(0) == DiskState::Outdated);
        w.start_node(2);
        w.heal(0, 1);
        w.settle();
    });
}

#[test]
fn a_server_that_becomes_the_source_of_the_other_goes_on_serving() {
    scenario(plan(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        for i in 0..6 {
            w.write(2, i * 8192);
        }
        // Both stop under writes, and what may differ between them is known when they meet.
        w.cut(0, 1);
        w.kill(0);
        w.kill(1);
        w.wait_lost(2, 0);
        w.wait_lost(2, 1);
        w.start_node(0);
        w.start_node(1);
        w.wait_connected(0, 2);
        w.wait_connected(1, 2);
        w.write(2, 0);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.expect("the client has its data", |w| {
            w.disk(0) == DiskState::UpToDate || w.disk(1) == DiskState::UpToDate
        });
        w.write(2, 8);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_server_that_has_lost_its_power_serves_nothing_before_it_has_met_the_other() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.run_seconds(1);
        let writes: Vec<u64> = (0..6).map(|i| w.start(2, WRITE, i * 8192, 8)).collect();
        for write in writes {
            w.finish(write).ok();
        }
        w.cut_off(1, [0, 2]);
        w.power_loss(0);
        w.wait_lost(2, 0);
        w.wait_lost(2, 1);
        w.start_node(0);
        w.wait_connected(0, 2);
        let reads: Vec<u64> = (0..6).map(|i| w.start(2, Op::Read, i * 8192, 8)).collect();
        w.run_seconds(5);
        w.rejoin(1, [0, 2]);
        for read in reads {
            w.finish(read).ok();
        }
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_held_write_goes_to_no_server_that_is_still_to_be_resynced() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.cut_off(1, [0, 2]);
        w.wait_lost(2, 1);
        w.write(2, 40960);
        let pause =
            |pause| AdminCommand::PauseSync { peer: node_id(0), volume: VolumeNr(0), pause };
        w.granted(1, pause(true));
        w.heal(0, 1);
        w.wait("n1 is to be resynced", |w| w.device(1, 0).repl == ReplState::PausedSyncT);
        // What does not reach n0 any more is held, and n1 comes back first.
        w.cut(0, 2);
        let held = w.start(2, WRITE, 40960, 8);
        w.wait_lost(2, 0);
        w.wait_lost(0, 2);
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.run_seconds(1);
        w.granted(1, pause(false));
        w.wait_disk(1, DiskState::UpToDate);
        w.finish(held).ok();
        w.heal(0, 2);
        w.read(2, 40960);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_server_that_is_back_lacks_what_is_on_its_way_to_the_other() {
    scenario(with_quorum(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.detach(0);
        w.wait("it is known", |w| w.device(2, 0).disk == DiskState::Diskless);
        // The generation that n0 misses, and the write, are late at n1.
        w.slow(2, 1, 300_000_000);
        let held = w.start(2, WRITE, 40960, 8);
        w.run_for(350_000_000);
        w.attach_again(0);
        w.finish(held).ok();
        w.slow(2, 1, 100_000);
        for _ in 0..4 {
            w.read(2, 40960);
        }
        w.wait_disk(0, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_client_that_has_met_a_left_behind_primary_outdates_no_majority() {
    scenario(with_quorum(3, 1), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.cut_off(0, [1, 3]);
        w.wait_lost_all(0, [1, 3]);
        // n0 starts a generation, and n2 is gone before it has heard of it.
        w.slow(0, 2, 100 * MILLISECOND);
        let before = current(w, 0);
        let held = w.start(0, WRITE, 8, 8);
        w.wait("a generation starts", |w| !current(w, 0).same(before));
        w.run_for(MILLISECOND);
        w.cut(0, 2);
        w.cut_off(3, [1, 2]);
        w.wait_lost(0, 2);
        w.wait_lost_all(3, [1, 2]);
        w.wait_lost_all(1, [0, 3]);
        w.wait_lost_all(2, [0, 3]);
        let next = w.open(1);
        w.write(1, 16);
        w.close(1, next);
        w.wait_secondary(1);
        w.rejoin(0, [3]);
        w.wait_connected(0, 3);
        w.heal(1, 3);
        w.wait_connected(1, 3);
        w.run_seconds(2);
        w.expect("what the majority has is current", |w| {
            w.disk(1) == DiskState::UpToDate && w.disk(2) == DiskState::UpToDate
        });
        w.slow(0, 2, MILLISECOND);
        w.granted(0, AdminCommand::Secondary { force: true });
        w.finish(held).ok();
        w.close(0, opener);
        [1, 2].into_iter().for_each(|n| w.connect(0, n));
        w.rejoin(0, [1, 2]);
        w.heal(2, 3);
        w.settle();
    });
}

#[test]
fn a_frozen_client_yields_to_newer_data_on_a_disk_that_is_attached() {
    let mut plan = with_quorum(2, 1);
    plan.resource.on_suspended_primary_outdated = OnSuspendedPrimaryOutdated::ForceSecondary;
    plan.net.rr_conflict = RrConflict::RetryConnect;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.cut_off(2, [0, 1]);
        w.wait_lost_all(2, [0, 1]);
        let held = w.start(2, WRITE, 8, 8);
        w.wait_lost(0, 2);
        w.wait_lost(1, 2);
        let next = w.open(0);
        w.write(0, 16);
        w.close(0, next);
        w.wait_secondary(0);
        w.detach(0);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.attach_again(0);
        w.wait_secondary(2);
        w.finish(held).ok();
        w.close(2, opener);
        w.heal(0, 1);
        w.heal(1, 2);
        w.settle();
    });
}

/// A client's write that n1 alone has, of three disks; n0 and n2 go on without the client.
fn held_on_one_of_three(w: &mut World) -> (u64, u64) {
    w.form();
    let opener = w.open(3);
    w.write(3, 0);
    w.cut_off(3, [0, 2]);
    w.cut_off(1, [0, 2]);
    let held = w.start(3, WRITE, 0, 8);
    w.wait_lost_all(3, [0, 2]);
    w.wait_lost_all(1, [0, 2]);
    w.wait_disk(2, DiskState::UpToDate);
    (opener, held)
}

#[test]
fn what_a_resync_takes_back_does_not_count_for_a_client_that_is_connected() {
    scenario(with_quorum(3, 1), |w| {
        let (opener, held) = held_on_one_of_three(w);
        w.heal(1, 2);
        w.finish(held).ok();
        w.read(3, 0);
        w.rejoin(3, [0, 2]);
        w.heal(0, 1);
        w.close(3, opener);
        w.settle();
    });
}

#[test]
fn what_a_resync_takes_back_does_not_count_for_a_client_that_comes_back() {
    scenario(with_quorum(3, 1), |w| {
        let (opener, held) = held_on_one_of_three(w);
        w.cut(1, 3);
        w.wait_lost_all(1, [3]);
        w.heal(1, 2);
        w.wait_disk(1, DiskState::UpToDate);
        w.heal(1, 3);
        w.finish(held).ok();
        w.read(3, 0);
        w.rejoin(3, [0, 2]);
        w.heal(0, 1);
        w.close(3, opener);
        w.settle();
    });
}

#[test]
fn without_quorum_a_flush_answers_for_what_its_client_has_been_told() {
    let mut plan = Plan::quiet(2, 1);
    plan.workload.nodes = vec![2];
    scenario(plan, |w| {
        w.form();
        w.wait("both serve", |w| {
            [0, 1].into_iter().all(|n| w.device(2, n).disk == DiskState::UpToDate)
        });
        let first = w.open(2);
        w.kill(1);
        w.wait_lost(2, 1);
        w.write(2, 0);
        w.kill(2);
        w.close(2, first);
        w.kill(0);
        // What n0 has, the client that is back and n1 know nothing of.
        w.start_node(1);
        w.start_node(2);
        w.wait_connected(1, 2);
        w.open(2);
        w.flush(2);
    });
}

/// The client was suspended by its operator, too, so that nothing of what is held is given up.
#[test]
fn what_a_resync_takes_back_does_not_count_while_the_disk_is_away() {
    scenario(with_quorum(3, 1), |w| {
        let (opener, held) = held_on_one_of_three(w);
        let drained = w.admin(3, AdminCommand::SuspendIo);
        w.run_for(20 * MILLISECOND);
        w.cut(1, 3);
        w.wait_lost_all(1, [3]);
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.run_seconds(2);
        w.wait_disk(1, DiskState::UpToDate);
        w.detach(0);
        let n1_has_it =
            |p: &Packet| matches!(p, Packet::PeerAck(ack) if ack.mask.contains(node_id(1)));
        let wrong = w.tap(3, 2, n1_has_it);
        w.rejoin(3, [0, 2]);
        w.finish(held).expect("n2 has it");
        w.wait("the client has drained", |w| w.has_answer(drained));
        w.heal(1, 3);
        w.granted(3, AdminCommand::ResumeIo);
        w.expect("n2 is not told that n1 has it", |w| w.tapped(wrong) == 0);
        w.wait_connected(1, 3);
        w.wait_disk(1, DiskState::UpToDate);
        w.read(3, 0);
        w.heal(0, 1);
        w.attach_again(0);
        w.close(3, opener);
        w.settle();
    });
}
