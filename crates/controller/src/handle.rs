//! The way to the owner: its thread, and what others hold of it.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLockReadGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use api::link::{Agents, Heard};
use cluster::command::Command;
use cluster::dry_run::{Prediction, dry_run_all};
use cluster::edit::Context;
use cluster::name::NodeName;
use cluster::objects::Millis;
use cluster::question::{Question, Reply};
use cluster::shipping::{Bucket, OtherCluster};
use linstor::access::{self, Record, RecordFilter, UnderWay};
use linstor::controller::{
    Controller, Done, Event, Failure, Later, MasterPassphrase, Report, ReportFilter, Settings,
    State, Unanswered,
};
use shipping::description::LuksInfo;
use shipping::other;
use shipping::s3::Client;
use tokio::runtime::Runtime;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use vocab::LogLevel;
use vocab::options::Secret;

use crate::access::now;
use crate::export;
use crate::files;
use crate::keys;
use crate::link::authority::{Denied, Joins};
use crate::log;
use crate::owner::{Input, Owner, Shared};
use crate::store::{self, Store};

/// How long the service manager may take to tell of the log.
const TELLING: Duration = Duration::from_secs(15);
/// The folder of copies of the store.
const BACKUPS: &str = "backups";
/// The folder of SOS reports.
const REPORTS: &str = "sos-reports";
/// What may wait for the owner. Who comes then waits, too.
const QUEUE: usize = 1024;
/// What the owner takes before it does what follows.
const BATCH: usize = 256;

/// A running controller. Copies are for the same one; it ends when all are gone.
#[derive(Clone, Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    inputs: mpsc::Sender<Input>,
    settings: Arc<Settings>,
}

/// The same without keeping it: for those whom the owner itself holds.
#[derive(Clone, Debug)]
pub struct WeakHandle {
    shared: Arc<Shared>,
    inputs: mpsc::WeakSender<Input>,
    settings: Arc<Settings>,
}

impl WeakHandle {
    /// The controller, if it has not ended.
    fn get(&self) -> Option<Handle> {
        let (shared, settings) = (self.shared.clone(), self.settings.clone());
        Some(Handle { shared, inputs: self.inputs.upgrade()?, settings })
    }
}

impl Joins for WeakHandle {
    fn take<'a>(&'a self, node: &'a NodeName, digest: String) -> Later<'a, Result<(), Denied>> {
        Box::pin(async move {
            let gone = || Denied::Store(Failure::Stopping.to_string());
            let handle = self.get().ok_or_else(gone)?;
            let command = Command::UseJoinToken { digest, node: node.clone() };
            match handle.carry_out(command).await {
                Ok(_) => Ok(()),
                Err(Failure::Refused(refusal)) => Err(Denied::Token(refusal.to_string())),
                Err(failure) => Err(Denied::Store(failure.to_string())),
            }
        })
    }
}

/// Starts a controller on a thread of its own. The thread ends with an error if the store fails for
/// good.
///
/// # Errors
/// If the store can not be read, or there is no thread to be had.
pub fn start(
    store: Box<dyn Store>,
    agents: Arc<dyn Agents>,
) -> Result<(Handle, JoinHandle<Result<(), store::Error>>), Error> {
    let (inputs, receiver) = mpsc::channel(QUEUE);
    let owner = Owner::new(store, agents, inputs.downgrade());
    let (owner, shared) = owner.map_err(Error::Store)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(Error::Thread)?;
    let thread = std::thread::Builder::new().name("owner".to_owned());
    let thread = thread.spawn(move || run(&runtime, owner, receiver));
    let settings = Arc::default();
    Ok((Handle { shared, inputs, settings }, thread.map_err(Error::Thread)?))
}

