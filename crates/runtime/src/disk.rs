//! Backing devices: block devices and regular files, read and written past the page cache.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use vocab::{Bytes, Sector, SectorRange};

use crate::{Buf, Errno, Fd, OpId, Payload, Place, Ring, Token, Vectored};

/// How to open a [`DiskFile`].
#[derive(Clone, Copy, Debug)]
pub struct DiskOptions {
    /// Open for writing too.
    pub write: bool,
    /// Nobody else may use it meanwhile: `O_EXCL` on block devices (also refuses mounted ones),
    /// an open-file-description lock on regular files.
    pub exclusive: bool,
    /// Bypass the page cache where that is possible.
    pub direct: bool,
    /// Bytes at its beginning that are not part of the disk: sector 0 comes after them. A multiple of 4096.
    pub begin: u64,
    /// Logical blocks are not smaller than this, in bytes, whatever the device says.
    pub block_size: u32,
}

impl Default for DiskOptions {
    /// Exclusive, writable, direct, from its beginning, with its own blocks.
    fn default() -> Self {
        DiskOptions { write: true, exclusive: true, direct: true, begin: 0, block_size: 512 }
    }
}

/// Why a disk was not opened. Nothing was changed.
#[derive(Debug)]
pub struct OpenError {
    /// The disk.
    pub path: PathBuf,
    /// What is wrong.
    pub cause: OpenCause,
}

/// What is wrong with a disk that was not opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenCause {
    /// Somebody else uses it.
    InUse,
    /// Neither a block device nor a regular file.
    NotADisk,
    /// Sectors are larger than 4096 bytes, or an odd number.
    BlockSize(u32),
    /// A call failed.
    Failed {
        /// Which one, as in "can not ... it".
        doing: &'static str,
        /// Its error.
        errno: Errno,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match self.cause {
            OpenCause::InUse => f.write_str(
                "is in use (mounted, part of another device, or held by another process); \
                 release it first",
            ),
            OpenCause::NotADisk => {
                f.write_str("is neither a block device nor a regular file; give one of these")
            }
            OpenCause::BlockSize(n) => {
                write!(f, "has blocks of {n} bytes; powers of two from 512 to 4096 are supported")
            }
            OpenCause::Failed { doing, errno } => write!(f, "can not {doing} it: {errno}"),
        }
    }
}

impl std::error::Error for OpenError {}

/// Properties of an open disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskInfo {
    /// Size, rounded down to whole logical blocks.
    pub size: Bytes,
    /// Offset and length of every read and write are multiples of this, in bytes: 512 to 4096.
    pub logical_block_size: u32,
    /// Writes of multiples of this need no read-modify-write in the device, in bytes.
    pub physical_block_size: u32,
    /// Smallest and best sizes of I/O the device states, and where its physical blocks begin
    /// relative to its start, in bytes; 0 if it states none. Peers exchange them (wire P_SIZES).
    pub io_min: u32,
    /// See `io_min`.
    pub io_opt: u32,
    /// See `io_min`.
    pub alignment_offset: u32,
    /// The page cache is bypassed. False if it was not wanted or the file system refuses.
    pub direct: bool,
    /// A block device rather than a file.
    pub block_device: bool,
    /// `discard` is supported.
    pub can_discard: bool,
    /// Unit of deallocation in bytes: smaller or misaligned parts of a discard may be ignored.
    /// 0 without `can_discard`.
    pub discard_granularity: u32,
    /// Discarded ranges read as zeroes. No block device promises that.
    pub discard_zeroes: bool,
    /// Writes that were completed and not flushed may be gone after a power failure. False only
    /// for a device, or a file on one, that states so.
    pub volatile_cache: bool,
    /// Seeking costs time.
    pub rotational: bool,
}

/// An open block device or regular file.
pub struct DiskFile {
    fd: Fd,
    path: PathBuf,
    info: Cell<DiskInfo>,
    /// Where sector 0 is, in bytes.
    begin: u64,
}

