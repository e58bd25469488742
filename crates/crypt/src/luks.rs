//! LUKS2: a header of 16 MiB, as a rule, before the sectors of a disk. In it the key of the disk lies encrypted
//! under a passphrase, or under several.
//!
//! ```text
//! 0          binary header, 4 KiB; text (JSON) behind it; both together a power of two from 16 KiB to 4 MiB
//! that size  a second copy of both
//! then       keyslots: the key of the disk, spread over many stripes and encrypted
//! segment    the sectors, to the end of the device
//! ```
//!
//! Of the many headers that the format allows those are read that `cryptsetup luksFormat` makes unless it is told
//! otherwise: one segment of `aes-xts-plain64` with a key of 512 bits to the end of the device. Others are
//! refused with what is different. Of the two copies the newer good one counts; the other is not repaired.

pub mod change;
mod header;
mod kdf;
mod keyslot;
mod text;

use std::fmt;

use serde::{Deserialize, Serialize};
use vocab::options::Secret;
use zeroize::Zeroizing;

use crate::Random;
use crate::xts::{KEY, SectorCipher};
use header::Binary;
pub use kdf::{Argon2Variant, Hash, Kdf};
use text::{Area, Digest, Keyslot, Segment, Text};

/// Bytes before the sectors of a disk that is formatted here.
pub const DATA_OFFSET: u64 = 16 << 20;
/// Bytes of a header that is made here: the two copies, and one keyslot.
pub const HEADER: usize = SLOT_AT as usize + SLOT_SIZE as usize;

/// How the kernel's devices are called behind which volumes of the control plane are decrypted, before the
/// name of the volume: as LINSTOR calls them.
pub const MAPPED: &str = "Linstor-Crypt-";

/// Where the first keyslot is in headers that are made here, and what room it has.
const SLOT_AT: u64 = 2 * COPY as u64;
const SLOT_SIZE: u64 = (KEY * keyslot::STRIPES).next_multiple_of(4096) as u64;
/// Bytes of each copy of headers that are made here.
const COPY: usize = 16 << 10;
/// Keyslots that are tried.
const SLOTS_MAX: usize = 32;
/// Rounds that tell whether a key is that of the disk. It has 512 random bits: there is nothing to
/// slow down.
const DIGEST_ROUNDS: u32 = 1000;

/// Why a disk can not be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// It can not be read: why.
    Read(String),
    /// There is no header.
    NotLuks,
    /// The header is damaged: how.
    Damaged(String),
    /// The header says what is not supported here: what.
    Unsupported(String),
    /// No keyslot opens with the passphrase.
    WrongPassphrase,
    /// The disk has another key than the one that it was opened with before.
    OtherKey,
}

impl Error {
    pub(crate) fn unsupported(what: impl Into<String>) -> Error {
        Error::Unsupported(what.into())
    }

    fn damaged(how: impl Into<String>) -> Error {
        Error::Damaged(how.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Read(why) => f.write_str(why),
            Error::NotLuks => f.write_str("it has no LUKS2 header"),
            Error::Damaged(how) => write!(f, "its LUKS2 header is damaged: {how}"),
            Error::Unsupported(what) => {
                write!(f, "its LUKS2 header says {what}, which is not supported")
            }
            Error::WrongPassphrase => {
                f.write_str("the passphrase opens none of its LUKS2 keyslots")
            }
            Error::OtherKey => f.write_str("its LUKS2 header is not the one that it was opened by"),
        }
    }
}

impl std::error::Error for Error {}

/// Reads so many bytes of the device from a position on.
pub type Read<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> Result<(), String>;

/// A disk whose key is known. It can be written down for another process of the same owner, and for nobody else:
/// the key is in it.
#[derive(Clone, Serialize, Deserialize)]
pub struct Opened {
    key: Zeroizing<Vec<u8>>,
    segment: Segment,
}

impl Opened {
    /// Where the sectors begin, in bytes.
    pub fn offset(&self) -> u64 {
        self.segment.offset
    }

    /// The cipher for the sectors, the first of which is number 0.
    pub fn cipher(&self) -> SectorCipher {
        let Segment { sector_size, iv_tweak, .. } = self.segment;
        SectorCipher::new(&self.key, sector_size, iv_tweak).expect("checked when it was opened")
    }

