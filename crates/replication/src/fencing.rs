//! Fencing: a peer that is lost is kept from being written before this node relies on its own data
//! alone (semantics §6.4).
//!
//! A peer is *unfenced* as long as its disk may hold, or be given, what this node does not know of:
//! it is not connected, and not known to be Outdated or worse. A Primary has the handler
//! `fence-peer` see to such a peer, with `resource-and-stonith` while its I/O waits; a Secondary
//! does before it is promoted, and its disk is no more than Consistent until then.

use codec::disk::PeerFlags;
use serde::{Deserialize, Serialize};
use vocab::options::{Fencing, NetOptions, Protocol};
use vocab::{ConfigError, ConnState, DiskState, HandlerEvent, NodeId, Refusal, Role, StateError};

use crate::io::LogLevel;
use crate::resource::{Link, Resource, Work};
use crate::state::{PeerIx, State, VolIx};

/// What the handler is doing about a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Fence {
    #[default]
    Idle,
    /// It runs, by the number of its call.
    Running {
        id: u64,
        /// The peer has shown itself since it was called: what comes of it does not count.
        stale: bool,
    },
    /// What came of it did not count, and the peer is about to be back.
    Lapsed,
}

impl Resource {
    /// A fencing policy is configured for the peer.
    pub(crate) fn fences(&self, peer: PeerIx) -> bool {
        self.peers[peer].net.fencing != Fencing::DontCare
    }

    /// The peer's disk may be one that somebody writes to, or is about to.
    fn is_unfenced(&self, st: &State, peer: PeerIx, vol: VolIx) -> bool {
        let known = st.peers[peer].devs[vol].disk <= DiskState::Outdated
            && !self.peers[peer].devs[vol].maybe_current;
        !st.is_connected(peer) && self.peer_has_bitmap(peer, vol) && !known
    }

    /// The same of any volume.
    fn has_unfenced(&self, st: &State, peer: PeerIx) -> bool {
        (0..self.vols.len()).any(|vol| self.is_unfenced(st, peer, vol))
    }

    /// This node has data that is worth to fence somebody for, or uses those of others.
    fn has_worth(&self, st: &State) -> bool {
        let best = st.vols.iter().map(|v| v.disk).max();
        best >= Some(DiskState::Consistent) || self.vols.iter().all(|v| v.intentional_diskless)
    }

    /// This Primary depends on the peer being fenced.
    fn needs_fenced(&self, st: &State, peer: PeerIx) -> bool {
        st.role == Role::Primary && self.has_unfenced(st, peer) && self.has_worth(st)
    }

