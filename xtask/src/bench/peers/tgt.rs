//! tgt: an iSCSI target in user space, reached through qemu-nbd.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::{PATIENCE, Serving, qemu};
use crate::bench::cluster;
use crate::process::{self, Daemon};

/// Threads that do the I/O of a volume: the default is 16, made for disks that are slow.
const THREADS: &str = "4";
const NAME: &str = "iqn.2001-01.test.ashlar:v";

/// One target per disk, all of one process.
pub fn serve(folder: &Path, disks: &[PathBuf]) -> Result<Serving> {
    let control = folder.join("tgtd.sock");
    let portal = format!("{}.1:3260", cluster::network());
    let mut command = process::command("tgtd");
    command.env("TGT_IPC_SOCKET", &control);
    command.args(["--foreground", "--nr_iothreads", THREADS]);
    command.args(["--iscsi", &format!("portal={portal}")]);
    let mut daemon = Daemon::start(command, folder.join("tgtd.log"))?;
    // It appends the number of the control port.
    let socket = folder.join("tgtd.sock.0");
    daemon.wait("its control socket is there", PATIENCE, || socket.exists())?;
    let (mut targets, mut hops) = (Vec::new(), Vec::new());
    for (index, disk) in disks.iter().enumerate() {
        let disk = disk.display().to_string();
        let (number, name) = ((index + 1).to_string(), format!("{NAME}{index}"));
        let admin = |mode: &str, operation: &str, words: &[&str]| -> Result<String> {
            let mut command = process::command("tgtadm");
            command.env("TGT_IPC_SOCKET", &control).args(["--lld", "iscsi", "--mode", mode]);
            command.args(["--op", operation, "--tid", &number]).args(words);
            process::output(command, Duration::from_secs(20)).context("tgtadm")
        };
        admin("target", "new", &["--targetname", &name])?;
        admin("logicalunit", "new", &["--lun", "1", "--backing-store", &disk])?;
        // Whoever reaches the loopback address; the run is short.
        admin("target", "bind", &["--initiator-address", "ALL"])?;
        let mut command = process::command("qemu-nbd");
        command.args(["--format=raw", "--cache=none"]);
        let image = format!("iscsi://{portal}/{name}/1");
        let (hop, target) = qemu(command, folder, &format!("hop{index}"), image.as_ref())?;
        hops.push(hop);
        targets.push(target);
    }
    Ok(Serving::by(targets, vec![daemon], hops))
}
