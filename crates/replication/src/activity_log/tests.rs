//! Rules of the activity log, and its promise over every crash point.

use std::collections::VecDeque;

use codec::disk::activity_log::{empty_block, recover};
use codec::disk::{BLOCK_SIZE, MAX_VOLUME_SECTORS};
use vocab::Sectors;

use super::*;
use crate::bitmap::{Bitmap, Changed};

fn extent(n: u64) -> SectorRange {
    SectorRange::new(n * EXTENT_SECTORS + 8, 8)
}

fn log(extents: u16) -> ActivityLog {
    ActivityLog::new(extents, AlStriping::default())
}

/// Commits what is queued; returns what was evicted.
fn commit(log: &mut ActivityLog) -> Vec<u32> {
    let write = log.start_transaction().unwrap();
    log.transaction_done();
    log.check();
    write.evicted
}

#[test]
fn sixty_four_cold_writes_share_one_transaction_and_hot_ones_need_none() {
    let mut log = log(1237);
    for n in 0..64 {
        assert_eq!(log.begin(extent(n)), Begin::Queued);
    }
    assert_eq!(log.begin(extent(64)), Begin::Wait, "a transaction holds 64 changes");
    assert_eq!(log.begin(extent(3)), Begin::Queued, "a pending extent is shared");
    assert!(commit(&mut log).is_empty());
    for n in 0..64 {
        assert_eq!(log.begin(extent(n)), Begin::Active);
    }
    assert_eq!(log.start_transaction(), None);
    assert_eq!(log.stats(), AlStats { hits: 65, misses: 64, starving: 0, writes: 1 });
}

#[test]
fn the_set_is_frozen_while_a_transaction_is_in_flight() {
    let mut log = log(67);
    assert_eq!(log.begin(extent(1)), Begin::Queued);
    let _ = commit(&mut log);
    assert_eq!(log.begin(extent(2)), Begin::Queued);
    let write = log.start_transaction().unwrap();
    assert_eq!((write.number, write.block_index), (1, 1));
    assert_eq!(write.block[420..428], [0, 0, 0, 1, 255, 255, 255, 255], "context is from before");
    assert_eq!(log.start_transaction(), None, "one at a time");
    assert_eq!(log.begin(extent(1)), Begin::Active, "active extents stay so");
    assert_eq!(log.begin(extent(2)), Begin::Queued, "its extent is on the way");
    assert_eq!(log.begin(extent(3)), Begin::Wait);
    log.transaction_done();
    assert_eq!(log.begin(extent(2)), Begin::Active);
    assert_eq!(log.begin(extent(3)), Begin::Queued);
}

#[test]
fn slots_are_recycled_least_recently_used_first() {
    let mut log = log(67);
    for n in 0..67 {
        if log.begin(extent(n)) == Begin::Wait {
            let _ = commit(&mut log);
            assert_eq!(log.begin(extent(n)), Begin::Queued);
        }
    }
    let _ = commit(&mut log);
    for n in [5, 3, 4] {
        log.end(extent(n));
    }
    // 5 is idle for longest, but used again.
    assert_eq!(log.begin(extent(5)), Begin::Active);
    assert_eq!(log.begin(extent(100)), Begin::Queued);
    assert_eq!(log.begin(extent(3)), Begin::Queued, "3 gave its slot away and gets that of 4");
    assert_eq!(log.hot_extents().len(), 68, "4 is on disk until the transaction is done");
    assert_eq!(log.begin(extent(4)), Begin::Wait, "nothing is idle");
    assert_eq!(commit(&mut log), [3, 4]);
}

#[test]
fn a_write_does_not_evict_its_own_extents() {
    let mut log = log(67);
    for n in 0..64 {
        assert_eq!(log.begin(extent(n)), Begin::Queued);
    }
    let _ = commit(&mut log);
    for n in 64..67 {
        assert_eq!(log.begin(extent(n)), Begin::Queued);
    }
    let _ = commit(&mut log);
    // The only idle slot holds 66. Recycling it for 67 would leave the write without 66.
    let pair = SectorRange::new(67 * EXTENT_SECTORS - 8, 16);
    log.end(extent(66));
    assert_eq!(log.begin(pair), Begin::Wait);
    assert!(log.is_starving());
    assert!(log.end(extent(12)));
    assert_eq!(log.begin(pair), Begin::Queued);
    assert_eq!(commit(&mut log), [12]);
}

