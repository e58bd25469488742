//! A simulated backing disk: data as tags, metadata as real 4 KiB blocks, a volatile cache.
//!
//! What is promised is exactly what `replication::io` asks of a driver, and not more:
//!
//! - An operation takes effect somewhere between its submission and its completion; operations
//!   in flight together take effect in any order.
//! - A completed write is seen by later reads, but survives a power loss only if it was written
//!   with FUA, or if a flush *submitted after its completion* has completed. Of the others any
//!   subset of 512-byte sectors survives, newer ones without older ones too.
//! - A process that dies leaves its running operations done or not done, each for itself; a
//!   write may be torn.
//! - 4 KiB superblock writes are atomic: the format has no checksum there (metadata §1), so
//!   every implementation of it relies on that. Blocks of the activity log (they have a
//!   checksum) and of the bitmap may tear.

use std::collections::{BTreeMap, VecDeque};

use replication::io::{AttachImage, DiskError, DiskLimits, MetaBlock, MetaPlace, MetaWrite};
use vocab::{SectorRange, Sectors};

use crate::content::{Data, Tag, ZERO};
use crate::rng::Rng;

/// Sectors per block of the sparse map.
const BLOCK: u64 = 8;
/// Bytes of a sector of a metadata block, the unit in which writes tear.
const TEAR: usize = 512;
/// A block of metadata.
pub type Block = Box<[u8; 4096]>;

/// Content of the whole device at some instant.
#[derive(Clone, Debug)]
struct Area {
    /// For each 4 KiB of data: 0 if all zero, else 1 + index into `pages`.
    index: Vec<u32>,
    pages: Vec<[Tag; BLOCK as usize]>,
    superblock: Block,
    activity_log: Vec<Block>,
    bitmap: BTreeMap<u64, Block>,
}

impl Area {
    fn new(sectors: u64, al_blocks: usize) -> Area {
        Area {
            index: vec![0; sectors.div_ceil(BLOCK) as usize],
            pages: Vec::new(),
            superblock: Box::new([0; 4096]),
            activity_log: vec![Box::new([0; 4096]); al_blocks],
            bitmap: BTreeMap::new(),
        }
    }

    fn tag(&self, sector: u64) -> Tag {
        match self.index[(sector / BLOCK) as usize] {
            0 => ZERO,
            page => self.pages[page as usize - 1][(sector % BLOCK) as usize],
        }
    }

    fn set(&mut self, sector: u64, tag: Tag) {
        let slot = &mut self.index[(sector / BLOCK) as usize];
        if *slot == 0 {
            if tag == ZERO {
                return;
            }
            self.pages.push([ZERO; BLOCK as usize]);
            *slot = self.pages.len() as u32;
        }
        self.pages[*slot as usize - 1][(sector % BLOCK) as usize] = tag;
    }

    fn place(&mut self, place: MetaPlace) -> &mut [u8; 4096] {
        match place {
            MetaPlace::Superblock => &mut self.superblock,
            MetaPlace::ActivityLog(i) => &mut self.activity_log[i as usize],
            MetaPlace::Bitmap(i) => self.bitmap.entry(i).or_insert_with(|| Box::new([0; 4096])),
        }
    }

    /// Applies a write, sector by sector where `keep` says so.
    fn apply(&mut self, write: &Written, mut keep: impl FnMut() -> bool) {
        match write {
            Written::Data(range, data) => {
                for i in 0..range.len.0 {
                    if keep() {
                        self.set(range.start.0 + i, data.tag(i));
                    }
                }
            }
            Written::Meta(block) if block.place == MetaPlace::Superblock => {
                if keep() {
                    *self.superblock = *block.bytes;
                }
            }
            Written::Meta(block) => {
                let target = self.place(block.place);
                for (to, from) in target.chunks_mut(TEAR).zip(block.bytes.chunks(TEAR)) {
                    if keep() {
                        to.copy_from_slice(from);
                    }
                }
            }
        }
    }
}

