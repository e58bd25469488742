//! `cargo xtask test`: everything that has to pass, in one command.
//!
//! Sections run one after the other, cheapest first, but for some with guests, which leave a processor
//! free: they run beside those after them, but never beside `tests`. A section that fails does not keep the next from
//! running. What failed is told again before the summary, whose last line adds them up: a check counts as one test, a
//! simulated seed does not.

mod failures;
mod known;
mod libtest;
mod runners;
mod tools;

use std::ops::AddAssign;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::vm::Kind;
use crate::{fuzz, sim, tidy, vm, workspace};

const HELP: &str = "\
cargo xtask test [SECTION ...]
    Installs what the tests need and runs all sections, or only those named:
    tools      programs that the tests call, from the distribution's packages and PyPI
    format     rustfmt
    tidy       arrows between crates, licences, headers, links
    programs   the programs that the others start
    interop    kernel DRBD 8.4 in user-mode guests: as a peer, on the same disks, and a short soak; pools of LVM
    build      everything, so that what follows does not wait for the compiler; with clippy's lints as errors
    newest     the shorter part of blockdev, with the newest kernel that Debian has
    sim        8,000 fixed seeds of the simulator, and 1,000 of the control plane's
    fuzz       300,000 fixed inputs of each fuzz target
    tests      unit, interoperation and end-to-end tests of the workspace
    vhost      a volume as the disk that an emulated guest boots from
    blockdev   volumes as ublk and nbd devices of another such guest, and what is used on disks
    With CI set in the environment, a section that hangs is ended and fails.";

/// What came of a section.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Outcome {
    passed: u64,
    failed: u64,
    /// Could not run here; each has printed what it lacks.
    skipped: u64,
    /// Failed, as [`known`] says they do.
    known: u64,
}

impl Outcome {
    /// One check that either holds or not.
    pub fn of(good: bool) -> Outcome {
        Outcome { passed: u64::from(good), failed: u64::from(!good), ..Outcome::default() }
    }

    /// True if nothing failed that should not.
    pub fn is_good(&self) -> bool {
        self.failed == 0
    }
}

impl AddAssign for Outcome {
    fn add_assign(&mut self, other: Outcome) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.known += other.known;
    }
}

/// Longest time for each part of the sections with guests; they take two to eight.
const GUEST_MINUTES: u64 = 12;

/// True if clippy compiles the workspace. It is rustc with more lints: `cargo clippy` has it stop before
/// there is code, for which every dependency is gone through twice.
static LINTS: AtomicBool = AtomicBool::new(false);

/// Lints are errors. The separator is `cargo clippy`'s own.
const CLIPPY_ARGS: &str = "-Dwarnings__CLIPPY_HACKERY__";

/// Seeds of each kind in the section `sim`.
const SIM_SEEDS: u64 = 2_000;
/// Those of the control plane, where each takes the longest.
const CLUSTER_SEEDS: u64 = 1_000;

/// A part of all that has to pass.
struct Section {
    name: &'static str,
    run: fn() -> Result<Outcome>,
    company: Company,
}

/// What may run at the time of a section.
#[derive(PartialEq)]
enum Company {
    /// The sections before it that may, but not those after it.
    Earlier,
    /// Those after it, too.
    All,
    /// No other.
    None,
}

impl Section {
    const fn new(name: &'static str, run: fn() -> Result<Outcome>) -> Section {
        Section { name, run, company: Company::Earlier }
    }

    /// One that leaves a processor free.
    const fn beside(name: &'static str, run: fn() -> Result<Outcome>) -> Section {
        Section { name, run, company: Company::All }
    }

    /// Runs it, and says what came of it.
    fn outcome(&self) -> (Outcome, String) {
        let begun = Instant::now();
        let outcome = (self.run)().unwrap_or_else(|error| {
            println!("{}: {error:#}", self.name);
            failures::keep(self.name, &format!("{error:#}"));
            Outcome::of(false)
        });
        let verdict = if outcome.is_good() { "ok" } else { "FAILED" };
        let seconds = begun.elapsed().as_secs_f64();
        println!("-- {}: {verdict} in {seconds:.0} s", self.name);
        (outcome, format!("{:<10} {verdict:<8} {seconds:>5.0} s", self.name))
    }
}

