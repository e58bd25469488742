//! Two nodes that both listen and both connect agree on one pair of sockets (wire §1.1).
//!
//! ```text
//!            ┌────────────────────────────────────────────┐
//!            ▼                                            │ accept wait over, or a peer's
//! attempt ─► connecting ─► listening ─────────────────────┘ socket was taken in
//!                              │ both sockets are there
//!                              ▼
//!                           checking ─► done
//! ```
//!
//! The side that connected says with an initial packet which socket it is. If both sides open
//! the same one at the same time, each drops its own and keeps the accepted one; a coin decides
//! who opens the missing one, so that they do not repeat that forever.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use codec::config::PathConfig;
use codec::wire::{self, Agreed, Command, Packet, Stream};
use runtime::{Completed, Conn, Connecting};
use vocab::Instant;
use vocab::options::NetOptions;

use super::listen::Expected;
use super::stream::{LinkId, Socket};
use crate::log::{Level, log};
use crate::shard::io::Io;
use crate::shard::token::SocketOp;

/// Pause after something went wrong that is not the peer's absence.
const PAUSE: std::time::Duration = std::time::Duration::from_secs(1);
/// Accepted sockets that have not said what they are.
const GREETINGS_MAX: usize = 8;
/// Bytes of an initial packet.
const INITIAL_LEN: usize = 8;

/// The keepalive of the data socket (wire §1.1).
const KEEPALIVE: (std::time::Duration, u32) = (std::time::Duration::from_secs(23), 9);

/// One try to connect, from the core's wish to a pair of sockets.
pub(super) struct Dance {
    link: LinkId,
    paths: Vec<PathConfig>,
    /// The path tried or in use.
    path: usize,
    phase: Phase,
    data: Option<Socket>,
    control: Option<Socket>,
    /// Accepted, and the initial packet is not there yet.
    greetings: Vec<(Socket, Instant)>,
    /// Accepted and known, waiting to be taken in.
    arrived: VecDeque<(Stream, Socket)>,
    done: bool,
    /// The last trouble reported, so that it is not reported again every second.
    trouble: String,
}

enum Phase {
    /// An outgoing connection is being established.
    Connecting { serial: u32, connecting: Connecting, until: Instant },
    /// Waiting for the peer to connect; then another attempt.
    Listening { until: Instant },
    /// Both sockets are there; are they still in a moment?
    Checking { until: Instant },
    /// Something went wrong; another attempt then.
    Pausing { until: Instant },
}

impl Dance {
    pub(super) fn new(link: LinkId, paths: Vec<PathConfig>) -> Dance {
        Dance {
            link,
            paths,
            path: 0,
            phase: Phase::Pausing { until: Instant::default() },
            data: None,
            control: None,
            greetings: Vec::new(),
            arrived: VecDeque::new(),
            done: false,
            trouble: String::new(),
        }
    }

    /// Listens on all paths and tries the first.
    pub(super) fn start(&mut self, io: &mut Io, net: &NetOptions, label: &str) {
        self.listen_everywhere(io, label);
        self.attempt(io, net, label);
    }

    /// Listens on all paths and tries later: the last try has failed for a reason that is there to stay,
    /// unless the peer comes by itself.
    pub(super) fn rest(&mut self, io: &mut Io, net: &NetOptions, label: &str) {
        self.listen_everywhere(io, label);
        self.phase = Phase::Pausing { until: io.now() + io.random.around(net.connect_int) };
    }

    fn listen_everywhere(&mut self, io: &mut Io, label: &str) {
        for path in &self.paths {
            let remote = path.remote.ip().to_canonical();
            let who = Expected { remote, resource: self.link.resource, node: self.link.node };
            if let Err(errno) = io.listeners.expect(&mut io.ring, path.local, who) {
                let text = format!("can not listen at {}: {errno}", path.local);
                if text != self.trouble {
                    log!(Level::Warn, label, "{text}; the address must be up and its port free");
                    self.trouble = text;
                }
            }
        }
    }

