//! Comparing generations with a peer: gathers both sides for [`crate::generation`] and carries
//! out what it decided.

use codec::wire::UuidFlags;
use serde::{Deserialize, Serialize};
use vocab::options::{OnSuspendedPrimaryOutdated, Quorum};
use vocab::{ConnState, DiskState, GenUuid, HandlerEvent, NodeMask, ReplState, Role};

use crate::generation::compare::{Context, Occasion, Rule, Side};
use crate::generation::resolve::{
    Bits, Handler, Local, Outcome, Policies, Preparation, Refused, RetryReason, resolve,
};
use crate::generation::{HISTORY, is_generation};
use crate::io::LogLevel;
use crate::jobs::JobKind;
use crate::resource::{Resource, Work};
use crate::state::{PeerIx, VolIx};

/// What a volume starts with on a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Decided {
    Start(Start),
    Retry,
    Refuse(String),
}

/// The start of a volume on a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    pub repl: ReplState,
    /// The own disk gets this state.
    pub own_disk: Option<DiskState>,
    /// The peer's disk is shown at most as that.
    pub peer_disk_at_most: Option<DiskState>,
    /// Bits and slots to change first.
    pub preparations: Vec<Preparation>,
    /// Left-over bits towards the peer are dropped.
    pub clear_bits: bool,
    /// A diskless node takes the peer's generation as the one it has seen.
    pub adopt_exposed: bool,
}

impl Default for Start {
    fn default() -> Start {
        Start {
            repl: ReplState::Established,
            own_disk: None,
            peer_disk_at_most: None,
            preparations: Vec::new(),
            clear_bits: false,
            adopt_exposed: false,
        }
    }
}

impl Decided {
    /// Nothing to do.
    pub(crate) fn none() -> Decided {
        Decided::Start(Start::default())
    }

    pub(crate) fn peer_disk(limit: DiskState) -> Decided {
        Decided::Start(Start { peer_disk_at_most: Some(limit), ..Start::default() })
    }

    pub(crate) fn adopt_exposed() -> Decided {
        Decided::Start(Start { adopt_exposed: true, ..Start::default() })
    }

    pub(crate) fn own_up_to_date() -> Decided {
        Decided::Start(Start { own_disk: Some(DiskState::UpToDate), ..Start::default() })
    }

    /// The own data is older than what a diskless node has seen.
    pub(crate) fn own_outdated() -> Decided {
        Decided::Start(Start { own_disk: Some(DiskState::Outdated), ..Start::default() })
    }
}

