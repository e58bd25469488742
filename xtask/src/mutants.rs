//! `cargo xtask mutants`: plants known bugs in the core, one at a time, and expects the simulator
//! to find each of them. A checker that finds nothing proves nothing; this proves the checkers.
//!
//! A bug is a file in `mutants/`: a header of `key: value` lines, then the text to find and the
//! text to put in its place:
//!
//! ```text
//! file: crates/replication/src/epoch.rs
//! what: barrier acks do not wait for the flush
//! expect: 3
//! --- find
//! ...exact text, which occurs once...
//! --- replace
//! ...
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::sim::{self, Campaign};

const HELP: &str = "\
cargo xtask mutants [--seeds N] [name ...]
    Plants each bug of mutants/ (or only the named ones) in a copy of the tree and runs up to N
    seeds (default 10000). Fails if a bug is not found, or can not be planted.";

/// A planted bug.
struct Mutant {
    name: String,
    file: String,
    what: String,
    /// Rules that are expected to catch it, for the reader.
    expect: String,
    find: String,
    replace: String,
}

/// The command.
pub fn main(arguments: &[String]) -> Result<()> {
    let mut seeds = 10_000;
    let mut names = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" | "-h" => {
                println!("{HELP}");
                return Ok(());
            }
            "--seeds" => {
                seeds = arguments.next().context("--seeds needs a number")?.parse()?;
            }
            name => names.push(name.to_owned()),
        }
    }
    let mutants = load(Path::new("mutants"), &names)?;
    let tree = copy_tree()?;
    let sound = sound_simulator(&tree)?;
    let mut missed = Vec::new();
    println!("{:<28} {:<10} {:<10} {:>8}  what", "mutant", "expected", "found by", "seed");
    for mutant in &mutants {
        let found = try_mutant(&tree, &sound, mutant, seeds)?;
        let (rule, seed) = match &found {
            Some((rule, seed)) => (rule.as_str(), seed.to_string()),
            None => ("MISSED", "-".to_owned()),
        };
        println!("{:<28} {:<10} {rule:<10} {seed:>8}  {}", mutant.name, mutant.expect, mutant.what);
        if found.is_none() {
            missed.push(mutant.name.as_str());
        }
    }
    fs::remove_dir_all(&tree).context("the copy of the tree could not be removed")?;
    if !missed.is_empty() {
        bail!("the simulator misses {}", missed.join(", "));
    }
    Ok(())
}

fn load(directory: &Path, names: &[String]) -> Result<Vec<Mutant>> {
    let entries = fs::read_dir(directory).context("there is no mutants/ here")?;
    let mut paths: Vec<PathBuf> = entries.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|e| e == "mutant"));
    paths.sort();
    let mut mutants = Vec::new();
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if names.is_empty() || names.contains(&name) {
            let text = fs::read_to_string(&path)?;
            mutants.push(parse(name, &text).with_context(|| path.display().to_string())?);
        }
    }
    Ok(mutants)
}

fn parse(name: String, text: &str) -> Result<Mutant> {
    let (header, rest) = text.split_once("--- find\n").context("there is no `--- find`")?;
    let (find, replace) = rest.split_once("--- replace\n").context("there is no `--- replace`")?;
    let field = |key: &str| {
        let value = header.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        value.map(str::to_owned).with_context(|| format!("there is no `{key}:`"))
    };
    Ok(Mutant {
        name,
        file: field("file")?,
        what: field("what")?,
        expect: field("expect")?,
        find: find.to_owned(),
        replace: replace.to_owned(),
    })
}

/// Copies what git knows, as it is in the work tree, to a directory of its own.
fn copy_tree() -> Result<PathBuf> {
    let root = std::env::current_dir()?.join("target").join("mutants-tree");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("git could not be started")?;
    for file in String::from_utf8(listed.stdout)?.lines() {
        let to = root.join(file);
        if let (Some(parent), true) = (to.parent(), Path::new(file).is_file()) {
            fs::create_dir_all(parent)?;
            fs::copy(file, &to).with_context(|| format!("{file} could not be copied"))?;
        }
    }
    Ok(root)
}

/// The simulator without a planted bug, put aside.
fn sound_simulator(tree: &Path) -> Result<PathBuf> {
    let sound = tree.join("sound-simulator");
    fs::copy(sim::build(tree)?, &sound).context("the simulator could not be copied")?;
    Ok(sound)
}

/// The rule that was broken and the seed, if any.
fn try_mutant(
    tree: &Path,
    sound: &Path,
    mutant: &Mutant,
    seeds: u64,
) -> Result<Option<(String, u64)>> {
    let path = tree.join(&mutant.file);
    let original = fs::read_to_string(&path)
        .with_context(|| format!("{} has no file {}", mutant.name, mutant.file))?;
    if original.matches(&mutant.find).count() != 1 {
        bail!("{}: the text to find does not occur exactly once in {}", mutant.name, mutant.file);
    }
    fs::write(&path, original.replacen(&mutant.find, &mutant.replace, 1))?;
    let result = build_and_run(tree, sound, seeds).with_context(|| mutant.name.clone());
    fs::write(&path, original)?;
    result
}

fn build_and_run(tree: &Path, sound: &Path, seeds: u64) -> Result<Option<(String, u64)>> {
    let binary = sim::build(tree)?;
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    // In slices, so that an early find ends the search on all cores.
    let mut start = 1;
    while start <= seeds {
        let slice = (jobs * 250).min(seeds - start + 1);
        let campaign = Campaign {
            start,
            seeds: slice,
            jobs,
            failures: 5,
            verbose: false,
            kind: sim::Kind::Data,
            watch: None,
        };
        for (seed, text) in sim::run(&binary, &campaign)?.violations {
            if breaks(sound, seed)? {
                continue;
            }
            let rule = text.split(' ').next().unwrap_or_default().to_owned();
            return Ok(Some((rule, seed)));
        }
        start += slice;
    }
    Ok(None)
}

/// True if the seed breaks a rule without the planted bug, too: then it proves nothing.
fn breaks(sound: &Path, seed: u64) -> Result<bool> {
    let campaign = Campaign {
        start: seed,
        seeds: 1,
        jobs: 1,
        failures: 1,
        verbose: false,
        kind: sim::Kind::Data,
        watch: None,
    };
    Ok(!sim::run(sound, &campaign)?.violations.is_empty())
}
