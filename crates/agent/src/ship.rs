//! Shipping snapshots: what the controller has asked for, and how far it is.
//!
//! Each shipment has a thread of its own and takes as long as it takes; steps of the resource go on
//! meanwhile. Nothing of it is kept over a restart: the controller asks again for what it still wants.
//! `upload` makes a backup of a snapshot, `download` a snapshot from a backup. A backup is one only with
//! its description, which is uploaded when everything else is there. To another cluster `send` ships from
//! agent to agent, and `download` receives it: `peer` is how the one comes to the other, `line` what they say.

mod download;
mod line;
mod peer;
mod send;
mod upload;

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cluster::name::ResourceName;
use cluster::objects::Generation;
use cluster::plan::Action;
use cluster::shipping::{Bucket, Phase, ShipmentState, UploadTo};
use shipping::archive::Unreadable;
use shipping::s3::{self, Client, Place};

use crate::carry::Node;
use crate::failed::Failed;

/// How long a store that does not answer is asked again.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often progress is told.
const TELL: Duration = Duration::from_secs(1);
/// Shipments of a resource that have ended and are still told of.
const REMEMBERED: usize = 32;

/// What this node ships, and has shipped since its start.
#[derive(Default)]
pub struct Shipments {
    inner: Mutex<BTreeMap<ResourceName, Vec<Shipment>>>,
}

struct Shipment {
    state: ShipmentState,
    stop: Arc<AtomicBool>,
    /// Its thread was started.
    begun: bool,
}

impl Shipments {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ResourceName, Vec<Shipment>>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a new one; one that is known stays as it is.
    pub fn add(&self, name: &ResourceName, token: Generation) {
        let mut inner = self.lock();
        let all = inner.entry(name.clone()).or_default();
        if all.iter().any(|shipment| shipment.state.token == token) {
            return;
        }
        while all.len() >= REMEMBERED {
            let Some(old) = all.iter().position(|one| !one.state.phase.is_active()) else { break };
            all.remove(old);
        }
        let (phase, cause, door) = (Phase::Shipping, None, None);
        let state = ShipmentState { token, phase, done_percent: 0, cause, door };
        all.push(Shipment { state, stop: Arc::default(), begun: false });
    }

    /// The flag that stops one, once: for the thread that carries it out.
    pub fn begin(&self, name: &ResourceName, token: Generation) -> Option<Arc<AtomicBool>> {
        let mut inner = self.lock();
        let shipment = find(&mut inner, name, token).filter(|shipment| !shipment.begun)?;
        shipment.begun = true;
        Some(shipment.stop.clone())
    }

    /// Takes note that one could not even begin.
    pub fn fail(&self, name: &ResourceName, token: Generation, cause: String) {
        self.change(name, token, |state| (state.phase, state.cause) = (Phase::Failed, Some(cause)));
    }

    /// Has one end.
    pub fn stop(&self, name: &ResourceName, token: Generation) {
        if let Some(shipment) = find(&mut self.lock(), name, token) {
            shipment.stop.store(true, Ordering::Relaxed);
        }
    }

    /// True if something is shipped of a resource.
    pub fn is_busy(&self, name: &ResourceName) -> bool {
        let inner = self.lock();
        inner.get(name).is_some_and(|all| all.iter().any(|one| one.state.phase.is_active()))
    }

    /// What is told of a resource.
    pub fn states(&self, name: &ResourceName) -> Vec<ShipmentState> {
        let inner = self.lock();
        inner.get(name).into_iter().flatten().map(|shipment| shipment.state.clone()).collect()
    }

    fn change(
        &self,
        name: &ResourceName,
        token: Generation,
        change: impl FnOnce(&mut ShipmentState),
    ) {
        if let Some(shipment) = find(&mut self.lock(), name, token) {
            change(&mut shipment.state);
        }
    }
}

fn find<'a>(
    all: &'a mut BTreeMap<ResourceName, Vec<Shipment>>,
    name: &ResourceName,
    token: Generation,
) -> Option<&'a mut Shipment> {
    all.get_mut(name)?.iter_mut().find(|shipment| shipment.state.token == token)
}

