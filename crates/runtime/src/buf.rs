//! Reference-counted, page-aligned I/O buffers from a bounded, recycling pool.
//!
//! A [`BufPool`] belongs to one thread. It reserves address space for its whole limit once and
//! touches memory only as it is used:
//!
//! ```text
//! arena:  | slab 0 (1 MiB) | slab 1 | ...          one anonymous mapping
//! slab:   | piece | piece | ...                    all pieces of a slab have one size class
//! class:  4 KiB, 8 KiB, ... 1 MiB                  a slab with no piece in use has no class
//! ```
//!
//! Taking and returning a piece is O(1) and allocates nothing. A [`Buf`] is a view of a piece;
//! clones and sub-views share the piece by a plain (not atomic) count, and the piece returns to
//! its slab with the last of them.
//!
//! **Aliasing rule**, on which all `unsafe` here and in the ring rests: bytes of a piece are
//! written only by the holder of its *only* reference. [`Buf::as_mut_slice`] checks that, and an
//! operation by which the kernel writes into a buffer takes a unique `Buf` by value and gives it
//! back with the completion. So a `&[u8]` of a `Buf` can never change under its reader.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::Errno;

/// Smallest piece, and the alignment of every piece, in bytes.
pub const BUF_MIN: usize = 4096;
/// Largest buffer in bytes: DRBD's maximum I/O payload of one packet (wire §2).
pub const BUF_MAX: usize = 1 << 20;

/// Pieces of one size class lie in a slab; see the module.
pub(crate) const SLAB: usize = BUF_MAX;
const CLASSES: usize = (BUF_MAX / BUF_MIN).ilog2() as usize + 1;
const PIECES_MAX: usize = SLAB / BUF_MIN;
const _: () = assert!(PIECES_MAX == 256 && CLASSES == 9);

/// Why a pool gave no buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocError {
    /// More than [`BUF_MAX`] bytes were asked for; waiting will not help.
    TooLarge,
    /// The pool's memory is in use: try again once buffers have been returned.
    Exhausted,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocError::TooLarge => write!(f, "a buffer holds at most {BUF_MAX} bytes"),
            AllocError::Exhausted => f.write_str("all buffer memory is in use"),
        }
    }
}

impl std::error::Error for AllocError {}

/// A thread's source of [`Buf`]s. Clones are handles to the same pool.
#[derive(Clone)]
pub struct BufPool {
    shared: Rc<Shared>,
}

struct Shared {
    base: NonNull<u8>,
    slabs: usize,
    /// Reference count of the piece that begins at each page of the arena; 0 = free.
    refs: Box<[Cell<u32>]>,
    state: RefCell<State>,
}

struct State {
    slabs: Box<[Slab]>,
    /// Slabs that have no class.
    empty: Vec<u32>,
    /// Per class: slabs with at least one piece in use and one free.
    partial: [Vec<u32>; CLASSES],
    in_use: usize,
}

#[derive(Clone, Default)]
struct Slab {
    class: u8,
    used: u16,
    /// Index in `partial[class]` while listed there.
    listed_at: u32,
    /// One bit per piece, set = free.
    free: [u64; PIECES_MAX / 64],
}

const fn class_size(class: usize) -> usize {
    BUF_MIN << class
}

fn class_for(len: usize) -> usize {
    len.max(BUF_MIN).next_power_of_two().ilog2() as usize - BUF_MIN.ilog2() as usize
}

