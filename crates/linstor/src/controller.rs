//! What the surface needs of a controller: to look at the state, to have commands carried out, and
//! to hear of changes. The crate `controller` is one.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::RwLockReadGuard;

use cluster::command::Command;
use cluster::dry_run::Prediction;
use cluster::edit::Made;
use cluster::model::Model;
use cluster::name::{NodeName, ResourceName};
use cluster::objects::Millis;
use cluster::observed::Observed;
use cluster::place::Placed;
use cluster::question::{Question, Reply};
use cluster::refusal::{Note, Refusal};
use serde::{Deserialize, Serialize};
use shipping::description::LuksInfo;
use tokio::sync::{broadcast, oneshot};
use vocab::LogLevel;
use vocab::options::Secret;

use crate::shown::Shown;

/// What is wanted, all of it stored, and what agents have reported.
#[derive(Debug, Default)]
pub struct State {
    /// The wanted state.
    pub model: Model,
    /// The facts.
    pub observed: Observed,
    /// What was shown of both; who changes one of them says so there.
    pub shown: Shown,
}

/// Something that is there later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A controller.
pub trait Controller: Send + Sync + 'static {
    /// The state as it is now. Nothing changes as long as somebody looks at it.
    fn state(&self) -> RwLockReadGuard<'_, State>;

    /// Carries out a command. What comes back is stored, with a record of the call for which that is
    /// done ([`access::call`](crate::access::call)), if there is one. A caller that goes away does not
    /// take the command with it.
    ///
    /// # Errors
    /// If it was refused, or could not be stored.
    fn carry_out(&self, command: Command) -> Later<'_, Result<Done, Failure>>;

    /// Creates, changes or enters the master passphrase; the call is recorded as with a command. Deriving
    /// keys takes a while.
    ///
    /// # Errors
    /// If it was refused, or could not be stored.
    fn master(&self, passphrase: MasterPassphrase) -> Later<'_, Result<(), Failure>>;

    /// Passphrases as commands take them: encrypted under the master key.
    ///
    /// # Errors
    /// If the master passphrase was not entered.
    fn seal(&self, passphrases: &[Secret]) -> Result<Vec<String>, Failure>;

    /// Passphrases of a backup's volumes, encrypted under this cluster's master key. Of a backup of another cluster the
    /// master passphrase that it had then is needed.
    ///
    /// # Errors
    /// If they can not be opened, or the master passphrase was not entered.
    fn adopt(
        &self,
        keys: LuksInfo,
        origin: Option<Secret>,
    ) -> Later<'_, Result<BTreeMap<u16, String>, Failure>>;

    /// A client of a remote's bucket, with its keys opened.
    ///
    /// # Errors
    /// If the master passphrase was not entered, or the bucket can not be meant.
    fn open_bucket(
        &self,
        bucket: &cluster::shipping::Bucket,
    ) -> Result<shipping::s3::Client, Failure>;

    /// A client of another cluster, with its token opened.
    ///
    /// # Errors
    /// If the master passphrase was not entered, or it can not be called.
    fn open_cluster(
        &self,
        cluster: &cluster::shipping::OtherCluster,
    ) -> Result<shipping::other::Client, Failure>;

    /// What was encrypted under the master key.
    ///
    /// # Errors
    /// If the master passphrase was not entered, or it is that of another one.
    fn unseal(&self, sealed: &str) -> Result<Secret, Failure>;

    /// What commands would lead to, one after the other. Nothing is changed.
    ///
    /// # Errors
    /// If one would be refused.
    fn foretell(&self, commands: Vec<Command>) -> Later<'_, Result<Prediction, Failure>>;

    /// Error reports, the newest first.
    ///
    /// # Errors
    /// If the store can not be read.
    fn reports(&self, filter: ReportFilter) -> Later<'_, Result<Vec<Report>, Failure>>;

    /// Deletes error reports; returns how many there were.
    ///
    /// # Errors
    /// If the store can not be written.
    fn delete_reports(&self, filter: ReportFilter) -> Later<'_, Result<usize, Failure>>;

    /// Asks the agent of a node, now. How long that may take is for the caller to say, who may stop to
    /// wait.
    ///
    /// # Errors
    /// If there is no answer.
    fn ask_agent(&self, node: NodeName, question: Question)
    -> Later<'_, Result<Reply, Unanswered>>;

    /// Where it runs and is reached.
    fn settings(&self) -> Settings {
        Settings::default()
    }

    /// Up to which level it logs.
    fn log_level(&self) -> LogLevel {
        LogLevel::Info
    }

    /// Logs up to that level from now on, as long as it runs.
    ///
    /// # Errors
    /// If it has no log.
    fn set_log_level(&self, _level: LogLevel) -> Result<(), Failure> {
        Err(Failure::Stopping)
    }

    /// What the service manager has of the log, from a time on.
    fn journal(&self, _since: Option<Millis>) -> Later<'_, String> {
        Box::pin(std::future::ready(String::new()))
    }

    /// Writes a copy of the store to a file of that name on the controller's host; returns its path.
    ///
    /// # Errors
    /// If there is one of that name, or it can not be written.
    fn back_up(&self, name: String) -> Later<'_, Result<PathBuf, Failure>>;

    /// Writes what is wanted, as JSON, to a file of that name on the controller's host; returns its path.
    ///
    /// # Errors
    /// If there is one of that name, or it can not be written.
    fn export(&self, name: String) -> Later<'_, Result<PathBuf, Failure>>;

    /// Keeps a report of that name on the controller's host; returns its path.
    ///
    /// # Errors
    /// If there is one of that name, or it can not be written.
    fn keep_report(&self, name: String, content: Vec<u8>) -> Later<'_, Result<PathBuf, Failure>>;

    /// True as long as commands can be carried out.
    fn is_alive(&self) -> bool {
        true
    }

    /// Everything that happens from now on. A receiver that does not keep up loses the oldest.
    fn events(&self) -> broadcast::Receiver<Event>;
}

