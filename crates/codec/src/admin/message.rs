//! Calls, replies and events of the control socket.

use std::net::SocketAddr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use vocab::options::{
    DeviceOptions, DiskOptions, NetOptions, PeerDeviceOptions, ResourceOptions, Secret,
};
use vocab::{ConfigError, Minor, NodeId, Refusal, RefusalCode, Sector, StateError, VolumeNr};

use super::doctor::{DoctorFigures, DoctorStep};
use super::fields;
use super::maps::{FaceStatus, MapOptions, MapStatus, StandbyStatus};
use super::statistics::ResourceStatistics;
use super::status::ResourceStatus;
use crate::config::{Handlers, MetaDisk, PathConfig, ResourceConfig};

/// Version of this protocol. Engine and command line of different versions refuse each other.
pub const VERSION: u32 = 1;

/// One command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Call {
    /// [`VERSION`] of the sender; anything else is answered with a failure.
    pub version: u32,
    /// Chosen by the sender, repeated in the reply.
    pub id: u64,
    /// How long the sender waits for the reply, milliseconds.
    pub timeout_ms: u32,
    /// What is asked.
    pub request: Request,
}

/// What is asked. Commands that change something accept the state they ask for with `Done`, and
/// refuse with DRBD's numbers (drbdsetup contract §1.2, §2); options replace the whole group.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case",
    tag = "command",
    deny_unknown_fields
)]
#[allow(missing_docs, reason = "fields repeat the same few objects; units are in their types")]
pub enum Request {
    /// Creates a resource without volumes and connections. Exists already: `Done`, unchanged.
    NewResource {
        resource: String,
        #[serde(with = "fields::node_id")]
        node_id: NodeId,
        #[serde(with = "fields::options")]
        options: ResourceOptions,
        #[serde(default, skip_serializing_if = "Handlers::is_none")]
        handlers: Handlers,
    },
    /// Replaces the handlers of a resource.
    Handlers { resource: String, handlers: Handlers },
    /// Replaces the options of a resource.
    ResourceOptions {
        resource: String,
        #[serde(with = "fields::options")]
        options: ResourceOptions,
    },
    /// Removes a resource without volumes and connections.
    DelResource { resource: String },
    /// Creates a volume, diskless. Exists alike: `Done`.
    NewMinor {
        resource: String,
        #[serde(with = "fields::volume")]
        volume: VolumeNr,
        #[serde(with = "fields::minor")]
        minor: Minor,
        #[serde(with = "fields::options")]
        options: DeviceOptions,
    },
    /// Removes a volume that has no disk.
    DelMinor {
        #[serde(with = "fields::minor")]
        minor: Minor,
    },
    /// Creates a connection, StandAlone.
    NewPeer {
        resource: String,
        #[serde(with = "fields::node_id")]
        peer: NodeId,
        name: String,
        #[serde(with = "fields::options")]
        options: NetOptions,
    },
    /// Replaces the options of a connection.
    NetOptions {
        resource: String,
        #[serde(with = "fields::node_id")]
        peer: NodeId,
        #[serde(with = "fields::options")]
        options: NetOptions,
    },
    /// Disconnects and removes a connection.
    DelPeer {
        resource: String,
        #[serde(with = "fields::node_id")]
        peer: NodeId,
        force: bool,
    },
    /// Adds a path.
    NewPath {
        resource: String,
        #[serde(with = "fields::node_id")]
        peer: NodeId,
        path: PathConfig,
    },
    /// Removes a path; refused for the last one of a connection that is not StandAlone.
    DelPath {
        resource: String,
        #[serde(with = "fields::node_id")]
        peer: NodeId,
        path: PathConfig,
    },
    /// Replaces the options of a volume towards a peer.
    PeerDeviceOptions {
        resource: String,
        #[serde(with = "fields::node_id")]
        peer: NodeId,
        #[serde(with = "fields::volume")]
        volume: VolumeNr,
        #[serde(with = "fields::options")]
        options: PeerDeviceOptions,
    },
    /// Attaches a disk: applies its activity log if needed, reads the metadata, negotiates.
    Attach {
        #[serde(with = "fields::minor")]
        minor: Minor,
        disk: String,
        meta_disk: MetaDisk,
        #[serde(with = "fields::options")]
        options: DiskOptions,
        /// It is encrypted: what is attached is what its LUKS2 header stands before.
        #[serde(default, skip_serializing_if = "fields::is_false")]
        luks: bool,
    },
    /// Replaces the options of a disk.
    DiskOptions {
        #[serde(with = "fields::minor")]
        minor: Minor,
        #[serde(with = "fields::options")]
        options: DiskOptions,
    },
    /// Detaches the disk. `force` fails I/O in flight; `diskless` makes a client of the volume.
    Detach {
        #[serde(with = "fields::minor")]
        minor: Minor,
        force: bool,
        diskless: bool,
    },
    /// Changes the size of a volume on all nodes, to what all disks have room for, or so that it
    /// ends at that sector. It shrinks only to a size that is named.
    Resize {
        #[serde(with = "fields::minor")]
        minor: Minor,
        #[serde(with = "fields::maybe_sector")]
        size: Option<Sector>,
        /// Nodes with a disk that are not connected have as much room.
        assume_peer_has_space: bool,
        /// What the volume grows by is equal on all nodes, and is not resynced.
        assume_clean: bool,
    },
    /// Starts connecting; answers at once.
    Connect {
        resource: String,
        #[serde(with = "fields::node_id")]
        peer: NodeId,
        discard_my_data: bool,
    },
    /// Ends a connection, to StandAlone. `force` does not ask the peer.
    Disconnect {
        resource: String,
        #[serde(with = "fields::node_id")]
        peer: NodeId,
        force: bool,
    },
    /// Becomes Primary. `force` overrides missing data access and quorum.
    Primary { resource: String, force: bool },
    /// Becomes Secondary. `force` fails all I/O instead of waiting for the last close.
    Secondary { resource: String, force: bool },
    /// Resyncs the local disk from a peer, any if `from` is not given.
    Invalidate {
        #[serde(with = "fields::minor")]
        minor: Minor,
        #[serde(with = "fields::maybe_node_id")]
        from: Option<NodeId>,
        reset_bitmap: bool,
    },
    /// Resyncs the peer's disk from the local one.
    InvalidateRemote {
        resource: String,
        #[serde(with = "fields::node_id")]
        peer: NodeId,
        #[serde(with = "fields::volume")]
        volume: VolumeNr,
        reset_bitmap: bool,
    },
    /// Compares a volume with the peer's online, from `start` to before `stop` (end if `None`).
    Verify {
        resource: String,
        #[serde(with = "fields::node_id")]
        peer: NodeId,
        #[serde(with = "fields::volume")]
        volume: VolumeNr,
        #[serde(with = "fields::sector")]
        start: Sector,
        #[serde(with = "fields::maybe_sector")]
        stop: Option<Sector>,
    },
    /// Pauses the resync of a volume with a peer.
    PauseSync {
        resource: String,
        #[serde(with = "fields::node_id")]
        peer: NodeId,
        #[serde(with = "fields::volume")]
        volume: VolumeNr,
    },
    /// Ends the pause.
    ResumeSync {
        resource: String,
        #[serde(with = "fields::node_id")]
        peer: NodeId,
        #[serde(with = "fields::volume")]
        volume: VolumeNr,
    },
    /// Suspends I/O of all volumes. With a time it ends by itself after so many milliseconds, as by
    /// [`Request::Thaw`], whatever has become of who asked for it.
    SuspendIo {
        resource: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u32>,
    },
    /// Resumes it, whatever it was suspended for.
    ResumeIo { resource: String },
    /// Ends what [`Request::SuspendIo`] began: I/O that waits for quorum or data, too, goes on waiting.
    Thaw { resource: String },
    /// Begins a new data generation; on new metadata `clear_bitmap` skips the initial resync.
    NewCurrentUuid {
        #[serde(with = "fields::minor")]
        minor: Minor,
        clear_bitmap: bool,
    },
    /// Marks the local disk Outdated.
    Outdate {
        #[serde(with = "fields::minor")]
        minor: Minor,
    },
    /// Gives the bitmap slots of a node that is gone for good back, on every disk attached. Refused
    /// (125) while there is a connection to it.
    ForgetPeer {
        resource: String,
        #[serde(with = "fields::node_id")]
        peer: NodeId,
    },
    /// The generation identifiers of a volume's disk towards a peer; [`Answer::Identifiers`].
    /// Refused (138) without a disk.
    Identifiers {
        resource: String,
        #[serde(with = "fields::node_id")]
        peer: NodeId,
        #[serde(with = "fields::volume")]
        volume: VolumeNr,
    },
    /// Demotes, disconnects, detaches and removes a resource. Unknown: `Done`.
    Down { resource: String },
    /// The status of one resource or all; answered with [`Answer::Status`].
    Status { resource: Option<String> },
    /// Counters and latencies of one resource or all; answered with [`Answer::Statistics`].
    Statistics { resource: Option<String> },
    /// The configuration in force, of one resource or all; answered with [`Answer::Config`].
    /// Unknown: an empty list.
    Config { resource: Option<String> },
    /// Subscribes to changes of one resource or all; answered with `Done`, then [`Event`]s:
    /// the current state, [`Event::Current`], then every change. With `statistics_ms` a snapshot
    /// comes at least that often while numbers move.
    Events { resource: Option<String>, statistics_ms: Option<u32> },
    /// What the engine remembers that explains a resource's state; [`Answer::Why`].
    Why { resource: String },
    /// Serves a volume over NBD or vhost-user.
    Export {
        resource: String,
        #[serde(with = "fields::volume")]
        volume: VolumeNr,
        /// Name clients ask for.
        name: String,
        listen: Listen,
        /// Clients may only read.
        read_only: bool,
    },
    /// Stops serving it. Clients are disconnected.
    Unexport { name: String },
    /// Lists exports; [`Answer::Exports`].
    Exports,
    /// Makes a block device of a volume; answered with [`Answer::Maps`], of that one. Mapped alike:
    /// the same answer.
    Map {
        resource: String,
        #[serde(with = "fields::volume")]
        volume: VolumeNr,
        options: MapOptions,
    },
    /// Takes the device away; refused while somebody has it open.
    Unmap {
        resource: String,
        #[serde(with = "fields::volume")]
        volume: VolumeNr,
    },
    /// Lists mapped volumes; [`Answer::Maps`].
    Maps,
    /// Writes new metadata to a disk that is not attached. Existing metadata is refused (119)
    /// unless `force`.
    CreateMd {
        disk: String,
        meta_disk: MetaDisk,
        max_peers: u8,
        force: bool,
        /// As in [`Request::Attach`].
        #[serde(default, skip_serializing_if = "fields::is_false")]
        luks: bool,
    },
    /// Gives the passphrase of an encrypted disk, which the engine keeps in no file: after each of its starts it
    /// is needed anew. A volume that waits for the disk gets it.
    Unlock {
        disk: String,
        #[serde(with = "fields::secret")]
        passphrase: Secret,
    },
    /// Forgets the key of an encrypted disk. One that is attached keeps it until it is detached.
    Lock { disk: String },
    /// Makes metadata of version v08 on a disk that is not attached into v09 with `max_peers`
    /// bitmaps; [`Answer::Remarks`]. What it knows of the peer becomes that of node `peer`.
    ConvertMd {
        disk: String,
        meta_disk: MetaDisk,
        /// This node.
        #[serde(with = "fields::node_id")]
        node_id: NodeId,
        #[serde(with = "fields::node_id")]
        peer: NodeId,
        max_peers: u8,
    },
    /// One step of finding out what limits a resource; [`Answer::Doctor`].
    Doctor { resource: String, step: DoctorStep },
    /// Facts about the engine; [`Answer::Info`].
    Info,
    /// Takes every resource down and exits. Refused while a volume is open, unless `force`.
    Shutdown { force: bool },
    /// Hands over to another engine, while clients and peers are served: of the program at `binary`, an
    /// absolute path, or of that where this one was started from. [`Answer::Upgraded`].
    Upgrade { binary: Option<String> },
}

