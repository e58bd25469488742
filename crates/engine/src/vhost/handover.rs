//! Guests on their way to another process, which goes on with their clients' connections.
//!
//! The thread of an export rests between two messages of its client, or while it has none, and gives what it
//! knows. It stays so until it is let go on: here, if nobody has taken over; or never. The thread
//! of the new process begins in the same way, at rest.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use frontend::vhost::FrozenSession;
use frontend::vhost::inflight::Lease;
use frontend::vhost::session::{End, Owner, Session, Signals};
use serde::{Deserialize, Serialize};
use vocab::VolumeNr;

use super::{Client, Thread, path_of};
use crate::engine::{Done, Engine, lock};
use crate::restore::text;
use logging::{Level, log};

/// An export that is served over vhost-user. Its descriptors travel beside it: that of its listener, then
/// those of its client.
#[derive(Serialize, Deserialize)]
pub(crate) struct FrozenGuest {
    name: String,
    lease: Option<Lease>,
    session: Option<FrozenSession>,
}

impl FrozenGuest {
    /// How many descriptors belong to it.
    pub(crate) fn descriptors(&self) -> usize {
        1 + self.session.as_ref().map_or(0, FrozenSession::descriptors)
    }
}

/// A thread that rests. Dropped, one that had its client before goes on, and one that has taken over
/// never does.
pub(crate) struct HeldGuest(Sender<()>);

impl HeldGuest {
    /// It goes on.
    pub(crate) fn go_on(self) {
        let _ = self.0.send(());
    }
}

/// What a resting thread has: the descriptors of its listener and its client, and the session of one.
type Held = Result<(Option<FrozenSession>, Vec<OwnedFd>), String>;

/// The wish that a thread rests, for as long as the other end of `go_on` is there.
pub(super) struct Hold {
    held: Sender<Held>,
    go_on: Receiver<()>,
}

impl Engine {
    /// Has the threads of all clients rest, and gives what they are.
    ///
    /// # Errors
    /// Which client can not rest in time. Those in `resting` go on once they are dropped.
    pub(crate) fn hold_guests(
        &self,
        end: Instant,
        resting: &mut Vec<HeldGuest>,
    ) -> Result<(Vec<FrozenGuest>, Vec<OwnedFd>), String> {
        let exports = lock(&self.exports);
        let mut asked = Vec::new();
        for (name, server) in exports.vhost_servers() {
            let (held, answer) = mpsc::channel();
            let (rests, go_on) = mpsc::channel();
            resting.push(HeldGuest(rests));
            let sent = server.holds.send(Hold { held, go_on });
            let told = rustix::io::write(&*server.hold, &1u64.to_ne_bytes());
            if sent.is_err() || told.is_err() {
                return Err(format!("{name} is not served any more; see the log"));
            }
            asked.push((name, server, answer));
        }
        let (mut guests, mut descriptors) = (Vec::new(), Vec::new());
        for (name, server, answer) in asked {
            let left = end.saturating_duration_since(Instant::now());
            let answer = answer.recv_timeout(left).map_err(|_| {
                format!("a vhost-user client of {name} is being answered, or is connecting")
            })?;
            let (session, files) = answer.map_err(|why| format!("a client of {name}: {why}"))?;
            let lease = *lock(&server.shared.lease);
            guests.push(FrozenGuest { name: name.clone(), lease, session });
            descriptors.extend(files);
        }
        Ok((guests, descriptors))
    }

