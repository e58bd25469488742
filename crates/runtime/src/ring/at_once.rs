//! Reads and writes of files that lie in memory, done without the ring.
//!
//! The kernel has no way to do these without blocking, so it would hand each to a worker thread:
//! two context switches for a copy of 4 KiB. Unless the file has been swapped out there is no disk
//! to wait for; the copy is all there is, and doing it where it is asked for costs a fraction.

use std::os::fd::AsRawFd;

use super::op::{Kind, Memory, Op};
use crate::Errno;

/// The result of the operation's next step, if that is a transfer to or from a file in memory or
/// its synchronisation.
pub(super) fn step(op: &mut Op) -> Option<Result<u32, Errno>> {
    let fd = op.fd.as_ref().filter(|fd| fd.is_in_memory())?.as_raw_fd();
    let (write, offset, done, flags) = match op.kind {
        Kind::Transfer { write, offset, done, rw_flags, .. } => {
            (write, offset + u64::from(done), done as usize, rw_flags)
        }
        Kind::Fsync { data_only } => {
            // SAFETY: no memory is involved.
            let result = unsafe { if data_only { libc::fdatasync(fd) } else { libc::fsync(fd) } };
            return Some(if result == 0 { Ok(0) } else { Err(Errno::last()) });
        }
        _ => return None,
    };
    let whole;
    let (iovecs, count) = match &mut op.memory {
        Memory::Buf(buf) => {
            let base = buf.as_ptr().wrapping_add(done).cast();
            whole = libc::iovec { iov_base: base, iov_len: buf.len() - done };
            (&raw const whole, 1)
        }
        Memory::Vectored(list) => list.iovecs(),
        _ => return None,
    };
    let Ok(offset) = libc::off_t::try_from(offset) else { return Some(Err(Errno::EINVAL)) };
    let count = count as libc::c_int;
    // SAFETY: the iovecs describe memory that `op` owns, which outlives the call. Where the kernel
    // writes, nobody else has the buffers: whoever starts a read has to show that.
    let result = unsafe {
        match write {
            true => libc::pwritev2(fd, iovecs, count, offset, flags),
            false => libc::preadv2(fd, iovecs, count, offset, flags),
        }
    };
    Some(u32::try_from(result).map_err(|_| Errno::last()))
}
