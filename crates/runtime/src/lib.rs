//! Thread-per-core io_uring, buffers, and [`Target`], the trait that says what a block device is.
//!
//! There is no async runtime here: an operation is submitted with a token and its completion
//! comes back as a plain event to the loop that drives the thread. Everything on the I/O path
//! belongs to one thread, so nothing there takes a lock.
//!
//! * [`buf`]: reference-counted page-aligned buffers from a bounded pool.
//! * [`target`]: the waist between what serves a block device and what exports one.

pub mod buf;
mod errno;
pub mod target;

pub use buf::{AllocError, BUF_MAX, Buf, BufPool};
pub use errno::Errno;
pub use target::{
    Completion, Extent, FaultPlan, FaultyTarget, Intent, MemoryTarget, Op, OpenerId, Request,
    Target, TargetInfo,
};
