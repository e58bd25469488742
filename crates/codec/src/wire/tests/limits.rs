//! What is refused: lengths, streams, versions, values.

use super::samples::one_of_each;
use super::*;
use vocab::{GenUuid, NodeMask, SectorRange, VolumeNr};

const V0: VolumeNr = VolumeNr(0);

/// The bytes of `packet` with zeros for its data.
fn whole(packet: &Packet, agreed: &Agreed) -> Vec<u8> {
    let mut bytes = encoded(packet, agreed);
    bytes.resize(bytes.len() + agreed.own_digest_len + packet.payload_len(), 0);
    bytes
}

/// The packet cut or extended to `len` payload bytes, with the header saying so.
fn resized(bytes: &[u8], head: usize, len: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(head + len, 0);
    match head {
        8 => bytes[6..8].copy_from_slice(&(len as u16).to_be_bytes()),
        _ => bytes[8..12].copy_from_slice(&(len as u32).to_be_bytes()),
    }
    bytes
}

/// Refusal of `bytes` on the stream of `packet`.
fn refusal(bytes: &[u8], stream: Stream, agreed: &Agreed) -> WireError {
    decode_all(bytes, stream, agreed).expect_err("this must be refused")
}

fn rule(error: WireError) -> Rule {
    match error {
        WireError::Field { rule, .. } => rule,
        other => panic!("a field is wrong, not {other:?}"),
    }
}

#[test]
fn every_packet_comes_back_as_it_was() {
    for (packet, agreed) in one_of_each() {
        let bytes = whole(&packet, &agreed);
        assert_eq!(decode_all(&bytes, packet.stream(), &agreed), Ok(packet));
    }
}

#[test]
fn fixed_layouts_have_one_length() {
    for (packet, agreed) in one_of_each() {
        let (command, stream) = (packet.command(), packet.stream());
        let bytes = whole(&packet, &agreed);
        let header = decode_header(&bytes, stream, &agreed).unwrap().unwrap();
        let (min, max) = command.lengths(header.version(), &agreed, 0);
        for len in 0..header.fixed_len() + 40 {
            if len == header.len() as usize {
                continue;
            }
            let result = decode_all(&resized(&bytes, header.size(), len), stream, &agreed);
            // Where the length varies it is enough that nothing panics.
            if min == max || len < min as usize {
                let refused = matches!(result, Err(WireError::Length { .. }));
                assert!(refused, "{command} with {len} bytes: {result:?}");
            }
        }
        let too_long = resized(&bytes, header.size(), max as usize + 1);
        assert!(matches!(refusal(&too_long, stream, &agreed), WireError::Length { .. }));
    }
}

#[test]
fn a_payload_of_another_length_than_announced_is_refused() {
    for (packet, agreed) in one_of_each() {
        let bytes = whole(&packet, &agreed);
        let header = decode_header(&bytes, packet.stream(), &agreed).unwrap().unwrap();
        let body = &bytes[header.size()..][..header.fixed_len()];
        for len in 0..body.len() {
            let result = decode(header, &body[..len], &agreed);
            assert!(matches!(result, Err(WireError::Length { .. })), "{result:?}");
        }
        let longer = [body, &[0]].concat();
        assert!(matches!(decode(header, &longer, &agreed), Err(WireError::Length { .. })));
    }
}

#[test]
fn huge_lengths_are_refused_before_anything_is_received() {
    for command in Command::ALL {
        let stream =
            if command.streams().contains(Stream::Data) { Stream::Data } else { Stream::Control };
        for agreed in [LATEST, OURS, OLD] {
            let mut head = hex("8620ec20 0000 0000 ffffffff 00000000");
            head[6..8].copy_from_slice(&command.number().to_be_bytes());
            assert!(decode_header(&head, stream, &agreed).is_err(), "{command}");
        }
    }
}

#[test]
fn a_header_needs_all_of_its_bytes() {
    for text in ["83740267 00130000", "835a0013 00000000", "8620ec20 ffff0013 00000000 00000000"] {
        let head = hex(text);
        let agreed = if head[..2] == [0x83, 0x5a] { Agreed::new(97, 0) } else { OURS };
        for len in 0..head.len() {
            assert_eq!(decode_header(&head[..len], Stream::Control, &agreed), Ok(None));
        }
        let header = decode_header(&head, Stream::Control, &agreed).unwrap().unwrap();
        assert_eq!((header.size(), header.is_empty()), (head.len(), true));
    }
}

