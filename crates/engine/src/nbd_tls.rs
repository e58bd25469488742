//! NBD over TLS: who connects to such an address is decrypted by a thread of its own, and is from
//! then on a client of the NBD server like any other, at the other end of a pair of sockets.
//!
//! ```text
//! client ══ TCP ══ prelude in clear text ─► TLS handshake ─► pump ══ socket pair ══ NBD server
//! ```
//!
//! A thread and two more copies for each client are what encryption costs beside the ciphers; clients of
//! unix sockets and of clear TCP have nothing to do with it.
//!
//! - This file: who listens, and how a client comes in. `pump`: its traffic. `handover`: its way to
//!   another process.

mod handover;
mod pump;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use codec::admin::TlsListen;
use frontend::nbd::proto::option;
use frontend::nbd::securing::{Securing, Wish};
use frontend::nbd::shared_keys::Keys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use socket2::{Domain, Socket, TcpKeepalive, Type};

use crate::engine::{Engine, lock};
use crate::exports::LISTENING;
use crate::tls::{self, Handshake, Traffic};
pub(crate) use handover::{FrozenTls, Held};
use logging::{Level, log};
use pump::{Pump, Received, Shared};

/// Names of the files, as those of `qemu` and `nbdkit`.
const AUTHORITY: &str = "ca-cert.pem";
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
const SHARED_KEYS: &str = "keys.psk";

/// A client that does not come to its first encrypted byte in that time is dropped.
const PATIENCE: Duration = Duration::from_secs(10);
/// Clients at a time; more are turned away.
const CLIENTS_MAX: usize = 256;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A place where clients that use TLS come in; it ends with this value, its clients stay.
pub(crate) struct TlsListener {
    /// Closing it wakes the thread.
    _stop: UnixStream,
    listener: Arc<TcpListener>,
}

/// All clients over TLS.
#[derive(Default)]
pub(crate) struct Clients {
    present: Mutex<Present>,
    /// They are no longer on their way to another process.
    go_on: Condvar,
}

#[derive(Default)]
struct Present {
    next: u64,
    /// Those in their handshake have nothing yet that could be handed over.
    all: BTreeMap<u64, Option<Arc<Shared>>>,
    /// Nobody is let in.
    closed: bool,
}

impl Present {
    /// The number of one more; `None` if there are too many.
    fn seat(&mut self) -> Option<u64> {
        let number = self.next;
        (self.all.len() < CLIENTS_MAX).then(|| {
            self.next += 1;
            self.all.insert(number, None);
            number
        })
    }
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, Present> {
        lock(&self.present)
    }
}

