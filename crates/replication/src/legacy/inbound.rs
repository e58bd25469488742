//! What a peer of protocol 8 says, as the core would hear it from one of protocol 9.

use codec::wire::{
    Operation, Packet, PeerAck, ReqState, StateWord, TWOPC_HAS_REACHABLE, TwoPc, TwoPcReply,
    UuidFlags, Uuids, Uuids110,
};
use vocab::{DiskState, GenUuid, NodeMask, ReplState, Role, VolumeNr};

use super::{Answering, Exchange, MAX_HELD, VOLUME};
use crate::generation::is_generation;
use crate::io::{BufId, LogLevel};
use crate::plain;
use crate::resource::{Resource, Work};
use crate::state::PeerIx;

/// Answers to state changes (wire §8.4).
pub(super) mod code {
    pub(crate) const SUCCESS: i32 = 1;
    pub(crate) const TWO_PRIMARIES: i32 = -1;
    pub(crate) const CW_FAILED_BY_PEER: i32 = -10;
    pub(crate) const NOT_SUPPORTED: i32 = -17;
    pub(crate) const IN_TRANSIENT_STATE: i32 = -18;
    pub(crate) const CONCURRENT_ST_CHG: i32 = -19;
}

impl Resource {
    /// A packet of such a peer.
    pub(crate) fn take_legacy(
        &mut self,
        peer: PeerIx,
        packet: Packet,
        payload: Option<BufId>,
    ) -> Result<(), &'static str> {
        let at_any_time = matches!(
            packet,
            Packet::Ping
                | Packet::PingAck
                | Packet::Protocol(_)
                | Packet::ConnectionFeatures(_)
                | Packet::AuthChallenge(_)
                | Packet::AuthResponse(_)
        );
        if at_any_time {
            return self.take(peer, packet, payload);
        }
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        if dialect.held.is_empty() && dialect.inbox.is_empty() && dialect.passes(&packet) {
            return self.translate_inbound(peer, packet, payload);
        }
        if dialect.held.len() == MAX_HELD {
            self.free(payload);
            return Err("too many packets before the connection was established");
        }
        dialect.held.push_back((packet, payload));
        self.work.push_back(Work::Legacy(peer));
        Ok(())
    }

    pub(super) fn translate_inbound(
        &mut self,
        peer: PeerIx,
        packet: Packet,
        payload: Option<BufId>,
    ) -> Result<(), &'static str> {
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        let packet = match packet {
            Packet::State(Some(nr), word) if dialect.exchange == Exchange::Running => {
                return self.first_state(peer, nr, word);
            }
            Packet::State(Some(nr), word) => return self.state_changed(peer, nr, word),
            Packet::Uuids(nr, uuids) => {
                let uuids = self.uuids_from_legacy(peer, &uuids);
                Packet::Uuids110(nr, Box::new(uuids))
            }
            Packet::SyncUuid(nr, uuid) => return self.sync_uuid(peer, nr, uuid),
            Packet::StateChgReq(nr, request) => {
                return self.change_requested(peer, Some(nr), request);
            }
            Packet::ConnStChgReq(request) => return self.change_requested(peer, None, request),
            Packet::StateChgReply(_, code) | Packet::ConnStChgReply(code) => {
                self.change_answered(peer, code);
                return Ok(());
            }
            // The core knows when writes of a peer are over by its acks for them.
            Packet::Barrier(number) => {
                let received = self.peers[peer].recv.last_dagtag;
                let dialect = self.peers[peer].legacy.as_mut().expect("looked at above");
                dialect.barriers.push_back((number, received));
                Packet::Barrier(number)
            }
            Packet::OvRequest(_, req) => {
                let size = self.vols[VOLUME].size.0;
                let dialect = self.peers[peer].legacy.as_mut().expect("looked at above");
                let start = req.range.start.0;
                dialect.verify_left.get_or_insert(size.saturating_sub(start));
                let asked = dialect.verify_asked.get_or_insert(req.range);
                asked.len.0 = req.range.end().saturating_sub(asked.start.0).max(asked.len.0);
                packet
            }
            Packet::OvResult(nr, ack) => {
                let is_of_this = dialect.verify_asked.is_some_and(|a| a.overlaps(ack.range));
                let part = if is_of_this { ack.range.len.0 } else { 0 };
                let left = dialect.verify_left.map(|l| l.saturating_sub(part));
                dialect.verify_left = left;
                let verdict = plain::inbound(&mut dialect.requests, packet)?;
                self.take(peer, verdict, None)?;
                if left == Some(0) && self.repl(peer, VOLUME) == ReplState::VerifyT {
                    // Both count how much is left: the end is not said.
                    let word = self.peers[peer].devs[VOLUME].last_word.unwrap_or_default();
                    let word = word.with_repl_state(ReplState::Established);
                    self.say_to_core(peer, Packet::State(Some(nr), word));
                }
                return Ok(());
            }
            packet => packet,
        };
        // Requests get ids, answers the ids of their requests.
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        match plain::inbound(&mut dialect.requests, packet) {
            Ok(packet) => self.take(peer, packet, payload),
            Err(rule) => {
                self.free(payload);
                Err(rule)
            }
        }
    }

    fn uuids_from_legacy(&self, peer: PeerIx, uuids: &Uuids) -> Uuids110 {
        let known = UuidFlags::DISCARD_MY_DATA
            .with(UuidFlags::CRASHED_PRIMARY)
            .with(UuidFlags::INCONSISTENT)
            .with(UuidFlags::SKIP_INITIAL_SYNC);
        let skip = uuids.flags.has(UuidFlags::SKIP_INITIAL_SYNC);
        // Outside of a handshake it sends them when it has begun a generation, by force for
        // instance: both compare then.
        let compares = self.st.is_connected(peer) && !skip;
        let flags = UuidFlags(uuids.flags.0 & known.0)
            .with(UuidFlags::STABLE)
            .with_if(compares, UuidFlags::RESYNC);
        let (me, node) = (self.me.get(), self.peers[peer].node.get());
        let mut bitmap_uuids = vec![(me, uuids.bitmap), (node, GenUuid::NONE)];
        bitmap_uuids.sort_unstable_by_key(|(node, _)| *node);
        Uuids110 {
            current: uuids.current,
            dirty_bits: uuids.dirty_bits,
            flags,
            node_mask: NodeMask::EMPTY,
            bitmap_uuids,
            history: uuids.history.to_vec(),
        }
    }

    /// The last packet of the peer's set: it agrees to connect by sending it.
    fn first_state(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        word: StateWord,
    ) -> Result<(), &'static str> {
        if word.disk().is_none_or(|disk| disk < DiskState::Negotiating) {
            self.leave_legacy(peer, "has no disk; attach it there, it is tried again meanwhile");
            return Ok(());
        }
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        dialect.exchange = Exchange::Told;
        let asked = dialect.asked;
        self.take(peer, Packet::State(Some(nr), word.with_quorum(true)), None)?;
        if let Some((nr, request)) = asked {
            let reply = self.reply_of(peer, &request, word.role() == Some(Role::Primary));
            self.say_to_core(peer, Packet::TwoPcYes(nr, reply));
        }
        Ok(())
    }

    /// What the peer would answer to a transaction that it takes part in.
    pub(super) fn reply_of(&self, peer: PeerIx, request: &TwoPc, primary: bool) -> TwoPcReply {
        let node = self.peers[peer].node.mask();
        let both = node.or(self.me.mask());
        let capable = primary && self.st.peers[peer].devs[VOLUME].disk == DiskState::UpToDate;
        let leaves = matches!(operation(request), Some(Operation::Disconnect(_)));
        TwoPcReply {
            tid: request.tid,
            initiator: request.initiator,
            reachable_nodes: if leaves { node } else { both },
            primary_nodes: if primary { node } else { NodeMask::EMPTY },
            weak_nodes: if capable { both.complement() } else { NodeMask::EMPTY },
        }
    }

    /// P_STATE on an established connection.
    fn state_changed(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        word: StateWord,
    ) -> Result<(), &'static str> {
        let mut word = word.with_quorum(true);
        let disk = word.disk().unwrap_or(DiskState::Diskless);
        if disk < DiskState::Inconsistent {
            return self.disk_lost_at_legacy(peer, nr);
        }
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        let mine = self.st.peers[peer].devs[VOLUME].repl;
        let idle = word.repl_state() == Some(ReplState::Established);
        // What it said before it heard of that.
        if idle && dialect.declared_equal && disk == DiskState::Inconsistent {
            word = word.with_disk(DiskState::UpToDate);
        }
        dialect.declared_equal &= idle && disk != DiskState::UpToDate;
        if idle && matches!(mine, ReplState::SyncTarget | ReplState::PausedSyncT) {
            // It ends a resync once it has all acks. This node does once all is on its disk.
            word = word.with_repl_state(ReplState::SyncSource);
        }
        if idle && mine == ReplState::VerifyS {
            word = word.with_repl_state(ReplState::VerifyT);
        }
        let source = matches!(mine, ReplState::SyncSource | ReplState::PausedSyncS);
        if idle && source && disk == DiskState::UpToDate {
            // It has taken this node's generation, and does not say so.
            let uuids = self.uuids_like_own(peer);
            self.take(peer, Packet::Uuids110(nr, Box::new(uuids)), None)?;
        }
        self.take(peer, Packet::State(Some(nr), word), None)?;
        if idle && source && disk == DiskState::UpToDate {
            self.forget_bits(peer);
        }
        Ok(())
    }

    /// The peer has everything that was counted as missing there when its resync began, and what came
    /// since it got as writes. What is left are bits of writes that were under way.
    fn forget_bits(&mut self, peer: PeerIx) {
        let node = self.peers[peer].node;
        let established = self.repl(peer, VOLUME) == ReplState::Established;
        let Some(backing) = self.vols[VOLUME].backing.as_mut().filter(|_| established) else {
            return;
        };
        backing.gens.set_bitmap(node, GenUuid::NONE);
        if let Some(slot) = backing.slot_of(node) {
            backing.bitmap.clear_all(slot);
        }
        self.forget_missed(node, VOLUME);
        self.write_bitmap(VOLUME);
        self.md_changed_now(VOLUME);
    }

    /// The peer's identifiers once it has everything that this node has.
    pub(super) fn uuids_like_own(&self, peer: PeerIx) -> Uuids110 {
        let sent = self.peers[peer].devs[VOLUME].sent_uuids.as_ref();
        let current = sent.map_or(GenUuid::NONE, |sent| sent.current);
        let uuids = Uuids {
            current,
            bitmap: GenUuid::NONE,
            history: [GenUuid::NONE; 2],
            dirty_bits: 0,
            flags: UuidFlags::default(),
        };
        let uuids = self.uuids_from_legacy(peer, &uuids);
        Uuids110 { flags: uuids.flags.without(UuidFlags::RESYNC), ..uuids }
    }

    /// The peer has lost its disk. If it is Primary, users may have been told of writes that only
    /// this disk has: they belong to a generation that its disk does not get.
    fn disk_lost_at_legacy(&mut self, peer: PeerIx, nr: VolumeNr) -> Result<(), &'static str> {
        let primary = self.st.peers[peer].role == Role::Primary;
        if primary && self.st.vols[VOLUME].disk == DiskState::UpToDate {
            let uuid = GenUuid(self.rng.next() | 0x10).with_primary(true);
            let weak = self.me.mask().complement();
            self.take(peer, Packet::CurrentUuid(nr, uuid, weak), None)?;
        }
        self.leave_legacy(peer, "has lost its disk, without which DRBD 8.4 is no peer");
        Ok(())
    }

    /// P_SYNC_UUID: the source names the generation that this disk is at until the resync is over.
    fn sync_uuid(&mut self, peer: PeerIx, nr: VolumeNr, uuid: GenUuid) -> Result<(), &'static str> {
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        if !self.st.peers[peer].devs[VOLUME].repl.is_target() {
            // Its answer to this node's request is on the other stream, and has not come yet.
            dialect.early_sync_uuid = Some((nr, uuid));
            return Ok(());
        }
        dialect.awaits_sync_uuid = false;
        let waiting = std::mem::take(&mut dialect.waiting_requests);
        let word = self.peers[peer].devs[VOLUME].last_word.unwrap_or_default();
        let word = word.with_repl_state(ReplState::SyncSource).with_pdsk(DiskState::Inconsistent);
        if self.repl(peer, VOLUME) == ReplState::Behind {
            // That is how the peer says that it is not Ahead any more.
            self.take(peer, Packet::State(Some(nr), word), None)?;
        }
        if is_generation(uuid) {
            if let Some(backing) = self.vols[VOLUME].backing.as_mut() {
                backing.gens.take_sync_uuid(uuid);
            }
            self.resync_starts_at(peer, VOLUME, uuid);
            self.md_changed_now(VOLUME);
        }
        for packet in waiting {
            self.send(peer, packet);
        }
        self.take(peer, Packet::State(Some(nr), word), None)
    }

    /// P_STATE_CHG_REQ or P_CONN_ST_CHG_REQ: a transaction in the peer's name.
    fn change_requested(
        &mut self,
        peer: PeerIx,
        nr: Option<VolumeNr>,
        request: ReqState,
    ) -> Result<(), &'static str> {
        let of_connection = nr.is_none();
        let op = Operation::of(request);
        let node = self.peers[peer].node;
        let me = i32::from(self.me.get());
        let (target, nr) = match op {
            Some(Operation::Promote { .. } | Operation::Demote) => (-1, None),
            Some(Operation::Disconnect(_)) if of_connection => (me, None),
            Some(Operation::Verify | Operation::Invalidate | Operation::InvalidateRemote) => {
                (me, nr)
            }
            _ => {
                let text = format!(
                    "{}: {} asked for a change of state that this node does not do",
                    self.name, self.peers[peer].name
                );
                self.log(LogLevel::Warn, text);
                self.answer_change(peer, nr, of_connection, code::NOT_SUPPORTED);
                return Ok(());
            }
        };
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        if dialect.answering.is_some() {
            self.answer_change(peer, nr, of_connection, code::CONCURRENT_ST_CHG);
            return Ok(());
        }
        dialect.next_tid = dialect.next_tid.wrapping_add(1).max(1);
        let twopc = TwoPc {
            tid: dialect.next_tid,
            flags: TWOPC_HAS_REACHABLE,
            v2: true,
            initiator: i32::from(node.get()),
            target,
            nodes_to_reach: node.mask().or(self.me.mask()).complement(),
            word20: 0,
            word28: request.word28(),
        };
        dialect.answering = Some(Answering { nr, of_connection, request: twopc });
        self.take(peer, Packet::TwoPcPrepare(nr, twopc), None)
    }

    pub(super) fn answer_change(
        &mut self,
        peer: PeerIx,
        nr: Option<VolumeNr>,
        of_connection: bool,
        code: i32,
    ) {
        let nr = nr.unwrap_or(self.vols[VOLUME].nr);
        let packet = match of_connection {
            true => Packet::ConnStChgReply(code),
            false => Packet::StateChgReply(nr, code),
        };
        self.put_on_wire(peer, packet, None);
    }

    /// The peer has answered what this node asked for.
    fn change_answered(&mut self, peer: PeerIx, code: i32) {
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        if dialect.stale_answers > 0 {
            dialect.stale_answers -= 1;
            return;
        }
        let Some((nr, request)) = dialect.asked.take() else { return };
        let primary = self.st.peers[peer].role == Role::Primary;
        let reply = self.reply_of(peer, &request, primary);
        let packet = match code {
            code::SUCCESS.. => Packet::TwoPcYes(nr, reply),
            code::CONCURRENT_ST_CHG | code::IN_TRANSIENT_STATE => Packet::TwoPcRetry(nr, reply),
            _ => {
                let text = format!(
                    "{}: {} refused a change of state with number {code}",
                    self.name, self.peers[peer].name
                );
                self.log(LogLevel::Info, text);
                Packet::TwoPcNo(nr, reply)
            }
        };
        self.say_to_core(peer, packet);
    }

    /// The core has acknowledged an epoch of the peer. That both have its writes, the peer does not
    /// say: it has them itself, or says that its disk is gone.
    pub(super) fn settle_barrier(&mut self, peer: PeerIx, number: u32) {
        let (me, node) = (self.me.mask(), self.peers[peer].node.mask());
        let Some(dialect) = self.peers[peer].legacy.as_mut() else { return };
        let Some(at) = dialect.barriers.iter().position(|(nr, _)| *nr == number) else { return };
        let (_, dagtag) = dialect.barriers[at];
        dialect.barriers.drain(..=at);
        if self.peers[peer].recv.unacked.iter().any(|write| write.dagtag == dagtag) {
            let ack = PeerAck { mask: me.or(node), dagtag };
            self.say_to_core(peer, Packet::PeerAck(ack));
        }
    }
}

/// What a transaction is about.
pub(super) fn operation(request: &TwoPc) -> Option<Operation> {
    Operation::of(ReqState::from_word28(request.word28))
}
