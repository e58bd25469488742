//! ZFS and ZFS_THIN: volumes are ZFS volumes below a dataset, with their space reserved or without.
//!
//! A snapshot is ZFS's own, `VOLUME@SNAPSHOT`, and belongs to its volume there. So a volume that is to
//! go while it has snapshots is renamed to `_deleted_VOLUME:N` and destroyed when the last of them is;
//! and a snapshot that something was restored from is renamed to `_deleted_SNAPSHOT:N` and destroyed
//! with the last such volume. No name of ours has a colon, so nobody else's are taken for these.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use vocab::Bytes;

use super::{Error, Kind, Name, Provider, Space, Volume, Why, fits, rounded};
use crate::command::{Failure, Runner};

const PACKAGE: &str = "zfsutils-linux";

/// Block size of new volumes, of which their sizes are multiples: what ZFS had before it was asked.
const BLOCK: Bytes = Bytes(8192);

/// Where ZFS has the devices of its volumes.
const DEVICES: &str = "/dev/zvol";

/// How long the device of a new volume is waited for.
const APPEARS: Duration = Duration::from_secs(5);

/// How long a volume may be busy: whatever looks at a device that was just written or made (udev does)
/// has it open for a moment, and ZFS neither destroys nor renames it then.
const BUSY: Duration = Duration::from_secs(5);

const DELETED: &str = "_deleted_";

/// A dataset as a pool.
#[derive(Debug)]
pub struct Dataset<R> {
    run: R,
    dataset: String,
    thin: bool,
    devices: PathBuf,
}

/// A row of `zfs list`: a volume, or a snapshot of one.
#[derive(Clone, Debug)]
struct Row {
    volume: String,
    snapshot: Option<String>,
    size: u64,
    referenced: u64,
    used: u64,
    origin: String,
    /// Grows with every change of the pool.
    created: u64,
    /// It is destroyed with the last volume that was made from it.
    deferred: bool,
}

/// Columns of a row.
const COLUMNS: &str = "name,volsize,referenced,used,origin,createtxg,defer_destroy";

impl Row {
    /// A line of `zfs list`; `None` for what is not directly below the dataset, or no volume.
    fn read(line: &str, dataset: &str) -> Option<Row> {
        let mut columns = line.split('\t');
        let mut next = || columns.next().unwrap_or_default();
        let name = next().strip_prefix(dataset)?.strip_prefix('/')?;
        let (volume, snapshot) = match name.split_once('@') {
            Some((volume, snapshot)) => (volume, Some(snapshot.to_owned())),
            None => (name, None),
        };
        let row = Row {
            volume: volume.to_owned(),
            snapshot,
            size: next().parse().ok()?,
            referenced: next().parse().ok()?,
            used: next().parse().ok()?,
            origin: next().to_owned(),
            created: next().parse().ok()?,
            deferred: next() == "on",
        };
        (!row.volume.contains('/')).then_some(row)
    }

    /// Its name below the dataset.
    fn name(&self) -> String {
        match &self.snapshot {
            Some(snapshot) => format!("{}@{snapshot}", self.volume),
            None => self.volume.clone(),
        }
    }

    fn is_deleted_volume(&self) -> bool {
        self.volume.starts_with(DELETED) && self.volume.contains(':')
    }

    fn is_deleted_snapshot(&self) -> bool {
        self.snapshot.as_ref().is_some_and(|name| name.starts_with(DELETED) && name.contains(':'))
    }

    /// True if this is, or was before it was renamed, the volume of this name.
    fn is_of(&self, volume: &Name) -> bool {
        let deleted = self.volume.strip_prefix(DELETED).and_then(|rest| rest.split_once(':'));
        self.volume == volume.as_str() || deleted.is_some_and(|(name, _)| name == volume.as_str())
    }
}

