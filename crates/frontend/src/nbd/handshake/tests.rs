//! Scripted negotiations, byte for byte, and hostile ones.

use runtime::{MemoryTarget, Target, TargetInfo};
use vocab::Bytes;

use super::*;
use crate::nbd::proto::tests::hex;

struct Exports;

impl Catalogue for Exports {
    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        each("r0", "database");
        each("r1", "");
    }

    fn knows(&self, name: &str) -> bool {
        ["r0", "r1"].contains(&name)
    }
}

fn target() -> TargetInfo {
    MemoryTarget::new(Bytes(1 << 20)).info()
}

fn export(target: TargetInfo) -> ExportInfo<'static> {
    ExportInfo { name: "r0", description: "database", target, read_only: false }
}

fn opt(number: u32, data: &[u8]) -> Vec<u8> {
    let header = OptionHeader { number, len: data.len() as u32 };
    [&header.encode()[..], data].concat()
}

fn query(name: &str, items: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(items.len() as u16).to_be_bytes());
    items.iter().for_each(|item| data.extend_from_slice(&item.to_be_bytes()));
    data
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend_from_slice(&(query.len() as u32).to_be_bytes());
        data.extend_from_slice(query.as_bytes());
    }
    data
}

/// A negotiation that has received its client flags.
fn begun(flags: u32) -> Handshake {
    let mut handshake = Handshake::new();
    let mut out = Vec::new();
    let got = handshake.receive(&flags.to_be_bytes(), &Exports, &mut out);
    assert_eq!(got, Ok((4, None)));
    assert!(out.is_empty());
    handshake
}

/// Feeds everything at once; the event must come last.
fn feed(handshake: &mut Handshake, input: &[u8]) -> (Option<Event>, Vec<u8>) {
    let mut out = Vec::new();
    let (used, event) = handshake.receive(input, &Exports, &mut out).unwrap();
    assert_eq!(used, input.len());
    (event, out)
}

/// The types of the replies in `out`, and the last one's data.
fn replies(mut out: &[u8]) -> (Vec<u32>, Vec<u8>) {
    let mut types = Vec::new();
    let mut last = Vec::new();
    while !out.is_empty() {
        assert_eq!(out[..8], hex("0003e889045565a9"));
        types.push(u32::from_be_bytes(out[12..16].try_into().unwrap()));
        let len = u32::from_be_bytes(out[16..20].try_into().unwrap()) as usize;
        last = out[20..20 + len].to_vec();
        out = &out[20 + len..];
    }
    (types, last)
}

#[test]
fn go_is_answered_with_size_flags_and_block_sizes() {
    let mut handshake = begun(3);
    let (event, out) = feed(&mut handshake, &opt(option::number::STRUCTURED_REPLY, b""));
    assert_eq!((event, out), (None, hex("0003e889045565a9 00000008 00000001 00000000")));
    let (event, out) = feed(&mut handshake, &opt(option::number::GO, &query("r0", &[1, 2, 3])));
    assert_eq!(event, Some(Event::Open { name: "r0".into() }));
    assert!(out.is_empty() && handshake.is_opening());
    let mut out = Vec::new();
    let session = handshake.accept(&export(target()), &mut out);
    let head = "0003e889045565a9 00000007";
    let want = [
        // HAS_FLAGS, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES, SEND_DF, CAN_MULTI_CONN.
        hex(&format!("{head} 00000003 0000000c 0000 0000000000100000 01ed")),
        hex(&format!("{head} 00000003 0000000e 0003 00000200 00001000 02000000")),
        hex(&format!("{head} 00000003 00000004 0001 7230")),
        hex(&format!("{head} 00000003 0000000a 0002 6461746162617365")),
        hex(&format!("{head} 00000001 00000000")),
    ];
    assert_eq!(out, want.concat());
    assert_eq!(session.in_flight(), 0);
}

#[test]
fn flags_follow_target_and_export() {
    let bare = TargetInfo {
        can_trim: false,
        can_zero: false,
        can_flush: false,
        can_fua: false,
        multi_conn: false,
        rotational: true,
        ..target()
    };
    let cases = [
        (export(bare), false, 0x0011),
        (export(target()), false, 0x016d),
        (ExportInfo { read_only: true, ..export(target()) }, false, 0x010f),
        (export(TargetInfo { read_only: true, ..target() }), true, 0x018f),
    ];
    for (export, structured, want) in cases {
        let mut handshake = begun(3);
        handshake.structured = structured;
        assert_eq!(handshake.transmission_flags(&export).0, want, "{export:?}");
    }
}

