//! The bitmap in memory: which blocks are out of sync with which peer (metadata §4).
//!
//! Every slot, given to a peer or not, has one bit for each block of the volume. Setting rounds
//! a range outward, clearing inward: a bit may say "out of sync" too much, never too little.
//! Memory follows what is dirty (see `sparse`).
//!
//! # What must reach the disk
//!
//! On disk the slots are interleaved, so a block of 4 KiB is always written with all of them.
//! A block in which a bit was set *must* be written before the activity log forgets the extents
//! it covers; one in which bits were only cleared is *lazy*: losing it merely costs resync.
//!
//! ```text
//!         set                take                   written
//! clean ───────► must ──────────────► writing ──────────────► clean
//!         clear        take                   failed
//! clean ───────► lazy ──────────────► writing ──────────────► must
//! ```
//!
//! A block that changes while it is being written is marked again, and is not taken a second
//! time before the first write ended: two writes of one block could land in either order.

use std::collections::BTreeSet;
use std::ops::Range;

use codec::disk::activity_log::EXTENT_SECTORS;
use codec::disk::bitmap::{self as layout, WORDS_PER_BLOCK};
use codec::disk::{BLOCK_SIZE, Block, MAX_SLOTS};
use serde::{Deserialize, Serialize};
use vocab::{SECTOR_SIZE, SectorRange, Sectors};

mod sparse;

use sparse::SparseBits;

/// Which changed blocks to look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changed {
    /// Those in which bits were set since they were written.
    Must,
    /// Those in which bits were set or cleared.
    Any,
}

/// Bits of all slots of one volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bitmap {
    size: Sectors,
    bytes_per_bit: u32,
    slots: Vec<SparseBits>,
    /// On-disk blocks in which bits were set.
    must: SparseBits,
    /// On-disk blocks in which bits were cleared.
    lazy: SparseBits,
    /// On-disk blocks handed out to be written.
    writing: BTreeSet<u64>,
}

impl Bitmap {
    /// An all-clear bitmap with nothing to write.
    ///
    /// # Panics
    /// If `slots` is not 1 to 31 or `bytes_per_bit` not a power of two of at least 4096: both
    /// come from a superblock that was checked.
    pub fn new(slots: u32, size: Sectors, bytes_per_bit: u32) -> Bitmap {
        assert!((1..=MAX_SLOTS).contains(&slots), "{slots} slots");
        assert!(bytes_per_bit.is_power_of_two() && bytes_per_bit >= 4096, "{bytes_per_bit}");
        let bits = layout::bits_for(size.0, bytes_per_bit);
        let blocks = layout::area_bytes(size.0, slots, bytes_per_bit) / BLOCK_SIZE as u64;
        Bitmap {
            size,
            bytes_per_bit,
            slots: vec![SparseBits::new(bits); slots as usize],
            must: SparseBits::new(blocks),
            lazy: SparseBits::new(blocks),
            writing: BTreeSet::new(),
        }
    }

    /// Size of the volume.
    pub fn size(&self) -> Sectors {
        self.size
    }

    /// Bits of each slot.
    pub fn bits(&self) -> u64 {
        self.slots[0].len()
    }

