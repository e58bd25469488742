//! The io_uring of one thread: submit operations, wait, get completions as plain events.
//!
//! # Contract
//!
//! * Submitting never fails and never blocks on I/O; an error is the operation's completion.
//!   Every operation gets exactly one [`Completed`], also a cancelled one.
//! * Operations leave with the next [`Ring::wait`] (one system call per loop turn), or earlier
//!   when the submission queue is full. Transfers of files in memory are done as they are
//!   submitted; their completions come with the next turn like all others.
//! * Reads and writes at an offset are complete: a short transfer is continued until the whole
//!   length is done, the file ends (reads only) or an error occurs. Socket transfers are not.
//! * Transfers of one buffer use registered memory once a pool is registered (see `fixed`).
//! * Memory and descriptors belong to the ring's table from submission to completion, so they
//!   outlive whatever the caller drops. A late completion is harmless: the caller meets a token
//!   it no longer knows and drops the event.
//!
//! # Why this is sound
//!
//! Every entry is built by `Ring::entry` from an operation that lies in the table, and points
//! only into memory the table owns: buffer pieces, `Vec` heap memory or boxes, none of which
//! move or are freed with their owner's address. The table gives them up only after the kernel
//! reported the operation's end. If the ring itself is dropped while the kernel still works
//! (a disk that does not answer), the table is leaked rather than freed. Where the kernel
//! writes, the table holds the only reference to the buffer (see [`crate::buf`]).

mod at_once;
mod busy_poll;
mod fixed;
mod offload;
mod op;
mod provided;
#[cfg(test)]
pub(crate) mod tests;
mod ublk;

pub use fixed::{FixedStats, Place};
pub(crate) use op::Segment;
pub use op::{Completed, Fd, OpId, Payload, Token, Vectored};
pub use ublk::{UblkBuffer, UblkData, UblkElements, UblkSlot};

use std::collections::VecDeque;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::time::Duration;

use io_uring::types::{
    CancelBuilder, Fd as RingFd, FsyncFlags, SubmitArgs, TimeoutFlags, Timespec,
};
use io_uring::{IoUring, cqueue, opcode, squeue};
use socket2::SockAddr;
use vocab::Instant;

use crate::{Buf, BufPool, Errno, clock};
use busy_poll::BusyPoll;
use fixed::Fixed;
use offload::{Call, Job, Offload};
use op::{Kind, Memory, Op, OpTable, Zeroing};
use provided::Provided;

/// Entries of the submission queue unless stated otherwise: more than one turn usually collects.
pub const RING_ENTRIES: u32 = 512;

/// `user_data` of entries that are not operations; no table grows to such an index.
const USER_CANCEL: u64 = u64::MAX;
const USER_OFFLOAD: u64 = u64::MAX - 1;

const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 8;

/// How often a transfer that the kernel could not begin, or only interrupted, is repeated before its error
/// counts.
const RETRIES_MAX: u8 = 64;

/// How long dropping a ring waits for the kernel to finish what was cancelled.
const DROP_WAIT: Duration = Duration::from_secs(1);

/// Why there is no ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingError {
    /// The kernel refused.
    Setup(Errno),
    /// The kernel lacks a feature every ring here needs.
    TooOld,
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingError::Setup(Errno::EPERM) => f.write_str(
                "io_uring is not permitted: allow it in sysctl kernel.io_uring_disabled or in \
                 the service's seccomp profile",
            ),
            RingError::Setup(Errno::ENOSYS) | RingError::TooOld => {
                f.write_str("io_uring of this kernel is too old: Linux 6.1 or later is needed")
            }
            RingError::Setup(Errno::ENOMEM) => f.write_str(
                "no memory for io_uring: raise the limit of locked memory (ulimit -l) or of \
                 the service",
            ),
            RingError::Setup(errno) => write!(f, "io_uring can not be set up: {errno}"),
        }
    }
}

impl std::error::Error for RingError {}

/// The ring of one thread; it can not leave it.
pub struct Ring {
    uring: IoUring,
    ops: ManuallyDrop<OpTable>,
    /// Entries the full submission queue did not take, in order.
    backlog: VecDeque<squeue::Entry>,
    /// Completion entries of one turn: `user_data`, result and flags.
    reaped: Vec<(u64, i32, u32)>,
    fixed: Option<Fixed>,
    /// For commands that complete many times; there once there is one. Dropped after `uring`.
    provided: Option<Provided>,
    /// What one of them has brought.
    numbers: Vec<u16>,
    /// Why there is none, if one was wanted; not told yet.
    unfixed: Option<Errno>,
    offload: Option<Offload>,
    /// Results that did not come from the kernel, for the next turn.
    outcomes: Vec<offload::Outcome>,
    busy_poll: BusyPoll,
    now: Instant,
}

