//! Which disks of this node nobody uses.
//!
//! `lsblk` says what there is and what is made of what. What it says of file systems is what udev has
//! seen last, so each disk that could be unused is looked at again: it has to be ours alone for a
//! moment (which a mount, swap, LVM, an engine and the like prevent), its ends have to be readable, and
//! `blkid` must not find a signature on it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use cluster::disks::{Disk, SMALLEST};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use vocab::Bytes;

use crate::command::{Failure, Runner, System};
use crate::failed::Failed;

/// What `lsblk` is asked. Versions from 2.27 on know all of it.
const LSBLK: [&str; 6] = [
    "lsblk",
    "--json",
    "--bytes",
    "--paths",
    "--output",
    "NAME,KNAME,TYPE,SIZE,RO,ROTA,MODEL,SERIAL,WWN,FSTYPE,PTTYPE,MOUNTPOINT",
];

/// What the kernel's names of devices begin with that are no disks of the machine: memory, files,
/// volumes of pools, and what other nodes or we serve.
const NO_DISKS: [&str; 10] =
    ["loop", "ram", "zram", "sr", "fd", "nbd", "drbd", "ublkb", "zd", "mtdblock"];

/// Bytes that are read at both ends of a disk.
const ENDS: u64 = 4096;

/// Programs and devices of a machine.
pub trait Machine: Runner {
    /// Where a path leads, links followed.
    ///
    /// # Errors
    /// If it leads nowhere.
    fn real(&self, path: &Path) -> io::Result<PathBuf>;

    /// Has a device for itself, and reads its ends.
    ///
    /// # Errors
    /// If somebody else has it, or it can not be read.
    fn claim(&self, device: &Path, size: Bytes) -> io::Result<()>;
}

impl Machine for System {
    fn real(&self, path: &Path) -> io::Result<PathBuf> {
        path.canonicalize()
    }

    fn claim(&self, device: &Path, size: Bytes) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        let disk = match rustix::fs::open(device, flags, Mode::empty()) {
            Ok(disk) => File::from(disk),
            Err(Errno::BUSY) => return Err(io::Error::other("somebody has it open for himself")),
            Err(error) => return Err(error.into()),
        };
        let mut block = vec![0; 4096];
        disk.read_exact_at(&mut block, 0)?;
        disk.read_exact_at(&mut block, size.0.saturating_sub(ENDS))
    }
}

/// A block device as `lsblk` tells of it.
#[derive(Clone, Debug, Deserialize)]
struct Device {
    name: String,
    kname: Option<String>,
    #[serde(rename = "type")]
    kind: String,
    #[serde(deserialize_with = "number")]
    size: u64,
    #[serde(deserialize_with = "truth")]
    ro: bool,
    #[serde(deserialize_with = "truth")]
    rota: bool,
    model: Option<String>,
    serial: Option<String>,
    wwn: Option<String>,
    fstype: Option<String>,
    pttype: Option<String>,
    mountpoint: Option<String>,
    #[serde(default)]
    children: Vec<Device>,
}

#[derive(Deserialize)]
struct Listing {
    blockdevices: Vec<Device>,
}

/// A number, which older versions write as text.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let value = Value::deserialize(from)?;
    let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
    number.ok_or_else(|| serde::de::Error::custom(format!("{value} is no number")))
}

/// A truth, which older versions write as `"0"` and `"1"`.
fn truth<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    let value = Value::deserialize(from)?;
    let truth = value.as_bool().or(match value.as_str().map(str::trim) {
        Some("0") => Some(false),
        Some("1") => Some(true),
        _ => None,
    });
    truth.ok_or_else(|| serde::de::Error::custom(format!("{value} is neither true nor false")))
}

impl Device {
    /// The kernel's name, without a folder.
    fn kernel_name(&self) -> &str {
        let name = self.kname.as_deref().unwrap_or(&self.name);
        name.rsplit('/').next().unwrap_or(name)
    }

    fn is_named(&self, path: &Path) -> bool {
        let kname = self.kname.as_deref().map(Path::new);
        Path::new(&self.name) == path || kname == Some(path)
    }

    /// It is a disk, or stands for one: several ways to one disk, or a RAID of the kernel's.
    fn is_of_disk_type(&self) -> bool {
        matches!(self.kind.as_str(), "disk" | "mpath") || self.kind.starts_with("raid")
    }

    /// Of a name that no disk of the machine has.
    fn is_virtual(&self) -> bool {
        NO_DISKS.iter().any(|begin| {
            let rest = self.kernel_name().strip_prefix(begin);
            rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        })
    }

