//! The tests of the workspace, and the reading of what Rust's test harness prints.
//!
//! One line per runner is printed as it ends; of a failing test, everything it printed. A test
//! that can not run here prints a line that begins with `skipped:` and passes; it is counted as
//! skipped. A test that is listed as a known failure must fail. The whole output is kept in
//! `target/test.log`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::known::Known;
use super::{Outcome, cargo, limited};
use crate::workspace::{self, Metadata};

/// The section.
pub fn run() -> Result<Outcome> {
    // The end-to-end tests start the program itself. Built with the whole workspace, it shares
    // every dependency with the tests.
    let target = Metadata::of(&workspace::root().join("Cargo.toml"))?.target_directory;
    let build = cargo(&["build", "--quiet", "--locked", "--workspace", "--bins"]);
    if !super::run(build, 15)? {
        return Ok(Outcome::of(false));
    }
    let command =
        cargo(&["test", "--locked", "--workspace", "--no-fail-fast", "--", "--show-output"]);
    let mut command = limited(command, Duration::from_secs(25 * 60));
    command.env("ASHLAR_BINARY", target.join("debug").join("ashlar"));
    // One pipe for both, so that cargo's headings and the runners' lines keep their order.
    let (reader, writer) = std::io::pipe().context("no pipe")?;
    command.stdout(writer.try_clone().context("no second end of the pipe")?).stderr(writer);
    let mut child = command.spawn().context("cargo could not be started")?;
    // It holds the writing ends, and the pipe would never end.
    drop(command);
    let log = target.join("test.log");
    let mut log = File::create(&log).with_context(|| log.display().to_string())?;
    let mut reading = Reading { known: Known::read()?.tests, ..Reading::default() };
    let mut begun = Instant::now();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.context("the output of cargo test")?;
        let line = String::from_utf8_lossy(&line);
        writeln!(log, "{line}").context("target/test.log")?;
        if runner(line.trim()).is_some() {
            begun = Instant::now();
        }
        for say in reading.line(&line) {
            match say {
                Say::Line(text) => println!("{text}"),
                Say::Ended(text) => println!("{text} ({:.1} s)", begun.elapsed().as_secs_f64()),
            }
        }
    }
    let status = child.wait().context("cargo test")?;
    let mut total = reading.total;
    if reading.open || (!status.success() && total.failed + total.known == 0) {
        println!("cargo test ended with {status} and without a verdict");
        total.failed += 1;
    }
    Ok(total)
}

/// What to print.
#[derive(Debug, PartialEq)]
enum Say {
    /// This line.
    Line(String),
    /// A runner has ended: this, and how long it took.
    Ended(String),
}

/// Where in a runner's output we are.
#[derive(Default, PartialEq, Debug)]
enum Part {
    /// What the compiler and cargo say, and the list of tests.
    #[default]
    List,
    /// What successful tests printed.
    Successes,
    /// What failed tests printed, and their names.
    Failures,
}

/// Reads the output of `cargo test -- --show-output` line by line.
#[derive(Default)]
struct Reading {
    total: Outcome,
    /// Tests that are known to fail, as `runner::test`.
    known: BTreeSet<String>,
    /// Those of this runner that did.
    known_failed: u64,
    /// Those of this runner that passed: they have to leave the list.
    outlived: u64,
    /// A runner has begun and has not given its verdict.
    open: bool,
    name: String,
    part: Part,
    /// Tests of this runner that said they were skipped.
    skipped: u64,
    /// The test whose output is being read has said so already.
    counted: bool,
    reasons: Vec<String>,
}

impl Reading {
    fn line(&mut self, line: &str) -> Vec<Say> {
        let bare = line.trim();
        if let Some(name) = runner(bare) {
            let lost = self.open.then(|| {
                self.total.failed += 1;
                Say::Line(format!("{} FAILED: ended without a verdict", self.name))
            });
            let known = std::mem::take(&mut self.known);
            *self = Reading { total: self.total, known, open: true, name, ..Reading::default() };
            return lost.into_iter().collect();
        }
        if let Some(counts) = bare.strip_prefix("test result: ") {
            return self.verdict(counts);
        }
        if self.part == Part::List {
            if let Some(say) = self.known_test(bare) {
                return vec![say];
            }
        }
        match (bare, &self.part) {
            ("successes:", _) => self.part = Part::Successes,
            ("failures:", _) => {
                let first = self.part != Part::Failures;
                self.part = Part::Failures;
                if first {
                    return vec![Say::Line(format!("{} fails:", self.name))];
                }
            }
            (_, Part::List) => {
                let noise = bare.is_empty()
                    || bare.starts_with("running ")
                    || (bare.starts_with("test ") && !bare.ends_with("FAILED"))
                    || [
                        "Compiling",
                        "Downloading",
                        "Downloaded",
                        "Finished",
                        "Locking",
                        "Updating",
                    ]
                    .iter()
                    .any(|word| bare.starts_with(word));
                if !noise {
                    return vec![Say::Line(line.to_owned())];
                }
            }
            (_, Part::Successes) => self.success(bare),
            (_, Part::Failures) => return vec![Say::Line(line.to_owned())],
        }
        Vec::new()
    }

