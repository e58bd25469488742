//! The command line as data: help texts, manual pages and completions are made from it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use codec::admin::{Face, Listen, MapOptions};
use vocab::options::{Kind, Unit};
use vocab::{NodeId, Sector};

use super::objects::Object;
use super::top::Sort;

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

    /// Print JSON: what is listed, or what a dry run would do
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

/// Ways to make a block device, as [`Face`].
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaceName {
    /// The kernel's ublk driver: /dev/ublkbN
    Ublk,
    /// The kernel's NBD client: /dev/nbdN
    Nbd,
    /// A loop device on a file of a FUSE file system: /dev/loopN
    Fuse,
}

impl FaceName {
    /// What the engine is told.
    pub const fn face(self) -> Face {
        match self {
            FaceName::Ublk => Face::Ublk,
            FaceName::Nbd => Face::Nbd,
            FaceName::Fuse => Face::Fuse,
        }
    }
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
    /// Convert metadata of DRBD 8 (v08) to v09
    ///
    /// Ashlar uses disks with v08 as they are. They have to be converted for quorum or a third
    /// node; DRBD 8 can not use them afterwards. The disk must not be attached. What is known of
    /// the peer is kept, and the activity log is applied.
    ConvertMd {
        #[command(flatten)]
        objects: Objects,
        /// The node that the disk was replicated with [default: the only diskful peer configured]
        #[arg(long, value_name = "NODE-ID", value_parser = node_id)]
        peer: Option<NodeId>,
        /// Peers to have a bitmap for [default: the diskful peers configured]
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
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Give peers' data up and resync it from here
    InvalidateRemote {
        #[command(flatten)]
        objects: Objects,
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
    /// Change the size of volumes, on all nodes
    ///
    /// Give every backing device its new size first. One node is told, and all follow. A volume
    /// becomes as large as all disks have room for, and shrinks only to a size that is named, while
    /// no node is Primary.
    Resize {
        #[command(flatten)]
        objects: Objects,
        /// The new size, such as 10G [default: what all disks have room for]
        #[arg(long, value_name = "SIZE", value_parser = sectors)]
        size: Option<Sector>,
        /// What the volume grows by is equal on all nodes: do not resync it
        #[arg(long)]
        assume_clean: bool,
        /// Nodes with a disk that are not connected have as much room
        #[arg(long)]
        assume_peer_has_space: bool,
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
    /// Give back the bitmap slots of a node that is gone for good
    ///
    /// Take the node out of the configuration and `ashlar adjust` first. If it ever comes back, all
    /// of its data is resynced.
    ForgetPeer {
        /// The resource
        resource: String,
        /// Its node id
        #[arg(value_name = "NODE-ID", value_parser = node_id)]
        peer: NodeId,
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
    /// Show what volumes do, how long it takes, and where the time goes
    ///
    /// Every line is about the last interval: requests per second, half of them (p50) and 99 % of
    /// them (p99) took at most so long. The bar below it says which stages that time went to.
    /// On a terminal: q ends, l n r w t sort, arrows scroll.
    Top {
        /// RESOURCE or all
        #[arg(value_name = "RESOURCE", value_parser = object)]
        object: Option<Object>,
        /// Seconds from one look to the next
        #[arg(long, short = 'i', value_name = "SECONDS", default_value = "1", value_parser = seconds)]
        interval: Duration,
        /// Print one interval as text and end
        #[arg(long, short = 'n')]
        once: bool,
        /// Volumes with most of this first
        #[arg(long, value_name = "KEY", default_value = "load")]
        sort: Sort,
    },
    /// Explain what is not as it should be, and what to do
    Why {
        /// The resource
        resource: String,
    },
    /// Measure network, disks and what goes on, and name what limits a volume
    ///
    /// Looks on for a moment, then probes the network to each peer that runs `ashlar doctor --serve`
    /// meanwhile, reads this node's disks, and compares. Volumes and their disks are never written to.
    Doctor(DoctorArgs),
    /// Serve a volume over NBD, or to a virtual machine
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
        /// Listen at ADDRESS:PORT for clients that use TLS, with the files in this folder
        ///
        /// It has ca-cert.pem, which signs the certificates of clients, server-cert.pem and
        /// server-key.pem; or keys.psk, whose lines are a client's NAME:KEY, the key in hexadecimal.
        /// Clients without TLS do not see the export, but for those of unix sockets.
        #[arg(long, value_name = "FOLDER", conflicts_with = "vhost_user", value_parser = folder)]
        tls: Option<String>,
        /// The path of a socket for a virtual machine, over vhost-user instead of NBD
        #[arg(long, value_name = "PATH", conflicts_with = "listen", value_parser = vhost_user)]
        vhost_user: Option<Listen>,
        /// Clients may only read
        #[arg(long)]
        read_only: bool,
    },
    /// Stop serving a volume
    Unexport {
        /// Its name
        name: String,
    },
    /// List exports
    Exports,
    /// Make a block device of a volume, and /dev/ashlar/RESOURCE/VOLUME
    ///
    /// With the kernel's ublk driver (`modprobe ublk_drv`, Linux 6.5), or else its NBD client (`modprobe
    /// nbd`, Linux 5.14), or else as a loop device, the latter two with a process of their own. While the device exists the
    /// volume is open, so this node is Primary; with --standby, while somebody uses the device. Prints the device.
    Map {
        /// RESOURCE or RESOURCE/VOLUME
        #[arg(value_name = "VOLUME", value_parser = object)]
        object: Object,
        /// A device that can only be read; the node does not become Primary for it
        #[arg(long)]
        read_only: bool,
        /// Names like those of DRBD's devices, too: /dev/drbdMINOR, /dev/drbd/by-res/RESOURCE/VOLUME
        #[arg(long)]
        drbd_names: bool,
        /// Open the volume only while somebody uses the device, so that all nodes can have one: reading opens it for
        /// reading, and writing makes this node Primary. For an engine that is root and sees all processes of the
        /// machine, Linux 6.5
        #[arg(long, conflicts_with = "read_only")]
        standby: bool,
        /// The way to do it [default: the first of these that there is]
        #[arg(long, value_enum)]
        face: Option<FaceName>,
        /// Hardware queues; one thread serves them all
        #[arg(long, value_name = "N", default_value_t = MapOptions::default().queues,
              value_parser = clap::value_parser!(u16).range(1..=i64::from(MapOptions::QUEUES_MAX)))]
        queues: u16,
        /// Requests in flight in each queue; at most 128 where it is not ublk
        #[arg(long, value_name = "N", default_value_t = MapOptions::default().depth,
              value_parser = clap::value_parser!(u16).range(1..=i64::from(MapOptions::DEPTH_MAX)))]
        depth: u16,
    },
    /// Take the block device of a volume away
    ///
    /// Refused while somebody has it open; the answer says who.
    Unmap {
        /// RESOURCE or RESOURCE/VOLUME
        #[arg(value_name = "VOLUME", value_parser = object)]
        object: Object,
    },
    /// List block devices
    Maps,
    /// Give the engine the passphrase of an encrypted disk
    ///
    /// The engine keeps it in memory only, and needs it anew after each of its starts. Volumes that wait
    /// for the disk get it. On a terminal the passphrase is asked for; otherwise it is the first line of the
    /// standard input.
    Unlock {
        /// Path of the disk, as it is configured
        #[arg(value_name = "DISK")]
        disk: String,
    },
    /// Have the engine forget the key of an encrypted disk
    ///
    /// A disk that is attached keeps it until it is detached.
    Lock {
        /// Path of the disk, as it is configured
        #[arg(value_name = "DISK")]
        disk: String,
    },
    /// Show facts about the engine
    Info,
    /// Have another engine take over while clients and peers are served
    ///
    /// It has the arguments of the one that runs. If it can not take over, the one that runs goes on, and
    /// the answer says why.
    Upgrade {
        /// The program that takes over [default: what is where the running one was started from]
        #[arg(long, value_name = "PATH")]
        binary: Option<PathBuf>,
        /// Try again for so long while I/O does not come to rest in time, as on a slow disk; 0 for once
        #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds_or_none)]
        retry: Duration,
    },
    /// Take every resource down and end the engine
    Shutdown {
        /// Even while volumes are open
        #[arg(long)]
        force: bool,
    },
}

