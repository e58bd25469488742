//! The list of what is known to fail: it may only get shorter.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};

use crate::workspace;

/// The list, from the root.
pub const PATH: &str = "crates/sim/known-failures.txt";

/// What it says.
#[derive(Debug, Default, PartialEq)]
pub struct Known {
    /// Tests, as `runner::test`.
    pub tests: BTreeSet<String>,
    /// At most so many of the seeds of the section `sim` break a rule.
    pub seeds: u64,
}

impl Known {
    /// Reads the list.
    pub fn read() -> Result<Known> {
        let text = std::fs::read_to_string(workspace::root().join(PATH)).context(PATH)?;
        Known::parse(&text)
    }

    fn parse(text: &str) -> Result<Known> {
        let mut known = Known::default();
        let lines = text.lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match line.split_once(' ') {
                Some(("seeds", count)) => {
                    known.seeds = count.parse().with_context(|| format!("{PATH}: {line}"))?;
                }
                Some(("test", name)) => {
                    known.tests.insert(name.to_owned());
                }
                _ => bail!("{PATH}: {line} is neither `seeds N` nor `test RUNNER::TEST`"),
            }
        }
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_test_or_the_bound_of_seeds() {
        let known = Known::parse("# why\n\nseeds 7\ntest resync::case_1\n").unwrap();
        assert_eq!((known.seeds, known.tests.len()), (7, 1));
        assert!(Known::parse("case_1\n").is_err());
    }
}