impl Resource {
    /// Compares generations with a peer that has a disk.
    pub(crate) fn compare(&mut self, peer: PeerIx, vol: VolIx, connecting: bool) -> Decided {
        let (Some(me), Some(them)) = (self.own_side(peer, vol), self.peer_side(peer, vol)) else {
            return Decided::Retry;
        };
        if connecting && self.is_left_behind(peer, vol) {
            return Decided::Retry;
        }
        let occasion = match connecting {
            true => Occasion::Connecting,
            false if self.st.vols[vol].disk == DiskState::Negotiating || them.attaching => {
                Occasion::Attaching
            }
            false => Occasion::Reconsidering,
        };
        let p = &self.peers[peer];
        let context = Context {
            agreed: p.agreed_version,
            features: p.agreed_features,
            protocol: p.net.protocol,
            tie_break: p.tie_break,
            occasion,
            own_changed: connecting && self.sent_changed(peer, vol),
        };
        let backing = self.vols[vol].backing.as_ref().expect("own_side checked it");
        let used = vocab::NodeId::all().filter(|n| backing.slot_of(*n).is_some()).count();
        let local = Local {
            unallocated_slot: used < backing.bitmap.slots(),
            syncing_elsewhere: (0..self.peers.len())
                .any(|q| q != peer && self.repl(q, vol).is_target()),
            worn: backing.gens.worn(),
        };
        // Bits that count from an earlier generation were about what the peer missed of this one,
        // and it holds it now. Others are about differences within the generation.
        let caught_up =
            me.current.same(them.current) && is_generation(me.bitmap[them.node.index()]);
        let policies = Policies::new(&p.net, self.opts.quorum != Quorum::Off, false);
        let resolution = resolve(&context, &policies, &local, &me, &them);
        let text = format!(
            "{}/{}: generations compared with {}: {:?} by rule {:?}",
            self.name,
            self.vols[vol].nr,
            self.peers[peer].name,
            resolution.outcome,
            resolution.verdict.rule,
        );
        self.log(LogLevel::Info, text);
        if resolution.verdict.rule == Rule::NeverBegunPeer || resolution.peer_had_no_quorum {
            // Nobody who names it later is ahead of this disk. Known at once: the peer may be a
            // Primary that can not connect before it is demoted.
            let backing = self.vols[vol].backing.as_mut().expect("own_side checked it");
            if backing.gens.push(them.current) {
                self.md_changed(vol);
            }
        }
        if occasion != Occasion::Reconsidering {
            for handler in &resolution.handlers {
                let event = match handler {
                    Handler::InitialSplitBrain => HandlerEvent::InitialSplitBrain,
                    Handler::SplitBrain => HandlerEvent::SplitBrain,
                    Handler::PriLost => HandlerEvent::PriLost,
                };
                self.notify(event, Some(peer), Some(vol));
            }
        }
        match resolution.outcome {
            Outcome::Target { demote_first: true, .. } => self.give_in(peer, vol),
            Outcome::Refuse(Refused::PrimaryWouldBeTarget)
            | Outcome::Retry(RetryReason::PrimaryWouldBeTarget)
                if connecting && self.yield_to_newer_data() =>
            {
                Decided::Retry
            }
            Outcome::Refuse(why) => Decided::Refuse(why.text().to_owned()),
            Outcome::Tentative(_) => Decided::Refuse("only asked for".to_owned()),
            Outcome::Retry(reason) => {
                if reason == RetryReason::MissedEnd {
                    self.prepare(vol, &resolution.preparations);
                    self.md_changed_now(vol);
                }
                Decided::Retry
            }
            outcome => Decided::Start(Start {
                repl: outcome.repl_state().unwrap_or(ReplState::Established),
                // A disk that is not current may have missed writes of the same generation: the
                // bits tell which, until it has caught up.
                clear_bits: (outcome == Outcome::NoSync(Bits::Clear)
                    || outcome == Outcome::NoSync(Bits::Keep) && !connecting && caught_up)
                    && !self.lacks_reported(peer, vol)
                    && me.disk >= DiskState::UpToDate
                    && them.disk >= DiskState::UpToDate,
                preparations: resolution.preparations,
                ..Start::default()
            }),
        }
    }

    /// This Primary is to give up its data after a split brain (`call-pri-lost-after-sb`). It does if
    /// nobody uses it: as a Secondary that discards its data, so that the next handshake comes to
    /// the same end.
    fn give_in(&mut self, peer: PeerIx, vol: VolIx) -> Decided {
        let idle = self.is_drained() && self.tentative(|st| st.role = Role::Secondary).is_ok();
        if idle {
            let text = format!(
                "{}: demoted, and its data given up for those of {} after a split brain",
                self.name, self.peers[peer].name
            );
            self.log(LogLevel::Warn, text);
            self.change_hard(|st| st.role = Role::Secondary);
            self.peers[peer].discard_my_data = true;
            return Decided::Retry;
        }
        self.notify(HandlerEvent::PriLostAfterSb, Some(peer), Some(vol));
        self.notify(HandlerEvent::SplitBrain, Some(peer), Some(vol));
        Decided::Refuse(Refused::SplitBrain.text().to_owned())
    }

    /// A Primary that does not write because it lost its quorum, its data, or a peer that is not
    /// fenced.
    pub(crate) fn is_frozen(&self) -> bool {
        let susp = &self.st.susp;
        self.st.role == Role::Primary && (susp.quorum || susp.no_data || susp.fencing)
    }

    /// A Primary that does not write, whether what its users want waits or fails.
    pub(crate) fn is_stopped(&self, vol: VolIx) -> bool {
        self.is_frozen() || self.st.role == Role::Primary && !self.st.vols[vol].quorum
    }

    /// A peer has newer data than this frozen Primary: nothing that waits here can ever be
    /// completed. With on-suspended-primary-outdated=force-secondary it fails, and the node
    /// becomes Secondary; once it is, the peer can bring it up to date. True if so.
    pub(crate) fn yield_to_newer_data(&mut self) -> bool {
        let force = OnSuspendedPrimaryOutdated::ForceSecondary;
        let yields = self.is_frozen() && self.opts.on_suspended_primary_outdated == force;
        let demotion = JobKind::Secondary { force: true };
        if yields && !self.wants(&demotion) {
            let text = format!("{}: a peer has newer data than this frozen Primary", self.name);
            self.log(LogLevel::Error, text);
            self.want(demotion, None);
        }
        yields
    }

