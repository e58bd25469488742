//! Metadata writes per data write: over more extents than the activity log holds, and over few.

use std::path::Path;

use anyhow::Result;

use super::Options;
use super::cluster::{Cluster, Counters, NAMES};
use super::fio::Job;

/// MiB of an extent.
const EXTENT: u64 = 4;

/// The measurement.
pub fn run(program: &Path, options: &Options) -> Result<()> {
    let (mib, depth) = (options.mib.unwrap_or(4096), options.depth.unwrap_or(64));
    let extents = options.al_extents.unwrap_or(256);
    let mut cluster = options.cluster(program, mib, format!("al-extents {extents};"))?;
    let targets = &cluster.local();
    println!(
        "{} nodes, {depth} random writes of 4 KiB in flight, activity logs of {extents} extents",
        options.nodes
    );
    // Far fewer than the log holds, so that they stay once they are in it.
    let hot = EXTENT * u64::from(extents / 2);
    for (what, mib) in [("cold", mib), ("warming up", hot), ("hot", hot)] {
        let before = counters(&cluster, options.nodes)?;
        let (pattern, block, seconds) = ("randwrite", "4k", Some(options.seconds));
        let report = Job { targets, pattern, block, depth, jobs: 1, mib, seconds }.run()?.write;
        cluster.check()?;
        let after = counters(&cluster, options.nodes)?;
        println!(
            "{what}: {} extents, {} writes, {:.0}/s",
            mib / EXTENT,
            report.requests,
            report.rate
        );
        for (node, (before, after)) in before.iter().zip(&after).enumerate() {
            let log = after.activity_log - before.activity_log;
            let bitmap = after.bitmap - before.bitmap;
            let per = match log + bitmap {
                0 => String::new(),
                all => format!(": one for {:.1} writes", report.requests as f64 / all as f64),
            };
            println!("    {:<8} {log} of the log, {bitmap} of the bitmap{per}", NAMES[node]);
        }
    }
    Ok(())
}

fn counters(cluster: &Cluster, nodes: usize) -> Result<Vec<Counters>> {
    (0..nodes).map(|node| cluster.counters(node)).collect()
}
