//! The transmission phase: requests, simple replies and structured reply chunks.
//!
//! Sections "Transmission", "Request types" and "Structured reply types".

use super::option::limited;
use super::{
    CommandFlags, EXTENDED_REPLY_MAGIC, EXTENDED_REQUEST_MAGIC, ErrorCode, REQUEST_MAGIC, Reader,
    SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
};

/// Bytes in a request, without the payload of a write.
pub const REQUEST_LEN: usize = 28;
/// Bytes in an extended request, without its payload.
pub const EXTENDED_REQUEST_LEN: usize = 32;
/// Bytes in the header of an extended reply chunk.
pub const EXTENDED_CHUNK_HEADER_LEN: usize = 32;
/// Bytes in a simple reply, without the data of a read.
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Bytes in the header of a structured reply chunk.
pub const CHUNK_HEADER_LEN: usize = 20;
/// Longest list of extents in one chunk ("Structured reply types").
pub const MAX_EXTENTS: usize = 1 << 20;

/// "Request types".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Command {
    /// `NBD_CMD_READ`.
    Read,
    /// `NBD_CMD_WRITE`; its payload follows the request.
    Write,
    /// `NBD_CMD_DISC`: the client leaves once its requests are answered.
    Disc,
    /// `NBD_CMD_FLUSH`.
    Flush,
    /// `NBD_CMD_TRIM`.
    Trim,
    /// `NBD_CMD_CACHE`, not served.
    Cache,
    /// `NBD_CMD_WRITE_ZEROES`.
    WriteZeroes,
    /// `NBD_CMD_BLOCK_STATUS`.
    BlockStatus,
    /// `NBD_CMD_RESIZE`, experimental, not served.
    Resize,
    /// Any other number.
    Unknown(u16),
}

impl Command {
    /// The number on the wire.
    pub const fn number(self) -> u16 {
        match self {
            Command::Read => 0,
            Command::Write => 1,
            Command::Disc => 2,
            Command::Flush => 3,
            Command::Trim => 4,
            Command::Cache => 5,
            Command::WriteZeroes => 6,
            Command::BlockStatus => 7,
            Command::Resize => 8,
            Command::Unknown(number) => number,
        }
    }

    /// The command with that number.
    pub const fn from_number(number: u16) -> Command {
        match number {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disc,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            8 => Command::Resize,
            number => Command::Unknown(number),
        }
    }

    /// Flags that mean something for this command; FUA is valid for all ("Command flags").
    pub const fn valid_flags(self) -> CommandFlags {
        let own = match self {
            Command::Read => CommandFlags::DF,
            Command::WriteZeroes => CommandFlags::NO_HOLE.with(CommandFlags::FAST_ZERO),
            Command::BlockStatus => CommandFlags::REQ_ONE,
            _ => CommandFlags::NONE,
        };
        own.with(CommandFlags::FUA)
    }
}

/// One request as the client sent it; nothing about it is checked but the magic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestHeader {
    /// The flags.
    pub flags: CommandFlags,
    /// What is wanted.
    pub command: Command,
    /// The client's name for the request, repeated in the reply.
    pub cookie: u64,
    /// Start, in bytes.
    pub offset: u64,
    /// Length of the range, in bytes; for a write also of the payload.
    pub len: u32,
}

impl RequestHeader {
    /// `None` if the magic is wrong: the two sides are out of step.
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Option<RequestHeader> {
        let mut r = Reader::new(bytes);
        (r.u32()? == REQUEST_MAGIC).then_some(())?;
        Some(RequestHeader {
            flags: CommandFlags(r.u16()?),
            command: Command::from_number(r.u16()?),
            cookie: r.u64()?,
            offset: r.u64()?,
            len: r.u32()?,
        })
    }

    /// As a client sends it.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.0.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.number().to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}

/// A request with the lengths of extended headers; compact ones become it, too. Nothing about it is
/// checked but the magic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtendedRequest {
    /// The flags.
    pub flags: CommandFlags,
    /// What is wanted.
    pub command: Command,
    /// The client's name for the request, repeated in the reply.
    pub cookie: u64,
    /// Start, in bytes.
    pub offset: u64,
    /// Bytes of payload with [`CommandFlags::PAYLOAD_LEN`], otherwise of the range.
    pub len: u64,
}

