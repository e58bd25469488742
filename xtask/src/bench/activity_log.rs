//! Metadata writes per data write: over more extents than the activity log holds, and over few.
//! Fails where there are more of them than may be.

use std::path::Path;

use anyhow::{Result, bail};

use super::Options;
use super::cluster::{Cluster, Counters, NAMES};
use super::fio::Job;

/// MiB of an extent.
const EXTENT: u64 = 4;

/// From this depth on a transaction can be filled, so there is a limit.
const DEEP: u32 = 64;

/// Data writes for one metadata write, at least, over more extents than fit.
const LEAST: u64 = 60;

/// What is written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extents {
    /// More than the log holds, by so many requests in flight.
    Cold { depth: u32 },
    /// On their way into the log.
    Warming,
    /// All of them are in it.
    Hot,
}

/// The measurement.
pub fn run(program: &Path, options: &Options) -> Result<()> {
    let (mib, depth) = (options.mib.unwrap_or(4096), options.depth.unwrap_or(DEEP));
    let extents = options.al_extents.unwrap_or(256);
    let mut cluster = options.cluster(program, mib, format!("al-extents {extents};"))?;
    // Else each round would begin and end with a change of role, which is written down.
    cluster.promote()?;
    let targets = &cluster.local();
    println!(
        "{} nodes, {depth} random writes of 4 KiB in flight, activity logs of {extents} extents",
        options.nodes
    );
    // Far fewer than the log holds, so that they stay once they are in it.
    let hot = EXTENT * u64::from(extents / 2);
    let cold = match mib > EXTENT * u64::from(extents) {
        true => Extents::Cold { depth },
        false => Extents::Warming,
    };
    let mut too_many = Vec::new();
    for (what, mib) in [(cold, mib), (Extents::Warming, hot), (Extents::Hot, hot)] {
        let before = counters(&cluster, options.nodes)?;
        let (pattern, block, seconds) = ("randwrite", "4k", Some(options.seconds));
        let report = Job { targets, pattern, block, depth, jobs: 1, mib, seconds }.run()?.write;
        cluster.check()?;
        let after = counters(&cluster, options.nodes)?;
        println!(
            "{what:?}: {} extents, {} writes, {:.0}/s",
            mib / EXTENT,
            report.requests,
            report.rate
        );
        for ((before, after), name) in before.iter().zip(after).zip(NAMES) {
            let written = after.since(*before);
            let per = match written.all() {
                0 => String::new(),
                all => format!(": one for {:.1} writes", report.requests as f64 / all as f64),
            };
            let Counters { activity_log, bitmap, superblock } = written;
            println!(
                "    {name:<8} {activity_log} of the log, {bitmap} of the bitmap, {superblock} of \
                 the superblock{per}"
            );
            if !is_enough(what, report.requests, written) {
                too_many.push(format!("{name} ({what:?})"));
            }
        }
    }
    if !too_many.is_empty() {
        bail!("too many metadata writes: {}", too_many.join(", "));
    }
    Ok(())
}

/// True if so many data writes are enough for those of metadata.
fn is_enough(extents: Extents, writes: u64, metadata: Counters) -> bool {
    match extents {
        Extents::Cold { depth } => depth < DEEP || writes >= LEAST * metadata.all(),
        Extents::Warming => true,
        Extents::Hot => metadata.all() == 0,
    }
}

fn counters(cluster: &Cluster, nodes: usize) -> Result<Vec<Counters>> {
    (0..nodes).map(|node| cluster.counters(node)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_metadata_writes_than_one_for_sixty_are_too_many_and_any_is_while_extents_are_hot() {
        let log = |activity_log| Counters { activity_log, ..Counters::default() };
        let cold = Extents::Cold { depth: 64 };
        assert!(is_enough(cold, 600, log(10)));
        assert!(!is_enough(cold, 599, log(10)));
        assert!(!is_enough(cold, 600, Counters { superblock: 1, ..log(10) }));
        assert!(!is_enough(cold, 600, Counters { bitmap: 1, ..log(10) }));
        assert!(is_enough(Extents::Cold { depth: 63 }, 1, log(1)), "too few to fill a transaction");
        assert!(is_enough(Extents::Warming, 1, log(1)));
        assert!(is_enough(Extents::Hot, 1000, log(0)));
        assert!(!is_enough(Extents::Hot, 1000, log(1)));
    }
}
