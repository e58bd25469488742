//! Provided buffers: memory that the kernel takes a piece of for each completion of a command that completes
//! many times, and that goes back to it at once.
//!
//! ```text
//! entry 0 … entry 63 │ (to the end of the page) │ piece 0 │ … │ piece 63
//! ```
//!
//! An entry gives the kernel a piece. Its end of the line of entries, the tail, lies in what entry 0 does not use.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

use crate::Errno;

/// The one group of a ring.
pub(super) const GROUP: u16 = 0;
/// A power of two.
const PIECES: u16 = 64;
/// Bytes of a piece: 128 numbers of slots, which is as many as the ublk driver gives at a time.
const PIECE: usize = 256;
/// Where the pieces begin.
const PAGE: usize = 4096;
const BYTES: usize = PAGE + PIECES as usize * PIECE;

const _: () = assert!(PIECES.is_power_of_two());
const _: () = assert!(size_of::<BufRingEntry>() * PIECES as usize <= PAGE);

/// The pieces of a ring, registered with it.
pub(super) struct Provided {
    base: NonNull<u8>,
    tail: u16,
}

impl Provided {
    /// Gives the kernel all pieces.
    ///
    /// # Errors
    /// `ENOMEM`, or what the kernel has against it.
    pub(super) fn register(uring: &IoUring) -> Result<Provided, Errno> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let mut provided =
            Provided { base: NonNull::new(base.cast()).ok_or(Errno::ENOMEM)?, tail: 0 };
        let address = provided.base.as_ptr() as u64;
        // SAFETY: the mapping begins with a page and has room for so many entries. It outlives the ring: whoever
        // owns both drops this after it, or never.
        unsafe { uring.submitter().register_buf_ring_with_flags(address, PIECES, GROUP, 0) }?;
        for piece in 0..PIECES {
            provided.give(piece);
        }
        Ok(provided)
    }

    fn piece(&self, nr: u16) -> *mut u8 {
        assert!(nr < PIECES, "the kernel takes what it was given");
        // SAFETY: that piece lies within the mapping.
        unsafe { self.base.as_ptr().add(PAGE + usize::from(nr) * PIECE) }
    }

    /// Gives the kernel a piece that it has not.
    fn give(&mut self, nr: u16) {
        let address = self.piece(nr) as u64;
        let entries = self.base.as_ptr().cast::<BufRingEntry>();
        // SAFETY: the entry lies within the first page, which is zeroed or has entries, both of which are values of
        // its integers. The kernel reads entries up to the tail only: this one is beyond it. Nobody else has a
        // reference into the mapping. What is set is not where the tail lies.
        let entry = unsafe { &mut *entries.add(usize::from(self.tail & (PIECES - 1))) };
        entry.set_addr(address);
        entry.set_len(PIECE as u32);
        entry.set_bid(nr);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the first entry lies at the beginning of the mapping and was written, or zeroed; the tail is two
        // bytes of it, aligned as they should be, that we write and the kernel reads, both atomically.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(entries).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// Takes the numbers that the kernel has put into a piece, `bytes` in all, and gives it back.
    pub(super) fn take(&mut self, nr: u16, bytes: usize, numbers: &mut Vec<u16>) {
        let piece = self.piece(nr).cast::<u16>();
        for at in 0..bytes.min(PIECE) / size_of::<u16>() {
            // SAFETY: it lies within the piece, whose beginning is aligned for more than that, and which the kernel
            // has filled before it completed the command with it; it does not touch it until it is given back.
            numbers.push(unsafe { piece.add(at).read() });
        }
        self.give(nr);
    }
}

impl Drop for Provided {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `register`, and no reference into it exists.
        unsafe { libc::munmap(self.base.as_ptr().cast(), BYTES) };
    }
}
