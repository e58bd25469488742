//! The v08 superblock of DRBD 8 (metadata §1.3). Bitmap and activity log are those of v09 with one
//! slot, so a disk that has it is used as it is: [`SuperblockV8::of_pair`] and its inverse.
//!
//! One flag means something else. A Secondary of DRBD 8 keeps no log beside a Primary with a disk,
//! and PRIMARY_IND found at attach says that this node was the Primary which crashed (a superblock of
//! kernel 8.4.11 under load has the flags 0x17). In v09 that is CRASHED_PRIMARY, and PRIMARY_IND says
//! only that the log counts.

use vocab::{Dagtag, GenUuid, MAX_NODES, NodeId, NodeMask, Sectors};

use super::superblock::{
    MAGIC_V08, MAGIC_V08_UNCLEAN, decode_striping, foreign_magic, gi_line, invalid,
};
use super::{
    AlStriping, Block, Field, MdFlags, PeerFlags, PeerSlot, Superblock, SuperblockError, Version,
    be32, be64, put32, put64, zeroed_block,
};

/// Offsets within the block.
mod at {
    pub const EFFECTIVE_SIZE: usize = 0x00;
    pub const CURRENT_UUID: usize = 0x08;
    pub const BITMAP_UUID: usize = 0x10;
    pub const HISTORY: usize = 0x18;
    pub const DEVICE_UUID: usize = 0x28;
    /// Unused by DRBD: whoever writes a superblock clears it.
    pub const RESERVED: usize = 0x30;
    pub const FLAGS: usize = 0x38;
    pub const MAGIC: usize = 0x3C;
    pub const MD_SIZE: usize = 0x40;
    pub const AL_OFFSET: usize = 0x44;
    pub const AL_NR_EXTENTS: usize = 0x48;
    pub const BM_OFFSET: usize = 0x4C;
    pub const BM_BYTES_PER_BIT: usize = 0x50;
    pub const LA_PEER_MAX_BIO_SIZE: usize = 0x54;
    pub const AL_STRIPES: usize = 0x58;
    pub const AL_STRIPE_SIZE_4K: usize = 0x5C;
}

/// What this crate puts there. It is gone once a kernel or drbdmeta has written, which is right:
/// the log is theirs then.
const LOG_OF_SECONDARY: u64 = u64::from_be_bytes(*b"ASHLAR-1");

/// The only granularity there is.
const BYTES_PER_BIT: u32 = 4096;

/// What v08 keeps among the flags of the device and v09 among those of the peer.
const MOVED: [(MdFlags, PeerFlags); 3] = [
    (MdFlags::V08_CONNECTED, PeerFlags::CONNECTED),
    (MdFlags::V08_FULL_SYNC, PeerFlags::FULL_SYNC),
    (MdFlags::V08_PEER_OUTDATED, PeerFlags::OUTDATED),
];

/// A v08 superblock: one peer, and its flags among the device's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SuperblockV8 {
    /// Last agreed size of the volume; 0 = never agreed.
    pub effective_size: Sectors,
    /// Current data generation.
    pub current_uuid: GenUuid,
    /// Generation from which the peer's bits count.
    pub bitmap_uuid: GenUuid,
    /// Older generations, youngest first.
    pub history: [GenUuid; 2],
    /// Random identity of the backing device; 0 = unset.
    pub device_uuid: u64,
    /// Device and peer flags with their v08 meaning.
    pub flags: MdFlags,
    /// The activity log was applied: both the magic and the flag say so. apply-al sets both;
    /// the kernel of 8.4 changes only the magic, and that of 8.3 only knows the clean one.
    pub clean: bool,
    /// The log of this disk counts although its node was not Primary: one of ours wrote it. DRBD 8
    /// has nothing for that, and goes by what the Primary knows.
    pub log_of_secondary: bool,
    /// Size of the metadata area.
    pub md_size: Sectors,
    /// Activity log relative to the superblock, in sectors.
    pub al_offset: i32,
    /// al-extents in use at the last superblock write.
    pub al_nr_extents: u32,
    /// Bitmap relative to the superblock, in sectors.
    pub bm_offset: i32,
    /// Last agreed largest request, in bytes; 0 = unset.
    pub la_peer_max_bio_size: u32,
    /// Shape of the activity log.
    pub al: AlStriping,
}