const SECTIONS: [Section; 12] = [
    Section::new("tools", tools::run),
    Section::new("format", format),
    Section::new("tidy", tidy),
    Section::new("programs", runners::programs),
    Section::beside("interop", interop),
    Section::new("build", runners::build),
    Section::beside("newest", newest),
    Section::new("sim", simulate),
    Section::new("fuzz", fuzz::section),
    // They wait for each other only so long.
    Section { company: Company::None, ..Section::new("tests", runners::run) },
    Section::beside("vhost", vhost),
    Section::new("blockdev", blockdev),
];

/// The command.
pub fn main(arguments: &[String]) -> Result<()> {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        println!("{HELP}");
        return Ok(());
    }
    for name in arguments {
        if !SECTIONS.iter().any(|section| section.name == name) {
            bail!("{name} is not a section\n{HELP}");
        }
    }
    // Not for other sections that are named: it would build once more what a developer has built without.
    LINTS.store(arguments.is_empty() || arguments.iter().any(|a| a == "build"), Ordering::Relaxed);
    let begun = Instant::now();
    let chosen = SECTIONS.iter().filter(|section| {
        arguments.is_empty() || arguments.iter().any(|argument| argument == section.name)
    });
    let mut total = Outcome::default();
    let mut summary = Vec::new();
    std::thread::scope(|scope| {
        let mut add = |(outcome, line)| {
            total += outcome;
            summary.push(line);
        };
        let mut beside: Vec<ScopedJoinHandle<'_, (Outcome, String)>> = Vec::new();
        let ended = |section: ScopedJoinHandle<'_, _>| section.join().expect("it says if it fails");
        for section in chosen {
            if section.company == Company::All {
                println!("\n== {}, beside the next", section.name);
                beside.push(scope.spawn(|| section.outcome()));
                continue;
            }
            if section.company == Company::None {
                beside.drain(..).map(ended).for_each(&mut add);
            }
            println!("\n== {}", section.name);
            add(section.outcome());
        }
        beside.into_iter().map(ended).for_each(add);
    });
    failures::tell();
    println!("\n== summary");
    for line in summary {
        println!("{line}");
    }
    println!("total time {:.0} s", begun.elapsed().as_secs_f64());
    let Outcome { passed, failed, skipped, known } = total;
    if known > 0 {
        println!("{known} fail as is known, see {}", known::PATH);
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed > 0 {
        std::process::exit(1);
    }
    Ok(())
}

fn format() -> Result<Outcome> {
    let mut good = run(cargo(&["fmt", "--all", "--check"]), 2)?;
    good &= run(cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]), 2)?;
    Ok(Outcome::of(good))
}

fn tidy() -> Result<Outcome> {
    let broken = tidy::run()? as u64;
    Ok(Outcome { passed: tidy::rules() as u64 - broken, failed: broken, ..Outcome::default() })
}

/// Kernels with DRBD, and with LVM.
fn interop() -> Result<Outcome> {
    let parts: [&[&str]; 4] = [
        &["interop", "peers"],
        &["interop", "disks"],
        &["soak", "--minutes", "1"],
        &["lvm", "pools"],
    ];
    guests(Kind::UserMode, &parts)
}

fn vhost() -> Result<Outcome> {
    guests(Kind::Emulated, &[&["vhost"]])
}

fn blockdev() -> Result<Outcome> {
    guests(Kind::Emulated, &[&["blockdev"]])
}

/// What a driver of another release may do differently. Beside what needs no guests.
fn newest() -> Result<Outcome> {
    guests(Kind::Newest, &[&["blockdev", "--newest", "--brief"]])
}

/// Parts of `cargo xtask vm`, in a process of its own each, which removes its network and guests when
/// it is ended.
fn guests(kind: Kind, parts: &[&[&str]]) -> Result<Outcome> {
    // Two would build the same images, and try with the same network.
    static TRYING: Mutex<()> = Mutex::new(());
    let trying = TRYING.lock().expect("nothing panics while it tries");
    let hindrance = vm::hindrance(kind);
    drop(trying);
    if let Some(why) = hindrance {
        println!("skipped: {why}");
        return Ok(Outcome { skipped: parts.len() as u64, ..Outcome::default() });
    }
    // Not in the time of a part, and not by cargo, which would wait for the section beside.
    if !runners::build_programs()? {
        return Ok(Outcome::of(false));
    }
    let programs = runners::folder_of_programs()?;
    let mut outcome = Outcome::default();
    for part in parts {
        let begun = Instant::now();
        let mut command = Command::new(programs.join("xtask"));
        command.arg("vm").args(*part).current_dir(workspace::root());
        command.env("ASHLAR_BINARY", programs.join("ashlar"));
        with_lints(&mut command);
        let mut command = limited(command, Duration::from_secs(60 * GUEST_MINUTES));
        // In one piece: another section runs beside.
        let output = command.output().with_context(|| format!("{command:?}"))?;
        let [said, errors] =
            [output.stdout, output.stderr].map(|o| String::from_utf8_lossy(&o).into_owned());
        let (part, seconds) = (part.join(" "), begun.elapsed().as_secs());
        println!("-- cargo xtask vm {part}, {seconds} s\n{said}{errors}");
        let good = output.status.success();
        if !good {
            failures::keep(
                &format!("cargo xtask vm {part}"),
                &format!("{said}{errors}{}", output.status),
            );
        }
        outcome += Outcome::of(good);
    }
    Ok(outcome)
}

