//! Target 6: what a node writes besides the data, and what is left of the disk without the peers.

use anyhow::Result;

use super::Setting;
use super::check::Limit as Bound;
use super::check::{Check, Figure, Unit, ratios};
use super::disk_limit::{DEPTH, REQUESTS, not_limited};
use super::stand::{Client, Load, Plan, REPLICAS, Stand};
use crate::bench::activity_log::{Extents, Part, Writes};
use crate::bench::cluster::NAMES;
use crate::bench::limit::Limit;
use crate::bench::options::Disks;

/// Writes of metadata for a hundred of data, with more extents than the log holds,
const MOST_COLD: f64 = 1.0;
/// and with fewer.
const MOST_HOT: f64 = 0.0;
/// Without peers, of raw storage.
const LEAST_ALONE: f64 = 0.97;
/// What the log holds, and a volume of four times as many extents.
const LOG: (u32, &str, u64) = (256, "al-extents 256;", 4096);
/// The least that it can hold, for smoke runs.
const LOG_QUICK: (u32, &str, u64) = (67, "al-extents 67;", 512);
/// Requests in flight: enough to fill a transaction.
const DEEP: u32 = 64;

/// The measurement.
pub fn measure(setting: &Setting) -> Result<Vec<Check>> {
    let mut checks = metadata_writes(setting)?;
    checks.push(without_peers(setting)?);
    Ok(checks)
}

fn metadata_writes(setting: &Setting) -> Result<Vec<Check>> {
    let options = setting.options;
    let (extents, disk, mib) = if options.quick { LOG_QUICK } else { LOG };
    let plan = Plan { raw: 0, mib, disk, ..Plan::new(Disks::File, options) };
    let mut stand = Stand::start(setting.program, options, plan)?;
    stand.cluster().promote()?;
    let seconds = options.seconds;
    let writes = Writes { nodes: REPLICAS, mib, depth: DEEP, extents, seconds };
    let (mut cold, mut hot) = (Vec::new(), Vec::new());
    setting.rounds(|| {
        for (what, mib) in writes.parts() {
            let part = writes.run(stand.cluster(), what, mib)?;
            match what {
                Extents::Cold { .. } => cold.push(part),
                Extents::Warming => {}
                Extents::Hot => hot.push(part),
            }
        }
        Ok(())
    })?;
    let check = |what: &str, most: f64, parts: &[Part]| {
        let of = |node: usize| parts.iter().map(|part| per_hundred(part, node)).collect();
        let rate = parts.iter().map(|part| part.writes.rate).collect();
        let worst = parts.iter().map(worst).collect();
        let check = Check::new(what, Bound::AtMost(most), Unit::PerHundred, worst)
            .with(Figure::new("data", Unit::PerSecond, rate));
        let nodes = NAMES.iter().enumerate().take(REPLICAS);
        nodes.fold(check, |check, (node, name)| {
            check.with(Figure::new(*name, Unit::PerHundred, of(node)))
        })
    };
    let cold_words = format!(
        "metadata writes per data writes, depth {DEEP}, {} extents, {extents} in the log",
        mib / 4
    );
    let hot_words = format!("the same, {} extents, all in the log", extents / 2);
    Ok(vec![check(&cold_words, MOST_COLD, &cold), check(&hot_words, MOST_HOT, &hot)])
}

/// Metadata writes of a node for a hundred writes of data.
fn per_hundred(part: &Part, node: usize) -> f64 {
    100.0 * part.metadata[node].all() as f64 / part.writes.requests as f64
}

fn worst(part: &Part) -> f64 {
    (0..part.metadata.len()).map(|node| per_hundred(part, node)).fold(0.0, f64::max)
}

fn without_peers(setting: &Setting) -> Result<Check> {
    let options = setting.options;
    let mut stand = Stand::start(setting.program, options, Plan::new(Disks::File, options))?;
    let what = format!("4 KiB random write without peers, disks of {REQUESTS}/s: of raw");
    let (unit, bound) = (Unit::Part, Bound::AtLeast(LEAST_ALONE));
    if let Err(error) = stand.part_disks() {
        return Ok(Check::absent(what, bound, unit, format!("{error:#}")));
    }
    let limit = Limit::Requests(REQUESTS);
    stand.limit(limit)?;
    stand.cluster().lose_peers();
    let load = Load::random("randwrite", DEPTH);
    let (mut raw, mut alone) = (Vec::new(), Vec::new());
    setting.rounds(|| {
        raw.push(stand.run(Client::Raw(1), load)?.iops);
        alone.push(stand.run(Client::Local(1), load)?.iops);
        Ok(())
    })?;
    let parts = ratios(&alone, &raw);
    let raw = Figure::new("raw", Unit::PerSecond, raw);
    if let Some(why) = not_limited(limit, &raw) {
        return Ok(Check::absent(what, bound, unit, why).with(raw));
    }
    let alone = Figure::new("alone", Unit::PerSecond, alone);
    Ok(Check::new(what, bound, unit, parts).with(alone).with(raw))
}