/// Where a controller runs and is reached.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// The folder in which it keeps what is its own.
    pub directory: PathBuf,
    /// Where its store is, without any password.
    pub store: String,
    /// Where clients reach it by HTTP.
    pub http: Option<SocketAddr>,
    /// Where they reach it by HTTPS.
    pub https: Option<SocketAddr>,
}

/// Why an agent has not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unanswered {
    /// It is not connected, and was not asked.
    NotConnected,
    /// Its link was lost after it was asked: what became of that is not known.
    Lost,
    /// The controller is going down.
    Stopping,
}

/// What is done with the master passphrase.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MasterPassphrase {
    /// It is new, and there was none.
    Create(Secret),
    /// It takes the place of the old one.
    Modify {
        /// The old one.
        old: Secret,
        /// The new one.
        new: Secret,
    },
    /// It is entered, so that what it protects can be used.
    Enter(Secret),
}

/// A command that was carried out.
#[derive(Debug)]
pub struct Done {
    /// What was said beside it.
    pub notes: Vec<Note>,
    /// What was made.
    pub made: Vec<Made>,
    /// Where replicas were placed.
    pub placed: Vec<Placed>,
    /// Comes when the agents that are connected have nothing more to do for it.
    pub followed: oneshot::Receiver<Followed>,
}

/// What the agents made of a command.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Followed {
    /// Orders that failed; the controller goes on trying.
    pub problems: Vec<Problem>,
    /// What is not done yet, in sentences: what waits for a node, or for data.
    pub waits: Vec<String>,
}

/// An order that an agent could not carry out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The node.
    pub node: NodeName,
    /// The resource definition, if it was about one.
    pub resource: Option<ResourceName>,
    /// The order, in words.
    pub order: String,
    /// Why.
    pub cause: String,
    /// What to do about it.
    pub correction: String,
    /// The id of the error report about it.
    pub report: Option<String>,
}

/// Why a command was not carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It is against a rule; nothing has changed.
    Refused(Refusal),
    /// It could not be stored: object and cause, in a sentence. Nothing has changed.
    Store(String),
    /// The controller is going down.
    Stopping,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(refusal) => refusal.fmt(f),
            Failure::Store(text) => f.write_str(text),
            Failure::Stopping => f.write_str("the controller is going down"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

/// A fault that somebody should look at. Users' mistakes are not reported: they are told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// `<start of the controller, 8 hex digits>-<node, 5 digits>-<number, 6 digits>`.
    pub id: String,
    /// When.
    pub time: Millis,
    /// Where: a node, or `Controller`.
    pub node: String,
    /// What failed, naming the object.
    pub message: String,
    /// Why.
    pub cause: String,
    /// What to do about it.
    pub correction: String,
}

/// Which error reports.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReportFilter {
    /// Only this one.
    pub ids: Vec<String>,
    /// Only of these nodes.
    pub nodes: Vec<String>,
    /// Only from this time on.
    pub since: Option<Millis>,
    /// Only up to this time.
    pub to: Option<Millis>,
}

impl ReportFilter {
    /// True if the report is one of those.
    pub fn takes(&self, report: &Report) -> bool {
        let named = |list: &[String], name: &str| {
            list.is_empty() || list.iter().any(|other| other.eq_ignore_ascii_case(name))
        };
        named(&self.ids, &report.id)
            && named(&self.nodes, &report.node)
            && self.since.is_none_or(|since| report.time >= since)
            && self.to.is_none_or(|to| report.time <= to)
    }
}

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A resource can, or can not, become Primary on a node from now on.
    MayPromote {
        /// The resource definition.
        resource: ResourceName,
        /// The node.
        node: NodeName,
        /// Whether it can.
        may: bool,
    },
    /// A node was created, or has changed.
    Node {
        /// The node.
        node: NodeName,
        /// What happened to it.
        what: NodeEvent,
    },
}

/// What happened to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each says it")]
pub enum NodeEvent {
    Created,
    Deleted,
    Evacuated,
    Evicted,
    Restored,
    Modified,
}
