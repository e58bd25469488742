//! Some engines on this machine with replicated volumes on files.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use super::fio::Target;
use crate::process::{self, Daemon};

/// Names of nodes, in the order of their ids.
pub const NAMES: &[&str] = &["alpha", "bravo", "charlie", "delta"];

/// How long the nodes may take to find each other.
const PATIENCE: Duration = Duration::from_secs(60);
/// And for each volume.
const PATIENCE_EACH: Duration = Duration::from_millis(50);
/// Resources that one command is for.
const AT_ONCE: usize = 250;
/// Files that an engine has open for each volume, at most: a disk, sockets to listen, and two for
/// each peer.
const FILES_EACH: usize = 10;
/// And besides.
const FILES: usize = 500;
/// So many volumes need more files than a process is commonly allowed.
const MANY: usize = 1_000;
/// How long a command may take.
const COMMAND_PATIENCE: Duration = Duration::from_secs(40);
/// How often is looked whether something holds yet.
const TICK: Duration = Duration::from_millis(50);
/// The same where the time until then is the figure.
const RESYNC_TICK: Duration = Duration::from_millis(5);
/// The port of the first resource; the next ones have the next.
const PORT: usize = 7000;

/// Running engines; they end with it.
pub struct Cluster {
    program: PathBuf,
    directory: TempDir,
    /// The first three bytes of the nodes' addresses.
    network: String,
    shape: Shape,
    engines: Vec<Daemon>,
    /// The others have been ended.
    is_alone: bool,
}

/// What a cluster is to be.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Nodes with a disk.
    pub replicas: usize,
    /// One more node, without a disk.
    pub diskless: bool,
    /// Volumes, each of a resource of its own.
    pub volumes: usize,
    /// Size of each.
    pub mib: u64,
    /// Their blocks are not there before they are written.
    pub sparse: bool,
    /// Volumes that clients can use, of these.
    pub served: usize,
    /// Lines for the section `net`, by volume; none for those beyond.
    pub net: Vec<String>,
    /// Lines for the section `disk`.
    pub disk: String,
    /// Volumes are used where a majority is, and wait elsewhere.
    pub quorum: bool,
    /// More arguments of the engines.
    pub engine: &'static [&'static str],
}

/// A volume's counters of metadata writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Activity log transactions.
    pub activity_log: u64,
    /// Bitmap blocks.
    pub bitmap: u64,
    /// Superblocks.
    pub superblock: u64,
}

impl Counters {
    /// What was written since.
    pub fn since(self, before: Counters) -> Counters {
        Counters {
            activity_log: self.activity_log - before.activity_log,
            bitmap: self.bitmap - before.bitmap,
            superblock: self.superblock - before.superblock,
        }
    }

    /// All of them.
    pub fn all(self) -> u64 {
        self.activity_log + self.bitmap + self.superblock
    }
}

impl Shape {
    /// Nodes, the one without a disk included.
    fn nodes(&self) -> usize {
        self.replicas + usize::from(self.diskless)
    }

    /// Files that an engine of so many volumes may have open.
    pub fn files_for(volumes: usize) -> usize {
        FILES + FILES_EACH * volumes
    }

    /// The volumes of an engine that may have so many files open.
    pub fn volumes_for(files: usize) -> usize {
        files.saturating_sub(FILES) / FILES_EACH
    }
}