/// Ways to set up a ring, from best to least. `DEFER_TASKRUN` (6.1) runs completion work only
/// while we wait, so completions come in batches and never interrupt the thread; `COOP_TASKRUN`
/// (5.19) runs it at our next system call.
const SETUP_LEVELS: usize = 3;

fn set_up(level: usize, entries: u32) -> Result<IoUring, Errno> {
    let mut builder = IoUring::builder();
    builder.setup_cqsize(entries.saturating_mul(8)).setup_clamp();
    if level < 2 {
        builder.setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
    }
    if level < 1 {
        builder.setup_single_issuer().setup_defer_taskrun();
    }
    Ok(builder.build(entries)?)
}

/// What a result means for an operation of several steps.
enum Next {
    Again,
    Done(Result<u32, Errno>),
}

impl Ring {
    /// A ring for the calling thread with [`RING_ENTRIES`].
    ///
    /// # Errors
    /// [`RingError`]
    pub fn new() -> Result<Ring, RingError> {
        Ring::with_entries(RING_ENTRIES)
    }

    /// A ring whose submission queue has `entries` places, rounded up to a power of two.
    ///
    /// # Errors
    /// [`RingError`]
    pub fn with_entries(entries: u32) -> Result<Ring, RingError> {
        let mut error = Errno::EINVAL;
        for level in 0..SETUP_LEVELS {
            match set_up(level, entries) {
                Ok(uring) => return Ring::from_uring(uring),
                // The kernel does not know one of the flags.
                Err(Errno::EINVAL) => {}
                Err(errno) => {
                    error = errno;
                    break;
                }
            }
        }
        Err(RingError::Setup(error))
    }

    fn from_uring(uring: IoUring) -> Result<Ring, RingError> {
        let features = uring.params();
        if !(features.is_feature_nodrop()
            && features.is_feature_ext_arg()
            && features.is_feature_submit_stable()
            && features.is_feature_fast_poll())
        {
            return Err(RingError::TooOld);
        }
        Ok(Ring {
            uring,
            ops: ManuallyDrop::new(OpTable::default()),
            backlog: VecDeque::new(),
            reaped: Vec::new(),
            fixed: None,
            provided: None,
            numbers: Vec::new(),
            unfixed: None,
            offload: None,
            outcomes: Vec::new(),
            busy_poll: BusyPoll::default(),
            now: clock::now(),
        })
    }

    /// The time at the end of the last [`Ring::wait`].
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Looks for completions for up to `limit` before a wait becomes a sleep, while waits lately
    /// were that short. Zero, as at first: never.
    pub fn set_busy_poll(&mut self, limit: Duration) {
        self.busy_poll = BusyPoll::new(limit);
    }

    /// Operations queued or in flight.
    pub fn in_flight(&self) -> usize {
        self.ops.len()
    }

    /// Uses a pool's memory as registered buffers from here on, which saves the kernel pinning
    /// pages for each transfer. Nothing is pinned yet: each MiB of the pool is when it first takes
    /// part in a transfer, and stays so.
    ///
    /// # Errors
    /// The kernel's error number; the ring works as before then. `EBUSY` if a pool is
    /// registered already.
    pub fn register_pool(&mut self, pool: &BufPool) -> Result<(), Errno> {
        if self.fixed.is_some() {
            return Err(Errno::EBUSY);
        }
        match Fixed::new(&self.uring, pool) {
            Ok(fixed) => self.fixed = Some(fixed),
            Err(errno) => {
                self.unfixed = Some(errno);
                return Err(errno);
            }
        }
        Ok(())
    }

    /// How much of the registered pool is in use, and what for.
    pub fn fixed_stats(&self) -> FixedStats {
        self.fixed.as_ref().map_or_else(FixedStats::default, Fixed::stats)
    }

    /// The error by which the kernel refused to register a pool, or to pin more of it (`ENOMEM`:
    /// the limit of locked memory), told once. Transfers of what is not pinned go on without.
    pub fn take_pin_refusal(&mut self) -> Option<Errno> {
        self.unfixed.take().or_else(|| self.fixed.as_mut()?.take_refusal())
    }

    /// Places for the memory of so many requests of ublk devices, none of which anybody else has.
    /// `None` if no pool is registered, or there are no more.
    pub fn take_places(&mut self, count: usize) -> Option<Box<[Place]>> {
        self.fixed.as_mut()?.take_places(count)
    }

    /// Gives places back. No request can be delivered to them any more, and nothing reads there.
    pub fn give_places(&mut self, places: &[Place]) {
        if let Some(fixed) = &mut self.fixed {
            fixed.give_places(places);
        }
    }

    // ---- operations on files -------------------------------------------------------------

