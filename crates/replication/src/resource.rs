//! The hub: one resource, its volumes and its peers, and the dispatch of inputs.
//!
//! Each concern is an `impl Resource` in its own module: `transition` (changing states),
//! `twopc` (cluster-wide changes), `handshake`, `request` (writes of users), `read`, `receive`
//! (writes of peers), `joint` (a second Primary), `epoch`, `resync`, `verify`, `loss` (what a lost peer means), `meta`
//! (durability), `admin` and `open`. This file owns the data they share.

use std::collections::VecDeque;

use codec::wire::{BlockId, Packet};
use serde::{Deserialize, Serialize};
use vocab::options::{DiskOptions, NetOptions, PeerDeviceOptions, ResourceOptions};
use vocab::{
    ConnState, Dagtag, DiskState, GenUuid, Instant, MAX_NODES, Minor, NodeId, NodeMask, ReplState,
    Role, SectorRange, Sectors, Suspended, VolumeNr,
};

use crate::config::{PeerConfig, ResourceConfig, VolumeConfig};
use crate::disk_timeout::DiskWatch;
use crate::exposed::{Lacking, Proposals, Unconfirmed};
use crate::fencing::Fence;
use crate::generation::Generations;
use crate::handlers::Handlers;
use crate::handshake::Handshake;
use crate::intervals::{Intervals, Kind, Slot};
use crate::io::{BufId, Input, LogLevel, OpId, Output, Request};
use crate::joint::{Foreign, Joint};
use crate::legacy::Dialect;
use crate::loss::PrimaryLoss;
use crate::meta::{Backing, Content};
use crate::parting::Parting;
use crate::peer_ack::PeerAcks;
use crate::peer_device::PeerDevice;
use crate::peer_uuids::PeerUuids;
use crate::read::{PeerRead, Read};
use crate::receive::{PeerWrite, Receiver};
use crate::request::{TransferLog, WaitingOn};
use crate::resync::{LateWrite, Serve};
use crate::rng::Rng;
use crate::slab::Slab;
use crate::state::{DevState, PeerIx, PeerState, State, VolIx, VolState};
use crate::twopc::TwoPcs;

/// One resource on one node. What is skipped is empty whenever it is frozen, see `frozen`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Resource {
    pub(crate) name: String,
    pub(crate) me: NodeId,
    pub(crate) opts: ResourceOptions,
    pub(crate) now: Instant,
    /// The input being handled is a timeout: what came with a burst was handled before it.
    pub(crate) in_timeout: bool,
    pub(crate) rng: Rng,
    pub(crate) st: State,
    pub(crate) vols: Vec<Volume>,
    pub(crate) peers: Vec<Peer>,
    /// Nodes that took part in the last committed cluster-wide change this node knows of.
    pub(crate) members: NodeMask,
    /// Capable Primaries beyond direct reach, by the last committed transaction, and those that have
    /// fallen silent here since.
    pub(crate) far_primaries: NodeMask,
    /// Sectors this node has written as Primary.
    pub(crate) dagtag: Dagtag,
    /// Promoted by command: the last close does not demote.
    pub(crate) explicit_primary: bool,
    /// A demotion runs: no new writes, and openers wait for its end.
    pub(crate) demoting: bool,
    pub(crate) log: TransferLog,
    pub(crate) peer_acks: PeerAcks,
    /// This node is Primary beside another one.
    #[serde(default)]
    pub(crate) joint: Joint,
    /// Requests of nodes that are Primary beside this one.
    #[serde(skip)]
    pub(crate) foreign: Slab<Foreign>,
    /// Those nodes are to send no more for now.
    #[serde(default)]
    pub(crate) holds_foreign: bool,
    /// Peers of protocol 121 are taken ([`Resource::take_protocol_121`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) takes_121: bool,
    #[serde(skip)]
    pub(crate) reads: Slab<Read>,
    #[serde(skip)]
    pub(crate) peer_writes: Slab<PeerWrite>,
    pub(crate) peer_reads: Slab<PeerRead>,
    pub(crate) serves: Slab<Serve>,
    #[serde(skip)]
    pub(crate) late_writes: Vec<LateWrite>,
    /// Number of the next resync request. None is used twice: the disk may still work on what an
    /// earlier resync has asked for.
    pub(crate) next_resync_request: u64,
    #[serde(skip)]
    pub(crate) ops: Slab<Running>,
    pub(crate) twopc: TwoPcs,
    pub(crate) pings: Vec<PingRound>,
    pub(crate) handlers: Handlers,
    /// Operators waiting for all accepted writes to end.
    #[serde(skip)]
    pub(crate) drain_waiters: Vec<u64>,
    #[serde(skip)]
    pub(crate) work: VecDeque<Work>,
    #[serde(skip)]
    pub(crate) out: VecDeque<Output>,
    pub(crate) visible_change: bool,
}

