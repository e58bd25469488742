//! The commands of the control socket, one function each (drbdsetup contract §2).
//!
//! A command that changes something asks the core first and writes down what changed afterwards.
//! Rules between objects the core does not know (names, minors, addresses, devices, exports) are
//! checked here; rules about replication are the core's.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use codec::admin::{Answer, EngineInfo, FailureKind, Request};
use codec::config::{
    BackingConfig, Handlers, PathConfig, PeerConfig, PeerVolumeConfig, ResourceConfig, VolumeConfig,
};
use replication::auth;
use replication::config as core;
use replication::io::AdminCommand;
use vocab::options::{DeviceOptions, DiskOptions, NetOptions, PeerDeviceOptions, ResourceOptions};
use vocab::{ConfigError, Minor, NodeId, Refusal, RefusalCode, Sectors, StateError, VolumeNr};

use crate::digest::Algorithm;
use crate::engine::{Done, Engine, Entry, Shutdown, Stop, lock, not_kept};
use crate::handlers::Programs;
use crate::maps;
use crate::state::Stored;
use crate::tls::Credentials;
use crate::{convert_md, create_md};
use logging::{Level, log};

/// Oldest and newest replication protocol spoken.
const PROTOCOLS: (u32, u32) = (122, 122);

impl Engine {
    /// Carries out a command, for as long as it takes.
    pub(crate) fn execute(self: &Arc<Self>, request: Request) -> Done<Answer> {
        let done = |()| Answer::Done;
        if let Request::Upgrade { binary } = request {
            return self.upgrade(binary.as_deref().map(Path::new)).map(Answer::Upgraded);
        }
        let _running = self.commands.read().unwrap_or_else(PoisonError::into_inner);
        match request {
            Request::NewResource { resource, node_id, options, handlers } => {
                self.new_resource(&resource, node_id, (options, handlers)).map(done)
            }
            Request::Handlers { resource, handlers } => {
                self.set_handlers(&resource, handlers).map(done)
            }
            Request::ResourceOptions { resource, options } => {
                self.resource_options(&resource, options).map(done)
            }
            Request::DelResource { resource } => self.del_resource(&resource).map(done),
            Request::NewMinor { resource, volume, minor, options } => {
                self.new_minor(&resource, volume, minor, options).map(done)
            }
            Request::DelMinor { minor } => self.del_minor(minor).map(done),
            Request::NewPeer { resource, peer, name, options } => {
                self.new_peer(&resource, peer, name, options).map(done)
            }
            Request::NetOptions { resource, peer, options } => {
                self.net_options(&resource, peer, options).map(done)
            }
            Request::DelPeer { resource, peer, force } => {
                self.del_peer(&resource, peer, force).map(done)
            }
            Request::NewPath { resource, peer, path } => {
                self.new_path(&resource, peer, path).map(done)
            }
            Request::DelPath { resource, peer, path } => {
                self.del_path(&resource, peer, path).map(done)
            }
            Request::PeerDeviceOptions { resource, peer, volume, options } => {
                self.peer_device_options(&resource, peer, volume, options).map(done)
            }
            Request::Attach { minor, disk, meta_disk, options, luks } => {
                self.attach_disk(minor, BackingConfig { disk, meta_disk, options, luks }).map(done)
            }
            Request::DiskOptions { minor, options } => self.disk_options(minor, options).map(done),
            Request::Detach { minor, force, diskless } => {
                self.detach(minor, force, diskless).map(done)
            }
            Request::Resize { minor, size, assume_peer_has_space, assume_clean } => {
                let (entry, volume) = self.minor(minor)?;
                let size = size.map(|end| Sectors(end.0));
                let command =
                    AdminCommand::Resize { volume, size, assume_peer_has_space, assume_clean };
                self.command(&entry, command).map(done)
            }
            Request::Connect { resource, peer, discard_my_data } => {
                self.connect(&resource, peer, discard_my_data).map(done)
            }
            Request::Disconnect { resource, peer, force } => {
                self.disconnect(&resource, peer, force).map(done)
            }
            Request::Primary { resource, force } => {
                self.simple(&resource, AdminCommand::Primary { force }).map(done)
            }
            Request::Secondary { resource, force } => {
                self.settle_standbys(Some(&resource));
                self.simple(&resource, AdminCommand::Secondary { force }).map(done)
            }
            Request::Invalidate { minor, from, reset_bitmap } => {
                whole_bitmap(reset_bitmap)?;
                let (entry, volume) = self.minor(minor)?;
                self.command(&entry, AdminCommand::Invalidate { volume, from }).map(done)
            }
            Request::InvalidateRemote { resource, peer, volume, reset_bitmap } => {
                whole_bitmap(reset_bitmap)?;
                self.simple(&resource, AdminCommand::InvalidateRemote { peer, volume }).map(done)
            }
            Request::Verify { resource, peer, volume, start, stop } => {
                let (start, stop) = (Some(start.0), stop.map(|sector| sector.0));
                let command = AdminCommand::Verify { peer, volume, start, stop };
                self.simple(&resource, command).map(done)
            }
            Request::PauseSync { resource, peer, volume } => {
                let command = AdminCommand::PauseSync { peer, volume, pause: true };
                self.simple(&resource, command).map(done)
            }
            Request::ResumeSync { resource, peer, volume } => {
                let command = AdminCommand::PauseSync { peer, volume, pause: false };
                self.simple(&resource, command).map(done)
            }
            Request::SuspendIo { resource, for_ms } => self.suspend(&resource, for_ms).map(done),
            Request::ResumeIo { resource } => {
                self.resume(&resource, AdminCommand::ResumeIo).map(done)
            }
            Request::Thaw { resource } => self.resume(&resource, AdminCommand::Thaw).map(done),
            Request::NewCurrentUuid { minor, clear_bitmap } => {
                let (entry, volume) = self.minor(minor)?;
                let command = AdminCommand::NewCurrentUuid { volume, clear_bitmap };
                self.command(&entry, command).map(done)
            }
            Request::Outdate { minor } => {
                let (entry, volume) = self.minor(minor)?;
                self.command(&entry, AdminCommand::Outdate { volume }).map(done)
            }
            Request::ForgetPeer { resource, peer } => {
                self.simple(&resource, AdminCommand::ForgetPeer { peer }).map(done)
            }
            Request::Identifiers { resource, peer, volume } => {
                self.identifiers(&resource, peer, volume)
            }
            Request::Down { resource } => self.down(&resource).map(done),
            Request::Status { resource } => self.status(resource.as_deref()),
            Request::Statistics { resource } => self.statistics(resource.as_deref()),
            Request::Config { resource } => Ok(self.config(resource.as_deref())),
            Request::Why { resource } => self.why(&resource),
            Request::Export { resource, volume, name, listen, read_only } => {
                self.export(&name, &resource, volume, &listen, read_only).map(done)
            }
            Request::Unexport { name } => self.unexport(&name).map(done),
            Request::Exports => self.export_list().map(Answer::Exports),
            Request::Map { resource, volume, options } => {
                self.map(&resource, volume, options).map(|map| Answer::Maps(vec![map]))
            }
            Request::Unmap { resource, volume } => self.unmap(&resource, volume).map(done),
            Request::Maps => Ok(Answer::Maps(self.map_list())),
            Request::CreateMd { disk, meta_disk, max_peers, force, luks } => {
                self.check_devices(&disk, &meta_disk)?;
                let key = self.key_of(&disk, &meta_disk, luks)?;
                metadata_written(create_md::create(&disk, &meta_disk, max_peers, force, key))
            }
            Request::Unlock { disk, passphrase } => self.unlock(&disk, &passphrase).map(done),
            Request::Lock { disk } => {
                self.keys.forget(&disk);
                Ok(Answer::Done)
            }
            Request::ConvertMd { disk, meta_disk, node_id, peer, max_peers } => {
                self.check_devices(&disk, &meta_disk)?;
                let nodes = (node_id, peer);
                metadata_written(convert_md::convert(&disk, &meta_disk, nodes, max_peers))
            }
            Request::Doctor { resource, step } => self.diagnose(&resource, step),
            Request::Info => Ok(Answer::Info(EngineInfo {
                faces: maps::faces(),
                standby: Some(maps::standby::status()),
                ..self.info()
            })),
            Request::Shutdown { force } => self.ask_shutdown(force).map(done),
            Request::Upgrade { .. } => unreachable!("no command holds it up"),
            Request::Events { .. } => unreachable!("the connection sees to subscriptions"),
        }
    }

