//! The data of a volume as a stream.
//!
//! ```text
//! 64 bytes, little-endian: magic (8), version (2), kind (1), 0 (5), size of the volume (8),
//!                          which archive it is (16), on which it builds (16), 0 (4), CRC-32C of these 60 (4)
//! one zstd frame of pieces, in the order of their offsets, none of which overlap:
//!   'D' offset (8) length (4) CRC-32C (4) data     has these data
//!   'Z' offset (8) length (8) CRC-32C (4)          reads as zeroes; in incremental ones only
//!   'E' pieces (8) SHA-256 (32)                    the end: of everything before it, header included
//! ```
//!
//! What no piece covers is zero in a full archive, and as in the base in an incremental one. The CRC of a
//! piece is of everything else in it, and is looked at before its data are given to anybody; the digest is
//! looked at last: who has written the data of a piece somewhere by then has to throw it away if it is
//! wrong.

use std::fmt;
use std::io::{self, Read, Write};

use sha2::{Digest, Sha256};

/// Begins every archive.
const MAGIC: [u8; 8] = *b"ASHLARBK";
/// The version that is written, and the only one that is read.
pub const VERSION: u16 = 1;
/// Bytes of the header.
const HEADER: usize = 64;
/// Most data of one piece, in bytes: a reader needs so much memory.
pub const PIECE: usize = 1 << 20;
/// How hard it is tried to make the data smaller: zstd's own default, which keeps up with disks.
const LEVEL: i32 = 3;

/// Tells archives apart: a part of the digest of what the backup and the volume are called. So an object
/// that was renamed, or put in the place of another, is not taken for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Identity([u8; 16]);

impl Identity {
    /// That of a volume's archive in a backup.
    pub fn new(backup: &str, volume: u16) -> Identity {
        let digest = Sha256::digest(format!("{backup}/{volume:05}"));
        let mut identity = [0; 16];
        identity.copy_from_slice(&digest[..16]);
        Identity(identity)
    }
}

/// What an archive says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Size of the volume in bytes.
    pub size: u64,
    /// Which one it is.
    pub own: Identity,
    /// On which one it builds, if it is incremental.
    pub base: Option<Identity>,
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = u8::from(self.base.is_some());
        bytes[16..24].copy_from_slice(&self.size.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.own.0);
        bytes[40..56].copy_from_slice(&self.base.unwrap_or_default().0);
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; HEADER]) -> Result<Header, Unreadable> {
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if bytes[..8] != MAGIC {
            return Err(Unreadable::Foreign);
        }
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        if crc32c::crc32c(&bytes[..60]) != number(&bytes[60..]) as u32 {
            return Err(Unreadable::Damaged("the checksum of its header is wrong"));
        }
        let identity = |at: usize| {
            let mut identity = [0; 16];
            identity.copy_from_slice(&bytes[at..at + 16]);
            Identity(identity)
        };
        let base = match bytes[10] {
            0 => None,
            1 => Some(identity(40)),
            _ => return Err(Unreadable::Damaged("it is of no kind that is known")),
        };
        Ok(Header { size: number(&bytes[16..24]), own: identity(24), base })
    }
}

/// A little-endian number of at most eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Why an archive is not taken.
#[derive(Debug)]
pub enum Unreadable {
    /// It is not one of ours.
    Foreign,
    /// It is of another version.
    Version(u16),
    /// It is another one than was meant.
    Another(&'static str),
    /// Something in it is wrong.
    Damaged(&'static str),
    /// It can not be read.
    Io(io::Error),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::Foreign => write!(f, "it is not an archive of Ashlar"),
            Unreadable::Version(version) => {
                write!(f, "it is of version {version} of the format, and {VERSION} is understood")
            }
            Unreadable::Another(why) => write!(f, "it is another archive than it is called: {why}"),
            Unreadable::Damaged(why) => write!(f, "it is damaged: {why}"),
            Unreadable::Io(error) => write!(f, "it can not be read: {error}"),
        }
    }
}

impl std::error::Error for Unreadable {}

/// Writes an archive.
pub struct Writer<W: Write> {
    to: zstd::stream::write::Encoder<'static, W>,
    header: Header,
    digest: Sha256,
    pieces: u64,
    /// Where the last piece ends.
    end: u64,
}

