//! Bytes to types and back. Pure: no I/O, no clock, no allocation for headers.
#![forbid(unsafe_code)]

pub mod admin;
pub mod config;
pub mod disk;
pub mod frozen;
pub mod wire;
