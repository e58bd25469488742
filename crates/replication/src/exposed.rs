//! The generation that the users of a node without a current disk of its own work with, and how a
//! Primary there starts a new one (semantics §4.3, §4.9).
//!
//! Such a Primary has nothing to make a generation durable on. It *proposes* one to its peers, and
//! works on in the generation before it, the *exposed* one, until a disk is known to have the new
//! one. Until then no write is completed. So every disk that holds the exposed generation holds
//! every write that users know of, and can be trusted whatever became of the proposals: of those
//! that nobody has, nothing is left. A disk that comes back is told the proposals it missed, in
//! their order, so that it gets to where the others may be already.

use codec::wire::{Packet, StateWord, UuidFlags};
use serde::{Deserialize, Serialize};
use vocab::options::Quorum;
use vocab::{DiskState, GenUuid, NodeId, NodeMask, ReplState, Role};

use crate::compare::Decided;
use crate::generation::{HISTORY, is_generation, weak_nodes};
use crate::io::LogLevel;
use crate::jobs::JobKind;
use crate::peer_uuids::{PeerUuids, gave_up};
use crate::resource::{Decision, Resource, Volume, Work};
use crate::state::{PeerIx, VolIx};

/// Generations that no disk is known to have, oldest first.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Proposals {
    list: Vec<Proposal>,
    /// Connected peers whose disks have been told all of them.
    told: NodeMask,
    /// Some are none any more: what was written in them may be reported now.
    reached: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Proposal {
    uuid: GenUuid,
    /// Nodes that did not hear of it.
    weak: NodeMask,
}

/// The newest proposal, while some of the peers it was sent to have not confirmed what was written
/// in it (semantics §4.3 rule 4).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Unconfirmed {
    /// First epoch of the generation.
    pub first_epoch: u64,
    /// Peers that still have to confirm.
    pub waiting: NodeMask,
    /// The exposed generation before it, and before all others that were never confirmed: no write
    /// since then has been completed.
    since: GenUuid,
    /// What was proposed since.
    made: Vec<GenUuid>,
}

impl Unconfirmed {
    /// That disk has left what users know by another way than this node.
    fn is_passed_by(&self, disk: &PeerUuids) -> bool {
        disk.succeeds(self.since) && !self.made.iter().any(|uuid| uuid.same(disk.current))
    }
}

impl Proposals {
    /// The generation was proposed here.
    pub(crate) fn contains(&self, uuid: GenUuid) -> bool {
        self.list.iter().any(|p| p.uuid.same(uuid))
    }
}

impl Volume {
    /// A disk has this generation, and users may see it. What was proposed before it has been
    /// overtaken.
    pub(crate) fn expose(&mut self, uuid: GenUuid) {
        if uuid.same(self.exposed) {
            return;
        }
        let before = std::mem::replace(&mut self.exposed, uuid);
        self.users_left.retain(|left| !left.same(uuid));
        if is_generation(before) {
            self.users_left.truncate(HISTORY - 1);
            self.users_left.insert(0, before);
        }
        let list = &mut self.proposals.list;
        let reached = list.iter().position(|p| p.uuid.same(uuid)).unwrap_or(list.len());
        let overtaken = list.drain(..list.len().min(reached + 1)).count();
        self.proposals.reached |= overtaken > 0;
    }
}

/// Nodes that were lost before they had confirmed what this Primary had reported (protocol A), each
/// with the generation of then.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Lacking(Vec<(NodeId, GenUuid)>);

impl Lacking {
    pub(crate) fn insert(&mut self, node: NodeId, generation: GenUuid) {
        self.remove(node);
        self.0.push((node, generation));
    }

    pub(crate) fn remove(&mut self, node: NodeId) {
        self.0.retain(|(lacking, _)| *lacking != node);
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn get(&self, node: NodeId) -> Option<GenUuid> {
        self.0.iter().find(|(lacking, _)| *lacking == node).map(|(_, generation)| *generation)
    }
}

impl Resource {
    /// A node with a disk that is not current becomes Primary: what its users see from now on is on
    /// the disks of others, and not what this one holds.
    pub(crate) fn expose_to_users(&mut self, vol: VolIx) {
        let own = self.shown_backing(vol).is_some();
        if !own || self.st.vols[vol].disk == DiskState::UpToDate {
            return;
        }
        let exposed = self.vols[vol].exposed;
        let uuids = |p: PeerIx| self.peers[p].devs[vol].uuids.as_ref();
        let used = self
            .st
            .connected()
            .filter(|p| self.st.peers[*p].devs[vol].disk == DiskState::UpToDate)
            .filter(|p| !self.is_ancestor(*p, vol))
            .filter_map(uuids)
            .find(|u| !is_generation(exposed) || u.has_passed(exposed))
            .map(|u| u.current);
        if let Some(uuid) = used.filter(|uuid| is_generation(*uuid)) {
            self.vols[vol].expose(uuid);
        }
    }

