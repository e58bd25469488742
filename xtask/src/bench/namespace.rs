//! A namespace: processes that see folders of ours in the place of the machine's, and that all end
//! together, whatever they become the children of. It takes root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::process::{self, Daemon};

/// How long its first process may take to be there, and its processes to be gone.
const PATIENCE: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(10);

/// Pairs of folders up to a `--`, then the program that becomes the first process.
const SCRIPT: &str = r#"
mount -t proc proc /proc || exit
while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit; shift 2; done
shift
exec "$@"
"#;

/// A running one. The kernel ends its processes when the first one ends.
pub struct Namespace {
    /// `unshare`, whose child is the first process.
    parent: Daemon,
    first: u32,
}

impl Namespace {
    /// Starts `program` where each of `folders` is seen at another place too, one after the other.
    pub fn start(program: &[&str], folders: &[(PathBuf, &str)], log: PathBuf) -> Result<Namespace> {
        let mut command = process::command("unshare");
        command.args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--",
            "sh",
            "-c",
            SCRIPT,
            "sh",
        ]);
        for (ours, theirs) in folders {
            command.arg(ours).arg(theirs);
        }
        command.arg("--").args(program);
        let mut parent = Daemon::start(command, log)?;
        let children = format!("/proc/{0}/task/{0}/children", parent.pid());
        let first = || fs::read_to_string(&children).ok()?.trim().parse::<u32>().ok();
        parent.wait("its first process is there", PATIENCE, || first().is_some())?;
        let first = first().context("the namespace has ended")?;
        Ok(Namespace { parent, first })
    }

    /// True if this user can make one.
    pub fn is_possible() -> bool {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--pid", "--fork", "--kill-child", "true"]);
        unshare.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    /// The first process, by which others find the namespace.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Fails, with the end of its log, if the first process has ended.
    pub fn check(&mut self) -> Result<()> {
        self.parent.check()
    }

    /// Waits until something is true, as long as the first process lives.
    pub fn wait(&mut self, what: &str, patience: Duration, done: impl Fn() -> bool) -> Result<()> {
        self.parent.wait(what, patience, done)
    }

    /// Its processes with the names of their programs.
    pub fn processes(&self) -> Result<Vec<(u32, String)>> {
        let own = fs::read_link(format!("/proc/{}/ns/pid", self.first))?;
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").context("/proc")?.flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
            let folder = entry.path();
            // Of one that has just ended nothing can be read, or nothing is there.
            if fs::read_link(folder.join("ns/pid")).is_ok_and(|namespace| namespace == own)
                && let Ok(line) = fs::read_to_string(folder.join("cmdline"))
                && let Some(program) = line.split('\0').next().filter(|word| !word.is_empty())
            {
                let name = Path::new(program).file_name().unwrap_or_default();
                found.push((pid, name.to_string_lossy().into_owned()));
            }
        }
        Ok(found)
    }
}

impl Drop for Namespace {
    /// When it returns nobody writes to the folders any more.
    fn drop(&mut self) {
        self.parent.end();
        let begun = Instant::now();
        while lives(self.first) && begun.elapsed() < PATIENCE {
            std::thread::sleep(TICK);
        }
    }
}

/// False also for a process whose end only nobody has asked for yet: the first one of a namespace
/// comes to that after all others.
fn lives(pid: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = text.rsplit_once(')').and_then(|(_, rest)| rest.trim().chars().next());
    state.is_some_and(|state| state != 'Z')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_its_processes_end_with_it_and_see_its_folders() {
        if !Namespace::is_possible() {
            eprintln!("skipped: takes root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        // A child that leaves its session is still one of the namespace.
        let script = "setsid sleep 600 & echo here >/mnt/seen; exec sleep 600";
        let folders = [(path.to_owned(), "/mnt")];
        let mut namespace =
            Namespace::start(&["sh", "-c", script], &folders, path.join("log")).unwrap();
        namespace.wait("it writes", PATIENCE, || path.join("seen").exists()).unwrap();
        let two =
            |found: &[(u32, String)]| found.iter().filter(|(_, name)| name == "sleep").count() == 2;
        let begun = Instant::now();
        let mut found = namespace.processes().unwrap();
        while !two(&found) && begun.elapsed() < PATIENCE {
            found = namespace.processes().unwrap();
        }
        assert!(two(&found), "{found:?}");
        let mut list = process::command_within(namespace.first(), "ls");
        list.arg("/mnt");
        assert!(process::output(list, PATIENCE).unwrap().contains("seen"));
        drop(namespace);
        assert!(found.iter().all(|(pid, _)| !lives(*pid)), "{found:?}");
    }
}
