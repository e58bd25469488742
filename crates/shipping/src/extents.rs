//! From disks into archives and back: what of a volume there is to carry.
//!
//! Zeroes are looked for by reading, in blocks; in files, holes are not read. What is different between two
//! snapshots is found by comparing them: that is right whatever keeps them. Nothing of a device is taken
//! for zero because it is new.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use crate::archive::{PIECE, Piece, Reader, Unreadable, Writer};

/// What is zero or different is told in blocks of so many bytes.
const BLOCK: usize = 4096;

/// Told how many bytes of the volume are done; an error ends the work.
pub type Progress<'a> = &'a mut dyn FnMut(u64) -> io::Result<()>;

/// Writes all of a volume that is not zero into an archive.
///
/// # Errors
/// If something can not be read or written, or `progress` says no.
pub fn write_full<W: Write>(
    volume: &File,
    size: u64,
    archive: &mut Writer<W>,
    progress: Progress<'_>,
) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while at < size {
        progress(at)?;
        at = next_data(volume, at, size)?;
        let part = part_of(&mut buffer, at, size);
        volume.read_exact_at(part, at)?;
        write_runs(part, |block| (!is_zero(block)).then_some(Run::Data), at, archive)?;
        at += part.len() as u64;
    }
    progress(size)
}

/// Writes what of a volume is not as it was in `base` into an incremental archive, and all that is at `always`
/// or behind it (where a block begins). A base that is smaller is taken to go on with zeroes.
///
/// # Errors
/// As for [`write_full`].
pub fn write_changed<W: Write>(
    volume: &File,
    size: u64,
    base: &File,
    base_size: u64,
    always: u64,
    archive: &mut Writer<W>,
    progress: Progress<'_>,
) -> io::Result<()> {
    let (mut new, mut old) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    while at < size {
        progress(at)?;
        if at < always {
            let old = next_data(base, at, base_size.min(size))?;
            let mut next = next_data(volume, at, size)?.min(old).max(at);
            if next >= base_size.min(size) {
                next = next_data(volume, next, size)?;
            }
            at = next.min(always);
        }
        let new = part_of(&mut new, at, size);
        let old = part_of(&mut old, at, size);
        volume.read_exact_at(new, at)?;
        let there = usize::try_from(base_size.saturating_sub(at)).unwrap_or(usize::MAX);
        let (there, beyond) = old.split_at_mut(there.min(old.len()));
        base.read_exact_at(there, at)?;
        beyond.fill(0);
        let mut blocks = old.chunks(BLOCK).zip((at..).step_by(BLOCK));
        let kind = |block: &[u8]| match blocks.next() {
            Some((before, place)) if before == block && place < always => None,
            _ if is_zero(block) => Some(Run::Zeroes),
            _ => Some(Run::Data),
        };
        write_runs(new, kind, at, archive)?;
        at += new.len() as u64;
    }
    progress(size)
}

/// What a block is, if it is to be written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Run {
    Data,
    Zeroes,
}

/// Writes neighbouring blocks of a kind together. `kind` is asked for each, in their order.
fn write_runs<W: Write>(
    part: &[u8],
    mut kind: impl FnMut(&[u8]) -> Option<Run>,
    at: u64,
    archive: &mut Writer<W>,
) -> io::Result<()> {
    let mut write = |run: Option<Run>, from: usize, to: usize| match run {
        Some(Run::Data) => archive.data(at + from as u64, &part[from..to]),
        Some(Run::Zeroes) => archive.zeroes(at + from as u64, (to - from) as u64),
        None => Ok(()),
    };
    let (mut run, mut from) = (None, 0);
    for (index, block) in part.chunks(BLOCK).enumerate() {
        let next = kind(block);
        if next != run {
            write(run, from, index * BLOCK)?;
            (run, from) = (next, index * BLOCK);
        }
    }
    write(run, from, part.len())
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// The part of a buffer that is for the volume from `at` on.
fn part_of(buffer: &mut [u8], at: u64, size: u64) -> &mut [u8] {
    let length = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX);
    let length = length.min(buffer.len());
    &mut buffer[..length]
}

/// Where there may be data from `at` on, a multiple of a block; `size` if there are none.
fn next_data(file: &File, at: u64, size: u64) -> io::Result<u64> {
    if at >= size || !file.metadata()?.is_file() {
        return Ok(at.min(size));
    }
    match seek(file, SeekFrom::Data(at)) {
        Ok(found) => Ok((found / BLOCK as u64 * BLOCK as u64).max(at).min(size)),
        Err(Errno::NXIO) => Ok(size),
        // A file system that does not know of holes.
        Err(Errno::INVAL | Errno::NOTSUP) => Ok(at),
        Err(error) => Err(error.into()),
    }
}

/// Puts the data of an archive on a volume.
///
/// `clean` says that whatever the volume was not given yet reads as zeroes; otherwise zeroes are written
/// wherever a full archive has nothing. The volume has the data only when this has returned without an
/// error and it was synced.
///
/// # Errors
/// If the archive is wrong or does not fit, something can not be read or written, or `progress` says no.
pub fn read_into<R: Read>(
    archive: &mut Reader<R>,
    volume: &File,
    clean: bool,
    progress: Progress<'_>,
) -> Result<(), Unreadable> {
    let full = archive.header().base.is_none();
    let size = archive.header().size;
    let mut done = 0;
    let io = Unreadable::Io;
    while let Some(piece) = archive.next_piece()? {
        let (offset, length) = match &piece {
            Piece::Data { offset, data } => (*offset, data.len() as u64),
            Piece::Zeroes { offset, length } => (*offset, *length),
        };
        if full && !clean {
            write_zeroes(volume, done, offset - done, progress).map_err(io)?;
        }
        match piece {
            Piece::Data { offset, data } => volume.write_all_at(data, offset).map_err(io)?,
            Piece::Zeroes { offset, length } => {
                make_zero(volume, offset, length, progress).map_err(io)?;
            }
        }
        done = offset + length;
        progress(done).map_err(io)?;
    }
    if full && !clean {
        write_zeroes(volume, done, size - done, progress).map_err(io)?;
    }
    progress(size).map_err(io)
}

/// Writes zeroes to a range: what it had is gone.
///
/// # Errors
/// If they can not be written, or `progress` says no.
pub fn zero(file: &File, offset: u64, length: u64, progress: Progress<'_>) -> io::Result<()> {
    write_zeroes(file, offset, length, progress)
}

/// Has a range read as zeroes, without taking space where that can be.
fn make_zero(file: &File, offset: u64, length: u64, progress: Progress<'_>) -> io::Result<()> {
    if file.metadata()?.is_file() {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fallocate(file, flags, offset, length).is_ok() {
            return Ok(());
        }
    }
    write_zeroes(file, offset, length, progress)
}

fn write_zeroes(
    file: &File,
    mut offset: u64,
    mut length: u64,
    progress: Progress<'_>,
) -> io::Result<()> {
    let zeroes = vec![0; PIECE.min(usize::try_from(length).unwrap_or(PIECE))];
    while length > 0 {
        progress(offset)?;
        let part = (zeroes.len() as u64).min(length);
        file.write_all_at(&zeroes[..part as usize], offset)?;
        offset += part;
        length -= part;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
