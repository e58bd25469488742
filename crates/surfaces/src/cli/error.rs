//! What a command ends with: what failed, why, what to do next, and the exit status.

use std::fmt;
use std::path::PathBuf;

use codec::admin::{Failure, FailureKind};
use codec::config;
use vocab::{ConfigError, Refusal, RefusalCode, StateError};

use super::cluster::Entry;

/// Exit statuses, as the manual states them. Where drbdsetup has one for the case, it is the same.
pub const EXIT_STATUS: &str = "\
0  done, or nothing to do
2  wrong usage of the command line
3  the configuration can not be read or is wrong; nothing was done
4  the engine, or every controller, can not be reached
5  no answer, or not done, within --timeout; the command may still complete
10 refused: a configuration rule, a rule of the control plane, or no such object
11 refused: a state-change rule
17 refused: UpToDate data can not be reached
20 failed: a device, a file, the control socket, or a node that could not follow";

/// Why a command ended without success.
#[derive(Debug)]
pub enum Error {
    /// The configuration is wrong.
    Config(config::Error),
    /// A file of the configuration can not be read.
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
        /// What to do.
        next: String,
    },
    /// The words given name nothing, or something that can not be meant.
    Object {
        /// The object as given.
        object: String,
        /// Why, and what to do.
        why: String,
    },
    /// Nothing answers at the control socket.
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// Why.
        why: std::io::Error,
    },
    /// The engine ended before it answered.
    Closed {
        /// What was asked.
        what: String,
    },
    /// The engine did not answer in time.
    NoAnswer {
        /// What was asked.
        what: String,
    },
    /// The engine refused.
    Refused {
        /// What was asked.
        what: String,
        /// The rule and its detail.
        refusal: Refusal,
    },
    /// The engine failed.
    Failed {
        /// What was asked.
        what: String,
        /// How.
        failure: Failure,
    },
    /// The engine answered something that does not fit the question.
    Protocol {
        /// What was asked.
        what: String,
        /// What came.
        why: String,
    },
    /// No controller answers.
    NoController {
        /// What was asked.
        what: String,
        /// The controllers, and why each did not.
        tried: Vec<(String, String)>,
    },
    /// The controller refused; nothing has changed.
    Denied {
        /// What was asked.
        what: String,
        /// Its answer.
        entries: Vec<Entry>,
    },
    /// Something went wrong beyond the rules.
    Troubled {
        /// What was asked.
        what: String,
        /// It was taken on, and is tried again.
        taken_on: bool,
        /// Its answer.
        entries: Vec<Entry>,
    },
    /// The controller took it on, and it is not done in time.
    Unfinished {
        /// What was asked.
        what: String,
        /// What is not done.
        left: String,
    },
    /// It is not known what came of it, or what an answer means.
    Unclear {
        /// What was asked.
        what: String,
        /// Why.
        why: String,
    },
    /// The output can not be written.
    Output(std::io::Error),
    /// Several objects failed; each was reported already.
    Several(u8),
}

