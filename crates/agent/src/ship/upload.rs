//! From a snapshot to a backup.
//!
//! A snapshot that is a file is read where it is. Others are read through a copy, a volume that shares the
//! snapshot's data and that nobody knows of: so no snapshot is made active, and every kind of pool that can
//! restore one can ship it. Copies are written down before they are made, and removed after a crash.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

use cluster::layer::Layer;
use cluster::name::{PoolName, SnapshotName};
use cluster::objects::Provider;
use cluster::shipping::{Bucket, Phase, UploadOrder};
use logging::{Level, log};
use shipping::archive::{Header, Identity, Writer};
use shipping::description::{
    Archived, Definition, Description, LayerData, LuksInfo, Resource, VERSION, Volume,
    VolumeDefinition,
};
use shipping::extents;
use shipping::name::Id;
use shipping::s3::{Client, Upload};

use super::{Work, of_io, of_store};
use crate::failed::Failed;
use crate::pools::Open;
use crate::report::now;
use crate::storage::Name;

/// Bytes at the end of a volume that are in every archive: DRBD's superblock is within them.
const END: u64 = 1 << 20;
/// In what volumes are compared.
const BLOCK: u64 = 4096;

/// From where on all of a volume is in an incremental archive: what it is applied to may have another superblock. That of a
/// backup may be of another node's replica, and that of a snapshot that was received was changed there.
fn always(order: &UploadOrder, size: u64) -> u64 {
    match order.described.layers.contains(&Layer::Drbd) {
        true => size.saturating_sub(END) / BLOCK * BLOCK,
        false => size,
    }
}

/// A snapshot's volume, open for reading.
pub(super) struct Source {
    pub(super) file: File,
    pub(super) size: u64,
    allocated: u64,
}

/// Writes a volume into an archive: all of it, or what is otherwise than in `base`.
pub(super) fn write<W: Write>(
    order: &UploadOrder,
    source: &Source,
    base: Option<&Source>,
    archive: &mut Writer<W>,
    progress: &mut impl FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let (file, size) = (&source.file, source.size);
    match base {
        None => extents::write_full(file, size, archive, progress),
        Some(base) => {
            let always = always(order, size);
            extents::write_changed(file, size, &base.file, base.size, always, archive, progress)
        }
    }
}

