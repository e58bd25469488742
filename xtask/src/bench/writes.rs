//! CPU time of the whole machine per replicated 4 KiB write, and where the engines spend it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::Options;
use super::cluster::{Cluster, NAMES};
use super::fio::{Job, Report};
use super::profile::Recording;

/// Rounds; the best counts, the others had more company.
const ROUNDS: usize = 3;

/// CPU time so far, seconds.
struct Spent {
    engines: Vec<f64>,
    /// Of processes that we waited for.
    client: f64,
    /// Of all CPUs of the machine.
    machine: f64,
}

/// The measurement.
pub fn run(program: &Path, options: &Options) -> Result<()> {
    let (mib, depth) = (options.mib.unwrap_or(1024), options.depth.unwrap_or(32));
    let disk = options.al_extents.map(|extents| format!("al-extents {extents};"));
    let cluster = Cluster::start(program, options.nodes, mib, &disk.unwrap_or_default())?;
    let nbd = &cluster.nbd();
    // Every block once: neither the file systems nor the activity logs have firsts afterwards.
    Job { nbd, pattern: "write", block: "1m", depth: 8, mib, seconds: None }.run()?;
    let (pattern, block, seconds) = ("randwrite", "4k", Some(options.seconds));
    let job = Job { nbd, pattern, block, depth, mib, seconds };
    println!("{} replicas, {depth} random writes of 4 KiB in flight", options.nodes);
    let ticks = ticks_per_second()?;
    for _ in 0..ROUNDS {
        let before = Spent::now(&cluster, ticks)?;
        let report = job.run()?;
        let after = Spent::now(&cluster, ticks)?;
        cluster.check()?;
        print(&report, &before, &after);
    }
    if options.profile {
        let recording = Recording::start(&cluster.pids(), cluster.file("perf.data"))?;
        job.run()?;
        recording.print()?;
    }
    Ok(())
}

fn print(report: &Report, before: &Spent, after: &Spent) {
    let Report { writes, rate, median, p99 } = *report;
    let per_write = |seconds: f64| seconds * 1e6 / writes as f64;
    let engines: Vec<f64> =
        after.engines.iter().zip(&before.engines).map(|(after, before)| after - before).collect();
    let client = after.client - before.client;
    let all = engines.iter().sum::<f64>() + client;
    println!("{rate:.0} writes/s, latency {median:.0} us (median), {p99:.0} us (99 %)");
    println!("    {:.1} us of CPU time per write: client {:.1}", per_write(all), per_write(client));
    for (name, spent) in NAMES.iter().zip(&engines) {
        println!("        {name:<8} {:.1}", per_write(*spent));
    }
    println!("    {:.1} us by the machine's own count", per_write(after.machine - before.machine));
}

impl Spent {
    fn now(cluster: &Cluster, ticks: f64) -> Result<Spent> {
        let engines = cluster.pids().into_iter().map(|pid| {
            let [user, system, ..] = times(&format!("/proc/{pid}/stat"))?;
            Ok((user + system) as f64 / ticks)
        });
        let [_, _, user, system] = times("/proc/self/stat")?;
        // user, nice, system, idle, iowait, irq, softirq; time stolen by others is not ours.
        let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        let line = text.lines().next().unwrap_or_default();
        let busy = line.split_whitespace().skip(1).enumerate();
        let busy: u64 = busy
            .filter(|(index, _)| matches!(index, 0..=2 | 5 | 6))
            .filter_map(|(_, number)| number.parse::<u64>().ok())
            .sum();
        Ok(Spent {
            engines: engines.collect::<Result<_>>()?,
            client: (user + system) as f64 / ticks,
            machine: busy as f64 / ticks,
        })
    }
}

/// User and system time of a process with all its threads, and of its children that have ended.
fn times(path: &str) -> Result<[u64; 4]> {
    let text = fs::read_to_string(path).context(path.to_owned())?;
    // The name, in parentheses, may have spaces.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut numbers = fields.split_whitespace().skip(11).map(str::parse);
    let mut next = || numbers.next().and_then(Result::ok).with_context(|| path.to_owned());
    Ok([next()?, next()?, next()?, next()?])
}

fn ticks_per_second() -> Result<f64> {
    let output = Command::new("getconf").arg("CLK_TCK").output().context("getconf")?;
    String::from_utf8_lossy(&output.stdout).trim().parse().context("getconf CLK_TCK")
}
