//! What digests of data on the wire cost: CPU time of all engines per replicated 4 KiB write, on
//! volumes that differ in nothing but `data-integrity-alg`, by turns in one run.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::Options;
use super::cluster::{Cluster, Shape};
use super::cpu::Clock;
use super::fio::Job;
use super::results::{Machine, Tree, now};
use super::statistics::{judge, median, spread};
use crate::process;

/// The volumes, by their digest.
const DIGESTS: [&str; 2] = ["none", "crc32c"];
/// Runs of each.
const ROUNDS: usize = 7;

/// All of it, as `--json` prints it.
#[derive(Serialize)]
struct Results {
    time: String,
    tree: Tree,
    machine: Machine,
    replicas: usize,
    depth: u32,
    mib: u64,
    seconds: u64,
    volumes: Vec<OfVolume>,
    /// Median CPU time per write with the digest, by that without.
    ratio: f64,
    /// By the rank test; none if there are too few runs to say.
    beyond_noise: Option<bool>,
}

/// The runs on one volume.
#[derive(Serialize)]
struct OfVolume {
    digest: &'static str,
    /// Medians.
    cpu_us_per_write: f64,
    writes_per_second: f64,
    /// Of the CPU time, from the least to the most, as a part of the median.
    spread: Option<f64>,
    runs: Vec<Run>,
}

#[derive(Clone, Copy, Serialize)]
struct Run {
    cpu_us_per_write: f64,
    writes_per_second: f64,
}

/// The measurement.
pub fn run(program: &Path, options: &Options) -> Result<()> {
    let (mib, depth) = (options.mib.unwrap_or(256), options.depth.unwrap_or(32));
    let seconds = options.seconds;
    let directory = tempfile::Builder::new().prefix("ashlar-bench").tempdir()?;
    let shape = Shape {
        replicas: options.nodes,
        diskless: false,
        volumes: DIGESTS.len(),
        mib,
        sparse: false,
        served: DIGESTS.len(),
        net: DIGESTS.map(net).to_vec(),
        disk: String::new(),
        engine: &["--threads=1"],
    };
    let mut cluster = Cluster::start(program, directory, shape)?;
    let targets = cluster.local();
    let job = |volume: usize| Job {
        targets: &targets[volume..=volume],
        pattern: "randwrite",
        block: "4k",
        depth,
        jobs: 1,
        mib,
        seconds: Some(seconds),
        rate: None,
    };
    for volume in 0..DIGESTS.len() {
        // Every block once: neither the file systems nor the activity logs have firsts afterwards.
        Job { pattern: "write", block: "1m", depth: 8, seconds: None, ..job(volume) }.run()?;
    }
    let clock = Clock::new()?;
    let mut runs: [Vec<Run>; DIGESTS.len()] = Default::default();
    for round in 0..ROUNDS {
        for turn in 0..DIGESTS.len() {
            process::check_signals()?;
            let volume = (round + turn) % DIGESTS.len();
            let before = clock.processes(&cluster.pids())?;
            let writes = job(volume).run()?.write;
            let spent = clock.processes(&cluster.pids())? - before;
            cluster.check()?;
            runs[volume].push(Run {
                cpu_us_per_write: spent * 1e6 / writes.requests as f64,
                writes_per_second: writes.rate,
            });
        }
    }
    let (time, tree, machine) = (now()?, Tree::here()?, Machine::here()?);
    let cpu: Vec<Vec<f64>> =
        runs.iter().map(|runs| runs.iter().map(|run| run.cpu_us_per_write).collect()).collect();
    let verdict = judge(&cpu[1], &cpu[0]).context("nothing was written")?;
    let volumes: Option<Vec<OfVolume>> =
        DIGESTS.iter().zip(runs).map(|(digest, runs)| OfVolume::new(digest, runs)).collect();
    let results = Results {
        time,
        tree,
        machine,
        replicas: options.nodes,
        depth,
        mib,
        seconds,
        volumes: volumes.context("nothing was written")?,
        ratio: verdict.ratio,
        beyond_noise: verdict.beyond_noise,
    };
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&results)?),
        false => print(&results),
    }
    Ok(())
}

/// The line of a volume's section `net`.
fn net(digest: &str) -> String {
    match digest {
        "none" => String::new(),
        digest => format!("data-integrity-alg {digest};"),
    }
}

fn print(results: &Results) {
    let Results { replicas, depth, mib, seconds, .. } = results;
    println!(
        "{replicas} replicas, {depth} random writes of 4 KiB in flight, volumes of {mib} MiB; \
         medians of {ROUNDS} runs of {seconds} s, by turns"
    );
    for volume in &results.volumes {
        let OfVolume { digest, cpu_us_per_write, writes_per_second, .. } = volume;
        let spread = volume.spread.map_or(0.0, |spread| spread * 100.0);
        println!(
            "    {digest:<8} {cpu_us_per_write:.2} us of CPU time of all engines per write \
             (spread {spread:.0} %), {writes_per_second:.0} writes/s"
        );
    }
    let judged = match results.beyond_noise {
        Some(true) => "beyond noise",
        Some(false) => "within noise",
        None => "too few runs to judge",
    };
    println!("    ratio    {:.3} ({judged})", results.ratio);
}

impl OfVolume {
    /// Sums up. `None` without runs.
    fn new(digest: &'static str, runs: Vec<Run>) -> Option<OfVolume> {
        let cpu: Vec<f64> = runs.iter().map(|run| run.cpu_us_per_write).collect();
        let rate: Vec<f64> = runs.iter().map(|run| run.writes_per_second).collect();
        Some(OfVolume {
            digest,
            cpu_us_per_write: median(&cpu)?,
            writes_per_second: median(&rate)?,
            spread: spread(&cpu),
            runs,
        })
    }
}
