//! From a backup, or from the agent of another cluster, to a snapshot.
//!
//! A volume is made, gets the data of the full backup and of those that follow it, is snapshotted, and goes
//! again. The snapshot counts when all of its volumes are there. What was begun is written down before, and
//! removed when it fails, or after a crash. The volume has the name that one of the resource would have:
//! there must be none. What another agent ships may build on a snapshot that is here: then the volume is a
//! copy of that. The sender is told that it is done when it is, durably.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use cluster::name::ResourceName;
use cluster::shipping::{Bucket, DownloadFrom, DownloadOrder, Listen, Phase};
use logging::{Level, log};
use shipping::archive::{Identity, Reader};
use shipping::extents;
use shipping::name::Id;
use shipping::s3::{Client, Download};
use vocab::Bytes;

use super::line::{Coming, Line};
use super::{Work, of_archive, of_io};
use crate::carry::{Node, open, path_of};
use crate::failed::Failed;
use crate::metadata::{self, At};
use crate::record::Snapshot;
use crate::storage::{Name, Volume};

/// What a volume may have beside the bytes that users see, and an eighth of these.
const BEYOND: u64 = 2 << 30;
/// How often it is looked whether something is done.
const LOOK: Duration = Duration::from_millis(5);

/// Where data come from.
enum From<'a> {
    /// A bucket.
    Bucket(&'a Bucket),
    /// Another agent, which is there.
    Peer(Rc<RefCell<Line>>, &'a Listen),
}

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
        match &order.from {
            DownloadFrom::Bucket(bucket) => self.make(order, &From::Bucket(bucket)),
            DownloadFrom::Peer(listen) => {
                // What was not finished is begun anew.
                self.node.forget_receiving(self.name)?;
                let line = match self.await_sender(listen) {
                    Ok(line) => Rc::new(RefCell::new(line)),
                    Err(failed) => {
                        self.node.store.drop_empty(self.name)?;
                        return Err(failed);
                    }
                };
                let made = self.make(order, &From::Peer(line.clone(), listen));
                let stopped = self.is_stopped();
                let said = made.as_ref().err().map(|failed| match stopped {
                    true => "it was given up there".to_owned(),
                    false => failed.to_string(),
                });
                line.borrow_mut().part(said.as_deref());
                made
            }
        }
    }

    /// Makes the snapshot of what comes from there.
    fn make(&mut self, order: &DownloadOrder, from: &From<'_>) -> Result<(), Failed> {
        let snapshot = &order.snapshot;
        let record = self.node.store.get(self.name);
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
        let received = match from {
            From::Bucket(bucket) => self.receive(order, bucket),
            From::Peer(line, listen) => self.receive_from_peer(order, listen, line),
        };
        let received = received.and_then(|()| {
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

    fn receive(&mut self, order: &DownloadOrder, bucket: &Bucket) -> Result<(), Failed> {
        let client = self.client(bucket)?;
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
            settle(self.node, self.name, order, *number, &file, &made)?;
        }
        self.phase(Phase::Finishing);
        take_parts(self.node, self.name, order)
    }

    /// Makes the volumes of what another agent ships.
    fn receive_from_peer(
        &mut self,
        order: &DownloadOrder,
        listen: &Listen,
        line: &Rc<RefCell<Line>>,
    ) -> Result<(), Failed> {
        let total = order.volumes.values().map(|(_, _, size)| *size).fold(0, u64::saturating_add);
        let mut done = 0u64;
        for (number, (pool, _, said)) in &order.volumes {
            let what = format!("volume {number} of {}", listen.origin);
            let own = Identity::new(&listen.origin, *number);
            let base = listen.base.as_ref().map(|(_, base)| Identity::new(base, *number));
            let reader = Reader::new(Coming::new(line.clone()), own, base);
            let mut reader = reader.map_err(|error| of_archive(&what, &error))?;
            let size = reader.header().size;
            // Metadata, headers, and what pools round up by: more would be something else.
            if size < *said || size > said.saturating_add(said / 8).saturating_add(BEYOND) {
                let text = format!("{what} is said to have {said} bytes, and {size} come");
                return Err(Failed::new(text, "ship it again"));
            }
            let pool = self.node.pools.get(pool)?;
            let name = Name::of_volume(self.name.as_str(), "", *number)?;
            let made = busy(line, || match &listen.base {
                None => Ok(pool.create(&name, Bytes(size))?),
                Some((base, _)) => Ok(pool.restore(&name, &Name::new(base.as_str())?, &name)?),
            })?;
            if made.size.0 != size {
                let text = format!(
                    "volume {number} has {size} bytes, and the pool makes {} of it: what is at the end \
                     of a volume would not be there",
                    made.size.0
                );
                let next = "ship all of it to a pool of the kind that it is shipped from";
                return Err(Failed::new(text, next));
            }
            let clean = listen.base.is_some() || pool.starts_zeroed(&name)?;
            let write = format!("write {}", made.path.display());
            let file = OpenOptions::new().read(true).write(true).open(&made.path);
            let file = file.map_err(|error| of_io(&write, &error))?;
            let mut progress = |at: u64| {
                line.borrow_mut().beat()?;
                self.progress(done.saturating_add(at), total)
            };
            extents::read_into(&mut reader, &file, clean, &mut progress)
                .map_err(|error| of_archive(&what, &error))?;
            done = done.saturating_add(*said);
            let (node, resource) = (self.node, self.name);
            busy(line, || settle(node, resource, order, *number, &file, &made))?;
        }
        let all = line.borrow_mut().all_came();
        all.map_err(|error| of_io("receive the end of it", &error))?;
        self.phase(Phase::Finishing);
        let (node, resource) = (self.node, self.name);
        busy(line, || take_parts(node, resource, order))
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

/// Does what takes its time, while the sender is told that this end lives.
fn busy<T: Send>(
    line: &Rc<RefCell<Line>>,
    work: impl FnOnce() -> Result<T, Failed> + Send,
) -> Result<T, Failed> {
    thread::scope(|scope| {
        let work = scope.spawn(work);
        while !work.is_finished() {
            // One that is gone is noticed by what comes next.
            let _ = line.borrow_mut().beat();
            thread::sleep(LOOK);
        }
        work.join().unwrap_or_else(|_| Err(Failed::new("a thread has ended early", "report this")))
    })
}

/// Sees to a volume that has all of its data.
fn settle(
    node: &Node,
    resource: &ResourceName,
    order: &DownloadOrder,
    number: u16,
    file: &File,
    made: &Volume,
) -> Result<(), Failed> {
    let what = format!("write {}", made.path.display());
    file.sync_all().map_err(|error| of_io(&what, &error))?;
    let path = path_of(made)?;
    let key = match order.passphrases.get(&number) {
        Some(sealed) => {
            let what = format!("the passphrase of volume {number} of {resource}");
            let next = "restore it again, by a controller with its master passphrase";
            let passphrase = node.master.unseal(sealed, &what, next)?;
            Some(open(&path, &passphrase)?)
        }
        None => None,
    };
    if order.drbd {
        // Peers of the replica that it is of are not to be waited for.
        metadata::alone(At { path: &path, key: key.as_ref() })?;
    }
    Ok(())
}

/// Makes the snapshot of the volumes, which are complete.
fn take_parts(node: &Node, resource: &ResourceName, order: &DownloadOrder) -> Result<(), Failed> {
    let part = Name::new(order.snapshot.as_str())?;
    for (number, (pool, _, _)) in &order.volumes {
        let name = Name::of_volume(resource.as_str(), "", *number)?;
        node.pools.get(pool)?.snapshot(&name, &part)?;
    }
    Ok(())
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
