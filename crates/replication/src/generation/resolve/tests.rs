//! The steps after the comparison, split-brain policies, and mirrored outcomes.

use super::super::testing::{
    CONNECTING, DEFAULTS, LOCAL, Random, mirrored, n, other_end, random_context, random_side, side,
};
use super::*;
use Outcome::{NoSync, Refuse, Retry, Source};
use Strategy::{Bitmap, CopySlot, Full};
use vocab::{Dagtag, NodeMask, Role};

const CP: UuidFlags = UuidFlags::CRASHED_PRIMARY;
const LQ: UuidFlags = UuidFlags::PRIMARY_LOST_QUORUM;
const DISCARD: UuidFlags = UuidFlags::DISCARD_MY_DATA;

const fn target(strategy: Strategy) -> Outcome {
    Outcome::Target { strategy, demote_first: false }
}

fn run(context: Context, policies: Policies, me: &Side, peer: &Side) -> Resolution {
    resolve(&context, &policies, &LOCAL, me, peer)
}

/// Both ends' outcomes.
fn both(context: Context, policies: Policies, a: &Side, b: &Side) -> (Outcome, Outcome) {
    (
        run(context, policies, a, b).outcome,
        run(other_end(&context), mirrored(policies), b, a).outcome,
    )
}

fn at(agreed: u32) -> Context {
    Context { agreed, ..CONNECTING }
}

fn on(occasion: Occasion) -> Context {
    Context { occasion, ..CONNECTING }
}

// Steps 1 and 2

#[test]
fn what_can_not_be_compared_is_refused_or_retried() {
    let changed = Context { own_changed: true, ..CONNECTING };
    let retry = run(changed, DEFAULTS, &side(0, 0x10), &side(1, 0x10)).outcome;
    assert_eq!(retry, Retry(RetryReason::OwnChanged));
    let unrelated = both(CONNECTING, DEFAULTS, &side(0, 0x10), &side(1, 0x20));
    assert_eq!(unrelated, (Refuse(Refused::Unrelated), Refuse(Refused::Unrelated)));
    let (a, b) = (side(0, 0x20).owes(1, 0x30, 1), side(1, 0x30).owes(0, 0x20, 1));
    let each = Refuse(Refused::Contradiction);
    assert_eq!(both(CONNECTING, DEFAULTS, &a, &b), (each, each));
}

#[test]
fn a_missed_end_with_no_bits_is_cleared_by_the_source() {
    let (source, target_side) = (side(0, 0x10).owes(1, 0x20, 0), side(1, 0x10));
    let cleared = vec![Preparation::SetBitmapUuid(n(1), GenUuid::NONE)];
    let old = run(at(122), DEFAULTS, &source, &target_side);
    assert_eq!(old.outcome, Retry(RetryReason::MissedEnd));
    assert_eq!(old.preparations, cleared);
    let new = run(at(124), DEFAULTS, &source, &target_side);
    assert_eq!((new.outcome, new.preparations), (NoSync(Bits::Clear), cleared));
    // The target below 124: a Primary does not wait for the source's retry.
    let primary = target_side.primary();
    assert_eq!(run(at(122), DEFAULTS, &primary, &source).outcome, Retry(RetryReason::MissedEnd));
    assert_eq!(run(at(124), DEFAULTS, &primary, &source).outcome, NoSync(Bits::Clear));
}

// Step 3

#[test]
fn the_better_disk_is_source_where_a_crash_leaves_it_open() {
    use DiskState::{Consistent, Outdated, UpToDate};
    let crashed = side(0, 0x10).flag(CP).disk(Outdated);
    let well = side(1, 0x10).disk(Consistent);
    assert_eq!(both(CONNECTING, DEFAULTS, &crashed, &well), (target(Bitmap), Source(Bitmap)));
    // Before 119 only an Inconsistent disk counted.
    assert_eq!(both(at(118), DEFAULTS, &crashed, &well), (Source(Bitmap), target(Bitmap)));
    let equal = side(1, 0x10).disk(UpToDate);
    let crashed = side(0, 0x10).flag(CP);
    assert_eq!(both(CONNECTING, DEFAULTS, &crashed, &equal), (Source(Bitmap), target(Bitmap)));
    // Bitmap results are not open.
    let ahead = side(0, 0x20).owes(1, 0x10, 1).disk(Outdated);
    assert_eq!(both(CONNECTING, DEFAULTS, &ahead, &equal), (Source(Bitmap), target(Bitmap)));
}

