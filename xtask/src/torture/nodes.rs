//! The nodes: one engine process each, in its namespace, with two files as disks.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::net::{Network, address};
use super::{NODES, Node};

/// Name of the resource.
pub const RESOURCE: &str = "r0";
/// Volume of the workload that keeps a ledger, and volume of fio.
pub const VOLUMES: [u16; 2] = [0, 1];
/// Size of each disk.
const DISK: u64 = 48 << 20;
/// How long an engine may take to start, and to end in peace.
const PATIENCE: Duration = Duration::from_secs(40);

/// Failures show within a second, and a Primary that loses the majority fails its writes, so that
/// its clients go to the majority.
const OPTIONS: &str = "\
  options { quorum majority; on-no-quorum io-error; auto-promote yes; }
  net { protocol C; timeout 9; ping-int 1; connect-int 1; }
  disk { c-min-rate 40M; }
";

/// The commands that read the configuration; the others refuse to be told which.
const READS_CONFIGURATION: [&str; 4] = ["create-md", "up", "adjust", "attach"];

/// All nodes.
pub struct Nodes {
    binary: PathBuf,
    folder: PathBuf,
    log_level: String,
    /// Engines by node; node 1 is the first.
    children: Vec<Option<Child>>,
    namespaces: Vec<String>,
}

impl Nodes {
    /// Disks and configuration of nodes that do not run yet.
    pub fn new(
        binary: PathBuf,
        folder: &Path,
        network: &Network,
        log_level: String,
    ) -> Result<Nodes> {
        // The commands run outside of the namespaces, where nobody has these addresses.
        let mut config = String::from("global { disable-ip-verification; }\n");
        let _ = writeln!(config, "resource {RESOURCE} {{\n{OPTIONS}");
        for node in 1..=NODES {
            let _ = writeln!(config, "  on n{node} {{\n    node-id {node};");
            for nr in VOLUMES {
                let disk = disk(folder, node, nr);
                File::create(&disk)?.set_len(DISK)?;
                let disk = disk.display();
                let _ = writeln!(
                    config,
                    "    volume {nr} {{ device minor {nr}; disk {disk}; meta-disk internal; }}"
                );
            }
            config += "  }\n";
        }
        for a in 1..=NODES {
            for b in a + 1..=NODES {
                let (here, there) = (address(a, b), address(b, a));
                let _ = writeln!(
                    config,
                    "  connection {{ host n{a} address {here}:7000; host n{b} address \
                     {there}:7000; }}"
                );
            }
        }
        config += "}\n";
        fs::write(folder.join("drbd.conf"), config)?;
        let children = (1..=NODES).map(|_| None).collect();
        let namespaces = (1..=NODES).map(|node| network.name(node)).collect();
        Ok(Nodes { binary, folder: folder.to_owned(), log_level, children, namespaces })
    }

    /// Starts an engine and waits until it serves commands.
    pub fn start(&mut self, node: Node) -> Result<()> {
        let log = self.folder.join(format!("n{node}.log"));
        let log = File::options().create(true).append(true).open(log)?;
        let child = Command::new("ip")
            .args(["netns", "exec", &self.namespaces[node as usize - 1]])
            .arg(&self.binary)
            .args(["engine", "--threads", "1", "--buffers", "64", "--node", &format!("n{node}")])
            .args(["--log-level", &self.log_level, "--socket"])
            .arg(self.socket(node))
            .arg("--state-dir")
            .arg(self.folder.join(format!("n{node}.state")))
            // Ctrl-C is for this program: it ends the engines in its own time.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("`ip` could not be started")?;
        self.children[node as usize - 1] = Some(child);
        self.ok(node, &["info", "--wait-engine", "40"]).map(drop)
    }

