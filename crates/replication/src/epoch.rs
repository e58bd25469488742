//! Epochs at the sending side: barriers, their acks, and early confirmation.
//!
//! A peer may reorder writes inside an epoch, never across (semantics §8.3, wire §5.4), and makes
//! an epoch stable before it confirms it and begins the next. Epoch numbers are internal and 64
//! bits wide; the wire carries the low 32 bits, which are opaque to the peer.
//!
//! A write must not overtake one that its user saw complete. Under protocols A and B, which report
//! writes that are still under way to a peer's disk, that takes an end of the epoch at each
//! completion. Under protocol C a reported write is on every disk already: nothing is left to
//! overtake, and the epoch stays open for a while. Each end of one costs a peer a flush of its disk
//! and a wait for the writes before it, which at depth 64 came every 20 writes. What a loss of
//! power may take is what a disk's cache may lose anyway: whatever a user has not flushed. A flush
//! ends the epoch at once.

use std::time::Duration;

use codec::wire::{ConfirmStable, Packet};

use vocab::Instant;
use vocab::options::Protocol;

use crate::request::Part;
use crate::resource::{IdKind, Resource, SentBarrier};
use crate::state::PeerIx;

/// An epoch that may stay open ends with so many writes: they keep their places in the transfer log
/// and their extents in the activity log until it is confirmed.
const OPEN_WRITES: u32 = 512;

/// And at this age, also if no more writes come.
const OPEN_FOR: Duration = Duration::from_millis(100);

impl Resource {
    /// True if the current epoch need not end because one of its writes was reported complete.
    pub(crate) fn epoch_may_stay_open(&self) -> bool {
        let room = self.opts.max_io_depth as usize / 2;
        self.log.epoch_writes < OPEN_WRITES
            && self.log.len() < room
            && self.peers.iter().all(|peer| peer.net.protocol == Protocol::C)
    }

    /// When the current epoch ends if nothing ends it before.
    pub(crate) fn epoch_deadline(&self) -> Option<Instant> {
        (self.log.epoch_writes > 0).then(|| self.log.epoch_since + OPEN_FOR)
    }

    /// The next write starts a new epoch. Peers that got writes of this one are told at once: a
    /// barrier costs one small packet in a batch, and its ack releases the writes early.
    pub(crate) fn close_epoch(&mut self) {
        if self.log.epoch_writes == 0 {
            return;
        }
        for peer in 0..self.peers.len() {
            self.send_barrier(peer);
        }
        self.log.epoch += 1;
        self.log.epoch_writes = 0;
    }

    /// Ends the epoch on one connection, unless nothing of it was sent there.
    pub(crate) fn send_barrier(&mut self, peer: PeerIx) {
        let now = self.now;
        let send = &mut self.peers[peer].send;
        if send.epoch_writes == 0 {
            return;
        }
        let (epoch, writes) = (send.epoch, std::mem::take(&mut send.epoch_writes));
        let sectors = std::mem::take(&mut send.epoch_sectors);
        send.barriers.push_back(SentBarrier { epoch, writes, sectors, since: now });
        self.send(peer, Packet::Barrier(wire_number(epoch)));
    }

    /// P_BARRIER_ACK: everything up to that epoch is stable on the peer.
    pub(crate) fn barrier_acked(
        &mut self,
        peer: PeerIx,
        number: u32,
        set_size: u32,
    ) -> Result<(), &'static str> {
        let last_closed = self.log.epoch - 1;
        let send = &mut self.peers[peer].send;
        let Some(SentBarrier { epoch, writes, sectors, .. }) = send.barriers.front().copied()
        else {
            return Err("a barrier ack was not expected");
        };
        if wire_number(epoch) != number || writes != set_size {
            return Err("a barrier ack does not match the oldest barrier");
        }
        send.barriers.pop_front();
        send.acked_epoch = send.acked_epoch.max(epoch);
        send.app_in_flight = send.app_in_flight.saturating_sub(sectors);
        if send.barriers.is_empty() && send.epoch_writes == 0 {
            // The peer got nothing of the epochs closed since.
            send.acked_epoch = send.acked_epoch.max(last_closed);
        }
        self.arrived(peer);
        self.unconfirmed_barrier_ack(peer, epoch);
        self.advance_all();
        Ok(())
    }

    /// P_CONFIRM_STABLE: the oldest writes of the open epoch are stable already, because the
    /// peer needs their activity log extents.
    pub(crate) fn confirm_stable(
        &mut self,
        peer: PeerIx,
        confirm: ConfirmStable,
    ) -> Result<(), &'static str> {
        const WRONG: &str = "a confirmation does not match the oldest writes";
        let node = self.peers[peer].node;
        let oldest = Resource::block_key(confirm.oldest, IdKind::Write).ok_or(WRONG)?;
        let youngest = Resource::block_key(confirm.youngest, IdKind::Write).ok_or(WRONG)?;
        let acked_epoch = self.peers[peer].send.acked_epoch;
        let unstable: Vec<(u64, u64, Part)> = self
            .log
            .seqs()
            .filter_map(|seq| {
                let write = self.log.get(seq)?;
                let part = write.parts[node.index()];
                let open = matches!(part, Part::Pending | Part::Sent | Part::Acked | Part::InSync)
                    && write.range.len.0 != 0
                    && write.epoch > acked_epoch;
                open.then_some((seq, write.epoch, part))
            })
            .take_while(|(seq, _, _)| *seq <= youngest)
            .collect();
        let (Some(first), Some(last)) = (unstable.first(), unstable.last()) else {
            return Err(WRONG);
        };
        let same_epoch = unstable.iter().all(|(_, epoch, _)| *epoch == first.1);
        let acked = unstable.iter().all(|(_, _, part)| *part != Part::Pending);
        if first.0 != oldest
            || last.0 != youngest
            || unstable.len() as u64 != u64::from(confirm.set_size)
            || !same_epoch
            || !acked
        {
            return Err(WRONG);
        }
        let epoch = first.1;
        let send = &mut self.peers[peer].send;
        let (writes, sectors) = match send.barriers.iter_mut().find(|b| b.epoch == epoch) {
            Some(barrier) => (&mut barrier.writes, &mut barrier.sectors),
            None if send.epoch == epoch => (&mut send.epoch_writes, &mut send.epoch_sectors),
            None => return Err(WRONG),
        };
        *writes = writes.checked_sub(confirm.set_size).ok_or(WRONG)?;
        let sent = unstable.iter().filter(|(_, _, part)| *part == Part::Sent);
        let seqs = sent.filter_map(|(seq, _, _)| self.log.get(*seq));
        let len = seqs.map(|w| w.range.len.0).sum::<u64>().min(*sectors);
        *sectors -= len;
        send.app_in_flight = send.app_in_flight.saturating_sub(len);
        for (seq, _, _) in unstable {
            let write = self.log.get_mut(seq).expect("collected above");
            write.parts[node.index()] = Part::Stable;
        }
        self.arrived(peer);
        self.advance_all();
        self.flush_peer_acks();
        Ok(())
    }
}

/// The number of an epoch on the wire.
#[expect(clippy::cast_possible_truncation, reason = "opaque to the peer, compared as sent")]
const fn wire_number(epoch: u64) -> u32 {
    epoch as u32
}
