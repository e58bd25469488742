//! The superblock (metadata §1.2): one big-endian block without checksum.
//!
//! [`Superblock`] has what v09 stores. That of v08, which `superblock_v8` reads and writes, is the
//! same for a node with one peer, so what uses a disk need not ask which of the two it has.
//!
//! Decoding accepts what the types can hold; [`Superblock::validate`] then asks what DRBD or
//! drbdmeta ask before they use it. Reserved bytes are written as zero, as every writer does.

use std::fmt;

use serde::{Deserialize, Serialize};
use vocab::{Bytes, Dagtag, GenUuid, MAX_NODES, NodeId, NodeMask, Sectors};

use super::placement::is_bytes_per_bit;
use super::{
    AlStriping, Block, Layout, MAX_SLOTS, MAX_VOLUME_SECTORS, MdFlags, MdParams, PeerFlags,
    Placement, PlacementError, SuperblockV8, be32, be64, bitmap, put32, put64, zeroed_block,
};

const MAGIC_V07: u32 = 0x8374_026A;
pub(super) const MAGIC_V08: u32 = 0x8374_026B;
pub(super) const MAGIC_V08_UNCLEAN: u32 = 0x8374_026C;
const MAGIC_V09: u32 = 0x8374_026D;
/// al-extents that `create-md` and `restore-md` record.
const AL_NR_EXTENTS_CREATED: u32 = 257;

/// Offsets within the block.
mod at {
    pub const EFFECTIVE_SIZE: usize = 0x000;
    pub const CURRENT_UUID: usize = 0x008;
    pub const MEMBERS: usize = 0x010;
    pub const DEVICE_UUID: usize = 0x030;
    pub const FLAGS: usize = 0x038;
    pub const MAGIC: usize = 0x03C;
    pub const MD_SIZE: usize = 0x040;
    pub const AL_OFFSET: usize = 0x044;
    pub const AL_NR_EXTENTS: usize = 0x048;
    pub const BM_OFFSET: usize = 0x04C;
    pub const BM_BYTES_PER_BIT: usize = 0x050;
    pub const LA_PEER_MAX_BIO_SIZE: usize = 0x054;
    pub const MAX_PEERS: usize = 0x058;
    pub const NODE_ID: usize = 0x05C;
    pub const AL_STRIPES: usize = 0x060;
    pub const AL_STRIPE_SIZE_4K: usize = 0x064;
    pub const PEERS: usize = 0x070;
    pub const PEER_SIZE: usize = 32;
    pub const HISTORY: usize = 0x470;
    /// Where v07 kept its magic.
    pub const MAGIC_V07: usize = 0x01C;
}

const _: () = assert!(at::PEERS + MAX_NODES * at::PEER_SIZE == at::HISTORY);

/// What one node's entry records; indexed by node id, not by slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PeerSlot {
    /// Generation from which this peer's bits count; 0 when it is in sync. Unused entries carry
    /// the day0 UUID (metadata §4.2).
    pub bitmap_uuid: GenUuid,
    /// Position in the write stream when `bitmap_uuid` was set.
    pub bitmap_dagtag: Dagtag,
    /// State of the peer when last known.
    pub flags: PeerFlags,
    /// The peer's bitmap slot.
    pub bitmap_index: Option<u8>,
}

/// The layout that a superblock has on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Version {
    /// That of DRBD 8: two nodes, one of them this one, and neither has a number.
    V08,
    /// That of DRBD 9.
    V09,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::V08 => "v08",
            Version::V09 => "v09",
        })
    }
}

