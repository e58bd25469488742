//! Devices that are there while their volumes are not open (`ashlar map --standby`, `ashlar engine --devices`).
//!
//! The first request opens the volume (`shard::volume::standby`): for reading one that reads, for writing one that writes,
//! which promotes the node. When nobody has the device open any more, the volume is closed. No driver tells of that, so a
//! device whose volume is open and that is quiet is looked at. The volume is closed if
//!
//! - the kernel has nothing of it in memory, which it drops when the last one closes a device;
//! - no process has it open, nor the kernel for a loop device or an NVMe target;
//! - no file system, swap or device on top claims it, in whatever namespace (`O_EXCL`);
//! - and since before that no request has come, which the volume's own shard sees to: whoever has come meanwhile remembers
//!   nothing without having asked for it.
//!
//! So whoever is overlooked finds the volume opened anew by the next request, and has seen nothing that is stale.
//! Only the process that caches by itself and is not seen would: an engine that does not see all processes has no such
//! devices.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

use codec::admin::{FailureKind, MapOptions, Standby, StandbyStatus};
use frontend::cache;
use runtime::{Errno, Intent};
use vocab::VolumeNr;

use super::process::within;
use super::{Map, Mapped, State, ublk, users};
use crate::Devices;
use crate::engine::{Done, Engine, Entry, Stop, lock};
use crate::restore::text;
use crate::shard::Shard;
use crate::shard::volume::{Access, StandbyUse};
use logging::{Level, log};

/// How often is looked whether requests have come.
const TICK: Duration = Duration::from_millis(50);
/// A device that is in use and quiet is looked at after so long, then after twice the time, and so on, up to the latter.
const SOON: Duration = Duration::from_millis(100);
const LATE: Duration = Duration::from_secs(2);
/// Looking takes one part in so many of the time at most.
const SHARE: u32 = 50;
/// How long a look may take before others go on without it.
const LOOK: Duration = Duration::from_secs(5);
/// How long programs that look at every device may take, such as udev's.
const PASSING: Duration = Duration::from_secs(2);
/// How long opening a volume may take: promotion asks all peers.
const OPEN: Duration = Duration::from_secs(45);
/// How often volumes are looked for that lack a device.
const SEEK: Duration = Duration::from_secs(1);
/// The number of the first namespace of processes (`PROC_PID_INIT_INO` of the kernel).
const ALL_PROCESSES: &str = "pid:[4026531836]";

/// May look at the open files of all processes.
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// What becomes of a device that nobody uses when its engine is killed. Nobody who could be asked may have left
/// a request in its queue, which must not be carried out after another node has written.
pub(super) const MADE_ANEW: &str = "nobody uses it, it is made anew";

/// A volume.
type Key = (String, u16);

/// Why this engine can have no such devices.
pub(crate) fn usable() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("the engine is not root: it does not see who has a device open".to_owned());
    }
    let status = fs::read_to_string("/proc/self/status").map_err(|e| format!("/proc: {e}"))?;
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    if capabilities.is_none_or(|all| all & CAP_SYS_PTRACE == 0) {
        return Err(
            "the engine may not see who has a device open; it needs CAP_SYS_PTRACE for that"
                .to_owned(),
        );
    }
    let namespace = fs::read_link("/proc/self/ns/pid").map_err(|e| format!("/proc: {e}"))?;
    if namespace.as_os_str() != ALL_PROCESSES {
        return Err(
            "the engine does not see all processes of this machine; have it share the host's (`hostPID`)".to_owned()
        );
    }
    fs::read_dir(users::DEVICES).map_err(|e| format!("{}: {e}", users::DEVICES))?;
    let probe = File::open("/proc/self/exe").map_err(|e| format!("/proc: {e}"))?;
    match cache::pages(&probe) {
        Ok(_) => Ok(()),
        Err(Errno(libc::ENOSYS)) => {
            Err("the kernel does not tell what it has in memory; that takes Linux 6.5".to_owned())
        }
        Err(errno) => Err(format!("cachestat: {errno}")),
    }
}

