//! Fencing, and the handlers that are called when something happens (semantics §5, §6.4, §14 cases
//! 43 and 44).

use replication::io::AdminCommand;
use sim::disk::Behaviour;
use sim::plan::{MILLISECOND, Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::{
    AfterSb0, AfterSb1, AfterSb2, Fencing, OnIoError, OnNoDataAccessible, RrConflict,
};
use vocab::{
    ConnState, DiskState, GenUuid, HandlerEvent, HandlerSet, RefusalCode, ReplState, StateError,
    VolumeNr,
};

const WRITE: Op = Op::Write { fua: false };
const V0: VolumeNr = VolumeNr(0);

/// Two nodes with that policy, and a handler for everything.
fn fencing(policy: Fencing) -> Plan {
    let mut plan = Plan::quiet(2, 0);
    plan.net.fencing = policy;
    plan.handlers = HandlerSet::ALL;
    plan
}

fn stonith() -> Plan {
    fencing(Fencing::ResourceAndStonith)
}

fn fences(w: &World, node: usize) -> usize {
    w.calls_of(node, HandlerEvent::FencePeer).len()
}

fn generation(w: &World, node: usize) -> GenUuid {
    w.seen(node).volumes[0].current
}

fn suspended(w: &World, node: usize) -> bool {
    w.seen(node).suspended.fencing
}

fn lose(w: &mut World) {
    w.cut(0, 1);
    w.reset(0, 1);
    w.wait_lost(0, 1);
    w.wait_lost(1, 0);
}

fn refusal(w: &mut World, node: usize) -> Option<StateError> {
    match w.ask(node, AdminCommand::Primary { force: false }) {
        Err(refusal) => match refusal.code {
            RefusalCode::State(code) => Some(code),
            RefusalCode::Config(_) => None,
        },
        Ok(()) => None,
    }
}

// ---- a Primary loses its peer ----

#[test]
fn resource_only_goes_on_while_the_peer_is_fenced() {
    scenario(fencing(Fencing::ResourceOnly), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.hold_handler(HandlerEvent::FencePeer);
        lose(w);
        w.wait("the handler is called", |w| fences(w, 0) == 1);
        w.expect("it is told of what", |w| {
            let call = w.calls_of(0, HandlerEvent::FencePeer)[0];
            let peer = call
                .peer
                .is_some_and(|(node, conn)| node == node_id(1) && conn != ConnState::Connected);
            peer && call.volume.is_none() && call.up_to_date == node_id(0).mask()
        });
        w.write(0, 8);
        w.expect("nothing is known of the peer", |w| w.device(0, 1).disk == DiskState::DUnknown);
        w.release_handler(HandlerEvent::FencePeer, Some(4));
        w.wait("the peer counts as outdated", |w| w.device(0, 1).disk == DiskState::Outdated);
        let released = called(w, 0, HandlerEvent::UnfencePeer);
        w.heal(0, 1);
        w.wait("the peer is current again", |w| w.device(0, 1).disk == DiskState::UpToDate);
        w.wait("it is released", |w| called(w, 0, HandlerEvent::UnfencePeer) == released + 1);
        w.close(0, opener);
        w.settle();
        w.expect("it was fenced once, and by nobody else", |w| {
            fences(w, 0) == 1 && fences(w, 1) == 0
        });
    });
}

