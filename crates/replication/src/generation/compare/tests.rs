//! One test per row of the table, the kernel's own comparisons, and antisymmetry.

use super::super::testing::{CONNECTING, Random, n, other_end, random_context, random_side, side};
use super::*;
use Finding::{NoSync, Source, SplitBrain, Target};
use Strategy::{Bitmap, CopySlot, Full, IfBothFailed};

/// Both ends compare; checks this end's rule and finding, and that the peer mirrors it.
#[track_caller]
fn check(context: Context, me: &Side, peer: &Side, rule: Rule, finding: Finding) {
    assert_eq!(compare(&context, me, peer), Verdict { rule, finding });
    let theirs = compare(&other_end(&context), peer, me).finding;
    assert!(finding.is_mirrored_by(theirs), "the peer finds {theirs:?}");
}

const CP: UuidFlags = UuidFlags::CRASHED_PRIMARY;
const RC: UuidFlags = UuidFlags::RECONNECT;
const LQ: UuidFlags = UuidFlags::PRIMARY_LOST_QUORUM;

fn agreed(agreed: u32) -> Context {
    Context { agreed, ..CONNECTING }
}

#[test]
fn row_0_own_changes_retry_while_connecting_only() {
    let (a, b) = (side(0, 4), side(1, 4));
    let changed = Context { own_changed: true, ..CONNECTING };
    let verdict = compare(&changed, &a, &b);
    assert_eq!(verdict, Verdict { rule: Rule::OwnChanged, finding: Finding::Retry });
    let attaching = Context { occasion: Occasion::Attaching, ..changed };
    assert_eq!(compare(&attaching, &a, &b).rule, Rule::JustCreatedBoth);
}

#[test]
fn rows_1_to_3_just_created() {
    for jc in [0, 1, 4, 5] {
        check(CONNECTING, &side(0, jc), &side(1, 4), Rule::JustCreatedBoth, NoSync);
        check(CONNECTING, &side(0, jc), &side(1, 0x10), Rule::JustCreatedSelf, Target(Full));
        check(CONNECTING, &side(0, 0x10), &side(1, jc), Rule::JustCreatedPeer, Source(Full));
    }
}

#[test]
fn rows_4a_and_4b_missed_ends() {
    let source = side(0, 0x10).owes(1, 0x20, 3);
    let target = side(1, 0x11);
    check(CONNECTING, &source, &target, Rule::SourceMissedEnd, Source(Bitmap));
    check(CONNECTING, &target, &source, Rule::TargetMissedEnd, Target(Bitmap));
    // Without anything to resync the rule holds below 124 only.
    let empty = source.clone().dirty(0);
    check(agreed(123), &empty, &target, Rule::SourceMissedEnd, Source(Bitmap));
    check(agreed(124), &empty, &target, Rule::BothOff, NoSync);
    check(agreed(124), &source, &target, Rule::SourceMissedEnd, Source(Bitmap));
    // A base at the current generation, a peer that has one too, a resync target: none.
    check(CONNECTING, &side(0, 0x10).owes(1, 0x10, 3), &target, Rule::BothOff, NoSync);
    let both = target.clone().owes(0, 0x30, 3);
    check(CONNECTING, &source, &both, Rule::BothOff, NoSync);
    let speaking = target.clone().flag(UuidFlags::SYNC_TARGET);
    check(CONNECTING, &source, &speaking, Rule::BothOff, NoSync);
    let attaching = Context { occasion: Occasion::Attaching, ..CONNECTING };
    check(attaching, &source, &target, Rule::BothOff, NoSync);
}

#[test]
fn row_4c_both_reconnected_comes_before_crashes_since_120() {
    let a = side(0, 0x10).flag(RC);
    let crashed = side(1, 0x10).flag(RC).flag(LQ);
    check(agreed(120), &a, &crashed, Rule::BothReconnected, NoSync);
    check(agreed(119), &a, &crashed, Rule::LostQuorum, Target(IfBothFailed));
    // 4f: before 120 only lost quorum comes before it.
    check(agreed(119), &a, &side(1, 0x10).flag(RC).flag(CP), Rule::BothReconnected, NoSync);
}

#[test]
fn row_4d_one_crashed_primary_under_protocol_a_and_b() {
    let (crashed, well) = (side(0, 0x10).flag(CP), side(1, 0x10).flag(LQ));
    for protocol in [Protocol::A, Protocol::B] {
        let context = Context { protocol, ..CONNECTING };
        check(context, &crashed, &well, Rule::OneCrashed, Source(Bitmap));
        check(context, &well, &crashed, Rule::OneCrashed, Target(Bitmap));
        let both = well.clone().flag(CP);
        check(context, &crashed, &both, Rule::LostQuorum, Target(IfBothFailed));
        let old = Context { agreed: 120, ..context };
        check(old, &crashed, &well, Rule::LostQuorum, Target(IfBothFailed));
    }
    check(CONNECTING, &crashed, &well, Rule::LostQuorum, Target(IfBothFailed));
}