impl DiskFile {
    /// Opens `path`. This may block; it belongs before or beside the I/O path.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open(path: &Path, options: DiskOptions) -> Result<DiskFile, OpenError> {
        open(path, options).map_err(|cause| OpenError { path: path.to_owned(), cause })
    }

    /// Goes on with a disk that another process has opened at `path`, and shares: its claim on the disk
    /// stays as it is. Of `options` what is said of the disk counts, such as where it begins, and has to be
    /// what it was opened with there; how it is open is what it is.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn adopt(path: &Path, fd: OwnedFd, options: DiskOptions) -> Result<DiskFile, OpenError> {
        adopt(path, fd, options).map_err(|cause| OpenError { path: path.to_owned(), cause })
    }

    /// Another descriptor of the same open disk, for [`DiskFile::adopt`].
    ///
    /// # Errors
    /// The error number if there are no descriptors left.
    pub fn share(&self) -> Result<OwnedFd, Errno> {
        Ok(self.fd.as_fd().try_clone_to_owned()?)
    }

    /// The properties found when it was opened, with the size found last.
    pub fn info(&self) -> DiskInfo {
        self.info.get()
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size as of now, which a resize of the device or file may have changed. Later checks
    /// use it.
    ///
    /// # Errors
    /// The error number; the known size stays.
    pub fn refresh_size(&self) -> Result<Bytes, Errno> {
        let info = self.info();
        let raw = if info.block_device {
            block_u64(&self.fd, BLKGETSIZE64)?
        } else {
            stat_size(&self.fd)?
        };
        let size = whole_blocks(raw.saturating_sub(self.begin), info.logical_block_size);
        self.info.set(DiskInfo { size, ..info });
        Ok(size)
    }

    /// Reads `buf.len()` bytes from `sector` on. All of them, or an error.
    ///
    /// # Panics
    /// If the buffer is not unique.
    pub fn read(&self, ring: &mut Ring, token: Token, sector: Sector, buf: Buf) -> OpId {
        match self.check(sector.0, buf.len() as u64) {
            Ok(offset) => ring.read(token, &self.fd, offset, buf),
            Err(errno) => ring.fail(token, errno, Payload::Buf(buf)),
        }
    }

    /// As [`DiskFile::read`] into the memory of a request ([`Ring::read_placed`]).
    pub fn read_placed(
        &self,
        ring: &mut Ring,
        token: Token,
        sector: Sector,
        len: u32,
        place: Place,
    ) -> OpId {
        match self.check(sector.0, u64::from(len)) {
            Ok(offset) => ring.read_placed(token, &self.fd, offset, len, place),
            Err(errno) => ring.fail(token, errno, Payload::None),
        }
    }

    /// Writes `buf` from `sector` on; with `fua` it is durable when complete.
    pub fn write(
        &self,
        ring: &mut Ring,
        token: Token,
        sector: Sector,
        buf: Buf,
        fua: bool,
    ) -> OpId {
        match self.check(sector.0, buf.len() as u64) {
            Ok(offset) => ring.write(token, &self.fd, offset, buf, fua),
            Err(errno) => ring.fail(token, errno, Payload::Buf(buf)),
        }
    }

    /// Its content lies in memory, without a disk.
    pub fn is_in_memory(&self) -> bool {
        self.fd.is_in_memory()
    }

    /// As [`DiskFile::read`] into several buffers in turn.
    ///
    /// # Panics
    /// If a buffer is not unique.
    pub fn readv(
        &self,
        ring: &mut Ring,
        token: Token,
        sector: Sector,
        list: Box<Vectored>,
    ) -> OpId {
        match self.check(sector.0, list.len() as u64) {
            Ok(offset) => ring.readv(token, &self.fd, offset, list),
            Err(errno) => ring.fail(token, errno, Payload::Vectored(list)),
        }
    }

    /// As [`DiskFile::write`] from several buffers in turn.
    pub fn writev(
        &self,
        ring: &mut Ring,
        token: Token,
        sector: Sector,
        list: Box<Vectored>,
        fua: bool,
    ) -> OpId {
        match self.check(sector.0, list.len() as u64) {
            Ok(offset) => ring.writev(token, &self.fd, offset, list, fua),
            Err(errno) => ring.fail(token, errno, Payload::Vectored(list)),
        }
    }

    /// Makes all completed writes durable, including those of the device's own cache.
    pub fn flush(&self, ring: &mut Ring, token: Token) -> OpId {
        ring.fdatasync(token, &self.fd)
    }

    /// Deallocates a range; its content is unspecified afterwards (zeroes in a file).
    /// `EOPNOTSUPP` if the disk can not.
    pub fn discard(&self, ring: &mut Ring, token: Token, range: SectorRange) -> OpId {
        let len = range.len.bytes().0;
        match self.check(range.start.0, len) {
            Err(errno) => ring.fail(token, errno, Payload::None),
            Ok(_) if !self.info().can_discard => ring.fail(token, Errno::EOPNOTSUPP, Payload::None),
            Ok(offset) if self.info().block_device => {
                ring.discard_blocks(token, &self.fd, offset, len)
            }
            Ok(offset) => ring.fallocate(token, &self.fd, PUNCH_HOLE, offset, len),
        }
    }

    /// Looks what of a range is holes, which read as zeroes, if the disk is a file of a file system that
    /// can tell; an error otherwise.
    pub fn holes(&self, ring: &mut Ring, token: Token, range: SectorRange) -> OpId {
        match self.check(range.start.0, range.len.bytes().0) {
            Ok(_) if self.info().block_device => ring.fail(token, Errno::EOPNOTSUPP, Payload::None),
            Ok(offset) => ring.holes(token, &self.fd, offset, range.len.bytes().0),
            Err(errno) => ring.fail(token, errno, Payload::None),
        }
    }

    /// Makes a range read as zeroes, by whatever way the disk offers; with `no_hole` it stays
    /// allocated.
    pub fn write_zeroes(
        &self,
        ring: &mut Ring,
        token: Token,
        range: SectorRange,
        no_hole: bool,
    ) -> OpId {
        let len = range.len.bytes().0;
        match self.check(range.start.0, len) {
            Ok(offset) => ring.write_zeroes(token, &self.fd, offset, len, no_hole),
            Err(errno) => ring.fail(token, errno, Payload::None),
        }
    }

    /// The range's first byte. Refuses what would be misaligned or outside: a write behind the
    /// end would make a regular file grow.
    fn check(&self, sector: u64, len: u64) -> Result<u64, Errno> {
        let offset = sector.checked_mul(vocab::SECTOR_SIZE).ok_or(Errno::EINVAL)?;
        let end = offset.checked_add(len).ok_or(Errno::EINVAL)?;
        let info = self.info();
        let block = u64::from(info.logical_block_size);
        if len == 0 || !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(Errno::EINVAL);
        }
        if end > info.size.0 { Err(Errno::ENOSPC) } else { Ok(self.begin + offset) }
    }
}

