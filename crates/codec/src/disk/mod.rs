//! DRBD's on-disk metadata: bytes to types and back.
//!
//! One metadata area holds a superblock, the activity log and the bitmap (metadata §1-4):
//!
//! ```text
//! internal:            data ... | bitmap | activity log | superblock | 0-7 spare sectors
//! external (flexible): superblock | activity log | bitmap
//! external (indexed):  128 MiB for each index, each laid out like a flexible one
//! ```
//!
//! Superblock and activity log are big-endian, the bitmap is little-endian. Everything is made
//! of 4 KiB blocks and aligned to 4 KiB. Nothing here does I/O: [`Layout`] says where a block
//! lies, the other types turn its bytes into values. Every byte that is decoded may come from a
//! damaged or foreign disk: decoding refuses with a reason and never panics.

pub mod activity_log;
pub mod bitmap;
pub mod dump;
mod flags;
mod placement;
mod superblock;
mod superblock_v8;

pub use flags::{MdFlags, PeerFlags};
pub use placement::{AlStriping, Layout, MdParams, Placement, PlacementError};
pub use superblock::{Field, PeerSlot, Rules, Superblock, SuperblockError, Version};
pub use superblock_v8::SuperblockV8;

/// Unit of all metadata I/O, in bytes.
pub const BLOCK_SIZE: usize = 4096;

/// One metadata block.
pub type Block = [u8; BLOCK_SIZE];

/// Most bitmap slots (`max-peers`) a volume can have.
pub const MAX_SLOTS: u32 = 31;

/// Largest volume: 1 PiB in sectors (metadata §2).
pub const MAX_VOLUME_SECTORS: u64 = 1 << 41;

/// A zeroed block on the heap.
pub fn zeroed_block() -> Box<Block> {
    Box::new([0; BLOCK_SIZE])
}

/// Big-endian reader over one block; offsets are constants of this module, never input.
pub(crate) fn be32(block: &Block, offset: usize) -> u32 {
    let bytes = block[offset..offset + 4].try_into().expect("a 4 byte range");
    u32::from_be_bytes(bytes)
}

pub(crate) fn be64(block: &Block, offset: usize) -> u64 {
    let bytes = block[offset..offset + 8].try_into().expect("an 8 byte range");
    u64::from_be_bytes(bytes)
}

pub(crate) fn put32(block: &mut Block, offset: usize, value: u32) {
    block[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
}

pub(crate) fn put64(block: &mut Block, offset: usize, value: u64) {
    block[offset..offset + 8].copy_from_slice(&value.to_be_bytes());
}
