//! Why a peer's bytes are refused.

use std::fmt;

use super::command::Command;
use super::header::HeaderVersion;
use super::packet::Stream;

/// A peer's bytes broke a rule. The connection they came on cannot go on: drop it (wire §2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireError {
    /// No header begins with these bytes.
    Magic([u8; 4]),
    /// A header, but not of the version that this stream carries now.
    HeaderVersion {
        /// Stream it was found on.
        stream: Stream,
        /// Agreed protocol version, 0 before the features.
        agreed: u32,
        /// What was found.
        found: HeaderVersion,
    },
    /// The last four bytes of a version 100 header are not zero.
    HeaderPad(u32),
    /// A command number that means nothing.
    UnknownCommand {
        /// Stream it was found on.
        stream: Stream,
        /// The number.
        number: u16,
    },
    /// A command of the other stream.
    WrongStream {
        /// The command.
        command: Command,
        /// Stream it was found on.
        stream: Stream,
    },
    /// A command that the agreed version or features do not have.
    NotAgreed {
        /// The command.
        command: Command,
        /// Agreed protocol version.
        version: u32,
        /// Agreed feature flags.
        features: u32,
    },
    /// A packet about a volume names none (0xffff).
    NoVolume(Command),
    /// The payload is too short or too long for its layout or above the limit.
    Length {
        /// The command.
        command: Command,
        /// Payload bytes announced.
        len: u32,
        /// Shortest and longest allowed.
        allowed: (u32, u32),
    },
    /// A field holds what it must not.
    Field {
        /// The command.
        command: Command,
        /// The rule that is broken.
        rule: Rule,
        /// The offending value.
        value: u64,
    },
}

/// What a field must satisfy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Sizes are not zero.
    SizeNotZero,
    /// Sizes are multiples of 512 bytes.
    SizeInSectors,
    /// Sizes are within the limit for the packet.
    SizeLimit,
    /// Sector plus size can be counted in bytes.
    RangeCountable,
    /// Device sizes can be counted in bytes.
    DeviceSizeCountable,
    /// The dead write-same flag is not set.
    NoWriteSame,
    /// Every field of a state word has a defined number.
    StateDefined,
    /// Only node ids below 32 are in the mask of bitmap UUIDs.
    NodeIds,
    /// All UUIDs that the mask announces are there, and at most 32 history entries.
    UuidCount,
    /// The payload consists of whole 64-bit words.
    WholeWords,
    /// A name ends with a NUL.
    NameTerminated,
    /// The layout of a two-phase-commit request is the agreed one.
    TwoPcLayout,
    /// The encoding of a compressed bitmap is RLE with variable-length integers.
    BitmapEncoding,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::SizeNotZero => "its size is zero",
            Rule::SizeInSectors => "its size is no multiple of 512 bytes",
            Rule::SizeLimit => "its size is above the limit",
            Rule::RangeCountable => "its range ends beyond any device",
            Rule::DeviceSizeCountable => "its device size is beyond any device",
            Rule::NoWriteSame => "it asks for the withdrawn write-same",
            Rule::StateDefined => "its state word has undefined numbers",
            Rule::NodeIds => "its mask has node ids above 31",
            Rule::UuidCount => "its UUIDs are not as many as its mask says",
            Rule::WholeWords => "its length is no multiple of 8 bytes",
            Rule::NameTerminated => "a name in it has no end",
            Rule::TwoPcLayout => "its layout is not the agreed one",
            Rule::BitmapEncoding => "its bitmap encoding is unknown",
        })
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            WireError::Magic([a, b, c, d]) => {
                write!(f, "no packet header: the peer sent {a:02x}{b:02x}{c:02x}{d:02x}")
            }
            WireError::HeaderVersion { stream, agreed, found } => write!(
                f,
                "packet header of version {} on the {stream} stream at agreed protocol {agreed}",
                found.number()
            ),
            WireError::HeaderPad(pad) => write!(f, "packet header ends with {pad:#010x}, not 0"),
            WireError::UnknownCommand { stream, number } => {
                write!(f, "unknown command {number:#06x} on the {stream} stream")
            }
            WireError::WrongStream { command, stream } => {
                write!(f, "{command} on the {stream} stream")
            }
            WireError::NotAgreed { command, version, features } => write!(
                f,
                "{command} does not exist at agreed protocol {version} with features {features:#x}"
            ),
            WireError::NoVolume(command) => write!(f, "{command} names no volume"),
            WireError::Length { command, len, allowed: (min, max) } if min == max => {
                write!(f, "{command} has {len} bytes instead of {min}")
            }
            WireError::Length { command, len, allowed: (min, max) } => {
                write!(f, "{command} has {len} bytes, allowed are {min} to {max}")
            }
            WireError::Field { command, rule, value } => {
                write!(f, "{command} is refused: {rule} ({value:#x})")
            }
        }
    }
}

impl std::error::Error for WireError {}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stream::Data => "data",
            Stream::Control => "control",
        })
    }
}
