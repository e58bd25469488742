//! Encrypted disks. Pure: what is read comes in, what is to be written goes out, and chance is an argument.
//!
//! - [`xts`]: sectors, encrypted and decrypted where they lie.
//! - [`luks`]: the header before them, as cryptsetup makes and reads it; it says where they begin and
//!   gives their key to whoever has the passphrase.
//! - [`seal`]: what a cluster keeps of its volumes' passphrases, and the key above them.
//!
//! Keys are erased from memory when they are dropped, and never shown.
#![forbid(unsafe_code)]

pub mod luks;
pub mod seal;
pub mod xts;

/// Where salts and keys come from: fills a slice with random bytes.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]);
