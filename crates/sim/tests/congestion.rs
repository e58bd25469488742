//! Connections that can not keep up: Ahead and Behind (semantics §8.7, §14 case 87).

use std::time::Duration;

use codec::wire::Packet;
use replication::io::AdminCommand;
use sim::net::Pace;
use sim::plan::{MILLISECOND, Plan, SECOND, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::{OnCongestion, Protocol, Quorum};
use vocab::{
    ConfigError, ConnState, DiskState, HandlerEvent, HandlerSet, RefusalCode, ReplState, Sectors,
    VolumeNr,
};

const WRITE: Op = Op::Write { fua: false };
const EXTENT: u64 = 8192;

/// Protocol A; a peer is left behind with 4 writes of a scenario under way.
fn pull_ahead(diskful: usize, diskless: usize) -> Plan {
    let mut plan = Plan::quiet(diskful, diskless);
    plan.net.protocol = Protocol::A;
    plan.net.on_congestion = OnCongestion::PullAhead;
    plan.net.congestion_fill = Sectors(32);
    plan
}

fn repl(w: &World, node: usize, peer: usize) -> ReplState {
    w.device(node, peer).repl
}

fn generation(w: &World, node: usize) -> vocab::GenUuid {
    w.seen(node).volumes[0].current
}

/// What n0 sends to a peer takes long, until writes of n0 are more than it is to have under way.
fn congest(w: &mut World, peer: usize) {
    w.slow(0, peer, 200 * MILLISECOND);
    let mut at = (0..60).map(|i| i * 64);
    while repl(w, 0, peer) != ReplState::Ahead && w.violation.is_none() {
        match at.next() {
            Some(sector) => w.write(0, sector),
            None => w.expect("n0 is ahead", |_| false),
        }
    }
}

/// The other node is current again.
fn wait_equal(w: &mut World, peer: usize) {
    w.wait("it is resynced", |w| {
        repl(w, 0, peer) == ReplState::Established
            && w.device(0, peer).disk == DiskState::UpToDate
            && w.disk(peer) == DiskState::UpToDate
    });
}

#[test]
fn a_peer_that_can_not_keep_up_is_left_behind_and_resynced_case_87() {
    scenario(pull_ahead(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        let before = generation(w, 0);
        let told = w.tap(0, 1, |p| matches!(p, Packet::OutOfSync(..)));
        congest(w, 1);
        w.expect("in a generation that the peer lacks", |w| {
            !generation(w, 0).same(before)
                && w.device(0, 1).disk == DiskState::Outdated
                && w.tapped(told) > 0
        });
        w.wait("n1 is behind", |w| repl(w, 1, 0) == ReplState::Behind);
        w.expect("it is whole, and old", |w| {
            w.disk(1) == DiskState::Outdated && generation(w, 1).same(before)
        });
        w.write(0, 4096);
        w.wait("n1 is resynced", |w| repl(w, 1, 0) == ReplState::SyncTarget);
        wait_equal(w, 1);
        w.close(0, opener);
        w.settle();
        w.expect("it is where n0 is", |w| generation(w, 1).same(generation(w, 0)));
    });
}

#[test]
fn generations_that_start_while_a_peer_is_behind_are_not_its_own_case_87() {
    let mut plan = pull_ahead(3, 0);
    plan.net.congestion_fill = Sectors(256);
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        let before = generation(w, 0);
        for round in 0..4 {
            congest(w, 1);
            w.wait("n1 is behind", |w| repl(w, 1, 0) == ReplState::Behind);
            let ahead = generation(w, 0);
            w.detach(2);
            w.write(0, 4096);
            w.expect("another one has started", |w| round > 0 || !generation(w, 0).same(ahead));
            w.run_for(100 * MILLISECOND);
            w.expect("n1 stays where it was", |w| round > 0 || generation(w, 1).same(before));
            w.attach_again(2);
            // In the middle of the next resync, or before it.
            w.run_for(round * 400 * MILLISECOND);
        }
        wait_equal(w, 1);
        w.close(0, opener);
        w.settle();
    });
}

