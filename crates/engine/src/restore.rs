//! Bringing resources up again as they were, and as configuration files say.
//!
//! What is kept is the wish, and it stays as it is whatever goes wrong here: a disk that can not
//! be attached today is attached by the next start, or by an operator.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use codec::config::{self, Host, Resolved, SourceFile};
use replication::io::AdminCommand;
use vocab::{RefusalCode, StateError};

use crate::engine::{Done, Engine, Entry, Stop, lock};
use crate::state::Stored;
use logging::{Level, log};

/// How long a start waits for disks before it serves the control socket all the same.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long the end waits for requests in flight: longer than a peer takes to be found dead.
const IN_FLIGHT: Duration = Duration::from_secs(10);
/// How often it looks.
const RETRY: Duration = Duration::from_millis(10);

impl Engine {
    /// Brings up everything that is kept, and what the configuration file adds to it.
    ///
    /// # Errors
    /// Nothing can be brought up: the directory or the file can not be read.
    pub(crate) fn restore(self: &Arc<Engine>, file: Option<(&Path, &str)>) -> Result<(), String> {
        let (mut resources, damaged) = self.state.resources()?;
        for text in damaged {
            log!(Level::Error, "engine", "not brought up: {text}; correct or remove the file");
        }
        if let Some((file, node)) = file {
            for config in load(file, node)?.resources {
                if resources.iter().all(|stored| stored.config.name != config.name) {
                    let mut stored = Stored::new(config);
                    let peers = &stored.config.peers;
                    stored.connected = peers.iter().map(|peer| peer.node_id.get()).collect();
                    self.state.put_resource(&stored)?;
                    resources.push(stored);
                }
            }
        }
        let (done, ended) = std::sync::mpsc::channel();
        let count = resources.len();
        for stored in resources {
            let (engine, done) = (self.clone(), done.clone());
            let name = stored.config.name.clone();
            let run = move || {
                engine.bring_up(stored);
                let _ = done.send(());
            };
            std::thread::Builder::new()
                .name("bring-up".to_owned())
                .spawn(run)
                .map_err(|e| format!("no thread to bring {name} up: {e}"))?;
        }
        drop(done);
        let end = std::time::Instant::now() + PATIENCE;
        for _ in 0..count {
            let left = end.saturating_duration_since(std::time::Instant::now());
            if ended.recv_timeout(left).is_err() {
                log!(
                    Level::Warn,
                    "engine",
                    "some disks take long to attach; going on without them"
                );
                break;
            }
        }
        self.restore_exports()?;
        self.restore_maps()
    }

    fn restore_exports(self: &Arc<Self>) -> Result<(), String> {
        for (name, export) in self.state.exports()? {
            let volume = vocab::VolumeNr(export.volume);
            if let Err(stop) =
                self.export(&name, &export.resource, volume, &export.listen, export.read_only)
            {
                log!(Level::Error, name, "not exported: {}", text(&stop));
            }
        }
        Ok(())
    }

    /// Brings one resource up, as far as it gets.
    fn bring_up(&self, stored: Stored) {
        let name = stored.config.name.clone();
        let wanted = stored.clone();
        let entry = match self.place(stored) {
            Ok(entry) => entry,
            Err(stop) => return log!(Level::Error, name, "not brought up: {}", text(&stop)),
        };
        entry.restored.store(true, Ordering::Relaxed);
        let _pass = entry.pass();
        let report = |what: String, result: Done| {
            if let Err(stop) = result {
                log!(Level::Error, name, "could not {what}: {}", text(&stop));
            }
        };
        for volume in &wanted.config.volumes {
            let diskless = volume.device_options.diskless;
            let result = self.add_volume(&entry, volume.nr, volume.minor, diskless);
            report(format!("create volume {}", volume.nr), result);
        }
        for peer in &wanted.config.peers {
            report(format!("add {}", peer.name), self.bring_up_peer(&entry, peer));
        }
        for volume in &wanted.config.volumes {
            if let Some(backing) = &volume.backing {
                let after = backing.options.resync_after;
                let result = self.restore_order(&name, volume.minor, after);
                let attach = |()| self.attach(&entry, volume.nr, backing.clone());
                let result = result.and_then(attach);
                report(format!("attach {} to volume {}", backing.disk, volume.nr), result);
            }
        }
        for peer in &wanted.config.peers {
            let (node, discard_my_data) = (peer.node_id, false);
            if wanted.connected.contains(&node.get()) {
                let command = AdminCommand::Connect { peer: node, discard_my_data };
                report(format!("connect to {}", peer.name), self.command(&entry, command));
            }
        }
    }

    fn bring_up_peer(&self, entry: &Entry, peer: &config::PeerConfig) -> Done {
        let devices = peer.volumes.iter().map(|v| (v.nr, v.options.clone())).collect();
        let (node, id, paths) = (peer.node_id, entry.id, peer.paths.clone());
        self.add_peer(entry, node, peer.name.clone(), peer.net.clone(), devices)?;
        self.on(entry.shard, move |shard| {
            shard.with(id, |host, io, volumes| host.set_paths(io, volumes, node, paths));
        })
    }

