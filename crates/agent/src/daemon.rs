//! The agent as a process: `ashlar agent`.
//!
//! Threads, each with one thing to do: workers carry out steps (`work`); one listens to the engine;
//! one reports what has changed; one ends suspensions whose time is over and has peers connected
//! again; one has the link. None of them is needed for I/O: that is the engine's alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use api::link::{News, Order};
use cluster::layer::Layer;
use cluster::name::{PoolName, ResourceName};
use cluster::objects::Generation;
use cluster::observed::{NodeState, PoolState, ReplicaState};
use cluster::plan::Action;
use cluster::question::{Question, Reply};
use codec::admin::{Event, Request};
use logging::{Level, log};
use rustix::fs::{FlockOperation, flock};
use surfaces::cli::Client;
use tokio::sync::mpsc;

use crate::carry::{Master, Node};
use crate::device_pool::Maker;
use crate::failed::Failed;
use crate::link::{self, Identity, NoIdentity, Talk};
use crate::mapper::{Choice, Mapper};
use crate::pools::{self, Pools};
use crate::questions;
use crate::record::{Record, Store};
use crate::report::{self, View};
use crate::ship::{self, Shipments};
use crate::work::{Job, Queue};

/// Steps that are carried out side by side.
const WORKERS: usize = 8;

/// Between a change and its report: what changes together is told together.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// Between two looks at the pools when nothing is done to them.
const POOLS: Duration = Duration::from_secs(10);

/// How long the engine may take to say what it has before the first report goes without.
const FIRST_LOOK: Duration = Duration::from_secs(3);

/// Between two looks at suspensions.
const TICK: Duration = Duration::from_millis(250);

/// Between two attempts to connect what was given up, and how many there are.
const RECONNECT: (Duration, u32) = (Duration::from_secs(2), 150);

/// Between two looks at volumes that have grown and whose metadata may not be at their ends.
const GROWN: Duration = Duration::from_secs(10);

/// Between two attempts to reach the engine.
const ENGINE_PAUSE: Duration = Duration::from_millis(500);

/// How often the engine is asked about a resource of which it tells meanwhile; it tells the rest.
const LOOKS: usize = 8;

/// How often the engine tells of numbers that move, in milliseconds.
const STATISTICS_MS: u32 = 2_000;

/// What the agent is told on its command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder in which it keeps everything.
    pub directory: PathBuf,
    /// The engine's control socket.
    pub socket: PathBuf,
    /// How long I/O may be suspended for a snapshot.
    pub suspend_for: Duration,
    /// Folders below which a controller may put external files.
    pub files_below: Vec<PathBuf>,
    /// Who decrypts encrypted volumes that are made from now on.
    pub luks: Choice,
    /// Our own program.
    pub program: Option<PathBuf>,
    /// Most detailed lines of the log, until the controller says something else.
    pub log_level: Level,
}

/// Why the agent does not run.
#[derive(Debug)]
pub enum Error {
    /// The node has not joined.
    Identity(NoIdentity),
    /// Another agent has the folder.
    Running(PathBuf),
    /// The folder can not be used.
    Folder(PathBuf, io::Error),
    /// A thread can not be started, or a suspension not be ended.
    Start(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Identity(why) => why.fmt(f),
            Error::Running(folder) => {
                write!(f, "another agent uses {}; end it first", folder.display())
            }
            Error::Folder(folder, why) => write!(
                f,
                "{} can not be used: {why}; name a folder for the agent, or repair this one",
                folder.display()
            ),
            Error::Start(why) => write!(f, "the agent can not be started: {why}"),
        }
    }
}

impl std::error::Error for Error {}

/// What is to be told, and what was.
#[derive(Default)]
struct Outgoing {
    link: Option<mpsc::Sender<News>>,
    /// Everything is to be told.
    hello: bool,
    /// Resources that may have changed.
    dirty: BTreeSet<ResourceName>,
    /// Pools may have changed.
    pools_dirty: bool,
    sent: BTreeMap<ResourceName, ReplicaState>,
    sent_pools: BTreeMap<PoolName, PoolState>,
    /// The engine has said what it has.
    looked: bool,
}

/// The agent.
struct Daemon {
    node: Node,
    queue: Queue,
    view: View,
    maker: Maker,
    /// For threads of its own, which the link's calls start.
    own: Weak<Daemon>,
    outgoing: Mutex<Outgoing>,
    changed: Condvar,
}

