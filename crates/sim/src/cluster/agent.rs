//! A simulated agent with its disks. What is on the disks survives a crash.

use std::collections::{BTreeMap, BTreeSet};

use ::cluster::name::{NodeName, ResourceName, SnapshotName};
use ::cluster::objects::{Generation, Millis};
use ::cluster::observed::{
    DownForRollback, ReplicaState, SnapshotState, Suspension, SuspensionState, VolumeState,
};
use ::cluster::plan::{Action, Begin, Guard};
use ::cluster::shipping::ShipmentState;
use vocab::{Bytes, DiskState, VolumeNr};

use super::data::{Data, Source, Version};

/// A node.
#[derive(Default)]
pub struct Agent {
    /// The node runs.
    pub up: bool,
    /// The controller reaches it.
    pub linked: bool,
    /// What it has of each resource. A record stays, as the memory of the newest generation.
    pub records: BTreeMap<ResourceName, Record>,
}

/// What a node has of a resource.
#[derive(Clone, Default)]
pub struct Record {
    /// Generation of the newest step that was begun.
    pub seen: Generation,
    /// Generation of the newest configuration or removal.
    pub confirmed: Generation,
    /// Peers of the configuration, if it is up.
    pub peers: Option<BTreeSet<NodeName>>,
    /// Volumes of the configuration.
    pub configured: BTreeMap<u16, u64>,
    /// Backing volumes.
    pub volumes: BTreeMap<u16, Disk>,
    /// Snapshots: token, and the version of the data of each volume.
    pub snapshots: BTreeMap<SnapshotName, (Generation, BTreeMap<u16, Version>)>,
    /// Sizes of the volumes of a snapshot.
    pub sizes: BTreeMap<SnapshotName, BTreeMap<u16, u64>>,
    /// It is down for a rollback, or because it was deactivated.
    pub down: Option<DownForRollback>,
    /// The last suspension.
    pub suspension: Option<(Generation, SuspensionState)>,
    /// Since when it is Primary.
    pub primary: Option<Millis>,
    /// What it uploads, or has since it was started.
    pub shipments: Vec<ShipmentState>,
}

/// A backing volume.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// Size in bytes.
    pub size: u64,
    /// It has metadata.
    pub metadata: bool,
    /// The last write that it has; nothing if it never was in sync.
    pub version: Option<Version>,
    /// The size of the device on it.
    pub device: u64,
    /// How often its passphrase was changed.
    pub passphrase_changes: u32,
}

/// Why a step was not carried out.
pub enum Refused {
    /// It is older than one that was begun.
    Old,
    /// It can not be done now.
    Not,
}

impl Record {
    /// True if every volume has the last write.
    pub fn is_current(&self, name: &ResourceName, data: &Data) -> bool {
        !self.volumes.is_empty()
            && self
                .volumes
                .iter()
                .all(|(number, disk)| data.is_current(name, *number, disk.version))
    }

