//! The NBD server of one thread: listeners, clients and the exports they share.
//!
//! A set of objects for a driver's loop, which owns the ring and the targets:
//!
//! ```text
//! loop {
//!     ring.wait(earliest deadline, among them server.deadline())
//!     for each completion whose token the server owns: server.on_completed(..)
//!     repeat:
//!         server.turn_end(..)          replies leave in one write per client
//!         flush the targets' submissions, poll their completions
//!         for each completion whose opener the server owns: server.on_target_completion(..)
//!     until there were no completions
//!     send server.take_moved() to the threads of their exports: server.adopt(..) there
//!     server.take_events() for the log
//! }
//! ```
//!
//! A client may name an export that another thread serves. It moves there before the export is
//! opened, so from then on its socket, its buffers and its target belong to one thread.
//!
//! Limits: [`Config`], [`super::session::MAX_REQUESTS`] requests per client, 32 MiB per request,
//! and beyond 8 MiB of replies under way no further request is read. What is over a limit stays
//! in the socket.

mod client;
mod exports;
mod handover;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use runtime::net::{Conn, Listener};
use runtime::{
    BufPool, Completed, Completion, Errno, Intent, OpId, OpenerId, Ring, Target, Timers, Token,
};
use serde::{Deserialize, Serialize};
use vocab::Instant;

use client::{Client, Env, Ids, Progress};
use exports::Exports;

use super::Violation;
use super::handshake::Handshake;
pub use client::{Moved, Peer};
pub use exports::{Export, Place, READ_ONLY_SUFFIX, TargetKey};
pub use handover::{FrozenServer, Unfrozen};

/// The driver's targets.
pub trait Targets {
    /// The target of that key, on this thread. `None` once it is gone; its clients get errors.
    fn target(&mut self, key: TargetKey) -> Option<&mut dyn Target>;
}

/// What a server allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Clients at a time; more are turned away.
    pub clients_max: usize,
    /// A client in negotiation that says nothing for so long is dropped.
    pub negotiation_idle: Duration,
    /// TCP: a silent connection is probed after this time ...
    pub keepalive_idle: Duration,
    /// ... with this time between probes ...
    pub keepalive_interval: Duration,
    /// ... and dropped after so many probes without an answer.
    pub keepalive_probes: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            clients_max: 1024,
            negotiation_idle: Duration::from_secs(10),
            keepalive_idle: Duration::from_secs(30),
            keepalive_interval: Duration::from_secs(10),
            keepalive_probes: 3,
        }
    }
}

/// What happened, for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A client has opened an export.
    Opened {
        /// Who.
        peer: Peer,
        /// The export's name.
        export: String,
        /// It may only read.
        read_only: bool,
    },
    /// An export could not be opened.
    Refused {
        /// For whom.
        peer: Peer,
        /// The export's name.
        export: String,
        /// The target's answer.
        errno: Errno,
    },
    /// A client is gone.
    Closed {
        /// Who.
        peer: Peer,
        /// The export it had open.
        export: Option<String>,
        /// Why.
        reason: CloseReason,
        /// Requests it left behind.
        in_flight: usize,
    },
    /// A client was turned away: there are [`Config::clients_max`] already.
    TooManyClients,
    /// Accepting failed; it is tried again in a moment.
    AcceptFailed(Errno),
}

/// Why a client is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// It said goodbye.
    Left,
    /// The connection ended, with an error or without.
    Lost(Option<Errno>),
    /// It broke the protocol.
    Violation(Violation),
    /// It negotiated too slowly.
    NegotiationIdle,
    /// Its export was removed.
    ExportRemoved,
    /// The driver asked for it.
    Stopped,
}

/// How to part with the clients of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parting {
    /// Answer what is in flight and refuse what is new, then close.
    Gentle,
    /// Close now. Requests in flight are still carried out, but not answered.
    Now,
}

/// A client as shown to users.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientStatus {
    /// Who.
    pub peer: Peer,
    /// The export it has open, or is opening.
    pub export: Option<String>,
    /// It may only read.
    pub read_only: bool,
    /// Requests in flight.
    pub in_flight: usize,
}

