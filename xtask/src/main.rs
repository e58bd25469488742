//! Automation in Rust: `cargo xtask <command>`.

fn main() {}