#[test]
fn starving_refuses_even_hits_until_a_slot_is_released() {
    let mut log = log(67);
    for n in 0..67 {
        if log.begin(extent(n)) == Begin::Wait {
            let _ = commit(&mut log);
            assert_eq!(log.begin(extent(n)), Begin::Queued);
        }
    }
    let _ = commit(&mut log);
    assert_eq!(log.begin(extent(0)), Begin::Active);
    assert_eq!(log.begin(extent(200)), Begin::Wait);
    assert!(log.is_starving());
    assert_eq!(log.begin(extent(0)), Begin::Wait, "not even hits");
    assert!(!log.end(extent(0)), "still in use by another write");
    assert!(log.end(extent(0)), "now waiting writes should ask again");
    assert!(!log.is_starving());
    assert_eq!(log.begin(extent(200)), Begin::Queued);
    assert_eq!(log.stats().starving, 2);
}

#[test]
fn an_abandoned_queued_write_leaves_its_extent_idle() {
    let mut log = log(67);
    assert_eq!(log.begin(extent(1)), Begin::Queued);
    assert!(!log.end(extent(1)));
    log.check();
    let _ = commit(&mut log);
    assert_eq!((log.begin(extent(1)), log.is_in_use(1)), (Begin::Active, true));
    assert!(!log.is_quiet());
}

#[test]
fn an_empty_flush_needs_nothing() {
    let mut log = log(67);
    assert_eq!(log.begin(SectorRange::new(77, 0)), Begin::Active);
    assert!(!log.end(SectorRange::new(77, 0)));
    assert_eq!(log.start_transaction(), None);
}

#[test]
fn a_large_discard_takes_all_its_extents_at_once() {
    let mut log = log(67);
    let discard = SectorRange::new(4096, 32 * EXTENT_SECTORS);
    assert_eq!(log.begin(discard), Begin::Queued);
    assert_eq!(log.begin(discard), Begin::Queued);
    let _ = commit(&mut log);
    assert_eq!(log.hot_extents(), (0..33).collect::<Vec<_>>());
    log.end(discard);
    assert!(log.is_in_use(32));
    log.end(discard);
    assert!(log.is_quiet());
    let last = SectorRange::new(MAX_VOLUME_SECTORS - 8, 8);
    assert_eq!(log.begin(last), Begin::Queued);
}

#[test]
fn without_updates_nothing_is_written_and_switching_on_rewrites_the_ring() {
    let mut log = log(67);
    log.set_updates(false);
    for n in 0..500 {
        assert_eq!(log.begin(extent(n)), Begin::Active);
        log.end(extent(n));
    }
    log.check();
    assert_eq!(log.start_transaction(), None);
    log.set_updates(true);
    let mut area: Vec<u8> = empty_block().repeat(8);
    assert_eq!(log.begin(extent(1000)), Begin::Queued, "it goes with the first");
    while let Some(write) = log.start_transaction() {
        store(&mut area, &write);
        log.transaction_done();
    }
    assert!(!log.is_rewriting());
    assert_eq!(log.stats().writes, 8);
    let hot = recover(AlStriping::default(), &area, 67).unwrap().extents;
    assert_eq!(hot.into_iter().collect::<Vec<_>>(), log.hot_extents());
}

#[test]
fn the_number_of_slots_fits_the_ring() {
    assert_eq!(log(1).extents(), MIN_EXTENTS);
    assert_eq!(log(u16::MAX).extents(), 6433);
    let large = AlStriping::new(1, 1000).unwrap();
    assert_eq!(ActivityLog::new(u16::MAX, large).extents(), 65534);
}

#[test]
fn a_log_that_grows_takes_those_that_waited_for_room() {
    let mut log = log(67);
    for n in 0..67 {
        if log.begin(extent(n)) == Begin::Wait {
            let _ = commit(&mut log);
            assert_eq!(log.begin(extent(n)), Begin::Queued);
        }
    }
    let _ = commit(&mut log);
    assert_eq!(log.begin(extent(67)), Begin::Wait);
    assert!(log.is_starving());
    log.grow(60);
    assert_eq!(log.extents(), 67, "it does not shrink");
    log.grow(100);
    log.check();
    assert_eq!(log.extents(), 100);
    assert_eq!(log.begin(extent(67)), Begin::Queued);
    assert!(commit(&mut log).is_empty(), "nothing had to give its slot away");
    log.grow(u16::MAX);
    assert_eq!(log.extents(), 6433, "the ring carries no more");
}

