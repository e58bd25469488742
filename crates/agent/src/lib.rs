//! What a node does for the control plane: it makes, grows, copies and removes the backing volumes
//! of its storage pools.
//!
//! - [`storage`]: pools and volumes, whatever they are made of.
//! - [`command`]: how other programs are run.
#![forbid(unsafe_code)]

pub mod command;
pub mod storage;