#[test]
fn resource_and_stonith_waits_until_the_peer_is_fenced() {
    for (exit, known) in [
        (3, DiskState::Inconsistent),
        (4, DiskState::Outdated),
        (5, DiskState::Outdated),
        (7, DiskState::Outdated),
    ] {
        scenario(stonith(), |w| {
            w.form();
            let opener = w.open(0);
            w.write(0, 0);
            let before = generation(w, 0);
            w.hold_handler(HandlerEvent::FencePeer);
            w.cut(0, 1);
            let write = w.start(0, WRITE, 8, 8);
            w.wait_lost(0, 1);
            w.run_seconds(30);
            w.expect("it waits, and asks once", |w| {
                suspended(w, 0) && !w.is_answered(write) && fences(w, 0) == 1
            });
            w.release_handler(HandlerEvent::FencePeer, Some(exit));
            w.finish(write).expect("it is written");
            w.expect("in a generation that the peer lacks", |w| {
                !suspended(w, 0) && !generation(w, 0).same(before) && w.device(0, 1).disk == known
            });
            w.heal(0, 1);
            w.wait("the peer is current again", |w| w.device(0, 1).disk == DiskState::UpToDate);
            w.close(0, opener);
            w.settle();
        });
    }
}

/// Hard case 43.
#[test]
fn a_broken_handler_keeps_the_primary_waiting_until_the_peer_is_back_case_43() {
    for exit in [None, Some(0), Some(1), Some(2), Some(8)] {
        scenario(stonith(), |w| {
            w.form();
            let opener = w.open(0);
            w.write(0, 0);
            let before = generation(w, 0);
            w.handler_exits(HandlerEvent::FencePeer, exit);
            w.cut(0, 1);
            w.wait_lost(0, 1);
            let write = w.start(0, WRITE, 8, 8);
            w.run_seconds(60);
            w.expect("nothing has happened", |w| {
                suspended(w, 0) && !w.is_answered(write) && generation(w, 0).same(before)
            });
            w.heal(0, 1);
            w.finish(write).expect("it is written on both");
            w.expect("in the same generation", |w| {
                !suspended(w, 0) && generation(w, 0).same(before)
            });
            w.close(0, opener);
            w.settle();
        });
    }
}

/// The peer has restarted, and its disk is not known to be current before this one is back (A2). It
/// lacks what was in flight, and may lack what it had confirmed.
#[test]
fn a_peer_that_crashed_under_writes_releases_a_primary_whose_handler_is_broken() {
    for (exit, power) in [(None, false), (Some(1), false), (Some(1), true)] {
        let mut plan = stonith();
        plan.volatile_cache = true;
        scenario(plan, |w| {
            w.form();
            let opener = w.open(0);
            w.write(0, 0);
            w.handler_exits(HandlerEvent::FencePeer, exit);
            match power {
                true => w.power_loss(1),
                false => w.kill(1),
            }
            let write = w.start(0, WRITE, 8, 8);
            w.wait_lost(0, 1);
            w.run_seconds(10);
            w.expect("it waits", |w| suspended(w, 0) && !w.is_answered(write));
            w.start_node(1);
            w.finish(write).expect("it is written");
            w.expect("nothing waits any more", |w| !suspended(w, 0));
            w.wait("the peer is current again", |w| w.device(0, 1).disk == DiskState::UpToDate);
            w.close(0, opener);
            w.settle();
        });
    }
}

#[test]
fn an_operator_ends_the_wait_for_a_broken_handler() {
    scenario(stonith(), |w| {
        w.form();
        let opener = w.open(0);
        w.handler_exits(HandlerEvent::FencePeer, Some(1));
        w.cut(0, 1);
        w.wait_lost(0, 1);
        let write = w.start(0, WRITE, 8, 8);
        w.run_seconds(5);
        w.granted(0, AdminCommand::ResumeIo);
        w.finish(write).expect("it is written");
        w.expect("it stays resumed", |w| !suspended(w, 0));
        w.close(0, opener);
        w.heal(0, 1);
        w.settle();
    });
}

/// Hard case 44.
#[test]
fn what_a_handler_finds_after_the_peer_is_back_is_ignored_case_44() {
    scenario(stonith(), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.hold_handler(HandlerEvent::FencePeer);
        lose(w);
        w.wait("the handler is called", |w| fences(w, 0) == 1);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.release_handler(HandlerEvent::FencePeer, Some(3));
        w.write(0, 8);
        w.run_seconds(2);
        w.expect("the peer is what it was", |w| {
            w.device(0, 1).disk == DiskState::UpToDate && !suspended(w, 0)
        });
        w.close(0, opener);
        w.settle();
    });
}

