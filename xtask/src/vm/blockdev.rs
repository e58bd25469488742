//! `cargo xtask vm blockdev`: volumes as block devices of a real kernel.
//!
//! One engine in an emulated guest, which has ublk, and one on the host's side of the network, with a
//! replica each. What is used of the device: file systems, checksums, discards, partitions, LVM,
//! dm-crypt; what happens to it: a peer that dies and comes back under load, a refused and a granted
//! unmap, an engine that is killed, another node that writes meanwhile. In the end the replicas are compared byte for byte.
//!
//! - `nodes`: the two engines. `standby`: a device whose volume is not open all the time. `user`: an engine that is not root.
//!   `bench`: what the device costs. This file: the steps.

pub mod bench;
mod nodes;
mod standby;
mod user;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::engine::binary;
use super::guest::{Guest, Kind};
use super::image::Images;
use super::rig::Rig;
use crate::process;
use nodes::Nodes;

/// XFS has no file systems below 300 MiB. One MiB is for metadata.
pub(super) const DISK_MIB: u64 = 385;
/// How long a step may take in a guest that is this slow, on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(300);

/// A step of the test: what is shown to work, and the shell script that shows it.
struct Step {
    what: &'static str,
    /// Part of a brief test, too.
    is_brief: bool,
    script: &'static str,
}

/// `$dev` is the device, `$fio` fio with checks of what it has written.
const STEPS: &[Step] = &[
    Step {
        what: "the queue's limits",
        is_brief: true,
        script: "cd /sys/block/${dev#/dev/}/queue && is() { [ \"$(cat $1)\" = \"$2\" ] || \
                 { echo $1 is $(cat $1), not $2 >&2; exit 1; }; } && is logical_block_size 512 && \
                 is physical_block_size 4096 && is max_hw_sectors_kb 1024 && \
                 is discard_granularity 4096 && is discard_max_hw_bytes $((64 << 20)) && \
                 is write_zeroes_max_bytes $((64 << 20)) && is fua 1 && \
                 is write_cache 'write back' && \
                 [ $(ls ../mq | wc -l) = $(nproc) ] && [ $(blockdev --getsize64 $dev) -ge $((384 << 20)) ]",
    },
    Step {
        what: "verified writes of all sizes, with flushes and FUA, to the device itself",
        is_brief: true,
        script: "$fio --name=raw --filename=$dev --direct=1 --rw=randrw --bsrange=512-256k \
                 --blockalign=512 --size=64m --io_size=24m --iodepth=16 --fsync=64 && \
                 $fio --name=fua --filename=$dev --direct=1 --sync=1 --rw=randwrite --bs=4k \
                 --offset=96m --size=16m --io_size=1m --iodepth=4",
    },
    Step {
        what: "trims among verified writes",
        is_brief: true,
        script: "$fio --name=trim --filename=$dev --direct=1 --rw=randtrimwrite --bs=64k \
                 --size=32m --io_size=8m --iodepth=8",
    },
    Step {
        what: "discard and zeroes",
        is_brief: false,
        script: "dd if=/dev/urandom of=$dev bs=1M count=8 conv=fsync 2>/dev/null && \
                 $blkdiscard -o 1M -l 2M $dev && $blkdiscard -z -o 4M -l 2M $dev && \
                 [ $(dd if=$dev bs=1M skip=4 count=2 2>/dev/null | tr -d '\\0' | wc -c) = 0 ] && \
                 [ $(dd if=$dev bs=1M skip=6 count=1 2>/dev/null | tr -d '\\0' | wc -c) -gt 0 ]",
    },
    Step {
        what: "ext4",
        is_brief: true,
        script: "mkfs.ext4 -q -F $dev && mount -t ext4 -o discard $dev /mnt && \
                 $fio --name=file --directory=/mnt --rw=randrw --bsrange=1k-64k --size=16m \
                 --fsync=32 --iodepth=4 && cp /bin/busybox /mnt/ && rm /mnt/file* && fstrim /mnt && \
                 umount /mnt && fsck.ext4 -f -n $dev >/dev/null && mount -t ext4 $dev /mnt && \
                 cmp /bin/busybox /mnt/busybox && umount /mnt",
    },
    Step {
        what: "XFS",
        is_brief: false,
        script: "mkfs.xfs -q -f $dev && mount -t xfs $dev /mnt && \
                 $fio --name=file --directory=/mnt --rw=randrw --bsrange=1k-64k --size=16m \
                 --fsync=32 --iodepth=4 && cp /bin/busybox /mnt/ && umount /mnt && \
                 xfs_repair -n $dev >/dev/null 2>&1 && mount -t xfs $dev /mnt && \
                 cmp /bin/busybox /mnt/busybox && umount /mnt",
    },
    Step {
        what: "a partition table",
        is_brief: false,
        script: "$blkdiscard -z -l 1M $dev && \
                 printf 'o\\nn\\np\\n1\\n\\n+64M\\nn\\np\\n2\\n\\n\\nw\\n' | fdisk $dev >/dev/null && \
                 blockdev --rereadpt $dev && mkfs.ext4 -q -F ${dev}p1 && \
                 mount -t ext4 ${dev}p1 /mnt && echo kept > /mnt/file && umount /mnt && \
                 [ -b ${dev}p2 ] && $blkdiscard -z -l 1M $dev && blockdev --rereadpt $dev && \
                 [ ! -b ${dev}p1 ]",
    },
    Step {
        what: "LVM",
        is_brief: false,
        // The replica's own disk has the same signatures, as with every DRBD.
        script: "export LVM_SYSTEM_DIR=/tmp/lvm DM_DISABLE_UDEV=1 && mkdir -p /tmp/lvm && \
                 echo 'devices { filter = [ \"a|/dev/ublkb|\", \"r|.*|\" ] }' > /tmp/lvm/lvm.conf && \
                 lvm pvcreate -q -ff -y $dev >/dev/null && lvm vgcreate -q vg $dev >/dev/null && \
                 lvm lvcreate -q -y -Zn -Wn -n lv -L 64M vg >/dev/null && \
                 mkfs.ext4 -q -F /dev/vg/lv && mount -t ext4 /dev/vg/lv /mnt && \
                 cp /bin/busybox /mnt/ && cmp /bin/busybox /mnt/busybox && umount /mnt && \
                 lvm vgremove -q -f -y vg >/dev/null && lvm pvremove -q -y $dev >/dev/null",
    },
    Step {
        what: "dm-crypt",
        is_brief: false,
        script: "export DM_DISABLE_UDEV=1 && \
                 head -c 64 /dev/urandom > /tmp/key && cryptsetup open --type plain --cipher \
                 aes-xts-plain64 --key-size 512 --key-file /tmp/key $dev crypt && \
                 mkfs.ext4 -q -F /dev/mapper/crypt && mount -t ext4 /dev/mapper/crypt /mnt && \
                 cp /bin/busybox /mnt/ && umount /mnt && cryptsetup close crypt && \
                 cryptsetup open --type plain --cipher aes-xts-plain64 --key-size 512 \
                 --key-file /tmp/key $dev crypt && mount -t ext4 /dev/mapper/crypt /mnt && \
                 cmp /bin/busybox /mnt/busybox && umount /mnt && cryptsetup close crypt",
    },
];

