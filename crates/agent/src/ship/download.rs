//! From a backup to a snapshot.
//!
//! A volume is made, gets the data of the full backup and of those that follow it, is snapshotted, and goes
//! again. The snapshot counts when all of its volumes are there. What was begun is written down before, and
//! removed when it fails, or after a crash. The volume has the name that one of the resource would have:
//! there must be none.

use std::fs::OpenOptions;

use cluster::name::ResourceName;
use cluster::shipping::{DownloadOrder, Phase};
use logging::{Level, log};
use shipping::archive::{Identity, Reader};
use shipping::extents;
use shipping::name::Id;
use shipping::s3::{Client, Download};
use vocab::Bytes;

use super::{Work, of_archive, of_io};
use crate::carry::{Node, open, path_of};
use crate::failed::Failed;
use crate::metadata::{self, At};
use crate::record::Snapshot;
use crate::storage::Name;

impl Work<'_> {
    pub(super) fn download(&mut self, order: &DownloadOrder) -> Result<(), Failed> {
        let snapshot = &order.snapshot;
        let record = self.node.store.get(self.name);
        if let Some(there) = record.as_ref().and_then(|record| record.snapshots.get(snapshot)) {
            if there.complete && there.token == order.token {
                return self.node.forget_receiving(self.name);
            }
            if there.complete {
                let text = format!("{} has another snapshot {snapshot}", self.name);
                return Err(Failed::new(text, "delete it, or give the new one another name"));
            }
        }
        if record.as_ref().is_some_and(|record| !record.volumes.is_empty()) {
            let text = format!("{} has volumes on this node", self.name);
            let next = "restore to a new resource definition, or on another node";
            return Err(Failed::new(text, next));
        }
        // What was not finished is begun anew.
        self.node.forget_receiving(self.name)?;
        let volumes = order.volumes.iter();
        let volumes = volumes.map(|(nr, (pool, kind, _))| (*nr, (pool.clone(), *kind))).collect();
        let new = Snapshot { token: order.token, complete: false, volumes };
        self.node.store.update(self.name, |record| {
            record.receiving = Some((snapshot.clone(), new.volumes.clone()));
            record.snapshots.insert(snapshot.clone(), new);
        })?;
        let received = self.receive(order).and_then(|()| {
            self.node.store.update(self.name, |record| {
                if let Some(snapshot) = record.snapshots.get_mut(snapshot) {
                    snapshot.complete = true;
                }
            })
        });
        match (received, self.node.forget_receiving(self.name)) {
            (Ok(()), cleared) => cleared,
            (Err(failed), Ok(())) => Err(failed),
            (Err(failed), Err(left)) => {
                log!(Level::Warn, self.name, "what was restored is still there: {left}");
                Err(failed)
            }
        }
    }

    fn receive(&mut self, order: &DownloadOrder) -> Result<(), Failed> {
        let client = self.client(&order.bucket)?;
        let links = u64::try_from(order.chain.len()).unwrap_or(u64::MAX);
        let sizes = order.volumes.values().map(|(_, _, size)| size.saturating_mul(links));
        let total = sizes.fold(0u64, u64::saturating_add);
        let mut done = 0u64;
        for (number, (pool, _, size)) in &order.volumes {
            let pool = self.node.pools.get(pool)?;
            let name = Name::of_volume(self.name.as_str(), "", *number)?;
            let made = pool.create(&name, Bytes(*size))?;
            if made.size.0 != *size {
                return Err(Failed::new(
                    format!(
                        "volume {number} has {size} bytes, and the pool makes {} of it: what is at \
                         the end of a volume would not be there",
                        made.size.0
                    ),
                    "restore to a pool of the kind that the backup was made from",
                ));
            }
            let clean = pool.starts_zeroed(&name)?;
            let what = format!("write {}", made.path.display());
            let file = OpenOptions::new().read(true).write(true).open(&made.path);
            let file = file.map_err(|error| of_io(&what, &error))?;
            self.fill(order, &client, *number, *size, (&file, clean), &mut done, total)?;
            file.sync_all().map_err(|error| of_io(&what, &error))?;
            let path = path_of(&made)?;
            let key = match order.passphrases.get(number) {
                Some(sealed) => {
                    let what = format!("the passphrase of volume {number} of {}", self.name);
                    let next = "restore it again, by a controller with its master passphrase";
                    let passphrase = self.node.master.unseal(sealed, &what, next)?;
                    Some(open(&path, &passphrase)?)
                }
                None => None,
            };
            if order.drbd {
                // Peers of the replica that it is of are not to be waited for.
                metadata::alone(At { path: &path, key: key.as_ref() })?;
            }
        }
        self.phase(Phase::Finishing);
        let part = Name::new(order.snapshot.as_str())?;
        for (number, (pool, _, _)) in &order.volumes {
            let name = Name::of_volume(self.name.as_str(), "", *number)?;
            self.node.pools.get(pool)?.snapshot(&name, &part)?;
        }
        Ok(())
    }

    /// Gives a volume the data of a chain of backups.
    #[allow(clippy::too_many_arguments, reason = "they are of the one place where it is called")]
    fn fill(
        &mut self,
        order: &DownloadOrder,
        client: &Client,
        number: u16,
        size: u64,
        (file, clean): (&std::fs::File, bool),
        done: &mut u64,
        total: u64,
    ) -> Result<(), Failed> {
        let mut before = None;
        for (place, backup) in order.chain.iter().enumerate() {
            let Some(id) = Id::parse(backup) else {
                let next = "use controller and agent of one release";
                return Err(Failed::new(format!("{backup} is no name of a backup"), next));
            };
            let object = id.archive(number);
            let own = Identity::new(backup, number);
            let reader = Reader::new(Download::new(client, &object), own, before);
            let mut reader = reader.map_err(|error| of_archive(&object, &error))?;
            let has = reader.header().size;
            let last = place + 1 == order.chain.len();
            if has > size || last && has != size {
                let text = format!("{object} is of a volume of {has} bytes, and {size} are said");
                return Err(Failed::new(text, "restore another backup"));
            }
            let mut progress = |at: u64| self.progress(done.saturating_add(at), total);
            if place == 0 && !clean {
                // Of the full one it is seen to there; what has grown since began with zeroes.
                extents::zero(file, has, size - has, &mut progress)
                    .map_err(|error| of_io(&format!("restore {object}"), &error))?;
            }
            extents::read_into(&mut reader, file, clean, &mut progress)
                .map_err(|error| of_archive(&object, &error))?;
            *done = done.saturating_add(size);
            before = Some(own);
        }
        Ok(())
    }
}

