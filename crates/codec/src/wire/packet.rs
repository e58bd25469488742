//! Every packet of the replication protocol as a value (wire §3.2 and §3.3).
//!
//! Fixed parts are decoded into these types; bulk payloads (data blocks) are not part of them:
//! a [`Packet`] says how many payload bytes follow ([`Packet::payload_len`]) and whoever owns
//! the socket receives those straight into a disk buffer. Fields marked *opaque* are the
//! creator's private bytes and are echoed bit for bit.

use serde::{Deserialize, Serialize};
use vocab::{Dagtag, GenUuid, NodeMask, SectorRange, Sectors, VolumeNr};

use super::digest::Digest;

/// Which of the two TCP streams of a connection a packet travels on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stream {
    /// Bulk data, handshake, state.
    Data,
    /// Acks and pings ("meta" socket).
    Control,
}

/// Packet creator's identification of a request, echoed by the answer (opaque 8 bytes).
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct BlockId(pub u64);

impl BlockId {
    /// `ID_SYNCER`: the constant id of resync requests below protocol 122, never used at 122.
    pub const SYNCER: BlockId = BlockId(u64::MAX);
}

/// `dp_flags` of P_DATA, P_TRIM and P_ZEROES; unknown bits are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub struct DataFlags(pub u32);

impl DataFlags {
    /// Submit without delay.
    pub const SYNC: DataFlags = DataFlags(2);
    /// The receiver may clear its out-of-sync bits once written.
    pub const MAY_SET_IN_SYNC: DataFlags = DataFlags(4);
    /// Write through to stable storage.
    pub const FUA: DataFlags = DataFlags(16);
    /// Flush the disk's cache first.
    pub const PREFLUSH: DataFlags = DataFlags(32);
    /// A discard.
    pub const DISCARD: DataFlags = DataFlags(64);
    /// Answer P_RECV_ACK on receipt (protocol B).
    pub const SEND_RECEIVE_ACK: DataFlags = DataFlags(128);
    /// Answer P_WRITE_ACK once written (protocol C).
    pub const SEND_WRITE_ACK: DataFlags = DataFlags(256);
    /// Forbidden: the dead write-same.
    pub const WSAME: DataFlags = DataFlags(512);
    /// A write of zeroes.
    pub const ZEROES: DataFlags = DataFlags(1024);

    /// True if every bit of `other` is set.
    pub const fn has(self, other: DataFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// With the bits of `other` added.
    pub const fn with(self, other: DataFlags) -> DataFlags {
        DataFlags(self.0 | other.0)
    }
}

/// Fixed part of P_DATA, P_DATA_REPLY and P_RS_DATA_REPLY; `len` bytes of data follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Data {
    /// Where the data belongs; its length is the payload's.
    pub range: SectorRange,
    /// Opaque.
    pub block_id: BlockId,
    /// Per-volume sequence number over both streams; 0 in replies.
    pub seq: u32,
    /// How to write and to answer.
    pub flags: DataFlags,
}

/// P_TRIM and P_ZEROES: like [`Data`] with the size stated and nothing following.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trim {
    /// Range to discard or zero.
    pub range: SectorRange,
    /// Opaque.
    pub block_id: BlockId,
    /// As in [`Data`].
    pub seq: u32,
    /// As in [`Data`].
    pub flags: DataFlags,
}

/// `block_ack`: answers on the control stream (and P_RS_DEALLOCATED_ID on the data stream).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockAck {
    /// Range of the request.
    pub range: SectorRange,
    /// Echo of the request's id.
    pub block_id: BlockId,
    /// Per-volume sequence number; 0 in P_RS_DEALLOCATED_ID.
    pub seq: u32,
}

/// `block_req`: a request for a block (remote read, resync or verify without dagtag).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockReq {
    /// Range wanted.
    pub range: SectorRange,
    /// Opaque.
    pub block_id: BlockId,
}

/// A position in a primary's write stream that the answering node must have reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DagtagDep {
    /// Node id of the primary (raw, as on the wire).
    pub node_id: u32,
    /// Position; 0 with node 0 means no dependency.
    pub dagtag: Dagtag,
}

/// `rs_req`: a resync or verify request with its dagtag dependency.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RsReq {
    /// Range wanted.
    pub range: SectorRange,
    /// Opaque, unique per request, never [`BlockId::SYNCER`] at protocol 122.
    pub block_id: BlockId,
    /// What the source must have received first.
    pub dep: DagtagDep,
}

