//! Golden bytes written out by hand from the protocol document, every truncation, round trips.

use super::option::*;
use super::transfer::*;
use super::*;

/// Bytes from hexadecimal digits; blanks are for the reader.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    assert!(digits.len().is_multiple_of(2));
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn encoded(reply: &OptionReply<'_>, number: u32) -> Vec<u8> {
    let mut out = Vec::new();
    reply.encode(number, &mut out);
    out
}

fn chunk(chunk: &Chunk<'_>, done: bool) -> Vec<u8> {
    let mut out = Vec::new();
    chunk.encode(Asked::compact(0x0102_0304_0506_0708), done, &mut out);
    out
}

#[test]
fn the_greeting_is_both_magics_and_the_handshake_flags() {
    assert_eq!(greeting().to_vec(), hex("4e42444d41474943 49484156454f5054 0003"));
    assert_eq!(&greeting()[..16], b"NBDMAGICIHAVEOPT");
}

#[test]
fn client_flags_that_were_not_offered_are_refused() {
    let flags = |bits: u32| ClientFlags::decode(bits.to_be_bytes());
    assert_eq!(flags(0), Some(ClientFlags { fixed_newstyle: false, no_zeroes: false }));
    assert_eq!(flags(3), Some(ClientFlags { fixed_newstyle: true, no_zeroes: true }));
    assert_eq!((flags(4), flags(1 << 31), flags(1 << 16)), (None, None, None));
}

#[test]
fn option_headers_round_trip_and_need_their_magic() {
    let bytes = hex("49484156454f5054 00000007 00000006");
    let header = OptionHeader::decode(bytes[..].try_into().unwrap()).unwrap();
    assert_eq!(header, OptionHeader { number: number::GO, len: 6 });
    assert_eq!(header.encode().to_vec(), bytes);
    let mut bad = header.encode();
    bad[7] ^= 1;
    assert_eq!(OptionHeader::decode(&bad), None);
}

#[test]
fn the_data_of_go_is_name_and_information_requests() {
    let data = hex("00000003 723030 0003 0003 0001 00ff");
    let Ok(ClientOption::Go(query)) = ClientOption::decode(number::GO, &data) else { panic!() };
    assert_eq!(query.name, "r00");
    assert!(query.wants_block_size && query.wants_name && !query.wants_description);
    for len in 0..data.len() {
        let error = ClientOption::decode(number::INFO, &data[..len]).unwrap_err();
        assert_eq!(error.reply, ReplyType::ErrInvalid, "cut to {len}");
    }
    let longer = [&data[..], &[0]].concat();
    assert!(ClientOption::decode(number::GO, &longer).is_err());
    let lying = hex("ffffffff 723030 0000");
    assert!(ClientOption::decode(number::GO, &lying).is_err());
}

#[test]
fn the_data_of_metadata_options_is_name_and_queries() {
    let data = [
        &hex("00000001 72 00000003 0000000f")[..],
        b"base:allocation",
        &hex("00000005"),
        b"qemu:",
        &hex("00000003"),
        b"x-y",
    ]
    .concat();
    let named = Contexts { allocation: true, ..Contexts::NONE };
    let wild = Contexts { out_of_sync: true, ..Contexts::NONE };
    let want = MetaQuery { name: "r", queries: 3, named, wild };
    let decoded = ClientOption::decode(number::SET_META_CONTEXT, &data);
    assert_eq!(decoded, Ok(ClientOption::SetMetaContext(want)));
    for len in 0..data.len() {
        assert!(ClientOption::decode(number::LIST_META_CONTEXT, &data[..len]).is_err());
    }
    let many = hex("00000000 ffffffff 00000000");
    assert!(ClientOption::decode(number::LIST_META_CONTEXT, &many).is_err());
}

#[test]
fn names_are_utf8_without_nul_and_limited() {
    let longest = vec![b'a'; MAX_NAME_LEN];
    assert!(ClientOption::decode(number::EXPORT_NAME, &longest).is_ok());
    let longer = vec![b'a'; MAX_NAME_LEN + 1];
    let error = ClientOption::decode(number::EXPORT_NAME, &longer).unwrap_err();
    assert_eq!(error.reply, ReplyType::ErrTooBig);
    for bad in [&b"a\0"[..], b"\xff\xfe", b"\xc3"] {
        let error = ClientOption::decode(number::EXPORT_NAME, bad).unwrap_err();
        assert_eq!(error.reply, ReplyType::ErrInvalid);
    }
}

