//! Kernel DRBD 8.4 and Ashlar as the two nodes of a resource: the kernel in a user-mode guest, the
//! engine on the host's side of the network. Each stage ends with both disks UpToDate; what one side
//! wrote is read on the other, and in the end the disks are compared.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::engine::Engine;
use super::guest::{Guest, Kind};
use super::image::Images;
use super::rig::{Rig, address};
use super::{DISK_MIB, PATIENCE};
use crate::process::{self, Daemon};

/// How long a resync, and all that comes before it, may take on a machine that is busy with other things. A
/// source that has users gives way to them but for 250 KiB/s, at which 48 MiB take 200 s.
pub const SETTLED: Duration = Duration::from_secs(300);
/// The guest.
const KERNEL: u8 = 1;
/// Its modules.
const MODULES: &[&str] = &["drbd"];
/// Where the host's side of the network is.
const HOST: &str = "10.77.0.1";
/// What the two are configured with.
#[derive(Clone, Copy)]
pub struct Sections {
    pub net: &'static str,
    /// The kernel resyncs and verifies as fast as it can. By default it begins with 250 KiB/s, and takes 15 s
    /// for a disk that others copy in one.
    pub hurry: bool,
}

const PLAIN: Sections = Sections { net: "net { protocol C; verify-alg crc32c; }", hurry: false };
/// The second resource.
const GUARDED: Sections = Sections {
    net: "net { protocol A; verify-alg crc32c; cram-hmac-alg sha1; shared-secret known-to-both; }",
    hurry: true,
};

/// Said to the kernel itself, again and again: these are back at their defaults once it is connected.
/// A target in the kernel takes what users overwrite for progress of its resync, and by `c-min-rate`
/// asks for nothing more until all of it together would have taken long enough: 48 MiB three minutes.
const HURRY: &str = "/lib/drbd/drbdsetup-84 disk-options 0 --set-defaults --resync-rate=200M \
                     --c-plan-ahead=0 --c-min-rate=0";

/// Both sides.
pub struct Pair<'a> {
    pub engine: Engine<'a>,
    /// Unless it is off.
    guest: Option<Guest>,
    sections: Sections,
}

impl<'a> Pair<'a> {
    /// A guest and an engine with new disks, which begin to connect.
    ///
    /// # Errors
    /// If one of them can not be set up.
    pub fn new(rig: &'a Rig<'a>, sections: Sections) -> Result<Pair<'a>> {
        let guest = rig.boot(Kind::UserMode, KERNEL, DISK_MIB, MODULES)?;
        let version = guest.run("head -1 /proc/drbd", PATIENCE)?;
        println!("kernel side: {}", version.trim());
        configure_kernel(&guest, sections)?;
        guest.run("yes yes | drbdadm create-md r0 2>&1 && drbdadm up r0", PATIENCE)?;
        let engine = Engine::new(rig, "host", &configure_engine(rig, sections.net)?)?;
        let mut pair = Pair { engine, guest: Some(guest), sections };
        pair.engine.start()?;
        pair.engine.configure(&["create-md"])?;
        pair.engine.configure(&["up"])?;
        Ok(pair)
    }

    /// Runs a line of shell at the kernel.
    ///
    /// # Errors
    /// If it fails, or the guest is off.
    pub fn kernel(&self, line: &str) -> Result<String> {
        self.guest.as_ref().context("the guest is off")?.run(line, PATIENCE)
    }

    /// The guest's power goes.
    ///
    /// # Errors
    /// If it was off.
    pub fn cut_kernel(&mut self) -> Result<()> {
        self.guest.take().context("the guest is off")?.power_cut()
    }

    /// And comes back.
    ///
    /// # Errors
    /// If it does not boot, or its kernel does not take the disk.
    pub fn boot_kernel(&mut self) -> Result<()> {
        let guest = self.engine.rig.boot_again(Kind::UserMode, KERNEL, MODULES)?;
        configure_kernel(&guest, self.sections)?;
        guest.run("drbdadm up r0", PATIENCE)?;
        self.guest = Some(guest);
        Ok(())
    }

    /// Waits until the kernel says that they are connected.
    ///
    /// # Errors
    /// If that takes too long.
    pub fn connected(&self) -> Result<()> {
        let begun = Instant::now();
        while !self.kernel("cat /proc/drbd")?.contains("cs:Connected") {
            ensure!(begun.elapsed() < SETTLED, "they do not connect\n{}", self.logs());
            process::check_signals()?;
        }
        Ok(())
    }

    /// Waits until both say that they are connected and that both disks are UpToDate.
    ///
    /// # Errors
    /// If that takes too long.
    pub fn settle(&self, what: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            if self.sections.hurry {
                self.kernel(HURRY)?;
            }
            let kernel = self.kernel("grep ' cs:' /proc/drbd")?;
            let status = self.engine.say(&["status"])?;
            let there = kernel.contains("cs:Connected") && kernel.contains("ds:UpToDate/UpToDate");
            let here = status.contains("disk:UpToDate")
                && status.contains("peer-disk:UpToDate")
                && !status.contains("replication:");
            if there && here {
                println!("{what}: {:.1} s", begun.elapsed().as_secs_f64());
                return Ok(());
            }
            if begun.elapsed() > SETTLED {
                bail!("{what}: they do not settle\n{kernel}{status}{}", self.logs());
            }
            process::check_signals()?;
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The ends of what both have logged, and the sockets of both.
    fn logs(&self) -> String {
        let line = "cat /proc/drbd; dmesg | grep drbd | tail -25; dmesg | tail -15; netstat -tan";
        let kernel = self.kernel(line).unwrap_or_else(|error| format!("{error:#}\n"));
        let mut sockets = self.engine.rig.command(Path::new("ss"));
        sockets.args(["-tanp"]);
        let here =
            process::output(sockets, PATIENCE).unwrap_or_else(|error| format!("{error:#}\n"));
        format!("{kernel}{here}{}", self.engine.log())
    }

    /// A file of that name on the kernel's file system, with random content; its digest.
    fn write_there(&self, name: &str, blocks: u32) -> Result<String> {
        self.kernel(&format!(
            "dd if=/dev/urandom of=/mnt/{name} bs=64k count={blocks} 2>/dev/null && sync && \
             md5sum < /mnt/{name}"
        ))
    }
}

