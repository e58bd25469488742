//! Handing a server over to another process: clients that are served go on there, on the same sockets.
//!
//! ```text
//! pause() ─► unfrozen() until it is None ─► freeze() ─────────────► (the process ends)
//!                                   │          └─ thaw() ─► resume() in the other one
//!                                   └─► resume(): nothing has happened
//! ```
//!
//! A paused server accepts nobody and reads no further request; what was read is carried out and
//! answered. What clients send meanwhile waits in their sockets. A client in negotiation is not
//! frozen: it is waited for.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use runtime::net::{Conn, Listener};
use runtime::{Errno, OpenerId, Ring, Token};
use serde::{Deserialize, Serialize};

use super::client::{Client, FrozenClient, Ids};
use super::{Listening, Purpose, Server, TargetKey, Targets, pack, unpack};

/// A server that has nothing under way. Its descriptors travel beside it: first the listeners', then
/// the clients', in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FrozenServer {
    /// By place; `None` was closed.
    listeners: Vec<Option<Option<PathBuf>>>,
    clients: Vec<FrozenClient>,
    /// Of all places for clients: late openers of clients that are gone find nobody.
    generations: Vec<u32>,
}

/// Why a server is not frozen yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfrozen(pub String);

impl FrozenServer {
    /// How many descriptors belong to it.
    pub fn descriptors(&self) -> usize {
        self.listeners.iter().flatten().count() + self.clients.len()
    }
}

impl Server {
    /// Takes in nothing new, from now on.
    pub fn pause(&mut self, ring: &mut Ring) {
        self.paused = true;
        for listening in self.listeners.iter().flatten() {
            if let Some(accept) = listening.accept {
                ring.cancel(accept);
            }
        }
        for (_, client) in &self.clients {
            if let Some(client) = client {
                client.pause(ring);
            }
        }
    }

    /// Goes on after a pause, or with what was thawed.
    pub fn resume(&mut self, ring: &mut Ring, targets: &mut dyn Targets) {
        self.paused = false;
        for index in 0..self.listeners.len() as u32 {
            self.accept_again(ring, index);
        }
        for index in 0..self.clients.len() as u32 {
            if self.client(index).is_some() {
                self.with_client(index, ring, targets, |client, env| client.advance(env));
            }
        }
    }

    /// What a paused server still waits for.
    pub fn unfrozen(&self) -> Option<Unfrozen> {
        if self.listeners.iter().flatten().any(|listening| listening.accept.is_some()) {
            return Some(Unfrozen("an NBD client is being accepted".to_owned()));
        }
        if !self.moved.is_empty() {
            return Some(Unfrozen("an NBD client moves to another thread".to_owned()));
        }
        self.clients.iter().flat_map(|(_, client)| client).find_map(|client| {
            let why = client.unfrozen()?;
            Some(Unfrozen(format!("NBD client {} {why}", client.peer())))
        })
    }

    /// The server and its descriptors; it stays as it is, and paused.
    ///
    /// # Errors
    /// There are no descriptors left.
    ///
    /// # Panics
    /// If it is not at rest, see [`Server::unfrozen`].
    pub fn freeze(&self) -> Result<(FrozenServer, Vec<OwnedFd>), Errno> {
        assert!(self.paused && self.unfrozen().is_none(), "a server at rest is frozen");
        let mut descriptors = Vec::new();
        let mut listeners = Vec::new();
        for place in &self.listeners {
            if let Some(listening) = place {
                descriptors.push(listening.listener.share()?);
            }
            listeners.push(place.as_ref().map(|listening| listening.path.clone()));
        }
        let mut clients = Vec::new();
        for (_, client) in &self.clients {
            let Some(client) = client else { continue };
            let (frozen, socket) = client.freeze()?;
            clients.push(frozen);
            descriptors.push(socket);
        }
        let generations = self.clients.iter().map(|(generation, _)| *generation).collect();
        Ok((FrozenServer { listeners, clients, generations }, descriptors))
    }

    /// Takes over what was frozen into a server that has no clients yet. It is paused until
    /// [`Server::resume`]. `target` says what an opener has open.
    ///
    /// # Errors
    /// Why that is not possible. Whoever hears of it must not drop the server, or the clients are
    /// lost for the other process as well.
    pub fn thaw(
        &mut self,
        frozen: FrozenServer,
        descriptors: Vec<OwnedFd>,
        now: vocab::Instant,
        target: impl Fn(OpenerId) -> Option<TargetKey>,
    ) -> Result<(), String> {
        assert!(self.clients.is_empty() && self.listeners.is_empty(), "a new server is thawed");
        self.paused = true;
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or("a descriptor is missing");
        for place in frozen.listeners {
            let place = match place {
                Some(path) => {
                    let listener = Listener::from_fd(next()?);
                    Some(Listening { listener, path, accept: None })
                }
                None => None,
            };
            self.listeners.push(place);
        }
        self.clients =
            frozen.generations.into_iter().map(|generation| (generation, None)).collect();
        for client in frozen.clients {
            let (_, index, generation) = unpack(client.opener);
            let place = self.clients.get_mut(index as usize);
            let Some((_, place)) = place.filter(|(g, place)| *g == generation && place.is_none())
            else {
                return Err("a client has no place".to_owned());
            };
            let Some(key) = target(OpenerId(client.opener)) else {
                return Err(format!("a client of {} has opened nothing", client.export));
            };
            let socket = Conn::new(next()?, &self.pool);
            let socket = socket.map_err(|e| format!("a client's socket: {e}"))?;
            let id = |purpose| pack(self.space, purpose, index, generation);
            let ids = Ids {
                opener: OpenerId(client.opener),
                receive: Token(id(Purpose::Receive)),
                send: Token(id(Purpose::Send)),
            };
            *place = Some(Box::new(Client::thaw(socket, ids, now, client, key)));
        }
        self.free = (0..self.clients.len() as u32).rev().collect();
        let taken = |index: &u32| self.clients[*index as usize].1.is_none();
        self.free.retain(taken);
        Ok(())
    }
}
