//! `up` and `adjust`: from what is configured and what runs to the commands in between.
//!
//! Pure: the same configuration and state give the same steps. Order and rules follow
//! drbdsetup contract §5. Steps run in stages; a failure in one skips the later ones of the same
//! resource, so that a disk that can not be attached is never followed by a connection.

use std::fmt;

use codec::admin::{Request, ResourceStatus};
use codec::config::{BackingConfig, PeerConfig, PeerVolumeConfig, ResourceConfig, VolumeConfig};
use vocab::options::{Options, PeerDeviceOptions};
use vocab::{ConnState, VolumeNr};

/// What runs: the configuration in force and the state.
#[derive(Clone, Copy, Debug)]
pub struct Running<'a> {
    /// The configuration in force.
    pub config: &'a ResourceConfig,
    /// The state.
    pub status: &'a ResourceStatus,
}

/// What to leave out or add.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Leave disks alone.
    pub skip_disk: bool,
    /// Leave connections alone.
    pub skip_net: bool,
    /// Connect as the side that gives its changes up after a split brain.
    pub discard_my_data: bool,
}

/// When a step runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    NewResource,
    ResourceOptions,
    DropVolume,
    NewMinor,
    Disconnect,
    DropPeer,
    NewPeer,
    NewPath,
    NetOptions,
    PeerDeviceOptions,
    Disk,
    Connect,
}

/// One command to the engine.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    stage: Stage,
    /// What it does, in words: `r0: attach /dev/a as volume 0`.
    pub what: String,
    /// The command.
    pub request: Request,
}

/// Why a plan is impossible.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Impossible(String);

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The steps from `running` to `wanted`, in order.
///
/// # Errors
/// If only taking the resource down could get there.
pub fn plan(
    wanted: &ResourceConfig,
    running: Option<Running<'_>>,
    limits: Limits,
) -> Result<Vec<Step>, Impossible> {
    let mut plan = Plan { wanted, limits, steps: Vec::new() };
    match running {
        Some(running) if running.config.node_id != wanted.node_id => {
            return Err(Impossible(format!(
                "it runs as node {} and is configured as node {}; take it down first",
                running.config.node_id, wanted.node_id
            )));
        }
        Some(running) => {
            if running.config.options != wanted.options {
                let (resource, options) = (plan.resource(), wanted.options.clone());
                let request = Request::ResourceOptions { resource, options };
                plan.step(Stage::ResourceOptions, "change its options".to_owned(), request);
            }
            if running.config.handlers != wanted.handlers {
                let (resource, handlers) = (plan.resource(), wanted.handlers.clone());
                let request = Request::Handlers { resource, handlers };
                plan.step(Stage::ResourceOptions, "change its handlers".to_owned(), request);
            }
        }
        None => {
            let (node_id, options) = (wanted.node_id, wanted.options.clone());
            let (resource, handlers) = (plan.resource(), wanted.handlers.clone());
            let request = Request::NewResource { resource, node_id, options, handlers };
            plan.step(Stage::NewResource, format!("create it as node {node_id}"), request);
        }
    }
    plan.volumes(running.map(|r| &r.config.volumes[..]).unwrap_or_default());
    if !limits.skip_net {
        plan.peers(running);
    }
    plan.steps.sort_by_key(|step| step.stage);
    Ok(plan.steps)
}

struct Plan<'a> {
    wanted: &'a ResourceConfig,
    limits: Limits,
    steps: Vec<Step>,
}