/// A superblock of either version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Superblock {
    /// How it is encoded. v08 keeps the entry that has slot 0, the first two of the history and
    /// none of `members`, `node_id`, dagtags and the flags that DRBD 8 does not know.
    pub version: Version,
    /// Last agreed size of the volume (DRBD's la-size); 0 = never agreed.
    pub effective_size: Sectors,
    /// Current data generation; 4 = just created.
    pub current_uuid: GenUuid,
    /// Online members at the last state change; empty = unknown, written by an older tool.
    pub members: NodeMask,
    /// Random identity of the backing device; 0 = unset.
    pub device_uuid: u64,
    /// State of the disk.
    pub flags: MdFlags,
    /// Size of the metadata area.
    pub md_size: Sectors,
    /// Activity log relative to the superblock, in sectors.
    pub al_offset: i32,
    /// al-extents in use at the last superblock write; replay of a PMEM log needs it.
    pub al_nr_extents: u32,
    /// Bitmap relative to the superblock, in sectors.
    pub bm_offset: i32,
    /// Bytes of data behind one bit: a power of two, 4096 to 1048576.
    pub bm_bytes_per_bit: u32,
    /// Last agreed largest request, in bytes; 0 = unset.
    pub la_peer_max_bio_size: u32,
    /// Bitmap slots, 1 to 31.
    pub max_peers: u32,
    /// Own node id; `None` until assigned.
    pub node_id: Option<NodeId>,
    /// Shape of the activity log.
    pub al: AlStriping,
    /// All nodes' entries, by node id.
    pub peers: [PeerSlot; MAX_NODES],
    /// Older generations, youngest first.
    pub history: [GenUuid; MAX_NODES],
}

/// A field of the superblock, printed as `drbdmeta` spells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "named like the fields of Superblock")]
pub enum Field {
    EffectiveSize,
    MdSize,
    AlOffset,
    BmOffset,
    BmBytesPerBit,
    MaxPeers,
    NodeId,
    AlStripes,
    AlStripeSize4k,
    BitmapIndex(u8),
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Field::EffectiveSize => "effective-size",
            Field::MdSize => "md_size_sect",
            Field::AlOffset => "al_offset",
            Field::BmOffset => "bm_offset",
            Field::BmBytesPerBit => "bm-byte-per-bit",
            Field::MaxPeers => "max-peers",
            Field::NodeId => "node-id",
            Field::AlStripes => "al-stripes",
            Field::AlStripeSize4k => "al-stripe-size-4k",
            Field::BitmapIndex(node) => return write!(f, "peer[{node}] bitmap-index"),
        })
    }
}

/// Why a superblock cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SuperblockError {
    /// No known magic.
    NotDrbd {
        /// What stands where the magic belongs.
        magic: u32,
    },
    /// Metadata of DRBD 0.7.
    Version07,
    /// Metadata of DRBD 8 where version 9 is wanted.
    Version08,
    /// Metadata of DRBD 9 where version 8 is wanted.
    Version09,
    /// The activity log of v08 metadata must be applied before it can be converted.
    NotClean,
    /// A field has a value that DRBD refuses.
    Invalid {
        /// The field.
        field: Field,
        /// Its value.
        value: i128,
        /// What it must be.
        must: &'static str,
    },
    /// A field contradicts the device or another field.
    Mismatch {
        /// The field.
        field: Field,
        /// Its value.
        value: i64,
        /// What the formulas of metadata §2 give.
        expected: i64,
    },
    /// The device does not fit the placement at all.
    Placement(PlacementError),
}

impl fmt::Display for SuperblockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SuperblockError::NotDrbd { magic } => {
                write!(f, "no DRBD metadata: magic is {magic:#010x}; create it first")
            }
            SuperblockError::Version07 => f.write_str(
                "metadata of version v07 (DRBD 0.7) is not supported; convert it with DRBD's tools",
            ),
            SuperblockError::Version08 => f.write_str("metadata has version v08, not v09"),
            SuperblockError::Version09 => f.write_str("metadata has version v09, not v08"),
            SuperblockError::NotClean => {
                f.write_str("the activity log is not applied; run apply-al first")
            }
            SuperblockError::Invalid { field, value, must } => {
                write!(f, "{field} is {value}, it must be {must}")
            }
            SuperblockError::Mismatch { field, value, expected } => {
                write!(f, "{field} is {value}, but this device and striping give {expected}")
            }
            SuperblockError::Placement(_) => f.write_str("the metadata does not fit the device"),
        }
    }
}

impl std::error::Error for SuperblockError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SuperblockError::Placement(error) => Some(error),
            _ => None,
        }
    }
}

