//! Resync by checksum between two engines: what both have alike is not sent again.

use crate::engine_support::nbd::Client;
use crate::engine_support::{Cluster, Node, Setup, list, pattern};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// What the test writes.
const WRITTEN: u64 = 16 * MIB;

/// Two nodes. Resyncs are slow enough to be watched.
fn two_nodes(net: &str) -> Setup {
    Setup {
        nodes: vec!["alpha", "bravo"],
        sections: format!("net {{ {net} }} disk {{ resync-rate 16M; c-plan-ahead 0; }}"),
        ..Setup::default()
    }
}

/// What a node says of its device at the other one.
fn device(node: &Node) -> Value {
    list(&node.status()["connections"])[0]["peer_devices"][0].clone()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Waits for the end of a resync, and says the most that both ends have called equal meanwhile, in sectors.
fn resynced(cluster: &Cluster) -> u64 {
    let mut same = 0;
    cluster.wait("the resync is over", |c| {
        let counts = c.nodes.iter().map(|node| count(&device(node)["rs-same-csum"]));
        same = same.max(counts.min().unwrap());
        c.nodes.iter().all(|n| n.is_connected() && n.out_of_sync() == 0) && c.all_up_to_date()
    });
    same
}

#[test]
fn what_is_equal_is_not_sent() {
    for name in ["md5", "sha256"] {
        let cluster = Cluster::up(&two_nodes(&format!("csums-alg {name};")));
        let [alpha, bravo] = &cluster.nodes[..] else { panic!("two nodes") };
        let mut client = Client::open(&alpha.export(), "r0/0").unwrap();
        for (i, at) in (0..WRITTEN).step_by(MIB as usize).enumerate() {
            client.write(at, &pattern(i as u64, MIB as usize)).unwrap();
        }
        client.flush().unwrap();

        // All of it, of which nothing differs.
        let before = count(&device(bravo)["received"]);
        bravo.ok(&["invalidate", "r0/0"]);
        cluster.wait("the disk is given up", |c| c.nodes[1].disk_state(0) != "UpToDate");
        let same = resynced(&cluster);
        let received = count(&device(bravo)["received"]) - before;
        println!("{name}: {same} sectors equal, {received} KiB received");
        assert!(same > 0, "{name}: the statistics tell of equal blocks");
        assert!(received <= 1024, "{name}: {received} KiB received");
        cluster.assert_equal(0, &[0, 1]);

        // What was written once more and is the same, and one block that is not.
        let before = count(&device(bravo)["received"]);
        bravo.ok(&["disconnect", "r0:alpha"]);
        cluster.wait("they are apart", |c| !c.nodes[0].is_connected());
        for (i, at) in (0..WRITTEN).step_by(MIB as usize).enumerate() {
            client.write(at, &pattern(i as u64, MIB as usize)).unwrap();
        }
        client.write(5 * MIB + 4096, &pattern(99, 4096)).unwrap();
        client.flush().unwrap();
        assert!(alpha.out_of_sync() >= WRITTEN / 1024);
        bravo.ok(&["connect", "r0:alpha"]);
        resynced(&cluster);
        let received = count(&device(bravo)["received"]) - before;
        println!("{name}: {received} KiB received");
        assert!(received < WRITTEN / 1024 / 2, "{name}: {received} KiB received");
        client.close();
        cluster.assert_equal(0, &[0, 1]);
    }
}

#[test]
fn an_unknown_digest_is_refused_and_different_ones_refuse_the_connection() {
    let cluster = Cluster::up(&two_nodes("csums-alg sha256;"));
    let [alpha, bravo] = &cluster.nodes[..] else { panic!("two nodes") };
    let set = |from: &str, to: &str| {
        let line = |name: &str| format!("csums-alg {name};");
        cluster.reconfigure(|config| config.replace(&line(from), &line(to)));
    };
    set("sha256", "crc64");
    let (_, error) = bravo.fails(&["adjust", "r0"]);
    assert!(error.contains("can not be `crc64`") && error.contains("`md5` or `sha1`"), "{error}");
    set("crc64", "crc32c");
    let (_, error) = bravo.fails(&["adjust", "r0"]);
    assert!(
        error.contains("can not be `crc32c`") && error.contains("leave stale blocks"),
        "{error}"
    );
    set("crc32c", "sha1");
    alpha.ok(&["disconnect", "r0:bravo"]);
    bravo.ok(&["adjust", "r0"]);
    alpha.ok(&["connect", "r0:bravo"]);
    cluster.wait("the connection is given up", |c| {
        c.nodes
            .iter()
            .any(|n| list(&n.status()["connections"])[0]["connection-state"] == "StandAlone")
    });
    let logs = alpha.log() + &bravo.log();
    assert!(logs.contains("option csums-alg differs between the nodes"), "the log says why");
    alpha.ok(&["adjust", "r0"]);
    bravo.ok(&["adjust", "r0"]);
    cluster.wait_connected();
}
