//! Placeholder.
pub mod intervals;
pub mod quorum;
pub mod rate;
