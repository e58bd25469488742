//! How nodes of protocol 8 compare (DRBD 8.4, wire §9.4 "agreed < 110").
//!
//! They have one bitmap generation, for their one peer, and send two entries of their history. Each
//! end decides for itself: what is found here has to be what the peer finds.

use super::{Bits, Course, Handshake, Outcome, Refused};
use crate::generation::compare::{Context, Finding, Rule, Side, Strategy};
use crate::generation::{UNKNOWN, is_generation};
use codec::wire::packet::UuidFlags;
use vocab::{DiskState, GenUuid};

/// A source of a resync gives its bitmap generation a new value, so much beyond the old one.
const RESYNC_STEP: u64 = 1 << 48;

/// The rules from one end's point of view; the first match wins.
pub(in crate::generation) fn first_match(
    context: &Context,
    me: &Side,
    peer: &Side,
) -> (Rule, Finding) {
    use Finding::{NoSync, Source, SplitBrain, Target};
    use Strategy::{Bitmap, Full};

    match (me.current.is_just_created(), peer.current.is_just_created()) {
        (true, true) => return (Rule::JustCreatedBoth, NoSync),
        (true, false) => return (Rule::JustCreatedSelf, Target(Full)),
        (false, true) => return (Rule::JustCreatedPeer, Source(Full)),
        (false, false) => {}
    }
    let (mine, theirs) = (base(me, peer), base(peer, me));
    if me.current.same(peer.current) {
        return match (mine.is_none(), theirs.is_none()) {
            (false, true) => (Rule::SourceMissedEnd, Source(Bitmap)),
            (true, false) => (Rule::TargetMissedEnd, Target(Bitmap)),
            _ => after_crash(context, me, peer),
        };
    }
    if theirs.same(me.current) {
        return (Rule::BitmapPeer, Target(Bitmap));
    }
    if began_resync(peer, theirs, me.current) {
        return (Rule::SyncUuidLostSelf, Target(Bitmap));
    }
    if remembers(peer, me.current) {
        return (Rule::HistoryPeer, Target(Full));
    }
    if mine.same(peer.current) {
        return (Rule::BitmapSelf, Source(Bitmap));
    }
    if began_resync(me, mine, peer.current) {
        return (Rule::SyncUuidLostPeer, Source(Bitmap));
    }
    if remembers(me, peer.current) {
        return (Rule::HistorySelf, Source(Full));
    }
    if is_generation(mine) && mine.same(theirs) {
        return (Rule::BitmapBoth, SplitBrain { auto: true });
    }
    if past(me).iter().any(|uuid| is_generation(*uuid) && remembers(peer, *uuid)) {
        return (Rule::HistoryBoth, SplitBrain { auto: false });
    }
    (Rule::Unrelated, Finding::Unrelated)
}

/// The generation that a side's bits for the other count from.
fn base(side: &Side, other: &Side) -> GenUuid {
    let uuid = side.towards(other);
    if uuid == UNKNOWN { GenUuid::NONE } else { uuid }
}

/// The part of the history that is sent.
fn past(side: &Side) -> [GenUuid; 2] {
    [side.history[0], side.history[1]]
}

fn remembers(side: &Side, uuid: GenUuid) -> bool {
    past(side).iter().any(|past| past.same(uuid))
}

/// The side began a resync of a disk at `uuid`, which has not heard of the new value.
fn began_resync(side: &Side, base: GenUuid, uuid: GenUuid) -> bool {
    let before = past(side)[0];
    let after = GenUuid(before.masked().wrapping_add(RESYNC_STEP));
    before.same(uuid) && after.same(base)
}

/// Equal generations: a Primary that stopped may have written what the other lacks.
fn after_crash(context: &Context, me: &Side, peer: &Side) -> (Rule, Finding) {
    use Finding::{NoSync, Source, Target};
    use Strategy::IfBothFailed;

    let crashed = |side: &Side| side.has(UuidFlags::CRASHED_PRIMARY);
    match (crashed(me), crashed(peer)) {
        (false, false) => (Rule::BothOff, NoSync),
        (true, true) if context.tie_break => (Rule::Crashed, Target(IfBothFailed)),
        (true, _) => (Rule::Crashed, Source(IfBothFailed)),
        (false, true) => (Rule::Crashed, Target(IfBothFailed)),
    }
}

