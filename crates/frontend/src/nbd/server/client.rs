//! One client connection: its socket, its handshake or session, and the target it has open.
//!
//! ```text
//! Negotiating ─► Opening ─► Serving ─► Ending ─► dropped
//!      ▲  │         │ └─► Negotiating (described, or refused)
//!      │  └─► Moving ─► taken to the thread of its export
//!      └──────────────── (adopted there: Opening)
//! ```
//!
//! Every method that can find the connection unusable returns why; the server then drops the
//! client, which closes the socket and the target.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use runtime::net::{Conn, PEEK_MAX, Received, TxQueue};
use runtime::{
    AllocError, Buf, BufPool, Completed, Completion, Errno, Intent, Op, OpenerId, Request, Ring,
    Token,
};
use serde::{Deserialize, Serialize};
use vocab::Instant;

use super::exports::{Exports, Place, Resolved, TargetKey};
use super::{CloseReason, Event, Targets};
use crate::nbd::handshake::{self, Handshake, RefuseReason};
use crate::nbd::proto::option;
use crate::nbd::session::{self, Job, Replies, Session};
use crate::nbd::{ExportInfo, Violation};

/// The tag of `Target::open`. No part of a job has it: slots are few.
const OPEN_TAG: u64 = u64::MAX;
/// Replies to options that may wait to be sent before no more options are read, in bytes.
const NEGOTIATION_BACKLOG_MAX: usize = 1 << 20;
/// Data of reads and replies that may be under way for one client before its next request is
/// read, in bytes. One request may go beyond it.
const REPLY_BACKLOG_MAX: u64 = 8 << 20;

/// Who is at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// A TCP client.
    Tcp(SocketAddr),
    /// One whose connection is encrypted.
    Tls(SocketAddr),
    /// A local client, with the ids it had when it connected.
    Unix {
        /// Its process.
        pid: i32,
        /// Its user.
        uid: u32,
    },
    /// The kernel would not say.
    Unknown,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Tcp(address) | Peer::Tls(address) => address.fmt(f),
            Peer::Unix { pid, uid } => write!(f, "process {pid} of user {uid}"),
            Peer::Unknown => f.write_str("unknown client"),
        }
    }
}

/// A client in negotiation on its way to another thread.
#[derive(Debug)]
pub struct Moved {
    /// The thread that serves the export it asked for ([`Place::Thread`]).
    pub thread: u32,
    pub(super) socket: OwnedFd,
    pub(super) handshake: Handshake,
    pub(super) wish: Wish,
}

/// A client that is served and has nothing under way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct FrozenClient {
    /// What targets know it by.
    pub(super) opener: u64,
    pub(super) export: String,
    description: String,
    read_only: bool,
    session: session::Frozen,
    /// What has arrived of its next requests.
    unread: Vec<u8>,
}

/// What the client asked for.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    name: String,
    /// Only to be told about it.
    describe: bool,
}

/// What a client needs of the world to get on.
pub(super) struct Env<'a> {
    pub(super) ring: &'a mut Ring,
    pub(super) targets: &'a mut dyn Targets,
    pub(super) exports: &'a Exports,
    pub(super) pool: &'a BufPool,
    pub(super) events: &'a mut VecDeque<Event>,
    /// No further request is read.
    pub(super) paused: bool,
}

/// The names a client goes by.
#[derive(Clone, Copy)]
pub(super) struct Ids {
    pub(super) opener: OpenerId,
    pub(super) receive: Token,
    pub(super) send: Token,
}

/// One client; see the module.
pub(super) struct Client {
    io: Conn,
    ids: Ids,
    peer: Peer,
    phase: Phase,
    /// When the client last said something, or was answered by a target.
    heard: Instant,
    /// The target held open, or being opened.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    key: TargetKey,
    name: String,
    description: String,
    read_only: bool,
}

