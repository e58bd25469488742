//! Tests of bitmap transfers.

use super::*;
use crate::wire::packet::feature;
use std::ops::Range;

const AGREED: Agreed = Agreed::new(122, feature::OURS);

/// Sorted, disjoint, non-adjacent ranges of set bits.
#[derive(Clone, Debug, Default, PartialEq)]
struct Map(Vec<Range<u64>>);

impl Map {
    fn add(&mut self, start: u64, len: u64) {
        match self.0.last_mut() {
            Some(last) if last.end == start => last.end += len,
            _ => self.0.push(start..start + len),
        }
    }
}

impl BitmapSource for Map {
    fn run(&self, from: u64) -> (bool, u64) {
        let next = self.0.partition_point(|range| range.end <= from);
        match self.0.get(next) {
            Some(range) if range.start <= from => (true, range.end - from),
            Some(range) => (false, range.start - from),
            None => (false, u64::MAX - from),
        }
    }
}

fn random(state: &mut u64, bound: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % bound
}

/// Sends the map, receives it, and returns the packets.
fn transfer(map: &Map, bits: u64, compress: bool) -> Vec<Packet> {
    let mut sender = BitmapSender::new(bits, compress, &AGREED);
    let mut receiver = BitmapReceiver::new(bits, &AGREED);
    let (mut received, mut packets, mut progress) =
        (Map::default(), Vec::new(), Progress::Continues);
    while let Some(packet) = sender.next_packet(VolumeNr(0), map) {
        assert_eq!(progress, Progress::Continues, "nothing follows the end");
        let mut set = |start, len| {
            assert!(start + len <= bits);
            // After a compressed chunk the plain one repeats the bits of its first word.
            if received.0.last().is_none_or(|last| last.end <= start) {
                received.add(start, len);
            } else {
                let last = received.0.last_mut().unwrap();
                last.end = last.end.max(start + len);
            }
        };
        progress = match &packet {
            Packet::Bitmap(_, chunk) => receiver.plain(chunk, &mut set).unwrap(),
            Packet::CompressedBitmap(_, chunk) => receiver.compressed(chunk, &mut set).unwrap(),
            other => panic!("{other:?}"),
        };
        let mut bytes = Vec::new();
        crate::wire::encode(&packet, &AGREED, &mut bytes);
        assert!(bytes.len() <= 4096);
        packets.push(packet);
    }
    assert!(sender.is_done());
    assert_eq!(progress, Progress::Complete);
    assert_eq!(received, *map);
    packets
}

#[test]
fn every_prefix_is_covered_and_ranges_meet() {
    for pattern in 0..256 {
        let found = VLI.iter().filter(|v| pattern & ((1 << v.prefix_len) - 1) == v.prefix).count();
        assert_eq!(found, 1, "{pattern:08b}");
    }
    for line in &VLI {
        for run in [line.low, line.low + 1, (line.low - 1).max(1)] {
            let (code, len) = code_of(run);
            assert_eq!(run_of(code), (run, len));
            assert!(len == 64 || code >> len == 0);
        }
    }
    let (code, len) = code_of(MAX_RUN);
    assert_eq!((run_of(code), len), ((MAX_RUN, 64), 64));
}

#[test]
fn the_worked_examples_come_out_byte_for_byte() {
    let map = Map(vec![0..10, 1034..1035]);
    let packets = transfer(&map, 262_144, true);
    let Packet::CompressedBitmap(_, chunk) = &packets[0] else { panic!() };
    assert_eq!(packets.len(), 1);
    assert_eq!(chunk.bytes, [0xd2, 0x97, 0x9f, 0x67, 0xc1, 0x1f, 0xb1, 0xf6, 0x00]);
    let runs: Vec<u64> =
        RunDecoder::new(chunk, 0, 262_144).unwrap().map(|run| run.unwrap().len).collect();
    assert_eq!(runs, [10, 1024, 1, 261_109]);
    let packets = transfer(&Map::default(), 262_144, true);
    let Packet::CompressedBitmap(_, chunk) = &packets[0] else { panic!() };
    assert_eq!(chunk.bytes, [0x32, 0x7f, 0xcf, 0xde, 0x03]);
}

#[test]
fn maps_arrive_as_sent() {
    let mut state = 0x1234_5678_9abc_def1;
    let mut kinds = (0, 0);
    for round in 0..300 {
        let bits = 1 + random(&mut state, 100_000);
        let mut map = Map::default();
        let mut at = random(&mut state, 3);
        // Stretches of noise, which does not compress, between stretches that do.
        let mut noisy = round % 2 == 0;
        while at < bits {
            let (scale, stay) = if noisy { (1, 8000) } else { (5000, 10) };
            if random(&mut state, stay) == 0 {
                noisy = !noisy;
            }
            let len = (1 + random(&mut state, scale)).min(bits - at);
            map.add(at, len);
            at += len + 1 + random(&mut state, scale);
        }
        for packet in transfer(&map, bits, true) {
            match packet {
                Packet::Bitmap(_, chunk) if !chunk.words.is_empty() => kinds.0 += 1,
                Packet::CompressedBitmap(..) => kinds.1 += 1,
                _ => {}
            }
        }
        let plain = transfer(&map, bits, false);
        let words: usize = plain
            .iter()
            .map(|packet| match packet {
                Packet::Bitmap(_, chunk) => chunk.words.len(),
                other => panic!("{other:?}"),
            })
            .sum();
        assert_eq!(words as u64, bits.div_ceil(64));
    }
    assert!(kinds.0 > 50 && kinds.1 > 50, "both kinds are exercised: {kinds:?}");
}

