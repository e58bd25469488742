//! The worked examples of the specification (wire §11), byte for byte in both directions.

use super::*;
use vocab::{Dagtag, DiskState, GenUuid, NodeId, NodeMask, Role, SectorRange, Sectors, VolumeNr};

const V0: VolumeNr = VolumeNr(0);

/// `text` is the packet's bytes as in the specification.
fn check(packet: Packet, agreed: &Agreed, text: &str) {
    let bytes = hex(text);
    let mut whole = encoded(&packet, agreed);
    // The examples show data as zeros, or not at all.
    whole.resize(whole.len() + packet.payload_len(), 0);
    assert_eq!(whole, bytes, "{packet:?}");
    let stream = packet.stream();
    assert_eq!(decode_all(&bytes, stream, agreed), Ok(packet));
}

fn zeros(count: usize) -> String {
    "00".repeat(count)
}

#[test]
fn initial_packets_and_features() {
    check(Packet::InitialData, &Agreed::NOTHING, "83740267 fff20000");
    check(Packet::InitialMeta, &Agreed::NOTHING, "83740267 fff10000");
    let features = Features {
        protocol_min: 86,
        feature_flags: feature::OURS,
        protocol_max: 122,
        sender_node_id: 0,
        receiver_node_id: 1,
    };
    check(
        Packet::ConnectionFeatures(features),
        &Agreed::NOTHING,
        &format!(
            "83740267 fffe0048 00000056 0700027f 0000007a 00000000 00000001 00000000 | {}",
            zeros(48)
        ),
    );
    let old = Features { feature_flags: 0xf, protocol_max: 101, receiver_node_id: 0, ..features };
    check(
        Packet::ConnectionFeatures(old),
        &Agreed::NOTHING,
        &format!("83740267 fffe0048 00000056 0000000f 00000065 {}", zeros(60)),
    );
}

#[test]
fn authentication() {
    let challenge: Vec<u8> = (0..64).collect();
    let text: String = challenge.iter().map(|byte| format!("{byte:02x}")).collect();
    check(
        Packet::AuthChallenge(challenge.clone()),
        &OURS,
        &format!("8620ec20 ffff0010 00000040 00000000 {text}"),
    );
    let response = "52ed96f3 f0c1ab95 6e501ad9 3d4dc0bd 413cad87 19594fc0 b106a7b3 91c5bf32";
    check(
        Packet::AuthResponse(hex(response)),
        &OURS,
        &format!("8620ec20 ffff0011 00000020 00000000 {response}"),
    );
    let node = NodeId::new(5).unwrap();
    let signed = auth_message(&challenge, node, &OURS);
    assert_eq!((&signed[..64], &signed[64..]), (&challenge[..], &[0, 0, 0, 5][..]));
    assert_eq!(auth_message(&challenge, node, &OLD), challenge);
}

