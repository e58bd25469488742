//! Target 5: a client on a node without a disk.

use anyhow::Result;

use super::Setting;
use super::check::Limit as Bound;
use super::check::{Check, Figure, Unit, ratios};
use super::disk_limit::{DEPTH, REQUESTS, not_limited};
use super::stand::{Client, Load, Plan, Stand};
use crate::bench::fio::Job;
use crate::bench::limit::Limit;
use crate::bench::options::Disks;
use crate::bench::peers::{Peer, Serving, Wanted};

/// With the disk as the limit, of a local replica.
const LEAST_OF_LOCAL: f64 = 0.95;
/// With the CPU as the limit: of all engines per read, microseconds,
const MOST_CPU: f64 = 16.0;
/// and IOPS by tgt's.
const LEAST_BY_TGT: f64 = 2.5;

const WAYS: [(&str, &str); 2] = [("read", "randread"), ("write", "randwrite")];

/// The measurement.
pub fn measure(setting: &Setting) -> Result<Vec<Check>> {
    let mut checks = at_the_limit_of_the_disk(setting)?;
    checks.extend(at_the_limit_of_the_cpu(setting)?);
    Ok(checks)
}

fn at_the_limit_of_the_disk(setting: &Setting) -> Result<Vec<Check>> {
    let options = setting.options;
    let plan = Plan { diskless: true, ..Plan::new(Disks::File, options) };
    let mut stand = Stand::start(setting.program, options, plan)?;
    let (unit, bound) = (Unit::Part, Bound::AtLeast(LEAST_OF_LOCAL));
    let words =
        |way: &str| format!("4 KiB random {way}, disks of {REQUESTS}/s: of a local replica");
    if let Err(error) = stand.part_disks() {
        let absent = |way| Check::absent(words(way), bound, unit, format!("{error:#}"));
        return Ok(WAYS.iter().map(|(way, _)| absent(way)).collect());
    }
    let limit = Limit::Requests(REQUESTS);
    stand.limit(limit)?;
    let mut iops: [[Vec<f64>; 3]; 2] = Default::default();
    setting.rounds(|| {
        for ((_, pattern), [raw, local, diskless]) in WAYS.iter().zip(&mut iops) {
            let load = Load::random(pattern, DEPTH);
            raw.push(stand.run(Client::Raw(1), load)?.iops);
            local.push(stand.run(Client::Local(1), load)?.iops);
            diskless.push(stand.run(Client::Diskless, load)?.iops);
        }
        Ok(())
    })?;
    let check = |((way, _), [raw, local, diskless]): (&(&str, _), [Vec<f64>; 3])| {
        let raw = Figure::new("raw", Unit::PerSecond, raw);
        if let Some(why) = not_limited(limit, &raw) {
            return Check::absent(words(way), bound, unit, why).with(raw);
        }
        Check::new(words(way), bound, unit, ratios(&diskless, &local))
            .with(Figure::new("diskless", Unit::PerSecond, diskless))
            .with(Figure::new("local", Unit::PerSecond, local))
            .with(raw)
    };
    Ok(WAYS.iter().zip(iops).map(check).collect())
}

fn at_the_limit_of_the_cpu(setting: &Setting) -> Result<Vec<Check>> {
    let options = setting.options;
    let plan = Plan { diskless: true, raw: 0, ..Plan::new(Disks::Ram, options) };
    let mut stand = Stand::start(setting.program, options, plan)?;
    let tgt = match Peer::Tgt.require() {
        Ok(()) => Ok(start_tgt(&stand, options.mib)?),
        Err(error) => Err(format!("{error:#}")),
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    setting.rounds(|| {
        ours.push(stand.run(Client::Diskless, Load::random("randread", DEPTH))?);
        if let Ok(serving) = &tgt {
            let targets = &serving.targets[..1];
            let (pattern, block, depth) = ("randread", "4k", DEPTH);
            let (mib, seconds) = (options.mib, Some(options.seconds));
            let job = Job { targets, pattern, block, depth, jobs: 1, mib, seconds, rate: None };
            theirs.push(job.run()?.read.rate);
        }
        Ok(())
    })?;
    let iops: Vec<f64> = ours.iter().map(|run| run.iops).collect();
    let cpu = ours.iter().filter_map(|run| run.server_cpu_us).collect();
    let fio = ours.iter().map(|run| run.client_cpu_us).collect();
    let what = format!("4 KiB random read, depth {DEPTH}, disks ram");
    let of_engines = Check::new(format!("{what}: engines"), Bound::AtMost(MOST_CPU), Unit::Us, cpu)
        .with(Figure::new("fio", Unit::Us, fio))
        .with(Figure::new("reads", Unit::PerSecond, iops.clone()));
    let (what, bound) = (format!("{what}: by tgt"), Bound::AtLeast(LEAST_BY_TGT));
    let by_tgt = match tgt {
        Err(why) => Check::absent(what, bound, Unit::Times, why),
        Ok(_) => Check::new(what, bound, Unit::Times, ratios(&iops, &theirs))
            .with(Figure::new("Ashlar", Unit::PerSecond, iops))
            .with(Figure::new("tgt", Unit::PerSecond, theirs))
            .noted("fio speaks no iSCSI here: tgt is reached through a qemu-nbd, one hop more"),
    };
    Ok(vec![of_engines, by_tgt])
}

/// tgt with a file beside the cluster's, fully written.
fn start_tgt(stand: &Stand, mib: u64) -> Result<Serving> {
    let folder = stand.folder("tgt")?;
    let wanted = Wanted { folder: &folder, volumes: 1, mib, direct: stand.place().direct };
    let serving = Peer::Tgt.serve(&wanted)?;
    let (targets, pattern, block) = (&serving.targets[..1], "write", "1m");
    Job { targets, pattern, block, depth: 4, jobs: 1, mib, seconds: None, rate: None }.run()?;
    Ok(serving)
}
