//! The binary: one program for the operator's commands and for the engine they talk to.
//!
//! - The operator's commands are those of `surfaces::cli`, those about a control plane of
//!   `surfaces::cli::cluster`.
//! - Started by the name `drbdsetup`, it is that program: `surfaces::drbdsetup`.
//! - `engine`: the data plane's daemon. `face`: what it starts for some block devices, `ublk-owner`: what udev asks about others. `agent` and `controller`: the daemons of
//!   the control plane. `node`: how nodes join it, and commands about them. `demo`: a cluster on this machine, to see it work.
//! - `man`, `completions`: files made from the command line's declaration.

mod agent;
mod controller;
mod demo;
mod docs;
mod engine;
mod face;
mod node;
mod ublk_owner;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use surfaces::cli::cluster::Look;
use surfaces::{cli, drbdsetup};

/// Replicated block storage in user space, compatible with DRBD
#[derive(Parser, Debug)]
#[command(name = "ashlar", version, after_long_help = docs::exit_status())]
#[command(arg_required_else_help = true, subcommand_required = true, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    common: cli::Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    #[command(flatten)]
    Operator(cli::Command),
    /// Nodes of a control plane: bring them in, look at them, empty them
    Node(node::Args),
    #[command(flatten)]
    Cluster(cli::cluster::Command),
    /// Run the engine in the foreground
    Engine(engine::Args),
    /// Serve a mapped volume as a file; the engine starts it where a device needs it
    #[command(hide = true)]
    Face(face::Args),
    /// Print who has made a device of ublk: user and group, for the rules of udev
    #[command(hide = true)]
    UblkOwner(ublk_owner::Args),
    /// Run the agent of a control plane in the foreground
    Agent(agent::Args),
    /// Run the controller of a cluster, with LINSTOR's REST API, in the foreground
    #[command(after_long_help = controller::HELP)]
    Controller(controller::Args),
    /// Show replication, failures and recovery on this machine, in half a minute
    #[command(after_long_help = demo::HELP)]
    Demo(demo::Args),
    /// Write a manual page per command into a directory
    Man {
        /// The directory; created if needed
        directory: PathBuf,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// The common options that a command honours.
fn honoured(command: &Command) -> Vec<&'static str> {
    match command {
        Command::Operator(command) => command.uses(),
        Command::Engine(_) => vec!["config", "socket", "node"],
        Command::Agent(_) => vec!["socket"],
        Command::Node(args) => args.uses(),
        Command::Cluster(command) => command.uses(),
        Command::Demo(_) => vec!["json"],
        Command::Controller(args) => args.uses(),
        Command::Face(_)
        | Command::UblkOwner(_)
        | Command::Man { .. }
        | Command::Completions { .. } => Vec::new(),
    }
}

/// Parses the command line. An option that the command would ignore is an error.
fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut declared = Cli::command();
    let matches = declared.try_get_matches_from_mut(words)?;
    let cli = Cli::from_arg_matches(&matches)?;
    let honoured = honoured(&cli.command);
    let name = matches.subcommand_name().unwrap_or_default();
    let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let common = cli::Common::augment_args(clap::Command::new("common"));
    for option in common.get_arguments().map(|a| a.get_id().as_str()) {
        if given(option) && !honoured.contains(&option) {
            let option = option.replace('_', "-");
            let text = format!("`ashlar {name}` does not use --{option} here; leave it out");
            return Err(declared.error(ErrorKind::ArgumentConflict, text));
        }
    }
    if let (Command::Node(args), Some(own)) = (&cli.command, matches.subcommand_matches("node")) {
        let asking = cli::cluster::Controllers::augment_args(clap::Command::new("asking"));
        let given = |id: &str| own.value_source(id) == Some(ValueSource::CommandLine);
        let mut options = asking.get_arguments().map(|a| a.get_id().as_str());
        if let Some(option) = options.find(|id| !args.asks_a_controller() && given(id)) {
            let option = option.replace('_', "-");
            let text =
                format!("this command of `ashlar node` does not use --{option}; leave it out");
            return Err(declared.error(ErrorKind::ArgumentConflict, text));
        }
    }
    if let (Command::Operator(command), true) = (&cli.command, cli.common.json) {
        if let Some(text) = command.without_effect_on_json() {
            let text = format!("{text}; leave it out, or --json");
            return Err(declared.error(ErrorKind::ArgumentConflict, text));
        }
    }
    Ok(cli)
}

