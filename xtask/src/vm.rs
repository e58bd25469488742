//! `cargo xtask vm`: guests with kernels that this machine's need not be like: with DRBD, ublk, nbd
//! and device-mapper, to test against the real thing.
//!
//! - `image`: kernels and file systems, built once from Debian packages.
//! - `blockdev`: volumes as block devices. `lvm`, `zfs`: storage pools; `physical`: pools of bare disks.
//! - `luks`: encrypted volumes, and dm-crypt on their disks. `control`: the control plane in a guest, for these.
//! - `interop`: kernel DRBD and Ashlar as peers; `soak`: the same for long. `adopt`: each uses the disks that the other has written.
//! - `vhost`: virtual machines on volumes.
//! - `rig`: a network of their own; `guest`: one guest, from boot to power cut.
//!
//! Three kinds: *user-mode* guests are Linux as a process, there in seconds and near native, with the
//! modules of their kernel; *emulated* ones run a kernel with ublk under QEMU, some 15 times slower
//! than the machine; *newest* ones are the same with the newest kernel that Debian has. All need root,
//! for the network. Nothing of a run is left behind but the images.

mod adopt;
pub mod blockdev;
mod control;
mod engine;
mod guest;
mod image;
mod interop;
mod luks;
mod lvm;
mod physical;
mod rig;
mod soak;
mod vhost;
mod zfs;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::process;
pub use guest::Kind;
use image::Images;
use rig::Rig;

const HELP: &str = "\
cargo xtask vm build [--again]
    Builds the guests from Debian packages (about 300 MB to load), if that was not done before. With --again
    those of the newest kernel get the one that is newest now.
cargo xtask vm smoke [--kind user-mode|emulated|newest]
    Boots a guest, or one of each kind, and uses what tests need: network, disk, DRBD, power cut.
cargo xtask vm lvm [pools|physical]
    pools: tests the agent's pools of LVM on a volume group of a guest.
    physical: makes pools of the disk of a guest in which a controller and an agent run. Needs lsblk and wipefs.
cargo xtask vm zfs [pools|physical]
    The same with ZFS, which is built from Debian's packages for the kernel of an emulated guest first, in
    some ten minutes; then two each.
cargo xtask vm luks
    An encrypted volume of an engine in an emulated guest, whose disk dm-crypt opens; each reads what the
    other has written.
cargo xtask vm blockdev [--newest] [--brief | --deaths N]
    Maps a volume as a block device in an emulated guest, with a peer on this side, and uses it: file
    systems, checksums, discards, LVM, dm-crypt, loss of the peer, a killed engine. Some minutes.
    With --newest the guest has the newest kernel; --brief is what kernels may do differently; with
    --deaths the peer dies and comes back N times under load, each some half a minute, and no more.
cargo xtask vm vhost
    Boots an emulated guest from a replicated volume over vhost-user, and kills and restarts engines under
    it. Needs nbdcopy (libnbd-bin), sfdisk (fdisk) and GRUB (grub-pc-bin, grub-common). Some minutes.
cargo xtask vm interop [peers|disks]
    peers: kernel DRBD 8.4 in a guest and Ashlar on the host replicate with each other, both ways,
    through disconnects, crashes and verifies. Needs nbdcopy (libnbd-bin) and mkfs.ext4 as well.
    disks: each takes over the disks of the other as they are, clean and after a crash under load.
    Needs drbdmeta (drbd-utils).
cargo xtask vm soak [--minutes N] [--seed N]
    Kernel DRBD 8.4 and Ashlar under fio and writes that are counted, while one leaves and comes back (50
    times in the usual 30 minutes) or loses its power (10 times); then their disks are compared.
cargo xtask vm run --kind user-mode|emulated|newest [--modules M,...] COMMAND
    Boots a guest, runs a shell command in it, prints what that prints.
All of it needs root. Guests have 512 MiB of memory, emulated ones 1 GiB, and a disk of 64 MiB, /dev/ubda or
/dev/vda.";

/// How long a command of a test may take, on a machine that stands still now and then.
const PATIENCE: Duration = Duration::from_secs(120);
const DISK_MIB: u64 = 64;
const KINDS: [Kind; 3] = [Kind::UserMode, Kind::Emulated, Kind::Newest];