/// P_PROTOCOL and P_PROTOCOL_UPDATE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Protocol {
    /// A=1, B=2, C=3.
    pub protocol: u32,
    /// After-split-brain policy without a primary, as numbered in wire §4.1.
    pub after_sb_0p: u32,
    /// With one primary.
    pub after_sb_1p: u32,
    /// With two primaries.
    pub after_sb_2p: u32,
    /// Bit 0 discard-my-data, bit 1 dry-run.
    pub conn_flags: u32,
    /// allow-two-primaries, 0 or 1.
    pub two_primaries: u32,
    /// data-integrity-alg without the NUL; at most 63 bytes.
    pub integrity_alg: Vec<u8>,
}

/// Bit of [`Protocol::conn_flags`].
pub const CF_DISCARD_MY_DATA: u32 = 1;
/// Bit of [`Protocol::conn_flags`].
pub const CF_DRY_RUN: u32 = 2;

/// P_SYNC_PARAM89 in its 148-byte form (and the shorter historic ones, see `form`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SyncParam {
    /// Which layout it had or gets.
    pub form: SyncParamForm,
    /// KiB/s.
    pub resync_rate: u32,
    /// Digest name without padding, at most 63 bytes.
    pub verify_alg: Vec<u8>,
    /// Digest name without padding, at most 63 bytes.
    pub csums_alg: Vec<u8>,
    /// 0.1 s.
    pub c_plan_ahead: u32,
    /// 0.1 s.
    pub c_delay_target: u32,
    /// Sectors.
    pub c_fill_target: u32,
    /// KiB/s.
    pub c_max_rate: u32,
}

/// Layouts of the resync parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncParamForm {
    /// P_SYNC_PARAM: rate, and the verify-alg string at protocol 88.
    Old,
    /// `rs_param_89`, 132 bytes.
    V89,
    /// `rs_param_95`, 148 bytes.
    V95,
}

/// P_SIZES.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sizes {
    /// Largest size the sender can offer; 0 if it has no disk and knows none.
    pub d_size: Sectors,
    /// Size configured by the operator, 0 if none.
    pub u_size: Sectors,
    /// Current size of the volume at the sender.
    pub c_size: Sectors,
    /// Bytes.
    pub max_bio_size: u32,
    /// Always 0.
    pub queue_order_type: u16,
    /// Bit 0 assume unconnected peers have space, bit 1 no resync.
    pub dds_flags: u16,
    /// Queue limits, present when the feature WSAME is agreed.
    pub limits: Option<QueueLimits>,
}

/// The 24-byte tail of P_SIZES.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueLimits {
    /// Bytes.
    pub physical_block_size: u32,
    /// Bytes.
    pub logical_block_size: u32,
    /// Bytes.
    pub alignment_offset: u32,
    /// Bytes.
    pub io_min: u32,
    /// Bytes.
    pub io_opt: u32,
    /// 1 if the sender's device can discard.
    pub discard_enabled: u8,
    /// 1 if discarded ranges read as zeroes.
    pub discard_zeroes_data: u8,
    /// Dead, 0.
    pub write_same_capable: u8,
    /// log2 of the bitmap block size minus 12; 0 unless the feature is agreed.
    pub bm_block_shift: u8,
}

/// P_UUIDS110.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uuids110 {
    /// Resolved current generation.
    pub current: GenUuid,
    /// Out-of-sync 4 KiB blocks towards the receiver.
    pub dirty_bits: u64,
    /// [`UuidFlags`], with the unallocated slot's index in bits 63..56.
    pub flags: UuidFlags,
    /// Weak nodes, or authoritative nodes if not STABLE.
    pub node_mask: NodeMask,
    /// Bitmap generations by node id, ascending; the mask on the wire is their ids.
    pub bitmap_uuids: Vec<(u8, GenUuid)>,
    /// Youngest first; kernel nodes always send 32.
    pub history: Vec<GenUuid>,
}

/// `uuid_flags`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub struct UuidFlags(pub u64);

