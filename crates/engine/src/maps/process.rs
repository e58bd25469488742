//! A volume as a device that is served by a process of its own (the crate `face`): a loop device on its file, or a
//! device of the kernel's NBD client.
//!
//! ```text
//! open the volume ──► process ──► connect and serve it ──┬─► its file appears ──► loop device on it
//!                                                        └─► it has the kernel make a device
//! ```
//!
//! The process and the device outlive an engine that is killed. The next one finds them by the
//! directory, which has the device's name, and goes on with them if the volume is as it was: if somebody else
//! has written meanwhile, what the device's users remember of it is no more, so the device is taken
//! away under them and a new one is made.
//!
//! Nothing here may wait for the device on a thread that serves it: what could, runs on a thread that
//! is left behind after a while.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use codec::admin::{Face, FaceStatus, FailureKind, MapOptions};
use frontend::nbd::server::Parting;
use frontend::ublk::DeviceKey;
use frontend::{loopdev, nbddev};
use runtime::Errno;
use rustix::mount::{UnmountFlags, unmount};
use vocab::{Bytes, ConnState, Minor, VolumeNr};

use super::links::Links;
use super::size::Resize;
use super::ublk::close;
use super::{Kind, Mapped, standby};
use crate::engine::{Done, Engine, Entry, Stop, lock};
use crate::shard::Shard;
use logging::{Level, log};

/// The kernel's driver for file systems in user space.
const FUSE: &str = "/dev/fuse";
/// Where the processes have their directories, below the state's.
const DIRECTORIES: &str = "faces";
/// The name of the device, in a directory.
const DEVICE_NAME: &str = "device";
/// Most requests in flight: what a loop device has room for, and one of the kernel's NBD client always has.
pub(super) const DEPTH_MAX: u16 = 128;
/// How long a device may wait for the next engine. Long enough for a restart whose volume needs a
/// peer, short enough that nobody hangs for ever.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a process may take to serve its file.
const START: Duration = Duration::from_secs(10);
/// How long a device waits for peers that do not come. Those that are there come in less than a second.
const PEERS: Duration = Duration::from_secs(3);
/// How long making and flushing a device may take: both go through the volume.
const DEVICE: Duration = Duration::from_secs(45);
/// How long the kernel may take to let go of a device.
const FREED: Duration = Duration::from_secs(5);
/// How often is looked.
const TICK: Duration = Duration::from_millis(5);

/// What the kernel makes the device of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Front {
    /// A loop device on a file of FUSE.
    Loop,
    /// Its NBD client.
    Nbd,
}

impl Front {
    const fn of(face: Face) -> Front {
        match face {
            Face::Nbd => Front::Nbd,
            Face::Fuse | Face::Ublk => Front::Loop,
        }
    }

    const fn face(self) -> Face {
        match self {
            Front::Loop => Face::Fuse,
            Front::Nbd => Face::Nbd,
        }
    }

    fn usable(self) -> Result<(), String> {
        match self {
            Front::Loop => loop_usable(),
            Front::Nbd => nbddev::usable(),
        }
    }

