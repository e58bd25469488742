//! Golden bytes and refusals of the v09 superblock.

use sha2::{Digest, Sha256};

use super::*;

const GIB: Bytes = Bytes(1 << 30);

fn fresh() -> Superblock {
    Superblock::create(Placement::Internal, GIB, &MdParams::new(3)).unwrap().0
}

fn node(id: u8) -> NodeId {
    NodeId::new(id).unwrap()
}

/// A superblock with a different value in every field.
fn busy() -> Superblock {
    let mut sb = fresh();
    sb.effective_size = Sectors(2096888);
    sb.current_uuid = GenUuid(0xA1B2_C3D4_E5F6_0718);
    sb.members = NodeMask(7);
    sb.device_uuid = 0x1122_3344_5566_7788;
    sb.flags = MdFlags(0x8000_0491);
    sb.la_peer_max_bio_size = 1 << 20;
    sb.node_id = Some(node(0));
    sb.peers[1] = PeerSlot {
        bitmap_uuid: GenUuid(0x1000_0000_0000_0010),
        bitmap_dagtag: Dagtag(0x55),
        flags: PeerFlags(0x13),
        bitmap_index: Some(0),
    };
    sb.peers[31].bitmap_index = Some(2);
    sb.history[0] = GenUuid(0xDEAD_0000_0000_0000);
    sb.history[1] = GenUuid(0xDEAD_0000_0000_0002);
    sb.history[31] = GenUuid(99);
    sb
}

#[test]
fn fresh_superblock_is_byte_for_byte_what_create_md_writes() {
    let digest = Sha256::digest(fresh().encode().as_slice());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "27034e1f4b08f61e9348fcf2b7aeec40e6c1492efeba46d5f7c91aea1f3c73eb");
}

#[test]
fn every_field_survives_a_round_trip() {
    for sb in [fresh(), busy()] {
        assert_eq!(Superblock::decode(&sb.encode()).unwrap(), sb);
    }
}

#[test]
fn the_memory_only_peer_flag_is_never_stored() {
    let mut sb = fresh();
    sb.peers[3].flags = PeerFlags::HAVE_BITMAP | PeerFlags::DEVICE_SEEN;
    let block = sb.encode();
    assert_eq!(be32(&block, 0x70 + 3 * 32 + 16), 0x10);
}

#[test]
fn encoding_clears_what_was_in_the_block() {
    let mut block = [0xFF; 4096];
    fresh().encode_into(&mut block);
    assert_eq!(block, *fresh().encode());
}

#[test]
fn generation_identifiers_print_like_get_gi() {
    assert_eq!(
        busy().gi_string(node(1)),
        "A1B2C3D4E5F60718:1000000000000010:DEAD000000000000:DEAD000000000002\
         :1:1:0:0:1:0:0:1:1:0:0:1"
    );
}

#[test]
fn values_no_drbd_writes_are_refused_by_name() {
    let cases: &[(usize, u32, &str)] = &[
        (0x58, 0, "max-peers is 0, it must be 1 to 31"),
        (0x58, 32, "max-peers is 32, it must be 1 to 31"),
        (0x5C, 32, "node-id is 32, it must be 0 to 31, or -1 if not assigned"),
        (0x5C, -2i32 as u32, "node-id is -2, it must be 0 to 31, or -1 if not assigned"),
        (0x5C, 256, "node-id is 256, it must be 0 to 31, or -1 if not assigned"),
        (0x50, 0, "bm-byte-per-bit is 0, it must be a power of two from 4096 to 1048576"),
        (0x50, 6144, "bm-byte-per-bit is 6144, it must be a power of two from 4096 to 1048576"),
        (0x60, 0, "al-stripes is 0, it must be at least 1"),
        (0x64, 0, "al-stripe-size-4k is 0, it must be at least 1"),
        (
            0x60,
            u32::MAX,
            "al-stripe-size-4k is 8, it must be such that all stripes have 8 to 4194304 blocks \
             together",
        ),
        (
            0x70 + 5 * 32 + 20,
            32,
            "peer[5] bitmap-index is 32, it must be a slot below max-peers, or -1",
        ),
    ];
    for &(offset, value, text) in cases {
        let mut block = busy().encode();
        put32(&mut block, offset, value);
        assert_eq!(Superblock::decode(&block).unwrap_err().to_string(), text);
    }
}

#[test]
fn striping_fields_of_zero_are_the_default() {
    let mut block = fresh().encode();
    put64(&mut block, 0x60, 0);
    assert_eq!(Superblock::decode(&block).unwrap(), fresh());
}

#[test]
fn foreign_blocks_are_told_apart() {
    let mut block = zeroed_block();
    assert_eq!(Superblock::decode(&block), Err(SuperblockError::NotDrbd { magic: 0 }));
    put32(&mut block, 0x1C, MAGIC_V07);
    assert_eq!(Superblock::decode(&block), Err(SuperblockError::Version07));
    put32(&mut block, 0x3C, MAGIC_V08);
    assert_eq!(Superblock::decode(&block), Err(SuperblockError::Version08));
}

