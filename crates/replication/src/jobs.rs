//! Changes that this node wants and that need the cluster's agreement: started one at a time,
//! tried again after a lost race, answered when done.

use std::time::Duration;

use codec::wire::{Operation, Outdates, UuidFlags};
use serde::{Deserialize, Serialize};
use vocab::options::Quorum;
use vocab::{
    ConnState, DiskState, GenUuid, Instant, NodeId, Refusal, RefusalCode, ReplState, Role,
    StateError,
};

use crate::io::{DiskError, DiskOp, LogLevel, OpenError, Output};
use crate::request::Part;
use crate::resize::ResizeWish;
use crate::resource::{Link, Op, Resource, Work};
use crate::state::{PeerIx, VolIx, VolState};
use crate::twopc::apply_own_change;

/// A wanted change.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub id: u64,
    pub kind: JobKind,
    /// Operator to answer.
    pub admin: Option<u64>,
    /// Opener to answer (promotion on open).
    pub opener: Option<(VolIx, u64)>,
    attempts: u32,
    not_before: Instant,
    deadline: Instant,
    pub step: u32,
    /// Peers that stood in the way were fenced, or not.
    fenced: bool,
}

impl Job {
    pub(crate) fn set_not_before(&mut self, at: Instant) {
        self.not_before = at;
        self.step = 0;
    }
}

/// Kinds of changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum JobKind {
    Primary {
        force: bool,
    },
    Secondary {
        force: bool,
    },
    /// This Primary has lost the other one, which does its I/O.
    Rejoin,
    Connect(PeerIx),
    Disconnect(PeerIx),
    Attach(VolIx),
    Detach {
        vol: VolIx,
        intentional: bool,
    },
    Invalidate {
        vol: VolIx,
        peer: PeerIx,
    },
    InvalidateRemote {
        vol: VolIx,
        peer: PeerIx,
    },
    Verify {
        vol: VolIx,
        peer: PeerIx,
    },
    Resize {
        vol: VolIx,
        wish: ResizeWish,
    },
    /// Resync from the peer by the bits there are.
    CatchUp {
        vol: VolIx,
        peer: PeerIx,
    },
    LostPeer,
    /// The others hear of a generation before the Primary without disk that proposed it may rely
    /// on this one.
    Vouch {
        vol: VolIx,
        generation: GenUuid,
    },
    /// Nodes with a vote that get no data hear of a generation of this Primary.
    Tell {
        vol: VolIx,
        generation: GenUuid,
    },
    PrimaryResume,
    /// Nobody has current data of the volume: this disk may be the newest of all.
    Gathered(VolIx),
    /// This disk stopped under writes, and none of those that differ from it has become current.
    Unclean(VolIx),
}

/// What starting a job led to.
pub(crate) enum Start {
    /// A transaction runs, or a continuation will come.
    Running,
    /// Try again then.
    At(Instant),
    Done(Result<(), Refusal>),
}

/// While something transient is in the way.
const POLL: Duration = Duration::from_millis(50);
/// While the peer is closing a link.
const CLOSING: Duration = Duration::from_millis(2);
/// Longest time an operator's change may wait for a race to end.
const PATIENCE: Duration = Duration::from_secs(20);

impl Resource {
    /// Wants a change. Gives the job's id.
    pub(crate) fn want(&mut self, kind: JobKind, admin: Option<u64>) -> u64 {
        let id = self.twopc.next_job;
        self.twopc.next_job += 1;
        let patience = match kind {
            JobKind::Primary { .. } => self.opts.auto_promote_timeout + self.max_ping_timeout(),
            JobKind::LostPeer
            | JobKind::Rejoin
            | JobKind::Vouch { .. }
            | JobKind::Tell { .. }
            | JobKind::PrimaryResume
            | JobKind::CatchUp { .. }
            | JobKind::Gathered(_)
            | JobKind::Unclean(_)
            | JobKind::Connect(_) => Duration::from_secs(u64::from(u32::MAX)),
            _ => PATIENCE,
        };
        self.twopc.jobs.push(Job {
            id,
            kind,
            admin,
            opener: None,
            attempts: 0,
            not_before: self.now,
            deadline: self.now + patience,
            step: 0,
            fenced: false,
        });
        id
    }

    pub(crate) fn max_ping_timeout(&self) -> Duration {
        let timeouts = self.peers.iter().map(|p| p.net.ping_timeout);
        timeouts.max().unwrap_or(Duration::from_millis(500))
    }

    /// The job starts at that time at the earliest.
    pub(crate) fn delay_job(&mut self, id: u64, at: Instant) {
        if let Some(job) = self.job_mut(id) {
            job.not_before = at;
        }
    }

