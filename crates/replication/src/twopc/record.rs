//! What a transaction makes of this node is on record before others rely on it.
//!
//! A node that leaves a Primary in good order is Outdated once that is committed, and so is one that
//! a new Primary does not reach: the Primary counts it as harmless from then on and may go on
//! without it. If it stopped before that was on its disk, it would come back as current and help
//! data to quorum that were left behind (invariants 5 and 35). So the metadata say Outdated before
//! this node answers YES, or sends the COMMIT of a change that outdates itself; a transaction that
//! comes to nothing takes it back. Who has answered YES and loses those who asked before it hears
//! the end is Outdated: they may have committed.

use codec::wire::{Operation, Outdates};
use vocab::{DiskState, Role};

use super::{Answer, CommitInfo, Held, PrepareOrEnd};
use crate::resource::{Resource, Work};
use crate::state::PeerIx;

impl Resource {
    /// The transaction that is held, once committed, outdates this participant.
    fn outdates_participant(&self, held: &Held) -> bool {
        match held.op {
            Operation::Disconnect(outdates) => {
                outdates == Outdates::Target && held.target == Some(self.me)
            }
            Operation::Promote { .. } => {
                let initiator = self.peer_ix(held.initiator);
                !initiator.is_some_and(|p| self.st.is_connected(p))
            }
            _ => false,
        }
    }

    /// A participant that would be Outdated says so in its metadata before it answers. What it has
    /// just heard to take part in is on disk then, too.
    pub(super) fn record_before_answer(&mut self) {
        let Some(held) = &self.twopc.held else { return };
        let outdates = self.outdates_participant(held) && self.has_current_disk();
        let mut backings = self.vols.iter().filter_map(|v| v.backing.as_ref());
        let binds = held.op == Operation::Empty && backings.any(|b| b.is_binding());
        if outdates || binds {
            self.record_fate(outdates);
        }
    }

    /// The same for the initiator, before COMMIT. False if nothing is to be recorded any more.
    pub(super) fn record_before_commit(&mut self, info: CommitInfo) -> bool {
        let held = self.twopc.held.as_ref().expect("an own transaction is held");
        let outdates = match held.op {
            Operation::Disconnect(outdates) => outdates == Outdates::Initiator,
            // The Primary hears of it, and takes this node for Outdated.
            Operation::Empty => !self.unreached_primaries(held, info).is_empty(),
            _ => false,
        };
        if outdates && !held.outdates && self.has_current_disk() {
            self.record_fate(true);
        }
        self.twopc.held.as_ref().is_some_and(|h| h.recording > 0)
    }

    fn has_current_disk(&self) -> bool {
        let current = self.st.vols.iter().any(|v| v.disk > DiskState::Outdated);
        current && self.st.role == Role::Secondary
    }

    fn record_fate(&mut self, outdates: bool) {
        let held = self.twopc.held.as_mut().expect("a transaction is held");
        held.outdates = outdates;
        held.recording = self.vols.len();
        let tid = held.tid;
        for vol in 0..self.vols.len() {
            self.persist(vol, Work::Answerable(tid));
        }
    }

    /// The metadata of one more volume say what they are to say.
    pub(crate) fn transaction_recorded(&mut self, tid: u32) {
        if let Some(held) = self.twopc.held.as_mut().filter(|h| h.tid == tid) {
            held.recording = held.recording.saturating_sub(1);
            self.twopc_progress();
        }
    }

    /// A transaction under way may make this node Outdated.
    pub(crate) fn may_be_outdated(&self) -> bool {
        self.twopc.held.as_ref().is_some_and(|h| h.outdates)
    }

    /// The transaction, which is held no more, has come to nothing.
    pub(super) fn record_withdrawn(&mut self, held: &Held) {
        if held.outdates {
            (0..self.vols.len()).for_each(|vol| self.md_changed_now(vol));
        }
    }

    /// Nobody tells this participant by way of that peer how the transaction ends.
    pub(super) fn lose_parent(&mut self, peer: PeerIx, known: impl Fn(&mut Held) -> bool) {
        let Some(held) = self.twopc.held.as_mut() else { return };
        if !known(held) {
            return;
        }
        held.parents.retain(|p| *p != peer);
        if let Some(held) = self.twopc.held.take_if(|h| h.parents.is_empty()) {
            self.end_unknown(&held);
        }
    }

    /// This participant does not hear how the transaction ends, nor do those that it has passed it
    /// on to: what its own answer stood for was theirs.
    pub(super) fn end_unknown(&mut self, held: &Held) {
        let agreed = held.replied && held.answer == Answer::Yes;
        let end = if agreed { PrepareOrEnd::Unknown } else { PrepareOrEnd::Abort };
        self.forward(held, end);
        if agreed && held.outdates {
            if matches!(held.op, Operation::Promote { .. }) {
                // It may write, and no neighbour's word is worth anything before a transaction
                // tells.
                self.far_primaries.insert(held.initiator);
            }
            self.change_hard(|st| {
                for vol in st.vols.iter_mut().filter(|v| v.disk > DiskState::Outdated) {
                    vol.disk = DiskState::Outdated;
                }
            });
        }
        self.transaction_dropped(held);
    }
}
