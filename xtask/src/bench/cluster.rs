//! Some engines on this machine with one replicated volume on files.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

/// Names of nodes, in the order of their ids.
pub const NAMES: &[&str] = &["alpha", "bravo", "charlie", "delta"];

/// How long the nodes may take to find each other.
const PATIENCE: Duration = Duration::from_secs(30);

/// Running engines; they end with it.
pub struct Cluster {
    program: PathBuf,
    directory: TempDir,
    engines: Vec<Child>,
}

/// A volume's counters of metadata writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Activity log transactions.
    pub activity_log: u64,
    /// Bitmap blocks.
    pub bitmap: u64,
}

impl Cluster {
    /// Starts `nodes` engines with UpToDate, connected replicas of so many MiB; `disk` are lines
    /// for the section of that name.
    pub fn start(program: &Path, nodes: usize, mib: u64, disk: &str) -> Result<Cluster> {
        let directory = tempfile::Builder::new().prefix("ashlar-bench").tempdir()?;
        let path = directory.path().display();
        let mut config = format!("resource r0 {{\n  disk {{ {disk} }}\n");
        for (id, name) in NAMES.iter().enumerate().take(nodes) {
            let file = format!("{path}/{name}.img");
            // One for metadata, of which a volume of this size needs far less.
            allocate(Path::new(&file), mib + 1)?;
            writeln!(
                config,
                "  on {name} {{ node-id {id}; address 127.77.7.{}:7000; \
                 volume 0 {{ device minor 0; disk {file}; meta-disk internal; }} }}",
                id + 1
            )?;
        }
        writeln!(config, "  connection-mesh {{ hosts {}; }}\n}}", NAMES[..nodes].join(" "))?;
        fs::write(directory.path().join("drbd.conf"), config)?;
        let program = program.to_owned();
        let mut cluster = Cluster { program, directory, engines: Vec::new() };
        for node in 0..nodes {
            cluster.start_engine(node)?;
            cluster.command(node, &["create-md", "r0"])?;
            cluster.command(node, &["up", "r0"])?;
        }
        cluster.wait("the nodes are connected", |resource| {
            let connections = array(&resource["connections"]);
            connections.iter().all(|peer| peer["connection-state"] == "Connected")
        })?;
        cluster.command(0, &["new-current-uuid", "--clear-bitmap", "r0/0"])?;
        cluster.wait("the disks are UpToDate", |resource| {
            resource["devices"][0]["disk-state"] == "UpToDate"
        })?;
        let socket = cluster.nbd().display().to_string();
        cluster.command(0, &["export", "r0/0", "--listen", &socket])?;
        Ok(cluster)
    }

    fn start_engine(&mut self, node: usize) -> Result<()> {
        let directory = self.directory.path().join(NAMES[node]);
        fs::create_dir(&directory)?;
        let engine = Command::new(&self.program)
            .args(["engine", "--threads", "1", "--log-level", "warn", "--node", NAMES[node]])
            .arg("--socket")
            .arg(self.socket(node))
            .arg("--state-dir")
            .arg(directory.join("state"))
            .stdin(Stdio::null())
            .stderr(File::create(directory.join("log"))?)
            .spawn()
            .context("the engine could not be started")?;
        self.engines.push(engine);
        self.command(node, &["info", "--wait-engine", "30"])?;
        Ok(())
    }

    fn socket(&self, node: usize) -> PathBuf {
        self.directory.path().join(NAMES[node]).join("sock")
    }

    /// Where the first node serves the volume.
    pub fn nbd(&self) -> PathBuf {
        self.directory.path().join(NAMES[0]).join("nbd")
    }

    /// A file of ours beside the disks.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Process ids of the engines.
    pub fn pids(&self) -> Vec<u32> {
        self.engines.iter().map(Child::id).collect()
    }

    /// An operator's command on a node; returns what it printed.
    fn command(&self, node: usize, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.program)
            .arg("--socket")
            .arg(self.socket(node))
            .args(["--node", NAMES[node], "--timeout", "30", "--config"])
            .arg(self.directory.path().join("drbd.conf"))
            .args(arguments)
            .output()
            .context("a command could not be started")?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            bail!("{} on {}: {text}", arguments.join(" "), NAMES[node]);
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn status(&self, node: usize) -> Result<Value> {
        let text = self.command(node, &["status", "--json"])?;
        let all: Value = serde_json::from_str(&text).context("the status is JSON")?;
        Ok(all[0].clone())
    }

    /// Waits until something holds on all nodes.
    fn wait(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<()> {
        let begun = Instant::now();
        for node in 0..self.engines.len() {
            while !holds(&self.status(node)?) {
                if begun.elapsed() > PATIENCE {
                    bail!("waited in vain until {what}:\n{}", self.command(node, &["status"])?);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// Fails unless all nodes are still connected: with one missing, less work is measured.
    pub fn check(&self) -> Result<()> {
        for (node, name) in NAMES.iter().enumerate().take(self.engines.len()) {
            for peer in array(&self.status(node)?["connections"]) {
                if peer["connection-state"] != "Connected" {
                    let status = self.command(node, &["status", "-vv", "-s"])?;
                    bail!("{name} has lost {}:\n{status}", peer["name"]);
                }
            }
        }
        Ok(())
    }

    /// How often a node has written its metadata.
    pub fn counters(&self, node: usize) -> Result<Counters> {
        let device = &self.status(node)?["devices"][0];
        let count = |name: &str| device[name].as_u64().with_context(|| format!("no {name}"));
        Ok(Counters { activity_log: count("al-writes")?, bitmap: count("bm-writes")? })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for engine in &mut self.engines {
            // Ended or not, it must not outlive the measurement.
            let _ = engine.kill();
            let _ = engine.wait();
        }
    }
}

/// A file whose blocks are there, so that writes do not wait for the file system to find some.
fn allocate(path: &Path, mib: u64) -> Result<()> {
    let status = Command::new("fallocate")
        .arg("--length")
        .arg(format!("{mib}MiB"))
        .arg(path)
        .status()
        .context("fallocate could not be started")?;
    if !status.success() {
        bail!("{} could not be allocated", path.display());
    }
    Ok(())
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
