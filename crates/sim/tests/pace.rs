//! A resync takes what users leave, and gives way to their I/O: as an operator's options say,
//! semantics §9.4, or by itself.

use codec::wire::Packet;
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

/// Blocks that a resync copies, and how many milliseconds it takes; at most five seconds are waited
/// for it. Users make a request every so many milliseconds, or none.
fn timed_resync(w: &mut World, users_every_ms: Option<u64>) -> (u64, u64) {
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
        if users_every_ms.is_some_and(|every| i % every == 0) {
            w.start(0, WRITE, 14 * EXTENT + i % 64 * 8, 8);
        }
        w.run_for(1_000_000);
    }
    let (took, left) = (ms(w), w.device(0, 1).out_of_sync);
    w.close(0, opener);
    w.settle();
    (blocks.saturating_sub(left), took)
}

#[test]
fn a_resync_gives_way_to_users_down_to_c_min_rate() {
    let took = |c_min_rate, users_write: bool, fits: fn(u64, u64) -> bool| {
        let mut plan = Plan::quiet(2, 0);
        plan.peer_device.c_min_rate = Some(KibPerSecond(c_min_rate));
        scenario(plan, |w| {
            let (blocks, ms) = timed_resync(w, users_write.then_some(1));
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

/// Milliseconds; the target locks what it has asked for, and the writes come from another node than
/// the blocks.
fn slowest_write_during_a_resync(w: &mut World) -> u64 {
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
    let mut slowest = 0;
    for i in 0..48 {
        for k in 0..8 {
            w.start(2, WRITE, 14 * EXTENT + k * 8, 8);
        }
        let start = w.now();
        let id = w.start(2, WRITE, i % 2 * EXTENT + i / 2 * 8, 8);
        w.finish(id).ok();
        slowest = slowest.max((w.now() - start) / 1_000_000);
    }
    w.close(2, opener);
    w.settle();
    slowest
}

#[test]
fn a_write_does_not_wait_for_a_resync_that_gives_way() {
    let mut plan = Plan::quiet(2, 1);
    plan.peer_device.c_min_rate = Some(KibPerSecond(1));
    scenario(plan, |w| {
        let slowest = slowest_write_during_a_resync(w);
        assert!(slowest < 1_000, "a write waited for {slowest} ms");
    });
}

#[test]
fn without_options_a_resync_takes_what_is_idle_gives_way_and_gets_on() {
    let took = |users_every_ms, fits: fn(u64, u64) -> bool| {
        let mut plan = Plan::quiet(2, 0);
        plan.peer_device.c_min_rate = None;
        scenario(plan, |w| {
            let (blocks, ms) = timed_resync(w, users_every_ms);
            assert!(fits(blocks, ms), "{users_every_ms:?}: {blocks} blocks in {ms} ms");
        });
    };
    // The network may stall for a packet or two.
    took(None, |_, ms| ms < 1_000);
    // 250 KiB a second are 62 blocks. It begins before users do, and a bit of it is on its way.
    took(Some(1), |blocks, ms| ms >= 5_000 && blocks >= 5 * 62);
    // Who asks for little leaves it most of the time: 2 MiB a second and more.
    took(Some(100), |blocks, ms| blocks * 1000 / ms >= 512);
}

#[test]
fn without_options_a_write_hardly_waits_for_a_resync() {
    let mut plan = Plan::quiet(2, 1);
    plan.peer_device.c_min_rate = None;
    scenario(plan, |w| {
        let slowest = slowest_write_during_a_resync(w);
        assert!(slowest < 300, "a write waited for {slowest} ms");
    });
}

/// What is zero at the source takes no space at the target, however wide the window is: nothing of it
/// comes as data but the end of the volume, 8 KiB, and the block by which the target hears the source.
#[test]
fn zeroes_stay_zeroes_while_the_window_grows() {
    let mut plan = Plan::quiet(2, 0);
    plan.disk.rs_discard_granularity = vocab::Bytes(65536);
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.kill(1);
        w.wait_lost(0, 1);
        for i in 0..14 {
            let id = w.start(0, Op::Zeroes { unmap: true }, i * EXTENT, EXTENT / 4);
            w.finish(id).unwrap();
        }
        let zeroes = w.tap(0, 1, |packet| matches!(packet, Packet::RsDeallocatedId(..)));
        let data =
            w.tap(0, 1, |packet| matches!(packet, Packet::RsDataReply(_, d) if d.range.len.0 > 16));
        w.start_node(1);
        w.wait("the resync runs", |w| syncing(w, 1, 0) && syncing(w, 0, 1));
        w.close(0, opener);
        w.settle();
        assert!(w.tapped(zeroes) >= 14 * EXTENT / 4 / 128, "{} answers", w.tapped(zeroes));
        assert_eq!(w.tapped(data), 0, "data for zeroes: {:?}", w.tapped_last(data));
    });
}
