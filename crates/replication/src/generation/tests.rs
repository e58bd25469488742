//! The primitives one by one, and against the generations kernel nodes sent in captures.

use super::*;
use crate::peer_uuids::PeerUuids;
use DiskState::{DUnknown, Diskless, Inconsistent, Negotiating, Outdated, UpToDate};
use codec::wire::packet::UuidFlags;
use vocab::NodeMask;

fn n(id: usize) -> NodeId {
    NodeId::new(id as u8).unwrap()
}

fn g(uuid: u64) -> GenUuid {
    GenUuid(uuid)
}

fn mask(nodes: &[usize]) -> NodeMask {
    nodes.iter().map(|id| n(*id)).collect()
}

/// Node `me` of three configured nodes 0, 1, 2 with a slot each and a third, unallocated slot;
/// `disks` are the peers' disks, DUnknown for those not connected.
fn situation(me: usize, primary: bool, disks: [DiskState; 3]) -> Situation {
    let mut nodes = [Neighbour::NOBODY; MAX_NODES];
    for (node, disk) in nodes.iter_mut().zip(disks) {
        let connected = disk != DUnknown;
        *node = Neighbour { configured: true, connected, disk, has_slot: true, ..*node };
    }
    nodes[me] = Neighbour::NOBODY;
    let up_to_date = disks[me] == UpToDate;
    let dagtag = Dagtag(77);
    Situation { me: n(me), primary, up_to_date, dagtag, nodes, unallocated_slot: true }
}

/// Node 2 is a client: configured with bitmap=no, no slot.
fn with_client(mut s: Situation) -> Situation {
    s.nodes[2].intentional_diskless = true;
    s.nodes[2].has_slot = false;
    s
}

/// Generations with the slots of nodes 0..=3 (3: the unallocated one, and all behind it).
fn gens(current: u64, bitmap: [u64; 4], history: &[u64]) -> Generations {
    let mut all = [BitmapUuid { uuid: g(bitmap[3]), dagtag: Dagtag(0) }; MAX_NODES];
    for (slot, uuid) in all.iter_mut().zip(bitmap) {
        slot.uuid = g(uuid);
    }
    let mut past = [GenUuid::NONE; HISTORY];
    for (slot, uuid) in past.iter_mut().zip(history) {
        *slot = g(*uuid);
    }
    Generations { current: g(current), bitmap: all, history: past, worn: NodeMask::EMPTY }
}

/// Asserts the state as P_UUIDS110 shows it: current, slots 0..=3, history.
#[track_caller]
fn check(gens: &Generations, current: u64, bitmap: [u64; 4], history: &[u64]) {
    gens.invariants();
    assert_eq!(gens.current, g(current), "current");
    let slots: Vec<_> = gens.bitmap[..4].iter().map(|b| b.uuid).collect();
    assert_eq!(slots, bitmap.map(g), "bitmap");
    let past: Vec<_> = gens.history.iter().copied().take_while(|h| !h.is_none()).collect();
    assert_eq!(past, history.iter().map(|h| g(*h)).collect::<Vec<_>>(), "history");
}

fn source<'a>(
    node: usize,
    current: u64,
    bitmap: &'a [GenUuid; MAX_NODES],
    history: &'a [GenUuid],
) -> PeerGenerations<'a> {
    PeerGenerations { node: n(node), current: g(current), bitmap, history, flags: UuidFlags(0) }
}

/// Slots 0..=3 as a peer sent them; the rest missing.
fn sent(bitmap: [u64; 4]) -> [GenUuid; MAX_NODES] {
    let mut all = [UNKNOWN; MAX_NODES];
    for (slot, uuid) in all.iter_mut().zip(bitmap) {
        *slot = g(uuid);
    }
    all
}

/// Draws these values in turn.
fn fresh(values: &[u64]) -> impl FnMut() -> u64 + '_ {
    let mut values = values.iter().copied();
    move || values.next().expect("a value for each draw")
}

const NOTHING: [GenUuid; MAX_NODES] = [GenUuid::NONE; MAX_NODES];

// PUSH and SETBM

#[test]
fn push_ignores_what_is_no_generation_and_the_current_one() {
    let mut a = gens(0x10, [0; 4], &[]);
    for ignored in [0, 1, 4, 5, 0x10, 0x11, u64::MAX] {
        assert!(!a.push(g(ignored)), "{ignored:#x}");
    }
    check(&a, 0x10, [0; 4], &[]);
}

#[test]
fn push_drops_bit_0_shifts_and_forgets_the_oldest() {
    let mut a = gens(0x10, [0; 4], &[]);
    for i in 0..40 {
        assert!(a.push(g(0x101 + 2 * i)));
        assert!(!a.push(g(0x101 + 2 * i)), "already there");
    }
    a.invariants();
    assert_eq!((a.history[0], a.history[31]), (g(0x14e), g(0x110)));
}