impl UuidFlags {
    /// The operator asked to give up the sender's data.
    pub const DISCARD_MY_DATA: UuidFlags = UuidFlags(1);
    /// The sender was Primary when it stopped.
    pub const CRASHED_PRIMARY: UuidFlags = UuidFlags(2);
    /// The sender's disk is Inconsistent.
    pub const INCONSISTENT: UuidFlags = UuidFlags(4);
    /// new-current-uuid --clear-bitmap.
    pub const SKIP_INITIAL_SYNC: UuidFlags = UuidFlags(8);
    /// A new data generation; `node_mask` holds the weak nodes.
    pub const NEW_DATAGEN: UuidFlags = UuidFlags(0x10);
    /// The sender is Primary, or none of its connected neighbours is.
    pub const STABLE: UuidFlags = UuidFlags(0x20);
    /// The sender has just become stable.
    pub const GOT_STABLE: UuidFlags = UuidFlags(0x40);
    /// Compare now, maybe resync.
    pub const RESYNC: UuidFlags = UuidFlags(0x80);
    /// The sender has had an earlier connection to this peer since it started.
    pub const RECONNECT: UuidFlags = UuidFlags(0x100);
    /// With RESYNC: because of a diskless primary.
    pub const DISKLESS_PRIMARY: UuidFlags = UuidFlags(0x200);
    /// The sender was Primary without quorum.
    pub const PRIMARY_LOST_QUORUM: UuidFlags = UuidFlags(0x400);
    /// The sender is resync target of a third node whose generation `current` is.
    pub const SYNC_TARGET: UuidFlags = UuidFlags(0x800);
    /// Bits 63..56 hold the node id of one never-allocated slot in the list.
    pub const HAS_UNALLOC: UuidFlags = UuidFlags(0x1000);

    /// True if every bit of `other` is set.
    pub const fn has(self, other: UuidFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// With the bits of `other` added.
    pub const fn with(self, other: UuidFlags) -> UuidFlags {
        UuidFlags(self.0 | other.0)
    }

    /// With the bits of `other` added if `on`.
    pub const fn with_if(self, on: bool, other: UuidFlags) -> UuidFlags {
        if on { self.with(other) } else { self }
    }

    /// With the bits of `other` removed.
    pub const fn without(self, other: UuidFlags) -> UuidFlags {
        UuidFlags(self.0 & !other.0)
    }

    /// Node id of the unallocated slot, if [`Self::HAS_UNALLOC`] is set.
    pub const fn unallocated_slot(self) -> Option<u8> {
        if self.has(UuidFlags::HAS_UNALLOC) { Some((self.0 >> 56) as u8) } else { None }
    }
}

/// P_UUIDS (protocol 8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Uuids {
    /// Current generation.
    pub current: GenUuid,
    /// Bitmap generation.
    pub bitmap: GenUuid,
    /// Youngest first.
    pub history: [GenUuid; 2],
    /// Out-of-sync blocks.
    pub dirty_bits: u64,
    /// Only flags 1, 2, 4, 8 exist.
    pub flags: UuidFlags,
}

/// The state word of P_STATE (wire §8.1), always from the sender's point of view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub struct StateWord(pub u32);

/// P_STATE_CHG_REQ and P_CONN_ST_CHG_REQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReqState {
    /// Bits that change.
    pub mask: StateWord,
    /// Their new value.
    pub val: StateWord,
}

/// Layout-independent content of a two-phase-commit request (wire §8.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TwoPc {
    /// Transaction id, random and non-zero.
    pub tid: u32,
    /// [`TWOPC_HAS_REACHABLE`], [`TWOPC_PRI_INCAPABLE`], [`TWOPC_END_UNKNOWN`]; 0x80000000 is part
    /// of the new layout.
    pub flags: u32,
    /// True if the layout is that of feature 2PC_V2.
    pub v2: bool,
    /// Node that started the transaction (raw).
    pub initiator: i32,
    /// Node it is about, -1 if none (raw).
    pub target: i32,
    /// Nodes that still have to be reached.
    pub nodes_to_reach: NodeMask,
    /// PREPARE: 0. COMMIT: primary_nodes (resize: diskful primaries). PREP_RSZ: user size.
    pub word20: u64,
    /// PREPARE: mask and value. COMMIT: reachable_nodes if HAS_REACHABLE. PREP_RSZ: dds_flags in
    /// the upper 16 bits. ABORT: anything.
    pub word28: u64,
}