/// One volume on this node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Volume {
    pub nr: VolumeNr,
    pub minor: Minor,
    /// Meant to be without a disk here.
    pub intentional_diskless: bool,
    /// Its disk has been attached since this node started, or it is to have none: this node knows
    /// what it has voted for.
    pub remembers: bool,
    /// The superblock says that this node has gone on without the disk.
    pub says_adrift: bool,
    /// The disk is being released.
    #[serde(skip)]
    pub parting: Option<Box<Parting>>,
    #[serde(default)]
    pub watch: DiskWatch,
    pub disk_opts: DiskOptions,
    pub backing: Option<Box<Backing>>,
    /// Effective size; 0 until known.
    pub size: Sectors,
    /// The size that users have been told.
    pub told_size: Sectors,
    /// Generation that users of this node have seen; survives the loss of the disk. Changed by
    /// `expose` alone.
    pub exposed: GenUuid,
    /// Generations that were exposed before, youngest first.
    pub users_left: Vec<GenUuid>,
    /// Generations of this node that no disk is known to have.
    pub proposals: Proposals,
    /// The generation that the disk is on its way to, see the module `bound`.
    pub bound_for: GenUuid,
    /// The identifiers of an UpToDate disk that has left this disk's generation behind.
    pub newer: Option<Box<PeerUuids>>,
    /// When this disk last met another one. If either stopped under writes, the other one is given
    /// time to say what it has.
    pub met_at: Instant,
    /// When a client last named a generation that this disk does not know. What others have said
    /// before, they may have said over a link that is dead.
    pub unknown_at: Instant,
    /// A new generation must start before the next write is admitted.
    pub bump_pending: bool,
    /// A ping round or metadata write of the bump runs.
    pub bump_running: bool,
    /// Forced UpToDate in a generation that is not durable yet: kernel peers compare at the next
    /// state they get, which therefore has to follow the generation.
    pub forcing: bool,
    /// A generation of this disk that is being made durable; peers hear of it afterwards.
    pub bump_announce: Option<NewGeneration>,
    /// A generation that the disk may hold although nobody was told, and what it held before: it
    /// was lost, or became useless, while it was being made durable.
    pub unannounced: Option<Box<(GenUuid, Generations)>>,
    /// This disk has taken a generation that a Primary without disk proposed, and does not tell
    /// that Primary before these nodes, which it does not reach, have been asked.
    pub vouch: Option<NodeMask>,
    /// The generation of this Primary that nodes with a vote are still to hear of, see the module
    /// `tell`.
    pub telling: GenUuid,
    /// Was Primary when it stopped (from metadata, or a failed disk).
    pub crashed_primary: bool,
    /// It held what a crashed Primary had left, until a disk that had stayed took precedence: what
    /// it holds now takes precedence as well, in that generation.
    pub of_survivor: GenUuid,
    /// Stopped as a Secondary while its Primary wrote: it may hold writes that others lack, and
    /// lack some that it had not flushed. It is not simply equal to peers of its generation.
    pub crashed_secondary: bool,
    /// A Primary has said that others have writes which it misses, and it has not been current since.
    pub told_behind: bool,
    /// When it stopped so, the cache of its disk may have been lost with the power. Means nothing
    /// for a disk that did not stop under writes.
    pub lost_cache: bool,
    /// The start of the machine that the disk was attached in, see [`crate::io::AttachImage::boot`].
    pub boot: u64,
    pub lost_quorum: bool,
    /// The disk that was given up last, in good order or not: it has lost nothing that was written.
    pub detached: Option<Content>,
    /// Its generations when it was given up: those that this node has seen it leave behind.
    pub released: Option<Box<Generations>>,
    /// The disk that this Primary gave up when it was current.
    pub given_up: Option<Content>,
    /// Nodes that lack what this Primary has reported.
    pub lacking: Lacking,
    /// An operator detaches the disk of this Primary: what was written before this epoch was
    /// reported without the peers' word, what is written since is not.
    pub leaving: Option<u64>,
    /// When a write was last recorded as missing on a node.
    pub missed_at: [Instant; MAX_NODES],
    /// Diskless Primary: the newest generation is not confirmed by its peers yet.
    pub unconfirmed: Option<Unconfirmed>,
    pub openers: Vec<Opener>,
    /// It was added by that wish, and not all peers have said yet what they have of it.
    #[serde(skip)]
    pub added_by: Option<u64>,
    /// Opened for writing, the promotion runs.
    #[serde(skip)]
    pub waiting_openers: Vec<u64>,
    /// Opened for reading while another node is about to be Primary, and until when to wait for it.
    #[serde(skip)]
    pub waiting_readers: Vec<WaitingReader>,
    pub intervals: Intervals<Owner>,
    /// Requests of users that are not admitted yet.
    #[serde(skip)]
    pub held: VecDeque<Request>,
    /// Waiting for room in the activity log.
    #[serde(skip)]
    pub al_wait: VecDeque<WaitingOn>,
    /// Part of the next or running activity log transaction.
    #[serde(skip)]
    pub al_queued: Vec<WaitingOn>,
    /// Writes that the disk, which is back, lacks and has not been given yet.
    pub again: usize,
    /// This node has written to its disk as Primary since it last flushed it for a demotion.
    pub unflushed: bool,
    /// Waiting for an overlapping operation to end.
    #[serde(skip)]
    pub conflict_wait: VecDeque<WaitingOn>,
    pub reads_in_flight: u32,
    /// Counts reads for `read-balancing round-robin`.
    pub round_robin: u32,
    /// Where the last read went that went to a peer.
    pub last_source: PeerIx,
    pub stats: VolumeStats,
}

