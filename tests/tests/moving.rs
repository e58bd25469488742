//! A cluster that LINSTOR has run goes on here: what LINSTOR has exported is imported, and agents that have never
//! heard of anything take the volumes that are there, with their data.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use cluster::change::Object;
use cluster::model::Model;
use cluster::objects::*;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::control_support::bare::{Bare, NODES};
use crate::control_support::{MIB, Node, rd};
use crate::engine_support::nbd::Client;
use crate::engine_support::{binary, pattern, text};

/// What matters of our own export.
#[derive(Deserialize)]
struct Exported {
    rows: Vec<Object>,
}

/// What LINSTOR would export of these objects: the tables and columns that real ones have
/// (`crates/linstor/testdata`).
fn as_linstor(model: &Model) -> Value {
    let upper = |name: &str| name.to_ascii_uppercase();
    let mut tables: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    let mut add = |table, row| tables.entry(table).or_default().push(row);
    let id = |uuid: Uuid| uuid.to_string();
    add(
        "PROPS_CONTAINERS",
        json!({ "props_instance": "/CTRL", "prop_key": "NetCom/some", "prop_value": "1" }),
    );
    for (key, value) in &model.controller().props {
        add(
            "PROPS_CONTAINERS",
            json!({ "props_instance": "/CTRL", "prop_key": key, "prop_value": value }),
        );
    }
    for node in model.nodes() {
        let name = upper(node.name.as_str());
        add(
            "NODES",
            json!({ "uuid": id(node.uuid), "node_name": name, "node_dsp_name": node.name.as_str(), "node_flags": 0, "node_type": 2 }),
        );
        for (interface, one) in &node.net_interfaces {
            add(
                "NODE_NET_INTERFACES",
                json!({ "uuid": id(one.uuid), "node_name": name, "node_net_name": upper(interface.as_str()), "node_net_dsp_name": interface.as_str(), "inet_address": one.address.to_string(), "stlt_conn_port": 3366, "stlt_conn_encr_type": "PLAIN" }),
            );
        }
    }
    for pool in model.pool_definitions() {
        add(
            "STOR_POOL_DEFINITIONS",
            json!({ "uuid": id(pool.uuid), "pool_name": upper(pool.name.as_str()), "pool_dsp_name": pool.name.as_str() }),
        );
    }
    for pool in model.pools() {
        let (node, name) = (upper(pool.node.as_str()), upper(pool.name.as_str()));
        let space = format!("{node};{name}");
        add(
            "NODE_STOR_POOL",
            json!({ "uuid": id(pool.uuid), "node_name": node, "pool_name": name, "driver_name": pool.provider.word(), "free_space_mgr_name": space, "free_space_mgr_dsp_name": space, "external_locking": false }),
        );
        for (key, value) in &pool.props {
            add(
                "PROPS_CONTAINERS",
                json!({ "props_instance": format!("/STOR_POOLS/{node}/{name}"), "prop_key": key, "prop_value": value }),
            );
        }
    }
    for group in model.groups() {
        add(
            "RESOURCE_GROUPS",
            json!({ "uuid": id(group.uuid), "resource_group_name": upper(group.name.as_str()), "resource_group_dsp_name": group.name.as_str(), "replica_count": group.filter.place_count, "node_name_list": "[]" }),
        );
    }
    let mut layer = 0;
    for definition in model.definitions() {
        let (spelled, name) = (definition.name.as_str(), upper(definition.name.as_str()));
        add(
            "RESOURCE_DEFINITIONS",
            json!({ "uuid": id(definition.uuid), "resource_name": name, "snapshot_name": "", "resource_dsp_name": spelled, "snapshot_dsp_name": "", "resource_flags": 0, "layer_stack": "[\"DRBD\",\"STORAGE\"]", "resource_group_name": upper(definition.group.as_str()) }),
        );
        add(
            "LAYER_DRBD_RESOURCE_DEFINITIONS",
            json!({ "resource_name": name, "resource_name_suffix": "", "snapshot_name": "", "peer_slots": definition.peer_slots, "al_stripes": 1, "al_stripe_size": 32, "transport_type": "IP", "secret": definition.secret }),
        );
        for (number, volume) in &definition.volumes {
            add(
                "VOLUME_DEFINITIONS",
                json!({ "uuid": id(volume.uuid), "resource_name": name, "snapshot_name": "", "vlm_nr": number.0, "vlm_size": volume.size.0 / 1024, "vlm_flags": 32 }),
            );
            add(
                "LAYER_DRBD_VOLUME_DEFINITIONS",
                json!({ "resource_name": name, "resource_name_suffix": "", "snapshot_name": "", "vlm_nr": number.0, "vlm_minor_nr": volume.minor.unwrap().0 }),
            );
        }
        for resource in model.resources_of(&definition.name) {
            let node = upper(resource.node.as_str());
            let flags = match (resource.is_diskful(), resource.is_tie_breaker()) {
                (true, _) => 0,
                (false, tie_breaker) => 0x104 | if tie_breaker { 0x80 } else { 0 },
            };
            add(
                "RESOURCES",
                json!({ "uuid": id(resource.uuid), "node_name": node, "resource_name": name, "snapshot_name": "", "resource_flags": flags }),
            );
            for kind in ["DRBD", "STORAGE"] {
                add(
                    "LAYER_RESOURCE_IDS",
                    json!({ "layer_resource_id": layer, "node_name": node, "resource_name": name, "snapshot_name": "", "layer_resource_kind": kind, "layer_resource_suffix": "", "layer_resource_suspended": false }),
                );
                if kind == "DRBD" {
                    add(
                        "LAYER_DRBD_RESOURCES",
                        json!({ "layer_resource_id": layer, "peer_slots": definition.peer_slots, "node_id": resource.node_id.unwrap().get(), "tcp_port_list": format!("[{}]", resource.port.unwrap()) }),
                    );
                }
                for (number, volume) in resource.volumes.iter().filter(|_| kind == "STORAGE") {
                    add(
                        "LAYER_STORAGE_VOLUMES",
                        json!({ "layer_resource_id": layer, "vlm_nr": number.0, "node_name": node, "stor_pool_name": upper(volume.pool.as_str()) }),
                    );
                    add(
                        "VOLUMES",
                        json!({ "uuid": id(volume.uuid), "node_name": node, "resource_name": name, "snapshot_name": "", "vlm_nr": number.0, "vlm_flags": 0 }),
                    );
                }
                layer += 1;
            }
        }
    }
    let tables: Vec<Value> =
        tables.into_iter().map(|(name, data)| json!({ "name": name, "data": data })).collect();
    json!({ "linstor_version": "1.33.3", "export_timestamp_ms": 0, "tables": tables })
}