impl BufPool {
    /// A pool that hands out at most `limit` bytes at a time, rounded down to whole MiB and up
    /// to at least one. Address space is reserved at once, memory is used as it is touched and
    /// kept for reuse.
    ///
    /// # Errors
    /// The mapping's error number if the address space can not be reserved.
    pub fn new(limit: usize) -> Result<BufPool, Errno> {
        let slabs = (limit / SLAB).max(1);
        let len = slabs.checked_mul(SLAB).ok_or(Errno::ENOMEM)?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no
        // existing memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::ENOMEM)?;
        let state = State {
            slabs: vec![Slab::default(); slabs].into_boxed_slice(),
            empty: (0..slabs as u32).rev().collect(),
            partial: std::array::from_fn(|_| Vec::with_capacity(slabs)),
            in_use: 0,
        };
        let refs = vec![Cell::new(0); slabs * PIECES_MAX].into_boxed_slice();
        Ok(BufPool { shared: Rc::new(Shared { base, slabs, refs, state: RefCell::new(state) }) })
    }

    /// A buffer of exactly `len` bytes with unspecified (stale, but initialised) content.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed then.
    pub fn alloc(&self, len: usize) -> Result<Buf, AllocError> {
        if len > BUF_MAX {
            return Err(AllocError::TooLarge);
        }
        let page =
            self.shared.state.borrow_mut().take(class_for(len)).ok_or(AllocError::Exhausted)?;
        let refs = &self.shared.refs[page as usize];
        assert_eq!(refs.get(), 0, "a free piece has no references");
        refs.set(1);
        // SAFETY: `page` lies within the arena, which is one mapping of `slabs * SLAB` bytes.
        let data = unsafe { self.shared.base.add(page as usize * BUF_MIN) };
        Ok(Buf { shared: self.shared.clone(), data, len: len as u32, page })
    }

    /// A buffer of `len` zero bytes.
    ///
    /// # Errors
    /// As [`BufPool::alloc`].
    pub fn alloc_zeroed(&self, len: usize) -> Result<Buf, AllocError> {
        let mut buf = self.alloc(len)?;
        buf.as_mut_slice().expect("a new buffer is unique").fill(0);
        Ok(buf)
    }

    /// A buffer holding a copy of `bytes`.
    ///
    /// # Errors
    /// As [`BufPool::alloc`].
    pub fn copy_from(&self, bytes: &[u8]) -> Result<Buf, AllocError> {
        let mut buf = self.alloc(bytes.len())?;
        buf.as_mut_slice().expect("a new buffer is unique").copy_from_slice(bytes);
        Ok(buf)
    }

    /// Most bytes that can be in use at a time.
    pub fn limit(&self) -> usize {
        self.shared.slabs * SLAB
    }

    /// The memory all buffers come from.
    pub(crate) fn arena(&self) -> (*mut u8, usize) {
        (self.shared.base.as_ptr(), self.limit())
    }

    /// Bytes in use, each buffer counted with its size class.
    pub fn in_use(&self) -> usize {
        self.shared.state.borrow().in_use
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufPool({} of {} bytes in use)", self.in_use(), self.limit())
    }
}

impl State {
    /// Takes a free piece of `class` and returns the arena page it begins at.
    fn take(&mut self, class: usize) -> Option<u32> {
        let slab_nr = match self.partial[class].last() {
            Some(&nr) => nr,
            None => {
                let nr = self.empty.pop()?;
                let pieces = SLAB / class_size(class);
                let slab = &mut self.slabs[nr as usize];
                slab.class = class as u8;
                for (word, free) in slab.free.iter_mut().enumerate() {
                    let bits = pieces.saturating_sub(word * 64).min(64);
                    *free = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
                }
                slab.listed_at = self.partial[class].len() as u32;
                self.partial[class].push(nr);
                nr
            }
        };
        let slab = &mut self.slabs[slab_nr as usize];
        let word = slab.free.iter().position(|w| *w != 0).expect("a listed slab has a free piece");
        let bit = slab.free[word].trailing_zeros() as usize;
        slab.free[word] &= !(1 << bit);
        slab.used += 1;
        if slab.used as usize == SLAB / class_size(class) {
            self.partial[class].pop();
        }
        self.in_use += class_size(class);
        let pages_per_piece = class_size(class) / BUF_MIN;
        Some(slab_nr * PIECES_MAX as u32 + ((word * 64 + bit) * pages_per_piece) as u32)
    }