impl<R: Runner> Dataset<R> {
    /// The dataset `dataset`, a pool or something in one.
    ///
    /// # Errors
    /// If its name is none, there is no such dataset, or ZFS can not be asked.
    pub fn open(run: R, dataset: &str, thin: bool) -> Result<Dataset<R>, Error> {
        Dataset::with_devices(run, dataset, thin, Path::new(DEVICES))
    }

    fn with_devices(run: R, dataset: &str, thin: bool, devices: &Path) -> Result<Self, Error> {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
        let part = |part: &str| {
            !part.is_empty() && !part.starts_with(['-', '.']) && part.chars().all(good)
        };
        if !dataset.split('/').all(part) {
            return Err(Error::new(Why::Invalid, format!("{dataset:?} is no name of a dataset"))
                .correction("name a ZFS pool, or a dataset in one as POOL/DATASET"));
        }
        let (dataset, devices) = (dataset.to_owned(), devices.to_owned());
        let pool = Dataset { run, dataset, thin, devices };
        pool.space()?;
        Ok(pool)
    }

    /// As an operator calls it.
    fn called(&self) -> String {
        format!("ZFS dataset {}", self.dataset)
    }

    fn full(&self, name: &str) -> String {
        format!("{}/{name}", self.dataset)
    }

    fn command(&self, what: String, argv: &[&str]) -> Result<String, Error> {
        let begun = Instant::now();
        let is_busy = |failure: &Failure| match failure {
            Failure::Exit { stderr, .. } => stderr.contains("is busy"),
            _ => false,
        };
        let answer = loop {
            match self.run.run(argv) {
                Err(error) if is_busy(&error.why) && begun.elapsed() < BUSY => {
                    thread::sleep(Duration::from_millis(50));
                }
                answer => break answer,
            }
        };
        answer.map_err(|error| {
            let why = match &error.why {
                Failure::Exit { stderr, .. } => reason(stderr),
                _ => Why::Failed,
            };
            let mut failed = Error::of_command(what, &error, PACKAGE);
            failed.why = why;
            if why == Why::NoSpace {
                failed = failed.correction(format!("free space in {}, or grow it", self.called()));
            }
            failed
        })
    }

    fn zfs(&self, what: impl Into<String>, arguments: &[&str]) -> Result<(), Error> {
        let argv: Vec<&str> = ["zfs"].iter().chain(arguments).copied().collect();
        self.command(what.into(), &argv).map(drop)
    }

    fn rows(&self) -> Result<Vec<Row>, Error> {
        let argv = [
            "zfs",
            "list",
            "-Hp",
            "-r",
            "-d",
            "2",
            "-t",
            "volume,snapshot",
            "-o",
            COLUMNS,
            &self.dataset,
        ];
        let text = self.command(format!("could not ask ZFS for {}", self.called()), &argv)?;
        Ok(text.lines().filter_map(|line| Row::read(line, &self.dataset)).collect())
    }

    fn described(&self, row: &Row) -> Volume {
        let allocated = match (&row.snapshot, self.thin) {
            (Some(_), _) => row.used,
            (None, true) => row.referenced,
            (None, false) => row.size,
        };
        Volume {
            name: row.name(),
            size: Bytes(row.size),
            allocated: Bytes(allocated),
            path: self.device(&row.name()),
            is_snapshot: row.snapshot.is_some(),
        }
    }

    fn device(&self, name: &str) -> PathBuf {
        self.devices.join(&self.dataset).join(name)
    }

