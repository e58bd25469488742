//! Generations that a Primary without a current disk proposes, and what becomes of them.

use sim::World;
use sim::plan::Plan;
use sim::scenario::scenario;

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
