//! The process behind a loop device, or one of the kernel's NBD client: FUSE or NBD to the kernel, NBD to the engine.
//!
//! ```text
//!  /dev/loopN ── kernel ── DIRECTORY/mnt/volume ── this process ── DIRECTORY/socket ── engine
//!                 (direct I/O)      (FUSE)                             (NBD)
//!  /dev/nbdN ── kernel ───────────(NBD)─────────── this process ── as above
//! ```
//!
//! The kernel's NBD client could have an engine at its other end. When that dies, it sends what was not answered again
//! only once it takes it for lost, half a minute later, and a request that takes long is lost in the same way. This
//! process outlives the engine, and asks the next one at once.
//!
//! The engine connects, not this process: so it is the engine that decides when requests may go on,
//! and nobody else is served. The first byte of a connection says what it is for:
//!
//! * [`SERVE`], which is answered with the same unless it is too late: the engine greets as NBD's
//!   oldstyle servers do and answers requests from then on. The newest such connection gets what
//!   comes; an older one is left once it has answered.
//! * [`END`]: unmount and end. The connection is closed when that is done.
//!
//! - `link`: connections and requests. `volume_file`: the file system. `kernel_nbd`: the NBD client.

mod kernel_nbd;
mod link;
mod volume_file;

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fuser::MountOption;

pub use kernel_nbd::DEVICE as NBD_DEVICE;
use link::Link;
use volume_file::VolumeFile;

/// First byte of a connection that is to be served requests.
pub const SERVE: u8 = b'v';
/// First byte of a connection that ends the process.
pub const END: u8 = b'e';

/// The socket below the directory.
pub const SOCKET: &str = "socket";
/// Where the file system is mounted below the directory.
pub const MOUNT: &str = "mnt";
/// The volume's file below the directory.
pub const FILE: &str = "mnt/volume";

/// How long an engine may take to open the volume and greet, and the first one to connect.
const GREETING: Duration = Duration::from_secs(60);
/// How long whoever connects may take to say what for.
const PURPOSE: Duration = Duration::from_secs(5);
/// How long the file may stay in use after it was told to end.
const UNMOUNT: Duration = Duration::from_secs(3);
/// How often is looked.
const TICK: Duration = Duration::from_millis(20);

/// What the process is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its directory, which exists and has a folder [`MOUNT`].
    pub directory: PathBuf,
    /// The volume can only be read.
    pub read_only: bool,
    /// Most requests that the kernel sends before it waits for answers.
    pub depth: u16,
    /// How long requests wait for an engine before they fail.
    pub patience: Duration,
    /// What the kernel has of it.
    pub front: Front,
}

/// What the kernel has of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front {
    /// A file, for a loop device.
    File,
    /// A device of its NBD client, with logical blocks of so many bytes. Its number is in [`NBD_DEVICE`] below the
    /// directory.
    Nbd(u32),
}

/// Takes the front away from its users.
type Stop = Box<dyn FnOnce() + Send>;

/// Why the process could not do its work.
#[derive(Debug)]
pub enum Error {
    /// The socket can not be listened at.
    Listen(PathBuf, io::Error),
    /// No engine has connected.
    NoEngine,
    /// The file system can not be mounted or served.
    Fuse(PathBuf, io::Error),
    /// The kernel makes no device, or does not serve it.
    Nbd(io::Error),
    /// A thread can not be started.
    Thread(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Listen(path, e) => write!(f, "can not listen at {}: {e}", path.display()),
            Error::NoEngine => {
                write!(f, "no engine has connected within {} seconds", GREETING.as_secs())
            }
            Error::Fuse(path, e) => {
                write!(f, "can not serve a file system at {}: {e}", path.display())
            }
            Error::Nbd(e) => write!(f, "no device of the kernel's NBD client: {e}"),
            Error::Thread(e) => write!(f, "no thread: {e}"),
        }
    }
}

impl std::error::Error for Error {}

/// Serves the volume until it is told to end, or what the kernel has of it is gone.
///
/// # Errors
/// [`Error`]
pub fn run(options: &Options) -> Result<(), Error> {
    let socket = options.directory.join(SOCKET);
    // What is there is of a process that is gone: the engine looks before it starts another one.
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).map_err(|e| Error::Listen(socket.clone(), e))?;
    let served = match options.front {
        Front::File => through(options, listener, |link, stop| serve_file(link, options, stop)),
        Front::Nbd(block_size) => through(options, listener, |link, stop| {
            kernel_nbd::serve(link, options, block_size, stop)
        }),
    };
    let _ = fs::remove_file(&socket);
    served
}