#[test]
fn a_survivor_that_is_still_settling_follows_no_crashed_primary() {
    use DiskState::{Consistent, Outdated};
    let ours = |bits| Context { features: bits, ..CONNECTING };
    let survivor = |disk| side(1, 0x10).flag(UuidFlags::RECONNECT).disk(disk);
    let crashed = side(0, 0x10).flag(CP);
    let with_more = (Source(Bitmap), target(Bitmap));
    let rolled_back = (target(Bitmap), Source(Bitmap));
    let equals = CONNECTING.features | feature::BITS_OF_EQUALS;
    let run = |bits, crashed: &Side, disk| both(ours(bits), DEFAULTS, crashed, &survivor(disk));
    assert_eq!(run(equals, &crashed, Consistent), rolled_back);
    // What is known to be behind stays so, and so do the rules of kernel nodes.
    assert_eq!(run(equals, &crashed, Outdated), with_more);
    // Unless the Primary has lost what it wrote: that it was to go on without it tells nothing.
    let without_cache = Side { lost_cache: true, ..crashed.clone() };
    assert_eq!(run(equals, &without_cache, Outdated), rolled_back);
    let kernel = CONNECTING.features & !feature::BITS_OF_EQUALS;
    assert_eq!(run(kernel, &crashed, Consistent), with_more);
}

#[test]
fn a_restarted_disk_that_does_not_vouch_for_itself_gets_what_a_primary_counts() {
    use DiskState::{Consistent, Outdated};
    let features = CONNECTING.features | feature::BITS_OF_EQUALS;
    let ours = Context { features, ..CONNECTING };
    let primary = |blocks| {
        let side = side(0, 0x10).flag(UuidFlags::RECONNECT).owes(1, 0, blocks);
        Side { role: Role::Primary, ..side }
    };
    let restarted = side(1, 0x10).disk(Consistent);
    let run = |context, primary: &Side, peer: &Side| both(context, DEFAULTS, primary, peer);
    assert_eq!(run(ours, &primary(2), &restarted), (Source(Bitmap), target(Bitmap)));
    let keep = (NoSync(Bits::Keep), NoSync(Bits::Keep));
    let stayed = side(1, 0x10).disk(Consistent).flag(UuidFlags::RECONNECT);
    assert_eq!(run(ours, &primary(2), &stayed), keep, "it is resent what it lacks");
    let secondary = Side { role: Role::Secondary, ..primary(2) };
    assert_eq!(run(ours, &secondary, &restarted), keep);
    assert_eq!(run(ours, &primary(2).disk(Outdated), &restarted), keep);
    let clear = (NoSync(Bits::Clear), NoSync(Bits::Clear));
    assert_eq!(run(ours, &primary(0), &restarted), clear);
    assert_eq!(run(CONNECTING, &primary(2), &restarted), clear, "as kernel nodes do");
}

#[test]
fn the_inconsistent_disk_of_a_crashed_primary_is_no_source() {
    use DiskState::{Inconsistent, Outdated, UpToDate};
    let equals = CONNECTING.features | feature::BITS_OF_EQUALS;
    let context = |features| Context { protocol: Protocol::A, features, ..CONNECTING };
    let run = |features, crashed, disk| {
        let crashed = side(0, 0x10).flag(CP).disk(crashed);
        both(context(features), DEFAULTS, &crashed, &side(1, 0x10).disk(disk))
    };
    let (to, from) = ((Source(Bitmap), target(Bitmap)), (target(Bitmap), Source(Bitmap)));
    assert_eq!(run(equals, Inconsistent, UpToDate), from);
    assert_eq!(run(equals, Inconsistent, Outdated), from);
    assert_eq!(run(equals, Outdated, UpToDate), to, "it has what was acknowledged");
    assert_eq!(run(equals, UpToDate, Inconsistent), to);
    let kernel = CONNECTING.features & !feature::BITS_OF_EQUALS;
    assert_eq!(run(kernel, Inconsistent, UpToDate), to);
}

#[test]
fn an_inconsistent_disk_at_the_same_generation_is_target() {
    let bad = side(0, 0x10).disk(DiskState::Inconsistent);
    for good in [DiskState::Outdated, DiskState::Consistent, DiskState::UpToDate] {
        let good = side(1, 0x10).disk(good);
        assert_eq!(both(CONNECTING, DEFAULTS, &bad, &good), (target(Bitmap), Source(Bitmap)));
    }
    assert_eq!(both(CONNECTING, DEFAULTS, &bad, &side(1, 0x10).disk(DiskState::Inconsistent)), {
        (NoSync(Bits::Keep), NoSync(Bits::Keep))
    });
    // Without an Inconsistent one equal generations are equal data.
    let outdated = side(0, 0x10).disk(DiskState::Outdated);
    let clear = NoSync(Bits::Clear);
    assert_eq!(both(CONNECTING, DEFAULTS, &outdated, &side(1, 0x10)), (clear, clear));
}