    /// Takes a device away, whoever uses it.
    fn detach(self, path: &str) -> io::Result<()> {
        match (self, nbd_number(path)) {
            (Front::Loop, _) => loopdev::detach(path),
            (Front::Nbd, Some(number)) => nbddev::Control::open()?.disconnect(number),
            (Front::Nbd, None) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The kernel is done with a device that was taken away.
    fn is_free(self, path: &str) -> bool {
        match self {
            Front::Loop => loopdev::is_free(path),
            Front::Nbd => nbd_number(path).and_then(nbddev::identifier).is_none(),
        }
    }

    /// Bytes of what the process behind a directory serves, as the kernel knows them.
    fn size(self, directory: &Path) -> Option<u64> {
        match self {
            Front::Loop => fs::metadata(directory.join(face::FILE)).ok().map(|file| file.len()),
            Front::Nbd => nbddev::size(nbd_at(directory)?),
        }
    }
}

fn nbd_number(path: &str) -> Option<u32> {
    path.strip_prefix("/dev/nbd")?.parse().ok()
}

/// The number of the device of a directory's process, if it is connected.
fn nbd_at(directory: &Path) -> Option<u32> {
    let number = fs::read_to_string(directory.join(face::NBD_DEVICE)).ok()?.parse().ok()?;
    let whose = nbddev::identifier(number)?;
    (Path::new(&whose) == directory).then_some(number)
}

/// Where the process behind a device is found.
#[derive(Clone)]
struct Place {
    directory: PathBuf,
    front: Front,
    /// The name of its connection among the NBD clients.
    client: String,
}

/// The process behind a device.
pub(super) struct Process {
    place: Place,
    /// If this engine has started it.
    child: Mutex<Option<Child>>,
}

impl Process {
    pub(super) const fn face(&self) -> Face {
        self.place.front.face()
    }

    /// What it serves, as the kernel knows it.
    pub(super) fn size(&self) -> Option<Bytes> {
        self.place.front.size(&self.place.directory).map(Bytes)
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Process({})", self.place.directory.display())
    }
}

/// What an earlier engine has left.
pub(super) struct Leftover {
    /// The device.
    pub(super) path: String,
    front: Front,
    directory: PathBuf,
}

/// Whether the kernel has what a face takes.
pub(super) fn status(face: Face) -> FaceStatus {
    let problem = Front::of(face).usable().err();
    let (name, usable) = (face.name().to_owned(), problem.is_none());
    FaceStatus { name, usable, problem, features: Vec::new() }
}

fn loop_usable() -> Result<(), String> {
    for (path, module) in [(FUSE, "fuse"), (loopdev::CONTROL, "loop")] {
        match OpenOptions::new().read(true).write(true).open(path) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(format!(
                    "{path} does not exist; load the kernel's driver: `modprobe {module}`"
                ));
            }
            Err(e) => return Err(format!("{path} can not be opened: {e}")),
        }
    }
    Ok(())
}

fn failed(what: &str, why: impl std::fmt::Display, next: &str) -> Stop {
    Stop::failed(FailureKind::Io, format!("{what}: {why}"), next)
}

/// Runs what may wait for a device, for so long at most. `None` if it takes longer: it goes on.
pub(super) fn within<T: Send + 'static>(
    patience: Duration,
    run: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tell, told) = mpsc::channel();
    let thread = std::thread::Builder::new().name("device".to_owned());
    thread.spawn(move || _ = tell.send(run())).ok()?;
    told.recv_timeout(patience).ok()
}

/// Looks until something holds; false if it does not in that time.
fn wait(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + patience;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(TICK);
    }
}

/// The device that an engine has made by means of a directory, if it is still there.
fn leftover_at(directory: &Path) -> Option<Leftover> {
    let directory = directory.to_owned();
    if let Some(number) = nbd_at(&directory) {
        return Some(Leftover { path: nbddev::path(number), front: Front::Nbd, directory });
    }
    let name = fs::read_to_string(directory.join(DEVICE_NAME)).ok()?;
    let path = find_device(name)?;
    Some(Leftover { path, front: Front::Loop, directory })
}

/// The device of that name, if there is one.
fn find_device(name: String) -> Option<String> {
    // Opening a device whose partitions are to be read would wait for the volume.
    within(FREED, move || {
        for entry in fs::read_dir("/sys/block").ok()?.flatten() {
            let Ok(device) = entry.file_name().into_string() else { continue };
            let file = fs::read_to_string(entry.path().join("loop/backing_file"));
            let path = format!("/dev/{device}");
            if file.is_ok_and(|file| file.contains("/volume")) && loopdev::has_name(&path, &name) {
                return Some(path);
            }
        }
        None
    })?
}

impl Leftover {
    /// Takes it away, whoever uses it.
    pub(super) fn remove(self) {
        if let Err(e) = self.front.detach(&self.path) {
            log!(Level::Warn, "engine", "{} stays: {e}", self.path);
        }
        remove_directory(&self.directory);
    }
}

/// Ends the process of a directory, if there is one, and removes what it leaves.
fn remove_directory(directory: &Path) {
    if let Err(e) = face::tell_end(directory) {
        log!(Level::Warn, "engine", "{}: its process does not end: {e}", directory.display());
    }
    // Where the process was killed, its mount is left.
    let _ = unmount(directory.join(face::MOUNT), UnmountFlags::DETACH);
    if let Err(e) = fs::remove_dir_all(directory)
        && e.kind() != io::ErrorKind::NotFound
    {
        log!(Level::Warn, "engine", "{} stays: {e}", directory.display());
    }
}

