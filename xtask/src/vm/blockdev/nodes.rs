//! Two engines with a replica each: one in a guest, one on the host's side.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{DISK_MIB, PATIENCE, install};
use crate::process::{self, Daemon};
use crate::torture::nbd::Client;
use crate::vm::guest::Guest;
use crate::vm::rig::{Rig, address};

/// How often is looked whether something holds yet.
const TICK: Duration = Duration::from_millis(500);
/// fio with checks of what it has written, in one pass at the end.
const FIO: &str = "fio --output-format=json --output=/tmp/fio.out --randseed=7 --ioengine=libaio \
                   --verify=crc32c --verify_fatal=1 --do_verify=1 --group_reporting";
/// Starts the engine in the guest.
const ENGINE: &str = "ashlar engine --node alpha --buffers 64 --threads 1 --log-level debug < /dev/null >> /tmp/log 2>&1 & \
                      echo $! > /tmp/pid";
const KILL: &str =
    "kill -9 $(cat /tmp/pid); while [ -d /proc/$(cat /tmp/pid) ]; do sleep 0.02; done";
const PEER_SOCKET: &str = "bravo.sock";
const PEER_LOG: &str = "bravo.log";

/// The engines.
pub struct Nodes<'a> {
    rig: &'a Rig<'a>,
    pub(super) guest: &'a Guest,
    program: PathBuf,
    peer: Option<Daemon>,
    device: String,
}

/// Something that runs in the guest.
pub struct Load(Child);

impl Load {
    /// It has not ended yet.
    pub fn runs(&mut self) -> Result<bool> {
        Ok(self.0.try_wait()?.is_none())
    }
}

