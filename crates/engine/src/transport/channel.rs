//! One stream of a connection: packets to bytes and back, over one socket or spread over several.

use codec::wire::{self, Agreed, Digest, Packet, Stream};
use runtime::net::PEEK_MAX;
use runtime::{AllocError, Buf, BufPool, Ring};
use vocab::Instant;

use super::integrity::Integrity;
use super::spread::Spread;
use super::stream::{Broken, Socket};
use crate::digest::Algorithm;

/// A stream.
pub(super) struct Channel {
    stream: Stream,
    /// One per path in use, in the order of those.
    pub(super) sockets: Vec<Socket>,
    /// `None` where all bytes go over the one socket that there is, as they are.
    pub(super) spread: Option<Box<Spread>>,
    /// A packet whose data has not arrived completely.
    partial: Option<Packet>,
    /// The digest that came with that packet, or with the last one that had data.
    digest: Digest,
}

/// What reading a stream brought.
pub(super) enum Read {
    /// A packet and its data.
    Packet(Packet, Option<Buf>),
    /// Nothing complete; more will come.
    Wait,
    /// No memory for data; try again.
    Starved,
}

impl Channel {
    /// A stream over one socket, to which others may come if it is spread.
    pub(super) fn new(stream: Stream, socket: Socket, spread: Option<BufPool>) -> Channel {
        let spread = spread.map(|pool| Box::new(Spread::new(pool)));
        Channel::of(stream, vec![socket], spread)
    }

    /// One that goes on, over sockets that are there.
    pub(super) fn of(stream: Stream, sockets: Vec<Socket>, spread: Option<Box<Spread>>) -> Channel {
        Channel { stream, sockets, spread, partial: None, digest: Digest::NONE }
    }

    /// One more socket of a stream that is spread.
    pub(super) fn insert(&mut self, at: usize, socket: Socket) {
        self.spread.as_mut().expect("a stream that is not spread has one socket").insert(at);
        self.sockets.insert(at, socket);
    }

    /// Which of the sockets that is.
    pub(super) fn position(&self, serial: u32) -> Option<usize> {
        self.sockets.iter().position(|socket| socket.serial == serial)
    }

    /// Bytes that the kernel has not taken.
    pub(super) fn queued_bytes(&self) -> usize {
        self.sockets.iter().map(Socket::queued_bytes).sum()
    }

    /// True if everything queued has been taken by the kernel.
    pub(super) fn is_sent(&self) -> bool {
        self.sockets.iter().all(Socket::is_sent)
    }