    /// The job waits for a continuation.
    pub(crate) fn hold_job(&mut self, id: u64) {
        let never = self.now + Duration::from_secs(u64::from(u32::MAX));
        if let Some(job) = self.job_mut(id) {
            job.not_before = never;
        }
    }

    /// A job of that kind is waiting or running.
    pub(crate) fn wants(&self, kind: &JobKind) -> bool {
        self.twopc.jobs.iter().any(|j| j.kind == *kind)
    }

    /// Drops jobs that have lost their object.
    pub(crate) fn drop_jobs(&mut self, gone: impl Fn(&JobKind) -> bool, why: StateError) {
        let ids: Vec<u64> =
            self.twopc.jobs.iter().filter(|j| gone(&j.kind)).map(|j| j.id).collect();
        for id in ids {
            self.finish_job(id, Err(why.into()));
        }
    }

    /// Starts the next change, if no transaction is held.
    pub(crate) fn run_jobs(&mut self) {
        let mut index = 0;
        while index < self.twopc.jobs.len() {
            if self.twopc.held.is_some() {
                return;
            }
            let job = &self.twopc.jobs[index];
            if job.not_before > self.now {
                index += 1;
                continue;
            }
            let id = job.id;
            self.start_job(id);
            // The list may have changed: finished jobs are gone, others may have come.
            let moved = self.twopc.jobs.get(index).is_none_or(|j| j.id != id);
            index = if moved { 0 } else { index + 1 };
        }
    }

    /// Earliest time a waiting job wants to be tried.
    pub(crate) fn jobs_deadline(&self) -> Option<Instant> {
        let waiting = self.twopc.jobs.iter().map(|j| j.not_before).filter(|at| *at > self.now);
        match &self.twopc.held {
            Some(held) => Some(held.deadline),
            None => waiting.min(),
        }
    }

    pub(crate) fn job_mut(&mut self, id: u64) -> Option<&mut Job> {
        self.twopc.jobs.iter_mut().find(|j| j.id == id)
    }

    fn start_job(&mut self, id: u64) {
        let Some(job) = self.job_mut(id) else { return };
        let kind = job.kind.clone();
        let start = match kind {
            JobKind::Primary { force } => self.start_primary(id, force),
            JobKind::Secondary { force } => self.start_secondary(id, force),
            JobKind::Rejoin => self.start_rejoin(id),
            JobKind::Connect(peer) => self.start_connect(id, peer),
            JobKind::Disconnect(peer) => self.start_disconnect(id, peer),
            JobKind::Attach(vol) => self.start_attach(id, vol),
            JobKind::Detach { vol, .. } => self.start_detach(id, vol),
            JobKind::Invalidate { vol, peer } => {
                self.start_pair(id, Operation::Invalidate, peer, vol)
            }
            JobKind::InvalidateRemote { vol, peer } => {
                self.start_pair(id, Operation::InvalidateRemote, peer, vol)
            }
            JobKind::Verify { vol, peer } => self.start_pair(id, Operation::Verify, peer, vol),
            JobKind::Resize { vol, wish } => self.start_resize(id, vol, wish),
            JobKind::CatchUp { vol, peer } => self.start_catch_up(id, peer, vol),
            JobKind::Vouch { vol, generation } if !self.vouches(vol, generation) => {
                Start::Done(Ok(()))
            }
            JobKind::Tell { vol, generation } if !self.tells(vol, generation) => {
                Start::Done(Ok(()))
            }
            // Not once something is settled: a resync from here, which that may be, waits for the
            // writes that wait for this.
            JobKind::Tell { .. } if self.st.connected().next().is_some() => {
                self.start_twopc(id, Operation::Empty, None, None);
                Start::Running
            }
            JobKind::LostPeer | JobKind::Vouch { .. } | JobKind::Tell { .. } => {
                self.start_empty(id)
            }
            JobKind::PrimaryResume => self.start_empty(id),
            JobKind::Gathered(vol) => self.start_gathered(id, vol),
            JobKind::Unclean(vol) => self.start_unclean(id, vol),
        };
        match start {
            Start::Running => {
                // Not again before something happens; the transaction's end sets it anew.
                let never = self.now + Duration::from_secs(u64::from(u32::MAX));
                if let Some(job) = self.job_mut(id) {
                    job.not_before = never;
                }
            }
            Start::At(at) => {
                let now = self.now;
                if let Some(job) = self.job_mut(id) {
                    job.not_before = at.max(now + Duration::from_millis(1));
                }
            }
            Start::Done(result) => self.finish_job(id, result),
        }
    }

