//! The v08 superblock of DRBD 8 (metadata §1.3), read in order to convert it.

use vocab::{GenUuid, MAX_NODES, NodeMask, Sectors};

use super::superblock::{
    MAGIC_V08, MAGIC_V08_UNCLEAN, decode_striping, foreign_magic, gi_line, invalid,
};
use super::{
    AlStriping, Block, Field, MdFlags, PeerFlags, PeerSlot, Superblock, SuperblockError, be32, be64,
};

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
    pub fn decode(block: &Block) -> Result<SuperblockV8, SuperblockError> {
        let flags = MdFlags(be32(block, 0x38));
        let clean = match be32(block, 0x3C) {
            MAGIC_V08 => flags.contains(MdFlags::AL_CLEAN),
            MAGIC_V08_UNCLEAN => false,
            magic => return Err(foreign_magic(block, magic)),
        };
        let bytes_per_bit = be32(block, 0x50);
        if bytes_per_bit != 4096 {
            return Err(invalid(Field::BmBytesPerBit, bytes_per_bit, "4096 in v08"));
        }
        Ok(SuperblockV8 {
            effective_size: Sectors(be64(block, 0x00)),
            current_uuid: GenUuid(be64(block, 0x08)),
            bitmap_uuid: GenUuid(be64(block, 0x10)),
            history: [GenUuid(be64(block, 0x18)), GenUuid(be64(block, 0x20))],
            device_uuid: be64(block, 0x28),
            flags,
            clean,
            md_size: Sectors(u64::from(be32(block, 0x40))),
            al_offset: be32(block, 0x44) as i32,
            al_nr_extents: be32(block, 0x48),
            bm_offset: be32(block, 0x4C) as i32,
            la_peer_max_bio_size: be32(block, 0x54),
            al: decode_striping(be32(block, 0x58), be32(block, 0x5C))?,
        })
    }

    /// The v09 superblock that `create-md` makes of it: one slot, not yet given to a peer, its
    /// flags kept with node 0. Bitmap and activity log stay where they are.
    ///
    /// Refuses while the activity log is not applied: the conversion would forget that.
    pub fn to_v09(&self) -> Result<Superblock, SuperblockError> {
        if !self.clean {
            return Err(SuperblockError::NotClean);
        }
        let moved = [
            (MdFlags::V08_CONNECTED, PeerFlags::CONNECTED),
            (MdFlags::V08_FULL_SYNC, PeerFlags::FULL_SYNC),
            (MdFlags::V08_PEER_OUTDATED, PeerFlags::OUTDATED),
        ];
        let mut flags = self.flags;
        let mut peers = [PeerSlot::default(); MAX_NODES];
        for (device, peer) in moved {
            peers[0].flags.set(peer, flags.contains(device));
            flags.set(device, false);
        }
        let mut history = [GenUuid::NONE; MAX_NODES];
        history[..2].copy_from_slice(&self.history);
        Ok(Superblock {
            effective_size: self.effective_size,
            current_uuid: self.current_uuid,
            members: NodeMask::EMPTY,
            device_uuid: self.device_uuid,
            flags,
            md_size: self.md_size,
            al_offset: self.al_offset,
            al_nr_extents: self.al_nr_extents,
            bm_offset: self.bm_offset,
            bm_bytes_per_bit: 4096,
            la_peer_max_bio_size: self.la_peer_max_bio_size,
            max_peers: 1,
            node_id: None,
            al: self.al,
            peers,
            history,
        })
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
    use crate::disk::{put32, put64, zeroed_block};

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
    fn other_versions_are_named() {
        let refused = |magic| SuperblockV8::decode(&example(magic)).unwrap_err();
        assert_eq!(refused(0x8374_026D), SuperblockError::Version09);
        assert_eq!(refused(0x8374_026A), SuperblockError::Version07);
        assert_eq!(refused(7), SuperblockError::NotDrbd { magic: 7 });
        let v08 = Superblock::decode(&example(MAGIC_V08)).unwrap_err();
        assert_eq!(v08, SuperblockError::Version08);
    }
}
