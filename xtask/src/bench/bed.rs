//! What is measured side by side: raw storage, clusters, peers, all on one kind of disks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::cluster::{Cluster, Shape, allocate};
use super::cpu::Clock;
use super::fio::{Job, Target};
use super::options::{Disks, Options};
use super::process::{self, Daemon};
use super::results::{Run, SystemNote};
use super::rows::{Row, Times};
use crate::workspace::Metadata;

/// Copies of every volume of ours.
const REPLICAS: usize = 3;
/// Room that stays free, MiB.
const SPARE: u64 = 512;
/// The system that the others are compared with.
pub const RAW: &str = "raw";

/// What our folders begin with; the process id follows.
const PREFIX: &str = "ashlar-bench-";

/// A program to measure.
#[derive(Clone, Debug)]
pub struct Program {
    /// What the systems that run it are called.
    pub name: String,
    /// Says which tree it was built from.
    pub tree: String,
    pub path: PathBuf,
}

/// A thing that reads and writes blocks.
pub struct System {
    pub name: String,
    pub note: String,
    /// One per volume.
    targets: Vec<Target>,
    /// Processes that serve; none if the kernel does it.
    servers: Vec<u32>,
    /// Processes between fio and the servers.
    hops: Vec<u32>,
}

/// All of them, running. They end with it.
pub struct Bed {
    pub systems: Vec<System>,
    pub file_system: String,
    clusters: Vec<Cluster>,
    daemons: Vec<Daemon>,
    clock: Clock,
    mib: u64,
    /// Last: it goes when nobody uses it.
    folder: TempDir,
}

impl Bed {
    /// Starts everything and writes every volume once, from its beginning to its end: neither
    /// file systems nor activity logs have firsts afterwards.
    pub fn set_up(disks: Disks, options: &Options, programs: &[Program]) -> Result<Bed> {
        let parent = parent(disks)?;
        let room = Room::of(&parent)?;
        report_leftovers(&parent);
        require_room(disks, options, programs.len(), &parent, &room)?;
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(&parent)?;
        let mut bed = Bed {
            systems: Vec::new(),
            file_system: room.file_system,
            clusters: Vec::new(),
            daemons: Vec::new(),
            clock: Clock::new()?,
            mib: options.mib,
            folder,
        };
        let direct = direct_works(bed.folder.path())?;
        if options.compare.is_none() {
            bed.add_raw(options, direct)?;
        }
        for program in programs {
            bed.add_cluster(options, program)?;
        }
        for peer in &options.peers {
            let folder = bed.own_folder(peer.name())?;
            let files = files(&folder, options)?;
            let serving = peer.serve(&folder, &files, direct)?;
            bed.systems.push(System {
                name: peer.name().to_owned(),
                note: peer.note().to_owned(),
                targets: serving.targets,
                servers: serving.servers.iter().map(Daemon::pid).collect(),
                hops: serving.hops.iter().map(Daemon::pid).collect(),
            });
            bed.daemons.extend(serving.servers);
            bed.daemons.extend(serving.hops);
        }
        bed.fill()?;
        Ok(bed)
    }

    fn own_folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.path().join(name);
        fs::create_dir(&folder)?;
        Ok(folder)
    }

    fn add_raw(&mut self, options: &Options, direct: bool) -> Result<()> {
        let files = files(&self.own_folder(RAW)?, options)?;
        let how = if direct { "O_DIRECT" } else { "the page cache" };
        self.systems.push(System {
            name: RAW.to_owned(),
            note: format!("the backing storage itself: fio's libaio on a file, {how}, one copy"),
            targets: files.into_iter().map(|path| Target::File { path, direct }).collect(),
            servers: Vec::new(),
            hops: Vec::new(),
        });
        Ok(())
    }

    fn add_cluster(&mut self, options: &Options, program: &Program) -> Result<()> {
        let shape = Shape {
            replicas: REPLICAS,
            diskless: options.clients.diskless,
            volumes: options.volumes_used(),
            mib: options.mib,
            sparse: false,
            disk: String::new(),
            threads: None,
        };
        let directory = tempfile::Builder::new().prefix("nodes").tempdir_in(self.folder.path())?;
        let cluster = Cluster::start(&program.path, directory, shape)
            .with_context(|| format!("the cluster of {}", program.name))?;
        let mut add = |name: String, note: &str, targets: Vec<Target>| {
            let (note, servers) = (format!("commit {}; {note}", program.tree), cluster.pids());
            self.systems.push(System { name, note, targets, servers, hops: Vec::new() });
        };
        if options.clients.local {
            let note = "three copies, protocol C; the client is on a node that has one of them";
            add(program.name.clone(), note, cluster.local());
        }
        if let Some(targets) = cluster.diskless() {
            let note = "the same copies; the client is on a fourth node, without a disk";
            add(format!("{}-diskless", program.name), note, targets);
        }
        self.clusters.push(cluster);
        Ok(())
    }

    fn fill(&mut self) -> Result<()> {
        for index in 0..self.systems.len() {
            // The same volumes as those of the system before, seen from another node.
            if self.systems[index].name.ends_with("-diskless") && self.filled_before(index) {
                continue;
            }
            let targets = &self.systems[index].targets;
            let (mib, seconds) = (self.mib, None);
            let fill =
                Job { targets, pattern: "write", block: "1m", depth: 4, jobs: 1, mib, seconds };
            fill.run().with_context(|| format!("filling {}", self.systems[index].name))?;
        }
        self.check()
    }

    fn filled_before(&self, index: usize) -> bool {
        index > 0 && self.systems[index - 1].servers == self.systems[index].servers
    }

    /// One run of a row on one system.
    pub fn run(&mut self, row: &Row, system: usize, seconds: u64) -> Result<Run> {
        let System { targets, servers, hops, name, .. } = &self.systems[system];
        let targets = match row.times {
            Times::Volumes => &targets[..],
            Times::One | Times::Jobs => &targets[..1],
        };
        let job = Job {
            targets,
            pattern: row.pattern(),
            block: row.block(),
            depth: row.depth(),
            jobs: row.jobs(),
            mib: self.mib,
            seconds: Some(seconds),
        };
        let spent =
            || Ok::<_, anyhow::Error>([servers, hops].map(|pids| self.clock.processes(pids)));
        let [before, before_hops] = spent()?;
        let report = job.run().with_context(|| format!("{} on {name}", row.name()))?;
        let [after, after_hops] = spent()?;
        let server = (!servers.is_empty()).then_some(after? - before?);
        let run = Run::new(&report, server, after_hops? - before_hops?);
        let run = run.with_context(|| format!("{} on {name}: nothing was done", row.name()))?;
        self.check()?;
        Ok(run)
    }

    /// Fails if something has ended or lost a part.
    fn check(&mut self) -> Result<()> {
        for daemon in &mut self.daemons {
            daemon.check()?;
        }
        for cluster in &mut self.clusters {
            cluster.check()?;
        }
        Ok(())
    }

    /// What each system is.
    pub fn notes(&self) -> Vec<SystemNote> {
        let note =
            |system: &System| SystemNote { name: system.name.clone(), note: system.note.clone() };
        self.systems.iter().map(note).collect()
    }
}