/// Arguments of `doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// RESOURCE, RESOURCE/VOLUME or all
    #[arg(value_name = "RESOURCE", value_parser = object)]
    pub object: Object,
    /// Seconds that all of it may take [default: 30, with --serve 300]
    #[arg(long, value_name = "SECONDS", value_parser = doctor_seconds)]
    pub seconds: Option<Duration>,
    /// Only look on: cause no load on network and disks
    #[arg(long, conflicts_with_all = ["scratch", "serve", "probe_port"])]
    pub passive: bool,
    /// Measure writes too, in a file without a name in this folder, which must be on the same disks
    #[arg(long, value_name = "FOLDER")]
    pub scratch: Option<PathBuf>,
    /// Answer the network probes of peers, instead of measuring
    #[arg(long, conflicts_with = "scratch")]
    pub serve: bool,
    /// Port of network probes, the same on all nodes
    #[arg(long, value_name = "PORT", default_value_t = 7099,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub probe_port: u16,
}

fn doctor_seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(n @ 5..=3600) => Ok(Duration::from_secs(n)),
        _ => Err("give 5 to 3600 whole seconds".to_owned()),
    }
}

impl Command {
    /// The fields of [`Common`] that this command acts on. Whoever gives another one expects
    /// something that does not happen, so it has to be refused.
    pub fn uses(&self) -> Vec<&'static str> {
        let (reads_configuration, lists) = match self {
            Command::CreateMd { .. }
            | Command::ConvertMd { .. }
            | Command::Up { .. }
            | Command::Adjust { .. } => (true, self.is_dry_run()),
            Command::Attach { .. } => (true, false),
            Command::Invalidate { .. } | Command::InvalidateRemote { .. } => {
                (false, self.is_dry_run())
            }
            Command::Status { .. }
            | Command::Events { .. }
            | Command::Top { .. }
            | Command::Why { .. }
            | Command::Doctor(_)
            | Command::Export { .. }
            | Command::Exports
            | Command::Map { .. }
            | Command::Maps
            | Command::Info => (false, true),
            Command::Down { .. }
            | Command::Detach { .. }
            | Command::Connect { .. }
            | Command::Disconnect { .. }
            | Command::Primary { .. }
            | Command::Secondary { .. }
            | Command::Verify { .. }
            | Command::Resize { .. }
            | Command::PauseSync { .. }
            | Command::ResumeSync { .. }
            | Command::SuspendIo { .. }
            | Command::ResumeIo { .. }
            | Command::NewCurrentUuid { .. }
            | Command::Outdate { .. }
            | Command::ForgetPeer { .. }
            | Command::Unexport { .. }
            | Command::Unmap { .. }
            | Command::Unlock { .. }
            | Command::Lock { .. }
            | Command::Upgrade { .. }
            | Command::Shutdown { .. } => (false, false),
        };
        let mut uses = vec!["socket", "timeout", "wait_engine"];
        uses.extend(reads_configuration.then_some(["config", "node"]).into_iter().flatten());
        uses.extend(lists.then_some("json"));
        uses
    }

    /// An option of its own that changes nothing about JSON, with what holds instead.
    pub fn without_effect_on_json(&self) -> Option<&'static str> {
        match self {
            Command::Status { verbose: 1.., .. } => {
                Some("--verbose changes text only: the JSON has every state and counter")
            }
            Command::Status { statistics: true, .. } => {
                Some("--statistics changes text only: the JSON has every state and counter")
            }
            Command::Status { color: Color::Always, .. } => {
                Some("--color changes text only: JSON is never coloured")
            }
            Command::Doctor(DoctorArgs { serve: true, .. }) => {
                Some("--serve lists nothing: it says on standard error what it does")
            }
            Command::Events { timestamps: true, .. } => {
                Some("--timestamps changes text only: take the time when a line arrives")
            }
            _ => None,
        }
    }

    /// True if the command only says what it would do.
    pub(super) fn is_dry_run(&self) -> bool {
        match self {
            Command::CreateMd { dry_run, .. }
            | Command::ConvertMd { dry_run, .. }
            | Command::Up { dry_run, .. }
            | Command::Adjust { dry_run, .. }
            | Command::Invalidate { dry_run, .. }
            | Command::InvalidateRemote { dry_run, .. } => dry_run.dry_run,
            _ => false,
        }
    }
}

