//! Losing a connection, and losing a Primary (semantics §1.4, §2.9, §4.12, §8.6).
//!
//! A loss is dealt with in two halves that run side by side: what was received is executed and
//! what has no peer-ack becomes bits; what was sent is given up, after a new data generation is
//! durable if one is due. Only when both are done does the connection try again.

use std::time::Duration;

use codec::wire::{self, Packet, UuidFlags};
use serde::{Deserialize, Serialize};
use vocab::{ConnState, Dagtag, DiskState, GenUuid, NodeId, NodeMask, ReplState, Role, StateError};

use crate::compare::Decided;
use crate::generation::is_generation;
use crate::handshake::{AfterLoss, Phase};
use crate::io::{LogLevel, Output};
use crate::jobs::JobKind;
use crate::receive::check_position;
use crate::request::Local;
use crate::resource::{Link, Op, Pings, Resource, Work};
use crate::state::{PeerIx, VolIx};

/// A Primary is lost, and this surviving peer has not told yet how much of its stream it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PrimaryLoss {
    pub lost: NodeId,
    /// What the peer reported, until this node has settled its own side.
    pub reported: Option<Dagtag>,
    /// No block was out of sync between the two before: bits are about the last writes only.
    pub clean: bool,
    /// The peer owes nothing, see [`Resource::discharge_loss`].
    pub settled: bool,
}

impl Resource {
    /// The connection ends with that state; the sockets are closed.
    pub(crate) fn lose(&mut self, peer: PeerIx, conn: ConnState, then: AfterLoss) {
        self.close_link(peer);
        self.give_up(peer, conn, then, false);
    }

    /// A planned disconnect, or a refusal: the peer is to read the last word. Closed from here, the
    /// link might break under what the peer is sending, and take the word with it.
    pub(crate) fn part(&mut self, peer: PeerIx, outdate_self: bool) {
        self.peers[peer].link = Link::Closing;
        self.give_up(peer, ConnState::Disconnecting, AfterLoss::StandAlone, outdate_self);
        self.peers[peer].hs.deadline = Some(self.now + self.peers[peer].net.ping_timeout);
    }

    /// The peer has closed the link, or takes too long.
    pub(crate) fn parted(&mut self, peer: PeerIx) {
        self.peers[peer].hs.deadline = None;
        self.peers[peer].link = Link::Down;
        self.loss_settled(peer);
    }

