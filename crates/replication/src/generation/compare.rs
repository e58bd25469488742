//! What two nodes conclude from each other's generations (semantics §4.5, wire §9.4).
//!
//! Both ends evaluate the same rules on the same inputs, exchanged in the handshake, and must
//! come to mirrored results. So a [`Side`] holds what a node *sent*, its own included
//! (invariant 23), and a result that the peer would not mirror is no result but
//! [`Rule::Contradiction`] (invariant 18): it needs generations that no history of a correct
//! cluster can produce, such as a disk copied back from a snapshot under a node id in use.

use super::resolve::legacy;
use super::{Generations, UNKNOWN, is_generation};
use codec::wire::packet::{UuidFlags, Uuids110, feature};
use std::fmt;
use vocab::options::Protocol;
use vocab::{Dagtag, DiskState, GenUuid, MAX_NODES, NodeId, NodeMask, Role};

#[cfg(test)]
mod tests;

/// What one end brings to the comparison. Everything but `slots` travels on the wire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Side {
    /// The node.
    pub node: NodeId,
    /// Its current generation as sent: that of its source while it is target of a third node.
    pub current: GenUuid,
    /// Its bitmap generations as sent, by node id; [`UNKNOWN`] for slots not in the list.
    pub bitmap: [GenUuid; MAX_NODES],
    /// Its history.
    pub history: [GenUuid; super::HISTORY],
    /// The flags it sent.
    pub flags: UuidFlags,
    /// Blocks it counts as out of sync towards the other end.
    pub dirty_blocks: u64,
    /// Its disk as sent.
    pub disk: DiskState,
    /// The disk is being attached: nobody reads from it or relies on it yet.
    pub attaching: bool,
    /// Its role.
    pub role: Role,
    /// The quorum bit of its state.
    pub quorate: bool,
    /// Its disk stopped under writes, and may have lost what its cache had.
    pub lost_cache: bool,
    /// Nodes it has a bitmap slot for. Not sent: all nodes for the peer's side.
    pub slots: NodeMask,
    /// A Primary it lost and named in this handshake, and how far it had received from it.
    pub lost_primary: Option<(NodeId, Dagtag)>,
}

impl Side {
    /// A peer that sent these UUIDs; state and the rest are to be filled in.
    pub fn from_packet(node: NodeId, uuids: &Uuids110, disk: DiskState, role: Role) -> Side {
        let mut bitmap = [UNKNOWN; MAX_NODES];
        for (id, uuid) in &uuids.bitmap_uuids {
            if let Some(slot) = bitmap.get_mut(usize::from(*id)) {
                *slot = *uuid;
            }
        }
        let mut history = [GenUuid::NONE; super::HISTORY];
        for (slot, uuid) in history.iter_mut().zip(&uuids.history) {
            *slot = *uuid;
        }
        Side {
            node,
            current: uuids.current,
            bitmap,
            history,
            flags: uuids.flags,
            dirty_blocks: uuids.dirty_bits,
            disk,
            attaching: false,
            role,
            quorate: true,
            slots: NodeMask::ALL,
            lost_cache: false,
            lost_primary: None,
        }
    }

    /// This node, not taking part in any resync, without flags: the start for filling in.
    pub fn from_generations(node: NodeId, gens: &Generations, disk: DiskState, role: Role) -> Side {
        Side {
            node,
            current: gens.current(),
            bitmap: gens.bitmaps().map(|b| b.uuid),
            history: *gens.history(),
            flags: UuidFlags(0),
            dirty_blocks: 0,
            disk,
            attaching: false,
            role,
            quorate: true,
            slots: NodeMask::ALL,
            lost_cache: false,
            lost_primary: None,
        }
    }

    pub(super) fn has(&self, flag: UuidFlags) -> bool {
        self.flags.has(flag)
    }

    pub(super) fn towards(&self, peer: &Side) -> GenUuid {
        self.bitmap[peer.node.index()]
    }

    pub(super) fn is_primary(&self) -> bool {
        self.role == Role::Primary
    }

