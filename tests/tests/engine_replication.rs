//! Three real engines replicate, lose members, and get them back.

use std::time::{Duration, Instant};

use crate::engine_support::nbd::Client;
use crate::engine_support::{Cluster, Setup, pattern};

const KIB: usize = 1024;

/// Writes of one client, each known by its seed.
fn write_some(client: &mut Client, seed: u64, count: u64) {
    for i in 0..count {
        let bytes = pattern(seed * 1000 + i, 16 * KIB);
        client.write(i * 64 * KIB as u64, &bytes).unwrap();
    }
}

fn check_some(client: &mut Client, seed: u64, count: u64) {
    for i in 0..count {
        let bytes = client.read(i * 64 * KIB as u64, 16 * KIB).unwrap();
        assert!(bytes == pattern(seed * 1000 + i, 16 * KIB), "write {i} of {seed}");
    }
}

#[test]
fn what_one_node_writes_all_nodes_have() {
    let cluster = Cluster::up(&Setup::default());
    let socket = cluster.nodes[0].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    assert!(client.size > 60 << 20);
    let role = cluster.nodes[1].peer("alpha").1;
    assert_eq!(role, "Primary", "opening for writing promotes");
    write_some(&mut client, 1, 100);
    client.zero(0, 128 << 10).unwrap();
    client.trim(1 << 20, 1 << 20).unwrap();
    client.write(1 << 20, &pattern(7, 4096)).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(0, 128 * KIB).unwrap(), vec![0; 128 * KIB]);
    client.close();
    cluster.wait("the last close demotes", |c| c.nodes[1].peer("alpha").1 == "Secondary");
    cluster.assert_equal(0, &[0, 1, 2]);
    // Another node takes over, and reads what the first wrote.
    let socket = cluster.nodes[2].export();
    let mut client = Client::open(&socket, "r0").unwrap();
    assert_eq!(client.read(1 << 20, 4096).unwrap(), pattern(7, 4096));
    client.write(0, &pattern(8, 512)).unwrap();
    client.flush().unwrap();
    client.close();
    cluster.assert_equal(0, &[0, 1, 2]);
}

#[test]
fn a_secondary_that_crashed_is_resynced_with_what_it_missed() {
    let mut cluster = Cluster::up(&Setup::default());
    let socket = cluster.nodes[0].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    write_some(&mut client, 1, 50);
    cluster.nodes[1].kill();
    // Writes go on while it is away.
    write_some(&mut client, 2, 30);
    cluster.wait("the loss is noticed", |c| c.nodes[0].peer("bravo").0 == "Connecting");
    write_some(&mut client, 3, 20);
    client.flush().unwrap();
    assert!(cluster.nodes[0].out_of_sync() >= 20 * 16);
    cluster.nodes[1].start();
    cluster.wait_connected();
    cluster.wait("everything is in sync", |c| {
        c.all_up_to_date() && c.nodes.iter().all(|n| n.out_of_sync() == 0)
    });
    write_some(&mut client, 4, 10);
    client.flush().unwrap();
    client.close();
    cluster.assert_equal(0, &[0, 1, 2]);
}

