//! `cargo xtask bench targets`: what the project wants to reach, measured, each as a ratio within
//! one run and with a verdict.
//!
//! - A module for each target; `check`: a figure, its limit and its verdict; `report`: what is
//!   printed and kept; `options`: the arguments.
//! - `stand`: a cluster and raw storage beside it; `floors`: what the machine does without Ashlar.

mod activity_log;
mod check;
mod cpu;
mod disk_limit;
mod diskless;
pub mod floors;
mod idle;
mod latency;
mod options;
mod report;
mod scale;
mod sequential;
mod stand;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::results::{self, Machine, Tree};
use super::{build, fio, folder, words};
use crate::process;
use check::Check;
use options::Options;

/// What a run takes besides its seconds: fio's start, its end, and a look at the nodes.
const BESIDES: f64 = 0.6;

/// A target.
#[derive(Debug)]
pub struct Target {
    pub number: u8,
    /// As the user and the history name it.
    pub name: &'static str,
    pub title: &'static str,
    measure: fn(&Setting) -> Result<Vec<Check>>,
    /// Runs in a round, and seconds until the first: for the estimate of the time.
    runs: u32,
    setup: u32,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target {
        number: 1,
        name: "cpu",
        title: "CPU time of a replicated write",
        measure: cpu::measure,
        runs: 2,
        setup: 10,
    },
    Target {
        number: 2,
        name: "latency",
        title: "latency of a write that is alone",
        measure: latency::measure,
        runs: 6,
        setup: 10,
    },
    Target {
        number: 3,
        name: "disk-limit",
        title: "replicated I/O with the disk as the limit",
        measure: disk_limit::measure,
        runs: 11,
        setup: 5,
    },
    Target {
        number: 4,
        name: "sequential",
        title: "large transfers and resync",
        measure: sequential::measure,
        runs: 14,
        setup: 30,
    },
    Target {
        number: 5,
        name: "diskless",
        title: "a client without a disk",
        measure: diskless::measure,
        runs: 11,
        setup: 15,
    },
    Target {
        number: 6,
        name: "activity-log",
        title: "metadata writes, and a Primary without peers",
        measure: activity_log::measure,
        runs: 5,
        setup: 40,
    },
    Target {
        number: 7,
        name: "idle",
        title: "volumes that nobody uses",
        measure: idle::measure,
        runs: 2,
        setup: 300,
    },
    Target {
        number: 8,
        name: "scale",
        title: "many volumes",
        measure: scale::measure,
        runs: 10,
        setup: 30,
    },
];

/// What a target's measurement is given.
pub struct Setting<'a> {
    /// The engine.
    pub program: &'a Path,
    pub options: &'a Options,
    target: &'static Target,
    begun: Instant,
}

/// What came of a target.
struct Outcome {
    target: &'static Target,
    /// Or why the measurement broke.
    checks: Result<Vec<Check>>,
}

impl Setting<'_> {
    /// Does as many rounds as are asked for, and says which one it is.
    fn rounds(&self, mut round: impl FnMut() -> Result<()>) -> Result<()> {
        for number in 1..=self.options.rounds {
            process::check_signals()?;
            eprintln!(
                "{} {}: round {number} of {}, {} since the beginning",
                self.target.number,
                self.target.name,
                self.options.rounds,
                words(self.begun.elapsed())
            );
            round()?;
        }
        Ok(())
    }
}

impl Target {
    fn estimate(&self, options: &Options) -> Duration {
        let each = options.seconds as f64 + BESIDES;
        let rounds = each * f64::from(self.runs) * options.rounds as f64;
        let setup = if options.quick { self.setup / 5 } else { self.setup };
        Duration::from_secs_f64(f64::from(setup) + rounds)
    }
}

/// The command.
///
/// # Errors
/// If a target that was measured does not hold, or one could not be measured for another reason
/// than that this machine lacks something. A smoke run has no figures: only the latter counts.
pub fn run(arguments: &[String]) -> Result<()> {
    let options = Options::parse(arguments)?;
    fio::require()?;
    process::watch_signals()?;
    let (machine, tree, time) = (Machine::here()?, Tree::here()?, results::now()?);
    let estimate: Duration = options.targets.iter().map(|target| target.estimate(&options)).sum();
    eprintln!(
        "{} targets, {} rounds of {} s each: about {} after the build",
        options.targets.len(),
        options.rounds,
        options.seconds,
        words(estimate)
    );
    eprintln!("building");
    let program = build(false)?;
    let begun = Instant::now();
    let mut outcomes = Vec::new();
    for target in &options.targets {
        eprintln!("{} {}: setting up", target.number, target.name);
        let setting = Setting { program: &program, options: &options, target, begun };
        let checks = (target.measure)(&setting);
        outcomes.push(Outcome { target, checks });
        // What was measured before is not thrown away.
        if process::check_signals().is_err() {
            break;
        }
    }
    report::finish(
        report::Report { time, machine, tree, options: &options },
        &outcomes,
        &folder()?,
    )?;
    process::check_signals()?;
    let broken: Vec<&str> =
        outcomes.iter().filter(|o| o.checks.is_err()).map(|o| o.target.name).collect();
    if !broken.is_empty() {
        bail!("could not be measured: {}", broken.join(", "));
    }
    let checks = || outcomes.iter().filter_map(|outcome| outcome.checks.as_ref().ok()).flatten();
    let missed = checks().filter(|check| check.holds == Some(false)).count();
    if missed > 0 && !options.quick {
        bail!("{missed} of {} checks do not hold", checks().count());
    }
    Ok(())
}
