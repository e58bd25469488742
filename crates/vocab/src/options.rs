//! Placeholder, replaced by the option table.
