//! What is wanted, as one file of JSON: to look at, to keep, and to put into another store. What LINSTOR
//! exports can be put there, too (`linstor::import`).
//!
//! Keys of encryption are in it as the store has them, sealed; the secrets by which replicas know each
//! other are in the clear. So only its owner can read the file.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cluster::change::{Change, Object};
use cluster::model::Model;
use linstor::import::{Imported, LeftOut};
use serde::{Deserialize, Serialize};

use crate::files;
use crate::store::{self, Log, Store, VERSION};

/// What the file says it is.
const FORMAT: &str = "ashlar export";

#[derive(Serialize, Deserialize)]
struct Exported {
    format: String,
    /// Of the rows, as stores count it.
    version: i64,
    /// By which release.
    release: String,
    rows: Vec<Object>,
}

/// Writes what is wanted to a new file.
///
/// # Errors
/// If there is one, or it can not be written.
pub fn write(file: &Path, model: &Model) -> io::Result<()> {
    if file.exists() {
        return Err(io::Error::from(io::ErrorKind::AlreadyExists));
    }
    let exported = Exported {
        format: FORMAT.to_owned(),
        version: VERSION,
        release: env!("CARGO_PKG_VERSION").to_owned(),
        rows: model.rows().collect(),
    };
    files::replace(file, &serde_json::to_vec(&exported).map_err(io::Error::other)?)
}

/// Why nothing was imported.
#[derive(Debug)]
pub enum Error {
    /// The file can not be read.
    File(PathBuf, io::Error),
    /// It is something else, or of a newer release.
    Unfit(PathBuf, String),
    /// The store has rows already.
    Taken,
    /// It has what there can not be here, and nobody has said that it may be left out.
    LeftOut(PathBuf, Vec<LeftOut>),
    /// The store fails.
    Store(store::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::File(file, error) => write!(f, "{} can not be read: {error}", file.display()),
            Error::Unfit(file, why) => write!(
                f,
                "{} is no export that this program reads: {why}; name a file that `ashlar controller \
                 export` of this release or an older one has made, or `linstor-database export-db` of \
                 LINSTOR",
                file.display()
            ),
            Error::Taken => write!(
                f,
                "the store is not empty, and an import would mix two clusters; name an empty one"
            ),
            Error::LeftOut(file, all) => {
                writeln!(f, "{} has what there can not be here:", file.display())?;
                all.iter().try_for_each(|one| writeln!(f, "  {one}"))?;
                write!(f, "see to it in LINSTOR and export again, or leave it out with --leave-out")
            }
            Error::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Error {
        Error::Store(error)
    }
}

/// What a file has.
#[derive(Debug)]
pub struct Found {
    /// Its objects.
    pub rows: Vec<Object>,
    /// The release of LINSTOR that has written it, if one has.
    pub linstor: Option<String>,
    /// What it has that there can not be here, of LINSTOR's.
    pub left_out: Vec<LeftOut>,
}

/// What a file has. What can not be taken over is left out if `leave_out` says so.
///
/// # Errors
/// If it is no export that is read here, or has what can not be taken over.
pub fn read(file: &Path, leave_out: bool) -> Result<Found, Error> {
    let text = fs::read(file).map_err(|error| Error::File(file.to_owned(), error))?;
    let unfit = |why: String| Error::Unfit(file.to_owned(), why);
    if linstor::import::is_export(&text) {
        let mut random =
            |bytes: &mut [u8]| getrandom::fill(bytes).expect("the kernel gives random bytes");
        let Imported { release, rows, left_out } =
            linstor::import::read(&text, &mut random).map_err(unfit)?;
        return match left_out.is_empty() || leave_out {
            true => Ok(Found { rows, linstor: Some(release), left_out }),
            false => Err(Error::LeftOut(file.to_owned(), left_out)),
        };
    }
    #[derive(Deserialize)]
    struct Head {
        format: String,
        version: i64,
    }
    let head: Head = serde_json::from_slice(&text).map_err(|error| unfit(error.to_string()))?;
    if head.format != FORMAT {
        return Err(unfit(format!("it says that it is `{}`", head.format)));
    }
    if head.version > VERSION {
        let found = head.version;
        return Err(unfit(format!("its rows are of version {found}, and {VERSION} is known here")));
    }
    let exported: Exported =
        serde_json::from_slice(&text).map_err(|error| unfit(error.to_string()))?;
    Ok(Found { rows: exported.rows, linstor: None, left_out: Vec::new() })
}

/// Puts rows into an empty store, all of them or nothing; returns how many these were.
///
/// # Errors
/// If they were not put there.
pub fn put(rows: Vec<Object>, store: &mut dyn Store) -> Result<usize, Error> {
    if !store.load()?.is_empty() {
        return Err(Error::Taken);
    }
    let changes: Vec<Change> = rows.into_iter().map(Change::Put).collect();
    store.commit(&changes, &Log::new())?;
    Ok(changes.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Sqlite;
    use cluster::objects::Controller;

    #[test]
    fn an_export_is_read_into_an_empty_store_and_only_there() {
        let folder = tempfile::tempdir().unwrap();
        let (file, other) = (folder.path().join("a.json"), folder.path().join("b.json"));
        let mut model = Model::default();
        let mut controller = Controller::default();
        controller.props.insert("Aux/site".to_owned(), "rack1".to_owned());
        model.put(Object::Controller(controller));
        write(&file, &model).unwrap();
        assert_eq!(write(&file, &model).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let mut store = Sqlite::open(&folder.path().join("new.db")).unwrap();
        let rows: Vec<Object> = model.rows().collect();
        assert_eq!(put(read(&file, false).unwrap().rows, &mut store).unwrap(), rows.len());
        assert_eq!(store.load().unwrap(), rows);
        assert!(matches!(put(rows, &mut store), Err(Error::Taken)));
        let text = fs::read_to_string(&file).unwrap();
        for (text, why) in [
            (text.replace(FORMAT, "linstor"), "it says that it is `linstor`"),
            (text.replace(&format!("\"version\":{VERSION}"), "\"version\":99"), "of version 99"),
            (text[..text.len() / 2].to_owned(), "EOF"),
            ("{}".to_owned(), "missing field"),
        ] {
            fs::write(&other, text).unwrap();
            let error = read(&other, true).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("b.json"), "{error}");
        }
        let error = read(&folder.path().join("none"), true).unwrap_err().to_string();
        assert!(error.contains("none can not be read"), "{error}");
    }
}