/// The command.
pub fn main(arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some((command, rest)) = words.split_first() else { bail!("{HELP}") };
    if words.iter().any(|word| ["--help", "-h"].contains(word)) {
        println!("{HELP}");
        return Ok(());
    }
    process::watch_signals()?;
    match (*command, rest) {
        ("build", []) => KINDS.into_iter().try_for_each(|kind| Images::get(kind).map(drop)),
        ("build", ["--again"]) => {
            KINDS.into_iter().try_for_each(|kind| Images::build(kind).map(drop))
        }
        ("lvm", []) => {
            lvm::pools()?;
            physical::of_lvm()
        }
        ("lvm", ["pools"]) => lvm::pools(),
        ("lvm", ["physical"]) => physical::of_lvm(),
        ("zfs", []) => {
            zfs::pools()?;
            physical::of_zfs()
        }
        ("zfs", ["pools"]) => zfs::pools(),
        ("zfs", ["physical"]) => physical::of_zfs(),
        ("luks", []) => luks::main(),
        ("smoke", []) => KINDS.into_iter().try_for_each(smoke),
        ("smoke", ["--kind", kind]) => smoke(kind.parse()?),
        ("blockdev", options) => {
            let (kind, options) = match options {
                ["--newest", options @ ..] => (Kind::Newest, options),
                options => (Kind::Emulated, options),
            };
            match options {
                [] => blockdev::main(kind, false),
                ["--brief"] => blockdev::main(kind, true),
                ["--deaths", times] => {
                    let times: std::num::NonZeroU32 =
                        times.parse().with_context(|| format!("{times} deaths"))?;
                    blockdev::deaths(kind, times.get())
                }
                _ => bail!("that is not understood\n{HELP}"),
            }
        }
        ("vhost", []) => vhost::main(),
        ("interop", []) => {
            interop::main()?;
            adopt::main()
        }
        ("interop", ["peers"]) => interop::main(),
        ("interop", ["disks"]) => adopt::main(),
        ("soak", _) => soak::main(&arguments[1..]),
        ("run", ["--kind", kind, "--modules", modules, line]) => {
            let modules: Vec<&str> = modules.split(',').collect();
            run(kind.parse()?, &modules, line)
        }
        ("run", ["--kind", kind, line]) => run(kind.parse()?, &[], line),
        _ => bail!("that is not understood\n{HELP}"),
    }
}

/// Why there can be no guests of a kind on this machine, if that is so.
pub fn hindrance(kind: Kind) -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("the guests are of x86-64 only".to_owned());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some("guests need a network card: there is no /dev/net/tun".to_owned());
    }
    // Building them needs Debian, its packages and the network; the reason is in what it says.
    let images = match Images::get(kind) {
        Ok(images) => images,
        Err(error) => return Some(format!("the guests can not be built: {error:#}")),
    };
    Rig::new(&images).err().map(|error| format!("{error:#}"))
}

fn run(kind: Kind, modules: &[&str], line: &str) -> Result<()> {
    let images = Images::get(kind)?;
    let rig = Rig::new(&images)?;
    let guest = rig.boot(kind, 1, DISK_MIB, modules)?;
    print!("{}", guest.run(line, PATIENCE)?);
    Ok(())
}

/// Shows that guests of a kind can do what tests need of them.
fn smoke(kind: Kind) -> Result<()> {
    let images = Images::get(kind)?;
    let rig = Rig::new(&images)?;
    let begun = Instant::now();
    let guest = rig.boot(kind, 1, DISK_MIB, &["drbd", "nbd"])?;
    let booted = begun.elapsed();
    let kernel = guest.run("uname -r", PATIENCE)?;
    let drbd = guest.run("head -1 /proc/drbd", PATIENCE)?;
    println!("{kind}: {} after {:.1} s, DRBD {}", kernel.trim(), booted.as_secs_f64(), drbd.trim());
    ensure!(drbd.contains("8.4."), "the guest's DRBD is not the kernel's own: {drbd}");
    let disk = kind.disk();
    let script = format!(
        "mkfs.ext4 -q {disk} && mount -t ext4 {disk} /mnt && echo kept > /mnt/file && sync && \
         blockdev --getsize64 {disk}"
    );
    let size = guest.run(&script, PATIENCE)?;
    ensure!(size.trim() == (DISK_MIB << 20).to_string(), "the disk has {size} bytes");
    let failed = guest.run("echo why >&2; exit 7", PATIENCE);
    let error = failed.err().context("a command that fails counts as failed")?.to_string();
    ensure!(error.contains("why"), "what a command says is lost: {error}");
    // The power goes; what was synced is on the disk.
    guest.power_cut()?;
    let guest = rig.boot_again(kind, 1, &[])?;
    let kept = guest.run(&format!("mount -t ext4 {disk} /mnt && cat /mnt/file"), PATIENCE)?;
    ensure!(kept == "kept\n", "synced data did not survive a power cut: {kept:?}");
    println!("{kind}: network, disk, DRBD, power cut: all good");
    Ok(())
}