impl fmt::Debug for DiskFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskFile({}, {:?})", self.path.display(), self.info())
    }
}

const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// linux/fs.h: `_IO(0x12, 104)`, `_IO(0x12, 122)`, `_IO(0x12, 123)`, `_IOR(0x12, 114, size_t)`.
const BLKSSZGET: u64 = 0x1268;
const BLKALIGNOFF: u64 = 0x127a;
const BLKPBSZGET: u64 = 0x127b;
const BLKGETSIZE64: u64 = 0x8008_1272;

fn open(path: &Path, options: DiskOptions) -> Result<DiskFile, OpenCause> {
    let failed = |doing| move |errno: Errno| OpenCause::Failed { doing, errno };
    let kind = std::fs::metadata(path).map_err(|e| failed("find")(e.into()))?.file_type();
    let block_device = kind.is_block_device();
    if !block_device && !kind.is_file() {
        return Err(OpenCause::NotADisk);
    }
    let try_open = |direct: bool| {
        let mut flags = if direct { libc::O_DIRECT } else { 0 };
        if options.exclusive && block_device {
            flags |= libc::O_EXCL;
        }
        File::options().read(true).write(options.write).custom_flags(flags).open(path)
    };
    let (file, direct) = match try_open(options.direct) {
        Ok(file) => (file, options.direct),
        Err(e) if options.direct && e.raw_os_error() == Some(libc::EINVAL) => {
            (try_open(false).map_err(|e| failed("open")(e.into()))?, false)
        }
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => return Err(OpenCause::InUse),
        Err(e) => return Err(failed("open")(e.into())),
    };
    if options.exclusive && !block_device && !lock(&file, options.write).map_err(failed("lock"))? {
        return Err(OpenCause::InUse);
    }
    examine(path, file, DiskOptions { direct, ..options })
}