    /// Returns the piece that begins at `page`; the answer is its size.
    fn give_back(&mut self, page: u32) -> usize {
        let slab_nr = page / PIECES_MAX as u32;
        let slab = &mut self.slabs[slab_nr as usize];
        let class = slab.class as usize;
        let piece = page as usize % PIECES_MAX / (class_size(class) / BUF_MIN);
        let mask = 1u64 << (piece % 64);
        assert_eq!(slab.free[piece / 64] & mask, 0, "a piece in use is not marked free");
        slab.free[piece / 64] |= mask;
        let was_full = slab.used as usize == SLAB / class_size(class);
        slab.used -= 1;
        self.in_use -= class_size(class);
        let now_empty = slab.used == 0;
        if was_full && !now_empty {
            slab.listed_at = self.partial[class].len() as u32;
            self.partial[class].push(slab_nr);
        } else if now_empty {
            if !was_full {
                let at = slab.listed_at as usize;
                self.partial[class].swap_remove(at);
                if let Some(&moved) = self.partial[class].get(at) {
                    self.slabs[moved as usize].listed_at = at as u32;
                }
            }
            self.empty.push(slab_nr);
        }
        class_size(class)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        debug_assert_eq!(self.state.borrow().in_use, 0, "every Buf keeps its pool alive");
        // SAFETY: base and length are those of our own mapping. Every `Buf` holds an `Rc` of
        // this struct, so no pointer into the mapping is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.slabs * SLAB) };
    }
}

/// A view of a page-aligned buffer; see the module for sharing and aliasing.
///
/// A new `Buf` begins on a page; a sub-view begins where it was cut.
pub struct Buf {
    shared: Rc<Shared>,
    data: NonNull<u8>,
    len: u32,
    page: u32,
}

impl Buf {
    /// Length of the view in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True if the view has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `data..data+len` lies within a live piece (`slice` and `truncate` only
        // shrink), which is mapped and initialised (anonymous memory). By the aliasing rule
        // nobody writes to the piece while this reference to it exists and is borrowed.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len as usize) }
    }

    /// The bytes for writing, or `None` while clones or other views of the piece exist.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        if !self.is_unique() {
            return None;
        }
        // SAFETY: as in `as_slice`; in addition this is the piece's only reference and it is
        // borrowed mutably, so no other slice of the piece can exist.
        Some(unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len as usize) })
    }

    /// True if no other `Buf` refers to the same piece.
    pub fn is_unique(&self) -> bool {
        self.refs().get() == 1
    }

    /// A view of `len` bytes from `offset`, sharing the memory.
    ///
    /// # Panics
    /// If the range does not lie within this view.
    pub fn slice(&self, offset: usize, len: usize) -> Buf {
        let end = offset.checked_add(len).expect("range end fits");
        assert!(end <= self.len as usize, "view {offset}+{len} of a buffer of {}", self.len);
        let mut view = self.clone();
        // SAFETY: offset <= len, so the pointer stays within the piece or one past its end.
        view.data = unsafe { self.data.add(offset) };
        view.len = len as u32;
        view
    }

    /// Shortens the view to its first `len` bytes.
    ///
    /// # Panics
    /// If the view is shorter than that.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len as usize, "truncate to {len} of a buffer of {}", self.len);
        self.len = len as u32;
    }

    /// Address of the first byte, for handing to the kernel.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    fn refs(&self) -> &Cell<u32> {
        &self.shared.refs[self.page as usize]
    }
}

