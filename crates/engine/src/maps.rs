//! Volumes as block devices of this machine: `ashlar map`, `unmap`, `maps`.
//!
//! - `ublk`: a device of the kernel's ublk driver, from its making to its end.
//! - `process`: the same of a loop device on a file of FUSE, or one of the kernel's NBD client, with a process that outlives
//!   the engine.
//! - `handover`: devices that another process goes on with. `users`: who has a device open. `links`: its names.
//!   `size`: devices follow the sizes of their volumes. `standby`: devices whose volumes are not open all the time.
//!
//! A mapped volume is open for as long as its device exists, because the driver does not tell who
//! opens and closes it: the node is Primary then (if the device can be written), and no other node can
//! write what this one's page cache holds. With `--standby` it is open while somebody uses the device.

mod handover;
mod links;
mod process;
mod size;
pub(crate) mod standby;
mod ublk;
mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use codec::admin::{Face, FaceStatus, FailureKind, MapOptions, MapStatus};
use frontend::ublk::DeviceKey;
use vocab::{Bytes, ConfigError, Minor, Refusal, StateError, VolumeNr};

use crate::engine::{Done, Engine, Entry, Stop, lock, not_kept, while_claimed};
use crate::restore::text;
use crate::state::StoredMap;
use links::Links;
use logging::{Level, log};
use size::Watch;
pub(crate) use ublk::refused;

/// How long a start tries to bring devices back: their volumes need peers, and peers need time. As long as
/// I/O of a loop device waits for an engine.
const RESTORE: Duration = Duration::from_secs(120);
/// How often it tries: I/O waits for it.
const RETRY: Duration = Duration::from_millis(100);

/// A device.
#[derive(Debug)]
struct Mapped {
    /// The block device.
    path: String,
    links: Links,
    shard: usize,
    /// Holds the volume open.
    key: DeviceKey,
    kind: Kind,
    /// Hears of the resource, for the size of the volume.
    watch: Watch,
}

/// What there is to a device beyond that.
#[derive(Debug)]
enum Kind {
    /// The driver's number.
    Ublk(u32),
    Process(process::Process),
}

/// What an earlier engine has left of a volume.
enum Leftover {
    Ublk(ublk::Leftover),
    Process(process::Leftover),
}

impl Leftover {
    /// The device.
    fn path(&self) -> &str {
        match self {
            Leftover::Ublk(left) => &left.path,
            Leftover::Process(left) => &left.path,
        }
    }

    /// Takes it away, whoever uses it.
    fn remove(self) {
        match self {
            Leftover::Ublk(left) => left.remove(),
            Leftover::Process(left) => left.remove(),
        }
    }
}

impl Mapped {
    /// The size of the device; `None` if that can not be seen.
    fn size(&self) -> Option<Bytes> {
        match &self.kind {
            Kind::Ublk(number) => ublk::size(*number),
            Kind::Process(process) => process.size(),
        }
    }

    fn face(&self) -> Face {
        match &self.kind {
            Kind::Ublk(_) => Face::Ublk,
            Kind::Process(process) => process.face(),
        }
    }
}

/// Ways to make block devices, the best one first, and why one can not be used.
pub(crate) fn faces() -> Vec<FaceStatus> {
    vec![ublk::status(), process::status(Face::Nbd), process::status(Face::Fuse)]
}

/// The volumes that are mapped, or are to be.
#[derive(Default)]
pub(crate) struct Maps {
    by_volume: BTreeMap<(String, u16), Map>,
    /// Where all volumes have devices: those that an operator took the device away of.
    declined: BTreeSet<(String, u16)>,
}

struct Map {
    options: MapOptions,
    state: State,
}

enum State {
    Mapped(Arc<Mapped>),
    /// Since the start of the engine it could not be mapped; why.
    Failed(String),
}

