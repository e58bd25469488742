//! Resync by checksum (`csums-alg`): the target sends digests of its own blocks, and only what differs
//! comes back (semantics §9.3, wire §7.4).

use codec::wire::Packet;
use replication::io::{AdminCommand, Input};
use sim::disk::Behaviour;
use sim::plan::{Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::{NetOptions, OnIoError};
use vocab::{ConnState, DiskState, SectorRange, VolumeNr};

const V0: VolumeNr = VolumeNr(0);
const SECTOR: u64 = 800;
const WRITE: Op = Op::Write { fua: false };

fn with_csums(mut plan: Plan) -> Plan {
    plan.net.csums_alg = "sha256".to_owned();
    plan
}

fn is_data(packet: &Packet) -> bool {
    matches!(packet, Packet::RsDataReply(..))
}

fn is_equal(packet: &Packet) -> bool {
    matches!(packet, Packet::RsIsInSync(..))
}

fn asks_by_digest(packet: &Packet) -> bool {
    matches!(packet, Packet::RsCsumDagtagReq(..) | Packet::CsumRsRequest(..))
}

fn there() -> SectorRange {
    SectorRange::new(SECTOR, 8)
}

fn asks_there(packet: &Packet) -> bool {
    matches!(packet, Packet::RsCsumDagtagReq(_, req, _) if req.range.overlaps(there()))
}

fn is_equal_there(packet: &Packet) -> bool {
    matches!(packet, Packet::RsIsInSync(_, ack) if ack.range.overlaps(there()))
}

fn is_failed_there(packet: &Packet) -> bool {
    matches!(packet, Packet::NegAck(_, ack) if ack.range.overlaps(there()))
}

fn is_data_there(packet: &Packet) -> bool {
    matches!(packet, Packet::RsDataReply(_, data) if data.range.overlaps(there()))
}

fn passes_errors_on(mut plan: Plan) -> Plan {
    plan.disk.on_io_error = OnIoError::PassOn;
    plan.workload.nodes = vec![0];
    plan
}

fn failing_writes(w: &mut World, node: usize, write_errors: u64) {
    let behaviour = Behaviour { write_errors, ..Behaviour::default() };
    w.nodes[node].drives[0].as_mut().expect("a disk").disk.behaviour = behaviour;
}

fn resync_anew(w: &mut World) {
    w.granted(1, AdminCommand::Invalidate { volume: V0, from: None });
    w.expect("its disk is given up", |w| w.disk(1) < DiskState::UpToDate);
    w.wait_disk(1, DiskState::UpToDate);
}

#[test]
fn equal_blocks_are_not_sent() {
    scenario(with_csums(Plan::quiet(2, 0)), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, SECTOR);
        let [data, equal] = [is_data, is_equal].map(|counts| w.tap(0, 1, counts));
        resync_anew(w);
        w.expect("all is said to be equal", |w| w.tapped(equal) > 16);
        w.expect("one block is fetched to hear the source", |w| w.tapped(data) == 1);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn blocks_that_differ_are_sent() {
    scenario(with_csums(Plan::quiet(2, 0)), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, SECTOR);
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.write(0, SECTOR);
        w.write(0, 20 * SECTOR);
        let asked = w.tap(1, 0, asks_by_digest);
        w.heal(0, 1);
        w.wait_connected(0, 1);
        w.wait_disk(1, DiskState::UpToDate);
        w.expect("by digests", |w| w.tapped(asked) > 0);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_write_between_two_resyncs_of_its_block_stays() {
    scenario(with_csums(Plan::quiet(3, 0)), |w| {
        w.form();
        let opener = w.open(0);
        for round in 0..4 {
            w.admin(1, AdminCommand::Invalidate { volume: V0, from: Some(node_id(2)) });
            for i in 0..24 {
                w.write(0, SECTOR * (1 + (i * 7 + round) % 24));
            }
            w.wait_disk(1, DiskState::UpToDate);
        }
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn after_a_crash_only_is_after_a_crash_only() {
    let mut plan = with_csums(Plan::quiet(2, 0));
    plan.net.csums_after_crash_only = true;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, SECTOR);
        let asked = w.tap(1, 0, asks_by_digest);
        resync_anew(w);
        w.expect("nobody has crashed", |w| w.tapped(asked) == 0);
        w.write(0, SECTOR);
        let _ = opener;
        let [from_0, from_1] = [w.tap(0, 1, asks_by_digest), w.tap(1, 0, asks_by_digest)];
        w.kill(0);
        w.start_node(0);
        w.wait("both are current", |w| {
            w.connected(0, 1) && [0, 1].map(|n| w.disk(n)) == [DiskState::UpToDate; 2]
        });
        w.expect("a Primary has", |w| w.tapped(from_0) + w.tapped(from_1) > 0);
        w.settle();
    });
}

#[test]
fn peers_with_other_digests_are_refused() {
    scenario(with_csums(Plan::quiet(2, 0)), |w| {
        w.form();
        let net = NetOptions { csums_alg: "sha1".to_owned(), ..w.plan.net.clone() };
        w.granted(0, AdminCommand::NetOptions(node_id(1), Box::new(net)));
        // Until the other one hears of it, it asks by what it knows.
        w.run_seconds(1);
        let asked = w.tap(1, 0, asks_by_digest);
        resync_anew(w);
        w.expect("only what both mean the same by is used", |w| w.tapped(asked) == 0);
        w.reset(0, 1);
        let alone = |w: &World| {
            let conn =
                |n: usize| w.view(n).and_then(|view| view.peers[1 - n].clone()).map(|p| p.conn);
            [0, 1].iter().any(|n| conn(*n) == Some(ConnState::StandAlone))
        };
        w.wait("a new connection is refused", alone);
    });
}

#[test]
fn a_peer_of_protocol_8_answers_digests() {
    let mut plan = with_csums(Plan::quiet(2, 0));
    plan.legacy = true;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, SECTOR);
        let [data, equal] = [is_data, is_equal].map(|counts| w.tap(0, 1, counts));
        resync_anew(w);
        w.expect("equal blocks are not sent", |w| w.tapped(equal) > 16 && w.tapped(data) < 3);
        w.close(0, opener);
        w.settle();
    });
}

