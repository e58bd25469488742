//! Registered buffers: a pool whose pages the kernel pins once and not for each transfer.
//!
//! Pinning brings memory in and keeps it, so a pool that was pinned as a whole would cost its
//! limit even while nobody does I/O. The table is therefore empty at first, with a place for each
//! slab of the pool, and a slab gets its place with the first transfer that uses it. The pool
//! takes slabs in use before others, so there are as many as were needed at one time.
//!
//! The rest of the table is for memory that is not ours: the ublk driver puts a request's pages there,
//! and a disk reads straight into them ([`Place`]).

use std::fmt;

use io_uring::IoUring;

use crate::buf::SLAB;
use crate::{Buf, BufPool, Errno};

/// Places in the kernel's table (`IORING_MAX_REG_BUFFERS`).
const PLACES_MAX: usize = 1 << 14;

/// A place of a ring's table of registered buffers for the memory of a request: the ublk driver fills it
/// before it delivers the request, and empties it when the request has its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(pub(super) u16);

impl Place {
    /// Beyond every table. The driver can not fill it, and delivers the request all the same.
    pub const NOWHERE: Place = Place(u16::MAX);
}

/// The registered pool of a ring.
pub(super) struct Fixed {
    pool: BufPool,
    /// By slab: it is registered.
    registered: Box<[bool]>,
    /// Places behind those of the slabs that were given to somebody.
    given: usize,
    /// Of them, those that came back.
    returned: Vec<Place>,
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
        uring.submitter().register_buffers_sparse(PLACES_MAX as u32)?;
        Ok(Fixed {
            pool: pool.clone(),
            registered: vec![false; places].into_boxed_slice(),
            given: 0,
            returned: Vec::new(),
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

    /// Places for so many requests; `None` if there are not as many.
    pub(super) fn take_places(&mut self, count: usize) -> Option<Box<[Place]>> {
        let again = count.min(self.returned.len());
        let first = self.registered.len() + self.given;
        let end = first + count - again;
        if end > PLACES_MAX {
            return None;
        }
        self.given += count - again;
        let again = self.returned.len() - again;
        let fresh = (first..end).map(|nr| Place(nr as u16));
        Some(self.returned.drain(again..).chain(fresh).collect())
    }

    pub(super) fn give_places(&mut self, places: &[Place]) {
        self.returned.extend_from_slice(places);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ring;

    #[test]
    fn nobody_has_a_place_that_somebody_else_has() {
        let mut ring = Ring::new().unwrap();
        assert_eq!(ring.take_places(1), None, "without a table");
        let pool = BufPool::new(4 * SLAB).unwrap();
        ring.register_pool(&pool).unwrap();
        let all = PLACES_MAX - 4;
        let first = ring.take_places(3).unwrap();
        assert_eq!(*first, [Place(4), Place(5), Place(6)], "behind the slabs");
        let rest = ring.take_places(all - 3).unwrap();
        assert_eq!((rest[0], rest.len()), (Place(7), all - 3));
        assert_eq!(ring.take_places(1), None);
        ring.give_places(&first);
        assert_eq!(ring.take_places(4), None, "more than there are, and none is lost");
        let two = ring.take_places(2).unwrap();
        let one = ring.take_places(1).unwrap();
        assert!(two.iter().all(|place| first.contains(place) && !one.contains(place)));
    }
}