/// Why a controller does not start.
#[derive(Debug)]
pub enum Error {
    /// Its store fails.
    Store(store::Error),
    /// The kernel gives no thread.
    Thread(std::io::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Store(error) => error.fmt(f),
            Error::Thread(error) => write!(f, "the controller's thread can not start: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// The owner's thread. It waits on a runtime but works outside of it: a store may have its own.
fn run(
    runtime: &Runtime,
    mut owner: Owner,
    mut inputs: mpsc::Receiver<Input>,
) -> Result<(), store::Error> {
    loop {
        let due = Instant::from_std(owner.due());
        let mut batch = Vec::new();
        match runtime.block_on(async { timeout_at(due, inputs.recv()).await }) {
            Ok(Some(input)) => batch.push(input),
            Ok(None) => return Ok(()),
            // Something is due by the clock.
            Err(_) => {}
        }
        while batch.len() < BATCH {
            let Ok(input) = inputs.try_recv() else { break };
            batch.push(input);
        }
        owner.take(batch)?;
        owner.follow()?;
    }
}

impl Handle {
    /// The same, which knows where it runs and is reached: copies that are made of it do, too.
    #[must_use]
    pub fn with(self, settings: Settings) -> Handle {
        Handle { settings: Arc::new(settings), ..self }
    }

    /// A new file in a folder of the controller's own.
    async fn write(
        &self,
        folder: &str,
        name: String,
        write: impl FnOnce(&Path) -> io::Result<()> + Send + 'static,
    ) -> Result<PathBuf, Failure> {
        let folder = self.settings.directory.join(folder);
        let file = folder.join(name);
        let written = tokio::task::spawn_blocking(move || {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            made.map_err(|error| not_written(&folder, &error))?;
            match file.exists() {
                true => Err(not_written(&file, &io::ErrorKind::AlreadyExists.into())),
                false => write(&file).map_err(|error| not_written(&file, &error)).map(|()| file),
            }
        });
        written.await.unwrap_or(Err(Failure::Stopping))
    }

    /// For those whom the owner itself holds.
    pub fn weak(&self) -> WeakHandle {
        let (shared, settings) = (self.shared.clone(), self.settings.clone());
        WeakHandle { shared, inputs: self.inputs.downgrade(), settings }
    }

    /// Passes on what an agent says. Waits while the owner has too much to do.
    pub async fn heard(&self, heard: Heard) {
        // Who is going down does not listen any more.
        let _ = self.inputs.send(Input::Heard(heard)).await;
    }

    /// Keeps a file of which every controller of the cluster has the same. Waits: not for a thread
    /// that others wait for.
    ///
    /// # Errors
    /// If it can not be kept, or another controller leads by now.
    pub fn keep_file(&self, name: &'static str, content: String) -> Result<(), Failure> {
        let (to, answer) = oneshot::channel();
        let input = Input::KeepFile(name, content, to);
        self.inputs.blocking_send(input).map_err(|_| Failure::Stopping)?;
        answer.blocking_recv().unwrap_or(Err(Failure::Stopping))
    }

    /// Writes a call to the audit log; in the place of what is there of it, if something is. It is
    /// stored when this returns.
    ///
    /// # Errors
    /// If it can not be kept.
    pub async fn record(&self, call: Arc<UnderWay>, record: Record) -> Result<(), Failure> {
        self.ask(|to| Input::Record(call, record, Some(to))).await
    }

    /// Writes a call to the audit log of which no end is known, later and without waiting. False if
    /// that can not be.
    pub fn record_later(&self, call: Arc<UnderWay>) -> bool {
        let record = call.begun.clone();
        self.inputs.try_send(Input::Record(call, record, None)).is_ok()
    }

    /// What is in the audit log, the newest first. Others have their turn between its pages.
    ///
    /// # Errors
    /// If it can not be read.
    pub async fn records(&self, filter: &RecordFilter) -> Result<Vec<Record>, Failure> {
        let (mut found, mut before) = (Vec::new(), None);
        loop {
            let page = self.ask(|to| Input::Records(before, to)).await?;
            let Some((last, _)) = page.last() else { return Ok(found) };
            before = Some(*last);
            for (_, record) in page.into_iter().filter(|(_, record)| filter.takes(record)) {
                if found.len() >= filter.limit {
                    return Ok(found);
                }
                found.push(record);
            }
        }
    }

    /// Returns when the owner has ended: then its store has failed for good.
    pub async fn ended(&self) {
        self.inputs.closed().await;
    }

    async fn ask<T>(
        &self,
        input: impl FnOnce(oneshot::Sender<Result<T, Failure>>) -> Input,
    ) -> Result<T, Failure> {
        let (to, answer) = oneshot::channel();
        self.inputs.send(input(to)).await.map_err(|_| Failure::Stopping)?;
        answer.await.unwrap_or(Err(Failure::Stopping))
    }
}

fn not_written(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    Failure::Store(match error.kind() {
        io::ErrorKind::AlreadyExists => format!("there is {path} already; give another name"),
        _ => format!("{path} can not be written: {error}"),
    })
}

impl Controller for Handle {
    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.shared.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn carry_out(&self, command: Command) -> Later<'_, Result<Done, Failure>> {
        let call = access::call();
        Box::pin(self.ask(|to| Input::Command(command, call, to)))
    }

    fn master(&self, passphrase: MasterPassphrase) -> Later<'_, Result<(), Failure>> {
        let call = access::call();
        Box::pin(async move {
            let kept = self.state().model.controller().master_key.clone();
            let derived = tokio::task::spawn_blocking(move || keys::derive(kept, &passphrase));
            let (master, command) = derived.await.unwrap_or(Err(Failure::Stopping))?;
            self.ask(|to| Input::Master(master, command, call, to)).await
        })
    }

    fn seal(&self, passphrases: &[Secret]) -> Result<Vec<String>, Failure> {
        keys::seal(self.state().observed.master.as_ref(), passphrases)
    }

    fn adopt(
        &self,
        keys: LuksInfo,
        origin: Option<Secret>,
    ) -> Later<'_, Result<BTreeMap<u16, String>, Failure>> {
        let master = self.state().observed.master.clone();
        Box::pin(async move {
            let work = move || keys::adopt(master.as_ref(), &keys, origin.as_ref());
            tokio::task::spawn_blocking(work).await.unwrap_or(Err(Failure::Stopping))
        })
    }

