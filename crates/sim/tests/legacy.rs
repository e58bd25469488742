//! Two nodes that take each other for DRBD 8.4: what they say passes through the dialect twice, as
//! bytes of protocol 101.

use codec::wire::{Command, Packet};
use replication::io::AdminCommand;
use sim::Op;
use sim::plan::{Plan, Start, node_id};
use sim::scenario::scenario;
use vocab::options::Quorum;
use vocab::{ConnState, DiskState, ReplState, VolumeNr};

const V0: VolumeNr = VolumeNr(0);

fn pair() -> Plan {
    Plan { legacy: true, ..Plan::quiet(2, 0) }
}

/// Is a packet of protocol 9.
fn is_newer(packet: &Packet) -> bool {
    let old = codec::wire::Agreed::new(101, 0xf);
    let early = codec::wire::Agreed::NOTHING;
    let command: Command = packet.command();
    !command.is_agreed(&old) && !command.is_agreed(&early)
}

#[test]
fn writes_are_replicated_and_nothing_of_protocol_9_is_sent() {
    scenario(pair(), |w| {
        let taps = [w.tap(0, 1, is_newer), w.tap(1, 0, is_newer)];
        w.form();
        let writes = w.tap(0, 1, |packet| matches!(packet, Packet::Data(..)));
        let opener = w.open(0);
        for i in 0..20 {
            w.write(0, i * 8192 % (16 * 8192));
        }
        w.flush(0);
        w.close(0, opener);
        w.write_after_open(1, 64);
        w.settle();
        assert_eq!(w.tapped(writes), 20);
        assert_eq!(taps.map(|tap| w.tapped(tap)), [0, 0]);
    });
}

#[test]
fn a_node_that_was_away_gets_what_it_missed_in_either_direction() {
    for primary in [0, 1] {
        scenario(pair(), |w| {
            let other = 1 - primary;
            w.form();
            let opener = w.open(primary);
            w.write(primary, 0);
            w.disconnect(other, primary);
            w.write(primary, 8192);
            w.write(primary, 800);
            let started = w.tap(primary, other, |packet| matches!(packet, Packet::SyncUuid(..)));
            w.connect(other, primary);
            w.wait_disk(other, DiskState::UpToDate);
            w.close(primary, opener);
            w.settle();
            assert_eq!(w.tapped(started), 1);
        });
    }
}

#[test]
fn the_first_resync_copies_everything_from_the_node_that_was_forced() {
    for forced in [0, 1] {
        scenario(Plan { start: Start::InitialSync, ..pair() }, |w| {
            let handshakes = w.tap(0, 1, |packet| matches!(packet, Packet::ConnectionFeatures(_)));
            w.wait_connected(0, 1);
            w.granted(forced, AdminCommand::Primary { force: true });
            w.wait_disk(1 - forced, DiskState::UpToDate);
            // Longer than two ends may disagree about a resync.
            w.run_for(15_000_000_000);
            assert_eq!(w.tapped(handshakes), 1, "the first connection is still there");
            w.granted(forced, AdminCommand::Secondary { force: false });
            w.settle();
        });
    }
}

#[test]
fn an_interrupted_resync_goes_on_by_its_bits() {
    scenario(pair(), |w| {
        w.form();
        let opener = w.open(0);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.wait_lost(1, 0);
        for i in 0..200 {
            w.write(0, i * 16);
        }
        w.heal(0, 1);
        w.wait("blocks were copied", |w| {
            let left = w.device(1, 0).out_of_sync;
            w.device(1, 0).repl == ReplState::SyncTarget && left < 1000
        });
        w.reset(0, 1);
        w.wait_lost(1, 0);
        w.wait("the resync is over", |w| {
            w.device(0, 1).repl == ReplState::Established && w.device(1, 0).out_of_sync == 0
        });
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_disk_that_is_given_up_is_copied_anew() {
    scenario(pair(), |w| {
        w.form();
        w.write_after_open(0, 0);
        w.granted(1, AdminCommand::Invalidate { volume: V0, from: None });
        w.wait("the resync is over", |w| {
            w.disk(1) == DiskState::UpToDate && w.device(0, 1).repl == ReplState::Established
        });
        w.granted(0, AdminCommand::InvalidateRemote { volume: V0, peer: node_id(1) });
        w.wait("the resync runs", |w| w.device(0, 1).repl == ReplState::SyncSource);
        w.wait_disk(1, DiskState::UpToDate);
        w.settle();
    });
}

#[test]
fn a_verify_finds_equal_disks_equal() {
    for node in [0, 1] {
        scenario(pair(), |w| {
            w.form();
            w.write_after_open(0, 8192);
            let results = w.tap(node, 1 - node, |p| matches!(p, Packet::OvResult(..)));
            let peer = node_id(1 - node);
            w.granted(node, AdminCommand::Verify { peer, volume: V0, start: Some(0), stop: None });
            w.wait("the verify ends", |w| {
                w.device(node, 1 - node).repl == ReplState::Established
                    && w.device(1 - node, node).repl == ReplState::Established
            });
            assert!(w.tapped(results) > 0);
            assert_eq!(w.device(node, 1 - node).out_of_sync, 0);
            w.settle();
        });
    }
}

#[test]
fn a_disk_that_is_detached_and_attached_again_is_brought_up_to_date() {
    scenario(pair(), |w| {
        w.form();
        let opener = w.open(0);
        w.detach(1);
        w.write(0, 8192);
        w.attach_again(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

/// The flush keeps what was written behind it in the log until the peer has been resynced.
/// (Seeds 100954 and 102031.)
#[test]
fn writes_behind_a_slow_flush_are_not_missing_again_after_a_resync() {
    scenario(pair(), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.stall_disk(0, 120);
        let flush = w.start(0, Op::Flush, 0, 0);
        w.release_disk(0);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.write(0, 8192);
        w.write(0, 800);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.wait("n1 is resynced", |w| {
            w.device(0, 1).repl == ReplState::Established && w.disk(1) == DiskState::UpToDate
        });
        w.expect("the flush has not ended", |w| !w.is_answered(flush));
        w.finish(flush).expect("the disk answers in the end");
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_resource_that_protocol_8_can_not_express_has_no_such_peer() {
    let mut quorum = pair();
    quorum.resource.quorum = Quorum::Majority;
    let volumes = Plan { volumes: 2, ..pair() };
    let diskless = Plan { legacy: true, ..Plan::quiet(1, 1) };
    let three = Plan { legacy: true, ..Plan::quiet(3, 0) };
    for plan in [quorum, volumes, diskless, three] {
        scenario(plan, |w| {
            w.wait("the connection is refused", |w| {
                w.view(0).is_some_and(|v| {
                    v.peers.iter().flatten().all(|p| p.conn == ConnState::StandAlone)
                })
            });
        });
    }
}
