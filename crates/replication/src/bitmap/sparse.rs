//! A bit vector whose memory follows its content.
//!
//! ```text
//! nodes: Vec<Node>            one for each 2^24 bits: all zero, all one, or
//!   leaves: [Leaf; 512]       one for each 2^15 bits: all zero, all one, or
//!     words: [u64; 512]       the bits
//! ```
//!
//! With 4 KiB behind a bit a node stands for 64 GiB, so an untouched volume of 16 TiB takes 256
//! nodes of 16 bytes for each slot, and so does one that is out of sync as a whole.
//!
//! Invariants, checked by [`SparseBits::check`]:
//! - bits at and beyond `len` are zero wherever words are stored; `Full` means all bits below it;
//! - every stored count equals the number of set bits below it;
//! - a node or leaf that is stored in full is neither all zero nor all one.

use std::ops::Range;

use serde::{Deserialize, Serialize};

const LEAF_WORDS: usize = 512;
const LEAF_BITS: u64 = LEAF_WORDS as u64 * 64;
const NODE_LEAVES: usize = 512;
const NODE_BITS: u64 = NODE_LEAVES as u64 * LEAF_BITS;

/// Bits `0..len`, sparse.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SparseBits {
    len: u64,
    ones: u64,
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Node {
    Zero,
    Full,
    Leaves(Box<Leaves>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Leaves {
    ones: u64,
    #[serde(with = "leaves")]
    leaves: [Leaf; NODE_LEAVES],
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Leaf {
    Zero,
    Full,
    Bits(Box<Bits>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Bits {
    ones: u64,
    #[serde(with = "words")]
    words: [u64; LEAF_WORDS],
}

/// Leaves as a sequence: serde knows no arrays of that length.
mod leaves {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Leaf, NODE_LEAVES};

    pub(super) fn serialize<S: Serializer>(
        leaves: &[Leaf; NODE_LEAVES],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        leaves.as_slice().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<[Leaf; NODE_LEAVES], D::Error> {
        let leaves = Vec::<Leaf>::deserialize(deserializer)?;
        leaves.try_into().map_err(|_| D::Error::custom("another number of leaves"))
    }
}

/// Words as bytes: a large volume has millions of them.
mod words {
    use serde::{Deserializer, Serializer};

    use super::LEAF_WORDS;

    pub(super) fn serialize<S: Serializer>(
        words: &[u64; LEAF_WORDS],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut bytes = [0; 8 * LEAF_WORDS];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        codec::frozen::bytes::serialize(&bytes, serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<[u64; LEAF_WORDS], D::Error> {
        let bytes: [u8; 8 * LEAF_WORDS] = codec::frozen::bytes::deserialize(deserializer)?;
        let (chunks, _) = bytes.as_chunks::<8>();
        Ok(std::array::from_fn(|i| u64::from_le_bytes(chunks[i])))
    }
}

impl Leaf {
    const fn uniform(value: bool) -> Leaf {
        if value { Leaf::Full } else { Leaf::Zero }
    }

    /// Sets the bits `range` of a leaf with `capacity` valid bits; returns how many changed.
    fn fill(&mut self, capacity: u64, range: Range<u64>, value: bool) -> u64 {
        let before = self.ones(capacity);
        if range.start == 0 && range.end == capacity {
            *self = Leaf::uniform(value);
            return self.ones(capacity).abs_diff(before);
        }
        if matches!((&*self, value), (Leaf::Zero, false) | (Leaf::Full, true)) {
            return 0;
        }
        let bits = self.stored(capacity);
        let words = (range.start / 64) as usize..=((range.end - 1) / 64) as usize;
        for index in words {
            let mask = mask_within(index as u64 * 64, &range);
            let old = bits.words[index];
            let new = if value { old | mask } else { old & !mask };
            bits.words[index] = new;
            bits.ones = bits.ones + u64::from(new.count_ones()) - u64::from(old.count_ones());
        }
        self.collapse(capacity);
        self.ones(capacity).abs_diff(before)
    }

    fn ones(&self, capacity: u64) -> u64 {
        match self {
            Leaf::Zero => 0,
            Leaf::Full => capacity,
            Leaf::Bits(bits) => bits.ones,
        }
    }

    /// The words, stored for writing.
    fn stored(&mut self, capacity: u64) -> &mut Bits {
        let full = matches!(self, Leaf::Full);
        if !matches!(self, Leaf::Bits(_)) {
            let mut bits =
                Box::new(Bits { ones: if full { capacity } else { 0 }, words: [0; LEAF_WORDS] });
            if full {
                for (index, word) in (0..).zip(&mut bits.words) {
                    *word = mask_within(index * 64, &(0..capacity));
                }
            }
            *self = Leaf::Bits(bits);
        }
        match self {
            Leaf::Bits(bits) => bits,
            Leaf::Zero | Leaf::Full => unreachable!("made of words just above"),
        }
    }

    fn collapse(&mut self, capacity: u64) {
        match self.ones(capacity) {
            0 => *self = Leaf::Zero,
            ones if ones == capacity => *self = Leaf::Full,
            _ => {}
        }
    }
}

impl Node {
    const fn uniform(value: bool) -> Node {
        if value { Node::Full } else { Node::Zero }
    }

    fn ones(&self, capacity: u64) -> u64 {
        match self {
            Node::Zero => 0,
            Node::Full => capacity,
            Node::Leaves(leaves) => leaves.ones,
        }
    }

    fn fill(&mut self, capacity: u64, range: Range<u64>, value: bool) -> u64 {
        let before = self.ones(capacity);
        if range.start == 0 && range.end == capacity {
            *self = Node::uniform(value);
            return self.ones(capacity).abs_diff(before);
        }
        if matches!((&*self, value), (Node::Zero, false) | (Node::Full, true)) {
            return 0;
        }
        let node = self.stored(capacity);
        let mut changed = 0;
        for index in range.start / LEAF_BITS..=(range.end - 1) / LEAF_BITS {
            let base = index * LEAF_BITS;
            let part = range.start.max(base) - base..range.end.min(base + LEAF_BITS) - base;
            let leaf = &mut node.leaves[index as usize];
            changed += leaf.fill(leaf_capacity(capacity, index), part, value);
        }
        node.ones = if value { node.ones + changed } else { node.ones - changed };
        self.collapse(capacity);
        changed
    }

    fn stored(&mut self, capacity: u64) -> &mut Leaves {
        let full = matches!(self, Node::Full);
        if !matches!(self, Node::Leaves(_)) {
            let leaves = std::array::from_fn(|index| {
                Leaf::uniform(full && leaf_capacity(capacity, index as u64) > 0)
            });
            let ones = if full { capacity } else { 0 };
            *self = Node::Leaves(Box::new(Leaves { ones, leaves }));
        }
        match self {
            Node::Leaves(leaves) => leaves,
            Node::Zero | Node::Full => unreachable!("made of leaves just above"),
        }
    }

    fn collapse(&mut self, capacity: u64) {
        match self.ones(capacity) {
            0 => *self = Node::Zero,
            ones if ones == capacity => *self = Node::Full,
            _ => {}
        }
    }
}

/// Valid bits of leaf `index` in a node with `capacity` valid bits.
fn leaf_capacity(capacity: u64, index: u64) -> u64 {
    capacity.saturating_sub(index * LEAF_BITS).min(LEAF_BITS)
}

/// The bits of the word at `base` that lie in `range`.
fn mask_within(base: u64, range: &Range<u64>) -> u64 {
    let start = range.start.saturating_sub(base).min(64);
    let end = range.end.saturating_sub(base).min(64);
    if start >= end {
        return 0;
    }
    (u64::MAX >> (64 - (end - start))) << start
}

impl SparseBits {
    /// `len` bits, all clear.
    pub fn new(len: u64) -> SparseBits {
        let nodes = (0..len.div_ceil(NODE_BITS)).map(|_| Node::Zero).collect();
        SparseBits { len, ones: 0, nodes }
    }

    /// Number of bits.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Number of set bits.
    pub fn count(&self) -> u64 {
        self.ones
    }

    fn node_capacity(&self, index: u64) -> u64 {
        (self.len - index * NODE_BITS).min(NODE_BITS)
    }

    /// Sets or clears `range`, cut to the length; returns how many bits changed.
    pub fn fill(&mut self, range: Range<u64>, value: bool) -> u64 {
        let range = range.start..range.end.min(self.len);
        if range.start >= range.end {
            return 0;
        }
        let mut changed = 0;
        for index in range.start / NODE_BITS..=(range.end - 1) / NODE_BITS {
            let base = index * NODE_BITS;
            let part = range.start.max(base) - base..range.end.min(base + NODE_BITS) - base;
            let capacity = self.node_capacity(index);
            changed += self.nodes[index as usize].fill(capacity, part, value);
        }
        self.ones = if value { self.ones + changed } else { self.ones - changed };
        changed
    }

    /// Bits `64 * index..` as one word; zero beyond the length.
    pub fn word(&self, index: u64) -> u64 {
        let base = index * 64;
        let Some(node) = self.nodes.get((base / NODE_BITS) as usize) else { return 0 };
        let leaf = match node {
            Node::Zero => &Leaf::Zero,
            Node::Full => &Leaf::Full,
            Node::Leaves(leaves) => &leaves.leaves[(base % NODE_BITS / LEAF_BITS) as usize],
        };
        match leaf {
            Leaf::Zero => 0,
            Leaf::Full => mask_within(base, &(0..self.len)),
            Leaf::Bits(bits) => bits.words[(index % LEAF_WORDS as u64) as usize],
        }
    }

    /// Replaces the bits of word `index` that `mask` selects; bits beyond the length are
    /// ignored. Returns how many bits were set and how many were cleared.
    pub fn replace(&mut self, index: u64, mask: u64, value: u64) -> (u64, u64) {
        let base = index * 64;
        let mask = mask & mask_within(base, &(0..self.len));
        let old = self.word(index);
        let new = old & !mask | value & mask;
        let set = u64::from((new & !old).count_ones());
        let cleared = u64::from((old & !new).count_ones());
        if set + cleared == 0 {
            return (0, 0);
        }
        let node_index = base / NODE_BITS;
        let capacity = self.node_capacity(node_index);
        let node = &mut self.nodes[node_index as usize];
        let leaves = node.stored(capacity);
        let leaf_index = base % NODE_BITS / LEAF_BITS;
        let leaf_capacity = leaf_capacity(capacity, leaf_index);
        let leaf = &mut leaves.leaves[leaf_index as usize];
        let bits = leaf.stored(leaf_capacity);
        bits.words[(index % LEAF_WORDS as u64) as usize] = new;
        bits.ones = bits.ones + set - cleared;
        leaf.collapse(leaf_capacity);
        leaves.ones = leaves.ones + set - cleared;
        node.collapse(capacity);
        self.ones = self.ones + set - cleared;
        (set, cleared)
    }

    /// First set bit at or behind `from`.
    pub fn next_set(&self, from: u64) -> Option<u64> {
        self.next(from, true)
    }

    /// First clear bit at or behind `from`.
    pub fn next_clear(&self, from: u64) -> Option<u64> {
        self.next(from, false)
    }

    fn next(&self, from: u64, value: bool) -> Option<u64> {
        let mut at = from;
        while at < self.len {
            match &self.nodes[(at / NODE_BITS) as usize] {
                Node::Zero if value => at = (at / NODE_BITS + 1) * NODE_BITS,
                Node::Full if !value => at = (at / NODE_BITS + 1) * NODE_BITS,
                Node::Zero | Node::Full => return Some(at),
                Node::Leaves(leaves) => match &leaves.leaves[(at % NODE_BITS / LEAF_BITS) as usize]
                {
                    Leaf::Zero if value => at = (at / LEAF_BITS + 1) * LEAF_BITS,
                    Leaf::Full if !value => at = (at / LEAF_BITS + 1) * LEAF_BITS,
                    Leaf::Zero | Leaf::Full => return Some(at),
                    Leaf::Bits(bits) => match bits.next(at % LEAF_BITS, value) {
                        Some(found) => {
                            at = at / LEAF_BITS * LEAF_BITS + found;
                            // A clear bit may be padding behind the end.
                            return (at < self.len).then_some(at);
                        }
                        None => at = (at / LEAF_BITS + 1) * LEAF_BITS,
                    },
                },
            }
        }
        None
    }

    /// Changes the length; new bits are set or clear as told.
    pub fn resize(&mut self, len: u64, value: bool) {
        let old = self.len;
        if len < old {
            self.fill(len..old, false);
        } else if let Some(last) = self.nodes.last_mut() {
            // What is full now is not full once there are more bits: store it.
            let index = (old - 1) / NODE_BITS;
            let capacity = old - index * NODE_BITS;
            if len > old && capacity < NODE_BITS && !matches!(last, Node::Zero) {
                let leaves = last.stored(capacity);
                let leaf = (capacity - 1) / LEAF_BITS;
                let valid = leaf_capacity(capacity, leaf);
                if valid < LEAF_BITS && !matches!(leaves.leaves[leaf as usize], Leaf::Zero) {
                    leaves.leaves[leaf as usize].stored(valid);
                }
            }
        }
        self.len = len;
        self.nodes.resize_with(len.div_ceil(NODE_BITS) as usize, || Node::Zero);
        if len > old && value {
            self.fill(old..len, true);
        }
        self.collapse_tail();
    }

    /// The last node and leaf may be full at the new length.
    fn collapse_tail(&mut self) {
        let Some(index) = (self.nodes.len() as u64).checked_sub(1) else { return };
        let capacity = self.node_capacity(index);
        let node = &mut self.nodes[index as usize];
        if let Node::Leaves(leaves) = node {
            let leaf = (capacity - 1) / LEAF_BITS;
            leaves.leaves[leaf as usize].collapse(leaf_capacity(capacity, leaf));
        }
        node.collapse(capacity);
    }

    /// Bytes of heap memory.
    pub fn memory(&self) -> usize {
        let mut bytes = self.nodes.capacity() * size_of::<Node>();
        for node in &self.nodes {
            if let Node::Leaves(leaves) = node {
                let stored = leaves.leaves.iter().filter(|leaf| matches!(leaf, Leaf::Bits(_)));
                bytes += size_of::<Leaves>() + stored.count() * size_of::<Bits>();
            }
        }
        bytes
    }

    /// Asserts the invariants of the module.
    #[cfg(test)]
    pub fn check(&self) {
        let mut total = 0;
        assert_eq!(self.nodes.len() as u64, self.len.div_ceil(NODE_BITS));
        for (index, node) in (0..).zip(&self.nodes) {
            let capacity = self.node_capacity(index);
            total += node.ones(capacity);
            let Node::Leaves(leaves) = node else { continue };
            assert!(leaves.ones != 0 && leaves.ones != capacity);
            let mut ones = 0;
            for (index, leaf) in (0..).zip(&leaves.leaves) {
                let capacity = leaf_capacity(capacity, index);
                ones += leaf.ones(capacity);
                assert!(capacity > 0 || matches!(leaf, Leaf::Zero));
                let Leaf::Bits(bits) = leaf else { continue };
                assert!(bits.ones != 0 && bits.ones != capacity);
                let counted: u32 = bits.words.iter().map(|word| word.count_ones()).sum();
                assert_eq!(u64::from(counted), bits.ones);
                for (index, word) in (0..).zip(&bits.words) {
                    assert_eq!(word & !mask_within(index * 64, &(0..capacity)), 0);
                }
            }
            assert_eq!(ones, leaves.ones);
        }
        assert_eq!(total, self.ones);
    }
}

impl Bits {
    fn next(&self, from: u64, value: bool) -> Option<u64> {
        let mut keep = u64::MAX << (from % 64);
        for index in (from / 64) as usize..LEAF_WORDS {
            let word = if value { self.words[index] } else { !self.words[index] };
            if word & keep != 0 {
                return Some(index as u64 * 64 + u64::from((word & keep).trailing_zeros()));
            }
            keep = u64::MAX;
        }
        None
    }
}
