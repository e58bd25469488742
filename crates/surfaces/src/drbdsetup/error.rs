//! How commands end without success: texts and exit statuses of drbdsetup contract §1.

use std::fmt;
use std::io;

use vocab::{ConfigError, Refusal, RefusalCode, StateError};

use super::table::Command;
use crate::cli;

/// Why a command ended without success.
#[derive(Debug)]
pub(super) enum Stop {
    /// The command line makes no sense.
    Usage { command: &'static str, text: String },
    /// The list of commands is wanted, or no command was given.
    Help { status: u8 },
    /// The engine refused, or would.
    Refused { object: String, refusal: Refusal },
    /// Anything else, with its exit status; nothing is printed without a text.
    Exit { status: u8, text: String },
    /// The engine could not be asked, or not do it.
    Engine { object: String, error: cli::Error },
}

impl Stop {
    /// The command line makes no sense.
    pub(super) fn usage(command: &Command, text: impl Into<String>) -> Stop {
        Stop::Usage { command: command.name, text: text.into() }
    }

    /// What the engine's client says, about an object.
    pub(super) fn of(object: &str, error: cli::Error) -> Stop {
        let object = object.to_owned();
        match error {
            cli::Error::Refused { refusal, .. } => Stop::Refused { object, refusal },
            error => Stop::Engine { object, error },
        }
    }

    /// There is no such object, for commands that only read.
    pub(super) fn unknown(object: &str, code: ConfigError) -> Stop {
        Stop::Refused { object: object.to_owned(), refusal: code.into() }
    }

    /// The exit status.
    pub(super) fn status(&self) -> u8 {
        match self {
            Stop::Usage { .. } => 20,
            Stop::Help { status } | Stop::Exit { status, .. } => *status,
            Stop::Refused { refusal, .. } => match refusal.code {
                RefusalCode::Config(_) => 10,
                RefusalCode::State(StateError::LowerThanOutdated) => 5,
                RefusalCode::State(StateError::NoLocalDisk) => 16,
                RefusalCode::State(StateError::NoUpToDateDisk) => 17,
                RefusalCode::State(_) => 11,
            },
            Stop::Engine { error: cli::Error::Closed { .. }, .. } => 121,
            Stop::Engine { .. } => 20,
        }
    }

    /// The engine does not run: nothing of it is configured.
    pub(super) fn no_engine(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        let Stop::Engine { error: cli::Error::Unreachable { why, .. }, .. } = self else {
            return false;
        };
        matches!(why.kind(), NotFound | ConnectionRefused)
    }

    /// To be asked again: the state is about to change.
    pub(super) fn is_transient(&self) -> bool {
        let transient = RefusalCode::State(StateError::InTransientState);
        matches!(self, Stop::Refused { refusal, .. } if refusal.code == transient)
    }
}

impl fmt::Display for Stop {
    /// The lines for standard error, without the last line end; empty if there is nothing to say.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Usage { command, text } => {
                write!(f, "drbdsetup {command}: {text}; see `drbdsetup help {command}`")
            }
            Stop::Help { .. } => Ok(()),
            Stop::Refused { object, refusal } => {
                let number = refusal.number();
                match refusal.code {
                    RefusalCode::Config(code) => write!(f, "{object}: Failure: ({number}) {code}")?,
                    RefusalCode::State(code) => {
                        write!(f, "{object}: State change failed: ({number}) {code}")?;
                    }
                }
                if refusal.detail.is_empty() {
                    return Ok(());
                }
                write!(f, "\nadditional info from kernel:\n{}", refusal.detail)
            }
            Stop::Exit { text, .. } => f.write_str(text),
            Stop::Engine { object, error } => write!(f, "{object}: {error}"),
        }
    }
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Stop {
        // Whoever read the output has seen enough.
        if e.kind() == io::ErrorKind::BrokenPipe {
            return Stop::Exit { status: 0, text: String::new() };
        }
        Stop::Exit { status: 20, text: format!("can not write the output: {e}") }
    }
}
