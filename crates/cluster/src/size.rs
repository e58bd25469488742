//! What a volume takes on its backing device: data, DRBD's metadata, LUKS's header.
//!
//! Agents round up to what their pools allocate. The layout of internal metadata is that of
//! `metadata §2`: from the end a superblock of 4 KiB, the activity log, and a bitmap for each peer.

use vocab::Bytes;

use crate::layer::Layer;
use crate::objects::{Definition, VolumeDefinition, VolumeDefinitionFlag};

const KIB: u64 = 1024;
/// Bytes that one bit of the bitmap stands for.
const BLOCK: u64 = 4 * KIB;
/// The superblock and one stripe of the activity log.
const FIXED: u64 = 4 * KIB + 32 * KIB;
/// Smallest device with internal metadata that the kernel's DRBD attaches, and so we.
const DEVICE_MIN: u64 = 1024 * KIB;
/// LUKS2's header, in bytes.
pub const LUKS: u64 = crypt::luks::DATA_OFFSET;

/// Size of the backing volume.
pub fn backing(definition: &Definition, volume: &VolumeDefinition) -> Bytes {
    if volume.flags.contains(&VolumeDefinitionFlag::GrossSize) {
        return volume.size;
    }
    let mut size = volume.size.0;
    if definition.layers.contains(&Layer::Drbd) {
        size = (size + metadata_beside(size, definition.peer_slots)).max(DEVICE_MIN);
    }
    if definition.layers.contains(&Layer::Luks) {
        size += LUKS;
    }
    Bytes(size)
}

/// Size that users see of a volume.
pub fn usable(definition: &Definition, volume: &VolumeDefinition) -> Bytes {
    if !volume.flags.contains(&VolumeDefinitionFlag::GrossSize) {
        return volume.size;
    }
    let mut size = volume.size.0;
    if definition.layers.contains(&Layer::Luks) {
        size = size.saturating_sub(LUKS);
    }
    if definition.layers.contains(&Layer::Drbd) {
        size = size.saturating_sub(metadata(size, definition.peer_slots));
    }
    Bytes(size)
}

/// True if a volume has data beside what its layers need for themselves: DRBD counts blocks of 4 KiB.
pub fn is_enough(definition: &Definition, volume: &VolumeDefinition) -> bool {
    let luks = if definition.layers.contains(&Layer::Luks) { LUKS } else { 0 };
    let device = backing(definition, volume).0.saturating_sub(luks);
    !definition.layers.contains(&Layer::Drbd)
        || device >= DEVICE_MIN && usable(definition, volume).0 >= BLOCK
}

/// Bytes of internal metadata on a device that has `net` bytes beside them. They have bits for
/// themselves, too: where the bitmap for the data alone just fits its blocks, one more is needed.
fn metadata_beside(net: u64, peer_slots: u8) -> u64 {
    let mut size = metadata(net, peer_slots);
    while metadata(net + size, peer_slots) > size {
        size = metadata(net + size, peer_slots);
    }
    size
}

/// Bytes of internal metadata for a device of `size` bytes: enough for all of it, which is more
/// than for what is left of it.
fn metadata(size: u64, peer_slots: u8) -> u64 {
    // A bitmap has whole words of 64 bits, and all of them together whole blocks.
    let words = size.div_ceil(BLOCK).div_ceil(64);
    let bitmaps = words * 8 * u64::from(peer_slots);
    bitmaps.next_multiple_of(4 * KIB) + FIXED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_left_beside_the_metadata() {
        // A volume of 1 GiB with seven peer slots, as LINSTOR makes it.
        let gib = 1 << 30;
        assert_eq!(gib + metadata_beside(gib, 7), 1_048_840 * KIB);
        for slots in [1, 7, 31] {
            for net in (1..4000).map(|n| n * 1024 * 1024).chain([2 << 30, 1 << 40]) {
                let gross = net + metadata_beside(net, slots);
                assert_eq!(gross - metadata(gross, slots), net, "{net} bytes, {slots} slots");
            }
        }
    }
}