/// Listens there.
///
/// # Errors
/// The address can not be had, or there is no thread.
pub(crate) fn listen(engine: &Arc<Engine>, place: &TlsListen) -> io::Result<TlsListener> {
    let socket = Socket::new(Domain::for_address(place.address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    // An engine that does not hand its socket over, as until 28 November 2026, listens there still.
    socket.set_reuse_port(true)?;
    socket.bind(&place.address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    listen_on(engine, place, TcpListener::from(socket))
}

/// The same on a socket that listens.
fn listen_on(
    engine: &Arc<Engine>,
    place: &TlsListen,
    listener: TcpListener,
) -> io::Result<TlsListener> {
    let (stop, stopped) = UnixStream::pair()?;
    let listener = Arc::new(listener);
    let door = Door {
        engine: engine.clone(),
        folder: place.certificates.clone(),
        listener: listener.clone(),
    };
    let run = move || door.watch(&stopped);
    std::thread::Builder::new().name("nbd-tls".to_owned()).spawn(run)?;
    Ok(TlsListener { _stop: stop, listener })
}

/// The server's end of TLS.
pub(crate) enum Credentials {
    Certificates(Arc<ServerConfig>),
    Keys(Keys),
}

impl Credentials {
    /// From the files of a folder.
    ///
    /// # Errors
    /// Which file can not be used, and why.
    pub(crate) fn read(folder: &str) -> Result<Credentials, String> {
        let is_there = |name: &&str| Path::new(folder).join(name).exists();
        if !is_there(&SHARED_KEYS) {
            return certificates(folder).map(Credentials::Certificates);
        }
        if let Some(other) = [AUTHORITY, CERTIFICATE, KEY].iter().find(|name| is_there(name)) {
            return Err(format!(
                "{folder} has both {SHARED_KEYS} and {other}; clients come with keys or with certificates"
            ));
        }
        Keys::read(&Path::new(folder).join(SHARED_KEYS)).map(Credentials::Keys)
    }
}

/// What clients with certificates are met with.
fn certificates(folder: &str) -> Result<Arc<ServerConfig>, String> {
    let path = |name: &str| Path::new(folder).join(name);
    let certificates = |name: &str| {
        let path = path(name);
        let unusable = |why: String| format!("{}: {why}", path.display());
        let read: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(&path).and_then(|certificates| certificates.collect());
        let read = read.map_err(|e| unusable(format!("no certificates in PEM format: {e}")))?;
        if read.is_empty() {
            Err(unusable("there is no certificate in it".to_owned()))
        } else {
            Ok(read)
        }
    };
    let mut roots = RootCertStore::empty();
    for root in certificates(AUTHORITY)? {
        roots.add(root).map_err(|e| format!("{}: {e}", path(AUTHORITY).display()))?;
    }
    let chain = certificates(CERTIFICATE)?;
    let key = path(KEY);
    let private = PrivateKeyDer::from_pem_file(&key)
        .map_err(|e| format!("{}: no private key in PEM format: {e}", key.display()))?;
    // What it is spoken by travels to the next process: see `crate::tls`.
    let provider = Arc::new(tls::provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|e| format!("{}: {e}", path(AUTHORITY).display()))?;
    let unfit = |e: rustls::Error| {
        format!(
            "{} does not belong to {CERTIFICATE} there, or is of an unknown kind: {e}",
            key.display()
        )
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unfit)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, private)
        .map_err(unfit)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// What the thread that accepts needs.
struct Door {
    engine: Arc<Engine>,
    folder: String,
    listener: Arc<TcpListener>,
}

impl Door {
    fn watch(&self, stopped: &UnixStream) {
        loop {
            let mut ends =
                [PollFd::new(&*self.listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
            let polled = poll(&mut ends, None);
            if !ends[1].revents().is_empty() {
                return;
            }
            if polled.is_err() {
                continue;
            }
            match self.accept() {
                Ok((stream, address, seat)) => self.admit(stream, address, seat),
                // A client that gave up before.
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => {
                    log!(
                        Level::Warn,
                        "engine",
                        "an NBD client over TLS could not be accepted: {e}"
                    );
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// A client, and its seat if there is one left. What this process does not accept, the next one can.
    fn accept(&self) -> io::Result<(TcpStream, SocketAddr, Option<Seat>)> {
        let clients = &self.engine.tls_clients;
        let closed = |present: &mut Present| present.closed;
        let present = clients.go_on.wait_while(clients.lock(), closed);
        let mut present = present.unwrap_or_else(PoisonError::into_inner);
        let (stream, address) = self.listener.accept()?;
        let seat = present.seat().map(|number| Seat { clients: clients.clone(), number });
        Ok((stream, address, seat))
    }

    fn admit(&self, stream: TcpStream, address: SocketAddr, seat: Option<Seat>) {
        let Some(seat) = seat else {
            log!(
                Level::Warn,
                "engine",
                "NBD client {address} is turned away: there are {CLIENTS_MAX} over TLS already"
            );
            return;
        };
        // Read anew for each: certificates are renewed by replacing files.
        let (engine, folder) = (self.engine.clone(), self.folder.clone());
        let run = move || {
            if let Err(why) = serve(&engine, &folder, stream, address, &seat) {
                log!(Level::Warn, "engine", "NBD client {address} over TLS: {why}");
            }
        };
        if let Err(e) = std::thread::Builder::new().name("nbd-tls".to_owned()).spawn(run) {
            log!(Level::Warn, "engine", "NBD client {address} is turned away: no thread: {e}");
        }
    }
}

/// A client's place among the others, as long as it is there.
struct Seat {
    clients: Arc<Clients>,
    number: u64,
}

impl Seat {
    /// Serves it to its end. A connection that is cut, at either end, is the end of both.
    fn run(&self, pump: &Arc<Shared>) {
        self.clients.lock().all.insert(self.number, Some(pump.clone()));
        if let Err(e) = pump.run() {
            log!(Level::Debug, "engine", "NBD client {} over TLS: {e}", pump.address);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.clients.lock().all.remove(&self.number);
    }
}

/// Serves a client to its end. What breaks off once it is served is for the NBD server to tell.
fn serve(
    engine: &Arc<Engine>,
    folder: &str,
    mut stream: TcpStream,
    address: SocketAddr,
    seat: &Seat,
) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    let credentials = Credentials::read(folder)?;
    prepare(&stream).map_err(|e| e.to_string())?;
    let Some(flags) = clear_prelude(&mut stream, deadline)? else { return Ok(()) };
    let (traffic, received) = handshake(&credentials, &mut stream, deadline)?;
    let (inner, outer) = UnixStream::pair().map_err(|e| e.to_string())?;
    inner.set_nonblocking(true).map_err(|e| e.to_string())?;
    let introduced = engine.on(LISTENING, move |shard| {
        let crate::shard::Shard { nbd, io, volumes, .. } = shard;
        nbd.introduce(&mut io.ring, volumes, OwnedFd::from(outer), address)
    });
    match introduced {
        Ok(Ok(())) => {}
        Ok(Err(errno)) => return Err(format!("can not be served: {errno}")),
        Err(_) => return Ok(()),
    }
    let pump = Pump::new(traffic, stream, inner, received, flags.to_vec());
    seat.run(&Shared::new(pump, address));
    Ok(())
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Waits until a socket can be read, or written, by then.
fn wait(stream: &TcpStream, flags: PollFlags, deadline: Instant) -> Result<(), String> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err("it has not asked for TLS, or not ended the handshake, in time".to_owned());
    }
    let timeout = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    match poll(&mut [PollFd::new(stream, flags)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.to_string()),
    }
}

/// What comes before TLS. `None`: the client leaves.
fn clear_prelude(stream: &mut TcpStream, deadline: Instant) -> Result<Option<[u8; 4]>, String> {
    let mut securing = Securing::new();
    let mut out = option::greeting().to_vec();
    let mut wish = None;
    loop {
        send_all(stream, &out, deadline)?;
        out.clear();
        match wish {
            Some(Wish::Tls(flags)) => return Ok(Some(flags)),
            Some(Wish::Leave) => return Ok(None),
            None => {}
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece) {
            // A look whether anybody is there, or a client that has learnt that it needs TLS.
            Ok(0) => return Ok(None),
            Ok(n) => {
                wish = securing.receive(&piece[..n], &mut out).map_err(|e| e.to_string())?;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => wait(stream, PollFlags::IN, deadline)?,
            Err(e) => return Err(e.to_string()),
        }
    }
}

/// The handshake, and what has arrived behind it.
fn handshake(
    credentials: &Credentials,
    stream: &mut TcpStream,
    deadline: Instant,
) -> Result<(Traffic, Received), String> {
    let failed = |failure: tls::Failure| match failure {
        tls::Failure::Refused(rustls::Error::NoCertificatesPresented) => {
            "it has no certificate; give it one that ca-cert.pem has signed".to_owned()
        }
        tls::Failure::Refused(e) => format!("the TLS handshake failed: {e}"),
        tls::Failure::Keys(refused) => refused.to_string(),
        tls::Failure::Records(e) => format!("the TLS handshake failed: {e}"),
        tls::Failure::Excess => "it says more than the TLS handshake has".to_owned(),
    };
    let handshake = match credentials {
        Credentials::Certificates(config) => Handshake::of_server(config),
        Credentials::Keys(keys) => Handshake::of_keys(keys),
    };
    let mut handshake = handshake.map_err(failed)?;
    let mut received = Received::default();
    loop {
        let mut out = Vec::new();
        let over = handshake.advance(&mut received, &mut out);
        // After an error it is the alert that tells the client of it.
        let sent = send_all(stream, &out, deadline);
        match over {
            Ok(true) => {
                sent?;
                return Ok((handshake.finish().map_err(failed)?, received));
            }
            Ok(false) => sent?,
            Err(failure) => return Err(failed(failure)),
        }
        match received.read(stream) {
            Ok(0) => return Err("it left during the TLS handshake".to_owned()),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => wait(stream, PollFlags::IN, deadline)?,
            Err(e) => return Err(e.to_string()),
        }
    }
}

fn send_all(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> Result<(), String> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => wait(stream, PollFlags::OUT, deadline)?,
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(())
}