/// Nobody else knows what n0 has written since.
#[test]
fn a_disk_that_is_behind_is_promoted_by_nobody() {
    scenario(pull_ahead(2, 0), |w| {
        w.form();
        let _ = w.open(0);
        w.write(0, 0);
        congest(w, 1);
        w.wait("n1 is behind", |w| repl(w, 1, 0) == ReplState::Behind);
        w.power_loss(0);
        w.wait_lost(1, 0);
        w.refused(1, AdminCommand::Primary { force: false });
        w.kill(1);
        w.start_node(1);
        w.wait_disk(1, DiskState::Outdated);
        w.refused(1, AdminCommand::Primary { force: false });
        w.start_node(0);
        w.settle();
    });
}

/// What n0 says of itself does not arrive. Together the others are a majority, and may go on from what
/// they have: n0 must not.
#[test]
fn a_peer_that_has_not_heard_that_it_is_left_behind_has_its_vote() {
    let mut plan = pull_ahead(3, 0);
    plan.resource.quorum = Quorum::Majority;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.cut_off(0, [1, 2]);
        for i in 0..6 {
            w.start(0, WRITE, i * 64, 8);
        }
        w.wait("n0 is ahead", |w| (1..3).all(|peer| repl(w, 0, peer) == ReplState::Ahead));
        w.wait_lost_all(0, [1, 2]);
        w.expect("it has no quorum", |w| !w.seen(0).volumes[0].quorum);
        w.rejoin(0, [1, 2]);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn extents_that_are_held_are_congestion_as_well() {
    let mut plan = pull_ahead(2, 0);
    plan.net.congestion_fill = Sectors(0);
    plan.net.congestion_extents = 3;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.slow(0, 1, 400 * MILLISECOND);
        w.write(0, 0);
        w.write(0, EXTENT);
        w.expect("two are fewer than there may be", |w| repl(w, 0, 1) == ReplState::Established);
        w.write(0, 2 * EXTENT);
        w.expect("a third one is not", |w| repl(w, 0, 1) == ReplState::Ahead);
        wait_equal(w, 1);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_peer_that_can_not_keep_up_may_be_given_up() {
    let mut plan = pull_ahead(2, 0);
    plan.net.on_congestion = OnCongestion::Disconnect;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.slow(0, 1, 400 * MILLISECOND);
        for i in 0..6 {
            w.write(0, i * 64);
        }
        w.wait("it waits for an operator", |w| {
            w.seen(0).peers[1].as_ref().is_some_and(|p| p.conn == ConnState::StandAlone)
        });
        w.close(0, opener);
        w.slow(0, 1, MILLISECOND);
        w.connect(0, 1);
        w.settle();
    });
}

/// n1 was away, and its resync is under way when there is too much again.
#[test]
fn a_resync_that_can_not_keep_up_is_broken_off() {
    scenario(pull_ahead(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        for i in 0..64 {
            w.write(0, EXTENT + i * 16);
        }
        // Data take their time, and nothing else does.
        let pace = Pace { per_sector: 10 * MILLISECOND, ..Pace::default() };
        w.pace(0, 1, pace);
        w.heal(0, 1);
        w.wait_sent(0, 1, "a block", |p| matches!(p, Packet::RsDataReply(..)));
        let refused = w.tap(0, 1, |p| matches!(p, Packet::RsCancelAhead(..)));
        for i in 0..6 {
            w.start(0, WRITE, i * 64, 8);
        }
        w.wait("n0 is ahead", |w| repl(w, 0, 1) == ReplState::Ahead);
        w.wait("n1 is refused a block", |w| w.tapped(refused) > 0);
        w.run_for(5 * MILLISECOND);
        let asked = w.tap(1, 0, |p| matches!(p, Packet::RsDagtagReq(..)));
        w.run_for(60 * MILLISECOND);
        w.expect("n1 does not ask again, though it knows of no more than that", |w| {
            w.tapped(asked) == 0 && repl(w, 1, 0) == ReplState::SyncTarget
        });
        w.wait("n1 is behind", |w| repl(w, 1, 0) == ReplState::Behind);
        w.slow(0, 1, MILLISECOND);
        wait_equal(w, 1);
        w.close(0, opener);
        w.settle();
    });
}

