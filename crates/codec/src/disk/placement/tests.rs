//! The worked values of metadata §2 and absurd input.

use super::*;

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

#[test]
fn internal_placement_matches_the_worked_values() {
    // Device, slots, bytes of bitmap, sectors of metadata; then where each part begins.
    let table: [(u64, u32, u64, u64, [u64; 3], u64); 12] = [
        (GIB, 1, 32768, 136, [1073672192, 1073704960, 1073737728], 2097016),
        (GIB, 3, 98304, 264, [1073606656, 1073704960, 1073737728], 2096888),
        (GIB, 7, 229376, 520, [1073475584, 1073704960, 1073737728], 2096632),
        (GIB, 31, 1015808, 2056, [1072689152, 1073704960, 1073737728], 2095096),
        (10 * GIB, 1, 327680, 712, [10737053696, 10737381376, 10737414144], 20970808),
        (10 * GIB, 3, 983040, 1992, [10736398336, 10737381376, 10737414144], 20969528),
        (10 * GIB, 7, 2293760, 4552, [10735087616, 10737381376, 10737414144], 20966968),
        (10 * GIB, 31, 10158080, 19912, [10727223296, 10737381376, 10737414144], 20951608),
        (TIB, 1, 33554432, 65608, [1099478036480, 1099511590912, 1099511623680], 2147418040),
        (TIB, 3, 100663296, 196680, [1099410927616, 1099511590912, 1099511623680], 2147286968),
        (TIB, 7, 234881024, 458824, [1099276709888, 1099511590912, 1099511623680], 2147024824),
        (TIB, 31, 1040187392, 2031688, [1098471403520, 1099511590912, 1099511623680], 2145451960),
    ];
    for (device, peers, bm_bytes, md_size, [bitmap, al, superblock], usable) in table {
        let layout =
            Layout::new(Placement::Internal, Bytes(device), &MdParams::new(peers)).unwrap();
        assert_eq!(layout.bitmap_area, bm_bytes);
        assert_eq!(layout.md_size, Sectors(md_size));
        assert_eq!(layout.bitmap, bitmap);
        assert_eq!(layout.activity_log, al);
        assert_eq!(layout.superblock, superblock);
        assert_eq!(layout.usable, Sectors(usable));
        assert_eq!(layout.al_offset, -64);
        assert_eq!(i64::from(layout.bm_offset), 8 - md_size as i64);
    }
}

#[test]
fn spare_sectors_behind_an_internal_superblock_are_left_alone() {
    let even = Layout::new(Placement::Internal, Bytes(GIB), &MdParams::new(1)).unwrap();
    let odd = Layout::new(Placement::Internal, Bytes(GIB + 7 * 512), &MdParams::new(1)).unwrap();
    assert_eq!(even.superblock, odd.superblock);
}

#[test]
fn external_placement_matches_the_worked_value() {
    let params = MdParams::new(3);
    let layout = Layout::new(Placement::FlexExternal, Bytes(4 << 20), &params).unwrap();
    assert_eq!((layout.superblock, layout.activity_log, layout.bitmap), (0, 4096, 36864));
    assert_eq!((layout.al_offset, layout.bm_offset), (8, 72));
    assert_eq!(layout.md_size, Sectors(8192));
    // The kernel's formula gives 88692032; drbdmeta's is the smaller one.
    assert_eq!(layout.usable, Sectors(88691712));
    assert_eq!(layout.usable_on(Sectors(1000)), Sectors(1000));

    let indexed = Layout::new(Placement::Indexed(2), Bytes(3 * INDEXED_BYTES), &params).unwrap();
    assert_eq!(indexed.superblock, 2 * 134217728);
    assert_eq!(indexed.md_size, Sectors(262144));
    assert_eq!(indexed.bm_offset, 72);
}

