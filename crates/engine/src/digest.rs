//! Digests by the names Linux gives them: those of `verify-alg` (wire §4.2), of
//! `csums-alg` (wire §7.4), and those that `data-integrity-alg` puts in front of data on the wire (wire §5.2).

use codec::wire::Digest;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

/// A digest this engine computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Algorithm {
    Crc32c,
    Md5,
    Sha1,
    Sha256,
    Sha512,
}

impl Algorithm {
    /// Names for messages.
    pub(crate) const NAMES: &'static str = "crc32c, md5, sha1, sha256 or sha512";

    /// Those that tell blocks apart for sure.
    pub(crate) const TELLING_NAMES: &'static str = "md5, sha1, sha256 or sha512";

    /// The digest of that name.
    pub(crate) fn named(name: &str) -> Option<Algorithm> {
        Some(match name {
            "crc32c" => Algorithm::Crc32c,
            "md5" => Algorithm::Md5,
            "sha1" => Algorithm::Sha1,
            "sha256" => Algorithm::Sha256,
            "sha512" => Algorithm::Sha512,
            _ => return None,
        })
    }

    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Algorithm::Crc32c => "crc32c",
            Algorithm::Md5 => "md5",
            Algorithm::Sha1 => "sha1",
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }

    /// Bytes of a digest.
    pub(crate) const fn len(self) -> usize {
        match self {
            Algorithm::Crc32c => 4,
            Algorithm::Md5 => 16,
            Algorithm::Sha1 => 20,
            Algorithm::Sha256 => 32,
            Algorithm::Sha512 => 64,
        }
    }

    /// Chance does not make the digests of two blocks equal, not in all the resyncs that there will ever be.
    pub(crate) const fn tells(self) -> bool {
        self.len() >= 16
    }

    /// The digest of `data`.
    pub(crate) fn of(self, data: &[u8]) -> Digest {
        let digest = match self {
            // The kernel's crc32c stores its result little-endian.
            Algorithm::Crc32c => Digest::new(&crc32c::crc32c(data).to_le_bytes()),
            Algorithm::Md5 => Digest::new(&md5::Md5::digest(data)),
            Algorithm::Sha1 => Digest::new(&sha1::Sha1::digest(data)),
            Algorithm::Sha256 => Digest::new(&sha2::Sha256::digest(data)),
            Algorithm::Sha512 => Digest::new(&sha2::Sha512::digest(data)),
        };
        digest.expect("no algorithm gives more bytes than a digest has")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(name: &str) -> String {
        let digest = Algorithm::named(name).unwrap().of(b"123456789");
        digest.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Check values of the algorithms' own definitions.
    #[test]
    fn digests_are_those_of_their_names() {
        assert_eq!(hex("crc32c"), "839206e3");
        assert_eq!(hex("md5"), "25f9e794323b453885f5181f1b624d0b");
        assert_eq!(hex("sha1"), "f7c3bc1d808e04732adf679965ccc34ca7ae3441");
        assert!(hex("sha256").starts_with("15e2b0d3c33891ebb0f1ef609ec41942"));
        assert_eq!(hex("sha512").len(), 128);
        assert_eq!(Algorithm::named("crc32"), None);
    }

    #[test]
    fn names_and_lengths_are_those_of_the_algorithms() {
        for name in Algorithm::NAMES.split(", ").flat_map(|names| names.split(" or ")) {
            let algorithm = Algorithm::named(name).unwrap();
            assert_eq!(algorithm.name(), name);
            assert_eq!(algorithm.of(b"").len(), algorithm.len());
            assert_eq!(algorithm.tells(), Algorithm::TELLING_NAMES.contains(name));
        }
    }
}
