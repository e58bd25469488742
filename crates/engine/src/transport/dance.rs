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
//! the same one at the same time, a kernel drops its own and keeps the accepted one. Two that both
//! do so are left with nothing, and a coin decides who waits for the other, so that they do not
//! repeat that forever. It can take minutes: with a kernel 8.4, which opens the data socket first
//! whatever its address, tries that began together meet again and again. So the side with the
//! greater address keeps its own: one of the two stays. It opens the missing one, too.
//!
//! Both sockets go by one path. The first one settles it, whoever opened it; without any, one path
//! is tried after the other. A node opens sockets by the path it is settled on, so a socket that
//! comes by another one means that the peer has left ours, and so does this node. Only if the peer
//! may not know yet of a socket that this node has opened, both choose the lesser path.
//!
//! A pair is looked at for a while before it is used: the peer may have put another socket in the place of one of them. It can
//! not where each side has opened one and nothing has crossed: it has taken in ours, or has nothing that could come before
//! it. Such a pair is used at once, unless `socket-check-timeout` says for how long to look. A kernel looks at it still, and
//! finds the first packet when it is done. Any pair is looked at no longer than until the peer uses it. Whatever was looked at for too
//! short a time ends as a handshake that fails, and is tried again.
//!
//! With `load-balance-paths` every pair is looked at. Every other path joins by a dance of its own, see `joining`; it is looked at
//! twice as long, for a kernel node does not see what arrived on a control socket before it has taken it in.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use codec::config::PathConfig;
use codec::wire::{self, Agreed, ChunkHeader, Command, Packet, Stream};
use runtime::{Completed, Conn, Connecting};
use vocab::Instant;
use vocab::options::NetOptions;

use super::listen::Expected;
use super::stream::{LinkId, Socket};
use crate::shard::io::Io;
use crate::shard::token::SocketOp;
use logging::{Level, log};

/// Pause after something went wrong that is not the peer's absence.
const PAUSE: Duration = Duration::from_secs(1);
/// Accepted sockets that have not said what they are.
const GREETINGS_MAX: usize = 8;
/// An accepted socket has so many `ping-timeout` to say what it is.
const GREETING: u32 = 4;
/// Bytes of an initial packet.
const INITIAL_LEN: usize = 8;

/// The keepalive of the data socket (wire §1.1).
const KEEPALIVE: (Duration, u32) = (Duration::from_secs(23), 9);

/// One try to connect, from the core's wish to a pair of sockets.
pub(super) struct Dance {
    link: LinkId,
    paths: Vec<PathConfig>,
    /// The path tried, or that of the sockets that are there.
    path: usize,
    /// The first of the present round: tried last, it is followed by a pause.
    first: usize,
    /// When the path was settled, if one of the sockets is there.
    settled: Instant,
    phase: Phase,
    data: Option<Socket>,
    control: Option<Socket>,
    /// Accepted, and the initial packet is not there yet.
    greetings: Vec<Greeting>,
    /// Accepted and known, waiting to be taken in; all by one path.
    arrived: VecDeque<Arrival>,
    done: bool,
    /// The path is to join a connection.
    joins: bool,
    /// A socket was replaced, or was lost: nodes may differ in which ones are the pair.
    crossed: bool,
    /// The peer is set up differently.
    mismatch: Option<Stranger>,
    /// The last trouble reported, so that it is not reported again every second.
    trouble: String,
}

/// A socket that the peer has opened, and that has not said what it is.
struct Greeting {
    socket: Socket,
    path: usize,
    until: Instant,
}

/// One that has.
struct Arrival {
    stream: Stream,
    socket: Socket,
    path: usize,
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
    /// `failed` is the path that was in use and has failed: the one after it comes first.
    pub(super) fn new(link: LinkId, paths: Vec<PathConfig>, failed: Option<PathConfig>) -> Dance {
        let failed = paths.iter().position(|path| Some(*path) == failed);
        let first = failed.map_or(0, |at| (at + 1) % paths.len());
        Dance {
            link,
            paths,
            path: first,
            first,
            settled: Instant::default(),
            phase: Phase::Pausing { until: Instant::default() },
            data: None,
            control: None,
            greetings: Vec::new(),
            arrived: VecDeque::new(),
            done: false,
            joins: false,
            crossed: false,
            mismatch: None,
            trouble: String::new(),
        }
    }

