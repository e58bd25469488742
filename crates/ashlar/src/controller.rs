//! `ashlar controller`: starts the control plane's daemon in this process.
//!
//! Only the arguments are read here; everything else is the crate `controller`.

use std::net::SocketAddr;
use std::path::PathBuf;

use controller::daemon;

/// Where the wanted state is kept.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/ashlar/controller";
/// LINSTOR's port.
const DEFAULT_LISTEN: &str = "127.0.0.1:3370";
/// Where agents connect unless something else is said.
pub const AGENTS_PORT: u16 = 3377;
const DEFAULT_AGENTS: &str = "[::]:3377";

/// What is said below the options.
pub const HELP: &str = "\
LINSTOR's clients are told where it is by `linstor --controllers 127.0.0.1` or LS_CONTROLLERS. Which
calls there are is in COMPAT.md. A node becomes a member by `ashlar node create --invite`, here, and
`ashlar node join` with what that prints, there.";

/// Arguments of `ashlar controller`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Directory where the controller keeps what is wanted of the cluster
    #[arg(long, value_name = "DIRECTORY", default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Where the REST API listens: an address of the loopback interface, since it asks for no password
    #[arg(long, value_name = "ADDRESS:PORT", default_value = DEFAULT_LISTEN)]
    listen: SocketAddr,
    /// Where agents connect, with certificates on both sides
    #[arg(long, value_name = "ADDRESS:PORT", default_value = DEFAULT_AGENTS)]
    listen_agents: SocketAddr,
}

/// Serves LINSTOR's REST API, and agents, until told to shut down.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let data = std::path::absolute(&args.data_dir)?;
    let options = daemon::Options { data, listen: args.listen, agents: args.listen_agents };
    Ok(daemon::run(&options)?)
}
