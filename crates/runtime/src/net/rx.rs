//! Receiving: many small packets per system call, payloads in aligned buffers.
//!
//! What has arrived is a list of *areas* in stream order, read front to back:
//!
//! ```text
//! staged:     [ stage: some KiB ................................. ]
//! payload:    [ rest of a payload, in its Buf | stage ............ ]
//! predicted:  [ hdr | payload Buf | hdr | payload Buf | hdr | ...  ]
//! ```
//!
//! *Staged*: one receive fetches many packets; a payload's bytes that are staged already are
//! copied into its buffer, and the rest is received straight into it. The stage grows with what
//! arrives at a time, and shrinks again: an idle stream holds little memory.
//!
//! *Predicted*: when the stream has lately shown pairs of equal size (a stream of 4 KiB writes, or
//! of 128 KiB), the next receive gets an area for each header and a whole buffer for each payload,
//! and no payload is copied. Large ones gain something else: a receive that takes all the socket
//! holds lets the sender go on while this end works. A client on a unix socket sleeps until three
//! quarters of the socket's 208 KiB are free, so a receive of one 128 KiB payload would leave it
//! asleep. A wrong guess costs nothing but a copy: readers take bytes across area
//! borders, and a payload is handed over uncopied only if it is exactly one area.

use std::collections::VecDeque;

use crate::ring::Segment;
use crate::{AllocError, Buf, BufPool, Completed, Errno, Fd, OpId, Payload, Ring, Token, Vectored};

/// Most bytes [`RxStream::peek`] can be asked for.
pub const PEEK_MAX: usize = 32 << 10;

/// Least and most bytes fetched ahead in staged mode.
const STAGE_MIN: usize = 2 << 10;
const STAGE_MAX: usize = 64 << 10;
/// By how much the stage grows when a receive has filled it, and how many in a row have to need
/// less than an eighth until it is halved.
const STAGE_GROWTH: usize = 4;
const SMALL_RECEIVES: u8 = 16;
/// Most bytes fetched ahead while payloads are large, so that little of each is copied.
const STAGE_BEFORE_LARGE: usize = 4 << 10;
/// From here on a payload is large: its beginning may be copied, most of it will not be.
const LARGE: usize = 32 << 10;

/// Payload sizes for which prediction is worth while.
const PREDICT_MIN: usize = 2 << 10;
const PREDICT_MAX: usize = 128 << 10;
const PREDICT_HEADER_MAX: usize = 128;
/// Most pairs per receive, and most bytes of payload.
const PAIRS_MAX: usize = 64;
const PREDICTED_BYTES_MAX: usize = 256 << 10;
const _: () = assert!(2 * PREDICT_MAX <= PREDICTED_BYTES_MAX, "two pairs fit");
/// Confidence from which to predict, its maximum, and what a pair of another size costs. A
/// stream with one odd packet (a barrier) per ten writes stays predicted.
const CONFIDENT: u8 = 4;
const CONFIDENCE_MAX: u8 = 8;
const CONFIDENCE_LOSS: u8 = 3;

/// The receiving side of a stream socket.
///
/// The reader asks for what it needs ([`peek`](RxStream::peek),
/// [`take_payload`](RxStream::take_payload)) until the answer is "not there yet", then
/// [`arm`](RxStream::arm)s one receive and comes back with its completion. While a receive is in
/// flight nothing can be read. Not arming is back-pressure: the peer's data stays in the kernel.
pub struct RxStream {
    fd: Fd,
    pool: BufPool,
    /// The areas; `None` while the ring has them. `done` counts the bytes received into them,
    /// from the start of the first.
    list: Option<Box<Vectored>>,
    /// The receive in flight, or the last one.
    receive: Option<OpId>,
    /// Bytes of the first area that were consumed.
    read: usize,
    /// The first area is the buffer of a payload being taken.
    taking: bool,
    /// A header that lies across areas, or the unread rest while areas are rebuilt.
    scratch: Vec<u8>,
    history: History,
    stage: Stage,
    copied: u64,
}

/// How much is fetched ahead in staged mode.
struct Stage {
    /// Bytes of the next receive.
    size: usize,
    /// Bytes of the receive in flight, if that is staged.
    asked: Option<usize>,
    /// So many receives in a row brought far less.
    small: u8,
    /// It has become smaller, and the memory has not yet.
    shrunk: bool,
}