fn adopt(path: &Path, fd: OwnedFd, options: DiskOptions) -> Result<DiskFile, OpenCause> {
    // SAFETY: getting the status flags of an open descriptor involves no memory.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(OpenCause::Failed { doing: "examine", errno: Errno::last() });
    }
    let write = flags & libc::O_ACCMODE == libc::O_RDWR;
    let direct = flags & libc::O_DIRECT != 0;
    examine(path, File::from(fd), DiskOptions { write, direct, ..options })
}

/// An open disk with its properties.
fn examine(path: &Path, file: File, options: DiskOptions) -> Result<DiskFile, OpenCause> {
    let DiskOptions { write, mut direct, .. } = options;
    let failed = |doing| move |errno: Errno| OpenCause::Failed { doing, errno };
    let metadata = file.metadata().map_err(|e| failed("examine")(e.into()))?;
    let block_device = metadata.file_type().is_block_device();
    let fd = match metadata.is_file() && in_memory(&file) {
        true => Fd::in_memory(OwnedFd::from(file)),
        false => Fd::new(OwnedFd::from(file)),
    };
    let (size, logical, physical, can_discard);
    let dev = if block_device { metadata.rdev() } else { metadata.dev() };
    let queue = |name| queue_attribute(dev, name);
    let queue_u32 = |name| u32::try_from(queue(name)).unwrap_or(0);
    if block_device {
        size = block_u64(&fd, BLKGETSIZE64).map_err(failed("get the size of"))?;
        logical = block_u32(&fd, BLKSSZGET).map_err(failed("get the block size of"))?;
        physical = block_u32(&fd, BLKPBSZGET).unwrap_or(logical).max(logical);
        can_discard = write && queue("discard_max_bytes") > 0;
    } else {
        size = metadata.len();
        logical = if direct { direct_alignment(&fd) } else { 512 };
        if logical == 0 {
            // The file system takes the flag and then refuses the I/O.
            set_buffered(&fd).map_err(failed("set the mode of"))?;
            direct = false;
        }
        physical = (metadata.blksize() as u32).clamp(logical.max(512), 1 << 20);
        can_discard = write && can_punch(&fd, size);
    }
    let logical = logical.max(512).max(options.block_size);
    if !logical.is_power_of_two() || logical > 4096 {
        return Err(OpenCause::BlockSize(logical));
    }
    let info = DiskInfo {
        size: whole_blocks(size.saturating_sub(options.begin), logical),
        logical_block_size: logical,
        physical_block_size: physical.max(logical),
        io_min: if block_device { queue_u32("minimum_io_size") } else { physical },
        io_opt: if block_device { queue_u32("optimal_io_size") } else { 0 },
        alignment_offset: if block_device { block_u32(&fd, BLKALIGNOFF).unwrap_or(0) } else { 0 },
        direct,
        block_device,
        can_discard,
        discard_granularity: match (can_discard, block_device) {
            (false, _) => 0,
            (true, true) => queue_u32("discard_granularity").max(logical),
            (true, false) => physical,
        },
        discard_zeroes: can_discard && !block_device,
        volatile_cache: queue_text(dev, "write_cache").is_none_or(|text| text != "write through"),
        rotational: queue("rotational") > 0,
    };
    Ok(DiskFile { fd, path: path.to_owned(), info: Cell::new(info), begin: options.begin })
}

fn whole_blocks(size: u64, block: u32) -> Bytes {
    Bytes(size - size % u64::from(block))
}

/// Locks the whole file against other open file descriptions, also of this process. False if
/// somebody else holds a lock.
fn lock(fd: &File, exclusive: bool) -> Result<bool, Errno> {
    // SAFETY: flock is a plain C struct; zero means "from the start, whole file, no process".
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK } as _;
    // SAFETY: the kernel reads the struct; the descriptor is open.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &lock) } {
        0 => Ok(true),
        _ => match Errno::last() {
            Errno(libc::EAGAIN | libc::EACCES) => Ok(false),
            errno => Err(errno),
        },
    }
}

