//! The digest of a block, as the packets of verify and of resync by checksum carry it.

use std::ops::Deref;

use serde::{Deserialize, Serialize};

use super::command::MAX_DIGEST;

/// A digest of any algorithm, known by its bytes alone. There is one for every block that is compared, and so it
/// holds its bytes itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "Vec<u8>", try_from = "Vec<u8>")]
pub struct Digest {
    len: u8,
    /// Zero behind the digest.
    bytes: [u8; MAX_DIGEST],
}

impl Digest {
    /// Of no bytes.
    pub const NONE: Digest = Digest { len: 0, bytes: [0; MAX_DIGEST] };

    /// The digest with these bytes; `None` if no algorithm gives so many.
    pub fn new(bytes: &[u8]) -> Option<Digest> {
        let mut digest = Digest { len: u8::try_from(bytes.len()).ok()?, ..Digest::NONE };
        digest.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(digest)
    }
}

impl Deref for Digest {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl From<Digest> for Vec<u8> {
    fn from(digest: Digest) -> Vec<u8> {
        digest.to_vec()
    }
}

impl TryFrom<Vec<u8>> for Digest {
    type Error = String;
    fn try_from(bytes: Vec<u8>) -> Result<Digest, String> {
        let len = bytes.len();
        Digest::new(&bytes)
            .ok_or_else(|| format!("a digest of {len} bytes, more than {MAX_DIGEST}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_its_bytes() {
        for len in [0, 1, 4, 20, MAX_DIGEST] {
            let bytes: Vec<u8> = (1..=len as u8).collect();
            let digest = Digest::new(&bytes).unwrap();
            assert_eq!(*digest, *bytes);
            assert_eq!(Digest::try_from(Vec::from(digest)), Ok(digest));
        }
        assert_ne!(Digest::new(&[1]), Digest::new(&[1, 0]));
    }

    #[test]
    fn more_bytes_than_any_algorithm_gives_are_none() {
        assert_eq!(Digest::new(&[0; MAX_DIGEST + 1]), None);
        assert_eq!(Digest::new(&[0; 300]), None);
        assert!(Digest::try_from(vec![0; MAX_DIGEST + 1]).is_err());
    }
}
