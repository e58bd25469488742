//! `ashlar upgrade`: another engine takes over while clients and peers are served.
//!
//! - This file: the engine that is there. It starts the other one, lets everything come to rest,
//!   freezes itself and hands over; or goes on as if nothing had been, and says why.
//! - `heir`: the one that takes over. `passing`: what they tell each other. `supervisor`: what systemd is told.
//!
//! There is one point of no return, when `Go` is sent. Before that the other engine does nothing to
//! disks and sockets, and after it this one does nothing any more.

mod heir;
mod passing;
mod supervisor;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, PoisonError, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

use codec::admin::{FailureKind, UpgradeReport};
use crypt::luks::Opened;
use serde::{Deserialize, Serialize};
use vocab::{Refusal, StateError};
use zeroize::Zeroizing;

use crate::engine::{Done, Engine, Stop, lock};
use crate::nbd_tls::{FrozenTls, Held};
use crate::shard::FrozenShard;
use crate::vhost::{FrozenGuest, HeldGuest};
pub(crate) use heir::{follow, take_over};
use logging::{Level, log};
use passing::{Kind, receive, send, send_descriptors};

/// The argument that makes an engine the heir of the one at the other end of its standard input.
pub const HEIR: &str = "--heir";
/// Counts changes of what is handed over, apart from the cores'.
const VERSION: u32 = 1;

/// How long the other engine may take to start; nothing waits for it.
const START: Duration = Duration::from_secs(20);
/// How long commands that are being carried out are waited for.
const COMMANDS: Duration = Duration::from_secs(5);
/// How long clients and peers wait at most until everything has come to rest.
const REST: Duration = Duration::from_millis(400);
/// How long the other engine may take to take over what is frozen.
const TAKE: Duration = Duration::from_secs(2);
/// How long it may take to tell that it runs; this one is done in any case.
const RUNNING: Duration = Duration::from_secs(10);
/// How often is looked.
const TICK: Duration = Duration::from_micros(500);

/// All that an engine hands over; the descriptors of the shards travel beside it, behind that of the
/// lock of the state directory.
#[derive(Serialize, Deserialize)]
struct Handover {
    /// The run goes on: guests know it.
    instance: u64,
    shards: Vec<FrozenShard>,
    /// As they are kept, with the shard of each.
    resources: Vec<(String, usize)>,
    /// As they are kept, and who listens for them.
    exports: String,
    listeners: String,
    /// Volumes that are mapped.
    maps: String,
    /// What serves guests.
    guests: Vec<FrozenGuest>,
    /// NBD over TLS. Older engines hand over none of it, and have no clients there when they do.
    #[serde(default)]
    tls: FrozenTls,
    /// Of encrypted disks, by their paths.
    keys: BTreeMap<String, Opened>,
}

impl Handover {
    /// How many descriptors belong to it.
    fn descriptors(&self) -> usize {
        let guests: usize = self.guests.iter().map(FrozenGuest::descriptors).sum();
        let shards: usize = self.shards.iter().map(FrozenShard::descriptors).sum();
        1 + shards + guests + self.tls.descriptors()
    }
}

fn refused(detail: impl Into<String>) -> Stop {
    Refusal::state(StateError::InTransientState, detail).into()
}

fn failed(text: impl Into<String>) -> Stop {
    let next = "this engine goes on; see the log";
    Stop::failed(FailureKind::Resources, text, next)
}

impl Engine {
    /// Hands over to another engine, of the program at `binary` or of this one's place. This engine has
    /// ended when that succeeds, but for the answer.
    pub(crate) fn upgrade(self: &Arc<Engine>, binary: Option<&Path>) -> Done<UpgradeReport> {
        let Ok(one) = self.upgrading.try_lock() else {
            return Err(refused("another upgrade is under way"));
        };
        self.check_upgrade()?;
        let binary = match binary {
            Some(path) => path.to_owned(),
            None => own_program().map_err(failed)?,
        };
        let (mut child, line) = start(&binary)?;
        let pid = child.id();
        match self.hand_over_to(&line) {
            Ok(pause) => {
                // A wish to end is not obeyed here any more.
                std::mem::forget(one);
                log!(Level::Info, "engine", "process {pid} has taken over");
                if let Err(e) = supervisor::tell(pid) {
                    log!(
                        Level::Error,
                        "engine",
                        "the supervisor was not told of process {pid}: {e}"
                    );
                }
                self.end_after_answers();
                let pause_us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
                Ok(UpgradeReport { pid, pause_us })
            }
            Err(stop) => {
                // It has nothing but descriptors of its own, and does nothing on its way out.
                drop(line);
                let _ = child.kill();
                let _ = child.wait();
                Err(stop)
            }
        }
    }

