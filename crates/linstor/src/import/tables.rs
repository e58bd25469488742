//! The tables of LINSTOR's database, as its export has them: those rows and columns that are read here.
//!
//! An export names its tables and, in each row, its columns in lower case; columns without a value are left
//! out. Names stand there twice, as they are compared and as they were spelled. Rows of snapshots are in the
//! tables of what they are snapshots of, with the name of the snapshot.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// An export.
#[derive(Deserialize)]
pub struct Export {
    /// The release that has written it.
    pub linstor_version: String,
    tables: Vec<Table>,
}

#[derive(Deserialize)]
struct Table {
    name: String,
    #[serde(default)]
    data: Vec<Value>,
}

/// Tables that say who may do what inside LINSTOR, and what its statistics are: nothing of that has a
/// counterpart, and nothing of it was made by an operator.
const ITS_OWN: [&str; 4] = ["SEC_", "SPACE_HISTORY", "SATELLITES_CAPACITY", "TRACKING_DATE"];

impl Export {
    /// The rows of a table; none if it is not there.
    ///
    /// # Errors
    /// If a row lacks a column, or a value is of another kind than it should be.
    pub fn rows<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<T>, String> {
        let rows = self.tables.iter().filter(|table| table.name == name).flat_map(|t| &t.data);
        let read = |row: &Value| {
            serde_json::from_value(row.clone())
                .map_err(|error| format!("a row of its table {name} is not understood: {error}"))
        };
        rows.map(read).collect()
    }

    /// Tables with rows that are none of `known`.
    pub fn others(&self, known: &[&str]) -> BTreeSet<&str> {
        let other = |name: &&str| {
            !known.contains(name) && !ITS_OWN.iter().any(|prefix| name.starts_with(prefix))
        };
        let filled = self.tables.iter().filter(|table| !table.data.is_empty());
        filled.map(|table| table.name.as_str()).filter(other).collect()
    }
}

/// `NODES`.
#[derive(Deserialize)]
pub struct Node {
    pub uuid: String,
    pub node_name: String,
    pub node_dsp_name: String,
    pub node_flags: u64,
    pub node_type: u64,
}

/// `NODE_NET_INTERFACES`.
#[derive(Deserialize)]
pub struct NetInterface {
    pub uuid: String,
    pub node_name: String,
    pub node_net_dsp_name: String,
    pub inet_address: String,
    pub stlt_conn_port: Option<u16>,
    pub stlt_conn_encr_type: Option<String>,
}

/// `STOR_POOL_DEFINITIONS`.
#[derive(Deserialize)]
pub struct PoolDefinition {
    pub uuid: String,
    pub pool_name: String,
    pub pool_dsp_name: String,
}

/// `NODE_STOR_POOL`.
#[derive(Deserialize)]
pub struct Pool {
    pub uuid: String,
    pub node_name: String,
    pub pool_name: String,
    pub driver_name: String,
    pub free_space_mgr_dsp_name: String,
    pub external_locking: bool,
}

/// `RESOURCE_GROUPS`. Lists are JSON.
#[derive(Deserialize)]
pub struct Group {
    pub uuid: String,
    pub resource_group_name: String,
    pub resource_group_dsp_name: String,
    pub description: Option<String>,
    pub layer_stack: Option<String>,
    pub replica_count: Option<u32>,
    pub node_name_list: Option<String>,
    pub pool_name: Option<String>,
    pub pool_name_diskless: Option<String>,
    pub do_not_place_with_rsc_regex: Option<String>,
    pub do_not_place_with_rsc_list: Option<String>,
    pub replicas_on_same: Option<String>,
    pub replicas_on_different: Option<String>,
    pub x_replicas_on_different: Option<String>,
    pub allowed_provider_list: Option<String>,
    pub diskless_on_remaining: Option<bool>,
    pub peer_slots: Option<u8>,
}

/// `VOLUME_GROUPS`.
#[derive(Deserialize)]
pub struct VolumeGroup {
    pub uuid: String,
    pub resource_group_name: String,
    pub vlm_nr: u16,
    pub flags: u64,
}