    /// True if one of the sockets has that serial.
    pub(super) fn owns(&self, serial: u32) -> bool {
        matches!(self.phase, Phase::Connecting { serial: s, .. } if s == serial)
            || self.data.iter().chain(&self.control).any(|s| s.serial == serial)
            || self.greetings.iter().any(|(s, _)| s.serial == serial)
            || self.arrived.iter().any(|(_, s)| s.serial == serial)
    }

    /// The sockets, once both are there and were found alive.
    pub(super) fn take_pair(&mut self) -> Option<(PathConfig, Socket, Socket)> {
        if !self.done {
            return None;
        }
        let pair = self.data.take().zip(self.control.take());
        let (data, control) = pair.expect("checked before it was done");
        Some((self.paths[self.path], data, control))
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let phase = match &self.phase {
            Phase::Connecting { until, .. }
            | Phase::Listening { until }
            | Phase::Checking { until }
            | Phase::Pausing { until } => *until,
        };
        self.greetings.iter().map(|(_, until)| *until).chain([phase]).min()
    }

    // ---- steps ---------------------------------------------------------------------------

    /// Opens a socket to the peer.
    fn attempt(&mut self, io: &mut Io, net: &NetOptions, label: &str) {
        if self.data.is_none() && self.control.is_none() {
            // One path after the other, as long as none is settled.
            self.listen_everywhere(io, label);
        }
        let Some(path) = self.paths.get(self.path).copied() else {
            self.phase = Phase::Pausing { until: io.now() + net.connect_int };
            return;
        };
        let serial = io.serial();
        let token = self.link.token(SocketOp::Connect, serial);
        let from = SocketAddr::new(path.local.ip(), 0);
        match Connecting::tcp(&mut io.ring, token, path.remote, Some(from)) {
            Ok(connecting) => {
                let until = io.now() + net.connect_int;
                self.phase = Phase::Connecting { serial, connecting, until };
            }
            Err(errno) => {
                let text = format!("can not connect from {}: {errno}", from.ip());
                if text != self.trouble {
                    log!(Level::Warn, label, "{text}; is the address assigned to this host?");
                    self.trouble = text;
                }
                self.next_path();
                self.listen(io, net, label);
            }
        }
    }

    fn next_path(&mut self) {
        if self.data.is_none() && self.control.is_none() && !self.paths.is_empty() {
            self.path = (self.path + 1) % self.paths.len();
        }
    }

    /// Waits for the peer, or takes in a socket it has opened meanwhile.
    fn listen(&mut self, io: &mut Io, net: &NetOptions, label: &str) {
        // With other paths left to try there is no reason to wait for long.
        let wait = if self.path > 0 && self.data.is_none() && self.control.is_none() {
            PAUSE
        } else {
            io.random.around(net.connect_int)
        };
        self.phase = Phase::Listening { until: io.now() + wait };
        if let Some((stream, socket)) = self.arrived.pop_front() {
            self.take_in(io, net, label, stream, socket);
        }
    }

    /// Takes in a socket the peer opened.
    fn take_in(
        &mut self,
        io: &mut Io,
        net: &NetOptions,
        label: &str,
        stream: Stream,
        socket: Socket,
    ) {
        let crossed = self.place(stream).replace(socket).is_some();
        if crossed {
            log!(Level::Debug, label, "both nodes opened the {stream} socket");
        }
        if self.is_complete() {
            self.check(io, net);
        } else if crossed && io.random.coin() {
            self.listen(io, net, label);
        } else {
            self.attempt(io, net, label);
        }
    }

    fn place(&mut self, stream: Stream) -> &mut Option<Socket> {
        match stream {
            Stream::Data => &mut self.data,
            Stream::Control => &mut self.control,
        }
    }

    fn is_complete(&self) -> bool {
        self.data.is_some() && self.control.is_some()
    }

