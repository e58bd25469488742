//! Why a step was not carried out, as an operator reads it.

use std::fmt;

use cluster::objects::Generation;

use crate::storage;

/// A step that was not carried out, or not to its end. What is said names the object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed {
    /// Object and cause, in a sentence.
    pub cause: String,
    /// What to do about it.
    pub correction: String,
    /// The order was older than what was begun: it came late, and nobody has to know.
    pub stale: bool,
}

impl Failed {
    /// A failure with what to do next.
    pub fn new(cause: impl Into<String>, correction: impl Into<String>) -> Failed {
        Failed { cause: cause.into(), correction: correction.into(), stale: false }
    }

    /// The refusal of an order that came late.
    pub fn stale(what: impl fmt::Display, ordered: Generation, begun: Generation) -> Failed {
        let cause = format!(
            "{what} of generation {} came late: one of generation {} was begun already",
            ordered.0, begun.0
        );
        let correction = "nothing is to be done: the controller's next plan is newer".to_owned();
        Failed { cause, correction, stale: true }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.cause, self.correction)
    }
}

impl std::error::Error for Failed {}

impl From<storage::Error> for Failed {
    fn from(error: storage::Error) -> Failed {
        let cause = match error.cause.is_empty() {
            true => error.message,
            false => format!("{}: {}", error.message, error.cause),
        };
        let correction = match error.correction.is_empty() {
            true => "see to the pool; it is tried again with the next plan".to_owned(),
            false => error.correction,
        };
        Failed { cause, correction, stale: false }
    }
}
