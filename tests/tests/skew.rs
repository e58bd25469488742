//! Another release beside the one under test: `cargo xtask skew` builds it and runs these.

use std::process::Child;

use crate::control_support::Node;
use crate::control_support::bare::{Bare, NODES};
use crate::engine_support::nbd::Client;
use crate::engine_support::writers::{Writing, watched};
use crate::engine_support::{Cluster, Setup, binary, other_release, pattern};

const WRITERS: u64 = 16;
const BLOCK: usize = 4096;

fn has_other_release() -> bool {
    let has = std::env::var_os("ASHLAR_OTHER").is_some();
    if !has {
        println!("skipped: needs the program of another release (cargo xtask skew)");
    }
    has
}

/// Nodes of which those named run the other release.
fn mixed(setup: &Setup, others: &[&str]) -> Cluster {
    let mut cluster = Cluster::new(setup);
    for node in &mut cluster.nodes {
        if others.contains(&node.name) {
            node.engine = other_release();
        }
    }
    cluster.bring_up(setup);
    cluster
}

fn in_sync(cluster: &Cluster) {
    cluster.wait("nothing is out of sync", |c| {
        c.all_up_to_date() && c.nodes.iter().all(|n| n.is_connected() && n.out_of_sync() == 0)
    });
}

/// What an operator was shown until now, of connections that were lost.
fn lost_connections(watcher: Child) -> Vec<String> {
    let seen = watched(watcher);
    let changes = seen.lines().filter(|line| line.starts_with("change"));
    changes.filter(|line| line.contains(" connection:")).map(str::to_owned).collect()
}

#[test]
fn a_cluster_of_the_other_release_is_upgraded_node_by_node_under_writes() {
    if !has_other_release() {
        return;
    }
    let mut cluster = mixed(&Setup::default(), &["alpha", "bravo", "charlie"]);
    let socket = cluster.nodes[0].export();
    Writing::during(&socket, WRITERS, |writing| {
        for node in [1, 0, 2] {
            // Who is asked for events must not be the one whose engine is replaced.
            let watcher = cluster.nodes[(node + 1) % 3].follow(&["events"]);
            let answer = cluster.nodes[node].upgrade_to(binary()).unwrap();
            println!("{}: {}", cluster.nodes[node].name, answer.trim());
            writing.wait_for_writes(300);
            assert_eq!(lost_connections(watcher), [""; 0]);
        }
    });
    in_sync(&cluster);
    cluster.assert_equal(0, &[0, 1, 2]);
}

#[test]
fn the_way_back_leads_there_or_is_refused_without_harm() {
    if !has_other_release() {
        return;
    }
    let mut cluster = mixed(&Setup::default(), &["bravo"]);
    let socket = cluster.nodes[0].export();
    Writing::during(&socket, WRITERS, |writing| {
        let node = &mut cluster.nodes[0];
        match node.upgrade_to(&other_release()) {
            Ok(answer) => println!("to the other release: {}", answer.trim()),
            // There are fields that it does not know.
            Err(why) => {
                println!("to the other release: {}", why.trim());
                assert!(why.contains("not known here"), "{why}");
            }
        }
        writing.wait_for_writes(300);
        let answer = node.upgrade_to(binary()).unwrap();
        println!("to this one: {}", answer.trim());
        writing.wait_for_writes(300);
    });
    in_sync(&cluster);
    cluster.assert_equal(0, &[0, 1, 2]);
}

/// Writes on one node while another one is away, and has it come back.
fn returns(cluster: &mut Cluster, primary: usize, away: usize, seed: u64) {
    cluster.nodes[away].kill();
    let mut client = Client::open(&cluster.nodes[primary].export(), "r0/0").unwrap();
    for block in 0..64 {
        client.write(block * (1 << 19), &pattern(seed + block, BLOCK)).unwrap();
    }
    cluster.nodes[away].start();
    in_sync(cluster);
    for block in 0..64 {
        let read = client.read(block * (1 << 19), BLOCK).unwrap();
        assert_eq!(read, pattern(seed + block, BLOCK));
    }
    client.close();
    cluster.nodes[primary].ok(&["unexport", "r0/0"]);
}