impl From<RequestHeader> for ExtendedRequest {
    fn from(header: RequestHeader) -> ExtendedRequest {
        let RequestHeader { flags, command, cookie, offset, len } = header;
        ExtendedRequest { flags, command, cookie, offset, len: len.into() }
    }
}

impl ExtendedRequest {
    /// `None` if the magic is wrong: the two sides are out of step.
    pub fn decode(bytes: &[u8; EXTENDED_REQUEST_LEN]) -> Option<ExtendedRequest> {
        let mut r = Reader::new(bytes);
        (r.u32()? == EXTENDED_REQUEST_MAGIC).then_some(())?;
        Some(ExtendedRequest {
            flags: CommandFlags(r.u16()?),
            command: Command::from_number(r.u16()?),
            cookie: r.u64()?,
            offset: r.u64()?,
            len: r.u64()?,
        })
    }

    /// As a client sends it.
    pub fn encode(&self) -> [u8; EXTENDED_REQUEST_LEN] {
        let mut bytes = [0; EXTENDED_REQUEST_LEN];
        bytes[0..4].copy_from_slice(&EXTENDED_REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.0.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.number().to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}

/// Which request a reply answers, and with which headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The request's cookie.
    pub cookie: u64,
    /// Its offset, if extended headers were agreed on: every chunk repeats it.
    pub extended: Option<u64>,
}

impl Asked {
    /// A request with a compact header.
    pub const fn compact(cookie: u64) -> Asked {
        Asked { cookie, extended: None }
    }
}

/// "Simple reply message". The data of a successful read follows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimpleReply {
    /// Error number, 0 for success.
    pub error: u32,
    /// The request's cookie.
    pub cookie: u64,
}

impl SimpleReply {
    /// Its bytes.
    pub fn encode(self) -> [u8; SIMPLE_REPLY_LEN] {
        let mut bytes = [0; SIMPLE_REPLY_LEN];
        bytes[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.error.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes
    }

    /// `None` if the magic is wrong.
    pub fn decode(bytes: &[u8; SIMPLE_REPLY_LEN]) -> Option<SimpleReply> {
        let mut r = Reader::new(bytes);
        (r.u32()? == SIMPLE_REPLY_MAGIC).then_some(())?;
        Some(SimpleReply { error: r.u32()?, cookie: r.u64()? })
    }
}

/// One extent of a block status reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Length in bytes, never 0.
    pub len: u32,
    /// As the context has them: of `base:allocation` bit 0 is `NBD_STATE_HOLE` and bit 1
    /// `NBD_STATE_ZERO`, of dirty bitmaps bit 0 is `NBD_STATE_DIRTY`.
    pub flags: u32,
}

/// One chunk of a structured reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chunk<'a> {
    /// `NBD_REPLY_TYPE_NONE`: nothing more to say.
    None,
    /// `NBD_REPLY_TYPE_OFFSET_DATA`: `len` bytes of data follow what is encoded here.
    OffsetData {
        /// Position on the export, in bytes.
        offset: u64,
        /// Bytes of data that follow, never 0.
        len: u32,
    },
    /// `NBD_REPLY_TYPE_OFFSET_HOLE`: `len` bytes read as zeroes.
    OffsetHole {
        /// Position on the export, in bytes.
        offset: u64,
        /// Length in bytes, never 0.
        len: u32,
    },
    /// `NBD_REPLY_TYPE_BLOCK_STATUS`, or `NBD_REPLY_TYPE_BLOCK_STATUS_EXT` with extended headers.
    BlockStatus {
        /// The metadata context.
        context: u32,
        /// Consecutive extents from the request's offset; never empty.
        extents: &'a [Extent],
    },
    /// `NBD_REPLY_TYPE_ERROR`: the request failed.
    Error {
        /// Why.
        error: ErrorCode,
        /// A text for the client's user, may be empty.
        text: &'a str,
    },
    /// `NBD_REPLY_TYPE_ERROR_OFFSET`: the request failed there.
    ErrorOffset {
        /// Why.
        error: ErrorCode,
        /// A text for the client's user, may be empty.
        text: &'a str,
        /// Where, in bytes from the start of the export.
        offset: u64,
    },
}

