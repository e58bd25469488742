//! Chunks: how the bytes of one stream travel over several sockets (`load-balance-paths`; wire §1.3).
//!
//! Each socket carries chunks one after the other, and nothing else:
//!
//! ```text
//! sequence be32 | count be32 | count bytes of the stream
//! ```
//!
//! A stream is its chunks in the order of their sequence numbers, whatever sockets they come by: 1, 2, ... and
//! after 2^32 - 1 comes 0. The initial packet of a socket is a chunk, too, with sequence 0. It belongs to no
//! stream.

use std::fmt;

/// What stands before the bytes of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkHeader {
    /// Its place in the stream.
    pub sequence: u32,
    /// How many bytes of the stream follow. A kernel node whose send buffer is full sends chunks of none.
    pub bytes: u32,
}

impl ChunkHeader {
    /// Bytes of a header.
    pub const LEN: usize = 8;

    /// Most bytes of a chunk. Nodes send at most some small packets and a large one at a time, or a part of
    /// that; a packet has at most 1 MiB of data.
    pub const BYTES_MAX: u32 = 4 << 20;

    /// How far ahead of what was received a sequence number may be. That many chunks are never on their way, however
    /// small they are.
    pub const AHEAD_MAX: u32 = 1 << 24;

    /// That of an initial packet.
    pub const INITIAL: ChunkHeader = ChunkHeader { sequence: 0, bytes: 8 };

    /// As it travels.
    pub const fn to_bytes(self) -> [u8; ChunkHeader::LEN] {
        let ([a, b, c, d], [e, f, g, h]) = (self.sequence.to_be_bytes(), self.bytes.to_be_bytes());
        [a, b, c, d, e, f, g, h]
    }

    /// What travelled.
    pub const fn from_bytes([a, b, c, d, e, f, g, h]: [u8; ChunkHeader::LEN]) -> ChunkHeader {
        let (sequence, bytes) = ([a, b, c, d], [e, f, g, h]);
        ChunkHeader { sequence: u32::from_be_bytes(sequence), bytes: u32::from_be_bytes(bytes) }
    }

    /// By how many chunks this one is ahead of that which is `expected` next; 0 is that one.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub const fn ahead_of(self, expected: u32) -> Result<u32, ChunkError> {
        let ChunkHeader { sequence, bytes } = self;
        let ahead = sequence.wrapping_sub(expected);
        if bytes > ChunkHeader::BYTES_MAX {
            Err(ChunkError::TooLong { bytes })
        } else if ahead > u32::MAX / 2 {
            Err(ChunkError::Repeated { sequence, expected })
        } else if ahead > ChunkHeader::AHEAD_MAX {
            Err(ChunkError::TooFar { sequence, expected })
        } else {
            Ok(ahead)
        }
    }
}

/// Why bytes are no chunk of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkError {
    /// More bytes than a chunk has.
    TooLong {
        /// So many.
        bytes: u32,
    },
    /// A place in the stream for which there was a chunk already.
    Repeated {
        /// The place.
        sequence: u32,
        /// What comes next.
        expected: u32,
    },
    /// A place in the stream so far ahead that nobody can have come there.
    TooFar {
        /// The place.
        sequence: u32,
        /// What comes next.
        expected: u32,
    },
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChunkError::TooLong { bytes } => {
                let most = ChunkHeader::BYTES_MAX;
                write!(f, "a chunk of {bytes} bytes, and {most} are the most")
            }
            ChunkError::Repeated { sequence, expected } => {
                write!(f, "chunk {sequence} where {expected} comes next: it was there already")
            }
            ChunkError::TooFar { sequence, expected } => {
                write!(f, "chunk {sequence} where {expected} comes next: that is too far ahead")
            }
        }
    }
}

impl std::error::Error for ChunkError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_two_numbers_the_greater_digits_first() {
        let header = ChunkHeader { sequence: 0x0102_0304, bytes: 0x0a0b };
        assert_eq!(header.to_bytes(), [1, 2, 3, 4, 0, 0, 10, 11]);
        assert_eq!(ChunkHeader::from_bytes(header.to_bytes()), header);
        assert_eq!(ChunkHeader::INITIAL.to_bytes(), [0, 0, 0, 0, 0, 0, 0, 8]);
    }

    #[test]
    fn places_are_counted_beyond_the_greatest_number() {
        let at = |sequence| ChunkHeader { sequence, bytes: 1 };
        assert_eq!(at(7).ahead_of(7), Ok(0));
        assert_eq!(at(9).ahead_of(7), Ok(2));
        assert_eq!(at(0).ahead_of(u32::MAX), Ok(1));
        assert_eq!(at(5).ahead_of(u32::MAX), Ok(6));
        let repeated = |sequence, expected| Err(ChunkError::Repeated { sequence, expected });
        assert_eq!(at(6).ahead_of(7), repeated(6, 7));
        assert_eq!(at(u32::MAX).ahead_of(0), repeated(u32::MAX, 0));
        // Sequence 0 is that of initial packets, and not the first of a stream.
        assert_eq!(at(0).ahead_of(1), repeated(0, 1));
    }

    #[test]
    fn what_no_node_sends_is_refused_with_the_rule() {
        let far = ChunkHeader { sequence: 8 + ChunkHeader::AHEAD_MAX, bytes: 0 };
        assert_eq!(far.ahead_of(8), Ok(ChunkHeader::AHEAD_MAX));
        let error = far.ahead_of(7).unwrap_err().to_string();
        assert_eq!(error, "chunk 16777224 where 7 comes next: that is too far ahead");
        let long = ChunkHeader { sequence: 1, bytes: 1 + ChunkHeader::BYTES_MAX };
        let error = long.ahead_of(1).unwrap_err().to_string();
        assert_eq!(error, "a chunk of 4194305 bytes, and 4194304 are the most");
        // A packet's header where a chunk's belongs.
        let packet = ChunkHeader::from_bytes([0x83, 0x74, 0x02, 0x67, 0xff, 0xf2, 0, 0]);
        assert!(packet.ahead_of(1).is_err());
    }
}
