//! The deadlines of one thread, each with a name.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use vocab::Instant;

/// Deadlines by key; arming a key again moves its deadline.
///
/// A moved or cancelled deadline leaves a stale heap entry behind, recognised because the map
/// disagrees with it. The heap is rebuilt when stale entries outnumber live ones.
#[derive(Debug)]
pub struct Timers<K> {
    deadlines: BTreeMap<K, Instant>,
    heap: BinaryHeap<Reverse<(Instant, K)>>,
}

impl<K: Ord + Copy> Default for Timers<K> {
    fn default() -> Self {
        Timers { deadlines: BTreeMap::new(), heap: BinaryHeap::new() }
    }
}

impl<K: Ord + Copy> Timers<K> {
    /// No deadlines.
    pub fn new() -> Timers<K> {
        Timers::default()
    }

    /// Sets the deadline of `key`.
    pub fn arm(&mut self, key: K, at: Instant) {
        if self.deadlines.insert(key, at) != Some(at) {
            self.heap.push(Reverse((at, key)));
            self.compact();
        }
    }

    /// Sets or removes the deadline of `key`.
    pub fn set(&mut self, key: K, at: Option<Instant>) {
        match at {
            Some(at) => self.arm(key, at),
            None => self.cancel(key),
        }
    }

    /// Removes the deadline of `key`, if it has one.
    pub fn cancel(&mut self, key: K) {
        self.deadlines.remove(&key);
        self.compact();
    }

    /// The earliest deadline.
    pub fn next_deadline(&mut self) -> Option<Instant> {
        while let Some(Reverse((at, key))) = self.heap.peek() {
            if self.deadlines.get(key) == Some(at) {
                return Some(*at);
            }
            self.heap.pop();
        }
        None
    }

    /// Removes and returns a key whose deadline has come, the earliest first.
    pub fn pop_expired(&mut self, now: Instant) -> Option<K> {
        if self.next_deadline()? > now {
            return None;
        }
        let Reverse((_, key)) = self.heap.pop().expect("the heap has the entry just seen");
        self.deadlines.remove(&key);
        Some(key)
    }

    /// Keys that have a deadline.
    pub fn len(&self) -> usize {
        self.deadlines.len()
    }

    /// True if no key has a deadline.
    pub fn is_empty(&self) -> bool {
        self.deadlines.is_empty()
    }

    fn compact(&mut self) {
        if self.heap.len() > 2 * self.deadlines.len() + 64 {
            self.heap.clear();
            self.heap.extend(self.deadlines.iter().map(|(key, at)| Reverse((*at, *key))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_expire_in_order_and_once() {
        let mut timers = Timers::new();
        for (key, at) in [(1, 30), (2, 10), (3, 20)] {
            timers.arm(key, Instant(at));
        }
        assert_eq!(timers.next_deadline(), Some(Instant(10)));
        assert_eq!(timers.pop_expired(Instant(9)), None);
        let mut expired = Vec::new();
        while let Some(key) = timers.pop_expired(Instant(20)) {
            expired.push(key);
        }
        assert_eq!(expired, [2, 3]);
        assert_eq!(timers.len(), 1);
    }

    #[test]
    fn a_moved_or_cancelled_deadline_does_not_fire() {
        let mut timers = Timers::new();
        timers.arm('a', Instant(10));
        timers.arm('a', Instant(50));
        timers.arm('b', Instant(20));
        timers.set('b', None);
        assert_eq!(timers.pop_expired(Instant(40)), None);
        assert_eq!(timers.next_deadline(), Some(Instant(50)));
        timers.arm('a', Instant(10));
        assert_eq!(timers.pop_expired(Instant(10)), Some('a'));
        assert_eq!(timers.pop_expired(Instant(100)), None);
        assert!(timers.is_empty());
    }

    #[test]
    fn moving_a_deadline_forever_needs_no_more_memory() {
        let mut timers = Timers::new();
        for at in 0..10_000 {
            timers.arm(0, Instant(at));
        }
        assert!(timers.heap.len() < 100);
        assert_eq!(timers.next_deadline(), Some(Instant(9999)));
    }
}
