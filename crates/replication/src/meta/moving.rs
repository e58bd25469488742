//! The metadata of a disk whose device has another end now goes there (metadata §2 "Growing an
//! internal device").
//!
//! ```text
//! Wanted ───► Mark ───► Fill ───► Rewrite ───► Unmark ───► Settled
//! ```
//!
//! 1. *Mark*: the superblock alone, at the new place: it lies behind all that was there before. It
//!    says that every block is out of sync and that the log says nothing, which is safe whatever is
//!    at the other new places.
//! 2. *Fill*: the whole bitmap and an empty log, and the same superblock again.
//! 3. *Rewrite*: transactions go once round the log, so that it knows the active extents.
//! 4. *Unmark*: the superblock as it is otherwise.
//!
//! A crash before the first step is over leaves the metadata where it was, one before the last
//! makes everything be resynced once (hard case 85). The agreed size stays what it was all the time.

use codec::disk::{MdFlags, PeerFlags, Superblock};
use serde::{Deserialize, Serialize};

use super::Log;
use crate::io::{MovedMetadata, Output};
use crate::resource::Resource;
use crate::state::VolIx;

/// What is to be done next, or under way.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Moving {
    #[default]
    Settled,
    /// A write to the old place may be under way.
    Wanted(MovedMetadata),
    Mark,
    Fill,
    Rewrite,
    Unmark,
}

impl Resource {
    /// The metadata goes to its new place.
    pub(crate) fn move_metadata(&mut self, vol: VolIx, moved: MovedMetadata) {
        if let Some(backing) = &mut self.vols[vol].backing {
            backing.meta.moving = Moving::Wanted(moved);
        }
    }

    /// Starts the next write of a move. False if none is due; there is no write under way.
    pub(super) fn move_on(&mut self, vol: VolIx) -> bool {
        let nr = self.vols[vol].nr;
        let Some(backing) = &mut self.vols[vol].backing else { return false };
        if backing.meta.log != Log::Ready {
            // The log of a disk that was just attached comes first.
            return false;
        }
        match backing.meta.moving {
            Moving::Settled => return false,
            Moving::Wanted(moved) => {
                backing.meta.moving = Moving::Mark;
                backing.sb.md_size = moved.md_size;
                backing.sb.al_offset = moved.al_offset;
                backing.sb.bm_offset = moved.bm_offset;
                self.out.push_back(Output::MoveMetadata { volume: nr });
                // Blocks of the bitmap may go where the old superblock still is.
                backing.meta.bitmap = false;
            }
            Moving::Mark => {}
            Moving::Fill => {
                backing.bitmap.mark_all();
                backing.meta.bitmap = true;
                backing.al.rewrite();
            }
            Moving::Rewrite if backing.al.is_rewriting() => return self.write_activity_log(vol),
            Moving::Rewrite | Moving::Unmark => backing.meta.moving = Moving::Unmark,
        }
        self.write_superblock(vol);
        true
    }

    /// A superblock that is about to be written says what it must during a move.
    pub(super) fn mark_moving(&self, vol: VolIx, content: &mut Superblock) {
        let moving = self.vols[vol].backing.as_ref().map(|b| b.meta.moving);
        if let Some(Moving::Mark | Moving::Fill) = moving {
            content.flags.set(MdFlags::AL_DISABLED, true);
            for peer in &mut content.peers {
                peer.flags.set(PeerFlags::FULL_SYNC, true);
            }
        }
    }

    /// A superblock is on disk.
    pub(super) fn moved_on(&mut self, vol: VolIx) {
        let Some(backing) = &mut self.vols[vol].backing else { return };
        backing.meta.moving = match backing.meta.moving {
            Moving::Settled | Moving::Wanted(_) | Moving::Rewrite => return,
            Moving::Mark => Moving::Fill,
            Moving::Fill => Moving::Rewrite,
            Moving::Unmark => Moving::Settled,
        };
        if backing.meta.moving == Moving::Settled {
            self.metadata_moved(vol);
        }
    }
}

/// The metadata was being moved when its node stopped: nothing but the superblock counts.
pub(crate) fn is_half_moved(superblock: &Superblock) -> bool {
    let lost = superblock.peers.iter().all(|peer| peer.flags.contains(PeerFlags::FULL_SYNC));
    lost && superblock.flags.contains(MdFlags::AL_DISABLED)
}
