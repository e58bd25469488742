//! Traces of other uses at the beginning of a device: file systems, volume managers, partitions.
//!
//! Facts are those of the formats themselves. Only what people keep data in is looked for; an
//! unknown content looks like none.

/// Something that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Signature {
    /// In words: `an ext file system`.
    pub(crate) what: &'static str,
    pub(crate) extent: Extent,
}

/// How far it reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    /// Its first byte behind.
    Ends(u64),
    /// It does not say, or it is everything.
    Unknown,
}

/// Magic numbers of what does not say its size in a simple way: position, bytes, words.
const MAGICS: &[(usize, &[u8], &str)] = &[
    (0, b"LUKS\xba\xbe", "an encrypted container (LUKS)"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (4096, b"EFI PART", "a partition table (GPT)"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (0x36, b"FAT", "a FAT file system"),
    (0x52, b"FAT32", "a FAT file system"),
    (4086, b"SWAPSPACE2", "swap space"),
    (4086, b"SWAP-SPACE", "swap space"),
    (0x400, &[0x10, 0x20, 0xf5, 0xf2], "an f2fs file system"),
    (0x8001, b"CD001", "an ISO 9660 file system"),
    (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a RAID member (md)"),
    (0, &[0xfc, 0x4e, 0x2b, 0xa9], "a RAID member (md)"),
    (4120, &[0xc6, 0x85, 0x73, 0xf6], "a bcache member"),
];

/// The first trace in the first bytes of a device.
pub(crate) fn find(bytes: &[u8]) -> Option<Signature> {
    ext(bytes)
        .or_else(|| xfs(bytes))
        .or_else(|| lvm(bytes))
        .or_else(|| {
            let found = MAGICS.iter().find(|(at, magic, _)| {
                bytes.get(*at..at + magic.len()).is_some_and(|there| there == *magic)
            });
            found.map(|(_, _, what)| Signature { what, extent: Extent::Unknown })
        })
        .or_else(|| partitions(bytes))
}

fn le32(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at + 4)?.try_into().expect("four bytes");
    Some(u64::from(u32::from_le_bytes(field)))
}

fn be(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    Some(bytes.get(at..at + len)?.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
}

/// ext2, ext3, ext4: the superblock at 1024, its magic at 56, blocks at 4 (high half at 0x150
/// with the 64-bit feature), block size 1024 << the number at 24.
fn ext(bytes: &[u8]) -> Option<Signature> {
    const SUPERBLOCK: usize = 1024;
    const INCOMPAT_64BIT: u64 = 0x80;
    if bytes.get(SUPERBLOCK + 56..SUPERBLOCK + 58)? != [0x53, 0xef] {
        return None;
    }
    let high = match le32(bytes, SUPERBLOCK + 96)? & INCOMPAT_64BIT {
        0 => 0,
        _ => le32(bytes, SUPERBLOCK + 0x150)?,
    };
    let blocks = high << 32 | le32(bytes, SUPERBLOCK + 4)?;
    let shift = le32(bytes, SUPERBLOCK + 24)?;
    let end = (shift <= 6).then(|| blocks.checked_mul(1024 << shift)).flatten();
    let extent = end.map_or(Extent::Unknown, Extent::Ends);
    Some(Signature { what: "an ext2/3/4 file system", extent })
}

/// XFS: magic at 0, block size be32 at 4, blocks be64 at 8.
fn xfs(bytes: &[u8]) -> Option<Signature> {
    if bytes.get(..4)? != b"XFSB" {
        return None;
    }
    let end = be(bytes, 4, 4)?.checked_mul(be(bytes, 8, 8)?);
    let extent = end.map_or(Extent::Unknown, Extent::Ends);
    Some(Signature { what: "an XFS file system", extent })
}

/// LVM: a label in one of the first four sectors.
fn lvm(bytes: &[u8]) -> Option<Signature> {
    let label = |sector: usize| bytes.get(sector * 512..sector * 512 + 8) == Some(b"LABELONE");
    (0..4)
        .any(label)
        .then_some(Signature { what: "an LVM physical volume", extent: Extent::Unknown })
}

/// A table of DOS partitions with at least one entry: a boot sector alone has none.
fn partitions(bytes: &[u8]) -> Option<Signature> {
    let sector = bytes.get(..512)?;
    let entries = sector[446..510].chunks(16);
    let used = sector[510..] == [0x55, 0xaa]
        && entries.clone().all(|entry| entry[0] & 0x7f == 0)
        && entries.clone().any(|entry| entry[4] != 0);
    used.then_some(Signature { what: "a partition table", extent: Extent::Unknown })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(at: usize, magic: &[u8]) -> Option<Signature> {
        let mut bytes = vec![0; 128 << 10];
        bytes[at..at + magic.len()].copy_from_slice(magic);
        find(&bytes)
    }

    #[test]
    fn known_formats_are_found_and_zeroes_and_noise_are_not() {
        for (at, magic, what) in MAGICS {
            assert_eq!(with(*at, magic).unwrap().what, *what);
        }
        assert_eq!(with(1024, b"LABELONE").unwrap().what, "an LVM physical volume");
        assert_eq!(find(&[]), None);
        assert_eq!(find(&vec![0; 128 << 10]), None);
        let noise: Vec<u8> =
            (0..128u32 << 10).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        assert_eq!(find(&noise), None);
        assert_eq!(with(510, &[0x55, 0xaa]), None);
    }

    #[test]
    fn file_systems_tell_where_they_end() {
        let mut bytes = vec![0; 4096];
        bytes[..4].copy_from_slice(b"XFSB");
        bytes[4..8].copy_from_slice(&4096u32.to_be_bytes());
        bytes[8..16].copy_from_slice(&1000u64.to_be_bytes());
        assert_eq!(find(&bytes).unwrap().extent, Extent::Ends(4_096_000));
        bytes[8..16].copy_from_slice(&u64::MAX.to_be_bytes());
        assert_eq!(find(&bytes).unwrap().extent, Extent::Unknown);
        let mut bytes = vec![0; 4096];
        bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
        bytes[1028..1032].copy_from_slice(&100u32.to_le_bytes());
        bytes[1048..1052].copy_from_slice(&2u32.to_le_bytes());
        assert_eq!(find(&bytes).unwrap().extent, Extent::Ends(409_600));
    }
}