    /// A volume that was just made, once it has its device.
    fn made(&self, name: &Name) -> Result<Volume, Error> {
        let path = self.device(name.as_str());
        let begun = Instant::now();
        while !path.exists() {
            if begun.elapsed() >= APPEARS {
                let message = format!("volume {name} has no device {}", path.display());
                return Err(Error::new(Why::Failed, message)
                    .cause("udev has not made it")
                    .correction("see that udev runs on this node; it is tried again"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(self.described(&self.existing(name)?))
    }

    fn existing(&self, name: &Name) -> Result<Row, Error> {
        find(&self.rows()?, name).cloned().ok_or_else(|| Error::absent(name, &self.called()))
    }

    fn source(&self, rows: &[Row], volume: &Name, snapshot: &Name) -> Result<Row, Error> {
        let found = find_snapshot(rows, volume, snapshot).cloned();
        found.ok_or_else(|| Error::no_snapshot(volume, snapshot, &self.called()))
    }

    /// Refuses while somebody has the device for himself: an engine, or a file system.
    fn not_in_use(&self, name: &Name) -> Result<(), Error> {
        let path = self.device(name.as_str());
        let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::BUSY) => Err(Error::new(Why::InUse, format!("volume {name} is in use"))
                .cause(format!("{} is open", path.display()))
                .correction("detach or unmount it first")),
            Err(error) => {
                let message = format!("could not open {}", path.display());
                Err(Error::new(Why::Failed, message).cause(error))
            }
        }
    }

    /// Reserves the space of a volume, of ZFS.
    fn reserve(&self, name: &Name) -> Result<(), Error> {
        if self.thin {
            return Ok(());
        }
        let what = format!("could not reserve the space of {name} in {}", self.called());
        self.zfs(what, &["set", "refreservation=auto", &self.full(name.as_str())])
    }

    /// A volume with the data of a snapshot. Nothing is left of one whose space there is not.
    fn clone(&self, source: &Row, new: &Name) -> Result<(), Error> {
        let (from, to) = (self.full(&source.name()), self.full(new.as_str()));
        self.zfs(format!("could not copy {from} to {to}"), &["clone", &from, &to])?;
        let Err(error) = self.reserve(new) else { return Ok(()) };
        self.zfs(format!("could not remove {to} again"), &["destroy", &to])?;
        Err(error)
    }

    /// Gives a volume a name under which nobody looks for it, but for its snapshots.
    fn set_aside(&self, rows: &[Row], name: &Name) -> Result<(), Error> {
        let taken = |aside: &String| rows.iter().any(|row| row.volume == *aside);
        let mut names = (0..).map(|number: u32| format!("{DELETED}{name}:{number}"));
        let aside = names.find(|aside| !taken(aside)).unwrap_or_default();
        let (from, to) = (self.full(name.as_str()), self.full(&aside));
        self.zfs(format!("could not set {name} aside"), &["rename", &from, &to])?;
        match self.thin {
            true => Ok(()),
            false => {
                let what = format!("could not give up the space that is reserved for {to}");
                self.zfs(what, &["set", "refreservation=none", &to])
            }
        }
    }

    /// Destroys what was set aside and that nothing needs any more.
    fn sweep(&self) -> Result<(), Error> {
        let rows = self.rows()?;
        let late = rows.iter().filter(|row| row.is_deleted_snapshot() && !row.deferred);
        for row in late {
            let name = self.full(&row.name());
            self.zfs(format!("could not remove {name}"), &["destroy", "-d", &name])?;
        }
        let rows = self.rows()?;
        let snapshots =
            |volume: &str| rows.iter().any(|row| row.volume == volume && row.snapshot.is_some());
        let aside = rows.iter().filter(|row| row.snapshot.is_none() && row.is_deleted_volume());
        for row in aside.filter(|row| !snapshots(&row.volume)) {
            let name = self.full(&row.volume);
            self.zfs(format!("could not remove {name}"), &["destroy", &name])?;
        }
        Ok(())
    }
}

/// The volume of that name.
fn find<'a>(rows: &'a [Row], name: &Name) -> Option<&'a Row> {
    rows.iter().find(|row| row.snapshot.is_none() && row.volume == name.as_str())
}

