//! What the core says to a peer of protocol 8, in its words.

use codec::wire::{
    BlockAck, Operation, Packet, ReqState, RsReq, StateWord, TWOPC_HAS_REACHABLE, TwoPc,
    TwoPcReply, UuidFlags, Uuids, Uuids110,
};
use vocab::{DiskState, GenUuid, ReplState, Role, VolumeNr};

use super::inbound::{code, operation};
use super::{AGAIN, Exchange, VOLUME, told_past};
use crate::generation::{UNKNOWN, is_generation};
use crate::io::BufId;
use crate::plain::{self, id_of};
use crate::resource::{Resource, Work};
use crate::state::PeerIx;

/// Flags of P_UUIDS. Whether the disk is a mixture such a peer sees from P_STATE.
const FLAGS: u64 =
    UuidFlags::DISCARD_MY_DATA.0 | UuidFlags::CRASHED_PRIMARY.0 | UuidFlags::SKIP_INITIAL_SYNC.0;

impl Resource {
    /// Sends a packet of the core to such a peer, or does what it stands for.
    pub(crate) fn send_legacy(&mut self, peer: PeerIx, packet: Packet, payload: Option<BufId>) {
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        let packet = match packet {
            // Of these it knows nothing, and needs nothing.
            Packet::Dagtag(_)
            | Packet::PeerAck(_)
            | Packet::PeersInSync(..)
            | Packet::PeerDagtag(_)
            | Packet::CurrentUuid(..)
            | Packet::Disconnect => return,
            Packet::Uuids110(nr, uuids) => return self.send_legacy_uuids(peer, nr, &uuids),
            Packet::State(nr, word) => return self.send_legacy_state(peer, nr, word),
            Packet::TwoPcPrepare(nr, request) => return self.ask_legacy(peer, nr, request),
            // Only the one about the connection has not been answered by the peer before.
            Packet::TwoPcCommit(..) => {
                if dialect.asked.take().is_some() {
                    dialect.exchange = Exchange::Done;
                    self.work.push_back(Work::Legacy(peer));
                }
                return;
            }
            Packet::TwoPcAbort(_, request) => return self.withdraw_from_legacy(peer, &request),
            Packet::TwoPcYes(_, reply) => {
                return self.core_answered(peer, &reply, code::SUCCESS);
            }
            Packet::TwoPcNo(_, reply) => {
                let two = self.st.role == Role::Primary;
                let code = if two { code::TWO_PRIMARIES } else { code::CW_FAILED_BY_PEER };
                return self.core_answered(peer, &reply, code);
            }
            Packet::TwoPcRetry(_, reply) => {
                return self.core_answered(peer, &reply, code::IN_TRANSIENT_STATE);
            }
            // Confirmed early is confirmed with the others: it does not know the difference.
            Packet::ConfirmStable(confirm) => {
                dialect.confirmed += confirm.set_size;
                return;
            }
            Packet::BarrierAck(number, set_size) => {
                let set_size = set_size + std::mem::take(&mut dialect.confirmed);
                self.put_on_wire(peer, Packet::BarrierAck(number, set_size), None);
                return self.settle_barrier(peer, number);
            }
            Packet::RsDagtagReq(..) | Packet::RsThinDagtagReq(..) | Packet::RsCsumDagtagReq(..)
                if dialect.awaits_sync_uuid =>
            {
                dialect.waiting_requests.push(packet);
                return;
            }
            // It asks once. What can not be served now is served later.
            Packet::RsCancelAhead(nr, ack) => Packet::RsCancel(nr, ack),
            Packet::RsCancel(nr, ack) => return self.serve_again(peer, nr, ack),
            packet => packet,
        };
        let packet = plain::outbound(&mut dialect.requests, &mut dialect.next_request, packet);
        self.put_on_wire(peer, packet, payload);
    }

