//! Hard cases 3 to 8 and 97 of semantics §14: a Primary without a disk and what its servers tell
//! it, or would have told it.

use codec::wire::Packet;
use replication::io::AdminCommand;
use sim::plan::Plan;
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::{OnNoDataAccessible, OnNoQuorum};
use vocab::{DiskState, GenUuid, ReplState, VolumeNr};

const WRITE: Op = Op::Write { fua: false };

fn plan(diskful: usize) -> Plan {
    let mut plan = Plan::majority(diskful, 1);
    plan.workload.nodes = vec![diskful];
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    plan
}

fn current(w: &World, node: usize) -> GenUuid {
    w.seen(node).volumes[0].current
}

fn tag(w: &World, node: usize, sector: u64) -> u64 {
    w.nodes[node].drive(0).map_or(0, |d| d.disk.tag(sector))
}

/// The node is beside another one that is as current.
fn is_current(w: &World, node: usize, peer: usize) -> bool {
    w.connected(node, peer)
        && w.disk(node) == DiskState::UpToDate
        && w.device(node, peer).repl == ReplState::Established
        && w.device(node, peer).disk == DiskState::UpToDate
}

fn is_generation(packet: &Packet) -> bool {
    matches!(packet, Packet::CurrentUuid(..))
}

fn is_write_ack(packet: &Packet) -> bool {
    matches!(packet, Packet::WriteAck(..) | Packet::WriteAckInSync(..))
}

/// The slot of the newer disk for the node that the older one was resynced from holds the newer
/// generation itself, which is no relation of the two.
#[test]
fn a_slot_for_a_third_node_says_nothing_about_the_two_that_meet_case_3() {
    scenario(plan(3), |w| {
        w.form();
        for (a, b) in [(0, 1), (0, 3), (1, 2)] {
            w.cut(a, b);
        }
        for (a, b) in [(0, 1), (0, 3), (1, 2)] {
            w.wait_lost_all(a, [b]);
        }
        let opener = w.open(3);
        w.write(3, 0);
        w.reset(0, 2);
        w.wait("n2 has brought n0 along", |w| tag(w, 0, 0) != 0);
        w.write(3, 8);
        w.cut(0, 2);
        w.wait_lost_all(0, [2]);
        w.write(3, 16);
        w.expect("n0 is behind", |w| !current(w, 0).same(current(w, 1)));
        w.close(3, opener);
        w.wait_secondary(3);
        w.heal(0, 1);
        w.wait_disk(0, DiskState::UpToDate);
        w.expect("n0 has everything", |w| (0..3).all(|i| tag(w, 0, i * 8) == tag(w, 1, i * 8)));
        for (a, b) in [(0, 2), (0, 3), (1, 2)] {
            w.heal(a, b);
        }
        w.settle();
    });
}

/// The word that a generation begins is lost with the link. Until the only server left has heard
/// it, no user hears of a write that belongs to it.
#[test]
fn a_generation_that_its_only_server_has_not_heard_of_holds_the_writes_case_4() {
    scenario(plan(2), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.kill(0);
        w.wait_lost(2, 0);
        let before = current(w, 1);
        let tap = w.tap(2, 1, is_generation);
        let id = w.start(2, WRITE, 8, 8);
        w.wait("the word is on its way", |w| w.tapped(tap) > 0);
        w.lose_what_is_under_way(2, 1);
        w.expect("n1 has not heard", |w| current(w, 1).same(before) && !w.is_answered(id));
        w.run_seconds(5);
        w.expect("the write waits", |w| !w.is_answered(id));
        w.heal(1, 2);
        w.wait_connected(1, 2);
        // Both may have noticed so late that neither has quorum alone.
        w.start_node(0);
        w.finish(id).ok();
        w.expect("n1 has heard by now", |w| !current(w, 1).same(before));
        w.read(2, 8);
        w.wait("n0 is current", |w| is_current(w, 0, 1));
        w.close(2, opener);
        w.settle();
    });
}

/// The same, and the server stops meanwhile, so that what is frozen for it may not be all that it
/// lacks.
#[test]
fn a_server_that_stopped_before_it_heard_of_a_generation_loses_nothing_case_4() {
    for power in [false, true] {
        scenario(plan(2), |w| {
            w.form();
            let opener = w.open(2);
            w.write(2, 0);
            w.kill(0);
            w.wait_lost(2, 0);
            let before = current(w, 1);
            let tap = w.tap(2, 1, is_generation);
            let id = w.start(2, WRITE, 8, 8);
            w.wait("the word is on its way", |w| w.tapped(tap) > 0);
            w.lose_what_is_under_way(2, 1);
            if power {
                w.power_loss(1);
            } else {
                w.kill(1);
            }
            w.start_node(1);
            w.heal(1, 2);
            w.wait_connected(1, 2);
            w.run_seconds(20);
            w.expect("no write is reported in a generation that n1 does not have", |w| {
                !w.is_answered(id) || !current(w, 1).same(before)
            });
            w.start_node(0);
            w.finish(id).ok();
            w.wait("both are current", |w| is_current(w, 0, 1) && is_current(w, 1, 0));
            w.read(2, 0);
            w.read(2, 8);
            w.close(2, opener);
            w.settle();
        });
    }
}