/// Pause after accepting failed for lack of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Accepting ended with nobody: a client had given up before, or the server has.
const IN_VAIN: [i32; 4] = [libc::ECONNABORTED, libc::EINTR, libc::EAGAIN, libc::ECANCELED];
/// Events kept for a driver that does not ask; the oldest are dropped.
const EVENTS_MAX: usize = 4096;

/// The server of one thread; see the module.
pub struct Server {
    space: u8,
    config: Config,
    pool: BufPool,
    exports: Exports,
    listeners: Vec<Option<Listening>>,
    /// Clients by index, with the generation of the index.
    clients: Vec<(u32, Option<Box<Client>>)>,
    free: Vec<u32>,
    /// Clients that did something in this turn: they may have replies to send.
    active: Vec<u32>,
    stalled: Vec<u32>,
    timers: Timers<Timer>,
    moved: Vec<Moved>,
    events: VecDeque<Event>,
    /// Nobody is accepted and no further request is read.
    paused: bool,
}

struct Listening {
    listener: Listener,
    path: Option<PathBuf>,
    /// The accept in flight, if there is one.
    accept: Option<OpId>,
}

/// Names a listener for [`Server::close_listener`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListenerId(u32);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// The client says nothing.
    Negotiation(u32),
    /// Accept again.
    Accept(u32),
}

/// What a token or an opener of this server is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Accept,
    Receive,
    Send,
    Open,
}

/// Tokens and openers: the driver's space, purpose, index, generation of the index.
fn pack(space: u8, purpose: Purpose, index: u32, generation: u32) -> u64 {
    assert!(index < 1 << 20, "a thread has less than a million clients");
    u64::from(space) << 56 | (purpose as u64) << 52 | u64::from(index) << 32 | u64::from(generation)
}

fn unpack(value: u64) -> (Purpose, u32, u32) {
    let purpose = match value >> 52 & 0xf {
        0 => Purpose::Accept,
        1 => Purpose::Receive,
        2 => Purpose::Send,
        _ => Purpose::Open,
    };
    (purpose, (value >> 32) as u32 & 0xf_ffff, value as u32)
}

impl Server {
    /// A server whose tokens and openers have `space` in their highest eight bits, where the
    /// driver can tell them from others. Buffers come from `pool`; with less than 64 MiB there
    /// the longest reads may fail.
    pub fn new(space: u8, pool: BufPool, config: Config) -> Server {
        Server {
            space,
            config,
            pool,
            exports: Exports::default(),
            listeners: Vec::new(),
            clients: Vec::new(),
            free: Vec::new(),
            active: Vec::new(),
            stalled: Vec::new(),
            timers: Timers::new(),
            moved: Vec::new(),
            events: VecDeque::new(),
            paused: false,
        }
    }

    /// True if a completion with that token is for [`Server::on_completed`].
    pub fn owns(&self, token: Token) -> bool {
        token.0 >> 56 == u64::from(self.space)
    }

    /// True if a target's completion for that opener is for [`Server::on_target_completion`].
    pub fn owns_opener(&self, opener: OpenerId) -> bool {
        opener.0 >> 56 == u64::from(self.space)
    }

    /// Listens on a unix socket; the file is removed with the listener.
    ///
    /// # Errors
    /// As [`Listener::unix`].
    pub fn listen_unix(&mut self, ring: &mut Ring, path: &Path) -> Result<ListenerId, Errno> {
        let listener = Listener::unix(path)?;
        Ok(self.listen(ring, listener, Some(path.to_owned())))
    }

    /// Listens on a TCP address and returns also the address, with the port if it was 0.
    ///
    /// # Errors
    /// As [`Listener::tcp`].
    pub fn listen_tcp(
        &mut self,
        ring: &mut Ring,
        address: SocketAddr,
    ) -> Result<(ListenerId, SocketAddr), Errno> {
        let listener = Listener::tcp(address)?;
        let address = listener.local_addr()?;
        Ok((self.listen(ring, listener, None), address))
    }

    /// Listens on a socket set up elsewhere.
    pub fn listen_on(&mut self, ring: &mut Ring, listener: Listener) -> ListenerId {
        self.listen(ring, listener, None)
    }

    fn listen(&mut self, ring: &mut Ring, listener: Listener, path: Option<PathBuf>) -> ListenerId {
        // Places are never reused: a late completion of a closed listener finds nothing.
        let index = self.listeners.len() as u32;
        self.listeners.push(Some(Listening { listener, path, accept: None }));
        self.accept_again(ring, index);
        ListenerId(index)
    }

