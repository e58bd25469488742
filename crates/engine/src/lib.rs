//! The data-plane daemon: drives `replication` on `runtime`.
//!
//! - `shard`: a worker thread: resources, their disks and volumes. `transport`: connections.
//! - `engine`: all shards and resources; `commands`: what operators ask; `control`: the socket
//!   they ask through; `hub`: who listens to changes; `exports`: what is served over NBD;
//!   `vhost`: and over vhost-user;
//!   `maps`: block devices of this machine; `metrics`: numbers for Prometheus.
//! - `order`: whose resync goes first.
//! - `handlers`: programs that are called when something happens.
//! - `doctor`: measurements of what limits a resource.
//! - `upgrade`: another engine takes over while this one serves.
//! - `state`, `restore`: what is kept over a restart. `create_md`, `convert_md`, `signature`: new metadata.
//!
//! Only this crate sees both `replication` and `runtime`, and it decides nothing about
//! replication: it copies inputs in and carries outputs out.

mod commands;
mod control;
mod convert_md;
mod create_md;
mod digest;
mod doctor;
mod engine;
mod exports;
mod handlers;
mod hub;
mod keys;
mod maps;
mod metrics;
mod nbd_tls;
mod order;
mod random;
mod restore;
mod shard;
mod signature;
mod state;
mod tls;
mod transport;
mod upgrade;
mod vhost;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, mpsc};
use std::time::Duration;

use runtime::Sender;
use runtime::thread::{WorkerOptions, spawn, usable_cpus};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use vocab::{Refusal, StateError};

use crate::engine::{Engine, Shutdown};
use crate::hub::Hub;
use crate::shard::Message;
use crate::state::StateDir;
use logging::{Level, log};

/// For tests that show where nothing is allocated.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: runtime::counting::Counting = runtime::counting::Counting;

/// So long the process waits for the last answers on its control socket to be written.
const ANSWERS: Duration = Duration::from_secs(1);

/// How an engine is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the control socket is.
    pub socket: PathBuf,
    /// Where configuration is kept over a restart.
    pub state_dir: PathBuf,
    /// A DRBD configuration file whose resources are brought up too.
    pub config: Option<PathBuf>,
    /// Name of this host in the configuration; the host name if `None`.
    pub node: Option<String>,
    /// Called for events of resources that `drbdadm` has configured, if anything is.
    pub helper: Option<PathBuf>,
    /// Where metrics are served over HTTP, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// Most detailed level of the log.
    pub log_level: logging::Level,
    /// Worker threads; one per usable CPU if `None`.
    pub threads: Option<usize>,
    /// Each thread on a CPU of its own.
    pub pin: bool,
    /// How long threads look for completions before they sleep; zero: not at all.
    pub busy_poll: Duration,
    /// Memory for data in flight per thread, in bytes.
    pub buffers: usize,
    /// How long ending may take.
    pub exit_timeout: Duration,
    /// All volumes have block devices, which open them when they are used.
    pub devices: Devices,
    /// Take over from the engine at the other end of standard input.
    pub heir: bool,
}

/// Whether all volumes have block devices.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Devices {
    /// Those that are mapped.
    #[default]
    No,
    /// Where the kernel has ublk, and all that such devices need.
    Auto,
    /// All, or the engine does not start.
    Yes,
}

/// Why the engine did not start, in words for the operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartError(String);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

impl From<String> for StartError {
    fn from(text: String) -> StartError {
        StartError(text)
    }
}

