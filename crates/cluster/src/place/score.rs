//! Which pool is better (control plane §4.3): each strategy's raw value, as a share of the highest
//! one, times its weight.

use super::{Ask, Candidate, Verdict};
use crate::objects::Pool;
use crate::props::chain;

/// A strategy: the key of its weight, the default of that, and its sense.
struct Strategy {
    key: &'static str,
    weight: f64,
    raw: fn(&Ask<'_>, &Pool) -> f64,
    /// Fewer is better.
    fewer: bool,
}

const STRATEGIES: &[Strategy] = &[
    Strategy {
        key: "Autoplacer/Weights/MaxFreeSpace",
        weight: 1.0,
        raw: |ask, pool| {
            ask.observed.pool(&pool.node, &pool.name).map_or(0.0, |state| state.free.0 as f64)
        },
        fewer: false,
    },
    Strategy {
        key: "Autoplacer/Weights/MinReservedSpace",
        weight: 0.0,
        raw: |ask, pool| {
            let uses = ask.model.pool_use(&pool.node, &pool.name);
            uses.volumes.0 as f64 + uses.snapshots.0 as f64
        },
        fewer: true,
    },
    Strategy {
        key: "Autoplacer/Weights/MinRscCount",
        weight: 0.00001,
        raw: |ask, pool| f64::from(ask.model.pool_use(&pool.node, &pool.name).resources),
        fewer: true,
    },
    Strategy {
        key: "Autoplacer/Weights/MaxThroughput",
        weight: 0.0,
        raw: throughput,
        fewer: false,
    },
];

/// What is left of a pool's throughput after the limits of its volumes.
fn throughput(ask: &Ask<'_>, pool: &Pool) -> f64 {
    let all: f64 =
        chain::pool(ask.model, pool).number("Autoplacer/MaxThroughput").unwrap_or_default();
    if all == 0.0 {
        return 0.0;
    }
    let mut taken = 0.0;
    for name in ask.model.resources_on(&pool.node) {
        let Some(definition) = ask.model.definition(name) else { continue };
        let Some(resource) = ask.model.resource(name, &pool.node) else { continue };
        for (number, _) in resource.volumes.iter().filter(|(_, v)| v.pool == pool.name) {
            let chain = chain::volume(ask.model, definition, resource, *number);
            for key in ["sys/fs/blkio_throttle_read", "sys/fs/blkio_throttle_write"] {
                taken += chain.number(key).unwrap_or(0.0);
            }
        }
    }
    (all - taken).max(0.0)
}

/// Gives every candidate that fits its score.
pub(super) fn score(ask: &Ask<'_>, candidates: &mut [Candidate]) {
    let fits = |candidate: &&mut Candidate| candidate.verdict == Verdict::NotNeeded;
    for strategy in STRATEGIES {
        let weight = ask.model.controller().props.get(strategy.key);
        let weight = weight.and_then(|weight| weight.parse().ok()).unwrap_or(strategy.weight);
        if weight == 0.0 {
            continue;
        }
        let raw = |candidate: &Candidate| {
            let pool = ask.model.pool(&candidate.node, &candidate.pool);
            pool.map_or(0.0, |pool| (strategy.raw)(ask, pool))
        };
        let values: Vec<f64> = candidates.iter_mut().filter(fits).map(|c| raw(c)).collect();
        let highest = values.iter().copied().fold(0.0, f64::max);
        if highest == 0.0 {
            continue;
        }
        let sign = if strategy.fewer { -1.0 } else { 1.0 };
        for (candidate, value) in candidates.iter_mut().filter(fits).zip(values) {
            candidate.score += sign * weight * value / highest;
        }
    }
}