    fn serve_again(&mut self, peer: PeerIx, nr: VolumeNr, ack: BlockAck) {
        let req = RsReq {
            range: ack.range,
            block_id: id_of(ack.range),
            dep: codec::wire::DagtagDep::default(),
        };
        let packet = match self.repl(peer, VOLUME) {
            ReplState::VerifyT => Packet::OvDagtagReq(nr, req),
            repl if repl.is_source() => Packet::RsDagtagReq(nr, req),
            // Nobody waits for it any more.
            _ => return,
        };
        let at = self.now + AGAIN;
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        dialect.again.push((at, packet));
    }

    fn send_legacy_uuids(&mut self, peer: PeerIx, nr: VolumeNr, uuids: &Uuids110) {
        let node = self.peers[peer].node.get();
        let known = |uuid: GenUuid| if uuid == UNKNOWN { GenUuid::NONE } else { uuid };
        let slot = uuids.bitmap_uuids.iter().find(|(id, _)| *id == node);
        let bitmap = slot.map_or(GenUuid::NONE, |(_, uuid)| known(*uuid));
        let me = self.me.get();
        let others = uuids.bitmap_uuids.iter().filter(|(id, _)| *id != node && *id != me);
        let legacy = Uuids {
            current: uuids.current,
            bitmap,
            history: told_past(&uuids.history, others.map(|(_, uuid)| *uuid)),
            dirty_bits: uuids.dirty_bits,
            flags: UuidFlags(uuids.flags.0 & FLAGS),
        };
        let connecting = !self.st.is_connected(peer);
        let skip = uuids.flags.has(UuidFlags::SKIP_INITIAL_SYNC);
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        let told = Some((legacy.current, legacy.bitmap));
        if !connecting && !skip && dialect.told == told {
            return;
        }
        dialect.told = told;
        dialect.declared_equal |= skip;
        self.put_on_wire(peer, Packet::Uuids(nr, Box::new(legacy)), None);
        if skip {
            // It takes the generation, and does not say so.
            let like = self.uuids_like_own(peer);
            self.say_to_core(peer, Packet::Uuids110(nr, Box::new(like)));
            let word = self.peers[peer].devs[VOLUME].last_word.unwrap_or_default();
            let word = word.with_disk(DiskState::UpToDate).with_pdsk(DiskState::UpToDate);
            self.say_to_core(peer, Packet::State(Some(nr), word));
        }
    }

    fn send_legacy_state(&mut self, peer: PeerIx, nr: Option<VolumeNr>, word: StateWord) {
        // One about the whole connection comes before one about the volume that says the same.
        let Some(nr) = nr else { return };
        let mut word = word.with_quorum(false);
        let repl = word.repl_state().unwrap_or(ReplState::Off);
        let connected = self.st.is_connected(peer);
        let shows = !connected && self.shown_as_inconsistent(peer);
        if shows {
            word = word.with_disk(DiskState::Inconsistent);
        }
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        if dialect.exchange != Exchange::Done {
            return self.put_on_wire(peer, Packet::State(Some(nr), word), None);
        }
        let source = matches!(repl, ReplState::SyncSource | ReplState::PausedSyncS);
        let target = matches!(repl, ReplState::SyncTarget | ReplState::PausedSyncT);
        let announced = match repl {
            ReplState::WFBitMapS | ReplState::StartingSyncS | ReplState::Ahead => {
                dialect.owes_sync_uuid = true;
                repl != ReplState::StartingSyncS
            }
            ReplState::WFBitMapT | ReplState::StartingSyncT => {
                dialect.awaits_sync_uuid = true;
                repl == ReplState::WFBitMapT
            }
            // That a resync begins is known at both ends.
            _ if source && std::mem::take(&mut dialect.owes_sync_uuid) => {
                self.begin_resync(peer, nr);
                false
            }
            _ if target && dialect.awaits_sync_uuid => false,
            _ => {
                dialect.owes_sync_uuid &= source;
                if !target {
                    dialect.awaits_sync_uuid = false;
                    dialect.waiting_requests.clear();
                }
                true
            }
        };
        let before = self.shown_before(peer, repl);
        self.echo_state(peer, nr, before, repl);
        let exchanging = matches!(repl, ReplState::WFBitMapS | ReplState::WFBitMapT);
        if exchanging && self.peers[peer].devs[VOLUME].recompared {
            // The peer compares for itself when it hears of that, by what it was told last.
            let dialect = self.peers[peer].legacy.as_mut().expect("looked at above");
            dialect.told = None;
            self.send_uuids(peer, VOLUME, UuidFlags::default(), vocab::NodeMask::EMPTY);
        }
        if announced {
            self.put_on_wire(peer, Packet::State(Some(nr), word), None);
        }
        let dialect = self.peers[peer].legacy.as_mut().expect("looked at above");
        if dialect.awaits_sync_uuid {
            if let Some((nr, uuid)) = dialect.early_sync_uuid.take() {
                dialect.held.push_front((Packet::SyncUuid(nr, uuid), None));
                self.work.push_back(Work::Legacy(peer));
            }
        }
        if word.disk().is_some_and(|disk| disk < DiskState::Negotiating) {
            self.leave_legacy(peer, "is left: without a disk here it can not be a peer");
        }
    }

