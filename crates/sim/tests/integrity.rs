//! Digests of data on the wire (`data-integrity-alg`), wire §5.2. The network damages data; the
//! driver of a node, as the engine's, compares their digests before the core sees them.

use codec::wire::Packet;
use replication::io::{AdminCommand, IoError};
use sim::plan::{Plan, node_id};
use sim::scenario::scenario;
use sim::{Op, World};
use vocab::options::{NetOptions, OnNoDataAccessible};
use vocab::{ConnState, DiskState};

const SECTOR: u64 = 800;

fn with_digest(digest: &str, mut plan: Plan) -> Plan {
    plan.net.data_integrity_alg = digest.to_owned();
    plan
}

fn is_data(packet: &Packet) -> bool {
    matches!(packet, Packet::Data(..))
}

fn tag(w: &World, node: usize, sector: u64) -> u64 {
    w.nodes[node].drive(0).map_or(0, |drive| drive.disk.tag(sector))
}

fn stands_alone(w: &World, node: usize) -> bool {
    let peer = |view: &sim::view::View| view.peers[1 - node].clone();
    w.view(node).and_then(|view| peer(&view)).is_some_and(|p| p.conn == ConnState::StandAlone)
}

/// Gives one end of the connection of two nodes another digest.
fn rename(w: &mut World, node: usize, digest: &str) {
    let net = NetOptions { data_integrity_alg: digest.to_owned(), ..w.plan.net.clone() };
    w.granted(node, AdminCommand::NetOptions(node_id(1 - node), Box::new(net)));
}

/// Writes what is damaged on its way to node 1, which drops the connection and not the data in
/// its place.
fn write_damaged(w: &mut World) {
    let opener = w.open(0);
    w.write(0, SECTOR);
    let before = tag(w, 0, SECTOR);
    w.net.damage(0, 1);
    let id = w.start(0, Op::Write { fua: false }, SECTOR, 8);
    w.finish(id).ok();
    w.expect("the write has done without the peer", |w| !w.connected(0, 1));
    w.wait("they are connected again", |w| w.connected(0, 1) && w.connected(1, 0));
    w.wait("the peer has got it", |w| tag(w, 1, SECTOR) == tag(w, 0, SECTOR));
    w.expect("and it is new", |w| tag(w, 0, SECTOR) != before);
    w.close(0, opener);
}

#[test]
fn damaged_data_cost_the_connection_and_are_never_written_case_104() {
    scenario(with_digest("crc32c", Plan::quiet(2, 0)), |w| {
        w.form();
        write_damaged(w);
        w.settle();
    });
}

#[test]
fn without_a_digest_damaged_data_are_written() {
    scenario(with_digest("", Plan::quiet(2, 0)), |w| {
        w.form();
        w.open(0);
        w.net.damage(0, 1);
        let id = w.start(0, Op::Write { fua: false }, SECTOR, 8);
        w.wait("the write is answered", |w| w.is_answered(id));
        let violation = w.violation.take().expect("the checker sees what was acknowledged");
        assert_eq!(violation.rule, "1", "{}", violation.message);
        assert_ne!(tag(w, 0, SECTOR), tag(w, 1, SECTOR));
    });
}

#[test]
fn damaged_blocks_of_a_resync_and_of_remote_reads_are_never_used() {
    let mut plan = with_digest("crc32c", Plan::quiet(2, 1));
    plan.resource.on_no_data_accessible = OnNoDataAccessible::SuspendIo;
    scenario(plan, |w| {
        w.form();
        let opener = w.open(2);
        w.kill(1);
        w.wait_lost(2, 1);
        for i in 0..16 {
            w.write(2, i * 8192);
        }
        w.start_node(1);
        w.wait("they meet", |w| w.connected(0, 1));
        w.net.damage(0, 1);
        w.wait("the resync has ended", |w| w.disk(1) == DiskState::UpToDate);
        // The checkers compare what is read with what was written. The second node loses the client
        // as well, whose reads wait until a disk is back.
        for peer in [0, 1] {
            w.net.damage(peer, 2);
        }
        for i in 0..16 {
            w.read(2, i * 8192);
        }
        w.close(2, opener);
        w.settle();
    });
}

