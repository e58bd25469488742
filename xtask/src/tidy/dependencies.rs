//! Third-party crates: licence, source, and why each of them is here.

use std::collections::BTreeSet;

use super::{Complaint, Tree, licence};
use crate::workspace::{Metadata, Package};

const LIST: &str = "docs/dependencies.md";
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// The only licence of our own code.
const OURS: &str = "Apache-2.0";

/// Every package anywhere in the two dependency graphs comes from crates.io under an accepted
/// licence.
pub fn licences_and_sources(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (lock, metadata) in [("Cargo.lock", &tree.metadata), ("fuzz/Cargo.lock", &tree.fuzz)] {
        for package in &metadata.packages {
            if let Some(text) = judge(package) {
                let Package { name, version, .. } = package;
                complaints.push(Complaint::of(lock, format!("{name} {version}: {text}")));
            }
        }
    }
    complaints
}

fn judge(package: &Package) -> Option<String> {
    let licence = package.license.as_deref().unwrap_or("");
    match package.source.as_deref() {
        None if licence == OURS => return None,
        None => return Some(format!("our crates are under {OURS}, not `{licence}`")),
        Some(CRATES_IO) => {}
        Some(other) => return Some(format!("comes from {other}, not from crates.io")),
    }
    match licence::acceptable(licence) {
        Ok(true) => None,
        Ok(false) => Some(format!("its licence `{licence}` is not one we accept")),
        Err(error) => Some(error),
    }
}

/// Every direct dependency has a line that says why, in order, and no line has outlived its crate.
pub fn explained(tree: &Tree) -> Vec<Complaint> {
    let mut wanted = direct(&tree.metadata);
    wanted.extend(direct(&tree.fuzz));
    let mut complaints = Vec::new();
    let mut listed = BTreeSet::new();
    let mut last = String::new();
    for (index, line) in tree.text(LIST).lines().enumerate() {
        let Some(names) = names(line) else { continue };
        let first = names[0].to_owned();
        if first < last {
            let text = format!("`{first}` stands after `{last}`; the list is sorted");
            complaints.push(Complaint::at(LIST, index + 1, text));
        }
        last = first;
        for name in names {
            if !wanted.contains(name) {
                let text = format!("no crate depends on `{name}` any more");
                complaints.push(Complaint::at(LIST, index + 1, text));
            }
            listed.insert(name.to_owned());
        }
    }
    for name in wanted.difference(&listed) {
        let text = format!("`{name}` has no line that says why we depend on it");
        complaints.push(Complaint::of(LIST, text));
    }
    complaints
}

fn direct(metadata: &Metadata) -> BTreeSet<String> {
    let dependencies = metadata.members().flat_map(|package| &package.dependencies);
    dependencies.filter(|d| d.path.is_none()).map(|d| d.name.clone()).collect()
}

/// The crates of a line such as ``- `a`, `b` (tests): why.``; `None` for other lines.
fn names(line: &str) -> Option<Vec<&str>> {
    let (head, why) = line.strip_prefix("- `")?.split_once(':')?;
    let names: Vec<&str> = head.split('`').step_by(2).collect();
    (!why.trim().is_empty()).then_some(names)
}

#[cfg(test)]
mod tests {
    //! Lines of the list.
    use super::*;

    #[test]
    fn a_line_may_explain_several_crates() {
        let line = "- `serde`, `serde_json` (tests): text";
        assert_eq!(names(line).unwrap(), ["serde", "serde_json"]);
        assert_eq!(names("- `libc`: types"), Some(vec!["libc"]));
        assert_eq!(names("- `libc`:"), None);
        assert_eq!(names("Some prose: `x`"), None);
    }
}
