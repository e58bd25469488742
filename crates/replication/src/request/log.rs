//! The transfer log: what became of each write in flight, at the own disk and at every peer.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use vocab::{Dagtag, Instant, MAX_NODES, SectorRange};

use crate::intervals::Slot;
use crate::io::RequestOp;
use crate::state::VolIx;

/// Writes in flight, oldest first, identified by consecutive sequence numbers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TransferLog {
    base: u64,
    entries: VecDeque<Write>,
    /// Epoch of the next write.
    pub epoch: u64,
    /// Writes in that epoch so far.
    pub epoch_writes: u32,
    /// When the first of them began.
    pub epoch_since: Instant,
}

/// One write (or flush) of a user.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Write {
    pub vol: VolIx,
    pub id: u64,
    pub op: RequestOp,
    pub range: SectorRange,
    /// Position in the write stream behind this write.
    pub dagtag: Dagtag,
    pub epoch: u64,
    pub local: Local,
    /// By node id.
    pub parts: [Part; MAX_NODES],
    pub completed: bool,
    pub since: Instant,
    /// Key in the volume's interval set.
    pub interval: Option<Slot>,
    /// Holds references on its activity log extents.
    pub al: bool,
}

/// State of the local part of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Local {
    /// There is no local disk.
    None,
    Pending,
    /// The disk is back, and gets the write once it is on record that it lacked it.
    Again,
    Ok,
    Failed,
}

impl Local {
    /// The write is not on a disk of this node, and is not going there.
    pub(super) const fn is_missing(self) -> bool {
        matches!(self, Local::None | Local::Failed)
    }
}

/// State of a write towards one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Part {
    /// Not sent.
    None,
    /// The peer was told the range; it gets the data by a resync.
    OutOfSync,
    /// Sent; the ack that the protocol asks for is missing.
    Pending,
    /// Sent under protocol A: counts as written once the epoch is confirmed.
    Sent,
    /// Acknowledged.
    Acked,
    /// Acknowledged, and the peer's block is in sync now.
    InSync,
    /// Acknowledged and stable, whatever happens to the epoch.
    Stable,
    /// Acknowledged on an earlier connection, at whose end the peer has settled what it had.
    Kept,
    /// The peer could not write it.
    Neg,
    /// The connection was lost before it was done.
    Lost,
}

impl Part {
    pub(super) const fn counts_as_written(self) -> bool {
        matches!(self, Part::Sent | Part::Acked | Part::InSync | Part::Stable | Part::Kept)
    }

    /// The peer received the data on this connection, so a peer-ack is owed. It would be a
    /// violation for any other write.
    pub(super) const fn received(self) -> bool {
        self.counts_as_written() && !matches!(self, Part::Kept)
    }
}

impl TransferLog {
    pub(crate) const fn new() -> TransferLog {
        TransferLog {
            base: 0,
            entries: VecDeque::new(),
            epoch: 1,
            epoch_writes: 0,
            epoch_since: Instant(0),
        }
    }

    pub(crate) fn get_mut(&mut self, seq: u64) -> Option<&mut Write> {
        let index = usize::try_from(seq.checked_sub(self.base)?).ok()?;
        self.entries.get_mut(index)
    }

    pub(crate) fn get(&self, seq: u64) -> Option<&Write> {
        let index = usize::try_from(seq.checked_sub(self.base)?).ok()?;
        self.entries.get(index)
    }

    /// Sequence numbers of all entries.
    pub(crate) fn seqs(&self) -> std::ops::Range<u64> {
        self.base..self.base + self.entries.len() as u64
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Write> {
        self.entries.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The oldest entry.
    pub(super) fn front(&self) -> Option<&Write> {
        self.entries.front()
    }

    /// Takes the oldest entry off.
    pub(super) fn pop(&mut self) -> Option<Write> {
        let write = self.entries.pop_front()?;
        self.base += 1;
        Some(write)
    }

    /// Adds the newest entry and gives its sequence number.
    pub(super) fn push(&mut self, write: Write) -> u64 {
        self.entries.push_back(write);
        self.base + self.entries.len() as u64 - 1
    }
}
