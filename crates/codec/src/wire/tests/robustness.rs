//! Bytes from nowhere: nothing may panic, and whatever is accepted can be said again.

use super::samples::{Random, one_of_each};
use super::*;

/// Decodes like a receiver would, and encodes what comes out. Returns true if it was accepted.
fn digest(bytes: &[u8], stream: Stream, agreed: &Agreed, out: &mut Vec<u8>) -> bool {
    let Ok(Some(header)) = decode_header(bytes, stream, agreed) else { return false };
    assert!(header.fixed_len() <= 4096, "never more than a bitmap packet");
    let Some(body) = bytes.get(header.size()..header.size() + header.fixed_len()) else {
        return false;
    };
    let Ok(packet) = decode(header, body, agreed) else { return false };
    // Pings that are out of step with the features come back under the header they had.
    let in_step = header.version() == agreed.header_version(header.len());
    let agreed = match header.version() {
        _ if in_step => *agreed,
        HeaderVersion::V100 => OURS,
        HeaderVersion::V80 if agreed.version >= 100 => Agreed::NOTHING,
        // Short packets may come under the long header of their version, too.
        HeaderVersion::V80 | HeaderVersion::V95 => *agreed,
    };
    out.clear();
    encode(&packet, &agreed, out);
    let again = decode_header(out, stream, &agreed).expect("ours is well-formed").expect("whole");
    let body = &out[again.size()..][..again.fixed_len()];
    assert_eq!(decode(again, body, &agreed), Ok(packet), "{bytes:x?}");
    true
}

#[test]
fn mutated_packets_neither_panic_nor_change_when_said_again() {
    let mut random = Random::new(7);
    let seeds: Vec<(Vec<u8>, Stream, Agreed)> = one_of_each()
        .into_iter()
        .map(|(packet, agreed)| (encoded(&packet, &agreed), packet.stream(), agreed))
        .collect();
    let others = [OURS, OLD, LATEST, Agreed::new(121, 0xf), Agreed::NOTHING, Agreed::new(97, 1)];
    let (mut accepted, mut out, mut bytes) = (0, Vec::new(), Vec::new());
    for round in 0..200_000 {
        let (seed, stream, agreed) = &seeds[random.below(seeds.len() as u64) as usize];
        bytes.clear();
        bytes.extend_from_slice(seed);
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(4) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
                2 => bytes[at] = random.next() as u8,
                _ => bytes.resize(at.max(1), 0),
            }
        }
        let agreed = if round % 8 == 0 { &others[round / 8 % others.len()] } else { agreed };
        accepted += u32::from(digest(&bytes, *stream, agreed, &mut out));
    }
    // Both outcomes have to be common, or the test proves little.
    assert!((20_000..180_000).contains(&accepted), "{accepted} were accepted");
}

#[test]
fn random_payloads_behind_good_headers_do_not_panic() {
    let mut random = Random::new(11);
    let mut out = Vec::new();
    let mut bytes = vec![0; 16 + 600];
    for round in 0..50_000_usize {
        let command = Command::ALL[round % Command::ALL.len()];
        let agreed = [LATEST, OURS, OLD][round % 3];
        let (min, max) = command.lengths(HeaderVersion::V100, &agreed, 0);
        let len = u64::from(min) + random.below(u64::from(max.min(600) - min.min(600)) + 1);
        bytes[..8].copy_from_slice(&hex("8620ec20 00000000"));
        bytes[6..8].copy_from_slice(&command.number().to_be_bytes());
        bytes[8..12].copy_from_slice(&(len as u32).to_be_bytes());
        bytes[12..16].fill(0);
        bytes[16..].iter_mut().for_each(|byte| {
            *byte = if random.below(3) == 0 { random.next() as u8 } else { 0 };
        });
        for stream in [Stream::Data, Stream::Control] {
            digest(&bytes, stream, &agreed, &mut out);
        }
    }
}
