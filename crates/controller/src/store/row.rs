//! Rows as text: what every store keeps.
//!
//! The key is in lower case, because names match without regard to case; the object is JSON.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cluster::change::{Change, Key, Object};

use super::Error;

/// The key of a row, the same for every spelling of its names.
pub fn key(key: &Key) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(key)?.to_ascii_lowercase())
}

/// The rows that changes lead to, and no text for those that go. Of several changes of one row the
/// last counts.
pub fn texts(changes: &[Change]) -> Result<BTreeMap<String, Option<String>>, serde_json::Error> {
    let text = |change: &Change| match change {
        Change::Put(object) => Ok((key(&object.key())?, Some(serde_json::to_string(object)?))),
        Change::Remove(gone) => Ok((key(gone)?, None)),
    };
    changes.iter().map(text).collect()
}

/// The object of a row. `store` is where it is, for the message.
pub fn object(store: &str, key: String, text: &str) -> Result<Object, Error> {
    serde_json::from_str(text).map_err(|error| Error::Row {
        file: PathBuf::from(store),
        key,
        cause: error.to_string(),
    })
}