    /// Reads `buf.len()` bytes at `offset`. The result is less than that only at the file's end.
    ///
    /// # Panics
    /// If the buffer is empty or not unique.
    pub fn read(&mut self, token: Token, fd: &Fd, offset: u64, buf: Buf) -> OpId {
        assert!(buf.is_unique(), "the kernel writes only to a unique buffer");
        self.transfer(token, fd, false, offset, buf.len(), Memory::Buf(buf), 0)
    }

    /// Reads into the memory of a request, which the driver has put at `place` and leaves there until the
    /// request has its result. Done in one step: whoever gets less than `len` bytes, or an error, has to
    /// read it otherwise, since the request may be another by the time of a second step.
    ///
    /// # Panics
    /// If there is nothing to read.
    pub fn read_placed(
        &mut self,
        token: Token,
        fd: &Fd,
        offset: u64,
        len: u32,
        place: Place,
    ) -> OpId {
        assert!(len > 0, "a transfer moves at least one byte");
        self.start(token, Some(fd), Memory::None, Kind::ReadPlaced { offset, len, place })
    }

    /// Writes `buf` at `offset`; with `dsync` it is durable when complete (`RWF_DSYNC`).
    ///
    /// # Panics
    /// If the buffer is empty.
    pub fn write(&mut self, token: Token, fd: &Fd, offset: u64, buf: Buf, dsync: bool) -> OpId {
        let flags = if dsync { libc::RWF_DSYNC } else { 0 };
        self.transfer(token, fd, true, offset, buf.len(), Memory::Buf(buf), flags)
    }

    /// As [`Ring::read`] into several buffers.
    ///
    /// # Panics
    /// If there are no bytes to read or a buffer is not unique.
    pub fn readv(&mut self, token: Token, fd: &Fd, offset: u64, mut list: Box<Vectored>) -> OpId {
        list.done = 0;
        assert!(list.is_unique(), "the kernel writes only to unique buffers");
        self.transfer(token, fd, false, offset, list.len(), Memory::Vectored(list), 0)
    }

    /// As [`Ring::write`] from several buffers.
    ///
    /// # Panics
    /// If there are no bytes to write.
    pub fn writev(
        &mut self,
        token: Token,
        fd: &Fd,
        offset: u64,
        mut list: Box<Vectored>,
        dsync: bool,
    ) -> OpId {
        list.done = 0;
        let flags = if dsync { libc::RWF_DSYNC } else { 0 };
        self.transfer(token, fd, true, offset, list.len(), Memory::Vectored(list), flags)
    }

    #[allow(clippy::too_many_arguments, reason = "the one place all transfers pass through")]
    fn transfer(
        &mut self,
        token: Token,
        fd: &Fd,
        write: bool,
        offset: u64,
        len: usize,
        memory: Memory,
        rw_flags: i32,
    ) -> OpId {
        let len = u32::try_from(len).expect("a transfer is less than 4 GiB");
        assert!(len > 0, "a transfer moves at least one byte");
        let kind = Kind::Transfer { write, offset, done: 0, len, rw_flags, retries: 0 };
        self.start(token, Some(fd), memory, kind)
    }

    /// Makes data durable (fdatasync).
    pub fn fdatasync(&mut self, token: Token, fd: &Fd) -> OpId {
        self.start(token, Some(fd), Memory::None, Kind::Fsync { data_only: true })
    }

    /// Makes data and metadata durable (fsync).
    pub fn fsync(&mut self, token: Token, fd: &Fd) -> OpId {
        self.start(token, Some(fd), Memory::None, Kind::Fsync { data_only: false })
    }

    /// `fallocate(2)` with `mode`, on regular files and block devices.
    pub fn fallocate(&mut self, token: Token, fd: &Fd, mode: i32, offset: u64, len: u64) -> OpId {
        self.start(token, Some(fd), Memory::None, Kind::Fallocate { mode, offset, len })
    }

    /// Makes a range of a file or block device read as zeroes: by punching a hole if one may
    /// be, else by zeroing the allocated range, else (file systems that can do neither) by
    /// writing zeroes.
    ///
    /// # Panics
    /// If the range is empty.
    pub fn write_zeroes(
        &mut self,
        token: Token,
        fd: &Fd,
        offset: u64,
        len: u64,
        no_hole: bool,
    ) -> OpId {
        assert!(len > 0, "there is something to zero");
        let way = if no_hole { Zeroing::ZeroRange } else { Zeroing::PunchHole };
        self.start(token, Some(fd), Memory::None, Kind::Zero { way, offset, len, done: 0 })
    }