    /// A command that changes nothing that is kept.
    fn simple(&self, resource: &str, command: AdminCommand) -> Done {
        self.command(&*self.entry(resource)?, command)
    }

    /// Suspends I/O, for so many milliseconds at most if that is said: whoever asked may be gone by
    /// then. The clock runs from the beginning, for it can take a while until all writes are done.
    fn suspend(self: &Arc<Self>, resource: &str, for_ms: Option<u32>) -> Done {
        let entry = self.entry(resource)?;
        let serial = entry.suspensions.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some(for_ms) = for_ms {
            let (engine, entry) = (self.clone(), entry.clone());
            let run = move || {
                std::thread::sleep(Duration::from_millis(for_ms.into()));
                if entry.suspensions.load(Ordering::SeqCst) != serial {
                    return;
                }
                log!(Level::Warn, entry.name, "I/O was suspended for {for_ms} ms and goes on");
                if let Err(stop) = engine.command(&entry, AdminCommand::Thaw) {
                    let why = crate::restore::text(&stop);
                    log!(Level::Error, entry.name, "I/O does not go on: {why}; `ashlar resume-io`");
                }
            };
            let thread = std::thread::Builder::new().name("suspension".to_owned()).spawn(run);
            thread.map_err(|e| {
                let next = "see how many threads the engine may have";
                Stop::failed(FailureKind::Resources, format!("no thread to end it: {e}"), next)
            })?;
        }
        self.command(&entry, AdminCommand::SuspendIo)
    }