impl Stage {
    /// A receive brought that much.
    fn received(&mut self, len: usize) {
        let Some(asked) = self.asked.take() else { return };
        if len >= asked {
            self.size = (self.size * STAGE_GROWTH).min(STAGE_MAX);
        }
        self.small = if len < self.size / 8 { self.small + 1 } else { 0 };
        if self.small == SMALL_RECEIVES {
            self.small = 0;
            self.shrunk |= self.size > STAGE_MIN;
            self.size = (self.size / 2).max(STAGE_MIN);
        }
    }
}

/// What the stream looked like lately.
#[derive(Default)]
struct History {
    /// Never predict.
    off: bool,
    /// Bytes consumed since the last payload.
    header: usize,
    /// The sizes of header and payload that repeat.
    pair: (usize, usize),
    confidence: u8,
    /// Pairs the next receive should have room for.
    pairs: usize,
    last_payload: usize,
}

impl History {
    fn payload_taken(&mut self, len: usize) {
        let pair = (std::mem::take(&mut self.header), len);
        self.last_payload = len;
        if pair == self.pair {
            self.confidence = (self.confidence + 1).min(CONFIDENCE_MAX);
        } else {
            self.confidence = self.confidence.saturating_sub(CONFIDENCE_LOSS);
            if self.confidence == 0 {
                self.pair = pair;
            }
        }
    }

    /// The sizes to predict, if any.
    fn prediction(&self) -> Option<(usize, usize)> {
        let (header, payload) = self.pair;
        let fits = (1..=PREDICT_HEADER_MAX).contains(&header)
            && (PREDICT_MIN..=PREDICT_MAX).contains(&payload)
            && payload.is_multiple_of(512);
        (fits && !self.off && self.confidence >= CONFIDENT).then_some((header, payload))
    }
}

impl RxStream {
    pub(super) fn new(fd: Fd, pool: BufPool) -> RxStream {
        RxStream {
            fd,
            pool,
            list: Some(Box::default()),
            receive: None,
            read: 0,
            taking: false,
            scratch: Vec::new(),
            history: History::default(),
            stage: Stage { size: STAGE_MIN, asked: None, small: 0, shrunk: false },
            copied: 0,
        }
    }

    /// Predicting is on unless switched off here, e.g. to measure what it is worth.
    pub fn set_prediction(&mut self, on: bool) {
        self.history.off = !on;
    }

