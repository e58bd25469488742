//! `cargo xtask vm luks`: encrypted volumes in a guest that has device-mapper.
//!
//! First volumes that the kernel decrypts, through all that can happen to them. Then one that the engine does,
//! and dm-crypt on the same disk: each reads what the other has written. The engine has devices of all volumes,
//! which come and go with them.

use std::cell::RefCell;
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::blockdev::install;
use super::control::{Bed, NODE, NR, PATIENCE, wait};
use super::guest::Kind;
use super::image::Images;
use super::lvm;
use super::rig::Rig;

const DISK_MIB: u64 = 1536;
const VOLUME_KIB: u64 = 96 << 10;
/// Of the volumes, as an operator gives it to the REST API.
const PASSPHRASE: &str = "six stones in a wall";
const OTHER_PASSPHRASE: &str = "seven stones in a wall";
/// The disk of the engine's replica, which is a logical volume of LVM.
const REPLICA: &str = "/dev/disks/web_00000";
/// Where the kernel has its replicas.
const MAPPED: &str = "/dev/mapper/Linstor-Crypt-";

/// The command.
pub fn main() -> Result<()> {
    let images = Images::get(Kind::Emulated)?;
    let rig = Rig::new(&images)?;
    let modules = ["ublk_drv", "dm-mod", "dm-thin-pool", "dm-crypt", "ext4"];
    let guest = rig.boot(Kind::Emulated, NR, DISK_MIB, &modules)?;
    guest.run(lvm::LVM, PATIENCE)?;
    let found = ["/usr/sbin/dmsetup", "/sbin/dmsetup"].map(Path::new);
    let dmsetup = found.into_iter().find(|path| path.exists()).unwrap_or(found[0]);
    install(&guest, dmsetup, "/bin/dmsetup")?;
    let bed = Bed::start(&rig, guest, Kind::Emulated)?;
    start_engine(&bed)?;
    bed.ashlar(&format!("physical-storage create disks lvm {} --on {NODE}", bed.disk))?;
    let thin =
        "lvcreate --yes --type thin-pool --size 600M --poolmetadatasize 4M --name thin disks";
    bed.guest.run(thin, PATIENCE)?;
    bed.ashlar(&format!("storage-pool create thin lvm-thin disks/thin --on {NODE}"))?;
    post(&bed, "encryption/passphrase", r#"{"new_passphrase": "of the cluster"}"#)?;
    for pool in ["disks", "thin"] {
        let group = format!(
            r#"{{"name": "{pool}", "select_filter": {{"place_count": 1,
                 "layer_stack": ["DRBD", "LUKS", "STORAGE"], "storage_pool": "{pool}"}}}}"#
        );
        post(&bed, "resource-groups", &group)?;
    }
    by_kernel(&bed)?;
    snapshots_by_kernel(&bed)?;
    bed.stop_agent()?;
    bed.start_agent("--luks engine")?;
    by_engine(&bed)
}

