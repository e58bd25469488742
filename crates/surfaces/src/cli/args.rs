//! The command line as data: help texts, manual pages and completions are made from it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use codec::admin::Listen;

use super::objects::Object;

/// Where the engine's control socket is.
pub const DEFAULT_SOCKET: &str = "/run/ashlar/ashlard.sock";

/// Where exports listen unless told otherwise.
pub const DEFAULT_EXPORT_SOCKET: &str = "/run/ashlar/nbd.sock";

/// Flags every command has.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Configuration file [default: the first of /etc/drbd-90.conf … /etc/drbd.conf that exists]
    #[arg(long, short = 'c', global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Control socket of the engine
    #[arg(long, global = true, value_name = "PATH", default_value = DEFAULT_SOCKET, env = "ASHLAR_SOCKET")]
    pub socket: PathBuf,

    /// Name of this host in the configuration [default: the host name]
    #[arg(long, global = true, value_name = "NAME")]
    pub node: Option<String>,

    /// Print JSON
    #[arg(long, short = 'j', global = true)]
    pub json: bool,

    /// Seconds to wait for each answer
    #[arg(long, global = true, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub timeout: Duration,

    /// Seconds to wait for an engine that is starting
    #[arg(long, global = true, value_name = "SECONDS", default_value = "0", value_parser = seconds_or_none)]
    pub wait_engine: Duration,
}

fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let n: u32 = text.parse().map_err(|_| "give whole seconds".to_owned())?;
    if n > 86_400 {
        Err("give at most 86400".to_owned())
    } else {
        Ok(Duration::from_secs(n.into()))
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let duration = seconds_or_none(text)?;
    if duration.is_zero() { Err("give at least 1".to_owned()) } else { Ok(duration) }
}

fn object(text: &str) -> Result<Object, String> {
    text.parse()
}

/// The objects a command works on.
#[derive(Args, Clone, Debug)]
pub struct Objects {
    /// RESOURCE, RESOURCE/VOLUME, RESOURCE:PEER, RESOURCE:PEER/VOLUME, minor-N or all
    #[arg(required = true, value_name = "OBJECT", value_parser = object)]
    pub objects: Vec<Object>,
}

/// `--dry-run`, for commands that do much or destroy something.
#[derive(Args, Clone, Copy, Debug)]
pub struct DryRun {
    /// Print what would be done and do nothing
    #[arg(long, short = 'd')]
    pub dry_run: bool,
}