/// Whether it can, for operators.
pub(crate) fn status() -> StandbyStatus {
    let problem = usable().err();
    StandbyStatus { usable: problem.is_none(), problem }
}

/// Whether this engine is to make devices of all volumes.
///
/// # Errors
/// It is, and can not.
pub(crate) fn for_all(devices: Devices) -> Result<bool, String> {
    let why_not = match devices {
        Devices::No => return Ok(false),
        Devices::Yes => usable().err(),
        Devices::Auto => usable().err().or_else(|| ublk::status().problem),
    };
    match why_not {
        None => Ok(true),
        Some(why) if devices == Devices::Yes => Err(format!("--devices yes: {why}")),
        Some(why) => {
            log!(Level::Info, "engine", "volumes have devices only when they are mapped: {why}");
            Ok(false)
        }
    }
}

/// What a volume is opened for when its device is made.
pub(super) fn intent(options: &MapOptions) -> Intent {
    match options {
        MapOptions { standby: true, .. } => Intent::Standby,
        MapOptions { read_only: true, .. } => Intent::Read,
        _ => Intent::Write,
    }
}

/// A device that may be in nobody's use.
#[derive(Clone)]
struct Candidate {
    key: Key,
    mapped: Arc<Mapped>,
    /// Those that there had been before.
    requests: u64,
}

/// What is remembered of a device whose volume is open.
struct Watch {
    requests: u64,
    /// When to look at it.
    next: Instant,
    pause: Duration,
}

impl Watch {
    /// Requests have come.
    fn stirred(requests: u64) -> Watch {
        Watch { requests, next: Instant::now() + TICK, pause: SOON }
    }

    fn is_used(&mut self, took: Duration) {
        self.next = Instant::now() + self.pause.max(took * SHARE);
        self.pause = (self.pause * 2).min(LATE);
    }
}

/// True if the kernel has nothing of a device in memory, nor waits for anything that it was asked for: a process that was
/// killed may be gone before its last request.
fn is_forgotten(device: &str) -> bool {
    if !users::is_quiet(device) {
        return false;
    }
    let cached = |path| File::open(path).ok().and_then(|file| cache::pages(&file).ok());
    users::nodes(device).into_iter().all(|path| cached(path) == Some(0))
}

/// Devices that nobody has open, by their paths.
fn unused<'a>(devices: &[&'a str]) -> BTreeSet<&'a str> {
    let quiet = |device: &&str| users::claims(device).is_empty() && is_forgotten(device);
    let quiet: Vec<&str> = devices.iter().copied().filter(quiet).collect();
    if quiet.is_empty() {
        return BTreeSet::new();
    }
    let open = users::open_ones(&quiet);
    // Last, and let go of at once: somebody who mounts the device must not meet it.
    let unused = |device: &&str| !open.contains(device) && users::claim(device).is_ok();
    quiet.into_iter().filter(unused).collect()
}

impl Engine {
    /// How a volume is open whose device is there all the time.
    pub(super) fn standby(&self, key: &Key, mapped: &Mapped) -> Option<Standby> {
        let uses = self.standby_uses(mapped.shard, vec![key.clone()]);
        let (_, found) = uses.into_iter().next()?;
        Some(match found.access {
            None => Standby::Closed,
            Some(Access::Read) => Standby::Reading,
            Some(Access::Write) => Standby::Writing,
        })
    }

    /// What there is to tell of the volumes of a shard.
    fn standby_uses(&self, shard: usize, keys: Vec<Key>) -> Vec<(Key, StandbyUse)> {
        let ids: Vec<(Key, u16)> = keys
            .into_iter()
            .filter_map(|key| self.entry(&key.0).ok().map(|entry| (key, entry.id)))
            .collect();
        let uses = self.on(shard, move |shard| {
            let of = |(key, id): (Key, u16)| {
                let target = shard.hosts.get_mut(id)?.target(VolumeNr(key.1))?;
                Some((key, shard.volumes.get(target)?.standby_use()?))
            };
            ids.into_iter().filter_map(of).collect()
        });
        uses.unwrap_or_default()
    }