#[test]
fn options_without_data_refuse_data_and_abort_ignores_it() {
    let without =
        [number::LIST, number::STARTTLS, number::STRUCTURED_REPLY, number::EXTENDED_HEADERS];
    for number in without {
        assert!(ClientOption::decode(number, b"").is_ok());
        assert_eq!(ClientOption::decode(number, b"x").unwrap_err().reply, ReplyType::ErrInvalid);
    }
    assert_eq!(ClientOption::decode(number::ABORT, b"bye"), Ok(ClientOption::Abort));
    for number in [0, number::PEEK_EXPORT, 12, u32::MAX] {
        assert_eq!(ClientOption::decode(number, b"any"), Ok(ClientOption::Unsupported));
    }
}

#[test]
fn option_replies_have_the_documented_bytes() {
    let head = "0003e889045565a9";
    let cases: [(OptionReply<'_>, u32, &str); 8] = [
        (OptionReply::Ack, 2, "00000002 00000001 00000000"),
        (
            OptionReply::Server { name: "r0", description: "db" },
            3,
            "00000003 00000002 00000008 00000002 7230 6462",
        ),
        (
            OptionReply::Info(Info::Export {
                size: 0x1_0000_0000,
                flags: TransmissionFlags::HAS_FLAGS.with(TransmissionFlags::SEND_TRIM),
            }),
            7,
            "00000007 00000003 0000000c 0000 0000000100000000 0021",
        ),
        (OptionReply::Info(Info::Name("r0")), 6, "00000006 00000003 00000004 0001 7230"),
        (OptionReply::Info(Info::Description("")), 6, "00000006 00000003 00000002 0002"),
        (
            OptionReply::Info(Info::BlockSize { minimum: 512, preferred: 4096, maximum: 1 << 25 }),
            7,
            "00000007 00000003 0000000e 0003 00000200 00001000 02000000",
        ),
        (
            OptionReply::MetaContext { id: 1, name: "base:a" },
            10,
            "0000000a 00000004 0000000a 00000001 626173653a61",
        ),
        (OptionReply::Error(ReplyType::ErrPolicy, "no"), 5, "00000005 80000002 00000002 6e6f"),
    ];
    for (reply, number, bytes) in cases {
        assert_eq!(encoded(&reply, number), hex(&format!("{head}{bytes}")), "{reply:?}");
    }
}

#[test]
fn reply_numbers_are_those_of_the_document() {
    use ReplyType::*;
    let numbers = [
        (Ack, 1),
        (Server, 2),
        (Info, 3),
        (MetaContext, 4),
        (ErrUnsup, 0x8000_0001),
        (ErrPolicy, 0x8000_0002),
        (ErrInvalid, 0x8000_0003),
        (ErrPlatform, 0x8000_0004),
        (ErrTlsReqd, 0x8000_0005),
        (ErrUnknown, 0x8000_0006),
        (ErrShutdown, 0x8000_0007),
        (ErrBlockSizeReqd, 0x8000_0008),
        (ErrTooBig, 0x8000_0009),
    ];
    for (reply, number) in numbers {
        assert_eq!(reply.number(), number, "{reply:?}");
    }
    let errors: Vec<u32> = ErrorCode::ALL.iter().map(|e| e.number()).collect();
    assert_eq!(errors, [1, 5, 12, 22, 28, 75, 95, 108]);
}

#[test]
fn long_texts_are_cut_at_a_character() {
    let text = format!("{}{}", "a".repeat(MAX_NAME_LEN - 1), "é".repeat(9));
    let bytes = encoded(&OptionReply::Error(ReplyType::ErrPolicy, &text), 7);
    assert_eq!(bytes.len(), 20 + MAX_NAME_LEN - 1);
    let bytes = chunk(&Chunk::Error { error: ErrorCode::Io, text: &text }, true);
    assert_eq!(bytes.len(), CHUNK_HEADER_LEN + 6 + MAX_NAME_LEN - 1);
}

#[test]
fn the_reply_to_export_name_may_be_padded() {
    let mut out = Vec::new();
    export_name_reply(1 << 20, TransmissionFlags::HAS_FLAGS, false, &mut out);
    assert_eq!(out, hex("0000000000100000 0001"));
    out.clear();
    export_name_reply(1 << 20, TransmissionFlags::HAS_FLAGS, true, &mut out);
    assert_eq!((out.len(), out[10..].iter().all(|b| *b == 0)), (134, true));
}

#[test]
fn requests_round_trip_and_need_their_magic() {
    let bytes = hex("25609513 0001 0001 1122334455667788 0000000000001000 00000200");
    let request = RequestHeader::decode(bytes[..].try_into().unwrap()).unwrap();
    let want = RequestHeader {
        flags: CommandFlags::FUA,
        command: Command::Write,
        cookie: 0x1122_3344_5566_7788,
        offset: 4096,
        len: 512,
    };
    assert_eq!(request, want);
    assert_eq!(request.encode().to_vec(), bytes);
    for at in 0..4 {
        let mut bad = request.encode();
        bad[at] ^= 0x80;
        assert_eq!(RequestHeader::decode(&bad), None);
    }
    for number in 0..=u16::MAX {
        assert_eq!(Command::from_number(number).number(), number);
    }
}

#[test]
fn simple_replies_round_trip() {
    let reply = SimpleReply { error: 28, cookie: 0xa1a2_a3a4_a5a6_a7a8 };
    assert_eq!(reply.encode().to_vec(), hex("67446698 0000001c a1a2a3a4a5a6a7a8"));
    assert_eq!(SimpleReply::decode(&reply.encode()), Some(reply));
    assert_eq!(SimpleReply::decode(&[0; 16]), None);
}

#[test]
fn chunks_have_the_documented_bytes() {
    let cookie = "0102030405060708";
    let extents = [Extent { len: 4096, flags: 0 }, Extent { len: 8192, flags: 3 }];
    let cases: [(Chunk<'_>, bool, &str, &str); 6] = [
        (Chunk::None, true, "0001 0000", "00000000"),
        (
            Chunk::OffsetData { offset: 512, len: 1024 },
            false,
            "0000 0001",
            "00000408 0000000000000200",
        ),
        (
            Chunk::OffsetHole { offset: 512, len: 1024 },
            true,
            "0001 0002",
            "0000000c 0000000000000200 00000400",
        ),
        (
            Chunk::BlockStatus { context: 1, extents: &extents },
            true,
            "0001 0005",
            "00000014 00000001 00001000 00000000 00002000 00000003",
        ),
        (
            Chunk::Error { error: ErrorCode::Io, text: "ab" },
            true,
            "0001 8001",
            "00000008 00000005 0002 6162",
        ),
        (
            Chunk::ErrorOffset { error: ErrorCode::Inval, text: "a", offset: 7 },
            true,
            "0001 8002",
            "0000000f 00000016 0001 61 0000000000000007",
        ),
    ];
    for (value, done, head, rest) in cases {
        let bytes = chunk(&value, done);
        assert_eq!(bytes, hex(&format!("668e33ef {head} {cookie} {rest}")), "{value:?}");
        let header = ChunkHeader::decode(bytes[..CHUNK_HEADER_LEN].try_into().unwrap()).unwrap();
        assert_eq!((header.done, header.cookie), (done, 0x0102_0304_0506_0708));
        let data = if let Chunk::OffsetData { len, .. } = value { len as usize } else { 0 };
        assert_eq!(header.len as usize, bytes.len() + data - CHUNK_HEADER_LEN);
    }
}

/// The same chunks in answer to an extended request at 0x300; only block status has other content.
#[test]
fn extended_chunks_have_the_documented_bytes() {
    let extents = [Extent { len: 4096, flags: 0 }, Extent { len: 8192, flags: 3 }];
    let asked = Asked { cookie: 0x0102_0304_0506_0708, extended: Some(0x300) };
    let cases: [(Chunk<'_>, bool, &str, &str); 5] = [
        (Chunk::None, true, "0001 0000", "0000000000000000"),
        (
            Chunk::OffsetData { offset: 512, len: 1024 },
            false,
            "0000 0001",
            "0000000000000408 0000000000000200",
        ),
        (
            Chunk::OffsetHole { offset: 512, len: 1024 },
            true,
            "0001 0002",
            "000000000000000c 0000000000000200 00000400",
        ),
        (
            Chunk::BlockStatus { context: 1, extents: &extents },
            true,
            "0001 0006",
            "0000000000000028 00000001 00000002 \
             0000000000001000 0000000000000000 0000000000002000 0000000000000003",
        ),
        (
            Chunk::ErrorOffset { error: ErrorCode::Inval, text: "a", offset: 7 },
            true,
            "0001 8002",
            "000000000000000f 00000016 0001 61 0000000000000007",
        ),
    ];
    for (value, done, head, rest) in cases {
        let mut bytes = Vec::new();
        value.encode(asked, done, &mut bytes);
        let want = format!("6e8a278c {head} 0102030405060708 0000000000000300 {rest}");
        assert_eq!(bytes, hex(&want), "{value:?}");
    }
}

#[test]
fn each_command_has_only_its_own_flags() {
    let all = CommandFlags(0xffff);
    assert_eq!(Command::Read.valid_flags().0, 0b101);
    assert_eq!(Command::Write.valid_flags().0, 0b1);
    assert_eq!(Command::WriteZeroes.valid_flags().0, 0b1_0011);
    assert_eq!(Command::BlockStatus.valid_flags().0, 0b1001);
    assert_eq!(all.without(Command::Flush.valid_flags()).0, 0xfffe);
}
