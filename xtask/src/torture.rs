//! `cargo xtask torture`: three real engines, each in a network namespace of its own, are killed,
//! stopped, restarted and cut off while a workload with a ledger and fio write through whichever
//! node is Primary. In the end nothing may be lost, stale or different.
//!
//! - `net`: namespaces and links; `nodes`: engines; `events`: what is done to them.
//! - `client`: the workload with a ledger, with `nbd` as its disk; `fio`: the other workload.

mod client;
mod events;
mod fio;
pub mod nbd;
mod net;
mod nodes;
pub mod random;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::workspace;
use client::{LANES, Lane, Shared};
use events::{Events, KINDS};
use fio::{Fio, Job, Rounds};
use net::Network;
use nodes::{Nodes, RESOURCE, VOLUMES, is_whole, list, stand_alone};

const HELP: &str = "\
cargo xtask torture [--seconds N] [--seed S] [--log-level LEVEL] [--keep]
    Runs three engines for N seconds (default 600) while they are killed, stopped, restarted and
    cut off, as the seed S (default: the time) says. Needs root, `ip` and fio.
    Logs and disks of a run that fails stay; --keep keeps those of any run.
    ASHLAR_BINARY names a binary to use instead of building one.";

/// The number of a node, from 1.
type Node = u8;
/// Nodes; all have disks.
const NODES: Node = 3;
/// How long the cluster may take to become whole after the last event.
const RECOVERY: Duration = Duration::from_secs(60);
/// How often the nodes are asked whether a connection was given up.
const LOOK: Duration = Duration::from_secs(2);
/// A run of so many seconds or more must have seen ...
const LONG: u64 = 600;
/// ... so many events of every kind.
const ENOUGH: u64 = 20;

struct Options {
    seconds: u64,
    seed: u64,
    log_level: String,
    keep: bool,
}

/// What a run came to.
#[derive(Default)]
struct Report {
    rounds: Rounds,
    /// Connections that were given up and had to be made again by an operator.
    given_up: u64,
    recovery: Duration,
    /// Bytes, on all volumes, that are not the same on all disks.
    different: u64,
}

/// The command.
pub fn main(arguments: &[String]) -> Result<()> {
    let Some(options) = parse(arguments)? else {
        println!("{HELP}");
        return Ok(());
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in signal_hook::consts::TERM_SIGNALS {
        signal_hook::flag::register(*signal, Arc::clone(&interrupted))?;
    }
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::clone(&interrupted))?;
    let binary = build()?;
    let folder = std::env::temp_dir().join(format!("ashlar-torture-{}", std::process::id()));
    fs::create_dir(&folder).with_context(|| format!("{} can not be made", folder.display()))?;
    println!("seed {}, {} s, in {}", options.seed, options.seconds, folder.display());
    let result = run(&options, binary, &folder, &interrupted);
    if (result.is_ok() && !options.keep) || interrupted.load(Ordering::Relaxed) {
        fs::remove_dir_all(&folder)?;
    } else {
        println!("logs and disks are in {}", folder.display());
    }
    result
}

fn parse(arguments: &[String]) -> Result<Option<Options>> {
    let time = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let seed = time.as_secs();
    let mut options = Options { seconds: LONG, seed, log_level: "debug".to_owned(), keep: false };
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{name} needs a value"));
        let number = |text: &String| {
            text.parse::<u64>().with_context(|| format!("{name} needs a number, not {text}"))
        };
        match name.as_str() {
            "--help" | "-h" => return Ok(None),
            "--keep" => options.keep = true,
            "--seconds" => options.seconds = number(value()?)?,
            "--seed" => options.seed = number(value()?)?,
            "--log-level" => options.log_level.clone_from(value()?),
            other => bail!("{other} is not an option\n{HELP}"),
        }
    }
    Ok(Some(options))
}

fn build() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("ASHLAR_BINARY") {
        return Ok(fs::canonicalize(path)?);
    }
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "-p", "ashlar"])
        .status()
        .context("cargo could not be started")?;
    ensure!(status.success(), "the engine does not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| workspace::root().join("target"));
    Ok(target.join("release").join("ashlar"))
}

