//! Activity log on disk: transaction blocks and recovery (metadata §3).
//!
//! The log names the 4 MiB extents that may be under write. It is a ring of blocks; each block
//! is one transaction: up to 64 changes of slots, and a window of 919 slots as they were before
//! those changes. The windows cycle, so the last few blocks rebuild the whole table of slots.

use std::collections::BTreeSet;
use std::fmt;

use super::{AlStriping, BLOCK_SIZE, Block, be32, put32};

/// Sectors of one extent: 4 MiB.
pub const EXTENT_SECTORS: u64 = 8192;
/// Slot changes in one transaction.
pub const MAX_UPDATES: usize = 64;
/// Slots in one context window.
pub const CONTEXT_SLOTS: usize = 919;
/// Slots are numbered below this; al-extents is at most this.
pub const MAX_SLOTS: usize = 65534;
/// Extent number of a free slot.
pub const FREE: u32 = u32::MAX;

const MAGIC: u32 = 0x69CB_65A2;
const PMEM_MAGIC: u32 = 0x6AA6_67A6;
const TYPE_UPDATE: u16 = 0;
const TYPE_EMPTY: u16 = 0xFFFF;
const UNUSED_SLOT: u16 = u16::MAX;

/// Offsets within the block.
mod at {
    pub const NUMBER: usize = 4;
    pub const CRC: usize = 8;
    pub const TYPE: usize = 12;
    pub const UPDATES: usize = 14;
    pub const CONTEXT_SIZE: usize = 16;
    pub const CONTEXT_START: usize = 18;
    pub const UPDATE_SLOT: usize = 36;
    pub const UPDATE_EXTENT: usize = 164;
    pub const CONTEXT: usize = 420;
}

const _: () = assert!(at::UPDATE_SLOT + 2 * MAX_UPDATES == at::UPDATE_EXTENT);
const _: () = assert!(at::UPDATE_EXTENT + 4 * MAX_UPDATES == at::CONTEXT);
const _: () = assert!(at::CONTEXT + 4 * CONTEXT_SLOTS == BLOCK_SIZE);

/// CRC-32C as DRBD computes it: reflected Castagnoli that starts from zero and is not inverted at
/// the end. The library inverts on entry and on exit; both are undone here.
pub fn crc32c_raw(data: &[u8]) -> u32 {
    !crc32c::crc32c_append(u32::MAX, data)
}

/// One slot change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Update {
    /// The slot.
    pub slot: u16,
    /// The extent it holds from now on, or [`FREE`].
    pub extent: u32,
}

/// A transaction about to be written.
#[derive(Clone, Copy, Debug)]
pub struct Transaction<'a> {
    /// Its number; wraps.
    pub number: u32,
    /// At most [`MAX_UPDATES`] changes.
    pub updates: &'a [Update],
    /// Number of slots of the log (al-extents).
    pub context_size: u16,
    /// First slot of the window.
    pub context_start: u16,
    /// Slots from `context_start`, before the updates; at most [`CONTEXT_SLOTS`], the rest of
    /// the window is written as free.
    pub context: &'a [u32],
}

impl Transaction<'_> {
    /// Writes the block with its checksum.
    ///
    /// # Panics
    /// If there are too many updates or context slots.
    pub fn encode_into(&self, block: &mut Block) {
        assert!(self.updates.len() <= MAX_UPDATES && self.context.len() <= CONTEXT_SLOTS);
        block.fill(0);
        put32(block, 0, MAGIC);
        put32(block, at::NUMBER, self.number);
        put16(block, at::TYPE, TYPE_UPDATE);
        put16(block, at::UPDATES, self.updates.len() as u16);
        put16(block, at::CONTEXT_SIZE, self.context_size);
        put16(block, at::CONTEXT_START, self.context_start);
        block[at::UPDATE_SLOT..].fill(0xFF);
        for (i, update) in self.updates.iter().enumerate() {
            put16(block, at::UPDATE_SLOT + 2 * i, update.slot);
            put32(block, at::UPDATE_EXTENT + 4 * i, update.extent);
        }
        for (i, extent) in self.context.iter().enumerate() {
            put32(block, at::CONTEXT + 4 * i, *extent);
        }
        seal(block);
    }
}

/// The block that fills a freshly initialised log.
pub fn empty_block() -> Box<Block> {
    let mut block = super::zeroed_block();
    put32(&mut block, 0, MAGIC);
    put16(&mut block, at::TYPE, TYPE_EMPTY);
    seal(&mut block);
    block
}

/// The log after recovery.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HotSet {
    /// Extents that may differ between replicas.
    pub extents: BTreeSet<u32>,
    /// Number of the newest transaction; `None` if nothing was written since initialisation.
    pub newest: Option<u32>,
    /// Blocks that are torn or damaged. One is what a crash leaves; more deserve a warning.
    pub invalid_blocks: u32,
}

/// Why a log cannot be replayed. The caller must then treat the whole volume as out of sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AlError {
    /// The area has another size than the ring.
    WrongSize {
        /// Bytes given.
        area: usize,
        /// Blocks of the ring.
        blocks: u32,
    },
    /// Not one block is valid.
    NoValidBlock,
    /// No transaction is valid, and the damage is not that of a torn first write.
    Damaged {
        /// Blocks that are not valid.
        invalid: u32,
    },
    /// A log of DRBD before 8.4: sectors of another format.
    PreV84,
    /// A PMEM log holds fewer slots than the superblock says.
    PmemTooSmall {
        /// Slots the superblock says.
        slots: u32,
    },
}