#[test]
fn noise_is_sent_plain_and_ends_with_an_empty_chunk() {
    let mut map = Map::default();
    (0..40_000).step_by(2).for_each(|bit| map.add(bit, 1));
    // Two-bit codes for one-bit runs: compressing would double the size.
    let packets = transfer(&map, 40_000, true);
    let lengths: Vec<usize> = packets
        .iter()
        .map(|packet| match packet {
            Packet::Bitmap(_, chunk) => chunk.words.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(lengths, [510, 115, 0]);
}

#[test]
fn large_maps_take_few_packets() {
    let mut map = Map::default();
    (0..1000).for_each(|run| map.add(run << 28, 77));
    let packets = transfer(&map, 1 << 38, true);
    assert!(packets.len() <= 2, "{}", packets.len());
}

#[test]
fn plain_chunks_of_another_length_are_refused() {
    let chunk = |words: usize| BitmapWords { words: vec![0; words] };
    let mut receiver = BitmapReceiver::new(64 * 600 - 3, &AGREED);
    let refused = |receiver: &BitmapReceiver, words| {
        receiver.clone().plain(&chunk(words), |_, _| {}).unwrap_err()
    };
    let wrong = |words, expected| BitmapError::ChunkLength { words, expected };
    assert_eq!(refused(&receiver, 509), wrong(509, 510));
    assert_eq!(refused(&receiver, 0), wrong(0, 510));
    assert_eq!(receiver.plain(&chunk(510), |_, _| {}), Ok(Progress::Continues));
    assert_eq!(refused(&receiver, 91), wrong(91, 90));
    assert_eq!(receiver.plain(&chunk(90), |_, _| {}), Ok(Progress::Continues));
    assert_eq!(refused(&receiver, 1), wrong(1, 0));
    assert_eq!(receiver.plain(&chunk(0), |_, _| {}), Ok(Progress::Complete));
    assert_eq!(refused(&receiver, 0), BitmapError::Complete);
}

#[test]
fn bits_behind_the_map_say_nothing() {
    let mut receiver = BitmapReceiver::new(70, &AGREED);
    let mut runs = Vec::new();
    let words = BitmapWords { words: vec![u64::MAX, u64::MAX] };
    receiver.plain(&words, |start, len| runs.push((start, len))).unwrap();
    assert_eq!(runs, [(0, 64), (64, 6)]);
}

#[test]
fn runs_that_leave_the_map_or_end_early_are_refused() {
    let chunk = |runs: &[u64]| {
        let mut encoder = RunEncoder::new(true, &AGREED);
        assert!(runs.iter().all(|run| encoder.push(*run)));
        encoder.finish()
    };
    let receive = |chunk: &CompressedBitmap, bits| {
        BitmapReceiver::new(bits, &AGREED).compressed(chunk, |_, _| {})
    };
    assert_eq!(receive(&chunk(&[10, 20]), 30), Ok(Progress::Complete));
    assert_eq!(receive(&chunk(&[10, 20]), 31), Ok(Progress::Continues));
    let beyond = BitmapError::Beyond { position: 10, run: 20, bits: 29 };
    assert_eq!(receive(&chunk(&[10, 20]), 29), Err(beyond));
    let mut cut = chunk(&[10, 5000]);
    cut.bytes.pop();
    assert_eq!(receive(&cut, 1 << 20), Err(BitmapError::CutRun { position: 10 }));
    let mut shorter = chunk(&[10, 5000]);
    shorter.bytes[0] |= 0x70;
    assert_eq!(receive(&shorter, 1 << 20), Err(BitmapError::CutRun { position: 10 }));
    let other = CompressedBitmap { bytes: vec![0x01, 0x00] };
    assert_eq!(receive(&other, 30), Err(BitmapError::Encoding));
    assert!(receive(&CompressedBitmap { bytes: vec![2] }, 30).is_err());
}

#[test]
fn random_code_never_leaves_the_map() {
    let mut state = 99;
    for _ in 0..50_000 {
        let bytes: Vec<u8> =
            (0..2 + random(&mut state, 30)).map(|_| random(&mut state, 256) as u8).collect();
        let chunk = CompressedBitmap { bytes };
        let bits = 1 + random(&mut state, 1 << 20);
        let Ok(runs) = RunDecoder::new(&chunk, 0, bits) else { continue };
        let mut end = 0;
        for run in runs.flatten() {
            assert_eq!(run.start, end);
            end += run.len;
            assert!(run.len > 0 && end <= bits);
        }
    }
}
