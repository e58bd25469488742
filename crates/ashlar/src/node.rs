//! `ashlar node`: how nodes join a control plane, and the commands about them.
//!
//! Joining is the crate `agent`; the rest asks a controller, by `surfaces::cli::cluster`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use api::token::Token;
use cluster::name::NodeName;
use serde::Deserialize;
use serde_json::json;
use surfaces::cli;
use surfaces::cli::cluster::{Controllers, Http, Look, NewNode, new_node};

use crate::{Failure, agent, controller};

/// Hours for which a token can be used.
const HOURS: u32 = 24;

/// Arguments of `ashlar node`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    at: Controllers,
    #[command(subcommand)]
    command: NodeCommand,
}

/// Commands of `ashlar node`.
#[derive(clap::Subcommand, Debug)]
enum NodeCommand {
    /// Tell the controller of nodes
    ///
    /// With --invite it prints for each node the command with which that joins.
    Create {
        /// Name and address of each; the address is where replication goes
        #[arg(required = true, value_name = "NAME=ADDRESS", value_parser = new_node)]
        nodes: Vec<NewNode>,
        /// Make tokens for the nodes; this is where they reach this controller, with a port or not
        #[arg(long, value_name = "HOST[:PORT]")]
        invite: Option<String>,
    },
    /// Make a token with which a node can join once
    Token {
        /// The node that may use it [default: any]
        #[arg(value_name = "NODE")]
        joins: Option<String>,
        /// Where nodes reach this controller; the port may be left out
        #[arg(long, value_name = "HOST[:PORT]")]
        address: String,
        /// Hours for which it can be used
        #[arg(long, value_name = "HOURS", default_value_t = HOURS,
              value_parser = clap::value_parser!(u32).range(1..=8760))]
        hours: u32,
    },
    /// Join with a token that the controller has made; it is asked for if it is `-`
    Join {
        /// The token
        token: String,
        /// Directory of the agent
        #[arg(long, value_name = "DIRECTORY", default_value = agent::DEFAULT_STATE_DIR)]
        state_dir: PathBuf,
    },
    #[command(flatten)]
    Asking(cli::cluster::NodeCommand),
}

impl Args {
    /// The common options that the command acts on.
    pub fn uses(&self) -> Vec<&'static str> {
        match &self.command {
            NodeCommand::Create { .. } | NodeCommand::Token { .. } => vec!["timeout"],
            NodeCommand::Join { .. } => vec!["node"],
            NodeCommand::Asking(command) => command.uses(),
        }
    }

    /// True if the options that say which controller have an effect.
    pub fn asks_a_controller(&self) -> bool {
        !matches!(self.command, NodeCommand::Join { .. })
    }
}

/// Carries out a command of `ashlar node`.
pub fn run(
    args: &Args,
    common: &cli::Common,
    look: Look,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    match &args.command {
        NodeCommand::Asking(command) => {
            Ok(cli::cluster::run_node(command, &args.at, common, look, out, err)?)
        }
        NodeCommand::Create { nodes, invite } => {
            cli::cluster::create_nodes(nodes, &args.at, common, err)?;
            for NewNode { name, .. } in nodes {
                let Some(address) = invite else { break };
                let token = make_token(&args.at, common, Some(name), address, HOURS)?;
                let told = writeln!(out, "{name}: ashlar node join --node {name} {token}");
                told.map_err(cli::Error::Output)?;
            }
            Ok(())
        }
        NodeCommand::Token { joins, address, hours } => {
            let token = make_token(&args.at, common, joins.as_deref(), address, *hours)?;
            Ok(writeln!(out, "{token}").map_err(cli::Error::Output)?)
        }
        NodeCommand::Join { token, state_dir } => {
            let told = join(token, state_dir, common)?;
            Ok(writeln!(out, "{told}").map_err(cli::Error::Output)?)
        }
    }
}

fn make_token(
    at: &Controllers,
    common: &cli::Common,
    node: Option<&str>,
    address: &str,
    hours: u32,
) -> anyhow::Result<String> {
    #[derive(Deserialize)]
    struct Made {
        token: String,
    }
    let body = json!({ "node": node, "address": with_port(address), "hours": hours });
    let what = format!("token for {}", node.unwrap_or("any node"));
    let made: Made = Http::new(at, common.timeout)?.make(&what, "/v1/ashlar/join-tokens", body)?;
    Ok(made.token)
}

/// The address, or several with commas between, with the port of the link where there is none.
fn with_port(addresses: &str) -> String {
    let all: Vec<String> = addresses.split(',').map(one_with_port).collect();
    all.join(",")
}

fn one_with_port(address: &str) -> String {
    let after_brackets = address.rsplit_once(']').map_or(address, |(_, rest)| rest);
    let bare_v6 = address.parse::<std::net::Ipv6Addr>().is_ok();
    match (bare_v6, after_brackets.contains(':')) {
        (true, _) => format!("[{address}]:{}", controller::AGENTS_PORT),
        (false, true) => address.to_owned(),
        (false, false) => format!("{address}:{}", controller::AGENTS_PORT),
    }
}

/// Joins, and says what as.
fn join(token: &str, state_dir: &Path, common: &cli::Common) -> anyhow::Result<String> {
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
    let identity = ::agent::link::join(state_dir, &node, &token)?;
    Ok(format!("{node} has joined the controller at {}", identity.controller))
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
            ("10.0.0.1,host:77", "10.0.0.1:3377,host:77"),
        ] {
            assert_eq!(with_port(given), expected);
        }
    }
}