    fn resume(&self, resource: &str, command: AdminCommand) -> Done {
        let entry = self.entry(resource)?;
        entry.suspensions.fetch_add(1, Ordering::SeqCst);
        self.command(&entry, command)
    }

    // ---- resources -----------------------------------------------------------------------

    fn new_resource(
        &self,
        name: &str,
        node_id: NodeId,
        settings: (ResourceOptions, Handlers),
    ) -> Done {
        check_name(name)?;
        Programs::new(self.handlers.clone(), settings.1.clone())?;
        if let Ok(entry) = self.entry(name) {
            let there = lock(&entry.stored).config.node_id;
            if there == node_id {
                return Ok(());
            }
            return Err(Stop::invalid(format!("{name} exists, as node {there}")));
        }
        if !lock(&self.creating).insert(name.to_owned()) {
            return Err(Stop::invalid(format!("{name} is being created by another command")));
        }
        let result = self.create_resource(name, node_id, settings);
        lock(&self.creating).remove(name);
        result
    }

    fn create_resource(
        &self,
        name: &str,
        node_id: NodeId,
        (options, handlers): (ResourceOptions, Handlers),
    ) -> Done {
        let stored = Stored::new(ResourceConfig {
            name: name.to_owned(),
            node_id,
            host: self.host.clone(),
            options,
            handlers,
            volumes: Vec::new(),
            peers: Vec::new(),
        });
        let kept = self.state.put_resource(&stored).map_err(not_kept);
        self.place(stored)?;
        kept
    }

    /// Puts a resource, so far without volumes and peers, on the shard with the fewest.
    pub(crate) fn place(&self, stored: Stored) -> Done<Arc<Entry>> {
        let mut held = vec![0usize; self.shards.len()];
        for entry in self.entries(None) {
            held[entry.shard] += 1;
        }
        let shard = (0..held.len()).min_by_key(|shard| held[*shard]).expect("there are shards");
        let programs = Programs::new(self.handlers.clone(), stored.config.handlers.clone())?;
        let config = core::ResourceConfig {
            name: stored.config.name.clone(),
            node_id: stored.config.node_id,
            options: stored.config.options.clone(),
            handlers: programs.events(),
            volumes: Vec::new(),
            peers: Vec::new(),
        };
        let Some(id) = self.on(shard, move |shard| shard.add_resource(config, programs))? else {
            let text = "too many resources were created since the engine started";
            return Err(Stop::failed(FailureKind::Resources, text, "restart the engine"));
        };
        let entry = Arc::new(Entry::new(shard, id, stored));
        lock(&self.resources).insert(entry.name.clone(), entry.clone());
        Ok(entry)
    }

    fn resource_options(&self, resource: &str, options: ResourceOptions) -> Done {
        let entry = self.entry(resource)?;
        let _pass = entry.pass();
        self.command(&entry, AdminCommand::ResourceOptions(options.clone()))?;
        self.keep(&entry, |stored| stored.config.options = options)
    }

    fn set_handlers(&self, resource: &str, handlers: Handlers) -> Done {
        let entry = self.entry(resource)?;
        let _pass = entry.pass();
        let programs = Programs::new(self.handlers.clone(), handlers.clone())?;
        let (id, events) = (entry.id, programs.events());
        self.on(entry.shard, move |shard| {
            shard.with(id, |host, _, _| host.set_programs(programs));
        })?;
        self.command(&entry, AdminCommand::Handlers(events))?;
        self.keep(&entry, |stored| stored.config.handlers = handlers)
    }

    fn del_resource(&self, resource: &str) -> Done {
        let entry = self.entry(resource)?;
        let _pass = entry.pass();
        let stored = lock(&entry.stored);
        if !stored.config.peers.is_empty() {
            let detail = format!("{resource} has connections; remove them first");
            return Err(Refusal::config(ConfigError::NetConfigured, detail).into());
        }
        if !stored.config.volumes.is_empty() {
            let detail = format!("{resource} has volumes; remove them first");
            return Err(Refusal::config(ConfigError::ResourceInUse, detail).into());
        }
        drop(stored);
        let id = entry.id;
        self.on(entry.shard, move |shard| shard.remove_resource(id))?;
        lock(&self.resources).remove(resource);
        self.state.remove_resource(resource).map_err(not_kept)
    }

    // ---- volumes -------------------------------------------------------------------------

