//! Which crate may import which, and what pure crates promise.
//!
//! The table is the one in ARCHITECTURE.md ("Code map"), so that the document can not go stale:
//! a row is `| crate | what | may import |`, crates in backticks, with `nothing` or `anything`.

use std::collections::BTreeMap;

use super::{Complaint, Tree};
use crate::workspace::Package;

const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// Crates without clock, randomness, threads, files and sockets.
const PURE: &[&str] = &["vocab", "codec", "crypt", "replication", "cluster"];

/// Third-party crates that pure crates may use: computation only.
const PURE_MAY_USE: &[&str] = &[
    "aes",
    "aes-gcm",
    "argon2",
    "base64",
    "crc32c",
    "hashbrown",
    "hmac",
    "md-5",
    "pbkdf2",
    "regex-lite",
    "serde",
    "serde_json",
    "sha1",
    "sha2",
    "zeroize",
];

/// What a pure crate's `clippy.toml` has to disallow.
const PURE_DISALLOWS: &[&str] = &[
    "std::time::Instant::now",
    "std::time::SystemTime::now",
    "std::thread::spawn",
    "std::collections::HashMap",
    "std::collections::HashSet",
];

/// What a crate may import.
#[derive(Debug, PartialEq)]
enum Allowed {
    Anything,
    Only(Vec<String>),
}

impl Allowed {
    fn has(&self, name: &str) -> bool {
        match self {
            Allowed::Anything => true,
            Allowed::Only(names) => names.iter().any(|n| n == name),
        }
    }
}

/// The rows of the table, wherever they stand in the document.
fn table(document: &str) -> BTreeMap<String, Allowed> {
    let mut rows = BTreeMap::new();
    for line in document.lines() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let [name, _, imports] = cells[..] else { continue };
        let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else {
            continue;
        };
        let allowed = match imports {
            "anything" => Allowed::Anything,
            "nothing" => Allowed::Only(Vec::new()),
            list => {
                Allowed::Only(list.split(',').map(|n| n.trim().trim_matches('`').into()).collect())
            }
        };
        rows.insert(name.to_owned(), allowed);
    }
    rows
}

/// Every import between our crates is in the table, and every crate has a row.
pub fn check(tree: &Tree) -> Vec<Complaint> {
    let table = table(tree.text(ARCHITECTURE));
    let mut complaints = Vec::new();
    for package in tree.metadata.members() {
        let name = package.name.as_str();
        let Some(allowed) = table.get(name) else {
            let text = format!("the code map has no row `{name}` with what it may import");
            complaints.push(Complaint::of(ARCHITECTURE, text));
            continue;
        };
        for import in ours(package) {
            if !allowed.has(import) {
                let text = format!("{name} may not import {import}; see {ARCHITECTURE}");
                complaints.push(Complaint::of(&manifest(tree, package), text));
            }
        }
    }
    for row in table.keys() {
        if !tree.metadata.members().any(|package| package.name == *row) {
            let text = format!("the code map has a row `{row}`, but there is no such crate");
            complaints.push(Complaint::of(ARCHITECTURE, text));
        }
    }
    complaints
}

/// Pure crates forbid `unsafe`, disallow clocks and threads, and use only pure dependencies.
pub fn pure_crates(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for package in tree.metadata.members().filter(|p| PURE.contains(&p.name.as_str())) {
        let lib = format!("crates/{}/src/lib.rs", package.name);
        if !tree.text(&lib).lines().any(|line| line == "#![forbid(unsafe_code)]") {
            complaints.push(Complaint::of(&lib, "a pure crate says #![forbid(unsafe_code)]"));
        }
        let clippy = format!("crates/{}/clippy.toml", package.name);
        for path in PURE_DISALLOWS.iter().filter(|path| !tree.text(&clippy).contains(**path)) {
            complaints.push(Complaint::of(&clippy, format!("a pure crate disallows {path}")));
        }
        for dependency in package.dependencies.iter().filter(|d| d.path.is_none()) {
            if !PURE_MAY_USE.contains(&dependency.name.as_str()) {
                let text = format!("{} is not for pure crates", dependency.name);
                complaints.push(Complaint::of(&manifest(tree, package), text));
            }
        }
    }
    complaints
}

/// Each crate takes the workspace's lints, and says in a README what it is.
pub fn every_crate(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for package in tree.metadata.members() {
        let manifest = manifest(tree, package);
        if !tree.text(&manifest).contains("[lints]\nworkspace = true") {
            complaints.push(Complaint::of(&manifest, "add [lints] workspace = true"));
        }
        let readme = manifest.replace("Cargo.toml", "README.md");
        if manifest.starts_with("crates/") && !tree.exists(&readme) {
            let text = "missing: what the crate is, what it is not, where to begin reading";
            complaints.push(Complaint::of(&readme, text));
        }
    }
    complaints
}

/// Names of our crates that a package imports, in any section of its manifest.
fn ours(package: &Package) -> impl Iterator<Item = &str> {
    package.dependencies.iter().filter(|d| d.path.is_some()).map(|d| d.name.as_str())
}

fn manifest(tree: &Tree, package: &Package) -> String {
    let path = package.manifest_path.to_string_lossy();
    let file = tree.files.iter().find(|file| path.ends_with(&format!("/{}", file.path)));
    // The root manifest is a suffix of every other; members are never at the root.
    let member = tree
        .files
        .iter()
        .find(|file| file.path != "Cargo.toml" && path.ends_with(&format!("/{}", file.path)));
    member.or(file).map_or_else(|| path.clone().into_owned(), |file| file.path.clone())
}

#[cfg(test)]
mod tests {
    //! The table is read as it is written.
    use super::*;

    #[test]
    fn rows_are_read_and_other_tables_are_not() {
        let rows = table(
            "| crate | one line | may import |\n|---|---|---|\n| `a` | x | nothing |\n\
             | `b` | y | `a` |\n| `c` | z | anything |\n| **pure** | no clock | |\n| `d` | x |\n",
        );
        assert_eq!(rows.len(), 3);
        assert_eq!(rows["a"], Allowed::Only(Vec::new()));
        assert!(rows["b"].has("a") && !rows["b"].has("c") && rows["c"].has("b"));
    }
}
