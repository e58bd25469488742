//! Nodes that take each other for DRBD 9.1: resync and verify by requests that name a range and
//! nothing else (wire §7.6).

use codec::wire::{Agreed, Command, Packet};
use replication::io::AdminCommand;
use sim::Op;
use sim::plan::{Plan, Start, node_id};
use sim::scenario::scenario;
use vocab::{Bytes, DiskState, ReplState, VolumeNr};

const V0: VolumeNr = VolumeNr(0);
const EXTENT: u64 = 8192;
const WRITE: Op = Op::Write { fua: false };

/// All nodes speak no newer version.
fn before_122(mut plan: Plan) -> Plan {
    plan.nodes.iter_mut().for_each(|node| node.newest = Some(121));
    plan
}

/// Is a packet of 122 or with a position.
fn is_newer(packet: &Packet) -> bool {
    let old = Agreed::new(121, 0x6f);
    let early = Agreed::NOTHING;
    let command: Command = packet.command();
    !command.is_agreed(&old) && !command.is_agreed(&early)
}

fn asks(packet: &Packet) -> bool {
    matches!(packet, Packet::RsDataRequest(..))
}

fn cancels(packet: &Packet) -> bool {
    matches!(packet, Packet::RsCancel(..))
}

#[test]
fn a_resync_and_a_verify_go_without_ids_and_positions() {
    scenario(before_122(Plan::quiet(2, 0)), |w| {
        let newer = [w.tap(0, 1, is_newer), w.tap(1, 0, is_newer)];
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.wait_lost(1, 0);
        for i in 0..8 {
            w.write(0, i * EXTENT);
        }
        let asked = w.tap(1, 0, asks);
        w.heal(0, 1);
        w.wait("n1 is brought up to date", |w| {
            w.tapped(asked) >= 8 && w.disk(1) == DiskState::UpToDate
        });
        w.close(0, opener);
        w.wait_secondary(0);
        w.run_seconds(2);
        let results = w.tap(1, 0, |packet| matches!(packet, Packet::OvResult(..)));
        w.granted(
            1,
            AdminCommand::Verify { volume: V0, peer: node_id(0), start: None, stop: None },
        );
        w.wait("the verify is over", |w| {
            w.tapped(results) > 0 && w.device(1, 0).repl == ReplState::Established
        });
        w.expect("nothing differs", |w| w.device(1, 0).out_of_sync == 0);
        w.settle();
        assert_eq!(newer.map(|tap| w.tapped(tap)), [0, 0]);
    });
}

#[test]
fn a_full_resync_takes_zeroes_as_zeroes_and_equal_blocks_as_equal() {
    for digests in [false, true] {
        let mut plan = before_122(Plan { start: Start::InitialSync, ..Plan::quiet(2, 0) });
        plan.disk.rs_discard_granularity = Bytes(65536);
        if digests {
            plan.net.csums_alg = "sha256".to_owned();
        }
        scenario(plan, |w| {
            let short = w.tap(0, 1, |packet| {
                matches!(packet, Packet::RsDeallocated(..) | Packet::RsIsInSync(..))
            });
            w.wait_connected(0, 1);
            w.granted(0, AdminCommand::Primary { force: true });
            w.wait_disk(1, DiskState::UpToDate);
            w.expect("little was copied", |w| w.tapped(short) > 0);
            w.granted(0, AdminCommand::Secondary { force: false });
            w.settle();
        });
    }
}

/// The source has written in what the peer may have locked: it can not send its answer behind that, and
/// says so. The target comes back to it.
#[test]
fn a_source_that_writes_nearby_is_asked_again() {
    scenario(before_122(Plan::quiet(2, 0)), |w| {
        w.form();
        let opener = w.open(0);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        for i in 0..8 {
            w.write(0, i * EXTENT);
        }
        w.heal(0, 1);
        w.wait_connected(0, 1);
        let cancelled = w.tap(0, 1, cancels);
        // Acks take a while, so that there is always a write under way.
        w.slow(1, 0, 20_000_000);
        for i in 0..16 {
            w.write(0, i * EXTENT + 4096);
        }
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
        // In some of the runs all was copied before.
        let _ = w.tapped(cancelled);
    });
}

