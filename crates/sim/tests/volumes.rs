//! Volumes that are added while others are used.

use replication::io::{AdminCommand, IoError};
use sim::net::Pace;
use sim::plan::{LastVolume, MILLISECOND, Plan};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::OnNoQuorum;
use vocab::{DiskState, SectorRange, VolumeNr};

const WRITE: Op = Op::Write { fua: false };

/// Nodes of the plan have volume 0, and are to get volume 1.
fn with_late_volume(plan: Plan) -> Plan {
    Plan { volumes: 2, last_volume: LastVolume::ByHand, ..plan }
}

fn start_new(w: &mut World, node: usize, op: Op, sector: u64) -> u64 {
    w.start_on(node, 1, op, SectorRange::new(sector, 8))
}

fn new_volume(w: &mut World, node: usize, op: Op, sector: u64) -> Result<(), IoError> {
    let id = start_new(w, node, op, sector);
    w.finish(id)
}

fn disk(w: &World, node: usize) -> DiskState {
    w.seen(node).volumes[1].disk
}

fn equal(w: &World, volume: usize) -> bool {
    let (a, b) = (w.nodes[0].drive(volume), w.nodes[1].drive(volume));
    a.zip(b).is_some_and(|(a, b)| a.disk.first_difference(&b.disk, 0).is_none())
}

/// The first content of the new volume.
fn establish(w: &mut World, node: usize) {
    let (volume, clear_bitmap) = (VolumeNr(1), true);
    w.granted(node, AdminCommand::NewCurrentUuid { volume, clear_bitmap });
}

/// Three nodes with quorum: what is written to volume 0 is answered at every step, and neither fails nor
/// waits for volume 1, whatever of that is there.
#[test]
fn a_volume_is_added_while_another_one_is_written() {
    for on_no_quorum in [OnNoQuorum::SuspendIo, OnNoQuorum::IoError] {
        let mut plan = with_late_volume(Plan::majority(3, 0));
        plan.resource.on_no_quorum = on_no_quorum;
        scenario(plan, |w| {
            w.form();
            let opener = w.open(0);
            for (step, node) in [0, 2, 1].into_iter().enumerate() {
                w.write(0, 64 * step as u64);
                w.add_volume(node);
                let id = w.start(0, WRITE, 64 * step as u64 + 8, 8);
                w.run_for(300 * MILLISECOND);
                w.expect("nobody waits", |w| w.is_answered(id));
                w.finish(id).expect("and nothing fails");
            }
            w.wait("the disks are attached", |w| {
                (0..3).all(|node| disk(w, node) == DiskState::Inconsistent)
            });
            w.write(0, 256);
            establish(w, 0);
            w.wait("the new volume is there", |w| {
                (0..3).all(|node| disk(w, node) == DiskState::UpToDate)
            });
            assert_eq!(new_volume(w, 0, WRITE, 0), Ok(()));
            assert_eq!(new_volume(w, 0, Op::Read, 0), Ok(()));
            // It counts from here on.
            w.cut_off(0, [1, 2]);
            w.wait_lost_all(0, [1, 2]);
            let id = w.start(0, WRITE, 320, 8);
            w.run_seconds(2);
            w.expect("no quorum", |w| w.is_answered(id) == (on_no_quorum == OnNoQuorum::IoError));
            w.rejoin(0, [1, 2]);
            w.finish(id).ok();
            w.close(0, opener);
            w.settle();
        });
    }
}

/// On both sides at a time, and the content begins at once.
#[test]
fn a_volume_is_added_on_both_sides_at_a_time_case_81() {
    scenario(with_late_volume(Plan::quiet(2, 1)), |w| {
        w.form();
        let opener = w.open(0);
        (0..3).for_each(|node| w.start_to_add_volume(node));
        w.wait("the disks are attached", |w| {
            (0..2).all(|node| disk(w, node) == DiskState::Inconsistent)
        });
        let command = || AdminCommand::NewCurrentUuid { volume: VolumeNr(1), clear_bitmap: true };
        w.granted(0, command());
        w.wait("it is there", |w| (0..2).all(|node| disk(w, node) == DiskState::UpToDate));
        w.write(0, 0);
        assert_eq!(new_volume(w, 0, WRITE, 0), Ok(()));
        // Role changes go on, to the client as well.
        w.close(0, opener);
        w.wait_secondary(0);
        let opener = w.open(2);
        assert_eq!(new_volume(w, 2, Op::Read, 0), Ok(()));
        assert_eq!(new_volume(w, 2, WRITE, 8), Ok(()));
        w.close(2, opener);
        w.settle();
    });
}

/// Until a volume has had quorum and data, its own requests wait, or fail if that is what is wanted.
#[test]
fn requests_for_a_volume_that_is_not_there_yet_wait_alone() {
    let mut plan = with_late_volume(Plan::majority(3, 0));
    plan.resource.on_no_data_accessible = vocab::options::OnNoDataAccessible::SuspendIo;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.add_volume(0);
        let id = start_new(w, 0, WRITE, 0);
        w.run_seconds(1);
        w.expect("it waits", |w| !w.is_answered(id));
        w.write(0, 0);
        w.add_volume(1);
        w.add_volume(2);
        w.wait("the disks are attached", |w| {
            (0..3).all(|node| disk(w, node) == DiskState::Inconsistent)
        });
        w.expect("it still waits", |w| !w.is_answered(id));
        establish(w, 0);
        assert_eq!(w.finish(id), Ok(()));
        w.close(0, opener);
        w.settle();
    });
}