/// A generation that this node has started and not told its peers yet.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NewGeneration {
    pub current: GenUuid,
    /// What it comes after.
    pub before: Box<Generations>,
    /// Connected nodes that never had the data: they miss the start of it.
    pub never_synced: NodeMask,
    /// The data was forced UpToDate: peers compare again.
    pub forced: bool,
}

/// Counters of a volume.
#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct VolumeStats {
    pub read_sectors: u64,
    pub written_sectors: u64,
    /// How often users elsewhere may have written what the disk has or gets
    /// (`Resource::changes_by_others`).
    pub foreign: u64,
    pub bm_writes: u64,
    pub sb_writes: u64,
}

/// Someone waits to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitingReader {
    pub opener: u64,
    pub until: Instant,
    /// Also while another node is Primary.
    pub patient: bool,
}

/// Someone holds the volume open.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Opener {
    pub id: u64,
    pub write: bool,
}

/// Whose I/O covers a range of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Owner {
    /// A user's write, by sequence number.
    Local(u64),
    /// A peer's write, by slab key.
    Peer(PeerIx, usize),
    /// This node asked the peer for the range and will write it.
    ResyncTarget(PeerIx),
    /// What a peer was asked for is on its way to the disk.
    ResyncWrite(PeerIx),
    /// This node reads the range for the peer, until the peer has written it.
    ResyncSource(PeerIx, usize),
    /// The range is being compared.
    Verify(PeerIx),
}

impl Owner {
    const fn kind(self) -> Kind {
        match self {
            Owner::Local(_) => Kind::LocalWrite,
            Owner::Peer(..) => Kind::PeerWrite,
            Owner::ResyncTarget(_) | Owner::ResyncWrite(_) => Kind::ResyncWrite,
            Owner::ResyncSource(..) => Kind::ResyncRead,
            Owner::Verify(_) => Kind::Verify,
        }
    }
}

impl Volume {
    /// Registers I/O in flight.
    pub(crate) fn claim(&mut self, range: SectorRange, owner: Owner) -> Slot {
        self.intervals.insert(range, owner.kind(), owner)
    }

