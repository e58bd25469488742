//! What an operation holds on to while the kernel works on it.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;

use io_uring::types::Timespec;
use socket2::SockAddr;

use super::Place;
use super::ublk::{UblkBatch, UblkCommand, UblkElements};
use crate::{Buf, Errno, Extent};

/// Chosen by the caller, returned with the completion; not interpreted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// Names an operation of one ring for [`crate::Ring::cancel`]. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// A shared file descriptor, closed with its last owner. Operations own it too, so its number
/// can not be reused by another file while one is queued or in flight.
#[derive(Clone, Debug)]
pub struct Fd {
    fd: Rc<OwnedFd>,
    in_memory: bool,
}

impl Fd {
    /// Takes ownership.
    pub fn new(fd: OwnedFd) -> Fd {
        Fd { fd: Rc::new(fd), in_memory: false }
    }

    /// Takes ownership of a file whose content lies in memory: its transfers never wait for a
    /// disk, and are done as they are submitted.
    pub fn in_memory(fd: OwnedFd) -> Fd {
        Fd { fd: Rc::new(fd), in_memory: true }
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.in_memory
    }
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Fd {
        Fd::new(fd)
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completed {
    /// The caller's token.
    pub token: Token,
    /// The operation's result: bytes transferred, poll mask, or 0.
    pub result: Result<u32, Errno>,
    /// What was passed in for the operation, or an accepted connection.
    pub payload: Payload,
}

/// Memory and descriptors handed back with a completion.
#[derive(Debug)]
pub enum Payload {
    /// Nothing.
    None,
    /// The buffer of a read, write, send or receive.
    Buf(Buf),
    /// The segments of a vectored read, write, send or receive.
    Vectored(Box<Vectored>),
    /// The accepted connection.
    Fd(OwnedFd),
    /// What of the range is holes.
    Extents(Box<[Extent]>),
    /// The slots of a command for several.
    Elements(UblkElements),
}

/// One segment of a [`Vectored`].
#[derive(Debug)]
pub(crate) enum Segment {
    /// A range of `Vectored::bytes`.
    Bytes { at: u32, len: u32 },
    /// A whole view.
    Buf(Buf),
}

impl Segment {
    pub(crate) fn len(&self) -> usize {
        match self {
            Segment::Bytes { len, .. } => *len as usize,
            Segment::Buf(buf) => buf.len(),
        }
    }
}

/// A list of memory segments for one vectored operation, reusable so that a steady stream of
/// operations allocates nothing.
pub struct Vectored {
    /// Small pieces (packet headers), referred to by segments.
    pub(crate) bytes: Vec<u8>,
    pub(crate) segments: VecDeque<Segment>,
    /// Bytes already transferred, counted from the start of the first segment.
    pub(crate) done: usize,
    iovecs: Vec<libc::iovec>,
    message: libc::msghdr,
}

/// Most segments the kernel takes in one call (`IOV_MAX`).
const IOVECS_MAX: usize = 1024;

impl Vectored {
    /// No segments.
    pub fn new() -> Vectored {
        // SAFETY: msghdr is a plain C struct for which all-zero means "nothing".
        let message = unsafe { std::mem::zeroed() };
        Vectored {
            bytes: Vec::new(),
            segments: VecDeque::new(),
            done: 0,
            iovecs: Vec::new(),
            message,
        }
    }

    /// Appends a buffer.
    pub fn push(&mut self, buf: Buf) {
        self.segments.push_back(Segment::Buf(buf));
    }

    /// Total length in bytes.
    pub fn len(&self) -> usize {
        self.segments.iter().map(Segment::len).sum()
    }

    /// True if there are no segments.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Removes the buffers in order, leaving the list empty for reuse.
    pub fn drain_bufs(&mut self) -> impl Iterator<Item = Buf> {
        self.done = 0;
        self.segments.drain(..).filter_map(|segment| match segment {
            Segment::Buf(buf) => Some(buf),
            Segment::Bytes { .. } => None,
        })
    }

    pub(crate) fn clear(&mut self) {
        self.segments.clear();
        self.bytes.clear();
        self.done = 0;
    }

    /// Notes that a socket has taken or delivered `len` bytes, and lets go of the segments
    /// that are transferred completely.
    ///
    /// # Panics
    /// If that is more than there was to transfer.
    pub fn advance(&mut self, len: usize) {
        self.done += len;
        while let Some(first) = self.segments.front() {
            if first.len() > self.done {
                break;
            }
            self.done -= first.len();
            self.segments.pop_front();
        }
        assert!(self.done == 0 || !self.is_empty(), "a transfer moves what there is");
    }

    /// True if the kernel may write to every segment: no buffer is shared.
    pub(super) fn is_unique(&self) -> bool {
        self.segments.iter().all(|segment| match segment {
            Segment::Bytes { .. } => true,
            Segment::Buf(buf) => buf.is_unique(),
        })
    }

    /// Describes what is left to transfer, at most `IOVECS_MAX` segments of it. The pointers
    /// stay valid until `self` is changed or dropped, wherever it is moved: they lead into the
    /// heap memory of `bytes` and into buffers.
    pub(super) fn iovecs(&mut self) -> (*const libc::iovec, u32) {
        self.iovecs.clear();
        let mut skip = self.done;
        let base = self.bytes.as_mut_ptr();
        for segment in &self.segments {
            if self.iovecs.len() == IOVECS_MAX {
                break;
            }
            let len = segment.len();
            if skip >= len {
                skip -= len;
                continue;
            }
            let start = match segment {
                Segment::Bytes { at, len } => {
                    let (at, len) = (*at as usize, *len as usize);
                    assert!(at + len <= self.bytes.len(), "segment lies within its bytes");
                    base.wrapping_add(at)
                }
                Segment::Buf(buf) => buf.as_ptr(),
            };
            let iov_base = start.wrapping_add(skip).cast();
            self.iovecs.push(libc::iovec { iov_base, iov_len: len - skip });
            skip = 0;
        }
        (self.iovecs.as_ptr(), self.iovecs.len() as u32)
    }

    /// As `iovecs`, as a message. The message lies in `self`, which must not move while the
    /// kernel uses it.
    pub(super) fn message(&mut self) -> *mut libc::msghdr {
        let (iovecs, count) = self.iovecs();
        self.message.msg_iov = iovecs.cast_mut();
        self.message.msg_iovlen = count as _;
        &mut self.message
    }
}

impl Default for Vectored {
    fn default() -> Vectored {
        Vectored::new()
    }
}

impl fmt::Debug for Vectored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vectored({} segments, {} done)", self.segments.len(), self.done)
    }
}