/// Whose questions [`Superblock::validate`] asks (metadata §2 "Validity tests").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rules {
    /// The kernel's at attach: the areas are large enough and do not collide. A device that was
    /// given a larger bitmap than it needs passes.
    Kernel,
    /// drbdmeta's: every offset is exactly what the formulas give for the device as it is.
    Drbdmeta,
}

pub(super) fn invalid(field: Field, value: impl Into<i128>, must: &'static str) -> SuperblockError {
    SuperblockError::Invalid { field, value: value.into(), must }
}

/// The striping of two superblock fields; both zero mean the default (metadata §1.2).
pub(super) fn decode_striping(
    stripes: u32,
    stripe_size_4k: u32,
) -> Result<AlStriping, SuperblockError> {
    match (stripes, stripe_size_4k) {
        (0, 0) => Ok(AlStriping::default()),
        (0, _) => Err(invalid(Field::AlStripes, 0, "at least 1")),
        (_, 0) => Err(invalid(Field::AlStripeSize4k, 0, "at least 1")),
        _ => AlStriping::new(stripes, stripe_size_4k).ok_or(invalid(
            Field::AlStripeSize4k,
            stripe_size_4k,
            "such that all stripes have 8 to 4194304 blocks together",
        )),
    }
}

impl Superblock {
    /// The superblock `create-md` writes on a device of `device` bytes, and where it goes.
    pub fn create(
        placement: Placement,
        device: Bytes,
        params: &MdParams,
    ) -> Result<(Superblock, Layout), PlacementError> {
        let layout = Layout::new(placement, device, params)?;
        let superblock = Superblock {
            version: Version::V09,
            effective_size: Sectors(0),
            current_uuid: GenUuid::JUST_CREATED,
            members: NodeMask::EMPTY,
            device_uuid: 0,
            flags: MdFlags::AL_CLEAN,
            md_size: layout.md_size,
            al_offset: layout.al_offset,
            al_nr_extents: AL_NR_EXTENTS_CREATED,
            bm_offset: layout.bm_offset,
            bm_bytes_per_bit: params.bm_bytes_per_bit,
            la_peer_max_bio_size: 0,
            max_peers: params.max_peers,
            node_id: None,
            al: params.al,
            peers: [PeerSlot::default(); MAX_NODES],
            history: [GenUuid::NONE; MAX_NODES],
        };
        Ok((superblock, layout))
    }

    /// Reads a superblock of either version. That of v08 names no nodes: `pair` says who this node
    /// and its peer are. Without it the slot is nobody's, which is enough to find the areas.
    ///
    /// # Errors
    /// As [`Superblock::decode`], without [`SuperblockError::Version08`].
    pub fn decode_any(
        block: &Block,
        pair: Option<(NodeId, NodeId)>,
    ) -> Result<Superblock, SuperblockError> {
        match Superblock::decode(block) {
            Err(SuperblockError::Version08) => {
                SuperblockV8::decode(block).map(|v8| v8.of_pair(pair))
            }
            decoded => decoded,
        }
    }

