//! Another passphrase for a disk: a new keyslot with the same key, and then the old one goes. Sectors are not
//! touched, and whoever has the key goes on with it.
//!
//! At every moment one of the two passphrases opens the disk, and a change that was cut off is ended by doing
//! it again:
//!
//! 1. the new keyslot is filled, in room that no keyslot has
//! 2. the header has both: the second copy first, so that a good one is always there
//! 3. the header has the new one alone
//! 4. what no keyslot has is overwritten, the old one's room with it

use vocab::options::Secret;
use zeroize::Zeroizing;

use super::header::{Copy, Place};
use super::text::{self, Area, Edited, Keyslot, Text};
use super::{Error, Kdf, SLOT_SIZE, keyslot};
use crate::Random;

/// Bytes that are overwritten at once.
const WIPED: usize = 1 << 20;

/// A keyslot, and the key of the disk in it.
type Opened = (Keyslot, Zeroizing<Vec<u8>>);

/// A device whose header is changed.
pub trait Device {
    /// Reads so many bytes from a position on.
    ///
    /// # Errors
    /// Why not.
    fn read(&mut self, at: u64, to: &mut [u8]) -> Result<(), String>;

    /// Writes from a position on.
    ///
    /// # Errors
    /// Why not.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), String>;

    /// Returns when everything that was written is durable.
    ///
    /// # Errors
    /// Why not.
    fn sync(&mut self) -> Result<(), String>;
}

/// Has `new` open the disk, and `old` not any more. Takes as long as opening it twice.
///
/// # Errors
/// If neither opens it, there is no room, or the device can not be read or written: then one of them does.
pub fn change(
    device: &mut dyn Device,
    old: &Secret,
    new: &Secret,
    kdf: Kdf,
    random: Random<'_>,
) -> Result<(), Error> {
    let (_, text) = newest(device)?;
    let there = opened_by(device, &text, new)?;
    if there.is_none() {
        let Some((_, key)) = opened_by(device, &text, old)? else {
            return Err(Error::WrongPassphrase);
        };
        add(device, new, &key, kdf, random)?;
    }
    let (copy, text) = newest(device)?;
    let outdated = if old == new { None } else { opened_by(device, &text, old)? };
    if let Some((slot, _)) = outdated {
        let mut edited = Edited::new(&copy.text)?;
        edited.remove(&slot.name);
        write(device, &edited, random)?;
    }
    wipe(device)
}

/// The newer copy of those that are good, and what it says.
fn newest(device: &mut dyn Device) -> Result<(Copy, Text), Error> {
    let copy = super::newer(&mut |at, to: &mut [u8]| device.read(at, to))?;
    let text = text::read(&copy.text, copy.size)?;
    Ok((copy, text))
}

/// The keyslot that a passphrase opens, and the key of the disk in it.
fn opened_by(
    device: &mut dyn Device,
    text: &Text,
    passphrase: &Secret,
) -> Result<Option<Opened>, Error> {
    for slot in &text.keyslots {
        match keyslot::unlock(&mut |at, to: &mut [u8]| device.read(at, to), slot, passphrase) {
            Ok(key) if text.digest.fits(&key) => return Ok(Some((slot.clone(), key))),
            Ok(_) => {}
            Err(error @ Error::Read(_)) => return Err(error),
            // One that can not be used here is nobody's of ours.
            Err(_) => {}
        }
    }
    Ok(None)
}

/// Adds a keyslot.
fn add(
    device: &mut dyn Device,
    passphrase: &Secret,
    key: &[u8],
    kdf: Kdf,
    random: Random<'_>,
) -> Result<(), Error> {
    let (copy, text) = newest(device)?;
    let mut edited = Edited::new(&copy.text)?;
    let end = edited.end(copy.size)?.min(text.segment.offset);
    let room = gaps(2 * copy.size, end, edited.areas()?).into_iter();
    let room = room.map(|gap| gap.offset.next_multiple_of(4096)..gap.offset + gap.size);
    let found = room.into_iter().find(|gap| gap.start.saturating_add(SLOT_SIZE) <= gap.end);
    let (Some(found), Some(name)) = (found, edited.free_name()) else {
        return Err(Error::unsupported("as many keyslots as there is room for"));
    };
    let area = Area { offset: found.start, size: SLOT_SIZE };
    let mut salt = vec![0; 32];
    random(&mut salt);
    let slot = Keyslot { name, area, kdf, salt, preferred: false };
    let mut stripes = vec![0; SLOT_SIZE as usize];
    keyslot::lock(&mut stripes, &slot, passphrase, key, random)?;
    device.write(area.offset, &stripes).map_err(Error::Read)?;
    device.sync().map_err(Error::Read)?;
    edited.add(&slot);
    write(device, &edited, random)
}

/// Writes both copies, one durable before the other is begun.
fn write(device: &mut dyn Device, edited: &Edited, random: Random<'_>) -> Result<(), Error> {
    let (copy, _) = newest(device)?;
    let text = edited.text();
    for place in [Place::Second, Place::First] {
        let mut salt = [0; 64];
        random(&mut salt);
        let later = copy.later(place, copy.sequence + 1, salt, &text);
        let later = later.ok_or_else(|| Error::unsupported("more than its text has room for"))?;
        let at = if place == Place::Second { copy.size } else { 0 };
        device.write(at, &later).map_err(Error::Read)?;
        device.sync().map_err(Error::Read)?;
    }
    Ok(())
}

/// Overwrites what no keyslot has.
fn wipe(device: &mut dyn Device) -> Result<(), Error> {
    let (copy, text) = newest(device)?;
    let edited = Edited::new(&copy.text)?;
    let zeros = vec![0; WIPED];
    let end = edited.end(copy.size)?.min(text.segment.offset);
    for gap in gaps(2 * copy.size, end, edited.areas()?) {
        let (mut at, end) = (gap.offset, gap.offset + gap.size);
        while at < end {
            let some = (end - at).min(WIPED as u64);
            device.write(at, &zeros[..some as usize]).map_err(Error::Read)?;
            at += some;
        }
    }
    device.sync().map_err(Error::Read)
}

/// What is between two positions and in none of these areas.
fn gaps(from: u64, to: u64, mut areas: Vec<Area>) -> Vec<Area> {
    areas.sort_by_key(|area| area.offset);
    let mut gaps = Vec::new();
    let mut at = from;
    for Area { offset, size } in areas {
        if offset > at {
            gaps.push(Area { offset: at, size: offset.min(to) - at });
        }
        at = at.max(offset.saturating_add(size)).min(to);
    }
    if at < to {
        gaps.push(Area { offset: at, size: to - at });
    }
    gaps
}
