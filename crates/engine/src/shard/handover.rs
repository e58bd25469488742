//! A shard on its way to another process.
//!
//! A frozen shard does nothing: what its ring completes is kept until it goes on. So what it was frozen
//! as is true until the other process has taken over, or has not.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use frontend::nbd::server::{FrozenServer, TargetKey};
use frontend::{ublk, vhost};
use serde::{Deserialize, Serialize};

use super::host::{FrozenHost, Host};
use super::{Hosts, Shard};
use crate::handlers::Programs;

/// A shard at rest. Its descriptors travel beside it: those of the resources in order, then those of
/// the NBD server.
#[derive(Serialize, Deserialize)]
pub(crate) struct FrozenShard {
    /// Each in its place: guests know how often others had changed a volume in which of its lives.
    hosts: Vec<Option<FrozenHost>>,
    nbd: FrozenServer,
    mapped: ublk::FrozenDevices,
    guests: vhost::FrozenDevices,
}

impl FrozenShard {
    /// How many descriptors belong to it.
    pub(crate) fn descriptors(&self) -> usize {
        let hosts: usize = self.hosts.iter().flatten().map(FrozenHost::descriptors).sum();
        hosts + self.nbd.descriptors()
    }
}

impl Shard {
    /// Why the shard can not be handed over, whatever is waited for.
    pub(crate) fn never_frozen(&mut self) -> Option<String> {
        let of_guests = self.vhost.never_frozen();
        of_guests.or_else(|| self.hosts.iter_mut().find_map(|host| host.never_frozen()))
    }

    /// Takes no more requests of clients, and tells what needs peers to end. To be called
    /// again: clients that have just come to rest are paused then.
    pub(crate) fn pause_clients(&mut self) -> Option<String> {
        self.nbd.pause(&mut self.io.ring);
        self.ublk.pause();
        self.vhost.pause(&mut self.io.ring);
        if let Some(unfrozen) = self.nbd.unfrozen() {
            return Some(unfrozen.0);
        }
        if let Some(unfrozen) = self.vhost.unfrozen() {
            return Some(unfrozen);
        }
        for id in self.hosts.ids() {
            self.with(id, |host, io, volumes| host.hold_foreign(io, volumes, true));
        }
        self.hosts.iter_mut().find_map(|host| host.needs_peers())
    }

    /// Takes nothing more from peers either.
    pub(crate) fn pause_peers(&mut self) {
        let Shard { hosts, io, .. } = self;
        hosts.iter_mut().for_each(|host| host.pause(io));
    }

    /// Freezes the shard if nothing is under way; else tells what is.
    pub(crate) fn freeze(&mut self) -> Result<(FrozenShard, Vec<OwnedFd>), String> {
        if let Some(unfrozen) = self.nbd.unfrozen() {
            return Err(unfrozen.0);
        }
        let Shard { hosts, volumes, .. } = self;
        if let Some(what) = hosts.iter_mut().find_map(|host| host.unfrozen(volumes)) {
            return Err(what);
        }
        if !self.io.jobs.is_idle() {
            return Err("disk operations are under way".to_owned());
        }
        let (mut frozen, mut descriptors) = (Vec::new(), Vec::new());
        let guests = self.vhost.freeze()?;
        for slot in &mut hosts.slots {
            let Some(host) = slot else {
                frozen.push(None);
                continue;
            };
            let (host, files) = host.freeze(volumes)?;
            frozen.push(Some(host));
            descriptors.extend(files);
        }
        let (nbd, files) = self.nbd.freeze().map_err(|e| format!("NBD clients: {e}"))?;
        descriptors.extend(files);
        let mapped = self.ublk.freeze();
        self.frozen = true;
        Ok((FrozenShard { hosts: frozen, nbd, mapped, guests }, descriptors))
    }

    /// Goes on: nobody has taken over, or this is who has.
    pub(crate) fn resume(&mut self) {
        self.frozen = false;
        self.ublk.resume();
        for done in std::mem::take(&mut self.kept) {
            self.completed(done);
        }
        for id in self.hosts.ids() {
            self.with(id, |host, io, volumes| host.resume(io, volumes));
        }
        let Shard { nbd, vhost, io, volumes, .. } = self;
        nbd.resume(&mut io.ring, volumes);
        vhost.go_on(&mut io.ring, volumes);
        // What it was told meanwhile, or the process before was, it has not done.
        self.look_at_order();
    }

    /// Takes over what another process has frozen, into a shard without resources. It stays frozen
    /// until it is to resume. Gives the resources by name, with their numbers.
    ///
    /// # Errors
    /// Why that is not possible. The process has to end then, without dropping anything: the sockets
    /// are still the other one's.
    pub(crate) fn thaw(
        &mut self,
        frozen: FrozenShard,
        descriptors: Vec<OwnedFd>,
        programs: &BTreeMap<String, Programs>,
    ) -> Result<Vec<(String, u16)>, String> {
        self.frozen = true;
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or_else(|| "a descriptor is missing".to_owned());
        let mut names = Vec::new();
        for host in frozen.hosts {
            let Some(host) = host else {
                self.hosts.slots.push(None);
                continue;
            };
            let id = u16::try_from(self.hosts.slots.len()).map_err(|e| e.to_string())?;
            let Some(programs) = programs.get(&host.name) else {
                return Err(format!("resource {} is not configured", host.name));
            };
            let programs = programs.clone();
            let Shard { io, volumes, .. } = self;
            let host = Host::thaw(id, (io, volumes), host, programs, &mut next)?;
            names.push((host.name.clone(), id));
            self.hosts.slots.push(Some(Box::new(host)));
            // Before any shard goes on: nobody is let go too early. Nobody waits yet.
            self.note_resyncs(id);
        }
        let opened = self.opened();
        let target = |opener: runtime::OpenerId| opened.get(&opener.0).copied();
        let now = self.io.now();
        self.nbd.thaw(frozen.nbd, descriptors.collect(), now, target)?;
        self.ublk.thaw(&frozen.mapped, target)?;
        self.vhost.thaw(frozen.guests, &mut self.volumes, target)?;
        Ok(names)
    }

    /// What each opener has open.
    fn opened(&mut self) -> BTreeMap<u64, TargetKey> {
        let Shard { hosts, volumes, .. } = self;
        let targets = hosts.iter_mut().flat_map(|host| host.targets());
        let openers = targets.flat_map(|key| {
            let openers = volumes.get_mut(key).map(|volume| volume.at_rest().openers().collect());
            let openers: Vec<u64> = openers.unwrap_or_default();
            openers.into_iter().map(move |opener| (opener, key))
        });
        openers.collect()
    }

    /// Tries to reach the peers that the process before had no connection to.
    pub(crate) fn connect_wanted(&mut self) {
        for id in self.hosts.ids() {
            self.with(id, |host, io, _| host.connect_wanted(io));
        }
    }
}

impl Hosts {
    fn ids(&self) -> Vec<u16> {
        self.slots.iter().flatten().map(|host| host.id).collect()
    }
}