/// The command.
pub fn main() -> Result<()> {
    let images = Images::get(Kind::UserMode)?;
    kernel_first(&images)?;
    ashlar_first(&images)?;
    println!("all good");
    Ok(())
}

/// A resource whose data begin at the kernel.
fn kernel_first(images: &Images) -> Result<()> {
    let rig = Rig::new(images)?;
    let mut pair = Pair::new(&rig, PLAIN)?;
    let digests = kernel_is_primary(&mut pair)?;
    ashlar_is_primary(&mut pair, &digests)?;
    compare(&pair)?;
    kernel_loses_power(&mut pair, &digests)?;
    compare(&pair)
}

/// One whose data begin at Ashlar, with protocol A and a secret that both prove.
fn ashlar_first(images: &Images) -> Result<()> {
    let rig = Rig::new(images)?;
    let mut pair = Pair::new(&rig, GUARDED)?;
    pair.connected()?;
    pair.engine.say(&["primary", "--force", "r0"])?;
    pair.settle("first resync, to the kernel, with a secret and protocol A")?;
    pair.engine.say(&["secondary", "r0"])?;
    ashlar_is_primary(&mut pair, &[])?;
    compare(&pair)?;
    discards(&pair)?;
    compare(&pair)?;
    kernel_is_cut_off(&mut pair)?;
    compare(&pair)?;
    other_secret(&pair)?;
    verify(&pair)
}