/// `TwoPc::flags`: `word28` of a COMMIT is reachable_nodes.
pub const TWOPC_HAS_REACHABLE: u32 = 0x4000_0000;
/// `TwoPc::flags` of a COMMIT: a Primary exists but has no access to good data.
pub const TWOPC_PRI_INCAPABLE: u32 = 0x2000_0000;
/// `TwoPc::flags` of an ABORT between nodes that agree on [`feature::BITS_OF_EQUALS`]: the sender
/// passed on the PREPARE, has answered, and lost those who asked. They may have committed.
pub const TWOPC_END_UNKNOWN: u32 = 0x1000_0000;
/// dds_flags of P_TWOPC_PREP_RSZ: nodes with a disk that are not connected have as much room.
pub const DDS_ASSUME_PEER_HAS_SPACE: u16 = 1;
/// dds_flags of P_TWOPC_PREP_RSZ: what the volume grows by is equal everywhere, and not resynced.
pub const DDS_NO_RESYNC: u16 = 2;
/// `TwoPc::flags`: marks the layout of feature 2PC_V2.
pub const TWOPC_V2: u32 = 0x8000_0000;

/// P_TWOPC_YES, NO and RETRY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TwoPcReply {
    /// Echo.
    pub tid: u32,
    /// Echo (raw).
    pub initiator: i32,
    /// Aggregated over the sender's subtree.
    pub reachable_nodes: NodeMask,
    /// Resize: diskful primaries.
    pub primary_nodes: NodeMask,
    /// Resize: max_possible_size.
    pub weak_nodes: NodeMask,
}

/// P_CONNECTION_FEATURES.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Features {
    /// Lowest protocol version spoken.
    pub protocol_min: u32,
    /// Feature flags (`feature` module).
    pub feature_flags: u32,
    /// Highest protocol version spoken; 0 means `protocol_min`.
    pub protocol_max: u32,
    /// Raw node id of the sender.
    pub sender_node_id: u32,
    /// Raw node id the sender believes to talk to.
    pub receiver_node_id: u32,
}

/// Feature flags (wire §3.1).
pub mod feature {
    /// P_TRIM allowed.
    pub const TRIM: u32 = 0x001;
    /// Thin resync requests and deallocated answers.
    pub const THIN_RESYNC: u32 = 0x002;
    /// P_SIZES carries queue limits, discards up to 128 MiB.
    pub const WSAME: u32 = 0x004;
    /// P_ZEROES allowed.
    pub const WZEROES: u32 = 0x008;
    /// Resync and verify requests carry a dagtag dependency.
    pub const RESYNC_DAGTAG: u32 = 0x010;
    /// New layout of two-phase-commit requests.
    pub const TWOPC_V2: u32 = 0x020;
    /// Skip-initial-sync reaches diskless peers.
    pub const RS_SKIP_UUID: u32 = 0x040;
    /// P_ENABLE_REPLICATION.
    pub const RESYNC_WITHOUT_REPLICATION: u32 = 0x080;
    /// Bitmap granularity in P_SIZES.
    pub const BM_BLOCK_SHIFT: u32 = 0x100;
    /// P_PEER_DAGTAG before the handshake packets.
    pub const RECONCILE_RECONNECT: u32 = 0x200;
    /// Ashlar's own: disks of one generation that count blocks as out of sync towards each other
    /// are resynced by these bits. Kernel nodes drop such bits; they do not agree on flags they
    /// do not know.
    pub const BITS_OF_EQUALS: u32 = 0x0100_0000;
    /// Ashlar's own: a second Primary has its I/O done by the first one, by P_JOINT and those that
    /// go with it.
    pub const JOINT_PRIMARY: u32 = 0x0200_0000;
    /// Ashlar's own: nodes need not have the same volumes. One answers states of a volume that it does
    /// not have with connection number 0.
    pub const VOLUMES_DIFFER: u32 = 0x0400_0000;
    /// What Ashlar offers.
    pub const OURS: u32 =
        0x07f | RECONCILE_RECONNECT | BITS_OF_EQUALS | JOINT_PRIMARY | VOLUMES_DIFFER;
}

/// P_PEER_DAGTAG.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerDagtag {
    /// Last position received from `node_id`.
    pub dagtag: Dagtag,
    /// The lost primary (raw).
    pub node_id: u32,
}

/// P_PEER_ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerAck {
    /// Nodes that hold the writes.
    pub mask: NodeMask,
    /// Up to and including the write with this position.
    pub dagtag: Dagtag,
}