    /// Stops listening. Clients stay.
    pub fn close_listener(&mut self, id: ListenerId) {
        self.timers.cancel(Timer::Accept(id.0));
        self.listeners[id.0 as usize] = None;
    }

    /// Adds an export, or changes one for those who open it from now on.
    ///
    /// # Panics
    /// If the name is longer than the protocol allows (4096 bytes), or has a NUL.
    pub fn set_export(&mut self, name: impl Into<String>, export: Export) {
        let name = name.into();
        assert!(name.len() <= super::proto::MAX_NAME_LEN && !name.contains('\0'), "export name");
        self.exports.insert(name, export);
    }

    /// Removes an export and parts with its clients. False if there is none of that name.
    pub fn remove_export(
        &mut self,
        ring: &mut Ring,
        targets: &mut dyn Targets,
        name: &str,
        parting: Parting,
    ) -> bool {
        let known = self.exports.remove(name).is_some();
        self.part_with(ring, targets, name, parting);
        known
    }

    /// Parts with the clients of an export, which stays.
    pub fn part_with(
        &mut self,
        ring: &mut Ring,
        targets: &mut dyn Targets,
        name: &str,
        parting: Parting,
    ) {
        for index in 0..self.clients.len() as u32 {
            let Some(client) = &self.clients[index as usize].1 else { continue };
            if client.export() != Some(name) {
                continue;
            }
            match parting {
                Parting::Now => self.drop_client(index, CloseReason::ExportRemoved, targets),
                Parting::Gentle => self.with_client(index, ring, targets, |client, env| {
                    client.export_removed(env)?;
                    client.advance(env)
                }),
            }
        }
    }

    /// Closes every listener and drops every client now.
    pub fn stop(&mut self, targets: &mut dyn Targets) {
        for index in 0..self.listeners.len() as u32 {
            self.close_listener(ListenerId(index));
        }
        for index in 0..self.clients.len() as u32 {
            self.drop_client(index, CloseReason::Stopped, targets);
        }
    }

    /// The clients there are.
    pub fn clients(&self) -> impl Iterator<Item = ClientStatus> {
        self.clients.iter().filter_map(|(_, client)| client.as_ref()).map(|client| ClientStatus {
            peer: client.peer(),
            export: client.export().map(str::to_owned),
            read_only: client.is_read_only(),
            in_flight: client.in_flight(),
        })
    }

