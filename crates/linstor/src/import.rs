//! What LINSTOR has in its database, as objects of this control plane: how a cluster comes here with the
//! volumes that it has.
//!
//! Read is the file that `linstor-database export-db`, or POST `/v1/controller/database/export`, writes, of
//! LINSTOR 1.30 and later. Names, sizes, minors, ports, node ids
//! and secrets stay as they are, so that replicas know each other; replicas are marked to be adopted, so that
//! agents take the volumes that LINSTOR has made and never make others in their place.
//!
//! What can not be honoured here is left out and told, never kept and ignored: nothing is imported then
//! unless whoever imports has said that it may be left out. What LINSTOR notes down for itself
//! (`BOOKKEEPING`) goes without a word.

mod definitions;
mod small;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::net::IpAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cluster::change::Object;
use cluster::layer::{self, Layer};
use cluster::model::Model;
use cluster::name::*;
use cluster::objects::*;
use cluster::props::{Owner, QUORUM_SET_BY, check_all};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use vocab::{Bytes, GenUuid, Minor, NodeId, VolumeNr};

use tables::Export;

/// What an export has become.
pub struct Imported {
    /// The release of LINSTOR that has written it.
    pub release: String,
    /// Everything that is taken over.
    pub rows: Vec<Object>,
    /// What is not.
    pub left_out: Vec<LeftOut>,
}

/// Something that has no place here.
#[derive(Debug)]
pub struct LeftOut {
    what: String,
    why: String,
}

impl Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

/// Properties that LINSTOR sets for itself, by the beginning of their keys.
const BOOKKEEPING: [&str; 24] = [
    "NetCom/",
    "netcom/",
    "defaultDebugSslConnector",
    "defaultPlainConSvc",
    "defaultSslConSvc",
    "encrypted/",
    "Encryption/",
    "Cluster/LocalID",
    "NodeUname",
    "StorDriver/internal/",
    "DiskfulBy",
    "DrbdCurrentGi",
    "Linstor/Drbd/",
    "Satellite/Migrations/",
    "SequenceNumber",
    "DrbdOptions/auto-quorum",
    "DrbdOptions/auto-resync-after-disable",
    // By the kinds of a volume's pools, and here by what is true of each.
    "DrbdOptions/Disk/discard-zeroes-if-aligned",
    "DrbdOptions/Disk/rs-discard-granularity",
    "cloned-from",
    "use-zfs-clone",
    // It is said of the schedules.
    "Schedule/",
    // They are looked at where the files are.
    "files/",
    "DrbdOptions/auto-verify-algo-allowed-list",
];
/// The digest for verifies that LINSTOR has chosen, and the option that it sets by it.
const VERIFY: (&str, &str) = ("DrbdOptions/auto-verify-alg", "DrbdOptions/Net/verify-alg");
/// The remote that LINSTOR makes of itself.
const OWN_REMOTE: &str = "local-remote-generated-by-linstor";

/// Bits of `NODE_FLAGS` that mean nothing here: the node does not count for the quorum of its own.
const NODE_IGNORED: u64 = 0x1_0000;
/// Bits of `RESOURCE_FLAGS` of a resource that stays as it is.
const DISKLESS: u64 = 1 << 2;
const TIE_BREAKER: u64 = 1 << 7;
const DRBD_DISKLESS: u64 = 1 << 8;
const AUTO_DISKFUL: u64 = 1 << 21;
/// Bits of `VLM_FLAGS` of a volume definition that stays as it is.
const ENCRYPTED: u64 = 1 << 1;
const GROSS_SIZE: u64 = 1 << 3;
const INITIALIZED: u64 = 1 << 5;

/// Everything is of the first generation.
const FIRST: Generation = Generation(1);

/// True of an export of LINSTOR's, and not of ours.
pub fn is_export(text: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Head {
        linstor_version: Option<IgnoredAny>,
    }
    serde_json::from_slice::<Head>(text).is_ok_and(|head| head.linstor_version.is_some())
}

