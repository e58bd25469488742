//! `cargo xtask vm lvm physical`, `cargo xtask vm zfs physical`: pools of bare disks, which LINSTOR calls
//! physical storage. A controller and an agent run in a guest; what an operator would type makes pools of
//! the guest's disk, and must not where anything is on it.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::control::{Bed, NODE, NR, PATIENCE};
use super::guest::Kind;
use super::image::Images;
use super::rig::Rig;
use super::{lvm, zfs};

/// The disk of which pools are made; smaller ones are not told of.
const LARGE_MIB: u64 = 2048;

/// Volume groups and thin pools of LVM.
pub fn of_lvm() -> Result<()> {
    let images = Images::get(Kind::UserMode)?;
    let rig = Rig::new(&images)?;
    let guest = rig.boot(Kind::UserMode, NR, LARGE_MIB, &lvm::MODULES)?;
    guest.run(lvm::LVM, PATIENCE)?;
    let bed = Bed::start(&rig, guest, Kind::UserMode)?;
    let Bed { guest, disk } = &bed;
    is_unused(&bed, "that is new")?;
    let create = format!("physical-storage create ssd lvm-thin {disk} --on {NODE}");
    keeps_what_is_there(&bed, &create)?;

    // The last step fails: nothing is left of the others.
    guest.run("rm /bin/lvcreate && printf '#!/bin/sh\\necho no >&2\\nexit 5\\n' > /bin/lvcreate && chmod +x /bin/lvcreate", PATIENCE)?;
    bed.refused(&create, "thin pool linstor_ssd/ssd could not be made")?;
    let left = guest.run("vgs --noheadings; pvs --noheadings", PATIENCE)?;
    ensure!(left.trim().is_empty(), "something is left: {left}");
    is_unused(&bed, "after a step that failed")?;
    guest.run("ln -sf $(command -v lvm) /bin/lvcreate", PATIENCE)?;

    bed.ashlar(&create)?;
    let made = guest.run("lvs --noheadings --options lv_name,vg_name,lv_layout", PATIENCE)?;
    let words: Vec<&str> = made.split_whitespace().collect();
    ensure!(words == ["ssd", "linstor_ssd", "thin,pool"], "that is no thin pool: {made}");
    pool_is(&bed, "ssd", "linstor_ssd/ssd")?;
    is_used(&bed, "that is a thin pool")?;
    let again = format!("physical-storage create hdd lvm {disk} --on {NODE}");
    bed.refused(&again, "is not unused: there is something on it")?;

    // The same disk as a volume group, once it is free.
    bed.ashlar(&format!("storage-pool delete ssd --on {NODE}"))?;
    let free = format!("lvremove --yes linstor_ssd/ssd && vgremove linstor_ssd && pvremove {disk}");
    guest.run(&free, PATIENCE)?;
    is_unused(&bed, "that is free again")?;
    bed.ashlar(&format!("{again} --place slow"))?;
    pool_is(&bed, "hdd", "slow")?;
    bed.refused(&create, "is not unused: it has a signature of LVM2_member")?;
    println!("physical storage: a guest's disk became pools of LVM, and nothing else did");
    Ok(())
}