/// Both sides give up a range of their own, and so does the other one.
fn discards(pair: &Pair<'_>) -> Result<()> {
    let host = pair.engine.rig.file("host.img");
    let used = || -> Result<u64> { Ok(fs::metadata(&host)?.blocks() * 512) };
    let fill = "dd if=/dev/urandom of=/dev/drbd0 bs=1M count=32 oflag=direct 2>/dev/null && ";
    let discard = "blkdiscard -o 8388608 -l 8388608 /dev/drbd0";
    // By protocol A the kernel is done before Ashlar has all of it.
    let wait = |what: &str, holds: &dyn Fn() -> Result<bool>| -> Result<()> {
        let begun = Instant::now();
        while !holds()? {
            let (patient, bytes) = (begun.elapsed() < SETTLED, used()?);
            ensure!(patient, "Ashlar's disk has {bytes} bytes, and {what}\n{}", pair.logs());
            process::check_signals()?;
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    };
    pair.kernel(&format!("drbdadm primary r0 && {fill} sync"))?;
    pair.settle("a Primary kernel fills 32 MiB")?;
    let last = "bs=1M skip=31 count=1 2>/dev/null | md5sum";
    let theirs = pair.kernel(&format!("dd if=/dev/drbd0 iflag=direct {last}"))?;
    wait("not what was written last", &|| {
        let mut shell = process::command("sh");
        shell.args(["-c", &format!("dd if={} {last}", host.display())]);
        Ok(process::output(shell, PATIENCE)?.trim() == theirs.trim())
    })?;
    let full = used()?;
    pair.kernel(&format!("{discard} && drbdadm secondary r0"))?;
    wait("has given up too little", &|| Ok(used()? + (7 << 20) <= full))?;
    pair.settle("it discards 8 MiB")?;
    let mut fio = process::command("fio");
    fio.args([
        "--name=trim",
        "--ioengine=nbd",
        "--thread",
        "--rw=trim",
        "--bs=1m",
        "--offset=16m",
        "--size=8m",
    ]);
    fio.arg(format!("--uri={}", pair.engine.uri()));
    process::output(fio, PATIENCE)?;
    pair.settle("Ashlar discards 8 MiB")?;
    let zeros =
        "dd if=/dev/drbd0 bs=1M skip=16 count=8 iflag=direct 2>/dev/null | tr -d '\\0' | wc -c";
    let found = pair.kernel(&format!("drbdadm primary r0; {zeros}; drbdadm secondary r0"))?;
    ensure!(found.trim() == "0", "{} bytes are left at the kernel after a discard", found.trim());
    Ok(())
}

/// The kernel leaves, comes back, and loses its power while Ashlar is written to.
fn kernel_is_cut_off(pair: &mut Pair<'_>) -> Result<()> {
    let load = |pair: &Pair<'_>| -> Result<Daemon> {
        let mut fio = process::command("fio");
        fio.args([
            "--name=load",
            "--ioengine=nbd",
            "--thread",
            "--rw=randwrite",
            "--bs=4k",
            "--size=24m",
        ]);
        fio.args(["--iodepth=8", "--verify=crc32c", "--verify_fatal=1", "--loops=100"]);
        fio.args(["--time_based", "--runtime=600"]);
        fio.arg(format!("--uri={}", pair.engine.uri()));
        Daemon::start(fio, pair.engine.rig.file("fio.log"))
    };
    let mut fio = load(pair)?;
    std::thread::sleep(Duration::from_secs(2));
    pair.kernel("drbdadm disconnect r0")?;
    std::thread::sleep(Duration::from_secs(1));
    pair.kernel("drbdadm connect r0")?;
    pair.settle("the kernel left and came back under Ashlar's load")?;
    pair.cut_kernel()?;
    std::thread::sleep(Duration::from_secs(1));
    pair.boot_kernel()?;
    pair.settle("the kernel lost its power under Ashlar's load")?;
    // It fails at the first error or block that is not what was written.
    fio.check()?;
    fio.end();
    pair.settle("the load has ended")
}