    /// A device that an earlier engine has left may go on: the volume needs to be open if somebody uses it, and is
    /// then. True in that case.
    pub(super) fn stand_up_if_used(&self, entry: &Entry, nr: VolumeNr, device: &str) -> Done<bool> {
        let path = device.to_owned();
        // One that can not be looked at is in use: opening it waits for the volume.
        let free = within(LOOK, move || !unused(&[&path]).is_empty());
        if free == Some(true) {
            return Ok(false);
        }
        let id = entry.id;
        let opened = move |shard: &mut Shard, ask: bool| {
            let target = shard.hosts.get_mut(id).and_then(|host| host.target(nr));
            let Some(volume) = target.and_then(|target| shard.volumes.get_mut(target)) else {
                return Some(false);
            };
            if ask {
                volume.stand_up(Access::Read);
            }
            volume.standby_is_open()
        };
        let end = Instant::now() + OPEN;
        let mut ask = true;
        while Instant::now() < end {
            match self.on(entry.shard, move |shard| opened(shard, ask))? {
                Some(true) => return Ok(true),
                Some(false) => break,
                None => std::thread::sleep(TICK / 5),
            }
            ask = false;
        }
        let text = format!("{}/{nr} can not be opened, and {device} is in use", entry.name);
        Err(Stop::failed(FailureKind::Io, text, &format!("`ashlar why {}` says why", entry.name)))
    }

    /// All devices that are there all the time, of one resource or of all.
    fn standbys(&self, resource: Option<&str>) -> Vec<(Key, Arc<Mapped>)> {
        let maps = lock(&self.maps);
        let of = |(key, map): (&Key, &Map)| match &map.state {
            State::Mapped(mapped) if map.options.standby => Some((key.clone(), mapped.clone())),
            _ => None,
        };
        let all = maps.by_volume.iter().filter_map(of);
        all.filter(|(key, _)| resource.is_none_or(|name| name == key.0)).collect()
    }

    /// Those of them whose volumes are open.
    fn open_standbys(&self, resource: Option<&str>) -> Vec<Candidate> {
        let all = self.standbys(resource);
        let mut by_shard: BTreeMap<usize, Vec<Key>> = BTreeMap::new();
        for (key, mapped) in &all {
            by_shard.entry(mapped.shard).or_default().push(key.clone());
        }
        let uses = by_shard.into_iter().flat_map(|(shard, keys)| self.standby_uses(shard, keys));
        let uses: BTreeMap<Key, StandbyUse> = uses.collect();
        let open = all.into_iter().filter_map(|(key, mapped)| {
            let StandbyUse { access, requests } = uses.get(&key)?;
            access.map(|_| Candidate { key, mapped, requests: *requests })
        });
        open.collect()
    }

    /// Closes the volumes of those devices that nobody uses, if no other requests have come. Gives those that are
    /// closed now.
    fn close_unused(&self, candidates: &[Candidate]) -> BTreeSet<Key> {
        let devices: Vec<&str> = candidates.iter().map(|c| c.mapped.path.as_str()).collect();
        let unused = unused(&devices);
        let mut closed = BTreeSet::new();
        for Candidate { key, mapped, requests } in candidates {
            if unused.contains(mapped.path.as_str())
                && self.stand_down(key, mapped.shard, *requests)
            {
                closed.insert(key.clone());
            }
        }
        closed
    }

    /// Closes a volume for its device, unless other requests have come. True if it is closed.
    fn stand_down(&self, key: &Key, shard: usize, requests: u64) -> bool {
        // Another process takes over: what this one has must stay as it is.
        let Ok(_running) = self.commands.try_read() else { return false };
        let Ok(entry) = self.entry(&key.0) else { return false };
        let (id, nr) = (entry.id, VolumeNr(key.1));
        let closed = self.on(shard, move |shard| {
            let target = shard.hosts.get_mut(id)?.target(nr)?;
            Some(shard.volumes.get_mut(target)?.stand_down(requests))
        });
        matches!(closed, Ok(Some(true)))
    }

