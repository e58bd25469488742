//! The commands about a control plane: they ask the controller over its REST API, and print.
//!
//! - `args`: the command line. `http`: who is asked; `answer`: what answers to changes come to.
//! - `view`: what the controller says of its objects. `wait`: following what takes long; `table`:
//!   listings.
//! - `nodes`, `pools`, `physical`, `groups`, `volumes`, `snapshots`, `remotes`, `backups`, `schedules`, `encryption`, `properties`: the commands
//!   themselves.
//!   `why`: what a volume waits for.

mod answer;
mod args;
mod backups;
mod encryption;
mod groups;
mod http;
mod nodes;
mod physical;
mod pools;
mod properties;
mod remotes;
mod schedules;
mod snapshots;
mod table;
#[cfg(test)]
mod tests;
mod view;
mod volumes;
mod wait;
mod why;

use std::io::Write;

use serde::de::DeserializeOwned;
use serde_json::Value;
use vocab::options::Secret;

use super::args::Common;
use super::each::EachInTurn;
use super::error::Error;
use super::secret::{Ask, Source, Stdin};
use answer::Done;
use view::Resource;
use wait::{Bar, Follow, Progress};

pub use answer::Entry;
pub use args::{
    Command, Controllers, DEFAULT_CONTROLLER, NewNode, NodeCommand, PoolCommand, new_node, size,
};
pub use http::{Change, Http, part, query};
pub use physical::{DiskCommand, MadeOfDisks};
pub use table::Look;

/// Notes that say what every such command does: as many replicas as wanted are there, a quorum was
/// set, a tie-breaker made, something is being deleted, a quorum was taken away.
const ROUTINE: [u16; 5] = [1006, 10_002, 10_003, 10_004, 10_005];