/// Serves a front once there is an engine.
fn through<A: link::Answer>(
    options: &Options,
    listener: UnixListener,
    serve: impl FnOnce(&Arc<Link<A>>, &mpsc::Sender<Stop>) -> Result<(), Error>,
) -> Result<(), Error> {
    let link = Arc::new(Link::new(options.read_only, options.patience));
    let (stop, stops) = mpsc::channel();
    let ours = link.clone();
    spawn("listen", move || listen(&listener, &ours, &stops))?;
    if !link.wait_joined(GREETING) {
        return Err(Error::NoEngine);
    }
    let watched = link.clone();
    spawn("watch", move || watched.watch())?;
    serve(&link, &stop)
}

fn serve_file(
    link: &Arc<Link<volume_file::Answer>>,
    options: &Options,
    stop: &mpsc::Sender<Stop>,
) -> Result<(), Error> {
    let place = options.directory.join(MOUNT);
    let failed = |e| Error::Fuse(place.clone(), e);
    let files = VolumeFile::new(link.clone(), options.read_only, options.depth);
    let mut config = fuser::Config::default();
    let name = MountOption::FSName("ashlar".to_owned());
    config.mount_options = vec![name, MountOption::NoDev, MountOption::NoSuid, MountOption::NoExec];
    if options.read_only {
        config.mount_options.push(MountOption::RO);
    }
    let mut session = fuser::Session::new(files, &place, &config).map_err(failed)?;
    let mut unmounter = session.unmount_callable();
    let _ = stop.send(Box::new(move || {
        // The loop device lets go of the file in the background. The session tries once only, so
        // it is asked when nobody has it open any more, or at the end of patience.
        let end = Instant::now() + UNMOUNT;
        while volume_file::is_open() && Instant::now() < end {
            std::thread::sleep(TICK);
        }
        if let Err(e) = unmounter.unmount() {
            eprintln!("face: not unmounted: {e}");
        }
    }));
    session.run().map_err(failed)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map(drop).map_err(Error::Thread)
}

/// Sees to whoever connects, one after the other: there is one engine.
fn listen<A: link::Answer>(
    listener: &UnixListener,
    link: &Arc<Link<A>>,
    stops: &mpsc::Receiver<Stop>,
) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else {
            // Out of descriptors, perhaps for a moment.
            std::thread::sleep(TICK);
            continue;
        };
        match purpose(&mut stream) {
            Ok(SERVE) => {
                if link.has_given_up() || stream.write_all(&[SERVE]).is_err() {
                    continue;
                }
                if let Err(e) = link.join(stream, GREETING) {
                    eprintln!("face: a connection was not taken: {e}");
                }
            }
            Ok(END) => end(&mut stream, stops),
            Ok(_) | Err(_) => {}
        }
    }
}

fn purpose(stream: &mut UnixStream) -> io::Result<u8> {
    stream.set_read_timeout(Some(PURPOSE))?;
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    Ok(byte[0])
}

/// Takes away what the kernel has and ends the process. Whoever still uses it gets errors from then on.
fn end(stream: &mut UnixStream, stops: &mpsc::Receiver<Stop>) {
    let _ = stream.set_read_timeout(None);
    if let Ok(stop) = stops.try_recv() {
        stop();
    }
    let _ = stream.write_all(&[END]);
    std::process::exit(0);
}

/// Tells the process of a directory to end, and waits until it has; false if there is none.
///
/// # Errors
/// It does not end in time.
pub fn tell_end(directory: &Path) -> io::Result<bool> {
    let Ok(mut stream) = UnixStream::connect(directory.join(SOCKET)) else { return Ok(false) };
    stream.set_read_timeout(Some(UNMOUNT + PURPOSE))?;
    stream.write_all(&[END])?;
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => Ok(true),
        // It is gone all the same.
        Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Ok(true),
        Err(e) => Err(e),
    }
}

/// Connects to the process of a directory, to serve it requests from then on.
///
/// # Errors
/// There is none, or it has given up: its device is good for nothing any more.
pub fn connect(directory: &Path) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(directory.join(SOCKET))?;
    stream.set_read_timeout(Some(PURPOSE))?;
    stream.write_all(&[SERVE])?;
    stream.read_exact(&mut [0])?;
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// True if there is a process that waits for an engine, or has one.
pub fn is_alive(directory: &Path) -> bool {
    UnixStream::connect(directory.join(SOCKET)).is_ok()
}