    fn own_side(&self, peer: PeerIx, vol: VolIx) -> Option<Side> {
        let backing = self.vols[vol].backing.as_ref()?;
        let attaching = self.st.vols[vol].disk == DiskState::Negotiating;
        // As the peer judges it: both ends have to come to the same result.
        let disk = match self.st.vols[vol].disk {
            DiskState::Negotiating if !backing.md_consistent() => DiskState::Inconsistent,
            DiskState::Negotiating => DiskState::Consistent,
            disk => disk,
        };
        let mixture = !self.st.is_connected(peer) && self.shown_as_inconsistent(peer);
        let disk = if mixture { DiskState::Inconsistent } else { disk };
        let node = self.peers[peer].node;
        let gens = self.vols[vol].shown_generations()?;
        let mut side = Side::from_generations(self.me, gens, disk, self.st.role);
        if self.peers[peer].legacy.is_some() {
            side.history = [GenUuid::NONE; HISTORY];
            side.history[..2].copy_from_slice(&self.legacy_past(peer, gens));
        }
        let sent = self.peers[peer].devs[vol].sent_uuids.as_ref()?;
        side.attaching = attaching;
        side.flags = sent.flags;
        side.dirty_blocks = sent.dirty_bits;
        if self.st.is_connected(peer) {
            side.dirty_blocks = backing.oos(node);
        }
        side.quorate = self.st.vols[vol].quorum;
        side.lost_cache = disk >= DiskState::Inconsistent
            && !attaching
            && self.vols[vol].has_lost_cache()
            && self.is_ours(peer);
        side.lost_primary = self.peers[peer].hs.named;
        side.slots =
            vocab::NodeId::all().filter(|n| backing.slot_of(*n).is_some()).collect::<NodeMask>();
        Some(side)
    }

    fn peer_side(&self, peer: PeerIx, vol: VolIx) -> Option<Side> {
        let dev = &self.peers[peer].devs[vol];
        let uuids = dev.uuids.as_ref()?;
        let connected = self.st.is_connected(peer);
        let word = dev.last_word?;
        let (disk, role) = match connected {
            true => (self.st.peers[peer].devs[vol].disk, self.st.peers[peer].role),
            false => (self.real_peer_disk(peer, vol, word), word.role().unwrap_or(Role::Secondary)),
        };
        let attaching =
            disk == DiskState::Negotiating || word.disk() == Some(DiskState::Negotiating);
        let disk = match disk {
            DiskState::Negotiating => self.real_peer_disk(peer, vol, word),
            disk => disk,
        };
        let mut history = [GenUuid::NONE; HISTORY];
        for (slot, uuid) in history.iter_mut().zip(&uuids.history) {
            *slot = *uuid;
        }
        Some(Side {
            node: self.peers[peer].node,
            current: uuids.current,
            bitmap: *uuids.bitmap,
            history,
            flags: uuids.flags,
            dirty_blocks: uuids.dirty_bits,
            disk,
            attaching,
            role,
            quorate: word.quorum(),
            slots: NodeMask::ALL,
            lost_cache: !attaching && disk >= DiskState::Inconsistent && word.lost_cache(),
            lost_primary: self.peers[peer].hs.peer_named,
        })
    }

    /// Carries out what a connection starts with, before its states change.
    pub(crate) fn prepare_start(&mut self, peer: PeerIx, vol: VolIx, start: &Start) {
        self.prepare(vol, &start.preparations);
        let node = self.peers[peer].node;
        if start.adopt_exposed {
            if let Some(uuids) = &self.peers[peer].devs[vol].uuids {
                if is_generation(uuids.current) {
                    self.vols[vol].expose(uuids.current);
                }
            }
        }
        if self.vols[vol].backing.is_none() && !is_generation(self.vols[vol].exposed) {
            if let Some(uuids) = &self.peers[peer].devs[vol].uuids {
                self.vols[vol].expose(uuids.current);
            }
        }
        // While the last writes of a lost Primary are not settled with the peer, the bits are
        // all that tells what one of them may lack.
        if start.clear_bits && !self.vols[vol].crashed_secondary && self.peers[peer].loss.is_none()
        {
            if let Some(backing) = self.vols[vol].backing.as_mut() {
                backing.gens.set_bitmap(node, GenUuid::NONE);
                if let Some(slot) = backing.slot_of(node) {
                    backing.bitmap.clear_all(slot);
                }
                self.write_bitmap(vol);
                self.md_changed_now(vol);
            }
            // The peer has come to the same conclusion.
            if let Some(uuids) = &mut self.peers[peer].devs[vol].uuids {
                uuids.dirty_bits = 0;
            }
        }
    }

