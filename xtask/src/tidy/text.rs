//! Rules about files as text: size, paths, links.

use std::collections::BTreeSet;

use super::{Complaint, File, Tree};

/// Lines after which a Rust file has to be listed: one concern in it probably wants to leave.
const RUST_LINES: usize = 1_000;

/// Rust files that may be longer, each with the reason.
const LONG: &[(&str, &str)] = &[];

/// Bytes a file may have; captures are the largest.
const FILE_BYTES: u64 = 1 << 20;

/// No huge file slips in, and no source file grows without a decision.
pub fn sizes(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in &tree.files {
        if file.len > FILE_BYTES {
            let text = format!("{} bytes; the limit is {FILE_BYTES}", file.len);
            complaints.push(Complaint::of(&file.path, text));
        }
    }
    for (file, text) in tree.rust() {
        let lines = text.lines().count();
        let listed = LONG.iter().any(|(path, _)| *path == file.path);
        if lines > RUST_LINES && !listed {
            let text = format!(
                "{lines} lines: move one concern to a file of its own, or list it in \
                 xtask/src/tidy/text.rs with the reason"
            );
            complaints.push(Complaint::of(&file.path, text));
        }
        if lines <= RUST_LINES && listed {
            let text = "short enough: take it off the list in xtask/src/tidy/text.rs";
            complaints.push(Complaint::of(&file.path, text));
        }
    }
    complaints
}

/// Nothing depends on where somebody happened to keep the tree: no home directories, no absolute
/// path to a checkout, nothing above the root.
pub fn machine_paths(tree: &Tree) -> Vec<Complaint> {
    // Put together here, so that this file is not its own first complaint.
    let folders = ["work", "home", "Users", "root"].map(|name| format!("/{name}/"));
    // What other programs printed says where they ran; our own files may well speak of /tmp.
    let recorded = ["", "tmp", ""].join("/");
    let above = ["..", "shared"].join("/");
    let mut complaints = Vec::new();
    for file in &tree.files {
        for (index, line) in file.text.as_deref().unwrap_or("").lines().enumerate() {
            let temporary = file.is_data().then_some(&recorded);
            let mut folders = folders.iter().chain(temporary);
            let absolute = folders.find(|folder| starts_a_path(line, folder));
            let found = absolute.or_else(|| line.contains(&above).then_some(&above));
            if let Some(path) = found {
                let text = format!("`{path}…` exists on one machine only");
                complaints.push(Complaint::at(&file.path, index + 1, text));
            }
        }
    }
    complaints
}

/// True if `folder` stands in `line` as the beginning of a path, not as a part of a longer one.
fn starts_a_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-/}".contains(c))
    })
}

/// Every relative link in a Markdown file names a file of the tree, and its anchor a heading.
pub fn links(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let markdown = |file: &&File| file.path.ends_with(".md") && !file.is_data();
    for file in tree.files.iter().filter(markdown) {
        let text = file.text.as_deref().unwrap_or("");
        for (line, target) in targets(text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() { file.path.clone() } else { beside(&file.path, path) };
            if !tree.exists(&path) {
                let text = format!("the link `{target}` leads to no file");
                complaints.push(Complaint::at(&file.path, line, text));
            } else if !anchor.is_empty() && !anchors(tree.text(&path)).contains(anchor) {
                let text = format!("{path} has no heading `#{anchor}`");
                complaints.push(Complaint::at(&file.path, line, text));
            }
        }
    }
    complaints
}

/// Line numbers and targets of the links of a Markdown text, outside of code.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        // Inside `code` a bracket is no link: every second piece between backticks is left out.
        for piece in line.split('`').step_by(2) {
            for (at, _) in piece.match_indices("](") {
                let target = &piece[at + 2..];
                if let Some(end) = target.find(')') {
                    found.push((number, target[..end].split(' ').next().unwrap_or("")));
                }
            }
        }
        // A link's text may itself be code: [`name`](target).
        for (at, _) in line.match_indices("`](") {
            let target = &line[at + 3..];
            if let Some(end) = target.find(')') {
                found.push((number, &target[..end]));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Numbered lines that are not in a fenced block.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

/// The anchors of the headings, formed as code hosts do: lower case, blanks to dashes, no
/// punctuation.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter_map(|(_, line)| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len()).then(|| title.trim())
    });
    let anchor = |title: &str| {
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    };
    headings.map(anchor).collect()
}

/// `path` as seen from the folder of `file`, without `.` and `..`.
fn beside(file: &str, path: &str) -> String {
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    //! Links and paths are found where they are, and only there.
    use super::*;
    use crate::workspace::Metadata;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "see [a](b.md#c) and [`d`](e.md)\n```\n[x](y)\n```\n`[x](y)` [f](g \"title\")";
        assert_eq!(targets(text), [(1, "b.md#c"), (1, "e.md"), (5, "g")]);
    }

    #[test]
    fn paths_are_taken_from_the_folder_of_the_file() {
        assert_eq!(beside("docs/design/x.md", "../testing.md"), "docs/testing.md");
        assert_eq!(beside("README.md", "./docs/"), "docs");
    }

    #[test]
    fn headings_become_anchors() {
        let found = anchors("# One: two\n```\n# no\n```\n## The write-path, `code`\n");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["one-two", "the-write-path-code"]);
    }

    #[test]
    fn recordings_are_searched_for_paths_of_the_machine_they_were_made_on() {
        let folder = ["", "tmp", ""].join("/");
        let file = |path: &str| super::super::File {
            path: path.to_owned(),
            len: 0,
            text: Some(format!("first\n\"uri\" : \"nbd+unix:///?socket={folder}x/s\"\n")),
        };
        let metadata = || Metadata {
            packages: Vec::new(),
            workspace_members: Vec::new(),
            target_directory: "target".into(),
        };
        let files = vec![file("xtask/testdata/a.json"), file("crates/a/src/lib.rs")];
        let tree = Tree { files, metadata: metadata(), fuzz: metadata() };
        let found: Vec<String> = machine_paths(&tree).iter().map(ToString::to_string).collect();
        let expected = format!("xtask/testdata/a.json:2: `{folder}…` exists on one machine only");
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_folder_inside_a_path_is_not_its_beginning() {
        let folder = ["", "home", ""].join("/");
        assert!(starts_a_path(&format!("cd {folder}me"), &folder));
        assert!(!starts_a_path(&format!("docs{folder}me"), &folder));
    }
}
