//! The activity log in memory: which 4 MiB extents may be under write (metadata §3).
//!
//! A write may reach the backing disk only while every extent it touches is active on stable
//! storage; after a crash only active extents can hold differences that no bitmap knows. A slot
//! holds an extent and counts the writes that use it. Slots nobody uses stay active, so hot
//! extents cost nothing, and are recycled least recently used first.
//!
//! # Contract
//!
//! 1. [`ActivityLog::begin`] for each write. `Active`: submit it. `Queued`: it holds its slots,
//!    submit it after the next [`ActivityLog::transaction_done`]. `Wait`: it holds nothing, ask
//!    again after a transaction is done or [`ActivityLog::end`] returned true. Ask for every
//!    waiting write before the next step: they share one transaction.
//! 2. [`ActivityLog::start_transaction`], unless one is in flight. First write the changed bitmap
//!    blocks of its evicted extents, *then* its block, durably. If either fails, detach.
//! 3. [`ActivityLog::transaction_done`]: all queued writes may be submitted.
//! 4. [`ActivityLog::end`] when a write is finished everywhere, or its bits are set.
//!
//! # Invariants
//!
//! - An extent is in `index` exactly if a slot holds it, active or pending.
//! - A slot is in exactly one of: `free`, the idle list, in use (counted), pending.
//! - At most 64 slots are pending, and none becomes so while a transaction is in flight.

use std::hash::{BuildHasherDefault, Hasher};
use std::ops::RangeInclusive;

use codec::disk::activity_log::{
    CONTEXT_SLOTS, EXTENT_SECTORS, FREE, MAX_UPDATES, Transaction, Update,
};
use codec::disk::{AlStriping, Block, zeroed_block};
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};
use vocab::SectorRange;

/// Fewest slots DRBD runs with.
pub const MIN_EXTENTS: u16 = 67;
/// Slots unless configured otherwise.
pub const DEFAULT_EXTENTS: u16 = 1237;

/// Hashes an extent's number, the same in every process: nothing here may depend on chance. Each
/// write looks an extent up twice at each replica.
#[derive(Default)]
struct ExtentHasher(u64);

impl Hasher for ExtentHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u32(&mut self, extent: u32) {
        // Fibonacci hashing; the map wants its best bits both high and low.
        let spread = u64::from(extent).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = spread ^ (spread >> 32);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte) ^ (self.0 as u32));
        }
    }
}

/// No neighbour in the idle list.
const NIL: u16 = u16::MAX;

/// Answer to a write that asks for its extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a write may only be submitted when its extents are active"]
pub enum Begin {
    /// All extents are active and now in use by this write.
    Active,
    /// All extents are in use by this write, and active when the current transaction is done.
    Queued,
    /// Nothing was taken; ask again later.
    Wait,
}

/// A transaction to write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlWrite {
    /// Extents that lose their slot: changed bitmap blocks covering them are written first.
    pub evicted: Vec<u32>,
    /// Transaction number.
    pub number: u32,
    /// Block within the activity log area.
    pub block_index: u32,
    /// The bytes.
    pub block: Box<Block>,
}

/// Counters since attach.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AlStats {
    /// Writes whose extents were all active.
    pub hits: u64,
    /// Writes that needed a slot to change.
    pub misses: u64,
    /// Requests refused because every slot is in use.
    pub starving: u64,
    /// Transactions written (`al-writes`).
    pub writes: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Slot {
    /// What the log on disk says this slot holds.
    committed: u32,
    /// What it holds once the current transaction is done; differs from `committed` if pending.
    extent: u32,
    /// Writes using it.
    users: u32,
    /// Neighbours in the idle list.
    older: u16,
    newer: u16,
}

impl Slot {
    fn is_pending(&self) -> bool {
        self.extent != self.committed
    }
}

/// The slots of one volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActivityLog {
    al: AlStriping,
    slots: Vec<Slot>,
    #[serde(with = "index")]
    index: HashMap<u32, u16, BuildHasherDefault<ExtentHasher>>,
    /// Slots that hold nothing; the last is used first.
    free: Vec<u16>,
    /// Ends of the list of slots that are active and not in use.
    oldest: u16,
    newest: u16,
    idle: usize,
    /// Slots of the transaction being gathered or in flight.
    pending: Vec<u16>,
    in_flight: bool,
    starving: bool,
    updates_on: bool,
    /// Transactions still to write so that the whole ring is fresh.
    rewrite_left: u32,
    number: u32,
    context_start: u16,
    stats: AlStats,
}

/// The index as a sequence, ascending: what is frozen twice is the same.
mod index {
    use super::{BuildHasherDefault, ExtentHasher, HashMap};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    type Index = HashMap<u32, u16, BuildHasherDefault<ExtentHasher>>;

