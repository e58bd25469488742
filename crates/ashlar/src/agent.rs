//! `ashlar agent` and `ashlar node`: the node's end of a control plane.
//!
//! Only the arguments are read here; everything else is the crate `agent`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use api::token::Token;
use cluster::name::NodeName;
use surfaces::cli;

use crate::controller;

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
    /// Make a token with which a node can join once; on the controller's host
    Token {
        /// The node that may use it [default: any]
        #[arg(value_name = "NODE")]
        joins: Option<String>,
        /// Where nodes reach this controller; the port may be left out
        #[arg(long, value_name = "HOST[:PORT]")]
        address: String,
        /// Hours for which it can be used
        #[arg(long, value_name = "HOURS", default_value_t = 24,
              value_parser = clap::value_parser!(u32).range(1..=8760))]
        hours: u32,
        /// Directory of the controller
        #[arg(long, value_name = "DIRECTORY", default_value = controller::DEFAULT_DATA_DIR)]
        data_dir: PathBuf,
    },
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
    match command {
        NodeCommand::Token { joins, address, hours, data_dir } => {
            make_token(joins.as_deref(), address, *hours, data_dir)
        }
        NodeCommand::Join { token, state_dir } => join(token, state_dir, common),
    }
}

fn make_token(
    node: Option<&str>,
    address: &str,
    hours: u32,
    data_dir: &Path,
) -> anyhow::Result<()> {
    let node = node.map(NodeName::new).transpose()?;
    let address = with_port(address);
    let within = Duration::from_secs(3600 * u64::from(hours));
    let data = std::path::absolute(data_dir)?;
    let token = ::controller::daemon::token(&data, &address, node, within)
        .with_context(|| format!("no token can be kept in {}", data.display()))?;
    writeln!(io::stdout(), "{token}")?;
    Ok(())
}

/// The address with the port of the link, if it has none.
fn with_port(address: &str) -> String {
    let after_brackets = address.rsplit_once(']').map_or(address, |(_, rest)| rest);
    let bare_v6 = address.parse::<std::net::Ipv6Addr>().is_ok();
    match (bare_v6, after_brackets.contains(':')) {
        (true, _) => format!("[{address}]:{}", controller::AGENTS_PORT),
        (false, true) => address.to_owned(),
        (false, false) => format!("{address}:{}", controller::AGENTS_PORT),
    }
}

fn join(token: &str, state_dir: &Path, common: &cli::Common) -> anyhow::Result<()> {
    let token = match token {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_port_gets_that_of_the_link() {
        for (given, expected) in [
            ("10.0.0.1", "10.0.0.1:3377"),
            ("10.0.0.1:77", "10.0.0.1:77"),
            ("host.example", "host.example:3377"),
            ("fd00::1", "[fd00::1]:3377"),
            ("[fd00::1]", "[fd00::1]:3377"),
            ("[fd00::1]:77", "[fd00::1]:77"),
        ] {
            assert_eq!(with_port(given), expected);
        }
    }
}
