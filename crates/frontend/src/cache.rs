//! What the kernel holds of a device in its page cache (`cachestat`, Linux 6.5).
//!
//! It drops all of it when the last one closes the device, so whatever is there belongs to somebody who has the device
//! open, or mapped into memory.
//!
//! Source: `linux/mman.h` of the kernel's interface for user space.

use std::fs::File;
use std::os::fd::AsRawFd;

use runtime::Errno;

/// The same number on all architectures: it is younger than their common table.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range`: in bytes; a length of 0 is up to the end.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// `struct cachestat`: in pages.
#[repr(C)]
#[derive(Default)]
struct Stat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

const _: () = assert!(size_of::<Range>() == 16 && size_of::<Stat>() == 40, "as in the kernel");

/// Pages of the file or device that are in memory.
///
/// # Errors
/// `ENOSYS`: the kernel is older than Linux 6.5. Others are the kernel's.
pub fn pages(file: &File) -> Result<u64, Errno> {
    let all = Range { offset: 0, length: 0 };
    let mut stat = Stat::default();
    // SAFETY: both structures have the kernel's layout (asserted above) and live across the call, which reads the first
    // and writes the second and keeps neither; the descriptor is open.
    let result = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const all, &raw mut stat, 0_u32)
    };
    match result {
        0 => Ok(stat.cached),
        _ => Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_was_written_is_in_memory_and_an_empty_file_is_not() {
        let mut file = tempfile::tempfile().unwrap();
        match pages(&file) {
            Ok(cached) => assert_eq!(cached, 0),
            Err(Errno(libc::ENOSYS)) => return eprintln!("skipped: the kernel has no cachestat"),
            Err(errno) => panic!("{errno}"),
        }
        file.write_all(&[7; 8192]).unwrap();
        assert!((1..=2).contains(&pages(&file).unwrap()));
    }
}
