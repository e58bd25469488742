//! What the agent says of its resources: what it has made, and what the engine says of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use cluster::layer::Layer;
use cluster::name::{NodeName, ResourceName};
use cluster::objects::Millis;
use cluster::observed::{Mapped, ReplicaState, SnapshotState, VolumeState};
use codec::admin::ResourceStatus;
use vocab::{Bytes, ConnState, DiskState, VolumeNr};

use crate::engine;
use crate::record::{Metadata, Record};

#[cfg(test)]
mod tests;

/// The state of the engine's resources as last heard, by name.
#[derive(Default)]
pub struct View {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Nothing is known while the engine is not connected.
    statuses: BTreeMap<String, ResourceStatus>,
    in_use: BTreeMap<String, Millis>,
    /// Resources that the engine is being asked about, and has not told of since.
    asked: BTreeSet<String>,
}

impl Inner {
    fn put(&mut self, status: ResourceStatus) {
        match engine::is_in_use(&status) {
            true => _ = self.in_use.entry(status.name.clone()).or_insert_with(now),
            false => _ = self.in_use.remove(&status.name),
        }
        self.statuses.insert(status.name.clone(), status);
    }

    fn remove(&mut self, name: &str) {
        self.statuses.remove(name);
        self.in_use.remove(name);
    }
}

impl View {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The engine has told of a resource: as it is now, or that it is gone.
    pub fn told(&self, name: &str, status: Option<ResourceStatus>) {
        let mut inner = self.lock();
        inner.asked.remove(name);
        match status {
            Some(status) => inner.put(status),
            None => inner.remove(name),
        }
    }

    /// The engine is about to be asked for a resource.
    pub fn asks(&self, name: &str) {
        self.lock().asked.insert(name.to_owned());
    }

    /// What it has answered. That is older than what it has told since it was asked, and says
    /// nothing then: nobody would ever correct it. True if it counts.
    #[must_use]
    pub fn answered(&self, name: &str, status: Option<ResourceStatus>) -> bool {
        let mut inner = self.lock();
        let counts = inner.asked.remove(name);
        match status {
            Some(status) if counts => inner.put(status),
            None if counts => inner.remove(name),
            _ => {}
        }
        counts
    }

    /// The engine is gone: nothing is known, and what it may still answer says nothing.
    pub fn clear(&self) {
        *self.lock() = Inner::default();
    }

    /// What is reported of a resource.
    pub fn report(&self, record: &Record) -> ReplicaState {
        let inner = self.lock();
        let name = record.name.as_str();
        report(record, inner.statuses.get(name), inner.in_use.get(name).copied())
    }
}

/// The time of day.
pub fn now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A resource that has been removed.
pub fn removed(generation: cluster::objects::Generation) -> ReplicaState {
    ReplicaState { generation, ..ReplicaState::default() }
}

fn report(
    record: &Record,
    status: Option<&ResourceStatus>,
    in_use: Option<Millis>,
) -> ReplicaState {
    let drbd = record.config.as_ref().is_none_or(|config| config.layers.contains(&Layer::Drbd));
    let configured = record.config.iter().flat_map(|config| config.volumes.keys());
    let configured = configured.filter(|_| status.is_some() || !drbd).copied();
    let devices = status.iter().flat_map(|status| &status.devices).map(|device| device.volume.0);
    let made = record.volumes.keys().copied();
    let numbers: BTreeSet<u16> = made.chain(configured).chain(devices).collect();
    let volume = |number: u16| {
        let mut state = VolumeState::default();
        if let Some(volume) = record.volumes.get(&number).filter(|volume| volume.size != 0) {
            state.backing = Some(Bytes(volume.size));
            state.metadata = volume.metadata == Metadata::Made;
            state.passphrase_changes = volume.passphrase_changes;
            state.mapped = volume
                .mapped
                .as_ref()
                .map(|device| Mapped { device: device.clone(), backing: volume.path.clone() });
            if !drbd && record.config.is_some() {
                (state.disk, state.size) = (Some(DiskState::UpToDate), Bytes(volume.size));
            }
        }
        let device = status.and_then(|s| s.devices.iter().find(|d| d.volume.0 == number));
        if let Some(device) = device {
            state.disk = Some(device.disk_state);
            state.size = Bytes(device.size * 1024);
        }
        state.done_percent = status.and_then(|status| done_percent(status, number));
        (VolumeNr(number), state)
    };
    let connections = status.iter().flat_map(|status| &status.connections).filter_map(|peer| {
        let connected = peer.connection_state == ConnState::Connected;
        Some((NodeName::new(&peer.name).ok()?, connected))
    });
    let complete = record.snapshots.iter().filter(|(_, snapshot)| snapshot.complete);
    ReplicaState {
        generation: record.confirmed,
        up: record.config.is_some() && (status.is_some() || !drbd),
        in_use,
        volumes: numbers.into_iter().map(volume).collect(),
        connections: connections.collect(),
        suspension: record.suspension(),
        rollback: record.rollback(),
        shipments: Vec::new(),
        snapshots: complete
            .map(|(name, snapshot)| (name.clone(), SnapshotState { token: snapshot.token }))
            .collect(),
    }
}

/// Whole percents: more would be news all the time.
fn done_percent(status: &ResourceStatus, number: u16) -> Option<f32> {
    let own = status.devices.iter().find(|device| device.volume.0 == number)?;
    let target = own.disk_state < DiskState::UpToDate;
    let peers = status.connections.iter().flat_map(|peer| &peer.peer_devices);
    let running = peers.filter(|device| device.volume.0 == number && target);
    let done = running.filter_map(|device| Some(device.sync.as_ref()?.percent_resync_done));
    done.reduce(f64::max).map(|percent| percent.floor() as f32)
}

/// The records of resources by name, as they are reported.
pub fn all(view: &View, store: &crate::record::Store) -> BTreeMap<ResourceName, ReplicaState> {
    let mut all: BTreeMap<_, _> =
        store.removed().into_iter().map(|(name, at)| (name, removed(at))).collect();
    for name in store.names() {
        if let Some(record) = store.get(&name) {
            let state = view.report(&record);
            all.insert(name, state);
        }
    }
    all
}