fn block_u64(fd: &Fd, request: u64) -> Result<u64, Errno> {
    let mut value = 0u64;
    // SAFETY: BLKGETSIZE64 writes a u64 to the pointer.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, &mut value) };
    if result == 0 { Ok(value) } else { Err(Errno::last()) }
}

fn block_u32(fd: &Fd, request: u64) -> Result<u32, Errno> {
    let mut value = 0u32;
    // SAFETY: BLKSSZGET, BLKPBSZGET and BLKALIGNOFF write an int to the pointer.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, &mut value) };
    if result == 0 { Ok(value) } else { Err(Errno::last()) }
}

fn stat_size(fd: &Fd) -> Result<u64, Errno> {
    // SAFETY: stat is a plain C struct that the kernel fills in.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a whole struct and the descriptor is open.
    match unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } {
        0 => Ok(stat.st_size as u64),
        _ => Err(Errno::last()),
    }
}

/// A number below the block device's `queue` directory in sysfs; 0 if it can not be read. For a
/// partition that is the directory of the whole device.
fn queue_attribute(dev: u64, name: &str) -> u64 {
    queue_text(dev, name).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The same as it is written there.
fn queue_text(dev: u64, name: &str) -> Option<String> {
    let (major, minor) = (libc::major(dev), libc::minor(dev));
    let read = |queue: &str| -> io::Result<String> {
        let path = format!("/sys/dev/block/{major}:{minor}/{queue}/{name}");
        Ok(std::fs::read_to_string(path)?.trim().to_owned())
    };
    read("queue").or_else(|_| read("../queue")).ok()
}

/// The alignment direct I/O on a regular file needs, in bytes: what the kernel states (6.1+),
/// else the smallest size that can be read. 0 if direct I/O does not work at all.
fn direct_alignment(fd: &Fd) -> u32 {
    // SAFETY: statx is a plain C struct that the kernel fills in.
    let mut statx: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is an empty C string, the pointer is to a whole struct.
    let result = unsafe {
        let mask = libc::STATX_DIOALIGN;
        libc::statx(fd.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, mask, &mut statx)
    };
    if result == 0 && statx.stx_mask & libc::STATX_DIOALIGN != 0 {
        return statx.stx_dio_offset_align;
    }
    let mut memory = vec![0u8; 8192];
    let start = memory.as_ptr().align_offset(4096);
    let Some(aligned) = memory.get_mut(start..start + 4096) else { return 0 };
    for size in [512u32, 1024, 2048, 4096] {
        let len = size as usize;
        // SAFETY: reads at most `len` bytes into a slice of 4096.
        let n = unsafe { libc::pread(fd.as_raw_fd(), aligned.as_mut_ptr().cast(), len, 0) };
        if n >= 0 {
            return size;
        }
    }
    0
}

/// True for a file on a file system that keeps its files in memory; the nodes of devices are on one, too.
fn in_memory(file: &File) -> bool {
    // SAFETY: statfs is a plain C struct that the kernel fills in.
    let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a whole struct and the descriptor is open.
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), &mut statfs) };
    result == 0 && statfs.f_type == libc::TMPFS_MAGIC
}

/// Removes `O_DIRECT` again.
fn set_buffered(fd: &Fd) -> Result<(), Errno> {
    let raw = fd.as_raw_fd();
    // SAFETY: getting and setting status flags of an open descriptor involves no memory.
    let result = unsafe {
        let flags = libc::fcntl(raw, libc::F_GETFL);
        libc::fcntl(raw, libc::F_SETFL, flags & !libc::O_DIRECT)
    };
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// Whether the file system can punch holes, tried out behind the end of the file.
fn can_punch(fd: &Fd, size: u64) -> bool {
    let Ok(offset) = libc::off_t::try_from(size.next_multiple_of(4096)) else { return false };
    // SAFETY: no memory is involved. Nothing is there to be punched, and the size is kept.
    unsafe { libc::fallocate(fd.as_raw_fd(), PUNCH_HOLE, offset, 4096) == 0 }
}

#[cfg(test)]
mod tests;