/// P_PEERS_IN_SYNC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerBlockDesc {
    /// Range.
    pub range: SectorRange,
    /// Nodes that are in sync there.
    pub mask: NodeMask,
}

/// P_CONFIRM_STABLE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConfirmStable {
    /// Opaque id of the oldest write.
    pub oldest: BlockId,
    /// Opaque id of the youngest write.
    pub youngest: BlockId,
    /// Number of writes in the run.
    pub set_size: u32,
}

/// Result of comparing one block in an online verify.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OvResult {
    /// Not compared (a write was in the way).
    Skipped,
    /// Equal.
    InSync,
    /// Different.
    OutOfSync,
    /// A number this specification does not know.
    Unknown(u32),
}

/// P_JOINT: what two nodes say about a second Primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JointWord {
    /// To the Primary: the sender wants to be Primary beside it.
    Join,
    /// It is from here on. Requests of it may follow.
    Joined,
    /// Not now; to be asked for again.
    Later,
    /// Not as the receiver is configured.
    Refused,
    /// The sender is no second Primary any more. What it has asked for and what has not begun is not to
    /// be done.
    Leave,
    /// The answer: all that has begun is at its end.
    Left,
    /// To a second Primary: no more requests, until it is told to go on.
    Hold,
    /// It may go on.
    GoOn,
    /// A number this release does not know.
    Unknown(u32),
}

impl JointWord {
    const ALL: [JointWord; 8] = [
        JointWord::Join,
        JointWord::Joined,
        JointWord::Later,
        JointWord::Refused,
        JointWord::Leave,
        JointWord::Left,
        JointWord::Hold,
        JointWord::GoOn,
    ];

    /// Its number on the wire.
    pub(super) fn number(self) -> u32 {
        match self {
            JointWord::Unknown(number) => number,
            word => JointWord::ALL.iter().position(|w| *w == word).map_or(0, |at| at as u32 + 1),
        }
    }

    /// The word with that number.
    pub(super) fn from_number(number: u32) -> JointWord {
        let at = (number as usize).wrapping_sub(1);
        JointWord::ALL.get(at).copied().unwrap_or(JointWord::Unknown(number))
    }
}

/// P_JOINT_DONE: what came of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JointResult {
    /// It is done.
    Done,
    /// An I/O error.
    Io,
    /// No space left.
    NoSpace,
    /// A range or length that is not valid.
    Invalid,
    /// Not supported, of a discard or a write of zeroes.
    Unsupported,
    /// A number this release does not know: an error.
    Unknown(u32),
}

impl JointResult {
    const ALL: [JointResult; 5] = [
        JointResult::Done,
        JointResult::Io,
        JointResult::NoSpace,
        JointResult::Invalid,
        JointResult::Unsupported,
    ];

    /// Its number on the wire.
    pub(super) fn number(self) -> u32 {
        match self {
            JointResult::Unknown(number) => number,
            result => JointResult::ALL.iter().position(|r| *r == result).map_or(0, |at| at as u32),
        }
    }

    /// The result with that number.
    pub(super) fn from_number(number: u32) -> JointResult {
        let known = JointResult::ALL.get(number as usize).copied();
        known.unwrap_or(JointResult::Unknown(number))
    }
}

/// A chunk of a plain bitmap: little-endian 64-bit words, at most 510 of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BitmapWords {
    /// Words in bitmap order; empty ends the transfer.
    pub words: Vec<u64>,
}

/// A chunk of a run-length coded bitmap, still coded (the decoder needs the position).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompressedBitmap {
    /// Encoding byte and code bytes as on the wire.
    pub bytes: Vec<u8>,
}