    /// Answers whoever wanted the change, and forgets it.
    pub(crate) fn finish_job(&mut self, id: u64, result: Result<(), Refusal>) {
        let Some(index) = self.twopc.jobs.iter().position(|j| j.id == id) else { return };
        let job = self.twopc.jobs.remove(index);
        if let (JobKind::Attach(vol), true) = (&job.kind, result.is_err()) {
            // Nobody goes on with it: the disk is as free as before.
            self.drop_disk(*vol);
        }
        if let JobKind::Detach { vol, .. } = job.kind {
            self.vols[vol].leaving = None;
        }
        if let Some(id) = job.admin {
            if result.is_ok() && job.kind == (JobKind::Primary { force: false })
                || job.kind == (JobKind::Primary { force: true })
            {
                self.explicit_primary = self.is_primary_to_users();
            }
            self.out.push_back(Output::AdminDone { id, result: result.clone() });
        }
        if matches!(job.kind, JobKind::Primary { .. }) {
            self.promotion_ended(&result);
        }
        if matches!(job.kind, JobKind::Secondary { .. }) {
            self.demoting =
                self.twopc.jobs.iter().any(|j| matches!(j.kind, JobKind::Secondary { .. }));
            self.kick_all();
        }
        let _ = job.opener;
    }

    /// Something a job waited for has happened.
    pub(crate) fn job_continue(&mut self, id: u64) {
        let now = self.now;
        if let Some(job) = self.job_mut(id) {
            job.not_before = now;
        }
    }

    /// The job's transaction was committed.
    pub(crate) fn job_succeeded(&mut self, id: u64) {
        let Some(job) = self.job_mut(id) else { return };
        match job.kind.clone() {
            JobKind::Attach(vol) => self.attach_agreed(vol, id),
            JobKind::Detach { vol, intentional } => {
                job.step = DETACHING;
                job.not_before = Instant(0);
                self.vols[vol].intentional_diskless |= intentional;
            }
            // Answered once it is on record.
            JobKind::Resize { vol, .. } => {
                job.step = RECORDING;
                self.hold_job(id);
                self.persist(vol, Work::Job(id));
            }
            // Answered once the link is closed.
            JobKind::Disconnect(_) => job.not_before = Instant(0),
            JobKind::Vouch { vol, generation } => {
                self.finish_job(id, Ok(()));
                self.vouched(vol, generation);
            }
            JobKind::Tell { vol, generation } => {
                self.finish_job(id, Ok(()));
                self.voters_told(vol, generation);
            }
            JobKind::PrimaryResume => {
                self.finish_job(id, Ok(()));
                self.primary_resumed();
            }
            // What stood in the way may go.
            JobKind::Gathered(vol) if self.lacks_current_data(vol) => {
                let later = self.now + self.gathered_patience(vol);
                self.retry_job(id, later);
            }
            JobKind::Unclean(vol) if self.waits_unclean(vol) => {
                let later = self.now + self.gathered_patience(vol);
                self.retry_job(id, later);
            }
            _ => self.finish_job(id, Ok(())),
        }
    }

    /// The job's transaction was refused or lost a race.
    pub(crate) fn job_failed(&mut self, id: u64, refusal: Refusal) {
        let now = self.now;
        let peers = self.peers.len() as u64;
        let retry_base = self.opts.twopc_retry_timeout;
        let Some(job) = self.twopc.jobs.iter_mut().find(|j| j.id == id) else { return };
        job.attempts += 1;
        let attempts = job.attempts;
        let kind = job.kind.clone();
        if let JobKind::Connect(peer) = kind {
            return self.connect_failed(id, peer, refusal, attempts);
        }
        let code = match refusal.code {
            RefusalCode::State(code) => code,
            RefusalCode::Config(_) => return self.finish_job(id, Err(refusal)),
        };
        let transient = matches!(
            code,
            StateError::ConcurrentStChg | StateError::Timeout | StateError::InTransientState
        ) || (matches!(kind, JobKind::Primary { .. })
            && matches!(code, StateError::CwFailedByPeer | StateError::TwoPrimaries))
            || matches!(
                kind,
                JobKind::LostPeer
                    | JobKind::Rejoin
                    | JobKind::Vouch { .. }
                    | JobKind::Tell { .. }
                    | JobKind::PrimaryResume
                    | JobKind::CatchUp { .. }
                    | JobKind::Gathered(_)
                    | JobKind::Unclean(_)
            );
        if !transient || now >= job.deadline {
            return self.finish_job(id, Err(refusal));
        }
        // Random, so that two initiators do not meet for ever (semantics §2.5).
        let bound = retry_base * u32::try_from(peers.max(1)).unwrap_or(1) * (1 << attempts.min(5));
        let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        let delay = Duration::from_nanos(self.rng.below(nanos)) + Duration::from_millis(1);
        if let Some(job) = self.job_mut(id) {
            job.not_before = now + delay;
            job.step = 0;
        }
    }

    /// Fails, or waits for better times until the job's deadline.
    pub(crate) fn wait_or_fail(&mut self, id: u64, refusal: Refusal) -> Start {
        let now = self.now;
        match self.job_mut(id) {
            Some(job) if now < job.deadline => Start::At(now + POLL),
            _ => Start::Done(Err(refusal)),
        }
    }

