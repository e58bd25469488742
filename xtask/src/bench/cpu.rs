//! CPU time of processes, from the kernel's own counters.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

/// Reads CPU times; the kernel's unit is asked for once.
#[derive(Clone, Copy)]
pub struct Clock {
    ticks_per_second: f64,
}

impl Clock {
    /// Asks for the unit.
    pub fn new() -> Result<Clock> {
        let output = Command::new("getconf").arg("CLK_TCK").output().context("getconf")?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(Clock { ticks_per_second: text.trim().parse().context("getconf CLK_TCK")? })
    }

    /// User and system time of a process with all its threads so far, in seconds.
    pub fn process(self, pid: u32) -> Result<f64> {
        let [user, system, ..] = times(&format!("/proc/{pid}/stat"))?;
        Ok((user + system) as f64 / self.ticks_per_second)
    }

    /// The sum over processes.
    pub fn processes(self, pids: &[u32]) -> Result<f64> {
        pids.iter().map(|pid| self.process(*pid)).sum()
    }

    /// That of the processes which this one has waited for.
    pub fn children(self) -> Result<f64> {
        let [_, _, user, system] = times("/proc/self/stat")?;
        Ok((user + system) as f64 / self.ticks_per_second)
    }

    /// That of everything on this machine.
    pub fn machine(self) -> Result<f64> {
        // user, nice, system, idle, iowait, irq, softirq; time stolen by others is not ours.
        let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        let line = text.lines().next().unwrap_or_default();
        let busy = line.split_whitespace().skip(1).enumerate();
        let busy: u64 = busy
            .filter(|(index, _)| matches!(index, 0..=2 | 5 | 6))
            .filter_map(|(_, number)| number.parse::<u64>().ok())
            .sum();
        Ok(busy as f64 / self.ticks_per_second)
    }
}

/// User and system time of a process with all its threads, and of its children that have ended.
fn times(path: &str) -> Result<[u64; 4]> {
    let text = fs::read_to_string(path).context(path.to_owned())?;
    // The name, in parentheses, may have spaces.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut numbers = fields.split_whitespace().skip(11).map(str::parse);
    let mut next = || numbers.next().and_then(Result::ok).with_context(|| path.to_owned());
    Ok([next()?, next()?, next()?, next()?])
}