    /// The disk state both ends can judge by. A disk that is Negotiating has not said what it is
    /// but for the INCONSISTENT flag; a kernel node then takes its peer for Consistent
    /// ("real peer disk state = Consistent", capture 18), so both ends do here.
    pub(super) fn judged_disk(&self) -> DiskState {
        match self.disk {
            DiskState::Negotiating if self.has(UuidFlags::INCONSISTENT) => DiskState::Inconsistent,
            DiskState::Negotiating => DiskState::Consistent,
            disk => disk,
        }
    }

    /// The first slot of another node that starts at `uuid`.
    fn slot_at(&self, uuid: GenUuid, except: NodeId, with_bitmap: bool) -> Option<NodeId> {
        NodeId::all().filter(|node| *node != except && *node != self.node).find(|node| {
            self.bitmap[node.index()].same(uuid) && (!with_bitmap || self.slots.contains(*node))
        })
    }

    fn remembers(&self, uuid: GenUuid) -> bool {
        self.history.iter().any(|h| h.same(uuid))
    }

    /// The generation of the peer began at that of this disk, and is one of its past.
    fn gave_up(&self, peer: &Side) -> bool {
        let began = peer.towards(self).same(self.current)
            || peer.slot_at(self.current, self.node, false).is_some();
        began && self.remembers(peer.current)
    }

    /// This disk was at that generation, or is.
    fn knows(&self, uuid: GenUuid) -> bool {
        let slots = self.bitmap.iter().any(|b| b.same(uuid));
        self.current.same(uuid) || slots || self.remembers(uuid)
    }

    /// Generations that this disk has left behind.
    fn left(&self) -> impl Iterator<Item = GenUuid> + '_ {
        let all = self.history.iter().chain(&self.bitmap).copied();
        all.filter(|u| is_generation(*u) && !u.same(self.current))
    }

    /// The generation of this disk counts on the peer, which has never been at it. The peer was to
    /// take it before any write that belongs to it, or another one would have begun without the
    /// peer: no write was ever reported from it (invariant 16).
    fn counts_on(&self, peer: &Side) -> bool {
        let base = self.towards(peer);
        (base.is_none() || base.same(self.current)) && !peer.knows(self.current)
    }
}

/// Why two nodes compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occasion {
    /// Connect handshake.
    Connecting,
    /// A disk of one end attaches while connected.
    Attaching,
    /// On an established connection: an end became stable or was forced UpToDate.
    Reconsidering,
}

/// What both ends have agreed on, and what only this end knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    /// Agreed protocol version; below 110 the rules of protocol 8 apply (`resolve::legacy`).
    pub agreed: u32,
    /// Agreed feature flags.
    pub features: u32,
    /// Replication protocol of the connection.
    pub protocol: Protocol,
    /// This end holds the transport's tie-break role (RESOLVE_CONFLICTS); the peer does not.
    pub tie_break: bool,
    /// Why we compare.
    pub occasion: Occasion,
    /// This node's generations or flags differ from those it sent (INCONSISTENT ignored).
    pub own_changed: bool,
}

impl Context {
    /// The peer is one of protocol 8.
    pub(super) fn is_legacy(&self) -> bool {
        self.agreed < 110
    }

    fn mirrored(self) -> Context {
        Context { tie_break: !self.tie_break, own_changed: false, ..self }
    }
}

/// How the target learns which blocks to fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strategy {
    /// By the bits both ends have.
    Bitmap,
    /// Everything.
    Full,
    /// By the source's bits for this other node; the target's own do not count.
    CopySlot(NodeId),
    /// By the bits, in this direction unless a Primary decides otherwise.
    IfBothFailed,
}

/// The result of a comparison, from this node's point of view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// Equal data.
    NoSync,
    /// The peer lacks something.
    Source(Strategy),
    /// This node lacks something.
    Target(Strategy),
    /// Both have what the other lacks. `auto` if bitmaps reach back to where they parted.
    SplitBrain {
        /// Recoverable by bitmap.
        auto: bool,
    },
    /// Nothing in common.
    Unrelated,
    /// Connect again and exchange everything anew.
    Retry,
    /// The peer would not mirror any result.
    Contradiction,
}

