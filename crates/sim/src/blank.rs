//! Fresh disks, as `create-md` leaves them, and reading their superblocks.

use codec::disk::{Block, MdParams, Placement, Superblock, SuperblockError, Version, activity_log};
use replication::io::MetaPlace;
use vocab::Bytes;

use crate::disk::Disk;
use crate::plan::{Plan, node_id};

/// Size of the simulated metadata devices.
const META_BYTES: u64 = 4 << 20;

/// A blank disk of `node` with fresh metadata for all other nodes of the plan, diskless ones not
/// counted.
pub fn disk(plan: &Plan, node: usize) -> Disk {
    let peers = plan.nodes.iter().filter(|n| n.diskful).count().saturating_sub(1).max(1);
    let spare = if plan.old_metadata { 0 } else { plan.spare_slots };
    let params = MdParams::new((peers + spare) as u32);
    let (mut superblock, _) =
        Superblock::create(Placement::FlexExternal, Bytes(META_BYTES), &params)
            .expect("the metadata fits");
    if plan.old_metadata {
        superblock.version = Version::V08;
    }
    let blocks = params.al.blocks();
    let sectors = plan.sectors + plan.nodes[node].spare_sectors;
    let mut disk = Disk::new(sectors, blocks as usize, plan.volatile_cache);
    disk.format(MetaPlace::Superblock, &superblock.encode());
    let empty = activity_log::empty_block();
    for block in 0..blocks {
        disk.format(MetaPlace::ActivityLog(block), &empty);
    }
    disk
}

/// A superblock on a disk of `node`. Metadata of version v08 are those of the nodes 0 and 1.
///
/// # Errors
/// What is wrong with it.
pub fn superblock(block: &Block, node: usize) -> Result<Superblock, SuperblockError> {
    Superblock::decode_any(block, Some((node_id(node), node_id(1 - node.min(1)))))
}