    /// Reads a superblock of v09. Refuses other versions and values that no DRBD writes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(block: &Block) -> Result<Superblock, SuperblockError> {
        match be32(block, at::MAGIC) {
            MAGIC_V09 => {}
            MAGIC_V08 | MAGIC_V08_UNCLEAN => return Err(SuperblockError::Version08),
            magic => return Err(foreign_magic(block, magic)),
        }
        let max_peers = be32(block, at::MAX_PEERS);
        if max_peers == 0 || max_peers > MAX_SLOTS {
            return Err(invalid(Field::MaxPeers, max_peers, "1 to 31"));
        }
        let bm_bytes_per_bit = be32(block, at::BM_BYTES_PER_BIT);
        if !is_bytes_per_bit(bm_bytes_per_bit) {
            return Err(invalid(
                Field::BmBytesPerBit,
                bm_bytes_per_bit,
                "a power of two from 4096 to 1048576",
            ));
        }
        let node_id = match be32(block, at::NODE_ID) as i32 {
            -1 => None,
            id => Some(u8::try_from(id).ok().and_then(NodeId::new).ok_or(invalid(
                Field::NodeId,
                id,
                "0 to 31, or -1 if not assigned",
            ))?),
        };
        let mut peers = [PeerSlot::default(); MAX_NODES];
        for (node, peer) in peers.iter_mut().enumerate() {
            *peer = decode_peer(block, node)?;
        }
        Ok(Superblock {
            version: Version::V09,
            effective_size: Sectors(be64(block, at::EFFECTIVE_SIZE)),
            current_uuid: GenUuid(be64(block, at::CURRENT_UUID)),
            members: NodeMask(be64(block, at::MEMBERS)),
            device_uuid: be64(block, at::DEVICE_UUID),
            flags: MdFlags(be32(block, at::FLAGS)),
            md_size: Sectors(u64::from(be32(block, at::MD_SIZE))),
            al_offset: be32(block, at::AL_OFFSET) as i32,
            al_nr_extents: be32(block, at::AL_NR_EXTENTS),
            bm_offset: be32(block, at::BM_OFFSET) as i32,
            bm_bytes_per_bit,
            la_peer_max_bio_size: be32(block, at::LA_PEER_MAX_BIO_SIZE),
            max_peers,
            node_id,
            al: decode_striping(be32(block, at::AL_STRIPES), be32(block, at::AL_STRIPE_SIZE_4K))?,
            peers,
            history: std::array::from_fn(|i| GenUuid(be64(block, at::HISTORY + 8 * i))),
        })
    }

    /// The block as it goes to disk.
    pub fn encode(&self) -> Box<Block> {
        let mut block = zeroed_block();
        self.encode_into(&mut block);
        block
    }

    /// Writes the superblock over `block`, reserved bytes as zero.
    pub fn encode_into(&self, block: &mut Block) {
        block.fill(0);
        if self.version == Version::V08 {
            return SuperblockV8::from_pair(self).encode_into(block);
        }
        put64(block, at::EFFECTIVE_SIZE, self.effective_size.0);
        put64(block, at::CURRENT_UUID, self.current_uuid.0);
        put64(block, at::MEMBERS, self.members.0);
        put64(block, at::DEVICE_UUID, self.device_uuid);
        put32(block, at::FLAGS, self.flags.0);
        put32(block, at::MAGIC, MAGIC_V09);
        let md_size = u32::try_from(self.md_size.0).expect("a layout's area has 32 bits");
        put32(block, at::MD_SIZE, md_size);
        put32(block, at::AL_OFFSET, self.al_offset as u32);
        put32(block, at::AL_NR_EXTENTS, self.al_nr_extents);
        put32(block, at::BM_OFFSET, self.bm_offset as u32);
        put32(block, at::BM_BYTES_PER_BIT, self.bm_bytes_per_bit);
        put32(block, at::LA_PEER_MAX_BIO_SIZE, self.la_peer_max_bio_size);
        put32(block, at::MAX_PEERS, self.max_peers);
        put32(block, at::NODE_ID, self.node_id.map_or(-1, |id| i32::from(id.get())) as u32);
        put32(block, at::AL_STRIPES, self.al.stripes());
        put32(block, at::AL_STRIPE_SIZE_4K, self.al.stripe_size_4k());
        for (node, peer) in self.peers.iter().enumerate() {
            let start = at::PEERS + node * at::PEER_SIZE;
            put64(block, start, peer.bitmap_uuid.0);
            put64(block, start + 8, peer.bitmap_dagtag.0);
            put32(block, start + 16, peer.flags.without(PeerFlags::HAVE_BITMAP).0);
            put32(block, start + 20, peer.bitmap_index.map_or(-1, i32::from) as u32);
        }
        for (i, uuid) in self.history.iter().enumerate() {
            put64(block, at::HISTORY + 8 * i, uuid.0);
        }
    }

    /// What `create-md` would have been told to get this metadata.
    pub fn params(&self) -> MdParams {
        MdParams { max_peers: self.max_peers, bm_bytes_per_bit: self.bm_bytes_per_bit, al: self.al }
    }

    /// The entry of `node`.
    pub fn peer(&self, node: NodeId) -> &PeerSlot {
        &self.peers[node.index()]
    }

    /// The entry of `node`.
    pub fn peer_mut(&mut self, node: NodeId) -> &mut PeerSlot {
        &mut self.peers[node.index()]
    }

    /// Checks the superblock against the metadata device it was read from (for internal
    /// placement the backing device) and says where its areas are.
    ///
    /// Whether the configured node id is the stored one is asked by [`check_owner`].
    ///
    /// [`check_owner`]: Superblock::check_owner
    pub fn validate(
        &self,
        placement: Placement,
        device: Bytes,
        rules: Rules,
    ) -> Result<Layout, SuperblockError> {
        let mut layout = Layout::compute(placement, device, &self.params())
            .map_err(SuperblockError::Placement)?;
        expect(Field::AlOffset, self.al_offset, layout.al_offset)?;
        match (rules, placement) {
            (Rules::Drbdmeta, Placement::Internal) => {
                expect(Field::BmOffset, self.bm_offset, layout.bm_offset)?;
                expect_i64(Field::MdSize, self.md_size.0 as i64, layout.md_size.0 as i64)?;
            }
            (_, Placement::FlexExternal) => {
                // The stored size is history: the device's own size counts (metadata §2).
                expect(Field::BmOffset, self.bm_offset, layout.bm_offset)?;
            }
            (_, Placement::Indexed(_)) => {
                expect(Field::BmOffset, self.bm_offset, layout.bm_offset)?;
                expect_i64(Field::MdSize, self.md_size.0 as i64, layout.md_size.0 as i64)?;
            }
            (Rules::Kernel, Placement::Internal) => layout = self.stored_internal(layout)?,
        }
        if rules == Rules::Kernel {
            self.check_attach(&layout, device)?;
        }
        Ok(layout)
    }

    /// An internal layout by the stored offsets: the bitmap may be larger than needed.
    fn stored_internal(&self, computed: Layout) -> Result<Layout, SuperblockError> {
        let bm_offset = i64::from(self.bm_offset);
        if bm_offset % 8 != 0 || bm_offset >= i64::from(self.al_offset) {
            let must = "a multiple of 8 in front of the activity log";
            return Err(invalid(Field::BmOffset, bm_offset, must));
        }
        expect_i64(Field::MdSize, self.md_size.0 as i64, 8 - bm_offset)?;
        let distance = self.bm_offset.unsigned_abs() as u64 * vocab::SECTOR_SIZE;
        let Some(bitmap) = computed.superblock.checked_sub(distance) else {
            return Err(invalid(Field::BmOffset, bm_offset, "on the device"));
        };
        Ok(Layout {
            bitmap,
            bm_offset: self.bm_offset,
            md_size: self.md_size,
            bitmap_area: computed.activity_log - bitmap,
            usable: Sectors((bitmap / vocab::SECTOR_SIZE).min(MAX_VOLUME_SECTORS)),
            ..computed
        })
    }

    fn check_attach(&self, layout: &Layout, device: Bytes) -> Result<(), SuperblockError> {
        const KERNEL_MIN: Bytes = Bytes(1 << 20);
        if device < KERNEL_MIN {
            let error = PlacementError::TooSmall { device, need: KERNEL_MIN };
            return Err(SuperblockError::Placement(error));
        }
        let size = self.effective_size.0;
        if size > MAX_VOLUME_SECTORS {
            return Err(invalid(Field::EffectiveSize, size, "at most 2^41 sectors (1 PiB)"));
        }
        let need = bitmap::area_bytes(size, self.max_peers, self.bm_bytes_per_bit);
        if need > layout.bitmap_area {
            return Err(invalid(Field::EffectiveSize, size, "covered by the bitmap area"));
        }
        self.check_slots()
    }

    /// Every bitmap index is a slot that exists, belongs to one peer only, and not to ourselves.
    fn check_slots(&self) -> Result<(), SuperblockError> {
        let mut used = 0u32;
        for (node, peer) in (0u8..).zip(&self.peers) {
            let Some(slot) = peer.bitmap_index else { continue };
            let refuse = |must| Err(invalid(Field::BitmapIndex(node), slot, must));
            if u32::from(slot) >= self.max_peers {
                return refuse("below max-peers");
            }
            if used & 1 << slot != 0 {
                return refuse("a slot that no other peer has");
            }
            if self.node_id.is_some_and(|own| own.get() == node) {
                return refuse("-1 for this node itself");
            }
            used |= 1 << slot;
        }
        Ok(())
    }

    /// Refuses metadata of another node: `configured` must be the stored id if there is one, and
    /// must not have a bitmap slot.
    pub fn check_owner(&self, configured: NodeId) -> Result<(), SuperblockError> {
        if let Some(stored) = self.node_id
            && stored != configured
        {
            return Err(SuperblockError::Mismatch {
                field: Field::NodeId,
                value: i64::from(stored.get()),
                expected: i64::from(configured.get()),
            });
        }
        match self.peer(configured).bitmap_index {
            Some(slot) => {
                Err(invalid(Field::BitmapIndex(configured.get()), slot, "-1 for this node itself"))
            }
            None => Ok(()),
        }
    }

    /// The line `get-gi --node-id=peer` prints (metadata §7.5), without line end.
    pub fn gi_string(&self, peer: NodeId) -> String {
        let entry = self.peer(peer);
        let device = [
            MdFlags::CONSISTENT,
            MdFlags::WAS_UP_TO_DATE,
            MdFlags::PRIMARY_IND,
            MdFlags::CRASHED_PRIMARY,
            MdFlags::AL_CLEAN,
            MdFlags::AL_DISABLED,
            MdFlags::PRIMARY_LOST_QUORUM,
        ];
        let towards_peer = [
            PeerFlags::CONNECTED,
            PeerFlags::OUTDATED,
            PeerFlags::FENCING,
            PeerFlags::FULL_SYNC,
            PeerFlags::DEVICE_SEEN,
        ];
        let uuids = [self.current_uuid, entry.bitmap_uuid, self.history[0], self.history[1]];
        let digits = device
            .map(|flag| self.flags.contains(flag))
            .into_iter()
            .chain(towards_peer.map(|flag| entry.flags.contains(flag)));
        gi_line(uuids, digits)
    }
}

