//! A socket of a connection: bytes in and out, encrypted or in clear. What is read from it is cut into packets by
//! `channel`.

use std::fmt;

use codec::wire::{self, Agreed, ChunkError, Packet, WireError};
use runtime::{AllocError, Buf, Completed, Conn, Errno, Received, Ring, Token};
use vocab::{Instant, NodeId};

use crate::digest::Algorithm;
use crate::shard::token::{LinkToken, SocketOp};
use crate::tls::{FrozenSession, RecordError, Session};

/// Names a link to the ring: resource on this shard and peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LinkId {
    pub(crate) resource: u16,
    pub(crate) node: NodeId,
}

impl LinkId {
    pub(crate) fn token(self, op: SocketOp, serial: u32) -> Token {
        LinkToken { op, resource: self.resource, node: self.node, serial }.token()
    }
}

/// A connected socket.
pub(crate) struct Socket {
    pub(crate) serial: u32,
    pub(crate) conn: Conn,
    /// The peer opened it.
    pub(crate) accepted: bool,
    /// The stream has ended, with an error or without.
    pub(crate) ended: Option<Option<Errno>>,
    link: LinkId,
    /// `None` where traffic goes in clear.
    tls: Option<Box<Session>>,
}

/// Why a stream can not go on.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The peer's bytes are no packets.
    Wire(WireError),
    /// The peer announces a digest that this node does not know.
    UnknownDigest(String),
    /// Data that are not what the peer has computed the digest of.
    Damaged(Packet, Algorithm),
    /// The peer's bytes are no TLS records of this connection.
    Records(RecordError),
    /// What came by a path is no chunk that can belong to the stream.
    Chunk(ChunkError),
}

impl From<ChunkError> for Broken {
    fn from(error: ChunkError) -> Broken {
        Broken::Chunk(error)
    }
}

impl From<RecordError> for Broken {
    fn from(error: RecordError) -> Broken {
        Broken::Records(error)
    }
}

impl From<WireError> for Broken {
    fn from(error: WireError) -> Broken {
        Broken::Wire(error)
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Wire(error) => write!(
                f,
                "what the peer sent is not DRBD's protocol: {error}; check versions of both nodes, \
                 that both or none have `tls`, and that no other program connects to this port"
            ),
            Broken::UnknownDigest(name) => write!(
                f,
                "the peer sends data with the digest `{name}`, which this node does not know; give \
                 data-integrity-alg {} on both nodes",
                Algorithm::NAMES
            ),
            Broken::Damaged(packet, algorithm) => {
                let command = packet.command();
                match packet {
                    Packet::Data(volume, data)
                    | Packet::DataReply(volume, data)
                    | Packet::RsDataReply(volume, data) => {
                        write!(f, "volume {volume}, {}: ", data.range)?;
                    }
                    _ => {}
                }
                write!(
                    f,
                    "the data of this {command} do not have the {} digest that came with them, and \
                     were not used; something between the memories of both nodes damages data: \
                     check network cards, cables and switches",
                    algorithm.name()
                )
            }
            Broken::Records(error) => error.fmt(f),
            Broken::Chunk(error) => write!(
                f,
                "what the peer sent does not fit the load-balance-paths of this connection: {error}; the peer has \
                 begun anew, or if this comes again check versions of both nodes"
            ),
        }
    }
}

impl Socket {
    pub(crate) fn new(link: LinkId, serial: u32, conn: Conn, accepted: bool) -> Socket {
        Socket { serial, conn, accepted, ended: None, link, tls: None }
    }

    /// From here on everything is encrypted, in both directions.
    ///
    /// # Panics
    /// If it is already.
    pub(crate) fn secure(&mut self, session: Session) {
        assert!(self.tls.is_none(), "a socket is encrypted once");
        self.tls = Some(Box::new(session));
    }

    /// What has arrived and was not read, behind `before`, which was read already and is to be read again. If the
    /// socket is encrypted, what was opened is in the session.
    ///
    /// # Panics
    /// If a receive is in flight.
    pub(super) fn unread(&self, before: Vec<u8>) -> (Vec<u8>, Option<FrozenSession>) {
        let unread = self.conn.rx.unread();
        match &self.tls {
            Some(tls) => (unread, Some(tls.freeze(&before))),
            None => ([before, unread].concat(), None),
        }
    }

