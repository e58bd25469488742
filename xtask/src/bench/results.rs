//! What was measured: single runs, their medians, and where it was. Written as JSON.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::fio::{Report, Side};
use super::statistics::{median, spread};
use crate::workspace::git;

/// All of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// UTC.
    pub time: String,
    /// A smoke run: none of the figures is one.
    pub quick: bool,
    pub tree: Tree,
    pub machine: Machine,
    pub settings: Settings,
    /// The command line, without the program.
    pub arguments: Vec<String>,
    pub systems: Vec<SystemNote>,
    pub sets: Vec<Set>,
}

/// What was built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    pub commit: String,
    /// The tree differs from the commit.
    pub dirty: bool,
}

/// Where it ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub host: String,
    pub cpu: String,
    pub cores: usize,
    pub memory_mib: u64,
    pub kernel: String,
    pub fio: String,
}

/// What figures depend on besides the row and the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    pub seconds: u64,
    pub volumes: usize,
    pub mib: u64,
    /// With a client node in the cluster, connected even while it does nothing.
    pub diskless_node: bool,
}

/// What a system is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SystemNote {
    pub name: String,
    /// Of each volume.
    pub copies: usize,
    pub note: String,
}

/// All rows on one kind of disks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Set {
    /// `ram` or `file`.
    pub disks: String,
    pub file_system: String,
    pub rows: Vec<Measured>,
}

/// One row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    pub row: String,
    pub title: String,
    pub systems: Vec<OfSystem>,
}

/// One row of one system.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OfSystem {
    pub system: String,
    pub median: Run,
    /// Of `iops`, from least to most, as a part of the median.
    pub spread: Option<f64>,
    /// Median IOPS by those of the raw storage.
    pub of_raw: Option<f64>,
    pub runs: Vec<Run>,
}

/// One run, or the medians of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub iops: f64,
    pub mib_per_second: f64,
    pub read: Option<Latency>,
    pub write: Option<Latency>,
    /// CPU time per request of all processes that serve; none for raw storage.
    pub server_cpu_us: Option<f64>,
    /// The same of fio, and of what stands between it and the server.
    pub client_cpu_us: f64,
}

/// Of one direction, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
}

impl Results {
    /// What was written to files; rows of several files come together.
    ///
    /// # Errors
    /// If a file can not be read, or was not measured as the first one was.
    pub fn read(files: &[PathBuf]) -> Result<Results> {
        let mut all: Option<Results> = None;
        for path in files {
            let name = || path.display().to_string();
            let text = fs::read_to_string(path).with_context(name)?;
            let next: Results = serde_json::from_str(&text)
                .with_context(|| format!("{} is not a measurement", path.display()))?;
            match &mut all {
                None => all = Some(next),
                Some(all) => all.join(next).with_context(name)?,
            }
        }
        all.context("name files that cargo xtask bench --json has written")
    }

    /// Adds the rows of others that were measured in the same way.
    fn join(&mut self, other: Results) -> Result<()> {
        let names = |results: &Results| -> Vec<String> {
            results.systems.iter().map(|system| system.name.clone()).collect()
        };
        for (what, same) in [
            ("commit", self.tree == other.tree),
            ("machine", self.machine == other.machine),
            ("settings", self.settings == other.settings && self.quick == other.quick),
            ("systems", names(self) == names(&other)),
        ] {
            if !same {
                bail!("it has another {what} than the first file: its rows can not be compared");
            }
        }
        for set in other.sets {
            match self.sets.iter_mut().find(|own| own.disks == set.disks) {
                None => self.sets.push(set),
                Some(own) => {
                    let twice = |row: &&Measured| own.rows.iter().any(|own| own.row == row.row);
                    if let Some(row) = set.rows.iter().find(twice) {
                        bail!("the row {} is in another file too", row.row);
                    }
                    own.rows.extend(set.rows);
                }
            }
        }
        Ok(())
    }
}

impl Run {
    /// A run with the CPU seconds of servers and of what stands between, if there are any.
    /// `None` if nothing was done.
    pub fn new(report: &Report, servers: Option<f64>, hops: f64) -> Option<Run> {
        let requests = report.read.requests + report.write.requests;
        let per_request = |seconds: f64| seconds * 1e6 / requests as f64;
        (requests > 0).then(|| Run {
            iops: report.read.rate + report.write.rate,
            mib_per_second: (report.read.bandwidth + report.write.bandwidth) / f64::from(1 << 20),
            read: Latency::new(&report.read),
            write: Latency::new(&report.write),
            server_cpu_us: servers.map(per_request),
            client_cpu_us: per_request(report.cpu + hops),
        })
    }

