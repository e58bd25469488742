//! What goes into the state machine and what comes out: [`Input`] and [`Output`].
//!
//! The contract with whoever drives a [`Resource`](crate::Resource):
//!
//! - After every [`handle`](crate::Resource::handle), drain
//!   [`poll`](crate::Resource::poll) until it returns `None`, in order; then sleep until
//!   [`deadline`](crate::Resource::deadline) or the next input.
//! - Outputs of one peer and stream leave in order. A packet is on the wire after the disk and
//!   metadata operations that had to precede it have *completed*: the core waits for the
//!   completion before it emits the packet, so the driver needs no ordering of its own.
//! - Every [`Output::Disk`] and [`Output::MetaWrite`] is answered by exactly one
//!   [`Input::DiskDone`] or [`Input::MetaDone`], also after an error. Between them nothing is
//!   ordered: the core waits for one before it issues another that must come later.
//! - Every [`Output::CallHandler`] is answered by exactly one [`Input::HandlerDone`], in time even
//!   if the handler hangs: I/O may be suspended until then.
//! - Data bytes are never seen by the core. It gets a [`BufId`] for each block of data, may use
//!   it in any number of outputs, and gives it back with exactly one [`Output::Free`]; the
//!   driver keeps the bytes alive until then and until its own I/O on them has finished.

use codec::wire::{CHALLENGE_LEN, Digest, Packet};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use vocab::{
    ConnState, HandlerEvent, HandlerSet, NodeId, NodeMask, Refusal, Role, SectorRange, Sectors,
    VolumeNr,
};

/// Handle of a block of data that the driver holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufId(pub u32);

impl Serialize for BufId {
    /// No block of data travels with the state: what still names one, a write that was reported, never
    /// uses it again.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for BufId {
    /// A block that no driver has.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BufId, D::Error> {
        <()>::deserialize(deserializer).map(|()| BufId(u32::MAX))
    }
}

/// Identifies an operation towards its completion; chosen by the core.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u64);

/// What a peer is to sign, if it has to prove itself: random bytes that nobody can know before, and
/// that were never used before.
pub type Challenge = Box<[u8; CHALLENGE_LEN]>;

/// Something that happened.
#[derive(Debug)]
pub enum Input {
    /// Both sockets to a peer are up, in answer to [`Output::Connect`].
    LinkUp {
        /// The peer.
        peer: NodeId,
        /// This node accepted the control socket: it holds the tie-break of wire §1.1
        /// (RESOLVE_CONFLICTS). Exactly one end does.
        tie_break: bool,
        /// For `cram-hmac-alg`; not used without.
        challenge: Challenge,
    },
    /// The sockets to a peer are gone without the core having asked. Packets received before
    /// have been delivered; packets sent may or may not have arrived.
    LinkDown {
        /// The peer.
        peer: NodeId,
        /// What the driver knows.
        loss: LinkLoss,
    },
    /// A packet of the current link.
    Packet {
        /// Its sender.
        peer: NodeId,
        /// Decoded; checked for form, stream and limits, not for meaning.
        packet: Packet,
        /// Its data, if [`Packet::payload_len`](codec::wire::Packet) is not zero. The core owns
        /// it from here.
        payload: Option<BufId>,
    },
    /// A disk operation ended.
    DiskDone {
        /// As given in [`Output::Disk`].
        op: OpId,
        /// What came of it.
        result: Result<DiskData, DiskError>,
    },
    /// A metadata write ended.
    MetaDone {
        /// As given in [`Output::MetaWrite`].
        op: OpId,
        /// What came of it.
        result: Result<(), DiskError>,
    },
    /// What a disk in use offers now, in answer to [`Output::MeasureDisk`].
    DiskMeasured {
        /// The volume.
        volume: VolumeNr,
        /// What was found, or why the device could not be looked at.
        result: Result<DiskMeasure, String>,
    },
    /// A handler has ended.
    HandlerDone {
        /// As given in [`Output::CallHandler`].
        id: u64,
        /// Its exit code; `None` if it could not be run, was killed, or did not end in time.
        exit: Option<u8>,
    },
    /// A user of the volume opens it.
    Open {
        /// The volume.
        volume: VolumeNr,
        /// The opener, unique until closed.
        opener: u64,
        /// True to write: promotes the resource if auto-promote is on.
        write: bool,
        /// To read beside another Primary: wait `auto-promote-timeout` for it to be none any more, as who writes does.
        patient: bool,
    },
    /// A user closes the volume. All of its requests have completed.
    Close {
        /// The volume.
        volume: VolumeNr,
        /// As in [`Input::Open`].
        opener: u64,
    },
    /// I/O of a user.
    Request(Request),
    /// Other nodes that have their I/O done by this one (`allow-two-primaries`) are to send nothing for
    /// now, so that the resource comes to rest, or to go on.
    HoldForeign(bool),
    /// Another volume of this node is resynced before this one, or not any more, as the driver's
    /// [`ResyncOrder`](crate::ResyncOrder) says.
    WaitForOther {
        /// The volume.
        volume: VolumeNr,
        /// Its resyncs wait.
        wait: bool,
    },
    /// An operator's wish.
    Admin {
        /// Echoed in [`Output::AdminDone`].
        id: u64,
        /// The wish.
        command: AdminCommand,
    },
    /// Time has passed; also implied by every other input.
    Timeout,
}