    /// What can not be handed over is refused before anybody waits for anything.
    fn check_upgrade(&self) -> Done {
        supervisor::check().map_err(Stop::invalid)?;
        self.check_maps_handover()?;
        for shard in 0..self.shards.len() {
            if let Some(why) = self.on(shard, |shard| shard.never_frozen())? {
                return Err(Stop::invalid(format!("{why}; restart the engine instead")));
            }
        }
        Ok(())
    }

    /// Gives how long clients waited.
    fn hand_over_to(&self, line: &UnixStream) -> Done<Duration> {
        expect(line, START, Kind::Ready, "start")?;
        let commands = self.hold_commands()?;
        // A command may have changed that.
        self.check_upgrade()?;
        // Guests of this run may not go on from any but the next one.
        self.state.forget_run().map_err(failed)?;
        let begin = Instant::now();
        let (mut held, mut held_tls) = (Vec::new(), Vec::new());
        let result =
            self.freeze(begin, &mut held, &mut held_tls).and_then(|(state, descriptors)| {
                let passed = send(line, Kind::State, &state)
                    .and_then(|()| send_descriptors(line, &descriptors));
                passed.map_err(|e| failed(format!("the new engine takes no state: {e}")))?;
                expect(line, TAKE, Kind::Taken, "take over")?;
                // If this fails it has not heard of it, and its end of the line is closed: it is gone.
                send(line, Kind::Go, &[])
                    .map_err(|e| failed(format!("the new engine is gone: {e}")))
            });
        match result {
            Ok(()) => {
                let pause = begin.elapsed();
                // No command is obeyed here any more, and no guest answered.
                std::mem::forget(commands);
                std::mem::forget(held);
                std::mem::forget(held_tls);
                if let Err(stop) = expect(line, RUNNING, Kind::Running, "run") {
                    // It may have done anything: this engine must not go on.
                    let why = crate::restore::text(&stop);
                    log!(Level::Error, "engine", "{why}; ending all the same, as a crash would");
                    std::process::exit(1);
                }
                Ok(pause)
            }
            Err(stop) => {
                self.go_on();
                held_tls.into_iter().for_each(Held::go_on);
                if let Err(e) = self.state.begin_run(self.instance) {
                    log!(Level::Warn, "engine", "guests will not go on: {e}");
                }
                Err(stop)
            }
        }
    }

    /// Lets commands end, and keeps new ones waiting.
    fn hold_commands(&self) -> Done<RwLockWriteGuard<'_, ()>> {
        let end = Instant::now() + COMMANDS;
        loop {
            match self.commands.try_write() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(error)) => return Ok(PoisonError::into_inner(error)),
                Err(TryLockError::WouldBlock) if Instant::now() < end => std::thread::sleep(TICK),
                Err(TryLockError::WouldBlock) => {
                    return Err(refused("commands are being carried out; try again"));
                }
            }
        }
    }

    /// Lets everything come to rest, first what clients have asked for, and freezes it.
    fn freeze(
        &self,
        begin: Instant,
        held: &mut Vec<HeldGuest>,
        held_tls: &mut Vec<Held>,
    ) -> Done<(Zeroizing<Vec<u8>>, Vec<OwnedFd>)> {
        let (guests, files) = self
            .hold_guests(begin + REST, held)
            .map_err(|why| refused(format!("{why}; nothing was changed")))?;
        let mut left = Err("it was not looked at".to_owned());
        while left.is_err() {
            left = self.rest_clients()?;
            in_time(begin, &left)?;
        }
        // Their threads only pass on, and there is nothing left of what was asked for.
        let (tls, tls_files) = loop {
            match self.hold_tls(lock(&self.exports).tls(), held_tls) {
                Ok(frozen) => break frozen,
                Err(why) => in_time(begin, &Err(why))?,
            }
        };
        // A client may have moved between two shards: now it has arrived, or there is none.
        while let Err(why) = self.rest_clients()? {
            in_time(begin, &Err(why))?;
        }
        for shard in 0..self.shards.len() {
            self.on(shard, |shard| shard.pause_peers())?;
        }
        let (mut shards, mut descriptors) = (Vec::new(), Vec::new());
        descriptors.push(self.state.share_lock().map_err(failed)?);
        for shard in 0..self.shards.len() {
            let (frozen, files) = loop {
                match self.on(shard, |shard| shard.freeze())? {
                    Ok(frozen) => break frozen,
                    Err(why) => in_time(begin, &Err(why))?,
                }
            };
            shards.push(frozen);
            descriptors.extend(files);
        }
        let kept = |entry: &Arc<crate::engine::Entry>| {
            let stored = serde_json::to_string(&*lock_stored(entry));
            stored.map(|stored| (stored, entry.shard)).map_err(|e| failed(e.to_string()))
        };
        let resources = self.entries(None).iter().map(kept).collect::<Done<Vec<_>>>()?;
        descriptors.extend(files);
        descriptors.extend(tls_files);
        let (exports, listeners) = lock_exports(self)?;
        let maps = self.freeze_maps().map_err(failed)?;
        let keys = self.keys.all();
        let instance = self.instance;
        let handover =
            Handover { instance, shards, resources, exports, listeners, maps, guests, tls, keys };
        debug_assert_eq!(handover.descriptors(), descriptors.len());
        let state =
            codec::frozen::to_bytes(VERSION, &handover).map_err(|e| failed(e.to_string()))?;
        Ok((Zeroizing::new(state), descriptors))
    }

    /// One look at all shards: what of clients is under way.
    fn rest_clients(&self) -> Done<Result<(), String>> {
        let mut left = Ok(());
        for shard in 0..self.shards.len() {
            if let Some(why) = self.on(shard, |shard| shard.pause_clients())? {
                left = Err(why);
            }
        }
        Ok(left)
    }

    fn go_on(&self) {
        for shard in 0..self.shards.len() {
            if self.on(shard, |shard| shard.resume()).is_err() {
                log!(Level::Error, "engine", "thread {shard} is gone");
            }
        }
    }

    /// Ends the process once those who were answered have heard it. Nothing is closed in order: all
    /// that is open is the other engine's.
    fn end_after_answers(self: &Arc<Engine>) {
        let unanswered = self.unanswered.clone();
        let end = move || {
            // One is held here.
            crate::see_answers_off(&unanswered, 2);
            std::process::exit(0);
        };
        if crate::spawn_named("end", end).is_err() {
            std::process::exit(0);
        }
    }
}