    // --- role ---------------------------------------------------------------------------

    /// Semantics §3.1.
    pub(crate) fn start_primary(&mut self, id: u64, force: bool) -> Start {
        if self.st.role == Role::Primary || self.joint.lead.is_some() {
            return Start::Done(Ok(()));
        }
        if self.handshake_running() {
            return self.wait_or_fail(id, StateError::InTransientState.into());
        }
        // The I/O of a Primary would wait for it in any case (semantics §8.1). This may be the disk
        // of a crashed Primary that has acknowledged writes which the disks in reach lack (protocol
        // A); once this node is Primary by the data of others, it has to follow them.
        let attaches =
            |v: &VolState| matches!(v.disk, DiskState::Attaching | DiskState::Negotiating);
        if !force && self.st.vols.iter().any(attaches) {
            let why = "a disk is being attached";
            return self.wait_or_fail(id, Refusal::state(StateError::InTransientState, why));
        }
        let step = self.job_mut(id).map_or(0, |j| j.step);
        if step == 0 && self.st.connected().next().is_some() {
            if let Some(job) = self.job_mut(id) {
                job.step = PINGING;
            }
            self.ping_all(Work::Job(id));
            return Start::Running;
        }
        if self.loss_settling() {
            let why = "a lost Primary's last writes are being reconciled";
            return self.wait_or_fail(id, Refusal::state(StateError::InTransientState, why));
        }
        if let Some(job) = self.job_mut(id) {
            job.step = 0;
        }
        if let Some(lead) = self.possible_lead().filter(|_| !self.st.fail_io) {
            return self.start_joining(id, lead);
        }
        let mut op = Operation::Promote { force: false };
        let mut result = self.tentative(|st| apply_own_change(st, op, None, None));
        let barred = is_state(&result, StateError::PrimaryNop)
            || is_state(&result, StateError::NoUpToDateDisk);
        if barred && self.fences_first(id) {
            return Start::Running;
        }
        if force {
            if is_state(&result, StateError::NoQuorum) || is_state(&result, StateError::PrimaryNop)
            {
                self.outdate_unknown();
                result = self.tentative(|st| apply_own_change(st, op, None, None));
            }
            if is_state(&result, StateError::NoUpToDateDisk) {
                op = Operation::Promote { force: true };
                result = self.tentative(|st| apply_own_change(st, op, None, None));
            }
        }
        match result {
            Err(refusal) => {
                let may_improve = match refusal.code {
                    RefusalCode::State(StateError::NoUpToDateDisk) => self.data_may_come(),
                    RefusalCode::State(StateError::TwoPrimaries | StateError::NoQuorum) => true,
                    _ => false,
                };
                if may_improve { self.wait_or_fail(id, refusal) } else { Start::Done(Err(refusal)) }
            }
            Ok(_) if self.st.connected().next().is_none() => {
                self.change_hard(|st| apply_own_change(st, op, None, None));
                if op == (Operation::Promote { force: true }) {
                    self.forced_up_to_date();
                }
                Start::Done(Ok(()))
            }
            Ok(_) => {
                self.start_twopc(id, op, None, None);
                Start::Running
            }
        }
    }

    /// A promotion has the peers fenced that stand in its way, once. True if it waits for that.
    fn fences_first(&mut self, id: u64) -> bool {
        let tried = self.job_mut(id).is_none_or(|job| std::mem::replace(&mut job.fenced, true));
        let waits = !tried && self.fence_for_promotion();
        if let Some(job) = self.job_mut(id).filter(|_| waits) {
            job.step = FENCING;
        }
        waits
    }

    /// What promotions had fenced is, or is not: they go on, with as much time as at their beginning.
    pub(crate) fn promotions_go_on(&mut self) {
        let now = self.now;
        let deadline = now + self.opts.auto_promote_timeout + self.max_ping_timeout();
        let waiting = |j: &&mut Job| {
            matches!(j.kind, JobKind::Primary { .. } | JobKind::Rejoin) && j.step == FENCING
        };
        for job in self.twopc.jobs.iter_mut().filter(waiting) {
            (job.step, job.not_before) = (0, now);
            job.deadline = job.deadline.max(deadline);
        }
    }

    /// This node is what they want it to be.
    pub(crate) fn promotions_are_done(&mut self) {
        let now = self.now;
        let wanted = |j: &&mut Job| matches!(j.kind, JobKind::Primary { .. } | JobKind::Rejoin);
        self.twopc.jobs.iter_mut().filter(wanted).for_each(|job| job.not_before = now);
    }