    /// One by which a path is to join a connection.
    pub(super) fn joining(link: LinkId, path: PathConfig) -> Dance {
        Dance { joins: true, ..Dance::new(link, vec![path], None) }
    }

    /// What has come by other paths than that of the pair, for their own dances.
    pub(super) fn others(&mut self) -> Vec<Dance> {
        let mut dances: Vec<Dance> = Vec::new();
        let mut dance_of = |path: PathConfig| {
            let at = dances.iter().position(|dance| dance.path() == Some(path));
            at.unwrap_or_else(|| {
                dances.push(Dance::joining(self.link, path));
                dances.len() - 1
            })
        };
        let mut taken = Vec::new();
        for greeting in self.greetings.drain(..).filter(|greeting| greeting.path != self.path) {
            taken.push((dance_of(self.paths[greeting.path]), Ok(Greeting { path: 0, ..greeting })));
        }
        for arrival in self.arrived.drain(..).filter(|arrival| arrival.path != self.path) {
            taken.push((dance_of(self.paths[arrival.path]), Err(Arrival { path: 0, ..arrival })));
        }
        for (at, socket) in taken {
            match socket {
                Ok(greeting) => dances[at].greetings.push(greeting),
                Err(arrival) => dances[at].arrived.push_back(arrival),
            }
        }
        dances
    }

    /// The path, if there is but one.
    pub(super) fn path(&self) -> Option<PathConfig> {
        self.paths.first().copied()
    }

    /// The pair was taken.
    pub(super) fn is_over(&self) -> bool {
        self.done
    }

    /// Both sockets are there; whether they stay is not certain yet.
    pub(super) fn is_checking(&self) -> bool {
        matches!(self.phase, Phase::Checking { .. })
    }

    /// The peer's settings are not those of this node.
    pub(super) fn take_mismatch(&mut self) -> Option<Stranger> {
        self.mismatch.take()
    }

    /// Listens on all paths and tries the first, unless the peer has come already.
    pub(super) fn start(&mut self, io: &mut Io, net: &NetOptions, label: &str) {
        self.listen_everywhere(io, label);
        match self.arrived.pop_front() {
            Some(arrival) => self.take_in(io, net, label, arrival),
            None => self.attempt(io, net, label),
        }
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
            || self.held().any(|s| s.serial == serial)
            || self.greetings.iter().any(|g| g.socket.serial == serial)
            || self.arrived.iter().any(|a| a.socket.serial == serial)
    }

    /// The sockets, once both are there and were found alive.
    pub(super) fn take_pair(&mut self) -> Option<(PathConfig, Socket, Socket)> {
        if !self.done {
            return None;
        }
        let (data, control) = self.data.take().zip(self.control.take())?;
        Some((self.paths[self.path], data, control))
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let phase = match &self.phase {
            Phase::Connecting { until, .. }
            | Phase::Listening { until }
            | Phase::Checking { until }
            | Phase::Pausing { until } => *until,
        };
        self.greetings.iter().map(|g| g.until).chain([phase]).min()
    }

    // ---- steps ---------------------------------------------------------------------------

