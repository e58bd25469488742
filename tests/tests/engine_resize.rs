//! Volumes that change their size under real engines: files that are given more room, `ashlar resize`,
//! what users see of it, and engines killed meanwhile.

use std::fs::OpenOptions;

use crate::engine_support::nbd::Client;
use crate::engine_support::{Cluster, Setup, pattern};

const MIB: u64 = 1 << 20;

/// Gives the disk of a node so many bytes.
fn grow(cluster: &Cluster, node: usize, bytes: u64) {
    let file = OpenOptions::new().write(true).open(cluster.disk(node, 0)).unwrap();
    assert!(file.metadata().unwrap().len() < bytes);
    file.set_len(bytes).unwrap();
}

/// KiB of the volume, as a node shows it.
fn size(cluster: &Cluster, node: usize) -> u64 {
    cluster.nodes[node].status()["devices"][0]["size"].as_u64().unwrap()
}

fn room(cluster: &Cluster) -> u64 {
    std::fs::metadata(cluster.disk(0, 0)).unwrap().len()
}

#[test]
fn a_volume_grows_under_its_users_and_what_is_new_is_replicated() {
    let cluster = Cluster::up(&Setup::default());
    let socket = cluster.nodes[0].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    let (old, had) = (client.size, room(&cluster));
    client.write(old - 8192, &pattern(1, 8192)).unwrap();

    // Nobody has more room: nothing happens. One has not: nothing happens, either.
    cluster.nodes[0].ok(&["resize", "r0/0"]);
    for node in [0, 1] {
        grow(&cluster, node, had + 32 * MIB);
    }
    cluster.nodes[0].ok(&["resize", "r0/0"]);
    assert_eq!(size(&cluster, 0) * 1024, old);
    let (_, why) = cluster.nodes[0].fails(&["resize", "r0/0", "--size", "1G"]);
    assert!(why.contains("has room for"), "{why}");

    grow(&cluster, 2, had + 32 * MIB);
    // Another node than the Primary is told.
    cluster.nodes[1].ok(&["resize", "r0/0"]);
    cluster.wait("all know", |c| (0..3).all(|n| size(c, n) * 1024 > old + 31 * MIB));
    client.write(old - 4096, &pattern(2, 4096)).unwrap();
    assert_eq!(client.read(old - 8192, 4096).unwrap(), pattern(1, 8192)[..4096]);
    client.close();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    assert_eq!(client.size, size(&cluster, 0) * 1024);
    client.write(client.size - 4096, &pattern(3, 4096)).unwrap();
    client.write(old - 2048, &pattern(4, 4096)).unwrap();
    cluster.wait("the resync ends", Cluster::all_up_to_date);
    cluster.wait("nothing is out of sync", |c| c.nodes.iter().all(|n| n.out_of_sync() == 0));
    let last = client.size - 4096;
    client.close();
    for node in [0, 1, 2] {
        assert!(cluster.content(node, 0, last + 4096)[last as usize..] == pattern(3, 4096));
    }
    cluster.assert_equal(0, &[0, 1, 2]);
}

#[test]
fn a_restarted_engine_has_the_new_size_and_its_metadata_where_they_belong() {
    let setup = Setup { nodes: vec!["alpha", "bravo"], ..Setup::default() };
    let mut cluster = Cluster::up(&setup);
    let had = room(&cluster);
    for node in [0, 1] {
        grow(&cluster, node, had + 16 * MIB);
    }
    cluster.nodes[0].ok(&["resize", "r0/0"]);
    cluster.wait("the resync ends", Cluster::all_up_to_date);
    let new = size(&cluster, 0);
    for node in [0, 1] {
        cluster.nodes[node].kill();
        cluster.nodes[node].start();
        cluster.wait("it is back", |c| c.nodes[node].is_connected() && c.all_up_to_date());
        assert_eq!(size(&cluster, node), new);
    }
    // Down and up again: the device alone says it.
    for node in [0, 1] {
        cluster.nodes[node].ok(&["down", "r0"]);
    }
    for node in [0, 1] {
        cluster.nodes[node].ok(&["up", "r0"]);
    }
    cluster.wait("both are there", |c| c.nodes[0].is_connected() && c.all_up_to_date());
    assert_eq!((size(&cluster, 0), size(&cluster, 1)), (new, new));
    cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn a_node_that_was_away_catches_up_with_the_size() {
    let setup = Setup { nodes: vec!["alpha", "bravo"], ..Setup::default() };
    let mut cluster = Cluster::up(&setup);
    let had = room(&cluster);
    cluster.nodes[1].kill();
    cluster.wait("alpha is alone", |c| !c.nodes[0].is_connected());
    grow(&cluster, 0, had + 16 * MIB);
    let (_, why) = cluster.nodes[0].fails(&["resize", "r0/0"]);
    assert!(why.contains("bravo"), "{why}");
    cluster.nodes[0].ok(&["resize", "r0/0", "--assume-peer-has-space"]);
    let socket = cluster.nodes[0].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    assert_eq!(client.size, size(&cluster, 0) * 1024);
    client.write(client.size - MIB, &pattern(5, MIB as usize)).unwrap();
    // Its device gets the room while its engine runs: it looks again when it meets the larger one.
    cluster.nodes[1].start();
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(!cluster.nodes[0].is_connected());
    grow(&cluster, 1, had + 16 * MIB);
    for node in [0, 1] {
        let _ = cluster.nodes[node].cli(&["connect", "r0"]);
    }
    cluster.wait("bravo has caught up", |c| {
        c.nodes[0].is_connected() && c.all_up_to_date() && size(c, 1) == size(c, 0)
    });
    cluster.wait("nothing is out of sync", |c| c.nodes[0].out_of_sync() == 0);
    client.close();
    cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn a_volume_shrinks_to_a_size_that_is_named_while_nobody_uses_it() {
    let setup = Setup { nodes: vec!["alpha", "bravo"], ..Setup::default() };
    let cluster = Cluster::up(&setup);
    let old = size(&cluster, 0);
    let socket = cluster.nodes[0].export();
    let client = Client::open(&socket, "r0/0").unwrap();
    let (_, why) = cluster.nodes[0].fails(&["resize", "r0/0", "--size", "8M"]);
    assert!(why.contains("in use"), "{why}");
    client.close();
    cluster.wait("nobody is Primary", |c| c.nodes[0].status()["role"] == "Secondary");
    cluster.nodes[0].ok(&["resize", "r0/0", "--size", "8M"]);
    cluster.wait("both know", |c| size(c, 0) == 8192 && size(c, 1) == 8192);
    cluster.nodes[1].ok(&["resize", "r0/0"]);
    cluster.wait("both know", |c| size(c, 0) == old && size(c, 1) == old);
    cluster.wait("the resync ends", Cluster::all_up_to_date);
    cluster.assert_equal(0, &[0, 1]);
}
