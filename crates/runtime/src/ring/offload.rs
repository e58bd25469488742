//! A helper thread for the few calls that block and have no io_uring operation: discarding a
//! range of a block device.

use std::os::fd::{AsFd, RawFd};
use std::sync::mpsc;
use std::thread;

use super::op::OpId;
use crate::mailbox::{self, Inbox, Sender};
use crate::{Errno, Fd};

/// `BLKDISCARD` of linux/fs.h: `_IO(0x12, 119)`.
const BLKDISCARD: libc::c_ulong = 0x1277;

/// A call to make: discard a byte range. The ring's table owns the descriptor until the result
/// is back.
pub(super) struct Job {
    pub(super) id: OpId,
    pub(super) fd: RawFd,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A job and its outcome.
pub(super) type Outcome = (OpId, Result<u32, Errno>);

/// The thread and the way to and from it. The thread ends when this is dropped.
pub(super) struct Offload {
    jobs: mpsc::Sender<Job>,
    pub(super) outcomes: Inbox<Outcome>,
    pub(super) wakeup: Fd,
}

impl Offload {
    pub(super) fn start() -> Result<Offload, Errno> {
        let (jobs, queue) = mpsc::channel();
        let (results, outcomes) = mailbox::channel(usize::MAX)?;
        let wakeup = Fd::new(outcomes.as_fd().try_clone_to_owned()?);
        thread::Builder::new()
            .name("offload".to_owned())
            .spawn(move || serve(queue, results))
            .map_err(Errno::from)?;
        Ok(Offload { jobs, outcomes, wakeup })
    }

    pub(super) fn send(&self, job: Job) {
        // The thread ends only after this sender is gone, so it is there to receive.
        self.jobs.send(job).expect("the offload thread outlives its job queue");
    }
}

fn serve(queue: mpsc::Receiver<Job>, results: Sender<Outcome>) {
    for job in queue {
        let outcome = discard(job.fd, job.offset, job.len);
        if results.send((job.id, outcome)).is_err() {
            return;
        }
    }
}

fn discard(fd: RawFd, offset: u64, len: u64) -> Result<u32, Errno> {
    let range = [offset, len];
    loop {
        // SAFETY: BLKDISCARD reads two u64 (start and length) from the pointer. The descriptor
        // is owned by the ring's table while the job runs; another file would only fail it.
        let result = unsafe { libc::ioctl(fd, BLKDISCARD as _, range.as_ptr()) };
        match result {
            0 => return Ok(0),
            _ if Errno::last() == Errno::EINTR => {}
            _ => return Err(Errno::last()),
        }
    }
}
