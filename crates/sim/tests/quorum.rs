//! Hard cases 26 to 39 of semantics §14: quorum, lost, kept and regained.

use replication::io::AdminCommand;
use sim::plan::{MILLISECOND, Plan, SECOND, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::{OnNoQuorum, OnSuspendedPrimaryOutdated, Quorum, ResourceOptions, RrConflict};
use vocab::{DiskState, ReplState, Role, VolumeNr};

const WRITE: Op = Op::Write { fua: false };

fn majority(diskful: usize, diskless: usize, on_no_quorum: OnNoQuorum) -> Plan {
    let mut plan = Plan::majority(diskful, diskless);
    plan.resource.on_no_quorum = on_no_quorum;
    plan
}

fn quorate(w: &World, node: usize) -> bool {
    w.view(node).is_some_and(|v| v.volumes[0].quorum)
}

#[test]
fn two_nodes_lose_quorum_together() {
    scenario(majority(2, 0, OnNoQuorum::IoError), |w| {
        w.form();
        let opener = w.open(0);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.wait_lost(1, 0);
        w.expect("nobody is quorate", |w| !quorate(w, 0) && !quorate(w, 1));
        w.write_fails(0, 0);
        if w.try_open(1).is_ok() {
            w.violate("expect", "n1 was promoted without quorum");
        }
        w.heal(0, 1);
        w.wait("quorum is back", |w| quorate(w, 0));
        w.write(0, 0);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_node_does_not_vote_for_data_older_than_what_it_has_heard_of() {
    scenario(majority(3, 0, OnNoQuorum::IoError), |w| {
        w.form();
        let old = w.open(2);
        w.kill(1);
        w.wait_lost(2, 1);
        (0..100).for_each(|i| w.write(2, i * 64));
        w.close(2, old);
        w.wait_secondary(2);
        for other in [0, 1] {
            w.cut(2, other);
        }
        w.wait_lost(0, 2);
        // n1 is back, and n0 goes on with its vote. The disk of n1 is not current yet.
        w.start_node(1);
        w.wait_connected(0, 1);
        let (peer, volume) = (node_id(0), VolumeNr(0));
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: true });
        let new = w.open(0);
        (0..4).for_each(|i| w.write(0, i * 64));
        // n1 changes sides: together with n2 it is a majority that has not got these writes.
        w.cut(0, 1);
        w.wait_lost(1, 0);
        w.wait_lost(0, 1);
        w.close(0, new);
        w.wait_secondary(0);
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: false });
        w.heal(1, 2);
        w.run_seconds(5);
        for node in [1, 2] {
            if let Ok(opener) = w.try_open(node) {
                (0..4).for_each(|i| w.read(node, i * 64));
                w.close(node, opener);
            }
        }
        w.rejoin(0, [1, 2]);
        w.settle();
    });
}

#[test]
fn a_generation_that_comes_too_late_is_withdrawn() {
    scenario(majority(2, 1, OnNoQuorum::IoError), |w| {
        w.form();
        let opener = w.open(0);
        // The generation of the first write is not durable before others have gone on.
        w.stall_disk(0, 20);
        w.start(0, WRITE, 0, 8);
        w.run_for(100_000_000);
        w.cut_off(0, [1, 2]);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        let other = w.open(1);
        w.write(1, 8);
        w.run_seconds(20);
        w.close(0, opener);
        w.rejoin(0, [1, 2]);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(1, other);
        w.settle();
    });
}