    /// Each figure's median. `None` without runs.
    fn median(runs: &[Run]) -> Option<Run> {
        let of = |figure: &dyn Fn(&Run) -> Option<f64>| {
            median(&runs.iter().filter_map(figure).collect::<Vec<_>>())
        };
        let latency = |side: &dyn Fn(&Run) -> Option<Latency>| {
            Some(Latency {
                mean_us: of(&|run| side(run).map(|latency| latency.mean_us))?,
                p50_us: of(&|run| side(run).map(|latency| latency.p50_us))?,
                p99_us: of(&|run| side(run).map(|latency| latency.p99_us))?,
                p999_us: of(&|run| side(run).map(|latency| latency.p999_us))?,
            })
        };
        Some(Run {
            iops: of(&|run| Some(run.iops))?,
            mib_per_second: of(&|run| Some(run.mib_per_second))?,
            read: latency(&|run| run.read),
            write: latency(&|run| run.write),
            server_cpu_us: of(&|run| run.server_cpu_us),
            client_cpu_us: of(&|run| Some(run.client_cpu_us))?,
        })
    }
}

impl Latency {
    fn new(side: &Side) -> Option<Latency> {
        (side.requests > 0).then_some(Latency {
            mean_us: side.mean,
            p50_us: side.median,
            p99_us: side.p99,
            p999_us: side.p999,
        })
    }
}

impl OfSystem {
    /// Sums up the runs of a system; `raw` are the median IOPS of the raw storage.
    /// `None` without runs.
    pub fn new(system: &str, runs: Vec<Run>, raw: Option<f64>) -> Option<OfSystem> {
        let median = Run::median(&runs)?;
        let iops: Vec<f64> = runs.iter().map(|run| run.iops).collect();
        let of_raw = raw.map(|raw| median.iops / raw);
        Some(OfSystem { system: system.to_owned(), spread: spread(&iops), of_raw, median, runs })
    }

    /// IOPS of each run.
    pub fn iops(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.iops).collect()
    }

    /// CPU time of the servers per request, of each run.
    pub fn server_cpu(&self) -> Vec<f64> {
        self.runs.iter().filter_map(|run| run.server_cpu_us).collect()
    }
}

impl Tree {
    /// The one this program was built in.
    pub fn here() -> Result<Tree> {
        let commit = git(&["rev-parse", "HEAD"])?;
        let dirty = !git(&["status", "--porcelain"])?.is_empty();
        Ok(Tree { commit, dirty })
    }

    /// In a word or two.
    pub fn short(&self) -> String {
        let commit: String = self.commit.chars().take(9).collect();
        commit + if self.dirty { ", changed" } else { "" }
    }
}

impl Machine {
    /// This one.
    pub fn here() -> Result<Machine> {
        let read = |path: &str| fs::read_to_string(path).context(path.to_owned());
        let cpus = read("/proc/cpuinfo")?;
        let memory = read("/proc/meminfo")?;
        let kib = field(&memory, "MemTotal").and_then(|text| text.split(' ').next()?.parse().ok());
        let fio = Command::new("fio").arg("--version").output().context("fio --version")?;
        Ok(Machine {
            host: read("/proc/sys/kernel/hostname")?.trim().to_owned(),
            // Not on every architecture.
            cpu: field(&cpus, "model name").unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            memory_mib: kib.unwrap_or(0u64) >> 10,
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            fio: String::from_utf8_lossy(&fio.stdout).trim().to_owned(),
        })
    }
}

/// The value of the first `name: value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

