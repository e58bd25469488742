//! What is served over vhost-user: each export has a socket, and a thread that serves one client at
//! a time.
//!
//! A client has the volume open as long as it is connected, whether its guest runs or not.
//!
//! # Guests that outlive the engine
//!
//! A guest goes on with what it remembers of its disk, after this engine or another one has served it. That is
//! right only if nobody else has changed the volume meanwhile. Its log of requests says which run of the engine
//! served it last, and how often others had changed the volume by then ([`Lease`]):
//!
//! * The same run: the volume was changed just as often.
//! * The run before this one, as the state directory knows it: the volume is as it was when that one
//!   ended (`Resource::is_as_it_was`, which waits for peers as the faces do), and was not taken down since.
//! * Any other run: what happened since is not known.
//!
//! A run that ends in peace leaves its peers connected for a moment after its clients are gone. It counts
//! as one before only if nobody has used that ([`Engine::end_run`]).

mod handover;

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use codec::admin::{FailureKind, Listen};
use frontend::vhost::DeviceKey;
use frontend::vhost::inflight::Lease;
use frontend::vhost::session::{End, Owner, Session, Signals, Task};
use runtime::{Errno, Intent, TargetInfo};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use vocab::VolumeNr;

use crate::engine::{Done, Engine, Entry, Stop, lock, while_claimed};
use crate::maps::refused;
use crate::restore::text;
use crate::shard::{Message, Shard};
use crate::state::StoredExport;
use handover::Hold;
pub(crate) use handover::{FrozenGuest, HeldGuest};
use logging::{Level, log};

/// How long opening a volume may take: promotion asks all peers.
const OPEN: Duration = Duration::from_secs(45);
/// How long after its start the engine waits for peers before a volume is opened.
const YOUNG: Duration = Duration::from_secs(30);

/// An export that is served.
pub(crate) struct Server {
    stop: Arc<OwnedFd>,
    /// Is readable while the thread is to rest; why and for how long comes by `holds`.
    hold: Arc<OwnedFd>,
    holds: Sender<Hold>,
    path: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread of an export lets others know.
#[derive(Default)]
struct Shared {
    clients: AtomicU32,
    /// How often others had changed the volume, with the last client that was served.
    lease: Mutex<Option<Lease>>,
}

impl Server {
    /// Clients that are connected.
    pub(crate) fn clients(&self) -> u32 {
        self.shared.clients.load(Ordering::Relaxed)
    }

    /// Ends the client and stops listening.
    pub(crate) fn end(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The thread of an export.
struct Thread {
    engine: Weak<Engine>,
    name: String,
    export: StoredExport,
    listener: UnixListener,
    stop: Arc<OwnedFd>,
    hold: Arc<OwnedFd>,
    holds: Receiver<Hold>,
    shared: Arc<Shared>,
    /// What was said last of a client that could not be served: it comes again and again.
    said: String,
}

impl Engine {
    /// Listens for a client of an export.
    pub(crate) fn serve_vhost(
        self: &Arc<Self>,
        name: &str,
        export: &StoredExport,
        path: &str,
    ) -> Done<Server> {
        let failed = |why: String| {
            let text = format!("can not listen for a vhost-user client at {path}: {why}");
            Stop::failed(FailureKind::Io, text, "give another place with --vhost-user")
        };
        let listener = while_claimed(
            |errno| *errno == Errno(libc::EADDRINUSE),
            || runtime::net::listen_unix(Path::new(path)),
        );
        let listener = UnixListener::from(listener.map_err(|e| failed(e.to_string()))?);
        self.start_vhost(name, export, path, listener, Thread::listen)
            .map_err(|e| failed(e.to_string()))
    }

    /// Has a thread of its own serve what comes in at a listener.
    fn start_vhost(
        self: &Arc<Self>,
        name: &str,
        export: &StoredExport,
        path: &str,
        listener: UnixListener,
        run: impl FnOnce(&mut Thread) + Send + 'static,
    ) -> std::io::Result<Server> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Arc::new);
        let (stop, hold) = (event()?, event()?);
        let (holds, held) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let mut thread = Thread {
            engine: Arc::downgrade(self),
            name: name.to_owned(),
            export: export.clone(),
            listener,
            stop: stop.clone(),
            hold: hold.clone(),
            holds: held,
            shared: shared.clone(),
            said: String::new(),
        };
        let builder = std::thread::Builder::new().name("vhost".to_owned());
        let thread = Some(builder.spawn(move || run(&mut thread))?);
        Ok(Server { stop, hold, holds, path: path.to_owned(), shared, thread })
    }