    fn check(&mut self, io: &mut Io, net: &NetOptions) {
        self.phase = Phase::Checking { until: io.now() + net.ping_timeout };
    }

    // ---- events --------------------------------------------------------------------------

    /// The peer has connected. Its initial packet is still to come.
    pub(super) fn accepted(&mut self, io: &mut Io, net: &NetOptions, conn: Conn) {
        if self.greetings.len() == GREETINGS_MAX {
            return;
        }
        set_up(&conn, net);
        let serial = io.serial();
        let mut socket = Socket::new(self.link, serial, conn, true);
        socket.arm(&mut io.ring);
        self.greetings.push((socket, io.now() + net.ping_timeout * 4));
    }

    pub(super) fn completed(
        &mut self,
        io: &mut Io,
        net: &NetOptions,
        label: &str,
        op: SocketOp,
        serial: u32,
        done: Completed,
    ) {
        match op {
            SocketOp::Connect => self.connected(io, net, label, done),
            SocketOp::Send => {
                let now = io.now();
                if let Some(socket) = self.socket(serial)
                    && socket.sent(done, now)
                {
                    socket.flush(&mut io.ring);
                }
            }
            SocketOp::Receive => {
                let Some(socket) = self.socket(serial) else { return };
                let alive = socket.received(done);
                if let Some(at) = self.greetings.iter().position(|(s, _)| s.serial == serial) {
                    self.greeted(io, net, label, at);
                } else if !alive {
                    self.lost(io, serial);
                }
            }
        }
    }

    fn socket(&mut self, serial: u32) -> Option<&mut Socket> {
        let held = self.data.iter_mut().chain(&mut self.control);
        let greeting = self.greetings.iter_mut().map(|(socket, _)| socket);
        let arrived = self.arrived.iter_mut().map(|(_, socket)| socket);
        held.chain(greeting).chain(arrived).find(|socket| socket.serial == serial)
    }

    /// The outgoing connection is established, or will not be.
    fn connected(&mut self, io: &mut Io, net: &NetOptions, label: &str, done: Completed) {
        let next = Phase::Pausing { until: io.now() };
        let Phase::Connecting { serial, connecting, .. } = std::mem::replace(&mut self.phase, next)
        else {
            unreachable!("the serial is that of the connection being established");
        };
        let conn = match connecting.on_completed(done, &io.pool) {
            Ok(conn) => conn,
            Err(errno) => {
                let path = self.paths[self.path];
                log!(Level::Debug, label, "{} can not be reached: {errno}", path.remote);
                self.next_path();
                return self.listen(io, net, label);
            }
        };
        let path = self.paths[self.path];
        let stream = match (&self.data, &self.control) {
            (None, None) if is_greater(path.local, path.remote) => Stream::Data,
            (_, None) => Stream::Control,
            (None, Some(_)) => Stream::Data,
            (Some(_), Some(_)) => return self.check(io, net),
        };
        set_up(&conn, net);
        let mut socket = Socket::new(self.link, serial, conn, false);
        let initial = match stream {
            Stream::Data => Packet::InitialData,
            Stream::Control => Packet::InitialMeta,
        };
        socket.queue(&initial, None, &Agreed::NOTHING, None);
        socket.flush(&mut io.ring);
        // Nothing is expected yet, but the end of the stream shows here.
        socket.arm(&mut io.ring);
        *self.place(stream) = Some(socket);
        if self.is_complete() { self.check(io, net) } else { self.listen(io, net, label) }
    }

