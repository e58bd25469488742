//! The last check: the disks themselves, byte by byte, with no engine in between.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::block::BLOCK;

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// What a block is that nobody wrote.
const EMPTY: [u8; BLOCK] = [0; BLOCK];

/// What a comparison found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Comparison {
    /// Blocks that are not the same on all disks.
    pub different: u64,
    /// Blocks with content that nobody wrote.
    pub stray: u64,
}

/// Compares the first `bytes` of all disks, where the volume is; the metadata behind it differs
/// by design. `written` tells whether a block was ever written.
///
/// # Errors
/// If a disk can not be read.
pub fn compare(
    disks: &[PathBuf],
    bytes: u64,
    written: impl Fn(u64) -> bool,
    progress: &mut dyn FnMut(u64),
) -> io::Result<Comparison> {
    let mut files = Vec::new();
    for path in disks {
        files.push(File::open(path).map_err(|e| named(path, &e))?);
    }
    let mut buffers = vec![vec![0; CHUNK]; files.len()];
    let (mut at, mut found) = (0, Comparison::default());
    while at < bytes {
        let len = (bytes - at).min(CHUNK as u64) as usize;
        for ((file, buffer), path) in files.iter_mut().zip(&mut buffers).zip(disks) {
            file.read_exact(&mut buffer[..len]).map_err(|e| named(path, &e))?;
        }
        let (first, others) = buffers.split_first().expect("there is a disk");
        let same = others.iter().all(|other| other[..len] == first[..len]);
        for start in (0..len).step_by(BLOCK) {
            let range = start..(start + BLOCK).min(len);
            let block = &first[range.clone()];
            if !same && others.iter().any(|other| other[range.clone()] != *block) {
                found.different += 1;
            }
            let number = (at + start as u64) / BLOCK as u64;
            if *block != EMPTY[..block.len()] && !written(number) {
                found.stray += 1;
            }
        }
        at += len as u64;
        progress(at);
    }
    Ok(found)
}

fn named(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const BYTES: usize = CHUNK + 3 * BLOCK + 512;

    fn check(change: impl Fn(usize, &mut Vec<u8>)) -> Comparison {
        let folder = tempfile::tempdir().unwrap();
        let disks: Vec<_> = (0..3).map(|i| folder.path().join(i.to_string())).collect();
        for (i, disk) in disks.iter().enumerate() {
            // Block 1 was written; behind the volume lies something else on each.
            let mut content = vec![0; BYTES + 100];
            content[BLOCK..2 * BLOCK].fill(7);
            content[BYTES..].fill(i as u8);
            change(i, &mut content);
            fs::write(disk, content).unwrap();
        }
        let mut seen = 0;
        let found = compare(&disks, BYTES as u64, |block| block == 1, &mut |at| seen = at).unwrap();
        assert_eq!(seen, BYTES as u64);
        found
    }

    #[test]
    fn equal_volumes_are_equal_whatever_follows_them() {
        assert_eq!(check(|_, _| ()), Comparison::default());
    }

    #[test]
    fn one_byte_anywhere_is_found() {
        for (at, stray) in [(BLOCK, 0), (CHUNK - 1, 0), (BYTES - 1, 0)] {
            for disk in 1..3 {
                let found = check(|i, content| content[at] ^= u8::from(i == disk));
                assert_eq!(found, Comparison { different: 1, stray }, "byte {at} of {disk}");
            }
        }
    }

    #[test]
    fn what_nobody_wrote_is_found() {
        let found = check(|_, content| content[5 * BLOCK] = 1);
        assert_eq!(found, Comparison { different: 0, stray: 1 });
    }

    #[test]
    fn a_short_disk_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("short");
        fs::write(&disk, [0; 10]).unwrap();
        let error = compare(&[disk], 4096, |_| false, &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains("short"), "{error}");
    }
}
