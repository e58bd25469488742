//! Peers that are added and removed while everything else goes on.
//!
//! Peers are numbered by their place in a list. When one is removed those behind it get other numbers,
//! so whatever is under way on their account is told ([`Resource::each_peer_number`]).

use vocab::options::Quorum;
use vocab::{ConfigError, ConnState, NodeId, Refusal, Role, StateError};

use crate::admin::{Answer, Granted};
use crate::resource::{Op, Owner, Resource, Work};
use crate::state::PeerIx;

impl Op {
    /// The number of the peer that it is about.
    fn peer_mut(&mut self) -> Option<&mut PeerIx> {
        match self {
            Op::EpochFlush(peer, _)
            | Op::ConfirmFlush(peer, _)
            | Op::ResyncWrite(peer, ..)
            | Op::ResyncDigest(peer, ..)
            | Op::ResyncFlush(peer, _)
            | Op::VerifyDigest(peer, ..) => Some(peer),
            Op::Write(_)
            | Op::Read(_)
            | Op::PeerWrite(_)
            | Op::PeerRead(_)
            | Op::Serve(_)
            | Op::DemotionFlush(_)
            | Op::ZeroLeft(_)
            | Op::Meta(_)
            | Op::Abandoned(..) => None,
        }
    }
}

impl Owner {
    /// The number of the peer that it is about.
    fn peer_mut(&mut self) -> Option<&mut PeerIx> {
        match self {
            Owner::Local(_) => None,
            Owner::Peer(peer, _)
            | Owner::ResyncTarget(peer)
            | Owner::ResyncWrite(peer)
            | Owner::ResyncSource(peer, _)
            | Owner::Verify(peer) => Some(peer),
        }
    }
}

impl Work {
    /// The number of the peer that it is about.
    fn peer_mut(&mut self) -> Option<&mut PeerIx> {
        match self {
            Work::LossCleanup(peer)
            | Work::ResyncMayWrite(peer, _)
            | Work::ResyncEndPing(peer, _)
            | Work::ResyncRecord(peer, _)
            | Work::ResyncRecorded(peer, _)
            | Work::BitmapReady(peer, _)
            | Work::Recompare(peer, _)
            | Work::PeerDagtag(peer, ..)
            | Work::Heard(peer, _)
            | Work::Reconnect(peer)
            | Work::Legacy(peer) => Some(peer),
            Work::Kick(_)
            | Work::Bump(_)
            | Work::BumpDone(_)
            | Work::Adopted(_)
            | Work::Bound(..)
            | Work::WriteAgain(_)
            | Work::ToldWritten(_)
            | Work::Answer(_)
            | Work::Forgotten(..)
            | Work::Resized(..)
            | Work::Job(_)
            | Work::Answerable(_)
            | Work::Reconcile(_)
            | Work::LostPeer
            | Work::Resume => None,
        }
    }
}

impl Resource {
    /// Removes a peer that this node is not connected to. Users' and other peers' I/O goes on; what is
    /// still under way for this one has to end first, and so do transactions, which do not take long.
    pub(crate) fn del_peer(&mut self, node: NodeId) -> Granted {
        let peer = self.known_peer(node)?;
        if self.st.peers[peer].conn != ConnState::StandAlone || self.peers[peer].hs.losing {
            let detail = format!("disconnect {} first", self.peers[peer].name);
            return Err(Refusal::config(ConfigError::NetConfigured, detail));
        }
        self.may_change_members()?;
        // Writes in flight know nodes, not numbers, and set the bits of one that has missed them whether
        // it is configured or not. What is held for this one, for want of quorum or by an operator, is not
        // settled yet.
        let held = (0..self.vols.len()).any(|vol| self.has_frozen_parts(node, vol));
        let mut in_use = held || self.twopc.held.is_some() || !self.twopc.jobs.is_empty();
        self.each_peer_number(|number| in_use |= *number == peer);
        if in_use {
            return Err(StateError::InTransientState.into());
        }
        self.peers.remove(peer);
        self.st.peers.remove(peer);
        self.each_peer_number(|number| {
            if *number > peer {
                *number -= 1;
            }
        });
        self.change_hard(|_| {});
        self.visible_change = true;
        Ok(Answer::Now)
    }

