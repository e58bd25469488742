//! `cargo xtask sim`: simulation campaigns on all cores.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

const HELP: &str = "\
cargo xtask sim [--cluster | --liar | --protocol-a | --two-primaries | --add-volumes]
               [--seeds N] [--start S] [--jobs J] [--failures F] [--verbose] [--watch VOLUME:SECTOR]
    Runs N seeds (default 2000) from S (default 1) on J processes (default: one per core).
    Stops after F violations per process (default 1).
    --cluster runs the control plane in place of the data plane.
    --liar runs the data plane with a node that sends what nobody should.
    --protocol-a runs the data plane under protocol A, with disks that fail.
    --two-primaries runs it with clients that write on several nodes at once.
    --add-volumes runs it with nodes that get one of their volumes while others are used.
    --verbose prints everything that happens; meant for one seed.
    --watch adds what every node holds in one sector and thinks of it, whenever that changes.";

/// Kinds of seeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The data plane.
    Data,
    /// The control plane.
    Cluster,
    /// The data plane with a node that lies.
    Liar,
    /// The data plane under protocol A.
    ProtocolA,
    /// The data plane with several Primaries.
    TwoPrimaries,
    /// The data plane with nodes that get a volume after their start.
    AddVolumes,
}

impl Kind {
    /// The option that asks for it.
    const fn option(self) -> Option<&'static str> {
        match self {
            Kind::Data => None,
            Kind::Cluster => Some("--cluster"),
            Kind::Liar => Some("--liar"),
            Kind::ProtocolA => Some("--protocol-a"),
            Kind::TwoPrimaries => Some("--two-primaries"),
            Kind::AddVolumes => Some("--add-volumes"),
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// First seed.
    pub start: u64,
    /// Number of seeds.
    pub seeds: u64,
    /// Processes.
    pub jobs: u64,
    /// Violations after which a process stops.
    pub failures: u64,
    /// Print the trace.
    pub verbose: bool,
    /// What kind of seeds.
    pub kind: Kind,
    /// A sector to tell the story of, `VOLUME:SECTOR`.
    pub watch: Option<String>,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    /// Sums of what the processes counted.
    pub totals: BTreeMap<String, u64>,
    /// Seed and text of each violation.
    pub violations: Vec<(u64, String)>,
}

/// The command.
pub fn main(arguments: &[String]) -> Result<()> {
    let Some(campaign) = parse(arguments)? else {
        println!("{HELP}");
        return Ok(());
    };
    let binary = build(Path::new("."))?;
    let begun = Instant::now();
    let report = run(&binary, &campaign)?;
    if campaign.verbose {
        return Ok(());
    }
    let seconds = begun.elapsed().as_secs_f64();
    print(&report, seconds);
    for (seed, text) in &report.violations {
        println!("seed {seed} breaks {text}");
        let kind = campaign.kind.option().map(|o| format!("{o} ")).unwrap_or_default();
        println!("  repeat with: cargo xtask sim {kind}--seeds 1 --start {seed} --verbose");
    }
    if !report.violations.is_empty() {
        bail!("{} of the seeds break a rule", report.violations.len());
    }
    Ok(())
}

/// Runs the first `seeds` seeds of a kind on this simulator, and returns how many break a rule.
pub fn share(binary: &Path, seeds: u64, kind: Kind) -> Result<u64> {
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let campaign =
        Campaign { start: 1, seeds, jobs, failures: seeds, verbose: false, kind, watch: None };
    let begun = Instant::now();
    let report = run(binary, &campaign)?;
    print(&report, begun.elapsed().as_secs_f64());
    for (seed, text) in &report.violations {
        let short: String = text.chars().take(120).collect();
        println!("seed {seed} breaks {short}");
    }
    Ok(report.violations.len() as u64)
}

fn parse(arguments: &[String]) -> Result<Option<Campaign>> {
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let mut campaign = Campaign {
        start: 1,
        seeds: 2000,
        jobs,
        failures: 1,
        verbose: false,
        kind: Kind::Data,
        watch: None,
    };
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        match name.as_str() {
            "--help" | "-h" => return Ok(None),
            "--verbose" => campaign.verbose = true,
            "--cluster" => campaign.kind = Kind::Cluster,
            "--liar" => campaign.kind = Kind::Liar,
            "--protocol-a" => campaign.kind = Kind::ProtocolA,
            "--two-primaries" => campaign.kind = Kind::TwoPrimaries,
            "--add-volumes" => campaign.kind = Kind::AddVolumes,
            "--watch" => {
                let place = arguments.next().context("--watch needs VOLUME:SECTOR")?;
                campaign.watch = Some(place.clone());
                campaign.verbose = true;
            }
            "--seeds" | "--start" | "--jobs" | "--failures" => {
                let value = arguments.next().with_context(|| format!("{name} needs a number"))?;
                let number =
                    value.parse().with_context(|| format!("{name} needs a number, not {value}"))?;
                match name.as_str() {
                    "--seeds" => campaign.seeds = number,
                    "--start" => campaign.start = number,
                    "--failures" => campaign.failures = number,
                    _ => campaign.jobs = number,
                }
            }
            other => bail!("{other} is not an option\n{HELP}"),
        }
    }
    campaign.jobs = campaign.jobs.clamp(1, campaign.seeds.max(1));
    if campaign.verbose {
        campaign.jobs = 1;
    }
    Ok(Some(campaign))
}