#[test]
fn unlearn_forgets_one_generation_of_the_past() {
    let mut some = gens(0x10, [0, 0x20, 0, 0], &[0x30, 0x40, 0x50]);
    assert!(some.unlearn(g(0x40)) && !some.unlearn(g(0x40)));
    assert!(!some.unlearn(g(0x10)) && !some.unlearn(g(0x20)) && !some.unlearn(GenUuid::NONE));
    check(&some, 0x10, [0, 0x20, 0, 0], &[0x30, 0x50]);
}

#[test]
fn push_ignores_what_a_slot_holds_unless_the_history_is_empty() {
    let mut a = gens(0x10, [0, 0x20, 0, 0], &[]);
    assert!(a.push(g(0x20)), "captures 04, 15, 18");
    let mut a = gens(0x10, [0, 0x20, 0, 0], &[0x30]);
    assert!(!a.push(g(0x21)));
}

#[test]
fn set_bitmap_remembers_the_old_value_unless_another_slot_does() {
    let mut a = gens(0x10, [0, 0x20, 0x20, 0], &[0x30]);
    assert!(a.set_bitmap(n(1), g(0x40)));
    check(&a, 0x10, [0, 0x40, 0x20, 0], &[0x30]);
    a.set_bitmap(n(2), GenUuid::NONE);
    check(&a, 0x10, [0, 0x40, 0, 0], &[0x20, 0x30]);
    assert!(!a.set_bitmap(n(2), GenUuid::NONE), "nothing changed");
}

#[test]
fn metadata_with_an_impossible_history_is_cleaned() {
    let mut history = [GenUuid::NONE; HISTORY];
    history[..5].copy_from_slice(&[g(0), g(0x31), g(4), g(0x10), g(0x50)]);
    let a = Generations::from_metadata(g(0x11), [BitmapUuid::default(); MAX_NODES], history);
    check(&a, 0x11, [0; 4], &[0x30, 0x50]);
}

// ROTATE and BUMP

#[test]
fn only_nodes_that_miss_writes_get_the_old_generation() {
    use DiskState::{Attaching, Consistent, Failed};
    for (disk, misses) in [
        (DUnknown, true),
        (Outdated, true),
        (Inconsistent, true),
        (Failed, true),
        (Attaching, true),
        (Diskless, true),
        (Negotiating, false),
        (Consistent, false),
        (UpToDate, false),
    ] {
        let mut a = gens(0x10, [0, 0, 0, 0x90], &[0x30]);
        let s = situation(0, true, [UpToDate, disk, UpToDate]);
        let bump = a.bump(&s, NodeMask::EMPTY, fresh(&[0x200]));
        assert_eq!(bump.map(|b| b.behind), misses.then(|| mask(&[1])), "{disk}");
        if misses {
            check(&a, 0x201, [0, 0x10, 0, 0x90], &[0x30]);
            assert_eq!(a.bitmap(n(1)).dagtag, Dagtag(77));
        } else {
            check(&a, 0x10, [0, 0, 0, 0x90], &[0x30]);
        }
    }
}

#[test]
fn a_connected_client_misses_nothing_and_an_absent_one_does() {
    let mut a = gens(0x10, [0, 0, 0, 0x90], &[]);
    let s = with_client(situation(0, true, [UpToDate, UpToDate, Diskless]));
    assert_eq!(a.bump(&s, NodeMask::EMPTY, fresh(&[])), None);
    let s = with_client(situation(0, true, [UpToDate, UpToDate, DUnknown]));
    let bump = a.bump(&s, NodeMask::EMPTY, fresh(&[0x200])).unwrap();
    assert_eq!(bump.behind, mask(&[2]));
}

#[test]
fn a_slot_that_starts_further_back_keeps_its_base_and_one_at_current_counts_again() {
    let mut a = gens(0x11, [0, 0x40, 0x10, 0x90], &[]);
    let s = situation(0, true, [UpToDate, DUnknown, DUnknown]);
    let bump = a.bump(&s, NodeMask::EMPTY, fresh(&[0x200])).unwrap();
    assert_eq!(bump.behind, mask(&[2]));
    check(&a, 0x201, [0, 0x40, 0x11, 0x90], &[]);
}

#[test]
fn an_absent_node_that_may_have_caught_up_unheard_ends_the_generation() {
    // Two nodes: this one may have been its source, and not have heard of the end.
    let mut two = situation(0, true, [UpToDate, DUnknown, DUnknown]);
    two.nodes[2] = Neighbour::NOBODY;
    let mut a = gens(0x10, [0, 0x40, 0x90, 0x90], &[0x30]);
    assert!(a.bump(&two, NodeMask::EMPTY, fresh(&[0x200])).unwrap().behind.is_empty());
    check(&a, 0x201, [0, 0x40, 0x90, 0x90], &[0x10, 0x30]);
    // With a third disk about that may have been the source.
    let three = situation(0, true, [UpToDate, DUnknown, UpToDate]);
    let mut a = gens(0x10, [0, 0x40, 0, 0x90], &[0x30]);
    let bump = a.bump(&three, NodeMask::EMPTY, fresh(&[0x200])).unwrap();
    assert!(bump.behind.is_empty());
    check(&a, 0x201, [0, 0x40, 0, 0x90], &[0x10, 0x30]);
}