#[test]
fn another_node_takes_over_with_every_acknowledged_write() {
    let mut cluster = Cluster::up(&Setup::default());
    let socket = cluster.nodes[0].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    write_some(&mut client, 1, 80);
    cluster.nodes[0].kill();
    drop(client);
    let socket = cluster.nodes[1].export();
    let start = Instant::now();
    let mut client = loop {
        match Client::open(&socket, "r0/0") {
            Ok(client) => break client,
            Err(e) => {
                assert!(start.elapsed() < Duration::from_secs(30), "never opened: {e}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    };
    check_some(&mut client, 1, 80);
    write_some(&mut client, 2, 40);
    client.flush().unwrap();
    // The old Primary comes back and follows.
    cluster.nodes[0].start();
    cluster.wait_connected();
    cluster.wait("everything is in sync", |c| {
        c.all_up_to_date() && c.nodes.iter().all(|n| n.out_of_sync() == 0)
    });
    check_some(&mut client, 2, 40);
    client.close();
    cluster.assert_equal(0, &[0, 1, 2]);
}

#[test]
fn a_full_initial_resync_copies_everything() {
    let mut cluster = Cluster::new(&Setup { nodes: vec!["alpha", "bravo"], ..Setup::default() });
    for node in &mut cluster.nodes {
        node.start();
        node.ok(&["create-md", "r0"]);
        node.ok(&["up", "r0"]);
    }
    cluster.wait_connected();
    cluster.nodes[0].ok(&["primary", "r0", "--force"]);
    cluster.wait("the resync has ended", |c| {
        c.all_up_to_date() && c.nodes.iter().all(|n| n.out_of_sync() == 0)
    });
    cluster.assert_equal(0, &[0, 1]);
    cluster.nodes[0].ok(&["secondary", "r0"]);
}

#[test]
fn writes_during_a_resync_reach_both() {
    let setup = Setup {
        nodes: vec!["alpha", "bravo"],
        sections: "disk { c-max-rate 8M; c-min-rate 4M; c-fill-target 64k; resync-rate 2M; }"
            .to_owned(),
        ..Setup::default()
    };
    let mut cluster = Cluster::up(&setup);
    let socket = cluster.nodes[0].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    cluster.nodes[1].kill();
    for i in 0..48u64 {
        client.write(i << 20, &pattern(i, 1 << 20)).unwrap();
    }
    cluster.nodes[1].start();
    let start = Instant::now();
    let mut i = 0;
    while !(cluster.nodes[1].is_connected() && cluster.all_up_to_date()) || i < 20 {
        assert!(start.elapsed() < Duration::from_secs(60), "the resync never ends");
        i += 1;
        let at = pattern(i, 8)[0] as u64 * (150 << 10);
        client.write(at & !511, &pattern(1000 + i, 8 * KIB)).unwrap();
    }
    client.flush().unwrap();
    client.close();
    cluster.wait("everything is in sync", |c| c.nodes.iter().all(|n| n.out_of_sync() == 0));
    cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn a_node_without_disk_reads_and_writes_over_its_peers() {
    let cluster = Cluster::up(&Setup { clients: vec!["charlie"], ..Setup::default() });
    let socket = cluster.nodes[2].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    write_some(&mut client, 1, 40);
    client.flush().unwrap();
    check_some(&mut client, 1, 40);
    client.close();
    cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn an_online_verify_finds_what_was_changed_behind_its_back() {
    use std::os::unix::fs::FileExt;
    let setup = Setup {
        nodes: vec!["alpha", "bravo"],
        sections: "net { verify-alg sha256; }".to_owned(),
        ..Setup::default()
    };
    let cluster = Cluster::up(&setup);
    let socket = cluster.nodes[0].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    write_some(&mut client, 1, 100);
    client.close();
    cluster.nodes[0].ok(&["verify", "r0:bravo/0"]);
    cluster.wait("the verify has ended", |c| c.nodes[0].peer("bravo").2 == "Established");
    assert_eq!(cluster.nodes[0].out_of_sync(), 0);
    let disk = std::fs::File::options().write(true).open(cluster.disk(1, 0)).unwrap();
    disk.write_all_at(&[0xee; 4096], 3 << 20).unwrap();
    disk.sync_all().unwrap();
    cluster.nodes[0].ok(&["verify", "r0:bravo/0"]);
    cluster.wait("the difference is found", |c| (4..=64).contains(&c.nodes[0].out_of_sync()));
}

/// With a ping-timeout that a connection with long queues needs, each new one would be looked at for as long before it is
/// used. Only one that may not be the peer's is.
#[test]
fn a_new_connection_is_used_at_once_or_after_socket_check_timeout() {
    let connects_in = |net: &str| {
        let nodes = vec!["alpha", "bravo"];
        let begun = Instant::now();
        let cluster =
            Cluster::up(&Setup { nodes, sections: format!("net {{ {net} }}"), ..Setup::default() });
        let took = begun.elapsed();
        drop(cluster);
        took
    };
    let certain = connects_in("ping-timeout 300;");
    assert!(certain < Duration::from_secs(20), "{certain:?}");
    let looked_at = connects_in("ping-timeout 300; socket-check-timeout 30;");
    assert!(looked_at >= Duration::from_secs(3), "{looked_at:?}");
    assert!(looked_at < Duration::from_secs(20), "{looked_at:?}");
}