/// n2 is a client that writes to both disks. What n1 has of it and n0 has not, n0 is not asked for, and as
/// long as n2 may write nobody knows what n0 lacks of what was written before n1 was back.
#[test]
fn a_target_is_not_current_while_a_third_node_is_primary() {
    scenario(before_122(Plan::quiet(2, 1)), |w| {
        w.form();
        let opener = w.open(2);
        w.cut_off(1, [0, 2]);
        w.wait_lost_all(1, [0, 2]);
        w.wait_lost(2, 1);
        for i in 0..12 {
            w.write(2, i * EXTENT);
        }
        // The source is the last to hear of writes.
        w.slow(2, 0, 200_000_000);
        w.rejoin(1, [0, 2]);
        w.wait_connected(0, 1);
        w.wait_connected(1, 2);
        let ids: Vec<u64> = (0..12).map(|i| w.start(2, WRITE, i * EXTENT, 8)).collect();
        w.wait("it has copied all there is", |w| {
            w.device(1, 0).repl == ReplState::Established && w.device(1, 0).out_of_sync == 0
        });
        w.run_seconds(20);
        w.expect("it is not current for that", |w| w.disk(1) == DiskState::Inconsistent);
        for id in ids {
            w.finish(id).expect("a write");
        }
        w.close(2, opener);
        w.wait_disk(1, DiskState::UpToDate);
        w.settle();
    });
}

/// The Primary itself has all that it wrote.
#[test]
fn a_target_gets_what_is_written_from_the_primary_itself() {
    scenario(before_122(Plan::quiet(3, 0)), |w| {
        w.form();
        let opener = w.open(0);
        w.cut_off(1, [0, 2]);
        w.wait_lost_all(1, [0, 2]);
        w.wait_lost(0, 1);
        for i in 0..12 {
            w.write(0, i * EXTENT);
        }
        w.rejoin(1, [0, 2]);
        w.wait_connected(0, 1);
        w.wait_connected(1, 2);
        for i in 0..12 {
            w.write(0, i * EXTENT);
        }
        w.wait_disk(1, DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

/// It goes by ranges: were requests of before left without an answer, those of the next resync would be
/// taken for them.
#[test]
fn a_source_that_loses_its_disk_answers_all_the_same() {
    scenario(before_122(Plan::quiet(2, 0)), |w| {
        w.form();
        w.write_after_open(0, 0);
        w.wait_secondary(0);
        w.slow(1, 0, 20_000_000);
        w.granted(1, AdminCommand::Invalidate { volume: V0, from: None });
        w.wait_sent(1, 0, "it asks", asks);
        w.detach(0);
        w.attach_again(0);
        w.wait_disk(1, DiskState::UpToDate);
        w.settle();
    });
}

/// A target that has lost its disk is not answered any more, and does not wait for that.
#[test]
fn a_target_that_loses_its_disk_begins_anew() {
    scenario(before_122(Plan::quiet(2, 0)), |w| {
        w.form();
        w.write_after_open(0, 0);
        w.slow(0, 1, 20_000_000);
        w.granted(1, AdminCommand::Invalidate { volume: V0, from: None });
        w.wait_sent(1, 0, "it asks", asks);
        w.detach(1);
        w.attach_again(1);
        w.wait_disk(1, DiskState::UpToDate);
        w.settle();
    });
}

/// Requests and answers of each pair are in the words of that pair, transactions of all in those of each.
#[test]
fn old_and_new_nodes_are_in_one_cluster() {
    let mut plan = Plan::quiet(3, 0);
    plan.nodes[1].newest = Some(121);
    scenario(plan, |w| {
        let plain = [w.tap(0, 1, is_newer), w.tap(2, 1, is_newer)];
        let newer = w.tap(2, 0, |packet| matches!(packet, Packet::RsDagtagReq(..)));
        w.form();
        let opener = w.open(0);
        for away in [1, 2] {
            w.kill(away);
            w.wait_lost(0, away);
            for i in 0..8 {
                w.write(0, i * EXTENT);
            }
            w.start_node(away);
            w.wait_disk(away, DiskState::UpToDate);
        }
        w.close(0, opener);
        w.settle();
        assert_eq!(plain.map(|tap| w.tapped(tap)), [0, 0]);
        assert!(w.tapped(newer) > 0);
    });
}