/// Joins UUIDs and flag digits the way `get-gi` does.
pub(super) fn gi_line(uuids: [GenUuid; 4], digits: impl Iterator<Item = bool>) -> String {
    let fields: Vec<String> = uuids
        .iter()
        .map(GenUuid::to_string)
        .chain(digits.map(|on| u8::from(on).to_string()))
        .collect();
    fields.join(":")
}

pub(super) fn foreign_magic(block: &Block, magic: u32) -> SuperblockError {
    if magic == MAGIC_V07 || be32(block, at::MAGIC_V07) == MAGIC_V07 {
        SuperblockError::Version07
    } else if magic == MAGIC_V09 {
        SuperblockError::Version09
    } else {
        SuperblockError::NotDrbd { magic }
    }
}

fn decode_peer(block: &Block, node: usize) -> Result<PeerSlot, SuperblockError> {
    let start = at::PEERS + node * at::PEER_SIZE;
    let bitmap_index = match be32(block, start + 20) as i32 {
        -1 => None,
        index @ 0..=31 => Some(index as u8),
        index => {
            let must = "a slot below max-peers, or -1";
            return Err(invalid(Field::BitmapIndex(node as u8), index, must));
        }
    };
    Ok(PeerSlot {
        bitmap_uuid: GenUuid(be64(block, start)),
        bitmap_dagtag: Dagtag(be64(block, start + 8)),
        flags: PeerFlags(be32(block, start + 16)).without(PeerFlags::HAVE_BITMAP),
        bitmap_index,
    })
}

fn expect(field: Field, value: i32, expected: i32) -> Result<(), SuperblockError> {
    expect_i64(field, i64::from(value), i64::from(expected))
}

pub(super) fn expect_i64(field: Field, value: i64, expected: i64) -> Result<(), SuperblockError> {
    if value == expected {
        return Ok(());
    }
    Err(SuperblockError::Mismatch { field, value, expected })
}

#[cfg(test)]
mod tests;
