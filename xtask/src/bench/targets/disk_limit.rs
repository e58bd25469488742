//! Target 3: nearly all that the disks can do is there for users.

use anyhow::Result;

use super::Setting;
use super::check::Limit as Bound;
use super::check::{Check, Figure, Unit, ratios};
use super::stand::{Client, Load, Plan, Stand};
use crate::bench::limit::Limit;
use crate::bench::options::Disks;
use crate::bench::results::Run;

/// What each disk does, far below what this machine's and its CPUs can.
pub const REQUESTS: u64 = 4_000;
const MIB: u64 = 128;
/// Requests in flight.
pub const DEPTH: u32 = 32;
/// Of raw storage.
const LEAST: f64 = 0.97;
/// Raw storage is not that much faster than its limit; else it was none.
const TOLERANCE: f64 = 1.05;

/// A row.
struct Case {
    what: &'static str,
    load: Load,
    limit: Limit,
}

const CASES: [Case; 4] = [
    Case {
        what: "4 KiB random write",
        load: Load::random("randwrite", DEPTH),
        limit: Limit::Requests(REQUESTS),
    },
    Case {
        what: "4 KiB random read",
        load: Load::random("randread", DEPTH),
        limit: Limit::Requests(REQUESTS),
    },
    Case {
        what: "128 KiB sequential write",
        load: Load::sequential("write"),
        limit: Limit::Mib(MIB),
    },
    Case {
        what: "128 KiB sequential read",
        load: Load::sequential("read"),
        limit: Limit::Mib(MIB),
    },
];

/// The measurement.
pub fn measure(setting: &Setting) -> Result<Vec<Check>> {
    let options = setting.options;
    let mut stand = Stand::start(setting.program, options, Plan::new(Disks::File, options))?;
    if let Err(error) = stand.part_disks() {
        return Ok(CASES.iter().map(|case| absent(case, format!("{error:#}"))).collect());
    }
    let mut figures: [[Vec<f64>; 2]; 4] = Default::default();
    setting.rounds(|| {
        for (case, [raw, ours]) in CASES.iter().zip(&mut figures) {
            stand.limit(case.limit)?;
            raw.push(rate(case.limit, &stand.run(Client::Raw(1), case.load)?));
            ours.push(rate(case.limit, &stand.run(Client::Local(1), case.load)?));
        }
        Ok(())
    })?;
    Ok(CASES.iter().zip(figures).map(|(case, [raw, ours])| check(case, raw, ours)).collect())
}

fn check(case: &Case, raw: Vec<f64>, ours: Vec<f64>) -> Check {
    let raw = Figure::new("raw", unit(case.limit), raw);
    if let Some(why) = not_limited(case.limit, &raw) {
        return absent(case, why).with(raw);
    }
    let parts = ratios(&ours, &raw.runs);
    Check::new(words(case), Bound::AtLeast(LEAST), Unit::Part, parts)
        .with(Figure::new("replicated", unit(case.limit), ours))
        .with(raw)
}

fn absent(case: &Case, why: String) -> Check {
    Check::absent(words(case), Bound::AtLeast(LEAST), Unit::Part, why)
}

fn words(case: &Case) -> String {
    match case.limit {
        Limit::Requests(n) => format!("{}, disks of {n}/s: of raw", case.what),
        Limit::Mib(n) => format!("{}, disks of {n} MiB/s: of raw", case.what),
    }
}

/// Why figures of such a disk are none: raw storage was faster than that.
pub fn not_limited(limit: Limit, raw: &Figure) -> Option<String> {
    let most = match limit {
        Limit::Requests(most) | Limit::Mib(most) => most as f64,
    };
    let median = raw.median?;
    (median > most * TOLERANCE)
        .then(|| format!("the limit of {most} has no effect here: raw storage did {median:.0}"))
}

/// What is limited.
pub fn rate(limit: Limit, run: &Run) -> f64 {
    match limit {
        Limit::Requests(_) => run.iops,
        Limit::Mib(_) => run.mib_per_second,
    }
}

fn unit(limit: Limit) -> Unit {
    match limit {
        Limit::Requests(_) => Unit::PerSecond,
        Limit::Mib(_) => Unit::MibPerSecond,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_does_not_limit_is_no_measurement() {
        let raw = |rate: f64| Figure::new("raw", Unit::PerSecond, vec![rate]);
        assert_eq!(not_limited(Limit::Requests(4_000), &raw(4_011.0)), None);
        let why = not_limited(Limit::Requests(4_000), &raw(90_000.0)).unwrap();
        assert!(why.contains("no effect") && why.contains("90000"), "{why}");
        let check = check(&CASES[0], vec![90_000.0], vec![89_000.0]);
        assert_eq!((check.holds, check.measured), (None, None));
    }

    #[test]
    fn what_is_limited_is_compared() {
        let check = check(&CASES[0], vec![4_000.0, 4_000.0], vec![3_900.0, 3_860.0]);
        assert_eq!((check.holds, check.measured), (Some(true), Some(0.97)));
    }
}