#[test]
fn a_negotiating_disk_is_what_it_says_on_the_wire() {
    let attaching = side(0, 0x10).disk(DiskState::Negotiating);
    let context = on(Occasion::Attaching);
    let clear = NoSync(Bits::Clear);
    assert_eq!(both(context, DEFAULTS, &attaching, &side(1, 0x10)), (clear, clear));
    let bad = attaching.flag(UuidFlags::INCONSISTENT);
    assert_eq!(both(context, DEFAULTS, &bad, &side(1, 0x10)), (target(Bitmap), Source(Bitmap)));
}

#[test]
fn a_target_of_a_third_node_is_further_back_than_it_says() {
    // Capture 11: g12, target of g11, meets g13 which has bits for it from before.
    let mut g12 = side(1, 0x21).disk(DiskState::Inconsistent).owes(2, 0x10, 0);
    g12.flags = UuidFlags(0x1904);
    let mut g13 = side(2, 0x20).owes(1, 0x10, 10);
    g13.flags = UuidFlags(0x1100);
    let outcome = both(at(124), DEFAULTS, &g12, &g13);
    assert_eq!(outcome, (target(Bitmap), Source(Bitmap)), "as the kernel nodes did");
    // Bits for another node that start where the target is.
    let mut other = side(2, 0x20).owes(3, 0x10, 0);
    other.flags = g13.flags;
    let (mine, theirs) = both(at(124), DEFAULTS, &g12, &other);
    assert_eq!((mine, theirs), (target(CopySlot(n(3))), Source(CopySlot(n(3)))));
    // Nothing known about where it is, or it does not say.
    let mut none = side(2, 0x20);
    none.flags = g13.flags;
    assert_eq!(both(at(124), DEFAULTS, &g12, &none), (target(Full), Source(Full)));
    let silent = g12.owes(2, u64::MAX, 0);
    assert_eq!(both(at(124), DEFAULTS, &silent, &g13), (target(Full), Source(Full)));
}

// Step 4

#[test]
fn survivors_of_a_primary_reconcile_if_agreed() {
    let lost = |mut side: Side, dagtag: u64| {
        side.lost_primary = Some((n(5), Dagtag(dagtag)));
        side
    };
    let agreed = Context { features: 0x3ff, agreed: 124, ..CONNECTING };
    let (a, b) = (side(0, 0x10).dirty(3), side(1, 0x10));
    let clear = NoSync(Bits::Clear);
    assert_eq!(both(agreed, DEFAULTS, &a, &b), (clear, clear), "artefacts");
    let named = lost(b.clone(), 100);
    assert_eq!(both(CONNECTING, DEFAULTS, &a, &named), (clear, clear), "not agreed");
    assert_eq!(both(agreed, DEFAULTS, &a, &named), (Source(Bitmap), target(Bitmap)));
    assert!(run(agreed, DEFAULTS, &a, &named).reconciliation);
    // Bits on both sides: whoever heard more of the Primary.
    let (a, b) = (lost(a, 100), lost(side(1, 0x10).dirty(1), 104));
    assert_eq!(both(agreed, DEFAULTS, &a, &b), (target(Bitmap), Source(Bitmap)));
    let even = lost(b.clone(), 100);
    assert_eq!(both(agreed, DEFAULTS, &a, &even), (Source(Bitmap), target(Bitmap)));
    let mut unnamed = b.clone();
    unnamed.lost_primary = None;
    let retry = Retry(RetryReason::LostPrimaryUnnamed);
    assert_eq!(both(agreed, DEFAULTS, &a, &unnamed), (retry, retry));
    let crashed = a.clone().flag(CP);
    assert!(!run(agreed, DEFAULTS, &crashed, &b).reconciliation, "flags decide first");
}

// Steps 5 and 6

fn split(auto: bool) -> (Side, Side) {
    match auto {
        true => (side(0, 0x20).owes(1, 0x40, 3), side(1, 0x30).owes(0, 0x40, 5)),
        false => {
            let (a, b) = (side(0, 0x20).dirty(3), side(1, 0x30).dirty(5));
            (a.past(&[0x40]), b.past(&[0x40]))
        }
    }
}

