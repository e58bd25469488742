//! `cargo xtask vm vhost`: a virtual machine whose disk is a volume, over vhost-user.
//!
//! Two engines on the host's side replicate the volume. QEMU's firmware boots a guest from it, with a boot loader
//! that is written there first; the guest uses the rest of it through several queues while engines are
//! killed, restarted and upgraded under it, and must not see an error. In the end somebody else writes, and it
//! must see nothing but errors.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::engine::Engine;
use super::guest::{Guest, Kind};
use super::image::Images;
use super::rig::Rig;
use crate::process;

const DISK_MIB: u64 = 513;
const VOLUME_MIB: u64 = 512;
/// Where the partitions of the disk begin and end: one to boot from, one for tests.
const BOOT_MIB: (u64, u64) = (1, 160);
const TEST_MIB: u64 = 352;
/// How long a step may take in a guest that is this slow, on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(300);
const TICK: Duration = Duration::from_millis(200);
/// GRUB for machines with a BIOS (Debian's grub-pc-bin).
const GRUB: &str = "/usr/lib/grub/i386-pc";

/// `$dev` is the partition for tests, `$fio` fio with checks of what it has written.
const STEPS: &[(&str, &str)] = &[
    (
        "the disk's limits",
        "cd /sys/block/vda/queue && is() { [ \"$(cat $1)\" = \"$2\" ] || \
         { echo $1 is $(cat $1), not $2 >&2; exit 1; }; } && is logical_block_size 512 && \
         is physical_block_size 4096 && is max_segments 126 && is discard_granularity 4096 && \
         is write_cache 'write back' && [ $(ls /sys/block/vda/mq | wc -l) = 2 ] && \
         [ \"$(cat /sys/block/vda/serial)\" = r0/0 ]",
    ),
    (
        "verified writes of all sizes, with flushes",
        "$fio --name=raw --filename=$dev --direct=1 --rw=randrw --bsrange=512-256k --blockalign=512 \
         --size=64m --io_size=24m --iodepth=16 --fsync=64 --numjobs=1 && \
         $fio --name=long --filename=$dev --direct=1 --rw=write --bs=2m --size=32m --iodepth=2 && \
         $fio --name=trim --filename=$dev --direct=1 --rw=randtrimwrite --bs=64k --size=32m \
         --io_size=8m --iodepth=8",
    ),
    (
        "zeroes",
        "dd if=/dev/urandom of=$dev bs=1M count=8 conv=fsync 2>/dev/null && \
         /usr/sbin/blkdiscard -z -o 4M -l 2M $dev && \
         [ $(dd if=$dev bs=1M skip=4 count=2 2>/dev/null | tr -d '\\0' | wc -c) = 0 ] && \
         [ $(dd if=$dev bs=1M skip=6 count=1 2>/dev/null | tr -d '\\0' | wc -c) -gt 0 ]",
    ),
    (
        "ext4",
        "mkfs.ext4 -q -F $dev && mount -t ext4 -o discard $dev /mnt && cp /bin/busybox /mnt/kept && \
         $fio --name=file --filename=/mnt/f --direct=1 --rw=randwrite --bs=4k --size=8m \
         --iodepth=8 && rm /mnt/f && sync && umount /mnt && fsck.ext4 -f -n $dev >/dev/null && \
         mount -t ext4 $dev /mnt && cmp /bin/busybox /mnt/kept",
    ),
];
const FIO: &str = "fio --minimal --output=/tmp/fio.out --randseed=7 --ioengine=libaio \
                   --verify=crc32c --verify_fatal=1 --do_verify=1 --group_reporting";

/// The engines and the guest.
struct Bed<'a> {
    rig: &'a Rig<'a>,
    alpha: Engine<'a>,
    bravo: Engine<'a>,
    socket: PathBuf,
}

