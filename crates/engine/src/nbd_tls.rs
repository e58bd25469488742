//! NBD over TLS: who connects to such an address is decrypted by a thread of its own, and is from
//! then on a client of the NBD server like any other, at the other end of a pair of sockets.
//!
//! ```text
//! client ══ TCP ══ prelude in clear text ─► TLS handshake ─► pump ══ socket pair ══ NBD server
//! ```
//!
//! A thread and two more copies for each client are what encryption costs beside the ciphers; clients of
//! unix sockets and of clear TCP have nothing to do with it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use codec::admin::TlsListen;
use frontend::nbd::proto::option;
use frontend::nbd::securing::{Securing, Wish};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use socket2::{Domain, Socket, TcpKeepalive, Type};

use crate::engine::Engine;
use crate::exports::LISTENING;
use crate::log::{Level, log};

/// Names of the files, as those of `qemu` and `nbdkit`.
const AUTHORITY: &str = "ca-cert.pem";
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";

/// A client that does not come to its first encrypted byte in that time is dropped.
const PATIENCE: Duration = Duration::from_secs(10);
/// Clients at a time; more are turned away.
const CLIENTS_MAX: usize = 256;
/// Bytes read at a time, and bytes that wait for the NBD server before no more is decrypted.
const PIECE: usize = 128 << 10;
const WAITING_MAX: usize = 512 << 10;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A place where clients that use TLS come in; it ends with this value, its clients stay.
pub(crate) struct TlsListener {
    /// Closing it wakes the thread.
    _stop: UnixStream,
    clients: Arc<AtomicUsize>,
}

impl TlsListener {
    /// Clients that are connected.
    pub(crate) fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }
}

