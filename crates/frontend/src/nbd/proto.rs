//! The NBD protocol as values: numbers, flags and limits; negotiation in [`option`], the
//! transmission phase in [`transfer`].
//!
//! Source: the NBD protocol document (`doc/proto.md` of the NBD project, public domain), cited by
//! section name. Every integer is big-endian. Decoding never panics, never reads past the slice
//! it is given and allocates nothing; what is malformed becomes a value that says how to answer.
//! Clients negotiate in the fixed newstyle only: the oldstyle handshake can not name an export. It
//! begins the connections that the engine makes itself, where there is nothing to name.

pub mod option;
pub mod transfer;

/// First eight bytes of a connection, `NBDMAGIC` ("Newstyle negotiation").
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// The second half of the greeting of a server that negotiates nothing ("Oldstyle negotiation").
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Length of that greeting: both magics, size, flags, and 124 zero bytes.
pub const OLDSTYLE_GREETING_LEN: usize = 152;
/// Begins the second half of the greeting and every option, `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins every reply to an option ("Fixed newstyle negotiation").
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins every request ("Request message").
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins a simple reply ("Simple reply message").
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins a structured reply chunk ("Structured reply chunk message").
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Begins every extended request (extension "EXTENDED_HEADERS").
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Begins every extended reply chunk (the same).
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Longest option data accepted, in bytes. The longest meaningful option is a name of
/// [`MAX_NAME_LEN`] and a few queries; more is a denial of service and ends the connection.
pub const MAX_OPTION_LEN: u32 = 64 << 10;
/// Longest string (name, query, error text), in bytes ("Conventions").
pub const MAX_NAME_LEN: usize = 4096;
/// Longest payload of one request in either direction, in bytes ("Size constraints": clients may
/// send 2^25 without asking).
pub const MAX_PAYLOAD: u32 = 32 << 20;
/// The largest minimum block size that may be advertised, in bytes ("Size constraints").
pub const MAX_MIN_BLOCK: u32 = 64 << 10;
/// Zero bytes behind the reply to `NBD_OPT_EXPORT_NAME` unless both sides agreed to omit them.
pub const EXPORT_NAME_PADDING: usize = 124;

/// `NBD_FLAG_FIXED_NEWSTYLE`, a handshake flag; the client answers with the same bit.
pub const HANDSHAKE_FIXED_NEWSTYLE: u16 = 1 << 0;
/// `NBD_FLAG_NO_ZEROES`, a handshake flag; the client answers with the same bit.
pub const HANDSHAKE_NO_ZEROES: u16 = 1 << 1;

/// A set of bits with the names of one flag field of the protocol.
macro_rules! flags {
    ($(#[$meta:meta])* $name:ident { $($(#[$bit_meta:meta])* $flag:ident = $bit:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
        pub struct $name(pub u16);

        impl $name {
            $($(#[$bit_meta])* pub const $flag: $name = $name(1 << $bit);)+

            /// No flag at all.
            pub const NONE: $name = $name(0);

            /// True if every bit of `other` is set here.
            pub const fn contains(self, other: $name) -> bool {
                self.0 & other.0 == other.0
            }

            /// Both sets together.
            pub const fn with(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }

            /// `other` added if `on`.
            pub const fn with_if(self, other: $name, on: bool) -> $name {
                if on { self.with(other) } else { self }
            }

            /// The bits that are not in `other`.
            pub const fn without(self, other: $name) -> $name {
                $name(self.0 & !other.0)
            }
        }
    };
}

flags! {
    /// "Transmission flags": what the client may do with the export.
    TransmissionFlags {
        /// `NBD_FLAG_HAS_FLAGS`: always set.
        HAS_FLAGS = 0;
        /// `NBD_FLAG_READ_ONLY`: writes will be refused.
        READ_ONLY = 1;
        /// `NBD_FLAG_SEND_FLUSH`: flush is understood.
        SEND_FLUSH = 2;
        /// `NBD_FLAG_SEND_FUA`: the FUA flag is understood.
        SEND_FUA = 3;
        /// `NBD_FLAG_ROTATIONAL`: seeks are slow.
        ROTATIONAL = 4;
        /// `NBD_FLAG_SEND_TRIM`: trim is understood.
        SEND_TRIM = 5;
        /// `NBD_FLAG_SEND_WRITE_ZEROES`: write zeroes is understood, with the no-hole flag.
        SEND_WRITE_ZEROES = 6;
        /// `NBD_FLAG_SEND_DF`: reads may ask for one chunk; only with structured replies.
        SEND_DF = 7;
        /// `NBD_FLAG_CAN_MULTI_CONN`: a flush on one connection covers all of them.
        CAN_MULTI_CONN = 8;
        /// `NBD_FLAG_SEND_RESIZE` (experimental, never sent).
        SEND_RESIZE = 9;
        /// `NBD_FLAG_SEND_CACHE` (never sent).
        SEND_CACHE = 10;
        /// `NBD_FLAG_SEND_FAST_ZERO`: write zeroes may ask to be fast or fail.
        SEND_FAST_ZERO = 11;
    }
}

flags! {
    /// "Command flags" of one request.
    CommandFlags {
        /// `NBD_CMD_FLAG_FUA`: reply only once the data is on stable storage.
        FUA = 0;
        /// `NBD_CMD_FLAG_NO_HOLE`: write zeroes must leave the range allocated.
        NO_HOLE = 1;
        /// `NBD_CMD_FLAG_DF`: answer a read with one content chunk.
        DF = 2;
        /// `NBD_CMD_FLAG_REQ_ONE`: one extent per context is enough.
        REQ_ONE = 3;
        /// `NBD_CMD_FLAG_FAST_ZERO`: zero faster than writing would, or fail.
        FAST_ZERO = 4;
        /// `NBD_CMD_FLAG_PAYLOAD_LEN`: the length is that of a payload; only in extended requests.
        PAYLOAD_LEN = 5;
    }
}

/// "Error values": the only numbers an error field may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ErrorCode {
    /// `NBD_EPERM`: a write to a read-only export.
    Perm,
    /// `NBD_EIO`: the device failed.
    Io,
    /// `NBD_ENOMEM`: no memory for the request.
    NoMem,
    /// `NBD_EINVAL`: the request makes no sense, or reads past the end.
    Inval,
    /// `NBD_ENOSPC`: a write past the end, or the device is full.
    NoSpc,
    /// `NBD_EOVERFLOW`: the reply would be too large.
    Overflow,
    /// `NBD_ENOTSUP`: a fast zero that would not be fast.
    NotSup,
    /// `NBD_ESHUTDOWN`: the server is going away.
    Shutdown,
}

impl ErrorCode {
    /// Every code.
    pub const ALL: [ErrorCode; 8] = [
        ErrorCode::Perm,
        ErrorCode::Io,
        ErrorCode::NoMem,
        ErrorCode::Inval,
        ErrorCode::NoSpc,
        ErrorCode::Overflow,
        ErrorCode::NotSup,
        ErrorCode::Shutdown,
    ];

    /// The number on the wire.
    pub const fn number(self) -> u32 {
        match self {
            ErrorCode::Perm => 1,
            ErrorCode::Io => 5,
            ErrorCode::NoMem => 12,
            ErrorCode::Inval => 22,
            ErrorCode::NoSpc => 28,
            ErrorCode::Overflow => 75,
            ErrorCode::NotSup => 95,
            ErrorCode::Shutdown => 108,
        }
    }
}

/// Reads big-endian fields from the front of a slice; every read past the end is `None`.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

#[cfg(test)]
pub(crate) mod tests;