#[test]
fn slots_are_worn_by_a_resync_until_they_get_another_generation() {
    let mut a = gens(0x10, [0, 0x40, 0x40, 0x90], &[0x30]);
    a.bits_cleared(n(1));
    assert_eq!(a.worn(), mask(&[1]));
    a.set_bitmap(n(1), g(0x40));
    assert_eq!(a.worn(), mask(&[1]), "the same one");
    a.set_bitmap(n(1), GenUuid::NONE);
    assert_eq!(a.worn(), NodeMask::EMPTY);
    // After an attach nobody knows.
    let loaded = Generations::from_metadata(a.current, a.bitmap, a.history);
    assert!(loaded.worn().contains(n(2)) && !loaded.worn().contains(n(1)));
}

#[test]
fn a_generation_that_was_left_is_not_adopted_again() {
    let mut a = gens(0x10, [0, 0, 0, 0x90], &[0x30]);
    let s = situation(0, false, [UpToDate, UpToDate, UpToDate]);
    let before = a.clone();
    for past in [0x90, 0x30] {
        let adoption =
            a.adopt(GenUuid(past), &s, NodeMask::EMPTY, false, || unreachable!("no draw"));
        assert_eq!(adoption, Adoption::Known);
    }
    assert_eq!(a, before);
}

#[test]
fn weak_nodes_get_slots_although_they_are_connected() {
    let mut a = gens(0x10, [0, 0, 0, 0x90], &[]);
    let s = situation(0, true, [UpToDate, UpToDate, UpToDate]);
    let bump = a.bump(&s, mask(&[2]), fresh(&[0x200])).unwrap();
    assert_eq!(bump.behind, mask(&[2]));
}

#[test]
fn a_day0_volume_bumps_although_nobody_is_missing() {
    let mut a = gens(0x10, [0; 4], &[]);
    let mut s = situation(0, true, [UpToDate, UpToDate, UpToDate]);
    s.unallocated_slot = false;
    let bump = a.bump(&s, NodeMask::EMPTY, fresh(&[0x200])).unwrap();
    assert!(bump.behind.is_empty());
    check(&a, 0x201, [0; 4], &[0x10]);
    assert_eq!(a.bump(&s, NodeMask::EMPTY, fresh(&[])), None, "once");
}

#[test]
fn unused_node_ids_share_the_unallocated_slot() {
    let mut a = gens(0x10, [0; 4], &[0x30]);
    let s = situation(0, true, [UpToDate, DUnknown, UpToDate]);
    let bump = a.bump(&s, NodeMask::EMPTY, fresh(&[0x200])).unwrap();
    assert_eq!(bump.behind, (1..32).filter(|i| *i != 2).map(n).collect());
    // The unallocated slot is at day 0 from now on.
    a.bump(&situation(0, true, [UpToDate, UpToDate, DUnknown]), NodeMask::EMPTY, fresh(&[0x300]));
    assert_eq!((a.bitmap(n(3)).uuid, a.bitmap(n(31)).uuid), (g(0x10), g(0x10)));
}

#[test]
fn reserved_random_values_are_drawn_again() {
    let mut a = gens(0x10, [0; 4], &[0x30]);
    let s = situation(0, false, [UpToDate, DUnknown, UpToDate]);
    let bump = a.bump(&s, NodeMask::EMPTY, fresh(&[0, 4, 5, u64::MAX, 0x501])).unwrap();
    assert_eq!(bump.current, g(0x500), "a Secondary's generation has no bit 0");
}

#[test]
fn demotion_clears_bit_0_only() {
    let mut a = gens(0x11, [0; 4], &[]);
    assert!(a.demote() && !a.demote());
    check(&a, 0x10, [0; 4], &[]);
}

// Sequences seen in captures of kernel nodes (crates/replication/testdata/README.md)

