//! State that one engine hands to the next: values to bytes and back, exactly.
//!
//! Made for two programs of different age. Every struct and field carries a checksum of its name,
//! every value a tag of its type, and all of it one checksum. A field that the other program does
//! not have is made up only if its type says with what (`#[serde(default)]`: what an engine without
//! the field has meant); an `Option` by itself says nothing. A field or variant that is not known
//! here is never left out: the value is refused, with the place where the two differ. A change
//! of what a field *means* is told by the version that [`to_bytes`] is given.
//!
//! ```text
//! magic u64 | version u32 | length u64 | crc32c of the value u32 | value
//! ```
//! All numbers are little-endian; a value is described in `write`.

mod read;
mod write;

#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

/// "ashlarfz"
const MAGIC: u64 = u64::from_le_bytes(*b"ashlarfz");
const HEADER: usize = 24;

/// Why a value can not be taken over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrozenError {
    /// Where, outermost name first; empty for the value as a whole.
    path: Vec<&'static str>,
    what: String,
    /// Serde has found too few fields.
    length: bool,
}

impl FrozenError {
    fn new(what: impl Into<String>) -> FrozenError {
        FrozenError { path: Vec::new(), what: what.into(), length: false }
    }

    /// Serde has found too few fields in the value itself.
    const fn is_length(&self) -> bool {
        self.length && self.path.is_empty()
    }

    /// The same, seen from the struct around it.
    fn within(mut self, name: &'static str) -> FrozenError {
        self.path.insert(0, name);
        self
    }
}

impl fmt::Display for FrozenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path.join("."))?;
        }
        f.write_str(&self.what)
    }
}

impl std::error::Error for FrozenError {}

impl serde::ser::Error for FrozenError {
    fn custom<T: fmt::Display>(what: T) -> FrozenError {
        FrozenError::new(what.to_string())
    }
}

impl serde::de::Error for FrozenError {
    fn custom<T: fmt::Display>(what: T) -> FrozenError {
        FrozenError::new(what.to_string())
    }

    fn invalid_length(found: usize, wanted: &dyn serde::de::Expected) -> FrozenError {
        let what = format!("{found} parts where {wanted} belongs");
        FrozenError { length: true, ..FrozenError::new(what) }
    }
}

/// The bytes of a value. `version` counts changes of what its fields mean.
///
/// # Errors
/// [`FrozenError`] if the type has no such form (128 bits, say): a mistake of ours.
pub fn to_bytes<T: Serialize>(version: u32, value: &T) -> Result<Vec<u8>, FrozenError> {
    let mut bytes = vec![0; HEADER];
    value.serialize(&mut write::Writer::new(&mut bytes))?;
    let (header, content) = bytes.split_at_mut(HEADER);
    header[..8].copy_from_slice(&MAGIC.to_le_bytes());
    header[8..12].copy_from_slice(&version.to_le_bytes());
    header[12..20].copy_from_slice(&(content.len() as u64).to_le_bytes());
    header[20..].copy_from_slice(&crc32c::crc32c(content).to_le_bytes());
    Ok(bytes)
}

/// The value that [`to_bytes`] was given, if this program knows the same types and `version`.
///
/// # Errors
/// [`FrozenError`] says what is different.
pub fn from_bytes<T: for<'a> Deserialize<'a>>(
    version: u32,
    bytes: &[u8],
) -> Result<T, FrozenError> {
    let content = checked(version, bytes)?;
    let mut reader = read::Reader::new(content);
    let value = T::deserialize(&mut reader)?;
    if reader.left() > 0 {
        return Err(FrozenError::new(format!("{} bytes too many", reader.left())));
    }
    Ok(value)
}

fn checked(version: u32, bytes: &[u8]) -> Result<&[u8], FrozenError> {
    let Some((header, content)) = bytes.split_at_checked(HEADER) else {
        return Err(FrozenError::new("the state is cut short"));
    };
    let number = |range: std::ops::Range<usize>| {
        header[range].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    if number(0..8) != MAGIC {
        return Err(FrozenError::new("this is no state of an engine"));
    }
    if number(8..12) != u64::from(version) {
        let theirs = number(8..12);
        return Err(FrozenError::new(format!(
            "the state has version {theirs}, and this engine takes version {version}"
        )));
    }
    if number(12..20) != content.len() as u64 {
        return Err(FrozenError::new("the state is cut short"));
    }
    if number(20..24) != u64::from(crc32c::crc32c(content)) {
        return Err(FrozenError::new("the state was damaged on its way"));
    }
    Ok(content)
}

/// What a name is on the wire.
fn mark(name: &str) -> u32 {
    crc32c::crc32c(name.as_bytes())
}

/// Kinds of values.
mod tag {
    pub(super) const UNIT: u8 = 1;
    pub(super) const FALSE: u8 = 2;
    pub(super) const TRUE: u8 = 3;
    pub(super) const U8: u8 = 4;
    pub(super) const U16: u8 = 5;
    pub(super) const U32: u8 = 6;
    pub(super) const U64: u8 = 7;
    pub(super) const I8: u8 = 8;
    pub(super) const I16: u8 = 9;
    pub(super) const I32: u8 = 10;
    pub(super) const I64: u8 = 11;
    pub(super) const F32: u8 = 12;
    pub(super) const F64: u8 = 13;
    pub(super) const CHAR: u8 = 14;
    pub(super) const TEXT: u8 = 15;
    pub(super) const BYTES: u8 = 16;
    pub(super) const NONE: u8 = 17;
    pub(super) const SOME: u8 = 18;
    pub(super) const SEQUENCE: u8 = 19;
    pub(super) const TUPLE: u8 = 20;
    pub(super) const MAP: u8 = 21;
    pub(super) const STRUCT: u8 = 22;
    pub(super) const TUPLE_STRUCT: u8 = 23;
    pub(super) const VARIANT: u8 = 24;
}

/// For fields that are many bytes in a row (`#[serde(with = "codec::frozen::bytes")]`).
pub mod bytes {
    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};
    use std::fmt;

    /// Writes them.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    /// Reads as many as the type takes.
    ///
    /// # Errors
    /// Those of the deserializer, or there are more or fewer of them.
    pub fn deserialize<'de, D, T>(deserializer: D) -> Result<T, D::Error>
    where
        D: Deserializer<'de>,
        T: for<'a> TryFrom<&'a [u8]>,
    {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }
        let bytes = deserializer.deserialize_bytes(Bytes)?;
        let length = bytes.len();
        T::try_from(&bytes).map_err(|_| D::Error::custom(format!("{length} bytes, not as many")))
    }
}