impl Clone for Buf {
    fn clone(&self) -> Buf {
        let refs = self.refs();
        refs.set(refs.get().checked_add(1).expect("fewer than 2^32 views of a piece"));
        Buf { shared: self.shared.clone(), data: self.data, len: self.len, page: self.page }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let refs = self.refs();
        refs.set(refs.get() - 1);
        if refs.get() == 0 {
            let size = self.shared.state.borrow_mut().give_back(self.page);
            if cfg!(debug_assertions) {
                // Whoever still reads it, or takes a new buffer's content for something, shall
                // notice in tests.
                // SAFETY: the whole piece lies in the arena, and this was its last reference.
                unsafe {
                    let piece = self.shared.base.add(self.page as usize * BUF_MIN);
                    piece.write_bytes(0xa5, size);
                }
            }
        }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes, {} views)", self.len, self.refs().get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(mib: usize) -> BufPool {
        BufPool::new(mib << 20).unwrap()
    }

    #[test]
    fn buffers_are_page_aligned_and_have_the_length_asked_for() {
        let pool = pool(16);
        for len in [0, 1, 512, 4096, 4097, 65536, 100_000, BUF_MAX] {
            let buf = pool.alloc(len).unwrap();
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_ptr() as usize % BUF_MIN, 0);
        }
        assert_eq!(pool.in_use(), 0);
        assert_eq!(pool.alloc(BUF_MAX + 1).unwrap_err(), AllocError::TooLarge);
    }

    #[test]
    fn the_limit_holds_and_returned_memory_serves_another_class() {
        let pool = pool(2);
        let small: Vec<Buf> = (0..512).map(|_| pool.alloc(4096).unwrap()).collect();
        assert_eq!(pool.in_use(), pool.limit());
        assert_eq!(pool.alloc(1).unwrap_err(), AllocError::Exhausted);
        drop(small);
        let big = [pool.alloc(BUF_MAX).unwrap(), pool.alloc(BUF_MAX).unwrap()];
        assert_eq!(pool.alloc(1).unwrap_err(), AllocError::Exhausted);
        drop(big);
        assert_eq!(pool.alloc(70_000).unwrap().len(), 70_000);
    }

    #[test]
    fn only_a_unique_buffer_can_be_written() {
        let pool = pool(1);
        let mut buf = pool.copy_from(&[7; 100]).unwrap();
        let view = buf.slice(10, 20);
        assert!(buf.as_mut_slice().is_none());
        drop(view);
        buf.as_mut_slice().unwrap()[0] = 1;
        assert_eq!(&buf[..2], &[1, 7]);
    }

    #[test]
    fn a_view_keeps_the_piece_and_the_pool_alive() {
        let pool = pool(1);
        let view = pool.copy_from(b"0123456789").unwrap().slice(3, 4).slice(1, 2);
        assert_eq!(pool.in_use(), 4096);
        drop(pool);
        assert_eq!(view.as_slice(), b"45");
    }

    #[test]
    #[should_panic(expected = "view 5+6 of a buffer of 10")]
    fn a_view_beyond_the_end_panics() {
        let _ = pool(1).copy_from(&[0; 10]).unwrap().slice(5, 6);
    }

    /// A model of who owns which bytes: random takes and returns never hand out overlapping
    /// pieces and never lose memory.
    #[test]
    fn pieces_in_use_never_overlap() {
        let pool = pool(8);
        let mut random = crate::target::SplitMix(1);
        let mut held: Vec<Buf> = Vec::new();
        for _ in 0..20_000 {
            if random.below(100) < 55 {
                let magnitude = random.below(21);
                let len = 1 + random.below(1 << magnitude) as usize;
                if let Ok(buf) = pool.alloc(len) {
                    held.push(buf);
                }
            } else if !held.is_empty() {
                held.swap_remove(random.below(held.len() as u64) as usize);
            }
        }
        let mut ranges: Vec<(usize, usize)> = held
            .iter()
            .map(|b| (b.as_ptr() as usize, b.as_ptr() as usize + class_size(class_for(b.len()))))
            .collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0));
        assert_eq!(pool.in_use(), ranges.iter().map(|(a, b)| b - a).sum::<usize>());
        drop(held);
        assert_eq!(pool.in_use(), 0);
        let all: Vec<Buf> = (0..8).map(|_| pool.alloc(BUF_MAX).unwrap()).collect();
        assert_eq!(all.len(), 8);
    }
}
