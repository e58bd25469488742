//! `cargo xtask vm lvm pools`: the tests of LVM's pools, on a volume group of a guest.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::guest::Kind;
use super::image::Images;
use super::rig::Rig;
use super::{DISK_MIB, PATIENCE};
use crate::process;

/// A user-mode guest: up in seconds, and its kernel has thin volumes.
pub(super) const MODULES: [&str; 2] = ["dm-mod", "dm-thin-pool"];
/// Building the test included.
const TEST_PATIENCE: Duration = Duration::from_secs(600);

/// LVM's commands, and what they need where nobody answers for udev: LVM makes its device nodes itself.
pub(super) const LVM: &str = "for tool in pvs vgs lvs pvcreate pvremove vgcreate vgremove lvcreate lvextend lvremove \
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
    // Of the whole workspace: one package alone would have its dependencies built once more.
    command.args(["test", "--workspace", "--test", "lvm", "--", "--nocapture"]);
    command.env("ASHLAR_LVM_GUEST", guest.ssh_words());
    let said = process::output(command, TEST_PATIENCE)?;
    ensure!(!said.contains("skipped:"), "the tests did not find the guest:\n{said}");
    print!("{said}");
    Ok(())
}
