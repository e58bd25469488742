//! Target 7: volumes that nobody uses.

use std::time::Duration;

use anyhow::{Context, Result};

use super::Setting;
use super::check::{Check, Figure, Limit, Unit};
use super::stand::{Plan, Stand};
use crate::bench::cluster::Shape;
use crate::bench::idle::{Idle, SETTLE, observe, wait};
use crate::bench::options::Disks;
use crate::bench::process;

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

/// Looked at once: it takes long to make so many, and memory has no noise.
fn memory(setting: &Setting) -> Result<Check> {
    let (most, volumes) = MOST_MEMORY;
    let volumes = if setting.options.quick { setting.options.idle } else { volumes };
    let (limit, unit) = (Limit::AtMost(most), Unit::Mib);
    let what = format!("memory with {volumes} connected volumes: worst engine");
    if let Err(error) = files_allowed(Shape::files_for(volumes)) {
        return Ok(Check::absent(what, limit, unit, format!("{error:#}")));
    }
    let plan = plan(setting, volumes - 1);
    let mut stand = Stand::start(setting.program, setting.options, plan)?;
    let engines = observe(&stand.cluster().pids(), Duration::from_secs(1))?;
    let mib = engines.iter().map(|idle| idle.mib).fold(0.0, f64::max);
    Ok(Check::new(what, limit, unit, vec![mib]))
}

/// Fails if a process may not have so many files open.
fn files_allowed(files: usize) -> Result<()> {
    let mut command = process::command("prlimit");
    command.arg(format!("--nofile={files}")).args(["--", "true"]);
    process::output(command, Duration::from_secs(20))
        .with_context(|| format!("{files} open files are not allowed here; root may raise that"))?;
    Ok(())
}
