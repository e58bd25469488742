//! Volumes that grow.
//!
//! The engine can resize a volume that is up, and this does not use it yet: a volume grows while the resource is down on
//! its node, which nobody may use anywhere then: metadata are kept aside, the backing volume grows,
//! metadata go to its new end and say the new size, which is the same on every node. Nodes that
//! have not grown yet are refused by those that have (connecting would shrink them), so sizes never
//! differ under a connection; who was refused tries again.

use cluster::layer::Layer;
use codec::admin::Request;
use vocab::{Bytes, VolumeNr};

use super::Step;
use crate::failed::Failed;
use crate::files;
use crate::metadata;
use crate::record::{Export, Growing, Metadata};

impl Step<'_> {
    pub(super) fn grow_volume(&self, number: u16, size: Bytes) -> Result<(), Failed> {
        let volume = self.volume(number)?;
        let pool = self.pool(&volume.pool, volume.provider)?;
        if volume.growing.is_none() && volume.size >= size.0 {
            return Ok(());
        }
        if volume.metadata == Metadata::None {
            let grown = pool.grow(&self.volume_name(number)?, size)?;
            return self.has_grown(number, grown.size);
        }
        let aside = self.node.store.aside(self.name, number);
        // Without its key it could be taken down, and not be brought up again.
        let key = self.key_of(number, &volume)?;
        if volume.growing.is_none() {
            self.nobody_uses_it("growing a volume")?;
            let growing = Growing { to: size.0, exports: self.exports()? };
            self.removed_aside(number)?;
            self.update(|record| {
                record.reconnect = true;
                record.volumes.entry(number).and_modify(|v| v.growing = Some(growing));
            })?;
        }
        let to = self.volume(number)?.growing.map_or(size.0, |growing| growing.to);
        if self.volume(number)?.size >= to && !aside.exists() {
            return self.back_up(number);
        }
        let resource = self.name.to_string();
        let down =
            self.engine.ask_patiently(&format!("down {resource}"), &Request::Down { resource });
        if let (Err(failed), false) = (&down, aside.exists()) {
            // It was opened meanwhile. Nothing has grown; what was taken down comes back.
            self.back_up(number)?;
            return Err(failed.clone());
        }
        down?;
        if !aside.exists() {
            metadata::keep_aside(volume.at(key.as_ref()), &aside)?;
        }
        let grown = pool.grow(&self.volume_name(number)?, Bytes(to)).map_err(Failed::from);
        let at = volume.at(key.as_ref());
        match &grown {
            Ok(grown) => {
                metadata::put_back(at, &aside, to)?;
                self.has_grown(number, grown.size)?;
            }
            // Where the end has moved, only what is kept aside knows the metadata.
            Err(failed) if !metadata::is_as_kept(at, &aside)? => {
                return Err(failed.clone());
            }
            Err(_) => {}
        }
        // From when it is up again its metadata go on: what was kept aside is old then.
        self.removed_aside(number)?;
        self.back_up(number)?;
        grown.map(drop)
    }

    /// Brings the resource up again, with what was served of it.
    fn back_up(&self, number: u16) -> Result<(), Failed> {
        self.adjust()?;
        let exports = self.record()?.volumes.get(&number).and_then(|v| v.growing.clone());
        self.export_again(exports.map(|growing| growing.exports).unwrap_or_default())?;
        self.grown(number)
    }

    /// What is served of the resource: it goes when the resource is taken down.
    pub(super) fn exports(&self) -> Result<Vec<Export>, Failed> {
        let exports = self.engine.exports(self.name.as_str())?.into_iter().map(|export| Export {
            name: export.name,
            volume: export.volume.0,
            listen: export.listen,
            read_only: export.read_only,
        });
        Ok(exports.collect())
    }

    /// Serves again what was served before.
    pub(super) fn export_again(&self, exports: Vec<Export>) -> Result<(), Failed> {
        for export in exports {
            let what = format!("export volume {} of {} again", export.volume, self.name);
            let there = self.engine.exports(self.name.as_str())?;
            if there.iter().any(|other| other.name == export.name) {
                continue;
            }
            let request = Request::Export {
                resource: self.name.to_string(),
                volume: VolumeNr(export.volume),
                name: export.name,
                listen: export.listen,
                read_only: export.read_only,
            };
            self.engine.ask(&what, request)?;
        }
        Ok(())
    }

    fn has_grown(&self, number: u16, size: Bytes) -> Result<(), Failed> {
        self.update(|record| {
            record.volumes.entry(number).and_modify(|volume| volume.size = size.0);
        })
    }

    fn grown(&self, number: u16) -> Result<(), Failed> {
        self.update(|record| {
            record.volumes.entry(number).and_modify(|volume| volume.growing = None);
        })
    }

    fn removed_aside(&self, number: u16) -> Result<(), Failed> {
        files::remove(&self.node.store.aside(self.name, number)).map_err(|error| {
            Failed::new(
                format!("what was kept aside of {} can not be removed: {error}", self.name),
                "see to the agent's folder",
            )
        })
    }

    /// A device has grown when its backing volume has; this only looks.
    pub(super) fn grow_device(&self, number: u16, size: Bytes) -> Result<(), Failed> {
        let record = self.record()?;
        let drbd = record.config.as_ref().is_some_and(|c| c.layers.contains(&Layer::Drbd));
        if !drbd {
            return Ok(());
        }
        let status = self.status()?;
        let device = status.as_ref().and_then(|s| s.devices.iter().find(|d| d.volume.0 == number));
        if device.is_some_and(|device| device.size * 1024 >= size.0) {
            return Ok(());
        }
        Err(Failed::new(
            format!(
                "volume {number} of {} has {} KiB, not yet {}: it grows when its backing volume \
                 does, and all of them are larger",
                self.name,
                device.map_or(0, |device| device.size),
                size.0 / 1024
            ),
            "nothing is to be done if nodes are on their way; otherwise take the resource down and \
             up on this node",
        ))
    }

    /// Refuses to use a volume whose metadata are kept aside: they are not on it, or old.
    pub(super) fn none_is_aside(&self) -> Result<(), Failed> {
        let record = self.record()?;
        let aside = |number: &&u16| self.node.store.aside(self.name, **number).exists();
        match record.volumes.keys().find(aside) {
            None => Ok(()),
            Some(number) => Err(Failed::new(
                format!("volume {number} of {} has not finished growing", self.name),
                "see to its pool; it is tried again with the next plan",
            )),
        }
    }

    /// What a crash has left in the middle is done to its end.
    pub(super) fn finish_growing(&self) -> Result<(), Failed> {
        let record = self.record()?;
        for (number, volume) in &record.volumes {
            if let Some(growing) = &volume.growing {
                self.grow_volume(*number, Bytes(growing.to))?;
            }
        }
        Ok(())
    }
}
