//! Clients over TLS, and where they come in, on their way to another process.
//!
//! All of them rest, and nobody is let in, until they are told to go on: here, if nobody has taken over, or
//! never. In the new process they begin in the same way. What is encrypted once is never encrypted a second
//! time: the numbers of records travel with the keys.

use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use codec::admin::TlsListen;
use serde::{Deserialize, Serialize};

use super::pump::{FrozenPump, Shared};
use super::{Clients, Seat, TlsListener, listen_on};
use crate::engine::Engine;

/// Descriptors of a client.
const OF_CLIENT: usize = 2;

/// Everything that has to do with TLS. Descriptors travel beside it: of the listeners, then two for each client.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct FrozenTls {
    listeners: Vec<TlsListen>,
    clients: Vec<FrozenPump>,
}

impl FrozenTls {
    /// How many descriptors belong to it.
    pub(crate) fn descriptors(&self) -> usize {
        self.listeners.len() + OF_CLIENT * self.clients.len()
    }
}

/// Clients at rest, and a closed door. Who drops this leaves them so.
#[must_use]
pub(crate) struct Held {
    clients: Arc<Clients>,
    pumps: Vec<Arc<Shared>>,
}

impl Held {
    /// All go on.
    pub(crate) fn go_on(self) {
        self.pumps.iter().for_each(|pump| pump.go_on());
        self.clients.lock().closed = false;
        self.clients.go_on.notify_all();
    }
}

impl Engine {
    /// Lets nobody in and has all clients rest. `held` is to go on in any case but that another process
    /// does; also after an error.
    ///
    /// # Errors
    /// Who can not rest, for now.
    pub(crate) fn hold_tls<'a>(
        &self,
        listeners: impl Iterator<Item = (&'a TlsListen, &'a TlsListener)>,
        held: &mut Vec<Held>,
    ) -> Result<(FrozenTls, Vec<OwnedFd>), String> {
        let mut present = self.tls_clients.lock();
        present.closed = true;
        let pumps: Vec<_> = present.all.values().cloned().collect();
        drop(present);
        let (clients, all) = (self.tls_clients.clone(), pumps.iter().flatten().cloned().collect());
        held.push(Held { clients, pumps: all });
        let (mut frozen, mut descriptors) = (FrozenTls::default(), Vec::new());
        for (place, listener) in listeners {
            let fd = listener.listener.as_fd().try_clone_to_owned();
            descriptors.push(fd.map_err(|e| format!("listener: {e}"))?);
            frozen.listeners.push(place.clone());
        }
        for pump in pumps {
            let Some(pump) = pump else {
                return Err("an NBD client is in its TLS handshake".to_owned());
            };
            let (client, fds) =
                pump.hold().map_err(|e| format!("NBD client {}: {e}", pump.address))?;
            frozen.clients.push(client);
            descriptors.extend(fds);
        }
        Ok((frozen, descriptors))
    }

    /// Goes on with the clients of another process, once they are told to. Gives the listeners, too, which let
    /// nobody in before.
    ///
    /// # Errors
    /// Why that is not possible.
    pub(crate) fn inherit_tls(
        self: &Arc<Self>,
        frozen: FrozenTls,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(Vec<(TlsListen, TlsListener)>, Held), String> {
        self.tls_clients.lock().closed = true;
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or_else(|| "a descriptor is missing".to_owned());
        let mut listeners = Vec::new();
        for place in frozen.listeners {
            let listener = listen_on(self, &place, TcpListener::from(next()?));
            let listener = listener.map_err(|e| format!("{}: {e}", place.address))?;
            listeners.push((place, listener));
        }
        let mut pumps = Vec::new();
        for client in frozen.clients {
            let address = client.address;
            let pump = Shared::thaw(client, [next()?, next()?]);
            let pump = pump.map_err(|e| format!("NBD client {address} over TLS: {e}"))?;
            pumps.push(pump.clone());
            let number = self.tls_clients.lock().seat();
            let number = number.ok_or_else(|| "too many NBD clients over TLS".to_owned())?;
            let seat = Seat { clients: self.tls_clients.clone(), number };
            let thread = std::thread::Builder::new().name("nbd-tls".to_owned());
            let run = move || seat.run(&pump);
            thread.spawn(run).map_err(|e| format!("NBD client {address}: no thread: {e}"))?;
        }
        Ok((listeners, Held { clients: self.tls_clients.clone(), pumps }))
    }
}
