//! Kernels and file systems of the guests, each kind built once by xtask/vm/build.sh.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::guest::Kind;
use crate::workspace;

/// The recipe: images are built anew when it has changed.
const RECIPE: &[&str] = &["build.sh", "init", "xshim.c"];

/// Holds the recipe's hash, once everything of that kind is there.
fn stamp(kind: Kind) -> String {
    format!("recipe-{kind}")
}

/// The built images.
pub struct Images {
    directory: PathBuf,
}

impl Images {
    /// Those of a kind that were built before by the same recipe, or new ones.
    ///
    /// # Errors
    /// If they have to be built and can not.
    pub fn get(kind: Kind) -> Result<Images> {
        let directory = workspace::root().join("target").join("vm");
        let built = fs::read_to_string(directory.join(stamp(kind))).unwrap_or_default();
        if built == recipe()? { Ok(Images { directory }) } else { Images::build(kind) }
    }

    /// Builds them.
    ///
    /// # Errors
    /// If packages are missing, can not be installed, or do not have what is needed.
    pub fn build(kind: Kind) -> Result<Images> {
        let directory = workspace::root().join("target").join("vm");
        println!("building {kind} guests from Debian packages, once; this takes some minutes");
        let _ = fs::remove_file(directory.join(stamp(kind)));
        let script = workspace::root().join("xtask/vm/build.sh");
        let status =
            Command::new("bash").arg(&script).arg(&directory).arg(kind.to_string()).status();
        let status = status.context("bash could not be started")?;
        if !status.success() {
            bail!(
                "{} failed; it says why above. It needs root, apt and its sources",
                script.display()
            );
        }
        fs::write(directory.join(stamp(kind)), recipe()?)?;
        Ok(Images { directory })
    }

    /// A file of theirs.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

fn recipe() -> Result<String> {
    let mut hasher = DefaultHasher::new();
    for name in RECIPE {
        let path = workspace::root().join("xtask/vm").join(name);
        read(&path)?.hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}