impl Error {
    /// The exit status, see [`EXIT_STATUS`].
    pub fn status(&self) -> u8 {
        match self {
            Error::Config(_) | Error::File { .. } => 3,
            Error::Unreachable { .. } | Error::NoController { .. } => 4,
            Error::NoAnswer { .. } | Error::Unfinished { .. } => 5,
            Error::Failed { failure, .. } if failure.kind == FailureKind::Timeout => 5,
            Error::Object { .. } | Error::Denied { .. } => 10,
            Error::Troubled { .. } | Error::Unclear { .. } => 20,
            Error::Refused { refusal, .. } => match refusal.code {
                RefusalCode::Config(_) => 10,
                RefusalCode::State(StateError::NoUpToDateDisk) => 17,
                RefusalCode::State(_) => 11,
            },
            Error::Closed { .. } | Error::Failed { .. } | Error::Protocol { .. } => 20,
            Error::Output(_) => 20,
            Error::Several(status) => *status,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Config(e) => e.fmt(f),
            Error::File { path, why, next } => write!(f, "{}: {why}; {next}", path.display()),
            Error::Object { object, why } => write!(f, "{object}: {why}"),
            Error::Unreachable { socket, why } => write!(
                f,
                "no engine answers at {}: {why}; start it with `systemctl start ashlard` or \
                 `ashlar engine`, or give --socket",
                socket.display()
            ),
            Error::Closed { what } => write!(
                f,
                "{what}: the engine closed the control socket before it answered; look at its log"
            ),
            Error::NoAnswer { what } => write!(
                f,
                "{what}: no answer in time; it may still complete, look with `ashlar status`, or \
                 give a longer --timeout"
            ),
            Error::Refused { what, refusal } => {
                write!(f, "{what}: refused ({}): {refusal}", refusal.number())?;
                match next_step(refusal.code) {
                    "" => Ok(()),
                    next => write!(f, "; {next}"),
                }
            }
            Error::Failed { what, failure } => {
                write!(f, "{what}: {}", failure.text)?;
                if failure.next.is_empty() { Ok(()) } else { write!(f, "; {}", failure.next) }
            }
            Error::Protocol { what, why } => {
                write!(f, "{what}: {why}; use command line and engine of one release")
            }
            Error::NoController { what, tried } => {
                write!(f, "{what}: no controller answers")?;
                for (url, why) in tried {
                    write!(f, "\n  {url}: {why}")?;
                }
                f.write_str(
                    "\n  next: start it with `ashlar controller`, or say where it is with \
                     --controllers or ASHLAR_CONTROLLERS",
                )
            }
            Error::Denied { what, entries } => {
                write!(f, "{what}: refused")?;
                entries.iter().try_for_each(|entry| write!(f, ": {entry}"))
            }
            Error::Troubled { what, entries, .. } => {
                write!(f, "{what}: not all of it could be done")?;
                entries.iter().try_for_each(|entry| write!(f, "\n{entry}"))
            }
            Error::Unfinished { what, left } => write!(
                f,
                "{what}: not done in time: {left}; it goes on, look with `ashlar volume why`, or \
                 give a longer --timeout"
            ),
            Error::Unclear { what, why } => {
                write!(f, "{what}: {why}; look with `ashlar volume list` or `ashlar node list`")
            }
            Error::Output(e) => write!(f, "can not write the output: {e}"),
            Error::Several(_) => f.write_str("not everything could be done, see above"),
        }
    }
}

/// What an operator can do about a refusal. Empty where its detail has to say it.
fn next_step(code: RefusalCode) -> &'static str {
    match code {
        RefusalCode::State(code) => match code {
            StateError::TwoPrimaries => "make the other node Secondary first",
            StateError::NoUpToDateDisk => {
                "connect a node with UpToDate data; --force gives newer data elsewhere up"
            }
            StateError::DeviceInUse => "unmount it and disconnect its clients",
            StateError::NoQuorum => "connect more nodes; `ashlar why` names the missing votes",
            StateError::CwFailedByPeer => "`ashlar why` on the peer names its reason",
            StateError::NoVerifyAlg => "set verify-alg in the net section and run `ashlar adjust`",
            StateError::NeedConnection => "connect the peer first",
            StateError::IsDiskless | StateError::NoLocalDisk => "attach the disk first",
            StateError::ResyncRunning => "wait for it, `ashlar status` shows the progress",
            StateError::InTransientState | StateError::ConcurrentStChg => "try again",
            _ => "",
        },
        RefusalCode::Config(code) => match code {
            ConfigError::UnknownResource | ConfigError::MinorInvalid => {
                "`ashlar status` lists what is up; bring it up with `ashlar up`"
            }
            ConfigError::MetaInvalid => "write metadata with `ashlar create-md`",
            ConfigError::DiscardImpossible => "make this node Secondary first",
            ConfigError::DiskClaimed | ConfigError::MetaDiskClaimed => "free the device first",
            ConfigError::NetConfigured => "disconnect first",
            ConfigError::ResizeDuringResync => "wait for the resync",
            ConfigError::NoDisk => "attach the disk first",
            _ => "",
        },
    }
}

impl std::error::Error for Error {}

impl From<config::Error> for Error {
    fn from(e: config::Error) -> Error {
        Error::Config(e)
    }
}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Error {
        Error::Output(e)
    }
}
