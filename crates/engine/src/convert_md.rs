//! `convert-md`: metadata of DRBD 8, version v08, become v09 where they are (metadata §1.3).
//!
//! What they know is kept: generations, the bitmap and the activity log, which is applied. First the
//! old superblock says that everything may be out of sync, then bitmap and log are written, then the
//! new superblock. A crash in between leaves v08 that ask for a full resync, and can be converted.

use codec::config::MetaDisk;
use codec::disk::{
    BLOCK_SIZE, Layout, MdFlags, MdParams, Placement, Rules, Superblock, SuperblockError,
    SuperblockV8, Version, activity_log, bitmap, zeroed_block,
};
use vocab::{ConfigError, NodeId, Refusal};

use crate::create_md::{Device, Error, is_claimed};
use crate::engine::while_claimed;
use crate::shard::{placement, superblock_place};

/// Bytes of one read or write.
const PIECE: usize = 1 << 20;
/// Data behind one bit.
const BYTES_PER_BIT: u32 = 4096;
/// Bits of one extent of the activity log.
const EXTENT_BITS: u64 = activity_log::EXTENT_SECTORS * 512 / BYTES_PER_BIT as u64;

/// Converts the metadata of `disk`, which nobody uses. `nodes` are this one and the peer that the old
/// metadata speak of.
pub(crate) fn convert(
    disk: &str,
    meta_disk: &MetaDisk,
    nodes: (NodeId, NodeId),
    max_peers: u8,
) -> Result<Vec<String>, Error> {
    let placement = placement(meta_disk)?;
    let (path, exclusive) = match meta_disk {
        MetaDisk::Internal => (disk, true),
        MetaDisk::External { device, index } => (&device[..], index.is_none()),
    };
    let open = |path, exclusive| while_claimed(is_claimed, || Device::open(path, exclusive));
    // Nobody may use the data meanwhile.
    let data = (*meta_disk != MetaDisk::Internal).then(|| open(disk, true)).transpose()?;
    let mut device = open(path, exclusive)?;
    let refused = |code, why: &dyn std::fmt::Display| -> Error {
        Refusal::config(code, format!("{path}: {why}")).into()
    };
    let invalid = |error: SuperblockError| match error {
        SuperblockError::Placement(inner) => refused(ConfigError::MetaInvalid, &inner),
        SuperblockError::Version09 => {
            let why = "its metadata has version v09 already; attach it as it is";
            refused(ConfigError::InvalidRequest, &why)
        }
        other => refused(ConfigError::MetaInvalid, &other),
    };
    let size = device.file.info().size;
    let Some(at) = superblock_place(placement, device.file.info()) else {
        return Err(refused(ConfigError::MetaDiskTooSmall, &"too small for metadata"));
    };
    let block = device.read(at, BLOCK_SIZE)?;
    let block = block[..].try_into().expect("a whole block was read");
    let old = SuperblockV8::decode(block).map_err(invalid)?;
    let mut new = old.of_pair(Some(nodes));
    let old_layout = new.validate(placement, size, Rules::Kernel).map_err(invalid)?;
    let backing = data.as_ref().map_or(size, |data| data.file.info().size).sectors_floor();
    let covered = match old.effective_size.0 {
        0 => old_layout.usable_on(backing).0,
        agreed => agreed,
    };
    let layout = match max_peers {
        // Nothing moves, not even a bitmap that is larger than it has to be.
        1 => old_layout,
        _ => widened(placement, &new, size, max_peers, covered)
            .map_err(|why| refused(ConfigError::InvalidRequest, &why))?,
    };

    let words = bitmap::area_bytes(covered, 1, BYTES_PER_BIT).min(old_layout.bitmap_area);
    let mut bits = read(&mut device, old_layout.bitmap, words)?;
    let log = read(&mut device, old_layout.activity_log, old.al.sectors().bytes().0)?;
    let hot = apply_log(&new, &log, &mut bits)
        .map_err(|error| refused(ConfigError::MetaUnclean, &error))?;

    new.version = Version::V09;
    new.max_peers = u32::from(max_peers);
    new.flags = new.flags.with(MdFlags::AL_CLEAN).without(MdFlags::AL_DISABLED);
    (new.md_size, new.al_offset, new.bm_offset) =
        (layout.md_size, layout.al_offset, layout.bm_offset);
    let mut guard = old.clone();
    guard.flags = guard.flags.with(MdFlags::V08_FULL_SYNC);
    device.write(at, &guard.encode()[..], true)?;
    device.flush()?;
    write_bitmap(&mut device, &layout, &bits, covered, u32::from(max_peers))?;
    let empty = activity_log::empty_block();
    for index in 0..new.al.blocks() {
        device.write(layout.al_block(index), &empty[..], false)?;
    }
    device.flush()?;
    device.write(at, &new.encode()[..], true)?;
    device.flush()?;
    let marked: u64 = bits.iter().map(|byte| u64::from(byte.count_ones())).sum();
    let mut remarks = vec![format!(
        "{path}: metadata v09 for {max_peers} peer(s); {} KiB are out of sync with node {}",
        marked * u64::from(BYTES_PER_BIT) / 1024,
        nodes.1
    )];
    if hot > 0 {
        remarks.push(format!("{path}: {hot} extents of the activity log were applied"));
    }
    Ok(remarks)
}

