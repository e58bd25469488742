//! Handing a connection over to another process, on the same sockets. The peer notices nothing.
//!
//! A paused link reads nothing more, and what it has to send leaves. What has arrived and was not
//! handed to the core goes along as bytes. Sockets of a connection that is only being made are not
//! handed over: the other process begins anew.
//!
//! An encrypted connection goes on with its present keys. What makes new ones stays behind, so if one is due some
//! day, after 128 GiB in one direction, the connection is made anew.

use std::os::fd::OwnedFd;

use codec::config::PathConfig;
use codec::wire::{Agreed, Features};
use runtime::{Conn, Errno};
use serde::{Deserialize, Serialize};
use vocab::options::NetOptions;

use super::stream::Socket;
use super::{Integrity, Link, PingTime, State, Up};
use crate::digest::Algorithm;
use crate::shard::io::Io;
use crate::tls::{FrozenSession, Session};

/// A link at rest, whether it is up or not.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FrozenLink {
    pub(crate) peer: String,
    pub(crate) net: NetOptions,
    paths: Vec<PathConfig>,
    up: Option<FrozenUp>,
}

impl FrozenLink {
    /// How many descriptors belong to it.
    pub(crate) fn descriptors(&self) -> usize {
        if self.up.is_some() { 2 } else { 0 }
    }
}

/// A connection at rest. Its descriptors travel beside it: the data socket, then the control
/// socket.
#[derive(Debug, Serialize, Deserialize)]
struct FrozenUp {
    path: PathConfig,
    own: Option<Features>,
    agreed: Agreed,
    own_digest: Option<Algorithm>,
    peer_digest: Option<Algorithm>,
    data: FrozenSocket,
    control: FrozenSocket,
}

#[derive(Debug, Serialize, Deserialize)]
struct FrozenSocket {
    accepted: bool,
    unread: Vec<u8>,
    tls: Option<FrozenSession>,
}

impl FrozenSocket {
    fn of(socket: &Socket, up: &Up) -> FrozenSocket {
        let (unread, tls) = socket.unread(&up.agreed, up.integrity);
        FrozenSocket { accepted: socket.accepted, unread, tls }
    }
}

impl Link {
    /// Reads nothing more from now on.
    pub(crate) fn pause(&mut self, io: &mut Io) {
        self.paused = true;
        if let State::Up(up) = &self.state {
            up.data.conn.rx.cancel(&mut io.ring);
            up.control.conn.rx.cancel(&mut io.ring);
        }
    }

    /// Goes on after a pause, or with what was thawed: the owner is to read both streams.
    pub(crate) fn resume(&mut self) {
        self.paused = false;
    }

    /// What a paused link still waits for.
    pub(crate) fn unfrozen(&self) -> Option<String> {
        let why = match &self.state {
            _ if !self.closing.is_empty() => "is being closed",
            State::Up(up) if up.ended.is_some() => "is being lost",
            State::Up(up) if !up.data.is_sent() || !up.control.is_sent() => {
                "has data that the peer does not take"
            }
            State::Up(up) if up.data.conn.rx.is_armed() || up.control.conn.rx.is_armed() => {
                "is being read"
            }
            State::Idle | State::Dancing(_) | State::Securing(_) | State::Up(_) => return None,
        };
        Some(format!("connection {} {why}", self.label))
    }

    /// The link and its descriptors.
    ///
    /// # Errors
    /// There are no descriptors left.
    ///
    /// # Panics
    /// If it is not at rest, see [`Link::unfrozen`].
    pub(crate) fn freeze(&self) -> Result<(FrozenLink, Vec<OwnedFd>), Errno> {
        let (peer, net, paths) = (self.peer.clone(), self.net.clone(), self.paths.clone());
        let State::Up(up) = &self.state else {
            return Ok((FrozenLink { peer, net, paths, up: None }, Vec::new()));
        };
        let frozen = FrozenUp {
            path: up.path,
            own: up.own,
            agreed: up.agreed,
            own_digest: up.integrity.own,
            peer_digest: up.integrity.peer,
            data: FrozenSocket::of(&up.data, up),
            control: FrozenSocket::of(&up.control, up),
        };
        let descriptors = vec![up.data.conn.share()?, up.control.conn.share()?];
        Ok((FrozenLink { peer, net, paths, up: Some(frozen) }, descriptors))
    }

    /// Takes over what was frozen, into a link that was made with its peer's name and options; nothing
    /// is read before [`Link::resume`].
    ///
    /// # Errors
    /// The error number of a socket that can not be used. Whoever hears of it must not drop what was
    /// thawed, or the connection is lost for the other process as well.
    pub(crate) fn thaw(
        &mut self,
        io: &mut Io,
        frozen: FrozenLink,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Errno> {
        self.paused = true;
        self.paths = frozen.paths;
        let Some(frozen) = frozen.up else { return Ok(()) };
        let [data, control]: [OwnedFd; 2] = descriptors.try_into().map_err(|_| Errno::EINVAL)?;
        let FrozenUp { path, own, agreed, own_digest, peer_digest, .. } = frozen;
        let id = self.id;
        let mut socket = |fd: OwnedFd, frozen: FrozenSocket| {
            let mut conn = Conn::new(fd, &io.pool)?;
            conn.rx.preload(&frozen.unread);
            let mut socket = Socket::new(id, io.serial(), conn, frozen.accepted);
            match frozen.tls.map(|tls| Session::thaw(tls, io.pool.clone())).transpose() {
                Ok(Some(session)) => socket.secure(session),
                Ok(None) => {}
                Err(_) => {
                    std::mem::forget(socket);
                    return Err(Errno::EINVAL);
                }
            }
            Ok::<Socket, Errno>(socket)
        };
        let data = socket(data, frozen.data)?;
        let control = match socket(control, frozen.control) {
            Ok(control) => control,
            Err(errno) => {
                // Dropped, it would be shut down.
                std::mem::forget(data);
                return Err(errno);
            }
        };
        let integrity = Integrity { own: own_digest, peer: peer_digest };
        let (ended, starved, ping) = (None, false, PingTime::default());
        let up = Up { path, data, control, own, agreed, integrity, ended, starved, ping };
        self.state = State::Up(Box::new(up));
        Ok(())
    }
}
