//! Cluster-wide state changes: two-phase commit (semantics §2, wire §8.3).
//!
//! A node holds at most one transaction. The initiator sends PREPARE to its connected peers,
//! they forward it to nodes that the sender can not see, answers come back up the same tree,
//! and COMMIT or ABORT goes down. Correctness never rests on a COMMIT arriving: safety comes
//! from generations and quorum, transactions only keep the nodes' views together.

use serde::{Deserialize, Serialize};

mod apply;
mod check;
#[cfg(test)]
mod kernel_tests;
mod record;
mod resize;
#[cfg(test)]
mod tests;

use codec::wire::{
    Operation, Outdates, Packet, ReqState, TWOPC_END_UNKNOWN, TWOPC_HAS_REACHABLE,
    TWOPC_PRI_INCAPABLE, TwoPc, TwoPcReply, feature,
};
use vocab::{
    ConfigError, DiskState, Instant, NodeId, NodeMask, Refusal, RefusalCode, Role, Sectors,
    StateError, VolumeNr,
};

pub(crate) use apply::{apply_own_change, apply_remote};

use resize::Resizing;

use crate::handshake::HandshakeResult;
use crate::jobs::Job;
use crate::resource::{Resource, Work};
use crate::state::{PeerIx, VolIx};

/// Transactions of this node: the one it holds, and changes that want one.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TwoPcs {
    #[serde(skip)]
    pub held: Option<Held>,
    pub jobs: Vec<Job>,
    pub next_job: u64,
}

/// A transaction that is prepared here.
#[derive(Debug)]
pub(crate) struct Held {
    pub tid: u32,
    pub initiator: NodeId,
    pub target: Option<NodeId>,
    /// The volume that it is about, which this node need not have.
    pub nr: Option<VolumeNr>,
    pub vol: Option<VolIx>,
    pub op: Operation,
    /// Started here, for this job.
    pub job: Option<u64>,
    /// Who asked; they all get the same answer.
    parents: Vec<PeerIx>,
    /// Peers it was sent to.
    children: NodeMask,
    /// Those that have not answered.
    waiting: NodeMask,
    nodes_to_reach: NodeMask,
    /// Primaries that fell silent here since.
    lost_primaries: NodeMask,
    /// Its end may make this node Outdated, and the metadata say so already.
    outdates: bool,
    /// Metadata that are being written before this node answers, or commits.
    recording: usize,
    retry: bool,
    no: bool,
    replied: bool,
    /// What was replied.
    answer: Answer,
    reachable: NodeMask,
    target_reachable: NodeMask,
    primary: NodeMask,
    weak: NodeMask,
    /// It is about the size of a volume.
    resize: Option<Resizing>,
    pub deadline: Instant,
}

/// What a COMMIT carries.
#[derive(Debug, Clone, Copy)]
struct CommitInfo {
    primary: NodeMask,
    reachable: Option<NodeMask>,
    primary_incapable: bool,
}

impl Held {
    /// A transaction nobody has heard of yet.
    fn new(
        tid: u32,
        initiator: NodeId,
        target: Option<NodeId>,
        vol: Option<VolIx>,
        op: Operation,
        deadline: Instant,
    ) -> Held {
        Held {
            tid,
            initiator,
            target,
            nr: None,
            vol,
            op,
            job: None,
            parents: Vec::new(),
            children: NodeMask::EMPTY,
            waiting: NodeMask::EMPTY,
            nodes_to_reach: NodeMask::EMPTY,
            lost_primaries: NodeMask::EMPTY,
            outdates: false,
            recording: 0,
            retry: false,
            no: false,
            replied: false,
            answer: Answer::Retry,
            reachable: NodeMask::EMPTY,
            target_reachable: NodeMask::EMPTY,
            primary: NodeMask::EMPTY,
            weak: NodeMask::EMPTY,
            resize: None,
            deadline,
        }
    }
}

impl Resource {
    /// Starts a transaction of this node. The caller has checked the change locally.
    pub(crate) fn start_twopc(
        &mut self,
        job: u64,
        op: Operation,
        target: Option<NodeId>,
        vol: Option<VolIx>,
    ) {
        self.begin_twopc(job, op, target, vol, None);
    }