/// The layout with more bitmaps, if the data leave room for them.
fn widened(
    placement: Placement,
    superblock: &Superblock,
    size: vocab::Bytes,
    max_peers: u8,
    covered: u64,
) -> Result<Layout, String> {
    let params = MdParams {
        max_peers: u32::from(max_peers),
        bm_bytes_per_bit: BYTES_PER_BIT,
        al: superblock.al,
    };
    let layout = Layout::new(placement, size, &params).map_err(|error| error.to_string())?;
    if layout.usable.0 < covered {
        let give = match placement {
            Placement::Internal => {
                "give --max-peers 1, or shrink what is on it and copy it to a larger disk"
            }
            _ => "give a smaller --max-peers",
        };
        return Err(format!(
            "metadata for {max_peers} peers leave room for {} sectors, and the volume has \
             {covered}; {give}",
            layout.usable.0
        ));
    }
    Ok(layout)
}

fn read(device: &mut Device, at: u64, len: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < len {
        let step = (len - bytes.len() as u64).min(PIECE as u64) as usize;
        bytes.extend(device.read(at + bytes.len() as u64, step)?);
    }
    Ok(bytes)
}

/// Sets the bits of what the log names, as at attach; how many extents that are.
fn apply_log(
    superblock: &Superblock,
    log: &[u8],
    bits: &mut [u8],
) -> Result<usize, activity_log::AlError> {
    let flags = superblock.flags;
    if flags.contains(MdFlags::AL_DISABLED | MdFlags::CRASHED_PRIMARY) {
        bits.fill(0xff);
    }
    if !flags.contains(MdFlags::PRIMARY_IND) || flags.contains(MdFlags::AL_CLEAN) {
        return Ok(0);
    }
    if activity_log::is_pre_v84(superblock.al, log) {
        return Err(activity_log::AlError::PreV84);
    }
    let hot = activity_log::recover(superblock.al, log, superblock.al_nr_extents)?;
    for extent in &hot.extents {
        let first = usize::try_from(u64::from(*extent) * EXTENT_BITS / 8).unwrap_or(usize::MAX);
        let last = first.saturating_add(EXTENT_BITS as usize / 8).min(bits.len());
        if let Some(bytes) = bits.get_mut(first..last) {
            bytes.fill(0xff);
        }
    }
    Ok(hot.extents.len())
}