#[test]
fn handshake_of_two_nodes() {
    check(
        Packet::Protocol(Box::new(Protocol {
            protocol: 3,
            after_sb_0p: 0,
            after_sb_1p: 0,
            after_sb_2p: 0,
            conn_flags: 0,
            two_primaries: 0,
            integrity_alg: Vec::new(),
        })),
        &OURS,
        "8620ec20 ffff000b 00000019 00000000
         00000003 00000000 00000000 00000000 00000000 00000000 00",
    );
    let connect = Operation::Connect(Role::Secondary).request();
    let prepare = TwoPc {
        tid: 0x1234_abcd,
        flags: TWOPC_V2 | TWOPC_HAS_REACHABLE,
        v2: true,
        initiator: 0,
        target: 1,
        nodes_to_reach: NodeMask(!3),
        word20: 0,
        word28: connect.word28(),
    };
    check(
        Packet::TwoPcPrepare(None, prepare),
        &OURS,
        "8620ec20 ffff002e 00000024 00000000 1234abcd c0000000 00000001 ffffffff fffffffc
         00000000 00000000 000001f3 00000092",
    );
    check(Packet::Ping, &OURS, "8620ec20 ffff0013 00000000 00000000");
    check(
        Packet::SyncParam(
            V0,
            Box::new(SyncParam {
                form: SyncParamForm::V95,
                resync_rate: 250,
                verify_alg: Vec::new(),
                csums_alg: Vec::new(),
                c_plan_ahead: 20,
                c_delay_target: 10,
                c_fill_target: 100,
                c_max_rate: 102_400,
            }),
        ),
        &OURS,
        &format!(
            "8620ec20 00000023 00000094 00000000 000000fa {} 00000014 0000000a 00000064 00019000",
            zeros(128)
        ),
    );
    check(
        Packet::Sizes(
            V0,
            Box::new(Sizes {
                d_size: Sectors(0x20_0000),
                u_size: Sectors(0),
                c_size: Sectors(0x20_0000),
                max_bio_size: 1 << 20,
                queue_order_type: 0,
                dds_flags: 0,
                limits: Some(QueueLimits {
                    physical_block_size: 512,
                    logical_block_size: 512,
                    alignment_offset: 0,
                    io_min: 512,
                    io_opt: 0,
                    discard_enabled: 1,
                    discard_zeroes_data: 0,
                    write_same_capable: 0,
                    bm_block_shift: 0,
                }),
            }),
        ),
        &OURS,
        "8620ec20 0000000d 00000038 00000000
         00000000 00200000 00000000 00000000 00000000 00200000 00100000 00000000
         00000200 00000200 00000000 00000200 00000000 01000000",
    );
    check(
        Packet::Uuids110(
            V0,
            Box::new(Uuids110 {
                current: GenUuid(0x1122_3344_5566_7788),
                dirty_bits: 0,
                flags: UuidFlags::STABLE,
                node_mask: NodeMask::EMPTY,
                bitmap_uuids: vec![(1, GenUuid::NONE)],
                history: vec![GenUuid::NONE; 32],
            }),
        ),
        &OURS,
        &format!(
            "8620ec20 00000042 00000130 00000000 11223344 55667788 00000000 00000000 00000000
             00000020 00000000 00000000 00000000 00000002 00000000 00000000 | {}",
            zeros(256)
        ),
    );
    let connecting = StateWord::default()
        .with_role(Role::Secondary)
        .with_conn(8)
        .with_disk(DiskState::UpToDate)
        .with_pdsk(DiskState::DUnknown)
        .with_quorum(true);
    check(
        Packet::State(Some(V0), connecting),
        &OURS,
        "8620ec20 0000000e 00000004 00000000 0080f282",
    );
    check(
        Packet::TwoPcYes(
            None,
            TwoPcReply {
                tid: 0x1234_abcd,
                initiator: 0,
                reachable_nodes: NodeMask(3),
                primary_nodes: NodeMask::EMPTY,
                weak_nodes: NodeMask::EMPTY,
            },
        ),
        &OURS,
        "8620ec20 ffff0045 00000020 00000000
         1234abcd 00000000 00000000 00000003 00000000 00000000 00000000 00000000",
    );
    check(
        Packet::TwoPcCommit(None, TwoPc { word28: 3, ..prepare }),
        &OURS,
        "8620ec20 ffff0047 00000024 00000000 1234abcd c0000000 00000001 ffffffff fffffffc
         00000000 00000000 00000000 00000003",
    );
    // §8.2: a demoted primary says so with a packet about the connection.
    check(Packet::State(None, StateWord(2)), &OURS, "8620ec20 ffff000e 00000004 00000000 00000002");
}

#[test]
fn a_write_and_its_answers() {
    let range = SectorRange::new(2048, 8);
    let block_id = BlockId(0x0000_0001_0000_0007);
    check(
        Packet::Dagtag(Dagtag(0x1000)),
        &OURS,
        "8620ec20 ffff0030 00000008 00000000 00000000 00001000",
    );
    let flags = DataFlags::SYNC.with(DataFlags::SEND_WRITE_ACK);
    let data = Packet::Data(V0, Data { range, block_id, seq: 1, flags });
    assert_eq!(data.payload_len(), 4096);
    check(
        data,
        &OURS,
        &format!(
            "8620ec20 00000000 00001018 00000000
             00000000 00000800 00000001 00000007 00000001 00000102 | {}",
            zeros(4096)
        ),
    );
    check(
        Packet::WriteAck(V0, BlockAck { range, block_id, seq: 1 }),
        &OURS,
        "8620ec20 00000016 00000018 00000000
         00000000 00000800 00000001 00000007 00001000 00000001",
    );
    check(Packet::Barrier(1), &OURS, "8620ec20 ffff0003 00000008 00000000 00000001 00000000");
    check(Packet::BarrierAck(1, 1), &OURS, "8620ec20 ffff001c 00000008 00000000 00000001 00000001");
    check(
        Packet::PeerAck(PeerAck { mask: NodeMask(3), dagtag: Dagtag(0x1008) }),
        &OURS,
        "8620ec20 ffff0040 00000010 00000000 00000000 00000003 00000000 00001008",
    );
}

#[test]
fn a_digest_counts_in_the_length_and_not_in_the_data() {
    let agreed = Agreed { own_digest_len: 4, peer_digest_len: 4, ..OURS };
    let range = SectorRange::new(8, 8);
    let data = Data { range, block_id: BlockId(1), seq: 2, flags: DataFlags::default() };
    let packet = Packet::RsDataReply(V0, data);
    let bytes = encoded(&packet, &agreed);
    assert_eq!(bytes[8..12], 4124_u32.to_be_bytes());
    let header = decode_header(&bytes, Stream::Data, &agreed).unwrap().unwrap();
    assert_eq!((header.len(), header.fixed_len()), (4124, 24));
    assert_eq!(decode(header, &bytes[16..], &agreed), Ok(packet));
}

