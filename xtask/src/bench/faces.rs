//! What the ways to use a volume cost beside each other: NBD, a loop device with a process of FUSE behind
//! it, and vhost-user with a driver of our own in the place of a guest (`driver`). Volumes of one cluster
//! that differ in nothing else, by turns in one run. Block devices that this kernel lacks are compared in
//! a guest (`cargo xtask bench --guest`).

mod driver;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::Options;
use super::cluster::{Cluster, Shape};
use super::cpu::Clock;
use super::fio::{Job, Target};
use super::options::Disks;
use super::results::{Machine, Tree, now};
use super::statistics::median;
use crate::process;
pub use driver::Driver;

/// Each has a volume of its own, in this order.
pub const FACES: [&str; 3] = ["nbd", "loop", "vhost-user"];
/// Requests in flight.
const DEPTHS: [u32; 2] = [1, driver::DEPTH];
/// Runs of each.
const ROUNDS: usize = 5;
/// Size of the volumes, unless another is asked for.
const MIB: u64 = 256;

/// All of it, as `--json` prints it.
#[derive(Serialize)]
struct Results {
    time: String,
    tree: Tree,
    machine: Machine,
    replicas: usize,
    mib: u64,
    seconds: u64,
    rows: Vec<Row>,
}

/// A load through one face.
#[derive(Serialize)]
struct Row {
    face: &'static str,
    write: bool,
    depth: u32,
    /// Medians.
    requests_per_second: f64,
    mean_us: f64,
    cpu_us_per_request: f64,
    runs: Vec<Run>,
}

#[derive(Clone, Copy, Serialize)]
struct Run {
    requests_per_second: f64,
    /// From making a request until its answer.
    mean_us: f64,
    /// Of all CPUs, the client's and the peers' included.
    cpu_us_per_request: f64,
}

/// A loop device that goes with its scope.
struct Mapped<'a> {
    cluster: &'a Cluster,
    volume: &'static str,
    device: PathBuf,
}

impl<'a> Mapped<'a> {
    fn new(cluster: &'a Cluster, volume: &'static str) -> Result<Mapped<'a>> {
        let device = cluster.command(0, &["map", volume, "--face", "fuse"])?;
        Ok(Mapped { cluster, volume, device: device.trim().into() })
    }
}

impl Drop for Mapped<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.cluster.command(0, &["unmap", self.volume]) {
            eprintln!("{}: {error:#}", self.device.display());
        }
    }
}

/// The measurement.
pub fn run(program: &Path, options: &Options) -> Result<()> {
    let mib = options.mib.unwrap_or(MIB);
    let parent = super::place::parent(Disks::Ram)?;
    let directory = tempfile::Builder::new().prefix("ashlar-bench").tempdir_in(parent)?;
    let shape = Shape {
        replicas: options.nodes,
        diskless: false,
        volumes: FACES.len(),
        mib,
        sparse: false,
        served: 1,
        net: Vec::new(),
        disk: String::new(),
        quorum: false,
        engine: &["--threads=1"],
    };
    let cluster = Cluster::start(program, directory, shape)?;
    let nbd = cluster.local();
    let mapped = Mapped::new(&cluster, "r1/0").context("a loop device needs root")?;
    let device = [Target::File { path: mapped.device.clone(), direct: true }];
    let socket = cluster.file("vhost");
    let path = socket.display().to_string();
    cluster.command(0, &["export", "r2/0", "--vhost-user", &path])?;
    let mut driver = Driver::new(&socket)?;
    // Every block once: neither the file systems nor the activity logs have firsts afterwards.
    let all = Job {
        targets: &nbd,
        pattern: "write",
        block: "1m",
        depth: 4,
        jobs: 1,
        mib,
        seconds: None,
        rate: None,
    };
    all.run()?;
    Job { targets: &device, ..all }.run()?;
    driver.fill(mib)?;
    let clock = Clock::new()?;
    let mut rows = Vec::new();
    for write in [false, true] {
        for depth in DEPTHS {
            let mut runs: [Vec<Run>; FACES.len()] = Default::default();
            for round in 0..ROUNDS {
                for turn in 0..FACES.len() {
                    process::check_signals()?;
                    let face = (round + turn) % FACES.len();
                    let before = clock.machine()?;
                    let (requests, requests_per_second, mean_us) = match face {
                        2 => {
                            let time = Duration::from_secs(options.seconds);
                            let done = driver.run(write, depth, mib, time)?;
                            (done.requests, done.rate, done.mean)
                        }
                        _ => {
                            let targets: &[Target] = if face == 0 { &nbd } else { &device };
                            let pattern = if write { "randwrite" } else { "randread" };
                            let seconds = Some(options.seconds);
                            let job = Job { targets, pattern, block: "4k", depth, seconds, ..all };
                            let report = job.run()?;
                            let side = if write { report.write } else { report.read };
                            (side.requests, side.rate, side.mean)
                        }
                    };
                    let spent = clock.machine()? - before;
                    ensure!(requests > 0, "{}: nothing was done", FACES[face]);
                    let cpu_us_per_request = spent * 1e6 / requests as f64;
                    runs[face].push(Run { requests_per_second, mean_us, cpu_us_per_request });
                }
            }
            for (face, runs) in FACES.into_iter().zip(runs) {
                rows.push(Row::new(face, write, depth, runs).context("there are runs")?);
            }
        }
    }
    drop((driver, mapped));
    let (time, tree, machine) = (now()?, Tree::here()?, Machine::here()?);
    let (replicas, seconds) = (options.nodes, options.seconds);
    let results = Results { time, tree, machine, replicas, mib, seconds, rows };
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&results)?),
        false => print(&results),
    }
    Ok(())
}

fn print(results: &Results) {
    let Results { replicas, mib, seconds, .. } = results;
    println!(
        "{replicas} replicas in memory, random requests of 4 KiB, volumes of {mib} MiB; medians of \
         {ROUNDS} runs of {seconds} s, by turns; CPU time is that of the whole machine"
    );
    println!("| | in flight | face | a second | mean latency | CPU per request |");
    println!("|---|---|---|---|---|---|");
    for row in &results.rows {
        let kind = if row.write { "write" } else { "read" };
        println!(
            "| {kind} | {} | {} | {:.0} | {:.1} us | {:.1} us |",
            row.depth, row.face, row.requests_per_second, row.mean_us, row.cpu_us_per_request
        );
    }
}

impl Row {
    /// Sums up. `None` without runs.
    fn new(face: &'static str, write: bool, depth: u32, runs: Vec<Run>) -> Option<Row> {
        let middle = |of: fn(&Run) -> f64| median(&runs.iter().map(of).collect::<Vec<f64>>());
        Some(Row {
            face,
            write,
            depth,
            requests_per_second: middle(|run| run.requests_per_second)?,
            mean_us: middle(|run| run.mean_us)?,
            cpu_us_per_request: middle(|run| run.cpu_us_per_request)?,
            runs,
        })
    }
}