impl Cluster {
    /// Starts engines with UpToDate, connected replicas. Everything of theirs is in `directory`.
    pub fn start(program: &Path, directory: TempDir, shape: Shape) -> Result<Cluster> {
        let (program, network) = (program.to_owned(), network());
        let mut cluster =
            Cluster { program, directory, network, shape, engines: Vec::new(), is_alone: false };
        for node in 0..cluster.shape.replicas {
            for volume in 0..cluster.shape.volumes {
                // One MiB for metadata, of which a volume of this size needs far less.
                let (path, mib) = (cluster.disk(node, volume), cluster.shape.mib + 1);
                match cluster.shape.sparse {
                    true => fs::File::create(&path)?.set_len(mib << 20)?,
                    false => allocate(&path, mib)?,
                }
            }
        }
        fs::write(cluster.file("drbd.conf"), cluster.config()?)?;
        for node in 0..cluster.shape.nodes() {
            cluster.start_engine(node)?;
            if node < cluster.shape.replicas {
                cluster.command(node, &["create-md", "all"])?;
            }
            cluster.command_for_all(node, &["up"], "")?;
        }
        cluster.wait("the nodes are connected", |resource| {
            let connections = array(&resource["connections"]);
            connections.iter().all(|peer| peer["connection-state"] == "Connected")
        })?;
        cluster.command_for_all(0, &["new-current-uuid", "--clear-bitmap"], "/0")?;
        cluster.wait("the disks are UpToDate", |resource| {
            let disk = &resource["devices"][0]["disk-state"];
            disk == "UpToDate" || disk == "Diskless"
        })?;
        cluster.export(0)?;
        if cluster.shape.diskless {
            cluster.export(cluster.shape.replicas)?;
        }
        Ok(cluster)
    }

    fn config(&self) -> Result<String> {
        let mut config = String::new();
        let nodes = self.shape.nodes();
        for volume in 0..self.shape.volumes {
            let net = self.shape.net.get(volume).map_or("", String::as_str);
            writeln!(config, "resource r{volume} {{\n  net {{ protocol C; {net} }}")?;
            writeln!(config, "  disk {{ {} }}", self.shape.disk)?;
            if self.shape.quorum {
                writeln!(config, "  options {{ quorum majority; on-no-quorum suspend-io; }}")?;
            }
            for (id, name) in NAMES.iter().enumerate().take(nodes) {
                let disk = match id < self.shape.replicas {
                    true => format!("{}; meta-disk internal", self.disk(id, volume).display()),
                    false => "none".to_owned(),
                };
                writeln!(
                    config,
                    "  on {name} {{ node-id {id}; address {}.{}:{}; \
                     volume 0 {{ device minor {volume}; disk {disk}; }} }}",
                    self.network,
                    id + 1,
                    PORT + volume
                )?;
            }
            let hosts = NAMES[..nodes].join(" ");
            writeln!(config, "  connection-mesh {{ hosts {hosts}; }}\n}}")?;
        }
        Ok(config)
    }

    fn start_engine(&mut self, node: usize) -> Result<()> {
        let engine = self.engine(node)?;
        self.engines.push(engine);
        self.command(node, &["info", "--wait-engine", "30"])?;
        Ok(())
    }

    fn engine(&self, node: usize) -> Result<Daemon> {
        let directory = self.file(NAMES[node]);
        fs::create_dir_all(&directory)?;
        let mut engine = match self.shape.volumes {
            0..MANY => process::command(&self.program),
            volumes => {
                let mut limited = process::command("prlimit");
                limited.arg(format!("--nofile={}", Shape::files_for(volumes))).arg("--");
                limited.arg(&self.program);
                limited
            }
        };
        engine.args(["engine", "--log-level", "warn", "--node", NAMES[node]]);
        engine.arg("--socket").arg(self.socket(node));
        engine.arg("--state-dir").arg(directory.join("state"));
        engine.args(self.shape.engine);
        Daemon::start(engine, directory.join("log"))
    }

    /// Kills a node's engine and starts another one as soon as it is gone, as a supervisor does. Returns once it is started.
    pub fn kill(&mut self, node: usize) -> Result<()> {
        self.engines[node].end();
        self.engines[node] = self.engine(node)?;
        Ok(())
    }

