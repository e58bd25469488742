//! Generations that a Primary without a current disk proposes, and what becomes of them.

use codec::wire::Packet;
use replication::io::{AdminCommand, Input, LinkLoss};
use sim::net::Pace;
use sim::plan::{MILLISECOND, Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::{OnNoDataAccessible, OnNoQuorum};
use vocab::{DiskState, GenUuid, HandlerEvent, HandlerSet, ReplState, VolumeNr};

const WRITE: Op = Op::Write { fua: false };

fn current(w: &World, node: usize) -> GenUuid {
    w.seen(node).volumes[0].current
}

/// n0 misses something of n1, and becomes Primary as soon as they meet again.
fn promoted_beside_its_resync(w: &mut World, sector: u64) -> u64 {
    w.cut(0, 1);
    w.wait_lost_all(0, [1]);
    let opener = w.open(1);
    w.write(1, sector);
    w.close(1, opener);
    w.wait_secondary(1);
    w.heal(0, 1);
    w.wait_connected(0, 1);
    w.open(0)
}

/// The end of its resync may bring the disk of the Primary to the generation that is proposed before
/// the source has said that it holds it.
#[test]
fn what_is_written_beside_the_end_of_a_resync_of_the_primary_is_reported() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        promoted_beside_its_resync(w, 0);
        w.write(0, 8);
    });
}

/// The source was told of what the Primary proposes, but what arrives is what it said before that:
/// at its end the resync leads to where the source is by then.
#[test]
fn a_target_that_is_promoted_ends_in_the_generation_that_its_source_takes() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        for round in 0..20 {
            let opener = promoted_beside_its_resync(w, round * 16);
            w.write(0, round * 16 + 8);
            w.wait_disk(0, DiskState::UpToDate);
            w.expect("they are in one generation", |w| current(w, 0).same(current(w, 1)));
            w.close(0, opener);
            w.settle();
        }
    });
}

/// A source that stops before it has what the Primary proposes comes back as what it was.
#[test]
fn a_source_that_was_lost_before_it_took_a_proposal_is_not_behind_it() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        for round in 0..20 {
            let opener = promoted_beside_its_resync(w, round * 16);
            w.stall_disk(1, 300);
            let id = w.start(0, WRITE, round * 16 + 8, 8);
            w.run_for(50_000_000);
            w.kill(1);
            w.wait_lost(0, 1);
            w.release_disk(1);
            w.start_node(1);
            w.finish(id).ok();
            w.close(0, opener);
            w.settle();
        }
    });
}

/// n1 has taken what n0 proposed and then gave up when its own disk was back. A client that meets n1
/// beside n0 is not led back by it, and neither of them waits for what n1 had.
#[test]
fn a_disk_with_a_proposal_that_was_given_up_is_not_the_newer_one() {
    let mut plan = Plan::majority(2, 1);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.run_seconds(1);
        let (volume, before) = (VolumeNr(0), current(w, 1));
        w.slow(1, 0, 20_000_000);
        w.granted(0, AdminCommand::Detach { volume, force: true, intentional: false });
        let id = w.start(0, WRITE, 8, 8);
        w.wait("n1 has a generation", |w| !current(w, 1).same(before));
        w.cut_off(0, [1, 2]);
        w.cut(1, 2);
        w.wait_lost_all(0, [1, 2]);
        w.wait_lost_all(1, [2]);
        w.attach_again(0);
        w.finish(id).ok();
        w.close(0, opener);
        w.wait_secondary(0);
        w.slow(1, 0, 100_000);
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.expect("n0 is current", |w| w.device(2, 0).disk == DiskState::UpToDate);
        w.heal(0, 1);
        w.settle();
        w.cut(0, 1);
        w.wait_lost_all(0, [1]);
        w.heal(0, 1);
        w.settle();
    });
}

/// n0 is Primary, and its disk is being resynced. What it has just written waits for quorum, and the
/// others are let in once that disk has got to where its users are.
#[test]
fn a_resync_does_not_wait_for_writes_that_wait_for_quorum_case_66() {
    scenario(Plan::majority(4, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        let volume = VolumeNr(0);
        w.granted(0, AdminCommand::Detach { volume, force: true, intentional: false });
        let id = w.start(0, WRITE, 0, 512);
        w.finish(id).ok();
        for peer in [1, 2, 3] {
            let peer = node_id(peer);
            w.granted(0, AdminCommand::PauseSync { peer, volume, pause: true });
        }
        w.attach_again(0);
        w.kill(3);
        w.wait_lost(0, 3);
        // n2 takes the generation that the write starts, n1 does not.
        w.stall_disk(1, 300);
        let id = w.start(0, WRITE, 4, 8);
        w.run_for(100_000_000);
        w.kill(1);
        w.wait_lost(0, 1);
        w.release_disk(1);
        for peer in [1, 2, 3] {
            let peer = node_id(peer);
            w.granted(0, AdminCommand::PauseSync { peer, volume, pause: false });
        }
        w.start_node(1);
        w.start_node(3);
        w.finish(id).ok();
        w.close(0, opener);
        w.settle();
    });
}

