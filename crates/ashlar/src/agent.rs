//! `ashlar agent`: the node's end of a control plane.
//!
//! Only the arguments are read here; everything else is the crate `agent`.

use std::path::PathBuf;
use std::time::Duration;

use agent::mapper::Choice;
use surfaces::cli;

/// Where the agent keeps what it has made, and who this node is.
pub const DEFAULT_STATE_DIR: &str = "/var/lib/ashlar/agent";

/// Arguments of `ashlar agent`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Directory where the agent keeps what it has made
    #[arg(long, value_name = "DIRECTORY", default_value = DEFAULT_STATE_DIR)]
    state_dir: PathBuf,
    /// Seconds that I/O may be suspended for a snapshot; it goes on by itself then
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u16).range(1..=600))]
    suspend_timeout: u16,
    /// Directory below which the controller may put files [default: none]
    #[arg(long, value_name = "DIRECTORY")]
    files_below: Vec<PathBuf>,
    /// Who decrypts encrypted volumes that are made from now on: cryptsetup, so that they are below /dev/mapper
    /// (in pools of LVM and ZFS), the engine, or auto: cryptsetup where it and device-mapper can be used
    #[arg(long, value_name = "WHO", default_value_t = Choice::Auto)]
    luks: Choice,
    /// Most detailed lines of the log: error, warn, info, debug or trace; clients of the controller can
    /// change it
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: vocab::LogLevel,
}

/// Runs the agent until it is ended.
pub fn run(args: &Args, common: &cli::Common) -> anyhow::Result<()> {
    let options = agent::daemon::Options {
        directory: std::path::absolute(&args.state_dir)?,
        socket: std::path::absolute(&common.socket)?,
        suspend_for: Duration::from_secs(args.suspend_timeout.into()),
        files_below: args.files_below.clone(),
        luks: args.luks,
        program: std::env::current_exe().ok(),
        log_level: args.log_level,
    };
    Ok(agent::daemon::run(&options)?)
}
