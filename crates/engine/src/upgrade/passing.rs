//! What two engines tell each other while one takes over, on a socket between them.
//!
//! ```text
//! old  ── starts it ──►  new
//!      ◄──── Ready ────       its threads run, and it has opened nothing
//!      ───── State ───►       and the descriptors; the old one is frozen
//!      ◄──── Taken ────       or Failed, and the old one goes on
//!      ───── Go ──────►       from here on the old one never does anything again
//!      ◄──── Running ──
//! ```
//! The end of the stream before `Go` means that nothing has happened, to both of them.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Descriptors in one message; the kernel takes 253.
const DESCRIPTORS: usize = 128;
/// A state of that length is damage: bitmaps of a whole petabyte are less.
const STATE_MAX: u64 = 64 << 30;

/// Kinds of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Ready = 1,
    State,
    Taken,
    Failed,
    Go,
    Running,
}

/// Sends a message.
pub(super) fn send(mut to: &UnixStream, kind: Kind, content: &[u8]) -> io::Result<()> {
    let mut head = [kind as u8; 9];
    head[1..].copy_from_slice(&(content.len() as u64).to_le_bytes());
    to.write_all(&head)?;
    to.write_all(content)
}

/// Receives a message; `None` at the end of the stream.
pub(super) fn receive(mut from: &UnixStream) -> io::Result<Option<(Kind, Vec<u8>)>> {
    let mut head = [0; 9];
    match from.read_exact(&mut head) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let all = [Kind::Ready, Kind::State, Kind::Taken, Kind::Failed, Kind::Go, Kind::Running];
    let kind = all.into_iter().find(|kind| *kind as u8 == head[0]);
    let length = head[1..].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    let (Some(kind), true) = (kind, length <= STATE_MAX) else {
        return Err(io::Error::other("this is no message of another engine"));
    };
    let mut content = Vec::new();
    if from.take(length).read_to_end(&mut content)? as u64 == length {
        Ok(Some((kind, content)))
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Sends descriptors, which stay open here as well.
pub(super) fn send_descriptors(to: &UnixStream, descriptors: &[OwnedFd]) -> io::Result<()> {
    let all: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    for some in all.chunks(DESCRIPTORS) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fits = control.push(SendAncillaryMessage::ScmRights(some));
        assert!(fits, "there is space for as many");
        sendmsg(to, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// Receives so many descriptors.
pub(super) fn receive_descriptors(from: &UnixStream, count: usize) -> io::Result<Vec<OwnedFd>> {
    let mut descriptors = Vec::new();
    while descriptors.len() < count {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
        let before = descriptors.len();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                descriptors.extend(some);
            }
        }
        if got.bytes == 0 || descriptors.len() == before {
            return Err(io::Error::other(format!(
                "{} descriptors of {count} have come",
                descriptors.len()
            )));
        }
    }
    Ok(descriptors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn messages_and_descriptors_arrive_in_order() {
        let (here, there) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(77).unwrap();
        let files: Vec<OwnedFd> = (0..300).map(|_| file.try_clone().unwrap().into()).collect();
        let sender = std::thread::spawn(move || {
            send(&here, Kind::State, &[7; 100_000]).unwrap();
            send_descriptors(&here, &files).unwrap();
            send(&here, Kind::Go, &[]).unwrap();
        });
        assert_eq!(receive(&there).unwrap(), Some((Kind::State, vec![7; 100_000])));
        let files = receive_descriptors(&there, 300).unwrap();
        assert_eq!(files.len(), 300);
        for file in files {
            assert_eq!(File::from(file).metadata().unwrap().len(), 77);
        }
        assert_eq!(receive(&there).unwrap(), Some((Kind::Go, Vec::new())));
        sender.join().unwrap();
        assert_eq!(receive(&there).unwrap(), None);
    }

    #[test]
    fn descriptors_that_are_missing_are_noticed() {
        let (here, there) = UnixStream::pair().unwrap();
        send(&here, Kind::Ready, &[]).unwrap();
        drop(here);
        assert_eq!(receive(&there).unwrap(), Some((Kind::Ready, Vec::new())));
        assert!(receive_descriptors(&there, 1).is_err());
    }
}