/// Where an export listens.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A path in the file system.
    Unix(String),
    /// A path in the file system, for one client of vhost-user (a virtual machine).
    VhostUser(String),
    /// A TCP address, for clients that use TLS.
    Tls(TlsListen),
}

/// Where an export listens for clients that use TLS.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TlsListen {
    /// A TCP address.
    pub address: SocketAddr,
    /// The folder with `ca-cert.pem`, whose certificates sign those of clients, `server-cert.pem` and
    /// `server-key.pem`; or with `keys.psk`, the keys of clients.
    pub certificates: String,
}

/// One line from the engine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(clippy::large_enum_variant, reason = "lines are decoded one at a time")]
pub enum Line {
    /// The answer to a call.
    Reply(Reply),
    /// News on a connection that subscribed.
    Event(Event),
}

/// The answer to a call.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// The call's id; 0 if the call could not be read.
    pub id: u64,
    /// How it went.
    pub outcome: Outcome,
}

/// How a call went.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// As asked.
    Ok(Answer),
    /// A rule forbids it, and nothing changed.
    Refused(#[serde(with = "refusal")] Refusal),
    /// It could not be done, or not be finished in time.
    Failed(Failure),
}

/// What a successful call returns.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Nothing but success.
    Done,
    /// Success with remarks for the operator.
    Remarks(Vec<String>),
    /// To [`Request::Status`], sorted by name.
    Status(Vec<ResourceStatus>),
    /// To [`Request::Statistics`], sorted by name.
    Statistics(Vec<ResourceStatistics>),
    /// To [`Request::Config`], sorted by name. A detached volume has no backing and
    /// `diskless` unset.
    Config(Vec<ResourceConfig>),
    /// To [`Request::Why`].
    Why {
        /// The state as it is now.
        status: Box<ResourceStatus>,
        /// What happened, oldest first.
        notes: Vec<Note>,
    },
    /// To [`Request::Identifiers`]: the line that `drbdmeta get-gi` prints (metadata §7.5).
    Identifiers(String),
    /// To [`Request::Exports`], sorted by name.
    Exports(Vec<ExportStatus>),
    /// To [`Request::Map`] and [`Request::Maps`], sorted by name and volume.
    Maps(Vec<MapStatus>),
    /// To [`Request::Doctor`].
    Doctor(Box<DoctorFigures>),
    /// To [`Request::Info`].
    Info(EngineInfo),
    /// To [`Request::Upgrade`].
    Upgraded(UpgradeReport),
}

