//! Virtual time: what happens when, in one order that only the seed decides.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Something that will happen.
#[derive(Debug)]
struct Entry<E> {
    at: u64,
    /// Breaks ties: first scheduled, first to happen.
    seq: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// Reversed: the heap yields the greatest, and the earliest is wanted.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.seq).cmp(&(self.at, self.seq))
    }
}

/// The events to come and the present time, in nanoseconds since the start of the run.
#[derive(Debug)]
pub struct Queue<E> {
    heap: BinaryHeap<Entry<E>>,
    now: u64,
    seq: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Queue { heap: BinaryHeap::new(), now: 0, seq: 0 }
    }
}

impl<E> Queue<E> {
    /// The present.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Schedules an event; not in the past.
    pub fn at(&mut self, at: u64, event: E) {
        self.seq += 1;
        self.heap.push(Entry { at: at.max(self.now), seq: self.seq, event });
    }

    /// When the next event happens.
    pub fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Advances to the next event.
    pub fn pop(&mut self) -> Option<E> {
        let entry = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }

    /// Advances to a time before which nothing happens.
    pub fn advance(&mut self, to: u64) {
        debug_assert!(self.next_at().is_none_or(|at| at >= to), "events are not skipped");
        self.now = self.now.max(to);
    }
}