/// n2 is Primary, and its disk is being resynced. n1 comes when a write is on its way to n0 alone, and
/// takes the generation that this write started.
#[test]
fn a_second_source_of_a_primary_gets_what_is_under_way() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        w.cut_off(2, [0, 1]);
        w.wait_lost_all(2, [0, 1]);
        let opener = w.open(0);
        w.write(0, 0);
        w.close(0, opener);
        w.wait_secondary(0);
        w.run_seconds(2);
        w.cut(0, 1);
        w.wait_lost_all(0, [1]);
        w.heal(0, 2);
        w.wait_connected(0, 2);
        let opener = w.open(2);
        w.stall_disk(0, 5);
        let id = w.start(2, WRITE, 64, 8);
        w.run_for(20_000_000);
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.finish(id).ok();
        w.close(2, opener);
        w.heal(0, 1);
        w.settle();
    });
}

/// n2 takes what the Primary n1 proposes when that has given it up, and brings n0 there. By then n1
/// has brought n2 back. That n0 had left this generation behind means nothing any more.
#[test]
fn a_disk_that_is_brought_back_does_not_wait_for_what_it_had_brought_others_to() {
    let mut plan = Plan::majority(3, 0);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        let force = |volume| AdminCommand::Detach { volume, force: true, intentional: false };
        w.form();
        let opener = w.open(1);
        w.write(1, 0);
        w.run_seconds(1);
        w.granted(0, force(VolumeNr(0)));
        w.stall_disk(2, 30);
        w.granted(1, force(VolumeNr(0)));
        let id = w.start(1, WRITE, 64, 8);
        w.run_for(20_000_000);
        w.cut_off(2, [0, 1]);
        w.wait_lost_all(2, [0, 1]);
        w.release_disk(2);
        w.run_seconds(1);
        w.finish(id).ok();
        w.close(1, opener);
        w.wait_secondary(1);
        let both = [0, 1].map(|node| w.attach(node, 0).unwrap_or(0));
        w.wait("both are attached", |w| both.iter().all(|id| w.has_answer(*id)));
        w.wait_disk(0, DiskState::UpToDate);
        w.wait_disk(1, DiskState::UpToDate);
        w.cut(0, 1);
        w.wait_lost_all(0, [1]);
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.wait_disk(0, DiskState::UpToDate);
        w.heal(1, 2);
        w.wait("n2 is brought back", |w| {
            w.disk(2) == DiskState::UpToDate && current(w, 2).same(current(w, 1))
        });
        w.heal(0, 1);
        w.run_seconds(5);
        w.reset(0, 2);
        w.settle();
    });
}

/// n1 takes what the Primary n0 proposes when that has given it up. n2 is brought up to date by n0
/// then, and knows it as given up, too: n1 is resynced from n2, and not the other way round.
#[test]
fn what_was_given_up_is_known_as_that_to_whom_its_disk_has_brought_up_to_date() {
    let mut plan = Plan::majority(3, 0);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        let force = |volume| AdminCommand::Detach { volume, force: true, intentional: false };
        w.form();
        let opener = w.open(0);
        w.granted(2, force(VolumeNr(0)));
        w.write(0, 0);
        w.run_seconds(1);
        w.stall_disk(1, 30);
        w.granted(0, force(VolumeNr(0)));
        let id = w.start(0, WRITE, 64, 8);
        w.run_for(20_000_000);
        w.cut_off(1, [0, 2]);
        w.wait_lost_all(1, [0, 2]);
        w.release_disk(1);
        w.run_seconds(1);
        w.finish(id).ok();
        w.close(0, opener);
        w.wait_secondary(0);
        let both = [0, 2].map(|node| w.attach(node, 0).unwrap_or(0));
        w.wait("both are attached", |w| both.iter().all(|id| w.has_answer(*id)));
        w.wait_disk(0, DiskState::UpToDate);
        w.wait_disk(2, DiskState::UpToDate);
        let kept = current(w, 0);
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.run_seconds(5);
        w.expect("n2 is where it was", |w| current(w, 2).same(kept));
        w.heal(0, 1);
        w.settle();
    });
}

