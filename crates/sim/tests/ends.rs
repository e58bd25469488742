//! What the end of a resync waits for beside a Primary: a disk that becomes UpToDate has what users
//! of any Primary know of (invariants 36 and 44).

use std::time::Duration;

use sim::plan::Plan;
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::{ConnState, DiskState};

const WRITE: Op = Op::Write { fua: false };

/// Writes without a pause, to a few places again and again.
fn load(w: &mut World, node: usize, milliseconds: u64) {
    for i in 0..milliseconds {
        w.start(node, WRITE, i % 16 * 8 + i % 2 * 4096, 8);
        w.run_for(1_000_000);
    }
}

/// n1 takes n2 for connected, which has noticed that it is not, has become Primary, and writes on
/// through n0. What n0 brings n1 is not all that users know of.
#[test]
fn a_primary_that_is_taken_for_a_connected_secondary_is_not_heard() {
    let mut plan = Plan::majority(3, 0);
    plan.net.ping_int = Duration::from_secs(120);
    plan.net.ping_timeout = Duration::from_secs(5);
    scenario(plan, |w| {
        w.form();
        w.run_seconds(1);
        w.cut_off(1, [0, 2]);
        // The first attempt finds out that n1 is gone, for n0 and n2.
        w.try_open(2).ok();
        w.wait_lost(0, 1);
        w.wait_lost(2, 1);
        let opener = w.open(2);
        w.write(2, 0);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.expect("n1 takes n2 for connected", |w| {
            w.seen(1).peers[2].as_ref().is_some_and(|p| p.conn == ConnState::Connected)
        });
        load(w, 2, 50);
        w.heal(1, 2);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(2, opener);
        w.settle();
    });
}