/// Runs the agent until the process ends.
///
/// # Errors
/// If it can not be started, or the node's identity is taken from it.
pub fn run(options: &Options) -> Result<(), Error> {
    let folder = |error| Error::Folder(options.directory.clone(), error);
    std::fs::create_dir_all(&options.directory).map_err(folder)?;
    let identity = Identity::read(&options.directory).map_err(Error::Identity)?;
    let _lock = only_one(&options.directory)?;
    let node = Node {
        name: identity.node.clone(),
        socket: options.socket.clone(),
        store: Store::open(&options.directory).map_err(folder)?,
        pools: Pools::open(&options.directory).map_err(folder)?,
        suspend_for: options.suspend_for,
        files_below: options.files_below.clone(),
        program: options.program.clone(),
        master: Master::default(),
        mapper: Mapper::new(options.luks),
        shipments: Shipments::default(),
    };
    logging::set_level(options.log_level);
    log!(Level::Info, "agent", "{identity:?}");
    log!(Level::Info, "agent", "{}", node.mapper.described());
    let daemon = Arc::new_cyclic(|own| Daemon {
        node,
        queue: Queue::default(),
        view: View::default(),
        maker: Maker::default(),
        own: own.clone(),
        outgoing: Mutex::default(),
        changed: Condvar::new(),
    });
    let left = |failed: Failed| Error::Start(failed.to_string());
    for name in daemon.node.store.names() {
        daemon.node.forget_suspension(&name).map_err(left)?;
        daemon.queue.push(&name, Job::Recover);
    }
    for number in 0..WORKERS {
        start(&format!("worker-{number}"), &daemon, Daemon::work)?;
    }
    start("watch", &daemon, Daemon::watch)?;
    start("report", &daemon, Daemon::report)?;
    start("tick", &daemon, Daemon::tick)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Start(error.to_string()))?;
    let talk: Arc<dyn Talk> = daemon;
    runtime.block_on(link::run(&options.directory, talk)).map_err(Error::Identity)
}

/// Two agents would not know of each other's steps.
fn only_one(directory: &Path) -> Result<File, Error> {
    let failed = |error| Error::Folder(directory.to_owned(), error);
    let file = File::create(directory.join("lock")).map_err(failed)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| Error::Running(directory.to_owned()))?;
    Ok(file)
}

fn start(name: &str, daemon: &Arc<Daemon>, run: fn(&Arc<Daemon>)) -> Result<(), Error> {
    let daemon = daemon.clone();
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || run(&daemon));
    thread.map(drop).map_err(|error| Error::Start(error.to_string()))
}

