//! `cargo xtask bench --guest`: what a mapped volume costs beside the same volume over NBD, as fio sees
//! both in an emulated guest. The figures compare two ways into one engine; a machine without
//! emulation does some 15 times as much.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::nodes::Nodes;
use super::{DISK_MIB, PATIENCE};
use crate::process;
use crate::vm::guest::Kind;
use crate::vm::image::Images;
use crate::vm::rig::Rig;

/// How long each row is measured.
const SECONDS: u64 = 5;
/// Where the guest's engine serves NBD.
const SOCKET: &str = "/tmp/nbd.sock";

/// A row: its name, and fio's words for it.
const ROWS: &[(&str, &str)] = &[
    ("4 KiB random read, depth 1", "--rw=randread --bs=4k --iodepth=1"),
    ("4 KiB random read, depth 32", "--rw=randread --bs=4k --iodepth=32"),
    ("4 KiB random write, depth 1", "--rw=randwrite --bs=4k --iodepth=1"),
    ("4 KiB random write, depth 32", "--rw=randwrite --bs=4k --iodepth=32"),
    ("128 KiB sequential write, depth 8", "--rw=write --bs=128k --iodepth=8"),
];

/// The command.
pub fn main() -> Result<()> {
    process::watch_signals()?;
    let images = Images::get(Kind::Emulated)?;
    let rig = Rig::new(&images)?;
    let guest = rig.boot(Kind::Emulated, 1, DISK_MIB, &["ublk_drv"])?;
    let mut nodes = Nodes::start(&rig, &guest)?;
    let kernel = guest.run("uname -r", PATIENCE)?;
    nodes.map("")?;
    nodes.guest_ashlar(&format!("export r0/0 --listen {SOCKET}"))?;
    println!(
        "emulated guest (QEMU TCG, one CPU, Linux {}), engine and fio in it, a second replica on the \
         host's side, protocol C; {SECONDS} s a row",
        kernel.trim()
    );
    println!("| | ublk: I/O/s | mean latency | NBD: I/O/s | mean latency |\n|---|---|---|---|---|");
    for (name, words) in ROWS {
        let ublk = row(&nodes, words, "--ioengine=libaio --direct=1 --filename=$dev")?;
        let uri = format!("--ioengine=nbd --uri='nbd+unix:///r0?socket={SOCKET}'");
        let nbd = row(&nodes, words, &uri)?;
        println!("| {name} | {} | {} |", ublk.text(), nbd.text());
    }
    Ok(())
}

/// What fio measured.
struct Figure {
    per_second: f64,
    mean: Duration,
}

impl Figure {
    fn text(&self) -> String {
        format!("{:.0} | {:.2} ms", self.per_second, self.mean.as_secs_f64() * 1e3)
    }
}

fn row(nodes: &Nodes<'_>, words: &str, place: &str) -> Result<Figure> {
    let line = format!(
        "fio --name=row --output-format=json --time_based --runtime={SECONDS} --ramp_time=1 \
         --size=256m --randrepeat=1 {words} {place}"
    );
    let text = nodes.on_device(&line)?;
    // fio may say something before its JSON.
    let json = text.find('{').map(|at| &text[at..]).context("fio printed no JSON")?;
    let report: Value = serde_json::from_str(json).context("fio's report is not JSON")?;
    let job = &report["jobs"][0];
    let way = if words.contains("write") { &job["write"] } else { &job["read"] };
    let figure = || Some((way["iops"].as_f64()?, way["lat_ns"]["mean"].as_f64()?));
    let (per_second, mean) = figure().context("fio's report lacks I/O per second or latency")?;
    Ok(Figure { per_second, mean: Duration::from_nanos(mean as u64) })
}