fn node_id(text: &str) -> Result<NodeId, String> {
    let id = text.parse().ok().and_then(NodeId::new);
    id.ok_or_else(|| "give a number from 0 to 31".to_owned())
}

fn sectors(text: &str) -> Result<Sector, String> {
    let kind = Kind::Number { min: 1, max: 1 << 41, unit: Unit::Sectors };
    let size = kind.number(text).map(Sector);
    size.ok_or_else(|| "give a number with K, M or G, or of sectors with s, up to 1 PiB".to_owned())
}

fn vhost_user(text: &str) -> Result<Listen, String> {
    match text.starts_with('/') {
        true => Ok(Listen::VhostUser(text.to_owned())),
        false => Err("give an absolute path".to_owned()),
    }
}

fn folder(text: &str) -> Result<String, String> {
    // The engine has another working directory.
    let absolute = std::path::absolute(text).map_err(|e| e.to_string())?;
    Ok(absolute.display().to_string())
}

fn listen(text: &str) -> Result<Listen, String> {
    if text.starts_with('/') {
        return Ok(Listen::Unix(text.to_owned()));
    }
    let address: Result<SocketAddr, _> = text.parse();
    address.map(Listen::Tcp).map_err(|_| "give ADDRESS:PORT or an absolute path".to_owned())
}