impl Work<'_> {
    pub(super) fn upload(&mut self, order: &UploadOrder, bucket: &Bucket) -> Result<(), Failed> {
        let Some(id) = Id::parse(&order.backup) else {
            let next = "use controller and agent of one release";
            return Err(Failed::new(format!("{} is no name of a backup", order.backup), next));
        };
        let client = self.client(bucket)?;
        let shipped = self.ship(order, &id, &client);
        self.remove_copies();
        if shipped.is_err() {
            // Without its description it is no backup; what there is of it is of no use.
            self.sweep(order, bucket, &id);
        }
        shipped
    }

    fn ship(&mut self, order: &UploadOrder, id: &Id, client: &Client) -> Result<(), Failed> {
        let volumes = self.volumes_of(&order.snapshot)?;
        let total = self.sizes(&order.snapshot, &volumes)?;
        let (mut done, mut backups, mut vlms) = (0, BTreeMap::new(), BTreeMap::new());
        for (number, (pool, kind)) in &volumes {
            let source = self.open(&order.snapshot, *number, pool, *kind)?;
            let base = self.base(order, *number, "make a full backup")?;
            let object = id.archive(*number);
            let header = Header {
                size: source.size,
                own: Identity::new(&order.backup, *number),
                base: base.as_ref().map(|(_, backup)| Identity::new(backup, *number)),
            };
            let failed = |error: std::io::Error| of_io(&format!("back up {object}"), &error);
            let mut writer = Writer::new(Upload::new(client, &object), header).map_err(failed)?;
            let size = source.size;
            let mut progress = |at: u64| self.progress(done + at, total);
            write(order, &source, base.as_ref().map(|(base, _)| base), &mut writer, &mut progress)
                .map_err(failed)?;
            let bytes = writer.finish().map_err(failed)?.finish().map_err(of_store)?;
            done += size;
            let archived = Archived {
                name: object,
                node: self.node.name.to_string(),
                finished_timestamp: now().0,
                size: bytes,
            };
            backups.insert(*number, vec![archived]);
            let volume = Volume {
                stor_pool: pool.to_string(),
                provider_kind: kind.to_string(),
                device_size: size,
                allocated_size: source.allocated,
            };
            vlms.insert(*number, volume);
        }
        self.phase(Phase::Finishing);
        let description = self.description(order, backups, vlms);
        let json = description.to_json().map_err(|error| {
            Failed::new(format!("the description can not be written: {error}"), "report this")
        })?;
        client.put(&id.description(), &json).map_err(of_store)
    }

    fn description(
        &self,
        order: &UploadOrder,
        backups: BTreeMap<u16, Vec<Archived>>,
        vlms: BTreeMap<u16, Volume>,
    ) -> Description {
        let described = &order.described;
        let volume = |(number, volume): (&vocab::VolumeNr, &cluster::shipping::DescribedVolume)| {
            let definition = VolumeDefinition {
                size: volume.size.0 / 1024,
                gross_size: volume.gross_size,
                props: volume.props.clone(),
            };
            (number.0, definition)
        };
        // What is there now is what was read: a volume that is not in the snapshot has no data.
        let there = |(number, _): &(u16, VolumeDefinition)| vlms.contains_key(number);
        let vlm_dfns = described.volumes.iter().map(volume).filter(there).collect();
        Description {
            ashlar_version: VERSION,
            rsc_name: self.name.to_string(),
            node_name: self.node.name.to_string(),
            start_timestamp: described.since.0,
            finish_timestamp: now().0,
            based_on: order.base.as_ref().map(|(_, backup)| format!("{backup}.meta")),
            layer_data: LayerData {
                layers: described.layers.iter().map(ToString::to_string).collect(),
                node_id: described.node_id.map(|id| id.get()),
                peer_slots: described.peer_slots,
            },
            rsc_dfn: Definition { props: described.props.clone(), vlm_dfns },
            rsc: Resource { vlms },
            backups,
            cluster_id: described.cluster.clone(),
            snap_dfn_uuid: described.uuid.clone(),
            snap_name: order.snapshot.to_string(),
            luks_info: described.keys.as_ref().map(|keys| LuksInfo {
                master_key: keys.master.clone(),
                passphrases: keys.passphrases.iter().map(|(nr, p)| (nr.0, p.clone())).collect(),
            }),
        }
    }

    /// What a volume is compared with, and what that is called; `next` is what to do without it.
    pub(super) fn base<'o>(
        &self,
        order: &'o UploadOrder,
        number: u16,
        next: &str,
    ) -> Result<Option<(Source, &'o String)>, Failed> {
        let Some((base, called)) = &order.base else { return Ok(None) };
        let parts = self.volumes_of(base)?;
        let Some((pool, kind)) = parts.get(&number) else {
            let text = format!("snapshot {base} of {} has no volume {number}", self.name);
            return Err(Failed::new(text, next));
        };
        Ok(Some((self.open(base, number, pool, *kind)?, called)))
    }

    /// The pool of each volume of a snapshot.
    pub(super) fn volumes_of(
        &self,
        snapshot: &SnapshotName,
    ) -> Result<BTreeMap<u16, (PoolName, Provider)>, Failed> {
        let record = self.node.store.get(self.name);
        let found = record.as_ref().and_then(|record| record.snapshots.get(snapshot));
        match found.filter(|found| found.complete) {
            Some(found) => Ok(found.volumes.clone()),
            None => {
                let text = format!("{} has no snapshot {snapshot} on this node", self.name);
                Err(Failed::new(text, "make another one"))
            }
        }
    }

    /// Bytes of all volumes of a snapshot.
    pub(super) fn sizes(
        &self,
        snapshot: &SnapshotName,
        volumes: &BTreeMap<u16, (PoolName, Provider)>,
    ) -> Result<u64, Failed> {
        let mut total: u64 = 0;
        for (number, (pool, _)) in volumes {
            let names = part_names(self.name.as_str(), *number, snapshot)?;
            let there = self.node.pools.get(pool)?.volumes()?;
            let part = there.iter().find(|there| there.is_snapshot && names.is(&there.name));
            total = total.saturating_add(part.map_or(0, |part| part.size.0));
        }
        Ok(total)
    }

    pub(super) fn open(
        &self,
        snapshot: &SnapshotName,
        number: u16,
        pool: &PoolName,
        kind: Provider,
    ) -> Result<Source, Failed> {
        let open = self.node.pools.get(pool)?;
        let names = part_names(self.name.as_str(), number, snapshot)?;
        let there = open.volumes()?;
        let part = there.iter().find(|there| there.is_snapshot && names.is(&there.name));
        let allocated = part.map_or(0, |part| part.allocated.0);
        let path = match (kind, part) {
            (Provider::File | Provider::FileThin, Some(part)) => part.path.clone(),
            (Provider::File | Provider::FileThin, None) => {
                let text = format!("snapshot {snapshot} of {} is not in pool {pool}", self.name);
                return Err(Failed::new(text, "see to the pool; make another snapshot"));
            }
            _ => self.copy(&open, pool, &names)?,
        };
        let what = format!("read {}", path.display());
        let mut file = File::open(&path).map_err(|error| of_io(&what, &error))?;
        let size = file.seek(SeekFrom::End(0)).map_err(|error| of_io(&what, &error))?;
        Ok(Source { file, size, allocated })
    }

    fn copy(
        &self,
        open: &Open,
        pool: &PoolName,
        names: &Parts,
    ) -> Result<std::path::PathBuf, Failed> {
        // What all kinds of pools take as a name, and no resource or snapshot is called.
        let copy = Name::new(&format!("{}.ship.{}", names.volume, names.snapshot))?;
        self.node.store.update(self.name, |record| {
            record.copies.insert(copy.to_string(), pool.clone());
        })?;
        Ok(open.restore(&names.volume, &names.snapshot, &copy)?.path)
    }

    /// Removes the copies through which snapshots were read. Those that stay are removed later.
    pub(super) fn remove_copies(&self) {
        if let Err(failed) = self.node.remove_copies(self.name) {
            log!(Level::Warn, self.name, "a copy of a snapshot is still there: {failed}");
        }
    }

    /// Deletes what was uploaded, as far as the store lets us.
    fn sweep(&self, order: &UploadOrder, bucket: &Bucket, id: &Id) {
        let own = Work { stop: std::sync::Arc::default(), last: None, ..*self };
        let Ok(client) = own.client(bucket).map(|client| client.impatient()) else { return };
        for number in order.described.volumes.keys() {
            let object = id.archive(number.0);
            if let Err(error) = client.delete(&object) {
                log!(Level::Warn, self.name, "{object} of a failed backup may be left: {error}");
                return;
            }
        }
    }
}

/// What a part of a snapshot is called in its pool.
struct Parts {
    volume: Name,
    snapshot: Name,
}

impl Parts {
    fn is(&self, name: &str) -> bool {
        let (volume, snapshot) = (self.volume.as_str(), self.snapshot.as_str());
        let rest = name.strip_prefix(volume);
        rest.and_then(|rest| rest.strip_prefix(['_', '@'])).is_some_and(|rest| rest == snapshot)
    }
}

fn part_names(resource: &str, number: u16, snapshot: &SnapshotName) -> Result<Parts, Failed> {
    let volume = Name::of_volume(resource, "", number)?;
    Ok(Parts { volume, snapshot: Name::new(snapshot.as_str())? })
}