/// Why a link went down, as far as the sockets tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkLoss {
    /// End of stream: the peer closed.
    Closed,
    /// Reset, or an error on the socket.
    Broken,
    /// The peer did not take data in time (send timeout times ko-count).
    Stalled,
    /// Bytes that are no packet, or data that are not what the peer sent (`data-integrity-alg`);
    /// the reason was logged by the driver.
    Garbage,
}

/// I/O of a user of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The volume.
    pub volume: VolumeNr,
    /// Chosen by the driver, below 2^63, unique among requests in flight, echoed in
    /// [`Output::Complete`].
    pub id: u64,
    /// What to do.
    pub op: RequestOp,
    /// Where; empty for a flush. Within the volume and aligned: the front end checks.
    pub range: SectorRange,
}

/// Kinds of user I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RequestOp {
    /// Read.
    Read,
    /// Write.
    Write {
        /// The data; the core owns it from here.
        buf: BufId,
        /// On stable storage everywhere before completion.
        fua: bool,
    },
    /// Discard: the content becomes undefined but equal on all replicas.
    Discard,
    /// Write zeroes.
    Zeroes {
        /// Blocks may be unmapped as long as they read as zeroes.
        unmap: bool,
    },
    /// Everything completed before is on stable storage when this completes.
    Flush,
}

/// Data delivered by a disk operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskData {
    /// Nothing (writes, discards, flushes).
    None,
    /// A read.
    Read {
        /// The data; the core owns it from here.
        buf: BufId,
        /// All bytes are zero; only meaningful if asked for.
        all_zero: bool,
    },
    /// A digest of the block.
    Digest(Digest),
    /// A read with the digest of what was read.
    ReadWithDigest {
        /// The data; the core owns it from here.
        buf: BufId,
        /// Empty if no digest is configured any more.
        digest: Digest,
    },
}

/// Which option names a digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DigestOf {
    /// `verify-alg`: all connections that name one name the same.
    Verify,
    /// `csums-alg` of the connection to this peer.
    Resync(NodeId),
}

/// A disk operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskError {
    /// The device reported an error.
    Io,
    /// The device does not support the operation (discard, zeroes): not a failure of the disk.
    Unsupported,
    /// A thin pool is full.
    NoSpace,
}

