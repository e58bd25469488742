//! Who has a block device open: mounts, swap, devices on top of it, processes.
//!
//! The kernel keeps a count and does not tell it. What claims a device for itself (file systems, swap,
//! device-mapper) is found by trying the same, also for partitions and in other mount namespaces;
//! processes by their open files. Somebody who opens the device without claiming it just after that
//! gets errors.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Claims a device for this process until the file is closed.
///
/// # Errors
/// Who uses it, in words.
pub(super) fn hold(device: &str) -> Result<File, String> {
    let found = of(device);
    if !found.is_empty() {
        return Err(found.join(", "));
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device);
    file.map_err(|e| match e.raw_os_error() {
        Some(libc::EBUSY) => "something claims it for itself, perhaps in another namespace".into(),
        _ => format!("it can not be opened: {e}"),
    })
}

/// Who uses a device or one of its partitions, as far as this process can see.
pub(super) fn of(device: &str) -> Vec<String> {
    let Some(name) = Path::new(device).file_name().and_then(|name| name.to_str()) else {
        return Vec::new();
    };
    let sys = Path::new("/sys/class/block").join(name);
    let mut folders = vec![sys.clone()];
    for entry in fs::read_dir(&sys).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists() {
            folders.push(entry.path());
        }
    }
    let mut numbers = Vec::new();
    let mut users = Vec::new();
    for folder in &folders {
        numbers.extend(fs::read_to_string(folder.join("dev")).map(|text| text.trim().to_owned()));
        for holder in fs::read_dir(folder.join("holders")).into_iter().flatten().flatten() {
            users.push(holder_name(&holder.file_name().to_string_lossy()));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    users.extend(mounted(&mounts, &numbers));
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    users.extend(swapped(&swaps, name));
    users.extend(processes(&numbers));
    users
}

/// A device on top: `dm-0`, and what device-mapper calls it.
fn holder_name(holder: &str) -> String {
    let path = Path::new("/sys/class/block").join(holder).join("dm/name");
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

/// Processes that have block devices of these numbers open.
fn processes(numbers: &[String]) -> Vec<String> {
    let mut users = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let files = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let mut open = files.filter_map(|file| fs::metadata(file.path()).ok()).filter(|file| {
            let number = (libc::major(file.rdev()), libc::minor(file.rdev()));
            let number = format!("{}:{}", number.0, number.1);
            file.file_type().is_block_device() && numbers.contains(&number)
        });
        if open.next().is_some() {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            users.push(format!("process {pid} ({})", name.trim()));
        }
    }
    users
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