    /// The connection is over. Who leaves a Primary in good order is Outdated from then on: not
    /// before, or the peer's disk would vouch for this one, and not after, or this one would for
    /// others.
    fn give_up(&mut self, peer: PeerIx, conn: ConnState, then: AfterLoss, outdate_self: bool) {
        let node = self.peers[peer].node;
        self.peers[peer].retry_at = None;
        let refused = self.peers[peer].hs.has_refused();
        let then = if refused { AfterLoss::StandAlone } else { then };
        if then == AfterLoss::StandAlone {
            self.peers[peer].hs.then = then;
        }
        if self.peers[peer].hs.losing {
            return;
        }
        let was_connected = self.st.is_connected(peer);
        let was_primary = was_connected && self.st.peers[peer].role == Role::Primary;
        let in_members = self.members.contains(node);
        let hs = &mut self.peers[peer].hs;
        hs.losing = true;
        hs.phase = Phase::Idle;
        hs.deadline = None;
        hs.then = then;
        self.peers[peer].pings = Pings::None;
        self.peers[peer].owes_ping_ack = false;
        self.end_legacy(peer);
        self.drop_jobs(|k| *k == JobKind::Connect(peer), StateError::NeedConnection);
        self.twopc_peer_lost(peer, was_primary && conn.is_ungraceful_loss());
        self.forget_claims(node);
        self.resync_lost_peer(peer);
        self.verify_lost_peer(peer);
        if was_connected {
            let text =
                format!("{}: connection to {} lost: {conn}", self.name, self.peers[peer].name);
            self.log(LogLevel::Warn, text);
        }
        self.peers[peer].loss = None;
        if was_connected {
            let silent = conn.is_ungraceful_loss();
            for (dev, st) in self.peers[peer].devs.iter_mut().zip(&self.st.peers[peer].devs) {
                // Left behind, it may not have heard of that.
                let unheard = dev.unfollowed && st.repl == ReplState::Ahead;
                dev.maybe_current = silent && (st.disk == DiskState::Inconsistent || unheard);
            }
        }
        self.change_hard(|st| {
            st.peers[peer].conn = conn;
            for vol in st.vols.iter_mut().filter(|v| outdate_self && v.disk > DiskState::Outdated) {
                vol.disk = DiskState::Outdated;
            }
        });
        // Whether reads that nobody else can serve are to wait is known only now.
        self.reads_lost_peer(peer);
        self.ping_settled(node);
        self.attach_peer_lost(node);
        for vol in 0..self.vols.len() {
            self.write_bitmap(vol);
        }
        if was_primary {
            for other in 0..self.peers.len() {
                let clean = self.is_clean(other);
                let has_data = (0..self.vols.len()).any(|v| {
                    let disk = self.st.peers[other].devs[v].disk;
                    self.vols[v].backing.is_some()
                        && disk >= DiskState::Inconsistent
                        && disk != DiskState::DUnknown
                });
                if other != peer && self.st.is_connected(other) && has_data {
                    let hs = &mut self.peers[other].hs;
                    hs.told_loss = None;
                    let reported = hs.their_loss.take().filter(|(lost, _)| *lost == node);
                    let reported = reported.map(|(_, dagtag)| dagtag);
                    self.peers[other].loss =
                        Some(PrimaryLoss { lost: node, reported, clean, settled: false });
                }
            }
        }
        self.fence_again(peer);
        self.settle_sent(peer);
        self.drain_receiver(peer);
        if was_primary {
            // Also when nothing was left to execute.
            self.work.push_back(Work::Reconcile(node));
        }
        if was_connected && conn.is_ungraceful_loss() && (in_members || was_primary) {
            self.work.push_back(Work::LostPeer);
        }
        self.resume_cleanups();
        self.kick_all();
    }

    fn close_link(&mut self, peer: PeerIx) {
        let node = self.peers[peer].node;
        if self.peers[peer].link != Link::Down {
            self.out.push_back(Output::CloseLink { peer: node });
            self.peers[peer].link = Link::Down;
        }
    }

    /// What was sent and is not confirmed: held while suspended, else given up, after a new
    /// generation if writes are in flight (L1, L2, L7).
    fn settle_sent(&mut self, peer: PeerIx) {
        for vol in 0..self.vols.len() {
            self.peers[peer].devs[vol].lost_at = self.presented(vol);
        }
        if self.holds_sent() {
            self.freeze_parts(peer);
            self.unconfirmed_peer_lost(self.peers[peer].node);
            // What waited for a handshake goes on.
            return self.advance_all();
        }
        self.peers[peer].hs.cleanup_waits = true;
        self.work.push_back(Work::LossCleanup(peer));
    }

    /// True if what was sent waits for the peer to come back: not after a forced demotion, when
    /// everything fails that is not done.
    fn holds_sent(&self) -> bool {
        self.st.susp.any() && !self.st.fail_io
    }

    /// Gives up what was sent, once no new generation is due.
    pub(crate) fn loss_cleanup(&mut self, peer: PeerIx) {
        if !self.peers[peer].hs.cleanup_waits {
            return;
        }
        let node = self.peers[peer].node;
        if self.holds_sent() {
            // Suspended meanwhile: what is held now stays held.
            self.peers[peer].hs.cleanup_waits = false;
            self.freeze_parts(peer);
            self.unconfirmed_peer_lost(node);
            return self.loss_settled(peer);
        }
        let mut waits = false;
        for vol in 0..self.vols.len() {
            // What is reported already, the peer may not have, or not have kept.
            let owed = self
                .log
                .iter()
                .any(|w| w.vol == vol && (!w.completed || !self.part_is_done(w, peer)));
            let quorate = self.st.vols[vol].quorum;
            let can = self.st.role == Role::Primary && quorate && self.has_data(&self.st, vol);
            if self.bump_blocks(vol) && owed && can && !self.fails_unfenced() {
                self.start_bump(vol);
                waits |= self.bump_blocks(vol);
            }
        }
        if waits {
            return;
        }
        self.peers[peer].hs.cleanup_waits = false;
        self.forget_parts(node, None);
        self.unconfirmed_peer_lost(node);
        self.advance_all();
        self.loss_settled(peer);
    }

