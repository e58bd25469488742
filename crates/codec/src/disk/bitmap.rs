//! Layout of the on-disk bitmap (metadata §4.1).
//!
//! One bit covers [`bm_bytes_per_bit`](super::Superblock::bm_bytes_per_bit) bytes of data and
//! says that they are out of sync with the peer of a slot. The slots are interleaved in 32-bit
//! little-endian words: word `w` of the area is word `w / P` of slot `w % P`. So one write of a
//! block makes all slots of a region durable together.

use std::ops::Range;

use vocab::SECTOR_SIZE;

use super::{BLOCK_SIZE, Block};

/// 32-bit words in one block.
pub const WORDS_PER_BLOCK: u64 = BLOCK_SIZE as u64 / 4;

/// Bits of a volume of `sectors`, the last one perhaps for a partial granule.
pub const fn bits_for(sectors: u64, bytes_per_bit: u32) -> u64 {
    sectors.div_ceil(bytes_per_bit as u64 / SECTOR_SIZE)
}

/// Bytes of the bitmap of `slots` peers over `sectors`, whole blocks (metadata §2). Slots are
/// rounded to 64 bits each, their sum once to a block.
///
/// `bytes_per_bit` must be at least 4096 and `slots` at most 31: then no size overflows.
pub const fn area_bytes(sectors: u64, slots: u32, bytes_per_bit: u32) -> u64 {
    let bits = bits_for(sectors, bytes_per_bit).next_multiple_of(64);
    (bits / 8 * slots as u64).next_multiple_of(BLOCK_SIZE as u64)
}

/// Byte within the area, and mask within that byte, of `bit` of `slot` among `slots`.
pub const fn bit_position(bit: u64, slot: u32, slots: u32) -> (u64, u8) {
    let word = (bit >> 5) * slots as u64 + slot as u64;
    (4 * word + ((bit & 31) >> 3), 1 << (bit & 7))
}

/// Blocks of the area that hold any slot's bits `bits`; empty for an empty range.
pub const fn blocks_covering(bits: Range<u64>, slots: u32) -> Range<u64> {
    if bits.start >= bits.end {
        return 0..0;
    }
    let first_word = (bits.start >> 5) * slots as u64;
    let last_word = ((bits.end - 1) >> 5) * slots as u64 + slots as u64 - 1;
    first_word / WORDS_PER_BLOCK..last_word / WORDS_PER_BLOCK + 1
}

/// Bits of every slot that have a word in block `index`. Neighbouring blocks may share words'
/// numbers when the slots do not divide the block: then they hold different slots of them.
pub const fn bits_of_block(index: u64, slots: u32) -> Range<u64> {
    let first = index * WORDS_PER_BLOCK / slots as u64;
    let last = (index * WORDS_PER_BLOCK + WORDS_PER_BLOCK - 1) / slots as u64;
    first * 32..(last + 1) * 32
}

/// Fills block `index` from `word(slot, number)`, the 32-bit words of each slot.
pub fn gather(index: u64, slots: u32, block: &mut Block, mut word: impl FnMut(u32, u64) -> u32) {
    for_each_word(index, slots, |at, slot, number| {
        block[at..at + 4].copy_from_slice(&word(slot, number).to_le_bytes());
    });
}

/// Hands every word of block `index` to `word(slot, number, value)`.
pub fn scatter(index: u64, slots: u32, block: &Block, mut word: impl FnMut(u32, u64, u32)) {
    for_each_word(index, slots, |at, slot, number| {
        let bytes = block[at..at + 4].try_into().expect("a 4 byte range");
        word(slot, number, u32::from_le_bytes(bytes));
    });
}

fn for_each_word(index: u64, slots: u32, mut visit: impl FnMut(usize, u32, u64)) {
    assert!(slots > 0, "a bitmap has at least one slot");
    let first = index * WORDS_PER_BLOCK;
    let (mut number, mut slot) = (first / u64::from(slots), (first % u64::from(slots)) as u32);
    for at in (0..BLOCK_SIZE).step_by(4) {
        visit(at, slot, number);
        slot += 1;
        if slot == slots {
            slot = 0;
            number += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_interleave_in_32_bit_words() {
        assert_eq!(bit_position(0, 0, 3), (0, 1));
        assert_eq!(bit_position(31, 0, 3), (3, 0x80));
        assert_eq!(bit_position(0, 1, 3), (4, 1));
        assert_eq!(bit_position(33, 2, 3), (4 * 5, 2));
        // One slot is a plain stream, least significant bit first.
        for bit in 0..200 {
            assert_eq!(bit_position(bit, 0, 1), (bit / 8, 1 << (bit % 8)));
        }
    }

    #[test]
    fn gather_and_scatter_agree_with_the_bit_position() {
        for slots in [1, 2, 3, 7, 31] {
            for index in [0, 1, 5] {
                let mut block = [0; BLOCK_SIZE];
                let value = |slot: u32, number: u64| (number as u32) << 8 | slot;
                gather(index, slots, &mut block, value);
                let mut words = 0;
                scatter(index, slots, &block, |slot, number, word| {
                    assert_eq!(word, value(slot, number));
                    let (byte, _) = bit_position(number * 32, slot, slots);
                    assert_eq!(byte / BLOCK_SIZE as u64, index);
                    let bits = number * 32..number * 32 + 32;
                    assert!(blocks_covering(bits.clone(), slots).contains(&index));
                    let of_block = bits_of_block(index, slots);
                    assert!(of_block.start <= bits.start && bits.end <= of_block.end);
                    words += 1;
                });
                assert_eq!(words, WORDS_PER_BLOCK);
            }
        }
        assert_eq!(blocks_covering(5..5, 3), 0..0);
    }

    #[test]
    fn areas_match_the_worked_values_and_do_not_overflow() {
        assert_eq!(area_bytes(2097152, 3, 4096), 98304);
        assert_eq!(area_bytes(1, 1, 4096), 4096);
        assert_eq!(area_bytes(0, 31, 4096), 0);
        assert_eq!(area_bytes(2147483648, 31, 4096), 1040187392);
        assert!(area_bytes(u64::MAX, 31, 4096) > 1 << 60);
    }
}
