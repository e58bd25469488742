//! The audit log: one line of JSON for each call that changes something, in files of the controller's
//! folder. A line is with the kernel before its call is answered, so it outlives this process, and on
//! the disk when the kernel sees fit.
//!
//! `audit.log` is the newest; when it is full it becomes `audit.log.1`, that `audit.log.2`, and the
//! oldest goes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use linstor::access::{Record, RecordFilter};

/// The newest file.
const FILE: &str = "audit.log";
/// Bytes after which a file is full.
const FULL: u64 = 16 << 20;
/// Files that are kept beside the newest.
const OLDER: u32 = 7;

/// The log of a folder.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    full: u64,
    newest: Mutex<File>,
}

impl Audit {
    /// Opens it, or begins it.
    pub fn open(directory: &Path) -> io::Result<Audit> {
        Audit::with(directory, FULL)
    }

    fn with(directory: &Path, full: u64) -> io::Result<Audit> {
        let path = directory.join(FILE);
        let mut file = append(&path)?;
        end_line(&mut file).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        Ok(Audit { path, full, newest: Mutex::new(file) })
    }

    /// Adds a record.
    pub fn add(&self, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record).map_err(io::Error::other)?;
        line.push(b'\n');
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.metadata()?.len() >= self.full {
            for number in (1..OLDER).rev() {
                move_away(&self.older(number), &self.older(number + 1))?;
            }
            move_away(&self.path, &self.older(1))?;
            *newest = append(&self.path)?;
        }
        // One write: it is there as a whole, unless the disk is full.
        newest.write_all(&line)
    }

    /// Records, the newest first.
    pub fn read(&self, filter: &RecordFilter) -> io::Result<Vec<Record>> {
        let mut found = Vec::new();
        // Nothing is moved while it is read.
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let paths = std::iter::once(self.path.clone()).chain((1..=OLDER).map(|n| self.older(n)));
        for path in paths {
            let text = match fs::read(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            };
            // What a full disk has cut off is no record.
            let lines = text.split(|byte| *byte == b'\n').rev();
            let records = lines.filter_map(|line| serde_json::from_slice::<Record>(line).ok());
            for record in records.filter(|record| filter.takes(record)) {
                if found.len() >= filter.limit {
                    return Ok(found);
                }
                found.push(record);
            }
        }
        drop(newest);
        Ok(found)
    }

    fn older(&self, number: u32) -> PathBuf {
        self.path.with_extension(format!("log.{number}"))
    }
}

fn append(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(path);
    file.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn move_away(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What was cut off does not become the beginning of the next line.
fn end_line(file: &mut File) -> io::Result<()> {
    if file.metadata()?.len() == 0 {
        return Ok(());
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    if last != *b"\n" {
        file.write_all(b"\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::objects::Millis;
    use linstor::access::Role;

    fn record(number: u64) -> Record {
        Record {
            time: Millis(number),
            who: format!("token t{}", number % 2),
            role: Role::Admin,
            from: None,
            method: "POST".to_owned(),
            path: "/v1/nodes".to_owned(),
            status: 201,
            codes: vec![1],
            objects: [("Node".to_owned(), format!("n{number}"))].into(),
        }
    }

    fn times(audit: &Audit, filter: &RecordFilter) -> Vec<u64> {
        audit.read(filter).unwrap().iter().map(|record| record.time.0).collect()
    }

    fn all() -> RecordFilter {
        RecordFilter { limit: usize::MAX, ..RecordFilter::default() }
    }

    #[test]
    fn the_newest_come_first_across_files_and_a_restart_and_the_oldest_go() {
        let directory = tempfile::tempdir().unwrap();
        let line = serde_json::to_vec(&record(100)).unwrap().len() as u64 + 1;
        // Two records fill a file.
        let audit = Audit::with(directory.path(), 2 * line - 4).unwrap();
        (100..105).for_each(|number| audit.add(&record(number)).unwrap());
        assert_eq!(times(&audit, &all()), [104, 103, 102, 101, 100]);
        drop(audit);
        let audit = Audit::with(directory.path(), 2 * line - 4).unwrap();
        (105..140).for_each(|number| audit.add(&record(number)).unwrap());
        let left = times(&audit, &all());
        assert_eq!(left.first(), Some(&139));
        assert_eq!(left.len() as u32, 2 * (OLDER + 1), "{left:?}");
        assert!(left.is_sorted_by(|a, b| a > b));
    }

    #[test]
    fn records_are_chosen_by_who_and_when() {
        let directory = tempfile::tempdir().unwrap();
        let audit = Audit::open(directory.path()).unwrap();
        (0..10).for_each(|number| audit.add(&record(number)).unwrap());
        let filter = RecordFilter { who: vec!["token t1".to_owned()], ..all() };
        assert_eq!(times(&audit, &filter), [9, 7, 5, 3, 1]);
        let filter = RecordFilter { since: Some(Millis(3)), to: Some(Millis(5)), ..all() };
        assert_eq!(times(&audit, &filter), [5, 4, 3]);
        let filter = RecordFilter { limit: 2, ..all() };
        assert_eq!(times(&audit, &filter), [9, 8]);
    }

    #[test]
    fn half_a_line_takes_nothing_else_with_it() {
        let directory = tempfile::tempdir().unwrap();
        Audit::open(directory.path()).unwrap().add(&record(1)).unwrap();
        let mut file = OpenOptions::new().append(true).open(directory.path().join(FILE)).unwrap();
        file.write_all(br#"{"time":2,"who":"tok"#).unwrap();
        let audit = Audit::open(directory.path()).unwrap();
        audit.add(&record(3)).unwrap();
        assert_eq!(times(&audit, &all()), [3, 1]);
    }
}
