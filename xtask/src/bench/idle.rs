//! What volumes cost that nobody uses: memory and CPU time of engines whose volumes are connected
//! and idle.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Options;
use super::cluster::{Cluster, NAMES, Shape};
use super::cpu::Clock;
use crate::process;

/// Size of each volume; its blocks are never written.
const MIB: u64 = 64;
/// After setting up, until nothing is left of that.
pub const SETTLE: Duration = Duration::from_secs(15);

/// The measurement.
pub fn run(program: &Path, options: &Options) -> Result<()> {
    let volumes = options.volumes.unwrap_or(300);
    let directory = tempfile::Builder::new().prefix("ashlar-bench").tempdir()?;
    let cluster = Cluster::start(
        program,
        directory,
        Shape {
            replicas: options.nodes,
            diskless: false,
            volumes,
            mib: options.mib.unwrap_or(MIB),
            sparse: true,
            served: volumes,
            net: Vec::new(),
            disk: String::new(),
            quorum: false,
            engine: &[],
        },
    )?;
    println!("{volumes} connected volumes on {} engines, all idle", options.nodes);
    wait(SETTLE)?;
    let engines = observe(&cluster.pids(), Duration::from_secs(options.seconds))?;
    for (Idle { mib, cpu }, name) in engines.iter().zip(NAMES) {
        println!(
            "    {name:<8} {mib:.1} MiB, {:.0} KiB a volume; {:.2} % of a CPU, {:.3} % for 100 volumes",
            mib * 1024.0 / volumes as f64,
            100.0 * cpu,
            100.0 * cpu * 100.0 / volumes as f64
        );
    }
    Ok(())
}

/// What an engine costs.
pub struct Idle {
    /// Memory that is really there.
    pub mib: f64,
    /// The part of a CPU.
    pub cpu: f64,
}

/// Looks at engines for so long.
pub fn observe(pids: &[u32], time: Duration) -> Result<Vec<Idle>> {
    let clock = Clock::new()?;
    let spent = || pids.iter().map(|pid| clock.process(*pid)).collect::<Result<Vec<f64>>>();
    let before = spent()?;
    let begun = Instant::now();
    wait(time)?;
    let seconds = begun.elapsed().as_secs_f64();
    let each = pids.iter().zip(spent()?).zip(before).map(|((pid, after), before)| {
        Ok(Idle { mib: resident(*pid)? as f64 / 1024.0, cpu: (after - before) / seconds })
    });
    each.collect()
}

/// Memory of a process that is really there, in KiB.
fn resident(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).context(path.clone())?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("{path} has no VmRSS"))
}

/// Lets time pass, unless the user wants an end.
pub fn wait(time: Duration) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        process::check_signals()?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