impl SuperblockV8 {
    /// Reads a v08 superblock.
    ///
    /// # Errors
    /// Other versions and values that no DRBD writes.
    pub fn decode(block: &Block) -> Result<SuperblockV8, SuperblockError> {
        let flags = MdFlags(be32(block, at::FLAGS));
        let clean = match be32(block, at::MAGIC) {
            MAGIC_V08 => flags.contains(MdFlags::AL_CLEAN),
            MAGIC_V08_UNCLEAN => false,
            magic => return Err(foreign_magic(block, magic)),
        };
        let bytes_per_bit = be32(block, at::BM_BYTES_PER_BIT);
        if bytes_per_bit != BYTES_PER_BIT {
            return Err(invalid(Field::BmBytesPerBit, bytes_per_bit, "4096 in v08"));
        }
        Ok(SuperblockV8 {
            effective_size: Sectors(be64(block, at::EFFECTIVE_SIZE)),
            current_uuid: GenUuid(be64(block, at::CURRENT_UUID)),
            bitmap_uuid: GenUuid(be64(block, at::BITMAP_UUID)),
            history: [0, 8].map(|next| GenUuid(be64(block, at::HISTORY + next))),
            device_uuid: be64(block, at::DEVICE_UUID),
            flags,
            clean,
            log_of_secondary: be64(block, at::RESERVED) == LOG_OF_SECONDARY,
            md_size: Sectors(u64::from(be32(block, at::MD_SIZE))),
            al_offset: be32(block, at::AL_OFFSET) as i32,
            al_nr_extents: be32(block, at::AL_NR_EXTENTS),
            bm_offset: be32(block, at::BM_OFFSET) as i32,
            la_peer_max_bio_size: be32(block, at::LA_PEER_MAX_BIO_SIZE),
            al: decode_striping(be32(block, at::AL_STRIPES), be32(block, at::AL_STRIPE_SIZE_4K))?,
        })
    }

    /// The block as it goes to disk.
    pub fn encode(&self) -> Box<Block> {
        let mut block = zeroed_block();
        self.encode_into(&mut block);
        block
    }

    /// Writes the superblock over `block`, reserved bytes as zero. Magic and flag agree about the
    /// activity log, as after apply-al.
    pub(super) fn encode_into(&self, block: &mut Block) {
        block.fill(0);
        put64(block, at::EFFECTIVE_SIZE, self.effective_size.0);
        put64(block, at::CURRENT_UUID, self.current_uuid.0);
        put64(block, at::BITMAP_UUID, self.bitmap_uuid.0);
        put64(block, at::HISTORY, self.history[0].0);
        put64(block, at::HISTORY + 8, self.history[1].0);
        put64(block, at::DEVICE_UUID, self.device_uuid);
        if self.log_of_secondary {
            put64(block, at::RESERVED, LOG_OF_SECONDARY);
        }
        let mut flags = self.flags;
        flags.set(MdFlags::AL_CLEAN, self.clean);
        put32(block, at::FLAGS, flags.0);
        put32(block, at::MAGIC, if self.clean { MAGIC_V08 } else { MAGIC_V08_UNCLEAN });
        let md_size = u32::try_from(self.md_size.0).expect("a layout's area has 32 bits");
        put32(block, at::MD_SIZE, md_size);
        put32(block, at::AL_OFFSET, self.al_offset as u32);
        put32(block, at::AL_NR_EXTENTS, self.al_nr_extents);
        put32(block, at::BM_OFFSET, self.bm_offset as u32);
        put32(block, at::BM_BYTES_PER_BIT, BYTES_PER_BIT);
        put32(block, at::LA_PEER_MAX_BIO_SIZE, self.la_peer_max_bio_size);
        put32(block, at::AL_STRIPES, self.al.stripes());
        put32(block, at::AL_STRIPE_SIZE_4K, self.al.stripe_size_4k());
    }