/// Files as large as the volumes.
fn files(folder: &Path, options: &Options) -> Result<Vec<PathBuf>> {
    let volumes = 0..options.volumes_used();
    let files: Vec<PathBuf> = volumes.map(|n| folder.join(format!("disk{n}"))).collect();
    for file in &files {
        allocate(file, options.mib)?;
    }
    Ok(files)
}

/// Names folders of runs that were killed. They are not removed: a process of another container
/// is not seen, and may use them.
fn report_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let path = entry.path();
            eprintln!("left behind by a run that was killed, please remove: {}", path.display());
        }
    }
}

/// Where disks of a kind are.
fn parent(disks: Disks) -> Result<PathBuf> {
    match disks {
        Disks::Ram => {
            let shm = PathBuf::from("/dev/shm");
            match Room::of(&shm)?.is_memory() {
                true => Ok(shm),
                false => bail!("/dev/shm is not in memory; leave it out with --disks file"),
            }
        }
        Disks::File => {
            let temporary = std::env::temp_dir();
            if !Room::of(&temporary)?.is_memory() {
                return Ok(temporary);
            }
            // As many systems have it today.
            let target = Metadata::of(&crate::workspace::root().join("Cargo.toml"))?;
            let folder = target.target_directory.join("bench");
            fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            match Room::of(&folder)?.is_memory() {
                true => bail!("set TMPDIR to a folder that is on a disk, or use --disks ram"),
                false => Ok(folder),
            }
        }
    }
}

/// A file system.
struct Room {
    file_system: String,
    free_mib: u64,
}

impl Room {
    fn of(folder: &Path) -> Result<Room> {
        let output = Command::new("df")
            .args(["--block-size=1M", "--output=fstype,avail"])
            .arg(folder)
            .output()
            .context("df could not be started")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let room = text.lines().nth(1).and_then(|line| {
            let (file_system, free) = line.trim().split_once(char::is_whitespace)?;
            let free_mib = free.trim().parse().ok()?;
            Some(Room { file_system: file_system.to_owned(), free_mib })
        });
        room.with_context(|| format!("{}: is it there?", folder.display()))
    }

    fn is_memory(&self) -> bool {
        ["tmpfs", "ramfs"].contains(&self.file_system.as_str())
    }
}

/// Running out of room in the middle would be seen as a broken disk.
fn require_room(
    disks: Disks,
    options: &Options,
    programs: usize,
    parent: &Path,
    room: &Room,
) -> Result<()> {
    let raw = usize::from(options.compare.is_none());
    let copies = raw + REPLICAS * programs + options.peers.len();
    let needed = (copies * options.volumes_used()) as u64 * (options.mib + 1) + SPARE;
    let mut free = room.free_mib;
    if disks == Disks::Ram {
        let text = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
        let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        free = free.min(kib.context("/proc/meminfo has no MemAvailable")? >> 10);
    }
    if free < needed {
        bail!(
            "{} has {free} MiB free, {needed} are needed; smaller volumes (--mib) or fewer \
             (--volumes) need less",
            parent.display()
        );
    }
    Ok(())
}

/// False on a tmpfs before Linux 6.6.
fn direct_works(folder: &Path) -> Result<bool> {
    let file = folder.join("direct");
    let mut dd = process::command("dd");
    dd.args(["if=/dev/zero", "bs=4096", "count=1", "oflag=direct", "status=none"]);
    dd.arg(format!("of={}", file.display()));
    let works = process::output(dd, Duration::from_secs(20)).is_ok();
    process::check_signals()?;
    fs::remove_file(file)?;
    Ok(works)
}