    /// All sockets have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.sockets.iter().all(|socket| socket.ended.is_some())
    }

    /// Since when nothing arrives by the socket whose turn it is, while there is something from others.
    pub(super) fn stuck_since(&self) -> Option<Instant> {
        self.spread.as_ref().and_then(|spread| spread.stuck_since())
    }

    /// The first socket by which nothing has come that waits for its turn.
    pub(super) fn silent(&self) -> Option<usize> {
        let spread = self.spread.as_ref()?;
        (0..self.sockets.len()).find(|at| spread.wants(*at))
    }

    // ---- sending -------------------------------------------------------------------------

    /// Queues a packet and its data. `everywhere`, and it may go by any socket; else by the first.
    pub(super) fn queue(
        &mut self,
        packet: &Packet,
        payload: Option<Buf>,
        (agreed, digest): (&Agreed, Option<Algorithm>),
        everywhere: bool,
    ) {
        match &mut self.spread {
            None => self.sockets[0].queue(packet, payload, agreed, digest),
            Some(spread) => {
                let socket = spread.choose(&mut self.sockets, everywhere);
                socket.queue(packet, payload, agreed, digest);
            }
        }
    }

    /// Sends what is queued.
    pub(super) fn flush(&mut self, ring: &mut Ring) {
        self.close_chunk();
        for socket in &mut self.sockets {
            socket.flush(ring);
        }
    }

    /// Sends what is queued on one of the sockets.
    pub(super) fn flush_one(&mut self, ring: &mut Ring, at: usize) {
        self.close_chunk();
        self.sockets[at].flush(ring);
    }

    fn close_chunk(&mut self) {
        if let Some(spread) = &mut self.spread {
            spread.close(&mut self.sockets);
        }
    }

    /// The sockets, on which what was queued may still be sent.
    pub(super) fn into_sockets(mut self) -> Vec<Socket> {
        self.close_chunk();
        self.sockets
    }

    // ---- receiving -----------------------------------------------------------------------

    /// The next packet. After `Wait`, arm. Data that do not have their digest are dropped here.
    ///
    /// # Errors
    /// Why the stream can not go on.
    pub(super) fn read(
        &mut self,
        agreed: &Agreed,
        integrity: Integrity,
        now: Instant,
    ) -> Result<Read, Broken> {
        if self.spread.is_none() && self.sockets[0].conn.rx.is_armed() {
            return Ok(Read::Wait);
        }
        let read = self.read_packet(agreed, integrity)?;
        if let Some(spread) = &mut self.spread {
            match read {
                Read::Packet(..) => {}
                Read::Wait => spread.waits(&mut self.sockets, now)?,
                Read::Starved => spread.rests(),
            }
        }
        Ok(read)
    }

    fn read_packet(&mut self, agreed: &Agreed, integrity: Integrity) -> Result<Read, Broken> {
        let packet = match self.partial.take() {
            Some(packet) => packet,
            None => match self.read_fixed(agreed)? {
                Some(packet) => packet,
                None => return Ok(Read::Wait),
            },
        };
        let len = packet.payload_len();
        if len == 0 {
            return Ok(Read::Packet(packet, None));
        }
        let taken = match &mut self.spread {
            Some(spread) => spread.take_payload(&mut self.sockets, len)?,
            None => self.sockets[0].take_payload(len)?,
        };
        match taken {
            Ok(Some(buf)) => match integrity.peer {
                Some(algorithm) if *algorithm.of(&buf) != *self.digest => {
                    Err(Broken::Damaged(packet, algorithm))
                }
                _ => Ok(Read::Packet(packet, Some(buf))),
            },
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

    /// Header and fixed part of the next packet, and the digest of its data.
    fn read_fixed(&mut self, agreed: &Agreed) -> Result<Option<Packet>, Broken> {
        let some = self.fetch(wire::MAX_HEADER)?;
        let stream = self.stream;
        let bytes = self.peek(some).expect("that much is available");
        let Some(header) = wire::decode_header(bytes, stream, agreed)? else { return Ok(None) };
        let fixed = header.size() + header.fixed_len();
        let len = fixed + header.digest_len(agreed);
        assert!(len <= PEEK_MAX, "the codec limits what is not data to some KiB");
        self.fetch(len)?;
        let Some(bytes) = self.peek(len) else { return Ok(None) };
        let packet = wire::decode(header, &bytes[header.size()..fixed], agreed)?;
        if len > fixed {
            let digest = Digest::new(&bytes[fixed..]);
            self.digest = digest.expect("no algorithm gives more bytes than a digest has");
        }
        match &mut self.spread {
            Some(spread) => spread.consume(len),
            None => self.sockets[0].consume(len),
        }
        Ok(Some(packet))
    }

    /// How many of the next `len` bytes can be read.
    fn fetch(&mut self, len: usize) -> Result<usize, Broken> {
        match &mut self.spread {
            Some(spread) => Ok(spread.fetch(&mut self.sockets, len)?),
            None => Ok(self.sockets[0].fetch(len)?),
        }
    }

    fn peek(&mut self, len: usize) -> Option<&[u8]> {
        match &self.spread {
            Some(spread) => spread.peek(len),
            None => self.sockets[0].peek(len),
        }
    }

    /// Receives more, where there is something to be read next.
    pub(super) fn arm(&mut self, ring: &mut Ring) {
        for (at, socket) in self.sockets.iter_mut().enumerate() {
            if self.spread.as_ref().is_none_or(|spread| spread.wants(at)) {
                socket.arm(ring);
            }
        }
    }

    /// A receive on one of the sockets has brought something.
    pub(super) fn received(&mut self, at: usize) {
        if let Some(spread) = &mut self.spread {
            spread.received(at);
        }
    }

    /// Nobody waits for what is missing.
    pub(super) fn rests(&mut self) {
        if let Some(spread) = &mut self.spread {
            spread.rests();
        }
    }

    /// True while something is being received.
    pub(super) fn is_armed(&self) -> bool {
        self.sockets.iter().any(|socket| socket.conn.rx.is_armed())
    }

    /// Receives nothing more.
    pub(super) fn cancel(&self, ring: &mut Ring) {
        for socket in &self.sockets {
            socket.conn.rx.cancel(ring);
        }
    }

    /// What was read of a packet that is incomplete, as it came.
    pub(super) fn begun(&self, agreed: &Agreed, integrity: Integrity) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(packet) = &self.partial {
            // As its sender did, whose own digest is the peer's here.
            let theirs = Agreed { own_digest_len: agreed.peer_digest_len, ..*agreed };
            wire::encode(packet, &theirs, &mut bytes);
            if integrity.peer.is_some() {
                bytes.extend_from_slice(&self.digest);
            }
        }
        bytes
    }
}
