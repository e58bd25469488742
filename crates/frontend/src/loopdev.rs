//! Loop devices: a file as a block device of this machine.
//!
//! Only what a mapped volume needs: the file is used with direct I/O, so nothing is cached twice, and
//! every call may block as long as the file does. They are for ordinary threads.
//!
//! Source: `linux/loop.h` and `linux/fs.h` of the kernel's interface for user space.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use runtime::Errno;

/// Where devices are asked for.
pub const CONTROL: &str = "/dev/loop-control";

const LOOP_CLR_FD: libc::Ioctl = 0x4c01;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4c07;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const BLKFLSBUF: libc::Ioctl = 0x1261;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_PARTSCAN: u32 = 8;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// How often a free device may be somebody else's by the time it is taken.
const RACES: usize = 64;
/// How long a device's node may take to appear in `/dev`.
const NODE: Duration = Duration::from_secs(5);
/// How often is looked.
const TICK: Duration = Duration::from_millis(5);

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

const _: () = assert!(size_of::<Info>() == 232, "as in the kernel");

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Config>() == 304, "as in the kernel");

impl Info {
    const EMPTY: Info = Info {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

/// Makes a block device of a file, with partitions, and returns its path. Reads what the device
/// begins with. `name` is what [`has_name`] knows it by later, of at most 63 bytes.
///
/// # Errors
/// The kernel's error number; `ENXIO` if it has no loop devices to give.
pub fn attach(file: &File, read_only: bool, block_size: u32, name: &str) -> io::Result<String> {
    let control = OpenOptions::new().read(true).write(true).open(CONTROL)?;
    let mut info = Info::EMPTY;
    info.flags = LO_FLAGS_DIRECT_IO | LO_FLAGS_PARTSCAN;
    if read_only {
        info.flags |= LO_FLAGS_READ_ONLY;
    }
    info.file_name[..name.len()].copy_from_slice(name.as_bytes());
    let fd = file.as_raw_fd() as u32;
    let config = Config { fd, block_size, info, reserved: [0; 8] };
    for _ in 0..RACES {
        // SAFETY: the command takes no argument and returns a number.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = format!("/dev/loop{number}");
        let device = open_soon(Path::new(&path))?;
        // SAFETY: the kernel reads a `loop_config`, which lives until the call returns; `file` is
        // open, and the kernel takes a reference of its own.
        let done = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
        match done {
            0 => return Ok(path),
            _ if Errno::from(io::Error::last_os_error()) == Errno::EBUSY => {}
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Err(Errno::EBUSY.into())
}

/// Opens a device that may have been made just now: udev may take a moment.
fn open_soon(path: &Path) -> io::Result<File> {
    let end = Instant::now() + NODE;
    loop {
        match OpenOptions::new().read(true).write(true).open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && Instant::now() < end => {
                std::thread::sleep(TICK);
            }
            result => return result,
        }
    }
}

/// True if the device is in use and was made with that name.
pub fn has_name(path: &str, name: &str) -> bool {
    let Ok(device) = File::open(path) else { return false };
    let mut info = Info::EMPTY;
    // SAFETY: the kernel writes a `loop_info64`, of which any bits are a value, where one is.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
    let end = info.file_name.iter().position(|b| *b == 0).unwrap_or(info.file_name.len());
    done == 0 && info.file_name[..end] == *name.as_bytes()
}

fn command(path: &str, command: libc::Ioctl) -> io::Result<()> {
    let device = File::open(path)?;
    // SAFETY: the commands this is called with take no argument, or ignore it.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), command, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has the device take over the size of its file.
///
/// # Errors
/// The kernel's error number.
pub fn renew_size(path: &str) -> io::Result<()> {
    command(path, LOOP_SET_CAPACITY)
}

/// Writes what the device's page cache, and a file system on it, have yet to write.
///
/// # Errors
/// The kernel's error number.
pub fn flush(path: &str) -> io::Result<()> {
    command(path, BLKFLSBUF)
}

/// Takes the device away, or once the last one closes it.
///
/// # Errors
/// The kernel's error number; none if there is nothing left to take away.
pub fn detach(path: &str) -> io::Result<()> {
    match command(path, LOOP_CLR_FD) {
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(()),
        result => result,
    }
}

/// True if the device has no file.
pub fn is_free(path: &str) -> bool {
    let name = path.strip_prefix("/dev/").unwrap_or(path);
    !Path::new("/sys/block").join(name).join("loop").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_no_loop_device_is_nobodys() {
        assert!(!has_name("/dev/null", "x"));
        assert!(!has_name("/dev/does-not-exist", "x"));
        assert!(renew_size("/dev/null").is_err());
        assert!(is_free("/dev/loop999999"));
    }
}