/// Writes the bitmap with the old one in the first slot. Nothing is known of the others: all set.
fn write_bitmap(
    device: &mut Device,
    layout: &Layout,
    bits: &[u8],
    covered: u64,
    slots: u32,
) -> Result<(), Error> {
    let len = bitmap::area_bytes(covered, slots, BYTES_PER_BIT).min(layout.bitmap_area);
    let word = |slot: u32, number: u64| {
        let at = usize::try_from(number * 4).unwrap_or(usize::MAX);
        match (slot, bits.get(at..).and_then(|rest| rest.first_chunk())) {
            (0, Some(bytes)) => u32::from_le_bytes(*bytes),
            (0, None) => 0,
            _ => u32::MAX,
        }
    };
    let mut piece = Vec::with_capacity(PIECE);
    let mut at = layout.bitmap;
    for index in 0..len / BLOCK_SIZE as u64 {
        let mut block = zeroed_block();
        bitmap::gather(index, slots, &mut block, word);
        piece.extend(&block[..]);
        if piece.len() == PIECE {
            device.write(at, &piece, false)?;
            at += PIECE as u64;
            piece.clear();
        }
    }
    match piece.is_empty() {
        true => Ok(()),
        false => device.write(at, &piece, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use vocab::RefusalCode;

    const SIZE: u64 = 64 << 20;
    const HOT: &[u8] = include_bytes!("../../codec/testdata/disk/v08-hot-primary.bin");

    fn node(id: u8) -> NodeId {
        NodeId::new(id).unwrap()
    }

    /// The disk of a kernel Primary that crashed.
    fn disk(directory: &tempfile::TempDir) -> (String, File) {
        let path = directory.path().join("disk");
        File::create(&path).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.set_len(SIZE).unwrap();
        file.write_all_at(HOT, SIZE - HOT.len() as u64).unwrap();
        (path.display().to_string(), file)
    }

    fn area(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; HOT.len()];
        file.read_exact_at(&mut bytes, SIZE - HOT.len() as u64).unwrap();
        bytes
    }

    fn superblock(area: &[u8]) -> Superblock {
        Superblock::decode(area.last_chunk().unwrap()).unwrap()
    }

    #[test]
    fn what_v08_knows_is_known_to_v09() {
        let directory = tempfile::tempdir().unwrap();
        let (path, file) = disk(&directory);
        let old = SuperblockV8::decode(HOT.last_chunk().unwrap()).unwrap();
        let remarks = convert(&path, &MetaDisk::Internal, (node(2), node(5)), 1).unwrap();
        assert!(remarks[0].contains("28672 KiB are out of sync with node 5"), "{remarks:?}");
        assert!(remarks[1].contains("7 extents"), "{remarks:?}");
        let area = area(&file);
        let new = superblock(&area);
        assert_eq!((new.current_uuid, new.history[0]), (old.current_uuid, old.history[0]));
        assert_eq!((new.node_id, new.max_peers), (Some(node(2)), 1));
        assert_eq!(new.peer(node(5)).bitmap_index, Some(0));
        let crashed = MdFlags::CRASHED_PRIMARY | MdFlags::AL_CLEAN | MdFlags::CONSISTENT;
        assert!(new.flags.contains(crashed), "{:?}", new.flags);
        // Extents 0 to 5 and 8, 128 bytes each.
        let marked: Vec<usize> = (0..32).filter(|i| area[i * 128] == 0xff).collect();
        assert_eq!(marked, [0, 1, 2, 3, 4, 5, 8]);
        let log = activity_log::recover(new.al, &area[4096..9 * 4096], 0).unwrap();
        assert!(log.extents.is_empty());
        // Once is enough.
        let again = convert(&path, &MetaDisk::Internal, (node(2), node(5)), 1);
        let Err(Error::Refused(refusal)) = again else { panic!("{again:?}") };
        assert!(refusal.detail.contains("v09 already"), "{}", refusal.detail);
    }

    #[test]
    fn a_volume_that_leaves_no_room_for_more_peers_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let (path, file) = disk(&directory);
        let refused = convert(&path, &MetaDisk::Internal, (node(0), node(1)), 7);
        let Err(Error::Refused(refusal)) = refused else { panic!("{refused:?}") };
        assert_eq!(refusal.code, RefusalCode::Config(ConfigError::InvalidRequest));
        assert!(refusal.detail.contains("--max-peers 1"), "{}", refusal.detail);
        assert_eq!(area(&file), HOT);
    }

    #[test]
    fn a_smaller_volume_gets_bitmaps_for_more_peers() {
        let directory = tempfile::tempdir().unwrap();
        let (path, file) = disk(&directory);
        let mut block = *HOT.last_chunk::<4096>().unwrap();
        block[..8].copy_from_slice(&100_000u64.to_be_bytes());
        file.write_all_at(&block, SIZE - 4096).unwrap();
        convert(&path, &MetaDisk::Internal, (node(0), node(1)), 3).unwrap();
        let new = superblock(&area(&file));
        let layout =
            new.validate(Placement::Internal, vocab::Bytes(SIZE), Rules::Drbdmeta).unwrap();
        let mut found = vec![0; bitmap::area_bytes(100_000, 3, BYTES_PER_BIT) as usize];
        file.read_exact_at(&mut found, layout.bitmap).unwrap();
        for bit in (0..12_500).step_by(100) {
            let extent = bit / EXTENT_BITS;
            let is = |slot| {
                let (byte, mask) = bitmap::bit_position(bit, slot, 3);
                found[byte as usize] & mask != 0
            };
            assert_eq!(is(0), extent < 6 || extent == 8, "bit {bit}");
            assert!(is(1) && is(2), "nothing is known of other nodes");
        }
    }
}