    /// Closes the volumes whose devices nobody uses, of a resource or all, before a command that they would be in the
    /// way of.
    pub(crate) fn settle_standbys(self: &Arc<Self>, resource: Option<&str>) {
        let end = Instant::now() + PASSING;
        loop {
            let open = self.open_standbys(resource);
            if open.is_empty() {
                return;
            }
            // What claims it does not pass by.
            let claimed = |c: &Candidate| !users::claims(&c.mapped.path).is_empty();
            if open.iter().any(claimed) || Instant::now() >= end {
                return;
            }
            let engine = self.clone();
            if within(LOOK, move || engine.close_unused(&open)).is_none() {
                return;
            }
            std::thread::sleep(TICK / 5);
        }
    }

    /// Takes devices away that are there all the time, before what they are devices of.
    ///
    /// # Errors
    /// Somebody uses one.
    pub(super) fn unmap_standbys(&self, entry: &Entry, only: Option<VolumeNr>) -> Done {
        for (key, _) in self.standbys(Some(&entry.name)) {
            if only.is_none_or(|nr| nr.0 == key.1) {
                self.unmap_entry(entry, VolumeNr(key.1))?;
            }
        }
        let concerned = |key: &Key| key.0 == entry.name && only.is_none_or(|nr| nr.0 == key.1);
        lock(&self.maps).declined.retain(|key| !concerned(key));
        Ok(())
    }

    /// Watches the devices that are there all the time, and makes them of all volumes if `all`.
    pub(crate) fn keep_standbys(self: &Arc<Engine>, all: bool) -> Result<(), String> {
        let engine = Arc::downgrade(self);
        let run = move || Keeper { engine, watches: BTreeMap::new(), late: Vec::new() }.run();
        let engine = Arc::downgrade(self);
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
            thread.map(drop).map_err(|e| format!("no thread for devices: {e}"))
        };
        spawn("standby", Box::new(run))?;
        spawn("devices", Box::new(move || seek(&engine, all)))
    }

    /// Takes devices away that nobody uses and that have had another size than their volumes for two rounds: those
    /// whose driver announces none (ublk before Linux 6.16) are made anew. Gives those that have had it for one.
    fn remove_misfits(self: &Arc<Self>, before: BTreeSet<Key>) -> BTreeSet<Key> {
        let mut misfits = BTreeSet::new();
        for (key, mapped) in self.standbys(None) {
            let Ok(entry) = self.entry(&key.0) else { continue };
            let Ok(Some(volume)) = self.geometry(&entry, VolumeNr(key.1)) else { continue };
            let fits = mapped.size().is_none_or(|size| size == volume.size);
            if fits || volume.size.0 == 0 {
                continue;
            }
            let is_closed = self.standby(&key, &mapped) == Some(Standby::Closed);
            if !before.contains(&key) || !is_closed {
                misfits.insert(key);
                continue;
            }
            let Ok(_running) = self.commands.try_read() else { continue };
            let _pass = entry.pass();
            let options = lock(&self.maps).by_volume.get(&key).map(|map| map.options);
            let Some(options) = options else { continue };
            if self.unmap_entry(&entry, VolumeNr(key.1)).is_ok() {
                let state = State::Failed("its volume has another size".to_owned());
                lock(&self.maps).by_volume.insert(key, Map { options, state });
            }
        }
        misfits
    }

    /// Makes the devices that are to be there and are not. `said`: what was in the way before.
    fn make_missing(self: &Arc<Self>, all: bool, said: &mut BTreeMap<Key, String>) {
        let (known, waiting): (BTreeSet<Key>, Vec<(Key, MapOptions)>) = {
            let maps = lock(&self.maps);
            let waiting = maps.by_volume.iter().filter(|(_, map)| map.options.standby);
            let waiting = waiting.filter(|(_, map)| !map.is_there());
            let waiting = waiting.map(|(key, map)| (key.clone(), map.options)).collect();
            (maps.by_volume.keys().chain(&maps.declined).cloned().collect(), waiting)
        };
        let mut missing = waiting;
        if all {
            let options = MapOptions { standby: true, drbd_names: true, ..MapOptions::default() };
            for entry in self.entries(None) {
                let stored = lock(&entry.stored);
                let numbers = stored.config.volumes.iter().map(|volume| volume.nr.0);
                let keys = numbers.map(|nr| (entry.name.clone(), nr));
                missing.extend(keys.filter(|key| !known.contains(key)).map(|key| (key, options)));
            }
        }
        for (key, options) in missing {
            let Ok(_running) = self.commands.try_read() else { return };
            let (resource, nr) = (&key.0, VolumeNr(key.1));
            let Ok(entry) = self.entry(resource) else { continue };
            let _pass = entry.pass();
            let sized = self.geometry(&entry, nr).is_ok_and(|g| g.is_some_and(|g| g.size.0 > 0));
            let is_there = lock(&self.maps).by_volume.get(&key).is_some_and(Map::is_there);
            if !sized || is_there {
                continue;
            }
            match self.map_entry(&entry, nr, options) {
                Ok(_) => _ = said.remove(&key),
                Err(stop) => {
                    let why = text(&stop);
                    if said.get(&key) != Some(&why) {
                        log!(Level::Warn, entry.name, "volume {nr} has no device: {why}");
                        said.insert(key, why);
                    }
                }
            }
        }
    }
}

