//! Flag words of the superblock (metadata §5.2, §5.3). Unknown bits are kept as they are.

use std::fmt;
use std::ops::BitOr;

use serde::{Deserialize, Serialize};

macro_rules! flag_word {
    ($(#[$meta:meta])* $name:ident { $($(#[$flag_meta:meta])* $flag:ident = $bit:literal;)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl $name {
            $($(#[$flag_meta])* pub const $flag: $name = $name($bit);)+

            /// No flag.
            pub const EMPTY: $name = $name(0);

            /// True if every flag of `other` is set.
            pub const fn contains(self, other: $name) -> bool {
                self.0 & other.0 == other.0
            }

            /// The word with `other` set.
            pub const fn with(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }

            /// The word with `other` cleared.
            pub const fn without(self, other: $name) -> $name {
                $name(self.0 & !other.0)
            }

            /// Sets or clears `other`.
            pub fn set(&mut self, other: $name, on: bool) {
                *self = if on { self.with(other) } else { self.without(other) };
            }
        }

        impl BitOr for $name {
            type Output = $name;
            fn bitor(self, other: $name) -> $name {
                self.with(other)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut rest = self.0;
                let mut set = f.debug_set();
                $(if rest & $bit != 0 {
                    rest &= !$bit;
                    set.entry(&format_args!(stringify!($flag)));
                })+
                if rest != 0 {
                    set.entry(&format_args!("{rest:#x}"));
                }
                set.finish()
            }
        }
    };
}

flag_word! {
    /// Device flags, superblock offset 0x38 (metadata §5.2).
    MdFlags {
        /// The disk is better than Inconsistent.
        CONSISTENT = 0x001;
        /// Some node is or was Primary: after a crash the activity log must be applied.
        PRIMARY_IND = 0x002;
        /// v08 only: the peer was connected. Unused in v09.
        V08_CONNECTED = 0x004;
        /// v08 only: a full sync is needed. Unused in v09.
        V08_FULL_SYNC = 0x008;
        /// The disk was Consistent or UpToDate.
        WAS_UP_TO_DATE = 0x010;
        /// v08 only: the peer's disk was outdated. Unused in v09.
        V08_PEER_OUTDATED = 0x020;
        /// This node was Primary when it last wrote its superblock.
        CRASHED_PRIMARY = 0x040;
        /// The activity log was applied and re-initialised: the kernel may attach.
        AL_CLEAN = 0x080;
        /// The activity log is not kept (metadata §3.6).
        AL_DISABLED = 0x100;
        /// This node was Primary when quorum was lost.
        PRIMARY_LOST_QUORUM = 0x200;
        /// This node had quorum at the last state change.
        HAVE_QUORUM = 0x400;
    }
}

flag_word! {
    /// Flags towards one peer, offset 16 of its entry (metadata §5.3).
    PeerFlags {
        /// The replication link was above Off.
        CONNECTED = 0x1;
        /// The peer's disk was Inconsistent or Outdated when last known.
        OUTDATED = 0x2;
        /// A fencing policy other than dont-care is configured.
        FENCING = 0x4;
        /// The slot's content is invalid: treat it as all ones.
        FULL_SYNC = 0x8;
        /// The peer had a disk at some time.
        DEVICE_SEEN = 0x10;
        /// There is evidence that this node exists.
        NODE_EXISTS = 0x1_0000;
        /// In DRBD's memory only: the peer has a bitmap slot. Never decoded nor encoded.
        HAVE_BITMAP = 0x8000_0000;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_print_their_names_and_keep_unknown_bits() {
        let flags = MdFlags(0x8000_0081);
        assert!(flags.contains(MdFlags::AL_CLEAN | MdFlags::CONSISTENT));
        assert_eq!(format!("{flags:?}"), "{CONSISTENT, AL_CLEAN, 0x80000000}");
        assert_eq!(flags.without(MdFlags::CONSISTENT).0, 0x8000_0080);
        let mut peer = PeerFlags::EMPTY;
        peer.set(PeerFlags::NODE_EXISTS, true);
        assert_eq!(peer.0, 0x1_0000);
    }
}
