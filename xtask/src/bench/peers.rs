//! Other people's block servers, run with the same jobs on the same kind of disks.
//!
//! All of them hold one copy. They are what a single copy costs without replication, in programs
//! that many know; none of them does what Ashlar does.

mod tgt;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use super::fio::Target;
use super::process::{self, Daemon};

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// A peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    QemuNbd,
    Nbdkit,
    Tgt,
}

const ALL: &[Peer] = &[Peer::QemuNbd, Peer::Nbdkit, Peer::Tgt];

/// A running one.
pub struct Serving {
    /// One per disk.
    pub targets: Vec<Target>,
    /// What serves; their CPU time is the server's.
    pub servers: Vec<Daemon>,
    /// What stands between fio and the server; their CPU time is the client's.
    pub hops: Vec<Daemon>,
}

impl Peer {
    /// Those that a user names.
    pub fn choose(names: &str) -> Result<Vec<Peer>> {
        let mut chosen = Vec::new();
        for name in names.split(',') {
            let Some(peer) = ALL.iter().find(|peer| peer.name() == name) else {
                let known: Vec<&str> = ALL.iter().map(|peer| peer.name()).collect();
                bail!("{name:?} is not a peer; there are {}", known.join(", "));
            };
            if !chosen.contains(peer) {
                chosen.push(*peer);
            }
        }
        Ok(chosen)
    }

    /// As the user and the history name it.
    pub fn name(self) -> &'static str {
        match self {
            Peer::QemuNbd => "qemu-nbd",
            Peer::Nbdkit => "nbdkit",
            Peer::Tgt => "tgt",
        }
    }

    /// What a reader of its figures has to know.
    pub fn note(self) -> &'static str {
        match self {
            Peer::QemuNbd => "one copy; around the page cache where the file system lets it",
            Peer::Nbdkit => {
                "one copy; its file plugin goes through the page cache, so writes to files are \
                 answered before they are on disk"
            }
            Peer::Tgt => {
                "one copy; Debian's fio speaks no iSCSI, so a qemu-nbd stands between them: one \
                 more hop in every latency, and its CPU time counts as the client's; through the \
                 page cache"
            }
        }
    }

    /// Programs, with the Debian package of each.
    fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Peer::QemuNbd => &[("qemu-nbd", "qemu-utils")],
            Peer::Nbdkit => &[("nbdkit", "nbdkit")],
            Peer::Tgt => &[("tgtd", "tgt"), ("tgtadm", "tgt"), ("qemu-nbd", "qemu-utils")],
        }
    }

    /// Fails, saying what to install, unless all it needs is there.
    pub fn require(self) -> Result<()> {
        let absent = self.needs().iter().filter(|(program, _)| !process::is_installed(program));
        let mut packages: Vec<&str> = absent.map(|(_, package)| *package).collect();
        if self == Peer::Tgt && !qemu_speaks_iscsi() {
            packages.push("qemu-block-extra");
        }
        packages.dedup();
        if !packages.is_empty() {
            bail!(
                "the peer {} is not installed: apt-get install --no-install-recommends {}",
                self.name(),
                packages.join(" ")
            );
        }
        Ok(())
    }

    /// Serves disks; what the servers need and say goes into `folder`.
    pub fn serve(self, folder: &Path, disks: &[PathBuf], direct: bool) -> Result<Serving> {
        match self {
            Peer::QemuNbd => qemu_nbd(folder, disks, direct),
            Peer::Nbdkit => nbdkit(folder, disks),
            Peer::Tgt => tgt::serve(folder, disks),
        }
    }
}

/// One process per disk, with as many connections as a row has jobs and fio's own look at the size.
fn qemu_nbd(folder: &Path, disks: &[PathBuf], direct: bool) -> Result<Serving> {
    let mut serving = Serving { targets: Vec::new(), servers: Vec::new(), hops: Vec::new() };
    for (index, disk) in disks.iter().enumerate() {
        let mut command = process::command("qemu-nbd");
        let (cache, aio) = if direct { ("none", "native") } else { ("writeback", "threads") };
        command.args(["--format=raw", &format!("--cache={cache}"), &format!("--aio={aio}")]);
        let (daemon, target) = qemu(command, folder, &format!("qemu{index}"), disk.as_os_str())?;
        serving.servers.push(daemon);
        serving.targets.push(target);
    }
    Ok(serving)
}

/// Starts a qemu-nbd that serves `image` on a socket of its own.
fn qemu(
    mut command: Command,
    folder: &Path,
    name: &str,
    image: &OsStr,
) -> Result<(Daemon, Target)> {
    let socket = folder.join(name);
    command.args(["--persistent", "--shared=16", "--export-name=r0"]);
    command.arg("--socket").arg(&socket).arg(image);
    let mut daemon = Daemon::start(command, folder.join(format!("{name}.log")))?;
    daemon.wait("its socket is there", PATIENCE, || socket.exists())?;
    Ok((daemon, Target::Nbd { socket, export: "r0".to_owned() }))
}

/// One process per disk.
fn nbdkit(folder: &Path, disks: &[PathBuf]) -> Result<Serving> {
    let mut serving = Serving { targets: Vec::new(), servers: Vec::new(), hops: Vec::new() };
    for (index, disk) in disks.iter().enumerate() {
        let socket = folder.join(format!("nbdkit{index}"));
        let mut command = process::command("nbdkit");
        command.args(["--foreground", "--unix"]).arg(&socket).arg("file").arg(disk);
        let mut daemon = Daemon::start(command, folder.join(format!("nbdkit{index}.log")))?;
        daemon.wait("its socket is there", PATIENCE, || socket.exists())?;
        serving.servers.push(daemon);
        serving.targets.push(Target::Nbd { socket, export: "r0".to_owned() });
    }
    Ok(serving)
}

/// Its drivers are modules in a folder that has the machine's name.
fn qemu_speaks_iscsi() -> bool {
    let Ok(folders) = std::fs::read_dir("/usr/lib") else { return false };
    let folders = folders.flatten().map(|entry| entry.path());
    let mut modules = folders.map(|folder| folder.join("qemu/block-iscsi.so"));
    modules.any(|module| module.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_chosen_by_name_and_once() {
        let chosen = Peer::choose("tgt,qemu-nbd,tgt").unwrap();
        assert_eq!(chosen, [Peer::Tgt, Peer::QemuNbd]);
        let error = Peer::choose("ceph").unwrap_err().to_string();
        assert_eq!(error, "\"ceph\" is not a peer; there are qemu-nbd, nbdkit, tgt");
    }
}