/// Pools of ZFS.
pub fn of_zfs() -> Result<()> {
    let images = Images::get(Kind::Emulated)?;
    let rig = Rig::new(&images)?;
    let guest = zfs::boot(&rig, &images, NR, LARGE_MIB)?;
    let bed = Bed::start(&rig, guest, Kind::Emulated)?;
    let Bed { guest, disk } = &bed;
    is_unused(&bed, "that is new")?;
    let create = format!("physical-storage create ssd zfs-thin {disk} --on {NODE}");
    keeps_what_is_there(&bed, &create)?;

    // Without udev ZFS makes partitions, and then fails.
    guest.run("udevadm control --exit", PATIENCE)?;
    bed.refused(&create, "failed to detect device partitions")?;
    is_unused(&bed, "after a pool that could not be made")?;
    guest.run("systemd-udevd --daemon && udevadm trigger && udevadm settle", PATIENCE)?;

    bed.ashlar(&create)?;
    let made = guest.run("zpool list -H -o name,health", PATIENCE)?;
    ensure!(made.split_whitespace().eq(["ssd", "ONLINE"]), "that is no pool: {made}");
    pool_is(&bed, "ssd", "ssd")?;
    is_used(&bed, "that is a pool of ZFS")?;
    let again = format!("physical-storage create hdd zfs {disk} --on {NODE}");
    bed.refused(&again, "is not unused: there is something on it")?;

    // ZFS knows the pool, and what is left of one that was destroyed.
    bed.ashlar(&format!("storage-pool delete ssd --on {NODE}"))?;
    bed.refused(&create, "there is a ZFS pool ssd on this node")?;
    guest.run("zpool destroy ssd", PATIENCE)?;
    is_used(&bed, "with what is left of a pool")?;
    guest.run(&format!("wipefs --all {disk}"), PATIENCE)?;
    is_unused(&bed, "that is free again")?;
    bed.ashlar(&format!("{again} --place slow"))?;
    pool_is(&bed, "hdd", "slow")?;
    println!("physical storage: a guest's disk became pools of ZFS, and nothing else did");
    Ok(())
}

/// The disks that nobody uses, as the controller tells.
fn unused(bed: &Bed) -> Result<Vec<String>> {
    let rows: Vec<Value> = serde_json::from_str(&bed.ashlar("physical-storage list --json")?)?;
    let device = |row: &Value| row["device"].as_str().unwrap_or_default().to_owned();
    let large = |row: &Value| row["size_bytes"] == json!(LARGE_MIB << 20) && row["node"] == NODE;
    ensure!(rows.iter().all(large), "these are none of the guest's disks: {rows:?}");
    Ok(rows.iter().map(device).collect())
}

fn is_unused(bed: &Bed, which: &str) -> Result<()> {
    ensure!(unused(bed)? == [bed.disk], "a disk {which} is not told of");
    Ok(())
}

fn is_used(bed: &Bed, which: &str) -> Result<()> {
    ensure!(unused(bed)?.is_empty(), "a disk {which} is told of");
    Ok(())
}

/// A file system is seen, mounted or not, and left as it is.
fn keeps_what_is_there(bed: &Bed, create: &str) -> Result<()> {
    let Bed { guest, disk } = bed;
    let make = format!("mkfs.ext4 -q {disk} && mount -t ext4 {disk} /mnt && echo kept > /mnt/file");
    guest.run(&make, PATIENCE)?;
    is_used(bed, "that is mounted")?;
    bed.refused(create, "is not unused: it is mounted at /mnt")?;
    guest.run("umount /mnt", PATIENCE)?;
    is_used(bed, "with a file system")?;
    bed.refused(create, "is not unused: it has a signature of ext4")?;
    let look = format!("mount -t ext4 {disk} /mnt && cat /mnt/file && umount /mnt");
    ensure!(guest.run(&look, PATIENCE)? == "kept\n", "what was refused has changed the disk");
    let wipe = format!("dd if=/dev/zero of={disk} bs=1M count=4 conv=fsync 2>/dev/null");
    guest.run(&wipe, PATIENCE)?;
    is_unused(bed, "that was wiped")
}

/// The controller has a storage pool that the agent can use.
fn pool_is(bed: &Bed, name: &str, place: &str) -> Result<()> {
    let listed = bed.ashlar("storage-pool list --json")?;
    let pools: Vec<Value> = serde_json::from_str(&listed)?;
    let found = pools.iter().find(|pool| pool["pool"] == name);
    let pool = found.context("there is no such pool")?;
    let free = pool["free_kib"].as_u64().unwrap_or(0);
    let usable = pool["problems"] == json!([]) && free > (LARGE_MIB - 320) << 10;
    let good = pool["place"] == place && usable;
    ensure!(good, "storage pool {name} is not as it should be: {pool}");
    Ok(())
}