    fn prepare(&mut self, vol: VolIx, preparations: &[Preparation]) {
        let Some(backing) = self.vols[vol].backing.as_mut() else { return };
        let free_slot = (0..backing.bitmap.slots()).find(|s| backing.node_of_slot(*s).is_none());
        for preparation in preparations {
            match *preparation {
                Preparation::SetAll(node) => {
                    if let Some(slot) = backing.slot_of(node) {
                        backing.set_all(slot);
                    }
                }
                Preparation::SetAllSlots => {
                    for slot in 0..backing.bitmap.slots() {
                        backing.set_all(slot);
                    }
                }
                Preparation::MergeSlot { from, to } => {
                    if let Some(to) = backing.slot_of(to) {
                        match backing.slot_of(from) {
                            Some(from) => backing.merge_slot(from, to),
                            None => {
                                backing.set_all(to);
                            }
                        }
                    }
                }
                Preparation::MergeUnallocated(node) => {
                    if let Some(to) = backing.slot_of(node) {
                        match free_slot {
                            Some(from) => backing.merge_slot(from, to),
                            None => {
                                backing.set_all(to);
                            }
                        }
                    }
                }
                Preparation::SetBitmapUuid(node, uuid) => {
                    backing.gens.set_bitmap(node, uuid);
                }
            }
        }
        if !preparations.is_empty() {
            self.write_bitmap(vol);
            self.md_changed_now(vol);
        }
    }

    /// The peer's disk has become UpToDate by a resync from somewhere else, and is at this node's
    /// generation now. Bits that recorded what it missed before are of no use any more.
    pub(crate) fn drop_artefacts(&mut self, peer: PeerIx, vol: VolIx) {
        let node = self.peers[peer].node;
        let Some(backing) = &self.vols[vol].backing else { return };
        let same = self.peers[peer].devs[vol]
            .uuids
            .as_ref()
            .is_some_and(|u| u.current.same(backing.gens.current()));
        let up_to_date = self.st.vols[vol].disk == DiskState::UpToDate
            && self.st.peers[peer].devs[vol].disk == DiskState::UpToDate;
        if !same || !up_to_date || backing.oos(node) == 0 || self.peers[peer].loss.is_some() {
            return;
        }
        if self.repl(peer, vol) != ReplState::Established {
            return;
        }
        match self.compare(peer, vol, false) {
            Decided::Start(start) if start.clear_bits => self.prepare_start(peer, vol, &start),
            _ => {}
        }
    }

    /// On an established connection: compare again and start what is owed.
    pub(crate) fn recompare(&mut self, peer: PeerIx, vol: VolIx) {
        let dev = self.st.peers[peer].devs[vol];
        let with_disk = self.vols[vol].backing.is_some()
            && self.st.vols[vol].disk >= DiskState::Inconsistent
            && dev.disk >= DiskState::Inconsistent
            && dev.disk != DiskState::DUnknown;
        if self.st.peers[peer].conn != ConnState::Connected || !with_disk {
            return;
        }
        // What was received from a lost Primary is executed before anything is decided on it
        // (semantics §8.6 L10).
        let draining = self.peers.iter().any(|p| p.recv.draining);
        if dev.repl != ReplState::Established || draining {
            self.peers[peer].devs[vol].resync_again = true;
            return;
        }
        match self.compare(peer, vol, false) {
            Decided::Start(start) if start.repl != ReplState::Established => {
                self.peers[peer].devs[vol].recompared = true;
                self.prepare_start(peer, vol, &start);
                self.change_hard(|st| st.peers[peer].devs[vol].repl = start.repl);
            }
            Decided::Start(start) => {
                // What the loss of a Primary has left as bits, its reconciliation depends on.
                let clear_bits = start.clear_bits && !self.loss_settling();
                self.prepare_start(peer, vol, &Start { clear_bits, ..start });
            }
            Decided::Retry | Decided::Refuse(_) => {}
        }
    }

