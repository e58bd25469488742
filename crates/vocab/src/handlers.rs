//! Handlers: programs of the operator's that are called when something happens, in DRBD's spelling
//! (drbdsetup contract §7).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::UnknownName;

macro_rules! events {
    ($($(#[$meta:meta])* $variant:ident = $word:literal;)+) => {
        /// What a handler is called for.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        pub enum HandlerEvent { $($(#[$meta])* $variant,)+ }

        impl HandlerEvent {
            /// All of them.
            pub const ALL: &'static [HandlerEvent] = &[$(HandlerEvent::$variant),+];

            /// DRBD's word, which is the name of the handler.
            pub const fn word(self) -> &'static str {
                match self { $(HandlerEvent::$variant => $word),+ }
            }
        }
    };
}

events! {
    /// A peer is lost that may still be written to: it is to be kept from that. Its exit code says
    /// what has become of the peer.
    FencePeer = "fence-peer";
    /// The peer and this node are both current again.
    UnfencePeer = "unfence-peer";
    /// A resync is about to overwrite the disk here; any exit code but 0 keeps it from that.
    BeforeResyncTarget = "before-resync-target";
    /// A resync to this disk has ended.
    AfterResyncTarget = "after-resync-target";
    /// A resync from this disk begins.
    BeforeResyncSource = "before-resync-source";
    /// A split brain was found; the after-sb policies have not been looked at yet.
    InitialSplitBrain = "initial-split-brain";
    /// A split brain that no policy resolves.
    SplitBrain = "split-brain";
    /// This Primary has older data than the peer (`rr-conflict call-pri-lost`).
    PriLost = "pri-lost";
    /// This Primary is to give up its data after a split brain, and can not be demoted.
    PriLostAfterSb = "pri-lost-after-sb";
    /// This Primary has lost its last good data.
    PriOnInconDegr = "pri-on-incon-degr";
    /// The disk has failed (`on-io-error call-local-io-error`).
    LocalIoError = "local-io-error";
    /// This Primary has lost quorum.
    QuorumLost = "quorum-lost";
    /// A verify has found differences.
    OutOfSync = "out-of-sync";
    /// A connection is lost, or was ended.
    Disconnected = "disconnected";
}

impl fmt::Display for HandlerEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for HandlerEvent {
    type Err = UnknownName;

    /// DRBD's word, or one of its older spellings.
    fn from_str(word: &str) -> Result<HandlerEvent, UnknownName> {
        let word = if word == "outdate-peer" { "fence-peer" } else { word };
        let found = HandlerEvent::ALL.iter().find(|event| event.word() == word).copied();
        found.ok_or_else(|| UnknownName { kind: "handler", word: word.to_owned() })
    }
}

/// A set of events: those that a handler is there for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct HandlerSet(u32);

impl HandlerSet {
    /// No handler.
    pub const NONE: HandlerSet = HandlerSet(0);
    /// One for everything.
    pub const ALL: HandlerSet = HandlerSet(u32::MAX);

    /// There is one for the event.
    pub const fn contains(self, event: HandlerEvent) -> bool {
        self.0 & 1 << event as u32 != 0
    }

    /// With one for the event, too.
    #[must_use]
    pub const fn with(self, event: HandlerEvent) -> HandlerSet {
        HandlerSet(self.0 | 1 << event as u32)
    }
}

impl FromIterator<HandlerEvent> for HandlerSet {
    fn from_iter<I: IntoIterator<Item = HandlerEvent>>(events: I) -> HandlerSet {
        events.into_iter().fold(HandlerSet::NONE, HandlerSet::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back_and_sets_hold_what_was_put_in() {
        let mut set = HandlerSet::NONE;
        for event in HandlerEvent::ALL {
            assert_eq!(event.word().parse(), Ok(*event));
            assert!(!set.contains(*event) && HandlerSet::ALL.contains(*event));
            set = set.with(*event);
            assert!(set.contains(*event));
        }
        assert_eq!("outdate-peer".parse(), Ok(HandlerEvent::FencePeer));
        assert!("fence".parse::<HandlerEvent>().is_err());
        assert_eq!(HandlerEvent::ALL.iter().copied().collect::<HandlerSet>(), set);
    }
}
