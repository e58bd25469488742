//! Registered buffers: a pool whose pages the kernel pins once and not for each transfer.
//!
//! Pinning brings memory in and keeps it, so a pool that was pinned as a whole would cost its
//! limit even while nobody does I/O. The table is therefore empty at first, with a place for each
//! slab of the pool, and a slab gets its place with the first transfer that uses it. The pool
//! takes slabs in use before others, so there are as many as were needed at one time.

use std::fmt;

use io_uring::IoUring;

use crate::buf::SLAB;
use crate::{Buf, BufPool, Errno};

/// Places in the kernel's table (`IORING_MAX_REG_BUFFERS`).
const PLACES_MAX: usize = 1 << 14;

/// The registered pool of a ring.
pub(super) struct Fixed {
    pool: BufPool,
    /// By slab: it is registered.
    registered: Box<[bool]>,
    stats: FixedStats,
    /// The kernel pins no more; nothing else is tried.
    refused: Option<Errno>,
    /// That was not told yet.
    untold: bool,
}

/// What registered buffers are used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FixedStats {
    /// Memory that is registered, in bytes.
    pub bytes: usize,
    /// Transfers submitted with registered memory.
    pub transfers: u64,
}

impl Fixed {
    /// A table in which nothing is registered yet.
    pub(super) fn new(uring: &IoUring, pool: &BufPool) -> Result<Fixed, Errno> {
        let places = (pool.limit() / SLAB).min(PLACES_MAX);
        uring.submitter().register_buffers_sparse(places as u32)?;
        Ok(Fixed {
            pool: pool.clone(),
            registered: vec![false; places].into_boxed_slice(),
            stats: FixedStats::default(),
            refused: None,
            untold: false,
        })
    }

    /// The registered buffer that `buf` lies in, for a transfer that is about to be submitted.
    /// None if it is of another pool, or the kernel does not pin its slab.
    pub(super) fn of(&mut self, uring: &IoUring, buf: &Buf) -> Option<u16> {
        let (base, len) = self.pool.arena();
        let within = (buf.as_ptr() as usize).checked_sub(base as usize)?;
        if within >= len {
            return None;
        }
        // A piece never straddles slabs, and a buffer not its piece.
        let place = within / SLAB;
        if !*self.registered.get(place)? {
            if self.refused.is_some() {
                return None;
            }
            let slab =
                libc::iovec { iov_base: base.wrapping_add(place * SLAB).cast(), iov_len: SLAB };
            // SAFETY: the slab lies in the pool's mapping, which stays mapped for as long as the
            // ring lives because `self` holds a handle to the pool. Its place was empty, so no
            // operation in flight uses what this replaces.
            let result =
                unsafe { uring.submitter().register_buffers_update(place as u32, &[slab], None) };
            if let Err(error) = result {
                (self.refused, self.untold) = (Some(error.into()), true);
                return None;
            }
            self.registered[place] = true;
            self.stats.bytes += SLAB;
        }
        self.stats.transfers += 1;
        Some(place as u16)
    }

    pub(super) const fn stats(&self) -> FixedStats {
        self.stats
    }

    pub(super) fn take_refusal(&mut self) -> Option<Errno> {
        if std::mem::take(&mut self.untold) { self.refused } else { None }
    }
}

impl fmt::Debug for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fixed({:?})", self.stats)
    }
}
