//! Nodes as real processes: the `ashlar` binary on addresses of the loopback network, with files
//! as disks, driven by the operator's commands and a small NBD client.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "this whole file is a test")]

pub mod nbd;
pub mod relay;
pub mod writers;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// Size of the disks unless a test says otherwise.
pub const DISK: u64 = 64 << 20;

const MIB: u64 = 1 << 20;

/// Where the nodes listen.
const PORT: u16 = 7000;

/// Last lines of each log that a failed test shows.
const LOG_SHOWN: usize = 120;

/// The binary under test, built once per test process.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("ASHLAR_BINARY") {
            return PathBuf::from(path);
        }
        let test = std::env::current_exe().unwrap();
        let profile = test.parent().and_then(Path::parent).expect("target/PROFILE/deps/test");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        // With the whole workspace it shares every dependency with the tests.
        cargo.args(["build", "--quiet", "--workspace", "--bins"]);
        match profile.file_name().and_then(|n| n.to_str()) {
            Some("debug") | None => {}
            Some(name) => _ = cargo.args(["--profile", name]),
        }
        assert!(cargo.status().unwrap().success(), "the binary can be built");
        profile.join("ashlar")
    })
}

/// The program of another release, which `cargo xtask skew` has built.
pub fn other_release() -> PathBuf {
    let path = std::env::var_os("ASHLAR_OTHER").map(PathBuf::from);
    path.expect("ASHLAR_OTHER names the program of another release; cargo xtask skew builds it")
}

/// Options of a cluster.
#[derive(Clone)]
pub struct Setup {
    /// Names of the nodes; node ids are their positions.
    pub nodes: Vec<&'static str>,
    /// Nodes without a disk.
    pub clients: Vec<&'static str>,
    pub volumes: u16,
    pub disk: u64,
    /// More sections of the resource.
    pub sections: String,
    /// More resources; `DIR` and `NET` stand for the directory and the network of the cluster.
    pub resources: String,
    /// More arguments of the engines.
    pub args: Vec<String>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            nodes: vec!["alpha", "bravo", "charlie"],
            clients: Vec::new(),
            volumes: 1,
            disk: DISK,
            sections: String::new(),
            resources: String::new(),
            args: Vec::new(),
        }
    }
}

/// Some nodes with the resource `r0`.
pub struct Cluster {
    pub nodes: Vec<Node>,
    directory: tempfile::TempDir,
}

/// A loopback network for each cluster, so that tests can run at the same time.
fn network() -> [u8; 3] {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    [127, 16 + (pid % 200) as u8, NEXT.fetch_add(1, Ordering::Relaxed)]
}

impl Cluster {
    /// Nodes that are not started.
    pub fn new(setup: &Setup) -> Cluster {
        let directory = tempfile::Builder::new().prefix("ashlar").tempdir().unwrap();
        let [a, b, c] = network();
        let mut config = String::from("resource r0 {\n");
        for (id, node) in setup.nodes.iter().enumerate() {
            let address = Ipv4Addr::new(a, b, c, id as u8 + 1);
            config += &format!("  on {node} {{ node-id {id}; address {address}:{PORT};\n");
            for nr in 0..setup.volumes {
                let path = directory.path().join(format!("{node}-{nr}.img"));
                let disk = if setup.clients.contains(node) {
                    "none".to_owned()
                } else {
                    File::create(&path).unwrap().set_len(setup.disk).unwrap();
                    path.display().to_string()
                };
                config += &format!(
                    "    volume {nr} {{ device minor {nr}; disk {disk}; meta-disk internal; }}\n"
                );
            }
            config += "  }\n";
        }
        config += &format!("  connection-mesh {{ hosts {}; }}\n", setup.nodes.join(" "));
        config += &format!("{}\n}}\n", setup.sections);
        let network = format!("{a}.{b}.{c}");
        let path = directory.path().display().to_string();
        config += &setup.resources.replace("DIR", &path).replace("NET", &network);
        let file = directory.path().join("drbd.conf");
        fs::write(&file, config).unwrap();
        let nodes = setup.nodes.iter().map(|name| {
            let directory = directory.path().join(name);
            fs::create_dir(&directory).unwrap();
            Node {
                name,
                directory,
                engine: binary().to_owned(),
                config: file.clone(),
                args: setup.args.clone(),
                inside: Vec::new(),
                child: None,
                heir: None,
            }
        });
        Cluster { nodes: nodes.collect(), directory }
    }

