//! `ashlar controller`: the store, the owner, the REST API and the agents' link in one process.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::link::{Agents, Order};
use api::token::Token;
use cluster::name::NodeName;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::handle::{self, Handle};
use crate::link::authority::{self, Authority};
use crate::link::{self, Link};
use crate::log;
use crate::store::{self, Sqlite};

/// The store's name in its directory.
const STORE: &str = "controller.db";
/// The folder of the link's authority in it.
const LINK: &str = "link";
/// How long calls that are under way may take at the end.
const GRACE: Duration = Duration::from_secs(10);

/// What a controller is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of the store; made if it is not there, for its owner only.
    pub data: PathBuf,
    /// Where the REST API listens.
    pub listen: SocketAddr,
    /// Where agents connect. They and the controller prove to each other who they are.
    pub agents: SocketAddr,
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
    /// Agents can not be listened to.
    Link(std::io::Error),
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
            Error::Link(error) => write!(f, "{error}"),
            Error::Start(error) => error.fmt(f),
            Error::System(error) => write!(f, "the controller can not run: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// A token by which a node can join the controller of that directory once within a time, whether it
/// runs or not. `address` is where nodes reach its link, `HOST:PORT`.
///
/// # Errors
/// If the directory can not be used.
pub fn token(
    data: &Path,
    address: &str,
    node: Option<NodeName>,
    within: Duration,
) -> std::io::Result<Token> {
    make_directory(data)?;
    Authority::open(&data.join(LINK), authority::VALID)?.token(address, node, within)
}

fn make_directory(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The link, once it listens: it needs the owner, and the owner it.
#[derive(Default)]
struct Late(OnceLock<Link>);

impl Agents for Late {
    fn send(&self, node: &NodeName, order: Order) {
        // Nobody is connected before, and what is not sent is in the next plan again.
        if let Some(link) = self.0.get() {
            link.send(node, order);
        }
    }
}

/// Runs a controller until SIGTERM or SIGINT.
///
/// # Errors
/// If it can not start, or its store fails for good.
pub fn run(options: &Options) -> Result<(), Error> {
    if !options.listen.ip().is_loopback() {
        return Err(Error::Open(options.listen));
    }
    let directory = |error| Error::Directory(options.data.clone(), error);
    make_directory(&options.data).map_err(directory)?;
    let store = Sqlite::open(&options.data.join(STORE)).map_err(Error::Store)?;
    let agents = Arc::new(Late::default());
    let (handle, thread) = handle::start(Box::new(store), agents.clone()).map_err(Error::Start)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(Error::System)?;
    let result = runtime.block_on(async {
        let failed = |error| Error::Listen(options.listen, error);
        let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let link = listen_to_agents(options, handle.clone())?;
        log::info("controller", format_args!("agents connect to {}", link.address()));
        // It is set here and nowhere else.
        let _ = agents.0.set(link);
        log::info("controller", format_args!("the REST API is on http://{address}"));
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

/// Begins to listen to agents. The link's thread hands over what it hears without waiting: agents say
/// what has changed, so it is never more than what they have.
fn listen_to_agents(options: &Options, handle: Handle) -> Result<Link, Error> {
    let (sender, mut heard) = mpsc::unbounded_channel();
    let link = link::Options {
        listen: options.agents,
        directory: options.data.join(LINK),
        certificates_valid: authority::VALID,
    };
    let hear = move |news| {
        // Who is going down does not listen any more.
        let _ = sender.send(news);
    };
    let say = |line: &str| log::info("link", format_args!("{line}"));
    let link = Link::listen(&link, hear, say).map_err(Error::Link)?;
    tokio::spawn(async move {
        while let Some(news) = heard.recv().await {
            handle.heard(news).await;
        }
    });
    Ok(link)
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
