//! Sector ranges of requests in flight, for the detection of conflicts (semantics §8.2 step 1,
//! §9.3; wire §7.4 "ordering rules").
//!
//! A search tree ordered by first sector in which each node also knows the highest end below it:
//! insertion, removal and search are O(log n) whatever the lengths, so that a 128 MiB discard
//! among 4 KiB writes costs nothing special. The nodes live in one slab that only grows to the
//! high-water mark; there is no allocation once that is reached. The tree is kept balanced by
//! priorities (a treap) that are a fixed function of the insertion count, so the same calls give
//! the same tree on every run.

use serde::{Deserialize, Serialize};
use vocab::SectorRange;

#[cfg(test)]
mod tests;

/// What kind of request holds a range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// Write of this node's application.
    LocalWrite,
    /// Read of this node's application from the local disk.
    LocalRead,
    /// Write received from a peer.
    PeerWrite,
    /// Read for a peer's application.
    PeerRead,
    /// Resync target: from before the request is sent until the data is written.
    ResyncWrite,
    /// Resync source: from the moment the dagtag is reached until the target's ack.
    ResyncRead,
    /// Block being verified.
    Verify,
    /// Range being announced by, or received in, P_PEERS_IN_SYNC.
    PeersInSync,
}

impl Kind {
    /// Changes data on the local disk.
    pub const fn is_write(self) -> bool {
        matches!(self, Kind::LocalWrite | Kind::PeerWrite | Kind::ResyncWrite)
    }

    /// Belongs to a resync.
    pub const fn is_resync(self) -> bool {
        matches!(self, Kind::ResyncWrite | Kind::ResyncRead)
    }
}

/// A range in the set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<I> {
    /// The sectors.
    pub range: SectorRange,
    /// What holds them.
    pub kind: Kind,
    /// The caller's name for the request.
    pub id: I,
}

/// Place of an entry, valid until it is removed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Slot {
    index: u32,
    generation: u32,
}

const NIL: u32 = u32::MAX;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Node<I> {
    start: u64,
    end: u64,
    /// Highest `end` in the subtree of this node.
    max_end: u64,
    parent: u32,
    /// Next free node while this one is not in use.
    left: u32,
    right: u32,
    /// No node has a higher priority than its parent.
    priority: u32,
    /// Odd while in use; tells a stale [`Slot`] from a valid one.
    generation: u32,
    kind: Kind,
    id: I,
}

/// A set of ranges that may overlap each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Intervals<I> {
    nodes: Vec<Node<I>>,
    root: u32,
    free: u32,
    len: usize,
    insertions: u32,
}

impl<I: Copy> Default for Intervals<I> {
    fn default() -> Self {
        Intervals::with_capacity(0)
    }
}