#[test]
fn capture_04_bump_resync_and_finish() {
    let (old, new, first) = (0x74cb_3c49_1c03_3ed4, 0xbb8c_732e_1f96_aa41, 0xf107_d4e3_fb10_a436);
    // g11, Primary, loses g12; g13 is a connected client.
    let mut g11 = gens(old, [0, 0, 0, first], &[]);
    let s = with_client(situation(0, true, [UpToDate, DUnknown, Diskless]));
    assert_eq!(weak_nodes(&s), mask(&[0]).complement());
    let bump = g11.bump(&s, NodeMask::EMPTY, fresh(&[new])).unwrap();
    assert_eq!(bump.behind, mask(&[1]));
    check(&g11, new, [0, old, 0, first], &[]);

    // g12 comes back as target, its link to g13 still down.
    let mut g12 = gens(old, [0; 4], &[]);
    let s12 = with_client(situation(1, false, [UpToDate, Outdated, DUnknown]));
    let start = g12.start_target(&s12, g(old), fresh(&[]));
    assert_eq!(start.start, g(old));
    check(&g12, old, [0, 0, old, old], &[]);
    let from = Some((n(0), g(new)));
    assert_eq!(g12.presented_current(n(2), from), g(new));
    assert_eq!(g12.presented_bitmap(n(0), from), UNKNOWN);
    assert_eq!(g12.presented_bitmap(n(2), from), g(old));

    let bitmap = sent([0, old, 0, first]);
    let finish = g12.finish_target(
        &s12,
        start.start,
        &source(0, new, &bitmap, &NOTHING),
        &NOTHING,
        NodeMask::EMPTY,
    );
    assert_eq!(finish.settled, mask(&[0]));
    check(&g12, new & !1, [0, 0, old, old], &[first]);

    let bitmap = sent([0, 0, old, old]);
    let answer = source(1, new & !1, &bitmap, &[]);
    assert!(g11.finished_by(&s, &answer));
    let target = UuidFlags::SYNC_TARGET;
    assert!(!g11.finished_by(&s, &PeerGenerations { flags: target, ..answer }));
    g11.set_bitmap(n(1), GenUuid::NONE);
    check(&g11, new, [0, 0, 0, first], &[old]);
}

#[test]
fn capture_07_a_generation_started_by_a_diskless_primary() {
    let (old, new) = (0xbb8c_732e_1f96_aa40, 0x9bd5_999c_66b6_8651);
    let (older, first) = (0x74cb_3c49_1c03_3ed4, 0xf107_d4e3_fb10_a436);
    let weak = mask(&[0, 1]).complement();
    let mut g11 = gens(old, [0, 0, 0, first], &[older]);
    let s = with_client(situation(0, false, [UpToDate, UpToDate, Diskless]));
    let adoption = g11.adopt(g(new), &s, weak, false, fresh(&[]));
    let Adoption::Adopted { previous, behind, moved } = adoption else { panic!("{adoption:?}") };
    assert_eq!((previous, behind, moved), (g(old), NodeMask::EMPTY, NodeMask::EMPTY));
    check(&g11, new & !1, [0, 0, 0, first], &[old, older]);
    assert_eq!(g11.adopt(g(new), &s, weak, false, fresh(&[])), Adoption::Known);

    let mut g12 = gens(old, [0, 0, 0, older], &[first]);
    let s = with_client(situation(1, false, [UpToDate, UpToDate, Diskless]));
    g12.adopt(g(new), &s, weak, false, fresh(&[]));
    check(&g12, new & !1, [0, 0, 0, older], &[old, first]);
}

#[test]
fn capture_11_a_third_node_records_the_absent_one_and_forgets_it_again() {
    let (old, new, first) = (0xeb94_bd04_c47b_d166, 0x00f1_ceaa_1bc3_8c29, 0xed79_9fd7_b542_9f05);
    let mut g11 = gens(old, [0, 0, 0, first], &[]);
    let s11 = situation(0, true, [UpToDate, DUnknown, UpToDate]);
    assert_eq!(weak_nodes(&s11), mask(&[0, 2]).complement());
    g11.bump(&s11, NodeMask::EMPTY, fresh(&[new])).unwrap();
    check(&g11, new, [0, old, 0, first], &[]);

    let mut g13 = gens(old, [0; 4], &[]);
    let s13 = situation(2, false, [UpToDate, DUnknown, UpToDate]);
    let adoption = g13.adopt(g(new), &s13, weak_nodes(&s11), false, fresh(&[]));
    let behind = (1..32).filter(|i| *i != 2).map(n).collect();
    assert!(matches!(adoption, Adoption::Adopted { behind: b, .. } if b == behind));
    check(&g13, new & !1, [0, old, 0, old], &[old]);

    // g12 resyncs from g11, not yet connected to g13, which then reaches the same generation.
    let mut g12 = gens(old, [0; 4], &[]);
    let s12 = situation(1, false, [UpToDate, Outdated, DUnknown]);
    let start = g12.start_target(&s12, g(old), fresh(&[]));
    check(&g12, old, [0, 0, old, old], &[]);
    let bitmap = sent([0, old, 0, first]);
    let s12 = situation(1, false, [UpToDate, Inconsistent, UpToDate]);
    let finish = g12.finish_target(
        &s12,
        start.start,
        &source(0, new, &bitmap, &NOTHING),
        &NOTHING,
        NodeMask::EMPTY,
    );
    assert_eq!((finish.behind, finish.settled), (NodeMask::EMPTY, mask(&[0, 2])));
    check(&g12, new & !1, [0, 0, 0, old], &[first & !1]);

    // g13 hears from g11 that nothing is owed to g12.
    let bitmap = sent([0, 0, 0, first]);
    let learned = g13.learn(&s13, &source(0, new, &bitmap, &[]), NodeMask::EMPTY);
    assert_eq!(learned, Learned { in_sync: mask(&[1]), copies: vec![] });
    let learned = g13.learn(&s13, &source(0, new, &bitmap, &[]), mask(&[1]));
    assert_eq!(learned, Learned::default(), "not while it resyncs from here");
    g13.set_bitmap(n(1), GenUuid::NONE);
    check(&g13, new & !1, [0, 0, 0, old], &[old]);
}

