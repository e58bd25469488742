//! `cargo xtask bench --guest`: what a mapped volume costs by each face, beside the same volume over NBD by fio's own
//! client, in an emulated guest. The figures compare ways into one engine; a machine
//! without emulation does some 15 times as much.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::nodes::Nodes;
use super::{DISK_MIB, PATIENCE};
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
    ("128 KiB sequential read, depth 8", "--rw=read --bs=128k --iodepth=8"),
    ("128 KiB sequential write, depth 8", "--rw=write --bs=128k --iodepth=8"),
];

/// The ways to the volume: faces, of which a volume has one at a time, and the name of fio's own.
const WAYS: [&str; 4] = ["ublk", "nbd", "fuse", "fio"];
/// fio's words for a device.
const DEVICE: &str = "--ioengine=libaio --direct=1 --filename=$dev";
/// And for its own client.
const CLIENT: &str = "--ioengine=nbd --uri='nbd+unix:///r0?socket=/tmp/nbd.sock'";

/// The command, with the program as it is shipped.
pub fn main(program: PathBuf, newest: bool) -> Result<()> {
    let kind = if newest { Kind::Newest } else { Kind::Emulated };
    let images = Images::get(kind)?;
    let rig = Rig::new(&images)?;
    let guest = rig.boot(kind, 1, DISK_MIB, &["ublk_drv", "nbd", "fuse", "loop"])?;
    let mut nodes = Nodes::start(&rig, &guest, program)?;
    let kernel = guest.run("uname -r", PATIENCE)?;
    nodes.guest_ashlar(&format!("export r0/0 --listen {SOCKET}"))?;
    println!(
        "emulated guest (QEMU TCG, Linux {}), engine and fio in it, a second replica on the \
         host's side, protocol C; {SECONDS} s a row; CPU time is that of the whole guest per request",
        kernel.trim()
    );
    let mut lines: Vec<String> = ROWS.iter().map(|(name, _)| format!("| {name} |")).collect();
    for way in WAYS {
        let mapped = way != "fio";
        if mapped {
            nodes.map(&format!("--face {way}"))?;
        }
        for (line, (_, words)) in lines.iter_mut().zip(ROWS) {
            let figure = row(&nodes, words, if mapped { DEVICE } else { CLIENT })?;
            line.push_str(&format!(" {} |", figure.text()));
        }
        if mapped {
            nodes.guest_ashlar("unmap r0/0")?;
        }
    }
    let heads: Vec<String> =
        WAYS.iter().map(|name| format!("{name}: I/O/s | mean latency | CPU")).collect();
    println!("| | {} |\n|---|{}", heads.join(" | "), "---|".repeat(3 * WAYS.len()));
    println!("{}", lines.join("\n"));
    Ok(())
}

/// What fio measured.
struct Figure {
    per_second: f64,
    mean: Duration,
    /// CPU time of the guest per request.
    cpu: Duration,
}

impl Figure {
    fn text(&self) -> String {
        let (mean, cpu) = (self.mean.as_secs_f64() * 1e3, self.cpu.as_secs_f64() * 1e6);
        format!("{:.0} | {mean:.2} ms | {cpu:.0} us", self.per_second)
    }
}

fn row(nodes: &Nodes<'_>, words: &str, place: &str) -> Result<Figure> {
    let line = format!(
        "head -n 1 /proc/stat; fio --name=row --output-format=json --time_based --runtime={SECONDS} \
         --size=256m --randrepeat=1 {words} {place}; head -n 1 /proc/stat"
    );
    let text = nodes.on_device(&line)?;
    let [before, after] = [text.lines().next(), text.lines().last()].map(|line| busy(line?));
    let ticks = after.zip(before).and_then(|(after, before)| after.checked_sub(before));
    let ticks = ticks.context("the guest's /proc/stat is not understood")?;
    // fio may say something before its JSON.
    let json = text.find('{').zip(text.rfind('}')).map(|(from, to)| &text[from..=to]);
    let report: Value = serde_json::from_str(json.context("fio printed no JSON")?)
        .context("fio's report is not JSON")?;
    let job = &report["jobs"][0];
    let way = if words.contains("write") { &job["write"] } else { &job["read"] };
    let figure = || {
        let requests = way["total_ios"].as_u64().filter(|count| *count > 0)?;
        Some((requests, way["iops"].as_f64()?, way["lat_ns"]["mean"].as_f64()?))
    };
    let (requests, per_second, mean) = figure().context("fio's report lacks what was done")?;
    // A hundredth of a second each, as for every Linux.
    let cpu = Duration::from_millis(10 * ticks).div_f64(requests as f64);
    Ok(Figure { per_second, mean: Duration::from_nanos(mean as u64), cpu })
}

/// User, nice and system time and interrupts, of a line of /proc/stat.
fn busy(line: &str) -> Option<u64> {
    let mut words = line.split_whitespace();
    let numbers: Option<Vec<u64>> =
        (words.next() == Some("cpu")).then(|| words.map_while(|word| word.parse().ok()).collect());
    let numbers = numbers.filter(|numbers| numbers.len() > 6)?;
    Some([0, 1, 2, 5, 6].iter().map(|index| numbers[*index]).sum())
}
