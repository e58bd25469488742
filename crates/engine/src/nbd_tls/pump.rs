//! A client's traffic: decrypted one way and encrypted the other, until either end has closed.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};

use crate::engine::lock;
use crate::tls::{DATA_MAX, FrozenTraffic, Incoming, Opened, RecordError, Traffic, next_record};

/// Bytes read at a time, and bytes that wait for the NBD server before no more is decrypted.
const PIECE: usize = 128 << 10;
const WAITING_MAX: usize = 512 << 10;

/// What the client has sent and was not decrypted.
#[derive(Default)]
pub(super) struct Received {
    /// As long as it ever had to be, so that it is not cleared for each piece.
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Received {
    fn of(bytes: Vec<u8>) -> Received {
        let end = bytes.len();
        Received { bytes, begin: 0, end }
    }

    /// Reads what the socket has, up to a piece.
    pub(super) fn read(&mut self, stream: &mut TcpStream) -> io::Result<usize> {
        self.bytes.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        if self.bytes.len() < self.end + PIECE {
            self.bytes.resize(self.end + PIECE, 0);
        }
        let read = stream.read(&mut self.bytes[self.end..])?;
        self.end += read;
        Ok(read)
    }

    fn left(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }
}

impl Incoming for Received {
    fn peek(&mut self, len: usize) -> Option<&[u8]> {
        self.left().get(..len)
    }

    fn consume(&mut self, len: usize) {
        self.begin += len;
    }
}

/// Bytes on their way to a socket.
#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    gone: usize,
}

impl Waiting {
    fn of(bytes: Vec<u8>) -> Waiting {
        Waiting { bytes, gone: 0 }
    }

    fn left(&self) -> &[u8] {
        &self.bytes[self.gone..]
    }

    fn is_empty(&self) -> bool {
        self.left().is_empty()
    }

    /// What is to follow is appended to this.
    fn end(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.gone);
        self.gone = 0;
        &mut self.bytes
    }

    /// True if any of it has left.
    fn send(&mut self, to: &mut impl Write) -> io::Result<bool> {
        let mut moved = false;
        while !self.is_empty() {
            match to.write(&self.bytes[self.gone..]) {
                Ok(n) => self.gone += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
            moved = true;
        }
        Ok(moved)
    }
}

/// A client between its socket and the NBD server.
pub(super) struct Pump {
    traffic: Traffic,
    stream: TcpStream,
    inner: UnixStream,
    received: Received,
    /// Decrypted, for the NBD server.
    plain: Waiting,
    /// Encrypted, for the client. Nothing is added before all of it has left: what waits for a client
    /// that does not read is bounded.
    sealed: Waiting,
    /// The client says nothing more.
    ended: bool,
    /// It is on its way to another process, or was not told yet that it has arrived.
    held: bool,
}

/// A client at rest, for another process. Its descriptors travel beside it: those of its socket and of the
/// end of the pair that the NBD server does not have.
#[derive(Serialize, Deserialize)]
pub(super) struct FrozenPump {
    pub(super) address: SocketAddr,
    traffic: FrozenTraffic,
    #[serde(with = "codec::frozen::bytes")]
    received: Vec<u8>,
    #[serde(with = "codec::frozen::bytes")]
    plain: Vec<u8>,
    #[serde(with = "codec::frozen::bytes")]
    sealed: Vec<u8>,
    ended: bool,
}

fn broken(error: RecordError) -> io::Error {
    io::Error::other(error.to_string())
}

impl Pump {
    /// `plain`: what the NBD server is told before anything of the client.
    pub(super) fn new(
        traffic: Traffic,
        stream: TcpStream,
        inner: UnixStream,
        received: Received,
        plain: Vec<u8>,
    ) -> Pump {
        let (plain, sealed) = (Waiting::of(plain), Waiting::default());
        Pump { traffic, stream, inner, received, plain, sealed, ended: false, held: false }
    }

    /// Moves what can be moved. True if that was anything.
    fn turn(&mut self, piece: &mut [u8]) -> io::Result<bool> {
        Ok(self.receive()? | self.pass_on()? | self.take_answers(piece)? | self.send()?)
    }

    /// What it waits for: of the client's socket, and of the NBD server's.
    fn wishes(&self) -> (PollFlags, PollFlags) {
        let (mut outside, mut inside) = (PollFlags::empty(), PollFlags::empty());
        outside.set(PollFlags::IN, self.has_room());
        outside.set(PollFlags::OUT, !self.sealed.is_empty());
        inside.set(PollFlags::IN, self.sealed.is_empty());
        inside.set(PollFlags::OUT, !self.plain.is_empty());
        (outside, inside)
    }

    fn has_room(&self) -> bool {
        !self.ended && self.plain.left().len() < WAITING_MAX
    }

    /// True if anything came.
    fn receive(&mut self) -> io::Result<bool> {
        // There may be whole records already, behind the handshake or from another process.
        let opened = self.open()?;
        if !self.has_room() {
            return Ok(opened);
        }
        match self.received.read(&mut self.stream) {
            Ok(0) => self.end_of_client()?,
            Ok(_) => _ = self.open()?,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(opened),
            Err(e) => return Err(e),
        }
        Ok(true)
    }

