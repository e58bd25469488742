//! Who has a block device open: mounts, swap, devices on top of it, processes.
//!
//! The kernel keeps a count and does not tell it. What claims a device for itself (file systems, swap,
//! device-mapper) is found by trying the same, also for partitions and in other mount namespaces;
//! processes by their open files. Somebody who opens the device without claiming it just after that
//! gets errors.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Where the kernel tells of devices.
pub(super) const DEVICES: &str = "/sys/class/block";

/// Claims a device for this process until the file is closed.
///
/// # Errors
/// Who uses it, in words.
pub(super) fn hold(device: &str) -> Result<File, String> {
    let found = of(device);
    if !found.is_empty() {
        return Err(found.join(", "));
    }
    claim(device).map_err(|e| match e.raw_os_error() {
        Some(libc::EBUSY) => "something claims it for itself, perhaps in another namespace".into(),
        _ => format!("it can not be opened: {e}"),
    })
}

/// Opens a device so that nobody else can claim it, nor one of its partitions.
///
/// # Errors
/// `EBUSY`: somebody has.
pub(super) fn claim(device: &str) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device)
}

/// The folders of a device and of its partitions below `/sys`.
fn folders(device: &str) -> Vec<PathBuf> {
    let Some(name) = Path::new(device).file_name() else { return Vec::new() };
    let sys = Path::new(DEVICES).join(name);
    let inside = fs::read_dir(&sys).into_iter().flatten().flatten().map(|entry| entry.path());
    let partitions: Vec<PathBuf> = inside.filter(|path| path.join("partition").exists()).collect();
    [sys].into_iter().chain(partitions).collect()
}

/// The paths of a device and of its partitions.
pub(super) fn nodes(device: &str) -> Vec<PathBuf> {
    let names =
        folders(device).into_iter().filter_map(|folder| Some(folder.file_name()?.to_owned()));
    names.map(|name| Path::new("/dev").join(name)).collect()
}

/// The number of a device in this form: `259:1`.
fn number(folder: &Path) -> Option<String> {
    Some(fs::read_to_string(folder.join("dev")).ok()?.trim().to_owned())
}

/// The kernel has no request of the device under way.
pub(super) fn is_quiet(device: &str) -> bool {
    let under_way = folders(device).first().map(|sys| fs::read_to_string(sys.join("inflight")));
    matches!(under_way, Some(Ok(text)) if text.split_whitespace().all(|count| count == "0"))
}

/// Which of these devices a process has open that this one can see, or the kernel has without claiming it.
pub(super) fn open_ones<'a>(devices: &[&'a str]) -> BTreeSet<&'a str> {
    let all = devices.iter().map(|device| {
        let numbers: Vec<String> = folders(device).iter().filter_map(|f| number(f)).collect();
        (*device, numbers)
    });
    let all: Vec<(&str, Vec<String>)> = all.collect();
    let numbers: Vec<String> = all.iter().flat_map(|(_, numbers)| numbers.clone()).collect();
    let mut open: BTreeSet<String> = kernels(&numbers).map(|(number, _)| number).collect();
    for process in processes() {
        open.extend(process.numbers(&numbers));
    }
    let is_open = |(_, numbers): &(&str, Vec<String>)| numbers.iter().any(|n| open.contains(n));
    all.into_iter().filter(is_open).map(|(device, _)| device).collect()
}

/// Who uses a device or one of its partitions, as far as this process can see.
pub(super) fn of(device: &str) -> Vec<String> {
    let mut users = claims(device);
    let numbers: Vec<String> = folders(device).iter().filter_map(|f| number(f)).collect();
    users.extend(kernels(&numbers).map(|(_, who)| who));
    let having = processes().filter(|process| process.numbers(&numbers).next().is_some());
    users.extend(having.map(|process| process.name()));
    users
}

