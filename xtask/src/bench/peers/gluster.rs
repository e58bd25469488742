//! GlusterFS: three bricks and their management, used through libgfapi.
//!
//! Its programs write to /var, /run and /tmp whatever they are told, and its bricks leave the
//! process that starts them. In a namespace those folders are ours, and the bricks end with it.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Running, Serving, Wanted};
use crate::bench::cluster;
use crate::bench::fio::Target;
use crate::bench::namespace::Namespace;
use crate::process;

/// What a reader of its figures has to know.
pub const NOTE: &str = "three copies by three bricks, answered when all have a write; with its \
                        own settings for disk images (the group virt); fio's gfapi_async engine \
                        is the client, with O_DIRECT";

/// Programs, with the Debian package of each.
pub const NEEDS: &[(&str, &str)] = &[
    ("glusterd", "glusterfs-server"),
    ("glusterfsd", "glusterfs-common"),
    ("glusterfs", "glusterfs-client"),
    ("gluster", "glusterfs-cli"),
];

const BRICKS: usize = 3;
const VOLUME: &str = "blocks";
/// Where its own folder is seen, as /tmp is another one there.
const HOME: &str = "/mnt";
/// Folders of the machine that it writes to, with the name of ours in their place.
const FOLDERS: &[(&str, &str)] = &[
    ("state", "/var/lib/glusterd"),
    ("log", "/var/log/glusterfs"),
    ("run", "/run"),
    ("tmp", "/tmp"),
];
/// Settings that it brings for disk images.
const GROUP: &str = "/var/lib/glusterd/groups/virt";
/// How long starting it may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Room of all bricks.
pub fn room_mib(mib: u64) -> u64 {
    // Each has some thousand small files of its own.
    BRICKS as u64 * (mib + 64)
}

/// A running one.
struct Cluster {
    namespace: Namespace,
    servers: Vec<u32>,
    bricks: Vec<PathBuf>,
}

/// Starts it with a file per volume.
pub fn serve(wanted: &Wanted) -> Result<Serving> {
    wanted.require_direct()?;
    let host = format!("{}.1", cluster::network());
    let folder = wanted.folder;
    for (name, _) in FOLDERS {
        fs::create_dir(folder.join(name))?;
    }
    fs::create_dir(folder.join("state/groups"))?;
    fs::copy(GROUP, folder.join("state/groups/virt")).context(GROUP)?;
    fs::write(folder.join("glusterd.vol"), management(&host))?;
    let mut folders = vec![(folder.to_owned(), HOME)];
    folders.extend(FOLDERS.iter().map(|(name, place)| (format!("{HOME}/{name}").into(), *place)));
    let program = ["glusterd", "--no-daemon", "--volfile=/mnt/glusterd.vol"];
    let program = [&program[..], &["--log-file=/dev/stderr"]].concat();
    let mut namespace = Namespace::start(&program, &folders, folder.join("glusterd.log"))?;
    let socket = folder.join("run/glusterd.socket");
    namespace.wait("its control socket is there", PATIENCE, || socket.exists())?;
    let bricks = start_volume(&namespace, wanted, &host)?;
    let servers = servers(&mut namespace)?;
    let target = |volume| Target::Gluster {
        namespace: namespace.first(),
        host: host.clone(),
        volume: VOLUME,
        file: format!("v{volume}"),
    };
    let targets = (0..wanted.volumes).map(target).collect();
    let cluster = Cluster { namespace, servers: servers.clone(), bricks };
    Ok(Serving { targets, servers, hops: Vec::new(), running: Box::new(cluster) })
}

/// Makes and starts the volume; returns the folders of its bricks.
fn start_volume(namespace: &Namespace, wanted: &Wanted, host: &str) -> Result<Vec<PathBuf>> {
    let admin = |words: &[&str]| -> Result<String> {
        let mut command = process::command_within(namespace.first(), "gluster");
        command.args(["--mode=script", "volume"]).args(words);
        process::output(command, PATIENCE).with_context(|| format!("volume {}", words.join(" ")))
    };
    let names: Vec<String> = (0..BRICKS).map(|brick| format!("brick{brick}")).collect();
    let places: Vec<String> = names.iter().map(|name| format!("{host}:{HOME}/{name}")).collect();
    let count = BRICKS.to_string();
    let mut create = vec!["create", VOLUME, "replica", &count];
    create.extend(places.iter().map(String::as_str));
    // All on one host, and perhaps on the root file system.
    create.push("force");
    admin(&create)?;
    admin(&["set", VOLUME, "group", "virt"])?;
    admin(&["start", VOLUME])?;
    Ok(names.iter().map(|name| wanted.folder.join(name)).collect())
}

/// Waits for bricks, management and the healer, and returns them.
fn servers(namespace: &mut Namespace) -> Result<Vec<u32>> {
    let begun = Instant::now();
    loop {
        let processes = namespace.processes()?;
        let count = |name: &str| processes.iter().filter(|(_, other)| other == name).count();
        let counts = [count("glusterd"), count("glusterfsd"), count("glusterfs")];
        if counts == [1, BRICKS, 1] && processes.len() == BRICKS + 2 {
            return Ok(processes.into_iter().map(|(pid, _)| pid).collect());
        }
        namespace.check()?;
        process::check_signals()?;
        if begun.elapsed() > PATIENCE {
            bail!("waited in vain for {BRICKS} bricks and a healer; there are {processes:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The configuration of the management; bricks listen where it does.
fn management(host: &str) -> String {
    format!(
        "volume management
    type mgmt/glusterd
    option working-directory /var/lib/glusterd
    option transport-type socket
    option transport.socket.bind-address {host}
    option transport.socket.listen-port 24007
end-volume
"
    )
}

impl Running for Cluster {
    fn check(&mut self) -> Result<()> {
        self.namespace.check()?;
        let living = self.namespace.processes()?;
        if self.servers.iter().any(|server| !living.iter().any(|(pid, _)| pid == server)) {
            bail!("a brick of GlusterFS has ended; there are {living:?}");
        }
        for brick in &self.bricks {
            // Where a brick notes what another one has missed.
            let notes = brick.join(".glusterfs/indices/xattrop");
            let entries = fs::read_dir(&notes).with_context(|| notes.display().to_string())?;
            let missed = |name: &str| !name.starts_with("xattrop-");
            if entries.flatten().any(|entry| missed(&entry.file_name().to_string_lossy())) {
                bail!("a brick of GlusterFS has missed writes: {}", notes.display());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_listens_on_an_address_of_its_own() {
        assert!(management("127.1.2.3").contains("bind-address 127.1.2.3\n"));
    }
}
