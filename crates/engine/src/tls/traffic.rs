//! The two directions of a connection after its handshake: their keys, and records of one and the other.

use serde::{Deserialize, Serialize};

use super::record::{FrozenKey, Key, RecordError, content};

/// Records after which the key is changed. AES-GCM is good for 2^24.5 of full length (RFC 8446 §5.5).
pub(super) const RECORDS_PER_KEY: u64 = 1 << 23;
/// A change of keys: message 24 with one byte, which does not ask the peer for the same.
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
/// Nothing follows: a warning, number 0.
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// Traffic at rest, for another process. Only one of the two may go on with it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FrozenTraffic {
    pub(super) sending: FrozenKey,
    pub(super) receiving: FrozenKey,
    pub(super) records_per_key: u64,
    pub(super) key_is_due: bool,
}

/// What a record was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opened {
    /// So many bytes of data.
    Data(usize),
    /// Nothing that concerns others.
    Nothing,
    /// The peer says nothing more.
    End,
}

/// Both directions.
pub(crate) struct Traffic {
    sending: Key,
    receiving: Key,
    /// After so many records the sending key is changed.
    records_per_key: u64,
    /// The peer has asked for a new sending key.
    key_is_due: bool,
}

impl Traffic {
    pub(super) const fn new(sending: Key, receiving: Key) -> Traffic {
        Traffic { sending, receiving, records_per_key: RECORDS_PER_KEY, key_is_due: false }
    }

    /// The next record needs another key.
    fn is_changing_keys(&self) -> bool {
        self.key_is_due || self.sending.used() >= self.records_per_key
    }

    /// For [`Traffic::thaw`] in another process.
    pub(crate) fn freeze(&self) -> FrozenTraffic {
        let (sending, receiving) = (self.sending.freeze(), self.receiving.freeze());
        let Traffic { records_per_key, key_is_due, .. } = *self;
        FrozenTraffic { sending, receiving, records_per_key, key_is_due }
    }

    /// # Errors
    /// [`RecordError::Key`].
    pub(crate) fn thaw(frozen: FrozenTraffic) -> Result<Traffic, RecordError> {
        let FrozenTraffic { sending, receiving, records_per_key, key_is_due } = frozen;
        let (sending, receiving) = (Key::thaw(sending)?, Key::thaw(receiving)?);
        Ok(Traffic { sending, receiving, records_per_key, key_is_due })
    }

    #[cfg(test)]
    pub(super) fn set_records_per_key(&mut self, records: u64) {
        self.records_per_key = records;
    }

    /// Appends a record of what `fill` appends, at most [`DATA_MAX`](super::DATA_MAX) bytes; and before that the
    /// change of the key if one is due.
    ///
    /// # Errors
    /// [`RecordError::Key`] or [`RecordError::Inherited`]: nothing more can be sent.
    pub(crate) fn seal(
        &mut self,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), RecordError> {
        self.change_key(out)?;
        self.sending.seal(content::DATA, out, fill);
        Ok(())
    }

    /// Appends the word that nothing follows.
    ///
    /// # Errors
    /// As [`Traffic::seal`].
    pub(crate) fn seal_end(&mut self, out: &mut Vec<u8>) -> Result<(), RecordError> {
        self.change_key(out)?;
        self.sending.seal(content::ALERT, out, |out| out.extend_from_slice(&CLOSE_NOTIFY));
        Ok(())
    }

    fn change_key(&mut self, out: &mut Vec<u8>) -> Result<(), RecordError> {
        if self.is_changing_keys() {
            let next = self.sending.following()?;
            let update = |out: &mut Vec<u8>| out.extend_from_slice(&KEY_UPDATE);
            self.sending.seal(content::HANDSHAKE, out, update);
            self.sending = next;
            self.key_is_due = false;
        }
        Ok(())
    }

    /// Opens a record into `plain`, which has room for all of it.
    ///
    /// # Errors
    /// Why the stream can not go on.
    pub(crate) fn open(&mut self, record: &[u8], plain: &mut [u8]) -> Result<Opened, RecordError> {
        let (kind, len) = self.receiving.open(record, plain)?;
        match (kind, &plain[..len]) {
            (content::DATA, _) => Ok(Opened::Data(len)),
            (content::HANDSHAKE, messages) => {
                self.handshake(messages)?;
                Ok(Opened::Nothing)
            }
            (content::ALERT, [_, 0]) => Ok(Opened::End),
            (content::ALERT, [_, alert]) => Err(RecordError::Alert(*alert)),
            _ => Err(RecordError::Content),
        }
    }

    /// Messages of the handshake after its end (RFC 8446 §4.6).
    fn handshake(&mut self, mut rest: &[u8]) -> Result<(), RecordError> {
        const NEW_SESSION_TICKET: u8 = 4;
        const KEY_UPDATE: u8 = 24;
        while let [kind, a, b, c, message @ ..] = rest {
            let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            let (message, behind) = message.split_at_checked(len).ok_or(RecordError::Content)?;
            rest = behind;
            match (*kind, message) {
                // Connections are never resumed.
                (NEW_SESSION_TICKET, _) => {}
                // The key changes with the next record, so nothing may stand behind.
                (KEY_UPDATE, [asked @ (0 | 1)]) if rest.is_empty() => {
                    self.key_is_due |= *asked == 1;
                    self.receiving = self.receiving.following()?;
                    return Ok(());
                }
                _ => return Err(RecordError::Content),
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(RecordError::Content) }
    }
}
