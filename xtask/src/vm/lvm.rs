//! `cargo xtask vm lvm`: the tests of LVM's pools, on a volume group of a guest; and physical storage, with a
//! controller and an agent in another guest.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::blockdev::install;
use super::engine::binary;
use super::guest::{Guest, Kind};
use super::image::Images;
use super::rig::{Rig, address};
use super::{DISK_MIB, PATIENCE};
use crate::process;

/// A user-mode guest: up in seconds, and its kernel has thin volumes.
const MODULES: [&str; 2] = ["dm-mod", "dm-thin-pool"];
/// Building the test included.
const TEST_PATIENCE: Duration = Duration::from_secs(600);
/// The disk of which pools are made; smaller ones are not told of.
const LARGE_MIB: u64 = 2048;

/// LVM's commands, and what they need where nobody answers for udev: LVM makes its device nodes itself.
const LVM: &str = "for tool in pvs vgs lvs pvcreate pvremove vgcreate vgremove lvcreate lvextend lvremove \
                   lvrename; do ln -sf $(command -v lvm) /bin/$tool; done && mkdir -p /etc/lvm && \
                   printf 'activation { udev_sync=0 udev_rules=0 }\\n\
                   devices { use_devicesfile=0 obtain_device_list_from_udev=0 }\\n' > /etc/lvm/lvm.conf";

/// Boots a guest with a volume group `vg` and in it a thin pool `thin`, and runs the tests.
pub fn pools() -> Result<()> {
    let images = Images::get(Kind::UserMode)?;
    let rig = Rig::new(&images)?;
    let guest = rig.boot(Kind::UserMode, 1, DISK_MIB, &MODULES)?;
    let disk = Kind::UserMode.disk();
    guest.run(
        &format!(
            "{LVM} && vgcreate --yes vg {disk} \
             && lvcreate --yes --type thin-pool --size 16M --poolmetadatasize 4M --name thin vg"
        ),
        PATIENCE,
    )?;
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--package", "agent", "--test", "lvm", "--", "--nocapture"]);
    command.env("ASHLAR_LVM_GUEST", guest.ssh_words());
    let said = process::output(command, TEST_PATIENCE)?;
    ensure!(!said.contains("skipped:"), "the tests did not find the guest:\n{said}");
    print!("{said}");
    Ok(())
}

/// Boots a guest with a disk of which pools can be made, and has that done.
pub fn physical() -> Result<()> {
    let images = Images::get(Kind::UserMode)?;
    let rig = Rig::new(&images)?;
    let guest = rig.boot(Kind::UserMode, 2, LARGE_MIB, &MODULES)?;
    physical_storage(&rig, &guest)?;
    println!("physical storage: a guest's disk became pools, and nothing else did");
    Ok(())
}

/// An operator's command in the guest; what it printed.
fn ashlar(guest: &Guest, line: &str) -> Result<String> {
    guest.run(&format!("ashlar {line}"), PATIENCE).with_context(|| {
        let log = guest.run("tail -n 30 /tmp/agent /tmp/controller", PATIENCE);
        log.unwrap_or_default()
    })
}

/// A command that has to be refused with these words.
fn refused(guest: &Guest, line: &str, words: &str) -> Result<()> {
    match guest.run(&format!("ashlar {line}"), PATIENCE) {
        Ok(said) => bail!("`{line}` was not refused: {said}"),
        Err(error) => {
            let error = format!("{error:#}");
            ensure!(error.contains(words), "`{line}` does not say {words:?}:\n{error}");
            Ok(())
        }
    }
}

/// The disks that nobody uses, as the controller tells.
fn unused(guest: &Guest) -> Result<Vec<String>> {
    let rows: Vec<Value> = serde_json::from_str(&ashlar(guest, "physical-storage list --json")?)?;
    let device = |row: &Value| row["device"].as_str().unwrap_or_default().to_owned();
    let large = |row: &Value| row["size_bytes"] == json!(LARGE_MIB << 20) && row["node"] == "g2";
    ensure!(rows.iter().all(large), "these are none of the guest's disks: {rows:?}");
    Ok(rows.iter().map(device).collect())
}