/// The command.
pub fn main() -> Result<()> {
    ensure!(
        Path::new(GRUB).exists(),
        "a boot loader is needed: apt-get install grub-pc-bin grub-common fdisk"
    );
    let images = Images::get(Kind::Emulated)?;
    let rig = Rig::new(&images)?;
    let mut bed = Bed::start(&rig, &images)?;
    let begun = Instant::now();
    let guest = rig.boot_from(1, &bed.socket)?;
    done("the firmware boots a guest from the volume", begun);
    for (what, script) in STEPS {
        let begun = Instant::now();
        bed.on(&guest, script).with_context(|| (*what).to_owned())?;
        done(what, begun);
        process::check_signals()?;
    }
    bed.upgraded_under_load(&guest)?;
    bed.killed_under_load(&guest)?;
    bed.ended_under_load(&guest)?;
    bed.peer_lost_under_load(&guest)?;
    bed.left_and_back(&guest)?;
    let begun = Instant::now();
    bed.compare(&guest)?;
    done("the replicas are equal", begun);
    bed.written_elsewhere(&guest)?;
    println!("all good");
    Ok(())
}

fn done(what: &str, begun: Instant) {
    println!("{what}: good ({:.0} s)", begun.elapsed().as_secs_f64());
}

impl<'a> Bed<'a> {
    fn start(rig: &'a Rig<'a>, images: &Images) -> Result<Bed<'a>> {
        let begun = Instant::now();
        let node = |name: &str, id: u8| -> Result<String> {
            let disk = rig.file(&format!("{name}.img"));
            File::create(&disk)?.set_len(DISK_MIB << 20)?;
            Ok(format!(
                "on {name} {{ node-id {id}; address 10.77.0.1:700{id}; volume 0 {{ device minor {id}; \
                 disk {}; meta-disk internal; }} }}\n",
                disk.display()
            ))
        };
        // All of a volume of this size is in the activity log of a Primary that is killed, and a resync would give
        // way to the load.
        let config = format!(
            "resource r0 {{\n net {{ protocol C; }}\n disk {{ c-plan-ahead 0; resync-rate 200M; c-min-rate 0; }}\n \
             {}{} connection-mesh {{ hosts alpha bravo; }}\n}}\n",
            node("alpha", 0)?,
            node("bravo", 1)?
        );
        let socket = rig.file("disk.sock");
        let (alpha, bravo) =
            (Engine::new(rig, "alpha", &config)?, Engine::new(rig, "bravo", &config)?);
        let mut bed = Bed { rig, alpha, bravo, socket };
        for engine in [&mut bed.alpha, &mut bed.bravo] {
            engine.start()?;
            engine.configure(&["create-md"])?;
            engine.configure(&["up"])?;
        }
        bed.settle(|status| status.contains("peer-disk:Inconsistent"))?;
        bed.alpha.say(&["new-current-uuid", "--clear-bitmap", "r0/0"])?;
        bed.settle(in_sync)?;
        let image = boot_image(rig, images)?;
        bed.alpha.export()?;
        bed.alpha.copy(&image.display().to_string(), &bed.alpha.uri())?;
        bed.alpha.say(&["unexport", "r0"])?;
        let socket = bed.socket.display().to_string();
        bed.alpha.say(&["export", "r0/0", "--vhost-user", &socket])?;
        done("two engines, and a volume to boot from", begun);
        Ok(bed)
    }

    /// Waits until the state of the first engine is as it should be.
    fn settle(&self, holds: impl Fn(&str) -> bool) -> Result<()> {
        let begun = Instant::now();
        loop {
            let status = self.alpha.say(&["status"])?;
            if holds(&status) {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "they do not settle\n{status}{}", self.logs());
            process::check_signals()?;
            std::thread::sleep(TICK);
        }
    }

    fn logs(&self) -> String {
        format!("alpha:\n{}bravo:\n{}", self.alpha.log(), self.bravo.log())
    }

    /// Runs a script in the guest.
    fn on(&self, guest: &Guest, script: &str) -> Result<String> {
        let script = format!("dev=/dev/vda2; fio='{FIO}'; {script}");
        guest.run(&script, PATIENCE).with_context(|| {
            let log = guest.run("dmesg | tail -n 5", Duration::from_secs(20));
            format!("{}{}", log.unwrap_or_default(), self.logs())
        })
    }

    /// Half a minute of verified writes to the guest's file system, and fsyncs.
    fn load(&self, guest: &Guest) -> Result<Child> {
        self.load_of(guest, 24)
    }

    /// So many MiB, each in 1.3 s or more.
    fn load_of(&self, guest: &Guest, mib: u64) -> Result<Child> {
        let arguments = format!(
            "--name=load --filename=/mnt/load --direct=1 --rw=randwrite --bs=4k \
             --size=64m --io_size={mib}m --iodepth=16 --fsync=64 --rate_iops=200"
        );
        let load = guest.start(&format!("{FIO} {arguments}"))?;
        std::thread::sleep(Duration::from_secs(5));
        Ok(load)
    }

    /// Waits until it has ended without an error, and neither its kernel knows of one.
    fn wait_load(&self, guest: &Guest, mut load: Child) -> Result<()> {
        let begun = Instant::now();
        loop {
            match load.try_wait()? {
                Some(status) if status.success() => break,
                Some(status) => bail!("the load in the guest failed: {status}\n{}", self.logs()),
                None if begun.elapsed() > PATIENCE => {
                    bail!("the load in the guest does not end\n{}", self.logs())
                }
                None => std::thread::sleep(TICK),
            }
        }
        self.on(guest, "! dmesg | grep -i -e 'i/o error' -e 'ext4-fs error' >&2").map(drop)
    }

    fn upgraded_under_load(&mut self, guest: &Guest) -> Result<()> {
        let begun = Instant::now();
        let mut load = self.load(guest)?;
        let mut waited = Vec::new();
        for _ in 0..5 {
            ensure!(load.try_wait()?.is_none(), "the load ended before the engine was upgraded");
            waited.push(self.alpha.upgrade()?);
            std::thread::sleep(Duration::from_secs(2));
        }
        self.wait_load(guest, load)?;
        self.settle(in_sync)?;
        let opened = self.alpha.log().matches("opened to read and write by a vhost-user").count();
        ensure!(opened <= 1, "QEMU had to connect again\n{}", self.logs());
        done(&format!("five upgrades under load, I/O waited {waited:.1?} ms"), begun);
        Ok(())
    }

    fn killed_under_load(&mut self, guest: &Guest) -> Result<()> {
        let begun = Instant::now();
        let mut load = self.load_of(guest, 48)?;
        for kill in 1..=3 {
            if let Some(status) = load.try_wait()? {
                let after = begun.elapsed().as_secs();
                bail!(
                    "the load ended before kill {kill}, after {after} s: {status}\n{}",
                    self.logs()
                );
            }
            self.alpha.kill();
            std::thread::sleep(Duration::from_secs(1));
            self.alpha.start()?;
            self.settle(in_sync)?;
            std::thread::sleep(Duration::from_secs(4));
        }
        self.wait_load(guest, load)?;
        done("the engine is killed three times under load; the guest sees no error", begun);
        Ok(())
    }

    fn ended_under_load(&mut self, guest: &Guest) -> Result<()> {
        let begun = Instant::now();
        let load = self.load(guest)?;
        self.alpha.say(&["shutdown", "--force"])?;
        std::thread::sleep(Duration::from_secs(3));
        self.alpha.kill();
        self.alpha.start()?;
        self.wait_load(guest, load)?;
        self.settle(in_sync)?;
        done("the engine ends in order and comes back under load", begun);
        Ok(())
    }

    fn peer_lost_under_load(&mut self, guest: &Guest) -> Result<()> {
        let begun = Instant::now();
        let load = self.load(guest)?;
        self.bravo.kill();
        std::thread::sleep(Duration::from_secs(5));
        self.bravo.start()?;
        self.wait_load(guest, load)?;
        self.settle(in_sync)?;
        done("the peer is killed under load and comes back", begun);
        Ok(())
    }

    /// The export goes and comes while nobody else writes.
    fn left_and_back(&mut self, guest: &Guest) -> Result<()> {
        let begun = Instant::now();
        let load = self.load(guest)?;
        let socket = self.socket.display().to_string();
        self.alpha.say(&["unexport", "r0/0"])?;
        std::thread::sleep(Duration::from_secs(2));
        self.alpha.say(&["export", "r0/0", "--vhost-user", &socket])?;
        self.wait_load(guest, load)?;
        done("the export is taken away and comes back under load", begun);
        Ok(())
    }

    /// Compares the replicas while the guest is quiet.
    fn compare(&self, guest: &Guest) -> Result<()> {
        self.on(guest, "umount /mnt && sync && mount -t ext4 -o ro $dev /mnt")?;
        let data = |name: &str| -> Result<Vec<u8>> {
            let mut data = fs::read(self.rig.file(&format!("{name}.img")))?;
            data.truncate((VOLUME_MIB << 20) as usize);
            Ok(data)
        };
        let (here, there) = (data("alpha")?, data("bravo")?);
        let first = here.iter().zip(&there).position(|(a, b)| a != b);
        ensure!(first.is_none(), "the replicas differ from byte {first:?} on");
        Ok(())
    }

    /// While the guest's engine is away another node writes: the guest may not go on.
    fn written_elsewhere(&mut self, guest: &Guest) -> Result<()> {
        let begun = Instant::now();
        self.alpha.kill();
        self.bravo.export()?;
        let bytes = self.rig.file("other");
        fs::write(&bytes, vec![0x5a; 1 << 20])?;
        self.bravo.copy(&bytes.display().to_string(), &self.bravo.uri())?;
        self.bravo.say(&["unexport", "r0"])?;
        self.alpha.start()?;
        self.settle(in_sync)?;
        // Its cache is left aside: what it reads is what the disk says.
        let read = "dd if=/dev/vda of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null";
        self.on(guest, &format!("! {read} && dmesg | grep -q -i 'i/o error'"))?;
        ensure!(self.alpha.log().contains("can not go on"), "{}", self.alpha.log());
        done(
            "another node has written meanwhile; the guest gets errors, not its old blocks",
            begun,
        );
        Ok(())
    }
}