/// "Equal" is on its way on the control stream when the source says on that of its data that the target
/// misses a write to the block: which of the two comes first means nothing.
#[test]
fn what_is_missing_is_asked_for_again_though_the_word_that_it_is_equal_comes_later() {
    scenario(with_csums(Plan::quiet(2, 0)), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, SECTOR);
        let asked = w.tap(1, 0, asks_there);
        w.slow(0, 1, 50_000_000);
        w.granted(1, AdminCommand::Invalidate { volume: V0, from: None });
        w.wait_sent(0, 1, "that it is equal", is_equal_there);
        let before = w.tapped(asked);
        let packet = Packet::OutOfSync(V0, there());
        w.input_of_scenario(1, Input::Packet { peer: node_id(0), packet, payload: None });
        w.wait_disk(1, DiskState::UpToDate);
        w.expect("it is asked for again", |w| w.tapped(asked) > before);
        w.close(0, opener);
        w.settle();
    });
}

/// The target has a write of the source that the source's disk failed on, and had been asked about
/// the block as it was before.
#[test]
fn a_source_that_failed_to_write_calls_nothing_equal() {
    scenario(passes_errors_on(with_csums(Plan::quiet(2, 0))), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, SECTOR);
        w.slow(1, 0, 300_000_000);
        let [equal, data] = [is_equal_there, is_data_there].map(|counts| w.tap(0, 1, counts));
        let asked = w.tap(1, 0, asks_there);
        w.granted(1, AdminCommand::Invalidate { volume: V0, from: None });
        w.wait("it is asked for", |w| w.tapped(asked) > 0);
        failing_writes(w, 0, 100);
        // Of one sector, so that a fourth of the disks change nothing when they fail.
        let id = w.start(0, WRITE, SECTOR, 1);
        w.wait("the disk is a mixture", |w| w.disk(0) == DiskState::Inconsistent);
        failing_writes(w, 0, 0);
        w.wait("the answer is data", |w| w.tapped(data) > 0);
        w.expect("nothing else", |w| w.tapped(equal) == 0);
        _ = (opener, id);
    });
}

/// The target fails on a write that the source has made after it had compared the block, and hears that it was
/// equal while the source does not know of the failure.
#[test]
fn what_a_target_failed_to_write_is_not_equal() {
    scenario(passes_errors_on(with_csums(Plan::quiet(2, 0))), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, SECTOR);
        // Until its peer-ack has come.
        w.run_seconds(2);
        w.slow(0, 1, 60_000_000);
        w.granted(1, AdminCommand::Invalidate { volume: V0, from: None });
        w.wait_sent(0, 1, "that it is equal", is_equal_there);
        // The write comes first, for it travels on the other stream.
        w.slow(0, 1, 1_000_000);
        w.slow(1, 0, 500_000_000);
        let failed = w.tap(1, 0, is_failed_there);
        failing_writes(w, 1, 100);
        let id = w.start(0, WRITE, SECTOR, 8);
        w.wait("it fails there", |w| w.tapped(failed) > 0);
        failing_writes(w, 1, 0);
        w.run_for(100_000_000);
        w.expect("it counts as missing", |w| {
            let resource = w.nodes[1].resource.as_ref().expect("it runs");
            w.disk(1) == DiskState::Inconsistent && resource.out_of_sync_at(V0, node_id(0), SECTOR)
        });
        w.slow(1, 0, 1_000_000);
        w.finish(id).ok();
        // Whether the disk is any good an operator has to know.
        w.cut(0, 1);
        w.wait_lost(0, 1);
        w.heal(0, 1);
        w.wait("it is repaired", |w| w.connected(0, 1) && w.disk(1) == DiskState::UpToDate);
        w.close(0, opener);
        w.settle();
    });
}

/// A user of the target writes while a block is compared.
#[test]
fn writes_of_a_target_that_is_primary_stay() {
    scenario(with_csums(Plan::quiet(2, 0)), |w| {
        w.form();
        let opener = w.open(1);
        w.write(1, SECTOR);
        w.slow(0, 1, 20_000_000);
        w.granted(1, AdminCommand::Invalidate { volume: V0, from: None });
        let [asked, equal] = [w.tap(1, 0, asks_there), w.tap(0, 1, is_equal_there)];
        w.wait("it is asked for", |w| w.tapped(asked) > 0);
        w.expect("without an answer yet", |w| w.tapped(equal) == 0);
        let id = w.start(1, WRITE, SECTOR, 8);
        w.wait("it is equal", |w| w.tapped(equal) > 0);
        w.expect("the write waits for that word", |w| !w.is_answered(id));
        w.finish(id).expect("it is written");
        w.wait_disk(1, DiskState::UpToDate);
        w.read(1, SECTOR);
        w.close(1, opener);
        w.settle();
    });
}
