//! Connections to peers: two TCP sockets each (wire §1), or two by every path (`load-balance-paths`).
//!
//! - `listen`: listening sockets; `stream`: one socket.
//! - `channel`: one stream, packets to bytes and back; `spread`: a stream over several sockets.
//! - `joining`: paths that come to a connection which has one.
//! - `integrity`: digests of data on the wire.
//! - `dance`: how two nodes that both listen and both connect end up with one pair of sockets.
//! - `securing`, with `crate::tls`: both sockets are encrypted then, if they are to be.
//! - `ping`: how long the peer takes to answer one.
//! - This file: a [`Link`], from the core's wish to connect until the sockets are closed again.
//!
//! ```text
//! Idle ──connect()──► dance ──► (securing) ──Event::Up──► up ──Event::Down──► Idle
//!   ▲                   │           │                     │
//!   └────── close() ◄───┴───────────┴─────────────────────┘   (queued packets leave for at most a second)
//! ```
//!
//! A link decides nothing about replication. It hands packets to its owner and tells when the
//! sockets are there and when they are gone.

mod channel;
mod dance;
mod handover;
mod integrity;
mod joining;
mod listen;
mod ping;
mod securing;
mod spread;
mod stream;
#[cfg(test)]
mod tests;

use std::time::Duration;

use codec::admin::RoundTrip;
use codec::config::PathConfig;
use codec::wire::{Agreed, Features, Packet, Stream, feature};
use replication::io::LinkLoss;
use runtime::{Buf, Completed, Conn, Errno};
use vocab::Instant;
use vocab::options::NetOptions;

use crate::shard::io::Io;
use crate::shard::token::SocketOp;
use logging::{Level, log};

use crate::tls::Credentials;
use channel::{Channel, Read};
use dance::Dance;
pub(crate) use handover::FrozenLink;
use integrity::Integrity;
pub(crate) use listen::Listeners;
use ping::PingTime;
use securing::{Progress, Securing, Trouble};
pub(crate) use stream::LinkId;
use stream::{Broken, Socket};

/// How long queued packets may take to leave before the sockets are closed.
const PARTING: Duration = Duration::from_secs(1);
/// When one socket has ended, how long the other may still deliver what is on its way.
const LINGER: Duration = Duration::from_millis(200);

/// Something the owner must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// Both sockets are up.
    Up {
        /// This node accepted the control socket.
        tie_break: bool,
    },
    /// Bytes have arrived: read them with [`Link::read`].
    Readable(Stream),
    /// A path more is in use: read both streams.
    Joined,
    /// The sockets are gone.
    Down(LinkLoss),
}

/// What [`Link::read`] found.
pub(crate) enum Next {
    /// A packet.
    Packet(Packet, Option<Buf>),
    /// Nothing more for the moment.
    Nothing,
    /// The stream can not go on, for this reason; the sockets are closed.
    Garbage(String),
}

/// The connection to one peer, as far as sockets go.
pub(crate) struct Link {
    id: LinkId,
    /// `resource/peer`, for the log.
    label: String,
    /// Its name, as its certificate has it.
    peer: String,
    net: NetOptions,
    /// What the last try found that is there to stay: the peer is set up differently, or can not be believed.
    trouble: Option<String>,
    paths: Vec<PathConfig>,
    /// A path of the last connection, if it ended because that failed.
    failed: Option<PathConfig>,
    state: State,
    closing: Vec<Closing>,
    /// Nothing more is read.
    paused: bool,
}

enum State {
    Idle,
    Dancing(Box<Dance>),
    Securing(Box<Securing>),
    Up(Box<Up>),
}

struct Up {
    /// Those in use, in their order: one, but for `load-balance-paths`. Each stream has a socket by each of them.
    paths: Vec<PathConfig>,
    data: Channel,
    control: Channel,
    /// Other paths are being tried, and join.
    joining: Vec<Dance>,
    own: Option<Features>,
    agreed: Agreed,
    integrity: Integrity,
    /// One of the sockets has ended; report it then.
    ended: Option<(Instant, LinkLoss)>,
    /// Reading waits for memory.
    starved: bool,
    ping: PingTime,
}

/// Sockets that are about to be closed.
struct Closing {
    sockets: Vec<Socket>,
    until: Instant,
}