fn main() -> ExitCode {
    if let Some(status) = as_drbdsetup(std::env::args_os()) {
        return status;
    }
    let Cli { common, command } = parse(std::env::args_os()).unwrap_or_else(|e| e.exit());
    let result = match &command {
        Command::Operator(_) | Command::Node(_) | Command::Cluster(_) => {
            return operator(&command, &common);
        }
        Command::Engine(args) => engine::run(args, &common),
        Command::Face(args) => face::run(args),
        Command::UblkOwner(args) => ublk_owner::run(args),
        Command::Agent(args) => agent::run(args, &common),
        Command::Controller(args) => controller::run(args, &common),
        Command::Demo(args) => return demo::run(args, common.json),
        Command::Man { directory } => docs::write_manual(Cli::command(), directory),
        Command::Completions { shell } => docs::write_completions(Cli::command(), *shell),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // The chain of causes in one line: what failed, then why.
            let _ = writeln!(io::stderr(), "ashlar: {e:#}");
            ExitCode::from(20)
        }
    }
}

/// Runs as drbdsetup if the program was started by that name: through a link, by drbdadm.
fn as_drbdsetup(mut words: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let program = PathBuf::from(words.next()?);
    if program.file_name()? != drbdsetup::NAME {
        return None;
    }
    // A word that is not UTF-8 names nothing that there could be, and is refused as what it is.
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let (mut out, mut err) = (io::BufWriter::new(io::stdout()), io::stderr());
    let machine = match drbdsetup::Machine::this() {
        Ok(machine) => machine,
        Err(text) => {
            let _ = writeln!(err, "drbdsetup: {text}");
            return Some(ExitCode::from(20));
        }
    };
    let status = drbdsetup::run(&words, &machine, &mut out, &mut err);
    // What is left of the output has nobody to read it.
    let _ = out.flush();
    Some(ExitCode::from(status))
}

/// Why a command of an operator did not succeed.
#[derive(Debug)]
enum Failure {
    /// As its surface says.
    Surface(cli::Error),
    /// Something else: what failed, then why.
    Other(anyhow::Error),
}

impl From<cli::Error> for Failure {
    fn from(e: cli::Error) -> Failure {
        Failure::Surface(e)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(e: anyhow::Error) -> Failure {
        Failure::Other(e)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Surface(e) => e.fmt(f),
            Failure::Other(e) => write!(f, "{e:#}"),
        }
    }
}