impl Map {
    /// As it was asked for, and its device if there is one.
    fn there(&self) -> (MapOptions, Option<Arc<Mapped>>) {
        match &self.state {
            State::Mapped(mapped) => (self.options, Some(mapped.clone())),
            State::Failed(_) => (self.options, None),
        }
    }

    fn is_there(&self) -> bool {
        matches!(self.state, State::Mapped(_))
    }
}

impl Engine {
    /// Makes a block device of a volume.
    pub(crate) fn map(
        self: &Arc<Self>,
        resource: &str,
        nr: VolumeNr,
        options: MapOptions,
    ) -> Done<MapStatus> {
        check(&options)?;
        let entry = self.entry(resource)?;
        let _pass = entry.pass();
        self.map_entry(&entry, nr, options)
    }

    /// The same, for those who hold the pass of the resource.
    fn map_entry(
        self: &Arc<Self>,
        entry: &Entry,
        nr: VolumeNr,
        options: MapOptions,
    ) -> Done<MapStatus> {
        let key = (entry.name.clone(), nr.0);
        let there = lock(&self.maps).by_volume.get(&key).map(Map::there);
        let fresh = there.is_none();
        let options = match there {
            // What was chosen for it is kept, unless it is chosen now.
            Some((there, _)) => MapOptions { face: options.face.or(there.face), ..options },
            None => options,
        };
        if let Some((there, mapped)) = there {
            match mapped {
                // One that opens its volume when it is used does for who wants one that is open at once.
                Some(mapped) if there == options || there == there.as_standby_of(options) => {
                    return Ok(self.map_status(&key, there, &mapped));
                }
                None if there == options => {}
                mapped => {
                    let how = mapped.map_or_else(
                        || "is to be mapped".to_owned(),
                        |mapped| format!("is mapped as {} already", mapped.path),
                    );
                    let detail =
                        format!("{}/{nr} {how}, with other options; unmap it first", entry.name);
                    return Err(Refusal::config(ConfigError::Exists, detail).into());
                }
            }
        }
        if options.standby {
            standby::refuse_unusable(&format!("{}/{nr}", entry.name))?;
        }
        let minor = self.minor_of(entry, nr)?;
        let names = options.drbd_names.then_some(minor);
        let links = Links::new(&entry.name, nr, names).map_err(|e| {
            Stop::failed(FailureKind::Io, e, "remove it, or map without --drbd-names")
        })?;
        let mapped = match choose(&format!("{}/{nr}", entry.name), &options, fresh)? {
            Face::Ublk => self.make_ublk(entry, nr, minor, options, links)?,
            face @ (Face::Nbd | Face::Fuse) => {
                self.make_by_process(entry, nr, minor, face, options, links)?
            }
        };
        let mapped = Arc::new(mapped);
        // The next engine is not to choose otherwise.
        let options = MapOptions { face: Some(mapped.face()), ..options };
        log!(Level::Info, entry.name, "volume {nr} is mapped as {}", mapped.path);
        let answer = self.map_status(&key, options, &mapped);
        let mut maps = lock(&self.maps);
        maps.declined.remove(&key);
        maps.by_volume.insert(key, Map { options, state: State::Mapped(mapped) });
        self.keep_maps(&maps)?;
        Ok(answer)
    }

    /// Takes the device of a volume away, unless somebody has it open.
    pub(crate) fn unmap(&self, resource: &str, nr: VolumeNr) -> Done {
        let entry = self.entry(resource)?;
        let _pass = entry.pass();
        self.unmap_entry(&entry, nr)?;
        lock(&self.maps).declined.insert((entry.name.clone(), nr.0));
        Ok(())
    }