    /// Leaves in peace: clients first, then roles, connections and disks. What is kept stays, so
    /// the next start brings everything up again.
    pub(crate) fn wind_down(&self) {
        let entries = self.entries(None);
        // Block devices first: what is dirty there is written on the way.
        self.take_maps_down();
        self.begin_end_of_run();
        if let Err(stop) = self.stop_serving() {
            log!(Level::Warn, "engine", "clients could not be stopped: {}", text(&stop));
        }
        let unchanged = AtomicBool::new(true);
        std::thread::scope(|scope| {
            for entry in &entries {
                scope.spawn(|| {
                    if !self.leave(entry) {
                        unchanged.store(false, Ordering::Relaxed);
                    }
                });
            }
        });
        self.end_run(unchanged.into_inner());
    }

    /// Leaves a resource. True if nobody has written to it since its guests lost it.
    fn leave(&self, entry: &Entry) -> bool {
        let report = |what: &str, result: Done| {
            if let Err(stop) = result {
                log!(Level::Warn, entry.name, "could not {what}: {}", text(&stop));
            }
        };
        let config = lock(&entry.stored).config.clone();
        if let Err(stop) = self.demote(entry) {
            // Peers that a Primary tells goodbye count it as gone for good and go on without it,
            // while what is in flight here goes on, too. One that just vanishes can not hurt.
            log!(
                Level::Warn,
                entry.name,
                "could not demote: {}; leaving it as a crash would",
                text(&stop)
            );
            return true;
        }
        for peer in &config.peers {
            let command = AdminCommand::Disconnect { peer: peer.node_id, force: false };
            report(&format!("disconnect from {}", peer.name), self.command(entry, command));
        }
        let unchanged = self.is_as_left(entry);
        for volume in &config.volumes {
            let (volume, force, intentional) = (volume.nr, false, false);
            let command = AdminCommand::Detach { volume, force, intentional };
            report(&format!("detach volume {volume}"), self.command(entry, command));
        }
        unchanged
    }

    /// Demotes, once what clients left in flight has ended.
    fn demote(&self, entry: &Entry) -> Done {
        let end = std::time::Instant::now() + IN_FLIGHT;
        loop {
            match self.command(entry, AdminCommand::Secondary { force: false }) {
                Err(Stop::Refused(refusal))
                    if refusal.code == RefusalCode::State(StateError::DeviceInUse)
                        && std::time::Instant::now() < end =>
                {
                    std::thread::sleep(RETRY);
                }
                result => return result,
            }
        }
    }

    /// Clients that have volumes open.
    pub(crate) fn openers(&self) -> usize {
        let open = |entry: &Arc<Entry>| {
            let id = entry.id;
            self.on(entry.shard, move |shard| {
                shard.with(id, |host, _, volumes| host.openers(volumes)).unwrap_or(0)
            })
        };
        self.entries(None).iter().filter_map(|entry| open(entry).ok()).sum()
    }
}

/// Why a command ended, for the log.
pub(crate) fn text(stop: &Stop) -> String {
    match stop {
        Stop::Refused(refusal) => refusal.to_string(),
        Stop::Failed(failure) if failure.next.is_empty() => failure.text.clone(),
        Stop::Failed(failure) => format!("{}; {}", failure.text, failure.next),
    }
}

// ---- configuration files -----------------------------------------------------------------

/// This node's view of a configuration file.
fn load(file: &Path, node: &str) -> Result<Resolved, String> {
    let first = read(file)?;
    let config = config::parse(first, &mut include).map_err(|e| e.to_string())?;
    let host = Host { name: node, is_local: &is_local };
    config.resolve(&host).map_err(|e| e.to_string())
}

fn read(path: &Path) -> Result<SourceFile, String> {
    let text = fs::read_to_string(path)
        .map_err(|e| format!("{}: can not be read: {e}", path.display()))?;
    Ok(SourceFile { name: path.display().to_string(), text })
}

/// The files an `include` names, as seen from the directory of the file that has it.
fn include(from: &str, pattern: &str) -> Result<Vec<SourceFile>, String> {
    let base = Path::new(from).parent().unwrap_or(Path::new(""));
    // `join` keeps an absolute pattern as it is. Only what was written is one, not the directory.
    let pattern = match Path::new(pattern).is_absolute() {
        true => PathBuf::from(pattern),
        false => PathBuf::from(glob::Pattern::escape(&base.to_string_lossy())).join(pattern),
    };
    let paths = glob::glob(&pattern.to_string_lossy()).map_err(|e| e.to_string())?;
    let mut files = Vec::new();
    for path in paths {
        let path = path.map_err(|e| e.to_string())?;
        if path.is_file() {
            files.push(read(&path)?);
        }
    }
    Ok(files)
}

/// Whether an address is assigned to this host: whether a socket can be bound to it.
fn is_local(ip: IpAddr) -> bool {
    !ip.is_unspecified() && UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_its_includes_are_this_nodes_view() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("d")).unwrap();
        let main = directory.path().join("drbd.conf");
        fs::write(&main, "include \"d/*.res\";\n").unwrap();
        let resource = "resource r0 {
            device minor 0; disk /dev/null; meta-disk internal;
            on alpha { node-id 0; address 127.0.0.1:7000; }
            on bravo { node-id 1; address 127.0.0.2:7000; }
        }";
        fs::write(directory.path().join("d/r0.res"), resource).unwrap();
        let resolved = load(&main, "bravo").unwrap();
        assert_eq!(resolved.resources.len(), 1);
        assert_eq!(resolved.resources[0].node_id.get(), 1);
        assert!(load(&directory.path().join("none"), "bravo").unwrap_err().contains("none"));
    }
}
