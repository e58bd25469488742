//! A helper thread for the few calls that block and have no io_uring operation: discarding a
//! range of a block device, and looking for the holes of a file.

use std::os::fd::{AsFd, RawFd};
use std::sync::mpsc;
use std::thread;

use super::op::OpId;
use crate::mailbox::{self, Inbox, Sender};
use crate::{Errno, Extent, ExtentKind, Fd};

/// `BLKDISCARD` of linux/fs.h: `_IO(0x12, 119)`.
const BLKDISCARD: libc::c_ulong = 0x1277;

/// Most extents that one look for holes gives; what is behind them is asked for again.
const EXTENTS_MAX: usize = 1024;
/// Extents begin and end at multiples of this, in bytes.
const GRAIN: u64 = 512;

/// What is called for.
#[derive(Clone, Copy)]
pub(super) enum Call {
    /// Discard the range.
    Discard,
    /// Tell its holes.
    Holes,
}

/// A call to make on a byte range. The ring's table owns the descriptor until the result is back.
pub(super) struct Job {
    pub(super) id: OpId,
    pub(super) call: Call,
    pub(super) fd: RawFd,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// An operation and its outcome.
pub(super) type Outcome = (OpId, Result<u32, Errno>);

/// A job and what came of it.
pub(super) struct Done {
    pub(super) outcome: Outcome,
    pub(super) extents: Option<Box<[Extent]>>,
}

/// The thread and the way to and from it. The thread ends when this is dropped.
pub(super) struct Offload {
    jobs: mpsc::Sender<Job>,
    pub(super) outcomes: Inbox<Done>,
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

fn serve(queue: mpsc::Receiver<Job>, results: Sender<Done>) {
    for job in queue {
        let (result, extents) = match job.call {
            Call::Discard => (discard(job.fd, job.offset, job.len), None),
            Call::Holes => match holes(job.fd, job.offset, job.len) {
                Ok(extents) => (Ok(0), Some(extents)),
                Err(errno) => (Err(errno), None),
            },
        };
        if results.send(Done { outcome: (job.id, result), extents }).is_err() {
            return;
        }
    }
}

/// What of a range of a file is holes and what is data, from its begin on; it may end early.
fn holes(fd: RawFd, offset: u64, len: u64) -> Result<Box<[Extent]>, Errno> {
    let (mut at, end) = (offset, offset.saturating_add(len));
    let mut extents: Vec<Extent> = Vec::new();
    let mut push = |len: u64, kind: ExtentKind| match extents.last_mut() {
        Some(last) if last.kind == kind => last.len += len,
        _ if len > 0 => extents.push(Extent { len, kind }),
        _ => {}
    };
    for _ in 0..EXTENTS_MAX {
        if at >= end {
            break;
        }
        // Nothing but a hole up to the end is an error of its own.
        let data = match seek(fd, at, libc::SEEK_DATA) {
            Ok(data) => data / GRAIN * GRAIN,
            Err(Errno::ENXIO) => end,
            Err(errno) => return Err(errno),
        };
        let data = data.clamp(at, end);
        push(data - at, ExtentKind::Hole);
        if data == end {
            break;
        }
        let hole = seek(fd, data, libc::SEEK_HOLE)?.next_multiple_of(GRAIN);
        // Somebody may have made a hole of it meanwhile.
        at = hole.clamp(data + GRAIN, end.max(data + GRAIN)).min(end);
        push(at - data, ExtentKind::Plain);
    }
    Ok(extents.into_boxed_slice())
}

fn seek(fd: RawFd, offset: u64, whence: libc::c_int) -> Result<u64, Errno> {
    let offset = i64::try_from(offset).map_err(|_| Errno::EINVAL)?;
    // SAFETY: no memory is passed. The descriptor is owned by the ring's table while the job runs, and
    // nobody uses the file's position, which this moves.
    let found = unsafe { libc::lseek(fd, offset, whence) };
    u64::try_from(found).map_err(|_| Errno::last())
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