#[test]
fn row_4e_lost_quorum() {
    let (lost, well) = (side(0, 0x10).flag(LQ), side(1, 0x10));
    check(CONNECTING, &lost, &well, Rule::LostQuorum, Source(IfBothFailed));
    check(CONNECTING, &well, &lost, Rule::LostQuorum, Target(IfBothFailed));
    let both = side(1, 0x10).flag(LQ);
    check(CONNECTING, &lost, &both, Rule::LostQuorum, Source(IfBothFailed));
    let without_tie = Context { tie_break: false, ..CONNECTING };
    check(without_tie, &lost, &both, Rule::LostQuorum, Target(IfBothFailed));
}

#[test]
fn rows_4g_4h_4i_a_crash_meets_a_survivor() {
    let survivor = side(0, 0x10).flag(RC);
    let crashed = side(1, 0x10).flag(CP);
    check(CONNECTING, &survivor, &crashed, Rule::CrashedReconnected, Source(IfBothFailed));
    check(CONNECTING, &crashed, &survivor, Rule::CrashedReconnected, Target(IfBothFailed));
    let both = survivor.clone().flag(CP);
    check(CONNECTING, &both, &crashed, Rule::CrashedReconnected, Source(IfBothFailed));
    // The survivor of an earlier crash, and a peer that restarted cleanly.
    check(CONNECTING, &both, &side(1, 0x10), Rule::OneReconnected, NoSync);
    check(CONNECTING, &side(0, 0x10), &survivor_of(1), Rule::OneReconnected, NoSync);
}

fn survivor_of(node: usize) -> Side {
    side(node, 0x10).flag(RC)
}

#[test]
fn rows_4j_4k_4l_crashes_of_restarted_nodes() {
    let (crashed, well) = (side(0, 0x10).flag(CP), side(1, 0x10));
    check(CONNECTING, &crashed, &well, Rule::Crashed, Source(IfBothFailed));
    check(CONNECTING, &well, &crashed, Rule::Crashed, Target(IfBothFailed));
    let both = well.clone().flag(CP);
    check(CONNECTING, &crashed, &both, Rule::Crashed, Target(IfBothFailed));
    let without_tie = Context { tie_break: false, ..CONNECTING };
    check(without_tie, &crashed, &both, Rule::Crashed, Source(IfBothFailed));
    check(CONNECTING, &side(0, 0x11), &well, Rule::BothOff, NoSync);
}

#[test]
fn rows_5_and_7_the_bits_start_at_the_other_ends_generation() {
    let (ahead, behind) = (side(0, 0x20).owes(1, 0x11, 5), side(1, 0x10));
    check(CONNECTING, &behind, &ahead, Rule::BitmapPeer, Target(Bitmap));
    check(CONNECTING, &ahead, &behind, Rule::BitmapSelf, Source(Bitmap));
}

#[test]
fn rows_6_and_8_bits_kept_for_another_node_serve_case_3() {
    let (ahead, behind) = (side(0, 0x20).owes(3, 0x10, 0), side(1, 0x11));
    check(CONNECTING, &behind, &ahead, Rule::BitmapPeerOther, Target(CopySlot(n(3))));
    check(CONNECTING, &ahead, &behind, Rule::BitmapSelfOther, Source(CopySlot(n(3))));
    // Hard case 3: the peer's slot for a third node holds the peer's newer generation.
    let newer = side(1, 0x20).owes(2, 0x20, 0).owes(0, 0x10, 5);
    check(CONNECTING, &side(0, 0x10), &newer, Rule::BitmapPeer, Target(Bitmap));
    // Before 116 a node id without bitmap stood for nothing.
    let mut slotless = ahead.clone();
    slotless.slots = n(1).mask();
    check(agreed(116), &slotless, &behind, Rule::BitmapSelfOther, Source(CopySlot(n(3))));
    assert_eq!(compare(&agreed(115), &slotless, &behind).rule, Rule::Contradiction);
}

#[test]
fn own_bits_come_before_those_of_others() {
    let ahead = side(0, 0x20).owes(1, 0x10, 5).owes(3, 0x10, 5);
    check(CONNECTING, &ahead, &side(1, 0x10), Rule::BitmapSelf, Source(Bitmap));
}

