//! `cargo xtask bench`: what replicated I/O costs, measured on real engines.
//!
//! Engines of the release profile run on loopback addresses with files as disks, fio reads and
//! writes through NBD, and the kernel's and the engines' own counters are compared before and
//! after. The figures in docs/performance.md come from here.
//!
//! - `table`: every row on every system; `options`: its arguments; `rows`: what is done;
//!   `bed`: the systems, with `cluster` for ours and `peers` for others', and `place`, where their
//!   disks lie.
//! - `results`: the figures; `statistics`: medians and noise; `report`, `chart`, `history`: what
//!   becomes of them.
//! - `targets`: what the project wants to reach, each with a verdict; `control`: the same of the
//!   control plane.
//! - `writes` with `profile`, `shares`, `activity_log`, `idle`, `integrity`, `faces`, `deaths`, `resync`:
//!   closer looks at one thing each.
//! - `fio`, `cpu`, `limit`, `namespace`: the client, CPU time, disks of a known speed, and processes
//!   that all end together.

mod activity_log;
mod bed;
mod chart;
mod cluster;
mod control;
mod cpu;
mod deaths;
mod faces;
mod fio;
mod history;
mod idle;
mod integrity;
mod limit;
mod namespace;
mod options;
mod peers;
mod place;
mod profile;
mod report;
mod results;
mod resync;
mod rows;
pub mod shares;
mod statistics;
mod table;
mod targets;
mod writes;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::workspace::{self, Metadata};
use cluster::{Cluster, Shape};

const HELP: &str = "\
cargo xtask bench [table] [OPTION...]
    Every row of the table on raw storage, on a node with a replica and on one without a disk, for
    disks in memory (/dev/shm) and on files (TMPDIR); takes about an hour. Needs fio with NBD.
    --rows NAME,...      only these; a wrong name lists them. Also: one, jobs, volumes
    --rounds N           runs of each row (default 5)
    --seconds S          of each run (default 3)
    --volumes N          of the rows of several volumes (default 8)
    --mib M              size of each volume (default 256)
    --disks D            ram, file or both (default)
    --client-node C      local, diskless or both (default)
    --peers NAME,...     others, with the same jobs: qemu-nbd, nbdkit, tgt (one copy each); ceph,
                         gluster (three copies; gluster needs root)
    --compare REV        this tree and that git revision by turns, instead of raw storage
    --json FILE          every run (default target/bench/table.json)
    --svg FILE           a chart (default target/bench/table.svg)
    --history FILE       a line is added, and compared (default target/bench/history.jsonl)
    --quick              less than a minute, after the build: shows that it works; no figures
cargo xtask bench targets [OPTION...]
    What the project wants to reach: each target as a ratio within one run, with its limit and
    whether it holds; takes about 20 minutes. Needs what the table needs, root for disks of a
    limited speed and for 6,000 volumes, and tgt: what lacks is named and not measured. Fails if
    something that was measured does not hold.
    --only NAME,...      cpu, latency, disk-limit, sequential, diskless, activity-log, idle, scale
    --rounds N           of each target (default 5)
    --seconds S          of each run (default 2)
    --mib M              size of each volume (default 256; four times that for sequential)
    --idle-volumes N     of idle, and of the latency of scale (default 300)
    --json FILE          every round (default target/bench/targets.json)
    --history FILE       a line for each target is added, and compared (default
                         target/bench/targets.jsonl)
    --quick              two minutes, after the build: shows that it works; no figures
cargo xtask bench control [OPTION...]
    What the control plane costs as it grows: a real controller with simulated agents, each figure
    with its limit and whether it holds. Fails if one does not hold.
    --volumes N,...      of three replicas each (default 100,1000,10000)
    --calls N            of each list (default 100)
    --json FILE          every figure (default target/bench/control.json)
    --quick              seconds, after the build: shows that it works; no figures
cargo xtask bench --guest [--newest]
    Some rows on a volume mapped as a block device, by each face in turn, and on the same over NBD by fio's
    client, all within an emulated guest: figures to compare with each other, not with those of the table. Needs root.
    With --newest the guest has the newest kernel. ASHLAR_BINARY=PATH has it without a build.
cargo xtask bench chart FILE... --svg FILE
    The table and the chart of what --json has kept, in one run or in several that differ in rows.
