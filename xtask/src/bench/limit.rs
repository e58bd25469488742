//! Disks of a known speed: control groups whose members may read and write a device only so fast.
//!
//! Several replicas on one machine share its disk. With a group for each, and limits far below what
//! the disk and the CPUs can do, every replica has a disk of its own whose speed is known, and fio
//! in another such group says what that disk gives without Ashlar. The kernel holds requests back
//! where they enter the block layer, so the limits hold for direct I/O and flushes, whoever makes
//! them: io_uring, libaio, or a worker of the kernel.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Where the kernel lists what is mounted.
const MOUNTS: &str = "/proc/self/mounts";
/// How often a group is tried to be removed: its last member may be just about to end.
const REMOVALS: usize = 100;

/// What the members of a group may do, per second and direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Requests.
    Requests(u64),
    /// MiB.
    Mib(u64),
}

/// A hierarchy of control groups that limits I/O, and a device.
#[derive(Clone, Debug)]
pub struct Limiter {
    root: PathBuf,
    version: Version,
    /// The device's numbers, `major:minor`.
    device: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// The controller `blkio`.
    One,
    /// The controller `io`.
    Two,
}

/// A group; it is removed with it, which needs its members to have ended.
pub struct Group {
    limiter: Limiter,
    folder: PathBuf,
}

impl Limiter {
    /// For the device that a folder is on.
    ///
    /// # Errors
    /// If this machine can not limit it, with the reason.
    pub fn of(folder: &Path) -> Result<Limiter> {
        let device = device(folder)?;
        let mounts = fs::read_to_string(MOUNTS).context(MOUNTS)?;
        let Some((root, version)) = hierarchy(&mounts, |root| {
            let path = root.join("cgroup.controllers");
            fs::read_to_string(path).is_ok_and(|list| list.split_whitespace().any(|c| c == "io"))
        }) else {
            bail!("no mounted hierarchy of control groups has the controller io or blkio");
        };
        Ok(Limiter { root, version, device })
    }

    /// Makes a group, without limits so far.
    ///
    /// # Errors
    /// Most often because only root may.
    pub fn group(&self, name: &str) -> Result<Group> {
        if self.version == Version::Two {
            let path = self.root.join("cgroup.subtree_control");
            write(&path, "+io")?;
        }
        let folder = self.root.join(format!("ashlar-bench-{}-{name}", std::process::id()));
        fs::create_dir(&folder).with_context(|| {
            format!("{}: the group could not be made; it takes root", folder.display())
        })?;
        Ok(Group { limiter: self.clone(), folder })
    }
}

impl Group {
    /// The file that members are written to.
    pub fn members(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Takes a running process in, with all of its threads.
    pub fn add(&self, pid: u32) -> Result<()> {
        write(&self.members(), &pid.to_string())
    }

    /// Sets the limit; one that was set before is none any more.
    pub fn set(&self, limit: Limit) -> Result<()> {
        let settings = settings(self.limiter.version, &self.limiter.device, limit);
        settings.iter().try_for_each(|(file, line)| write(&self.folder.join(file), line))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..REMOVALS {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("left behind, please remove: {}", self.folder.display());
    }
}

/// Files of a group and what is written there.
fn settings(version: Version, device: &str, limit: Limit) -> Vec<(String, String)> {
    let (requests, bytes) = match limit {
        Limit::Requests(requests) => (Some(requests), None),
        Limit::Mib(mib) => (None, Some(mib << 20)),
    };
    match version {
        Version::One => {
            let pairs = [("bps", bytes), ("iops", requests)];
            let files = pairs.into_iter().flat_map(|(unit, value)| {
                ["read", "write"].map(|way| (format!("blkio.throttle.{way}_{unit}_device"), value))
            });
            // 0 is no limit.
            files.map(|(file, value)| (file, format!("{device} {}", value.unwrap_or(0)))).collect()
        }
        Version::Two => {
            let words = |value: Option<u64>| value.map_or("max".to_owned(), |n| n.to_string());
            let (requests, bytes) = (words(requests), words(bytes));
            let line =
                format!("{device} rbps={bytes} wbps={bytes} riops={requests} wiops={requests}");
            vec![("io.max".to_owned(), line)]
        }
    }
}

/// Where groups are made, and of which kind. `has_io` says of a hierarchy of version 2 whether it
/// has the controller: it is in one hierarchy only.
fn hierarchy(mounts: &str, has_io: impl Fn(&Path) -> bool) -> Option<(PathBuf, Version)> {
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, root, kind, options, ..] = fields[..] else { return None };
        let root = PathBuf::from(root);
        match kind {
            "cgroup2" if has_io(&root) => Some((root, Version::Two)),
            "cgroup" if options.split(',').any(|option| option == "blkio") => {
                Some((root, Version::One))
            }
            _ => None,
        }
    })
}

/// The numbers of the whole disk under a folder: a partition can not be limited.
fn device(folder: &Path) -> Result<String> {
    let number = fs::metadata(folder).with_context(|| folder.display().to_string())?.dev();
    // As glibc's `major` and `minor` take it apart.
    let major = (number >> 32 & 0xffff_f000) | (number >> 8 & 0xfff);
    let minor = (number >> 12 & 0xffff_ff00) | (number & 0xff);
    let device = format!("{major}:{minor}");
    let Ok(entry) = fs::canonicalize(format!("/sys/dev/block/{device}")) else {
        bail!("{} is not on a block device of its own ({device})", folder.display());
    };
    if !entry.join("partition").exists() {
        return Ok(device);
    }
    let disk = entry.parent().unwrap_or(&entry).join("dev");
    let text = fs::read_to_string(&disk).with_context(|| disk.display().to_string())?;
    Ok(text.trim().to_owned())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)
        .with_context(|| format!("{text:?} could not be written to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTED: &str = "\
proc /proc proc rw 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
cgroup /sys/fs/cgroup/blkio cgroup rw,relatime,blkio 0 0
";

    #[test]
    fn the_hierarchy_that_has_the_controller_is_taken() {
        let old = (PathBuf::from("/sys/fs/cgroup/blkio"), Version::One);
        let new = (PathBuf::from("/sys/fs/cgroup/unified"), Version::Two);
        assert_eq!(hierarchy(MOUNTED, |_| false), Some(old));
        assert_eq!(hierarchy(MOUNTED, |_| true), Some(new));
        assert_eq!(hierarchy("proc /proc proc rw 0 0\n", |_| true), None);
    }

    #[test]
    fn a_limit_takes_the_place_of_the_one_before() {
        let old = settings(Version::One, "8:0", Limit::Requests(500));
        let line = |file: &str| {
            let found = old.iter().find(|(name, _)| name == file);
            found.map(|(_, line)| line.as_str())
        };
        assert_eq!(line("blkio.throttle.read_iops_device"), Some("8:0 500"));
        assert_eq!(line("blkio.throttle.write_iops_device"), Some("8:0 500"));
        assert_eq!(line("blkio.throttle.read_bps_device"), Some("8:0 0"));
        assert_eq!(line("blkio.throttle.write_bps_device"), Some("8:0 0"));
        let new = settings(Version::Two, "8:0", Limit::Mib(2));
        let line = "8:0 rbps=2097152 wbps=2097152 riops=max wiops=max";
        assert_eq!(new, [("io.max".to_owned(), line.to_owned())]);
    }

    #[test]
    fn what_is_in_memory_has_no_disk_to_limit() {
        let error = device(Path::new("/proc")).unwrap_err().to_string();
        assert!(error.contains("/proc is not on a block device"), "{error}");
    }
}