#[test]
fn placements_that_cannot_work_are_refused() {
    let new = |placement, device, params: MdParams| Layout::new(placement, Bytes(device), &params);
    let p3 = MdParams::new(3);
    for device in [0, 511, 4096, 40960, (68 << 10) - 1] {
        for placement in [Placement::Internal, Placement::FlexExternal, Placement::Indexed(0)] {
            let refused = new(placement, device, p3);
            assert!(matches!(refused, Err(PlacementError::TooSmall { .. })), "{refused:?}");
        }
    }
    assert!(matches!(
        new(Placement::Indexed(1), 2 * INDEXED_BYTES - 1, p3),
        Err(PlacementError::TooSmall { need: Bytes(268435456), .. })
    ));
    assert_eq!(new(Placement::Internal, GIB, MdParams::new(0)), Err(PlacementError::MaxPeers(0)));
    assert_eq!(new(Placement::Internal, GIB, MdParams::new(32)), Err(PlacementError::MaxPeers(32)));
    for bytes in [0, 2048, 4097, 2 << 20] {
        let params = MdParams { bm_bytes_per_bit: bytes, ..p3 };
        assert_eq!(new(Placement::Internal, GIB, params), Err(PlacementError::BytesPerBit(bytes)));
    }
    let striped = MdParams { al: AlStriping::new(4, 8).unwrap(), ..p3 };
    assert_eq!(new(Placement::Indexed(0), GIB, striped), Err(PlacementError::IndexedIsFixed));
    let huge_al = MdParams { al: AlStriping::new(2, 4097).unwrap(), ..p3 };
    assert!(matches!(new(Placement::Internal, GIB, huge_al), Err(PlacementError::AlTooLarge(_))));
}

#[test]
fn absurd_sizes_do_not_overflow() {
    for device in [u64::MAX, u64::MAX - 4095, 1 << 63, (1 << 62) + 513, 1 << 51] {
        for peers in [1, 31] {
            for placement in [Placement::Internal, Placement::FlexExternal, Placement::Indexed(255)]
            {
                match Layout::new(placement, Bytes(device), &MdParams::new(peers)) {
                    Ok(layout) => assert!(layout.usable.0 <= MAX_VOLUME_SECTORS),
                    Err(error) => assert!(matches!(error, PlacementError::TooLarge { .. })),
                }
            }
        }
    }
    // The largest volume with the most slots still has a place.
    let layout = Layout::new(Placement::Internal, Bytes(1 << 50), &MdParams::new(31)).unwrap();
    assert!(layout.bm_offset < 0 && layout.usable.0 < MAX_VOLUME_SECTORS);
    let external =
        Layout::new(Placement::FlexExternal, Bytes(u64::MAX), &MdParams::new(31)).unwrap();
    assert_eq!(external.usable, Sectors(MAX_VOLUME_SECTORS));
}

#[test]
fn striping_visits_every_block_once_and_alternates_between_stripes() {
    assert_eq!(AlStriping::new(1, 7), None);
    assert_eq!(AlStriping::new(0, 8), None);
    assert_eq!(AlStriping::new(u32::MAX, u32::MAX), None);
    let al = AlStriping::new(4, 8).unwrap();
    assert_eq!((0..6).map(|t| al.block_of(t)).collect::<Vec<_>>(), [0, 8, 16, 24, 1, 9]);
    let mut seen: Vec<u32> = (64..96).map(|t| al.block_of(t)).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..32).collect::<Vec<_>>());
    assert_eq!(AlStriping::default().max_extents(), 6433);
    assert_eq!(AlStriping::new(1, 72).unwrap().max_extents(), 65249);
    assert_eq!(AlStriping::new(1, 73).unwrap().max_extents(), 65534);
}

#[test]
fn transaction_numbers_wrap_without_breaking_the_sequence_of_positions() {
    for al in [AlStriping::default(), AlStriping::new(3, 5).unwrap()] {
        let next = al.next_number(u32::MAX);
        assert_eq!(next % al.blocks(), (u32::MAX % al.blocks() + 1) % al.blocks());
        assert!(next < al.blocks(), "later by signed difference");
        assert_eq!(al.next_number(7), 8);
    }
}
