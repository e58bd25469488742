//! Automation in Rust: `cargo xtask <command>`.
#![allow(clippy::print_stdout, reason = "a command-line tool")]

use std::process::ExitCode;

use anyhow::{Result, bail};

mod mutants;
mod sim;

const HELP: &str = "\
cargo xtask <command>
    sim        run seeds of the simulator
    mutants    plant bugs in the core and see whether the simulator finds them
Each command has --help.";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = arguments.split_first() else { bail!("{HELP}") };
    match command.as_str() {
        "sim" => sim::main(rest),
        "mutants" => mutants::main(rest),
        "--help" | "-h" | "help" => {
            println!("{HELP}");
            Ok(())
        }
        other => bail!("{other} is not a command\n{HELP}"),
    }
}