/// Something that happened and explains a state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Note {
    /// Seconds ago.
    pub age_seconds: u64,
    /// The object, such as `connection to bravo` or `volume 0`.
    pub object: String,
    /// What happened and why, one sentence.
    pub text: String,
}

/// An export.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ExportStatus {
    /// Name clients ask for.
    pub name: String,
    /// The resource served.
    pub resource: String,
    /// The volume served.
    #[serde(with = "fields::volume")]
    pub volume: VolumeNr,
    /// Where it listens.
    pub listen: Listen,
    /// Clients may only read.
    pub read_only: bool,
    /// Clients connected.
    pub clients: u32,
}

/// An engine has handed over to another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UpgradeReport {
    /// The process that serves now.
    pub pid: u32,
    /// How long clients waited, in microseconds.
    pub pause_us: u64,
}

/// Facts about the engine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EngineInfo {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// How long it runs, seconds.
    pub uptime_seconds: u64,
    /// Oldest and newest replication protocol it speaks.
    pub protocols: (u32, u32),
    /// Resources it holds.
    pub resources: u32,
    /// Ways to make block devices of volumes.
    #[serde(default)]
    pub faces: Vec<FaceStatus>,
    /// Whether devices can be there without their volumes open (`map --standby`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby: Option<StandbyStatus>,
}

