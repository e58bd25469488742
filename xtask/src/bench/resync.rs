//! How fast a replica is resynced, and what that costs the application.
//!
//! Three engines; the second one gives its data up and fetches them again, while nobody does
//! anything, or while fio writes on the first.
//!
//! - `options`: the arguments; `load`: fio beside a resync, and what the disk does by itself;
//!   `latencies`: what the application saw, request by request.

mod latencies;
mod load;
mod options;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::cluster::{Cluster, Shape, allocate};
use super::fio::{self, Job, Target};
use super::options::Disks;
use super::place::Place;
use super::results::{Machine, Tree, now};
use super::statistics::median;
use super::{build, targets::floors};
use crate::process;
use load::Load;
use options::Options;

const REPLICAS: usize = 3;
/// The node that is resynced.
const TARGET: usize = 1;
/// Requests in flight of the application, and of one that takes all there is.
const DEPTH: u32 = 32;
const SATURATING: u32 = 64;
/// What the application wants of what the volume can do, percent.
const SHARE: f64 = 30.0;
/// The part of the volume that the application writes to, from its beginning.
const HOT_MIB: u64 = 64;

/// All of it, as `--json` prints it.
#[derive(Serialize)]
struct Results {
    time: String,
    tree: Tree,
    machine: Machine,
    options: Options,
    sets: Vec<Set>,
}

/// One kind of disks.
#[derive(Serialize)]
struct Set {
    disks: &'static str,
    /// Requests per second of the application.
    pace: u32,
    rounds: Vec<Round>,
}

/// One round; what nobody disturbs in MiB/s.
#[derive(Serialize)]
struct Round {
    stream: f64,
    copy: f64,
    resync: f64,
    paced: Pair,
    saturating: Pair,
}

/// An application without a resync, and one that begins in the middle of one.
#[derive(Serialize)]
struct Pair {
    without: Seen,
    with: Seen,
    /// What the resync did meanwhile.
    resync_kib_per_s: f64,
}

/// What an application sees from 100 ms after its first request on.
#[derive(Clone, Copy, Serialize)]
struct Seen {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    /// From its first request until its latency is as usual, and stays so; `None` if it never is.
    settled_ms: Option<u64>,
}

/// The command; `arguments` with its name.
pub fn run(arguments: &[String]) -> Result<()> {
    let options = Options::parse(arguments)?;
    fio::require()?;
    process::watch_signals()?;
    let (time, tree, machine) = (now()?, Tree::here()?, Machine::here()?);
    let program = build(false)?;
    let sets: Result<Vec<Set>> =
        options.disks.iter().map(|disks| measure(&program, *disks, &options)).collect();
    let results = Results { time, tree, machine, sets: sets?, options };
    match results.options.json {
        true => println!("{}", serde_json::to_string_pretty(&results)?),
        false => results.print(),
    }
    Ok(())
}

fn measure(program: &Path, disks: Disks, options: &Options) -> Result<Set> {
    let mib = options.mib;
    let place = Place::new(disks, (REPLICAS as u64 + 2) * (mib + 1))?;
    let folder = place.folder.path();
    let raw =
        ["from", "to"].map(|name| Target::File { path: folder.join(name), direct: place.direct });
    for target in &raw {
        if let Target::File { path, .. } = target {
            allocate(path, mib)?;
        }
        fill(target, mib)?;
    }
    let shape = Shape {
        replicas: REPLICAS,
        diskless: false,
        volumes: 1,
        mib,
        sparse: false,
        served: 1,
        net: Vec::new(),
        disk: options.disk.clone(),
        quorum: false,
        engine: &["--threads=1"],
    };
    let directory = tempfile::Builder::new().prefix("nodes").tempdir_in(folder)?;
    let mut cluster = Cluster::start(program, directory, shape)?;
    cluster.promote()?;
    let volume = cluster.local().remove(0);
    // It has no firsts afterwards, and its extents stay hot.
    fill(&volume, mib)?;
    let job = Job {
        targets: std::slice::from_ref(&volume),
        pattern: "randwrite",
        block: "4k",
        depth: DEPTH,
        jobs: 1,
        mib: HOT_MIB,
        seconds: Some(2),
        rate: None,
    };
    job.run()?;
    let pace = (job.run()?.write.rate * SHARE / 100.0) as u32;
    let time = Duration::from_secs(options.seconds);
    let paced = Load { volume: &volume, mib: HOT_MIB, depth: DEPTH, pace: Some(pace), time };
    let saturating = Load { depth: SATURATING, pace: None, ..paced };
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        eprintln!("disks {}, round {} of {}", disks.name(), round + 1, options.rounds);
        let stream = floors::stream(folder, time / 2)?;
        let copy = floors::copy(&raw, mib)?;
        let resync = mib as f64 / cluster.resync(TARGET)?.as_secs_f64();
        // With and without are first by turns.
        let resync_first = round % 2 == 1;
        let paced = paced.pair(&mut cluster, resync_first)?;
        let saturating = saturating.pair(&mut cluster, resync_first)?;
        rounds.push(Round { stream, copy, resync, paced, saturating });
    }
    Ok(Set { disks: disks.name(), pace, rounds })
}