#[test]
fn a_target_that_falls_silent_may_have_become_current() {
    scenario(majority(2, 1, OnNoQuorum::IoError), |w| {
        w.form();
        let opener = w.open(0);
        w.kill(1);
        w.wait_lost(0, 1);
        (0..200).for_each(|i| w.write(0, i * 8));
        w.start_node(1);
        w.wait("n1 is resynced", |w| w.device(0, 1).repl == ReplState::SyncSource);
        // Its resync may end just now, and then it and n2 are as good as this one alone.
        w.cut_off(0, [1, 2]);
        w.wait_lost(0, 1);
        w.wait_lost(0, 2);
        w.expect("n0 is not the last one standing", |w| !quorate(w, 0));
        w.rejoin(0, [1, 2]);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_primary_that_slept_reports_what_the_next_one_has_by_way_of_others() {
    let mut plan = majority(2, 1, OnNoQuorum::IoError);
    plan.net.rr_conflict = RrConflict::RetryConnect;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.detach(0);
        w.run_seconds(1);
        w.write(0, 0);
        w.run_seconds(1);
        w.write(0, 0);
        // n1 has the write before n0 falls asleep, and its word of that arrives meanwhile.
        w.slow(1, 0, 50 * MILLISECOND);
        let write = w.start(0, WRITE, 8, 8);
        w.run_for(30 * MILLISECOND);
        w.pause(0, 20);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        // The next Primary has no disk of its own.
        let next = w.open(2);
        w.write(2, 16);
        let _ = w.finish(write);
        w.write(2, 24);
        w.close(2, next);
        w.close(0, opener);
        w.wait_connected(0, 1);
        w.attach_again(0);
        w.settle();
    });
}

#[test]
fn a_primary_without_disk_relies_on_no_quorum_that_has_silently_gone() {
    let mut plan = majority(3, 1, OnNoQuorum::IoError);
    plan.net.rr_conflict = RrConflict::RetryConnect;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(3);
        w.write(3, 0);
        // n3 is left with n2, which has quorum by n0.
        w.cut_off(1, [2, 3]);
        w.cut(0, 3);
        let write = w.start(3, WRITE, 8, 8);
        w.run_for(9500 * MILLISECOND);
        // And n0 joins n1, which n2 has not noticed when it takes the next generation.
        w.cut(0, 2);
        w.wait_lost(3, 0);
        w.wait_lost(3, 1);
        // n2 goes on with n3, or n1 goes on with n0.
        let other = w.try_open(1);
        let late = w.start(3, WRITE, 24, 8);
        if let Ok(opener) = other {
            (2..6).for_each(|i| w.write(1, 8 * i));
            w.run_seconds(20);
            w.close(1, opener);
        }
        w.wait_secondary(1);
        w.rejoin(0, [2, 3]);
        w.rejoin(1, [2, 3]);
        let _ = (w.finish(write), w.finish(late));
        w.close(3, opener);
        w.settle();
    });
}