/// A volume that the kernel decrypts: engines that die, growth, another passphrase, a start of the node.
fn by_kernel(bed: &Bed) -> Result<()> {
    let guest = &bed.guest;
    spawn(bed, "disks", "dark")?;
    let device = mapped(bed, "dark")?;
    let crypt = format!("{MAPPED}dark_00000");
    let looked = format!(
        "cryptsetup status {crypt} | grep -q 'type: *LUKS2' && \
         dmsetup table {crypt} | grep ' crypt aes-xts-plain64 ' | grep -vq allow_discards"
    );
    guest.run(&looked, PATIENCE)?;
    let layer = layer(bed, "dark")?;
    ensure!(layer["device_path"] == crypt.as_str(), "the API does not say where it is: {layer}");
    let backing = "/dev/disks/dark_00000";
    ensure!(layer["backing_device"] == backing, "the API does not say what is below: {layer}");
    let write = format!(
        "dd if=/dev/urandom of=/run/noise bs=1M count=8 2>/dev/null && \
         dd if=/run/noise of={device} bs=1M seek=80 oflag=direct 2>/dev/null && \
         ! dd if={backing} bs=1M skip=96 count=8 iflag=direct 2>/dev/null | cmp -s - /run/noise"
    );
    guest.run(&write, PATIENCE)?;

    // The engine dies; what is open stays, and nobody has to know a key.
    bed.stop_agent()?;
    let kill = "kill -9 $(cat /tmp/pid); while [ -d /proc/$(cat /tmp/pid) ]; do sleep 0.1; done";
    guest.run(kill, PATIENCE)?;
    start_engine(bed)?;
    has_noise(bed, "dark")?;
    bed.start_agent("")?;

    let size = || -> Result<u64> {
        Ok(guest.run(&format!("blockdev --getsize64 {crypt}"), PATIENCE)?.trim().parse()?)
    };
    let before = size()?;
    bed.ashlar("volume resize dark 160M")?;
    ensure!(size()? >= before + (60 << 20), "the device has not grown while it was in use");
    wait("the volume's device grows, or is made anew", || {
        let size = guest.run("blockdev --getsize64 /dev/drbd/by-res/dark/0", PATIENCE);
        let size = size.ok().and_then(|size| size.trim().parse::<u64>().ok());
        Ok(size.is_some_and(|size| size >= 160 << 20))
    })?;
    has_noise(bed, "dark")?;
    println!("an engine that died, and growth: the kernel's device went on");

    let change = format!("echo '{OTHER_PASSPHRASE}' | ashlar volume passphrase dark");
    guest.run(&change, PATIENCE)?;
    // As after a start of the node: nothing is open, and the engine is up before its agent.
    bed.stop_agent()?;
    end_engine(bed)?;
    guest.run(&format!("DM_DISABLE_UDEV=1 cryptsetup close {crypt}"), PATIENCE)?;
    let opens = format!("cryptsetup open --test-passphrase --key-file - {backing}");
    guest.run(&format!("printf '%s' '{OTHER_PASSPHRASE}' | {opens}"), PATIENCE)?;
    guest.run(&format!("! printf '%s' '{PASSPHRASE}' | {opens}"), PATIENCE)?;
    start_engine(bed)?;
    let why = bed.ashlar("why dark")?;
    ensure!(why.contains("encrypted and not open"), "that does not say what is missing:\n{why}");
    bed.start_agent("")?;
    has_noise(bed, "dark")?;

    // Somebody has it open: nothing is deleted.
    let hold = format!("sleep 1000 < {crypt} > /dev/null 2>&1 & echo $! > /tmp/holder");
    guest.run(&hold, PATIENCE)?;
    // It waits for what does not come.
    let said = when_closed(bed, "timeout 60 ashlar volume delete dark 2>&1; true")?;
    guest.run("lvs --noheadings disks/dark_00000 && kill $(cat /tmp/holder)", PATIENCE)?;
    let log = guest.run("grep 'can not be closed' /tmp/agent | tail -n 1", PATIENCE)?;
    ensure!(
        log.contains(&crypt) && log.contains("lsblk"),
        "that does not say who is in the way: {log}; {said}"
    );
    wait("the volume is gone", || {
        Ok(guest.run("! lvs --noheadings disks/dark_00000 2>/dev/null", PATIENCE).is_ok())
    })?;
    nothing_is_open(bed)?;
    println!("another passphrase, a start of the node, a volume in use: as was to be");
    Ok(())
}

/// Snapshots of a volume that the kernel decrypts.
fn snapshots_by_kernel(bed: &Bed) -> Result<()> {
    let guest = &bed.guest;
    spawn(bed, "thin", "light")?;
    let device = mapped(bed, "light")?;
    let write = format!("dd if=/run/noise of={device} bs=1M seek=80 oflag=direct 2>/dev/null");
    guest.run(&write, PATIENCE)?;
    // LVM reads every block device that it may, and this one answers when the snapshot is there.
    bed.ashlar("snapshot create light one")?;
    let spoil =
        format!("dd if=/dev/urandom of={device} bs=1M count=8 seek=80 oflag=direct 2>/dev/null");
    guest.run(&spoil, PATIENCE)?;
    bed.ashlar("snapshot restore light one copy")?;
    has_noise(bed, "copy")?;
    guest.run(&format!("dmsetup table {MAPPED}copy_00000 | grep -q ' crypt '"), PATIENCE)?;
    when_closed(bed, "ashlar snapshot rollback light one 2>&1")?;
    has_noise(bed, "light")?;
    for volume in ["copy", "light"] {
        if volume == "light" {
            bed.ashlar("snapshot delete light one")?;
        }
        when_closed(bed, &format!("ashlar volume delete {volume} 2>&1"))?;
    }
    nothing_is_open(bed)?;
    let left = guest.run("lvs --noheadings -o lv_name disks", PATIENCE)?;
    ensure!(left.split_whitespace().eq(["thin"]), "something is left: {left}");
    println!("snapshots of a volume that the kernel decrypts are restored, and gone back to");
    Ok(())
}

/// A volume that the engine decrypts, and dm-crypt on the same disk.
fn by_engine(bed: &Bed) -> Result<()> {
    let guest = &bed.guest;
    spawn(bed, "disks", "web")?;
    // Written through the engine: a file system, and noise in sectors of which none is like another.
    let device = mapped(bed, "web")?;
    nothing_is_open(bed)?;
    let layer = layer(bed, "web")?;
    ensure!(layer["device_path"].is_null(), "the engine needs no device: {layer}");
    let write = format!(
        "mkfs.ext4 -q -F {device} 64M && mount -t ext4 {device} /mnt && cp /bin/busybox /mnt/ours && \
         umount /mnt && dd if=/run/noise of={device} bs=1M seek=80 oflag=direct 2>/dev/null"
    );
    guest.run(&write, PATIENCE)?;
    end_engine(bed)?;

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

    start_engine(bed)?;
    let device = mapped(bed, "web")?;
    let read = format!(
        "dd if={device} bs=1M skip=80 count=8 2>/dev/null | cmp - /run/noise && \
         dd if={device} bs=1M skip=70 count=8 2>/dev/null | cmp - /run/more && \
         fsck.ext4 -f -n {device} >/dev/null && mount -t ext4 {device} /mnt && \
         cmp /mnt/ours /bin/busybox && cmp /mnt/its $(command -v fio) && umount /mnt"
    );
    guest.run(&read, PATIENCE)?;
    when_closed(bed, "ashlar volume delete web 2>&1")?;
    let left = guest.run("lvs --noheadings -o lv_name disks", PATIENCE)?;
    ensure!(left.split_whitespace().eq(["thin"]), "the replica is left: {left}");
    println!("the engine read what dm-crypt had written");
    Ok(())
}

