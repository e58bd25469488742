//! Dispatch of a peer's packets, and of completions. A packet that breaks a rule costs the peer
//! its connection, with a log line that names the rule.

use codec::wire::{DagtagDep, OvResult, Packet, RsReq, StateWord, SyncParam};
use vocab::{ConnState, DiskState, NodeId, ReplState, Role, VolumeNr};

use crate::handshake::{AfterLoss, Phase};
use crate::io::{BufId, DiskData, DiskError, LogLevel, OpId};
use crate::receive::PeerOp;
use crate::request::Part;
use crate::resource::{Link, Op, Pings, Resource, Running, Work};
use crate::resync::{BitmapChunk, Refused, ServeKind, read_buf};
use crate::state::PeerIx;
use crate::twopc::Answer;

/// Longest time in which two nodes may say different things about a resync between them.
const DISAGREE: std::time::Duration = std::time::Duration::from_secs(10);

/// The two replication states belong together.
fn mirrored(mine: ReplState, theirs: ReplState) -> bool {
    match (mine, theirs) {
        (ReplState::VerifyS, other) => other == ReplState::VerifyT,
        (ReplState::VerifyT, other) => other == ReplState::VerifyS,
        // That takes as long as the congestion.
        (ReplState::Ahead, ReplState::Established | ReplState::SyncTarget) => true,
        (mine, theirs) if mine.is_source() => theirs.is_target(),
        (mine, theirs) if mine.is_target() => theirs.is_source(),
        (_, theirs) => theirs <= ReplState::Established,
    }
}

impl Resource {
    /// A packet from a peer.
    pub(crate) fn packet(&mut self, node: NodeId, packet: Packet, payload: Option<BufId>) {
        let peer = self.peer_ix(node).filter(|p| self.peers[*p].link == Link::Up);
        let Some(peer) = peer else {
            // Left over from a link that the core has closed.
            return self.free(payload);
        };
        if self.is_silent(peer) {
            // This node did not run meanwhile. The peer may have given it up and gone on without
            // it: what is read now, a vote for instance, was said before that.
            self.free(payload);
            return self.lose(peer, ConnState::NetworkFailure, AfterLoss::Reconnect);
        }
        self.peers[peer].last_rx = self.now;
        if self.peers[peer].hs.phase == Phase::Exchanging {
            self.peers[peer].hs.deadline = Some(self.now + self.peers[peer].net.ping_timeout * 10);
        }
        let taken = match (self.lacks_proof(peer, &packet), self.peers[peer].legacy.is_some()) {
            (true, _) => {
                self.free(payload);
                Err("a packet came before the proof that its sender knows the shared secret")
            }
            (false, true) => self.take_legacy(peer, packet, payload),
            (false, false) if self.is_plain(peer) => self.take_plain(peer, packet, payload),
            (false, false) => self.take(peer, packet, payload),
        };
        if let Err(rule) = taken {
            self.broken_protocol(peer, rule);
        }
    }

    /// A packet of the peer broke that rule.
    pub(crate) fn broken_protocol(&mut self, peer: PeerIx, rule: &str) {
        let text = format!(
            "{}: {} broke the protocol: {rule}; the connection is dropped",
            self.name, self.peers[peer].name
        );
        self.log(LogLevel::Error, text);
        self.lose(peer, ConnState::ProtocolError, AfterLoss::Reconnect);
    }

