//! A stream that is spread over several sockets, in chunks (`load-balance-paths`).
//!
//! *Sending.* Packets are gathered to chunks of some KiB; each goes to the socket with the least on its way, as a kernel
//! node does it, and among equals in turn. Rates that TCP has seen are no better guide: those of a path that is little
//! used are low, and so it stays. A packet is never cut: a kernel node reads what is not data as if it could not go on in
//! another chunk.
//!
//! *Receiving.* Of each socket the header of the next chunk is read. The chunk whose turn it is is read; what
//! comes later stays in the socket, and the socket is read no further. So there is no memory to be limited: what arrives
//! out of order fills the sockets' buffers, and then the peer waits.
//!
//! ```text
//! path 1: │ 5: 800 of 4096 left │ 7: ...          5 is read
//! path 2: │ 6 │                                   6 is next, by the header read ahead
//! ```
//!
//! A chunk may be lost with its path. The stream does not go on without it: a socket's end is the connection's,
//! and so is a chunk that does not come, see [`Spread::stuck_since`].

use codec::wire::{ChunkError, ChunkHeader};
use runtime::{AllocError, Buf, BufPool, Reserved};
use serde::{Deserialize, Serialize};
use vocab::Instant;

use super::stream::{Broken, Socket};

/// A chunk of so many bytes takes no more packets.
const CHUNK: usize = 64 << 10;

/// How a stream is spread.
pub(super) struct Spread {
    /// Sequence number of the next chunk to be sent.
    next: u32,
    /// Packets are gathered to it.
    open: Option<Open>,
    /// Among equals this socket comes first.
    turn: usize,
    pool: BufPool,
    /// Sequence number of the next chunk to be read.
    expected: u32,
    /// Of each socket, the chunk that comes next there, or what is left of it.
    heads: Vec<Option<Head>>,
    /// The socket of the chunk being read.
    current: Option<usize>,
    /// Bytes of the stream that do not lie in one piece in a socket, and how many of them were read.
    staged: Vec<u8>,
    read: usize,
    /// Data that lie in several chunks, and how much of them is there.
    payload: Option<(Buf, usize)>,
    /// Something was read, or came by the socket being read.
    moved: bool,
    stuck: Option<Instant>,
}

/// A chunk that is being made.
struct Open {
    socket: usize,
    /// Its header; `None` if the socket takes nothing any more.
    header: Option<Reserved>,
}

/// A chunk that has begun to arrive.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Head {
    sequence: u32,
    left: u32,
}

/// At rest, for another process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FrozenSpread {
    next: u32,
    expected: u32,
    heads: Vec<Option<Head>>,
    current: Option<usize>,
    /// Read from the sockets and not handed on.
    staged: Vec<u8>,
}

impl Spread {
    /// Of a stream with one socket.
    pub(super) fn new(pool: BufPool) -> Spread {
        Spread {
            next: 1,
            open: None,
            turn: 0,
            pool,
            expected: 1,
            heads: vec![None],
            current: None,
            staged: Vec::new(),
            read: 0,
            payload: None,
            moved: false,
            stuck: None,
        }
    }

    /// A socket came.
    pub(super) fn insert(&mut self, at: usize) {
        self.heads.insert(at, None);
        let shifted = |index: usize| if index < at { index } else { index + 1 };
        self.current = self.current.map(shifted);
        if let Some(open) = &mut self.open {
            open.socket = shifted(open.socket);
        }
    }

    // ---- sending -------------------------------------------------------------------------