    fn new_minor(
        &self,
        resource: &str,
        nr: VolumeNr,
        minor: Minor,
        options: DeviceOptions,
    ) -> Done {
        let entry = self.entry(resource)?;
        let _pass = entry.pass();
        if let Ok((other, there)) = self.minor(minor) {
            if other.name == resource && there == nr {
                return Ok(());
            }
            let detail = format!("minor {} is volume {there} of {}", minor.0, other.name);
            return Err(Refusal::config(ConfigError::MinorExists, detail).into());
        }
        self.add_volume(&entry, nr, minor, options.diskless)?;
        self.keep(&entry, |stored| {
            let volumes = &mut stored.config.volumes;
            volumes.push(VolumeConfig {
                nr,
                minor,
                device: format!("/dev/drbd{}", minor.0),
                device_options: options,
                backing: None,
            });
            volumes.sort_by_key(|v| v.nr);
            for peer in &mut stored.config.peers {
                let options = PeerDeviceOptions::default();
                peer.volumes.push(PeerVolumeConfig { nr, diskless: false, options });
                peer.volumes.sort_by_key(|v| v.nr);
            }
        })
    }

    /// Adds a volume to core and front ends.
    pub(crate) fn add_volume(
        &self,
        entry: &Entry,
        nr: VolumeNr,
        minor: Minor,
        diskless: bool,
    ) -> Done {
        let id = entry.id;
        // Before the core has heard what peers have of it, so that no size is missed.
        let new = self.on(entry.shard, move |shard| {
            let new = shard.with(id, |host, _, volumes| {
                let new = host.target(nr).is_none();
                if new {
                    host.add_volume(volumes, nr);
                }
                new
            });
            new.unwrap_or(false)
        })?;
        let disk = DiskOptions::default();
        let config = core::VolumeConfig { nr, minor, diskless, disk };
        let added = self.command(entry, AdminCommand::NewVolume(config));
        if added.is_err() && new {
            self.on(entry.shard, move |shard| {
                shard.with(id, |host, _, volumes| host.remove_volume(volumes, nr));
            })?;
        }
        added
    }

    fn del_minor(&self, minor: Minor) -> Done {
        let (entry, nr) = self.minor(minor)?;
        let _pass = entry.pass();
        if let Some(export) = self.exports_of(&entry.name, Some(nr)).first() {
            let detail = format!("it is served as `{export}`; unexport it first");
            return Err(Refusal::config(ConfigError::MinorConfigured, detail).into());
        }
        self.check_not_mapped(&entry.name, Some(nr))?;
        self.remove_volume(&entry, nr)
    }

    fn remove_volume(&self, entry: &Entry, nr: VolumeNr) -> Done {
        self.command(entry, AdminCommand::DelVolume(nr))?;
        let id = entry.id;
        self.on(entry.shard, move |shard| {
            shard.with(id, |host, _, volumes| host.remove_volume(volumes, nr));
        })?;
        let minor = volume(&lock(&entry.stored), nr).map(|v| v.minor);
        let kept = self.keep(entry, |stored| {
            stored.config.volumes.retain(|v| v.nr != nr);
            for peer in &mut stored.config.peers {
                peer.volumes.retain(|v| v.nr != nr);
            }
        });
        let left = minor.map_or(Ok(()), |minor| self.leave_order(minor));
        kept.and(left)
    }

    fn attach_disk(&self, minor: Minor, backing: BackingConfig) -> Done {
        let (entry, nr) = self.minor(minor)?;
        let _pass = entry.pass();
        let has_disk = volume(&lock(&entry.stored), nr).is_some_and(|v| v.backing.is_some());
        if has_disk {
            let disk = self.status_of(&entry)?;
            let disk = disk.devices.iter().find(|d| d.volume == nr);
            if disk.is_some_and(|d| d.disk_state > vocab::DiskState::Diskless) {
                let detail = format!("volume {nr} of {} has a disk; detach it first", entry.name);
                return Err(Refusal::config(ConfigError::DiskConfigured, detail).into());
            }
            // The disk was lost; this one takes its place.
            self.keep(&entry, |stored| volume_mut(stored, nr).backing = None)?;
        }
        self.check_devices(&backing.disk, &backing.meta_disk)?;
        self.order_resync(minor, backing.options.resync_after)?;
        if let Err(stop) = self.attach(&entry, nr, backing.clone()) {
            self.order_resync(minor, None)?;
            return Err(stop);
        }
        self.keep(&entry, |stored| {
            let volume = volume_mut(stored, nr);
            volume.backing = Some(backing);
            volume.device_options.diskless = false;
        })?;
        self.keep_order(&entry, nr, minor)
    }

    fn disk_options(&self, minor: Minor, options: DiskOptions) -> Done {
        let (entry, nr) = self.minor(minor)?;
        let _pass = entry.pass();
        if volume(&lock(&entry.stored), nr).is_none_or(|v| v.backing.is_none()) {
            return Err(ConfigError::NoDisk.into());
        }
        let before = lock(&self.order).after(minor);
        self.order_resync(minor, options.resync_after)?;
        let command = AdminCommand::DiskOptions(nr, Box::new(options.clone()));
        if let Err(stop) = self.command(&entry, command) {
            self.order_resync(minor, before)?;
            return Err(stop);
        }
        self.keep(&entry, |stored| {
            if let Some(backing) = &mut volume_mut(stored, nr).backing {
                backing.options = options;
            }
        })?;
        self.keep_order(&entry, nr, minor)
    }