#[test]
fn a_stream_carries_the_header_version_that_is_agreed() {
    let (v80, v95) = (hex("83740267 00070000"), hex("835a0007 00000000"));
    let v100 = hex("8620ec20 ffff0007 00000000 00000000");
    let (v80_ping, v100_ping) = (hex("83740267 00130000"), hex("8620ec20 ffff0013"));
    let v100_ping = [v100_ping, vec![0; 8]].concat();
    let ok = |bytes: &[u8], stream, version| match decode_header(
        bytes,
        stream,
        &Agreed::new(version, 0),
    ) {
        Ok(header) => header.is_some(),
        Err(WireError::HeaderVersion { .. }) => false,
        Err(other) => panic!("{other:?}"),
    };
    let versions = [90, 97, 100, 122];
    assert_eq!(versions.map(|v| ok(&v80, Stream::Data, v)), [true, true, false, false]);
    assert_eq!(versions.map(|v| ok(&v95, Stream::Data, v)), [false, true, false, false]);
    assert_eq!(versions.map(|v| ok(&v100, Stream::Data, v)), [false, false, true, true]);
    // wire §2: the control stream may run ahead of the features, or behind them.
    assert!(ok(&v100_ping, Stream::Control, 0) && ok(&v80_ping, Stream::Control, 0));
    assert!(ok(&v80_ping, Stream::Control, 122) && !ok(&v100_ping, Stream::Control, 97));
    let late_ack = hex("83740267 00160018");
    assert!(!ok(&late_ack, Stream::Control, 122) && ok(&late_ack, Stream::Control, 90));
    let early = decode_header(&v100, Stream::Data, &Agreed::NOTHING);
    assert!(matches!(early, Err(WireError::HeaderVersion { agreed: 0, .. })));
    let greeting = hex("8620ec20 fffffff1 00000000 00000000");
    assert!(
        !ok(&greeting, Stream::Control, 0) && ok(&hex("83740267 fff10000"), Stream::Control, 0)
    );
}

#[test]
fn garbage_is_no_header() {
    let padded = hex("8620ec20 ffff0013 00000000 00000001");
    assert_eq!(decode_header(&padded, Stream::Control, &OURS), Err(WireError::HeaderPad(1)));
    let magic = decode_header(&[1, 2, 3, 4], Stream::Data, &OURS);
    assert_eq!(magic, Err(WireError::Magic([1, 2, 3, 4])));
    let dead = hex("8620ec20 00000034 00000000 00000000");
    let error = WireError::UnknownCommand { stream: Stream::Data, number: 0x34 };
    assert_eq!(decode_header(&dead, Stream::Data, &OURS), Err(error));
}

#[test]
fn a_packet_on_the_wrong_stream_is_refused() {
    for (packet, agreed) in one_of_each() {
        let bytes = whole(&packet, &agreed);
        let (command, other) = match packet.stream() {
            Stream::Data => (packet.command(), Stream::Control),
            Stream::Control => (packet.command(), Stream::Data),
        };
        if command != Command::DelayProbe {
            let error = WireError::WrongStream { command, stream: other };
            assert_eq!(decode_header(&bytes, other, &agreed), Err(error));
        }
    }
}

#[test]
fn what_is_not_agreed_is_refused() {
    let request = hex("8620ec20 0000004c 00000020 00000000");
    for agreed in [OLD, Agreed::new(121, 0xf), Agreed::new(122, 0)] {
        let error = decode_header(&request, Stream::Data, &agreed);
        assert!(matches!(error, Err(WireError::NotAgreed { command: Command::RsDagtagReq, .. })));
    }
    let features = hex("83740267 fffe0048");
    assert!(decode_header(&features, Stream::Data, &Agreed::NOTHING).unwrap().is_some());
    assert!(decode_header(&features, Stream::Data, &Agreed::new(90, 0)).is_err());
}

#[test]
fn packets_about_a_volume_name_one() {
    let write_ack = hex("8620ec20 ffff0016 00000018 00000000");
    let error = WireError::NoVolume(Command::WriteAck);
    assert_eq!(decode_header(&write_ack, Stream::Control, &OURS), Err(error));
    // A state may be that of the whole connection, but not below protocol 110.
    let state = hex("8620ec20 ffff000e 00000004 00000000 00092003");
    let header = decode_header(&state, Stream::Data, &OURS).unwrap().unwrap();
    assert_eq!(header.volume(), None);
    let error = WireError::NoVolume(Command::State);
    assert_eq!(decode_header(&state, Stream::Data, &Agreed::new(101, 0xf)), Err(error));
}

/// A block request for `size` bytes at `sector`.
fn request(sector: u64, size: u32) -> Vec<u8> {
    let range = SectorRange::new(0, 8);
    let mut bytes =
        encoded(&Packet::DataRequest(V0, BlockReq { range, block_id: BlockId(1) }), &OURS);
    bytes[16..24].copy_from_slice(&sector.to_be_bytes());
    bytes[32..36].copy_from_slice(&size.to_be_bytes());
    bytes
}

