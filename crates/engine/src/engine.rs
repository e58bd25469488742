//! The engine as a whole: its shards, its resources by name, and what is kept of them.
//!
//! Runs on ordinary threads, one per command. A command asks a shard, waits for the answer, and
//! then writes down what has changed; so what is kept is never ahead of what is in force. Locks
//! here are never held while a shard is asked, but for the gate of the resource concerned, which
//! lets commands that change it pass one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, mpsc};
use std::time::{Duration, Instant};

use codec::admin::{Failure, FailureKind, Outcome, ResourceStatistics, ResourceStatus};
use codec::config::{BackingConfig, MetaDisk};
use replication::io::AdminCommand;
use runtime::{SendError, Sender};
use vocab::{ConfigError, Minor, NodeId, Refusal, RefusalCode, VolumeNr};

use crate::exports::Exports;
use crate::hub::Hub;
use crate::keys::Keys;
use crate::maps::Maps;
use crate::shard::{Message, Shard};
use crate::state::{StateDir, Stored};

/// How long a disk that somebody holds is asked for again, and how often.
const RELEASE: Duration = Duration::from_secs(2);
/// See [`RELEASE`].
const RETRY: Duration = Duration::from_millis(20);

/// Why a command ended without success.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A rule forbids it.
    Refused(Refusal),
    /// It could not be done.
    Failed(Failure),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Stop {
        Stop::Refused(refusal)
    }
}

impl From<ConfigError> for Stop {
    fn from(code: ConfigError) -> Stop {
        Stop::Refused(code.into())
    }
}

impl From<Stop> for Outcome {
    fn from(stop: Stop) -> Outcome {
        match stop {
            Stop::Refused(refusal) => Outcome::Refused(refusal),
            Stop::Failed(failure) => Outcome::Failed(failure),
        }
    }
}

impl Stop {
    /// The engine itself is at fault, or out of something.
    pub(crate) fn failed(kind: FailureKind, text: impl Into<String>, next: &str) -> Stop {
        Stop::Failed(Failure::new(kind, text, next))
    }

    /// A request that makes no sense.
    pub(crate) fn invalid(detail: impl Into<String>) -> Stop {
        Refusal::config(ConfigError::InvalidRequest, detail).into()
    }
}

/// What a command comes to.
pub(crate) type Done<T = ()> = Result<T, Stop>;

/// A lock whose data can not be half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A resource as the rest of the engine knows it.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) shard: usize,
    /// Its number there.
    pub(crate) id: u16,
    /// Passed by one changing command at a time.
    gate: Gate,
    pub(crate) stored: Mutex<Stored>,
    /// Counts suspensions and their ends: one that ends by the clock is not another by then.
    pub(crate) suspensions: AtomicU64,
    /// Brought up with the engine, and not taken from its clients since.
    pub(crate) restored: AtomicBool,
}

/// Lets one through at a time.
#[derive(Default)]
struct Gate {
    busy: Mutex<bool>,
    free: Condvar,
}

/// Whoever holds this may change the resource.
pub(crate) struct Pass<'a>(&'a Gate);

impl Gate {
    fn pass(&self) -> Pass<'_> {
        let busy = lock(&self.busy);
        let mut busy =
            self.free.wait_while(busy, |busy| *busy).unwrap_or_else(PoisonError::into_inner);
        *busy = true;
        Pass(self)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        *lock(&self.0.busy) = false;
        self.0.free.notify_one();
    }
}

impl Entry {
    pub(crate) fn new(shard: usize, id: u16, stored: Stored) -> Entry {
        let name = stored.config.name.clone();
        let (stored, suspensions) = (Mutex::new(stored), AtomicU64::new(0));
        let (gate, restored) = (Gate::default(), AtomicBool::new(false));
        Entry { name, shard, id, gate, stored, suspensions, restored }
    }

    /// Waits until no other command changes the resource.
    pub(crate) fn pass(&self) -> Pass<'_> {
        self.gate.pass()
    }
}