/// Something written.
#[derive(Clone, Debug)]
enum Written {
    Data(SectorRange, Data),
    Meta(MetaBlock),
}

impl Written {
    fn overlaps(&self, other: &Written) -> bool {
        match (self, other) {
            (Written::Data(a, _), Written::Data(b, _)) => a.overlaps(*b),
            (Written::Meta(a), Written::Meta(b)) => a.place == b.place,
            _ => false,
        }
    }
}

/// What a disk is asked to do.
#[derive(Clone, Debug)]
pub enum Job {
    /// Read data.
    Read(SectorRange),
    /// Write data.
    Write {
        /// Where.
        range: SectorRange,
        /// What.
        data: Data,
        /// On stable storage at completion.
        fua: bool,
    },
    /// Discard.
    Discard(SectorRange),
    /// Flush.
    Flush,
    /// Write metadata.
    Meta(MetaWrite),
}

/// A running operation.
#[derive(Clone, Debug)]
struct Running {
    job: Job,
    /// Writes completed up to this stamp are covered by a flush submitted now.
    issued: u64,
    /// The effect has happened already, although the completion is still to come.
    applied: bool,
    result: Result<(), DiskError>,
}

/// How a disk behaves; changed by faults while it runs.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Shortest and longest time of an operation in nanoseconds, skewed towards the shortest.
    pub latency: (u64, u64),
    /// Operations submitted before this time complete only after it.
    pub stuck_until: u64,
    /// Percentage of reads that fail.
    pub read_errors: u64,
    /// Percentage of writes and flushes that fail.
    pub write_errors: u64,
    /// Percentage of metadata writes that fail.
    pub meta_errors: u64,
    /// Discards are not supported.
    pub no_discard: bool,
}

impl Default for Behaviour {
    fn default() -> Behaviour {
        Behaviour {
            latency: (20_000, 2_000_000),
            stuck_until: 0,
            read_errors: 0,
            write_errors: 0,
            meta_errors: 0,
            no_discard: false,
        }
    }
}

/// Metadata that a device's new end has left behind.
#[derive(Clone, Debug)]
struct LeftMeta {
    placed: u64,
    superblock: Block,
    activity_log: Vec<Block>,
    bitmap: BTreeMap<u64, Block>,
}

/// A disk.
#[derive(Clone, Debug)]
pub struct Disk {
    sectors: u64,
    /// The size by which the metadata is where it is.
    placed: u64,
    /// It is on its way to another place, and no superblock is there yet.
    left: Option<Box<LeftMeta>>,
    /// What a read returns.
    now: Area,
    /// What a power loss leaves at least; `None` if the disk has no volatile cache.
    stable: Option<Area>,
    /// Writes in `now` that are not certainly in `stable`, with the stamp of their completion.
    cache: VecDeque<(u64, Written)>,
    stamp: u64,
    running: Vec<Option<Running>>,
    /// Its present behaviour.
    pub behaviour: Behaviour,
    /// What it says about itself.
    pub limits: DiskLimits,
    power_losses: u64,
}

impl Disk {
    /// A disk of zeroes with room for `al_blocks` blocks of activity log.
    pub fn new(sectors: u64, al_blocks: usize, volatile_cache: bool) -> Disk {
        let now = Area::new(sectors, al_blocks);
        Disk {
            sectors,
            placed: sectors,
            left: None,
            stable: volatile_cache.then(|| now.clone()),
            now,
            cache: VecDeque::new(),
            stamp: 0,
            running: Vec::new(),
            behaviour: Behaviour::default(),
            limits: DiskLimits {
                logical_block_size: 512,
                physical_block_size: 4096,
                discard_zeroes: true,
                max_io: 1 << 20,
            },
            power_losses: 0,
        }
    }

