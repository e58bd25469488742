//! CPU time of the whole machine per replicated 4 KiB write, and where the engines spend it.

use std::path::Path;

use anyhow::Result;

use super::Options;
use super::cluster::{Cluster, NAMES};
use super::cpu::Clock;
use super::fio::{Job, Side};
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
    let mut cluster = options.cluster(program, mib, disk.unwrap_or_default())?;
    let targets = &cluster.local();
    // Every block once: neither the file systems nor the activity logs have firsts afterwards.
    let fill = Job {
        targets,
        pattern: "write",
        block: "1m",
        depth: 8,
        jobs: 1,
        mib,
        seconds: None,
        rate: None,
    };
    fill.run()?;
    let (pattern, block, seconds) = ("randwrite", "4k", Some(options.seconds));
    let job = Job { targets, pattern, block, depth, jobs: 1, mib, seconds, rate: None };
    println!("{} replicas, {depth} random writes of 4 KiB in flight", options.nodes);
    let clock = Clock::new()?;
    for _ in 0..ROUNDS {
        let before = Spent::now(&cluster, clock)?;
        let report = job.run()?;
        let after = Spent::now(&cluster, clock)?;
        cluster.check()?;
        print(&report.write, &before, &after);
    }
    if options.profile {
        let recording = Recording::start(&cluster.pids(), cluster.file("perf.data"))?;
        job.run()?;
        recording.print()?;
    }
    Ok(())
}

fn print(report: &Side, before: &Spent, after: &Spent) {
    let Side { requests, rate, median, p99, .. } = *report;
    let per_write = |seconds: f64| seconds * 1e6 / requests as f64;
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
    fn now(cluster: &Cluster, clock: Clock) -> Result<Spent> {
        let engines = cluster.pids().into_iter().map(|pid| clock.process(pid));
        Ok(Spent {
            engines: engines.collect::<Result<_>>()?,
            client: clock.children()?,
            machine: clock.machine()?,
        })
    }
}