/// Operations on the data area of a backing disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskOp {
    /// Read into a buffer the driver provides.
    Read {
        /// Where.
        range: SectorRange,
        /// Report whether all bytes are zero (thin resync).
        detect_zeroes: bool,
        /// The user's request that it is for, whose answer they are, and nothing else: where they are put
        /// is between the driver and that user.
        request: Option<u64>,
    },
    /// Read and give a digest instead of the data.
    Digest {
        /// Where.
        range: SectorRange,
        /// Which one.
        of: DigestOf,
    },
    /// Read, and give the digest that the `csums-alg` of a connection names, too.
    ReadWithDigest {
        /// Where.
        range: SectorRange,
        /// The peer of that connection.
        peer: NodeId,
    },
    /// Write.
    Write {
        /// Where.
        range: SectorRange,
        /// Data.
        buf: BufId,
        /// On stable storage at completion.
        fua: bool,
    },
    /// Discard.
    Discard {
        /// Where.
        range: SectorRange,
    },
    /// Write zeroes.
    Zeroes {
        /// Where.
        range: SectorRange,
        /// May unmap.
        unmap: bool,
    },
    /// Everything completed before is on stable storage at completion.
    Flush,
}

/// Places in the metadata area, each one 4 KiB block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MetaPlace {
    /// The superblock.
    Superblock,
    /// Block of the activity log area, by index from its start.
    ActivityLog(u32),
    /// Block of the bitmap area, by index from its start.
    Bitmap(u64),
}

/// One block to write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaBlock {
    /// Where.
    pub place: MetaPlace,
    /// Content.
    pub bytes: Box<[u8; 4096]>,
}

/// A metadata write, in this order:
///
/// 1. if `flush` and there are plain blocks: everything written to the data area reaches stable
///    storage (a cleared bit must not survive a power cut that the data it vouches for does not);
/// 2. the plain blocks, in any order;
/// 3. if `flush` and there is a commit block: everything written so far to the data and the
///    metadata device reaches stable storage;
/// 4. the commit block, itself on stable storage at completion if `flush`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetaWrite {
    /// Blocks (of the bitmap) without durability of their own.
    pub plain: Vec<MetaBlock>,
    /// Superblock or activity log block that relies on them.
    pub commit: Option<MetaBlock>,
    /// False only with `md-flushes no`.
    pub flush: bool,
}

/// What the driver read from a disk that is to be attached.
#[derive(Clone, Debug)]
pub struct AttachImage {
    /// Size of the data area this device offers (placement), in sectors.
    pub capacity: Sectors,
    /// The superblock.
    pub superblock: Box<[u8; 4096]>,
    /// The activity log area, in order.
    pub activity_log: Vec<Box<[u8; 4096]>>,
    /// The bitmap area; blocks of zeroes may be left out.
    pub bitmap: Vec<(u64, Box<[u8; 4096]>)>,
    /// What the device can do.
    pub limits: DiskLimits,
    /// What completed without a flush may be gone after a power failure.
    pub volatile_cache: bool,
    /// Names the time since the machine was started, and is never the same for another start; 0 if
    /// that is not known.
    pub boot: u64,
}

/// What a disk in use offers after its device may have changed its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskMeasure {
    /// Size of the data area, once the metadata is where it belongs.
    pub capacity: Sectors,
    /// The end of the device has moved, and its metadata with it.
    pub moved: Option<MovedMetadata>,
}

/// Where metadata belongs on a device that has changed its size (metadata §2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MovedMetadata {
    /// For the superblock.
    pub md_size: Sectors,
    /// For the superblock.
    pub al_offset: i32,
    /// For the superblock.
    pub bm_offset: i32,
    /// Where the metadata is until then. What of that becomes room for data has zeroes written to it.
    pub left: SectorRange,
}

/// Properties of a backing device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskLimits {
    /// Bytes.
    pub logical_block_size: u32,
    /// Bytes.
    pub physical_block_size: u32,
    /// Discards work, and discarded blocks read as zeroes.
    pub discard_zeroes: bool,
    /// Largest single request in bytes.
    pub max_io: u32,
}

