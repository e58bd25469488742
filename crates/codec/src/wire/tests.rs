//! Tests of the codec as a whole, and what they share.

mod examples;
mod limits;
mod robustness;
mod samples;

use super::*;

/// Bytes from hexadecimal digits; everything else is decoration.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Decodes one packet that must fill `bytes` but for the data of a bulk packet.
fn decode_all(bytes: &[u8], stream: Stream, agreed: &Agreed) -> Result<Packet, WireError> {
    let header = decode_header(bytes, stream, agreed)?.expect("the header is complete");
    assert_eq!(bytes.len(), header.size() + header.len() as usize, "one whole packet");
    decode(header, &bytes[header.size()..][..header.fixed_len()], agreed)
}

/// Encodes into a new buffer.
fn encoded(packet: &Packet, agreed: &Agreed) -> Vec<u8> {
    let mut out = Vec::new();
    encode(packet, agreed, &mut out);
    out
}

/// What Ashlar agrees on with a current kernel.
const OURS: Agreed = Agreed::new(122, feature::OURS);
/// A DRBD 8.4 peer.
const OLD: Agreed = Agreed::new(101, 0xf);
/// Two current kernels.
const LATEST: Agreed = Agreed::new(124, 0x3ff);