    /// A range that is claimed is claimed for something else from here on.
    pub(crate) fn claim_as(&mut self, key: Slot, owner: Owner) -> Slot {
        let range = self.intervals.remove(key).range;
        self.claim(range, owner)
    }

    /// I/O in flight that overlaps the range and that `blocks` names as a conflict.
    pub(crate) fn conflict(
        &self,
        range: SectorRange,
        blocks: impl Fn(Owner) -> bool,
    ) -> Option<Owner> {
        self.intervals.first_conflict(range, |e| blocks(e.id)).map(|(_, e)| e.id)
    }
}

/// One peer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub node: NodeId,
    pub name: String,
    pub net: NetOptions,
    pub devs: Vec<PeerDevice>,
    pub discard_my_data: bool,
    /// It is Primary beside this node, which does its I/O.
    #[serde(default)]
    pub joined: bool,
    /// It was, and waits for the end of what was done for it.
    #[serde(default)]
    pub leaves: bool,
    /// Was Connected before, since this node started (RECONNECT).
    pub reconnect: bool,
    pub link: Link,
    /// Try again at this time.
    pub retry_at: Option<Instant>,
    /// This node holds RESOLVE_CONFLICTS.
    pub tie_break: bool,
    pub agreed_version: u32,
    pub agreed_features: u32,
    pub hs: Handshake,
    pub send: Sender,
    pub recv: Receiver,
    pub last_rx: Instant,
    /// What arrived since then, the peer has said knowing all that this node knew at that time.
    pub heard_at: Instant,
    /// A ping asks for that.
    pub hearing: bool,
    /// Pings that are not answered, and when the one under way was sent.
    pub pings: Pings,
    pub ping_since: Instant,
    /// It has pinged, and is answered once a disk here has said its last word.
    #[serde(skip)]
    pub owes_ping_ack: bool,
    /// Sectors that it has asked for in resyncs, and not confirmed.
    pub rs_under_way: u64,
    /// This node is Ahead of it, and leaves that state then.
    pub leave_ahead_at: Option<Instant>,
    pub loss: Option<PrimaryLoss>,
    /// What `fence-peer` is doing about it.
    pub fence: Fence,
    /// verify-alg of the peer, from its last parameters.
    pub peer_verify_alg: Option<String>,
    /// Its csums-alg, likewise.
    pub peer_csums_alg: Option<String>,
    /// It speaks protocol 8, on the connection that there is.
    #[serde(default)]
    pub legacy: Option<Box<Dialect>>,
}

/// The link of a connection, as far as the sockets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Link {
    /// No sockets, none wanted.
    Down,
    /// The driver tries.
    Wanted,
    /// Sockets are up.
    Up,
    /// A planned disconnect is committed: the peer closes once it has heard of it. Nothing is
    /// sent or taken any more.
    Closing,
}

/// Sending side of a connection.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sender {
    /// Last dagtag sent or implied on this connection.
    pub dagtag: Option<Dagtag>,
    /// Epoch of the last write sent, and how many of it were sent.
    pub epoch: u64,
    pub epoch_writes: u32,
    /// Sectors of them that are confirmed by its barrier alone.
    pub epoch_sectors: u64,
    /// Barriers sent and not acknowledged.
    pub barriers: VecDeque<SentBarrier>,
    /// Writes of epochs up to this one are stable on the peer.
    pub acked_epoch: u64,
    /// Youngest write for which the peer is owed a peer-ack.
    pub peer_ack: Option<Dagtag>,
    /// Highest dagtag that was peer-acked.
    pub peer_acked: Dagtag,
    /// Sectors of writes that are sent and not confirmed.
    pub app_in_flight: u64,
}

/// A barrier that is not acknowledged.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct SentBarrier {
    pub epoch: u64,
    /// Writes of the epoch that were sent.
    pub writes: u32,
    /// Sectors of them that nothing else confirms.
    pub sectors: u64,
    pub since: Instant,
}

/// Pings to a peer: never two at once.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Pings {
    #[default]
    None,
    /// One is under way.
    One,
    /// One is under way, and was sent too early for what another one is to find out.
    AndOneMore,
}

/// What a write to a peer becomes (semantics §8.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Decision {
    Nothing,
    Data,
    OutOfSync,
}

/// An operation in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    pub op: Op,
    pub since: Instant,
}