    /// 64-bit words of each slot.
    pub fn words64(&self) -> u64 {
        self.bits().div_ceil(64)
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of data behind one bit.
    pub fn bytes_per_bit(&self) -> u32 {
        self.bytes_per_bit
    }

    /// Blocks of 4 KiB that the bitmap takes on disk.
    pub fn blocks(&self) -> u64 {
        self.must.len()
    }

    /// Set bits of `slot`.
    pub fn count(&self, slot: usize) -> u64 {
        self.slots[slot].count()
    }

    /// Out-of-sync data of `slot`; the last block counts in full.
    pub fn out_of_sync(&self, slot: usize) -> Sectors {
        Sectors(self.count(slot) * self.sectors_per_bit())
    }

    fn sectors_per_bit(&self) -> u64 {
        u64::from(self.bytes_per_bit) / SECTOR_SIZE
    }

    /// Every bit that `range` touches. Ranges are cut to the volume.
    pub fn bits_touched(&self, range: SectorRange) -> Range<u64> {
        let end = range.checked_end().unwrap_or(u64::MAX).min(self.size.0);
        if range.start.0 >= end {
            return 0..0;
        }
        range.start.0 / self.sectors_per_bit()..end.div_ceil(self.sectors_per_bit())
    }

    /// Every bit that `range` covers in full. The last block of the volume is covered by a range
    /// that reaches the end, however small it is.
    pub fn bits_covered(&self, range: SectorRange) -> Range<u64> {
        let end = range.checked_end().unwrap_or(u64::MAX);
        let start = range.start.0.div_ceil(self.sectors_per_bit());
        let end = if end >= self.size.0 { self.bits() } else { end / self.sectors_per_bit() };
        if range.len.0 == 0 || start >= end { 0..0 } else { start..end }
    }

    /// The sectors behind `bits`, cut to the volume.
    pub fn sectors_of(&self, bits: Range<u64>) -> SectorRange {
        let start = bits.start.saturating_mul(self.sectors_per_bit()).min(self.size.0);
        let end = bits.end.saturating_mul(self.sectors_per_bit()).min(self.size.0);
        SectorRange::new(start, end.saturating_sub(start))
    }

    /// Marks `range` out of sync, rounded outward; returns how many bits were clear before.
    pub fn set_range(&mut self, slot: usize, range: SectorRange) -> u64 {
        self.fill(slot, self.bits_touched(range), true)
    }

    /// Marks `range` in sync, rounded inward; returns how many bits were set before.
    pub fn clear_range(&mut self, slot: usize, range: SectorRange) -> u64 {
        self.fill(slot, self.bits_covered(range), false)
    }

    /// Marks the whole volume out of sync; returns how many bits were clear before.
    pub fn set_all(&mut self, slot: usize) -> u64 {
        self.fill(slot, 0..self.bits(), true)
    }

    /// Marks the whole volume in sync; returns how many bits were set before.
    pub fn clear_all(&mut self, slot: usize) -> u64 {
        self.fill(slot, 0..self.bits(), false)
    }

    fn fill(&mut self, slot: usize, bits: Range<u64>, value: bool) -> u64 {
        let changed = self.slots[slot].fill(bits.clone(), value);
        if changed > 0 {
            self.mark(slot, bits, value);
        }
        changed
    }

    /// Marks the on-disk blocks that hold `bits` of `slot`; `bits` is not empty.
    fn mark(&mut self, slot: usize, bits: Range<u64>, set: bool) {
        let slots = self.slots.len() as u64;
        let block = |bit: u64| ((bit >> 5) * slots + slot as u64) / WORDS_PER_BLOCK;
        let blocks = block(bits.start)..block(bits.end - 1) + 1;
        let marks = if set { &mut self.must } else { &mut self.lazy };
        marks.fill(blocks, true);
    }

    /// True if any bit that `range` touches is set in `slot`.
    pub fn test_any(&self, slot: usize, range: SectorRange) -> bool {
        let bits = self.bits_touched(range);
        self.slots[slot].next_set(bits.start).is_some_and(|bit| bit < bits.end)
    }

    /// True if no slot has a bit set that `range` touches.
    pub fn is_range_clear_all_slots(&self, range: SectorRange) -> bool {
        (0..self.slots.len()).all(|slot| !self.test_any(slot, range))
    }

    /// First set bit of `slot` at or behind `from`.
    pub fn next_set(&self, slot: usize, from: u64) -> Option<u64> {
        self.slots[slot].next_set(from)
    }

    /// First clear bit of `slot` at or behind `from`. Together with [`Bitmap::next_set`] this
    /// walks the runs of both kinds, for run-length encoding.
    pub fn next_clear(&self, slot: usize, from: u64) -> Option<u64> {
        self.slots[slot].next_clear(from)
    }

    /// The first run of set bits of `slot` at or behind `from`, as (start, length), cut to `cap`
    /// bits.
    pub fn next_run(&self, slot: usize, from: u64, cap: u64) -> Option<(u64, u64)> {
        let start = self.next_set(slot, from)?;
        let end = self.next_clear(slot, start).unwrap_or(self.bits());
        Some((start, (end - start).min(cap)))
    }

    /// Cuts `range` into pieces in each of which no slot of `slots` changes.
    pub fn pieces(&self, slots: &[usize], range: SectorRange) -> Vec<SectorRange> {
        let bits = self.bits_touched(range);
        let mut pieces = Vec::new();
        let mut start = bits.start;
        while start < bits.end {
            let change = |slot: &usize| match self.next_set(*slot, start) {
                Some(at) if at == start => self.next_clear(*slot, start),
                at => at,
            };
            let end = slots.iter().filter_map(change).min().unwrap_or(bits.end).min(bits.end);
            let piece = self.sectors_of(start..end);
            let from = piece.start.0.max(range.start.0);
            pieces.push(SectorRange::new(from, piece.end().min(range.end()) - from));
            start = end;
        }
        pieces
    }

    /// Cuts the begin of `range` into at most `limit` runs whose bits are set in any slot of `slots`
    /// (true), or in none.
    pub fn runs(
        &self,
        slots: &[usize],
        range: SectorRange,
        limit: usize,
    ) -> Vec<(SectorRange, bool)> {
        let bits = self.bits_touched(range);
        let set = |from| slots.iter().filter_map(|slot| self.next_set(*slot, from)).min();
        let mut runs = Vec::new();
        let mut start = bits.start;
        while start < bits.end && runs.len() < limit {
            let first = set(start).unwrap_or(bits.end).min(bits.end);
            let mut end = first;
            if first == start {
                // A slot that goes on may go on behind the end of another.
                while let Some(behind) = slots
                    .iter()
                    .filter(|slot| end < bits.end && self.next_set(**slot, end) == Some(end))
                    .map(|slot| self.next_clear(*slot, end).unwrap_or(bits.end))
                    .max()
                {
                    end = behind.min(bits.end);
                }
            }
            let run = self.sectors_of(start..end);
            let from = run.start.0.max(range.start.0);
            let run = SectorRange::new(from, run.end().min(range.end()) - from);
            runs.push((run, first == start));
            start = end;
        }
        runs
    }

    /// Makes `to` a copy of `from`.
    pub fn copy_slot(&mut self, from: usize, to: usize) {
        if from == to {
            return;
        }
        self.slots[to] = self.slots[from].clone();
        if self.bits() > 0 {
            self.mark(to, 0..self.bits(), true);
        }
    }

    /// Adds the set bits of `from` to `to`.
    pub fn merge_slot(&mut self, from: usize, to: usize) {
        let mut next = 0;
        while let Some((start, len)) = self.next_run(from, next, u64::MAX) {
            self.set_bits(to, start, len);
            next = start + len;
        }
    }

    /// Copies words of `slot` from `first` on into `words`; zero behind the end.
    pub fn words(&self, slot: usize, first: u64, words: &mut [u64]) {
        for (index, word) in (first..).zip(words) {
            *word = self.slots[slot].word(index);
        }
    }

    /// One 64-bit word of `slot`; zero behind the end.
    pub fn word(&self, slot: usize, index: u64) -> u64 {
        self.slots[slot].word(index)
    }

    /// Adds the set bits of `words` to `slot`, from word `first` on; returns how many were clear
    /// before. Bits behind the end are ignored.
    pub fn or_words(&mut self, slot: usize, first: u64, words: &[u64]) -> u64 {
        let mut total = 0;
        for (index, word) in (first..self.words64()).zip(words) {
            let (set, _) = self.slots[slot].replace(index, *word, *word);
            if set > 0 {
                self.mark(slot, index * 64..((index + 1) * 64).min(self.bits()), true);
            }
            total += set;
        }
        total
    }

    /// Adds a run of bits, as (start, length) of a decoded bitmap; returns how many were clear.
    pub fn set_bits(&mut self, slot: usize, start: u64, len: u64) -> u64 {
        let end = start.saturating_add(len).min(self.bits());
        self.fill(slot, start..end, true)
    }

    /// Follows a new size of the volume. New blocks are set in every slot or clear, as told. Where a
    /// bit is on disk does not change with the size, so blocks may be under way to the disk. The
    /// caller must write the whole bitmap if its place changed too: [`Bitmap::mark_all`].
    pub fn resize(&mut self, size: Sectors, set_new: bool) {
        let old = std::mem::replace(&mut self.size, size);
        let bits = layout::bits_for(size.0, self.bytes_per_bit);
        let slots = self.slots.len() as u32;
        let blocks = layout::area_bytes(size.0, slots, self.bytes_per_bit) / BLOCK_SIZE as u64;
        for slot in &mut self.slots {
            slot.resize(bits, false);
        }
        self.must.resize(blocks, false);
        self.lazy.resize(blocks, false);
        if size > old {
            let new = SectorRange::new(old.0, size.0 - old.0);
            for slot in 0..self.slots.len() {
                if set_new {
                    // The last old block gains new sectors if it was a partial one.
                    self.set_range(slot, new);
                } else {
                    // What is on disk there was never ours.
                    let bits = self.bits_touched(new);
                    self.mark(slot, bits, true);
                }
            }
        }
    }

    /// On-disk blocks that hold bits of al-extent `extent`, all slots.
    pub fn blocks_of_extent(&self, extent: u32) -> Range<u64> {
        let start = u64::from(extent) * EXTENT_SECTORS;
        let bits = self.bits_touched(SectorRange::new(start, EXTENT_SECTORS));
        layout::blocks_covering(bits, self.slots.len() as u32)
    }

    /// Changed blocks within `blocks`, ascending; without those being written.
    pub fn dirty_blocks(
        &self,
        blocks: Range<u64>,
        which: Changed,
    ) -> impl Iterator<Item = u64> + '_ {
        let mut from = blocks.start;
        std::iter::from_fn(move || {
            let must = self.must.next_set(from);
            let lazy = if which == Changed::Any { self.lazy.next_set(from) } else { None };
            let next = must.into_iter().chain(lazy).min().filter(|block| *block < blocks.end)?;
            from = next + 1;
            Some(next)
        })
        .filter(|block| !self.writing.contains(block))
    }

