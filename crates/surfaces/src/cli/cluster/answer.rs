//! Answers of the controller: entries with a code, and what they come to for a command.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use super::super::error::Error;

/// Number of an answer about an object that is not there.
const NOT_FOUND: u16 = 3000;
/// Number of an answer when the store of the controller failed: nothing was changed.
const DATABASE: u16 = 100;
/// Number of the warning that agents are still at work.
const NOT_FOLLOWED: u16 = 1003;

/// One entry of an answer, in LINSTOR's form.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Entry {
    /// Kind of entry, operation, object and number.
    pub ret_code: i64,
    /// What it is about, in a sentence.
    pub message: String,
    /// Why.
    pub cause: String,
    /// More for who wants to know.
    pub details: String,
    /// What to do about it.
    pub correction: String,
    /// Ids of error reports about it.
    pub error_report_ids: Vec<String>,
    /// What a dry run came to.
    pub dry_run: Option<Value>,
}

/// What an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// It was done.
    Success,
    /// Something to know.
    Info,
    /// Something to look at.
    Warning,
    /// It was not done.
    Error,
}

impl Entry {
    /// What it is.
    pub fn severity(&self) -> Severity {
        match self.ret_code.cast_unsigned() >> 62 {
            0 => Severity::Success,
            1 => Severity::Info,
            2 => Severity::Warning,
            _ => Severity::Error,
        }
    }

    /// The number that names the rule.
    pub fn number(&self) -> u16 {
        // The lowest fifteen bits.
        (self.ret_code & 0x7fff) as u16
    }
}

impl fmt::Display for Entry {
    /// The sentence, then why, what to do, and the details, each on a line of its own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for (word, text) in [("why: ", &self.cause), ("next:", &self.correction)] {
            if !text.is_empty() {
                write!(f, "\n  {word} {text}")?;
            }
        }
        for line in self.details.lines().filter(|line| !line.is_empty()) {
            write!(f, "\n  {line}")?;
        }
        if !self.error_report_ids.is_empty() {
            let ids = self.error_report_ids.join(" ");
            write!(f, "\n  more: `ashlar error-report show {ids}`")?;
        }
        Ok(())
    }
}

/// A change that the controller has taken on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// What was said beside it.
    pub notes: Vec<Entry>,
    /// What is not done yet, in sentences: what waits for a node, or for data.
    pub waits: Vec<String>,
}

/// What an answer to a change comes to.
///
/// # Errors
/// If it was refused, or taken on and a node could not follow.
pub fn judge(what: &str, mut entries: Vec<Entry>) -> Result<Done, Error> {
    let has = |severity| entries.iter().any(|entry: &Entry| entry.severity() == severity);
    let done = has(Severity::Success);
    let absent = !done && entries.iter().any(|entry| entry.number() == NOT_FOUND);
    if has(Severity::Error) || absent {
        let failed =
            |entry: &Entry| entry.severity() == Severity::Error && entry.number() == DATABASE;
        let failed = done || entries.iter().any(failed);
        let what = what.to_owned();
        // What was done is not what the operator has to read then.
        entries.retain(|entry| matches!(entry.severity(), Severity::Warning | Severity::Error));
        return Err(match failed {
            true => Error::Troubled { what, taken_on: done, entries },
            false => Error::Denied { what, entries },
        });
    }
    let successes = entries.iter().filter(|entry| entry.severity() == Severity::Success);
    let waits = successes.flat_map(|entry| entry.details.lines()).map(str::to_owned).collect();
    // That agents are at work is for the wait that follows to tell.
    entries.retain(|entry| entry.severity() != Severity::Success && entry.number() != NOT_FOLLOWED);
    Ok(Done { notes: entries, waits })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(severity: u64, number: u64, message: &str) -> Entry {
        let ret_code = (severity << 62 | 0x0300_0000 | number).cast_signed();
        Entry { ret_code, message: message.to_owned(), ..Entry::default() }
    }

    #[test]
    fn codes_are_taken_apart_as_the_reference_has_them() {
        for (code, severity, number) in [
            (20_709_377, Severity::Success, 1),
            (-9_223_372_036_801_033_288, Severity::Warning, 3000),
            (-4_611_686_018_407_201_820, Severity::Error, 996),
        ] {
            let entry = Entry { ret_code: code, ..Entry::default() };
            assert_eq!((entry.severity(), entry.number()), (severity, number));
        }
    }

    #[test]
    fn a_refusal_is_told_from_a_change_that_a_node_could_not_follow() {
        let (good, bad) = (entry(0, 1, "made"), entry(3, 998, "node n1 could not create volume"));
        let refused = judge("x", vec![entry(3, 996, "it can not be placed")]).unwrap_err();
        assert!(matches!(&refused, Error::Denied { .. }) && refused.status() == 10, "{refused}");
        let failed = judge("x", vec![good.clone(), bad]).unwrap_err();
        assert!(matches!(&failed, Error::Troubled { taken_on: true, .. }), "{failed}");
        assert_eq!(failed.status(), 20);
        assert!(!failed.to_string().contains("made"), "{failed}");
        let store = judge("x", vec![entry(3, 100, "nothing was changed")]).unwrap_err();
        assert!(matches!(&store, Error::Troubled { taken_on: false, .. }) && store.status() == 20);
        let absent = judge("x", vec![entry(2, 3000, "v does not exist")]).unwrap_err();
        assert_eq!(absent.status(), 10);
        let also = judge("x", vec![good, entry(2, 3000, "one of them was not there")]).unwrap();
        assert_eq!(also.notes.len(), 1);
    }

    #[test]
    fn what_is_waited_for_is_kept_and_that_it_goes_on_is_not() {
        let mut good = entry(0, 2, "node n1 is being evacuated");
        good.details = "n1 is in use\nn2 is away".to_owned();
        let done = judge("x", vec![good, entry(2, 1003, "at work"), entry(1, 10_003, "note")]);
        let done = done.unwrap();
        assert_eq!(done.waits, ["n1 is in use", "n2 is away"]);
        assert_eq!(done.notes.len(), 1);
    }

    #[test]
    fn an_entry_is_told_with_cause_and_next_step() {
        let mut told = entry(3, 996, "v can not be placed");
        told.cause = "no storage pool fits".to_owned();
        told.correction = "add nodes".to_owned();
        told.details = "pool p of node n: full\n".to_owned();
        let expected = "v can not be placed\n  why:  no storage pool fits\n  next: add nodes\n  \
                        pool p of node n: full";
        assert_eq!(told.to_string(), expected);
    }
}
