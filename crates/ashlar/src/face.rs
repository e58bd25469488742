//! `ashlar face`: the process behind a loop device or one of the kernel's NBD client, which the engine starts.
//!
//! Only the arguments are read here; everything else is the crate `face`.

use std::path::PathBuf;
use std::time::Duration;

use ::face::Front;

/// Arguments of `ashlar face`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where its socket and its file system are to be
    #[arg(long, value_name = "DIRECTORY")]
    directory: PathBuf,
    /// The file can only be read
    #[arg(long)]
    read_only: bool,
    /// Most requests in flight
    #[arg(long, value_name = "N")]
    depth: u16,
    /// How long requests wait for an engine
    #[arg(long, value_name = "SECONDS")]
    patience: u16,
    /// Make a device of the kernel's NBD client, not a file; with logical blocks of so many bytes
    #[arg(long, value_name = "BYTES")]
    nbd: Option<u32>,
}

/// Serves until it is told to end.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let options = ::face::Options {
        directory: args.directory.clone(),
        read_only: args.read_only,
        depth: args.depth,
        patience: Duration::from_secs(args.patience.into()),
        front: args.nbd.map_or(Front::File, Front::Nbd),
    };
    Ok(::face::run(&options)?)
}
