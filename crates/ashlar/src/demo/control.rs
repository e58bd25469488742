//! `ashlar demo --cluster`: a control plane on one machine, with or without root.
//!
//! - `story`: what happens, step by step; `summary`: what it comes to.
//! - `plane`: the processes, a controller and the engine and agent of three nodes, and the operator's
//!   commands that drive them.
//! - `network`: where the nodes are; `pools`: where they keep their volumes.
//! - `observe`: what the commands say of nodes and volumes.

mod network;
mod observe;
mod plane;
mod pools;
mod story;
mod summary;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use story::{STEPS, tell};
pub use summary::Summary;

/// Returns when a signal asks for the end.
pub fn linger(interrupted: &AtomicBool) {
    while !interrupted.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100));
    }
}
