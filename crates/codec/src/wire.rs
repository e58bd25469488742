//! DRBD's replication protocol: packets as values, and their bytes.

pub mod packet;
mod state;

pub use packet::*;
pub use state::{Operation, Outdates};
