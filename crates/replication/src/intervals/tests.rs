//! The tree against a list, the promises about order, stale slots and allocation.

use super::*;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % limit
    }

    fn range(&mut self, volume: u64) -> SectorRange {
        let len = match self.below(40) {
            0 => self.below(262_144) + 1,
            1..8 => self.below(7) + 1,
            _ => (self.below(256) + 1) * 8,
        };
        SectorRange::new(self.below(volume), len)
    }
}

#[test]
fn it_agrees_with_a_list() {
    for seed in 1..40u64 {
        let mut rng = Random(seed * 0x9e37_79b9);
        let volume = [2_000, 200_000, 1 << 30][seed as usize % 3];
        let mut set = Intervals::default();
        // Kept in insertion order; a stable sort by start gives the promised order.
        let mut list: Vec<(Slot, Entry<u64>)> = Vec::new();
        for id in 0..1500 {
            let kind = if rng.below(2) == 0 { Kind::LocalWrite } else { Kind::ResyncRead };
            if list.len() < 200 && rng.below(5) < 3 {
                let range = rng.range(volume);
                list.push((set.insert(range, kind, id), Entry { range, kind, id }));
            } else if !list.is_empty() {
                let (slot, entry) = list.remove(rng.below(list.len() as u64) as usize);
                assert_eq!(set.remove(slot), entry);
                assert_eq!(set.get(slot), None);
            }
            let query = rng.range(volume);
            let mut expected = list.clone();
            expected.sort_by_key(|(_, entry)| entry.range.start);
            if id % 50 == 0 {
                set.invariants();
                assert_eq!(set.iter().collect::<Vec<_>>(), expected);
            }
            expected.retain(|(_, entry)| entry.range.overlaps(query));
            assert_eq!(set.overlapping(query).collect::<Vec<_>>(), expected);
            let writes = |entry: &Entry<u64>| entry.kind.is_write();
            let first = expected.iter().find(|(_, entry)| writes(entry)).copied();
            assert_eq!(set.first_conflict(query, writes), first);
        }
    }
}

#[test]
fn touching_ranges_do_not_conflict() {
    let mut set = Intervals::default();
    set.insert(SectorRange::new(8, 8), Kind::PeerWrite, 'a');
    let hit = |start, len| set.first_conflict(SectorRange::new(start, len), |_| true).is_some();
    assert!(!hit(0, 8) && !hit(16, 8));
    assert!(hit(15, 1) && hit(0, 9) && hit(0, 100));
    assert!(!hit(10, 0), "a flush without data conflicts with nothing");
}

#[test]
fn equal_ranges_come_out_in_the_order_they_went_in() {
    let mut set = Intervals::default();
    let slots: Vec<_> =
        (0..50).map(|i| set.insert(SectorRange::new(0, 8), Kind::LocalRead, i)).collect();
    set.remove(slots[10]);
    let ids: Vec<_> = set.iter().map(|(_, entry)| entry.id).collect();
    assert_eq!(ids, (0..50).filter(|i| *i != 10).collect::<Vec<_>>());
}

#[test]
#[should_panic(expected = "removed once")]
fn a_stale_slot_is_a_bug() {
    let mut set = Intervals::default();
    let slot = set.insert(SectorRange::new(0, 8), Kind::LocalWrite, 1);
    set.remove(slot);
    set.insert(SectorRange::new(0, 8), Kind::LocalWrite, 2);
    set.remove(slot);
}

#[test]
fn the_slab_is_reused() {
    let mut set = Intervals::with_capacity(8);
    for i in 0..10_000u64 {
        let slots = [0, 8, 16].map(|s| set.insert(SectorRange::new(s, 8), Kind::LocalWrite, i));
        for slot in slots {
            set.remove(slot);
        }
    }
    assert_eq!((set.nodes.len(), set.nodes.capacity()), (3, 8));
}

#[test]
fn the_tree_stays_shallow_for_sequential_writes() {
    let mut set = Intervals::default();
    for i in 0..8000u64 {
        set.insert(SectorRange::new(i * 8, 8), Kind::LocalWrite, i);
    }
    let depth = |mut at: u32| {
        let mut depth = 0;
        while at != NIL {
            at = set.node(at).parent;
            depth += 1;
        }
        depth
    };
    assert!((0..8000).map(depth).max() < Some(48));
}
