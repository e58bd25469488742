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
//!
//! Without quorum votes protect nothing. A Primary that writes on, on disks of others, leaves this one
//! behind, which is not WAS_UP_TO_DATE from then on (semantics §1.6): that is all that tells it from
//! those disks once every node has lost its power, or it would be promoted as soon as the node with
//! the better one is fenced. So nothing that the disk lacks is completed before the last word is on
//! disk, or can not be written, or takes too long, as a disk that answers nothing stops nobody: a
//! Primary starts no generation before, and any other node answers no ping, which the Primary waits
//! for before it starts one.

use codec::disk::{MdFlags, Superblock};
use codec::wire::Packet;
use vocab::options::Quorum;
use vocab::{ConnState, DiskState, Instant, Role};

use crate::bound::ANYTHING;
use crate::io::{MetaBlock, MetaPlace, MetaWrite, OpId, Output};
use crate::meta::InFlight;
use crate::resource::{Op, Resource, Work};
use crate::state::{PeerIx, State, VolIx};

/// A disk is being released.
#[derive(Debug)]
pub(crate) struct Parting {
    /// The superblock that is in flight from before: the last word does not pass it.
    before: Option<InFlight>,
    /// The last word, once it is in flight.
    op: Option<OpId>,
    /// The superblock on disk.
    durable: Option<Box<Superblock>>,
    /// A Primary writes on without the disk.
    outrun: bool,
    /// Until then writes wait for the last word.
    awaited: Option<Instant>,
}

impl Resource {
    /// The disk goes, or is not back yet, and this node goes on with its vote. One that is connected
    /// to nobody goes on with nothing: usually it is being stopped.
    pub(crate) fn is_leaving(&self, vol: VolIx) -> bool {
        let disk = self.st.vols[vol].disk;
        let stopping = disk == DiskState::Detaching && self.st.connected().next().is_none();
        self.vols[vol].remembers && disk < DiskState::Inconsistent && !stopping
    }

    /// A Primary has other disks that are current, and writes on without the one here.
    pub(crate) fn is_outrun(&self, vol: VolIx) -> bool {
        let primary = self.st.role == Role::Primary || !self.st.primary_peers().is_empty();
        primary && self.has_data(&self.st, vol)
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
    pub(crate) fn part_with(&mut self, vol: VolIx, mut parting: Parting, leaving: bool) {
        parting.outrun = self.opts.quorum == Quorum::Off && self.is_outrun(vol);
        let waits = parting.before.is_some();
        let current = |sb: &Superblock| sb.flags.contains(MdFlags::WAS_UP_TO_DATE);
        let passes = parting.outrun && (waits || parting.durable.as_deref().is_some_and(current));
        let owes = leaving && (passes || !self.vols[vol].says_adrift);
        if !owes || parting.durable.is_none() && !waits {
            return self.release_disk(vol);
        }
        // A peer that pings meanwhile has to be answered in time.
        let patience = self.peers.iter().map(|p| p.net.ping_timeout / 2).min();
        let patience = patience.filter(|_| parting.outrun);
        parting.awaited = patience.map(|patience| self.now + patience);
        self.vols[vol].parting = Some(Box::new(parting));
        if !waits {
            self.say_last_word(vol);
        }
    }

    fn release_disk(&mut self, vol: VolIx) {
        self.out.push_back(Output::DiskReleased { volume: self.vols[vol].nr });
    }

    fn say_last_word(&mut self, vol: VolIx) {
        let parting = self.vols[vol].parting.as_mut();
        let word = parting.and_then(|p| p.durable.take().map(|content| (content, p.outrun)));
        if let Some((mut content, outrun)) = word {
            content.peer_mut(self.me).bitmap_uuid = ANYTHING;
            if outrun {
                content.flags.set(MdFlags::WAS_UP_TO_DATE, false);
            }
            let op = self.op(Op::Meta(vol));
            let block = MetaBlock { place: MetaPlace::Superblock, bytes: content.encode() };
            let flush = self.vols[vol].disk_opts.md_flushes;
            let write = MetaWrite { plain: Vec::new(), commit: Some(block), flush };
            self.out.push_back(Output::MetaWrite { volume: self.vols[vol].nr, op, write });
            if let Some(parting) = &mut self.vols[vol].parting {
                parting.op = Some(op);
            }
        } else {
            self.parting_ended(vol);
        }
        self.release_disk(vol);
    }

    /// The last word is said, or there is none: what waited for it goes on.
    fn parting_ended(&mut self, vol: VolIx) {
        self.vols[vol].parting = None;
        self.go_on_without_disk();
    }

    fn go_on_without_disk(&mut self) {
        for peer in 0..self.peers.len() {
            if std::mem::take(&mut self.peers[peer].owes_ping_ack) {
                self.answer_ping(peer);
            }
        }
        self.resume_cleanups();
        self.work.push_back(Work::Resume);
    }

    /// Nothing that the disk lacks is completed: it is about to say that it is behind.
    pub(crate) fn awaits_last_word(&self, vol: VolIx) -> bool {
        self.parting_deadline(vol).is_some()
    }

    /// P_PING: the peer may be about to go on without a disk of this node.
    pub(crate) fn answer_ping(&mut self, peer: PeerIx) {
        match (0..self.vols.len()).any(|vol| self.awaits_last_word(vol)) {
            true => self.peers[peer].owes_ping_ack = true,
            false => self.send(peer, Packet::PingAck),
        }
    }

    pub(crate) fn parting_deadline(&self, vol: VolIx) -> Option<Instant> {
        self.vols[vol].parting.as_ref()?.awaited
    }

    /// The disk takes too long.
    pub(crate) fn parting_timeout(&mut self, vol: VolIx) {
        if self.parting_deadline(vol).is_some_and(|at| at <= self.now) {
            self.vols[vol].parting.as_mut().expect("it has a deadline").awaited = None;
            self.go_on_without_disk();
        }
    }

    /// A metadata write has ended.
    pub(crate) fn parting_done(&mut self, vol: VolIx, op: OpId, ok: bool) {
        let Some(parting) = &mut self.vols[vol].parting else { return };
        if parting.op == Some(op) {
            self.parting_ended(vol);
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
        Parting { before, op: None, durable, outrun: false, awaited: None }
    }
}