impl<'a> Nodes<'a> {
    /// Starts both, of this program, with UpToDate, connected replicas.
    pub fn start(rig: &'a Rig<'a>, guest: &'a Guest, program: PathBuf) -> Result<Nodes<'a>> {
        let stripped = rig.file("ashlar");
        let mut strip = process::command("strip");
        strip.arg("-o").arg(&stripped).arg(&program);
        process::output(strip, PATIENCE)?;
        install(guest, &stripped, "/bin/ashlar")?;
        let config = rig.file("drbd.conf");
        let disk = rig.file("bravo.img");
        fs::File::create(&disk)?.set_len(DISK_MIB << 20)?;
        // A guest answers pings late.
        let text = format!(
            "resource r0 {{\n  net {{ protocol C; ping-timeout 20; }}\n  \
             on alpha {{ node-id 0; address {}:7000; volume 0 {{ device minor 0; disk /dev/vda; \
             meta-disk internal; }} }}\n  \
             on bravo {{ node-id 1; address 10.77.0.1:7000; volume 0 {{ device minor 0; disk {}; \
             meta-disk internal; }} }}\n  connection-mesh {{ hosts alpha bravo; }}\n}}\n",
            address(1),
            disk.display()
        );
        fs::write(&config, text)?;
        guest.put(&config, "/etc/drbd.conf")?;
        let mut nodes = Nodes { rig, guest, program, peer: None, device: String::new() };
        nodes.start_peer()?;
        nodes.start_engine()?;
        nodes.peer_ashlar(&["create-md", "r0"])?;
        nodes.peer_ashlar(&["up", "r0"])?;
        nodes.guest_ashlar("create-md r0 --node alpha")?;
        nodes.guest_ashlar("up r0 --node alpha")?;
        nodes.wait("the nodes are connected", |status| {
            status[0]["connections"][0]["connection-state"] == "Connected"
        })?;
        nodes.guest_ashlar("new-current-uuid --clear-bitmap r0/0")?;
        nodes.wait("the disks are UpToDate", Nodes::is_in_sync)?;
        Ok(nodes)
    }

    /// Starts the engine on the host's side; it knows what it was told before.
    pub fn start_peer(&mut self) -> Result<()> {
        let mut engine = self.rig.command(&self.program);
        engine.args(["engine", "--node", "bravo", "--threads", "1", "--log-level", "debug"]);
        engine.arg("--socket").arg(self.rig.file(PEER_SOCKET));
        engine.arg("--state-dir").arg(self.rig.file("bravo"));
        self.peer = Some(Daemon::start(engine, self.rig.file(PEER_LOG))?);
        self.peer_ashlar(&["info", "--wait-engine", "30"]).map(drop)
    }

    /// Kills it.
    pub fn kill_peer(&mut self) {
        if let Some(mut peer) = self.peer.take() {
            peer.end();
        }
    }

    /// Starts the engine in the guest.
    pub fn start_engine(&self) -> Result<()> {
        self.guest.run(ENGINE, PATIENCE)?;
        self.guest_ashlar("info --wait-engine 60").map(drop)
    }

    /// Has another process take over; gives what was answered.
    pub fn replace_engine(&self) -> Result<String> {
        let script = "said=$(ashlar upgrade) && echo \"$said\" && \
                      echo \"$said\" | sed -n 's/^process \\([0-9]*\\) .*/\\1/p' > /tmp/pid";
        Ok(self.guest.run(script, PATIENCE)?.trim().to_owned())
    }

    /// Kills it, and waits until it is gone.
    pub fn kill_engine(&self) -> Result<()> {
        self.guest.run(KILL, PATIENCE).map(drop)
    }

    /// Kills it, and starts it as soon as it is gone, as a supervisor does.
    pub fn restart_engine(&self) -> Result<()> {
        self.guest.run(&format!("{KILL}; {ENGINE}"), PATIENCE)?;
        self.guest_ashlar("info --wait-engine 60").map(drop)
    }

    /// The longest that a read or a write of the last load took.
    pub fn longest_wait(&self) -> Result<Duration> {
        let said: Value = serde_json::from_str(&self.guest.run("cat /tmp/fio.out", PATIENCE)?)?;
        let of = |kind: &str| said["jobs"][0][kind]["clat_ns"]["max"].as_u64();
        let longest = of("read").max(of("write")).context("fio does not say how long it waited")?;
        Ok(Duration::from_nanos(longest))
    }

    /// An operator's command in the guest; returns what it printed.
    pub fn guest_ashlar(&self, arguments: &str) -> Result<String> {
        self.guest.run(&format!("ashlar {arguments}"), PATIENCE).with_context(|| {
            let log = self.guest.run("tail -n 20 /tmp/log; dmesg | tail -n 20", PATIENCE);
            format!("ashlar {arguments}; the engine's log:\n{}", log.unwrap_or_default())
        })
    }

    fn peer_ashlar(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.rig.command(&self.program);
        command.arg("--socket").arg(self.rig.file(PEER_SOCKET)).args(arguments);
        if ["create-md", "up"].contains(&arguments[0]) {
            command.args(["--node", "bravo", "--config"]).arg(self.rig.file("drbd.conf"));
        }
        process::output(command, PATIENCE).with_context(|| format!("{arguments:?} on bravo"))
    }

    /// Maps the volume in the guest; returns the device.
    pub fn map(&mut self, options: &str) -> Result<String> {
        let device = self.guest_ashlar(&format!("map r0/0 {options}"))?.trim().to_owned();
        let faces = [("--face nbd", "/dev/nbd"), ("--face fuse", "/dev/loop")];
        let face = faces.iter().find(|(face, _)| options.contains(face));
        let kind = face.map_or("/dev/ublkb", |(_, kind)| kind);
        ensure!(device.starts_with(kind), "that is no such device: {device:?}");
        self.device = device;
        Ok(self.device.clone())
    }

    /// Writes a MiB of the letter Z at the peer, which is Primary for as long, where the file system has nothing.
    pub fn write_at_peer(&self) -> Result<()> {
        let socket = self.rig.file("bravo-nbd.sock");
        let listen = socket.display().to_string();
        self.peer_ashlar(&["export", "r0/0", "--listen", &listen])?;
        let mut client = Client::open(&socket, "r0/0", PATIENCE)?;
        for at in 0..16 {
            client.write((300 << 20) + at * (64 << 10), &[b'Z'; 64 << 10])?;
        }
        client.close();
        self.peer_ashlar(&["unexport", "r0/0"]).map(drop)
    }

    /// Waits until the volume is mapped again, by itself.
    pub fn wait_mapped(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let maps: Value = serde_json::from_str(&self.guest_ashlar("maps --json")?)?;
            if let Some(device) = maps[0]["device"].as_str() {
                self.device = device.to_owned();
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                bail!("the volume is not mapped again: {maps}");
            }
            std::thread::sleep(TICK);
        }
    }