/// A kernel with another secret does not come in, nor does Ashlar with it.
fn other_secret(pair: &Pair<'_>) -> Result<()> {
    pair.kernel("drbdadm disconnect r0")?;
    pair.kernel("sed -i s/known-to-both/known-to-one/ /etc/drbd.conf && drbdadm adjust r0")?;
    for _ in 0..30 {
        let state = pair.kernel("grep ' cs:' /proc/drbd")?;
        ensure!(!state.contains("cs:Connected"), "another secret was good enough: {state}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let log = pair.engine.log();
    ensure!(log.contains("secret"), "Ashlar does not say why they do not connect:\n{log}");
    // There is none any more if the kernel has given it up.
    pair.kernel("drbdadm disconnect r0 || true")?;
    pair.kernel("sed -i s/known-to-one/known-to-both/ /etc/drbd.conf && drbdadm adjust r0")?;
    pair.engine.say(&["disconnect", "r0"])?;
    pair.engine.say(&["connect", "r0"])?;
    pair.kernel("drbdadm adjust r0")?;
    pair.settle("both know the secret again")
}

/// The engine's disk, and its configuration.
fn configure_engine(rig: &Rig<'_>, net: &str) -> Result<String> {
    File::create(rig.file("host.img"))?.set_len(DISK_MIB << 20)?;
    let disk = rig.file("host.img").display().to_string();
    let volume =
        |disk: &str| format!("volume 0 {{ device minor 0; disk {disk}; meta-disk internal; }}");
    Ok(format!(
        "global {{ disable-ip-verification; }}\nresource r0 {{\n {net}\n on host {{ node-id 0; \
         address {HOST}:7788; {} }}\n on g1 {{ node-id 1; address {}:7788; {} }}\n}}\n",
        volume(&disk),
        address(KERNEL),
        volume("/dev/ubda")
    ))
}

fn configure_kernel(guest: &Guest, sections: Sections) -> Result<()> {
    let net = sections.net;
    let config = format!(
        "global {{ usage-count no; }} resource r0 {{ {net} device /dev/drbd0; disk /dev/ubda; \
         meta-disk internal; on host {{ address {HOST}:7788; }} on g1 {{ address {}:7788; }} }}",
        address(KERNEL)
    );
    guest.run(&format!("echo '{config}' > /etc/drbd.conf"), PATIENCE).map(drop)
}

/// The kernel writes, Ashlar follows: first resync, load, disconnects of all kinds, verify.
fn kernel_is_primary(pair: &mut Pair<'_>) -> Result<Vec<(String, String)>> {
    pair.connected()?;
    pair.kernel("drbdadm primary --force r0")?;
    pair.settle("first resync, to Ashlar")?;
    pair.kernel("mkfs.ext4 -q /dev/drbd0 && mount -t ext4 /dev/drbd0 /mnt")?;
    let mut digests = vec![("load".to_owned(), pair.write_there("load", 200)?)];
    pair.settle("writes on ext4 at the kernel")?;
    verify(pair)?;

    pair.engine.say(&["disconnect", "r0"])?;
    digests.push(("away".to_owned(), pair.write_there("away", 50)?));
    pair.engine.say(&["connect", "r0"])?;
    pair.settle("Ashlar left and came back")?;

    pair.kernel("drbdadm disconnect r0")?;
    digests.push(("alone".to_owned(), pair.write_there("alone", 50)?));
    pair.kernel("drbdadm connect r0")?;
    pair.settle("the kernel left and came back")?;

    digests.push(("replaced".to_owned(), engine_is_replaced(pair)?));

    pair.kernel(&load("busy"))?;
    pair.engine.kill();
    std::thread::sleep(Duration::from_secs(1));
    pair.engine.start()?;
    std::thread::sleep(Duration::from_secs(1));
    digests.push(("busy".to_owned(), loaded(pair, "busy")?));
    pair.settle("the engine was killed under load")?;
    pair.kernel("umount /mnt && drbdadm secondary r0")?;
    pair.settle("the kernel is Secondary")?;
    Ok(digests)
}

/// Another engine takes over while the kernel writes, which keeps its connection and resyncs nothing. Returns
/// the digest of what was written.
fn engine_is_replaced(pair: &mut Pair<'_>) -> Result<String> {
    let connections = "dmesg | grep -c -e 'conn( ' -e 'meta connection shut down'";
    let before = pair.kernel(connections)?;
    pair.kernel(&load("replaced"))?;
    let mut waited = Vec::new();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(500));
        waited.push(pair.engine.upgrade()?);
    }
    let digest = loaded(pair, "replaced")?;
    let after = pair.kernel(connections)?;
    ensure!(after == before, "the kernel has noticed\n{}", pair.logs());
    pair.settle(&format!("the engine was replaced under load, I/O waited {waited:.1?} ms"))?;
    Ok(digest)
}

/// A line that writes to a file again and again in the background, until it is told to end.
fn load(name: &str) -> String {
    format!(
        "rm -f /tmp/stop; (while [ ! -e /tmp/stop ]; do dd if=/dev/urandom of=/mnt/{name} bs=64k count=20 \
         conv=fsync 2>/dev/null; done) >/dev/null 2>&1 & echo $! > /tmp/load"
    )
}

/// Has it end; returns the digest of the file.
fn loaded(pair: &Pair<'_>, name: &str) -> Result<String> {
    pair.kernel(
        "touch /tmp/stop; while kill -0 $(cat /tmp/load) 2>/dev/null; do sleep 0.2; done; sync",
    )?;
    pair.kernel(&format!("md5sum < /mnt/{name}"))
}

/// Verify in both directions finds nothing.
///
/// # Errors
/// If it does.
pub fn verify(pair: &Pair<'_>) -> Result<()> {
    pair.kernel("drbdadm verify r0")?;
    pair.settle("verify begun by the kernel")?;
    ensure!(pair.kernel("cat /proc/drbd")?.contains("oos:0"), "it finds differences");
    pair.engine.say(&["verify", "r0/0"])?;
    pair.settle("verify begun by Ashlar")?;
    let status = pair.engine.say(&["status", "-v", "--statistics"])?;
    ensure!(status.contains("out-of-sync:0"), "it finds differences\n{status}");
    Ok(())
}

