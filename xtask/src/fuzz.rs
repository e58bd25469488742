//! `cargo xtask fuzz`: fuzz targets from their corpus, on the stable toolchain.
//!
//! cargo-fuzz would do the same with a nightly compiler and a sanitizer; neither is needed to see
//! panics, overflows and wild allocations in code without `unsafe`. The flags are those that
//! cargo-fuzz gives to the compiler for coverage.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::test::{self, Outcome, cargo, limited};
use crate::workspace;

const HELP: &str = "\
cargo xtask fuzz [--seconds N] [--seed S] [TARGET ...]
    Runs each target of fuzz/fuzz_targets (or only those named) for N seconds (default 600), with
    inputs that S chooses (default: others each time). An input that breaks a target is kept in
    fuzz/artifacts/TARGET, and its name is printed.";

/// How long a target runs, and on which inputs.
#[derive(Clone, Copy)]
struct Share {
    /// Seconds per target.
    seconds: u64,
    /// What chooses the inputs; 0 lets libFuzzer choose.
    seed: u32,
    /// Inputs per target; 0 is without limit.
    inputs: u64,
}

/// What runs on every change. The number of inputs ends it and not the time, so that it is the
/// same share on every machine.
const SHARE: Share = Share { seconds: 120, seed: 1, inputs: 300_000 };

/// What libFuzzer needs to see which code an input reaches.
const COVERAGE: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
    // Coverage tables of one crate may not be split over units.
    "-Ccodegen-units=1",
];

/// The command.
pub fn main(arguments: &[String]) -> Result<()> {
    let mut share = Share { seconds: 600, seed: 0, inputs: 0 };
    let mut chosen = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().with_context(|| format!("{argument} needs a number"));
        match argument.as_str() {
            "--help" | "-h" => {
                println!("{HELP}");
                return Ok(());
            }
            "--seconds" => share.seconds = number()?.parse().context("--seconds")?,
            "--seed" => share.seed = number()?.parse().context("--seed")?,
            name => chosen.push(name.to_owned()),
        }
    }
    let known = targets(&workspace::root())?;
    if let Some(name) = chosen.iter().find(|name| !known.contains(name)) {
        bail!("{name} is not a fuzz target, those are: {}\n{HELP}", known.join(", "));
    }
    let targets = if chosen.is_empty() { known } else { chosen };
    let outcome = run(targets, share)?;
    if !outcome.is_good() {
        bail!("a fuzz target failed");
    }
    Ok(())
}

/// The section of `cargo xtask test`.
pub fn section() -> Result<Outcome> {
    run(targets(&workspace::root())?, SHARE)
}

fn run(targets: Vec<String>, share: Share) -> Result<Outcome> {
    let root = workspace::root();
    let triple = host()?;
    let mut build = cargo(&["build", "--quiet", "--release", "--locked", "--bins"]);
    // With a target named, flags are for it alone and not for build scripts.
    build.args(["--manifest-path", "fuzz/Cargo.toml", "--target", &triple]);
    build.env("CARGO_TARGET_DIR", root.join("fuzz/target"));
    build.env("RUSTFLAGS", COVERAGE.join(" "));
    // A workspace of its own.
    build.env_remove("RUSTC_WORKSPACE_WRAPPER").env_remove("CLIPPY_ARGS");
    let mut total = Outcome::default();
    if !test::run(build, 10)? {
        total += Outcome::of(false);
        return Ok(total);
    }
    total += test::side_by_side(2, targets, |target| {
        let good = fuzz(&root, &triple, &target, share).with_context(|| target.clone())?;
        Ok(Outcome::of(good))
    })?;
    Ok(total)
}

/// The names of the targets.
fn targets(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// What this compiler builds for if not told otherwise.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("rustc could not be started")?;
    let text = String::from_utf8(output.stdout).context("rustc -vV")?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc -vV names no host")
}

fn fuzz(root: &Path, triple: &str, target: &str, share: Share) -> Result<bool> {
    // New inputs go to a folder that is thrown away; the corpus is only read. What an earlier run
    // left there would change which inputs the seed chooses.
    let found = root.join("fuzz/target/found").join(target);
    let artifacts = root.join("fuzz/artifacts").join(target);
    if found.exists() {
        std::fs::remove_dir_all(&found)?;
    }
    std::fs::create_dir_all(&found)?;
    std::fs::create_dir_all(&artifacts)?;
    let mut command =
        Command::new(root.join("fuzz/target").join(triple).join("release").join(target));
    command
        .arg(format!("-max_total_time={}", share.seconds))
        .arg(format!("-seed={}", share.seed))
        .args(["-rss_limit_mb=2048", "-timeout=10", "-print_final_stats=1", "-verbosity=0"])
        .arg(format!("-artifact_prefix={}/", artifacts.display()));
    if share.inputs > 0 {
        command.arg(format!("-runs={}", share.inputs));
    }
    command.arg(found).arg(root.join("fuzz/corpus").join(target));
    let mut command = limited(command, Duration::from_secs(share.seconds + 60));
    let output = command.output().with_context(|| format!("{target} could not be started"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        println!("{text}\n{target}: FAILED with {}", output.status);
        return Ok(false);
    }
    let inputs = text.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    println!("{target}: ok, {} inputs", inputs.unwrap_or("no").trim());
    Ok(true)
}
