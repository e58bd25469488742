//! Target 7: volumes that nobody uses.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Setting;
use super::check::{Check, Figure, Limit, Unit};
use super::stand::{Plan, Stand};
use crate::bench::cluster::Shape;
use crate::bench::idle::{Idle, SETTLE, observe, wait};
use crate::bench::options::Disks;
use crate::process;

/// Of a CPU, for a hundred connected volumes.
const MOST_CPU: f64 = 0.01;
/// MiB of an engine with so many volumes.
const MOST_MEMORY: (f64, usize) = (1024.0, 6_000);
/// An engine that does next to nothing has to be watched for a while.
const LEAST_SECONDS: u64 = 5;

/// The measurement.
pub fn measure(setting: &Setting) -> Result<Vec<Check>> {
    let options = setting.options;
    let mut stand = Stand::start(setting.program, options, plan(setting, options.idle))?;
    let (settle, time) = match options.quick {
        true => (Duration::ZERO, Duration::from_secs(options.seconds)),
        false => (SETTLE, Duration::from_secs(options.seconds.max(LEAST_SECONDS))),
    };
    wait(settle)?;
    let pids = stand.cluster().pids();
    let mut rounds: Vec<Vec<Idle>> = Vec::new();
    setting.rounds(|| {
        rounds.push(observe(&pids, time)?);
        Ok(())
    })?;
    drop(stand);
    let volumes = (options.idle + 1) as f64;
    let worst = |figure: fn(&Idle) -> f64| {
        let of = |engines: &Vec<Idle>| engines.iter().map(figure).fold(0.0, f64::max);
        rounds.iter().map(of).collect::<Vec<f64>>()
    };
    let cpu = worst(|idle| idle.cpu).iter().map(|cpu| cpu * 100.0 / volumes).collect();
    let what = format!("CPU for 100 of {volumes} connected volumes: worst engine, of a core");
    let cpu = Check::new(what, Limit::AtMost(MOST_CPU), Unit::Part, cpu).with(Figure::new(
        "memory",
        Unit::Mib,
        worst(|idle| idle.mib),
    ));
    Ok(vec![cpu, memory(setting)?])
}

fn plan(setting: &Setting, idle: usize) -> Plan {
    Plan { raw: 0, idle, mib: 64, ..Plan::new(Disks::Ram, setting.options) }
}

/// Looked at once: it takes long to make so many, and memory has no noise. Where a process may not
/// have enough files open for all of them, it is as many as may be, and the limit is in proportion.
fn memory(setting: &Setting) -> Result<Check> {
    let (most, all) = MOST_MEMORY;
    let volumes = if setting.options.quick { setting.options.idle } else { allowed(all)? };
    let mut stand = Stand::start(setting.program, setting.options, plan(setting, volumes - 1))?;
    let engines = observe(&stand.cluster().pids(), Duration::from_secs(1))?;
    let mib = engines.iter().map(|idle| idle.mib).fold(0.0, f64::max);
    let what = format!("memory with {volumes} connected volumes: worst engine");
    let limit = Limit::AtMost(most * volumes as f64 / all as f64);
    let check = Check::new(what, limit, Unit::Mib, vec![mib]);
    Ok(match volumes == all {
        true => check,
        false => check.noted(format!(
            "the limit is in proportion to {most} MiB for {all}, which need {} open files",
            Shape::files_for(all)
        )),
    })
}

/// As many volumes as a process may have files for, up to `wanted`.
fn allowed(wanted: usize) -> Result<usize> {
    let mut command = process::command("prlimit");
    command.arg(format!("--nofile={}", Shape::files_for(wanted))).args(["--", "true"]);
    if process::output(command, Duration::from_secs(20)).is_ok() {
        return Ok(wanted);
    }
    process::check_signals()?;
    let mut command = process::command("prlimit");
    command.args(["--nofile", "--raw", "--noheadings", "--output", "HARD"]);
    let text = process::output(command, Duration::from_secs(20))?;
    let files: usize = text.trim().parse().with_context(|| format!("prlimit says {text:?}"))?;
    match Shape::volumes_for(files) {
        0 => bail!("{files} open files are too few for a volume"),
        volumes => Ok(volumes.min(wanted)),
    }
}