/// The command, in a guest of an emulated kind. A brief test has what kernels may do differently: the driver's
/// limits and requests, its recovery, its new size.
pub fn main(kind: Kind, brief: bool) -> Result<()> {
    on_nodes(kind, |nodes| steps(nodes, brief))
}

/// The peer of a mapped volume dies so many times under load, until the first error.
pub fn deaths(kind: Kind, times: u32) -> Result<()> {
    on_nodes(kind, |nodes| {
        maps(nodes)?;
        peer_dies(nodes, times)?;
        unmap(nodes)?;
        compare(nodes)
    })
}

fn on_nodes(kind: Kind, test: impl FnOnce(&mut Nodes<'_>) -> Result<()>) -> Result<()> {
    let images = Images::get(kind)?;
    let rig = Rig::new(&images)?;
    let modules = ["ublk_drv", "nbd", "dm-crypt", "ext4", "xfs", "loop"];
    let guest = rig.boot(kind, 1, DISK_MIB, &modules)?;
    println!("guest: Linux {}", guest.run("uname -r", PATIENCE)?.trim());
    let mut nodes = Nodes::start(&rig, &guest, binary()?)?;
    test(&mut nodes)
}

fn steps(nodes: &mut Nodes<'_>, brief: bool) -> Result<()> {
    maps(nodes)?;
    limits(nodes, brief)?;
    peer_dies(nodes, 1)?;
    refusals(nodes)?;
    user::has_a_device(nodes)?;
    engine_dies(nodes, if brief { 1 } else { 2 })?;
    engine_is_replaced(nodes, if brief { 1 } else { 3 })?;
    if !brief {
        written_elsewhere(nodes)?;
        read_only(nodes)?;
        kernel_nbd(nodes)?;
    }
    unmap(nodes)?;
    standby::has_a_device(nodes)?;
    nbd_face(nodes)?;
    for options in ["", "--face nbd"] {
        grows(nodes, options)?;
    }
    compare(nodes)
}

fn compare(nodes: &mut Nodes<'_>) -> Result<()> {
    let begun = Instant::now();
    nodes.compare()?;
    done("the replicas are equal", begun);
    Ok(())
}

fn done(what: &str, begun: Instant) {
    println!("{what}: good ({:.0} s)", begun.elapsed().as_secs_f64());
}

/// The volume gets a device, and names.
fn maps(nodes: &mut Nodes<'_>) -> Result<()> {
    let begun = Instant::now();
    let info: Value = serde_json::from_str(&nodes.guest_ashlar("info --json")?)?;
    ensure!(info["faces"][0]["usable"] == true, "ublk can not be used here: {info}");
    println!("ublk features: {}", info["faces"][0]["features"]);
    let device = nodes.map("--drbd-names --queues 2 --depth 64")?;
    ensure!(nodes.map("--drbd-names --queues 2 --depth 64")? == device, "the same is the same");
    for link in ["/dev/ashlar/r0/0", "/dev/drbd0", "/dev/drbd/by-res/r0/0"] {
        let to = nodes.guest.run(&format!("readlink -f {link}"), PATIENCE)?;
        ensure!(to.trim() == device, "{link} leads to {to}, not {device}");
    }
    ensure!(nodes.is_primary()?, "a mapped volume makes its node Primary");
    done(&format!("r0/0 is {device}"), begun);
    Ok(())
}

/// What file systems and others do with a device.
fn limits(nodes: &mut Nodes<'_>, brief: bool) -> Result<()> {
    let mut failed = 0;
    for Step { what, script, .. } in STEPS.iter().filter(|step| step.is_brief || !brief) {
        let begun = Instant::now();
        match nodes.on_device(script) {
            Ok(_) => done(what, begun),
            Err(error) => {
                println!("{what}: FAILED: {error:#}");
                failed += 1;
                // The next one finds the device unused.
                let tidy = "umount /mnt; cryptsetup close crypt; LVM_SYSTEM_DIR=/tmp/lvm lvm vgchange -an vg";
                let _ = nodes.on_device(tidy);
            }
        }
        process::check_signals()?;
    }
    ensure!(failed == 0, "{failed} uses of the device failed");
    let maps: Value = serde_json::from_str(&nodes.guest_ashlar("maps --json")?)?;
    let registers = maps[0]["features"].to_string().contains("auto-buf-reg");
    let placed = maps[0]["reads-in-place"].as_u64().context("nobody has counted")?;
    println!("the device uses {}; {placed} reads were not copied", maps[0]["features"]);
    ensure!(registers == (placed > 0), "reads of a disk go where they are wanted, where they can");
    Ok(())
}

/// The peer is killed while the device is written, and comes back; nothing is lost.
fn peer_dies(nodes: &mut Nodes<'_>, times: u32) -> Result<()> {
    for _ in 0..times {
        let begun = Instant::now();
        // At least ten seconds of it, however fast the guest is.
        let mut fio = nodes.load(
            "--name=load --filename=$dev --direct=1 --rw=randwrite --bs=4k --size=64m --io_size=16m \
             --iodepth=16 --fsync=256 --rate_iops=400",
        )?;
        std::thread::sleep(Duration::from_secs(3));
        nodes.kill_peer();
        nodes.wait("the peer is missed", |status| {
            status[0]["connections"][0]["connection-state"] != "Connected"
        })?;
        ensure!(fio.runs()?, "the load ended before the peer was lost\n{}", nodes.logs());
        std::thread::sleep(Duration::from_secs(3));
        nodes.start_peer()?;
        nodes.wait("the peer is UpToDate again", Nodes::is_in_sync)?;
        nodes.wait_load(fio)?;
        done("loss and return of a peer under load", begun);
    }
    Ok(())
}

/// A device that is used stays.
fn refusals(nodes: &mut Nodes<'_>) -> Result<()> {
    let begun = Instant::now();
    nodes.on_device("mkfs.ext4 -q -F $dev && mount -t ext4 $dev /mnt && echo kept > /mnt/file")?;
    let refused = nodes.guest_ashlar("unmap r0/0").err().context("a mounted device stays")?;
    ensure!(format!("{refused:#}").contains("mounted at /mnt"), "{refused:#}");
    let refused = nodes.guest_ashlar("down r0").err().context("a mapped volume stays")?;
    ensure!(format!("{refused:#}").contains("unmap"), "{refused:#}");
    nodes.on_device("umount /mnt; (sleep 20 < $dev) > /dev/null 2>&1 & sleep 1")?;
    let refused = nodes.guest_ashlar("unmap r0/0").err().context("an open device stays")?;
    ensure!(format!("{refused:#}").contains("sleep"), "{refused:#}");
    nodes.on_device("killall sleep; sleep 1")?;
    nodes.guest_ashlar("unmap r0/0")?;
    ensure!(nodes.guest_ashlar("maps")?.is_empty(), "there are no maps left");
    let left = nodes.guest.run("ls /dev | grep -e '^ublk[bc]' -e '^drbd0' || true", PATIENCE)?;
    ensure!(left.is_empty(), "there is left: {left}");
    nodes.wait("the node is Secondary", |status| status[0]["role"] == "Secondary")?;
    // And nothing of the activity log is left, which a resync after the next crash would go through.
    nodes.guest_ashlar("down r0")?;
    nodes.guest_ashlar("up r0 --node alpha")?;
    nodes.wait("the disks are UpToDate", Nodes::is_in_sync)?;
    nodes.map("--drbd-names")?;
    nodes.on_device("mount -t ext4 $dev /mnt && grep -q kept /mnt/file")?;
    done("what is open is not unmapped, the rest is", begun);
    Ok(())
}

/// The engine is killed under a mounted file system and load. The device waits for the next engine, and
/// goes on without an error.
fn engine_dies(nodes: &mut Nodes<'_>, times: u32) -> Result<()> {
    let begun = Instant::now();
    nodes.on_device("cp /bin/busybox /mnt/synced && sync")?;
    for _ in 0..times {
        // One that is being resynced can not tell whether its data are what they were.
        nodes.wait("the disks are UpToDate", Nodes::is_in_sync)?;
        let mut fio = nodes.load(
            "--name=load --directory=/mnt --rw=randrw --bs=4k --size=16m --iodepth=8 --direct=1 \
             --fsync=64 --rate_iops=200",
        )?;
        std::thread::sleep(Duration::from_secs(4));
        nodes.restart_engine()?;
        ensure!(fio.runs()?, "the load ended before the engine was killed");
        nodes.wait_load(fio)?;
        println!("killed and started; I/O waited {} ms", nodes.longest_wait()?.as_millis());
    }
    nodes.wait_mapped()?;
    nodes.on_device(
        "! dmesg | grep -i 'i/o error' && cmp /bin/busybox /mnt/synced && umount /mnt && \
         fsck.ext4 -f -n $dev >/dev/null",
    )?;
    let log = nodes.guest.run("grep -c 'ublkb.* goes on' /tmp/log", PATIENCE)?;
    ensure!(log.trim() == times.to_string(), "the device went on {log} times, not {times}");
    done(&format!("the device goes on without an error, engines killed: {times}"), begun);
    Ok(())
}

/// Another engine takes over under a mounted file system and load.
fn engine_is_replaced(nodes: &mut Nodes<'_>, times: u32) -> Result<()> {
    let begun = Instant::now();
    nodes.wait("the disks are UpToDate", Nodes::is_in_sync)?;
    nodes.on_device("mount -t ext4 $dev /mnt && rm -f /mnt/load*")?;
    // It has to last for all of them, and not for much longer.
    let mut fio = nodes.load(&format!(
        "--name=load --directory=/mnt --rw=randrw --bs=4k --size={}m --iodepth=8 --direct=1 \
         --fsync=64 --rate_iops=200",
        8 + 8 * times
    ))?;
    for _ in 0..times {
        std::thread::sleep(Duration::from_secs(2));
        println!("{}", nodes.replace_engine()?);
        nodes.on_device("dd if=$dev of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")?;
    }
    ensure!(fio.runs()?, "the load ended before the engine was replaced");
    nodes.wait_load(fio)?;
    ensure!(Nodes::is_in_sync(&nodes.status()?), "something was resynced");
    nodes.on_device(
        "! dmesg | grep -i 'i/o error' && umount /mnt && fsck.ext4 -f -n $dev >/dev/null",
    )?;
    done(&format!("the device goes on without an error, engines replaced: {times}"), begun);
    Ok(())
}

/// While the engine is away another node writes: what the device's users remember is no more.
fn written_elsewhere(nodes: &mut Nodes<'_>) -> Result<()> {
    let begun = Instant::now();
    nodes.wait("the peer is UpToDate", Nodes::is_in_sync)?;
    nodes.on_device("mount -t ext4 $dev /mnt")?;
    nodes.kill_engine()?;
    nodes.write_at_peer()?;
    nodes.start_engine()?;
    nodes.wait_mapped()?;
    // What was mounted gets errors, and a new device has what was written.
    nodes.on_device(
        "! cat /mnt/synced > /dev/null 2>&1 || ! sync -f /mnt 2>/dev/null; umount -l /mnt; \
         [ \"$(dd if=$dev bs=1M skip=300 count=1 2>/dev/null | tr -d 'Z' | wc -c)\" = 0 ] && \
         fsck.ext4 -p $dev >/dev/null; mount -t ext4 $dev /mnt && cmp /bin/busybox /mnt/synced && \
         umount /mnt && dmesg | grep -q -i 'i/o error'",
    )?;
    let log = nodes.guest.run("grep 'goes away under its users' /tmp/log", PATIENCE)?;
    ensure!(log.contains("are not what they were"), "it went away for another reason: {log}");
    done("another node has written meanwhile; the device goes away, and a new one comes", begun);
    Ok(())
}

/// A device that can only be read.
fn read_only(nodes: &mut Nodes<'_>) -> Result<()> {
    let begun = Instant::now();
    nodes.guest_ashlar("unmap r0/0")?;
    nodes.map("--read-only")?;
    ensure!(!nodes.is_primary()?, "a node does not become Primary to read");
    nodes.on_device(
        "[ $(blockdev --getro $dev) = 1 ] && ! dd if=/dev/zero of=$dev bs=4k count=1 oflag=direct \
         2>/dev/null && mount -t ext4 -o ro,noload $dev /mnt && cmp /bin/busybox /mnt/synced && \
         umount /mnt",
    )?;
    nodes.guest_ashlar("unmap r0/0")?;
    done("a device to read", begun);
    process::check_signals()
}

/// The way for kernels without ublk: their NBD client on an export.
fn kernel_nbd(nodes: &mut Nodes<'_>) -> Result<()> {
    let begun = Instant::now();
    nodes.guest_ashlar("export r0/0 --listen /tmp/nbd.sock")?;
    nodes.on_device(
        "nbd-client -unix /tmp/nbd.sock /dev/nbd0 -N r0/0 -b 512 >/dev/null && \
         mount -t ext4 /dev/nbd0 /mnt && cmp /bin/busybox /mnt/synced && \
         cp /bin/busybox /mnt/again && umount /mnt && fsck.ext4 -f -n /dev/nbd0 >/dev/null && \
         nbd-client -d /dev/nbd0 >/dev/null",
    )?;
    nodes.guest_ashlar("unexport r0/0")?;
    done("the kernel's NBD client", begun);
    Ok(())
}

/// The same client as `ashlar map` uses it: a process keeps its requests while an engine is killed or replaced.
fn nbd_face(nodes: &mut Nodes<'_>) -> Result<()> {
    let begun = Instant::now();
    nodes.wait("the disks are UpToDate", Nodes::is_in_sync)?;
    unmap(nodes)?;
    let device = nodes.map("--face nbd")?;
    ensure!(nodes.map("--face nbd")? == device, "the same is the same");
    nodes.on_device(
        "dmesg -c > /dev/null; mkfs.ext4 -q -F $dev && mount -t ext4 $dev /mnt && cp /bin/busybox /mnt/synced && \
         sync",
    )?;
    let refused = nodes.guest_ashlar("unmap r0/0").err().context("a mounted device stays")?;
    ensure!(format!("{refused:#}").contains("mounted at /mnt"), "{refused:#}");
    let mut fio = nodes.load(
        "--name=load --directory=/mnt --rw=randrw --bsrange=4k-64k --size=12m --iodepth=8 --direct=1 \
         --fsync=64 --rate_iops=50",
    )?;
    std::thread::sleep(Duration::from_secs(2));
    nodes.kill_engine()?;
    nodes.start_engine()?;
    nodes.on_device("dd if=$dev of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")?;
    nodes.wait_mapped()?;
    ensure!(fio.runs()?, "the load ended before the engine was killed");
    nodes.wait("the disks are UpToDate", Nodes::is_in_sync)?;
    println!("{}", nodes.replace_engine()?);
    nodes.wait_load(fio)?;
    nodes.on_device(
        "! dmesg | grep -i 'i/o error' && cmp /bin/busybox /mnt/synced && umount /mnt && \
         fsck.ext4 -f -n $dev >/dev/null",
    )?;
    // Requests longer than an engine takes, and what reads as zeroes.
    nodes.on_device(
        "echo 4096 > /sys/block/${dev#/dev/}/queue/max_sectors_kb; \
         dd if=/dev/urandom of=/tmp/data bs=1M count=9 2>/dev/null && \
         dd if=/tmp/data of=$dev bs=3M oflag=direct 2>/dev/null && \
         dd if=$dev bs=3M count=3 iflag=direct 2>/dev/null | cmp - /tmp/data && rm /tmp/data && \
         $blkdiscard -o 1M -l 2M $dev && \
         [ $(dd if=$dev bs=1M skip=1 count=2 2>/dev/null | tr -d '\\0' | wc -c) = 0 ]",
    )?;
    unmap(nodes)?;
    let left = nodes.guest.run("pgrep -f 'ashlar face' || true", PATIENCE)?;
    ensure!(left.is_empty(), "processes are left: {left}");
    done("a device of the kernel's NBD client goes on after a kill and an upgrade", begun);
    Ok(())
}

/// The volume is not mapped from here on, and the node is Secondary.
fn unmap(nodes: &Nodes<'_>) -> Result<()> {
    if !nodes.guest_ashlar("maps")?.is_empty() {
        nodes.guest_ashlar("unmap r0/0")?;
    }
    nodes.wait("the node is Secondary", |status| status[0]["role"] == "Secondary")
}

/// A volume grows while it is mapped: its device does, too, where the driver can announce that.
fn grows(nodes: &mut Nodes<'_>, options: &str) -> Result<()> {
    let begun = Instant::now();
    nodes.wait("the peer is UpToDate", Nodes::is_in_sync)?;
    // A volume that is mapped does not shrink.
    unmap(nodes)?;
    nodes.guest_ashlar("resize r0/0 --size 320M")?;
    nodes.map(options)?;
    let announces = !options.is_empty() || nodes.guest_ashlar("info")?.contains("update-size");
    let size = |nodes: &Nodes<'_>| -> Result<u64> {
        Ok(nodes.on_device("blockdev --getsize64 $dev")?.trim().parse()?)
    };
    ensure!(size(nodes)? == 320 << 20, "the device has another size than its volume");
    nodes.guest_ashlar("resize r0/0")?;
    let what = match announces {
        true => "a device grows with its volume",
        false => "a device keeps its size (this kernel announces none)",
    };
    while announces && size(nodes)? < 384 << 20 {
        ensure!(begun.elapsed() < PATIENCE, "the device does not grow");
        process::check_signals()?;
    }
    if announces {
        nodes.on_device(
            "dd if=/dev/urandom of=$dev bs=1M seek=380 count=4 oflag=direct 2>/dev/null && \
             $blkdiscard -z -o 330M -l 8M $dev",
        )?;
    }
    ensure!(announces || size(nodes)? == 320 << 20, "the device has grown");
    nodes.guest_ashlar("unmap r0/0")?;
    done(&format!("{what} {options}"), begun);
    Ok(())
}

/// Puts a program and the libraries it needs where they are here.
pub(super) fn install(guest: &Guest, program: &std::path::Path, to: &str) -> Result<()> {
    let listed = process::output(
        {
            let mut ldd = process::command("ldd");
            ldd.arg(program);
            ldd
        },
        PATIENCE,
    )?;
    for library in listed.split_whitespace().filter(|word| word.starts_with('/')) {
        guest.put_if_missing(std::path::Path::new(library), library)?;
    }
    guest.put(program, to)
}