    /// A generation has been proposed, and no disk is known to have it. What is written may be
    /// on a disk that then goes away, while another one that lacks it looks just as good.
    pub(crate) fn is_proposing(&self, vol: VolIx) -> bool {
        !self.vols[vol].proposals.list.is_empty()
    }

    /// Writes that waited until a disk has what was proposed may have nothing to wait for any more,
    /// whoever has it.
    pub(crate) fn complete_reached(&mut self) {
        let mut reached = false;
        for volume in &mut self.vols {
            reached |= std::mem::take(&mut volume.proposals.reached);
        }
        if reached {
            self.advance_all();
        }
    }

    /// A Primary without an UpToDate disk of its own starts a generation.
    ///
    /// Even if no node misses anything (semantics §4.3 rule 1): the slot memory of this node may be
    /// lost, and another client may have written meanwhile, so that the first write after a
    /// promotion starts one always (wire §6).
    pub(crate) fn propose_generation(&mut self, vol: VolIx) {
        if self.bump_must_wait(vol) {
            self.vols[vol].bump_running = false;
            return;
        }
        self.close_epoch();
        let uuid = self.rng.uuid(true);
        let weak = weak_nodes(&self.situation(vol));
        let first_epoch = self.log.epoch;
        let waiting: NodeMask = self
            .st
            .connected()
            .filter(|p| self.st.peers[*p].devs[vol].disk == DiskState::UpToDate)
            .map(|p| self.peers[p].node)
            .collect();
        let volume = &mut self.vols[vol];
        let (since, mut made) = match volume.unconfirmed.take() {
            Some(last) => (last.since, last.made),
            None => (volume.exposed, Vec::new()),
        };
        made.push(uuid);
        volume.unconfirmed = Some(Unconfirmed { first_epoch, waiting, since, made });
        let proposal = Proposal { uuid, weak };
        for peer in 0..self.peers.len() {
            let with_disk = self.st.peers[peer].devs[vol].disk >= DiskState::Inconsistent;
            if self.st.is_connected(peer) && with_disk {
                self.send_proposal(peer, vol, &proposal);
            }
        }
        let proposals = &mut self.vols[vol].proposals;
        proposals.told = proposals.told.or(waiting);
        proposals.list.push(proposal);
        self.vols[vol].bump_pending = false;
        self.work.push_back(Work::BumpDone(vol));
    }

    fn send_proposal(&mut self, peer: PeerIx, vol: VolIx, proposal: &Proposal) {
        // Who gets every write gets the generation, whatever others think of its disk.
        let follows = self.decide(peer, vol) == Decision::Data;
        let node = self.peers[peer].node;
        let weak = if follows { proposal.weak.without(node) } else { proposal.weak };
        self.send(peer, Packet::CurrentUuid(self.vols[vol].nr, proposal.uuid, weak));
        if self.st.peers[peer].devs[vol].disk == DiskState::UpToDate && !weak.contains(node) {
            self.peers[peer].devs[vol].taking.push((proposal.uuid, weak));
        }
    }

