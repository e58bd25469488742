//! How much of a pool can be promised (control plane §4.4).

use vocab::Bytes;

use crate::model::Model;
use crate::objects::{Definition, Pool};
use crate::observed::Observed;
use crate::props::chain;

/// How far a thin pool is promised beyond what it has, unless a property says otherwise.
const THIN_RATIO: f64 = 20.0;

/// What can still be promised of a pool: the smaller one of what its free space and what its whole
/// space allow, less what is promised. Nothing if its capacity is not known.
pub fn estimate(model: &Model, observed: &Observed, pool: &Pool) -> Option<Bytes> {
    let state = observed.pool(&pool.node, &pool.name)?;
    let (by_free, by_total) = ratios(model, pool);
    let reserved = reserved(model, observed, pool);
    let times = |size: Bytes, ratio: f64| {
        // Saturates: a float that is too large becomes the largest number.
        if ratio == 1.0 { size.0 } else { (size.0 as f64 * ratio) as u64 }
    };
    let free = times(state.free, by_free);
    Some(Bytes(free.min(times(state.total, by_total).saturating_sub(reserved.0))))
}

/// What volumes and snapshots were promised. Pools of one shared space are one.
fn reserved(model: &Model, observed: &Observed, pool: &Pool) -> Bytes {
    let volumes = |pool: &Pool| model.pool_use(&pool.node, &pool.name).volumes.0;
    let same =
        |other: &&Pool| pool.shared_space.is_some() && other.shared_space == pool.shared_space;
    let volumes = match pool.shared_space {
        None => volumes(pool),
        Some(_) => model.pools().filter(same).map(volumes).sum(),
    };
    let snapshots = observed.pool(&pool.node, &pool.name).map_or(0, |state| state.snapshots.0);
    Bytes(volumes.saturating_add(snapshots))
}

/// The ratios by free and by total space.
fn ratios(model: &Model, pool: &Pool) -> (f64, f64) {
    let chain = chain::pool(model, pool);
    let default = if pool.provider.is_thin() { THIN_RATIO } else { 1.0 };
    let both = chain.number("MaxOversubscriptionRatio").unwrap_or(default);
    (
        chain.number("MaxFreeCapacityOversubscriptionRatio").unwrap_or(both),
        chain.number("MaxTotalCapacityOversubscriptionRatio").unwrap_or(both),
    )
}

/// What a thin pool has to have left to be chosen: `Autoplacer/MinThinFreeSpace`, by default a
/// tenth of its capacity.
pub fn thin_minimum(model: &Model, definition: &Definition, pool: &Pool, total: Bytes) -> Bytes {
    const KEY: &str = "Autoplacer/MinThinFreeSpace";
    let found = pool
        .props
        .get(KEY)
        .map(String::as_str)
        .or_else(|| definition.props.get(KEY).map(String::as_str))
        .or_else(|| model.group(&definition.group)?.props.get(KEY).map(String::as_str))
        .or_else(|| model.node(&pool.node)?.props.get(KEY).map(String::as_str))
        .or_else(|| model.controller().props.get(KEY).map(String::as_str));
    match found.and_then(parse_threshold) {
        Some(Threshold::Size(size)) => size,
        Some(Threshold::Percent(percent)) => Bytes((total.0 as f64 * percent / 100.0) as u64),
        None => Bytes(total.0 / 10),
    }
}

/// A share of a pool, or a size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Threshold {
    /// Of the capacity.
    Percent(f64),
    /// Whatever the capacity.
    Size(Bytes),
}

/// Reads `5%`, `50GB`, `50GiB`, or a number of KiB.
pub fn parse_threshold(text: &str) -> Option<Threshold> {
    let text = text.trim();
    if let Some(percent) = text.strip_suffix('%') {
        let percent: f64 = percent.trim().parse().ok()?;
        return (0.0..=100.0).contains(&percent).then_some(Threshold::Percent(percent));
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().ok()?;
    let unit: u64 = match text[end..].trim().to_ascii_lowercase().as_str() {
        "" | "k" | "kib" => 1 << 10,
        "b" => 1,
        "kb" => 1_000,
        "m" | "mib" => 1 << 20,
        "mb" => 1_000_000,
        "g" | "gib" => 1 << 30,
        "gb" => 1_000_000_000,
        "t" | "tib" => 1 << 40,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    Some(Threshold::Size(Bytes(number.checked_mul(unit)?)))
}
