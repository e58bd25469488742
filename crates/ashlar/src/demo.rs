//! `ashlar demo`: the product in half a minute, on one machine, without root.
//!
//! - `story`: what happens, step by step; `screen`, `summary`: how it is told.
//! - `cluster`: engine processes on 127.0.0.1 to 127.0.0.4, driven by the operator's commands;
//!   `relay`: the network between them; `leftovers`: what has to be cleaned up.
//! - `control`: `--cluster`, the same for a control plane: a controller, agents, twenty volumes.
//! - `workload`: the application, with `nbd` as its disk; `block`: what it writes; `ledger`: what
//!   it was promised; `replicas`: the last look at the disks. `random`: the seed's choices.

mod block;
mod cluster;
mod control;
mod ledger;
mod leftovers;
mod nbd;
mod random;
mod relay;
mod replicas;
mod screen;
mod story;
mod summary;
mod watch;
mod workload;

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use cluster::Places;
use leftovers::Leftovers;
use screen::{Screen, Stream};
use summary::Summary;

/// The number of a node: the last byte of its address, and its node id.
type NodeNr = u8;

/// Smallest and largest disk, in bytes.
const SIZES: std::ops::RangeInclusive<u64> = 16 << 20..=64 << 30;

/// Size of a disk, and of a volume of the control plane, if none is given.
const DISK_SIZE: u64 = 256 << 20;
const CLUSTER_SIZE: u64 = 32 << 20;

/// The run ended with lost or stale data, or with replicas that differ.
const EXIT_BAD: u8 = 1;
/// The run could not be done.
const EXIT_FAILED: u8 = 20;
/// The run was ended by a signal.
const EXIT_INTERRUPTED: u8 = 130;

/// Arguments of `ashlar demo`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Show a control plane: nodes join, volumes are spawned, a node is drained, another one lost
    #[arg(long)]
    cluster: bool,
    /// Leave the cluster running and print how to use it; with --cluster until Ctrl-C
    #[arg(long)]
    keep: bool,
    /// Where the disks live [default: the folder for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Size of each disk, such as 64M or 1G [default: 256M, with --cluster 32M for each volume]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Repeat the run of this seed [default: a new one, printed]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Most detailed lines of the engines' logs: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: vocab::LogLevel,
}

/// The end of the help text.
pub const HELP: &str = "\
Everything happens on addresses of the loopback interface (127.0.0.1 to 127.0.0.4) and in a temporary folder,
and nothing of it remains, except with --keep, and except for the logs of a run that failed. With --cluster each
node has a network namespace of its own if root has `ip` and it works, and an address of another network of
127.0.0.0/8 elsewhere. With --cluster, snapshots need files that share blocks: where
the folder has none, root gets an XFS for the time of the run, and others go without that step.

Exit status:
  0    nothing lost, nothing stale, replicas identical
  1    anything else than that
  2    wrong usage of the command line
  20   the run could not be done; the message says why and where the logs are
  130  ended by a signal";

/// A signal asked for the end.
#[derive(Debug)]
struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted; everything is removed")
    }
}

impl std::error::Error for Interrupted {}

/// Bytes from `256M`, `256MiB`, `1G` or a plain number.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        unit => return Err(format!("`{unit}` is no unit; give K, M or G")),
    };
    let number: u64 = digits.parse().map_err(|_| "give a size such as 256M".to_owned())?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| SIZES.contains(bytes));
    let bytes = bytes.ok_or_else(|| "give 16M to 64G".to_owned())?;
    Ok(bytes - bytes % block::BLOCK as u64)
}