    /// How often others may have changed a volume, in this life of its resource.
    fn changes(&self, entry: &Entry, nr: VolumeNr) -> Option<u64> {
        let id = entry.id;
        let changes = self.on(entry.shard, move |shard| {
            shard.hosts.get_mut(id).and_then(|host| host.changes_by_others(nr))
        });
        changes.ok().flatten().map(|changes| u64::from(id) << 48 | changes)
    }

    /// The end of this run begins: until [`Engine::end_run`] has seen to it, no guest may go on from it.
    pub(crate) fn begin_end_of_run(&self) {
        if self.has_leases()
            && let Err(e) = self.state.forget_run()
        {
            log!(Level::Warn, "engine", "{e}");
        }
    }

    /// All peers are left: guests may go on with the next run if nobody has changed their volumes since
    /// their last client was.
    pub(crate) fn end_run(&self, unchanged: bool) {
        if unchanged
            && self.has_leases()
            && let Err(e) = self.state.begin_run(self.instance)
        {
            log!(Level::Warn, "engine", "guests will not go on: {e}");
        }
    }

    fn has_leases(&self) -> bool {
        lock(&self.exports).vhost().any(|(_, server)| lock(&server.shared.lease).is_some())
    }

    /// True if nobody has changed a resource's volumes since their last client was.
    pub(crate) fn is_as_left(&self, entry: &Entry) -> bool {
        let leases: Vec<(u16, Lease)> = {
            let exports = lock(&self.exports);
            let of = exports.vhost().filter(|(export, _)| export.resource == entry.name);
            of.filter_map(|(export, server)| Some((export.volume, (*lock(&server.shared.lease))?)))
                .collect()
        };
        let same =
            |(nr, lease): &(u16, Lease)| self.changes(entry, VolumeNr(*nr)) == Some(lease.changes);
        leases.iter().all(same)
    }
}

impl Thread {
    fn listen(&mut self) {
        loop {
            let mut fds = [
                PollFd::new(&*self.stop, PollFlags::IN),
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&*self.hold, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) if !fds[0].revents().is_empty() => return,
                Ok(_) if !fds[2].revents().is_empty() => {
                    self.rest(None);
                    continue;
                }
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => {
                    return log!(
                        Level::Error,
                        self.name,
                        "no vhost-user clients any more: {errno}"
                    );
                }
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    self.shared.clients.store(1, Ordering::Relaxed);
                    self.serve(stream);
                    self.shared.clients.store(0, Ordering::Relaxed);
                }
                Err(e) => {
                    self.say(format!("can not accept a vhost-user client: {e}"));
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Logs what is not what was logged last.
    fn say(&mut self, text: String) {
        if self.said != text {
            log!(Level::Warn, self.name, "{text}");
            self.said = text;
        }
    }

    fn serve(&mut self, stream: UnixStream) {
        let Some(engine) = self.engine.upgrade() else { return };
        let served = self.serve_on(&engine, stream);
        self.note_end(served);
    }

    fn note_end(&mut self, served: Done<End>) {
        match served {
            Ok(end) => {
                let level = match end {
                    End::Closed | End::Stopped => Level::Info,
                    _ => Level::Warn,
                };
                log!(level, self.name, "the vhost-user client is left: {end}");
            }
            Err(stop) => self.say(format!("a vhost-user client was not served: {}", text(&stop))),
        }
    }

    fn serve_on(&mut self, engine: &Arc<Engine>, stream: UnixStream) -> Done<End> {
        let StoredExport { resource, volume, read_only, .. } = &self.export;
        let (nr, read_only) = (VolumeNr(*volume), *read_only);
        let entry = engine.entry(resource)?;
        if engine.started.elapsed() < YOUNG {
            // One of them may be Primary, or have been: better known before the volume is opened.
            engine.wait_for_peers(&entry)?;
        }
        let (key, info) = engine.open_vhost(&entry, nr, read_only, &self.name)?;
        let how = if read_only { "to read" } else { "to read and write" };
        log!(Level::Info, self.name, "opened {how} by a vhost-user client");
        self.said.clear();
        let client = Client { engine, entry: &entry, nr, name: &self.name };
        *lock(&self.shared.lease) = Some(client.lease());
        let signals = Signals { stop: &self.stop, hold: &self.hold };
        let end = match Session::new(stream, signals, &client, (key, info, read_only)) {
            Ok(mut session) => self.converse(&mut session),
            Err(error) => End::Io(error),
        };
        self.close(&client, key)?;
        Ok(end)
    }

    /// Serves a client to its end.
    fn converse(&self, session: &mut Session<'_>) -> End {
        loop {
            match session.serve() {
                End::Held => self.rest(Some(session)),
                end => return end,
            }
        }
    }

    fn close(&self, client: &Client<'_>, key: DeviceKey) -> Done {
        // The count of now: what changed while it was open is what its guest has seen.
        *lock(&self.shared.lease) = Some(client.lease());
        client.engine.on(client.entry.shard, move |shard| {
            let Shard { vhost, io, volumes, .. } = shard;
            vhost.close(&mut io.ring, volumes, key);
        })
    }
}

impl Engine {
    /// Opens a volume for a client.
    fn open_vhost(
        &self,
        entry: &Entry,
        nr: VolumeNr,
        read_only: bool,
        name: &str,
    ) -> Done<(DeviceKey, TargetInfo)> {
        let (id, intent) = (entry.id, if read_only { Intent::Read } else { Intent::Write });
        let (reply, result) = mpsc::channel();
        let label = name.to_owned();
        let key = self.on(entry.shard, move |shard| {
            let target = shard.hosts.get_mut(id)?.target(nr)?;
            let Shard { vhost, volumes, .. } = shard;
            Some(vhost.open(volumes, target, intent, &label, reply))
        })?;
        let not_open = |errno| refused(name, &entry.name, errno);
        let key = key.unwrap_or(Err(Errno::ENODEV)).map_err(not_open)?;
        match result.recv_timeout(OPEN) {
            Ok(Ok(info)) => Ok((key, info)),
            Ok(Err(errno)) => Err(not_open(errno)),
            Err(_) => {
                self.on(entry.shard, move |shard| {
                    let Shard { vhost, io, volumes, .. } = shard;
                    vhost.close(&mut io.ring, volumes, key);
                })?;
                Err(not_open(Errno::ETIMEDOUT))
            }
        }
    }
}

/// A client, as its session knows the engine.
struct Client<'a> {
    engine: &'a Engine,
    entry: &'a Entry,
    nr: VolumeNr,
    name: &'a str,
}

impl Owner for Client<'_> {
    fn run(&self, task: Task) -> bool {
        let task = move |shard: &mut Shard| {
            let Shard { vhost, io, volumes, .. } = shard;
            task(vhost, &mut io.ring, volumes);
        };
        self.engine.send(self.entry.shard, Message::Do(Box::new(task))).is_ok()
    }

