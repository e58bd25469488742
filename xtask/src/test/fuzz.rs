//! Each fuzz target for a few seconds, from its corpus, on the stable toolchain.
//!
//! cargo-fuzz would do the same with a nightly compiler and a sanitizer; neither is needed to see
//! panics, overflows and wild allocations in code without `unsafe`. The flags are those that
//! cargo-fuzz gives to the compiler for coverage.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Outcome, cargo, limited};
use crate::workspace;

/// Seconds per target.
const SECONDS: u64 = 10;

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

/// The section.
pub fn run() -> Result<Outcome> {
    let root = workspace::root();
    let targets = targets(&root)?;
    let triple = host()?;
    let mut build = cargo(&["build", "--quiet", "--release", "--locked", "--bins"]);
    // With a target named, flags are for it alone and not for build scripts.
    build.args(["--manifest-path", "fuzz/Cargo.toml", "--target", &triple]);
    build.env("CARGO_TARGET_DIR", root.join("fuzz/target"));
    build.env("RUSTFLAGS", COVERAGE.join(" "));
    if !super::run(build, 10)? {
        return Ok(Outcome { passed: 0, failed: targets.len() as u64, ..Outcome::default() });
    }
    let mut total = Outcome::default();
    for target in &targets {
        total += Outcome::of(fuzz(&root, &triple, target).with_context(|| target.clone())?);
    }
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

fn fuzz(root: &Path, triple: &str, target: &str) -> Result<bool> {
    // New inputs go to a folder that is thrown away; the corpus is only read.
    let found = root.join("fuzz/target/found").join(target);
    let artifacts = root.join("fuzz/artifacts").join(target);
    std::fs::create_dir_all(&found)?;
    std::fs::create_dir_all(&artifacts)?;
    let mut command =
        Command::new(root.join("fuzz/target").join(triple).join("release").join(target));
    command
        .arg(format!("-max_total_time={SECONDS}"))
        .args(["-rss_limit_mb=2048", "-timeout=10", "-print_final_stats=1", "-verbosity=0"])
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(found)
        .arg(root.join("fuzz/corpus").join(target));
    let mut command = limited(command, Duration::from_secs(3 * SECONDS));
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