/// A controller and an agent, both in the guest, which has the node's name.
fn start(rig: &Rig<'_>, guest: &Guest) -> Result<()> {
    let stripped = rig.file("ashlar");
    let mut strip = process::command("strip");
    strip.arg("-o").arg(&stripped).arg(binary()?);
    process::output(strip, PATIENCE)?;
    install(guest, &stripped, "/bin/ashlar")?;
    install(guest, Path::new("/usr/bin/lsblk"), "/bin/lsblk")?;
    guest.run(LVM, PATIENCE)?;
    let controller = "ashlar controller --data-dir /controller --listen 127.0.0.1:3370 \
                      --listen-agents 127.0.0.1:3377 < /dev/null > /tmp/controller 2>&1 &";
    guest.run(controller, PATIENCE)?;
    wait("the controller serves", || Ok(ashlar(guest, "node list").is_ok()))?;
    let invited = ashlar(guest, &format!("node create g2={} --invite 127.0.0.1", address(2)))?;
    let (_, join) = invited.trim().split_once(": ashlar ").context("there is no invitation")?;
    ashlar(guest, join)?;
    guest.run("ashlar agent < /dev/null > /tmp/agent 2>&1 &", PATIENCE)?;
    wait("the node is online", || {
        let nodes: Value = serde_json::from_str(&ashlar(guest, "node list --json")?)?;
        Ok(nodes[0].to_string().to_ascii_lowercase().contains("online"))
    })
}

fn wait(what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !is_so()? {
        ensure!(begun.elapsed() < PATIENCE, "that {what} does not come true");
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

/// Pools are made of the guest's disk through the REST API, by the operator's commands.
fn physical_storage(rig: &Rig<'_>, guest: &Guest) -> Result<()> {
    start(rig, guest)?;
    let disk = Kind::UserMode.disk();
    ensure!(unused(guest)? == [disk], "the disk is not told of");

    // A file system is seen, mounted or not, and left as it is.
    let create = format!("physical-storage create ssd lvm-thin {disk} --on g2");
    guest.run(
        &format!("mkfs.ext4 -q {disk} && mount -t ext4 {disk} /mnt && echo kept > /mnt/file"),
        PATIENCE,
    )?;
    ensure!(unused(guest)?.is_empty(), "a disk that is mounted is told of");
    refused(guest, &create, "is not unused: it is mounted at /mnt")?;
    guest.run("umount /mnt", PATIENCE)?;
    ensure!(unused(guest)?.is_empty(), "a disk with a file system is told of");
    refused(guest, &create, "is not unused: it has a signature of ext4")?;
    let kept = guest
        .run(&format!("mount -t ext4 {disk} /mnt && cat /mnt/file && umount /mnt"), PATIENCE)?;
    ensure!(kept == "kept\n", "what was refused has changed the disk");
    let wipe = format!("dd if=/dev/zero of={disk} bs=1M count=4 conv=fsync 2>/dev/null");
    guest.run(&wipe, PATIENCE)?;
    ensure!(unused(guest)? == [disk], "a disk that was wiped is not told of");

    // The last step fails: nothing is left of the others.
    guest.run("rm /bin/lvcreate && printf '#!/bin/sh\\necho no >&2\\nexit 5\\n' > /bin/lvcreate && chmod +x /bin/lvcreate", PATIENCE)?;
    refused(guest, &create, "thin pool linstor_ssd/ssd could not be made")?;
    let left = guest.run("vgs --noheadings; pvs --noheadings", PATIENCE)?;
    ensure!(left.trim().is_empty() && unused(guest)? == [disk], "something is left: {left}");
    guest.run("ln -sf $(command -v lvm) /bin/lvcreate", PATIENCE)?;

    ashlar(guest, &create)?;
    let made = guest.run("lvs --noheadings --options lv_name,vg_name,lv_layout", PATIENCE)?;
    let words: Vec<&str> = made.split_whitespace().collect();
    ensure!(words == ["ssd", "linstor_ssd", "thin,pool"], "that is no thin pool: {made}");
    pool_is(guest, "ssd", "linstor_ssd/ssd")?;
    ensure!(unused(guest)?.is_empty(), "a disk that is a pool is told of");
    let again = format!("physical-storage create hdd lvm {disk} --on g2");
    refused(guest, &again, "is not unused: there is something on it")?;

    // The same disk as a volume group, once it is free.
    ashlar(guest, "storage-pool delete ssd --on g2")?;
    let free = format!("lvremove --yes linstor_ssd/ssd && vgremove linstor_ssd && pvremove {disk}");
    guest.run(&free, PATIENCE)?;
    ensure!(unused(guest)? == [disk], "a disk that is free again is not told of");
    ashlar(guest, &format!("{again} --place slow"))?;
    pool_is(guest, "hdd", "slow")?;
    refused(guest, &create, "is not unused: it has a signature of LVM2_member")
}

/// The controller has a storage pool that the agent can use.
fn pool_is(guest: &Guest, name: &str, place: &str) -> Result<()> {
    let pools: Vec<Value> = serde_json::from_str(&ashlar(guest, "storage-pool list --json")?)?;
    let pool = pools.iter().find(|pool| pool["pool"] == name).context("there is no such pool")?;
    let free = pool["free_kib"].as_u64().unwrap_or(0);
    let usable = pool["problems"] == json!([]) && free > (LARGE_MIB - 256) << 10;
    ensure!(pool["place"] == place && usable, "storage pool {name} is not as it should be: {pool}");
    Ok(())
}
