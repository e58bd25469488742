//! The guests' network: a namespace with a bridge, to which every guest has a cable.
//!
//! ```text
//!   host side 10.77.0.1 ──┬── guest 1, 10.77.0.11
//!       (the bridge)      └── guest 2, 10.77.0.12 ...     nothing leads out of the namespace
//! ```

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::guest::{Guest, Kind};
use super::image::Images;
use crate::netns::{ip, remove, sweep};
use crate::process;

/// Every namespace of this command is named so, then the process id, then a number.
const PREFIX: &str = "ashlar-vm-";
const BRIDGE: &str = "bridge";

/// A network and the guests' disks. Guests have to be dropped before it.
pub struct Rig<'a> {
    pub(super) images: &'a Images,
    namespace: String,
    directory: TempDir,
}

/// The address of a guest.
pub fn address(nr: u8) -> String {
    format!("10.77.0.{}", 10 + nr)
}

impl<'a> Rig<'a> {
    /// Makes the network; what an earlier run could not remove goes first.
    ///
    /// # Errors
    /// If this is not root, or the kernel or `ip` refuses.
    pub fn new(images: &'a Images) -> Result<Rig<'a>> {
        sweep(PREFIX);
        let directory = tempfile::Builder::new().prefix("ashlar-vm").tempdir()?;
        let namespace = format!("{PREFIX}{}", std::process::id());
        let add = ip(&["netns", "add", &namespace]);
        add.context("network namespaces need root: repeat it as root or with sudo")?;
        let rig = Rig { images, namespace, directory };
        let inside = ["-n", &rig.namespace];
        ip(&[&inside[..], &["link", "set", "lo", "up"]].concat())?;
        ip(&[&inside[..], &["link", "add", BRIDGE, "type", "bridge"]].concat())?;
        ip(&[&inside[..], &["address", "add", "10.77.0.1/24", "dev", BRIDGE]].concat())?;
        ip(&[&inside[..], &["link", "set", BRIDGE, "up"]].concat())?;
        Ok(rig)
    }

    /// Boots a guest with a new, empty disk, and waits until it can be talked to.
    ///
    /// # Errors
    /// If it does not start, or lacks one of the modules.
    pub fn boot(&self, kind: Kind, nr: u8, disk_mib: u64, modules: &[&str]) -> Result<Guest> {
        File::create(self.disk(nr))?.set_len(disk_mib << 20)?;
        self.boot_again(kind, nr, modules)
    }

    /// Boots a guest with the disk that it had before.
    ///
    /// # Errors
    /// As [`Rig::boot`].
    pub fn boot_again(&self, kind: Kind, nr: u8, modules: &[&str]) -> Result<Guest> {
        self.plug_in(nr)?;
        Guest::boot(self, kind, nr, modules)
    }

    /// Boots an emulated guest from a disk that a vhost-user socket serves.
    ///
    /// # Errors
    /// If it does not start.
    pub fn boot_from(&self, nr: u8, socket: &Path) -> Result<Guest> {
        self.plug_in(nr)?;
        Guest::boot_from(self, nr, socket)
    }

    /// Makes the cable of a guest.
    fn plug_in(&self, nr: u8) -> Result<()> {
        let cable = cable(nr);
        let inside = ["-n", &self.namespace];
        // A new one each time: the one before may still be held by what is left of its guest.
        let _ = ip(&[&inside[..], &["link", "delete", &cable]].concat());
        ip(&[&inside[..], &["tuntap", "add", "dev", &cable, "mode", "tap"]].concat())?;
        ip(&[&inside[..], &["link", "set", &cable, "master", BRIDGE, "up"]].concat())
    }

    /// The host's side gets the address of a guest that is off.
    ///
    /// # Errors
    /// If it has it.
    pub fn stand_in(&self, nr: u8) -> Result<()> {
        self.change_address("add", nr)?;
        // Guests that know where the address was send there until they are told: the next question for
        // one of them says where it is now.
        ip(&["-n", &self.namespace, "neighbour", "flush", "dev", BRIDGE])
    }

    /// And gives it back.
    ///
    /// # Errors
    /// If it does not have it.
    pub fn stand_back(&self, nr: u8) -> Result<()> {
        self.change_address("delete", nr)
    }

    fn change_address(&self, how: &str, nr: u8) -> Result<()> {
        let address = format!("{}/24", address(nr));
        ip(&["-n", &self.namespace, "address", how, &address, "dev", BRIDGE])
    }

    /// The file that is a guest's disk, to be looked into while the guest is off.
    pub fn disk(&self, nr: u8) -> PathBuf {
        self.file(&format!("disk{nr}"))
    }

    /// A file of this run.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A program on the host's side of the network.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = process::command("ip");
        command.args(["netns", "exec", &self.namespace]).arg(program);
        command
    }
}

impl Drop for Rig<'_> {
    fn drop(&mut self) {
        remove(&self.namespace);
    }
}

/// The host's end of a guest's network card.
pub fn cable(nr: u8) -> String {
    format!("tap{nr}")
}