/// Tells the story; with `json` beside a result that is JSON.
pub fn run(args: &Args, json: bool) -> ExitCode {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if let Err(e) = signal_hook::flag::register(signal, Arc::clone(&interrupted)) {
            let _ = writeln!(io::stderr(), "ashlar: can not catch signals: {e}");
            return ExitCode::from(EXIT_FAILED);
        }
    }
    let leftovers = Leftovers::new();
    let stream = if json { Stream::Stderr } else { Stream::Stdout };
    let steps = if args.cluster { control::STEPS } else { story::STEPS };
    let mut screen = Screen::new(stream, steps);
    let result = tell(args, &leftovers, &interrupted, &mut screen);
    screen.rest();
    match result {
        Ok(told) => {
            let written = !json || write_json(&told);
            if written && args.cluster && args.keep {
                control::linger(&interrupted);
            }
            finish(args, &told, written, &leftovers, &mut screen)
        }
        Err(e) => {
            let stopped = interrupted.load(Ordering::Relaxed);
            let logs = leftovers.clean(!stopped);
            let mut err = io::stderr();
            let _ = if stopped {
                writeln!(err, "ashlar: {Interrupted}")
            } else {
                writeln!(err, "ashlar: the demo failed: {e:#}")
            };
            if let Some(logs) = logs {
                let _ = writeln!(err, "ashlar: the logs are in {}", logs.display());
            }
            ExitCode::from(if stopped { EXIT_INTERRUPTED } else { EXIT_FAILED })
        }
    }
}

/// What a run comes to.
#[derive(Serialize)]
#[serde(untagged)]
enum Told {
    Volume(Summary),
    Cluster(control::Summary),
}

impl Told {
    fn is_good(&self) -> bool {
        match self {
            Told::Volume(summary) => summary.is_good(),
            Told::Cluster(summary) => summary.is_good(),
        }
    }
}

fn write_json(told: &Told) -> bool {
    let text = serde_json::to_string(told).expect("numbers and strings are JSON");
    writeln!(io::stdout(), "{text}").is_ok()
}

fn tell(
    args: &Args,
    leftovers: &Leftovers,
    interrupted: &Arc<AtomicBool>,
    screen: &mut Screen,
) -> anyhow::Result<Told> {
    let run = cluster::run_folder()?;
    leftovers.folder(&run);
    let disks = match &args.dir {
        Some(dir) => {
            let parent = folder(dir)?;
            let disks = cluster::folder_in(&parent)?;
            leftovers.folder(&disks);
            disks
        }
        None => run.clone(),
    };
    let places = Places { run, disks, log_level: args.log_level };
    leftovers.logs(&places.logs());
    let seed = match args.seed {
        Some(seed) => seed,
        None => getrandom::u32().context("the kernel gives no random number")?.into(),
    };
    let default = if args.cluster { CLUSTER_SIZE } else { DISK_SIZE };
    let setting = story::Setting {
        places,
        disk_bytes: args.size.unwrap_or(default),
        seed,
        keep: args.keep,
        leftovers: leftovers.clone(),
        interrupted: Arc::clone(interrupted),
        screen,
    };
    match args.cluster {
        true => control::tell(setting).map(Told::Cluster),
        false => story::tell(setting).map(Told::Volume),
    }
}

/// The folder as an absolute path, since the engines are told.
fn folder(dir: &Path) -> anyhow::Result<PathBuf> {
    let found = dir.canonicalize().with_context(|| format!("can not use {}", dir.display()))?;
    anyhow::ensure!(found.is_dir(), "{} is not a folder", dir.display());
    Ok(found)
}

/// Cleans up, unless the cluster is to stay.
fn finish(
    args: &Args,
    told: &Told,
    written: bool,
    leftovers: &Leftovers,
    screen: &mut Screen,
) -> ExitCode {
    let good = told.is_good();
    if args.keep && !args.cluster {
        leftovers.keep();
    }
    let logs = leftovers.clean(!good);
    if !written {
        return ExitCode::from(EXIT_FAILED);
    }
    if let Some(logs) = logs {
        screen.line(&format!("The logs are in {}", logs.display()));
    }
    ExitCode::from(if good { 0 } else { EXIT_BAD })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_understood_and_limited() {
        for (text, bytes) in
            [("256M", 256 << 20), ("16MiB", 16 << 20), ("1G", 1 << 30), ("33554432", 32 << 20)]
        {
            assert_eq!(parse_size(text), Ok(bytes));
        }
        for text in ["", "M", "8M", "65G", "12X", "99999999999999999999", "18446744073709551615G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
