//! What the client was promised, and whether the volume keeps it.
//!
//! Per block: `floor`, the newest write that was acknowledged or seen by a read, and the writes
//! that never got an answer. Those may take effect or not, and whether they have is not known
//! until a read finds them; from then on they may not vanish again.
//!
//! ```text
//!   begin_write ──► in flight ──► acknowledged: the floor rises to it
//!                       └───────► abandoned (client or server died): open
//!   a read must find the floor, or an open write newer than the floor
//! ```
//!
//! The workload never has two operations on one block at the same time, so each read has exactly
//! one right answer, apart from open writes.

use std::collections::{BTreeMap, BTreeSet};

use super::block::{Damage, NEVER};

/// What a read or the last check found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// What had to be there.
    Right,
    /// An older write, or none at all.
    Old,
    /// Bytes that no write explains.
    Wrong,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    floor: u64,
    open: BTreeSet<u64>,
}

/// The promises of a run, by block number.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    blocks: BTreeMap<u64, Entry>,
    last: u64,
    acknowledged: u64,
}

impl Ledger {
    /// Nothing was written.
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// The sequence number for a write of `block` that is about to be sent.
    pub fn begin_write(&mut self, block: u64) -> u64 {
        self.last += 1;
        self.blocks.entry(block).or_default();
        self.last
    }

    /// The write was acknowledged.
    pub fn acknowledge(&mut self, block: u64, sequence: u64) {
        self.acknowledged += 1;
        let entry = self.blocks.get_mut(&block).expect("its write was begun");
        assert!(sequence > entry.floor, "one write of a block at a time, in ascending order");
        entry.rise(sequence);
    }

    /// The write will never be answered.
    pub fn abandon(&mut self, block: u64, sequence: u64) {
        self.blocks.get_mut(&block).expect("its write was begun").open.insert(sequence);
    }

    /// Judges what is on `block` while no write of it is in flight.
    pub fn judge(&mut self, block: u64, found: &Result<u64, Damage>) -> Verdict {
        let Ok(sequence) = *found else { return Verdict::Wrong };
        let Some(entry) = self.blocks.get_mut(&block) else {
            return if sequence == NEVER { Verdict::Right } else { Verdict::Wrong };
        };
        match sequence {
            _ if sequence == entry.floor => Verdict::Right,
            _ if sequence < entry.floor => Verdict::Old,
            _ if entry.open.contains(&sequence) => {
                entry.rise(sequence);
                Verdict::Right
            }
            // A block says it is from a write that was never sent.
            _ => Verdict::Wrong,
        }
    }

    /// The newest write of `block` that was acknowledged or seen by a read.
    pub fn newest(&self, block: u64) -> u64 {
        self.blocks.get(&block).map_or(NEVER, |entry| entry.floor)
    }

    /// Writes acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Every block that was ever written, ascending.
    pub fn written(&self) -> impl ExactSizeIterator<Item = u64> {
        self.blocks.keys().copied()
    }

    /// True if `block` was ever written.
    pub fn knows(&self, block: u64) -> bool {
        self.blocks.contains_key(&block)
    }
}

impl Entry {
    fn rise(&mut self, sequence: u64) {
        self.floor = sequence;
        self.open = self.open.split_off(&(sequence + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(ledger: &mut Ledger, block: u64) -> u64 {
        let sequence = ledger.begin_write(block);
        ledger.acknowledge(block, sequence);
        sequence
    }

    #[test]
    fn the_newest_acknowledged_write_must_be_there() {
        let mut ledger = Ledger::new();
        let first = written(&mut ledger, 5);
        let second = written(&mut ledger, 5);
        assert_eq!(ledger.judge(5, &Ok(second)), Verdict::Right);
        assert_eq!(ledger.judge(5, &Ok(first)), Verdict::Old);
        assert_eq!(ledger.judge(5, &Ok(NEVER)), Verdict::Old);
        assert_eq!(ledger.judge(5, &Err(Damage::Garbage)), Verdict::Wrong);
        assert_eq!(ledger.acknowledged(), 2);
    }

    #[test]
    fn an_unwritten_block_must_be_empty() {
        let mut ledger = Ledger::new();
        assert_eq!(ledger.judge(9, &Ok(NEVER)), Verdict::Right);
        assert_eq!(ledger.judge(9, &Ok(1)), Verdict::Wrong);
    }

    #[test]
    fn an_unanswered_write_may_appear_or_not_but_not_vanish_again() {
        let mut ledger = Ledger::new();
        let old = written(&mut ledger, 1);
        let open = ledger.begin_write(1);
        ledger.abandon(1, open);
        assert_eq!(ledger.judge(1, &Ok(old)), Verdict::Right);
        assert_eq!(ledger.judge(1, &Ok(open)), Verdict::Right);
        assert_eq!(ledger.judge(1, &Ok(old)), Verdict::Old);
    }

    #[test]
    fn an_unanswered_write_may_not_return_after_a_newer_one() {
        let mut ledger = Ledger::new();
        let open = ledger.begin_write(1);
        ledger.abandon(1, open);
        let newer = written(&mut ledger, 1);
        assert_eq!(ledger.judge(1, &Ok(open)), Verdict::Old);
        assert_eq!(ledger.judge(1, &Ok(newer)), Verdict::Right);
    }

    #[test]
    fn a_write_from_the_future_is_wrong() {
        let mut ledger = Ledger::new();
        let sequence = written(&mut ledger, 1);
        assert_eq!(ledger.judge(1, &Ok(sequence + 1)), Verdict::Wrong);
    }
}
