//! Two Primaries (`allow-two-primaries`): semantics §3.5, hard case 95 of §14.

use replication::io::{AdminCommand, OpenError};
use sim::plan::{Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::{NetOptions, OnNoDataAccessible, Protocol};
use vocab::{ConfigError, DiskState, Refusal, RefusalCode, Role, StateError};

const WRITE: Op = Op::Write { fua: false };
const SECOND: u64 = 1_000_000_000;

fn with_two(mut plan: Plan) -> Plan {
    plan.net.allow_two_primaries = true;
    plan
}

/// Three nodes, two of them with a disk, of which a majority decides.
fn three() -> Plan {
    with_two(Plan::majority(2, 1))
}

/// Two nodes that nobody else judges.
fn pair() -> Plan {
    with_two(Plan::quiet(2, 0))
}

/// The node is Primary to its users, by way of that one.
fn joined(w: &World, node: usize, lead: usize) -> bool {
    w.seen(node).joint == Some(Some(lead))
}

fn code(refusal: &Refusal) -> RefusalCode {
    refusal.code
}

#[test]
fn a_guest_moves_from_disk_to_disk_case_95() {
    scenario(three(), |w| {
        w.form();
        let source = w.open(0);
        w.write(0, 0);
        let target = w.open(1);
        w.expect("both are Primary", |w| w.is_primary(0) && joined(w, 1, 0));
        let write = w.start(0, WRITE, 8, 8);
        w.finish(write).unwrap();
        w.read(1, 0);
        w.read(1, 8);
        w.write(1, 16);
        w.read(0, 16);
        w.close(0, source);
        w.wait("the target is the only Primary", |w| w.is_primary(1) && !w.is_primary(0));
        w.expect("and beside nobody", |w| w.seen(1).joint.is_none());
        for sector in [0, 8, 16] {
            w.read(1, sector);
        }
        w.close(1, target);
        w.settle();
    });
}

#[test]
fn a_guest_moves_between_nodes_without_a_disk_case_95() {
    scenario(with_two(Plan::majority(2, 2)), |w| {
        w.form();
        let source = w.open(2);
        w.write(2, 0);
        let target = w.open(3);
        w.expect("both are Primary", |w| w.is_primary(2) && joined(w, 3, 2));
        w.read(3, 0);
        w.write(3, 8);
        w.close(2, source);
        w.wait("the target is the only Primary", |w| w.is_primary(3) && !w.is_primary(2));
        w.expect("no disk is in doubt", |w| {
            [0, 1].iter().all(|n| w.disk(*n) == DiskState::UpToDate)
        });
        w.read(3, 8);
        w.close(3, target);
        w.settle();
    });
}

/// Both nodes' users write to the same place all the time: whoever comes first at the lead is first on
/// every disk.
#[test]
fn overlapping_writes_of_both_have_one_order() {
    scenario(pair(), |w| {
        w.form();
        let (a, b) = (w.open(0), w.open(1));
        for round in 0..20 {
            let writes: Vec<u64> =
                (0..4).map(|i| w.start(i % 2, WRITE, round + i as u64, 8)).collect();
            for write in writes {
                w.finish(write).unwrap();
            }
            w.read(0, round);
            w.read(1, round);
        }
        for op in [Op::Discard, Op::Zeroes { unmap: true }, Op::Zeroes { unmap: false }, Op::Flush]
        {
            w.request_and_wait(1, op, 0).unwrap();
        }
        w.close(0, a);
        w.close(1, b);
        w.settle();
    });
}

/// What the second Primary waits for when the first one is lost, it does itself, once it is elected.
#[test]
fn the_second_primary_goes_on_alone_where_votes_allow_it() {
    scenario(three(), |w| {
        w.form();
        let (_, b) = (w.open(0), w.open(1));
        w.write(1, 0);
        let writes: Vec<u64> = (0..10).map(|i| w.start(1, WRITE, 8 * i, 8)).collect();
        w.power_loss(0);
        for write in writes {
            w.finish(write).unwrap();
        }
        w.expect("it is the Primary", |w| w.is_primary(1));
        w.start_node(0);
        w.wait_connected(0, 1);
        w.close(1, b);
        w.settle();
    });
}

/// Two nodes that lose each other do not both go on: the second Primary waits until it hears the first
/// one again, or an operator says that it is gone.
#[test]
fn without_votes_the_second_primary_waits() {
    scenario(pair(), |w| {
        w.form();
        let (a, b) = (w.open(0), w.open(1));
        w.write(1, 0);
        w.cut(0, 1);
        w.wait("both know", |w| !w.connected(0, 1) && w.seen(1).joint == Some(None));
        let write = w.start(1, WRITE, 8, 8);
        w.write(0, 16);
        w.run_seconds(10);
        w.expect("the second one waits", |w| !w.is_answered(write) && !w.is_primary(1));
        w.heal(0, 1);
        w.finish(write).unwrap();
        w.read(1, 16);
        w.close(0, a);
        w.close(1, b);
        w.settle();
    });
}

/// With `on-no-data-accessible io-error` it does not wait for ever; but what may have been begun has no
/// answer before it is known what became of it.
#[test]
fn requests_fail_after_a_while_if_that_is_wanted() {
    let mut plan = pair();
    plan.resource.on_no_data_accessible = OnNoDataAccessible::IoError;
    scenario(plan, |w| {
        w.form();
        let (a, b) = (w.open(0), w.open(1));
        w.write(1, 0);
        w.slow(1, 0, 20 * SECOND);
        let begun = w.start(1, WRITE, 8, 8);
        w.run_for(SECOND / 10);
        w.cut(0, 1);
        w.wait("it is lost", |w| w.seen(1).joint == Some(None));
        let new = w.start(1, WRITE, 16, 8);
        assert!(w.finish(new).is_err());
        w.expect("what was under way is not answered", |w| !w.is_answered(begun));
        w.slow(1, 0, 0);
        w.heal(0, 1);
        w.finish(begun).unwrap();
        w.close(0, a);
        w.close(1, b);
        w.settle();
    });
}

/// A demotion by force fails what is under way, but not before the other node has said that it will not
/// do it any more: it would be found done by others, after they have written themselves.
#[test]
fn a_forced_demotion_waits_for_what_the_first_primary_still_does() {
    scenario(pair(), |w| {
        w.form();
        let (a, b) = (w.open(0), w.open(1));
        w.write(1, 0);
        w.stall_disk(0, 30);
        let begun = w.start(1, WRITE, 8, 8);
        w.run_for(SECOND / 10);
        let demoted = w.admin(1, AdminCommand::Secondary { force: true });
        w.run_seconds(2);
        w.expect("nothing has failed yet", |w| !w.is_answered(begun) && !w.has_answer(demoted));
        w.release_disk(0);
        assert!(w.finish(begun).is_err());
        w.wait("it is demoted", |w| w.seen(1).joint.is_none());
        w.write(0, 8);
        w.read(0, 8);
        w.close(1, b);
        w.close(0, a);
        w.settle();
    });
}

/// The first Primary is demoted by its operator while the second one writes: not a request fails.
#[test]
fn the_first_primary_is_demoted_under_load() {
    for delay in [0, 100_000, 300_000, 1_000_000] {
        scenario(three(), |w| {
            w.form();
            w.promote(0);
            let b = w.open(1);
            let mut writes: Vec<u64> = (0..20).map(|i| w.start(1, WRITE, 8 * i, 8)).collect();
            w.run_for(delay);
            let demoted = w.admin(0, AdminCommand::Secondary { force: false });
            for i in 0..20 {
                w.run_for(50_000);
                writes.push(w.start(1, WRITE, 8 * i, 8));
            }
            for write in writes {
                w.finish(write).unwrap();
            }
            w.expect("it was demoted", |w| w.has_answer(demoted) && !w.is_primary(0));
            w.expect("the other one took over", |w| w.is_primary(1) && w.seen(1).joint.is_none());
            w.close(1, b);
            w.settle();
        });
    }
}

#[test]
fn what_two_primaries_rest_on_is_not_taken_away() {
    scenario(three(), |w| {
        w.form();
        let (a, b) = (w.open(0), w.open(1));
        let without = |w: &World| NetOptions { allow_two_primaries: false, ..w.plan.net.clone() };
        for (node, peer) in [(0, 1), (1, 0)] {
            let refused =
                w.ask(node, AdminCommand::Disconnect { peer: node_id(peer), force: false });
            assert_eq!(code(&refused.unwrap_err()), RefusalCode::State(StateError::DeviceInUse));
            let options = Box::new(without(w));
            let refused = w.ask(node, AdminCommand::NetOptions(node_id(peer), options));
            let wanted = RefusalCode::Config(ConfigError::NeedTwoPrimaries);
            assert_eq!(code(&refused.unwrap_err()), wanted);
        }
        let options = NetOptions { protocol: Protocol::A, ..w.plan.net.clone() };
        let refused = w.ask(2, AdminCommand::NetOptions(node_id(0), Box::new(options)));
        assert_eq!(code(&refused.unwrap_err()), RefusalCode::Config(ConfigError::NeedProtocolC));
        w.refused(1, AdminCommand::Secondary { force: false });
        w.close(1, b);
        w.wait("the second one is Secondary", |w| w.seen(1).joint.is_none());
        w.run_seconds(1);
        w.disconnect(0, 1);
        w.connect(0, 1);
        w.close(0, a);
        w.settle();
    });
}

/// Options say whether there may be two, on either node, and may change while connected.
#[test]
fn one_of_the_nodes_does_not_allow_it() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        let a = w.open(0);
        w.write(0, 0);
        let allow = |w: &mut World, node: usize, peer: usize| {
            let options = NetOptions { allow_two_primaries: true, ..w.plan.net.clone() };
            w.granted(node, AdminCommand::NetOptions(node_id(peer), Box::new(options)));
        };
        let refusal = |w: &mut World| match w.try_open(1) {
            Err(OpenError::PromotionRefused(refusal)) => {
                assert_eq!(code(&refusal), RefusalCode::State(StateError::TwoPrimaries));
                refusal.to_string()
            }
            other => panic!("{other:?}"),
        };
        let text = refusal(w);
        assert!(text.contains("set allow-two-primaries on both nodes"), "{text}");
        allow(w, 1, 0);
        let text = refusal(w);
        assert!(text.contains("node0") && text.contains("there, too"), "{text}");
        allow(w, 0, 1);
        let b = w.open(1);
        w.write(1, 8);
        w.close(1, b);
        w.close(0, a);
        w.run_seconds(1);
        for (node, peer) in [(0, 1), (1, 0)] {
            let options = Box::new(w.plan.net.clone());
            w.granted(node, AdminCommand::NetOptions(node_id(peer), options));
        }
        w.settle();
    });
}

