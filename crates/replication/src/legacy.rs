//! Peers of protocol 8 (kernel DRBD 8.4; agreed versions 100 and 101), see
//! docs/design/legacy-peers.md.
//!
//! The state machine is that of protocol 9. A [`Dialect`] stands between it and such a peer, and
//! plays a node of protocol 9 towards the core: it answers transactions in the peer's place, asks
//! the peer in its own words where its agreement is needed, and translates what both say.
//!
//! - this file: what is remembered for one connection, and with whom there can be one;
//! - `inbound`: packets of the peer, for the core; `outbound`: packets of the core, for the peer.
//!
//! Nothing else knows of it but the handshake, which makes the [`Dialect`]; `generation::legacy`,
//! the rules by which such a peer compares; and the few places that these call.

mod inbound;
mod outbound;

use std::collections::VecDeque;
use std::time::Duration;

use codec::wire::{Features, Packet, TwoPc, feature};
use serde::{Deserialize, Serialize};
use vocab::options::Quorum;
use vocab::{
    ConnState, Dagtag, DiskState, GenUuid, Instant, NodeId, ReplState, Role, SectorRange, VolumeNr,
};

use crate::generation::{Generations, is_generation};
use crate::handshake::AfterLoss;
use crate::io::{BufId, LogLevel};
use crate::plain::Open;
use crate::resource::{Resource, Work};
use crate::state::{PeerIx, VolIx};

/// Oldest version of protocol 8 that is spoken: since then headers name volumes and writes say which
/// answer they want.
pub(crate) const LEGACY_MIN: u32 = 100;
/// Newest version of protocol 8.
pub(crate) const LEGACY_MAX: u32 = 101;
/// Features that the core relies on with every peer.
const NEEDED: u32 = feature::TRIM | feature::THIN_RESYNC | feature::WSAME | feature::WZEROES;

/// The volume of a resource with such a peer: it has no other.
const VOLUME: VolIx = 0;
/// Packets that wait for the connect transaction: the bitmap of a large volume is among them.
const MAX_HELD: usize = 1 << 14;
/// A request that can not be served now is looked at again so much later. Such a peer asks once.
const AGAIN: Duration = Duration::from_millis(50);
/// So long the peer's states are waited for, if this node's depend on them.
const PATIENCE: Duration = Duration::from_secs(1);

/// Progress of the connect transaction as the core runs it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Exchange {
    /// The core has not begun.
    #[default]
    Waiting,
    /// It has sent its states and takes the peer's.
    Running,
    /// It has them all, and decides.
    Told,
    /// Connected.
    Done,
}

/// What is remembered of a connection to a peer of protocol 8. What is skipped is not there when it is
/// frozen, see [`Dialect::is_at_rest`].
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Dialect {
    #[serde(skip, default = "Exchange::at_rest")]
    exchange: Exchange,
    /// When its features came.
    since: Instant,
    /// For the core, in the name of the peer.
    #[serde(skip)]
    inbox: VecDeque<Packet>,
    /// From the peer, until the core can take them.
    #[serde(skip)]
    held: VecDeque<(Packet, Option<BufId>)>,
    /// The transaction of the core that waits for the peer's answer.
    #[serde(skip)]
    asked: Option<(Option<VolumeNr>, TwoPc)>,
    /// So many answers of the peer are about transactions that have been given up.
    stale_answers: u32,
    /// The peer's request that the core is to answer.
    #[serde(skip)]
    answering: Option<Answering>,
    /// Transactions begun in the peer's name.
    next_tid: u32,
    /// Requests of this node by sector and number: the peer's answers name only the range.
    requests: Open,
    next_request: u64,
    /// Barriers of the peer that are not acknowledged, and how far its writes had come.
    barriers: VecDeque<(u32, Dagtag)>,
    /// Writes of the open epoch that the core has confirmed early.
    confirmed: u32,
    /// Its requests that could not be served, and when to look at them again.
    #[serde(skip)]
    again: Vec<(Instant, Packet)>,
    /// As the target of a resync: requests for blocks wait for P_SYNC_UUID.
    awaits_sync_uuid: bool,
    /// It came before this node knew that it is the target.
    early_sync_uuid: Option<(VolumeNr, GenUuid)>,
    #[serde(skip)]
    waiting_requests: Vec<Packet>,
    /// What this node has said last of a resync or verify.
    shown: Option<ReplState>,
    /// Sectors of a verify by the peer that it has not compared yet, once it has begun.
    verify_left: Option<u64>,
    /// From the first to the last block that it has asked for in it. Verdicts come on another socket than
    /// the end of a verify: those of the one before may still be on their way, and lie elsewhere.
    verify_asked: Option<SectorRange>,
    /// As the source: P_SYNC_UUID is due once the resync begins.
    owes_sync_uuid: bool,
    /// Current and bitmap generation as the peer was told last.
    told: Option<(GenUuid, GenUuid)>,
    /// This node shows its disk as Inconsistent, so that the peer resyncs it by the bits.
    shows_inconsistent: bool,
    /// It was told that the disks are equal, and has not shown its disk as UpToDate since.
    declared_equal: bool,
    /// The connection is to be given up, for this reason.
    #[serde(skip)]
    end: Option<&'static str>,
}

