//! The exchange of bitmaps before a resync (wire §7.2): the source's first, then the target's.

use codec::wire::{
    BitmapReceiver, BitmapSender, BitmapSource, BitmapWords, CompressedBitmap, bitmap::Progress,
};
use vocab::{DiskState, ReplState, VolumeNr};

use crate::bitmap::Bitmap;
use crate::resource::Resource;
use crate::state::{PeerIx, VolIx};

use super::Resync;

/// One slot of the bitmap as the wire sees it.
struct SlotBits<'a> {
    bitmap: &'a Bitmap,
    slot: usize,
}

impl BitmapSource for SlotBits<'_> {
    fn run(&self, from: u64) -> (bool, u64) {
        let end = self.bitmap.bits();
        if from >= end {
            return (false, u64::MAX);
        }
        match self.bitmap.next_set(self.slot, from) {
            Some(at) if at == from => {
                let clear = self.bitmap.next_clear(self.slot, from).unwrap_or(end);
                (true, clear - from)
            }
            next => (false, next.unwrap_or(end) - from),
        }
    }

    fn word(&self, index: u64) -> u64 {
        self.bitmap.word(self.slot, index)
    }
}

/// A piece of a peer's bitmap.
pub(crate) enum BitmapChunk {
    Plain(BitmapWords),
    Compressed(CompressedBitmap),
}

impl Resource {
    /// Sends this node's bitmap towards the peer in one go: nothing may come in between.
    pub(super) fn send_bitmap(&mut self, peer: PeerIx, vol: VolIx) {
        let node = self.peers[peer].node;
        let nr = self.vols[vol].nr;
        let agreed = self.agreed(peer);
        let compress = self.peers[peer].net.use_rle;
        let Some(backing) = &self.vols[vol].backing else { return };
        let Some(slot) = backing.slot_of(node) else { return };
        let source = SlotBits { bitmap: &backing.bitmap, slot };
        let mut sender = BitmapSender::new(backing.bitmap.bits(), compress, &agreed);
        let mut packets = Vec::new();
        while let Some(packet) = sender.next_packet(nr, &source) {
            packets.push(packet);
        }
        for packet in packets {
            self.send(peer, packet);
        }
        self.resync_mut(peer, vol).sent = true;
    }

    /// P_BITMAP or P_COMPRESSED_BITMAP. Bits are only ever added.
    pub(crate) fn peer_bitmap(
        &mut self,
        peer: PeerIx,
        nr: VolumeNr,
        chunk: BitmapChunk,
    ) -> Result<(), &'static str> {
        let vol = self.vol_ix(nr).ok_or("a bitmap names an unknown volume")?;
        let agreed = self.agreed(peer);
        let node = self.peers[peer].node;
        let (now, first) = (self.now, self.next_resync_request);
        if self.vols[vol].backing.is_none() {
            // The disk is gone, and the peer has not heard of it yet.
            return Ok(());
        }
        // A disk that is being attached waits for the answers of all peers first.
        let negotiates = self.st.vols[vol].disk == DiskState::Negotiating;
        let exchanging =
            matches!(self.repl(peer, vol), ReplState::WFBitMapS | ReplState::WFBitMapT);
        if !exchanging && !negotiates {
            // Taken over, the bits would say that each of the two has what the other lacks.
            self.disagree(peer, "sends a bitmap for a resync that this node has not agreed to");
            return Ok(());
        }
        let Some(backing) = self.vols[vol].backing.as_mut() else { return Ok(()) };
        let slot = backing.slot_of(node).ok_or("a bitmap from a node without bitmap slot")?;
        let bits = backing.bitmap.bits();
        let dev = &mut self.peers[peer].devs[vol];
        let resync = dev.resync.get_or_insert_with(|| Box::new(Resync::new(now, first)));
        let receiver = resync.receiver.get_or_insert_with(|| BitmapReceiver::new(bits, &agreed));
        let bitmap = &mut backing.bitmap;
        let mut set = |start: u64, len: u64| {
            bitmap.set_bits(slot, start, len);
        };
        let progress = match chunk {
            BitmapChunk::Plain(words) => receiver.plain(&words, &mut set),
            BitmapChunk::Compressed(code) => receiver.compressed(&code, &mut set),
        };
        match progress {
            Err(_) => Err("a bitmap breaks the rules of its transfer"),
            Ok(Progress::Continues) => Ok(()),
            Ok(Progress::Complete) => {
                resync.receiver = None;
                resync.received = true;
                // What was said before of blocks that differ now says nothing any more.
                backing.claims.clear();
                self.exchange_progress(peer, vol);
                Ok(())
            }
        }
    }

    /// A resync to the peer has begun here, and it has not said yet that it knows. Its disk may be
    /// current as far as it knows, or become that by a resync from elsewhere that has no block left
    /// to fetch. Until it is its word that it takes part, it gets what it got before.
    pub(crate) fn is_unaware(&self, peer: PeerIx, vol: VolIx) -> bool {
        let word = self.peers[peer].devs[vol].last_word.unwrap_or_default();
        let whole = word.disk().is_some_and(|disk| disk >= DiskState::Inconsistent);
        let established = |repl: ReplState| repl >= ReplState::Established && !repl.is_target();
        whole && word.repl_state().is_some_and(established)
    }

    /// Source first, then target; with both maps exchanged the resync starts.
    pub(crate) fn exchange_progress(&mut self, peer: PeerIx, vol: VolIx) {
        let Some(resync) = &self.peers[peer].devs[vol].resync else { return };
        if !resync.received {
            return;
        }
        let next = match self.repl(peer, vol) {
            ReplState::WFBitMapS => ReplState::SyncSource,
            ReplState::WFBitMapT if !self.may_begin_resync(peer, vol) => return,
            ReplState::WFBitMapT => {
                self.send_bitmap(peer, vol);
                ReplState::SyncTarget
            }
            _ => return,
        };
        self.resync_mut(peer, vol).received = false;
        self.change_hard(|st| st.peers[peer].devs[vol].repl = next);
        self.kick_all();
    }
}
