//! A resource on its way to another process: the core, its disks, and its connections.
//!
//! Counters, notes, and the times of requests stay behind: they are about one process.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use codec::disk::{Layout, MdParams};
use crypt::luks::Opened;
use replication::io::DiskLimits;
use replication::{Input, Resource};
use runtime::{DiskFile, Errno};
use serde::{Deserialize, Serialize};
use vocab::{NodeId, Sectors, VolumeNr};

use super::{Disk, Host, Io, Programs, Stream, TargetKey, Volumes};
use crate::keys::behind_header;
use crate::shard::volume::{Access, AtRest};
use crate::transport::FrozenLink;

/// A resource at rest. Its descriptors travel beside it: the disks', then the connections', in order.
#[derive(Serialize, Deserialize)]
pub(crate) struct FrozenHost {
    pub(crate) name: String,
    node_id: NodeId,
    core: Vec<u8>,
    last_admin: u64,
    pub(crate) volumes: Vec<FrozenVolume>,
    links: Vec<(NodeId, FrozenLink)>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct FrozenVolume {
    pub(crate) nr: VolumeNr,
    size: Sectors,
    block_size: u32,
    openers: Vec<u64>,
    /// Who opens it when they need it. An engine from before them does not know this field, and refuses to take over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    standby: Vec<(u64, Option<Access>)>,
    disk: Option<FrozenDisk>,
}

#[derive(Serialize, Deserialize)]
struct FrozenDisk {
    /// As it was configured.
    path: String,
    data: String,
    meta: Option<String>,
    layout: Layout,
    next_layout: Option<Layout>,
    params: MdParams,
    limits: DiskLimits,
    /// Of an encrypted disk.
    key: Option<Opened>,
}

impl FrozenDisk {
    fn of(path: &str, disk: &Disk) -> Result<(FrozenDisk, Vec<OwnedFd>), String> {
        let name = |file: &DiskFile| match file.path().to_str() {
            Some(path) => Ok(path.to_owned()),
            None => Err(format!("{}: the path is not UTF-8", file.path().display())),
        };
        let share = |file: &DiskFile| file.share().map_err(no_descriptors);
        let frozen = FrozenDisk {
            path: path.to_owned(),
            data: name(&disk.data)?,
            meta: disk.meta.as_ref().map(name).transpose()?,
            layout: disk.layout.get(),
            next_layout: disk.next_layout.get(),
            params: disk.params,
            limits: disk.limits,
            key: disk.key.clone(),
        };
        let files = std::iter::once(&disk.data).chain(&disk.meta);
        Ok((frozen, files.map(share).collect::<Result<_, _>>()?))
    }

    fn thaw(self, next: &mut dyn FnMut() -> Result<OwnedFd, String>) -> Result<Disk, String> {
        let mut adopt = |path: &str| {
            let behind = behind_header(self.key.as_ref());
            DiskFile::adopt(Path::new(path), next()?, behind).map_err(|error| error.to_string())
        };
        let data = adopt(&self.data)?;
        let meta = self.meta.as_deref().map(adopt).transpose()?;
        let FrozenDisk { layout, next_layout, params, limits, key, .. } = self;
        let (layout, next_layout) = (Cell::new(layout), Cell::new(next_layout));
        let crypt = key.as_ref().map(Opened::cipher);
        Ok(Disk { data, meta, crypt, key, layout, next_layout, params, limits })
    }
}

fn no_descriptors(errno: Errno) -> String {
    format!("no descriptor for another process: {errno}")
}

impl FrozenHost {
    /// How many descriptors belong to it.
    pub(crate) fn descriptors(&self) -> usize {
        let disks = self.volumes.iter().flat_map(|volume| &volume.disk);
        let disks: usize = disks.map(|disk| 1 + usize::from(disk.meta.is_some())).sum();
        disks + self.links.iter().map(|(_, link)| link.descriptors()).sum::<usize>()
    }
}

impl Host {
    /// Why the resource can not be handed over, whatever is waited for: whoever suspended I/O may have said
    /// for how long, and that is counted by this process.
    pub(crate) fn never_frozen(&self) -> Option<String> {
        let suspended = self.core.status().suspended.user;
        suspended.then(|| format!("{}: I/O is suspended; `ashlar resume-io` first", self.name))
    }

    /// The volumes, for front ends.
    pub(crate) fn targets(&self) -> Vec<TargetKey> {
        self.volumes.iter().map(|volume| volume.target).collect()
    }

    /// What can only end while packets of peers are taken.
    pub(crate) fn needs_peers(&self) -> Option<String> {
        self.core.needs_peers().map(|unsettled| format!("{}: {}", self.name, unsettled.what))
    }

    /// Other nodes whose I/O this one does wait for a while, or go on.
    pub(crate) fn hold_foreign(&mut self, io: &mut Io, volumes: &mut Volumes, hold: bool) {
        if self.core.holds_foreign() != hold {
            self.feed(io, volumes, Input::HoldForeign(hold));
        }
    }

    /// Takes nothing more from peers.
    pub(crate) fn pause(&mut self, io: &mut Io) {
        self.links.values_mut().for_each(|link| link.pause(io));
    }

