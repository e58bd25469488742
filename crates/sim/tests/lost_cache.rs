//! Disks that lose what is in their cache with their power, and disks that do not.

use replication::io::AdminCommand;
use sim::plan::Plan;
use sim::scenario::scenario;
use vocab::{DiskState, VolumeNr};

const V0: VolumeNr = VolumeNr(0);

/// A Primary that lost its power comes back with its volatile cache empty. It waits for the disk that
/// has kept everything, also if that is detached.
#[test]
fn a_disk_that_has_lost_its_cache_waits_for_one_that_has_not() {
    let mut plan = Plan::majority(2, 1);
    plan.volatile_cache = true;
    scenario(plan, |w| {
        w.form();
        w.open(0);
        for i in 0..16 {
            w.write(0, i * 8);
        }
        w.power_loss(0);
        w.wait_lost(1, 0);
        w.detach(1);
        w.wait_disk(1, DiskState::Diskless);
        w.start_node(0);
        w.run_seconds(20);
        w.expect("it is not current", |w| w.disk(0) != DiskState::UpToDate);
        w.attach_again(1);
        w.wait_disk(0, DiskState::UpToDate);
        let opener = w.open(0);
        for i in 0..16 {
            w.read(0, i * 8);
        }
        w.close(0, opener);
        w.settle();
    });
}

/// Its power took what a Secondary had not flushed. That its disk is given up and taken back, while the
/// node works with that of another, brings nothing back: it is resynced from who has kept everything
/// before it counts.
#[test]
fn what_a_disk_has_lost_is_still_lost_when_it_is_taken_back() {
    let mut plan = Plan::majority(3, 0);
    plan.volatile_cache = true;
    scenario(plan, |w| {
        w.form();
        let _ = w.open(0);
        for i in 0..16 {
            w.write(0, i * 8);
        }
        w.power_loss(1);
        w.cut_off(2, [0, 1]);
        w.power_loss(0);
        w.start_node(1);
        w.wait_disk(1, DiskState::Consistent);
        w.granted(1, AdminCommand::Detach { volume: V0, force: true, intentional: false });
        w.start_node(0);
        w.wait_connected(0, 1);
        w.detach(0);
        w.wait_disk(0, DiskState::Diskless);
        w.heal(2, 1);
        w.wait_connected(2, 1);
        w.attach_again(1);
        // It may have to wait for the last Primary.
        if let Ok(opener) = w.try_open(2) {
            w.flush(2);
            w.close(2, opener);
        }
        w.heal(2, 0);
        w.attach_again(0);
        w.settle();
    });
}

/// An engine that was killed has lost nothing of what it wrote: the machine has run on. Its disk does
/// not wait for one that is away.
#[test]
fn a_disk_whose_engine_was_killed_waits_for_nobody() {
    let mut plan = Plan::majority(3, 0);
    plan.volatile_cache = true;
    scenario(plan, |w| {
        w.form();
        w.open(0);
        for i in 0..16 {
            w.write(0, i * 8);
        }
        (0..3).for_each(|n| w.kill(n));
        w.start_node(0);
        w.start_node(1);
        w.wait_disk(0, DiskState::UpToDate);
        w.wait_disk(1, DiskState::UpToDate);
        let opener = w.open(1);
        for i in 0..16 {
            w.read(1, i * 8);
        }
        w.close(1, opener);
        w.start_node(2);
        w.settle();
    });
}