    /// Discards a range of a block device (`BLKDISCARD`) on a helper thread.
    pub fn discard_blocks(&mut self, token: Token, fd: &Fd, offset: u64, len: u64) -> OpId {
        self.offload(token, fd, Call::Discard, offset, len)
    }

    /// Looks on a helper thread what of a file's range is holes. The payload is
    /// [`Payload::Extents`], from `offset` on; they may end early.
    pub fn holes(&mut self, token: Token, fd: &Fd, offset: u64, len: u64) -> OpId {
        self.offload(token, fd, Call::Holes, offset, len)
    }

    fn offload(&mut self, token: Token, fd: &Fd, call: Call, offset: u64, len: u64) -> OpId {
        let raw = fd.as_raw_fd();
        let op = Op {
            token,
            fd: Some(fd.clone()),
            memory: Memory::None,
            kind: Kind::Offloaded,
            cancelled: false,
        };
        let id = self.ops.insert(op);
        if self.offload.is_none() {
            match Offload::start() {
                Ok(offload) => {
                    self.offload = Some(offload);
                    self.arm_offload();
                }
                Err(errno) => {
                    self.outcomes.push((id, Err(errno)));
                    return id;
                }
            }
        }
        let offload = self.offload.as_ref().expect("started above");
        offload.send(Job { id, call, fd: raw, offset, len });
        id
    }

    /// An operation that fails without being tried: it completes with the next turn, so that
    /// callers have one place where results arrive. A buffer comes back with it.
    pub fn fail(&mut self, token: Token, errno: Errno, payload: Payload) -> OpId {
        let memory = match payload {
            Payload::Buf(buf) => Memory::Buf(buf),
            Payload::Vectored(list) => Memory::Vectored(list),
            Payload::None | Payload::Fd(_) | Payload::Extents(_) | Payload::Elements(_) => {
                Memory::None
            }
        };
        let op = Op { token, fd: None, memory, kind: Kind::Offloaded, cancelled: false };
        let id = self.ops.insert(op);
        self.outcomes.push((id, Err(errno)));
        id
    }

    // ---- operations on sockets -----------------------------------------------------------

    /// Sends what the socket takes of `buf`.
    pub fn send(&mut self, token: Token, fd: &Fd, buf: Buf) -> OpId {
        self.start(token, Some(fd), Memory::Buf(buf), Kind::Send)
    }

    /// Receives up to `buf.len()` bytes; 0 bytes mean the peer has finished sending.
    ///
    /// # Panics
    /// If the buffer is empty or not unique.
    pub fn recv(&mut self, token: Token, fd: &Fd, buf: Buf) -> OpId {
        assert!(buf.is_unique() && !buf.is_empty(), "the kernel writes only to a unique buffer");
        self.start(token, Some(fd), Memory::Buf(buf), Kind::Receive)
    }

    /// Sends what the socket takes of the segments not yet done.
    pub fn sendmsg(&mut self, token: Token, fd: &Fd, list: Box<Vectored>) -> OpId {
        self.start(token, Some(fd), Memory::Vectored(list), Kind::Send)
    }

    /// Receives into the segments not yet done.
    ///
    /// # Panics
    /// If a buffer is not unique.
    pub fn recvmsg(&mut self, token: Token, fd: &Fd, list: Box<Vectored>) -> OpId {
        assert!(list.is_unique(), "the kernel writes only to unique buffers");
        self.start(token, Some(fd), Memory::Vectored(list), Kind::Receive)
    }

    /// Accepts one connection from a listening socket.
    pub fn accept(&mut self, token: Token, fd: &Fd) -> OpId {
        self.start(token, Some(fd), Memory::None, Kind::Accept)
    }

    /// Connects a socket.
    pub fn connect(&mut self, token: Token, fd: &Fd, address: SockAddr) -> OpId {
        self.start(token, Some(fd), Memory::Address(Box::new(address)), Kind::Connect)
    }

    // ---- other operations ----------------------------------------------------------------

    /// Completes with 0 once `deadline` has passed. A driver loop passes its next deadline to
    /// [`Ring::wait`] instead.
    pub fn timeout(&mut self, token: Token, deadline: Instant) -> OpId {
        let timespec = Box::new(timespec(Duration::from_nanos(deadline.0)));
        self.start(token, None, Memory::Timespec(timespec), Kind::Timeout)
    }

    /// Completes once any event of `mask` (`POLLIN`, ...) is there, with the events.
    pub fn poll(&mut self, token: Token, fd: &Fd, mask: u32) -> OpId {
        self.start(token, Some(fd), Memory::None, Kind::Poll { mask })
    }

    /// Closes a descriptor without waiting for it.
    pub fn close(&mut self, token: Token, fd: OwnedFd) -> OpId {
        self.start(token, None, Memory::None, Kind::Close { fd: fd.into_raw_fd() })
    }

