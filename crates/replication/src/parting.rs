//! The last word of a disk that goes while its node stays.
//!
//! The node has its vote without the disk, too (semantics §6.1), and takes part in generations of
//! which the disk knows nothing. If the node stops then and comes back with that disk, neither knows
//! what the vote was for: it would help data to quorum that others had gone on from (invariants 5
//! and 32). So the superblock gets a mark, see [`ANYTHING`]: a detach writes it with everything else;
//! a disk that is given up gets its last superblock once more, with the mark, as metadata may still
//! be written where data can not. Until the mark is on disk, and for ever if it can not be, the node
//! has no vote. (In the reference it always has, and no mark.)
//!
//! With a single other voter it has its vote all the same: whatever they decide together the other
//! one knows, and its disk is not enough for a quorum without that one.

use codec::disk::Superblock;
use vocab::{ConnState, DiskState};

use crate::bound::ANYTHING;
use crate::io::{MetaBlock, MetaPlace, MetaWrite, OpId, Output};
use crate::meta::InFlight;
use crate::resource::{Op, Resource};
use crate::state::{State, VolIx};

/// A disk is being released.
#[derive(Debug)]
pub(crate) struct Parting {
    /// The superblock that is in flight from before: the last word does not pass it.
    before: Option<InFlight>,
    /// The last word, once it is in flight.
    op: Option<OpId>,
    /// The superblock on disk.
    durable: Option<Box<Superblock>>,
}

impl Resource {
    /// The disk goes, or is not back yet, and this node goes on with its vote. One that is connected
    /// to nobody goes on with nothing: usually it is being stopped.
    pub(crate) fn is_leaving(&self, vol: VolIx) -> bool {
        let disk = self.st.vols[vol].disk;
        let stopping = disk == DiskState::Detaching && self.st.connected().next().is_none();
        self.vols[vol].remembers && disk < DiskState::Inconsistent && !stopping
    }

    /// This node has had a disk, has none now, and the disk does not say so.
    pub(crate) fn is_adrift(&self, st: &State, vol: VolIx) -> bool {
        let volume = &self.vols[vol];
        let had_one = volume.detached.is_some() || volume.backing.is_some();
        let mut others = (0..self.peers.len()).filter(|p| self.peer_has_bitmap(*p, vol));
        let single = match (others.next(), others.next()) {
            (Some(other), None) => st.peers[other].conn == ConnState::Connected,
            _ => false,
        };
        had_one && st.vols[vol].disk < DiskState::Inconsistent && !volume.says_adrift && !single
    }

    /// A superblock is about to be written.
    pub(crate) fn recording(&mut self, vol: VolIx, content: &Superblock) {
        self.vols[vol].says_adrift &= content.peer(self.me).bitmap_uuid.same(ANYTHING);
    }

    /// A superblock is on disk.
    pub(crate) fn recorded(&mut self, vol: VolIx, adrift: bool) {
        if adrift && !self.vols[vol].says_adrift {
            self.vols[vol].says_adrift = true;
            self.change_hard(|_| {});
        }
    }

    /// The disk is not used any more: it is released, with its last word if it owes one.
    pub(crate) fn part_with(&mut self, vol: VolIx, parting: Parting, leaving: bool) {
        let waits = parting.before.is_some();
        if !leaving || self.vols[vol].says_adrift || parting.durable.is_none() && !waits {
            return self.release_disk(vol);
        }
        self.vols[vol].parting = Some(Box::new(parting));
        if !waits {
            self.say_last_word(vol);
        }
    }

    fn release_disk(&mut self, vol: VolIx) {
        self.out.push_back(Output::DiskReleased { volume: self.vols[vol].nr });
    }

    fn say_last_word(&mut self, vol: VolIx) {
        let durable = self.vols[vol].parting.as_mut().and_then(|p| p.durable.take());
        if let Some(mut content) = durable {
            content.peer_mut(self.me).bitmap_uuid = ANYTHING;
            let op = self.op(Op::Meta(vol));
            let block = MetaBlock { place: MetaPlace::Superblock, bytes: content.encode() };
            let flush = self.vols[vol].disk_opts.md_flushes;
            let write = MetaWrite { plain: Vec::new(), commit: Some(block), flush };
            self.out.push_back(Output::MetaWrite { volume: self.vols[vol].nr, op, write });
            if let Some(parting) = &mut self.vols[vol].parting {
                parting.op = Some(op);
            }
        } else {
            self.vols[vol].parting = None;
        }
        self.release_disk(vol);
    }

    /// A metadata write has ended.
    pub(crate) fn parting_done(&mut self, vol: VolIx, op: OpId, ok: bool) {
        let Some(parting) = &mut self.vols[vol].parting else { return };
        if parting.op == Some(op) {
            self.vols[vol].parting = None;
            return self.recorded(vol, ok);
        }
        let Some(before) = parting.before.take_if(|before| before.is(op)) else { return };
        if let (Some(content), true) = (before.into_superblock(), ok) {
            parting.durable = Some(content);
        }
        self.say_last_word(vol);
    }
}

impl Parting {
    pub(crate) fn new(durable: Option<Box<Superblock>>, before: Option<InFlight>) -> Parting {
        let before = before.filter(InFlight::has_superblock);
        Parting { before, op: None, durable }
    }
}
