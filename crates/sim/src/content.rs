//! Content of simulated blocks: one tag per 512-byte sector instead of bytes.
//!
//! Every client write stamps its sectors with a tag of its own, so "which write is this sector
//! from" is a comparison of two numbers. Tag 0 is a sector of zeroes.

use std::rc::Rc;

use codec::wire::Digest;

/// What a sector holds: the id of the write it came from.
pub type Tag = u64;

/// The tag of a sector of zeroes.
pub const ZERO: Tag = 0;

/// What damage on the way makes of a tag; tags that are given out stay below.
const DAMAGE: Tag = 1 << 63;

/// The content of a run of sectors.
#[derive(Clone, Debug)]
pub enum Data {
    /// Sectors that all hold the same tag.
    Fill {
        /// What each of them holds.
        tag: Tag,
        /// How many there are.
        sectors: u32,
    },
    /// Any sectors.
    Mixed(Rc<[Tag]>),
}

impl Data {
    /// From one tag per sector.
    pub fn from_tags(tags: &[Tag]) -> Data {
        match tags {
            [first, rest @ ..] if rest.iter().all(|t| t == first) => {
                Data::Fill { tag: *first, sectors: tags.len() as u32 }
            }
            _ => Data::Mixed(tags.into()),
        }
    }

    /// Number of sectors.
    pub fn sectors(&self) -> u64 {
        match self {
            Data::Fill { sectors, .. } => u64::from(*sectors),
            Data::Mixed(tags) => tags.len() as u64,
        }
    }

    /// Tag of the sector at `index` from the start.
    pub fn tag(&self, index: u64) -> Tag {
        match self {
            Data::Fill { tag, .. } => *tag,
            Data::Mixed(tags) => tags[index as usize],
        }
    }

    /// True if every sector is zero.
    pub fn is_zero(&self) -> bool {
        match self {
            Data::Fill { tag, .. } => *tag == ZERO,
            Data::Mixed(tags) => tags.iter().all(|t| *t == ZERO),
        }
    }

    /// The same with its first sector changed into what nobody has written.
    pub fn damaged(&self) -> Data {
        let mut tags: Vec<Tag> = (0..self.sectors()).map(|i| self.tag(i)).collect();
        tags[0] ^= DAMAGE;
        Data::from_tags(&tags)
    }

    /// A digest of the content, equal exactly (but for collisions) if the content is.
    pub fn digest(&self) -> Digest {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for i in 0..self.sectors() {
            hash = (hash ^ self.tag(i)).wrapping_mul(0x9fb2_1c65_1e98_df25);
            hash ^= hash >> 29;
        }
        Digest::new(&hash.to_be_bytes()).expect("8 bytes are not too many")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_content_has_equal_digests_whatever_its_form() {
        let fill = Data::Fill { tag: 5, sectors: 3 };
        let mixed = Data::Mixed(vec![5, 5, 5].into());
        assert_eq!(fill.digest(), mixed.digest());
        assert!(matches!(Data::from_tags(&[5, 5, 5]), Data::Fill { tag: 5, sectors: 3 }));
        assert_ne!(fill.digest(), Data::from_tags(&[5, 5, 6]).digest());
        assert!(Data::from_tags(&[0, 0]).is_zero() && !mixed.is_zero());
        assert_ne!(fill.digest(), fill.damaged().digest());
    }
}
