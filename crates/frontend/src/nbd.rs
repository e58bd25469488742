//! NBD server: exports targets to the clients of the public NBD protocol.
//!
//! * [`proto`]: the protocol's messages as values.
//! * [`handshake`], [`session`]: one connection before and after it has chosen an export; state
//!   machines without I/O.
//! * [`securing`], `shared_keys`: what comes before an encrypted connection.
//! * [`server`]: listeners and clients on a ring, over targets.
//!
//! Served: fixed newstyle negotiation, structured replies, extended headers, block status, FUA, flush, trim,
//! write zeroes, multi-conn. Not served here: TLS itself, cache, resize, fast zero.
//!
//! An export's size is fixed for the life of a connection: a client that is connected while the
//! target changes its size keeps the old one, new connections see the new one. (The protocol has
//! no message for it.)

use std::fmt;

use runtime::TargetInfo;

pub mod handshake;
pub mod proto;
pub mod securing;
pub mod server;
pub mod session;
#[cfg(feature = "shared-keys")]
pub mod shared_keys;

/// The exports a client may ask for by name.
pub trait Catalogue {
    /// Calls `each` with name and description of every export to be listed.
    fn list(&self, each: &mut dyn FnMut(&str, &str));

    /// True if an export of that name can be asked for; the empty name means the default one.
    fn knows(&self, name: &str) -> bool;
}

/// An export that is open, as the client gets to know it.
#[derive(Clone, Copy, Debug)]
pub struct ExportInfo<'a> {
    /// The export's own name.
    pub name: &'a str,
    /// For humans; may be empty.
    pub description: &'a str,
    /// The open target.
    pub target: TargetInfo,
    /// The client may only read, whatever the target can do.
    pub read_only: bool,
}

impl ExportInfo<'_> {
    /// Size in bytes; a last partial block can not be reached and is left out.
    pub fn size(&self) -> u64 {
        self.target.size.0 - self.target.size.0 % u64::from(self.target.block_size_min)
    }

    /// True if writes will be refused.
    pub const fn is_read_only(&self) -> bool {
        self.read_only || self.target.read_only
    }
}

/// A client broke the protocol in a way that has no reply: the connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// The client's flags have a bit this server did not offer.
    ClientFlags,
    /// An option does not begin with its magic.
    OptionMagic,
    /// An option announces that many bytes of data.
    OptionTooLong(u32),
    /// The client haggles without end.
    TooManyOptions,
    /// The export can not be had, and `NBD_OPT_EXPORT_NAME` knows no error reply.
    ExportNameRefused,
    /// More was sent before an export was opened on another thread.
    AheadOfReply,
    /// A request does not begin with its magic.
    RequestMagic,
    /// A request announces a payload of that many bytes.
    PayloadTooLong(u64),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::ClientFlags => f.write_str("the client set a flag that was not offered"),
            Violation::OptionMagic => f.write_str("an option without its magic"),
            Violation::OptionTooLong(len) => write!(f, "an option of {len} bytes"),
            Violation::TooManyOptions => f.write_str("too many options without choosing an export"),
            Violation::ExportNameRefused => {
                f.write_str("NBD_OPT_EXPORT_NAME for an export that can not be had")
            }
            Violation::AheadOfReply => f.write_str("an option before the last one was answered"),
            Violation::RequestMagic => f.write_str("a request without its magic"),
            Violation::PayloadTooLong(len) => write!(f, "a request with a payload of {len} bytes"),
        }
    }
}

impl std::error::Error for Violation {}