    /// The socket that takes the next packet, behind the header of its chunk.
    pub(super) fn choose<'a>(
        &mut self,
        sockets: &'a mut [Socket],
        everywhere: bool,
    ) -> &'a mut Socket {
        let full = |open: &Open| sockets[open.socket].conn.tx.behind_reserved() >= CHUNK;
        if self.open.as_ref().is_some_and(full) {
            self.close(sockets);
        }
        let open = self.open.get_or_insert_with(|| {
            let many = everywhere && sockets.len() > 1;
            let at = if many { least(sockets, self.turn) } else { 0 };
            self.turn = (at + 1) % sockets.len();
            let header = sockets[at].conn.tx.reserve(ChunkHeader::LEN);
            Open { socket: at, header }
        });
        &mut sockets[open.socket]
    }

    /// Ends the chunk that is being made: it can be sent.
    pub(super) fn close(&mut self, sockets: &mut [Socket]) {
        let Some(Open { socket, header }) = self.open.take() else { return };
        let sequence = self.next;
        // Also if it was lost with its socket: the peer must see that something is missing.
        self.next = self.next.wrapping_add(1);
        let Some(reserved) = header else { return };
        let tx = &mut sockets[socket].conn.tx;
        let bytes = u32::try_from(tx.behind_reserved()).expect("a chunk is some packets");
        debug_assert!(bytes <= ChunkHeader::BYTES_MAX, "the peer takes no longer one");
        tx.fill(reserved, &ChunkHeader { sequence, bytes }.to_bytes());
    }

    // ---- receiving -----------------------------------------------------------------------

    /// Reads ahead until `len` bytes are in one piece, or there are no more. Tells how many are, up to that.
    ///
    /// # Errors
    /// The peer's chunks are none.
    pub(super) fn fetch(&mut self, sockets: &mut [Socket], len: usize) -> Result<usize, Broken> {
        if self.read > 0 {
            self.staged.drain(..self.read);
            self.read = 0;
        }
        while self.staged.len() < len
            && let Some((at, there)) = self.piece(sockets)?
        {
            let n = there.min(len - self.staged.len());
            let bytes = sockets[at].conn.rx.peek(n).expect("that much is there");
            self.staged.extend_from_slice(bytes);
            self.take(sockets, at, n);
        }
        Ok(self.staged.len().min(len))
    }

    /// The next `len` bytes, if they were fetched.
    pub(super) fn peek(&self, len: usize) -> Option<&[u8]> {
        self.staged[self.read..].get(..len)
    }

    /// Moves on by bytes that were fetched.
    pub(super) fn consume(&mut self, len: usize) {
        assert!(self.read + len <= self.staged.len(), "only what was fetched can be consumed");
        self.read += len;
        if self.read == self.staged.len() {
            self.staged.clear();
            self.read = 0;
        }
    }

    /// The next `len` bytes as a buffer, once they are there: then ask again for the same length.
    ///
    /// # Errors
    /// The peer's chunks are none; or, within, that there is no memory for now.
    pub(super) fn take_payload(
        &mut self,
        sockets: &mut [Socket],
        len: usize,
    ) -> Result<Result<Option<Buf>, AllocError>, Broken> {
        if self.payload.is_none() && self.staged.is_empty() {
            let Some(at) = self.advance(sockets)? else { return Ok(Ok(None)) };
            // In one chunk, as nodes send it: received where it is to lie.
            if self.left(at) >= len {
                let taken = sockets[at].conn.rx.take_payload(len);
                if let Ok(Some(_)) = taken {
                    self.moved = true;
                    self.shorten(at, len);
                }
                return Ok(taken);
            }
        }
        let (mut buf, mut filled) = match self.payload.take() {
            Some(payload) => payload,
            None => match self.pool.alloc(len) {
                Ok(buf) => (buf, 0),
                Err(error) => return Ok(Err(error)),
            },
        };
        let room = buf.as_mut_slice().expect("a new buffer is unique");
        assert_eq!(room.len(), len, "a payload is taken with one length");
        let n = (self.staged.len() - self.read).min(len - filled);
        room[filled..][..n].copy_from_slice(&self.staged[self.read..][..n]);
        self.consume(n);
        filled += n;
        while filled < len
            && let Some((at, there)) = self.piece(sockets)?
        {
            let n = there.min(len - filled);
            let bytes = sockets[at].conn.rx.peek(n).expect("that much is there");
            room[filled..][..n].copy_from_slice(bytes);
            self.take(sockets, at, n);
            filled += n;
        }
        if filled == len {
            return Ok(Ok(Some(buf)));
        }
        self.payload = Some((buf, filled));
        Ok(Ok(None))
    }

    /// The socket of the next bytes, and how many can be read there at once; `None` if there are none.
    fn piece(&mut self, sockets: &mut [Socket]) -> Result<Option<(usize, usize)>, Broken> {
        let Some(at) = self.advance(sockets)? else { return Ok(None) };
        let there = self.left(at).min(sockets[at].conn.rx.available()).min(runtime::net::PEEK_MAX);
        Ok((there > 0).then_some((at, there)))
    }

    fn take(&mut self, sockets: &mut [Socket], at: usize, len: usize) {
        sockets[at].conn.rx.consume(len);
        self.moved = true;
        self.shorten(at, len);
    }

    fn left(&self, at: usize) -> usize {
        self.heads[at].map_or(0, |head| head.left as usize)
    }

    fn shorten(&mut self, at: usize, len: usize) {
        let head = self.heads[at].as_mut().expect("it is being read");
        head.left -= u32::try_from(len).expect("no more than is left");
    }

    /// The socket of the chunk whose turn it is, which has bytes left; `None` if it has not begun to arrive.
    fn advance(&mut self, sockets: &mut [Socket]) -> Result<Option<usize>, Broken> {
        loop {
            if let Some(at) = self.current {
                if self.left(at) > 0 {
                    return Ok(Some(at));
                }
                self.heads[at] = None;
                self.current = None;
                self.expected = self.expected.wrapping_add(1);
            }
            self.look_ahead(sockets)?;
            let due = |head: &Option<Head>| head.is_some_and(|h| h.sequence == self.expected);
            let Some(at) = self.heads.iter().position(due) else { return Ok(None) };
            self.current = Some(at);
            self.moved = true;
        }
    }

    /// Reads the headers that have arrived, of the next chunk in each socket.
    fn look_ahead(&mut self, sockets: &mut [Socket]) -> Result<(), Broken> {
        for (at, socket) in sockets.iter_mut().enumerate() {
            if self.heads[at].is_some() {
                continue;
            }
            let Some(bytes) = socket.conn.rx.peek(ChunkHeader::LEN) else { continue };
            let bytes = bytes.try_into().expect("as long as a header");
            let header = ChunkHeader::from_bytes(bytes);
            header.ahead_of(self.expected)?;
            let ChunkHeader { sequence, bytes: left } = header;
            if self.heads.iter().flatten().any(|head| head.sequence == sequence) {
                return Err(ChunkError::Repeated { sequence, expected: self.expected }.into());
            }
            socket.conn.rx.consume(ChunkHeader::LEN);
            self.heads[at] = Some(Head { sequence, left });
        }
        Ok(())
    }

    /// Something more of a socket can be used.
    pub(super) fn wants(&self, at: usize) -> bool {
        self.heads[at].is_none() || self.current == Some(at)
    }

    pub(super) fn received(&mut self, at: usize) {
        self.moved |= self.current == Some(at);
    }

    /// All that can be read was read.
    ///
    /// # Errors
    /// The peer's chunks are none.
    pub(super) fn waits(&mut self, sockets: &mut [Socket], now: Instant) -> Result<(), Broken> {
        // Or a receive would be begun where there is something to be read.
        self.look_ahead(sockets)?;
        let ahead = (0..self.heads.len()).any(|at| !self.wants(at));
        self.stuck = match self.stuck {
            _ if !ahead => None,
            Some(since) if !self.moved => Some(since),
            _ => Some(now),
        };
        self.moved = false;
        Ok(())
    }

    /// Reading waits for something else than the peer.
    pub(super) fn rests(&mut self) {
        self.stuck = None;
    }

    /// Since when nothing has come of the chunk whose turn it is, while a later one is there. What was sent
    /// on a socket arrives in order, so if the path of that chunk were alive it could be no more than slow.
    pub(super) fn stuck_since(&self) -> Option<Instant> {
        self.stuck
    }

    #[cfg(test)]
    pub(super) fn set_next(&mut self, sequence: u32) {
        self.next = sequence;
    }

    #[cfg(test)]
    pub(super) fn set_expected(&mut self, sequence: u32) {
        self.expected = sequence;
    }

    // ---- to another process --------------------------------------------------------------

    /// Nothing waits to be sent. `begun` was read already, and is to be read again.
    pub(super) fn freeze(&self, begun: &[u8]) -> FrozenSpread {
        assert!(self.open.is_none(), "what was queued was sent");
        let taken = self.payload.as_ref().map_or(&[][..], |(buf, filled)| &buf[..*filled]);
        FrozenSpread {
            next: self.next,
            expected: self.expected,
            heads: self.heads.clone(),
            current: self.current,
            staged: [begun, taken, &self.staged[self.read..]].concat(),
        }
    }

    /// `None` if it is not that of a stream with so many sockets.
    pub(super) fn thaw(frozen: FrozenSpread, sockets: usize, pool: BufPool) -> Option<Spread> {
        let FrozenSpread { next, expected, heads, current, staged } = frozen;
        let fits = heads.len() == sockets
            && current.is_none_or(|at| matches!(heads.get(at), Some(Some(_))));
        fits.then(|| Spread { next, expected, heads, current, staged, ..Spread::new(pool) })
    }
}

/// The socket with the least on its way, from `turn` on the first of equals.
fn least(sockets: &[Socket], turn: usize) -> usize {
    let order = (turn..sockets.len()).chain(0..turn.min(sockets.len()));
    order.min_by_key(|at| on_its_way(&sockets[*at])).unwrap_or(0)
}

/// Bytes that the peer's host has not acknowledged.
pub(super) fn on_its_way(socket: &Socket) -> u64 {
    let tcp = socket.conn.tcp_info().unwrap_or_default();
    socket.queued_bytes() as u64 + tcp.outstanding_bytes() + u64::from(tcp.unsent_bytes)
}