enum Phase {
    Negotiating(Handshake),
    Opening {
        handshake: Handshake,
        intent: Intent,
        describe: bool,
    },
    Moving {
        thread: u32,
        handshake: Handshake,
        wish: Wish,
    },
    Serving(Box<Serving>),
    /// Nothing more is read; what is queued is sent.
    Ending(CloseReason),
}

struct Serving {
    session: Session,
    opener: OpenerId,
    key: TargetKey,
    work: Work,
    /// The export goes away: end once nothing is in flight.
    removed: bool,
}

/// What keeps the next request from being read.
#[derive(Clone, Copy)]
enum Work {
    None,
    /// The read waits for buffers.
    Read(Job),
    /// This part of the write's payload comes next.
    Write(Job, u32),
}

/// How far the client got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// It waits for an event of its own.
    Waiting,
    /// There is more to read, but memory or places are short: try again after the next turn.
    Stalled,
}

/// Replies go to the transmit queue.
struct Out<'a>(&'a mut TxQueue);

impl Replies for Out<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.push_bytes(bytes);
    }

    fn data(&mut self, data: Buf) {
        self.0.push_buf(data);
    }
}

impl Client {
    /// A connection just accepted: greets it.
    pub(super) fn accepted(mut io: Conn, ids: Ids, now: Instant) -> Client {
        io.tx.push_bytes(&option::greeting());
        Client::new(io, ids, now, Handshake::new())
    }

    /// A connection whose bytes somebody else decrypts, who has greeted it, too; it is at `address`.
    pub(super) fn secured(io: Conn, ids: Ids, now: Instant, address: SocketAddr) -> Client {
        Client::new(io, ids, now, Handshake::secured(address))
    }

    /// A connection that comes from another thread; [`Client::open_adopted`] comes next.
    pub(super) fn adopted(io: Conn, ids: Ids, now: Instant, handshake: Handshake) -> Client {
        Client::new(io, ids, now, handshake)
    }

    fn new(io: Conn, ids: Ids, now: Instant, handshake: Handshake) -> Client {
        let peer = match (handshake.secured_client(), io.peer_addr(), io.peer_credentials()) {
            (Some(address), ..) => Peer::Tls(address),
            (None, Some(address), _) => Peer::Tcp(address),
            (None, None, Ok(process)) => Peer::Unix { pid: process.pid, uid: process.uid },
            (None, None, Err(_)) => Peer::Unknown,
        };
        Client { io, ids, peer, phase: Phase::Negotiating(handshake), heard: now, open: None }
    }

    pub(super) const fn peer(&self) -> Peer {
        self.peer
    }

    /// The export it has open, or is opening.
    pub(super) fn export(&self) -> Option<&str> {
        self.open.as_ref().map(|open| open.name.as_str())
    }

    /// When the client has been silent for too long, if it is its turn to speak.
    pub(super) fn deadline(&self, idle_max: Duration) -> Option<Instant> {
        matches!(self.phase, Phase::Negotiating(_) | Phase::Moving { .. })
            .then(|| self.heard + idle_max)
    }