/// What an operator suspends on either node is written on all replicas, and nothing else is begun.
#[test]
fn io_is_suspended_on_either_node() {
    scenario(three(), |w| {
        w.form();
        let (a, b) = (w.open(0), w.open(1));
        for node in [0, 1] {
            let writes: Vec<u64> = (0..10).map(|i| w.start(1, WRITE, 8 * i, 8)).collect();
            w.granted(node, AdminCommand::SuspendIo);
            let late = w.start(1, WRITE, 0, 8);
            w.run_seconds(2);
            w.expect("what comes later waits", |w| !w.is_answered(late));
            w.granted(node, AdminCommand::ResumeIo);
            for write in writes.into_iter().chain([late]) {
                w.finish(write).unwrap();
            }
        }
        w.close(0, a);
        w.close(1, b);
        w.settle();
    });
}

/// The first Primary hands over to the next release while the second one writes all the time: it is asked
/// to wait, and neither loses anything.
#[test]
fn the_first_primary_is_replaced_under_load() {
    scenario(three(), |w| {
        w.form();
        let (a, b) = (w.open(0), w.open(1));
        let mut writes = Vec::new();
        w.swap(0, SECOND / 100);
        for i in 0..100 {
            writes.push(w.start(1, WRITE, 8 * (i % 16), 8));
            w.run_for(SECOND / 1000);
        }
        for write in writes {
            w.finish(write).unwrap();
        }
        w.expect("it was replaced", |w| w.stats.swaps == 1);
        w.expect("and both are Primary", |w| w.is_primary(0) && joined(w, 1, 0));
        w.close(0, a);
        w.close(1, b);
        w.settle();
    });
}

