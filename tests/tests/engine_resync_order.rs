//! `resync-after` between two resources, which two threads of each engine have.

use std::fs::File;
use std::time::Duration;

use crate::engine_support::{Cluster, DISK, Node, Setup, list};
use serde_json::Value;

/// Beside `r0`, whose volume has minor 0.
const OTHER: &str = "resource r1 {
  on alpha { node-id 0; address NET.1:7001; volume 0 { device minor 1; disk DIR/alpha-r1.img; meta-disk internal; } }
  on bravo { node-id 1; address NET.2:7001; volume 0 { device minor 1; disk DIR/bravo-r1.img; meta-disk internal; } }
  connection-mesh { hosts alpha bravo; }
}
";

fn up() -> Cluster {
    let setup = Setup {
        nodes: vec!["alpha", "bravo"],
        resources: OTHER.to_owned(),
        sections: "disk { resync-after -1; }".to_owned(),
        ..Setup::default()
    };
    let cluster = Cluster::up(&setup);
    let folder = cluster.disk(0, 0).parent().unwrap().to_owned();
    for node in &cluster.nodes {
        let disk = folder.join(format!("{}-r1.img", node.name));
        File::create(disk).unwrap().set_len(DISK).unwrap();
        node.ok(&["create-md", "r1"]);
        node.ok(&["up", "r1"]);
    }
    cluster
        .wait("r1 is connected", |c| c.nodes.iter().all(|node| repl(node, "r1") == "Established"));
    cluster.nodes[0].ok(&["new-current-uuid", "--clear-bitmap", "r1/0"]);
    cluster.wait("r1 is UpToDate", |c| c.nodes.iter().all(|node| disk(node, "r1") == "UpToDate"));
    cluster
}

fn resource(node: &Node, name: &str) -> Value {
    let all: Value = serde_json::from_str(&node.ok(&["status", "--json"])).unwrap();
    list(&all).iter().find(|r| r["name"] == name).cloned().unwrap_or(Value::Null)
}

fn disk(node: &Node, name: &str) -> String {
    resource(node, name)["devices"][0]["disk-state"].as_str().unwrap_or_default().to_owned()
}

fn towards_peer(node: &Node, name: &str, field: &str) -> String {
    let device = &resource(node, name)["connections"][0]["peer_devices"][0];
    device[field].as_str().unwrap_or_default().to_owned()
}

fn repl(node: &Node, name: &str) -> String {
    towards_peer(node, name, "replication-state")
}

/// Both resources are to be resynced to bravo, and `r0` rests because of `r1`.
fn expect_rest(cluster: &Cluster) {
    let bravo = &cluster.nodes[1];
    let rest = |name: &str, why: &str| {
        repl(bravo, name) == "PausedSyncT" && towards_peer(bravo, name, "resync-suspended") == why
    };
    cluster.wait("both rest", |_| rest("r0", "dependency") && rest("r1", "peer"));
    std::thread::sleep(Duration::from_millis(200));
    assert!(rest("r0", "dependency") && rest("r1", "peer"), "they go on resting");
}

#[test]
fn a_resync_rests_while_another_resource_is_resynced_and_over_a_restart() {
    let mut cluster = up();
    cluster.reconfigure(|config| config.replace("resync-after -1", "resync-after r1/0"));
    // Only the target knows of an order.
    cluster.nodes[1].ok(&["adjust", "r0"]);
    cluster.nodes[0].ok(&["pause-sync", "r1"]);
    for name in ["r1", "r0"] {
        cluster.nodes[1].ok(&["invalidate", name]);
    }
    expect_rest(&cluster);
    cluster.nodes[1].upgrade();
    expect_rest(&cluster);
    cluster.nodes[1].kill();
    cluster.nodes[1].start();
    cluster.wait_connected();
    expect_rest(&cluster);
    cluster.nodes[0].ok(&["resume-sync", "r1"]);
    cluster.wait("both are resynced", |c| {
        ["r0", "r1"].iter().all(|name| disk(&c.nodes[1], name) == "UpToDate")
    });
    cluster.assert_equal(0, &[0, 1]);
}

#[test]
fn a_cycle_and_a_missing_volume_are_refused_and_a_volume_that_goes_frees_those_that_wait() {
    let cluster = up();
    let [alpha, bravo] = &cluster.nodes[..] else { panic!("two nodes") };
    cluster.reconfigure(|config| config.replace("resync-after -1", "resync-after r1/0"));
    bravo.ok(&["adjust", "r0"]);
    cluster.reconfigure(|config| {
        config.replace("resource r1 {", "resource r1 { disk { resync-after r0/0; }")
    });
    let (_, error) = bravo.fails(&["adjust", "r1"]);
    assert!(
        error.contains("(133)") && error.contains("minor 1 can not be resynced after minor 0"),
        "{error}"
    );
    // Nothing has changed: r0 rests because of r1, and not the other way round.
    alpha.ok(&["pause-sync", "r1"]);
    for name in ["r1", "r0"] {
        bravo.ok(&["invalidate", name]);
    }
    expect_rest(&cluster);
    bravo.ok(&["down", "r1"]);
    cluster.wait("r0 is resynced", |_| disk(bravo, "r0") == "UpToDate");
    cluster.wait_logged(1, "volume 0 is resynced after none: minor 1 is gone");
    let (_, error) = bravo.fails(&["adjust", "r0"]);
    assert!(
        error.contains("(132)") && error.contains("minor 1, which is not configured"),
        "{error}"
    );
    cluster.assert_equal(0, &[0, 1]);
}