cargo xtask bench NAME [--nodes N] [--seconds S] [--depth D] [--mib M] [--al-extents E] [--profile]
                       [--volumes V] [--json]
    activity-log         metadata writes per data write: cold, then hot; fails where they are more
                         than one for 60 at depth 64, or any at all while extents are hot
    writes               CPU time of the whole machine per 4 KiB write
    shares               CPU time per 4 KiB request of each engine, of the client and of the whole
                         machine, for reads and writes, on a node with a replica and on one without
                         a disk, at depths 1 to 64; disks in memory (/dev/shm), volumes of 256 MiB.
                         What `cargo xtask scaling` counts with.
    idle                 memory and CPU time of engines with V connected volumes that nobody uses
    integrity            CPU time of all engines per 4 KiB write with data-integrity-alg crc32c, with
                         tls, and with neither, by turns; seven runs of each. Needs openssl
    faces                IOPS, latency and CPU time of the whole machine per 4 KiB request over NBD, on a
                         loop device (`ashlar map`) and over vhost-user, at depths 1 and 32; disks in
                         memory, volumes of 256 MiB. Needs root
    deaths               how long a write waits when the engine is killed and at once started again, over NBD,
                         on a loop device and over vhost-user, by clients that write one block after
                         the other and go on with the next engine; eleven deaths each. Needs root
    Replicas on N nodes (default 3), each round S seconds (default 10), D requests in flight
    (default 64, else 32), volumes of M MiB (default 4096, 1024, 64 and 256), activity logs of E extents,
    V volumes (default 300; only idle has several).
    --profile (of writes) says where the engines spend it; needs Linux' perf.
    --json (of integrity, shares, faces and deaths) prints every run and the medians as JSON.
    The disks are files in TMPDIR, unless said otherwise; it should be on a real file system.
cargo xtask bench resync [OPTION...]
    How fast one of three replicas is resynced, and what an application notices of it.
    --rounds N           with and without a resync by turns (default 5)
    --seconds S          of each run of the application (default 3)
    --mib M              size of the volume (default 2048); a resync lasts for a run's first second
    --disks D            ram, file or both (default)
    --disk-options TEXT  lines for the section disk, such as 'c-max-rate 100M;'
    --json               every round";

/// What to measure, and how.
#[derive(Clone, Debug)]
struct Options {
    nodes: usize,
    seconds: u64,
    /// They were asked for.
    timed: bool,
    depth: Option<u32>,
    mib: Option<u64>,
    al_extents: Option<u32>,
    volumes: Option<usize>,
    profile: bool,
    json: bool,
}

impl Options {
    /// Engines with one volume, of one thread each.
    fn cluster(&self, program: &Path, mib: u64, disk: String) -> Result<Cluster> {
        let directory = tempfile::Builder::new().prefix("ashlar-bench").tempdir()?;
        let replicas = self.nodes;
        let shape = Shape {
            replicas,
            diskless: false,
            volumes: 1,
            mib,
            sparse: false,
            served: 1,
            net: Vec::new(),
            disk,
            quorum: false,
            engine: &["--threads=1"],
        };
        Cluster::start(program, directory, shape)
    }
}

/// The command.
pub fn main(arguments: &[String]) -> Result<()> {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        println!("{HELP}");
        return Ok(());
    }
    if let [word, rest @ ..] = arguments
        && word == targets::floors::PEER
    {
        return targets::floors::peer(rest);
    }
    if let Some((first, rest)) = arguments.split_first()
        && first == "chart"
    {
        return chart::again(rest);
    }
    if arguments.iter().any(|argument| argument == "--guest") {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let newest = match words.as_slice() {
            ["--guest"] => false,
            ["--guest", "--newest"] => true,
            _ => bail!("--guest stands alone, or with --newest behind it\n{HELP}"),
        };
        process::watch_signals()?;
        // One that is built already, as for `cargo xtask vm`.
        let program = std::env::var_os("ASHLAR_BINARY").map(PathBuf::from);
        let program = program.map_or_else(|| build(false), Ok)?;
        return crate::vm::blockdev::bench::main(program, newest);
    }
    if arguments.iter().any(|argument| argument == "targets") {
        return targets::run(arguments);
    }
    if arguments.iter().any(|argument| argument == "control") {
        return control::run(arguments);
    }
    if arguments.iter().any(|argument| argument == "resync") {
        return resync::run(arguments);
    }
    let single_ones = ["writes", "activity-log", "shares", "idle", "integrity", "faces", "deaths"];
    match arguments.iter().any(|argument| single_ones.contains(&argument.as_str())) {
        true => single(arguments),
        false => table::run(arguments),
    }
}