/// Ashlar writes what the kernel wrote in another place, and the kernel reads it as a file system.
fn ashlar_is_primary(pair: &mut Pair<'_>, digests: &[(String, String)]) -> Result<()> {
    pair.engine.export()?;
    let copy = pair.engine.rig.file("copy.img").display().to_string();
    pair.engine.copy(&pair.engine.uri(), &copy)?;
    pair.settle("read through Ashlar")?;
    // The copy gets a file system of its own with a file, and goes back.
    let content = pair.engine.rig.file("content");
    fs::create_dir_all(&content)?;
    let text: Vec<u8> = (0..4_000_000u32).flat_map(|i| i.to_le_bytes()).collect();
    fs::write(content.join("from-ashlar"), &text)?;
    let fresh = pair.engine.rig.file("fresh.img");
    File::create(&fresh)?.set_len(fs::metadata(&copy)?.len())?;
    let mut mkfs = process::command("mkfs.ext4");
    mkfs.args(["-q", "-F", "-d"]).arg(&content).arg(&fresh);
    process::output(mkfs, PATIENCE)?;
    pair.engine.copy(&fresh.display().to_string(), &pair.engine.uri())?;
    pair.settle("writes at Ashlar")?;
    check_at_kernel(pair, "cmp -n 16000000 /mnt/from-ashlar /mnt/from-ashlar")?;

    // While the kernel is away.
    pair.kernel("drbdadm disconnect r0")?;
    pair.engine.copy(&copy, &pair.engine.uri())?;
    pair.kernel("drbdadm connect r0")?;
    pair.settle("the kernel was away while Ashlar wrote")?;
    for (name, digest) in digests {
        let found = check_at_kernel(pair, &format!("md5sum < /mnt/{name}"))?;
        ensure!(found == *digest, "{name} is not what was written: {found}");
    }
    println!("what Ashlar wrote back is what the kernel had written");
    Ok(())
}

/// Runs a line at the kernel with the volume mounted there.
fn check_at_kernel(pair: &Pair<'_>, line: &str) -> Result<String> {
    pair.kernel("drbdadm primary r0 && mount -t ext4 -o ro /dev/drbd0 /mnt")?;
    let found = pair.kernel(line);
    pair.kernel("umount /mnt && drbdadm secondary r0")?;
    found
}

/// The guest's power goes while it writes.
fn kernel_loses_power(pair: &mut Pair<'_>, digests: &[(String, String)]) -> Result<()> {
    pair.kernel("drbdadm primary r0 && mount -t ext4 /dev/drbd0 /mnt")?;
    let load = "(while :; do dd if=/dev/urandom of=/mnt/cut bs=64k count=20 conv=fsync \
                2>/dev/null; done) >/dev/null 2>&1 &";
    pair.kernel(load)?;
    std::thread::sleep(Duration::from_secs(2));
    pair.cut_kernel()?;
    pair.boot_kernel()?;
    pair.settle("the kernel lost its power under load")?;
    pair.kernel("drbdadm primary r0 && mount -t ext4 /dev/drbd0 /mnt")?;
    for (name, digest) in digests {
        ensure!(pair.kernel(&format!("md5sum < /mnt/{name}"))? == *digest, "{name} has changed");
    }
    pair.kernel("umount /mnt && drbdadm secondary r0")?;
    pair.settle("the kernel is Secondary again")
}

/// Both disks hold the same, sector by sector, and no resync on the way there had two ends that disagreed.
///
/// # Errors
/// If they do not.
pub fn compare(pair: &Pair<'_>) -> Result<()> {
    // They come together again even so, ten seconds later.
    ensure!(!pair.engine.has_logged("does not say the same about a resync"), "they disagreed");
    pair.kernel("sync")?;
    let sectors = pair.kernel("cat /sys/block/drbd0/size")?;
    let bytes = sectors.trim().parse::<u64>()? * 512;
    let rig = pair.engine.rig;
    let theirs = pair.kernel(
        "drbdadm primary r0; dd if=/dev/drbd0 bs=64k iflag=direct 2>/dev/null | md5sum; \
         drbdadm secondary r0",
    )?;
    let part = rig.file("part.img");
    copy_start(&rig.file("host.img"), &part, bytes)?;
    let mut md5sum = process::command("md5sum");
    md5sum.arg(&part);
    let ours = process::output(md5sum, PATIENCE)?;
    let digest = |text: &str| text.split_whitespace().next().unwrap_or_default().to_owned();
    ensure!(digest(&theirs) == digest(&ours), "the disks differ: {theirs}{ours}");
    println!("the disks are equal, {} MiB", bytes >> 20);
    Ok(())
}

fn copy_start(from: &Path, to: &Path, bytes: u64) -> Result<()> {
    let mut from = File::open(from)?;
    from.seek(SeekFrom::Start(0))?;
    std::io::copy(&mut from.take(bytes), &mut File::create(to)?)?;
    Ok(())
}