    /// When [`Server::turn_end`] wants to be called at the latest.
    pub fn deadline(&mut self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// An operation of this server has completed.
    pub fn on_completed(&mut self, ring: &mut Ring, targets: &mut dyn Targets, done: Completed) {
        debug_assert!(self.owns(done.token), "the driver routes by space");
        let (purpose, index, generation) = unpack(done.token.0);
        if purpose == Purpose::Accept {
            return self.on_accepted(ring, targets, index, done);
        }
        if !self.is_current(index, generation) {
            return;
        }
        self.with_client(index, ring, targets, |client, env| match purpose {
            Purpose::Receive => client.on_received(done, env),
            _ => client.on_sent(done, env.ring).map(|()| Progress::Waiting),
        });
    }

    /// A target has answered a request or an open of one of the clients.
    pub fn on_target_completion(
        &mut self,
        ring: &mut Ring,
        targets: &mut dyn Targets,
        done: Completion,
    ) {
        debug_assert!(self.owns_opener(done.opener), "the driver routes by space");
        let (_, index, generation) = unpack(done.opener.0);
        if self.is_current(index, generation) {
            self.with_client(index, ring, targets, |client, env| client.on_target(done, env));
        }
    }

    /// Ends a turn of the loop: goes on with clients that had to wait, sends replies, sees to
    /// timeouts, and parts with clients that are done.
    pub fn turn_end(&mut self, ring: &mut Ring, targets: &mut dyn Targets) {
        while let Some(timer) = self.timers.pop_expired(ring.now()) {
            match timer {
                Timer::Negotiation(index) => {
                    self.drop_client(index, CloseReason::NegotiationIdle, targets);
                }
                Timer::Accept(index) => self.accept_again(ring, index),
            }
        }
        for index in std::mem::take(&mut self.stalled) {
            if self.client(index).is_some() {
                self.with_client(index, ring, targets, |client, env| client.advance(env));
            }
        }
        let mut active = std::mem::take(&mut self.active);
        active.sort_unstable();
        active.dedup();
        for index in active.drain(..) {
            let Some(client) = self.clients[index as usize].1.as_mut() else { continue };
            if let Err(reason) = client.end_turn(ring) {
                self.drop_client(index, reason, targets);
            } else if client.is_ready_to_move() {
                self.move_out(index);
            }
        }
        // Clients that become active while this runs belong to the next turn; none can here.
        self.active = active;
        let excess = self.events.len().saturating_sub(EVENTS_MAX);
        self.events.drain(..excess);
    }

    /// Clients to be moved to other threads.
    pub fn take_moved(&mut self) -> Vec<Moved> {
        std::mem::take(&mut self.moved)
    }

    /// Takes in a client that another thread's server gave up.
    pub fn adopt(&mut self, ring: &mut Ring, targets: &mut dyn Targets, moved: Moved) {
        let Moved { socket, handshake, wish, .. } = moved;
        let conn = match Conn::new(socket, &self.pool) {
            Ok(conn) => conn,
            Err(errno) => return self.events.push_back(Event::AcceptFailed(errno)),
        };
        let now = ring.now();
        if let Some(index) = self.insert(|ids| Client::adopted(conn, ids, now, handshake)) {
            self.with_client(index, ring, targets, |client, env| client.open_adopted(wish, env));
        }
    }

    /// Serves a target of this thread to the other end of a connected socket, which knows what it is
    /// for: it is greeted as oldstyle servers do once the target is open, and closed if that fails.
    /// The client is listed, and parted with, by `name`, which is no export's.
    ///
    /// # Errors
    /// `EMFILE`: there are [`Config::clients_max`] already. Others are the socket's.
    pub fn join(
        &mut self,
        ring: &mut Ring,
        targets: &mut dyn Targets,
        socket: OwnedFd,
        (key, intent): (TargetKey, Intent),
        name: &str,
    ) -> Result<(), Errno> {
        let conn = Conn::new(socket, &self.pool)?;
        let now = ring.now();
        let handshake = Handshake::joined(name);
        let index = self.insert(|ids| Client::adopted(conn, ids, now, handshake));
        let index = index.ok_or(Errno(libc::EMFILE))?;
        let name = name.to_owned();
        self.with_client(index, ring, targets, |client, env| {
            client.open_joined(key, name, intent, env)
        });
        Ok(())
    }

    /// Serves a client whose connection is encrypted. The other end of `socket` does that: it has greeted
    /// the client, and passes on what is said within TLS, first the client's flags
    /// ([`super::securing`]). `address`: where the client is.
    ///
    /// # Errors
    /// `EMFILE`: there are [`Config::clients_max`] already. Others are the socket's.
    pub fn introduce(
        &mut self,
        ring: &mut Ring,
        targets: &mut dyn Targets,
        socket: OwnedFd,
        address: SocketAddr,
    ) -> Result<(), Errno> {
        let conn = Conn::new(socket, &self.pool)?;
        let now = ring.now();
        let index = self.insert(|ids| Client::secured(conn, ids, now, address));
        let index = index.ok_or(Errno(libc::EMFILE))?;
        self.with_client(index, ring, targets, |client, env| client.advance(env));
        Ok(())
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> impl Iterator<Item = Event> {
        self.events.drain(..)
    }

    fn on_accepted(
        &mut self,
        ring: &mut Ring,
        targets: &mut dyn Targets,
        index: u32,
        done: Completed,
    ) {
        let Some(listening) = &mut self.listeners[index as usize] else { return };
        listening.accept = None;
        match Conn::accepted(done, &self.pool) {
            Ok(conn) => {
                self.accept_again(ring, index);
                self.welcome(ring, targets, conn);
            }
            // A client that gave up before it was accepted.
            Err(errno) if IN_VAIN.contains(&errno.0) => {
                self.accept_again(ring, index);
            }
            Err(errno) => {
                self.events.push_back(Event::AcceptFailed(errno));
                self.timers.arm(Timer::Accept(index), ring.now() + ACCEPT_PAUSE);
            }
        }
    }

    fn accept_again(&mut self, ring: &mut Ring, index: u32) {
        let token = Token(pack(self.space, Purpose::Accept, index, 0));
        if let Some(listening) = &mut self.listeners[index as usize]
            && !self.paused
            && listening.accept.is_none()
        {
            listening.accept = Some(listening.listener.accept(ring, token));
        }
    }

    fn welcome(&mut self, ring: &mut Ring, targets: &mut dyn Targets, conn: Conn) {
        // Both fail on unix sockets, which need neither.
        let _ = conn.set_nodelay();
        let Config { keepalive_idle, keepalive_interval, keepalive_probes, .. } = self.config;
        let _ = conn.set_keepalive(keepalive_idle, keepalive_interval, keepalive_probes);
        let now = ring.now();
        if let Some(index) = self.insert(|ids| Client::accepted(conn, ids, now)) {
            self.with_client(index, ring, targets, |client, env| client.advance(env));
        }
    }

    /// Finds a place for a client, if there is one.
    fn insert(&mut self, client: impl FnOnce(Ids) -> Client) -> Option<u32> {
        if self.clients.len() - self.free.len() >= self.config.clients_max {
            self.events.push_back(Event::TooManyClients);
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.clients.push((0, None));
            self.clients.len() as u32 - 1
        });
        let (generation, place) = &mut self.clients[index as usize];
        let id = |purpose| pack(self.space, purpose, index, *generation);
        let client = client(Ids {
            opener: OpenerId(id(Purpose::Open)),
            receive: Token(id(Purpose::Receive)),
            send: Token(id(Purpose::Send)),
        });
        self.timers.set(Timer::Negotiation(index), client.deadline(self.config.negotiation_idle));
        *place = Some(Box::new(client));
        Some(index)
    }

    fn client(&self, index: u32) -> Option<&Client> {
        self.clients[index as usize].1.as_deref()
    }

    fn is_current(&self, index: u32, generation: u32) -> bool {
        let place = self.clients.get(index as usize);
        place.is_some_and(|(current, client)| *current == generation && client.is_some())
    }

    /// Lets a client do something, and sees to the consequences.
    fn with_client(
        &mut self,
        index: u32,
        ring: &mut Ring,
        targets: &mut dyn Targets,
        f: impl FnOnce(&mut Client, &mut Env<'_>) -> Result<Progress, CloseReason>,
    ) {
        let client = self.clients[index as usize].1.as_mut().expect("seen by the caller");
        let mut env = Env {
            ring,
            targets,
            exports: &self.exports,
            pool: &self.pool,
            events: &mut self.events,
            paused: self.paused,
        };
        let idle_max = self.config.negotiation_idle;
        let before = client.deadline(idle_max);
        let result = f(client, &mut env);
        let deadline = client.deadline(idle_max);
        if deadline != before {
            self.timers.set(Timer::Negotiation(index), deadline);
        }
        match result {
            Ok(progress) => {
                if self.active.last() != Some(&index) {
                    self.active.push(index);
                }
                if progress == Progress::Stalled {
                    self.stalled.push(index);
                }
            }
            Err(reason) => self.drop_client(index, reason, targets),
        }
    }

    fn move_out(&mut self, index: u32) {
        let client = self.vacate(index).expect("seen by the caller");
        let (peer, export) = (client.peer(), None);
        match client.into_moved() {
            Ok(moved) => self.moved.push(moved),
            Err(reason) => {
                self.events.push_back(Event::Closed { peer, export, reason, in_flight: 0 });
            }
        }
    }

    fn drop_client(&mut self, index: u32, reason: CloseReason, targets: &mut dyn Targets) {
        let Some(mut client) = self.vacate(index) else { return };
        self.events.push_back(Event::Closed {
            peer: client.peer(),
            export: client.export().map(str::to_owned),
            reason,
            in_flight: client.in_flight(),
        });
        client.close(targets);
    }

    fn vacate(&mut self, index: u32) -> Option<Box<Client>> {
        let (generation, place) = &mut self.clients[index as usize];
        let client = place.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(index);
        self.timers.cancel(Timer::Negotiation(index));
        Some(client)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // If it is gone already, so much the better.
            let _ = std::fs::remove_file(path);
        }
    }
}
