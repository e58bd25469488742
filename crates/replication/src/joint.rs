//! A second Primary beside the first (`allow-two-primaries`).
//!
//! DRBD lets both write to all replicas, tells its users not to write to the same place at once, and
//! leaves two histories behind when the two lose each other. Here one node writes at any time: the
//! *lead*. A node that becomes Primary beside it *joins* it: it hands the requests of its users to the
//! lead, over the connection that there is, and the lead does them as if they were its own users'. So
//! all that keeps one Primary's data together holds for two of them as well: one stream of writes, one
//! generation, one node that counts votes. Towards third nodes, and in its own states, the node that
//! joined is a Secondary; to its users, and to those who ask for its role, it is Primary.
//!
//! ```text
//!  users of B                     B (joined)                  A (lead)
//!     write  ────────────────────▶ P_JOINT_DATA ────────────▶ a request like any other: held,
//!                                                             logged, replicated (to B, too)
//!     done   ◀──────────────────── P_JOINT_DONE ◀──────────── complete
//! ```
//!
//! When the lead is demoted, or lost, the node that had joined becomes Primary itself, by the rules for
//! every Primary, or joins the next one, and has everything done again that was not answered. A request
//! may be done twice that way, which is no more than one that takes long: until it is answered, what it
//! wrote may be there or not. It must not be done *after* it was answered: what a lead has taken from a
//! node is at an end before it lets that node join again.
//!
//! This file is the side that joins; `lead` is the other one.

mod lead;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use codec::wire::{
    BlockId, BlockReq, Data, DataFlags, JointResult, JointWord, Packet, Trim, feature,
};
use serde::{Deserialize, Serialize};
use vocab::options::{Fencing, OnNoDataAccessible, Quorum};
use vocab::{ConfigError, Instant, NodeId, Refusal, Role, StateError, VolumeNr};

use crate::io::{BufId, IoError, LogLevel, Request, RequestOp};
use crate::jobs::{JobKind, Start};
use crate::resource::{Resource, Work};
use crate::slab::Slab;
use crate::state::{PeerIx, VolIx};

pub(crate) use lead::Foreign;

/// Requests that are under way to the lead at most.
const DEPTH: usize = 256;
/// Sectors of data under way to the lead, beyond which nothing more is sent.
const DATA: u64 = 16_384;
/// Time between attempts to join a Primary, or to become it, without one.
const REJOIN: Duration = Duration::from_millis(250);
/// As long as that, requests wait for the next lead with `on-no-data-accessible io-error`, too: a
/// connection that breaks comes back sooner.
const PATIENCE: Duration = Duration::from_secs(15);

/// What a node that is Primary beside another one has to know.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Joint {
    /// Its users use it as a Primary.
    pub on: bool,
    /// Who does their I/O, as agreed on the connection that there is.
    pub lead: Option<NodeId>,
    /// Who did it last.
    former: Option<NodeId>,
    /// There is no lead since then.
    since: Instant,
    /// The lead wants no more requests for a while.
    hold: bool,
    /// This node is demoted by force, and the lead has been told.
    leaving: bool,
    asked: Option<Asked>,
    #[serde(skip)]
    requests: Slab<Forwarded>,
    /// Requests that are not under way, in the order in which they came.
    #[serde(skip)]
    queue: VecDeque<usize>,
    #[serde(skip)]
    order: u64,
    #[serde(skip)]
    under_way: usize,
    #[serde(skip)]
    sectors_under_way: u64,
}

/// A Primary was asked, and has not answered.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Asked {
    node: NodeId,
    job: u64,
    until: Instant,
}

/// A request of a user.
#[derive(Debug, Clone, Copy)]
struct Forwarded {
    vol: VolIx,
    request: Request,
    order: u64,
    /// It is under way to the lead.
    sent: bool,
    /// It was under way to one that is lost, and may be done yet.
    loose: bool,
}

impl Forwarded {
    /// Sectors of data that travel with it.
    fn weight(&self) -> u64 {
        match self.request.op {
            RequestOp::Write { .. } | RequestOp::Read => self.request.range.len.0,
            _ => 0,
        }
    }
}