    /// Goes on, also after it was thawed.
    pub(crate) fn resume(&mut self, io: &mut Io, volumes: &mut Volumes) {
        let nodes: Vec<NodeId> = self.links.keys().copied().collect();
        for node in nodes {
            if let Some(link) = self.links.get_mut(&node) {
                link.resume();
            }
            self.read(io, volumes, node, Stream::Data);
            self.read(io, volumes, node, Stream::Control);
        }
        self.hold_foreign(io, volumes, false);
        self.changed = true;
    }

    /// Tries to reach the peers to which the process before had no connection.
    pub(crate) fn connect_wanted(&mut self, io: &mut Io) {
        let wanted: Vec<NodeId> = self.core.wanted_links().collect();
        for node in wanted {
            if let Some(link) = self.links.get_mut(&node) {
                link.connect(io);
            }
        }
    }

    /// What a paused resource still waits for.
    pub(crate) fn unfrozen(&self, volumes: &mut Volumes) -> Option<String> {
        let what = if !self.admin.is_empty() {
            "a command is being carried out".to_owned()
        } else if self.volumes.iter().any(|volume| volume.attaching) {
            "a disk is being attached".to_owned()
        } else if let Some(unsettled) = self.core.unsettled() {
            unsettled.what
        } else if let Some(what) = self.links.values().find_map(|link| link.unfrozen()) {
            what
        } else {
            let at_rest = |key| volumes.get_mut(key).is_none_or(|volume| volume.is_at_rest());
            let all = self.volumes.iter().map(|volume| volume.target).all(at_rest);
            return (!all).then(|| format!("{}: clients wait for answers", self.name));
        };
        Some(format!("{}: {what}", self.name))
    }

    /// The resource and its descriptors; it stays as it is.
    ///
    /// # Errors
    /// Why it can not be frozen.
    pub(crate) fn freeze(
        &self,
        volumes: &mut Volumes,
    ) -> Result<(FrozenHost, Vec<OwnedFd>), String> {
        let core = self.core.freeze().map_err(|unsettled| unsettled.what)?;
        let mut descriptors = Vec::new();
        let mut frozen = FrozenHost {
            name: self.name.clone(),
            node_id: self.node_id,
            core,
            last_admin: self.last_admin,
            volumes: Vec::new(),
            links: Vec::new(),
        };
        for volume in &self.volumes {
            let disk = match (&volume.disk, &volume.path) {
                (Some(disk), Some(path)) => {
                    let (disk, files) = FrozenDisk::of(path, disk)?;
                    descriptors.extend(files);
                    Some(disk)
                }
                _ => None,
            };
            let target = volumes.get_mut(volume.target).ok_or("a volume is gone")?;
            let AtRest { size, block_size, openers, standby } = target.at_rest();
            let nr = volume.nr;
            frozen.volumes.push(FrozenVolume { nr, size, block_size, openers, standby, disk });
        }
        for (node, link) in &self.links {
            let (link, sockets) = link.freeze().map_err(no_descriptors)?;
            descriptors.extend(sockets);
            frozen.links.push((*node, link));
        }
        Ok((frozen, descriptors))
    }

    /// The resource as it was, paused.
    ///
    /// # Errors
    /// Why it can not be taken over. The process has to end then, see [`Link::thaw`].
    ///
    /// [`Link::thaw`]: crate::transport::Link::thaw
    pub(crate) fn thaw(
        id: u16,
        (io, volumes): (&mut Io, &mut Volumes),
        frozen: FrozenHost,
        programs: Programs,
        next: &mut dyn FnMut() -> Result<OwnedFd, String>,
    ) -> Result<Host, String> {
        let name = frozen.name;
        let core =
            Resource::from_frozen(&frozen.core).map_err(|error| format!("{name}: {error}"))?;
        let mut host = Host::around(id, name, frozen.node_id, core, programs);
        host.last_admin = frozen.last_admin;
        match host.take_over(io, volumes, (frozen.volumes, frozen.links), next) {
            Ok(()) => Ok(host),
            Err(why) => {
                // Dropping a connection would end it for the other process, too.
                std::mem::forget(host);
                Err(why)
            }
        }
    }

    fn take_over(
        &mut self,
        io: &mut Io,
        volumes: &mut Volumes,
        (frozen, links): (Vec<FrozenVolume>, Vec<(NodeId, FrozenLink)>),
        next: &mut dyn FnMut() -> Result<OwnedFd, String>,
    ) -> Result<(), String> {
        for volume in frozen {
            let key = self.add_volume(volumes, volume.nr);
            let target = volumes.get_mut(key).expect("just added");
            let FrozenVolume { size, block_size, openers, standby, .. } = volume;
            target.set_at_rest(AtRest { size, block_size, openers, standby });
            let there = self.volume_mut(volume.nr).expect("just added");
            if let Some(disk) = volume.disk {
                there.path = Some(disk.path.clone());
                there.disk = Some(Rc::new(disk.thaw(next)?));
            }
        }
        for (node, link) in links {
            self.add_link(node, &link.peer, link.net.clone());
            let sockets = (0..link.descriptors()).map(|_| next()).collect::<Result<_, _>>()?;
            let there = self.links.get_mut(&node).expect("just added");
            there.thaw(io, link, sockets).map_err(|e| format!("a socket of {node}: {e}"))?;
        }
        Ok(())
    }
}