    /// Disks that have come back in the exposed generation are told what was proposed meanwhile;
    /// the next write starts a generation for those that are still away.
    pub(crate) fn tell_proposals(&mut self, vol: VolIx) {
        if !self.is_proposing(vol) {
            self.vols[vol].proposals.told = NodeMask::EMPTY;
            return;
        }
        if self.st.vols[vol].disk == DiskState::UpToDate {
            // The own disk is current again, and a generation of its own says who is not. A disk
            // that has taken a proposal, and was lost before it could say so, is behind that: users
            // were told of nothing that was written in it.
            let dropped = std::mem::take(&mut self.vols[vol].proposals.list);
            if let Some(backing) = self.vols[vol].backing.as_mut() {
                for proposal in &dropped {
                    backing.gens.push(proposal.uuid);
                }
            }
            self.md_changed(vol);
            return self.owe_generation(vol);
        }
        if self.st.role != Role::Primary {
            return;
        }
        let able: Vec<PeerIx> = self
            .st
            .connected()
            .filter(|p| self.st.peers[*p].devs[vol].disk == DiskState::UpToDate)
            .collect();
        let nodes: NodeMask = able.iter().map(|p| self.peers[*p].node).collect();
        let new = nodes.minus(self.vols[vol].proposals.told);
        self.vols[vol].proposals.told = nodes;
        if new.is_empty() {
            return;
        }
        let list = std::mem::take(&mut self.vols[vol].proposals.list);
        for peer in able {
            if new.contains(self.peers[peer].node) {
                list.iter().for_each(|proposal| self.send_proposal(peer, vol, proposal));
            }
        }
        self.vols[vol].proposals.list = list;
        if let Some(unconfirmed) = &mut self.vols[vol].unconfirmed {
            unconfirmed.waiting = unconfirmed.waiting.or(new);
        }
        self.owe_generation(vol);
    }

    /// A new generation is due, at once if writes wait.
    pub(crate) fn owe_generation(&mut self, vol: VolIx) {
        self.vols[vol].bump_pending = true;
        let busy = self.log.iter().any(|w| w.vol == vol && !w.completed);
        if busy && !self.st.susp.any() && self.st.vols[vol].quorum {
            self.start_bump(vol);
        }
    }

    /// A disk holds a generation. If this node proposed it, users may be told of what was written
    /// in it.
    pub(crate) fn generation_held(&mut self, vol: VolIx, uuid: GenUuid) {
        if !self.vols[vol].proposals.contains(uuid) {
            return;
        }
        if self.st.is_target(vol) && self.bind(vol, uuid, None, NodeMask::ALL) {
            return self.record_bound(vol, uuid);
        }
        if self.vols[vol].backing.as_ref().is_some_and(|b| b.is_binding()) {
            // It comes back from there.
            return;
        }
        self.vols[vol].expose(uuid);
        // Others without a disk, which may be all that is left one day, know what to look for.
        let weak = weak_nodes(&self.situation(vol));
        for peer in 0..self.peers.len() {
            let has_disk = self.st.peers[peer].devs[vol].disk >= DiskState::Inconsistent;
            if self.st.is_connected(peer) && !has_disk {
                self.send(peer, Packet::CurrentUuid(self.vols[vol].nr, uuid, weak));
            }
        }
        self.tell_voters(vol, uuid);
    }

    // --- the word of a disk for its Primary ------------------------------------------------

    /// A generation is adopted and durable. A Primary without disk goes by the quorum of this node
    /// as soon as it is told so, and what it writes may be acknowledged by this disk alone. The
    /// nodes that it does not reach, but this one counts on, have to be there and to know of the
    /// generation first: those that are not are lost in asking, and those that are vote for no
    /// older disk any more. A Primary with a disk asks for itself.
    pub(crate) fn vouch(&mut self, vol: VolIx) {
        let Some(weak) = self.vols[vol].vouch else { return };
        // Those without a disk matter where quorum rests on them, too.
        let alone = self.relies_on_others(vol, |p| !weak.contains(self.peers[p].node));
        let votes = |p: PeerIx| {
            let disk = self.st.peers[p].devs[vol].disk;
            weak.contains(self.peers[p].node)
                && self.st.peers[p].role != Role::Primary
                && (disk >= DiskState::Inconsistent || alone)
        };
        let relies =
            (0..self.peers.len()).any(|p| self.st.is_connected(p) && self.is_client(p, vol));
        if !relies || !self.st.connected().any(votes) {
            self.vols[vol].vouch = None;
            return;
        }
        let generation = self.presented(vol);
        self.want(JobKind::Vouch { vol, generation }, None);
    }

    /// The peer is Primary and has no disk.
    fn is_client(&self, peer: PeerIx, vol: VolIx) -> bool {
        let st = &self.st.peers[peer];
        st.role == Role::Primary && st.devs[vol].disk < DiskState::Inconsistent
    }

