//! The bitmap against a model of plain booleans, and its limits.

use super::*;

/// xorshift64*: enough to shuffle operations, and the seed replays a failure.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A range of sectors: small, large, or up to the end; sometimes beyond it.
    fn range(&mut self, size: u64) -> SectorRange {
        let start = self.below(size);
        let len = match self.below(4) {
            0 => self.below(30),
            1 => self.below(3000),
            2 => size - start,
            _ => self.below(size + 10),
        };
        SectorRange::new(start, len)
    }
}

/// What the bitmap should hold, bit by bit, and what a disk holds of it.
struct Model {
    slots: Vec<Vec<bool>>,
    /// As last written: bits that are durable.
    disk: Vec<Box<Block>>,
}

impl Model {
    fn new(bitmap: &Bitmap) -> Model {
        Model {
            slots: vec![vec![false; bitmap.bits() as usize]; bitmap.slots()],
            disk: (0..bitmap.blocks()).map(|_| Box::new([0; BLOCK_SIZE])).collect(),
        }
    }

    fn write(&mut self, bitmap: &mut Bitmap, which: Changed, max: usize) {
        let mut blocks = Vec::new();
        bitmap.take_dirty(0..bitmap.blocks(), which, max, &mut blocks);
        assert!(blocks.is_sorted());
        for block in blocks {
            bitmap.encode_block(block, &mut self.disk[block as usize]);
            bitmap.block_written(block, true);
        }
    }

    /// Every bit that is set in memory is on disk or in a block marked `must`; every difference
    /// is in a block marked at all.
    fn check_marks(&self, bitmap: &Bitmap) {
        let must: BTreeSet<u64> = bitmap.dirty_blocks(0..u64::MAX, Changed::Must).collect();
        let any: BTreeSet<u64> = bitmap.dirty_blocks(0..u64::MAX, Changed::Any).collect();
        for (slot, bits) in self.slots.iter().enumerate() {
            for (bit, set) in (0u64..).zip(bits) {
                let (byte, mask) = layout::bit_position(bit, slot as u32, self.slots.len() as u32);
                let block = byte / BLOCK_SIZE as u64;
                let stored =
                    self.disk[block as usize][(byte % BLOCK_SIZE as u64) as usize] & mask != 0;
                if stored != *set {
                    assert!(if *set { &must } else { &any }.contains(&block));
                }
            }
        }
    }

    fn check(&self, bitmap: &Bitmap) {
        for (slot, bits) in self.slots.iter().enumerate() {
            bitmap.slots[slot].check();
            assert_eq!(bitmap.count(slot), bits.iter().filter(|bit| **bit).count() as u64);
            let mut runs = Vec::new();
            let mut from = 0;
            while let Some((start, len)) = bitmap.next_run(slot, from, u64::MAX) {
                runs.push((start, len));
                from = start + len;
            }
            let mut expected: Vec<(u64, u64)> = Vec::new();
            for bit in (0u64..).zip(bits).filter(|(_, set)| **set).map(|(bit, _)| bit) {
                match expected.last_mut() {
                    Some((start, len)) if *start + *len == bit => *len += 1,
                    _ => expected.push((bit, 1)),
                }
            }
            assert_eq!(runs, expected);
        }
    }
}