#[test]
fn a_peer_that_leaves_gracefully_does_not_cost_quorum() {
    scenario(majority(2, 0, OnNoQuorum::IoError), |w| {
        w.form();
        let opener = w.open(0);
        w.disconnect(1, 0);
        w.wait_lost(0, 1);
        w.expect("n0 is quorate", |w| quorate(w, 0));
        w.write(0, 0);
        if w.try_open(1).is_ok() {
            w.violate("expect", "n1 was promoted though it left");
        }
        w.connect(1, 0);
        w.connect(0, 1);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn an_isolated_primary_sees_one_loss_before_a_write_and_one_after_case_26() {
    for mode in [OnNoQuorum::IoError, OnNoQuorum::SuspendIo] {
        scenario(majority(3, 0, mode), |w| {
            w.form();
            let opener = w.open(0);
            w.write(0, 0);
            w.cut(0, 1);
            w.wait_lost(0, 1);
            w.cut(0, 2);
            let id = w.start(0, WRITE, 0, 8);
            w.wait_lost(0, 2);
            w.wait_lost(1, 0);
            w.wait_lost(2, 0);
            w.wait("n1 can be promoted", |w| w.disk(1) == DiskState::UpToDate);
            w.run_seconds(5);
            w.rejoin(0, [1, 2]);
            w.finish(id).ok();
            w.close(0, opener);
            w.settle();
        });
    }
}

#[test]
fn the_majority_writes_while_the_old_primary_fails_its_io_case_27() {
    scenario(majority(3, 0, OnNoQuorum::IoError), |w| {
        w.form();
        let old = w.open(0);
        w.write(0, 0);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.write(0, 8);
        w.cut(0, 2);
        w.write_fails(0, 16);
        w.wait_lost(2, 0);
        w.wait_lost(1, 0);
        w.wait_disk(2, DiskState::UpToDate);
        let new = w.open(2);
        w.read(2, 8);
        w.write(2, 16);
        w.close(0, old);
        w.rejoin(0, [1, 2]);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(2, new);
        w.settle();
    });
}

#[test]
fn a_lost_quorum_decides_the_direction_where_generations_are_equal_case_28() {
    scenario(majority(3, 0, OnNoQuorum::IoError), |w| {
        w.form();
        let old = w.open(0);
        w.write(0, 0);
        w.cut_off(0, [1, 2]);
        w.write_fails(0, 8);
        w.close(0, old);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        w.rejoin(0, [1, 2]);
        w.settle();
    });
}

#[test]
fn a_tiebreaker_can_not_restore_quorum_case_29() {
    scenario(majority(2, 1, OnNoQuorum::IoError), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.cut_off(0, [1, 2]);
        w.wait_lost(0, 1);
        w.wait_lost(0, 2);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        w.expect("n0 is not quorate", |w| !quorate(w, 0));
        w.expect("n1 is quorate", |w| quorate(w, 1));
        w.heal(0, 2);
        w.run_seconds(30);
        w.expect("n0 is still not quorate", |w| !quorate(w, 0));
        w.expect("n1 is still quorate", |w| quorate(w, 1));
        w.close(0, opener);
        w.heal(0, 1);
        w.settle();
    });
}

#[test]
fn only_one_side_keeps_quorum_when_the_tiebreaker_changes_sides_case_30() {
    scenario(majority(2, 1, OnNoQuorum::IoError), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        // n1 is isolated, and everybody knows.
        w.cut(0, 1);
        w.cut(1, 2);
        w.wait_lost(0, 1);
        w.wait_lost(2, 1);
        w.wait_lost(1, 0);
        w.wait_lost(1, 2);
        w.run_seconds(15);
        w.write(0, 8);
        // Then the tiebreaker goes over to it.
        w.cut(0, 2);
        w.heal(1, 2);
        w.wait_lost(0, 2);
        w.run_seconds(30);
        w.expect("not both are quorate", |w| !(quorate(w, 0) && quorate(w, 1)));
        w.expect("n0 keeps quorum", |w| quorate(w, 0));
        w.write(0, 16);
        w.rejoin(0, [1, 2]);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_tiebreaker_keeps_the_primary_running_and_outdates_the_other_case_30() {
    scenario(majority(2, 1, OnNoQuorum::SuspendIo), |w| {
        w.form();
        let opener = w.open(0);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.write(0, 0);
        w.wait_lost(1, 0);
        w.run_seconds(15);
        if w.try_open(1).is_ok() {
            w.violate("expect", "n1 was promoted beside n0");
        }
        w.cut(0, 2);
        w.wait_lost(0, 2);
        w.run_seconds(15);
        w.write(0, 8);
        if w.try_open(1).is_ok() {
            w.violate("expect", "n1 was promoted although it is outdated");
        }
        w.rejoin(0, [1, 2]);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn links_that_were_down_already_are_not_left_gracefully_case_32() {
    scenario(majority(3, 0, OnNoQuorum::IoError), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.cut_off(0, [1, 2]);
        w.wait_lost(0, 1);
        w.wait_lost(0, 2);
        for peer in [1, 2] {
            let command = AdminCommand::Disconnect { peer: node_id(peer), force: false };
            w.ask(0, command).ok();
        }
        w.close(0, opener);
        w.wait_secondary(0);
        if w.try_open(0).is_ok() {
            w.violate("expect", "n0 was promoted without quorum");
        }
        w.rejoin(0, [1, 2]);
        for peer in [1, 2] {
            w.connect(0, peer);
        }
        w.settle();
    });
}

#[test]
fn nodes_that_the_primary_has_left_can_not_be_promoted_case_33() {
    scenario(majority(2, 1, OnNoQuorum::IoError), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.disconnect(0, 2);
        w.disconnect(0, 1);
        w.expect("n0 is quorate", |w| quorate(w, 0));
        w.write(0, 8);
        if w.try_open(1).is_ok() {
            w.violate("expect", "n1 was promoted beside n0");
        }
        w.connect(0, 1);
        w.connect(0, 2);
        w.connect(1, 0);
        w.connect(2, 0);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn the_last_man_standing_regains_quorum_after_a_reboot_case_36() {
    scenario(majority(3, 0, OnNoQuorum::IoError), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.disconnect(1, 0);
        w.disconnect(1, 2);
        w.disconnect(2, 0);
        w.wait("n0 is alone", |w| !w.connected(0, 1) && !w.connected(0, 2));
        w.write(0, 8);
        w.close(0, opener);
        w.wait_secondary(0);
        w.flush_disks();
        w.kill(0);
        w.start_node(0);
        w.wait_disk(0, DiskState::UpToDate);
        let opener = w.open(0);
        w.read(0, 8);
        w.close(0, opener);
        for (a, b) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
            let peer = node_id(b);
            w.ask(a, AdminCommand::Connect { peer, discard_my_data: false }).ok();
        }
        w.settle();
    });
}

#[test]
fn easing_the_quorum_thaws_io_case_37() {
    scenario(majority(3, 0, OnNoQuorum::SuspendIo), |w| {
        w.form();
        let opener = w.open(0);
        w.kill(1);
        w.kill(2);
        let id = w.start(0, WRITE, 0, 8);
        w.wait("I/O is suspended", |w| w.seen(0).suspended.quorum);
        let eased = ResourceOptions { quorum: Quorum::Off, ..w.plan.resource.clone() };
        w.granted(0, AdminCommand::ResourceOptions(eased));
        w.finish(id).ok();
        w.write(0, 8);
        w.start_node(1);
        w.start_node(2);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn switching_to_io_error_fails_what_is_frozen_case_38() {
    scenario(majority(3, 0, OnNoQuorum::SuspendIo), |w| {
        w.form();
        let opener = w.open(0);
        w.cut_off(0, [1, 2]);
        let sent = w.start(0, WRITE, 0, 8);
        w.wait("I/O is suspended", |w| w.seen(0).suspended.quorum);
        let held = w.start(0, WRITE, 8, 8);
        let read = w.start(0, Op::Read, 8, 8);
        let io_error =
            ResourceOptions { on_no_quorum: OnNoQuorum::IoError, ..w.plan.resource.clone() };
        w.granted(0, AdminCommand::ResourceOptions(io_error));
        for id in [sent, held, read] {
            if w.finish(id).is_ok() && w.violation.is_none() {
                w.violate("expect", "a frozen request succeeded");
            }
        }
        w.close(0, opener);
        w.wait_secondary(0);
        w.rejoin(0, [1, 2]);
        w.settle();
    });
}

#[test]
fn a_frozen_primary_gives_way_to_newer_data_case_39() {
    let mut plan = majority(3, 0, OnNoQuorum::SuspendIo);
    plan.resource.on_suspended_primary_outdated = OnSuspendedPrimaryOutdated::ForceSecondary;
    plan.net.rr_conflict = RrConflict::RetryConnect;
    scenario(plan, |w| {
        w.form();
        let old = w.open(0);
        w.write(0, 0);
        w.cut_off(0, [1, 2]);
        let frozen = w.start(0, WRITE, 8, 8);
        w.wait("n0 is frozen", |w| w.seen(0).suspended.quorum);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        w.wait_disk(1, DiskState::UpToDate);
        let new = w.open(1);
        w.write(1, 0);
        w.rejoin(0, [1, 2]);
        w.finish(frozen).ok();
        w.wait("n0 is Secondary", |w| w.seen(0).role == Role::Secondary);
        w.close(0, old);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(1, new);
        w.settle();
    });
}

#[test]
fn frozen_writes_are_resent_when_the_peers_return_case_41() {
    scenario(majority(3, 0, OnNoQuorum::SuspendIo), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.cut_off(0, [1, 2]);
        let ids: Vec<u64> = (0..4).map(|i| w.start(0, WRITE, i * 4, 8)).collect();
        w.wait("n0 is frozen", |w| w.seen(0).suspended.quorum);
        w.rejoin(0, [1, 2]);
        for id in ids {
            if w.finish(id).is_err() {
                w.violate("expect", "a frozen write failed");
            }
        }
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn frozen_writes_are_not_resent_to_peers_that_rebooted_case_41() {
    scenario(majority(3, 0, OnNoQuorum::SuspendIo), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        let ids: Vec<u64> = (0..4).map(|i| w.start(0, WRITE, i * 4, 8)).collect();
        w.power_loss(1);
        w.power_loss(2);
        w.wait("n0 is frozen", |w| w.seen(0).suspended.quorum);
        w.start_node(1);
        w.start_node(2);
        for id in ids {
            w.finish(id).ok();
        }
        w.write(0, 16);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_frozen_primary_can_be_demoted_by_force_case_42() {
    scenario(majority(3, 0, OnNoQuorum::SuspendIo), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.cut_off(0, [1, 2]);
        let id = w.start(0, WRITE, 8, 8);
        w.wait("n0 is frozen", |w| w.seen(0).suspended.quorum);
        w.granted(0, AdminCommand::Secondary { force: true });
        if w.finish(id).is_ok() && w.violation.is_none() {
            w.violate("28", "a request of a forcibly demoted node succeeded");
        }
        w.write_fails(0, 16);
        w.close(0, opener);
        w.rejoin(0, [1, 2]);
        w.settle();
    });
}

#[test]
fn what_a_forced_demotion_fails_is_not_kept_for_a_peer_that_is_lost_later() {
    scenario(majority(3, 0, OnNoQuorum::SuspendIo), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.kill(2);
        w.wait_lost(0, 2);
        // n1 takes its time, and is lost before it has answered.
        w.stall_disk(1, 60);
        let id = w.start(0, WRITE, 8, 8);
        w.run_for(100 * MILLISECOND);
        w.refused(0, AdminCommand::Secondary { force: true });
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.granted(0, AdminCommand::Secondary { force: true });
        w.expect("the write has failed", |w| w.is_answered(id));
        w.close(0, opener);
        w.start_node(2);
        w.rejoin(0, [1, 2]);
        w.settle();
    });
}

#[test]
fn a_write_that_outlives_a_loss_of_quorum_is_not_acknowledged_where_a_peer_lacks_it() {
    scenario(majority(3, 0, OnNoQuorum::IoError), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.run_seconds(1);
        w.stall_disk(0, 60);
        w.cut_off(0, [1, 2]);
        // It reaches nobody, and the own disk takes its time.
        let id = w.start(0, WRITE, 8, 8);
        w.wait_lost(0, 1);
        w.wait_lost(0, 2);
        w.expect("it is not answered", |w| !w.is_answered(id));
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.finish(id).ok();
        w.read(0, 8);
        w.heal(0, 2);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_client_without_quorum_brings_a_server_that_is_back_what_is_under_way() {
    scenario(majority(3, 1, OnNoQuorum::IoError), |w| {
        w.form();
        let opener = w.open(3);
        w.write(3, 0);
        w.run_seconds(1);
        w.stall_disk(0, 60);
        let links = [(3, 1), (3, 2), (0, 1), (0, 2)];
        links.iter().for_each(|(a, b)| w.cut(*a, *b));
        // It reaches n0 alone, whose disk takes its time.
        let id = w.start(3, WRITE, 8, 8);
        links.iter().for_each(|(a, b)| w.wait_lost(*a, *b));
        w.expect("it is not answered", |w| !w.is_answered(id));
        w.heal(3, 1);
        w.wait_connected(3, 1);
        w.finish(id).ok();
        links.iter().for_each(|(a, b)| w.heal(*a, *b));
        w.close(3, opener);
        w.settle();
    });
}

#[test]
fn a_write_that_fails_during_a_handshake_is_not_forgotten() {
    for early in [3, 4, 5, 6, 8, 10] {
        scenario(majority(3, 0, OnNoQuorum::IoError), |w| {
            w.form();
            let opener = w.open(0);
            w.write(0, 0);
            w.run_seconds(1);
            let until = w.now() + 60 * SECOND;
            w.stall_disk(0, 60);
            w.cut_off(0, [1, 2]);
            let id = w.start(0, WRITE, 8, 8);
            w.wait_lost(0, 1);
            w.wait_lost(0, 2);
            // The own disk answers while the connection comes up.
            w.slow(0, 1, 100_000_000);
            w.slow(1, 0, 100_000_000);
            let wait = until - w.now() - early * 100 * MILLISECOND;
            w.run_for(wait);
            w.heal(0, 1);
            w.finish(id).ok();
            w.wait_connected(0, 1);
            w.slow(0, 1, 100_000);
            w.slow(1, 0, 100_000);
            w.heal(0, 2);
            w.close(0, opener);
            w.settle();
        });
    }
}

#[test]
fn a_frozen_primary_gets_no_quorum_from_a_node_that_is_resynced_from_newer_data() {
    scenario(majority(3, 0, OnNoQuorum::SuspendIo), |w| {
        w.form();
        let old = w.open(2);
        w.write(2, 0);
        w.cut_off(2, [0, 1]);
        w.wait_lost(0, 2);
        w.wait_lost(1, 2);
        w.wait_lost(2, 0);
        w.wait_lost(2, 1);
        let held = w.start(2, WRITE, 0, 8);
        w.detach(1);
        let new = w.open(0);
        w.write(0, 8);
        w.close(0, new);
        w.wait("nobody of the others is Primary", |w| !w.is_primary(0));
        let (peer, volume) = (node_id(0), VolumeNr(0));
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: true });
        w.attach_again(1);
        w.heal(1, 2);
        w.run_seconds(20);
        w.expect("the write is not reported", |w| !w.is_answered(held));
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: false });
        w.wait_disk(1, DiskState::UpToDate);
        w.heal(0, 2);
        w.granted(2, AdminCommand::Secondary { force: true });
        w.finish(held).ok();
        w.close(2, old);
        w.connect(0, 2);
        w.connect(2, 0);
        w.connect(1, 2);
        w.connect(2, 1);
        w.settle();
    });
}

#[test]
fn a_disk_that_was_overtaken_is_no_authority_when_the_newer_one_is_lost() {
    scenario(majority(2, 1, OnNoQuorum::SuspendIo), |w| {
        w.form();
        // The client goes on with n1, which tells n0 of that. n0 has not noticed yet.
        w.cut(0, 2);
        let opener = w.open(2);
        w.write(2, 0);
        let volume = VolumeNr(0);
        w.granted(1, AdminCommand::Detach { volume, force: true, intentional: false });
        w.cut(1, 2);
        w.wait_lost(0, 2);
        w.wait_lost(1, 2);
        w.run_seconds(2);
        let old = w.try_open(0);
        w.expect("n0 is not Primary", |w| !w.is_primary(0));
        assert!(old.is_err());
        w.attach_again(1);
        w.rejoin(2, [0, 1]);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_primary_that_lost_the_data_of_its_users_does_not_read_from_older_data() {
    scenario(majority(3, 0, OnNoQuorum::SuspendIo), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.detach(0);
        w.write(0, 0);
        w.cut_off(2, [0, 1]);
        w.wait_lost(0, 2);
        w.wait_lost(1, 2);
        w.write(0, 0);
        // Its own disk is older than that of n2, which is older than that of n1.
        let (peer, volume) = (node_id(1), VolumeNr(0));
        w.granted(0, AdminCommand::PauseSync { peer, volume, pause: true });
        w.attach_again(0);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.heal(0, 2);
        w.run_seconds(5);
        let read = w.start(0, Op::Read, 0, 8);
        w.run_seconds(5);
        w.heal(0, 1);
        w.heal(1, 2);
        w.wait_connected(0, 1);
        w.granted(0, AdminCommand::PauseSync { peer, volume, pause: false });
        w.finish(read).ok();
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_primary_that_may_not_write_gets_no_quorum_from_a_client_that_has_seen_newer_data() {
    scenario(majority(3, 0, OnNoQuorum::IoError), |w| {
        w.form();
        let old = w.open(0);
        w.write(0, 0);
        w.cut_off(0, [1, 2]);
        w.wait_lost_all(0, [1, 2]);
        let new = w.open(2);
        w.write(2, 0);
        let volume = VolumeNr(0);
        w.granted(1, AdminCommand::Detach { volume, force: true, intentional: false });
        w.close(2, new);
        w.wait_secondary(2);
        w.kill(2);
        w.wait_lost(1, 2);
        // n1 has no disk now, but knows what n2 has.
        w.heal(0, 1);
        w.run_seconds(5);
        w.write_fails(0, 0);
        w.close(0, old);
        w.attach_again(1);
        w.start_node(2);
        w.heal(0, 2);
        w.settle();
    });
}

#[test]
fn a_resync_target_remembers_over_a_restart_what_it_was_on_its_way_to() {
    scenario(majority(3, 0, OnNoQuorum::IoError), |w| {
        w.form();
        w.kill(0);
        w.wait_lost(2, 0);
        w.open(2);
        (0..100).for_each(|i| w.write(2, i * 64));
        // n0 is resynced, and n2 goes on with its vote while n1 is away.
        w.start_node(0);
        let (peer, volume) = (node_id(0), VolumeNr(0));
        w.granted(2, AdminCommand::PauseSync { peer, volume, pause: true });
        w.wait_connected(0, 2);
        w.wait_disk(0, DiskState::Inconsistent);
        w.wait("the bitmaps are exchanged", |w| w.device(2, 0).repl == ReplState::PausedSyncS);
        w.kill(1);
        w.wait_lost(2, 1);
        (0..4).for_each(|i| w.write(2, i * 64));
        w.kill(2);
        w.kill(0);
        // n1 lacks these writes, and n0 has been on its way to them.
        w.start_node(0);
        w.start_node(1);
        w.wait_connected(0, 1);
        w.run_seconds(5);
        for node in [0, 1] {
            if w.try_open(node).is_ok() {
                w.violate("expect", "a disk that lacks writes is used");
            }
        }
        w.start_node(2);
        w.settle();
        let opener = w.open(1);
        (0..4).for_each(|i| w.read(1, i * 64));
        w.close(1, opener);
        w.settle();
    });
}

/// What a Primary without disk and without quorum began is on the disk beside it. The others, which
/// have gone on, bring that disk up to date as soon as one of them meets it: left for later because
/// the Primary is still there, it would have its quorum from that one, and look as good.
#[test]
fn a_disk_beside_a_primary_without_quorum_follows_those_that_have_it() {
    scenario(Plan::majority(3, 1), |w| {
        w.form();
        let old = w.open(3);
        w.write(3, 0);
        w.cut_off(3, [1, 2]);
        w.cut_off(0, [1, 2]);
        let lost = w.start(3, WRITE, 0, 8);
        // It begins a generation before the disk beside it has noticed that it is alone.
        w.reset(3, 1);
        w.reset(3, 2);
        w.wait_lost_all(0, [1, 2]);
        let new = w.open(1);
        w.write(1, 0);
        w.close(1, new);
        w.wait_secondary(1);
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.wait_disk(0, DiskState::UpToDate);
        w.granted(3, AdminCommand::Secondary { force: true });
        w.finish(lost).ok();
        w.close(3, old);
        w.rejoin(3, [1, 2]);
        w.heal(0, 1);
        w.settle();
    });
}

#[test]
fn a_flush_on_a_primary_that_was_left_behind_covers_what_was_written_through_it() {
    let mut plan = majority(3, 0, OnNoQuorum::IoError);
    plan.volatile_cache = true;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.run_seconds(1);
        // The link breaks without a word, and n0 is the last to notice.
        w.pause(0, 20);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        let other = w.open(1);
        w.write(1, 8);
        let flush = w.start(0, Op::Flush, 0, 0);
        let _ = w.finish(flush);
        w.close(1, other);
        w.close(0, opener);
        w.settle();
    });
}

/// The disk of a Primary fails under a write, and the only other one loses its power with it. The first
/// one is back while there is no quorum, which stays so: the second one may lack the write.
#[test]
fn a_frozen_primary_whose_disk_is_back_is_still_without_quorum() {
    scenario(Plan::majority(2, 0), |w| {
        w.form();
        let opener = w.open(1);
        w.write(1, 0);
        w.run_seconds(1);
        w.stall_disk(1, 30);
        let held = w.start(1, Op::Write { fua: false }, 8, 8);
        w.wait("n0 has it", |w| w.nodes[0].drive(0).is_some_and(|d| d.disk.tag(8) != 0));
        let volume = VolumeNr(0);
        w.granted(1, AdminCommand::Detach { volume, force: true, intentional: false });
        w.power_loss(0);
        w.release_disk(1);
        w.wait_lost(1, 0);
        w.attach_again(1);
        w.expect("it is frozen", |w| w.seen(1).suspended.quorum && !w.is_answered(held));
        w.start_node(0);
        w.finish(held).ok();
        w.write(1, 16);
        w.close(1, opener);
        w.settle();
    });
}
