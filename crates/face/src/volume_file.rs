//! The file system: a folder with one file, whose content is the volume.
//!
//! Nothing is cached here, nor by the kernel: the file is always used with direct I/O, and its size is
//! asked for each time. Reads and writes are answered whenever the engine answers, in any order.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, WriteFlags,
};

use crate::link::{self, Link, Op};

const FOLDER: INodeNo = INodeNo::ROOT;
const VOLUME: INodeNo = INodeNo(2);
const NAME: &str = "volume";
/// What is told of files is good for no time: the volume may grow.
const NOW: Duration = Duration::ZERO;
/// Longest transfer, in bytes: what one buffer of the engine has room for.
const TRANSFER_MAX: u32 = 1 << 20;
/// Discards and zeroing have this granularity, in bytes.
const GRANULARITY: u32 = 4096;

/// How often the file is open. There is one file system in a process.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// True if somebody has the file open.
pub fn is_open() -> bool {
    OPEN.load(Ordering::Acquire) > 0
}

/// Where the answer to a request goes.
pub enum Answer {
    /// To a read.
    Data(ReplyData),
    /// To a write of that many bytes.
    Written(ReplyWrite, u32),
    /// To anything else.
    Empty(ReplyEmpty),
}

impl link::Answer for Answer {
    fn done(self, result: Result<&[u8], i32>) {
        match (self, result) {
            (Answer::Data(reply), Ok(data)) => reply.data(data),
            (Answer::Data(reply), Err(e)) => reply.error(Errno::from_i32(e)),
            (Answer::Written(reply, len), Ok(_)) => reply.written(len),
            (Answer::Written(reply, _), Err(e)) => reply.error(Errno::from_i32(e)),
            (Answer::Empty(reply), Ok(_)) => reply.ok(),
            (Answer::Empty(reply), Err(e)) => reply.error(Errno::from_i32(e)),
        }
    }
}

/// The file system.
pub struct VolumeFile {
    link: Arc<Link<Answer>>,
    read_only: bool,
    depth: u16,
}

impl VolumeFile {
    /// A file whose requests go through `link`, at most `depth` at a time.
    pub fn new(link: Arc<Link<Answer>>, read_only: bool, depth: u16) -> VolumeFile {
        VolumeFile { link, read_only, depth }
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match inode {
            FOLDER => (FileType::Directory, 0o700, 0),
            VOLUME => {
                let perm = if self.read_only { 0o400 } else { 0o600 };
                (FileType::RegularFile, perm, self.link.size())
            }
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: GRANULARITY,
            flags: 0,
        })
    }
}

/// Bytes of a range that lie within the volume.
fn within(size: u64, offset: u64, len: u32) -> u32 {
    u64::from(len).min(size.saturating_sub(offset)) as u32
}

/// What `fallocate(2)` asks for; `None` if that is not served.
fn zeroing(mode: i32) -> Option<Op> {
    // `linux/falloc.h`
    const KEEP_SIZE: i32 = 0x01;
    const PUNCH_HOLE: i32 = 0x02;
    const ZERO_RANGE: i32 = 0x10;
    match mode & !KEEP_SIZE {
        // The kernel promises that a hole reads as zeroes, so a mere trim would not do.
        PUNCH_HOLE => Some(Op::Zeroes { keep: false }),
        ZERO_RANGE => Some(Op::Zeroes { keep: true }),
        _ => None,
    }
}

impl Filesystem for VolumeFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = || io::Error::from(io::ErrorKind::Unsupported);
        config.set_max_write(TRANSFER_MAX).map_err(|_| refused())?;
        // Sizes the kernel's requests together with the former, where the kernel has that much.
        if let Err(most) = config.set_max_readahead(TRANSFER_MAX) {
            config.set_max_readahead(most).map_err(|_| refused())?;
        }
        config.set_max_background(self.depth).map_err(|_| refused())?;
        config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).map_err(|_| {
            io::Error::new(io::ErrorKind::Unsupported, "the kernel has no FUSE_ASYNC_DIO")
        })
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(VOLUME) {
            Some(attributes) if parent == FOLDER && name == NAME => {
                reply.entry(&NOW, &attributes, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&NOW, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = [
            (FOLDER, FileType::Directory, "."),
            (FOLDER, FileType::Directory, ".."),
            (VOLUME, FileType::RegularFile, NAME),
        ];
        for (next, (inode, kind, name)) in (1..).zip(entries).skip(offset as usize) {
            if reply.add(inode, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        // A loop device takes the block size for the granularity of discards.
        reply.statfs(0, 0, 0, 1, 0, GRANULARITY, 255, GRANULARITY);
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if inode != VOLUME {
            return reply.error(Errno::EISDIR);
        }
        OPEN.fetch_add(1, Ordering::AcqRel);
        let flags = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), flags);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        OPEN.fetch_sub(1, Ordering::AcqRel);
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match within(self.link.size(), offset, size) {
            0 => reply.data(&[]),
            len => self.link.submit(Op::Read, offset, len, Answer::Data(reply)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.read_only {
            return reply.error(Errno::EROFS);
        }
        let len = data.len() as u32;
        if within(self.link.size(), offset, len) < len {
            return reply.error(Errno::ENOSPC);
        }
        let copy = self.link.copy(data);
        self.link.submit(Op::Write(copy), offset, len, Answer::Written(reply, len));
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.link.submit(Op::Flush, 0, 0, Answer::Empty(reply));
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(op) = zeroing(mode) else { return reply.error(Errno::EOPNOTSUPP) };
        if self.read_only {
            return reply.error(Errno::EROFS);
        }
        // A loop device asks for less than 4 GiB at a time.
        let Ok(len) = u32::try_from(length) else { return reply.error(Errno::EINVAL) };
        if within(self.link.size(), offset, len) < len {
            return reply.error(Errno::ENOSPC);
        }
        self.link.submit(op, offset, len, Answer::Empty(reply));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_with_the_volume() {
        assert_eq!(within(8192, 0, 4096), 4096);
        assert_eq!(within(8192, 4096, 8192), 4096);
        assert_eq!(within(8192, 8192, 1), 0);
        assert_eq!(within(8192, u64::MAX, 1), 0);
    }

    #[test]
    fn holes_and_zeroes_are_told_apart_and_the_rest_is_refused() {
        assert_eq!(zeroing(0x03), Some(Op::Zeroes { keep: false }));
        assert_eq!(zeroing(0x10), Some(Op::Zeroes { keep: true }));
        assert_eq!(zeroing(0x11), Some(Op::Zeroes { keep: true }));
        // Allocation, collapsing and inserting would change what lies behind.
        for mode in [0x00, 0x01, 0x08, 0x20, 0x13] {
            assert_eq!(zeroing(mode), None, "{mode:#x}");
        }
    }
}