fn random_walk(seed: u64, slots: u32, mut size: u64, granularity: u32, steps: u32) {
    let mut rng = Rng(seed);
    let mut bitmap = Bitmap::new(slots, Sectors(size), granularity);
    let mut model = Model::new(&bitmap);
    let per_bit = u64::from(granularity) / 512;
    for step in 0..steps {
        let slot = rng.below(u64::from(slots)) as usize;
        let range = rng.range(size);
        let (start, end) = (range.start.0, range.end().min(size));
        let bits = bitmap.bits() as usize;
        match rng.below(16) {
            0..=4 => {
                let (first, last) = (start / per_bit, end.div_ceil(per_bit));
                let touched = if end > start { first as usize..last as usize } else { 0..0 };
                let new = touched.clone().filter(|bit| !model.slots[slot][*bit]).count();
                assert_eq!(bitmap.set_range(slot, range), new as u64);
                model.slots[slot][touched].fill(true);
            }
            5..=8 => {
                let first = start.div_ceil(per_bit) as usize;
                let last =
                    if end == size && range.len.0 > 0 { bits } else { (end / per_bit) as usize };
                let covered = if range.len.0 > 0 && first < last { first..last } else { 0..0 };
                let old = covered.clone().filter(|bit| model.slots[slot][*bit]).count();
                assert_eq!(bitmap.clear_range(slot, range), old as u64);
                model.slots[slot][covered].fill(false);
            }
            9 => {
                let touched = bitmap.bits_touched(range);
                let touched = touched.start as usize..touched.end as usize;
                let any = |slot: &Vec<bool>| slot[touched.clone()].contains(&true);
                assert_eq!(bitmap.test_any(slot, range), any(&model.slots[slot]));
                assert_eq!(bitmap.is_range_clear_all_slots(range), !model.slots.iter().any(any));
            }
            10 => {
                let from = rng.below(u64::from(slots)) as usize;
                bitmap.copy_slot(from, slot);
                model.slots[slot] = model.slots[from].clone();
            }
            11 => {
                let first = rng.below(bitmap.words64());
                let words: Vec<u64> =
                    (0..rng.below(40)).map(|_| rng.next() & rng.next() & rng.next()).collect();
                let mut new = 0;
                for (i, word) in words.iter().enumerate() {
                    for bit in 0..64 {
                        let at = (first as usize + i) * 64 + bit;
                        if word >> bit & 1 != 0 && at < bits && !model.slots[slot][at] {
                            model.slots[slot][at] = true;
                            new += 1;
                        }
                    }
                }
                assert_eq!(bitmap.or_words(slot, first, &words), new);
                let mut back = vec![0; words.len()];
                bitmap.words(slot, first, &mut back);
                for (i, word) in (0u64..).zip(&back) {
                    for bit in 0..64 {
                        let at = ((first + i) * 64 + bit) as usize;
                        let expected = model.slots[slot].get(at).copied().unwrap_or(false);
                        assert_eq!(word >> bit & 1 != 0, expected);
                    }
                }
            }
            12 => model.write(&mut bitmap, Changed::Must, rng.below(5) as usize),
            13 => model.write(&mut bitmap, Changed::Any, rng.below(5) as usize),
            14 if rng.below(4) == 0 => {
                let new = 1 + rng.below(2 * size);
                let set_new = rng.below(2) == 0;
                bitmap.resize(Sectors(new), set_new);
                let bits = bitmap.bits() as usize;
                for slot in &mut model.slots {
                    slot.resize(bits, set_new);
                    if set_new && new > size {
                        slot[(size / per_bit) as usize..].fill(true);
                    }
                }
                model.disk.resize_with(bitmap.blocks() as usize, || Box::new([0xAA; BLOCK_SIZE]));
                size = new;
            }
            15 if rng.below(3) == 0 => {
                let set = rng.below(2) == 0;
                let changed = if set { bitmap.set_all(slot) } else { bitmap.clear_all(slot) };
                assert_eq!(changed, model.slots[slot].iter().filter(|b| **b != set).count() as u64);
                model.slots[slot].fill(set);
            }
            _ => {}
        }
        if step % 16 == 0 {
            model.check(&bitmap);
            model.check_marks(&bitmap);
        }
    }
    // After writing everything, a fresh bitmap loaded from disk is the same.
    model.write(&mut bitmap, Changed::Any, usize::MAX);
    assert!(bitmap.is_written(Changed::Any));
    let mut loaded = Bitmap::new(slots, Sectors(size), granularity);
    for (index, block) in (0..).zip(&model.disk) {
        loaded.load_block(index, block);
    }
    model.check(&loaded);
    assert!(loaded.is_written(Changed::Any), "loading makes nothing dirty");
}

#[test]
fn any_sequence_of_operations_matches_the_model() {
    for (seed, slots) in (1..).zip([1, 2, 3, 7, 31]) {
        for size in [1, 7, 8 * 63 + 1, 8 * 1000, 8 * 32768 + 3, 8 * 70001] {
            let steps = if size < 10_000 { 400 } else { 60 };
            random_walk(seed * 7919 + size, slots, size, 4096, steps);
        }
        random_walk(seed, slots, 8 * 70001, 65536, 200);
    }
}

#[test]
fn nodes_of_the_sparse_vector_are_crossed_correctly() {
    const NODE: u64 = 1 << 24;
    let mut bits = SparseBits::new(3 * NODE + 77);
    assert_eq!(bits.fill(NODE - 1..2 * NODE + 1, true), NODE + 2);
    bits.check();
    assert_eq!(bits.next_set(0), Some(NODE - 1));
    assert_eq!(bits.next_clear(NODE - 1), Some(2 * NODE + 1));
    assert_eq!(bits.fill(0..u64::MAX, true), 2 * NODE + 77 - 2);
    assert_eq!(bits.next_clear(0), None);
    assert_eq!(bits.word((3 * NODE + 64) / 64), (1 << 13) - 1, "padding reads as zero");
    bits.resize(3 * NODE + 80, false);
    bits.check();
    assert_eq!(bits.next_clear(0), Some(3 * NODE + 77));
    assert_eq!(bits.count(), 3 * NODE + 77);
    bits.resize(3 * NODE, false);
    bits.check();
    assert_eq!(bits.next_clear(0), None);
    bits.resize(2 * NODE + 5, false);
    bits.resize(5 * NODE, true);
    bits.check();
    assert_eq!((bits.count(), bits.next_clear(0)), (5 * NODE, None));
    bits.resize(0, false);
    assert_eq!((bits.count(), bits.next_set(0)), (0, None));
    bits.resize(10, true);
    assert_eq!(bits.count(), 10);
}

