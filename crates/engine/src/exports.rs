//! What is served over NBD, and where; and what over vhost-user (`crate::vhost` has how).
//!
//! Every shard's server knows every export; the first shard listens, and a client moves to the
//! shard of the volume it asks for. All exports can be asked for at all listeners. Volume 0 has
//! the name of its resource as well.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use codec::admin::{ExportStatus, FailureKind, Listen, TlsListen};
use frontend::nbd::server::{Export, ListenerId, Parting, Place, TargetKey};
use runtime::Errno;
use vocab::{ConfigError, Refusal, VolumeNr};

use crate::engine::{Done, Engine, Stop, lock, not_kept, while_claimed};
use crate::nbd_tls::{self, TlsListener};
use crate::shard::Shard;
use crate::state::StoredExport;
use crate::vhost::{Server, path_of};

/// The shard that listens. Clients move to that of their export by themselves.
pub(crate) const LISTENING: usize = 0;

/// Exports and listeners in use.
#[derive(Default)]
pub(crate) struct Exports {
    by_name: BTreeMap<String, StoredExport>,
    listeners: BTreeMap<Listen, ListenerId>,
    /// Those for clients that use TLS.
    tls: BTreeMap<Listen, TlsListener>,
    /// Those over vhost-user, by name.
    vhost: BTreeMap<String, Server>,
}

impl Exports {
    /// Goes on with what another process has served over vhost-user.
    pub(crate) fn inherit_vhost(&mut self, name: String, server: Server) {
        self.vhost.insert(name, server);
    }

    /// An export by its name.
    pub(crate) fn get(&self, name: &str) -> Option<&StoredExport> {
        self.by_name.get(name)
    }

    /// What is served over vhost-user, by its name.
    pub(crate) fn vhost_servers(&self) -> impl Iterator<Item = (&String, &Server)> {
        self.vhost.iter()
    }

    /// What is served over vhost-user.
    pub(crate) fn vhost(&self) -> impl Iterator<Item = (&StoredExport, &Server)> {
        self.vhost.iter().map(|(name, server)| (&self.by_name[name], server))
    }

    /// Where clients that use TLS come in.
    pub(crate) fn tls(&self) -> impl Iterator<Item = (&TlsListen, &TlsListener)> {
        self.tls.iter().filter_map(|(listen, listener)| match listen {
            Listen::Tls(place) => Some((place, listener)),
            _ => None,
        })
    }
}

impl Exports {
    /// All of it, for another process that goes on with the listeners.
    pub(crate) fn kept(&self) -> Result<(String, String), String> {
        let listeners: Vec<_> = self.listeners.iter().collect();
        let json = |result: serde_json::Result<String>| result.map_err(|e| e.to_string());
        Ok((json(serde_json::to_string(&self.by_name))?, json(serde_json::to_string(&listeners))?))
    }
}

/// The names an export is served under.
fn names(name: &str, export: &StoredExport) -> Vec<String> {
    let mut names = vec![name.to_owned()];
    let is_nbd = path_of(&export.listen).is_none();
    if is_nbd && export.volume == 0 && name == format!("{}/0", export.resource) {
        names.push(export.resource.clone());
    }
    names
}

impl Engine {
    /// Serves a volume.
    pub(crate) fn export(
        self: &Arc<Self>,
        name: &str,
        resource: &str,
        volume: VolumeNr,
        listen: &Listen,
        read_only: bool,
    ) -> Done {
        let entry = self.entry(resource)?;
        let id = entry.id;
        let target = self.on(entry.shard, move |shard| shard.hosts.get_mut(id)?.target(volume))?;
        let Some(target) = target else {
            let detail = format!("resource {resource} has no volume {volume}");
            return Err(Refusal::config(ConfigError::MinorInvalid, detail).into());
        };
        if name.is_empty() || name.len() > 255 || name.chars().any(char::is_control) {
            return Err(Stop::invalid("an export's name has 1 to 255 printable characters"));
        }
        let export = StoredExport {
            resource: resource.to_owned(),
            volume: volume.0,
            listen: listen.clone(),
            read_only,
        };
        let mut exports = lock(&self.exports);
        match exports.by_name.get(name) {
            Some(there) if *there == export => return Ok(()),
            Some(there) => {
                let how = if there.read_only { "read-only" } else { "for writing" };
                let detail = format!(
                    "`{name}` serves volume {} of {} {how} at {} already; choose another name, or \
                     unexport it",
                    there.volume,
                    there.resource,
                    place_name(&there.listen)
                );
                return Err(Refusal::config(ConfigError::Exists, detail).into());
            }
            None => {}
        }
        if let Some(path) = path_of(listen) {
            if let Some((other, _)) = exports.by_name.iter().find(|(_, e)| e.listen == *listen) {
                let detail = format!(
                    "can not listen at {path}: `{other}` is served there; choose another place, or \
                     unexport it"
                );
                return Err(Refusal::config(ConfigError::Exists, detail).into());
            }
            let server = self.serve_vhost(name, &export, path)?;
            exports.vhost.insert(name.to_owned(), server);
            exports.by_name.insert(name.to_owned(), export);
            return self.state.put_exports(&exports.by_name).map_err(not_kept);
        }
        self.listen(&mut exports, listen)?;
        for served in names(name, &export) {
            // A name somebody chose goes before the one that comes for free.
            if served == name || !exports.by_name.contains_key(&served) {
                self.serve(&served, entry.shard, target, &export)?;
            }
        }
        exports.by_name.insert(name.to_owned(), export);
        self.state.put_exports(&exports.by_name).map_err(not_kept)
    }

