//! What the kernel says of the machine and of this process's threads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use codec::admin::{Machine, WatchedThread};
use rustix::process::{Resource, getrlimit};

use crate::engine::Engine;

impl Engine {
    /// Facts about the machine and this engine.
    pub(super) fn machine(&self) -> Machine {
        let shards = 0..self.shards.len();
        let refused = |shard| self.on(shard, |shard| shard.pin_refused.is_some()).unwrap_or(false);
        Machine {
            locked_memory_limit: getrlimit(Resource::Memlock).current,
            unpinned_threads: shards.filter(|shard| refused(*shard)).count() as u32,
            ..described_by(Path::new("/"))
        }
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// What the files below `root` say.
fn described_by(root: &Path) -> Machine {
    let cpus = root.join("sys/devices/system/cpu");
    let mut governors = BTreeSet::new();
    for entry in fs::read_dir(&cpus).into_iter().flatten().flatten() {
        let governor = text(&entry.path().join("cpufreq/scaling_governor"));
        let driver = text(&entry.path().join("cpufreq/scaling_driver"));
        if !governor.is_empty() {
            governors.insert(format!("{governor} ({driver})"));
        }
    }
    let clock = root.join("sys/devices/system/clocksource/clocksource0/current_clocksource");
    Machine {
        kernel: text(&root.join("proc/sys/kernel/osrelease")),
        cpus: count(&text(&cpus.join("online"))),
        clock_source: text(&clock),
        governors: governors.into_iter().collect(),
        ..Machine::default()
    }
}

/// CPUs in a list such as `0-3,8`.
fn count(list: &str) -> u32 {
    let number = |text: &str| text.parse::<u32>().ok();
    let ranges = list.split(',').filter_map(|part| match part.split_once('-') {
        Some((first, last)) => Some(number(last)?.saturating_sub(number(first)?) + 1),
        None => number(part).map(|_| 1),
    });
    ranges.sum()
}

/// Time that each thread of this process has run and has waited for a CPU so far, by thread id.
/// Empty if the kernel does not say.
pub(super) fn threads() -> BTreeMap<u32, WatchedThread> {
    let mut threads = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let times = text(&entry.path().join("schedstat"));
        let mut times = times.split(' ').map_while(|time| time.parse::<u64>().ok());
        if let (Some(id), Some(running), Some(waiting)) = (id, times.next(), times.next()) {
            let name = text(&entry.path().join("comm"));
            threads.insert(id, WatchedThread { name, running, waiting });
        }
    }
    threads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_read_from_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(described_by(folder.path()), Machine::default());
        write("proc/sys/kernel/osrelease", "6.1.0\n");
        write("sys/devices/system/cpu/online", "0-2,5\n");
        let clock = "sys/devices/system/clocksource/clocksource0/current_clocksource";
        write(clock, "hpet\n");
        for cpu in 0..2 {
            let folder = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq");
            write(&format!("{folder}/scaling_governor"), "powersave\n");
            write(&format!("{folder}/scaling_driver"), "acpi-cpufreq\n");
        }
        let machine = described_by(folder.path());
        assert_eq!((machine.kernel.as_str(), machine.cpus), ("6.1.0", 4));
        assert_eq!(machine.clock_source, "hpet");
        assert_eq!(machine.governors, ["powersave (acpi-cpufreq)"]);
    }

    #[test]
    fn a_thread_that_works_is_seen_working() {
        let own = std::thread::Builder::new().name("worker".to_owned());
        let looks = own.spawn(|| {
            let of = |threads: BTreeMap<u32, WatchedThread>| {
                threads.into_values().find(|thread| thread.name == "worker").unwrap()
            };
            let before = of(threads());
            let start = std::time::Instant::now();
            while of(threads()).running < before.running + 5_000_000 {
                assert!(start.elapsed().as_secs() < 30, "time passes for a thread that works");
            }
        });
        looks.unwrap().join().unwrap();
    }
}
