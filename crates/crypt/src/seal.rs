//! The keys above disks. A cluster has one master key. The passphrase of each volume is kept encrypted under it,
//! and the master key is kept encrypted under the master passphrase, which nobody keeps.
//!
//! What is kept is text, whose parts are divided by `$`: a number for how it is made, how the key follows from a
//! passphrase where it does, a nonce, and what AES-256-GCM made of the secret.

use aes_gcm::aead::{Aead, Nonce, Payload};
use aes_gcm::{Aes256Gcm, KeyInit};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use vocab::options::Secret;
use zeroize::Zeroizing;

use crate::Random;
use crate::luks::{Argon2Variant, Kdf};

/// Bytes of a master key.
const KEY: usize = 32;
/// Random bytes of a volume's passphrase.
const PASSPHRASE: usize = 32;
/// How it is made.
const MADE: &str = "1";
/// What a secret is for: one is never taken for the other.
const MASTER: &[u8] = b"ashlar master key";
const VOLUME: &[u8] = b"ashlar volume passphrase";

/// Why a secret is not had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// It is not what was sealed, or not with this key or passphrase.
    Wrong,
    /// What was kept is not text of this form.
    Damaged,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Error::Wrong => "the passphrase or key is not the one that it was sealed with",
            Error::Damaged => "what was kept of it can not be read",
        })
    }
}

impl std::error::Error for Error {}

/// The key above all volumes.
#[derive(Clone, PartialEq, Eq)]
pub struct MasterKey(Zeroizing<[u8; KEY]>);

impl std::fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MasterKey(not shown)")
    }
}

impl MasterKey {
    /// A new one.
    pub fn new(random: Random<'_>) -> MasterKey {
        let mut key = Zeroizing::new([0; KEY]);
        random(&mut key[..]);
        MasterKey(key)
    }

    /// As text, for those who are to use it.
    pub fn to_secret(&self) -> Secret {
        Secret::from(BASE64.encode(&self.0[..]))
    }

    /// From that text.
    ///
    /// # Errors
    /// If it is not one.
    pub fn from_secret(text: &Secret) -> Result<MasterKey, Error> {
        let bytes = BASE64.decode(text.expose()).map(Zeroizing::new);
        MasterKey::from_bytes(&bytes.map_err(|_| Error::Damaged)?)
    }

    fn from_bytes(bytes: &[u8]) -> Result<MasterKey, Error> {
        let bytes = bytes.try_into().map_err(|_| Error::Damaged)?;
        Ok(MasterKey(Zeroizing::new(bytes)))
    }

    /// Encrypts it under a passphrase, as `kdf` says. This takes a while, on purpose.
    pub fn wrap(&self, passphrase: &Secret, random: Random<'_>) -> String {
        let mut salt = [0; 16];
        random(&mut salt);
        let Kdf::Argon2 { passes, memory, lanes, .. } = Kdf::RECOMMENDED else {
            unreachable!("argon2 is recommended")
        };
        let key =
            derived(passes, memory, lanes, passphrase, &salt).expect("what is recommended works");
        let sealed = encrypt(&key[..], MASTER, &self.0[..], random);
        format!("{MADE}${passes}${memory}${lanes}${}${sealed}", BASE64.encode(salt))
    }

    /// The key that was encrypted under a passphrase. This takes a while, on purpose.
    ///
    /// # Errors
    /// If the passphrase is wrong, or it was not made by [`MasterKey::wrap`].
    pub fn unwrap(wrapped: &str, passphrase: &Secret) -> Result<MasterKey, Error> {
        let mut parts = wrapped.splitn(6, '$');
        let mut part = || parts.next().ok_or(Error::Damaged);
        if part()? != MADE {
            return Err(Error::Damaged);
        }
        let mut number = || part()?.parse::<u32>().map_err(|_| Error::Damaged);
        let (passes, memory, lanes) = (number()?, number()?, number()?);
        let salt = BASE64.decode(part()?).map_err(|_| Error::Damaged)?;
        let key = derived(passes, memory, lanes, passphrase, &salt)?;
        MasterKey::from_bytes(&decrypt(&key[..], MASTER, part()?)?)
    }

    /// Encrypts the passphrase of a volume.
    pub fn seal(&self, passphrase: &Secret, random: Random<'_>) -> String {
        let sealed = encrypt(&self.0[..], VOLUME, passphrase.expose().as_bytes(), random);
        format!("{MADE}${sealed}")
    }

    /// The passphrase that was encrypted.
    ///
    /// # Errors
    /// If this is not the key, or it was not made by [`MasterKey::seal`].
    pub fn unseal(&self, sealed: &str) -> Result<Secret, Error> {
        let (MADE, sealed) = sealed.split_once('$').ok_or(Error::Damaged)? else {
            return Err(Error::Damaged);
        };
        let text = decrypt(&self.0[..], VOLUME, sealed)?;
        std::str::from_utf8(&text).map(Secret::from).map_err(|_| Error::Damaged)
    }
}