    /// Takes over what another process has served over vhost-user. It rests until what this gives is dropped.
    ///
    /// # Errors
    /// Why that is not possible.
    pub(crate) fn inherit_guests(
        self: &Arc<Self>,
        guests: Vec<FrozenGuest>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Vec<HeldGuest>, String> {
        let mut descriptors = descriptors.into_iter();
        let mut resting = Vec::new();
        for guest in guests {
            let mut files: Vec<OwnedFd> = descriptors.by_ref().take(guest.descriptors()).collect();
            if files.len() != guest.descriptors() {
                return Err("a descriptor is missing".to_owned());
            }
            let listener = UnixListener::from(files.remove(0));
            let FrozenGuest { name, lease, session } = guest;
            let export = lock(&self.exports).get(&name).cloned();
            let found = export.as_ref().and_then(|export| path_of(&export.listen));
            let (Some(export), Some(path)) = (&export, found) else {
                return Err(format!("there is no export {name} over vhost-user"));
            };
            let (held, answer) = mpsc::channel();
            let (rests, go_on) = mpsc::channel();
            resting.push(HeldGuest(rests));
            let session = session.map(|session| (session, files));
            let run = move |thread: &mut Thread| thread.go_on(session, &held, &go_on);
            let server = self.start_vhost(&name, export, path, listener, run);
            let server = server.map_err(|e| format!("{name}: {e}"))?;
            *lock(&server.shared.lease) = lease;
            let answer = answer.recv().map_err(|_| format!("{name}: its thread has ended"))?;
            answer.map_err(|why| format!("the client of {name}: {why}"))?;
            lock(&self.exports).inherit_vhost(name, server);
        }
        Ok(resting)
    }
}

impl Thread {
    /// Rests, as somebody wishes, until it is to go on.
    pub(super) fn rest(&self, session: Option<&Session<'_>>) {
        let _ = rustix::io::read(&*self.hold, &mut [0; 8]);
        // Whoever wished it may have given up.
        let Ok(Hold { held, go_on }) = self.holds.try_recv() else { return };
        let frozen = || {
            let mut files = vec![self.listener.as_fd().try_clone_to_owned()?];
            let mut frozen = None;
            if let Some(session) = session {
                let (session, more) = session.freeze()?;
                frozen = Some(session);
                files.extend(more);
            }
            Ok((frozen, files))
        };
        let frozen = frozen().map_err(|e: std::io::Error| e.to_string());
        if held.send(frozen).is_ok() {
            let _ = go_on.recv();
        }
    }

    /// Goes on with an export, and with its client if there is one, once it is to.
    fn go_on(
        &mut self,
        session: Option<(FrozenSession, Vec<OwnedFd>)>,
        held: &Sender<Result<(), String>>,
        go_on: &Receiver<()>,
    ) {
        if let Some((session, files)) = session {
            self.shared.clients.store(1, Ordering::Relaxed);
            // Without a word the client is still the other process's, and so is the listener.
            let Some(ended) = self.go_on_with(session, files, held, go_on) else { return };
            self.note_end(ended);
            self.shared.clients.store(0, Ordering::Relaxed);
        } else {
            let _ = held.send(Ok(()));
            if go_on.recv().is_err() {
                return;
            }
        }
        self.listen();
    }

    /// Takes a client over and, once it is to, serves it to its end.
    fn go_on_with(
        &self,
        session: FrozenSession,
        files: Vec<OwnedFd>,
        held: &Sender<Result<(), String>>,
        go_on: &Receiver<()>,
    ) -> Option<Done<End>> {
        let (key, nr) = (session.key(), VolumeNr(self.export.volume));
        let engine = self.engine.upgrade()?;
        let entry = engine.entry(&self.export.resource);
        let entry = entry.inspect_err(|stop| drop(held.send(Err(text(stop))))).ok()?;
        let client = Client { engine: &engine, entry: &entry, nr, name: &self.name };
        let signals = Signals { stop: &self.stop, hold: &self.hold };
        let thawed = Session::thaw(session, files, signals, &client);
        let mut session = thawed.inspect_err(|why| drop(held.send(Err(why.clone())))).ok()?;
        held.send(Ok(())).ok()?;
        go_on.recv().ok()?;
        session.take_lease();
        *lock(&self.shared.lease) = Some(client.lease());
        log!(Level::Info, self.name, "goes on with its vhost-user client");
        let end = self.converse(&mut session);
        Some(self.close(&client, key).map(|()| end))
    }
}
