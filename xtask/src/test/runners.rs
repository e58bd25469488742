//! The sections `build` and `tests`: build the tests of the workspace, and run them, some runners at a time.
//!
//! Cargo runs one test binary after the other. Many end-to-end tests wait most of their time, for a node that
//! is thought lost or for a device: several at a time fill the processors, and each has networks and
//! folders of its own. A package's tests beside its source are one binary, to be linked once; each of its
//! modules is a runner, in a process of its own. The whole output is kept in `target/test.log`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::failures;
use super::known::Known;
use super::libtest::{Reading, Say};
use super::{Outcome, cargo, limited, side_by_side};
use crate::workspace::{self, Metadata};

/// The binary of all the tests of a package.
const ALL: &str = "all (tests/all.rs)";

/// Longest time for compiling.
const COMPILING: Duration = Duration::from_secs(20 * 60);

/// Runners at a time. Two leave a third of two processors idle.
const LANES: usize = 3;

/// Longest time for one runner, or the tests in the documentation; the longest takes three minutes.
const LIMIT: Duration = Duration::from_secs(8 * 60);

/// A test binary, or a module of one.
#[derive(Clone, PartialEq, Debug)]
struct Runner {
    /// Its name and its source, for people.
    name: String,
    program: PathBuf,
    /// The folder of its package, where it runs.
    directory: PathBuf,
    /// The module's tests. Without any it is the whole binary.
    tests: Vec<String>,
}

/// The section `programs`.
pub fn programs() -> Result<Outcome> {
    Ok(Outcome::of(build_programs()?))
}

/// The section `build`: what the sections after it would do first; and benchmarks and examples, for the lints.
pub fn build() -> Result<Outcome> {
    let all = ["build", "--quiet", "--locked", "--workspace", "--all-targets"];
    let good = super::run(cargo(&all), 20)? && built()?.is_some();
    Ok(Outcome::of(good))
}

/// Builds the programs that end-to-end tests and guests start, once in a run: cargo would have a section wait
/// for what it builds beside. Built with the whole workspace, they share every dependency with the tests. False if
/// that fails; the compiler has said why.
pub fn build_programs() -> Result<bool> {
    static BUILT: Mutex<bool> = Mutex::new(false);
    let mut built = BUILT.lock().expect("nothing panics while it builds");
    if !*built {
        *built = super::run(cargo(&["build", "--quiet", "--locked", "--workspace", "--bins"]), 15)?;
    }
    Ok(*built)
}

/// Where [`build_programs`] leaves them.
pub fn folder_of_programs() -> Result<PathBuf> {
    Ok(target()?.join("debug"))
}

fn target() -> Result<PathBuf> {
    Ok(Metadata::of(&workspace::root().join("Cargo.toml"))?.target_directory)
}

/// The section `tests`.
pub fn run() -> Result<Outcome> {
    if !build_programs()? {
        return Ok(Outcome::of(false));
    }
    let Some(runners) = built()? else {
        return Ok(Outcome::of(false));
    };
    let known = Known::read()?.tests;
    let log = target()?.join("test.log");
    let file = File::create(&log).with_context(|| log.display().to_string())?;
    let log = Mutex::new(file);
    let program = folder_of_programs()?.join("ashlar");
    // The documentation first: beside it others fill the second processor.
    let work = std::iter::once(None).chain(runners.into_iter().map(Some)).collect();
    side_by_side(LANES, work, |runner: Option<Runner>| {
        let Some(runner) = runner else { return documentation(&known, &log) };
        let mut command = Command::new(&runner.program);
        command.arg("--show-output").current_dir(&runner.directory);
        if !runner.tests.is_empty() {
            command.arg("--exact").args(&runner.tests);
        }
        command.env("CARGO_MANIFEST_DIR", &runner.directory).env("ASHLAR_BINARY", &program);
        follow(command, &runner.name, Reading::of_runner(&runner.name, &known), &log)
    })
}

