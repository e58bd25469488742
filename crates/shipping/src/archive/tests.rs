//! Archives as they were meant, and every other kind.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use super::*;

fn header(base: bool) -> Header {
    let own = Identity::new("web_back_20261129_072545", 0);
    let base = base.then(|| Identity::new("web_back_20261128_072545", 0));
    Header { size: 1 << 24, own, base }
}

fn sample(base: bool) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), header(base)).unwrap();
    writer.data(4096, &[7; 8192]).unwrap();
    if base {
        writer.zeroes(1 << 20, 4096).unwrap();
    }
    let noise: Vec<u8> = (0..60_000).map(|n: u32| (n * 31 % 251) as u8).collect();
    writer.data(2 << 20, &noise).unwrap();
    writer.finish().unwrap()
}

/// Reads all of it; what the pieces are.
fn read(bytes: &[u8], header: Header) -> Result<Vec<String>, Unreadable> {
    let mut reader = Reader::new(bytes, header.own, header.base)?;
    let mut pieces = Vec::new();
    while let Some(piece) = reader.next_piece()? {
        pieces.push(match piece {
            Piece::Data { offset, data } => format!("{offset} {:x}", crc32c::crc32c(data)),
            Piece::Zeroes { offset, length } => format!("{offset} {length} zeroes"),
        });
    }
    assert!(reader.next_piece()?.is_none(), "it stays at its end");
    Ok(pieces)
}

#[test]
fn pieces_come_back_as_they_were_written() {
    let bytes = sample(true);
    assert!(bytes.len() < 64 << 10, "it is compressed: {}", bytes.len());
    let mut reader = Reader::new(&bytes[..], header(true).own, header(true).base).unwrap();
    assert_eq!(reader.header(), header(true));
    let first = Piece::Data { offset: 4096, data: &[7; 8192] };
    assert_eq!(reader.next_piece().unwrap(), Some(first));
    let second = Piece::Zeroes { offset: 1 << 20, length: 4096 };
    assert_eq!(reader.next_piece().unwrap(), Some(second));
    assert!(matches!(reader.next_piece().unwrap(), Some(Piece::Data { offset: 2097152, .. })));
    assert!(reader.next_piece().unwrap().is_none());
    assert_eq!(read(&sample(false), header(false)).unwrap().len(), 2);
}

#[test]
fn nothing_out_of_order_or_outside_of_the_volume_is_written() {
    let mut writer = Writer::new(Vec::new(), header(false)).unwrap();
    writer.data(4096, &[1; 4096]).unwrap();
    assert!(writer.data(8191, &[1]).is_err(), "overlaps");
    assert!(writer.data(u64::MAX, &[1]).is_err());
    assert!(writer.data((1 << 24) - 1, &[1, 2]).is_err(), "beyond the end");
    assert!(writer.data(8192, &[]).is_err(), "empty");
    assert!(writer.zeroes(1 << 20, 1).is_err(), "a full one has none");
}

#[test]
fn foreign_and_other_archives_are_told_apart() {
    let bytes = sample(false);
    let wrong = |bytes: &[u8]| read(bytes, header(false)).unwrap_err();
    assert!(matches!(wrong(b""), Unreadable::Foreign));
    assert!(matches!(wrong(&bytes[..63]), Unreadable::Foreign));
    assert!(matches!(wrong(&[0; 4096]), Unreadable::Foreign));
    let mut newer = bytes.clone();
    newer[8] = 2;
    assert!(matches!(wrong(&newer), Unreadable::Version(2)));
    assert!(matches!(wrong(&sample(true)), Unreadable::Another(_)), "incremental");
    let another = Header { own: Identity::new("web_back_20261129_072545", 1), ..header(false) };
    assert!(matches!(read(&bytes, another).unwrap_err(), Unreadable::Another(_)));
    let on_another = Header { base: Some(Identity::default()), ..header(true) };
    assert!(matches!(read(&sample(true), on_another).unwrap_err(), Unreadable::Another(_)));
}

#[test]
fn whatever_bit_is_flipped_and_wherever_it_is_cut_it_is_refused() {
    for base in [false, true] {
        let bytes = sample(base);
        let whole = read(&bytes, header(base)).unwrap();
        let mut without_effect = 0;
        for length in (0..bytes.len()).step_by(7) {
            assert!(read(&bytes[..length], header(base)).is_err(), "cut at {length}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            // Bytes of the header that say nothing are under its checksum, too. Some bits of zstd's own
            // headers have no meaning, or mean more memory than is needed: the data are the same.
            if let Ok(pieces) = read(&damaged, header(base)) {
                assert_eq!(pieces, whole, "flipped at {at}");
                without_effect += 1;
            }
        }
        assert!(without_effect < 8, "{without_effect}");

        let longer = [&bytes[..], b"x"].concat();
        assert!(read(&longer, header(base)).is_err(), "something behind it");
        assert!(read(&[&bytes[..], &bytes].concat(), header(base)).is_err());
    }
}

#[test]
fn a_frame_that_holds_anything_is_refused_and_not_believed() {
    // What a program with the format at hand could write to have memory taken or bounds left.
    let piece = |tag: u8, offset: u64, length: &[u8]| {
        let mut bytes = vec![tag];
        bytes.extend(offset.to_le_bytes());
        bytes.extend(length);
        bytes.extend([0; 64]);
        bytes
    };
    let huge = u64::MAX.to_le_bytes();
    for content in [
        piece(b'D', 0, &u32::MAX.to_le_bytes()),
        piece(b'D', u64::MAX, &1u32.to_le_bytes()),
        piece(b'Z', 1, &huge),
        piece(b'E', u64::MAX, &[]),
        piece(b'X', 0, &[]),
        Vec::new(),
        vec![b'D'; 5000],
    ] {
        let mut bytes = header(true).to_bytes().to_vec();
        bytes.extend(zstd::stream::encode_all(&content[..], 1).unwrap());
        let error = read(&bytes, header(true)).unwrap_err();
        assert!(matches!(error, Unreadable::Damaged(_)), "{error}");
    }
}