fn in_sync(status: &str) -> bool {
    let upto = status.contains("disk:UpToDate") && status.contains("peer-disk:UpToDate");
    upto && !status.contains("replication:")
}

/// A disk with GRUB, the guest's kernel and its initial file system on its first partition.
fn boot_image(rig: &Rig<'_>, images: &Images) -> Result<PathBuf> {
    let image = rig.file("boot.img");
    File::create(&image)?.set_len(VOLUME_MIB << 20)?;
    let tree = rig.file("boot");
    fs::create_dir_all(tree.join("grub"))?;
    fs::copy(images.file("vmlinuz"), tree.join("vmlinuz"))?;
    fs::copy(images.file("emulated.gz"), tree.join("initrd"))?;
    let words = Guest::words(1, &["ext4"]);
    let menu = format!(
        "linux (hd0,msdos1)/vmlinuz console=ttyS0 quiet panic=-1 {words}\ninitrd (hd0,msdos1)/initrd\nboot\n"
    );
    let early = rig.file("grub.cfg");
    fs::write(&early, menu)?;
    let script = format!(
        "set -e; cd {dir}\n\
         printf '%s\\n' 'label: dos' 'start={start}MiB, size={size}MiB, type=83, bootable' \
         'start={test}MiB, type=83' | sfdisk -q boot.img\n\
         mkfs.ext4 -q -F -O ^metadata_csum,^64bit -d boot -E offset={offset} boot.img {size}M\n\
         grub-mkimage -O i386-pc -o core.img -c grub.cfg -p /grub \
         biosdisk part_msdos ext2 linux normal serial\n\
         dd if={GRUB}/boot.img of=boot.img bs=440 count=1 conv=notrunc status=none\n\
         dd if=core.img of=boot.img bs=512 seek=1 conv=notrunc status=none\n",
        dir = rig.file("").display(),
        start = BOOT_MIB.0,
        size = BOOT_MIB.1 - BOOT_MIB.0,
        offset = BOOT_MIB.0 << 20,
        test = VOLUME_MIB - TEST_MIB,
    );
    let mut command = process::command("sh");
    command.args(["-c", &script]);
    process::output(command, PATIENCE).context("the disk to boot from can not be made")?;
    Ok(image)
}