/// When output is coloured.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Color {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The operator's commands. The comments are the help texts.
#[derive(Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "a comment on a flattened group would become help text")]
pub enum Command {
    /// Write new metadata to the configured disks
    ///
    /// Needed once per disk. Existing metadata is kept unless --force is given: with it goes all
    /// knowledge of which blocks differ from the peers'. Data of the volume is not touched.
    CreateMd {
        #[command(flatten)]
        objects: Objects,
        /// Overwrite existing metadata
        #[arg(long)]
        force: bool,
        /// Peers to reserve a bitmap for [default: the diskful peers configured]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=31))]
        max_peers: Option<u8>,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Bring resources up as configured: create, attach, connect
    ///
    /// A resource that is up already is adjusted.
    Up {
        #[command(flatten)]
        objects: Objects,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Take resources down: demote, disconnect, detach, remove
    Down {
        #[command(flatten)]
        objects: Objects,
    },
    /// Make running resources what the configuration says
    Adjust {
        #[command(flatten)]
        objects: Objects,
        /// Leave disks alone
        #[arg(long)]
        skip_disk: bool,
        /// Leave connections alone
        #[arg(long)]
        skip_net: bool,
        /// When connecting, give this node's changes up after a split brain
        #[arg(long)]
        discard_my_data: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Attach the configured disks
    Attach {
        #[command(flatten)]
        objects: Objects,
    },
    /// Detach disks: the volumes go on with the peers' disks
    Detach {
        #[command(flatten)]
        objects: Objects,
        /// Fail I/O in flight instead of waiting for it
        #[arg(long)]
        force: bool,
        /// Make a client of the volume: diskless by intent
        #[arg(long)]
        diskless: bool,
    },
    /// Start connecting to peers
    Connect {
        #[command(flatten)]
        objects: Objects,
        /// Give this node's changes up after a split brain
        #[arg(long)]
        discard_my_data: bool,
    },
    /// End connections and stop connecting
    Disconnect {
        #[command(flatten)]
        objects: Objects,
        /// Do not ask the peer
        #[arg(long)]
        force: bool,
    },
    /// Make this node Primary: volumes may be written here
    Primary {
        #[command(flatten)]
        objects: Objects,
        /// Declare the local data UpToDate and override missing quorum; newer data elsewhere is lost
        #[arg(long)]
        force: bool,
    },
    /// Make this node Secondary
    Secondary {
        #[command(flatten)]
        objects: Objects,
        /// Fail all I/O instead of waiting for the last close
        #[arg(long)]
        force: bool,
    },
    /// Give local data up and resync it from a peer
    Invalidate {
        #[command(flatten)]
        objects: Objects,
        /// Resync only what is marked out-of-sync
        #[arg(long)]
        keep_bitmap: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Give peers' data up and resync it from here
    InvalidateRemote {
        #[command(flatten)]
        objects: Objects,
        /// Resync only what is marked out-of-sync
        #[arg(long)]
        keep_bitmap: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Compare with peers online; differences become out-of-sync
    Verify {
        #[command(flatten)]
        objects: Objects,
        /// First sector of 512 bytes
        #[arg(long, value_name = "SECTOR", default_value_t = 0)]
        start: u64,
        /// Sector to stop before [default: the end]
        #[arg(long, value_name = "SECTOR")]
        stop: Option<u64>,
    },
    /// Pause resyncs
    PauseSync {
        #[command(flatten)]
        objects: Objects,
    },
    /// Resume paused resyncs
    ResumeSync {
        #[command(flatten)]
        objects: Objects,
    },
    /// Let I/O wait
    SuspendIo {
        #[command(flatten)]
        objects: Objects,
    },
    /// Let I/O go on
    ResumeIo {
        #[command(flatten)]
        objects: Objects,
    },
    /// Begin a new data generation
    NewCurrentUuid {
        #[command(flatten)]
        objects: Objects,
        /// On new metadata: declare all disks equal and skip the initial resync
        #[arg(long)]
        clear_bitmap: bool,
    },
    /// Mark local disks Outdated
    Outdate {
        #[command(flatten)]
        objects: Objects,
    },
    /// Show states
    Status {
        /// RESOURCE or all
        #[arg(value_name = "RESOURCE", value_parser = object)]
        object: Option<Object>,
        /// Show every state; twice: resync counters too
        #[arg(long, short = 'v', action = clap::ArgAction::Count)]
        verbose: u8,
        /// Show traffic and pending requests
        #[arg(long, short = 's')]
        statistics: bool,
        /// Repeat every so many seconds until interrupted
        #[arg(long, short = 'w', value_name = "SECONDS", num_args = 0..=1, require_equals = true,
              default_missing_value = "1", value_parser = seconds)]
        watch: Option<Duration>,
        /// When to use colours
        #[arg(long, value_name = "WHEN", default_value = "auto")]
        color: Color,
    },
    /// Print changes of state as lines
    Events {
        /// RESOURCE or all
        #[arg(value_name = "RESOURCE", value_parser = object)]
        object: Option<Object>,
        /// Include statistics
        #[arg(long, short = 's')]
        statistics: bool,
        /// Print the current state and end
        #[arg(long, short = 'n')]
        now: bool,
        /// Begin each line with the time (UTC)
        #[arg(long, short = 'T')]
        timestamps: bool,
    },
    /// Explain what is not as it should be, and what to do
    Why {
        /// The resource
        resource: String,
    },
    /// Serve a volume over NBD
    Export {
        /// RESOURCE or RESOURCE/VOLUME
        #[arg(value_name = "VOLUME", value_parser = object)]
        object: Object,
        /// Name clients ask for [default: RESOURCE/VOLUME]
        #[arg(long)]
        name: Option<String>,
        /// ADDRESS:PORT or the path of a socket
        #[arg(long, value_name = "WHERE", default_value = DEFAULT_EXPORT_SOCKET, value_parser = listen)]
        listen: Listen,
    },
    /// Stop serving a volume
    Unexport {
        /// Its name
        name: String,
    },
    /// List exports
    Exports,
    /// Show facts about the engine
    Info,
    /// Take every resource down and end the engine
    Shutdown {
        /// Even while volumes are open
        #[arg(long)]
        force: bool,
    },
}

fn listen(text: &str) -> Result<Listen, String> {
    if text.starts_with('/') {
        return Ok(Listen::Unix(text.to_owned()));
    }
    let address: Result<SocketAddr, _> = text.parse();
    address.map(Listen::Tcp).map_err(|_| "give ADDRESS:PORT or an absolute path".to_owned())
}
