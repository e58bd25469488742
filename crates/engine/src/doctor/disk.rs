//! Reads of a volume's disk, which change nothing, and writes to a file beside it.
//!
//! Writes go to a new file on the same physical disks that never has a name (`O_TMPFILE`): nothing
//! that exists can be hit, and whatever happens, nothing stays behind. There is no way to have them
//! on the disk itself. What lies between the end of a volume and its metadata is no
//! spare space: the volume grows into it when a larger peer connects, which can be at any moment.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use codec::admin::{DiskReads, DiskWrites, FailureKind, Series};
use codec::config::BackingConfig;
use runtime::{DiskFile, DiskOptions, Errno};

use super::device::{DeviceNr, Sys};
use super::series::{Order, Plan, Runner, What};
use crate::engine::{Done, Stop};

/// Small operations, and large ones, in bytes.
const SMALL: u32 = 4096;
const LARGE: u32 = 128 << 10;
/// Operations at a time where it is several.
const DEEP: u32 = 32;
/// Large operations at a time.
const STREAMING: u32 = 8;
/// Most that a series reads or writes.
const BYTES_MAX: u64 = 256 << 20;
/// Size of a scratch file.
const SCRATCH: u64 = 64 << 20;
/// Flushes that are timed at most.
const FLUSHES_MAX: u64 = 100;

/// Reads a disk for `time` in all. `size` bytes from its start are data.
pub(super) fn reads(backing: &BackingConfig, size: u64, time: Duration) -> Done<DiskReads> {
    let path = Path::new(&backing.disk);
    let options = DiskOptions { write: false, exclusive: false, ..DiskOptions::default() };
    let file = DiskFile::open(path, options).map_err(|e| failed(e.to_string()))?;
    let info = file.info();
    let area = size.min(info.size.0);
    let mut runner = Runner::new().map_err(failed)?;
    let mut series = |what, order, block, depth, bytes, time| {
        let plan = Plan { what, order, block, depth, area, time, bytes };
        let what = if what == What::Read { "reading" } else { "flushing" };
        runner
            .run(&file, plan)
            .map_err(|errno| failed(format!("{}: {what}: {errno}", backing.disk)))
    };
    let third = time / 3;
    Ok(DiskReads {
        path: backing.disk.clone(),
        direct: info.direct,
        volatile_cache: info.volatile_cache,
        allocated_percent: if info.block_device { 100 } else { allocated(path)? },
        sequential: series(What::Read, Order::Sequential, LARGE, STREAMING, BYTES_MAX, third)?,
        random: series(What::Read, Order::Random, SMALL, 1, BYTES_MAX, third)?,
        random_deep: series(What::Read, Order::Random, SMALL, DEEP, BYTES_MAX, third / 2)?,
        flush: match info.block_device {
            true => {
                let bytes = FLUSHES_MAX * u64::from(SMALL);
                Some(series(What::FlushOnly, Order::Random, SMALL, 1, bytes, third / 2)?)
            }
            false => None,
        },
    })
}

/// Share of a file that has storage, percent.
fn allocated(path: &Path) -> Done<u32> {
    let metadata = fs::metadata(path).map_err(|e| failed(format!("{}: {e}", path.display())))?;
    let percent = metadata.blocks().saturating_mul(512 * 100).div_ceil(metadata.len().max(1));
    Ok(percent.min(100) as u32)
}

/// Writes to a new file in `folder` for `time` in all.
pub(super) fn scratch(backing: &BackingConfig, folder: &str, time: Duration) -> Done<DiskWrites> {
    let path = Path::new(folder);
    check_place(Path::new(&backing.disk), path)?;
    let scratch = nameless(path)?;
    // The same file again, as a disk.
    let again = format!("/proc/self/fd/{}", scratch.as_raw_fd());
    let disk = DiskFile::open(Path::new(&again), DiskOptions::default());
    let disk = disk.map_err(|e| failed(e.to_string()))?;
    let mut runner = Runner::new().map_err(failed)?;
    let mut series = |what, order, block, depth, area, bytes, time| -> Done<Series> {
        let plan = Plan { what, order, block, depth, area, time, bytes };
        runner.run(&disk, plan).map_err(|errno| match errno {
            Errno::ENOSPC => {
                let text = format!("{folder}: no space left for {} MiB", SCRATCH >> 20);
                Stop::failed(FailureKind::Io, text, "name a folder where there is space")
            }
            errno => failed(format!("{folder}: writing: {errno}")),
        })
    };
    let quarter = time / 4;
    let sequential =
        series(What::Write, Order::Through, LARGE, STREAMING, SCRATCH, SCRATCH, quarter)?;
    // What was written before: places without storage would be measured with its allocation.
    let area = sequential.operations * u64::from(LARGE);
    let flushes = FLUSHES_MAX * u64::from(SMALL);
    Ok(DiskWrites {
        path: backing.disk.clone(),
        direct: disk.info().direct,
        sequential,
        random: series(What::Write, Order::Random, SMALL, 1, area, BYTES_MAX, quarter)?,
        random_deep: series(What::Write, Order::Random, SMALL, DEEP, area, BYTES_MAX, quarter)?,
        flush: series(What::Flush, Order::Random, SMALL, 1, area, flushes, quarter)?,
    })
}