    /// Checks that the device still has the header that it was opened by: its key and where its
    /// sectors are. Passphrases may have changed.
    ///
    /// # Errors
    /// If it has not, or can not be read.
    pub fn check(&self, read: Read<'_>) -> Result<(), Error> {
        let text = newest(read)?;
        match text.segment == self.segment && text.digest.fits(&self.key) {
            true => Ok(()),
            false => Err(Error::OtherKey),
        }
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("segment", &self.segment).finish_non_exhaustive()
    }
}

/// True if the device begins with a header, or with what is left of one.
///
/// # Errors
/// If it can not be read.
pub fn exists(read: Read<'_>) -> Result<bool, Error> {
    match newest(read) {
        Ok(_) | Err(Error::Unsupported(_) | Error::Damaged(_)) => Ok(true),
        Err(Error::NotLuks) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What tells a disk's header from others: a UUID, in small letters. A new header has a new one, and so has its
/// disk another key; changes of passphrases leave it as it is.
///
/// # Errors
/// If it can not be read, or there is no header.
pub fn uuid(read: Read<'_>) -> Result<String, Error> {
    let mut first = [0; 4096];
    read(0, &mut first).map_err(Error::Read)?;
    header::uuid(&first).ok_or(Error::NotLuks)
}

/// Opens a disk with a passphrase. This takes a while, on purpose, and up to 1 GiB of memory, as the keyslots say.
///
/// # Errors
/// Why it can not be opened.
pub fn open(read: Read<'_>, passphrase: &Secret) -> Result<Opened, Error> {
    let text = newest(read)?;
    let Text { segment, digest, mut keyslots, .. } = text;
    keyslots.sort_by_key(|slot| !slot.preferred);
    let mut other = None;
    for slot in keyslots.iter().take(SLOTS_MAX) {
        match keyslot::unlock(read, slot, passphrase) {
            Ok(key) if digest.fits(&key) => return Ok(Opened { key, segment }),
            Ok(_) => {}
            Err(error @ Error::Read(_)) => return Err(error),
            // Another keyslot may be one of ours.
            Err(error) => other = Some(error),
        }
    }
    Err(other.unwrap_or(Error::WrongPassphrase))
}

/// A new header with a new key, which is to be written to the beginning of the device. Sectors begin at
/// [`DATA_OFFSET`].
///
/// # Errors
/// If the key derivation has a parameter that is out of range.
pub fn format(passphrase: &Secret, kdf: Kdf, random: Random<'_>) -> Result<Vec<u8>, Error> {
    let mut key = Zeroizing::new(vec![0; KEY]);
    random(&mut key);
    let (mut salt, mut digest_salt, mut uuid) = ([0; 32], [0; 32], [0; 16]);
    random(&mut salt);
    random(&mut digest_salt);
    random(&mut uuid);
    let area = Area { offset: SLOT_AT, size: SLOT_SIZE };
    let name = "0".to_owned();
    let slot = Keyslot { name, area, kdf, salt: salt.to_vec(), preferred: false };
    let digest = Digest::of(&key, digest_salt.to_vec(), DIGEST_ROUNDS);
    let segment = Segment { offset: DATA_OFFSET, sector_size: 512, iv_tweak: 0 };
    let text = text::write(&segment, &slot, &digest, COPY);
    let mut image = vec![0; HEADER];
    let binary = Binary::new(uuid, COPY as u64);
    for (copy, place) in [0, COPY].into_iter().zip([header::Place::First, header::Place::Second]) {
        let mut salt = [0; 64];
        random(&mut salt);
        binary.write(&mut image[copy..copy + COPY], place, salt, &text);
    }
    let slot_at = SLOT_AT as usize;
    keyslot::lock(&mut image[slot_at..], &slot, passphrase, &key, random)?;
    Ok(image)
}

/// The text of the newer of the two copies that are good.
fn newest(read: Read<'_>) -> Result<Text, Error> {
    let copy = newer(read)?;
    text::read(&copy.text, copy.size)
}

/// The newer of the two copies that are good.
fn newer(read: Read<'_>) -> Result<header::Copy, Error> {
    match header::copies(read)? {
        (Ok(first), Ok(second)) if second.sequence > first.sequence => Ok(second),
        (Ok(first), _) => Ok(first),
        (Err(_), Ok(second)) => Ok(second),
        (Err(error), Err(_)) => Err(error),
    }
}

#[cfg(test)]
mod tests;