/// Runs a command; results go to `out`, remarks to `err`. Errors are returned, not printed, except
/// that a command on several objects goes on after one and reports each.
///
/// # Errors
/// See [`Error`]; [`Error::status`] is the exit status.
pub fn run(
    command: &Command,
    common: &Common,
    look: Look,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Error> {
    let at = match command {
        Command::StoragePool { at, .. }
        | Command::PhysicalStorage { at, .. }
        | Command::ResourceGroup { at, .. }
        | Command::Volume { at, .. }
        | Command::Snapshot { at, .. }
        | Command::Remote { at, .. }
        | Command::Backup { at, .. }
        | Command::Schedule { at, .. }
        | Command::Encryption { at, .. }
        | Command::Property { at, .. }
        | Command::ErrorReport { at, .. } => at,
    };
    let mut session = Session::new(at, common, look, out, err)?;
    session.dry_run = command.is_dry_run();
    let result = session.command(command);
    session.end(result)
}

/// Runs a command about nodes.
///
/// # Errors
/// As [`run`].
pub fn run_node(
    command: &NodeCommand,
    at: &Controllers,
    common: &Common,
    look: Look,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Error> {
    let mut session = Session::new(at, common, look, out, err)?;
    session.dry_run = command.is_dry_run();
    let result = nodes::run(&mut session, command);
    session.end(result)
}

/// Creates nodes.
///
/// # Errors
/// As [`run`].
pub fn create_nodes(
    nodes: &[NewNode],
    at: &Controllers,
    common: &Common,
    err: &mut dyn Write,
) -> Result<(), Error> {
    let mut nowhere = std::io::sink();
    nodes::create(&mut Session::new(at, common, Look::PLAIN, &mut nowhere, err)?, nodes)
}

/// A command at work.
struct Session<'a> {
    json: bool,
    /// Nothing is changed: it is only asked what would happen.
    dry_run: bool,
    /// What a node could not do is no better when it is tried again.
    at_once: bool,
    /// What a dry run would do, where that is printed as JSON.
    planned: Vec<Value>,
    look: Look,
    http: Http,
    /// Where passphrases come from.
    secrets: Box<dyn Source>,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
}

impl<'a> Session<'a> {
    fn new(
        at: &Controllers,
        common: &Common,
        look: Look,
        out: &'a mut dyn Write,
        err: &'a mut dyn Write,
    ) -> Result<Session<'a>, Error> {
        let http = Http::new(at, common.timeout)?;
        let (json, dry_run, planned) = (common.json, false, Vec::new());
        let secrets = Box::new(Stdin);
        Ok(Session { json, dry_run, at_once: false, planned, look, http, secrets, out, err })
    }

    fn command(&mut self, command: &Command) -> Result<(), Error> {
        match command {
            Command::StoragePool { command, .. } => pools::run(self, command),
            Command::PhysicalStorage { command, .. } => physical::run(self, command),
            Command::ResourceGroup { command, .. } => groups::run(self, command),
            Command::Volume { command, .. } => volumes::run(self, command),
            Command::Snapshot { command, .. } => snapshots::run(self, command),
            Command::Remote { command, .. } => remotes::run(self, command),
            Command::Backup { command, .. } => backups::run(self, command),
            Command::Schedule { command, .. } => schedules::run(self, command),
            Command::Encryption { command, .. } => encryption::run(self, command),
            Command::Property { command, .. } => properties::run(self, command),
            Command::ErrorReport { command, .. } => properties::reports(self, command),
        }
    }

    /// Prints what was gathered.
    fn end(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        if self.dry_run && self.json {
            table::as_json(self.out, &self.planned)?;
        }
        result
    }

    fn get<T: DeserializeOwned>(&self, what: &str, path: &str) -> Result<T, Error> {
        self.http.get(what, path)
    }

    /// Passphrases of `object` that the next call sends, if what is on its way to the controller can not
    /// be read by others. The time that somebody takes to type does not count.
    fn passphrases<const N: usize>(
        &mut self,
        object: &str,
        asked: [Ask; N],
    ) -> Result<[Secret; N], Error> {
        let secrets = self.secrets(object, &asked)?;
        let why = "fewer passphrases were read than asked for".to_owned();
        secrets.try_into().map_err(|_| Error::Object { object: object.to_owned(), why })
    }

    /// The same of any number.
    fn secrets(&mut self, object: &str, asked: &[Ask]) -> Result<Vec<Secret>, Error> {
        self.http.is_private("the passphrase")?;
        let secrets = self.secrets.read(object, asked)?;
        self.http.again();
        Ok(secrets)
    }

    /// Lists rows.
    fn list<R: table::Row>(&mut self, rows: &[R]) -> Result<(), Error> {
        table::list(self.out, self.look, self.json, rows)
    }

    /// Has something changed, and waits as `follow` says until that has come true.
    fn change(
        &mut self,
        what: &str,
        change: &Change,
        follow: Option<Follow<'_>>,
    ) -> Result<Done, Error> {
        if self.dry_run {
            return self.foretell(what, change);
        }
        let bar = Bar::new(self.look, what);
        let answer = wait::carry_out(&self.http, &bar, what, change, follow);
        drop(bar);
        let done = match (answer, follow) {
            // It is tried again: what could not be done at first may be done before the time is over.
            (Err(Error::Troubled { what, taken_on: true, entries }), Some(follow))
                if !self.at_once =>
            {
                let bar = Bar::new(self.look, &what);
                return match wait::until_done(&self.http, &bar, &what, follow) {
                    Ok(()) => Ok(Done::default()),
                    Err(Error::Unfinished { .. }) => {
                        Err(Error::Troubled { what, taken_on: true, entries })
                    }
                    Err(other) => Err(other),
                };
            }
            (answer, _) => answer?,
        };
        for note in done.notes.iter().filter(|note| !ROUTINE.contains(&note.number())) {
            writeln!(self.err, "{what}: {note}")?;
        }
        if let Some(follow) = follow {
            let bar = Bar::new(self.look, what);
            wait::until_done(&self.http, &bar, what, follow)?;
        } else {
            for waits in &done.waits {
                writeln!(self.err, "{what}: waits: {waits}")?;
            }
        }
        Ok(done)
    }

    /// Says what a change would lead to.
    fn foretell(&mut self, what: &str, change: &Change) -> Result<Done, Error> {
        let done = self.http.foretold(what, change)?;
        for note in done.notes {
            match note.dry_run {
                Some(plan) if self.json => self.planned.push(plan),
                Some(_) => {
                    writeln!(self.out, "{what}: {}", note.message)?;
                    for line in note.details.lines() {
                        writeln!(self.out, "  {line}")?;
                    }
                }
                None if ROUTINE.contains(&note.number()) => {}
                None => writeln!(self.err, "{what}: {note}")?,
            }
        }
        Ok(Done::default())
    }
}

impl EachInTurn for Session<'_> {
    fn err(&mut self) -> &mut dyn Write {
        self.err
    }
}

/// The resources of a volume.
fn resources_of(http: &Http, name: &str) -> Result<Vec<Resource>, Error> {
    let names = [name.to_owned()];
    http.get(name, &format!("/v1/view/resources{}", http::query("resources", &names)))
}

/// Waits until a volume is as it is wanted.
fn settled(name: &str) -> impl Fn(&Http) -> Result<Progress, Error> + Sync + '_ {
    move |http| Ok(view::settled(&resources_of(http, name)?, false))
}
