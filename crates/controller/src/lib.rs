//! The control plane's daemon: it keeps what is wanted of a cluster, and has agents make it so.
#![forbid(unsafe_code)]

pub mod access;
mod calls;
pub mod daemon;
mod errands;
mod export;
mod files;
pub mod handle;
mod keys;
mod leader;
pub mod link;
mod log;
mod owner;
mod questions;
pub mod rest;
pub mod store;
pub mod tls;

pub use handle::{Handle, start};