/// What an operation in flight belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// Local part of a user's write or flush, by sequence number.
    Write(u64),
    /// Local read for a user.
    Read(usize),
    /// Peer's write.
    PeerWrite(usize),
    /// Flush at the end of a peer's epoch.
    EpochFlush(PeerIx, VolIx),
    /// Flush before confirming writes early.
    ConfirmFlush(PeerIx, VolIx),
    /// Read for a diskless peer.
    PeerRead(usize),
    /// Read or digest for a peer's resync or verify request.
    Serve(usize),
    /// Write of a resync block received.
    ResyncWrite(PeerIx, VolIx, u64),
    /// Digest of the own copy of a block that is to be asked for by it.
    ResyncDigest(PeerIx, VolIx, u64),
    /// Flush before a demotion.
    DemotionFlush(VolIx),
    /// Zeroes where metadata was.
    ZeroLeft(VolIx),
    /// Flush before a resync is declared finished.
    ResyncFlush(PeerIx, VolIx),
    /// Digest of the own copy of a verified block.
    VerifyDigest(PeerIx, VolIx, u64),
    /// Metadata write.
    Meta(VolIx),
    /// The disk was given up, and nobody waits for it any more; it may still use the buffer.
    Abandoned(VolIx, Option<BufId>),
}

/// A set of peers that must answer a ping before something goes on.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PingRound {
    pub waiting: NodeMask,
    pub then: Work,
}

/// What remains to be done once an event is digested, or once something is durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Look at held requests again.
    Kick(VolIx),
    /// All peers answered: start a new generation if one is due.
    Bump(VolIx),
    /// The new generation is durable (or there was none).
    BumpDone(VolIx),
    /// Second half of losing a peer: the generation is settled, requests may forget the peer.
    LossCleanup(PeerIx),
    /// A generation adopted from a peer is durable: tell the peers.
    Adopted(VolIx),
    /// The generation that a resync target takes part in is on record.
    Bound(VolIx, GenUuid),
    /// It is on record which writes under way a disk that is back lacks.
    WriteAgain(VolIx),
    /// The metadata says Inconsistent: resync requests may go out.
    ResyncMayWrite(PeerIx, VolIx),
    /// Bits that a resync target was told of are on disk.
    ToldWritten(VolIx),
    /// The source answered a ping at the end of a resync.
    ResyncEndPing(PeerIx, VolIx),
    /// The data of a finished resync is stable: record it.
    ResyncRecord(PeerIx, VolIx),
    /// The end of a resync is recorded.
    ResyncRecorded(PeerIx, VolIx),
    /// Answer an operator.
    Answer(u64),
    /// A forgotten peer is off the disks before that one.
    Forgotten(u64, VolIx),
    /// A new size of the volume is on disk.
    Resized(VolIx, Sectors),
    /// A cluster-wide change goes on (transaction id of the job).
    Job(u64),
    /// What this node is to have on record before it answers in that transaction, is.
    Answerable(u32),
    /// Bits of a whole slot are durable: the bitmap exchange or full resync may start.
    BitmapReady(PeerIx, VolIx),
    /// Compare generations with this peer again.
    Recompare(PeerIx, VolIx),
    /// A Primary was lost, and all of its writes are settled here.
    Reconcile(NodeId),
    /// The peer that lost the Primary is known to have lost it.
    PeerDagtag(PeerIx, Dagtag, NodeId),
    /// Run the lost-peer transaction.
    LostPeer,
    /// The peer answered: what it says from now on, it says knowing what this node knew then.
    Heard(PeerIx, Instant),
    /// Connect to the peer anew.
    Reconnect(PeerIx),
    /// Lift a suspension whose cause is gone.
    Resume,
    /// What stands between the core and a peer of protocol 8 goes on.
    Legacy(PeerIx),
}