#[test]
fn info_leaves_the_negotiation_open_and_agrees_with_go() {
    let mut handshake = begun(3);
    let (event, _) = feed(&mut handshake, &opt(option::number::INFO, &query("r0", &[])));
    assert_eq!(event, Some(Event::Describe { name: "r0".into() }));
    let mut described = Vec::new();
    handshake.describe(&export(target()), &mut described);
    let (event, _) = feed(&mut handshake, &opt(option::number::GO, &query("r0", &[])));
    assert_eq!(event, Some(Event::Open { name: "r0".into() }));
    let mut opened = Vec::new();
    handshake.accept(&export(target()), &mut opened);
    // Bytes 8..12 of each reply repeat the option's number.
    assert_eq!(described.len(), opened.len());
    assert_eq!(replies(&described), replies(&opened));
}

#[test]
fn export_name_is_answered_bare_and_padded_for_old_clients() {
    for (flags, len) in [(1, 134), (3, 10)] {
        let mut handshake = begun(flags);
        let (event, _) = feed(&mut handshake, &opt(option::number::EXPORT_NAME, b"r1"));
        assert_eq!(event, Some(Event::Open { name: "r1".into() }));
        let mut out = Vec::new();
        handshake.accept(&export(target()), &mut out);
        assert_eq!((out.len(), &out[..10]), (len, &hex("0000000000100000 016d")[..]));
    }
}

#[test]
fn list_names_every_export() {
    let (event, out) = feed(&mut begun(3), &opt(option::number::LIST, b""));
    assert_eq!(event, None);
    let head = "0003e889045565a9 00000003";
    let want = [
        hex(&format!("{head} 00000002 0000000e 00000002 7230 6461746162617365")),
        hex(&format!("{head} 00000002 00000006 00000002 7231")),
        hex(&format!("{head} 00000001 00000000")),
    ];
    assert_eq!(out, want.concat());
}

#[test]
fn a_refusal_names_its_reason_and_the_client_may_go_on() {
    let reasons = [
        (RefuseReason::Unknown, 0x8000_0006),
        (RefuseReason::Policy, 0x8000_0002),
        (RefuseReason::Shutdown, 0x8000_0007),
    ];
    let mut handshake = begun(3);
    for (reason, number) in reasons {
        let (event, _) = feed(&mut handshake, &opt(option::number::GO, &query("r0", &[])));
        assert_eq!(event, Some(Event::Open { name: "r0".into() }));
        let mut out = Vec::new();
        handshake.refuse(reason, "r0: Primary on node b", &mut out).unwrap();
        assert_eq!(replies(&out), (vec![number], b"r0: Primary on node b".to_vec()));
    }
    let (_, out) = feed(&mut handshake, &opt(option::number::GO, &query("nope", &[])));
    assert_eq!(replies(&out).0, [0x8000_0006]);
    let (event, out) = feed(&mut handshake, &opt(option::number::ABORT, b"ignored"));
    assert_eq!((event, replies(&out).0), (Some(Event::Abort), vec![1]));
}

#[test]
fn a_refused_export_name_ends_the_connection() {
    let mut handshake = begun(3);
    feed(&mut handshake, &opt(option::number::EXPORT_NAME, b"r0"));
    let refused = handshake.refuse(RefuseReason::Policy, "busy", &mut Vec::new());
    assert_eq!(refused, Err(Violation::ExportNameRefused));
    for name in [&b"nope"[..], b"", b"\xff"] {
        let input = opt(option::number::EXPORT_NAME, name);
        let got = begun(3).receive(&input, &Exports, &mut Vec::new());
        assert_eq!(got, Err(Violation::ExportNameRefused));
    }
}

#[test]
fn options_not_served_are_answered_and_change_nothing() {
    let mut handshake = begun(3);
    let cases = [
        (opt(option::number::STARTTLS, b""), 0x8000_0002),
        (opt(option::number::STARTTLS, b"x"), 0x8000_0003),
        (opt(option::number::PEEK_EXPORT, b"r0"), 0x8000_0001),
        (opt(option::number::EXTENDED_HEADERS, b"x"), 0x8000_0003),
        (opt(4711, &[7; 5000]), 0x8000_0001),
        (opt(option::number::LIST, b"x"), 0x8000_0003),
        (opt(option::number::GO, b"\0\0\0\x09r0"), 0x8000_0003),
        (opt(option::number::GO, &query(&"x".repeat(4097), &[])), 0x8000_0009),
    ];
    for (input, want) in cases {
        let (event, out) = feed(&mut handshake, &input);
        assert_eq!((event, replies(&out).0), (None, vec![want]), "{input:?}");
    }
    let (event, _) = feed(&mut handshake, &opt(option::number::GO, &query("r0", &[])));
    assert!(event.is_some());
}

#[test]
fn extended_headers_bring_contexts_and_can_not_be_given_up() {
    let mut handshake = begun(3);
    let mut ask = |input: Vec<u8>| replies(&feed(&mut handshake, &input).1).0;
    assert_eq!(ask(opt(option::number::EXTENDED_HEADERS, b"")), [1]);
    assert_eq!(ask(opt(option::number::STRUCTURED_REPLY, b"")), [0x8000_000a]);
    let select = contexts("r0", &["base:allocation"]);
    assert_eq!(ask(opt(option::number::SET_META_CONTEXT, &select)), [4, 1]);
    let name = opt(option::number::EXPORT_NAME, b"r0");
    let got = handshake.receive(&name, &Exports, &mut Vec::new());
    assert_eq!(got, Err(Violation::ExportNameRefused));
}