/// Memory an operation in flight refers to. It lies in the ring's table until the kernel has
/// reported the end of the operation.
pub(super) enum Memory {
    None,
    Buf(Buf),
    Vectored(Box<Vectored>),
    Address(Box<SockAddr>),
    Timespec(Box<Timespec>),
    Extents(Box<[Extent]>),
    Elements(UblkElements),
}

/// What to do, with the progress of operations that take several steps.
pub(super) enum Kind {
    /// Read or write `Memory::Buf` or `Memory::Vectored` at `offset`, until it is complete.
    Transfer {
        write: bool,
        offset: u64,
        done: u32,
        len: u32,
        rw_flags: i32,
        retries: u8,
    },
    /// Read into a request's memory, at a place of the table of registered buffers.
    ReadPlaced {
        offset: u64,
        len: u32,
        place: Place,
    },
    /// Make the range read as zeroes; `done` counts what was written in the last way.
    Zero {
        way: Zeroing,
        offset: u64,
        len: u64,
        done: u64,
    },
    Fsync {
        data_only: bool,
    },
    Fallocate {
        mode: i32,
        offset: u64,
        len: u64,
    },
    Send,
    Receive,
    Accept,
    Connect,
    Timeout,
    Poll {
        mask: u32,
    },
    Close {
        fd: RawFd,
    },
    Ublk(UblkCommand),
    UblkBatch(UblkBatch),
    /// Completes many times, until it has ended.
    UblkFetchAll {
        queue: u16,
    },
    /// Runs on the offload thread, or has failed before it began.
    Offloaded,
}

/// Ways to zero a range, each tried when the one before is not supported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Zeroing {
    PunchHole,
    ZeroRange,
    Write,
}

/// An operation between its submission and its completion.
pub(super) struct Op {
    pub(super) token: Token,
    pub(super) fd: Option<Fd>,
    pub(super) memory: Memory,
    pub(super) kind: Kind,
    /// Do not go on with further steps.
    pub(super) cancelled: bool,
}

/// The table of operations that are queued or in flight, by index and generation.
#[derive(Default)]
pub(super) struct OpTable {
    slots: Vec<(u32, Option<Op>)>,
    free: Vec<u32>,
}

impl OpTable {
    pub(super) fn insert(&mut self, op: Op) -> OpId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let (generation, slot) = &mut self.slots[index as usize];
        assert!(slot.is_none(), "a free slot is empty");
        *slot = Some(op);
        OpId { index, generation: *generation }
    }

    pub(super) fn get_mut(&mut self, id: OpId) -> Option<&mut Op> {
        let (generation, slot) = self.slots.get_mut(id.index as usize)?;
        if *generation == id.generation { slot.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, id: OpId) -> Option<Op> {
        let (generation, slot) = self.slots.get_mut(id.index as usize)?;
        if *generation != id.generation {
            return None;
        }
        let op = slot.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(id.index);
        Some(op)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
