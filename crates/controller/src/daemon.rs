//! `ashlar controller`: the store, the owner and the REST API in one process.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::link::{Agents, Order};
use cluster::name::NodeName;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::handle::{self, Handle};
use crate::log;
use crate::store::{self, Sqlite};

/// The store's name in its directory.
const STORE: &str = "controller.db";
/// How long calls that are under way may take at the end.
const GRACE: Duration = Duration::from_secs(10);

/// What a controller is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of the store; made if it is not there, for its owner only.
    pub data: PathBuf,
    /// Where the REST API listens.
    pub listen: SocketAddr,
}

/// Why a controller does not start, or ends.
#[derive(Debug)]
pub enum Error {
    /// The API would be open to others.
    Open(SocketAddr),
    /// The directory can not be made.
    Directory(PathBuf, std::io::Error),
    /// The API can not listen.
    Listen(SocketAddr, std::io::Error),
    /// The store can not be used, or failed for good.
    Store(store::Error),
    /// It did not start.
    Start(handle::Error),
    /// The kernel refuses threads, signals or sockets.
    System(std::io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Open(address) => write!(
                f,
                "the REST API does not listen on {address}: without tokens, which are not there \
                 yet, everybody who reaches it could delete everything; name a loopback address"
            ),
            Error::Directory(path, error) => {
                write!(f, "the directory {} can not be made: {error}", path.display())
            }
            Error::Listen(address, error) => {
                write!(f, "the REST API can not listen on {address}: {error}; name another address")
            }
            Error::Store(error) => error.fmt(f),
            Error::Start(error) => error.fmt(f),
            Error::System(error) => write!(f, "the controller can not run: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// Agents that never connect: what is wanted of them waits.
#[derive(Clone, Copy, Debug)]
pub struct Nobody;

impl Agents for Nobody {
    fn send(&self, _: &NodeName, _: Order) {}
}

/// Runs a controller until SIGTERM or SIGINT. `connect` gets the controller and begins to listen to
/// agents; orders go out by `agents`.
///
/// # Errors
/// If it can not start, or its store fails for good.
pub fn run(
    options: &Options,
    agents: Arc<dyn Agents>,
    connect: impl FnOnce(Handle),
) -> Result<(), Error> {
    if !options.listen.ip().is_loopback() {
        return Err(Error::Open(options.listen));
    }
    let directory = |error| Error::Directory(options.data.clone(), error);
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(&options.data).map_err(directory)?;
    let store = Sqlite::open(&options.data.join(STORE)).map_err(Error::Store)?;
    let (handle, thread) = handle::start(Box::new(store), agents).map_err(Error::Start)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(Error::System)?;
    let result = runtime.block_on(async {
        let failed = |error| Error::Listen(options.listen, error);
        let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        log::info("controller", format_args!("the REST API is on http://{address}"));
        connect(handle.clone());
        serve(listener, handle).await
    });
    // Streams of events have no end of their own.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match result? {
        // A transaction that is under way is whole or not there, as after a power cut.
        End::Signal => Ok(()),
        End::Owner => match thread.join() {
            Ok(ended) => ended.map_err(Error::Store),
            Err(_) => Err(Error::System(std::io::Error::other("its owner's thread panicked"))),
        },
    }
}

/// Why the API is served no longer.
enum End {
    /// Somebody said so.
    Signal,
    /// Nobody carries out commands any more.
    Owner,
}

async fn serve(listener: TcpListener, handle: Handle) -> Result<End, Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::System)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::System)?;
    let router = linstor::router(Arc::new(handle.clone()));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = axum::serve(listener, router).with_graceful_shutdown(async {
        let _ = stopped.await;
    });
    let server = tokio::spawn(async move { server.await });
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = handle.ended() => return Ok(End::Owner),
    }
    log::info("controller", format_args!("goes down"));
    let _ = stop.send(());
    match tokio::time::timeout(GRACE, server).await {
        Ok(Ok(served)) => served.map_err(Error::System).map(|()| End::Signal),
        // Who still waits then has to ask again.
        Ok(Err(_)) | Err(_) => Ok(End::Signal),
    }
}
