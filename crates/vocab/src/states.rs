//! States in DRBD's spelling and numbering (drbd.h; `drbd_strings.c` for the names).
//!
//! The numbers travel on the wire (P_STATE) and order the disk states, so comparisons such as
//! `disk < DiskState::Outdated` mean what the specification writes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A word that names no state of that kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// What kind of state was wanted.
    pub kind: &'static str,
    /// The word found.
    pub word: String,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a {}", self.word, self.kind)
    }
}

impl std::error::Error for UnknownName {}

macro_rules! states {
    ($(#[$meta:meta])* $name:ident, $kind:literal { $($(#[$vmeta:meta])* $variant:ident = $nr:literal, $word:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum $name { $($(#[$vmeta])* $variant = $nr,)+ }

        impl $name {
            /// Every value, ascending.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The number as on the wire.
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// The value with that number, if there is one.
            pub const fn from_number(nr: u8) -> Option<$name> {
                match nr { $($nr => Some($name::$variant),)+ _ => None }
            }

            /// The word operators know.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;
            fn from_str(word: &str) -> Result<Self, UnknownName> {
                match word {
                    $($word => Ok($name::$variant),)+
                    _ => Err(UnknownName { kind: $kind, word: word.to_owned() }),
                }
            }
        }
    };
}

states! {
    /// Role of a node for a resource.
    Role, "role" {
        /// Only of peers that are not connected.
        Unknown = 0, "Unknown";
        /// May open the volumes for writing.
        Primary = 1, "Primary";
        /// Holds replicas for others.
        Secondary = 2, "Secondary";
    }
}

states! {
    /// State of a volume's backing disk, ordered from worst to best (semantics §1.3).
    DiskState, "disk state" {
        /// No backing device (never had, detached or failed).
        Diskless = 0, "Diskless";
        /// Metadata is being read.
        Attaching = 1, "Attaching";
        /// Graceful detach running.
        Detaching = 2, "Detaching";
        /// I/O failure reported, detach running.
        Failed = 3, "Failed";
        /// Metadata read, waiting for the comparison with connected peers.
        Negotiating = 4, "Negotiating";
        /// Mixture of generations: only blocks without out-of-sync bits are valid.
        Inconsistent = 5, "Inconsistent";
        /// A consistent snapshot, known to be older than data elsewhere.
        Outdated = 6, "Outdated";
        /// Peer disks only: no connection.
        DUnknown = 7, "DUnknown";
        /// A consistent snapshot, not known whether the newest.
        Consistent = 8, "Consistent";
        /// Consistent and current.
        UpToDate = 9, "UpToDate";
    }
}

states! {
    /// State of a connection to a peer (semantics §1.4).
    ConnState, "connection state" {
        /// Not configured to connect; only a connect command leaves this.
        StandAlone = 0, "StandAlone";
        /// On the way to StandAlone.
        Disconnecting = 1, "Disconnecting";
        /// About to try to connect.
        Unconnected = 2, "Unconnected";
        /// Lost: no answer within ko-count times timeout.
        Timeout = 3, "Timeout";
        /// Lost: the link broke.
        BrokenPipe = 4, "BrokenPipe";
        /// Lost: a ping was not answered.
        NetworkFailure = 5, "NetworkFailure";
        /// Lost: the peer broke the protocol.
        ProtocolError = 6, "ProtocolError";
        /// The peer closed gracefully.
        TearDown = 7, "TearDown";
        /// Trying to reach the peer, or in the handshake.
        Connecting = 8, "Connecting";
        /// Handshake complete.
        Connected = 9, "Connected";
    }
}

states! {
    /// Replication state of one volume towards one peer (semantics §1.5).
    ReplState, "replication state" {
        /// Not connected.
        Off = 9, "Off";
        /// Mirroring.
        Established = 10, "Established";
        /// Full resync requested, this node is the source.
        StartingSyncS = 11, "StartingSyncS";
        /// Full resync requested, this node is the target.
        StartingSyncT = 12, "StartingSyncT";
        /// Bitmap exchange as source.
        WFBitMapS = 13, "WFBitMapS";
        /// Bitmap exchange as target.
        WFBitMapT = 14, "WFBitMapT";
        /// Protocol 8 only: waiting for the generation identifier of the resync.
        WFSyncUUID = 15, "WFSyncUUID";
        /// Resync running, this node sends.
        SyncSource = 16, "SyncSource";
        /// Resync running, this node receives.
        SyncTarget = 17, "SyncTarget";
        /// Online verify running, started here.
        VerifyS = 18, "VerifyS";
        /// Online verify running, started by the peer.
        VerifyT = 19, "VerifyT";
        /// Resync agreed and paused, this node is the source.
        PausedSyncS = 20, "PausedSyncS";
        /// Resync agreed and paused, this node is the target.
        PausedSyncT = 21, "PausedSyncT";
        /// Congested: out-of-sync ranges are sent instead of data.
        Ahead = 22, "Ahead";
        /// The peer is Ahead.
        Behind = 23, "Behind";
    }
}

impl ConnState {
    /// The link was lost without the peer's agreement: Timeout, BrokenPipe, NetworkFailure,
    /// ProtocolError. TearDown and an agreed Disconnecting are graceful.
    pub const fn is_ungraceful_loss(self) -> bool {
        matches!(
            self,
            ConnState::Timeout
                | ConnState::BrokenPipe
                | ConnState::NetworkFailure
                | ConnState::ProtocolError
        )
    }
}

impl ReplState {
    /// This node receives resync data, or is about to: a target side state.
    pub const fn is_target(self) -> bool {
        matches!(
            self,
            ReplState::StartingSyncT
                | ReplState::WFBitMapT
                | ReplState::WFSyncUUID
                | ReplState::SyncTarget
                | ReplState::PausedSyncT
                | ReplState::Behind
        )
    }

    /// This node sends resync data, or is about to: a source side state.
    pub const fn is_source(self) -> bool {
        matches!(
            self,
            ReplState::StartingSyncS
                | ReplState::WFBitMapS
                | ReplState::SyncSource
                | ReplState::PausedSyncS
                | ReplState::Ahead
        )
    }

    /// A resync is agreed (states 16, 17, 20, 21: "sync states" of the wire protocol, which also
    /// count the verify states 18 and 19 in between).
    pub const fn in_sync_states(self) -> bool {
        let nr = self as u8;
        16 <= nr && nr <= 21
    }
}

/// Why I/O of a resource is suspended; it is iff any reason is set (semantics §1.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Suspended {
    /// An operator suspended it.
    pub user: bool,
    /// A Primary lost access to UpToDate data.
    pub no_data: bool,
    /// A peer must be fenced first.
    pub fencing: bool,
    /// Quorum is lost.
    pub quorum: bool,
    /// A new data generation is being made durable before I/O goes on (shown as `quorum`).
    pub uuid_bridge: bool,
}