    /// Nodes that run, are connected, and have equal disks without an initial resync.
    pub fn up(setup: &Setup) -> Cluster {
        let mut cluster = Cluster::new(setup);
        cluster.bring_up(setup);
        cluster
    }

    /// The same of two nodes that talk through a relay.
    pub fn relayed(setup: &Setup) -> (Cluster, relay::Relay) {
        let mut cluster = Cluster::new(setup);
        let config = fs::read_to_string(cluster.directory.path().join("drbd.conf")).unwrap();
        let mut addresses = Vec::new();
        for id in 0..2 {
            // Each has a file of its own, in which the other one is at the relay.
            let peer = &cluster.nodes[1 - id].name;
            let (_, rest) = config.split_once(&format!("on {peer} ")).unwrap();
            let address = rest.split_once("address ").unwrap().1.split_once(':').unwrap().0;
            let real = format!("{address}:{PORT}");
            let relayed = format!("{address}:{}", relay::Relay::port(id == 0, PORT));
            let file = cluster.directory.path().join(format!("drbd-{id}.conf"));
            fs::write(&file, config.replace(&real, &relayed)).unwrap();
            cluster.nodes[id].config = file;
            addresses.push(address.parse().unwrap());
        }
        let relay = relay::Relay::between(addresses[1], addresses[0], PORT);
        cluster.bring_up(setup);
        (cluster, relay)
    }

    /// Does what [`Cluster::up`] does, with nodes that were changed before they start.
    pub fn bring_up(&mut self, setup: &Setup) {
        for node in &mut self.nodes {
            node.start();
            if !setup.clients.contains(&node.name) {
                node.ok(&["create-md", "r0"]);
            }
            node.ok(&["up", "r0"]);
        }
        self.wait_connected();
        for nr in 0..setup.volumes {
            self.nodes[0].ok(&["new-current-uuid", "--clear-bitmap", &format!("r0/{nr}")]);
        }
        self.wait("all disks are UpToDate", |c| c.all_up_to_date());
    }

    pub fn wait_connected(&self) {
        self.wait("all nodes are connected", |c| c.nodes.iter().all(Node::is_connected));
    }

    /// Every disk of every running node is UpToDate, and no peer is known to be anything else.
    pub fn all_up_to_date(&self) -> bool {
        self.nodes.iter().filter(|n| n.is_running()).all(|node| {
            let status = node.status();
            let disks = list(&status["devices"]).iter().map(|d| &d["disk-state"]);
            disks.into_iter().all(|d| d == "UpToDate" || d == "Diskless")
        })
    }

    /// Waits until a node has logged something: it does when it has answered.
    pub fn wait_logged(&self, node: usize, words: &str) {
        self.wait(words, |cluster| cluster.nodes[node].log().contains(words));
    }

