//! Two Primaries: clients of two engines write to one volume, a guest moves, an engine is replaced.

use std::thread;

use crate::engine_support::nbd::Client;
use crate::engine_support::writers::Writing;
use crate::engine_support::{Cluster, Node, Setup, list, pattern};

const BLOCK: usize = 4096;
/// Where clients of one engine write that has a bulk of its own.
const APART: u64 = 8 << 20;

fn setup(nodes: Vec<&'static str>) -> Setup {
    let options = if nodes.len() > 2 { "options { quorum majority; }" } else { "" };
    let sections = format!("net {{ allow-two-primaries yes; }} {options}");
    Setup { nodes, sections, ..Setup::default() }
}

fn role(node: &Node) -> String {
    node.status()["role"].as_str().unwrap().to_owned()
}

/// What a node says of the role of another one.
fn role_of(node: &Node, name: &str) -> String {
    let status = node.status();
    let connections = list(&status["connections"]);
    let connection = connections.iter().find(|c| c["name"] == name).unwrap();
    connection["peer-role"].as_str().unwrap().to_owned()
}

#[test]
fn a_guest_moves_while_its_volume_is_open_on_both_nodes() {
    let cluster = Cluster::up(&setup(vec!["alpha", "bravo", "charlie"]));
    let [alpha, bravo, charlie] = &cluster.nodes[..] else { panic!("three nodes") };
    let mut source = Client::open(&alpha.export(), "r0/0").unwrap();
    source.write(0, &pattern(1, BLOCK)).unwrap();
    let mut target = Client::open(&bravo.export(), "r0/0").unwrap();
    assert_eq!([role(alpha), role(bravo), role(charlie)], ["Primary", "Primary", "Secondary"]);
    assert_eq!([role_of(alpha, "bravo"), role_of(bravo, "alpha")], ["Primary", "Primary"]);
    // What one has written, the other reads, in blocks of all sizes.
    for (round, len) in [BLOCK, 1 << 20, 512, 65_536].into_iter().enumerate() {
        let (at, seed) = (round as u64 * (1 << 20), 10 + round as u64);
        target.write(at, &pattern(seed, len)).unwrap();
        assert_eq!(source.read(at, len).unwrap(), pattern(seed, len));
        source.write(at, &pattern(seed + 100, len)).unwrap();
        assert_eq!(target.read(at, len).unwrap(), pattern(seed + 100, len));
    }
    target.zero(0, 8192).unwrap();
    target.trim(1 << 20, 8192).unwrap();
    target.flush().unwrap();
    assert_eq!(source.read(0, 8192).unwrap(), vec![0; 8192]);
    // It can not be taken from its I/O.
    for (node, peer) in [(alpha, "bravo"), (bravo, "alpha")] {
        let (_, error) = node.fails(&["disconnect", "r0", peer]);
        assert!(error.contains("Secondary first"), "{error}");
    }
    source.close();
    cluster.wait("the target is the only Primary", |c| {
        [role(&c.nodes[0]), role(&c.nodes[1])] == ["Secondary", "Primary"]
    });
    target.write(0, &pattern(7, BLOCK)).unwrap();
    assert_eq!(target.read(0, BLOCK).unwrap(), pattern(7, BLOCK));
    target.close();
    cluster.wait("nobody is Primary", |c| c.nodes.iter().all(|n| role(n) == "Secondary"));
    cluster.assert_equal(0, &[0, 1, 2]);
}

#[test]
fn either_engine_is_replaced_and_the_first_one_dies_under_the_second_ones_clients() {
    let mut cluster = Cluster::up(&setup(vec!["alpha", "bravo", "charlie"]));
    let mut first = Client::open(&cluster.nodes[0].export(), "r0/0").unwrap();
    first.write(APART, &pattern(1, BLOCK)).unwrap();
    let socket = cluster.nodes[1].export();
    Writing::during(&socket, 16, |writing| {
        writing.wait_for_writes(200);
        assert_eq!(role(&cluster.nodes[1]), "Primary");
        for node in [0, 1, 0, 2] {
            println!("node {node}: {}", cluster.nodes[node].upgrade().trim());
            writing.wait_for_writes(200);
            first.write(APART, &pattern(2, BLOCK)).unwrap();
        }
        println!("the longest a writer waited: {:?}", writing.longest());
        assert_eq!([0, 1].map(|n| role(&cluster.nodes[n])), ["Primary", "Primary"]);
        cluster.nodes[0].kill();
        writing.wait_for_writes(200);
        println!("and with a node that died: {:?}", writing.longest());
        assert_eq!(role(&cluster.nodes[1]), "Primary");
        assert_eq!(role_of(&cluster.nodes[2], "bravo"), "Primary");
    });
    cluster.nodes[0].start();
    cluster.wait("all disks are current", |c| {
        c.all_up_to_date() && c.nodes.iter().all(|n| n.out_of_sync() == 0)
    });
    let mut client = Client::open(&cluster.nodes[2].export(), "r0/0").unwrap();
    assert_eq!(client.read(APART, BLOCK).unwrap(), pattern(2, BLOCK));
    client.close();
    cluster.assert_equal(0, &[0, 1, 2]);
}

/// Both engines' clients write to the same blocks all the time.
#[test]
fn replicas_are_equal_whoever_writes_what_at_once() {
    let cluster = Cluster::up(&setup(vec!["alpha", "bravo"]));
    thread::scope(|scope| {
        for writer in 0..6 {
            let export = cluster.nodes[writer as usize % 2].export();
            scope.spawn(move || {
                let mut client = Client::open(&export, "r0/0").unwrap();
                for round in 0..300 {
                    let at = (round * 7 + writer) % 16 * 2048;
                    client.write(at, &pattern(1000 * writer + round, BLOCK)).unwrap();
                    if round % 50 == 0 {
                        client.flush().unwrap();
                    }
                }
                client.close();
            });
        }
    });
    cluster.wait("nobody is Primary", |c| c.nodes.iter().all(|n| role(n) == "Secondary"));
    cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn a_second_primary_is_refused_unless_both_nodes_allow_it() {
    let cluster = Cluster::up(&Setup {
        nodes: vec!["alpha", "bravo"],
        sections: "net { protocol C; }".to_owned(),
        ..Setup::default()
    });
    let [alpha, bravo] = &cluster.nodes[..] else { panic!("two nodes") };
    alpha.ok(&["primary", "r0"]);
    let (_, error) = bravo.fails(&["primary", "r0"]);
    assert!(error.contains("set allow-two-primaries on both nodes"), "{error}");
    cluster.reconfigure(|config| {
        config.replace("protocol C;", "protocol A; allow-two-primaries yes;")
    });
    let (_, error) = bravo.fails(&["adjust", "r0"]);
    assert!(error.contains("needs protocol C"), "{error}");
    cluster.reconfigure(|config| config.replace("protocol A;", "protocol C;"));
    bravo.ok(&["adjust", "r0"]);
    let (_, error) = bravo.fails(&["primary", "r0"]);
    assert!(error.contains("alpha") && error.contains("there, too"), "{error}");
    alpha.ok(&["adjust", "r0"]);
    bravo.ok(&["primary", "r0"]);
    assert_eq!([role(alpha), role(bravo)], ["Primary", "Primary"]);
    cluster.reconfigure(|config| config.replace("allow-two-primaries yes;", ""));
    let (_, error) = alpha.fails(&["adjust", "r0"]);
    assert!(error.contains("both Primary"), "{error}");
    bravo.ok(&["secondary", "r0"]);
    alpha.ok(&["adjust", "r0"]);
    alpha.ok(&["secondary", "r0"]);
}
