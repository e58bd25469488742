//! A peer that can not keep up is left behind, and resynced when it can: two engines, protocol A.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::engine_support::nbd::Client;
use crate::engine_support::{Cluster, Node, Setup, list, pattern};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// What is written over and over.
const WRITTEN: u64 = 16 * MIB;

fn two_nodes(net: &str) -> Setup {
    Setup {
        nodes: vec!["alpha", "bravo"],
        sections: format!("net {{ {net} }}"),
        ..Setup::default()
    }
}

/// What a node says of its device at the other one.
fn device(node: &Node) -> Value {
    list(&node.status()["connections"])[0]["peer_devices"][0].clone()
}

#[test]
fn a_peer_with_too_much_under_way_is_left_behind_and_resynced() {
    // One write of the test is more than is to be under way.
    let cluster =
        Cluster::up(&two_nodes("protocol A; on-congestion pull-ahead; congestion-fill 1M;"));
    let [alpha, bravo] = &cluster.nodes[..] else { panic!("two nodes") };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let done = &done;
                scope.spawn(move || {
                    let mut client = Client::open(&alpha.export(), "r0/0").unwrap();
                    let mut round = writer;
                    while !done.load(Ordering::Relaxed) {
                        let at = (round * MIB) % WRITTEN;
                        client.write(at, &pattern(round, MIB as usize)).unwrap();
                        round += 4;
                    }
                    client.flush().unwrap();
                    client.close();
                    round / 4
                })
            })
            .collect();
        cluster.wait("both ends say so", |c| {
            let states = [0, 1].map(|n| device(&c.nodes[n])["replication-state"].clone());
            states == ["Ahead", "Behind"]
        });
        assert_eq!(bravo.disk_state(0), "Outdated");
        assert_eq!(list(&alpha.status()["connections"])[0]["congested"], true);
        done.store(true, Ordering::Relaxed);
        let rounds: u64 = writers.into_iter().map(|w| w.join().unwrap()).sum();
        println!("{rounds} MiB written");
    });
    cluster.wait("the peer is current again", |c| {
        c.nodes.iter().all(|n| n.is_connected() && n.out_of_sync() == 0) && c.all_up_to_date()
    });
    cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn a_peer_that_is_behind_when_its_primary_dies_is_not_promoted() {
    let mut cluster =
        Cluster::up(&two_nodes("protocol A; on-congestion pull-ahead; congestion-fill 1M;"));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let export = cluster.nodes[0].export();
        let done = &done;
        for writer in 0..4 {
            let export = export.clone();
            scope.spawn(move || {
                let mut client = Client::open(&export, "r0/0").unwrap();
                let mut round = writer;
                while !done.load(Ordering::Relaxed) {
                    let at = (round * MIB) % WRITTEN;
                    if client.write(at, &pattern(round, MIB as usize)).is_err() {
                        break;
                    }
                    round += 4;
                }
            });
        }
        cluster.wait("it is behind", |c| device(&c.nodes[1])["replication-state"] == "Behind");
        cluster.nodes[0].kill();
        done.store(true, Ordering::Relaxed);
    });
    cluster.wait("the Primary is lost", |c| !c.nodes[1].is_connected());
    let (_, error) = cluster.nodes[1].fails(&["primary", "r0"]);
    assert!(error.contains("the disk is Outdated"), "{error}");
}

#[test]
fn it_is_refused_with_other_protocols() {
    let cluster = Cluster::up(&two_nodes("protocol C;"));
    let bravo = &cluster.nodes[1];
    cluster.reconfigure(|config| {
        config.replace("protocol C;", "protocol C; on-congestion pull-ahead;")
    });
    let (_, error) = bravo.fails(&["adjust", "r0"]);
    assert!(error.contains("(155)") || error.contains("-155"), "{error}");
    assert!(error.contains("use protocol A, or on-congestion block"), "{error}");
}