#[test]
fn capture_15_initial_resync_of_fresh_disks() {
    let (base, new) = (0xf026_6d9b_c600_0a83, 0x8370_b969_6f89_03e5);
    // Forced promotion of g11: its disk is just created and no peer was ever in sync.
    let mut g11 = Generations::JUST_CREATED;
    let s11 = situation(0, true, [UpToDate, Inconsistent, Inconsistent]);
    g11.bump(&s11, mask(&[1, 2]), fresh(&[base, new])).unwrap();
    check(&g11, new, [0, base, base, base], &[]);

    // g13 finishes first, g12 afterwards.
    let mut g13 = Generations::JUST_CREATED;
    let s13 = situation(2, false, [UpToDate, Inconsistent, Inconsistent]);
    let start13 = g13.start_target(&s13, g(base), fresh(&[]));
    assert_eq!(start13.start, g(base & !1));
    let bitmap = sent([0, base, base, base]);
    let from_g11 = source(0, new, &bitmap, &NOTHING);
    let finish = g13.finish_target(&s13, start13.start, &from_g11, &NOTHING, NodeMask::EMPTY);
    assert_eq!(finish.behind, mask(&[1]));
    check(&g13, new & !1, [0, base & !1, 0, base & !1], &[]);
    g11.set_bitmap(n(2), GenUuid::NONE);
    check(&g11, new, [0, base, 0, base], &[base & !1]);

    let mut g12 = Generations::JUST_CREATED;
    let s12 = situation(1, false, [UpToDate, Inconsistent, UpToDate]);
    let start12 = g12.start_target(&s12, g(base), fresh(&[]));
    assert_eq!(g12.presented_bitmap(n(0), Some((n(0), g(new)))), UNKNOWN);
    check(&g12, base & !1, [0, 0, 0, base & !1], &[]);
    let (bitmap, history) = (sent([0, base, 0, base]), [g(base & !1)]);
    g12.finish_target(
        &s12,
        start12.start,
        &source(0, new, &bitmap, &history),
        &NOTHING,
        NodeMask::EMPTY,
    );
    check(&g12, new & !1, [0, 0, 0, base & !1], &[]);
    g13.set_bitmap(n(1), GenUuid::NONE);
    check(&g13, new & !1, [0, 0, 0, base & !1], &[base & !1]);
}

#[test]
fn capture_16_a_lost_split_brain_leaves_no_ancestor_behind() {
    let (common, first) = (0xf7c4_927c_f9f3_326e, 0xe357_690b_4b64_2ef0);
    let (winner, loser) = (0xa30c_967f_90ab_f34d, 0x4997_7c4f_c199_a8a5);
    // new-current-uuid --clear-bitmap on g11 with g12 connected and g13 down.
    let mut g11 = Generations::JUST_CREATED;
    let s = situation(0, false, [UpToDate, Inconsistent, DUnknown]);
    let new = g11.new_current(&s, true, mask(&[1]), fresh(&[first, common]));
    assert_eq!(new.current, g(common));
    check(&g11, common, [0, 0, 0, first], &[first]);
    let mut g12 = Generations::JUST_CREATED;
    assert!(g12.skip_initial_sync(g(common)));
    assert!(!g12.skip_initial_sync(g(winner)), "only a fresh disk");
    check(&g12, common, [0; 4], &[]);

    // Both write alone.
    let s11 = situation(0, true, [UpToDate, DUnknown, DUnknown]);
    g11.bump(&s11, NodeMask::EMPTY, fresh(&[winner])).unwrap();
    check(&g11, winner, [0, common, common, first], &[first]);
    let s12 = situation(1, true, [DUnknown, UpToDate, DUnknown]);
    g12.bump(&s12, NodeMask::EMPTY, fresh(&[loser])).unwrap();
    check(&g12, loser, [common, 0, common, common], &[common]);

    // g12 is demoted, gives in, and is resynced.
    g12.demote();
    let s12 = situation(1, false, [UpToDate, Outdated, DUnknown]);
    let start = g12.start_target(&s12, g(common), fresh(&[]));
    let (bitmap, history) = (sent([0, common, common, first]), [g(first)]);
    let finish = g12.finish_target(
        &s12,
        start.start,
        &source(0, winner, &bitmap, &history),
        &NOTHING,
        NodeMask::EMPTY,
    );
    assert_eq!(finish.behind, mask(&[2]));
    check(&g12, winner & !1, [0, 0, loser & !1, common], &[first, common]);
}