/// n0 has what the Primary, n2, has, but neither has told n1 yet what n2 writes meanwhile.
#[test]
fn a_resync_from_another_node_does_not_end_while_the_primary_is_ahead_case_87() {
    let mut plan = pull_ahead(3, 0);
    plan.net.congestion_fill = Sectors(256);
    plan.net.ping_timeout = Duration::from_secs(30);
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.cut_off(1, [0, 2]);
        w.wait_lost_all(1, [0, 2]);
        for i in 0..6 {
            w.write(2, EXTENT + i * 16);
        }
        w.heal(0, 1);
        w.wait("n1 is resynced from n0", |w| repl(w, 1, 0) == ReplState::SyncTarget);
        w.stall_disk(0, 60);
        w.heal(1, 2);
        w.wait("n2 waits for that", |w| repl(w, 2, 1) == ReplState::PausedSyncS);
        w.pace(0, 1, Pace { per_sector: 10 * MILLISECOND, ..Pace::default() });
        w.release_disk(0);
        w.slow(2, 1, 2 * SECOND);
        for batch in 0..3 {
            for i in 0..16 {
                w.start(2, WRITE, 64 + (batch * 16 + i) * 64, 8);
            }
            w.run_for(200 * MILLISECOND);
        }
        w.wait("n2 is ahead", |w| repl(w, 2, 1) == ReplState::Ahead);
        w.slow(0, 1, MILLISECOND);
        w.wait("n1 is behind", |w| repl(w, 1, 2) == ReplState::Behind);
        let before = generation(w, 1);
        while repl(w, 1, 2) == ReplState::Behind && w.violation.is_none() {
            w.run_for(10 * MILLISECOND);
            let behind = repl(w, 1, 2) == ReplState::Behind;
            w.expect("n1 stays where it was", |w| !behind || generation(w, 1).same(before));
        }
        w.slow(2, 1, MILLISECOND);
        w.wait("it is resynced", |w| w.disk(1) == DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}

/// n1 has come to the end of its resync, and its word of that is under way when n0 goes ahead.
#[test]
fn what_a_peer_says_before_it_knows_that_it_is_behind_ends_no_resync() {
    scenario(pull_ahead(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.write(0, 4096);
        w.heal(0, 1);
        w.slow(1, 0, 200 * MILLISECOND);
        w.wait("n1 is done", |w| {
            repl(w, 0, 1) == ReplState::SyncSource && w.disk(1) == DiskState::UpToDate
        });
        w.slow(0, 1, 250 * MILLISECOND);
        for i in 0..6 {
            w.start(0, WRITE, i * 64, 8);
        }
        w.wait("n0 is ahead", |w| repl(w, 0, 1) == ReplState::Ahead);
        w.run_for(250 * MILLISECOND);
        w.expect("it still is, of a disk that is old", |w| {
            repl(w, 0, 1) == ReplState::Ahead && w.device(0, 1).disk == DiskState::Outdated
        });
        wait_equal(w, 1);
        w.close(0, opener);
        w.settle();
    });
}

/// A handshake in between would only make it worse.
#[test]
fn the_word_that_a_peer_is_left_behind_may_take_its_time() {
    let mut plan = pull_ahead(2, 0);
    plan.net.ping_timeout = Duration::from_secs(30);
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.slow(0, 1, 12 * SECOND);
        let lost = w.tap(0, 1, |p| matches!(p, Packet::ConnectionFeatures(_)));
        for i in 0..6 {
            w.start(0, WRITE, i * 64, 8);
        }
        w.wait("n0 is ahead", |w| repl(w, 0, 1) == ReplState::Ahead);
        w.run_seconds(11);
        w.slow(0, 1, MILLISECOND);
        wait_equal(w, 1);
        w.expect("they have not connected anew", |w| w.tapped(lost) == 0);
        w.close(0, opener);
        w.settle();
    });
}