fn run(
    options: &Options,
    binary: PathBuf,
    folder: &Path,
    interrupted: &Arc<AtomicBool>,
) -> Result<()> {
    let check = || match interrupted.load(Ordering::Relaxed) {
        true => bail!("interrupted; everything is removed"),
        false => Ok(()),
    };
    let network = Network::new()?;
    // Dropped before the network: engines end before what they run in.
    let mut nodes = Nodes::new(binary, folder, &network, options.log_level.clone())?;
    let mut report = Report::default();
    create(&mut nodes, &mut report, &check)?;
    let begin = Instant::now();
    let exports = |nr| (1..=NODES).map(|node| nodes.export(node, nr)).collect();
    let shared = Arc::new(Shared::new(exports(0), begin));
    let mut fio = Fio::new(folder, exports(1), options.seed);
    fio.once(&shared, 0, Job::Write).context("before the first event")?;

    let mut events = Events::new(options.seed, begin);
    let tasks = Tasks::start(&shared, &fio, options.seed);
    let result = torture(options, &mut nodes, &network, &mut events, &mut report, &check);
    let (lanes, rounds) = tasks.stop(&shared);
    result?;
    report.rounds = rounds?;
    let gap = shared.gap.lock().expect("nobody panics while holding it").1;

    let last = Instant::now();
    whole(&mut nodes, &mut report, &check)?;
    report.recovery = last.elapsed();
    prove(&mut nodes, &mut report, lanes, &shared, &mut fio, &check)?;
    tell(options, &events, &shared, &report, gap)
}

