//! Listening sockets, shared by all links that expect a peer at the same local address.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use codec::config::PathConfig;
use runtime::{Completed, Conn, Errno, Listener, Ring};
use vocab::NodeId;

use crate::shard::token;
use logging::{Level, log};

/// The listeners of a shard.
#[derive(Default)]
pub(crate) struct Listeners {
    by_address: BTreeMap<SocketAddr, u32>,
    /// Never reused: a late accept of a closed listener finds nothing.
    places: Vec<Option<Listening>>,
}

struct Listening {
    address: SocketAddr,
    listener: Listener,
    expected: Vec<Expected>,
}

/// Who is expected at a listener. Source ports do not matter (wire §1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Expected {
    pub(crate) remote: IpAddr,
    pub(crate) resource: u16,
    pub(crate) node: NodeId,
}

impl Listeners {
    /// Expects a peer at `local`, listening there if nobody does yet.
    ///
    /// # Errors
    /// Why it is not possible to listen there.
    pub(crate) fn expect(
        &mut self,
        ring: &mut Ring,
        local: SocketAddr,
        who: Expected,
    ) -> Result<(), Errno> {
        let index = match self.by_address.get(&local) {
            Some(index) => *index,
            None => {
                let listener = Listener::tcp(local)?;
                let index = self.places.len() as u32;
                listener.accept(ring, token::listener(index));
                let listening = Listening { address: local, listener, expected: Vec::new() };
                self.places.push(Some(listening));
                self.by_address.insert(local, index);
                index
            }
        };
        let place = self.places[index as usize].as_mut().expect("listed by its address");
        if !place.expected.contains(&who) {
            place.expected.push(who);
        }
        Ok(())
    }

    /// A peer is no longer expected anywhere. Listeners that nobody needs are closed.
    pub(crate) fn forget(&mut self, resource: u16, node: NodeId) {
        self.keep(|_, who| (who.resource, who.node) != (resource, node));
    }

    /// A peer is no longer expected by this path.
    pub(crate) fn forget_path(&mut self, resource: u16, node: NodeId, path: PathConfig) {
        let remote = path.remote.ip().to_canonical();
        let forgotten = Expected { remote, resource, node };
        self.keep(|local, who| (local, who) != (path.local, forgotten));
    }

    fn keep(&mut self, stays: impl Fn(SocketAddr, Expected) -> bool) {
        for place in &mut self.places {
            let Some(listening) = place else { continue };
            let address = listening.address;
            listening.expected.retain(|who| stays(address, *who));
            if listening.expected.is_empty() {
                self.by_address.remove(&listening.address);
                *place = None;
            }
        }
    }

    /// An accept has completed: the connection and whom it is for, if anybody.
    pub(crate) fn accepted(
        &mut self,
        ring: &mut Ring,
        index: u32,
        done: Completed,
        pool: &runtime::BufPool,
    ) -> Option<(Expected, Conn)> {
        let listening = self.places.get(index as usize)?.as_ref()?;
        // Failing to accept is transient (no descriptors, an aborted connection), and peers
        // try again; accepting must go on.
        listening.listener.accept(ring, token::listener(index));
        let conn = match Conn::accepted(done, pool) {
            Ok(conn) => conn,
            Err(errno) => {
                let address = listening.address;
                log!(Level::Warn, "engine", "can not accept a connection at {address}: {errno}");
                return None;
            }
        };
        let remote = conn.peer_addr()?.ip().to_canonical();
        match listening.expected.iter().find(|e| e.remote == remote) {
            Some(expected) => Some((*expected, conn)),
            None => {
                let address = listening.address;
                log!(
                    Level::Warn,
                    "engine",
                    "closed a connection of unknown host {remote} at {address}"
                );
                None
            }
        }
    }
}
