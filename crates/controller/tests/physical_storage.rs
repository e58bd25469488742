//! Physical storage over the REST API: lists of unused disks, pools that are made of them, and what is
//! left when one of the two halves of that fails.

use std::sync::Arc;
use std::time::Duration;

use crate::served::{Response, Server, disks};
use cluster::command::Command;
use cluster::name::{NodeName, PoolName};
use cluster::objects::Provider;
use linstor::controller::Controller;
use serde_json::{Value, json};

const N1: &str = "/v1/physical-storage/n1";

/// Three nodes with a pool, of which two have disks.
async fn server() -> Server {
    let server = Server::with_volume().await;
    server.agents.give_disks("n1", disks());
    server.agents.give_disks("n2", disks()[1..2].to_vec());
    server
}

async fn create(server: &Server, path: &str, body: Value) -> Response {
    server.call("POST", path, &body.to_string()).await
}

fn thin(devices: &[&str]) -> Value {
    json!({
        "provider_kind": "LVM_THIN", "device_paths": devices, "pool_name": "slow",
        "with_storage_pool": { "name": "disks", "props": { "PrefNic": "default" } },
    })
}

async fn devices(server: &Server, path: &str) -> Vec<String> {
    let list = server.call("GET", path, "").await.json();
    let names =
        list.as_array().unwrap().iter().map(|disk| disk["device"].as_str().unwrap().to_owned());
    names.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_are_told_in_groups_of_one_size_and_kind_and_by_node() {
    let server = server().await;
    let large = json!({ "device": "/dev/sdb", "model": "LARGE", "serial": "S2" });
    let answer = server.call("GET", "/v1/physical-storage", "").await;
    let all = json!([
        {
            "size": 1u64 << 40, "rotational": false,
            "nodes": { "n1": [{ "device": "/dev/nvme0n1", "model": "FAST", "serial": "S1" }] },
        },
        {
            "size": 4u64 << 40, "rotational": true,
            "nodes": {
                "n1": [large.clone(), { "device": "/dev/sdc", "model": "LARGE" }],
                "n2": [large],
            },
        },
    ]);
    assert_eq!((answer.status, answer.json()), (200, all.clone()));
    let part = server.call("GET", "/v1/physical-storage?limit=1&offset=1", "").await.json();
    assert_eq!(part, json!([all[1]]));
    let none = server.call("GET", "/v1/physical-storage?limit=0&offset=0", "").await.json();
    assert_eq!(none, all, "no limit");
    let one = server.call("GET", "/v1/physical-storage/N2", "").await.json();
    let expected = json!([{
        "device": "/dev/sdb", "model": "LARGE", "serial": "S2", "size": 4u64 << 40, "rotational": true,
    }]);
    assert_eq!(one, expected);
    assert_eq!(server.call("GET", "/v1/physical-storage/n3", "").await.json(), json!([]));
    let answer = server.call("GET", "/v1/physical-storage/never", "").await;
    assert_eq!((answer.status, answer.first()), (404, (300, true)));
    // A node that is away is left out; one that does not tell is not.
    server.agents.cut(&server.handle, "n2").await;
    let answer = server.call("GET", "/v1/physical-storage/n2", "").await;
    assert_eq!((answer.status, answer.first()), (500, (995, true)));
    let answer = server.call("GET", "/v1/physical-storage", "").await;
    assert_eq!((answer.status, answer.json()[1]["nodes"].get("n2")), (200, None));
    server.agents.fail("n1", Some("look"));
    let answer = server.call("GET", "/v1/physical-storage", "").await;
    assert_eq!((answer.status, answer.first()), (500, (990, true)));
    assert_eq!(answer.json()[0]["obj_refs"], json!({ "Node": "n1" }));
    assert_eq!(answer.json()[0]["cause"], "the disk is on fire");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_is_made_of_disks_and_is_a_storage_pool() {
    let server = server().await;
    let answer = create(&server, N1, thin(&["/dev/sdb", "/dev/sdc"])).await;
    assert_eq!(answer.status, 201, "{}", answer.json());
    let entries = answer.json();
    // created | physical device | 1, then created | storage pool | 1.
    assert_eq!(entries[0]["ret_code"], 0x100_0000 | 0x4c_0000 | 1);
    assert_eq!(entries[1]["ret_code"], 0x100_0000 | 0x14_0000 | 1);
    let refs = json!({ "Node": "n1", "StorPool": "disks", "StorPoolDfn": "disks" });
    assert_eq!(
        (&entries[0]["obj_refs"], &entries[1]["obj_refs"]),
        (&json!({ "Node": "n1" }), &refs)
    );
    assert_eq!(server.agents.made("n1"), ["linstor_slow/slow"]);
    let pool = server.call("GET", "/v1/nodes/n1/storage-pools/disks", "").await.json();
    assert_eq!(pool["props"]["StorDriver/StorPoolName"], "linstor_slow/slow");
    assert_eq!(
        (&pool["provider_kind"], &pool["props"]["PrefNic"]),
        (&json!("LVM_THIN"), &json!("default"))
    );
    assert_eq!(devices(&server, N1).await, ["/dev/nvme0n1"]);
    // Without a storage pool, and with that one's name.
    let body = json!({ "provider_kind": "ZFS", "device_paths": ["/dev/nvme0n1"], "pool_name": "tank",
        "raid_level": "JBOD", "vdo_enable": false, "vdo_slab_size_kib": 0, "sed": false,
        "pv_create_arguments": [], "with_storage_pool": null });
    let answer = create(&server, N1, body).await;
    assert_eq!((answer.status, answer.json().as_array().unwrap().len()), (201, 1));
    let body = json!({ "provider_kind": "lvm", "device_paths": ["/dev/sdb"],
        "with_storage_pool": { "name": "hdd" } });
    let answer = create(&server, "/v1/physical-storage/n2", body).await;
    assert_eq!(answer.status, 201, "{}", answer.json());
    assert_eq!(server.agents.made("n2"), ["hdd"]);
    let pool = server.call("GET", "/v1/nodes/n2/storage-pools/hdd", "").await.json();
    assert_eq!(pool["props"]["StorDriver/StorPoolName"], "hdd");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nothing_acts_on_or_is_refused_anyway_never_comes_to_a_disk() {
    let server = server().await;
    let with = |key: &str, value: Value| {
        let mut body = thin(&["/dev/sdb"]);
        body[key] = value;
        body
    };
    for (key, value, number) in [
        ("provider_kind", json!("SPDK"), 989),
        ("provider_kind", json!("FILE_THIN"), 989),
        ("raid_level", json!("RAID1"), 234),
        ("vdo_enable", json!(true), 234),
        ("vdo_slab_size_kib", json!(4096), 234),
        ("vdo_logical_size_kib", json!("4096"), 234),
        ("sed", json!(true), 234),
        ("pv_create_arguments", json!(["--force"]), 234),
        ("vg_create_arguments", json!(["-s", "1"]), 234),
        ("lv_create_arguments", json!(["-Z", "n"]), 234),
        ("zpool_create_arguments", json!(["-f"]), 234),
        ("device_paths", json!([]), 234),
        ("device_paths", json!(["sdb"]), 234),
        ("pool_name", json!("a/b"), 208),
        ("with_storage_pool", json!({ "name": "p" }), 208),
        ("with_storage_pool", json!({ "name": "pool" }), 510),
        ("with_storage_pool", json!({ "name": "disks", "props": { "Nonsense": "1" } }), 213),
        ("with_storage_pool", json!({ "name": "x1x", "props": { "StorDriver/LvmVg": "vg" } }), 213),
    ] {
        let answer = create(&server, N1, with(key, value.clone())).await;
        assert_eq!((answer.status, answer.first()), (500, (number, true)), "{key} {value}");
        assert!(!answer.json()[0]["correction"].as_str().unwrap().is_empty(), "{key} {value}");
    }
    let body = json!({ "provider_kind": "LVM", "device_paths": ["/dev/sdb"] });
    assert_eq!(create(&server, N1, body).await.first(), (234, true), "no name");
    assert_eq!(create(&server, N1, json!({ "provider_kind": "LVM" })).await.status, 400);
    let never = "/v1/physical-storage/never";
    assert_eq!(create(&server, never, thin(&["/dev/sdb"])).await.first(), (300, true));
    // It can not be foretold, and is not done instead.
    let dry = create(&server, &format!("{N1}?dry_run=true"), thin(&["/dev/sdb"])).await;
    assert!(dry.status >= 400 && dry.first().1, "{}", dry.json());
    // Nobody who may only look may make one: that is the table's, tried in tokens.rs.
    assert_eq!(server.agents.made("n1"), Vec::<String>::new());
    assert_eq!(devices(&server, N1).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_can_not_make_is_no_storage_pool() {
    let server = server().await;
    let answer = create(&server, N1, thin(&["/dev/sdx"])).await;
    assert_eq!((answer.status, answer.first()), (500, (990, true)));
    assert_eq!(answer.json()[0]["cause"], "/dev/sdx is not unused");
    server.agents.fail("n1", Some("make"));
    assert_eq!(create(&server, N1, thin(&["/dev/sdb"])).await.first(), (990, true));
    server.agents.cut(&server.handle, "n2").await;
    let answer = create(&server, "/v1/physical-storage/n2", thin(&["/dev/sdb"])).await;
    assert_eq!((answer.status, answer.first()), (500, (995, true)));
    for node in ["n1", "n2"] {
        let path = format!("/v1/nodes/{node}/storage-pools/disks");
        assert_eq!(server.call("GET", &path, "").await.status, 404);
    }
}

/// Another makes a storage pool of that name while the disks are at work.
async fn overtaken(fails: Option<&'static str>) -> (Server, Response) {
    let server = Arc::new(server().await);
    server.agents.fail("n1", fails);
    let (held, came) = (server.agents.hold().await, server.agents.came());
    let other = server.clone();
    let asked = tokio::spawn(async move { create(&other, N1, thin(&["/dev/sdb"])).await });
    while server.agents.came() == came {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (node, name) = (NodeName::new("n1").unwrap(), PoolName::new("disks").unwrap());
    let command = Command::CreatePool {
        node,
        name,
        provider: Provider::FileThin,
        props: [("StorDriver/FileDir".to_owned(), "/srv/other".to_owned())].into(),
        shared_space: None,
        external_locking: false,
    };
    server.handle.carry_out(command).await.unwrap();
    drop(held);
    let answer = asked.await.unwrap();
    (Arc::into_inner(server).unwrap(), answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_a_storage_pool_after_all_is_taken_back() {
    let (server, answer) = overtaken(None).await;
    assert_eq!((answer.status, answer.first()), (500, (510, true)), "{}", answer.json());
    let entries = answer.json();
    let last = entries.as_array().unwrap().last().unwrap();
    assert!(last["message"].as_str().unwrap().contains("removed again"), "{entries}");
    assert_eq!(server.agents.made("n1"), Vec::<String>::new());
    assert!(devices(&server, N1).await.contains(&"/dev/sdb".to_owned()));
    let pool = server.call("GET", "/v1/nodes/n1/storage-pools/disks", "").await.json();
    assert_eq!(pool["provider_kind"], "FILE_THIN", "the other's is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_where_it_can_not_be_taken_back_is_told() {
    let (server, answer) = overtaken(Some("unmake")).await;
    let entries = answer.json();
    let entries = entries.as_array().unwrap();
    let codes: Vec<i64> =
        entries.iter().map(|e| e["ret_code"].as_i64().unwrap() & 0x7fff).collect();
    assert_eq!((answer.status, &codes[..]), (500, &[510, 990][..]), "{entries:?}");
    let text = entries[1]["message"].as_str().unwrap();
    assert!(text.contains("could not remove the LVM_THIN pool linstor_slow/slow"), "{text}");
    assert_eq!(server.agents.made("n1"), ["linstor_slow/slow"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_is_lost_meanwhile_is_told_and_what_became_of_it_is_not_known() {
    let server = Arc::new(server().await);
    let (held, came) = (server.agents.hold().await, server.agents.came());
    let other = server.clone();
    let asked = tokio::spawn(async move { create(&other, N1, thin(&["/dev/sdb"])).await });
    while server.agents.came() == came {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.agents.cut(&server.handle, "n1").await;
    let answer = asked.await.unwrap();
    drop(held);
    assert_eq!((answer.status, answer.first()), (500, (995, true)), "{}", answer.json());
    let entry = &answer.json()[0];
    assert!(entry["cause"].as_str().unwrap().contains("link was lost"), "{entry}");
    assert!(entry["correction"].as_str().unwrap().contains("look on the node"), "{entry}");
}