    /// Writes metadata as an offline tool does: at once and durably.
    pub fn format(&mut self, place: MetaPlace, bytes: &[u8; 4096]) {
        *self.now.place(place) = *bytes;
        if let Some(stable) = &mut self.stable {
            *stable.place(place) = *bytes;
        }
    }

    /// Puts content on the disk as an offline tool does: at once and durably.
    pub fn fill(&mut self, range: SectorRange, tag: Tag) {
        for sector in range.start.0..range.end() {
            self.now.set(sector, tag);
            if let Some(stable) = &mut self.stable {
                stable.set(sector, tag);
            }
        }
    }

    /// Gives the device more room, as an operator does while it is in use. What is there is that tag,
    /// another one in each sector.
    pub fn grow(&mut self, sectors: u64, tag: Tag) {
        let old = self.sectors;
        self.sectors = sectors.max(old);
        for area in std::iter::once(&mut self.now).chain(&mut self.stable) {
            area.index.resize(self.sectors.div_ceil(BLOCK) as usize, 0);
        }
        for sector in old..self.sectors {
            self.fill(SectorRange::new(sector, 1), tag + sector);
        }
    }

    /// The end has moved since the metadata was placed.
    pub fn is_displaced(&self) -> bool {
        self.placed != self.sectors
    }

    /// Metadata goes to the new end from here on. What is there is an older log, and a bitmap that
    /// says that all is well.
    pub fn move_metadata(&mut self) {
        let placed = std::mem::replace(&mut self.placed, self.sectors);
        let from = self.stable.as_mut().unwrap_or(&mut self.now);
        self.left = Some(Box::new(LeftMeta {
            placed,
            superblock: from.superblock.clone(),
            activity_log: from.activity_log.clone(),
            bitmap: from.bitmap.clone(),
        }));
        self.cache.retain(|(_, write)| matches!(write, Written::Data(..)));
        for area in std::iter::once(&mut self.now).chain(&mut self.stable) {
            area.superblock.fill(0);
            area.bitmap.clear();
        }
    }

    /// Nobody uses the disk. If no superblock has got to the new end, an operator finds the metadata
    /// where it was (`drbdmeta check-resize`).
    pub fn find_metadata(&mut self) {
        let Some(left) = self.left.take() else { return };
        if self.now.superblock.iter().any(|byte| *byte != 0) {
            return;
        }
        self.placed = left.placed;
        for area in std::iter::once(&mut self.now).chain(&mut self.stable) {
            area.superblock.clone_from(&left.superblock);
            area.activity_log.clone_from(&left.activity_log);
            area.bitmap.clone_from(&left.bitmap);
        }
    }

    /// Size in sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// What a read of the sector returns now; zero behind the end.
    pub fn tag(&self, sector: u64) -> Tag {
        if sector < self.sectors { self.now.tag(sector) } else { ZERO }
    }

    /// What the sector holds after a power loss that drops everything it may drop.
    pub fn stable_tag(&self, sector: u64) -> Tag {
        let stable = self.stable.as_ref().unwrap_or(&self.now);
        if sector < self.sectors { stable.tag(sector) } else { ZERO }
    }

    /// The superblock as a reader finds it now.
    pub fn superblock(&self) -> &[u8; 4096] {
        &self.now.superblock
    }

    /// The superblock that surely survives a power loss.
    pub fn stable_superblock(&self) -> &[u8; 4096] {
        &self.stable.as_ref().unwrap_or(&self.now).superblock
    }

    /// The activity log as a reader finds it now.
    pub fn activity_log(&self) -> &[Block] {
        &self.now.activity_log
    }

    /// The activity log that surely survives a power loss.
    pub fn stable_activity_log(&self) -> &[Block] {
        &self.stable.as_ref().unwrap_or(&self.now).activity_log
    }

    /// The blocks of the bitmap that are not all zero, as a reader finds them now.
    pub fn bitmap(&self) -> &BTreeMap<u64, Block> {
        &self.now.bitmap
    }