    /// Peers of unknown fate are declared outdated by force.
    fn outdate_unknown(&mut self) {
        let text = format!(
            "{}: promoted by force without quorum or fencing; peers that can not be reached count \
             as Outdated",
            self.name
        );
        self.log(LogLevel::Warn, text);
        for (peer, st) in self.peers.iter_mut().zip(&self.st.peers) {
            let lost = st.conn != ConnState::Connected;
            peer.devs.iter_mut().filter(|_| lost).for_each(|dev| dev.maybe_current = false);
        }
        self.change_hard(|st| {
            for peer in &mut st.peers {
                for dev in &mut peer.devs {
                    if dev.disk == DiskState::DUnknown {
                        dev.disk = DiskState::Outdated;
                    }
                }
            }
        });
    }

    /// UpToDate data may appear without anybody doing anything.
    fn data_may_come(&self) -> bool {
        self.st.vols.iter().any(|v| v.disk == DiskState::Consistent)
            || self.st.peers.iter().any(|p| p.conn == ConnState::Connecting)
    }

    /// Semantics §3.2.
    fn start_secondary(&mut self, id: u64, force: bool) -> Start {
        if self.joint.on {
            return self.start_leaving(id, force);
        }
        if self.st.role != Role::Primary {
            return Start::Done(Ok(()));
        }
        self.demoting = true;
        if force && !self.st.fail_io {
            self.change_hard(|st| st.fail_io = true);
            self.fail_held();
            for peer in 0..self.peers.len() {
                if !self.st.is_connected(peer) {
                    let node = self.peers[peer].node;
                    self.forget_parts(node, None);
                }
            }
            // Also what lacks nothing but an end: peers that are back may not take it any more.
            self.advance_all();
        }
        if let Err(refusal) = self.tentative(|st| st.role = Role::Secondary) {
            if !force {
                return Start::Done(Err(refusal));
            }
        }
        self.close_epoch();
        if !self.is_drained() {
            let why = "accepted writes are not finished on all replicas";
            return self.wait_or_fail(id, Refusal::state(StateError::DeviceInUse, why));
        }
        self.flush_peer_acks();
        let flushing = self.flush_own_writes();
        if self.st.connected().next().is_none() {
            self.change_hard(|st| st.role = Role::Secondary);
            return Start::Done(Ok(()));
        }
        if flushing {
            let why = "the caches of disks are being flushed";
            return self.wait_or_fail(id, Refusal::state(StateError::DeviceInUse, why));
        }
        self.start_twopc(id, Operation::Demote, None, None);
        Start::Running
    }

    /// What this Primary has written is stable on the peers, by the barriers that they have
    /// acknowledged. A flush on the next Primary covers it, but reaches this disk only for what
    /// that one sends. True as long as a flush runs.
    fn flush_own_writes(&mut self) -> bool {
        for vol in 0..self.vols.len() {
            let unflushed = std::mem::take(&mut self.vols[vol].unflushed);
            if unflushed && self.disk_in_use(vol) && self.vols[vol].disk_opts.disk_flushes {
                let op = self.op(Op::DemotionFlush(vol));
                let volume = self.vols[vol].nr;
                self.out.push_back(Output::Disk { volume, op, io: DiskOp::Flush });
            }
        }
        self.flushes_own_writes()
    }

    /// Such a flush runs. Without peers the demotion does not wait for it, but connecting does.
    pub(crate) fn flushes_own_writes(&self) -> bool {
        let runs = |op: Op| matches!(op, Op::DemotionFlush(vol) if self.disk_in_use(vol));
        self.ops.iter().any(|(_, running)| runs(running.op))
    }

    /// Such a flush has ended.
    pub(crate) fn demotion_flushed(&mut self, vol: VolIx, result: Result<(), DiskError>) {
        if result.is_err() {
            self.disk_failed(vol, None, "a flush failed");
        }
        self.demotions_go_on();
    }

    /// What demotions waited for has happened.
    pub(crate) fn demotions_go_on(&mut self) {
        let demotes = |j: &&Job| matches!(j.kind, JobKind::Secondary { .. });
        let ids: Vec<u64> = self.twopc.jobs.iter().filter(demotes).map(|j| j.id).collect();
        ids.into_iter().for_each(|id| self.job_continue(id));
    }

    // --- connections ----------------------------------------------------------------------

    fn start_connect(&mut self, id: u64, peer: PeerIx) -> Start {
        // States that the peer sent for a transaction before may still be under way: taken for
        // those of the next one, they could be out of date (invariant 23).
        let stale = self.peers[peer].devs.iter().any(|dev| dev.word_due);
        if self.handshake_must_wait() || stale || self.legacy_waits(peer) {
            return Start::At(self.now + POLL);
        }
        if self.handshake_wants_twopc(peer) {
            let (role, node) = (self.st.role, self.peers[peer].node);
            self.start_twopc(id, Operation::Connect(role), Some(node), None);
            return Start::Running;
        }
        Start::Done(Err(StateError::NeedConnection.into()))
    }