/// n0 does not hear the client that is Primary, and is Outdated by that, but lacks nothing. It says
/// that it is UpToDate once the client is no Primary any more, and n1 becomes Primary and writes
/// before that arrives.
#[test]
fn a_disk_that_was_left_behind_is_not_taken_for_current_by_its_word_of_before() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        let client = w.open(2);
        w.kill(0);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        w.cut(0, 2);
        w.start_node(0);
        w.wait_connected(0, 1);
        w.wait_disk(0, DiskState::Outdated);
        w.run_seconds(1);
        let delay = (MILLISECOND, 100 * MILLISECOND);
        w.net.set_pace(0, 1, Pace { delay, ..Pace::default() });
        w.close(2, client);
        let opener = w.open(1);
        let mut writes = Vec::new();
        for i in 0..400 {
            writes.push(w.start(1, WRITE, i * 8, 8));
            w.run_for(MILLISECOND / 4);
        }
        for id in writes {
            w.finish(id).ok();
        }
        w.net.set_pace(0, 1, Pace::default());
        w.heal(0, 2);
        w.close(1, opener);
        w.settle();
    });
}

/// Blocks that are resynced are under writes that wait for quorum, and the connection comes and
/// goes. Whatever waits for what, each loss of the connection is dealt with at once.
#[test]
fn a_connection_that_flaps_under_frozen_writes_and_a_resync_is_torn_down_case_66() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.kill(1);
        w.wait_lost(0, 1);
        for i in 0..64 {
            let id = w.start(0, WRITE, i * 512, 512);
            w.finish(id).ok();
        }
        w.start_node(1);
        w.wait("the resync runs", |w| {
            w.nodes[1].up() && w.device(1, 0).repl == ReplState::SyncTarget
        });
        // n2 is gone from here on: what is written waits, and n1 is not current yet.
        w.kill(2);
        let mut ids = Vec::new();
        for round in 0..6 {
            for i in 0..8 {
                ids.push(w.start(0, WRITE, (i * 7 + round) * 512, 64));
            }
            w.run_for(3_000_000 * (round + 1));
            w.reset(0, 1);
            let limit = w.now() + 30_000_000_000;
            w.wait_lost(0, 1);
            w.wait_lost(1, 0);
            w.wait_connected(0, 1);
            w.expect("it did not take long", |w| w.now() < limit);
        }
        w.start_node(2);
        for id in ids {
            w.finish(id).ok();
        }
        w.wait("n1 is current", |w| w.disk(1) == DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

/// n2 gets to the generation of n1 without n0 hearing of it, and is all that has the last write of a
/// lost Primary. n0 goes on. What n2 lacks of that, the slot of n1 tells; what it has of its own only
/// its own bits do.
#[test]
fn a_target_by_the_slot_of_another_keeps_the_bits_of_what_it_alone_has() {
    let mut plan = Plan::quiet(3, 1);
    plan.workload.nodes = vec![3];
    scenario(plan, |w| {
        w.form();
        w.open(3);
        w.write(3, 0);
        w.kill(2);
        w.wait_lost(3, 2);
        w.write(3, 8);
        w.cut_off(0, [1, 2]);
        w.wait_lost_all(0, [1]);
        w.start_node(2);
        w.wait("n2 has caught up", |w| current(w, 2).same(current(w, 0)));
        w.wait_connected(2, 3);
        w.wait_disk(2, DiskState::UpToDate);
        w.cut_off(1, [2, 3]);
        w.cut(0, 3);
        w.start(3, WRITE, 16, 8);
        w.run_for(20_000_000);
        w.kill(3);
        w.wait_lost(0, 3);
        w.wait_lost(2, 3);
        w.wait_lost(2, 1);
        let opener = w.open(0);
        w.write(0, 24);
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.wait_disk(2, DiskState::UpToDate);
        w.close(0, opener);
        w.rejoin(1, [0, 2, 3]);
        w.rejoin(0, [1, 2, 3]);
        w.start_node(3);
        w.settle();
    });
}

/// n0 has a write that n1 has not got yet, gives its disk up and takes it back, and is resynced from
/// n1. The Primary meets n1 again and sends it the write: n0 had it, and has fetched the block.
#[test]
fn what_a_source_gets_again_its_target_is_told_of_though_it_had_it_once() {
    let mut plan = Plan::quiet(2, 1);
    plan.workload.nodes = vec![2];
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    let (peer, volume) = (node_id(1), VolumeNr(0));
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        for extent in 1..6 {
            w.write(2, extent * 8192);
        }
        w.cut(1, 2);
        let id = w.start(2, WRITE, 0, 8);
        w.run_for(20_000_000);
        w.detach(0);
        w.wait_lost_all(1, [2]);
        w.expect("the write is held", |w| !w.is_answered(id));
        w.attach_again(0);
        w.wait_disk(0, DiskState::Inconsistent);
        w.run_for(8_000_000);
        w.granted(0, AdminCommand::PauseSync { peer, volume, pause: true });
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.granted(0, AdminCommand::PauseSync { peer, volume, pause: false });
        w.finish(id).expect("n1 has it");
        w.close(2, opener);
        w.settle();
    });
}

