//! The programs that tests call: real clients and DRBD's own tools.
//!
//! What is missing is installed from the distribution's packages, with apt, and clients that are
//! written in Python from PyPI, each into an environment of its own below `target/tmp`. Where that
//! can not be done, the tests that need a program say so and count as skipped.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::Outcome;
use crate::workspace;

/// Programs and the Debian packages they are in.
const TOOLS: &[(&str, &str)] = &[
    ("drbdmeta", "drbd-utils"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("qemu-nbd", "qemu-utils"),
    ("qemu-storage-daemon", "qemu-system-common"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("fio", "fio"),
    ("ip", "iproute2"),
    ("ssh", "openssh-client"),
    ("mkfs.ext4", "e2fsprogs"),
    ("setpriv", "util-linux"),
    ("losetup", "mount"),
    // Pools of files: snapshots share blocks on both.
    ("mkfs.xfs", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    // Stores that controllers share.
    ("postgres", "postgresql"),
    ("etcd", "etcd-server"),
    ("timeout", "coreutils"),
    // A guest that boots from a volume.
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("grub-mkimage", "grub-common"),
    ("sfdisk", "fdisk"),
    ("/usr/lib/grub/i386-pc/boot.img", "grub-pc-bin"),
    // libFuzzer is C++.
    ("c++", "g++"),
];

/// The Python module of libnbd is asked for as the tests use it, see `nbd_support`.
const LIBNBD_FOR_PYTHON: &str = "python3-libnbd";

/// Environments of Python: folder, module and packages of each.
const ENVIRONMENTS: &str = include_str!("../../../crates/controller/tests/client/packages.txt");

/// The section: nothing in it is a test, but what stays missing is said.
pub fn run() -> Result<Outcome> {
    programs()?;
    for line in ENVIRONMENTS.lines().filter(|line| !line.starts_with('#')) {
        if let Err(error) = environment(line) {
            println!("{line}: could not be installed; tests that need it are skipped: {error:#}");
        }
    }
    Ok(Outcome::default())
}

fn programs() -> Result<()> {
    let packages = missing();
    if packages.is_empty() {
        println!("every program is there");
        return Ok(());
    }
    println!("missing: {}", packages.join(" "));
    if !install(&packages)? {
        println!("could not be installed; tests that need them are skipped");
        println!("by hand: apt-get install --no-install-recommends {}", packages.join(" "));
    }
    let still = missing();
    if !still.is_empty() {
        println!("still missing: {}", still.join(" "));
    }
    Ok(())
}

/// Makes an environment of Python where the tests look for it, unless it is there.
fn environment(line: &str) -> Result<()> {
    let mut words = line.split(' ');
    let (name, module) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let metadata = workspace::Metadata::of(&workspace::root().join("Cargo.toml"))?;
    let folder = metadata.target_directory.join("tmp").join(name);
    let python = folder.join("bin/python");
    if says(Command::new(&python).args(["-c", &format!("import {module}")])).is_ok() {
        println!("{name} is there");
        return Ok(());
    }
    println!("installing {name} from PyPI");
    says(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let pip = ["-m", "pip", "install", "--quiet", "--retries", "1", "--timeout", "30"];
    says(Command::new(&python).args(pip).args(words))
}

fn says(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn missing() -> Vec<&'static str> {
    let absent = TOOLS.iter().filter(|(program, _)| !installed(program));
    let mut packages: Vec<&str> = absent.map(|(_, package)| *package).collect();
    if !python_has_libnbd() {
        packages.push(LIBNBD_FOR_PYTHON);
    }
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// True if the program is in the search path or where administrators' programs are.
fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<_> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/sbin"].map(Into::into));
    // PostgreSQL's are in a folder for each version.
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    folders.extend(versions.map(|version| version.path().join("bin")));
    folders.iter().any(|folder| folder.join(program).is_file())
}

fn python_has_libnbd() -> bool {
    ["python3", "/usr/bin/python3"].iter().any(|python| {
        let output = Command::new(python).args(["-c", "import nbd"]).output();
        output.is_ok_and(|output| output.status.success())
    })
}

/// Installs packages with apt, as root or with a `sudo` that asks nothing. False if it can not.
fn install(packages: &[&str]) -> Result<bool> {
    if !installed("apt-get") {
        println!("there is no apt-get here");
        return Ok(false);
    }
    let is_root = Path::new("/proc/self").metadata().is_ok_and(|metadata| {
        use std::os::unix::fs::MetadataExt;
        metadata.uid() == 0
    });
    if !is_root && !installed("sudo") {
        println!("only root can install packages, and there is no sudo");
        return Ok(false);
    }
    let apt = |arguments: &[&str]| {
        let mut words = Vec::new();
        if !is_root {
            words.extend(["sudo", "-n"]);
        }
        words.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]);
        words.extend(["-o", "Dpkg::Use-Pty=0"]);
        words.extend(arguments);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(std::process::Stdio::null());
        super::run(command, 10)
    };
    // A stale list of packages is no reason to give up: the install says what is missing.
    let _ = apt(&["update"])?;
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(packages);
    apt(&install)
}