    fn start_disconnect(&mut self, id: u64, peer: PeerIx) -> Start {
        if self.peers[peer].link == Link::Closing {
            return Start::At(self.now + CLOSING);
        }
        if !self.st.is_connected(peer) {
            self.disconnect_local(peer);
            return Start::Done(Ok(()));
        }
        if let Err(refusal) = self.check_joint_disconnect(peer) {
            return Start::Done(Err(refusal));
        }
        let peer_role = self.st.peers[peer].role;
        let guarded = self.opts.quorum != Quorum::Off || self.fences(peer);
        let outdates = match (guarded, self.st.role, peer_role) {
            (false, _, _) => Outdates::Nobody,
            (_, Role::Primary, Role::Secondary) => Outdates::Target,
            (_, Role::Secondary, Role::Primary) => Outdates::Initiator,
            _ => Outdates::Nobody,
        };
        let outdate_self = outdates == Outdates::Initiator;
        let checked = self.tentative(|st| {
            st.peers[peer].conn = ConnState::Disconnecting;
            if outdates == Outdates::Target {
                for dev in &mut st.peers[peer].devs {
                    dev.disk = dev.disk.min(DiskState::Outdated);
                }
            }
            if outdate_self {
                for vol in &mut st.vols {
                    if vol.disk > DiskState::Outdated {
                        vol.disk = DiskState::Outdated;
                    }
                }
            }
        });
        if let Err(refusal) = checked {
            return Start::Done(Err(refusal));
        }
        let node = self.peers[peer].node;
        self.start_twopc(id, Operation::Disconnect(outdates), Some(node), None);
        Start::Running
    }

    // --- disks ------------------------------------------------------------------------------

    fn start_attach(&mut self, id: u64, vol: VolIx) -> Start {
        if self.job_mut(id).is_some_and(|j| j.step == NEGOTIATING) {
            return Start::Running;
        }
        if self.handshake_running() || self.negotiating() {
            return Start::At(self.now + POLL);
        }
        // Also if no peer has its disk at the moment: one may be attaching it, and two that attach
        // without each other's knowledge would never compare what they have. A Primary without disk
        // knows which generation its users have seen.
        let knows =
            |p: PeerIx| self.peer_has_bitmap(p, vol) || self.st.peers[p].role == Role::Primary;
        if self.st.connected().any(knows) {
            self.start_twopc(id, Operation::Attach, None, Some(vol));
            return Start::Running;
        }
        self.attach_alone(vol);
        Start::Done(Ok(()))
    }

    /// The cluster knows about the attach: peers answer with their identifiers.
    fn attach_agreed(&mut self, vol: VolIx, id: u64) {
        if let Some(job) = self.job_mut(id) {
            job.step = NEGOTIATING;
        }
        self.attach_negotiate(vol);
    }

    /// The disk has its state: the attach is over.
    pub(crate) fn attach_ended(&mut self, vol: VolIx, result: Result<(), Refusal>) {
        let job = self.twopc.jobs.iter().find(|j| j.kind == JobKind::Attach(vol));
        if let Some(id) = job.map(|j| j.id) {
            self.finish_job(id, result);
        }
    }

    fn start_detach(&mut self, id: u64, vol: VolIx) -> Start {
        if self.job_mut(id).is_some_and(|j| j.step == DETACHING) {
            // What is in flight on the disk ends first.
            if self.disk_busy(vol) {
                return Start::At(self.now + Duration::from_millis(5));
            }
            if let Some(job) = self.job_mut(id) {
                job.step = RELEASING;
            }
            self.persist_with_bitmap(vol, Work::Job(id));
            return Start::Running;
        }
        if self.job_mut(id).is_some_and(|j| j.step == RELEASING) {
            self.drop_disk(vol);
            return Start::Done(Ok(()));
        }
        if self.vols[vol].backing.is_none() {
            return Start::Done(Ok(()));
        }
        if self.handshake_running() {
            return self.wait_or_fail(id, StateError::InTransientState.into());
        }
        if let Err(refusal) = self.tentative(|st| st.vols[vol].disk = DiskState::Diskless) {
            return Start::Done(Err(refusal));
        }
        if self.st.connected().next().is_some() {
            if self.st.role == Role::Primary && !self.peers_have_all(vol) {
                let why = "no peer has confirmed yet what was reported as written";
                return self.wait_or_fail(id, Refusal::state(StateError::InTransientState, why));
            }
            self.start_twopc(id, Operation::Detach, None, Some(vol));
            return Start::Running;
        }
        self.change_hard(|st| st.vols[vol].disk = DiskState::Detaching);
        self.job_succeeded(id);
        Start::At(self.now)
    }