impl Finding {
    /// What the peer finds. The slot to copy is the source's business.
    fn is_mirrored_by(self, theirs: Finding) -> bool {
        let same = |a: Strategy, b: Strategy| {
            a == b || matches!((a, b), (Strategy::CopySlot(_), Strategy::CopySlot(_)))
        };
        match (self, theirs) {
            (Finding::Source(a), Finding::Target(b)) | (Finding::Target(a), Finding::Source(b)) => {
                same(a, b)
            }
            (Finding::Source(_) | Finding::Target(_), _) => false,
            (mine, theirs) => mine == theirs,
        }
    }
}

macro_rules! rules {
    ($($(#[$meta:meta])* $variant:ident = $word:literal;)+) => {
        /// The rule that decided, in order of precedence. Spelled as kernel nodes log them where
        /// captures show it.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Rule { $($(#[$meta])* $variant),+ }

        impl Rule {
            /// All rules.
            pub const ALL: &'static [Rule] = &[$(Rule::$variant),+];

            /// Its name in logs.
            pub const fn word(self) -> &'static str {
                match self { $(Rule::$variant => $word),+ }
            }
        }
    };
}

rules! {
    /// 0: what this node sent is not true any more.
    OwnChanged = "own-uuids-changed";
    /// 1: two empty disks.
    JustCreatedBoth = "just-created-both";
    /// 2: this disk is empty.
    JustCreatedSelf = "just-created-self";
    /// 3: the peer's disk is empty.
    JustCreatedPeer = "just-created-peer";
    /// 4a: a resync from here had ended at the target, and the end was not heard.
    SourceMissedEnd = "source-missed-end";
    /// 4b: the same at the peer.
    TargetMissedEnd = "target-missed-end";
    /// 4c, 4f: both were connected before and neither has restarted.
    BothReconnected = "both-reconnected";
    /// 4d: under protocol A or B one end crashed as Primary.
    OneCrashed = "one-crashed-primary";
    /// 4e: a Primary that lost quorum may hold writes that failed.
    LostQuorum = "lost-quorum";
    /// 4g, 4h: one end crashed as Primary, the other was connected before.
    CrashedReconnected = "crashed-primary-reconnected";
    /// 4i: one end was connected before.
    OneReconnected = "one-reconnected";
    /// 4j, 4k: one or both crashed as Primary.
    Crashed = "crashed-primary";
    /// 4l: equal generations, nothing happened.
    BothOff = "both-off";
    /// No rule of DRBD's: this generation began at the one that the peer is at, and the peer has given
    /// it up: it is one of its past.
    GivenUpSelf = "given-up-self";
    /// No rule of DRBD's: the same about the peer's generation.
    GivenUpPeer = "given-up-peer";
    /// 5: the peer's bits for this node start at this generation.
    BitmapPeer = "bitmap-peer";
    /// Protocol 8 only: the peer began a resync to here, and P_SYNC_UUID did not arrive.
    SyncUuidLostSelf = "sync-uuid-lost-self";
    /// Protocol 8 only: the same from here to the peer.
    SyncUuidLostPeer = "sync-uuid-lost-peer";
    /// 6: the peer's bits for another node start at this generation.
    BitmapPeerOther = "bitmap-peer-other";
    /// 7: this node's bits for the peer start at the peer's generation.
    BitmapSelf = "bitmap-self";
    /// 8: this node's bits for another node start at the peer's generation.
    BitmapSelfOther = "bitmap-self-other";
    /// 9: this generation is one the peer has left.
    HistoryPeer = "history-peer";
    /// 10: the peer's generation is one this node has left.
    HistorySelf = "history-self";
    /// No rule of DRBD's: this generation counts on the peer, which has never been at it.
    NeverBegunSelf = "never-begun-self";
    /// No rule of DRBD's: the peer's generation counts on this disk, which has never been at it.
    NeverBegunPeer = "never-begun-peer";
    /// 11: both have bits for the other that start at the same generation.
    BitmapBoth = "bitmap-both";
    /// 12: a common ancestor, and no bits that reach back to it.
    HistoryBoth = "history-both";
    /// 13: nothing in common.
    Unrelated = "unrelated";
    /// The ends would not agree on any of the above.
    Contradiction = "contradiction";
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// What was found, and by which rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// The rule that decided.
    pub rule: Rule,
    /// The result.
    pub finding: Finding,
}

impl fmt::Display for Verdict {
    /// As kernel nodes log it, `source-use-bitmap by rule=bitmap-self`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let strategy = |f: &mut fmt::Formatter<'_>, side: &str, strategy: Strategy| match strategy {
            Strategy::Bitmap => write!(f, "{side}-use-bitmap"),
            Strategy::Full => write!(f, "{side}-set-bitmap"),
            Strategy::CopySlot(node) => write!(f, "{side}-copy-bitmap of node {node}"),
            Strategy::IfBothFailed => write!(f, "{side}-if-both-failed"),
        };
        match self.finding {
            Finding::NoSync => f.write_str("no-sync")?,
            Finding::Source(s) => strategy(f, "source", s)?,
            Finding::Target(s) => strategy(f, "target", s)?,
            Finding::SplitBrain { auto: true } => f.write_str("split-brain-auto-recover")?,
            Finding::SplitBrain { auto: false } => f.write_str("split-brain-disconnect")?,
            Finding::Unrelated => f.write_str("unrelated-data")?,
            Finding::Retry => f.write_str("retry-connect")?,
            Finding::Contradiction => f.write_str("contradiction")?,
        }
        write!(f, " by rule={}", self.rule)
    }
}

