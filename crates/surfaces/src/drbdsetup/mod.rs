//! `drbdsetup` for the engine: what drbdadm, drbdmeta, DRBD Reactor, LINSTOR's satellite and cluster
//! resource agents run, with the command line, the output and the exit statuses of the original
//! (drbdsetup contract). It translates to the control socket; rules are the engine's.
//!
//! - `table`: the commands and their options as data; `parse`: words to a command; `help`.
//! - `change`: commands that change something; `read`: those that show something; `show`: the
//!   configuration in force; `events`: the stream of changes; `wait`: until peers are connected.
//! - `error`: texts and exit statuses; `files`: what is shared with drbdadm and drbdmeta on disk.

mod change;
mod error;
mod events;
mod files;
mod help;
mod parse;
mod read;
mod show;
mod table;
#[cfg(test)]
mod tests;
mod wait;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use codec::admin::{Answer, Request, ResourceStatus};
use codec::config::ResourceConfig;
use vocab::{ConfigError, Minor, VolumeNr};

use crate::cli::{Client, DEFAULT_SOCKET, Error};
use error::Stop;
use files::Places;
use parse::Parsed;
use table::{COMMANDS, Command, SOCKET, Verb};

pub use show::Dialect;

/// The name that the program has to be started by.
pub const NAME: &str = "drbdsetup";

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(120);
/// The first wait before a command is repeated that came while the state was changing, and the
/// longest one.
const BACK_OFF: (Duration, Duration) = (Duration::from_micros(62_500), Duration::from_secs(10));

/// The machine that a command runs on.
#[derive(Clone, Debug)]
pub struct Machine {
    socket: PathBuf,
    places: Places,
    dialect: Option<Dialect>,
}

impl Machine {
    /// This one: the engine is at `ASHLAR_SOCKET`, or where it is by default; the dialect of `show`
    /// is that of the installed drbdadm, or of the version in `ASHLAR_DRBDADM_VERSION`.
    ///
    /// # Errors
    /// If that is not a version.
    pub fn this() -> Result<Machine, String> {
        let socket = std::env::var_os("ASHLAR_SOCKET").unwrap_or_else(|| DEFAULT_SOCKET.into());
        let version = std::env::var("ASHLAR_DRBDADM_VERSION").ok();
        let dialect = version.map(|version| {
            let wrong = || {
                format!("ASHLAR_DRBDADM_VERSION: `{version}` is not a version; set one like 9.22.0")
            };
            Dialect::of(&version).ok_or_else(wrong)
        });
        let places = Places::below(Path::new("/"));
        Ok(Machine { socket: socket.into(), places, dialect: dialect.transpose()? })
    }
}

/// Runs `drbdsetup WORDS`; returns the exit status.
pub fn run(words: &[String], machine: &Machine, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let stop = match parse::parse(words) {
        Ok(parsed) => Session::new(parsed, machine, out, err).run(),
        Err(stop) => Err(stop),
    };
    let Err(stop) = stop.and_then(|()| Ok(out.flush()?)) else { return 0 };
    let text = match &stop {
        Stop::Help { .. } => help::overview(),
        stop => stop.to_string(),
    };
    // With nobody to read it, the status says it all.
    let _ = match stop.status() {
        _ if text.is_empty() => Ok(()),
        0 => write!(out, "{text}"),
        _ => writeln!(err, "{}", text.trim_end()),
    };
    stop.status()
}

struct Session<'a> {
    parsed: Parsed,
    socket: PathBuf,
    machine: &'a Machine,
    client: Option<Client>,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
}

