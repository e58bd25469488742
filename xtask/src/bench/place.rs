//! Where the disks of a measurement lie, and whether there is room for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::options::Disks;
use crate::process;
use crate::workspace::Metadata;

/// Room that stays free, MiB.
const SPARE: u64 = 512;
/// What our folders begin with; the process id follows.
const PREFIX: &str = "ashlar-bench-";

/// A folder for disks of a kind; it goes with it.
pub struct Place {
    pub folder: TempDir,
    /// As `df` names it.
    pub file_system: String,
    /// Around the page cache; not so on a tmpfs before Linux 6.6.
    pub direct: bool,
}

impl Place {
    /// Makes the folder, if there is room for disks of so many MiB in all: running out of it in
    /// the middle would be seen as a broken disk.
    pub fn new(disks: Disks, mib: u64) -> Result<Place> {
        let parent = parent(disks)?;
        let room = Room::of(&parent)?;
        report_leftovers(&parent);
        room.require(disks, mib, &parent)?;
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(&parent)?;
        let direct = direct_works(folder.path())?;
        Ok(Place { folder, file_system: room.file_system, direct })
    }
}

/// Names folders of runs that were killed. They are not removed: a process of another container
/// is not seen, and may use them.
fn report_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let path = entry.path();
            eprintln!("left behind by a run that was killed, please remove: {}", path.display());
        }
    }
}

/// Where disks of a kind are.
pub fn parent(disks: Disks) -> Result<PathBuf> {
    match disks {
        Disks::Ram => {
            let shm = PathBuf::from("/dev/shm");
            match Room::of(&shm)?.is_memory() {
                true => Ok(shm),
                false => bail!("/dev/shm is not in memory; leave it out with --disks file"),
            }
        }
        Disks::File => {
            let temporary = std::env::temp_dir();
            if !Room::of(&temporary)?.is_memory() {
                return Ok(temporary);
            }
            // As many systems have it today.
            let target = Metadata::of(&crate::workspace::root().join("Cargo.toml"))?;
            let folder = target.target_directory.join("bench");
            fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            match Room::of(&folder)?.is_memory() {
                true => bail!("set TMPDIR to a folder that is on a disk, or use --disks ram"),
                false => Ok(folder),
            }
        }
    }
}

/// A file system.
struct Room {
    file_system: String,
    free_mib: u64,
}

impl Room {
    fn of(folder: &Path) -> Result<Room> {
        let output = Command::new("df")
            .args(["--block-size=1M", "--output=fstype,avail"])
            .arg(folder)
            .output()
            .context("df could not be started")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let room = text.lines().nth(1).and_then(|line| {
            let (file_system, free) = line.trim().split_once(char::is_whitespace)?;
            let free_mib = free.trim().parse().ok()?;
            Some(Room { file_system: file_system.to_owned(), free_mib })
        });
        room.with_context(|| format!("{}: is it there?", folder.display()))
    }

    fn is_memory(&self) -> bool {
        ["tmpfs", "ramfs"].contains(&self.file_system.as_str())
    }

    fn require(&self, disks: Disks, mib: u64, parent: &Path) -> Result<()> {
        let needed = mib + SPARE;
        let mut free = self.free_mib;
        if disks == Disks::Ram {
            let text = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
            let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
            let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            free = free.min(kib.context("/proc/meminfo has no MemAvailable")? >> 10);
        }
        if free < needed {
            bail!(
                "{} has {free} MiB free, {needed} are needed; smaller volumes (--mib) or fewer \
                 (--volumes) need less",
                parent.display()
            );
        }
        Ok(())
    }
}

/// False on a tmpfs before Linux 6.6.
fn direct_works(folder: &Path) -> Result<bool> {
    let file = folder.join("direct");
    let mut dd = process::command("dd");
    dd.args(["if=/dev/zero", "bs=4096", "count=1", "oflag=direct", "status=none"]);
    dd.arg(format!("of={}", file.display()));
    let works = process::output(dd, Duration::from_secs(20)).is_ok();
    process::check_signals()?;
    fs::remove_file(file)?;
    Ok(works)
}