#[test]
fn two_releases_replicate_resync_and_verify_whoever_writes() {
    if !has_other_release() {
        return;
    }
    let nodes = vec!["alpha", "bravo"];
    let sections = "net { verify-alg sha256; }".to_owned();
    let setup = Setup { nodes, sections, ..Setup::default() };
    let mut cluster = mixed(&setup, &["bravo"]);
    for round in 0..4 {
        let primary = round % 2;
        returns(&mut cluster, primary, 1 - primary, 1000 * round as u64);
        cluster.assert_equal(0, &[0, 1]);
    }
    for node in [0, 1] {
        let peer = cluster.nodes[1 - node].name;
        let said = cluster.nodes[node].ok(&["verify", &format!("r0:{peer}/0")]);
        println!("{}: {}", cluster.nodes[node].name, said.trim());
        cluster.wait("the verify ends", |c| {
            c.nodes[node].peer(peer).2 == "Established" && c.nodes[node].out_of_sync() == 0
        });
    }
    // A disk goes from one release to the other by a restart, and back.
    for program in [binary().to_owned(), other_release()] {
        assert!(cluster.nodes[1].stop(), "it ends well");
        cluster.nodes[1].engine = program;
        cluster.nodes[1].start();
        cluster.wait_connected();
        returns(&mut cluster, 0, 1, 5000);
        returns(&mut cluster, 1, 0, 6000);
        cluster.assert_equal(0, &[0, 1]);
    }
}

#[test]
fn a_node_without_a_disk_uses_the_disks_of_the_other_release() {
    if !has_other_release() {
        return;
    }
    for others in [vec!["alpha", "bravo"], vec!["charlie"]] {
        let setup = Setup { clients: vec!["charlie"], ..Setup::default() };
        let mut cluster = mixed(&setup, &others);
        returns(&mut cluster, 2, 0, 0);
        returns(&mut cluster, 2, 1, 1000);
        cluster.assert_equal(0, &[0, 1]);
    }
}

/// Makes volumes, uses all that there is, and leaves `name` behind.
fn work(bare: &Bare, name: &str) {
    let controller = &bare.controller;
    let out = controller.ok(&format!("resource-group spawn db {name} 32M"));
    assert!(out.starts_with(&format!("volume {name}: 32 MiB, UpToDate on ")), "{out}");
    controller.ok(&format!("volume resize {name} 48M"));
    let two = controller.replicas(name);
    let third = NODES.into_iter().find(|node| !two.iter().any(|other| other == node)).unwrap();
    controller.ok(&format!("volume migrate {name} {} {third}", two[0]));
    controller.ok(&format!("volume toggle-disk {name} {third} --diskless"));
    controller.ok(&format!("volume place {name} --more 1"));
    controller.ok(&format!("property set volume/{name} Aux/who=me DrbdOptions/Net/ping-int=7"));
    let fine = || controller.ok(&format!("volume why {name}")).contains("as it should be");
    controller.wait("nothing is amiss", fine);
}

fn online(bare: &Bare) {
    bare.controller.wait("all nodes are online", || {
        let all = bare.controller.json("node list");
        all.as_array().unwrap().iter().all(|node| node["state"] == "online")
    });
}

/// A cluster of the other release with one volume.
fn other_cluster() -> (Bare, Vec<Node>) {
    let bare = Bare::of(&other_release());
    let nodes = bare.join();
    online(&bare);
    for name in NODES {
        let folder = bare.pool(name).display().to_string();
        bare.controller.ok(&format!("storage-pool create disks file {folder} --on {name}"));
    }
    bare.controller.ok("resource-group create db --place 2 --pool disks");
    work(&bare, "first");
    (bare, nodes)
}

fn upgrade_nodes(bare: &Bare, nodes: &mut [Node]) {
    for node in nodes {
        node.upgrade_engine(binary());
        node.kill_agent();
        node.start_agent();
    }
    online(bare);
}

fn delete_all(bare: &Bare, volumes: &str) {
    bare.controller.ok(&format!("volume delete {volumes}"));
    bare.controller.ok("group delete db");
    bare.controller.ok("storage-pool delete disks --on n1,n2,n3");
    for name in NODES {
        bare.controller.ok(&format!("node delete {name}"));
        let left: Vec<_> = std::fs::read_dir(bare.pool(name)).unwrap().collect();
        assert!(left.is_empty(), "left on {name}: {left:?}");
    }
}

#[test]
fn the_controller_is_upgraded_first() {
    if !has_other_release() {
        return;
    }
    let (mut bare, mut nodes) = other_cluster();
    bare.controller.replace(binary());
    online(&bare);
    work(&bare, "second");
    upgrade_nodes(&bare, &mut nodes);
    work(&bare, "third");
    delete_all(&bare, "first second third");
}

#[test]
fn the_nodes_are_upgraded_first() {
    if !has_other_release() {
        return;
    }
    let (mut bare, mut nodes) = other_cluster();
    upgrade_nodes(&bare, &mut nodes);
    work(&bare, "second");
    bare.controller.replace(binary());
    online(&bare);
    work(&bare, "third");
    delete_all(&bare, "first second third");
}