/// The peer shows itself while the handler runs, and is lost again before it is connected.
#[test]
fn a_peer_that_only_half_comes_back_is_fenced_again() {
    scenario(stonith(), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.hold_handler(HandlerEvent::FencePeer);
        lose(w);
        w.wait("the handler is called", |w| fences(w, 0) == 1);
        let write = w.start(0, WRITE, 8, 8);
        w.heal_one_way(0, 1);
        w.heal_one_way(1, 0);
        let tap = w.tap(1, 0, |p| matches!(p, codec::wire::Packet::ConnectionFeatures(_)));
        w.wait("the peer shows itself", |w| w.tapped(tap) > 0);
        w.cut(0, 1);
        w.release_handler(HandlerEvent::FencePeer, Some(4));
        w.wait("the write is done, or waits for another call", |w| {
            w.is_answered(write) || fences(w, 0) > 1
        });
        w.heal(0, 1);
        w.finish(write).expect("it is written");
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_peer_that_left_in_good_order_is_not_fenced() {
    for policy in [Fencing::ResourceOnly, Fencing::ResourceAndStonith] {
        for who in [0, 1] {
            scenario(fencing(policy), |w| {
                w.form();
                let opener = w.open(0);
                w.write(0, 0);
                w.disconnect(who, 1 - who);
                w.wait_lost(0, 1);
                w.write(0, 8);
                w.expect("it knows that it is left behind", |w| {
                    fences(w, 0) == 0
                        && w.device(0, 1).disk == DiskState::Outdated
                        && w.disk(1) == DiskState::Outdated
                });
                w.close(0, opener);
                w.connect(who, 1 - who);
                w.settle();
            });
        }
    }
}

// ---- promotion beside a peer of unknown fate ----

#[test]
fn a_node_that_starts_alone_is_promoted_once_its_peer_is_fenced() {
    scenario(stonith(), |w| {
        w.form();
        w.write_after_open(0, 0);
        w.settle();
        w.kill(0);
        w.kill(1);
        w.start_node(1);
        w.wait("its disk is attached", |w| w.disk(1) >= DiskState::Outdated);
        w.expect("it is not known to be current", |w| w.disk(1) == DiskState::Consistent);
        for exit in [1, 5] {
            w.handler_exits(HandlerEvent::FencePeer, Some(exit));
            w.expect("nobody is promoted", |w| !w.is_primary(1));
            let refused = refusal(w, 1);
            w.expect("for that reason", |_| refused == Some(StateError::PrimaryNop));
        }
        w.expect("nothing has changed", |w| w.disk(1) == DiskState::Consistent);
        w.handler_exits(HandlerEvent::FencePeer, Some(7));
        w.promote(1);
        w.expect("its disk is current", |w| w.disk(1) == DiskState::UpToDate);
        w.write_after_open(1, 8);
        w.start_node(0);
        w.demote(1);
        w.settle();
    });
}

#[test]
fn a_survivor_waits_with_its_promotion_until_the_lost_primary_is_fenced() {
    scenario(stonith(), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.close(0, opener);
        let _ = w.open(0);
        w.hold_handler(HandlerEvent::FencePeer);
        w.kill(0);
        w.wait_lost(1, 0);
        let id = w.admin(1, AdminCommand::Primary { force: false });
        w.run_seconds(60);
        w.expect("it waits", |w| {
            !w.has_answer(id) && !w.is_primary(1) && w.disk(1) == DiskState::Consistent
        });
        w.release_handler(HandlerEvent::FencePeer, Some(4));
        w.wait("it is Primary", |w| w.has_answer(id) && w.is_primary(1));
        w.write_after_open(1, 8);
        w.demote(1);
        w.start_node(0);
        w.settle();
    });
}

#[test]
fn a_node_that_hears_that_its_peer_is_primary_is_outdated() {
    scenario(fencing(Fencing::ResourceOnly), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.handler_exits(HandlerEvent::FencePeer, Some(6));
        lose(w);
        w.write(0, 8);
        w.refused(1, AdminCommand::Primary { force: false });
        w.expect("it is outdated, and the Primary is not", |w| {
            w.disk(1) == DiskState::Outdated && w.disk(0) == DiskState::UpToDate
        });
        w.close(0, opener);
        w.heal(0, 1);
        w.settle();
    });
}