    fn detach(&self, minor: Minor, force: bool, diskless: bool) -> Done {
        let (entry, nr) = self.minor(minor)?;
        let _pass = entry.pass();
        self.command(&entry, AdminCommand::Detach { volume: nr, force, intentional: diskless })?;
        self.order_resync(minor, None)?;
        self.keep(&entry, |stored| {
            let volume = volume_mut(stored, nr);
            volume.backing = None;
            volume.device_options.diskless |= diskless;
        })
    }

    // ---- connections ---------------------------------------------------------------------

    fn new_peer(&self, resource: &str, node: NodeId, name: String, net: NetOptions) -> Done {
        let entry = self.entry(resource)?;
        let _pass = entry.pass();
        check_tls_files(&net, &name)?;
        let stored = lock(&entry.stored).clone();
        if stored.config.peers.iter().any(|peer| peer.name == name && peer.node_id != node) {
            let detail = format!("{resource} has a connection `{name}`");
            return Err(Refusal::config(ConfigError::Exists, detail).into());
        }
        if node == stored.config.node_id || peer(&stored, node).is_some() {
            return Err(Stop::invalid(format!("node id {node} is in use")));
        }
        self.add_peer(&entry, node, name.clone(), net.clone(), Vec::new())?;
        self.keep(&entry, |stored| {
            let volumes = stored.config.volumes.iter().map(|v| PeerVolumeConfig {
                nr: v.nr,
                diskless: false,
                options: PeerDeviceOptions::default(),
            });
            let volumes = volumes.collect();
            let peers = &mut stored.config.peers;
            peers.push(PeerConfig { node_id: node, name, paths: Vec::new(), net, volumes });
            peers.sort_by_key(|peer| peer.node_id);
        })
    }

    /// Adds a peer to link and core.
    pub(crate) fn add_peer(
        &self,
        entry: &Entry,
        node: NodeId,
        name: String,
        net: NetOptions,
        devices: Vec<(VolumeNr, PeerDeviceOptions)>,
    ) -> Done {
        check_net(&lock(&entry.stored), node, &net)?;
        let (id, link_name, link_net) = (entry.id, name.clone(), net.clone());
        self.on(entry.shard, move |shard| {
            shard.with(id, |host, _, _| host.add_link(node, &link_name, link_net));
        })?;
        let config = core::PeerConfig { node_id: node, name, net, devices };
        let result = self.command(entry, AdminCommand::NewPeer(config));
        if result.is_err() {
            self.on(entry.shard, move |shard| {
                shard.with(id, |host, io, _| host.remove_link(io, node));
            })?;
        }
        result
    }

    fn net_options(&self, resource: &str, node: NodeId, net: NetOptions) -> Done {
        let entry = self.entry(resource)?;
        let _pass = entry.pass();
        check_net(&lock(&entry.stored), node, &net)?;
        self.known_peer(&entry, node)?;
        let name = peer(&lock(&entry.stored), node).map(|peer| peer.name.clone());
        check_tls_files(&net, &name.unwrap_or_default())?;
        self.command(&entry, AdminCommand::NetOptions(node, Box::new(net.clone())))?;
        let (id, link_net) = (entry.id, net.clone());
        self.on(entry.shard, move |shard| {
            shard.with(id, |host, io, volumes| host.set_net(io, volumes, node, link_net));
        })?;
        self.keep(&entry, |stored| peer_mut(stored, node).net = net)
    }

    fn del_peer(&self, resource: &str, node: NodeId, force: bool) -> Done {
        let entry = self.entry(resource)?;
        let _pass = entry.pass();
        self.known_peer(&entry, node)?;
        self.remove_peer(&entry, node, force)
    }

    fn remove_peer(&self, entry: &Entry, node: NodeId, force: bool) -> Done {
        self.command(entry, AdminCommand::Disconnect { peer: node, force })?;
        self.drop_peer(entry, node)
    }

    /// Removes a connection that was ended.
    fn drop_peer(&self, entry: &Entry, node: NodeId) -> Done {
        self.patiently(|| self.command(entry, AdminCommand::DelPeer(node)))?;
        let id = entry.id;
        self.on(entry.shard, move |shard| {
            shard.with(id, |host, io, _| host.remove_link(io, node));
        })?;
        self.keep(entry, |stored| {
            stored.config.peers.retain(|peer| peer.node_id != node);
            stored.connected.remove(&node.get());
        })
    }

    /// Repeats a command while the core is busy with something that ends soon.
    fn patiently(&self, mut command: impl FnMut() -> Done) -> Done {
        for _ in 0..100 {
            match command() {
                Err(Stop::Refused(refusal))
                    if matches!(
                        refusal.code,
                        RefusalCode::State(StateError::InTransientState)
                            | RefusalCode::Config(ConfigError::NetConfigured)
                    ) =>
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
                result => return result,
            }
        }
        command()
    }

    fn known_peer(&self, entry: &Entry, node: NodeId) -> Done {
        match peer(&lock(&entry.stored), node) {
            Some(_) => Ok(()),
            None => {
                let detail = format!("{} has no connection to node {node}", entry.name);
                Err(Stop::invalid(detail))
            }
        }
    }

