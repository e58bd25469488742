//! What a target is measured on: a cluster, and raw storage of the same kind beside it.

use std::fs;

use anyhow::{Context, Result, bail};

use super::options::Options;
use crate::bench::cluster::{Cluster, Shape, allocate};
use crate::bench::cpu::Clock;
use crate::bench::fio::{Job, Target};
use crate::bench::limit::{Group, Limit, Limiter};
use crate::bench::options::Disks;
use crate::bench::place::Place;
use crate::bench::results::Run;

/// Copies of every volume.
pub const REPLICAS: usize = 3;

/// What is to be there.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub disks: Disks,
    /// Raw files, each as large as a volume.
    pub raw: usize,
    /// A fourth node, without a disk.
    pub diskless: bool,
    /// Volumes that are used; they are written from beginning to end.
    pub volumes: usize,
    /// More volumes, which nobody uses.
    pub idle: usize,
    /// The size of each, MiB.
    pub mib: u64,
    /// Lines for the section `disk`.
    pub disk: &'static str,
    /// More arguments of the engines.
    pub engine: &'static [&'static str],
}

/// Who reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// fio, on so many of the raw files.
    Raw(usize),
    /// fio, on so many volumes, at a node with replicas.
    Local(usize),
    /// fio, on a volume, at the node without a disk.
    Diskless,
}

/// What it does.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// As fio's `rw`.
    pub pattern: &'static str,
    /// As fio writes sizes.
    pub block: &'static str,
    /// Requests in flight on each volume.
    pub depth: u32,
    /// Requests per second on each volume, at most.
    pub rate: Option<u32>,
}

/// All of it, running.
pub struct Stand {
    cluster: Cluster,
    raw: Vec<Target>,
    groups: Vec<Group>,
    plan: Plan,
    seconds: u64,
    clock: Clock,
    /// Last: it goes when nobody uses it.
    place: Place,
}

impl Plan {
    /// One volume of which there are three replicas, and a raw file.
    pub fn new(disks: Disks, options: &Options) -> Plan {
        let mib = options.mib;
        Plan { disks, raw: 1, diskless: false, volumes: 1, idle: 0, mib, disk: "", engine: &[] }
    }
}

impl Load {
    /// Random requests of 4 KiB.
    pub const fn random(pattern: &'static str, depth: u32) -> Load {
        Load { pattern, block: "4k", depth, rate: None }
    }

    /// Requests of 128 KiB, one behind the other, 16 in flight.
    pub const fn sequential(pattern: &'static str) -> Load {
        Load { pattern, block: "128k", depth: 16, rate: None }
    }
}

impl Stand {
    /// Starts everything, and writes every block that will be used: neither file systems nor
    /// activity logs have firsts afterwards.
    ///
    /// # Errors
    /// If there is no room, or the engines do not come up.
    pub fn start(program: &std::path::Path, options: &Options, plan: Plan) -> Result<Stand> {
        let files = REPLICAS * plan.volumes + plan.raw;
        let place = Place::new(plan.disks, files as u64 * (plan.mib + 1))?;
        let mut raw = Vec::new();
        for number in 0..plan.raw {
            let path = place.folder.path().join(format!("raw{number}"));
            allocate(&path, plan.mib)?;
            raw.push(Target::File { path, direct: place.direct });
        }
        let shape = Shape {
            replicas: REPLICAS,
            diskless: plan.diskless,
            volumes: plan.volumes + plan.idle,
            mib: plan.mib,
            // Else those that nobody uses would take room.
            sparse: plan.idle > 0,
            served: plan.volumes,
            net: Vec::new(),
            disk: plan.disk.to_owned(),
            quorum: false,
            engine: plan.engine,
        };
        let directory = tempfile::Builder::new().prefix("nodes").tempdir_in(place.folder.path())?;
        let cluster = Cluster::start(program, directory, shape)?;
        let (groups, seconds, clock) = (Vec::new(), options.seconds, Clock::new()?);
        let mut stand = Stand { cluster, raw, groups, plan, seconds, clock, place };
        for client in [Client::Raw(plan.raw), Client::Local(plan.volumes)] {
            stand.fill(client)?;
        }
        stand.cluster.check()?;
        Ok(stand)
    }

    fn fill(&self, client: Client) -> Result<()> {
        let (targets, mib) = (&self.targets(client)?[..], self.plan.mib);
        if targets.is_empty() {
            return Ok(());
        }
        let (pattern, block, depth, jobs) = ("write", "1m", 4, 1);
        Job { targets, pattern, block, depth, jobs, mib, seconds: None, rate: None }.run()?;
        Ok(())
    }

    /// Gives every replica and the raw storage a disk of its own, which is only so fast. Call
    /// [`Stand::limit`] next.
    ///
    /// # Errors
    /// If this machine can not limit the device, with the reason.
    pub fn part_disks(&mut self) -> Result<()> {
        let limiter = Limiter::of(self.place.folder.path())?;
        self.groups.push(limiter.group("raw")?);
        for (number, pid) in self.cluster.pids().into_iter().enumerate() {
            let group = limiter.group(&format!("node{number}"))?;
            group.add(pid)?;
            self.groups.push(group);
        }
        Ok(())
    }

    /// How fast each of these disks is from now on.
    pub fn limit(&self, limit: Limit) -> Result<()> {
        self.groups.iter().try_for_each(|group| group.set(limit))
    }

    /// One run.
    ///
    /// # Errors
    /// If anything of the cluster is lost, or nothing was done.
    pub fn run(&mut self, client: Client, load: Load) -> Result<Run> {
        let Load { pattern, block, depth, rate } = load;
        let targets = &self.targets(client)?[..];
        let (mib, seconds) = (self.plan.mib, Some(self.seconds));
        let job = Job { targets, pattern, block, depth, jobs: 1, mib, seconds, rate };
        let spent = || self.clock.processes(&self.cluster.pids());
        let before = spent()?;
        let report = match (client, self.groups.first()) {
            (_, None) => job.run(),
            (Client::Raw(_), group) => job.run_limited(group),
            (_, Some(_)) => job.run_limited(None),
        };
        let what = || format!("{pattern} by {client:?}");
        let report = report.with_context(what)?;
        // On limited disks fio counts a part of the time only.
        let servers = self.groups.is_empty().then_some(spent()? - before);
        self.cluster.check()?;
        Run::new(&report, servers, 0.0).with_context(|| format!("{}: nothing was done", what()))
    }

    fn targets(&self, client: Client) -> Result<Vec<Target>> {
        let (all, used) = match client {
            Client::Raw(used) => (self.raw.clone(), used),
            Client::Local(used) => (self.cluster.local(), used),
            Client::Diskless => match self.cluster.diskless() {
                Some(targets) => (targets, 1),
                None => bail!("there is no node without a disk"),
            },
        };
        Ok(all.into_iter().take(used).collect())
    }

    /// Two of the raw files.
    pub fn raw_pair(&self) -> Result<[Target; 2]> {
        let pair = self.raw.get(..2).and_then(|pair| <[Target; 2]>::try_from(pair.to_vec()).ok());
        pair.context("there are less than two raw files")
    }

    /// The engines.
    pub fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Where the disks are.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// A folder of the same kind, for something else.
    pub fn folder(&self, name: &str) -> Result<std::path::PathBuf> {
        let folder = self.place.folder.path().join(name);
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        Ok(folder)
    }
}
