//! The source of a resync gives way to users' I/O, semantics §9.4.

use sim::plan::Plan;
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::KibPerSecond;
use vocab::{DiskState, ReplState};

const EXTENT: u64 = 8192;
const WRITE: Op = Op::Write { fua: false };

fn syncing(w: &World, node: usize, peer: usize) -> bool {
    let repl = w.view(node).map(|_| w.device(node, peer).repl);
    matches!(repl, Some(ReplState::SyncTarget | ReplState::SyncSource))
}

/// Blocks that a resync is to copy, and how many milliseconds it takes; at most five seconds are
/// waited for it.
fn timed_resync(w: &mut World, users_write: bool) -> (u64, u64) {
    w.form();
    let opener = w.open(0);
    w.kill(1);
    w.wait_lost(0, 1);
    for i in 0..12 {
        let id = w.start(0, WRITE, i * EXTENT, 2048);
        w.finish(id).ok();
    }
    w.start_node(1);
    w.wait("the resync runs", |w| syncing(w, 1, 0) && syncing(w, 0, 1));
    let (start, blocks) = (w.now(), w.device(0, 1).out_of_sync);
    let ms = |w: &World| (w.now() - start) / 1_000_000;
    for i in 0.. {
        if w.disk(1) == DiskState::UpToDate || ms(w) >= 5_000 {
            break;
        }
        if users_write {
            w.start(0, WRITE, 14 * EXTENT + i % 64 * 8, 8);
        }
        w.run_for(1_000_000);
    }
    let took = ms(w);
    w.close(0, opener);
    w.settle();
    (blocks, took)
}

#[test]
fn a_resync_gives_way_to_users_down_to_c_min_rate() {
    let took = |c_min_rate, users_write, fits: fn(u64, u64) -> bool| {
        let mut plan = Plan::quiet(2, 0);
        plan.peer_device.c_min_rate = KibPerSecond(c_min_rate);
        scenario(plan, |w| {
            let (blocks, ms) = timed_resync(w, users_write);
            assert!(fits(blocks, ms), "{blocks} blocks in {ms} ms");
        });
    };
    // Nobody competes; users have precedence; that is off.
    took(250, false, |_, ms| ms < 2_500);
    took(250, true, |_, ms| ms >= 5_000);
    took(0, true, |_, ms| ms < 2_500);
    // 8 MiB/s are 2048 blocks in a second.
    took(8 << 10, true, |blocks, ms| {
        let due = blocks * 1000 / 2048;
        ms >= due.min(5_000) * 3 / 4 && (ms <= due * 3 / 2 || ms <= due + 700)
    });
}

#[test]
fn a_write_does_not_wait_for_a_resync_that_gives_way() {
    // The target locks what it has asked for, and the writes come from another node than the blocks.
    let mut plan = Plan::quiet(2, 1);
    plan.peer_device.c_min_rate = KibPerSecond(1);
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.kill(1);
        w.wait_lost(2, 1);
        for i in 0..12 {
            let id = w.start(2, WRITE, i * EXTENT, 2048);
            w.finish(id).ok();
        }
        w.start_node(1);
        w.wait("the resync runs", |w| syncing(w, 1, 0) && w.connected(1, 2));
        for i in 0..48 {
            for k in 0..8 {
                w.start(2, WRITE, 14 * EXTENT + k * 8, 8);
            }
            let start = w.now();
            let id = w.start(2, WRITE, i % 2 * EXTENT + i / 2 * 8, 8);
            w.finish(id).ok();
            let took = (w.now() - start) / 1_000_000;
            assert!(took < 1_000, "a write waited for {took} ms");
        }
        w.close(2, opener);
        w.settle();
    });
}
