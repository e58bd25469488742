//! The history: a line of JSON for each measurement, and how the last one compares.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::results::{Machine, Results, Settings, Tree};
use super::statistics::{Verdict, judge};

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    time: String,
    tree: Tree,
    machine: Machine,
    settings: Settings,
    /// By disks, row and system, with blanks between.
    figures: BTreeMap<String, Figures>,
}

/// Of each run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Figures {
    iops: Vec<f64>,
    server_cpu_us: Vec<f64>,
}

/// What was measured before, and the differences.
pub struct Before {
    pub time: String,
    pub commit: String,
    pub changes: Vec<Change>,
}

/// A figure then and now.
pub struct Change {
    /// Disks, row, system.
    pub of: String,
    pub iops: Option<Verdict>,
    pub server_cpu: Option<Verdict>,
}

/// Appends a measurement, and compares it with the last one of the same settings on the same
/// machine, if there is one.
pub fn record(path: &Path, results: &Results) -> Result<Option<Before>> {
    let name = || path.display().to_string();
    let new = Line::of(results);
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text.with_context(name)?,
    };
    let mut before = None;
    for (index, line) in text.lines().enumerate() {
        let line: Line = serde_json::from_str(line)
            .with_context(|| format!("{}:{} is no measurement", path.display(), index + 1))?;
        if line.is_like(&new) {
            before = Some(line);
        }
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(name)?;
    }
    let mut file = File::options().create(true).append(true).open(path).with_context(name)?;
    file.write_all((serde_json::to_string(&new)? + "\n").as_bytes()).with_context(name)?;
    Ok(before.map(|old| old.changes_to(&new)))
}

impl Line {
    fn of(results: &Results) -> Line {
        let mut figures = BTreeMap::new();
        for set in &results.sets {
            for row in &set.rows {
                for system in &row.systems {
                    let name = format!("{} {} {}", set.disks, row.row, system.system);
                    let (iops, server_cpu_us) = (system.iops(), system.server_cpu());
                    figures.insert(name, Figures { iops, server_cpu_us });
                }
            }
        }
        let Results { time, tree, machine, settings, .. } = results.clone();
        Line { time, tree, machine, settings, figures }
    }

    /// Kernel and fio may differ: they are among what makes figures change.
    fn is_like(&self, other: &Line) -> bool {
        let place = |line: &Line| {
            let Machine { host, cpu, cores, .. } = line.machine.clone();
            (host, cpu, cores)
        };
        let shared = other.figures.keys().any(|name| self.figures.contains_key(name));
        self.settings == other.settings && place(self) == place(other) && shared
    }

    fn changes_to(&self, new: &Line) -> Before {
        let pairs = new.figures.iter().filter_map(|(name, new)| {
            let old = self.figures.get(name)?;
            Some(Change {
                of: name.clone(),
                iops: judge(&new.iops, &old.iops),
                server_cpu: judge(&new.server_cpu_us, &old.server_cpu_us),
            })
        });
        Before { time: self.time.clone(), commit: self.tree.short(), changes: pairs.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::results;
    use super::*;

    #[test]
    fn the_last_measurement_like_this_one_is_compared() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/history.jsonl");
        let old = results(&[100.0, 101.0, 102.0, 103.0, 104.0]);
        assert!(record(&path, &old).unwrap().is_none());
        let mut other = results(&[1.0; 5]);
        other.settings.mib += 1;
        assert!(record(&path, &other).unwrap().is_none());
        let mut new = results(&[51.0; 5]);
        new.machine.kernel.push('1');
        let before = record(&path, &new).unwrap().unwrap();
        assert_eq!((before.commit.as_str(), before.changes.len()), ("c0ffee, changed", 2));
        let change = before.changes.iter().find(|change| change.of == "ram a-row ashlar").unwrap();
        assert_eq!(change.iops, Some(Verdict { ratio: 0.5, beyond_noise: Some(true) }));
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 3);
    }

    #[test]
    fn a_file_that_is_no_history_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        fs::write(&path, "dear diary\n").unwrap();
        let error = record(&path, &results(&[1.0])).err().unwrap().to_string();
        assert!(error.ends_with("notes:1 is no measurement"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "dear diary\n");
    }
}