impl Engine {
    /// Opens the volume and makes its device, or goes on with the one that is there.
    pub(super) fn make_by_process(
        self: &Arc<Self>,
        entry: &Entry,
        nr: VolumeNr,
        minor: Minor,
        face: Face,
        options: MapOptions,
        links: Links,
    ) -> Done<Mapped> {
        let what = format!("{}/{nr}", entry.name);
        let usable = Front::of(face).usable();
        usable.map_err(|e| failed(&what, e, "`ashlar info` shows all ways there are"))?;
        if self.process_leftover(entry, nr)?.is_some() {
            self.wait_for_peers(entry)?;
        }
        let (key, target) = self.open_volume(entry, nr, standby::intent(&options))?;
        let shard = entry.shard;
        if target.size.0 == 0 {
            self.on(shard, move |shard| close(shard, key))?;
            return Err(Stop::invalid(format!(
                "{what} has no size yet; attach a disk, or connect"
            )));
        }
        let process = self.adopt_process(entry, nr, minor, face);
        let made = self.device(entry, nr, &options, &process).and_then(|path| {
            let linked = links.make(&path);
            linked.map_err(|e| failed(&what, e, "see to /dev, then repeat it")).map(|()| path)
        });
        match made {
            Ok(path) => {
                let (kind, watch) = (Kind::Process(process), self.watch_size(&entry.name));
                let mapped = Mapped { path, links, shard, key, kind, watch };
                self.follow_process(entry, nr, options, &mapped);
                Ok(mapped)
            }
            Err(stop) => {
                if let Some(left) = leftover_at(&process.place.directory) {
                    let _ = left.front.detach(&left.path);
                }
                self.end_process(&process, shard, key)?;
                Err(stop)
            }
        }
    }

    /// The process of a volume, which this engine has not started yet, or never will.
    pub(super) fn adopt_process(
        &self,
        entry: &Entry,
        nr: VolumeNr,
        minor: Minor,
        face: Face,
    ) -> Process {
        let client = format!("map {}/{nr}", entry.name);
        let (directory, front) = (self.face_directory(minor), Front::of(face));
        Process { place: Place { directory, front, client }, child: Mutex::new(None) }
    }

    /// The device, with its process served. The volume is open.
    fn device(
        &self,
        entry: &Entry,
        nr: VolumeNr,
        options: &MapOptions,
        process: &Process,
    ) -> Done<String> {
        let what = format!("{}/{nr}", entry.name);
        let directory = &process.place.directory;
        if let Some(left) = leftover_at(directory) {
            // Nobody else can write from here on: the volume is open.
            let is_used = !options.standby || self.stand_up_if_used(entry, nr, &left.path)?;
            if !is_used {
                log!(Level::Info, entry.name, "volume {nr}: {}: {}", left.path, standby::MADE_ANEW);
            } else if !self.is_as_it_was(entry, nr)? {
                log!(
                    Level::Error,
                    entry.name,
                    "{} goes away under its users: the data of volume {nr} are not what they were \
                     when the last engine was killed",
                    left.path
                );
            } else if left.front == process.place.front
                && self.serve_process(entry, nr, options, &process.place).is_ok()
            {
                log!(Level::Info, entry.name, "volume {nr}: {} goes on", left.path);
                return Ok(left.path);
            } else {
                log!(Level::Error, entry.name, "{}: its process has given up", left.path);
            }
            left.remove();
        }
        remove_directory(directory);
        let no_process = |e: io::Error| {
            let path = directory.display();
            failed(&what, format!("no process in {path}: {e}"), "see to what it says")
        };
        let (front, block) = (process.place.front, self.block_size(entry, nr)?);
        self.start_process(options, process, block).map_err(no_process)?;
        self.serve_process(entry, nr, options, &process.place)?;
        let file = directory.join(face::FILE);
        if !wait(START, || front.size(directory).is_some()) {
            let said = fs::read_to_string(directory.join("log")).unwrap_or_default();
            let what_of = match front {
                Front::Loop => format!("serve {}", file.display()),
                Front::Nbd => "have the kernel make a device".to_owned(),
            };
            let why = format!("its process does not {what_of}: {}", said.trim());
            return Err(failed(&what, why, "see to what it says"));
        }
        if let Some(number) = nbd_at(directory) {
            return Ok(nbddev::path(number));
        }
        // Of its own: a device that was taken away under its users stays until they close it.
        let name = format!("ashlar-{:016x}", crate::random::seed());
        fs::write(directory.join(DEVICE_NAME), &name).map_err(no_process)?;
        let read_only = options.read_only;
        let attached = within(DEVICE, move || {
            let file = OpenOptions::new().read(true).write(!read_only).open(file)?;
            loopdev::attach(&file, read_only, block, &name)
        });
        match attached {
            Some(Ok(path)) => Ok(path),
            Some(Err(e)) => {
                let why = format!("no loop device: {e}");
                Err(failed(&what, why, "the kernel's log (`dmesg`) may say more"))
            }
            None => Err(failed(
                &what,
                "making a loop device takes too long",
                "look at `ashlar why`: a volume that waits keeps its device waiting",
            )),
        }
    }