    pub(crate) fn take(
        &mut self,
        peer: PeerIx,
        packet: Packet,
        payload: Option<BufId>,
    ) -> Result<(), &'static str> {
        const NO_PAYLOAD: &str = "data is missing";
        match packet {
            // Writes and what follows them.
            Packet::Data(nr, d) => {
                let buf = payload.ok_or(NO_PAYLOAD)?;
                self.peer_write(peer, nr, d.range, d.block_id, d.flags, PeerOp::Write(buf))
            }
            Packet::Trim(nr, t) => {
                self.peer_write(peer, nr, t.range, t.block_id, t.flags, PeerOp::Discard)
            }
            Packet::Zeroes(nr, t) => {
                self.peer_write(peer, nr, t.range, t.block_id, t.flags, PeerOp::Zeroes)
            }
            Packet::Barrier(number) => {
                self.peer_barrier(peer, number);
                Ok(())
            }
            Packet::Dagtag(dagtag) => self.set_dagtag(peer, dagtag),
            Packet::OutOfSync(nr, range) => self.peer_out_of_sync(peer, nr, range),
            Packet::UnplugRemote => Ok(()),
            Packet::RecvAck(nr, ack) => self.ack(peer, nr, ack, Part::Acked),
            Packet::WriteAck(nr, ack) => self.ack(peer, nr, ack, Part::Acked),
            Packet::WriteAckInSync(nr, ack) => self.ack(peer, nr, ack, Part::InSync),
            Packet::NegAck(nr, ack) => self.ack(peer, nr, ack, Part::Neg),
            Packet::BarrierAck(number, set_size) => self.barrier_acked(peer, number, set_size),
            Packet::ConfirmStable(confirm) => self.confirm_stable(peer, confirm),
            Packet::PeerAck(ack) => self.peer_acked(peer, ack),
            // Reads.
            Packet::DataRequest(nr, req) => self.peer_read(peer, nr, req),
            Packet::DataReply(nr, data) => {
                let buf = payload.ok_or(NO_PAYLOAD)?;
                self.data_reply(peer, nr, data, buf)
            }
            Packet::NegDreply(nr, ack) => self.data_refused(peer, nr, ack),
            // Liveness.
            Packet::Ping => {
                self.answer_ping(peer);
                Ok(())
            }
            Packet::PingAck => {
                self.ping_acked(peer);
                Ok(())
            }
            // Handshake and state.
            Packet::ConnectionFeatures(features) => self.features(peer, features),
            Packet::AuthChallenge(challenge) => self.challenged(peer, &challenge),
            Packet::AuthResponse(proof) => self.proved(peer, &proof),
            Packet::Protocol(protocol) => self.protocol(peer, &protocol),
            Packet::ProtocolUpdate(_) => Ok(()),
            Packet::SyncParam(nr, param) => self.sync_param_arrived(peer, nr, &param),
            Packet::Sizes(nr, sizes) => self.peer_sizes(peer, nr, *sizes),
            Packet::Uuids110(nr, uuids) => self.peer_uuids(peer, nr, *uuids),
            Packet::CurrentUuid(nr, uuid, weak) => self.peer_current_uuid(peer, nr, uuid, weak),
            Packet::State(nr, word) => self.peer_state(peer, nr, word),
            Packet::PeerDagtag(dagtag) => self.peer_dagtag(peer, dagtag),
            Packet::Disconnect => {
                self.peer_disconnects(peer);
                Ok(())
            }
            // Transactions.
            Packet::TwoPcPrepare(nr, request) => self.twopc_prepare(peer, nr, request, None),
            Packet::TwoPcPrepRsz(nr, request) => self.prepare_resize(peer, nr, request),
            Packet::TwoPcCommit(_, request) => self.twopc_commit(request),
            Packet::TwoPcAbort(_, request) => self.twopc_abort(peer, request),
            Packet::TwoPcYes(_, reply) => {
                self.twopc_reply(peer, reply, Answer::Yes);
                Ok(())
            }
            Packet::TwoPcNo(_, reply) => {
                self.twopc_reply(peer, reply, Answer::No);
                Ok(())
            }
            Packet::TwoPcRetry(_, reply) => {
                self.twopc_reply(peer, reply, Answer::Retry);
                Ok(())
            }
            // Resync and verify.
            Packet::Bitmap(nr, words) => self.peer_bitmap(peer, nr, BitmapChunk::Plain(words)),
            Packet::CompressedBitmap(nr, code) => {
                self.peer_bitmap(peer, nr, BitmapChunk::Compressed(code))
            }
            Packet::RsDagtagReq(nr, req) => self.serve(peer, nr, req, ServeKind::Data),
            Packet::RsCsumDagtagReq(nr, req, digest) => self.serve_by_digest(peer, nr, req, digest),
            Packet::RsIsInSync(nr, ack) => self.resync_in_sync(peer, nr, ack),
            Packet::RsThinDagtagReq(nr, req) => self.serve(peer, nr, req, ServeKind::Thin),
            Packet::RsDataRequest(nr, req) => {
                let dep = DagtagDep::default();
                let req = RsReq { range: req.range, block_id: req.block_id, dep };
                self.serve(peer, nr, req, ServeKind::Data)
            }
            Packet::OvDagtagReq(nr, req) => self.serve(peer, nr, req, ServeKind::Verify),
            Packet::RsDataReply(nr, data) => {
                let buf = payload.ok_or(NO_PAYLOAD)?;
                self.resync_data(peer, nr, data, buf)
            }
            Packet::RsDeallocatedId(nr, ack) => self.resync_deallocated(peer, nr, ack),
            Packet::RsWriteAck(nr, ack) => self.resync_acked(peer, nr, ack, true),
            Packet::RsNegAck(nr, ack) => self.resync_acked(peer, nr, ack, false),
            Packet::RsCancel(nr, ack) => self.resync_refused(peer, nr, ack, Refused::Later),
            Packet::RsCancelAhead(nr, ack) => self.resync_refused(peer, nr, ack, Refused::Ahead),
            Packet::NegRsDreply(nr, ack) => self.resync_refused(peer, nr, ack, Refused::Failed),
            Packet::PeersInSync(nr, desc) => self.peers_in_sync(peer, nr, desc),
            Packet::OvDagtagReply(nr, req, digest) => self.verify_reply(peer, nr, req, digest),
            Packet::OvResultId(nr, ack, result) => self.peer_verify_result(peer, nr, ack, result),
            Packet::OvResult(nr, ack) => self.peer_verify_result(peer, nr, ack, OvResult::Skipped),
            // A second Primary.
            Packet::Joint(word) => self.joint_word(peer, word),
            Packet::JointData(nr, data) => {
                let buf = payload.ok_or(NO_PAYLOAD)?;
                self.joint_write(peer, nr, data, buf)
            }
            Packet::JointTrim(nr, trim) => self.joint_trim(peer, nr, trim),
            Packet::JointRead(nr, req) => self.joint_read(peer, nr, req),
            Packet::JointFlush(nr, id) => self.joint_flush(peer, nr, id),
            Packet::JointReply(nr, data) => {
                let buf = payload.ok_or(NO_PAYLOAD)?;
                self.joint_reply(peer, nr, data, buf)
            }
            Packet::JointDone(nr, id, result) => self.joint_done(peer, nr, id, result),
            Packet::DelayProbe(_) => Ok(()),
            _ => {
                self.free(payload);
                Err("a packet that this connection has not agreed on")
            }
        }
    }

    fn ack(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        ack: codec::wire::BlockAck,
        kind: Part,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("an ack names an unknown volume")?;
        self.write_acked(peer, vol, ack, kind)
    }

    /// P_SYNC_PARAM89: the digest of online verify must be the same for a verify to run, that of a
    /// resync for a connection to be made.
    fn sync_param_arrived(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        param: &SyncParam,
    ) -> Result<(), &'static str> {
        let _ = nr;
        let alg = String::from_utf8_lossy(&param.verify_alg).into_owned();
        self.peers[peer].peer_verify_alg = Some(alg);
        self.peer_names_csums_alg(peer, &param.csums_alg);
        Ok(())
    }

    /// P_STATE.
    fn peer_state(
        &mut self,
        peer: PeerIx,
        nr: Option<VolumeNr>,
        word: StateWord,
    ) -> Result<(), &'static str> {
        if !self.st.is_connected(peer) {
            if let Some(vol) = nr.and_then(|nr| self.vol_ix(nr)) {
                self.peers[peer].devs[vol].word_due = false;
            }
            if let (Phase::Exchanging, Some(nr)) = (self.peers[peer].hs.phase, nr) {
                self.handshake_state(peer, nr, word);
            }
            return Ok(());
        }
        let role = word.role().unwrap_or(Role::Secondary);
        let Some(nr) = nr else {
            self.change_hard(|st| st.peers[peer].role = role);
            return Ok(());
        };
        let Some(vol) = self.vol_ix(nr) else {
            self.unknown_volume_shown(peer, nr, word);
            return Ok(());
        };
        if self.precedes_answer(peer, vol, word) {
            return Ok(());
        }
        let introduced = self.note_presence(peer, vol, word);
        let before =
            self.peers[peer].devs[vol].last_word.replace(word).and_then(|w| w.repl_state());
        let at_most = match introduced {
            true => self.meet_as_client(peer, vol, word),
            false => Some(DiskState::UpToDate),
        };
        let Some(at_most) = at_most else { return Ok(()) };
        let disk = word.disk().unwrap_or(DiskState::Diskless);
        if disk != DiskState::UpToDate {
            self.peers[peer].devs[vol].taking.clear();
        }
        if disk == DiskState::Negotiating {
            return self.peer_negotiates(peer, vol, word, role);
        }
        let was = self.st.peers[peer].devs[vol];
        if disk == DiskState::UpToDate
            && was.disk < DiskState::UpToDate
            && self.is_overtaken_as_primary(peer, vol)
        {
            self.disagree(peer, "has newer data from elsewhere than this Primary uses");
            return Ok(());
        }
        let theirs = word.repl_state();
        self.hear_follower(peer, vol, theirs);
        // What it said before it took part is no end (wire §7.1 step 3).
        let took_part = matches!(before, Some(ReplState::SyncTarget | ReplState::PausedSyncT))
            && !self.peers[peer].devs[vol].unfollowed;
        if matches!(was.repl, ReplState::SyncSource | ReplState::PausedSyncS)
            && took_part
            && theirs == Some(ReplState::Established)
        {
            self.change_hard(|st| st.peers[peer].role = role);
            self.source_finished(peer, vol, disk);
        } else {
            let ended = matches!(
                was.repl,
                ReplState::VerifyS
                    | ReplState::VerifyT
                    | ReplState::SyncTarget
                    | ReplState::PausedSyncT
            ) && theirs == Some(ReplState::Established)
                && !self.just_started(peer, vol);
            // It was about to begin, and has got what it lacks from somewhere else.
            let dropped = was.repl == ReplState::WFBitMapS
                && before == Some(ReplState::WFBitMapT)
                && theirs == Some(ReplState::Established);
            let ended = ended || dropped;
            let shown = self.shown_peer_disk(peer, vol, disk, word).min(at_most);
            self.change_hard(|st| {
                st.peers[peer].role = role;
                let dev = &mut st.peers[peer].devs[vol];
                dev.disk = shown;
                if ended {
                    dev.repl = ReplState::Established;
                }
            });
        }
        if disk == DiskState::UpToDate && was.disk < DiskState::UpToDate {
            self.drop_artefacts(peer, vol);
            self.review_overtaken(peer, vol);
            self.follow_as_client(peer, vol);
        }
        self.change_hard(|st| {
            let dev = &mut st.peers[peer].devs[vol];
            dev.peer_quorum = word.quorum();
            dev.forgetful = word.forgetful();
            dev.pause_peer = word.aftr_isp() || word.user_isp();
        });
        if let Some(theirs) = theirs {
            self.follow_ahead(peer, vol, theirs);
            self.follow_resync(peer, vol, theirs);
        }
        self.compare_forced(peer, vol);
        self.review_agreement(peer, vol);
        self.resyncs_progress(vol);
        self.attach_answer(peer, vol);
        if word.conn_state() == Some(ConnState::Connecting) {
            self.volume_added(peer, vol);
        }
        Ok(())
    }

    /// Notes whether both ends say the same about a resync or verify between them.
    pub(crate) fn review_agreement(&mut self, peer: PeerIx, vol: usize) {
        let mine = self.st.peers[peer].devs[vol];
        let word = self.peers[peer].devs[vol].last_word;
        let theirs = word.and_then(|w| w.repl_state());
        let judged = self.st.is_connected(peer)
            && self.st.vols[vol].disk >= DiskState::Inconsistent
            && mine.disk >= DiskState::Inconsistent;
        let agree = theirs.is_none_or(|theirs| mirrored(mine.repl, theirs));
        let now = self.now;
        let since = &mut self.peers[peer].devs[vol].disagree;
        *since = if judged && !agree { since.or(Some(now)) } else { None };
    }

    /// The ends have not agreed for so long that no packet under way can be the reason. A
    /// handshake brings them together.
    fn disagreement(&mut self, peer: PeerIx) {
        let since = self.peers[peer].devs.iter().filter_map(|d| d.disagree).min();
        if since.is_some_and(|at| at + DISAGREE <= self.now) {
            for dev in &mut self.peers[peer].devs {
                dev.disagree = None;
            }
            self.disagree(peer, "does not say the same about a resync");
        }
    }

    /// The two ends do not agree about a resync. A handshake, in which generations stand still,
    /// brings them together.
    pub(crate) fn disagree(&mut self, peer: PeerIx, what: &str) {
        let text = format!("{}: {} {what}; connecting again", self.name, self.peers[peer].name);
        self.log(LogLevel::Warn, text);
        self.lose(peer, ConnState::NetworkFailure, AfterLoss::Reconnect);
    }

    /// A resync or verify began here so recently that the peer's state may be older than that.
    fn just_started(&self, peer: PeerIx, vol: usize) -> bool {
        let begun = matches!(
            self.repl(peer, vol),
            ReplState::SyncTarget | ReplState::PausedSyncT | ReplState::VerifyS
        );
        begun && !self.peers[peer].devs[vol].source_seen
    }

    /// This Primary writes in a generation that came after the one that the peer names.
    pub(crate) fn has_left_behind(&self, peer: PeerIx, vol: usize) -> bool {
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        let backing = self.vols[vol].backing.as_ref();
        self.st.role == Role::Primary
            && self.st.is_connected(peer)
            && backing.zip(uuids).is_some_and(|(b, u)| b.gens.has_passed(u.current))
    }

    /// A node that works with the disks of others does not take a peer for UpToDate or Consistent,
    /// because it says so, if another disk has left its generation behind. One without disk shows a peer that
    /// *turns* UpToDate with another generation than it has seen as Consistent only (A8). One that
    /// is UpToDate already follows this node's generations in the order of the stream, even if it
    /// has not said so yet.
    pub(crate) fn shown_peer_disk(
        &mut self,
        peer: PeerIx,
        vol: usize,
        disk: DiskState,
        word: StateWord,
    ) -> DiskState {
        if matches!(
            word.repl_state(),
            Some(
                ReplState::SyncSource
                    | ReplState::PausedSyncS
                    | ReplState::VerifyS
                    | ReplState::VerifyT
            )
        ) {
            self.peers[peer].devs[vol].source_seen = true;
        }
        let known = disk == DiskState::UpToDate
            && self.st.peers[peer].devs[vol].disk == DiskState::UpToDate;
        if self.st.vols[vol].disk == DiskState::UpToDate || disk < DiskState::Consistent || known {
            // What was on its way when this Primary left the peer behind is no news of it.
            let left = disk >= DiskState::Consistent && !known && self.has_left_behind(peer, vol);
            return if left { DiskState::Outdated } else { disk };
        }
        let exposed = self.vols[vol].exposed;
        let client = self.vols[vol].backing.is_none();
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        let same = uuids.is_none_or(|u| u.current.same(exposed) || exposed.is_none());
        if disk == DiskState::Consistent {
            // It would get writes, and follow this node into a generation.
            let old = !(client && same) && self.is_ancestor(peer, vol);
            return if old { DiskState::Outdated } else { disk };
        }
        let overtakes = uuids
            .is_some_and(|u| u.succeeds(exposed) && !self.vols[vol].proposals.contains(u.current));
        if client && overtakes {
            // Others went on while this Primary did not reach its disk.
            self.yield_to_newer_data();
        }
        match self.st.role {
            Role::Primary if self.lacks_reported(peer, vol) => DiskState::Outdated,
            _ if client && same => disk,
            _ if self.is_ancestor(peer, vol) => DiskState::Outdated,
            Role::Primary if client => DiskState::Consistent,
            _ => disk,
        }
    }

    // --- completions ------------------------------------------------------------------------

    /// A disk operation has ended.
    pub(crate) fn disk_done(&mut self, id: OpId, result: Result<DiskData, DiskError>) {
        let key = usize::try_from(id.0).unwrap_or(usize::MAX);
        let Some(Running { op, .. }) = self.ops.remove(key) else {
            debug_assert!(false, "an operation ended twice");
            return;
        };
        let plain = match &result {
            Ok(_) => Ok(()),
            Err(e) => Err(*e),
        };
        match op {
            Op::Write(seq) => self.local_write_done(seq, plain),
            Op::Read(key) => self.local_read_done(key, result),
            Op::PeerWrite(key) => self.peer_write_done(key, plain),
            Op::EpochFlush(peer, vol) => self.epoch_flushed(peer, vol, plain),
            Op::ConfirmFlush(peer, vol) => self.confirm_flushed(peer, vol, plain),
            Op::DemotionFlush(vol) => self.demotion_flushed(vol, plain),
            Op::PeerRead(key) => self.peer_read_done(key, result),
            Op::Serve(key) => self.served(key, result),
            Op::ResyncWrite(peer, vol, id) => {
                if !self.late_write_done(peer, vol, id) {
                    self.resync_written(peer, vol, id, plain);
                }
            }
            Op::ResyncDigest(peer, vol, id) => self.resync_digest(peer, vol, id, result),
            Op::ResyncFlush(peer, vol) => self.resync_flushed(peer, vol, plain),
            Op::ZeroLeft(vol) => self.left_zeroed(vol, plain),
            Op::VerifyDigest(peer, vol, id) => self.verify_digest(peer, vol, id, result),
            Op::Meta(_) => debug_assert!(false, "not a disk operation"),
            Op::Abandoned(_, buf) => {
                self.free(buf);
                self.free(read_buf(&result));
            }
        }
    }

    /// Timers that are due.
    pub(crate) fn timers(&mut self) {
        let now = self.now;
        self.twopc_timeout();
        if self.epoch_deadline().is_some_and(|at| at <= now) {
            self.close_epoch();
        }
        if self.peer_acks.deadline.is_some_and(|at| at <= now) {
            self.flush_peer_acks();
        }
        for vol in 0..self.vols.len() {
            self.parting_timeout(vol);
            self.disk_timeout(vol);
        }
        for peer in 0..self.peers.len() {
            if self.peers[peer].retry_at.is_some_and(|at| at <= now) {
                self.start_connecting(peer);
            }
            self.handshake_timeout(peer);
            self.liveness(peer);
            self.disagreement(peer);
            self.legacy_timeout(peer);
            self.leave_ahead(peer);
            for vol in 0..self.vols.len() {
                if self.resync_deadline(peer, vol).is_some_and(|at| at <= now) {
                    self.resync_turn(peer, vol);
                }
                if self.release_deadline(peer, vol).is_some_and(|at| at <= now) {
                    self.release_held(peer, vol);
                }
            }
            if self.peers[peer].hs.cleanup_waits {
                self.work.push_back(Work::LossCleanup(peer));
            }
        }
    }

    /// A ping was not answered in time.
    fn is_silent(&self, peer: PeerIx) -> bool {
        let p = &self.peers[peer];
        p.pings != Pings::None && self.now.since(p.ping_since) >= p.net.ping_timeout
    }

    /// Pings, and peers that do not answer (wire §1.2).
    fn liveness(&mut self, peer: PeerIx) {
        let now = self.now;
        if self.peers[peer].link != Link::Up {
            return;
        }
        let net = &self.peers[peer].net;
        let ping_int = net.ping_int;
        let patience = net.timeout * net.ko_count;
        let p = &self.peers[peer];
        if self.is_silent(peer) {
            return self.lose(peer, ConnState::NetworkFailure, AfterLoss::Reconnect);
        }
        if p.pings == Pings::None && now.since(p.last_rx) >= ping_int && p.agreed_version != 0 {
            self.peers[peer].last_rx = now;
            return self.ping(peer);
        }
        if patience.is_zero() || !self.st.is_connected(peer) {
            return;
        }
        let barrier = self.peers[peer].send.barriers.front().map(|b| b.since);
        let node = self.peers[peer].node;
        let write = self
            .log
            .iter()
            .find(|w| w.parts[node.index()] == Part::Pending && w.range.len.0 > 0)
            .map(|w| w.since);
        if barrier.into_iter().chain(write).any(|since| now.since(since) >= patience) {
            self.lose(peer, ConnState::Timeout, AfterLoss::Reconnect);
        }
    }

    /// When to call with [`crate::Input::Timeout`] if nothing else happens, and which timer that
    /// is.
    pub fn deadline(&self) -> Option<(vocab::Instant, &'static str)> {
        let mut first: Option<(vocab::Instant, &'static str)> = None;
        let mut add = |at: Option<vocab::Instant>, name: &'static str| {
            if let Some(at) = at {
                if first.is_none_or(|(f, _)| at < f) {
                    first = Some((at, name));
                }
            }
        };
        add(self.jobs_deadline(), "state change");
        add(self.readers_deadline(), "reader");
        add(self.twopc.held.as_ref().map(|h| h.deadline), "transaction");
        add(self.epoch_deadline(), "epoch");
        add(self.peer_acks.deadline, "peer-ack");
        for (ix, peer) in self.peers.iter().enumerate() {
            add(peer.retry_at, "reconnect");
            add(peer.hs.deadline, "handshake");
            if peer.link == Link::Up {
                if peer.pings != Pings::None {
                    add(Some(peer.ping_since + peer.net.ping_timeout), "ping answer");
                } else if peer.agreed_version != 0 {
                    // Before that the handshake has a deadline of its own, and no pings.
                    add(Some(peer.last_rx + peer.net.ping_int), "ping");
                }
                let patience = peer.net.timeout * peer.net.ko_count;
                if !patience.is_zero() {
                    let barrier = peer.send.barriers.front();
                    add(barrier.map(|b| b.since + patience), "barrier ack");
                }
            }
            add(self.legacy_deadline(ix), "request of a peer");
            add(self.leave_ahead_deadline(ix), "ahead");
            for vol in 0..self.vols.len() {
                add(self.resync_deadline(ix, vol), "resync");
                add(self.release_deadline(ix, vol), "resync source");
                add(peer.devs[vol].disagree.map(|at| at + DISAGREE), "disagreement");
            }
        }
        for vol in 0..self.vols.len() {
            add(self.meta_deadline(vol), "metadata");
            add(self.parting_deadline(vol), "last word of a disk");
            add(self.disk_deadline(vol), "disk");
        }
        first
    }
}
