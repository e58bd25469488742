//! One node: the resource under test and everything a driver keeps for it.

use std::collections::{BTreeMap, VecDeque};

use replication::io::{BufId, OpId, Request};
use replication::{Resource, ResyncOrder};
use vocab::Instant;

use crate::content::Data;
use crate::disk::{Block, Disk};
use crate::history::{Stamp, WriteIx};

/// Where the content of a buffer came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A client's write.
    Client,
    /// A write replicated by that node.
    Peer(usize),
    /// A block of a resync.
    Resync,
    /// A read, of a disk or of a peer.
    Read,
}

/// A block of data the core has been given.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Its content.
    pub data: Data,
    /// Where it came from.
    pub origin: Origin,
}

/// The buffers of a node, by id. An id is never used twice, so a use after the end is noticed.
#[derive(Debug, Default)]
pub struct Buffers {
    first: u32,
    live: VecDeque<Option<Buffer>>,
    count: usize,
}

impl Buffers {
    /// Gives a block to the core.
    pub fn add(&mut self, data: Data, origin: Origin) -> BufId {
        let id = self.first + self.live.len() as u32;
        self.live.push_back(Some(Buffer { data, origin }));
        self.count += 1;
        BufId(id)
    }

    /// The block, while the core owns it.
    pub fn get(&self, id: BufId) -> Option<&Buffer> {
        let at = id.0.checked_sub(self.first)?;
        self.live.get(at as usize)?.as_ref()
    }

    /// Takes a block back; false if the core does not own it.
    pub fn free(&mut self, id: BufId) -> bool {
        let Some(at) = id.0.checked_sub(self.first) else { return false };
        let Some(slot) = self.live.get_mut(at as usize) else { return false };
        if slot.take().is_none() {
            return false;
        }
        self.count -= 1;
        while let Some(None) = self.live.front() {
            self.live.pop_front();
            self.first += 1;
        }
        true
    }

    /// Number of blocks the core owns.
    pub fn count(&self) -> usize {
        self.count
    }
}

/// What a disk operation is to the core.
#[derive(Clone, Copy, Debug)]
pub enum OpKind {
    /// A read into a buffer.
    Read,
    /// A read for its digest.
    Digest,
    /// A read into a buffer, with its digest.
    ReadWithDigest,
    /// Anything without data.
    Plain,
    /// A metadata write.
    Meta,
}

/// How far a disk is in the hands of the core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// Not at all.
    Free,
    /// An attach is under way or done.
    Held,
    /// Given back, but operations are still running.
    Releasing,
}

/// A disk and what the driver knows of it.
#[derive(Debug)]
pub struct Drive {
    /// The disk.
    pub disk: Disk,
    /// Who has it.
    pub claim: Claim,
    /// Running operations by slot of the disk.
    pub ops: Vec<Option<(OpId, OpKind)>>,
    /// Activity log blocks that are being written, by slot of the disk.
    pub transactions: Vec<(usize, Block)>,
}

/// A request of a client that the core has not answered.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// The request.
    pub request: Request,
    /// When it was submitted.
    pub began: Stamp,
    /// Its entry in the history, if it changes data.
    pub write: Option<WriteIx>,
    /// The client.
    pub client: usize,
}

/// A node's clock: it runs a little fast or slow, and starts anywhere.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// What it shows at the start of the run, in nanoseconds.
    pub offset: u64,
    /// Parts per million by which it is fast.
    pub ppm: i64,
}

impl Clock {
    /// What it shows at a time of the world.
    pub fn local(self, world: u64) -> Instant {
        let drift = (i128::from(world) * i128::from(self.ppm) / 1_000_000) as i64;
        Instant(self.offset.wrapping_add(world).wrapping_add_signed(drift))
    }

    /// The first time of the world at which it shows `local` or later.
    pub fn world(self, local: Instant) -> u64 {
        let shown = local.0.saturating_sub(self.offset);
        let near = (i128::from(shown) * 1_000_000 / i128::from(1_000_000 + self.ppm)) as u64;
        let mut at = near.saturating_sub(2);
        while self.local(at) < local {
            at += 1;
        }
        at
    }
}

/// How far a process is that is to hand over to another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swap {
    /// Clients wait, and what needs peers comes to its end. It is looked so many times.
    Draining(u32),
    /// Peers wait as well, until its disks have ended what they do. It is looked so many times.
    Still(u32),
}

/// Whether a running node has the last of the volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Late {
    /// It has.
    Has,
    /// It does not.
    Lacks,
    /// The wish for it is not answered.
    Asked(u64),
    /// It is granted, and has no options yet.
    Granted,
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// The state machine, while the process runs.
    pub resource: Option<Resource>,
    /// Counts the processes, so that what was meant for an earlier one is dropped.
    pub incarnation: u32,
    /// Its clock.
    pub clock: Clock,
    /// Buffers the core owns.
    pub buffers: Buffers,
    /// Its disks by volume, `None` if it has none by intent.
    pub drives: Vec<Option<Drive>>,
    /// World time of the timer that is set.
    pub timer: Option<u64>,
    /// Timeouts in a row that left the timer due.
    pub idle_timeouts: u32,
    /// The process does not run before this time.
    pub paused_until: u64,
    /// The last of the volumes.
    pub late: Late,
    /// It is about to hand over to another process, and how far it is with that.
    pub swap: Option<Swap>,
    /// How long each step of that takes, in nanoseconds.
    pub swap_step: u64,
    /// It takes nothing from its peers before this time.
    pub deaf_until: u64,
    /// Requests not answered, by id.
    pub requests: BTreeMap<u64, Pending>,
    /// In which order its volumes are resynced; what is named stays over a restart.
    pub order: ResyncOrder,
    /// Opens not answered and openers, by id: client and whether the open has succeeded.
    pub openers: BTreeMap<u64, (usize, bool)>,
}

impl Node {
    /// True if the process runs.
    pub fn up(&self) -> bool {
        self.resource.is_some()
    }

    /// It takes no requests now.
    pub fn rests(&self, now: u64) -> bool {
        self.paused_until > now || self.swap.is_some()
    }

    /// The drive of a volume.
    pub fn drive(&self, volume: usize) -> Option<&Drive> {
        self.drives[volume].as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_translate_both_ways() {
        for ppm in [-1000, 0, 1000] {
            let clock = Clock { offset: 12345, ppm };
            for at in [0, 1, 999, 1_000_000_007, 77_000_000_000] {
                let local = clock.local(at);
                assert!(clock.world(local) <= at);
                assert!(clock.local(clock.world(local)) >= local);
            }
        }
    }

    #[test]
    fn a_buffer_is_freed_once() {
        let mut buffers = Buffers::default();
        let data = Data::Fill { tag: 1, sectors: 1 };
        let a = buffers.add(data.clone(), Origin::Client);
        let b = buffers.add(data, Origin::Client);
        assert!(buffers.free(a) && !buffers.free(a));
        assert!(buffers.get(a).is_none() && buffers.get(b).is_some());
        assert!(buffers.free(b) && !buffers.free(b) && buffers.count() == 0);
    }
}