    fn new_path(&self, resource: &str, node: NodeId, path: PathConfig) -> Done {
        let entry = self.entry(resource)?;
        let _pass = entry.pass();
        self.known_peer(&entry, node)?;
        if path.local.is_ipv4() != path.remote.is_ipv4() {
            return Err(Stop::invalid("both addresses of a path are of one family"));
        }
        self.check_addresses(resource, path)?;
        let stored = lock(&entry.stored).clone();
        for other in &stored.config.peers {
            if other.node_id == node && other.paths.contains(&path) {
                let detail = format!("the path to {} exists", path.remote);
                return Err(Refusal::config(ConfigError::Exists, detail).into());
            }
            // An incoming connection is known by where it arrives and which host it comes from.
            let ambiguous =
                |p: &PathConfig| p.local == path.local && p.remote.ip() == path.remote.ip();
            if other.node_id != node && other.paths.iter().any(ambiguous) {
                let detail = format!(
                    "connections from {} to {} could be from {}, too; give this node another \
                     address or port for one of them",
                    path.remote.ip(),
                    path.local,
                    other.name
                );
                return Err(Stop::invalid(detail));
            }
        }
        self.change_paths(&entry, node, |paths| paths.push(path))
    }

    /// An address belongs to one resource.
    fn check_addresses(&self, resource: &str, path: PathConfig) -> Done {
        for other in self.entries(None).iter().filter(|e| e.name != resource) {
            let stored = lock(&other.stored);
            let paths = || stored.config.peers.iter().flat_map(|peer| &peer.paths);
            let refused = |code, address: SocketAddr| {
                let detail = format!("{address} is used by resource {}", other.name);
                Err(Refusal::config(code, detail).into())
            };
            if paths().any(|p| p.local == path.local) {
                return refused(ConfigError::LocalAddress, path.local);
            }
            if paths().any(|p| p.remote == path.remote) {
                return refused(ConfigError::PeerAddress, path.remote);
            }
        }
        Ok(())
    }

    fn change_paths(
        &self,
        entry: &Entry,
        node: NodeId,
        change: impl FnOnce(&mut Vec<PathConfig>),
    ) -> Done {
        let mut paths =
            peer(&lock(&entry.stored), node).map(|p| p.paths.clone()).unwrap_or_default();
        change(&mut paths);
        let (id, link_paths) = (entry.id, paths.clone());
        self.on(entry.shard, move |shard| {
            shard.with(id, |host, io, volumes| host.set_paths(io, volumes, node, link_paths));
        })?;
        self.keep(entry, |stored| peer_mut(stored, node).paths = paths)
    }

    fn del_path(&self, resource: &str, node: NodeId, path: PathConfig) -> Done {
        let entry = self.entry(resource)?;
        let _pass = entry.pass();
        self.known_peer(&entry, node)?;
        let paths = peer(&lock(&entry.stored), node).map(|p| p.paths.clone()).unwrap_or_default();
        if !paths.contains(&path) {
            return Err(Stop::invalid(format!("there is no path to {}", path.remote)));
        }
        if paths.len() == 1 && !self.is_standalone(&entry, node)? {
            let detail = "it is the last path of a connection that is not StandAlone; disconnect \
                          first, or add another path";
            return Err(Stop::invalid(detail));
        }
        self.change_paths(&entry, node, |paths| paths.retain(|p| *p != path))
    }

    fn peer_device_options(
        &self,
        resource: &str,
        node: NodeId,
        nr: VolumeNr,
        options: PeerDeviceOptions,
    ) -> Done {
        let entry = self.entry(resource)?;
        let _pass = entry.pass();
        self.known_peer(&entry, node)?;
        let command = AdminCommand::PeerDeviceOptions(node, nr, Box::new(options.clone()));
        self.command(&entry, command)?;
        self.keep(&entry, |stored| {
            if let Some(device) = peer_mut(stored, node).volumes.iter_mut().find(|v| v.nr == nr) {
                device.diskless = !options.bitmap;
                device.options = options;
            }
        })
    }

    fn connect(&self, resource: &str, node: NodeId, discard_my_data: bool) -> Done {
        let entry = self.entry(resource)?;
        let _pass = entry.pass();
        self.known_peer(&entry, node)?;
        if peer(&lock(&entry.stored), node).is_none_or(|p| p.paths.is_empty()) {
            let detail = format!("the connection of {resource} to node {node} has no path");
            return Err(Stop::invalid(detail));
        }
        self.command(&entry, AdminCommand::Connect { peer: node, discard_my_data })?;
        self.keep(&entry, |stored| _ = stored.connected.insert(node.get()))
    }

    fn disconnect(&self, resource: &str, node: NodeId, force: bool) -> Done {
        let entry = self.entry(resource)?;
        let _pass = entry.pass();
        self.known_peer(&entry, node)?;
        self.command(&entry, AdminCommand::Disconnect { peer: node, force })?;
        self.keep(&entry, |stored| _ = stored.connected.remove(&node.get()))
    }

