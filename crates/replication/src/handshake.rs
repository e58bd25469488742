//! Connecting: features, parameters, the exchange of states inside the connect transaction,
//! and the decision what the connection starts with (semantics §2.8, §4.9; wire §4).

#[cfg(test)]
mod tests;
mod wait;

use codec::wire::{
    self, Agreed, CF_DISCARD_MY_DATA, Features, Packet, StateWord, SyncParam, SyncParamForm,
    UuidFlags, feature,
};
use serde::{Deserialize, Serialize};
use vocab::options::{AfterSb0, AfterSb1, AfterSb2, Protocol, RrConflict};
use vocab::{
    ConnState, Dagtag, DiskState, GenUuid, Instant, NodeId, NodeMask, Refusal, RefusalCode,
    ReplState, Role, StateError, VolumeNr,
};

use crate::auth::Proof;
use crate::compare::{Decided, Start};
use crate::io::{Challenge, LinkLoss, LogLevel, Output};
use crate::jobs::JobKind;
use crate::plain::Plain;
use crate::rate::DrbdPace;
use crate::resource::{Link, Pings, Resource, Sender, Volume};
use crate::state::{PeerIx, VolIx};
use crate::volumes::Presence;

/// Oldest protocol version spoken.
pub(crate) const PROTOCOL_MIN: u32 = 122;
/// The same, once told so: that of all that have what is needed of a peer before 122.
const PROTOCOL_MIN_TOLD: u32 = 121;
/// Newest protocol version spoken.
pub(crate) const PROTOCOL_MAX: u32 = 122;
/// Features that the core relies on with every peer.
const NEEDED: u32 = feature::TRIM | feature::THIN_RESYNC | feature::WSAME | feature::WZEROES;
/// With those before 122 (see `plain`). In the old layout of transactions nobody hears who is reached.
const NEEDED_121: u32 = NEEDED | feature::TWOPC_V2;
/// With those from 122 on.
const NEEDED_122: u32 = NEEDED | feature::RESYNC_DAGTAG;

/// Progress of the handshake on one link.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Handshake {
    pub phase: Phase,
    /// Of the shared secret. `None` only without a link.
    #[serde(skip)]
    pub proof: Option<Proof>,
    /// The peer must get on by then.
    pub deadline: Option<Instant>,
    /// What each volume starts with, once the peer's states are in.
    decided: Vec<Option<Decided>>,
    /// A loss on this connection waits for a new generation to be durable.
    pub cleanup_waits: bool,
    /// The peer asked to give up its data.
    pub peer_discards: bool,
    /// The loss of the last link is not dealt with yet.
    pub losing: bool,
    /// Where the connection goes once the loss is dealt with.
    pub then: AfterLoss,
    /// The lost Primary that this peer was told about, and the position it was told.
    pub told_loss: Option<(NodeId, Dagtag)>,
    /// A Primary that this peer has lost and this node has not, and the peer's position then.
    pub their_loss: Option<(NodeId, Dagtag)>,
    /// The lost Primary that this node named in the exchange, and how far it had received.
    pub named: Option<(NodeId, Dagtag)>,
    /// The one that the peer named.
    pub peer_named: Option<(NodeId, Dagtag)>,
    /// This node has concluded that the two can not work together, and said so.
    pub refused: bool,
}

impl Handshake {
    /// This end has come to refuse the connection. The other end has come to the same from the
    /// same inputs, but its word may be lost with the link.
    pub(crate) fn has_refused(&self) -> bool {
        self.refused || self.decided.iter().any(|d| matches!(d, Some(Decided::Refuse(_))))
    }
}

/// Where a connection goes after its loss.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AfterLoss {
    /// Try again.
    #[default]
    Reconnect,
    /// Stay down until an operator connects.
    StandAlone,
}

/// Steps of a handshake.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    #[default]
    Idle,
    /// P_CONNECTION_FEATURES is sent.
    Features,
    /// P_AUTH_CHALLENGE is sent, and the peer has proved nothing yet.
    Authentication,
    /// P_PROTOCOL is sent.
    Protocol,
    /// Waiting for the connect transaction.
    Ready,
    /// This node's states are sent, the peer's are coming.
    Exchanging,
    /// Connected.
    Done,
}

/// What the exchange of states says about connecting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HandshakeResult {
    Pending,
    Go,
    Retry,
    Refuse(String),
}