/// Refuses a place that says nothing of the disk, or where a file could do harm.
fn check_place(disk: &Path, folder: &Path) -> Done {
    let refused = |why: String| Err(Stop::invalid(format!("{}: {why}", folder.display())));
    if !folder.is_absolute() || !folder.is_dir() {
        let why =
            "it is no folder; give the absolute path of one, in a file system on the same disks";
        return refused(why.to_owned());
    }
    let device = |path: &Path| {
        DeviceNr::of(path).map_err(|e| Stop::invalid(format!("{}: {e}", path.display())))
    };
    let sys = Sys::default();
    let (wanted, here) = (sys.disks_below(device(disk)?), sys.disks_below(device(folder)?));
    if wanted != here {
        let list = |disks: BTreeSet<String>| disks.into_iter().collect::<Vec<_>>().join(", ");
        return refused(format!(
            "it lies on {}, and {} on {}: its figures would be of another disk; give a folder in a \
             file system on the same disks, such as a small logical volume made for this",
            list(here),
            disk.display(),
            list(wanted)
        ));
    }
    let space = rustix::fs::statvfs(folder);
    let space = space.map_err(|e| Stop::invalid(format!("{}: {e}", folder.display())))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free < 2 * SCRATCH {
        return refused(format!(
            "its file system has {} MiB left, and {} are wanted so that nobody else runs out of \
             space; give a folder where there is more",
            free >> 20,
            (2 * SCRATCH) >> 20
        ));
    }
    Ok(())
}

/// A new file without a name.
fn nameless(folder: &Path) -> Done<File> {
    let file = File::options().read(true).write(true).custom_flags(libc::O_TMPFILE).open(folder);
    let file = file.and_then(|file| file.set_len(SCRATCH).map(|()| file));
    file.map_err(|e| {
        let why = "can not make a file without a name there";
        let next =
            "give a folder of ext4, XFS or btrfs, on the same disks, that the engine may write to";
        Stop::failed(FailureKind::Io, format!("{}: {why}: {e}", folder.display()), next)
    })
}

fn failed(text: String) -> Stop {
    Stop::failed(FailureKind::Io, text, "see the kernel's log for errors of the disk")
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::config::MetaDisk;

    fn backing(path: &Path) -> BackingConfig {
        BackingConfig {
            disk: path.display().to_string(),
            meta_disk: MetaDisk::Internal,
            options: Default::default(),
            luks: false,
        }
    }

    fn why(stop: Stop) -> String {
        match stop {
            Stop::Refused(refusal) => refusal.detail,
            Stop::Failed(failure) => format!("failed: {}", failure.text),
        }
    }

    #[test]
    fn a_disk_is_read_and_stays_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        let content: Vec<u8> = (0..4 << 20).map(|n: u32| (n >> 3) as u8).collect();
        fs::write(&disk, &content).unwrap();
        let figures = reads(&backing(&disk), 3 << 20, Duration::from_millis(300)).unwrap();
        assert!(figures.sequential.operations > 0 && figures.random_deep.operations > 0);
        assert_eq!((figures.sequential.block, figures.random.depth), (128 << 10, 1));
        assert_eq!((figures.allocated_percent, figures.flush), (100, None));
        assert_eq!(fs::read(&disk).unwrap(), content);
        File::create(&disk).unwrap().set_len(1 << 20).unwrap();
        let figures = reads(&backing(&disk), 1 << 20, Duration::from_millis(30)).unwrap();
        assert_eq!(figures.allocated_percent, 0);
    }

    #[test]
    fn a_scratch_file_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        fs::write(&disk, vec![1; 1 << 20]).unwrap();
        let time = Duration::from_millis(400);
        let figures = scratch(&backing(&disk), folder.path().to_str().unwrap(), time).unwrap();
        for series in [figures.sequential, figures.random, figures.random_deep, figures.flush] {
            assert!(series.operations > 0 && series.median > 0, "{figures:?}");
        }
        assert!(figures.flush.operations <= FLUSHES_MAX);
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert_eq!(fs::read(&disk).unwrap(), vec![1; 1 << 20]);
    }

    #[test]
    fn a_place_that_says_nothing_of_the_disk_is_refused() {
        // The build folder, and a file system that is not on its disks.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let disk = folder.path().join("disk");
        fs::write(&disk, b"precious").unwrap();
        let refusal = |place: &str| {
            why(scratch(&backing(&disk), place, Duration::from_millis(10)).unwrap_err())
        };
        assert!(refusal(disk.to_str().unwrap()).contains("it is no folder"));
        assert!(refusal(".").contains("absolute path"));
        assert!(refusal("/sys").contains("of another disk"));
        assert_eq!(fs::read(&disk).unwrap(), b"precious");
    }
}