/// `RESOURCE_DEFINITIONS`.
#[derive(Deserialize)]
pub struct Definition {
    pub uuid: String,
    pub resource_name: String,
    pub snapshot_name: String,
    pub resource_dsp_name: Option<String>,
    pub snapshot_dsp_name: String,
    pub resource_flags: u64,
    pub layer_stack: String,
    /// In base64.
    pub resource_external_name: Option<String>,
    pub resource_group_name: String,
}

/// `VOLUME_DEFINITIONS`. Sizes are KiB.
#[derive(Deserialize)]
pub struct VolumeDefinition {
    pub uuid: String,
    pub resource_name: String,
    pub snapshot_name: String,
    pub vlm_nr: u16,
    pub vlm_size: u64,
    pub vlm_flags: u64,
}

/// `RESOURCES`.
#[derive(Deserialize)]
pub struct Resource {
    pub uuid: String,
    pub node_name: String,
    pub resource_name: String,
    pub snapshot_name: String,
    pub resource_flags: u64,
    pub create_timestamp: Option<u64>,
}

/// `VOLUMES`.
#[derive(Deserialize)]
pub struct Volume {
    pub uuid: String,
    pub node_name: String,
    pub resource_name: String,
    pub snapshot_name: String,
    pub vlm_nr: u16,
}

/// `LAYER_RESOURCE_IDS`: a layer of a resource.
#[derive(Deserialize)]
pub struct LayerId {
    pub layer_resource_id: u64,
    pub node_name: String,
    pub resource_name: String,
    pub snapshot_name: String,
    pub layer_resource_kind: String,
    pub layer_resource_suffix: String,
}

/// `LAYER_DRBD_RESOURCES`.
#[derive(Deserialize)]
pub struct DrbdResource {
    pub layer_resource_id: u64,
    pub node_id: u8,
    /// A list, as JSON.
    pub tcp_port_list: Option<String>,
}

/// `LAYER_DRBD_RESOURCE_DEFINITIONS`.
#[derive(Deserialize)]
pub struct DrbdDefinition {
    pub resource_name: String,
    pub snapshot_name: String,
    pub peer_slots: u8,
    pub tcp_port: Option<u16>,
    pub transport_type: String,
    pub secret: Option<String>,
}

/// `LAYER_DRBD_VOLUME_DEFINITIONS`.
#[derive(Deserialize)]
pub struct DrbdVolumeDefinition {
    pub resource_name: String,
    pub snapshot_name: String,
    pub vlm_nr: u16,
    pub vlm_minor_nr: Option<u32>,
}

/// `LAYER_STORAGE_VOLUMES`.
#[derive(Deserialize)]
pub struct StorageVolume {
    pub layer_resource_id: u64,
    pub vlm_nr: u16,
    pub stor_pool_name: String,
}

/// `NODE_CONNECTIONS`.
#[derive(Deserialize)]
pub struct NodeConnection {
    pub node_name_src: String,
    pub node_name_dst: String,
}

/// `RESOURCE_CONNECTIONS`.
#[derive(Deserialize)]
pub struct ResourceConnection {
    pub node_name_src: String,
    pub node_name_dst: String,
    pub resource_name: String,
    pub snapshot_name: String,
    pub tcp_port_src: Option<u16>,
    pub tcp_port_dst: Option<u16>,
}

/// `KEY_VALUE_STORE`.
#[derive(Deserialize)]
pub struct Store {
    pub kvs_name: String,
    pub kvs_dsp_name: String,
}

/// `LINSTOR_REMOTES`, `S3_REMOTES`, `SCHEDULES`.
#[derive(Deserialize)]
pub struct Named {
    pub dsp_name: String,
}

/// `FILES`.
#[derive(Deserialize)]
pub struct File {
    pub uuid: String,
    pub path: String,
    /// In base64.
    pub content: String,
}

/// `PROPS_CONTAINERS`.
#[derive(Deserialize)]
struct Prop {
    props_instance: String,
    prop_key: String,
    prop_value: String,
}

/// All properties, by the object that has them: `/NODES/ALPHA`.
pub fn props(export: &Export) -> Result<BTreeMap<String, BTreeMap<String, String>>, String> {
    let mut all: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for prop in export.rows::<Prop>("PROPS_CONTAINERS")? {
        all.entry(prop.props_instance).or_default().insert(prop.prop_key, prop.prop_value);
    }
    Ok(all)
}