    /// Payload bytes that were copied rather than received in place, since the beginning.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// Bytes of memory that it holds, payloads apart, unless a receive is in flight.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.list.as_ref().map_or(0, |list| list.bytes.capacity()) + self.scratch.capacity()
    }

    /// Bytes that can be read now.
    pub fn available(&self) -> usize {
        self.list.as_ref().map_or(0, |list| list.done - self.read)
    }

    /// True while a receive is in flight.
    pub fn is_armed(&self) -> bool {
        self.list.is_none()
    }

    /// The next `len` bytes, or `None` until they have arrived.
    ///
    /// # Panics
    /// If `len` exceeds [`PEEK_MAX`]: lengths from the peer are checked before they come here.
    pub fn peek(&mut self, len: usize) -> Option<&[u8]> {
        assert!(len <= PEEK_MAX, "a header of {len} bytes");
        if self.available() < len {
            return None;
        }
        let list = self.list.as_ref()?;
        let contiguous = match list.segments.front() {
            Some(first) => first.len().min(list.done) - self.read >= len,
            None => true,
        };
        if contiguous {
            return Some(
                list.segments.front().map_or(&[], |s| &area(s, &list.bytes)[self.read..][..len]),
            );
        }
        self.scratch.clear();
        gather(list, self.read, len, |bytes| self.scratch.extend_from_slice(bytes));
        Some(&self.scratch)
    }

    /// Moves on by `len` bytes that were there to be read.
    ///
    /// # Panics
    /// If fewer are available.
    pub fn consume(&mut self, len: usize) {
        assert!(len <= self.available(), "only what is available can be consumed");
        self.history.header += len;
        self.skip(len);
    }

    fn skip(&mut self, mut len: usize) {
        let Some(list) = self.list.as_mut() else { return };
        while let Some(first) = list.segments.front() {
            let size = first.len();
            let step = len.min(size - self.read);
            self.read += step;
            len -= step;
            if self.read < size {
                break;
            }
            list.done -= size;
            self.read = 0;
            list.segments.pop_front();
        }
        debug_assert_eq!(len, 0, "available bytes lie in areas");
    }

    /// The next `len` bytes as an aligned buffer of exactly that length, or `None` until they
    /// have arrived: then arm, and ask again for the same length.
    ///
    /// # Errors
    /// [`AllocError`]: nothing is lost, ask again once buffers were returned.
    ///
    /// # Panics
    /// If it was asked for another length before, without having got that.
    pub fn take_payload(&mut self, len: usize) -> Result<Option<Buf>, AllocError> {
        let available = self.available();
        let Some(list) = self.list.as_mut() else { return Ok(None) };
        let whole_area = self.read == 0
            && matches!(list.segments.front(), Some(Segment::Buf(buf)) if buf.len() == len);
        assert!(whole_area || !self.taking, "a payload is taken with one length");
        if whole_area && available < len {
            self.taking = true;
            return Ok(None);
        }
        if whole_area {
            let Some(Segment::Buf(buf)) = list.segments.pop_front() else {
                unreachable!("the first area was just seen to be a buffer");
            };
            list.done -= len;
            self.taking = false;
            self.history.payload_taken(len);
            return Ok(Some(buf));
        }
        let mut buf = self.pool.alloc(len)?;
        let mut rest = buf.as_mut_slice().expect("a new buffer is unique");
        gather(list, self.read, len.min(available), |bytes| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            head.copy_from_slice(bytes);
            rest = tail;
        });
        self.copied += len.min(available) as u64;
        if available >= len {
            self.skip(len);
            self.history.payload_taken(len);
            return Ok(Some(buf));
        }
        list.segments.clear();
        list.segments.push_back(Segment::Buf(buf));
        list.done = available;
        self.read = 0;
        self.taking = true;
        Ok(None)
    }

    /// Receives more, unless that is being done already. To be called when the last answer was
    /// `None`, and only then: what is unread can not be read until something has arrived, which
    /// may never happen if the peer waits for an answer to it. False, and nothing is received,
    /// if there is no room: too much is unread.
    pub fn arm(&mut self, ring: &mut Ring, token: Token) -> bool {
        let unread = self.available();
        let Some(list) = &self.list else { return true };
        let limit = match list.segments.front() {
            // All that was received so far lies in the payload's buffer. Once it is full, what
            // follows would have to be moved: the payload must be taken first.
            Some(payload) if self.taking => payload.len() - 1,
            _ => PEEK_MAX,
        };
        if unread > limit {
            return false;
        }
        let mut list = self.list.take().expect("checked above");
        self.make_room(&mut list, unread);
        self.receive = Some(ring.recvmsg(token, &self.fd, list));
        true
    }

    /// Ends the receive in flight, if there is one: its completion comes soon, with what has arrived
    /// by then or without anything.
    pub fn cancel(&self, ring: &mut Ring) {
        if let (true, Some(receive)) = (self.is_armed(), self.receive) {
            ring.cancel(receive);
        }
    }

    /// What has arrived and was not consumed, for [`RxStream::preload`] of another stream on the same
    /// socket.
    ///
    /// # Panics
    /// If a receive is in flight: it may bring more.
    pub fn unread(&self) -> Vec<u8> {
        let list = self.list.as_ref().expect("nothing is being received");
        let mut bytes = Vec::with_capacity(self.available());
        gather(list, self.read, self.available(), |part| bytes.extend_from_slice(part));
        bytes
    }

    /// Begins with bytes that somebody else has received.
    ///
    /// # Panics
    /// If anything was received here before.
    pub fn preload(&mut self, bytes: &[u8]) {
        let list = self.list.as_mut().expect("nothing is being received");
        assert!(list.segments.is_empty() && list.done == 0, "a new stream is preloaded");
        if bytes.is_empty() {
            return;
        }
        let len = u32::try_from(bytes.len()).expect("what is unread is some MiB at most");
        need(list, bytes.len());
        list.bytes[..bytes.len()].copy_from_slice(bytes);
        list.segments.push_back(Segment::Bytes { at: 0, len });
        list.done = bytes.len();
    }

    /// Lays out the areas of the next receive behind what is unread.
    fn make_room(&mut self, list: &mut Vectored, unread: usize) {
        let prediction = self.history.prediction();
        let shrunk = std::mem::take(&mut self.stage.shrunk);
        self.scratch.clear();
        if !self.taking {
            gather(list, self.read, unread, |bytes| self.scratch.extend_from_slice(bytes));
        }
        if shrunk {
            list.bytes = Vec::new();
        }
        let mut carried = 0;
        if self.taking {
            list.segments.truncate(1);
        } else {
            need(list, unread);
            list.bytes[..unread].copy_from_slice(&self.scratch);
            list.segments.clear();
            list.done = unread;
            self.read = 0;
            carried = unread;
        }
        if shrunk {
            self.scratch = Vec::new();
        }
        match prediction {
            // A header that has begun to arrive lies where its slot will be.
            Some((header, payload)) if carried < header => {
                let limit = (PREDICTED_BYTES_MAX / payload).min(PAIRS_MAX);
                // Slots wait for data that may be long in coming. They leave half of the
                // memory to buffers that hold some, or idle streams could starve busy ones.
                let spare = (self.pool.limit() / 2).saturating_sub(self.pool.in_use());
                let pairs = self.history.pairs.clamp(2, limit).min(spare / payload);
                need(list, pairs * header);
                for slot in 0..pairs {
                    let Ok(buf) = self.pool.alloc(payload) else { break };
                    let at = (slot * header) as u32;
                    list.segments.push_back(Segment::Bytes { at, len: header as u32 });
                    list.segments.push_back(Segment::Buf(buf));
                }
            }
            _ => {}
        }
        let predicted = list.segments.len() > usize::from(self.taking);
        if !predicted {
            let large = self.history.last_payload >= LARGE;
            let window = if large { STAGE_BEFORE_LARGE } else { self.stage.size };
            need(list, carried + window);
            let rest: usize = list.segments.iter().map(Segment::len).sum();
            self.stage.asked = Some(rest.saturating_sub(unread) + window);
            list.segments.push_back(Segment::Bytes { at: 0, len: (carried + window) as u32 });
        }
    }

    /// To be called with the completion that carries the token of [`RxStream::arm`].
    ///
    /// # Errors
    /// Why receiving failed.
    pub fn on_completed(&mut self, done: Completed) -> Result<Received, Errno> {
        let Payload::Vectored(mut list) = done.payload else {
            panic!("the completion of a receive carries its areas");
        };
        if let Ok(received) = done.result {
            list.done += received as usize;
            self.stage.received(received as usize);
            // Room for twice of what came: a batch that fits shows that there was no more.
            let (header, payload) = self.history.pair;
            self.history.pairs = 2 * received as usize / (header + payload).max(1);
        }
        self.list = Some(list);
        match done.result {
            Ok(0) => Ok(Received::End),
            Ok(received) => Ok(Received::Data(received as usize)),
            Err(Errno::EINTR | Errno::EAGAIN | Errno::ECANCELED) => Ok(Received::Data(0)),
            Err(errno) => Err(errno),
        }
    }
}

