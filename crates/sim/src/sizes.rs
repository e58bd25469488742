//! Volumes that change their size: devices that are given more room, what nodes find of that, and what
//! users are told.

use codec::disk::Superblock;
use replication::io::{AdminCommand, DiskMeasure, Input, MovedMetadata};
use vocab::{DiskState, SectorRange, Sectors, VolumeNr};

use crate::blank;
use crate::disk::Disk;
use crate::node::Claim;
use crate::plan::{MILLISECOND, Plan};
use crate::trace;
use crate::world::{Event, World};

/// Sizes in a run.
#[derive(Debug)]
pub(crate) struct Sizes {
    /// What users have been told, by node and volume; 0 if nothing yet.
    pub(crate) told: Vec<Vec<u64>>,
    /// The largest disk of each volume, once one has grown.
    largest: Vec<Option<u64>>,
    /// A volume may shrink to that.
    pub(crate) shrinks_to: Vec<u64>,
}

impl Sizes {
    pub(crate) fn new(plan: &Plan) -> Sizes {
        let volumes = usize::from(plan.volumes);
        Sizes {
            told: vec![vec![0; volumes]; plan.nodes.len()],
            largest: vec![None; volumes],
            shrinks_to: vec![u64::MAX; volumes],
        }
    }
}

/// The size that a disk has agreed to.
pub(crate) fn agreed(disk: &Disk, node: usize) -> Option<u64> {
    let superblock: Superblock = blank::superblock(disk.superblock(), node).ok()?;
    Some(superblock.effective_size.0).filter(|size| *size != 0)
}

impl World {
    /// Looking at a device takes a moment.
    pub(crate) fn queue_measure(&mut self, node: usize, volume: VolumeNr) {
        let incarnation = self.nodes[node].incarnation;
        let at = self.now() + MILLISECOND;
        self.queue.at(at, Event::Measured { node, incarnation, volume });
    }

    pub(crate) fn measured_event(&mut self, node: usize, incarnation: u32, volume: VolumeNr) {
        if self.nodes[node].incarnation != incarnation {
            return;
        }
        let moves = !self.plan.old_metadata;
        let result = match self.nodes[node].drive(usize::from(volume.0)) {
            None => Err("there is no disk".to_owned()),
            Some(drive) => {
                let superblock = blank::superblock(drive.disk.superblock(), node);
                let moved = superblock.ok().filter(|_| moves && drive.disk.is_displaced());
                Ok(DiskMeasure {
                    capacity: Sectors(drive.disk.sectors()),
                    moved: moved.map(|superblock| MovedMetadata {
                        md_size: superblock.md_size,
                        al_offset: superblock.al_offset,
                        bm_offset: superblock.bm_offset,
                        left: SectorRange::new(0, 0),
                    }),
                })
            }
        };
        self.input(node, Input::DiskMeasured { volume, result });
    }

    /// A node has told its users of a size.
    pub(crate) fn size_changed(&mut self, node: usize, volume: VolumeNr, size: Sectors) {
        let ix = usize::from(volume.0);
        let before = std::mem::replace(&mut self.sizes.told[node][ix], size.0);
        let Some(drive) = self.nodes[node].drive(ix).filter(|d| d.claim == Claim::Held) else {
            return;
        };
        // One that the node has given up is held until what is under way on it has ended, and says
        // nothing any more: the node goes by what others have.
        let given_up =
            self.view(node).is_none_or(|view| view.volumes[ix].disk == DiskState::Diskless);
        // A disk that is being attached is told of before it is written to.
        let stable = blank::superblock(drive.disk.stable_superblock(), node);
        let recorded = stable.ok().map_or(0, |superblock| superblock.effective_size.0);
        if before != 0 && size.0 > before && size.0 > recorded && !given_up {
            let message = format!(
                "n{node} tells of {} sectors of v{volume}, its metadata of {recorded}",
                size.0
            );
            self.violate("48", message);
        }
    }

    /// Gives the disk of a volume so many sectors. Each disk has other content there.
    pub fn grow_disk(&mut self, node: usize, volume: usize, sectors: u64) {
        let tag = (1 << 40) + ((node as u64) << 32);
        if let Some(drive) = self.nodes[node].drives[volume].as_mut() {
            drive.disk.grow(sectors, tag);
            let sectors = drive.disk.sectors();
            trace!(self, "n{node} v{volume} has room for {sectors} sectors");
            let largest = &mut self.sizes.largest[volume];
            *largest = Some(largest.unwrap_or(0).max(sectors));
        }
    }

    /// Room that an operator gives to those that have less than others.
    pub(crate) fn level_disks(&mut self) {
        for volume in 0..self.sizes.largest.len() {
            let Some(largest) = self.sizes.largest[volume] else { continue };
            for node in 0..self.nodes.len() {
                let drive = self.nodes[node].drive(volume);
                if drive.is_some_and(|drive| drive.disk.sectors() < largest) {
                    self.grow_disk(node, volume, largest);
                }
            }
        }
    }

    /// Devices get more room, most of them, and somebody wants to use it.
    pub(crate) fn resize_somewhere(&mut self, node: usize, volume: usize, chance: u64) {
        if self.plan.legacy {
            return;
        }
        let sizes = self.nodes.iter().filter_map(|n| n.drive(volume).map(|d| d.disk.sectors()));
        let before = sizes.max().unwrap_or(0);
        let most = self.plan.most_sectors();
        let sectors = (before + [8, 8192, 24, 4096][(chance % 4) as usize]).min(most);
        for other in 0..self.nodes.len() {
            // One in eight is forgotten.
            if (chance >> other) % 8 != 7 {
                self.grow_disk(other, volume, sectors);
            }
        }
        // Whoever is assumed to have room gets it in the end, also if it was there from the start.
        let sizes = self.nodes.iter().filter_map(|n| n.drive(volume).map(|d| d.disk.sectors()));
        let largest = &mut self.sizes.largest[volume];
        *largest = sizes.max().max(*largest);
        let command = AdminCommand::Resize {
            volume: VolumeNr(volume as u16),
            size: None,
            assume_peer_has_space: (chance >> 8).is_multiple_of(3),
            assume_clean: false,
        };
        self.admin(node, command);
    }
}
