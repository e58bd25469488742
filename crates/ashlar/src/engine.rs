//! `ashlar engine`: starts the data-plane daemon in this process.
//!
//! Only the arguments are read here; everything else is the crate `engine`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use surfaces::cli;

/// Where configuration is kept over a restart.
const DEFAULT_STATE_DIR: &str = "/var/lib/ashlar";

/// What kernel nodes call.
const DEFAULT_HELPER: &str = "/sbin/drbdadm";

/// Arguments of `ashlar engine`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Directory where the engine keeps what it was told
    #[arg(long, value_name = "DIRECTORY", default_value = DEFAULT_STATE_DIR)]
    state_dir: PathBuf,
    /// Program called when something happens to resources that drbdadm has configured, as `PROGRAM
    /// EVENT RESOURCE`; `disabled` for none
    #[arg(long, value_name = "PATH", default_value = DEFAULT_HELPER)]
    usermode_helper: PathBuf,
    /// Serve metrics for Prometheus at http://ADDRESS:PORT/metrics, to whoever can reach it
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Most detailed lines of the log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: vocab::LogLevel,
    /// Worker threads [default: one per usable CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Keep each worker thread on a CPU of its own: for hosts that do nothing but storage
    #[arg(long)]
    pin: bool,
    /// Microseconds to look for the next event before a worker thread sleeps, while events are that
    /// close to each other: lower latency for CPU time; an idle engine sleeps all the same. 0: never
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=1000))]
    busy_poll: u16,
    /// Memory for data in flight per worker thread, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(16..=65_536))]
    buffers: u32,
    /// Seconds that ending in peace may take
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    exit_timeout: u16,
    /// Make a block device of every volume, with the names of DRBD's (/dev/drbdMINOR), which opens its volume while
    /// somebody uses it, as `ashlar map --standby --drbd-names` does; auto: where the kernel has ublk
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Devices::No)]
    devices: Devices,
    /// Take over from the engine at the other end of standard input, which has started this one
    #[arg(long, hide = true)]
    heir: bool,
}

/// Whether all volumes have block devices.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Devices {
    No,
    Auto,
    Yes,
}

/// Serves the control socket until told to shut down. With `--config` the resources of that file
/// are brought up, too.
pub fn run(args: &Args, common: &cli::Common) -> anyhow::Result<()> {
    let absolute = |path: &Path| std::path::absolute(path);
    let options = engine::Options {
        socket: absolute(&common.socket)?,
        state_dir: absolute(&args.state_dir)?,
        config: common.config.clone(),
        node: common.node.clone(),
        helper: Some(args.usermode_helper.clone()).filter(|path| path.as_os_str() != "disabled"),
        metrics: args.metrics,
        log_level: args.log_level,
        threads: args.threads.map(usize::from),
        pin: args.pin,
        busy_poll: Duration::from_micros(args.busy_poll.into()),
        buffers: (args.buffers as usize) << 20,
        exit_timeout: Duration::from_secs(args.exit_timeout.into()),
        devices: match args.devices {
            Devices::No => engine::Devices::No,
            Devices::Auto => engine::Devices::Auto,
            Devices::Yes => engine::Devices::Yes,
        },
        heir: args.heir,
    };
    Ok(engine::run(&options)?)
}