/// The time, UTC.
pub fn now() -> Result<String> {
    let output = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]).output();
    let output = output.context("date could not be started")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Writes a file and the folders on the way to it.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let name = || path.display().to_string();
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(name)?;
    }
    fs::write(path, text).with_context(name)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A row of raw storage and of ours, half as fast, with these IOPS.
    pub fn results(iops: &[f64]) -> Results {
        let side = |rate: f64| Side {
            requests: 1_000,
            rate,
            bandwidth: rate * 4096.0,
            mean: 11.0,
            median: 10.0,
            p99: 20.0,
            p999: 30.0,
        };
        let run = |rate: f64, cpu: Option<f64>| {
            let report =
                Report { read: Side::default(), write: side(rate), cpu: 0.005, switches: 0 };
            Run::new(&report, cpu, 0.0).unwrap()
        };
        let raw: Vec<Run> = iops.iter().map(|iops| run(iops * 2.0, None)).collect();
        let raw = OfSystem::new("raw", raw, None).unwrap();
        let ours: Vec<Run> = iops.iter().map(|iops| run(*iops, Some(0.025))).collect();
        let ours = OfSystem::new("ashlar", ours, Some(raw.median.iops)).unwrap();
        let (row, title) = ("a-row".to_owned(), "some writes".to_owned());
        let rows = vec![Measured { row, title, systems: vec![raw, ours] }];
        Results {
            time: "2026-01-01T00:00:00Z".to_owned(),
            quick: false,
            tree: Tree { commit: "c0ffee".to_owned(), dirty: true },
            machine: Machine {
                host: "host".to_owned(),
                cpu: "<fast> CPU".to_owned(),
                cores: 2,
                memory_mib: 1,
                kernel: "6.1".to_owned(),
                fio: "fio".to_owned(),
            },
            settings: Settings { seconds: 3, volumes: 8, mib: 256, diskless_node: true },
            arguments: Vec::new(),
            systems: Vec::new(),
            sets: vec![Set { disks: "ram".to_owned(), file_system: "tmpfs".to_owned(), rows }],
        }
    }

    fn run(iops: f64, cpu: Option<f64>) -> Run {
        let side = Side { requests: 100, rate: iops, mean: 2.0, median: 1.0, ..Side::default() };
        let report = Report { read: Side::default(), write: side, cpu: 0.001, switches: 0 };
        Run::new(&report, cpu, 0.0).unwrap()
    }

    #[test]
    fn cpu_time_is_per_request() {
        let run = run(5.0, Some(0.002));
        assert_eq!((run.server_cpu_us, run.client_cpu_us), (Some(20.0), 10.0));
        assert!(run.read.is_none() && run.write.is_some());
        assert_eq!(Run::new(&Report::default(), None, 0.0), None);
    }

    #[test]
    fn medians_are_of_each_figure_by_itself() {
        let runs = [run(1.0, Some(0.005)), run(3.0, Some(0.001)), run(2.0, Some(0.003))];
        let summed = OfSystem::new("x", runs.to_vec(), Some(8.0)).unwrap();
        assert_eq!((summed.median.iops, summed.median.server_cpu_us), (2.0, Some(30.0)));
        assert_eq!((summed.spread, summed.of_raw), (Some(1.0), Some(0.25)));
        assert_eq!(summed.median.write.unwrap().p50_us, 1.0);
        assert!(OfSystem::new("x", Vec::new(), None).is_none());
    }

    #[test]
    fn rows_of_several_files_come_together_if_they_were_measured_alike() {
        let folder = tempfile::tempdir().unwrap();
        let keep = |name: &str, results: &Results| {
            let path = folder.path().join(name);
            write(&path, &serde_json::to_string(results).unwrap()).unwrap();
            path
        };
        let first = results(&[1.0, 2.0]);
        let mut second = first.clone();
        second.sets[0].rows[0].row = "b-row".to_owned();
        let mut third = second.clone();
        third.machine.kernel.push('1');
        let files = [keep("1", &first), keep("2", &second), keep("3", &third)];
        let rows: Vec<String> = Results::read(&files[..2]).unwrap().sets[0]
            .rows
            .iter()
            .map(|row| row.row.clone())
            .collect();
        assert_eq!(rows, ["a-row", "b-row"]);
        let error = |files: &[PathBuf]| format!("{:#}", Results::read(files).unwrap_err());
        assert!(error(&files).contains("3: it has another machine than the first file"));
        let twice = [files[0].clone(), files[0].clone()];
        assert!(error(&twice).contains("the row a-row is in another file too"));
        assert!(error(&[]).contains("name files"));
    }

    #[test]
    fn fields_are_found_by_their_name() {
        let text = "processor\t: 0\nmodel name\t: Fast: 1\nmodel name\t: Slow\n";
        assert_eq!(field(text, "model name"), Some("Fast: 1"));
        assert_eq!(field(text, "name"), None);
    }
}
