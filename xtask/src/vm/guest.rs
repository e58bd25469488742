//! One guest: booted, talked to over ssh, its power cut.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::rig::{Rig, address, cable};
use crate::process::{self, Daemon};

/// How long a boot may take, also on a machine with other work.
const BOOT_PATIENCE: Duration = Duration::from_secs(180);
/// How long it may take from then until it is reached.
const SSH_PATIENCE: Duration = Duration::from_secs(120);
/// How long copying a file may take.
const COPY_PATIENCE: Duration = Duration::from_secs(120);
/// What /init says when all is set up.
const READY: &str = "GUEST READY";
/// What it says of a module that it can not load.
const LACKS: &str = "GUEST HAS NO ";

/// How a guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Linux as a process.
    UserMode,
    /// A kernel on QEMU's emulated machine.
    Emulated,
    /// The same with the newest kernel that Debian has.
    Newest,
}

impl Kind {
    /// The guest's disk, as it sees it.
    pub fn disk(self) -> &'static str {
        match self {
            Kind::UserMode => "/dev/ubda",
            Kind::Emulated | Kind::Newest => "/dev/vda",
        }
    }

    /// Its kernel and its first file system, as xtask/vm/build.sh names them.
    fn files(self) -> (&'static str, &'static str) {
        match self {
            Kind::UserMode => ("linux.uml", "usermode.gz"),
            Kind::Emulated => ("vmlinuz", "emulated.gz"),
            Kind::Newest => ("vmlinuz-newest", "newest.gz"),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::UserMode => "user-mode",
            Kind::Emulated => "emulated",
            Kind::Newest => "newest",
        })
    }
}

impl FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Kind> {
        match text {
            "user-mode" => Ok(Kind::UserMode),
            "emulated" => Ok(Kind::Emulated),
            "newest" => Ok(Kind::Newest),
            other => bail!("a kind of guest is user-mode, emulated or newest, not {other:?}"),
        }
    }
}

/// A guest that runs. Dropped, its power is cut.
pub struct Guest {
    daemon: Daemon,
    /// ssh to it, up to the command.
    ssh: Vec<PathBuf>,
}

impl Guest {
    pub(super) fn boot(rig: &Rig<'_>, kind: Kind, nr: u8, modules: &[&str]) -> Result<Guest> {
        let console = rig.file(&format!("console{nr}"));
        let words = Guest::words(nr, modules);
        let boot = || {
            let command = match kind {
                Kind::UserMode => user_mode(rig, nr, &words),
                Kind::Emulated | Kind::Newest => emulated(rig, kind, nr, &words),
            };
            Guest::start_up(rig, nr, kind, command, &console)
        };
        let booted = boot();
        // An emulated machine now and then does not do what its kernel's first lines want.
        let text = fs::read(&console).unwrap_or_default();
        match booted {
            Err(error) if String::from_utf8_lossy(&text).contains("Kernel panic") => {
                println!("the guest's kernel has panicked as it started, once more: {error:#}");
                boot()
            }
            booted => booted,
        }
    }

    /// Boots an emulated guest, of two CPUs, from the disk that a vhost-user socket serves. What its kernel
    /// is told is on that disk ([`Guest::words`]).
    pub(super) fn boot_from(rig: &Rig<'_>, nr: u8, socket: &Path) -> Result<Guest> {
        let mut command = machine(rig, nr, 2);
        let disk = format!("socket,id=disk,path={},reconnect=1", socket.display());
        command.args(["-object", "memory-backend-memfd,id=memory,size=1024M,share=on"]);
        command.args(["-machine", "memory-backend=memory", "-chardev", &disk]);
        command.args(["-device", "vhost-user-blk-pci,chardev=disk,num-queues=2,bootindex=0"]);
        Guest::start_up(rig, nr, Kind::Emulated, command, &rig.file(&format!("console{nr}")))
    }

    /// What its first process has to know, on the kernel's command line.
    pub(super) fn words(nr: u8, modules: &[&str]) -> String {
        format!("name=g{nr} address={} modules={}", address(nr), modules.join(","))
    }

    fn start_up(
        rig: &Rig<'_>,
        nr: u8,
        kind: Kind,
        command: Command,
        console: &Path,
    ) -> Result<Guest> {
        let mut daemon = Daemon::start(command, console.to_owned())?;
        let said = |what: &str| fs::read_to_string(console).is_ok_and(|text| text.contains(what));
        daemon.wait(&format!("guest {nr} is up"), BOOT_PATIENCE, || said(READY))?;
        if said(LACKS) {
            let text = fs::read_to_string(console)?;
            bail!("{kind} guest {nr} can not load a module:\n{}", text.trim());
        }
        let guest = Guest { daemon, ssh: ssh(rig, nr) };
        guest.wait_for_ssh()?;
        Ok(guest)
    }

