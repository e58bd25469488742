//! What a controller asks an agent at once, outside of any plan, and what that answers: for what is no
//! state and nobody plans.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use vocab::LogLevel;

use crate::disks::{DevicePool, Disk};
use crate::name::FilePath;
use crate::objects::Millis;
use crate::refusal::{Code, Refusal};

/// Longest name of a plug-in's configuration, in bytes: it is that of a file.
const CONFIG: usize = 200;

/// What an agent is asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Question {
    /// Which disks nobody uses.
    Disks {},
    /// To make a pool; nothing is left of one that can not be made.
    MakePool(DevicePool),
    /// To take a pool back that it has just made and in which nothing is.
    UnmakePool(DevicePool),
    /// Whether it would put an external file there.
    MayPut {
        /// Where.
        path: FilePath,
    },
    /// What became of an external file.
    File {
        /// Where it was put.
        path: FilePath,
        /// What should be in it.
        content: Vec<u8>,
    },
    /// Up to which level it logs.
    LogLevel {},
    /// To log up to a level, until it ends.
    SetLogLevel(LogLevel),
    /// To call drbd-reactor's control program.
    Reactor(ReactorCall),
    /// What helps to find out what is wrong with the node.
    Diagnosis {
        /// Of its journal only what is from that time on.
        since: Option<Millis>,
    },
}

impl Question {
    /// True if something may have changed after it, answered or not.
    pub fn changes(&self) -> bool {
        match self {
            Question::Disks {}
            | Question::MayPut { .. }
            | Question::File { .. }
            | Question::LogLevel {}
            | Question::Diagnosis { .. } => false,
            Question::MakePool(_) | Question::UnmakePool(_) | Question::SetLogLevel(_) => true,
            Question::Reactor(call) => call.verb != ReactorVerb::Status,
        }
    }
}

impl fmt::Display for Question {
    /// What the agent is to do, after "to".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Question::Disks {} => write!(f, "tell which of its disks nobody uses"),
            Question::MakePool(pool) => write!(f, "make the {pool}"),
            Question::UnmakePool(pool) => {
                write!(f, "remove the {pool} again, which is no storage pool now")
            }
            Question::MayPut { path } => write!(f, "tell whether it takes {path}"),
            Question::File { path, .. } => write!(f, "look at {path}"),
            Question::LogLevel {} => write!(f, "tell up to which level it logs"),
            Question::SetLogLevel(level) => write!(f, "log up to {level}"),
            Question::Reactor(call) => write!(f, "call `{call}`"),
            Question::Diagnosis { .. } => write!(f, "tell what helps to find out what is wrong"),
        }
    }
}

/// What an agent answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// These disks.
    Disks {
        /// By their devices.
        disks: Vec<Disk>,
    },
    /// It is done.
    Done {},
    /// Whether it would put the file there.
    MayPut {
        /// It would.
        allowed: bool,
    },
    /// What became of the file.
    File {
        /// Something is there.
        there: bool,
        /// It is what should be in it.
        same: bool,
    },
    /// Up to that level it logs.
    LogLevel(LogLevel),
    /// What a program said.
    Said {
        /// Its exit status; -1 if a signal ended it, or it could not be run.
        status: i32,
        /// Its standard output.
        output: String,
        /// Its standard error, or why it could not be run.
        errors: String,
    },
    /// Texts by names of files, without secrets.
    Diagnosis {
        /// Each at most [`DIAGNOSIS`] bytes.
        files: BTreeMap<String, String>,
    },
    /// It could not be done.
    Refused {
        /// Object and cause, in a sentence.
        cause: String,
        /// What to do about it.
        correction: String,
    },
}

/// Most of one text of a diagnosis, in bytes. Of longer ones the end is told.
pub const DIAGNOSIS: usize = 1 << 20;

/// What drbd-reactor's control program does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ReactorVerb {
    /// Tells of its plug-ins.
    Status,
    /// Moves what a promoter runs to another node.
    Evict,
    /// Stops a plug-in and keeps it from being started.
    Disable,
    /// Starts a plug-in again.
    Enable,
    /// Reads the configuration of a plug-in again.
    Restart,
}

impl ReactorVerb {
    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            ReactorVerb::Status => "status",
            ReactorVerb::Evict => "evict",
            ReactorVerb::Disable => "disable",
            ReactorVerb::Enable => "enable",
            ReactorVerb::Restart => "restart",
        }
    }
}

/// A call of `drbd-reactorctl`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReactorCall {
    /// What it does.
    pub verb: ReactorVerb,
    /// The plug-in's configuration, without folder and ending; all of them if it is empty.
    pub config: String,
    /// Also stop what the plug-in runs, now; only when one is disabled.
    pub now: bool,
    /// Answer when it has ended. What is evicted may be the controller that waits for the answer.
    pub wait: bool,
}

impl ReactorCall {
    /// Checks what somebody wants to have called. Only the state can be that of all plug-ins.
    ///
    /// # Errors
    /// If the name can not be that of a plug-in's configuration.
    pub fn new(verb: ReactorVerb, config: &str) -> Result<ReactorCall, Refusal> {
        let begins = config.starts_with(|c: char| c.is_ascii_alphanumeric());
        let good = |c: char| c.is_ascii_alphanumeric() || "_-.@".contains(c);
        let named = begins && config.len() <= CONFIG && config.chars().all(good);
        let all = config.is_empty() && verb == ReactorVerb::Status;
        if !named && !all {
            let text = format!("`{config}` is not the name of a configuration of drbd-reactor");
            return Err(Refusal::new(Code::InvalidRequest, text)
                .cause("it begins with a letter or digit and has letters, digits, `_`, `-`, `.` and `@`")
                .correction("name a file of /etc/drbd-reactor.d without `.toml`"));
        }
        Ok(ReactorCall { verb, config: config.to_owned(), now: false, wait: true })
    }

    /// The words of the command.
    pub fn words(&self) -> Vec<String> {
        let mut words = vec!["drbd-reactorctl".to_owned(), self.verb.word().to_owned()];
        if self.now {
            words.push("--now".to_owned());
        }
        if !self.config.is_empty() {
            words.push(self.config.clone());
        }
        words
    }
}

impl fmt::Display for ReactorCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_of_drbd_reactorctl_has_no_options_but_ours() {
        let call = ReactorCall::new(ReactorVerb::Evict, "linstor_controller").unwrap();
        assert_eq!(call.to_string(), "drbd-reactorctl evict linstor_controller");
        let now = ReactorCall { now: true, ..ReactorCall::new(ReactorVerb::Disable, "a").unwrap() };
        assert_eq!(now.to_string(), "drbd-reactorctl disable --now a");
        let all = ReactorCall::new(ReactorVerb::Status, "").unwrap();
        assert_eq!(all.to_string(), "drbd-reactorctl status");
        let long = "x".repeat(201);
        for config in ["--force", "-x", "a b", "../a", "a/b", "a;b", "a\nb", &long] {
            let refusal = ReactorCall::new(ReactorVerb::Status, config).unwrap_err();
            assert_eq!(refusal.code, Code::InvalidRequest, "{config}");
        }
        assert!(ReactorCall::new(ReactorVerb::Evict, "").is_err(), "only one is evicted");
    }
}