/// Reads an export.
///
/// # Errors
/// If it is none that is read here, in words.
pub fn read(text: &[u8], random: &mut dyn FnMut(&mut [u8])) -> Result<Imported, String> {
    let export: Export = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let props = tables::props(&export)?;
    if !props.contains_key("/CTRL") {
        return Err(format!(
            "it is of LINSTOR {}, whose tables are others; upgrade LINSTOR to 1.30 or later first",
            export.linstor_version
        ));
    }
    let mut import = Import {
        export: &export,
        props,
        model: Model::default(),
        files: BTreeMap::new(),
        left_out: Vec::new(),
        random,
    };
    import.controller();
    import.nodes()?;
    import.pools()?;
    import.groups()?;
    import.definitions()?;
    import.connections()?;
    import.small()?;
    let Import { model, left_out, .. } = import;
    Ok(Imported { release: export.linstor_version, rows: model.rows().collect(), left_out })
}

struct Import<'a> {
    export: &'a Export,
    /// Those of objects that were not asked for yet.
    props: BTreeMap<String, BTreeMap<String, String>>,
    /// What has been taken over.
    model: Model,
    /// External files, and the resource definitions for which they are put on nodes.
    files: BTreeMap<String, BTreeSet<ResourceName>>,
    left_out: Vec<LeftOut>,
    random: &'a mut dyn FnMut(&mut [u8]),
}

/// An id as LINSTOR writes it; 0 if it is none, which nothing depends on.
fn uuid(text: &str) -> Uuid {
    Uuid(u128::from_str_radix(&text.replace('-', ""), 16).unwrap_or_default())
}

/// A list, or a map, that stands in a column as JSON. One that is not there, or empty, wants nothing.
fn listed<T: DeserializeOwned>(text: Option<&str>, what: &str) -> Result<Option<T>, String> {
    match text {
        None | Some("[]" | "{}" | "") => Ok(None),
        Some(text) => serde_json::from_str(text)
            .map(Some)
            .map_err(|error| format!("{what} is not understood: {error}")),
    }
}