    /// The peer hears of this disk's generation once the others have.
    pub(crate) fn is_vouching_to(&self, peer: PeerIx, vol: VolIx) -> bool {
        let waits = self.vols[vol].vouch.is_some() && self.st.is_connected(peer);
        waits && self.is_client(peer, vol)
    }

    /// The generation is still the one to be vouched for.
    pub(crate) fn vouches(&self, vol: VolIx, generation: GenUuid) -> bool {
        self.vols[vol].vouch.is_some() && self.presented(vol).same(generation)
    }

    /// Everyone in reach has heard of the generation.
    pub(crate) fn vouched(&mut self, vol: VolIx, generation: GenUuid) {
        if self.vouches(vol, generation) {
            self.vols[vol].vouch = None;
            self.send_uuids_to_all(vol, UuidFlags::default());
        }
    }

    // --- connections between a node with a disk and one without ----------------------------

    /// The peer is not known to have what this Primary has reported under protocol A.
    pub(crate) fn lacks_reported(&self, peer: PeerIx, vol: VolIx) -> bool {
        let lost_at = self.vols[vol].lacking.get(self.peers[peer].node);
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        // Others went on with a new generation, and it has got that one's data.
        lost_at.is_some_and(|generation| !uuids.is_some_and(|u| u.has_passed(generation)))
    }

    /// This node has no disk, the peer has one (semantics §4.9).
    pub(crate) fn decide_as_client(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        peer_disk: DiskState,
    ) -> Decided {
        let uuids = self.peers[peer].devs[vol].uuids.as_ref().expect("the set is complete");
        let volume = &mut self.vols[vol];
        if volume.proposals.contains(uuids.current) {
            // The peer took a generation of this node, and was lost before it could say so.
            volume.expose(uuids.current);
            return Decided::Retry;
        }
        let (nr, exposed) = (volume.nr, volume.exposed);
        if !is_generation(exposed)
            || uuids.current.same(exposed)
            || peer_disk < DiskState::Consistent
        {
            if self.st.role == Role::Primary
                && self.has_frozen_parts(self.peers[peer].node, vol)
                && peer_disk == DiskState::Consistent
            {
                // It rebooted: what it had acknowledged it may have lost. Resync first.
                return Decided::peer_disk(DiskState::Outdated);
            }
            if self.st.role == Role::Primary && self.lacks_reported(peer, vol) {
                let text = format!(
                    "{}/{nr}: {} lacks writes that were reported, which are on the disk that was \
                     given up: attach that one",
                    self.name, self.peers[peer].name
                );
                self.log(LogLevel::Error, text);
                return Decided::peer_disk(DiskState::Outdated);
            }
            return Decided::none();
        }
        let successor = uuids.succeeds(exposed) && !self.is_given_up(peer, vol);
        let ancestor = self.is_ancestor(peer, vol);
        let primary = self.st.role == Role::Primary;
        let unconfirmed = self.vols[vol].unconfirmed.as_ref();
        let passed = unconfirmed.is_some_and(|u| u.is_passed_by(uuids));
        let unconfirmed = unconfirmed.is_some();
        // This node follows a Primary that it is connected to, and goes on doing so.
        let follows = self.st.connected().any(|p| {
            let uuids = self.peers[p].devs[vol].uuids.as_ref();
            self.st.peers[p].role == Role::Primary && uuids.is_some_and(|u| u.current.same(exposed))
        });
        // A disk without quorum may be of those that the others went on without. So it is if it holds
        // what the disk of this node had left behind before it was given up.
        let word = self.peers[peer].devs[vol].last_word;
        let volume = &self.vols[vol];
        let past = volume.released.as_ref().is_some_and(|g| g.has_passed(uuids.current))
            || volume.users_left.iter().any(|left| left.same(uuids.current));
        let left_behind =
            (past || self.is_majority(vol)) && word.is_some_and(|word| !word.quorum());
        match (successor, primary) {
            (true, true) => {
                self.yield_to_newer_data();
                Decided::Retry
            }
            (true, false) => Decided::adopt_exposed(),
            (false, _) if ancestor || follows || left_behind => {
                Decided::peer_disk(DiskState::Outdated)
            }
            // Others have gone on from what users know. What they have seen of the newest
            // generation here is nothing: none of its writes has been completed.
            (false, true) if passed => {
                self.yield_to_newer_data();
                Decided::Retry
            }
            // The newest generation of this client has not reached the peer: park it until it has
            // resynced from a disk that has it (R5).
            (false, true) if unconfirmed => Decided::peer_disk(DiskState::Outdated),
            (false, false) => Decided::adopt_exposed(),
            (false, true) => Decided::Refuse(format!(
                "volume {nr}: its data is not related to what this Primary uses"
            )),
        }
    }

