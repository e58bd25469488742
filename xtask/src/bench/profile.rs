//! Where processes spend their time: perf's samples, summed up as a flame graph would show them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

/// Functions listed.
const LISTED: usize = 10;
/// Samples per second and CPU: prime, lest it beats with something.
const FREQUENCY: &str = "997";
/// What is in more of the samples than this is a main loop and says nothing.
const OBVIOUS: f64 = 0.6;
/// Two functions that are together in as many of their samples are one frame of the graph.
const SAME: f64 = 0.8;

/// perf, looking at processes.
pub struct Recording {
    perf: Child,
    file: PathBuf,
}

impl Recording {
    /// Begins; the samples go to `file`.
    pub fn start(pids: &[u32], file: PathBuf) -> Result<Recording> {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        // The clock works in virtual machines that have no counters of hardware events.
        let perf = Command::new("perf")
            .args(["record", "--quiet", "--call-graph", "fp", "--event", "cpu-clock"])
            .args(["--freq", FREQUENCY, "--pid", &pids.join(","), "--output"])
            .arg(&file)
            .stderr(Stdio::null())
            .spawn()
            .context("perf could not be started; Debian has it in linux-perf")?;
        Ok(Recording { perf, file })
    }

    /// Ends, and prints what was seen.
    pub fn print(mut self) -> Result<()> {
        let status = Command::new("kill").args(["-INT", &self.perf.id().to_string()]).status()?;
        if !status.success() {
            bail!("perf ended too early");
        }
        self.perf.wait()?;
        let script = script(&self.file)?;
        let samples = samples(&script);
        if samples.is_empty() {
            bail!("perf has seen nothing");
        }
        let share = |count: usize| 100.0 * count as f64 / samples.len() as f64;
        println!(
            "{} samples of the engines, {:.0} % of them in the kernel; functions by their own share:",
            samples.len(),
            share(script.split("\n\n").filter(|block| in_kernel(block)).count())
        );
        for (name, count) in by_themselves(&samples) {
            println!("    {:5.1} %  {name}", share(count));
        }
        println!("and with what they call, but for the main loop:");
        for (name, count) in with_callees(&samples) {
            println!("    {:5.1} %  {name}", share(count));
        }
        Ok(())
    }
}

fn script(file: &Path) -> Result<String> {
    let output = Command::new("perf")
        .args(["script", "--fields", "ip,sym", "--no-inline", "--input"])
        .arg(file)
        .output()
        .context("perf could not be started")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The innermost function is the kernel's, which has the upper half of the addresses.
fn in_kernel(block: &str) -> bool {
    block.trim_start().starts_with("ffff")
}

/// Each sample as its functions, innermost first. Blocks of `address name` lines.
fn samples(script: &str) -> Vec<Vec<&str>> {
    let frame = |line: &'_ str| -> Option<usize> { line.trim().find(' ').map(|at| at + 1) };
    script
        .split("\n\n")
        .map(|block| {
            let lines = block.lines().map(str::trim);
            lines.filter_map(|line| Some(&line[frame(line)?..])).collect::<Vec<_>>()
        })
        .filter(|sample| !sample.is_empty())
        .collect()
}

fn by_themselves<'a>(samples: &[Vec<&'a str>]) -> Vec<(&'a str, usize)> {
    let mut counts = BTreeMap::new();
    for sample in samples {
        *counts.entry(sample[0]).or_insert(0) += 1;
    }
    let mut sorted: Vec<_> = counts.into_iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    sorted.truncate(LISTED);
    sorted
}

/// The widest frames. A chain of functions that only call each other is one, by its first.
fn with_callees<'a>(samples: &[Vec<&'a str>]) -> Vec<(&'a str, usize)> {
    let mut seen: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (index, sample) in samples.iter().enumerate() {
        for name in sample {
            seen.entry(name).or_default().insert(index);
        }
    }
    let mut sorted: Vec<_> = seen.iter().filter(|(name, _)| **name != "[unknown]").collect();
    // Of equals the caller first: it is further from the end of its samples.
    let depth = |name: &str, samples_of: &BTreeSet<usize>| {
        let first = samples_of.first().expect("it was seen");
        samples[*first].iter().position(|other| *other == name).unwrap_or(0)
    };
    sorted.sort_by_key(|(name, of)| std::cmp::Reverse((of.len(), depth(name, of))));
    let mut listed: Vec<(&str, &BTreeSet<usize>)> = Vec::new();
    for (name, of) in sorted {
        let obvious = of.len() as f64 > OBVIOUS * samples.len() as f64;
        let known = listed.iter().any(|(_, wider)| {
            let both = wider.intersection(of).count() as f64;
            both >= SAME * wider.len() as f64
        });
        if !obvious && !known {
            listed.push((name, of));
        }
        if listed.len() == LISTED {
            break;
        }
    }
    listed.into_iter().map(|(name, of)| (name, of.len())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_one_frame_and_main_loops_none() {
        let text = "  ffff01 copy\n  ffff02 tcp_send\n  ffff03 send\n  7f04 main\n\n\
                    \x20 ffff01 copy\n  ffff02 tcp_send\n  ffff03 send\n  7f04 main\n\n\
                    \x20 ffff05 write one block\n  7f04 main\n\n\
                    \x20 7f04 main\n\n";
        let samples = samples(text);
        assert_eq!(samples.len(), 4);
        assert_eq!(text.split("\n\n").filter(|block| in_kernel(block)).count(), 3);
        assert_eq!(by_themselves(&samples)[0], ("copy", 2));
        assert_eq!(with_callees(&samples), [("send", 2), ("write one block", 1)]);
    }
}
