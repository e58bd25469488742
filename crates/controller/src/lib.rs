//! The control plane's daemon: it keeps what is wanted of a cluster, and has agents make it so.
#![forbid(unsafe_code)]

pub mod daemon;
pub mod handle;
pub mod link;
mod log;
mod owner;
pub mod store;

pub use handle::{Handle, start};