/// A state change that the peer has asked for.
#[derive(Debug, Clone, Copy)]
struct Answering {
    nr: Option<VolumeNr>,
    /// It was asked as P_CONN_ST_CHG_REQ.
    of_connection: bool,
    request: TwoPc,
}

impl Exchange {
    /// As it is when everything is said.
    fn at_rest() -> Exchange {
        Exchange::Done
    }
}

impl Dialect {
    fn new(now: Instant) -> Box<Dialect> {
        Box::new(Dialect { since: now, ..Dialect::default() })
    }

    /// Nothing waits for the peer or for this node: what is left is what both remember.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.exchange == Exchange::Done
            && self.inbox.is_empty()
            && self.held.is_empty()
            && self.asked.is_none()
            && self.answering.is_none()
            && self.again.is_empty()
            && self.waiting_requests.is_empty()
            && self.end.is_none()
    }

    /// The core may take this packet of the peer now.
    fn passes(&self, packet: &Packet) -> bool {
        let of_set = matches!(
            packet,
            Packet::SyncParam(..) | Packet::Sizes(..) | Packet::Uuids(..) | Packet::State(..)
        );
        match self.exchange {
            Exchange::Waiting | Exchange::Told => false,
            Exchange::Running => of_set,
            Exchange::Done => true,
        }
    }

    /// What the peer has said of itself and the core has not heard yet: its disk, its role, its
    /// generation and the bits it counts.
    fn held_states(&self) -> Option<(DiskState, Role, GenUuid, u64)> {
        let word = self.held.iter().find_map(|(packet, _)| match packet {
            Packet::State(_, word) => Some(*word),
            _ => None,
        })?;
        let uuids = self.held.iter().find_map(|(packet, _)| match packet {
            Packet::Uuids(_, uuids) => Some((uuids.current, uuids.dirty_bits)),
            _ => None,
        });
        let (current, dirty_bits) = uuids.unwrap_or((GenUuid::NONE, 0));
        Some((word.disk()?, word.role()?, current, dirty_bits))
    }
}

/// The part of a disk's past that such a peer is told: the youngest two generations, or the one that
/// only slots of nobody remember. `slots`: those of other nodes than this one and the peer.
pub(crate) fn told_past(
    history: &[GenUuid],
    mut slots: impl Iterator<Item = GenUuid>,
) -> [GenUuid; 2] {
    let mut past = [GenUuid::NONE; 2];
    for (told, uuid) in past.iter_mut().zip(history) {
        *told = *uuid;
    }
    let day0 = slots.find(|uuid| is_generation(*uuid)).map(|uuid| uuid.with_primary(false));
    if let (Some(day0), Some(free)) = (day0, past.iter().position(|uuid| uuid.is_none())) {
        past[free] = day0;
    }
    past
}