/// n1 is to be resynced from both others. n0 goes on without n2, which hears of that late: it is
/// Consistent, and behind, when n1 becomes Primary. What n1 starts then is not for n2 to follow.
#[test]
fn a_consistent_disk_that_was_left_behind_does_not_follow_a_primary_that_is_resynced() {
    let volume = VolumeNr(0);
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        w.cut_off(1, [0, 2]);
        let first = w.open(0);
        w.write(0, 0);
        for peer in [node_id(0), node_id(2)] {
            w.granted(1, AdminCommand::PauseSync { peer, volume, pause: true });
        }
        w.rejoin(1, [0, 2]);
        w.wait("n1 is to be resynced", |w| {
            let waits = |peer| w.device(1, peer).repl == ReplState::PausedSyncT;
            w.connected(1, 0) && w.connected(1, 2) && waits(0) && waits(2)
        });
        w.cut(0, 2);
        let loss = LinkLoss::Stalled;
        w.input_of_scenario(0, Input::LinkDown { peer: node_id(2), loss });
        w.write(0, 8);
        w.input_of_scenario(2, Input::LinkDown { peer: node_id(0), loss });
        w.wait_disk(2, DiskState::Consistent);
        w.close(0, first);
        let second = w.open(1);
        w.run_for(5_000_000);
        w.write(1, 16);
        w.expect("n2 stays where it was", |w| !current(w, 2).same(current(w, 0)));
        for peer in [node_id(2), node_id(0)] {
            w.granted(1, AdminCommand::PauseSync { peer, volume, pause: false });
        }
        w.wait_disk(1, DiskState::UpToDate);
        w.wait_disk(2, DiskState::UpToDate);
        w.read(1, 8);
        w.close(1, second);
    });
}

/// n1 is to be resynced from n0 within one generation, of what a client had sent to both. When it has
/// agreed to that, and before n0 has heard so, it takes the next generation of the client.
#[test]
fn a_generation_that_comes_while_two_connect_is_not_undone_by_their_resync() {
    let mut plan = Plan::quiet(2, 1);
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.run_seconds(1);
        w.cut(0, 1);
        w.wait_lost_all(0, [1]);
        w.write(2, 8);
        // All is on both disks, but n0 has not heard that n1 has it, too.
        w.run_for(20_000_000);
        w.lose_what_is_under_way(2, 0);
        w.run_seconds(2);
        for (from, to) in [(0, 1), (1, 0)] {
            w.slow(from, to, 20_000_000);
        }
        let agrees = w.tap(1, 0, |p| matches!(p, Packet::TwoPcYes(..)));
        w.heal(0, 1);
        w.wait("n1 agrees", |w| w.tapped(agrees) > 0);
        w.write(2, 16);
        w.run_seconds(2);
        w.expect("n1 has the write", |w| w.nodes[1].drive(0).is_some_and(|d| d.disk.tag(16) != 0));
        w.slow(0, 1, 100_000);
        w.slow(1, 0, 100_000);
        w.read(2, 16);
        w.heal(0, 2);
        w.close(2, opener);
        w.settle();
    });
}

/// What the client and n0 wrote last had no quorum, and n1 and n2 have gone on from before it. The
/// client meets n1 while it is still connected to n0. (Seed 60009139.)
#[test]
fn a_client_that_goes_over_to_the_majority_leaves_the_disk_behind_that_it_wrote_to() {
    let mut plan = Plan::majority(3, 1);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(3);
        w.write(3, 0);
        w.cut_off(3, [1, 2]);
        w.wait_lost_all(3, [1, 2]);
        w.cut_off(0, [1, 2]);
        let write = w.start(3, Op::Write { fua: false }, 8, 8);
        w.wait_lost_all(0, [1, 2]);
        w.wait("it is answered", |w| w.is_answered(write));
        w.close(3, opener);
        w.wait_secondary(3);
        w.write_after_open(1, 64);
        w.wait_secondary(1);
        w.heal(1, 3);
        w.wait_connected(1, 3);
        w.expect("n0 is no equal of n1", |w| w.device(3, 0).disk <= DiskState::Outdated);
        let opener = w.open(3);
        for _ in 0..4 {
            w.read(3, 64);
        }
        w.write(3, 128);
        w.flush(3);
        // Written on both sides since: the one with quorum wins.
        w.heal(0, 1);
        w.wait_disk(0, DiskState::UpToDate);
        w.rejoin(2, [0, 3]);
        w.close(3, opener);
        w.settle();
    });
}