    fn begin_twopc(
        &mut self,
        job: u64,
        op: Operation,
        target: Option<NodeId>,
        vol: Option<VolIx>,
        resize: Option<Resizing>,
    ) {
        debug_assert!(self.twopc.held.is_none(), "only one transaction is held");
        #[expect(clippy::cast_possible_truncation, reason = "any non-zero number will do")]
        let tid = (self.rng.next() as u32).max(1);
        let connected = self.st.connected_mask();
        let mut children = connected;
        if matches!(op, Operation::Connect(_)) {
            children = children.or(target.map_or(NodeMask::EMPTY, NodeId::mask));
        }
        let deadline = self.now + self.opts.twopc_timeout;
        let held = Held {
            job: Some(job),
            children,
            waiting: children,
            nodes_to_reach: children.with(self.me).complement(),
            nr: vol.map(|v| self.vols[v].nr),
            resize,
            ..Held::new(tid, self.me, target, vol, op, deadline)
        };
        self.forward(&held, PrepareOrEnd::Prepare);
        self.twopc.held = Some(held);
        if let (Operation::Connect(_), Some(peer)) = (op, target.and_then(|t| self.peer_ix(t))) {
            self.peers[peer].devs.iter_mut().for_each(|dev| dev.word_due = true);
            self.send_state_set(peer);
        }
        self.twopc_progress();
    }

    /// Sends PREPARE, COMMIT or ABORT of the transaction to its children.
    fn forward(&mut self, held: &Held, what: PrepareOrEnd) {
        let nr = held.nr;
        for node in held.children.iter() {
            let Some(peer) = self.peer_ix(node) else { continue };
            let v2 = self.peers[peer].agreed_features & feature::TWOPC_V2 != 0;
            let mut twopc = TwoPc {
                tid: held.tid,
                flags: TWOPC_HAS_REACHABLE,
                v2,
                initiator: i32::from(held.initiator.get()),
                target: held.target.map_or(-1, |t| i32::from(t.get())),
                nodes_to_reach: held.nodes_to_reach,
                word20: 0,
                word28: held.op.request().word28(),
            };
            match what {
                PrepareOrEnd::Prepare if held.resize.is_some() => {
                    self.send(peer, Packet::TwoPcPrepRsz(nr, held.resize_request(twopc)));
                    self.ping(peer);
                }
                PrepareOrEnd::Prepare => {
                    self.send(peer, Packet::TwoPcPrepare(nr, twopc));
                    self.ping(peer);
                }
                PrepareOrEnd::Abort | PrepareOrEnd::Unknown => {
                    if matches!(what, PrepareOrEnd::Unknown) && self.is_ours(peer) {
                        twopc.flags |= TWOPC_END_UNKNOWN;
                    }
                    self.send(peer, Packet::TwoPcAbort(nr, twopc));
                }
                PrepareOrEnd::Resized(size, diskful_primaries) => {
                    let (flags, word20, word28) = (0, diskful_primaries.0, size.0);
                    self.send(
                        peer,
                        Packet::TwoPcCommit(nr, TwoPc { flags, word20, word28, ..twopc }),
                    );
                }
                PrepareOrEnd::Commit(info) => {
                    twopc.word20 = info.primary.0;
                    if let Some(reachable) = info.reachable {
                        twopc.word28 = reachable.0;
                    } else {
                        twopc.flags &= !TWOPC_HAS_REACHABLE;
                    }
                    if info.primary_incapable {
                        twopc.flags |= TWOPC_PRI_INCAPABLE;
                    }
                    self.send(peer, Packet::TwoPcCommit(nr, twopc));
                }
            }
        }
    }

