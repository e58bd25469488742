//! What a node does for the control plane: it carries out the steps of plans on the node's engine
//! and storage pools, and reports what is there.
//!
//! - [`daemon`]: the process. [`link`]: how it talks with the controller. `work`: what is done when.
//! - [`carry`]: each step. [`record`]: what was begun and made, durably. `report`: what is said of it.
//! - [`engine`]: the engine's control socket. `configure`: its words. `metadata`: how data begin, grow.
//! - [`storage`]: pools and volumes, whatever they are made of. [`pools`]: those of this node.
//! - [`disks`]: those that nobody uses. [`device_pool`]: pools that are made of them.
//! - [`mapper`]: encrypted volumes that the kernel decrypts.
//! - `questions`: what is asked outside of plans. [`command`]: how other programs are run.
#![forbid(unsafe_code)]

pub mod carry;
pub mod command;
mod configure;
pub mod daemon;
pub mod device_pool;
pub mod disks;
pub mod engine;
pub mod failed;
mod files;
pub mod link;
pub mod mapper;
mod metadata;
pub mod pools;
mod questions;
pub mod record;
mod report;
pub mod ship;
pub mod storage;
mod work;