#[test]
fn resync_requests_before_protocol_122() {
    let range = SectorRange::new(0, 8);
    check(
        Packet::RsDataRequest(V0, BlockReq { range, block_id: BlockId::SYNCER }),
        &Agreed::new(121, 0x6f),
        "8620ec20 00000009 00000018 00000000
         00000000 00000000 ffffffff ffffffff 00001000 00000000",
    );
}

#[test]
fn compressed_bitmaps() {
    check(
        Packet::CompressedBitmap(V0, CompressedBitmap { bytes: hex("d2 97 9f 67 c1 1f b1 f6 00") }),
        &OURS,
        "8620ec20 00000024 00000009 00000000 d2 97 9f 67 c1 1f b1 f6 00",
    );
}

#[test]
fn peers_of_protocol_8() {
    check(
        Packet::Uuids(
            V0,
            Box::new(Uuids {
                current: GenUuid(0x1122_3344_5566_7788),
                bitmap: GenUuid::NONE,
                history: [GenUuid::NONE; 2],
                dirty_bits: 0,
                flags: UuidFlags::default(),
            }),
        ),
        &OLD,
        &format!("8620ec20 0000000c 00000030 00000000 11223344 55667788 {}", zeros(40)),
    );
    let connecting = StateWord::default()
        .with_role(Role::Secondary)
        .with_conn(8)
        .with_disk(DiskState::UpToDate)
        .with_pdsk(DiskState::DUnknown);
    check(
        Packet::State(Some(V0), connecting),
        &OLD,
        "8620ec20 0000000e 00000004 00000000 0000d082",
    );
    let connected =
        connecting.with_peer_role(Role::Secondary).with_conn(10).with_pdsk(DiskState::UpToDate);
    check(Packet::State(Some(V0), connected), &OLD, "8620ec20 0000000e 00000004 00000000 000110aa");
    // Packets about the connection carry volume 0, and 0xffff is understood as well.
    check(Packet::Ping, &OLD, "8620ec20 00000013 00000000 00000000");
    let ping = hex("8620ec20 ffff0013 00000000 00000000");
    assert_eq!(decode_all(&ping, Stream::Control, &OLD), Ok(Packet::Ping));
    check(
        Packet::ConnStChgReq(Operation::Disconnect(Outdates::Nobody).request()),
        &OLD,
        "8620ec20 0000002a 00000008 00000000 000001f0 00000010",
    );
    // §8.1: disks in requests are renumbered like those in states; masks are not numbers.
    check(
        Packet::StateChgReq(V0, Operation::Attach.request()),
        &OLD,
        "8620ec20 00000012 00000008 00000000 00001e00 00000600",
    );
}

#[test]
fn two_phase_commit_in_the_old_layout() {
    let agreed = Agreed::new(121, 0xf);
    let twopc = TwoPc {
        tid: 7,
        flags: 0,
        v2: false,
        initiator: 2,
        target: -1,
        nodes_to_reach: NodeMask(!4),
        word20: 0,
        word28: Operation::Demote.request().word28(),
    };
    check(
        Packet::TwoPcPrepare(None, twopc),
        &agreed,
        "8620ec20 ffff002e 00000024 00000000 00000007 00000002 ffffffff ffffffff fffffffb
         00000000 00000000 00000003 00000002",
    );
    // The layout is the connection's, whatever the request came in.
    let forwarded = TwoPc { v2: true, flags: TWOPC_V2, ..twopc };
    assert_eq!(
        encoded(&Packet::TwoPcPrepare(None, forwarded), &agreed),
        encoded(&Packet::TwoPcPrepare(None, twopc), &agreed)
    );
}

#[test]
fn headers_before_protocol_100() {
    let agreed = Agreed::new(94, 0);
    check(Packet::Ping, &agreed, "83740267 00130000");
    let small = Agreed::new(97, 0);
    check(Packet::Ping, &small, "83740267 00130000");
    let data = |sectors| {
        let range = SectorRange::new(0, sectors);
        Packet::Data(V0, Data { range, block_id: BlockId(1), seq: 1, flags: DataFlags::SYNC })
    };
    // 32 KiB with everything is the last packet with the old header.
    assert_eq!(encoded(&data(63), &small)[..8], hex("83740267 00007e18"));
    assert_eq!(encoded(&data(64), &small)[..8], hex("835a0000 00008018"));
    for sectors in [63, 64] {
        let mut bytes = encoded(&data(sectors), &small);
        bytes.resize(bytes.len() + 512 * sectors as usize, 0);
        assert_eq!(decode_all(&bytes, Stream::Data, &small), Ok(data(sectors)));
    }
}
