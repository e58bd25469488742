//! Identifiers: nodes, volumes, data generations, positions in the write stream.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Nodes of one resource; node ids are `0..MAX_NODES` (drbd.h `DRBD_NODE_ID_MAX`).
pub const MAX_NODES: usize = 32;

/// Node id of one resource, 0..=31. Unique per resource and never reused for another data set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub struct NodeId(u8);

impl From<NodeId> for u8 {
    fn from(node: NodeId) -> u8 {
        node.0
    }
}

impl TryFrom<u8> for NodeId {
    type Error = String;
    fn try_from(id: u8) -> Result<NodeId, String> {
        NodeId::new(id).ok_or_else(|| format!("{id} is no node id; the highest is 31"))
    }
}

impl NodeId {
    /// A node id, or `None` if it is 32 or above.
    pub const fn new(id: u8) -> Option<NodeId> {
        if (id as usize) < MAX_NODES { Some(NodeId(id)) } else { None }
    }

    /// The id as an index below [`MAX_NODES`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The id as it travels on the wire.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The set that holds this node alone.
    pub const fn mask(self) -> NodeMask {
        NodeMask(1 << self.0)
    }

    /// All 32 ids in ascending order.
    pub fn all() -> impl DoubleEndedIterator<Item = NodeId> + Clone {
        (0..MAX_NODES as u8).map(NodeId)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of nodes. 64 bits as on the wire; bits 32..63 only occur in "all but" masks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeMask(pub u64);

impl NodeMask {
    /// No node.
    pub const EMPTY: NodeMask = NodeMask(0);
    /// Every node, including ids that cannot exist: DRBD builds its masks as complements.
    pub const ALL: NodeMask = NodeMask(u64::MAX);

    /// True if `node` is in the set.
    pub const fn contains(self, node: NodeId) -> bool {
        self.0 & (1 << node.0) != 0
    }

    /// Adds `node`.
    pub fn insert(&mut self, node: NodeId) {
        self.0 |= 1 << node.0;
    }

    /// Removes `node`.
    pub fn remove(&mut self, node: NodeId) {
        self.0 &= !(1 << node.0);
    }

    /// The set with `node` added.
    pub const fn with(self, node: NodeId) -> NodeMask {
        NodeMask(self.0 | 1 << node.0)
    }

    /// The set with `node` removed.
    pub const fn without(self, node: NodeId) -> NodeMask {
        NodeMask(self.0 & !(1 << node.0))
    }

    /// Everything not in the set (64 bits, see the type).
    pub const fn complement(self) -> NodeMask {
        NodeMask(!self.0)
    }

    /// Nodes in both sets.
    pub const fn and(self, other: NodeMask) -> NodeMask {
        NodeMask(self.0 & other.0)
    }

    /// Nodes in either set.
    pub const fn or(self, other: NodeMask) -> NodeMask {
        NodeMask(self.0 | other.0)
    }

    /// Nodes in this set and not in `other`.
    pub const fn minus(self, other: NodeMask) -> NodeMask {
        NodeMask(self.0 & !other.0)
    }

    /// True if no bit at all is set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Members with a valid node id, ascending.
    pub fn iter(self) -> impl Iterator<Item = NodeId> + Clone {
        NodeId::all().filter(move |n| self.contains(*n))
    }

    /// Number of members with a valid node id.
    pub const fn len(self) -> u32 {
        (self.0 as u32).count_ones()
    }
}

impl FromIterator<NodeId> for NodeMask {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        nodes.into_iter().fold(NodeMask::EMPTY, NodeMask::with)
    }
}

impl fmt::Debug for NodeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >> 32 != 0 {
            write!(f, "all-but")?;
            return f.debug_set().entries(self.complement().iter().map(NodeId::get)).finish();
        }
        f.debug_set().entries(self.iter().map(NodeId::get)).finish()
    }
}

/// Volume number within a resource, 0..=65534 (0xffff means "the whole connection" on the wire).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct VolumeNr(pub u16);

impl VolumeNr {
    /// Highest volume number.
    pub const MAX: VolumeNr = VolumeNr(65534);
}

impl fmt::Display for VolumeNr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Device minor number, unique per node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Minor(pub u32);

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Position in a primary's write stream: the running count of sectors it has written.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Dagtag(pub u64);

/// A data generation identifier. Bit 0 says that the writer was Primary; every comparison
/// ignores it, so compare with [`GenUuid::same`], never with `==` (which is bitwise).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GenUuid(pub u64);

impl GenUuid {
    /// No generation.
    pub const NONE: GenUuid = GenUuid(0);
    /// Metadata was created and no generation exists yet (`UUID_JUST_CREATED`).
    pub const JUST_CREATED: GenUuid = GenUuid(4);

    /// The value with the "was Primary" bit cleared.
    pub const fn masked(self) -> u64 {
        self.0 & !1
    }

    /// Equal but for the "was Primary" bit.
    pub const fn same(self, other: GenUuid) -> bool {
        self.masked() == other.masked()
    }

    /// True if there is no value at all.
    pub const fn is_none(self) -> bool {
        self.masked() == 0
    }

    /// Just created: value 4, and 0 counts as such.
    pub const fn is_just_created(self) -> bool {
        self.masked() == 0 || self.masked() == 4
    }

    /// True if it names a generation of data.
    pub const fn is_real(self) -> bool {
        !self.is_just_created()
    }

    /// The value with the "was Primary" bit set or cleared.
    pub const fn with_primary(self, primary: bool) -> GenUuid {
        GenUuid(self.masked() | primary as u64)
    }

    /// The "was Primary" bit.
    pub const fn was_primary(self) -> bool {
        self.0 & 1 != 0
    }
}

impl fmt::Debug for GenUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", self.0)
    }
}

impl fmt::Display for GenUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_sets_of_node_ids() {
        let (a, b) = (NodeId::new(0).unwrap(), NodeId::new(31).unwrap());
        let set = NodeMask::EMPTY.with(a).with(b);
        assert_eq!(set.iter().collect::<Vec<_>>(), vec![a, b]);
        assert_eq!(set.len(), 2);
        assert!(!set.without(a).contains(a));
        assert_eq!(format!("{:?}", set.complement()), "all-but{0, 31}");
        assert_eq!(NodeId::new(32), None);
    }

    #[test]
    fn generations_compare_without_the_primary_bit() {
        assert!(GenUuid(0x10).same(GenUuid(0x11)));
        assert!(GenUuid(1).is_none() && GenUuid(5).is_just_created());
        assert!(GenUuid(6).is_real());
    }
}
