//! One of the two sockets of a connection: bytes to packets and back.

use codec::wire::{self, Agreed, Packet, Stream, WireError};
use runtime::net::PEEK_MAX;
use runtime::{AllocError, Buf, Completed, Conn, Errno, Received, Ring, Token};
use vocab::{Instant, NodeId};

use crate::shard::token::{LinkToken, SocketOp};

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
    /// A packet whose data has not arrived completely.
    partial: Option<Packet>,
}

/// What reading a socket brought.
pub(crate) enum Read {
    /// A packet and its data.
    Packet(Packet, Option<Buf>),
    /// Nothing complete; more will come.
    Wait,
    /// No memory for data; try again.
    Starved,
}

impl Socket {
    pub(crate) fn new(link: LinkId, serial: u32, conn: Conn, accepted: bool) -> Socket {
        Socket { serial, conn, accepted, ended: None, link, partial: None }
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
        self.conn.tx.flush(ring, self.link.token(SocketOp::Send, self.serial));
    }

    /// True if everything queued has been taken by the kernel.
    pub(crate) fn is_sent(&self) -> bool {
        self.conn.tx.queued_bytes() == 0 && !self.conn.tx.is_busy()
    }

    /// Queues a packet and its data.
    pub(crate) fn queue(&mut self, packet: &Packet, payload: Option<Buf>, agreed: &Agreed) {
        self.conn.tx.push_with(|out| wire::encode(packet, agreed, out));
        if let Some(payload) = payload {
            debug_assert_eq!(payload.len(), packet.payload_len());
            self.conn.tx.push_buf(payload);
        }
    }

    /// The next packet. After `Wait`, arm.
    ///
    /// # Errors
    /// The peer's bytes broke a rule; the stream can not go on.
    pub(crate) fn read(&mut self, stream: Stream, agreed: &Agreed) -> Result<Read, WireError> {
        if self.conn.rx.is_armed() {
            return Ok(Read::Wait);
        }
        let packet = match self.partial.take() {
            Some(packet) => packet,
            None => match self.read_fixed(stream, agreed)? {
                Some(packet) => packet,
                None => return Ok(Read::Wait),
            },
        };
        let len = packet.payload_len();
        if len == 0 {
            return Ok(Read::Packet(packet, None));
        }
        match self.conn.rx.take_payload(len) {
            Ok(Some(buf)) => Ok(Read::Packet(packet, Some(buf))),
            Ok(None) => {
                self.partial = Some(packet);
                Ok(Read::Wait)
            }
            Err(AllocError::Exhausted) => {
                self.partial = Some(packet);
                Ok(Read::Starved)
            }
            Err(AllocError::TooLarge) => unreachable!("the codec limits data to 1 MiB"),
        }
    }

    /// Header and fixed part of the next packet.
    fn read_fixed(&mut self, stream: Stream, agreed: &Agreed) -> Result<Option<Packet>, WireError> {
        let rx = &mut self.conn.rx;
        let some = rx.available().min(wire::MAX_HEADER);
        let bytes = rx.peek(some).expect("that much is available");
        let Some(header) = wire::decode_header(bytes, stream, agreed)? else { return Ok(None) };
        let len = header.size() + header.fixed_len();
        assert!(len <= PEEK_MAX, "the codec limits what is not data to some KiB");
        let Some(bytes) = rx.peek(len) else { return Ok(None) };
        let packet = wire::decode(header, &bytes[header.size()..], agreed)?;
        rx.consume(len);
        Ok(Some(packet))
    }
}