/// Compares this node with a peer.
pub fn compare(context: &Context, me: &Side, peer: &Side) -> Verdict {
    if context.occasion == Occasion::Connecting && context.own_changed {
        return Verdict { rule: Rule::OwnChanged, finding: Finding::Retry };
    }
    let first_match = match context.is_legacy() {
        true => legacy::first_match,
        false => first_match,
    };
    let (rule, finding) = first_match(context, me, peer);
    let (_, theirs) = first_match(&context.mirrored(), peer, me);
    if !finding.is_mirrored_by(theirs) {
        return Verdict { rule: Rule::Contradiction, finding: Finding::Contradiction };
    }
    Verdict { rule, finding }
}

/// Rules 1 to 13 from one end's point of view; the first match wins.
fn first_match(context: &Context, me: &Side, peer: &Side) -> (Rule, Finding) {
    use Finding::{NoSync, Source, SplitBrain, Target};
    use Strategy::{Bitmap, CopySlot, Full};

    if me.current.same(UNKNOWN) || peer.current.same(UNKNOWN) {
        // No node has that generation; it must not be mistaken for a slot that was not sent.
        return (Rule::Unrelated, Finding::Unrelated);
    }
    match (me.current.is_just_created(), peer.current.is_just_created()) {
        (true, true) => return (Rule::JustCreatedBoth, NoSync),
        (true, false) => return (Rule::JustCreatedSelf, Target(Full)),
        (false, true) => return (Rule::JustCreatedPeer, Source(Full)),
        (false, false) => {}
    }
    if me.current.same(peer.current) {
        return equal_generations(context, me, peer);
    }
    let (mine, theirs) = (me.towards(peer), peer.towards(me));
    let ours = context.features & feature::BITS_OF_EQUALS != 0;
    if ours && theirs.same(me.current) && me.remembers(peer.current) {
        return (Rule::GivenUpPeer, Source(Bitmap));
    }
    if ours && mine.same(peer.current) && peer.remembers(me.current) {
        return (Rule::GivenUpSelf, Target(Bitmap));
    }
    // A third disk may have been the one that gave it up, or that took it.
    match (me.gave_up(peer), peer.gave_up(me)) {
        (true, false) if ours => return (Rule::GivenUpPeer, Source(Full)),
        (false, true) if ours => return (Rule::GivenUpSelf, Target(Full)),
        _ => {}
    }
    if theirs.same(me.current) {
        return (Rule::BitmapPeer, Target(Bitmap));
    }
    if let Some(slot) = peer.slot_at(me.current, me.node, false) {
        return (Rule::BitmapPeerOther, Target(CopySlot(slot)));
    }
    if mine.same(peer.current) {
        return (Rule::BitmapSelf, Source(Bitmap));
    }
    // Before 116 only slots with a bitmap counted; since then a node id without one stands for
    // the unallocated slot.
    if let Some(slot) = me.slot_at(peer.current, peer.node, context.agreed < 116) {
        return (Rule::BitmapSelfOther, Source(CopySlot(slot)));
    }
    match (peer.remembers(me.current), me.remembers(peer.current)) {
        (true, false) => return (Rule::HistoryPeer, Target(Full)),
        (false, true) => return (Rule::HistorySelf, Source(Full)),
        _ => {}
    }
    if ours && context.protocol == Protocol::C && me.left().any(|u| peer.knows(u)) {
        match (me.counts_on(peer), peer.counts_on(me)) {
            (true, false) => return (Rule::NeverBegunSelf, Target(Full)),
            (false, true) => return (Rule::NeverBegunPeer, Source(Full)),
            _ => {}
        }
    }
    if is_generation(mine) && mine.same(theirs) {
        return (Rule::BitmapBoth, SplitBrain { auto: true });
    }
    if me.history.iter().any(|h| is_generation(*h) && peer.remembers(*h)) {
        return (Rule::HistoryBoth, SplitBrain { auto: false });
    }
    (Rule::Unrelated, Finding::Unrelated)
}