#[test]
fn force_overrides_a_handler_that_fails() {
    scenario(stonith(), |w| {
        w.form();
        w.write_after_open(0, 0);
        w.settle();
        w.handler_exits(HandlerEvent::FencePeer, Some(1));
        w.kill(0);
        w.wait_lost(1, 0);
        w.refused(1, AdminCommand::Primary { force: false });
        w.granted(1, AdminCommand::Primary { force: true });
        w.write_after_open(1, 8);
        w.demote(1);
        w.start_node(0);
        w.settle();
    });
}

#[test]
fn without_a_handler_nobody_is_fenced() {
    let mut plan = stonith();
    plan.handlers = HandlerSet::NONE;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        lose(w);
        let write = w.start(0, WRITE, 8, 8);
        w.run_seconds(20);
        w.expect("it waits", |w| suspended(w, 0) && !w.is_answered(write));
        w.expect("the other one is not promoted", |w| !w.is_primary(1));
        w.refused(1, AdminCommand::Primary { force: false });
        w.heal(0, 1);
        w.finish(write).expect("it is written");
        w.close(0, opener);
        w.settle();
    });
}

/// Writes go on without the disk of one node, and both nodes lose their power. Alone, neither knows
/// that of the other, and the handler would fence either for it.
#[test]
fn a_disk_that_writes_went_on_without_is_promoted_by_no_fencing() {
    for (policy, behind) in [
        (Fencing::ResourceOnly, 0),
        (Fencing::ResourceAndStonith, 0),
        (Fencing::ResourceOnly, 1),
        (Fencing::ResourceAndStonith, 1),
    ] {
        scenario(fencing(policy), |w| {
            w.form();
            let _ = w.open(0);
            w.write(0, 0);
            // It takes its time to write down that it is behind.
            let latency = (50 * MILLISECOND, 50 * MILLISECOND);
            let bad = Behaviour { write_errors: 100, latency, ..Behaviour::default() };
            w.nodes[behind].drives[0].as_mut().expect("a disk").disk.behaviour = bad;
            w.write(0, 0);
            w.power_loss(0);
            w.power_loss(1);
            w.nodes[behind].drives[0].as_mut().expect("a disk").disk.behaviour =
                Behaviour::default();
            w.cut(0, 1);
            w.handler_exits(HandlerEvent::FencePeer, Some(4));
            w.start_node(behind);
            w.wait("its disk is attached", |w| w.disk(behind) >= DiskState::Inconsistent);
            w.refused(behind, AdminCommand::Primary { force: false });
            w.expect("nobody was fenced for that disk", |w| fences(w, behind) == 0);
            let other = 1 - behind;
            w.start_node(other);
            w.wait("its disk is attached", |w| w.disk(other) >= DiskState::Inconsistent);
            w.promote(other);
            w.write_after_open(other, 8);
            w.demote(other);
            w.heal(0, 1);
            w.settle();
        });
    }
}