/// What claims a device or one of its partitions for itself, as far as this process can see.
pub(super) fn claims(device: &str) -> Vec<String> {
    let Some(name) = Path::new(device).file_name().and_then(|name| name.to_str()) else {
        return Vec::new();
    };
    let folders = folders(device);
    let numbers: Vec<String> = folders.iter().filter_map(|folder| number(folder)).collect();
    let mut users = Vec::new();
    for folder in &folders {
        for holder in fs::read_dir(folder.join("holders")).into_iter().flatten().flatten() {
            users.push(holder_name(&holder.file_name().to_string_lossy()));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    users.extend(mounted(&mounts, &numbers));
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    users.extend(swapped(&swaps, name));
    users
}

/// A device on top: `dm-0`, and what device-mapper calls it.
fn holder_name(holder: &str) -> String {
    let path = Path::new(DEVICES).join(holder).join("dm/name");
    match fs::read_to_string(path) {
        Ok(name) => format!("{holder} ({})", name.trim()),
        Err(_) => holder.to_owned(),
    }
}

/// Where devices of these numbers are mounted, by the text of `mountinfo`: its third word is the
/// number, its fifth the place.
fn mounted(mountinfo: &str, numbers: &[String]) -> Vec<String> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let number = words.nth(2)?;
        let place = words.nth(1)?;
        numbers.iter().any(|n| n == number).then(|| format!("mounted at {place}"))
    };
    mountinfo.lines().filter_map(line).collect()
}

/// True swap, by the text of `/proc/swaps`: its first word is the path.
fn swapped(swaps: &str, name: &str) -> Vec<String> {
    let paths = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let own = paths.filter(|path| {
        let rest = path.strip_prefix("/dev/").and_then(|path| path.strip_prefix(name));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('p'))
    });
    own.map(|path| format!("swap on {path}")).collect()
}

/// What the kernel has open of devices of these numbers without claiming them: loop devices on them, and what is
/// offered as NVMe over a network. Each with its number.
fn kernels(numbers: &[String]) -> impl Iterator<Item = (String, String)> {
    let in_each = |folder: &str, below: &'static str| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(move |entry| entry.path().join(below))
    };
    let loops = in_each("/sys/block", "loop/backing_file").filter_map(|file| {
        let name = file.ancestors().nth(2)?.file_name()?.to_string_lossy().into_owned();
        Some((fs::read_to_string(&file).ok()?, name))
    });
    let subsystems = in_each("/sys/kernel/config/nvmet/subsystems", "namespaces");
    let spaces = subsystems.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    let targets = spaces.filter_map(|space| {
        let read = |name| fs::read_to_string(space.path().join(name)).ok();
        (read("enable")?.trim() == "1")
            .then(|| read("device_path"))?
            .map(|path| (path, "nvmet".to_owned()))
    });
    let numbers = numbers.to_vec();
    loops.chain(targets).filter_map(move |(path, who)| {
        let number = number_of(&fs::metadata(path.trim()).ok()?)?;
        numbers.contains(&number).then_some((number, who))
    })
}

/// The number of a block device.
fn number_of(file: &fs::Metadata) -> Option<String> {
    let number = format!("{}:{}", libc::major(file.rdev()), libc::minor(file.rdev()));
    file.file_type().is_block_device().then_some(number)
}

/// A process that can be seen.
struct Process {
    pid: u32,
    folder: PathBuf,
}

fn processes() -> impl Iterator<Item = Process> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some(Process { pid, folder: entry.path() })
    })
}

impl Process {
    /// Those of these numbers whose block devices it has open.
    fn numbers(&self, numbers: &[String]) -> impl Iterator<Item = String> {
        let files = fs::read_dir(self.folder.join("fd")).into_iter().flatten().flatten();
        let open = files.filter_map(|file| number_of(&fs::metadata(file.path()).ok()?));
        open.filter(|number| numbers.contains(number))
    }

    fn name(&self) -> String {
        let name = fs::read_to_string(self.folder.join("comm")).unwrap_or_default();
        format!("process {} ({})", self.pid, name.trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_and_swap_are_found_in_the_kernels_tables() {
        let mountinfo = "29 1 259:2 / /mnt/a\\040b rw,relatime shared:1 - ext4 /dev/ublkb0p1 rw\n\
                         30 1 259:3 / /srv rw - xfs /dev/sda1 rw\n";
        let numbers = ["259:1".to_owned(), "259:2".to_owned()];
        assert_eq!(mounted(mountinfo, &numbers), ["mounted at /mnt/a\\040b"]);
        let swaps = "Filename Type Size Used Priority\n/dev/ublkb1p2 partition 1 0 -2\n\
                     /dev/ublkb1 partition 1 0 -2\n/dev/ublkb12 partition 1 0 -3\n";
        assert_eq!(swapped(swaps, "ublkb1"), ["swap on /dev/ublkb1p2", "swap on /dev/ublkb1"]);
    }

    #[test]
    fn a_device_that_is_not_there_has_no_users_and_can_not_be_held() {
        assert!(of("/dev/ublkb999999").is_empty());
        assert!(hold("/dev/ublkb999999").unwrap_err().contains("can not be opened"));
    }
}