    /// Receives more, unless that is being done or the stream has ended.
    pub(crate) fn arm(&mut self, ring: &mut Ring) {
        if self.ended.is_none() {
            self.conn.rx.arm(ring, self.link.token(SocketOp::Receive, self.serial));
        }
    }

    /// A receive has completed. False if the stream has ended.
    pub(crate) fn received(&mut self, done: Completed) -> bool {
        match self.conn.rx.on_completed(done) {
            Ok(Received::Data(_)) => {}
            Ok(Received::End) => self.ended = Some(None),
            Err(errno) => self.ended = Some(Some(errno)),
        }
        self.ended.is_none()
    }

    /// A send has completed. False if the stream has ended.
    pub(crate) fn sent(&mut self, done: Completed, now: Instant) -> bool {
        if let Err(errno) = self.conn.tx.on_completed(done, now) {
            self.ended = Some(Some(errno));
        }
        self.ended.is_none()
    }

    /// Sends what is queued.
    pub(crate) fn flush(&mut self, ring: &mut Ring) {
        if let Some(tls) = self.tls.as_mut().filter(|_| self.ended.is_none())
            && tls.seal(&mut self.conn.tx).is_err()
        {
            // Without a new key nothing may be sent any more: the peer shall notice.
            self.conn.shutdown();
        }
        self.conn.tx.flush(ring, self.link.token(SocketOp::Send, self.serial));
    }

    /// Sends what is queued, as the last of it.
    pub(crate) fn finish(&mut self, ring: &mut Ring) {
        if let Some(tls) = &mut self.tls {
            tls.finish();
        }
        self.flush(ring);
    }

    /// Bytes that the kernel has not taken.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.conn.tx.queued_bytes() + self.tls.as_ref().map_or(0, |tls| tls.waiting())
    }

    /// True if everything queued has been taken by the kernel.
    pub(crate) fn is_sent(&self) -> bool {
        self.queued_bytes() == 0 && !self.conn.tx.is_busy()
    }

    /// Queues a packet and its data, with their digest in between if there is one to be.
    pub(crate) fn queue(
        &mut self,
        packet: &Packet,
        payload: Option<Buf>,
        agreed: &Agreed,
        digest: Option<Algorithm>,
    ) {
        debug_assert_eq!(payload.as_ref().map_or(0, |p| p.len()), packet.payload_len());
        let digest = digest.zip(payload.as_ref()).map(|(algorithm, data)| algorithm.of(data));
        let encode = |out: &mut Vec<u8>| {
            wire::encode(packet, agreed, out);
            if let Some(digest) = &digest {
                out.extend_from_slice(digest);
            }
        };
        match &mut self.tls {
            Some(tls) => tls.queue(encode, payload),
            None => {
                self.conn.tx.push_with(encode);
                if let Some(payload) = payload {
                    self.conn.tx.push_buf(payload);
                }
            }
        }
    }

    /// How many of the next `len` bytes can be read.
    pub(super) fn fetch(&mut self, len: usize) -> Result<usize, RecordError> {
        match &mut self.tls {
            Some(tls) => tls.fetch(&mut self.conn.rx, len),
            None => Ok(self.conn.rx.available().min(len)),
        }
    }

    /// The next `len` bytes, if they were fetched.
    pub(super) fn peek(&mut self, len: usize) -> Option<&[u8]> {
        match &self.tls {
            Some(tls) => tls.peek(len),
            None => self.conn.rx.peek(len),
        }
    }

    /// Moves on by bytes that were fetched.
    pub(super) fn consume(&mut self, len: usize) {
        match &mut self.tls {
            Some(tls) => tls.consume(len),
            None => self.conn.rx.consume(len),
        }
    }

    /// The next `len` bytes as a buffer, once they are there; within, that there is no memory for now.
    pub(super) fn take_payload(
        &mut self,
        len: usize,
    ) -> Result<Result<Option<Buf>, AllocError>, RecordError> {
        match &mut self.tls {
            Some(tls) => tls.take_payload(&mut self.conn.rx, len),
            None => Ok(self.conn.rx.take_payload(len)),
        }
    }
}
