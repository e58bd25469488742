//! TLS 1.3's record layer (RFC 8446 §5): one direction's key, and records sealed and opened by it.
//!
//! ```text
//! 17 03 03 | length be16 | AES-GCM of ( up to 16 KiB of data, content type ) | tag of 16 bytes
//! ```
//!
//! The first key comes from the handshake, or is made here of the secret that the handshake has told. So are new
//! keys, of which long connections need some: they can be made in another process, too. So
//! are records, because rustls would allocate for each.

use std::fmt;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, HKDF_SHA384, KeyType, Prk};
use runtime::RxStream;
use rustls::ConnectionTrafficSecrets;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Bytes of a record's header.
pub(super) const HEADER: usize = 5;
/// Most bytes of data in a record.
pub(crate) const DATA_MAX: usize = 16 << 10;
/// Bytes of the authentication tag.
const TAG: usize = 16;
/// Most bytes behind the header that a peer may send (RFC 8446 §5.2).
const BODY_MAX: usize = DATA_MAX + 256;

/// What a record holds. Before encryption begins it is the first byte on the wire.
pub(super) mod content {
    pub(crate) const CHANGE_CIPHER_SPEC: u8 = 20;
    pub(crate) const ALERT: u8 = 21;
    pub(crate) const HANDSHAKE: u8 = 22;
    pub(crate) const DATA: u8 = 23;
}

/// Why a peer's records can not be read any further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordError {
    /// The bytes do not begin a record that may stand here.
    Header([u8; HEADER]),
    /// It was not sealed with the connection's key, or not as the next one.
    Forged,
    /// It holds nothing, or what no one sends at this point.
    Content,
    /// The peer ends the connection for this reason (RFC 8446 §6).
    Alert(u8),
    /// No new key can be made.
    Key,
    /// Nor can it for a connection that an engine has handed over that does not know how.
    Inherited,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::Header(bytes) => {
                write!(f, "what arrived is not TLS: it begins with")?;
                bytes.iter().try_for_each(|byte| write!(f, " {byte:02x}"))
            }
            RecordError::Forged => f.write_str(
                "a TLS record is not what the peer has sent; somebody or something between the \
                 nodes changes, drops or repeats data",
            ),
            RecordError::Content => {
                f.write_str("a TLS record holds what may not come at this point")
            }
            RecordError::Alert(alert) => write!(f, "the peer ends it with TLS alert {alert}"),
            RecordError::Key => f.write_str("the next TLS key can not be made"),
            RecordError::Inherited => f.write_str(
                "a connection from before an upgrade gets no new TLS key, and one is due; it is made anew",
            ),
        }
    }
}

/// What has arrived of a stream of records.
pub(crate) trait Incoming {
    /// The first `len` bytes, once there are as many.
    fn peek(&mut self, len: usize) -> Option<&[u8]>;
    /// Moves on by `len` bytes that were seen.
    fn consume(&mut self, len: usize);
}

impl Incoming for RxStream {
    fn peek(&mut self, len: usize) -> Option<&[u8]> {
        RxStream::peek(self, len)
    }

    fn consume(&mut self, len: usize) {
        RxStream::consume(self, len);
    }
}

/// The next record, once it has arrived completely.
///
/// # Errors
/// The bytes begin none.
pub(crate) fn next_record(rx: &mut impl Incoming) -> Result<Option<&[u8]>, RecordError> {
    let Some(header) = rx.peek(HEADER).and_then(|bytes| bytes.try_into().ok()) else {
        return Ok(None);
    };
    Ok(rx.peek(record_len(header)?))
}

/// The length of the record that begins with these bytes, its header included, if it is one of data or
/// of the handshake.
pub(super) fn record_len(header: [u8; HEADER]) -> Result<usize, RecordError> {
    let [kind, major, _, high, low] = header;
    let body = usize::from(u16::from_be_bytes([high, low]));
    let known = (content::CHANGE_CIPHER_SPEC..=content::DATA).contains(&kind);
    match known && major == 3 && (1..=BODY_MAX).contains(&body) {
        true => Ok(HEADER + body),
        false => Err(RecordError::Header(header)),
    }
}

/// The key of one direction.
pub(super) struct Key {
    key: LessSafeKey,
    made_of: FrozenKey,
}

/// What a key is made of, for another process. Only one of the two may go on with it: no number of a record
/// may be used twice.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct FrozenKey {
    /// As many bytes as AES has.
    secret: Zeroizing<Vec<u8>>,
    iv: [u8; 12],
    /// Number of the next record.
    next: u64,
    /// The secret of this direction's traffic (RFC 8446 §7.1), of which the next key is made. Engines without
    /// this field do not have it.
    #[serde(default)]
    traffic: Option<Zeroizing<Vec<u8>>>,
}

/// Bytes that are derived.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label without a context (RFC 8446 §7.1), by the hash of the cipher whose key has so many bytes.
fn derived(
    key_bytes: usize,
    secret: &[u8],
    label: &str,
    length: usize,
) -> Result<Zeroizing<Vec<u8>>, RecordError> {
    let hash = if key_bytes == 16 { HKDF_SHA256 } else { HKDF_SHA384 };
    let label = ["tls13 ", label].concat();
    let info: [&[u8]; 4] =
        [&(length as u16).to_be_bytes(), &[label.len() as u8], label.as_bytes(), &[0]];
    let mut out = Zeroizing::new(vec![0; length]);
    Prk::new_less_safe(hash, secret)
        .expand(&info, Length(length))
        .and_then(|okm| okm.fill(&mut out))
        .map_err(|_| RecordError::Key)?;
    Ok(out)
}