    /// Changed blocks covering `extent`, all slots.
    pub fn dirty_blocks_covering(&self, extent: u32) -> impl Iterator<Item = u64> + '_ {
        self.dirty_blocks(self.blocks_of_extent(extent), Changed::Must)
    }

    /// True if everything that was ever set in the blocks covering `extent` is on disk: nothing
    /// is waiting to be written and nothing is being written.
    pub fn is_extent_written(&self, extent: u32) -> bool {
        let blocks = self.blocks_of_extent(extent);
        self.must.next_set(blocks.start).is_none_or(|block| block >= blocks.end)
            && self.writing.range(blocks).next().is_none()
    }

    /// True if nothing of that kind waits to be written or is being written.
    pub fn is_written(&self, which: Changed) -> bool {
        self.writing.is_empty()
            && self.must.count() == 0
            && (which == Changed::Must || self.lazy.count() == 0)
    }

    /// Hands out up to `max` changed blocks within `blocks`, appended to `out`, to be encoded
    /// and written; each must be answered by [`Bitmap::block_written`].
    pub fn take_dirty(
        &mut self,
        blocks: Range<u64>,
        which: Changed,
        max: usize,
        out: &mut Vec<u64>,
    ) {
        let first = out.len();
        let taken: Vec<u64> = self.dirty_blocks(blocks, which).take(max).collect();
        out.extend(taken);
        for &block in &out[first..] {
            self.must.fill(block..block + 1, false);
            self.lazy.fill(block..block + 1, false);
            self.writing.insert(block);
        }
    }

    /// The write of a block that [`Bitmap::take_dirty`] handed out has ended. One that failed is
    /// still to be written.
    ///
    /// # Panics
    /// If the block was not handed out.
    pub fn block_written(&mut self, block: u64, ok: bool) {
        assert!(self.writing.remove(&block), "bitmap block {block} was not being written");
        // The volume may have shrunk meanwhile.
        if !ok && block < self.blocks() {
            self.must.fill(block..block + 1, true);
        }
    }

    /// Everything must be written, for instance at a new place.
    pub fn mark_all(&mut self) {
        self.must.fill(0..self.must.len(), true);
    }

    /// The words of `slot` that block `index` holds.
    fn words_in_block(&self, index: u64, slot: usize) -> Range<u64> {
        let slots = self.slots.len() as u64;
        let first = index * WORDS_PER_BLOCK;
        let word = |limit: u64| limit.saturating_sub(slot as u64).div_ceil(slots);
        word(first)..word(first + WORDS_PER_BLOCK)
    }

    /// Fills `block` with on-disk block `index`: all slots, interleaved.
    pub fn encode_block(&self, index: u64, block: &mut Block) {
        let empty = self.slots.iter().enumerate().all(|(slot, bits)| {
            let words = self.words_in_block(index, slot);
            bits.next_set(words.start * 32).is_none_or(|bit| bit >= words.end * 32)
        });
        if empty {
            block.fill(0);
            return;
        }
        layout::gather(index, self.slots.len() as u32, block, |slot, number| {
            (self.slots[slot as usize].word(number / 2) >> (number % 2 * 32)) as u32
        });
    }

    /// Takes the content of on-disk block `index` over, for attach: nothing becomes dirty. Bits
    /// behind the end of the volume are ignored.
    pub fn load_block(&mut self, index: u64, block: &Block) {
        let uniform = block.iter().all(|byte| *byte == block[0]);
        if uniform && matches!(block[0], 0 | 0xFF) {
            for slot in 0..self.slots.len() {
                let words = self.words_in_block(index, slot);
                self.slots[slot].fill(words.start * 32..words.end * 32, block[0] == 0xFF);
            }
            return;
        }
        layout::scatter(index, self.slots.len() as u32, block, |slot, number, value| {
            let shift = number % 2 * 32;
            let mask = u64::from(u32::MAX) << shift;
            self.slots[slot as usize].replace(number / 2, mask, u64::from(value) << shift);
        });
    }

    /// Bytes of heap memory that the bits and marks take.
    pub fn memory(&self) -> usize {
        let slots: usize = self.slots.iter().map(SparseBits::memory).sum();
        slots + self.must.memory() + self.lazy.memory()
    }
}

#[cfg(test)]
mod tests;