    /// True if there is anything on the disks.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.snapshots.is_empty() && self.peers.is_none()
    }

    /// What the agent reports.
    pub fn report(&self, name: &ResourceName, data: &Data, peers: &[NodeName]) -> ReplicaState {
        let numbers: BTreeSet<u16> =
            self.volumes.keys().chain(self.configured.keys()).copied().collect();
        let volumes = numbers.into_iter().map(|number| {
            let disk = self.volumes.get(&number);
            let state = disk.map_or(DiskState::Diskless, |disk| match disk.version {
                None => DiskState::Inconsistent,
                version if data.is_current(name, number, version) => DiskState::UpToDate,
                Some(_) => DiskState::Outdated,
            });
            let down = self.down.is_some() && self.peers.is_none();
            let state = VolumeState {
                backing: disk.map(|disk| Bytes(disk.size)),
                metadata: disk.is_some_and(|disk| disk.metadata),
                // Nobody looks into a disk that is not attached.
                disk: (!down).then_some(state),
                size: Bytes(disk.filter(|_| !down).map_or(0, |disk| disk.device)),
                done_percent: None,
                passphrase_changes: disk.map_or(0, |disk| disk.passphrase_changes),
                mapped: None,
            };
            (VolumeNr(number), state)
        });
        let connections = self.peers.iter().flatten();
        let snapshots = self.snapshots.iter();
        ReplicaState {
            generation: self.confirmed,
            up: self.peers.is_some(),
            in_use: self.primary,
            volumes: volumes.collect(),
            connections: connections.map(|p| (p.clone(), peers.contains(p))).collect(),
            suspension: self.suspension.map(|(token, state)| Suspension { token, state }),
            rollback: self.down,
            shipments: self.shipments.clone(),
            snapshots: snapshots
                .map(|(name, (token, _))| (name.clone(), SnapshotState { token: *token }))
                .collect(),
        }
    }

    /// Carries out a step. `current` are the connected peers that have every write.
    pub fn carry_out(
        &mut self,
        name: &ResourceName,
        generation: Generation,
        action: &Action,
        current: &[NodeName],
        data: &mut Data,
        sources: &BTreeMap<Source, BTreeMap<u16, Version>>,
    ) -> Result<(), Refused> {
        if generation < self.seen {
            return Err(Refused::Old);
        }
        self.seen = generation;
        match action {
            Action::CreateVolume { volume, backing } => {
                let passphrase_changes = backing.passphrase_changes;
                let new = Disk { passphrase_changes, ..Disk::default() };
                let disk = self.volumes.entry(*volume).or_insert(new);
                disk.size = disk.size.max(backing.size.0);
            }
            // Nothing of a simulated cluster was there before it.
            Action::AdoptVolume { .. } => return Err(Refused::Not),
            Action::RestoreVolume { volume, backing, from, snapshot } => {
                if self.volumes.contains_key(volume) {
                    return Ok(());
                }
                let source = (from.clone(), snapshot.clone());
                let Some(versions) = sources.get(&source) else { return Err(Refused::Not) };
                let version =
                    versions.get(volume).map(|from| data.restore(name, *volume, &source, *from));
                let size = backing.size.0;
                let passphrase_changes = backing.passphrase_changes;
                let disk = Disk { size, metadata: true, version, device: 0, passphrase_changes };
                self.volumes.insert(*volume, disk);
            }
            Action::CreateMetadata { volume, begin, .. } => {
                let Some(disk) = self.volumes.get_mut(volume) else { return Err(Refused::Not) };
                if !disk.metadata {
                    disk.metadata = true;
                    disk.version = (*begin == Begin::First).then(|| data.begin(name, *volume));
                }
            }
            Action::BeginData { volume } => {
                let Some(disk) = self.volumes.get_mut(volume) else { return Err(Refused::Not) };
                if !disk.metadata || disk.version.is_some() || !current.is_empty() {
                    return Err(Refused::Not);
                }
                disk.version = Some(data.begin(name, *volume));
            }
            Action::GrowVolume { volume, size } => {
                let Some(disk) = self.volumes.get_mut(volume) else { return Err(Refused::Not) };
                disk.size = disk.size.max(size.0);
            }
            Action::ChangePassphrase { volume, changes, .. } => {
                let Some(disk) = self.volumes.get_mut(volume) else { return Err(Refused::Not) };
                disk.passphrase_changes = *changes;
            }
            Action::GrowDevice { volume, size } => {
                self.configured.insert(*volume, size.0);
            }
            Action::Configure(config) => {
                self.peers = Some(config.connections.keys().cloned().collect());
                let sizes = config.volumes.iter().map(|(number, volume)| (*number, volume.size.0));
                let old = std::mem::take(&mut self.configured);
                self.configured = sizes.collect();
                // A device that exists grows by a step of its own.
                for (number, size) in old {
                    if let Some(new) = self.configured.get_mut(&number) {
                        *new = size;
                    }
                }
                self.confirmed = generation;
                self.down = None;
            }
            Action::RemoveDisk(guard) => {
                self.guard(guard, current)?;
                self.volumes.clear();
            }
            Action::RemoveVolume { volume } => {
                self.volumes.remove(volume);
                self.configured.remove(volume);
            }
            Action::Remove(guard) => {
                if self.primary.is_some() {
                    return Err(Refused::Not);
                }
                self.guard(guard, current)?;
                self.volumes.clear();
                self.configured.clear();
                self.peers = None;
                (self.suspension, self.down) = (None, None);
                self.confirmed = generation;
            }
            Action::Suspend { token } => {
                if self.suspension.is_none_or(|(old, _)| old < *token) {
                    self.suspension = Some((*token, SuspensionState::Held));
                }
            }
            Action::TakeSnapshot { token, snapshot } => {
                if self.suspension != Some((*token, SuspensionState::Held)) {
                    return Err(Refused::Not);
                }
                let has = self.volumes.iter().filter_map(|(nr, disk)| Some((*nr, disk.version?)));
                self.snapshots.entry(snapshot.clone()).or_insert((*token, has.collect()));
                let sizes = self.volumes.iter().map(|(nr, disk)| (*nr, disk.size)).collect();
                self.sizes.entry(snapshot.clone()).or_insert(sizes);
            }
            Action::Resume { token } => {
                if self.suspension == Some((*token, SuspensionState::Held)) {
                    self.suspension = Some((*token, SuspensionState::Released));
                }
            }
            Action::DeleteSnapshot { snapshot } => {
                self.snapshots.remove(snapshot);
                self.sizes.remove(snapshot);
            }
            Action::TakeDown { token, guard } => {
                if self.primary.is_some() {
                    return Err(Refused::Not);
                }
                // One that is down already has no peers that it could look at.
                if let (Some(guard), true) = (guard, self.peers.is_some()) {
                    self.guard(guard, current)?;
                }
                if self.down.is_none_or(|down| down.token != *token) {
                    self.down = Some(DownForRollback { token: *token, changed: false });
                }
                self.peers = None;
                self.configured.clear();
            }
            Action::RollBack { token, snapshot } => {
                if self.is_changed(*token)? {
                    return Ok(());
                }
                let Some((_, versions)) = self.snapshots.get(snapshot) else {
                    return Err(Refused::Not);
                };
                for (number, disk) in &mut self.volumes {
                    let from = versions.get(number).copied();
                    disk.version = from.map(|from| data.roll_back(name, *number, *token, from));
                    let sizes = self.sizes.get(snapshot);
                    disk.size = sizes.and_then(|s| s.get(number)).copied().unwrap_or(disk.size);
                }
                self.down = Some(DownForRollback { token: *token, changed: true });
            }
            // Who ships looks at no disk here: see `schedules`.
            Action::Upload(_) | Action::Download(_) | Action::StopShipping { .. } => {
                return Err(Refused::Not);
            }
            Action::Discard { token } => {
                if !self.is_changed(*token)? {
                    self.volumes.clear();
                    self.down = Some(DownForRollback { token: *token, changed: true });
                }
            }
        }
        Ok(())
    }

    /// Whether the data of a resource that is down for this rollback were changed already.
    fn is_changed(&self, token: Generation) -> Result<bool, Refused> {
        let down = self.down.filter(|down| down.token == token && self.peers.is_none());
        down.map(|down| down.changed).ok_or(Refused::Not)
    }

    fn guard(&self, guard: &Guard, current: &[NodeName]) -> Result<(), Refused> {
        let data = self.volumes.values().any(|disk| disk.version.is_some());
        let others = guard.of.iter().filter(|node| current.contains(node)).count();
        if !data || others >= guard.at_least { Ok(()) } else { Err(Refused::Not) }
    }
}