    /// Decrypts what has arrived. True if that was anything.
    fn open(&mut self) -> io::Result<bool> {
        let mut opened = false;
        while self.has_room() {
            let Some(record) = next_record(&mut self.received).map_err(broken)? else { break };
            let len = record.len();
            let plain = self.plain.end();
            let start = plain.len();
            plain.resize(start + len, 0);
            let what = self.traffic.open(record, &mut plain[start..]).map_err(broken)?;
            plain.truncate(start + if let Opened::Data(bytes) = what { bytes } else { 0 });
            self.received.consume(len);
            if what == Opened::End {
                self.end_of_client()?;
            }
            opened = true;
        }
        Ok(opened)
    }

    /// What it has said already counts.
    fn end_of_client(&mut self) -> io::Result<()> {
        self.ended = true;
        if self.plain.is_empty() { self.inner.shutdown(Shutdown::Write) } else { Ok(()) }
    }

    fn pass_on(&mut self) -> io::Result<bool> {
        let moved = self.plain.send(&mut self.inner)?;
        if moved && self.ended && self.plain.is_empty() {
            self.inner.shutdown(Shutdown::Write)?;
        }
        Ok(moved)
    }

    fn take_answers(&mut self, piece: &mut [u8]) -> io::Result<bool> {
        if !self.sealed.is_empty() {
            return Ok(false);
        }
        match self.inner.read(piece) {
            Ok(0) => {
                self.traffic.seal_end(self.sealed.end()).map_err(broken)?;
                self.sealed.send(&mut self.stream)?;
                Err(io::Error::new(ErrorKind::BrokenPipe, "the end"))
            }
            Ok(n) => {
                let sealed = self.sealed.end();
                for data in piece[..n].chunks(DATA_MAX) {
                    let fill = |out: &mut Vec<u8>| out.extend_from_slice(data);
                    self.traffic.seal(sealed, fill).map_err(broken)?;
                }
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn send(&mut self) -> io::Result<bool> {
        self.sealed.send(&mut self.stream)
    }
}

/// A client's pump, its thread's and whoever has it rest.
pub(super) struct Shared {
    pub(super) address: SocketAddr,
    pump: Mutex<Pump>,
    go_on: Condvar,
}

impl Shared {
    pub(super) fn new(pump: Pump, address: SocketAddr) -> Arc<Shared> {
        Arc::new(Shared { address, pump: Mutex::new(pump), go_on: Condvar::new() })
    }

    /// Serves the client until either end has closed; an error in any case.
    pub(super) fn run(&self) -> io::Result<()> {
        let mut piece = vec![0; PIECE];
        let (stream, inner) = {
            let pump = lock(&self.pump);
            (pump.stream.try_clone()?, pump.inner.try_clone()?)
        };
        loop {
            let (outside, inside) = {
                let pump = self.go_on.wait_while(lock(&self.pump), |pump| pump.held);
                let mut pump = pump.unwrap_or_else(PoisonError::into_inner);
                if pump.turn(&mut piece)? {
                    continue;
                }
                pump.wishes()
            };
            // A socket that is not asked for anything would tell of its end again and again.
            let mut ends: Vec<PollFd<'_>> = [(stream.as_fd(), outside), (inner.as_fd(), inside)]
                .into_iter()
                .filter(|(_, flags)| !flags.is_empty())
                .map(|(end, flags)| PollFd::from_borrowed_fd(end, flags))
                .collect();
            match poll(&mut ends, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Has it rest until [`Shared::go_on`].
    ///
    /// # Errors
    /// Why it can not go to another process now; it goes on then.
    pub(super) fn hold(&self) -> io::Result<(FrozenPump, [OwnedFd; 2])> {
        let mut pump = lock(&self.pump);
        let fds = [pump.stream.as_fd(), pump.inner.as_fd()].map(|fd| fd.try_clone_to_owned());
        let [stream, inner] = fds;
        let fds = [stream?, inner?];
        pump.held = true;
        let frozen = FrozenPump {
            address: self.address,
            traffic: pump.traffic.freeze(),
            received: pump.received.left().to_vec(),
            plain: pump.plain.left().to_vec(),
            sealed: pump.sealed.left().to_vec(),
            ended: pump.ended,
        };
        Ok((frozen, fds))
    }

    /// A client of another process, which rests until [`Shared::go_on`].
    ///
    /// # Errors
    /// Its keys are none.
    pub(super) fn thaw(
        frozen: FrozenPump,
        [stream, inner]: [OwnedFd; 2],
    ) -> Result<Arc<Shared>, String> {
        let FrozenPump { address, traffic, received, plain, sealed, ended } = frozen;
        let traffic = Traffic::thaw(traffic).map_err(|e| e.to_string())?;
        let received = Received::of(received);
        let (stream, inner) = (TcpStream::from(stream), UnixStream::from(inner));
        let mut pump = Pump::new(traffic, stream, inner, received, plain);
        (pump.sealed, pump.ended, pump.held) = (Waiting::of(sealed), ended, true);
        Ok(Shared::new(pump, address))
    }

    /// It goes on.
    pub(super) fn go_on(&self) {
        lock(&self.pump).held = false;
        self.go_on.notify_all();
    }
}
