//! `cargo xtask bench`: what replicated writes cost, measured on real engines.
//!
//! Engines of the release profile run on loopback addresses with files as disks, fio writes through
//! NBD, and the kernel's and the engines' own counters are compared before and after. The figures
//! in docs/performance.md come from here.

mod activity_log;
mod cluster;
mod fio;
mod profile;
mod writes;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace::{self, Metadata};

const HELP: &str = "\
cargo xtask bench NAME [--nodes N] [--seconds S] [--depth D] [--mib M] [--al-extents E] [--profile]
    activity-log   metadata writes per data write: cold, then hot
    writes         CPU time of the whole machine per 4 KiB write
    Replicas on N nodes (default 3), each round S seconds (default 10), D requests in flight
    (default 64 and 32), volumes of M MiB (default 4096 and 1024), activity logs of E extents.
    --profile says where the engines spend it; needs Linux' perf.
    The disks are files in TMPDIR; it should be on a real file system. Needs fio with NBD.";

/// What to measure, and how.
#[derive(Clone, Debug)]
struct Options {
    nodes: usize,
    seconds: u64,
    depth: Option<u32>,
    mib: Option<u64>,
    al_extents: Option<u32>,
    profile: bool,
}

/// The command.
pub fn main(arguments: &[String]) -> Result<()> {
    let mut options =
        Options { nodes: 3, seconds: 10, depth: None, mib: None, al_extents: None, profile: false };
    let mut name = None;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut number = || -> Result<u32> {
            let value = arguments.next().with_context(|| format!("{argument} needs a number"))?;
            value.parse().with_context(|| format!("{argument} needs a number, not {value}"))
        };
        match argument.as_str() {
            "--help" | "-h" => {
                println!("{HELP}");
                return Ok(());
            }
            "--nodes" => options.nodes = number()? as usize,
            "--seconds" => options.seconds = u64::from(number()?),
            "--depth" => options.depth = Some(number()?),
            "--mib" => options.mib = Some(u64::from(number()?)),
            "--al-extents" => options.al_extents = Some(number()?),
            "--profile" => options.profile = true,
            other if name.is_none() && !other.starts_with('-') => name = Some(other),
            other => bail!("{other} is not understood\n{HELP}"),
        }
    }
    if !(1..=cluster::NAMES.len()).contains(&options.nodes) {
        bail!("1 to {} nodes, not {}", cluster::NAMES.len(), options.nodes);
    }
    match name {
        Some("activity-log") => activity_log::run(&build(false)?, &options),
        Some("writes") => writes::run(&build(options.profile)?, &options),
        Some(other) => bail!("{other} is not a measurement\n{HELP}"),
        None => bail!("{HELP}"),
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