impl<I: Copy> Intervals<I> {
    /// An empty set with room for `capacity` ranges.
    pub fn with_capacity(capacity: usize) -> Intervals<I> {
        Intervals {
            nodes: Vec::with_capacity(capacity),
            root: NIL,
            free: NIL,
            len: 0,
            insertions: 0,
        }
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The caller's names of all ranges, in no order.
    pub(crate) fn ids_mut(&mut self) -> impl Iterator<Item = &mut I> {
        let in_use = |node: &&mut Node<I>| node.generation % 2 == 1;
        self.nodes.iter_mut().filter(in_use).map(|node| &mut node.id)
    }

    /// True if there is no range.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a range.
    ///
    /// # Panics
    /// If the range is empty (a flush without data touches no sector and has no place here) or
    /// ends beyond 2^64 (ranges are checked against the volume where they enter).
    pub fn insert(&mut self, range: SectorRange, kind: Kind, id: I) -> Slot {
        assert!(range.len.0 > 0, "an empty range conflicts with nothing");
        let (start, end) = (range.start.0, range.end());
        self.insertions = self.insertions.wrapping_add(1);
        let priority = scatter(self.insertions);
        let index = self.allocate(start, end, kind, id, priority);

        let (mut parent, mut at) = (NIL, self.root);
        while at != NIL {
            let node = self.node_mut(at);
            node.max_end = node.max_end.max(end);
            parent = at;
            at = if start < node.start { node.left } else { node.right };
        }
        self.node_mut(index).parent = parent;
        if parent == NIL {
            self.root = index;
        } else if start < self.node(parent).start {
            self.node_mut(parent).left = index;
        } else {
            self.node_mut(parent).right = index;
        }
        while self.node(index).parent != NIL
            && self.node(self.node(index).parent).priority < priority
        {
            self.rotate_up(index);
        }
        self.len += 1;
        Slot { index, generation: self.node(index).generation }
    }

    /// Removes a range and returns it.
    ///
    /// # Panics
    /// If the slot was removed already: whoever held it would have released someone else's range.
    pub fn remove(&mut self, slot: Slot) -> Entry<I> {
        let entry = self.get(slot).expect("a slot is removed once, by its owner");
        let index = slot.index;
        loop {
            let Node { left, right, .. } = *self.node(index);
            if left == NIL || right == NIL {
                break;
            }
            let left_first = self.node(left).priority >= self.node(right).priority;
            self.rotate_up(if left_first { left } else { right });
        }
        let Node { left, right, parent, .. } = *self.node(index);
        let child = if left == NIL { right } else { left };
        self.replace_child(parent, index, child);
        let mut at = parent;
        while at != NIL && self.refresh(at) {
            at = self.node(at).parent;
        }
        let free = self.free;
        let node = self.node_mut(index);
        node.generation = node.generation.wrapping_add(1);
        node.left = free;
        self.free = index;
        self.len -= 1;
        entry
    }

    /// The range at `slot`, or `None` if it was removed.
    pub fn get(&self, slot: Slot) -> Option<Entry<I>> {
        let node = self.nodes.get(slot.index as usize)?;
        (node.generation == slot.generation).then(|| node.entry())
    }

    /// The first range, by first sector and then by age, that shares a sector with `range` and
    /// passes `filter`. An empty range conflicts with nothing.
    pub fn first_conflict(
        &self,
        range: SectorRange,
        mut filter: impl FnMut(&Entry<I>) -> bool,
    ) -> Option<(Slot, Entry<I>)> {
        self.overlapping(range).find(|(_, entry)| filter(entry))
    }

    /// All ranges that share a sector with `range`, by first sector and then by age.
    pub fn overlapping(&self, range: SectorRange) -> Overlapping<'_, I> {
        let (start, end) = (range.start.0, range.start.0.saturating_add(range.len.0));
        let next = if range.len.0 == 0 { NIL } else { self.leftmost(self.root, start, end) };
        Overlapping { set: self, start, end, next }
    }

