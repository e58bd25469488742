//! Target 8: many volumes.

use anyhow::{Context, Result};

use super::Setting;
use super::check::{Check, Figure, Limit, Unit, greatest, least, ratios};
use super::stand::{Client, Load, Plan, Stand};
use crate::bench::options::Disks;

/// Volumes in use at once.
const VOLUMES: [usize; 4] = [1, 2, 4, 8];
/// Requests in flight on each.
const DEPTH: u32 = 32;
/// IOPS by the most that fewer volumes gave.
const LEAST: f64 = 0.9;
const WAYS: [(&str, &str); 2] = [("write", "randwrite"), ("read", "randread")];

/// The fixed load: writes per second, and in flight.
const RATE: u32 = 2_000;
const RATE_DEPTH: u32 = 4;

/// The measurement.
pub fn measure(setting: &Setting) -> Result<Vec<Check>> {
    let mut checks = more_volumes(setting)?;
    checks.push(idle_volumes(setting)?);
    Ok(checks)
}

fn more_volumes(setting: &Setting) -> Result<Vec<Check>> {
    let options = setting.options;
    let volumes = VOLUMES[VOLUMES.len() - 1];
    let plan = Plan { raw: 0, volumes, ..Plan::new(Disks::Ram, options) };
    let mut stand = Stand::start(setting.program, options, plan)?;
    let mut all: [[Rates; 4]; 2] = Default::default();
    setting.rounds(|| {
        for ((_, pattern), rates) in WAYS.iter().zip(&mut all) {
            for (volumes, rates) in VOLUMES.iter().zip(rates) {
                let run = stand.run(Client::Local(*volumes), Load::random(pattern, DEPTH))?;
                rates.iops.push(run.iops);
                rates.engines.extend(run.server_cpu_us);
                rates.fio.push(run.client_cpu_us);
            }
        }
        Ok(())
    })?;
    Ok(WAYS.iter().zip(&all).map(|((way, _), rates)| flat(way, rates)).collect())
}

/// Of each round, with so many volumes.
#[derive(Default)]
struct Rates {
    iops: Vec<f64>,
    /// CPU time for each request, us.
    engines: Vec<f64>,
    fio: Vec<f64>,
}

/// The machine's cores are the same for all of them: flat per core is flat. One volume leaves cores
/// idle, so the rise from one to two says nothing; what counts is that more never give less.
fn flat(way: &str, rates: &[Rates; 4]) -> Check {
    let [one, two, four, eight] = rates.each_ref().map(|rates| rates.iops.as_slice());
    let steps = [
        ratios(two, one),
        ratios(four, &greatest(&[one, two])),
        ratios(eight, &greatest(&[one, two, four])),
    ];
    let parts = least(&steps.each_ref().map(Vec::as_slice));
    let what = format!("4 KiB {way}, disks ram: IOPS of 2, 4, 8 volumes by the most of fewer");
    let check = Check::new(what, Limit::AtLeast(LEAST), Unit::Part, parts);
    VOLUMES.iter().zip(rates).fold(check, |check, (volumes, rates)| {
        check
            .with(Figure::new(format!("{volumes}:"), Unit::PerSecond, rates.iops.clone()))
            .with(Figure::new("engines", Unit::Us, rates.engines.clone()))
            .with(Figure::new("fio", Unit::Us, rates.fio.clone()))
    })
}

fn idle_volumes(setting: &Setting) -> Result<Check> {
    let options = setting.options;
    let mut latencies: [Vec<f64>; 2] = Default::default();
    let mut stands = [0, options.idle]
        .map(|idle| {
            let plan = Plan { raw: 0, idle, ..Plan::new(Disks::Ram, options) };
            Stand::start(setting.program, options, plan)
        })
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    setting.rounds(|| {
        for (stand, latencies) in stands.iter_mut().zip(&mut latencies) {
            let load = Load { rate: Some(RATE), ..Load::random("randwrite", RATE_DEPTH) };
            let run = stand.run(Client::Local(1), load)?;
            latencies.push(run.write.context("nothing was written")?.mean_us);
        }
        Ok(())
    })?;
    let [alone, among] = latencies;
    let what = format!("4 KiB write, {RATE}/s, disks ram: latency by that without idle volumes");
    let alone = Figure::new("alone", Unit::Us, alone);
    let among = Figure::new(format!("among {} idle volumes", options.idle), Unit::Us, among);
    Ok(Check::not_above(&what, among, alone))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(iops: [f64; 4]) -> [Rates; 4] {
        iops.map(|iops| Rates { iops: vec![iops], ..Rates::default() })
    }

    #[test]
    fn more_volumes_that_give_less_are_not_flat() {
        let check = flat("write", &rates([100.0, 200.0, 210.0, 188.0]));
        assert_eq!(check.holds, Some(false));
        let check = flat("write", &rates([100.0, 200.0, 210.0, 190.0]));
        assert_eq!(check.holds, Some(true));
        let check = flat("write", &rates([100.0, 80.0, 210.0, 210.0]));
        assert_eq!((check.holds, check.measured), (Some(false), Some(0.8)));
    }
}