impl Daemon {
    fn lock(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Resources may have changed.
    fn touch(&self, names: impl IntoIterator<Item = ResourceName>, pools: bool) {
        let mut outgoing = self.lock();
        outgoing.dirty.extend(names);
        outgoing.pools_dirty |= pools;
        drop(outgoing);
        self.changed.notify_all();
    }

    // Workers.

    fn work(self: &Arc<Daemon>) {
        loop {
            let (name, job) = self.queue.next();
            match &job {
                Job::Step(generation, action) => {
                    let began = Instant::now();
                    let result = self.node.carry_out(&name, *generation, action);
                    let took = began.elapsed().as_millis();
                    match result {
                        Ok(()) => {
                            log!(Level::Info, name, "{action} ({took} ms)");
                            self.ship(&name, action);
                        }
                        Err(failed) if failed.stale => log!(Level::Info, name, "{failed}"),
                        Err(failed) => {
                            log!(Level::Error, name, "could not {action}: {failed}");
                            let order = action.to_string();
                            self.failed(Some(name.clone()), *generation, order, failed);
                        }
                    }
                }
                Job::Recover => {
                    if let Err(failed) = self.node.recover(&name) {
                        log!(Level::Warn, name, "could not be recovered yet: {failed}");
                    }
                }
                Job::Reconnect => {
                    if let Err(failed) = self.node.reconnect(&name) {
                        log!(Level::Warn, name, "could not be connected: {failed}");
                    }
                }
            }
            self.look(&name);
            self.queue.done(&name);
            self.touch([name], true);
        }
    }

    /// Begins what takes its time.
    fn ship(self: &Arc<Daemon>, name: &ResourceName, action: &Action) {
        let token = match action {
            Action::Upload(order) => order.token,
            Action::Download(order) => order.token,
            _ => return,
        };
        let Some(stop) = self.node.shipments.begin(name, token) else { return };
        let (daemon, name, action) = (self.clone(), name.clone(), action.clone());
        let named = name.clone();
        let run = move || {
            let told = || daemon.touch([name.clone()], false);
            match ship::run(&daemon.node, &name, &action, stop, &told) {
                Ok(()) => log!(Level::Info, name, "{action}: done"),
                Err(failed) => log!(Level::Error, name, "{action}: {failed}"),
            }
        };
        if let Err(error) = thread::Builder::new().name("ship".to_owned()).spawn(run) {
            let cause = format!("node {} has no thread to ship with: {error}", self.node.name);
            self.node.shipments.fail(&named, token, cause);
        }
    }

    /// What was done is in the next report, whatever the engine's events have come to.
    fn look(&self, name: &ResourceName) {
        for _ in 0..LOOKS {
            self.view.asks(name.as_str());
            let Ok(status) = self.node.engine().status(name.as_str()) else { return };
            if self.view.answered(name.as_str(), status) {
                return;
            }
        }
    }

    fn failed(
        &self,
        resource: Option<ResourceName>,
        generation: Generation,
        order: String,
        failed: Failed,
    ) {
        let Failed { cause, correction, .. } = failed;
        self.tell(News::Failed { resource, generation, order, cause, correction });
    }

    /// Tells now, if there is a link and everything was told.
    fn tell(&self, news: News) {
        let mut outgoing = self.lock();
        if !outgoing.hello {
            send(&mut outgoing, news);
        }
    }

    // Questions.

    /// Answers a question, on a thread of its own: disks may take their time.
    fn ask(&self, token: u64, question: Question) {
        let Some(daemon) = self.own.upgrade() else { return };
        let answer = move || {
            let reply = questions::answer(&daemon.node, &daemon.maker, &question);
            daemon.tell(News::Answer { token, reply });
        };
        if let Err(error) = thread::Builder::new().name("answer".to_owned()).spawn(answer) {
            let cause = format!("node {} has no thread for an answer: {error}", self.node.name);
            let reply = Reply::Refused { cause, correction: "ask again later".to_owned() };
            self.tell(News::Answer { token, reply });
        }
    }

    // The engine.

    fn watch(self: &Arc<Daemon>) {
        loop {
            self.listen();
            self.view.clear();
            self.touch(self.node.store.names(), false);
            thread::sleep(ENGINE_PAUSE);
        }
    }

    /// Follows the engine until it ends.
    fn listen(&self) {
        let wait = Duration::from_secs(5);
        let Ok(mut client) = Client::connect(&self.node.socket, wait, Duration::ZERO) else {
            return;
        };
        let request = Request::Events { resource: None, statistics_ms: Some(STATISTICS_MS) };
        if client.ask("follow the engine", request).is_err() {
            return;
        }
        while let Ok(Some(event)) = client.event() {
            let name = match event {
                Event::Resource(status) => {
                    let name = status.name.clone();
                    self.view.told(&name, Some(status));
                    name
                }
                Event::Gone { resource } => {
                    self.view.told(&resource, None);
                    resource
                }
                // Handlers have an effect on states, and these come as well.
                Event::Helper(_) => continue,
                Event::Current => {
                    self.lock().looked = true;
                    self.changed.notify_all();
                    // After its start it has no keys.
                    self.recover_encrypted();
                    continue;
                }
            };
            // Others than ours may be there; those have no record, and no report.
            self.touch(ResourceName::new(&name).ok(), false);
        }
    }

    /// Has the disks attached that wait for their keys, if those can be had.
    fn recover_encrypted(&self) {
        let encrypted = |record: &crate::record::Record| {
            record.volumes.values().any(|volume| volume.luks.is_some())
        };
        for name in self.node.store.select(encrypted) {
            self.queue.push(&name, Job::Recover);
        }
    }

    // Reports.

    fn report(self: &Arc<Daemon>) {
        let began = Instant::now();
        let mut looked_at_pools = None::<Instant>;
        loop {
            let mut outgoing = self.lock();
            while outgoing.dirty.is_empty() && !outgoing.hello && !outgoing.pools_dirty {
                let (back, waited) = self
                    .changed
                    .wait_timeout(outgoing, POOLS)
                    .unwrap_or_else(|poisoned| poisoned.into_inner());
                outgoing = back;
                outgoing.pools_dirty |= waited.timed_out();
            }
            drop(outgoing);
            thread::sleep(DEBOUNCE);
            let mut outgoing = self.lock();
            if outgoing.link.is_none() {
                // Everything is told when there is one.
                outgoing.dirty.clear();
                outgoing.pools_dirty = false;
                continue;
            }
            if outgoing.hello {
                if !outgoing.looked && began.elapsed() < FIRST_LOOK {
                    continue;
                }
                drop(outgoing);
                self.hello();
                looked_at_pools = Some(Instant::now());
                continue;
            }
            let dirty = std::mem::take(&mut outgoing.dirty);
            let old = looked_at_pools.is_none_or(|at| at.elapsed() >= POOLS);
            let pools = std::mem::take(&mut outgoing.pools_dirty) || old;
            drop(outgoing);
            for name in dirty {
                self.report_one(&name);
            }
            if pools {
                self.report_pools();
                looked_at_pools = Some(Instant::now());
            }
        }
    }

    fn hello(&self) {
        let pools = self.node.pools.states();
        let node = NodeState {
            connected: true,
            since: report::now(),
            layers: BTreeSet::from([Layer::Drbd, Layer::Luks, Layer::Storage]),
            providers: pools::kinds(),
            pools: pools.clone(),
            ships: true,
            ships_encrypted: true,
            ships_to_clusters: true,
        };
        let mut outgoing = self.lock();
        // What changes from here on is told after it.
        outgoing.dirty.clear();
        drop(outgoing);
        let mut replicas = report::all(&self.view, &self.node.store);
        for (name, state) in &mut replicas {
            state.shipments = self.node.shipments.states(name);
        }
        let mut outgoing = self.lock();
        (outgoing.sent, outgoing.sent_pools) = (replicas.clone(), pools);
        outgoing.hello = false;
        send(&mut outgoing, News::Hello { node, replicas });
    }

    fn report_one(&self, name: &ResourceName) {
        let mut state = match self.node.store.get(name) {
            Some(record) => self.view.report(&record),
            None => match self.node.store.removed().get(name) {
                Some(generation) => report::removed(*generation),
                None => return,
            },
        };
        state.shipments = self.node.shipments.states(name);
        let mut outgoing = self.lock();
        if outgoing.hello || outgoing.sent.get(name) == Some(&state) {
            return;
        }
        outgoing.sent.insert(name.clone(), state.clone());
        send(&mut outgoing, News::Replica { resource: name.clone(), state });
    }

    fn report_pools(&self) {
        let pools = self.node.pools.states();
        let mut outgoing = self.lock();
        if !outgoing.hello && is_news(&outgoing.sent_pools, &pools) {
            for (name, state) in &pools {
                let Some(provider) = self.node.pools.provider(name) else { continue };
                let old = outgoing.sent_pools.get(name).and_then(|old| old.alarm(provider));
                if let Some(alarm) = state.alarm(provider).filter(|_| old.is_none()) {
                    log!(Level::Warn, format!("storage pool {name}"), "{alarm}");
                }
            }
            outgoing.sent_pools = pools.clone();
            send(&mut outgoing, News::Pools(pools));
        }
    }

    // Time.

    fn tick(self: &Arc<Daemon>) {
        let mut held: BTreeMap<(ResourceName, Generation), Instant> = BTreeMap::new();
        let mut attempts: BTreeMap<ResourceName, u32> = BTreeMap::new();
        let (mut connected_at, mut settled_at) = (Instant::now(), Instant::now());
        loop {
            thread::sleep(TICK);
            self.end_suspensions(&mut held);
            if settled_at.elapsed() >= GROWN {
                settled_at = Instant::now();
                // The engine has moved metadata, or was started and did not find them.
                for name in self.node.store.select(Record::is_growing) {
                    self.queue.push(&name, Job::Recover);
                }
            }
            if connected_at.elapsed() >= RECONNECT.0 {
                connected_at = Instant::now();
                self.connect_again(&mut attempts);
            }
        }
    }

    /// Ends suspensions whose time is over, each on a thread of its own: an engine that does not
    /// answer for one must not hold up the others.
    fn end_suspensions(
        self: &Arc<Daemon>,
        held: &mut BTreeMap<(ResourceName, Generation), Instant>,
    ) {
        let open = |record: &Record| record.suspension.is_some_and(|h| !h.over);
        let names = self.node.store.select(open);
        let tokens: BTreeSet<_> = names
            .into_iter()
            .filter_map(|name| {
                let token = self.node.store.get(&name)?.suspension?.token;
                Some((name, token))
            })
            .collect();
        held.retain(|key, _| tokens.contains(key));
        for key in tokens {
            let since = *held.entry(key.clone()).or_insert_with(Instant::now);
            if since.elapsed() < self.node.suspend_for {
                continue;
            }
            // Not again before the engine had its time to answer.
            held.insert(key.clone(), Instant::now());
            let daemon = self.clone();
            thread::spawn(move || {
                let (name, token) = key;
                log!(Level::Warn, name, "the suspension of I/O took too long and is ended");
                if let Err(failed) = daemon.node.expire(&name, token) {
                    log!(Level::Error, name, "I/O is not resumed yet: {failed}");
                }
                daemon.touch([name], false);
            });
        }
    }

    fn connect_again(&self, attempts: &mut BTreeMap<ResourceName, u32>) {
        let names = self.node.store.select(|record| record.reconnect);
        attempts.retain(|name, _| names.contains(name));
        for name in names {
            let count = attempts.entry(name.clone()).or_default();
            *count += 1;
            if *count > RECONNECT.1 {
                // What is not connected by now has another reason.
                if let Err(failed) = self.node.store.update(&name, |r| r.reconnect = false) {
                    log!(Level::Error, name, "{failed}");
                }
            } else if !self.queue.busy().contains(&name) {
                self.queue.push(&name, Job::Reconnect);
            }
        }
    }
}

/// Sends on the link; one that takes no more ends, and the next begins with everything.
fn send(outgoing: &mut Outgoing, news: News) {
    if outgoing.link.as_ref().is_some_and(|link| link.try_send(news).is_err()) {
        outgoing.link = None;
    }
}

/// Space has changed by a hundredth of the pool, or something else has.
fn is_news(old: &BTreeMap<PoolName, PoolState>, new: &BTreeMap<PoolName, PoolState>) -> bool {
    let differs = |name: &PoolName, new: &PoolState| {
        old.get(name).is_none_or(|old| {
            let step = new.total.0 / 100;
            let known = |state: &PoolState| {
                (state.error.clone(), state.no_snapshots.clone(), state.total, state.metadata_used)
            };
            known(old) != known(new)
                || old.free.0.abs_diff(new.free.0) > step
                || old.snapshots.0.abs_diff(new.snapshots.0) > step
        })
    };
    old.len() != new.len() || new.iter().any(|(name, state)| differs(name, state))
}

impl Talk for Daemon {
    fn begins(&self, news: mpsc::Sender<News>) {
        let mut outgoing = self.lock();
        (outgoing.link, outgoing.hello) = (Some(news), true);
        drop(outgoing);
        self.changed.notify_all();
    }

