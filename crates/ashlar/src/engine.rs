//! `ashlar engine`: starts the data-plane daemon in this process.
//!
//! Only the arguments are read here; everything else is the crate `engine`.

use std::path::Path;

/// Arguments of `ashlar engine`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Serves the control socket at `socket` until told to shut down.
pub fn run(_args: &Args, socket: &Path) -> anyhow::Result<()> {
    anyhow::bail!("can not serve {}: this build contains no engine", socket.display())
}
