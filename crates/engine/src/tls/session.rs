//! A socket's traffic after its handshake: packets to records and back.
//!
//! What is queued for the peer waits here as it is, and is sealed when the socket can take it, as many
//! packets to a record as fit. So nothing is encrypted per packet, and nothing is allocated once the
//! memory for a batch is there.

use std::collections::VecDeque;

use runtime::{AllocError, Buf, BufPool, RxStream, TxQueue};
use serde::{Deserialize, Serialize};

use super::record::{DATA_MAX, FrozenKey, RecordError, next_record};
use super::traffic::{FrozenTraffic, Opened, Traffic};

/// Bytes that are sealed ahead of the socket.
const SEALED_MAX: usize = 256 << 10;
/// Bytes of packets that were sealed, from which on the rest is moved to the front.
const COMPACT: usize = 16 << 10;

/// A socket's traffic at rest, for another process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FrozenSession {
    sending: FrozenKey,
    receiving: FrozenKey,
    records_per_key: u64,
    /// Opened and not read: `before`, and what the session had.
    plain: Vec<u8>,
    /// Engines without this field are not handed over while it is so.
    #[serde(default)]
    key_is_due: bool,
}

#[cfg(test)]
impl FrozenSession {
    pub(super) fn new(sending: FrozenKey, receiving: FrozenKey) -> FrozenSession {
        let (records_per_key, plain) = (super::traffic::RECORDS_PER_KEY, Vec::new());
        FrozenSession { sending, receiving, records_per_key, plain, key_is_due: false }
    }
}

/// One socket's traffic.
pub(crate) struct Session {
    traffic: Traffic,
    outgoing: Outgoing,
    /// The end is to be told once all of that is sealed.
    ends: bool,
    incoming: Incoming,
}

impl Session {
    pub(crate) fn new(traffic: Traffic, pool: BufPool) -> Session {
        let (outgoing, incoming) = (Outgoing::default(), Incoming::new(pool));
        Session { traffic, outgoing, ends: false, incoming }
    }

    /// For [`Session::thaw`] in another process; nothing waits to be sent. `before` was read already, and
    /// is to be read again.
    pub(crate) fn freeze(&self, before: &[u8]) -> FrozenSession {
        let taken = self.incoming.payload.as_ref().map_or(&[][..], |(buf, filled)| &buf[..*filled]);
        let FrozenTraffic { sending, receiving, records_per_key, key_is_due } =
            self.traffic.freeze();
        let plain = [before, taken, self.incoming.unread()].concat();
        FrozenSession { sending, receiving, records_per_key, plain, key_is_due }
    }

    /// # Errors
    /// [`RecordError::Key`].
    pub(crate) fn thaw(frozen: FrozenSession, pool: BufPool) -> Result<Session, RecordError> {
        let FrozenSession { sending, receiving, records_per_key, plain, key_is_due } = frozen;
        let traffic =
            Traffic::thaw(FrozenTraffic { sending, receiving, records_per_key, key_is_due })?;
        let mut session = Session::new(traffic, pool);
        session.incoming.end = plain.len();
        session.incoming.bytes = plain;
        Ok(session)
    }

    #[cfg(test)]
    pub(crate) fn set_records_per_key(&mut self, records: u64) {
        self.traffic.set_records_per_key(records);
    }

    // ---- sending -------------------------------------------------------------------------

    /// Bytes that wait to be sealed.
    pub(crate) fn waiting(&self) -> usize {
        self.outgoing.len
    }

    /// Queues a packet: what `encode` appends, and its data.
    pub(crate) fn queue(&mut self, encode: impl FnOnce(&mut Vec<u8>), payload: Option<Buf>) {
        self.outgoing.queue(encode, payload);
    }

    /// Seals what waits, as far as the socket may take it soon.
    ///
    /// # Errors
    /// [`RecordError::Key`]: nothing more can be sent.
    pub(crate) fn seal(&mut self, tx: &mut TxQueue) -> Result<(), RecordError> {
        // While the socket is busy, packets gather for fuller records.
        while self.has_something() && !tx.is_busy() && tx.queued_bytes() < SEALED_MAX {
            let (before, is_last) = (tx.queued_bytes(), self.outgoing.len == 0);
            let (traffic, outgoing) = (&mut self.traffic, &mut self.outgoing);
            let mut sealed = Ok(());
            tx.push_with(|out| {
                sealed = match is_last {
                    true => traffic.seal_end(out),
                    false => traffic.seal(out, |out| outgoing.take(DATA_MAX, out)),
                };
            });
            sealed?;
            if tx.queued_bytes() == before {
                // It takes nothing any more.
                return Ok(());
            }
            self.ends &= !is_last;
        }
        Ok(())
    }

    /// The peer is told behind everything queued that nothing follows.
    pub(crate) fn finish(&mut self) {
        self.ends = true;
    }

    fn has_something(&self) -> bool {
        self.outgoing.len > 0 || self.ends
    }

    // ---- receiving -----------------------------------------------------------------------

    /// Opens records until `len` bytes can be read, or there are no more. Tells how many can, up to
    /// that.
    ///
    /// # Errors
    /// Why the stream can not go on.
    pub(crate) fn fetch(&mut self, rx: &mut RxStream, len: usize) -> Result<usize, RecordError> {
        while self.incoming.available() < len && self.open(rx)? {}
        Ok(self.incoming.available().min(len))
    }

