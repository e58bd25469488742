//! The store in one SQLite file.
//!
//! A row of the wanted state is a row of the table `rows`. A commit is one transaction in the
//! write-ahead log, synchronised before it returns. The file is locked for as long as it is open, so
//! that two controllers never share one.
//!
//! A file of an older version is copied as it is, and then brought up to this one in one transaction.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster::change::{Change, Object};
use linstor::access::Record;
use linstor::controller::{Report, ReportFilter};
use rusqlite::{Connection, ErrorCode, OpenFlags, params};

use super::{Error, Log, PAGE, RECORDS, Store, VERSION, row};
use crate::{files, log};

/// Marks a file as ours: "Ashl".
const APPLICATION: i64 = 0x4173_686c;
/// Error reports that are kept.
const REPORTS: i64 = 10_000;

const TABLES: &str = "
    CREATE TABLE rows (key TEXT PRIMARY KEY NOT NULL, object TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE reports (number INTEGER PRIMARY KEY AUTOINCREMENT, report TEXT NOT NULL);
";
/// What came with version 2.
const TABLES_2: &str = "
    CREATE TABLE audit (number INTEGER PRIMARY KEY AUTOINCREMENT, record TEXT NOT NULL);
";

/// A SQLite file.
#[derive(Debug)]
pub struct Sqlite {
    file: PathBuf,
    connection: Connection,
}

impl Sqlite {
    /// Opens a store, or makes a new one. Of one of an older version a copy is put beside it first.
    ///
    /// # Errors
    /// If the file is of a newer version, something else, in use, or can not be opened.
    pub fn open(file: &Path) -> Result<Sqlite, Error> {
        let failed = |doing| move |error| failed(file, doing, &error);
        // Secrets of resources are in it; SQLite gives its log the same mode.
        let new = OpenOptions::new().create(true).append(true).mode(0o600).open(file);
        new.map_err(|error| Error::Failed {
            file: file.to_owned(),
            doing: "opening",
            cause: error.to_string(),
        })?;
        let connection = Connection::open(file).map_err(failed("opening"))?;
        connection.busy_timeout(Duration::ZERO).map_err(failed("opening"))?;
        let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        // The lock comes with the first access and stays.
        let lock = "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; COMMIT;";
        connection.execute_batch(lock).map_err(failed("locking"))?;
        let application = number("application_id").map_err(failed("reading"))?;
        let version = number("user_version").map_err(failed("reading"))?;
        let tables = connection
            .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get::<_, i64>(0))
            .map_err(failed("reading"))?;
        let file = file.to_owned();
        match (application, version) {
            (0, 0) if tables == 0 => {}
            (APPLICATION, found) if (1..=VERSION).contains(&found) => {}
            (APPLICATION, found) if found > VERSION => {
                return Err(Error::Newer { file, found, known: VERSION });
            }
            _ => return Err(Error::Foreign { file }),
        }
        connection
            .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
            .map_err(|error| self::failed(&file, "opening", &error))?;
        if tables == 0 {
            let new = format!(
                "BEGIN; {TABLES} {TABLES_2} PRAGMA application_id = {APPLICATION}; \
                 PRAGMA user_version = {VERSION}; COMMIT;"
            );
            let made = connection.execute_batch(&new);
            made.map_err(|error| self::failed(&file, "writing", &error))?;
        }
        let mut store = Sqlite { file, connection };
        if tables != 0 && version < VERSION {
            store.bring_up(version)?;
        }
        Ok(store)
    }

    /// Makes a file of an older version one of this version. Cut short it is as before, with a copy
    /// beside it.
    fn bring_up(&mut self, found: i64) -> Result<(), Error> {
        let copy = self.keep_old(found)?;
        let up = format!("BEGIN; {TABLES_2} PRAGMA user_version = {VERSION}; COMMIT;");
        self.connection.execute_batch(&up).map_err(self.failed("bringing up"))?;
        log::info(
            "store",
            format_args!(
                "{} was of version {found} and is of version {VERSION} now; as it was it is in {}",
                self.file.display(),
                copy.display()
            ),
        );
        Ok(())
    }

    /// Copies the file to one beside it, which is whole or not there: `FILE.v1`, or, if there is such
    /// a file, `FILE.v1-2` and so on.
    fn keep_old(&mut self, found: i64) -> Result<PathBuf, Error> {
        let file = self.file.display().to_string();
        let beside = |end: &str| PathBuf::from(format!("{file}.v{found}{end}"));
        let part = beside(".part");
        let failed = |error: std::io::Error| Error::Failed {
            file: part.clone(),
            doing: "writing a copy to",
            cause: error.to_string(),
        };
        match std::fs::remove_file(&part) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(error));
            }
            _ => {}
        }
        self.backup(&part)?;
        for number in 1.. {
            let end = if number == 1 { String::new() } else { format!("-{number}") };
            let copy = beside(&end);
            // Never in the place of one that is there.
            match std::fs::hard_link(&part, &copy) {
                Ok(()) => {
                    std::fs::remove_file(&part).map_err(failed)?;
                    files::sync_folder(&copy).map_err(failed)?;
                    return Ok(copy);
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
        unreachable!("there are fewer files than numbers")
    }

    /// Makes a new store in a file that is not there yet.
    ///
    /// # Errors
    /// If the file exists or can not be written.
    pub fn create(file: &Path) -> Result<Sqlite, Error> {
        new_file(file)?;
        Sqlite::open(file)
    }

    fn failed(&self, doing: &'static str) -> impl Fn(rusqlite::Error) -> Error + use<> {
        let file = self.file.clone();
        move |error| failed(&file, doing, &error)
    }

    fn write(&mut self, changes: &[Change], log: &Log) -> Result<(), rusqlite::Error> {
        let transaction = self.connection.transaction()?;
        {
            let mut put = transaction.prepare_cached("REPLACE INTO rows VALUES (?1, ?2)")?;
            let mut remove = transaction.prepare_cached("DELETE FROM rows WHERE key = ?1")?;
            for (key, text) in row::texts(changes).map_err(json)? {
                match text {
                    Some(text) => put.execute(params![key, text])?,
                    None => remove.execute(params![key])?,
                };
            }
            let add = "INSERT INTO audit (record, number) VALUES (?1, ?2)";
            let replace = "UPDATE audit SET record = ?1 WHERE number = ?2";
            for (statement, records) in [(add, &log.added), (replace, &log.replaced)] {
                let mut put = transaction.prepare_cached(statement)?;
                for (number, record) in records {
                    let text = serde_json::to_string(record).map_err(json)?;
                    put.execute(params![text, number.cast_signed()])?;
                }
            }
            if let Some((last, _)) = log.added.last() {
                let mut forget =
                    transaction.prepare_cached("DELETE FROM audit WHERE number <= ?1")?;
                forget.execute(params![last.saturating_sub(RECORDS).cast_signed()])?;
            }
        }
        transaction.commit()
    }

    fn copy(&self, to: &Path) -> Result<(), rusqlite::Error> {
        let mut copy = Connection::open_with_flags(to, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let backup = rusqlite::backup::Backup::new(&self.connection, &mut copy)?;
        // All pages in one step: nobody else writes meanwhile.
        backup.step(-1).map(drop)
    }

    fn each_report(
        &mut self,
        filter: &ReportFilter,
        mut take: impl FnMut(i64, Report),
    ) -> Result<(), rusqlite::Error> {
        let mut query =
            self.connection.prepare("SELECT number, report FROM reports ORDER BY number DESC")?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let report = serde_json::from_str(&row.get::<_, String>(1)?).map_err(json)?;
            if filter.takes(&report) {
                take(row.get(0)?, report);
            }
        }
        Ok(())
    }
}

impl Store for Sqlite {
    fn load(&mut self) -> Result<Vec<Object>, Error> {
        let reading = self.failed("reading");
        let mut query =
            self.connection.prepare("SELECT key, object FROM rows").map_err(&reading)?;
        let mut rows = query.query([]).map_err(&reading)?;
        let name = self.file.display().to_string();
        let mut objects = Vec::new();
        while let Some(row) = rows.next().map_err(&reading)? {
            let (key, text): (String, String) =
                (row.get(0).map_err(&reading)?, row.get(1).map_err(&reading)?);
            objects.push(row::object(&name, key, &text)?);
        }
        Ok(objects)
    }

    fn commit(&mut self, changes: &[Change], log: &Log) -> Result<(), Error> {
        let writing = self.failed("writing");
        self.write(changes, log).map_err(writing)
    }

    fn backup(&mut self, to: &Path) -> Result<(), Error> {
        let writing = |error| failed(to, "writing a copy of", &error);
        new_file(to)?;
        let copied = self.copy(to);
        if copied.is_err() {
            // Half a copy is none.
            let _ = std::fs::remove_file(to);
        }
        copied.map_err(writing)
    }

    fn add_report(&mut self, report: &Report) -> Result<(), Error> {
        let writing = self.failed("writing");
        let text = serde_json::to_string(report).map_err(json).map_err(&writing)?;
        let mut add = || {
            let transaction = self.connection.transaction()?;
            transaction.execute("INSERT INTO reports (report) VALUES (?1)", params![text])?;
            let oldest = transaction.last_insert_rowid() - REPORTS;
            transaction.execute("DELETE FROM reports WHERE number <= ?1", params![oldest])?;
            transaction.commit()
        };
        add().map_err(writing)
    }

    fn next_report(&mut self) -> Result<u64, Error> {
        let reading = self.failed("reading");
        let last = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'reports'";
        let last: i64 = self.connection.query_row(last, [], |row| row.get(0)).map_err(reading)?;
        Ok(last.unsigned_abs())
    }

    fn reports(&mut self, filter: &ReportFilter) -> Result<Vec<Report>, Error> {
        let reading = self.failed("reading");
        let mut found = Vec::new();
        self.each_report(filter, |_, report| found.push(report)).map_err(reading)?;
        Ok(found)
    }

    fn delete_reports(&mut self, filter: &ReportFilter) -> Result<usize, Error> {
        let (reading, writing) = (self.failed("reading"), self.failed("writing"));
        let mut numbers = Vec::new();
        self.each_report(filter, |number, _| numbers.push(number)).map_err(reading)?;
        let mut delete = || {
            let transaction = self.connection.transaction()?;
            for number in &numbers {
                transaction.execute("DELETE FROM reports WHERE number = ?1", params![number])?;
            }
            transaction.commit()
        };
        delete().map_err(writing)?;
        Ok(numbers.len())
    }

    fn records(&mut self, before: Option<u64>) -> Result<Vec<(u64, Record)>, Error> {
        let reading = self.failed("reading");
        let before = before.map_or(i64::MAX, |before| i64::try_from(before).unwrap_or(i64::MAX));
        let read = || {
            let mut query = self.connection.prepare_cached(
                "SELECT number, record FROM audit WHERE number < ?1 ORDER BY number DESC LIMIT ?2",
            )?;
            let mut rows = query.query(params![before, PAGE.cast_signed()])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let record = serde_json::from_str(&row.get::<_, String>(1)?).map_err(json)?;
                found.push((row.get::<_, i64>(0)?.unsigned_abs(), record));
            }
            Ok(found)
        };
        read().map_err(reading)
    }
}

/// Makes a file. Not after it was looked for: whoever makes it in between keeps it.
fn new_file(file: &Path) -> Result<(), Error> {
    let new = OpenOptions::new().create_new(true).write(true).mode(0o600).open(file);
    new.map(drop).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Error::Exists { file: file.to_owned() },
        _ => Error::Failed {
            file: file.to_owned(),
            doing: "writing a copy of",
            cause: error.to_string(),
        },
    })
}

fn json(error: serde_json::Error) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(error))
}

fn failed(file: &Path, doing: &'static str, error: &rusqlite::Error) -> Error {
    let file = file.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::InUse { file },
        Some(ErrorCode::NotADatabase) => Error::Foreign { file },
        _ => Error::Failed { file, doing, cause: error.to_string() },
    }
}
