//! Block devices where the kernel has no driver for them. With one: `cargo xtask vm blockdev`.

use std::path::Path;

use crate::engine_support::{Cluster, Setup};

#[test]
fn a_kernel_without_ublk_is_said_to_be_so_and_nothing_changes() {
    if Path::new("/dev/ublk-control").exists() {
        println!("skipped: this kernel has ublk");
        return;
    }
    let cluster = Cluster::up(&Setup { nodes: vec!["alpha", "bravo"], ..Setup::default() });
    let alpha = &cluster.nodes[0];
    let info: serde_json::Value = serde_json::from_str(&alpha.ok(&["info", "--json"])).unwrap();
    assert_eq!(info["faces"][0]["name"], "ublk");
    assert_eq!(info["faces"][0]["usable"], false);
    let standby = &info["standby"];
    assert_eq!(standby["usable"].as_bool().unwrap(), standby["problem"].is_null(), "{standby}");
    let (status, why) = alpha.fails(&["map", "r0/0", "--face", "ublk"]);
    assert_eq!(status, 20, "{why}");
    for part in ["r0/0", "/dev/ublk-control does not exist", "modprobe ublk_drv", "--face"] {
        assert!(why.contains(part), "{part} is missing: {why}");
    }
    assert_eq!(alpha.ok(&["maps"]), "");
    assert_eq!(alpha.status()["role"], "Secondary", "nobody has the volume open");
    let (status, why) = alpha.fails(&["unmap", "r0/0"]);
    assert_eq!(status, 10, "{why}");
    assert!(why.contains("r0/0 is not mapped"), "{why}");
    let (_, why) = alpha.fails(&["map", "r0/0", "--face", "fuse", "--queues", "2"]);
    assert!(why.contains("one queue"), "{why}");
    let (_, why) = alpha.fails(&["map", "r0/0", "--face", "fuse", "--depth", "129"]);
    assert!(why.contains("a depth of at most 128"), "{why}");
    let (_, why) = alpha.fails(&["map", "r0/0", "--depth", "0"]);
    assert!(why.contains("--depth"), "{why}");
}