    /// The same as a superblock of `(this node, its peer)`, still encoded as v08. AL_CLEAN says
    /// whether the activity log is applied, as in v09.
    pub fn of_pair(&self, pair: Option<(NodeId, NodeId)>) -> Superblock {
        // Bits that DRBD 8 has no use for say nothing, whatever stands there.
        let mut flags = self.flags.without(MdFlags::PRIMARY_LOST_QUORUM | MdFlags::HAVE_QUORUM);
        flags.set(MdFlags::AL_CLEAN, self.clean);
        if flags.contains(MdFlags::PRIMARY_IND) {
            flags.set(MdFlags::CRASHED_PRIMARY, true);
        } else if self.log_of_secondary {
            flags.set(MdFlags::PRIMARY_IND, true);
        }
        let mut entry = PeerSlot {
            bitmap_uuid: self.bitmap_uuid,
            bitmap_index: Some(0),
            ..PeerSlot::default()
        };
        for (device, peer) in MOVED {
            entry.flags.set(peer, flags.contains(device));
            flags.set(device, false);
        }
        let mut peers = [PeerSlot::default(); MAX_NODES];
        if let Some((_, peer)) = pair {
            peers[peer.index()] = entry;
        }
        let mut history = [GenUuid::NONE; MAX_NODES];
        history[..2].copy_from_slice(&self.history);
        Superblock {
            version: Version::V08,
            effective_size: self.effective_size,
            current_uuid: self.current_uuid,
            members: NodeMask::EMPTY,
            device_uuid: self.device_uuid,
            flags,
            md_size: self.md_size,
            al_offset: self.al_offset,
            al_nr_extents: self.al_nr_extents,
            bm_offset: self.bm_offset,
            bm_bytes_per_bit: BYTES_PER_BIT,
            la_peer_max_bio_size: self.la_peer_max_bio_size,
            max_peers: 1,
            node_id: pair.map(|(me, _)| me),
            al: self.al,
            peers,
            history,
        }
    }

    /// What v08 can hold of a superblock: the inverse of [`SuperblockV8::of_pair`].
    pub fn from_pair(superblock: &Superblock) -> SuperblockV8 {
        let entry = superblock.peers.iter().find(|peer| peer.bitmap_index == Some(0));
        let entry = entry.copied().unwrap_or_default();
        // DRBD 8 has neither quorum nor a use for its bits.
        let mut flags =
            superblock.flags.without(MdFlags::PRIMARY_LOST_QUORUM | MdFlags::HAVE_QUORUM);
        for (device, peer) in MOVED {
            flags.set(device, entry.flags.contains(peer));
        }
        let log_of_secondary =
            flags.contains(MdFlags::PRIMARY_IND) && !flags.contains(MdFlags::CRASHED_PRIMARY);
        if log_of_secondary {
            flags.set(MdFlags::PRIMARY_IND, false);
        }
        SuperblockV8 {
            effective_size: superblock.effective_size,
            current_uuid: superblock.current_uuid,
            bitmap_uuid: entry.bitmap_uuid,
            history: [superblock.history[0], superblock.history[1]],
            device_uuid: superblock.device_uuid,
            flags,
            clean: superblock.flags.contains(MdFlags::AL_CLEAN),
            log_of_secondary,
            md_size: superblock.md_size,
            al_offset: superblock.al_offset,
            al_nr_extents: superblock.al_nr_extents,
            bm_offset: superblock.bm_offset,
            la_peer_max_bio_size: superblock.la_peer_max_bio_size,
            al: superblock.al,
        }
    }

    /// The v09 superblock that `create-md` makes of it: one slot, not yet given to a peer, its
    /// flags kept with node 0. Bitmap and activity log stay where they are.
    ///
    /// Refuses while the activity log is not applied: the conversion would forget that.
    ///
    /// # Errors
    /// [`SuperblockError::NotClean`].
    pub fn to_v09(&self) -> Result<Superblock, SuperblockError> {
        if !self.clean {
            return Err(SuperblockError::NotClean);
        }
        let node0 = NodeId::new(0).expect("0 is a node id");
        let mut v9 = self.of_pair(Some((node0, node0)));
        for flag in [MdFlags::PRIMARY_IND, MdFlags::CRASHED_PRIMARY] {
            v9.flags.set(flag, self.flags.contains(flag));
        }
        v9.version = Version::V09;
        v9.node_id = None;
        let entry = v9.peer_mut(node0);
        *entry = PeerSlot { flags: entry.flags, bitmap_dagtag: Dagtag(0), ..PeerSlot::default() };
        Ok(v9)
    }

