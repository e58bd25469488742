//! Fresh disks, as `create-md` leaves them.

use codec::disk::{MdParams, Placement, Superblock, activity_log};
use replication::io::MetaPlace;
use vocab::Bytes;

use crate::disk::Disk;
use crate::plan::Plan;

/// Size of the simulated metadata devices.
const META_BYTES: u64 = 4 << 20;

/// A blank disk of `node` with fresh metadata for all other nodes of the plan, diskless ones not
/// counted.
pub fn disk(plan: &Plan, node: usize) -> Disk {
    let peers = plan.nodes.iter().filter(|n| n.diskful).count().saturating_sub(1).max(1);
    let params = MdParams::new((peers + plan.spare_slots) as u32);
    let (superblock, _) = Superblock::create(Placement::FlexExternal, Bytes(META_BYTES), &params)
        .expect("the metadata fits");
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
