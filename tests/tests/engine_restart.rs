//! What an engine was told survives its end, in peace or not.

use std::time::Duration;

use crate::engine_support::nbd::Client;
use crate::engine_support::{Cluster, Setup, list, pattern};

#[test]
fn a_crashed_engine_comes_back_as_it_was() {
    let mut cluster = Cluster::up(&Setup { volumes: 2, ..Setup::default() });
    let socket = cluster.nodes[1].export();
    cluster.nodes[1].ok(&["disconnect", "r0:charlie"]);
    let before = cluster.nodes[1].ok(&["exports", "--json"]);
    cluster.nodes[1].kill();
    cluster.nodes[1].start();
    cluster.wait("alpha is connected again", |c| c.nodes[1].peer("alpha").0 == "Connected");
    cluster.wait("its disks are UpToDate again", |c| {
        c.nodes[1].disk_state(0) == "UpToDate" && c.nodes[1].disk_state(1) == "UpToDate"
    });
    // What was taken down stays down.
    assert_eq!(cluster.nodes[1].peer("charlie").0, "StandAlone");
    assert_eq!(cluster.nodes[1].ok(&["exports", "--json"]), before);
    let mut client = Client::open(&socket, "r0/0").unwrap();
    client.write(0, &pattern(1, 4096)).unwrap();
    client.close();
}

#[test]
fn an_engine_that_is_told_to_end_leaves_in_peace() {
    let mut cluster = Cluster::up(&Setup::default());
    let socket = cluster.nodes[0].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    client.write(0, &pattern(1, 4096)).unwrap();
    assert!(cluster.nodes[0].stop(), "it ends well although a client is connected");
    assert!(client.write(0, &[0; 512]).is_err());
    // Nobody is in doubt: the others go on at once.
    let socket = cluster.nodes[1].export();
    let mut client = Client::open(&socket, "r0/0").unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), pattern(1, 4096));
    client.write(4096, &pattern(2, 4096)).unwrap();
    client.close();
    cluster.nodes[0].start();
    cluster.wait_connected();
    cluster.wait("everything is in sync", |c| {
        c.all_up_to_date() && c.nodes.iter().all(|n| n.out_of_sync() == 0)
    });
    cluster.assert_equal(0, &[0, 1, 2]);
}

#[test]
fn an_engine_that_is_told_to_end_while_clients_write_ends_as_a_secondary() {
    let mut cluster = Cluster::up(&Setup::default());
    let sockets: Vec<_> = cluster.nodes.iter().map(|node| node.export()).collect();
    for node in [0, 1, 2, 0] {
        std::thread::scope(|scope| {
            let socket = &sockets[node];
            for writer in 0..8u64 {
                scope.spawn(move || {
                    let Ok(mut client) = Client::open(socket, "r0/0") else { return };
                    // Until the engine ends.
                    while client.write(writer * 4096, &pattern(writer, 4096)).is_ok() {}
                });
            }
            std::thread::sleep(Duration::from_millis(300));
            assert!(cluster.nodes[node].stop(), "it ends well");
        });
        let log = cluster.nodes[node].log();
        assert!(!log.contains("could not"), "{log}");
        cluster.nodes[node].start();
        cluster.wait_connected();
        cluster.wait("everything is in sync", |c| {
            c.all_up_to_date() && c.nodes.iter().all(|n| n.out_of_sync() == 0)
        });
    }
    cluster.assert_equal(0, &[0, 1, 2]);
}

#[test]
fn killed_again_and_again_while_it_is_configured_an_engine_keeps_what_it_answered() {
    let mut cluster = Cluster::new(&Setup { nodes: vec!["alpha", "bravo"], ..Setup::default() });
    cluster.nodes[0].start();
    cluster.nodes[0].ok(&["create-md", "r0"]);
    cluster.nodes[0].ok(&["up", "r0"]);
    let config = |cluster: &Cluster| cluster.nodes[0].status()["devices"].clone();
    for round in 0..5 {
        let devices = config(&cluster);
        assert_eq!(list(&devices).len(), 1, "round {round}");
        assert_eq!(devices[0]["disk-state"], "Inconsistent");
        cluster.nodes[0].kill();
        cluster.nodes[0].start();
    }
    cluster.nodes[0].ok(&["down", "r0"]);
    cluster.nodes[0].kill();
    cluster.nodes[0].start();
    assert!(config(&cluster).is_null());
}

#[test]
fn a_configuration_file_is_brought_up_at_the_start() {
    let mut cluster = Cluster::new(&Setup { nodes: vec!["alpha", "bravo"], ..Setup::default() });
    for node in &mut cluster.nodes {
        // Metadata first: the engine attaches what it finds.
        node.start();
        node.ok(&["create-md", "r0"]);
        assert!(node.stop());
        let config = node.directory.parent().unwrap().join("drbd.conf");
        node.args = vec!["--config".to_owned(), config.display().to_string()];
        node.start();
    }
    cluster.wait_connected();
    assert_eq!(cluster.nodes[0].disk_state(0), "Inconsistent");
}