    pub(super) fn in_flight(&self) -> usize {
        if let Phase::Serving(serving) = &self.phase { serving.session.in_flight() } else { 0 }
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.read_only)
    }

    /// Bytes have arrived.
    pub(super) fn on_received(
        &mut self,
        done: Completed,
        env: &mut Env<'_>,
    ) -> Result<Progress, CloseReason> {
        match self.io.rx.on_completed(done) {
            // The end of a stream is the end of the client, whatever it still waits for: a
            // client that leaves in peace says so first.
            Ok(Received::End) => Err(CloseReason::Lost(None)),
            Ok(Received::Data(_)) => {
                self.heard = env.ring.now();
                self.advance(env)
            }
            Err(errno) => Err(CloseReason::Lost(Some(errno))),
        }
    }

    /// The socket took replies.
    pub(super) fn on_sent(&mut self, done: Completed, ring: &Ring) -> Result<(), CloseReason> {
        self.io.tx.on_completed(done, ring.now()).map_err(|errno| CloseReason::Lost(Some(errno)))
    }

    /// The target answered.
    pub(super) fn on_target(
        &mut self,
        done: Completion,
        env: &mut Env<'_>,
    ) -> Result<Progress, CloseReason> {
        if done.tag == OPEN_TAG {
            self.heard = env.ring.now();
            self.on_opened(done.result, env)?;
            return self.advance(env);
        }
        let Phase::Serving(serving) = &mut self.phase else {
            panic!("a target answers requests only while the client is served");
        };
        let next = serving.session.complete(done, &mut Out(&mut self.io.tx));
        if let Some(job) = next {
            serving.submit(&job, 0, None, &mut self.io, env);
        }
        Ok(Progress::Waiting)
    }

    /// The export goes away: refuses new requests, and ends once nothing is in flight.
    pub(super) fn export_removed(&mut self, env: &mut Env<'_>) -> Result<(), CloseReason> {
        match &mut self.phase {
            Phase::Serving(serving) => {
                serving.session.shut_down();
                serving.removed = true;
                Ok(())
            }
            Phase::Opening { .. } => self.on_opened(Err(Errno::ESHUTDOWN), env),
            _ => Ok(()),
        }
    }

    /// Sends what is queued, and finds out whether the client is done with.
    pub(super) fn end_turn(&mut self, ring: &mut Ring) -> Result<(), CloseReason> {
        if let Phase::Serving(serving) = &self.phase
            && serving.session.in_flight() == 0
        {
            if serving.session.is_disconnected() {
                self.phase = Phase::Ending(CloseReason::Left);
            } else if serving.removed {
                self.phase = Phase::Ending(CloseReason::ExportRemoved);
            }
        }
        self.io.tx.flush(ring, self.ids.send);
        match self.phase {
            Phase::Ending(reason) if self.is_sent() => Err(reason),
            _ => Ok(()),
        }
    }

    /// True if the client wants to move and all replies to it have left.
    pub(super) fn is_ready_to_move(&self) -> bool {
        matches!(self.phase, Phase::Moving { .. }) && self.is_sent()
    }

    fn is_sent(&self) -> bool {
        self.io.tx.queued_bytes() == 0 && !self.io.tx.is_busy()
    }

    /// Takes the client apart for its way to another thread.
    ///
    /// # Errors
    /// The client sent more before it got its answer, or its socket can not be taken over.
    pub(super) fn into_moved(self) -> Result<Moved, CloseReason> {
        assert!(self.is_ready_to_move() && !self.io.rx.is_armed(), "checked by the caller");
        if self.io.rx.available() > 0 {
            return Err(CloseReason::Violation(Violation::AheadOfReply));
        }
        let Phase::Moving { thread, handshake, wish } = self.phase else {
            unreachable!("checked above");
        };
        let socket = self.io.into_fd().map_err(|errno| CloseReason::Lost(Some(errno)))?;
        Ok(Moved { thread, socket, handshake, wish })
    }

    /// Stops reading, unless the data of a request is under way.
    pub(super) fn pause(&self, ring: &mut Ring) {
        if let Phase::Serving(serving) = &self.phase
            && serving.session.is_between_requests()
        {
            self.io.rx.cancel(ring);
        }
    }

    /// What keeps the client from being frozen.
    pub(super) fn unfrozen(&self) -> Option<String> {
        let Phase::Serving(serving) = &self.phase else {
            return Some("is negotiating or leaving".to_owned());
        };
        let why = match (serving.session.in_flight(), serving.work) {
            (1.., _) => {
                return Some(format!("has {} requests under way", serving.session.in_flight()));
            }
            (0, Work::Read(_)) => "has a request that waits for memory",
            (0, Work::Write(..)) => "has not sent all of a request",
            (0, Work::None) if serving.removed || serving.session.freeze().is_none() => {
                "is leaving"
            }
            (0, Work::None) if !self.is_sent() => "does not take its answers",
            (0, Work::None) if self.io.rx.is_armed() => "is being listened to",
            (0, Work::None) => return None,
        };
        Some(why.to_owned())
    }

    /// The client, for [`Client::thaw`] in another process.
    ///
    /// # Errors
    /// There are no descriptors left.
    ///
    /// # Panics
    /// If it is not idle, see [`Client::unfrozen`].
    pub(super) fn freeze(&self) -> Result<(FrozenClient, OwnedFd), Errno> {
        let (Phase::Serving(serving), Some(open)) = (&self.phase, &self.open) else {
            panic!("only a client that is served is frozen");
        };
        let (session, begun) = serving.session.freeze().expect("nothing is in flight");
        let mut unread = begun.to_vec();
        unread.extend(self.io.rx.unread());
        let frozen = FrozenClient {
            opener: self.ids.opener.0,
            export: open.name.clone(),
            description: open.description.clone(),
            read_only: open.read_only,
            session,
            unread,
        };
        Ok((frozen, self.io.share()?))
    }

    /// The client as it was, with its export open, and nothing read yet.
    pub(super) fn thaw(
        mut io: Conn,
        ids: Ids,
        now: Instant,
        frozen: FrozenClient,
        key: TargetKey,
    ) -> Client {
        let FrozenClient { opener, export, description, read_only, session, unread } = frozen;
        debug_assert_eq!(opener, ids.opener.0, "targets know it by that");
        io.rx.preload(&unread);
        let session = Session::thaw(&session);
        let (opener, work, removed) = (ids.opener, Work::None, false);
        let serving = Serving { session, opener, key, work, removed };
        let mut client = Client::new(io, ids, now, Handshake::new());
        client.phase = Phase::Serving(Box::new(serving));
        client.open = Some(Open { key, name: export, description, read_only });
        client
    }

    /// Goes on where the client was on the thread it comes from.
    pub(super) fn open_adopted(
        &mut self,
        wish: Wish,
        env: &mut Env<'_>,
    ) -> Result<Progress, CloseReason> {
        let ended = Phase::Ending(CloseReason::Left);
        let Phase::Negotiating(handshake) = std::mem::replace(&mut self.phase, ended) else {
            panic!("an adopted client is in negotiation");
        };
        self.begin_open(handshake, wish, env)?;
        self.advance(env)
    }

    /// Opens a target for a client that was joined.
    pub(super) fn open_joined(
        &mut self,
        key: TargetKey,
        name: String,
        intent: Intent,
        env: &mut Env<'_>,
    ) -> Result<Progress, CloseReason> {
        let ended = Phase::Ending(CloseReason::Left);
        let Phase::Negotiating(handshake) = std::mem::replace(&mut self.phase, ended) else {
            panic!("a joined client is in negotiation");
        };
        let Some(target) = env.targets.target(key) else {
            self.refused(handshake, &name, Errno::ENODEV)?;
            return Ok(Progress::Waiting);
        };
        target.open(self.ids.opener, intent, OPEN_TAG);
        let read_only = intent == Intent::Read;
        self.open = Some(Open { key, name, description: String::new(), read_only });
        self.phase = Phase::Opening { handshake, intent, describe: false };
        self.advance(env)
    }

    /// Closes the target; the socket closes when the client is dropped.
    pub(super) fn close(&mut self, targets: &mut dyn Targets) {
        if let Some(open) = self.open.take()
            && let Some(target) = targets.target(open.key)
        {
            target.close(self.ids.opener);
        }
    }

    /// Reads and carries out as much as possible, then asks for more.
    pub(super) fn advance(&mut self, env: &mut Env<'_>) -> Result<Progress, CloseReason> {
        if self.io.rx.is_armed() {
            return Ok(Progress::Waiting);
        }
        loop {
            let step = match &mut self.phase {
                Phase::Negotiating(_) => self.negotiate(env)?,
                Phase::Serving(serving) => serving.step(&mut self.io, env)?,
                // Listening on, to notice a client that leaves while its export is opened.
                Phase::Opening { .. } => Step::NeedBytes,
                // No receive may be under way when the socket changes its thread.
                Phase::Moving { .. } | Phase::Ending(_) => return Ok(Progress::Waiting),
            };
            match step {
                Step::Again => {}
                Step::Stalled => return Ok(Progress::Stalled),
                Step::Rest => return Ok(Progress::Waiting),
                Step::NeedBytes => {
                    // If it refuses there is more than enough to read, for later.
                    self.io.rx.arm(env.ring, self.ids.receive);
                    return Ok(Progress::Waiting);
                }
            }
        }
    }

    fn negotiate(&mut self, env: &mut Env<'_>) -> Result<Step, CloseReason> {
        let Phase::Negotiating(handshake) = &mut self.phase else {
            panic!("called in negotiation only");
        };
        let len = self.io.rx.available().min(PEEK_MAX);
        if len == 0 {
            return Ok(Step::NeedBytes);
        }
        if self.io.tx.queued_bytes() > NEGOTIATION_BACKLOG_MAX {
            return Ok(Step::Stalled);
        }
        let bytes = self.io.rx.peek(len).expect("that much is available");
        let mut result = Ok((0, None));
        let shown = env.exports.shown_to(self.peer);
        self.io.tx.push_with(|out| result = handshake.receive(bytes, &shown, out));
        let (used, event) = result.map_err(CloseReason::Violation)?;
        self.io.rx.consume(used);
        let wish = match event {
            None => return Ok(Step::Again),
            Some(handshake::Event::Abort) => {
                self.phase = Phase::Ending(CloseReason::Left);
                return Ok(Step::Again);
            }
            Some(handshake::Event::Open { name }) => Wish { name, describe: false },
            Some(handshake::Event::Describe { name }) => Wish { name, describe: true },
        };
        let ended = Phase::Ending(CloseReason::Left);
        let Phase::Negotiating(handshake) = std::mem::replace(&mut self.phase, ended) else {
            unreachable!("seen above");
        };
        self.begin_open(handshake, wish, env)?;
        Ok(Step::Again)
    }

    /// Asks the export's target to open, or this client to move to it.
    fn begin_open(
        &mut self,
        handshake: Handshake,
        wish: Wish,
        env: &mut Env<'_>,
    ) -> Result<(), CloseReason> {
        // The catalogue knew it a moment ago, but perhaps on another thread.
        let Some(Resolved { name, export, read_only }) =
            env.exports.shown_to(self.peer).resolve(&wish.name)
        else {
            return self.refused(handshake, &wish.name, Errno::ENODEV);
        };
        let key = match export.place {
            Place::Here(key) => key,
            Place::Thread(thread) => {
                self.phase = Phase::Moving { thread, handshake, wish };
                return Ok(());
            }
        };
        let Some(target) = env.targets.target(key) else {
            return self.refused(handshake, &wish.name, Errno::ENODEV);
        };
        let intent = if wish.describe || read_only { Intent::Read } else { Intent::Write };
        target.open(self.ids.opener, intent, OPEN_TAG);
        let (name, description) = (name.to_owned(), export.description.clone());
        self.open = Some(Open { key, name, description, read_only });
        self.phase = Phase::Opening { handshake, intent, describe: wish.describe };
        Ok(())
    }

    /// The target is open, or will not be.
    fn on_opened(
        &mut self,
        result: Result<(), Errno>,
        env: &mut Env<'_>,
    ) -> Result<(), CloseReason> {
        if !matches!(self.phase, Phase::Opening { .. }) {
            // Its export was removed between the answer and now.
            return Ok(());
        }
        let ended = Phase::Ending(CloseReason::Left);
        let Phase::Opening { mut handshake, intent, describe } =
            std::mem::replace(&mut self.phase, ended)
        else {
            unreachable!("seen above");
        };
        let open = self.open.as_mut().expect("a target is being opened");
        let target = env.targets.target(open.key);
        let (info, target) = match (result, target) {
            (Ok(()), Some(target)) => (target.info(), target),
            (Err(Errno::EROFS), Some(target)) if intent == Intent::Write => {
                // Nobody can write there, so reading is what there is to be had.
                open.read_only = true;
                target.open(self.ids.opener, Intent::Read, OPEN_TAG);
                self.phase = Phase::Opening { handshake, intent: Intent::Read, describe };
                return Ok(());
            }
            (result, target) => {
                let errno = result.err().unwrap_or(Errno::ENODEV);
                if let Some(target) = target {
                    target.close(self.ids.opener);
                }
                let open = self.open.take().expect("seen above");
                env.events.push_back(Event::Refused {
                    peer: self.peer,
                    export: open.name.clone(),
                    errno,
                });
                return self.refused(handshake, &open.name, errno);
            }
        };
        let export = ExportInfo {
            name: &open.name,
            description: &open.description,
            target: info,
            read_only: open.read_only,
        };
        if describe {
            self.io.tx.push_with(|out| handshake.describe(&export, out));
            target.close(self.ids.opener);
            self.open = None;
            self.phase = Phase::Negotiating(handshake);
            return Ok(());
        }
        let mut session = None;
        self.io.tx.push_with(|out| session = Some(handshake.accept(&export, out)));
        let session = session.expect("push_with calls its encoder");
        open.read_only = export.is_read_only();
        env.events.push_back(Event::Opened {
            peer: self.peer,
            export: open.name.clone(),
            read_only: open.read_only,
        });
        let serving = Serving {
            session,
            opener: self.ids.opener,
            key: open.key,
            work: Work::None,
            removed: false,
        };
        self.phase = Phase::Serving(Box::new(serving));
        Ok(())
    }

    fn refused(
        &mut self,
        mut handshake: Handshake,
        name: &str,
        errno: Errno,
    ) -> Result<(), CloseReason> {
        let (reason, text) = refusal(name, errno);
        let mut result = Ok(());
        self.io.tx.push_with(|out| result = handshake.refuse(reason, &text, out));
        self.phase = Phase::Negotiating(handshake);
        result.map_err(CloseReason::Violation)
    }
}