impl Handshake<'_> {
    /// From what was found to what is done. Bits of equal disks stay, and count for nothing.
    pub(super) fn legacy_course(&mut self) -> Result<Course, Outcome> {
        let full = match self.verdict.finding {
            Finding::Unrelated => return Err(Outcome::Refuse(Refused::Unrelated)),
            Finding::Contradiction => return Err(Outcome::Refuse(Refused::Contradiction)),
            Finding::Retry => return Err(Outcome::Retry(super::RetryReason::OwnChanged)),
            Finding::SplitBrain { auto } => !auto,
            Finding::Source(strategy) | Finding::Target(strategy) => strategy == Strategy::Full,
            Finding::NoSync => false,
        };
        let mixture = |side: &Side| side.judged_disk() == DiskState::Inconsistent;
        let strategy = if full { Strategy::Full } else { Strategy::Bitmap };
        let course = match (mixture(self.me), mixture(self.peer)) {
            (false, true) => Course::Source(strategy),
            (true, false) => Course::Target(strategy),
            _ => match self.verdict.finding {
                Finding::Source(strategy) => Course::Source(strategy),
                Finding::Target(strategy) => Course::Target(strategy),
                Finding::SplitBrain { auto } => self.split_brain(auto)?,
                _ => Course::NoSync(Bits::Keep),
            },
        };
        if matches!(course, Course::Source(_)) && mixture(self.me) {
            return Err(Outcome::Refuse(Refused::NoGoodSource));
        }
        self.rr_conflict(course)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::compare::compare;
    use crate::generation::testing::{CONNECTING, side};

    /// Current, bitmap and two of the history, as such nodes have them.
    type Four = [u64; 4];

    fn found(mine: Four, theirs: Four) -> Finding {
        let context = Context { agreed: 101, features: 0xf, ..CONNECTING };
        let side = |node: usize, [current, bitmap, younger, older]: Four| {
            side(node, current).owes(1 - node, bitmap, 0).past(&[younger, older])
        };
        compare(&context, &side(0, mine), &side(1, theirs)).finding
    }

    /// Identifiers and results as kernel nodes logged them, self first.
    #[test]
    fn kernel_nodes_came_to_the_same_results() {
        use Finding::{NoSync, Source, Target};
        use Strategy::Bitmap;
        let created = [4, 0, 0, 0];
        let (was, is) = (
            [0x9d26_5533_ef4a_ea0c, 0, 0, 0],
            [0xf174_b3f2_6f18_4d5d, 0x9d26_5533_ef4a_ea0d, 0, 0],
        );
        // Rules 10 and 70 of the captures, and 50, which is 70 seen from the other end.
        assert_eq!(found(created, created), NoSync);
        assert_eq!(found(is, was), Source(Bitmap));
        assert_eq!(found(was, is), Target(Bitmap));
        assert_eq!(found(was, was), NoSync);
    }

    #[test]
    fn a_resync_whose_first_packet_was_lost_is_begun_again_by_the_bits() {
        use Finding::{Source, Target};
        const OLD: u64 = 0x1000_0000_0000_0010;
        let source = [0x7777_0000_0000_0010, OLD + RESYNC_STEP, OLD, 0];
        let target = [OLD, 0, 0, 0];
        assert_eq!(found(source, target), Source(Strategy::Bitmap));
        assert_eq!(found(target, source), Target(Strategy::Bitmap));
    }

    #[test]
    fn bits_of_one_end_alone_are_those_of_a_resync_whose_end_it_missed() {
        let (busy, done) = ([0x70, 0x50, 0, 0], [0x70, 0, 0, 0]);
        assert_eq!(found(busy, done), Finding::Source(Strategy::Bitmap));
        assert_eq!(found(done, busy), Finding::Target(Strategy::Bitmap));
    }

    #[test]
    fn a_generation_of_the_past_is_brought_up_in_full_and_two_heirs_have_split() {
        let (new, old, other) = ([0x90, 0, 0x50, 0x40], [0x50, 0, 0, 0], [0xa0, 0, 0x50, 0]);
        assert_eq!(found(new, old), Finding::Source(Strategy::Full));
        assert_eq!(found(old, new), Finding::Target(Strategy::Full));
        assert_eq!(found(new, other), Finding::SplitBrain { auto: false });
        assert_eq!(
            found([0x90, 0x50, 0, 0], [0xa0, 0x50, 0, 0]),
            Finding::SplitBrain { auto: true }
        );
        assert_eq!(found([0x90, 0, 0, 0], [0xa0, 0, 0, 0]), Finding::Unrelated);
    }
}