    /// This node's data do not change by what others write: nor by what one wrote that is lost. Bits
    /// about that come first, so that a resync from here does not end without it.
    pub(crate) fn is_stable(&self) -> bool {
        let settled = |p: PeerIx| self.st.is_connected(p) || self.peers[p].recv.is_settled();
        self.st.stable() && (0..self.peers.len()).all(settled)
    }

    /// Tells the peers that were told otherwise.
    fn tell_stable(&mut self) {
        if !self.is_stable() {
            return;
        }
        for peer in 0..self.peers.len() {
            for vol in 0..self.vols.len() {
                let sent = self.peers[peer].devs[vol].sent_uuids.as_ref();
                let untold = sent.is_some_and(|s| !s.flags.has(UuidFlags::STABLE));
                if untold && self.st.is_connected(peer) && self.shown_backing(vol).is_some() {
                    self.send_uuids(peer, vol, UuidFlags::GOT_STABLE, NodeMask::EMPTY);
                }
            }
        }
    }

    /// Everything received from the lost peer is executed and settled.
    pub(crate) fn receiver_drained(&mut self, peer: PeerIx) {
        self.tell_stable();
        for vol in 0..self.vols.len() {
            self.review_primary_ind(vol);
        }
        let node = self.peers[peer].node;
        self.work.push_back(Work::Reconcile(node));
        for other in 0..self.peers.len() {
            for vol in 0..self.vols.len() {
                self.recompare_if_due(other, vol);
            }
            self.drop_settled_loss(other);
        }
        self.loss_settled(peer);
    }

    /// Both halves of a loss may be done: the connection can try again.
    pub(crate) fn loss_settled(&mut self, peer: PeerIx) {
        let hs = &self.peers[peer].hs;
        let closing = self.peers[peer].link == Link::Closing;
        if !hs.losing || hs.cleanup_waits || self.peers[peer].recv.draining || closing {
            return;
        }
        self.peers[peer].hs.losing = false;
        match self.peers[peer].hs.then {
            AfterLoss::StandAlone => {
                self.change_hard(|st| st.peers[peer].conn = ConnState::StandAlone);
            }
            AfterLoss::Reconnect => {
                self.change_hard(|st| st.peers[peer].conn = ConnState::Unconnected);
                self.peers[peer].retry_at = Some(self.now + Duration::from_millis(100));
            }
        }
    }

    /// Starts to connect.
    pub(crate) fn start_connecting(&mut self, peer: PeerIx) {
        self.peers[peer].retry_at = None;
        let node = self.peers[peer].node;
        self.change_hard(|st| st.peers[peer].conn = ConnState::Connecting);
        self.peers[peer].link = Link::Wanted;
        self.out.push_back(Output::Connect { peer: node });
    }

    /// Disconnects without the peer's agreement.
    pub(crate) fn disconnect_local(&mut self, peer: PeerIx) {
        if self.st.peers[peer].conn == ConnState::StandAlone {
            return;
        }
        self.lose(peer, ConnState::Disconnecting, AfterLoss::StandAlone);
        self.loss_settled(peer);
    }

    /// A planned disconnect is committed.
    pub(crate) fn apply_disconnect(
        &mut self,
        peer: PeerIx,
        initiator: bool,
        outdate_self: bool,
        outdate_peer: bool,
    ) {
        self.change_hard(|st| {
            for dev in &mut st.peers[peer].devs {
                if outdate_peer && dev.disk > DiskState::Outdated && dev.disk != DiskState::DUnknown
                {
                    dev.disk = DiskState::Outdated;
                }
            }
        });
        if initiator {
            self.part(peer, outdate_self);
        } else {
            self.close_link(peer);
            self.give_up(peer, ConnState::TearDown, AfterLoss::Reconnect, outdate_self);
        }
        if outdate_peer {
            // Known to have left in good order: stays Outdated instead of unknown.
            self.change_hard(|st| {
                for dev in &mut st.peers[peer].devs {
                    if dev.disk == DiskState::DUnknown {
                        dev.disk = DiskState::Outdated;
                    }
                }
            });
        }
    }