impl Resource {
    /// A resource that is configured and idle: every volume Diskless, every connection
    /// StandAlone. `seed` feeds generation identifiers and back-off times; it must never repeat
    /// between two runs of one node. The node's write stream goes on from `position`, which lies
    /// beyond all that earlier runs of it have used: others compare what they have of the stream.
    pub fn new(config: ResourceConfig, seed: u64, position: Dagtag) -> Resource {
        let mut resource = Resource {
            name: config.name,
            me: config.node_id,
            opts: config.options,
            now: Instant::default(),
            in_timeout: false,
            rng: Rng::new(seed),
            st: State {
                role: Role::Secondary,
                susp: Suspended::default(),
                fail_io: false,
                vols: Vec::new(),
                peers: Vec::new(),
            },
            vols: Vec::new(),
            peers: Vec::new(),
            members: config.node_id.mask(),
            far_primaries: NodeMask::EMPTY,
            dagtag: position,
            explicit_primary: false,
            demoting: false,
            log: TransferLog::new(),
            peer_acks: PeerAcks::default(),
            joint: Joint::default(),
            foreign: Slab::new(),
            holds_foreign: false,
            takes_121: false,
            reads: Slab::new(),
            peer_writes: Slab::new(),
            peer_reads: Slab::new(),
            serves: Slab::new(),
            late_writes: Vec::new(),
            next_resync_request: 1,
            ops: Slab::new(),
            twopc: TwoPcs::default(),
            pings: Vec::new(),
            handlers: Handlers::new(config.handlers),
            drain_waiters: Vec::new(),
            work: VecDeque::new(),
            out: VecDeque::new(),
            visible_change: false,
        };
        for volume in config.volumes {
            resource.add_volume(volume);
        }
        for peer in config.peers {
            resource.add_peer(peer);
        }
        resource
    }

    /// Takes one input at time `now`, which never goes backwards.
    pub fn handle(&mut self, now: Instant, input: Input) {
        debug_assert!(now >= self.now, "time went backwards");
        self.now = now;
        self.in_timeout = matches!(input, Input::Timeout);
        match input {
            Input::LinkUp { peer, tie_break, challenge } => {
                self.link_up(peer, tie_break, challenge);
            }
            Input::LinkDown { peer, loss } => self.link_down(peer, loss),
            Input::Packet { peer, packet, payload } => self.packet(peer, packet, payload),
            Input::DiskDone { op, result } => self.disk_done(op, result),
            Input::MetaDone { op, result } => self.meta_done(op, result),
            Input::DiskMeasured { volume, result } => self.disk_measured(volume, result),
            Input::HandlerDone { id, exit } => self.handler_done(id, exit),
            Input::Open { volume, opener, write, patient } => {
                self.open(volume, opener, write, patient);
            }
            Input::Close { volume, opener } => self.close(volume, opener),
            Input::Request(request) => self.user_request(request),
            Input::HoldForeign(hold) => self.hold_foreign(hold),
            Input::WaitForOther { volume, wait } => self.wait_for_other(volume, wait),
            Input::Admin { id, command } => self.admin(id, command),
            // Only here: what an input brings is not undone by what is overdue in the same step.
            Input::Timeout => self.timers(),
        }
        self.settle();
    }

    /// The next effect to carry out, in order.
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// Does what the input made possible, until nothing is left.
    fn settle(&mut self) {
        self.retry_bumps();
        loop {
            while let Some(work) = self.work.pop_front() {
                self.do_work(work);
            }
            self.complete_reached();
            self.run_jobs();
            self.answer_readers();
            self.answer_added();
            for vol in 0..self.vols.len() {
                self.pump_meta(vol);
            }
            if self.work.is_empty() {
                break;
            }
        }
        if std::mem::take(&mut self.visible_change) {
            self.out.push_back(Output::StateChanged);
        }
    }