impl Resource {
    /// Both sockets are up.
    pub(crate) fn link_up(&mut self, node: NodeId, tie_break: bool, challenge: Challenge) {
        let Some(peer) = self.peer_ix(node) else { return };
        if self.peers[peer].link != Link::Wanted {
            return;
        }
        let now = self.now;
        let p = &mut self.peers[peer];
        p.link = Link::Up;
        p.tie_break = tie_break;
        p.last_rx = now;
        p.heard_at = now;
        p.pings = Pings::None;
        p.send = Sender { acked_epoch: p.send.acked_epoch, ..Sender::default() };
        p.send.peer_acked = vocab::Dagtag(0);
        p.recv.reset();
        for dev in &mut p.devs {
            dev.seq = 0;
            dev.last_sent = None;
            dev.last_word = None;
            dev.word_due = false;
            dev.uuids = None;
            dev.taking.clear();
            dev.uuids_attaching = false;
            dev.holds_bound = false;
            dev.forced = false;
            dev.sent_uuids = None;
            dev.bitmap_in = 0;
            dev.asked = GenUuid::NONE;
            dev.joined = NodeMask::EMPTY;
            dev.plain = Plain::default();
            dev.presence = Presence::default();
        }
        let proof = Some(Proof::new(challenge));
        p.hs = Handshake { phase: Phase::Features, proof, ..Handshake::default() };
        p.hs.deadline = Some(now + p.net.ping_timeout * 4);
        let features = Features {
            protocol_min: self.oldest_version(self.oldest_of_nine()),
            feature_flags: feature::OURS,
            protocol_max: PROTOCOL_MAX,
            sender_node_id: u32::from(self.me.get()),
            receiver_node_id: u32::from(node.get()),
        };
        self.doubt_fence(peer);
        self.send(peer, Packet::ConnectionFeatures(features));
    }

    /// Takes peers of protocol 121 from now on (`plain`). For simulators and trials: as long as seeds lose
    /// data among such nodes (docs/testing.md), engines refuse them.
    pub fn take_protocol_121(&mut self) {
        self.takes_121 = true;
    }

    const fn oldest_of_nine(&self) -> u32 {
        if self.takes_121 { PROTOCOL_MIN_TOLD } else { PROTOCOL_MIN }
    }

