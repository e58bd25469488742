//! Metadata writes per data write: over more extents than the activity log holds, and over few.
//! Fails where there are more of them than may be.

use std::path::Path;

use anyhow::{Result, bail};

use super::Options;
use super::cluster::{Cluster, Counters, NAMES};
use super::fio::{Job, Side};

/// MiB of an extent.
const EXTENT: u64 = 4;

/// From this depth on a transaction can be filled, so there is a limit.
const DEEP: u32 = 64;

/// Data writes for one metadata write, at least, over more extents than fit.
const LEAST: u64 = 60;

/// What is written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extents {
    /// More than the log holds, by so many requests in flight.
    Cold { depth: u32 },
    /// On their way into the log.
    Warming,
    /// All of them are in it.
    Hot,
}

/// What is done, and where.
#[derive(Clone, Copy, Debug)]
pub struct Writes {
    /// Nodes with a disk.
    pub nodes: usize,
    /// Size of the volume, MiB.
    pub mib: u64,
    /// Requests in flight.
    pub depth: u32,
    /// What the logs hold.
    pub extents: u32,
    /// For how long each part goes on.
    pub seconds: u64,
}

/// What came of a part.
pub struct Part {
    pub what: Extents,
    /// MiB that were written to.
    mib: u64,
    /// Of data.
    pub writes: Side,
    /// Metadata that each node has written meanwhile.
    pub metadata: Vec<Counters>,
}

impl Writes {
    /// The parts: what is written to, and its MiB.
    pub fn parts(&self) -> [(Extents, u64); 3] {
        // Far fewer than the log holds, so that they stay once they are in it.
        let hot = EXTENT * u64::from(self.extents / 2);
        let cold = match self.mib > EXTENT * u64::from(self.extents) {
            true => Extents::Cold { depth: self.depth },
            false => Extents::Warming,
        };
        [(cold, self.mib), (Extents::Warming, hot), (Extents::Hot, hot)]
    }

    /// Writes for one part. The volume has to be promoted: else each run begins and ends with a
    /// change of role, which is written down.
    pub fn run(&self, cluster: &mut Cluster, what: Extents, mib: u64) -> Result<Part> {
        let targets = &cluster.local();
        let before = counters(cluster, self.nodes)?;
        let (pattern, block, depth) = ("randwrite", "4k", self.depth);
        let seconds = Some(self.seconds);
        let job = Job { targets, pattern, block, depth, jobs: 1, mib, seconds, rate: None };
        let writes = job.run()?.write;
        cluster.check()?;
        let after = counters(cluster, self.nodes)?;
        let metadata =
            after.iter().zip(before).map(|(after, before)| after.since(before)).collect();
        Ok(Part { what, mib, writes, metadata })
    }
}

/// The measurement.
pub fn run(program: &Path, options: &Options) -> Result<()> {
    let extents = options.al_extents.unwrap_or(256);
    let writes = Writes {
        nodes: options.nodes,
        mib: options.mib.unwrap_or(4096),
        depth: options.depth.unwrap_or(DEEP),
        extents,
        seconds: options.seconds,
    };
    let mut cluster = options.cluster(program, writes.mib, format!("al-extents {extents};"))?;
    cluster.promote()?;
    println!(
        "{} nodes, {} random writes of 4 KiB in flight, activity logs of {extents} extents",
        options.nodes, writes.depth
    );
    let mut too_many = Vec::new();
    for (what, mib) in writes.parts() {
        too_many.extend(print(&writes.run(&mut cluster, what, mib)?));
    }
    if !too_many.is_empty() {
        bail!("too many metadata writes: {}", too_many.join(", "));
    }
    Ok(())
}

/// Prints a part; returns who has written too much.
fn print(part: &Part) -> Vec<String> {
    let Part { what, mib, writes, metadata } = part;
    println!(
        "{what:?}: {} extents, {} writes, {:.0}/s",
        mib / EXTENT,
        writes.requests,
        writes.rate
    );
    let mut too_many = Vec::new();
    for (written, name) in metadata.iter().zip(NAMES) {
        let per = match written.all() {
            0 => String::new(),
            all => format!(": one for {:.1} writes", writes.requests as f64 / all as f64),
        };
        let Counters { activity_log, bitmap, superblock } = written;
        println!(
            "    {name:<8} {activity_log} of the log, {bitmap} of the bitmap, {superblock} of \
             the superblock{per}"
        );
        if !is_enough(*what, writes.requests, *written) {
            too_many.push(format!("{name} ({what:?})"));
        }
    }
    too_many
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