    fn script(&self, script: &str) -> String {
        // By its path: the shell of busybox would take its own, which knows less.
        format!("dev={}; fio='{FIO}'; blkdiscard=/usr/sbin/blkdiscard; {script}", self.device)
    }

    /// Runs a script in the guest that uses the device.
    pub fn on_device(&self, script: &str) -> Result<String> {
        self.guest.run(&self.script(script), PATIENCE).with_context(|| {
            let log = self.guest.run("tail -n 10 /tmp/log; dmesg | tail -n 5", PATIENCE);
            format!("the logs end with:\n{}", log.unwrap_or_default())
        })
    }

    /// Starts fio on the device.
    pub fn load(&self, arguments: &str) -> Result<Load> {
        Ok(Load(self.guest.start(&self.script(&format!("$fio {arguments}")))?))
    }

    /// What both engines and the guest's kernel have said last.
    pub fn logs(&self) -> String {
        let guest = "tail -n 30 /tmp/log; dmesg | tail -n 10; ashlar status -v";
        let guest = self.guest.run(guest, PATIENCE);
        let peer = fs::read_to_string(self.rig.file(PEER_LOG)).unwrap_or_default();
        let peer: Vec<&str> = peer.lines().collect();
        let peer = peer[peer.len().saturating_sub(10)..].join("\n");
        format!("{}\nits peer's log:\n{peer}", guest.unwrap_or_else(|error| format!("{error:#}")))
    }

    /// Waits until it has ended, without errors.
    pub fn wait_load(&self, Load(mut child): Load) -> Result<()> {
        let begun = Instant::now();
        loop {
            match child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    bail!("the load in the guest failed: {status}\n{}", self.logs())
                }
                None if begun.elapsed() > PATIENCE => {
                    bail!("the load in the guest does not end\n{}", self.logs())
                }
                None => std::thread::sleep(TICK),
            }
        }
    }

    pub(super) fn status(&self) -> Result<Value> {
        serde_json::from_str(&self.guest_ashlar("status --json")?).context("the status is not JSON")
    }

    /// True if the guest's node is Primary.
    pub fn is_primary(&self) -> Result<bool> {
        Ok(self.status()?[0]["role"] == "Primary")
    }

    /// Both disks are UpToDate.
    pub fn is_in_sync(status: &Value) -> bool {
        let connection = &status[0]["connections"][0];
        status[0]["devices"][0]["disk-state"] == "UpToDate"
            && connection["peer_devices"][0]["peer-disk-state"] == "UpToDate"
    }

    /// Waits until something holds in the guest's status.
    pub fn wait(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<()> {
        let begun = Instant::now();
        loop {
            process::check_signals()?;
            let status = self.status()?;
            if holds(&status) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                bail!("waited in vain until {what}: {status}\n{}", self.logs());
            }
            std::thread::sleep(TICK);
        }
    }

    /// Waits until something holds.
    pub fn wait_for(&self, what: &str, holds: impl Fn() -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        while !holds()? {
            process::check_signals()?;
            if begun.elapsed() > PATIENCE {
                bail!("waited in vain until {what}\n{}", self.logs());
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// Compares the replicas byte for byte, after both engines have ended.
    pub fn compare(&mut self) -> Result<()> {
        self.wait("the disks are UpToDate", Nodes::is_in_sync)?;
        self.guest_ashlar("shutdown")?;
        self.guest.run("sync", PATIENCE)?;
        self.peer_ashlar(&["shutdown"])?;
        // Both disks are files of this machine, which reads them faster than the guest.
        let replicas = [self.rig.disk(1), self.rig.file("bravo.img")];
        let [ours, theirs] = replicas.map(fs::File::open);
        let (mut ours, mut theirs) = (ours?, theirs?);
        let [mut here, mut there] = [vec![0; 1 << 20], vec![0; 1 << 20]];
        for mib in 0..DISK_MIB - 1 {
            ours.read_exact(&mut here)?;
            theirs.read_exact(&mut there)?;
            if let Some(at) = here.iter().zip(&there).position(|(a, b)| a != b) {
                bail!("the replicas differ, first at byte {}", (mib << 20) + at as u64);
            }
        }
        Ok(())
    }
}
