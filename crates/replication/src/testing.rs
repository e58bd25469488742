//! What tests of several modules need.

use codec::disk::{Layout, Superblock, activity_log, zeroed_block};

use crate::io::{AttachImage, DiskLimits};

/// What the driver reads from a disk with that superblock, an empty activity log and no bits.
pub(crate) fn attach_image(superblock: &Superblock, layout: &Layout) -> AttachImage {
    let empty = activity_log::empty_block();
    AttachImage {
        capacity: layout.usable,
        superblock: superblock.encode(),
        activity_log: (0..superblock.al.blocks()).map(|_| empty.clone()).collect(),
        bitmap: vec![(0, zeroed_block())],
        limits: DiskLimits {
            logical_block_size: 512,
            physical_block_size: 4096,
            discard_zeroes: true,
            max_io: 1 << 20,
        },
        volatile_cache: true,
        boot: 0,
    }
}
