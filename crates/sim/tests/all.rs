//! The scenarios, one module for each subject: a program for each would be linked for itself.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "these are tests")]

mod authentication;
mod basics;
mod cluster;
mod cluster_life;
mod confirmations;
mod congestion;
mod csums;
mod diskless;
mod disks;
mod ends;
mod epochs;
mod fencing;
mod frozen;
mod generations;
mod handshakes;
mod hung_disks;
mod integrity;
mod joint;
mod legacy;
mod lost_cache;
mod members;
mod old_metadata;
mod order;
mod pace;
mod plain_requests;
mod policies;
mod protocol_a;
mod quorum;
mod reconciliation;
mod resize;
mod resync;
mod roles;
mod seeds;
mod sources;
mod swap;
mod verify;
mod volumes;
mod votes;
