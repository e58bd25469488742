//! A resource's configuration as the control plane says it, in the engine's words.
//!
//! Options are checked against the tables of `vocab`: what the engine does not act on is an error
//! here, with the option's name, before anything is changed.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;

use cluster::layer::Layer;
use cluster::name::{NodeName, ResourceName};
use cluster::plan::{ConnectionConfig, ResourceConfig, VolumeConfig};
use codec::config as engine;
use codec::config::{BackingConfig, MetaDisk, PathConfig, PeerConfig, PeerVolumeConfig};
use vocab::VolumeNr;
use vocab::options::{
    DeviceOptions, DiskOptions, NetOptions, Options, PeerDeviceOptions, ResourceOptions,
};

use crate::failed::Failed;
use crate::record::{Metadata, Record};

/// The digest by which peers prove that they know the shared secret, if no option names one.
const CRAM_HMAC_ALG: &str = "sha256";

/// The configuration of `record`'s resource on node `host`. Volumes without a backing volume are
/// diskless here.
///
/// # Errors
/// If something is asked for that the engine does not do.
pub fn of(
    host: &NodeName,
    record: &Record,
    config: &ResourceConfig,
) -> Result<engine::ResourceConfig, Failed> {
    let name = &record.name;
    let node_id = config.node_id.ok_or_else(|| lacks(name, "a node id"))?;
    let options: ResourceOptions = options(name, &config.options)?;
    let mut volumes = Vec::new();
    for (number, volume) in &config.volumes {
        volumes.push(self::volume(name, record, *number, volume)?);
    }
    let mut peers = Vec::new();
    for (peer, connection) in &config.connections {
        peers.push(self::peer(name, peer, connection, config)?);
    }
    peers.sort_by_key(|peer| peer.node_id);
    let (name, host) = (name.to_string(), host.to_string());
    let handlers = engine::Handlers::default();
    Ok(engine::ResourceConfig { name, node_id, host, options, handlers, volumes, peers })
}

/// Refuses what this agent does not do at all.
///
/// # Errors
/// Which that is.
pub fn check(name: &ResourceName, config: &ResourceConfig) -> Result<(), Failed> {
    if config.layers.contains(&Layer::Luks) && !config.layers.contains(&Layer::Drbd) {
        return Err(Failed::new(
            format!("{name} has a layer LUKS without a layer DRBD"),
            "make the resource with the layers DRBD,LUKS,STORAGE: the engine encrypts what it serves",
        ));
    }
    for (number, volume) in &config.volumes {
        if let Some(key) = volume.props.keys().next() {
            return Err(Failed::new(
                format!(
                    "volume {number} of {name} has property {key}, which this agent does not act on"
                ),
                "remove the property, and make the file system on the device instead",
            ));
        }
    }
    Ok(())
}

fn lacks(name: &ResourceName, what: &str) -> Failed {
    let next = "use controller and agent of one release";
    Failed::new(format!("the configuration of {name} lacks {what}"), next)
}

fn options<T: Options>(name: &ResourceName, given: &BTreeMap<String, String>) -> Result<T, Failed> {
    let mut options = T::default();
    for (key, value) in given {
        options.set(key, value).map_err(|error| refused(name, key, value, &error))?;
    }
    Ok(options)
}

fn refused(name: &ResourceName, key: &str, value: &str, error: &dyn Display) -> Failed {
    Failed::new(
        format!("{name} can not have {key} = {value}: {error}"),
        format!("change or remove the property DrbdOptions/…/{key}"),
    )
}

fn volume(
    name: &ResourceName,
    record: &Record,
    number: u16,
    volume: &VolumeConfig,
) -> Result<engine::VolumeConfig, Failed> {
    let minor = volume.minor.ok_or_else(|| lacks(name, "a minor number"))?;
    let there = record.volumes.get(&number).filter(|there| {
        volume.pool.is_some()
            && !there.removing
            && there.size != 0
            && there.metadata == Metadata::Made
    });
    let backing = match there {
        Some(there) => Some(BackingConfig {
            disk: there.mapped.as_ref().unwrap_or(&there.path).clone(),
            meta_disk: MetaDisk::Internal,
            options: options::<DiskOptions>(name, &volume.options)?,
            luks: there.is_for_engine(),
        }),
        None => None,
    };
    Ok(engine::VolumeConfig {
        nr: VolumeNr(number),
        minor,
        device: format!("/dev/drbd{}", minor.0),
        device_options: DeviceOptions { diskless: backing.is_none(), ..DeviceOptions::default() },
        backing,
    })
}

fn peer(
    name: &ResourceName,
    peer: &NodeName,
    connection: &ConnectionConfig,
    config: &ResourceConfig,
) -> Result<PeerConfig, Failed> {
    let node_id = connection.node_id.ok_or_else(|| lacks(name, "a peer's node id"))?;
    let mut net: NetOptions = options(name, &connection.net)?;
    if !config.secret.is_empty() {
        let mut given = connection.net.clone();
        given.entry("shared-secret".to_owned()).or_insert_with(|| config.secret.clone());
        given.entry("cram-hmac-alg".to_owned()).or_insert_with(|| CRAM_HMAC_ALG.to_owned());
        net = options(name, &given)?;
    }
    let path = |((ours, our_port), (theirs, their_port)): &((_, u16), (_, u16))| PathConfig {
        local: SocketAddr::new(*ours, *our_port),
        remote: SocketAddr::new(*theirs, *their_port),
    };
    let paths: Vec<PathConfig> = connection.paths.iter().map(path).collect();
    if paths.is_empty() {
        return Err(Failed::new(
            format!("{name} has no network path to node {peer}"),
            format!("give both nodes a network interface, and see that `{peer}` has a port"),
        ));
    }
    let mut device: PeerDeviceOptions = options(name, &connection.peer_device)?;
    if connection.diskless {
        device.bitmap = false;
    }
    let volumes = config.volumes.keys().map(|number| PeerVolumeConfig {
        nr: VolumeNr(*number),
        diskless: !device.bitmap,
        options: device.clone(),
    });
    Ok(PeerConfig { node_id, name: peer.to_string(), paths, net, volumes: volumes.collect() })
}