    // ---- everything ----------------------------------------------------------------------

    /// Demotes, disconnects, detaches and removes a resource.
    fn down(&self, resource: &str) -> Done {
        let Ok(entry) = self.entry(resource) else { return Ok(()) };
        let pass = entry.pass();
        self.check_not_mapped(resource, None)?;
        let id = entry.id;
        let openers = self.on(entry.shard, move |shard| {
            shard.with(id, |host, _, volumes| host.openers(volumes)).unwrap_or(0)
        })?;
        if openers > 0 {
            let detail = format!("{resource} is open by {openers} clients; close them first");
            return Err(Refusal::state(StateError::DeviceInUse, detail).into());
        }
        for export in self.exports_of(resource, None) {
            self.unexport(&export)?;
        }
        self.command(&entry, AdminCommand::Secondary { force: false })?;
        let config = lock(&entry.stored).config.clone();
        for peer in &config.peers {
            self.command(&entry, AdminCommand::Disconnect { peer: peer.node_id, force: false })?;
        }
        // Disks go before peers: without its peers a disk has no quorum, and nodes with a disk but
        // without quorum forget no peer.
        for volume in &config.volumes {
            if volume.backing.is_some() {
                let (nr, force, intentional) = (volume.nr, false, false);
                let command = AdminCommand::Detach { volume: nr, force, intentional };
                self.command(&entry, command)?;
                self.keep(&entry, |stored| volume_mut(stored, nr).backing = None)?;
            }
        }
        for peer in &config.peers {
            self.drop_peer(&entry, peer.node_id)?;
        }
        for volume in &config.volumes {
            self.remove_volume(&entry, volume.nr)?;
        }
        drop(pass);
        self.del_resource(resource)
    }

    fn status(&self, resource: Option<&str>) -> Done<Answer> {
        if let Some(name) = resource {
            self.entry(name)?;
        }
        let mut all = Vec::new();
        for entry in self.entries(resource) {
            // One that was removed meanwhile is left out.
            all.extend(self.status_of(&entry).ok());
        }
        Ok(Answer::Status(all))
    }

    fn statistics(&self, resource: Option<&str>) -> Done<Answer> {
        if let Some(name) = resource {
            self.entry(name)?;
        }
        let entries = self.entries(resource);
        // As for the status.
        let all = entries.iter().filter_map(|entry| self.statistics_of(entry).ok());
        Ok(Answer::Statistics(all.collect()))
    }

    fn config(&self, resource: Option<&str>) -> Answer {
        let entries = self.entries(resource);
        Answer::Config(entries.iter().map(|entry| lock(&entry.stored).config.clone()).collect())
    }

    fn identifiers(&self, resource: &str, node: NodeId, nr: VolumeNr) -> Done<Answer> {
        let entry = self.entry(resource)?;
        self.known_peer(&entry, node)?;
        if volume(&lock(&entry.stored), nr).is_none() {
            return Err(Stop::invalid(format!("{resource} has no volume {nr}")));
        }
        let id = entry.id;
        let line = self.on(entry.shard, move |shard| {
            shard.hosts.get_mut(id).and_then(|host| host.identifiers(nr, node))
        })?;
        line.map(Answer::Identifiers).ok_or_else(|| {
            let detail = format!("volume {nr} of {resource} has no disk here");
            Refusal::config(ConfigError::NoDisk, detail).into()
        })
    }

    fn why(&self, resource: &str) -> Done<Answer> {
        let entry = self.entry(resource)?;
        let id = entry.id;
        let answer = self.on(entry.shard, move |shard| {
            let now = shard.io.now();
            let host = shard.hosts.get_mut(id)?;
            Some((host.status(), host.why(now)))
        })?;
        let (status, mut notes) = answer.ok_or_else(|| crate::engine::unknown(resource))?;
        notes.extend(self.locked(&entry, &status));
        Ok(Answer::Why { status: Box::new(status), notes })
    }

    pub(crate) fn info(&self) -> EngineInfo {
        EngineInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            protocols: PROTOCOLS,
            resources: lock(&self.resources).len() as u32,
            faces: Vec::new(),
            standby: None,
        }
    }

    fn ask_shutdown(&self, force: bool) -> Done {
        let (answer, result) = std::sync::mpsc::channel();
        let ending = || Stop::failed(FailureKind::Resources, "the engine is ending already", "");
        self.shutdown.send(Shutdown { force, answer }).map_err(|_| ending())?;
        Ok(result.recv().map_err(|_| ending())??)
    }
}

fn volume(stored: &Stored, nr: VolumeNr) -> Option<&VolumeConfig> {
    stored.config.volumes.iter().find(|v| v.nr == nr)
}

fn volume_mut(stored: &mut Stored, nr: VolumeNr) -> &mut VolumeConfig {
    let mut volumes = stored.config.volumes.iter_mut();
    volumes.find(|v| v.nr == nr).expect("nobody removes it while this command holds the pass")
}

