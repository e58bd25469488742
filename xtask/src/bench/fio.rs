//! fio as the client: what it is told to do, and what it says of it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::limit::Group;
use crate::process;

/// How much longer than its job fio may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long writing a whole volume may take.
const FILL_PATIENCE: Duration = Duration::from_secs(1800);
/// Of a run on disks of a limited speed, seconds.
const WARM_UP: u64 = 1;
/// The share of reads of `randrw`, percent.
const READS: u32 = 70;

/// What is read and written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An export of an NBD server on a unix socket.
    Nbd {
        /// The server's socket.
        socket: PathBuf,
        /// The export's name.
        export: String,
    },
    /// A file.
    File {
        /// Where it is.
        path: PathBuf,
        /// Around the page cache.
        direct: bool,
    },
    /// An image of a Ceph cluster, by librbd.
    Rbd {
        /// The cluster's configuration.
        config: PathBuf,
        /// The pool that has the image.
        pool: &'static str,
        /// The image's name.
        image: String,
    },
    /// A file of a GlusterFS volume, by libgfapi.
    Gluster {
        /// A process in the namespaces to run in: the library writes to /tmp.
        namespace: u32,
        /// Where the volume is asked for.
        host: String,
        /// The volume.
        volume: &'static str,
        /// The file's name.
        file: String,
    },
}

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Volumes that are used at once; all are of one kind.
    pub targets: &'a [Target],
    /// As fio's `rw`.
    pub pattern: &'a str,
    /// As fio writes sizes.
    pub block: &'a str,
    /// Requests in flight of each job.
    pub depth: u32,
    /// Jobs per target; each has a connection of its own.
    pub jobs: u32,
    /// The part of the volume to use, from its beginning.
    pub mib: u64,
    /// Go on for so long; else once over the part.
    pub seconds: Option<u64>,
    /// Requests per second that each job makes at most.
    pub rate: Option<u32>,
}

/// What fio says of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    pub read: Side,
    pub write: Side,
    /// CPU time of fio's jobs, without its start and end, in seconds.
    pub cpu: f64,
    /// How often their threads stopped running.
    pub switches: u64,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Side {
    pub requests: u64,
    /// Requests per second.
    pub rate: f64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// From the moment fio makes a request until it sees the answer, in microseconds: mean,
    pub mean: f64,
    /// and percentiles.
    pub median: f64,
    pub p99: f64,
    pub p999: f64,
}

/// Fails, saying what to install, unless there is a fio that speaks NBD.
pub fn require() -> Result<()> {
    let hint = "Debian has one in the package fio (apt-get install fio)";
    let Ok(output) = Command::new("fio").arg("--enghelp=nbd").output() else {
        bail!("fio is missing; {hint}");
    };
    if !output.status.success() || !String::from_utf8_lossy(&output.stdout).contains("uri") {
        bail!("this fio has no engine for NBD; {hint}");
    }
    Ok(())
}

/// Fails, saying what to install, unless fio has an engine that is not in every build of it.
pub fn require_engine(engine: &str) -> Result<()> {
    let output = Command::new("fio").arg("--enghelp").output().context("fio --enghelp")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if text.lines().any(|line| line.trim() == engine) {
        return Ok(());
    }
    bail!("this fio has no engine {engine}; Debian's package fio has")
}

impl Target {
    /// Works in threads of its own within fio, of which fio's report does not know.
    pub fn has_own_threads(&self) -> bool {
        matches!(self, Target::Rbd { .. } | Target::Gluster { .. })
    }

    /// fio, where and as the target needs it.
    fn fio(&self) -> Command {
        match self {
            Target::Nbd { .. } | Target::File { .. } => process::command("fio"),
            Target::Rbd { config, .. } => {
                let mut command = process::command("fio");
                command.env("CEPH_CONF", config);
                command
            }
            Target::Gluster { namespace, .. } => process::command_within(*namespace, "fio"),
        }
    }

