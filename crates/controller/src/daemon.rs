//! `ashlar controller`: the store, the owner, the REST API and the agents' link in one process. Where
//! several controllers share a store, all that is there while one leads (`leader`).

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use api::link::{Agents, Order};
use cluster::command::Command;
use cluster::name::NodeName;
use linstor::controller::{Controller as _, Settings};
use logging::Level;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::access::{self, Gate, NotTaken};
use crate::export;
use crate::handle::{self, Handle};
use crate::leader;
use crate::link::authority::{self, Authority};
use crate::link::{self, Link};
use crate::rest::{self, Rest};
use crate::store::{self, Location, NoLocation, Sqlite, Standing, Store, Term};
use crate::tls::{self, Certificates};
use crate::{files, log};

/// The store's name in its directory.
const STORE: &str = "controller.db";
/// The variable that has the URL of the store, for one with a password.
const STORE_VARIABLE: &str = "ASHLAR_STORE";
/// The folder of the link's authority in it.
const LINK: &str = "link";
/// The certificate that clients of the REST API have to trust, if the controller made its own.
const AUTHORITY: &str = "authority.crt";
/// How long calls that are under way may take at the end.
const GRACE: Duration = Duration::from_secs(10);

/// Where a controller keeps everything.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its directory; made if it is not there, for its owner only.
    pub data: PathBuf,
    /// Where the store is, as [`Location::from_argument`] reads it. Without it the variable
    /// `ASHLAR_STORE` says it, and without that it is a file in the directory.
    pub store: Option<String>,
}

/// What a controller is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it keeps everything.
    pub stored: Stored,
    /// Where the REST API listens without encryption: on a loopback address, unless it has HTTPS to
    /// lead to.
    pub listen: SocketAddr,
    /// Where the REST API listens for HTTPS, if it does.
    pub listen_tls: Option<SocketAddr>,
    /// The certificate of HTTPS.
    pub tls: tls::Options,
    /// Where clients reach the REST API of this controller while it leads, if not where it listens: who
    /// waits sends them there. Only with a store that several controllers share.
    pub advertise: Option<String>,
    /// Where agents connect. They and the controller prove to each other who they are.
    pub agents: SocketAddr,
    /// Programs on this host need a token, too.
    pub token_required: bool,
    /// Most detailed lines of the log, until a client says something else.
    pub log_level: Level,
}

/// Why a controller does not start, or ends.
#[derive(Debug)]
pub enum Error {
    /// The tokens or the audit log can not be used.
    Access(std::io::Error),
    /// The directory can not be made.
    Directory(PathBuf, std::io::Error),
    /// The API can not be served.
    Rest(rest::Error),
    /// HTTPS has no certificate.
    Certificate(std::io::Error),
    /// No store was named.
    Location(NoLocation),
    /// An address is advertised that can not be, with the reason.
    Advertised(String, &'static str),
    /// The store can not be used, or failed for good.
    Store(store::Error),
    /// Nothing was imported.
    Import(export::Error),
    /// A controller leads on the store into which something is to be imported.
    Led,
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
            Error::Access(error) => write!(f, "{error}; the controller does not serve without it"),
            Error::Directory(path, error) => {
                write!(f, "the directory {} can not be made: {error}", path.display())
            }
            Error::Rest(error) => error.fmt(f),
            Error::Certificate(error) => write!(f, "{error}"),
            Error::Location(error) => error.fmt(f),
            Error::Advertised(url, why) => write!(f, "{url} can not be advertised: {why}"),
            Error::Store(error) => error.fmt(f),
            Error::Import(error) => error.fmt(f),
            Error::Led => {
                write!(
                    f,
                    "a controller leads on the store; stop all controllers, or name another one"
                )
            }
            Error::Link(error) => write!(f, "{error}"),
            Error::Start(error) => error.fmt(f),
            Error::System(error) => write!(f, "the controller can not run: {error}"),
        }
    }
}

impl std::error::Error for Error {}

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
    logging::set_level(options.log_level);
    let directory = |error| Error::Directory(options.stored.data.clone(), error);
    make_directory(&options.stored.data).map_err(directory)?;
    let location = location(&options.stored)?;
    let name = location.name();
    let mut electorate = match location {
        Location::File(file) => {
            if let Some(url) = &options.advertise {
                let why = "nobody sends clients there, for this store is of one controller; leave \
                           --advertise out, or give a --store that several share";
                return Err(Error::Advertised(url.clone(), why));
            }
            let store = Sqlite::open(&file).map_err(Error::Store)?;
            return lead(options, &name, Box::new(store), None).map(drop);
        }
        Location::Shared(electorate) => electorate,
    };
    let reached = reached_at(options)?;
    loop {
        let led = leader::stand_by(&mut *electorate, options.listen, &reached)?;
        let Some((store, term)) = led else { return Ok(()) };
        log::info("controller", format_args!("leads: {term:?}"));
        match lead(options, &name, store, Some(term)) {
            Ok(End::Signal) => return Ok(()),
            Ok(End::Owner | End::Term) => {
                log::info("controller", format_args!("leads no longer"));
            }
            // Another may lead by now, and this one again when the store answers.
            Err(error) if error.passes() => log::error("controller", format_args!("{error}")),
            Err(error) => return Err(error),
        }
    }
}