#[test]
fn capture_18_an_absent_disk_attaches_again() {
    let (old, new, first) = (0xa216_551d_9520_8744, 0x827c_f401_ea06_b2ed, 0x3778_e4ba_46c0_0232);
    let mut g11 = gens(old, [0, 0, 0, first], &[]);
    let s11 = situation(0, true, [UpToDate, Diskless, UpToDate]);
    g11.bump(&s11, NodeMask::EMPTY, fresh(&[new])).unwrap();
    check(&g11, new, [0, old, 0, first], &[]);
    let mut g13 = gens(old, [0; 4], &[]);
    let s13 = situation(2, false, [UpToDate, Diskless, UpToDate]);
    g13.adopt(g(new), &s13, mask(&[0, 2]).complement(), false, fresh(&[]));
    check(&g13, new & !1, [0, old, 0, old], &[old]);

    let mut g12 = gens(old, [0; 4], &[]);
    let s12 = situation(1, false, [UpToDate, Inconsistent, UpToDate]);
    let start = g12.start_target(&s12, g(old), fresh(&[]));
    let (bitmap, history) = (sent([0, old, 0, old]), [g(old)]);
    g12.finish_target(
        &s12,
        start.start,
        &source(2, new & !1, &bitmap, &history),
        &NOTHING,
        NodeMask::EMPTY,
    );
    check(&g12, new & !1, [0, 0, 0, old], &[]);
    g11.set_bitmap(n(1), GenUuid::NONE);
    g13.set_bitmap(n(1), GenUuid::NONE);
    check(&g11, new, [0, 0, 0, first], &[old]);

    // g13 is invalidated and resynced from g11: it learns g11's first generation.
    let start = g13.start_target(&s13, g(old), fresh(&[]));
    let (bitmap, history) = (sent([0, 0, 0, first]), [g(old)]);
    g13.finish_target(
        &s13,
        start.start,
        &source(0, new, &bitmap, &history),
        &NOTHING,
        NodeMask::EMPTY,
    );
    check(&g13, new & !1, [0, 0, 0, old], &[first, old]);
}

// ADOPT and the rest of the table

#[test]
fn a_node_behind_that_hears_the_primary_moves_along() {
    // Node 1 is a target of ours with base 0x40; the Primary, node 2, names it not weak.
    let mut a = gens(0x10, [0, 0x40, 0, 0x90], &[]);
    let s = situation(0, false, [UpToDate, Inconsistent, UpToDate]);
    let adoption = a.adopt(g(0x201), &s, mask(&[0, 1, 2]).complement(), false, fresh(&[]));
    assert_eq!(
        adoption,
        Adoption::Adopted { previous: g(0x10), behind: NodeMask::EMPTY, moved: mask(&[1]) }
    );
    check(&a, 0x200, [0, 0x200, 0, 0x90], &[0x10, 0x40]);
}

#[test]
fn a_disk_that_is_not_up_to_date_adopts_without_recording_the_absent() {
    let mut a = gens(0x10, [0, 0, 0, 0x90], &[]);
    let s = situation(0, false, [Outdated, DUnknown, UpToDate]);
    let adoption = a.adopt(g(0x201), &s, mask(&[0, 2]).complement(), false, fresh(&[]));
    assert!(matches!(adoption, Adoption::Adopted { behind: NodeMask::EMPTY, .. }));
    check(&a, 0x200, [0, 0, 0, 0x90], &[0x10]);
}

#[test]
fn a_resync_target_only_notes_the_generation_and_nonsense_is_ignored() {
    let before = gens(0x10, [0, 0x40, 0, 0x90], &[]);
    let mut a = before.clone();
    let s = situation(0, false, [Inconsistent, UpToDate, UpToDate]);
    let mut adopt = |uuid, target| a.adopt(g(uuid), &s, NodeMask::EMPTY, target, fresh(&[]));
    assert_eq!(adopt(0x201, true), Adoption::OfSource);
    for nonsense in [0, 1, 4, u64::MAX] {
        assert_eq!(adopt(nonsense, false), Adoption::Ignored);
    }
    assert_eq!(a, before);
}

#[test]
fn becoming_current_removes_a_generation_from_the_history() {
    // The loser of a split brain goes back to a generation it had left.
    let mut a = gens(0x30, [0, 0x20, 0, 0x90], &[0x20, 0x10]);
    let s = situation(0, false, [Outdated, UpToDate, UpToDate]);
    let start = a.start_target(&s, GenUuid::NONE, fresh(&[]));
    let bitmap = sent([0x20, 0, 0, 0]);
    a.finish_target(&s, start.start, &source(1, 0x10, &bitmap, &[]), &NOTHING, NodeMask::EMPTY);
    check(&a, 0x10, [0, 0, 0, 0x90], &[0x20]);
}