impl Suspended {
    /// True if any reason is set.
    pub const fn any(self) -> bool {
        self.user || self.no_data || self.fencing || self.quorum || self.uuid_bridge
    }
}

impl fmt::Display for Suspended {
    /// `no`, or the reasons in drbdsetup's order: user,no-data,fencing,quorum.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = [
            (self.user, "user"),
            (self.no_data, "no-data"),
            (self.fencing, "fencing"),
            (self.quorum || self.uuid_bridge, "quorum"),
        ];
        let mut first = true;
        for (_, word) in reasons.iter().filter(|(set, _)| *set) {
            if !first {
                f.write_str(",")?;
            }
            f.write_str(word)?;
            first = false;
        }
        if first { f.write_str("no") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_names<T: FromStr<Err = UnknownName> + fmt::Display + Copy + PartialEq + fmt::Debug>(
        all: &[T],
        words: &str,
    ) {
        assert_eq!(all.iter().map(T::to_string).collect::<Vec<_>>().join(" "), words);
        for state in all {
            assert_eq!(state.to_string().parse::<T>().unwrap(), *state);
        }
        assert!("nonsense".parse::<T>().is_err());
    }

    #[test]
    fn spelling_is_drbdsetups() {
        check_names(Role::ALL, "Unknown Primary Secondary");
        check_names(
            DiskState::ALL,
            "Diskless Attaching Detaching Failed Negotiating Inconsistent Outdated DUnknown \
             Consistent UpToDate",
        );
        check_names(
            ConnState::ALL,
            "StandAlone Disconnecting Unconnected Timeout BrokenPipe NetworkFailure \
             ProtocolError TearDown Connecting Connected",
        );
        check_names(
            ReplState::ALL,
            "Off Established StartingSyncS StartingSyncT WFBitMapS WFBitMapT WFSyncUUID \
             SyncSource SyncTarget VerifyS VerifyT PausedSyncS PausedSyncT Ahead Behind",
        );
    }

    #[test]
    fn suspension_prints_reasons_in_order() {
        let mut s = Suspended::default();
        assert_eq!(s.to_string(), "no");
        s.quorum = true;
        s.user = true;
        s.uuid_bridge = true;
        assert_eq!(s.to_string(), "user,quorum");
    }
}