#[test]
fn ranges_are_checked_as_far_as_the_device_is_unknown() {
    let refuse = |sector, size| rule(refusal(&request(sector, size), Stream::Data, &OURS));
    assert!(decode_all(&request(0, 1 << 20), Stream::Data, &OURS).is_ok());
    assert_eq!(refuse(0, 0), Rule::SizeNotZero);
    assert_eq!(refuse(0, 513), Rule::SizeInSectors);
    assert_eq!(refuse(0, (1 << 20) + 512), Rule::SizeLimit);
    assert_eq!(refuse(u64::MAX, 512), Rule::RangeCountable);
    assert_eq!(refuse(1 << 55, 512), Rule::RangeCountable);
    let last = decode_all(&request((1 << 55) - 2, 512), Stream::Data, &OURS);
    let Ok(Packet::DataRequest(_, req)) = last else { panic!("{last:?}") };
    assert_eq!(req.range.start.byte(), u64::MAX - 1023);
}

#[test]
fn data_is_limited_by_the_version_and_discards_by_a_feature() {
    let data = |version, len: u32| {
        let mut head = hex("8620ec20 00000000 00000000 00000000");
        head[8..12].copy_from_slice(&(24 + len).to_be_bytes());
        decode_header(&head, Stream::Data, &Agreed::new(version, 0)).is_ok()
    };
    assert!(data(122, 1 << 20) && !data(122, (1 << 20) + 512) && !data(122, 0));
    assert!(data(122, 512) && !data(122, 511));
    let trim = |features: u32, mib: u64| {
        let range = SectorRange::new(0, 2048 * mib);
        let trim = Trim { range, block_id: BlockId(1), seq: 1, flags: DataFlags::DISCARD };
        let large = Agreed::new(122, feature::TRIM | feature::WSAME);
        let bytes = encoded(&Packet::Trim(V0, trim), &large);
        decode_all(&bytes, Stream::Data, &Agreed::new(122, features)).is_ok()
    };
    let wsame = feature::TRIM | feature::WSAME;
    assert!(trim(feature::TRIM, 4) && !trim(feature::TRIM, 5) && trim(wsame, 128));
}

#[test]
fn data_that_is_no_whole_number_of_sectors_is_refused() {
    let mut bytes = hex("8620ec20 00000000 00000000 00000000");
    bytes.resize(16 + 24 + 1000, 0);
    bytes[8..12].copy_from_slice(&1024_u32.to_be_bytes());
    assert_eq!(rule(refusal(&bytes, Stream::Data, &OURS)), Rule::SizeInSectors);
    // The same bytes are fine where a digest takes the odd part.
    let digest = Agreed { peer_digest_len: 1000 - 512, ..OURS };
    assert!(decode_all(&bytes, Stream::Data, &digest).is_ok());
}

#[test]
fn write_same_is_refused() {
    for (packet, flags_at) in [
        (Packet::Data(V0, sample_data()), 36),
        (
            Packet::Trim(
                V0,
                Trim {
                    range: SectorRange::new(0, 8),
                    block_id: BlockId(1),
                    seq: 1,
                    flags: DataFlags::DISCARD,
                },
            ),
            36,
        ),
    ] {
        let mut bytes = whole(&packet, &OURS);
        bytes[flags_at + 2] |= 2;
        assert_eq!(rule(refusal(&bytes, Stream::Data, &OURS)), Rule::NoWriteSame);
    }
}

fn sample_data() -> Data {
    let range = SectorRange::new(0, 8);
    Data { range, block_id: BlockId(1), seq: 1, flags: DataFlags::SYNC }
}

#[test]
fn undefined_states_are_refused_in_either_numbering() {
    let state = |word: u32, agreed: &Agreed| {
        let mut bytes = hex("8620ec20 0000000e 00000004 00000000");
        bytes.extend(word.to_be_bytes());
        decode_all(&bytes, Stream::Data, agreed).map_err(rule)
    };
    for bad in [3, 3 << 2, 24 << 4, 10 << 9, 15 << 13] {
        assert_eq!(state(bad, &OURS), Err(Rule::StateDefined));
        assert_eq!(state(bad, &OLD), Err(Rule::StateDefined));
    }
    assert!(state(9 << 9, &OURS).is_ok());
    assert_eq!(state(9 << 9, &OLD), Err(Rule::StateDefined));
}

