//! The end-to-end tests, one module for each subject: a program for each would be linked for itself. `cargo xtask
//! test` runs each module in a process of its own.
//!
//! - `engine_support`: nodes with engines. `control_support`: with controllers and agents, too. `nbd_support`: exports
//!   without a node. Others belong to other packages' tests.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "these are tests")]

#[path = "../../crates/controller/tests/client/mod.rs"]
mod client;
mod control_support;
mod engine_support;
mod nbd_support;
#[path = "../../crates/shipping/tests/server/mod.rs"]
mod server;
#[path = "../../crates/controller/tests/servers/mod.rs"]
mod servers;
#[path = "../../crates/frontend/src/vhost/tests/client.rs"]
mod vhost_client;

mod cli_cluster;
mod cluster_demo;
mod control_plane;
mod controller;
mod controller_access;
mod controller_failover;
mod crossing;
mod demo;
mod drbdadm;
mod drbdmeta;
mod encrypted;
mod engine_activity_log;
mod engine_auth;
mod engine_chaos;
mod engine_clients;
mod engine_congestion;
mod engine_control;
mod engine_csums;
mod engine_doctor;
mod engine_handlers;
mod engine_integrity;
mod engine_map;
mod engine_map_fuse;
mod engine_nbd_tls;
mod engine_paths;
mod engine_replication;
mod engine_resize;
mod engine_restart;
mod engine_resync_order;
mod engine_scale;
mod engine_statistics;
mod engine_tls;
mod engine_two_primaries;
mod engine_upgrade;
mod engine_vhost;
mod link;
mod luks;
mod moving;
mod nbd_clients;
mod shipping;
mod skew;