/// Runs the engine in the foreground until it is told to end.
///
/// # Errors
/// [`StartError`]; nothing was changed then.
pub fn run(options: &Options) -> Result<(), StartError> {
    logging::set_level(options.log_level);
    // Caught from here on, so that a signal during the start ends it in order, too.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|e| format!("can not catch signals: {e}"))?;
    raise_open_files();
    let host = match &options.node {
        Some(node) => node.clone(),
        None => host_name()?,
    };
    let devices = maps::standby::for_all(options.devices)?;
    let hub = Arc::new(Hub::default());
    let order = order::Order::default();
    // An heir waits here until the other engine hands over, with all its threads ready.
    let (legacy, state, metrics, shards, predecessor);
    let mut instance = random::seed().max(1);
    if options.heir {
        shards = start_shards(options, &hub, &order)?;
        let (left, directory) = upgrade::take_over(&options.state_dir)?;
        instance = left.instance();
        (legacy, state, metrics, predecessor) = (Some(left), directory, None, None);
    } else {
        (legacy, state) = (None, StateDir::open(&options.state_dir)?);
        metrics = options.metrics.map(listen_for_metrics).transpose()?;
        predecessor = state.begin_run(instance)?;
        shards = start_shards(options, &hub, &order)?;
    }
    let (shutdown, wishes) = mpsc::channel();
    let handlers = Arc::new(handlers::Setup {
        helper: options.helper.clone().filter(|path| is_there(path)),
        socket: options.socket.clone(),
        host: host.clone(),
        hub: hub.clone(),
    });
    let engine = Arc::new(Engine {
        shards,
        hub,
        order,
        state,
        resources: Mutex::new(BTreeMap::new()),
        exports: Mutex::default(),
        maps: Mutex::default(),
        keys: keys::Keys::default(),
        creating: Mutex::new(BTreeSet::new()),
        host: host.clone(),
        doctor: doctor::Doctor::default(),
        handlers,
        started: std::time::Instant::now(),
        instance,
        predecessor,
        shutdown: shutdown.clone(),
        commands: RwLock::default(),
        upgrading: Mutex::default(),
        tls_clients: Arc::default(),
        unanswered: Arc::default(),
    });
    introduce_shards(&engine)?;
    match legacy {
        Some(legacy) => {
            let line = legacy.install(&engine, options);
            let (engine, address) = (engine.clone(), options.metrics);
            spawn_named("follow", move || {
                upgrade::follow(&engine, line);
                serve_inherited_metrics(&engine, address);
                if let Err(e) = engine.keep_standbys(devices) {
                    log!(Level::Error, "engine", "{e}");
                }
            })?;
        }
        None => {
            let file = options.config.as_deref().map(|file| (file, host.as_str()));
            let listener = control::listen(&options.socket)?;
            engine.restore(file)?;
            engine.keep_standbys(devices)?;
            let server = engine.clone();
            spawn_named("control", move || control::serve(server, listener))?;
        }
    }
    if let Some(metrics) = metrics {
        serve_metrics(&engine, metrics)?;
    }
    spawn_named("signals", move || forward_signals(signals, &shutdown))?;
    log!(Level::Info, "engine", "ready at {}", options.socket.display());
    wait_for_the_end(&engine, &wishes);
    // An upgrade that is under way comes to its end first; if it succeeds, the process ends there.
    let _alone = engine.upgrading.lock().unwrap_or_else(PoisonError::into_inner);
    wind_down(&engine, options.exit_timeout);
    see_answers_off(&engine.unanswered, 1);
    let _ = std::fs::remove_file(&options.socket);
    log!(Level::Info, "engine", "ended");
    Ok(())
}

/// Without the helper nothing is called for resources that it would know.
fn is_there(helper: &Path) -> bool {
    let there = helper.exists();
    if !there {
        let path = helper.display();
        log!(Level::Info, "engine", "there is no {path}: drbdadm's handlers are not called");
    }
    there
}

/// Listens for those who fetch metrics; also gives the address, with the port that the kernel chose
/// if it was 0.
fn listen_for_metrics(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |e| {
        let next = "give --metrics an address of this host and a port that nobody uses";
        StartError(format!("metrics: can not listen at {address}: {e}; {next}"))
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

fn serve_metrics(
    engine: &Arc<Engine>,
    (listener, address): (TcpListener, SocketAddr),
) -> Result<(), StartError> {
    log!(Level::Info, "engine", "metrics are at http://{address}/metrics");
    let server = engine.clone();
    spawn_named("metrics", move || metrics::serve(&server, &listener))
}

/// Serves metrics where the engine before has served them until a moment ago.
fn serve_inherited_metrics(engine: &Arc<Engine>, address: Option<SocketAddr>) {
    let Some(address) = address else { return };
    let listening = engine::while_claimed(|_| true, || listen_for_metrics(address));
    if let Err(error) = listening.and_then(|listening| serve_metrics(engine, listening)) {
        log!(Level::Error, "engine", "{error}");
    }
}

/// As many open files as the administrator permits: a volume with two peers takes five, more if it
/// is served, and the usual limit of a shell, 1,024, is for programs that wait with select(2).
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        log!(Level::Warn, "engine", "the limit of open files can not be raised: {e}");
    }
}