#[test]
fn nodes_that_name_different_digests_do_not_connect() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        w.granted(0, AdminCommand::Disconnect { peer: node_id(1), force: false });
        w.wait("both ends are down", |w| !w.connected(0, 1) && !w.connected(1, 0));
        rename(w, 0, "crc32c");
        w.granted(0, AdminCommand::Connect { peer: node_id(1), discard_my_data: false });
        w.wait("both have given up", |w| stands_alone(w, 0) && stands_alone(w, 1));
    });
}

#[test]
fn a_digest_that_is_set_while_connected_goes_with_the_next_data() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, 0);
        rename(w, 0, "crc32c");
        w.write(0, 8);
        // The peer's own data go without until it is told as well.
        rename(w, 1, "crc32c");
        w.write(0, 16);
        w.run_seconds(1);
        w.expect("they stay connected", |w| w.connected(0, 1) && w.connected(1, 0));
        write_damaged(w);
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn a_digest_that_is_set_while_connecting_is_in_force_when_connected() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        w.reset(0, 1);
        w.wait_sent(0, 1, "parameters", |p| matches!(p, Packet::Protocol(_)));
        rename(w, 0, "crc32c");
        rename(w, 1, "crc32c");
        w.run_seconds(30);
        if !w.connected(0, 1) {
            // One of them was told first, and the other one's parameters did not fit.
            for node in [0, 1] {
                let command =
                    AdminCommand::Connect { peer: node_id(1 - node), discard_my_data: false };
                if stands_alone(w, node) {
                    w.granted(node, command);
                }
            }
            w.wait("they connect", |w| w.connected(0, 1) && w.connected(1, 0));
        }
        write_damaged(w);
        w.settle();
    });
}

#[test]
fn zeroes_go_as_such_to_ashlar_and_are_left_to_the_user_with_kernel_nodes() {
    let zeroes = Op::Zeroes { unmap: true };
    scenario(with_digest("crc32c", Plan::quiet(2, 0)), |w| {
        w.form();
        let opener = w.open(0);
        w.write(0, SECTOR);
        let data = w.tap(0, 1, is_data);
        assert_eq!(w.request_and_wait(0, zeroes, SECTOR), Ok(()));
        w.expect("no data were sent", |w| w.tapped(data) == 0 && tag(w, 1, SECTOR) == 0);
        w.close(0, opener);
        w.settle();
    });
    scenario(with_digest("crc32c", Plan::quiet(2, 0)), |w| {
        w.net.hide_own_features();
        w.form();
        let opener = w.open(0);
        let zeroed = w.request_and_wait(0, zeroes, SECTOR);
        assert_eq!(zeroed, Err(IoError::Unsupported));
        assert_eq!(w.request_and_wait(0, Op::Discard, SECTOR), Ok(()));
        w.close(0, opener);
        w.settle();
    });
}

#[test]
fn zeroes_that_were_accepted_before_a_digest_was_set_are_resynced() {
    scenario(Plan::quiet(2, 0), |w| {
        w.net.hide_own_features();
        w.form();
        let opener = w.open(0);
        w.write(0, SECTOR + 8192);
        // The activity log has to take the extent first.
        let sent = w.tap(0, 1, |p| matches!(p, Packet::Zeroes(..) | Packet::Data(..)));
        let id = w.start(0, Op::Zeroes { unmap: true }, SECTOR, 8);
        rename(w, 0, "crc32c");
        rename(w, 1, "crc32c");
        w.expect("they are not sent yet", |w| w.tapped(sent) == 0 && !w.is_answered(id));
        assert_eq!(w.finish(id), Ok(()));
        w.expect("they were not sent", |w| w.tapped(sent) == 0);
        w.wait("they are there", |w| tag(w, 1, SECTOR) == 0 && w.connected(0, 1));
        w.close(0, opener);
        w.settle();
    });
}
