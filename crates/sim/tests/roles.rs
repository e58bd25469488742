//! Hard cases 44 to 53 and 92 to 94 of semantics §14: promotion, demotion and the connections
//! that come and go meanwhile.

use std::time::Duration;

use replication::io::{AdminCommand, Input, LinkLoss};
use sim::plan::{Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::{NetOptions, OnNoDataAccessible};
use vocab::{ConnState, DiskState, ReplState, Role, VolumeNr};

const WRITE: Op = Op::Write { fua: false };

fn three() -> Plan {
    Plan::majority(3, 0)
}

fn primaries(w: &World) -> usize {
    (0..w.nodes.len()).filter(|n| w.is_primary(*n)).count()
}

#[test]
fn of_two_nodes_that_promote_at_once_one_wins_or_none_case_45() {
    scenario(three(), |w| {
        w.form();
        for _ in 0..5 {
            let a = w.admin(0, AdminCommand::Primary { force: false });
            let b = w.admin(2, AdminCommand::Primary { force: false });
            w.wait("both are answered", |w| w.has_answer(a) && w.has_answer(b));
            w.expect("at most one is Primary", |w| primaries(w) <= 1);
            for node in [0, 2] {
                if w.is_primary(node) {
                    w.demote(node);
                }
            }
        }
        w.settle();
    });
}

#[test]
fn promotions_end_while_nodes_come_and_go_case_46() {
    scenario(three(), |w| {
        w.form();
        for round in 0..6 {
            let leaver = round % 3;
            let promoter = (round + 1) % 3;
            w.kill(leaver);
            w.run_for(20_000_000);
            w.start_node(leaver);
            if let Ok(opener) = w.try_open(promoter) {
                // The only good disk may just have become uncertain; then there is nothing to write to.
                let write = w.start(promoter, WRITE, 8 * round as u64, 8);
                w.finish(write).ok();
                w.close(promoter, opener);
            }
        }
        w.settle();
    });
}

#[test]
fn simultaneous_disconnects_end_case_51() {
    scenario(three(), |w| {
        w.form();
        let opener = w.open(2);
        let a = w.admin(0, AdminCommand::Disconnect { peer: node_id(1), force: false });
        let b = w.admin(2, AdminCommand::Disconnect { peer: node_id(0), force: false });
        w.wait("both are answered", |w| w.has_answer(a) && w.has_answer(b));
        w.write(2, 0);
        for (a, b) in [(0, 1), (1, 0), (2, 0), (0, 2)] {
            let command = AdminCommand::Connect { peer: node_id(b), discard_my_data: false };
            w.ask(a, command).ok();
        }
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_link_that_dies_within_a_transaction_leaves_no_locks_case_49() {
    scenario(three(), |w| {
        w.form();
        for delay in [100_000, 1_000_000, 5_000_000, 20_000_000] {
            let id = w.admin(0, AdminCommand::Primary { force: false });
            w.run_for(delay);
            w.cut(0, 2);
            w.wait("the promotion is answered", |w| w.has_answer(id));
            if w.is_primary(0) {
                w.demote(0);
            }
            w.heal(0, 2);
            w.wait_connected(0, 2);
            let opener = w.open(1);
            w.close(1, opener);
            w.wait("nobody is Primary", |w| primaries(w) == 0);
        }
        w.settle();
    });
}

#[test]
fn a_promotion_beside_a_connect_is_seen_by_the_newcomer_case_52() {
    scenario(three(), |w| {
        w.form();
        w.kill(2);
        w.wait_lost(0, 2);
        w.wait_lost(1, 2);
        w.start_node(2);
        let opener = w.open(0);
        w.write(0, 0);
        w.wait_connected(0, 2);
        w.wait("n2 sees the Primary", |w| {
            w.seen(2).peers[0].as_ref().is_some_and(|p| p.role == Role::Primary)
        });
        w.write(0, 8);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_demotion_beside_a_connect_succeeds_case_40() {
    scenario(three(), |w| {
        w.form();
        w.promote(0);
        w.kill(2);
        w.wait_lost(0, 2);
        w.start_node(2);
        w.run_for(100_000_000);
        let begun = w.now();
        w.demote(0);
        w.expect("it did not take long", |w| w.now() - begun < 10_000_000_000);
        w.settle();
    });
}

#[test]
fn a_reader_on_a_secondary_delays_a_promotion_only_while_it_reads_case_93() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let reader = 77;
        let volume = VolumeNr(0);
        w.nodes[1].openers.insert(reader, (usize::MAX, false));
        w.input_of_scenario(
            1,
            Input::Open { volume, opener: reader, write: false, patient: false },
        );
        w.run_for(100_000_000);
        let id = w.admin(0, AdminCommand::Primary { force: false });
        w.run_for(500_000_000);
        w.nodes[1].openers.remove(&reader);
        w.input_of_scenario(1, Input::Close { volume, opener: reader });
        w.wait("the promotion is answered", |w| w.has_answer(id));
        w.promote(0);
        w.demote(0);
        w.settle();
    });
}

#[test]
fn who_opens_for_reading_waits_for_a_promotion_that_is_under_way() {
    scenario(three(), |w| {
        w.form();
        // Node 1 has said that nobody reads there; node 2 takes its time.
        w.slow(2, 0, 100_000_000);
        let promotion = w.admin(0, AdminCommand::Primary { force: false });
        w.run_for(150_000_000);
        w.expect("the promotion is under way", |w| !w.has_answer(promotion));
        if w.try_open_reader(1).is_ok() {
            w.violate("28", "a reader was let in beside a Primary");
        }
        w.expect("the reader has waited", |w| w.is_primary(0));
        w.cut_off(0, [1, 2]);
        w.wait_lost_all(0, [1, 2]);
        w.rejoin(0, [1, 2]);
        w.demote(0);
        w.settle();
    });
}

#[test]
fn a_patient_reader_waits_for_the_last_writer_to_leave_and_not_for_ever() {
    let mut plan = three();
    plan.resource.auto_promote_timeout = std::time::Duration::from_secs(3);
    scenario(plan, |w| {
        w.form();
        let writer = w.open(0);
        let begun = w.now();
        let refused = w.try_open_reader(1).is_err();
        w.expect("who has no patience is told at once", |w| {
            refused && w.now() - begun < 100_000_000
        });
        let refused = w.try_open_patient_reader(1).is_err();
        w.expect("who has is told later", |w| refused && w.now() - begun >= 3_000_000_000);
        w.write(0, 0);
        w.nodes[1].openers.insert(77, (usize::MAX, false));
        let patient = Input::Open { volume: VolumeNr(0), opener: 77, write: false, patient: true };
        w.input_of_scenario(1, patient);
        w.run_for(1_000_000_000);
        w.close(0, writer);
        w.wait("the reader is let in", |w| {
            w.nodes[1].openers.get(&77).is_some_and(|(_, open)| *open)
        });
        w.nodes[1].openers.remove(&77);
        w.input_of_scenario(1, Input::Close { volume: VolumeNr(0), opener: 77 });
        w.settle();
    });
}

#[test]
fn an_open_right_after_the_primary_died_waits_and_succeeds_case_94() {
    let mut plan = three();
    plan.resource.auto_promote_timeout = std::time::Duration::from_secs(30);
    scenario(plan, |w| {
        w.form();
        w.open(0);
        w.write(0, 0);
        w.power_loss(0);
        let opener = w.open(1);
        w.read(1, 0);
        w.write(1, 8);
        w.close(1, opener);
        w.start_node(0);
        w.settle();
    });
}

#[test]
fn openers_of_a_forcibly_demoted_node_fail_until_they_are_gone() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.granted(0, AdminCommand::Secondary { force: true });
        w.write_fails(0, 8);
        w.refused(0, AdminCommand::Primary { force: false });
        if w.try_open(0).is_ok() {
            w.violate("28", "an open succeeded while I/O fails on purpose");
        }
        w.close(0, opener);
        let opener = w.open(0);
        w.write(0, 8);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn roles_move_between_nodes_under_load() {
    scenario(three(), |w| {
        w.form();
        for round in 0..9_u64 {
            let node = (round % 3) as usize;
            let opener = w.open(node);
            let ids: Vec<u64> =
                (0..6).map(|i| w.start(node, WRITE, (round * 5 + i) % 40 * 4, 8)).collect();
            for id in ids {
                w.finish(id).ok();
            }
            w.read(node, round % 3 * 8);
            w.close(node, opener);
            w.wait("nobody is Primary", |w| primaries(w) == 0);
        }
        w.settle();
    });
}

#[test]
fn a_read_error_on_a_server_is_answered_by_the_other_case_80() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.nodes[0].drives[0].as_mut().expect("a disk").disk.behaviour.read_errors = 100;
        for _ in 0..6 {
            w.read(2, 0);
        }
        w.nodes[0].drives[0].as_mut().expect("a disk").disk.behaviour.read_errors = 0;
        if w.disk(0) == DiskState::Diskless {
            w.attach_again(0);
        }
        w.wait_disk(0, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_primary_whose_disk_fails_goes_on_through_its_peer_case_79() {
    scenario(three(), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.nodes[0].drives[0].as_mut().expect("a disk").disk.behaviour.write_errors = 100;
        for i in 0..5 {
            w.write(0, i * 8);
            w.read(0, i * 8);
        }
        w.wait_disk(0, DiskState::Diskless);
        w.nodes[0].drives[0].as_mut().expect("a disk").disk.behaviour.write_errors = 0;
        w.attach_again(0);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_disk_that_stops_answering_can_be_detached_by_force_case_78() {
    scenario(three(), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.stall_disk(0, 60);
        let id = w.start(0, WRITE, 8, 8);
        w.run_for(100_000_000);
        let command = AdminCommand::Detach { volume: VolumeNr(0), force: true, intentional: false };
        w.granted(0, command);
        w.finish(id).ok();
        w.write(0, 8);
        w.read(0, 8);
        w.run_seconds(70);
        w.attach_again(0);
        w.wait_disk(0, DiskState::UpToDate);
        w.read(0, 8);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_stopped_primary_completes_what_the_next_one_had_confirmed_before() {
    scenario(three(), |w| {
        w.form();
        w.open(0);
        let force = |peer| AdminCommand::Disconnect { peer: node_id(peer), force: true };
        w.granted(1, force(0));
        w.wait_lost(0, 1);
        w.write(0, 0);
        // n2 has it, and its answer is on its way.
        let last = w.start(0, WRITE, 8, 8);
        w.wait("n2 has the write", |w| w.nodes[2].drive(0).is_some_and(|d| d.disk.tag(8) != 0));
        w.nodes[0].paused_until = w.now() + 2_000_000_000;
        w.run_for(20_000_000);
        w.granted(2, force(0));
        let opener = w.open(2);
        w.write(2, 16);
        w.finish(last).ok();
        w.write(2, 24);
        w.read(2, 8);
        for node in [1, 2] {
            w.connect(node, 0);
            w.connect(0, node);
        }
        w.close(2, opener);
        w.granted(0, AdminCommand::Secondary { force: true });
        w.settle();
    });
}

#[test]
fn of_two_stopped_primaries_the_first_one_says_nothing_about_the_second() {
    scenario(Plan::majority(5, 0), |w| {
        w.form();
        let force = |peer| AdminCommand::Disconnect { peer: node_id(peer), force: true };
        w.open(0);
        w.write(0, 0);
        w.pause(0, 6);
        for node in 1..5 {
            w.granted(node, force(0));
        }
        let second = w.open(1);
        w.granted(4, force(1));
        w.wait_lost(1, 4);
        w.write(1, 8);
        // n2 and n3 have it, and their answers are on their way.
        let last = w.start(1, WRITE, 16, 8);
        w.wait("n2 and n3 have the write", |w| {
            [2, 3].into_iter().all(|n| w.nodes[n].drive(0).is_some_and(|d| d.disk.tag(16) != 0))
        });
        w.pause(1, 2);
        w.run_for(20_000_000);
        w.granted(2, force(1));
        w.granted(3, force(1));
        let opener = w.open(2);
        w.write(2, 24);
        w.run_seconds(3);
        w.write(2, 32);
        w.run_seconds(5);
        for stopped in [0, 1] {
            w.granted(stopped, AdminCommand::Secondary { force: true });
        }
        w.finish(last).ok();
        w.close(1, second);
        w.close(2, opener);
        for (a, b) in (0..5).flat_map(|a| (0..5).map(move |b| (a, b))).filter(|(a, b)| a != b) {
            w.connect(a, b);
        }
        w.settle();
    });
}

#[test]
fn an_outdated_disk_is_current_beside_a_primary_only_if_that_agrees() {
    scenario(three(), |w| {
        w.form();
        w.open(0);
        let force = |peer| AdminCommand::Disconnect { peer: node_id(peer), force: true };
        w.granted(1, force(0));
        w.wait_lost(0, 1);
        w.write(0, 0);
        w.granted(2, force(0));
        // n1 gets what it missed, and is Outdated as long as n0 may be writing.
        w.wait("n1 has it", |w| {
            let repl = [w.device(1, 2).repl, w.device(2, 1).repl];
            w.nodes[1].drive(0).is_some_and(|d| d.disk.tag(0) != 0)
                && repl == [ReplState::Established; 2]
        });
        w.run_for(20_000_000);
        let opener = w.open(2);
        w.write(2, 16);
        w.write(2, 24);
        w.wait_disk(1, DiskState::UpToDate);
        w.granted(0, AdminCommand::Secondary { force: true });
        for node in [1, 2] {
            w.connect(node, 0);
            w.connect(0, node);
        }
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_primary_that_has_not_noticed_its_loss_reads_from_its_own_disk() {
    scenario(three(), |w| {
        w.form();
        let old = w.open(0);
        w.write(0, 0);
        // It has nothing to say to them any more.
        w.run_seconds(1);
        // The others have left, and their last word is on its way for a long time.
        let force = |peer| AdminCommand::Disconnect { peer: node_id(peer), force: true };
        for node in [1, 2] {
            w.slow(node, 0, 4_000_000_000);
            w.granted(node, force(0));
        }
        let new = w.open(2);
        w.write(2, 0);
        w.close(2, new);
        w.wait_secondary(2);
        w.expect("n0 knows of nothing", |w| w.seen(0).volumes[0].quorum);
        w.read(0, 0);
        w.wait("n0 knows", |w| !w.seen(0).volumes[0].quorum);
        w.granted(0, AdminCommand::Secondary { force: true });
        w.close(0, old);
        for node in [1, 2] {
            w.slow(node, 0, 30_000);
            w.connect(node, 0);
            w.connect(0, node);
        }
        w.settle();
    });
}

#[test]
fn a_neighbour_not_known_to_be_lost_does_not_make_an_overtaken_disk_current() {
    scenario(Plan::majority(4, 0), |w| {
        w.form();
        w.cut(0, 3);
        w.wait_lost(0, 3);
        w.wait_lost(3, 0);
        // Only n2 knows that it has lost n3, which hears of the new generation from n1.
        w.cut(2, 3);
        w.granted(2, AdminCommand::Disconnect { peer: node_id(3), force: true });
        // Refused while the loss is being agreed on.
        let mut opened = w.try_open(0);
        for _ in 0..100 {
            if opened.is_err() {
                w.run_for(10_000_000);
                opened = w.try_open(0);
            }
        }
        let opener = opened.unwrap_or_else(|_| w.open(0));
        w.write(0, 8);
        w.wait_disk(3, DiskState::Outdated);
        w.close(0, opener);
        w.wait_secondary(0);
        w.run_for(20_000_000);
        w.heal(0, 3);
        w.heal(2, 3);
        w.connect(2, 3);
        w.settle();
    });
}

/// n1 stops before it reads the answers to what it asks the others about its promotion. When it
/// goes on, they have long given it up and written: the answers are from before that.
#[test]
fn answers_that_were_not_read_in_time_count_for_nothing() {
    scenario(three(), |w| {
        w.form();
        w.run_seconds(1);
        w.slow(1, 0, 5_000_000);
        w.slow(1, 2, 5_000_000);
        w.admin(1, AdminCommand::Primary { force: false });
        w.run_for(8_000_000);
        w.nodes[1].paused_until = w.now() + 30_000_000_000;
        w.wait_lost(0, 1);
        w.wait_lost(2, 1);
        let opener = w.open(2);
        w.write(2, 0);
        w.close(2, opener);
        w.wait_secondary(2);
        w.run_seconds(30);
        w.expect("n1 was not promoted", |w| !w.is_primary(1));
        w.settle();
    });
}

#[test]
fn a_primary_that_has_not_noticed_that_it_is_cut_off_can_be_opened() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        w.open(0);
        w.cut_off(0, [1, 2]);
        for node in [1, 2] {
            let loss = LinkLoss::Stalled;
            w.input_of_scenario(node, Input::LinkDown { peer: node_id(0), loss });
            w.wait_lost(node, 0);
        }
        let opener = w.open(1);
        w.write(1, 0);
        w.close(1, opener);
        w.wait_secondary(1);
        // It waits for answers to its pings.
        w.start(0, WRITE, 8192, 8);
        w.open(0);
        w.expect("n0 is Primary", |w| w.is_primary(0));
    });
}

#[test]
fn a_node_that_takes_a_dead_node_for_primary_finds_out_before_it_follows_another() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        w.open(0);
        w.write(0, 0);
        w.granted(2, AdminCommand::Disconnect { peer: node_id(1), force: true });
        w.cut(0, 2);
        w.power_loss(0);
        w.start_node(0);
        w.wait_connected(0, 1);
        let opener = w.open(1);
        w.expect("n2 has heard nothing", |w| {
            w.seen(2).peers[0].as_ref().is_some_and(|p| p.conn == ConnState::Connected)
        });
        w.connect(2, 1);
        w.wait_connected(1, 2);
        w.heal(0, 2);
        w.close(1, opener);
        w.settle();
    });
}

/// Nothing that n1 and n2 have is current.
fn neither_goes_on(w: &mut World) {
    w.wait_connected(1, 2);
    w.run_seconds(5);
    for node in [1, 2] {
        if w.try_open(node).is_ok() {
            w.violate("expect", format!("n{node} was promoted with old data"));
        }
    }
}

#[test]
fn a_node_that_is_disconnected_is_outdated_even_if_it_stops_before_it_hears_so() {
    scenario(three(), |w| {
        w.form();
        let opener = w.open(0);
        w.disconnect(0, 1);
        w.admin(0, AdminCommand::Disconnect { peer: node_id(2), force: false });
        w.wait("that is committed", |w| w.device(0, 2).disk == DiskState::Outdated);
        w.kill(2);
        w.write(0, 0);
        w.start_node(2);
        neither_goes_on(w);
        w.close(0, opener);
        w.connect(0, 1);
        w.connect(0, 2);
        w.settle();
    });
}

#[test]
fn a_node_that_agreed_to_leave_and_hears_no_more_is_outdated() {
    scenario(three(), |w| {
        w.form();
        let opener = w.open(0);
        w.disconnect(0, 1);
        w.admin(0, AdminCommand::Disconnect { peer: node_id(2), force: false });
        w.wait("that is committed", |w| w.device(0, 2).disk == DiskState::Outdated);
        w.cut(0, 2);
        w.write(0, 0);
        w.wait_lost(2, 0);
        neither_goes_on(w);
        w.close(0, opener);
        w.heal(0, 2);
        w.connect(0, 1);
        w.connect(0, 2);
        w.settle();
    });
}

#[test]
fn a_node_that_a_new_primary_does_not_reach_is_outdated_even_if_it_stops_at_once() {
    scenario(three(), |w| {
        w.form();
        w.cut(0, 2);
        w.wait_lost_all(0, [2]);
        w.run_seconds(1);
        w.admin(0, AdminCommand::Primary { force: false });
        w.wait("n0 is Primary", |w| w.is_primary(0));
        w.kill(2);
        w.expect("n2 counts as Outdated", |w| w.device(0, 2).disk == DiskState::Outdated);
        w.disconnect(0, 1);
        let opener = w.open(0);
        w.write(0, 0);
        w.start_node(2);
        neither_goes_on(w);
        w.close(0, opener);
        w.demote(0);
        w.heal(0, 2);
        w.connect(0, 1);
        w.settle();
    });
}

#[test]
fn a_node_that_a_new_primary_does_not_reach_is_outdated_though_the_one_between_hears_no_end() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        w.cut(0, 1);
        w.wait_lost_all(0, [1]);
        w.run_seconds(1);
        w.admin(1, AdminCommand::Primary { force: false });
        w.wait("n1 is Primary", |w| w.is_primary(1));
        w.cut(1, 2);
        w.wait_lost_all(1, [2]);
        let opener = w.open(1);
        w.write(1, 0);
        w.run_seconds(5);
        if w.try_open(0).is_ok() {
            w.violate("expect", "n0 was promoted with old data".to_owned());
        }
        w.close(1, opener);
        w.demote(1);
        w.rejoin(1, [0, 2]);
        w.settle();
    });
}

#[test]
fn a_node_that_disconnects_says_so_on_its_disk_first() {
    scenario(three(), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.stall_disk(2, 60);
        w.admin(2, AdminCommand::Disconnect { peer: node_id(0), force: false });
        w.run_seconds(1);
        w.kill(2);
        w.wait_lost(0, 2);
        w.expect("n0 does not count on it", |w| w.device(0, 2).disk != DiskState::Outdated);
        w.release_disk(2);
        w.start_node(2);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn what_a_demoted_primary_wrote_last_reaches_who_is_resynced_from_another_node() {
    let mut plan = three();
    plan.net.ping_int = Duration::from_secs(120);
    plan.net.ko_count = 1;
    scenario(plan, |w| {
        w.form();
        w.run_seconds(1);
        let opener = w.open(0);
        w.write(0, 0);
        // n1 does not notice that it hears the Primary no more, until it hears of the demotion.
        w.cut(0, 1);
        w.write(0, 8);
        w.slow(2, 1, 20_000_000);
        w.close(0, opener);
        w.wait("n1 is resynced from n2", |w| w.device(1, 2).repl == ReplState::SyncTarget);
        // Somebody writes meanwhile who does not reach it.
        let opener = w.open(0);
        w.slow(2, 1, 30_000);
        w.run_seconds(1);
        w.write(0, 16);
        w.run_for(30_000_000);
        // Who has the write comes on one stream, and that nobody is Primary any more on another.
        w.cut(0, 2);
        w.close(0, opener);
        w.heal(0, 2);
        w.wait_disk(1, DiskState::UpToDate);
        w.expect("n1 has what was written", |w| {
            let (a, b) = (w.nodes[1].drive(0), w.nodes[2].drive(0));
            a.zip(b).is_some_and(|(a, b)| a.disk.first_difference(&b.disk, 0).is_none())
        });
        w.heal(0, 1);
        w.settle();
    });
}

#[test]
fn a_client_that_was_left_behind_is_demoted_by_force_while_all_are_connected() {
    let mut plan = Plan::quiet(2, 1);
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.cut_off(0, [1, 2]);
        w.wait_lost_all(0, [1, 2]);
        w.write(2, 8);
        w.cut(1, 2);
        let held = w.start(2, WRITE, 16, 8);
        w.wait_lost_all(1, [2]);
        // n1 goes on without the client, which meets n0 and knows that it is old.
        let next = w.open(1);
        w.write(1, 24);
        w.close(1, next);
        w.wait_secondary(1);
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.heal(0, 1);
        w.wait("n0 is where n1 is", |w| {
            let device = w.device(1, 0);
            w.connected(0, 1)
                && device.repl == ReplState::Established
                && device.disk == DiskState::UpToDate
        });
        // And n1 while it is being resynced from n0.
        let (peer, volume) = (node_id(0), VolumeNr(0));
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: true });
        w.granted(1, AdminCommand::Invalidate { volume, from: Some(peer) });
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.granted(1, AdminCommand::PauseSync { peer, volume, pause: false });
        w.wait_disk(1, DiskState::UpToDate);
        w.expect("the client waits", |w| w.is_primary(2) && !w.is_answered(held));
        w.granted(2, AdminCommand::Secondary { force: true });
        w.finish(held).ok();
        w.close(2, opener);
        w.settle();
    });
}

/// A node that its Primary has given up, without knowing, is told
/// by a third one that the Primary is demoted. Its disk lacks what was written since.
#[test]
fn a_demotion_told_by_a_third_node_is_no_end_in_good_order() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        let options = NetOptions { ping_int: Duration::from_secs(1), ..w.plan.net.clone() };
        w.granted(0, AdminCommand::NetOptions(node_id(2), Box::new(options)));
        w.cut(0, 2);
        w.wait_lost(0, 2);
        w.expect("the other one does not know", |w| {
            w.seen(2).peers[0].is_some() && {
                w.seen(2).peers[0].as_ref().is_some_and(|p| p.conn == ConnState::Connected)
            }
        });
        w.write(0, 0);
        w.detach(1);
        w.close(0, opener);
        if let Ok(opener) = w.try_open(2) {
            w.read(2, 0);
            w.close(2, opener);
        }
        w.heal(0, 2);
        w.attach_again(1);
        w.settle();
    });
}
