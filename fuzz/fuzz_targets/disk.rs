//! Arbitrary bytes as superblocks, activity logs and dumps (`codec::disk`).
//!
//! The first byte of the input chooses which. The properties are those of the smoke test that
//! runs on stable Rust.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/codec/tests/properties/disk.rs"]
mod properties;

fuzz_target!(|input: &[u8]| properties::any(input));