/// What to do after a step.
enum Step {
    Again,
    NeedBytes,
    Stalled,
    /// Nothing more is to be read.
    Rest,
}

impl Serving {
    /// Carries out one thing the client asked for.
    fn step(&mut self, io: &mut Conn, env: &mut Env<'_>) -> Result<Step, CloseReason> {
        match self.work {
            Work::None => self.next_request(io, env),
            Work::Read(job) => Ok(self.submit_read(job, io, env)),
            Work::Write(job, index) => {
                let part = job.part(index);
                match io.rx.take_payload(part.len as usize) {
                    Ok(Some(buf)) => {
                        self.session.payload_taken(part.len);
                        let more = index + 1 < job.parts();
                        self.work = if more { Work::Write(job, index + 1) } else { Work::None };
                        self.submit(&job, index, Some(buf), io, env);
                        Ok(Step::Again)
                    }
                    Ok(None) => Ok(Step::NeedBytes),
                    Err(AllocError::Exhausted) => Ok(Step::Stalled),
                    Err(AllocError::TooLarge) => panic!("parts are as long as a target allows"),
                }
            }
        }
    }

    fn next_request(&mut self, io: &mut Conn, env: &mut Env<'_>) -> Result<Step, CloseReason> {
        if env.paused && self.session.is_between_requests() {
            return Ok(Step::Rest);
        }
        let (least, most) = self.session.wanted();
        if most == 0 {
            return Ok(Step::Rest);
        }
        let available = io.rx.available();
        if available < least {
            return Ok(Step::NeedBytes);
        }
        if self.session.reading_bytes() + io.tx.queued_bytes() as u64 > REPLY_BACKLOG_MAX {
            return Ok(Step::Stalled);
        }
        let len = most.min(available).min(PEEK_MAX);
        let bytes = io.rx.peek(len).expect("that much is available");
        let (used, event) =
            self.session.receive(bytes, &mut Out(&mut io.tx)).map_err(CloseReason::Violation)?;
        io.rx.consume(used);
        match event {
            None if used == 0 => return Ok(Step::Stalled),
            None => {}
            Some(session::Event::Job(job)) if job.op == Op::Read => {
                return Ok(self.submit_read(job, io, env));
            }
            Some(session::Event::Job(job)) => self.submit(&job, 0, None, io, env),
            Some(session::Event::Payload(job)) => self.work = Work::Write(job, 0),
            Some(session::Event::Disconnect) => return Ok(Step::Rest),
        }
        Ok(Step::Again)
    }