    /// A comparison was asked for at the wrong time.
    pub(crate) fn recompare_if_due(&mut self, peer: PeerIx, vol: VolIx) {
        let quiet = self.repl(peer, vol) == ReplState::Established;
        if quiet && std::mem::take(&mut self.peers[peer].devs[vol].resync_again) {
            self.ask_recompare(peer, vol);
        }
    }

    /// New identifiers of a peer with which a resync has just been begun outside of a handshake:
    /// each end compared for itself, and one of them by identifiers that were about to change.
    pub(crate) fn review_resync_start(&mut self, peer: PeerIx, vol: VolIx) {
        let repl = self.repl(peer, vol);
        let exchanging = matches!(repl, ReplState::WFBitMapS | ReplState::WFBitMapT);
        if !exchanging || !self.peers[peer].devs[vol].recompared {
            return;
        }
        match self.compare(peer, vol, false) {
            Decided::Start(start) if start.repl == repl => {}
            // Writes since are recorded as missing on one side only. That side is no simple equal
            // any more, and only a handshake can tell which it is.
            _ => self.disagree(peer, "has moved on since a resync was begun"),
        }
    }

    /// The peer has begun a resync that this node has not: it compared first. If this node comes
    /// to the same result it follows, else the peer gets the identifiers that it lacked.
    pub(crate) fn follow_resync(&mut self, peer: PeerIx, vol: VolIx, theirs: ReplState) {
        let with_disk = self.st.vols[vol].disk >= DiskState::Inconsistent;
        let draining = self.peers.iter().any(|p| p.recv.draining);
        if !with_disk || draining || self.repl(peer, vol) != ReplState::Established {
            return;
        }
        let mine = match theirs {
            ReplState::WFBitMapS => ReplState::WFBitMapT,
            ReplState::WFBitMapT => ReplState::WFBitMapS,
            _ => return,
        };
        match self.compare(peer, vol, false) {
            Decided::Start(start) if start.repl == mine => {
                self.peers[peer].devs[vol].recompared = true;
                self.prepare_start(peer, vol, &start);
                self.change_hard(|st| st.peers[peer].devs[vol].repl = mine);
            }
            _ => self.send_uuids(peer, vol, UuidFlags::default(), NodeMask::EMPTY),
        }
    }

    /// A kernel node is about to be promoted by force while neither disk is usable. It names its
    /// new generation without asking anybody to compare: both ends do so by themselves, when they
    /// next hear of the other's state (seen with 9.3.3). An Ashlar node asks, and for one of protocol 8
    /// its identifiers do.
    pub(crate) fn note_forced(&mut self, peer: PeerIx) {
        if self.is_ours(peer) || self.peers[peer].legacy.is_some() {
            return;
        }
        for vol in 0..self.vols.len() {
            let both = [self.st.vols[vol].disk, self.st.peers[peer].devs[vol].disk];
            self.peers[peer].devs[vol].forced = both == [DiskState::Inconsistent; 2];
        }
    }

    /// This node is about to be promoted by force: where its disk is not usable, a kernel node with
    /// an unusable disk compares at the next state that it gets.
    pub(crate) fn hold_forced_states(&mut self) {
        for (vol, st) in self.vols.iter_mut().zip(&self.st.vols) {
            vol.forcing = st.disk == DiskState::Inconsistent;
        }
    }

    /// States of a peer that was forced to be UpToDate have come, after its new generation.
    pub(crate) fn compare_forced(&mut self, peer: PeerIx, vol: VolIx) {
        let dev = &mut self.peers[peer].devs[vol];
        let named = dev.uuids.as_ref().is_some_and(|u| is_generation(u.current));
        if dev.forced && named {
            dev.forced = false;
            self.work.push_back(Work::Recompare(peer, vol));
        }
    }

    /// Asks a peer to compare again.
    pub(crate) fn ask_recompare(&mut self, peer: PeerIx, vol: VolIx) {
        self.send_uuids(peer, vol, UuidFlags::RESYNC, NodeMask::EMPTY);
        self.work.push_back(Work::Recompare(peer, vol));
    }
}
