//! Target 4: large transfers and resync, beside a plain TCP stream and the disk.

use std::time::Duration;

use anyhow::Result;

use super::Setting;
use super::check::{Check, Figure, Limit, Unit, least, ratios};
use super::floors;
use super::stand::{Client, Load, Plan, REPLICAS, Stand};
use crate::bench::options::Disks;

const DISKS: [Disks; 2] = [Disks::Ram, Disks::File];
const LEAST: f64 = 0.9;
/// Large enough for a resync to get up to speed; of the other targets' volumes.
const TIMES: u64 = 4;
/// The replica that is resynced.
const TARGET: usize = 2;

/// Of each round: MiB per second.
#[derive(Default)]
struct Rates {
    stream: Vec<f64>,
    raw_read: Vec<f64>,
    raw_write: Vec<f64>,
    /// Of each of as many files as there are replicas, all at once.
    raw_shared: Vec<f64>,
    read: Vec<f64>,
    write: Vec<f64>,
    resync: Vec<f64>,
}

/// The measurement.
pub fn measure(setting: &Setting) -> Result<Vec<Check>> {
    let options = setting.options;
    let mib = options.mib * TIMES;
    let mut stands = DISKS
        .map(|disks| {
            let plan = Plan { raw: REPLICAS, mib, ..Plan::new(disks, options) };
            Stand::start(setting.program, options, plan)
        })
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let mut rates: [Rates; 2] = Default::default();
    let time = Duration::from_secs(options.seconds);
    setting.rounds(|| {
        for (stand, rates) in stands.iter_mut().zip(&mut rates) {
            rates.stream.push(floors::stream(stand.place().folder.path(), time)?);
            let mut run = |client, pattern| {
                Ok::<_, anyhow::Error>(stand.run(client, Load::sequential(pattern))?.mib_per_second)
            };
            rates.raw_read.push(run(Client::Raw(1), "read")?);
            rates.raw_write.push(run(Client::Raw(1), "write")?);
            rates.raw_shared.push(run(Client::Raw(REPLICAS), "write")? / REPLICAS as f64);
            rates.read.push(run(Client::Local(1), "read")?);
            rates.write.push(run(Client::Local(1), "write")?);
            let seconds = stand.cluster().resync(TARGET)?.as_secs_f64();
            rates.resync.push(mib as f64 / seconds);
        }
        Ok(())
    })?;
    Ok(DISKS.iter().zip(&rates).flat_map(|(disks, rates)| checks(*disks, rates)).collect())
}

fn checks(disks: Disks, rates: &Rates) -> [Check; 3] {
    let Rates { stream, raw_read, raw_write, raw_shared, read, write, resync } = rates;
    let disks = disks.name();
    let check = |what: String, ours: &[f64], raw: &str, floor: Vec<f64>| {
        let figure =
            |name: &str, runs: &[f64]| Figure::new(name, Unit::MibPerSecond, runs.to_vec());
        let parts = ratios(ours, &least(&[stream, &floor]));
        Check::new(what, Limit::AtLeast(LEAST), Unit::Part, parts)
            .with(figure("Ashlar", ours))
            .with(figure("TCP stream", stream))
            .with(figure(raw, &floor))
    };
    [
        check(format!("sequential read, disks {disks}"), read, "raw", raw_read.clone()),
        check(
            format!("sequential write, disks {disks}"),
            write,
            "raw, each of three at once",
            raw_shared.clone(),
        ),
        check(
            format!("resync, disks {disks}"),
            resync,
            "raw, the slower of read and write",
            least(&[raw_read, raw_write]),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_floor_of_each_round_counts() {
        let rates = Rates {
            stream: vec![1_000.0],
            raw_read: vec![500.0],
            raw_write: vec![4_000.0],
            raw_shared: vec![2_000.0],
            read: vec![475.0],
            write: vec![800.0],
            resync: vec![400.0],
        };
        let measured = checks(Disks::Ram, &rates).map(|check| check.measured);
        assert_eq!(measured, [Some(0.95), Some(0.8), Some(0.8)]);
    }
}
