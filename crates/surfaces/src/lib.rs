//! What operators and other programs see of the engine: they translate, and decide nothing.
//!
//! - [`cli`]: the commands of `ashlar`.
//! - [`drbdsetup`]: the program of that name, for drbdadm and others that run it.
//!
//! A surface reads configuration, talks to the engine over its control socket
//! (`codec::admin`), and prints. Rules about data live in `replication`, never here.
#![forbid(unsafe_code)]

pub mod cli;
pub mod drbdsetup;
