//! Target 2: how long a write takes that is alone, beside what it can not do without.

use std::time::Duration;

use anyhow::{Context, Result};

use super::Setting;
use super::check::{Check, Figure, Limit, Unit};
use super::floors;
use super::stand::{Client, Load, Plan, Stand};
use crate::bench::options::Disks;
use crate::bench::results::Run;

const DISKS: [Disks; 2] = [Disks::Ram, Disks::File];
const LIMIT: f64 = 1.5;
const LIMIT_POLLING: f64 = 1.25;

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
    let mut stands = DISKS
        .map(|disks| Stand::start(setting.program, options, Plan::new(disks, options)))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let mut times: [Times; 2] = Default::default();
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
    let mut checks: Vec<Check> =
        DISKS.iter().zip(times).map(|(disks, t)| check(*disks, t)).collect();
    checks.push(Check::absent(
        "the same with busy polling",
        Limit::AtMost(LIMIT_POLLING),
        Unit::Times,
        "the engine has no busy polling".to_owned(),
    ));
    Ok(checks)
}

fn check(disks: Disks, times: Times) -> Check {
    let Times { round_trip, raw, replicated } = times;
    let floors = round_trip.iter().zip(&raw).map(|(trip, raw)| trip + raw);
    let ratios = replicated.iter().zip(floors).map(|(time, floor)| time / floor).collect();
    let what = format!("4 KiB write, depth 1, disks {}: by round trip + raw write", disks.name());
    Check::new(what, Limit::AtMost(LIMIT), Unit::Times, ratios)
        .with(Figure::new("replicated", Unit::Us, replicated))
        .with(Figure::new("round trip", Unit::Us, round_trip))
        .with(Figure::new("raw write", Unit::Us, raw))
}

/// Means, unlike medians, can be added.
fn mean(run: &Run) -> Result<f64> {
    Ok(run.write.context("nothing was written")?.mean_us)
}