impl Joint {
    /// Requests of users that are not answered.
    pub(crate) fn has_requests(&self) -> bool {
        self.requests.len() > 0
    }

    /// None of them is under way: what is held back does not count.
    pub(crate) fn is_drained(&self) -> bool {
        self.under_way == 0
    }

    pub(crate) fn requests_of(&self, vol: VolIx) -> usize {
        self.requests.iter().filter(|(_, f)| f.vol == vol).count()
    }

    /// A request is at its end.
    fn end(&mut self, key: usize) -> Option<Forwarded> {
        let ended = self.requests.remove(key)?;
        if ended.sent {
            self.under_way -= 1;
            self.sectors_under_way -= ended.weight();
        }
        Some(ended)
    }

    /// All requests again, in the order in which they came; none of them is under way any more.
    fn recall(&mut self) {
        self.requests.iter_mut().for_each(|(_, f)| f.loose |= f.sent);
        let mut all: Vec<(u64, usize)> =
            self.requests.iter().map(|(key, f)| (f.order, key)).collect();
        all.sort_unstable();
        self.queue = all.into_iter().map(|(_, key)| key).collect();
        self.requests.iter_mut().for_each(|(_, f)| f.sent = false);
        (self.under_way, self.sectors_under_way) = (0, 0);
    }
}

impl Resource {
    /// Users of this node use it as a Primary, whoever does the I/O.
    pub(crate) fn is_primary_to_users(&self) -> bool {
        self.st.role == Role::Primary || self.joint.on
    }

    /// The node that does the I/O of this one's users, if that is another one: `Some(None)` while they
    /// wait for one.
    pub fn joint(&self) -> Option<Option<NodeId>> {
        self.joint.on.then_some(self.joint.lead)
    }

    /// The node is Primary beside this one, which does its I/O.
    pub fn has_joined(&self, node: NodeId) -> bool {
        self.peer_ix(node).is_some_and(|peer| self.peers[peer].joined)
    }

    /// A connected Primary beside which this node may be one.
    pub(crate) fn possible_lead(&self) -> Option<PeerIx> {
        self.st.connected().find(|p| {
            let peer = &self.peers[*p];
            self.st.peers[*p].role == Role::Primary
                && peer.net.allow_two_primaries
                && peer.agreed_features & feature::JOINT_PRIMARY != 0
        })
    }

    /// Why this node can not be Primary beside one that is.
    pub(crate) fn second_primary_refused(&self, peer: PeerIx) -> Refusal {
        let (name, other) = (&self.name, &self.peers[peer].name);
        let able = self.peers[peer].agreed_features & feature::JOINT_PRIMARY != 0;
        let detail = match self.peers[peer].net.allow_two_primaries {
            true if !able => format!(
                "{other} is Primary, and its software has no second one beside it: DRBD has not, and \
                 Ashlar only from this release on; make it Secondary first"
            ),
            _ => format!(
                "{other} is Primary; make it Secondary first (ashlar secondary {name}), or set \
                 allow-two-primaries on both nodes"
            ),
        };
        Refusal::state(StateError::TwoPrimaries, detail)
    }

    // --- becoming it, and being it no more --------------------------------------------------

    /// Asks the Primary. The job goes on with its answer.
    pub(crate) fn start_joining(&mut self, job: u64, lead: PeerIx) -> Start {
        if let Some(asked) = self.joint.asked.filter(|asked| self.now < asked.until) {
            return Start::At(asked.until);
        }
        if self.joint.asked.take().is_some_and(|asked| asked.job == job) {
            let detail = format!("{} does not say whether it may", self.peers[lead].name);
            return Start::Done(Err(Refusal::state(StateError::Timeout, detail)));
        }
        let until = self.now + self.peers[lead].net.ping_timeout * 4;
        self.joint.asked = Some(Asked { node: self.peers[lead].node, job, until });
        self.send(lead, Packet::Joint(JointWord::Join));
        Start::At(until)
    }

