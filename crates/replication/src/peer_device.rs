//! One volume towards one peer: what is known of the peer's disk, and what runs between the two.

use codec::wire::{Sizes, StateWord, UuidFlags};
use serde::{Deserialize, Serialize};
use vocab::options::PeerDeviceOptions;
use vocab::{DiskState, GenUuid, Instant, NodeMask, Sectors};

use crate::peer_uuids::PeerUuids;
use crate::plain::Plain;
use crate::resource::Decision;
use crate::resync::Resync;
use crate::verify::Verify;
use crate::volumes::Presence;

/// One volume towards one peer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PeerDevice {
    pub opts: PeerDeviceOptions,
    /// Sequence number of the last packet that carries one.
    pub seq: u32,
    /// This node has gone Ahead, and the peer has not said since that it knows.
    pub unfollowed: bool,
    pub uuids: Option<PeerUuids>,
    /// Generations that its disk was told to take, oldest first, and the nodes that miss them. What
    /// it says of itself may be from before it heard of them.
    pub taking: Vec<(GenUuid, NodeMask)>,
    /// This disk and the peer's have been connected since this one was attached (RECONNECT).
    pub together: bool,
    /// On this connection its disk has got to what the disk here is on its way to.
    pub holds_bound: bool,
    /// The generation here when the connection was lost.
    pub lost_at: GenUuid,
    /// They are the peer's answer to this node's disk that negotiates.
    pub uuids_fresh: bool,
    /// They are those of a disk that the peer is attaching, and were not compared yet.
    pub uuids_attaching: bool,
    /// The peer has shown itself as resync source or in a verify since it began.
    pub source_seen: bool,
    /// It was Inconsistent when it was lost without a word, and its resync may have come to its end
    /// just then; or it may not have heard that it was left behind. It is not known to be harmless.
    pub maybe_current: bool,
    /// Since when the peer has the disk that it has now, as far as it was connected then.
    pub disk_since: Instant,
    pub sizes: Option<Sizes>,
    pub last_sent: Option<StateWord>,
    pub last_word: Option<StateWord>,
    /// In answer to this node's last connect transaction, the peer has still to send its states, or
    /// to say that it does not.
    pub word_due: bool,
    /// What was decided for the last write (a change starts a new epoch).
    pub decision: Decision,
    pub resync: Option<Box<Resync>>,
    pub verify: Option<Box<Verify>>,
    /// Next bit of the bitmap the peer is sending.
    pub bitmap_in: u64,
    /// Where the last verify stopped, in sectors.
    pub verify_position: u64,
    /// Some of the bits are what a verify has found; an operator decides about them.
    pub verify_found: bool,
    /// Generation of the peer for which it was last asked to compare again, see `ask_successor`.
    pub asked_in: GenUuid,
    /// Neither disk was resynced since the peer's last verify began: what it finds is taken.
    pub verify_valid: bool,
    /// The last handshake asked for a resync again while one was running.
    pub resync_again: bool,
    /// The exchange of bitmaps that runs was begun by comparing outside of a handshake.
    pub recompared: bool,
    /// The peer was forced to be UpToDate while both disks were Inconsistent: its next states are
    /// to be compared.
    pub forced: bool,
    /// Since when this node and the peer say different things about a resync or verify.
    pub disagree: Option<Instant>,
    /// The running resync can not make the target UpToDate.
    pub unstable: bool,
    pub sent_sectors: u64,
    pub received_sectors: u64,
    pub reads_pending: u32,
    /// Own generation when the peer was last asked to compare (GOT_STABLE), until it answers.
    pub asked: GenUuid,
    /// Nodes that this peer has just connected to, or may have connected to before a resync to it
    /// began. What such a Primary wrote before, this node may get from it without anyone knowing
    /// whether the peer has it.
    pub joined: NodeMask,
    /// What this node sent as its UUIDs in the running handshake.
    pub sent_uuids: Option<SentUuids>,
    /// Requests to a peer that answers by range.
    #[serde(default)]
    pub plain: Plain,
    /// It has the volume, as far as it was asked on this connection.
    #[serde(default)]
    pub presence: Presence,
}

/// Own identifiers as sent in a handshake: a decision is only taken on what was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SentUuids {
    pub current: GenUuid,
    pub bitmap: GenUuid,
    pub flags: UuidFlags,
    pub dirty_bits: u64,
    /// What the disk was then.
    pub disk: DiskState,
    /// The size of the volume then.
    pub size: Sectors,
}

impl PeerDevice {
    pub(crate) fn new(opts: PeerDeviceOptions) -> PeerDevice {
        PeerDevice {
            opts,
            seq: 0,
            uuids: None,
            taking: Vec::new(),
            unfollowed: false,
            together: false,
            uuids_fresh: false,
            holds_bound: false,
            lost_at: GenUuid::NONE,
            maybe_current: false,
            disk_since: Instant::default(),
            uuids_attaching: false,
            source_seen: false,
            sizes: None,
            last_sent: None,
            last_word: None,
            word_due: false,
            decision: Decision::Nothing,
            resync: None,
            verify: None,
            bitmap_in: 0,
            verify_position: 0,
            verify_found: false,
            asked_in: GenUuid::NONE,
            verify_valid: false,
            resync_again: false,
            recompared: false,
            forced: false,
            disagree: None,
            unstable: false,
            sent_sectors: 0,
            received_sectors: 0,
            reads_pending: 0,
            asked: GenUuid::NONE,
            joined: NodeMask::EMPTY,
            sent_uuids: None,
            plain: Plain::default(),
            presence: Presence::default(),
        }
    }

    /// The peer names its identifiers.
    pub(crate) fn name(&mut self, uuids: PeerUuids) {
        let reached = |uuid| uuids.current.same(uuid) || uuids.succeeds(uuid);
        self.taking.retain(|(uuid, _)| !reached(*uuid));
        self.uuids = Some(uuids);
    }

    /// The peer's identifiers as they are about to be, with what it had not heard of when it named
    /// them.
    pub(crate) fn expected(&self) -> Option<PeerUuids> {
        let mut uuids = self.uuids.clone()?;
        for (uuid, weak) in &self.taking {
            uuids.follow(*uuid, *weak);
        }
        Some(uuids)
    }

    /// Next sequence number for a packet that carries one (wire §3.3).
    pub(crate) fn next_seq(&mut self) -> u32 {
        self.seq = self.seq.wrapping_add(1);
        self.seq
    }
}