impl<'a> Session<'a> {
    fn new(
        parsed: Parsed,
        machine: &'a Machine,
        out: &'a mut dyn Write,
        err: &'a mut dyn Write,
    ) -> Session<'a> {
        let socket = parsed.text(SOCKET.name).map_or_else(|| machine.socket.clone(), PathBuf::from);
        Session { parsed, socket, machine, client: None, out, err }
    }

    fn run(&mut self) -> Result<(), Stop> {
        if self.parsed.help {
            return Ok(write!(self.out, "{}", help::usage(self.parsed.command))?);
        }
        let result = match self.parsed.command.verb {
            Verb::Help | Verb::XmlHelp => self.help(),
            Verb::Role => self.role(),
            Verb::PeerRole => self.peer_role(),
            Verb::Cstate => self.cstate(),
            Verb::Dstate => self.dstate(),
            Verb::GetGi => self.get_gi(),
            Verb::ShowGi => self.show_gi(),
            Verb::Udev => self.udev(),
            Verb::Status => self.status(),
            Verb::Show => self.show(),
            Verb::Events2 => self.events(),
            Verb::Wait { sync } => self.wait(sync),
            Verb::CheckResize => self.check_resize(),
            _ => self.change(),
        };
        match result {
            // Without an engine nothing is up, so there is nothing to take down.
            Err(stop) if stop.no_engine() && self.takes_down() => Ok(()),
            result => result,
        }
    }

    fn takes_down(&self) -> bool {
        use Verb::{Detach, Disconnect, Down, Secondary};
        matches!(self.parsed.command.verb, Down | Secondary | Disconnect | Detach)
    }

    fn help(&mut self) -> Result<(), Stop> {
        let xml = self.parsed.command.verb == Verb::XmlHelp;
        let Some(name) = self.parsed.about() else {
            if xml {
                for command in COMMANDS {
                    write!(self.out, "{}", help::xml(command))?;
                }
                return Ok(());
            }
            write!(self.out, "{}", help::overview())?;
            return Err(Stop::Exit { status: 20, text: String::new() });
        };
        match Command::find(name) {
            Some(command) if xml => write!(self.out, "{}", help::xml(command))?,
            Some(command) => write!(self.out, "{}", help::usage(command))?,
            None => {
                let text = format!("there is no command `{name}`; see `drbdsetup help`");
                return Err(Stop::Exit { status: 20, text });
            }
        }
        Ok(())
    }

    /// The connection to the engine.
    fn client(&mut self) -> Result<&mut Client, Error> {
        if self.client.is_none() {
            self.client = Some(Client::connect(&self.socket, PATIENCE, Duration::ZERO)?);
        }
        Ok(self.client.as_mut().expect("connected just above"))
    }

    /// Asks; a command that came while the state was changing is repeated.
    fn ask(&mut self, request: Request) -> Result<Answer, Stop> {
        let (mut wait, longest) = BACK_OFF;
        let (object, what) = (self.parsed.object(), self.parsed.command.name);
        loop {
            let answer = self.client().and_then(|client| client.ask(what, request.clone()));
            match answer.map_err(|e| Stop::of(&object, e)) {
                Err(stop) if stop.is_transient() => std::thread::sleep(wait),
                result => return result,
            }
            wait = longest.min(wait * 2);
        }
    }

    /// Asks for something that answers with success alone.
    fn order(&mut self, request: Request) -> Result<(), Stop> {
        match self.ask(request)? {
            Answer::Done => Ok(()),
            Answer::Remarks(remarks) => {
                writeln!(self.err, "warnings from kernel:")?;
                for remark in remarks {
                    writeln!(self.err, "{remark}")?;
                }
                Ok(())
            }
            _ => Err(self.unfitting()),
        }
    }

    fn unfitting(&self) -> Stop {
        let (what, why) = (self.parsed.command.name.to_owned(), "another answer was expected");
        Stop::of(&self.parsed.object(), Error::Protocol { what, why: why.to_owned() })
    }

    fn states(&mut self, resource: Option<String>) -> Result<Vec<ResourceStatus>, Stop> {
        match self.ask(Request::Status { resource })? {
            Answer::Status(states) => Ok(states),
            _ => Err(self.unfitting()),
        }
    }

    fn configs(&mut self, resource: Option<String>) -> Result<Vec<ResourceConfig>, Stop> {
        match self.ask(Request::Config { resource })? {
            Answer::Config(configs) => Ok(configs),
            _ => Err(self.unfitting()),
        }
    }

    /// The configuration of the resource that is named first.
    fn config(&mut self) -> Result<ResourceConfig, Stop> {
        let name = self.parsed.resource();
        let found = self.configs(Some(name.clone()))?.into_iter().next();
        found.ok_or_else(|| Stop::unknown(&name, ConfigError::UnknownResource))
    }

    /// The resource and volume behind a minor.
    fn minor(&mut self, minor: Minor) -> Result<(ResourceConfig, VolumeNr), Stop> {
        let configs = self.configs(None)?.into_iter();
        let mut found = configs.filter_map(|config| {
            let volume = config.volumes.iter().find(|v| v.minor == minor)?.nr;
            Some((config, volume))
        });
        let object = self.parsed.object();
        found.next().ok_or_else(|| Stop::unknown(&object, ConfigError::MinorInvalid))
    }
}