impl<W: Write> Writer<W> {
    /// Begins one.
    ///
    /// # Errors
    /// If it can not be written.
    pub fn new(mut to: W, header: Header) -> io::Result<Writer<W>> {
        let bytes = header.to_bytes();
        to.write_all(&bytes)?;
        let mut to = zstd::stream::write::Encoder::new(to, LEVEL)?;
        to.include_checksum(true)?;
        let digest = Sha256::new_with_prefix(bytes);
        Ok(Writer { to, header, digest, pieces: 0, end: 0 })
    }

    /// Adds data.
    ///
    /// # Errors
    /// If they can not be written, overlap with what is there, or are more than [`PIECE`].
    pub fn data(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        if data.len() > PIECE {
            return Err(invalid("a piece is too large"));
        }
        self.advance(offset, data.len() as u64)?;
        let mut head = [0; 13];
        head[0] = b'D';
        head[1..9].copy_from_slice(&offset.to_le_bytes());
        head[9..13].copy_from_slice(&(data.len() as u32).to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head), data);
        self.put(&head)?;
        self.put(&crc.to_le_bytes())?;
        self.put(data)
    }

    /// Adds a range that reads as zeroes and did not in the base.
    ///
    /// # Errors
    /// As for [`Writer::data`], or if the archive is a full one.
    pub fn zeroes(&mut self, offset: u64, length: u64) -> io::Result<()> {
        if self.header.base.is_none() {
            return Err(invalid("a full archive has no zeroes"));
        }
        self.advance(offset, length)?;
        let mut head = [0; 17];
        head[0] = b'Z';
        head[1..9].copy_from_slice(&offset.to_le_bytes());
        head[9..17].copy_from_slice(&length.to_le_bytes());
        self.put(&head)?;
        self.put(&crc32c::crc32c(&head).to_le_bytes())
    }

    /// Ends it.
    ///
    /// # Errors
    /// If that can not be written.
    pub fn finish(mut self) -> io::Result<W> {
        let mut end = [0; 9];
        end[0] = b'E';
        end[1..].copy_from_slice(&self.pieces.to_le_bytes());
        self.put(&end)?;
        let digest = self.digest.finalize();
        self.to.write_all(&digest)?;
        self.to.finish()
    }

    fn advance(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let end = offset.checked_add(length).filter(|end| *end <= self.header.size);
        let (Some(end), true) = (end, length != 0 && offset >= self.end) else {
            return Err(invalid("pieces are in order and within the volume"));
        };
        self.end = end;
        self.pieces += 1;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(bytes);
        self.to.write_all(bytes)
    }
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// A piece of an archive.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Data.
    Data {
        /// Where they begin, in bytes.
        offset: u64,
        /// They are not empty.
        data: &'a [u8],
    },
    /// A range that reads as zeroes.
    Zeroes {
        /// Where it begins, in bytes.
        offset: u64,
        /// Its bytes, at least one.
        length: u64,
    },
}

/// Reads an archive. Whatever it is given it neither panics nor takes more memory than a piece needs.
pub struct Reader<R: Read> {
    from: zstd::stream::read::Decoder<'static, io::BufReader<R>>,
    header: Header,
    digest: Sha256,
    buffer: Vec<u8>,
    pieces: u64,
    end: u64,
    done: bool,
}