    /// The blocks of the bitmap that surely survive a power loss.
    pub fn stable_bitmap(&self) -> &BTreeMap<u64, Block> {
        &self.stable.as_ref().unwrap_or(&self.now).bitmap
    }

    /// What a driver reads before it attaches the disk.
    pub fn image(&self) -> AttachImage {
        AttachImage {
            capacity: Sectors(self.sectors),
            superblock: self.now.superblock.clone(),
            activity_log: self.now.activity_log.clone(),
            bitmap: self.now.bitmap.iter().map(|(i, block)| (*i, block.clone())).collect(),
            limits: self.limits,
            volatile_cache: self.stable.is_some(),
            boot: 1 + self.power_losses,
        }
    }

    /// True if operations are running.
    pub fn busy(&self) -> bool {
        self.running.iter().any(Option::is_some)
    }

    /// First sector from `from` on whose content differs from that of `other`.
    pub fn first_difference(&self, other: &Disk, from: u64) -> Option<u64> {
        self.first_difference_before(other, from, u64::MAX)
    }

    /// The same, of the sectors before `end`.
    pub fn first_difference_before(&self, other: &Disk, from: u64, end: u64) -> Option<u64> {
        let sectors = self.sectors.min(other.sectors).min(end);
        for block in from / BLOCK..sectors.div_ceil(BLOCK) {
            let (a, b) = (self.now.index[block as usize], other.now.index[block as usize]);
            if a == 0 && b == 0 {
                continue;
            }
            let mut range = (block * BLOCK).max(from)..((block + 1) * BLOCK).min(sectors);
            if let Some(sector) = range.find(|s| self.tag(*s) != other.tag(*s)) {
                return Some(sector);
            }
        }
        None
    }

    /// Starts an operation at `now`; it ends after the returned time with [`finish`](Self::finish).
    pub fn submit(&mut self, now: u64, job: Job, rng: &mut Rng) -> (usize, u64) {
        let result = self.outcome(&job, rng);
        let mut delay = rng.skewed(self.behaviour.latency.0, self.behaviour.latency.1);
        if now < self.behaviour.stuck_until {
            delay += self.behaviour.stuck_until - now;
        }
        let slot = self.running.iter().position(Option::is_none).unwrap_or_else(|| {
            self.running.push(None);
            self.running.len() - 1
        });
        let mut op = Running { job, issued: self.stamp, applied: false, result };
        if result.is_ok() && rng.one_in(4) {
            if let Job::Write { range, data, fua: false } = &op.job {
                op.applied = true;
                let write = Written::Data(*range, data.clone());
                self.now.apply(&write, || true);
                self.remember(write, false);
            }
        }
        self.running[slot] = Some(op);
        (slot, delay)
    }

    fn outcome(&self, job: &Job, rng: &mut Rng) -> Result<(), DiskError> {
        let errors = match job {
            Job::Read(_) => self.behaviour.read_errors,
            Job::Write { .. } | Job::Flush => self.behaviour.write_errors,
            Job::Discard(_) if self.behaviour.no_discard => return Err(DiskError::Unsupported),
            Job::Discard(_) => self.behaviour.write_errors,
            Job::Meta(_) => self.behaviour.meta_errors,
        };
        if errors > 0 && rng.percent(errors) { Err(DiskError::Io) } else { Ok(()) }
    }