    /// The next `len` bytes, if they were fetched.
    pub(crate) fn peek(&self, len: usize) -> Option<&[u8]> {
        self.incoming.unread().get(..len)
    }

    /// Moves on by `len` bytes that were fetched.
    ///
    /// # Panics
    /// If they were not.
    pub(crate) fn consume(&mut self, len: usize) {
        assert!(len <= self.incoming.available(), "only what was fetched can be consumed");
        self.incoming.begin += len;
    }

    /// The next `len` bytes as a buffer, as [`RxStream::take_payload`].
    ///
    /// # Errors
    /// Why the stream can not go on; or, within, that there is no memory for now.
    pub(crate) fn take_payload(
        &mut self,
        rx: &mut RxStream,
        len: usize,
    ) -> Result<Result<Option<Buf>, AllocError>, RecordError> {
        if let Err(error) = self.incoming.begin_payload(len) {
            return Ok(Err(error));
        }
        while !self.incoming.fill_payload() {
            if !self.open(rx)? {
                return Ok(Ok(None));
            }
        }
        Ok(Ok(self.incoming.payload.take().map(|(buf, _)| buf)))
    }

    /// Opens the next record. False if it has not arrived completely.
    fn open(&mut self, rx: &mut RxStream) -> Result<bool, RecordError> {
        let Some(record) = next_record(rx)? else { return Ok(false) };
        let len = record.len();
        match self.traffic.open(record, self.incoming.space(len))? {
            Opened::Data(opened) => self.incoming.end += opened,
            // The end of the socket follows.
            Opened::Nothing | Opened::End => {}
        }
        rx.consume(len);
        Ok(true)
    }
}

/// What waits to be sealed.
#[derive(Default)]
struct Outgoing {
    /// Packets without their data, one after the other.
    bytes: Vec<u8>,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that were taken.
    taken: usize,
    /// Where in `bytes` the first piece of them begins.
    at: usize,
    /// Bytes of all pieces that are left.
    len: usize,
}

enum Piece {
    /// So many of `bytes`.
    Bytes(usize),
    Buf(Buf),
}

impl Outgoing {
    fn queue(&mut self, encode: impl FnOnce(&mut Vec<u8>), payload: Option<Buf>) {
        // What was taken makes room: at once if that is all, else now and then.
        if self.len == 0 {
            self.bytes.clear();
            self.at = 0;
        } else if self.at > COMPACT && self.at > self.bytes.len() / 2 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        let start = self.bytes.len();
        encode(&mut self.bytes);
        let added = self.bytes.len() - start;
        self.len += added;
        match self.pieces.back_mut() {
            Some(Piece::Bytes(len)) => *len += added,
            _ => self.pieces.push_back(Piece::Bytes(added)),
        }
        if let Some(buf) = payload {
            self.len += buf.len();
            self.pieces.push_back(Piece::Buf(buf));
        }
    }

    /// Moves up to `most` bytes to `out`.
    fn take(&mut self, mut most: usize, out: &mut Vec<u8>) {
        while let Some(piece) = self.pieces.front().filter(|_| most > 0) {
            let bytes = match piece {
                Piece::Bytes(len) => &self.bytes[self.at..][..*len],
                Piece::Buf(buf) => buf.as_slice(),
            };
            let left = &bytes[self.taken..];
            let n = left.len().min(most);
            out.extend_from_slice(&left[..n]);
            (most, self.len, self.taken) = (most - n, self.len - n, self.taken + n);
            if self.taken < bytes.len() {
                break;
            }
            if let Piece::Bytes(len) = piece {
                self.at += len;
            }
            self.taken = 0;
            self.pieces.pop_front();
        }
    }
}

/// What was opened and not read yet.
struct Incoming {
    pool: BufPool,
    /// As long as it ever had to be, so that it is not cleared for each record.
    bytes: Vec<u8>,
    /// The unread part.
    begin: usize,
    end: usize,
    /// A payload that is being taken, and how much of it is there.
    payload: Option<(Buf, usize)>,
}

impl Incoming {
    fn new(pool: BufPool) -> Incoming {
        Incoming { pool, bytes: Vec::new(), begin: 0, end: 0, payload: None }
    }

    fn available(&self) -> usize {
        self.end - self.begin
    }

    fn unread(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    /// Room behind what is unread.
    fn space(&mut self, len: usize) -> &mut [u8] {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        } else if self.begin > 0 {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        if self.bytes.len() < self.end + len {
            self.bytes.resize(self.end + len, 0);
        }
        &mut self.bytes[self.end..]
    }

    fn begin_payload(&mut self, len: usize) -> Result<(), AllocError> {
        match &self.payload {
            Some((buf, _)) => assert_eq!(buf.len(), len, "a payload is taken with one length"),
            None => self.payload = Some((self.pool.alloc(len)?, 0)),
        }
        Ok(())
    }

    /// Moves what is unread to the payload. True if it is complete.
    fn fill_payload(&mut self) -> bool {
        let Some((buf, filled)) = &mut self.payload else { return false };
        let unread = &self.bytes[self.begin..self.end];
        let n = unread.len().min(buf.len() - *filled);
        let room = buf.as_mut_slice().expect("a new buffer is unique");
        room[*filled..][..n].copy_from_slice(&unread[..n]);
        *filled += n;
        self.begin += n;
        *filled == room.len()
    }
}