    /// Every range, by first sector and then by age.
    pub fn iter(&self) -> Overlapping<'_, I> {
        Overlapping {
            set: self,
            start: 0,
            end: u64::MAX,
            next: self.leftmost(self.root, 0, u64::MAX),
        }
    }

    /// The leftmost node in the subtree of `at` that overlaps `start..end`. The first node in
    /// order whose end lies behind `start` either overlaps, or it and all that follow begin
    /// behind `end`.
    fn leftmost(&self, mut at: u32, start: u64, end: u64) -> u32 {
        while at != NIL {
            let node = self.node(at);
            if node.left != NIL && self.node(node.left).max_end > start {
                at = node.left;
            } else if node.start >= end {
                return NIL;
            } else if node.end > start {
                return at;
            } else if node.right != NIL && self.node(node.right).max_end > start {
                at = node.right;
            } else {
                return NIL;
            }
        }
        NIL
    }

    /// The next overlapping node in order after `at`.
    fn successor(&self, mut at: u32, start: u64, end: u64) -> u32 {
        loop {
            let node = self.node(at);
            if node.right != NIL && self.node(node.right).max_end > start {
                return self.leftmost(node.right, start, end);
            }
            loop {
                let (child, parent) = (at, self.node(at).parent);
                if parent == NIL {
                    return NIL;
                }
                at = parent;
                if self.node(parent).left == child {
                    break;
                }
            }
            let node = self.node(at);
            if node.start >= end {
                return NIL;
            }
            if node.end > start {
                return at;
            }
        }
    }

    fn node(&self, index: u32) -> &Node<I> {
        &self.nodes[index as usize]
    }

    fn node_mut(&mut self, index: u32) -> &mut Node<I> {
        &mut self.nodes[index as usize]
    }

    fn allocate(&mut self, start: u64, end: u64, kind: Kind, id: I, priority: u32) -> u32 {
        let mut node = Node {
            start,
            end,
            max_end: end,
            parent: NIL,
            left: NIL,
            right: NIL,
            priority,
            generation: 1,
            kind,
            id,
        };
        if self.free == NIL {
            assert!(self.nodes.len() < NIL as usize, "in-flight requests are limited far below");
            self.nodes.push(node);
            return self.nodes.len() as u32 - 1;
        }
        let index = self.free;
        let recycled = self.node_mut(index);
        let next_free = recycled.left;
        node.generation = recycled.generation.wrapping_add(1);
        *recycled = node;
        self.free = next_free;
        index
    }

    /// Puts `child` in the place of `old` below `parent`; `parent` may be the root's parent.
    fn replace_child(&mut self, parent: u32, old: u32, child: u32) {
        if parent == NIL {
            self.root = child;
        } else if self.node(parent).left == old {
            self.node_mut(parent).left = child;
        } else {
            self.node_mut(parent).right = child;
        }
        if child != NIL {
            self.node_mut(child).parent = parent;
        }
    }

    /// Exchanges a node with its parent without changing the order.
    fn rotate_up(&mut self, index: u32) {
        let parent = self.node(index).parent;
        let grandparent = self.node(parent).parent;
        if self.node(parent).left == index {
            let inner = self.node(index).right;
            self.node_mut(parent).left = inner;
            if inner != NIL {
                self.node_mut(inner).parent = parent;
            }
            self.node_mut(index).right = parent;
        } else {
            let inner = self.node(index).left;
            self.node_mut(parent).right = inner;
            if inner != NIL {
                self.node_mut(inner).parent = parent;
            }
            self.node_mut(index).left = parent;
        }
        self.replace_child(grandparent, parent, index);
        self.node_mut(parent).parent = index;
        self.refresh(parent);
        self.refresh(index);
    }

    /// Recomputes the highest end below a node; true if it has changed.
    fn refresh(&mut self, index: u32) -> bool {
        let node = self.node(index);
        let mut max_end = node.end;
        for child in [node.left, node.right] {
            if child != NIL {
                max_end = max_end.max(self.node(child).max_end);
            }
        }
        std::mem::replace(&mut self.node_mut(index).max_end, max_end) != max_end
    }

    /// Checks the order, the heap property, the ends and the links; for tests and simulation.
    ///
    /// # Panics
    /// If one of them does not hold.
    pub fn invariants(&self) {
        let (mut count, mut last_start) = (0, 0);
        let mut pending = vec![(self.root, false)];
        while let Some((at, left_done)) = pending.pop() {
            if at == NIL {
                continue;
            }
            let node = self.node(at);
            if !left_done {
                pending.push((at, true));
                pending.push((node.left, false));
                continue;
            }
            assert!(node.start >= last_start, "ordered by first sector");
            last_start = node.start;
            count += 1;
            let mut max_end = node.end;
            for child in [node.left, node.right].into_iter().filter(|child| *child != NIL) {
                assert_eq!(self.node(child).parent, at, "children know their parent");
                assert!(self.node(child).priority <= node.priority, "a heap by priority");
                max_end = max_end.max(self.node(child).max_end);
            }
            assert_eq!(node.max_end, max_end, "highest end below");
            pending.push((node.right, false));
        }
        assert_eq!(count, self.len, "every range is reachable");
    }
}

impl<I: Copy> Node<I> {
    fn entry(&self) -> Entry<I> {
        let range = SectorRange::new(self.start, self.end - self.start);
        Entry { range, kind: self.kind, id: self.id }
    }
}

/// Iterator over overlapping ranges in order.
#[derive(Clone, Debug)]
pub struct Overlapping<'a, I> {
    set: &'a Intervals<I>,
    start: u64,
    end: u64,
    next: u32,
}

impl<I: Copy> Iterator for Overlapping<'_, I> {
    type Item = (Slot, Entry<I>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == NIL {
            return None;
        }
        let index = self.next;
        self.next = self.set.successor(index, self.start, self.end);
        let node = self.set.node(index);
        Some((Slot { index, generation: node.generation }, node.entry()))
    }
}

/// Spreads consecutive numbers over all 32-bit values (the finaliser of MurmurHash3, a bijection).
const fn scatter(n: u32) -> u32 {
    let mut x = n;
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}
