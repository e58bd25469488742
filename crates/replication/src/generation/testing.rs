//! Builders shared by the tests of comparison and resolution.

use super::HISTORY;
use super::compare::{Context, Occasion, Side};
use super::resolve::{Local, Policies};
use codec::wire::packet::{UuidFlags, feature};
use vocab::options::{AfterSb0, AfterSb1, AfterSb2, Protocol, RrConflict};
use vocab::{DiskState, GenUuid, MAX_NODES, NodeId, NodeMask, Role};

pub fn n(id: usize) -> NodeId {
    NodeId::new(id as u8).unwrap()
}

/// An UpToDate, stable Secondary that owes nothing to anybody.
pub fn side(node: usize, current: u64) -> Side {
    Side {
        node: n(node),
        current: GenUuid(current),
        bitmap: [GenUuid::NONE; MAX_NODES],
        history: [GenUuid::NONE; HISTORY],
        flags: UuidFlags::STABLE,
        dirty_blocks: 0,
        disk: DiskState::UpToDate,
        role: Role::Secondary,
        quorate: true,
        slots: NodeMask::ALL,
        attaching: false,
        lost_cache: false,
        lost_primary: None,
    }
}

#[allow(missing_docs, reason = "builders of tests, each sets what it is named for")]
impl Side {
    pub fn owes(mut self, node: usize, base: u64, blocks: u64) -> Side {
        self.bitmap[node] = GenUuid(base);
        self.dirty_blocks = blocks;
        self
    }

    pub fn past(mut self, history: &[u64]) -> Side {
        for (slot, uuid) in self.history.iter_mut().zip(history) {
            *slot = GenUuid(*uuid);
        }
        self
    }

    pub fn flag(mut self, flag: UuidFlags) -> Side {
        self.flags = self.flags.with(flag);
        self
    }

    pub fn disk(mut self, disk: DiskState) -> Side {
        self.disk = disk;
        self
    }

    pub fn primary(mut self) -> Side {
        self.role = Role::Primary;
        self
    }

    pub fn dirty(mut self, blocks: u64) -> Side {
        self.dirty_blocks = blocks;
        self
    }
}

/// Connecting under protocol C as our product does.
pub const CONNECTING: Context = Context {
    agreed: 122,
    features: 0x7f,
    protocol: Protocol::C,
    tie_break: true,
    occasion: Occasion::Connecting,
    own_changed: false,
};

pub const DEFAULTS: Policies = Policies {
    quorum: false,
    after_sb_0pri: AfterSb0::Disconnect,
    after_sb_1pri: AfterSb1::Disconnect,
    after_sb_2pri: AfterSb2::Disconnect,
    always_asbp: false,
    rr_conflict: RrConflict::Disconnect,
    tentative: false,
};

pub const LOCAL: Local =
    Local { unallocated_slot: true, syncing_elsewhere: false, worn: NodeMask::EMPTY };

/// What the peer has configured: the same, seen from the other end.
pub fn mirrored(policies: Policies) -> Policies {
    let after_sb_0pri = match policies.after_sb_0pri {
        AfterSb0::DiscardLocal => AfterSb0::DiscardRemote,
        AfterSb0::DiscardRemote => AfterSb0::DiscardLocal,
        other => other,
    };
    Policies { after_sb_0pri, ..policies }
}

/// xorshift64*: the seed is the whole state.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

/// A side made of a handful of values, so that they collide all the time.
pub fn random_side(rng: &mut Random, node: usize) -> Side {
    let current = rng.pick(&[0, 4, 0x10, 0x11, 0x20, 0x21, 0x30, 0x40, 0x50]);
    let mut side = side(node, current);
    for slot in 0..5 {
        side.bitmap[slot] = GenUuid(rng.pick(&[0, 0, 0, 0x10, 0x20, 0x21, 0x30, 0x41, u64::MAX]));
    }
    for slot in 0..rng.below(4) {
        side.history[slot] = GenUuid(rng.pick(&[0x10, 0x20, 0x30, 0x40, 0x50, 0x60]));
    }
    let flags = [
        UuidFlags::DISCARD_MY_DATA,
        UuidFlags::CRASHED_PRIMARY,
        UuidFlags::INCONSISTENT,
        UuidFlags::RECONNECT,
        UuidFlags::PRIMARY_LOST_QUORUM,
        UuidFlags::SYNC_TARGET,
    ];
    side.flags = UuidFlags(0).with_if(!rng.chance(4), UuidFlags::STABLE);
    for flag in flags {
        side.flags = side.flags.with_if(rng.chance(4), flag);
    }
    side.dirty_blocks = rng.pick(&[0, 0, 1, 2]);
    side.disk = rng.pick(&[
        DiskState::Negotiating,
        DiskState::Inconsistent,
        DiskState::Outdated,
        DiskState::Consistent,
        DiskState::UpToDate,
        DiskState::UpToDate,
    ]);
    side.role = rng.pick(&[Role::Secondary, Role::Secondary, Role::Primary]);
    side.quorate = rng.chance(2);
    side
}

pub fn random_context(rng: &mut Random) -> Context {
    Context {
        agreed: 110 + rng.below(15) as u32,
        features: rng.pick(&[0x7f, 0x3ff, 0x3ff | feature::BITS_OF_EQUALS]),
        protocol: rng.pick(&[Protocol::A, Protocol::B, Protocol::C]),
        tie_break: rng.chance(2),
        occasion: rng.pick(&[
            Occasion::Connecting,
            Occasion::Connecting,
            Occasion::Attaching,
            Occasion::Reconsidering,
        ]),
        own_changed: false,
    }
}

pub fn other_end(context: &Context) -> Context {
    Context { tie_break: !context.tie_break, ..*context }
}
