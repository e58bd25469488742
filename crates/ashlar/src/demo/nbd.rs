//! A small NBD client: one connection, many requests in flight, no thread of its own.
//!
//! The messages are those of `frontend::nbd::proto`. Negotiated: fixed newstyle, simple replies.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use frontend::nbd::proto::option::{ClientFlags, OptionHeader, number};
use frontend::nbd::proto::transfer::{Command, RequestHeader, SIMPLE_REPLY_LEN, SimpleReply};
use frontend::nbd::proto::{
    CommandFlags, GREETING_MAGIC, HANDSHAKE_FIXED_NEWSTYLE, HANDSHAKE_NO_ZEROES, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, TransmissionFlags,
};

/// Option replies (NBD protocol, "Option reply types").
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_ERROR: u32 = 1 << 31;
/// Information of type `NBD_INFO_EXPORT`: type, size, flags.
const INFO_EXPORT_LEN: usize = 12;
/// Nothing this client asks for has a longer answer.
const OPTION_REPLY_MAX: usize = 64 << 10;

/// Bytes taken from the socket at a time.
const CHUNK: usize = 256 << 10;

/// How long a server may take to take in what is sent.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a connection can not be had or has ended. It is of no use any more.
#[derive(Debug)]
pub enum Error {
    /// The socket failed or was closed.
    Socket(io::Error),
    /// The server does not open the export, with its number and text.
    Refused(u32, String),
    /// The server lets the export be read only: the volume can not be promoted now.
    ReadOnly,
    /// The server said something this client does not understand.
    Protocol(&'static str),
    /// The caller has had enough.
    Stopped,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Socket(e) if e.kind() == ErrorKind::UnexpectedEof => {
                f.write_str("the server closed the NBD connection")
            }
            Error::Socket(e) => write!(f, "the NBD connection failed: {e}"),
            Error::Refused(reply, text) => {
                write!(f, "the server does not open the export (reply {reply:#x}")?;
                if text.is_empty() { f.write_str(")") } else { write!(f, ", {text})") }
            }
            Error::ReadOnly => f.write_str("the export can not be written now"),
            Error::Stopped => f.write_str("stopped"),
            Error::Protocol(what) => write!(f, "the NBD server broke the protocol: {what}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Error {
        Error::Socket(e)
    }
}

/// What to do; offsets and lengths in bytes.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Read `len` bytes.
    Read { offset: u64, len: u32 },
    /// Write the data; with `fua` it is durable when the reply comes.
    Write { offset: u64, data: &'a [u8], fua: bool },
    /// Make every completed write durable.
    Flush,
}

/// The answer to one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply<'a> {
    /// The number given to [`Connection::submit`].
    pub cookie: u64,
    /// 0, or the error number ("Error values").
    pub error: u32,
    /// What was read.
    pub data: &'a [u8],
}

/// An open export.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    size: u64,
    /// Requests not sent yet.
    out: Vec<u8>,
    /// Bytes that came and were not used yet.
    input: Vec<u8>,
    /// Where the next read goes.
    chunk: Box<[u8]>,
    /// Bytes of data each request in flight will return if it succeeds.
    pending: BTreeMap<u64, u32>,
}

impl Connection {
    /// Connects and opens `export` for writing. Opening may promote the volume; the answer is
    /// awaited for `patience`.
    ///
    /// # Errors
    /// If there is no server, or it does not open the export.
    pub fn open(server: SocketAddr, export: &str, patience: Duration) -> Result<Connection, Error> {
        let mut stream = TcpStream::connect_timeout(&server, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        greet(&mut stream)?;
        let (size, flags) = go(&mut stream, export)?;
        if flags.contains(TransmissionFlags::READ_ONLY) {
            return Err(Error::ReadOnly);
        }
        let (out, input, pending) = (Vec::new(), Vec::new(), BTreeMap::new());
        let chunk = vec![0; CHUNK].into_boxed_slice();
        Ok(Connection { stream, size, out, input, chunk, pending })
    }

    /// Size of the export in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Requests without an answer.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Queues a request under a number that no other request in flight has.
    pub fn submit(&mut self, cookie: u64, op: Op<'_>) {
        let (command, offset, len, returned) = match op {
            Op::Read { offset, len } => (Command::Read, offset, len, len),
            Op::Write { offset, data, .. } => (Command::Write, offset, data.len() as u32, 0),
            Op::Flush => (Command::Flush, 0, 0, 0),
        };
        let fua = matches!(op, Op::Write { fua: true, .. });
        let flags = CommandFlags::NONE.with_if(CommandFlags::FUA, fua);
        let other = self.pending.insert(cookie, returned);
        assert!(other.is_none(), "cookies in flight are unique");
        let header = RequestHeader { flags, command, cookie, offset, len };
        self.out.extend_from_slice(&header.encode());
        if let Op::Write { data, .. } = op {
            self.out.extend_from_slice(data);
        }
    }

    /// Sends what was queued.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn flush(&mut self) -> Result<(), Error> {
        let sent = self.stream.write_all(&self.out);
        self.out.clear();
        Ok(sent?)
    }

