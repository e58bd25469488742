//! Keyslots: the key of the disk, spread over 4000 stripes so that a part of them that is erased takes the
//! key with it, and encrypted as sectors are.

use sha2::{Digest, Sha256};
use vocab::options::Secret;
use zeroize::Zeroizing;

use super::text::Keyslot;
use super::{Error, Read};
use crate::Random;
use crate::xts::{KEY, SectorCipher};

/// Stripes of a key.
pub const STRIPES: usize = 4000;

/// The key that a passphrase gets out of a keyslot: not that of the disk, if the passphrase is wrong.
pub fn unlock(
    read: Read<'_>,
    slot: &Keyslot,
    passphrase: &Secret,
) -> Result<Zeroizing<Vec<u8>>, Error> {
    let cipher = SectorCipher::new(&slot.kdf.derive(passphrase, &slot.salt)?, 512, 0)?;
    let mut stripes = Zeroizing::new(vec![0; KEY * STRIPES]);
    read(slot.area.offset, &mut stripes).map_err(Error::Read)?;
    cipher.decrypt(0, &mut stripes);
    let (others, last) = stripes.split_last_chunk::<KEY>().expect("there are stripes");
    let mut key = merged(others);
    mix(&mut key[..], last);
    Ok(Zeroizing::new(key.to_vec()))
}

/// Fills a keyslot.
pub fn lock(
    to: &mut [u8],
    slot: &Keyslot,
    passphrase: &Secret,
    key: &[u8],
    random: Random<'_>,
) -> Result<(), Error> {
    let cipher = SectorCipher::new(&slot.kdf.derive(passphrase, &slot.salt)?, 512, 0)?;
    let stripes = &mut to[..KEY * STRIPES];
    let (others, last) = stripes.split_at_mut(KEY * (STRIPES - 1));
    random(others);
    last.copy_from_slice(&merged(others)[..]);
    mix(last, key);
    cipher.encrypt(0, stripes);
    Ok(())
}

/// What stripes come to, one mixed into the other.
fn merged(stripes: &[u8]) -> Zeroizing<[u8; KEY]> {
    let mut key = Zeroizing::new([0; KEY]);
    for stripe in stripes.chunks_exact(KEY) {
        mix(&mut key[..], stripe);
        diffuse(&mut key);
    }
    key
}

fn mix(to: &mut [u8], other: &[u8]) {
    to.iter_mut().zip(other).for_each(|(to, other)| *to ^= other);
}

/// Every bit of a part depends on every other afterwards.
fn diffuse(key: &mut [u8; KEY]) {
    for (number, part) in key.chunks_mut(32).enumerate() {
        let digest = Sha256::new().chain_update((number as u32).to_be_bytes()).chain_update(&part);
        part.copy_from_slice(&digest.finalize());
    }
}