/// The share of seeds that runs on every change; campaigns are `cargo xtask sim`.
fn simulate() -> Result<Outcome> {
    if !runners::build_programs()? {
        return Ok(Outcome::of(false));
    }
    // That of debug builds: another would take longer to build than this takes to run.
    let binary = runners::folder_of_programs()?.join("sim");
    let share = |kind| {
        let seeds = if kind == sim::Kind::Cluster { CLUSTER_SEEDS } else { SIM_SEEDS };
        sim::share(&binary, seeds, kind)
    };
    let bound = known::Known::read()?.seeds;
    let found = share(sim::Kind::Data)?;
    println!("{found} of {SIM_SEEDS} seeds break a rule, {bound} may");
    if found < bound {
        println!("lower the bound in {}", known::PATH);
    }
    let cluster = share(sim::Kind::Cluster)?;
    println!("{cluster} of {CLUSTER_SEEDS} seeds of the control plane break a rule, none may");
    let lies = share(sim::Kind::Liar)?;
    println!("{lies} of {SIM_SEEDS} seeds with a node that lies break a rule, none may");
    let asynchronous = share(sim::Kind::ProtocolA)?;
    println!("{asynchronous} of {SIM_SEEDS} seeds under protocol A break a rule, none may");
    let joint = share(sim::Kind::TwoPrimaries)?;
    println!("{joint} of {SIM_SEEDS} seeds with two Primaries break a rule, none may");
    let adding = share(sim::Kind::AddVolumes)?;
    println!("{adding} of {SIM_SEEDS} seeds in which volumes are added break a rule, none may");
    let others = cluster + lies + asynchronous + joint + adding;
    Ok(Outcome::of(found <= bound && others == 0))
}

/// Does this with each of the items, so many at a time, and adds up what comes of them.
pub fn side_by_side<T: Send>(
    lanes: usize,
    items: Vec<T>,
    work: impl Fn(T) -> Result<Outcome> + Sync,
) -> Result<Outcome> {
    let queue = Mutex::new(items.into_iter());
    let next = || queue.lock().expect("no panic while an item is taken").next();
    let lane = || -> Result<Outcome> {
        let mut total = Outcome::default();
        while let Some(item) = next() {
            total += work(item)?;
        }
        Ok(total)
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        let mut total = Outcome::default();
        for lane in lanes {
            total += lane.join().expect("work that fails says so")?;
        }
        Ok(total)
    })
}

/// `cargo` with these arguments, at the root.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).current_dir(workspace::root());
    with_lints(&mut command);
    command
}

/// What a command starts has to compile the workspace as this does: by another compiler it would be
/// compiled once more.
fn with_lints(command: &mut Command) {
    if LINTS.load(Ordering::Relaxed) {
        command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver").env("CLIPPY_ARGS", CLIPPY_ARGS);
    }
}

/// Runs a command with its output on ours, for at most so many minutes. True if it succeeds.
pub fn run(command: Command, minutes: u64) -> Result<bool> {
    let mut command = limited(command, Duration::from_secs(60 * minutes));
    let status = command.status().with_context(|| format!("{command:?} could not be started"))?;
    Ok(status.success())
}

/// The command, ended with all that it started after `limit` where nobody is there to end it.
/// With a person at the keyboard there is no limit: a signal of the terminal has to reach it.
pub fn limited(command: Command, limit: Duration) -> Command {
    if std::env::var_os("CI").is_none() {
        return command;
    }
    let mut outer = Command::new("timeout");
    outer.arg("--kill-after=30").arg(limit.as_secs().to_string());
    outer.arg(command.get_program()).args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        outer.current_dir(directory);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}