/// News for a subscriber.
///
/// The engine sends whole snapshots and the client compares them, so a slow client may be sent
/// only the newest of several snapshots of a resource; every client ends in the true state.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(clippy::large_enum_variant, reason = "events are decoded one at a time")]
pub enum Event {
    /// A resource as it is after one atomic change.
    Resource(ResourceStatus),
    /// A resource is gone.
    Gone {
        /// Its name.
        resource: String,
    },
    /// All resources that existed at subscription were sent.
    Current,
    /// A handler is called, or has ended.
    Helper(HelperEvent),
}

/// A call of a handler, or its end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HelperEvent {
    /// The resource it is about.
    pub resource: String,
    /// The connection it is about, if it is about one.
    #[serde(with = "fields::maybe_node_id")]
    pub peer_node_id: Option<NodeId>,
    /// Its name.
    pub conn_name: Option<String>,
    /// The addresses of its path: this node's, the peer's.
    pub path: Option<(SocketAddr, SocketAddr)>,
    /// The volume it is about, if it is about one.
    #[serde(with = "fields::maybe_volume")]
    pub volume: Option<VolumeNr>,
    /// Its minor.
    #[serde(with = "fields::maybe_minor")]
    pub minor: Option<Minor>,
    /// Name of the handler.
    pub helper: String,
    /// As wait(2) gives it, once it has ended: an exit code of 1 is 256. Negative if it could not be
    /// run, or was stopped.
    pub status: Option<i32>,
}