#[test]
fn the_created_superblock_passes_both_rules() {
    let params = MdParams { al: AlStriping::new(4, 16).unwrap(), ..MdParams::new(7) };
    for (placement, params) in [
        (Placement::Internal, params),
        (Placement::FlexExternal, params),
        (Placement::Indexed(3), MdParams::new(7)),
    ] {
        let (sb, layout) = Superblock::create(placement, GIB, &params).unwrap();
        for rules in [Rules::Kernel, Rules::Drbdmeta] {
            assert_eq!(sb.validate(placement, GIB, rules).unwrap(), layout, "{rules:?}");
        }
    }
}

#[test]
fn an_oversized_bitmap_is_fine_for_the_kernel_and_refused_by_drbdmeta() {
    let mut sb = fresh();
    sb.bm_offset -= 80;
    sb.md_size += Sectors(80);
    let layout = sb.validate(Placement::Internal, GIB, Rules::Kernel).unwrap();
    assert_eq!(layout.bitmap, 1073606656 - 80 * 512);
    assert_eq!(layout.usable, Sectors(2096888 - 80));
    assert_eq!(
        sb.validate(Placement::Internal, GIB, Rules::Drbdmeta).unwrap_err().to_string(),
        "bm_offset is -336, but this device and striping give -256"
    );
}

#[test]
fn areas_that_do_not_fit_are_refused() {
    let refused = |change: &dyn Fn(&mut Superblock)| {
        let mut sb = busy();
        change(&mut sb);
        sb.validate(Placement::Internal, GIB, Rules::Kernel).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&|sb| sb.al_offset = 8),
        "al_offset is 8, but this device and striping give -64"
    );
    assert!(refused(&|sb| sb.bm_offset = -255).contains("multiple of 8"));
    assert!(refused(&|sb| sb.bm_offset = -64).contains("in front of"));
    assert!(refused(&|sb| sb.bm_offset = 0).contains("in front of"));
    assert!(refused(&|sb| sb.md_size = Sectors(272)).starts_with("md_size_sect is 272"));
    assert!(
        refused(&|sb| {
            sb.bm_offset = i32::MIN;
            sb.md_size = Sectors(8 + (1 << 31));
        })
        .contains("on the device")
    );
    assert!(refused(&|sb| sb.effective_size = Sectors(u64::MAX)).contains("2^41"));
    assert!(refused(&|sb| sb.effective_size = Sectors(1 << 30)).contains("covered"));
    assert!(refused(&|sb| sb.peers[4].bitmap_index = Some(3)).contains("below max-peers"));
    assert!(refused(&|sb| sb.peers[4].bitmap_index = Some(0)).contains("no other peer"));
    assert!(refused(&|sb| sb.peers[0].bitmap_index = Some(1)).contains("this node itself"));
    let small = Superblock::create(Placement::Internal, Bytes(512 << 10), &MdParams::new(1));
    let (sb, _) = small.unwrap();
    assert!(sb.validate(Placement::Internal, Bytes(512 << 10), Rules::Drbdmeta).is_ok());
    assert!(matches!(
        sb.validate(Placement::Internal, Bytes(512 << 10), Rules::Kernel),
        Err(SuperblockError::Placement(PlacementError::TooSmall { .. }))
    ));
}

#[test]
fn a_grown_flexible_device_is_used_in_full() {
    let (sb, _) =
        Superblock::create(Placement::FlexExternal, Bytes(4 << 20), &MdParams::new(3)).unwrap();
    let layout = sb.validate(Placement::FlexExternal, Bytes(8 << 20), Rules::Kernel).unwrap();
    assert_eq!(layout.md_size, Sectors(16384));
}

#[test]
fn metadata_of_another_node_is_refused() {
    let sb = busy();
    sb.check_owner(node(0)).unwrap();
    assert_eq!(
        sb.check_owner(node(2)).unwrap_err(),
        SuperblockError::Mismatch { field: Field::NodeId, value: 0, expected: 2 }
    );
    let mut unassigned = sb.clone();
    unassigned.node_id = None;
    unassigned.check_owner(node(2)).unwrap();
    assert!(unassigned.check_owner(node(1)).is_err(), "node 1 has a slot here");
}

#[test]
fn no_single_byte_change_can_panic() {
    let clean = busy().encode();
    for offset in 0..0x570 {
        for value in [0, 1, 0x7F, 0x80, 0xFF] {
            let mut block = clean.clone();
            block[offset] = value;
            if let Ok(sb) = Superblock::decode(&block) {
                assert_eq!(Superblock::decode(&sb.encode()).unwrap(), sb);
                for rules in [Rules::Kernel, Rules::Drbdmeta] {
                    let _ = sb.validate(Placement::Internal, GIB, rules);
                    let _ = sb.validate(Placement::FlexExternal, GIB, rules);
                }
            }
        }
    }
}