    /// P_CONNECTION_FEATURES.
    pub(crate) fn features(&mut self, peer: PeerIx, theirs: Features) -> Result<(), &'static str> {
        if self.peers[peer].hs.phase != Phase::Features {
            return Err("features arrived twice");
        }
        let their_max =
            if theirs.protocol_max == 0 { theirs.protocol_min } else { theirs.protocol_max };
        let legacy = match self.begin_legacy(peer, &theirs, their_max) {
            Some(Err(why)) => {
                self.refuse_connection(peer, &why);
                return Ok(());
            }
            Some(Ok(version)) => Some(version),
            None => None,
        };
        let version = legacy.unwrap_or(their_max.min(PROTOCOL_MAX));
        let p = &mut self.peers[peer];
        p.agreed_version = version;
        p.agreed_features = theirs.feature_flags & feature::OURS;
        let oldest = self.oldest_of_nine();
        if legacy.is_none() && version < oldest || theirs.protocol_min > PROTOCOL_MAX {
            let text = format!(
                "the peer speaks protocol {}..{their_max}, this node {oldest}..{PROTOCOL_MAX}",
                theirs.protocol_min
            );
            self.refuse_connection(peer, &text);
            return Ok(());
        }
        if legacy.is_none() {
            if let Some(text) = features_unfit(version, theirs.feature_flags) {
                self.refuse_connection(peer, &text);
                return Ok(());
            }
        }
        let (me, node) = (u32::from(self.me.get()), u32::from(self.peers[peer].node.get()));
        let ids = theirs.sender_node_id == node && theirs.receiver_node_id == me;
        if legacy.is_none() && !ids {
            return Err(
                "the peer has another node id than configured, or takes this node for another",
            );
        }
        self.begin_authentication(peer);
        Ok(())
    }

    /// Says what this node wants of the connection, with a peer that is who it should be.
    pub(crate) fn send_parameters(&mut self, peer: PeerIx) {
        let now = self.now;
        let p = &mut self.peers[peer];
        p.hs.phase = Phase::Protocol;
        p.hs.deadline = Some(now + p.net.ping_timeout * 10);
        let packet = Packet::Protocol(Box::new(self.protocol_packet(peer)));
        self.send(peer, packet);
    }

    fn protocol_packet(&self, peer: PeerIx) -> wire::Protocol {
        let p = &self.peers[peer];
        wire::Protocol {
            protocol: protocol_number(p.net.protocol),
            after_sb_0p: sb0_number(p.net.after_sb_0pri),
            after_sb_1p: sb1_number(p.net.after_sb_1pri),
            after_sb_2p: sb2_number(p.net.after_sb_2pri),
            conn_flags: if p.discard_my_data { CF_DISCARD_MY_DATA } else { 0 },
            two_primaries: u32::from(p.net.allow_two_primaries),
            integrity_alg: p.net.data_integrity_alg.clone().into_bytes(),
        }
    }

    /// Options have changed while connected: the peer is told what it was told when connecting
    /// (wire §4.2 "P_SYNC_PARAM89").
    pub(crate) fn tell_net_options(&mut self, peer: PeerIx) {
        if !self.st.is_connected(peer) {
            return;
        }
        let update = Packet::ProtocolUpdate(Box::new(self.protocol_packet(peer)));
        self.send(peer, update);
        for vol in 0..self.vols.len() {
            self.show_parameters(peer, vol);
        }
    }

    /// P_PROTOCOL: the parameters must fit (wire §4.1).
    pub(crate) fn protocol(
        &mut self,
        peer: PeerIx,
        theirs: &wire::Protocol,
    ) -> Result<(), &'static str> {
        match self.peers[peer].hs.phase {
            Phase::Protocol => {}
            Phase::Authentication => {
                let text = "it does not prove that it knows the shared secret, for it has no \
                            cram-hmac-alg; give both nodes the same, and the same shared-secret";
                self.refuse_connection(peer, text);
                return Ok(());
            }
            _ => return Err("parameters arrived at the wrong time"),
        }
        let ours = self.protocol_packet(peer);
        let mirror = |v: u32| match v {
            5 => 6,
            6 => 5,
            v => v,
        };
        let checks = [
            (ours.protocol == theirs.protocol, "protocol"),
            (ours.after_sb_0p == mirror(theirs.after_sb_0p), "after-sb-0pri"),
            (ours.after_sb_1p == mirror(theirs.after_sb_1p), "after-sb-1pri"),
            (ours.after_sb_2p == mirror(theirs.after_sb_2p), "after-sb-2pri"),
            (ours.two_primaries == theirs.two_primaries, "allow-two-primaries"),
            (
                ours.conn_flags & theirs.conn_flags & CF_DISCARD_MY_DATA == 0,
                "discard-my-data (set on both sides)",
            ),
        ];
        if let Some((_, what)) = checks.iter().find(|(fits, _)| !fits) {
            let text = format!("option {what} differs between the nodes; make them the same");
            self.refuse_connection(peer, &text);
            return Ok(());
        }
        if let Some(text) = self.integrity_conflict(peer, &theirs.integrity_alg) {
            self.refuse_connection(peer, &text);
            return Ok(());
        }
        let patience = self.now + self.opts.twopc_timeout;
        let p = &mut self.peers[peer];
        p.hs.peer_discards = theirs.conn_flags & CF_DISCARD_MY_DATA != 0;
        p.hs.phase = Phase::Ready;
        p.hs.deadline = Some(patience);
        if self.me < self.peers[peer].node || self.peers[peer].legacy.is_some() {
            self.want(JobKind::Connect(peer), None);
        }
        Ok(())
    }

    /// The handshake can never succeed: give up until an operator acts.
    pub(crate) fn refuse_connection(&mut self, peer: PeerIx, why: &str) {
        let text = format!("{}: connection to {} refused: {why}", self.name, self.peers[peer].name);
        self.log(LogLevel::Error, text);
        let p = &self.peers[peer];
        // Without it a kernel node that sees the link close tries again for ever; but before protocol
        // 118 none knows it.
        if Packet::Disconnect.command().is_agreed(&Agreed::new(p.agreed_version, p.agreed_features))
        {
            self.send(peer, Packet::Disconnect);
        }
        self.part(peer, false);
    }

    /// The connect transaction may start from this side.
    pub(crate) fn handshake_wants_twopc(&self, peer: PeerIx) -> bool {
        self.peers[peer].link == Link::Up && self.peers[peer].hs.phase == Phase::Ready
    }

    /// The peer wants to run the connect transaction.
    pub(crate) fn connect_wanted(&self, initiator: NodeId) -> Result<(), Refusal> {
        let ready = self.peer_ix(initiator).is_some_and(|p| {
            self.peers[p].link == Link::Up
                && matches!(self.peers[p].hs.phase, Phase::Ready | Phase::Exchanging)
        });
        match ready && !self.handshake_must_wait() {
            true => Ok(()),
            false => Err(StateError::InTransientState.into()),
        }
    }

    /// This node's data or identifiers are about to change, and nothing may be decided on them:
    /// what was received from a lost Primary is executed first, a new generation is made durable,
    /// and a disk that is being attached has found out from the peers there are what it is. Nor are
    /// writes of this node, as the Primary that it was, still in the cache of its disk.
    pub(crate) fn handshake_must_wait(&self) -> bool {
        let adopting = |v: &Volume| v.backing.as_ref().is_some_and(|b| b.is_adopting());
        self.vols.iter().any(|v| v.bump_running || adopting(v))
            || self.peers.iter().any(|p| p.recv.draining)
            || self.st.vols.iter().any(|v| v.disk == DiskState::Negotiating)
            || self.st.role == Role::Secondary && self.flushes_own_writes()
    }

    /// A handshake is past the point where this node's identifiers may change.
    pub(crate) fn handshake_running(&self) -> bool {
        self.peers.iter().any(|p| p.hs.phase == Phase::Exchanging)
    }

    /// Sends this node's states for every volume (wire §4.2 step 6).
    pub(crate) fn send_state_set(&mut self, peer: PeerIx) {
        let deadline = self.now + self.peers[peer].net.ping_timeout * 10;
        let named = self.lost_writer(peer);
        for vol in 0..self.vols.len() {
            self.mark_given_up(vol, self.peers[peer].node);
        }
        let hs = &mut self.peers[peer].hs;
        hs.phase = Phase::Exchanging;
        hs.deadline = Some(deadline);
        hs.decided = vec![None; self.vols.len()];
        hs.peer_named = None;
        hs.named = named;
        if let Some((node, dagtag)) = named {
            let packet = wire::PeerDagtag { dagtag, node_id: u32::from(node.get()) };
            self.send(peer, Packet::PeerDagtag(packet));
        }
        for dev in &mut self.peers[peer].devs {
            dev.uuids = None;
            dev.last_word = None;
            dev.presence = Presence::default();
        }
        let mut order: Vec<VolIx> = (0..self.vols.len()).collect();
        order.sort_by_key(|v| self.vols[*v].nr);
        for vol in order {
            let nr = self.vols[vol].nr;
            self.show_parameters(peer, vol);
            self.show_disk(peer, vol);
            let outdated = self.st.peers[peer].devs[vol].disk == DiskState::Outdated;
            let pdsk = if outdated { DiskState::Outdated } else { DiskState::DUnknown };
            let word = self
                .state_word(peer, vol)
                .with_conn_state(ConnState::Connecting)
                .with_peer_role(Role::Unknown)
                .with_pdsk(pdsk);
            self.send(peer, Packet::State(Some(nr), word));
        }
        if self.vols.is_empty() {
            self.peers[peer].hs.deadline = None;
        }
    }

    /// The one third node that this node has received writes from and is not connected to any
    /// more, named at the start of the exchange (feature 0x200). An Ashlar node that has lost none
    /// names the Primary it hears: the peer may have lost that one.
    fn lost_writer(&self, peer: PeerIx) -> Option<(NodeId, Dagtag)> {
        let features = self.peers[peer].agreed_features;
        if features & feature::RECONCILE_RECONNECT == 0 {
            return None;
        }
        let wrote = |p: &PeerIx| *p != peer && self.peers[*p].recv.has_written;
        let gone = |p: &PeerIx| wrote(p) && !self.st.is_connected(*p);
        let heard = |p: &PeerIx| wrote(p) && self.st.peers[*p].role == Role::Primary;
        let ours = features & feature::BITS_OF_EQUALS != 0;
        let some_gone = (0..self.peers.len()).any(|p| gone(&p));
        let mut named = (0..self.peers.len()).filter(|p| gone(p) || ours && !some_gone && heard(p));
        let only = named.next().filter(|_| named.next().is_none())?;
        Some((self.peers[only].node, self.peers[only].recv.last_dagtag))
    }

    /// Parameters of a volume, with which its set begins.
    pub(crate) fn show_parameters(&mut self, peer: PeerIx, vol: VolIx) {
        let params = Box::new(self.sync_param(peer, vol));
        self.send(peer, Packet::SyncParam(self.vols[vol].nr, params));
    }

    /// Size and identifiers of this node's disk, behind which its state follows.
    pub(crate) fn show_disk(&mut self, peer: PeerIx, vol: VolIx) {
        let sizes = Box::new(self.sizes(vol, peer));
        self.send(peer, Packet::Sizes(self.vols[vol].nr, sizes));
        self.send_uuids(peer, vol, UuidFlags::default(), NodeMask::EMPTY);
    }

    fn sync_param(&self, peer: PeerIx, vol: VolIx) -> SyncParam {
        let net = &self.peers[peer].net;
        // A peer is told DRBD's defaults of what is not set here; it has a pace of its own.
        let pd = DrbdPace::of(&self.peers[peer].devs[vol].opts);
        let tenths = |d: std::time::Duration| u32::try_from(d.as_millis() / 100).unwrap_or(0);
        SyncParam {
            form: SyncParamForm::V95,
            resync_rate: pd.resync_rate.0,
            verify_alg: net.verify_alg.as_bytes().to_vec(),
            csums_alg: net.csums_alg.as_bytes().to_vec(),
            c_plan_ahead: tenths(pd.c_plan_ahead),
            c_delay_target: tenths(pd.c_delay_target),
            c_fill_target: u32::try_from(pd.c_fill_target.0).unwrap_or(u32::MAX),
            c_max_rate: pd.c_max_rate.0,
        }
    }

    /// P_STATE while exchanging: the last packet of a volume's set.
    pub(crate) fn handshake_state(&mut self, peer: PeerIx, nr: VolumeNr, word: StateWord) {
        let Some(vol) = self.vol_ix(nr) else { return self.unknown_volume_shown(peer, nr, word) };
        self.peers[peer].devs[vol].last_word = Some(word);
        self.note_presence(peer, vol, word);
        if self.is_complete(peer) {
            self.peers[peer].hs.deadline = Some(self.now + self.opts.twopc_timeout);
            for vol in 0..self.vols.len() {
                let decided = self.decide_volume(peer, vol);
                self.peers[peer].hs.decided[vol] = Some(decided);
            }
            self.twopc_progress();
        }
    }

    /// What the volume starts with on this connection.
    fn decide_volume(&mut self, peer: PeerIx, vol: VolIx) -> Decided {
        if self.peers[peer].devs[vol].presence == Presence::Absent {
            return Decided::none();
        }
        if self.measures_first(peer, vol) || self.grows_first(peer, vol) {
            return Decided::Retry;
        }
        if let Some(why) = self.size_conflict(peer, vol) {
            return Decided::Refuse(why);
        }
        let word = self.peers[peer].devs[vol].last_word.expect("the set is complete");
        let peer_disk = self.real_peer_disk(peer, vol, word);
        let has_disk = self.shown_backing(vol).is_some();
        let peer_has_disk = peer_disk >= DiskState::Inconsistent;
        if peer_has_disk && !self.peer_has_bitmap(peer, vol) {
            let nr = self.vols[vol].nr;
            return Decided::Refuse(format!("volume {nr}: a peer configured without disk has one"));
        }
        match (has_disk, peer_has_disk) {
            (true, true) if self.has_to_wait(peer, vol, word, peer_disk) => Decided::Retry,
            (true, true) => match self.compare(peer, vol, true) {
                Decided::Start(start) if start.repl == ReplState::Established => {
                    match self.decide_grown(peer, vol, word, peer_disk) {
                        None => self.decide_equal(peer, vol, start, peer_disk),
                        Some(Ok(repl)) => {
                            Decided::Start(Start { repl, clear_bits: false, ..start })
                        }
                        Some(Err(why)) => Decided::Refuse(why),
                    }
                }
                decided => decided,
            },
            (false, true) => self.decide_as_client(peer, vol, peer_disk),
            (true, false) => self.decide_with_client(peer, vol, word),
            (false, false) => Decided::none(),
        }
    }

    /// The disks are equal, but for what this frozen Primary is still to send. A peer that has
    /// not restarted gets it again; one that has may have lost even what it had acknowledged, and
    /// is resynced: the next handshake finds the bits. One that knows to be behind (whoever fenced it
    /// has told it) does not pass for equal, and asks for a resync once it is connected.
    fn decide_equal(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        start: Start,
        peer_disk: DiskState,
    ) -> Decided {
        let node = self.peers[peer].node;
        let equal = peer_disk > DiskState::Outdated;
        if !self.has_frozen_parts(node, vol) || self.has_stayed(peer, vol) || !equal {
            return Decided::Start(start);
        }
        self.mark_unfinished(vol, node);
        self.write_bitmap(vol);
        Decided::Retry
    }

    /// The peer's disk has been attached since it was connected to this node's.
    fn has_stayed(&self, peer: PeerIx, vol: VolIx) -> bool {
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        uuids.is_some_and(|u| u.flags.has(UuidFlags::RECONNECT))
    }

    /// A peer in Negotiating shows what its disk is by the INCONSISTENT flag (wire §8.2).
    pub(crate) fn real_peer_disk(&self, peer: PeerIx, vol: VolIx, word: StateWord) -> DiskState {
        let disk = word.disk().unwrap_or(DiskState::Diskless);
        if disk != DiskState::Negotiating {
            return disk;
        }
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        match uuids.is_some_and(|u| u.flags.has(UuidFlags::INCONSISTENT)) {
            true => DiskState::Inconsistent,
            false => DiskState::Consistent,
        }
    }

    /// What the exchange says so far.
    pub(crate) fn handshake_result(&self, peer: PeerIx) -> HandshakeResult {
        let hs = &self.peers[peer].hs;
        if hs.phase != Phase::Exchanging {
            return HandshakeResult::Retry;
        }
        let mut retry = false;
        for (vol, decided) in hs.decided.iter().enumerate() {
            match decided {
                None => return HandshakeResult::Pending,
                Some(Decided::Refuse(why)) => return HandshakeResult::Refuse(why.clone()),
                Some(Decided::Retry) => retry = true,
                Some(Decided::Start(_)) => {
                    retry |= self.sent_changed(peer, vol) || self.sent_other_size(peer, vol);
                }
            }
        }
        if retry { HandshakeResult::Retry } else { HandshakeResult::Go }
    }

    /// Own identifiers are no longer what was sent, or the disk is better than that: a decision on them would be
    /// stale (invariant 23).
    pub(crate) fn sent_changed(&self, peer: PeerIx, vol: VolIx) -> bool {
        let Some(sent) = &self.peers[peer].devs[vol].sent_uuids else { return true };
        let has_become_current =
            sent.disk < DiskState::UpToDate && self.st.vols[vol].disk == DiskState::UpToDate;
        match self.shown_backing(vol) {
            Some(backing) => {
                let to = self.peers[peer].node;
                sent.current != backing.gens.current()
                    || sent.bitmap != backing.bitmap_uuid(to)
                    || has_become_current
            }
            None => sent.current != self.vols[vol].exposed,
        }
    }

    /// This disk was to be resynced from the peer, and has taken on a generation of a Primary since it
    /// agreed. The peer need not have heard of that one, and what is written in it would be undone.
    pub(crate) fn has_outrun_source(&self, peer: PeerIx) -> bool {
        self.peers[peer].hs.decided.iter().enumerate().any(|(vol, decided)| match decided {
            Some(Decided::Start(start)) => start.repl.is_target() && self.sent_changed(peer, vol),
            _ => false,
        })
    }

    /// Blocks were counted as out of sync since the peer was told how many there are: a write
    /// ended that the peer has not got. Both ends have concluded without it that they are equal,
    /// so these bits have to stay.
    fn bits_changed(&self, peer: PeerIx, vol: VolIx) -> bool {
        let sent = self.peers[peer].devs[vol].sent_uuids.as_ref().map_or(0, |s| s.dirty_bits);
        let node = self.peers[peer].node;
        self.shown_backing(vol).is_some_and(|backing| backing.oos(node) != sent)
    }

    /// The connect transaction is committed.
    pub(crate) fn apply_connect(&mut self, peer: PeerIx) {
        let decided = std::mem::take(&mut self.peers[peer].hs.decided);
        self.peers[peer].hs.phase = Phase::Done;
        self.peers[peer].hs.deadline = None;
        self.peers[peer].hs.refused = false;
        let starts: Vec<_> = decided
            .into_iter()
            .enumerate()
            .map(|(vol, d)| match d {
                Some(Decided::Start(start)) => {
                    let clear_bits = start.clear_bits && !self.bits_changed(peer, vol);
                    Start { clear_bits, ..start }
                }
                _ => Start::default(),
            })
            .collect();
        for (vol, start) in starts.iter().enumerate() {
            // Bitmaps are exchanged at the size that both have from here on.
            self.grow_to_peer(peer, vol);
            self.prepare_start(peer, vol, start);
        }
        let words: Vec<StateWord> =
            self.peers[peer].devs.iter().map(|d| d.last_word.unwrap_or_default()).collect();
        (0..self.vols.len()).for_each(|vol| self.note_bound(peer, vol));
        let role = words.first().and_then(|w| w.role()).unwrap_or(Role::Secondary);
        let disks: Vec<DiskState> =
            words.iter().enumerate().map(|(v, w)| self.real_peer_disk(peer, v, *w)).collect();
        self.change_hard(|st| {
            let p = &mut st.peers[peer];
            p.conn = ConnState::Connected;
            p.role = role;
            for (vol, dev) in p.devs.iter_mut().enumerate() {
                dev.repl = starts[vol].repl;
                dev.disk = match starts[vol].peer_disk_at_most {
                    Some(limit) => disks[vol].min(limit),
                    None => disks[vol],
                };
                dev.peer_quorum = words[vol].quorum();
                dev.forgetful = words[vol].forgetful();
                dev.pause_peer = words[vol].aftr_isp() || words[vol].user_isp();
                // A disk that is being attached says what it is once it is.
                let own = &mut st.vols[vol].disk;
                if let Some(disk) = starts[vol].own_disk.filter(|_| *own >= DiskState::Inconsistent)
                {
                    *own = disk;
                }
            }
        });
        self.doubt_unclean();
        let text = format!("{}: connected to {}", self.name, self.peers[peer].name);
        self.log(LogLevel::Info, text);
        for vol in 0..self.vols.len() {
            self.settle_size(vol);
            self.note_missing_peer_generation(peer, vol);
        }
        if self.log.len() > 0 {
            self.resend_or_forget(peer, &starts);
        }
        if role == Role::Primary {
            self.primary_joined();
        }
        self.peers[peer].reconnect = true;
        self.note_together(peer);
        self.hear_after_doubt(peer);
        self.peers[peer].discard_my_data = false;
        self.tell_position(peer);
        for vol in 0..self.vols.len() {
            if self.sent_changed(peer, vol) {
                self.send_uuids(peer, vol, UuidFlags::default(), NodeMask::EMPTY);
            }
        }
        for (vol, start) in starts.iter().enumerate() {
            if start.own_disk == Some(DiskState::Outdated) {
                self.note_unknown_generation(vol);
                self.catch_up_from_others(vol);
            }
            if start.adopt_exposed {
                self.doubt_ancestors(vol);
            }
        }
        for vol in 0..self.vols.len() {
            self.note_newer(peer, vol);
            // Those that were here before it may be left behind by it. A client goes by what it has seen.
            if self.shown_backing(vol).is_some() {
                self.doubt_ancestors(vol);
            }
        }
        self.reconcile_pending(peer);
        self.resume_cleanups();
        self.kick_all();
    }

    /// A client has seen newer data than this disk holds: whoever has it is asked for a resync
    /// (A7).
    pub(crate) fn catch_up_from_others(&mut self, vol: VolIx) {
        if self.st.vols[vol].disk < DiskState::Inconsistent {
            return;
        }
        for other in 0..self.peers.len() {
            let dev = &self.st.peers[other].devs[vol];
            if dev.repl == ReplState::Established && dev.disk == DiskState::UpToDate {
                self.ask_recompare(other, vol);
            }
        }
    }

    /// A disk that stopped under writes is not known to be current next to another one.
    fn doubt_unclean(&mut self) {
        let vols: Vec<VolIx> = (0..self.vols.len())
            .filter(|v| {
                self.st.vols[*v].disk == DiskState::UpToDate
                    && self.st.role == Role::Secondary
                    && self.unclean_towards_peers(*v)
            })
            .collect();
        if !vols.is_empty() {
            self.change_hard(|st| {
                for vol in vols {
                    st.vols[vol].disk = DiskState::Consistent;
                }
            });
        }
    }

    /// Volumes whose disks are connected now may say so when they connect again.
    pub(crate) fn note_together(&mut self, peer: PeerIx) {
        for vol in 0..self.vols.len() {
            self.note_met(peer, vol);
            let disk = self.st.peers[peer].devs[vol].disk;
            // A client has nothing that a restart of its own could have lost. A disk that is away
            // has not been together with this one, unless its node is Primary by way of this.
            let uses = self.st.peers[peer].role == Role::Primary;
            let client = uses || !self.peer_has_bitmap(peer, vol);
            let present = disk >= DiskState::Inconsistent && disk != DiskState::DUnknown
                || disk == DiskState::Diskless && client;
            let both = self.st.vols[vol].disk >= DiskState::Inconsistent && present;
            if both && self.st.is_connected(peer) {
                self.peers[peer].devs[vol].together = true;
            }
        }
    }

    /// L3 or L4: a peer is back, and writes of this node are under way.
    ///
    /// A peer that lost this Primary, or heard of it through others, is Consistent or Outdated
    /// meanwhile; if it is of the same generation and has not restarted, it goes on where it was.
    fn resend_or_forget(&mut self, peer: PeerIx, starts: &[Start]) {
        let node = self.peers[peer].node;
        for (vol, start) in starts.iter().enumerate() {
            let disk = self.st.peers[peer].devs[vol].disk;
            let same = start.repl == ReplState::Established
                && disk >= DiskState::Outdated
                && disk != DiskState::DUnknown
                && self.has_stayed(peer, vol);
            if !same {
                self.forget_parts(node, Some(vol));
            }
        }
        self.resend(peer);
    }

    /// The connect transaction did not happen.
    pub(crate) fn handshake_aborted(&mut self, peer: PeerIx) {
        let hs = &mut self.peers[peer].hs;
        if hs.phase == Phase::Exchanging {
            hs.phase = Phase::Ready;
            hs.refused = hs.has_refused();
            hs.decided.clear();
            hs.deadline = Some(self.now + self.opts.twopc_timeout);
            // What waited for the handshake goes on.
            self.advance_all();
            self.kick_all();
            self.resume_cleanups();
            self.work_later(crate::resource::Work::Resume);
        }
    }

    /// An own connect transaction failed; it had so many attempts (wire §4.2 "Outcome at the initiator").
    pub(crate) fn connect_failed(
        &mut self,
        job: u64,
        peer: PeerIx,
        refusal: Refusal,
        attempts: u32,
    ) {
        let code = match refusal.code {
            RefusalCode::State(code) => code,
            RefusalCode::Config(_) => StateError::HandshakeDisconnect,
        };
        self.handshake_aborted(peer);
        let now = self.now;
        let retry_connect = self.peers[peer].net.rr_conflict == RrConflict::RetryConnect;
        let again = |ms: u64| now + std::time::Duration::from_millis(ms);
        match code {
            StateError::Timeout | StateError::ConcurrentStChg | StateError::InTransientState => {
                // Nodes that all connect at once meet each other: whoever did so often lets others
                // go first.
                let spread = 50u64 << attempts.saturating_sub(3).min(5);
                let jitter = self.rng.below(spread);
                self.retry_job(job, again(25 + jitter));
            }
            StateError::HandshakeRetry | StateError::PrimaryReader => {
                self.outdate_would_be_target(peer);
                self.retry_job(job, again(1000));
            }
            StateError::TwoPrimaries | StateError::CwFailedByPeer if retry_connect => {
                self.retry_job(job, again(1000));
            }
            StateError::HandshakeDisconnect
            | StateError::CwFailedByPeer
            | StateError::TwoPrimaries => {
                self.outdate_would_be_target(peer);
                let why = refusal.to_string();
                self.refuse_connection(peer, &why);
            }
            _ => self.lose(peer, ConnState::NetworkFailure, AfterLoss::Reconnect),
        }
    }

    pub(crate) fn retry_job(&mut self, job: u64, at: Instant) {
        if let Some(job) = self.twopc.jobs.iter_mut().find(|j| j.id == job) {
            job.set_not_before(at);
        }
    }

    /// A side that learned that it would have been the target knows that it is behind, even
    /// though the connect failed (wire §4.2).
    fn outdate_would_be_target(&mut self, peer: PeerIx) {
        let targets: Vec<VolIx> = (0..self.vols.len())
            .filter(|v| match self.peers[peer].hs.decided.get(*v) {
                Some(Some(Decided::Start(s))) => s.repl == ReplState::WFBitMapT,
                _ => false,
            })
            .collect();
        if targets.is_empty() || self.st.role == Role::Primary {
            return;
        }
        self.change_hard(|st| {
            for vol in targets {
                if st.vols[vol].disk > DiskState::Outdated {
                    st.vols[vol].disk = DiskState::Outdated;
                }
            }
        });
    }

    /// P_DISCONNECT: the peer goes StandAlone, and so does this node.
    pub(crate) fn peer_disconnects(&mut self, peer: PeerIx) {
        let text = format!(
            "{}: {} refused the connection; see its log, then connect again",
            self.name, self.peers[peer].name
        );
        self.log(LogLevel::Error, text);
        self.lose(peer, ConnState::Disconnecting, AfterLoss::StandAlone);
    }

    /// The handshake makes no progress.
    pub(crate) fn handshake_timeout(&mut self, peer: PeerIx) {
        if self.peers[peer].hs.deadline.is_some_and(|at| at <= self.now) {
            self.peers[peer].hs.deadline = None;
            if self.peers[peer].link == Link::Closing {
                let node = self.peers[peer].node;
                self.out.push_back(Output::CloseLink { peer: node });
                return self.parted(peer);
            }
            self.lose(peer, ConnState::BrokenPipe, AfterLoss::Reconnect);
        }
    }

    /// The link went down by itself.
    pub(crate) fn link_down(&mut self, node: NodeId, loss: LinkLoss) {
        let Some(peer) = self.peer_ix(node) else { return };
        match self.peers[peer].link {
            Link::Up => {}
            Link::Closing => return self.parted(peer),
            Link::Down | Link::Wanted => return,
        }
        self.peers[peer].link = Link::Down;
        let conn = match loss {
            LinkLoss::Closed | LinkLoss::Broken => ConnState::BrokenPipe,
            LinkLoss::Stalled => ConnState::Timeout,
            LinkLoss::Garbage => ConnState::ProtocolError,
        };
        self.lose(peer, conn, AfterLoss::Reconnect);
    }
}

