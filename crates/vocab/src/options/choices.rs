//! Option values that are words, and the field types of the tables.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::spec::{Raw, Unit, Value};
use crate::{Bytes, Minor, Sectors};

macro_rules! choices {
    ($($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal,)+ })+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        pub enum $name { $($(#[$vmeta])* $variant,)+ }

        impl $name {
            /// DRBD's words, in the order of the variants.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// DRBD's word.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }

        impl Value for $name {
            fn from_raw(raw: Raw, _: Unit) -> Option<$name> {
                match raw {
                    $(Raw::Word($word) => Some($name::$variant),)+
                    _ => None,
                }
            }
            fn to_raw(&self, _: Unit) -> Raw {
                Raw::Word(self.word())
            }
        }
    )+};
}

choices! {
    /// When a write is complete for the application (semantics §8.4).
    Protocol {
        /// Written locally and handed to the network.
        A = "A",
        /// Written locally and received by the peer.
        B = "B",
        /// Written locally and by the peer.
        C = "C",
    }
    /// What happens to I/O without quorum (semantics §6.2).
    OnNoQuorum {
        /// It waits until quorum returns.
        SuspendIo = "suspend-io",
        /// It fails.
        IoError = "io-error",
    }
    /// What happens to I/O when no UpToDate data can be reached.
    OnNoDataAccessible {
        /// It fails.
        IoError = "io-error",
        /// It waits until data returns.
        SuspendIo = "suspend-io",
    }
    /// What a suspended Primary does when it meets newer data.
    OnSuspendedPrimaryOutdated {
        /// Refuses the connection.
        Disconnect = "disconnect",
        /// Fails its pending I/O and becomes Secondary.
        ForceSecondary = "force-secondary",
    }
    /// What happens after an error of the backing device (semantics §7.1).
    OnIoError {
        /// The volume continues diskless.
        Detach = "detach",
        /// The error is passed on and the blocks count as out-of-sync.
        PassOn = "pass_on",
        /// A handler is called.
        CallLocalIoError = "call-local-io-error",
    }
    /// Which replica serves a read (semantics §7.3).
    ReadBalancing {
        /// The local disk if it can.
        PreferLocal = "prefer-local",
        /// A peer if one can.
        PreferRemote = "prefer-remote",
        /// In turn.
        RoundRobin = "round-robin",
        /// The replica with the fewest pending requests.
        LeastPending = "least-pending",
        /// A peer while the local disk is congested.
        WhenCongestedRemote = "when-congested-remote",
        /// Stripes of 32 KiB.
        Striping32K = "32K-striping",
        /// Stripes of 64 KiB.
        Striping64K = "64K-striping",
        /// Stripes of 128 KiB.
        Striping128K = "128K-striping",
        /// Stripes of 256 KiB.
        Striping256K = "256K-striping",
        /// Stripes of 512 KiB.
        Striping512K = "512K-striping",
        /// Stripes of 1 MiB.
        Striping1M = "1M-striping",
    }
    /// Split brain, nobody Primary (semantics §5).
    AfterSb0 {
        /// Disconnect and leave it to the operator.
        Disconnect = "disconnect",
        /// The node that became Primary last loses.
        DiscardYoungerPrimary = "discard-younger-primary",
        /// The node that became Primary first loses.
        DiscardOlderPrimary = "discard-older-primary",
        /// A node that wrote nothing loses.
        DiscardZeroChanges = "discard-zero-changes",
        /// The node that wrote less loses.
        DiscardLeastChanges = "discard-least-changes",
        /// This node loses.
        DiscardLocal = "discard-local",
        /// The peer loses.
        DiscardRemote = "discard-remote",
    }
    /// Split brain, one node Primary.
    AfterSb1 {
        /// Disconnect and leave it to the operator.
        Disconnect = "disconnect",
        /// As after-sb-0pri if that makes the Secondary lose, else disconnect.
        Consensus = "consensus",
        /// The Secondary loses.
        DiscardSecondary = "discard-secondary",
        /// As after-sb-0pri; if the Primary loses, its handler is called.
        CallPriLost = "call-pri-lost-after-sb",
        /// As after-sb-0pri, even if the Primary loses under its users.
        ViolentlyAs0p = "violently-as0p",
    }
    /// Split brain, both nodes Primary.
    AfterSb2 {
        /// Disconnect and leave it to the operator.
        Disconnect = "disconnect",
        /// As after-sb-0pri; the loser's handler is called.
        CallPriLost = "call-pri-lost-after-sb",
        /// As after-sb-0pri, under the loser's users.
        ViolentlyAs0p = "violently-as0p",
    }
    /// A resync direction that contradicts the roles (semantics §4.6).
    RrConflict {
        /// Disconnect.
        Disconnect = "disconnect",
        /// The loser's handler is called.
        CallPriLost = "call-pri-lost",
        /// The Primary becomes the target under its users.
        Violently = "violently",
        /// Drop the connection and try again.
        RetryConnect = "retry-connect",
        /// The node with the older data gives in.
        AutoDiscard = "auto-discard",
    }
    /// A congested connection (protocol A; semantics §8.7).
    OnCongestion {
        /// Writes wait.
        Block = "block",
        /// Send out-of-sync ranges instead of data.
        PullAhead = "pull-ahead",
        /// Disconnect.
        Disconnect = "disconnect",
    }
    /// What a Primary does about a lost peer (semantics §6.4).
    Fencing {
        /// Nothing.
        DontCare = "dont-care",
        /// Calls the handler.
        ResourceOnly = "resource-only",
        /// Suspends I/O and calls the handler.
        ResourceAndStonith = "resource-and-stonith",
    }
}

/// How many votes a partition needs (semantics §6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Quorum {
    /// No rule.
    Off,
    /// More than half of the voters.
    Majority,
    /// Every voter.
    All,
    /// At least so many, 1..=32.
    Count(u8),
}

