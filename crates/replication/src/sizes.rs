//! Sizes of volumes: what nodes tell each other of them (P_SIZES), and what they agree on without a
//! command (semantics §10, wire §4.2). Changing a size by command is in `resize`.
//!
//! A size that data was written in stays until a resize. A disk that was away during one follows the
//! others when it meets them: what it lacks then, the bits say. No disk ever takes writes beyond the
//! size that its metadata knows (`Backing::hold_for_size`). So what a disk lacks of a size, nobody
//! has written in a generation that it holds, and within one generation any of the two may be the
//! source of that.

use codec::wire::{Packet, QueueLimits, Sizes, StateWord};
use vocab::{DiskState, ReplState, Role, Sectors, VolumeNr};

use crate::io::Output;
use crate::resource::Resource;
use crate::state::{PeerIx, VolIx};

impl Resource {
    /// This node's sizes, for a peer.
    ///
    /// DRBD tells what the smallest disk that it knows of has room for, and so fresh disks agree. Where
    /// that is told in a circle it stays for ever what it once was, though the disk has grown; so once
    /// there are data, nodes of our kind tell of their own disks only. Whom they do not reach they hear
    /// of by resize's transaction.
    pub(crate) fn sizes(&self, vol: VolIx, peer: PeerIx) -> Sizes {
        let volume = &self.vols[vol];
        let limits = volume.backing.as_ref().map(|b| b.limits);
        let logical = limits.map_or(512, |l| l.logical_block_size);
        let discard = u8::from(limits.is_none_or(|l| l.discard_zeroes));
        let own = volume.backing.as_ref().map_or(0, |b| b.capacity.0);
        let has_data = match &volume.backing {
            Some(_) => !self.is_blank(vol),
            None => self.counting(None).any(|p| self.settled_size(p, vol).is_some()),
        };
        let smallest =
            if self.is_ours(peer) && has_data { own } else { self.smallest_disk(vol, None) };
        Sizes {
            // What a peer has said of its room may be older than the size it has agreed to since.
            d_size: Sectors(if smallest == 0 { 0 } else { smallest.max(volume.size.0) }),
            u_size: Sectors(0),
            c_size: volume.size,
            max_bio_size: 1 << 20,
            queue_order_type: 0,
            dds_flags: 0,
            limits: Some(QueueLimits {
                physical_block_size: limits.map_or(512, |l| l.physical_block_size),
                logical_block_size: logical,
                alignment_offset: 0,
                io_min: logical,
                io_opt: 0,
                discard_enabled: discard,
                discard_zeroes_data: discard,
                write_same_capable: 0,
                bm_block_shift: 0,
            }),
        }
    }