impl Import<'_> {
    fn leave_out(&mut self, what: impl Display, why: impl Display) {
        self.left_out.push(LeftOut { what: what.to_string(), why: why.to_string() });
    }

    /// A name, or nothing if there can be none of the kind here.
    fn name<T>(&mut self, made: Result<T, cluster::refusal::Refusal>) -> Option<T> {
        made.map_err(|refusal| self.leave_out(refusal.message, refusal.cause)).ok()
    }

    /// The properties of an object, without what LINSTOR sets for itself.
    fn props(&mut self, instance: &str, owner: Owner, of: &str) -> Props {
        let mut kept = Props::new();
        for (key, value) in self.props.remove(instance).unwrap_or_default() {
            let own = BOOKKEEPING.iter().any(|prefix| key.starts_with(prefix));
            if own || value.is_empty() {
                continue;
            }
            let new = if key == VERIFY.0 { VERIFY.1.to_owned() } else { key.clone() };
            let one = Props::from([(new, value)]);
            match check_all(owner, &one) {
                // What was set on purpose is not replaced.
                Ok(()) if key == VERIFY.0 && kept.contains_key(VERIFY.1) => {}
                Ok(()) => kept.extend(one),
                // It was LINSTOR's choice, and there is none then.
                Err(_) if key == VERIFY.0 => {}
                Err(refusal) => self.leave_out(format!("property {key} of {of}"), refusal.cause),
            }
        }
        kept
    }

    fn generation(&mut self) -> GenUuid {
        let mut bytes = [0; 8];
        (self.random)(&mut bytes);
        // As for `Edit::data_generation`: no disk is at it.
        GenUuid((u64::from_be_bytes(bytes) | 8) & !1)
    }

    fn secret(&mut self) -> String {
        let mut bytes = [0; 15];
        (self.random)(&mut bytes);
        BASE64_STANDARD.encode(bytes)
    }

    /// What the controller has, and what it hands to every node.
    fn controller(&mut self) {
        let id = self.props["/CTRL"].get("Cluster/LocalID").cloned();
        let mut props = self.props("/STLT", Owner::Controller, "the controller");
        props.extend(self.props("/CTRL", Owner::Controller, "the controller"));
        props.extend(id.map(|id| ("Cluster/LocalID".to_owned(), id)));
        let (generation, props_generation) = (FIRST, FIRST);
        let controller = Controller { props, generation, props_generation, master_key: None };
        self.model.put(Object::Controller(controller));
    }

    fn nodes(&mut self) -> Result<(), String> {
        for row in self.export.rows::<tables::Node>("NODES")? {
            let Some(name) = self.name(NodeName::new(&row.node_dsp_name)) else { continue };
            let of = format!("node {name}");
            let kind = match row.node_type {
                1 => NodeKind::Controller,
                2 => NodeKind::Satellite,
                3 => NodeKind::Combined,
                4 => NodeKind::Auxiliary,
                other => {
                    self.leave_out(of, format!("it is of a kind ({other}) that is not known here"));
                    continue;
                }
            };
            if row.node_flags & !NODE_IGNORED != 0 {
                self.leave_out(
                    of,
                    "it is being deleted or emptied, or was evicted: restore it, or end that first",
                );
                continue;
            }
            let props = self.props(&format!("/NODES/{}", row.node_name), Owner::Node, &of);
            self.model.put(Object::Node(Node {
                name,
                uuid: uuid(&row.uuid),
                kind,
                props,
                flags: BTreeSet::new(),
                net_interfaces: BTreeMap::new(),
                evicted_at: None,
                evacuate_to: None,
                evacuate_not_to: Vec::new(),
                generation: FIRST,
            }));
        }
        for row in self.export.rows::<tables::NetInterface>("NODE_NET_INTERFACES")? {
            let Some(mut node) = self.node(&row.node_name) else { continue };
            let Some(name) = self.name(NetIfName::new(&row.node_net_dsp_name)) else { continue };
            let Ok(address) = row.inet_address.parse::<IpAddr>() else {
                let what = format!("interface {name} of node {}", node.name);
                self.leave_out(what, format!("{} is no address", row.inet_address));
                continue;
            };
            let kind = row.stlt_conn_encr_type.as_deref().and_then(Encryption::from_word);
            let agent = row.stlt_conn_port.zip(kind);
            let interface = NetInterface { uuid: uuid(&row.uuid), address, agent };
            node.net_interfaces.insert(name, interface);
            self.model.put(Object::Node(node));
        }
        Ok(())
    }

    fn node(&self, key: &str) -> Option<Node> {
        self.model.node(&NodeName::new(key).ok()?).cloned()
    }

    fn pools(&mut self) -> Result<(), String> {
        for row in self.export.rows::<tables::PoolDefinition>("STOR_POOL_DEFINITIONS")? {
            let Some(name) = self.name(PoolName::new(&row.pool_dsp_name)) else { continue };
            let of = format!("storage pool definition {name}");
            let instance = format!("/STOR_POOL_DFNS/{}", row.pool_name);
            let props = self.props(&instance, Owner::PoolDefinition, &of);
            let uuid = uuid(&row.uuid);
            self.model.put(Object::PoolDefinition(PoolDefinition { name, uuid, props }));
        }
        for row in self.export.rows::<tables::Pool>("NODE_STOR_POOL")? {
            let Some(node) = self.node(&row.node_name) else { continue };
            let found = PoolName::new(&row.pool_name).ok();
            let found = found.and_then(|name| self.model.pool_definition(&name));
            let Some(name) = found.map(|found| found.name.clone()) else { continue };
            let of = format!("storage pool {name} of node {}", node.name);
            let Some(provider) = Provider::from_word(&row.driver_name) else {
                self.leave_out(of, format!("there are no pools of kind {} here", row.driver_name));
                continue;
            };
            // What is no other pool's is named after node and pool.
            let shared = row.free_space_mgr_dsp_name;
            let shared_space = match shared.contains(';') {
                true => None,
                false => self.name(SharedSpaceName::new(&shared)),
            };
            let instance = format!("/STOR_POOLS/{}/{}", row.node_name, row.pool_name);
            let props = self.props(&instance, Owner::Pool, &of);
            self.model.put(Object::Pool(Pool {
                node: node.name,
                name,
                uuid: uuid(&row.uuid),
                provider,
                props,
                shared_space,
                external_locking: row.external_locking,
            }));
        }
        Ok(())
    }

    fn groups(&mut self) -> Result<(), String> {
        for row in self.export.rows::<tables::Group>("RESOURCE_GROUPS")? {
            let Some(name) = self.name(GroupName::new(&row.resource_group_dsp_name)) else {
                continue;
            };
            let of = format!("resource group {name}");
            let filter = match filter(&row, &of) {
                Ok(filter) => filter,
                Err(why) => {
                    self.leave_out(format!("what {of} asks of places"), why);
                    Filter::default()
                }
            };
            let instance = format!("/RSC_GRPS/{}", row.resource_group_name);
            let props = self.props(&instance, Owner::Group, &of);
            self.model.put(Object::Group(Group {
                name,
                uuid: uuid(&row.uuid),
                description: row.description.unwrap_or_default(),
                props,
                filter: Filter { place_count: row.replica_count.or(Some(2)), ..filter },
                peer_slots: row.peer_slots,
                volume_groups: BTreeMap::new(),
                generation: FIRST,
            }));
        }
        for row in self.export.rows::<tables::VolumeGroup>("VOLUME_GROUPS")? {
            let name = GroupName::new(&row.resource_group_name).ok();
            let Some(mut group) = name.and_then(|name| self.model.group(&name)).cloned() else {
                continue;
            };
            let of = format!("volume group {} of {}", row.vlm_nr, group.name);
            let instance = format!("/VLM_GRPS/{}/{}", row.resource_group_name, row.vlm_nr);
            let props = self.props(&instance, Owner::VolumeGroup, &of);
            let (uuid, gross_size) = (uuid(&row.uuid), row.flags & 1 != 0);
            let volume = VolumeGroup { uuid, props, gross_size };
            group.volume_groups.insert(VolumeNr(row.vlm_nr), volume);
            self.model.put(Object::Group(group));
        }
        Ok(())
    }
}