    /// It says that it is up a moment before its neighbours find it, longer where the machine is busy.
    fn wait_for_ssh(&self) -> Result<()> {
        let end = Instant::now() + SSH_PATIENCE;
        loop {
            match self.run("true", SSH_PATIENCE) {
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(200)),
                result => return result.map(drop),
            }
        }
    }

    /// Runs a line of shell in it and returns what that printed.
    ///
    /// # Errors
    /// If it fails, or takes longer than `patience`.
    pub fn run(&self, line: &str, patience: Duration) -> Result<String> {
        process::output(self.command(line)?, patience)
            .with_context(|| format!("in the guest: {line}"))
    }

    /// Starts a line of shell in it, which may run on for long.
    ///
    /// # Errors
    /// If ssh can not be started.
    pub fn start(&self, line: &str) -> Result<Child> {
        let mut command = self.command(line)?;
        Ok(command.stdout(Stdio::null()).spawn()?)
    }

    /// Copies a file into it, as a program.
    ///
    /// # Errors
    /// If it can not be read, or the guest has no room.
    pub fn put(&self, file: &Path, to: &str) -> Result<()> {
        let line = format!("mkdir -p $(dirname {to}) && cat > {to} && chmod +x {to}");
        let mut command = self.command(&line)?;
        command.stdin(File::open(file).with_context(|| file.display().to_string())?);
        process::output(command, COPY_PATIENCE).map(drop).with_context(|| format!("copying {to}"))
    }

    /// The same, unless there is one.
    ///
    /// # Errors
    /// As [`Guest::put`].
    pub fn put_if_missing(&self, file: &Path, to: &str) -> Result<()> {
        match self.run(&format!("test -e {to}"), COPY_PATIENCE) {
            Ok(_) => Ok(()),
            Err(_) => self.put(file, to),
        }
    }

    fn command(&self, line: &str) -> Result<Command> {
        let (program, arguments) = self.ssh.split_first().context("ssh has words")?;
        let mut command = process::command(program);
        command.args(arguments).arg(line);
        Ok(command)
    }

    /// The command that runs another one in it, words separated by spaces.
    pub fn ssh_words(&self) -> String {
        let words: Vec<String> = self.ssh.iter().map(|word| word.display().to_string()).collect();
        words.join(" ")
    }

    /// Ends it as a power cut would: what its disk has not is gone.
    ///
    /// # Errors
    /// If it had ended before.
    pub fn power_cut(mut self) -> Result<()> {
        self.daemon.check()
    }
}

impl Drop for Guest {
    /// All processes of the guest at once: those by which user-mode Linux runs its programs would
    /// outlive it and hold its disk.
    fn drop(&mut self) {
        let group = format!("-{}", self.daemon.pid());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
    }
}

fn user_mode(rig: &Rig<'_>, nr: u8, words: &str) -> Command {
    let images = rig.images;
    let (kernel, initrd) = Kind::UserMode.files();
    let mut command = rig.command(Path::new("env"));
    command.arg(format!("LD_PRELOAD={}", images.file("xshim.so").display()));
    // Its helper processes and sockets go into the folder of the run, and with it.
    command.arg(format!("TMPDIR={}", rig.file("").display()));
    command.arg(images.file(kernel)).args(["mem=512M", "con=null", "con0=fd:0,fd:1", "quiet"]);
    command.arg(format!("uml_dir={}", rig.file("").display()));
    command.arg(format!("initrd={}", images.file(initrd).display()));
    command.arg(format!("ubd0={}", rig.disk(nr).display()));
    command.arg(format!("eth0=tuntap,{},52:54:00:00:01:{nr:02x},", cable(nr)));
    command.args(words.split(' '));
    command
}

/// An emulated machine on the network, without a disk.
fn machine(rig: &Rig<'_>, nr: u8, cpus: u8) -> Command {
    let mut command = rig.command(Path::new("qemu-system-x86_64"));
    let cpus = cpus.to_string();
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", &cpus, "-m", "1024"]);
    command.args(["-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio"]);
    let net = format!("tap,id=net,ifname={},script=no,downscript=no", cable(nr));
    let card = format!("virtio-net-pci,netdev=net,mac=52:54:00:00:00:{nr:02x},romfile=");
    command.args(["-netdev", &net, "-device", &card]);
    command
}

fn emulated(rig: &Rig<'_>, kind: Kind, nr: u8, words: &str) -> Command {
    let images = rig.images;
    let (kernel, initrd) = kind.files();
    let disk = rig.disk(nr);
    // With two a block device has two queues.
    let cpus = if kind == Kind::Newest { 2 } else { 1 };
    let mut command = machine(rig, nr, cpus);
    command.arg("-kernel").arg(images.file(kernel));
    command.arg("-initrd").arg(images.file(initrd));
    command.args(["-append", &format!("console=ttyS0 quiet panic=-1 {words}")]);
    let disk =
        format!("file={},if=none,id=disk,format=raw,cache=none,discard=unmap", disk.display());
    command.args(["-drive", &disk, "-device", "virtio-blk-pci,drive=disk"]);
    command
}

/// How to reach a guest.
fn ssh(rig: &Rig<'_>, nr: u8) -> Vec<PathBuf> {
    let command = rig.command(Path::new("ssh"));
    // Without `process::command`'s own words, which every run adds again.
    let words = command.get_args().skip_while(|word| *word != "ip");
    let mut words: Vec<PathBuf> = words.map(PathBuf::from).collect();
    for option in [
        "ConnectTimeout=60",
        "ServerAliveInterval=5",
        "ServerAliveCountMax=12",
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "LogLevel=ERROR",
    ] {
        words.extend(["-o".into(), option.into()]);
    }
    words.extend(["-i".into(), rig.images.file("key")]);
    words.push(format!("root@{}", address(nr)).into());
    words
}