    /// By volume, and the same in the next run.
    fn face_directory(&self, minor: Minor) -> PathBuf {
        self.state.path().join(DIRECTORIES).join(format!("minor-{minor}"))
    }

    /// The device that an earlier engine has left of a volume.
    pub(super) fn process_leftover(&self, entry: &Entry, nr: VolumeNr) -> Done<Option<Leftover>> {
        Ok(leftover_at(&self.face_directory(self.minor_of(entry, nr)?)))
    }

    /// Waits a moment for peers before a device goes on: one of them may have been Primary since the
    /// last engine was killed, and this node does not know before they have met.
    pub(crate) fn wait_for_peers(&self, entry: &Entry) -> Done {
        let end = Instant::now() + PEERS;
        loop {
            let status = self.status_of(entry)?;
            let settled = |state| [ConnState::Connected, ConnState::StandAlone].contains(&state);
            if status.connections.iter().all(|c| settled(c.connection_state))
                || Instant::now() >= end
            {
                return Ok(());
            }
            std::thread::sleep(TICK);
        }
    }

    /// True if nobody has changed the volume since this engine was started.
    pub(crate) fn is_as_it_was(&self, entry: &Entry, nr: VolumeNr) -> Done<bool> {
        let id = entry.id;
        self.on(entry.shard, move |shard| {
            shard.hosts.get_mut(id).is_some_and(|host| host.is_as_it_was(nr))
        })
    }

    fn block_size(&self, entry: &Entry, nr: VolumeNr) -> Done<u32> {
        Ok(self.geometry(entry, nr)?.map_or(512, |target| target.block_size_min))
    }