/// Brings the resource up everywhere, with disks that are known to be equal.
fn create(nodes: &mut Nodes, report: &mut Report, check: &dyn Fn() -> Result<()>) -> Result<()> {
    for node in 1..=NODES {
        nodes.start(node)?;
        nodes.ok(node, &["create-md", RESOURCE])?;
        nodes.ok(node, &["up", RESOURCE])?;
        for nr in VOLUMES {
            let listen = nodes.export(node, nr);
            let listen = listen.to_str().context("the folder's name is not UTF-8")?;
            let (volume, name) = (format!("{RESOURCE}/{nr}"), format!("v{nr}"));
            nodes.ok(node, &["export", &volume, "--name", &name, "--listen", listen])?;
        }
    }
    let connected = |nodes: &Nodes| -> Result<bool> {
        for node in 1..=NODES {
            let status = nodes.status(node)?;
            let connections = list(&status["connections"]);
            if connections.iter().any(|c| c["connection-state"] != "Connected") {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let end = Instant::now() + RECOVERY;
    while !connected(nodes)? {
        check()?;
        ensure!(Instant::now() < end, "the nodes do not connect");
        std::thread::sleep(Duration::from_millis(50));
    }
    for nr in VOLUMES {
        nodes.ok(1, &["new-current-uuid", "--clear-bitmap", &format!("{RESOURCE}/{nr}")])?;
    }
    whole(nodes, report, check)
}

/// The threads that read and write.
struct Tasks {
    lanes: Vec<std::thread::JoinHandle<Lane>>,
    fio: std::thread::JoinHandle<Result<Rounds>>,
}

impl Tasks {
    fn start(shared: &Arc<Shared>, fio: &Fio, seed: u64) -> Tasks {
        let lane = |lane| {
            let shared = Arc::clone(shared);
            std::thread::spawn(move || Lane::new(lane, seed).work(&shared))
        };
        let lanes = (0..LANES).map(lane).collect();
        let (fio, shared) = (fio.clone(), Arc::clone(shared));
        Tasks { lanes, fio: std::thread::spawn(move || fio.work(&shared)) }
    }

    fn stop(self, shared: &Shared) -> (Vec<Lane>, Result<Rounds>) {
        shared.stop.store(true, Ordering::Relaxed);
        let lanes = self.lanes.into_iter().map(|lane| lane.join().expect("no lane panics"));
        (lanes.collect(), self.fio.join().expect("it does not panic"))
    }
}

/// The events, for as long as it was asked.
fn torture(
    options: &Options,
    nodes: &mut Nodes,
    network: &Network,
    events: &mut Events,
    report: &mut Report,
    check: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let mut look = Instant::now() + LOOK;
    while Instant::now() < end {
        check()?;
        if let Some((node, status)) = nodes.casualty()? {
            bail!("the engine of n{node} ended by itself: {status}; see n{node}.log");
        }
        events.turn(nodes, network)?;
        if Instant::now() >= look {
            for node in (1..=NODES).filter(|node| nodes.runs(*node) && events.answers(*node)) {
                reconnect(nodes, node, report)?;
            }
            look = Instant::now() + LOOK;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    events.finish(nodes, network)
}

/// Makes connections again that a node gave up, as an operator would. Returns its status.
fn reconnect(nodes: &Nodes, node: Node, report: &mut Report) -> Result<serde_json::Value> {
    let status = nodes.status(node)?;
    let given_up = stand_alone(&status);
    if given_up > 0 {
        report.given_up += given_up as u64;
        println!("         n{node} stands alone towards {given_up} of its peers; connecting");
        nodes.ok(node, &["connect", RESOURCE])?;
    }
    Ok(status)
}

/// Waits until every node sees every disk UpToDate and equal.
fn whole(nodes: &mut Nodes, report: &mut Report, check: &dyn Fn() -> Result<()>) -> Result<()> {
    let end = Instant::now() + RECOVERY;
    loop {
        check()?;
        let mut all = true;
        for node in 1..=NODES {
            all &= is_whole(&reconnect(nodes, node, report)?);
        }
        if all {
            return Ok(());
        }
        if Instant::now() > end {
            for node in 1..=NODES {
                println!("==== n{node}\n{}", nodes.ok(node, &["status", "-vv", "-s"])?);
            }
            bail!("the cluster is not whole {} s after the last event", RECOVERY.as_secs());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Reads everything back through every node, and compares the disks.
fn prove(
    nodes: &mut Nodes,
    report: &mut Report,
    mut lanes: Vec<Lane>,
    shared: &Shared,
    fio: &mut Fio,
    check: &dyn Fn() -> Result<()>,
) -> Result<()> {
    for node in 1..=NODES {
        check()?;
        for lane in &mut lanes {
            let result = lane.read_back(shared, node as usize - 1);
            result.with_context(|| format!("reading back on n{node}"))?;
        }
        if let Err(e) = fio.once(shared, node as usize - 1, Job::Read) {
            report.rounds.corrupt.push(format!("in the end, on n{node}: {e:#}"));
        }
    }
    whole(nodes, report, check)?;
    let status = nodes.status(1)?;
    for node in 1..=NODES {
        nodes.stop(node)?;
    }
    for (nr, device) in VOLUMES.into_iter().zip(list(&status["devices"])) {
        let size = device["size"].as_u64().context("a device has a size")? * 1024;
        let disks: Vec<PathBuf> = (1..=NODES).map(|node| nodes.disk(node, nr)).collect();
        report.different += different(&disks, size)?;
    }
    Ok(())
}

/// Blocks of 4 KiB among the first `size` bytes that are not the same on all disks.
fn different(disks: &[PathBuf], size: u64) -> Result<u64> {
    let mut files = disks.iter().map(File::open).collect::<std::io::Result<Vec<_>>>()?;
    let mut blocks = vec![[0; client::BLOCK]; files.len()];
    let mut count = 0;
    for _ in 0..size / client::BLOCK as u64 {
        for (file, block) in files.iter_mut().zip(&mut blocks) {
            file.read_exact(block)?;
        }
        count += u64::from(blocks.iter().any(|block| *block != blocks[0]));
    }
    Ok(count)
}

/// Prints what it came to.
///
/// # Errors
/// What is not as it must be.
fn tell(
    options: &Options,
    events: &Events,
    shared: &Shared,
    report: &Report,
    gap: Duration,
) -> Result<()> {
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let count = |kind| events.counts.get(&kind).copied().unwrap_or(0);
    let counts: Vec<String> =
        KINDS.iter().map(|(kind, name)| format!("{name} {}", count(*kind))).collect();
    let (acked, stale, wrong) = (get(&shared.acked), get(&shared.stale), get(&shared.wrong));
    let rounds = &report.rounds;
    println!("seed {}, {} s", options.seed, options.seconds);
    println!("events: {}", counts.join(", "));
    println!(
        "writes acknowledged {acked}, reads checked {}, requests without an answer {}, longest \
         time without a write {:.1} s",
        get(&shared.reads),
        get(&shared.unanswered),
        gap.as_secs_f64()
    );
    println!(
        "fio: {} rounds verified, {} interrupted, {} hung, {} with wrong data",
        rounds.verified,
        rounds.interrupted,
        rounds.hung,
        rounds.corrupt.len()
    );
    println!(
        "lost or stale {stale}, wrong {wrong}, blocks that differ {}, connections given up {}, \
         whole after {:.1} s",
        report.different,
        report.given_up,
        report.recovery.as_secs_f64()
    );
    for line in shared.complaints.lock().expect("nobody panics while holding it").iter() {
        println!("{line}");
    }
    rounds.corrupt.iter().for_each(|text| println!("{text}"));
    ensure!(acked > 0, "no write was acknowledged");
    ensure!(stale + wrong == 0 && rounds.corrupt.is_empty(), "data was lost, stale or wrong");
    ensure!(report.different == 0, "the disks differ");
    // Without an operator they would still be down, and the next failure could cost quorum.
    ensure!(report.given_up == 0, "connections were given up for good; the data is whole");
    if options.seconds >= LONG {
        let rare = KINDS.iter().find(|(kind, _)| count(*kind) < ENOUGH);
        ensure!(rare.is_none(), "some kind of event happened less than {ENOUGH} times");
    }
    println!("nothing was lost, nothing stale, the disks are the same");
    Ok(())
}