    /// What tells fio to use it.
    fn arguments(&self) -> Vec<String> {
        match self {
            Target::Nbd { socket, export } => vec![
                "--ioengine=nbd".to_owned(),
                format!("--uri=nbd+unix:///{export}?socket={}", socket.display()),
            ],
            // io_uring hands requests to a file on tmpfs to worker threads, which costs more than
            // the requests; libaio does them at once.
            Target::File { path, direct } => vec![
                "--ioengine=libaio".to_owned(),
                format!("--direct={}", u8::from(*direct)),
                format!("--filename={}", path.display()),
            ],
            Target::Rbd { pool, image, .. } => vec![
                "--ioengine=rbd".to_owned(),
                "--clustername=ceph".to_owned(),
                "--clientname=admin".to_owned(),
                format!("--pool={pool}"),
                format!("--rbdname={image}"),
            ],
            Target::Gluster { host, volume, file, .. } => vec![
                // The one that waits for each request has no depth.
                "--ioengine=gfapi_async".to_owned(),
                "--direct=1".to_owned(),
                format!("--brick={host}"),
                format!("--volume={volume}"),
                format!("--filename={file}"),
            ],
        }
    }
}

impl Job<'_> {
    /// Reads and writes.
    ///
    /// # Errors
    /// If fio fails, hangs or the user wants an end.
    pub fn run(&self) -> Result<Report> {
        self.run_by(self.program()?)
    }

    /// The same on disks of a limited speed, from the second second on: at first a limit lets some
    /// requests pass that were saved up. With a group fio itself is a member of it, for files.
    ///
    /// # Errors
    /// As [`Job::run`], and if fio can not enter the group.
    pub fn run_limited(&self, group: Option<&Group>) -> Result<Report> {
        let mut command = match group {
            Some(group) => process::command_in_group(group.members(), "fio"),
            None => self.program()?,
        };
        command.arg(format!("--ramp_time={WARM_UP}"));
        self.run_by(command)
    }

    /// The same with a log of every request, in files whose names begin with `log`.
    ///
    /// # Errors
    /// As [`Job::run`].
    pub fn run_logged(&self, log: &Path) -> Result<Report> {
        let mut command = self.program()?;
        command.arg(format!("--write_lat_log={}", log.display()));
        self.run_by(command)
    }

    /// fio, where its targets can be reached from.
    fn program(&self) -> Result<Command> {
        Ok(self.targets.first().context("a job without targets")?.fio())
    }

    fn run_by(&self, mut command: Command) -> Result<Report> {
        command.args(self.arguments());
        let patience = match self.seconds {
            Some(seconds) => Duration::from_secs(seconds) + PATIENCE,
            None => FILL_PATIENCE,
        };
        parse(&process::output(command, patience)?)
    }

    fn arguments(&self) -> Vec<String> {
        let mut words: Vec<String> = ["--name=global", "--thread", "--group_reporting"]
            .into_iter()
            .chain(["--output-format=json", "--lat_percentiles=1", "--clat_percentiles=0"])
            .chain(["--percentile_list=50:99:99.9"])
            // One pattern of offsets for all runs; a generator that costs less than a hash per
            // block.
            .chain(["--randseed=7", "--norandommap"])
            .map(str::to_owned)
            .collect();
        words.push(format!("--rw={}", self.pattern));
        if self.pattern == "randrw" {
            words.push(format!("--rwmixread={READS}"));
        }
        words.push(format!("--bs={}", self.block));
        words.push(format!("--iodepth={}", self.depth));
        words.push(format!("--numjobs={}", self.jobs));
        words.push(format!("--size={}m", self.mib));
        if let Some(seconds) = self.seconds {
            words.push("--time_based".to_owned());
            words.push(format!("--runtime={seconds}"));
        }
        if let Some(rate) = self.rate {
            words.push(format!("--rate_iops={rate}"));
        }
        for (index, target) in self.targets.iter().enumerate() {
            words.push(format!("--name=volume{index}"));
            words.extend(target.arguments());
        }
        words
    }
}