/// A command that could not be done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Failure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// What failed and why, naming the object.
    pub text: String,
    /// What to do next; may be empty.
    pub next: String,
}

/// Kinds of failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// Still running when the time was over; it may complete later.
    Timeout,
    /// The call was not understood: malformed, or of another version.
    BadCall,
    /// A device or socket failed.
    Io,
    /// Out of memory, files or the like.
    Resources,
}

impl Failure {
    /// A failure with what to do next.
    pub fn new(kind: FailureKind, text: impl Into<String>, next: impl Into<String>) -> Failure {
        Failure { kind, text: text.into(), next: next.into() }
    }
}

impl From<Refusal> for Outcome {
    fn from(refusal: Refusal) -> Outcome {
        Outcome::Refused(refusal)
    }
}

impl Call {
    /// Decodes a line.
    ///
    /// # Errors
    /// The reply to send: a failure of kind `BadCall`, with the call's id if it could be read.
    pub fn decode(line: &[u8]) -> Result<Call, Reply> {
        #[derive(Deserialize)]
        struct Head {
            #[serde(default)]
            id: u64,
            #[serde(default)]
            version: u32,
        }
        let bad = |id, text: String, next: &str| {
            let outcome = Outcome::Failed(Failure::new(FailureKind::BadCall, text, next));
            Reply { id, outcome }
        };
        let head: Head = serde_json::from_slice(line)
            .map_err(|e| bad(0, format!("the call is not understood: {e}"), ""))?;
        if head.version != VERSION {
            let text =
                format!("the call is of version {}, the engine's is {VERSION}", head.version);
            return Err(bad(head.id, text, "use command line and engine of one release"));
        }
        serde_json::from_slice(line)
            .map_err(|e| bad(head.id, format!("the call is not understood: {e}"), ""))
    }
}

/// A refusal as number, text (for readers of the JSON) and detail.
mod refusal {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Fields {
        number: i32,
        #[serde(default)]
        text: String,
        #[serde(default)]
        detail: String,
    }

    pub(super) fn serialize<S: Serializer>(value: &Refusal, s: S) -> Result<S::Ok, S::Error> {
        let text = match value.code {
            RefusalCode::State(code) => code.text(),
            RefusalCode::Config(code) => code.text(),
        };
        let text = text.to_owned();
        Fields { number: value.number(), text, detail: value.detail.clone() }.serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Refusal, D::Error> {
        let Fields { number, detail, .. } = Fields::deserialize(d)?;
        let state = StateError::from_number(number).map(RefusalCode::State);
        let code = state.or_else(|| ConfigError::from_number(number).map(RefusalCode::Config));
        let code =
            code.ok_or_else(|| D::Error::custom(format!("no refusal has number {number}")))?;
        Ok(Refusal { code, detail })
    }
}