/// The engine.
pub(crate) struct Engine {
    pub(crate) shards: Vec<Sender<Message>>,
    pub(crate) hub: Arc<Hub>,
    /// Whose resync goes first.
    pub(crate) order: crate::order::Order,
    pub(crate) state: StateDir,
    pub(crate) resources: Mutex<BTreeMap<String, Arc<Entry>>>,
    pub(crate) exports: Mutex<Exports>,
    pub(crate) maps: Mutex<Maps>,
    pub(crate) keys: Keys,
    /// Names of resources being created.
    pub(crate) creating: Mutex<BTreeSet<String>>,
    pub(crate) host: String,
    pub(crate) doctor: crate::doctor::Doctor,
    /// How handlers are run.
    pub(crate) handlers: Arc<crate::handlers::Setup>,
    pub(crate) started: Instant,
    /// Names this run of the engine, and the one before it if that is known.
    pub(crate) instance: u64,
    pub(crate) predecessor: Option<u64>,
    /// Asks the main thread to shut down: by force or not, and where the answer goes.
    pub(crate) shutdown: mpsc::Sender<Shutdown>,
    /// Held by every command, and by an upgrade alone.
    pub(crate) commands: RwLock<()>,
    /// Held by the one upgrade there may be.
    pub(crate) upgrading: Mutex<()>,
    /// NBD clients over TLS.
    pub(crate) tls_clients: Arc<crate::nbd_tls::Clients>,
    /// Held by every call that has no answer yet.
    pub(crate) unanswered: Arc<()>,
}

/// A wish to end.
pub(crate) struct Shutdown {
    /// Even while volumes are open.
    pub(crate) force: bool,
    /// Whether the engine will end.
    pub(crate) answer: mpsc::Sender<Result<(), Refusal>>,
}

impl Engine {
    /// Sends a message to a shard.
    pub(crate) fn send(&self, shard: usize, mut message: Message) -> Done {
        loop {
            match self.shards[shard].send(message) {
                Ok(()) => return Ok(()),
                Err(SendError::Full(back)) => {
                    message = back;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(SendError::Closed(_)) => return Err(ending()),
            }
        }
    }

    /// Runs something on a shard between two turns and waits for its result.
    pub(crate) fn on<T: Send + 'static>(
        &self,
        shard: usize,
        f: impl FnOnce(&mut Shard) -> T + Send + 'static,
    ) -> Done<T> {
        let (reply, result) = mpsc::channel();
        let task = move |shard: &mut Shard| _ = reply.send(f(shard));
        self.send(shard, Message::Do(Box::new(task)))?;
        result.recv().map_err(|_| ending())
    }

    /// Asks the core of a resource, and waits as long as it takes: a command ends by itself.
    pub(crate) fn command(&self, entry: &Entry, command: AdminCommand) -> Done {
        let (reply, result) = mpsc::channel();
        let id = entry.id;
        let task = move |shard: &mut Shard| {
            shard.with(id, |host, io, volumes| host.command(io, volumes, command, reply));
        };
        self.send(entry.shard, Message::Do(Box::new(task)))?;
        Ok(result.recv().map_err(|_| ending())??)
    }

    /// Claims a disk, reads it, and has it attached.
    pub(crate) fn attach(&self, entry: &Entry, nr: VolumeNr, backing: BackingConfig) -> Done {
        let key = self.key_of(&backing.disk, &backing.meta_disk, backing.luks)?;
        let options = Box::new(backing.options.clone());
        self.command(entry, AdminCommand::DiskOptions(nr, options))?;
        let id = entry.id;
        let refused = |stop: &Stop| matches!(stop, Stop::Refused(refusal) if is_claimed(refusal));
        while_claimed(refused, || {
            let (reply, result) = mpsc::channel();
            let (backing, key) = (backing.clone(), key.clone());
            let task = move |shard: &mut Shard| {
                shard.with(id, |host, io, _| host.attach(io, nr, &backing, key, reply));
            };
            self.send(entry.shard, Message::Do(Box::new(task)))?;
            Ok(result.recv().map_err(|_| ending())??)
        })
    }

    /// The present states of a resource.
    pub(crate) fn status_of(&self, entry: &Entry) -> Done<ResourceStatus> {
        let id = entry.id;
        self.on(entry.shard, move |shard| shard.hosts.get_mut(id).map(|host| host.status()))?
            .ok_or_else(|| unknown(&entry.name))
    }

    /// The counters and latencies of a resource.
    pub(crate) fn statistics_of(&self, entry: &Entry) -> Done<ResourceStatistics> {
        let id = entry.id;
        let read = move |shard: &mut Shard| {
            let now = shard.io.now();
            shard.hosts.get_mut(id).map(|host| host.statistics(now))
        };
        self.on(entry.shard, read)?.ok_or_else(|| unknown(&entry.name))
    }

    /// The resource of that name.
    pub(crate) fn entry(&self, name: &str) -> Done<Arc<Entry>> {
        lock(&self.resources).get(name).cloned().ok_or_else(|| unknown(name))
    }

