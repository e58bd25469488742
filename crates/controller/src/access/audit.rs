//! Logs of older versions. They were files of a controller's folder, one line of JSON for each call;
//! now calls are in the store, for whichever controller leads.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use linstor::access::Record;

use crate::log;
use crate::store::{self, Log, PAGE, Store};

/// The newest file; older ones end in `.1` and so on.
const FILE: &str = "audit.log";
/// Files that were kept beside the newest.
const OLDER: u32 = 7;
/// What a file is called in front when it is in the store.
const TAKEN: &str = "old-";

/// Why a log can not be taken into the store.
#[derive(Debug)]
pub enum NotTaken {
    /// Its files can not be used.
    File(io::Error),
    /// The store fails.
    Store(store::Error),
}

/// Takes the log of a folder into the store. Cut short it goes on the next time: nothing is in the
/// store twice.
pub fn take_over(directory: &Path, store: &mut dyn Store) -> Result<(), NotTaken> {
    let newest = directory.join(FILE);
    // What is cut short below leaves files that are newer than those that are done.
    let older = (1..=OLDER).rev().map(|number| newest.with_extension(format!("log.{number}")));
    let mut files = Vec::new();
    for path in older.chain([newest.clone()]) {
        match fs::read(&path) {
            Ok(text) => files.push((path, text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(NotTaken::File(named(&path, &error))),
        }
    }
    if files.is_empty() {
        return Ok(());
    }
    let there = all(store).map_err(NotTaken::Store)?;
    let mut next = store::next_record(store).map_err(NotTaken::Store)?;
    let mut count = 0;
    for (path, text) in files {
        // What a full disk has cut off is no record.
        let lines = text.split(|byte| *byte == b'\n');
        let records = lines.filter_map(|line| serde_json::from_slice::<Record>(line).ok());
        let new: Vec<Record> = records.filter(|record| !there.contains(&spelt(record))).collect();
        for some in new.chunks(usize::try_from(PAGE).unwrap_or(usize::MAX)) {
            let log = Log { added: (next..).zip(some.iter().cloned()).collect(), ..Log::new() };
            store.commit(&[], &log).map_err(NotTaken::Store)?;
            next += some.len() as u64;
        }
        count += new.len();
        let taken = taken(&path);
        fs::rename(&path, &taken).map_err(|error| NotTaken::File(named(&path, &error)))?;
    }
    log::info(
        "audit",
        format_args!(
            "{count} records of {} are in the store now; {TAKEN}{FILE}* beside it can be removed",
            newest.display()
        ),
    );
    Ok(())
}

fn all(store: &mut dyn Store) -> Result<BTreeSet<String>, store::Error> {
    let (mut there, mut before) = (BTreeSet::new(), None);
    loop {
        let page = store.records(before)?;
        let Some((last, _)) = page.last() else { return Ok(there) };
        before = Some(*last);
        there.extend(page.iter().map(|(_, record)| spelt(record)));
    }
}

fn spelt(record: &Record) -> String {
    serde_json::to_string(record).unwrap_or_default()
}

fn taken(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{TAKEN}{name}"))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Sqlite;
    use cluster::objects::Millis;
    use linstor::access::Role;

    fn line(number: u64) -> String {
        let record = Record {
            time: Millis(number),
            who: "token ci".to_owned(),
            role: Role::Admin,
            from: None,
            method: "POST".to_owned(),
            path: "/v1/nodes".to_owned(),
            status: 201,
            codes: vec![1],
            objects: [("Node".to_owned(), format!("n{number}"))].into(),
        };
        spelt(&record)
    }

    fn times(store: &mut dyn Store) -> Vec<u64> {
        let page = store.records(None).unwrap();
        page.into_iter().map(|(_, record)| record.time.0).collect()
    }

    #[test]
    fn the_files_of_an_older_version_are_taken_once_in_their_order_also_if_it_is_cut_short() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut store = Sqlite::open(&path("store.db")).unwrap();
        take_over(directory.path(), &mut store).unwrap();
        assert!(times(&mut store).is_empty());
        // The last line was cut off by a full disk.
        let newest = format!("{}\n{}\n{}", line(4), line(5), &line(6)[..20]);
        fs::write(path("audit.log"), &newest).unwrap();
        fs::write(path("audit.log.1"), format!("{}\n", line(3))).unwrap();
        fs::write(path("audit.log.2"), format!("{}\n{}\n", line(1), line(2))).unwrap();
        take_over(directory.path(), &mut store).unwrap();
        assert_eq!(times(&mut store), [5, 4, 3, 2, 1]);
        assert!(path("old-audit.log.2").exists() && !path("audit.log").exists());
        assert_eq!(fs::read_to_string(path("old-audit.log")).unwrap(), newest);
        // It was in the store, and its name had not changed yet.
        fs::rename(path("old-audit.log"), path("audit.log")).unwrap();
        take_over(directory.path(), &mut store).unwrap();
        assert_eq!(times(&mut store), [5, 4, 3, 2, 1]);
    }
}