    /// The peer's disk has become UpToDate in a generation beyond the one that a Secondary client has
    /// seen, and named that before: the client goes by it from now on, and others may be in it, too.
    pub(crate) fn follow_as_client(&mut self, peer: PeerIx, vol: VolIx) {
        let current = self.st.peers[peer].devs[vol].disk == DiskState::UpToDate;
        let client = self.shown_backing(vol).is_none() && self.st.role == Role::Secondary;
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        let beyond = uuids.filter(|u| u.has_passed(self.vols[vol].exposed)).map(|u| u.current);
        let Some(uuid) = beyond.filter(|_| client && current && !self.is_ancestor(peer, vol))
        else {
            return;
        };
        self.vols[vol].expose(uuid);
        for other in (0..self.peers.len()).filter(|p| *p != peer) {
            if self.st.is_connected(other) {
                self.review_shown_disk(other, vol);
            }
        }
    }

    /// This node and those it is connected to have quorum: what nodes without it hold and these
    /// do not know has not been acknowledged.
    fn is_majority(&self, vol: VolIx) -> bool {
        self.opts.quorum != Quorum::Off && self.st.vols[vol].quorum
    }

    /// The peer's generation is one that another disk has left behind.
    pub(crate) fn is_ancestor(&self, peer: PeerIx, vol: VolIx) -> bool {
        let Some(uuids) = &self.peers[peer].devs[vol].uuids else { return false };
        let others = self.peers.iter().enumerate().filter(|(p, _)| *p != peer);
        let mut known = others.filter_map(|(_, other)| other.devs[vol].uuids.as_ref());
        known.any(|o| o.has_passed(uuids.current) && !uuids.has_given_up(o))
    }

    /// The peer's generation is one that a disk here, at which it began, has given up.
    fn is_given_up(&self, peer: PeerIx, vol: VolIx) -> bool {
        let Some(theirs) = &self.peers[peer].devs[vol].uuids else { return false };
        self.st.connected().any(|p| {
            let uuids = self.peers[p].devs[vol].uuids.as_ref();
            uuids.is_some_and(|u| u.has_given_up(theirs))
        })
    }

    /// This node works with the disks of others, and has met newer ones than some that it is
    /// connected to (semantics §4.9 R2, R3), or has gone over to others. The old ones do not count
    /// as current from now on: a user of this node might read from them, and its writes would make
    /// them equal in name. A client tells them what it has seen; the generation that a node with a
    /// disk names is its own. Where a Primary is near, it is the one to tell them.
    pub(crate) fn doubt_ancestors(&mut self, vol: VolIx) {
        if self.st.vols[vol].disk == DiskState::UpToDate || !self.st.primary_peers().is_empty() {
            return;
        }
        let shown = |p: &PeerIx| self.st.peers[*p].devs[vol].disk;
        let old: Vec<PeerIx> = self
            .st
            .connected()
            .filter(|p| matches!(shown(p), DiskState::Consistent | DiskState::UpToDate))
            .filter(|p| self.is_ancestor(*p, vol) || self.is_left(*p, vol))
            .collect();
        for peer in old {
            if self.vols[vol].backing.is_none() {
                self.send_uuids(peer, vol, UuidFlags::default(), NodeMask::EMPTY);
            }
            self.change_hard(|st| st.peers[peer].devs[vol].disk = DiskState::Outdated);
        }
    }

    /// The users of this node have left the peer's generation for one that does not descend from it:
    /// it was written without quorum, and others have gone on from the one before.
    fn is_left(&self, peer: PeerIx, vol: VolIx) -> bool {
        let Some(theirs) = &self.peers[peer].devs[vol].uuids else { return false };
        let volume = &self.vols[vol];
        let word = self.peers[peer].devs[vol].last_word;
        word.is_some_and(|word| !word.quorum())
            && self.is_majority(vol)
            && !theirs.has_passed(volume.exposed)
            && volume.users_left.iter().any(|left| left.same(theirs.current))
    }

