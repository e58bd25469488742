//! What a peer sends, as a stream of packets (`codec::wire`).
//!
//! The first byte of the input chooses stream, agreement and digest length, the rest is the
//! stream. Nothing may panic or ask for more than a bitmap packet; whatever is accepted must
//! encode, and decode to the same packet again. Bitmap chunks go through a receiver.
#![no_main]

use codec::wire::{
    Agreed, BitmapReceiver, Header, HeaderVersion, Packet, Stream, decode, decode_header, encode,
    feature,
};
use libfuzzer_sys::fuzz_target;

/// Bits of the bitmaps that chunks are received into; not a multiple of 64.
const BITMAP_BITS: u64 = 100_003;

fuzz_target!(|input: &[u8]| {
    let Some((choice, mut rest)) = input.split_first() else { return };
    let stream = if choice & 1 == 0 { Stream::Data } else { Stream::Control };
    let (version, features) = [
        (122, feature::OURS),
        (124, 0x3ff),
        (101, 0xf),
        (121, 0xf),
        (118, 0),
        (97, 0x1),
        (88, 0),
        (0, 0),
    ][usize::from(choice >> 1 & 7)];
    let digest = [0, 4, 20, 64][usize::from(choice >> 4 & 3)];
    let agreed = Agreed {
        peer_digest_len: digest,
        own_digest_len: digest,
        ..Agreed::new(version, features)
    };
    let mut receiver = BitmapReceiver::new(BITMAP_BITS, &agreed);
    let mut out = Vec::new();
    while let Ok(Some(header)) = decode_header(rest, stream, &agreed) {
        let fixed = header.fixed_len();
        assert!(fixed <= 4096);
        let Some(body) = rest.get(header.size()..header.size() + fixed) else { break };
        let Ok(packet) = decode(header, body, &agreed) else { break };
        say_again(&packet, header, stream, &agreed, &mut out);
        receive(&mut receiver, &packet);
        // Data are not looked at: let the next packet follow the fixed part.
        rest = &rest[header.size() + fixed..];
    }
});

fn say_again(packet: &Packet, header: Header, stream: Stream, agreed: &Agreed, out: &mut Vec<u8>) {
    let zeroes_with_digest = matches!(packet, Packet::Zeroes(..)) && agreed.own_digest_len > 0;
    if zeroes_with_digest {
        // Accepted, never sent.
        return;
    }
    // Pings may come under the header of the state before the features, or after it.
    let agreed = match header.version() {
        version if version == agreed.header_version(header.len()) => *agreed,
        HeaderVersion::V100 => Agreed::new(122, feature::OURS),
        HeaderVersion::V80 if agreed.version >= 100 => Agreed::NOTHING,
        // Short packets may come under the long header of their version, too.
        HeaderVersion::V80 | HeaderVersion::V95 => *agreed,
    };
    out.clear();
    encode(packet, &agreed, out);
    let again = decode_header(out, stream, &agreed).expect("ours is well-formed").expect("whole");
    let body = &out[again.size()..][..again.fixed_len()];
    assert_eq!(decode(again, body, &agreed).as_ref(), Ok(packet));
}

fn receive(receiver: &mut BitmapReceiver, packet: &Packet) {
    let set = |start: u64, len: u64| assert!(len > 0 && start + len <= BITMAP_BITS);
    match packet {
        Packet::Bitmap(_, chunk) => drop(receiver.plain(chunk, set)),
        Packet::CompressedBitmap(_, chunk) => drop(receiver.compressed(chunk, set)),
        _ => {}
    }
}
