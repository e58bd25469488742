//! Placeholder header, replaced by the crate's first commit.
