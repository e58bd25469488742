//! Volumes that grow, whether somebody uses them or not.
//!
//! Metadata are at the end of a device. When that has moved the engine brings them there, as soon as
//! it is asked to resize (`docs/design/resize.md`); until then they stay where the end was. An engine
//! that is started in between looks for them at the new end and finds nothing. So before a volume
//! grows it is written down where its end is, and what tells its metadata from others'. With that
//! the agent brings them to the new end itself, while the engine does not have the disk.

use cluster::layer::Layer;
use codec::admin::{DeviceStatus, Request, ResourceStatus};
use vocab::{Bytes, DiskState};

use super::Step;
use crate::configure;
use crate::failed::Failed;
use crate::files;
use crate::metadata;
use crate::record::{Growing, Metadata, Record};

impl Step<'_> {
    pub(super) fn grow_volume(&self, number: u16, size: Bytes) -> Result<(), Failed> {
        let volume = self.volume(number)?;
        let pool = self.pool(&volume.pool, volume.provider)?;
        if volume.size >= size.0 {
            return Ok(());
        }
        let growing = match volume.metadata {
            Metadata::Made => Some(self.remember_end(number)?),
            Metadata::None | Metadata::Begun => None,
        };
        let grown = pool.grow(&self.volume_name(number)?, size)?;
        self.fit_mapped(number, &volume)?;
        if let (Some(growing), false) = (growing, volume.provider.starts_zeroed()) {
            let reached = self.reach(number, &volume)?;
            metadata::forget_others(reached.at(), growing.device_uuid)?;
        }
        self.update(|record| {
            record.volumes.entry(number).and_modify(|volume| volume.size = grown.size.0);
        })?;
        self.settle_metadata()
    }

    /// Writes down where the metadata of a volume can be until they are known to be at its end.
    fn remember_end(&self, number: u16) -> Result<Growing, Failed> {
        let volume = self.volume(number)?;
        let reached = self.reach(number, &volume)?;
        let at = reached.at();
        let end = metadata::device_size(at)?;
        let mut growing = match volume.growing.clone() {
            Some(growing) => growing,
            None => {
                self.remove_aside(number)?;
                let device_uuid = metadata::device_uuid(at)?;
                Growing { device_uuid, ends: Vec::new() }
            }
        };
        if !growing.ends.contains(&end) {
            growing.ends.push(end);
        }
        let kept = Some(growing.clone());
        self.update(|record| {
            record.volumes.entry(number).and_modify(|volume| volume.growing = kept);
        })?;
        Ok(growing)
    }

    /// Sees to it that the metadata of volumes that have grown are at their ends, as far as that is
    /// not for the engine to do.
    pub(super) fn settle_metadata(&self) -> Result<(), Failed> {
        let record = self.record()?;
        if !record.is_growing() {
            return Ok(());
        }
        let status = self.status()?;
        for (number, volume) in &record.volumes {
            let Some(growing) = volume.growing.as_ref().filter(|_| !volume.removing) else {
                continue;
            };
            let reached = self.reach(*number, volume)?;
            let at = reached.at();
            let at_end = metadata::is_at_end(at, growing.device_uuid)?;
            let attached = has_disk(status.as_ref(), *number);
            if !at_end && attached {
                // They are where the engine knows, and go to the end when it resizes.
                continue;
            }
            if !at_end {
                let aside = self.node.store.aside(self.name, *number);
                let (ends, uuid) = (&growing.ends, growing.device_uuid);
                metadata::bring_to_end(at, &aside, ends, uuid)?;
            }
            // From when they are used again they go on: what was kept aside is old then.
            self.remove_aside(*number)?;
            if attached {
                self.update(|record| {
                    record.volumes.entry(*number).and_modify(|volume| volume.growing = None);
                })?;
            }
        }
        Ok(())
    }

    /// The same at a time when nobody has asked for anything: disks that an engine could not attach
    /// because their metadata were not at the end are attached.
    pub(super) fn recover_growth(&self) -> Result<(), Failed> {
        let record = self.record()?;
        let Some(config) = record.config.as_ref().filter(|_| record.is_growing()) else {
            return self.settle_metadata();
        };
        if !self.has_keys(&record) {
            // It goes on when they are known.
            return Ok(());
        }
        self.settle_metadata()?;
        if record.down.is_some() || self.status()?.is_none() {
            // It is down, and stays so.
            return Ok(());
        }
        self.adjust()?;
        let status = self.status()?;
        for volume in configure::of(&self.node.name, &record, config)?.volumes {
            let number = volume.nr.0;
            let grown = record.volumes.get(&number).is_some_and(|volume| volume.growing.is_some());
            let Some(backing) = volume.backing.filter(|_| grown) else { continue };
            if !has_disk(status.as_ref(), number) {
                let what = format!("attach {} to volume {number}", backing.disk);
                let (minor, disk, meta_disk) = (volume.minor, backing.disk, backing.meta_disk);
                let (options, luks) = (backing.options, backing.luks);
                let request = Request::Attach { minor, disk, meta_disk, options, luks };
                self.engine.ask_patiently(&what, &request)?;
            }
        }
        self.settle_metadata()
    }

    fn remove_aside(&self, number: u16) -> Result<(), Failed> {
        files::remove(&self.node.store.aside(self.name, number)).map_err(|error| {
            Failed::new(
                format!("what was kept aside of {} can not be removed: {error}", self.name),
                "see to the agent's folder",
            )
        })
    }

    /// The device grows when all backing volumes have: the engine agrees on it with its peers.
    pub(super) fn grow_device(&self, number: u16, size: Bytes) -> Result<(), Failed> {
        let record = self.record()?;
        let drbd = record.config.as_ref().is_some_and(|c| c.layers.contains(&Layer::Drbd));
        if !drbd || self.device_size(number)? >= size.0 {
            return Ok(());
        }
        let status = self.status()?;
        if let Some(device) = device(status.as_ref(), number) {
            let what = format!("resize volume {number} of {}", self.name);
            let request = Request::Resize {
                minor: device.minor,
                // What all have room for: pools may have rounded up.
                size: None,
                assume_peer_has_space: false,
                assume_clean: false,
            };
            let asked = self.engine.ask_patiently(&what, &request);
            // Another node may have been asked before: then it has grown, what is new is being copied, and
            // no size is changed meanwhile.
            if self.device_size(number)? < size.0 {
                asked?;
            }
            self.settle_metadata()?;
        }
        let has = self.device_size(number)?;
        if has >= size.0 {
            return Ok(());
        }
        Err(Failed::new(
            format!(
                "volume {number} of {} has {} KiB, not yet {}: not every replica that is connected \
                 has room for that",
                self.name,
                has / 1024,
                size.0 / 1024
            ),
            "nothing is to be done if nodes are on their way: it is tried again with the next plan",
        ))
    }

    /// What users see of a volume, in bytes; 0 if it is not up.
    fn device_size(&self, number: u16) -> Result<u64, Failed> {
        Ok(device(self.status()?.as_ref(), number).map_or(0, |device| device.size * 1024))
    }
}

impl Record {
    /// True if metadata of a volume may be elsewhere than at its end.
    pub fn is_growing(&self) -> bool {
        self.volumes.values().any(|volume| volume.growing.is_some() && !volume.removing)
    }
}

fn device(status: Option<&ResourceStatus>, number: u16) -> Option<&DeviceStatus> {
    status?.devices.iter().find(|device| device.volume.0 == number)
}

/// True if the engine has the disk, in whatever state.
pub(super) fn has_disk(status: Option<&ResourceStatus>, number: u16) -> bool {
    device(status, number).is_some_and(|device| device.disk_state > DiskState::Diskless)
}
