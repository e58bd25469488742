//! A control plane in a guest: a controller and an agent, and what an operator types there.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::blockdev::install;
use super::engine::binary;
use super::guest::{Guest, Kind};
use super::rig::{Rig, address};
use crate::process;

/// An emulated guest is slow.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// The name of the node, which is the guest's, too.
pub const NODE: &str = "g2";
/// Which guest that is.
pub const NR: u8 = 2;

/// A guest in which a control plane runs, and its disk.
pub struct Bed {
    pub guest: Guest,
    pub disk: &'static str,
}

impl Bed {
    /// Starts a controller and an agent in the guest, and waits until its node is online.
    pub fn start(rig: &Rig<'_>, guest: Guest, kind: Kind) -> Result<Bed> {
        let stripped = rig.file("ashlar");
        let mut strip = process::command("strip");
        strip.arg("-o").arg(&stripped).arg(binary()?);
        process::output(strip, PATIENCE)?;
        install(&guest, &stripped, "/bin/ashlar")?;
        for program in ["lsblk", "wipefs"] {
            let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(Path::new);
            let mut paths = folders.iter().map(|folder| folder.join(program));
            let path = paths.find(|path| path.exists());
            let path = path.with_context(|| format!("there is no {program} (util-linux)"))?;
            install(&guest, &path, &format!("/bin/{program}"))?;
        }
        let bed = Bed { guest, disk: kind.disk() };
        let guest = &bed.guest;
        let controller = "ashlar controller --data-dir /controller --listen 127.0.0.1:3370 \
                          --listen-agents 127.0.0.1:3377 < /dev/null > /tmp/controller 2>&1 &";
        guest.run(controller, PATIENCE)?;
        wait("the controller serves", || Ok(bed.ashlar("node list").is_ok()))?;
        let invite = format!("node create {NODE}={} --invite 127.0.0.1", address(NR));
        let invited = bed.ashlar(&invite)?;
        let (_, join) = invited.trim().split_once(": ashlar ").context("there is no invitation")?;
        bed.ashlar(join)?;
        bed.start_agent("")?;
        Ok(bed)
    }

    /// Starts the agent with these options, and waits until its node is online.
    pub fn start_agent(&self, options: &str) -> Result<()> {
        let start = format!(
            "ashlar agent {options} < /dev/null >> /tmp/agent 2>&1 & echo $! > /tmp/agent.pid"
        );
        self.guest.run(&start, PATIENCE)?;
        wait("the node is online", || {
            let nodes: Value = serde_json::from_str(&self.ashlar("node list --json")?)?;
            Ok(nodes[0].to_string().to_ascii_lowercase().contains("online"))
        })
    }

    /// Ends the agent, and waits until the controller has noticed.
    pub fn stop_agent(&self) -> Result<()> {
        let end = "kill $(cat /tmp/agent.pid); \
                   while [ -d /proc/$(cat /tmp/agent.pid) ]; do sleep 0.1; done";
        self.guest.run(end, PATIENCE)?;
        wait("the node is offline", || {
            let nodes: Value = serde_json::from_str(&self.ashlar("node list --json")?)?;
            Ok(!nodes[0].to_string().to_ascii_lowercase().contains("online"))
        })
    }

    /// An operator's command in the guest; what it printed.
    pub fn ashlar(&self, line: &str) -> Result<String> {
        self.guest.run(&format!("ashlar {line}"), PATIENCE).with_context(|| {
            let log = self.guest.run("tail -n 30 /tmp/agent /tmp/controller /tmp/engine", PATIENCE);
            log.unwrap_or_default()
        })
    }

    /// A command that has to be refused with these words.
    pub fn refused(&self, line: &str, words: &str) -> Result<()> {
        match self.guest.run(&format!("ashlar {line}"), PATIENCE) {
            Ok(said) => bail!("`{line}` was not refused: {said}"),
            Err(error) => {
                let error = format!("{error:#}");
                ensure!(error.contains(words), "`{line}` does not say {words:?}:\n{error}");
                Ok(())
            }
        }
    }
}

/// Waits until it is so.
pub fn wait(what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !is_so()? {
        ensure!(begun.elapsed() < PATIENCE, "that {what} does not come true");
        process::check_signals()?;
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}