    /// The disks of peers are about to take the place of this Primary's: under protocol A they may
    /// not have yet what was reported. From the first time this is asked on, nothing more is
    /// reported before they do.
    fn peers_have_all(&mut self, vol: VolIx) -> bool {
        if self.vols[vol].leaving.is_none() {
            self.close_epoch();
            self.vols[vol].leaving = Some(self.log.epoch);
        }
        let Some(epoch) = self.vols[vol].leaving else { return true };
        let mut before = self.log.iter().filter(|w| w.vol == vol && w.epoch < epoch);
        !before.any(|write| write.parts.contains(&Part::Sent))
    }

    // --- pairs --------------------------------------------------------------------------------

    fn start_pair(&mut self, id: u64, op: Operation, peer: PeerIx, vol: VolIx) -> Start {
        if !self.st.is_connected(peer) {
            return Start::Done(Err(StateError::NeedConnection.into()));
        }
        let dev = self.st.peers[peer].devs[vol];
        if self.st.vols[vol].disk < DiskState::Inconsistent {
            return Start::Done(Err(StateError::NoLocalDisk.into()));
        }
        if dev.disk < DiskState::Inconsistent || dev.disk == DiskState::DUnknown {
            return Start::Done(Err(StateError::NoRemoteDisk.into()));
        }
        if dev.repl != ReplState::Established {
            return Start::Done(Err(StateError::ResyncRunning.into()));
        }
        if let Err(refusal) = self.tentative(|st| apply_own_change(st, op, Some(peer), Some(vol))) {
            return Start::Done(Err(refusal));
        }
        if op != Operation::Verify {
            if let Err(refusal) = self.may_resync(op, true, peer, vol) {
                let waits = refusal.code == RefusalCode::State(StateError::InTransientState);
                return match waits {
                    true => self.wait_or_fail(id, refusal),
                    false => Start::Done(Err(refusal)),
                };
            }
        }
        let node: NodeId = self.peers[peer].node;
        self.start_twopc(id, op, Some(node), Some(vol));
        Start::Running
    }

    /// Asks for a resync, unless the reason has gone.
    fn start_catch_up(&mut self, id: u64, peer: PeerIx, vol: VolIx) -> Start {
        let disk = self.st.vols[vol].disk;
        let behind = (DiskState::Inconsistent..DiskState::UpToDate).contains(&disk);
        let crashed = self.vols[vol].crashed_primary;
        let unclean = self.vols[vol].crashed_secondary;
        let differs = disk == DiskState::UpToDate && (unclean || crashed);
        let leftovers = !behind && !differs && self.has_leftovers(peer, vol);
        if !(behind || differs || leftovers) || !self.st.is_connected(peer) {
            return Start::Done(Ok(()));
        }
        // The peer may have been left behind since this was wanted: it has nothing to give then.
        let idle = self.repl(peer, vol) == ReplState::Established;
        if idle && !leftovers && !self.may_catch_up(peer, vol) {
            return Start::Done(Ok(()));
        }
        let writes = self.st.role == Role::Primary || self.st.peers[peer].role == Role::Primary;
        let busy = self.repl(peer, vol) != ReplState::Established
            || self.st.is_target(vol)
            || self.loss_settling()
            || self.handshake_running()
            || leftovers && !writes && self.differs_in_writes_only(peer, vol);
        if busy {
            return Start::At(self.now + POLL * 4);
        }
        match self.st.role {
            Role::Primary if !behind => self.start_pair(id, Operation::ResyncAsSource, peer, vol),
            _ if crashed && !behind => self.start_pair(id, Operation::ResyncAsSource, peer, vol),
            // Who has the bits has the data, unless the other one is in use.
            _ if leftovers && self.st.peers[peer].role != Role::Primary => {
                self.start_pair(id, Operation::ResyncAsSource, peer, vol)
            }
            _ if self.is_crashed_in_own(peer, vol) => {
                self.start_pair(id, Operation::ResyncAsSource, peer, vol)
            }
            _ => self.start_pair(id, Operation::ResyncAsTarget, peer, vol),
        }
    }

    /// The peer has what a crashed Primary left, and this disk what a disk has that had stayed.
    pub(crate) fn is_crashed_in_own(&self, peer: PeerIx, vol: VolIx) -> bool {
        let of_survivor = self.vols[vol].of_survivor;
        self.st.peers[peer].role != Role::Primary
            && self.peers[peer].devs[vol].uuids.as_ref().is_some_and(|u| {
                u.flags.has(UuidFlags::CRASHED_PRIMARY) && u.current.same(of_survivor)
            })
    }

    // --- after losing a peer ------------------------------------------------------------------