/// n0 is down and n4 cut off, with a disk that it takes for old: the three others write.
fn only_the_middle_goes_on(w: &mut World) {
    w.form();
    w.kill(0);
    w.wait_lost(4, 0);
    w.cut_off(4, [1, 2, 3]);
    w.wait_lost_all(4, [1, 2, 3]);
    w.granted(4, AdminCommand::Outdate { volume: VolumeNr(0) });
}

/// n0 is back, meets n4 alone, and is to be its source as soon as a handler has ended.
fn is_asked_before_a_resync_from_the_old_disk(w: &mut World) {
    w.start_node(0);
    w.heal(0, 4);
    w.wait_connected(0, 4);
    w.admin(4, AdminCommand::Invalidate { volume: VolumeNr(0), from: Some(node_id(0)) });
    w.wait("it is asked before the resync", |w| w.device(4, 0).repl.is_target());
}

/// n4 is behind, and about to be resynced from n0, which does not know that it is, too. What n3 has is
/// newer, though n3 stopped under writes and does not take it for current: n0 is not either, and
/// nobody becomes Primary by its data (seed 5000421).
#[test]
fn a_source_that_another_one_leaves_behind_is_not_current_any_more() {
    let mut plan = Plan::majority(5, 0);
    plan.handlers = HandlerSet::ALL;
    scenario(plan, |w| {
        only_the_middle_goes_on(w);
        w.open(1);
        w.write(1, 0);
        w.stall_disk(3, 300);
        w.start(1, WRITE, 8, 8);
        w.run_for(20 * MILLISECOND);
        for node in [3, 1, 2] {
            w.kill(node);
        }
        w.release_disk(3);
        w.hold_handler(HandlerEvent::BeforeResyncTarget);
        w.cut(0, 3);
        is_asked_before_a_resync_from_the_old_disk(w);
        w.heal(3, 4);
        w.start_node(3);
        w.wait_connected(3, 4);
        w.run_seconds(1);
        w.expect("n3 has to ask others", |w| w.disk(3) == DiskState::Consistent);
        w.expect("n0 is not current", |w| w.device(4, 0).disk != DiskState::UpToDate);
        assert!(w.try_open(4).is_err(), "nobody has what was written last for sure");
        w.release_handler(HandlerEvent::BeforeResyncTarget, Some(0));
        w.run_seconds(2);
        for node in [1, 2] {
            w.start_node(node);
        }
        w.rejoin(4, [1, 2]);
        w.heal(0, 3);
        w.settle();
    });
}

/// The same, where what is newer comes by a resync of a disk that is connected already.
#[test]
fn a_source_that_the_resync_of_another_one_leaves_behind_is_not_current_any_more() {
    let mut plan = Plan::majority(5, 0);
    plan.handlers = HandlerSet::ALL;
    scenario(plan, |w| {
        only_the_middle_goes_on(w);
        let opener = w.open(1);
        for sector in 0..8 {
            w.write(1, sector * 8);
        }
        w.close(1, opener);
        w.kill(3);
        w.replace_disk(3);
        w.cut_off(3, [0, 1, 2]);
        w.hold_handler(HandlerEvent::BeforeResyncTarget);
        w.cut_off(0, [1, 2]);
        is_asked_before_a_resync_from_the_old_disk(w);
        w.heal(3, 4);
        w.start_node(3);
        w.wait_connected(3, 4);
        w.handler_exits(HandlerEvent::BeforeResyncTarget, Some(0));
        w.heal(1, 3);
        w.wait("n3 has what was written", |w| w.device(4, 3).disk == DiskState::UpToDate);
        w.expect("n0 is not current", |w| w.device(4, 0).disk != DiskState::UpToDate);
        if let Ok(opener) = w.try_open(4) {
            for sector in 0..8 {
                w.read(4, sector * 8);
            }
            w.close(4, opener);
        }
        w.release_handler(HandlerEvent::BeforeResyncTarget, Some(0));
        w.rejoin(4, [1, 2]);
        w.rejoin(0, [1, 2, 3]);
        w.heal(2, 3);
        w.settle();
    });
}
