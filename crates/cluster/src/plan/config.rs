//! The configuration of a resource on one node, as its agent is told.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use vocab::{Bytes, Minor, NodeId};

use super::Ask;
use crate::layer::Layer;
use crate::name::*;
use crate::objects::*;
use crate::props::chain::{Chain, Either};
use crate::props::{AUTO_QUORUM, chain, spaces};
use crate::row;
use crate::size;

/// A resource on one node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ResourceConfig {
    /// Layers from top to bottom.
    pub layers: Vec<Layer>,
    /// DRBD node id of this node.
    #[serde(with = "row::node_id")]
    pub node_id: Option<NodeId>,
    /// Options of the resource, by DRBD's names.
    pub options: BTreeMap<String, String>,
    /// The secret that peers share.
    pub secret: String,
    /// Its volumes by number.
    pub volumes: BTreeMap<u16, VolumeConfig>,
    /// Its connections by peer.
    pub connections: BTreeMap<NodeName, ConnectionConfig>,
    /// External files that have to be there: path and content.
    pub files: BTreeMap<FilePath, Vec<u8>>,
}

/// A volume.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct VolumeConfig {
    /// Minor number of its device.
    #[serde(with = "row::minor")]
    pub minor: Option<Minor>,
    /// Its pool; none if it is diskless here.
    pub pool: Option<PoolName>,
    /// Size that users see, in bytes.
    #[serde(with = "row::bytes")]
    pub size: Bytes,
    /// Options of its disk, by DRBD's names.
    pub options: BTreeMap<String, String>,
    /// The file system to make on it when it is first used, and limits: other properties that an
    /// agent acts on, by key.
    pub props: BTreeMap<String, String>,
}

/// A connection.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ConnectionConfig {
    /// DRBD node id of the peer.
    #[serde(with = "row::node_id")]
    pub node_id: Option<NodeId>,
    /// Address and port at both ends, ours first; one pair for each path.
    pub paths: Vec<((IpAddr, u16), (IpAddr, u16))>,
    /// Options of the connection, by DRBD's names.
    pub net: BTreeMap<String, String>,
    /// Options of its volumes, by DRBD's names.
    pub peer_device: BTreeMap<String, String>,
    /// The peer has no disk.
    pub diskless: bool,
}

/// Bytes that a resync to a thin pool takes for one when they are zero, unless a property says it.
const THIN_RESYNC: u64 = 64 * 1024;

/// The configuration of the resource on its node. Peers that are leaving for good are not in it.
pub(super) fn of(ask: &Ask<'_>, resource: &Resource) -> ResourceConfig {
    let (model, definition) = (ask.model, ask.definition);
    let chain = chain::resource(model, definition, resource);
    let diskless = !resource.is_diskful();
    let replicated = definition.layers.contains(&Layer::Drbd);
    let volumes = resource.volumes.iter().filter_map(|(number, volume)| {
        let wanted = definition.volumes.get(number)?;
        if wanted.flags.contains(&VolumeDefinitionFlag::Delete) {
            return None;
        }
        let inherited = chain::volume(model, definition, resource, *number);
        let mut props = inherited.below("FileSystem/");
        props = props.into_iter().map(|(key, v)| (format!("FileSystem/{key}"), v)).collect();
        let limits = inherited.below("sys/fs/");
        props.extend(limits.into_iter().map(|(key, v)| (format!("sys/fs/{key}"), v)));
        let mut options = inherited.options(&spaces::DISK);
        // Where it is encrypted there are no holes.
        let holes = !diskless && replicated && !definition.layers.contains(&Layer::Luks);
        let pool = model.pool(&resource.node, &volume.pool).filter(|_| holes);
        if pool.is_some_and(|pool| pool.provider.is_thin()) {
            // What is zero at the source takes no space at the target, of volumes that grow, too.
            let granularity = THIN_RESYNC.to_string();
            options.entry("rs-discard-granularity".to_owned()).or_insert(granularity);
        }
        let config = VolumeConfig {
            minor: wanted.minor,
            pool: (!diskless).then(|| volume.pool.clone()),
            size: size::usable(definition, wanted),
            options,
            props,
        };
        Some((number.0, config))
    });
    let files = model.files().filter(|file| file.resources.contains(&definition.name));
    let peers = ask.resources.values().filter(|peer| {
        replicated && peer.node != resource.node && !peer.flags.contains(&ResourceFlag::DrbdDelete)
    });
    ResourceConfig {
        layers: definition.layers.clone(),
        node_id: resource.node_id,
        options: if replicated { resource_options(&chain) } else { BTreeMap::new() },
        secret: definition.secret.clone(),
        volumes: volumes.collect(),
        connections: peers
            .map(|peer| (peer.node.clone(), connection(ask, resource, peer)))
            .collect(),
        files: files.map(|file| (file.path.clone(), file.content.clone())).collect(),
    }
}