/// The Primary has lost its disk and its peer at once, and has its disk back. The peer has restarted,
/// is not sure of its own, and nobody can fence it.
#[test]
fn a_primary_that_takes_its_disk_back_is_sure_of_it() {
    let mut plan = stonith();
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    scenario(plan, |w| {
        w.form();
        w.handler_exits(HandlerEvent::FencePeer, Some(1));
        let opener = w.open(0);
        w.write(0, 0);
        let bad = Behaviour { write_errors: 100, ..Behaviour::default() };
        w.nodes[0].drives[0].as_mut().expect("a disk").disk.behaviour = bad;
        let write = w.start(0, WRITE, 0, 8);
        w.power_loss(1);
        w.wait_disk(0, DiskState::Diskless);
        w.wait_lost(0, 1);
        w.nodes[0].drives[0].as_mut().expect("a disk").disk.behaviour = Behaviour::default();
        w.attach_again(0);
        w.expect("it is sure of its disk", |w| w.disk(0) == DiskState::UpToDate);
        w.start_node(1);
        w.finish(write).expect("it is written");
        w.close(0, opener);
        w.settle();
    });
}

/// A disk that answers nothing can not say that it is behind. Writes wait for that no longer than a
/// peer waits for a ping.
#[test]
fn a_disk_that_answers_nothing_holds_up_no_write() {
    for stuck in [0, 1] {
        scenario(fencing(Fencing::ResourceAndStonith), |w| {
            w.form();
            let opener = w.open(0);
            w.write(0, 0);
            w.stall_disk(stuck, 5);
            w.granted(stuck, AdminCommand::Detach { volume: V0, force: true, intentional: false });
            let write = w.start(0, WRITE, 8, 8);
            w.run_for(400 * MILLISECOND);
            w.expect("it is written on the other", |w| w.is_answered(write));
            w.finish(write).expect("it is written on the other");
            w.expect("nobody was lost", |w| w.connected(0, 1) && fences(w, 0) == 0);
            w.release_disk(stuck);
            w.attach_again(stuck);
            w.close(0, opener);
            w.settle();
        });
    }
}

// ---- other handlers ----

fn all_handlers() -> Plan {
    fencing(Fencing::DontCare)
}

fn called(w: &World, node: usize, event: HandlerEvent) -> usize {
    w.calls_of(node, event).len()
}

/// n1 misses something and is about to be resynced.
fn behind(w: &mut World) {
    w.form();
    lose(w);
    w.write_after_open(0, 0);
    w.wait_secondary(0);
}

#[test]
fn a_resync_waits_for_the_handler_at_its_target() {
    scenario(all_handlers(), |w| {
        behind(w);
        w.hold_handler(HandlerEvent::BeforeResyncTarget);
        w.heal(0, 1);
        w.wait("it is asked", |w| called(w, 1, HandlerEvent::BeforeResyncTarget) == 1);
        w.run_seconds(30);
        w.expect("the resync waits for that, and the disk is whole", |w| {
            w.connected(0, 1)
                && w.disk(1) == DiskState::Outdated
                && w.device(1, 0).repl == ReplState::WFBitMapT
        });
        // Nobody else waits for it.
        w.write_after_open(0, 64);
        w.wait_secondary(0);
        w.release_handler(HandlerEvent::BeforeResyncTarget, Some(0));
        w.settle();
        w.expect("everybody was told", |w| {
            called(w, 0, HandlerEvent::BeforeResyncSource) == 1
                && called(w, 1, HandlerEvent::AfterResyncTarget) == 1
                && called(w, 1, HandlerEvent::BeforeResyncTarget) == 1
                && called(w, 0, HandlerEvent::BeforeResyncTarget) == 0
        });
    });
}

#[test]
fn a_handler_that_says_no_keeps_its_disk_from_a_resync() {
    for exit in [Some(1), None] {
        scenario(all_handlers(), |w| {
            behind(w);
            w.handler_exits(HandlerEvent::BeforeResyncTarget, exit);
            w.heal(0, 1);
            w.wait("it has given up", |w| {
                let conn = w.seen(1).peers[0].as_ref().map(|p| p.conn);
                called(w, 1, HandlerEvent::BeforeResyncTarget) == 1
                    && conn == Some(ConnState::StandAlone)
            });
            w.expect("the disk is whole", |w| w.disk(1) == DiskState::Outdated);
            w.handler_exits(HandlerEvent::BeforeResyncTarget, Some(0));
            let peer = node_id(0);
            w.granted(1, AdminCommand::Connect { peer, discard_my_data: false });
            w.settle();
        });
    }
}

