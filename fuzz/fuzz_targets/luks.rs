//! The beginning of a disk that may have a LUKS2 header: whatever is there is read or refused, and reading stays
//! within what is there.
#![no_main]

use crypt::luks;
use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};

const COPY: usize = 16 << 10;
const BINARY: usize = 4096;

/// A copy of a header with this text, as far as it fits.
fn with_text(text: &[u8]) -> Vec<u8> {
    let mut copy = vec![0; COPY];
    copy[..8].copy_from_slice(b"LUKS\xba\xbe\0\x02");
    copy[8..16].copy_from_slice(&(COPY as u64).to_be_bytes());
    copy[72..78].copy_from_slice(b"sha256");
    let len = text.len().min(COPY - BINARY);
    copy[BINARY..BINARY + len].copy_from_slice(&text[..len]);
    let sum = Sha256::digest(&copy);
    copy[448..480].copy_from_slice(&sum);
    copy
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    // Noise seldom has a checksum: half of the inputs are the text behind one.
    let image = if kind % 2 == 0 { data.to_vec() } else { with_text(data) };
    let mut read = |at: u64, to: &mut [u8]| {
        let from = usize::try_from(at).ok().and_then(|at| image.get(at..)?.get(..to.len()));
        to.copy_from_slice(from.ok_or("beyond the end")?);
        Ok(())
    };
    let _ = luks::exists(&mut read);
});