    /// Waits up to `wait` for answers and hands out every one that is complete. Returns how many.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn receive(
        &mut self,
        wait: Duration,
        on_reply: &mut dyn FnMut(Reply<'_>),
    ) -> Result<usize, Error> {
        self.stream.set_read_timeout(Some(wait.max(Duration::from_millis(1))))?;
        match self.stream.read(&mut self.chunk) {
            Ok(0) => return Err(Error::Socket(ErrorKind::UnexpectedEof.into())),
            Ok(n) => self.input.extend_from_slice(&self.chunk[..n]),
            Err(e) if is_pause(&e) => return Ok(0),
            Err(e) => return Err(e.into()),
        }
        let (mut at, mut count) = (0, 0);
        while let Some((reply, used)) = next_reply(&self.input[at..], &self.pending)? {
            self.pending.remove(&reply.cookie);
            on_reply(reply);
            at += used;
            count += 1;
        }
        self.input.drain(..at);
        Ok(count)
    }

    /// Says goodbye and waits until the server has closed the export, which demotes the volume.
    ///
    /// # Errors
    /// If the server does not close the connection in time.
    pub fn close(mut self, patience: Duration) -> Result<(), Error> {
        let (flags, command) = (CommandFlags::NONE, Command::Disc);
        let header = RequestHeader { flags, command, cookie: 0, offset: 0, len: 0 };
        self.out.extend_from_slice(&header.encode());
        self.flush()?;
        let end = Instant::now() + patience;
        let mut chunk = [0; 4096];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Protocol("it does not close the connection after goodbye"));
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Err(e) if !is_pause(&e) => return Err(e.into()),
                _ => {}
            }
        }
    }
}

fn is_pause(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// The first complete reply in `input` and its length, or `None` if more bytes are needed.
fn next_reply<'a>(
    input: &'a [u8],
    pending: &BTreeMap<u64, u32>,
) -> Result<Option<(Reply<'a>, usize)>, Error> {
    let Some((header, rest)) = input.split_first_chunk::<SIMPLE_REPLY_LEN>() else {
        return Ok(None);
    };
    let header = SimpleReply::decode(header).ok_or(Error::Protocol("a reply without magic"))?;
    let SimpleReply { error, cookie } = header;
    let returned = *pending.get(&cookie).ok_or(Error::Protocol("an answer nobody asked for"))?;
    let len = if error == 0 { returned as usize } else { 0 };
    let Some(data) = rest.get(..len) else { return Ok(None) };
    Ok(Some((Reply { cookie, error, data }, SIMPLE_REPLY_LEN + len)))
}

/// "Fixed newstyle negotiation", up to the client's flags.
fn greet(stream: &mut TcpStream) -> Result<(), Error> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    let (magic, rest) = greeting.split_at(8);
    let (option_magic, flags) = rest.split_at(8);
    if magic != GREETING_MAGIC.to_be_bytes() || option_magic != OPTION_MAGIC.to_be_bytes() {
        return Err(Error::Protocol("not an NBD server"));
    }
    let flags = u16::from_be_bytes([flags[0], flags[1]]);
    let wanted = HANDSHAKE_FIXED_NEWSTYLE | HANDSHAKE_NO_ZEROES;
    if flags & wanted != wanted {
        return Err(Error::Protocol("no fixed newstyle negotiation"));
    }
    let answer = u32::from(wanted).to_be_bytes();
    debug_assert!(ClientFlags::decode(answer).is_some(), "these are the client's flags");
    Ok(stream.write_all(&answer)?)
}

/// `NBD_OPT_GO`: opens the export and returns its size and flags.
fn go(stream: &mut TcpStream, export: &str) -> Result<(u64, TransmissionFlags), Error> {
    let name = export.as_bytes();
    let len = name.len() as u32;
    let mut message = OptionHeader { number: number::GO, len: len + 6 }.encode().to_vec();
    message.extend_from_slice(&len.to_be_bytes());
    message.extend_from_slice(name);
    message.extend_from_slice(&0u16.to_be_bytes());
    stream.write_all(&message)?;
    let mut export = None;
    loop {
        let (reply, data) = option_reply(stream)?;
        match reply {
            REPLY_ACK => return export.ok_or(Error::Protocol("an export without a size")),
            REPLY_INFO if data.len() == INFO_EXPORT_LEN && data[..2] == [0, 0] => {
                let size = u64::from_be_bytes(data[2..10].try_into().expect("eight bytes"));
                let flags = u16::from_be_bytes([data[10], data[11]]);
                export = Some((size, TransmissionFlags(flags)));
            }
            REPLY_INFO => {}
            reply if reply & REPLY_ERROR != 0 => {
                return Err(Error::Refused(reply, String::from_utf8_lossy(&data).into_owned()));
            }
            _ => return Err(Error::Protocol("an answer to an option that does not fit")),
        }
    }
}

fn option_reply(stream: &mut TcpStream) -> Result<(u32, Vec<u8>), Error> {
    let mut header = [0; 20];
    stream.read_exact(&mut header)?;
    let number = |at: usize| {
        u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes are a u32"))
    };
    if header[..8] != OPTION_REPLY_MAGIC.to_be_bytes() {
        return Err(Error::Protocol("an answer to an option without magic"));
    }
    let len = number(16) as usize;
    if len > OPTION_REPLY_MAX {
        return Err(Error::Protocol("an answer to an option that is too long"));
    }
    let mut data = vec![0; len];
    stream.read_exact(&mut data)?;
    Ok((number(12), data))
}