fn store(area: &mut [u8], write: &AlWrite) {
    let start = write.block_index as usize * BLOCK_SIZE;
    area[start..start + BLOCK_SIZE].copy_from_slice(write.block.as_slice());
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % n
    }
}

/// One node's log, bitmap and metadata device under random writes that finish unreplicated.
struct Machine {
    rng: Rng,
    al: AlStriping,
    log: ActivityLog,
    bitmap: Bitmap,
    area: Vec<u8>,
    bitmap_disk: Vec<Box<Block>>,
    waiting: VecDeque<SectorRange>,
    queued: Vec<SectorRange>,
    submitted: Vec<SectorRange>,
    volume: u64,
}

impl Machine {
    fn new(seed: u64, al: AlStriping, extents: u16, volume_extents: u64) -> Machine {
        let volume = volume_extents * EXTENT_SECTORS;
        let bitmap = Bitmap::new(3, Sectors(volume), 4096);
        Machine {
            rng: Rng(seed),
            al,
            log: ActivityLog::new(extents, al),
            area: empty_block().repeat(al.blocks() as usize),
            bitmap_disk: (0..bitmap.blocks()).map(|_| zeroed_block()).collect(),
            bitmap,
            waiting: VecDeque::new(),
            queued: Vec::new(),
            submitted: Vec::new(),
            volume,
        }
    }

    fn ask(&mut self) {
        for _ in 0..self.waiting.len() {
            let range = self.waiting.pop_front().unwrap();
            match self.log.begin(range) {
                Begin::Active => self.submitted.push(range),
                Begin::Queued => self.queued.push(range),
                Begin::Wait => self.waiting.push_back(range),
            }
        }
    }

    fn step(&mut self) {
        match self.rng.below(5) {
            0..=1 => {
                let start = self.rng.below(self.volume);
                let len = if self.rng.below(20) == 0 { 5 * EXTENT_SECTORS } else { 64 };
                let len = (1 + self.rng.below(len)).min(self.volume - start);
                self.waiting.push_back(SectorRange::new(start, len));
            }
            2..=3 if !self.submitted.is_empty() => {
                let i = self.rng.below(self.submitted.len() as u64) as usize;
                let range = self.submitted.swap_remove(i);
                self.bitmap.set_range(self.rng.below(3) as usize, range);
                self.log.end(range);
            }
            _ => self.transaction(),
        }
        self.ask();
        self.log.check();
    }

    fn write_bits_of(&mut self, evicted: u32) {
        let blocks = self.bitmap.blocks_of_extent(evicted);
        let mut taken = Vec::new();
        self.bitmap.take_dirty(blocks, Changed::Must, usize::MAX, &mut taken);
        for block in taken {
            self.bitmap.encode_block(block, &mut self.bitmap_disk[block as usize]);
            self.bitmap.block_written(block, true);
        }
        assert!(self.bitmap.is_extent_written(evicted));
    }

    /// Crashes at every point of one transaction, then completes it.
    fn transaction(&mut self) {
        let Some(write) = self.log.start_transaction() else { return };
        self.ask();
        for evicted in &write.evicted {
            self.write_bits_of(*evicted);
        }
        self.crash();
        let before = self.area.clone();
        store(&mut self.area, &write);
        let start = write.block_index as usize * BLOCK_SIZE;
        let torn = start + 512 * self.rng.below(8) as usize;
        let complete = self.area.clone();
        // Sectors from `torn` on kept what they held before.
        self.area[torn..start + BLOCK_SIZE].copy_from_slice(&before[torn..start + BLOCK_SIZE]);
        self.crash();
        self.area = complete;
        self.crash();
        self.log.transaction_done();
        self.submitted.append(&mut self.queued);
        self.crash();
    }

    /// What recovery finds covers every write that was submitted and every bit in memory.
    fn crash(&self) {
        let hot = recover(self.al, &self.area, 0).unwrap().extents;
        for range in &self.submitted {
            for extent in extents_of(*range) {
                assert!(hot.contains(&extent), "extent {extent} of a submitted write is lost");
            }
        }
        let mut durable = Bitmap::new(3, Sectors(self.volume), 4096);
        for (index, block) in (0..).zip(&self.bitmap_disk) {
            durable.load_block(index, block);
        }
        for extent in hot {
            for slot in 0..3 {
                let range = SectorRange::new(u64::from(extent) * EXTENT_SECTORS, EXTENT_SECTORS);
                durable.set_range(slot, range);
            }
        }
        for slot in 0..3 {
            for word in 0..self.bitmap.words64() {
                let lost = self.bitmap.word(slot, word) & !durable.word(slot, word);
                assert_eq!(lost, 0, "bits of word {word} in slot {slot} are lost");
            }
        }
    }
}