/// What a receive brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// So many bytes, possibly none.
    Data(usize),
    /// The peer has finished sending.
    End,
}

/// Makes sure that there are so many bytes of memory for areas. It is not zeroed again.
fn need(list: &mut Vectored, len: usize) {
    if list.bytes.len() < len {
        list.bytes.reserve_exact(len - list.bytes.len());
        list.bytes.resize(len, 0);
    }
}

/// The memory of an area.
fn area<'a>(segment: &'a Segment, bytes: &'a [u8]) -> &'a [u8] {
    match segment {
        Segment::Bytes { at, len } => &bytes[*at as usize..][..*len as usize],
        Segment::Buf(buf) => buf.as_slice(),
    }
}

/// Calls `f` with the pieces of the `len` bytes from `skip` on, in order.
fn gather(list: &Vectored, mut skip: usize, mut len: usize, mut f: impl FnMut(&[u8])) {
    let areas: &VecDeque<Segment> = &list.segments;
    for segment in areas {
        if len == 0 {
            return;
        }
        let bytes = area(segment, &list.bytes);
        let n = len.min(bytes.len() - skip);
        f(&bytes[skip..skip + n]);
        len -= n;
        skip = 0;
    }
    debug_assert_eq!(len, 0, "available bytes lie in areas");
}