/// Builds the runners. `None` if that fails; the compiler has said why.
fn built() -> Result<Option<Vec<Runner>>> {
    let command = cargo(&[
        "test",
        "--quiet",
        "--locked",
        "--workspace",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    let mut command = limited(command, COMPILING);
    command.stdout(Stdio::piped());
    let output = command.spawn().and_then(std::process::Child::wait_with_output);
    let output = output.context("cargo could not be started")?;
    if !output.status.success() {
        println!("cargo test --no-run: {}", output.status);
        return Ok(None);
    }
    let text = String::from_utf8(output.stdout).context("what cargo has built")?;
    let binaries = text.lines().filter_map(|line| runner(line).transpose());
    let mut runners = Vec::new();
    for binary in binaries.collect::<Result<Vec<_>>>()? {
        match binary.name == ALL {
            true => runners.extend(modules(&binary)?),
            false => runners.push(binary),
        }
    }
    Ok(Some(runners))
}

/// The modules of a binary that has all of a package's tests.
fn modules(binary: &Runner) -> Result<Vec<Runner>> {
    let output = Command::new(&binary.program).arg("--list").output();
    let output = output.with_context(|| binary.program.display().to_string())?;
    let text = String::from_utf8(output.stdout).context("the names of tests")?;
    let mut modules: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for test in text.lines().filter_map(|line| line.strip_suffix(": test")) {
        let (module, _) = test.split_once("::").with_context(|| format!("{test} is in {ALL}"))?;
        modules.entry(module).or_default().push(test.to_owned());
    }
    ensure!(!modules.is_empty(), "{} has no tests: {text}", binary.program.display());
    let runner = |(module, tests): (&str, _)| Runner {
        name: format!("{module} (tests/{module}.rs)"),
        tests,
        ..binary.clone()
    };
    Ok(modules.into_iter().map(runner).collect())
}

/// The runner that one of cargo's messages is about, if it is about one.
fn runner(line: &str) -> Result<Option<Runner>> {
    #[derive(Deserialize)]
    struct Message {
        reason: String,
        manifest_path: Option<PathBuf>,
        target: Option<Target>,
        profile: Option<Profile>,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        src_path: PathBuf,
    }
    #[derive(Deserialize)]
    struct Profile {
        test: bool,
    }

    let message: Message = serde_json::from_str(line).with_context(|| line.to_owned())?;
    let Message { reason, manifest_path, target, profile, executable } = message;
    let (Some(manifest), Some(target), Some(profile), Some(program)) =
        (manifest_path, target, profile, executable)
    else {
        return Ok(None);
    };
    if reason != "compiler-artifact" || !profile.test {
        return Ok(None);
    }
    let directory = manifest.parent().context("a manifest is in a folder")?.to_owned();
    let source = target.src_path.strip_prefix(&directory).unwrap_or(&target.src_path);
    let name = format!("{} ({})", target.name, source.display());
    Ok(Some(Runner { name, program, directory, tests: Vec::new() }))
}

/// The tests in the documentation. Cargo runs them, with a heading for each crate.
fn documentation(known: &BTreeSet<String>, log: &Mutex<File>) -> Result<Outcome> {
    let arguments = ["test", "--locked", "--workspace", "--doc", "--no-fail-fast"];
    let command = cargo(&[&arguments[..], &["--", "--show-output"]].concat());
    follow(command, "documentation", Reading::of_cargo(known), log)
}

/// Runs a command and reads what it prints; says and logs it in one piece when it has ended.
fn follow(
    command: Command,
    name: &str,
    mut reading: Reading,
    log: &Mutex<File>,
) -> Result<Outcome> {
    let mut begun = Instant::now();
    let mut command = limited(command, LIMIT);
    // One pipe for both, so that headings and the tests' lines keep their order.
    let (reader, writer) = std::io::pipe().context("no pipe")?;
    command.stdin(Stdio::null());
    command.stdout(writer.try_clone().context("no second end of the pipe")?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("{name} could not be started"))?;
    // It holds the writing ends, and the pipe would never end.
    drop(command);
    let mut lines = Vec::new();
    let mut says = Vec::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.with_context(|| format!("the output of {name}"))?;
        let line = String::from_utf8_lossy(&line);
        for say in reading.line(&line) {
            says.push(match say {
                Say::Line(text) => text,
                Say::Ended(text) => {
                    let took = std::mem::replace(&mut begun, Instant::now()).elapsed();
                    format!("{text} ({:.1} s)", took.as_secs_f64())
                }
            });
        }
        lines.push(line.into_owned());
    }
    let status = child.wait().with_context(|| name.to_owned())?;
    let (mut outcome, lost) = reading.ended();
    says.extend(lost);
    if !status.success() && outcome.failed + outcome.known == 0 {
        says.push(format!("{name} FAILED: {status}"));
        outcome.failed += 1;
    }

    // Held while it is printed, too: what two runners say is not mixed.
    let mut log = log.lock().expect("nothing panics with the log");
    writeln!(log, "== {name}\n{}", lines.join("\n")).context("target/test.log")?;
    says.iter().for_each(|say| println!("{say}"));
    if outcome.failed > 0 {
        failures::keep(name, &says.join("\n"));
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_is_an_artifact_that_was_built_for_tests() {
        let message = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/tests/Cargo.toml",
                "target":{{"kind":["test"],"name":"link","src_path":"/w/tests/tests/link.rs"}},
                "profile":{{"opt_level":"1","test":{test}}},"executable":{executable}}}"#
            )
        };
        let expected = Runner {
            name: "link (tests/link.rs)".into(),
            program: "/t/debug/deps/link-01".into(),
            directory: "/w/tests".into(),
            tests: Vec::new(),
        };
        assert_eq!(runner(&message(true, "\"/t/debug/deps/link-01\"")).unwrap(), Some(expected));
        assert_eq!(runner(&message(false, "\"/t/debug/ashlar\"")).unwrap(), None);
        assert_eq!(runner(&message(true, "null")).unwrap(), None);
        assert_eq!(runner(r#"{"reason":"build-finished","success":true}"#).unwrap(), None);
        assert!(runner("not json").is_err());
    }
}
