//! `cargo xtask vm zfs pools`: the tests of ZFS's pools, in a guest that has it.
//!
//! Debian has ZFS as source alone: it is built for the guest's kernel, once.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::guest::{Guest, Kind};
use super::image::Images;
use super::rig::Rig;
use super::{PATIENCE, process};
use crate::test::cargo;
use crate::workspace;

/// ZFS makes no pools of disks below 64 MiB, and keeps some of each for itself.
const DISK_MIB: u64 = 512;
/// An emulated guest is slow.
const TEST_PATIENCE: Duration = Duration::from_secs(600);

/// Boots a guest with a pool, and runs the tests there.
pub fn pools() -> Result<()> {
    let images = Images::get(Kind::Emulated)?;
    // Without its line tables: a guest has little room, most of it in /run.
    let test = images.file("zfs-test");
    let mut strip = Command::new("strip");
    strip.arg(test_binary()?).arg("-o").arg(&test);
    process::output(strip, PATIENCE)?;
    let rig = Rig::new(&images)?;
    let guest = boot(&rig, &images, 1, DISK_MIB)?;
    guest.put(&test, "/run/test")?;
    let disk = Kind::Emulated.disk();
    guest.run(
        &format!(
            "printf 'n\\np\\n1\\n\\n\\nw\\n' | fdisk {disk} >/dev/null \
             && zpool create -m none -o cachefile=none tank {disk}1 && zfs create tank/ashlar"
        ),
        TEST_PATIENCE,
    )?;
    let said = guest.run("ASHLAR_ZFS=tank/ashlar /run/test --nocapture 2>&1", TEST_PATIENCE)?;
    ensure!(!said.contains("skipped:"), "the tests did not find the dataset:\n{said}");
    print!("{said}");
    println!("{}", guest.run("zfs version", PATIENCE)?.trim());
    Ok(())
}

/// Boots a guest that has ZFS, and udev: pools are not made of whole disks without, and volumes have no names.
pub(super) fn boot(rig: &Rig<'_>, images: &Images, nr: u8, disk_mib: u64) -> Result<Guest> {
    let guest = rig.boot(Kind::Emulated, nr, disk_mib, &[])?;
    let kernel = guest.run("uname -r", PATIENCE)?.trim().to_owned();
    guest.put(&built(images, &kernel)?, "/run/zfs.tar")?;
    let load = "tar -C / -xf /run/zfs.tar && rm /run/zfs.tar && insmod /modules/spl.ko \
                && insmod /modules/zfs.ko zfs_arc_max=67108864 && systemd-udevd --daemon \
                && udevadm trigger && udevadm settle";
    guest.run(load, TEST_PATIENCE)?;
    Ok(guest)
}

/// What has to be unpacked in the guest.
fn built(images: &Images, kernel: &str) -> Result<PathBuf> {
    let file = images.file(&format!("zfs-{kernel}.tar"));
    if !file.exists() {
        println!("building ZFS for {kernel}, once; this takes some ten minutes");
        let script = workspace::root().join("xtask/vm/zfs.sh");
        let mut command = Command::new("bash");
        command.arg(&script).arg(images.file("")).arg(kernel);
        let status = command.status().context("bash could not be started")?;
        ensure!(status.success(), "{} failed; it says why above", script.display());
    }
    Ok(file)
}

/// The tests, built.
fn test_binary() -> Result<PathBuf> {
    let arguments = ["test", "--workspace", "--test", "zfs", "--no-run", "--message-format=json"];
    let said = process::output(cargo(&arguments), TEST_PATIENCE)?;
    let messages = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut named = messages.filter(|message| message["target"]["name"] == "zfs");
    let binary = named.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    binary.context("cargo names no test")
}