    /// Peers for which the I/O of a Primary waits.
    fn with_stonith(&self) -> impl Iterator<Item = PeerIx> + '_ {
        let stonith = |p: &PeerIx| self.peers[*p].net.fencing == Fencing::ResourceAndStonith;
        (0..self.peers.len()).filter(stonith)
    }

    /// I/O waits for a peer to be fenced: one that this Primary has just lost.
    pub(crate) fn begins_to_await_fencing(&self, old: &State, new: &State) -> bool {
        self.with_stonith().any(|p| self.needs_fenced(new, p) && !self.needs_fenced(old, p))
    }

    /// It goes on waiting: some such peer is neither fenced nor back.
    pub(crate) fn awaits_fencing(&self) -> bool {
        self.with_stonith().any(|p| self.needs_fenced(&self.st, p))
    }

    /// Until then no generation starts: the peer may be about to start one.
    pub(crate) fn has_to_fence(&self) -> bool {
        self.st.susp.fencing && self.awaits_fencing()
    }

    /// No generation starts beside a peer that is not fenced. What fails after a forced demotion needs
    /// none: the bits tell that the two may differ there.
    pub(crate) fn fails_unfenced(&self) -> bool {
        self.st.fail_io && self.has_to_fence()
    }

    /// Nobody is promoted beside a peer that may be in use (semantics §1.9).
    pub(crate) fn check_fenced(&self, new: &State) -> Result<(), Refusal> {
        let unfenced = |p: &PeerIx| self.fences(*p) && self.has_unfenced(new, *p);
        match (0..self.peers.len()).find(unfenced) {
            None => Ok(()),
            Some(p) => {
                let detail = format!(
                    "{} can not be reached and is not known to be fenced; bring it back, see why \
                     the handler fence-peer did not fence it, or use --force if it is surely down",
                    self.peers[p].name
                );
                Err(Refusal::state(StateError::PrimaryNop, detail))
            }
        }
    }

    /// A disk that may have been left behind by a peer is not known to be current before that peer
    /// is fenced or back (A2).
    pub(crate) fn is_unproven(&self, vol: VolIx) -> bool {
        let Some(backing) = &self.vols[vol].backing else { return false };
        let seen = PeerFlags::FENCING.with(PeerFlags::DEVICE_SEEN);
        NodeId::all().filter(|node| *node != self.me).any(|node| {
            let flags = backing.sb.peers[node.index()].flags;
            let flagged = flags.contains(seen) && !flags.contains(PeerFlags::OUTDATED);
            match self.peer_ix(node) {
                Some(p) => flagged && self.fences(p) && self.is_unfenced(&self.st, p, vol),
                None => flagged,
            }
        })
    }

    /// What a change means for fencing: a Primary that has lost a peer has it fenced, and one that
    /// is current again beside this node is released.
    pub(crate) fn after_fencing_change(&mut self, old: &State) {
        for peer in 0..self.peers.len() {
            if !self.fences(peer) {
                continue;
            }
            if self.needs_fenced(&self.st, peer) && !self.needs_fenced(old, peer) {
                self.fence(peer);
            }
            if self.st.is_connected(peer) && !old.is_connected(peer) {
                self.peers[peer].fence = Fence::Idle;
                self.fences_ended();
            }
            let level = |st: &State| {
                let devs = st.peers[peer].devs.iter().zip(&st.vols);
                st.peers[peer].conn == ConnState::Connected
                    && !st.vols.is_empty()
                    && devs.clone().all(|(dev, _)| dev.disk == DiskState::UpToDate)
                    && devs.clone().all(|(_, vol)| vol.disk == DiskState::UpToDate)
            };
            if level(&self.st) && !level(old) {
                self.notify(HandlerEvent::UnfencePeer, Some(peer), None);
            }
        }
    }

    /// Has the handler fence a peer, unless it is at it. True if it is.
    fn fence(&mut self, peer: PeerIx) -> bool {
        if matches!(self.peers[peer].fence, Fence::Running { .. }) {
            return true;
        }
        if let Some(id) = self.call_fence(peer) {
            self.peers[peer].fence = Fence::Running { id, stale: false };
            return true;
        }
        self.peers[peer].fence = Fence::Idle;
        let text = format!(
            "{}: {} is lost and there is no handler fence-peer to fence it; configure one, or bring \
             the node back",
            self.name, self.peers[peer].name
        );
        self.log(LogLevel::Error, text);
        false
    }

    /// There is a link to the peer, so it may be back.
    pub(crate) fn doubt_fence(&mut self, peer: PeerIx) {
        if let Fence::Running { stale, .. } = &mut self.peers[peer].fence {
            *stale = true;
        }
    }

    /// The link is gone again. If it was all that made the word of the handler count for nothing, it
    /// is asked once more.
    pub(crate) fn fence_again(&mut self, peer: PeerIx) {
        if self.peers[peer].fence == Fence::Lapsed {
            self.peers[peer].fence = Fence::Idle;
            if self.needs_fenced(&self.st, peer) {
                self.fence(peer);
            }
        }
    }

    /// The policy of a connection has changed.
    pub(crate) fn fencing_changed(&mut self) {
        for vol in 0..self.vols.len() {
            self.note_md_flags(vol);
            self.md_changed_now(vol);
        }
        self.work.push_back(Work::Resume);
        self.hold_released();
    }

    // --- promotion ---------------------------------------------------------------------------

    /// Has all peers fenced that stand in the way of a promotion. True if there is something to
    /// wait for.
    pub(crate) fn fence_for_promotion(&mut self) -> bool {
        if !self.has_worth(&self.st) {
            return false;
        }
        let mut waits = false;
        for peer in 0..self.peers.len() {
            if self.fences(peer) && self.has_unfenced(&self.st, peer) {
                waits |= self.fence(peer);
            }
        }
        waits
    }

    /// No handler is at work for a promotion: it goes on.
    fn fences_ended(&mut self) {
        let runs = |fence: Fence| matches!(fence, Fence::Running { .. });
        if !self.peers.iter().any(|p| runs(p.fence)) {
            self.promotions_go_on();
        }
    }

    // --- what came of it ---------------------------------------------------------------------

    /// `fence-peer` has ended.
    pub(crate) fn fence_ended(&mut self, node: NodeId, id: u64, exit: Option<u8>) {
        let Some(peer) = self.peer_ix(node) else { return };
        match self.peers[peer].fence {
            Fence::Running { id: running, stale } if running == id => {
                self.peers[peer].fence = if stale { Fence::Lapsed } else { Fence::Idle };
            }
            // The peer has come back meanwhile.
            _ => return,
        }
        if self.peers[peer].fence == Fence::Lapsed {
            if self.peers[peer].link != Link::Up {
                self.fence_again(peer);
            }
            return self.fences_ended();
        }
        let name = self.peers[peer].name.clone();
        let policy = self.peers[peer].net.fencing;
        let (level, what) = match exit {
            Some(3) => (LogLevel::Info, "its disk is Inconsistent".to_owned()),
            Some(4) => (LogLevel::Info, "it is Outdated now".to_owned()),
            Some(5) => (LogLevel::Info, "it can not be reached".to_owned()),
            Some(6) => (LogLevel::Error, "it is Primary; this node is outdated".to_owned()),
            Some(7) if policy == Fencing::ResourceAndStonith => {
                (LogLevel::Info, "its machine was stopped".to_owned())
            }
            Some(7) => {
                let what = "its machine was stopped, though the policy is resource-only";
                (LogLevel::Error, what.to_owned())
            }
            Some(code) => {
                (LogLevel::Error, format!("the handler is broken, its exit code is {code}"))
            }
            None => (LogLevel::Error, "the handler did not come to an end".to_owned()),
        };
        self.log(level, format!("{}: fence-peer for {name}: {what}", self.name));
        match exit {
            Some(3) => self.peer_is_at_most(peer, DiskState::Inconsistent, false),
            Some(4 | 7) => self.peer_is_at_most(peer, DiskState::Outdated, false),
            Some(5) => self.peer_is_at_most(peer, DiskState::Outdated, true),
            Some(6) => self.outdate_beside_primary(),
            _ => {}
        }
        if self.st.vols.iter().any(|v| v.disk == DiskState::Consistent) {
            // What was in doubt may be proven now.
            self.work.push_back(Work::LostPeer);
        }
        self.work.push_back(Work::Resume);
        self.fences_ended();
    }

    /// The peer's disks are no better than that; where `beside_current` only those of volumes whose
    /// disk here is UpToDate.
    fn peer_is_at_most(&mut self, peer: PeerIx, limit: DiskState, beside_current: bool) {
        let fenced =
            |st: &State, vol: VolIx| !beside_current || st.vols[vol].disk == DiskState::UpToDate;
        for vol in (0..self.vols.len()).filter(|vol| fenced(&self.st, *vol)) {
            self.peers[peer].devs[vol].maybe_current = false;
        }
        self.change_hard(|st| {
            for vol in (0..st.vols.len()).filter(|vol| fenced(st, *vol)).collect::<Vec<_>>() {
                let disk = &mut st.peers[peer].devs[vol].disk;
                *disk = (*disk).min(limit);
            }
        });
    }

    /// The peer is in use without this node knowing of what is written there. A disk that users
    /// here have nothing else than stays what it is.
    fn outdate_beside_primary(&mut self) {
        let outdated = self.change_soft(|st| {
            for vol in st.vols.iter_mut().filter(|v| v.disk > DiskState::Outdated) {
                vol.disk = DiskState::Outdated;
            }
        });
        if let Err(refusal) = outdated {
            self.log(LogLevel::Error, format!("{}: not outdated: {refusal}", self.name));
        }
    }
}

/// With protocol A a Primary has acknowledged writes that its peer lacks, and stopping it would lose
/// them.
pub(crate) fn check_fencing(options: &NetOptions) -> Result<(), Refusal> {
    if options.fencing == Fencing::ResourceAndStonith && options.protocol == Protocol::A {
        let detail = "use protocol B or C, or fencing resource-only";
        return Err(Refusal::config(ConfigError::StonithNotProtocolA, detail));
    }
    Ok(())
}