    /// A disk that is current elsewhere has left this one's generation behind, and is to be waited
    /// for: whoever is no further than that may have been overtaken by writes that count on this
    /// node's vote, and gets no second one from it (invariants 32 and 35).
    pub(crate) fn note_newer(&mut self, peer: PeerIx, vol: VolIx) {
        let current = self.st.peers[peer].devs[vol].disk == DiskState::UpToDate;
        let Some(theirs) = self.peers[peer].devs[vol].uuids.as_ref().filter(|_| current) else {
            return;
        };
        let newer = self.vols[vol].newer.as_ref();
        if self.leaves_own_behind(vol, theirs) {
            self.vols[vol].newer = Some(Box::new(theirs.clone()));
        } else if newer.is_some_and(|newer| theirs.has_passed(newer.current))
            && self.presented(vol).same(theirs.current)
        {
            // An equal of this disk knows that it was given up.
            self.vols[vol].newer = None;
        }
    }

    /// A disk that was current has left the generation of the own one behind.
    pub(crate) fn is_own_overtaken(&self, vol: VolIx) -> bool {
        self.newer_than_own(vol).is_some()
    }

    /// The identifiers of a disk that was current and has left the own one behind, if there is one.
    pub(crate) fn newer_than_own(&self, vol: VolIx) -> Option<&PeerUuids> {
        let newer = self.vols[vol].newer.as_deref()?;
        self.leaves_own_behind(vol, newer).then_some(newer)
    }

    /// A disk has left the generation of the own one behind, and not for one that this disk has given
    /// up since.
    pub(crate) fn leaves_own_behind(&self, vol: VolIx, theirs: &PeerUuids) -> bool {
        self.shown_backing(vol).is_some_and(|backing| {
            let (current, history) = (backing.gens.current(), backing.gens.history());
            theirs.has_passed(current) && !gave_up(current, history, theirs)
        })
    }

    /// The peer has been resynced from a disk that has left behind what this Primary uses: others had
    /// quorum, and wrote. It counts for nothing here, least of all for quorum: a handshake has to
    /// settle which data are given up.
    pub(crate) fn is_overtaken_as_primary(&self, peer: PeerIx, vol: VolIx) -> bool {
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        self.st.role == Role::Primary && uuids.is_some_and(|u| self.leaves_own_behind(vol, u))
    }

    /// The peer's disk has become UpToDate by a resync from elsewhere, and may have left the
    /// generation of this one behind. Its source need not be in reach, and the peer compares with
    /// nobody: this node asks for it. Where a Primary is near, it is the one to tell.
    pub(crate) fn review_overtaken(&mut self, peer: PeerIx, vol: VolIx) {
        self.note_newer(peer, vol);
        let Some(own) = self.shown_backing(vol).map(|b| b.gens.current()) else { return };
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        let alone = self.st.role == Role::Secondary && self.st.primary_peers().is_empty();
        let quiet = self.repl(peer, vol) == ReplState::Established && !self.st.is_target(vol);
        if alone && quiet && uuids.is_some_and(|u| u.has_passed(own)) {
            self.ask_recompare(peer, vol);
        }
    }

    /// This node has a disk, the peer has none (A7, and the end of semantics §4.9).
    pub(crate) fn decide_with_client(
        &mut self,
        peer: PeerIx,
        vol: VolIx,
        word: StateWord,
    ) -> Decided {
        let backing = self.vols[vol].backing.as_ref().expect("checked by the caller");
        let uuids = self.peers[peer].devs[vol].uuids.as_ref().expect("the set is complete");
        let own = self.presented(vol);
        let current = uuids.current;
        if !is_generation(current) {
            return Decided::none();
        }
        let primary = word.role() == Some(Role::Primary);
        if current.same(own) {
            let whole = !self.st.is_target(vol)
                && !self.may_lack_writes(vol)
                && backing.md_was_up_to_date(self.st.vols[vol].disk);
            return if primary && whole { Decided::own_up_to_date() } else { Decided::none() };
        }
        let known = backing.gens.has_passed(current);
        match (primary, known) {
            // A Primary's data does not become old by meeting a client. If it may not write, the
            // others went on without it; if it may, the client follows.
            (false, false) if self.yield_to_newer_data() || self.is_stopped(vol) => Decided::Retry,
            (false, false) if self.st.role == Role::Primary => Decided::none(),
            // It has met a disk that the nodes around this one went on without.
            (false, false) if self.is_majority(vol) && !word.quorum() => Decided::none(),
            (false, true) => Decided::none(),
            (true, _) | (false, false) => Decided::own_outdated(),
        }
    }

