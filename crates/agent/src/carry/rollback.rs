//! Resources that go back to a snapshot.
//!
//! One is taken down first, and that is written down: from then on nothing here brings it up but a
//! new configuration, whatever is restarted. A replica that came up with the newer data would give
//! them to those that have gone back already.

use cluster::layer::Layer;
use cluster::name::SnapshotName;
use cluster::objects::Generation;
use codec::admin::Request;
use vocab::VolumeNr;

use super::Step;
use crate::failed::Failed;
use crate::metadata::{self, At};
use crate::record::{Down, DownState, Export, Metadata, Record};
use crate::storage::Name;

impl Step<'_> {
    fn is_replicated(record: &Record) -> bool {
        record.config.as_ref().is_none_or(|config| config.layers.contains(&Layer::Drbd))
    }

    pub(super) fn take_down(&self, token: Generation) -> Result<(), Failed> {
        let record = self.record()?;
        let begun = record.down.as_ref().filter(|down| down.token == token);
        if begun.is_some_and(|down| down.state != DownState::Going) {
            return Ok(());
        }
        if Self::is_replicated(&record) {
            self.nobody_uses_it("a rollback")?;
            self.settle_metadata()?;
            // What is served is known only before it is taken down the first time.
            let exports = match record.down {
                Some(down) => down.exports,
                None => self.exports()?,
            };
            let down = Down { token, state: DownState::Going, exports };
            self.update(|record| record.down = Some(down))?;
            let resource = self.name.to_string();
            let what = format!("down {resource}");
            self.engine.ask_patiently(&what, &Request::Down { resource })?;
        }
        self.update(|record| {
            let exports = record.down.take().map(|down| down.exports).unwrap_or_default();
            record.down = Some(Down { token, state: DownState::Down, exports });
        })
    }

    /// The record of a resource that is down for this token, as far as the agent and the engine know.
    fn down_for(&self, token: Generation) -> Result<Record, Failed> {
        let record = self.record()?;
        let up = Self::is_replicated(&record) && self.status()?.is_some();
        let down = record.down.as_ref().is_some_and(|down| {
            down.token == token && matches!(down.state, DownState::Down | DownState::Changed)
        });
        if down && !up {
            return Ok(record);
        }
        Err(Failed::new(
            format!("{} is not down for the rollback on node {}", self.name, self.node.name),
            match up {
                true => "take it down: somebody has brought it up",
                false => "nothing is to be done: the next plan takes it down",
            },
        ))
    }

    fn changed(&self) -> Result<(), Failed> {
        self.update(|record| {
            if let Some(down) = &mut record.down {
                down.state = DownState::Changed;
            }
        })
    }

    pub(super) fn roll_back(&self, token: Generation, name: &SnapshotName) -> Result<(), Failed> {
        let record = self.down_for(token)?;
        if record.down.as_ref().is_some_and(|down| down.state == DownState::Changed) {
            return Ok(());
        }
        let Some(snapshot) = record.snapshots.get(name).filter(|snapshot| snapshot.complete) else {
            return Err(Failed::new(
                format!("{} has no snapshot {name} on node {}", self.name, self.node.name),
                "restore another snapshot into a new resource definition",
            ));
        };
        let part = Name::new(name.as_str())?;
        for (number, (pool, kind)) in &snapshot.volumes {
            let volume = self.pool(pool, *kind)?.rollback(&self.volume_name(*number)?, &part)?;
            let path = super::volumes::path_of(&volume)?;
            let luks = record.volumes.get(number).and_then(|volume| volume.luks.clone());
            let key = luks.map(|sealed| self.open(*number, &path, &sealed)).transpose()?;
            let has = metadata::exists(At { path: &path, key: key.as_ref() })?;
            self.update(|record| {
                if let Some(there) = record.volumes.get_mut(number) {
                    (there.size, there.path) = (volume.size.0, path);
                    there.metadata = if has { Metadata::Made } else { Metadata::None };
                    there.growing = None;
                }
            })?;
        }
        self.changed()
    }

    pub(super) fn discard(&self, token: Generation) -> Result<(), Failed> {
        let record = self.down_for(token)?;
        if record.down.as_ref().is_some_and(|down| down.state == DownState::Changed) {
            return Ok(());
        }
        record.volumes.keys().try_for_each(|number| self.delete_volume(*number))?;
        self.changed()
    }

    /// Refuses to bring up what is down for a rollback.
    pub(super) fn may_be_up(&self, record: &Record) -> Result<(), Failed> {
        match &record.down {
            Some(down) if down.state != DownState::Back => Err(Failed::new(
                format!("{} is down for a rollback on node {}", self.name, self.node.name),
                "nothing is to be done: it comes up when all nodes have the snapshot's data",
            )),
            _ => Ok(()),
        }
    }

    /// What was served before is served again.
    pub(super) fn back_from_rollback(&self) -> Result<(), Failed> {
        if let Some(down) = self.record()?.down {
            self.export_again(down.exports)?;
            self.update(|record| record.down = None)?;
        }
        Ok(())
    }

    /// What is served of the resource: it goes when the resource is taken down.
    fn exports(&self) -> Result<Vec<Export>, Failed> {
        let exports = self.engine.exports(self.name.as_str())?.into_iter().map(|export| Export {
            name: export.name,
            volume: export.volume.0,
            listen: export.listen,
            read_only: export.read_only,
        });
        Ok(exports.collect())
    }

    /// Serves again what was served before.
    fn export_again(&self, exports: Vec<Export>) -> Result<(), Failed> {
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
}