#[test]
fn split_brain_disconnects_both_ends_by_default_and_calls_both_handlers() {
    for auto in [true, false] {
        let (a, b) = split(auto);
        let refused = Refuse(Refused::SplitBrain);
        assert_eq!(both(CONNECTING, DEFAULTS, &a, &b), (refused, refused));
        let handlers = run(CONNECTING, DEFAULTS, &a, &b).handlers;
        assert_eq!(handlers, [Handler::InitialSplitBrain, Handler::SplitBrain]);
    }
}

#[test]
fn an_unstable_end_postpones_a_recoverable_split_brain_and_keeps_the_bits() {
    let (a, mut b) = split(true);
    b.flags = UuidFlags(0);
    let keep = NoSync(Bits::Keep);
    assert_eq!(both(CONNECTING, DEFAULTS, &a, &b), (keep, keep));
    let (a, mut b) = split(false);
    b.flags = UuidFlags(0);
    let refused = Refuse(Refused::SplitBrain);
    assert_eq!(both(CONNECTING, DEFAULTS, &a, &b), (refused, refused));
}

#[test]
fn the_quorate_side_wins_while_connecting() {
    let (a, mut b) = split(true);
    b.quorate = false;
    assert_eq!(both(CONNECTING, DEFAULTS, &a, &b), (Source(Bitmap), target(Bitmap)));
    let refused = Refuse(Refused::SplitBrain);
    assert_eq!(both(at(112), DEFAULTS, &a, &b), (refused, refused));
    assert_eq!(both(on(Occasion::Attaching), DEFAULTS, &a, &b), (refused, refused));
    // Without bits back to the split only if the policies are to be applied always.
    let (a, mut b) = split(false);
    b.quorate = false;
    assert_eq!(both(CONNECTING, DEFAULTS, &a, &b), (refused, refused));
    let always = Policies { always_asbp: true, ..DEFAULTS };
    assert_eq!(both(CONNECTING, always, &a, &b), (Source(Full), target(Full)));
}

#[test]
fn a_split_beside_a_primary_waits_unless_quorum_decides_it() {
    let (mut a, b) = split(true);
    a.flags = UuidFlags(0);
    let quorum = Policies { quorum: true, ..DEFAULTS };
    let nothing = NoSync(Bits::Keep);
    assert_eq!(both(CONNECTING, quorum, &a, &b), (nothing, nothing), "all are quorate");
    a.quorate = false;
    assert_eq!(both(CONNECTING, quorum, &a, &b), (target(Bitmap), Source(Bitmap)));
}

#[test]
fn an_outdated_disk_is_quorate_by_those_that_outdated_it() {
    let (a, mut b) = split(true);
    b.disk = DiskState::Outdated;
    let refused = Refuse(Refused::SplitBrain);
    assert_eq!(both(CONNECTING, DEFAULTS, &a, &b), (refused, refused), "all are quorate then");
    let quorum = Policies { quorum: true, ..DEFAULTS };
    assert_eq!(both(CONNECTING, quorum, &a, &b), (Source(Bitmap), target(Bitmap)));
    let (mut a, _) = split(true);
    a.disk = DiskState::Outdated;
    assert_eq!(both(CONNECTING, quorum, &a, &b), (refused, refused));
}

#[test]
fn discard_my_data_solves_what_policies_do_not_case_74() {
    for (auto, strategy) in [(true, Bitmap), (false, Full)] {
        let (a, b) = split(auto);
        let b = b.flag(DISCARD);
        assert_eq!(both(CONNECTING, DEFAULTS, &a, &b), (Source(strategy), target(strategy)));
        let refused = Refuse(Refused::SplitBrain);
        assert_eq!(both(on(Occasion::Attaching), DEFAULTS, &a, &b), (refused, refused));
        let a = a.flag(DISCARD);
        assert_eq!(both(CONNECTING, DEFAULTS, &a, &b), (refused, refused), "not both");
    }
}

/// Outcome for node 0 and what happens to node 1, under a policy for no Primary.
fn by_0pri(policy: AfterSb0, change: impl Fn(&mut Side, &mut Side)) -> (Outcome, Outcome) {
    let (mut a, mut b) = split(true);
    change(&mut a, &mut b);
    both(CONNECTING, Policies { after_sb_0pri: policy, ..DEFAULTS }, &a, &b)
}

const WINS: (Outcome, Outcome) = (Source(Bitmap), target(Bitmap));
const LOSES: (Outcome, Outcome) = (target(Bitmap), Source(Bitmap));
const UNSOLVED: (Outcome, Outcome) = (Refuse(Refused::SplitBrain), Refuse(Refused::SplitBrain));