impl Chunk<'_> {
    /// Appends the chunk for a request; `done` marks the last one.
    ///
    /// # Panics
    /// If a length that must not be 0 is, or there are more than [`MAX_EXTENTS`] extents.
    pub fn encode(&self, asked: Asked, done: bool, out: &mut Vec<u8>) {
        const DONE: u16 = 1;
        let extended = asked.extended.is_some();
        let (number, len) = self.number_and_len(extended);
        assert!(done || *self != Chunk::None, "a chunk without content is always the last one");
        let magic = if extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
        out.extend_from_slice(&magic.to_be_bytes());
        out.extend_from_slice(&(if done { DONE } else { 0 }).to_be_bytes());
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(&asked.cookie.to_be_bytes());
        match asked.extended {
            Some(offset) => {
                out.extend_from_slice(&offset.to_be_bytes());
                out.extend_from_slice(&u64::from(len).to_be_bytes());
            }
            None => out.extend_from_slice(&len.to_be_bytes()),
        }
        match *self {
            Chunk::None => {}
            Chunk::OffsetData { offset, .. } => out.extend_from_slice(&offset.to_be_bytes()),
            Chunk::OffsetHole { offset, len } => {
                out.extend_from_slice(&offset.to_be_bytes());
                out.extend_from_slice(&len.to_be_bytes());
            }
            Chunk::BlockStatus { context, extents } => {
                out.extend_from_slice(&context.to_be_bytes());
                if extended {
                    out.extend_from_slice(&(extents.len() as u32).to_be_bytes());
                }
                for extent in extents {
                    assert!(extent.len > 0, "an extent has a length");
                    if extended {
                        out.extend_from_slice(&u64::from(extent.len).to_be_bytes());
                        out.extend_from_slice(&u64::from(extent.flags).to_be_bytes());
                    } else {
                        out.extend_from_slice(&extent.len.to_be_bytes());
                        out.extend_from_slice(&extent.flags.to_be_bytes());
                    }
                }
            }
            Chunk::Error { error, text } => encode_error(error, text, out),
            Chunk::ErrorOffset { error, text, offset } => {
                encode_error(error, text, out);
                out.extend_from_slice(&offset.to_be_bytes());
            }
        }
    }

    /// The type on the wire and the length of everything behind the header.
    fn number_and_len(&self, extended: bool) -> (u16, u32) {
        const ERROR: u16 = 1 << 15;
        match *self {
            Chunk::None => (0, 0),
            Chunk::OffsetData { len, .. } => {
                assert!(len > 0, "a content chunk has content");
                (1, len + 8)
            }
            Chunk::OffsetHole { len, .. } => {
                assert!(len > 0, "a hole has a length");
                (2, 12)
            }
            Chunk::BlockStatus { extents, .. } => {
                assert!(!extents.is_empty() && extents.len() <= MAX_EXTENTS, "extent list length");
                let count = extents.len() as u32;
                if extended { (6, 8 + 16 * count) } else { (5, 4 + 8 * count) }
            }
            Chunk::Error { text, .. } => (ERROR | 1, 6 + limited(text).len() as u32),
            Chunk::ErrorOffset { text, .. } => (ERROR | 2, 14 + limited(text).len() as u32),
        }
    }
}

fn encode_error(error: ErrorCode, text: &str, out: &mut Vec<u8>) {
    let text = limited(text);
    out.extend_from_slice(&error.number().to_be_bytes());
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The header of a structured reply chunk, as a client reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkHeader {
    /// This is the last chunk of the reply.
    pub done: bool,
    /// The chunk's type; errors have bit 15 set.
    pub number: u16,
    /// The request's cookie.
    pub cookie: u64,
    /// Bytes behind the header.
    pub len: u32,
}

impl ChunkHeader {
    /// `None` if the magic is wrong.
    pub fn decode(bytes: &[u8; CHUNK_HEADER_LEN]) -> Option<ChunkHeader> {
        let mut r = Reader::new(bytes);
        (r.u32()? == STRUCTURED_REPLY_MAGIC).then_some(())?;
        Some(ChunkHeader {
            done: r.u16()? & 1 != 0,
            number: r.u16()?,
            cookie: r.u64()?,
            len: r.u32()?,
        })
    }
}