    /// The same, for those who hold the pass of the resource.
    fn unmap_entry(&self, entry: &Entry, nr: VolumeNr) -> Done {
        let key = (entry.name.clone(), nr.0);
        let Some((_, found)) = lock(&self.maps).by_volume.get(&key).map(Map::there) else {
            return Err(Stop::invalid(format!("{}/{nr} is not mapped", entry.name)));
        };
        if let Some(mapped) = found {
            let hold = hold(&mapped.path)?;
            match &mapped.kind {
                Kind::Ublk(number) => {
                    self.stop_unused_ublk(&mapped, *number, hold)?;
                    self.delete_ublk(&mapped, *number, true);
                }
                Kind::Process(process) => self.end_by_process(&mapped, process, Some(hold))?,
            }
            log!(Level::Info, entry.name, "volume {nr} is not mapped any more");
        } else if let Some(left) = self.leftover(entry, nr)? {
            drop(hold(left.path())?);
            left.remove();
        }
        let mut maps = lock(&self.maps);
        maps.by_volume.remove(&key);
        self.keep_maps(&maps)
    }

    /// All mapped volumes, and those that are to be.
    pub(crate) fn map_list(&self) -> Vec<MapStatus> {
        let maps: Vec<_> = {
            let maps = lock(&self.maps);
            let state = |map: &Map| match &map.state {
                State::Mapped(mapped) => Ok(mapped.clone()),
                State::Failed(why) => Err(why.clone()),
            };
            maps.by_volume.iter().map(|(key, map)| (key.clone(), map.options, state(map))).collect()
        };
        let shown = maps.into_iter().map(|(key, options, state)| match state {
            Ok(mapped) => self.map_status(&key, options, &mapped),
            Err(why) => MapStatus {
                resource: key.0,
                volume: VolumeNr(key.1),
                device: None,
                links: Vec::new(),
                read_only: options.read_only,
                face: options.face.unwrap_or(Face::Ublk).name().to_owned(),
                users: Vec::new(),
                problem: Some(why),
                features: Vec::new(),
                reads_in_place: 0,
                standby: None,
            },
        });
        shown.collect()
    }

    /// Refuses what would take a mapped volume away. Devices that are there all the time go, unless somebody uses one;
    /// for those who hold the pass of the resource.
    pub(crate) fn check_not_mapped(&self, resource: &str, only: Option<VolumeNr>) -> Done {
        let entry = self.entry(resource)?;
        self.unmap_standbys(&entry, only)?;
        let concerned: Vec<(u16, Option<Arc<Mapped>>)> = {
            let maps = lock(&self.maps);
            let concerned = maps.by_volume.iter().filter(|((name, nr), _)| {
                name == resource && only.is_none_or(|only| only.0 == *nr)
            });
            concerned.map(|((_, nr), map)| (*nr, map.there().1)).collect()
        };
        let mut found = None;
        for (nr, mapped) in concerned {
            // One that waits for this engine would go on with whatever the volume is by then.
            let path = match mapped {
                Some(mapped) => Some(mapped.path.clone()),
                None => self.leftover(&entry, VolumeNr(nr))?.map(|left| left.path().to_owned()),
            };
            found = path.map(|path| (nr, path)).or(found);
        }
        let Some((nr, path)) = found else { return Ok(()) };
        let detail = format!(
            "{resource}/{nr} is mapped as {path}; `ashlar unmap {resource}/{nr}` takes the device away"
        );
        Err(Refusal::state(StateError::DeviceInUse, detail).into())
    }

    fn leftover(&self, entry: &Entry, nr: VolumeNr) -> Done<Option<Leftover>> {
        if let Some(left) = self.ublk_leftover(entry, nr) {
            return Ok(Some(Leftover::Ublk(left)));
        }
        Ok(self.process_leftover(entry, nr)?.map(Leftover::Process))
    }

