//! What a guest is told of its disk: features, and virtio's configuration space of a block device.

use runtime::TargetInfo;
use vocab::SECTOR_SIZE;

use super::QUEUES_MAX;
use super::proto::F_PROTOCOL_FEATURES;
use super::request::RANGE_MAX;

/// Features of virtio's block devices and rings that are used here, by bit.
#[allow(missing_docs, reason = "named as in the specification")]
pub mod bit {
    pub const SIZE_MAX: u64 = 1 << 1;
    pub const SEG_MAX: u64 = 1 << 2;
    pub const RO: u64 = 1 << 5;
    pub const BLK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const TOPOLOGY: u64 = 1 << 10;
    pub const CONFIG_WCE: u64 = 1 << 11;
    pub const MQ: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    pub const INDIRECT_DESC: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const VERSION_1: u64 = 1 << 32;
}

/// Bytes of the configuration space that can be asked for; what has no meaning is zero.
pub const SPACE: usize = 256;
/// Where the guest says whether the cache is to be used.
pub const WCE_AT: u32 = 32;
/// Most pieces of a request: a chain is never longer than its ring, of which 128 is the usual size.
const SEGMENTS: u32 = 126;
/// Longest piece of a request, in bytes.
const SEGMENT: u32 = 1 << 20;
/// What reads and writes go best with, in bytes.
const PHYSICAL: u32 = 4096;

/// The features of a disk on that target.
pub fn features(info: &TargetInfo, read_only: bool) -> u64 {
    let mut features = bit::SIZE_MAX
        | bit::SEG_MAX
        | bit::BLK_SIZE
        | bit::TOPOLOGY
        | bit::MQ
        | bit::INDIRECT_DESC
        | bit::EVENT_IDX
        | bit::VERSION_1
        | F_PROTOCOL_FEATURES;
    let read_only = read_only || info.read_only;
    for (has, bits) in [
        (read_only, bit::RO),
        (info.can_flush, bit::FLUSH),
        (info.can_flush && info.can_fua, bit::CONFIG_WCE),
        (info.can_trim && !read_only, bit::DISCARD),
        (info.can_zero && !read_only, bit::WRITE_ZEROES),
    ] {
        if has {
            features |= bits;
        }
    }
    features
}

/// The configuration space.
pub fn space(info: &TargetInfo, cached: bool) -> [u8; SPACE] {
    let mut space = [0; SPACE];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    let block = info.block_size_min;
    let exponent = (PHYSICAL / block).max(1).trailing_zeros();
    let granularity = PHYSICAL.max(block) / SECTOR_SIZE as u32;
    put(0, &(capacity(info) / SECTOR_SIZE).to_le_bytes());
    put(8, &SEGMENT.to_le_bytes());
    put(12, &SEGMENTS.to_le_bytes());
    put(20, &block.to_le_bytes());
    // Topology: physical block as a power of two of logical ones, offset, best lengths.
    put(24, &[exponent as u8, 0]);
    put(26, &(1u16 << exponent).to_le_bytes());
    put(WCE_AT as usize, &[u8::from(cached)]);
    put(34, &QUEUES_MAX.to_le_bytes());
    // Discards: longest in sectors, ranges of a request, alignment; zeroing: the same, may unmap.
    put(36, &RANGE_MAX.to_le_bytes());
    put(40, &1u32.to_le_bytes());
    put(44, &granularity.to_le_bytes());
    put(48, &RANGE_MAX.to_le_bytes());
    put(52, &1u32.to_le_bytes());
    put(56, &[1]);
    space
}

/// Bytes that a guest sees: whole blocks.
pub fn capacity(info: &TargetInfo) -> u64 {
    info.size.0 - info.size.0 % u64::from(info.block_size_min)
}
