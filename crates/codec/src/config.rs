//! DRBD's configuration text: from files to one node's view of its resources.
//!
//! Three steps, each in its own module:
//!
//! 1. `lexer` and `parse` turn text into an [`ast`](Config): what the files say, with the place of
//!    every statement. Values are checked against the option tables here, whichever host they are
//!    for.
//! 2. `resolve` takes the place of one host: inheritance, implied connections, addresses, and the
//!    rules that span sections ([`Config::resolve`]).
//! 3. [`model`] is the result: plain data that the command line hands to the engine.
//!
//! The crate is pure, so files come from a loader the caller gives ([`parse`]). Grammar and rules:
//! drbdsetup contract §6. Proxy and stacked resources are refused as unsupported.
//!
//! Differences from drbdadm, all on the strict side: an option stated twice in one section is an
//! error rather than a guess, as is a handler that does not exist, and `node-id` is always
//! required (drbdadm derives it from the addresses of two-host files in the style of DRBD 8).

mod ast;
mod error;
mod lexer;
pub mod model;
mod parse;
mod resolve;
#[cfg(test)]
mod tests;

pub use ast::Config;
pub use error::{Cause, Error, Place};
pub use model::{
    BackingConfig, Handlers, MetaDisk, PathConfig, PeerConfig, PeerVolumeConfig, ResourceConfig,
    VolumeConfig,
};
pub use parse::{Loader, SourceFile, parse};
pub use resolve::{Host, Resolved};

/// Files that drbdadm looks for, in this order; the first that exists is the configuration.
pub const DEFAULT_FILES: &[&str] = &[
    "/etc/drbd-90.conf",
    "/etc/drbd-84.conf",
    "/etc/drbd-83.conf",
    "/etc/drbd-82.conf",
    "/etc/drbd-08.conf",
    "/etc/drbd.conf",
];