/// Carries out one of the commands that ask something and print.
fn carry_out(
    command: &Command,
    common: &cli::Common,
    look: Look,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<(), Failure> {
    match command {
        Command::Operator(command) => Ok(cli::run(command, common, out, err)?),
        Command::Cluster(command) => Ok(cli::cluster::run(command, common, look, out, err)?),
        Command::Node(args) => node::run(args, common, look, out, err),
        other => Err(anyhow::anyhow!("{other:?} is not a command that asks and prints").into()),
    }
}

fn operator(command: &Command, common: &cli::Common) -> ExitCode {
    let (mut out, mut err) = (io::stdout().lock(), io::stderr());
    let result = carry_out(command, common, Look::of_stdout(), &mut out, &mut err);
    let flushed = |()| out.flush().map_err(|e| Failure::Surface(cli::Error::Output(e)));
    match result.and_then(flushed) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough.
        Err(Failure::Surface(cli::Error::Output(e))) if e.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            let _ = writeln!(err, "ashlar: {failure}");
            ExitCode::from(match failure {
                Failure::Surface(e) => e.status(),
                Failure::Other(_) => 20,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_gets_a_manual_page_with_exit_statuses() {
        let directory = tempfile::tempdir().unwrap();
        docs::write_manual(Cli::command(), directory.path()).unwrap();
        for page in [
            "ashlar.1",
            "ashlar-status.1",
            "ashlar-create-md.1",
            "ashlar-engine.1",
            "ashlar-node-drain.1",
            "ashlar-resource-group-spawn.1",
            "ashlar-volume-why.1",
        ] {
            let text = std::fs::read_to_string(directory.path().join(page)).expect(page);
            assert!(text.contains("Exit status"), "{page}");
        }
    }

    #[test]
    fn common_options_that_a_command_does_not_use_are_refused() {
        let parse = |line: &str| parse(line.split(' ').map(OsString::from));
        for line in [
            "ashlar demo --socket /s",
            "ashlar -c /f demo",
            "ashlar engine --timeout 5",
            "ashlar status -c /nonexistent",
            "ashlar status --node zzz",
            "ashlar down r0 --config /f",
            "ashlar down r0 --json",
            "ashlar create-md r0 --json",
            "ashlar up r0 --json",
            "ashlar attach r0 --json",
            "ashlar primary r0 --node a",
            "ashlar status --json -vv",
            "ashlar status --json -s",
            "ashlar status --json --color always",
            "ashlar events --json --timestamps",
            "ashlar top --node a",
            "ashlar doctor r0 --serve --json",
            "ashlar doctor r0 --node a",
            "ashlar agent --node a",
            "ashlar node join T --socket /s",
            "ashlar node token --address h --node a",
            "ashlar controller --socket /s",
            "ashlar controller --json",
            "ashlar node join T --controllers c",
            "ashlar node join T --json",
            "ashlar node drain a --json",
            "ashlar node create a=10.0.0.1 --json",
            "ashlar volume list --socket /s",
            "ashlar group spawn g v 1G --json",
            "ashlar snapshot list --node a",
            "ashlar controller token revoke ci --json",
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains("leave it out"), "{error}");
        }
        for line in [
            "ashlar demo --json",
            "ashlar status --socket /s",
            "ashlar --node a engine",
            "ashlar agent --socket /s --state-dir /d",
            "ashlar node join T --node a",
            "ashlar status -vv -s --color always",
            "ashlar status --json --watch --color never",
            "ashlar events --json -s",
            "ashlar events --timestamps",
            "ashlar up r0 -c /f --node a --dry-run --json",
            "ashlar create-md r0 -d --json",
            "ashlar invalidate r0 -d --json",
            "ashlar attach r0 -c /f",
            "ashlar why r0 --json",
            "ashlar top r0 --once --json --sort latency --interval 5",
            "ashlar engine --metrics 127.0.0.1:9942",
            "ashlar controller --data-dir /d --listen [::1]:3370",
            "ashlar controller --rest-tls",
            "ashlar controller --rest-tls=10.0.0.1:3371 --rest-name a --rest-name b --require-token",
            "ashlar controller --rest-tls --rest-certificate /c --rest-key /k --rest-client-ca /a",
            "ashlar controller token list --json --timeout 5",
            "ashlar controller token create ci --role user --days 30",
            "ashlar controller audit --json --limit 5",
            "ashlar doctor r0 --json --scratch /srv",
            "ashlar doctor r0 --serve",
            "ashlar exports --json",
            "ashlar export r0 --json",
            "ashlar node list --json --controllers c",
            "ashlar node --ca /f token --address h --timeout 5",
            "ashlar node --controllers c drain a --timeout 600",
            "ashlar node create a=10.0.0.1 b=10.0.0.2 --invite 10.0.0.9",
            "ashlar volume list --json --timeout 5 --ca /f",
            "ashlar resource-group spawn g v 1G --token-file /f",
            "ashlar pool list --json",
            "ashlar demo --cluster --keep --size 32M",
        ] {
            parse(line).expect(line);
        }
    }

    #[test]
    fn flags_may_stand_before_and_after_the_command() {
        for words in [["--json", "status"], ["status", "--json"]] {
            let cli = Cli::try_parse_from(["ashlar"].iter().chain(&words)).unwrap();
            assert!(cli.common.json);
        }
        assert!(Cli::try_parse_from(["ashlar", "status", "--watch=2", "-vv", "r0"]).is_ok());
        assert!(Cli::try_parse_from(["ashlar", "status", "--timeout", "0"]).is_err());
        assert!(Cli::try_parse_from(["ashlar", "export", "r0/0", "--listen", "here"]).is_err());
    }
}
