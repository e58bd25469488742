//! The hard cases of the behaviour reference: each has a test, or a reason why it has none.
//!
//! A test names its case at the end of its own name, `…_case_N`. The cases without one are the rows
//! of the table under [`HEADING`] in [`LIST`]: numbers, and the reason.

use std::collections::BTreeMap;

use super::{Complaint, Tree};

/// Where the cases without a test are explained.
const LIST: &str = "docs/testing.md";
const HEADING: &str = "### Hard cases without a test";

/// How many there are; they are counted from 1.
const CASES: usize = 106;

/// Every case is tested or explained, none is both, and no other number is used.
pub fn check(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut tested = BTreeMap::new();
    for (file, text) in tree.rust() {
        for (line, case) in tests(text) {
            if (1..=CASES).contains(&case) {
                tested.insert(case, (file.path.as_str(), line));
            } else {
                let text = format!("there is no hard case {case}, they end with {CASES}");
                complaints.push(Complaint::at(&file.path, line, text));
            }
        }
    }
    let explained = match explained(tree.text(LIST)) {
        Ok(explained) => explained,
        Err((line, text)) => return vec![Complaint::at(LIST, line, text)],
    };
    for case in 1..=CASES {
        match (tested.get(&case), explained.get(&case)) {
            (None, None) => {
                let text = format!("hard case {case} has neither a test nor a reason here");
                complaints.push(Complaint::of(LIST, text));
            }
            (Some((path, at)), Some(line)) => {
                let text = format!("hard case {case} has a test, {path}:{at}; take it off");
                complaints.push(Complaint::at(LIST, *line, text));
            }
            _ => {}
        }
    }
    complaints
}

/// Lines and numbers of the cases that functions marked as tests name.
fn tests(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut marked = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line == "#[test]" {
            marked = true;
        } else if let Some(rest) = line.strip_prefix("fn ") {
            let name = rest.split('(').next().unwrap_or("");
            let case = name.rsplit_once("_case_").and_then(|(_, case)| case.parse().ok());
            found.extend(case.filter(|_| marked).map(|case| (index + 1, case)));
            marked = false;
        }
    }
    found
}

/// Lines of the cases without a test, by number; a line that can not be read is an error.
fn explained(text: &str) -> Result<BTreeMap<usize, usize>, (usize, String)> {
    let mut cases = BTreeMap::new();
    let section = text.lines().enumerate().skip_while(|(_, line)| *line != HEADING).skip(1);
    for (index, line) in section.take_while(|(_, line)| !line.starts_with('#')) {
        let at = index + 1;
        let Some(row) = line.strip_prefix('|').and_then(|row| row.strip_suffix('|')) else {
            continue;
        };
        let (numbers, reason) = row.split_once('|').unwrap_or((row, ""));
        if numbers.trim() == "case" || numbers.starts_with('-') {
            continue;
        }
        if reason.trim().is_empty() {
            return Err((at, "say why these cases have no test".to_owned()));
        }
        for number in numbers.split(',') {
            let number = number.trim();
            let case = number.parse().ok().filter(|case| (1..=CASES).contains(case));
            let Some(case) = case else {
                return Err((at, format!("`{number}` is no hard case; they end with {CASES}")));
            };
            if cases.insert(case, at).is_some() {
                return Err((at, format!("hard case {case} stands here twice")));
            }
        }
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    //! Names and rows are read as they are written.
    use super::*;

    #[test]
    fn only_tests_name_cases() {
        let text = "#[test]\nfn a_case_7() {\n}\nfn helper_case_8() {}\n    #[test]\n    \
                    fn b() {}\n#[test]\nfn c_case_12() {}\n#[test]\nfn no_case_at_all() {}\n";
        assert_eq!(tests(text), [(2, 7), (8, 12)]);
    }

    #[test]
    fn rows_of_the_section_are_read_and_others_are_not() {
        let table = "| 1 | x |\n### Hard cases without a test\n\n| case | why |\n|---|---|\n\
                     | 3, 4 | no |\n| 9 | never |\n### Next\n| 5 | x |\n";
        let cases = explained(table).unwrap();
        assert_eq!(cases.into_iter().collect::<Vec<_>>(), [(3, 6), (4, 6), (9, 7)]);
        let broken = |row: &str| explained(&format!("{HEADING}\n{row}\n")).unwrap_err().0;
        assert_eq!(broken("| 3 | |"), 2);
        assert_eq!(broken("| 107 | x |"), 2);
        assert_eq!(broken("| 3 | x |\n| 3 | y |"), 3);
    }
}