    /// The line `get-gi` prints for v08 (metadata §7.5).
    pub fn gi_string(&self) -> String {
        let digits = [
            MdFlags::CONSISTENT,
            MdFlags::WAS_UP_TO_DATE,
            MdFlags::PRIMARY_IND,
            MdFlags::V08_CONNECTED,
            MdFlags::V08_FULL_SYNC,
            MdFlags::V08_PEER_OUTDATED,
            MdFlags::CRASHED_PRIMARY,
        ];
        let uuids = [self.current_uuid, self.bitmap_uuid, self.history[0], self.history[1]];
        gi_line(uuids, digits.into_iter().map(|flag| self.flags.contains(flag)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Placement, Rules, activity_log};
    use vocab::Bytes;

    fn example(magic: u32) -> Box<Block> {
        let mut block = zeroed_block();
        put64(&mut block, 0x00, 130992);
        put64(&mut block, 0x08, 0x11);
        put64(&mut block, 0x10, 0x20);
        put64(&mut block, 0x18, 0x30);
        put64(&mut block, 0x20, 0x40);
        put32(&mut block, 0x38, 0x0000_00AD);
        put32(&mut block, 0x3C, magic);
        put32(&mut block, 0x40, 0x50);
        put32(&mut block, 0x44, -64i32 as u32);
        put32(&mut block, 0x48, 257);
        put32(&mut block, 0x4C, -72i32 as u32);
        put32(&mut block, 0x50, 4096);
        block
    }

    #[test]
    fn v08_is_read_with_its_flags() {
        let v8 = SuperblockV8::decode(&example(MAGIC_V08)).unwrap();
        assert!(v8.clean);
        assert_eq!(v8.al, AlStriping::default(), "0/0 is one stripe of eight blocks");
        assert_eq!((v8.al_offset, v8.bm_offset), (-64, -72));
        assert_eq!(
            v8.gi_string(),
            "0000000000000011:0000000000000020:0000000000000030:0000000000000040:1:0:0:1:1:1:0"
        );
    }

    /// Metadata areas of a kernel that lost its power, see testdata/disk/README.md.
    const HOT_PRIMARY: &[u8] = include_bytes!("../../testdata/disk/v08-hot-primary.bin");
    const HOT_SECONDARY: &[u8] = include_bytes!("../../testdata/disk/v08-hot-secondary.bin");

    #[test]
    fn what_a_kernel_has_written_is_read_and_written_again() {
        for (area, flags, hot) in
            [(HOT_PRIMARY, 0x17, &[0, 1, 2, 3, 4, 5, 8][..]), (HOT_SECONDARY, 0x15, &[])]
        {
            let (blocks, _) = area.as_chunks::<4096>();
            let v8 = SuperblockV8::decode(&blocks[9]).unwrap();
            assert_eq!(v8.encode()[..], blocks[9]);
            assert_eq!((v8.flags, v8.clean), (MdFlags(flags), false));
            assert_eq!(v8.effective_size, Sectors(130_992));
            assert_eq!((v8.al, v8.al_nr_extents), (AlStriping::default(), 1237));
            let log = &area[4096..9 * 4096];
            assert!(!activity_log::is_pre_v84(v8.al, log));
            let found = activity_log::recover(v8.al, log, v8.al_nr_extents).unwrap();
            assert_eq!(found.extents.into_iter().collect::<Vec<_>>(), hot);
            let used = v8.of_pair(NodeId::new(0).zip(NodeId::new(1)));
            let layout =
                used.validate(Placement::Internal, Bytes(64 << 20), Rules::Drbdmeta).unwrap();
            assert_eq!(layout.usable, v8.effective_size);
        }
    }

    #[test]
    fn conversion_moves_peer_flags_and_forgets_the_slot() {
        let v9 = SuperblockV8::decode(&example(MAGIC_V08)).unwrap().to_v09().unwrap();
        assert_eq!(v9.flags, MdFlags::CONSISTENT | MdFlags::AL_CLEAN);
        assert_eq!(v9.peers[0].flags.0, 0xB);
        assert_eq!(v9.peers[0].bitmap_index, None);
        assert_eq!(v9.peers[0].bitmap_uuid, GenUuid::NONE);
        assert_eq!((v9.max_peers, v9.node_id), (1, None));
        assert_eq!(v9.history[..3], [GenUuid(0x30), GenUuid(0x40), GenUuid::NONE]);
        assert_eq!(Superblock::decode(&v9.encode()).unwrap(), v9);
    }

    #[test]
    fn unclean_v08_is_not_converted() {
        let v8 = SuperblockV8::decode(&example(MAGIC_V08_UNCLEAN)).unwrap();
        assert_eq!(v8.to_v09(), Err(SuperblockError::NotClean));
        let mut no_flag = example(MAGIC_V08);
        put32(&mut no_flag, 0x38, 1);
        let v8 = SuperblockV8::decode(&no_flag).unwrap();
        assert_eq!(v8.to_v09(), Err(SuperblockError::NotClean));
    }

    #[test]
    fn a_pair_keeps_what_v08_says_and_is_written_back_as_it_was() {
        let [me, peer] = [3, 5].map(|id| NodeId::new(id).unwrap());
        let block = example(MAGIC_V08);
        let pair = Superblock::decode_any(&block, Some((me, peer))).unwrap();
        assert_eq!((pair.version, pair.node_id, pair.max_peers), (Version::V08, Some(me), 1));
        let entry = *pair.peer(peer);
        assert_eq!((entry.bitmap_index, entry.bitmap_uuid), (Some(0), GenUuid(0x20)));
        assert_eq!(entry.flags.0, 0xB, "connected, outdated and full sync are the peer's");
        assert_eq!(pair.flags, MdFlags::CONSISTENT | MdFlags::AL_CLEAN);
        let back = pair.encode();
        assert_eq!(back[..0x58], block[..0x58]);
        assert_eq!(SuperblockV8::decode(&back), SuperblockV8::decode(&block));
        // A log that is in use shows in the magic and in the flag, whichever the reader looks at.
        let mut used = pair.clone();
        used.flags = used.flags.without(MdFlags::AL_CLEAN).with(MdFlags::HAVE_QUORUM);
        let written = used.encode();
        assert_eq!(be32(&written, at::MAGIC), MAGIC_V08_UNCLEAN);
        assert_eq!(MdFlags(be32(&written, at::FLAGS)), MdFlags(0x2D), "no bits of DRBD 9");
        // Who only asks for areas need not know the nodes.
        let nobodys = Superblock::decode_any(&block, None).unwrap();
        assert_eq!((nobodys.bm_offset, nobodys.max_peers), (-72, 1));
    }

    #[test]
    fn who_was_primary_is_told_in_the_way_of_each_version() {
        let pair = NodeId::new(0).zip(NodeId::new(1));
        let mut superblock = Superblock::decode_any(&example(MAGIC_V08), pair).unwrap();
        let (log, crashed) = (MdFlags::PRIMARY_IND, MdFlags::CRASHED_PRIMARY);
        // What is used in memory, and PRIMARY_IND and CRASHED_PRIMARY on disk.
        for (used, on_disk) in [
            (MdFlags::EMPTY, MdFlags::EMPTY),
            (log, MdFlags::EMPTY),
            (log | crashed, log | crashed),
            (crashed, crashed),
        ] {
            superblock.flags = MdFlags::CONSISTENT | used;
            let block = superblock.encode();
            assert_eq!(MdFlags(be32(&block, at::FLAGS) & 0x42), on_disk, "{used:?}");
            assert_eq!(Superblock::decode_any(&block, pair).as_ref(), Ok(&superblock));
        }
        // A kernel Primary.
        let mut block = example(MAGIC_V08_UNCLEAN);
        put32(&mut block, at::FLAGS, 0x17);
        let superblock = Superblock::decode_any(&block, pair).unwrap();
        assert!(superblock.flags.contains(log | crashed));
        // A kernel that took the disk of one of our Secondaries has cleared what it does not know.
        put64(&mut block, at::RESERVED, LOG_OF_SECONDARY);
        put32(&mut block, at::FLAGS, 0x15);
        assert!(Superblock::decode_any(&block, pair).unwrap().flags.contains(log));
        put64(&mut block, at::RESERVED, 0);
        assert!(!Superblock::decode_any(&block, pair).unwrap().flags.contains(log));
    }

    #[test]
    fn other_versions_are_named() {
        let refused = |magic| SuperblockV8::decode(&example(magic)).unwrap_err();
        assert_eq!(refused(0x8374_026D), SuperblockError::Version09);
        assert_eq!(refused(0x8374_026A), SuperblockError::Version07);
        assert_eq!(refused(7), SuperblockError::NotDrbd { magic: 7 });
        let v08 = Superblock::decode(&example(MAGIC_V08)).unwrap_err();
        assert_eq!(v08, SuperblockError::Version08);
    }
}
