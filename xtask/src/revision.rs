//! Another revision of the program, built beside this one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace::{git, root};

/// Letters of a commit that are shown.
const SHORT: usize = 9;

/// The commit that a user means.
pub fn commit(revision: &str) -> Result<String> {
    let named = format!("{revision}^{{commit}}");
    git(&["rev-parse", "--verify", "--quiet", "--end-of-options", &named])
        .ok()
        .with_context(|| format!("git knows no commit {revision:?}"))
}

/// A commit as it is shown.
pub fn short(commit: &str) -> &str {
    &commit[..SHORT]
}

/// Builds a commit in a tree of its own in `folder`, unless that was done before; the program.
pub fn build(commit: &str, folder: &Path, profile: &str) -> Result<PathBuf> {
    let name = format!("ashlar@{}", short(commit));
    let path = folder.join(&name);
    if path.is_file() {
        return Ok(path);
    }
    let tree = folder.join("tree");
    remove(&tree)?;
    fs::create_dir_all(&tree)?;
    extract(commit, &tree)?;
    eprintln!("building {name}, which takes some minutes the first time");
    let target = folder.join("build");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "-p", "ashlar", "--profile", profile])
        .env("CARGO_TARGET_DIR", &target)
        .current_dir(&tree)
        .status()
        .context("cargo could not be started")?;
    if !status.success() {
        bail!("{name} does not build");
    }
    let built = target.join(if profile == "dev" { "debug" } else { profile }).join("ashlar");
    // Under its own name only when it is whole.
    let whole = folder.join(format!("{name}.new"));
    fs::copy(built, &whole)?;
    fs::rename(&whole, &path)?;
    remove(&tree)?;
    Ok(path)
}

/// Takes the files of a commit out of git, which does not have to know of the tree.
fn extract(commit: &str, tree: &Path) -> Result<()> {
    let mut archive = Command::new("git")
        .args(["-c", "safe.directory=*", "archive", commit])
        .current_dir(root())
        .stdout(Stdio::piped())
        .spawn()
        .context("git could not be started")?;
    let files = archive.stdout.take().context("git archive has no output")?;
    // As new as they are here, not as old as the commit: by that cargo knows what it has built of another.
    let tar = Command::new("tar").args(["-x", "--touch", "-C"]).arg(tree).stdin(files).status();
    let tar = tar.context("tar could not be started")?;
    if !archive.wait()?.success() || !tar.success() {
        bail!("the files of {commit} could not be taken out of git");
    }
    Ok(())
}

fn remove(tree: &Path) -> Result<()> {
    match fs::remove_dir_all(tree) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| tree.display().to_string())
        }
        _ => Ok(()),
    }
}