#[test]
fn recovery_covers_every_write_and_every_bit_at_every_crash_point() {
    let shapes = [
        (AlStriping::default(), 67, 100),
        (AlStriping::default(), 1237, 1300),
        (AlStriping::new(3, 3).unwrap(), 2000, 2500),
        (AlStriping::new(3, 3).unwrap(), 2000, 2500),
        (AlStriping::new(3, 3).unwrap(), 2000, 2500),
        (AlStriping::new(4, 8).unwrap(), 2000, 150),
    ];
    for (seed, (al, extents, volume)) in (1..).zip(shapes) {
        let mut machine = Machine::new(seed * 0x9E37_79B9, al, extents, volume);
        // Start with all slots taken, so that one context window is not enough.
        for n in 0..u64::from(extents) % volume {
            machine.waiting.push_back(extent(n));
        }
        while !machine.waiting.is_empty() {
            machine.ask();
            if machine.log.start_transaction().is_some() {
                machine.log.transaction_done();
            }
        }
        for range in machine.submitted.drain(..).chain(machine.queued.drain(..)) {
            machine.log.end(range);
        }
        // Numbers wrap along the way. A log that starts elsewhere than at 0 is not fresh.
        machine.log.number = u32::MAX - 2 * al.blocks() - seed as u32;
        machine.log.rewrite();
        while let Some(write) = machine.log.start_transaction() {
            store(&mut machine.area, &write);
            machine.log.transaction_done();
        }
        for _ in 0..600 {
            machine.step();
        }
        assert!(machine.log.number < 2000, "numbers wrapped");
    }
}

#[test]
fn recovery_covers_everything_while_the_log_grows() {
    for seed in 1..40 {
        let al = if seed % 2 == 0 { AlStriping::default() } else { AlStriping::new(3, 3).unwrap() };
        let mut machine = Machine::new(seed * 0x51, al, 67, 3000);
        let mut extents = 67;
        for step in 0..400 {
            machine.step();
            if step % 50 == 49 {
                // Also while a transaction is on its way to the disk.
                let write = machine.log.start_transaction();
                extents += machine.rng.below(900) as u16;
                machine.log.grow(extents);
                machine.ask();
                machine.crash();
                if let Some(write) = write {
                    for evicted in &write.evicted {
                        machine.write_bits_of(*evicted);
                    }
                    store(&mut machine.area, &write);
                    machine.log.transaction_done();
                    machine.submitted.append(&mut machine.queued);
                }
                machine.crash();
                for n in 0..60 {
                    machine.waiting.push_back(extent(u64::from(extents) + n * 7));
                }
                machine.ask();
            }
        }
        assert_eq!(machine.log.extents(), extents.min(al.max_extents()));
    }
}

#[test]
fn a_fresh_log_survives_a_crash_in_its_first_transactions() {
    for seed in 1..200 {
        let mut machine = Machine::new(seed * 77, AlStriping::default(), 67, 100);
        while machine.log.stats().writes < 12 {
            machine.step();
        }
    }
}

#[test]
fn contexts_rebuild_logs_larger_than_one_window() {
    // 6433 slots need all of seven windows: the last seven blocks rebuild everything.
    let mut machine = Machine::new(42, AlStriping::default(), 6433, 8000);
    for n in 0..6433 {
        machine.waiting.push_back(extent(n));
    }
    while !machine.waiting.is_empty() || machine.log.wants_transaction() {
        machine.ask();
        let Some(write) = machine.log.start_transaction() else { continue };
        store(&mut machine.area, &write);
        machine.log.transaction_done();
    }
    let hot = |area: &[u8]| recover(AlStriping::default(), area, 0).unwrap().extents.len();
    assert_eq!(hot(&machine.area), 6433);
    // A torn block instead of the oldest one loses nothing.
    assert_eq!(machine.log.begin(extent(0)), Begin::Active);
    machine.log.rewrite();
    let write = machine.log.start_transaction().unwrap();
    let start = write.block_index as usize * BLOCK_SIZE;
    machine.area[start] ^= 1;
    assert_eq!(hot(&machine.area), 6433);
}
