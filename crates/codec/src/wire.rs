//! DRBD's replication protocol: packets as values, and their bytes.

pub mod packet;

pub use packet::*;