fn lock_stored(entry: &crate::engine::Entry) -> std::sync::MutexGuard<'_, crate::state::Stored> {
    lock(&entry.stored)
}

fn lock_exports(engine: &Engine) -> Done<(String, String)> {
    lock(&engine.exports).kept().map_err(failed)
}

/// Waits a moment, unless all have waited long enough.
fn in_time(begin: Instant, left: &Result<(), String>) -> Done {
    match left {
        Ok(()) => Ok(()),
        Err(_) if begin.elapsed() < REST => {
            std::thread::sleep(TICK);
            Ok(())
        }
        Err(why) => {
            let waited = REST.as_millis();
            Err(refused(format!("not at rest within {waited} ms: {why}; nothing was changed")))
        }
    }
}

/// Waits for a message of the other engine.
fn expect(line: &UnixStream, patience: Duration, kind: Kind, doing: &str) -> Done {
    let timeout = line.set_read_timeout(Some(patience));
    match timeout.and_then(|()| receive(line)) {
        Ok(Some((found, _))) if found == kind => Ok(()),
        Ok(Some((Kind::Failed, why))) => {
            let why = String::from_utf8_lossy(&why).into_owned();
            Err(failed(format!("the new engine can not {doing}: {why}")))
        }
        Ok(Some(_)) => Err(failed("the new engine says something else than was asked")),
        Ok(None) => Err(failed(format!("the new engine has ended before it could {doing}"))),
        Err(e) => Err(failed(format!("the new engine did not {doing} in time: {e}"))),
    }
}

/// Where this program was started from. A package that was updated has put another file there.
fn own_program() -> Result<PathBuf, String> {
    let path = std::env::current_exe().map_err(|e| format!("this program is not found: {e}"))?;
    let name = path.to_string_lossy();
    Ok(name.strip_suffix(" (deleted)").map_or_else(|| path.clone(), PathBuf::from))
}

/// Starts the other engine as this one was started.
fn start(binary: &Path) -> Done<(Child, UnixStream)> {
    let failed = |e| {
        let next = "give --binary the path of an ashlar program";
        let text = format!("{}: can not be started: {e}", binary.display());
        Stop::failed(FailureKind::Io, text, next)
    };
    let (here, there) = UnixStream::pair().map_err(failed)?;
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != HEIR);
    let child = Command::new(binary)
        .args(arguments)
        .arg(HEIR)
        .stdin(Stdio::from(OwnedFd::from(there)))
        .spawn()
        .map_err(failed)?;
    Ok((child, here))
}