    /// Takes devices away at the engine's end, whoever uses them. What is kept stays.
    pub(crate) fn take_maps_down(&self) {
        let maps = std::mem::take(&mut lock(&self.maps).by_volume);
        for ((resource, nr), map) in maps {
            let State::Mapped(mapped) = map.state else { continue };
            for user in users::of(&mapped.path) {
                log!(Level::Warn, resource, "{} goes away under {user}", mapped.path);
            }
            let ended = match &mapped.kind {
                Kind::Ublk(number) => self
                    .stop_ublk(&mapped, *number)
                    .map(|()| self.delete_ublk(&mapped, *number, false)),
                Kind::Process(process) => self.end_by_process(&mapped, process, None),
            };
            if let Err(stop) = ended {
                log!(Level::Warn, resource, "volume {nr} stays mapped: {}", text(&stop));
            }
        }
    }

    /// Brings devices back in the background: their volumes can be opened once peers are there.
    pub(crate) fn restore_maps(self: &Arc<Engine>) -> Result<(), String> {
        let mut missing = self.state.maps()?;
        if missing.is_empty() {
            return Ok(());
        }
        {
            let mut maps = lock(&self.maps);
            for StoredMap { resource, volume, options } in &missing {
                let state = State::Failed("the engine has just started".to_owned());
                maps.by_volume
                    .insert((resource.clone(), *volume), Map { options: *options, state });
            }
        }
        let engine = self.clone();
        let run = move || {
            let end = Instant::now() + RESTORE;
            loop {
                missing.retain(|map| !engine.restore_map(map));
                // Those that need nobody are made when there is something to make them of.
                if missing.is_empty() || Instant::now() >= end {
                    break;
                }
                std::thread::sleep(RETRY);
            }
            for StoredMap { resource, volume, options } in missing {
                engine.end_wait(&resource, VolumeNr(volume));
                if options.standby {
                    continue;
                }
                log!(
                    Level::Error,
                    resource,
                    "volume {volume} is not mapped again; `ashlar maps` says why, `ashlar map \
                     {resource}/{volume}` tries again"
                );
            }
        };
        let thread = std::thread::Builder::new().name("maps".to_owned()).spawn(run);
        thread.map(drop).map_err(|e| format!("no thread to map volumes: {e}"))
    }

    /// Nobody hangs for ever on a device whose I/O waits for a volume: it is taken away. That of a loop
    /// device fails by itself.
    fn end_wait(&self, resource: &str, nr: VolumeNr) {
        let Ok(entry) = self.entry(resource) else { return };
        let _pass = entry.pass();
        if lock(&self.maps).by_volume.get(&(resource.to_owned(), nr.0)).is_none_or(Map::is_there) {
            return;
        }
        if let Some(left) = self.ublk_leftover(&entry, nr) {
            log!(Level::Error, resource, "{} goes away under its users", left.path);
            left.remove();
        }
    }

    /// True if there is nothing left to do for a volume that was mapped.
    fn restore_map(self: &Arc<Self>, map: &StoredMap) -> bool {
        let key = (map.resource.clone(), map.volume);
        let result = self.entry(&map.resource).and_then(|entry| {
            let _pass = entry.pass();
            // Meanwhile an operator may have unmapped it, or mapped it otherwise.
            match lock(&self.maps).by_volume.get(&key).map(|map| &map.state) {
                Some(State::Failed(_)) => {}
                Some(State::Mapped(_)) | None => return Ok(()),
            }
            self.map_entry(&entry, VolumeNr(map.volume), map.options).map(drop)
        });
        let Err(stop) = result else { return true };
        if let Some(Map { state: State::Failed(why), .. }) =
            lock(&self.maps).by_volume.get_mut(&key)
        {
            *why = text(&stop);
        }
        false
    }

    fn keep_maps(&self, maps: &Maps) -> Done {
        let stored = maps.by_volume.iter().map(|((resource, volume), map)| StoredMap {
            resource: resource.clone(),
            volume: *volume,
            options: map.options,
        });
        self.state.put_maps(stored.collect()).map_err(not_kept)
    }

