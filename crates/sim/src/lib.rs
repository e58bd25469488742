//! Deterministic simulator of the replication core and the checkers that watch it.
//!
//! A run is a [`World`](world): nodes that drive the very same `replication::Resource` as the
//! engine does, simulated disks and a simulated network between them, clients that read and
//! write, and faults. One seed decides everything that happens in it, so a failing run is
//! repeated by its number.
#![forbid(unsafe_code)]

mod blank;
mod check;
mod client;
pub mod cluster;
pub mod content;
pub mod disk;
mod handlers;
pub mod history;
mod inject;
mod liar;
pub mod net;
pub mod node;
mod operator;
mod order;
pub mod plan;
mod queue;
pub mod rng;
pub mod run;
pub mod scenario;
mod sizes;
mod swap;
pub mod trace;
pub mod view;
mod volumes;
pub mod watch;
pub mod world;

pub use client::Op;
pub use operator::Phase;
pub use world::{Stats, Violation, World};