/// Why a peer with these features is none, if it is not.
fn features_unfit(version: u32, flags: u32) -> Option<String> {
    let (needed, release) =
        if version < 122 { (NEEDED_121, "9.1.13") } else { (NEEDED_122, "9.2.3") };
    if flags & needed != needed {
        return Some(format!(
            "the peer offers features {flags:#x} and lacks {:#x}, without which protocol {version} is not \
             spoken; every DRBD from {release} on has them",
            needed & !flags
        ));
    }
    // DRBD 9.2.0 to 9.2.2, which merge discards of a resync so that not all of them are done.
    (version < 122 && flags & feature::OURS & feature::RESYNC_DAGTAG != 0).then(|| {
        format!(
            "the peer offers features {flags:#x} at protocol {version}, as DRBD 9.2.0 to 9.2.2, which \
             later releases refuse as well; update it"
        )
    })
}

/// Wire numbers of the options (wire §4.1 step 4).
const fn protocol_number(p: Protocol) -> u32 {
    match p {
        Protocol::A => 1,
        Protocol::B => 2,
        Protocol::C => 3,
    }
}

const fn sb0_number(p: AfterSb0) -> u32 {
    match p {
        AfterSb0::Disconnect => 0,
        AfterSb0::DiscardYoungerPrimary => 1,
        AfterSb0::DiscardOlderPrimary => 2,
        AfterSb0::DiscardZeroChanges => 3,
        AfterSb0::DiscardLeastChanges => 4,
        AfterSb0::DiscardLocal => 5,
        AfterSb0::DiscardRemote => 6,
    }
}

const fn sb1_number(p: AfterSb1) -> u32 {
    match p {
        AfterSb1::Disconnect => 0,
        AfterSb1::Consensus => 7,
        AfterSb1::DiscardSecondary => 8,
        AfterSb1::CallPriLost => 9,
        AfterSb1::ViolentlyAs0p => 10,
    }
}

const fn sb2_number(p: AfterSb2) -> u32 {
    match p {
        AfterSb2::Disconnect => 0,
        AfterSb2::CallPriLost => 9,
        AfterSb2::ViolentlyAs0p => 10,
    }
}
