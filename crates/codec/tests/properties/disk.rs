//! What must hold for any bytes taken for metadata. Shared by the smoke test and the fuzz target.

use codec::disk::activity_log::{self, empty_block, recover};
use codec::disk::dump::{self, Comments, Dump, WordRuns};
use codec::disk::{
    AlStriping, BLOCK_SIZE, Block, Layout, MdParams, Placement, Rules, Superblock, SuperblockV8,
};
use vocab::{Bytes, NodeId};

/// Takes the first byte as a choice and the rest as input.
pub fn any(data: &[u8]) {
    let Some((choice, input)) = data.split_first() else { return };
    match choice % 4 {
        0 => superblock(&padded(input)),
        1 => al(input, false),
        2 => al(input, true),
        _ => text(&String::from_utf8_lossy(input)),
    }
}

fn padded(input: &[u8]) -> Block {
    let mut block = [0; BLOCK_SIZE];
    let len = input.len().min(BLOCK_SIZE);
    block[..len].copy_from_slice(&input[..len]);
    block
}

/// What decodes encodes to the same value, and no question about it panics.
pub fn superblock(block: &Block) {
    if let Ok(v8) = SuperblockV8::decode(block) {
        assert!(Superblock::decode(block).is_err(), "one version only");
        let _ = v8.gi_string();
        let pair = NodeId::new(1).zip(NodeId::new(0));
        let used = Superblock::decode_any(block, pair).expect("v08 is read as it is");
        assert_eq!(SuperblockV8::from_pair(&used).encode(), used.encode());
        assert_eq!(Superblock::decode_any(&used.encode(), pair).as_ref(), Ok(&used));
        areas(&used);
        if let Ok(v9) = v8.to_v09() {
            assert_eq!(Superblock::decode(&v9.encode()).as_ref(), Ok(&v9));
        }
    }
    let superblock = match Superblock::decode(block) {
        Ok(superblock) => superblock,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert_eq!(Superblock::decode(&superblock.encode()).as_ref(), Ok(&superblock));
    for node in NodeId::all() {
        let _ = (superblock.gi_string(node), superblock.check_owner(node));
    }
    areas(&superblock);
}

/// Areas that are taken for valid lie on the device, one beside the other.
fn areas(superblock: &Superblock) {
    for placement in [Placement::Internal, Placement::FlexExternal, Placement::Indexed(7)] {
        for size in [0, 1 << 20, 1 << 30, (1 << 30) + 511, 1 << 50, u64::MAX] {
            for rules in [Rules::Kernel, Rules::Drbdmeta] {
                let Ok(layout) = superblock.validate(placement, Bytes(size), rules) else {
                    continue;
                };
                assert!(layout.superblock + BLOCK_SIZE as u64 <= size);
                assert!(layout.bitmap + layout.bitmap_area <= size);
                let al_end = layout.al_block(superblock.al.blocks());
                assert!(al_end <= size);
                assert!(
                    layout.bitmap + layout.bitmap_area <= layout.activity_log
                        || al_end <= layout.bitmap
                );
            }
        }
    }
}

/// Recovery never panics and finds no more extents than there are slots. With `seal` every
/// block gets a matching checksum, so that damage reaches what lies behind that check.
pub fn al(input: &[u8], seal: bool) {
    let mut area = empty_block().repeat(8);
    let len = input.len().min(area.len());
    area[..len].copy_from_slice(&input[..len]);
    if seal {
        for block in area.as_chunks_mut::<BLOCK_SIZE>().0 {
            block[8..12].fill(0);
            let crc = activity_log::crc32c_raw(block.as_slice());
            block[8..12].copy_from_slice(&crc.to_be_bytes());
        }
    }
    let ring =
        AlStriping::new(1 + input.len() as u32 % 2, 8 >> (input.len() % 2)).expect("8 blocks");
    let _ = activity_log::is_pre_v84(ring, &area);
    match recover(ring, &area, 257) {
        Ok(hot) => assert!(hot.extents.len() <= activity_log::MAX_SLOTS),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// What parses is written as text that parses to the same, and memory follows the text.
pub fn text(text: &str) {
    let dump = match dump::parse(text) {
        Ok(dump) => dump,
        Err(error) => {
            assert!(error.to_string().len() < 300);
            return;
        }
    };
    let slots: Vec<&WordRuns> = match &dump {
        Dump::V09(dump) => dump.slots.iter().collect(),
        Dump::V08(dump) => vec![&dump.slot],
    };
    let runs: usize = slots.iter().map(|slot| slot.runs().len()).sum();
    assert!(runs <= text.len() / 19, "a word takes 19 characters");
    let layout = Layout::new(Placement::Internal, Bytes(1 << 30), &MdParams::new(1))
        .expect("1 GiB is enough");
    let mut again = Vec::new();
    for _ in 0..2 {
        let dump = again.last().map_or(Ok(dump.clone()), |text: &String| dump::parse(text));
        let dump = dump.expect("what we write parses");
        let mut out = String::new();
        let comments =
            Comments { date: "", host: "", command: "", layout: &layout, al_nr_extents: 0 };
        // A size beyond any volume would ask for as many literal words as there is memory.
        if size_of_dump(&dump) < 1 << 22 {
            dump.write(&mut out, &comments).expect("a string takes everything");
            again.push(out);
        } else {
            return;
        }
    }
    assert_eq!(again[0], again[1]);
}

fn size_of_dump(dump: &Dump) -> u64 {
    match dump {
        Dump::V09(dump) => dump.tail.la_size.0,
        Dump::V08(dump) => dump.tail.la_size.0,
    }
}
