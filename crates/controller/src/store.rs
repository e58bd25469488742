//! Where the wanted state is kept.
//!
//! - `sqlite`: one file, of one controller
//! - `shared`: a server that several controllers share, of which one leads; `postgres` and `etcd` are
//!   such servers
//! - `location`: which one, as an operator names it
//! - `row`: rows as text, the same in all

mod etcd;
mod location;
mod postgres;
mod row;
mod shared;
mod sqlite;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

use cluster::change::{Change, Object};
use linstor::access::Record;
use linstor::controller::{Report, ReportFilter};

pub use location::{Location, NoLocation};
pub use shared::{Electorate, Standing, Term};
pub use sqlite::Sqlite;

/// Version of what is kept, the same on all stores. A change of `cluster`'s rows that older programs
/// misread counts it up.
///
/// - 1: rows, error reports, files
/// - 2: the audit log; tokens by which nodes join are rows
pub const VERSION: i64 = 2;
/// Records of the audit log that are kept.
const RECORDS: u64 = 100_000;
/// Records that are read at once.
pub const PAGE: u64 = 1000;

/// Commands, or definitions, after which what they change is stored: readers wait for that long. So many
/// records go with changes at most, which is what fits into one transaction of every store.
pub const TOGETHER: usize = 64;

/// What is written to the audit log. Its numbers are the owner's: each is greater than the last.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Log {
    /// New records.
    pub added: Vec<(u64, Record)>,
    /// Records that take the place of those of their numbers.
    pub replaced: Vec<(u64, Record)>,
}

impl Log {
    /// Nothing.
    pub const fn new() -> Log {
        Log { added: Vec::new(), replaced: Vec::new() }
    }

    /// True if there is nothing to write.
    pub const fn is_empty(&self) -> bool {
        self.added.is_empty() && self.replaced.is_empty()
    }
}

/// The number that the next record of the audit log gets.
///
/// # Errors
/// If the store can not be read.
pub fn next_record(store: &mut dyn Store) -> Result<u64, Error> {
    Ok(store.records(None)?.first().map_or(1, |(last, _)| last + 1))
}

/// A store of rows. Its owner is the only one who writes.
pub trait Store: Send {
    /// Every row; none at all in a new store.
    ///
    /// # Errors
    /// If it can not be read.
    fn load(&mut self) -> Result<Vec<Object>, Error>;

    /// Makes changes durable, those of one command or of several, and what goes into the audit log with
    /// them: all of it, or after an error or a crash nothing. Only of a log without changes a part may be
    /// there. The oldest records beyond a limit are forgotten.
    ///
    /// # Errors
    /// If they could not be written. Whether they are there is for `load` to say.
    fn commit(&mut self, changes: &[Change], log: &Log) -> Result<(), Error>;

    /// Writes a copy to a new file while the store is in use.
    ///
    /// # Errors
    /// If the file exists or can not be written.
    fn backup(&mut self, to: &Path) -> Result<(), Error>;

    /// Keeps an error report, and forgets the oldest beyond a limit.
    ///
    /// # Errors
    /// If it could not be written.
    fn add_report(&mut self, report: &Report) -> Result<(), Error>;

    /// The number of the next error report.
    ///
    /// # Errors
    /// If it can not be read.
    fn next_report(&mut self) -> Result<u64, Error>;

    /// Error reports, the newest first.
    ///
    /// # Errors
    /// If they can not be read.
    fn reports(&mut self, filter: &ReportFilter) -> Result<Vec<Report>, Error>;

    /// Deletes error reports; returns how many there were.
    ///
    /// # Errors
    /// If they could not be deleted.
    fn delete_reports(&mut self, filter: &ReportFilter) -> Result<usize, Error>;

    /// Records of the audit log with their numbers, the newest first: at most [`PAGE`], with numbers
    /// below `before` if that is given. None if there are none left.
    ///
    /// # Errors
    /// If they can not be read.
    fn records(&mut self, before: Option<u64>) -> Result<Vec<(u64, Record)>, Error>;

