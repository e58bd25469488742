//! Resources that are kept down: they were deactivated, or go back to a snapshot.
//!
//! That one is taken down is written down: from then on nothing here brings it up but a new
//! configuration, whatever is restarted. A replica that came up with the newer data would give them to
//! those that have gone back already. What it misses meanwhile is said by its peers, but for those that
//! leave: their bitmap slots are given back when it comes up.

use std::collections::BTreeSet;

use cluster::layer::Layer;
use cluster::name::SnapshotName;
use cluster::objects::Generation;
use cluster::plan::{Guard, ResourceConfig};
use codec::admin::Request;
use vocab::{NodeId, VolumeNr};

use super::Step;
use crate::engine;
use crate::failed::Failed;
use crate::metadata;
use crate::record::{Down, DownState, Export, Metadata, Record, Volume};
use crate::storage::Name;

impl Step<'_> {
    fn is_replicated(record: &Record) -> bool {
        record.config.as_ref().is_none_or(|config| config.layers.contains(&Layer::Drbd))
    }

    /// With a guard its peers go on without it.
    pub(super) fn take_down(&self, token: Generation, guard: Option<&Guard>) -> Result<(), Failed> {
        let record = self.record()?;
        let begun = record.down.as_ref().filter(|down| down.token == token);
        if begun.is_some_and(|down| matches!(down.state, DownState::Down | DownState::Changed)) {
            return Ok(());
        }
        if Self::is_replicated(&record) {
            match guard {
                None => self.nobody_uses_it("a rollback")?,
                Some(guard) => self.others_go_on(guard, &record)?,
            }
            self.settle_metadata()?;
            // What is served is known only before it is taken down the first time.
            let (exports, left) = match record.down {
                Some(down) => (down.exports, down.left),
                None => (self.exports()?, BTreeSet::new()),
            };
            let down = Down { token, state: DownState::Going, exports, left };
            self.update(|record| record.down = Some(down))?;
            let resource = self.name.to_string();
            let what = format!("down {resource}");
            self.engine.ask_patiently(&what, &Request::Down { resource })?;
            if guard.is_some() {
                // It may be down for long.
                record.volumes.iter().for_each(|(number, volume)| self.lock(*number, volume));
            }
        }
        self.update(|record| {
            let down = record.down.take();
            let (exports, left) = down.map(|down| (down.exports, down.left)).unwrap_or_default();
            record.down = Some(Down { token, state: DownState::Down, exports, left });
        })
    }

    /// Refuses to take a resource down that is used here, or whose peers would lack data without it.
    fn others_go_on(&self, guard: &Guard, record: &Record) -> Result<(), Failed> {
        let Some(status) = self.status()? else { return Ok(()) };
        let node = &self.node.name;
        if engine::is_in_use(&status) {
            return Err(Failed::new(
                format!("{} is in use on node {node}", self.name),
                format!("close it on {node}; it is tried again with the next plan"),
            ));
        }
        self.check(guard, record, &format!("{} stays up", self.name))
    }

    /// Takes note of a new configuration: with it, what is down is brought up.
    pub(super) fn begin_configuration(&self, config: &ResourceConfig) -> Result<(), Failed> {
        self.update(|record| {
            let before = record.config.replace(config.clone());
            if let Some(down) = &mut record.down {
                let known = before.iter().flat_map(|before| before.connections.values());
                down.left.extend(known.filter_map(|peer| peer.node_id).map(NodeId::get));
                let is_there = |id: &u8| {
                    config.connections.values().any(|peer| peer.node_id == NodeId::new(*id))
                };
                down.left.retain(|id| !is_there(id));
                down.state = DownState::Back;
            }
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
            let there = record.volumes.get(number);
            if let Some(there) = there {
                // Whoever has the old data open would write over the new ones.
                self.close_mapped(there)?;
            }
            let volume = self.pool(pool, *kind)?.rollback(&self.volume_name(*number)?, &part)?;
            let path = super::volumes::path_of(&volume)?;
            let there = there.map(|there| Volume { path: path.clone(), ..there.clone() });
            let has = match &there {
                Some(there) => metadata::exists(self.reach(*number, there)?.at())?,
                None => metadata::exists(&path)?,
            };
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

    /// Refuses to bring up what is kept down.
    pub(super) fn may_be_up(&self, record: &Record) -> Result<(), Failed> {
        match &record.down {
            Some(down) if down.state != DownState::Back => Err(Failed::new(
                format!("{} is kept down on node {}", self.name, self.node.name),
                "nothing is to be done: it comes up when it is activated, or all nodes have the data \
                 of the snapshot that it is rolled back to",
            )),
            _ => Ok(()),
        }
    }

    /// It is up again: what was served before is served, and peers that left meanwhile are forgotten.
    pub(super) fn back_from_below(&self) -> Result<(), Failed> {
        if let Some(down) = self.record()?.down {
            self.export_again(down.exports)?;
            for peer in down.left.iter().filter_map(|id| NodeId::new(*id)) {
                let resource = self.name.to_string();
                let what = format!("{resource}: forget node {peer}");
                self.engine.ask_patiently(&what, &Request::ForgetPeer { resource, peer })?;
            }
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