    /// Ends an operation: its effect has happened, and what it read is returned.
    pub fn finish(&mut self, slot: usize, rng: &mut Rng) -> Result<Option<Data>, DiskError> {
        let op = self.running[slot].take().expect("an operation ends once");
        if let Err(error) = op.result {
            // A failed write may have changed any part of its range.
            if let (Job::Write { .. } | Job::Meta(_), DiskError::Io) = (&op.job, error) {
                self.tear(op, rng);
            }
            return Err(error);
        }
        match op.job {
            Job::Read(range) => {
                let tags: Vec<Tag> =
                    (range.start.0..range.end()).map(|s| self.now.tag(s)).collect();
                return Ok(Some(Data::from_tags(&tags)));
            }
            Job::Write { range, data, fua } => {
                // A write that took effect early is not applied again: a later one may have
                // been applied over it in the meantime.
                if !op.applied {
                    let write = Written::Data(range, data);
                    self.now.apply(&write, || true);
                    self.remember(write, fua);
                }
            }
            Job::Discard(range) => {
                let data = Data::Fill { tag: ZERO, sectors: range.len.0 as u32 };
                let write = Written::Data(range, data);
                self.now.apply(&write, || true);
                self.remember(write, false);
            }
            Job::Flush => self.destage(op.issued),
            Job::Meta(write) => self.write_meta(write, op.issued),
        }
        Ok(None)
    }

    fn write_meta(&mut self, write: MetaWrite, issued: u64) {
        for block in write.plain {
            let block = Written::Meta(block);
            self.now.apply(&block, || true);
            self.remember(block, write.flush);
        }
        if write.flush {
            self.destage(issued);
        }
        if let Some(block) = write.commit {
            let block = Written::Meta(block);
            self.now.apply(&block, || true);
            self.remember(block, write.flush);
        }
    }

    /// Notes a write that is in `now`: as durable, or as something the cache may lose.
    fn remember(&mut self, write: Written, durable: bool) {
        self.stamp += 1;
        let Some(stable) = &mut self.stable else { return };
        if !durable {
            self.cache.push_back((self.stamp, write));
            return;
        }
        // Older cached writes to the same place must not come back over this one, nor older
        // ones over those: everything up to the youngest of them reaches the medium first.
        let last = self.cache.iter().rposition(|(_, older)| older.overlaps(&write));
        for (_, older) in self.cache.drain(..last.map_or(0, |at| at + 1)) {
            stable.apply(&older, || true);
        }
        stable.apply(&write, || true);
    }

    /// Makes durable what was completed up to `stamp`.
    fn destage(&mut self, stamp: u64) {
        let Some(stable) = &mut self.stable else { return };
        while self.cache.front().is_some_and(|(at, _)| *at <= stamp) {
            let (_, write) = self.cache.pop_front().expect("looked at just now");
            stable.apply(&write, || true);
        }
    }

    /// A running write whose process died or that failed: any part of it may have happened.
    fn tear(&mut self, op: Running, rng: &mut Rng) {
        let whole = rng.one_in(2);
        let keep = |rng: &mut Rng| whole || rng.one_in(2);
        match op.job {
            Job::Write { range, data, .. } => {
                // The torn content itself is what later reads and the cache have.
                if !op.applied {
                    self.now.apply(&Written::Data(range, data), || keep(rng));
                    let tags: Vec<Tag> =
                        (range.start.0..range.end()).map(|s| self.now.tag(s)).collect();
                    self.remember(Written::Data(range, Data::from_tags(&tags)), false);
                }
            }
            Job::Discard(range) => {
                let data = Data::Fill { tag: ZERO, sectors: range.len.0 as u32 };
                self.now.apply(&Written::Data(range, data.clone()), || true);
                self.remember(Written::Data(range, data), false);
            }
            Job::Meta(write) => {
                // The commit block is not written before the others are, and the flush is over.
                let reached_commit = rng.one_in(2);
                for block in write.plain {
                    let place = block.place;
                    self.now.apply(&Written::Meta(block), || reached_commit || keep(rng));
                    let bytes = Box::new(*self.now.place(place));
                    self.remember(Written::Meta(MetaBlock { place, bytes }), false);
                }
                if !reached_commit {
                    return;
                }
                if write.flush {
                    self.destage(u64::MAX);
                }
                if let Some(block) = write.commit {
                    let place = block.place;
                    self.now.apply(&Written::Meta(block), || keep(rng));
                    let bytes = Box::new(*self.now.place(place));
                    self.remember(Written::Meta(MetaBlock { place, bytes }), false);
                }
            }
            Job::Read(_) | Job::Flush => {}
        }
    }