    fn do_work(&mut self, work: Work) {
        match work {
            Work::Kick(vol) => self.kick(vol),
            Work::Bump(vol) => self.bump(vol),
            Work::BumpDone(vol) => self.bump_done(vol),
            Work::LossCleanup(peer) => self.loss_cleanup(peer),
            Work::Adopted(vol) => self.adopted(vol),
            Work::Bound(vol, uuid) => self.bound_recorded(vol, uuid),
            Work::WriteAgain(vol) => self.written_again(vol),
            Work::ResyncMayWrite(peer, vol) => self.resync_may_write(peer, vol),
            Work::ToldWritten(vol) => self.told_written(vol),
            Work::ResyncEndPing(peer, vol) => self.resync_end_ping(peer, vol),
            Work::ResyncRecord(peer, vol) => self.resync_record(peer, vol),
            Work::ResyncRecorded(peer, vol) => self.resync_recorded(peer, vol),
            Work::Answer(id) => self.admin_ok(id),
            Work::Forgotten(id, next) => self.record_forgotten(id, next),
            Work::Resized(vol, size) => self.resized(vol, size),
            Work::Job(id) => self.job_continue(id),
            Work::Answerable(tid) => self.transaction_recorded(tid),
            Work::BitmapReady(peer, vol) => self.bitmap_ready(peer, vol),
            Work::Recompare(peer, vol) => self.recompare(peer, vol),
            Work::Reconcile(node) => self.reconcile(node),
            Work::PeerDagtag(peer, dagtag, node) => self.peer_dagtag_checked(peer, dagtag, node),
            Work::LostPeer => self.want_lost_peer(),
            Work::Heard(peer, asked) => self.heard(peer, asked),
            Work::Reconnect(peer) => self.reconnect(peer),
            Work::Resume => self.try_resume(),
            Work::Legacy(peer) => self.legacy_work(peer),
        }
    }

    pub(crate) fn add_volume(&mut self, config: VolumeConfig) {
        self.vols.push(Volume {
            nr: config.nr,
            minor: config.minor,
            intentional_diskless: config.diskless,
            remembers: config.diskless,
            says_adrift: false,
            watch: DiskWatch::default(),
            parting: None,
            disk_opts: config.disk,
            backing: None,
            size: Sectors(0),
            told_size: Sectors(0),
            exposed: GenUuid::NONE,
            users_left: Vec::new(),
            proposals: Proposals::default(),
            bound_for: GenUuid::NONE,
            newer: None,
            unknown_at: Instant(0),
            bump_pending: false,
            bump_running: false,
            forcing: false,
            bump_announce: None,
            unannounced: None,
            vouch: None,
            telling: GenUuid::NONE,
            crashed_primary: false,
            of_survivor: GenUuid::NONE,
            crashed_secondary: false,
            told_behind: false,
            lost_cache: false,
            boot: 0,
            met_at: Instant(0),
            lost_quorum: false,
            detached: None,
            released: None,
            given_up: None,
            lacking: Lacking::default(),
            leaving: None,
            missed_at: [Instant::default(); MAX_NODES],
            unconfirmed: None,
            openers: Vec::new(),
            added_by: None,
            waiting_openers: Vec::new(),
            waiting_readers: Vec::new(),
            intervals: Intervals::with_capacity(0),
            held: VecDeque::new(),
            al_wait: VecDeque::new(),
            al_queued: Vec::new(),
            again: 0,
            unflushed: false,
            conflict_wait: VecDeque::new(),
            reads_in_flight: 0,
            round_robin: 0,
            last_source: self.me.index(),
            stats: VolumeStats::default(),
        });
        self.st.vols.push(VolState::new());
        for (peer, state) in self.peers.iter_mut().zip(&mut self.st.peers) {
            peer.devs.push(PeerDevice::new(PeerDeviceOptions::default()));
            state.devs.push(DevState::new());
        }
    }

    pub(crate) fn add_peer(&mut self, config: PeerConfig) {
        debug_assert_ne!(config.node_id, self.me);
        let devs = self.vols.iter().map(|vol| {
            let opts = config.devices.iter().find(|(nr, _)| *nr == vol.nr);
            PeerDevice::new(opts.map(|(_, o)| o.clone()).unwrap_or_default())
        });
        self.peers.push(Peer {
            node: config.node_id,
            name: config.name,
            devs: devs.collect(),
            net: config.net,
            discard_my_data: false,
            joined: false,
            leaves: false,
            reconnect: false,
            link: Link::Down,
            retry_at: None,
            tie_break: false,
            agreed_version: 0,
            agreed_features: 0,
            hs: Handshake::default(),
            send: Sender::default(),
            recv: Receiver::default(),
            last_rx: self.now,
            heard_at: self.now,
            hearing: false,
            pings: Pings::None,
            ping_since: self.now,
            owes_ping_ack: false,
            rs_under_way: 0,
            leave_ahead_at: None,
            loss: None,
            fence: Fence::Idle,
            peer_verify_alg: None,
            peer_csums_alg: None,
            legacy: None,
        });
        self.st.peers.push(PeerState {
            node: config.node_id,
            conn: ConnState::StandAlone,
            role: Role::Unknown,
            devs: vec![DevState::new(); self.vols.len()],
        });
    }

