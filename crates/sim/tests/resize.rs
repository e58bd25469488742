//! Volumes that change their size (semantics §10; hard cases 76 and 83 to 85). What is on the disks
//! behind the old size differs everywhere, so a block that is neither resynced nor out of sync shows.

use codec::wire::Packet;
use replication::io::AdminCommand;
use sim::plan::{MILLISECOND, Plan, SECOND, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::{DiskState, ReplState, VolumeNr};

const EXTENT: u64 = 8192;
/// What volumes grow by.
const MORE: u64 = 2 * EXTENT;

fn growing(mut plan: Plan) -> Plan {
    plan.may_grow = true;
    plan
}

/// Everybody knows of the size.
fn wait_size(w: &mut World, nodes: usize, sectors: u64) {
    w.wait("all know of the size", |w| {
        (0..nodes).all(|n| w.told_size(n) == sectors && w.seen(n).volumes[0].sectors == sectors)
    });
}

/// Resizes to all the room there is, and does not wait.
fn begin_resize(w: &mut World, node: usize) {
    let (volume, size) = (VolumeNr(0), None);
    let (assume_peer_has_space, assume_clean) = (false, false);
    w.admin(node, AdminCommand::Resize { volume, size, assume_peer_has_space, assume_clean });
}

/// Resizes although a disk is away.
fn resize_without(w: &mut World, node: usize) {
    if let Err(refusal) = w.try_resize(node, true) {
        w.violate("wait", refusal.to_string());
    }
}

/// All nodes are up, connected to each other, and have their disks.
fn all_there(w: &World) -> bool {
    let nodes = w.nodes.len();
    let up = (0..nodes).all(|n| w.nodes[n].up());
    let with_disk = |n: usize| !w.plan.nodes[n].diskful || w.disk(n) >= DiskState::Inconsistent;
    let pair = |a: usize| (0..nodes).all(|b| a == b || w.connected(a, b));
    up && (0..nodes).all(|n| with_disk(n) && pair(n))
}

/// KiB that `node` has received of volume 0 from `peer` since it was started.
fn received(w: &World, node: usize, peer: usize) -> u64 {
    let resource = w.nodes[node].resource.as_ref().expect("it runs");
    let status = resource.status();
    let connection = status.connections.iter().find(|c| c.peer_node_id == node_id(peer));
    connection.expect("a peer").peer_devices[0].received
}

fn is_data(packet: &Packet) -> bool {
    matches!(packet, Packet::RsDataReply(..))
}

#[test]
fn a_volume_in_use_grows_and_what_is_new_is_resynced_from_its_primary() {
    for (primary, initiator) in [(0, 0), (0, 1), (2, 0)] {
        scenario(growing(Plan::quiet(3, 0)), |w| {
            w.form();
            let old = w.plan.sectors;
            let opener = w.open(primary);
            w.write(primary, 8);
            w.give_room([0, 1, 2], MORE);
            w.resize(initiator);
            wait_size(w, 3, old + MORE);
            w.write(primary, old + MORE - 8);
            w.write(primary, old - 8);
            w.read(primary, old + MORE - 8);
            w.close(primary, opener);
            w.settle();
        });
    }
}

#[test]
fn without_a_primary_the_node_that_was_asked_is_the_source() {
    scenario(growing(Plan::quiet(3, 0)), |w| {
        w.form();
        let old = w.plan.sectors;
        let tap = w.tap(1, 0, is_data);
        w.give_room([0, 1, 2], MORE);
        w.resize(1);
        wait_size(w, 3, old + MORE);
        w.settle();
        w.expect("n1 has sent what is new", |w| w.tapped(tap) > 0);
    });
}

#[test]
fn a_client_that_is_primary_goes_on_in_a_volume_that_grows() {
    scenario(growing(Plan::majority(2, 1)), |w| {
        w.form();
        let old = w.plan.sectors;
        let opener = w.open(2);
        w.write(2, 8);
        w.give_room([0, 1], MORE);
        w.resize(1);
        wait_size(w, 3, old + MORE);
        w.write(2, old + 16);
        w.read(2, old + 16);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn the_smallest_disk_decides_and_says_so() {
    scenario(growing(Plan::quiet(3, 0)), |w| {
        w.form();
        let old = w.plan.sectors;
        w.give_room([0, 1], MORE);
        w.resize(0);
        w.expect("nothing has changed", |w| w.told_size(0) == old);
        let refused = w.resize_to(0, old + MORE).is_err();
        w.expect("n2 has no room", |_| refused);
        w.give_room([2], EXTENT);
        w.resize(0);
        wait_size(w, 3, old + EXTENT);
        w.settle();
    });
}

/// Clients tell each other, and this disk, what room it had when they last heard of it. (Seed 23618.)
#[test]
fn what_clients_have_heard_of_room_keeps_no_disk_from_growing() {
    for clients_return in [false, true] {
        scenario(growing(Plan::quiet(2, 2)), |w| {
            w.form();
            let old = w.plan.sectors;
            for (a, b) in [(0, 1), (0, 2), (0, 3)] {
                w.cut(a, b);
                w.wait_lost(a, b);
                w.wait_lost(b, a);
            }
            if clients_return {
                for client in [2, 3] {
                    w.cut(1, client);
                    w.wait_lost(1, client);
                    w.wait_lost(client, 1);
                }
                for client in [2, 3] {
                    w.heal(1, client);
                    w.wait_connected(1, client);
                }
            }
            w.give_room([0, 1], MORE);
            resize_without(w, 0);
            for other in [1, 2, 3] {
                w.heal(0, other);
            }
            wait_size(w, 4, old + MORE);
            w.settle();
        });
    }
}

#[test]
fn a_disk_that_is_away_stands_in_the_way_unless_it_is_said_to_have_room() {
    scenario(growing(Plan::quiet(2, 0)), |w| {
        w.form();
        let old = w.plan.sectors;
        w.kill(1);
        w.wait_lost(0, 1);
        let opener = w.open(0);
        w.give_room([0], MORE);
        let refused = w.try_resize(0, false).is_err();
        w.expect("n1 has not been asked", |w| refused && w.told_size(0) == old);
        resize_without(w, 0);
        w.write(0, old + 8);
        w.write(0, 64);
        // It comes back without room, and is refused; then it is given some.
        w.start_node(1);
        w.run_seconds(5);
        w.expect("it is kept out", |w| !w.connected(0, 1) && w.told_size(1) <= old);
        w.give_room([1], MORE);
        w.connect(0, 1);
        w.connect(1, 0);
        w.wait_connected(0, 1);
        wait_size(w, 2, old + MORE);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn disks_of_one_generation_of_which_one_has_missed_a_resize_become_equal() {
    for primary in [false, true] {
        scenario(growing(Plan::quiet(2, 0)), |w| {
            w.form();
            let old = w.plan.sectors;
            w.flush_disks();
            w.disconnect(0, 1);
            w.give_room([0, 1], MORE);
            resize_without(w, 0);
            w.expect("n1 knows nothing", |w| w.told_size(1) == old);
            if primary {
                w.promote(1);
            }
            w.connect(0, 1);
            w.connect(1, 0);
            w.wait_connected(0, 1);
            wait_size(w, 2, old + MORE);
            w.wait_disk(1, DiskState::UpToDate);
            if primary {
                w.write_after_open(1, old + 24);
                w.demote(1);
            }
            w.settle();
        });
    }
}

#[test]
fn a_disk_that_is_back_in_a_volume_that_has_grown_gets_what_it_lacks_and_no_more_case_76() {
    for outdated in [false, true] {
        scenario(growing(Plan::quiet(2, 0)), |w| {
            w.form();
            let old = w.plan.sectors;
            let opener = outdated.then(|| w.open(0));
            w.detach(1);
            w.give_room([0, 1], MORE);
            let refused = w.try_resize(0, false).is_err();
            w.expect("its room is not known", |_| refused);
            resize_without(w, 0);
            if outdated {
                w.write(0, 8);
            }
            let before = received(w, 1, 0);
            w.attach_again(1);
            w.wait_disk(1, DiskState::UpToDate);
            wait_size(w, 2, old + MORE);
            w.expect("what is new is resynced", |w| received(w, 1, 0) - before >= MORE / 2);
            w.expect("and little else", |w| received(w, 1, 0) - before <= MORE / 2 + EXTENT);
            if let Some(opener) = opener {
                w.close(0, opener);
            }
            w.settle();
        });
    }
}

#[test]
fn room_alone_changes_no_size_and_harms_no_client_case_83() {
    scenario(growing(Plan::majority(2, 1)), |w| {
        w.form();
        let old = w.plan.sectors;
        let opener = w.open(2);
        w.write(2, 8);
        w.give_room([1], MORE);
        w.reset(1, 2);
        w.reset(0, 1);
        w.run_seconds(5);
        w.write(2, 16);
        w.kill(1);
        w.run_seconds(5);
        w.write(2, 24);
        w.start_node(1);
        w.wait_connected(1, 2);
        w.wait_connected(0, 1);
        w.wait_disk(1, DiskState::UpToDate);
        w.resize(1);
        w.expect("n0 has no more room", |w| (0..3).all(|n| w.told_size(n) == old));
        w.write(2, old - 8);
        w.give_room([0], MORE);
        w.resize(0);
        wait_size(w, 3, old + MORE);
        w.write(2, old);
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn a_disk_that_has_missed_a_generation_and_a_resize_gets_both_by_its_bits_case_84() {
    scenario(growing(Plan::quiet(2, 1)), |w| {
        w.form();
        let old = w.plan.sectors;
        let opener = w.open(2);
        w.write(2, 8);
        w.kill(1);
        w.wait_lost(2, 1);
        w.wait_lost(0, 1);
        w.write(2, 16);
        w.give_room([0, 1], MORE);
        resize_without(w, 0);
        w.wait("the client knows", |w| w.told_size(2) == old + MORE);
        w.write(2, old + 8);
        w.start_node(1);
        w.wait_connected(0, 1);
        w.wait("n1 is resynced", |w| w.device(0, 1).disk == DiskState::UpToDate);
        wait_size(w, 3, old + MORE);
        w.expect("what is new is resynced", |w| received(w, 1, 0) >= MORE / 2);
        w.expect("and little else", |w| received(w, 1, 0) <= MORE / 2 + 2 * EXTENT);
        w.close(2, opener);
        w.settle();
    });
}

/// Wherever a crash hits, the metadata is found, and nothing is lost.
#[test]
fn a_crash_while_metadata_moves_costs_a_full_resync_at_most_case_85() {
    for step in 0..12 {
        for (node, power) in [(0, false), (0, true), (1, true)] {
            scenario(growing(Plan::majority(3, 0)), |w| {
                w.form();
                let opener = w.open(0);
                for sector in [8, EXTENT, 3 * EXTENT + 8] {
                    w.write(0, sector);
                }
                w.flush(0);
                w.give_room([0, 1, 2], MORE);
                let write = w.start(0, Op::Write { fua: false }, 5 * EXTENT, 8);
                begin_resize(w, 0);
                w.run_for(step * MILLISECOND + step * step * MILLISECOND / 4);
                if power {
                    w.power_loss(node);
                } else {
                    w.kill(node);
                }
                if node != 0 {
                    let _ = w.finish(write);
                    w.write(0, 2 * EXTENT);
                    w.close(0, opener);
                }
                w.run_for(3 * SECOND);
                w.start_node(node);
                w.wait("all are there", all_there);
                w.settle();
                w.resize(0);
                w.settle();
            });
        }
    }
}

#[test]
fn a_secondary_that_dies_as_the_size_is_agreed_on_follows_when_it_is_back() {
    for victim in [0, 1] {
        scenario(growing(Plan::majority(3, 0)), |w| {
            w.form();
            let old = w.plan.sectors;
            let opener = w.open(0);
            w.write(0, 8);
            w.give_room([0, 1, 2], MORE);
            begin_resize(w, 0);
            w.wait_sent(0, 1, "the commit", |p| matches!(p, Packet::TwoPcCommit(..)));
            w.kill(victim);
            if victim != 0 {
                w.write(0, 16);
                w.wait("users know", |w| w.told_size(0) == old + MORE);
                w.write(0, old + 8);
                w.close(0, opener);
            }
            w.run_for(2 * SECOND);
            w.start_node(victim);
            w.wait("all are there", all_there);
            wait_size(w, 3, old + MORE);
            w.settle();
        });
    }
}

#[test]
fn a_volume_shrinks_only_when_told_to_and_while_nobody_uses_it() {
    scenario(growing(Plan::quiet(2, 1)), |w| {
        w.form();
        let old = w.plan.sectors;
        w.write_after_open(0, old - 8);
        w.write_after_open(0, 8);
        let smaller = old - EXTENT - 8;
        for user in [0, 1, 2] {
            let opener = w.open(user);
            let refused = w.resize_to(0, smaller).is_err();
            w.expect("it is in use", |w| refused && w.told_size(user) == old);
            w.close(user, opener);
            w.wait_secondary(user);
        }
        if let Err(refusal) = w.resize_to(1, smaller) {
            w.violate("wait", refusal.to_string());
        }
        wait_size(w, 3, smaller);
        w.write_after_open(2, smaller - 8);
        w.settle();
        w.power_loss(0);
        w.run_seconds(1);
        w.start_node(0);
        w.wait("all are there", all_there);
        w.settle();
        wait_size(w, 3, smaller);
    });
}

#[test]
fn nothing_is_resized_while_a_resync_runs() {
    scenario(growing(Plan::quiet(2, 0)), |w| {
        w.form();
        let volume = VolumeNr(0);
        let pause = |pause| AdminCommand::PauseSync { peer: node_id(0), volume, pause };
        w.granted(1, pause(true));
        w.give_room([0, 1], MORE);
        w.granted(1, AdminCommand::Invalidate { volume, from: None });
        w.wait("a resync is to run", |w| w.device(1, 0).repl == ReplState::PausedSyncT);
        w.wait("both know", |w| w.device(0, 1).repl == ReplState::PausedSyncS);
        for node in [0, 1] {
            let refused = w.try_resize(node, false).is_err();
            w.expect("it is refused", |_| refused);
        }
        w.granted(1, pause(false));
        w.settle();
        w.resize(0);
        w.settle();
    });
}

/// The disk is held by what is under way on it when its node has no use for it any more, and is
/// told of the size as a node without disk is. (Seeds 50855 and 204802.)
#[test]
fn a_node_that_gives_up_its_disk_during_a_resize_goes_by_what_others_say() {
    scenario(growing(Plan::majority(3, 0)), |w| {
        w.form();
        w.flush_disks();
        w.write_after_open(0, 0);
        w.wait_secondary(0);
        w.give_room([0, 1, 2], MORE);
        begin_resize(w, 0);
        w.wait_sent(0, 1, "the commit", |packet| matches!(packet, Packet::TwoPcCommit(..)));
        w.stall_disk(1, 5);
        w.run_for(5 * MILLISECOND);
        let (volume, force, intentional) = (VolumeNr(0), true, false);
        w.granted(1, AdminCommand::Detach { volume, force, intentional });
        let sectors = w.plan.sectors + MORE;
        w.wait("n1 has told its users", |w| w.told_size(1) == sectors);
        w.attach_again(1);
        w.settle();
    });
}
