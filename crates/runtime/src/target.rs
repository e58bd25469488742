//! The waist: everything that serves a block device implements [`Target`], every front end
//! consumes it.
//!
//! # Contract
//!
//! * A target and its users live on one thread. Nothing here blocks.
//! * A user first [`open`](Target::open)s under an [`OpenerId`] of its choice, unique among those
//!   open at the time. The answer is a [`Completion`] with the tag given to `open`; it may take
//!   seconds (a replicated volume is promoted by its first writer) and may be an error, after
//!   which the opener is not open. [`Target::info`] is valid from the successful answer on.
//! * Each [`Request`] is answered by exactly one [`Completion`] with the same opener and tag, in
//!   any order, unless the opener closes first. Tags are the user's and are not looked at.
//! * [`close`](Target::close) takes effect at once for the user: no completion for that opener
//!   is delivered any more. Requests already submitted are still carried out, and the target
//!   counts the opener until they are.
//! * Requests may be held back until [`flush_submissions`](Target::flush_submissions), so that
//!   everything collected in one turn of the loop leaves in one batch. Call it once per turn.
//! * A write is durable once a `Flush` submitted after its completion has completed, or at its
//!   own completion if it carries `fua`. Overlapping requests in flight together have no order.
//! * A target that is suspended (quorum lost, no data) simply does not complete requests.

mod faulty;
mod memory;

#[cfg(test)]
pub(crate) use faulty::SplitMix;
pub use faulty::{FaultPlan, FaultyTarget};
pub use memory::MemoryTarget;

use vocab::Bytes;

use crate::{Buf, Errno, Place};

/// Identifies who holds a target open: one client connection of a front end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpenerId(pub u64);

/// What an opener wants to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// Only reads; never promotes a volume.
    Read,
    /// Reads and writes; may promote a volume.
    Write,
    /// As the request asks that comes: the answer to `open` is immediate, and what can not be opened for a request fails
    /// that request. A target that can not be closed in between takes it for `Write`.
    Standby,
}

/// What a block device can do, and its geometry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TargetInfo {
    /// Size in bytes, a multiple of `block_size_min`.
    pub size: Bytes,
    /// Offset and length of every request are multiples of this power of two (logical block
    /// size), in bytes, at least 512.
    pub block_size_min: u32,
    /// Requests of multiples of this perform best, in bytes.
    pub block_size_preferred: u32,
    /// Largest `Read` or `Write` in bytes; at most [`crate::BUF_MAX`].
    pub max_transfer: u32,
    /// Nobody may write, whatever the intent.
    pub read_only: bool,
    /// `Trim` is supported.
    pub can_trim: bool,
    /// `WriteZeroes` is supported.
    pub can_zero: bool,
    /// `Flush` is supported; if not, a write is durable when it completes.
    pub can_flush: bool,
    /// `fua` is supported.
    pub can_fua: bool,
    /// Several openers see one coherent device: a flush by one covers completed writes of all.
    pub multi_conn: bool,
    /// Seeking costs time.
    pub rotational: bool,
}

/// What to do with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Read into `buf`.
    Read,
    /// Write from `buf`.
    Write,
    /// Make all completed writes durable. Offset and length are 0.
    Flush,
    /// Deallocate; the content becomes unspecified unless the device promises zeroes.
    Trim,
    /// Make the range read as zeroes.
    WriteZeroes {
        /// The range must stay allocated: a later write may not fail for lack of space.
        no_hole: bool,
    },
    /// Report what holds for the parts of the range.
    BlockStatus(Aspect),
}

/// What is asked about the parts of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aspect {
    /// Which are holes.
    Allocation,
    /// Which do not all replicas have.
    OutOfSync,
}

impl Op {
    /// True if the operation changes the device's content.
    pub const fn is_write(self) -> bool {
        matches!(self, Op::Write | Op::Trim | Op::WriteZeroes { .. })
    }
}

/// One operation on a target.
#[derive(Debug)]
pub struct Request {
    /// Who asks.
    pub opener: OpenerId,
    /// Returned with the completion.
    pub tag: u64,
    /// What to do.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
    /// Durable before it completes (`Write`, `Trim`, `WriteZeroes`).
    pub fua: bool,
    /// `Write`: the data. `Read`: a unique buffer that may be filled. Both exactly `len` bytes.
    /// Other operations: `None`.
    pub buf: Option<Buf>,
    /// `Read`: where the data may be put instead, until the completion. Nobody has to.
    pub place: Option<Place>,
}