    // --- reconciliation after the loss of a Primary (semantics §4.12) ----------------------

    /// This node's side of a lost Primary is settled: tell the other survivors how much of its
    /// write stream arrived here.
    pub(crate) fn reconcile(&mut self, lost: NodeId) {
        let Some(gone) = self.peer_ix(lost) else { return };
        if self.peers[gone].recv.draining || self.st.is_connected(gone) {
            return;
        }
        let dagtag = self.peers[gone].recv.last_dagtag;
        for peer in 0..self.peers.len() {
            let owed = self.peers[peer].loss.is_some_and(|l| l.lost == lost);
            if !owed || !self.st.is_connected(peer) || self.told(peer, lost).is_some() {
                continue;
            }
            self.peers[peer].hs.told_loss = Some((lost, dagtag));
            for vol in 0..self.vols.len() {
                if let Some(backing) = &self.vols[vol].backing {
                    let (nr, current) = (self.vols[vol].nr, backing.gens.current());
                    self.send(peer, Packet::CurrentUuid(nr, current, NodeMask::EMPTY));
                }
            }
            let packet = wire::PeerDagtag { dagtag, node_id: u32::from(lost.get()) };
            self.send(peer, Packet::PeerDagtag(packet));
            if let Some(reported) = self.peers[peer].loss.and_then(|l| l.reported) {
                self.work.push_back(Work::PeerDagtag(peer, reported, lost));
            }
        }
        self.hold_released();
    }

