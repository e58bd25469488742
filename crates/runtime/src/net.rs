//! Stream sockets on a ring: listening, connecting, gathered sending and staged receiving.
//!
//! A [`Conn`] is one connected socket with its [`TxQueue`] and [`RxStream`]. Dropping it shuts
//! the socket down, which ends whatever operations are in flight; their memory stays with the
//! ring until they have completed.

mod info;
mod rx;
#[cfg(test)]
mod tests;
mod tx;

pub use info::TcpInfo;
pub use rx::{PEEK_MAX, Received, RxStream};
pub use tx::{Reserved, TxQueue};

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use crate::{BufPool, Completed, Errno, Fd, OpId, Payload, Ring, Token};

/// Connections that wait to be accepted (wire §1.1).
const BACKLOG: i32 = 64;

/// Runs `f` on the socket behind `fd`.
fn with_socket<T>(fd: &Fd, f: impl FnOnce(SockRef<'_>) -> io::Result<T>) -> Result<T, Errno> {
    f(SockRef::from(fd)).map_err(Errno::from)
}

/// Ends both directions. Operations in flight complete with 0 bytes or an error.
fn shutdown(fd: &Fd) {
    // Fails only if the socket is not connected (any more), and then nothing is left to end.
    let _ = with_socket(fd, |socket| socket.shutdown(std::net::Shutdown::Both));
}

/// A listening socket.
pub struct Listener {
    fd: Fd,
}

impl Listener {
    /// Listens on a TCP address, with `SO_REUSEADDR`.
    ///
    /// # Errors
    /// The error number of the call that failed, e.g. `EADDRINUSE`.
    pub fn tcp(address: SocketAddr) -> Result<Listener, Errno> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(Listener { fd: Fd::new(socket.into()) })
    }

    /// Listens on a unix socket at `path`, replacing a socket that a dead process left there.
    ///
    /// # Errors
    /// `EADDRINUSE` if somebody listens there or the path is not a socket; otherwise the error
    /// number of the call that failed.
    pub fn unix(path: &Path) -> Result<Listener, Errno> {
        Ok(Listener { fd: Fd::new(listen_unix(path)?) })
    }

    /// Listens on a socket set up elsewhere (socket activation).
    pub fn from_fd(fd: OwnedFd) -> Listener {
        Listener { fd: Fd::new(fd) }
    }

    /// Accepts one connection; it is the completion's [`Payload::Fd`], which can be sent to
    /// the thread that shall own it. After an error such as `EMFILE` wait before the next try.
    pub fn accept(&self, ring: &mut Ring, token: Token) -> OpId {
        ring.accept(token, &self.fd)
    }

    /// Another descriptor of the same socket, for another process that is to go on with it.
    ///
    /// # Errors
    /// The error number if there are no descriptors left.
    pub fn share(&self) -> Result<OwnedFd, Errno> {
        Ok(self.fd.as_fd().try_clone_to_owned()?)
    }

    /// The address listened on, with the port the kernel chose if it was 0.
    ///
    /// # Errors
    /// `EINVAL` if this is not a TCP socket.
    pub fn local_addr(&self) -> Result<SocketAddr, Errno> {
        with_socket(&self.fd, |socket| socket.local_addr())?.as_socket().ok_or(Errno::EINVAL)
    }
}

