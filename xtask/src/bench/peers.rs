//! Other people's block storage, run with the same jobs on the same kind of disks.
//!
//! Ceph and GlusterFS hold three copies as we do. The others hold one: they are what a single copy
//! costs without replication, in programs that many know.

mod ceph;
mod gluster;
mod tgt;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::cluster::allocate;
use super::fio::{self, Target};
use super::namespace::Namespace;
use crate::process::{self, Daemon};

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// A peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    QemuNbd,
    Nbdkit,
    Tgt,
    Ceph,
    Gluster,
}

const ALL: &[Peer] = &[Peer::QemuNbd, Peer::Nbdkit, Peer::Tgt, Peer::Ceph, Peer::Gluster];

/// What a peer is to serve.
pub struct Wanted<'a> {
    /// Where it puts all it writes.
    pub folder: &'a Path,
    pub volumes: usize,
    /// Size of each volume.
    pub mib: u64,
    /// The file system of the folder has a way around the page cache.
    pub direct: bool,
}

impl Wanted<'_> {
    /// Files as large as the volumes.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let files = (0..self.volumes).map(|n| self.folder.join(format!("disk{n}")));
        let files: Vec<PathBuf> = files.collect();
        files.iter().try_for_each(|file| allocate(file, self.mib))?;
        Ok(files)
    }

    /// For a peer that does not work otherwise.
    fn require_direct(&self) -> Result<()> {
        match self.direct {
            true => Ok(()),
            false => bail!(
                "{} has no direct I/O, which tmpfs has since Linux 6.6: use --disks file",
                self.folder.display()
            ),
        }
    }
}

/// A running one.
pub struct Serving {
    /// One per volume.
    pub targets: Vec<Target>,
    /// Processes that serve; their CPU time is the servers'.
    pub servers: Vec<u32>,
    /// Processes between fio and the servers; their CPU time is the client's.
    pub hops: Vec<u32>,
    /// Ends all of them when it is dropped.
    pub running: Box<dyn Running>,
}

/// Something that serves until it is dropped.
pub trait Running {
    /// Fails if something has ended or lost a copy: with one missing, less work is measured.
    fn check(&mut self) -> Result<()>;
}

impl Running for Vec<Daemon> {
    fn check(&mut self) -> Result<()> {
        self.iter_mut().try_for_each(Daemon::check)
    }
}

impl Serving {
    /// Of daemons without anything between them.
    fn by(targets: Vec<Target>, mut servers: Vec<Daemon>, hops: Vec<Daemon>) -> Serving {
        let pids = |daemons: &[Daemon]| daemons.iter().map(Daemon::pid).collect();
        let (server_pids, hop_pids) = (pids(&servers), pids(&hops));
        servers.extend(hops);
        Serving { targets, servers: server_pids, hops: hop_pids, running: Box::new(servers) }
    }
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
            Peer::Ceph => "ceph",
            Peer::Gluster => "gluster",
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
            Peer::Ceph => ceph::NOTE,
            Peer::Gluster => gluster::NOTE,
        }
    }

    /// Copies of each volume.
    pub fn copies(self) -> usize {
        match self {
            Peer::QemuNbd | Peer::Nbdkit | Peer::Tgt => 1,
            Peer::Ceph | Peer::Gluster => 3,
        }
    }

    /// What it needs where its folder is, for volumes of so many MiB together.
    pub fn room_mib(self, mib: u64) -> u64 {
        match self {
            Peer::QemuNbd | Peer::Nbdkit | Peer::Tgt => mib,
            Peer::Ceph => ceph::room_mib(mib),
            Peer::Gluster => gluster::room_mib(mib),
        }
    }

    /// As its program says it.
    pub fn version(self) -> Result<String> {
        let program = match self {
            Peer::QemuNbd => "qemu-nbd",
            Peer::Nbdkit => "nbdkit",
            Peer::Tgt => "tgtd",
            Peer::Ceph => "ceph-osd",
            Peer::Gluster => "glusterfsd",
        };
        let mut command = process::command(program);
        command.arg("--version");
        let text = process::output(command, PATIENCE)?;
        let number = number(&text);
        Ok(number.with_context(|| format!("{program} says no version but {text:?}"))?.to_owned())
    }

    /// Programs, with the Debian package of each.
    fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Peer::QemuNbd => &[("qemu-nbd", "qemu-utils")],
            Peer::Nbdkit => &[("nbdkit", "nbdkit")],
            Peer::Tgt => &[("tgtd", "tgt"), ("tgtadm", "tgt"), ("qemu-nbd", "qemu-utils")],
            Peer::Ceph => ceph::NEEDS,
            Peer::Gluster => gluster::NEEDS,
        }
    }

    /// Fails, saying what to install, unless all it needs is there.
    pub fn require(self) -> Result<()> {
        let absent = self.needs().iter().filter(|(program, _)| !process::is_installed(program));
        let mut packages: Vec<&str> = absent.map(|(_, package)| *package).collect();
        if self == Peer::Tgt && !qemu_speaks_iscsi() {
            packages.push("qemu-block-extra");
        }
        packages.sort_unstable();
        packages.dedup();
        if !packages.is_empty() {
            bail!(
                "the peer {} is not installed: apt-get install --no-install-recommends {}",
                self.name(),
                packages.join(" ")
            );
        }
        match self {
            Peer::QemuNbd | Peer::Nbdkit | Peer::Tgt => Ok(()),
            Peer::Ceph => fio::require_engine("rbd"),
            Peer::Gluster => {
                fio::require_engine("gfapi_async")?;
                match Namespace::is_possible() {
                    true => Ok(()),
                    false => bail!(
                        "the peer gluster needs root, for trusted attributes of its files and to \
                         see folders of ours in the place of /var: run this with sudo"
                    ),
                }
            }
        }
    }

    /// Serves volumes; what the servers need and say goes into a folder.
    pub fn serve(self, wanted: &Wanted) -> Result<Serving> {
        match self {
            Peer::QemuNbd => qemu_nbd(wanted),
            Peer::Nbdkit => nbdkit(wanted),
            Peer::Tgt => tgt::serve(wanted.folder, &wanted.files()?),
            Peer::Ceph => ceph::serve(wanted),
            Peer::Gluster => gluster::serve(wanted),
        }
    }
}