#[test]
fn memory_follows_what_is_dirty_case_77() {
    let tib16 = Sectors((16 << 40) / 512);
    let mut bitmap = Bitmap::new(3, tib16, 4096);
    assert!(bitmap.memory() < 20_000, "{}", bitmap.memory());
    bitmap.set_all(1);
    assert!(bitmap.memory() < 20_000, "{}", bitmap.memory());
    assert_eq!(bitmap.count(1), 1 << 32);
    bitmap.set_range(0, SectorRange::new(1 << 30, 8));
    assert!(bitmap.memory() < 60_000, "{}", bitmap.memory());
    // A resync from the front leaves clean memory behind.
    bitmap.clear_range(1, SectorRange::new(0, 1 << 34));
    bitmap.clear_range(0, SectorRange::new(0, 1 << 34));
    assert!(bitmap.memory() < 60_000, "{}", bitmap.memory());
}

#[test]
fn the_last_partial_block_is_cleared_by_a_range_that_reaches_the_end() {
    let mut bitmap = Bitmap::new(1, Sectors(8 * 10 + 3), 4096);
    assert_eq!(bitmap.bits(), 11);
    bitmap.set_all(0);
    assert_eq!(bitmap.clear_range(0, SectorRange::new(79, 3)), 0, "no block is covered");
    assert_eq!(bitmap.clear_range(0, SectorRange::new(81, 2)), 0, "not from its start");
    assert_eq!(bitmap.clear_range(0, SectorRange::new(80, 3)), 1);
    assert_eq!(bitmap.out_of_sync(0), Sectors(80));
    assert_eq!(bitmap.sectors_of(9..11), SectorRange::new(72, 11));
}

#[test]
fn empty_and_absurd_ranges_change_nothing() {
    let mut bitmap = Bitmap::new(2, Sectors(800), 4096);
    for range in [
        SectorRange::new(0, 0),
        SectorRange::new(800, 8),
        SectorRange::new(u64::MAX, 0),
        SectorRange::new(u64::MAX - 3, u64::MAX),
    ] {
        assert_eq!(bitmap.set_range(0, range), 0);
        assert_eq!(bitmap.clear_range(0, range), 0);
        assert!(!bitmap.test_any(0, range));
    }
    assert_eq!(bitmap.set_bits(0, u64::MAX, u64::MAX), 0);
    assert_eq!(bitmap.or_words(0, u64::MAX, &[1]), 0);
    assert_eq!(bitmap.word(0, u64::MAX / 64), 0);
    assert_eq!(bitmap.next_set(0, u64::MAX), None);
    assert_eq!(bitmap.set_range(0, SectorRange::new(1, u64::MAX)), 100);
    assert_eq!(bitmap.sectors_of(0..u64::MAX), SectorRange::new(0, 800));
}

#[test]
fn a_block_changed_while_it_is_written_is_written_again() {
    let mut bitmap = Bitmap::new(3, Sectors(8 * 4000), 4096);
    let mut taken = Vec::new();
    bitmap.set_range(0, SectorRange::new(0, 8));
    bitmap.take_dirty(0..bitmap.blocks(), Changed::Must, 10, &mut taken);
    assert_eq!(taken, [0]);
    assert!(!bitmap.is_extent_written(0), "being written is not written");
    bitmap.set_range(1, SectorRange::new(0, 8));
    let mut again = Vec::new();
    bitmap.take_dirty(0..bitmap.blocks(), Changed::Must, 10, &mut again);
    assert!(again.is_empty(), "not twice at the same time");
    bitmap.block_written(0, true);
    assert_eq!(bitmap.dirty_blocks_covering(0).collect::<Vec<_>>(), [0]);
    bitmap.take_dirty(0..bitmap.blocks(), Changed::Must, 10, &mut again);
    bitmap.block_written(0, false);
    assert!(!bitmap.is_extent_written(0), "a failed write is still to be done");
    again.clear();
    bitmap.take_dirty(0..bitmap.blocks(), Changed::Must, 10, &mut again);
    bitmap.block_written(0, true);
    assert!(bitmap.is_extent_written(0) && bitmap.is_written(Changed::Any));
}