fn peer(stored: &Stored, node: NodeId) -> Option<&PeerConfig> {
    stored.config.peers.iter().find(|p| p.node_id == node)
}

fn peer_mut(stored: &mut Stored, node: NodeId) -> &mut PeerConfig {
    let mut peers = stored.config.peers.iter_mut();
    peers.find(|p| p.node_id == node).expect("nobody removes it while this command holds the pass")
}

/// New names have the characters DRBD's driver allows (drbdsetup contract §1).
fn check_name(name: &str) -> Done {
    let fine = |c: char| c.is_ascii_alphanumeric() || "+._-".contains(c);
    if name.is_empty() || name.len() > 127 || !name.chars().all(fine) || name == "all" {
        let detail = format!(
            "`{name}` can not be the name of a resource: give 1 to 127 of 0-9A-Za-z+._-, and not \
             `all`"
        );
        return Err(Stop::invalid(detail));
    }
    Ok(())
}

/// The options of a connection fit each other, and this engine.
fn check_net(stored: &Stored, node: NodeId, net: &NetOptions) -> Done {
    net.check().map_err(|error| Stop::invalid(error.to_string()))?;
    check_verify_alg(stored, node, net)?;
    check_integrity_alg(net)?;
    check_csums_alg(net)?;
    check_cram_hmac_alg(net)
}

/// The files of TLS can be used, as far as can be said without the peer. A start does not look at them:
/// they may come later than it does.
fn check_tls_files(net: &NetOptions, peer: &str) -> Done {
    net.check().map_err(|error| Stop::invalid(error.to_string()))?;
    match net.tls {
        true => Credentials::read(net, peer).map(|_| ()).map_err(Stop::invalid),
        false => Ok(()),
    }
}

/// One digest per resource: the engine computes it without knowing for which peer.
fn check_verify_alg(stored: &Stored, node: NodeId, net: &NetOptions) -> Done {
    let name = &net.verify_alg;
    if name.is_empty() {
        return Ok(());
    }
    if Algorithm::named(name).is_none() {
        let detail = format!("`{name}` is unknown; give {}", Algorithm::NAMES);
        return Err(Refusal::config(ConfigError::VerifyAlg, detail).into());
    }
    let mut others = stored.config.peers.iter().filter(|peer| peer.node_id != node);
    match others.find(|peer| !peer.net.verify_alg.is_empty() && peer.net.verify_alg != *name) {
        Some(other) => {
            let detail = format!(
                "the connection to {} has verify-alg {}; all connections of a resource have the \
                 same",
                other.name, other.net.verify_alg
            );
            Err(Refusal::config(ConfigError::VerifyAlg, detail).into())
        }
        None => Ok(()),
    }
}

/// The digest of data on the wire is one that this engine computes.
fn check_integrity_alg(net: &NetOptions) -> Done {
    let name = &net.data_integrity_alg;
    if name.is_empty() || Algorithm::named(name).is_some() {
        return Ok(());
    }
    let detail = format!("`{name}` is unknown; give {}", Algorithm::NAMES);
    Err(Refusal::config(ConfigError::IntegrityAlg, detail).into())
}

/// The digest of a resync is one that chance does not make equal. Operators hear so before; this is for
/// those who speak to the control socket themselves.
fn check_csums_alg(net: &NetOptions) -> Done {
    let name = &net.csums_alg;
    if name.is_empty() || Algorithm::named(name).is_some_and(Algorithm::tells) {
        return Ok(());
    }
    let detail = format!("`{name}` is unknown or too short; give {}", Algorithm::TELLING_NAMES);
    Err(Refusal::config(ConfigError::CsumsAlg, detail).into())
}

/// The digest that peers prove themselves by is one that the core computes.
fn check_cram_hmac_alg(net: &NetOptions) -> Done {
    let name = &net.cram_hmac_alg;
    if name.is_empty() || auth::Algorithm::named(name).is_some() {
        return Ok(());
    }
    let detail = format!("`{name}` is unknown; give {}", auth::ALGORITHMS);
    Err(Refusal::config(ConfigError::AuthAlg, detail).into())
}

/// The core invalidates whole disks.
fn whole_bitmap(reset_bitmap: bool) -> Done {
    if reset_bitmap {
        return Ok(());
    }
    Err(Stop::invalid(
        "resyncing only what is marked out-of-sync is not supported; disconnect and connect to \
         have that resynced, or invalidate the whole disk",
    ))
}

/// What came of new or converted metadata.
fn metadata_written(result: Result<Vec<String>, create_md::Error>) -> Done<Answer> {
    match result {
        Ok(remarks) if remarks.is_empty() => Ok(Answer::Done),
        Ok(remarks) => Ok(Answer::Remarks(remarks)),
        Err(create_md::Error::Refused(refusal)) => Err(refusal.into()),
        Err(create_md::Error::Failed(text)) => {
            Err(Stop::failed(FailureKind::Io, text, "see to the device, then repeat it"))
        }
    }
}
