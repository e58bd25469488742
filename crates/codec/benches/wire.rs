//! What decoding and encoding a packet costs: `cargo bench -p codec --bench wire`.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement")]
#![allow(clippy::disallowed_methods, reason = "this measures the codec, it is not the core")]

use std::hint::black_box;
use std::time::Instant;

use codec::wire::{
    Agreed, BlockAck, BlockId, Data, DataFlags, Packet, Stream, decode, decode_header, encode,
    feature,
};
use vocab::{SectorRange, VolumeNr};

/// Short, so that some passes run undisturbed on a machine with other load.
const ROUNDS: u32 = 10_000;
const PASSES: usize = 1_000;

fn main() {
    let range = SectorRange::new(4096, 8);
    let data = Data { range, block_id: BlockId(7), seq: 1, flags: DataFlags::SEND_WRITE_ACK };
    measure("P_DATA", Stream::Data, &Packet::Data(VolumeNr(0), data));
    let ack = BlockAck { range, block_id: BlockId(7), seq: 1 };
    measure("P_WRITE_ACK", Stream::Control, &Packet::WriteAck(VolumeNr(0), ack));
}

/// Nanoseconds per packet, both ways; the best pass.
fn measure(name: &str, stream: Stream, packet: &Packet) {
    let agreed = Agreed::new(122, feature::OURS);
    let mut bytes = Vec::with_capacity(256);
    encode(packet, &agreed, &mut bytes);
    let decoding = best(|| {
        let bytes = black_box(&bytes[..]);
        let header = decode_header(bytes, stream, &agreed).unwrap().unwrap();
        let body = &bytes[header.size()..][..header.fixed_len()];
        black_box(decode(header, body, &agreed).unwrap());
    });
    let mut out = Vec::with_capacity(256);
    let encoding = best(|| {
        out.clear();
        encode(black_box(packet), &agreed, &mut out);
        black_box(&out);
    });
    println!("{name}: {decoding:.0} ns to decode, {encoding:.0} ns to encode");
}

fn best(mut step: impl FnMut()) -> f64 {
    let pass = || {
        let begun = Instant::now();
        for _ in 0..ROUNDS {
            step();
        }
        begun.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
    };
    std::iter::repeat_with(pass).take(PASSES).fold(f64::INFINITY, f64::min)
}