#[test]
fn uuid_lists_have_as_many_as_their_masks_say() {
    let uuids = Uuids110 {
        current: GenUuid(8),
        dirty_bits: 0,
        flags: UuidFlags::default(),
        node_mask: NodeMask::EMPTY,
        bitmap_uuids: vec![(0, GenUuid(2)), (1, GenUuid(3))],
        history: vec![],
    };
    let bytes = encoded(&Packet::Uuids110(V0, Box::new(uuids)), &OURS);
    let with = |len: usize, slots: u64| {
        let mut bytes = resized(&bytes, 16, len);
        bytes[48..56].copy_from_slice(&slots.to_be_bytes());
        decode_all(&bytes, Stream::Data, &OURS).map_err(rule)
    };
    assert!(with(56, 3).is_ok() && with(40, 0).is_ok() && with(40 + 8 * 34, 3).is_ok());
    assert_eq!(with(48, 3), Err(Rule::UuidCount));
    assert_eq!(with(40 + 8 * 35, 3), Err(Rule::UuidCount));
    assert_eq!(with(60, 3), Err(Rule::WholeWords));
    assert_eq!(with(56, 1 << 32), Err(Rule::NodeIds));
}

#[test]
fn names_end_within_their_field() {
    let mut bytes = hex("8620ec20 00000023 00000094 00000000");
    bytes.resize(16 + 148, 0);
    bytes[20..84].fill(b'a');
    assert_eq!(rule(refusal(&bytes, Stream::Data, &OURS)), Rule::NameTerminated);
    // What follows the NUL is padding.
    bytes[30] = 0;
    let Ok(Packet::SyncParam(_, param)) = decode_all(&bytes, Stream::Data, &OURS) else { panic!() };
    assert_eq!(param.verify_alg, b"aaaaaaaaaa");
    let mut protocol = hex("8620ec20 ffff000b 00000019 00000000");
    protocol.resize(16 + 24, 0);
    protocol.push(b'x');
    assert_eq!(rule(refusal(&protocol, Stream::Data, &OURS)), Rule::NameTerminated);
}

#[test]
fn the_layout_of_a_two_phase_commit_is_the_agreed_one() {
    let v2 = hex("8620ec20 ffff002e 00000024 00000000 1234abcd c0000000 00000001 ffffffff fffffffc
         00000000 00000000 000001f3 00000092");
    assert!(decode_all(&v2, Stream::Data, &OURS).is_ok());
    let old = Agreed::new(121, 0xf);
    assert_eq!(rule(refusal(&v2, Stream::Data, &old)), Rule::TwoPcLayout);
    let mut v1 = v2.clone();
    v1[20..24].fill(0);
    assert!(decode_all(&v1, Stream::Data, &old).is_ok());
    assert_eq!(rule(refusal(&v1, Stream::Data, &OURS)), Rule::TwoPcLayout);
}

#[test]
fn other_bitmap_encodings_are_refused() {
    let compressed = hex("8620ec20 00000024 00000002 00000000 3307");
    assert_eq!(rule(refusal(&compressed, Stream::Data, &OURS)), Rule::BitmapEncoding);
    let plain = hex("8620ec20 00000004 00000004 00000000 00000000");
    assert_eq!(rule(refusal(&plain, Stream::Data, &OURS)), Rule::WholeWords);
}

#[test]
#[should_panic(expected = "P_FLUSH_REQUESTS is sent only where it is agreed")]
fn a_packet_that_is_not_agreed_is_never_sent() {
    encoded(&Packet::FlushRequests(1), &OURS);
}

#[test]
#[should_panic(expected = "a kernel node gets no P_ZEROES with data integrity")]
fn zeroes_are_never_sent_to_a_kernel_node_with_data_integrity() {
    let kernel = Agreed::new(OURS.version, OURS.features & !feature::BITS_OF_EQUALS);
    let agreed = Agreed { own_digest_len: 4, ..kernel };
    let flags = DataFlags::ZEROES;
    let trim = Trim { range: SectorRange::new(0, 8), block_id: BlockId(1), seq: 1, flags };
    encoded(&Packet::Zeroes(V0, trim), &agreed);
}

#[test]
fn refusals_say_what_is_wrong() {
    let text = |error: WireError| error.to_string();
    assert_eq!(
        text(WireError::WrongStream { command: Command::PeerAck, stream: Stream::Data }),
        "P_PEER_ACK on the data stream"
    );
    assert_eq!(
        text(refusal(&request(0, 513), Stream::Data, &OURS)),
        "P_DATA_REQUEST is refused: its size is no multiple of 512 bytes (0x201)"
    );
    assert_eq!(
        text(WireError::Length { command: Command::Barrier, len: 9, allowed: (8, 8) }),
        "P_BARRIER has 9 bytes instead of 8"
    );
}