    fn open_bucket(&self, bucket: &Bucket) -> Result<Client, Failure> {
        keys::open(self.state().observed.master.as_ref(), bucket)
    }

    fn open_cluster(&self, cluster: &OtherCluster) -> Result<other::Client, Failure> {
        keys::call(self.state().observed.master.as_ref(), cluster)
    }

    fn unseal(&self, sealed: &str) -> Result<Secret, Failure> {
        keys::unseal(self.state().observed.master.as_ref(), sealed)
    }

    fn foretell(&self, commands: Vec<Command>) -> Later<'_, Result<Prediction, Failure>> {
        Box::pin(async move {
            // Copies: it may take a while, and nobody else is to wait for it.
            let (model, observed) = {
                let state = self.state();
                (state.model.clone(), state.observed.clone())
            };
            let foretold = tokio::task::spawn_blocking(move || {
                let mut entropy = [0; 32];
                getrandom::fill(&mut entropy).map_err(|error| Failure::Store(error.to_string()))?;
                let context = Context { observed: &observed, now: now(), entropy };
                dry_run_all(&model, &context, commands).map_err(Failure::Refused)
            });
            foretold.await.unwrap_or(Err(Failure::Stopping))
        })
    }

    fn reports(&self, filter: ReportFilter) -> Later<'_, Result<Vec<Report>, Failure>> {
        Box::pin(self.ask(|to| Input::Reports(filter, to)))
    }

    fn delete_reports(&self, filter: ReportFilter) -> Later<'_, Result<usize, Failure>> {
        Box::pin(self.ask(|to| Input::DeleteReports(filter, to)))
    }

    fn ask_agent(
        &self,
        node: NodeName,
        question: Question,
    ) -> Later<'_, Result<Reply, Unanswered>> {
        Box::pin(async move {
            let (to, answer) = oneshot::channel();
            let input = Input::Ask(node, question, to);
            self.inputs.send(input).await.map_err(|_| Unanswered::Stopping)?;
            answer.await.unwrap_or(Err(Unanswered::Stopping))
        })
    }

    fn settings(&self) -> Settings {
        Settings::clone(&self.settings)
    }

    fn log_level(&self) -> LogLevel {
        logging::level()
    }

    fn set_log_level(&self, level: LogLevel) -> Result<(), Failure> {
        logging::set_level(level);
        log::info("controller", format_args!("logs up to {level} from now on"));
        Ok(())
    }

    fn journal(&self, since: Option<Millis>) -> Later<'_, String> {
        Box::pin(async move {
            let mut journal = tokio::process::Command::new("journalctl");
            journal.args(["--no-pager", "--lines=20000", "--unit=ashlar*"]).kill_on_drop(true);
            journal.args(since.map(|since| format!("--since=@{}", since.0 / 1000)));
            match timeout(TELLING, journal.output()).await {
                Ok(Ok(said)) => [said.stdout, said.stderr]
                    .map(|text| String::from_utf8_lossy(&text).into_owned())
                    .concat(),
                Ok(Err(error)) => format!("journalctl: {error}\n"),
                Err(_) => {
                    format!("journalctl has not ended within {} seconds\n", TELLING.as_secs())
                }
            }
        })
    }

    fn back_up(&self, name: String) -> Later<'_, Result<PathBuf, Failure>> {
        Box::pin(async move {
            // The store makes the file: there has to be its folder only.
            let file = self.write(BACKUPS, format!("{name}.db"), |_| Ok(())).await?;
            let to = file.clone();
            self.ask(|answer| Input::Backup(to, answer)).await?;
            Ok(file)
        })
    }

    fn export(&self, name: String) -> Later<'_, Result<PathBuf, Failure>> {
        Box::pin(async move {
            // A copy: it may take a while, and nobody else is to wait for it.
            let model = self.state().model.clone();
            let name = format!("{name}.json");
            self.write(BACKUPS, name, move |file| export::write(file, &model)).await
        })
    }

    fn keep_report(&self, name: String, content: Vec<u8>) -> Later<'_, Result<PathBuf, Failure>> {
        Box::pin(self.write(REPORTS, name, move |file| files::replace(file, &content)))
    }

    fn is_alive(&self) -> bool {
        !self.inputs.is_closed()
    }

    fn events(&self) -> broadcast::Receiver<Event> {
        self.shared.events.subscribe()
    }
}
