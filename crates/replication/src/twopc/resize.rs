//! The transaction about the size of a volume: P_TWOPC_PREP_RSZ (wire §8.3). What its parts do on a
//! node is in `crate::resize`.
//!
//! A node answers once it has looked at its device, with the room there is. The initiator decides on
//! the size. Members and who is outdated are none of this transaction's business: its packets do not
//! say what that takes.

use codec::disk::MAX_VOLUME_SECTORS;
use codec::wire::{Operation, TwoPc};
use vocab::{DiskState, NodeMask, Refusal, Role, Sectors, StateError, VolumeNr};

use super::{Answer, Held, PrepareOrEnd, ReplyMasks};
use crate::resize::{Agreed, ResizeWish};
use crate::resource::{Resource, Work};
use crate::state::{PeerIx, VolIx};

/// What such a transaction is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resizing {
    /// Asked for by name; 0 if not.
    pub user_size: Sectors,
    /// dds_flags.
    pub flags: u16,
    /// What the smallest disk of those that have answered has room for.
    room: Sectors,
    /// Of a transaction of this node.
    wish: Option<ResizeWish>,
}

impl Resizing {
    /// One more answer is in.
    pub(super) fn take_room(&mut self, room: NodeMask) {
        self.room = self.room.min(Sectors(room.0));
    }
}

impl Held {
    /// PREPARE as it is sent on.
    pub(super) fn resize_request(&self, twopc: TwoPc) -> TwoPc {
        let Some(resize) = &self.resize else { return twopc };
        let (word20, word28) = (resize.user_size.0, u64::from(resize.flags) << 48);
        TwoPc { flags: 0, word20, word28, ..twopc }
    }
}

impl Resource {
    /// Asks the others. The device here was looked at.
    pub(crate) fn start_resize_twopc(&mut self, job: u64, vol: VolIx, wish: ResizeWish) {
        let resizing = Resizing {
            user_size: wish.size.unwrap_or_default(),
            flags: wish.flags(),
            room: Sectors(MAX_VOLUME_SECTORS),
            wish: Some(wish),
        };
        self.begin_twopc(job, Operation::Resize, None, Some(vol), Some(resizing));
    }

    /// P_TWOPC_PREP_RSZ.
    pub(crate) fn prepare_resize(
        &mut self,
        peer: PeerIx,
        nr: Option<VolumeNr>,
        request: TwoPc,
    ) -> Result<(), &'static str> {
        if nr.is_none() || request.word20 > MAX_VOLUME_SECTORS {
            return Err("it asks for an impossible size, or for that of no volume");
        }
        let resizing = Resizing {
            user_size: Sectors(request.word20),
            flags: (request.word28 >> 48) as u16,
            room: Sectors(MAX_VOLUME_SECTORS),
            wish: None,
        };
        self.twopc_prepare(peer, nr, request, Some(resizing))
    }

    /// A participant looks at its device before it says what room it has.
    pub(super) fn measure_before_answer(&mut self) {
        let Some(held) = self.twopc.held.as_mut().filter(|h| h.resize.is_some()) else { return };
        let (Some(vol), tid) = (held.vol, held.tid) else { return };
        held.recording += 1;
        self.measure(vol, Work::Answerable(tid));
    }

    /// The size of the volume is being agreed on, and this node has been asked.
    pub(crate) fn takes_part_in_resize(&self, vol: VolIx) -> bool {
        let about = |h: &Held| h.resize.is_some() && h.vol == Some(vol) && h.job.is_none();
        self.twopc.held.as_ref().is_some_and(about)
    }

    /// What is new is said to be equal everywhere, and here it is what is left of metadata.
    pub(super) fn has_left_metadata(&self, held: &Held) -> bool {
        let asked = held.resize.zip(held.vol).filter(|_| held.job.is_none());
        asked.is_some_and(|(resize, vol)| !self.may_be_clean(vol, resize.flags))
    }

    /// What this node's subtree reports upwards.
    pub(super) fn resize_masks(&self, held: &Held) -> ReplyMasks {
        let Some(resize) = &held.resize else { return ReplyMasks::default() };
        let backing = held.vol.and_then(|vol| self.vols[vol].backing.as_ref());
        let own = backing.map_or(MAX_VOLUME_SECTORS, |b| b.capacity.0);
        let primary = held.vol.map_or(NodeMask::EMPTY, |vol| self.diskful_primary(vol));
        ReplyMasks {
            reachable: self.st.connected_mask().with(self.me).or(held.reachable),
            primary: held.primary.or(primary),
            weak: NodeMask(resize.room.0.min(own)),
        }
    }

    fn diskful_primary(&self, vol: VolIx) -> NodeMask {
        let with_disk = self.st.vols[vol].disk == DiskState::UpToDate;
        match self.st.role == Role::Primary && with_disk {
            true => self.me.mask(),
            false => NodeMask::EMPTY,
        }
    }

    /// All answers to a resize of this node are in.
    pub(super) fn decide_resize(&mut self) {
        let answer = self.own_answer();
        let held = self.twopc.held.take().expect("an own transaction is held");
        let job = held.job.expect("it is this node's own");
        let size = match (held.vol, &held.resize, answer) {
            (Some(vol), Some(Resizing { wish: Some(wish), room, .. }), Answer::Yes) => {
                let reached = self.st.connected_mask().or(held.reachable);
                self.check_resize(vol)
                    .and_then(|()| self.new_size(vol, *wish, reached, *room))
                    .map(|size| size.map(|size| (vol, size)))
            }
            (_, _, Answer::No) => Err(Refusal::state(
                StateError::CwFailedByPeer,
                "it resyncs or verifies the volume, or has it in use if it is to shrink",
            )),
            _ => Err(StateError::ConcurrentStChg.into()),
        };
        match size {
            Ok(Some((vol, size))) => {
                let primaries = held.primary.or(self.diskful_primary(vol));
                self.forward(&held, PrepareOrEnd::Resized(size, primaries));
                self.apply_agreed(&held, vol, size, primaries);
                self.job_succeeded(job);
            }
            Ok(None) => {
                self.forward(&held, PrepareOrEnd::Abort);
                self.job_succeeded(job);
            }
            Err(refusal) => self.end_own(&held, refusal),
        }
    }

    /// P_TWOPC_COMMIT of a resize.
    pub(super) fn commit_resize(
        &mut self,
        held: &Held,
        request: TwoPc,
    ) -> Result<(), &'static str> {
        let (size, primaries) = (Sectors(request.word28), NodeMask(request.word20));
        self.forward(held, PrepareOrEnd::Resized(size, primaries));
        let Some(vol) = held.vol else { return Ok(()) };
        if size.0 == 0 || size.0 > MAX_VOLUME_SECTORS {
            return Err("it has resized a volume to an impossible size");
        }
        let room = self.vols[vol].backing.as_ref().map(|b| b.capacity);
        if room.is_some_and(|room| room < size) {
            self.give_up_disk(vol, "the nodes have agreed on a size that it has no room for");
        }
        if size < self.vols[vol].size && self.st.role == Role::Primary {
            return Err("it has shrunk a volume that is in use here");
        }
        self.apply_agreed(held, vol, size, primaries);
        Ok(())
    }

    fn apply_agreed(&mut self, held: &Held, vol: VolIx, size: Sectors, primaries: NodeMask) {
        let agreed = Agreed {
            size,
            flags: held.resize.map_or(0, |resize| resize.flags),
            diskful_primaries: primaries,
            children: held.children,
            parents: held.parents.iter().map(|p| self.peers[*p].node).collect(),
        };
        self.apply_resize(vol, &agreed);
    }
}
