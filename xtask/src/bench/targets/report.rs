//! What is printed and kept: a table, JSON, and a line in the history for each target.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Outcome;
use super::check::{Check, Value};
use super::options::Options;
use crate::bench::results::{self, Machine, Tree};

/// Where, when and of what.
pub struct Report<'a> {
    pub time: String,
    pub machine: Machine,
    pub tree: Tree,
    pub options: &'a Options,
}

/// What figures depend on besides the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Settings {
    seconds: u64,
    mib: u64,
    idle_volumes: usize,
}

/// All of it, as JSON.
#[derive(Serialize)]
struct Document<'a> {
    time: &'a str,
    /// A smoke run: none of the figures is one.
    quick: bool,
    tree: &'a Tree,
    machine: &'a Machine,
    settings: Settings,
    rounds: usize,
    targets: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    number: u8,
    name: &'a str,
    title: &'a str,
    checks: &'a [Check],
    /// Why the measurement broke.
    error: Option<String>,
}

/// A target in the history.
#[derive(Serialize, Deserialize)]
struct Line {
    time: String,
    tree: Tree,
    machine: Machine,
    settings: Settings,
    target: String,
    checks: Vec<Kept>,
}

/// A check in the history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    what: String,
    holds: Option<bool>,
    measured: Option<f64>,
    runs: Vec<f64>,
}

/// Prints the table, writes the JSON and the history. A smoke run writes what it is told to.
///
/// # Errors
/// If a file can not be written, or the history is none.
pub fn finish(report: Report, outcomes: &[Outcome], folder: &Path) -> Result<()> {
    let options = report.options;
    let history = options.history.clone().unwrap_or_else(|| folder.join("targets.jsonl"));
    let before = if options.quick { Vec::new() } else { read(&history)? };
    print(&report, outcomes, &before);
    let json = match &options.json {
        None if options.quick => return Ok(()),
        None => folder.join("targets.json"),
        Some(path) => path.clone(),
    };
    results::write(&json, &(serde_json::to_string_pretty(&document(&report, outcomes))? + "\n"))?;
    println!("every single run: {}", json.display());
    if !options.quick {
        append(&history, &report, outcomes)?;
        println!("kept in {}", history.display());
    }
    Ok(())
}

fn print(report: &Report, outcomes: &[Outcome], before: &[Line]) {
    let Report { time, machine, tree, options } = report;
    println!();
    if options.quick {
        println!(
            "A SMOKE RUN: it shows that the targets can be measured. None of its figures is one."
        );
    }
    println!("{time}, commit {}", tree.short());
    println!(
        "{}: {} x {}, {} MiB, Linux {}, {}",
        machine.host, machine.cores, machine.cpu, machine.memory_mib, machine.kernel, machine.fio
    );
    println!("medians of {} rounds of {} s", options.rounds, options.seconds);
    for Outcome { target, checks } in outcomes {
        println!("\n{} {}: {}", target.number, target.name, target.title);
        let checks = match checks {
            Ok(checks) => checks,
            Err(error) => {
                println!("    could not be measured: {error:#}");
                continue;
            }
        };
        let last = before.iter().rev().find(|line| line.is_like(report, target.name));
        for check in checks {
            let last = last.and_then(|line| line.measured(&check.what));
            lines(check, last).iter().for_each(|line| println!("    {line}"));
        }
    }
    println!();
}

/// A check on the terminal; `last` is what was measured before.
fn lines(check: &Check, last: Option<f64>) -> Vec<String> {
    let value = |value| Value(value, check.unit).to_string();
    let measured = check.measured.map_or("-".to_owned(), value);
    let (limit, verdict) = (check.limit(), check.verdict());
    let mut lines = vec![format!("{verdict:14} {measured:>10}, {limit:18} {}", check.what)];
    let mut figures: Vec<String> = check.figures.iter().map(ToString::to_string).collect();
    figures.extend(last.map(|last| format!("last time {}", value(last))));
    if !figures.is_empty() {
        lines.push(format!("{:26} {}", "", figures.join(", ")));
    }
    lines.extend(check.note.as_ref().map(|note| format!("{:26} {note}", "")));
    lines
}

fn document<'a>(report: &'a Report, outcomes: &'a [Outcome]) -> Document<'a> {
    let entry = |outcome: &'a Outcome| {
        let Outcome { target, checks } = outcome;
        let (checks, error) = match checks {
            Ok(checks) => (&checks[..], None),
            Err(error) => (&[][..], Some(format!("{error:#}"))),
        };
        Entry { number: target.number, name: target.name, title: target.title, checks, error }
    };
    Document {
        time: &report.time,
        quick: report.options.quick,
        tree: &report.tree,
        machine: &report.machine,
        settings: Settings::of(report.options),
        rounds: report.options.rounds,
        targets: outcomes.iter().map(entry).collect(),
    }
}

