//! The states of one resource as plain data, and what follows from them.
//!
//! Everything an operator sees as a state lives in [`State`]; everything else (metadata,
//! requests, timers) lives in the objects of `resource`. A change is made on a copy, adjusted,
//! checked and committed as a whole (see `transition`), so that a rule can always compare the
//! old state with the new one.

use serde::{Deserialize, Serialize};
use vocab::{ConnState, DiskState, NodeId, NodeMask, ReplState, Role, Suspended};

/// Index of a volume in `Resource::vols` and [`State::vols`].
pub(crate) type VolIx = usize;
/// Index of a peer in `Resource::peers` and [`State::peers`].
pub(crate) type PeerIx = usize;

/// All states of a resource on this node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub role: Role,
    pub susp: Suspended,
    /// I/O fails on purpose, from a forced demotion until the last opener is gone.
    pub fail_io: bool,
    pub vols: Vec<VolState>,
    pub peers: Vec<PeerState>,
}

/// States of a local volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct VolState {
    pub disk: DiskState,
    /// Enforced quorum: what operators see; true if none is configured.
    pub quorum: bool,
    /// Quorum as counted, whether configured or not.
    pub real_quorum: bool,
    /// This node may know less than what it has given its vote for.
    pub forgetful: bool,
    /// Another volume of this node is resynced first (`resync-after`).
    pub waits_for_other: bool,
    /// It was added while others were in use, and has not had quorum and data since: what it lacks
    /// stops its own I/O, and not that of the resource.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aside: bool,
}

/// States of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PeerState {
    pub node: NodeId,
    pub conn: ConnState,
    pub role: Role,
    /// By volume index.
    pub devs: Vec<DevState>,
}

/// States of one volume towards one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct DevState {
    pub repl: ReplState,
    pub disk: DiskState,
    /// The operator paused the resync here.
    pub pause_user: bool,
    /// The peer reports a pause of its own.
    pub pause_peer: bool,
    /// A resync of another volume goes first.
    pub pause_dependency: bool,
    /// Another resync of this volume goes first.
    pub pause_other: bool,
    /// The peer says that it is quorate.
    pub peer_quorum: bool,
    /// It says that it may know less than what it has given its vote for.
    pub forgetful: bool,
}

impl DevState {
    /// A peer device without a connection.
    pub(crate) const fn new() -> DevState {
        DevState {
            repl: ReplState::Off,
            disk: DiskState::DUnknown,
            pause_user: false,
            pause_peer: false,
            pause_dependency: false,
            pause_other: false,
            peer_quorum: false,
            forgetful: false,
        }
    }

    /// Any reason to pause, at either end.
    pub(crate) const fn paused(&self) -> bool {
        self.pause_user || self.pause_peer || self.pause_dependency || self.pause_other
    }
}

impl VolState {
    /// A volume without a disk.
    pub(crate) const fn new() -> VolState {
        // A node that starts has had no quorum yet, whatever its disk remembers.
        VolState {
            disk: DiskState::Diskless,
            quorum: true,
            real_quorum: false,
            forgetful: false,
            waits_for_other: false,
            aside: false,
        }
    }
}

impl State {
    /// Peers whose handshake is complete.
    pub(crate) fn connected(&self) -> impl Iterator<Item = PeerIx> + '_ {
        self.peers
            .iter()
            .enumerate()
            .filter(|(_, p)| p.conn == ConnState::Connected)
            .map(|(i, _)| i)
    }

    /// The same as a set of nodes.
    pub(crate) fn connected_mask(&self) -> NodeMask {
        self.connected().map(|i| self.peers[i].node).collect()
    }

    /// True if the peer is connected.
    pub(crate) fn is_connected(&self, peer: PeerIx) -> bool {
        self.peers[peer].conn == ConnState::Connected
    }

    /// The peer is connected and has a disk for the volume, or negotiates what it is: blocks of a
    /// resync are asked of it, or by it.
    pub(crate) fn has_disk(&self, peer: PeerIx, vol: VolIx) -> bool {
        let disk = self.peers[peer].devs[vol].disk;
        self.is_connected(peer) && (DiskState::Negotiating..=DiskState::UpToDate).contains(&disk)
    }

    /// Connected peers that are Primary.
    pub(crate) fn primary_peers(&self) -> NodeMask {
        self.connected()
            .filter(|i| self.peers[*i].role == Role::Primary)
            .map(|i| self.peers[i].node)
            .collect()
    }

    /// This node's data can not change by replication from a neighbour (semantics §4.10).
    pub(crate) fn stable(&self) -> bool {
        self.role == Role::Primary || self.primary_peers().is_empty()
    }

    /// UpToDate data of the volume can be reached, here or through a readable connected peer.
    pub(crate) fn has_data(&self, vol: VolIx, readable: impl Fn(PeerIx) -> bool) -> bool {
        self.vols[vol].disk == DiskState::UpToDate
            || self
                .connected()
                .any(|p| readable(p) && self.peers[p].devs[vol].disk == DiskState::UpToDate)
    }

    /// All volumes that the resource goes by have quorum.
    pub(crate) fn is_quorate(&self) -> bool {
        self.vols.iter().all(|v| v.quorum || v.aside)
    }

    /// This node is the target side of a resync of the volume.
    pub(crate) fn is_target(&self, vol: VolIx) -> bool {
        self.peers.iter().any(|p| p.devs[vol].repl.is_target())
    }
}

/// Lowest and highest disk states allowed in a replication state: own disk, peer's disk
/// (semantics §1.5). Entering the state clamps both into these ranges.
pub(crate) const fn allowed_disks(
    repl: ReplState,
) -> ((DiskState, DiskState), (DiskState, DiskState)) {
    use DiskState::{Consistent, DUnknown, Inconsistent, Outdated, UpToDate};
    match repl {
        ReplState::Off => ((DiskState::Diskless, UpToDate), (Inconsistent, DUnknown)),
        ReplState::Established => {
            ((DiskState::Diskless, UpToDate), (DiskState::Diskless, UpToDate))
        }
        ReplState::StartingSyncS | ReplState::WFBitMapS | ReplState::PausedSyncS => {
            ((Inconsistent, UpToDate), (Inconsistent, Consistent))
        }
        // Stricter than the reference, for which it may be Consistent: the next generation is to
        // leave that disk behind, whatever it says that it is before it has heard of this.
        ReplState::Ahead => ((Inconsistent, UpToDate), (Inconsistent, Outdated)),
        ReplState::StartingSyncT
        | ReplState::WFBitMapT
        | ReplState::WFSyncUUID
        | ReplState::Behind => ((Inconsistent, Outdated), (Inconsistent, UpToDate)),
        ReplState::SyncSource => ((Inconsistent, UpToDate), (Inconsistent, Inconsistent)),
        ReplState::SyncTarget | ReplState::PausedSyncT => {
            ((Inconsistent, Inconsistent), (Inconsistent, UpToDate))
        }
        ReplState::VerifyS | ReplState::VerifyT => {
            ((Inconsistent, UpToDate), (Inconsistent, UpToDate))
        }
    }
}

/// `disk` moved into `range` if it lies outside.
pub(crate) fn clamp(disk: DiskState, range: (DiskState, DiskState)) -> DiskState {
    disk.clamp(range.0, range.1)
}