/// Options of a resource, those among them that are said in LINSTOR's former way.
fn resource_options(chain: &Chain<'_>) -> BTreeMap<String, String> {
    const NO_QUORUM: &str = "on-no-quorum";
    let mut options = chain.options(&spaces::RESOURCE);
    let key = format!("{}{NO_QUORUM}", spaces::RESOURCE.prefix);
    if let Some(Either::Second(value)) = chain.either(&key, AUTO_QUORUM)
        && value != "disabled"
    {
        options.insert(NO_QUORUM.to_owned(), value.to_owned());
    }
    options
}

fn connection(ask: &Ask<'_>, own: &Resource, peer: &Resource) -> ConnectionConfig {
    let (model, definition) = (ask.model, ask.definition);
    let chain = chain::connection(model, &definition.name, definition, &own.node, &peer.node);
    let mut peer_device = chain.options(&spaces::PEER_DEVICE);
    if peer.flags.contains(&ResourceFlag::Client) || own.flags.contains(&ResourceFlag::Client) {
        peer_device.insert("peer-tiebreaker".to_owned(), "no".to_owned());
    }
    ConnectionConfig {
        node_id: peer.node_id,
        paths: paths(ask, own, peer, &chain),
        net: chain.options(&spaces::NET),
        peer_device,
        diskless: !peer.is_diskful(),
    }
}

/// The paths that properties name, or the preferred interfaces of both.
fn paths(
    ask: &Ask<'_>,
    own: &Resource,
    peer: &Resource,
    chain: &chain::Chain<'_>,
) -> Vec<((IpAddr, u16), (IpAddr, u16))> {
    let end = |resource: &Resource, interface: Option<&str>| {
        let node = ask.model.node(&resource.node)?;
        let named = interface.and_then(|name| NetIfName::new(name).ok());
        let named = named.and_then(|name| node.net_interfaces.get(&name));
        let default = NetIfName::new("default").ok();
        let default = default.and_then(|name| node.net_interfaces.get(&name));
        let found = named.or(default).or_else(|| node.net_interfaces.values().next())?;
        Some((found.address, resource.port?))
    };
    let prefixed = chain.below("Paths/");
    let names: BTreeSet<&str> =
        prefixed.keys().filter_map(|key| Some(key.split_once('/')?.0)).collect();
    let on = |path: &str, node: &NodeName| {
        let mine = |key: &&String| {
            let ends = key.split_once('/');
            ends.is_some_and(|(p, n)| p == path && n.eq_ignore_ascii_case(node.as_str()))
        };
        prefixed.keys().find(mine).map(|key| prefixed[key].as_str())
    };
    let named = names.iter().filter_map(|path| {
        let (ours, theirs) = (on(path, &own.node)?, on(path, &peer.node)?);
        Some((end(own, Some(ours))?, end(peer, Some(theirs))?))
    });
    let named: Vec<_> = named.collect();
    if !named.is_empty() {
        return named;
    }
    let preferred = |resource: &Resource| -> Option<String> {
        let pool = resource.volumes.values().next();
        let pool = pool.and_then(|volume| ask.model.pool(&resource.node, &volume.pool));
        let own = pool.and_then(|pool| pool.props.get("PrefNic").cloned());
        let inherited = chain::resource(ask.model, ask.definition, resource);
        own.or_else(|| inherited.get("PrefNic").map(str::to_owned))
    };
    let (ours, theirs) = (preferred(own), preferred(peer));
    let ends = end(own, ours.as_deref()).zip(end(peer, theirs.as_deref()));
    ends.into_iter().collect()
}