impl fmt::Display for AlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AlError::WrongSize { area, blocks } => {
                write!(f, "the activity log has {area} bytes, not {blocks} blocks of 4096")
            }
            AlError::NoValidBlock => f.write_str("the activity log has no valid block"),
            AlError::Damaged { invalid } => {
                write!(f, "the activity log has no valid transaction and {invalid} damaged blocks")
            }
            AlError::PreV84 => f.write_str(
                "the activity log is that of DRBD before 8.4; replay it with the tools of that \
                 version",
            ),
            AlError::PmemTooSmall { slots } => {
                write!(f, "the activity log does not hold the {slots} slots the superblock names")
            }
        }
    }
}

impl std::error::Error for AlError {}

/// Finds the extents that were active, from the raw area of `ring`, blocks in disk order.
///
/// `al_nr_extents` comes from the superblock and only matters for a log in PMEM form.
/// Memory is bounded by the 65534 slots whatever the input.
pub fn recover(ring: AlStriping, area: &[u8], al_nr_extents: u32) -> Result<HotSet, AlError> {
    let (blocks, rest) = area.as_chunks::<BLOCK_SIZE>();
    if blocks.len() != ring.blocks() as usize || !rest.is_empty() {
        return Err(AlError::WrongSize { area: area.len(), blocks: ring.blocks() });
    }
    if be32(&blocks[0], 0) == PMEM_MAGIC {
        return recover_pmem(area, al_nr_extents);
    }
    let block_at = |position: u32| &blocks[ring.block_of(position) as usize];
    let mut invalid = 0;
    let mut first_invalid = false;
    // Positions and numbers of the oldest and the newest transaction.
    let mut range: Option<((u32, u32), (u32, u32))> = None;
    for position in 0..ring.blocks() {
        let block = block_at(position);
        if !is_valid(block) {
            invalid += 1;
            first_invalid |= position == 0;
            continue;
        }
        if be16(block, at::TYPE) != TYPE_UPDATE {
            continue;
        }
        let this = (position, be32(block, at::NUMBER));
        let (oldest, newest) = range.get_or_insert((this, this));
        if is_before(this.1, oldest.1) {
            *oldest = this;
        }
        if is_before(newest.1, this.1) {
            *newest = this;
        }
    }
    if invalid == ring.blocks() {
        return Err(AlError::NoValidBlock);
    }
    let Some((oldest, newest)) = range else {
        return match invalid {
            0 => Ok(HotSet::default()),
            1 if first_invalid => Ok(HotSet { invalid_blocks: 1, ..HotSet::default() }),
            _ => Err(AlError::Damaged { invalid }),
        };
    };
    let mut slots = vec![FREE; MAX_SLOTS];
    let mut position = oldest.0;
    loop {
        let block = block_at(position);
        if is_valid(block) && be16(block, at::TYPE) == TYPE_UPDATE {
            replay(block, &mut slots);
        }
        if position == newest.0 {
            break;
        }
        position = (position + 1) % ring.blocks();
    }
    Ok(HotSet {
        extents: slots.into_iter().filter(|extent| *extent != FREE).collect(),
        newest: Some(newest.1),
        invalid_blocks: invalid,
    })
}

/// True if the area is that of DRBD before 8.4 (metadata §1.3); only v08 metadata can have one.
pub fn is_pre_v84(ring: AlStriping, area: &[u8]) -> bool {
    let (blocks, _) = area.as_chunks::<BLOCK_SIZE>();
    ring == AlStriping::default() && blocks.iter().take(2).all(|block| be32(block, 0) != MAGIC)
}

/// PMEM form (metadata §8): a magic word, then one extent number for each slot.
fn recover_pmem(area: &[u8], al_nr_extents: u32) -> Result<HotSet, AlError> {
    let (words, _) = area.as_chunks::<4>();
    let slots = words[1..]
        .get(..al_nr_extents as usize)
        .ok_or(AlError::PmemTooSmall { slots: al_nr_extents })?;
    let extents = slots.iter().map(|word| u32::from_be_bytes(*word)).filter(|e| *e != FREE);
    Ok(HotSet { extents: extents.collect(), newest: None, invalid_blocks: 0 })
}

/// Applies one valid transaction: the window first, for it holds the slots before the updates.
fn replay(block: &Block, slots: &mut [u32]) {
    let context_size = usize::from(be16(block, at::CONTEXT_SIZE));
    let start = usize::from(be16(block, at::CONTEXT_START));
    for i in 0..CONTEXT_SLOTS {
        let extent = be32(block, at::CONTEXT + 4 * i);
        let beyond = start + i >= context_size;
        if let Some(slot) = slots.get_mut(start + i)
            && !(extent == FREE && beyond)
        {
            *slot = extent;
        }
    }
    // Unused entries name slot 0xFFFF, which does not exist.
    for i in 0..MAX_UPDATES {
        let slot = usize::from(be16(block, at::UPDATE_SLOT + 2 * i));
        if let Some(slot) = slots.get_mut(slot) {
            *slot = be32(block, at::UPDATE_EXTENT + 4 * i);
        }
    }
}

/// Transaction numbers wrap: half of all numbers lie before any number.
fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

fn is_valid(block: &Block) -> bool {
    be32(block, 0) == MAGIC && be32(block, at::CRC) == checksum(block)
}

fn checksum(block: &Block) -> u32 {
    // The checksum covers its own field as zero.
    let crc = crc32c::crc32c_append(u32::MAX, &block[..at::CRC]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    !crc32c::crc32c_append(crc, &block[at::TYPE..])
}

fn seal(block: &mut Block) {
    let crc = checksum(block);
    put32(block, at::CRC, crc);
}

fn be16(block: &Block, offset: usize) -> u16 {
    u16::from_be_bytes([block[offset], block[offset + 1]])
}

fn put16(block: &mut Block, offset: usize, value: u16) {
    block[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
}

const _: () = assert!(UNUSED_SLOT as usize >= MAX_SLOTS);

#[cfg(test)]
mod tests;
