//! The binary part of a header: which copy it is, how long, and a checksum over all of it.

use sha2::{Digest, Sha256};

use super::{Error, Read};

/// Bytes of the binary part.
const BINARY: usize = 4096;
const MAGIC: [&[u8; 6]; 2] = [b"LUKS\xba\xbe", b"SKUL\xba\xbe"];
const VERSION: u16 = 2;
/// Where its fields are.
const SIZE: usize = 8;
const SEQUENCE: usize = 16;
const ALGORITHM: usize = 72;
const SALT: usize = 104;
const UUID: usize = 168;
const OFFSET: usize = 256;
const CHECKSUM: usize = 448;
const CHECKSUM_LEN: usize = 64;
/// The sizes that a copy can have: powers of two between these.
const SIZES: std::ops::RangeInclusive<u64> = 16 << 10..=4 << 20;

/// Which copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    First,
    Second,
}

/// A copy whose checksum is right.
pub struct Copy {
    /// Counts changes.
    pub sequence: u64,
    /// Bytes of the copy.
    pub size: u64,
    /// The text, without what fills it up.
    pub text: Vec<u8>,
    /// The binary part, without its checksum.
    binary: Vec<u8>,
}

impl Copy {
    /// A later copy with another text and the same everything else; none if the text has no room. `salt` makes
    /// its checksum another one each time.
    pub fn later(
        &self,
        place: Place,
        sequence: u64,
        salt: [u8; 64],
        text: &[u8],
    ) -> Option<Vec<u8>> {
        // The text ends in a zero.
        if text.len() as u64 >= self.size - BINARY as u64 {
            return None;
        }
        let mut bytes = self.binary.clone();
        bytes.resize(self.size as usize, 0);
        let offset = if place == Place::Second { self.size } else { 0 };
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, MAGIC[place as usize]);
        put(SEQUENCE, &sequence.to_be_bytes());
        put(SALT, &salt);
        put(OFFSET, &offset.to_be_bytes());
        put(BINARY, text);
        let checksum = Sha256::digest(&bytes);
        bytes[CHECKSUM..CHECKSUM + 32].copy_from_slice(&checksum);
        Some(bytes)
    }
}

/// A copy, or what is wrong with it.
type Found = Result<Copy, Error>;

/// Reads both copies. The first says where the second is; where it says nothing, the second is looked for.
///
/// # Errors
/// If the device can not be read.
pub fn copies(read: Read<'_>) -> Result<(Found, Found), Error> {
    let first = copy(read, 0, Place::First)?;
    if let Ok(good) = &first {
        let second = copy(read, good.size, Place::Second)?;
        return Ok((first, second));
    }
    let mut at = *SIZES.start();
    while at <= *SIZES.end() {
        // Beyond the end of a small device there is nothing.
        match copy(read, at, Place::Second) {
            Ok(Ok(second)) => return Ok((first, Ok(second))),
            Ok(Err(_)) => at *= 2,
            Err(_) => break,
        }
    }
    Ok((first, Err(Error::NotLuks)))
}

/// Reads one copy. The outer error is one of reading.
fn copy(read: Read<'_>, at: u64, place: Place) -> Result<Found, Error> {
    let mut bytes = vec![0; BINARY];
    read(at, &mut bytes).map_err(Error::Read)?;
    let size = match check(&bytes, at, place) {
        Ok(size) => size,
        Err(error) => return Ok(Err(error)),
    };
    bytes.resize(size as usize, 0);
    read(at + BINARY as u64, &mut bytes[BINARY..]).map_err(Error::Read)?;
    let said: [u8; 32] = bytes[CHECKSUM..CHECKSUM + 32].try_into().expect("32 bytes");
    bytes[CHECKSUM..CHECKSUM + CHECKSUM_LEN].fill(0);
    if Sha256::digest(&bytes)[..] != said {
        return Ok(Err(Error::damaged("its checksum is wrong")));
    }
    let (binary, text) = bytes.split_at(BINARY);
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    let (binary, text) = (binary.to_vec(), text[..end].to_vec());
    Ok(Ok(Copy { sequence: number(&bytes, SEQUENCE), size, text, binary }))
}

/// Bytes of a copy, from its binary part.
fn check(bytes: &[u8], at: u64, place: Place) -> Result<u64, Error> {
    if !bytes.starts_with(MAGIC[place as usize]) {
        return Err(Error::NotLuks);
    }
    let version = u16::from_be_bytes([bytes[6], bytes[7]]);
    if version != VERSION {
        return Err(Error::unsupported(format!("version {version}")));
    }
    let size = number(bytes, SIZE);
    if !size.is_power_of_two() || !SIZES.contains(&size) {
        return Err(Error::damaged(format!("it says that it has {size} bytes")));
    }
    let said = number(bytes, OFFSET);
    if said != at || place == Place::Second && at != size {
        return Err(Error::damaged(format!("it says that it is at {said}, and is at {at}")));
    }
    let algorithm = &bytes[ALGORITHM..ALGORITHM + 32];
    if !algorithm.starts_with(b"sha256\0") {
        let end = algorithm.iter().position(|byte| *byte == 0).unwrap_or(algorithm.len());
        let name = String::from_utf8_lossy(&algorithm[..end]).into_owned();
        return Err(Error::unsupported(format!("checksums of kind {name:?}")));
    }
    Ok(size)
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// What both copies of a new header have in common.
pub struct Binary {
    uuid: [u8; 16],
    size: u64,
}

impl Binary {
    pub fn new(uuid: [u8; 16], size: u64) -> Binary {
        Binary { uuid, size }
    }

    /// Writes a copy. `to` is as long as it is, and zero.
    pub fn write(&self, to: &mut [u8], place: Place, salt: [u8; 64], text: &[u8]) {
        let mut put = |at: usize, bytes: &[u8]| to[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC[place as usize]);
        put(6, &VERSION.to_be_bytes());
        put(SIZE, &self.size.to_be_bytes());
        put(SEQUENCE, &1u64.to_be_bytes());
        put(ALGORITHM, b"sha256");
        put(SALT, &salt);
        put(UUID, uuid_text(self.uuid).as_bytes());
        let offset = if place == Place::Second { self.size } else { 0 };
        put(OFFSET, &offset.to_be_bytes());
        put(BINARY, text);
        let checksum = Sha256::digest(&to[..self.size as usize]);
        to[CHECKSUM..CHECKSUM + 32].copy_from_slice(&checksum);
    }
}

/// What tells the header from others, as its first copy says it; none if that is no text, or empty.
pub fn uuid(first: &[u8; 4096]) -> Option<String> {
    if !first.starts_with(MAGIC[Place::First as usize]) {
        return None;
    }
    let text = first[UUID..UUID + 40].split(|byte| *byte == 0).next()?;
    let text = std::str::from_utf8(text).ok()?;
    let good = |c: char| c.is_ascii_hexdigit() || c == '-';
    (!text.is_empty() && text.chars().all(good)).then(|| text.to_ascii_lowercase())
}

/// Random bits as a UUID of version 4, in words.
fn uuid_text(random: [u8; 16]) -> String {
    let bits = u128::from_be_bytes(random) & !(0xf << 76) & !(0x3 << 62) | 4 << 76 | 2 << 62;
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
