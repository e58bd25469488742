//! The table: every row on every system, in rounds, so that noise hits all of them alike.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::bed::{Bed, Program, RAW};
use super::options::{Disks, Options};
use super::results::{self, Machine, Measured, OfSystem, Results, Run, Set, Settings, Tree};
use super::rows::Row;
use super::{build, chart, fio, folder, history, report, words};
use crate::{process, revision};

/// What a run takes besides its seconds: fio's start, its end, and a look at the nodes.
const BESIDES: Duration = Duration::from_millis(1_000);
/// Starting the systems and writing their volumes, very roughly.
const SETTING_UP: Duration = Duration::from_secs(15);

/// The command.
pub fn run(arguments: &[String]) -> Result<()> {
    let options = Options::parse(arguments)?;
    fio::require()?;
    for peer in &options.peers {
        peer.require()?;
    }
    let old = options.compare.as_deref().map(revision::commit).transpose().context("--compare")?;
    process::watch_signals()?;
    let (machine, tree) = (Machine::here()?, Tree::here()?);
    let folder = folder()?;
    announce(&options);
    let mut programs =
        vec![Program { name: "ashlar".to_owned(), tree: tree.short(), path: build(false)? }];
    if let Some(commit) = &old {
        let (tree, path) = (revision::short(commit), revision::build(commit, &folder, "release")?);
        programs.push(Program { name: format!("ashlar@{tree}"), tree: tree.to_owned(), path });
    }
    process::check_signals()?;
    let mut results = Results {
        time: results::now()?,
        quick: options.quick,
        tree,
        machine,
        settings: Settings {
            seconds: options.seconds,
            volumes: options.volumes_used(),
            mib: options.mib,
            diskless_node: options.clients.diskless,
        },
        arguments: arguments.to_vec(),
        systems: Vec::new(),
        sets: Vec::new(),
    };
    let mut disks = options.disks.iter();
    let outcome = disks.try_for_each(|disks| measure(*disks, &options, &programs, &mut results));
    if results.sets.is_empty() {
        return outcome;
    }
    // What took an hour is not thrown away because the rest failed.
    report::print(&results);
    match &programs[..] {
        _ if outcome.is_err() => {}
        [new, old] => report::compare(&results, new, old),
        _ if options.quick => {}
        _ => {
            let path = options.history.clone().unwrap_or_else(|| folder.join("history.jsonl"));
            report::history(&history::record(&path, &results)?);
            println!("kept in {}", path.display());
        }
    }
    save(&options, &results, &folder)?;
    outcome
}

/// Says what is going to happen and how long it takes.
fn announce(options: &Options) {
    let clients = usize::from(options.clients.local) + usize::from(options.clients.diskless);
    let systems = match options.compare {
        Some(_) => 2 * clients,
        None => 1 + clients + options.peers.len(),
    };
    let all = each(options) * (options.rounds * options.rows.len() * systems) as u32;
    let disks: Vec<&str> = options.disks.iter().map(|disks| disks.name()).collect();
    eprintln!(
        "{} rows on {systems} systems, {} rounds of {} s each, disks {}: about {} after the build",
        options.rows.len(),
        options.rounds,
        options.seconds,
        disks.join(" and "),
        words((all + SETTING_UP) * options.disks.len() as u32)
    );
    eprintln!("building");
}

/// What a run takes.
fn each(options: &Options) -> Duration {
    Duration::from_secs(options.seconds) + BESIDES
}

/// Runs all rows on disks of one kind.
fn measure(
    disks: Disks,
    options: &Options,
    programs: &[Program],
    results: &mut Results,
) -> Result<()> {
    eprintln!("disks {}: setting up and writing every volume", disks.name());
    let mut bed = Bed::set_up(disks, options, programs)?;
    let systems = bed.systems.len();
    let all = options.rounds * options.rows.len() * systems;
    let mut runs: Vec<Vec<Vec<Run>>> = vec![vec![Vec::new(); systems]; options.rows.len()];
    let begun = Instant::now();
    let mut done = 0;
    for round in 0..options.rounds {
        for (row, runs) in options.rows.iter().zip(&mut runs) {
            let left = match done {
                0 => each(options) * all as u32,
                done => begun.elapsed() * (all - done) as u32 / done as u32,
            };
            eprintln!(
                "disks {}, round {} of {}: {}, about {} left",
                disks.name(),
                round + 1,
                options.rounds,
                row.name(),
                words(left)
            );
            // Each is first in some round: what is first may find the machine in another state.
            for turn in 0..systems {
                let system = (turn + round) % systems;
                runs[system].push(bed.run(row, system, options.seconds)?);
                done += 1;
            }
        }
    }
    results.systems = bed.notes();
    let rows = options.rows.iter().zip(runs);
    let rows = rows.map(|(row, runs)| measured(row, options, &bed, runs)).collect::<Result<_>>()?;
    let file_system = bed.file_system.clone();
    results.sets.push(Set { disks: disks.name().to_owned(), file_system, rows });
    Ok(())
}

fn measured(row: &Row, options: &Options, bed: &Bed, runs: Vec<Vec<Run>>) -> Result<Measured> {
    let mut systems: Vec<OfSystem> = Vec::new();
    for (system, runs) in bed.systems.iter().zip(runs) {
        // The raw storage is the first, if it is there at all.
        let raw = systems.first().filter(|first| first.system == RAW);
        let raw = raw.map(|raw| raw.median.iops);
        systems.push(OfSystem::new(&system.name, runs, raw).context("a system without runs")?);
    }
    Ok(Measured { row: row.name(), title: row.title(options.volumes), systems })
}

/// Writes the files. A smoke run writes those it is told to.
fn save(options: &Options, results: &Results, folder: &Path) -> Result<()> {
    let name = if options.compare.is_some() { "compare" } else { "table" };
    let place = |given: &Option<PathBuf>, extension: &str| match given {
        Some(path) => Some(path.clone()),
        None if options.quick => None,
        None => Some(folder.join(format!("{name}.{extension}"))),
    };
    if let Some(path) = place(&options.json, "json") {
        results::write(&path, &(serde_json::to_string_pretty(results)? + "\n"))?;
        println!("every single run: {}", path.display());
    }
    if let Some(path) = place(&options.svg, "svg") {
        results::write(&path, &chart::svg(results))?;
        println!("chart: {}", path.display());
    }
    Ok(())
}