    /// Goes on with the exports of another process, whose listeners and clients are here already; `tls`: those
    /// for TLS.
    pub(crate) fn inherit_exports(
        self: &Arc<Self>,
        by_name: &str,
        listeners: &str,
        tls: Vec<(TlsListen, TlsListener)>,
    ) -> Done {
        let damaged = |e: serde_json::Error| Stop::invalid(format!("exports: {e}"));
        let mut exports = lock(&self.exports);
        exports.by_name = serde_json::from_str(by_name).map_err(damaged)?;
        let listeners: Vec<(Listen, ListenerId)> =
            serde_json::from_str(listeners).map_err(damaged)?;
        exports.listeners = listeners.into_iter().collect();
        exports.tls = tls.into_iter().map(|(place, there)| (Listen::Tls(place), there)).collect();
        // An engine that does not hand them over shares the port.
        let places: Vec<Listen> = exports.by_name.values().map(|e| e.listen.clone()).collect();
        for place in places.iter().filter(|place| matches!(place, Listen::Tls(_))) {
            self.listen(&mut exports, place)?;
        }
        for (name, export) in &exports.by_name {
            if path_of(&export.listen).is_some() {
                continue;
            }
            let entry = self.entry(&export.resource)?;
            let (id, volume) = (entry.id, VolumeNr(export.volume));
            let target = move |shard: &mut Shard| shard.hosts.get_mut(id)?.target(volume);
            let Some(target) = self.on(entry.shard, target)? else {
                let detail = format!("resource {} has no volume {volume}", export.resource);
                return Err(Refusal::config(ConfigError::MinorInvalid, detail).into());
            };
            for served in names(name, export) {
                if served == *name || !exports.by_name.contains_key(&served) {
                    self.serve(&served, entry.shard, target, export)?;
                }
            }
        }
        Ok(())
    }

    /// Makes sure that somebody listens there.
    fn listen(self: &Arc<Self>, exports: &mut Exports, listen: &Listen) -> Done {
        if exports.listeners.contains_key(listen) || exports.tls.contains_key(listen) {
            return Ok(());
        }
        if let Listen::Tls(place) = listen {
            return self.listen_tls(exports, place);
        }
        // The socket of an engine that was killed a moment ago goes as late as its disks do.
        let attempt = || {
            let place = listen.clone();
            let result = self.on(LISTENING, move |shard| {
                let ring = &mut shard.io.ring;
                match &place {
                    Listen::Tcp(address) => shard.nbd.listen_tcp(ring, *address).map(|(id, _)| id),
                    Listen::Unix(path) | Listen::VhostUser(path) => {
                        shard.nbd.listen_unix(ring, Path::new(path))
                    }
                    Listen::Tls(_) => unreachable!("returned above"),
                }
            });
            match result {
                Ok(Ok(id)) => Ok(Ok(id)),
                Ok(Err(errno)) => Err(errno),
                Err(stop) => Ok(Err(stop)),
            }
        };
        let id = while_claimed(|errno| *errno == Errno(libc::EADDRINUSE), attempt).map_err(
            |errno| {
                let place = place_name(listen);
                let text = format!("can not listen for NBD clients at {place}: {errno}");
                Stop::failed(FailureKind::Io, text, "give another place with --listen")
            },
        )??;
        exports.listeners.insert(listen.clone(), id);
        Ok(())
    }

    fn listen_tls(self: &Arc<Self>, exports: &mut Exports, place: &TlsListen) -> Done {
        let TlsListen { address, certificates } = place;
        let taken = |other: &Listen| match other {
            Listen::Tls(other) => other.address == *address,
            other => *other == Listen::Tcp(*address),
        };
        let mut others = exports.listeners.keys().chain(exports.tls.keys());
        if let Some(other) = others.find(|other| taken(other)) {
            let how = match other {
                Listen::Tls(other) => format!("with the files of {}", other.certificates),
                _ => "without TLS".to_owned(),
            };
            let detail = format!(
                "can not listen at {address}: other exports are served there {how}; choose another \
                 address, or unexport them"
            );
            return Err(Refusal::config(ConfigError::Exists, detail).into());
        }
        nbd_tls::Credentials::read(certificates).map_err(|why| {
            let next = "the folder needs ca-cert.pem, server-cert.pem and server-key.pem, or keys.psk, as \
                        those of qemu and nbdkit have them";
            Stop::failed(FailureKind::Io, format!("TLS for NBD clients: {why}"), next)
        })?;
        let listener = nbd_tls::listen(self, place).map_err(|e| {
            let text = format!("can not listen for NBD clients at {address} over TLS: {e}");
            Stop::failed(FailureKind::Io, text, "give another address with --listen")
        })?;
        exports.tls.insert(Listen::Tls(place.clone()), listener);
        Ok(())
    }