    /// Index of a configured peer.
    pub(crate) fn peer_ix(&self, node: NodeId) -> Option<PeerIx> {
        self.peers.iter().position(|p| p.node == node)
    }

    /// Index of a volume.
    pub(crate) fn vol_ix(&self, nr: VolumeNr) -> Option<VolIx> {
        self.vols.iter().position(|v| v.nr == nr)
    }

    /// Queues a packet. Nothing is sent to a peer whose sockets are down.
    pub(crate) fn send(&mut self, peer: PeerIx, packet: Packet) {
        self.send_with(peer, packet, None);
    }

    pub(crate) fn send_with(&mut self, peer: PeerIx, packet: Packet, payload: Option<BufId>) {
        if self.peers[peer].legacy.is_some() {
            return self.send_legacy(peer, packet, payload);
        }
        if self.is_plain(peer) {
            return self.send_plain(peer, packet, payload);
        }
        self.put_on_wire(peer, packet, payload);
    }

    /// Queues a packet as the peer is to get it.
    pub(crate) fn put_on_wire(&mut self, peer: PeerIx, packet: Packet, payload: Option<BufId>) {
        if self.peers[peer].link == Link::Up {
            let peer = self.peers[peer].node;
            self.out.push_back(Output::Send { peer, packet, payload });
        }
    }

    pub(crate) fn free(&mut self, buf: Option<BufId>) {
        if let Some(buf) = buf {
            self.out.push_back(Output::Free(buf));
        }
    }

    pub(crate) fn log(&mut self, level: LogLevel, text: impl Into<String>) {
        self.out.push_back(Output::Log(level, text.into()));
    }

    /// Registers an operation and gives its id.
    pub(crate) fn op(&mut self, op: Op) -> OpId {
        OpId(self.ops.insert(Running { op, since: self.now }) as u64)
    }

    /// A block id for the wire that no other request in flight on this node uses. The low two
    /// bits say what it names.
    pub(crate) const fn block_id(kind: IdKind, key: u64) -> BlockId {
        BlockId(((key + 1) << 2) | kind as u64)
    }

    /// The inverse of [`Self::block_id`].
    pub(crate) const fn block_key(id: BlockId, kind: IdKind) -> Option<u64> {
        if id.0 & 3 != kind as u64 || id.0 >> 2 == 0 { None } else { Some((id.0 >> 2) - 1) }
    }

    /// This node may read from and count on the peer's data.
    pub(crate) fn readable(&self) -> impl Fn(PeerIx) -> bool + '_ {
        |p| self.peers[p].net.allow_remote_read
    }

    /// UpToDate data of the volume can be reached in state `st`.
    pub(crate) fn has_data(&self, st: &State, vol: VolIx) -> bool {
        st.has_data(vol, self.readable())
    }

    /// The range lies within the volume as this node knows it.
    pub(crate) fn in_volume(&self, vol: VolIx, range: SectorRange) -> bool {
        let size = match &self.vols[vol].backing {
            Some(backing) => self.vols[vol].size.max(backing.sb.effective_size),
            None => self.vols[vol].size,
        };
        range.fits(size)
    }

    /// The peer has, or should have, a disk for the volume as far as this node's configuration
    /// goes.
    pub(crate) fn peer_has_bitmap(&self, peer: PeerIx, vol: VolIx) -> bool {
        self.peers[peer].devs[vol].opts.bitmap
    }

    /// The local disk takes part in writes: Inconsistent or better.
    pub(crate) fn disk_in_use(&self, vol: VolIx) -> bool {
        self.st.vols[vol].disk >= DiskState::Inconsistent && self.vols[vol].backing.is_some()
    }

    /// Replication state of a volume towards a peer.
    pub(crate) fn repl(&self, peer: PeerIx, vol: VolIx) -> ReplState {
        self.st.peers[peer].devs[vol].repl
    }
}

/// What a block id of this node names; see [`Resource::block_id`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdKind {
    Write = 0,
    Read = 1,
    Resync = 2,
    Verify = 3,
}