    /// Why a pool can not be made of it, as far as `lsblk` tells.
    fn unfit(&self) -> Option<String> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if !self.is_of_disk_type() {
            return Some(format!("it is no disk, but of type {}", self.kind));
        }
        if self.is_virtual() {
            return Some("it is no disk of this machine, but made of something else".to_owned());
        }
        if !self.children.is_empty() {
            let names: Vec<&str> = self.children.iter().map(|child| child.name.as_str()).collect();
            return Some(format!("there is something on it: {}", names.join(", ")));
        }
        if let Some(place) = given(&self.mountpoint) {
            return Some(format!("it is mounted at {place}"));
        }
        if let Some(what) = given(&self.fstype).or(given(&self.pttype)) {
            return Some(format!("it has a signature of {what}"));
        }
        if self.ro {
            return Some("it is read-only".to_owned());
        }
        if self.size < SMALLEST.0 {
            return Some(format!("it has {}, less than {SMALLEST}", Bytes(self.size)));
        }
        None
    }

    fn described(&self) -> Disk {
        let text = |text: &Option<String>| text.as_deref().unwrap_or("").trim().to_owned();
        Disk {
            device: self.name.clone(),
            size: Bytes(self.size),
            rotational: self.rota,
            model: text(&self.model),
            serial: text(&self.serial),
            wwn: text(&self.wwn),
        }
    }
}

/// Every device once, with those that are made of it after it.
fn all(devices: Vec<Device>) -> Vec<Device> {
    fn walk(devices: Vec<Device>, known: &mut BTreeSet<String>, found: &mut Vec<Device>) {
        for device in devices {
            // What is made of several devices is told of below each.
            if known.insert(device.name.clone()) {
                let children = device.children.clone();
                found.push(device);
                walk(children, known, found);
            }
        }
    }

    let (mut known, mut found) = (BTreeSet::new(), Vec::new());
    walk(devices, &mut known, &mut found);
    found
}

fn devices(machine: &impl Machine) -> Result<Vec<Device>, Failed> {
    let install = "see that util-linux is installed on this node and works";
    let text = machine
        .run(&LSBLK)
        .map_err(|error| Failed::new(format!("the disks are not known: {error}"), install))?;
    let listing: Listing = serde_json::from_str(&text).map_err(|error| {
        Failed::new(format!("what lsblk says of the disks is not understood: {error}"), install)
    })?;
    Ok(all(listing.blockdevices))
}

/// Why a disk that looks unused is not.
fn found_in_use(machine: &impl Machine, device: &Device) -> Result<Option<String>, Failed> {
    if let Err(error) = machine.claim(Path::new(&device.name), Bytes(device.size)) {
        return Ok(Some(error.to_string()));
    }
    let argv = ["blkid", "-p", "-o", "export", &device.name];
    let error = match machine.run(&argv) {
        Ok(found) => return Ok(Some(signature(&found))),
        Err(error) => error,
    };
    match &error.why {
        // Nothing was found. It has this status, and something to say, if it could not look, too.
        Failure::Exit { code: Some(2), stderr } if stderr.is_empty() => Ok(None),
        // More than one was.
        Failure::Exit { code: Some(8), .. } => {
            Ok(Some("it has signatures that contradict each other".to_owned()))
        }
        _ => Err(Failed::new(
            format!("whether something is on {} is not known: {error}", device.name),
            "see that blkid (util-linux) is installed on this node and works",
        )),
    }
}

/// What `blkid` has found.
fn signature(export: &str) -> String {
    let value =
        |key: &str| export.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    match value("TYPE").or_else(|| value("PTTYPE")) {
        Some(what) => format!("it has a signature of {what}"),
        None => "it has a signature".to_owned(),
    }
}

/// The disks that nobody uses.
///
/// # Errors
/// If the node's programs do not tell.
pub fn unused(machine: &impl Machine) -> Result<Vec<Disk>, Failed> {
    let mut disks = Vec::new();
    for device in devices(machine)?.iter().filter(|device| device.unfit().is_none()) {
        if found_in_use(machine, device)?.is_none() {
            disks.push(device.described());
        }
    }
    disks.sort_by(|a, b| a.device.cmp(&b.device));
    Ok(disks)
}

/// The names by which the kernel knows the disks of these paths, if nobody uses any of them.
///
/// # Errors
/// If one is used, is no disk, or that can not be told.
pub fn check(machine: &impl Machine, paths: &[String]) -> Result<Vec<String>, Failed> {
    let known = devices(machine)?;
    let mut names: Vec<String> = Vec::new();
    for path in paths {
        let refused = |why: String| {
            Failed::new(
                format!("{path} is not unused: {why}"),
                "name disks of the list (`ashlar physical-storage list`); one that nobody needs any \
                 more is there after `wipefs --all` on it",
            )
        };
        let real = machine
            .real(Path::new(path))
            .map_err(|error| refused(format!("it can not be found: {error}")))?;
        let device = known
            .iter()
            .find(|device| device.is_named(Path::new(path)) || device.is_named(&real))
            .ok_or_else(|| refused("it is no block device that lsblk knows".to_owned()))?;
        if let Some(why) = device.unfit() {
            return Err(refused(why));
        }
        if let Some(why) = found_in_use(machine, device)? {
            return Err(refused(why));
        }
        if names.contains(&device.name) {
            return Err(refused(format!("{} is named twice", device.name)));
        }
        names.push(device.name.clone());
    }
    Ok(names)
}

#[cfg(test)]
mod tests;