/// Builds the simulator in the workspace at `root`, and returns its binary.
pub fn build(root: &Path) -> Result<PathBuf> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--profile", "sim", "-p", "sim", "--bin", "sim"])
        .current_dir(root)
        .status()
        .context("cargo could not be started")?;
    if !status.success() {
        bail!("the simulator does not build");
    }
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => PathBuf::from(target),
        None => root.join("target"),
    };
    Ok(target.join("sim").join("sim"))
}

/// Runs a campaign and adds up what its processes say.
pub fn run(binary: &Path, campaign: &Campaign) -> Result<Report> {
    let mut children = Vec::new();
    for job in 0..campaign.jobs {
        let share = (campaign.seeds + campaign.jobs - 1 - job) / campaign.jobs;
        children.push(spawn(binary, campaign, campaign.start + job, share)?);
    }
    let mut report = Report::default();
    std::thread::scope(|scope| -> Result<()> {
        let readers: Vec<_> = children
            .iter_mut()
            .map(|child| {
                let output = child.stdout.take().expect("its output is piped");
                scope.spawn(move || read(BufReader::new(output), campaign.verbose))
            })
            .collect();
        for reader in readers {
            report.add(reader.join().expect("a reader does not panic")?);
        }
        Ok(())
    })?;
    for mut child in children {
        let status = child.wait()?;
        // 0 and 1 are verdicts; anything else is the simulator itself failing.
        if !matches!(status.code(), Some(0 | 1)) {
            bail!("a simulator process ended with {status}");
        }
    }
    report.violations.sort();
    Ok(report)
}

fn spawn(binary: &Path, campaign: &Campaign, start: u64, seeds: u64) -> Result<Child> {
    let mut command = Command::new(binary);
    command
        .args(["--start", &start.to_string(), "--seeds", &seeds.to_string()])
        .args(["--step", &campaign.jobs.to_string()])
        .args(["--failures", &campaign.failures.to_string()])
        .stdout(Stdio::piped());
    if campaign.verbose {
        command.arg("--verbose");
    }
    command.args(campaign.kind.option());
    if let Some(place) = &campaign.watch {
        command.args(["--watch", place]);
    }
    command.spawn().with_context(|| format!("{} could not be started", binary.display()))
}

fn read(output: impl BufRead, echo: bool) -> Result<Report> {
    let mut report = Report::default();
    for line in output.lines() {
        let line = line?;
        if echo {
            println!("{line}");
            continue;
        }
        if let Some(violation) = line.strip_prefix("violation ") {
            let (seed, text) = violation.split_once(' ').context("a violation names its seed")?;
            report.violations.push((seed.parse()?, text.to_owned()));
        } else if let Some((key, value)) = line.split_once(' ') {
            *report.totals.entry(key.to_owned()).or_default() += value.parse::<u64>()?;
        }
    }
    Ok(report)
}

impl Report {
    fn add(&mut self, other: Report) {
        for (key, value) in other.totals {
            *self.totals.entry(key).or_default() += value;
        }
        self.violations.extend(other.violations);
    }

    fn total(&self, key: &str) -> u64 {
        self.totals.get(key).copied().unwrap_or(0)
    }
}

fn print(report: &Report, seconds: f64) {
    let seeds = report.total("seeds");
    println!(
        "{seeds} seeds in {seconds:.1} s ({:.0} seeds/s), {:.1} simulated hours, {} events",
        seeds as f64 / seconds,
        report.total("virtual-seconds") as f64 / 3600.0,
        report.total("events"),
    );
    println!(
        "{} writes acknowledged, {} reads checked, {} requests failed, {} promotions, {} resyncs",
        report.total("writes"),
        report.total("reads"),
        report.total("failed-requests"),
        report.total("promotions"),
        report.total("resyncs"),
    );
    let faults: Vec<String> = report
        .totals
        .iter()
        .filter_map(|(key, count)| Some(format!("{} {count}", key.strip_prefix("fault-")?)))
        .collect();
    println!("faults: {}", faults.join(", "));
}