impl Quorum {
    /// The words besides a number.
    pub const WORDS: &'static [&'static str] = &["off", "majority", "all"];
}

impl Value for Quorum {
    fn from_raw(raw: Raw, _: Unit) -> Option<Quorum> {
        match raw {
            Raw::Word("off") => Some(Quorum::Off),
            Raw::Word("majority") => Some(Quorum::Majority),
            Raw::Word("all") => Some(Quorum::All),
            Raw::Number(n) => u8::try_from(n).ok().map(Quorum::Count),
            _ => None,
        }
    }
    fn to_raw(&self, _: Unit) -> Raw {
        match *self {
            Quorum::Off => Raw::Word("off"),
            Quorum::Majority => Raw::Word("majority"),
            Quorum::All => Raw::Word("all"),
            Quorum::Count(n) => Raw::Number(n.into()),
        }
    }
}

/// A rate in KiB per second.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct KibPerSecond(pub u32);

impl KibPerSecond {
    /// In bytes per second.
    pub const fn bytes(self) -> u64 {
        self.0 as u64 * 1024
    }

    /// In 512-byte sectors per second.
    pub const fn sectors(self) -> u64 {
        self.0 as u64 * 2
    }
}

impl Value for bool {
    fn from_raw(raw: Raw, _: Unit) -> Option<bool> {
        if let Raw::Bool(b) = raw { Some(b) } else { None }
    }
    fn to_raw(&self, _: Unit) -> Raw {
        Raw::Bool(*self)
    }
}

impl Value for String {
    fn from_raw(raw: Raw, _: Unit) -> Option<String> {
        if let Raw::Text(text) = raw { Some(text) } else { None }
    }
    fn to_raw(&self, _: Unit) -> Raw {
        Raw::Text(self.clone())
    }
}

impl Value for Duration {
    fn from_raw(raw: Raw, unit: Unit) -> Option<Duration> {
        let Raw::Number(n) = raw else { return None };
        Some(unit.tick()? * u32::try_from(n).ok()?)
    }
    fn to_raw(&self, unit: Unit) -> Raw {
        // Rounds up, as every conversion to a coarser unit does.
        let tick = unit.tick().expect("the table counts durations in a unit of time");
        Raw::Number(u64::try_from(self.as_millis().div_ceil(tick.as_millis())).unwrap_or(u64::MAX))
    }
}

macro_rules! numbers {
    ($($type:ty, $make:expr, $take:expr;)+) => {$(
        impl Value for $type {
            fn from_raw(raw: Raw, _: Unit) -> Option<$type> {
                let Raw::Number(n) = raw else { return None };
                n.try_into().ok().map($make)
            }
            fn to_raw(&self, _: Unit) -> Raw {
                let take: fn(&$type) -> u64 = $take;
                Raw::Number(take(self))
            }
        }
    )+};
}

numbers! {
    u32, |n: u32| n, |n| u64::from(*n);
    Bytes, |n: u64| Bytes(n), |n| n.0;
    Sectors, |n: u64| Sectors(n), |n| n.0;
    Minor, |n: u32| Minor(n), |n| u64::from(n.0);
    KibPerSecond, |n: u32| KibPerSecond(n), |n| u64::from(n.0);
}

/// An option that may be unset. DRBD spells that as a number no value can have, so the tables name
/// it as their only word; `auto` is ours.
macro_rules! unset {
    ($($type:ty = $word:literal;)+) => {$(
        impl Value for Option<$type> {
            fn from_raw(raw: Raw, unit: Unit) -> Option<Option<$type>> {
                match raw {
                    Raw::Word(_) => Some(None),
                    raw => <$type>::from_raw(raw, unit).map(Some),
                }
            }
            fn to_raw(&self, unit: Unit) -> Raw {
                self.as_ref().map_or(Raw::Word($word), |value| value.to_raw(unit))
            }
        }
    )+};
}

unset! {
    Minor = "-1";
    Bytes = "4294967295";
    Duration = "auto";
    Sectors = "auto";
    KibPerSecond = "auto";
}