    /// The verdict on a test that is known to fail.
    fn known_test(&mut self, bare: &str) -> Option<Say> {
        let (test, verdict) = bare.strip_prefix("test ")?.split_once(" ... ")?;
        let runner = self.name.split_once(' ').map_or("", |(runner, _)| runner);
        let name = format!("{runner}::{test}");
        if !self.known.contains(&name) {
            return None;
        }
        match verdict {
            "FAILED" => {
                self.known_failed += 1;
                Some(Say::Line(format!("{name} fails, as is known")))
            }
            _ => {
                self.outlived += 1;
                Some(Say::Line(format!("{name} passes: take it off {}", super::known::PATH)))
            }
        }
    }

    /// A line that a successful test printed, or the heading of its output.
    fn success(&mut self, bare: &str) {
        if bare.starts_with("---- ") && bare.ends_with(" stdout ----") {
            self.counted = false;
        } else if !self.counted && bare.to_ascii_lowercase().starts_with("skipped:") {
            self.counted = true;
            self.skipped += 1;
            if !self.reasons.iter().any(|reason| reason == bare) {
                self.reasons.push(bare.to_owned());
            }
        }
    }

    /// `ok. 3 passed; 1 failed; …`
    fn verdict(&mut self, counts: &str) -> Vec<Say> {
        let count = |word: &str| -> u64 {
            let before = counts.split_once(word).map_or("", |(before, _)| before);
            before.split_whitespace().next_back().and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        let outcome = Outcome {
            passed: count(" passed").saturating_sub(self.skipped + self.outlived),
            failed: count(" failed").saturating_sub(self.known_failed) + self.outlived,
            skipped: self.skipped + count(" ignored"),
            known: self.known_failed,
        };
        self.total += outcome;
        self.open = false;
        let Outcome { passed, failed, skipped, known } = outcome;
        let mut says = Vec::new();
        if passed + failed + skipped + known > 0 {
            let verdict = if failed == 0 { "ok" } else { "FAILED" };
            let name = &self.name;
            let text =
                format!("{name}: {verdict}, {passed} passed, {failed} failed, {skipped} skipped");
            says.push(Say::Ended(text));
        }
        says.extend(self.reasons.drain(..).map(|reason| Say::Line(format!("    {reason}"))));
        self.part = Part::List;
        says
    }
}

/// The name of the runner that cargo announces, without the folder and the hash of its binary.
fn runner(bare: &str) -> Option<String> {
    if let Some(name) = bare.strip_prefix("Doc-tests ") {
        return Some(format!("{name} (documentation)"));
    }
    let (source, binary) = bare.strip_prefix("Running ")?.split_once(" (")?;
    let binary = binary.strip_suffix(')')?.rsplit('/').next()?;
    let name = binary.rsplit_once('-').map_or(binary, |(name, _)| name);
    let source = source.strip_prefix("unittests ").unwrap_or(source);
    Some(format!("{name} ({source})"))
}

#[cfg(test)]
mod tests {
    //! Real output of the harness, shortened.
    use super::*;

    fn read(text: &str) -> (Outcome, bool, Vec<Say>) {
        let mut reading = Reading::default();
        let says = text.lines().flat_map(|line| reading.line(line)).collect();
        (reading.total, reading.open, says)
    }

    #[test]
    fn verdicts_are_added_and_skipped_tests_are_not_passed() {
        let (total, open, says) = read(
            "   Compiling codec v0.1.0\n\
             \x20    Running unittests src/lib.rs (target/debug/deps/codec-0123456789abcdef)\n\
             \nrunning 3 tests\ntest a ... ok\ntest b ... ok\ntest c ... ok\n\
             \nsuccesses:\n\n---- b stdout ----\nskipped: no loop device\nskipped: again\n\
             \nsuccesses:\n    a\n    b\n    c\n\
             \ntest result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
             \x20    Running tests/x.rs (target/debug/deps/x-0123456789abcdef)\n\
             test d ... FAILED\n\
             \nfailures:\n\n---- d stdout ----\nassertion failed\n\nfailures:\n    d\n\
             \ntest result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!(total, Outcome { passed: 2, failed: 1, skipped: 1, known: 0 });
        assert!(!open);
        let text = format!("{says:?}");
        assert!(text.contains("codec (src/lib.rs): ok, 2 passed, 0 failed, 1 skipped"), "{text}");
        assert!(text.contains("skipped: no loop device") && text.contains("assertion failed"));
        assert!(!text.contains("Compiling"));
    }

    #[test]
    fn a_known_failure_has_to_fail() {
        let mut reading = Reading {
            known: ["resync::a", "resync::b"].map(str::to_owned).into(),
            ..Reading::default()
        };
        let says: Vec<Say> = "     Running tests/resync.rs (target/debug/deps/resync-01)\n\
             test a ... FAILED\ntest b ... ok\ntest c ... ok\n\
             test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n"
            .lines()
            .flat_map(|line| reading.line(line))
            .collect();
        assert_eq!(reading.total, Outcome { passed: 1, failed: 1, skipped: 0, known: 1 });
        assert!(format!("{says:?}").contains("resync::b passes: take it off"));
    }

    #[test]
    fn a_runner_that_dies_is_a_failure() {
        let (total, open, says) = read(
            "     Running unittests src/lib.rs (target/debug/deps/a-01)\n\nrunning 1 test\n\
             error: test failed, to rerun pass `-p a --lib`\n\
             \x20    Running unittests src/lib.rs (target/debug/deps/b-01)\n",
        );
        assert_eq!((total.failed, open), (1, true));
        assert!(says.contains(&Say::Line("a (src/lib.rs) FAILED: ended without a verdict".into())));
    }
}
