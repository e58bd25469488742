//! A value that nobody may read over a shoulder or in a log.

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use super::spec::{Raw, Unit, Value};

/// Text that takes part in equality and in what is kept, and never in messages. It is erased from memory
/// when it is dropped.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Secret(String);

impl Secret {
    /// The secret itself, for computing with it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret(text)
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Secret {
        Secret(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "none" } else { "(not shown)" })
    }
}

impl Value for Secret {
    fn from_raw(raw: Raw, _: Unit) -> Option<Secret> {
        if let Raw::Text(text) = raw { Some(Secret(text)) } else { None }
    }
    fn to_raw(&self, _: Unit) -> Raw {
        Raw::Text(self.0.clone())
    }
}