    /// Starts the process. It leaves the engine's group, so that what ends the engine by a key or a
    /// signal to its group spares it.
    fn start_process(&self, options: &MapOptions, process: &Process, block: u32) -> io::Result<()> {
        let directory = &process.place.directory;
        let parent = directory.parent().unwrap_or(directory);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory.join(face::MOUNT))?;
        fs::set_permissions(parent, fs::Permissions::from_mode(0o700))?;
        let log = File::create(directory.join("log"))?;
        // The file this process runs, even where another one has been installed in its place.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("ashlar").arg("face").arg("--directory").arg(directory);
        command.args(["--depth", &options.depth.min(DEPTH_MAX).to_string()]);
        command.args(["--patience", &PATIENCE.as_secs().to_string()]);
        if options.read_only {
            command.arg("--read-only");
        }
        if process.place.front == Front::Nbd {
            command.args(["--nbd", &block.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        // A folder of the engine's is none of its business, and could not be unmounted.
        command.current_dir("/");
        let mut child = command.spawn()?;
        let alive =
            wait(START, || face::is_alive(directory) || matches!(child.try_wait(), Ok(Some(_))));
        let ended = child.try_wait()?;
        *lock(&process.child) = Some(child);
        match (alive, ended) {
            (true, None) => Ok(()),
            (true, Some(status)) => {
                let said = fs::read_to_string(directory.join("log")).unwrap_or_default();
                Err(io::Error::other(format!("{status}: {}", said.trim())))
            }
            (false, _) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Has the volume's shard answer what the process asks. The newest connection counts.
    fn serve_process(
        &self,
        entry: &Entry,
        nr: VolumeNr,
        options: &MapOptions,
        place: &Place,
    ) -> Done {
        let what = format!("{}/{nr}", entry.name);
        let no = |e: &dyn std::fmt::Display| {
            failed(
                &what,
                format!("its process can not be served: {e}"),
                "unmap it and map it again",
            )
        };
        let stream = face::connect(&place.directory).map_err(|e| no(&e))?;
        let (id, name, intent) = (entry.id, place.client.clone(), standby::intent(options));
        let joined = self.on(entry.shard, move |shard| {
            let Shard { nbd, io, volumes, hosts, .. } = shard;
            let target = hosts.get_mut(id).and_then(|host| host.target(nr)).ok_or(Errno::ENODEV)?;
            nbd.join(&mut io.ring, volumes, stream.into(), (target, intent), &name)
        })?;
        joined.map_err(|e| no(&e))
    }

    /// Takes the device away: now, or without a hold of it once nobody has it open any more, who has
    /// it getting errors until then.
    pub(super) fn end_by_process(
        &self,
        mapped: &Mapped,
        process: &Process,
        hold: Option<File>,
    ) -> Done {
        let front = process.place.front;
        let path = mapped.path.clone();
        let flushed = within(DEVICE, move || loopdev::flush(&path));
        match (flushed, &hold) {
            (Some(Ok(())), _) => {}
            (_, None) => log!(Level::Warn, "engine", "{} was not flushed", mapped.path),
            (Some(Err(e)), Some(_)) => {
                return Err(failed(&mapped.path, format!("not flushed: {e}"), "try again"));
            }
            (None, Some(_)) => {
                return Err(failed(
                    &mapped.path,
                    "flushing takes too long",
                    "look at `ashlar why`: a volume that waits keeps its device waiting",
                ));
            }
        }
        let is_held = hold.is_some();
        let detached = front.detach(&mapped.path);
        detached.map_err(|e| failed(&mapped.path, e, "try again; `dmesg` may say more"))?;
        drop(hold);
        if is_held && !wait(FREED, || front.is_free(&mapped.path)) {
            return Err(failed(&mapped.path, "the kernel keeps it", "see who uses it, try again"));
        }
        mapped.links.remove(&mapped.path);
        self.end_process(process, mapped.shard, mapped.key)
    }

    /// Ends the process, then closes the volume.
    fn end_process(&self, process: &Process, shard: usize, key: DeviceKey) -> Done {
        remove_directory(&process.place.directory);
        if let Some(mut child) = lock(&process.child).take() {
            // It may be that it never got to listen.
            let _ = child.kill();
            let _ = child.wait();
        }
        let name = process.place.client.clone();
        self.on(shard, move |shard| {
            let Shard { nbd, io, volumes, .. } = shard;
            nbd.part_with(&mut io.ring, volumes, &name, Parting::Gentle);
            close(shard, key);
        })
    }

    /// What is wrong with a device.
    pub(super) fn process_problem(&self, mapped: &Mapped, process: &Process) -> Option<String> {
        let name = process.place.client.clone();
        let served = self.on(mapped.shard, move |shard| {
            shard.nbd.clients().any(|client| client.export.as_deref() == Some(&name))
        });
        let gone = matches!(served, Ok(false));
        gone.then(|| {
            "its process is gone: it answers with errors; unmap it and map it again".into()
        })
    }

    /// Has a device follow the size of its volume.
    pub(super) fn follow_process(
        self: &Arc<Self>,
        entry: &Entry,
        nr: VolumeNr,
        options: MapOptions,
        mapped: &Mapped,
    ) {
        let Kind::Process(process) = &mapped.kind else { return };
        let (place, path) = (process.place.clone(), mapped.path.clone());
        self.follow_size(entry, nr, mapped, ServedSize { nr, options, place, path });
    }
}

/// A device whose process hears of the volume's size when it is connected anew.
struct ServedSize {
    nr: VolumeNr,
    options: MapOptions,
    place: Place,
    path: String,
}

impl Resize for ServedSize {
    fn kib(&self) -> Option<u64> {
        let Place { directory, front, .. } = &self.place;
        front.size(directory).map(|bytes| bytes.div_ceil(1024))
    }

    fn renew(&self, engine: &Engine, entry: &Entry) -> Result<(), String> {
        let Place { directory, front, .. } = &self.place;
        let before = front.size(directory);
        engine
            .serve_process(entry, self.nr, &self.options, &self.place)
            .map_err(|stop| crate::restore::text(&stop))?;
        if !wait(START, || front.size(directory) != before) {
            return Err("its process does not take it over".to_owned());
        }
        if *front == Front::Nbd {
            return Ok(());
        }
        let device = self.path.clone();
        match within(DEVICE, move || loopdev::renew_size(&device)) {
            Some(Ok(())) => Ok(()),
            Some(Err(e)) => Err(e.to_string()),
            None => Err("the kernel takes too long".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_left_behind() {
        assert_eq!(within(Duration::from_secs(20), || 7), Some(7));
        let (never, forever) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(1), move || forever.recv().is_ok()), None);
        drop(never);
    }

    #[test]
    fn a_directory_without_a_process_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("minor-0");
        fs::create_dir_all(directory.join(face::MOUNT)).unwrap();
        fs::write(directory.join(face::SOCKET), "left").unwrap();
        remove_directory(&directory);
        assert!(!directory.exists());
        assert_eq!(find_device("ashlar-of-nobody".to_owned()), None);
    }
}