    /// A file of which every controller of the cluster has the same: the one that is kept, or from now
    /// on `content`. A store that only one controller can have keeps none.
    ///
    /// # Errors
    /// If it can not be read or written.
    fn file(&mut self, name: &'static str, content: String) -> Result<String, Error> {
        let _ = name;
        Ok(content)
    }

    /// Gives such a file another content. A store that only one controller can have keeps none.
    ///
    /// # Errors
    /// If it can not be written.
    fn replace_file(&mut self, name: &'static str, content: String) -> Result<(), Error> {
        let _ = (name, content);
        Ok(())
    }
}

/// Says that a store on a server was of an older version.
fn was_brought_up(store: &str, found: i64) {
    let text = format_args!("{store} was of version {found} and is of version {VERSION} now");
    crate::log::info("store", text);
}

/// Why a store can not do what it should. All are told with the file, the cause and the next step.
#[derive(Debug)]
pub enum Error {
    /// The file belongs to a newer version of this program.
    Newer {
        /// The file.
        file: PathBuf,
        /// Version of its tables.
        found: i64,
        /// The newest that is known here.
        known: i64,
    },
    /// The file is something else.
    Foreign {
        /// The file.
        file: PathBuf,
    },
    /// Another process has the file.
    InUse {
        /// The file.
        file: PathBuf,
    },
    /// A row is not what it should be.
    Row {
        /// The file.
        file: PathBuf,
        /// Its key.
        key: String,
        /// What is wrong with it.
        cause: String,
    },
    /// A file that is to be written exists.
    Exists {
        /// The file.
        file: PathBuf,
    },
    /// A server can not be reached, or refuses.
    Server {
        /// Where it is, without any password.
        store: String,
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        cause: String,
        /// What to do about it.
        next: &'static str,
    },
    /// Another controller leads by now: nothing was changed.
    Deposed {
        /// The store.
        store: String,
    },
    /// The file can not be read or written.
    Failed {
        /// The file.
        file: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        cause: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Newer { file, found, known } => write!(
                f,
                "the store {} has tables of version {found}, and this program knows {known}: \
                 start the version that wrote it, or {}",
                file.display(),
                restore(file)
            ),
            Error::Foreign { file } => write!(
                f,
                "{} is not a store of this program: name another directory",
                file.display()
            ),
            Error::InUse { file } => write!(
                f,
                "the store {} is in use: another controller runs on it; stop that one first",
                file.display()
            ),
            Error::Row { file, key, cause } => write!(
                f,
                "row {key} of the store {} can not be read: {cause}; {}",
                file.display(),
                restore(file)
            ),
            Error::Exists { file } => {
                write!(f, "{} exists: name a file that does not", file.display())
            }
            Error::Server { store, doing, cause, next } => {
                write!(f, "{doing} the store {store} failed: {cause}; {next}")
            }
            Error::Deposed { store } => write!(
                f,
                "another controller leads on the store {store} by now, so this one changes nothing \
                 any more; ask that one"
            ),
            Error::Failed { file, doing, cause } => {
                write!(f, "{doing} the store {} failed: {cause}", file.display())?;
                write!(f, "; look at its file system, then try again")
            }
        }
    }
}

impl std::error::Error for Error {}

/// How an older state of a store comes back: each has copies of its own.
fn restore(store: &Path) -> &'static str {
    let name = store.to_string_lossy();
    match name.split_once("://").map(|(scheme, _)| scheme) {
        Some("postgresql" | "postgres") => {
            "stop all controllers and restore a dump of its tables (`pg_dump --table 'ashlar_*'`)"
        }
        Some("etcd") => {
            "stop all controllers and restore a snapshot of etcd (`etcdctl snapshot save`)"
        }
        _ => "put a copy of the file in its place and remove the one that ends in -wal",
    }
}