    /// Something arrived on a socket that has not said what it is.
    fn greeted(&mut self, io: &mut Io, net: &NetOptions, label: &str, at: usize) {
        let socket = &mut self.greetings[at].0;
        let stream = match initial_packet(socket) {
            Ok(Some(stream)) => stream,
            Ok(None) if socket.ended.is_none() => return socket.arm(&mut io.ring),
            Ok(None) => {
                self.greetings.swap_remove(at);
                return;
            }
            Err(error) => {
                log!(
                    Level::Warn,
                    label,
                    "closed a connection that did not begin as DRBD's: {error}"
                );
                self.greetings.swap_remove(at);
                return;
            }
        };
        let (mut socket, _) = self.greetings.swap_remove(at);
        socket.arm(&mut io.ring);
        if matches!(self.phase, Phase::Listening { .. } | Phase::Pausing { .. }) {
            self.take_in(io, net, label, stream, socket);
        } else {
            self.arrived.push_back((stream, socket));
        }
    }

    /// A socket that was settled has ended.
    fn lost(&mut self, io: &mut Io, serial: u32) {
        for place in [&mut self.data, &mut self.control] {
            place.take_if(|socket| socket.serial == serial);
        }
        self.arrived.retain(|(_, socket)| socket.serial != serial);
        if matches!(self.phase, Phase::Listening { .. } | Phase::Checking { .. }) {
            // If the peer has replaced it, its new socket comes first.
            self.phase = Phase::Pausing { until: io.now() + PAUSE };
        }
    }

    pub(super) fn timeout(&mut self, io: &mut Io, net: &NetOptions, label: &str) {
        let now = io.now();
        self.greetings.retain(|(_, until)| now < *until);
        match &self.phase {
            Phase::Checking { until } if *until <= now => self.done = true,
            Phase::Listening { until } if *until <= now => self.attempt(io, net, label),
            Phase::Pausing { until } if *until <= now => match self.arrived.pop_front() {
                Some((stream, socket)) => self.take_in(io, net, label, stream, socket),
                None => self.attempt(io, net, label),
            },
            Phase::Connecting { until, .. } if *until <= now => {
                log!(Level::Debug, label, "{} does not answer", self.paths[self.path].remote);
                // Dropping the connection ends the attempt.
                self.phase = Phase::Pausing { until: now };
                self.next_path();
                self.listen(io, net, label);
            }
            _ => {}
        }
    }
}

/// The options of a new socket.
fn set_up(conn: &Conn, net: &NetOptions) {
    let (interval, count) = KEEPALIVE;
    let size = |bytes: vocab::Bytes| (bytes.0 > 0).then_some(bytes.0 as usize);
    // None of these can fail on a TCP socket but for values out of range, and a connection with
    // the kernel's defaults is better than none.
    let _ = conn.set_nodelay();
    let _ = conn.set_keepalive(interval, interval, count);
    let _ = conn.set_buffer_sizes(size(net.sndbuf_size), size(net.rcvbuf_size));
}

/// Which socket the peer's initial packet says this is, once it is there.
fn initial_packet(socket: &mut Socket) -> Result<Option<Stream>, wire::WireError> {
    let Some(bytes) = socket.conn.rx.peek(INITIAL_LEN) else { return Ok(None) };
    let nothing = Agreed::NOTHING;
    let header = match wire::decode_header(bytes, Stream::Data, &nothing) {
        Err(wire::WireError::WrongStream { .. }) => {
            wire::decode_header(bytes, Stream::Control, &nothing)
        }
        result => result,
    }?;
    let stream = match header.map(|header| header.command()) {
        None => return Ok(None),
        Some(Command::InitialData) => Stream::Data,
        Some(Command::InitialMeta) => Stream::Control,
        Some(command) => {
            return Err(wire::WireError::NotAgreed { command, version: 0, features: 0 });
        }
    };
    socket.conn.rx.consume(INITIAL_LEN);
    Ok(Some(stream))
}

/// The order of addresses as DRBD compares them: family, port, then the address bytes; both are
/// of one family (wire §1.1).
fn is_greater(own: SocketAddr, peer: SocketAddr) -> bool {
    let key = |address: SocketAddr| {
        let bytes = match address.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        (address.port().to_be_bytes(), bytes)
    };
    key(own) > key(peer)
}