    /// P_SIZES.
    pub(crate) fn peer_sizes(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        sizes: Sizes,
    ) -> Result<(), &'static str> {
        let Some(vol) = self.vol_ix(nr) else { return Ok(()) };
        if sizes.d_size.0 != 0 && sizes.c_size > sizes.d_size {
            return Err("the peer's size is larger than its capacity");
        }
        self.peers[peer].devs[vol].sizes = Some(sizes);
        if self.st.is_connected(peer) {
            if self.size_conflict(peer, vol).is_some() {
                return Err("the peer's size does not fit the data that is here");
            }
            self.settle_size(vol);
        }
        Ok(())
    }

    /// A peer's size that this node can not live with.
    pub(crate) fn size_conflict(&self, peer: PeerIx, vol: VolIx) -> Option<String> {
        let sizes = self.peers[peer].devs[vol].sizes.as_ref()?;
        let volume = &self.vols[vol];
        let new = self.agreed_size(vol, Some(peer));
        let name = &self.peers[peer].name;
        let nr = volume.nr;
        if let Some(backing) = &volume.backing {
            // A disk that nothing was ever written to takes whatever size is left to it.
            let uuids = self.peers[peer].devs[vol].uuids.as_ref();
            let fresh = uuids.is_some_and(|u| u.current.is_just_created());
            if sizes.c_size.0 > backing.capacity.0 && !fresh {
                return Some(format!(
                    "volume {nr}: the peer {name} has {} sectors, this disk has room for {} only; \
                     give it more",
                    sizes.c_size.0, backing.capacity.0
                ));
            }
            let smallest = self.smallest_disk(vol, Some(peer));
            if self.settled_size(peer, vol).is_some_and(|c| c > volume.size && c.0 > smallest)
                && !self.is_blank(vol)
            {
                return Some(format!(
                    "volume {nr}: the peer {name} has {} sectors, another disk has room for \
                     {smallest} only; give that one more",
                    sizes.c_size.0
                ));
            }
            let disk = self.st.vols[vol].disk;
            let there = |disk| disk >= DiskState::Outdated && disk != DiskState::DUnknown;
            let consistent = there(disk)
                || (disk == DiskState::Negotiating && backing.md_consistent())
                || self.st.connected().any(|p| there(self.st.peers[p].devs[vol].disk));
            if consistent && volume.size.0 != 0 && new < volume.size {
                return Some(format!(
                    "volume {nr}: connecting to {name} would shrink it from {} to {} sectors",
                    volume.size.0, new.0
                ));
            }
        } else if self.st.role == Role::Primary
            && volume.size.0 != 0
            && sizes.c_size.0 != 0
            && sizes.c_size < volume.size
            && sizes.d_size < volume.size
        {
            return Some(format!("volume {nr}: {name} is smaller than what this Primary uses"));
        }
        None
    }

    /// The peer's disk has missed that the volume grew, and this Primary has none: others tell it.
    pub(crate) fn grows_first(&self, peer: PeerIx, vol: VolIx) -> bool {
        let volume = &self.vols[vol];
        volume.backing.is_none()
            && self.st.role == Role::Primary
            && self.settled_size(peer, vol).is_some_and(|c| c < volume.size)
    }

    /// The disk here has never had data.
    fn is_blank(&self, vol: VolIx) -> bool {
        let backing = self.vols[vol].backing.as_ref();
        backing.is_some_and(|b| b.gens.current().is_just_created())
    }

    /// The size that the peer's disk has agreed to. One that has never had data has not, and a node
    /// without disk has no word in that.
    fn settled_size(&self, peer: PeerIx, vol: VolIx) -> Option<Sectors> {
        let dev = &self.peers[peer].devs[vol];
        let (sizes, uuids) = (dev.sizes.as_ref()?, dev.uuids.as_ref()?);
        let settled = uuids.of_disk() && !uuids.current.is_just_created();
        Some(sizes.c_size).filter(|size| settled && size.0 != 0)
    }

    /// Peers whose sizes count: who was refused, or has gone, does not.
    fn counting(&self, also: Option<PeerIx>) -> impl Iterator<Item = PeerIx> + '_ {
        let counts = move |p: &PeerIx| self.st.is_connected(*p) || Some(*p) == also;
        (0..self.peers.len()).filter(counts)
    }

    /// What the smallest disk can offer; 0 if none is known.
    pub(crate) fn smallest_disk(&self, vol: VolIx, also: Option<PeerIx>) -> u64 {
        let own = self.vols[vol].backing.as_ref().map(|b| b.capacity.0);
        let data = self.has_data_of_its_own(vol)
            || self.counting(also).any(|p| self.settled_size(p, vol).is_some());
        let speaking = self.counting(also).filter(|p| !(data && self.has_hearsay(*p, vol)));
        let peers = speaking.filter_map(|p| self.peers[p].devs[vol].sizes.as_ref());
        let room = own.into_iter().chain(peers.map(|s| s.d_size.0));
        room.filter(|s| *s != 0).min().unwrap_or(0)
    }

    /// What the peer says of room, it has only heard: a node of our kind without a disk. It may have
    /// heard it while the disks were fresh, or from another such node, and nobody corrects it when the
    /// disk has grown. So it counts only as long as no disk with data says anything.
    fn has_hearsay(&self, peer: PeerIx, vol: VolIx) -> bool {
        let uuids = self.peers[peer].devs[vol].uuids.as_ref();
        self.is_ours(peer) && uuids.is_some_and(|u| !u.of_disk())
    }

    /// The size that all these disks can offer; fixed once data exists, until a resize. Who has
    /// missed one follows those who have not, if all have the room.
    fn agreed_size(&self, vol: VolIx, also: Option<PeerIx>) -> Sectors {
        let smallest = self.smallest_disk(vol, also);
        let settled = self.counting(also).filter_map(|p| self.settled_size(p, vol));
        let settled = settled.filter(|c| c.0 <= smallest).max();
        let volume = &self.vols[vol];
        let own = volume.backing.as_ref().map_or(0, |b| b.sb.effective_size.0);
        if own == 0 {
            let sizes = self.counting(also).filter_map(|p| self.peers[p].devs[vol].sizes.as_ref());
            let current = sizes.map(|s| s.c_size).filter(|s| s.0 != 0).min();
            return settled.or(current).unwrap_or(Sectors(smallest));
        }
        match settled {
            Some(size) if self.is_blank(vol) => size,
            Some(size) => size.max(Sectors(own.min(smallest))),
            None => Sectors(own.min(smallest)),
        }
    }

    /// Adopts the agreed size.
    pub(crate) fn settle_size(&mut self, vol: VolIx) {
        if self.takes_part_in_resize(vol) {
            // It says by COMMIT what comes of it. If nobody tells this node, it follows the others.
            return;
        }
        let size = self.agreed_size(vol, None);
        self.adopt_size(vol, size);
    }

    /// The handshake with the peer was about the size that both have together: this disk grows to it.
    pub(crate) fn grow_to_peer(&mut self, peer: PeerIx, vol: VolIx) {
        let size = self.agreed_size(vol, Some(peer));
        if size > self.vols[vol].size && self.has_data_of_its_own(vol) {
            self.adopt_size(vol, size);
        }
    }

    fn has_data_of_its_own(&self, vol: VolIx) -> bool {
        self.vols[vol].backing.is_some() && !self.is_blank(vol)
    }

    fn adopt_size(&mut self, vol: VolIx, size: Sectors) {
        let volume = &self.vols[vol];
        let client = volume.backing.is_none() && self.st.role == Role::Primary;
        if size.0 == 0 || size == volume.size || client && size < volume.size {
            return;
        }
        let nr = self.vols[vol].nr;
        if size > self.vols[vol].size && self.vols[vol].backing.is_some() {
            self.set_volume_size(vol, size, true);
            self.want_catch_up();
        } else {
            let volume = &mut self.vols[vol];
            (volume.size, volume.told_size) = (size, size);
            if let Some(backing) = &mut volume.backing {
                if backing.bitmap.size() != size {
                    backing.bitmap.resize(size, true);
                }
                backing.sb.effective_size = size;
            }
            self.md_changed_now(vol);
            self.out.push_back(Output::SizeChanged { volume: nr, size });
        }
        // Whoever is connected to this node only hears of it from here.
        self.tell_sizes(vol, |_, _| true);
    }

    /// Tells some of the connected peers this node's sizes.
    fn tell_sizes(&mut self, vol: VolIx, some: impl Fn(&Resource, PeerIx) -> bool) {
        let peers: Vec<PeerIx> = self.st.connected().filter(|p| some(self, *p)).collect();
        for peer in peers {
            let sizes = Packet::Sizes(self.vols[vol].nr, Box::new(self.sizes(vol, peer)));
            self.send(peer, sizes);
        }
    }

    /// What this node says of sizes has changed by a command, or by what a disk was found to have room
    /// for. A kernel node is told by transaction, and might grow by itself.
    pub(crate) fn tell_own_kind(&mut self, vol: VolIx) {
        self.tell_sizes(vol, |resource, peer| resource.is_ours(peer));
    }

    /// The size of this volume is no longer what was sent in the handshake.
    pub(crate) fn sent_other_size(&self, peer: PeerIx, vol: VolIx) -> bool {
        let sent = self.peers[peer].devs[vol].sent_uuids.as_ref().map(|sent| sent.size);
        self.has_data_of_its_own(vol) && sent != Some(self.vols[vol].size)
    }

    /// Two disks of one generation, of which one has missed that the volume grew: what it grew by
    /// differs. `None` if the sizes are the same. A Primary is the source of it, else who knows the
    /// size already. A kernel node is not known to come to the same.
    pub(crate) fn decide_grown(
        &self,
        peer: PeerIx,
        vol: VolIx,
        word: StateWord,
        peer_disk: DiskState,
    ) -> Option<Result<ReplState, String>> {
        let (own, theirs) = (self.vols[vol].size, self.settled_size(peer, vol)?);
        let whole = |disk| disk > DiskState::Inconsistent;
        if own == theirs
            || !self.has_data_of_its_own(vol)
            || !whole(self.st.vols[vol].disk)
            || !whole(peer_disk)
        {
            return None;
        }
        if !self.is_ours(peer) {
            return Some(Err(format!(
                "volume {} has {} sectors here and {} there, with data of one generation; \
                 invalidate the disk of the node that has missed the resize",
                self.vols[vol].nr, own.0, theirs.0
            )));
        }
        let source = match (self.st.role == Role::Primary, word.role() == Some(Role::Primary)) {
            (true, _) => true,
            (false, true) => false,
            (false, false) => own > theirs,
        };
        Some(Ok(if source { ReplState::WFBitMapS } else { ReplState::WFBitMapT }))
    }
}