#[test]
fn rows_9_and_10_an_ancestor_without_bits() {
    let (ahead, behind) = (side(0, 0x20).past(&[0x30, 0x10]), side(1, 0x11).past(&[0x30]));
    check(CONNECTING, &behind, &ahead, Rule::HistoryPeer, Target(Full));
    check(CONNECTING, &ahead, &behind, Rule::HistorySelf, Source(Full));
    let each = behind.clone().past(&[0x20]);
    check(CONNECTING, &ahead, &each, Rule::Unrelated, Finding::Unrelated);
}

#[test]
fn rows_11_to_13_no_common_line() {
    let (a, b) = (side(0, 0x20).owes(1, 0x40, 1), side(1, 0x30).owes(0, 0x41, 2));
    check(CONNECTING, &a, &b, Rule::BitmapBoth, SplitBrain { auto: true });
    let (a, b) = (side(0, 0x20).past(&[0x50, 0x40]), side(1, 0x30).past(&[0x40]));
    check(CONNECTING, &a, &b, Rule::HistoryBoth, SplitBrain { auto: false });
    check(CONNECTING, &side(0, 0x20), &side(1, 0x30), Rule::Unrelated, Finding::Unrelated);
    // Neither none nor a slot that was not sent is something in common.
    let unknown = |node: usize, other: usize, current| side(node, current).owes(other, u64::MAX, 1);
    check(CONNECTING, &unknown(0, 1, 0x20), &unknown(1, 0, 0x30), Rule::Unrelated, {
        Finding::Unrelated
    });
    let nonsense = side(0, u64::MAX);
    check(CONNECTING, &nonsense, &unknown(1, 0, 0x30), Rule::Unrelated, Finding::Unrelated);
    check(CONNECTING, &nonsense, &side(1, 4), Rule::Unrelated, Finding::Unrelated);
}

#[test]
fn a_generation_that_the_other_end_should_have_taken_and_has_not_never_began() {
    let ours = Context { features: CONNECTING.features | feature::BITS_OF_EQUALS, ..CONNECTING };
    // Node 0 started 0x20 beside node 1, which died before it had it and went on from 0x40.
    let (unused, used) = (side(0, 0x20).past(&[0x40, 0x50]), side(1, 0x30).owes(0, 0x40, 2));
    let used = used.past(&[0x50]);
    check(ours, &unused, &used, Rule::NeverBegunSelf, Target(Full));
    check(ours, &used, &unused, Rule::NeverBegunPeer, Source(Full));
    let follower = unused.clone().owes(1, 0x21, 1);
    check(ours, &follower, &used, Rule::NeverBegunSelf, Target(Full));
    // Kernel nodes do not know the rule; and protocol A reports what no peer has.
    check(CONNECTING, &unused, &used, Rule::HistoryBoth, SplitBrain { auto: false });
    let lax = Context { protocol: Protocol::A, ..ours };
    check(lax, &unused, &used, Rule::HistoryBoth, SplitBrain { auto: false });
    // Neither counts on the other, or each does.
    let alone = unused.clone().owes(1, 0x40, 1);
    check(ours, &alone, &used, Rule::BitmapBoth, SplitBrain { auto: true });
    let each = side(1, 0x30).past(&[0x40, 0x50]);
    check(ours, &unused, &each, Rule::HistoryBoth, SplitBrain { auto: false });
    // Nothing in common, or not known what it counts on.
    check(ours, &side(0, 0x20), &used, Rule::Unrelated, Finding::Unrelated);
    let unknown = unused.clone().owes(1, u64::MAX, 1);
    check(ours, &unknown, &used, Rule::HistoryBoth, SplitBrain { auto: false });
}

#[test]
fn a_generation_that_the_other_end_has_given_up_is_behind_it() {
    let ours = Context { features: CONNECTING.features | feature::BITS_OF_EQUALS, ..CONNECTING };
    // Node 0 proposed 0x20 to node 1, and went on with its own disk at 0x10.
    let (own, took) = (side(0, 0x10).past(&[0x20]), side(1, 0x20).owes(0, 0x10, 1).past(&[0x10]));
    check(ours, &own, &took, Rule::GivenUpPeer, Source(Bitmap));
    check(ours, &took, &own, Rule::GivenUpSelf, Target(Bitmap));
    check(CONNECTING, &own, &took, Rule::BitmapPeer, Target(Bitmap));
    // Node 2 has been brought up to date by node 0 since, and knows it from there.
    let third = side(2, 0x10).past(&[0x20]);
    check(ours, &third, &took, Rule::GivenUpPeer, Source(Full));
    check(ours, &took, &third, Rule::GivenUpSelf, Target(Full));
    check(CONNECTING, &third, &took, Rule::BitmapPeerOther, Target(CopySlot(n(0))));
}

