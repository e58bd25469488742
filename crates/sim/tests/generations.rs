//! Generations that a Primary without a current disk proposes, and what becomes of them.

use sim::World;
use sim::plan::Plan;
use sim::scenario::scenario;
use vocab::{DiskState, GenUuid};

fn current(w: &World, node: usize) -> GenUuid {
    w.seen(node).volumes[0].current
}

/// n0 misses something of n1, and becomes Primary as soon as they meet again.
fn promoted_beside_its_resync(w: &mut World, sector: u64) -> u64 {
    w.cut(0, 1);
    w.wait_lost_all(0, [1]);
    let opener = w.open(1);
    w.write(1, sector);
    w.close(1, opener);
    w.wait_secondary(1);
    w.heal(0, 1);
    w.wait_connected(0, 1);
    w.open(0)
}

/// The end of its resync may bring the disk of the Primary to the generation that is proposed before
/// the source has said that it holds it.
#[test]
fn what_is_written_beside_the_end_of_a_resync_of_the_primary_is_reported() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        promoted_beside_its_resync(w, 0);
        w.write(0, 8);
    });
}

/// The source was told of what the Primary proposes, but what arrives is what it said before that:
/// at its end the resync leads to where the source is by then.
#[test]
fn a_target_that_is_promoted_ends_in_the_generation_that_its_source_takes() {
    scenario(Plan::quiet(2, 0), |w| {
        w.form();
        for round in 0..20 {
            let opener = promoted_beside_its_resync(w, round * 16);
            w.write(0, round * 16 + 8);
            w.wait_disk(0, DiskState::UpToDate);
            w.expect("they are in one generation", |w| current(w, 0).same(current(w, 1)));
            w.close(0, opener);
            w.settle();
        }
    });
}
