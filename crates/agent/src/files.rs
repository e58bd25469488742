//! Files that are there as a whole, durable, or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Ending of what is not yet in its place.
const BESIDE: &str = "new";

/// Puts a file in its place, durable; only its owner can read it.
///
/// # Errors
/// If it could not be written; the old one is there then.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_with(path, 0o600, |file| file.write_all(content))
}

/// The same, with what writes it.
///
/// # Errors
/// As for [`replace`].
pub fn replace_with(
    path: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let beside = path.with_added_extension(BESIDE);
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&beside)?;
    write(&mut file)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&beside, path)?;
    sync_folder_of(path)
}

/// The same, as JSON.
///
/// # Errors
/// As for [`replace`].
pub fn replace_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    replace(path, &serde_json::to_vec(value).map_err(io::Error::other)?)
}

/// What is in a file, if there is one.
///
/// # Errors
/// If it can not be read; an error of kind `InvalidData` names the file if it has something else.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        let text = format!("{} is damaged: {error}; restore it from a backup", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

/// Removes a file for good; that there is none is no error.
///
/// # Errors
/// If it could not be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_folder_of(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn sync_folder_of(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}