/// A shipment at work.
pub struct Work<'a> {
    node: &'a Node,
    name: &'a ResourceName,
    token: Generation,
    stop: Arc<AtomicBool>,
    /// Called when there is something to tell.
    told: &'a dyn Fn(),
    last: Option<Instant>,
}

/// Carries out a shipment from its beginning to its end, which is in what is told of it.
pub fn run(
    node: &Node,
    name: &ResourceName,
    action: &Action,
    stop: Arc<AtomicBool>,
    told: &dyn Fn(),
) -> Result<(), Failed> {
    let token = match action {
        Action::Upload(order) => order.token,
        Action::Download(order) => order.token,
        _ => return Ok(()),
    };
    let mut work = Work { node, name, token, stop, told, last: None };
    let done = match action {
        Action::Upload(order) => match &order.to {
            UploadTo::Bucket(bucket) => work.upload(order, bucket),
            UploadTo::Peer(peer) => work.send(order, peer),
        },
        Action::Download(order) => work.download(order),
        _ => Ok(()),
    };
    let stopped = work.is_stopped();
    node.shipments.change(name, token, |state| match &done {
        Ok(()) => (state.phase, state.done_percent) = (Phase::Success, 100),
        Err(_) if stopped => state.phase = Phase::Aborted,
        Err(failed) => {
            state.phase = Phase::Failed;
            state.cause = Some(failed.to_string());
        }
    });
    told();
    done
}

impl Work<'_> {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Takes note of how many bytes are done, and ends the work if it is to end.
    fn progress(&mut self, done: u64, total: u64) -> io::Result<()> {
        if self.is_stopped() {
            return Err(s3::Error::Stopped.into());
        }
        if self.last.is_none_or(|last| last.elapsed() >= TELL) {
            self.last = Some(Instant::now());
            let percent = u128::from(done) * 100 / u128::from(total.max(1));
            let percent = u8::try_from(percent).unwrap_or(100);
            self.node.shipments.change(self.name, self.token, |state| {
                state.done_percent = percent;
            });
            (self.told)();
        }
        Ok(())
    }

    fn phase(&self, phase: Phase) {
        self.node.shipments.change(self.name, self.token, |state| state.phase = phase);
        (self.told)();
    }

    /// A client of the bucket. Its keys are opened here, and nowhere kept.
    fn client(&self, bucket: &Bucket) -> Result<Client, Failed> {
        let next = "enter it anew (`ashlar remote modify`)";
        let open = |sealed: &str| self.node.master.unseal(sealed, "the key of the remote", next);
        let place = Place {
            endpoint: bucket.endpoint.clone(),
            bucket: bucket.bucket.clone(),
            region: bucket.region.clone(),
            path_style: bucket.path_style,
            access_key: open(&bucket.access_key)?,
            secret_key: open(&bucket.secret_key)?,
        };
        Client::new(&place, PATIENCE, self.stop.clone()).map_err(of_store)
    }
}

#[cfg(test)]
mod tests;

fn of_store(error: s3::Error) -> Failed {
    Failed::new(error.to_string(), error.correction())
}

/// An error of a store inside of it, or one of this node's.
fn of_io(what: &str, error: &io::Error) -> Failed {
    match s3::Error::inside(error) {
        Some(inside) => Failed::new(inside.to_string(), inside.correction()),
        None => {
            use io::ErrorKind::{
                BrokenPipe, ConnectionAborted, ConnectionReset, InvalidData, TimedOut,
            };
            let way = [BrokenPipe, ConnectionAborted, ConnectionReset, InvalidData, TimedOut];
            let next = match way.contains(&error.kind()) {
                true => "see to the other node and the network between them, then ship it again",
                false => "see to the pool and its space",
            };
            Failed::new(format!("could not {what}: {error}"), next)
        }
    }
}

fn of_archive(object: &str, error: &Unreadable) -> Failed {
    match error {
        Unreadable::Io(error) => of_io(&format!("restore {object}"), error),
        other => {
            let next = "restore another backup; this one is not as it was made";
            Failed::new(format!("{object} can not be used: {other}"), next)
        }
    }
}