/// What a resource group asks of places.
fn filter(row: &tables::Group, of: &str) -> Result<Filter, String> {
    fn names<T>(
        list: Option<Vec<String>>,
        new: impl Fn(&str) -> Result<T, cluster::refusal::Refusal>,
    ) -> Result<Option<Vec<T>>, String> {
        let all = |list: Vec<String>| list.iter().map(|name| new(name)).collect();
        list.map(all).transpose().map_err(|refusal: cluster::refusal::Refusal| refusal.to_string())
    }
    let list = |column: &Option<String>| listed::<Vec<String>>(column.as_deref(), of);
    let providers = |list: Vec<String>| {
        let one = |word: &String| {
            Provider::from_word(word).ok_or(format!("there are no pools of kind {word} here"))
        };
        list.iter().map(one).collect::<Result<Vec<_>, _>>()
    };
    Ok(Filter {
        place_count: None,
        additional_place_count: None,
        nodes: names(list(&row.node_name_list)?, NodeName::new)?,
        pools: names(list(&row.pool_name)?, PoolName::new)?,
        diskless_pools: names(list(&row.pool_name_diskless)?, PoolName::new)?,
        not_with: names(list(&row.do_not_place_with_rsc_list)?, ResourceName::new)?,
        not_with_regex: row.do_not_place_with_rsc_regex.clone().filter(|regex| !regex.is_empty()),
        on_same: list(&row.replicas_on_same)?,
        on_different: list(&row.replicas_on_different)?,
        x_on_different: listed(row.x_replicas_on_different.as_deref(), of)?,
        layers: names(list(&row.layer_stack)?, layer::parse)?,
        providers: list(&row.allowed_provider_list)?.map(providers).transpose()?,
        diskless_on_remaining: row.diskless_on_remaining,
        diskless: None,
    })
}
