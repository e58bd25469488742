//! The socket of a client: messages with file descriptors, read without outwaiting a wish to stop.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::proto::{FDS_MAX, HEADER_LEN, Header, Message, Violation};

/// How long a client may take to take an answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Why there is no message.
#[derive(Debug)]
pub enum ReadError {
    /// The client has gone.
    Closed,
    /// Somebody wishes an end.
    Stopped,
    /// Somebody wishes that it rests; nothing of a message was read.
    Held,
    /// What came makes no sense.
    Violation(Violation),
    /// The socket does not work.
    Io(io::Error),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => ReadError::Closed,
            _ => ReadError::Io(error),
        }
    }
}

impl From<rustix::io::Errno> for ReadError {
    fn from(errno: rustix::io::Errno) -> ReadError {
        io::Error::from(errno).into()
    }
}

impl From<Violation> for ReadError {
    fn from(violation: Violation) -> ReadError {
        ReadError::Violation(violation)
    }
}

/// A connected client.
pub struct Socket {
    stream: UnixStream,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// A message as it came.
#[derive(Debug)]
pub struct Received {
    /// Its head.
    pub header: Header,
    /// What it says.
    pub message: Message,
    /// The descriptors that came along, as many as the message has room for.
    pub fds: Vec<OwnedFd>,
}

impl Socket {
    /// Takes a connection.
    ///
    /// # Errors
    /// The socket does not work.
    pub fn new(stream: UnixStream) -> io::Result<Socket> {
        stream.set_write_timeout(Some(ANSWER))?;
        Ok(Socket { stream })
    }

    /// Waits for a message, for so long at most if there is a limit: `None` then. `stop` becomes
    /// readable when this is to end, and `hold` when no other message is to be begun with.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn receive(
        &self,
        stop: &OwnedFd,
        hold: &OwnedFd,
        limit: Option<Duration>,
    ) -> Result<Option<Received>, ReadError> {
        if !self.wait(stop, Some(hold), limit)? {
            return Ok(None);
        }
        let mut fds = Vec::new();
        let mut head = [0; HEADER_LEN];
        self.fill(stop, &mut head, &mut fds)?;
        let header = Header::decode(&head)?;
        let mut payload = vec![0; header.len as usize];
        self.fill(stop, &mut payload, &mut fds)?;
        let message = Message::decode(header, &payload, fds.len())?;
        Ok(Some(Received { header, message, fds }))
    }

    /// True once there is something to read, false if the time is over.
    fn wait(
        &self,
        stop: &OwnedFd,
        hold: Option<&OwnedFd>,
        limit: Option<Duration>,
    ) -> Result<bool, ReadError> {
        let timeout = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        loop {
            let hold = hold
                .map_or(PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::empty()), |hold| {
                    PollFd::new(hold, PollFlags::IN)
                });
            let mut fds =
                [PollFd::new(stop, PollFlags::IN), PollFd::new(&self.stream, PollFlags::IN), hold];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Ok(false),
                Ok(_) if !fds[0].revents().is_empty() => return Err(ReadError::Stopped),
                Ok(_) if !fds[2].revents().is_empty() => return Err(ReadError::Held),
                Ok(_) => return Ok(true),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Reads until `into` is full.
    fn fill(
        &self,
        stop: &OwnedFd,
        mut into: &mut [u8],
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(), ReadError> {
        while !into.is_empty() {
            self.wait(stop, None, None)?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let mut pieces = [IoSliceMut::new(into)];
            let got = match recvmsg(self.stream.as_fd(), &mut pieces, &mut control, flags) {
                Ok(got) => got,
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
                Err(errno) => return Err(errno.into()),
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    fds.extend(rights);
                }
            }
            // The kernel closes what does not fit; a message never has room for more.
            if fds.len() > FDS_MAX {
                let count = fds.len();
                return Err(Violation::Descriptors { request: 0, count }.into());
            }
            if got.bytes == 0 {
                return Err(ReadError::Closed);
            }
            into = &mut into[got.bytes..];
        }
        Ok(())
    }

    /// The connection once more, for another process.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        Ok(self.stream.try_clone()?.into())
    }

    /// Sends an answer, with a descriptor or without.
    ///
    /// # Errors
    /// The client has gone, or does not take it.
    pub fn send(&self, bytes: &[u8], fd: Option<&OwnedFd>) -> io::Result<()> {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let mut left = bytes;
        while !left.is_empty() {
            let pieces = [IoSlice::new(left)];
            match sendmsg(&self.stream, &pieces, &mut control, SendFlags::NOSIGNAL) {
                Ok(sent) => left = &left[sent..],
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            control.clear();
        }
        Ok(())
    }
}