    /// Asks for an operation's early end. Its completion still comes: `ECANCELED`, or the
    /// usual result if it was too late. An operation that has completed is not affected.
    pub fn cancel(&mut self, id: OpId) {
        let Some(op) = self.ops.get_mut(id) else { return };
        op.cancelled = true;
        if !matches!(op.kind, Kind::Offloaded) {
            let entry = opcode::AsyncCancel::new(user_data(id)).build().user_data(USER_CANCEL);
            self.enqueue(entry);
        }
    }

    // ---- driving -------------------------------------------------------------------------

    /// Submits everything queued, waits until at least one operation has completed or
    /// `deadline` has passed (`None`: no limit; a time in the past: do not wait), and appends
    /// what has completed to `events`. May return without events before the deadline.
    ///
    /// # Errors
    /// The ring itself is broken; the thread can not go on.
    pub fn wait(
        &mut self,
        deadline: Option<Instant>,
        events: &mut Vec<Completed>,
    ) -> Result<(), Errno> {
        self.flush_backlog();
        let ready = !self.uring.completion().is_empty() || !self.outcomes.is_empty();
        let timeout = match deadline {
            _ if ready || !self.backlog.is_empty() => Some(Duration::ZERO),
            Some(deadline) => Some(clock::until(deadline)),
            None => None,
        };
        let result = if self.busy_poll.is_on() && timeout != Some(Duration::ZERO) {
            self.poll_then_enter(deadline)
        } else {
            self.enter(timeout)
        };
        self.reap(events);
        self.now = clock::now();
        match result {
            // Interrupted, out of time, or for the moment out of kernel memory or completion
            // space: what was not submitted stays queued for the next turn.
            Ok(())
            | Err(Errno::EINTR | Errno::ETIME | Errno::EBUSY | Errno::EAGAIN | Errno::ENOMEM) => {
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    /// Waits as `wait` does, at first without sleeping.
    fn poll_then_enter(&mut self, deadline: Option<Instant>) -> Result<(), Errno> {
        let begun = clock::now();
        let patience = self.busy_poll.patience();
        let mut end = begun + patience;
        if let Some(deadline) = deadline {
            end = end.min(deadline);
        }
        let mut result = Ok(());
        if !patience.is_zero() {
            result = self.enter(Some(Duration::ZERO));
            while result.is_ok() && self.uring.completion().is_empty() && clock::now() < end {
                // What completed meanwhile shows once the kernel is let to note it.
                let noted = !self.uring.submission().taskrun();
                match noted {
                    true => std::thread::yield_now(),
                    false => result = self.enter(Some(Duration::ZERO)),
                }
            }
        }
        if result.is_ok() && self.uring.completion().is_empty() {
            result = self.enter(deadline.map(clock::until));
        }
        self.busy_poll.waited(clock::now().since(begun));
        result
    }

    /// Submits everything queued without waiting. [`Ring::wait`] does it too.
    ///
    /// # Errors
    /// As [`Ring::wait`].
    pub fn submit(&mut self) -> Result<(), Errno> {
        self.flush_backlog();
        match self.submit_queue() {
            Ok(()) | Err(Errno::EINTR | Errno::EBUSY | Errno::EAGAIN | Errno::ENOMEM) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Submits the queue, and waits for a completion unless `timeout` is zero.
    fn enter(&mut self, timeout: Option<Duration>) -> Result<(), Errno> {
        let want = u32::from(timeout != Some(Duration::ZERO));
        let limit = timespec(timeout.unwrap_or_default());
        let mut args = SubmitArgs::new();
        if want > 0 && timeout.is_some() {
            args = args.timespec(&limit);
        }
        let queued = self.uring.submission().len() as u32;
        let flags = ENTER_GETEVENTS | ENTER_EXT_ARG;
        // SAFETY: `queued` is the number of entries in the submission queue, each built by
        // `entry` from an operation in the table (or a cancel request, which has no memory).
        // `args` and `limit` live until the call returns, which is as long as they are used.
        unsafe { self.uring.submitter().enter(queued, want, flags, Some(&args)) }?;
        Ok(())
    }

    fn submit_queue(&mut self) -> Result<(), Errno> {
        let queued = self.uring.submission().len() as u32;
        if queued > 0 {
            // SAFETY: as in `enter`, without arguments in memory.
            unsafe { self.uring.submitter().enter::<libc::sigset_t>(queued, 0, 0, None) }?;
        }
        Ok(())
    }

    fn start(&mut self, token: Token, fd: Option<&Fd>, memory: Memory, kind: Kind) -> OpId {
        let op = Op { token, fd: fd.cloned(), memory, kind, cancelled: false };
        let id = self.ops.insert(op);
        self.submit_step(id);
        id
    }

    /// Queues the next step of an operation in the table.
    fn submit_step(&mut self, id: OpId) {
        let op = self.ops.get_mut(id).expect("the operation is in the table");
        if let Some(result) = at_once::step(op) {
            self.outcomes.push((id, result));
            return;
        }
        let fixed = match (&op.kind, &op.memory, &mut self.fixed) {
            (Kind::Transfer { .. }, Memory::Buf(buf), Some(fixed)) => fixed.of(&self.uring, buf),
            _ => None,
        };
        let entry = entry(op, fixed).user_data(user_data(id));
        self.enqueue(entry);
    }

    /// Puts an entry into the submission queue. If that is full the kernel takes what is queued
    /// first; if it can not, the entry waits in the backlog and keeps its place.
    fn enqueue(&mut self, entry: squeue::Entry) {
        if self.backlog.is_empty() {
            if self.push(&entry) {
                return;
            }
            // An error leaves the entries queued and shows itself again in `wait`.
            let _ = self.submit_queue();
            if self.push(&entry) {
                return;
            }
        }
        self.backlog.push_back(entry);
    }

    fn flush_backlog(&mut self) {
        while let Some(entry) = self.backlog.front().cloned() {
            if !self.push(&entry) && (self.submit_queue().is_err() || !self.push(&entry)) {
                return;
            }
            self.backlog.pop_front();
        }
    }

    fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the entry was built by `entry`, so all it points to is owned by the table
        // until its completion is reaped, or it is a cancel request without memory.
        unsafe { self.uring.submission().push(entry) }.is_ok()
    }

    fn reap(&mut self, events: &mut Vec<Completed>) {
        let mut reaped = std::mem::take(&mut self.reaped);
        let entries = self.uring.completion();
        reaped.extend(entries.map(|cqe| (cqe.user_data(), cqe.result(), cqe.flags())));
        for (user_data, result, flags) in reaped.drain(..) {
            match user_data {
                USER_CANCEL => {}
                USER_OFFLOAD => {
                    let mut done = Vec::new();
                    if let Some(offload) = &self.offload {
                        offload.outcomes.drain(&mut done);
                    }
                    for offload::Done { outcome, extents } in done {
                        let op = self.ops.get_mut(outcome.0);
                        if let (Some(op), Some(extents)) = (op, extents) {
                            op.memory = Memory::Extents(extents);
                        }
                        self.outcomes.push(outcome);
                    }
                    self.arm_offload();
                }
                _ => {
                    let result = if result < 0 { Err(Errno(-result)) } else { Ok(result as u32) };
                    let id = op_id(user_data);
                    match self.ops.get_mut(id) {
                        Some(Op { kind: Kind::UblkFetchAll { .. }, token, .. }) => {
                            let token = *token;
                            self.picked(id, token, result, flags, events);
                        }
                        _ => self.finish_step(id, result, events),
                    }
                }
            }
        }
        self.reaped = reaped;
        let mut outcomes = std::mem::take(&mut self.outcomes);
        for (id, result) in outcomes.drain(..) {
            self.finish_step(id, result, events);
        }
        // What has another step may have done that already.
        outcomes.append(&mut self.outcomes);
        self.outcomes = outcomes;
    }

    /// A command that completes many times has brought numbers of slots, or has ended.
    fn picked(
        &mut self,
        id: OpId,
        token: Token,
        result: Result<u32, Errno>,
        flags: u32,
        events: &mut Vec<Completed>,
    ) {
        if let (Some(nr), Some(provided)) = (cqueue::buffer_select(flags), &mut self.provided) {
            let bytes = result.unwrap_or(0) as usize;
            provided.take(nr, bytes, &mut self.numbers);
        }
        for number in self.numbers.drain(..) {
            let token = Token(token.0 | u64::from(number));
            events.push(Completed { token, result: Ok(0), payload: Payload::None });
        }
        if !cqueue::more(flags) {
            self.ops.remove(id);
            let token = Token(token.0 | UblkSlot::END);
            events.push(Completed { token, result, payload: Payload::None });
        }
    }

    fn arm_offload(&mut self) {
        let Some(offload) = &self.offload else { return };
        let fd = RingFd(offload.wakeup.as_raw_fd());
        // The descriptor is not in the table, but it lives as long as the ring, and nothing is
        // written to memory.
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(USER_OFFLOAD);
        self.enqueue(entry);
    }

    fn finish_step(&mut self, id: OpId, result: Result<u32, Errno>, events: &mut Vec<Completed>) {
        let op = self.ops.get_mut(id).expect("one completion per operation");
        match next_step(op, result) {
            Next::Again => self.submit_step(id),
            Next::Done(result) => {
                let op = self.ops.remove(id).expect("the operation was just there");
                let payload = match (op.memory, op.kind, result) {
                    (Memory::Buf(buf), ..) => Payload::Buf(buf),
                    (Memory::Vectored(list), ..) => Payload::Vectored(list),
                    (Memory::Extents(extents), ..) => Payload::Extents(extents),
                    (Memory::Elements(elements), ..) => Payload::Elements(elements),
                    (_, Kind::Accept, Ok(fd)) => {
                        // SAFETY: a successful accept returns a new descriptor that nobody
                        // else knows.
                        Payload::Fd(unsafe { OwnedFd::from_raw_fd(fd as i32) })
                    }
                    _ => Payload::None,
                };
                events.push(Completed { token: op.token, result, payload });
            }
        }
    }
}

fn user_data(id: OpId) -> u64 {
    u64::from(id.generation) << 32 | u64::from(id.index)
}

fn op_id(user_data: u64) -> OpId {
    OpId { index: user_data as u32, generation: (user_data >> 32) as u32 }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec::new().sec(duration.as_secs()).nsec(duration.subsec_nanos())
}

/// Takes note of a step's result and says whether there is another step.
fn next_step(op: &mut Op, result: Result<u32, Errno>) -> Next {
    let again = |cancelled: bool| {
        if cancelled { Next::Done(Err(Errno::ECANCELED)) } else { Next::Again }
    };
    match (&mut op.kind, result) {
        // Memory that this process lacks says nothing of the disk, which would be given up for it.
        (Kind::Transfer { retries, .. }, Err(Errno::EINTR | Errno::EAGAIN | Errno::ENOMEM))
            if *retries < RETRIES_MAX =>
        {
            *retries += 1;
            again(op.cancelled)
        }
        (Kind::Transfer { write, done, len, retries, .. }, Ok(n)) => {
            *done += n;
            *retries = 0;
            if let Memory::Vectored(list) = &mut op.memory {
                list.done += n as usize;
            }
            if *done >= *len {
                Next::Done(Ok(*done))
            } else if *write && n == 0 {
                Next::Done(Err(Errno::EIO))
            } else if !*write && n % 512 != 0 || n == 0 {
                // The end of the file. Going on from within a sector would only violate the
                // alignment that direct I/O wants.
                Next::Done(Ok(*done))
            } else {
                again(op.cancelled)
            }
        }
        (Kind::Zero { way, .. }, Err(Errno::EOPNOTSUPP | Errno::ENOSYS))
            if *way != Zeroing::Write =>
        {
            *way = if *way == Zeroing::PunchHole { Zeroing::ZeroRange } else { Zeroing::Write };
            again(op.cancelled)
        }
        (Kind::Zero { .. }, Err(Errno::EINTR | Errno::EAGAIN)) => again(op.cancelled),
        (Kind::Zero { way: Zeroing::Write, .. }, Ok(0)) => Next::Done(Err(Errno::EIO)),
        (Kind::Zero { way: Zeroing::Write, len, done, .. }, Ok(n)) => {
            *done += u64::from(n);
            if *done >= *len { Next::Done(Ok(0)) } else { again(op.cancelled) }
        }
        (Kind::Fsync { .. } | Kind::Fallocate { .. }, Err(Errno::EINTR)) => again(op.cancelled),
        (Kind::Timeout, Err(Errno::ETIME)) => Next::Done(Ok(0)),
        (_, result) => Next::Done(result),
    }
}

/// What is written where a range can not be zeroed in a better way.
#[repr(align(4096))]
struct Zeroes([u8; 64 << 10]);
static ZEROES: Zeroes = Zeroes([0; 64 << 10]);

/// The submission entry of an operation's next step. Every pointer in it leads into memory that
/// `op` owns and that does not move with `op`, or into a static. `fixed` is the registered buffer
/// that the memory of a transfer lies in.
fn entry(op: &mut Op, fixed: Option<u16>) -> squeue::Entry {
    let fd = RingFd(op.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd));
    match (&op.kind, &mut op.memory) {
        (Kind::Transfer { write, offset, done, rw_flags, .. }, Memory::Buf(buf)) => {
            let at = buf.as_ptr().wrapping_add(*done as usize);
            let (len, offset) = (buf.len() as u32 - done, offset + u64::from(*done));
            match (write, fixed) {
                (false, None) => opcode::Read::new(fd, at, len).offset(offset).build(),
                (false, Some(nr)) => opcode::ReadFixed::new(fd, at, len, nr).offset(offset).build(),
                (true, None) => {
                    opcode::Write::new(fd, at, len).offset(offset).rw_flags(*rw_flags).build()
                }
                (true, Some(nr)) => opcode::WriteFixed::new(fd, at, len, nr)
                    .offset(offset)
                    .rw_flags(*rw_flags)
                    .build(),
            }
        }
        (Kind::Transfer { write, offset, done, rw_flags, .. }, Memory::Vectored(list)) => {
            let (iovecs, count) = list.iovecs();
            let offset = offset + u64::from(*done);
            if *write {
                opcode::Writev::new(fd, iovecs, count).offset(offset).rw_flags(*rw_flags).build()
            } else {
                opcode::Readv::new(fd, iovecs, count).offset(offset).build()
            }
        }
        // Its address is an offset within the registered memory.
        (Kind::ReadPlaced { offset, len, place }, _) => {
            opcode::ReadFixed::new(fd, std::ptr::null_mut(), *len, place.0).offset(*offset).build()
        }
        (Kind::Zero { way: Zeroing::Write, offset, len, done }, _) => {
            let n = (len - done).min(ZEROES.0.len() as u64) as u32;
            opcode::Write::new(fd, ZEROES.0.as_ptr(), n).offset(offset + done).build()
        }
        (Kind::Zero { way, offset, len, .. }, _) => {
            let how = match way {
                Zeroing::PunchHole => libc::FALLOC_FL_PUNCH_HOLE,
                _ => libc::FALLOC_FL_ZERO_RANGE,
            };
            let mode = how | libc::FALLOC_FL_KEEP_SIZE;
            opcode::Fallocate::new(fd, *len).offset(*offset).mode(mode).build()
        }
        (Kind::Fsync { data_only }, _) => {
            let flags = if *data_only { FsyncFlags::DATASYNC } else { FsyncFlags::empty() };
            opcode::Fsync::new(fd).flags(flags).build()
        }
        (Kind::Fallocate { mode, offset, len }, _) => {
            opcode::Fallocate::new(fd, *len).offset(*offset).mode(*mode).build()
        }
        (Kind::Send, Memory::Buf(buf)) => {
            opcode::Send::new(fd, buf.as_ptr(), buf.len() as u32).flags(libc::MSG_NOSIGNAL).build()
        }
        (Kind::Send, Memory::Vectored(list)) => {
            opcode::SendMsg::new(fd, list.message()).flags(libc::MSG_NOSIGNAL as u32).build()
        }
        (Kind::Receive, Memory::Buf(buf)) => {
            opcode::Recv::new(fd, buf.as_ptr(), buf.len() as u32).build()
        }
        (Kind::Receive, Memory::Vectored(list)) => opcode::RecvMsg::new(fd, list.message()).build(),
        (Kind::Accept, _) => opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
            .flags(libc::SOCK_CLOEXEC)
            .build(),
        (Kind::Connect, Memory::Address(address)) => {
            opcode::Connect::new(fd, address.as_ptr().cast(), address.len()).build()
        }
        (Kind::Timeout, Memory::Timespec(at)) => {
            opcode::Timeout::new(&**at).flags(TimeoutFlags::ABS).build()
        }
        (Kind::Poll { mask }, _) => opcode::PollAdd::new(fd, *mask).build(),
        (Kind::Close { fd }, _) => opcode::Close::new(RingFd(*fd)).build(),
        (Kind::Ublk(command), memory) => command.entry(fd, memory),
        (Kind::UblkBatch(batch), Memory::Elements(elements)) => batch.entry(fd, elements),
        (Kind::UblkFetchAll { queue }, _) => ublk::fetch_all(fd, *queue),
        (
            Kind::Transfer { .. }
            | Kind::Send
            | Kind::Receive
            | Kind::Connect
            | Kind::Timeout
            | Kind::UblkBatch(_)
            | Kind::Offloaded,
            _,
        ) => unreachable!("an operation is started with the memory its kind needs"),
    }
}

impl Drop for Ring {
    /// Submits what is queued, cancels what can be cancelled and waits a moment for the rest.
    fn drop(&mut self) {
        let _ = self.submit();
        let all = opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(USER_CANCEL);
        let deadline = clock::now() + DROP_WAIT;
        let mut events = Vec::new();
        while self.ops.len() > 0 && clock::now() < deadline {
            // Repeated, because a step that was about to complete may have queued another.
            self.enqueue(all.clone());
            if self.wait(Some(clock::now() + DROP_WAIT / 20), &mut events).is_err() {
                break;
            }
            events.clear();
        }
        if self.ops.len() == 0 {
            // SAFETY: dropped here only, and `self.ops` is not used afterwards. The table is
            // empty, so the kernel refers to none of its memory.
            unsafe { ManuallyDrop::drop(&mut self.ops) };
        }
        // Otherwise the kernel may still use the operations' memory: it stays for good.
        else {
            std::mem::forget(self.provided.take());
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({} in flight)", self.in_flight())
    }
}
