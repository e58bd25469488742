//! The engine of this node, over its control socket.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use codec::admin::{Answer, ExportStatus, Request, ResourceStatus};
use codec::config::ResourceConfig;
use surfaces::cli::{Client, Error};
use vocab::{ConfigError, DiskState, RefusalCode, Role, StateError};

use crate::failed::Failed;

/// How long the engine may take for one command.
const COMMAND: Duration = Duration::from_secs(30);

/// What became of something that not all peers can take while they are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BesidePeers {
    /// It is done.
    Done,
    /// One of them has to be disconnected first.
    Refused,
}

/// Asks the engine of this node. Every step has one of its own, with the step's deadline.
pub struct Engine {
    socket: PathBuf,
    end: Instant,
}

impl Engine {
    /// The engine behind a control socket, to be asked until `end`.
    pub fn new(socket: PathBuf, end: Instant) -> Engine {
        Engine { socket, end }
    }

    /// Asks, and waits for the answer. `what` names the command and its object in messages.
    ///
    /// # Errors
    /// If the engine is not there, refuses, fails, or does not answer in time.
    pub fn ask(&self, what: &str, request: Request) -> Result<Answer, Failed> {
        self.try_ask(what, request).map_err(|error| failed(&error))
    }

    fn try_ask(&self, what: &str, request: Request) -> Result<Answer, Error> {
        let left = self.end.saturating_duration_since(Instant::now());
        // With nothing left the engine's answer is that it did not do it in time.
        let timeout = left.clamp(Duration::from_millis(1), COMMAND);
        Client::connect(&self.socket, timeout, Duration::ZERO)?.ask(what, request)
    }

    /// Repeats a command while the core is busy with something that ends soon.
    ///
    /// # Errors
    /// As for [`Engine::ask`].
    pub fn ask_patiently(&self, what: &str, request: &Request) -> Result<Answer, Failed> {
        self.try_patiently(what, request).map_err(|error| failed(&error))
    }

    /// The same for something that is also done while peers are connected, if these can take it.
    ///
    /// # Errors
    /// As for [`Engine::ask`].
    pub fn ask_beside_peers(&self, what: &str, request: &Request) -> Result<BesidePeers, Failed> {
        let connected = RefusalCode::Config(ConfigError::Connected);
        match self.try_patiently(what, request) {
            Ok(_) => Ok(BesidePeers::Done),
            Err(Error::Refused { refusal, .. }) if refusal.code == connected => {
                Ok(BesidePeers::Refused)
            }
            Err(error) => Err(failed(&error)),
        }
    }

    fn try_patiently(&self, what: &str, request: &Request) -> Result<Answer, Error> {
        loop {
            match self.try_ask(what, request.clone()) {
                Err(Error::Refused { refusal, .. })
                    if refusal.code == RefusalCode::State(StateError::InTransientState)
                        && Instant::now() < self.end =>
                {
                    std::thread::sleep(Duration::from_millis(200));
                }
                answer => return answer,
            }
        }
    }

    /// The configuration in force of a resource, if the engine has it.
    ///
    /// # Errors
    /// As for [`Engine::ask`].
    pub fn config(&self, resource: &str) -> Result<Option<ResourceConfig>, Failed> {
        let request = Request::Config { resource: Some(resource.to_owned()) };
        match self.ask(&format!("ask for the configuration of {resource}"), request)? {
            Answer::Config(configs) => Ok(configs.into_iter().find(|c| c.name == resource)),
            other => Err(unexpected(&other)),
        }
    }

    /// The state of a resource, if the engine has it.
    ///
    /// # Errors
    /// As for [`Engine::ask`].
    pub fn status(&self, resource: &str) -> Result<Option<ResourceStatus>, Failed> {
        // A status of what does not exist is refused, a configuration is not.
        if self.config(resource)?.is_none() {
            return Ok(None);
        }
        let request = Request::Status { resource: Some(resource.to_owned()) };
        match self.ask(&format!("ask for the status of {resource}"), request)? {
            Answer::Status(all) => Ok(all.into_iter().find(|status| status.name == resource)),
            other => Err(unexpected(&other)),
        }
    }

    /// The exports of a resource.
    ///
    /// # Errors
    /// As for [`Engine::ask`].
    pub fn exports(&self, resource: &str) -> Result<Vec<ExportStatus>, Failed> {
        match self.ask("list the exports", Request::Exports)? {
            Answer::Exports(mut all) => {
                all.retain(|export| export.resource == resource);
                Ok(all)
            }
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(answer: &Answer) -> Failed {
    Failed::new(
        format!("the engine's answer is not understood: {answer:?}"),
        "use engine and agent of one release",
    )
}

fn failed(error: &Error) -> Failed {
    let text = error.to_string();
    match error {
        Error::Unreachable { .. } => {
            Failed::new(text, "start the engine of this node; it is tried again with the next plan")
        }
        Error::Failed { failure, .. } if !failure.next.is_empty() => {
            Failed::new(text, failure.next.clone())
        }
        Error::Refused { .. } => Failed::new(
            text,
            "see to what it names (`ashlar why` says more); it is tried again with the next plan",
        ),
        _ => Failed::new(text, "see the engine's log; it is tried again with the next plan"),
    }
}

/// True if the resource is Primary or open on this node.
pub fn is_in_use(status: &ResourceStatus) -> bool {
    status.role == Role::Primary || status.devices.iter().any(|device| device.open == Some(true))
}

/// The connected peer on which it is Primary, if there is one.
pub fn primary_peer(status: &ResourceStatus) -> Option<&str> {
    let primary = status.connections.iter().find(|peer| peer.peer_role == Role::Primary);
    primary.map(|peer| peer.name.as_str())
}

/// True if a disk in this state has no data that anybody could miss. One that is being attached, or
/// has failed, may well have some.
pub fn has_no_data(state: DiskState) -> bool {
    matches!(state, DiskState::Diskless | DiskState::Inconsistent)
}

/// Peers that are connected and have every volume of which this node has data UpToDate.
pub fn peers_up_to_date(status: &ResourceStatus) -> Vec<&str> {
    let own = || status.devices.iter().filter(|d| !has_no_data(d.disk_state));
    let current = status.connections.iter().filter(|peer| {
        peer.connection_state == vocab::ConnState::Connected
            && own().all(|device| {
                let there = peer.peer_devices.iter().find(|p| p.volume == device.volume);
                there.is_some_and(|there| there.peer_disk_state == DiskState::UpToDate)
            })
    });
    current.map(|peer| peer.name.as_str()).collect()
}
