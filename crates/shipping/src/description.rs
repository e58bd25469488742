//! What goes with the archives of a backup, is uploaded last, and makes it one: JSON with LINSTOR's fields
//! (control plane §8.4), and the version of ours that says how the archives are to be read.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 1;
/// Most bytes of a description: with a thousand volumes it has less.
pub const LIMIT: u64 = 16 << 20;

/// A backup. Fields that are not known are skipped.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    /// [`VERSION`]; the descriptions of others have no such field.
    pub ashlar_version: u32,
    /// The resource definition.
    pub rsc_name: String,
    /// The node whose snapshot it is.
    pub node_name: String,
    /// When it was begun, milliseconds since 1970.
    pub start_timestamp: u64,
    /// When it was done, milliseconds since 1970.
    pub finish_timestamp: u64,
    /// The object with the description of the backup that it builds on, if it is incremental.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub based_on: Option<String>,
    /// Layers and what they need.
    pub layer_data: LayerData,
    /// The resource definition.
    pub rsc_dfn: Definition,
    /// The resource of the node.
    pub rsc: Resource,
    /// The objects with the data, by volume.
    pub backups: BTreeMap<u16, Vec<Archived>>,
    /// The cluster's id.
    pub cluster_id: String,
    /// The unique id of the snapshot definition.
    pub snap_dfn_uuid: String,
    /// The snapshot's name.
    pub snap_name: String,
    /// How the volumes are opened, if they are encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luks_info: Option<LuksInfo>,
}

/// The keys of encrypted volumes, which whoever has the master passphrase can open.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LuksInfo {
    /// The cluster's master key, encrypted under the master passphrase of then (`crypt::seal`).
    pub master_key: String,
    /// The passphrase of each volume, encrypted under that key.
    pub passphrases: BTreeMap<u16, String>,
}

/// What layers need of a replica.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LayerData {
    /// From top to bottom.
    pub layers: Vec<String>,
    /// DRBD's node id, with which the metadata in the volumes are written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<u8>,
    /// Peers for which these metadata have bitmaps.
    pub peer_slots: u8,
}

/// A resource definition.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Definition {
    /// Its properties.
    pub props: BTreeMap<String, String>,
    /// Its volumes.
    pub vlm_dfns: BTreeMap<u16, VolumeDefinition>,
}

/// A volume definition.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeDefinition {
    /// Its size in KiB, as users see it.
    pub size: u64,
    /// The size includes DRBD's metadata.
    #[serde(default)]
    pub gross_size: bool,
    /// Its properties.
    #[serde(default)]
    pub props: BTreeMap<String, String>,
}

/// A resource.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// Its volumes.
    pub vlms: BTreeMap<u16, Volume>,
}

/// A volume of a resource.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Its pool.
    pub stor_pool: String,
    /// What managed that.
    pub provider_kind: String,
    /// Bytes of the backing volume.
    pub device_size: u64,
    /// Bytes that it took of the pool.
    pub allocated_size: u64,
}

/// An object with the data of a volume.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Archived {
    /// The object.
    pub name: String,
    /// The node that has uploaded it.
    pub node: String,
    /// When that was done, milliseconds since 1970.
    pub finished_timestamp: u64,
    /// Its bytes.
    #[serde(default)]
    pub size: u64,
}

/// Why a description is not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// It is of another program.
    Foreign,
    /// It is of another version.
    Version(u64),
    /// It is damaged, or not one.
    Damaged(String),
}

impl fmt::Display for NotTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotTaken::Foreign => write!(f, "it was not made by Ashlar"),
            NotTaken::Version(version) => {
                write!(f, "it is of version {version} of the format, and {VERSION} is understood")
            }
            NotTaken::Damaged(why) => write!(f, "it is damaged: {why}"),
        }
    }
}

impl std::error::Error for NotTaken {}