/// Wishes of an operator. Each is answered by one [`Output::AdminDone`].
#[derive(Clone, Debug)]
pub enum AdminCommand {
    /// Attach a disk whose metadata the driver has read and claimed.
    Attach {
        /// The volume.
        volume: VolumeNr,
        /// What was read.
        image: Box<AttachImage>,
    },
    /// Give up the disk.
    Detach {
        /// The volume.
        volume: VolumeNr,
        /// Do not wait for I/O, fail it.
        force: bool,
        /// The node is meant to be without a disk from now on.
        intentional: bool,
    },
    /// Start connecting.
    Connect {
        /// The peer.
        peer: NodeId,
        /// Give up this node's data if both sides have changed it.
        discard_my_data: bool,
    },
    /// Stop connecting, or close the connection.
    Disconnect {
        /// The peer.
        peer: NodeId,
        /// Without the peer's agreement.
        force: bool,
    },
    /// Promote.
    Primary {
        /// Treat this node's data as UpToDate even if that cannot be known.
        force: bool,
    },
    /// Demote.
    Secondary {
        /// Fail I/O of openers instead of refusing.
        force: bool,
    },
    /// Change the size of a volume, on all nodes.
    Resize {
        /// The volume.
        volume: VolumeNr,
        /// The new size; as much as all disks offer if `None`.
        size: Option<Sectors>,
        /// Nodes with a disk that are not connected have as much room.
        assume_peer_has_space: bool,
        /// What the volume grows by is equal on all nodes, and is not resynced.
        assume_clean: bool,
    },
    /// Throw this node's data away and resync it.
    Invalidate {
        /// The volume.
        volume: VolumeNr,
        /// Resync from this peer; any if `None`.
        from: Option<NodeId>,
    },
    /// Throw a peer's data away and resync it.
    InvalidateRemote {
        /// The peer.
        peer: NodeId,
        /// The volume.
        volume: VolumeNr,
    },
    /// Compare with a peer.
    Verify {
        /// The peer.
        peer: NodeId,
        /// The volume.
        volume: VolumeNr,
        /// First sector; where the last verify stopped if `None`.
        start: Option<u64>,
        /// First sector not compared; the end if `None`.
        stop: Option<u64>,
    },
    /// Set or clear the operator's pause flag of a resync.
    PauseSync {
        /// The peer.
        peer: NodeId,
        /// The volume.
        volume: VolumeNr,
        /// True to pause.
        pause: bool,
    },
    /// Block new I/O and wait until accepted writes are on all replicas.
    SuspendIo,
    /// Undo every suspension.
    ResumeIo,
    /// Undo what `SuspendIo` did, and nothing else: what waits for quorum or data goes on waiting.
    Thaw,
    /// Start a new data generation by hand.
    NewCurrentUuid {
        /// The volume.
        volume: VolumeNr,
        /// Declare all connected just-created peers identical: skip the initial resync.
        clear_bitmap: bool,
    },
    /// Declare this node's data outdated.
    Outdate {
        /// The volume.
        volume: VolumeNr,
    },
    /// Forget a peer that is gone for good: free its bitmap slot.
    ForgetPeer {
        /// The peer.
        peer: NodeId,
    },
    /// Add a volume (see [`crate::config`]).
    NewVolume(crate::config::VolumeConfig),
    /// Remove a diskless volume.
    DelVolume(VolumeNr),
    /// Add a peer.
    NewPeer(crate::config::PeerConfig),
    /// Remove a StandAlone peer.
    DelPeer(NodeId),
    /// There are handlers for these events from now on.
    Handlers(HandlerSet),
    /// Change options while running.
    ResourceOptions(vocab::options::ResourceOptions),
    /// Change options while running.
    NetOptions(NodeId, Box<vocab::options::NetOptions>),
    /// Change options while running.
    DiskOptions(VolumeNr, Box<vocab::options::DiskOptions>),
    /// Change options while running.
    PeerDeviceOptions(NodeId, VolumeNr, Box<vocab::options::PeerDeviceOptions>),
}