impl fmt::Debug for FrozenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrozenKey(record {})", self.next)
    }
}

impl Key {
    /// Of what rustls says: the number of the next record, the key, and the secret that it was made of.
    ///
    /// # Errors
    /// If the secrets are not of a cipher that this module knows, or it is another key's.
    pub(super) fn new(
        (next, secrets): (u64, ConnectionTrafficSecrets),
        traffic: Option<Zeroizing<Vec<u8>>>,
    ) -> Result<Key, RecordError> {
        let (ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }) = &secrets
        else {
            return Err(RecordError::Key);
        };
        let iv = iv.as_ref().try_into().map_err(|_| RecordError::Key)?;
        let secret = Zeroizing::new(key.as_ref().to_vec());
        if let Some(traffic) = &traffic {
            let made = derived(secret.len(), traffic, "key", secret.len())?;
            if *made != *secret {
                return Err(RecordError::Key);
            }
        }
        Key::thaw(FrozenKey { secret, iv, next, traffic })
    }

    /// The first key of a secret (RFC 8446 §7.3): AES-128 with SHA-256, or AES-256 with SHA-384.
    ///
    /// # Errors
    /// If the secret has neither hash's length.
    pub(super) fn of(traffic: Zeroizing<Vec<u8>>) -> Result<Key, RecordError> {
        match traffic.len() {
            32 => Key::derived(16, traffic),
            48 => Key::derived(32, traffic),
            _ => Err(RecordError::Key),
        }
    }

    /// From record 0 on.
    fn derived(bytes: usize, traffic: Zeroizing<Vec<u8>>) -> Result<Key, RecordError> {
        let secret = derived(bytes, &traffic, "key", bytes)?;
        let iv = derived(bytes, &traffic, "iv", 12)?;
        let iv = iv.as_slice().try_into().map_err(|_| RecordError::Key)?;
        Key::thaw(FrozenKey { secret, iv, next: 0, traffic: Some(traffic) })
    }

    /// The key that follows (RFC 8446 §7.2), from record 0 on.
    ///
    /// # Errors
    /// [`RecordError::Inherited`] if what it is made of is not known.
    pub(super) fn following(&self) -> Result<Key, RecordError> {
        let FrozenKey { secret, traffic, .. } = &self.made_of;
        let (bytes, traffic) = (secret.len(), traffic.as_ref().ok_or(RecordError::Inherited)?);
        Key::derived(bytes, derived(bytes, traffic, "traffic upd", traffic.len())?)
    }

    /// For another process.
    pub(super) fn freeze(&self) -> FrozenKey {
        self.made_of.clone()
    }

    /// # Errors
    /// If no cipher has such a key.
    pub(super) fn thaw(made_of: FrozenKey) -> Result<Key, RecordError> {
        let algorithm = match made_of.secret.len() {
            16 => &AES_128_GCM,
            32 => &AES_256_GCM,
            _ => return Err(RecordError::Key),
        };
        let key = UnboundKey::new(algorithm, &made_of.secret).map_err(|_| RecordError::Key)?;
        Ok(Key { key: LessSafeKey::new(key), made_of })
    }

    /// Records sealed or opened with it.
    pub(super) const fn used(&self) -> u64 {
        self.made_of.next
    }

    /// The nonce of the next record: never given twice for one key.
    fn nonce(&mut self) -> Nonce {
        let FrozenKey { iv, next, .. } = &mut self.made_of;
        let mut nonce = *iv;
        for (byte, number) in nonce[4..].iter_mut().zip(next.to_be_bytes()) {
            *byte ^= number;
        }
        *next += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    /// Appends a record of what `fill` appends, at most [`DATA_MAX`] bytes.
    ///
    /// # Panics
    /// If it appends more.
    pub(super) fn seal(&mut self, kind: u8, out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        out.extend_from_slice(&[content::DATA, 3, 3, 0, 0]);
        fill(out);
        let data = out.len() - start - HEADER;
        assert!(data <= DATA_MAX, "a record holds at most 16 KiB");
        out.push(kind);
        let (header, body) = out[start..].split_at_mut(HEADER);
        header[3..].copy_from_slice(&((data + 1 + TAG) as u16).to_be_bytes());
        let nonce = self.nonce();
        let sealed = self.key.seal_in_place_separate_tag(nonce, Aad::from(&*header), body);
        let tag = sealed.expect("a key of the right length seals 16 KiB");
        out.extend_from_slice(tag.as_ref());
    }

    /// Opens a record, with its header, into `plain`, which has room for all of its body. Tells what
    /// it holds, and how many bytes.
    ///
    /// # Errors
    /// Why not; `plain` holds anything then.
    pub(super) fn open(
        &mut self,
        record: &[u8],
        plain: &mut [u8],
    ) -> Result<(u8, usize), RecordError> {
        let (header, body) = record.split_at_checked(HEADER).ok_or(RecordError::Content)?;
        if header[0] != content::DATA {
            return Err(RecordError::Content);
        }
        let len = body.len().checked_sub(TAG).ok_or(RecordError::Content)?;
        let (sealed, tag) = body.split_at(len);
        let plain = plain.get_mut(..len).ok_or(RecordError::Content)?;
        let nonce = self.nonce();
        self.key
            .open_separate_gather(nonce, Aad::from(header), sealed, tag, plain)
            .map_err(|_| RecordError::Forged)?;
        // The content type stands behind the data, and zeroes may follow to hide their length.
        let at = plain.iter().rposition(|byte| *byte != 0).ok_or(RecordError::Content)?;
        if at > DATA_MAX {
            return Err(RecordError::Content);
        }
        Ok((plain[at], at))
    }
}
