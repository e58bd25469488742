//! Where superblock, activity log and bitmap lie on a device (metadata §2).

use std::fmt;

use serde::{Deserialize, Serialize};
use vocab::{Bytes, SECTOR_SIZE, Sectors};

use super::{BLOCK_SIZE, MAX_SLOTS, MAX_VOLUME_SECTORS, bitmap};

/// Sectors of one metadata block.
const BLOCK_SECTORS: u64 = BLOCK_SIZE as u64 / SECTOR_SIZE;
/// Bytes reserved for each index of an indexed metadata device.
const INDEXED_BYTES: u64 = 128 << 20;
/// Smallest metadata device `drbdmeta` works on.
const MIN_TOOL_BYTES: u64 = 68 << 10;
/// Blocks of the smallest ring; fewer could not hold a context cycle behind a torn block.
const MIN_AL_BLOCKS: u64 = 8;
/// Blocks of the largest ring the kernel accepts.
const MAX_AL_BLOCKS: u64 = 4_194_304;
/// Blocks of the largest ring `drbdmeta` accepts.
const MAX_TOOL_AL_BLOCKS: u64 = 8192;

/// How metadata shares a device with data: drbdmeta's `internal`, `flex-external`, or an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Placement {
    /// At the end of the backing device, behind the data.
    Internal,
    /// Alone on its own device.
    FlexExternal,
    /// The `n`-th 128 MiB of a metadata device shared by several volumes.
    Indexed(u8),
}

impl fmt::Display for Placement {
    /// The keyword drbdmeta takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Internal => f.write_str("internal"),
            Placement::FlexExternal => f.write_str("flex-external"),
            Placement::Indexed(index) => index.fmt(f),
        }
    }
}

/// Shape of the activity log ring: stripes and blocks per stripe, 8 to 4194304 blocks in all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AlStriping {
    stripes: u32,
    stripe_size_4k: u32,
}

impl Default for AlStriping {
    fn default() -> Self {
        AlStriping { stripes: 1, stripe_size_4k: 8 }
    }
}

impl AlStriping {
    /// A ring of `stripes` × `stripe_size_4k` blocks, or `None` if that is not 8 to 4194304.
    pub const fn new(stripes: u32, stripe_size_4k: u32) -> Option<AlStriping> {
        let blocks = stripes as u64 * stripe_size_4k as u64;
        if blocks < MIN_AL_BLOCKS || blocks > MAX_AL_BLOCKS {
            return None;
        }
        Some(AlStriping { stripes, stripe_size_4k })
    }

    /// Number of stripes.
    pub const fn stripes(self) -> u32 {
        self.stripes
    }

    /// Blocks of one stripe.
    pub const fn stripe_size_4k(self) -> u32 {
        self.stripe_size_4k
    }

    /// Blocks of the ring.
    pub const fn blocks(self) -> u32 {
        self.stripes * self.stripe_size_4k
    }

    /// Size of the ring.
    pub const fn sectors(self) -> Sectors {
        Sectors(self.blocks() as u64 * BLOCK_SECTORS)
    }

    /// Block within the area that holds transaction `number`: consecutive transactions go round
    /// robin over the stripes (metadata §3.2).
    pub const fn block_of(self, number: u32) -> u32 {
        let position = number % self.blocks();
        (position % self.stripes) * self.stripe_size_4k + position / self.stripes
    }

    /// Number of the transaction after `number`. Where the ring's size does not divide 2^32,
    /// numbers are skipped when they wrap: positions must stay consecutive, for recovery walks
    /// the ring from the oldest to the newest.
    pub const fn next_number(self, number: u32) -> u32 {
        match number.checked_add(1) {
            Some(next) => next,
            None => (number % self.blocks() + 1) % self.blocks(),
        }
    }

    /// Most al-extents (slots) this ring carries: losing one torn block must still leave a
    /// full cycle of context (metadata §3.3).
    pub const fn max_extents(self) -> u16 {
        let by_ring = 919 * (self.blocks() as u64 - 1);
        if by_ring < 65534 { by_ring as u16 } else { 65534 }
    }
}

/// What `create-md` is told besides the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MdParams {
    /// Bitmap slots, 1 to 31.
    pub max_peers: u32,
    /// Bytes of data behind one bit: a power of two, 4096 to 1048576.
    pub bm_bytes_per_bit: u32,
    /// Shape of the activity log.
    pub al: AlStriping,
}

impl MdParams {
    /// DRBD's defaults for a volume with `max_peers` slots.
    pub fn new(max_peers: u32) -> MdParams {
        MdParams { max_peers, bm_bytes_per_bit: 4096, al: AlStriping::default() }
    }
}