/// A disk that is behind must not pass for current because the peer's answer comes behind its agreement to
/// the attach, on the other stream.
#[test]
fn no_disk_is_attached_before_the_peers_have_shown_theirs() {
    scenario(with_late_volume(Plan::quiet(2, 0)), |w| {
        w.form();
        w.add_volume(0);
        w.add_volume(1);
        w.wait("the disks are attached", |w| {
            (0..2).all(|node| disk(w, node) == DiskState::Inconsistent)
        });
        establish(w, 0);
        w.wait("it is there", |w| (0..2).all(|node| disk(w, node) == DiskState::UpToDate));
        for round in 0..8 {
            w.kill(1);
            w.wait_lost(0, 1);
            let opener = w.open(0);
            assert_eq!(new_volume(w, 0, WRITE, 16 * round), Ok(()));
            w.take_volume_out(1);
            w.start_node(1);
            w.wait_connected(0, 1);
            // The node without the volume neither stops it nor hears of it.
            assert_eq!(new_volume(w, 0, WRITE, 16 * round + 8), Ok(()));
            w.close(0, opener);
            w.wait_secondary(0);
            let slow = Pace { delay: (MILLISECOND, 300 * MILLISECOND), ..Pace::default() };
            w.net.set_pace(0, 1, slow);
            w.start_to_add_volume(1);
            let limit = w.now() + 1_000 * MILLISECOND;
            while w.now() < limit && w.violation.is_none() {
                let behind = disk(w, 1) == DiskState::UpToDate && !equal(w, 1);
                w.expect("it is not current without what was written", |_| !behind);
                w.run_for(5 * MILLISECOND);
            }
            w.net.set_pace(0, 1, Pace::default());
            w.wait("it is resynced", |w| disk(w, 1) == DiskState::UpToDate);
        }
        w.settle();
    });
}

/// The others have given a volume up, and are back without it: it has no quorum any more, and as nobody uses it,
/// nobody waits for that.
#[test]
fn a_volume_that_others_have_given_up_stops_no_other() {
    scenario(with_late_volume(Plan::majority(3, 0)), |w| {
        w.form();
        for node in 0..3 {
            w.add_volume(node);
        }
        w.wait("the disks are attached", |w| {
            (0..3).all(|node| disk(w, node) == DiskState::Inconsistent)
        });
        establish(w, 0);
        w.wait("it is there", |w| (0..3).all(|node| disk(w, node) == DiskState::UpToDate));
        let opener = w.open(0);
        w.write(0, 0);
        for node in [1, 2] {
            w.kill(node);
            w.take_volume_out(node);
        }
        for node in [1, 2] {
            w.wait_lost(0, node);
        }
        let id = w.start(0, WRITE, 8, 8);
        w.run_seconds(1);
        w.expect("it waits for quorum", |w| !w.is_answered(id));
        for node in [1, 2] {
            w.start_node(node);
        }
        assert_eq!(w.finish(id), Ok(()));
        w.write(0, 16);
        w.expect("volume 1 has none", |w| !w.seen(0).volumes[1].quorum);
        let id = start_new(w, 0, WRITE, 0);
        w.run_seconds(1);
        w.expect("its own requests wait", |w| !w.is_answered(id));
        w.write(0, 24);
        for node in [1, 2] {
            w.add_volume(node);
        }
        assert_eq!(w.finish(id), Ok(()));
        w.close(0, opener);
        w.settle();
    });
}

/// Nodes connect although one of them lacks a volume, and go on with what they have in common. It has no
/// say about the volume that it lacks.
#[test]
fn a_node_that_lacks_a_volume_connects() {
    scenario(with_late_volume(Plan::majority(3, 0)), |w| {
        w.form();
        for node in 0..3 {
            w.add_volume(node);
        }
        w.wait("the disks are attached", |w| {
            (0..3).all(|node| disk(w, node) == DiskState::Inconsistent)
        });
        establish(w, 0);
        w.wait("it is there", |w| (0..3).all(|node| disk(w, node) == DiskState::UpToDate));
        w.kill(2);
        w.take_volume_out(2);
        w.start_node(2);
        w.wait("n2 is back", |w| w.connected(0, 2) && w.connected(1, 2));
        let opener = w.open(0);
        w.write(0, 0);
        assert_eq!(new_volume(w, 0, WRITE, 0), Ok(()));
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.expect("n2 gives volume 0 quorum, and volume 1 none", |w| {
            let volumes = &w.seen(0).volumes;
            volumes[0].quorum && !volumes[1].quorum
        });
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.write(0, 8);
        w.add_volume(2);
        w.wait("it is resynced", |w| disk(w, 2) == DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}