#[test]
fn after_sb_0pri_by_age_of_the_primary() {
    use AfterSb0::{DiscardOlderPrimary, DiscardYoungerPrimary};
    // Node 0 was Primary when the disks parted, so node 1 is the younger Primary.
    let older = |a: &mut Side, _: &mut Side| a.bitmap[1] = GenUuid(0x41);
    let younger = |_: &mut Side, b: &mut Side| b.bitmap[0] = GenUuid(0x41);
    assert_eq!(by_0pri(DiscardYoungerPrimary, older), WINS);
    assert_eq!(by_0pri(DiscardYoungerPrimary, younger), LOSES);
    assert_eq!(by_0pri(DiscardOlderPrimary, older), LOSES);
    assert_eq!(by_0pri(DiscardOlderPrimary, younger), WINS);
    // Undecided: fewest changes, which node 0 has.
    let same = |_: &mut Side, _: &mut Side| {};
    assert_eq!(by_0pri(DiscardYoungerPrimary, same), LOSES);
    assert_eq!(by_0pri(DiscardOlderPrimary, same), LOSES);
}

#[test]
fn after_sb_0pri_by_changes() {
    use AfterSb0::{
        DiscardLeastChanges, DiscardLocal, DiscardRemote, DiscardZeroChanges, Disconnect,
    };
    let blocks = |mine, theirs| {
        move |a: &mut Side, b: &mut Side| (a.dirty_blocks, b.dirty_blocks) = (mine, theirs)
    };
    assert_eq!(by_0pri(Disconnect, blocks(0, 5)), UNSOLVED);
    assert_eq!(by_0pri(DiscardZeroChanges, blocks(3, 5)), UNSOLVED);
    assert_eq!(by_0pri(DiscardZeroChanges, blocks(0, 5)), LOSES);
    assert_eq!(by_0pri(DiscardZeroChanges, blocks(5, 0)), WINS);
    assert_eq!(by_0pri(DiscardZeroChanges, blocks(0, 0)), LOSES, "node 0 holds the tie");
    assert_eq!(by_0pri(DiscardLeastChanges, blocks(3, 5)), LOSES);
    assert_eq!(by_0pri(DiscardLeastChanges, blocks(5, 3)), WINS);
    assert_eq!(by_0pri(DiscardLeastChanges, blocks(4, 4)), LOSES, "node 0 holds the tie");
    assert_eq!(by_0pri(DiscardLocal, blocks(5, 3)), LOSES);
    assert_eq!(by_0pri(DiscardRemote, blocks(3, 5)), WINS);
}

#[test]
fn after_sb_1pri() {
    // Node 0 is Primary; under discard-least-changes node 0 loses with (3, 5), wins with (5, 3).
    let by_1pri = |policy, rr_conflict, mine, theirs| {
        let (a, b) = split(true);
        let policies = Policies {
            after_sb_0pri: AfterSb0::DiscardLeastChanges,
            after_sb_1pri: policy,
            rr_conflict,
            ..DEFAULTS
        };
        both(CONNECTING, policies, &a.primary().dirty(mine), &b.dirty(theirs))
    };
    let keep = RrConflict::Disconnect;
    assert_eq!(by_1pri(AfterSb1::Disconnect, keep, 5, 3), UNSOLVED);
    assert_eq!(by_1pri(AfterSb1::DiscardSecondary, keep, 3, 5), WINS);
    assert_eq!(by_1pri(AfterSb1::Consensus, keep, 5, 3), WINS);
    assert_eq!(by_1pri(AfterSb1::Consensus, keep, 3, 5), UNSOLVED);
    assert_eq!(by_1pri(AfterSb1::ViolentlyAs0p, keep, 5, 3), WINS);
    assert_eq!(by_1pri(AfterSb1::ViolentlyAs0p, RrConflict::Violently, 3, 5), LOSES);
    let refused = Refuse(Refused::PrimaryWouldBeTarget);
    assert_eq!(by_1pri(AfterSb1::ViolentlyAs0p, keep, 3, 5), (refused, Source(Bitmap)));
    assert_eq!(by_1pri(AfterSb1::CallPriLost, keep, 5, 3), WINS);
    let demoted = Outcome::Target { strategy: Bitmap, demote_first: true };
    assert_eq!(by_1pri(AfterSb1::CallPriLost, keep, 3, 5), (demoted, Source(Bitmap)));
}

