//! Manual pages and completions, made from the declaration of the command line.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context;
use clap::Command;
use surfaces::cli::EXIT_STATUS;

/// The section on exit statuses that ends every help text and manual page.
pub fn exit_status() -> String {
    let lines = EXIT_STATUS.lines().map(|line| format!("  {line}\n"));
    format!("Exit status:\n{}", lines.collect::<String>())
}

/// Writes `ashlar.1` and `ashlar-COMMAND.1` for every command into `directory`.
pub fn write_manual(command: Command, directory: &Path) -> anyhow::Result<()> {
    let pages = || format!("writing manual pages to {}", directory.display());
    fs::create_dir_all(directory).with_context(pages)?;
    let command = command.disable_help_subcommand(true).mut_subcommands(with_exit_status);
    clap_mangen::generate_to(command, directory).with_context(pages)
}

/// Exit statuses at the end of every page, of commands below commands, too.
fn with_exit_status(command: Command) -> Command {
    command.after_long_help(exit_status()).mut_subcommands(with_exit_status)
}

/// Prints the completion script of a shell.
pub fn write_completions(mut command: Command, shell: clap_complete::Shell) -> anyhow::Result<()> {
    clap_complete::generate(shell, &mut command, "ashlar", &mut io::stdout());
    Ok(())
}