impl Description {
    /// Reads one.
    ///
    /// # Errors
    /// If it is another program's, of another version, or not one.
    pub fn from_json(text: &[u8]) -> Result<Description, NotTaken> {
        let damaged = |error: serde_json::Error| NotTaken::Damaged(error.to_string());
        let value: serde_json::Value = serde_json::from_slice(text).map_err(damaged)?;
        match value.get("ashlarVersion").map(serde_json::Value::as_u64) {
            None => return Err(NotTaken::Foreign),
            Some(Some(version)) if version == u64::from(VERSION) => {}
            Some(version) => return Err(NotTaken::Version(version.unwrap_or(0))),
        }
        let read: Description = serde_json::from_value(value).map_err(damaged)?;
        let volumes = read.rsc_dfn.vlm_dfns.keys();
        if !volumes.clone().eq(read.rsc.vlms.keys()) || !volumes.eq(read.backups.keys()) {
            return Err(NotTaken::Damaged("its parts are not about the same volumes".to_owned()));
        }
        if read.backups.values().any(Vec::is_empty) {
            return Err(NotTaken::Damaged("it names no object for a volume".to_owned()));
        }
        Ok(read)
    }

    /// As it is uploaded.
    ///
    /// # Errors
    /// Never: what it is made of can be written.
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec_pretty(self)
    }

    /// The object with the data of each volume.
    pub fn objects(&self) -> impl Iterator<Item = (u16, &Archived)> {
        self.backups.iter().flat_map(|(volume, objects)| objects.iter().map(|o| (*volume, o)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(id: &str, based_on: Option<&str>) -> Description {
        let id = crate::name::Id::parse(id).expect("the tests name backups");
        let archived = Archived {
            name: id.archive(0),
            node: "alpha".to_owned(),
            finished_timestamp: 2,
            size: 5,
        };
        Description {
            ashlar_version: VERSION,
            rsc_name: id.resource.clone(),
            node_name: "alpha".to_owned(),
            start_timestamp: 1,
            finish_timestamp: 3,
            based_on: based_on.map(str::to_owned),
            layer_data: LayerData {
                layers: vec!["DRBD".to_owned(), "STORAGE".to_owned()],
                node_id: Some(0),
                peer_slots: 7,
            },
            rsc_dfn: Definition {
                props: BTreeMap::new(),
                vlm_dfns: [(
                    0,
                    VolumeDefinition { size: 1024, gross_size: false, props: BTreeMap::new() },
                )]
                .into(),
            },
            rsc: Resource {
                vlms: [(
                    0,
                    Volume {
                        stor_pool: "thin".to_owned(),
                        provider_kind: "FILE_THIN".to_owned(),
                        device_size: 2 << 20,
                        allocated_size: 1 << 20,
                    },
                )]
                .into(),
            },
            backups: [(0, vec![archived])].into(),
            cluster_id: "c".to_owned(),
            snap_dfn_uuid: "u".to_owned(),
            snap_name: id.snapshot_name(),
            luks_info: None,
        }
    }

    #[test]
    fn a_description_comes_back_and_has_the_fields_that_others_know() {
        let one = sample("web_back_20261129_072545", Some("web_back_20261128_072545.meta"));
        let json = one.to_json().expect("it can be written");
        assert_eq!(Description::from_json(&json), Ok(one));
        let value: serde_json::Value = serde_json::from_slice(&json).expect("it is JSON");
        for field in ["rscName", "nodeName", "startTimestamp", "finishTimestamp", "basedOn"] {
            assert!(value.get(field).is_some(), "{field}");
        }
        for field in ["layerData", "rscDfn", "rsc", "backups", "clusterId", "snapDfnUuid"] {
            assert!(value.get(field).is_some(), "{field}");
        }
    }

    #[test]
    fn those_of_others_and_damaged_ones_are_told_apart() {
        let foreign = br#"{"rscName":"web","nodeName":"a","backups":{}}"#;
        assert_eq!(Description::from_json(foreign), Err(NotTaken::Foreign));
        let newer = Description::from_json(br#"{"ashlarVersion":2}"#);
        assert_eq!(newer, Err(NotTaken::Version(2)));
        for text in [&b"{\"ashlarVersion\":1}"[..], b"", b"[", b"\xff"] {
            assert!(matches!(Description::from_json(text), Err(NotTaken::Damaged(_))));
        }
        let mut strange = sample("web_back_20261129_072545", None);
        strange.backups.clear();
        let strange = Description::from_json(&strange.to_json().expect("it can be written"));
        assert!(matches!(strange, Err(NotTaken::Damaged(_))));
    }
}