    /// Waits until all nodes are connected and their disks UpToDate.
    pub fn settle(&self) -> Result<()> {
        self.wait("all is well again", |resource| {
            let connections = array(&resource["connections"]);
            resource["devices"][0]["disk-state"] == "UpToDate"
                && connections.iter().all(|peer| {
                    peer["connection-state"] == "Connected"
                        && peer["peer_devices"][0]["replication-state"] == "Established"
                })
        })
    }

    /// The first node is Primary from here on, also while nobody has a volume open.
    pub fn promote(&self) -> Result<()> {
        for volume in 0..self.shape.volumes {
            self.command(0, &["primary", &format!("r{volume}")])?;
        }
        Ok(())
    }

    /// Ends all engines but the first one, which goes on alone.
    pub fn lose_peers(&mut self) {
        self.engines.truncate(1);
        self.is_alone = true;
    }

    /// Has a replica of the first volume give up all of its data, and waits until it has them again.
    /// Returns how long that took.
    ///
    /// # Errors
    /// If it is not UpToDate in time, or that without having received the whole volume.
    pub fn resync(&self, node: usize) -> Result<Duration> {
        let before = self.received(node)?;
        let begun = Instant::now();
        self.command(node, &["invalidate", "r0/0"])?;
        self.wait_for(node, RESYNC_TICK, "the disk is UpToDate again", |resource| {
            let peers = array(&resource["connections"]);
            let mut resyncs =
                peers.iter().map(|peer| &peer["peer_devices"][0]["replication-state"]);
            resource["devices"][0]["disk-state"] == "UpToDate"
                && resyncs.all(|state| state == "Established")
        })?;
        let time = begun.elapsed();
        let mib = self.received(node)?.saturating_sub(before) >> 10;
        if mib < self.shape.mib {
            bail!("{} was resynced with {mib} of {} MiB", NAMES[node], self.shape.mib);
        }
        Ok(time)
    }

    /// KiB that a node has received from its peers for the first volume.
    fn received(&self, node: usize) -> Result<u64> {
        let status = self.status(node)?;
        let peers = array(&status[0]["connections"]).iter();
        let kib = peers.map(|peer| peer["peer_devices"][0]["received"].as_u64());
        kib.sum::<Option<u64>>().context("the status has no received")
    }

    /// Serves volumes from a node.
    fn export(&self, node: usize) -> Result<()> {
        for volume in 0..self.shape.served {
            let socket = self.nbd(node, volume).display().to_string();
            self.command(node, &["export", &format!("r{volume}/0"), "--listen", &socket])?;
        }
        Ok(())
    }

    fn disk(&self, node: usize, volume: usize) -> PathBuf {
        self.file(&format!("{}-{volume}.img", NAMES[node]))
    }

    fn socket(&self, node: usize) -> PathBuf {
        self.file(NAMES[node]).join("sock")
    }

    pub fn nbd(&self, node: usize, volume: usize) -> PathBuf {
        self.file(NAMES[node]).join(format!("nbd{volume}"))
    }

    /// The volumes as a node with a disk serves them.
    pub fn local(&self) -> Vec<Target> {
        self.served_by(0)
    }

    /// The volumes as the node without a disk serves them.
    pub fn diskless(&self) -> Option<Vec<Target>> {
        self.shape.diskless.then(|| self.served_by(self.shape.replicas))
    }

    fn served_by(&self, node: usize) -> Vec<Target> {
        let volumes = 0..self.shape.served;
        let target =
            |volume| Target::Nbd { socket: self.nbd(node, volume), export: format!("r{volume}") };
        volumes.map(target).collect()
    }

    /// A file of ours beside the disks.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Process ids of the engines.
    pub fn pids(&self) -> Vec<u32> {
        self.engines.iter().map(Daemon::pid).collect()
    }