    /// Waits until something holds, and fails the test with everybody's status otherwise.
    pub fn wait(&self, what: &str, mut condition: impl FnMut(&Cluster) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Prints status and log of every node.
    pub fn show(&self) {
        for node in &self.nodes {
            println!("==== {} ====", node.name);
            if node.is_running() {
                println!("{}", text(&node.cli(&["status", "-vv", "-s"]).stdout));
            }
            let log = fs::read_to_string(node.directory.join("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            println!("{}", lines[lines.len().saturating_sub(LOG_SHOWN)..].join("\n"));
        }
    }

    /// Changes the configuration of all nodes, for commands to come.
    pub fn reconfigure(&self, change: impl Fn(String) -> String) {
        let files: BTreeSet<&Path> = self.nodes.iter().map(|node| &*node.config).collect();
        for file in files {
            fs::write(file, change(fs::read_to_string(file).unwrap())).unwrap();
        }
    }

    /// A disk's data area of a volume, without its metadata.
    pub fn disk(&self, node: usize, nr: u16) -> PathBuf {
        self.directory.path().join(format!("{}-{nr}.img", self.nodes[node].name))
    }

    /// The first bytes of a disk.
    pub fn content(&self, node: usize, nr: u16, len: u64) -> Vec<u8> {
        let mut bytes = fs::read(self.disk(node, nr)).unwrap();
        bytes.truncate(len as usize);
        bytes
    }

    /// Fails unless all disks of the volume begin with the same bytes.
    pub fn assert_equal(&self, nr: u16, nodes: &[usize]) {
        let len = fs::metadata(self.disk(nodes[0], nr)).unwrap().len() - 2 * MIB;
        let first = self.content(nodes[0], nr, len);
        for node in &nodes[1..] {
            let other = self.content(*node, nr, len);
            let differs = first.iter().zip(&other).position(|(a, b)| a != b);
            assert_eq!(differs, None, "disks of nodes {} and {node} differ", nodes[0]);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show();
            if std::env::var_os("ASHLAR_KEEP").is_some() {
                self.directory.disable_cleanup(true);
                println!("kept: {}", self.directory.path().display());
            }
        }
    }
}

/// A node.
pub struct Node {
    pub name: &'static str,
    pub directory: PathBuf,
    /// The program that is started; the operator's commands are always those of the one under test.
    pub engine: PathBuf,
    config: PathBuf,
    /// More arguments of the engine.
    pub args: Vec<String>,
    /// A command that runs another one somewhere, such as in a network namespace.
    pub inside: Vec<String>,
    child: Option<Child>,
    /// The process that has taken over from that, see [`Node::upgrade`].
    heir: Option<u32>,
}

impl Node {
    pub fn socket(&self) -> PathBuf {
        self.directory.join("sock")
    }

    /// Starts the engine and waits until it serves commands.
    pub fn start(&mut self) {
        assert!(!self.is_running(), "{} runs", self.name);
        let log =
            File::options().create(true).append(true).open(self.directory.join("log")).unwrap();
        let words: Vec<&OsStr> =
            self.inside.iter().map(OsStr::new).chain([self.engine.as_os_str()]).collect();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .arg("engine")
            .arg("--socket")
            .arg(self.socket())
            .arg("--state-dir")
            .arg(self.directory.join("state"))
            .args(["--node", self.name, "--threads", "2", "--log-level", &log_level()])
            .args(self.helper())
            .args(&self.args)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || copy_log(lines, log));
        self.child = Some(child);
        self.ok(&["info", "--wait-engine", "30"]);
    }

    /// Without a word about it nothing is called: the `drbdadm` of this host knows other nodes.
    fn helper(&self) -> &'static [&'static str] {
        const HELPER: &str = "--usermode-helper";
        match self.args.iter().any(|arg| arg == HELPER) {
            true => &[],
            false => &[HELPER, "disabled"],
        }
    }

    /// The configuration that its commands read.
    pub fn config(&self) -> &Path {
        &self.config
    }

    pub fn pid(&self) -> u32 {
        self.heir.unwrap_or_else(|| self.child.as_ref().expect("it runs").id())
    }

    pub fn is_running(&self) -> bool {
        self.child.is_some() || self.heir.is_some()
    }

    /// Has another process take over; the one before has ended then. Gives what was answered.
    pub fn upgrade(&mut self) -> String {
        let before = self.pid();
        let answer = self.ok(&["upgrade"]);
        self.replaced(before, answer)
    }

    /// The same, with another program.
    ///
    /// # Errors
    /// What the operator is told.
    pub fn upgrade_to(&mut self, engine: &Path) -> Result<String, String> {
        let before = self.pid();
        let output = self.cli(&["upgrade", "--binary", engine.to_str().unwrap()]);
        if !output.status.success() {
            return Err(text(&output.stderr));
        }
        self.engine = engine.to_owned();
        let answer = self.replaced(before, text(&output.stdout));
        assert_eq!(fs::read_link(format!("/proc/{}/exe", self.pid())).unwrap(), engine);
        Ok(answer)
    }

    fn replaced(&mut self, before: u32, answer: String) -> String {
        let pid = answer.split(' ').nth(1).and_then(|pid| pid.parse().ok());
        self.heir = Some(pid.expect("it names the process"));
        match self.child.take() {
            Some(mut child) => assert!(child.wait().unwrap().success(), "it ends well"),
            None => assert!(is_gone(before), "it ends"),
        }
        answer
    }

    /// Ends the process at once, as a crash would.
    pub fn kill(&mut self) {
        if self.heir.is_some() {
            self.signal(libc::SIGKILL);
            let pid = self.heir.take().expect("just seen");
            return assert!(is_gone(pid), "it ends");
        }
        let mut child = self.child.take().expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Ends the process in peace and returns whether it ended well.
    pub fn stop(&mut self) -> bool {
        self.signal(libc::SIGTERM);
        self.ended()
    }

    /// Waits for a process that is ending by itself.
    pub fn ended(&mut self) -> bool {
        if let Some(pid) = self.heir.take() {
            return is_gone(pid);
        }
        let mut child = self.child.take().expect("it was started");
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = child.try_wait().unwrap() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        false
    }

    /// Sends a signal. One that stops it has stopped all its threads.
    pub fn signal(&self, signal: i32) {
        let status = Command::new("kill")
            .arg(format!("-{signal}"))
            .arg(self.pid().to_string())
            .status()
            .unwrap();
        assert!(status.success());
        let stopped = || {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
            tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok()).all(
                // The state is behind the name, which is in brackets.
                |stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")),
            )
        };
        while signal == libc::SIGSTOP && !stopped() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.arg("60").arg(binary()).arg("--socket").arg(self.socket());
        command.args(["--timeout", "30"]);
        if ["create-md", "up", "adjust", "attach"].iter().any(|reads| args.contains(reads)) {
            command.args(["--node", self.name, "--config"]).arg(&self.config);
        }
        command.args(args);
        command
    }

    /// Runs an operator's command.
    pub fn cli(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Starts an operator's command that goes on, with its output as a pipe.
    pub fn follow(&self, args: &[&str]) -> Child {
        self.command(args).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// A command that must succeed; returns what it printed.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.cli(args);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{}: {args:?}: {}\n{out}{err}", self.name, output.status);
        out
    }

    /// A command that must fail; returns its exit status and what it complained of.
    pub fn fails(&self, args: &[&str]) -> (i32, String) {
        let output = self.cli(args);
        let err = text(&output.stderr);
        assert!(!output.status.success(), "{}: {args:?} succeeded", self.name);
        (output.status.code().unwrap_or(-1), err)
    }

    /// The status of `r0`.
    pub fn status(&self) -> Value {
        let all: Value = serde_json::from_str(&self.ok(&["status", "--json"])).unwrap();
        list(&all).iter().find(|r| r["name"] == "r0").cloned().unwrap_or(Value::Null)
    }

    /// State of the node's own disk.
    pub fn disk_state(&self, nr: usize) -> String {
        word(&self.status()["devices"][nr]["disk-state"])
    }

    /// The state towards a peer: connection, its role, replication, its disk.
    pub fn peer(&self, name: &str) -> (String, String, String, String) {
        let status = self.status();
        let peer = list(&status["connections"]).iter().find(|c| c["name"] == name);
        let peer = peer.expect("the peer is configured");
        let device = &peer["peer_devices"][0];
        (
            word(&peer["connection-state"]),
            word(&peer["peer-role"]),
            word(&device["replication-state"]),
            word(&device["peer-disk-state"]),
        )
    }

    pub fn is_connected(&self) -> bool {
        let status = self.status();
        list(&status["connections"]).iter().all(|c| c["connection-state"] == "Connected")
    }

    /// Blocks marked out-of-sync towards all peers, in KiB.
    pub fn out_of_sync(&self) -> u64 {
        let status = self.status();
        let devices = list(&status["connections"]).iter().flat_map(|c| list(&c["peer_devices"]));
        devices.map(|d| d["out-of-sync"].as_u64().unwrap()).sum()
    }

    /// Serves volume 0 and returns the socket.
    pub fn export(&self) -> PathBuf {
        let socket = self.directory.join("nbd");
        self.ok(&["export", "r0/0", "--listen", &socket.display().to_string()]);
        socket
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }
}

/// Waits until a process that is no child of this one has ended.
fn is_gone(pid: u32) -> bool {
    let start = Instant::now();
    let stat = format!("/proc/{pid}/stat");
    // Nobody may have waited for it yet: `Z` stands behind its name. Its other threads may end after
    // that, and what it had open, such as its control socket, is closed with the last of them.
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let runs =
        || fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z") || threads() > 1);
    while runs() && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
    !runs()
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.heir.is_some() {
            self.kill();
        }
        if let Some(mut child) = self.child.take() {
            // Ended or not, it must not outlive the test.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// `ASHLAR_ENGINE_LOG=trace` shows every packet, and what goes into the core and comes out.
fn log_level() -> String {
    std::env::var("ASHLAR_ENGINE_LOG").unwrap_or_else(|_| "debug".to_owned())
}

/// Copies the lines of an engine's log, with the time since the test began.
fn copy_log(lines: impl BufRead, mut log: File) {
    for line in lines.lines().map_while(Result::ok) {
        let _ = writeln!(log, "{:9.3} {line}", elapsed().as_secs_f64());
    }
}

/// Time since the first call.
pub fn elapsed() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// An array, or nothing.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
