//! What is wrong with a configuration: where, what object, why, and what to do.

use std::fmt;
use std::sync::Arc;

use vocab::HandlerEvent;
use vocab::options::OptionError;

/// A position in a configuration file, counted from 1.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The file's name as the loader gave it.
    pub file: Arc<str>,
    /// Line.
    pub line: u32,
    /// Column in characters.
    pub column: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// A configuration error. Nothing was applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// Where; boxed to keep the success path of every parser function small.
    pub at: Box<Place>,
    /// The object meant, such as `resource r0`; empty outside any.
    pub object: String,
    /// What is wrong.
    pub cause: Box<Cause>,
}

/// What is wrong. Each text ends in the next step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A character that begins no token.
    BadCharacter(char),
    /// A quoted string that does not end on its line.
    UnterminatedString,
    /// A word above 128 or a string above 255 bytes.
    TooLong {
        /// `word` or `string`.
        what: &'static str,
        /// The limit in bytes.
        limit: usize,
    },
    /// A token that does not fit.
    Unexpected {
        /// The token.
        found: String,
        /// What the grammar wants.
        expected: String,
    },
    /// A keyword the section does not have.
    UnknownKeyword {
        /// The keyword.
        found: String,
        /// The section.
        section: &'static str,
    },
    /// A handler that there is not.
    UnknownHandler(String),
    /// A bad option or value.
    Option(OptionError),
    /// Text that is not the wanted number.
    BadNumber {
        /// What the number is.
        what: &'static str,
        /// The text.
        found: String,
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// Text that is not an address.
    BadAddress {
        /// The text.
        found: String,
        /// Why not, and what to write.
        why: &'static str,
    },
    /// Something valid that this program does not do.
    Unsupported {
        /// What.
        what: String,
        /// What to do instead.
        next: &'static str,
    },
    /// Something stated twice.
    Duplicate {
        /// What.
        what: String,
        /// Where it was stated first.
        first: Place,
    },
    /// Something required that is not there.
    Missing {
        /// What.
        what: String,
        /// What to write.
        next: String,
    },
    /// An included file or template could not be had.
    Include {
        /// The name or pattern as written.
        pattern: String,
        /// Why.
        why: String,
    },
    /// More than this program reads.
    TooMuch {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A reference to a host that no `on` or `floating` section declares.
    UnknownHost(String),
    /// Sections that contradict each other.
    Contradiction(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::BadCharacter(c) => {
                write!(f, "unexpected character {c:?}; put text with such characters in quotes")
            }
            Cause::UnterminatedString => {
                f.write_str("the string does not end on its line; close it with a quote")
            }
            Cause::TooLong { what, limit } => {
                write!(f, "a {what} has at most {limit} bytes; shorten it")
            }
            Cause::Unexpected { found, expected } => {
                write!(f, "found {found} where {expected} belongs")
            }
            Cause::UnknownKeyword { found, section } => write!(
                f,
                "there is no `{found}` in a {section} section; check the spelling and the section"
            ),
            Cause::UnknownHandler(found) => {
                let all: Vec<_> = HandlerEvent::ALL.iter().map(|event| event.word()).collect();
                write!(f, "there is no handler `{found}`; give one of {}", all.join(", "))
            }
            Cause::Option(e) => e.fmt(f),
            Cause::BadNumber { what, found, min, max } => {
                write!(f, "`{found}` is not a {what}; give a number from {min} to {max}")
            }
            Cause::BadAddress { found, why } => write!(f, "`{found}` is not an address: {why}"),
            Cause::Unsupported { what, next } => write!(f, "{what} is not supported; {next}"),
            Cause::Duplicate { what, first } => {
                write!(f, "{what} is used already at {first}; change or remove one of the two")
            }
            Cause::Missing { what, next } => write!(f, "{what} is missing; {next}"),
            Cause::Include { pattern, why } => {
                write!(f, "can not read `{pattern}`: {why}; create it or remove the statement")
            }
            Cause::TooMuch { what, limit } => {
                write!(f, "more than {limit} {what}; split the configuration")
            }
            Cause::UnknownHost(host) => write!(
                f,
                "no `on` or `floating` section of this resource declares `{host}`; add one or \
                 correct the name"
            ),
            Cause::Contradiction(text) => f.write_str(text),
        }
    }
}

impl Error {
    pub(super) fn new(at: &Place, object: impl Into<String>, cause: Cause) -> Error {
        Error { at: Box::new(at.clone()), object: object.into(), cause: Box::new(cause) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.at)?;
        if !self.object.is_empty() {
            write!(f, "{}: ", self.object)?;
        }
        self.cause.fmt(f)
    }
}

impl std::error::Error for Error {}
