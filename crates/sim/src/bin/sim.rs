//! Runs seeds of the simulator; `cargo xtask sim` starts one such process per core.
//!
//! Prints `key value` lines for the caller to add up, and a `violation` line for each seed that
//! broke a rule. Exits 1 if there was one.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::process::ExitCode;

use sim::plan::Plan;
use sim::rng::Rng;
use sim::trace::Trace;
use sim::watch::Watch;
use sim::{Stats, run};

struct Arguments {
    start: u64,
    seeds: u64,
    step: u64,
    verbose: bool,
    /// A sector to tell the story of.
    watch: Option<Watch>,
    /// Go on after a violation, up to so many.
    failures: u64,
    /// The control plane, not the data plane.
    cluster: bool,
    /// With a peer that lies.
    liar: bool,
    /// Under protocol A.
    asynchronous: bool,
    /// With several Primaries.
    joint: bool,
    /// With nodes that get a volume after their start.
    adding: bool,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("sim: {message}");
            return ExitCode::from(2);
        }
    };
    run::quiet_panics();
    if arguments.cluster {
        return cluster(&arguments);
    }
    let mut total = Stats::default();
    let (mut done, mut failed) = (0, 0);
    for i in 0..arguments.seeds {
        let seed = arguments.start + i * arguments.step;
        let trace = if arguments.verbose {
            let plan = match arguments {
                Arguments { asynchronous: true, .. } => Plan::asynchronous,
                Arguments { joint: true, .. } => Plan::joint,
                Arguments { adding: true, .. } => Plan::adding,
                _ => Plan::random,
            };
            println!("plan {:#?}", plan(&mut Rng::new(seed)));
            Trace::to(|line| println!("{line}")).watching(arguments.watch.clone())
        } else {
            Trace::off()
        };
        let run = match arguments {
            Arguments { liar: true, .. } => run::liar,
            Arguments { asynchronous: true, .. } => run::asynchronous,
            Arguments { joint: true, .. } => run::joint,
            Arguments { adding: true, .. } => run::adding,
            _ => run::seed,
        };
        let verdict = run(seed, trace);
        total.add(&verdict.stats);
        done += 1;
        if let Some(violation) = verdict.violation {
            failed += 1;
            let seconds = violation.at as f64 / 1e9;
            println!("violation {seed} {} at {seconds:.3}: {}", violation.rule, violation.message);
            if failed >= arguments.failures {
                break;
            }
        }
    }
    println!("seeds {done}");
    for (key, value) in total.lines() {
        println!("{key} {value}");
    }
    ExitCode::from(u8::from(failed > 0))
}

/// Runs seeds of the control plane.
fn cluster(arguments: &Arguments) -> ExitCode {
    let mut total = sim::cluster::Stats::default();
    let (mut done, mut failed) = (0, 0);
    for i in 0..arguments.seeds {
        let seed = arguments.start + i * arguments.step;
        let mut trace = |line: &str| {
            if arguments.verbose {
                println!("{line}");
            }
        };
        done += 1;
        let one = || sim::cluster::seed(seed, &mut trace);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(one));
        match outcome.unwrap_or_else(|_| Err(run::last_panic())) {
            Ok(stats) => total.add(&stats),
            Err(message) => {
                failed += 1;
                println!("violation {seed} cluster at 0: {message}");
                if failed >= arguments.failures {
                    break;
                }
            }
        }
    }
    println!("seeds {done}");
    for (key, value) in total.lines() {
        println!("{key} {value}");
    }
    ExitCode::from(u8::from(failed > 0))
}

fn parse(arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        start: 1,
        seeds: 100,
        step: 1,
        verbose: false,
        watch: None,
        failures: 1,
        cluster: false,
        liar: false,
        asynchronous: false,
        joint: false,
        adding: false,
    };
    let mut arguments = arguments;
    while let Some(name) = arguments.next() {
        if name == "--cluster" {
            parsed.cluster = true;
            continue;
        }
        if name == "--liar" {
            parsed.liar = true;
            continue;
        }
        if name == "--protocol-a" {
            parsed.asynchronous = true;
            continue;
        }
        if name == "--two-primaries" {
            parsed.joint = true;
            continue;
        }
        if name == "--add-volumes" {
            parsed.adding = true;
            continue;
        }
        if name == "--verbose" {
            parsed.verbose = true;
            continue;
        }
        let value = arguments.next().ok_or(format!("{name} needs a number"))?;
        if name == "--watch" {
            parsed.watch = Some(value.parse().map_err(|e| format!("--watch: {e}"))?);
            parsed.verbose = true;
            continue;
        }
        let number = value.parse().map_err(|_| format!("{name} needs a number, not {value}"))?;
        match name.as_str() {
            "--start" => parsed.start = number,
            "--seeds" => parsed.seeds = number,
            "--step" => parsed.step = number,
            "--failures" => parsed.failures = number,
            _ => return Err(format!("{name} is not an option; see `cargo xtask sim --help`")),
        }
    }
    Ok(parsed)
}
