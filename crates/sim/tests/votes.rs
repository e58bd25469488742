//! What a node has voted for, and its disk knows nothing of (invariants 5 and 32).

use replication::io::AdminCommand;
use sim::plan::{Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::{DiskState, VolumeNr};

const WRITE: Op = Op::Write { fua: false };

fn quorate(w: &World, node: usize) -> bool {
    w.view(node).is_some_and(|v| v.volumes[0].quorum)
}

fn detach(w: &mut World, node: usize, force: bool) {
    let volume = VolumeNr(0);
    w.granted(node, AdminCommand::Detach { volume, force, intentional: false });
    w.wait_disk(node, DiskState::Diskless);
}

fn metadata_fails(w: &mut World, node: usize, percent: u64) {
    w.nodes[node].drives[0].as_mut().expect("a disk").disk.behaviour.meta_errors = percent;
}

/// n0 votes without its disk for what n1 writes alone; then it is back with the disk, beside n2.
fn votes_without_its_disk(force: bool) {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(1);
        w.write(1, 0);
        detach(w, 0, force);
        w.write(1, 8);
        w.run_seconds(1);
        w.cut_off(2, [0, 1]);
        w.wait_lost(1, 2);
        w.write(1, 16);
        w.close(1, opener);
        w.wait_secondary(1);
        w.kill(1);
        w.power_loss(0);
        w.start_node(0);
        w.rejoin(2, [0, 1]);
        w.wait_connected(0, 2);
        w.run_seconds(10);
        w.expect("two that lack the write have no quorum", |w| !quorate(w, 0) && !quorate(w, 2));
        w.start_node(1);
        w.settle();
        let opener = w.open(0);
        w.read(0, 16);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_disk_that_was_given_up_knows_that_its_node_went_on() {
    votes_without_its_disk(true);
}

#[test]
fn a_disk_that_was_detached_knows_that_its_node_went_on() {
    votes_without_its_disk(false);
}

#[test]
fn a_node_whose_disk_can_not_tell_has_no_vote_without_it() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(1);
        w.write(1, 0);
        metadata_fails(w, 0, 100);
        detach(w, 0, true);
        // Three are connected, and two of them have disks.
        w.write(1, 8);
        w.cut_off(2, [0, 1]);
        w.wait_lost(1, 2);
        w.expect("n1 has no quorum", |w| !quorate(w, 1));
        let waits = w.start(1, WRITE, 16, 8);
        w.run_seconds(5);
        w.expect("nothing is written", |w| !w.is_answered(waits));
        metadata_fails(w, 0, 0);
        w.attach_again(0);
        w.finish(waits).expect("n0 has its vote again");
        w.rejoin(2, [0, 1]);
        w.close(1, opener);
        w.settle();
    });
}

#[test]
fn a_node_whose_disk_can_not_tell_is_not_harmless_when_it_is_gone() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(1);
        w.write(1, 0);
        metadata_fails(w, 0, 100);
        detach(w, 0, true);
        w.run_seconds(1);
        w.kill(0);
        w.wait_lost(1, 0);
        // n1 alone would have no quorum.
        w.refused(2, AdminCommand::Disconnect { peer: node_id(1), force: false });
        w.write(1, 16);
        metadata_fails(w, 0, 0);
        w.start_node(0);
        w.close(1, opener);
        w.settle();
    });
}

#[test]
fn of_two_nodes_one_goes_on_with_the_disk_of_the_other() {
    scenario(Plan::majority(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        metadata_fails(w, 0, 100);
        detach(w, 0, true);
        w.write(0, 8);
        w.kill(0);
        metadata_fails(w, 0, 0);
        w.start_node(0);
        w.run_seconds(5);
        w.settle();
        let opener_again = w.open(1);
        w.read(1, 8);
        w.close(1, opener_again);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_cluster_that_was_stopped_starts_with_a_majority() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(1);
        w.write(1, 0);
        w.close(1, opener);
        w.wait_secondary(1);
        for node in 0..3 {
            for peer in (0..3).filter(|p| *p != node) {
                if w.connected(node, peer) {
                    w.disconnect(node, peer);
                }
            }
            detach(w, node, false);
            w.kill(node);
        }
        w.start_node(1);
        w.start_node(2);
        w.wait("they have quorum", |w| quorate(w, 1) && quorate(w, 2));
        w.start_node(0);
        w.settle();
    });
}