/// The backing volumes of a node, each with what tells it from one that was made in its place.
fn volumes(bare: &Bare, node: &str) -> BTreeMap<String, u64> {
    let entries = fs::read_dir(bare.pool(node)).unwrap().map(Result::unwrap);
    let one = |entry: fs::DirEntry| {
        (entry.file_name().to_string_lossy().into_owned(), entry.metadata().unwrap().ino())
    };
    entries.map(one).collect()
}

#[test]
fn volumes_that_linstor_has_made_are_taken_with_their_data() {
    let mut bare = Bare::new();
    let nodes = bare.join();
    let controller = &bare.controller;
    controller.wait("all nodes are online", || online(controller));
    for name in NODES {
        let folder = bare.pool(name).display().to_string();
        controller.ok(&format!("storage-pool create disks file {folder} --on {name}"));
    }
    controller.ok("resource-group create db --place 2 --pool disks");
    for volume in ["Vol1", "vol2"] {
        controller.ok(&format!("resource-group spawn db {volume} 32M"));
    }
    let fine = |c: &crate::control_support::bare::Controller, volume: &str| {
        c.ok(&format!("volume why {volume}")).contains("Everything is as it should be")
    };
    controller.wait("nothing is amiss", || fine(controller, "vol1") && fine(controller, "vol2"));
    let (on, of_second) = (controller.replicas("Vol1"), controller.replicas("vol2"));
    let written = pattern(7, 8 * MIB as usize);
    let writer = nodes.iter().find(|node| node.name == on[0]).unwrap();
    let socket = writer.export("Vol1");
    let mut client = Client::open(&socket, "Vol1/0").unwrap();
    for (at, part) in (0..).step_by(MIB as usize).zip(written.chunks(MIB as usize)) {
        client.write(at, part).unwrap();
    }
    client.flush().unwrap();
    client.close();

    // LINSTOR and the kernel's DRBD go: what is left are the volumes, and what LINSTOR has exported.
    let file = controller.ok("controller export all");
    let Exported { rows } = serde_json::from_slice(&fs::read(file.trim()).unwrap()).unwrap();
    let model = Model::from_rows(rows);
    let export = bare.directory.path().join("linstor.json");
    fs::write(&export, as_linstor(&model).to_string()).unwrap();
    drop(nodes);
    let before: Vec<_> = NODES.iter().map(|node| volumes(&bare, node)).collect();
    let hidden = bare.pool(&of_second[0]).join("vol2_00000.img");
    let aside = bare.directory.path().join("aside");
    fs::rename(&hidden, &aside).unwrap();
    for name in NODES {
        fs::remove_dir_all(bare.directory.path().join(name)).unwrap();
    }
    bare.controller.replace_after(binary(), |data| {
        fs::remove_dir_all(data).unwrap();
        let mut import = Command::new(binary());
        import.args(["controller", "import", "--data-dir"]).arg(data).arg(&export);
        let output = import.output().unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{out}{err}");
        assert!(out.contains("they are of LINSTOR 1.33.3") && !out.contains("left out"), "{out}");
    });
    let nodes = again(&bare, &model);
    let controller = &bare.controller;
    controller.wait("all nodes are online", || online(controller));
    controller.wait("Vol1 is as it was", || fine(controller, "Vol1"));
    assert_eq!(controller.replicas("Vol1"), on);
    // What is not there is not made.
    let why = || controller.ok("volume why vol2");
    controller.wait("it is missed", || why().contains("is not taken as it is"));
    assert!(!hidden.exists(), "{}", why());
    fs::rename(&aside, &hidden).unwrap();
    controller.wait("vol2 is as it was", || fine(controller, "vol2"));
    let after: Vec<_> = NODES.iter().map(|node| volumes(&bare, node)).collect();
    assert_eq!(after, before, "nothing was made anew");
    let minor = model.definition(&rd("vol1")).unwrap().volumes.values().next().unwrap().minor;
    let device = format!("/dev/drbd{}", minor.unwrap().0);
    assert_eq!(controller.json("volume info Vol1")[0]["device"], device);

    // Every replica has the data, and only what one missed would have been copied.
    for name in &on {
        let node = nodes.iter().find(|node| node.name == name).unwrap();
        let status: Value = serde_json::from_str(&node.ok(&["status", "Vol1", "--json"])).unwrap();
        for peer in status[0]["connections"].as_array().unwrap() {
            assert_eq!(peer["peer_devices"][0]["received"], 0, "{peer}");
        }
        let socket = node.export("Vol1");
        let mut client = Client::open(&socket, "Vol1/0").unwrap();
        for (at, part) in (0..).step_by(MIB as usize).zip(written.chunks(MIB as usize)) {
            assert!(client.read(at, part.len()).unwrap() == part, "{name} at {at}");
        }
        client.close();
        node.ok(&["unexport", "Vol1/0"]);
    }
    // They are volumes like others from now on.
    controller.ok("volume resize Vol1 48M");
    controller.ok("volume place Vol1 --more 1");
    controller.wait("the third replica has the data", || fine(controller, "Vol1"));
    for volume in ["Vol1", "vol2"] {
        controller.ok(&format!("volume delete {volume}"));
    }
    let none = || NODES.iter().all(|node| volumes(&bare, node).is_empty());
    controller.wait("nothing is left of them", none);
}

fn online(controller: &crate::control_support::bare::Controller) -> bool {
    let all = controller.json("node list");
    all.as_array().unwrap().iter().all(|node| node["state"] == "online")
}

/// The nodes with empty folders, each a member by a token of its own.
fn again(bare: &Bare, model: &Model) -> Vec<Node> {
    let mut nodes = Vec::new();
    for name in NODES {
        let interfaces = &model.node(&crate::control_support::node(name)).unwrap().net_interfaces;
        let IpAddr::V4(address) = interfaces.values().next().unwrap().address else {
            panic!("nodes of a test have addresses of version 4")
        };
        let mut node = Node::new(name, bare.directory.path().join(name), address);
        node.start_engine();
        let token = bare.controller.ok(&format!("node token {name} --address {}", bare.own));
        node.join(token.trim());
        node.start_agent();
        nodes.push(node);
    }
    nodes
}
