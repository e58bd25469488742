//! `cargo xtask vm luks`: an encrypted volume of the engine's, and dm-crypt on the same disk. Each reads
//! what the other has written.

use anyhow::{Result, ensure};

use super::control::{Bed, NODE, NR, PATIENCE, wait};
use super::guest::Kind;
use super::image::Images;
use super::lvm;
use super::rig::Rig;

const DISK_MIB: u64 = 1536;
const VOLUME_KIB: u64 = 96 << 10;
/// Of the volume, as an operator gives it to the REST API.
const PASSPHRASE: &str = "six stones in a wall";
/// The disk of the replica, which is a logical volume of LVM.
const REPLICA: &str = "/dev/disks/web_00000";

/// The command.
pub fn main() -> Result<()> {
    let images = Images::get(Kind::Emulated)?;
    let rig = Rig::new(&images)?;
    let modules = ["ublk_drv", "dm-mod", "dm-crypt", "ext4"];
    let guest = rig.boot(Kind::Emulated, NR, DISK_MIB, &modules)?;
    guest.run(lvm::LVM, PATIENCE)?;
    let bed = Bed::start(&rig, guest, Kind::Emulated)?;
    let guest = &bed.guest;
    start_engine(&bed)?;
    bed.ashlar(&format!("physical-storage create disks lvm {} --on {NODE}", bed.disk))?;
    post(&bed, "encryption/passphrase", r#"{"new_passphrase": "of the cluster"}"#)?;
    let group = r#"{"name": "secret", "select_filter": {"place_count": 1,
                    "layer_stack": ["DRBD", "LUKS", "STORAGE"], "storage_pool": "disks"}}"#;
    post(&bed, "resource-groups", group)?;
    let spawn = format!(
        r#"{{"resource_definition_name": "web", "volume_sizes": [{VOLUME_KIB}],
             "volume_passphrases": ["{PASSPHRASE}"]}}"#
    );
    post(&bed, "resource-groups/secret/spawn", &spawn)?;

    // Written through the engine: a file system, and noise in sectors of which none is like another.
    let device = mapped(&bed)?;
    let write = format!(
        "mkfs.ext4 -q -F {device} 64M && mount -t ext4 {device} /mnt && cp /bin/busybox /mnt/ours && \
         umount /mnt && dd if=/dev/urandom of=/run/noise bs=1M count=8 2>/dev/null && \
         dd if=/run/noise of={device} bs=1M seek=80 oflag=direct 2>/dev/null"
    );
    guest.run(&write, PATIENCE)?;
    stop_engine(&bed)?;

    // Without Ashlar: the kernel has it, and somebody who knows the passphrase.
    let open = format!(
        "export DM_DISABLE_UDEV=1; printf '%s' '{PASSPHRASE}' | cryptsetup open --key-file - {REPLICA} web"
    );
    guest.run(&open, PATIENCE)?;
    let size = guest.run("blockdev --getsize64 /dev/mapper/web", PATIENCE)?;
    let size: u64 = size.trim().parse()?;
    ensure!(size > VOLUME_KIB << 10, "metadata are within it, so it has more than {size} bytes");
    let read = "dd if=/dev/mapper/web bs=1M skip=80 count=8 2>/dev/null | cmp - /run/noise && \
                ! dd if=/dev/disks/web_00000 bs=1M skip=96 count=8 2>/dev/null | cmp -s - /run/noise && \
                fsck.ext4 -f -n /dev/mapper/web >/dev/null && mount -t ext4 /dev/mapper/web /mnt && \
                cmp /mnt/ours /bin/busybox && cp $(command -v fio) /mnt/its && umount /mnt && \
                dd if=/dev/urandom of=/run/more bs=1M count=8 2>/dev/null && \
                dd if=/run/more of=/dev/mapper/web bs=1M seek=70 oflag=direct 2>/dev/null && \
                DM_DISABLE_UDEV=1 cryptsetup close web";
    guest.run(read, PATIENCE)?;
    println!("dm-crypt read what the engine had written");

    start_engine(&bed)?;
    let device = mapped(&bed)?;
    let read = format!(
        "dd if={device} bs=1M skip=80 count=8 2>/dev/null | cmp - /run/noise && \
         dd if={device} bs=1M skip=70 count=8 2>/dev/null | cmp - /run/more && \
         fsck.ext4 -f -n {device} >/dev/null && mount -t ext4 {device} /mnt && \
         cmp /mnt/ours /bin/busybox && cmp /mnt/its $(command -v fio) && umount /mnt"
    );
    guest.run(&read, PATIENCE)?;
    bed.ashlar("unmap web")?;
    bed.ashlar("volume delete web")?;
    let left = guest.run("lvs --noheadings", PATIENCE)?;
    ensure!(left.trim().is_empty(), "the replica is left: {left}");
    println!("the engine read what dm-crypt had written");
    Ok(())
}

/// A call of the REST API.
fn post(bed: &Bed, path: &str, body: &str) -> Result<()> {
    let line = format!(
        "wget -q -O - --header 'Content-Type: application/json' --post-data '{body}' \
         http://127.0.0.1:3370/v1/{path}"
    );
    bed.guest.run(&line, PATIENCE).map(drop)
}

fn start_engine(bed: &Bed) -> Result<()> {
    let start = format!(
        "ashlar engine --node {NODE} --buffers 64 --threads 1 < /dev/null >> /tmp/engine 2>&1 & \
         echo $! > /tmp/pid"
    );
    bed.guest.run(&start, PATIENCE)?;
    bed.ashlar("info --wait-engine 60").map(drop)
}

/// The engine ends, and with it its agent's work: the disk is nobody's.
fn stop_engine(bed: &Bed) -> Result<()> {
    bed.ashlar("unmap web")?;
    bed.ashlar("shutdown")?;
    wait("the engine has ended", || {
        Ok(bed.guest.run("[ ! -d /proc/$(cat /tmp/pid) ]", PATIENCE).is_ok())
    })
}

/// The volume as a block device, once its key is known.
fn mapped(bed: &Bed) -> Result<String> {
    wait("the volume is UpToDate", || {
        Ok(bed.ashlar("status web --json").is_ok_and(|said| said.contains("\"UpToDate\"")))
    })?;
    let device = bed.ashlar("map web")?.trim().to_owned();
    ensure!(device.starts_with("/dev/ublkb"), "that is no device: {device:?}");
    Ok(device)
}