impl Up {
    fn channel(&mut self, stream: Stream) -> &mut Channel {
        match stream {
            Stream::Data => &mut self.data,
            Stream::Control => &mut self.control,
        }
    }

    /// The stream and the path of a socket.
    fn place_of(&self, serial: u32) -> Option<(Stream, usize)> {
        let data = self.data.position(serial).map(|at| (Stream::Data, at));
        data.or_else(|| self.control.position(serial).map(|at| (Stream::Control, at)))
    }

    fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.data.sockets.iter().chain(&self.control.sockets)
    }

    /// Takes note of an end. Other sockets may have packets that were sent before it, such as
    /// the reason for the end, so the report waits for their ends or a moment.
    fn note_end(&mut self, now: Instant) {
        let failed = self.sockets().any(|s| matches!(s.ended, Some(Some(_))));
        let loss = if failed { LinkLoss::Broken } else { LinkLoss::Closed };
        let all = self.data.has_ended() && self.control.has_ended();
        let at = match self.ended {
            _ if all => now,
            Some((at, _)) => at,
            None => now + LINGER,
        };
        self.ended = Some((at, loss));
    }

    /// The path that seems to have failed: nothing answers at its other end.
    fn failed(&self) -> Option<PathConfig> {
        // A socket that was reset or closed has a host at the other end that did that.
        let answered = [Errno::ECONNRESET, Errno::EPIPE];
        let dead = |socket: &Socket| socket.ended.flatten().is_some_and(|e| !answered.contains(&e));
        let sockets = || self.paths.iter().zip(self.data.sockets.iter().zip(&self.control.sockets));
        let mut dead = sockets().filter(|(_, (data, control))| dead(data) || dead(control));
        if let Some((path, _)) = dead.next() {
            return Some(*path);
        }
        if !self.ping.is_awaited() {
            return None;
        }
        // Of several, that by which least gets through.
        let waiting = |(_, (data, control)): &(_, (&Socket, &Socket))| {
            spread::on_its_way(data) + spread::on_its_way(control)
        };
        sockets().rev().max_by_key(waiting).map(|(path, _)| *path)
    }

    /// When the peer will have failed to take data for too long: a data socket may stall for
    /// `timeout` `ko-count` times, a control socket not even once (wire §1.2).
    fn stalled_at(&self, net: &NetOptions, now: Instant) -> Option<Instant> {
        let at = |socket: &Socket, patience: Duration| {
            let stalled = socket.conn.tx.stalled_for(now);
            (!socket.is_sent()).then(|| now + patience.saturating_sub(stalled))
        };
        let patience = net.timeout * net.ko_count;
        let data = self.data.sockets.iter().filter(|_| net.ko_count > 0);
        let data = data.filter_map(|socket| at(socket, patience));
        let control = self.control.sockets.iter().filter_map(|socket| at(socket, net.timeout));
        data.chain(control).min()
    }

    /// When a path will have failed to deliver its part of a stream for too long, while others go on.
    fn stuck_at(&self, net: &NetOptions) -> Option<(Instant, Stream)> {
        let since = [&self.data, &self.control].map(Channel::stuck_since);
        let since = since.into_iter().zip([Stream::Data, Stream::Control]);
        since.filter_map(|(since, stream)| Some((since? + net.timeout, stream))).min_by_key(|s| s.0)
    }
}

impl Link {
    /// A link that is not connected to anything. `label` names it in the log.
    pub(crate) fn new(id: LinkId, label: String, peer: &str, net: NetOptions) -> Link {
        let (peer, trouble, paths, failed) = (peer.to_owned(), None, Vec::new(), None);
        let (state, closing, paused) = (State::Idle, Vec::new(), false);
        Link { id, label, peer, net, trouble, paths, failed, state, closing, paused }
    }

