//! Online verify beside everything else that goes on.

use codec::wire::Packet;
use replication::io::AdminCommand;
use sim::disk::Behaviour;
use sim::net::Pace;
use sim::plan::{Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::ReadBalancing;
use vocab::{DiskState, ReplState, VolumeNr};

const V0: VolumeNr = VolumeNr(0);
const WRITE: Op = Op::Write { fua: false };

fn behave(w: &mut World, node: usize, behaviour: Behaviour) {
    w.nodes[node].drives[0].as_mut().expect("a disk").disk.behaviour = behaviour;
}

fn is_request(packet: &Packet) -> bool {
    matches!(packet, Packet::OvRequest(..) | Packet::OvDagtagReq(..))
}

fn verify(peer: usize, start: u64, stop: u64) -> AdminCommand {
    AdminCommand::Verify { peer: node_id(peer), volume: V0, start: Some(start), stop: Some(stop) }
}

#[test]
fn a_verify_of_blocks_whose_received_writes_wait_for_their_epoch_reports_nothing() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        behave(w, 1, Behaviour { latency: (100_000, 60_000_000), ..Behaviour::default() });
        for _ in 0..60 {
            // The write that ends first starts an epoch. What follows it is held back by the slow
            // Secondary until the other one is executed, too.
            let ids = [8192, 16384, 24576].map(|sector| w.start(0, WRITE, sector, 8));
            w.wait("a write ends", |w| ids.iter().any(|id| w.is_answered(*id)));
            let held = w.start(0, WRITE, 0, 8);
            w.ask(1, verify(0, 0, 64)).ok();
            for id in ids.into_iter().chain([held]) {
                w.finish(id).ok();
            }
            w.wait("the verify ends", |w| w.device(1, 0).repl == ReplState::Established);
        }
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn what_a_verify_found_before_a_disk_was_resynced_means_nothing_afterwards() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(2);
        w.cut(0, 2);
        w.wait_lost(2, 0);
        w.wait_lost(0, 2);
        for i in 0..100 {
            let id = w.start(2, WRITE, i * 512, 512);
            w.finish(id).ok();
        }
        // What n1 says arrives so late that n0 has got the data from n2 meanwhile.
        w.net.set_pace(1, 0, Pace { delay: (100_000_000, 101_000_000), ..Pace::default() });
        w.granted(1, verify(0, 0, u64::MAX));
        w.wait("a difference is found", |w| w.device(0, 1).out_of_sync > 0);
        w.heal(0, 2);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}

/// n2 goes on without n1, which has not noticed: it takes itself for current, and n3 verifies its
/// disk. What a user writes and reads through n3 next has nothing to do with that disk.
#[test]
fn a_disk_left_behind_during_a_verify_serves_nobody() {
    let mut plan = Plan::majority(5, 0);
    plan.disk.read_balancing = ReadBalancing::PreferRemote;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.run_seconds(1);
        behave(w, 1, Behaviour { latency: (20_000_000, 30_000_000), ..Behaviour::default() });
        w.granted(3, verify(1, 0, u64::MAX));
        w.cut_off(1, [0, 2, 4]);
        w.kill(0);
        w.wait_lost(2, 1);
        w.write(2, 0);
        w.close(2, opener);
        w.wait_secondary(2);
        let opener = w.open(3);
        for _ in 0..4 {
            w.read(3, 0);
        }
        w.write(3, 8);
        for _ in 0..4 {
            w.read(3, 8);
        }
        w.close(3, opener);
        w.start_node(0);
        w.rejoin(1, [0, 2, 4]);
        w.settle();
    });
}

/// A verify between survivors must not keep them from settling what a lost Primary had sent to one
/// of them only.
#[test]
fn a_verify_gives_way_to_the_settlement_of_a_lost_primary_case_90() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        w.open(0);
        w.write(0, 0);
        // The verify takes its time.
        behave(w, 1, Behaviour { latency: (20_000_000, 30_000_000), ..Behaviour::default() });
        w.granted(1, verify(2, 0, u64::MAX));
        w.cut(0, 1);
        w.start(0, WRITE, 64, 8);
        w.run_for(5_000_000);
        w.kill(0);
        w.expect("the verify runs", |w| w.device(1, 2).repl == ReplState::VerifyS);
        w.wait_lost(1, 0);
        w.wait_lost(2, 0);
        let opener = w.open(2);
        w.expect("nothing sets the two apart", |w| {
            w.device(2, 1).out_of_sync == 0 && w.device(1, 2).repl == ReplState::Established
        });
        w.close(2, opener);
        w.heal(0, 1);
        w.start_node(0);
        w.settle();
    });
}

/// The connection breaks, or the target gives up its disk, with requests of the verify on their
/// way. It ends on both, and the next one goes on where it was.
#[test]
fn a_verify_that_is_interrupted_ends_on_both_and_goes_on_case_90() {
    for detach in [false, true] {
        scenario(Plan::quiet(2, 0), |w| {
            w.form();
            let opener = w.open(0);
            w.write(0, 0);
            for node in [0, 1] {
                let latency = (2_000_000, 4_000_000);
                behave(w, node, Behaviour { latency, ..Behaviour::default() });
            }
            let requests = [w.tap(0, 1, is_request), w.tap(1, 0, is_request)];
            w.granted(0, verify(1, 0, u64::MAX));
            w.wait("a part of it is done", |w| requests.iter().any(|t| w.tapped(*t) > 20));
            w.expect("the verify runs", |w| w.device(0, 1).repl == ReplState::VerifyS);
            if detach {
                let command = AdminCommand::Detach { volume: V0, force: true, intentional: false };
                w.granted(1, command);
                w.wait_disk(1, DiskState::Diskless);
            } else {
                w.reset(0, 1);
                w.wait_lost(0, 1);
                w.wait_lost(1, 0);
            }
            w.write(0, 8);
            for node in [0, 1] {
                behave(w, node, Behaviour::default());
            }
            if detach {
                w.attach_again(1);
            }
            w.wait("it has ended on both", |w| {
                w.connected(0, 1)
                    && w.disk(1) == DiskState::UpToDate
                    && w.device(0, 1).repl == ReplState::Established
                    && w.device(1, 0).repl == ReplState::Established
            });
            let again = [w.tap(0, 1, is_request), w.tap(1, 0, is_request)];
            let on = AdminCommand::Verify { peer: node_id(1), volume: V0, start: None, stop: None };
            w.granted(0, on);
            w.wait("the verify ends", |w| w.device(0, 1).repl == ReplState::Established);
            w.expect("it has done something", |w| again.iter().any(|t| w.tapped(*t) > 0));
            w.expect("nothing differs", |w| w.device(0, 1).out_of_sync == 0);
            w.close(0, opener);
            w.settle();
        });
    }
}

/// That two disks differ of which one has left the other behind is known without a verify.
#[test]
fn a_disk_left_behind_during_a_verify_is_resynced_at_once_case_90() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(2);
        w.cut(0, 2);
        w.wait_lost(2, 0);
        w.wait_lost(0, 2);
        // The verify would take its time.
        behave(w, 0, Behaviour { latency: (20_000_000, 30_000_000), ..Behaviour::default() });
        w.granted(1, verify(0, 0, u64::MAX));
        w.expect("the verify runs", |w| w.device(1, 0).repl == ReplState::VerifyS);
        w.write(2, 64);
        w.close(2, opener);
        w.wait_secondary(2);
        w.run_seconds(1);
        w.expect("it has ended", |w| w.device(1, 0).repl != ReplState::VerifyS);
        w.wait_disk(0, DiskState::UpToDate);
        w.heal(0, 2);
        w.settle();
    });
}
