//! The agent's end of the link to the controller: gRPC over mutual TLS (`api::wire`).
//!
//! - `identity`: the node's key and certificate, and whom it believes. `join`: how it gets them, and
//!   new ones before they end. `run`: the link itself, again and again.

mod identity;
mod join;
mod run;

pub use identity::{Identity, NoIdentity};
pub use join::{JoinError, join};
pub use run::{Talk, run};