    fn serve(&self, name: &str, at: usize, target: TargetKey, export: &StoredExport) -> Done {
        let description = format!("resource {} volume {}", export.resource, export.volume);
        let read_only = export.read_only;
        let encrypted = matches!(export.listen, Listen::Tls(_));
        for shard in 0..self.shards.len() {
            let place = if shard == at { Place::Here(target) } else { Place::Thread(at as u32) };
            let description = description.clone();
            let export = Export { description, read_only, encrypted, place };
            let name = name.to_owned();
            self.on(shard, move |shard| shard.nbd.set_export(name, export))?;
        }
        Ok(())
    }

    /// Stops serving. Clients are disconnected, once what is in flight has been answered.
    pub(crate) fn unexport(&self, name: &str) -> Done {
        let mut exports = lock(&self.exports);
        let Some(export) = exports.by_name.remove(name) else {
            let detail = format!("there is no export `{name}`");
            return Err(Stop::invalid(detail));
        };
        if let Some(mut server) = exports.vhost.remove(name) {
            self.state.put_exports(&exports.by_name).map_err(not_kept)?;
            drop(exports);
            if let Ok(entry) = self.entry(&export.resource) {
                // What happens to the volume from now on is not what a guest may go on after.
                entry.restored.store(false, Ordering::Relaxed);
            }
            server.end();
            return Ok(());
        }
        for served in names(name, &export) {
            if served == name || !exports.by_name.contains_key(&served) {
                for shard in 0..self.shards.len() {
                    let served = served.clone();
                    self.on(shard, move |shard| {
                        let Shard { nbd, io, volumes, .. } = shard;
                        nbd.remove_export(&mut io.ring, volumes, &served, Parting::Gentle);
                    })?;
                }
            }
        }
        if !exports.by_name.values().any(|other| other.listen == export.listen) {
            exports.tls.remove(&export.listen);
            if let Some(id) = exports.listeners.remove(&export.listen) {
                self.on(LISTENING, move |shard| shard.nbd.close_listener(id))?;
            }
        }
        self.state.put_exports(&exports.by_name).map_err(not_kept)
    }

    /// Names of the exports of a resource, or of one of its volumes.
    pub(crate) fn exports_of(&self, resource: &str, volume: Option<VolumeNr>) -> Vec<String> {
        let exports = lock(&self.exports);
        let of = |export: &StoredExport| {
            export.resource == resource && volume.is_none_or(|nr| nr.0 == export.volume)
        };
        exports.by_name.iter().filter(|(_, e)| of(e)).map(|(name, _)| name.clone()).collect()
    }

    /// All exports with their number of clients.
    pub(crate) fn export_list(&self) -> Done<Vec<ExportStatus>> {
        let mut clients: BTreeMap<String, u32> = BTreeMap::new();
        for shard in 0..self.shards.len() {
            let open: Vec<String> =
                self.on(shard, |shard| shard.nbd.clients().filter_map(|c| c.export).collect())?;
            for name in open {
                *clients.entry(name).or_default() += 1;
            }
        }
        let exports = lock(&self.exports);
        let status = |(name, export): (&String, &StoredExport)| ExportStatus {
            name: name.clone(),
            resource: export.resource.clone(),
            volume: VolumeNr(export.volume),
            listen: export.listen.clone(),
            read_only: export.read_only,
            clients: match exports.vhost.get(name) {
                Some(server) => server.clients(),
                None => names(name, export).iter().filter_map(|n| clients.get(n)).sum(),
            },
        };
        Ok(exports.by_name.iter().map(status).collect())
    }

    /// Stops listening and drops every client, for a shutdown.
    pub(crate) fn stop_serving(&self) -> Done {
        lock(&self.exports).tls.clear();
        for shard in 0..self.shards.len() {
            self.on(shard, |shard| {
                let Shard { nbd, volumes, .. } = shard;
                nbd.stop(volumes);
            })?;
        }
        // They stay listed: what they know of their last client is asked for at the very end.
        for server in lock(&self.exports).vhost.values_mut() {
            server.end();
        }
        Ok(())
    }
}

fn place_name(listen: &Listen) -> String {
    match listen {
        Listen::Tcp(address) => address.to_string(),
        Listen::Tls(place) => format!("{} over TLS", place.address),
        Listen::Unix(path) | Listen::VhostUser(path) => path.clone(),
    }
}
