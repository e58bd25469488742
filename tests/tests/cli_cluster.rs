//! The operator's commands against a real controller with real nodes: from three bare nodes to a
//! volume in five commands, and what can be done with it until nothing is left.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::control_support::bare::{Bare, NODES};
use serde_json::Value;
use vocab::options::Secret;

fn shares_blocks(folder: &Path) -> bool {
    let file = folder.join("some");
    std::fs::write(&file, "some").unwrap();
    let mut copy = Command::new("cp");
    copy.arg("--reflink=always").arg(&file).arg(folder.join("copy"));
    copy.output().unwrap().status.success()
}

#[test]
fn five_commands_lead_from_bare_nodes_to_a_volume_and_others_to_nothing() {
    let bare = Bare::new();
    let controller = &bare.controller;
    let mut nodes = bare.join();
    let online = || {
        let all = controller.json("node list");
        all.as_array().unwrap().iter().all(|node| node["state"] == "online")
    };
    controller.wait("all nodes are online", online);
    for name in NODES {
        let folder = bare.pool(name).display().to_string();
        controller.ok(&format!("storage-pool create disks file {folder} --on {name}"));
    }
    let pools = controller.json("pool list");
    assert_eq!(pools.as_array().unwrap().len(), 3, "{pools}");
    controller.ok("resource-group create db --place 2 --pool disks");
    let out = controller.ok("resource-group spawn db vol1 32M");
    assert!(out.starts_with("volume vol1: 32 MiB, UpToDate on "), "{out}");
    let two = controller.replicas("vol1");
    assert_eq!(two.len(), 2, "{two:?}");
    let third = NODES.into_iter().find(|name| !two.iter().any(|node| node == name)).unwrap();

    // Looking. The tie-breaker may still be on its way to the others.
    let fine = || controller.ok("volume why vol1").contains("Everything is as it should be");
    controller.wait("nothing is amiss with vol1", fine);
    let info = controller.json("volume info vol1");
    assert_eq!(info.as_array().unwrap().len(), 3, "two replicas and a tie-breaker: {info}");
    assert!(controller.ok("node info n1").contains("address default"));
    let groups = controller.json("group list");
    let db = groups.as_array().unwrap().iter().find(|group| group["group"] == "db").unwrap();
    assert_eq!((&db["place"], &db["volumes"]), (&2.into(), &1.into()), "{groups}");
    assert!(controller.json("group capacity db")["largest_volume_kib"].as_u64().unwrap() > 0);

    // Refused, with the reason and the next step.
    let said = controller.fails("group spawn db vol1 32M", 10);
    assert!(said.contains("vol1") && said.contains("next:"), "{said}");
    let said = controller.fails("group spawn db vol2 32M --place 3 --among n1", 10);
    assert!(said.contains("can not be placed") && said.contains("n2"), "{said}");
    controller.fails("volume why nothing", 10);
    controller.fails("volume delete nothing", 10);
    controller.fails("group modify db", 10);
    controller.fails("property set group/db Nonsense=1", 10);
    let closed = TcpListener::bind((bare.own, 0)).unwrap().local_addr().unwrap();
    controller.fails(&format!("volume list --controllers {closed}"), 4);
    controller.fails("volume create vol2 32", 2);
    controller.fails("volume list --token-file /nonexistent/token", 3);

    // Replicas come, move and go.
    controller.ok("volume place vol1 --more 1");
    assert_eq!(controller.replicas("vol1").len(), 3);
    controller.ok(&format!("volume toggle-disk vol1 {third} --diskless"));
    assert_eq!(controller.replicas("vol1").len(), 2);
    controller.ok(&format!("volume migrate vol1 {} {third}", two[0]));
    let moved = controller.replicas("vol1");
    assert!(moved.iter().any(|n| n == third) && !moved.contains(&two[0]), "{moved:?}");
    let (stays, goes) = (&moved[0], &moved[1]);
    let plan = controller.ok(&format!("volume deactivate vol1 {goes} --dry-run"));
    assert!(plan.contains("take it down"), "{plan}");
    controller.ok(&format!("volume deactivate vol1 {goes}"));
    let said = controller.fails(&format!("volume deactivate vol1 {stays}"), 10);
    assert!(said.contains("UpToDate") && said.contains("next:"), "{said}");
    let said = controller.fails("volume resize vol1 48M", 10);
    assert!(said.contains(&format!("inactive on node {goes}")), "{said}");
    let list = controller.json("volume list vol1");
    assert_eq!(list[0]["state"], format!("UpToDate; inactive on {goes}"), "{list}");
    let why = controller.ok("volume why vol1");
    assert!(why.contains(&format!("volume activate vol1 {goes}")), "{why}");
    controller.ok(&format!("volume activate vol1 {goes}"));
    controller.wait("vol1 is whole again", || {
        controller.json("volume list vol1")[0]["state"] == "UpToDate"
    });
    controller.ok("volume resize vol1 48M");
    assert_eq!(controller.json("volume list vol1")[0]["size_kib"], 48 << 10);
    controller.fails("volume resize vol1 32M", 10);

    // Properties.
    controller.ok("property set volume/vol1 Aux/who=me DrbdOptions/Net/ping-int=7");
    let props = controller.json("property list volume/vol1");
    assert_eq!(props["Aux/who"], "me", "{props}");
    controller.ok("property unset volume/vol1 Aux/who");
    assert!(controller.json("property list volume/vol1").get("Aux/who").is_none());
    let own = format!("replica/vol1/{}/0", moved[0]);
    controller.ok(&format!("property set {own} Aux/who=me DrbdOptions/Disk/disk-timeout=600"));
    assert_eq!(controller.json(&format!("property list {own}"))["Aux/who"], "me");
    controller.fails(&format!("property set {own} StorPoolName=disks"), 10);
    controller.ok("property set controller DrbdOptions/Net/ping-int=9");
    assert_eq!(controller.json("property list controller")["DrbdOptions/Net/ping-int"], "9");

    // Nodes whose files do not share blocks can not follow, and say so.
    if !shares_blocks(bare.directory.path()) {
        let said = controller.fails("snapshot create vol1 snap", 10);
        assert!(said.contains("XFS or btrfs"), "{said}");
        assert_eq!(controller.json("snapshot list"), Value::Array(Vec::new()));
    }

    // Encrypted volumes.
    let said = controller.fails("volume create secret 16M --group db --encrypted", 10);
    assert!(said.contains("master passphrase") && said.contains("next:"), "{said}");
    assert!(controller.ok("encryption status").starts_with("unset"));
    assert_eq!(controller.typing("encryption create", "").0, Some(10));
    assert_eq!(controller.typing("encryption create", "mark the gate\n"), (Some(0), String::new()));
    controller.ok("volume create secret 16M --group db --encrypted");
    let (status, said) = controller.typing("encryption change", "something else\nhold the door\n");
    assert_eq!(status, Some(10), "{said}");
    assert!(!said.contains("something else") && !said.contains("hold the door"), "{said}");
    let (status, said) = controller.typing("encryption change", "mark the gate\nhold the door\n");
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(controller.json("encryption status")["status"], "unlocked");
    let (status, said) = controller.typing("volume passphrase secret", "a word of its own\n");
    assert_eq!(status, Some(0), "{said}");
    let (status, said) = controller.typing("volume passphrase vol1", "a word of its own\n");
    assert!(status == Some(10) && said.contains("DRBD,LUKS,STORAGE"), "{said}");
    for node in controller.replicas("secret") {
        let disk = File::open(bare.pool(&node).join("secret_00000.img")).unwrap();
        let mut read = |at, to: &mut [u8]| disk.read_exact_at(to, at).map_err(|e| e.to_string());
        let own = Secret::from("a word of its own");
        assert!(crypt::luks::open(&mut read, &own).is_ok(), "{node}");
    }
    controller.ok("volume delete secret");

    // A node is emptied, and taken back.
    controller.ok("volume create vol2 16M --group db");
    let from = controller.replicas("vol2")[0].clone();
    controller.ok(&format!("node drain {from}"));
    let empty = controller.json(&format!("node info {from}"));
    assert_eq!(empty["volumes"], Value::Array(Vec::new()), "{empty}");
    assert_eq!(empty["node"]["state"], "draining", "{empty}");
    controller.ok(&format!("node restore {from}"));

    // A node that is away is named, and what waits for it is not done in time.
    let index = NODES.iter().position(|name| *name == moved[0]).unwrap();
    let away = moved[0].clone();
    nodes[index].kill_agent();
    controller.wait("the node is offline", || {
        controller.json(&format!("node info {away}"))["node"]["state"] == "offline"
    });
    let concerned = controller.replicas("vol1").contains(&away);
    let why = controller.ok("volume why vol1");
    assert_eq!(why.contains(&format!("node {away}: it is offline")), concerned, "{why}");
    let said = controller.fails("group delete db", 10);
    assert!(said.contains("next:"), "{said}");
    nodes[index].start_agent();
    controller.wait("all nodes are online", online);

    // Everything goes.
    controller.ok("volume delete vol1 vol2");
    assert_eq!(controller.json("volume list"), Value::Array(Vec::new()));
    controller.ok("group delete db");
    controller.ok("storage-pool delete disks --on n1,n2,n3");
    for name in NODES {
        controller.ok(&format!("node delete {name}"));
        let left: Vec<_> = std::fs::read_dir(bare.pool(name)).unwrap().collect();
        assert!(left.is_empty(), "left on {name}: {left:?}");
    }
    assert_eq!(controller.json("node list"), Value::Array(Vec::new()));
    for node in &nodes {
        assert_eq!(node.ok(&["status", "--json"]).trim(), "[]", "{}", node.name);
    }
}
