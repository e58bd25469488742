//! What an export of a real LINSTOR becomes.

use serde_json::Value;

use super::*;

const EXPORT: &str = include_str!("../../testdata/linstor-1.33.3-export.json");

fn imported(text: &str) -> Result<Imported, String> {
    let mut next = 0u8;
    let mut random = |bytes: &mut [u8]| {
        bytes.fill_with(|| {
            next = next.wrapping_add(37);
            next
        });
    };
    read(text.as_bytes(), &mut random)
}

fn real() -> (Model, Vec<String>) {
    let imported = imported(EXPORT).unwrap();
    assert_eq!(imported.release, "1.33.3");
    let left_out = imported.left_out.iter().map(LeftOut::to_string).collect();
    (Model::from_rows(imported.rows), left_out)
}

fn rd(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

/// The export after a change of its rows.
fn changed(change: impl Fn(&str, &mut Value)) -> String {
    let mut export: Value = serde_json::from_str(EXPORT).unwrap();
    for table in export["tables"].as_array_mut().unwrap() {
        let name = table["name"].as_str().unwrap().to_owned();
        table["data"].as_array_mut().unwrap().iter_mut().for_each(|row| change(&name, row));
    }
    export.to_string()
}

#[test]
fn replicas_know_each_other_and_are_to_be_adopted() {
    let (model, _) = real();
    let definition = model.definition(&rd("twovols")).unwrap();
    assert_eq!(definition.name.as_str(), "TwoVols");
    assert_eq!((definition.secret.as_str(), definition.peer_slots), ("S3cret-shared-key", 4));
    assert_eq!((definition.port, definition.next_node_id), (Some(7500), 4));
    assert_eq!(definition.props["Aux/app"], "db");
    assert_eq!(definition.props["DrbdOptions/Net/verify-alg"], "sha512", "LINSTOR has chosen it");
    let volumes: Vec<_> = definition.volumes.iter().collect();
    let [(zero, first), (seven, second)] = volumes[..] else { panic!("{volumes:?}") };
    assert_eq!((zero.0, first.size.0, first.minor), (0, 20480 * 1024, Some(Minor(1500))));
    assert_eq!((seven.0, second.size.0, second.minor), (7, 10241 * 1024, Some(Minor(1012))));
    let gross = |v: &VolumeDefinition| v.flags.contains(&VolumeDefinitionFlag::GrossSize);
    assert_eq!((gross(first), gross(second)), (false, true));
    for (on, id, port) in [("n1", 3, 7500), ("n2", 0, 7600)] {
        let resource = model.resource(&rd("TwoVols"), &node(on)).unwrap();
        assert_eq!((resource.node_id, resource.port), (NodeId::new(id), Some(port)));
        assert_eq!(resource.props["StorPoolName"], "LvmPool");
        for volume in resource.volumes.values() {
            assert!(volume.adopt && volume.pool.as_str() == "LvmPool", "{volume:?}");
        }
    }
    // Nothing has begun that any replica could begin anew.
    let begun = VolumeDefinitionFlag::DrbdInitialized;
    for definition in model.definitions() {
        for volume in definition.volumes.values() {
            assert_eq!(volume.initial_on, None);
            let deployed = model.resources_of(&definition.name).next().is_some();
            assert!(volume.flags.contains(&begun) || !deployed, "{}", definition.name);
            assert_eq!(volume.minor.is_some(), definition.layers.contains(&Layer::Drbd));
        }
    }
    let connection = model.resource_connection(&rd("TwoVols"), &node("n2"), &node("n1")).unwrap();
    assert_eq!(connection["DrbdOptions/Net/ping-timeout"], "7");
}

#[test]
fn diskless_ones_tie_breakers_and_users_have_nothing_to_adopt() {
    let (model, _) = real();
    for (name, on, tie_breaker) in [("res-one", "n3", false), ("tie", "n3", true)] {
        let resource = model.resource(&rd(name), &node(on)).unwrap();
        assert!(!resource.is_diskful() && resource.is_tie_breaker() == tie_breaker);
        assert!(resource.flags.contains(&ResourceFlag::DrbdDiskless));
        assert!(resource.volumes.values().all(|volume| !volume.adopt));
        assert!(!resource.is_replica());
    }
    let volumes = &model.resource(&rd("tie"), &node("n3")).unwrap().volumes;
    assert_eq!(volumes[&VolumeNr(0)].pool.as_str(), "nodisk", "a diskless pool of its own");
    // Who has set the quorum is known, and where nobody has it follows from the replicas.
    let set_by = |name: &str| model.definition(&rd(name)).unwrap().props.get(QUORUM_SET_BY);
    assert_eq!(set_by("res-one").map(String::as_str), Some("user"));
    assert_eq!(set_by("tie"), None);
    // Storage alone has neither minor nor node id.
    let plain = model.resource(&rd("plain"), &node("n1")).unwrap();
    assert_eq!((plain.node_id, plain.port, plain.volumes.len()), (None, None, 2));
    assert!(plain.volumes.values().all(|volume| volume.adopt));
}

#[test]
fn nodes_pools_groups_and_the_rest_are_as_they_were() {
    let (model, _) = real();
    assert_eq!(model.nodes().count(), 6);
    let combined = model.node(&node("combi-4")).unwrap();
    assert_eq!((combined.name.as_str(), combined.kind), ("Combi-4", NodeKind::Combined));
    let first = model.node(&node("n1")).unwrap();
    let addresses: Vec<String> = first
        .net_interfaces
        .iter()
        .map(|(name, interface)| format!("{name} {} {:?}", interface.address, interface.agent))
        .collect();
    assert!(addresses.contains(&"ssl6 fd00::11 Some((3367, Ssl))".to_owned()), "{addresses:?}");
    assert!(addresses.contains(&"Data10G 10.77.0.1 None".to_owned()), "{addresses:?}");
    assert_eq!(model.node(&node("n2")).unwrap().props["PrefNic"], "Data10G");
    let pool = |on: &str, name: &str| model.pool(&node(on), &PoolName::new(name).unwrap()).unwrap();
    let thin = pool("n1", "thinpool");
    assert_eq!((thin.provider, thin.shared_space.is_none()), (Provider::LvmThin, true));
    assert_eq!(thin.props["StorDriver/StorPoolName"], "vg_thin/thinlv");
    assert!(!thin.props.keys().any(|key| key.contains("internal")), "{:?}", thin.props);
    assert_eq!(thin.props["MaxOversubscriptionRatio"], "20");
    assert!(pool("n1", "sharedlvm").external_locking);
    let group = model.group(&GroupName::new("rg_full").unwrap()).unwrap();
    assert_eq!(group.name.as_str(), "RG_Full");
    let filter = &group.filter;
    assert_eq!((filter.place_count, filter.diskless_on_remaining), (Some(2), Some(true)));
    assert_eq!(filter.nodes.as_ref().map(Vec::len), Some(3));
    assert_eq!(filter.not_with_regex.as_deref(), Some("^db_.*"));
    assert_eq!(filter.providers, Some(vec![Provider::Lvm, Provider::LvmThin]));
    assert_eq!(filter.x_on_different.as_ref().unwrap()["Aux/rack"], 1);
    assert_eq!((group.peer_slots, group.volume_groups.len()), (Some(5), 2));
    assert!(group.volume_groups[&VolumeNr(1)].gross_size);
    let default = model.group(&GroupName::default_group()).unwrap();
    assert_eq!(default.filter, Filter { place_count: Some(2), ..Filter::default() });
    let props = &model.controller().props;
    assert_eq!(props["Aux/site"], "here");
    assert_eq!(props["DrbdOptions/Resource/on-no-quorum"], "io-error");
    assert_eq!(props["Cluster/LocalID"], "aba035f0-2a67-498b-a2c7-a4c765522dbb");
    assert!(!props.keys().any(|key| key.starts_with("encrypted/")), "{props:?}");
    assert!(model.by_external_name("My Ext Näme/with:odd chars!").is_some());
    let store = model.store(&StoreName::new("mykvs").unwrap()).unwrap();
    assert_eq!(store["ns/sub/key2"], "{\"json\": true}");
    let file = model.files().next().unwrap();
    assert_eq!(file.content.len(), 24);
    assert!(file.resources.contains(&rd("res-one")), "{:?}", file.resources);
    let nodes = model.node_connection(&node("n1"), &node("n3")).unwrap();
    assert_eq!(nodes["DrbdOptions/Net/ko-count"], "9");
    let paths = model.resource_connection(&rd("res-one"), &node("n1"), &node("n2")).unwrap();
    assert_eq!(paths["Paths/path1/n2"], "Data10G");
}

#[test]
fn what_can_not_be_here_is_told() {
    let (model, left_out) = real();
    for told in [
        "resource definition extmeta and its resources: its metadata are in other volumes",
        "resource definition crypt and its resources: its volumes are encrypted",
        "resource definition wcache and its resources: the layer `WRITECACHE` is not supported",
        "resource definition delrd and its resources: it is being deleted",
        "resource thickdrbd on node n1: it is being changed, is inactive",
        "resource goner on node n3: it is being changed",
        "snapshot Snap-A of tie: it stays in the storage pools",
        "remote MyS3: its keys are encrypted by LINSTOR",
        "remote otherCluster: ",
        "schedule Nightly: ",
    ] {
        let found = left_out.iter().filter(|line| line.starts_with(told)).count();
        assert_eq!(found, 1, "{told}\n{}", left_out.join("\n"));
    }
    assert!(!left_out.iter().any(|line| line.contains("local-remote")), "LINSTOR has made it");
    for gone in ["extmeta", "crypt", "wcache", "delrd"] {
        assert!(model.definition(&rd(gone)).is_none());
        assert_eq!(model.resources_of(&rd(gone)).count(), 0);
    }
    // Secrets are not told.
    assert!(!left_out.iter().any(|line| line.contains("phfkneOS")));
    let properties: Vec<_> = left_out.iter().filter(|l| l.starts_with("propert")).collect();
    assert!(properties.is_empty(), "{properties:#?}");
}

#[test]
fn whatever_else_is_wrong_is_told_or_refused() {
    // Of another release, or no export at all.
    let old = changed(|table, row| {
        if table == "PROPS_CONTAINERS" && row["props_instance"] == "/CTRL" {
            row["props_instance"] = "/CTRLCFG".into();
        }
    });
    assert!(imported(&old).err().unwrap().contains("upgrade LINSTOR to 1.30"));
    let torn = changed(|table, row| {
        if table == "VOLUMES" {
            row["vlm_nr"] = "none".into();
        }
    });
    assert!(imported(&torn).err().unwrap().contains("VOLUMES is not understood"));
    // Before LINSTOR 1.32 ports were those of definitions.
    let older = changed(|table, row| {
        if table == "LAYER_DRBD_RESOURCES" {
            row.as_object_mut().unwrap().remove("tcp_port_list");
        }
    });
    let older = Model::from_rows(imported(&older).unwrap().rows);
    assert_eq!(older.resource(&rd("TwoVols"), &node("n2")).unwrap().port, Some(7500));
    assert!(!is_export(b"{}") && is_export(EXPORT.as_bytes()));
    // What there is no place for is left out with all that stands on it.
    let odd = changed(|table, row| match table {
        "NODES" if row["node_name"] == "N2" => row["node_flags"] = 2.into(),
        "NODE_STOR_POOL" if row["node_name"] == "N3" && row["pool_name"] == "NODISK" => {
            row["driver_name"] = "SPDK".into();
        }
        "PROPS_CONTAINERS"
            if row["prop_key"] == "DrbdOptions/Disk/block-size"
                && row["props_instance"] == "/VLM_DFNS/TWOVOLS/7" =>
        {
            row["prop_value"] = "4096".into();
        }
        "NODE_STOR_POOL" if row["pool_name"] == "SHAREDLVM" => {
            row["free_space_mgr_dsp_name"] = "san-7".into();
        }
        "PROPS_CONTAINERS" if row["prop_key"] == "Aux/nc" => row["prop_key"] = "Odd/nc".into(),
        _ => {}
    });
    let imported = imported(&odd).unwrap();
    let told: Vec<String> = imported.left_out.iter().map(LeftOut::to_string).collect();
    let all = told.join("\n");
    for line in [
        "node n2: it is being deleted or emptied, or was evicted",
        "resource res-one on node N2: its node is left out",
        "storage pool nodisk of node n3: there are no pools of kind SPDK here",
        "resource tie on node n3: its storage pool NODISK is left out",
        "resource definition TwoVols and its resources: volume 7 has blocks of 4096 bytes",
    ] {
        assert!(all.contains(line), "{line}\n{all}");
    }
    let shared = Model::from_rows(imported.rows);
    let shared = shared.pool(&node("n1"), &PoolName::new("sharedlvm").unwrap()).cloned().unwrap();
    assert_eq!(shared.shared_space.unwrap().as_str(), "san-7");
    assert!(!all.contains("Odd/nc"), "it was of a connection of the node that is left out");
}
