//! Commands that change something: one request to the engine each (drbdsetup contract §2).

use codec::admin::Request;
use codec::config::{Handlers, MetaDisk, PathConfig, PeerConfig, ResourceConfig, VolumeConfig};
use vocab::options::{DeviceOptions, DiskOptions, NetOptions, ResourceOptions};
use vocab::{ConfigError, Minor, NodeId, Sector};

use super::Session;
use super::error::Stop;
use super::table::{NAME, Verb};

impl Session<'_> {
    /// Carries a command out.
    pub(super) fn change(&mut self) -> Result<(), Stop> {
        match self.parsed.command.verb {
            Verb::Down => self.down(),
            Verb::DelMinor => {
                let minor = self.parsed.minor(0)?;
                let _lock = self.machine.places.lock(minor)?;
                self.order(Request::DelMinor { minor })?;
                self.machine.places.forget_minor(minor);
                Ok(())
            }
            Verb::DelResource => {
                let resource = self.parsed.resource();
                self.order(Request::DelResource { resource: resource.clone() })?;
                self.machine.places.forget_resource(&resource);
                Ok(())
            }
            Verb::NewResource => {
                let options = self.parsed.apply(ResourceOptions::default())?;
                let (resource, node_id) = (self.parsed.resource(), self.parsed.node(1)?);
                // Those of drbdadm's configuration, which it finds by itself.
                let handlers = Handlers::Helper;
                self.order(Request::NewResource { resource, node_id, options, handlers })
            }
            Verb::ResourceOptions => {
                let config = self.config()?;
                let options = self.parsed.apply(config.options)?;
                self.order(Request::ResourceOptions { resource: config.name, options })
            }
            Verb::NewMinor => self.new_minor(),
            Verb::Attach => self.attach(),
            Verb::DiskOptions => self.disk_options(),
            Verb::Detach | Verb::Invalidate | Verb::NewCurrentUuid | Verb::Outdate => {
                self.on_minor()
            }
            Verb::SuspendIo | Verb::ResumeIo => self.suspension(),
            Verb::NewPeer => {
                let Some(name) = self.parsed.text(NAME.name).map(str::to_owned) else {
                    let text = "--_name is missing: a connection has the name of its peer";
                    return Err(Stop::usage(self.parsed.command, text));
                };
                let options = self.parsed.apply(NetOptions::default())?;
                let (resource, peer) = (self.parsed.resource(), self.parsed.node(1)?);
                self.order(Request::NewPeer { resource, peer, name, options })
            }
            Verb::NetOptions => self.net_options(),
            Verb::PeerDeviceOptions => self.peer_device_options(),
            Verb::Resize => self.resize(),
            Verb::RenameResource => Err(self.not_supported()),
            verb => {
                let request = self.simple(verb)?;
                self.order(request)
            }
        }
    }

    /// Commands that are one request made of the command line alone.
    fn simple(&self, verb: Verb) -> Result<Request, Stop> {
        let p = &self.parsed;
        let resource = p.resource();
        let path = || -> Result<PathConfig, Stop> {
            Ok(PathConfig { local: p.address(2)?, remote: p.address(3)? })
        };
        Ok(match verb {
            Verb::Primary => Request::Primary { resource, force: p.flag("force") },
            Verb::Secondary => Request::Secondary { resource, force: p.flag("force") },
            Verb::DelPeer => {
                Request::DelPeer { resource, peer: p.node(1)?, force: p.flag("force") }
            }
            Verb::NewPath => Request::NewPath { resource, peer: p.node(1)?, path: path()? },
            Verb::DelPath => Request::DelPath { resource, peer: p.node(1)?, path: path()? },
            Verb::Connect if p.flag("tentative") => {
                let detail = "a connection can not be tried without being made";
                return Err(p.refusal(ConfigError::InvalidRequest, detail));
            }
            Verb::Connect => {
                let discard_my_data = p.flag("discard-my-data");
                Request::Connect { resource, peer: p.node(1)?, discard_my_data }
            }
            Verb::Disconnect => {
                Request::Disconnect { resource, peer: p.node(1)?, force: p.flag("force") }
            }
            Verb::ForgetPeer => Request::ForgetPeer { resource, peer: p.node(1)? },
            Verb::InvalidateRemote => Request::InvalidateRemote {
                resource,
                peer: p.node(1)?,
                volume: p.volume(2)?,
                reset_bitmap: p.text("reset-bitmap") != Some("no"),
            },
            Verb::PauseSync => {
                Request::PauseSync { resource, peer: p.node(1)?, volume: p.volume(2)? }
            }
            Verb::ResumeSync => {
                Request::ResumeSync { resource, peer: p.node(1)?, volume: p.volume(2)? }
            }
            Verb::Verify => Request::Verify {
                resource,
                peer: p.node(1)?,
                volume: p.volume(2)?,
                start: Sector(p.amount("start").unwrap_or(0)),
                stop: p.amount("stop").map(Sector),
            },
            _ => unreachable!("the other commands have functions of their own"),
        })
    }

    fn not_supported(&self) -> Stop {
        let detail = "a resource keeps its name; take it down and create it under the other one";
        self.parsed.refusal(ConfigError::InvalidRequest, detail)
    }

    /// One resource or all; goes on after a failure.
    fn down(&mut self) -> Result<(), Stop> {
        let configs = self.configs(None)?;
        let names = match self.parsed.resource_or_all() {
            Some(name) => vec![name],
            None => configs.iter().map(|config| config.name.clone()).collect(),
        };
        let several = names.len() > 1;
        let mut first = None;
        for name in names {
            match self.order(Request::Down { resource: name.clone() }) {
                Ok(()) => {
                    let volumes =
                        configs.iter().filter(|c| c.name == name).flat_map(|c| &c.volumes);
                    volumes.for_each(|v| self.machine.places.forget_minor(v.minor));
                    self.machine.places.forget_resource(&name);
                }
                Err(stop) if several => {
                    let stop = match stop {
                        Stop::Refused { refusal, .. } => Stop::Refused { object: name, refusal },
                        stop => stop,
                    };
                    writeln!(self.err, "{stop}")?;
                    first.get_or_insert(stop.status());
                }
                Err(stop) => return Err(stop),
            }
        }
        first.map_or(Ok(()), |status| Err(Stop::Exit { status, text: String::new() }))
    }

    fn new_minor(&mut self) -> Result<(), Stop> {
        let options = self.parsed.apply(DeviceOptions::default())?;
        let (minor, volume) = (self.parsed.minor(1)?, self.parsed.volume(2)?);
        let _lock = self.machine.places.lock(minor)?;
        let resource = self.parsed.resource();
        let exists = self.configs(Some(resource.clone()))?;
        let exists = exists.iter().flat_map(|c| &c.volumes).any(|v| v.minor == minor);
        // With a block device of the engine's under DRBD's name, the kernel has its minor, too.
        if !exists && self.machine.places.kernel_has(minor) {
            let detail = format!("the kernel has a device drbd{minor}; give another minor");
            return Err(self.parsed.refusal(ConfigError::MinorExists, detail));
        }
        self.order(Request::NewMinor { resource, volume, minor, options })
    }

    fn attach(&mut self) -> Result<(), Stop> {
        let p = &self.parsed;
        let options = p.apply(DiskOptions::default())?;
        let (minor, disk, meta) = (p.minor(0)?, p.device(1), p.device(2));
        let external = |index| MetaDisk::External { device: meta.clone(), index };
        let meta_disk = match p.argument(3) {
            "internal" if meta == disk => MetaDisk::Internal,
            "internal" => {
                let text = format!("internal metadata of {disk} are on {disk}, not on {meta}");
                return Err(Stop::usage(p.command, text));
            }
            "flexible" => external(None),
            index => match index.parse() {
                Ok(index) => external(Some(index)),
                Err(_) => {
                    let text = format!("`{index}` is not internal, flexible nor an index");
                    return Err(Stop::usage(p.command, text));
                }
            },
        };
        let _lock = self.machine.places.lock(minor)?;
        self.order(Request::Attach { minor, disk, meta_disk, options, luks: false })
    }

    fn disk_options(&mut self) -> Result<(), Stop> {
        let minor = self.parsed.minor(0)?;
        let _lock = self.machine.places.lock(minor)?;
        let (config, nr) = self.minor(minor)?;
        let Some(backing) = volume(&config, nr).and_then(|v| v.backing.clone()) else {
            return Err(self.parsed.refusal(ConfigError::NoDisk, ""));
        };
        let size = backing.options.size;
        let mut options = self.parsed.apply(backing.options)?;
        // This stays what it was when the disk was attached.
        options.size = size;
        self.order(Request::DiskOptions { minor, options })
    }

    /// Commands about the disk of a minor.
    fn on_minor(&mut self) -> Result<(), Stop> {
        let minor = self.parsed.last_minor()?;
        if let Some(name) = self.parsed.resource_of_minor() {
            let there = self.minor(minor)?.0.name;
            if there != name {
                let detail = format!("minor {minor} is a volume of {there}, not of {name}");
                return Err(self.parsed.refusal(ConfigError::InvalidRequest, detail));
            }
        }
        let p = &self.parsed;
        let request = match p.command.verb {
            Verb::Detach => {
                let (force, diskless) = (p.flag("force"), p.flag("diskless"));
                Request::Detach { minor, force, diskless }
            }
            Verb::Invalidate => {
                let reset_bitmap = p.text("reset-bitmap") != Some("no");
                let from = match p.amount("sync-from-peer-node-id") {
                    None => None,
                    Some(n) => Some(self.source(n)?),
                };
                Request::Invalidate { minor, from, reset_bitmap }
            }
            Verb::NewCurrentUuid if p.flag("force-resync") => {
                let detail = "--force-resync: a resync is forced by `invalidate-remote` here";
                return Err(p.refusal(ConfigError::InvalidRequest, detail));
            }
            Verb::NewCurrentUuid => {
                Request::NewCurrentUuid { minor, clear_bitmap: p.flag("clear-bitmap") }
            }
            _ => Request::Outdate { minor },
        };
        let _lock = self.machine.places.lock(minor)?;
        self.order(request)
    }

    fn source(&self, n: u64) -> Result<NodeId, Stop> {
        let node = u8::try_from(n).ok().and_then(NodeId::new);
        let detail = || format!("--sync-from-peer-node-id: there is no node id {n}");
        node.ok_or_else(|| self.parsed.refusal(ConfigError::InvalidRequest, detail()))
    }

    /// Both are about the whole resource of the minor.
    fn suspension(&mut self) -> Result<(), Stop> {
        if self.parsed.text("bdev-freeze") == Some("yes") {
            let detail = "--bdev-freeze: file systems are not frozen here; `fsfreeze` does that";
            return Err(self.parsed.refusal(ConfigError::InvalidRequest, detail));
        }
        let minor = self.parsed.minor(0)?;
        let _lock = self.machine.places.lock(minor)?;
        let resource = self.minor(minor)?.0.name;
        self.order(match self.parsed.command.verb {
            Verb::SuspendIo => Request::SuspendIo { resource, for_ms: None },
            _ => Request::ResumeIo { resource },
        })
    }

    /// A connection of the resource named first.
    fn peer(&mut self, config: &ResourceConfig) -> Result<PeerConfig, Stop> {
        let node = self.parsed.node(1)?;
        let peer = config.peers.iter().find(|peer| peer.node_id == node).cloned();
        let detail = || format!("{} has no connection to node {node}", config.name);
        peer.ok_or_else(|| self.parsed.refusal(ConfigError::InvalidRequest, detail()))
    }

    fn net_options(&mut self) -> Result<(), Stop> {
        let config = self.config()?;
        let peer = self.peer(&config)?;
        if let Some(name) = self.parsed.text(NAME.name).filter(|name| *name != peer.name) {
            let detail = format!(
                "the connection to node {} is named {}; remove it and create it as {name}",
                peer.node_id, peer.name
            );
            return Err(self.parsed.refusal(ConfigError::InvalidRequest, detail));
        }
        let mut options = self.parsed.apply(peer.net.clone())?;
        // These stay what they were when the connection was created.
        options.transport = peer.net.transport;
        options.load_balance_paths = peer.net.load_balance_paths;
        self.order(Request::NetOptions { resource: config.name, peer: peer.node_id, options })
    }

    fn peer_device_options(&mut self) -> Result<(), Stop> {
        let config = self.config()?;
        let peer = self.peer(&config)?;
        let nr = self.parsed.volume(2)?;
        let Some(device) = peer.volumes.into_iter().find(|v| v.nr == nr) else {
            let detail = format!("{} has no volume {nr}", config.name);
            return Err(self.parsed.refusal(ConfigError::InvalidRequest, detail));
        };
        let options = self.parsed.apply(device.options)?;
        let (resource, peer) = (config.name, peer.node_id);
        self.order(Request::PeerDeviceOptions { resource, peer, volume: nr, options })
    }

    /// Changes the size of a volume.
    fn resize(&mut self) -> Result<(), Stop> {
        let p = &self.parsed;
        if let Some(name) =
            ["al-stripes", "al-stripe-size-kB"].iter().find(|n| p.amount(n).is_some())
        {
            let detail = format!(
                "--{name}: the activity log keeps the layout that create-md gave it; leave the option \
                 out"
            );
            return Err(p.refusal(ConfigError::InvalidRequest, detail));
        }
        let request = Request::Resize {
            minor: p.minor(0)?,
            size: p.amount("size").filter(|size| *size != 0).map(Sector),
            assume_peer_has_space: p.flag("assume-peer-has-space"),
            assume_clean: p.flag("assume-clean"),
        };
        let _lock = self.machine.places.lock(p.minor(0)?)?;
        self.order(request)
    }

    /// Notes where the metadata of a disk is (drbdsetup contract §3.6).
    pub(super) fn check_resize(&mut self) -> Result<(), Stop> {
        let minor: Minor = self.parsed.minor(0)?;
        let _lock = self.machine.places.lock(minor)?;
        let (config, nr) = self.minor(minor)?;
        let backing = volume(&config, nr).and_then(|v| v.backing.as_ref());
        let internal = backing.filter(|b| b.meta_disk == MetaDisk::Internal);
        self.machine.places.note_disk(minor, internal.map(|b| b.disk.as_str()))
    }
}

fn volume(config: &ResourceConfig, nr: vocab::VolumeNr) -> Option<&VolumeConfig> {
    config.volumes.iter().find(|v| v.nr == nr)
}
