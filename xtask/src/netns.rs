//! Network namespaces of a run: named after its process, so that the next run finds what one that
//! was killed has left.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Runs `ip`.
///
/// # Errors
/// With its words, if it refuses.
pub fn ip(words: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(words).output().context("`ip` could not be started")?;
    if !output.status.success() {
        bail!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Kills what runs in a namespace and removes it. Nobody is told of failures: it is what happens
/// on the way out.
pub fn remove(name: &str) {
    if let Ok(output) = Command::new("ip").args(["netns", "pids", name]).output() {
        for pid in String::from_utf8_lossy(&output.stdout).split_whitespace() {
            let _ = Command::new("kill").args(["-KILL", pid]).status();
        }
    }
    let _ = Command::new("ip").args(["netns", "delete", name]).output();
}

/// Removes the namespaces, named by `prefix`, a process id and what may follow behind a dash, of
/// runs whose process is gone.
pub fn sweep(prefix: &str) {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(prefix).and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove(&name);
        }
    }
}