    fn lease(&self) -> Lease {
        // Without a disk nothing is known; no count is that high.
        let changes = self.engine.changes(self.entry, self.nr).unwrap_or(u64::MAX);
        Lease { instance: self.engine.instance, changes }
    }

    fn may_go_on(&self, lease: Lease) -> Result<(), String> {
        let Client { engine, entry, nr, .. } = self;
        let changes = engine.changes(entry, *nr).ok_or("this node has no disk of the volume")?;
        if lease.instance == engine.instance {
            let same = lease.changes == changes;
            return same.then_some(()).ok_or("others have written to the volume".to_owned());
        }
        if Some(lease.instance) != engine.predecessor || !entry.restored.load(Ordering::Relaxed) {
            return Err("it was served by an engine that was not the last one here".to_owned());
        }
        match engine.is_as_it_was(entry, *nr) {
            Ok(true) => Ok(()),
            Ok(false) => Err("others have written to the volume".to_owned()),
            Err(stop) => Err(text(&stop)),
        }
    }

    fn tell(&self, text: &str) {
        log!(Level::Error, self.name, "{text}");
    }
}

/// The path of an export that is served over vhost-user.
pub(crate) fn path_of(listen: &Listen) -> Option<&str> {
    match listen {
        Listen::VhostUser(path) => Some(path),
        Listen::Tcp(_) | Listen::Unix(_) | Listen::Tls(_) => None,
    }
}
