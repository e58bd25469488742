//! Volumes that are large, and resources that are many.

use std::fs::{self, File};
use std::process::Command;
use std::time::Duration;

use crate::engine_support::nbd::Client;
use crate::engine_support::{Cluster, Node, Setup, list, pattern};
use serde_json::Value;

/// The largest file of ext4 is a little smaller than 16 TiB.
const LARGE: u64 = 15 << 40;
/// What a large volume may cost that nobody uses.
const LARGE_COSTS: u64 = 4 << 20;
/// Resources beside `r0`.
const MANY: usize = 299;

/// A resource on some nodes with a disk of its own on each.
fn resource(name: &str, nodes: &[&str], port: usize) -> String {
    let mut text = format!("resource {name} {{\n");
    for (id, node) in nodes.iter().enumerate() {
        text += &format!(
            "  on {node} {{ node-id {id}; address NET.{}:{port}; volume 0 {{ device minor {port}; \
             disk DIR/{node}-{name}.img; meta-disk internal; }} }}\n",
            id + 1
        );
    }
    text + &format!("  connection-mesh {{ hosts {}; }}\n}}\n", nodes.join(" "))
}

/// The disks of that resource; false if the file system has no files of that size.
fn create_disks(cluster: &Cluster, name: &str, size: u64) -> bool {
    let folder = cluster.disk(0, 0).parent().unwrap().to_owned();
    cluster.nodes.iter().all(|node| {
        let file = File::create(folder.join(format!("{}-{name}.img", node.name))).unwrap();
        file.set_len(size).is_ok()
    })
}

/// All resources of a node, by name: role, disk, connections.
fn states(node: &Node) -> Vec<(String, String, String, Vec<String>)> {
    let all: Value = serde_json::from_str(&node.ok(&["status", "--json"])).unwrap();
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let mut states: Vec<_> = list(&all)
        .iter()
        .map(|r| {
            let peers = list(&r["connections"]).iter().map(|c| word(&c["connection-state"]));
            let disk = word(&r["devices"][0]["disk-state"]);
            (word(&r["name"]), word(&r["role"]), disk, peers.collect())
        })
        .collect();
    states.sort();
    states
}

/// The resource is connected to all peers, and its disk is UpToDate.
fn is_well(node: &Node, name: &str) -> bool {
    states(node).iter().any(|(n, _, disk, peers)| {
        n == name && disk == "UpToDate" && peers.iter().all(|state| state == "Connected")
    })
}

/// Does something on all nodes.
fn at_once(cluster: &mut Cluster, f: impl Fn(&mut Node) + Sync) {
    std::thread::scope(|scope| {
        for node in &mut cluster.nodes {
            scope.spawn(|| f(node));
        }
    });
}

/// Memory of a process that is really there.
fn resident(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_large_volume_that_nobody_uses_costs_little_memory() {
    let nodes = ["alpha", "bravo", "charlie", "delta"];
    let setup = Setup {
        nodes: nodes.to_vec(),
        resources: resource("large", &nodes, 7001),
        ..Setup::default()
    };
    // With a small volume every part of the engine has been in use once.
    let mut cluster = Cluster::up(&setup);
    if !create_disks(&cluster, "large", LARGE) {
        println!("skipped: no files of {LARGE} bytes here");
        return;
    }
    let folder = cluster.disk(0, 0).parent().unwrap().to_owned();
    at_once(&mut cluster, |node| {
        node.ok(&["create-md", "large"]);
        // The bitmaps, 480 MiB for each peer, are allocated, and would take disk space here.
        let file = folder.join(format!("{}-large.img", node.name));
        let from = LARGE - (1500 << 20);
        let length = LARGE - (1 << 20) - from;
        let punched = Command::new("fallocate")
            .args(["--punch-hole", "--offset", &from.to_string()])
            .args(["--length", &length.to_string()])
            .arg(file)
            .status()
            .unwrap();
        assert!(punched.success());
    });
    let pids: Vec<u32> = cluster.nodes.iter().map(Node::pid).collect();
    std::thread::sleep(Duration::from_secs(1));
    let before: Vec<u64> = pids.iter().map(|pid| resident(*pid)).collect();
    at_once(&mut cluster, |node| _ = node.ok(&["up", "large"]));
    let connected = |node: &Node| {
        let large = states(node).into_iter().find(|(name, ..)| name == "large");
        large.is_some_and(|(.., peers)| {
            peers.len() == 3 && peers.iter().all(|state| state == "Connected")
        })
    };
    cluster.wait("large is connected", |c| c.nodes.iter().all(connected));
    cluster.nodes[0].ok(&["new-current-uuid", "--clear-bitmap", "large/0"]);
    cluster.wait("large is UpToDate", |c| c.nodes.iter().all(|node| is_well(node, "large")));
    std::thread::sleep(Duration::from_secs(1));
    for (node, (pid, before)) in nodes.iter().zip(pids.iter().zip(before)) {
        let after = resident(*pid);
        let more = after.saturating_sub(before);
        println!("{node}: {} KiB, before {} KiB", after >> 10, before >> 10);
        assert!(more < LARGE_COSTS, "{node}: {more} bytes more");
    }
}

#[test]
fn three_hundred_resources_come_back_after_a_crash() {
    let nodes = ["alpha", "bravo"];
    let names: Vec<String> = (1..=MANY).map(|n| format!("r{n}")).collect();
    let text = names.iter().enumerate().map(|(n, name)| resource(name, &nodes, 7001 + n));
    let setup = Setup {
        nodes: nodes.to_vec(),
        disk: 4 << 20,
        resources: text.collect(),
        ..Setup::default()
    };
    let mut cluster = Cluster::new(&setup);
    assert!(names.iter().all(|name| create_disks(&cluster, name, 4 << 20)));
    at_once(&mut cluster, |node| {
        node.start();
        node.ok(&["create-md", "all"]);
        node.ok(&["up", "all"]);
    });
    let all_connected = |node: &Node| {
        let states = states(node);
        states.len() == MANY + 1
            && states.iter().all(|(.., peers)| peers.len() == 1 && peers[0] == "Connected")
    };
    cluster.wait("all are connected", |c| c.nodes.iter().all(all_connected));
    // Some with data.
    let used = ["r0", "r150", "r299"];
    let socket = |name: &str| cluster.nodes[0].directory.join(format!("nbd-{name}"));
    let sockets = used.map(socket);
    for (seed, (name, socket)) in used.iter().zip(&sockets).enumerate() {
        let node = &cluster.nodes[0];
        node.ok(&["new-current-uuid", "--clear-bitmap", &format!("{name}/0")]);
        cluster.wait("its disks are UpToDate", |c| c.nodes.iter().all(|n| is_well(n, name)));
        node.ok(&["export", &format!("{name}/0"), "--listen", &socket.display().to_string()]);
        let mut client = Client::open(socket, name).unwrap();
        client.write(4096, &pattern(seed as u64, 4096)).unwrap();
        client.close();
    }
    cluster.wait("nobody is Primary", |c| {
        c.nodes.iter().all(|node| states(node).iter().all(|(_, role, ..)| role == "Secondary"))
    });
    let before = states(&cluster.nodes[0]);
    cluster.nodes[0].kill();
    cluster.nodes[0].start();
    cluster.wait("all are back as they were", |c| states(&c.nodes[0]) == before);
    for (seed, (name, socket)) in used.iter().zip(&sockets).enumerate() {
        let mut client = Client::open(socket, name).unwrap();
        assert_eq!(client.read(4096, 4096).unwrap(), pattern(seed as u64, 4096), "{name}");
        client.close();
    }
}