#[test]
fn after_sb_2pri() {
    let by_2pri = |policy| {
        let (a, b) = split(true);
        let policies = Policies {
            after_sb_0pri: AfterSb0::DiscardRemote,
            after_sb_2pri: policy,
            rr_conflict: RrConflict::Violently,
            ..DEFAULTS
        };
        both(CONNECTING, policies, &a.primary(), &b.primary())
    };
    assert_eq!(by_2pri(AfterSb2::Disconnect), UNSOLVED);
    assert_eq!(by_2pri(AfterSb2::ViolentlyAs0p), WINS);
    let demoted = Outcome::Target { strategy: Bitmap, demote_first: true };
    assert_eq!(by_2pri(AfterSb2::CallPriLost), (Source(Bitmap), demoted));
}

#[test]
fn a_split_brain_found_later_goes_by_disk_and_never_costs_an_up_to_date_one() {
    let context = on(Occasion::Reconsidering);
    let outdated = |side: Side| side.disk(DiskState::Outdated);
    let (a, b) = split(true);
    assert_eq!(both(context, DEFAULTS, &a, &outdated(b.clone())), WINS);
    assert_eq!(both(context, DEFAULTS, &outdated(a.clone()), &b), LOSES);
    assert_eq!(both(context, DEFAULTS, &a, &b), UNSOLVED);
    let keep = NoSync(Bits::Keep);
    assert_eq!(both(context, DEFAULTS, &outdated(a), &outdated(b)), (keep, keep));
}

// Step 7

#[test]
fn discard_my_data_reverses_what_can_be_reversed() {
    let ahead = side(0, 0x20).owes(1, 0x10, 5).flag(DISCARD);
    let behind = side(1, 0x10);
    assert_eq!(both(CONNECTING, DEFAULTS, &ahead, &behind), LOSES);
    assert_eq!(both(at(120), DEFAULTS, &ahead, &behind), WINS, "since 121");
    assert_eq!(both(on(Occasion::Attaching), DEFAULTS, &ahead, &behind), WINS);
    let worthless = behind.clone().disk(DiskState::Inconsistent);
    assert_eq!(both(CONNECTING, DEFAULTS, &ahead, &worthless), WINS);
    // A slot of the source can not serve the other direction.
    let copied = side(0, 0x20).owes(3, 0x10, 0).flag(DISCARD);
    let outcome = both(CONNECTING, DEFAULTS, &copied, &behind);
    assert_eq!(outcome, (Source(CopySlot(n(3))), target(CopySlot(n(3)))));
    let full = side(0, 0x20).past(&[0x10]).flag(DISCARD);
    assert_eq!(both(CONNECTING, DEFAULTS, &full, &behind), (target(Full), Source(Full)));
    let crashed = side(0, 0x10).flag(CP).flag(DISCARD);
    assert_eq!(both(CONNECTING, DEFAULTS, &crashed, &behind), LOSES);
}

// Step 8

#[test]
fn a_primary_with_good_data_is_not_made_target() {
    let ahead = side(1, 0x20).owes(0, 0x10, 5);
    let primary = side(0, 0x10).primary();
    let by =
        |rr_conflict, me: &Side| run(CONNECTING, Policies { rr_conflict, ..DEFAULTS }, me, &ahead);
    let refused = Refuse(Refused::PrimaryWouldBeTarget);
    assert_eq!(by(RrConflict::Disconnect, &primary).outcome, refused);
    assert_eq!(by(RrConflict::AutoDiscard, &primary).outcome, refused);
    let retry = Retry(RetryReason::PrimaryWouldBeTarget);
    assert_eq!(by(RrConflict::RetryConnect, &primary).outcome, retry);
    assert_eq!(by(RrConflict::Violently, &primary).outcome, target(Bitmap));
    let called = by(RrConflict::CallPriLost, &primary);
    assert_eq!((called.outcome, called.handlers), (refused, vec![Handler::PriLost]));
    // Data that is no good, or nothing to overwrite.
    let outdated = primary.clone().disk(DiskState::Outdated);
    assert_eq!(by(RrConflict::Disconnect, &outdated).outcome, target(Bitmap));
    let nothing = ahead.dirty(0);
    assert_eq!(run(CONNECTING, DEFAULTS, &primary, &nothing).outcome, target(Bitmap));
}

#[test]
fn auto_discard_keeps_the_running_primary_over_the_crashed_one_case_71() {
    let context = Context { protocol: Protocol::A, ..CONNECTING };
    let policies = Policies { rr_conflict: RrConflict::AutoDiscard, ..DEFAULTS };
    let crashed = side(0, 0x10).flag(CP).dirty(3);
    let running = side(1, 0x10).primary();
    assert_eq!(both(context, policies, &crashed, &running), LOSES);
    assert_eq!(both(context, policies, &crashed, &side(1, 0x10)), WINS, "nobody Primary");
    let refused = Refuse(Refused::PrimaryWouldBeTarget);
    assert_eq!(both(context, DEFAULTS, &crashed, &running), (Source(Bitmap), refused));
    let two = crashed.primary();
    assert_eq!(both(context, policies, &two, &running), (Source(Bitmap), refused));
}

