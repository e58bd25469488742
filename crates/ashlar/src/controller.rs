//! `ashlar controller`: starts the control plane's daemon in this process.
//!
//! Only the arguments are read here; everything else is the crate `controller`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use controller::daemon;

/// Where the wanted state is kept.
const DEFAULT_DATA_DIR: &str = "/var/lib/ashlar/controller";
/// LINSTOR's port.
const DEFAULT_LISTEN: &str = "127.0.0.1:3370";

/// What is said below the options.
pub const HELP: &str = "\
LINSTOR's clients are told where it is by `linstor --controllers 127.0.0.1` or LS_CONTROLLERS. Which
calls there are is in COMPAT.md. Agents can not connect yet: nodes stay OFFLINE, and what is wanted of
them waits.";

/// Arguments of `ashlar controller`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Directory where the controller keeps what is wanted of the cluster
    #[arg(long, value_name = "DIRECTORY", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Where the REST API listens: an address of the loopback interface, since it asks for no password
    #[arg(long, value_name = "ADDRESS:PORT", default_value = DEFAULT_LISTEN)]
    listen: SocketAddr,
}

/// Serves LINSTOR's REST API until told to shut down.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let data = std::path::absolute(&args.data_dir)?;
    let options = daemon::Options { data, listen: args.listen };
    Ok(daemon::run(&options, Arc::new(daemon::Nobody), |_| {})?)
}