/// A passphrase that nobody can guess, for a volume that was given none.
pub fn passphrase(random: Random<'_>) -> Secret {
    let mut bytes = Zeroizing::new([0; PASSPHRASE]);
    random(&mut bytes[..]);
    Secret::from(BASE64.encode(&bytes[..]))
}

fn derived(
    passes: u32,
    memory: u32,
    lanes: u32,
    passphrase: &Secret,
    salt: &[u8],
) -> Result<Zeroizing<[u8; KEY]>, Error> {
    let mut key = Zeroizing::new([0; KEY]);
    Kdf::Argon2 { variant: Argon2Variant::Id, passes, memory, lanes }
        .derive_into(passphrase, salt, &mut key[..])
        .map_err(|_| Error::Damaged)?;
    Ok(key)
}

/// `nonce$text`.
fn encrypt(key: &[u8], what: &[u8], secret: &[u8], random: Random<'_>) -> String {
    let mut nonce = Nonce::<Aes256Gcm>::default();
    random(&mut nonce);
    let cipher = Aes256Gcm::new_from_slice(key).expect("a key has 32 bytes");
    let sealed = cipher.encrypt(&nonce, Payload { msg: secret, aad: what });
    let sealed = sealed.expect("a secret is short");
    format!("{}${}", BASE64.encode(nonce), BASE64.encode(sealed))
}

fn decrypt(key: &[u8], what: &[u8], text: &str) -> Result<Zeroizing<Vec<u8>>, Error> {
    let (nonce, sealed) = text.split_once('$').ok_or(Error::Damaged)?;
    let decode = |text: &str| BASE64.decode(text).map_err(|_| Error::Damaged);
    let (nonce, sealed) = (decode(nonce)?, decode(sealed)?);
    let nonce = Nonce::<Aes256Gcm>::try_from(&nonce[..]).map_err(|_| Error::Damaged)?;
    let cipher = Aes256Gcm::new_from_slice(key).expect("a key has 32 bytes");
    let secret = cipher.decrypt(&nonce, Payload { msg: &sealed, aad: what });
    secret.map(Zeroizing::new).map_err(|_| Error::Wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other bytes each time, and the same in each run.
    fn chance() -> impl FnMut(&mut [u8]) {
        let mut seed = 1u64;
        move |bytes| {
            for byte in bytes {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (seed >> 56) as u8;
            }
        }
    }

    #[test]
    fn a_master_key_is_had_with_its_passphrase_only() {
        let mut random = chance();
        let master = MasterKey::new(&mut random);
        let wrapped = master.wrap(&Secret::from("correct horse"), &mut random);
        assert!(!wrapped.contains(master.to_secret().expose()));
        assert_eq!(MasterKey::unwrap(&wrapped, &Secret::from("correct horse")), Ok(master.clone()));
        assert_eq!(MasterKey::unwrap(&wrapped, &Secret::from("Correct horse")), Err(Error::Wrong));
        assert_eq!(MasterKey::from_secret(&master.to_secret()), Ok(master.clone()));
        assert_eq!(format!("{master:?}"), "MasterKey(not shown)");
        for damaged in
            ["", "1", "2$3$65536$4", "1$3$65536$4$AAAA$AAAA", "1$3$99999999$4$AAAAAAAAAAA=$A$A"]
        {
            let result = MasterKey::unwrap(damaged, &Secret::from("correct horse"));
            assert_eq!(result, Err(Error::Damaged), "{damaged}");
        }
    }

    #[test]
    fn what_was_sealed_is_had_with_its_key_only_and_as_it_was() {
        let mut random = chance();
        let (master, other) = (MasterKey::new(&mut random), MasterKey::new(&mut random));
        let secret = passphrase(&mut random);
        assert!(secret.expose().len() >= 43 && secret != passphrase(&mut random));
        let sealed = master.seal(&secret, &mut random);
        assert_eq!(master.unseal(&sealed), Ok(secret.clone()));
        assert_ne!(master.seal(&secret, &mut random), sealed, "each time another nonce");
        assert_eq!(other.unseal(&sealed), Err(Error::Wrong));
        let last = sealed.len() - 5;
        let turned = if sealed.as_bytes()[last] == b'A' { "B" } else { "A" };
        let changed = format!("{}{turned}{}", &sealed[..last], &sealed[last + 1..]);
        assert_eq!(master.unseal(&changed), Err(Error::Wrong));
        for damaged in ["", "1", "1$", "1$AAAA$AAAA", "2$AAAAAAAAAAAAAAAA$AAAA"] {
            assert_eq!(master.unseal(damaged), Err(Error::Damaged), "{damaged}");
        }
    }
}