    /// P_PEER_DAGTAG: a survivor has that much of a lost Primary's stream. If this node still
    /// sees the Primary, a ping decides whether it is lost here too.
    pub(crate) fn peer_dagtag(
        &mut self,
        peer: PeerIx,
        packet: wire::PeerDagtag,
    ) -> Result<(), &'static str> {
        let node = u8::try_from(packet.node_id).ok().and_then(NodeId::new);
        let node = node.ok_or("a dagtag names an impossible node")?;
        check_position(packet.dagtag)?;
        if !self.st.is_connected(peer) {
            self.peers[peer].hs.peer_named = Some((node, packet.dagtag));
            return Ok(());
        }
        let Some(gone) = self.peer_ix(node) else { return Ok(()) };
        let work = Work::PeerDagtag(peer, packet.dagtag, node);
        if self.st.is_connected(gone) {
            self.peers[peer].hs.their_loss = Some((node, packet.dagtag));
            self.ping_some(node.mask(), work);
        } else {
            self.work.push_back(work);
        }
        Ok(())
    }

    /// Both survivors have settled their side: who has more is the source.
    pub(crate) fn peer_dagtag_checked(&mut self, peer: PeerIx, theirs: Dagtag, lost: NodeId) {
        let Some(gone) = self.peer_ix(lost) else { return };
        if !self.st.is_connected(peer) {
            return;
        }
        if self.st.is_connected(gone) {
            // Nothing to settle, unless this node loses it before the peer finds it again.
            self.peers[peer].hs.their_loss = Some((lost, theirs));
            return;
        }
        let Some(mine) = self.told(peer, lost) else {
            // This node's side is not settled yet; it comes back from `reconcile`.
            let clean = self.peers[peer].loss.map_or_else(|| self.is_clean(peer), |l| l.clean);
            self.peers[peer].loss =
                Some(PrimaryLoss { lost, reported: Some(theirs), clean, settled: false });
            self.work.push_back(Work::Reconcile(lost));
            return;
        };
        let clean = self.peers[peer].loss.take().is_some_and(|l| l.clean);
        // A verify can be repeated. It must not stand in the way of what sets the two apart.
        self.change_hard(|st| {
            for dev in &mut st.peers[peer].devs {
                if matches!(dev.repl, ReplState::VerifyS | ReplState::VerifyT) {
                    dev.repl = ReplState::Established;
                }
            }
        });
        let eligible = (0..self.vols.len()).all(|vol| {
            let disk = self.st.vols[vol].disk;
            let no_disk = self.vols[vol].backing.is_none();
            let fits = matches!(disk, DiskState::Consistent | DiskState::UpToDate) || no_disk;
            fits && self.repl(peer, vol) <= ReplState::Established
        });
        if eligible {
            // By what the two have told each other, or they would not come to the same result:
            // this node may have caught up with a third one since.
            self.reconcile_with(peer, mine, theirs, clean);
        }
        self.hold_released();
    }

    /// No block of any volume is counted as out of sync towards the peer.
    fn is_clean(&self, peer: PeerIx) -> bool {
        (0..self.vols.len()).all(|vol| self.out_of_sync(peer, vol).0 == 0)
    }

    /// How much of the stream of a Primary that the peer has lost it says that it has.
    pub(crate) fn reported_position(&self, peer: PeerIx, lost: NodeId) -> Dagtag {
        let reported = self.peers[peer].hs.their_loss.filter(|(node, _)| *node == lost);
        reported.map_or(Dagtag(0), |(_, dagtag)| dagtag)
    }

    /// What this peer was told about a lost Primary.
    fn told(&self, peer: PeerIx, lost: NodeId) -> Option<Dagtag> {
        let told = self.peers[peer].hs.told_loss.filter(|(node, _)| *node == lost);
        told.map(|(_, dagtag)| dagtag)
    }

    /// The peer is UpToDate, and its data can not change: it has not lost the Primary that this
    /// node lost, or has settled that. Nothing is to be reconciled with it.
    pub(crate) fn discharge_loss(&mut self, peer: PeerIx, vol: usize) {
        let up_to_date = self.st.peers[peer].devs[vol].disk == DiskState::UpToDate;
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        let stable = uuids.is_some_and(|u| u.flags.has(UuidFlags::STABLE));
        if up_to_date && stable {
            if let Some(loss) = &mut self.peers[peer].loss {
                loss.settled = true;
            }
            self.drop_settled_loss(peer);
        }
    }

    /// What was received from the lost Primary is executed first. The peer says only once that it
    /// owes nothing.
    fn drop_settled_loss(&mut self, peer: PeerIx) {
        let draining = self.peers.iter().any(|p| p.recv.draining);
        if !draining && self.peers[peer].loss.take_if(|l| l.settled).is_some() {
            self.hold_released();
            for vol in 0..self.vols.len() {
                self.ask_recompare(peer, vol);
            }
        }
    }

    fn reconcile_with(&mut self, peer: PeerIx, mine: Dagtag, theirs: Dagtag, clean: bool) {
        let node = self.peers[peer].node;
        let vols: Vec<usize> = (0..self.vols.len())
            .filter(|v| {
                let disk = self.st.peers[peer].devs[*v].disk;
                self.vols[*v].backing.is_some()
                    && disk >= DiskState::Inconsistent
                    && disk != DiskState::DUnknown
            })
            .collect();
        // A generation that only one of them saw start decides before the position does.
        let by_uuid: Vec<Option<ReplState>> = vols
            .iter()
            .map(|vol| match self.compare(peer, *vol, false) {
                Decided::Start(s) if s.repl != ReplState::Established => Some(s.repl),
                _ => None,
            })
            .collect();
        let unanimous = by_uuid.first().copied().flatten();
        let repl = match unanimous {
            Some(repl) if by_uuid.iter().all(|r| *r == Some(repl)) => repl,
            _ if mine > theirs => ReplState::WFBitMapS,
            _ if mine < theirs => ReplState::WFBitMapT,
            _ => ReplState::Established,
        };
        if repl == ReplState::Established {
            for vol in vols.into_iter().filter(|_| clean) {
                let backing = self.vols[vol].backing.as_mut().expect("filtered above");
                if let Some(slot) = backing.slot_of(node) {
                    backing.bitmap.clear_all(slot);
                }
                self.write_bitmap(vol);
            }
            return;
        }
        let text = format!(
            "{}: after the loss of a Primary {} has {} of its last writes; resync",
            self.name,
            self.peers[peer].name,
            if repl == ReplState::WFBitMapS { "fewer" } else { "more" },
        );
        self.log(LogLevel::Info, text);
        if repl == ReplState::WFBitMapT {
            // Afterwards this node has what the source has.
            for other in 0..self.peers.len() {
                let recv = &mut self.peers[other].recv;
                if !self.st.is_connected(other) && recv.last_dagtag == mine {
                    recv.last_dagtag = theirs;
                }
            }
        }
        self.change_hard(|st| {
            for vol in vols {
                st.peers[peer].devs[vol].repl = repl;
            }
        });
    }

    /// A Primary's last writes are still being settled: a Consistent disk may not become
    /// UpToDate, nobody is promoted (the reconcile hold).
    pub(crate) fn loss_settling(&self) -> bool {
        let resyncing = (0..self.vols.len()).any(|v| {
            self.st.vols[v].disk == DiskState::Consistent
                && self.st.connected().any(|p| self.repl(p, v).is_source())
        });
        self.loss_pending() || resyncing
    }

    /// The same, but for resyncs that have begun.
    pub(crate) fn loss_pending(&self) -> bool {
        let pending = self.st.connected().any(|p| self.peers[p].loss.is_some());
        pending || self.peers.iter().any(|p| p.recv.draining)
    }

    /// The hold may be over: settle what the disks are now.
    pub(crate) fn hold_released(&mut self) {
        let consistent = self.st.vols.iter().any(|v| v.disk == DiskState::Consistent);
        if consistent && !self.loss_settling() {
            self.work.push_back(Work::LostPeer);
        }
        if !self.loss_pending() {
            // A neighbour may vouch for this disk (A5).
            self.change_hard(|_| {});
        }
    }

    /// Wants the lost-peer transaction (semantics §2.9).
    pub(crate) fn want_lost_peer(&mut self) {
        if !self.wants(&JobKind::LostPeer) {
            self.want(JobKind::LostPeer, None);
        }
    }

    /// No capable Primary is out there: what is Consistent is the newest data.
    ///
    /// A disk that stopped under writes takes this from a transaction of its own only, and not at
    /// once: one that did not stop comes first, and of several such disks one becomes the source of
    /// the others.
    pub(crate) fn become_up_to_date(&mut self, own: bool) {
        let settling = self.loss_settling();
        let mut vols = Vec::new();
        for vol in 0..self.vols.len() {
            let Some(backing) = &self.vols[vol].backing else { continue };
            let other_generation = self.st.connected().any(|p| {
                let dev = &self.st.peers[p].devs[vol];
                let current = self.peers[p].devs[vol].uuids.as_ref().map(|u| u.current);
                self.st.peers[p].role == Role::Primary
                    && dev.disk < DiskState::Negotiating
                    && current.is_some_and(|c: GenUuid| {
                        is_generation(c) && !c.same(backing.gens.current())
                    })
            });
            // A Primary that was thought lost is back, or another survivor has settled with it: what
            // that counts as missing here is asked for first (see `want_catch_up`).
            let owed = self.is_owed(&self.st, vol);
            let old = self.is_own_overtaken(vol);
            let in_turn = own && self.has_waited_unclean(vol);
            let lacking = self.may_lack_writes(vol) || !in_turn && self.unclean_towards_peers(vol);
            let doubtful = settling || owed || old || lacking || self.is_unproven(vol);
            let consistent = self.st.vols[vol].disk == DiskState::Consistent;
            let newest = own && self.is_newest_of_all(vol);
            if newest || consistent && !other_generation && !doubtful {
                vols.push(vol);
            }
        }
        if !vols.is_empty() {
            self.change_hard(|st| {
                for vol in vols {
                    st.vols[vol].disk = DiskState::UpToDate;
                }
            });
        }
    }

    /// A Primary with its data back makes sure that far members know before it writes again
    /// (semantics §2.9). True if nothing is left to do.
    pub(crate) fn primary_resume_done(&mut self) -> bool {
        let direct = self.st.connected_mask().with(self.me);
        if self.st.role != Role::Primary || self.members.minus(direct).is_empty() {
            return true;
        }
        if !self.wants(&JobKind::PrimaryResume) {
            self.want(JobKind::PrimaryResume, None);
        }
        false
    }

    /// Far members have outdated themselves.
    pub(crate) fn primary_resumed(&mut self) {
        self.members = self.members.and(self.st.connected_mask().with(self.me));
        self.work.push_back(Work::Resume);
    }

    /// A peer connected: whatever was to be reconciled with it is settled by the handshake. If it
    /// is the lost Primary itself, others that have not lost it will never answer.
    pub(crate) fn reconcile_pending(&mut self, peer: PeerIx) {
        self.peers[peer].loss = None;
        self.peers[peer].hs.told_loss = None;
        let node = self.peers[peer].node;
        for other in self.peers.iter_mut().filter(|p| p.loss.is_some_and(|l| l.lost == node)) {
            other.loss = None;
        }
        self.hold_released();
    }

    /// A Primary connected with which positions may start over.
    pub(crate) fn note_missing_peer_generation(&mut self, peer: PeerIx, vol: usize) {
        // A target learns about third nodes from the peer's identifiers.
        self.learn_from(peer, vol);
    }

    /// Whose disk an operation is on. `None` where nobody waits for it any more.
    pub(crate) fn volume_of(&self, op: Op) -> Option<VolIx> {
        match op {
            Op::Write(seq) => self.log.get(seq).map(|w| w.vol),
            Op::Read(key) => self.reads.get(key).map(|r| r.vol),
            Op::PeerWrite(key) => self.peer_writes.get(key).map(|w| w.vol),
            Op::PeerRead(key) => self.peer_reads.get(key).map(|r| r.vol),
            Op::Serve(key) => self.serves.get(key).map(|s| s.vol),
            Op::EpochFlush(_, vol)
            | Op::ConfirmFlush(_, vol)
            | Op::DemotionFlush(vol)
            | Op::ZeroLeft(vol)
            | Op::ResyncWrite(_, vol, _)
            | Op::ResyncDigest(_, vol, _)
            | Op::ResyncFlush(_, vol)
            | Op::VerifyDigest(_, vol, _)
            | Op::Meta(vol)
            | Op::Abandoned(vol, _) => Some(vol),
        }
    }

    /// The disk is read or written for someone right now.
    pub(crate) fn disk_busy(&self, vol: usize) -> bool {
        let writes = self
            .log
            .iter()
            .any(|w| w.vol == vol && matches!(w.local, Local::Pending | Local::Again));
        let data = |op: Op| !matches!(op, Op::Meta(_)) && self.volume_of(op) == Some(vol);
        let ops = self.ops.iter().any(|(_, running)| data(running.op));
        writes || ops
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer_uuids::PeerUuids;
    use crate::testing::attached;
    use codec::disk::MdFlags;
    use vocab::options::ResourceOptions;

    /// A transaction that finds no capable Primary: the one that the neighbour hears has no data
    /// of another volume.
    #[test]
    fn what_a_neighbour_counts_as_missing_is_missing_though_its_data_still_change() {
        let generation = GenUuid(0x10);
        let ends = |dirty_bits: u64| {
            let mut resource = attached(ResourceOptions::default(), |sb| {
                sb.current_uuid = generation;
                sb.flags = sb.flags.with(MdFlags::CONSISTENT).with(MdFlags::WAS_UP_TO_DATE);
            });
            resource.st.vols[0].disk = DiskState::Consistent;
            resource.st.peers[0].conn = ConnState::Connected;
            resource.st.peers[0].devs[0].repl = ReplState::Established;
            resource.st.peers[0].devs[0].disk = DiskState::UpToDate;
            let mut uuids = PeerUuids::diskless(generation);
            uuids.dirty_bits = dirty_bits;
            uuids.node_mask = NodeId::new(2).expect("a node id").mask();
            resource.peers[0].devs[0].uuids = Some(uuids);
            resource.become_up_to_date(true);
            resource.st.vols[0].disk
        };
        assert_eq!(ends(0), DiskState::UpToDate);
        assert_eq!(ends(1), DiskState::Consistent);
    }
}