    /// All resources, or the one named; none if that does not exist.
    pub(crate) fn entries(&self, only: Option<&str>) -> Vec<Arc<Entry>> {
        let resources = lock(&self.resources);
        match only {
            Some(name) => resources.get(name).cloned().into_iter().collect(),
            None => resources.values().cloned().collect(),
        }
    }

    /// The resource and volume behind a minor.
    pub(crate) fn minor(&self, minor: Minor) -> Done<(Arc<Entry>, VolumeNr)> {
        for entry in self.entries(None) {
            let stored = lock(&entry.stored);
            let found = stored.config.volumes.iter().find(|v| v.minor == minor).map(|v| v.nr);
            drop(stored);
            if let Some(nr) = found {
                return Ok((entry, nr));
            }
        }
        let detail = format!("minor {} is not configured", minor.0);
        Err(Refusal::config(ConfigError::MinorInvalid, detail).into())
    }

    /// Changes what is kept of a resource, and keeps it.
    pub(crate) fn keep(&self, entry: &Entry, change: impl FnOnce(&mut Stored)) -> Done {
        let mut stored = lock(&entry.stored);
        change(&mut stored);
        self.state.put_resource(&stored).map_err(not_kept)
    }

    /// Refuses a disk or metadata slot that another volume of this engine has.
    pub(crate) fn check_devices(&self, disk: &str, meta: &MetaDisk) -> Done {
        let wanted = uses(disk, meta);
        for entry in self.entries(None) {
            let stored = lock(&entry.stored);
            let volumes = stored.config.volumes.iter();
            for (nr, backing) in volumes.filter_map(|v| Some((v.nr, v.backing.as_ref()?))) {
                let taken = uses(&backing.disk, &backing.meta_disk);
                let clash = wanted.iter().find(|w| taken.iter().any(|t| w.clashes(t)));
                if let Some(device) = clash {
                    let detail = format!(
                        "{} is in use by volume {nr} of resource {}",
                        device.path, entry.name
                    );
                    return Err(Refusal::config(ConfigError::DiskClaimed, detail).into());
                }
            }
        }
        Ok(())
    }

    /// True if the peer may be left out of the connections to be kept.
    pub(crate) fn is_standalone(&self, entry: &Entry, node: NodeId) -> Done<bool> {
        let status = self.status_of(entry)?;
        let connection = status.connections.iter().find(|c| c.peer_node_id == node);
        Ok(connection.is_none_or(|c| c.connection_state == vocab::ConnState::StandAlone))
    }
}

/// A device and the part of it that is used.
struct Use {
    path: String,
    slot: Option<u32>,
}

impl Use {
    fn clashes(&self, other: &Use) -> bool {
        let apart = self.slot.is_some() && other.slot.is_some() && self.slot != other.slot;
        self.path == other.path && !apart
    }
}

fn uses(disk: &str, meta: &MetaDisk) -> Vec<Use> {
    // By its real name, so that two names of one device meet.
    let real = |path: &str| match std::fs::canonicalize(path) {
        Ok(real) => real.display().to_string(),
        Err(_) => path.to_owned(),
    };
    let mut uses = vec![Use { path: real(disk), slot: None }];
    if let MetaDisk::External { device, index } = meta {
        uses.push(Use { path: real(device), slot: *index });
    }
    uses
}

pub(crate) fn unknown(name: &str) -> Stop {
    let detail = format!("`{name}` is not configured here");
    Refusal::config(ConfigError::UnknownResource, detail).into()
}

pub(crate) fn not_kept(error: String) -> Stop {
    let text = format!("done, but not written down, so a restart will not know it: {error}");
    Stop::failed(FailureKind::Io, text, "see to the state directory, then repeat the command")
}

fn ending() -> Stop {
    Stop::failed(FailureKind::Resources, "the engine is ending", "start it again")
}

/// True if a disk is held by somebody.
pub(crate) fn is_claimed(refusal: &Refusal) -> bool {
    use ConfigError::{DiskClaimed, MetaDiskClaimed};
    matches!(refusal.code, RefusalCode::Config(DiskClaimed | MetaDiskClaimed))
}

/// Claims a disk or an address with `claim`, and again for a while if somebody holds it. The
/// kernel lets go of a file only after the last operation of its ring has ended, and does so in
/// the background: some milliseconds after a ring was closed, or its process was killed. Until
/// then old writes may still reach the disk, so it is right to wait for the lock.
pub(crate) fn while_claimed<T, E>(
    is_claimed: impl Fn(&E) -> bool,
    mut claim: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let end = Instant::now() + RELEASE;
    loop {
        match claim() {
            Err(e) if is_claimed(&e) && Instant::now() < end => std::thread::sleep(RETRY),
            result => return result,
        }
    }
}
