//! The arguments.

use std::fs;

use anyhow::{Context, Result, bail};

use super::costs::{Costs, RECORDED};
use super::model::{Hardware, Load, Network, P4800X};
use super::sim::Run;
use crate::arguments::{Words, number};

/// From the moment a thread is woken until it runs, on an idle core: fitted to this machine's
/// throughput, see docs/scaling.md.
pub const IDLE_US: f64 = 5.0;
/// Of a flush that has nothing to do: an assumption; docs/scaling.md says how little it matters.
pub const FLUSH_US: f64 = 20.0;
/// Before the simulation counts.
const WARM_UP_US: f64 = 20_000.0;

/// What is to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Table,
    Latency,
    Sensitivity,
    Validate,
}

/// All arguments.
#[derive(Clone, Debug)]
pub struct Options {
    pub view: View,
    pub hardware: Hardware,
    /// Of each load; whether it reads and where the client is differs.
    pub workloads: usize,
    pub depth: usize,
    pub replicas: usize,
    pub costs: Costs,
    pub run: Run,
    pub json: bool,
}

impl Options {
    /// Reads the arguments.
    ///
    /// # Errors
    /// If one is not understood, or contradicts another.
    pub fn parse(arguments: &[String]) -> Result<Options> {
        let mut network = Network { ports: 2, gbit: 25.0, mtu: 1500, delay_us: 5.0 };
        let mut hardware = Hardware { nodes: 12, cores: 56, network: None, disks: 4, disk: P4800X };
        let (mut workloads, mut depth, mut replicas) = (8, 64, 3);
        let (mut cpu, mut idle_us, mut flush_us) = (1.0, IDLE_US, FLUSH_US);
        let mut measured = RECORDED.to_owned();
        let mut run = Run { seed: 1, warm_up_us: WARM_UP_US, window_us: 20_000.0 };
        let (mut view, mut json) = (None, false);
        let mut words = Words::new(arguments);
        while let Some(name) = words.next()? {
            let mut value = || words.value(name);
            match name {
                "table" => set(&mut view, View::Table)?,
                "latency" => set(&mut view, View::Latency)?,
                "sensitivity" => set(&mut view, View::Sensitivity)?,
                "validate" => set(&mut view, View::Validate)?,
                "--nodes" => hardware.nodes = number(name, value()?, 1, 256)?,
                "--cores" => hardware.cores = number(name, value()?, 1, 1024)?,
                "--ports" => network.ports = number(name, value()?, 1, 64)?,
                "--gbit" => network.gbit = number(name, value()?, 0.1, 10_000.0)?,
                "--mtu" => network.mtu = number(name, value()?, 576, 65_535)?,
                "--delay-us" => network.delay_us = number(name, value()?, 0.0, 1e5)?,
                "--disks" => hardware.disks = number(name, value()?, 1, 64)?,
                "--disk-iops" => {
                    let [read, write] = two(name, value()?, 1.0, 1e9)?;
                    (hardware.disk.read.iops, hardware.disk.write.iops) = (read, write);
                    hardware.disk.name = "as given";
                }
                "--disk-us" => {
                    let [read, write] = two(name, value()?, 0.1, 1e6)?;
                    (hardware.disk.read.latency_us, hardware.disk.write.latency_us) = (read, write);
                    hardware.disk.name = "as given";
                }
                "--workloads" => workloads = number(name, value()?, 1, 1024)?,
                "--depth" => depth = number(name, value()?, 1, 1024)?,
                "--replicas" => replicas = number(name, value()?, 1, 16)?,
                "--cpu" => cpu = number(name, value()?, 0.001, 1e3)?,
                "--idle-us" => idle_us = number(name, value()?, 0.0, 1e4)?,
                "--flush-us" => flush_us = number(name, value()?, 0.0, 1e4)?,
                "--measured" => {
                    let path = value()?;
                    measured = fs::read_to_string(path).with_context(|| path.clone())?;
                }
                "--seed" => run.seed = number(name, value()?, 0, u64::MAX)?,
                "--millis" => run.window_us = number(name, value()?, 1.0, 1e4)? * 1e3,
                "--json" => json = true,
                other => bail!("{other:?} is not understood; cargo xtask scaling --help"),
            }
        }
        hardware.network = Some(network);
        let view = view.unwrap_or(View::Table);
        refuse_unused(view, words.given())?;
        let costs = Costs { measured: Costs::read(&measured)?, idle_us, flush_us, cpu };
        Ok(Options { view, hardware, workloads, depth, replicas, costs, run, json })
    }

    /// The four loads of the published run.
    pub fn loads(&self) -> [Load; 4] {
        let Options { workloads, depth, replicas, .. } = *self;
        let load = |(write, diskless)| Load { write, diskless, workloads, depth, replicas };
        [(false, true), (false, false), (true, true), (true, false)].map(load)
    }
}

fn set(view: &mut Option<View>, to: View) -> Result<()> {
    match view.replace(to) {
        Some(_) => bail!("one view at a time; cargo xtask scaling --help"),
        None => Ok(()),
    }
}

/// An option that the view does not honour is a mistake.
fn refuse_unused(view: View, given: &[&str]) -> Result<()> {
    let unused: &[&str] = match view {
        View::Table | View::Sensitivity => &[],
        View::Latency => &["--workloads", "--depth", "--seed", "--millis"],
        // The machine is this one, and the loads are those that were measured.
        View::Validate => &[
            "--nodes",
            "--cores",
            "--ports",
            "--gbit",
            "--mtu",
            "--delay-us",
            "--disks",
            "--disk-iops",
            "--disk-us",
            "--workloads",
            "--depth",
            "--replicas",
        ],
    };
    match given.iter().find(|name| unused.contains(name)) {
        Some(name) => bail!("{name} is of no use for this view; cargo xtask scaling --help"),
        None => Ok(()),
    }
}

fn two(name: &str, value: &str, least: f64, most: f64) -> Result<[f64; 2]> {
    let Some((read, write)) = value.split_once(',') else {
        bail!("{name} is two numbers, of reads and of writes, as 550000,500000; not {value:?}");
    };
    Ok([number(name, read, least, most)?, number(name, write, least, most)?])
}

#[cfg(test)]
mod tests {
    use super::super::model::Service;
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words)
    }

    fn error(line: &str) -> String {
        parse(line).unwrap_err().to_string()
    }

    #[test]
    fn arguments_change_what_they_name() {
        let options = parse("latency --nodes 3 --gbit 100 --disk-iops 10,20 --json").unwrap();
        assert_eq!((options.view, options.hardware.nodes), (View::Latency, 3));
        assert_eq!(options.hardware.network.unwrap().gbit, 100.0);
        let Service { iops, latency_us } = options.hardware.disk.write;
        assert_eq!((iops, latency_us), (20.0, P4800X.write.latency_us));
        assert!(options.json);
    }

    #[test]
    fn what_is_not_understood_or_not_used_is_refused() {
        assert!(error("--nodes many").contains("--nodes is a number from 1 to 256"));
        assert!(error("--nodes").contains("--nodes needs a value"));
        assert!(error("--node 3").contains("not understood"));
        assert!(error("table latency").contains("one view"));
        assert!(error("--seed 1 --seed 2").contains("twice"));
        assert!(error("--disk-us 10").contains("two numbers"));
        assert!(error("validate --nodes 3").contains("--nodes is of no use"));
        assert!(error("latency --depth 3").contains("--depth is of no use"));
    }
}