/// A closer look at one thing.
fn single(arguments: &[String]) -> Result<()> {
    let mut options = Options {
        nodes: 3,
        seconds: 10,
        timed: false,
        depth: None,
        mib: None,
        al_extents: None,
        volumes: None,
        profile: false,
        json: false,
    };
    let mut name = None;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut number = || -> Result<u32> {
            let value = arguments.next().with_context(|| format!("{argument} needs a number"))?;
            value.parse().with_context(|| format!("{argument} needs a number, not {value}"))
        };
        match argument.as_str() {
            "--nodes" => options.nodes = number()? as usize,
            "--seconds" => (options.seconds, options.timed) = (u64::from(number()?), true),
            "--depth" => options.depth = Some(number()?),
            "--mib" => options.mib = Some(u64::from(number()?)),
            "--al-extents" => options.al_extents = Some(number()?),
            "--volumes" => options.volumes = Some(number()?.max(1) as usize),
            "--profile" => options.profile = true,
            "--json" => options.json = true,
            other if name.is_none() && !other.starts_with('-') => name = Some(other),
            other => bail!("{other} is not understood\n{HELP}"),
        }
    }
    if !(1..=cluster::NAMES.len()).contains(&options.nodes) {
        bail!("1 to {} nodes, not {}", cluster::NAMES.len(), options.nodes);
    }
    if name == Some("shares") && options.nodes == cluster::NAMES.len() {
        bail!("shares needs one more node, without a disk: {} at most with one", options.nodes - 1);
    }
    refuse_unused(name, &options)?;
    process::watch_signals()?;
    if name == Some("idle") {
        return idle::run(&build(false)?, &options);
    }
    if name == Some("deaths") {
        return deaths::run(&build(false)?, &options);
    }
    fio::require()?;
    match name {
        Some("activity-log") => activity_log::run(&build(false)?, &options),
        Some("integrity") => integrity::run(&build(false)?, &options),
        Some("faces") => faces::run(&build(false)?, &options),
        Some("shares") => shares::run(&build(false)?, &options),
        Some("writes") => writes::run(&build(options.profile)?, &options),
        Some(other) => bail!("{other} is not a measurement\n{HELP}"),
        None => bail!("{HELP}"),
    }
}

/// An option that the measurement does not honour is a mistake.
fn refuse_unused(name: Option<&str>, options: &Options) -> Result<()> {
    let (idle, integrity) = (name == Some("idle"), name == Some("integrity"));
    let (shares, deaths) = (name == Some("shares"), name == Some("deaths"));
    let faces = name == Some("faces") || deaths;
    let unused = [
        ("--volumes", !idle && options.volumes.is_some()),
        ("--seconds", deaths && options.timed),
        ("--depth", (idle || faces) && options.depth.is_some()),
        ("--al-extents", (idle || integrity || shares || faces) && options.al_extents.is_some()),
        ("--profile", name != Some("writes") && options.profile),
        ("--json", !integrity && !shares && !faces && options.json),
    ];
    match unused.iter().find(|(_, given)| *given) {
        Some((option, _)) => bail!("{option} is of no use for {}\n{HELP}", name.unwrap_or("this")),
        None => Ok(()),
    }
}

/// Builds the program as it is shipped, and returns where it is. With frame pointers perf sees who
/// called whom; that is another program, and built elsewhere.
fn build(frame_pointers: bool) -> Result<PathBuf> {
    let root = workspace::root();
    let mut target = Metadata::of(&root.join("Cargo.toml"))?.target_directory;
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--release", "--locked", "-p", "ashlar"]).current_dir(root);
    if frame_pointers {
        target = target.join("frame-pointers");
        cargo.env("RUSTFLAGS", "-Cforce-frame-pointers=yes").env("CARGO_TARGET_DIR", &target);
    }
    if !cargo.status().context("cargo could not be started")?.success() {
        bail!("the program does not build");
    }
    Ok(target.join("release").join("ashlar"))
}

/// Where what is not asked for by name goes.
fn folder() -> Result<PathBuf> {
    let manifest = workspace::root().join("Cargo.toml");
    Ok(Metadata::of(&manifest)?.target_directory.join("bench"))
}

/// A time for people.
fn words(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..=89 => format!("{seconds} s"),
        seconds => format!("{} min", (seconds + 30) / 60),
    }
}