    /// Sends a signal by its name; engines that do not run get none.
    pub fn signal(&self, node: Node, signal: &str) -> Result<()> {
        let Some(child) = &self.children[node as usize - 1] else { return Ok(()) };
        let pid = child.id().to_string();
        let status = Command::new("kill").args([&format!("-{signal}"), &pid]).status()?;
        if !status.success() {
            bail!("n{node} could not be sent SIG{signal}");
        }
        Ok(())
    }

    /// Ends an engine as a crash would.
    pub fn kill(&mut self, node: Node) -> Result<()> {
        if let Some(mut child) = self.children[node as usize - 1].take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Ends an engine in order.
    pub fn stop(&mut self, node: Node) -> Result<()> {
        self.signal(node, "TERM")?;
        let Some(mut child) = self.children[node as usize - 1].take() else { return Ok(()) };
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = child.try_wait()? {
                return match status.success() {
                    true => Ok(()),
                    false => bail!("n{node} ended with {status}"),
                };
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill()?;
        child.wait()?;
        bail!("n{node} did not end within {} s of SIGTERM", PATIENCE.as_secs())
    }

    /// An engine that ended although nobody ended it.
    pub fn casualty(&mut self) -> Result<Option<(Node, ExitStatus)>> {
        for (index, child) in self.children.iter_mut().enumerate() {
            if let Some(status) = child.as_mut().map(Child::try_wait).transpose()?.flatten() {
                return Ok(Some((index as Node + 1, status)));
            }
        }
        Ok(None)
    }

    /// True if its engine was started and not ended.
    pub fn runs(&self, node: Node) -> bool {
        self.children[node as usize - 1].is_some()
    }

    /// Runs an operator's command; gives back what it printed.
    pub fn ok(&self, node: Node, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.binary);
        if READS_CONFIGURATION.iter().any(|reads| words.contains(reads)) {
            command.args(["--node", &format!("n{node}"), "--config"]);
            command.arg(self.folder.join("drbd.conf"));
        }
        let output = command
            .arg("--socket")
            .arg(self.socket(node))
            .args(["--timeout", "30"])
            .args(words)
            .process_group(0)
            .output()
            .context("ashlar could not be started")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            bail!("n{node}: ashlar {}: {said}", words.join(" "));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The status of the resource.
    pub fn status(&self, node: Node) -> Result<Value> {
        let text = self.ok(node, &["status", "--json", "--timeout", "5", RESOURCE])?;
        let mut all: Value = serde_json::from_str(&text).context("status is JSON")?;
        Ok(all[0].take())
    }

    /// Where a node serves a volume.
    pub fn export(&self, node: Node, nr: u16) -> PathBuf {
        self.folder.join(format!("n{node}-{nr}.nbd"))
    }

    /// A disk of a node.
    pub fn disk(&self, node: Node, nr: u16) -> PathBuf {
        disk(&self.folder, node, nr)
    }

    fn socket(&self, node: Node) -> PathBuf {
        self.folder.join(format!("n{node}.sock"))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // Ended or not, it must not outlive the run. SIGKILL also ends what is stopped.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn disk(folder: &Path, node: Node, nr: u16) -> PathBuf {
    folder.join(format!("n{node}-{nr}.img"))
}

/// An array of the status, or nothing.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Connections that nobody tries to make any more.
pub fn stand_alone(status: &Value) -> usize {
    let connections = list(&status["connections"]).iter();
    connections.filter(|c| c["connection-state"] == "StandAlone").count()
}

/// True if the node's disks and all it knows of its peers are as they should be.
pub fn is_whole(status: &Value) -> bool {
    let disks = list(&status["devices"]);
    let connections = list(&status["connections"]);
    disks.len() == VOLUMES.len()
        && connections.len() == NODES as usize - 1
        && disks.iter().all(|d| d["disk-state"] == "UpToDate")
        && connections.iter().all(|c| {
            c["connection-state"] == "Connected"
                && list(&c["peer_devices"]).iter().all(|d| {
                    d["peer-disk-state"] == "UpToDate"
                        && d["replication-state"] == "Established"
                        && d["out-of-sync"] == 0
                })
        })
}