    /// An operator's command on a node; returns what it printed.
    pub fn command(&self, node: usize, arguments: &[&str]) -> Result<String> {
        let mut command = process::command(&self.program);
        command.arg("--socket").arg(self.socket(node));
        command.args(["--timeout", "30"]);
        if ["create-md", "up", "adjust", "attach"].iter().any(|reads| arguments.contains(reads)) {
            command.args(["--node", NAMES[node], "--config"]).arg(self.file("drbd.conf"));
        }
        command.args(arguments);
        process::output(command, COMMAND_PATIENCE)
            .with_context(|| format!("{} on {}", arguments.join(" "), NAMES[node]))
    }

    /// A command for all resources, some at a time: each answer has to come in time. `end` is added
    /// to each name.
    fn command_for_all(&self, node: usize, words: &[&str], end: &str) -> Result<()> {
        let names: Vec<String> = (0..self.shape.volumes).map(|n| format!("r{n}{end}")).collect();
        for names in names.chunks(AT_ONCE) {
            let names = names.iter().map(String::as_str);
            self.command(node, &words.iter().copied().chain(names).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// All resources as a node sees them.
    pub fn status(&self, node: usize) -> Result<Vec<Value>> {
        let text = self.command(node, &["status", "--json"])?;
        serde_json::from_str(&text).context("the status is not JSON")
    }

    /// Waits until something holds for every resource on all nodes.
    fn wait(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<()> {
        (0..self.engines.len()).try_for_each(|node| self.wait_for(node, TICK, what, &holds))
    }

    /// The same on one node, looking every `tick`.
    fn wait_for(
        &self,
        node: usize,
        tick: Duration,
        what: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        let begun = Instant::now();
        while !self.status(node)?.iter().all(&holds) {
            process::check_signals()?;
            if begun.elapsed() > PATIENCE + PATIENCE_EACH * self.shape.volumes as u32 {
                bail!("waited in vain until {what}:\n{}", self.command(node, &["status"])?);
            }
            std::thread::sleep(tick);
        }
        Ok(())
    }

    /// Fails unless all engines live, are connected and have their disks: with one missing, less
    /// work is measured.
    pub fn check(&mut self) -> Result<()> {
        for engine in &mut self.engines {
            engine.check()?;
        }
        for (node, name) in NAMES.iter().enumerate().take(self.engines.len()) {
            for resource in self.status(node)? {
                let peers = array(&resource["connections"]);
                let mut lost = peers.iter().filter(|peer| peer["connection-state"] != "Connected");
                let disk = &resource["devices"][0]["disk-state"];
                if (!self.is_alone && lost.next().is_some())
                    || (node < self.shape.replicas && disk != "UpToDate")
                {
                    let status = self.command(node, &["status", "-vv", "-s"])?;
                    bail!("{name} has lost a peer or its disk:\n{status}");
                }
            }
        }
        Ok(())
    }

    /// How often a node has written its metadata.
    pub fn counters(&self, node: usize) -> Result<Counters> {
        let status = self.status(node)?;
        let device = &status[0]["devices"][0];
        let count = |name: &str| device[name].as_u64().with_context(|| format!("no {name}"));
        Ok(Counters {
            activity_log: count("al-writes")?,
            bitmap: count("bm-writes")?,
            superblock: count("sb-writes")?,
        })
    }
}

/// The first three bytes of addresses that no other run on this machine is likely to use.
pub fn network() -> String {
    static CLUSTERS: AtomicU8 = AtomicU8::new(0);
    let own = std::process::id();
    format!("127.{}.{}", 64 + own % 128, CLUSTERS.fetch_add(1, Ordering::Relaxed))
}

/// A file whose blocks are there, so that writes do not wait for the file system to find some.
pub fn allocate(path: &Path, mib: u64) -> Result<()> {
    let mut command = process::command("fallocate");
    command.arg("--length").arg(format!("{mib}MiB")).arg(path);
    process::output(command, COMMAND_PATIENCE)
        .with_context(|| format!("{} could not be allocated", path.display()))?;
    Ok(())
}

/// The elements of an array; none if it is something else.
pub fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