/// A run of bytes of one kind (`BlockStatus`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// The kind.
    pub kind: ExtentKind,
}

impl Extent {
    /// A list of this one.
    pub fn alone(self) -> Box<[Extent]> {
        Box::new([self])
    }
}

/// What is known of a run of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// Nothing out of the ordinary: it may have data, and all replicas have them.
    Plain,
    /// Not allocated; it reads as zeroes.
    Hole,
    /// A replica may miss it.
    OutOfSync,
}

/// The answer to one [`Request`] or [`Target::open`].
#[derive(Debug)]
pub struct Completion {
    /// Whose request.
    pub opener: OpenerId,
    /// The request's tag.
    pub tag: u64,
    /// How it went.
    pub result: Result<(), Errno>,
    /// A successful `Read`'s data (not necessarily the buffer that was passed in). Otherwise
    /// the request's buffer if the target has it at hand, for reuse; its content then means
    /// nothing.
    pub buf: Option<Buf>,
    /// A successful `Read`'s data are at the request's `place`.
    pub placed: bool,
    /// `BlockStatus`: extents from the request's offset on. At least one, and they may end
    /// before the range does or run beyond it.
    pub extents: Option<Box<[Extent]>>,
}

impl Completion {
    /// An answer without data.
    pub fn new(opener: OpenerId, tag: u64, result: Result<(), Errno>) -> Completion {
        Completion { opener, tag, result, buf: None, placed: false, extents: None }
    }
}

/// A block device; see the module for the contract.
pub trait Target {
    /// Size, limits and capabilities.
    fn info(&self) -> TargetInfo;

    /// Opens the device for `opener`; answered by a completion with `tag`.
    fn open(&mut self, opener: OpenerId, intent: Intent, tag: u64);

    /// Ends `opener`'s use (also one whose open is not answered yet). Unknown openers are
    /// ignored.
    fn close(&mut self, opener: OpenerId);

    /// Takes a request. Errors, including a violated limit, come as its completion.
    fn submit(&mut self, request: Request);

    /// Sends off what `submit` collected.
    fn flush_submissions(&mut self);

    /// Appends the completions that are ready to `out`.
    fn poll_completions(&mut self, out: &mut Vec<Completion>);
}

impl TargetInfo {
    /// Checks a request against the limits: what every target refuses, with the same number.
    ///
    /// # Errors
    /// * `EPERM`: writes a read-only device.
    /// * `EOPNOTSUPP`: the operation, or `fua`, is not supported.
    /// * `ENOSPC` (writes) or `EINVAL` (others): beyond the end.
    /// * `EINVAL`: misaligned, empty, too long, or the buffer does not fit the request.
    pub fn check(&self, request: &Request) -> Result<(), Errno> {
        let Request { op, offset, len, fua, .. } = *request;
        if op.is_write() && self.read_only {
            return Err(Errno::EPERM);
        }
        let supported = match op {
            Op::Read | Op::Write | Op::BlockStatus(_) => true,
            Op::Flush => self.can_flush,
            Op::Trim => self.can_trim,
            Op::WriteZeroes { .. } => self.can_zero,
        };
        if !supported || (fua && !self.can_fua) {
            return Err(Errno::EOPNOTSUPP);
        }
        let buf_fits = match op {
            Op::Read => {
                request.buf.as_ref().is_some_and(|b| b.len() == len as usize && b.is_unique())
            }
            Op::Write => request.buf.as_ref().is_some_and(|b| b.len() == len as usize),
            _ => request.buf.is_none(),
        };
        if !buf_fits {
            return Err(Errno::EINVAL);
        }
        if op == Op::Flush {
            return if offset == 0 && len == 0 { Ok(()) } else { Err(Errno::EINVAL) };
        }
        let block = u64::from(self.block_size_min);
        if len == 0 || !offset.is_multiple_of(block) || !u64::from(len).is_multiple_of(block) {
            return Err(Errno::EINVAL);
        }
        if matches!(op, Op::Read | Op::Write) && len > self.max_transfer {
            return Err(Errno::EINVAL);
        }
        match offset.checked_add(u64::from(len)) {
            Some(end) if end <= self.size.0 => Ok(()),
            _ if op.is_write() => Err(Errno::ENOSPC),
            _ => Err(Errno::EINVAL),
        }
    }
}

#[cfg(test)]
mod tests;