/// A listening socket at a path, for those who wait for clients on a thread of their own. A socket that a
/// process has left behind is replaced.
///
/// # Errors
/// As [`Listener::unix`].
pub fn listen_unix(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    if let Err(error) = socket.bind(&address) {
        let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // Whoever listens may be in no hurry to accept.
        probe.set_nonblocking(true)?;
        let stale = error.raw_os_error() == Some(libc::EADDRINUSE)
            && std::fs::symlink_metadata(path)?.file_type().is_socket()
            && matches!(probe.connect(&address),
                Err(e) if e.raw_os_error() == Some(libc::ECONNREFUSED));
        if !stale {
            return Err(error.into());
        }
        std::fs::remove_file(path)?;
        socket.bind(&address)?;
    }
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

impl Drop for Listener {
    /// Stops listening; an accept in flight completes with an error.
    fn drop(&mut self) {
        shutdown(&self.fd);
    }
}

/// An outgoing connection being established.
pub struct Connecting {
    fd: Option<Fd>,
    op: OpId,
}

impl Connecting {
    /// Starts connecting to `remote`; if `local` is given, from that address (port 0: any).
    ///
    /// # Errors
    /// The error number if the socket can not be created or bound. How connecting itself went
    /// is the completion with `token`.
    pub fn tcp(
        ring: &mut Ring,
        token: Token,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<Connecting, Errno> {
        let socket = Socket::new(Domain::for_address(remote), Type::STREAM, None)?;
        if let Some(local) = local {
            socket.set_reuse_address(true)?;
            socket.bind(&local.into())?;
        }
        Ok(Connecting::start(ring, token, socket, remote.into()))
    }

    /// Starts connecting to a unix socket.
    ///
    /// # Errors
    /// As [`Connecting::tcp`]; `EINVAL` if the path is too long.
    pub fn unix(ring: &mut Ring, token: Token, path: &Path) -> Result<Connecting, Errno> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        Ok(Connecting::start(ring, token, socket, SockAddr::unix(path)?))
    }

    fn start(ring: &mut Ring, token: Token, socket: Socket, address: SockAddr) -> Connecting {
        let fd = Fd::new(socket.into());
        let op = ring.connect(token, &fd, address);
        Connecting { fd: Some(fd), op }
    }

    /// The connection, to be called with the completion that carries the token.
    ///
    /// # Errors
    /// Why connecting failed.
    pub fn on_completed(mut self, done: Completed, pool: &BufPool) -> Result<Conn, Errno> {
        done.result?;
        let fd = self.fd.take().expect("present until the connection is established");
        Ok(Conn::from_fd(fd, pool))
    }

    /// Gives up; the completion still comes.
    pub fn cancel(self, ring: &mut Ring) {
        ring.cancel(self.op);
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if let Some(fd) = &self.fd {
            shutdown(fd);
        }
    }
}

/// A connected stream socket.
pub struct Conn {
    fd: Fd,
    /// What arrives.
    pub rx: RxStream,
    /// What leaves.
    pub tx: TxQueue,
    given_away: bool,
}

impl Conn {
    /// Wraps a connected stream socket. Makes it blocking: on a non-blocking one the ring's
    /// operations would fail instead of waiting.
    ///
    /// # Errors
    /// The error number if that is not possible.
    pub fn new(socket: OwnedFd, pool: &BufPool) -> Result<Conn, Errno> {
        let socket = Socket::from(socket);
        socket.set_nonblocking(false)?;
        Ok(Conn::from_fd(Fd::new(socket.into()), pool))
    }

    /// The accepted connection of a completion of [`Listener::accept`].
    ///
    /// # Errors
    /// Why accepting failed.
    pub fn accepted(done: Completed, pool: &BufPool) -> Result<Conn, Errno> {
        done.result?;
        match done.payload {
            Payload::Fd(fd) => Ok(Conn::from_fd(Fd::new(fd), pool)),
            _ => Err(Errno::EBADF),
        }
    }

    fn from_fd(fd: Fd, pool: &BufPool) -> Conn {
        Conn {
            rx: RxStream::new(fd.clone(), pool.clone()),
            tx: TxQueue::new(fd.clone()),
            fd,
            given_away: false,
        }
    }

    /// Sends small packets at once (`TCP_NODELAY`). The transmit queue gathers by itself.
    ///
    /// # Errors
    /// The error number, e.g. `EOPNOTSUPP` on a unix socket.
    pub fn set_nodelay(&self) -> Result<(), Errno> {
        with_socket(&self.fd, |socket| socket.set_tcp_nodelay(true))
    }

    /// Lets TCP detect a dead peer on an idle connection.
    ///
    /// # Errors
    /// The error number.
    pub fn set_keepalive(
        &self,
        idle: Duration,
        interval: Duration,
        count: u32,
    ) -> Result<(), Errno> {
        let keepalive =
            TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(count);
        with_socket(&self.fd, |socket| socket.set_tcp_keepalive(&keepalive))
    }

    /// Sets the kernel's buffer sizes in bytes; `None` leaves them to its tuning.
    ///
    /// # Errors
    /// The error number.
    pub fn set_buffer_sizes(
        &self,
        send: Option<usize>,
        receive: Option<usize>,
    ) -> Result<(), Errno> {
        with_socket(&self.fd, |socket| {
            send.map_or(Ok(()), |n| socket.set_send_buffer_size(n))?;
            receive.map_or(Ok(()), |n| socket.set_recv_buffer_size(n))
        })
    }

    /// What the kernel says of a TCP socket. Fields that it does not know are 0.
    ///
    /// # Errors
    /// The error number, e.g. `EOPNOTSUPP` on a unix socket.
    pub fn tcp_info(&self) -> Result<TcpInfo, Errno> {
        TcpInfo::of(&self.fd)
    }

    /// The kernel's buffers in bytes: to send, to receive.
    ///
    /// # Errors
    /// The error number.
    pub fn buffer_sizes(&self) -> Result<(usize, usize), Errno> {
        with_socket(&self.fd, |socket| Ok((socket.send_buffer_size()?, socket.recv_buffer_size()?)))
    }

    /// The peer's address, if it is an IP address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        with_socket(&self.fd, |socket| socket.peer_addr()).ok()?.as_socket()
    }

    /// Our own address, if it is an IP address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        with_socket(&self.fd, |socket| socket.local_addr()).ok()?.as_socket()
    }

    /// User, group and process at the other end of a unix socket, as of when it connected.
    ///
    /// # Errors
    /// The error number, e.g. if this is not a unix socket.
    pub fn peer_credentials(&self) -> Result<libc::ucred, Errno> {
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = std::mem::size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes, the size of the struct pointed to.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &mut len,
            )
        };
        if result == 0 { Ok(credentials) } else { Err(Errno::last()) }
    }

    /// Gives the socket away as it is, connected, for instance to another thread.
    ///
    /// # Errors
    /// The error number if there are no descriptors left; the connection has ended then.
    ///
    /// # Panics
    /// If a receive or send is in flight: it would go on behind the new owner's back.
    pub fn into_fd(mut self) -> Result<OwnedFd, Errno> {
        assert!(!self.rx.is_armed() && !self.tx.is_busy(), "an idle connection is given away");
        let fd = self.fd.as_fd().try_clone_to_owned()?;
        self.given_away = true;
        Ok(fd)
    }

    /// Another descriptor of the same socket, for another process that is to go on with it. Whoever
    /// drops this connection ends it for both.
    ///
    /// # Errors
    /// The error number if there are no descriptors left.
    ///
    /// # Panics
    /// If a receive or send is in flight: it would go on behind the other one's back.
    pub fn share(&self) -> Result<OwnedFd, Errno> {
        assert!(!self.rx.is_armed() && !self.tx.is_busy(), "an idle connection is shared");
        Ok(self.fd.as_fd().try_clone_to_owned()?)
    }

    /// Ends both directions. Operations in flight complete; what was handed to the kernel is
    /// still sent.
    pub fn shutdown(&self) {
        shutdown(&self.fd);
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        if !self.given_away {
            self.shutdown();
        }
    }
}