    // --- confirmation ---------------------------------------------------------------------

    /// An epoch is stable on a peer: it has all writes of the unconfirmed generation so far.
    pub(crate) fn unconfirmed_barrier_ack(&mut self, peer: PeerIx, epoch: u64) {
        let node = self.peers[peer].node;
        for vol in 0..self.vols.len() {
            let held_writes = self.log.iter().any(|w| w.vol == vol && !w.completed);
            if let Some(unconfirmed) = &mut self.vols[vol].unconfirmed {
                if epoch >= unconfirmed.first_epoch || !held_writes {
                    unconfirmed.waiting.remove(node);
                }
            }
        }
        self.review_unconfirmed();
        if self.st.susp.uuid_bridge {
            // The next generation may have waited for this.
            self.work.push_back(Work::Resume);
        }
    }

    /// A lost peer can not confirm any more.
    pub(crate) fn unconfirmed_peer_lost(&mut self, node: NodeId) {
        for vol in &mut self.vols {
            if let Some(unconfirmed) = &mut vol.unconfirmed {
                unconfirmed.waiting.remove(node);
            }
        }
        self.review_unconfirmed();
    }

    /// Only peers that are connected and UpToDate are waited for; with none left, and quorum,
    /// the generation is confirmed.
    pub(crate) fn review_unconfirmed(&mut self) {
        for vol in 0..self.vols.len() {
            let able: NodeMask = self
                .st
                .connected()
                .filter(|p| self.st.peers[*p].devs[vol].disk == DiskState::UpToDate)
                .map(|p| self.peers[p].node)
                .collect();
            let quorate = self.st.vols[vol].real_quorum;
            let Some(unconfirmed) = &self.vols[vol].unconfirmed else { continue };
            let lost = unconfirmed.waiting.minus(able).minus(self.losing());
            if let Some(unconfirmed) = &mut self.vols[vol].unconfirmed {
                unconfirmed.waiting = unconfirmed.waiting.minus(lost);
                if unconfirmed.waiting.is_empty() && quorate {
                    self.vols[vol].unconfirmed = None;
                    self.work.push_back(Work::Kick(vol));
                }
            }
        }
    }

    /// Peers whose loss is not dealt with yet.
    fn losing(&self) -> NodeMask {
        self.peers.iter().filter(|p| p.hs.losing).map(|p| p.node).collect()
    }
}

#[cfg(test)]
mod tests {
    use codec::disk::MdFlags;
    use codec::wire::{Packet, StateWord};
    use vocab::options::ResourceOptions;
    use vocab::{ConnState, VolumeNr};

    use super::*;
    use crate::resource::Link;
    use crate::testing::attached;

    /// It has quorum through that peer, or would have: it would begin a generation on its old data.
    #[test]
    fn a_primary_does_not_go_on_with_a_peer_that_was_resynced_from_newer_data() {
        const OWN: GenUuid = GenUuid(0x2000);
        for (history, stays) in [(vec![], true), (vec![OWN], false)] {
            let mut resource = attached(ResourceOptions::default(), |superblock| {
                superblock.current_uuid = OWN;
                superblock.flags.set(MdFlags::CONSISTENT, true);
                superblock.flags.set(MdFlags::WAS_UP_TO_DATE, true);
            });
            resource.st.role = Role::Primary;
            resource.st.vols[0].disk = DiskState::UpToDate;
            resource.peers[0].link = Link::Up;
            resource.st.peers[0].conn = ConnState::Connected;
            resource.st.peers[0].devs[0].repl = ReplState::Established;
            resource.st.peers[0].devs[0].disk = DiskState::Inconsistent;
            let current = if stays { OWN } else { GenUuid(0x3000) };
            let uuids = PeerUuids { history, ..PeerUuids::diskless(current) };
            resource.peers[0].devs[0].uuids = Some(uuids);
            let word = StateWord::default().with_disk(DiskState::UpToDate);
            let word = word.with_repl_state(ReplState::Established);
            resource.take(0, Packet::State(Some(VolumeNr(0)), word), None).expect("it is allowed");
            assert_eq!(resource.st.is_connected(0), stays);
        }
    }
}