#[test]
fn a_finished_resync_believes_only_what_the_source_says() {
    let s = situation(0, false, [Inconsistent, UpToDate, UpToDate]);
    let finish = |bitmap: [u64; 4], reached: bool| {
        let mut a = gens(0x10, [0, 0, 0x40, 0x90], &[]);
        let bitmap = sent(bitmap);
        let mut currents = NOTHING;
        currents[2] = if reached { g(0x300) } else { g(0x40) };
        let finish = a.finish_target(
            &s,
            g(0x10),
            &source(1, 0x300, &bitmap, &[]),
            &currents,
            NodeMask::EMPTY,
        );
        (finish.behind, a.bitmap(n(2)).uuid)
    };
    assert_eq!(finish([0, 0, 0, 0], false), (NodeMask::EMPTY, g(0)), "the source owes nothing");
    assert_eq!(finish([0, 0, 0x40, 0], false), (mask(&[2]), g(0x10)));
    assert_eq!(finish([0, 0, 0x40, 0], true), (NodeMask::EMPTY, g(0)), "it got there meanwhile");
    let missing = finish([0, 0, u64::MAX, 0], false);
    assert_eq!(missing, (mask(&[2]), g(0x10)), "a slot not sent proves nothing");
}

/// Found by a torture run: a disk resynced from two nodes at once; one of them was done, and
/// stayed behind when the other started a generation.
#[test]
fn a_node_settled_by_another_resync_is_behind_at_the_generation_of_that_one() {
    let (old, first, second) = (0x10, 0x200, 0x300);
    let s = situation(0, false, [Inconsistent, UpToDate, UpToDate]);
    let mut a = gens(old, [0, old, old, 0x90], &[]);
    let mut currents = NOTHING;
    (currents[1], currents[2]) = (g(first), g(first));
    let from_1 = sent([old, 0, 0, 0x90]);
    a.finish_target(&s, g(old), &source(1, first, &from_1, &[]), &currents, NodeMask::EMPTY);
    check(&a, first, [0, 0, 0, 0x90], &[0x90]);
    currents[2] = g(second);
    let from_2 = sent([old, first, 0, 0x90]);
    let finish =
        a.finish_target(&s, g(old), &source(2, second, &from_2, &[]), &currents, NodeMask::EMPTY);
    assert_eq!(finish.behind, mask(&[1]));
    check(&a, second, [0, first, 0, 0x90], &[old, 0x90]);
}

/// A client may name late what a disk has been brought up from since.
#[test]
fn the_generation_that_a_target_leaves_is_remembered_if_its_source_has_left_it_too() {
    let past = |bitmap: [u64; 4], history: &[u64], left: u64| {
        let mut a = gens(0x300, [0, 0, 0, 0x90], &[0x90]);
        let history: Vec<GenUuid> = history.iter().map(|u| g(*u)).collect();
        a.remember_left(g(left), &source(1, 0x300, &sent(bitmap), &history));
        a.has_passed(g(left))
    };
    assert!(past([0x11, 0, 0, 0], &[], 0x10), "the source counts from there");
    assert!(past([0; 4], &[0x10], 0x10));
    assert!(!past([0x20, 0, 0, 0], &[0x20], 0x10), "the loser of a split brain");
    assert!(!past([0; 4], &[], 0));
}

/// Found by a torture run: a target whose first source, ahead of it, left in mid-resync; a second
/// one went on without that.
#[test]
fn a_node_that_was_ahead_is_behind_at_the_generation_it_had() {
    let (start, theirs, new) = (0x10, 0x200, 0x300);
    let s = situation(0, false, [Inconsistent, DUnknown, UpToDate]);
    let finish = |ahead: &[usize], base: u64| {
        let mut a = gens(start, [0, start, 0x40, 0x90], &[]);
        let bitmap = sent([start, base, 0, 0x90]);
        let mut currents = NOTHING;
        currents[1] = g(theirs);
        a.finish_target(&s, g(start), &source(2, new, &bitmap, &[]), &currents, mask(ahead));
        a.bitmap(n(1)).uuid
    };
    assert_eq!(finish(&[1], theirs), g(theirs));
    assert_eq!(finish(&[], theirs), g(start), "it may be older than this disk was");
    assert_eq!(finish(&[1], 0x180), g(start), "the source knows nothing of what it wrote");
}

#[test]
fn what_is_known_of_a_peer_takes_the_step_that_the_peer_takes() {
    let (old, new) = (0x400, 0x501);
    let s13 = situation(2, false, [UpToDate, DUnknown, UpToDate]);
    let weak = mask(&[0, 2]).complement();
    for slots in [[0, 0, 0, 0], [0, 0x300, 0, 0], [0x200, old, 0, 0]] {
        let mut peer = gens(old, slots, &[0x100]);
        let mut known = PeerUuids::diskless(g(old));
        known.history = vec![g(0x100)];
        known.bitmap[..3].copy_from_slice(&slots[..3].iter().map(|u| g(*u)).collect::<Vec<_>>());
        peer.adopt(g(new), &s13, weak, false, fresh(&[]));
        known.follow(g(new), weak);
        assert!(known.current.same(peer.current()));
        for node in [0, 1] {
            assert!(known.bitmap_of(n(node)).same(peer.bitmap(n(node)).uuid), "{slots:x?}");
        }
        assert_eq!(known.history, [g(old), g(0x100)]);
        // The word of the Primary may come when the peer has said itself that it is further.
        let further = known.clone();
        known.follow(g(old), weak);
        assert!(known.current.same(further.current) && known.bitmap == further.bitmap);
    }
}

