//! Files beside the engine that drbdadm and drbdmeta share with drbdsetup (drbdsetup contract §3.6,
//! §4.4): locks, links to configuration files, and where the metadata of grown disks was.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fcntl_lock};
use vocab::Minor;

use super::error::Stop;

/// How long a lock is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it is tried.
const RETRY: Duration = Duration::from_millis(20);

/// Where these files are.
#[derive(Clone, Debug)]
pub(super) struct Places {
    root: PathBuf,
}

impl Places {
    /// Below a directory, which is `/` but in tests.
    pub(super) fn below(root: &Path) -> Places {
        Places { root: root.to_owned() }
    }

    /// Whether the kernel has a device of that minor.
    pub(super) fn kernel_has(&self, minor: Minor) -> bool {
        let devices = [
            format!("sys/block/drbd{minor}"),
            format!("sys/devices/virtual/block/drbd{minor}"),
            format!("sys/devices/virtual/bdi/147:{minor}"),
        ];
        devices.iter().any(|path| self.root.join(path).exists())
    }

    /// drbdadm's link from a minor to its configuration is of no use any more.
    pub(super) fn forget_minor(&self, minor: Minor) {
        // It may never have been there.
        let _ = fs::remove_file(self.root.join(format!("run/drbd/drbd-minor-{minor}.conf")));
    }

    /// drbdadm's link from a resource to its configuration is of no use any more.
    pub(super) fn forget_resource(&self, name: &str) {
        if !name.contains('/') {
            let _ = fs::remove_file(self.root.join(format!("run/drbd/drbd-resource-{name}.conf")));
        }
    }

    /// Keeps drbdmeta, and other commands, from the disk of a minor while it is being changed.
    /// Newer tools lock the first file, older ones the second.
    pub(super) fn lock(&self, minor: Minor) -> Result<Lock, Stop> {
        let mut held = Vec::new();
        for directory in ["run/drbd/lock", "var/lock"] {
            let path = self.root.join(directory).join(format!("drbd-147-{minor}"));
            let failed = |e: io::Error| Stop::Exit {
                status: 20,
                text: format!("{minor}: can not lock {}: {e}", path.display()),
            };
            held.push(lock(&path).map_err(failed)?);
        }
        Ok(Lock { _held: held })
    }

    /// Notes where the internal metadata of a disk is now, so that drbdmeta finds it after the disk
    /// has grown; `None` where it can not be lost.
    pub(super) fn note_disk(&self, minor: Minor, internal: Option<&str>) -> Result<(), Stop> {
        let path = self.root.join(format!("var/lib/drbd/drbd-minor-{minor}.lkbd"));
        let failed = |what: &Path, e: io::Error| Stop::Exit {
            status: 1,
            text: format!("{minor}: {}: {e}", what.display()),
        };
        let Some(disk) = internal else {
            let _ = fs::remove_file(path);
            return Ok(());
        };
        let size = File::open(disk).and_then(|mut file| file.seek(SeekFrom::End(0)));
        let size = size.map_err(|e| failed(Path::new(disk), e))?;
        let line = format!("{size}\t{disk}\n");
        if fs::read_to_string(&path).is_ok_and(|old| old.starts_with(&line)) {
            return Ok(());
        }
        let write = || {
            fs::create_dir_all(path.parent().expect("it is in a directory"))?;
            let new = path.with_extension("new");
            let mut file = File::create(&new)?;
            file.write_all(line.as_bytes())?;
            file.sync_all()?;
            fs::rename(new, &path)
        };
        write().map_err(|e| failed(&path, e))
    }
}

/// Held until dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _held: Vec<File>,
}

fn lock(path: &Path) -> io::Result<File> {
    fs::create_dir_all(path.parent().expect("it is in a directory"))?;
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    let end = Instant::now() + PATIENCE;
    loop {
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(e) => {
                let e = io::Error::from(e);
                let busy =
                    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::PermissionDenied);
                if !busy || Instant::now() >= end {
                    return Err(e);
                }
            }
        }
        std::thread::sleep(RETRY);
    }
}