/// Why metadata cannot be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlacementError {
    /// The device does not hold the metadata, or holds nothing but metadata.
    TooSmall {
        /// Size of the device.
        device: Bytes,
        /// Least size that would do.
        need: Bytes,
    },
    /// Offsets of the metadata would leave the superblock's 32-bit fields.
    TooLarge {
        /// Size of the device.
        device: Bytes,
    },
    /// `max_peers` is not 1 to 31.
    MaxPeers(u32),
    /// `bm_bytes_per_bit` is not a power of two from 4096 to 1048576.
    BytesPerBit(u32),
    /// The activity log has more blocks than drbdmeta takes.
    AlTooLarge(AlStriping),
    /// Indexed metadata has 4096 bytes per bit and one stripe of 8 blocks, nothing else.
    IndexedIsFixed,
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlacementError::TooSmall { device, need } => write!(
                f,
                "the device of {device} is too small for this metadata; it needs at least {need}"
            ),
            PlacementError::TooLarge { device } => write!(
                f,
                "the device of {device} is too large: metadata offsets have 32 bits; use fewer \
                 max-peers, a coarser bitmap or a smaller device"
            ),
            PlacementError::MaxPeers(n) => write!(f, "max-peers {n} is not within 1 to 31"),
            PlacementError::BytesPerBit(n) => {
                write!(f, "{n} bytes per bitmap bit is not a power of two from 4096 to 1048576")
            }
            PlacementError::AlTooLarge(al) => write!(
                f,
                "an activity log of {} stripes of {} blocks exceeds {MAX_TOOL_AL_BLOCKS} blocks \
                 (32 MiB)",
                al.stripes, al.stripe_size_4k
            ),
            PlacementError::IndexedIsFixed => f.write_str(
                "indexed metadata has 4096 bytes per bit and an activity log of one stripe of \
                 32 KiB; use flexible external metadata for anything else",
            ),
        }
    }
}

impl std::error::Error for PlacementError {}

/// Where the parts of one metadata area lie. Byte positions are absolute on the metadata device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// The kind of placement.
    pub placement: Placement,
    /// Byte position of the superblock.
    pub superblock: u64,
    /// Byte position of the activity log.
    pub activity_log: u64,
    /// Byte position of the bitmap.
    pub bitmap: u64,
    /// Activity log relative to the superblock, in sectors.
    pub al_offset: i32,
    /// Bitmap relative to the superblock, in sectors.
    pub bm_offset: i32,
    /// Size of the whole metadata area.
    pub md_size: Sectors,
    /// Bytes reserved for the bitmap, whole blocks.
    pub bitmap_area: u64,
    /// Largest volume this area can serve.
    pub usable: Sectors,
}

/// True if `n` is a granularity DRBD knows.
pub(crate) const fn is_bytes_per_bit(n: u32) -> bool {
    n.is_power_of_two() && n >= 4096 && n <= 1_048_576
}

impl Layout {
    /// Places fresh metadata on a device of `device` bytes: the backing device itself for
    /// internal, the metadata device for external placement.
    pub fn new(
        placement: Placement,
        device: Bytes,
        params: &MdParams,
    ) -> Result<Layout, PlacementError> {
        if params.max_peers == 0 || params.max_peers > MAX_SLOTS {
            return Err(PlacementError::MaxPeers(params.max_peers));
        }
        if !is_bytes_per_bit(params.bm_bytes_per_bit) {
            return Err(PlacementError::BytesPerBit(params.bm_bytes_per_bit));
        }
        if u64::from(params.al.blocks()) > MAX_TOOL_AL_BLOCKS {
            return Err(PlacementError::AlTooLarge(params.al));
        }
        Self::compute(placement, device, params)
    }

    /// The formulas alone, for metadata that exists: the ring may be larger than drbdmeta's.
    pub(crate) fn compute(
        placement: Placement,
        device: Bytes,
        params: &MdParams,
    ) -> Result<Layout, PlacementError> {
        let al = params.al.sectors().0;
        let fixed = *params == MdParams::new(params.max_peers);
        match placement {
            Placement::Internal => Self::internal(device, params, al),
            Placement::FlexExternal => {
                let need = MIN_TOOL_BYTES.max((BLOCK_SECTORS + al + BLOCK_SECTORS) * SECTOR_SIZE);
                if device.0 < need {
                    return Err(PlacementError::TooSmall { device, need: Bytes(need) });
                }
                // The field has 32 bits. 2 TiB are more than the bitmap of 1 PiB with 31 slots.
                let sectors = device.sectors_floor().0.min(u64::from(u32::MAX) & !7);
                Ok(Self::external(placement, 0, sectors, params, al))
            }
            Placement::Indexed(_) if !fixed => Err(PlacementError::IndexedIsFixed),
            Placement::Indexed(index) => {
                let start = u64::from(index) * INDEXED_BYTES;
                let need = start + INDEXED_BYTES;
                if device.0 < need {
                    return Err(PlacementError::TooSmall { device, need: Bytes(need) });
                }
                Ok(Self::external(placement, start, INDEXED_BYTES / SECTOR_SIZE, params, al))
            }
        }
    }

