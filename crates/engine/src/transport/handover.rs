//! Handing a connection over to another process, on the same sockets. The peer notices nothing.
//!
//! A paused link reads nothing more, and what it has to send leaves. What has arrived and was not
//! handed to the core goes along as bytes. Sockets of a connection that is only being made are not
//! handed over: the other process begins anew. Nor are those of paths that are to join one; where both are there it
//! is waited for them, for the peer may send on them already.
//!
//! An encrypted connection goes on with its present keys. What makes new ones stays behind, so if one is due some
//! day, after 128 GiB in one direction, the connection is made anew.

use std::os::fd::OwnedFd;

use codec::config::PathConfig;
use codec::wire::{Agreed, Features, Stream};
use runtime::{Conn, Errno};
use serde::{Deserialize, Serialize};
use vocab::options::NetOptions;

use super::channel::Channel;
use super::dance::Dance;
use super::spread::{FrozenSpread, Spread};
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
        let more = |up: &FrozenUp| up.spread.as_ref().map_or(0, |spread| spread.others.len());
        self.up.as_ref().map_or(0, |up| 2 * (1 + more(up)))
    }
}

/// A connection at rest. Its descriptors travel beside it: the data socket, then the control
/// socket, and those of other paths in the same order.
#[derive(Debug, Serialize, Deserialize)]
struct FrozenUp {
    path: PathConfig,
    own: Option<Features>,
    agreed: Agreed,
    own_digest: Option<Algorithm>,
    peer_digest: Option<Algorithm>,
    data: FrozenSocket,
    control: FrozenSocket,
    /// Engines without this field use one path at a time.
    #[serde(default)]
    spread: Option<FrozenPaths>,
}

/// What a connection over several paths has more than one over one.
#[derive(Debug, Serialize, Deserialize)]
struct FrozenPaths {
    /// Those behind the first.
    others: Vec<FrozenPath>,
    data: FrozenSpread,
    control: FrozenSpread,
}

#[derive(Debug, Serialize, Deserialize)]
struct FrozenPath {
    path: PathConfig,
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
    fn of(socket: &Socket, before: Vec<u8>) -> FrozenSocket {
        let (unread, tls) = socket.unread(before);
        FrozenSocket { accepted: socket.accepted, unread, tls }
    }
}

impl Up {
    fn freeze(&self) -> FrozenUp {
        let begun = [&self.data, &self.control].map(|c| c.begun(&self.agreed, self.integrity));
        let channels = [&self.data, &self.control];
        let spreads = [0, 1].map(|i| {
            let spread = channels[i].spread.as_ref()?;
            Some(spread.freeze(&begun[i]))
        });
        let is_spread = spreads[0].is_some();
        let [data_begun, control_begun] = begun.map(|b| if is_spread { Vec::new() } else { b });
        let others = self.paths.iter().enumerate().skip(1).map(|(at, path)| FrozenPath {
            path: *path,
            data: FrozenSocket::of(&self.data.sockets[at], Vec::new()),
            control: FrozenSocket::of(&self.control.sockets[at], Vec::new()),
        });
        let others: Vec<FrozenPath> = others.collect();
        let [data, control] = spreads;
        let spread = data.zip(control);
        FrozenUp {
            path: self.paths[0],
            own: self.own,
            agreed: self.agreed,
            own_digest: self.integrity.own,
            peer_digest: self.integrity.peer,
            data: FrozenSocket::of(&self.data.sockets[0], data_begun),
            control: FrozenSocket::of(&self.control.sockets[0], control_begun),
            spread: spread.map(|(data, control)| FrozenPaths { others, data, control }),
        }
    }
}

impl Link {
    /// Reads nothing more from now on.
    pub(crate) fn pause(&mut self, io: &mut Io) {
        self.paused = true;
        if let State::Up(up) = &mut self.state {
            for channel in [&mut up.data, &mut up.control] {
                channel.cancel(&mut io.ring);
                channel.rests();
            }
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
            State::Up(up) if up.data.is_armed() || up.control.is_armed() => "is being read",
            State::Up(up) if up.joining.iter().any(Dance::is_checking) => "is joined by a path",
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
        let mut descriptors = Vec::new();
        for (data, control) in up.data.sockets.iter().zip(&up.control.sockets) {
            descriptors.extend([data.conn.share()?, control.conn.share()?]);
        }
        Ok((FrozenLink { peer, net, paths, up: Some(up.freeze()) }, descriptors))
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
        let FrozenUp { path, own, agreed, own_digest, peer_digest, data, control, spread } = frozen;
        let (mut paths, mut frozen) = (vec![path], vec![data, control]);
        let mut spreads = None;
        if let Some(FrozenPaths { others, data, control }) = spread {
            for FrozenPath { path, data, control } in others {
                paths.push(path);
                frozen.extend([data, control]);
            }
            spreads = Some((data, control));
        }
        if descriptors.len() != frozen.len() {
            return Err(Errno::EINVAL);
        }
        let mut sockets = Vec::new();
        for (fd, frozen) in descriptors.into_iter().zip(frozen) {
            match self.thaw_socket(io, fd, frozen) {
                Ok(socket) => sockets.push(socket),
                Err(errno) => {
                    // Dropped, they would be shut down.
                    std::mem::forget(sockets);
                    return Err(errno);
                }
            }
        }
        let spreads = spreads.map(|(data, control)| {
            let thaw = |frozen| Spread::thaw(frozen, paths.len(), io.pool.clone()).map(Box::new);
            thaw(data).zip(thaw(control))
        });
        let (data_spread, control_spread) = match spreads {
            None => (None, None),
            Some(Some((data, control))) => (Some(data), Some(control)),
            Some(None) => {
                std::mem::forget(sockets);
                return Err(Errno::EINVAL);
            }
        };
        let (mut data, mut control) = (Vec::new(), Vec::new());
        for (nr, socket) in sockets.into_iter().enumerate() {
            if nr % 2 == 0 { data.push(socket) } else { control.push(socket) }
        }
        let up = Up {
            paths,
            data: Channel::of(Stream::Data, data, data_spread),
            control: Channel::of(Stream::Control, control, control_spread),
            joining: Vec::new(),
            own,
            agreed,
            integrity: Integrity { own: own_digest, peer: peer_digest },
            ended: None,
            starved: false,
            ping: PingTime::default(),
        };
        self.state = State::Up(Box::new(up));
        Ok(())
    }

    fn thaw_socket(&self, io: &mut Io, fd: OwnedFd, frozen: FrozenSocket) -> Result<Socket, Errno> {
        let mut conn = Conn::new(fd, &io.pool)?;
        conn.rx.preload(&frozen.unread);
        let mut socket = Socket::new(self.id, io.serial(), conn, frozen.accepted);
        match frozen.tls.map(|tls| Session::thaw(tls, io.pool.clone())).transpose() {
            Ok(Some(session)) => socket.secure(session),
            Ok(None) => {}
            Err(_) => {
                std::mem::forget(socket);
                return Err(Errno::EINVAL);
            }
        }
        Ok(socket)
    }
}