    fn minor_of(&self, entry: &Entry, nr: VolumeNr) -> Done<Minor> {
        let stored = lock(&entry.stored);
        let found = stored.config.volumes.iter().find(|volume| volume.nr == nr);
        found.map(|volume| volume.minor).ok_or_else(|| {
            let detail = format!("resource {} has no volume {nr}", entry.name);
            Refusal::config(ConfigError::MinorInvalid, detail).into()
        })
    }
}

fn check(options: &MapOptions) -> Done {
    let MapOptions { queues, depth, .. } = *options;
    if options.standby && options.read_only {
        let detail = "a device that stands by can be written; leave --standby or --read-only out";
        return Err(Stop::invalid(detail));
    }
    if !(1..=MapOptions::QUEUES_MAX).contains(&queues) {
        let detail = format!("give 1 to {} queues, not {queues}", MapOptions::QUEUES_MAX);
        return Err(Stop::invalid(detail));
    }
    if !(1..=MapOptions::DEPTH_MAX).contains(&depth) {
        let detail = format!("give a depth of 1 to {}, not {depth}", MapOptions::DEPTH_MAX);
        return Err(Stop::invalid(detail));
    }
    Ok(())
}

/// The way to make a device: the one that is wished for, or the best one that there is. `fresh` if nothing of it
/// is kept from before.
fn choose(what: &str, options: &MapOptions, fresh: bool) -> Done<Face> {
    let face = match options.face {
        Some(face) => face,
        None => {
            let usable = faces().into_iter().zip(Face::ALL).find(|(status, _)| status.usable);
            // Without any, the best one says what it lacks.
            usable.map_or(Face::Ublk, |(_, face)| face)
        }
    };
    let one = match face {
        Face::Ublk => return Ok(face),
        Face::Nbd => "a device of the kernel's NBD client",
        Face::Fuse => "a loop device",
    };
    if options.queues > 1 {
        return Err(Stop::invalid(format!("{what}: {one} has one queue; leave --queues out")));
    }
    if face == Face::Nbd && options.depth != process::DEPTH_MAX {
        let detail =
            format!("{what}: {one} has a depth of {}; leave --depth out", process::DEPTH_MAX);
        return Err(Stop::invalid(detail));
    }
    // Engines before took more and used this, and what they have kept comes back.
    if fresh && options.depth > process::DEPTH_MAX {
        let detail = format!("{what}: {one} has a depth of at most {}", process::DEPTH_MAX);
        return Err(Stop::invalid(detail));
    }
    Ok(face)
}

/// Claims a device that is to be taken away, so that nobody mounts it in between. Programs that look at
/// every new or changed device, such as udev's, are done in a moment.
fn hold(path: &str) -> Done<File> {
    let passing = ["process ", "something claims it"];
    let is_passing =
        |who: &String| who.split(", ").all(|who| passing.iter().any(|p| who.starts_with(p)));
    while_claimed(is_passing, || users::hold(path)).map_err(|who| in_use(path, &who))
}

fn in_use(path: &str, who: &str) -> Stop {
    let detail = format!("{path} is in use: {who}; end that first");
    Stop::Refused(Refusal::state(StateError::DeviceInUse, detail))
}

impl Engine {
    fn map_status(&self, key: &(String, u16), options: MapOptions, mapped: &Mapped) -> MapStatus {
        let problem = match &mapped.kind {
            Kind::Ublk(_) => None,
            Kind::Process(process) => self.process_problem(mapped, process),
        };
        let (features, reads_in_place) = match &mapped.kind {
            Kind::Ublk(number) => self.ublk_use(mapped, *number),
            Kind::Process(_) => (Vec::new(), 0),
        };
        MapStatus {
            resource: key.0.clone(),
            volume: VolumeNr(key.1),
            device: Some(mapped.path.clone()),
            links: mapped.links.names(),
            read_only: options.read_only,
            face: mapped.face().name().to_owned(),
            users: users::of(&mapped.path),
            problem,
            features,
            reads_in_place,
            standby: options.standby.then(|| self.standby(key, mapped)).flatten(),
        }
    }
}
