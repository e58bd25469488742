//! Target 1: what a replicated write costs the CPUs.

use anyhow::Result;

use super::Setting;
use super::check::{Check, Figure, Limit, Unit};
use super::stand::{Client, Load, Plan, Stand};
use crate::bench::options::Disks;
use crate::bench::results::Run;

/// Requests in flight.
const DEPTH: u32 = 32;
/// By disks: CPU time of all engines per write, microseconds.
const LIMITS: [(Disks, f64); 2] = [(Disks::Ram, 25.0), (Disks::File, 50.0)];

/// The measurement.
pub fn measure(setting: &Setting) -> Result<Vec<Check>> {
    let options = setting.options;
    let mut stands = LIMITS
        .iter()
        .map(|(disks, _)| {
            let plan = Plan { raw: 0, ..Plan::new(*disks, options) };
            Stand::start(setting.program, options, plan)
        })
        .collect::<Result<Vec<_>>>()?;
    let mut runs: [Vec<Run>; 2] = Default::default();
    setting.rounds(|| {
        for (stand, runs) in stands.iter_mut().zip(&mut runs) {
            runs.push(stand.run(Client::Local(1), Load::random("randwrite", DEPTH))?);
        }
        Ok(())
    })?;
    let checks = LIMITS.iter().zip(&runs).map(|((disks, limit), runs)| {
        let engines: Vec<f64> = runs.iter().filter_map(|run| run.server_cpu_us).collect();
        let what = format!("4 KiB write, depth {DEPTH}, disks {}: engines", disks.name());
        Check::new(what, Limit::AtMost(*limit), Unit::Us, engines)
            .with(Figure::new("fio", Unit::Us, runs.iter().map(|run| run.client_cpu_us).collect()))
            .with(Figure::new("writes", Unit::PerSecond, runs.iter().map(|run| run.iops).collect()))
    });
    Ok(checks.collect())
}
