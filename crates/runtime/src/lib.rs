//! Thread-per-core io_uring, buffers, and [`Target`], the trait that says what a block device is.
//!
//! There is no async runtime here: an operation is submitted with a token and its completion
//! comes back as a plain event to the loop that drives the thread. Everything on the I/O path
//! belongs to one thread, so nothing there takes a lock.
//!
//! * [`buf`]: reference-counted page-aligned buffers from a bounded pool.
//! * [`target`]: the waist between what serves a block device and what exports one.
//! * [`ring`]: the io_uring of a thread.
//! * [`net`] and [`disk`]: sockets and backing devices on a ring.
//! * [`timer`], [`clock`], [`mailbox`], [`thread`]: deadlines, time, messages between threads,
//!   and the threads themselves.
//! * [`counting`]: for tests that show where nothing is allocated.

pub mod buf;
pub mod clock;
pub mod counting;
pub mod disk;
mod errno;
pub mod mailbox;
pub mod net;
pub mod ring;
pub mod target;
pub mod thread;
pub mod timer;

pub use buf::{AllocError, BUF_MAX, Buf, BufPool};
pub use disk::{DiskFile, DiskInfo, DiskOptions, OpenCause, OpenError};
pub use errno::Errno;
pub use mailbox::{Inbox, Mailbox, SendError, Sender};
pub use net::{Conn, Connecting, Listener, Received, Reserved, RxStream, TcpInfo, TxQueue};
pub use ring::{
    Completed, Fd, FixedStats, OpId, Payload, Place, Ring, RingError, Token, UblkSlot, Vectored,
};
pub use target::{
    Aspect, Completion, Extent, ExtentKind, FaultPlan, FaultyTarget, Intent, MemoryTarget, Op,
    OpenerId, Request, Target, TargetInfo,
};
pub use thread::{SpawnError, Worker, WorkerHandle, WorkerOptions};
pub use timer::Timers;