/// Listens there.
///
/// # Errors
/// The address can not be had, or there is no thread.
pub(crate) fn listen(engine: &Arc<Engine>, place: &TlsListen) -> io::Result<TlsListener> {
    let socket = Socket::new(Domain::for_address(place.address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    // The next engine listens there before this one has ended (`ashlar upgrade`).
    socket.set_reuse_port(true)?;
    socket.bind(&place.address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    let (stop, stopped) = UnixStream::pair()?;
    let clients = Arc::new(AtomicUsize::new(0));
    let door = Door {
        engine: engine.clone(),
        folder: place.certificates.clone(),
        clients: clients.clone(),
    };
    let listener = TcpListener::from(socket);
    let run = move || door.watch(&listener, &stopped);
    std::thread::Builder::new().name("nbd-tls".to_owned()).spawn(run)?;
    Ok(TlsListener { _stop: stop, clients })
}

/// The server's end of TLS, from the files of a folder.
///
/// # Errors
/// Which file can not be used, and why.
pub(crate) fn credentials(folder: &str) -> Result<Arc<ServerConfig>, String> {
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
    let provider = Arc::new(aws_lc_rs::default_provider());
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
        .with_safe_default_protocol_versions()
        .map_err(unfit)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, private)
        .map_err(unfit)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// What the thread that accepts needs.
struct Door {
    engine: Arc<Engine>,
    folder: String,
    clients: Arc<AtomicUsize>,
}

impl Door {
    fn watch(&self, listener: &TcpListener, stopped: &UnixStream) {
        loop {
            let mut ends =
                [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
            let polled = poll(&mut ends, None);
            if !ends[1].revents().is_empty() {
                return;
            }
            if polled.is_err() {
                continue;
            }
            match listener.accept() {
                Ok((stream, address)) => self.admit(stream, address),
                // A client that gave up before, or another engine's thread was faster.
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

    fn admit(&self, stream: TcpStream, address: SocketAddr) {
        let guard = Counted::new(&self.clients);
        if self.clients.load(Ordering::Relaxed) > CLIENTS_MAX {
            log!(
                Level::Warn,
                "engine",
                "NBD client {address} is turned away: there are {CLIENTS_MAX} over TLS already"
            );
            return;
        }
        // Read anew for each: certificates are renewed by replacing files.
        let (engine, folder) = (self.engine.clone(), self.folder.clone());
        let run = move || {
            let _counted = guard;
            if let Err(why) = serve(&engine, &folder, stream, address) {
                log!(Level::Warn, "engine", "NBD client {address} over TLS: {why}");
            }
        };
        if let Err(e) = std::thread::Builder::new().name("nbd-tls".to_owned()).spawn(run) {
            log!(Level::Warn, "engine", "NBD client {address} is turned away: no thread: {e}");
        }
    }
}

/// Counts a client as long as it is there.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(clients: &Arc<AtomicUsize>) -> Counted {
        clients.fetch_add(1, Ordering::Relaxed);
        Counted(clients.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves a client to its end. What breaks off once it is served is for the NBD server to tell.
fn serve(
    engine: &Arc<Engine>,
    folder: &str,
    mut stream: TcpStream,
    address: SocketAddr,
) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    let config = credentials(folder)?;
    prepare(&stream).map_err(|e| e.to_string())?;
    let Some(flags) = clear_prelude(&mut stream, deadline)? else { return Ok(()) };
    let mut tls = ServerConnection::new(config).map_err(|e| e.to_string())?;
    handshake(&mut tls, &mut stream, deadline)?;
    // A piece at a time is given to it, once the last one has left.
    tls.set_buffer_limit(None);
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
    let mut pump =
        Pump { tls, stream, inner, waiting: VecDeque::from(flags.to_vec()), ended: false };
    // A connection that is cut, at either end, is the end of both.
    if let Err(e) = pump.run() {
        log!(Level::Debug, "engine", "NBD client {address} over TLS: {e}");
    }
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
        while !out.is_empty() {
            match stream.write(&out) {
                Ok(n) => drop(out.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    wait(stream, PollFlags::OUT, deadline)?;
                }
                Err(e) => return Err(e.to_string()),
            }
        }
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

fn handshake(
    tls: &mut ServerConnection,
    stream: &mut TcpStream,
    deadline: Instant,
) -> Result<(), String> {
    while tls.is_handshaking() || tls.wants_write() {
        if tls.wants_write() {
            match tls.write_tls(stream) {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    wait(stream, PollFlags::OUT, deadline)?;
                }
                Err(e) => return Err(e.to_string()),
            }
            continue;
        }
        match tls.read_tls(stream) {
            Ok(0) => return Err("it left during the TLS handshake".to_owned()),
            Ok(_) => {
                if let Err(e) = tls.process_new_packets() {
                    // The alert says so to the client, too.
                    let _ = tls.write_tls(stream);
                    return Err(match e {
                        rustls::Error::NoCertificatesPresented => {
                            "it has no certificate; give it one that ca-cert.pem has signed"
                                .to_owned()
                        }
                        e => format!("the TLS handshake failed: {e}"),
                    });
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => wait(stream, PollFlags::IN, deadline)?,
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(())
}

/// Decrypts one way and encrypts the other, until either end has closed.
struct Pump {
    tls: ServerConnection,
    stream: TcpStream,
    inner: UnixStream,
    /// Decrypted, and not taken by the NBD server yet.
    waiting: VecDeque<u8>,
    /// The client says nothing more.
    ended: bool,
}

impl Pump {
    fn run(&mut self) -> io::Result<()> {
        let mut piece = vec![0; PIECE];
        self.take_plain(&mut piece)?;
        loop {
            let moved = self.receive(&mut piece)?
                | self.pass_on()?
                | self.take_answers(&mut piece)?
                | self.send()?;
            if moved {
                continue;
            }
            let (mut outside, mut inside) = (PollFlags::empty(), PollFlags::empty());
            outside.set(PollFlags::IN, self.has_room());
            outside.set(PollFlags::OUT, self.tls.wants_write());
            inside.set(PollFlags::IN, !self.tls.wants_write());
            inside.set(PollFlags::OUT, !self.waiting.is_empty());
            let (stream, inner) = (self.stream.as_fd(), self.inner.as_fd());
            // A socket that is not asked for anything would tell of its end again and again.
            let mut ends: Vec<PollFd<'_>> = [(stream, outside), (inner, inside)]
                .into_iter()
                .filter(|(_, flags)| !flags.is_empty())
                .map(|(end, flags)| PollFd::from_borrowed_fd(end, flags))
                .collect();
            match poll(&mut ends, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn has_room(&self) -> bool {
        !self.ended && self.waiting.len() < WAITING_MAX
    }

    /// True if anything came.
    fn receive(&mut self, piece: &mut [u8]) -> io::Result<bool> {
        if !self.has_room() {
            return Ok(false);
        }
        match self.tls.read_tls(&mut self.stream) {
            Ok(0) => {
                self.end_of_client()?;
                Ok(true)
            }
            Ok(_) => {
                if let Err(e) = self.tls.process_new_packets() {
                    let _ = self.tls.write_tls(&mut self.stream);
                    return Err(io::Error::other(e));
                }
                self.take_plain(piece)?;
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn take_plain(&mut self, piece: &mut [u8]) -> io::Result<()> {
        loop {
            match self.tls.reader().read(piece) {
                Ok(0) => return self.end_of_client(),
                Ok(n) => self.waiting.extend(&piece[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }

    /// What it has said already counts.
    fn end_of_client(&mut self) -> io::Result<()> {
        self.ended = true;
        if self.waiting.is_empty() {
            self.inner.shutdown(std::net::Shutdown::Write)?;
        }
        Ok(())
    }

    fn pass_on(&mut self) -> io::Result<bool> {
        let mut moved = false;
        while !self.waiting.is_empty() {
            let (bytes, _) = self.waiting.as_slices();
            match self.inner.write(bytes) {
                Ok(n) => drop(self.waiting.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(moved),
                Err(e) => return Err(e),
            }
            moved = true;
            if self.waiting.is_empty() && self.ended {
                self.inner.shutdown(std::net::Shutdown::Write)?;
            }
        }
        Ok(moved)
    }

    /// Only once the last piece has left: what waits for a client that does not read is bounded.
    fn take_answers(&mut self, piece: &mut [u8]) -> io::Result<bool> {
        if self.tls.wants_write() {
            return Ok(false);
        }
        match self.inner.read(piece) {
            Ok(0) => {
                self.tls.send_close_notify();
                while self.tls.wants_write() {
                    self.tls.write_tls(&mut self.stream)?;
                }
                Err(io::Error::new(ErrorKind::BrokenPipe, "the end"))
            }
            Ok(n) => {
                self.tls.writer().write_all(&piece[..n])?;
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn send(&mut self) -> io::Result<bool> {
        let mut moved = false;
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.stream) {
                Ok(_) => moved = true,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(moved)
    }
}
