//! Automation in Rust: `cargo xtask <command>`.
#![allow(clippy::print_stdout, reason = "a command-line tool")]

use std::process::ExitCode;

use anyhow::{Result, bail};

mod arguments;
mod bench;
mod compat;
mod fuzz;
mod mutants;
mod netns;
mod process;
mod revision;
mod scaling;
mod sim;
mod skew;
mod test;
mod tidy;
mod torture;
mod vm;
mod workspace;

const HELP: &str = "\
cargo xtask <command>
    test       install what the tests need, then run every check and test
    bench      measure real engines
    scaling    compute what many nodes would do, from what this machine measures
    sim        run seeds of the simulator
    skew       run this tree's program beside another release's
    torture    kill, stop and cut off three real engines under load
    vm         boot guests with other kernels, to test against the real thing
    fuzz       run fuzz targets
    mutants    plant bugs in the core and see whether the simulator finds them
    tidy       check what the compiler does not: arrows, licences, headers, links
    compat     write the option tables of COMPAT.md anew
Each command has --help.";

fn main() -> ExitCode {
    // Every command speaks of the tree, from wherever in it it is called.
    if let Err(error) = std::env::set_current_dir(workspace::root()) {
        eprintln!("xtask: {}: {error}", workspace::root().display());
        return ExitCode::FAILURE;
    }
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
        "test" => test::main(rest),
        "bench" => bench::main(rest),
        "scaling" => scaling::main(rest),
        "sim" => sim::main(rest),
        "skew" => skew::main(rest),
        "torture" => torture::main(rest),
        "vm" => vm::main(rest),
        "mutants" => mutants::main(rest),
        "fuzz" => fuzz::main(rest),
        "tidy" => tidy::main(rest),
        "compat" => compat::main(rest),
        "--help" | "-h" | "help" => {
            println!("{HELP}");
            Ok(())
        }
        other => bail!("{other} is not a command\n{HELP}"),
    }
}