    fn start_empty(&mut self, id: u64) -> Start {
        if self.loss_settling() || self.peers.iter().any(|p| p.recv.draining) {
            return Start::At(self.now + POLL);
        }
        if self.st.connected().next().is_none() {
            self.members = self.me.mask();
            self.become_up_to_date(true);
            for vol in 0..self.vols.len() {
                self.md_changed_now(vol);
            }
            self.change_hard(|_| {});
            self.job_succeeded(id);
            return Start::Running;
        }
        self.start_twopc(id, Operation::Empty, None, None);
        Start::Running
    }

    /// Asks the cluster whether this disk is the newest of all, unless another one is current.
    fn start_gathered(&mut self, id: u64, vol: VolIx) -> Start {
        if !self.lacks_current_data(vol) {
            return Start::Done(Ok(()));
        }
        if self.handshake_running() || !self.is_newest_of_all(vol) {
            return Start::At(self.now + self.gathered_patience(vol));
        }
        self.start_twopc(id, Operation::Empty, None, None);
        Start::Running
    }

    /// Asks the cluster, unless another disk has become current and settles what differs.
    fn start_unclean(&mut self, id: u64, vol: VolIx) -> Start {
        if !self.waits_unclean(vol) {
            return Start::Done(Ok(()));
        }
        match self.has_waited_unclean(vol) && !self.handshake_running() {
            true => self.start_empty(id),
            false => Start::At(self.now + POLL * 4),
        }
    }

    /// An opener's promotion has ended: everyone who waits for one is answered.
    fn promotion_ended(&mut self, result: &Result<(), Refusal>) {
        let answer = match result {
            Ok(()) => Ok(()),
            Err(refusal) => Err(OpenError::PromotionRefused(refusal.clone())),
        };
        self.answer_writers(&answer);
    }
}

/// A ping round runs.
const PINGING: u32 = 1;
/// The cluster knows about the attach, the comparison with its peers runs.
const NEGOTIATING: u32 = 2;
/// The cluster knows about the detach, I/O drains.
const DETACHING: u32 = 3;
/// The metadata of a detaching disk is being written.
const RELEASING: u32 = 4;
/// The device of a disk is being looked at.
pub(crate) const MEASURING: u32 = 5;
/// Peers are being fenced.
const FENCING: u32 = 7;
/// A new size is being recorded.
pub(crate) const RECORDING: u32 = 6;

fn is_state<T>(result: &Result<T, Refusal>, code: StateError) -> bool {
    matches!(result, Err(r) if r.code == RefusalCode::State(code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer_uuids::PeerUuids;
    use crate::testing::attached;
    use codec::disk::MdFlags;
    use vocab::SectorRange;
    use vocab::options::ResourceOptions;

    const CURRENT: GenUuid = GenUuid(0x1000);

    /// A node whose first act is to attach an UpToDate disk.
    fn current(options: ResourceOptions) -> Resource {
        let resource = attached(options, |superblock| {
            superblock.current_uuid = CURRENT;
            superblock.flags.set(MdFlags::CONSISTENT, true);
            superblock.flags.set(MdFlags::WAS_UP_TO_DATE, true);
        });
        assert_eq!(resource.st.vols[0].disk, DiskState::UpToDate);
        resource
    }

    /// It is connected to the other one, whose disk is of that generation.
    fn pair() -> Resource {
        let mut resource = current(ResourceOptions::default());
        resource.st.peers[0].conn = ConnState::Connected;
        resource.st.peers[0].devs[0].repl = ReplState::Established;
        resource.st.peers[0].devs[0].disk = DiskState::UpToDate;
        let mut uuids = PeerUuids::diskless(CURRENT);
        uuids.flags = UuidFlags::STABLE;
        resource.peers[0].devs[0].uuids = Some(uuids);
        resource
    }

    #[test]
    fn a_node_that_starts_alone_has_no_quorum_that_it_could_have_kept() {
        let quorum = Quorum::Majority;
        let resource = current(ResourceOptions { quorum, ..ResourceOptions::default() });
        assert!(!resource.st.vols[0].quorum);
    }

    #[test]
    fn a_resync_that_was_wanted_from_a_disk_that_is_left_behind_now_is_not_asked_for() {
        let asks = |disk: DiskState, current: u64| {
            let mut resource = pair();
            let backing = resource.vols[0].backing.as_mut().unwrap();
            let slot = backing.slot_of(NodeId::new(1).unwrap()).unwrap();
            backing.set_range(slot, SectorRange::new(0, 8));
            resource.vols[0].crashed_secondary = true;
            resource.want(JobKind::CatchUp { vol: 0, peer: 0 }, None);
            resource.st.peers[0].devs[0].disk = disk;
            resource.peers[0].devs[0].uuids.as_mut().unwrap().current = GenUuid(current);
            resource.run_jobs();
            resource.twopc.held.is_some()
        };
        assert!(asks(DiskState::UpToDate, 0x1000));
        assert!(!asks(DiskState::Outdated, 0x1000));
        assert!(!asks(DiskState::UpToDate, 0x2000));
    }
}