/// True if `source` was source of a resync to `target` whose end it did not hear of: it still has
/// a base for the target, which has none for it. Looked at only in a connect handshake between
/// nodes that speak for themselves.
///
/// Ashlar nodes need no such rule: a Primary that loses a target starts a generation before it
/// writes on, and what they count as missing within one generation is resynced in any case.
pub(super) fn missed_end(context: &Context, source: &Side, target: &Side) -> bool {
    let base = source.towards(target);
    context.occasion == Occasion::Connecting
        && context.features & feature::BITS_OF_EQUALS == 0
        && !source.has(UuidFlags::SYNC_TARGET)
        && !target.has(UuidFlags::SYNC_TARGET)
        && is_generation(base)
        && !base.same(source.current)
        && target.towards(source).is_none()
}

/// No bits on either side.
pub(super) fn nothing_dirty(me: &Side, peer: &Side) -> bool {
    me.dirty_blocks == 0 && peer.dirty_blocks == 0
}

/// Row 4: the disks hold the same generation, unless a crash lost something on the way.
fn equal_generations(context: &Context, me: &Side, peer: &Side) -> (Rule, Finding) {
    use Finding::{NoSync, Source, Target};
    use Strategy::{Bitmap, IfBothFailed};

    if context.agreed < 124 || !nothing_dirty(me, peer) {
        if missed_end(context, me, peer) {
            return (Rule::SourceMissedEnd, Source(Bitmap));
        }
        if missed_end(context, peer, me) {
            return (Rule::TargetMissedEnd, Target(Bitmap));
        }
    }
    let both = |flag| (me.has(flag), peer.has(flag));
    let reconnect = both(UuidFlags::RECONNECT);
    let crashed = both(UuidFlags::CRASHED_PRIMARY);
    if context.agreed >= 120 && reconnect == (true, true) {
        return (Rule::BothReconnected, NoSync);
    }
    if context.agreed >= 121 && context.protocol != Protocol::C {
        match crashed {
            (true, false) => return (Rule::OneCrashed, Source(Bitmap)),
            (false, true) => return (Rule::OneCrashed, Target(Bitmap)),
            _ => {}
        }
    }
    match both(UuidFlags::PRIMARY_LOST_QUORUM) {
        (false, true) => return (Rule::LostQuorum, Target(IfBothFailed)),
        (true, false) => return (Rule::LostQuorum, Source(IfBothFailed)),
        (true, true) if context.tie_break => return (Rule::LostQuorum, Source(IfBothFailed)),
        (true, true) => return (Rule::LostQuorum, Target(IfBothFailed)),
        (false, false) => {}
    }
    match reconnect {
        (true, true) => return (Rule::BothReconnected, NoSync),
        (true, false) if peer.has(UuidFlags::CRASHED_PRIMARY) => {
            return (Rule::CrashedReconnected, Source(IfBothFailed));
        }
        (false, true) if me.has(UuidFlags::CRASHED_PRIMARY) => {
            return (Rule::CrashedReconnected, Target(IfBothFailed));
        }
        (true, false) | (false, true) => return (Rule::OneReconnected, NoSync),
        (false, false) => {}
    }
    match crashed {
        (true, true) if context.tie_break => (Rule::Crashed, Target(IfBothFailed)),
        (true, _) => (Rule::Crashed, Source(IfBothFailed)),
        (false, true) => (Rule::Crashed, Target(IfBothFailed)),
        (false, false) => (Rule::BothOff, NoSync),
    }
}