/// Reads fio's report of one group of jobs.
fn parse(text: &str) -> Result<Report> {
    // Notes of an engine may come first.
    let json = text.find('{').map_or("", |at| &text[at..]);
    let report: Value = serde_json::from_str(json).context("fio's report is not JSON")?;
    let job = &report["jobs"][0];
    let error = job["error"].as_i64().context("fio's report has no jobs")?;
    if error != 0 {
        bail!("fio's job failed with error {error}");
    }
    // Percent of the run time, both summed up over the jobs.
    let milliseconds = number(job, "job_runtime")?;
    let cpu = (number(job, "usr_cpu")? + number(job, "sys_cpu")?) / 100.0 * milliseconds / 1000.0;
    let switches = job["ctx"].as_u64().context("fio's report lacks ctx")?;
    Ok(Report { read: side(&job["read"])?, write: side(&job["write"])?, cpu, switches })
}

fn side(value: &Value) -> Result<Side> {
    let requests = value["total_ios"].as_u64().context("fio's report lacks total_ios")?;
    if requests == 0 {
        return Ok(Side::default());
    }
    let latency = &value["lat_ns"];
    let percentile = |name| Ok::<f64, anyhow::Error>(number(&latency["percentile"], name)? / 1e3);
    Ok(Side {
        requests,
        rate: number(value, "iops")?,
        bandwidth: number(value, "bw_bytes")?,
        mean: number(latency, "mean")? / 1e3,
        median: percentile("50.000000")?,
        p99: percentile("99.000000")?,
        p999: percentile("99.900000")?,
    })
}

fn number(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().with_context(|| format!("fio's report lacks {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report of fio 3.33: two jobs, 70/30 through NBD for a second.
    const SAMPLE: &str = include_str!("../../testdata/fio-randrw.json");

    #[test]
    fn a_report_has_both_directions() {
        let report = parse(SAMPLE).unwrap();
        assert_eq!((report.read.requests, report.write.requests), (17_741, 7_533));
        assert_eq!((report.read.rate, report.write.rate), (17_723.276723, 7_525.474525));
        assert_eq!(
            (report.read.median, report.read.p99, report.read.p999),
            (651.264, 8_454.144, 40_108.032)
        );
    }

    #[test]
    fn a_report_of_a_failed_job_is_no_figure() {
        let text = r#"{"jobs": [{"error": 5}]}"#;
        assert!(parse(text).unwrap_err().to_string().contains("error 5"));
        assert!(parse("fio: nothing").is_err());
        assert!(parse(r#"{"jobs": []}"#).is_err());
    }

    #[test]
    fn every_volume_is_a_job_of_its_own() {
        let target = |name: &str| Target::Nbd { socket: name.into(), export: "r0".to_owned() };
        let job = Job {
            targets: &[target("a"), target("b")],
            pattern: "randrw",
            block: "4k",
            depth: 64,
            jobs: 4,
            mib: 100,
            seconds: Some(3),
            rate: Some(500),
        };
        let words = job.arguments();
        for word in [
            "--rwmixread=70",
            "--numjobs=4",
            "--iodepth=64",
            "--runtime=3",
            "--size=100m",
            "--rate_iops=500",
        ] {
            assert!(words.iter().any(|have| have == word), "{word}");
        }
        let uris: Vec<_> = words.iter().filter(|word| word.starts_with("--uri")).collect();
        assert_eq!(uris, ["--uri=nbd+unix:///r0?socket=a", "--uri=nbd+unix:///r0?socket=b"]);
    }

    #[test]
    fn targets_with_a_library_are_used_by_it() {
        let image = Target::Rbd { config: "/c".into(), pool: "p", image: "v1".to_owned() };
        assert!(image.has_own_threads() && image.arguments().contains(&"--rbdname=v1".to_owned()));
        let set = image
            .fio()
            .get_envs()
            .any(|(name, value)| name == "CEPH_CONF" && value == Some(std::ffi::OsStr::new("/c")));
        assert!(set);
        let (host, file) = ("127.0.0.1".to_owned(), "v1".to_owned());
        let file = Target::Gluster { namespace: 5, host, volume: "v", file };
        assert!(file.has_own_threads() && file.arguments().contains(&"--filename=v1".to_owned()));
        assert!(file.fio().get_args().any(|word| word == "nsenter"));
        assert!(!Target::File { path: "/f".into(), direct: true }.has_own_threads());
    }
}