    fn ends(&self) {
        self.lock().link = None;
    }

    fn order(&self, order: Order) {
        match order {
            Order::Step { resource, generation, action } => {
                self.queue.push(&resource, Job::Step(generation, Box::new(action)));
            }
            Order::Master { key } => match self.node.master.tell(&key) {
                Ok(true) => self.recover_encrypted(),
                Ok(false) => {}
                Err(failed) => {
                    log!(Level::Error, "agent", "{failed}");
                    self.failed(None, Generation(0), "use the master key".to_owned(), failed);
                }
            },
            Order::Ask { token, question } => {
                log!(Level::Debug, "question", "the controller has this node {question}");
                self.ask(token, question);
            }
            Order::Pools { generation, pools } => {
                // A small file; steps that come next need it.
                if let Err(failed) = self.node.pools.tell(generation, pools) {
                    log!(Level::Error, "agent", "{failed}");
                    if !failed.stale {
                        self.failed(None, generation, "use these pools".to_owned(), failed);
                    }
                }
                self.touch([], true);
            }
        }
    }

    fn not_understood(&self, resource: &str, generation: Generation, why: &str) {
        let failed = Failed::new(
            format!("node {} does not understand the order: {why}", self.node.name),
            "update the agent to the controller's release",
        );
        log!(Level::Error, "agent", "{failed}");
        let order = "something of a newer release".to_owned();
        self.failed(ResourceName::new(resource).ok(), generation, order, failed);
    }

    fn log(&self, text: &str) {
        log!(Level::Info, "link", "{text}");
    }
}