// Steps 9 to 12

#[test]
fn a_missed_end_needs_an_up_to_date_source_and_else_keeps_the_bits() {
    let source = side(0, 0x10).owes(1, 0x20, 3);
    assert_eq!(both(CONNECTING, DEFAULTS, &source, &side(1, 0x10)), WINS);
    let consistent = source.disk(DiskState::Consistent);
    let keep = NoSync(Bits::Keep);
    assert_eq!(both(CONNECTING, DEFAULTS, &consistent, &side(1, 0x10)), (keep, keep));
}

#[test]
fn a_dry_run_reports_and_prepares_nothing() {
    let policies = Policies { tentative: true, ..DEFAULTS };
    let dry = run(CONNECTING, policies, &side(0, 4), &side(1, 0x10));
    assert_eq!(dry.outcome, Outcome::Tentative(Finding::Target(Full)));
    assert!(dry.preparations.is_empty() && dry.outcome.repl_state().is_none());
}

#[test]
fn a_primary_is_source_where_both_may_have_failed() {
    let crashed = side(0, 0x10).flag(LQ);
    let well = side(1, 0x10);
    assert_eq!(both(CONNECTING, DEFAULTS, &crashed, &well), WINS);
    assert_eq!(both(CONNECTING, DEFAULTS, &crashed, &well.clone().primary()), LOSES);
    assert_eq!(both(CONNECTING, DEFAULTS, &crashed.clone().primary(), &well), WINS);
    let keep = NoSync(Bits::Keep);
    let (a, b) = (crashed.primary(), well.primary());
    assert_eq!(both(CONNECTING, DEFAULTS, &a, &b), (keep, keep));
}

#[test]
fn bitmaps_are_prepared_for_the_strategy() {
    use Preparation::{MergeUnallocated, SetAll, SetAllSlots, SetBitmapUuid};
    let prepared = |me: &Side, peer: &Side| run(CONNECTING, DEFAULTS, me, peer).preparations;
    // A fresh target marks everything for everybody, once.
    let (fresh, real) = (side(0, 4), side(1, 0x10));
    assert_eq!(prepared(&fresh, &real), [SetAllSlots]);
    let busy = Local { syncing_elsewhere: true, ..LOCAL };
    assert_eq!(resolve(&CONNECTING, &DEFAULTS, &busy, &fresh, &real).preparations, []);
    assert_eq!(prepared(&real, &fresh), [SetAll(n(0))]);
    // A full resync between disks with data can be resumed by bitmap.
    let (ahead, behind) = (side(0, 0x20).past(&[0x10]), side(1, 0x11));
    assert_eq!(prepared(&ahead, &behind), [SetAll(n(1)), SetBitmapUuid(n(1), GenUuid(0x10))]);
    assert_eq!(prepared(&behind, &ahead), [SetAll(n(0))]);
    // But no bits start at a generation that came later, and was given up.
    let ours = Context { features: CONNECTING.features | feature::BITS_OF_EQUALS, ..CONNECTING };
    let (kept, took) = (side(0, 0x10).past(&[0x20]), side(1, 0x20).owes(3, 0x10, 0));
    assert_eq!(resolve(&ours, &DEFAULTS, &LOCAL, &kept, &took).preparations, [SetAll(n(1))]);
    // Another slot's bits.
    let (mut ahead, behind) = (side(0, 0x20).owes(3, 0x10, 0), side(1, 0x10));
    let base = SetBitmapUuid(n(1), GenUuid(0x10));
    assert_eq!(prepared(&ahead, &behind), [Preparation::MergeSlot { from: n(3), to: n(1) }, base]);
    assert_eq!(prepared(&behind, &ahead), [], "within a generation bits say what differs");
    let worn = Local { worn: n(3).mask(), ..LOCAL };
    let full = resolve(&CONNECTING, &DEFAULTS, &worn, &ahead, &behind).preparations;
    assert_eq!(full, [SetAll(n(1)), base], "a resync has been at that slot");
    let inconsistent = behind.clone().disk(DiskState::Inconsistent);
    assert_eq!(prepared(&inconsistent, &ahead), [], "its bits say where it is not at its label");
    ahead.slots = NodeMask::EMPTY;
    assert_eq!(prepared(&ahead, &behind), [MergeUnallocated(n(1)), base]);
    let none = Local { unallocated_slot: false, ..LOCAL };
    let without = resolve(&CONNECTING, &DEFAULTS, &none, &ahead, &behind);
    assert_eq!(without.preparations, [SetAll(n(1)), base]);
    // Plain bitmap resyncs need nothing.
    let ahead = side(0, 0x20).owes(1, 0x10, 5);
    assert_eq!((prepared(&ahead, &behind), prepared(&behind, &ahead)), (vec![], vec![]));
}