impl Error {
    /// True if it need not be so the next time.
    fn passes(&self) -> bool {
        let (Error::Store(error) | Error::Start(handle::Error::Store(error))) = self else {
            return false;
        };
        matches!(error, store::Error::Server { .. } | store::Error::Deposed { .. })
    }
}

/// Where others are sent to while this controller leads: by HTTPS if clients elsewhere can get there.
fn reached_at(options: &Options) -> Result<String, Error> {
    match (&options.advertise, options.listen_tls) {
        (Some(url), tls) => match advertised(url, tls.is_some()) {
            Ok(url) => Ok(url.to_owned()),
            Err(why) => Err(Error::Advertised(url.clone(), why)),
        },
        (None, Some(address)) => Ok(leader::url("https", address)),
        (None, None) => Ok(leader::url("http", options.listen)),
    }
}

/// A URL that paths can be appended to.
fn advertised(url: &str, has_tls: bool) -> Result<&str, &'static str> {
    let url = url.trim_end_matches('/');
    let host = match url.split_once("://") {
        Some(("http", host)) => host,
        Some(("https", host)) if has_tls => host,
        Some(("https", _)) => return Err("this controller has no HTTPS; give --rest-tls, too"),
        _ => return Err("give http://HOST:PORT or https://HOST:PORT"),
    };
    let odd = |c: char| !c.is_ascii_graphic() || "/?#@".contains(c);
    match host.is_empty() || host.contains(odd) {
        true => Err("give http://HOST:PORT or https://HOST:PORT"),
        false => Ok(url),
    }
}

fn location(stored: &Stored) -> Result<Location, Error> {
    let location = match (&stored.store, std::env::var(STORE_VARIABLE)) {
        (Some(text), _) => Location::from_argument(text),
        (None, Ok(url)) => Location::new(&url),
        (None, Err(_)) => Ok(Location::File(stored.data.join(STORE))),
    };
    location.map_err(Error::Location)
}