/// Has devices made for as long as there is an engine.
fn seek(engine: &Weak<Engine>, all: bool) {
    let (mut said, mut misfits) = (BTreeMap::new(), BTreeSet::new());
    loop {
        std::thread::sleep(SEEK);
        let Some(engine) = engine.upgrade() else { return };
        misfits = engine.remove_misfits(misfits);
        engine.make_missing(all, &mut said);
    }
}

/// Looks after the devices whose volumes are open.
struct Keeper {
    engine: Weak<Engine>,
    watches: BTreeMap<Key, Watch>,
    /// Looks that take too long, and at what.
    late: Vec<(BTreeSet<Key>, mpsc::Receiver<()>)>,
}

impl Keeper {
    fn run(mut self) {
        loop {
            // Nothing of it is in a hurry while no volume is open.
            let pause = if self.watches.is_empty() { 2 * TICK } else { TICK };
            std::thread::sleep(pause);
            let Some(engine) = self.engine.upgrade() else { return };
            self.turn(&engine);
        }
    }

    fn turn(&mut self, engine: &Arc<Engine>) {
        self.late.retain(|(_, ended)| ended.try_recv() == Err(mpsc::TryRecvError::Empty));
        let open = engine.open_standbys(None);
        self.watches.retain(|key, _| open.iter().any(|c| c.key == *key));
        let now = Instant::now();
        let mut due = Vec::new();
        for candidate in open {
            if self.late.iter().any(|(keys, _)| keys.contains(&candidate.key)) {
                continue;
            }
            match self.watches.get_mut(&candidate.key) {
                Some(watch) if watch.requests == candidate.requests => {
                    if watch.next <= now {
                        due.push(candidate);
                    }
                }
                _ => {
                    let watch = Watch::stirred(candidate.requests);
                    self.watches.insert(candidate.key.clone(), watch);
                }
            }
        }
        if !due.is_empty() {
            self.look(engine, due);
        }
    }

    fn look(&mut self, engine: &Arc<Engine>, due: Vec<Candidate>) {
        let keys: BTreeSet<Key> = due.iter().map(|candidate| candidate.key.clone()).collect();
        let begun = Instant::now();
        let (tell, ended) = mpsc::channel();
        let engine = engine.clone();
        let run = move || {
            let closed = engine.close_unused(&due);
            drop(tell);
            closed
        };
        match within(LOOK, run) {
            Some(closed) => {
                let took = begun.elapsed();
                for key in keys {
                    if closed.contains(&key) {
                        self.watches.remove(&key);
                    } else if let Some(watch) = self.watches.get_mut(&key) {
                        watch.is_used(took);
                    }
                }
            }
            None => self.late.push((keys, ended)),
        }
    }
}

/// A volume has no such device: whoever asks has to say how.
pub(super) fn refuse_unusable(what: &str) -> Done {
    usable().map_err(|why| {
        Stop::failed(
            FailureKind::Io,
            format!("{what} can have no device with --standby: {why}"),
            "map it without",
        )
    })
}
