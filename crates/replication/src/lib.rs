//! Placeholder.
pub mod activity_log;
pub mod bitmap;
pub mod generation;
pub mod intervals;
pub mod quorum;
pub mod rate;