fn spawn_named(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map(drop)
        .map_err(|e| StartError(format!("no thread could be started: {e}")))
}

fn host_name() -> Result<String, StartError> {
    const PATH: &str = "/proc/sys/kernel/hostname";
    let name = std::fs::read_to_string(PATH)
        .map_err(|e| format!("{PATH}: can not be read: {e}; name this host with --node"))?;
    Ok(name.trim().to_owned())
}

/// Starts the worker threads.
fn start_shards(
    options: &Options,
    hub: &Arc<Hub>,
    order: &order::Order,
) -> Result<Vec<Sender<Message>>, StartError> {
    let cpus = usable_cpus();
    let count = options.threads.unwrap_or(cpus.len()).max(1);
    if options.pin && count > cpus.len() {
        let why = format!("{count} threads can not be pinned to {} usable CPUs", cpus.len());
        return Err(format!("{why}; start fewer with --threads, or leave out --pin").into());
    }
    let mut shards = Vec::new();
    for nr in 0..count {
        let worker = WorkerOptions {
            name: format!("shard{nr}"),
            // A pinned thread waits for its CPU while others are idle: on a host that does more
            // than storage the scheduler knows better.
            cpu: cpus.get(nr).copied().filter(|_| options.pin),
            pool_bytes: options.buffers,
            busy_poll: options.busy_poll,
            ..WorkerOptions::default()
        };
        let (hub, order) = (hub.clone(), order.clone());
        let handle = spawn(worker, move |worker| shard::run(worker, nr, hub, order))
            .map_err(|e| StartError(e.to_string()))?;
        shards.push(handle.sender.clone());
    }
    Ok(shards)
}

/// Tells every shard of the others, for clients that move.
fn introduce_shards(engine: &Engine) -> Result<(), StartError> {
    for shard in 0..engine.shards.len() {
        let all = engine.shards.clone();
        engine
            .on(shard, move |shard| shard.peers = all)
            .map_err(|_| StartError("a worker thread did not start".to_owned()))?;
    }
    Ok(())
}

/// Signals wish for an end like operators do, whether volumes are open or not.
fn forward_signals(mut signals: Signals, shutdown: &mpsc::Sender<Shutdown>) {
    for signal in signals.forever() {
        if signal == SIGHUP {
            continue;
        }
        let (answer, _) = mpsc::channel();
        if shutdown.send(Shutdown { force: true, answer }).is_err() {
            return;
        }
    }
}

/// Returns once a wish to end is granted.
fn wait_for_the_end(engine: &Arc<Engine>, wishes: &mpsc::Receiver<Shutdown>) {
    for Shutdown { force, answer } in wishes {
        if !force {
            engine.settle_standbys(None);
        }
        let open = engine.openers();
        if open == 0 || force {
            log!(Level::Info, "engine", "ending");
            let _ = answer.send(Ok(()));
            return;
        }
        let detail = format!("{open} clients have volumes open; close them, or use --force");
        let _ = answer.send(Err(Refusal::state(StateError::DeviceInUse, detail)));
    }
}

/// Whoever wished for the end hears of it before the process is gone, as do others that were
/// answered just now.
fn see_answers_off(unanswered: &Arc<()>, held_here: usize) {
    let begin = std::time::Instant::now();
    while Arc::strong_count(unanswered) > held_here && begin.elapsed() < ANSWERS {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Leaves in peace, or without after the given time.
fn wind_down(engine: &Arc<Engine>, patience: Duration) {
    let (done, ended) = mpsc::channel();
    let worker = engine.clone();
    let run = move || {
        worker.wind_down();
        let _ = done.send(());
    };
    let ended = spawn_named("end", run).is_ok() && ended.recv_timeout(patience).is_ok();
    if !ended {
        log!(
            Level::Warn,
            "engine",
            "resources could not be left in peace within {} seconds; ending all the same, as a \
             crash would",
            patience.as_secs()
        );
    }
    for shard in 0..engine.shards.len() {
        let _ = engine.send(shard, Message::Stop);
    }
}
