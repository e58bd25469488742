//! What the other commands ask about the tree: its root, its files, its packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The folder of the root manifest.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask is a folder of the workspace").to_owned()
}

/// Every file that is tracked or about to be: what git knows and what it does not ignore,
/// relative to the root, sorted.
///
/// # Errors
/// If git is missing or this is not a work tree.
pub fn files() -> Result<Vec<String>> {
    let output = Command::new("git")
        // The tree may belong to another user than the one who tests it, as in a container.
        .args(["-c", "safe.directory=*", "-c", "core.quotePath=off"])
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .context("git could not be started; the checks need the list of files from it")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let mut files: Vec<String> = text.lines().map(str::to_owned).collect();
    files.sort();
    files.dedup();
    // Deleted, but not yet committed so.
    files.retain(|file| root().join(file).is_file());
    Ok(files)
}

/// What git says, without the end of the line.
///
/// # Errors
/// If git is missing, or says that it could not.
pub fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        // The tree may belong to another user than the one who measures it.
        .args(["-c", "safe.directory=*"])
        .args(arguments)
        .current_dir(root())
        .output()
        .context("git could not be started")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("git {}: {}", arguments.join(" "), text.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The part of `cargo metadata` that is read here.
#[derive(Deserialize)]
pub struct Metadata {
    /// Members and everything they depend on, on any platform.
    pub packages: Vec<Package>,
    /// Ids of the members.
    pub workspace_members: Vec<String>,
    /// Where cargo builds.
    pub target_directory: PathBuf,
}

/// One package.
#[derive(Deserialize)]
pub struct Package {
    /// Opaque, as in `workspace_members`.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SPDX expression, if it states one.
    pub license: Option<String>,
    /// Where it comes from; `None` for a folder of the workspace.
    pub source: Option<String>,
    /// What its manifest asks for.
    pub dependencies: Vec<Dependency>,
    /// Its manifest.
    pub manifest_path: PathBuf,
}

/// One dependency of a manifest.
#[derive(Deserialize)]
pub struct Dependency {
    /// The package's name (not what it is renamed to).
    pub name: String,
    /// The folder, if it is one of ours.
    pub path: Option<PathBuf>,
}

impl Metadata {
    /// Reads the metadata of the workspace of `manifest`, as locked.
    ///
    /// # Errors
    /// If cargo refuses, which it does when the lock file does not fit the manifests.
    pub fn of(manifest: &Path) -> Result<Metadata> {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked", "--manifest-path"])
            .arg(manifest)
            .output()
            .context("cargo could not be started")?;
        if !output.status.success() {
            bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        serde_json::from_slice(&output.stdout).context("cargo metadata is not as expected")
    }

    /// The packages that are ours.
    pub fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }
}
