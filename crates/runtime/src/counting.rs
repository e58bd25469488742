//! An allocator that counts, for tests that show where nothing is allocated.
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: runtime::counting::Counting = runtime::counting::Counting;
//!
//! let before = runtime::counting::allocations();
//! let boxed = Box::new(1);
//! assert_eq!(runtime::counting::allocations(), before + 1);
//! # drop(boxed);
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count for each thread. It counts only where it is the
/// `global_allocator`.
#[derive(Clone, Copy, Debug)]
pub struct Counting;

/// Allocations of the calling thread so far; memory that was made larger or smaller counts, too.
pub fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

fn count() {
    ALLOCATIONS.with(|n| n.set(n.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator; counting touches a thread-local
// that needs no allocation itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the system allocator's demand.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as in `alloc`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
