//! Volumes, as files, through archives and back.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use super::*;
use crate::archive::{Header, Identity};

const SIZE: u64 = (3 << 20) + 8192;

fn volume(ranges: &[(u64, u8, usize)]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE).unwrap();
    for (offset, byte, length) in ranges {
        file.write_all_at(&vec![*byte; *length], *offset).unwrap();
    }
    file
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn header(name: &str, base: Option<&str>) -> Header {
    let base = base.map(|base| Identity::new(base, 0));
    Header { size: SIZE, own: Identity::new(name, 0), base }
}

fn full(file: &File) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), header("a", None)).unwrap();
    write_full(file, SIZE, &mut writer, &mut |_| Ok(())).unwrap();
    writer.finish().unwrap()
}

fn changed(new: &File, old: &File, old_size: u64) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), header("b", Some("a"))).unwrap();
    write_changed(new, SIZE, old, old_size, SIZE, &mut writer, &mut |_| Ok(())).unwrap();
    writer.finish().unwrap()
}

fn put(bytes: &[u8], header: Header, to: &File, clean: bool) {
    let mut reader = Reader::new(bytes, header.own, header.base).unwrap();
    read_into(&mut reader, to, clean, &mut |_| Ok(())).unwrap();
}

#[test]
fn a_volume_comes_back_from_full_and_incremental_archives() {
    let old = volume(&[(0, 1, 4096), (1 << 20, 2, 10_000), (SIZE - 4096, 3, 4096)]);
    let new = volume(&[(0, 1, 4096), (5 << 18, 9, 70_000), (SIZE - 4096, 4, 4096)]);
    let (first, second) = (full(&old), changed(&new, &old, SIZE));
    let back = volume(&[]);
    put(&first, header("a", None), &back, true);
    assert!(content(&back) == content(&old));
    put(&second, header("b", Some("a")), &back, true);
    assert!(content(&back) == content(&new), "also where there are zeroes by now");
}

#[test]
fn where_there_was_something_before_gaps_are_overwritten() {
    let old = volume(&[(4096, 1, 4096), (2 << 20, 2, 4096)]);
    let used = volume(&[(0, 0xee, usize::try_from(SIZE).unwrap())]);
    put(&full(&old), header("a", None), &used, false);
    assert!(content(&used) == content(&old));
    let empty = full(&volume(&[]));
    put(&empty, header("a", None), &used, false);
    assert!(is_zero(&content(&used)), "an archive without a piece, too");
}

#[test]
fn a_volume_that_has_grown_since_its_base() {
    let old = volume(&[(0, 1, 1 << 20)]);
    old.set_len(1 << 20).unwrap();
    let new = volume(&[(0, 1, 1 << 20), (2 << 20, 5, 4096)]);
    let back = volume(&[(0, 1, 1 << 20)]);
    put(&changed(&new, &old, 1 << 20), header("b", Some("a")), &back, true);
    assert!(content(&back) == content(&new));
}

#[test]
fn what_is_the_same_is_not_carried() {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    let noise: Vec<u8> = (0..1 << 20).map(|_| next()).collect();
    let make = || {
        let file = volume(&[]);
        file.write_all_at(&noise, 1 << 20).unwrap();
        file
    };
    let (old, new) = (make(), make());
    new.write_all_at(&[1; 10], (1 << 20) + 5000).unwrap();
    assert!(full(&new).len() > 1 << 19, "noise does not get much smaller");
    let bytes = changed(&new, &old, SIZE);
    assert!(bytes.len() < 8192, "one block is carried: {}", bytes.len());
}

#[test]
fn work_ends_when_it_is_told_to() {
    let file = volume(&[(0, 1, 4096)]);
    let mut writer = Writer::new(Vec::new(), header("a", None)).unwrap();
    let stop = &mut |_| Err(io::Error::other("enough"));
    assert_eq!(write_full(&file, SIZE, &mut writer, stop).unwrap_err().to_string(), "enough");
}