#[test]
fn invalidate_asks_the_handler_as_well() {
    scenario(all_handlers(), |w| {
        w.form();
        w.hold_handler(HandlerEvent::BeforeResyncTarget);
        let id = w.admin(1, AdminCommand::Invalidate { volume: V0, from: None });
        w.wait("it is asked", |w| called(w, 1, HandlerEvent::BeforeResyncTarget) == 1);
        w.run_seconds(30);
        w.expect("the resync waits", |w| w.device(1, 0).repl == ReplState::StartingSyncT);
        w.release_handler(HandlerEvent::BeforeResyncTarget, Some(0));
        w.wait("the wish is answered", |w| w.has_answer(id));
        w.settle();
    });
}

fn split(w: &mut World, primary: [bool; 2]) {
    w.form();
    lose(w);
    for node in [0, 1] {
        w.promote(node);
        for i in 0..=(3 * node as u64) {
            w.write_after_open(node, 8 * node as u64 + i * 64);
        }
        if !primary[node] {
            w.demote(node);
        }
    }
}

#[test]
fn split_brains_are_told_of_at_both_ends() {
    let mut plan = all_handlers();
    plan.workload.nodes.clear();
    scenario(plan, |w| {
        split(w, [false, false]);
        w.heal(0, 1);
        w.wait("both have given up", |w| {
            let alone = |a: usize, b: usize| {
                w.seen(a).peers[b].as_ref().is_some_and(|p| p.conn == ConnState::StandAlone)
            };
            alone(0, 1) && alone(1, 0)
        });
        w.expect("and said so once", |w| {
            [0, 1].iter().all(|node| {
                called(w, *node, HandlerEvent::InitialSplitBrain) == 1
                    && called(w, *node, HandlerEvent::SplitBrain) == 1
            })
        });
    });
}

fn call_pri_lost() -> Plan {
    let mut plan = all_handlers();
    plan.net.after_sb_0pri = AfterSb0::DiscardLeastChanges;
    plan.net.after_sb_1pri = AfterSb1::CallPriLost;
    plan.net.after_sb_2pri = AfterSb2::CallPriLost;
    plan.workload.nodes.clear();
    plan
}

#[test]
fn a_primary_that_nobody_uses_gives_its_data_up_after_a_split_brain() {
    for primary in [[true, false], [true, true]] {
        scenario(call_pri_lost(), |w| {
            split(w, primary);
            w.heal(0, 1);
            w.wait("they are one again", |w| {
                w.connected(0, 1) && [0, 1].iter().all(|n| w.disk(*n) == DiskState::UpToDate)
            });
            w.expect("n0 was demoted, n1 stays what it was", |w| {
                !w.is_primary(0)
                    && w.is_primary(1) == primary[1]
                    && called(w, 0, HandlerEvent::PriLostAfterSb) == 0
            });
            if primary[1] {
                w.demote(1);
            }
            w.settle();
        });
    }
}

#[test]
fn a_primary_that_is_used_has_its_handler_called_instead() {
    scenario(call_pri_lost(), |w| {
        split(w, [true, false]);
        let _ = w.open(0);
        w.heal(0, 1);
        w.wait("its handler is called", |w| called(w, 0, HandlerEvent::PriLostAfterSb) == 1);
        w.wait("it has given up", |w| {
            w.seen(0).peers[1].as_ref().is_some_and(|p| p.conn == ConnState::StandAlone)
        });
        w.expect("it is what it was", |w| w.is_primary(0) && w.disk(0) == DiskState::UpToDate);
    });
}

