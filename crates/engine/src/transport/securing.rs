//! Both sockets of a new connection are encrypted before anything else is said on them, the control
//! socket first (wire §1.3). There is no way around it: it succeeds, or the sockets are closed.

use std::fmt;

use codec::config::PathConfig;
use runtime::Completed;
use vocab::Instant;

use super::stream::Socket;
use crate::shard::io::Io;
use crate::shard::token::SocketOp;
use crate::tls::{self, Credentials, Handshake, Session};

/// The sockets, and the one whose handshake is under way.
pub(super) struct Securing {
    pub(super) path: PathConfig,
    pub(super) data: Socket,
    pub(super) control: Socket,
    credentials: Credentials,
    /// `None` before the first step of a turn.
    handshake: Option<Handshake>,
    turn: Turn,
    until: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Control,
    Data,
}

/// How far it has come.
pub(super) enum Progress {
    Pending,
    /// Both are encrypted.
    Done,
    Failed(Trouble),
}

/// Why the connection is not encrypted, and so is none.
#[derive(Debug)]
pub(super) enum Trouble {
    /// One of the files can not be used.
    Files(String),
    Handshake(tls::Failure),
    /// The peer has closed a socket.
    Closed,
    /// It has sent something else than TLS.
    Clear,
    /// It has said nothing, or not enough.
    Late,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Files(why) => f.write_str(why),
            Trouble::Handshake(failure) => failure.fmt(f),
            Trouble::Closed => f.write_str(
                "the peer has closed the connection during the TLS handshake: see its log, and that \
                 both nodes have `tls yes`",
            ),
            Trouble::Clear => f.write_str(
                "the peer does not encrypt: it began in clear text; set `tls yes` on both nodes",
            ),
            Trouble::Late => f.write_str(
                "the peer has not ended the TLS handshake in time; check that both nodes have \
                 `tls yes`",
            ),
        }
    }
}

impl From<tls::Failure> for Trouble {
    fn from(failure: tls::Failure) -> Trouble {
        Trouble::Handshake(failure)
    }
}

impl Securing {
    pub(super) fn new(
        credentials: Credentials,
        (path, data, control): (PathConfig, Socket, Socket),
        until: Instant,
    ) -> Securing {
        let (handshake, turn) = (None, Turn::Control);
        Securing { path, data, control, credentials, handshake, turn, until }
    }

    pub(super) fn owns(&self, serial: u32) -> bool {
        [&self.data, &self.control].into_iter().any(|socket| socket.serial == serial)
    }

    pub(super) fn deadline(&self) -> Instant {
        self.until
    }

    pub(super) fn completed(&mut self, io: &Io, op: SocketOp, serial: u32, done: Completed) {
        let socket = if self.data.serial == serial { &mut self.data } else { &mut self.control };
        // Whether the socket has ended is looked at later.
        match op {
            SocketOp::Receive => _ = socket.received(done),
            SocketOp::Send => _ = socket.sent(done, io.now()),
            SocketOp::Connect => {}
        }
    }

    /// Goes on as far as possible.
    pub(super) fn advance(&mut self, io: &mut Io) -> Progress {
        let result = self.handshakes(io);
        for socket in [&mut self.data, &mut self.control] {
            socket.flush(&mut io.ring);
        }
        match result {
            Ok(true) => Progress::Done,
            Ok(false) if [&self.data, &self.control].iter().any(|s| s.ended.is_some()) => {
                Progress::Failed(Trouble::Closed)
            }
            Ok(false) if self.until <= io.now() => Progress::Failed(Trouble::Late),
            Ok(false) => Progress::Pending,
            Err(trouble) => Progress::Failed(trouble),
        }
    }

    /// True if both are over.
    fn handshakes(&mut self, io: &mut Io) -> Result<bool, Trouble> {
        loop {
            for socket in [&mut self.data, &mut self.control] {
                // A peer without TLS begins to talk at once, and on the other socket than it would.
                let first = socket.conn.rx.peek(1).and_then(|bytes| bytes.first().copied());
                if first.is_some_and(|first| !tls::begins_tls(first)) {
                    return Err(Trouble::Clear);
                }
            }
            let (socket, other) = match self.turn {
                Turn::Control => (&mut self.control, &mut self.data),
                Turn::Data => (&mut self.data, &mut self.control),
            };
            let mut handshake = match self.handshake.take() {
                Some(handshake) => handshake,
                None => Handshake::new(&self.credentials, socket.accepted)?,
            };
            let mut out = Vec::new();
            let advanced = handshake.advance(&mut socket.conn.rx, &mut out);
            socket.conn.tx.push_bytes(&out);
            if advanced? {
                socket.secure(Session::new(handshake.finish()?, io.pool.clone()));
                match self.turn {
                    Turn::Control => self.turn = Turn::Data,
                    Turn::Data => return Ok(true),
                }
                continue;
            }
            self.handshake = Some(handshake);
            socket.arm(&mut io.ring);
            // The end of the other one shall show. What it has received already is not for now.
            if other.conn.rx.available() == 0 {
                other.arm(&mut io.ring);
            }
            return Ok(false);
        }
    }
}
