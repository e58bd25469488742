//! Protocol A: a write is reported when it is on the own disk and on its way.

use replication::io::AdminCommand;
use sim::disk::Behaviour;
use sim::net::Pace;
use sim::plan::{MILLISECOND, Plan};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::{OnNoDataAccessible, OnNoQuorum, Protocol};
use vocab::{DiskState, VolumeNr};

const WRITE: Op = Op::Write { fua: false };

/// A Primary that lost all data waits for them.
fn plan(diskful: usize, diskless: usize) -> Plan {
    let mut plan = Plan::quiet(diskful, diskless);
    plan.net.protocol = Protocol::A;
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    plan
}

fn behave(w: &mut World, behaviour: Behaviour) {
    w.nodes[0].drives[0].as_mut().expect("a disk").disk.behaviour = behaviour;
}

/// Protocol A reports what is on the own disk and on its way. Without an own disk it would be nowhere
/// else, and the user, who works on, would read what was there before.
#[test]
fn under_protocol_a_too_a_diskless_primary_reports_what_a_disk_has() {
    let mut plan = plan(1, 1);
    plan.workload.nodes = vec![1];
    scenario(plan, |w| {
        w.form();
        w.run_seconds(1);
        let opener = w.open(1);
        w.write(1, 0);
        w.cut(0, 1);
        let id = w.start(1, WRITE, 0, 8);
        w.run_for(50 * MILLISECOND);
        w.expect("it is on no disk, and not reported", |w| !w.is_answered(id));
        w.wait_lost(1, 0);
        w.heal(0, 1);
        w.finish(id).expect("it is sent again");
        w.read(1, 0);
        w.close(1, opener);
        w.settle();
    });
}

/// What the own disk could not take is on its way to the peer, which is no place to report it from.
#[test]
fn under_protocol_a_a_write_that_the_own_disk_has_not_waits_for_the_peer() {
    scenario(plan(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.flush(0);
        w.cut(0, 1);
        behave(w, Behaviour { write_errors: 1000, ..Behaviour::default() });
        let id = w.start(0, WRITE, 0, 8);
        w.run_for(50 * MILLISECOND);
        w.expect("it is on no disk, and not reported", |w| !w.is_answered(id));
        behave(w, Behaviour::default());
        w.wait_lost(0, 1);
        w.heal(0, 1);
        w.finish(id).expect("it is sent again");
        w.read(0, 0);
        // Here nothing is lost on the way, and it ends when the peer has it.
        w.attach_again(0);
        w.wait_disk(0, DiskState::UpToDate);
        behave(w, Behaviour { write_errors: 1000, ..Behaviour::default() });
        w.write(0, 8);
        behave(w, Behaviour::default());
        w.read(0, 8);
        w.attach_again(0);
        w.close(0, opener);
        w.settle();
    });
}

/// The same where a new generation is all that tells the peers of a failed disk, and nobody waits for them
/// to confirm it: the write is still under way when they answer a ping.
#[test]
fn under_protocol_a_a_write_that_the_own_disk_has_not_waits_for_slow_data() {
    let mut plan = plan(2, 0);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.flush(0);
        w.pace(0, 1, Pace { per_sector: 50 * MILLISECOND, ..Pace::default() });
        behave(w, Behaviour { write_errors: 1000, ..Behaviour::default() });
        let id = w.start(0, WRITE, 0, 8);
        w.run_for(200 * MILLISECOND);
        w.expect("it is on no disk, and not reported", |w| !w.is_answered(id));
        behave(w, Behaviour::default());
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.pace(0, 1, Pace::default());
        w.heal(0, 1);
        w.finish(id).expect("it is sent again");
        w.read(0, 0);
        w.attach_again(0);
        w.close(0, opener);
        w.settle();
    });
}

/// The peer lacks what was reported and is only on a disk that has failed. It is not read from.
#[test]
fn under_protocol_a_a_peer_that_lacks_what_was_reported_does_not_take_the_place_of_the_own_disk() {
    scenario(plan(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.flush(0);
        w.cut(0, 1);
        w.write(0, 0);
        behave(w, Behaviour { write_errors: 1000, ..Behaviour::default() });
        let id = w.start(0, WRITE, 8, 8);
        w.wait_lost(0, 1);
        behave(w, Behaviour::default());
        w.heal(0, 1);
        w.run_seconds(20);
        w.expect("the newer data are missed", |w| !w.is_answered(id));
        w.attach_again(0);
        w.wait_disk(0, DiskState::UpToDate);
        // The disk had refused it.
        let _ = w.finish(id);
        w.read(0, 0);
        w.close(0, opener);
        w.settle();
    });
}

/// The peer's disk is to take the place of the own one: what was reported has to be there first.
#[test]
fn under_protocol_a_a_disk_is_detached_when_a_peer_has_what_was_reported() {
    scenario(plan(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.wait("the peer is UpToDate", |w| w.device(0, 1).disk == DiskState::UpToDate);
        w.stall_disk(1, 4);
        w.write(0, 0);
        let detach = AdminCommand::Detach { volume: VolumeNr(0), force: false, intentional: false };
        let id = w.admin(0, detach);
        w.run_seconds(1);
        w.expect("nothing is confirmed", |w| !w.has_answer(id) && is_up_to_date(w, 0));
        let late = w.start(0, WRITE, 8, 8);
        w.run_seconds(1);
        w.expect("nothing more is reported", |w| !w.is_answered(late));
        w.wait("it is detached", |w| w.has_answer(id));
        w.finish(late).expect("it is on the peer's disk");
        w.expect("it is gone", |w| w.disk(0) == DiskState::Diskless);
        w.flush(0);
        w.power_loss(1);
        w.wait_lost(0, 1);
        w.start_node(1);
        w.read(0, 0);
        w.read(0, 8);
        w.attach_again(0);
        w.close(0, opener);
        w.settle();
    });
}

/// A peer that lacks what was reported and has got it from another one is as good as that.
#[test]
fn under_protocol_a_a_peer_gets_what_was_reported_from_another_one() {
    scenario(plan(3, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.flush(0);
        w.cut(0, 2);
        w.write(0, 0);
        w.wait_lost(0, 2);
        w.detach(0);
        w.heal(0, 2);
        w.wait("it has it from n1", |w| w.device(0, 2).disk == DiskState::UpToDate);
        w.kill(1);
        w.wait_lost(0, 1);
        w.read(0, 0);
        w.start_node(1);
        w.attach_again(0);
        w.close(0, opener);
        w.settle();
    });
}

fn is_up_to_date(w: &World, node: usize) -> bool {
    w.disk(node) == DiskState::UpToDate
}