/// Runs what a controller runs that has the store, for a term if there are others.
fn lead(
    options: &Options,
    name: &str,
    mut store: Box<dyn Store>,
    term: Option<Term>,
) -> Result<End, Error> {
    // After the store: only who has that one may touch the other files. Whichever leads knows the same
    // tokens.
    if term.is_some() {
        let own = access::own(&options.stored.data, access::now()).map_err(Error::Access)?;
        let shared = store.file(access::FILE, own).map_err(Error::Store)?;
        access::adopt(&options.stored.data, &shared).map_err(Error::Access)?;
    }
    access::take_over(&options.stored.data, &mut *store).map_err(|error| match error {
        NotTaken::File(error) => Error::Access(error),
        NotTaken::Store(error) => Error::Store(error),
    })?;
    // Agents know a controller by its authority, whichever leads.
    let link = options.stored.data.join(LINK);
    let own = authority::text(&link).map_err(Error::Link)?;
    let shared = store.file("authority.pem", own).map_err(Error::Store)?;
    authority::adopt(&link, &shared).map_err(Error::Link)?;
    let authority = Arc::new(Authority::open(&link, authority::VALID).map_err(Error::Link)?);
    let agents = Arc::new(Late::default());
    let (handle, thread) = handle::start(store, agents.clone()).map_err(Error::Start)?;
    let open = !options.token_required;
    let mut gate = Gate::open(&options.stored.data, open, handle.clone()).map_err(Error::Access)?;
    gate.invite_to(authority.clone());
    if term.is_some() {
        let handle = handle.clone();
        gate.share(Box::new(move |text| handle.keep_file(access::FILE, text)));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(Error::System)?;
    let result = runtime.block_on(async {
        take_over_tokens(&link, &handle).await.map_err(Error::Link)?;
        let link = listen_to_agents(options, authority.clone(), handle.clone())?;
        log::info("controller", format_args!("agents connect to {}", link.address()));
        // It is set here and nowhere else.
        let _ = agents.0.set(link);
        let rest = listen_to_clients(options, authority).await?;
        let (http, https) = rest.addresses().map_err(Error::System)?;
        let (directory, store) = (options.stored.data.clone(), name.to_owned());
        let handle = handle.with(Settings { directory, store, http: Some(http), https });
        let end = serve(rest, handle, gate, term.clone()).await;
        if let Some(term) = &term {
            term.resign().await;
        }
        end
    });
    // Streams of events have no end of their own.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match result? {
        // So that the store's file is all there is of it. A transaction that does not come to its end in
        // time is whole or not there, as after a power cut.
        End::Signal => {
            drop(agents);
            let begun = Instant::now();
            while !thread.is_finished() && begun.elapsed() < GRACE {
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(End::Signal)
        }
        // Another leads: what this one had has to be gone before it waits. Its agents' link ends with
        // its owner.
        end @ (End::Owner | End::Term) => match thread.join() {
            Ok(ended) => ended.map_err(Error::Store).map(|()| end),
            Err(_) => Err(Error::System(std::io::Error::other("its owner's thread panicked"))),
        },
    }
}

/// Puts what an export has into an empty store, where no controller runs; returns what that was. What
/// there can not be here is left out if `leave_out` says so.
///
/// # Errors
/// If the store can not be used or is not empty, or the file is no export, or has what can not be taken
/// over.
pub fn import(stored: &Stored, file: &Path, leave_out: bool) -> Result<export::Found, Error> {
    let found = export::read(file, leave_out).map_err(Error::Import)?;
    let rows = found.rows.clone();
    make_directory(&stored.data).map_err(|error| Error::Directory(stored.data.clone(), error))?;
    match location(stored)? {
        Location::File(path) => {
            let mut store = Sqlite::open(&path).map_err(Error::Store)?;
            export::put(rows, &mut store).map_err(Error::Import)?;
        }
        Location::Shared(mut electorate) => {
            match electorate.stand("", leader::TERM).map_err(Error::Store)? {
                Standing::Follows(_) => return Err(Error::Led),
                Standing::Leads(mut store, term) => {
                    let put = export::put(rows, &mut *store).map_err(Error::Import);
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_time().build();
                    runtime.map_err(Error::System)?.block_on(term.resign());
                    put?;
                }
            }
        }
    }
    Ok(found)
}

/// Takes tokens by which nodes join into the store, where an older version has left some in files.
async fn take_over_tokens(link: &Path, handle: &Handle) -> std::io::Result<()> {
    for token in authority::take_over_tokens(link)? {
        let node = token.node.as_ref().map_or_else(|| "any node".to_owned(), NodeName::to_string);
        if let Err(failure) = handle.carry_out(Command::CreateJoinToken { token }).await {
            let text = format_args!("the token for {node} is void, make another: {failure}");
            log::error("link", text);
        }
    }
    Ok(())
}

/// Begins to listen to agents. The link's thread hands over what it hears without waiting: agents say
/// what has changed, so it is never more than what they have.
fn listen_to_agents(
    options: &Options,
    authority: Arc<Authority>,
    handle: Handle,
) -> Result<Link, Error> {
    let (sender, mut heard) = mpsc::unbounded_channel();
    let joins = Arc::new(handle.weak());
    let link = link::Options { listen: options.agents, authority, joins };
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

/// Begins to listen to clients of the REST API.
async fn listen_to_clients(options: &Options, authority: Arc<Authority>) -> Result<Rest, Error> {
    let tls = match options.listen_tls {
        None => None,
        Some(address) => {
            if options.tls.files.is_none() {
                let path = options.stored.data.join(AUTHORITY);
                files::replace(&path, authority.certificate_pem().as_bytes())
                    .map_err(Error::Certificate)?;
                log::info("rest", format_args!("clients have to trust {}", path.display()));
            }
            let certificates = Certificates::new(options.tls.clone(), authority);
            Some((address, Arc::new(certificates.map_err(Error::Certificate)?)))
        }
    };
    let rest = Rest::listen(options.listen, tls, options.token_required).await;
    let rest = rest.map_err(Error::Rest)?;
    let (plain, tls) = rest.addresses().map_err(Error::System)?;
    log::info("controller", format_args!("the REST API is on http://{plain}"));
    if let Some(tls) = tls {
        log::info("controller", format_args!("the REST API is on https://{tls}"));
    }
    Ok(rest)
}

/// Why the API is served no longer.
enum End {
    /// Somebody said so.
    Signal,
    /// Nobody carries out commands any more.
    Owner,
    /// The term is over.
    Term,
}

async fn serve(rest: Rest, handle: Handle, gate: Gate, term: Option<Term>) -> Result<End, Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::System)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::System)?;
    let over = async {
        match &term {
            Some(term) => term.over().await,
            None => std::future::pending().await,
        }
    };
    let (stop, stopped) = watch::channel(false);
    let mut router = linstor::guarded(Arc::new(handle.clone()), Arc::new(gate));
    if let Some(term) = &term {
        router = leader::guard(router, term.clone());
    }
    let server = tokio::spawn(rest.serve(router, stopped));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = handle.ended() => return Ok(End::Owner),
        () = over => return Ok(End::Term),
    }
    log::info("controller", format_args!("goes down"));
    let _ = stop.send(true);
    match tokio::time::timeout(GRACE, server).await {
        Ok(Ok(served)) => served.map_err(Error::System).map(|()| End::Signal),
        // Who still waits then has to ask again.
        Ok(Err(_)) | Err(_) => Ok(End::Signal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_url_is_advertised() {
        assert_eq!(advertised("https://ctl.example:3371/", true), Ok("https://ctl.example:3371"));
        assert_eq!(advertised("http://[fd00::1]:3370", false), Ok("http://[fd00::1]:3370"));
        for (url, tls) in [
            ("https://ctl.example", false),
            ("ctl.example:3370", true),
            ("http://", true),
            ("http://a b", true),
            ("http://user@host", true),
            ("http://host/path", true),
        ] {
            assert!(advertised(url, tls).is_err(), "{url}");
        }
    }
}