/// n5 may go on without quorum's say over its requests: each loss starts a generation of its own,
/// also while the one before is not confirmed.
#[test]
fn a_second_loss_before_the_first_is_confirmed_starts_another_generation_case_6() {
    let mut plan = plan(5);
    plan.resource.on_no_quorum = OnNoQuorum::IoError;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(5);
        w.write(5, 0);
        let (first, second) = (w.tap(5, 1, is_generation), w.tap(5, 2, is_generation));
        w.kill(0);
        w.wait_lost(5, 0);
        let id = w.start(5, WRITE, 8, 8);
        w.wait("the word is on its way", |w| w.tapped(first) > 0);
        w.lose_what_is_under_way(5, 1);
        w.finish(id).ok();
        w.write(5, 16);
        w.expect("two generations have begun", |w| w.tapped(second) == 2);
        w.expect("n1 is behind", |w| !current(w, 2).same(current(w, 1)));
        w.expect("the others agree", |w| current(w, 2).same(current(w, 3)));
        w.heal(1, 5);
        w.start_node(0);
        w.wait_disk(0, DiskState::UpToDate);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(5, opener);
        w.settle();
    });
}

/// n0 has the write and its generation, and only its word of that is lost.
#[test]
fn a_server_whose_word_alone_was_lost_is_where_the_others_are_case_8() {
    for alone in [false, true] {
        scenario(plan(2), |w| {
            w.form();
            let opener = w.open(2);
            w.write(2, 0);
            if alone {
                w.kill(1);
                w.wait_lost(2, 1);
            }
            let tap = w.tap(0, 2, is_write_ack);
            let id = w.start(2, WRITE, 8, 8);
            w.wait("n0 confirms the write", |w| w.tapped(tap) > 0);
            w.lose_what_is_under_way(0, 2);
            w.expect("n0 has the write", |w| tag(w, 0, 8) != 0);
            if alone {
                w.expect("nobody has confirmed the write", |w| !w.is_answered(id));
            }
            w.heal(0, 2);
            w.wait_connected(0, 2);
            if alone {
                w.start_node(1);
            }
            w.finish(id).ok();
            w.write(2, 16);
            w.wait("both are current", |w| is_current(w, 0, 1) && is_current(w, 1, 0));
            w.expect("both are in one generation", |w| current(w, 0).same(current(w, 1)));
            w.close(2, opener);
            w.settle();
        });
    }
}

/// Each time n1 comes back without its disk, what is written then it will lack.
#[test]
fn a_node_that_returns_without_its_disk_is_behind_each_time_case_97() {
    for primary in [0, 2] {
        scenario(plan(2), |w| {
            w.form();
            let opener = w.open(primary);
            for round in 0..4 {
                w.write(primary, round * 64);
                let before = current(w, 1);
                w.kill(1);
                w.wait_lost(primary, 1);
                let disk = w.nodes[1].drives[0].take();
                w.start_node(1);
                w.wait_connected(0, 1);
                w.wait_connected(primary, 1);
                w.write(primary, round * 64 + 8);
                w.expect("a generation has begun", |w| !current(w, 0).same(before));
                let after = current(w, 0);
                w.write(primary, round * 64 + 16);
                w.expect("it is one only", |w| current(w, 0).same(after));
                w.kill(1);
                w.nodes[1].drives[0] = disk;
                w.wait_lost(primary, 1);
                w.start_node(1);
                w.wait("n1 is current", |w| is_current(w, 1, 0));
                w.expect("n1 has what it missed", |w| {
                    (0..3).all(|i| {
                        let sector = round * 64 + i * 8;
                        tag(w, 1, sector) == tag(w, 0, sector) && tag(w, 1, sector) != 0
                    })
                });
            }
            w.close(primary, opener);
            w.settle();
        });
    }
}

/// n1 is meant to be without a disk for a while: its slot is let go and taken again.
#[test]
fn a_node_that_gives_up_its_disk_on_purpose_and_takes_it_again_case_97() {
    scenario(plan(2), |w| {
        w.form();
        let opener = w.open(0);
        let volume = VolumeNr(0);
        for round in 0..4 {
            w.write(0, round * 64);
            w.granted(1, AdminCommand::Detach { volume, force: false, intentional: true });
            w.wait_disk(1, DiskState::Diskless);
            w.write(0, round * 64 + 8);
            w.read(1, round * 64 + 8);
            w.attach_again(1);
            w.wait_disk(1, DiskState::UpToDate);
            w.expect("n1 has what it missed", |w| {
                tag(w, 1, round * 64 + 8) == tag(w, 0, round * 64 + 8)
            });
        }
        w.close(0, opener);
        w.settle();
    });
}
