//! When the sender ends an epoch: every end costs its peers a flush, so it is done when it has to be.

use codec::wire::Packet;
use sim::World;
use sim::plan::{MILLISECOND, Plan};
use sim::scenario::scenario;
use vocab::options::Protocol;

const EXTENT: u64 = 8192;
const WRITES: u64 = 40;

fn is_barrier(packet: &Packet) -> bool {
    matches!(packet, Packet::Barrier(..))
}

fn is_barrier_ack(packet: &Packet) -> bool {
    matches!(packet, Packet::BarrierAck(..))
}

/// One write after the other to one extent; how many barriers that took, and how many tenths of a
/// second.
fn writes_in_turn(w: &mut World) -> (u64, u64) {
    w.form();
    let opener = w.open(0);
    w.write(0, 0);
    w.run_seconds(2);
    let barriers = w.tap(0, 1, is_barrier);
    let begun = w.now();
    for i in 0..WRITES {
        w.write(0, 8 * i);
    }
    let seen = w.tapped(barriers);
    let tenths = (w.now() - begun) / (100 * MILLISECOND);
    w.close(0, opener);
    w.settle();
    (seen, tenths)
}

#[test]
fn completions_end_epochs_only_where_a_write_can_be_overtaken() {
    for protocol in [Protocol::A, Protocol::B, Protocol::C] {
        let mut plan = Plan::quiet(2, 0);
        plan.net.protocol = protocol;
        scenario(plan, |w| {
            let (barriers, tenths) = writes_in_turn(w);
            if protocol == Protocol::C {
                assert!(barriers <= tenths + 1, "{barriers} in {tenths} tenths of a second");
            } else {
                assert!(barriers >= WRITES - 1, "{barriers} under protocol {protocol:?}");
            }
        });
    }
}

#[test]
fn an_epoch_ends_though_no_more_writes_come() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        let acks = w.tap(1, 0, is_barrier_ack);
        w.write(0, 0);
        assert_eq!(w.tapped(acks), 0, "at once");
        w.run_for(200 * MILLISECOND);
        w.expect("the epoch is confirmed", |w| w.tapped(acks) == 1);
        w.close(0, opener);
        w.settle();
    });
}

/// What a flush promises can not wait for the age of an epoch.
#[test]
fn a_flush_ends_the_epoch_at_once() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.run_seconds(2);
        let (barriers, acks) = (w.tap(0, 1, is_barrier), w.tap(1, 0, is_barrier_ack));
        let begun = w.now();
        for i in 0..WRITES {
            w.write(0, 8 * i);
            w.flush(0);
            assert_eq!(w.tapped(barriers), w.tapped(acks), "the flush waited for its epoch");
            assert!(w.tapped(barriers) > i, "and had it ended");
        }
        let took = w.now() - begun;
        assert!(took < WRITES * 50 * MILLISECOND, "{} ms", took / MILLISECOND);
        w.close(0, opener);
        w.settle();
    });
}

/// Extents are held until their epoch is confirmed: whoever waits for one does not wait for its age.
#[test]
fn a_full_activity_log_ends_the_epoch() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let extents = u64::from(w.plan.disk.al_extents);
        let opener = w.open(0);
        let begun = w.now();
        let rounds = 20;
        for i in 0..rounds * extents {
            w.write(0, i % (2 * extents) * EXTENT);
        }
        let took = w.now() - begun;
        let waits = rounds * 100 * MILLISECOND;
        assert!(took < waits / 2, "{} ms", took / MILLISECOND);
        w.close(0, opener);
        w.settle();
    });
}