    /// As the source: the target's disk is to be at the generation that the bits for it count from,
    /// so that both can go on by them after an interruption; or at that of this disk, if the bits
    /// are about differences within it. Until the end it is Inconsistent in any case.
    fn begin_resync(&mut self, peer: PeerIx, nr: VolumeNr) {
        let Some(backing) = &self.vols[VOLUME].backing else { return };
        let base = backing.gens.bitmap(self.peers[peer].node).uuid;
        let uuid = if is_generation(base) { base } else { backing.gens.current() };
        self.put_on_wire(peer, Packet::SyncUuid(nr, uuid.with_primary(false)), None);
        // That it has begun it does not say.
        let word = self.peers[peer].devs[VOLUME].last_word.unwrap_or_default();
        let word = word
            .with_repl_state(ReplState::SyncTarget)
            .with_disk(DiskState::Inconsistent)
            .with_pdsk(DiskState::UpToDate);
        self.say_to_core(peer, Packet::State(Some(nr), word));
    }

    /// What was said before this.
    fn shown_before(&mut self, peer: PeerIx, repl: ReplState) -> Option<ReplState> {
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        dialect.shown.replace(repl).filter(|before| *before != repl)
    }

    /// That a verify begins, or that it or a resync is over, the peer knows, and does not say.
    fn echo_state(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        before: Option<ReplState>,
        repl: ReplState,
    ) {
        let theirs = match (before, repl) {
            (Some(_), ReplState::VerifyS) => ReplState::VerifyT,
            (Some(_), ReplState::VerifyT) => ReplState::VerifyS,
            (
                Some(
                    ReplState::SyncTarget
                    | ReplState::PausedSyncT
                    | ReplState::VerifyS
                    | ReplState::VerifyT,
                ),
                ReplState::Established,
            ) => ReplState::Established,
            _ => return,
        };
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        dialect.verify_left = None;
        dialect.verify_asked = None;
        let word = self.peers[peer].devs[VOLUME].last_word.unwrap_or_default();
        self.say_to_core(peer, Packet::State(Some(nr), word.with_repl_state(theirs)));
    }