    /// Every place but transactions that has a peer's number.
    fn each_peer_number(&mut self, mut each: impl FnMut(&mut PeerIx)) {
        self.peer_writes.iter_mut().for_each(|(_, write)| each(&mut write.peer));
        self.peer_reads.iter_mut().for_each(|(_, read)| each(&mut read.peer));
        self.serves.iter_mut().for_each(|(_, serve)| each(&mut serve.peer));
        self.late_writes.iter_mut().for_each(|late| each(&mut late.peer));
        self.reads.iter_mut().filter_map(|(_, read)| read.from.as_mut()).for_each(&mut each);
        self.ops.iter_mut().filter_map(|(_, running)| running.op.peer_mut()).for_each(&mut each);
        self.work.iter_mut().filter_map(Work::peer_mut).for_each(&mut each);
        let pings = self.pings.iter_mut().map(|round| &mut round.then);
        pings.filter_map(Work::peer_mut).for_each(&mut each);
        for vol in 0..self.vols.len() {
            self.wait_for_metadata_mut(vol).filter_map(Work::peer_mut).for_each(&mut each);
            if let Some(backing) = &mut self.vols[vol].backing {
                let waiting = backing.measure.waiting.iter_mut();
                waiting.filter_map(Work::peer_mut).for_each(&mut each);
            }
            let owners = self.vols[vol].intervals.ids_mut();
            owners.filter_map(Owner::peer_mut).for_each(&mut each);
        }
    }

    /// Who is counted for quorum changes only while quorum is held: the part of a cluster without it
    /// could become a majority of other nodes otherwise, beside the one that has it (hard case 34).
    pub(crate) fn may_change_members(&self) -> Result<(), Refusal> {
        let used = |v: &usize| self.vols[*v].backing.is_some() || self.st.role == Role::Primary;
        let without = |v: &usize| used(v) && !self.st.vols[*v].quorum && !self.st.vols[*v].aside;
        let counts = self.opts.quorum != Quorum::Off;
        match (0..self.vols.len()).find(without).filter(|_| counts) {
            None => Ok(()),
            Some(vol) => Err(Refusal::state(
                StateError::NoQuorum,
                format!(
                    "volume {} has no quorum, and nodes that have it may be in use: connect more of \
                     them first, or, if you know that they are gone, set quorum to off",
                    self.vols[vol].nr
                ),
            )),
        }
    }

    /// A peer that may have a disk needs bitmap slots on the disks attached already.
    pub(crate) fn slots_for_new_peer(&mut self) -> Result<(), Refusal> {
        if let Err(refusal) = self.check_all_fit(self.opts.quorum) {
            // It was added last.
            self.peers.pop();
            self.st.peers.pop();
            return Err(refusal);
        }
        for vol in 0..self.vols.len() {
            for peer in 0..self.peers.len() {
                let node = self.peers[peer].node;
                let wants = self.peer_has_bitmap(peer, vol);
                let Some(backing) = self.vols[vol].backing.as_mut() else { continue };
                if !wants || backing.slot_of(node).is_some() {
                    continue;
                }
                let free = (0..backing.bitmap.slots()).find(|s| backing.node_of_slot(*s).is_none());
                let Some(slot) = free.and_then(|s| u8::try_from(s).ok()) else {
                    self.peers.remove(peer);
                    self.st.peers.remove(peer);
                    let detail = format!(
                        "volume {}: the metadata has no free bitmap slot for node {node}",
                        self.vols[vol].nr
                    );
                    return Err(Refusal::config(ConfigError::InvalidRequest, detail));
                };
                backing.sb.peer_mut(node).bitmap_index = Some(slot);
                self.md_changed_now(vol);
            }
        }
        Ok(())
    }
}
