//! `cargo xtask tidy`: rules that neither the compiler nor clippy checks.
//!
//! A rule reads the tree and returns its complaints; it never changes a file. Each names the file,
//! the line where there is one, and what to do.

mod arrows;
mod cases;
mod dependencies;
mod licence;
mod options;
mod rust;
mod text;

use std::fmt;

use anyhow::{Context, Result, bail};

use crate::compat;
use crate::workspace::{self, Metadata};

const HELP: &str = "\
cargo xtask tidy
    Checks the tree and lists what breaks a rule. Changes nothing.";

/// Something that breaks a rule.
#[derive(Debug, PartialEq)]
pub struct Complaint {
    file: String,
    /// Counted from 1; 0 if the file as a whole is meant.
    line: usize,
    text: String,
}

impl Complaint {
    /// About a line, counted from 1.
    pub fn at(file: &str, line: usize, text: impl Into<String>) -> Complaint {
        Complaint { file: file.to_owned(), line, text: text.into() }
    }

    /// About a file.
    pub fn of(file: &str, text: impl Into<String>) -> Complaint {
        Complaint::at(file, 0, text)
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.text),
            line => write!(f, "{}:{line}: {}", self.file, self.text),
        }
    }
}

/// The tree, read once.
pub struct Tree {
    /// Text files by path; other files have no text.
    files: Vec<File>,
    /// The workspace.
    metadata: Metadata,
    /// The workspace of the fuzz targets.
    fuzz: Metadata,
}

/// One file.
pub struct File {
    path: String,
    len: u64,
    text: Option<String>,
}

impl File {
    /// True for what others wrote and we only keep: captures, dumps, corpora.
    fn is_data(&self) -> bool {
        self.path.contains("/testdata/") || self.path.starts_with("fuzz/corpus/")
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

impl Tree {
    fn read() -> Result<Tree> {
        let root = workspace::root();
        let mut files = Vec::new();
        for path in workspace::files()? {
            let bytes = std::fs::read(root.join(&path)).with_context(|| path.clone())?;
            let len = bytes.len() as u64;
            files.push(File { path, len, text: String::from_utf8(bytes).ok() });
        }
        let metadata = Metadata::of(&root.join("Cargo.toml"))?;
        let fuzz = Metadata::of(&root.join("fuzz/Cargo.toml"))?;
        Ok(Tree { files, metadata, fuzz })
    }

    /// The text of a file; empty if there is no such file.
    fn text(&self, path: &str) -> &str {
        let file = self.files.iter().find(|file| file.path == path);
        file.and_then(|file| file.text.as_deref()).unwrap_or("")
    }

    fn exists(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        self.files.iter().any(|file| file.path == path || file.path.starts_with(&folder))
    }

    /// Our own Rust files.
    fn rust(&self) -> impl Iterator<Item = (&File, &str)> {
        let files = self.files.iter().filter(|file| file.is_rust() && !file.is_data());
        files.filter_map(|file| Some((file, file.text.as_deref()?)))
    }
}

type Rule = fn(&Tree) -> Vec<Complaint>;

/// Every rule with its name.
const RULES: &[(&str, Rule)] = &[
    ("crates import only what ARCHITECTURE.md allows", arrows::check),
    ("pure crates are marked pure", arrows::pure_crates),
    ("crates have a README and the workspace's lints", arrows::every_crate),
    ("licences and sources of dependencies", dependencies::licences_and_sources),
    ("dependencies are explained in docs/dependencies.md", dependencies::explained),
    ("Rust files say what lives there", rust::headers),
    ("unsafe only where it is allowed", rust::unsafe_code),
    ("no placeholders and no ignored tests", rust::placeholders),
    ("every file of tests is run", rust::tests_are_run),
    ("file sizes", text::sizes),
    ("no paths of one machine", text::machine_paths),
    ("links in Markdown lead somewhere", text::links),
    ("COMPAT.md lists every option", compat_tables),
    ("options that take effect are read", options::read),
    ("every hard case is tested or explained", cases::check),
];

/// The command.
pub fn main(arguments: &[String]) -> Result<()> {
    if !arguments.is_empty() {
        println!("{HELP}");
        return if arguments[0] == "--help" { Ok(()) } else { bail!("tidy takes no arguments") };
    }
    let broken = run()?;
    if broken > 0 {
        bail!("{broken} of {} rules are broken", RULES.len());
    }
    println!("{} rules hold", RULES.len());
    Ok(())
}

/// Prints the complaints of every rule, and returns how many rules have any.
pub fn run() -> Result<usize> {
    let tree = Tree::read()?;
    let mut broken = 0;
    for (name, rule) in RULES {
        let complaints = rule(&tree);
        if complaints.is_empty() {
            continue;
        }
        broken += 1;
        println!("rule broken: {name}");
        for complaint in complaints {
            println!("    {complaint}");
        }
    }
    Ok(broken)
}

/// How many rules there are.
pub const fn rules() -> usize {
    RULES.len()
}

fn compat_tables(tree: &Tree) -> Vec<Complaint> {
    match compat::renewed(tree.text("COMPAT.md")) {
        Ok(text) if text == tree.text("COMPAT.md") => Vec::new(),
        Ok(_) => vec![Complaint::of(
            "COMPAT.md",
            "its option tables are not those of `vocab::options`; run `cargo xtask compat`",
        )],
        Err(error) => vec![Complaint::of("COMPAT.md", error.to_string())],
    }
}

#[cfg(test)]
mod tests {
    //! The rules hold for this tree.

    #[test]
    fn the_tree_is_tidy() {
        assert_eq!(super::run().unwrap(), 0, "rules are broken, see above");
    }
}
