//! A fixed share of the control plane's seeds; campaigns are `cargo xtask sim --cluster`.

use sim::cluster::{Stats, seed};

#[test]
fn no_seed_breaks_a_rule_and_they_do_what_they_are_for() {
    let mut total = Stats::default();
    let mut broken = Vec::new();
    for number in 1..=100 {
        match seed(number, &mut |_| {}) {
            Ok(stats) => total.add(&stats),
            Err(rule) => broken.push(format!("seed {number}: {rule}")),
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    for (what, count) in total.lines() {
        assert!(count > 0, "no {what} in all seeds: {total:?}");
    }
}