    /// P_JOINT.
    pub(crate) fn joint_word(&mut self, peer: PeerIx, word: JointWord) -> Result<(), &'static str> {
        if !self.st.is_connected(peer) {
            return Err("a second Primary is talked about before the connection is made");
        }
        let node = self.peers[peer].node;
        match word {
            JointWord::Join => self.join_wanted(peer),
            JointWord::Leave => self.left_by(peer),
            JointWord::Left => {
                if self.joint.leaving && self.joint.lead == Some(node) {
                    self.fail_forwarded(|_| true);
                    self.leave();
                    self.demotions_go_on();
                }
            }
            JointWord::Joined | JointWord::Later | JointWord::Refused => {
                let Some(asked) = self.joint.asked.take_if(|asked| asked.node == node) else {
                    // Whoever asked has given up.
                    if word == JointWord::Joined && self.joint.lead != Some(node) {
                        self.send(peer, Packet::Joint(JointWord::Leave));
                    }
                    return Ok(());
                };
                match word {
                    JointWord::Joined => self.joined(peer, asked.job),
                    _ => self.not_joined(peer, asked.job, word == JointWord::Later),
                }
            }
            JointWord::Hold | JointWord::GoOn => {
                if self.joint.lead == Some(node) {
                    self.joint.hold = word == JointWord::Hold;
                    self.send_forwarded();
                }
            }
            JointWord::Unknown(_) => {
                return Err("it says something about a second Primary that nobody knows");
            }
        }
        Ok(())
    }

    fn joined(&mut self, peer: PeerIx, job: u64) {
        if !self.joint.on && self.job_mut(job).is_none() {
            // Whoever wanted it has been told that it did not come about.
            return self.send(peer, Packet::Joint(JointWord::Leave));
        }
        let text = format!(
            "{}: this node is Primary beside {} now, which does its I/O",
            self.name, self.peers[peer].name
        );
        self.log(LogLevel::Info, text);
        self.joint.on = true;
        self.joint.hold = false;
        self.joint.lead = Some(self.peers[peer].node);
        self.joint.former = self.joint.lead;
        self.visible_change = true;
        self.promotions_are_done();
        self.send_forwarded();
    }

    /// The Primary has refused, for now or for as long as its options are what they are.
    fn not_joined(&mut self, peer: PeerIx, job: u64, for_now: bool) {
        let why = match for_now {
            true => "is about to be demoted, or has not ended what it did for this node before",
            false => "does not allow two Primaries; set allow-two-primaries there, too",
        };
        let detail = format!("{} is Primary, and {why}", self.peers[peer].name);
        self.joining_failed(job, Refusal::state(StateError::TwoPrimaries, detail), for_now);
    }

    /// An attempt to join has come to nothing.
    fn joining_failed(&mut self, job: u64, refusal: Refusal, again: bool) {
        let rejoins = self.job_mut(job).is_some_and(|j| j.kind == JobKind::Rejoin);
        if rejoins {
            return self.retry_job(job, self.now + REJOIN);
        }
        let start = match again {
            true => self.wait_or_fail(job, refusal),
            false => Start::Done(Err(refusal)),
        };
        match start {
            Start::At(at) => self.retry_job(job, at),
            Start::Done(result) => self.finish_job(job, result),
            Start::Running => {}
        }
    }

    /// States have changed: the lead may be gone, or be Primary no more, and so may this node or one
    /// that has joined it.
    pub(crate) fn review_joint(&mut self) {
        let primaries = self.st.primary_peers();
        if self.joint.lead.is_some_and(|lead| !primaries.contains(lead)) {
            self.lose_lead();
        }
        if let Some(asked) = self.joint.asked.take_if(|asked| !primaries.contains(asked.node)) {
            let detail = "the Primary that was asked is gone";
            let refusal = Refusal::state(StateError::NeedConnection, detail);
            self.joining_failed(asked.job, refusal, true);
        }
        self.review_foreign();
    }

    fn lose_lead(&mut self) {
        let Some(lead) = self.joint.lead.take() else { return };
        let who = self.peer_ix(lead).map_or_else(String::new, |p| self.peers[p].name.clone());
        let text = format!(
            "{}: {who} does the I/O of this Primary no more; it waits for another one",
            self.name
        );
        self.log(LogLevel::Warn, text);
        self.joint.since = self.now;
        self.joint.hold = false;
        self.joint.leaving = false;
        self.joint.recall();
        self.visible_change = true;
        if !self.wants(&JobKind::Rejoin) {
            self.want(JobKind::Rejoin, None);
        }
    }

    /// Joins the Primary that there is, or becomes it.
    pub(crate) fn start_rejoin(&mut self, id: u64) -> Start {
        if !self.joint.on || self.joint.lead.is_some() {
            return Start::Done(Ok(()));
        }
        if self.st.fail_io {
            // Demoted by force, and whoever wanted that has not waited for the end.
            if self.has_waited_for_lead() {
                self.fail_forwarded(|_| true);
                self.leave();
                return Start::Done(Ok(()));
            }
            return Start::At(self.now + REJOIN);
        }
        let fails = self.opts.on_no_data_accessible == OnNoDataAccessible::IoError;
        if fails && self.has_waited_for_lead() {
            self.fail_forwarded(|f| !f.loose);
        }
        let later = self.now + REJOIN;
        if self.possible_lead().is_none() && !self.may_take_over() {
            return Start::At(later);
        }
        match self.start_primary(id, false) {
            Start::Done(Err(_)) => Start::At(later),
            Start::At(at) => Start::At(at.max(later)),
            start => start,
        }
    }

    /// The lead writes no more, or it can not without this node hearing of it: it has been demoted, or
    /// votes decide, or it is fenced before this node is promoted. Otherwise an operator has to know
    /// that it is down.
    pub(crate) fn may_take_over(&self) -> bool {
        let Some(former) = self.joint.former.and_then(|node| self.peer_ix(node)) else {
            return true;
        };
        self.opts.quorum != Quorum::Off
            || self.peers[former].net.fencing == Fencing::ResourceAndStonith
            || self.st.is_connected(former)
    }

    /// This node has become Primary itself: what its users wait for, it does.
    pub(crate) fn take_over(&mut self) {
        if !self.joint.on {
            return;
        }
        self.joint.recall();
        for key in std::mem::take(&mut self.joint.queue) {
            let Some(forwarded) = self.joint.end(key) else { continue };
            self.vols[forwarded.vol].held.push_back(forwarded.request);
        }
        self.joint = Joint::default();
        for vol in 0..self.vols.len() {
            self.work.push_back(Work::Kick(vol));
        }
    }

    /// Demotion of a node that is Primary beside another one.
    pub(crate) fn start_leaving(&mut self, id: u64, force: bool) -> Start {
        self.demoting = true;
        let lead = self.joint.lead.and_then(|lead| self.peer_ix(lead));
        if force {
            self.change_hard(|st| st.fail_io = true);
            self.fail_forwarded(|f| !f.sent && !f.loose);
            if self.joint.has_requests() {
                return self.fail_at_lead(id, lead);
            }
        } else if let Err(refusal) = self.check_demotion() {
            return Start::Done(Err(refusal));
        }
        if self.joint.has_requests() {
            let why = "requests of users are not finished";
            return self.wait_or_fail(id, Refusal::state(StateError::DeviceInUse, why));
        }
        if let Some(lead) = lead.filter(|_| !self.joint.leaving) {
            self.send(lead, Packet::Joint(JointWord::Leave));
        }
        self.leave();
        Start::Done(Ok(()))
    }

    /// This node is Primary beside none any more.
    fn leave(&mut self) {
        let text = format!("{}: this node is Secondary now", self.name);
        self.log(LogLevel::Info, text);
        self.joint = Joint::default();
        self.explicit_primary = false;
        self.visible_change = true;
    }

    /// What a lead may still do must not fail: others would find it done after they have been told that
    /// it is not, over what they have written since. The lead says when that is over. One that is lost
    /// can not; nothing that it has heard before is older, by then, than what it takes for a live
    /// connection.
    fn fail_at_lead(&mut self, id: u64, lead: Option<PeerIx>) -> Start {
        match lead {
            Some(lead) if !std::mem::replace(&mut self.joint.leaving, true) => {
                self.send(lead, Packet::Joint(JointWord::Leave));
            }
            Some(_) => {}
            None if self.has_waited_for_lead() => {
                self.fail_forwarded(|_| true);
                return Start::At(self.now);
            }
            None => {}
        }
        let why = "the Primary beside this one has not said yet that it does nothing more for it";
        self.wait_or_fail(id, Refusal::state(StateError::DeviceInUse, why))
    }

    /// For so long that requests do not wait any more.
    fn has_waited_for_lead(&self) -> bool {
        self.joint.lead.is_none() && self.now.since(self.joint.since) >= PATIENCE
    }

    /// A planned disconnect would take a second Primary from its I/O.
    pub(crate) fn check_joint_disconnect(&self, peer: PeerIx) -> Result<(), Refusal> {
        let (name, other) = (&self.name, &self.peers[peer].name);
        let detail = if self.joint.on && self.joint.lead == Some(self.peers[peer].node) {
            format!("{other} does the I/O of this Primary; make this node Secondary first")
        } else if self.peers[peer].joined {
            format!(
                "this node does the I/O of {other}, which is Primary, too; make that one Secondary \
                 first (ashlar secondary {name})"
            )
        } else {
            return Ok(());
        };
        Err(Refusal::state(StateError::DeviceInUse, detail))
    }

    /// Options of a connection that do not go together, or not now (semantics §3.5).
    pub(crate) fn check_two_primaries(
        &self,
        peer: Option<PeerIx>,
        options: &vocab::options::NetOptions,
    ) -> Result<(), Refusal> {
        if options.allow_two_primaries && options.protocol != vocab::options::Protocol::C {
            let detail = "allow-two-primaries needs protocol C";
            return Err(Refusal::config(ConfigError::NeedProtocolC, detail));
        }
        let Some(peer) = peer.filter(|_| !options.allow_two_primaries) else { return Ok(()) };
        let beside = self.peers[peer].joined
            || self.joint.on && self.joint.lead == Some(self.peers[peer].node);
        if beside {
            let detail = format!(
                "this node and {} are both Primary; make one of them Secondary first",
                self.peers[peer].name
            );
            return Err(Refusal::config(ConfigError::NeedTwoPrimaries, detail));
        }
        Ok(())
    }

    // --- requests ---------------------------------------------------------------------------

    /// A request of a user of this node goes to the lead, as soon as there is one.
    pub(crate) fn forward_request(&mut self, vol: VolIx, request: Request) {
        if self.st.fail_io {
            return self.reject(request, IoError::Io);
        }
        let order = self.joint.order;
        self.joint.order += 1;
        let forwarded = Forwarded { vol, request, order, sent: false, loose: false };
        let key = self.joint.requests.insert(forwarded);
        self.joint.queue.push_back(key);
        self.send_forwarded();
    }

    /// Sends what may be sent.
    pub(crate) fn send_forwarded(&mut self) {
        let waits = self.joint.hold || self.joint.leaving || self.st.susp.user;
        if self.joint.queue.is_empty() || waits {
            return;
        }
        let Some(lead) = self.joint.lead.and_then(|lead| self.peer_ix(lead)) else { return };
        while self.joint.under_way < DEPTH && self.joint.sectors_under_way < DATA {
            let Some(key) = self.joint.queue.pop_front() else { break };
            let forwarded = &mut self.joint.requests[key];
            forwarded.sent = true;
            let forwarded = *forwarded;
            self.joint.under_way += 1;
            self.joint.sectors_under_way += forwarded.weight();
            self.send_request(lead, key, &forwarded.request);
        }
    }

    fn send_request(&mut self, lead: PeerIx, key: usize, request: &Request) {
        let (nr, range, block_id, seq) = (request.volume, request.range, BlockId(key as u64), 0);
        match request.op {
            RequestOp::Read => {
                self.send(lead, Packet::JointRead(nr, BlockReq { range, block_id }));
            }
            RequestOp::Flush => self.send(lead, Packet::JointFlush(nr, block_id)),
            RequestOp::Write { buf, fua } => {
                let flags = if fua { DataFlags::FUA } else { DataFlags::default() };
                let data = Data { range, block_id, seq, flags };
                self.send_with(lead, Packet::JointData(nr, data), Some(buf));
            }
            RequestOp::Discard => {
                let flags = DataFlags::DISCARD;
                self.send(lead, Packet::JointTrim(nr, Trim { range, block_id, seq, flags }));
            }
            RequestOp::Zeroes { unmap } => {
                let unmaps = if unmap { DataFlags::DISCARD } else { DataFlags::default() };
                let flags = DataFlags::ZEROES.with(unmaps);
                self.send(lead, Packet::JointTrim(nr, Trim { range, block_id, seq, flags }));
            }
        }
    }

    /// P_JOINT_REPLY: what a user has asked for.
    pub(crate) fn joint_reply(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        data: Data,
        buf: BufId,
    ) -> Result<(), &'static str> {
        let asked = self.forwarded(peer, nr, data.block_id);
        let reads =
            |f: &Forwarded| f.request.op == RequestOp::Read && f.request.range == data.range;
        match asked.filter(|(_, f)| reads(f)) {
            Some((key, _)) => {
                self.forwarded_done(key, Ok(Some(buf)));
                self.free(Some(buf));
                Ok(())
            }
            None => {
                self.free(Some(buf));
                Err("an answer matches no read that it was asked for")
            }
        }
    }

    /// P_JOINT_DONE: a request has ended.
    pub(crate) fn joint_done(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        id: BlockId,
        result: JointResult,
    ) -> Result<(), &'static str> {
        const WRONG: &str = "an answer matches no request that it was asked for";
        let (key, forwarded) = self.forwarded(peer, nr, id).ok_or(WRONG)?;
        let result = match result {
            JointResult::Done if forwarded.request.op == RequestOp::Read => return Err(WRONG),
            JointResult::Done => Ok(None),
            JointResult::Io | JointResult::Unknown(_) => Err(IoError::Io),
            JointResult::NoSpace => Err(IoError::NoSpace),
            JointResult::Invalid => Err(IoError::Invalid),
            JointResult::Unsupported => Err(IoError::Unsupported),
        };
        self.forwarded_done(key, result);
        Ok(())
    }

    /// The request under way to the peer that has the id.
    fn forwarded(&self, peer: PeerIx, nr: VolumeNr, id: BlockId) -> Option<(usize, Forwarded)> {
        let key = usize::try_from(id.0).ok()?;
        let forwarded = self.joint.requests.get(key)?;
        let ours = self.joint.lead == Some(self.peers[peer].node);
        (ours && forwarded.sent && forwarded.request.volume == nr).then_some((key, *forwarded))
    }

    fn forwarded_done(&mut self, key: usize, result: Result<Option<BufId>, IoError>) {
        let Some(forwarded) = self.joint.end(key) else { return };
        let Request { volume, id, op, .. } = forwarded.request;
        self.complete(volume, id, result);
        if let RequestOp::Write { buf, .. } = op {
            self.free(Some(buf));
        }
        self.send_forwarded();
        if self.joint.is_drained() {
            self.answer_drained();
        }
    }

    /// Such requests fail, in the order in which they came.
    fn fail_forwarded(&mut self, fails: impl Fn(&Forwarded) -> bool) {
        let mut keys: Vec<(u64, usize)> = self
            .joint
            .requests
            .iter()
            .filter(|(_, f)| fails(f))
            .map(|(key, f)| (f.order, key))
            .collect();
        keys.sort_unstable();
        for (_, key) in keys {
            let Some(forwarded) = self.joint.end(key) else { continue };
            self.reject(forwarded.request, IoError::Io);
        }
        let Joint { queue, requests, .. } = &mut self.joint;
        queue.retain(|key| requests.get(*key).is_some());
        self.answer_drained();
    }
}
