//! An operating-system error number as a value that can be compared, stored and sent.

use std::fmt;
use std::io;

/// A positive error number (`errno.h`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub i32);

#[allow(missing_docs, reason = "errno.h says what each number means; Display prints its text")]
impl Errno {
    pub const EPERM: Errno = Errno(libc::EPERM);
    pub const EINTR: Errno = Errno(libc::EINTR);
    pub const EIO: Errno = Errno(libc::EIO);
    pub const EBADF: Errno = Errno(libc::EBADF);
    pub const EAGAIN: Errno = Errno(libc::EAGAIN);
    pub const ENOMEM: Errno = Errno(libc::ENOMEM);
    pub const EBUSY: Errno = Errno(libc::EBUSY);
    pub const EEXIST: Errno = Errno(libc::EEXIST);
    pub const ENODEV: Errno = Errno(libc::ENODEV);
    pub const EINVAL: Errno = Errno(libc::EINVAL);
    pub const ENOTTY: Errno = Errno(libc::ENOTTY);
    pub const ENOSPC: Errno = Errno(libc::ENOSPC);
    /// No such device or address; also: no more data behind that place of a file.
    pub const ENXIO: Errno = Errno(libc::ENXIO);
    pub const EROFS: Errno = Errno(libc::EROFS);
    pub const EPIPE: Errno = Errno(libc::EPIPE);
    pub const ETIME: Errno = Errno(libc::ETIME);
    pub const ETIMEDOUT: Errno = Errno(libc::ETIMEDOUT);
    pub const ENOSYS: Errno = Errno(libc::ENOSYS);
    pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
    pub const EMEDIUMTYPE: Errno = Errno(libc::EMEDIUMTYPE);
    pub const ECONNREFUSED: Errno = Errno(libc::ECONNREFUSED);
    pub const ECONNRESET: Errno = Errno(libc::ECONNRESET);
    pub const ECANCELED: Errno = Errno(libc::ECANCELED);
    pub const ENOBUFS: Errno = Errno(libc::ENOBUFS);
    pub const ESHUTDOWN: Errno = Errno(libc::ESHUTDOWN);
    pub const EOVERFLOW: Errno = Errno(libc::EOVERFLOW);
}

impl Errno {
    /// The calling thread's last error.
    pub(crate) fn last() -> Errno {
        Errno::from(io::Error::last_os_error())
    }
}

impl From<io::Error> for Errno {
    /// The error's number; `EIO` for an error that did not come from the operating system.
    fn from(error: io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}

impl std::error::Error for Errno {}