    /// Opens a socket to the peer.
    fn attempt(&mut self, io: &mut Io, net: &NetOptions, label: &str) {
        if !self.is_settled() {
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
                self.next_path(io, net);
                self.listen(io, net, label);
            }
        }
    }

    /// An attempt has failed. A path that is settled may be left only after the peer had the time to
    /// open the missing socket, which it can if this node is the one that can not.
    fn next_path(&mut self, io: &Io, net: &NetOptions) {
        if self.is_settled() {
            let tried = self.settled + net.connect_int <= io.now();
            if !tried || self.paths.len() < 2 || !self.arrived.is_empty() {
                return;
            }
            (self.data, self.control, self.crossed) = (None, None, true);
        }
        self.path = (self.path + 1) % self.paths.len();
        if self.path == self.first {
            // All were tried: in their order from now on.
            (self.path, self.first) = (0, 0);
        }
    }

    fn held(&self) -> impl Iterator<Item = &Socket> {
        self.data.iter().chain(&self.control)
    }

    #[cfg(test)]
    pub(super) fn holds(&self, stream: Stream) -> bool {
        match stream {
            Stream::Data => self.data.is_some(),
            Stream::Control => self.control.is_some(),
        }
    }

    /// One of the sockets is there, so the path is settled.
    fn is_settled(&self) -> bool {
        self.held().next().is_some()
    }

    /// The path stays, though the peer has opened a socket by another one.
    fn keeps_path(&self, other: usize, io: &Io, net: &NetOptions) -> bool {
        let opened = self.held().any(|socket| !socket.accepted);
        let unheard = opened && io.now() < self.settled + net.ping_timeout * GREETING;
        unheard && rank(self.paths[self.path]) < rank(self.paths[other])
    }

    /// The peer has opened a socket that this node had opened before, and drops it when it finds
    /// that. If it has not found it after all this time, it knows nothing of this node's: it has
    /// restarted.
    fn keeps_own(&mut self, stream: Stream, io: &Io, net: &NetOptions) -> bool {
        let PathConfig { local, remote } = self.paths[self.path];
        let patience = net.connect_int + net.ping_timeout * GREETING;
        let opened = self.place(stream).as_ref().is_some_and(|socket| !socket.accepted);
        opened && is_greater(local, remote) && io.now() < self.settled + patience
    }

    /// Puts a socket of the path in its place. True if there was one.
    fn hold(&mut self, io: &Io, stream: Stream, socket: Socket) -> bool {
        if !self.is_settled() {
            self.settled = io.now();
        }
        self.place(stream).replace(socket).is_some()
    }

    /// Waits for the peer, or takes in a socket it has opened meanwhile.
    fn listen(&mut self, io: &mut Io, net: &NetOptions, label: &str) {
        // With other paths left to try there is no reason to wait for long.
        let wait = if self.path != self.first && !self.is_settled() {
            PAUSE
        } else {
            io.random.around(net.connect_int)
        };
        self.phase = Phase::Listening { until: io.now() + wait };
        if let Some(arrival) = self.arrived.pop_front() {
            self.take_in(io, net, label, arrival);
        }
    }

    /// Takes in a socket the peer opened, or closes it if it came by a path that is not to be.
    fn take_in(&mut self, io: &mut Io, net: &NetOptions, label: &str, arrival: Arrival) {
        let Arrival { stream, socket, path } = arrival;
        if path != self.path {
            if self.keeps_path(path, io, net) {
                self.crossed = true;
                return;
            }
            let PathConfig { local, remote } = self.paths[path];
            log!(Level::Debug, label, "the peer comes by {local} to {remote}");
            self.crossed |= self.is_settled();
            (self.data, self.control, self.path) = (None, None, path);
        }
        let own = self.keeps_own(stream, io, net);
        let crossed = own || self.hold(io, stream, socket);
        if crossed {
            self.crossed = true;
            log!(Level::Debug, label, "both nodes opened the {stream} socket");
        }
        if self.is_complete() {
            self.check(io, net);
        } else if crossed && !own && io.random.coin() {
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

    /// The peer has the same pair, or will have. By a transport that spreads data the kernel may not see what has arrived before
    /// it took the sockets in, so that is looked at always.
    fn is_certain(&self, net: &NetOptions) -> bool {
        let each_opened_one = match (&self.data, &self.control) {
            (Some(data), Some(control)) => data.accepted != control.accepted,
            _ => false,
        };
        let nothing_else = self.greetings.is_empty() && self.arrived.is_empty();
        each_opened_one && nothing_else && !self.crossed && !net.load_balance_paths
    }

    fn check(&mut self, io: &mut Io, net: &NetOptions) {
        let patience = match net.socket_check_timeout {
            own if own.is_zero() && self.is_certain(net) => Duration::ZERO,
            own if own.is_zero() => net.ping_timeout,
            own => own,
        };
        let patience = if self.joins { 2 * patience } else { patience };
        self.phase = Phase::Checking { until: io.now() + patience };
        self.look_for_use();
    }

    /// A peer that uses a path has taken it in already, and waits for this node.
    fn look_for_use(&mut self) {
        let used = |socket: &Socket| socket.conn.rx.available() > 0;
        if self.is_checking() && self.is_complete() && self.held().any(used) {
            self.done = true;
        }
    }

    // ---- events --------------------------------------------------------------------------

    /// The peer has connected. Its initial packet is still to come.
    pub(super) fn accepted(&mut self, io: &mut Io, net: &NetOptions, conn: Conn) {
        if self.greetings.len() == GREETINGS_MAX {
            return;
        }
        let Some(path) = self.path_of(&conn) else { return };
        set_up(&conn, net);
        let serial = io.serial();
        let mut socket = Socket::new(self.link, serial, conn, true);
        socket.arm(&mut io.ring);
        let until = io.now() + net.ping_timeout * GREETING;
        self.greetings.push(Greeting { socket, path, until });
    }

    /// The peer has connected by one of the paths.
    pub(super) fn has_path_of(&self, conn: &Conn) -> bool {
        self.path_of(conn).is_some()
    }

    /// The path by which a connection came, by both addresses; the peer's port says nothing. `None` if
    /// it is gone already. Where several fit, the present one does.
    fn path_of(&self, conn: &Conn) -> Option<usize> {
        let (local, remote) = (conn.local_addr()?, conn.peer_addr()?.ip().to_canonical());
        let fits = |path: &PathConfig| {
            let ip = path.local.ip();
            path.remote.ip().to_canonical() == remote
                && path.local.port() == local.port()
                && (ip.is_unspecified() || ip.to_canonical() == local.ip().to_canonical())
        };
        let present = self.paths.get(self.path).is_some_and(fits).then_some(self.path);
        present.or_else(|| self.paths.iter().position(fits))
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
                if let Some(at) = self.greetings.iter().position(|g| g.socket.serial == serial) {
                    self.greeted(io, net, label, at);
                } else if !alive {
                    self.lost(io, serial);
                } else {
                    self.look_for_use();
                }
            }
        }
    }

    fn socket(&mut self, serial: u32) -> Option<&mut Socket> {
        let held = self.data.iter_mut().chain(&mut self.control);
        let greeting = self.greetings.iter_mut().map(|g| &mut g.socket);
        let arrived = self.arrived.iter_mut().map(|a| &mut a.socket);
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
                self.next_path(io, net);
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
        if net.load_balance_paths {
            socket.conn.tx.push_bytes(&ChunkHeader::INITIAL.to_bytes());
        }
        let initial = match stream {
            Stream::Data => Packet::InitialData,
            Stream::Control => Packet::InitialMeta,
        };
        socket.queue(&initial, None, &Agreed::NOTHING, None);
        socket.flush(&mut io.ring);
        // Nothing is expected yet, but the end of the stream shows here.
        socket.arm(&mut io.ring);
        self.hold(io, stream, socket);
        if self.is_complete() { self.check(io, net) } else { self.listen(io, net, label) }
    }

    /// Something arrived on a socket that has not said what it is.
    fn greeted(&mut self, io: &mut Io, net: &NetOptions, label: &str, at: usize) {
        let socket = &mut self.greetings[at].socket;
        let stream = match initial_packet(socket, net.load_balance_paths) {
            Ok(Some(stream)) => stream,
            Ok(None) if socket.ended.is_none() => return socket.arm(&mut io.ring),
            Ok(None) => {
                self.greetings.swap_remove(at);
                return;
            }
            Err(stranger) => {
                self.greetings.swap_remove(at);
                match stranger {
                    Stranger::Wire(_) | Stranger::Chunk(_) => {
                        log!(Level::Warn, label, "closed a connection: {stranger}");
                    }
                    Stranger::InChunks | Stranger::NoChunks => self.mismatch = Some(stranger),
                }
                return;
            }
        };
        let Greeting { mut socket, path, .. } = self.greetings.swap_remove(at);
        // What came with the initial packet could not be read while more is received, and nothing more may come before it is.
        if socket.conn.rx.available() == 0 {
            socket.arm(&mut io.ring);
        }
        self.arrived.retain(|earlier| earlier.path == path);
        let arrival = Arrival { stream, socket, path };
        match self.phase {
            Phase::Listening { .. } | Phase::Pausing { .. } => {
                self.take_in(io, net, label, arrival);
            }
            // The path that is tried may be dead, and this one is not.
            Phase::Connecting { .. } if path != self.path && !self.keeps_path(path, io, net) => {
                self.phase = Phase::Pausing { until: io.now() };
                self.take_in(io, net, label, arrival);
            }
            _ => self.arrived.push_back(arrival),
        }
    }

    /// A socket that was settled has ended.
    fn lost(&mut self, io: &mut Io, serial: u32) {
        for place in [&mut self.data, &mut self.control] {
            self.crossed |= place.take_if(|socket| socket.serial == serial).is_some();
        }
        self.arrived.retain(|arrival| arrival.socket.serial != serial);
        if matches!(self.phase, Phase::Listening { .. } | Phase::Checking { .. }) {
            // If the peer has replaced it, its new socket comes first.
            self.phase = Phase::Pausing { until: io.now() + PAUSE };
        }
    }

    pub(super) fn timeout(&mut self, io: &mut Io, net: &NetOptions, label: &str) {
        let now = io.now();
        self.greetings.retain(|greeting| now < greeting.until);
        match &self.phase {
            Phase::Checking { until } if *until <= now => self.done = true,
            Phase::Listening { until } if *until <= now => self.attempt(io, net, label),
            Phase::Pausing { until } if *until <= now => match self.arrived.pop_front() {
                Some(arrival) => self.take_in(io, net, label, arrival),
                None => self.attempt(io, net, label),
            },
            Phase::Connecting { until, .. } if *until <= now => {
                log!(Level::Debug, label, "{} does not answer", self.paths[self.path].remote);
                // Dropping the connection ends the attempt.
                self.phase = Phase::Pausing { until: now };
                self.next_path(io, net);
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

/// Orders paths, the same way at both ends.
fn rank(path: PathConfig) -> [SocketAddr; 2] {
    let PathConfig { local, remote } = path;
    if local < remote { [local, remote] } else { [remote, local] }
}

/// Why a socket is not one of the connection's.
#[derive(Debug)]
pub(super) enum Stranger {
    /// It does not begin as DRBD's do.
    Wire(wire::WireError),
    /// Nor in chunks, as it should.
    Chunk(ChunkHeader),
    /// The peer balances load, and this node does not.
    InChunks,
    /// This node balances load, and the peer does not.
    NoChunks,
}

impl From<wire::WireError> for Stranger {
    fn from(error: wire::WireError) -> Stranger {
        Stranger::Wire(error)
    }
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (who, other) = match self {
            Stranger::Wire(error) => return write!(f, "it did not begin as DRBD's: {error}"),
            Stranger::Chunk(ChunkHeader { sequence, bytes }) => {
                return write!(
                    f,
                    "it did not begin as DRBD's: chunk {sequence} of {bytes} bytes, where an initial packet is \
                     chunk 0 of 8"
                );
            }
            Stranger::InChunks => ("the peer", "this node does not"),
            Stranger::NoChunks => ("this node", "the peer does not"),
        };
        write!(
            f,
            "{who} spreads it over all paths and {other}; set `transport lb-tcp` and `load-balance-paths yes` \
             on both nodes, or on neither"
        )
    }
}

/// Which socket the peer's initial packet says this is, once it is there.
fn initial_packet(socket: &mut Socket, in_chunks: bool) -> Result<Option<Stream>, Stranger> {
    let rx = &mut socket.conn.rx;
    let Some(bytes) = rx.peek(INITIAL_LEN) else { return Ok(None) };
    if in_chunks {
        let bytes = bytes.try_into().expect("both have eight bytes");
        match ChunkHeader::from_bytes(bytes) {
            ChunkHeader::INITIAL => {}
            _ if stream_in(&bytes).is_ok_and(|stream| stream.is_some()) => {
                return Err(Stranger::NoChunks);
            }
            header => return Err(Stranger::Chunk(header)),
        }
        let all = ChunkHeader::LEN + INITIAL_LEN;
        let Some(bytes) = rx.peek(all) else { return Ok(None) };
        let stream = stream_in(&bytes[ChunkHeader::LEN..])?;
        rx.consume(all);
        return Ok(stream);
    }
    if bytes == ChunkHeader::INITIAL.to_bytes() {
        return Err(Stranger::InChunks);
    }
    let stream = stream_in(bytes)?;
    if stream.is_some() {
        rx.consume(INITIAL_LEN);
    }
    Ok(stream)
}

/// The socket that an initial packet names.
fn stream_in(bytes: &[u8]) -> Result<Option<Stream>, wire::WireError> {
    let nothing = Agreed::NOTHING;
    let header = match wire::decode_header(bytes, Stream::Data, &nothing) {
        Err(wire::WireError::WrongStream { .. }) => {
            wire::decode_header(bytes, Stream::Control, &nothing)
        }
        result => result,
    }?;
    match header.map(|header| header.command()) {
        None => Ok(None),
        Some(Command::InitialData) => Ok(Some(Stream::Data)),
        Some(Command::InitialMeta) => Ok(Some(Stream::Control)),
        Some(command) => Err(wire::WireError::NotAgreed { command, version: 0, features: 0 }),
    }
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
