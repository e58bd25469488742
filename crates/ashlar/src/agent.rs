//! `ashlar agent` and `ashlar node`: the node's end of a control plane.
//!
//! Only the arguments are read here; everything else is the crate `agent`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use api::token::Token;
use cluster::name::NodeName;
use surfaces::cli;

/// Where the agent keeps what it has made, and who this node is.
const DEFAULT_STATE_DIR: &str = "/var/lib/ashlar/agent";

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
}

/// Commands of `ashlar node`.
#[derive(clap::Subcommand, Debug)]
pub enum NodeCommand {
    /// Join with a token that the controller has made; it is asked for if it is `-`
    Join {
        /// The token
        token: String,
        /// Directory of the agent
        #[arg(long, value_name = "DIRECTORY", default_value = DEFAULT_STATE_DIR)]
        state_dir: PathBuf,
    },
}

/// Runs the agent until it is ended.
pub fn run(args: &Args, common: &cli::Common) -> anyhow::Result<()> {
    let options = agent::daemon::Options {
        directory: std::path::absolute(&args.state_dir)?,
        socket: std::path::absolute(&common.socket)?,
        suspend_for: Duration::from_secs(args.suspend_timeout.into()),
        files_below: args.files_below.clone(),
    };
    Ok(agent::daemon::run(&options)?)
}

/// Carries out a command of `ashlar node`.
pub fn node(command: &NodeCommand, common: &cli::Common) -> anyhow::Result<()> {
    let NodeCommand::Join { token, state_dir } = command;
    let token = match token.as_str() {
        // Whoever lists this machine's processes does not see it then.
        "-" => io::read_to_string(io::stdin()).context("the token could not be read")?,
        token => token.to_owned(),
    };
    let token: Token = token.parse()?;
    let name = match &common.node {
        Some(name) => name.clone(),
        None => host_name()?,
    };
    let node = NodeName::new(&name).with_context(|| format!("{name} can not be a node"))?;
    let identity = agent::link::join(state_dir, &node, &token)?;
    writeln!(io::stdout(), "{node} has joined the controller at {}", identity.controller)?;
    Ok(())
}

fn host_name() -> anyhow::Result<String> {
    const PATH: &str = "/proc/sys/kernel/hostname";
    let name = std::fs::read_to_string(PATH).with_context(|| format!("{PATH} can not be read"))?;
    Ok(name.trim().to_owned())
}
