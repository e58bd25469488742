//! Target 2: how long a write takes that is alone, beside what it can not do without.

use std::time::Duration;

use anyhow::{Context, Result};

use super::Setting;
use super::check::{Check, Figure, Limit, Unit};
use super::floors;
use super::stand::{Client, Load, Plan, Stand};
use crate::bench::options::Disks;
use crate::bench::results::Run;

/// What is measured by turns: disks, arguments of the engines, what to call it, and its limit.
const CASES: [Case; 4] = [
    Case { disks: Disks::Ram, engine: &[], name: "", limit: 1.5 },
    Case { disks: Disks::File, engine: &[], name: "", limit: 1.5 },
    Case { disks: Disks::Ram, engine: POLLING, name: ", busy polling", limit: 1.25 },
    Case { disks: Disks::File, engine: POLLING, name: ", busy polling", limit: 1.25 },
];
/// Longer than a CPU takes to wake up.
const POLLING: &[&str] = &["--busy-poll=200"];

struct Case {
    disks: Disks,
    engine: &'static [&'static str],
    name: &'static str,
    limit: f64,
}

/// Of each round: microseconds.
#[derive(Default)]
struct Times {
    round_trip: Vec<f64>,
    raw: Vec<f64>,
    replicated: Vec<f64>,
}

/// The measurement.
pub fn measure(setting: &Setting) -> Result<Vec<Check>> {
    let options = setting.options;
    let mut stands = Vec::new();
    for Case { disks, engine, .. } in CASES {
        let plan = Plan { engine, ..Plan::new(disks, options) };
        stands.push(Stand::start(setting.program, options, plan)?);
    }
    let mut times: [Times; CASES.len()] = Default::default();
    let time = Duration::from_secs(options.seconds);
    setting.rounds(|| {
        for (stand, times) in stands.iter_mut().zip(&mut times) {
            let load = Load::random("randwrite", 1);
            times.round_trip.push(floors::round_trip(stand.place().folder.path(), time)?);
            times.raw.push(mean(&stand.run(Client::Raw(1), load)?)?);
            times.replicated.push(mean(&stand.run(Client::Local(1), load)?)?);
        }
        Ok(())
    })?;
    Ok(CASES.iter().zip(times).map(|(case, times)| check(case, times)).collect())
}

fn check(case: &Case, times: Times) -> Check {
    let Times { round_trip, raw, replicated } = times;
    let floors = round_trip.iter().zip(&raw).map(|(trip, raw)| trip + raw);
    let ratios = replicated.iter().zip(floors).map(|(time, floor)| time / floor).collect();
    let (disks, name) = (case.disks.name(), case.name);
    let what = format!("4 KiB write, depth 1, disks {disks}{name}: by round trip + raw write");
    Check::new(what, Limit::AtMost(case.limit), Unit::Times, ratios)
        .with(Figure::new("replicated", Unit::Us, replicated))
        .with(Figure::new("round trip", Unit::Us, round_trip))
        .with(Figure::new("raw write", Unit::Us, raw))
}

/// Means, unlike medians, can be added.
fn mean(run: &Run) -> Result<f64> {
    Ok(run.write.context("nothing was written")?.mean_us)
}