#[test]
fn a_fresh_target_without_a_base_stays_just_created_until_done() {
    let mut a = Generations::JUST_CREATED;
    let s = situation(0, false, [Inconsistent, UpToDate, DUnknown]);
    let start = a.start_target(&s, GenUuid::NONE, fresh(&[0x500]));
    assert!(start.start.is_just_created());
    check(&a, 4, [0, 0, 0x500, 0x500], &[]);
    let bitmap = sent([0x77, 0, 0x66, 0]);
    let finish = a.finish_target(
        &s,
        start.start,
        &source(1, 0x300, &bitmap, &[]),
        &NOTHING,
        NodeMask::EMPTY,
    );
    assert_eq!(finish.behind, mask(&[2]), "the invented base serves");
    check(&a, 0x300, [0, 0, 0x500, 0x500], &[0x66, 0x76]);
}

#[test]
fn a_resync_within_a_generation_leaves_where_others_count_from() {
    let s = situation(0, false, [Inconsistent, UpToDate, DUnknown]);
    let mut a = gens(0x400, [0, 0, 0x200, 0], &[0x100]);
    let start = a.start_target(&s, GenUuid::NONE, fresh(&[])).start;
    let bitmap = sent([0, 0, 0x300, 0]);
    a.finish_target(&s, start, &source(1, 0x400, &bitmap, &[]), &NOTHING, NodeMask::EMPTY);
    assert_eq!(a.bitmap(n(2)).uuid, g(0x200), "that disk has never been at 0x400");
}

#[test]
fn learning_needs_an_honest_speaker() {
    let s = situation(0, false, [UpToDate, UpToDate, DUnknown]);
    let mut a = gens(0x10, [0, 0, 0x40, 0x90], &[]);
    let learn = |a: &Generations, current, bitmap, flags| {
        let peer = PeerGenerations { flags: UuidFlags(flags), ..source(1, current, &bitmap, &[]) };
        a.learn(&s, &peer, NodeMask::EMPTY)
    };
    assert_eq!(learn(&a, 0x10, sent([0; 4]), 0).in_sync, mask(&[2]));
    assert_eq!(learn(&a, 0x10, sent([0, 0, 0x40, 0]), 0), Learned::default());
    assert_eq!(learn(&a, 0x10, [UNKNOWN; MAX_NODES], 0), Learned::default(), "slot not sent");
    assert_eq!(learn(&a, 0x10, sent([0; 4]), 0x800), Learned::default(), "a resync target");
    assert_eq!(learn(&a, 4, sent([0; 4]), 0), Learned::default());

    // The peer is at generation 0x60, and owes nothing to node 2: which then is at 0x60 as well.
    // We know since when bits differ from there, by the slot of node 1.
    a.bitmap[1] = BitmapUuid { uuid: g(0x60), dagtag: Dagtag(9) };
    a.bitmap[2].dagtag = Dagtag(5);
    assert_eq!(learn(&a, 0x60, sent([0; 4]), 0).copies, vec![(n(1), n(2))]);
    let mut worn = a.clone();
    worn.bits_cleared(n(1));
    assert_eq!(learn(&worn, 0x60, sent([0; 4]), 0).copies, vec![], "bits that are complete");
    a.bitmap[2].dagtag = Dagtag(9);
    assert_eq!(learn(&a, 0x60, sent([0; 4]), 0).copies, vec![], "only if it is newer");
}

#[test]
fn a_forgotten_node_id_is_at_day_0_again_case_100() {
    let s = situation(0, false, [UpToDate, UpToDate, UpToDate]);
    let mut a = gens(0x10, [0, 0x40, 0, 0x90], &[]);
    a.forget(n(1), &s);
    check(&a, 0x10, [0, 0x90, 0, 0x90], &[0x40]);
    let mut a = gens(0x10, [0, 0x40, 0, 0], &[]);
    a.forget(n(1), &s);
    check(&a, 0x10, [0, 0, 0, 0], &[0x40]);
}

#[test]
fn new_current_zeroes_the_slots_of_nodes_that_left_case_14() {
    // Hard case 14: a stale slot must not let a node join with nothing to resync.
    let mut a = gens(0x10, [0, 0x40, 0x50, 0x90], &[]);
    let mut s = situation(0, false, [UpToDate, DUnknown, DUnknown]);
    s.nodes[2] = Neighbour { has_slot: true, ..Neighbour::NOBODY };
    a.new_current(&s, false, NodeMask::EMPTY, fresh(&[0x200]));
    assert_eq!(a.current(), g(0x200));
    assert_eq!((a.bitmap(n(1)).uuid, a.bitmap(n(2)).uuid), (g(0x10), g(0x10)));
    assert!([0x40, 0x50, 0x90].iter().all(|old| a.history.contains(&g(*old))));
    a.invariants();
}
