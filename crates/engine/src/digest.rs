//! Digests by the names Linux gives them, as `verify-alg` uses them (wire §4.2).

use sha2::Digest as _;

/// A digest this engine computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

    /// The digest of `data`.
    pub(crate) fn of(self, data: &[u8]) -> Vec<u8> {
        match self {
            // The kernel's crc32c stores its result little-endian.
            Algorithm::Crc32c => crc32c::crc32c(data).to_le_bytes().to_vec(),
            Algorithm::Md5 => md5::Md5::digest(data).to_vec(),
            Algorithm::Sha1 => sha1::Sha1::digest(data).to_vec(),
            Algorithm::Sha256 => sha2::Sha256::digest(data).to_vec(),
            Algorithm::Sha512 => sha2::Sha512::digest(data).to_vec(),
        }
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
}