impl<R: Read> Reader<R> {
    /// Begins with the one that is called so.
    ///
    /// # Errors
    /// If it is not that one.
    pub fn new(
        mut from: R,
        own: Identity,
        base: Option<Identity>,
    ) -> Result<Reader<R>, Unreadable> {
        let mut bytes = [0; HEADER];
        from.read_exact(&mut bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Unreadable::Foreign,
            _ => Unreadable::Io(error),
        })?;
        let header = Header::from_bytes(&bytes)?;
        if header.own != own {
            return Err(Unreadable::Another("it belongs to another backup or volume"));
        }
        if header.base != base {
            return Err(Unreadable::Another("it builds on another backup than is said"));
        }
        let from = zstd::stream::read::Decoder::new(from).map_err(Unreadable::Io)?;
        let digest = Sha256::new_with_prefix(bytes);
        let buffer = Vec::new();
        // What follows the frame must not be taken for a second one.
        let from = from.single_frame();
        Ok(Reader { from, header, digest, buffer, pieces: 0, end: 0, done: false })
    }

    /// What it says of itself.
    pub fn header(&self) -> Header {
        self.header
    }

    /// The next piece. None is there once, at the end, if everything is right.
    ///
    /// # Errors
    /// If the archive is damaged or can not be read.
    pub fn next_piece(&mut self) -> Result<Option<Piece<'_>>, Unreadable> {
        if self.done {
            return Ok(None);
        }
        let mut head = [0; 17];
        self.take(&mut head[..9])?;
        let offset = number(&head[1..9]);
        match head[0] {
            b'D' => {
                self.take(&mut head[9..13])?;
                let length = number(&head[9..13]) as usize;
                if length > PIECE {
                    return Err(Unreadable::Damaged("a piece is too large"));
                }
                self.advance(offset, length as u64)?;
                let mut crc = [0; 4];
                self.take(&mut crc)?;
                let mut data = std::mem::take(&mut self.buffer);
                data.resize(length, 0);
                let taken = self.take(&mut data);
                self.buffer = data;
                taken?;
                let found = crc32c::crc32c_append(crc32c::crc32c(&head[..13]), &self.buffer);
                if found != u32::from_le_bytes(crc) {
                    return Err(Unreadable::Damaged("the checksum of a piece is wrong"));
                }
                Ok(Some(Piece::Data { offset, data: &self.buffer }))
            }
            b'Z' if self.header.base.is_some() => {
                self.take(&mut head[9..17])?;
                let length = number(&head[9..17]);
                self.advance(offset, length)?;
                let mut crc = [0; 4];
                self.take(&mut crc)?;
                if crc32c::crc32c(&head) != u32::from_le_bytes(crc) {
                    return Err(Unreadable::Damaged("the checksum of a piece is wrong"));
                }
                Ok(Some(Piece::Zeroes { offset, length }))
            }
            b'E' => {
                self.finish(offset)?;
                Ok(None)
            }
            _ => Err(Unreadable::Damaged("a piece is of no kind that is known")),
        }
    }

    fn finish(&mut self, pieces: u64) -> Result<(), Unreadable> {
        let own = std::mem::take(&mut self.digest).finalize();
        let mut digest = [0; 32];
        self.read(&mut digest)?;
        if pieces != self.pieces || digest[..] != own[..] {
            return Err(Unreadable::Damaged("the digest of all of it is wrong"));
        }
        let more = self.from.read(&mut [0]).map_err(judged)?;
        let behind = self.from.get_mut().read(&mut [0]).map_err(Unreadable::Io)?;
        if more != 0 || behind != 0 {
            return Err(Unreadable::Damaged("there is something behind its end"));
        }
        self.done = true;
        Ok(())
    }

    fn advance(&mut self, offset: u64, length: u64) -> Result<(), Unreadable> {
        let end = offset.checked_add(length).filter(|end| *end <= self.header.size);
        let (Some(end), true) = (end, length != 0 && offset >= self.end) else {
            return Err(Unreadable::Damaged("a piece is outside of its place"));
        };
        self.end = end;
        self.pieces += 1;
        Ok(())
    }

    fn take(&mut self, to: &mut [u8]) -> Result<(), Unreadable> {
        self.read(to)?;
        self.digest.update(to);
        Ok(())
    }

    fn read(&mut self, to: &mut [u8]) -> Result<(), Unreadable> {
        self.from.read_exact(to).map_err(judged)
    }
}

/// What zstd does not understand was damaged; the rest is the source's.
fn judged(error: io::Error) -> Unreadable {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Unreadable::Damaged("it ends before its end"),
        _ if error.get_ref().is_some_and(|inner| inner.is::<crate::s3::Error>()) => {
            Unreadable::Io(error)
        }
        io::ErrorKind::Other => Unreadable::Damaged("it can not be decompressed"),
        _ => Unreadable::Io(error),
    }
}

#[cfg(test)]
mod tests;
