//! Sizes and positions. DRBD's wire, its metadata and ublk count 512-byte sectors.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use serde::{Deserialize, Serialize};

/// Bytes in one sector, whatever the disk's own block size.
pub const SECTOR_SIZE: u64 = 512;

/// A number of bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Bytes(pub u64);

/// A number of 512-byte sectors.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Sectors(pub u64);

/// A position on a volume, in sectors from its start.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Sector(pub u64);

impl Bytes {
    /// Whole sectors contained in this many bytes.
    pub const fn sectors_floor(self) -> Sectors {
        Sectors(self.0 / SECTOR_SIZE)
    }
}

impl Sectors {
    /// As bytes.
    ///
    /// # Panics
    /// If the size exceeds 2^64 bytes; sizes are limited to 1 PiB where they enter.
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0 * SECTOR_SIZE)
    }
}

impl Sector {
    /// Byte offset from the volume's start.
    pub const fn byte(self) -> u64 {
        self.0 * SECTOR_SIZE
    }
}

impl Add<Sectors> for Sector {
    type Output = Sector;
    fn add(self, n: Sectors) -> Sector {
        Sector(self.0 + n.0)
    }
}

impl Add for Sectors {
    type Output = Sectors;
    fn add(self, n: Sectors) -> Sectors {
        Sectors(self.0 + n.0)
    }
}

impl AddAssign for Sectors {
    fn add_assign(&mut self, n: Sectors) {
        self.0 += n.0;
    }
}

impl Sub for Sectors {
    type Output = Sectors;
    fn sub(self, n: Sectors) -> Sectors {
        Sectors(self.0 - n.0)
    }
}

impl SubAssign for Sectors {
    fn sub_assign(&mut self, n: Sectors) {
        self.0 -= n.0;
    }
}

/// A half-open range of sectors on a volume.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct SectorRange {
    /// First sector.
    pub start: Sector,
    /// Length; may be 0 for an empty flush.
    pub len: Sectors,
}

impl SectorRange {
    /// A range of `len` sectors from `start`.
    pub const fn new(start: u64, len: u64) -> SectorRange {
        SectorRange { start: Sector(start), len: Sectors(len) }
    }

    /// First sector behind the range, or `None` on overflow.
    pub const fn checked_end(self) -> Option<u64> {
        self.start.0.checked_add(self.len.0)
    }

    /// First sector behind the range. Ranges are checked against the volume where they enter.
    pub const fn end(self) -> u64 {
        self.start.0 + self.len.0
    }

    /// True if both ranges share a sector.
    pub const fn overlaps(self, other: SectorRange) -> bool {
        self.start.0 < other.end() && other.start.0 < self.end()
    }

    /// True if every sector of `other` is in this range.
    pub const fn covers(self, other: SectorRange) -> bool {
        self.start.0 <= other.start.0 && other.end() <= self.end()
    }

    /// True if the range lies within a volume of `size`.
    pub const fn fits(self, size: Sectors) -> bool {
        match self.checked_end() {
            Some(end) => end <= size.0,
            None => false,
        }
    }
}

impl fmt::Display for SectorRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sectors {}+{}", self.start.0, self.len.0)
    }
}

impl fmt::Display for Bytes {
    /// Binary units with at most two digits behind the point: `256 MiB`, `1.50 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut unit = 0;
        let mut divisor = 1u64;
        while unit + 1 < UNITS.len() && self.0 / divisor >= 1024 {
            divisor *= 1024;
            unit += 1;
        }
        if self.0.is_multiple_of(divisor) {
            write!(f, "{} {}", self.0 / divisor, UNITS[unit])
        } else {
            write!(f, "{:.2} {}", self.0 as f64 / divisor as f64, UNITS[unit])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_only_when_they_share_a_sector() {
        let r = SectorRange::new(8, 8);
        assert!(r.overlaps(SectorRange::new(15, 1)));
        assert!(!r.overlaps(SectorRange::new(16, 1)) && !r.overlaps(SectorRange::new(0, 8)));
        assert!(r.covers(SectorRange::new(9, 3)) && !r.covers(SectorRange::new(9, 8)));
        assert!(r.fits(Sectors(16)) && !r.fits(Sectors(15)));
        assert!(!SectorRange::new(u64::MAX, 2).fits(Sectors(100)));
    }

    #[test]
    fn sizes_print_in_binary_units() {
        assert_eq!(Bytes(256 << 20).to_string(), "256 MiB");
        assert_eq!(Bytes(1536).to_string(), "1.50 KiB");
        assert_eq!(Bytes(0).to_string(), "0 B");
    }
}
