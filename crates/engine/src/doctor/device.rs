//! Block devices as sysfs describes them: which physical disks a file or device lies on, and what
//! the kernel has counted for it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use codec::admin::WatchedDevice;

/// Devices on devices that are looked through.
const LEVELS: u32 = 16;

/// Number of a block device: major and minor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct DeviceNr(u64);

impl DeviceNr {
    /// The device that `path` is, or lies on.
    pub(super) fn of(path: &Path) -> std::io::Result<DeviceNr> {
        let metadata = fs::metadata(path)?;
        let device = metadata.file_type().is_block_device();
        Ok(DeviceNr(if device { metadata.rdev() } else { metadata.dev() }))
    }

    fn name(self) -> String {
        format!("{}:{}", libc::major(self.0), libc::minor(self.0))
    }

    fn parse(text: &str) -> Option<DeviceNr> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(DeviceNr(libc::makedev(major.parse().ok()?, minor.parse().ok()?)))
    }
}

/// Sysfs, or a folder that looks like it.
#[derive(Clone, Debug)]
pub(super) struct Sys(PathBuf);

impl Default for Sys {
    fn default() -> Sys {
        Sys(PathBuf::from("/sys"))
    }
}

impl Sys {
    #[cfg(test)]
    fn at(folder: &Path) -> Sys {
        Sys(folder.to_owned())
    }

    /// A device's own folder. File systems that are no block device's, such as tmpfs, have none.
    fn folder(&self, device: DeviceNr) -> Option<PathBuf> {
        fs::canonicalize(self.0.join("dev/block").join(device.name())).ok()
    }

    /// The physical disks below a device: through partitions, mapped devices, arrays and loop
    /// devices. What has no folder stands for itself.
    pub(super) fn disks_below(&self, device: DeviceNr) -> BTreeSet<String> {
        let mut disks = BTreeSet::new();
        self.collect(device, LEVELS, &mut disks);
        disks
    }

    fn collect(&self, device: DeviceNr, levels: u32, disks: &mut BTreeSet<String>) {
        let Some(mut folder) = self.folder(device).filter(|_| levels > 0) else {
            disks.insert(device.name());
            return;
        };
        if folder.join("partition").exists()
            && let Some(whole) = folder.parent()
        {
            folder = whole.to_owned();
        }
        let slaves = fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten();
        let mut below: Vec<DeviceNr> = slaves
            .filter_map(|entry| fs::read_to_string(entry.path().join("dev")).ok())
            .filter_map(|text| DeviceNr::parse(&text))
            .collect();
        if let Ok(file) = fs::read_to_string(folder.join("loop/backing_file")) {
            below.extend(DeviceNr::of(Path::new(file.trim())));
        }
        if below.is_empty() {
            let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
            disks.insert(name.unwrap_or_else(|| device.name()));
        }
        for device in below {
            self.collect(device, levels - 1, disks);
        }
    }

    /// What the kernel has counted for a device since it was found.
    pub(super) fn counters(&self, device: DeviceNr) -> Option<WatchedDevice> {
        let folder = self.folder(device)?;
        let text = fs::read_to_string(folder.join("stat")).ok()?;
        let fields: Vec<u64> = text.split_whitespace().map_while(|f| f.parse().ok()).collect();
        // Documentation/block/stat.rst: reads, merges, sectors, ms; the same of writes; in flight,
        // ms with anything in flight, ms of all; the same four of discards; flushes, ms.
        let field = |index: usize| fields.get(index).copied();
        Some(WatchedDevice {
            name: folder.file_name()?.to_string_lossy().into_owned(),
            reads: field(0)?,
            read_ms: field(3)?,
            writes: field(4)?,
            write_ms: field(7)?,
            busy_ms: field(9)?,
            // Since Linux 5.5.
            flushes: field(15).unwrap_or(0),
            flush_ms: field(16).unwrap_or(0),
        })
    }
}

/// What was counted between two looks at a device.
pub(super) fn between(before: &WatchedDevice, after: &WatchedDevice) -> WatchedDevice {
    let since = |field: fn(&WatchedDevice) -> u64| field(after).saturating_sub(field(before));
    WatchedDevice {
        name: after.name.clone(),
        reads: since(|d| d.reads),
        read_ms: since(|d| d.read_ms),
        writes: since(|d| d.writes),
        write_ms: since(|d| d.write_ms),
        flushes: since(|d| d.flushes),
        flush_ms: since(|d| d.flush_ms),
        busy_ms: since(|d| d.busy_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A machine with sda (one partition), sdb, a mapped device on the partition and sdb, and a
    /// loop device.
    fn machine() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let device = |path: &str, nr: &str| {
            fs::create_dir_all(root.join("devices").join(path)).unwrap();
            fs::write(root.join("devices").join(path).join("dev"), format!("{nr}\n")).unwrap();
            fs::create_dir_all(root.join("dev/block")).unwrap();
            symlink(root.join("devices").join(path), root.join("dev/block").join(nr)).unwrap();
        };
        device("sda", "8:0");
        device("sda/sda1", "8:1");
        fs::write(root.join("devices/sda/sda1/partition"), "1\n").unwrap();
        device("sdb", "8:16");
        device("dm-0", "253:0");
        fs::create_dir(root.join("devices/dm-0/slaves")).unwrap();
        symlink(root.join("devices/sda/sda1"), root.join("devices/dm-0/slaves/sda1")).unwrap();
        symlink(root.join("devices/sdb"), root.join("devices/dm-0/slaves/sdb")).unwrap();
        device("loop0", "7:0");
        fs::create_dir(root.join("devices/loop0/loop")).unwrap();
        let file = root.join("backing");
        fs::write(&file, "").unwrap();
        fs::write(root.join("devices/loop0/loop/backing_file"), file.display().to_string())
            .unwrap();
        folder
    }

    fn nr(text: &str) -> DeviceNr {
        DeviceNr::parse(text).unwrap()
    }

    #[test]
    fn disks_are_found_below_partitions_and_mapped_devices() {
        let machine = machine();
        let sys = Sys::at(machine.path());
        let below = |text: &str| sys.disks_below(nr(text)).into_iter().collect::<Vec<_>>();
        assert_eq!(below("8:1"), ["sda"]);
        assert_eq!(below("253:0"), ["sda", "sdb"]);
        assert_eq!(below("0:45"), ["0:45"], "a file system without a block device");
        let own = DeviceNr::of(machine.path()).unwrap();
        assert_eq!(sys.disks_below(nr("7:0")), sys.disks_below(own), "a loop device's file");
    }

    #[test]
    fn counters_are_read_and_subtracted() {
        let machine = machine();
        let sys = Sys::at(machine.path());
        assert_eq!(sys.counters(nr("8:16")), None);
        let stat = machine.path().join("devices/sdb/stat");
        fs::write(&stat, " 10 1 80 5 20 2 160 40 0 30 45\n").unwrap();
        let old = sys.counters(nr("8:16")).unwrap();
        assert_eq!((old.reads, old.writes, old.write_ms, old.flushes), (10, 20, 40, 0));
        fs::write(&stat, " 15 1 80 9 40 2 160 640 0 530 700 0 0 0 0 3 33\n").unwrap();
        let new = sys.counters(nr("8:16")).unwrap();
        let passed = between(&old, &new);
        let expected = WatchedDevice {
            name: "sdb".to_owned(),
            reads: 5,
            read_ms: 4,
            writes: 20,
            write_ms: 600,
            flushes: 3,
            flush_ms: 33,
            busy_ms: 500,
        };
        assert_eq!(passed, expected);
    }
}