/// What the handler is to save is the disk before it becomes a mixture.
#[test]
fn the_handler_of_a_target_is_asked_while_its_disk_is_whole() {
    for prompt in [true, false] {
        let mut plan = pull_ahead(2, 0);
        plan.handlers = HandlerSet::ALL;
        scenario(plan, |w| {
            w.form();
            let opener = w.open(0);
            w.hold_handler(HandlerEvent::BeforeResyncTarget);
            congest(w, 1);
            let calls = |w: &World| w.calls_of(1, HandlerEvent::BeforeResyncTarget).len();
            w.wait("it is asked", |w| calls(w) == 1);
            w.expect("the disk is whole", |w| w.disk(1) == DiskState::Outdated);
            if !prompt {
                w.wait("a handshake waits for it", |w| calls(w) == 2);
                w.run_seconds(5);
                w.expect("the disk is whole still", |w| w.disk(1) == DiskState::Outdated);
            }
            w.slow(0, 1, MILLISECOND);
            w.release_handler(HandlerEvent::BeforeResyncTarget, Some(0));
            wait_equal(w, 1);
            w.expect("once", |w| calls(w) == if prompt { 1 } else { 2 });
            w.close(0, opener);
            w.settle();
        });
    }
}

/// Its source begins a full resync without waiting for it, and goes ahead before it takes part.
#[test]
fn a_target_that_has_not_begun_is_left_behind_too() {
    let mut plan = pull_ahead(2, 0);
    plan.handlers = HandlerSet::ALL;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.hold_handler(HandlerEvent::BeforeResyncTarget);
        w.admin(1, AdminCommand::Invalidate { volume: VolumeNr(0), from: None });
        w.wait("it is asked", |w| !w.calls_of(1, HandlerEvent::BeforeResyncTarget).is_empty());
        w.run_seconds(1);
        w.slow(0, 1, 200 * MILLISECOND);
        for i in 0..6 {
            w.start(0, WRITE, i * 64, 8);
        }
        w.wait("n0 is ahead", |w| repl(w, 0, 1) == ReplState::Ahead);
        w.run_for(300 * MILLISECOND);
        w.slow(0, 1, MILLISECOND);
        w.release_handler(HandlerEvent::BeforeResyncTarget, Some(0));
        wait_equal(w, 1);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn nodes_of_protocol_8_leave_each_other_behind_too() {
    let mut plan = pull_ahead(2, 0);
    plan.legacy = true;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        let begins = w.tap(0, 1, |p| matches!(p, Packet::SyncUuid(..)));
        for round in 1..3 {
            congest(w, 1);
            w.wait("n1 is behind", |w| repl(w, 1, 0) == ReplState::Behind);
            w.write(0, 4096);
            wait_equal(w, 1);
            // By that a kernel node begins.
            w.expect("it is told so", |w| w.tapped(begins) == round);
        }
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn only_with_protocol_a_is_a_peer_left_behind() {
    let mut plan = Plan::quiet(2, 0);
    plan.net.protocol = Protocol::B;
    scenario(plan, |w| {
        w.form();
        for on_congestion in [OnCongestion::PullAhead, OnCongestion::Disconnect] {
            let options = vocab::options::NetOptions { on_congestion, ..w.plan.net.clone() };
            let wish = AdminCommand::NetOptions(node_id(1), Box::new(options));
            let code = w.ask(0, wish).map_err(|refusal| refusal.code);
            let expected = RefusalCode::Config(ConfigError::CongestionNotProtocolA);
            w.expect("it is refused", |_| code == Err(expected));
        }
        w.settle();
    });
}
