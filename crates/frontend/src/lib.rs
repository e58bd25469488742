//! Front ends: each turns one client protocol into requests to a [`runtime::Target`].
//!
//! A front end knows nothing of replication; it is tested against a target in memory and a
//! faulty one.

pub mod cache;
pub mod loopdev;
pub mod nbd;
pub mod nbddev;
pub mod ublk;
pub mod vhost;