#[test]
fn each_ahead_of_the_other_is_a_contradiction() {
    let (a, b) = (side(0, 0x20).owes(1, 0x30, 1), side(1, 0x30).owes(0, 0x20, 1));
    check(CONNECTING, &a, &b, Rule::Contradiction, Finding::Contradiction);
    let b = side(1, 0x30).owes(2, 0x20, 1);
    check(CONNECTING, &a, &b, Rule::Contradiction, Finding::Contradiction);
}

#[test]
fn verdicts_print_as_in_kernel_logs() {
    let verdict = compare(&CONNECTING, &side(0, 0x20).owes(1, 0x10, 5), &side(1, 0x10));
    assert_eq!(verdict.to_string(), "source-use-bitmap by rule=bitmap-self");
    let words: Vec<_> = Rule::ALL.iter().map(|r| r.word()).collect();
    let mut unique = words.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), words.len());
}

/// Reads one end of a line of testdata/uuid-compare.txt.
fn logged_side(node: usize, peer: usize, words: &str) -> Side {
    let words: Vec<_> = words.split_whitespace().collect();
    let hex = |i: usize| u64::from_str_radix(words[i], 16).unwrap();
    let mut side = side(node, hex(0)).owes(peer, hex(1), words[4].parse().unwrap());
    side.history[0] = GenUuid(hex(2));
    side.history[1] = GenUuid(hex(3));
    side.flags = UuidFlags(hex(5));
    if side.has(UuidFlags::INCONSISTENT) {
        side.disk = DiskState::Inconsistent;
    }
    side
}

#[test]
fn every_comparison_a_kernel_node_logged_comes_out_the_same() {
    use super::super::resolve::{Outcome, resolve};
    use super::super::testing::{DEFAULTS, LOCAL};
    let table = include_str!("../../../testdata/uuid-compare.txt");
    let mut seen = 0;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<_> = line.split('|').collect();
        let names: Vec<_> = columns[0].split_whitespace().collect();
        let id = |name: &str| name[1..].parse::<usize>().unwrap() - 11;
        let (node, peer) = (id(names[1]), id(names[2]));
        let mine = logged_side(node, peer, columns[1]);
        let theirs = logged_side(peer, node, columns[2]);
        let then: Vec<_> = columns[4].split_whitespace().collect();
        let protocol = match names[0] {
            "13-protocol-a" => Protocol::A,
            "14-protocol-b" => Protocol::B,
            _ => Protocol::C,
        };
        let occasion = match then[0] {
            "Off" => Occasion::Connecting,
            _ => Occasion::Reconsidering,
        };
        for (agreed, features) in [(124, 0x3ff), (122, 0x7f)] {
            let context = Context { agreed, features, protocol, occasion, ..CONNECTING };
            let resolution = resolve(&context, &DEFAULTS, &LOCAL, &mine, &theirs);
            let words: Vec<_> = columns[3].split_whitespace().collect();
            let logged = format!("{} by rule={}", words[0], words[1]);
            assert_eq!(resolution.verdict.to_string(), logged, "{line}");
            let state = resolution.outcome.repl_state().map(|s| s.to_string());
            match then[1] {
                "dropped" => assert!(matches!(resolution.outcome, Outcome::Refuse(_)), "{line}"),
                "StartingSyncS" => assert_eq!(state.as_deref(), Some("Established"), "{line}"),
                state_then => assert_eq!(state.as_deref(), Some(state_then), "{line}"),
            }
        }
        seen += 1;
    }
    assert_eq!(seen, 53);
}

#[test]
fn findings_are_mirrored_whatever_the_inputs() {
    let mut rng = Random(0x18);
    let mut rules = std::collections::BTreeMap::<Rule, usize>::new();
    for _ in 0..600_000 {
        let (a, b) = (random_side(&mut rng, 0), random_side(&mut rng, 1));
        let context = random_context(&mut rng);
        let (mine, theirs) = (compare(&context, &a, &b), compare(&other_end(&context), &b, &a));
        assert!(
            mine.finding.is_mirrored_by(theirs.finding),
            "{context:?}\n{a:?}\n{b:?}\n{mine} and {theirs}"
        );
        *rules.entry(mine.rule).or_default() += 1;
    }
    let missing: Vec<_> = Rule::ALL.iter().filter(|r| !rules.contains_key(r)).collect();
    // The last two are of protocol 8, which no context here is.
    let others = [&Rule::OwnChanged, &Rule::SyncUuidLostSelf, &Rule::SyncUuidLostPeer];
    assert_eq!(missing, others, "every rule must have been exercised");
}