/// Runs a line again for as long as it is refused because a volume is open: that its last user is gone is noticed
/// some 0.1 s later.
fn when_closed(bed: &Bed, line: &str) -> Result<String> {
    let said = RefCell::new(Err(String::new()));
    wait("the volume is not open any more", || {
        let answer = match bed.guest.run(line, PATIENCE) {
            Ok(said) => Ok(said),
            Err(error) => Err(format!("{error:#}")),
        };
        let is_open = answer.as_ref().unwrap_or_else(|error| error).contains("open on node");
        *said.borrow_mut() = answer;
        Ok(!is_open)
    })?;
    said.into_inner().map_err(anyhow::Error::msg)
}

/// A call of the REST API.
fn post(bed: &Bed, path: &str, body: &str) -> Result<()> {
    let line = format!(
        "wget -q -O - --header 'Content-Type: application/json' --post-data '{body}' \
         http://127.0.0.1:3370/v1/{path}"
    );
    bed.guest.run(&line, PATIENCE).map(drop)
}

/// Makes a volume of a group.
fn spawn(bed: &Bed, group: &str, volume: &str) -> Result<()> {
    let spawn = format!(
        r#"{{"resource_definition_name": "{volume}", "volume_sizes": [{VOLUME_KIB}],
             "volume_passphrases": ["{PASSPHRASE}"]}}"#
    );
    post(bed, &format!("resource-groups/{group}/spawn"), &spawn)
}

/// What the REST API says of the layer LUKS of a volume.
fn layer(bed: &Bed, volume: &str) -> Result<Value> {
    let view = format!("wget -q -O - 'http://127.0.0.1:3370/v1/view/resources?resources={volume}'");
    let shown: Value = serde_json::from_str(&bed.guest.run(&view, PATIENCE)?)?;
    let layers = shown[0]["volumes"][0]["layer_data_list"].as_array().cloned().unwrap_or_default();
    let luks = layers.into_iter().find(|layer| layer["type"] == "LUKS");
    Ok(luks.map(|luks| luks["data"].clone()).unwrap_or_default())
}

fn start_engine(bed: &Bed) -> Result<()> {
    let start = format!(
        "ashlar engine --node {NODE} --buffers 64 --threads 1 --devices auto < /dev/null >> /tmp/engine 2>&1 & \
         echo $! > /tmp/pid"
    );
    bed.guest.run(&start, PATIENCE)?;
    bed.ashlar("info --wait-engine 60").map(drop)
}

/// The engine ends, and with it its agent's work: its disks are nobody's.
fn end_engine(bed: &Bed) -> Result<()> {
    bed.ashlar("shutdown")?;
    wait("the engine has ended", || {
        Ok(bed.guest.run("[ ! -d /proc/$(cat /tmp/pid) ]", PATIENCE).is_ok())
    })
}

/// The block device of a volume, once its key is known.
fn mapped(bed: &Bed, volume: &str) -> Result<String> {
    wait("the volume is UpToDate", || {
        let said = bed.ashlar(&format!("status {volume} --json"));
        Ok(said.is_ok_and(|said| said.contains("\"UpToDate\"")))
    })?;
    let link = format!("/dev/drbd/by-res/{volume}/0");
    wait("the volume has a device", || {
        Ok(bed.guest.run(&format!("[ -b {link} ]"), PATIENCE).is_ok())
    })?;
    let device = bed.guest.run(&format!("readlink -f {link}"), PATIENCE)?.trim().to_owned();
    ensure!(device.starts_with("/dev/ublkb"), "that is no device: {device:?}");
    Ok(device)
}

/// The volume has what was written first.
fn has_noise(bed: &Bed, volume: &str) -> Result<()> {
    let device = mapped(bed, volume)?;
    let read =
        format!("dd if={device} bs=1M skip=80 count=8 iflag=direct 2>/dev/null | cmp - /run/noise");
    bed.guest.run(&read, PATIENCE).map(drop)
}

/// The kernel decrypts nothing.
fn nothing_is_open(bed: &Bed) -> Result<()> {
    let table = bed.guest.run("dmsetup table --target crypt; ls /dev/mapper", PATIENCE)?;
    ensure!(!table.contains("Linstor-Crypt"), "something is open: {table}");
    Ok(())
}
