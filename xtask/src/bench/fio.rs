//! fio as the client.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A run of writes.
pub struct Job<'a> {
    /// The server's socket.
    pub nbd: &'a Path,
    /// `randwrite` or `write`.
    pub pattern: &'a str,
    /// As fio writes sizes.
    pub block: &'a str,
    pub depth: u32,
    /// The part of the volume to write, from its beginning.
    pub mib: u64,
    /// Go on for so long; else once over the part.
    pub seconds: Option<u64>,
}

/// What fio says of it.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub writes: u64,
    /// Per second.
    pub rate: f64,
    /// Completion latency, microseconds.
    pub median: f64,
    pub p99: f64,
}

impl Job<'_> {
    /// Writes.
    pub fn run(&self) -> Result<Report> {
        let mut command = Command::new("fio");
        command.args(["--name=bench", "--ioengine=nbd", "--output-format=json", "--thread"]);
        command.arg(format!("--uri=nbd+unix:///r0?socket={}", self.nbd.display()));
        command.arg(format!("--rw={}", self.pattern)).arg(format!("--bs={}", self.block));
        command.arg(format!("--iodepth={}", self.depth)).arg(format!("--size={}m", self.mib));
        // One pattern of offsets for all runs; a generator that costs less than a hash per block.
        command.args(["--randseed=7", "--norandommap", "--group_reporting"]);
        if let Some(seconds) = self.seconds {
            command.arg("--time_based").arg(format!("--runtime={seconds}"));
        }
        let output = command.output().context("fio could not be started")?;
        if !output.status.success() {
            bail!("fio: {}", String::from_utf8_lossy(&output.stderr));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        // Notes of the engine may come first.
        let json = text.find('{').map_or("", |at| &text[at..]);
        let report: Value = serde_json::from_str(json).context("fio's report is JSON")?;
        let write = &report["jobs"][0]["write"];
        let number = |value: &Value| value.as_f64().context("fio's report lacks a number");
        let latency = &write["clat_ns"]["percentile"];
        Ok(Report {
            writes: write["total_ios"].as_u64().context("fio's report lacks total_ios")?,
            rate: number(&write["iops"])?,
            median: number(&latency["50.000000"])? / 1000.0,
            p99: number(&latency["99.000000"])? / 1000.0,
        })
    }
}