#[test]
fn exactly_the_block_that_holds_a_bit_becomes_dirty() {
    for slots in [1, 2, 3, 7, 31] {
        for bit in (0..20_000).step_by(31) {
            for slot in [0, slots - 1] {
                let mut bitmap = Bitmap::new(slots, Sectors(8 * 20_000), 4096);
                bitmap.set_bits(slot as usize, bit, 1);
                let (byte, _) = layout::bit_position(bit, slot, slots);
                let dirty: Vec<u64> = bitmap.dirty_blocks(0..u64::MAX, Changed::Must).collect();
                assert_eq!(dirty, [byte / BLOCK_SIZE as u64]);
            }
        }
    }
}

#[test]
fn clearing_bits_is_lazy() {
    let mut bitmap = Bitmap::new(1, Sectors(8 * 4000), 4096);
    bitmap.set_all(0);
    let mut taken = Vec::new();
    bitmap.take_dirty(0..bitmap.blocks(), Changed::Must, 10, &mut taken);
    taken.drain(..).for_each(|block| bitmap.block_written(block, true));
    bitmap.clear_range(0, SectorRange::new(0, 80));
    assert!(bitmap.is_extent_written(0) && bitmap.is_written(Changed::Must));
    assert!(!bitmap.is_written(Changed::Any));
    bitmap.mark_all();
    assert!(!bitmap.is_written(Changed::Must));
}

#[test]
fn padding_on_disk_is_ignored() {
    let mut bitmap = Bitmap::new(2, Sectors(8 * 33), 4096);
    bitmap.load_block(0, &[0xFF; BLOCK_SIZE]);
    assert_eq!((bitmap.count(0), bitmap.count(1)), (33, 33));
    let mut block = [0xFF; BLOCK_SIZE];
    block[0] = 0xFE;
    bitmap.load_block(0, &block);
    assert_eq!((bitmap.count(0), bitmap.count(1)), (32, 33));
    bitmap.slots[0].check();
    let mut written = [0; BLOCK_SIZE];
    bitmap.encode_block(0, &mut written);
    assert_eq!(written[..16], [0xFE, 255, 255, 255, 255, 255, 255, 255, 1, 0, 0, 0, 1, 0, 0, 0]);
    assert!(written[16..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_range_is_cut_where_one_of_several_slots_changes() {
    let mut bitmap = Bitmap::new(3, Sectors(1000), 4096);
    bitmap.set_bits(0, 2, 4);
    bitmap.set_bits(1, 4, 4);
    let range = SectorRange::new(4, 100);
    let pieces = |slots: &[usize]| bitmap.pieces(slots, range);
    let ends = |slots: &[usize]| pieces(slots).iter().map(|p| p.end()).collect::<Vec<_>>();
    assert_eq!(pieces(&[2]), [range]);
    assert_eq!(pieces(&[]), [range]);
    assert_eq!(ends(&[0]), [16, 48, 104]);
    assert_eq!(ends(&[0, 1]), [16, 32, 48, 64, 104]);
    assert_eq!(pieces(&[0, 1])[0].start.0, 4, "it does not reach beyond the range");
}

#[test]
fn runs_say_what_is_set_in_any_slot() {
    let mut bitmap = Bitmap::new(3, Sectors(1604), 4096);
    bitmap.set_bits(0, 2, 4);
    bitmap.set_bits(1, 4, 4);
    bitmap.set_bits(1, 20, 1);
    let all = SectorRange::new(0, 1604);
    let runs = |slots: &[usize], range, limit| -> Vec<(u64, u64, bool)> {
        let runs = bitmap.runs(slots, range, limit);
        runs.into_iter().map(|(run, set)| (run.start.0, run.end(), set)).collect()
    };
    let want =
        [(0, 16, false), (16, 64, true), (64, 160, false), (160, 168, true), (168, 1604, false)];
    assert_eq!(runs(&[0, 1, 2], all, 100), want);
    assert_eq!(runs(&[1, 0], all, 2), want[..2]);
    assert_eq!(runs(&[2], all, 100), [(0, 1604, false)]);
    assert_eq!(runs(&[], all, 100), [(0, 1604, false)]);
    // What begins or ends within a block does not reach beyond.
    assert_eq!(runs(&[0, 1], SectorRange::new(20, 1), 100), [(20, 21, true)]);
    assert_eq!(runs(&[0], SectorRange::new(47, 3), 100), [(47, 48, true), (48, 50, false)]);
    bitmap.set_all(2);
    assert_eq!(bitmap.runs(&[0, 2], all, 100), [(all, true)]);
}