/// A second Primary that was killed has left nothing to do at the first one.
#[test]
fn the_second_primary_is_killed() {
    scenario(three(), |w| {
        w.form();
        let (a, _) = (w.open(0), w.open(1));
        for i in 0..10 {
            w.start(1, WRITE, 8 * i, 8);
        }
        w.run_for(100_000);
        w.kill(1);
        w.write(0, 0);
        w.start_node(1);
        w.wait_connected(0, 1);
        w.expect("it is forgotten", |w| {
            w.seen(0).peers[1].as_ref().is_some_and(|p| p.role == Role::Secondary)
        });
        let b = w.open(1);
        w.write(1, 0);
        w.close(1, b);
        w.close(0, a);
        w.settle();
    });
}

/// DRBD's kernel module does nothing for others.
#[test]
fn beside_a_node_of_another_kind_there_is_no_second_primary() {
    scenario(pair(), |w| {
        w.net.hide_own_features();
        w.form();
        let a = w.open(0);
        w.write(0, 0);
        let refused = w.ask(1, AdminCommand::Primary { force: false }).unwrap_err();
        assert_eq!(code(&refused), RefusalCode::State(StateError::TwoPrimaries));
        assert!(refused.to_string().contains("its software"), "{refused}");
        w.expect("nothing has changed", |w| w.seen(1).volumes[0].disk == DiskState::UpToDate);
        w.close(0, a);
        w.settle();
    });
}