/// A volume's snapshot: the newest one of that name, for the volume may have been made anew.
fn find_snapshot<'a>(rows: &'a [Row], volume: &Name, snapshot: &Name) -> Option<&'a Row> {
    let named = |row: &&Row| row.snapshot.as_deref() == Some(snapshot.as_str());
    rows.iter().filter(named).filter(|row| row.is_of(volume)).max_by_key(|row| row.created)
}

/// What ZFS means, as far as its words tell; it has one exit status for nearly everything.
fn reason(stderr: &str) -> Why {
    let says = |words: &str| stderr.contains(words);
    if says("out of space") || says("greater than available space") || says("No space left") {
        Why::NoSpace
    } else if says("does not exist") || says("no such pool") {
        Why::NotFound
    } else if says("is busy") || says("has children") || says("dependent clones") {
        Why::InUse
    } else if says("already exists") {
        Why::Exists
    } else {
        Why::Failed
    }
}

impl<R: Runner> Provider for Dataset<R> {
    fn kind(&self) -> Kind {
        if self.thin { Kind::ZfsThin } else { Kind::Zfs }
    }

    fn allocation_unit(&self) -> Result<Bytes, Error> {
        Ok(BLOCK)
    }

    fn space(&self) -> Result<Space, Error> {
        let what = || format!("could not ask ZFS for {}", self.called());
        let not_understood = |text: &str| {
            Error::new(Why::Failed, format!("ZFS's answer about {} is strange", self.called()))
                .cause(format!("it is {text:?}"))
        };
        let argv = ["zfs", "list", "-Hp", "-d", "0", "-o", "available,quota", &self.dataset];
        let text = self.command(what(), &argv)?;
        let numbers: Option<Vec<u64>> =
            text.trim_end().split('\t').map(|number| number.parse().ok()).collect();
        let Some([free, quota]) = numbers.as_deref() else { return Err(not_understood(&text)) };
        let total = match *quota {
            0 => {
                let pool = self.dataset.split('/').next().unwrap_or_default();
                let text = self.command(what(), &["zpool", "list", "-Hp", "-o", "size", pool])?;
                text.trim().parse().map_err(|_| not_understood(&text))?
            }
            quota => quota,
        };
        Ok(Space { total: Bytes(total), free: Bytes(*free), metadata_used: None })
    }

    fn volumes(&self) -> Result<Vec<Volume>, Error> {
        let hidden = |row: &Row| match row.snapshot {
            Some(_) => row.is_deleted_snapshot(),
            None => row.is_deleted_volume(),
        };
        let rows = self.rows()?;
        let mut volumes: Vec<Volume> =
            rows.iter().filter(|row| !hidden(row)).map(|row| self.described(row)).collect();
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(volumes)
    }

    fn create(&self, name: &Name, size: Bytes) -> Result<Volume, Error> {
        let size = rounded(size, BLOCK)?;
        match find(&self.rows()?, name) {
            Some(row) if fits(Bytes(row.size), size, BLOCK) => return self.made(name),
            Some(row) => {
                let cause = format!("it has {} bytes, {} are wanted", row.size, size.0);
                return Err(Error::taken(name, &self.called(), cause));
            }
            None => {}
        }
        let (block, bytes) = (BLOCK.0.to_string(), size.0.to_string());
        let full = self.full(name.as_str());
        let mut arguments = vec!["create"];
        arguments.extend(self.thin.then_some("-s"));
        arguments.extend(["-b", &block, "-V", &bytes, &full]);
        self.zfs(format!("could not create {name} in {}", self.called()), &arguments)?;
        self.made(name)
    }

    fn grow(&self, name: &Name, size: Bytes) -> Result<Volume, Error> {
        let size = rounded(size, BLOCK)?;
        let row = self.existing(name)?;
        if row.size < size.0 {
            let what = format!("could not grow {name} in {}", self.called());
            let value = format!("volsize={}", size.0);
            self.zfs(what, &["set", &value, &self.full(name.as_str())])?;
        }
        Ok(self.described(&self.existing(name)?))
    }