#[test]
fn only_equal_generations_of_consistent_disks_clear_bits() {
    let outcome = |a: &Side, b: &Side| both(CONNECTING, DEFAULTS, a, b);
    let (clear, keep) = (NoSync(Bits::Clear), NoSync(Bits::Keep));
    assert_eq!(outcome(&side(0, 0x10).dirty(3), &side(1, 0x11)), (clear, clear));
    assert_eq!(outcome(&side(0, 4), &side(1, 4)), (keep, keep));
    let bad = |node| side(node, 0x10).disk(DiskState::Inconsistent);
    assert_eq!(outcome(&bad(0), &bad(1)), (keep, keep));
}

// Invariant 18 for the whole way

#[test]
fn outcomes_are_mirrored_whatever_the_inputs() {
    use vocab::options::{AfterSb0, AfterSb1, AfterSb2};
    let mut rng = Random(0x4242);
    let mut resyncs = 0;
    for _ in 0..400_000 {
        let (a, b) = (random_side(&mut rng, 0), random_side(&mut rng, 1));
        let mut context = random_context(&mut rng);
        context.features = 0x3ff;
        let policies = Policies {
            quorum: rng.pick(&[false, true]),
            after_sb_0pri: rng.pick(&[
                AfterSb0::Disconnect,
                AfterSb0::DiscardYoungerPrimary,
                AfterSb0::DiscardOlderPrimary,
                AfterSb0::DiscardZeroChanges,
                AfterSb0::DiscardLeastChanges,
                AfterSb0::DiscardLocal,
                AfterSb0::DiscardRemote,
            ]),
            after_sb_1pri: rng.pick(&[
                AfterSb1::Disconnect,
                AfterSb1::Consensus,
                AfterSb1::DiscardSecondary,
                AfterSb1::CallPriLost,
                AfterSb1::ViolentlyAs0p,
            ]),
            after_sb_2pri: rng.pick(&[
                AfterSb2::Disconnect,
                AfterSb2::CallPriLost,
                AfterSb2::ViolentlyAs0p,
            ]),
            always_asbp: rng.chance(2),
            rr_conflict: rng.pick(&[
                RrConflict::Disconnect,
                RrConflict::RetryConnect,
                RrConflict::Violently,
                RrConflict::CallPriLost,
                RrConflict::AutoDiscard,
            ]),
            tentative: false,
        };
        let mut named = |mut side: Side| {
            let primary = rng.pick(&[None, Some(n(5)), Some(n(6))]);
            side.lost_primary = primary.map(|p| (p, Dagtag(rng.below(3) as u64)));
            side
        };
        let (a, b) = (named(a), named(b));
        let (mine, theirs) = both(context, policies, &a, &b);
        let leaves = |o: Outcome| matches!(o, Retry(_) | Refuse(Refused::PrimaryWouldBeTarget));
        let fits = match (mine, theirs) {
            _ if leaves(mine) || leaves(theirs) => true,
            (Source(x), Outcome::Target { strategy: y, .. })
            | (Outcome::Target { strategy: y, .. }, Source(x)) => {
                x == y || matches!((x, y), (CopySlot(_), CopySlot(_)))
            }
            (x, y) => x == y && !matches!(x, Source(_) | Outcome::Target { .. }),
        };
        assert!(fits, "{context:?}\n{policies:?}\n{a:?}\n{b:?}\n{mine:?} and {theirs:?}");
        resyncs += usize::from(matches!(mine, Source(_)));
        let target = matches!(mine, Outcome::Target { demote_first: false, .. });
        let overwritten = target && a.role == vocab::Role::Primary;
        assert!(
            !overwritten
                || policies.rr_conflict == RrConflict::Violently
                || a.judged_disk() < DiskState::Consistent
                || nothing_dirty(&a, &b)
                || policies.rr_conflict == RrConflict::AutoDiscard,
            "a Primary's good data is safe"
        );
    }
    assert!(resyncs > 50_000);
}
