//! Backing volumes and their metadata.

use cluster::layer::Layer;
use cluster::name::{ResourceName, SnapshotName};
use cluster::objects::Generation;
use cluster::plan::{Backing, Begin, Guard};
use codec::admin::Request;
use codec::config::MetaDisk;
use logging::{Level, log};
use vocab::{Bytes, DiskState, GenUuid, NodeId};

use super::Step;
use crate::engine;
use crate::failed::Failed;
use crate::metadata;
use crate::record::{Metadata, Record, Volume};
use crate::storage::{self, Name};

impl Step<'_> {
    pub(super) fn volume_name(&self, volume: u16) -> Result<Name, Failed> {
        Ok(Name::of_volume(self.name.as_str(), "", volume)?)
    }

    pub(super) fn create_volume(&self, number: u16, backing: &Backing) -> Result<(), Failed> {
        self.make(number, backing, None)
    }

    pub(super) fn restore_volume(
        &self,
        number: u16,
        backing: &Backing,
        from: &ResourceName,
        snapshot: &SnapshotName,
    ) -> Result<(), Failed> {
        let source = Name::of_volume(from.as_str(), "", number)?;
        self.make(number, backing, Some((source, Name::new(snapshot.as_str())?)))
    }

    fn make(
        &self,
        number: u16,
        backing: &Backing,
        source: Option<(Name, Name)>,
    ) -> Result<(), Failed> {
        let luks = self.sealed(number, backing)?;
        let mapped = match luks {
            Some(_) => self.mapped(number, backing)?,
            None => None,
        };
        if self.record()?.volumes.get(&number).is_some_and(|volume| volume.removing) {
            self.delete_volume(number)?;
        }
        let there = self.record()?.volumes.get(&number).cloned();
        if there.as_ref().is_some_and(|there| there.size >= backing.size.0) {
            return Ok(());
        }
        let pool = self.pool(&backing.pool, backing.provider)?;
        let name = self.volume_name(number)?;
        if let Some(there) = there.filter(|there| there.size != 0) {
            return self.enlarge(number, &there, backing);
        }
        let found = pool.volumes()?.iter().any(|volume| volume.name == name.as_str());
        if let Some(begun) = self.record()?.volumes.get(&number) {
            // It may be open by the header that is about to be replaced.
            self.close_mapped(begun)?;
        }
        self.update(|record| {
            let begun = record.volumes.get(&number).is_some_and(|volume| volume.fresh);
            let volume = Volume {
                pool: backing.pool.clone(),
                provider: backing.provider,
                size: 0,
                path: String::new(),
                // What was begun and not finished is ours, too.
                fresh: begun || !found,
                metadata: Metadata::None,
                removing: false,
                growing: None,
                luks: luks.clone(),
                mapped: mapped.clone(),
                passphrase_changes: backing.passphrase_changes,
                next: None,
            };
            record.volumes.insert(number, volume);
        })?;
        let made = match &source {
            Some((volume, snapshot)) => pool.restore(volume, snapshot, &name),
            None => pool.create(&name, backing.size),
        };
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                // Nothing is left behind, but what was there before.
                self.update(|record| record.volumes.remove(&number))?;
                return Err(error.into());
            }
        };
        let path = path_of(&made)?;
        self.update(|record| {
            record.volumes.entry(number).and_modify(|volume| volume.path.clone_from(&path));
        })?;
        let mut volume = self.begun(number)?;
        let fresh = volume.fresh;
        // By that name it can only have been left open by one who lost the record of it.
        self.close_mapped(&volume)?;
        let restored = source.is_some();
        if fresh && !restored && !backing.provider.starts_zeroed() {
            metadata::wipe(&path)?;
        }
        if let (Some(sealed), false) = (&luks, restored) {
            self.format(number, &path, sealed, fresh)?;
        }
        let reached = match self.reach(number, &volume) {
            Err(failed) if volume.mapped.is_some() && self.node.mapper.may_give_up() => {
                // Nothing went through it yet, and the bytes are the same: the engine can have it.
                self.close_mapped(&volume)?;
                log!(Level::Warn, self.name, "the engine decrypts volume {number}: {failed}");
                volume.mapped = None;
                self.reach(number, &volume)?
            }
            reached => reached?,
        };
        let has = restored && metadata::exists(reached.at())?;
        self.update(|record| {
            if let Some(there) = record.volumes.get_mut(&number) {
                (there.size, there.mapped) = (made.size.0, volume.mapped);
                there.metadata = if has { Metadata::Made } else { Metadata::None };
            }
        })
    }

    /// Takes a volume that was there before this cluster was: it is only looked at. With metadata, if
    /// they are to be those of `node_id`.
    pub(super) fn adopt_volume(
        &self,
        number: u16,
        backing: &Backing,
        size: Bytes,
        node_id: Option<Option<NodeId>>,
    ) -> Result<(), Failed> {
        let luks = self.sealed(number, backing)?;
        let mapped = match luks {
            Some(_) => self.mapped(number, backing)?,
            None => None,
        };
        if let Some(there) = self.record()?.volumes.get(&number) {
            return match there.size {
                0 => {
                    Err(self.not_as_it_was(number, "this agent has begun to make one in its place"))
                }
                _ => Ok(()),
            };
        }
        let name = self.volume_name(number)?;
        let all = self.pool(&backing.pool, backing.provider)?.volumes()?;
        let found = all.iter().find(|volume| volume.name == name.as_str() && !volume.is_snapshot);
        let Some(found) = found else {
            let cause = format!("pool {} has no {name}", backing.pool);
            return Err(self.not_as_it_was(number, &cause));
        };
        if found.size < size {
            let cause = format!("it has {} bytes, and {} are to be used", found.size.0, size.0);
            return Err(self.not_as_it_was(number, &cause));
        }
        let volume = Volume {
            pool: backing.pool.clone(),
            provider: backing.provider,
            size: found.size.0,
            path: path_of(found)?,
            fresh: false,
            metadata: if node_id.is_some() { Metadata::Made } else { Metadata::None },
            removing: false,
            growing: None,
            luks,
            mapped,
            passphrase_changes: backing.passphrase_changes,
            next: None,
        };
        let reached = self.reach(number, &volume)?;
        if let Some(wanted) = node_id {
            let named = metadata::node_id(reached.at())?;
            if named.is_some() && named != wanted {
                let text = |id: Option<NodeId>| id.map_or("none".to_owned(), |id| id.to_string());
                let (named, wanted) = (text(named), text(wanted));
                let cause = format!("its metadata are of DRBD node {named}, and this is {wanted}");
                return Err(self.not_as_it_was(number, &cause));
            }
        }
        log!(Level::Info, self.name, "volume {number} is taken as it is: {}", volume.path);
        self.update(|record| record.volumes.insert(number, volume)).map(drop)
    }

    fn not_as_it_was(&self, number: u16, cause: &str) -> Failed {
        let node = &self.node.name;
        Failed::new(
            format!(
                "volume {number} of {} is not taken as it is on node {node}: {cause}",
                self.name
            ),
            format!(
                "bring back what was there; if this replica is lost, or never was made, and others have \
                 the data, delete the resource on node {node}"
            ),
        )
    }

    /// A volume that is being made.
    fn begun(&self, number: u16) -> Result<Volume, Failed> {
        self.record()?.volumes.get(&number).cloned().ok_or_else(|| {
            let text = format!("volume {number} of {} is not being made any more", self.name);
            Failed::new(text, "nothing is to be done: the next plan makes it")
        })
    }

    /// A volume that was made smaller than it is wanted by now.
    fn enlarge(&self, number: u16, there: &Volume, backing: &Backing) -> Result<(), Failed> {
        if there.metadata != Metadata::None {
            return self.grow_volume(number, backing.size);
        }
        let pool = self.pool(&there.pool, there.provider)?;
        let grown = pool.grow(&self.volume_name(number)?, backing.size)?;
        self.fit_mapped(number, there)?;
        self.update(|record| {
            if let Some(volume) = record.volumes.get_mut(&number) {
                volume.size = grown.size.0;
            }
        })
    }

    pub(super) fn volume(&self, number: u16) -> Result<Volume, Failed> {
        let record = self.record()?;
        let volume = record.volumes.get(&number).filter(|v| v.size != 0 && !v.removing).cloned();
        volume.ok_or_else(|| {
            let text = format!("{} has no backing volume {number} on this node", self.name);
            Failed::new(text, "nothing is to be done: the next plan makes it")
        })
    }

    pub(super) fn create_metadata(
        &self,
        number: u16,
        peer_slots: u8,
        node_id: Option<NodeId>,
        day_0: GenUuid,
        begin: Begin,
    ) -> Result<(), Failed> {
        let volume = self.volume(number)?;
        let set = |metadata| {
            self.update(|record| {
                if let Some(volume) = record.volumes.get_mut(&number) {
                    volume.metadata = metadata;
                }
            })
        };
        // What was begun by us is nobody's; what is found there may be somebody's.
        let force = match volume.metadata {
            Metadata::Made => return Ok(()),
            Metadata::Begun => true,
            Metadata::None => false,
        };
        let what = format!("make metadata on volume {number} of {}", self.name);
        let reached = self.reach(number, &volume)?;
        let (disk, meta_disk) = (reached.path.clone(), MetaDisk::Internal);
        let at = reached.at();
        if !force && metadata::exists(at)? {
            return Err(Failed::new(
                format!(
                    "{} has metadata that this agent did not make: volume {number} of {} would \
                     take the place of somebody's data",
                    volume.path, self.name
                ),
                "look at the volume; remove it from the pool if nobody needs it",
            ));
        }
        set(Metadata::Begun)?;
        if volume.mapped.is_none() {
            self.unlock(number, &volume)?;
        }
        let (max_peers, luks) = (peer_slots, volume.is_for_engine());
        let request = Request::CreateMd { disk, meta_disk, max_peers, force, luks };
        self.engine.ask(&what, request)?;
        metadata::begin(at, node_id, day_0, begin)?;
        set(Metadata::Made)
    }

    /// Begins the data on a disk that has none. Its metadata say so while it is detached: the core
    /// lets a generation begin under connected peers only if they, too, were never given any.
    pub(super) fn begin_data(&self, number: u16) -> Result<(), Failed> {
        let volume = self.volume(number)?;
        if volume.metadata != Metadata::Made {
            let text = format!("volume {number} of {} has no metadata yet", self.name);
            return Err(Failed::new(text, "nothing is to be done: the next plan makes them"));
        }
        let status = self.status()?;
        let device = status.as_ref().and_then(|s| s.devices.iter().find(|d| d.volume.0 == number));
        if let (Some(status), Some(device)) = (&status, device) {
            let peers = status
                .connections
                .iter()
                .flat_map(|peer| peer.peer_devices.iter().map(move |device| (&peer.name, device)));
            let mut with_data = peers.filter(|(_, device)| {
                device.volume.0 == number
                    && !engine::has_no_data(device.peer_disk_state)
                    && device.peer_disk_state != DiskState::DUnknown
            });
            if device.disk_state > DiskState::Inconsistent {
                return Ok(());
            }
            if !engine::has_no_data(device.disk_state) {
                let state = device.disk_state;
                return Err(Failed::new(
                    format!("volume {number} of {} is {state}: it may have data", self.name),
                    "nothing is to be done if it passes; otherwise see to the disk",
                ));
            }
            if let Some((peer, _)) = with_data.next() {
                return Err(Failed::new(
                    format!("volume {number} of {} has data on node {peer}", self.name),
                    "nothing is to be done: they come from there",
                ));
            }
            let (minor, force, diskless) = (device.minor, false, false);
            let what = format!("detach volume {number} of {}", self.name);
            self.engine.ask_patiently(&what, &Request::Detach { minor, force, diskless })?;
        }
        let begun =
            self.reach(number, &volume).and_then(|reached| metadata::begin_data(reached.at()));
        // Whatever came of it, the disk is attached again.
        self.adjust()?;
        begun.map(drop)
    }

    /// Deletes a backing volume that nobody uses any more.
    pub(super) fn delete_volume(&self, number: u16) -> Result<(), Failed> {
        let Some(volume) = self.record()?.volumes.get(&number).cloned() else { return Ok(()) };
        if !volume.removing {
            self.update(|record| {
                record.volumes.entry(number).and_modify(|volume| volume.removing = true);
            })?;
        }
        match volume.mapped {
            // What is open stays: somebody uses it.
            Some(_) => self.close_mapped(&volume)?,
            None => self.lock(number, &volume),
        }
        let remains = volume.metadata != Metadata::None && !volume.provider.starts_zeroed();
        // Of an encrypted one nothing can be read without its header.
        if remains && volume.luks.is_none() {
            // A volume that gets this space one day is not to find them at its end.
            metadata::erase(&volume.path)?;
        }
        self.pool(&volume.pool, volume.provider)?.remove(&self.volume_name(number)?)?;
        crate::files::remove(&self.node.store.aside(self.name, number)).map_err(|error| {
            Failed::new(
                format!("what was kept aside of {} can not be removed: {error}", self.name),
                "see to the agent's folder",
            )
        })?;
        self.update(|record| record.volumes.remove(&number)).map(drop)
    }

    /// From here on there is no way back. This is said when the data are no longer in use, and not
    /// before: what is still attached is looked at again each time.
    fn mark_removing(&self) -> Result<Record, Failed> {
        self.update(|record| {
            record.volumes.values_mut().for_each(|volume| volume.removing = true);
        })?;
        self.record()
    }

    fn data_stay(&self) -> String {
        format!("the data of {} stay", self.name)
    }

    pub(super) fn remove_disk(&self, guard: &Guard) -> Result<(), Failed> {
        let record = self.record()?;
        self.check(guard, &record, &self.data_stay())?;
        if let Some(config) = self.engine.config(self.name.as_str())? {
            for volume in config.volumes.iter().filter(|volume| volume.backing.is_some()) {
                let what = format!("detach volume {} of {}", volume.nr, self.name);
                let request = Request::Detach { minor: volume.minor, force: false, diskless: true };
                self.engine.ask_patiently(&what, &request)?;
            }
        }
        let record = self.mark_removing()?;
        record.volumes.keys().try_for_each(|number| self.delete_volume(*number))
    }

    pub(super) fn remove_volume(&self, number: u16) -> Result<(), Failed> {
        let configured = self.engine.config(self.name.as_str())?;
        let configured = configured.is_some_and(|c| c.volumes.iter().any(|v| v.nr.0 == number));
        self.update(|record| {
            if let Some(config) = &mut record.config {
                config.volumes.remove(&number);
            }
        })?;
        if configured {
            self.adjust()?;
        }
        self.delete_volume(number)
    }

    pub(super) fn remove(&self, guard: &Guard, generation: Generation) -> Result<(), Failed> {
        let record = self.record()?;
        let drbd = record.config.as_ref().is_none_or(|config| config.layers.contains(&Layer::Drbd));
        let status = if drbd { self.status()? } else { None };
        if status.as_ref().is_some_and(engine::is_in_use) {
            let node = &self.node.name;
            return Err(Failed::new(
                format!("{} is in use on node {node}", self.name),
                format!("close it on {node}; it is tried again with the next plan"),
            ));
        }
        self.check(guard, &record, &self.data_stay())?;
        if status.is_some() {
            let resource = self.name.to_string();
            self.engine.ask_patiently(&format!("down {resource}"), &Request::Down { resource })?;
        }
        let record = self.mark_removing()?;
        record.volumes.keys().try_for_each(|number| self.delete_volume(*number))?;
        self.update(|record| {
            record.config = None;
            record.suspension = None;
            record.reconnect = false;
            record.down = None;
            record.confirmed = generation;
        })?;
        self.node.store.drop_empty(self.name)
    }
}

pub(crate) fn path_of(volume: &storage::Volume) -> Result<String, Failed> {
    volume.path.to_str().map(str::to_owned).ok_or_else(|| {
        let text = format!("{} can not be told to the engine", volume.path.display());
        Failed::new(text, "use a pool whose path is UTF-8")
    })
}