impl Settings {
    fn of(options: &Options) -> Settings {
        Settings { seconds: options.seconds, mib: options.mib, idle_volumes: options.idle }
    }
}

impl Line {
    fn of(report: &Report, name: &str, checks: &[Check]) -> Line {
        let Report { time, machine, tree, options } = report;
        let kept = |check: &Check| Kept {
            what: check.what.clone(),
            holds: check.holds,
            measured: check.measured,
            runs: check.runs.clone(),
        };
        Line {
            time: time.clone(),
            tree: tree.clone(),
            machine: machine.clone(),
            settings: Settings::of(options),
            target: name.to_owned(),
            checks: checks.iter().map(kept).collect(),
        }
    }

    /// Kernel and fio may differ: they are among what makes figures change.
    fn is_like(&self, report: &Report, name: &str) -> bool {
        let place = |machine: &Machine| {
            let Machine { host, cpu, cores, .. } = machine.clone();
            (host, cpu, cores)
        };
        self.target == name
            && self.settings == Settings::of(report.options)
            && place(&self.machine) == place(&report.machine)
    }

    fn measured(&self, what: &str) -> Option<f64> {
        self.checks.iter().find(|check| check.what == what)?.measured
    }
}

fn read(path: &Path) -> Result<Vec<Line>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text.with_context(|| path.display().to_string())?,
    };
    let line = |(index, line)| {
        serde_json::from_str(line)
            .with_context(|| format!("{}:{} is no target", path.display(), index + 1))
    };
    text.lines().enumerate().map(line).collect()
}

fn append(path: &Path, report: &Report, outcomes: &[Outcome]) -> Result<()> {
    let name = || path.display().to_string();
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(name)?;
    }
    let mut text = String::new();
    for Outcome { target, checks } in outcomes {
        let Ok(checks) = checks else { continue };
        text += &serde_json::to_string(&Line::of(report, target.name, checks))?;
        text.push('\n');
    }
    let mut file = File::options().create(true).append(true).open(path).with_context(name)?;
    file.write_all(text.as_bytes()).with_context(name)
}

#[cfg(test)]
mod tests {
    use super::super::TARGETS;
    use super::super::check::{Figure, Limit, Unit};
    use super::*;
    use crate::bench::results::tests::results;

    fn outcomes(value: f64) -> [Outcome; 1] {
        let check = Check::new("writes", Limit::AtMost(25.0), Unit::Us, vec![value])
            .with(Figure::new("fio", Unit::Us, vec![5.0]));
        [Outcome { target: &TARGETS[0], checks: Ok(vec![check]) }]
    }

    fn options(words: &str) -> Options {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words).unwrap()
    }

    fn report(options: &Options) -> Report<'_> {
        let results = results(&[1.0]);
        Report { time: results.time, machine: results.machine, tree: results.tree, options }
    }

    #[test]
    fn a_check_has_its_figures_and_what_was_measured_last() {
        let check = outcomes(27.94)[0].checks.as_ref().unwrap()[0].clone();
        let lines = lines(&check, Some(30.0));
        assert_eq!(lines[0], "DOES NOT HOLD     27.9 us, at most 25.0 us    writes");
        assert_eq!(lines[1].trim(), "fio 5.0 us, last time 30.0 us");
    }

    #[test]
    fn the_last_line_of_the_same_settings_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/targets.jsonl");
        let (options, others) = (options("--mib 64"), options("--mib 128"));
        append(&path, &report(&options), &outcomes(20.0)).unwrap();
        append(&path, &report(&options), &outcomes(21.0)).unwrap();
        append(&path, &report(&others), &outcomes(22.0)).unwrap();
        let lines = read(&path).unwrap();
        let last = lines.iter().rev().find(|line| line.is_like(&report(&options), "cpu")).unwrap();
        assert_eq!((last.measured("writes"), last.measured("reads")), (Some(21.0), None));
        assert!(!lines.iter().any(|line| line.is_like(&report(&options), "scale")));
    }

    #[test]
    fn a_target_that_broke_is_in_the_json_and_not_in_the_history() {
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("a.json");
        let mut options = options("");
        options.json = Some(json.clone());
        options.history = Some(folder.path().join("history"));
        let broken = [Outcome { target: &TARGETS[1], checks: Err(anyhow::anyhow!("no luck")) }];
        finish(report(&options), &broken, folder.path()).unwrap();
        let value: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
        assert_eq!(value["targets"][0]["error"], "no luck");
        assert_eq!(fs::read_to_string(folder.path().join("history")).unwrap(), "");
    }
}
