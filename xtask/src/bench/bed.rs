//! What is measured side by side: raw storage, clusters, peers, all on one kind of disks.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::cluster::{Cluster, Shape};
use super::cpu::Clock;
use super::fio::{Job, Target};
use super::options::{Disks, Options};
use super::peers::{Peer, Running, Wanted};
use super::place::Place;
use super::results::{Run, SystemNote};
use super::rows::{Row, Times};

/// Copies of every volume of ours.
const REPLICAS: usize = 3;
/// The system that the others are compared with.
pub const RAW: &str = "raw";

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
    /// Of each volume.
    copies: usize,
    /// One per volume.
    targets: Vec<Target>,
    /// Processes that serve; none if the kernel does it.
    servers: Vec<u32>,
    /// Processes between fio and the servers.
    hops: Vec<u32>,
    /// CPU seconds of fio with a single request, where its report does not know of all its threads.
    start: Option<f64>,
}

/// All of them, running. They end with it.
pub struct Bed {
    pub systems: Vec<System>,
    pub file_system: String,
    clusters: Vec<Cluster>,
    peers: Vec<Box<dyn Running>>,
    clock: Clock,
    mib: u64,
    /// Last: it goes when nobody uses it.
    folder: TempDir,
}

impl Bed {
    /// Starts everything and writes every volume once, from its beginning to its end: neither
    /// file systems nor activity logs have firsts afterwards.
    pub fn set_up(disks: Disks, options: &Options, programs: &[Program]) -> Result<Bed> {
        let raw = usize::from(options.compare.is_none());
        let mib = options.volumes_used() as u64 * (options.mib + 1);
        let peers: u64 = options.peers.iter().map(|peer| peer.room_mib(mib)).sum();
        let needed = (raw + REPLICAS * programs.len()) as u64 * mib + peers;
        let Place { folder, file_system, direct } = Place::new(disks, needed)?;
        let mut bed = Bed {
            systems: Vec::new(),
            file_system,
            clusters: Vec::new(),
            peers: Vec::new(),
            clock: Clock::new()?,
            mib: options.mib,
            folder,
        };
        if options.compare.is_none() {
            bed.add_raw(options, direct)?;
        }
        for program in programs {
            bed.add_cluster(options, program)?;
        }
        for peer in &options.peers {
            bed.add_peer(*peer, options, direct)
                .with_context(|| format!("the peer {}", peer.name()))?;
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
        let folder = self.own_folder(RAW)?;
        let files = wanted(&folder, options, direct).files()?;
        let how = if direct { "O_DIRECT" } else { "the page cache" };
        self.systems.push(System {
            name: RAW.to_owned(),
            note: format!("the backing storage itself: fio's libaio on a file, {how}, one copy"),
            copies: 1,
            targets: files.into_iter().map(|path| Target::File { path, direct }).collect(),
            servers: Vec::new(),
            hops: Vec::new(),
            start: None,
        });
        Ok(())
    }

    fn add_peer(&mut self, peer: Peer, options: &Options, direct: bool) -> Result<()> {
        let folder = self.own_folder(peer.name())?;
        let serving = peer.serve(&wanted(&folder, options, direct))?;
        self.systems.push(System {
            name: peer.name().to_owned(),
            note: format!("version {}; {}", peer.version()?, peer.note()),
            copies: peer.copies(),
            targets: serving.targets,
            servers: serving.servers,
            hops: serving.hops,
            start: None,
        });
        self.peers.push(serving.running);
        Ok(())
    }

    fn add_cluster(&mut self, options: &Options, program: &Program) -> Result<()> {
        let shape = Shape {
            replicas: REPLICAS,
            diskless: options.clients.diskless,
            volumes: options.volumes_used(),
            mib: options.mib,
            sparse: false,
            served: options.volumes_used(),
            net: Vec::new(),
            disk: String::new(),
            quorum: false,
            engine: &[],
        };
        let directory = tempfile::Builder::new().prefix("nodes").tempdir_in(self.folder.path())?;
        let cluster = Cluster::start(&program.path, directory, shape)
            .with_context(|| format!("the cluster of {}", program.name))?;
        let mut add = |name: String, note: &str, targets: Vec<Target>| {
            let (note, servers) = (format!("commit {}; {note}", program.tree), cluster.pids());
            let (copies, hops, start) = (REPLICAS, Vec::new(), None);
            self.systems.push(System { name, note, copies, targets, servers, hops, start });
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
            let fill = Job {
                targets,
                pattern: "write",
                block: "1m",
                depth: 4,
                jobs: 1,
                mib,
                seconds,
                rate: None,
            };
            fill.run().with_context(|| format!("filling {}", self.systems[index].name))?;
            if targets[0].has_own_threads() {
                // A single request.
                let start = Job { targets: &targets[..1], pattern: "read", mib: 1, ..fill };
                let before = self.clock.children()?;
                start.run()?;
                self.systems[index].start = Some(self.clock.children()? - before);
            }
        }
        self.check()
    }

    fn filled_before(&self, index: usize) -> bool {
        index > 0 && self.systems[index - 1].servers == self.systems[index].servers
    }

    /// One run of a row on one system.
    pub fn run(&mut self, row: &Row, system: usize, seconds: u64) -> Result<Run> {
        let System { targets, servers, hops, name, start, .. } = &self.systems[system];
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
            rate: None,
        };
        let spent =
            || Ok::<_, anyhow::Error>([servers, hops].map(|pids| self.clock.processes(pids)));
        let [before, before_hops] = spent()?;
        let before_client = self.clock.children()?;
        let mut report = job.run().with_context(|| format!("{} on {name}", row.name()))?;
        let [after, after_hops] = spent()?;
        if let Some(start) = start {
            report.cpu = (self.clock.children()? - before_client - start).max(0.0);
        }
        let server = (!servers.is_empty()).then_some(after? - before?);
        let run = Run::new(&report, server, after_hops? - before_hops?);
        let run = run.with_context(|| format!("{} on {name}: nothing was done", row.name()))?;
        self.check()?;
        Ok(run)
    }

    /// Fails if something has ended or lost a part.
    fn check(&mut self) -> Result<()> {
        for peer in &mut self.peers {
            peer.check()?;
        }
        for cluster in &mut self.clusters {
            cluster.check()?;
        }
        Ok(())
    }

    /// What each system is.
    pub fn notes(&self) -> Vec<SystemNote> {
        let note = |system: &System| {
            let System { name, note, copies, .. } = system;
            SystemNote { name: name.clone(), copies: *copies, note: note.clone() }
        };
        self.systems.iter().map(note).collect()
    }
}

/// What a system in `folder` is to serve.
fn wanted<'a>(folder: &'a Path, options: &Options, direct: bool) -> Wanted<'a> {
    Wanted { folder, volumes: options.volumes_used(), mib: options.mib, direct }
}