impl Node {
    /// Removes what was made to get a backup's data, and a snapshot of it that is not complete.
    ///
    /// # Errors
    /// If it can not be removed; it is tried again.
    pub fn forget_receiving(&self, name: &ResourceName) -> Result<(), Failed> {
        let Some(record) = self.store.get(name) else { return Ok(()) };
        let Some((snapshot, volumes)) = &record.receiving else { return Ok(()) };
        let complete = record.snapshots.get(snapshot).is_some_and(|there| there.complete);
        if !complete {
            // Before its parts go: it may have been written down as complete and not be known so here.
            self.store.update(name, |record| record.snapshots.remove(snapshot))?;
        }
        let part = Name::new(snapshot.as_str())?;
        for (number, (pool, _)) in volumes {
            let pool = self.pools.get(pool)?;
            let volume = Name::of_volume(name.as_str(), "", *number)?;
            if !complete {
                pool.remove_snapshot(&volume, &part)?;
            }
            pool.remove(&volume)?;
        }
        self.store.update(name, |record| record.receiving = None)?;
        self.store.drop_empty(name)
    }

    /// Removes copies of snapshots that were only there to be read.
    ///
    /// # Errors
    /// If one can not be removed; it is tried again.
    pub fn remove_copies(&self, name: &ResourceName) -> Result<(), Failed> {
        let Some(record) = self.store.get(name) else { return Ok(()) };
        for (copy, pool) in &record.copies {
            self.pools.get(pool)?.remove(&Name::new(copy)?)?;
            self.store.update(name, |record| record.copies.remove(copy))?;
        }
        Ok(())
    }
}
