//! The state machine of one replicated resource: inputs in, outputs out.
//!
//! Pure and deterministic: time, randomness and completions come in as inputs, effects go out as
//! outputs (see [`io`]). The simulator and the engine drive the very same code.
#![forbid(unsafe_code)]

pub mod activity_log;
mod admin;
mod attach;
pub mod auth;
pub mod bitmap;
mod bound;
mod bump;
mod compare;
pub mod config;
mod congestion;
mod disk_timeout;
mod epoch;
mod exposed;
mod fencing;
pub mod frozen;
mod gather;
mod gathered;
pub mod generation;
mod handlers;
mod handshake;
mod integrity;
pub mod intervals;
pub mod io;
mod jobs;
mod joint;
mod legacy;
mod loss;
mod members;
mod meta;
mod open;
mod order;
mod packets;
mod pair_metadata;
mod parting;
mod peer_ack;
mod peer_device;
mod peer_uuids;
mod peers_in_sync;
mod pings;
mod plain;
pub mod quorum;
pub mod rate;
mod read;
mod receive;
mod request;
mod resize;
mod resource;
mod resync;
mod rng;
mod sizes;
mod slab;
mod state;
mod status;
mod tell;
#[cfg(test)]
mod testing;
mod transition;
mod twopc;
mod verify;
mod volumes;

pub use io::{Input, Output};
pub use order::{ResyncCycle, ResyncOrder};
pub use resource::Resource;
