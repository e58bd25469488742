//! Hard cases 13, 14, 23, 24, 57, 62, 68, 69, 72 and 98 of semantics §14: who has what the others
//! lack, and who only looks as if it had.

use std::cell::Cell;

use codec::wire::{Packet, PeerBlockDesc};
use replication::io::{AdminCommand, Input};
use sim::plan::{MILLISECOND, Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::OnNoDataAccessible;
use vocab::{DiskState, ReplState, SectorRange, VolumeNr};

const WRITE: Op = Op::Write { fua: false };
const EXTENT: u64 = 8192;
const V0: VolumeNr = VolumeNr(0);

fn tag(w: &World, node: usize, sector: u64) -> u64 {
    w.nodes[node].drive(0).map_or(0, |d| d.disk.tag(sector))
}

fn equal(w: &World, a: usize, b: usize) -> bool {
    let (a, b) = (w.nodes[a].drive(0), w.nodes[b].drive(0));
    a.zip(b).is_some_and(|(a, b)| a.disk.first_difference(&b.disk, 0).is_none())
}

fn pause(w: &mut World, node: usize, peer: usize, pause: bool) {
    let peer = node_id(peer);
    w.granted(node, AdminCommand::PauseSync { peer, volume: V0, pause });
}

/// A node comes back with an older copy of its disk, metadata and all, as from a snapshot.
fn comes_back_reverted(w: &mut World, node: usize, old: &sim::disk::Disk) {
    w.kill(node);
    w.nodes[node].drives[0].as_mut().expect("a disk").disk = old.clone();
    w.start_node(node);
}

/// The disk has the generation that all began with, and nothing of what was written since.
#[test]
fn a_disk_that_is_provisioned_again_is_not_current_case_13() {
    for primary in [true, false] {
        scenario(Plan::quiet(2, 0), |w| {
            w.form();
            w.flush_disks();
            let blank = w.nodes[1].drive(0).expect("a disk").disk.clone();
            let opener = w.open(0);
            for i in 0..6 {
                w.write(0, i * EXTENT);
            }
            if !primary {
                w.close(0, opener);
                w.wait_secondary(0);
            }
            comes_back_reverted(w, 1, &blank);
            w.expect("it has nothing", |w| tag(w, 1, 0) == 0);
            w.wait_connected(0, 1);
            w.wait("it has been brought up to date", |w| {
                w.disk(1) == DiskState::UpToDate && w.device(1, 0).repl == ReplState::Established
            });
            w.expect("it has everything", |w| equal(w, 0, 1));
            w.expect("nothing was taken from it", |w| tag(w, 0, 0) != 0);
            if primary {
                w.close(0, opener);
            }
            w.settle();
        });
    }
}

/// The disk is as it was two absences ago. What the other one knows is what it lacked at the last.
#[test]
fn a_disk_that_was_reverted_gets_all_that_it_lacks_case_72() {
    for third in [false, true] {
        scenario(Plan::majority(2 + usize::from(third), usize::from(!third)), |w| {
            w.form();
            let opener = w.open(0);
            w.write(0, 0);
            w.kill(1);
            w.wait_lost(0, 1);
            w.write(0, EXTENT);
            w.start_node(1);
            w.wait("n1 is back", |w| w.disk(1) == DiskState::UpToDate && w.connected(0, 1));
            w.kill(1);
            let old = w.nodes[1].drive(0).expect("a disk").disk.clone();
            w.wait_lost(0, 1);
            for i in 2..6 {
                w.write(0, i * EXTENT);
            }
            w.start_node(1);
            w.wait("n1 is back", |w| {
                w.disk(1) == DiskState::UpToDate
                    && w.connected(0, 1)
                    && w.device(0, 1).repl == ReplState::Established
            });
            w.write(0, 0);
            comes_back_reverted(w, 1, &old);
            w.wait_connected(0, 1);
            w.wait("n1 is back", |w| {
                w.disk(1) == DiskState::UpToDate && w.device(1, 0).repl == ReplState::Established
            });
            w.expect("it has everything", |w| equal(w, 0, 1));
            w.close(0, opener);
            w.settle();
        });
    }
}

/// n0 is Primary, its disk is a mixture, and it has lost the only node with data. n1 is not to be
/// outdated by a Primary that can not write; only one that has not noticed yet counts as able to.
#[test]
fn a_primary_without_data_outdates_nobody_case_23() {
    let mut plan = Plan::quiet(2, 1);
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    let noticed = Cell::new(0);
    scenario(plan, |w| {
        w.form();
        let opener = w.open(1);
        w.cut(0, 1);
        w.cut(0, 2);
        w.wait_lost_all(0, [1, 2]);
        for i in 0..6 {
            w.write(1, i * EXTENT);
        }
        w.close(1, opener);
        w.wait_secondary(1);
        pause(w, 1, 0, true);
        w.heal(0, 1);
        w.heal(0, 2);
        w.wait_disk(0, DiskState::Inconsistent);
        w.wait_connected(0, 2);
        let opener = w.open(0);
        w.read(0, 0);
        w.cut(0, 1);
        w.wait("one of the two has noticed", |w| !w.connected(0, 1));
        let first = w.seen(0).suspended.no_data;
        w.wait_lost_all(0, [1]);
        let id = w.start(0, WRITE, 8, 8);
        w.run_seconds(20);
        w.expect("n1 is not outdated", |w| !first || w.disk(1) == DiskState::UpToDate);
        w.expect("nothing was written", |w| !w.is_answered(id));
        noticed.set(noticed.get() + u32::from(first));
        w.heal(0, 1);
        w.finish(id).ok();
        pause(w, 1, 0, false);
        w.wait_disk(0, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
    assert!(noticed.get() > 0 || std::env::var("SIM_SEED").is_ok(), "the Primary was never first");
}

/// n0 is Primary and has lost n2, then n1, which brings n2 up to date. n0 meets n2 again, and n1 is
/// far from it now. The case would have n1 go on as current: here it is outdated before n0 goes on
/// (case 22), since it gets none of what n0 writes from then on, and it loses nothing by that.
#[test]
fn who_is_far_from_a_primary_that_goes_on_is_current_only_with_its_writes_case_24() {
    scenario(Plan::majority(3, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.cut(0, 2);
        w.wait_lost_all(0, [2]);
        w.write(0, EXTENT);
        w.cut(0, 1);
        w.wait_lost_all(0, [1]);
        w.wait("n1 has brought n2 up to date", |w| {
            w.disk(2) == DiskState::UpToDate && w.disk(1) == DiskState::UpToDate
        });
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.write(0, 2 * EXTENT);
        w.run_seconds(5);
        w.expect("n1 has the write or is not current", |w| {
            tag(w, 1, 2 * EXTENT) != 0 || w.disk(1) != DiskState::UpToDate
        });
        w.refused(1, AdminCommand::Primary { force: false });
        w.heal(0, 1);
        w.wait("n1 is back", |w| w.connected(0, 1) && w.disk(1) == DiskState::UpToDate);
        w.read(0, 2 * EXTENT);
        w.close(0, opener);
        w.settle();
    });
}

/// Three disks of three generations meet in every order.
#[test]
fn three_disks_of_three_generations_all_get_to_the_newest_case_57() {
    let orders = [
        [(1, 2), (0, 1), (0, 2)],
        [(1, 2), (0, 2), (0, 1)],
        [(0, 1), (1, 2), (0, 2)],
        [(0, 2), (1, 2), (0, 1)],
        [(0, 1), (0, 2), (1, 2)],
        [(0, 2), (0, 1), (1, 2)],
    ];
    for (number, order) in orders.into_iter().enumerate() {
        for gap in [0, 40] {
            scenario(Plan::quiet(3, 0), |w| {
                w.form();
                let opener = w.open(0);
                w.cut_off(2, [0, 1]);
                w.wait_lost_all(2, [0, 1]);
                for i in 0..4 {
                    w.write(0, i * EXTENT);
                }
                w.cut(0, 1);
                w.wait_lost_all(0, [1]);
                for i in 2..8 {
                    w.write(0, i * EXTENT + number as u64);
                }
                w.close(0, opener);
                w.wait_secondary(0);
                for (a, b) in order {
                    w.heal(a, b);
                    if gap > 0 {
                        w.wait_connected(a, b);
                        w.run_for(gap * MILLISECOND);
                    }
                }
                w.settle();
            });
        }
    }
}

/// The resync is of one block, and writes go on at the very place. Until the last of them is known
/// to be missing or sent, the resync does not end.
#[test]
fn writes_that_race_with_a_very_short_resync_are_not_forgotten_case_62() {
    for nodes in [2, 3] {
        let mut plan = Plan::quiet(nodes, 0);
        plan.disk.al_extents = 67;
        let missed = Cell::new(0);
        scenario(plan, |w| {
            w.form();
            let opener = w.open(0);
            let sent = w.tap(0, 1, |packet| matches!(packet, Packet::OutOfSync(..)));
            for round in 0..6 {
                w.disconnect(0, 1);
                w.write(0, 0);
                w.connect(0, 1);
                w.connect(1, 0);
                let mut ids = Vec::new();
                for i in 0..200 {
                    let sector = [0, 4, 8, EXTENT][i % 4];
                    ids.push(w.start(0, WRITE, sector, 8));
                    w.run_for(MILLISECOND / (1 + round));
                    if w.connected(0, 1) && w.device(0, 1).repl == ReplState::Established {
                        break;
                    }
                }
                w.wait("the resync is over", |w| {
                    w.connected(0, 1)
                        && w.device(1, 0).repl == ReplState::Established
                        && w.disk(1) == DiskState::UpToDate
                });
                for id in ids {
                    w.finish(id).ok();
                }
                w.run_seconds(3);
                w.expect("both have the same", |w| equal(w, 0, 1));
            }
            missed.set(missed.get() + w.tapped(sent));
            w.close(0, opener);
            w.settle();
        });
        assert!(missed.get() > 0 || std::env::var("SIM_SEED").is_ok(), "nothing was missed");
    }
}

/// n1 does not reach the Primary, a client, and is resynced by n0, which the client goes on
/// writing to: its data are those of a moment. It becomes current when the client is gone, or is
/// there.
#[test]
fn a_resync_from_a_source_that_is_written_to_ends_when_that_is_stable_case_68() {
    for primary_dies in [true, false] {
        scenario(Plan::majority(3, 1), |w| {
            w.form();
            let opener = w.open(3);
            w.cut(1, 3);
            w.cut(1, 0);
            w.cut(1, 2);
            w.wait_lost_all(1, [0, 2, 3]);
            for i in 0..6 {
                w.write(3, i * EXTENT);
            }
            w.heal(0, 1);
            w.wait_connected(0, 1);
            for i in 0..20 {
                w.write(3, i % 6 * EXTENT + i);
                w.expect("n1 is current only with all of it", |w| {
                    w.disk(1) != DiskState::UpToDate || equal(w, 0, 1)
                });
            }
            if primary_dies {
                w.kill(3);
                w.wait_lost(0, 3);
                w.wait("n1 is current", |w| w.disk(1) == DiskState::UpToDate);
                w.expect("it has all of it", |w| equal(w, 0, 1));
                w.heal(1, 3);
                w.heal(1, 2);
                w.start_node(3);
            } else {
                w.heal(1, 3);
                w.wait_connected(1, 3);
                w.wait_disk(1, DiskState::UpToDate);
                w.write(3, 0);
                w.heal(1, 2);
                w.close(3, opener);
            }
            w.settle();
        });
    }
}

/// n1 is resynced from n2 when the Primary n0 loses n2: what n2 has is old from then on. n1 gets
/// the rest from n0.
#[test]
fn a_resync_from_a_source_that_falls_behind_is_given_up_case_69() {
    scenario(Plan::majority(4, 0), |w| {
        w.form();
        let opener = w.open(0);
        for i in 0..12 {
            w.write(0, i * EXTENT);
        }
        pause(w, 1, 2, true);
        w.granted(1, AdminCommand::Invalidate { volume: V0, from: Some(node_id(2)) });
        w.wait("n1 is a target", |w| w.device(1, 2).repl == ReplState::PausedSyncT);
        w.cut(0, 2);
        w.wait_lost_all(0, [2]);
        for i in 0..12 {
            w.write(0, i * EXTENT + 4);
        }
        pause(w, 1, 2, false);
        w.wait("n1 is current", |w| w.disk(1) == DiskState::UpToDate);
        w.expect("it has everything", |w| {
            (0..12).all(|i| tag(w, 1, i * EXTENT + 4) == tag(w, 0, i * EXTENT + 4))
        });
        w.heal(0, 2);
        w.close(0, opener);
        w.settle();
    });
}

/// A kernel node with two sources has blocks from the other one, and says to this one that all three are equal, before
/// it has them from here. This one does not count the other source as different for that.
#[test]
fn what_a_kernel_target_has_from_another_source_is_no_difference_to_that_one() {
    scenario(Plan::quiet(3, 0), |w| {
        w.net.hide_own_features();
        w.form();
        let opener = w.open(2);
        w.kill(1);
        w.wait_lost(0, 1);
        w.wait_lost(2, 1);
        for i in 0..8 {
            w.write(2, i * EXTENT);
        }
        w.close(2, opener);
        w.wait_secondary(2);
        w.run_seconds(2);
        w.cut(1, 2);
        // Its requests take a while.
        w.slow(1, 0, 300_000_000);
        w.start_node(1);
        w.wait("n1 is brought up to date", |w| {
            let to = &w.seen(0).peers[1];
            to.as_ref().is_some_and(|to| to.devices[0].repl == ReplState::SyncSource)
        });
        w.expect("it lacks blocks", |w| w.device(0, 1).out_of_sync > 0);
        let (range, mask) = (SectorRange::new(0, EXTENT), node_id(0).mask().with(node_id(2)));
        let packet = Packet::PeersInSync(V0, PeerBlockDesc { range, mask });
        w.input_of_scenario(0, Input::Packet { peer: node_id(1), packet, payload: None });
        w.expect("n2 is equal all the same", |w| w.device(0, 2).out_of_sync == 0);
        w.wait_disk(1, DiskState::UpToDate);
        w.expect("n1 has everything", |w| equal(w, 0, 1) && equal(w, 1, 2));
    });
}

/// A confirmation of writes that were not sent so, of another number, or twice. Whatever it may
/// mean, nothing is completed by it, and the connection ends.
#[test]
fn a_wrong_barrier_ack_confirms_nothing_case_98() {
    // What is added to the number of the epoch, and to that of its writes.
    for (other_epoch, other_writes) in [(0, 1), (0, -1), (1, 0), (-1, 0)] {
        scenario(Plan::quiet(2, 0), |w| {
            w.form();
            let opener = w.open(0);
            w.write(0, 0);
            w.run_seconds(2);
            // What n1 has to say stays away, and something else comes.
            w.cut_one_way(1, 0);
            let barriers = w.tap(0, 1, |packet| matches!(packet, Packet::Barrier(..)));
            let id = w.start(0, WRITE, 8, 8);
            let flush = w.start(0, Op::Flush, 0, 0);
            w.wait("the epoch is closed", |w| w.tapped(barriers) > 0);
            let Some(Packet::Barrier(epoch)) = w.tapped_last(barriers) else {
                return w.violate("wait", "no barrier was seen");
            };
            let epoch = epoch.wrapping_add_signed(other_epoch);
            let packet = Packet::BarrierAck(epoch, 1_u32.wrapping_add_signed(other_writes));
            w.input_of_scenario(0, Input::Packet { peer: node_id(1), packet, payload: None });
            w.expect("the connection has ended", |w| !w.connected(0, 1));
            w.heal(0, 1);
            w.finish(id).ok();
            w.finish(flush).ok();
            w.wait_connected(0, 1);
            w.wait_disk(1, DiskState::UpToDate);
            w.close(0, opener);
            w.settle();
        });
    }
}

/// The right one, and then the same again.
#[test]
fn a_barrier_ack_that_comes_twice_ends_the_connection_case_98() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        let acks = w.tap(1, 0, |packet| matches!(packet, Packet::BarrierAck(..)));
        w.write(0, 0);
        w.flush(0);
        w.run_seconds(2);
        let Some(packet @ Packet::BarrierAck(..)) = w.tapped_last(acks) else {
            return w.violate("wait", "no barrier ack was seen");
        };
        w.expect("they are connected", |w| w.connected(0, 1));
        w.input_of_scenario(0, Input::Packet { peer: node_id(1), packet, payload: None });
        w.expect("the connection has ended", |w| !w.connected(0, 1));
        w.write(0, 8);
        w.wait_connected(0, 1);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

/// n0 starts over by hand while n2 is no part of it, and its slot still says what n2 lacked. When
/// n2 is back with its old disk, it gets all that it lacks, before and after.
#[test]
fn a_node_that_left_before_a_fresh_start_gets_everything_case_14() {
    scenario(Plan::quiet(3, 0), |w| {
        w.form();
        w.write_after_open(0, 0);
        w.kill(2);
        w.wait_lost(0, 2);
        w.wait_lost(1, 2);
        w.write_after_open(0, EXTENT);
        w.wait_secondary(0);
        w.run_seconds(2);
        w.kill(1);
        w.wait_lost(0, 1);
        let peer = node_id(2);
        w.granted(0, AdminCommand::Disconnect { peer, force: true });
        w.remove_peer(0, 2);
        w.granted(0, AdminCommand::NewCurrentUuid { volume: V0, clear_bitmap: false });
        w.write_after_open(0, 2 * EXTENT);
        w.wait_secondary(0);
        let config = w.plan.config(0).peers.pop().expect("n2 is the last one");
        w.granted(0, AdminCommand::NewPeer(config));
        w.connect(0, 2);
        w.start_node(2);
        w.wait_connected(0, 2);
        w.wait("n2 is current", |w| {
            w.disk(2) == DiskState::UpToDate && w.device(2, 0).repl == ReplState::Established
        });
        w.expect("it has everything", |w| equal(w, 0, 2) && tag(w, 2, EXTENT) != 0);
        w.start_node(1);
        w.settle();
    });
}

/// The client n2 holds a write that only n0 was to get. n1 has caught up with n0 meanwhile, and is
/// current. When n2 is back n0 asks n1 for what it may have missed, and gets the write; n1 is told
/// that it lacks it. Then n1 is nobody to resync from any more.
fn source_is_left_behind(delay_to_n1: [u64; 2]) {
    let mut plan = Plan::majority(2, 1);
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.cut_off(1, [0, 2]);
        w.wait_lost_all(1, [0, 2]);
        w.write(2, 4096);
        w.cut(0, 2);
        let held = w.start(2, WRITE, EXTENT, 8);
        w.wait_lost_all(0, [2]);
        w.heal(1, 2);
        w.wait_connected(1, 2);
        w.heal(0, 1);
        w.wait_disk(1, DiskState::UpToDate);
        // n2 does not go on with n1 before it meets n0.
        w.cut_one_way(1, 2);
        w.granted(0, AdminCommand::Outdate { volume: V0 });
        for (node, delay) in [(0, delay_to_n1[0]), (2, delay_to_n1[1])] {
            w.slow(node, 1, delay * MILLISECOND);
        }
        w.heal(0, 2);
        w.wait_connected(0, 2);
        w.run_for(150 * MILLISECOND);
        w.heal_one_way(1, 2);
        w.run_seconds(1);
        w.slow(0, 1, MILLISECOND);
        w.slow(2, 1, MILLISECOND);
        w.finish(held).ok();
        w.read(2, EXTENT);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_resync_does_not_begin_from_a_source_that_was_left_behind_before_it_agreed() {
    source_is_left_behind([50, 1]);
}

#[test]
fn a_resync_does_not_begin_from_a_source_that_was_left_behind_once_it_had_agreed() {
    source_is_left_behind([50, 75]);
}

/// Protocol A: a crashed Primary alone has a write. A disk that has got everything from it meets
/// one that received from the Primary to the end, but not that.
#[test]
fn what_a_crashed_primary_alone_had_is_passed_on_through_another_disk() {
    let mut plan = Plan::quiet(3, 0);
    plan.net.protocol = vocab::options::Protocol::A;
    scenario(plan, |w| {
        w.form();
        w.open(2);
        w.disconnect(0, 2);
        w.disconnect(0, 1);
        w.write(2, EXTENT);
        w.wait("it arrives", |w| tag(w, 1, EXTENT) != 0);
        w.cut_one_way(2, 1);
        w.write(2, 0);
        w.kill(2);
        w.wait_lost(1, 2);
        w.expect("only the Primary has it", |w| tag(w, 1, 0) == 0);
        w.cut(1, 2);
        w.start_node(2);
        w.connect(0, 2);
        w.wait_disk(0, DiskState::UpToDate);
        w.expect("it has it, too", |w| equal(w, 0, 2));
        w.connect(0, 1);
        w.wait_connected(0, 1);
        w.wait("all have it", |w| equal(w, 0, 1) && tag(w, 0, 0) != 0);
        w.heal(1, 2);
        w.settle();
    });
}

/// Protocol B: what a crashed Primary has written, and one of the others, while the third had only
/// received it. The second comes back between the two, and is resynced from the first.
#[test]
fn a_disk_is_not_resynced_at_a_time_from_two_that_differ_since_a_crash() {
    for first in [0, 1] {
        let mut plan = Plan::quiet(3, 0);
        plan.net.protocol = vocab::options::Protocol::B;
        scenario(plan, |w| {
            w.form();
            w.open(1);
            w.write(1, EXTENT);
            w.wait("it is everywhere", |w| (0..3).all(|n| tag(w, n, EXTENT) != 0));
            w.stall_disk(0, 60);
            w.write(1, 0);
            w.wait("n2 has it", |w| tag(w, 2, 0) != 0);
            (0..3).for_each(|n| w.kill(n));
            w.release_disk(0);
            w.cut(0, 1);
            let second = 1 - first;
            w.cut(second, 2);
            (0..3).for_each(|n| w.start_node(n));
            w.wait("it is resynced", |w| w.device(2, first).repl == ReplState::SyncTarget);
            w.slow(first, 2, 100 * MILLISECOND);
            w.heal(second, 2);
            w.wait_connected(2, second);
            w.wait_disk(2, DiskState::UpToDate);
            w.slow(first, 2, MILLISECOND);
            w.heal(0, 1);
            w.settle();
            w.expect("nothing is lost", |w| (0..3).all(|n| tag(w, n, 0) != 0));
        });
    }
}

/// n1 is connected to n0 and left behind: the client writes on n0 only. An operator who has not
/// seen that yet gives up the only disk that has it.
#[test]
fn a_disk_is_not_invalidated_beside_one_that_was_left_behind() {
    scenario(Plan::majority(2, 1), |w| {
        w.form();
        let opener = w.open(2);
        w.write(2, 0);
        w.cut(1, 2);
        w.wait_lost_all(1, [2]);
        w.write(2, 8);
        w.wait("n1 is left behind", |w| {
            w.disk(1) == DiskState::Outdated && w.device(0, 1).repl == ReplState::Established
        });
        w.refused(0, AdminCommand::Invalidate { volume: V0, from: Some(node_id(1)) });
        w.refused(1, AdminCommand::InvalidateRemote { peer: node_id(0), volume: V0 });
        w.write(2, 16);
        w.heal(1, 2);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}

/// n0 starts a generation, and is invalidated from n2 before n2 has heard of that: a generation
/// that only a disk is at which was given up, and that n2 would be left behind by.
#[test]
fn a_disk_is_not_invalidated_beside_one_that_has_not_heard_of_its_generation() {
    for early in [0, 30, 60] {
        scenario(Plan::majority(3, 0), |w| {
            w.form();
            let opener = w.open(0);
            w.write(0, 0);
            w.kill(1);
            w.wait_lost(0, 1);
            w.wait_lost(2, 1);
            w.slow(0, 2, 100 * MILLISECOND);
            let write = w.start(0, WRITE, 8, 8);
            w.run_for(early * MILLISECOND);
            let command = AdminCommand::Invalidate { volume: V0, from: Some(node_id(2)) };
            let id = w.admin(0, command);
            w.wait_sent(0, 2, "its generation", |p| matches!(p, Packet::Uuids110(..)));
            w.run_for(60 * MILLISECOND);
            // The disk of n2 is lost, for a while, with everything that n0 has given up.
            let force = AdminCommand::Detach { volume: V0, force: true, intentional: false };
            w.granted(2, force);
            w.wait("the operator has an answer", |w| w.has_answer(id));
            w.slow(0, 2, MILLISECOND);
            w.attach_again(2);
            w.finish(write).ok();
            w.start_node(1);
            w.close(0, opener);
            w.settle();
        });
    }
}

/// A client names a generation to both disks, and one of them has not heard of it when the other
/// one is given up for it, which this node is asked for; and never hears of it.
fn the_disk_that_is_ahead_is_given_up(asked: usize, ahead_before: bool) {
    let mut plan = Plan::majority(2, 1);
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.run_seconds(1);
        let command = match asked {
            1 => AdminCommand::Invalidate { volume: V0, from: Some(node_id(0)) },
            _ => AdminCommand::InvalidateRemote { peer: node_id(1), volume: V0 },
        };
        let mut wish = 0;
        if !ahead_before {
            // What the other one answers takes long enough for the proposal to get between.
            w.slow(1 - asked, asked, 20 * MILLISECOND);
            wish = w.admin(asked, command.clone());
            w.run_for(5 * MILLISECOND);
        }
        let write = w.start(2, WRITE, 0, 8);
        w.wait_sent(2, 0, "the generation", |p| matches!(p, Packet::CurrentUuid(..)));
        w.cut_one_way(2, 0);
        w.wait("n1 has the write", |w| tag(w, 1, 0) != 0);
        if ahead_before {
            wish = w.admin(asked, command);
        }
        w.run_for(100 * MILLISECOND);
        w.lose_what_is_under_way(2, 0);
        w.finish(write).ok();
        w.expect("n1 has kept it", |w| tag(w, 1, 0) != 0);
        w.slow(1 - asked, asked, MILLISECOND / 10);
        w.heal(2, 0);
        w.wait("the operator is answered", |w| w.has_answer(wish));
        w.write(2, 8);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_disk_is_not_given_up_for_one_that_has_not_got_as_far() {
    the_disk_that_is_ahead_is_given_up(1, true);
}

#[test]
fn a_disk_that_goes_ahead_while_it_is_being_given_up_is_kept() {
    the_disk_that_is_ahead_is_given_up(1, false);
}

#[test]
fn a_disk_that_goes_ahead_while_another_node_gives_it_up_is_kept() {
    the_disk_that_is_ahead_is_given_up(0, false);
}
