//! Disks that do not answer, and are given up: by `disk-timeout`, or by an operator.

use std::time::Duration;

use replication::io::AdminCommand;
use sim::Op;
use sim::plan::{MILLISECOND, Plan, SECOND};
use sim::scenario::scenario;
use vocab::{DiskState, VolumeNr};

const V0: VolumeNr = VolumeNr(0);
const EXTENT: u64 = 8192;
const WRITE: Op = Op::Write { fua: false };

/// A plan of two nodes that give up a disk which has not answered for two seconds.
fn impatient() -> Plan {
    let mut plan = Plan::quiet(2, 0);
    plan.disk.disk_timeout = Duration::from_secs(2);
    plan
}

/// On either side: the write goes on by the other disk, over a connection that is not lost.
#[test]
fn a_disk_that_does_not_answer_is_given_up_after_disk_timeout() {
    for stuck in [0, 1] {
        scenario(impatient(), |w| {
            w.form();
            let opener = w.open(0);
            w.write(0, 0);
            w.stall_disk(stuck, 60);
            let held = w.start(0, WRITE, 0, 8);
            let reads = w.start(0, Op::Read, 1024, 8);
            w.run_for(1_900 * MILLISECOND);
            w.expect("nobody is impatient yet", |w| {
                !w.is_answered(held) && w.disk(stuck) == DiskState::UpToDate
            });
            // The disk has its last chance, then half a ping-timeout for its last word.
            w.run_for(SECOND);
            w.expect("the write has ended without the disk", |w| w.is_answered(held));
            w.expect("the disk is given up", |w| w.disk(stuck) == DiskState::Diskless);
            w.expect("the other one is not", |w| w.disk(1 - stuck) == DiskState::UpToDate);
            w.expect("the nodes are connected", |w| w.connected(0, 1));
            w.finish(held).expect("a write that one disk has");
            w.expect("so has the read", |w| w.is_answered(reads));
            w.finish(reads).expect("a read of what one disk has");
            // Newer than what the old disk may still execute.
            w.write(0, 0);
            w.attach_again(stuck);
            w.close(0, opener);
            w.settle();
        });
    }
}

/// What a disk that hangs was to do for others is answered when an operator gives it up, too.
#[test]
fn nobody_waits_for_a_disk_that_was_given_up() {
    scenario(Plan::quiet(2, 1), |w| {
        w.form();
        // The client has so many reads that both get some.
        let opener = w.open(2);
        w.write(2, 0);
        w.stall_disk(1, 60);
        let held = w.start(2, WRITE, 0, 8);
        let reads: Vec<u64> = (0..64).map(|i| w.start(2, Op::Read, 1024 + i * 8, 8)).collect();
        w.run_for(500 * MILLISECOND);
        w.expect("some of it waits for the disk", |w| {
            !w.is_answered(held) && reads.iter().any(|read| !w.is_answered(*read))
        });
        w.granted(1, AdminCommand::Detach { volume: V0, force: true, intentional: false });
        w.run_for(500 * MILLISECOND);
        w.expect("nothing does any more", |w| {
            w.is_answered(held) && reads.iter().all(|read| w.is_answered(*read))
        });
        w.finish(held).expect("a write that one disk has");
        for read in reads {
            w.finish(read).expect("a read of what one disk has");
        }
        w.attach_again(1);
        w.close(2, opener);
        w.settle();
    });
}

/// What is slow but moves is not given up, however much of it there is.
#[test]
fn a_disk_that_answers_in_time_is_kept() {
    scenario(impatient(), |w| {
        w.form();
        let opener = w.open(0);
        for i in 0..12 {
            w.stall_disk(0, 1);
            let late = w.start(0, WRITE, i * 8, 8);
            w.run_for(700 * MILLISECOND);
            let later = w.start(0, WRITE, 1024 + i * 8, 8);
            w.finish(late).expect("the disk answers");
            w.finish(later).expect("the disk answers");
        }
        w.expect("the disk is in use", |w| w.disk(0) == DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

/// Under a metadata write, with nothing else to do: also then nobody would ever hear of it.
#[test]
fn a_disk_that_takes_no_metadata_is_given_up() {
    scenario(impatient(), |w| {
        w.form();
        let opener = w.open(0);
        w.stall_disk(0, 60);
        // Its extent is not active.
        let held = w.start(0, WRITE, 3 * EXTENT, 8);
        w.run_for(2_500 * MILLISECOND);
        w.expect("the disk is given up", |w| w.disk(0) == DiskState::Diskless);
        w.finish(held).expect("a write that one disk has");
        w.attach_again(0);
        w.close(0, opener);
        w.settle();
    });
}
