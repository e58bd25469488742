//! From a passphrase to the key of a keyslot.

use argon2::{Algorithm, Argon2, Params, Version};
use pbkdf2::pbkdf2_hmac;
use sha2::{Sha256, Sha512};
use vocab::options::Secret;
use zeroize::Zeroizing;

use super::Error;
use crate::xts::KEY;

/// Most memory that a derivation may take, in KiB: what cryptsetup takes at most unless it is told otherwise.
const MEMORY_MAX: u32 = 1 << 20;
/// Most passes and rounds; more would keep a thread busy for minutes.
const PASSES_MAX: u32 = 1000;
const ROUNDS_MAX: u32 = 50_000_000;

/// How a key is derived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kdf {
    /// Argon2, version 1.3.
    Argon2 {
        /// The variant: `argon2id` or `argon2i`.
        variant: Argon2Variant,
        /// Passes over the memory.
        passes: u32,
        /// Memory in KiB.
        memory: u32,
        /// Lanes.
        lanes: u32,
    },
    /// PBKDF2.
    Pbkdf2 {
        /// Its digest.
        hash: Hash,
        /// Rounds.
        rounds: u32,
    },
}

/// A variant of Argon2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "by their names")]
pub enum Argon2Variant {
    Id,
    I,
}

/// A digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "by their names")]
pub enum Hash {
    Sha256,
    Sha512,
}

impl Kdf {
    /// What new disks get: the second recommendation of RFC 9106, for machines with little memory to spare.
    /// Passphrases of volumes are random as a rule, and need none of it; users may give others.
    pub const RECOMMENDED: Kdf =
        Kdf::Argon2 { variant: Argon2Variant::Id, passes: 3, memory: 64 << 10, lanes: 4 };

    /// Derives the key of a keyslot.
    pub(super) fn derive(
        self,
        passphrase: &Secret,
        salt: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let mut key = Zeroizing::new(vec![0; KEY]);
        self.derive_into(passphrase, salt, &mut key)?;
        Ok(key)
    }

    /// Fills `key` with what follows from a passphrase.
    pub(crate) fn derive_into(
        self,
        passphrase: &Secret,
        salt: &[u8],
        key: &mut [u8],
    ) -> Result<(), Error> {
        let passphrase = passphrase.expose().as_bytes();
        match self {
            Kdf::Argon2 { variant, passes, memory, lanes } => {
                let too_much = memory > MEMORY_MAX || passes > PASSES_MAX || lanes > 64;
                let params = Params::new(memory, passes, lanes, Some(key.len()));
                let (false, Ok(params)) = (too_much, params) else {
                    return Err(Error::unsupported(format!(
                        "argon2 with {passes} passes over {memory} KiB in {lanes} lanes"
                    )));
                };
                let variant = match variant {
                    Argon2Variant::Id => Algorithm::Argon2id,
                    Argon2Variant::I => Algorithm::Argon2i,
                };
                let argon2 = Argon2::new(variant, Version::V0x13, params);
                argon2.hash_password_into(passphrase, salt, key).map_err(|error| {
                    Error::unsupported(format!(
                        "argon2 with a salt of {} bytes: {error}",
                        salt.len()
                    ))
                })
            }
            Kdf::Pbkdf2 { rounds, .. } if rounds == 0 || rounds > ROUNDS_MAX => {
                Err(Error::unsupported(format!("pbkdf2 with {rounds} rounds")))
            }
            Kdf::Pbkdf2 { hash, rounds } => {
                hash.pbkdf2(passphrase, salt, rounds, key);
                Ok(())
            }
        }
    }
}

impl Hash {
    pub(super) fn named(name: &str) -> Result<Hash, Error> {
        match name {
            "sha256" => Ok(Hash::Sha256),
            "sha512" => Ok(Hash::Sha512),
            other => Err(Error::unsupported(format!("pbkdf2 with {other:?}"))),
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Hash::Sha256 => "sha256",
            Hash::Sha512 => "sha512",
        }
    }

    /// Bytes that it has.
    pub(super) const fn len(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha512 => 64,
        }
    }

    pub(super) fn pbkdf2(self, secret: &[u8], salt: &[u8], rounds: u32, to: &mut [u8]) {
        match self {
            Hash::Sha256 => pbkdf2_hmac::<Sha256>(secret, salt, rounds, to),
            Hash::Sha512 => pbkdf2_hmac::<Sha512>(secret, salt, rounds, to),
        }
    }
}