#[test]
fn contexts_need_structured_replies_and_a_known_export() {
    use option::number::{LIST_META_CONTEXT, SET_META_CONTEXT};
    let mut handshake = begun(3);
    let both = contexts("r0", &["base:allocation"]);
    for number in [LIST_META_CONTEXT, SET_META_CONTEXT] {
        assert_eq!(replies(&feed(&mut handshake, &opt(number, &both)).1).0, [0x8000_0003]);
    }
    feed(&mut handshake, &opt(option::number::STRUCTURED_REPLY, b""));
    let list = |queries: &[&str]| opt(LIST_META_CONTEXT, &contexts("r0", queries));
    let set = |queries: &[&str]| opt(SET_META_CONTEXT, &contexts("r0", queries));
    let cases = [
        (list(&[]), vec![4, 4, 1]),
        (list(&["qemu:"]), vec![4, 1]),
        (list(&["qemu:dirty-bitmap:", "base:"]), vec![4, 4, 1]),
        (list(&["base:"]), vec![4, 1]),
        (list(&["base:allocation", "base:allocation"]), vec![4, 1]),
        (list(&["qemu:dirty-bitmap:x", "base:other", "no colon"]), vec![1]),
        (opt(LIST_META_CONTEXT, &contexts("nope", &[])), vec![0x8000_0006]),
        (set(&[]), vec![1]),
        (set(&["base:"]), vec![1]),
        (set(&["qemu:dirty-bitmap:", "qemu:dirty-bitmap:x"]), vec![1]),
        (set(&["qemu:dirty-bitmap:out-of-sync", "base:allocation"]), vec![4, 4, 1]),
        (set(&["base:allocation"]), vec![4, 1]),
    ];
    for (input, want) in cases {
        assert_eq!(replies(&feed(&mut handshake, &input).1).0, want, "{input:?}");
    }
    let allocation = Contexts { allocation: true, ..Contexts::NONE };
    assert_eq!(handshake.contexts_of, Some(("r0".to_owned(), allocation)));
    // A failed selection leaves none.
    let broken = opt(SET_META_CONTEXT, &contexts("r0", &["base:allocation"])[..9]);
    assert_eq!(replies(&feed(&mut handshake, &broken).1).0, [0x8000_0003]);
    assert_eq!(handshake.contexts_of, None);
}

#[test]
fn violations_end_the_connection() {
    let receive = |handshake: &mut Handshake, bytes: &[u8]| {
        handshake.receive(bytes, &Exports, &mut Vec::new()).unwrap_err()
    };
    assert_eq!(receive(&mut Handshake::new(), &[0, 0, 0, 4]), Violation::ClientFlags);
    assert_eq!(receive(&mut begun(3), &[0; 16]), Violation::OptionMagic);
    let long = OptionHeader { number: 7, len: MAX_OPTION_LEN + 1 }.encode();
    assert_eq!(receive(&mut begun(3), &long), Violation::OptionTooLong(MAX_OPTION_LEN + 1));
    let flood = opt(option::number::STRUCTURED_REPLY, b"").repeat(MAX_OPTIONS as usize + 1);
    assert_eq!(receive(&mut begun(3), &flood), Violation::TooManyOptions);
}

/// One long negotiation, cut into pieces of every size: same replies, same events.
#[test]
fn any_fragmentation_gives_the_same_negotiation() {
    let script = [
        &3u32.to_be_bytes()[..],
        &opt(option::number::STRUCTURED_REPLY, b""),
        &opt(option::number::LIST, b""),
        &opt(99, b"some data"),
        &opt(option::number::SET_META_CONTEXT, &contexts("r0", &["base:allocation"])),
        &opt(option::number::GO, &query("r0", &[3])),
        b"behind",
    ]
    .concat();
    let mut want = None;
    for size in 1..=script.len() {
        let mut handshake = Handshake::new();
        let (mut out, mut event) = (Vec::new(), None);
        let mut at = 0;
        while event.is_none() {
            let piece = &script[at..(at + size).min(script.len())];
            let (used, got) = handshake.receive(piece, &Exports, &mut out).unwrap();
            (at, event) = (at + used, got);
        }
        assert_eq!(&script[at..], b"behind");
        assert_eq!(event, Some(Event::Open { name: "r0".into() }));
        // While the export is opened nothing more is taken.
        assert_eq!(handshake.receive(&script[at..], &Exports, &mut out), Ok((0, None)));
        assert_eq!(*want.get_or_insert(out.clone()), out, "pieces of {size}");
    }
}

#[test]
fn a_negotiation_can_move_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Handshake>();
}