    pub(super) fn serialize<S: Serializer>(
        index: &Index,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut entries: Vec<(u32, u16)> = index.iter().map(|(e, slot)| (*e, *slot)).collect();
        entries.sort_unstable();
        entries.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Index, D::Error> {
        Ok(Vec::<(u32, u16)>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// Extents that `range` touches; none if it is empty.
fn extents_of(range: SectorRange) -> RangeInclusive<u32> {
    if range.len.0 == 0 {
        return RangeInclusive::new(1, 0);
    }
    let extent = |sector: u64| {
        u32::try_from(sector / EXTENT_SECTORS).expect("volumes are limited to 2^41 sectors")
    };
    extent(range.start.0)..=extent(range.end() - 1)
}

impl ActivityLog {
    /// A log of `extents` slots, all free, on a ring that was filled with empty blocks; the
    /// first transaction is number 0 (metadata §3.5, step 3).
    ///
    /// `extents` is brought within [`MIN_EXTENTS`] and what the ring can carry.
    pub fn new(extents: u16, al: AlStriping) -> ActivityLog {
        let extents = ActivityLog::slots_for(extents.into(), al);
        let slot = Slot { committed: FREE, extent: FREE, users: 0, older: NIL, newer: NIL };
        ActivityLog {
            al,
            slots: vec![slot; usize::from(extents)],
            index: HashMap::default(),
            free: (0..extents).rev().collect(),
            oldest: NIL,
            newest: NIL,
            idle: 0,
            pending: Vec::with_capacity(MAX_UPDATES),
            in_flight: false,
            starving: false,
            updates_on: true,
            rewrite_left: 0,
            number: 0,
            context_start: 0,
            stats: AlStats::default(),
        }
    }

    /// How many slots a log has that is asked for `extents`.
    pub fn slots_for(extents: u32, al: AlStriping) -> u16 {
        let extents = u16::try_from(extents).unwrap_or(u16::MAX);
        extents.clamp(MIN_EXTENTS, al.max_extents())
    }

    /// Adds free slots until there are `extents`, at any time. Nothing is to be written: what the
    /// ring says of the others stays true, and it is silent about slots that hold nothing.
    ///
    /// There is no way back while the log is in use. Slots that are given up would stay active in
    /// the ring, with bits that nobody wrote before (metadata §3.5).
    pub fn grow(&mut self, extents: u16) {
        let (old, new) = (self.extents(), extents.min(self.al.max_extents()));
        if new <= old {
            return;
        }
        let slot = Slot { committed: FREE, extent: FREE, users: 0, older: NIL, newer: NIL };
        self.slots.resize(usize::from(new), slot);
        // Those that were free before are used before the new ones.
        let known = std::mem::take(&mut self.free);
        self.free = (old..new).rev().chain(known).collect();
        self.starving = false;
    }

    /// Takes the extents that `range` touches for one write; see the module's contract.
    ///
    /// # Panics
    /// If the range touches more than 64 extents: requests are split at 128 MiB.
    pub fn begin(&mut self, range: SectorRange) -> Begin {
        let extents = extents_of(range);
        let touched = extents.clone().count();
        assert!(touched <= MAX_UPDATES, "{range} touches more extents than a transaction holds");
        if self.starving && touched > 0 {
            self.stats.starving += 1;
            return Begin::Wait;
        }
        if touched == 1 {
            // Nearly every write: one extent, which is there.
            if let Some(slot) = self.index.get(extents.start()).copied() {
                let pending = self.slots[usize::from(slot)].is_pending();
                self.take(slot);
                self.stats.hits += 1;
                return if pending { Begin::Queued } else { Begin::Active };
            }
        }
        let (mut cold, mut idle_hits, mut uncommitted) = (0, 0, false);
        for extent in extents.clone() {
            match self.index.get(&extent).map(|slot| &self.slots[usize::from(*slot)]) {
                None => cold += 1,
                Some(slot) if slot.is_pending() => uncommitted = true,
                Some(slot) => idle_hits += usize::from(slot.users == 0),
            }
        }
        if cold > 0 {
            if self.in_flight || self.pending.len() + cold > MAX_UPDATES {
                return Begin::Wait;
            }
            if cold > self.free.len() + self.idle - idle_hits {
                self.starving = true;
                self.stats.starving += 1;
                return Begin::Wait;
            }
        }
        // Extents that are there come first, lest they be recycled for the others.
        for extent in extents.clone() {
            if let Some(slot) = self.index.get(&extent) {
                self.take(*slot);
            }
        }
        if cold == 0 {
            self.stats.hits += 1;
            return if uncommitted { Begin::Queued } else { Begin::Active };
        }
        self.stats.misses += 1;
        // Without updates nothing is written, unless there are queued writes to go with.
        let commit_now = !self.updates_on && self.pending.is_empty();
        for extent in extents {
            if !self.index.contains_key(&extent) {
                self.assign(extent, commit_now);
            }
        }
        if commit_now { Begin::Active } else { Begin::Queued }
    }

    /// Counts one more user of a slot that holds an extent.
    fn take(&mut self, slot: u16) {
        let entry = &self.slots[usize::from(slot)];
        if entry.users == 0 && !entry.is_pending() {
            self.unlink_idle(slot);
        }
        self.slots[usize::from(slot)].users += 1;
    }

    /// Gives a free slot, or the one idle for longest, to `extent`, with one user.
    fn assign(&mut self, extent: u32, commit_now: bool) {
        let slot = self.free.pop().unwrap_or(self.oldest);
        assert!(slot != NIL, "room was checked before");
        let old = self.slots[usize::from(slot)].extent;
        if old != FREE {
            self.unlink_idle(slot);
            self.index.remove(&old);
        }
        self.index.insert(extent, slot);
        let entry = &mut self.slots[usize::from(slot)];
        entry.extent = extent;
        entry.users = 1;
        if commit_now {
            entry.committed = extent;
        } else {
            self.pending.push(slot);
        }
    }

    /// One write is done with the extents of `range`, which [`ActivityLog::begin`] gave it.
    /// Returns true if writes that wait should ask again.
    ///
    /// # Panics
    /// If the write did not hold them.
    pub fn end(&mut self, range: SectorRange) -> bool {
        let mut unblocked = false;
        for extent in extents_of(range) {
            let slot = *self.index.get(&extent).expect("a write ends with extents it holds");
            let entry = &mut self.slots[usize::from(slot)];
            assert!(entry.users > 0, "extent {extent} is not in use");
            entry.users -= 1;
            if entry.users == 0 {
                if !entry.is_pending() {
                    self.link_newest(slot);
                }
                unblocked |= std::mem::take(&mut self.starving);
            }
        }
        unblocked
    }

    /// True if there is a transaction to write and none in flight.
    pub fn wants_transaction(&self) -> bool {
        !self.in_flight && (!self.pending.is_empty() || self.rewrite_left > 0)
    }

    /// The next transaction, with everything queued. No slot changes until it is done.
    pub fn start_transaction(&mut self) -> Option<AlWrite> {
        if !self.wants_transaction() {
            return None;
        }
        self.in_flight = true;
        let changes = self.pending.iter().map(|slot| (*slot, &self.slots[usize::from(*slot)]));
        let evicted = changes.clone().map(|(_, s)| s.committed).filter(|old| *old != FREE);
        let evicted = evicted.collect();
        let updates: Vec<Update> =
            changes.map(|(slot, s)| Update { slot, extent: s.extent }).collect();
        let first = usize::from(self.context_start);
        let window = self.slots[first..].iter().take(CONTEXT_SLOTS);
        let context: Vec<u32> = window.map(|slot| slot.committed).collect();
        let transaction = Transaction {
            number: self.number,
            updates: &updates,
            context_size: self.slots.len() as u16,
            context_start: self.context_start,
            context: &context,
        };
        let mut block = zeroed_block();
        transaction.encode_into(&mut block);
        let block_index = self.al.block_of(self.number);
        Some(AlWrite { evicted, number: self.number, block_index, block })
    }

    /// The transaction in flight is on stable storage: what was queued is active.
    ///
    /// # Panics
    /// If none is in flight.
    pub fn transaction_done(&mut self) {
        assert!(self.in_flight, "no transaction is in flight");
        self.in_flight = false;
        self.stats.writes += 1;
        self.number = self.al.next_number(self.number);
        self.rewrite_left = self.rewrite_left.saturating_sub(1);
        let next = usize::from(self.context_start) + CONTEXT_SLOTS;
        self.context_start = if next < self.slots.len() { next as u16 } else { 0 };
        while let Some(slot) = self.pending.pop() {
            let entry = &mut self.slots[usize::from(slot)];
            entry.committed = entry.extent;
            if entry.users == 0 {
                self.link_newest(slot);
                self.starving = false;
            }
        }
    }

    /// Switches writing of transactions off or on (`al-updates`, metadata §3.6). Off: slots are
    /// only tracked, and every write is `Active` as soon as slots suffice. The caller stores
    /// AL_DISABLED durably before it switches off, and clears it only after it switched on,
    /// [`ActivityLog::is_rewriting`] became false, and all changed bitmap blocks are written.
    pub fn set_updates(&mut self, on: bool) {
        if on && !self.updates_on {
            self.rewrite();
        }
        self.updates_on = on;
    }

    /// Makes the next transactions go once round the ring, changes or not: after the ring moved
    /// or its content became stale.
    pub fn rewrite(&mut self) {
        // The one in flight has its content already.
        self.rewrite_left = self.al.blocks() + u32::from(self.in_flight);
    }

    /// True while [`ActivityLog::rewrite`] has transactions to write.
    pub fn is_rewriting(&self) -> bool {
        self.rewrite_left > 0
    }

    /// True if some slot changes with the next transaction.
    pub fn has_changes(&self) -> bool {
        !self.pending.is_empty()
    }

    /// True if the next transaction holds as many changes as fit.
    pub fn is_full(&self) -> bool {
        self.pending.len() == MAX_UPDATES
    }

    /// True if a transaction is in flight.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    /// True if every slot is in use and a write waits: no write gets anything until one ends.
    pub fn is_starving(&self) -> bool {
        self.starving
    }

    /// True if some write uses `extent`.
    pub fn is_in_use(&self, extent: u32) -> bool {
        self.index.get(&extent).is_some_and(|slot| self.slots[usize::from(*slot)].users > 0)
    }

    /// How many extents writes use or wait for.
    pub fn in_use(&self) -> usize {
        self.slots.len() - self.free.len() - self.idle
    }

    /// True if some write uses an extent or waits for one.
    pub fn is_active(&self) -> bool {
        self.in_use() > 0
    }

    /// True if a write uses one of the extents of a range.
    pub fn is_used(&self, range: SectorRange) -> bool {
        let used = |slot: &u16| self.slots[usize::from(*slot)].users > 0;
        extents_of(range).any(|extent| self.index.get(&extent).is_some_and(used))
    }

    /// True if no write uses any extent.
    pub fn is_quiet(&self) -> bool {
        self.slots.iter().all(|slot| slot.users == 0)
    }

    /// Every extent that is active or about to be, or was and is about to be evicted; ascending.
    pub fn hot_extents(&self) -> Vec<u32> {
        let mut extents: Vec<u32> =
            self.slots.iter().flat_map(|slot| [slot.committed, slot.extent]).collect();
        extents.sort_unstable();
        extents.dedup();
        if extents.last() == Some(&FREE) {
            extents.pop();
        }
        extents
    }

    /// Number of slots (`al-extents`).
    pub fn extents(&self) -> u16 {
        self.slots.len() as u16
    }

    /// Counters since attach.
    pub fn stats(&self) -> AlStats {
        self.stats
    }

    fn link_newest(&mut self, slot: u16) {
        let before = std::mem::replace(&mut self.newest, slot);
        let entry = &mut self.slots[usize::from(slot)];
        (entry.older, entry.newer) = (before, NIL);
        match before {
            NIL => self.oldest = slot,
            _ => self.slots[usize::from(before)].newer = slot,
        }
        self.idle += 1;
    }

    fn unlink_idle(&mut self, slot: u16) {
        let Slot { older, newer, .. } = self.slots[usize::from(slot)];
        match older {
            NIL => self.oldest = newer,
            _ => self.slots[usize::from(older)].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            _ => self.slots[usize::from(newer)].older = older,
        }
        self.idle -= 1;
    }

    /// Asserts the invariants of the module.
    pub fn check(&self) {
        let mut idle = Vec::new();
        let (mut at, mut before) = (self.oldest, NIL);
        while at != NIL {
            let slot = &self.slots[usize::from(at)];
            assert_eq!((slot.older, slot.users, slot.is_pending()), (before, 0, false));
            assert_ne!(slot.extent, FREE);
            idle.push(at);
            (before, at) = (at, slot.newer);
        }
        assert_eq!((before, idle.len()), (self.newest, self.idle));
        let pending = self.slots.iter().filter(|slot| slot.is_pending()).count();
        assert_eq!(pending, self.pending.len());
        assert!(pending <= MAX_UPDATES);
        let free = self.slots.iter().filter(|slot| slot.extent == FREE).count();
        assert_eq!(free, self.free.len());
        assert_eq!(self.index.len() + free, self.slots.len());
        for (extent, slot) in &self.index {
            assert_eq!(self.slots[usize::from(*slot)].extent, *extent);
        }
        let in_use = self.slots.iter().filter(|slot| slot.users > 0 && !slot.is_pending()).count();
        assert_eq!(in_use + pending + free + self.idle, self.slots.len());
    }
}

#[cfg(test)]
mod tests;
