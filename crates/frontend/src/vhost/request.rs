//! What a chain of descriptors asks of a disk.
//!
//! ```text
//!  readable: type u32 | reserved u32 | sector u64 | data to be written
//!  writable: data that were read | status u8
//! ```
//!
//! Only this division counts, not which descriptor holds what.

use runtime::Op;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vocab::SECTOR_SIZE;

/// Bytes of the head.
const HEAD: usize = 16;
/// Bytes of a range to be discarded or zeroed.
const RANGE: usize = 16;
/// Bytes of the name of a disk.
pub const ID_LEN: usize = 20;

/// Status of a request that was carried out.
pub const OK: u8 = 0;
/// Of one that failed.
pub const IOERR: u8 = 1;
/// Of one that is not known here.
pub const UNSUPP: u8 = 2;

/// Longest discard or zeroing, in sectors.
pub const RANGE_MAX: u32 = (64 << 20) / SECTOR_SIZE as u32;

/// A piece of the guest's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Address in the guest.
    pub at: u64,
    /// Bytes.
    pub len: u32,
}

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Something for the target; `Read` and `Write` have their data in the pieces.
    Target {
        /// What.
        op: Op,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// The disk's name, into the pieces.
    Id,
    /// Nothing that can be done: this is the status.
    Refused(u8),
}

/// A chain, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parsed {
    /// What is asked.
    pub ask: Ask,
    /// Where the status goes.
    pub status: GuestAddress,
}

/// Takes a chain apart: its pieces, of which the first `readable` ones can be read. `pieces` holds the
/// data's memory afterwards: what is to be written, or where to read to. `None` if it has no place for
/// a status, so that it can not be answered.
pub fn parse(
    pieces: &mut Vec<Piece>,
    readable: usize,
    memory: &GuestMemoryMmap<()>,
) -> Option<Parsed> {
    let status = take_status(pieces, readable)?;
    let refused = |with| Some(Parsed { ask: Ask::Refused(with), status });
    let mut head = [0; HEAD];
    if !take_front(&mut pieces[..readable], memory, &mut head) {
        return refused(IOERR);
    }
    let (kind, sector) =
        (word(&head, 0), u64::from(word(&head, 8)) | u64::from(word(&head, 12)) << 32);
    let is_in = matches!(kind, 0 | 8);
    let range = match kind {
        11 | 13 => {
            let mut range = [0; RANGE];
            // One range at a time, which is what the configuration says.
            let whole = total(&pieces[..readable]) == Some(RANGE as u32);
            if !whole || !take_front(&mut pieces[..readable], memory, &mut range) {
                return refused(IOERR);
            }
            Some(range)
        }
        _ => None,
    };
    match is_in {
        true => drop(pieces.drain(..readable)),
        false => pieces.truncate(readable),
    }
    pieces.retain(|piece| piece.len > 0);
    let Some(len) = total(pieces) else { return refused(IOERR) };
    let offset = sector.checked_mul(SECTOR_SIZE);
    let ask = match (kind, offset, range) {
        (0, Some(offset), _) => Ask::Target { op: Op::Read, offset, len },
        (1, Some(offset), _) => Ask::Target { op: Op::Write, offset, len },
        (4, ..) => Ask::Target { op: Op::Flush, offset: 0, len: 0 },
        (8, ..) => Ask::Id,
        (11 | 13, _, Some(range)) => range_of(kind, &range),
        (0 | 1, None, _) => Ask::Refused(IOERR),
        _ => Ask::Refused(UNSUPP),
    };
    Some(Parsed { ask, status })
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// A discard or zeroing: sector, number of sectors, flags.
fn range_of(kind: u32, range: &[u8; RANGE]) -> Ask {
    let sector = u64::from(word(range, 0)) | u64::from(word(range, 4)) << 32;
    let (sectors, flags) = (word(range, 8), word(range, 12));
    let op = match (kind, flags) {
        (11, 0) => Op::Trim,
        (13, 0 | 1) => Op::WriteZeroes { no_hole: flags == 0 },
        _ => return Ask::Refused(UNSUPP),
    };
    match sector.checked_mul(SECTOR_SIZE) {
        Some(offset) if sectors <= RANGE_MAX => {
            Ask::Target { op, offset, len: sectors * SECTOR_SIZE as u32 }
        }
        _ => Ask::Refused(IOERR),
    }
}

fn total(pieces: &[Piece]) -> Option<u32> {
    pieces.iter().try_fold(0u32, |sum, piece| sum.checked_add(piece.len))
}

/// Takes the last writable byte off.
fn take_status(pieces: &mut [Piece], readable: usize) -> Option<GuestAddress> {
    let last = pieces[readable..].iter_mut().rev().find(|piece| piece.len > 0)?;
    last.len -= 1;
    last.at.checked_add(u64::from(last.len)).map(GuestAddress)
}

/// Reads `into` from the front of the pieces, and takes it off; false if they do not have that much.
fn take_front(pieces: &mut [Piece], memory: &GuestMemoryMmap<()>, into: &mut [u8]) -> bool {
    let mut done = 0;
    for piece in pieces {
        let n = (into.len() - done).min(piece.len as usize);
        if n == 0 {
            continue;
        }
        if memory.read_slice(&mut into[done..done + n], GuestAddress(piece.at)).is_err() {
            return false;
        }
        piece.at = piece.at.wrapping_add(n as u64);
        piece.len -= n as u32;
        done += n;
    }
    done == into.len()
}

/// Copies between the pieces, from `skip` bytes of them on, and a buffer.
pub fn copy(
    pieces: &[Piece],
    mut skip: usize,
    len: usize,
    mut each: impl FnMut(GuestAddress, std::ops::Range<usize>) -> bool,
) -> bool {
    let mut done = 0;
    for piece in pieces {
        let size = piece.len as usize;
        if skip >= size {
            skip -= size;
            continue;
        }
        let n = (size - skip).min(len - done);
        let Some(at) = piece.at.checked_add(skip as u64) else { return false };
        if n > 0 && !each(GuestAddress(at), done..done + n) {
            return false;
        }
        (skip, done) = (0, done + n);
        if done == len {
            return true;
        }
    }
    done == len
}