impl Plan<'_> {
    fn resource(&self) -> String {
        self.wanted.name.clone()
    }

    fn step(&mut self, stage: Stage, what: String, request: Request) {
        let what = format!("{}: {what}", self.wanted.name);
        self.steps.push(Step { stage, what, request });
    }

    fn volumes(&mut self, running: &[VolumeConfig]) {
        let wanted = self.wanted;
        for old in running {
            let kept = wanted.volumes.iter().any(|new| new.nr == old.nr && new.minor == old.minor);
            if !kept {
                if old.backing.is_some() {
                    self.detach(Stage::DropVolume, old, "remove the volume");
                }
                let what = format!("remove volume {} (minor {})", old.nr, old.minor);
                self.step(Stage::DropVolume, what, Request::DelMinor { minor: old.minor });
            }
        }
        for new in &wanted.volumes {
            let old = running.iter().find(|old| old.nr == new.nr && old.minor == new.minor);
            if old.is_none() {
                let (volume, minor, options) = (new.nr, new.minor, new.device_options.clone());
                let what = format!("create volume {volume} (minor {minor})");
                let request =
                    Request::NewMinor { resource: self.resource(), volume, minor, options };
                self.step(Stage::NewMinor, what, request);
            }
            if !self.limits.skip_disk {
                self.disk(new, old);
            }
        }
    }

    fn disk(&mut self, new: &VolumeConfig, old: Option<&VolumeConfig>) {
        let same_place = |a: &BackingConfig, b: &BackingConfig| {
            (&a.disk, &a.meta_disk, a.luks) == (&b.disk, &b.meta_disk, b.luks)
        };
        match (&new.backing, old.and_then(|old| old.backing.as_ref())) {
            (Some(backing), None) => self.attach(new, backing),
            (Some(backing), Some(old)) if !same_place(backing, old) => {
                self.detach(Stage::DropVolume, new, "another disk is configured");
                self.attach(new, backing);
            }
            (Some(backing), Some(old)) if backing.options != old.options => {
                let (minor, options) = (new.minor, backing.options.clone());
                let what = format!("change the disk options of volume {}", new.nr);
                self.step(Stage::Disk, what, Request::DiskOptions { minor, options });
            }
            (None, Some(_)) => self.detach(Stage::DropVolume, new, "no disk is configured"),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }

    fn attach(&mut self, volume: &VolumeConfig, backing: &BackingConfig) {
        let BackingConfig { disk, meta_disk, options, luks } = backing.clone();
        let what = format!("attach {disk} to volume {}", volume.nr);
        let request = Request::Attach { minor: volume.minor, disk, meta_disk, options, luks };
        self.step(Stage::Disk, what, request);
    }

    fn detach(&mut self, stage: Stage, volume: &VolumeConfig, why: &str) {
        let what = format!("detach the disk of volume {} ({why})", volume.nr);
        let request = Request::Detach { minor: volume.minor, force: false, diskless: true };
        self.step(stage, what, request);
    }

    fn peers(&mut self, running: Option<Running<'_>>) {
        let wanted = self.wanted;
        let old_peers = running.map(|r| &r.config.peers[..]).unwrap_or_default();
        // A connection keeps its name and its transport for life.
        let replaced = |a: &PeerConfig, b: &PeerConfig| {
            (&a.name, &a.net.transport, a.net.load_balance_paths)
                != (&b.name, &b.net.transport, b.net.load_balance_paths)
        };
        for old in old_peers {
            let new = wanted.peers.iter().find(|new| new.node_id == old.node_id);
            if new.is_none_or(|new| replaced(new, old)) {
                let (resource, peer) = (self.resource(), old.node_id);
                let what = format!("remove the connection to {}", old.name);
                self.step(Stage::DropPeer, what, Request::DelPeer { resource, peer, force: false });
            }
        }
        for new in &wanted.peers {
            let old =
                old_peers.iter().find(|old| old.node_id == new.node_id && !replaced(new, old));
            match old {
                None => self.new_peer(new),
                Some(old) => {
                    let state = running.and_then(|r| {
                        let all = &r.status.connections;
                        all.iter().find(|c| c.peer_node_id == new.node_id)
                    });
                    let standalone =
                        state.is_none_or(|c| c.connection_state == ConnState::StandAlone);
                    self.change_peer(new, old, standalone);
                }
            }
            for volume in &new.volumes {
                let old = old.and_then(|old| old.volumes.iter().find(|v| v.nr == volume.nr));
                self.peer_device(new, volume, old);
            }
        }
    }

    fn new_peer(&mut self, peer: &PeerConfig) {
        let (resource, name, options) = (self.resource(), peer.name.clone(), peer.net.clone());
        let what = format!("create the connection to {name}");
        let request = Request::NewPeer { resource, peer: peer.node_id, name, options };
        self.step(Stage::NewPeer, what, request);
        self.new_paths(peer, &[]);
        self.connect(peer);
    }

    /// Paths of `peer` that are not among `kept`.
    fn new_paths(&mut self, peer: &PeerConfig, kept: &[codec::config::PathConfig]) {
        for path in peer.paths.iter().filter(|path| !kept.contains(path)) {
            let what = format!("add path {} to {} of {}", path.local, path.remote, peer.name);
            let (resource, peer, path) = (self.resource(), peer.node_id, *path);
            self.step(Stage::NewPath, what, Request::NewPath { resource, peer, path });
        }
    }

    fn connect(&mut self, peer: &PeerConfig) {
        let discard_my_data = self.limits.discard_my_data;
        let what = format!("connect to {}", peer.name);
        let request =
            Request::Connect { resource: self.resource(), peer: peer.node_id, discard_my_data };
        self.step(Stage::Connect, what, request);
    }

    fn change_peer(&mut self, new: &PeerConfig, old: &PeerConfig, standalone: bool) {
        let peer = new.node_id;
        if new.net != old.net {
            let what = format!("change the options of the connection to {}", new.name);
            let options = new.net.clone();
            let request = Request::NetOptions { resource: self.resource(), peer, options };
            self.step(Stage::NetOptions, what, request);
        }
        // The last path of a live connection can not be removed.
        let moved = !old.paths.iter().any(|path| new.paths.contains(path));
        if moved && !standalone {
            let what = format!("disconnect from {} (its paths are replaced)", new.name);
            let request = Request::Disconnect { resource: self.resource(), peer, force: false };
            self.step(Stage::Disconnect, what, request);
        }
        for path in old.paths.iter().filter(|path| !new.paths.contains(path)) {
            let what = format!("remove path {} to {} of {}", path.local, path.remote, new.name);
            let (resource, path) = (self.resource(), *path);
            self.step(Stage::DropPeer, what, Request::DelPath { resource, peer, path });
        }
        self.new_paths(new, &old.paths);
        if standalone || moved {
            self.connect(new);
        }
    }

    fn peer_device(
        &mut self,
        peer: &PeerConfig,
        new: &PeerVolumeConfig,
        old: Option<&PeerVolumeConfig>,
    ) {
        let default = PeerDeviceOptions::default();
        let in_force = old.map_or(&default, |old| &old.options);
        if new.options == *in_force {
            return;
        }
        let volume: VolumeNr = new.nr;
        let changes: Vec<_> = new.options.show().into_iter().map(|(name, _)| name).collect();
        let what = format!(
            "set options of volume {volume} towards {} ({})",
            peer.name,
            changes.join(", ")
        );
        let (resource, options) = (self.resource(), new.options.clone());
        let request = Request::PeerDeviceOptions { resource, peer: peer.node_id, volume, options };
        self.step(Stage::PeerDeviceOptions, what, request);
    }
}
