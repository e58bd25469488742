//! The controller of a cluster.
#![forbid(unsafe_code)]

pub mod link;