/// Writes it from beginning to end.
fn fill(target: &Target, mib: u64) -> Result<()> {
    let (targets, pattern, block) = (std::slice::from_ref(target), "write", "1m");
    Job { targets, pattern, block, depth: 4, jobs: 1, mib, seconds: None, rate: None }.run()?;
    Ok(())
}

impl Results {
    fn print(&self) {
        let Results { time, tree, machine, options, sets } = self;
        println!("{time}, commit {}", tree.short());
        println!("{} x {}, Linux {}", machine.cores, machine.cpu, machine.kernel);
        let given = if options.disk.is_empty() { "all default" } else { &options.disk };
        println!(
            "three replicas of {} MiB, one is resynced; disk options {given}; {} rounds of {} s, \
             medians",
            options.mib, options.rounds, options.seconds
        );
        sets.iter().for_each(Set::print);
    }
}

impl Set {
    fn print(&self) {
        println!("\ndisks {}; nothing else goes on, MiB/s", self.disks);
        for (name, of) in [
            ("stream over loopback", (|r| r.stream) as fn(&Round) -> f64),
            ("one file read, another one written", |r| r.copy),
            ("resync", |r| r.resync),
        ] {
            println!("    {name:<36}{:>10}", self.median(of));
        }
        let paced = format!("{} random writes of 4 KiB per second", self.pace);
        self.print_pairs(&paced, |round| &round.paced);
        self.print_pairs("as many as there can be", |round| &round.saturating);
    }

    fn print_pairs(&self, title: &str, pair: fn(&Round) -> &Pair) {
        println!(
            "  {title:<38}{:>10}{:>10}{:>10}{:>16}{:>14}",
            "IOPS", "p50 us", "p99 us", "settled ms", "resync KiB/s"
        );
        let row = |name: &str, seen: fn(&Pair) -> &Seen, kib: String| {
            println!(
                "    {name:<36}{:>10}{:>10}{:>10}{:>16}{kib:>14}",
                self.median(|round| seen(pair(round)).iops),
                self.median(|round| seen(pair(round)).p50_us),
                self.median(|round| seen(pair(round)).p99_us),
                self.settled(|round| seen(pair(round)).settled_ms),
            );
        };
        row("without a resync", |pair| &pair.without, String::new());
        let kib = self.median(|round| pair(round).resync_kib_per_s);
        row("during a resync", |pair| &pair.with, kib);
        let ratio = |round: &Round| pair(round).with.p99_us / pair(round).without.p99_us;
        let grows = self.median(|round| (ratio(round) - 1.0) * 100.0);
        println!("    {:<56}{grows:>10} %", "p99 grows by");
    }

    fn median(&self, figure: impl Fn(&Round) -> f64) -> String {
        let values: Vec<f64> = self.rounds.iter().map(figure).collect();
        median(&values).map_or("-".to_owned(), |value| format!("{value:.0}"))
    }

    /// Median and greatest.
    fn settled(&self, figure: impl Fn(&Round) -> Option<u64>) -> String {
        let all: Option<Vec<f64>> =
            self.rounds.iter().map(|round| figure(round).map(|ms| ms as f64)).collect();
        let Some(all) = all else { return "not always".to_owned() };
        let most = all.iter().copied().fold(0.0, f64::max);
        format!("{:.0} (max {most:.0})", median(&all).unwrap_or_default())
    }
}

impl Load<'_> {
    fn pair(&self, cluster: &mut Cluster, resync_first: bool) -> Result<Pair> {
        let mut of = [None, None];
        for resync in [resync_first, !resync_first] {
            of[usize::from(resync)] = Some(self.run(cluster, resync)?);
            cluster.check()?;
        }
        let [without, with] = of.map(|run| run.context("both were run"));
        let ((alone, _), (beside, resync_kib_per_s)) = (without?, with?);
        Ok(Pair { without: alone.seen(&alone)?, with: beside.seen(&alone)?, resync_kib_per_s })
    }
}