/// One packet of the replication protocol. `v` packets name their volume.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "named as in the specification's table, wire §3.2")]
pub enum Packet {
    Data(VolumeNr, Data),
    DataReply(VolumeNr, Data),
    RsDataReply(VolumeNr, Data),
    /// Opaque epoch number.
    Barrier(u32),
    Bitmap(VolumeNr, BitmapWords),
    UnplugRemote,
    DataRequest(VolumeNr, BlockReq),
    RsDataRequest(VolumeNr, BlockReq),
    /// Also P_SYNC_PARAM89, see [`SyncParamForm`].
    SyncParam(VolumeNr, Box<SyncParam>),
    Protocol(Box<Protocol>),
    Uuids(VolumeNr, Box<Uuids>),
    Sizes(VolumeNr, Box<Sizes>),
    /// `None`: about the whole connection, only the role counts.
    State(Option<VolumeNr>, StateWord),
    SyncUuid(VolumeNr, GenUuid),
    AuthChallenge(Vec<u8>),
    AuthResponse(Vec<u8>),
    StateChgReq(VolumeNr, ReqState),
    Ping,
    PingAck,
    RecvAck(VolumeNr, BlockAck),
    WriteAck(VolumeNr, BlockAck),
    RsWriteAck(VolumeNr, BlockAck),
    Superseded(VolumeNr, BlockAck),
    NegAck(VolumeNr, BlockAck),
    NegDreply(VolumeNr, BlockAck),
    NegRsDreply(VolumeNr, BlockAck),
    /// Opaque epoch number, number of writes.
    BarrierAck(u32, u32),
    StateChgReply(VolumeNr, i32),
    OvRequest(VolumeNr, BlockReq),
    /// With digest.
    OvReply(VolumeNr, BlockReq, Digest),
    OvResult(VolumeNr, BlockAck),
    CsumRsRequest(VolumeNr, BlockReq, Digest),
    RsIsInSync(VolumeNr, BlockAck),
    CompressedBitmap(VolumeNr, CompressedBitmap),
    DelayProbe([u8; 8]),
    OutOfSync(VolumeNr, SectorRange),
    RsCancel(VolumeNr, BlockAck),
    ConnStChgReq(ReqState),
    ConnStChgReply(i32),
    RetryWrite(VolumeNr, BlockAck),
    ProtocolUpdate(Box<Protocol>),
    TwoPcPrepare(Option<VolumeNr>, TwoPc),
    TwoPcAbort(Option<VolumeNr>, TwoPc),
    Dagtag(Dagtag),
    Trim(VolumeNr, Trim),
    RsThinReq(VolumeNr, BlockReq),
    RsDeallocated(VolumeNr, SectorRange),
    TwoPcPrepRsz(Option<VolumeNr>, TwoPc),
    Zeroes(VolumeNr, Trim),
    PeerAck(PeerAck),
    PeersInSync(VolumeNr, PeerBlockDesc),
    Uuids110(VolumeNr, Box<Uuids110>),
    PeerDagtag(PeerDagtag),
    /// New current generation and weak nodes.
    CurrentUuid(VolumeNr, GenUuid, NodeMask),
    TwoPcYes(Option<VolumeNr>, TwoPcReply),
    TwoPcNo(Option<VolumeNr>, TwoPcReply),
    TwoPcCommit(Option<VolumeNr>, TwoPc),
    TwoPcRetry(Option<VolumeNr>, TwoPcReply),
    ConfirmStable(ConfirmStable),
    RsCancelAhead(VolumeNr, BlockAck),
    Disconnect,
    RsDagtagReq(VolumeNr, RsReq),
    RsCsumDagtagReq(VolumeNr, RsReq, Digest),
    RsThinDagtagReq(VolumeNr, RsReq),
    OvDagtagReq(VolumeNr, RsReq),
    OvDagtagReply(VolumeNr, RsReq, Digest),
    WriteAckInSync(VolumeNr, BlockAck),
    RsNegAck(VolumeNr, BlockAck),
    OvResultId(VolumeNr, BlockAck, OvResult),
    RsDeallocatedId(VolumeNr, BlockAck),
    FlushRequests(u64),
    /// Sequence, raw initiator.
    FlushForward(u64, u32),
    /// Sequence, raw primary.
    FlushRequestsAck(u64, u32),
    EnableReplicationNext(VolumeNr, bool),
    EnableReplication(VolumeNr, bool),
    /// A write of a second Primary.
    JointData(VolumeNr, Data),
    /// A discard or a write of zeroes of a second Primary.
    JointTrim(VolumeNr, Trim),
    JointRead(VolumeNr, BlockReq),
    JointFlush(VolumeNr, BlockId),
    /// What a second Primary has read.
    JointReply(VolumeNr, Data),
    /// The end of another request of a second Primary, or of a read that failed.
    JointDone(VolumeNr, BlockId, JointResult),
    Joint(JointWord),
    InitialMeta,
    InitialData,
    ConnectionFeatures(Features),
}