/// Something to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum Output {
    /// Try to reach a peer until [`Input::LinkUp`] or [`Output::CloseLink`].
    Connect {
        /// The peer.
        peer: NodeId,
    },
    /// Send what is queued (for at most a second), then close the sockets, or stop trying. No
    /// input about this link follows.
    CloseLink {
        /// The peer.
        peer: NodeId,
    },
    /// Send a packet. The stream follows from its kind.
    Send {
        /// The peer.
        peer: NodeId,
        /// The packet.
        packet: Packet,
        /// Data that follows it.
        payload: Option<BufId>,
    },
    /// Start a disk operation.
    Disk {
        /// The volume whose disk is meant.
        volume: VolumeNr,
        /// Echoed in [`Input::DiskDone`].
        op: OpId,
        /// The operation.
        io: DiskOp,
    },
    /// Start a metadata write.
    MetaWrite {
        /// The volume whose disk is meant.
        volume: VolumeNr,
        /// Echoed in [`Input::MetaDone`].
        op: OpId,
        /// The write.
        write: MetaWrite,
    },
    /// Look at the size of the devices of a disk: answered by one [`Input::DiskMeasured`].
    MeasureDisk {
        /// The volume whose disk is meant.
        volume: VolumeNr,
    },
    /// From here on metadata is written where it belongs by what was found last. No metadata write
    /// is under way. What is there until the next superblock is written means nothing.
    MoveMetadata {
        /// The volume whose disk is meant.
        volume: VolumeNr,
    },
    /// The disk is no longer used, or was not taken by a refused attach: release it once running
    /// operations have ended.
    DiskReleased {
        /// The volume.
        volume: VolumeNr,
    },
    /// A request is complete.
    Complete {
        /// The volume.
        volume: VolumeNr,
        /// As given in [`Request::id`].
        id: u64,
        /// Data of a read (given back with [`Output::Free`] right after), or the error.
        result: Result<Option<BufId>, IoError>,
    },
    /// An open succeeded or was refused.
    OpenDone {
        /// The volume.
        volume: VolumeNr,
        /// As given in [`Input::Open`].
        opener: u64,
        /// Why it was refused.
        result: Result<(), OpenError>,
    },
    /// The buffer is no longer used by the core.
    Free(BufId),
    /// A wish was granted or refused.
    AdminDone {
        /// As given in [`Input::Admin`].
        id: u64,
        /// Why it was refused; nothing changed then.
        result: Result<(), Refusal>,
    },
    /// States that users see have changed; [`crate::Resource::status`] has the new ones.
    StateChanged,
    /// The size of a volume has changed, and the metadata of its disk says so.
    SizeChanged {
        /// The volume.
        volume: VolumeNr,
        /// Its new size.
        size: Sectors,
    },
    /// Call a handler. The states, and what it is told of them, are those of this moment.
    CallHandler {
        /// Echoed in [`Input::HandlerDone`].
        id: u64,
        /// Which one, and what for.
        call: HandlerCall,
    },
    /// Something an operator should read.
    Log(LogLevel, String),
}

/// What a handler is called for (drbdsetup contract §7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandlerCall {
    /// What happened.
    pub event: HandlerEvent,
    /// The connection it is about, and its state.
    pub peer: Option<(NodeId, ConnState)>,
    /// The volume it is about; all of them if `None`.
    pub volume: Option<VolumeNr>,
    /// Nodes that are UpToDate in all volumes, as far as this node sees them.
    pub up_to_date: NodeMask,
}

/// Who reads a log line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LogLevel {
    /// A change a user would notice.
    Info,
    /// Worth waking someone.
    Warn,
    /// The asked-for thing did not happen.
    Error,
}

/// Why a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoError {
    /// No replica could serve it (EIO).
    Io,
    /// Not allowed on a Secondary (EROFS).
    NotPrimary,
    /// Out of space (ENOSPC).
    NoSpace,
    /// The range or length is not valid (EINVAL).
    Invalid,
    /// Not supported (EOPNOTSUPP).
    Unsupported,
}

/// Why an open failed (semantics §3.4).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// I/O is failing on purpose until all openers are gone (ENOTRECOVERABLE).
    FailIo,
    /// The promotion was refused (EROFS).
    PromotionRefused(Refusal),
    /// Not readable here: another node is Primary, or auto-promote is off (EMEDIUMTYPE).
    NotPrimaryHere {
        /// This node's role.
        role: Role,
    },
    /// No data or no quorum (ENODATA).
    NoData,
    /// No such volume (ENODEV).
    NoDevice,
}
