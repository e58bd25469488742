//! The reading of what Rust's test harness prints.
//!
//! One line per runner is printed as it ends; of a failing test, everything it printed. A test
//! that can not run here prints a line that begins with `skipped:` and passes; it is counted as
//! skipped. A test that is listed as a known failure must fail.

use std::collections::BTreeSet;

use super::Outcome;

/// What to print.
#[derive(Debug, PartialEq)]
pub enum Say {
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

/// Reads the output of runners that were called with `--show-output`, line by line.
#[derive(Default)]
pub struct Reading {
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
    /// Of what cargo prints, with a heading before each runner.
    pub fn of_cargo(known: &BTreeSet<String>) -> Reading {
        Reading { known: known.clone(), ..Reading::default() }
    }

    /// Of one runner, which is called `name`.
    pub fn of_runner(name: &str, known: &BTreeSet<String>) -> Reading {
        Reading { open: true, name: name.to_owned(), ..Reading::of_cargo(known) }
    }

    /// What came of it. A runner that has not given its verdict has failed.
    pub fn ended(&self) -> (Outcome, Option<String>) {
        let mut total = self.total;
        let lost = self.open.then(|| {
            total.failed += 1;
            format!("{} FAILED: ended without a verdict", self.name)
        });
        (total, lost)
    }

    /// The next line.
    pub fn line(&mut self, line: &str) -> Vec<Say> {
        let bare = line.trim();
        if let Some(name) = runner(bare) {
            let (total, lost) = self.ended();
            *self = Reading { total, ..Reading::of_runner(&name, &self.known) };
            return lost.into_iter().map(Say::Line).collect();
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
        let inside = test.strip_prefix(runner).is_some_and(|rest| rest.starts_with("::"));
        let name = if inside { test.to_owned() } else { format!("{runner}::{test}") };
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

/// The name of the runner that cargo announces.
fn runner(bare: &str) -> Option<String> {
    Some(format!("{} (documentation)", bare.strip_prefix("Doc-tests ")?))
}

#[cfg(test)]
mod tests {
    //! Real output of the harness, shortened.
    use super::*;

    fn read(name: &str, known: &[&str], text: &str) -> (Outcome, Vec<Say>) {
        let known = known.iter().map(|&name| name.to_owned()).collect();
        let mut reading = match name {
            "cargo" => Reading::of_cargo(&known),
            name => Reading::of_runner(name, &known),
        };
        let mut says: Vec<Say> = text.lines().flat_map(|line| reading.line(line)).collect();
        let (outcome, lost) = reading.ended();
        says.extend(lost.map(Say::Line));
        (outcome, says)
    }

    #[test]
    fn a_skipped_test_has_not_passed() {
        let (total, says) = read(
            "codec (src/lib.rs)",
            &[],
            "\nrunning 3 tests\ntest a ... ok\ntest b ... ok\ntest c ... ok\n\
             \nsuccesses:\n\n---- b stdout ----\nskipped: no loop device\nskipped: again\n\
             \nsuccesses:\n    a\n    b\n    c\n\
             \ntest result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!(total, Outcome { passed: 2, skipped: 1, ..Outcome::default() });
        let text = format!("{says:?}");
        assert!(text.contains("codec (src/lib.rs): ok, 2 passed, 0 failed, 1 skipped"), "{text}");
        assert!(text.contains("skipped: no loop device"), "{text}");
    }

    #[test]
    fn what_a_failed_test_printed_is_shown() {
        let (total, says) = read(
            "x (tests/x.rs)",
            &[],
            "test c ... ok\ntest d ... FAILED\n\
             \nfailures:\n\n---- d stdout ----\nassertion failed\n\nfailures:\n    d\n\
             \ntest result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!(total, Outcome { passed: 1, failed: 1, ..Outcome::default() });
        let text = format!("{says:?}");
        assert!(text.contains("assertion failed") && text.contains("x (tests/x.rs): FAILED"));
    }

    #[test]
    fn a_known_failure_has_to_fail() {
        let (total, says) = read(
            "resync (tests/resync.rs)",
            &["resync::a", "resync::b"],
            "test a ... FAILED\ntest b ... ok\ntest c ... ok\n\
             test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!(total, Outcome { passed: 1, failed: 1, skipped: 0, known: 1 });
        assert!(format!("{says:?}").contains("resync::b passes: take it off"));
    }

    #[test]
    fn a_module_names_its_tests_itself() {
        let text = "test resync::a ... FAILED\ntest resync::b ... ok\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let (total, _) = read("resync (tests/resync.rs)", &["resync::a"], text);
        assert_eq!(total, Outcome { passed: 1, failed: 0, skipped: 0, known: 1 });
    }

    #[test]
    fn a_runner_that_dies_is_a_failure() {
        let (total, says) = read("a (src/lib.rs)", &[], "\nrunning 1 test\n");
        assert_eq!(total.failed, 1);
        assert_eq!(says, [Say::Line("a (src/lib.rs) FAILED: ended without a verdict".into())]);
    }

    #[test]
    fn documentation_has_headings() {
        let (total, says) = read(
            "cargo",
            &[],
            "   Compiling codec v0.1.0\n   Doc-tests codec\n\nrunning 1 test\n\
             error: test failed, to rerun pass `-p codec --doc`\n   Doc-tests vocab\n\
             test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!(total, Outcome { passed: 2, failed: 1, ..Outcome::default() });
        let text = format!("{says:?}");
        assert!(!text.contains("Compiling"), "{text}");
        assert!(text.contains("codec (documentation) FAILED: ended without a verdict"), "{text}");
        assert!(text.contains("vocab (documentation): ok, 2 passed"), "{text}");
    }
}