    /// Submits a read once there are buffers for all of it: holding some while waiting for the
    /// rest, two clients could wait for each other for ever.
    fn submit_read(&mut self, job: Job, io: &mut Conn, env: &mut Env<'_>) -> Step {
        self.work = Work::None;
        if job.parts() == 1 {
            // The usual case needs no list.
            let Ok(buf) = env.pool.alloc(job.len as usize) else {
                self.work = Work::Read(job);
                return Step::Stalled;
            };
            self.submit(&job, 0, Some(buf), io, env);
            return Step::Again;
        }
        let bufs: Result<Vec<Buf>, AllocError> =
            (0..job.parts()).map(|index| env.pool.alloc(job.part(index).len as usize)).collect();
        match bufs {
            Ok(bufs) => {
                for (index, buf) in (0..).zip(bufs) {
                    self.submit(&job, index, Some(buf), io, env);
                }
            }
            Err(_) if job.len as usize > env.pool.limit() / 2 => {
                // It may never fit: better an error now than a client that waits for ever.
                for index in 0..job.parts() {
                    self.fail(job.part(index).tag, Errno::ENOMEM, io);
                }
            }
            Err(_) => {
                self.work = Work::Read(job);
                return Step::Stalled;
            }
        }
        Step::Again
    }

    fn submit(
        &mut self,
        job: &Job,
        index: u32,
        buf: Option<Buf>,
        io: &mut Conn,
        env: &mut Env<'_>,
    ) {
        let session::Part { tag, offset, len } = job.part(index);
        let (opener, op, fua) = (self.opener, job.op, job.fua);
        match env.targets.target(self.key) {
            Some(target) => {
                target.submit(Request { opener, tag, op, offset, len, fua, buf, place: None });
            }
            None => self.fail(tag, Errno::ESHUTDOWN, io),
        }
    }

    fn fail(&mut self, tag: u64, errno: Errno, io: &mut Conn) {
        let failed = Completion::new(self.opener, tag, Err(errno));
        let next = self.session.complete(failed, &mut Out(&mut io.tx));
        assert!(next.is_none(), "what has failed does not go on");
    }
}

/// How to tell a client why it can not have an export.
fn refusal(name: &str, errno: Errno) -> (RefuseReason, String) {
    match errno {
        Errno::ENODEV => {
            (RefuseReason::Unknown, format!("there is no export {name:?} here any more"))
        }
        Errno::ESHUTDOWN => (RefuseReason::Shutdown, format!("export {name:?} is being shut down")),
        _ => (
            RefuseReason::Policy,
            format!(
                "export {name:?} can not be opened: {errno}; if it is in use on another node, \
                 use it there or ask for {name:?} with {:?} behind its name",
                super::exports::READ_ONLY_SUFFIX
            ),
        ),
    }
}