    /// Where metadata with these parameters, that is placed so, belongs once its device has `device`
    /// bytes. Nothing moves as long as the superblock stays where it is.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn resized(&self, device: Bytes, params: &MdParams) -> Result<Layout, PlacementError> {
        let new = Self::compute(self.placement, device, params)?;
        let stays = self.placement == Placement::Internal && new.superblock == self.superblock;
        Ok(if stays { *self } else { new })
    }

    fn internal(device: Bytes, params: &MdParams, al: u64) -> Result<Layout, PlacementError> {
        let whole = device.sectors_floor().0;
        let bm_bytes = bitmap::area_bytes(whole, params.max_peers, params.bm_bytes_per_bit);
        let md_size = bm_bytes / SECTOR_SIZE + BLOCK_SECTORS + al;
        let need = (md_size + BLOCK_SECTORS).saturating_mul(SECTOR_SIZE).max(MIN_TOOL_BYTES);
        let blocks_end = device.0 & !(BLOCK_SIZE as u64 - 1);
        if blocks_end < need {
            return Err(PlacementError::TooSmall { device, need: Bytes(need) });
        }
        let Ok(md_size_field) = i32::try_from(md_size) else {
            return Err(PlacementError::TooLarge { device });
        };
        let superblock = blocks_end - BLOCK_SIZE as u64;
        let al_offset = -i32::try_from(al).expect("at most 2^25 sectors");
        let bm_offset = BLOCK_SECTORS as i32 - md_size_field;
        let bitmap = superblock - bm_offset.unsigned_abs() as u64 * SECTOR_SIZE;
        Ok(Layout {
            placement: Placement::Internal,
            superblock,
            activity_log: superblock - al * SECTOR_SIZE,
            bitmap,
            al_offset,
            bm_offset,
            md_size: Sectors(md_size),
            bitmap_area: bm_bytes,
            usable: Sectors((bitmap / SECTOR_SIZE).min(MAX_VOLUME_SECTORS)),
        })
    }

    fn external(
        placement: Placement,
        superblock: u64,
        md_size: u64,
        params: &MdParams,
        al: u64,
    ) -> Layout {
        let bm_offset = BLOCK_SECTORS + al;
        let bitmap_area = (md_size - bm_offset) / BLOCK_SECTORS * BLOCK_SIZE as u64;
        Layout {
            placement,
            superblock,
            activity_log: superblock + BLOCK_SECTORS * SECTOR_SIZE,
            bitmap: superblock + bm_offset * SECTOR_SIZE,
            al_offset: BLOCK_SECTORS as i32,
            bm_offset: i32::try_from(bm_offset).expect("at most 2^25 + 8 sectors"),
            md_size: Sectors(md_size),
            bitmap_area,
            usable: Sectors(usable_by_bitmap((md_size - bm_offset) * SECTOR_SIZE, params)),
        }
    }

    /// Usable data sectors on a backing device of that size.
    pub fn usable_on(&self, backing: Sectors) -> Sectors {
        self.usable.min(backing)
    }

    /// Byte position of activity log block `index` (see [`AlStriping::block_of`]).
    pub fn al_block(&self, index: u32) -> u64 {
        self.activity_log + u64::from(index) * BLOCK_SIZE as u64
    }

    /// Byte position of bitmap block `index`.
    pub fn bitmap_block(&self, index: u64) -> u64 {
        self.bitmap + index * BLOCK_SIZE as u64
    }

    /// First byte of the metadata area.
    pub fn start(&self) -> u64 {
        self.superblock.min(self.bitmap)
    }
}

/// Sectors that a bitmap area of `area` bytes covers. DRBD and drbdmeta round differently: the
/// smaller result satisfies both.
fn usable_by_bitmap(area: u64, params: &MdParams) -> u64 {
    let slots = u64::from(params.max_peers);
    let sectors_per_bit = u64::from(params.bm_bytes_per_bit) / SECTOR_SIZE;
    let kernel = (area & !(BLOCK_SIZE as u64 - 1)) / slots * 8 * sectors_per_bit;
    let tool = area * 8 / 64 / slots * 64 * sectors_per_bit;
    kernel.min(tool).min(MAX_VOLUME_SECTORS)
}

#[cfg(test)]
mod tests;