impl Resource {
    /// Why this resource can not have a peer of protocol 8.
    pub(crate) fn unfit_for_legacy(&self) -> Option<&'static str> {
        let diskless = || {
            let here = self.vols[VOLUME].intentional_diskless;
            here || !self.peers[0].devs[VOLUME].opts.bitmap
        };
        if self.peers.len() != 1 {
            Some("the resource has more than two nodes; with DRBD 8.4 there can be two only")
        } else if self.vols.len() != 1 {
            Some("the resource has several volumes; with DRBD 8.4 give each a resource of its own")
        } else if self.opts.quorum != Quorum::Off {
            Some("quorum is on, of which DRBD 8.4 knows nothing; set quorum to off")
        } else if diskless() {
            Some("a node is configured without disk; with DRBD 8.4 both nodes need one")
        } else {
            None
        }
    }

    /// Oldest protocol version this node offers.
    pub(crate) fn oldest_version(&self, newest_own: u32) -> u32 {
        if self.unfit_for_legacy().is_none() { LEGACY_MIN } else { newest_own }
    }

    /// The peer speaks protocol 8, as far as its features tell: the connection begins so, or is
    /// refused for this reason. `None` if it speaks a newer one.
    pub(crate) fn begin_legacy(
        &mut self,
        peer: PeerIx,
        theirs: &Features,
        their_max: u32,
    ) -> Option<Result<u32, String>> {
        if their_max > LEGACY_MAX {
            return None;
        }
        // Also if it is refused: it is told so in its own words, by closing.
        self.peers[peer].legacy = Some(Dialect::new(self.now));
        let range = format!("the peer speaks protocol {}..{their_max}", theirs.protocol_min);
        if their_max < LEGACY_MIN {
            return Some(Err(format!("{range}, this node from {LEGACY_MIN} on; update it")));
        }
        if let Some(why) = self.unfit_for_legacy() {
            return Some(Err(format!("{range} (DRBD 8.4), and {why}")));
        }
        if theirs.feature_flags & NEEDED != NEEDED {
            let why = "and lacks features; it has to be DRBD 8.4.11, as in Linux since 5.0";
            return Some(Err(format!("{range}, {why}")));
        }
        Some(Ok(their_max))
    }

    /// The connection is over.
    pub(crate) fn end_legacy(&mut self, peer: PeerIx) {
        if let Some(dialect) = self.peers[peer].legacy.take() {
            for (_, payload) in dialect.held {
                self.free(payload);
            }
        }
    }

    /// The configuration has changed: a connection that can not be any more is given up. The next
    /// try tells why.
    pub(crate) fn review_legacy(&mut self) {
        if self.unfit_for_legacy().is_none() {
            return;
        }
        for peer in 0..self.peers.len() {
            if self.peers[peer].legacy.is_some() {
                self.lose(peer, ConnState::NetworkFailure, AfterLoss::Reconnect);
            }
        }
    }

    /// The connect transaction has to wait: for the disk, without which there is no such connection,
    /// or for the peer's states, which decide what this node says of a disk that may not be current.
    pub(crate) fn legacy_waits(&mut self, peer: PeerIx) -> bool {
        let Some(dialect) = &self.peers[peer].legacy else { return false };
        if self.st.role == Role::Primary && self.counts_within_generation(peer) {
            // For such a peer disks of one generation are equal. It is left behind by a new one.
            self.vols[VOLUME].bump_pending = true;
            self.start_bump(VOLUME);
            return true;
        }
        let disk = self.st.vols[VOLUME].disk;
        let doubtful = self.is_doubtful();
        let heard = dialect.held_states().is_some() || self.now.since(dialect.since) >= PATIENCE;
        disk < DiskState::Inconsistent || doubtful && !heard
    }

    /// The disk here may lack writes of its own generation that the peer has.
    fn is_doubtful(&self) -> bool {
        let disk = self.st.vols[VOLUME].disk;
        matches!(disk, DiskState::Outdated | DiskState::Consistent)
            || self.vols[VOLUME].crashed_secondary
    }

    /// This node counts blocks as missing on the peer in the generation that both are at: a Primary
    /// that was frozen when it lost the peer did not start another one.
    fn counts_within_generation(&self, peer: PeerIx) -> bool {
        let node = self.peers[peer].node;
        let current = self.st.vols[VOLUME].disk == DiskState::UpToDate;
        current
            && self.shown_backing(VOLUME).is_some_and(|backing| {
                backing.oos(node) != 0 && backing.gens.bitmap(node).uuid.is_none()
            })
    }

    /// This Secondary was Primary when it wrote what the peer may not have. Shown as one that crashed
    /// it is the source, unless the peer is Primary.
    pub(crate) fn shown_as_crashed(&self, peer: PeerIx) -> bool {
        self.peers[peer].legacy.is_some()
            && !self.st.is_connected(peer)
            && !self.is_doubtful()
            && self.counts_within_generation(peer)
    }

    /// Disks of one generation are equal for DRBD 8.4, whatever the bits say. If this one may lack
    /// some of it, it is shown as what it then is, a mixture: that makes the peer the source.
    fn must_show_inconsistent(&self, peer: PeerIx) -> bool {
        let Some(backing) = self.shown_backing(VOLUME) else { return false };
        let Some(dialect) = &self.peers[peer].legacy else { return false };
        let Some((disk, role, current, dirty_bits)) = dialect.held_states() else { return false };
        let owed = dirty_bits != 0 || backing.oos(self.peers[peer].node) != 0;
        let sent_nothing =
            self.st.vols[VOLUME].disk == DiskState::Outdated && role == Role::Primary;
        let source_here = self.vols[VOLUME].crashed_primary && role != Role::Primary;
        self.st.role == Role::Secondary
            && self.is_doubtful()
            && !source_here
            && disk == DiskState::UpToDate
            && current.same(backing.gens.current())
            && (owed || sent_nothing)
    }

    /// What the peer is shown of the disk while connecting, if that is not its state.
    pub(crate) fn shown_as_inconsistent(&self, peer: PeerIx) -> bool {
        self.peers[peer].legacy.as_ref().is_some_and(|d| d.shows_inconsistent)
    }

    /// What the peer is told of the past of these generations.
    pub(crate) fn legacy_past(&self, peer: PeerIx, gens: &Generations) -> [GenUuid; 2] {
        let (me, node) = (self.me, self.peers[peer].node);
        let others = NodeId::all().filter(|n| *n != me && *n != node);
        told_past(gens.history(), others.map(|n| gens.bitmap(n).uuid))
    }

    /// The one peer is of protocol 8: nobody else will ever come with a generation of before, and
    /// such a peer does not follow into one that begins while it is connected.
    pub(crate) fn is_legacy_pair(&self) -> bool {
        self.peers.len() == 1 && self.peers[0].legacy.is_some() && self.st.is_connected(0)
    }

    /// Goes on with what waits for the core.
    pub(crate) fn legacy_work(&mut self, peer: PeerIx) {
        while let Some(dialect) = self.peers[peer].legacy.as_mut() {
            if let Some(why) = dialect.end {
                let text = format!("{}: {} {why}", self.name, self.peers[peer].name);
                self.log(LogLevel::Warn, text);
                return self.lose(peer, ConnState::NetworkFailure, AfterLoss::Reconnect);
            }
            let taken = if let Some(packet) = dialect.inbox.pop_front() {
                self.take(peer, packet, None)
            } else if dialect.held.front().is_some_and(|(packet, _)| dialect.passes(packet)) {
                let (packet, payload) = dialect.held.pop_front().expect("looked at above");
                self.translate_inbound(peer, packet, payload)
            } else {
                return;
            };
            if let Err(rule) = taken {
                return self.broken_protocol(peer, rule);
            }
        }
    }

    /// The core is to take this in the name of the peer.
    fn say_to_core(&mut self, peer: PeerIx, packet: Packet) {
        if let Some(dialect) = self.peers[peer].legacy.as_mut() {
            dialect.inbox.push_back(packet);
            self.work.push_back(Work::Legacy(peer));
        }
    }

    /// The connection is given up once the core is done with what it does.
    fn leave_legacy(&mut self, peer: PeerIx, why: &'static str) {
        if let Some(dialect) = self.peers[peer].legacy.as_mut() {
            dialect.end.get_or_insert(why);
            self.work.push_back(Work::Legacy(peer));
        }
    }

    /// When requests that could not be served are looked at again.
    pub(crate) fn legacy_deadline(&self, peer: PeerIx) -> Option<Instant> {
        self.peers[peer].legacy.as_ref()?.again.iter().map(|(at, _)| *at).min()
    }

    /// Looks at them again.
    pub(crate) fn legacy_timeout(&mut self, peer: PeerIx) {
        let now = self.now;
        let Some(dialect) = self.peers[peer].legacy.as_mut() else { return };
        let (due, later) =
            std::mem::take(&mut dialect.again).into_iter().partition(|(at, _)| *at <= now);
        dialect.again = later;
        let due: Vec<(Instant, Packet)> = due;
        for (_, packet) in due {
            self.say_to_core(peer, packet);
        }
    }
}