    /// P_TWOPC_PREPARE from a peer.
    pub(crate) fn twopc_prepare(
        &mut self,
        peer: PeerIx,
        nr: Option<VolumeNr>,
        request: TwoPc,
        resize: Option<Resizing>,
    ) -> Result<(), &'static str> {
        let (initiator, target) = parties(&request)?;
        if initiator == self.me {
            // It came back over a cycle: everyone it can reach has it.
            return self.duplicate_prepare(peer, nr, request);
        }
        if let Some(held) = &self.twopc.held {
            if held.tid == request.tid && held.initiator == initiator {
                return self.duplicate_prepare(peer, nr, request);
            }
            let mine = held.job.is_some();
            if !(mine && initiator < self.me) {
                self.reply_to(peer, nr, &request, Answer::Retry, ReplyMasks::default());
                return Ok(());
            }
            // The lower id wins over this node's own transaction.
            self.abort_own(StateError::ConcurrentStChg);
        }
        let vol = nr.and_then(|nr| self.vol_ix(nr));
        if nr.is_some()
            && vol.is_none()
            && (target == Some(self.me) || !self.may_lack_volumes(peer))
        {
            self.reply_to(peer, nr, &request, Answer::No, ReplyMasks::default());
            return Ok(());
        }
        let op = match resize {
            Some(_) => Some(Operation::Resize),
            None => Operation::of(ReqState::from_word28(request.word28)),
        };
        let Some(op) = op else {
            self.reply_to(peer, nr, &request, Answer::No, ReplyMasks::default());
            return Ok(());
        };
        let deadline = self.now + self.opts.twopc_timeout;
        let mut held = Held {
            parents: vec![peer],
            nodes_to_reach: request.nodes_to_reach,
            nr,
            resize,
            ..Held::new(request.tid, initiator, target, vol, op, deadline)
        };
        match self.validate_remote(&held) {
            Ok(()) => {}
            Err(refusal) => {
                let answer = match refusal.code {
                    RefusalCode::State(StateError::InTransientState) => Answer::Retry,
                    _ => Answer::No,
                };
                self.reply_to(peer, nr, &request, answer, ReplyMasks::default());
                return Ok(());
            }
        }
        if target == Some(self.me) && matches!(op, Operation::Connect(_)) {
            self.send_state_set(peer);
        }
        let children = self
            .st
            .connected_mask()
            .and(request.nodes_to_reach)
            .without(initiator)
            .without(self.peers[peer].node);
        held.children = children;
        held.waiting = children;
        held.nodes_to_reach = request.nodes_to_reach.minus(children.with(self.me));
        self.forward(&held, PrepareOrEnd::Prepare);
        self.twopc.held = Some(held);
        self.record_before_answer();
        self.measure_before_answer();
        self.twopc_progress();
        Ok(())
    }

    /// The transaction is known: its sender is one more parent, and needs no answer of its own.
    fn duplicate_prepare(
        &mut self,
        peer: PeerIx,
        nr: Option<VolumeNr>,
        request: TwoPc,
    ) -> Result<(), &'static str> {
        let node = self.peers[peer].node;
        let known = self.twopc.held.as_mut().filter(|h| h.tid == request.tid);
        let Some(held) = known else {
            self.reply_to(peer, nr, &request, Answer::Retry, ReplyMasks::default());
            return Ok(());
        };
        if held.job.is_some() {
            let masks = ReplyMasks::default();
            self.reply_to(peer, nr, &request, Answer::Yes, masks);
            return Ok(());
        }
        if !held.parents.contains(&peer) {
            held.parents.push(peer);
        }
        held.waiting.remove(node);
        if held.replied {
            let masks = self.reply_masks();
            let answer = self.own_answer();
            self.reply_to(peer, nr, &request, answer, masks);
        } else {
            self.twopc_progress();
        }
        Ok(())
    }

    /// P_TWOPC_YES, NO or RETRY.
    pub(crate) fn twopc_reply(&mut self, peer: PeerIx, reply: TwoPcReply, answer: Answer) {
        let node = self.peers[peer].node;
        if answer != Answer::Yes && !reply.reachable_nodes.contains(node) {
            // Refused unseen: it has not sent its states.
            self.peers[peer].devs.iter_mut().for_each(|dev| dev.word_due = false);
        }
        let Some(held) = &mut self.twopc.held else { return };
        if held.tid != reply.tid
            || i32::from(held.initiator.get()) != reply.initiator
            || !held.waiting.contains(node)
        {
            return;
        }
        held.waiting.remove(node);
        match answer {
            Answer::Yes => {
                if held.target == Some(node) && matches!(held.op, Operation::Disconnect(_)) {
                    held.target_reachable = reply.reachable_nodes;
                } else {
                    held.reachable = held.reachable.or(reply.reachable_nodes);
                }
                held.primary = held.primary.or(reply.primary_nodes);
                match &mut held.resize {
                    Some(resize) => resize.take_room(reply.weak_nodes),
                    None => held.weak = held.weak.or(reply.weak_nodes),
                }
            }
            Answer::No => held.no = true,
            Answer::Retry => held.retry = true,
        }
        self.twopc_progress();
    }

    /// Answers the parents, or ends an own transaction, as soon as that can be decided.
    pub(crate) fn twopc_progress(&mut self) {
        let Some(held) = &self.twopc.held else { return };
        let handshake = self.handshake_of(held);
        let answered = held.waiting.is_empty() && held.recording == 0;
        let complete = answered && handshake != Some(HandshakeResult::Pending);
        let ready = held.retry || complete || handshake == Some(HandshakeResult::Retry);
        if !ready || held.replied {
            return;
        }
        if held.job.is_some() {
            return self.decide_own();
        }
        let (answer, masks) = (self.own_answer(), self.reply_masks());
        let held = self.twopc.held.as_mut().expect("looked at above");
        held.replied = true;
        held.answer = answer;
        let parents = held.parents.clone();
        let (tid, initiator) = (held.tid, held.initiator);
        let nr = held.nr;
        for parent in parents {
            self.send_reply(parent, nr, tid, i32::from(initiator.get()), answer, masks);
        }
        // Without agreement there will be no COMMIT; the ABORT may be lost with a link.
        if answer != Answer::Yes {
            let held = self.twopc.held.as_mut().expect("looked at above");
            held.deadline = held.deadline.min(self.now + self.opts.twopc_timeout);
        }
    }

    /// State of the connect handshake that the transaction waits for, if it is about this node.
    fn handshake_of(&self, held: &Held) -> Option<HandshakeResult> {
        if !matches!(held.op, Operation::Connect(_)) {
            return None;
        }
        let other = if held.job.is_some() { held.target? } else { held.initiator };
        if held.job.is_none() && held.target != Some(self.me) {
            return None;
        }
        Some(self.handshake_result(self.peer_ix(other)?))
    }

    fn own_answer(&self) -> Answer {
        let held = self.twopc.held.as_ref().expect("asked about a held transaction");
        let handshake = self.handshake_of(held);
        if held.retry || handshake == Some(HandshakeResult::Retry) {
            Answer::Retry
        } else if held.no
            || self.has_left_metadata(held)
            || matches!(handshake, Some(HandshakeResult::Refuse(_)))
        {
            Answer::No
        } else {
            Answer::Yes
        }
    }

    /// What this node's subtree reports upwards (wire §8.3).
    fn reply_masks(&self) -> ReplyMasks {
        let held = self.twopc.held.as_ref().expect("asked about a held transaction");
        let mut reachable = self.st.connected_mask().with(self.me);
        if held.resize.is_some() {
            return self.resize_masks(held);
        }
        if held.target == Some(self.me) {
            match held.op {
                Operation::Connect(_) => reachable.insert(held.initiator),
                Operation::Disconnect(_) => reachable.remove(held.initiator),
                _ => {}
            }
        }
        let own = self.own_primary(reachable);
        ReplyMasks {
            reachable: reachable.or(held.reachable),
            primary: own.primary.or(held.primary),
            weak: own.weak.or(held.weak),
        }
    }

    fn reply_to(
        &mut self,
        peer: PeerIx,
        nr: Option<VolumeNr>,
        request: &TwoPc,
        answer: Answer,
        masks: ReplyMasks,
    ) {
        self.send_reply(peer, nr, request.tid, request.initiator, answer, masks);
    }

    fn send_reply(
        &mut self,
        peer: PeerIx,
        nr: Option<VolumeNr>,
        tid: u32,
        initiator: i32,
        answer: Answer,
        masks: ReplyMasks,
    ) {
        let reply = TwoPcReply {
            tid,
            initiator,
            reachable_nodes: masks.reachable,
            primary_nodes: masks.primary,
            weak_nodes: masks.weak,
        };
        let packet = match answer {
            Answer::Yes => Packet::TwoPcYes(nr, reply),
            Answer::No => Packet::TwoPcNo(nr, reply),
            Answer::Retry => Packet::TwoPcRetry(nr, reply),
        };
        self.send(peer, packet);
    }

    /// All answers to an own transaction are in.
    fn decide_own(&mut self) {
        let held = self.twopc.held.as_ref().expect("an own transaction is held");
        if held.resize.is_some() {
            return self.decide_resize();
        }
        let result = match self.own_answer() {
            Answer::Retry => Err(match self.handshake_of(held) {
                Some(HandshakeResult::Retry) => StateError::HandshakeRetry.into(),
                _ => StateError::ConcurrentStChg.into(),
            }),
            Answer::No => Err(match self.handshake_of(held) {
                Some(HandshakeResult::Refuse(why)) => {
                    Refusal::state(StateError::HandshakeDisconnect, why)
                }
                _ => StateError::CwFailedByPeer.into(),
            }),
            // What it was to begin from has gone.
            Answer::Yes if self.has_lost_source(held) => Err(StateError::ConcurrentStChg.into()),
            Answer::Yes => self.initiator_checks(held),
        };
        match result {
            Ok(info) if self.record_before_commit(info) => {}
            Ok(info) => self.commit_own(info),
            Err(refusal) => {
                let held = self.twopc.held.take().expect("an own transaction is held");
                self.end_own(&held, refusal);
            }
        }
    }

    /// Semantics §2.4, for a single Primary.
    fn initiator_checks(&self, held: &Held) -> Result<CommitInfo, Refusal> {
        let mut direct = self.st.connected_mask().with(self.me);
        let mut reachable = direct.or(held.reachable);
        match (held.op, held.target) {
            (Operation::Connect(_), Some(target)) => {
                direct.insert(target);
                reachable.insert(target);
            }
            (Operation::Disconnect(_), Some(target)) => {
                direct.remove(target);
                reachable = direct.or(held.reachable);
                if !held.target_reachable.and(reachable).is_empty() {
                    reachable = reachable.or(held.target_reachable);
                }
            }
            _ => {}
        }
        let mut own = self.own_primary(direct);
        if let Operation::Promote { .. } = held.op {
            own.primary.insert(self.me);
            own.weak = direct.complement();
        }
        let mut primary = own.primary.or(held.primary);
        let mut weak = own.weak.or(held.weak);
        if held.op == Operation::Demote {
            primary.remove(self.me);
            weak = held.weak;
        }
        if primary.len() > 1 && matches!(held.op, Operation::Promote { .. } | Operation::Connect(_))
        {
            return Err(StateError::TwoPrimaries.into());
        }
        let reader = self.has_readers();
        if let (Operation::Connect(_), Some(target)) = (held.op, held.target) {
            if reader && primary.contains(target) && self.st.role != Role::Primary {
                return Err(StateError::PrimaryReader.into());
            }
        }
        let primary_incapable = !primary.is_empty() && weak.is_empty();
        let split = matches!(held.op, Operation::Disconnect(_))
            && held.target_reachable.and(reachable).is_empty();
        let sent = if split { held.target_reachable } else { reachable };
        Ok(CommitInfo { primary, reachable: Some(sent), primary_incapable })
    }

    /// COMMIT goes out, then this node changes. What follows from the change is sent behind the
    /// COMMIT on the same streams.
    fn commit_own(&mut self, info: CommitInfo) {
        let held = self.twopc.held.take().expect("an own transaction is held");
        self.forward(&held, PrepareOrEnd::Commit(info));
        let own_reachable = {
            let mut direct = self.st.connected_mask().with(self.me).or(held.reachable);
            match (held.op, held.target) {
                (Operation::Connect(_), Some(target)) => direct.insert(target),
                (Operation::Disconnect(_), Some(target)) => {
                    direct.remove(target);
                    if !held.target_reachable.and(direct).is_empty() {
                        direct = direct.or(held.target_reachable);
                    }
                }
                _ => {}
            }
            direct
        };
        // Who goes is left outside only if quorum is held without counting on that.
        let leaves = matches!(held.op, Operation::Disconnect(_));
        if !leaves {
            self.members = own_reachable;
        }
        self.apply_own(&held, info);
        if leaves && self.sees_quorum() {
            self.members = own_reachable;
        }
        self.job_succeeded(held.job.expect("it is this node's own"));
    }

    /// Applies an own transaction that was committed.
    fn apply_own(&mut self, held: &Held, info: CommitInfo) {
        let target = held.target.and_then(|t| self.peer_ix(t));
        match (held.op, target, held.vol) {
            (Operation::Connect(_), Some(peer), _) => self.apply_connect(peer),
            (Operation::Disconnect(outdates), Some(peer), _) => {
                self.apply_disconnect(
                    peer,
                    true,
                    outdates == Outdates::Initiator,
                    outdates == Outdates::Target,
                );
            }
            (op, target, vol) => {
                let participants = held.reachable;
                if op == (Operation::Promote { force: true }) {
                    self.hold_forced_states();
                }
                self.change_hard(|st| apply_own_change(st, op, target, vol));
                if matches!(op, Operation::Promote { .. }) {
                    self.outdate_far(participants);
                }
                if op == (Operation::Promote { force: true }) {
                    self.forced_up_to_date();
                }
            }
        }
        self.after_commit(held, info);
    }

    /// The new Primary knows that nodes which took part but are not connected to it have
    /// outdated themselves (semantics §2.9).
    fn outdate_far(&mut self, participants: NodeMask) {
        let far = participants.minus(self.st.connected_mask()).without(self.me);
        let peers: Vec<PeerIx> = far.iter().filter_map(|n| self.peer_ix(n)).collect();
        if !peers.is_empty() {
            self.change_hard(|st| {
                for peer in &peers {
                    for dev in &mut st.peers[*peer].devs {
                        if dev.disk == DiskState::DUnknown {
                            dev.disk = DiskState::Outdated;
                        }
                    }
                }
            });
        }
    }

    /// P_TWOPC_COMMIT.
    pub(crate) fn twopc_commit(&mut self, request: TwoPc) -> Result<(), &'static str> {
        let (initiator, _) = parties(&request)?;
        let known =
            self.twopc.held.as_ref().is_some_and(|h| {
                h.tid == request.tid && h.initiator == initiator && h.job.is_none()
            });
        if !known {
            // Executed once; a node that dropped it learns the outcome from states later.
            return Ok(());
        }
        let held = self.twopc.held.take().expect("looked at above");
        if held.resize.is_some() {
            return self.commit_resize(&held, request);
        }
        let has_reachable = request.flags & TWOPC_HAS_REACHABLE != 0;
        let info = CommitInfo {
            primary: NodeMask(request.word20),
            reachable: has_reachable.then_some(NodeMask(request.word28)),
            primary_incapable: request.flags & TWOPC_PRI_INCAPABLE != 0,
        };
        self.forward(&held, PrepareOrEnd::Commit(info));
        // Who goes is left outside only if quorum is held without counting on that.
        let leaves = matches!(held.op, Operation::Disconnect(_));
        let was_quorate = self.sees_quorum();
        if was_quorate && !leaves {
            self.join_members(info);
        }
        if let (Operation::Connect(_), Some(target)) = (held.op, held.target) {
            // Whatever the quorum: these two have met, and one may be what the other lacks.
            self.members.insert(held.initiator);
            self.members.insert(target);
        }
        let target_is_me = held.target == Some(self.me);
        if let (Operation::Connect(_), Some(target), false) = (held.op, held.target, target_is_me) {
            self.others_joined(held.initiator, target);
        }
        let initiator = self.peer_ix(held.initiator);
        let stale = target_is_me && self.has_lost_source(&held);
        match (held.op, initiator, target_is_me) {
            (_, Some(peer), true) if stale => {
                self.disagree(peer, "is to resync with this disk, and the source was left behind");
            }
            (Operation::Connect(_), Some(peer), true) if self.has_outrun_source(peer) => {
                self.disagree(peer, "is the source of a resync, and this disk has moved on");
            }
            (Operation::Connect(_), Some(peer), true) => self.apply_connect(peer),
            (Operation::Disconnect(outdates), Some(peer), true) => {
                self.apply_disconnect(
                    peer,
                    false,
                    outdates == Outdates::Target,
                    outdates == Outdates::Initiator,
                );
            }
            (op, Some(peer), _) if self.st.is_connected(peer) => {
                let vol = held.vol;
                if op == (Operation::Promote { force: true }) {
                    self.note_forced(peer);
                }
                self.change_hard(|st| apply_remote(st, op, peer, vol, target_is_me));
                if op == Operation::Attach {
                    self.peer_attaches(peer);
                }
            }
            _ => {}
        }
        if (!was_quorate || leaves) && self.sees_quorum() {
            self.join_members(info);
        }
        self.after_commit(&held, info);
        Ok(())
    }

    /// This node or a connected neighbour has quorum.
    fn sees_quorum(&self) -> bool {
        self.st.vols.iter().all(|v| v.real_quorum || v.aside)
            || self.st.connected().any(|p| self.st.peers[p].devs.iter().any(|d| d.peer_quorum))
    }

    /// Who took part in a committed transaction is a member (semantics §2.9).
    fn join_members(&mut self, info: CommitInfo) {
        if let Some(reachable) = info.reachable.filter(|r| r.contains(self.me)) {
            self.members = reachable;
        }
    }

    /// What every participant concludes from a committed transaction (semantics §2.6, §2.9).
    fn after_commit(&mut self, held: &Held, info: CommitInfo) {
        let direct = self.st.connected_mask().with(self.me);
        let far = self.unreached_primaries(held, info);
        self.far_primaries = far.or(held.lost_primaries);
        let far_primary = !far.is_empty();
        if far_primary && self.st.role != Role::Primary {
            self.change_hard(|st| {
                for vol in &mut st.vols {
                    if vol.disk > DiskState::Outdated {
                        vol.disk = DiskState::Outdated;
                    }
                }
            });
        } else if held.op == Operation::Empty && held.lost_primaries.is_empty() {
            self.become_up_to_date(held.job.is_some());
        }
        if held.op == Operation::Empty
            && self.st.role == Role::Primary
            && held.initiator != self.me
            && !info.primary_incapable
            && !direct.contains(held.initiator)
        {
            // The initiator can not see this Primary directly and has outdated itself.
            if let Some(peer) = self.peer_ix(held.initiator) {
                self.change_hard(|st| {
                    for dev in &mut st.peers[peer].devs {
                        if dev.disk == DiskState::DUnknown {
                            dev.disk = DiskState::Outdated;
                        }
                    }
                });
            }
        }
        for vol in 0..self.vols.len() {
            self.md_changed_now(vol);
        }
        // Members feed quorum.
        self.change_hard(|_| {});
        for vol in 0..self.vols.len() {
            self.resyncs_progress(vol);
        }
    }

    /// Primaries that go on without this node.
    fn unreached_primaries(&self, held: &Held, info: CommitInfo) -> NodeMask {
        let direct = self.st.connected_mask().with(self.me);
        // A Primary that fell silent here since it was counted may be gone altogether. The
        // transaction about its loss is to come, and finds out whether others hear it.
        match info.primary_incapable {
            true => NodeMask::EMPTY,
            false => info.primary.minus(direct).minus(held.lost_primaries),
        }
    }

    /// P_TWOPC_ABORT.
    pub(crate) fn twopc_abort(&mut self, peer: PeerIx, request: TwoPc) -> Result<(), &'static str> {
        let (initiator, _) = parties(&request)?;
        let known =
            |h: &mut Held| h.tid == request.tid && h.initiator == initiator && h.job.is_none();
        if request.flags & TWOPC_END_UNKNOWN != 0 && self.is_ours(peer) {
            self.lose_parent(peer, known);
        } else if let Some(held) = self.twopc.held.take_if(known) {
            self.forward(&held, PrepareOrEnd::Abort);
            self.transaction_dropped(&held);
        }
        Ok(())
    }

    /// An own transaction gives way.
    pub(crate) fn abort_own(&mut self, why: StateError) {
        if let Some(held) = self.twopc.held.take_if(|h| h.job.is_some()) {
            self.end_own(&held, why.into());
        }
    }

    /// An own transaction comes to nothing.
    fn end_own(&mut self, held: &Held, refusal: Refusal) {
        self.forward(held, PrepareOrEnd::Abort);
        self.record_withdrawn(held);
        self.job_failed(held.job.expect("it is this node's own"), refusal);
    }

    /// A disk is gone while the cluster is asked whether it may come or go. The next disk is none of
    /// that question's business.
    pub(crate) fn abort_disk_change(&mut self, vol: VolIx) {
        let about_disk = self.twopc.held.as_ref().is_some_and(|h| {
            h.vol == Some(vol) && matches!(h.op, Operation::Attach | Operation::Detach)
        });
        if about_disk {
            self.abort_own(StateError::ConcurrentStChg);
        }
        let why = "the disk was lost while it was being attached";
        self.attach_ended(vol, Err(Refusal::config(ConfigError::MetaIo, why)));
    }

    /// Another node has been told that it may become Primary, and may have become it.
    pub(crate) fn promotion_is_prepared(&self) -> bool {
        let promotes = |h: &Held| h.job.is_none() && matches!(h.op, Operation::Promote { .. });
        self.twopc.held.as_ref().is_some_and(promotes)
    }

    /// A prepared transaction of another node is not going to happen.
    fn transaction_dropped(&mut self, held: &Held) {
        self.record_withdrawn(held);
        for vol in 0..self.vols.len() {
            self.resyncs_progress(vol);
        }
        if let (Some(_), Some(vol)) = (&held.resize, held.vol) {
            self.settle_size(vol);
        }
        if matches!(held.op, Operation::Connect(_)) && held.target == Some(self.me) {
            if let Some(peer) = self.peer_ix(held.initiator) {
                self.handshake_aborted(peer);
            }
        }
    }

    /// A connection is lost (semantics §2.7). `silent_primary`: that to a Primary, without a word.
    pub(crate) fn twopc_peer_lost(&mut self, peer: PeerIx, silent_primary: bool) {
        let node = self.peers[peer].node;
        if silent_primary {
            // It may write on: until a transaction has asked the others, nothing that they said
            // before tells what has become of its generation.
            self.far_primaries.insert(node);
        }
        let Some(held) = &mut self.twopc.held else { return };
        if silent_primary {
            held.lost_primaries.insert(node);
        }
        if held.job.is_some() {
            if held.children.contains(node) {
                // A disconnect is tried again, and then has nobody to ask.
                let leaves = matches!(held.op, Operation::Disconnect(_));
                let target = held.target == Some(node) && !leaves;
                let why =
                    if target { StateError::NeedConnection } else { StateError::ConcurrentStChg };
                self.abort_own(why);
            }
            return;
        }
        // Its next connection knows nothing of this transaction.
        held.children.remove(node);
        if held.waiting.contains(node) {
            held.waiting.remove(node);
            held.retry = true;
        }
        self.lose_parent(peer, |_| true);
        self.twopc_progress();
    }

    /// A transaction that took too long is dropped.
    pub(crate) fn twopc_timeout(&mut self) {
        let due = |h: &mut Held| h.deadline <= self.now;
        let Some(held) = self.twopc.held.take_if(due) else { return };
        match held.job {
            Some(_) => self.end_own(&held, StateError::Timeout.into()),
            None => self.end_unknown(&held),
        }
    }

    /// A participant's held transaction is dropped without telling anyone, when this node's
    /// own facts have overtaken it. Kept small: only tests of facts use it.
    pub(crate) fn work_later(&mut self, work: Work) {
        self.work.push_back(work);
    }
}

#[derive(Clone, Copy)]
enum PrepareOrEnd {
    Prepare,
    Abort,
    /// Who asked is lost, and may have committed.
    Unknown,
    Commit(CommitInfo),
    /// COMMIT of a resize: to that size, with those Primaries that have a disk.
    Resized(Sectors, NodeMask),
}

/// Answer of a participant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Yes,
    No,
    Retry,
}

#[derive(Clone, Copy, Default)]
struct ReplyMasks {
    reachable: NodeMask,
    primary: NodeMask,
    weak: NodeMask,
}

/// Initiator and target of a request that arrived.
fn parties(request: &TwoPc) -> Result<(NodeId, Option<NodeId>), &'static str> {
    let id = |raw: i32| u8::try_from(raw).ok().and_then(NodeId::new);
    let initiator = id(request.initiator).ok_or("a transaction names an impossible initiator")?;
    let target = match request.target {
        -1 => None,
        raw => Some(id(raw).ok_or("a transaction names an impossible target")?),
    };
    if request.tid == 0 {
        return Err("a transaction has no id");
    }
    Ok((initiator, target))
}
