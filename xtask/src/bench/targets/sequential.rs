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
    raw_read: Vec<f64>,
    /// A raw file that is read while another one is written, as a resync does.
    raw_copy: Vec<f64>,
    /// Of each of as many files as there are replicas, all at once.
    raw_shared: Vec<f64>,
    read: Vec<f64>,
    write: Vec<f64>,
    resync: Vec<f64>,
    /// CPU time of all engines for each request, us.
    read_cpu: Vec<f64>,
    write_cpu: Vec<f64>,
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
    let mut streams = Vec::new();
    let time = Duration::from_secs(options.seconds);
    setting.rounds(|| {
        let mut stream = 0.0;
        for (stand, rates) in stands.iter_mut().zip(&mut rates) {
            // It varies most of all: one in front of each kind of disks.
            stream += floors::stream(stand.place().folder.path(), time)?;
            let mut run = |client, pattern| stand.run(client, Load::sequential(pattern));
            rates.raw_read.push(run(Client::Raw(1), "read")?.mib_per_second);
            let shared = run(Client::Raw(REPLICAS), "write")?.mib_per_second;
            rates.raw_shared.push(shared / REPLICAS as f64);
            for (pattern, rate, cpu) in [
                ("read", &mut rates.read, &mut rates.read_cpu),
                ("write", &mut rates.write, &mut rates.write_cpu),
            ] {
                let run = run(Client::Local(1), pattern)?;
                rate.push(run.mib_per_second);
                cpu.extend(run.server_cpu_us);
            }
            rates.raw_copy.push(floors::copy(&stand.raw_pair()?, mib)?);
            let seconds = stand.cluster().resync(TARGET)?.as_secs_f64();
            rates.resync.push(mib as f64 / seconds);
        }
        streams.push(stream / DISKS.len() as f64);
        Ok(())
    })?;
    let checks = |(disks, rates): (&Disks, &Rates)| checks(*disks, rates, &streams);
    Ok(DISKS.iter().zip(&rates).flat_map(checks).collect())
}

fn checks(disks: Disks, rates: &Rates, stream: &[f64]) -> [Check; 3] {
    let Rates { raw_read, raw_copy, raw_shared, read, write, resync, read_cpu, write_cpu } = rates;
    let disks = disks.name();
    let check = |what: String, ours: &[f64], raw: &str, floor: &[f64]| {
        let figure =
            |name: &str, runs: &[f64]| Figure::new(name, Unit::MibPerSecond, runs.to_vec());
        let parts = ratios(ours, &least(&[stream, floor]));
        Check::new(what, Limit::AtLeast(LEAST), Unit::Part, parts)
            .with(figure("Ashlar", ours))
            .with(figure("TCP stream", stream))
            .with(figure(raw, floor))
    };
    let cpu = |runs: &[f64]| Figure::new("engines' CPU per request", Unit::Us, runs.to_vec());
    let (shared, copy) = ("raw, each of three at once", "raw, one file read, another written");
    [
        check(format!("sequential read, disks {disks}"), read, "raw", raw_read).with(cpu(read_cpu)),
        check(format!("sequential write, disks {disks}"), write, shared, raw_shared)
            .with(cpu(write_cpu)),
        check(format!("resync, disks {disks}"), resync, copy, raw_copy),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_floor_of_each_round_counts() {
        let rates = Rates {
            raw_read: vec![500.0],
            raw_copy: vec![4_000.0],
            raw_shared: vec![2_000.0],
            read: vec![475.0],
            write: vec![800.0],
            resync: vec![800.0],
            ..Rates::default()
        };
        let measured = checks(Disks::Ram, &rates, &[1_000.0]).map(|check| check.measured);
        assert_eq!(measured, [Some(0.95), Some(0.8), Some(0.8)]);
    }
}