    /// A transaction of the core: the peer is asked where it has a say.
    fn ask_legacy(&mut self, peer: PeerIx, nr: Option<VolumeNr>, request: TwoPc) {
        let primary = self.st.peers[peer].role == Role::Primary;
        let reply = self.reply_of(peer, &request, primary);
        let change = ReqState::from_word28(request.word28);
        let volume = nr.unwrap_or(self.vols[VOLUME].nr);
        let shows = self.must_show_inconsistent(peer);
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        match operation(&request) {
            Some(Operation::Connect(_)) => {
                dialect.asked = Some((nr, request));
                dialect.exchange = Exchange::Running;
                dialect.shows_inconsistent = shows;
                // What it has sent already, the core takes once it has sent its own.
                self.work.push_back(Work::Legacy(peer));
            }
            Some(Operation::Promote { .. }) => {
                dialect.asked = Some((nr, request));
                self.put_on_wire(peer, Packet::StateChgReq(volume, change), None);
            }
            Some(Operation::Verify | Operation::Invalidate | Operation::InvalidateRemote) => {
                dialect.asked = Some((nr, request));
                self.put_on_wire(peer, Packet::StateChgReq(volume, change), None);
            }
            Some(Operation::Disconnect(_)) => {
                dialect.asked = Some((nr, request));
                self.put_on_wire(peer, Packet::ConnStChgReq(change), None);
            }
            // Of a demotion it is only told; of a loss there is nobody else to tell.
            Some(Operation::Empty | Operation::Demote) => {
                self.say_to_core(peer, Packet::TwoPcYes(nr, reply));
            }
            Some(Operation::Detach) if self.st.role != Role::Primary => {
                self.say_to_core(peer, Packet::TwoPcYes(nr, reply));
            }
            // The handshake is where such a peer compares disks.
            Some(Operation::Attach | Operation::ResyncAsTarget | Operation::ResyncAsSource) => {
                self.leave_legacy(peer, "has to compare the disks anew; connecting again");
            }
            Some(Operation::Detach | Operation::RemoveVolume | Operation::Resize) | None => {
                self.say_to_core(peer, Packet::TwoPcNo(nr, reply));
            }
        }
    }

    /// The core has given up a transaction of its own.
    fn withdraw_from_legacy(&mut self, peer: PeerIx, request: &TwoPc) {
        let last = self.peers[peer].devs[VOLUME].last_sent;
        let nr = self.vols[VOLUME].nr;
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        let pending = dialect.asked.take().is_some();
        match operation(request) {
            Some(Operation::Connect(_)) => {
                // The peer has concluded for itself.
                self.leave_legacy(peer, "does not connect by what it was told; connecting again");
            }
            Some(Operation::Promote { .. }) => {
                dialect.stale_answers += u32::from(pending);
                // It may take this node for Primary.
                if let Some(word) = last {
                    self.put_on_wire(peer, Packet::State(Some(nr), word.with_quorum(false)), None);
                }
            }
            Some(
                Operation::Verify
                | Operation::Invalidate
                | Operation::InvalidateRemote
                | Operation::Disconnect(_),
            ) => {
                self.leave_legacy(
                    peer,
                    "was asked for a change that was given up; connecting again",
                );
            }
            _ => {}
        }
    }

    /// The core has answered a request of the peer.
    fn core_answered(&mut self, peer: PeerIx, reply: &TwoPcReply, code: i32) {
        let dialect = self.peers[peer].legacy.as_mut().expect("the caller has looked");
        let Some(asked) = dialect.answering.take_if(|a| a.request.tid == reply.tid) else { return };
        self.answer_change(peer, asked.nr, asked.of_connection, code);
        if code != code::SUCCESS {
            return;
        }
        // The peer changes as soon as it has the answer.
        let node = self.peers[peer].node.mask();
        let both = node.or(self.me.mask());
        let op = operation(&asked.request);
        let others = self.st.role == Role::Primary;
        let promoted = matches!(op, Some(Operation::Promote { .. }));
        let theirs = promoted || self.st.peers[peer].role == Role::Primary;
        let leaves = matches!(op, Some(Operation::Disconnect(_)));
        let mut primaries = vocab::NodeMask::EMPTY;
        if theirs {
            primaries = primaries.or(node);
        }
        if others {
            primaries = primaries.or(self.me.mask());
        }
        let commit = TwoPc {
            flags: TWOPC_HAS_REACHABLE,
            word20: primaries.0,
            word28: if leaves { self.me.mask().0 } else { both.0 },
            ..asked.request
        };
        self.say_to_core(peer, Packet::TwoPcCommit(asked.nr, commit));
    }
}