    fn remove(&self, name: &Name) -> Result<(), Error> {
        let rows = self.rows()?;
        if find(&rows, name).is_some() {
            self.not_in_use(name)?;
            let of_it = |row: &Row| row.volume == name.as_str() && row.snapshot.is_some();
            if rows.iter().any(of_it) {
                self.set_aside(&rows, name)?;
            } else {
                let what = format!("could not remove {name} from {}", self.called());
                self.zfs(what, &["destroy", &self.full(name.as_str())])?;
            }
        }
        self.sweep()
    }

    fn snapshot(&self, volume: &Name, snapshot: &Name) -> Result<Volume, Error> {
        self.existing(volume)?;
        let own = |row: &Row| {
            row.volume == volume.as_str() && row.snapshot.as_deref() == Some(snapshot.as_str())
        };
        if !self.rows()?.iter().any(own) {
            let full = self.full(&format!("{volume}@{snapshot}"));
            let what = format!("could not make snapshot {snapshot} of {volume}");
            self.zfs(what, &["snapshot", &full])?;
        }
        let rows = self.rows()?;
        let made = rows.iter().find(|row| own(row)).map(|row| self.described(row));
        made.ok_or_else(|| Error::no_snapshot(volume, snapshot, &self.called()))
    }

    fn remove_snapshot(&self, volume: &Name, snapshot: &Name) -> Result<(), Error> {
        let rows = self.rows()?;
        if let Some(row) = find_snapshot(&rows, volume, snapshot) {
            let full = self.full(&row.name());
            let what = format!("could not remove snapshot {snapshot} of {volume}");
            if rows.iter().any(|other| other.origin == full) {
                let taken = |aside: &String| {
                    let same = |row: &Row| row.snapshot.as_ref() == Some(aside);
                    rows.iter().any(same)
                };
                let mut names = (0..).map(|number: u32| format!("{DELETED}{snapshot}:{number}"));
                let aside = names.find(|aside| !taken(aside)).unwrap_or_default();
                let to = self.full(&format!("{}@{aside}", row.volume));
                self.zfs(what, &["rename", &full, &to])?;
            } else {
                self.zfs(what, &["destroy", &full])?;
            }
        }
        self.sweep()
    }

    fn restore(&self, volume: &Name, snapshot: &Name, new: &Name) -> Result<Volume, Error> {
        let rows = self.rows()?;
        let source = self.source(&rows, volume, snapshot)?;
        match find(&rows, new) {
            None => self.clone(&source, new)?,
            // ZFS remembers what a volume was made from, however often it was written since.
            Some(row) if row.origin == self.full(&source.name()) => self.reserve(new)?,
            Some(_) => {
                let cause = format!("it is no copy of {}", source.name());
                return Err(Error::taken(new, &self.called(), cause));
            }
        }
        self.made(new)
    }

    /// In place if nothing newer has to stay. Otherwise the volume is set aside with its snapshots, and
    /// another made from the one; who finds no volume goes on from there.
    fn rollback(&self, volume: &Name, snapshot: &Name) -> Result<Volume, Error> {
        let rows = self.rows()?;
        let source = self.source(&rows, volume, snapshot)?;
        if find(&rows, volume).is_some() {
            self.not_in_use(volume)?;
            let own = |row: &&Row| row.volume == volume.as_str() && row.snapshot.is_some();
            let newest = rows.iter().filter(own).max_by_key(|row| row.created);
            if newest.is_some_and(|newest| newest.name() == source.name()) {
                let what = format!("could not give {volume} its old data");
                self.zfs(what, &["rollback", &self.full(&source.name())])?;
                return self.made(volume);
            }
            self.set_aside(&rows, volume)?;
        }
        // It may have another name by now.
        let source = self.source(&self.rows()?, volume, snapshot)?;
        self.clone(&source, volume)?;
        self.sweep()?;
        self.made(volume)
    }
}

#[cfg(test)]
mod tests;
