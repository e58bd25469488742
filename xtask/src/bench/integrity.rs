//! What it costs to protect data on the wire: CPU time of all engines per replicated 4 KiB write, on
//! volumes that differ in nothing but `data-integrity-alg` and `tls`, by turns in one run.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::Options;
use super::cluster::{Cluster, NAMES, Shape};
use super::cpu::Clock;
use super::fio::Job;
use super::results::{Machine, Tree, now};
use super::statistics::{judge, median, spread};
use crate::process;

/// The volumes, by what protects their data.
const PROTECTIONS: [&str; 3] = ["none", "crc32c", "tls"];
/// How long making a certificate may take.
const PATIENCE: Duration = Duration::from_secs(20);
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
}

/// The runs on one volume.
#[derive(Serialize)]
struct OfVolume {
    protection: &'static str,
    /// Medians.
    cpu_us_per_write: f64,
    writes_per_second: f64,
    /// Median CPU time per write, by that of the first volume.
    ratio: f64,
    /// By the rank test; none if there are too few runs to say.
    beyond_noise: Option<bool>,
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
    let certificates = tempfile::Builder::new().prefix("ashlar-bench").tempdir()?;
    make_certificate(certificates.path())?;
    let shape = Shape {
        replicas: options.nodes,
        diskless: false,
        volumes: PROTECTIONS.len(),
        mib,
        sparse: false,
        served: PROTECTIONS.len(),
        net: PROTECTIONS.map(|protection| net(protection, certificates.path())).to_vec(),
        disk: String::new(),
        quorum: false,
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
    for volume in 0..PROTECTIONS.len() {
        // Every block once: neither the file systems nor the activity logs have firsts afterwards.
        Job { pattern: "write", block: "1m", depth: 8, seconds: None, ..job(volume) }.run()?;
    }
    let clock = Clock::new()?;
    let mut runs: [Vec<Run>; PROTECTIONS.len()] = Default::default();
    for round in 0..ROUNDS {
        for turn in 0..PROTECTIONS.len() {
            process::check_signals()?;
            let volume = (round + turn) % PROTECTIONS.len();
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
    let without = runs[0].clone();
    let volumes: Option<Vec<OfVolume>> = PROTECTIONS
        .iter()
        .zip(runs)
        .map(|(protection, runs)| OfVolume::new(protection, runs, &without))
        .collect();
    let results = Results {
        time,
        tree,
        machine,
        replicas: options.nodes,
        depth,
        mib,
        seconds,
        volumes: volumes.context("nothing was written")?,
    };
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&results)?),
        false => print(&results),
    }
    Ok(())
}

/// The line of a volume's section `net`.
fn net(protection: &str, certificates: &Path) -> String {
    let path = |name: &str| certificates.join(name).display().to_string();
    match protection {
        "none" => String::new(),
        "tls" => format!(
            "tls yes; tls-keyring {certificate}; tls-certificate {certificate}; tls-privkey {key};",
            certificate = path("certificate.pem"),
            key = path("key.pem")
        ),
        digest => format!("data-integrity-alg {digest};"),
    }
}

/// One certificate for all nodes, which vouches for itself.
fn make_certificate(folder: &Path) -> Result<()> {
    let names: Vec<String> = NAMES.iter().map(|name| format!("DNS:{name}")).collect();
    let config = format!(
        "[req]\ndistinguished_name = name\nx509_extensions = extensions\nprompt = no\n\
         [name]\nCN = bench\n\
         [extensions]\nbasicConstraints = critical, CA:FALSE\nsubjectAltName = {}\n",
        names.join(",")
    );
    fs::write(folder.join("request"), config)?;
    let mut openssl = process::command("openssl");
    openssl.args(["req", "-x509", "-nodes", "-days", "30"]);
    openssl.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-config"]);
    openssl.arg(folder.join("request"));
    openssl.arg("-keyout").arg(folder.join("key.pem"));
    openssl.arg("-out").arg(folder.join("certificate.pem"));
    process::output(openssl, PATIENCE).context("openssl is needed to make a certificate")?;
    Ok(())
}

fn print(results: &Results) {
    let Results { replicas, depth, mib, seconds, .. } = results;
    println!(
        "{replicas} replicas, {depth} random writes of 4 KiB in flight, volumes of {mib} MiB; \
         medians of {ROUNDS} runs of {seconds} s, by turns"
    );
    for volume in &results.volumes {
        let OfVolume { protection, cpu_us_per_write, writes_per_second, ratio, .. } = volume;
        let judged = match volume.beyond_noise {
            Some(true) => "beyond noise",
            Some(false) => "within noise",
            None => "too few runs to judge",
        };
        let spread = volume.spread.map_or(0.0, |spread| spread * 100.0);
        println!(
            "    {protection:<8} {cpu_us_per_write:.2} us of CPU time of all engines per write \
             (spread {spread:.0} %), {writes_per_second:.0} writes/s; ratio {ratio:.3} ({judged})"
        );
    }
}

impl OfVolume {
    /// Sums up. `None` without runs.
    fn new(protection: &'static str, runs: Vec<Run>, without: &[Run]) -> Option<OfVolume> {
        let of = |runs: &[Run]| runs.iter().map(|run| run.cpu_us_per_write).collect::<Vec<f64>>();
        let cpu = of(&runs);
        let verdict = judge(&cpu, &of(without))?;
        let rate: Vec<f64> = runs.iter().map(|run| run.writes_per_second).collect();
        Some(OfVolume {
            protection,
            cpu_us_per_write: median(&cpu)?,
            writes_per_second: median(&rate)?,
            ratio: verdict.ratio,
            beyond_noise: verdict.beyond_noise,
            spread: spread(&cpu),
            runs,
        })
    }
}