    /// Everything is encrypted, or nothing is sent.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.net.tls
    }

    /// Why there is no connection, if that is there to stay until somebody changes something.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// The paths, and whether each is in use.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (PathConfig, bool)> {
        let used = match &self.state {
            State::Up(up) => &up.paths[..],
            _ => &[],
        };
        self.paths.iter().map(move |path| (*path, used.contains(path)))
    }

    /// Replaces the options. What concerns sockets applies from the next connection on; that begins
    /// at once if it is to be encrypted or spread and the present one is not, or the other way round.
    pub(crate) fn set_net(&mut self, io: &mut Io, net: NetOptions) -> Option<Event> {
        let tls = self.net.tls != net.tls;
        let spread = self.net.load_balance_paths != net.load_balance_paths;
        self.net = net;
        match self.state {
            State::Up(_) if tls || spread => {
                self.drop_now(io);
                Some(Event::Down(LinkLoss::Broken))
            }
            State::Dancing(_) if spread => {
                self.connect(io);
                None
            }
            State::Securing(_) if tls || spread => {
                self.connect(io);
                None
            }
            _ => None,
        }
    }

    /// Replaces the paths. A path in use stays in use, unless it is taken away: then the connection
    /// ends, and is made by one that is left.
    pub(crate) fn set_paths(&mut self, io: &mut Io, paths: Vec<PathConfig>) -> Option<Event> {
        self.paths = paths;
        match &mut self.state {
            State::Up(up) if !up.paths.iter().all(|path| self.paths.contains(path)) => {
                self.drop_now(io);
                Some(Event::Down(LinkLoss::Broken))
            }
            State::Up(up) => {
                up.leave(io, self.id, &self.paths);
                None
            }
            State::Dancing(_) | State::Securing(_) => {
                // Begin anew, so that everything fits the new paths.
                io.listeners.forget(self.id.resource, self.id.node);
                self.connect(io);
                None
            }
            _ => None,
        }
    }

    /// Data waits in the socket's queue: the peer does not keep up.
    pub(crate) fn queued_bytes(&self) -> usize {
        match &self.state {
            State::Up(up) => up.data.queued_bytes(),
            _ => 0,
        }
    }

    /// TCP's round trips on the data socket; `None` if there is none.
    pub(crate) fn round_trip(&self) -> Option<RoundTrip> {
        let State::Up(up) = &self.state else { return None };
        let tcp = up.data.sockets[0].conn.tcp_info().ok()?;
        let us = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        Some(RoundTrip { least_us: us(tcp.min_rtt), smoothed_us: us(tcp.rtt) })
    }

    /// The data socket, while the connection is up; that of the first path.
    pub(crate) fn data_socket(&self) -> Option<&Conn> {
        match &self.state {
            State::Up(up) => Some(&up.data.sockets[0].conn),
            _ => None,
        }
    }

    /// How long the peer took for its last answer to a ping on this connection.
    pub(crate) fn ping_time(&self) -> Option<Duration> {
        match &self.state {
            State::Up(up) => up.ping.last,
            _ => None,
        }
    }

    /// Tries to reach the peer until [`Event::Up`] or [`Link::close`].
    pub(crate) fn connect(&mut self, io: &mut Io) {
        let dance = Dance::new(self.id, self.paths.clone(), self.failed.take());
        self.state = State::Dancing(Box::new(dance));
        if let State::Dancing(dance) = &mut self.state {
            dance.start(io, &self.net, &self.label);
        }
    }

    /// Sends what is queued, then closes the sockets; or stops trying.
    pub(crate) fn close(&mut self, io: &mut Io) {
        io.listeners.forget(self.id.resource, self.id.node);
        self.trouble = None;
        if let State::Up(up) = std::mem::replace(&mut self.state, State::Idle) {
            self.failed = up.failed();
            let Up { data, control, .. } = *up;
            let mut sockets = data.into_sockets();
            sockets.extend(control.into_sockets());
            self.part(io, sockets);
        }
    }

    /// Closes sockets once what is queued has been sent.
    fn part(&mut self, io: &mut Io, sockets: Vec<Socket>) {
        let mut closing = Closing { sockets, until: io.now() + PARTING };
        for socket in &mut closing.sockets {
            socket.finish(&mut io.ring);
        }
        self.closing.push(closing);
        self.reap(io.now());
    }

    /// Closes the sockets at once.
    pub(crate) fn drop_now(&mut self, io: &mut Io) {
        io.listeners.forget(self.id.resource, self.id.node);
        if let State::Up(up) = std::mem::replace(&mut self.state, State::Idle) {
            self.failed = up.failed();
        }
    }

    fn reap(&mut self, now: Instant) {
        self.closing.retain(|closing| {
            let done = closing.sockets.iter().all(|s| s.is_sent() || s.ended.is_some());
            !done && now < closing.until
        });
    }

    /// The peer has connected to one of our listeners.
    pub(crate) fn accepted(&mut self, io: &mut Io, conn: Conn) {
        match &mut self.state {
            State::Dancing(dance) => dance.accepted(io, &self.net, conn),
            State::Up(up) if up.joins_by(&conn) => up.accepted(io, &self.net, conn),
            _ => log!(Level::Debug, self.label, "closed a connection that was not expected now"),
        }
    }

    /// An operation of one of the sockets has completed.
    pub(crate) fn completed(
        &mut self,
        io: &mut Io,
        op: SocketOp,
        serial: u32,
        done: Completed,
    ) -> Option<Event> {
        let now = io.now();
        match &mut self.state {
            State::Up(up) if up.place_of(serial).is_some() => {
                let (stream, at) = up.place_of(serial).expect("just looked");
                let channel = up.channel(stream);
                let socket = &mut channel.sockets[at];
                let alive = match op {
                    SocketOp::Receive => socket.received(done),
                    SocketOp::Send => socket.sent(done, now),
                    SocketOp::Connect => true,
                };
                if !alive {
                    let errno = socket.ended.flatten();
                    up.note_end(now);
                    if self.net.load_balance_paths {
                        joining::tell_end(&self.label, up.paths[at], errno);
                    }
                } else if op == SocketOp::Receive {
                    channel.received(at);
                    return Some(Event::Readable(stream));
                } else {
                    channel.flush_one(&mut io.ring, at);
                }
                self.report_end(io)
            }
            State::Up(up) if up.joining.iter().any(|dance| dance.owns(serial)) => {
                let dance = up.joining.iter_mut().find(|dance| dance.owns(serial));
                let dance = dance.expect("just looked");
                dance.completed(io, &self.net, &self.label, op, serial, done);
                self.joined(io)
            }
            State::Dancing(dance) if dance.owns(serial) => {
                dance.completed(io, &self.net, &self.label, op, serial, done);
                self.dance_done(io)
            }
            State::Securing(securing) if securing.owns(serial) => {
                securing.completed(io, op, serial, done);
                self.secure(io)
            }
            _ => {
                for closing in &mut self.closing {
                    let Some(socket) = closing.sockets.iter_mut().find(|s| s.serial == serial)
                    else {
                        continue;
                    };
                    // What still arrives is of no interest; what was queued still leaves.
                    match op {
                        SocketOp::Receive => _ = socket.received(done),
                        SocketOp::Send => {
                            if socket.sent(done, now) {
                                socket.flush(&mut io.ring);
                            }
                        }
                        SocketOp::Connect => {}
                    }
                    break;
                }
                self.reap(now);
                None
            }
        }
    }

    /// Moves on if the dance has come to its end.
    fn dance_done(&mut self, io: &mut Io) -> Option<Event> {
        let State::Dancing(dance) = &mut self.state else { return None };
        if let Some(why) = dance.take_mismatch() {
            self.note_trouble(format!("connection {} not made: {why}", self.label));
            return None;
        }
        let pair = dance.take_pair()?;
        if self.net.load_balance_paths {
            // The others are expected at all times.
            io.listeners.forget_path(self.id.resource, self.id.node, pair.0);
            let mut joining = dance.others();
            for dance in &mut joining {
                dance.start(io, &self.net, &self.label);
            }
            self.trouble = None;
            return Some(self.up(io, pair, joining));
        }
        io.listeners.forget(self.id.resource, self.id.node);
        if !self.net.tls {
            self.trouble = None;
            return Some(self.up(io, pair, Vec::new()));
        }
        match Credentials::read(&self.net, &self.peer) {
            Ok(credentials) => {
                let until = io.now() + self.net.timeout;
                let securing = Securing::new(credentials, pair, until);
                self.state = State::Securing(Box::new(securing));
                self.secure(io)
            }
            Err(why) => {
                self.not_encrypted(io, Trouble::Files(why), pair);
                None
            }
        }
    }

    /// Goes on with encrypting the sockets.
    fn secure(&mut self, io: &mut Io) -> Option<Event> {
        let State::Securing(securing) = &mut self.state else { return None };
        let progress = securing.advance(io);
        if let Progress::Pending = progress {
            return None;
        }
        let State::Securing(securing) = std::mem::replace(&mut self.state, State::Idle) else {
            unreachable!("just looked");
        };
        let Securing { path, data, control, .. } = *securing;
        match progress {
            Progress::Failed(trouble) => {
                self.not_encrypted(io, trouble, (path, data, control));
                None
            }
            _ => {
                self.trouble = None;
                Some(self.up(io, (path, data, control), Vec::new()))
            }
        }
    }

    /// There is no connection but an encrypted one: tries anew after a while.
    fn not_encrypted(
        &mut self,
        io: &mut Io,
        trouble: Trouble,
        (path, data, control): (PathConfig, Socket, Socket),
    ) {
        let text = format!("connection {} not made: {trouble}", self.label);
        // The peer's end of the same failure, and the same again every some seconds, tell nothing new.
        let is_new = match &self.trouble {
            Some(_) if matches!(trouble, Trouble::Closed) => false,
            old => old.as_ref() != Some(&text),
        };
        if is_new {
            self.note_trouble(text);
        }
        self.part(io, vec![data, control]);
        let mut dance = Box::new(Dance::new(self.id, self.paths.clone(), Some(path)));
        dance.rest(io, &self.net, &self.label);
        self.state = State::Dancing(dance);
    }

    /// Says once what keeps the connection from being made.
    fn note_trouble(&mut self, text: String) {
        if self.trouble.as_ref() != Some(&text) {
            log!(Level::Error, self.label, "{text}");
            self.trouble = Some(text);
        }
    }

    /// Both sockets are there.
    fn up(
        &mut self,
        io: &Io,
        (path, data, control): (PathConfig, Socket, Socket),
        joining: Vec<Dance>,
    ) -> Event {
        let tie_break = control.accepted;
        let spread = || self.net.load_balance_paths.then(|| io.pool.clone());
        let up = Up {
            paths: vec![path],
            data: Channel::new(Stream::Data, data, spread()),
            control: Channel::new(Stream::Control, control, spread()),
            joining,
            own: None,
            agreed: Agreed::NOTHING,
            integrity: Integrity::default(),
            ended: None,
            starved: false,
            ping: PingTime::default(),
        };
        self.state = State::Up(Box::new(up));
        let how = if self.net.tls { ", encrypted" } else { "" };
        let PathConfig { local, remote } = path;
        log!(Level::Debug, self.label, "both sockets are up ({local} to {remote}{how})");
        Event::Up { tie_break }
    }

    fn report_end(&mut self, io: &mut Io) -> Option<Event> {
        let State::Up(up) = &self.state else { return None };
        let (at, loss) = up.ended?;
        if io.now() < at {
            return None;
        }
        log!(Level::Debug, self.label, "the sockets are gone ({loss:?})");
        self.drop_now(io);
        Some(Event::Down(loss))
    }

    /// The next packet of a stream, to be called until there is nothing.
    pub(crate) fn read(&mut self, io: &mut Io, stream: Stream) -> Next {
        let State::Up(up) = &mut self.state else { return Next::Nothing };
        if self.paused {
            return Next::Nothing;
        }
        let (agreed, integrity) = (up.agreed, up.integrity);
        match up.channel(stream).read(&agreed, integrity, io.now()) {
            Ok(Read::Packet(packet, payload)) => {
                if let Packet::ConnectionFeatures(theirs) = &packet {
                    up.agree(theirs);
                }
                if packet == Packet::PingAck {
                    up.ping.answered(io.now());
                }
                log!(Level::Trace, self.label, "< {} {packet:?}", packet.command());
                match up.integrity.received(&packet, &mut up.agreed) {
                    Ok(()) => Next::Packet(packet, payload),
                    Err(broken) => self.garbage(io, stream, &broken),
                }
            }
            Ok(Read::Wait) => {
                up.channel(stream).arm(&mut io.ring);
                Next::Nothing
            }
            Ok(Read::Starved) => {
                up.starved = true;
                io.starved = true;
                Next::Nothing
            }
            Err(broken) => self.garbage(io, stream, &broken),
        }
    }

    fn garbage(&mut self, io: &mut Io, stream: Stream, broken: &Broken) -> Next {
        self.drop_now(io);
        Next::Garbage(format!("connection {} closed, {stream} stream: {broken}", self.label))
    }

    /// Memory may be there again: the streams to read on.
    pub(crate) fn unstarve(&mut self) -> bool {
        match &mut self.state {
            State::Up(up) => std::mem::take(&mut up.starved),
            _ => false,
        }
    }

    /// Queues a packet. Without sockets, or if the peer does not know it, it is dropped.
    pub(crate) fn send(&mut self, packet: &Packet, payload: Option<Buf>) {
        let State::Up(up) = &mut self.state else { return };
        let agreed = match packet {
            Packet::ConnectionFeatures(own) => {
                up.own = Some(*own);
                Agreed::NOTHING
            }
            _ => up.agreed,
        };
        if !packet.command().is_agreed(&agreed) {
            log!(Level::Debug, self.label, "not sent, for it is not agreed: {packet:?}");
            return;
        }
        log!(Level::Trace, self.label, "> {} {packet:?}", packet.command());
        if *packet == Packet::Ping {
            up.ping.queued();
        }
        let (stream, digest) = (packet.stream(), up.integrity.own);
        // A kernel node sends all control packets by one path, and takes them by another one without the lock
        // of its socket.
        let everywhere = stream == Stream::Data || up.agreed.has(feature::BITS_OF_EQUALS);
        up.channel(stream).queue(packet, payload, (&agreed, digest), everywhere);
        up.integrity.sent(packet, &mut up.agreed);
    }

    /// Ends a turn: everything queued leaves in one write per socket.
    pub(crate) fn flush(&mut self, io: &mut Io) {
        if let State::Up(up) = &mut self.state {
            up.data.flush(&mut io.ring);
            up.control.flush(&mut io.ring);
            up.ping.flushed(io.now());
        }
    }

    /// When [`Link::timeout`] is wanted.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        let state = match &self.state {
            State::Idle => None,
            State::Dancing(dance) => dance.deadline(),
            State::Securing(securing) => Some(securing.deadline()),
            State::Up(up) => {
                let ended = up.ended.map(|(at, _)| at);
                let stuck = up.stuck_at(&self.net).map(|(at, _)| at);
                let joining = up.joining.iter().filter_map(Dance::deadline).min();
                let missing = self.misses_paths().then_some(now);
                let all = [ended, up.stalled_at(&self.net, now), stuck, joining, missing];
                all.into_iter().flatten().min()
            }
        };
        let closing = self.closing.iter().map(|c| c.until);
        closing.chain(state).min()
    }

    /// Time has passed.
    pub(crate) fn timeout(&mut self, io: &mut Io) -> Option<Event> {
        let now = io.now();
        self.reap(now);
        match &mut self.state {
            State::Idle => None,
            State::Dancing(dance) => {
                dance.timeout(io, &self.net, &self.label);
                self.dance_done(io)
            }
            State::Securing(_) => self.secure(io),
            State::Up(up) => {
                if up.stalled_at(&self.net, now).is_some_and(|at| at <= now) {
                    log!(Level::Warn, self.label, "the peer takes no data, connection closed");
                    let at = up.sockets().position(|socket| !socket.is_sent());
                    let path = at.map(|at| up.paths[at % up.paths.len()]);
                    self.drop_now(io);
                    self.failed = path;
                    return Some(Event::Down(LinkLoss::Stalled));
                }
                if let Some((_, stream)) = up.stuck_at(&self.net).filter(|(at, _)| *at <= now) {
                    return Some(self.stuck(io, stream));
                }
                for dance in &mut up.joining {
                    if dance.deadline().is_some_and(|at| at <= now) {
                        dance.timeout(io, &self.net, &self.label);
                    }
                }
                self.join_missing(io);
                self.joined(io).or_else(|| self.report_end(io))
            }
        }
    }
}

impl Up {
    /// What both sides have in common, from both features packets (wire §4.1 step 2).
    fn agree(&mut self, theirs: &Features) {
        let Some(own) = self.own else { return };
        let max = |f: &Features| if f.protocol_max == 0 { f.protocol_min } else { f.protocol_max };
        let version = max(theirs).min(max(&own));
        self.agreed = Agreed::new(version, theirs.feature_flags & own.feature_flags);
    }
}
