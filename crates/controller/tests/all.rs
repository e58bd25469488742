//! The tests of the controller with its neighbours: simulated agents, stores, clients of its REST interface. One
//! program, since each would be linked for itself.
//!
//! - `client`: python-linstor and schemathesis from PyPI. `served`: a controller that listens. `servers`:
//!   PostgreSQL and etcd. `simulated`: agents. `server`: a store that speaks S3.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "these are tests")]

mod client;
mod served;
#[path = "../../shipping/tests/server/mod.rs"]
mod server;
mod servers;
mod simulated;

mod agents;
mod backups;
mod cluster;
mod crash;
mod crossing;
mod https;
mod leader;
mod master;
mod metrics;
mod physical_storage;
mod python;
mod rest;
mod schemathesis;
mod tokens;