/// One process per disk, with as many connections as a row has jobs and fio's own look at the size.
fn qemu_nbd(wanted: &Wanted) -> Result<Serving> {
    let (mut servers, mut targets) = (Vec::new(), Vec::new());
    for (index, disk) in wanted.files()?.iter().enumerate() {
        let mut command = process::command("qemu-nbd");
        let (cache, aio) =
            if wanted.direct { ("none", "native") } else { ("writeback", "threads") };
        command.args(["--format=raw", &format!("--cache={cache}"), &format!("--aio={aio}")]);
        let name = format!("qemu{index}");
        let (daemon, target) = qemu(command, wanted.folder, &name, disk.as_os_str())?;
        servers.push(daemon);
        targets.push(target);
    }
    Ok(Serving::by(targets, servers, Vec::new()))
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
fn nbdkit(wanted: &Wanted) -> Result<Serving> {
    let (mut servers, mut targets) = (Vec::new(), Vec::new());
    for (index, disk) in wanted.files()?.iter().enumerate() {
        let socket = wanted.folder.join(format!("nbdkit{index}"));
        let mut command = process::command("nbdkit");
        command.args(["--foreground", "--unix"]).arg(&socket).arg("file").arg(disk);
        let mut daemon = Daemon::start(command, wanted.folder.join(format!("nbdkit{index}.log")))?;
        daemon.wait("its socket is there", PATIENCE, || socket.exists())?;
        servers.push(daemon);
        targets.push(Target::Nbd { socket, export: "r0".to_owned() });
    }
    Ok(Serving::by(targets, servers, Vec::new()))
}

/// The first word that begins with a digit.
fn number(text: &str) -> Option<&str> {
    text.split_whitespace().find(|word| word.starts_with(|first: char| first.is_ascii_digit()))
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
        let error = Peer::choose("drbd").unwrap_err().to_string();
        let known = "qemu-nbd, nbdkit, tgt, ceph, gluster";
        assert_eq!(error, format!("\"drbd\" is not a peer; there are {known}"));
    }

    #[test]
    fn versions_are_found_in_what_programs_say() {
        assert_eq!(number("ceph version 16.2.15 (618f) pacific"), Some("16.2.15"));
        assert_eq!(number("1.0.85\n"), Some("1.0.85"));
        assert_eq!(number("none"), None);
    }

    #[test]
    fn a_peer_that_needs_direct_io_says_where_it_has_it() {
        let mut wanted = Wanted { folder: Path::new("/x"), volumes: 1, mib: 1, direct: true };
        wanted.require_direct().unwrap();
        wanted.direct = false;
        let error = wanted.require_direct().unwrap_err().to_string();
        assert!(error.starts_with("/x has no direct I/O") && error.contains("--disks file"));
    }
}