#[test]
fn a_primary_with_older_data_has_its_handler_called() {
    let mut plan = all_handlers();
    plan.net.rr_conflict = RrConflict::CallPriLost;
    plan.workload.nodes.clear();
    scenario(plan, |w| {
        w.form();
        lose(w);
        w.write_after_open(0, 0);
        w.wait_secondary(0);
        w.promote(1);
        w.heal(0, 1);
        w.wait("its handler is called", |w| called(w, 1, HandlerEvent::PriLost) >= 1);
        w.expect("it is what it was", |w| w.is_primary(1));
    });
}

#[test]
fn quorum_connections_and_data_that_are_lost_are_told_of() {
    let mut plan = all_handlers();
    plan.resource.quorum = vocab::options::Quorum::Majority;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        lose(w);
        w.wait("quorum is lost", |w| called(w, 0, HandlerEvent::QuorumLost) == 1);
        w.expect("the connection, too", |w| {
            let calls = w.calls_of(0, HandlerEvent::Disconnected);
            calls.len() == 1 && calls[0].peer.is_some_and(|(_, c)| c != ConnState::Connected)
        });
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.close(0, opener);
        w.settle();
        w.expect("once", |w| {
            called(w, 0, HandlerEvent::QuorumLost) == 1
                && called(w, 1, HandlerEvent::QuorumLost) == 0
        });
    });
}

#[test]
fn a_disk_that_fails_is_told_of_and_so_is_the_last_one() {
    let mut plan = all_handlers();
    plan.disk.on_io_error = OnIoError::CallLocalIoError;
    plan.workload.nodes = vec![0];
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        let bad = Behaviour { write_errors: 100, ..Behaviour::default() };
        w.nodes[0].drives[0].as_mut().expect("a disk").disk.behaviour = bad;
        w.write(0, 8);
        w.expect("the disk is given up", |w| {
            called(w, 0, HandlerEvent::LocalIoError) == 1
                && w.disk(0) == DiskState::Diskless
                && called(w, 0, HandlerEvent::PriOnInconDegr) == 0
        });
        lose(w);
        w.wait("there are no data", |w| called(w, 0, HandlerEvent::PriOnInconDegr) == 1);
        w.nodes[0].drives[0].as_mut().expect("a disk").disk.behaviour = Behaviour::default();
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.attach_again(0);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_forced_demotion_ends_though_the_peer_can_not_be_fenced_case_43() {
    scenario(stonith(), |w| {
        w.form();
        w.handler_exits(HandlerEvent::FencePeer, Some(1));
        let opener = w.open(0);
        w.write(0, 0);
        w.cut(0, 1);
        let write = w.start(0, WRITE, 8, 8);
        w.wait_lost(0, 1);
        w.run_seconds(5);
        w.expect("it is held", |w| !w.is_answered(write) && suspended(w, 0));
        w.granted(0, AdminCommand::Secondary { force: true });
        w.expect("it has failed", |w| w.is_answered(write));
        let failed = w.finish(write).is_err();
        w.expect("nobody knows whether it will last", |_| failed);
        w.close(0, opener);
        w.heal(0, 1);
        w.settle();
    });
}

#[test]
fn a_peer_lost_after_a_forced_demotion_began_connects_again_though_it_is_not_fenced() {
    scenario(stonith(), |w| {
        w.form();
        w.handler_exits(HandlerEvent::FencePeer, Some(1));
        let opener = w.open(0);
        w.write(0, 0);
        w.cut(0, 1);
        let write = w.start(0, WRITE, 8, 8);
        w.run_seconds(1);
        w.admin(0, AdminCommand::Secondary { force: true });
        w.wait_lost(0, 1);
        w.run_seconds(5);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        let failed = w.finish(write).is_err();
        w.expect("nobody knows whether it will last", |_| failed);
        w.close(0, opener);
        w.settle();
    });
}
