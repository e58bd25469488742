//! Sending: everything queued for a peer leaves in one gathered write.

use std::time::Duration;

use vocab::Instant;

use crate::ring::Segment;
use crate::{Buf, Completed, Errno, Fd, Payload, Ring, Token, Vectored};

/// A queue of bytes and buffers on their way into a socket.
///
/// Two lists take turns: one is filled while the other is being sent. Headers are copied into
/// the list's own byte area, payloads stay where they are. [`TxQueue::flush`], called once per
/// loop turn, sends all of a list in one `sendmsg`, as far as the socket takes it.
pub struct TxQueue {
    fd: Fd,
    filling: Box<Vectored>,
    /// The list being sent; `None` while the ring has it.
    sending: Option<Box<Vectored>>,
    /// Bytes accepted by `push` that the socket has not taken yet.
    queued: usize,
    /// When the socket last took something, or the queue was last empty.
    progress_at: Instant,
    failed: Option<Errno>,
    /// Bytes queued behind what is reserved and not filled in yet.
    behind: Option<usize>,
}

/// Bytes that were queued before what they say was known, see [`TxQueue::reserve`].
#[derive(Debug)]
#[must_use = "what was reserved is filled in before it can be sent"]
pub struct Reserved {
    at: usize,
    len: usize,
}

impl TxQueue {
    pub(super) fn new(fd: Fd) -> TxQueue {
        TxQueue {
            fd,
            filling: Box::default(),
            sending: Some(Box::default()),
            queued: 0,
            progress_at: Instant::default(),
            failed: None,
            behind: None,
        }
    }

    /// Queues a copy of `bytes`, meant for packet headers. After a failure nothing is queued any
    /// more, here or below.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.push_with(|out| out.extend_from_slice(bytes));
    }

    /// Queues what `encode` appends. It must not change what is there already.
    ///
    /// # Panics
    /// If `encode` shortened the vector.
    pub fn push_with(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        if self.failed.is_some() {
            return;
        }
        let list = &mut *self.filling;
        let start = list.bytes.len();
        encode(&mut list.bytes);
        let added = list.bytes.len().checked_sub(start).expect("an encoder only appends");
        match list.segments.back_mut() {
            Some(Segment::Bytes { len, .. }) => *len += added as u32,
            _ if added == 0 => {}
            _ => {
                let at = u32::try_from(start).expect("headers of one turn are less than 4 GiB");
                list.segments.push_back(Segment::Bytes { at, len: added as u32 });
            }
        }
        self.queued(added);
    }

    /// Queues `len` bytes that say something of what is queued behind them, and so are filled in later: with
    /// [`TxQueue::fill`], before the next flush. `None` after a failure.
    ///
    /// # Panics
    /// If others are reserved already.
    pub fn reserve(&mut self, len: usize) -> Option<Reserved> {
        assert!(self.behind.is_none(), "one thing is reserved at a time");
        if self.failed.is_some() {
            return None;
        }
        let at = self.filling.bytes.len();
        self.push_with(|out| out.resize(at + len, 0));
        self.behind = Some(0);
        Some(Reserved { at, len })
    }

    /// Fills in what was reserved.
    ///
    /// # Panics
    /// If it is of another length, or was reserved in another queue.
    pub fn fill(&mut self, reserved: Reserved, bytes: &[u8]) {
        assert!(self.behind.take().is_some(), "it was reserved here");
        if self.failed.is_none() {
            self.filling.bytes[reserved.at..][..reserved.len].copy_from_slice(bytes);
        }
    }

    /// Bytes queued since [`TxQueue::reserve`]; 0 after a failure.
    pub fn behind_reserved(&self) -> usize {
        self.behind.filter(|_| self.failed.is_none()).unwrap_or(0)
    }

    fn queued(&mut self, len: usize) {
        self.queued += len;
        self.behind = self.behind.map(|behind| behind + len);
    }

    /// Queues a buffer without copying it. It is held until the socket has taken it.
    pub fn push_buf(&mut self, buf: Buf) {
        if !buf.is_empty() && self.failed.is_none() {
            self.queued(buf.len());
            self.filling.push(buf);
        }
    }

    /// Bytes queued that the socket has not taken yet: stop producing above some figure.
    pub fn queued_bytes(&self) -> usize {
        self.queued
    }

    /// True while the ring works for this queue.
    pub fn is_busy(&self) -> bool {
        self.sending.is_none()
    }

    /// Sends what is queued unless that is being done already. After a failure it does nothing.
    ///
    /// # Panics
    /// If something reserved was not filled in.
    pub fn flush(&mut self, ring: &mut Ring, token: Token) {
        assert!(self.behind.is_none(), "what is sent is filled in");
        if self.queued == 0 || self.failed.is_some() {
            return;
        }
        let Some(mut list) = self.sending.take() else { return };
        if list.is_empty() {
            list.clear();
            std::mem::swap(&mut list, &mut self.filling);
            self.progress_at = self.progress_at.max(ring.now());
        }
        ring.sendmsg(token, &self.fd, list);
    }

    /// To be called with the completion that carries the token of [`TxQueue::flush`]; follow it
    /// with another flush.
    ///
    /// # Errors
    /// Why sending failed. The queue is dead from then on.
    pub fn on_completed(&mut self, done: Completed, now: Instant) -> Result<(), Errno> {
        let Payload::Vectored(mut list) = done.payload else {
            panic!("the completion of a flush carries its list");
        };
        match done.result {
            Ok(sent) => {
                list.advance(sent as usize);
                self.queued -= sent as usize;
                if sent > 0 {
                    self.progress_at = now;
                }
            }
            Err(Errno::EINTR | Errno::EAGAIN | Errno::ENOBUFS) => {}
            Err(errno) => {
                list.clear();
                self.filling.clear();
                self.queued = 0;
                self.failed = Some(errno);
            }
        }
        self.sending = Some(list);
        self.failed.map_or(Ok(()), Err)
    }

    /// For how long the socket has not taken any of the data offered to it; zero if it has
    /// been offered none.
    pub fn stalled_for(&self, now: Instant) -> Duration {
        match &self.sending {
            Some(list) if list.is_empty() => Duration::ZERO,
            _ => now.since(self.progress_at),
        }
    }
}