    /// The process that drove the disk is gone: each running operation has happened or not.
    pub fn kill(&mut self, rng: &mut Rng) {
        let mut running: Vec<Running> = self.running.drain(..).flatten().collect();
        while !running.is_empty() {
            let op = running.swap_remove(rng.below(running.len() as u64) as usize);
            if op.applied || rng.one_in(2) {
                self.tear(op, rng);
            }
        }
    }

    /// Power is lost: of the cache any subset of sectors survives. Returns the number of writes
    /// that lost something.
    pub fn lose_power(&mut self, rng: &mut Rng) -> usize {
        self.kill(rng);
        self.power_losses += 1;
        let Some(stable) = &mut self.stable else { return 0 };
        let lost = self.cache.len();
        let mood = rng.below(3);
        for (_, write) in self.cache.drain(..) {
            match mood {
                0 => {}
                1 => stable.apply(&write, || rng.one_in(2)),
                _ => {
                    let whole = rng.one_in(2);
                    stable.apply(&write, || whole);
                }
            }
        }
        self.now = stable.clone();
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(disk: &mut Disk, rng: &mut Rng, sector: u64, tag: Tag, fua: bool) {
        let data = Data::Fill { tag, sectors: 8 };
        let job = Job::Write { range: SectorRange::new(sector, 8), data, fua };
        let (slot, _) = disk.submit(0, job, rng);
        disk.finish(slot, rng).unwrap();
    }

    #[test]
    fn only_flushed_and_fua_writes_surely_survive_a_power_loss() {
        let mut survived = [0, 0];
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::new(1024, 8, true);
            write(&mut disk, &mut rng, 0, 1, false);
            let (flush, _) = disk.submit(0, Job::Flush, &mut rng);
            write(&mut disk, &mut rng, 8, 2, false);
            disk.finish(flush, &mut rng).unwrap();
            write(&mut disk, &mut rng, 16, 3, true);
            assert_eq!([disk.tag(0), disk.tag(8), disk.tag(16)], [1, 2, 3]);
            assert_eq!([disk.stable_tag(0), disk.stable_tag(8), disk.stable_tag(16)], [1, 0, 3]);
            disk.lose_power(&mut rng);
            assert_eq!([disk.tag(0), disk.tag(16)], [1, 3]);
            survived[usize::from(disk.tag(8) == 2)] += 1;
        }
        assert!(survived[0] > 0 && survived[1] > 0, "both outcomes occur: {survived:?}");
    }

    #[test]
    fn an_older_cached_write_never_comes_back_over_a_durable_one() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::new(1024, 8, true);
            write(&mut disk, &mut rng, 0, 1, false);
            write(&mut disk, &mut rng, 0, 2, true);
            disk.lose_power(&mut rng);
            assert_eq!(disk.tag(0), 2);
        }
    }

    #[test]
    fn a_commit_block_never_survives_without_what_it_relies_on() {
        let plain = MetaBlock { place: MetaPlace::Bitmap(0), bytes: Box::new([1; 4096]) };
        let commit = MetaBlock { place: MetaPlace::Superblock, bytes: Box::new([2; 4096]) };
        let mut committed = 0;
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::new(1024, 8, true);
            write(&mut disk, &mut rng, 0, 9, false);
            let meta =
                MetaWrite { plain: vec![plain.clone()], commit: Some(commit.clone()), flush: true };
            disk.submit(0, Job::Meta(meta), &mut rng);
            disk.lose_power(&mut rng);
            if disk.superblock()[0] == 2 {
                committed += 1;
                assert_eq!(disk.tag(0), 9);
            }
        }
        assert!(committed > 0 && committed < 200);
    }
}
