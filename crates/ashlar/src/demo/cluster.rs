//! The nodes: one engine process each, driven by the very commands an operator would type.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use codec::admin::{Answer, DeviceStatus, PeerDeviceStatus, Request, ResourceStatus};
use surfaces::cli;
use vocab::ConnState;

use super::NodeNr;
use super::leftovers::Leftovers;
use super::relay::{self, Network};
use super::screen::size;

/// Name of the resource, and of its export.
pub const RESOURCE: &str = "demo";
/// Nodes with a disk are 1 to this one.
pub const DISKFUL: NodeNr = 3;
/// The node without a disk.
pub const DISKLESS: NodeNr = 4;

/// How long an engine may take to start, to do a command, and to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often a condition is looked at again.
const POLL: Duration = Duration::from_millis(10);

/// The options that make failures show within seconds. The defaults are for networks that are
/// slow and machines that are busy; here all is local. By default the resync of the killed node would
/// give way to the workload for minutes.
const OPTIONS: &str = "\
    options { quorum majority; on-no-quorum suspend-io; auto-promote yes; }
    net { protocol C; timeout 9; ping-int 1; connect-int 1; }
    disk { c-min-rate 0; }
";

/// The name of a node in the configuration.
pub fn name(node: NodeNr) -> String {
    format!("node{node}")
}

/// Where everything of a run is.
#[derive(Clone, Debug)]
pub struct Places {
    /// Sockets, configuration, state and logs.
    pub run: PathBuf,
    /// The disks.
    pub disks: PathBuf,
    /// What the engines log.
    pub log_level: vocab::LogLevel,
}

impl Places {
    /// Where the logs are.
    pub fn logs(&self) -> PathBuf {
        self.run.join("logs")
    }

    fn config(&self, node: NodeNr) -> PathBuf {
        self.run.join(format!("node{node}.conf"))
    }

    /// A node's control socket.
    pub fn socket(&self, node: NodeNr) -> PathBuf {
        self.run.join(format!("node{node}.sock"))
    }

    fn state(&self, node: NodeNr) -> PathBuf {
        self.run.join(format!("node{node}.state"))
    }

    fn log(&self, node: NodeNr) -> PathBuf {
        self.logs().join(format!("node{node}.log"))
    }

    /// A node's disk.
    pub fn disk(&self, node: NodeNr) -> PathBuf {
        self.disks.join(format!("node{node}.img"))
    }
}

/// The ports of a run, the same on every node's address.
#[derive(Clone, Copy, Debug)]
struct Ports {
    nbd: u16,
    replication: u16,
}

/// The cluster.
#[derive(Debug)]
pub struct Cluster {
    places: Places,
    ports: Ports,
    network: Option<Network>,
    leftovers: Leftovers,
    interrupted: Arc<AtomicBool>,
    clients: BTreeMap<NodeNr, cli::Client>,
}

impl Cluster {
    /// Sets up the network, the configuration and empty disks of `disk_bytes`.
    ///
    /// # Errors
    /// If there are no free ports, or a file can not be made.
    pub fn prepare(
        places: Places,
        disk_bytes: u64,
        leftovers: Leftovers,
        interrupted: Arc<AtomicBool>,
    ) -> anyhow::Result<Cluster> {
        let (ports, network) = network()?;
        fs::create_dir_all(places.logs()).context("can not make a folder for logs")?;
        for node in 1..=DISKLESS {
            let path = places.config(node);
            let text = configuration(&places, |peer| relay::relayed(node, peer, ports.replication));
            fs::write(&path, text).with_context(|| format!("can not write {}", path.display()))?;
        }
        for node in 1..=DISKFUL {
            let path = places.disk(node);
            let made = File::create_new(&path).and_then(|file| file.set_len(disk_bytes));
            made.with_context(|| format!("can not make the disk {}", path.display()))?;
        }
        let (network, clients) = (Some(network), BTreeMap::new());
        Ok(Cluster { places, ports, network, leftovers, interrupted, clients })
    }

    /// Starts the engine of a node and waits until it answers. What it served before, it serves
    /// again.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(&mut self, node: NodeNr) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(self.places.log(node));
        let log = log.context("can not open the log")?;
        let program = std::env::current_exe().context("this program can not find itself")?;
        let mut command = Command::new(program);
        command
            .arg("engine")
            .args(["--threads", "1", "--buffers", "64", "--node", &name(node)])
            .args(["--log-level", &self.places.log_level.to_string()])
            .arg("--socket")
            .arg(self.places.socket(node))
            .arg("--state-dir")
            .arg(self.places.state(node));
        // Ctrl-C is for the demo alone: it ends the engines in its own time.
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("can not share the log")?)
            .stderr(log)
            .spawn()
            .context("can not start an engine")?;
        self.leftovers.child(node, child);
        let socket = self.places.socket(node);
        self.until(&format!("{} to answer", name(node)), |cluster| {
            match cli::Client::connect(&socket, PATIENCE, Duration::ZERO) {
                Ok(client) => {
                    cluster.clients.insert(node, client);
                    Ok(true)
                }
                Err(_) => Ok(false),
            }
        })
    }

    /// Runs `ashlar WORDS` for a node.
    ///
    /// # Errors
    /// What the command would have printed.
    pub fn command(&self, node: NodeNr, words: &[&str]) -> anyhow::Result<String> {
        let shown = format!("{}: ashlar {}", name(node), words.join(" "));
        let (config, socket) = (self.places.config(node), self.places.socket(node));
        let mut line: Vec<std::ffi::OsString> = vec!["ashlar".into(), "--config".into()];
        line.extend([config.into(), "--socket".into(), socket.into(), "--node".into()]);
        line.push(name(node).into());
        line.extend(words.iter().map(Into::into));
        let crate::Cli { common, command } =
            crate::Cli::try_parse_from(line).with_context(|| shown.clone())?;
        let crate::Command::Operator(command) = command else {
            bail!("{shown}: not an operator's command");
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let result = cli::run(&command, &common, &mut out, &mut err);
        let said = String::from_utf8_lossy(&err).trim().replace('\n', "; ");
        match result {
            Ok(()) => Ok(String::from_utf8_lossy(&out).into_owned()),
            Err(e) if said.is_empty() => bail!("{shown}: {e}"),
            Err(_) => bail!("{shown}: {said}"),
        }
    }

    /// The state of the resource as `node` sees it.
    ///
    /// # Errors
    /// If its engine does not answer, or does not know the resource.
    pub fn status(&mut self, node: NodeNr) -> anyhow::Result<ResourceStatus> {
        let client =
            self.clients.get_mut(&node).with_context(|| format!("{} is down", name(node)))?;
        let request = Request::Status { resource: Some(RESOURCE.to_owned()) };
        let answer = client.ask("status", request).with_context(|| name(node))?;
        let Answer::Status(mut all) = answer else { bail!("{}: no status", name(node)) };
        all.pop().with_context(|| format!("{} has no resource `{RESOURCE}`", name(node)))
    }

    /// Waits until `condition` holds.
    ///
    /// # Errors
    /// If it does not within `PATIENCE`, an engine ends by itself, or the run is interrupted.
    pub fn until(
        &mut self,
        what: &str,
        mut condition: impl FnMut(&mut Cluster) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            self.check()?;
            if condition(self)? {
                return Ok(());
            }
            if Instant::now() > end {
                bail!("waited {} s for {what}, in vain{}", PATIENCE.as_secs(), self.describe());
            }
            std::thread::sleep(POLL);
        }
    }

    /// That the run may go on.
    ///
    /// # Errors
    /// If an engine has ended by itself, or the run is interrupted.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.interrupted.load(Ordering::Relaxed) {
            bail!(super::Interrupted);
        }
        if let Some((node, status)) = self.leftovers.casualty() {
            let log = fs::read_to_string(self.places.log(node)).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(5).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            bail!("the engine of {} ended by itself ({status}):\n{}", name(node), last.join("\n"));
        }
        Ok(())
    }

    /// The state of every node that answers, for messages about what did not happen.
    fn describe(&mut self) -> String {
        let mut text = String::new();
        for node in 1..=DISKLESS {
            let Ok(status) = self.status(node) else { continue };
            let disks: Vec<_> = status.devices.iter().map(|d| d.disk_state.to_string()).collect();
            let _ = write!(text, "\n  {} is {}, {}", name(node), status.role, disks.join(" "));
            for connection in &status.connections {
                let _ = write!(text, "; {} {}", connection.name, connection.connection_state);
                for device in &connection.peer_devices {
                    let (state, disk) = (device.replication_state, device.peer_disk_state);
                    let _ = write!(text, " {state}/{disk}");
                    if device.out_of_sync > 0 {
                        let _ = write!(text, " {} differ", size(device.out_of_sync * 1024));
                    }
                }
            }
        }
        text
    }

    /// Kills the engine of a node with SIGKILL. Returns the moment.
    ///
    /// # Errors
    /// If it is not running.
    pub fn kill(&mut self, node: NodeNr) -> anyhow::Result<Instant> {
        self.clients.remove(&node);
        self.leftovers.kill(node).with_context(|| format!("can not kill {}", name(node)))
    }

    /// Ends the engine of a node in order.
    ///
    /// # Errors
    /// If it does not end, or not in order.
    pub fn shut_down(&mut self, node: NodeNr) -> anyhow::Result<()> {
        self.command(node, &["shutdown"])?;
        self.clients.remove(&node);
        let status = self.leftovers.wait(node, PATIENCE);
        let status = status.with_context(|| format!("{} does not end", name(node)))?;
        ensure!(status.success(), "{} ended with {status}", name(node));
        Ok(())
    }

    /// The network.
    pub fn network(&self) -> &Network {
        self.network.as_ref().expect("the network exists until the cluster is left alone")
    }

    /// Where a node serves the volume.
    pub fn nbd(&self, node: NodeNr) -> SocketAddr {
        (relay::ip(node), self.ports.nbd).into()
    }

    /// The same as a URI.
    pub fn nbd_uri(&self, node: NodeNr) -> String {
        format!("nbd://{}/{RESOURCE}", self.nbd(node))
    }

    /// Everything's place.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Process ids of the nodes that run.
    pub fn pids(&self) -> BTreeMap<NodeNr, u32> {
        self.leftovers.pids()
    }

    /// Brings every node up again with links that do not pass through this process, and lets them
    /// live on. All engines have ended before.
    ///
    /// # Errors
    /// If a node does not come up.
    pub fn release(&mut self) -> anyhow::Result<()> {
        self.network = None;
        let port = self.ports.replication;
        let text = configuration(&self.places, |peer| relay::relayed(peer, peer, port));
        for node in 1..=DISKLESS {
            let state = self.places.state(node);
            fs::remove_dir_all(&state)
                .with_context(|| format!("can not remove {}", state.display()))?;
            fs::write(self.places.config(node), &text)
                .context("can not write the configuration")?;
            self.start(node)?;
        }
        for node in 1..=DISKLESS {
            self.bring_up(node)?;
        }
        Ok(())
    }

    /// `ashlar up` and `ashlar export`.
    ///
    /// # Errors
    /// If one of them fails.
    pub fn bring_up(&self, node: NodeNr) -> anyhow::Result<()> {
        self.command(node, &["up", RESOURCE])?;
        let listen = self.nbd(node).to_string();
        self.command(node, &["export", RESOURCE, "--name", RESOURCE, "--listen", &listen])?;
        Ok(())
    }
}

/// Free ports, and the relays beside them.
fn network() -> anyhow::Result<(Ports, Network)> {
    // 10809 is NBD's own port. A second demo at the same time finds the next ones.
    for nbd in (10_809..11_809).step_by(10) {
        let ports = Ports { nbd, replication: nbd + 3 };
        // The relays hold their ports to the end, so they go first.
        let network = match Network::start(DISKLESS, ports.replication) {
            Ok(network) => network,
            Err(e) if e.kind() == ErrorKind::AddrInUse => continue,
            Err(e) => return Err(e).context("can not listen on 127.0.0.1 to 127.0.0.4"),
        };
        let addresses = (1..=DISKLESS)
            .flat_map(|node| [ports.nbd, ports.replication].map(|port| (relay::ip(node), port)));
        if addresses.into_iter().all(|address| TcpListener::bind(address).is_ok()) {
            return Ok((ports, network));
        }
    }
    bail!("no free ports between 10809 and 11809 on 127.0.0.1 to 127.0.0.4")
}

/// DRBD's configuration of the resource, with node addresses as one node sees them.
fn configuration(places: &Places, address: impl Fn(NodeNr) -> SocketAddr) -> String {
    let mut text = format!("# Made by `ashlar demo`.\nresource {RESOURCE} {{\n{OPTIONS}");
    let _ = writeln!(text, "    volume 0 {{ device minor 0; meta-disk internal; }}");
    for node in 1..=DISKLESS {
        let disk = match node {
            DISKLESS => "none".to_owned(),
            _ => format!("\"{}\"", places.disk(node).display()),
        };
        let (name, address) = (name(node), address(node));
        let _ = writeln!(
            text,
            "    on {name} {{ node-id {node}; address {address}; volume 0 {{ disk {disk}; }} }}"
        );
    }
    let names: Vec<_> = (1..=DISKLESS).map(name).collect();
    let _ = writeln!(text, "    connection-mesh {{ hosts {}; }}\n}}", names.join(" "));
    text
}

/// The volume.
pub fn device(status: &ResourceStatus) -> &DeviceStatus {
    status.devices.first().expect("the resource has a volume")
}

/// The volume towards a peer.
pub fn towards(status: &ResourceStatus, peer: NodeNr) -> Option<&PeerDeviceStatus> {
    let mut connections = status.connections.iter();
    connections.find(|c| c.peer_node_id.get() == peer)?.peer_devices.first()
}

/// True if the node is connected to that peer.
pub fn sees(status: &ResourceStatus, peer: NodeNr) -> bool {
    let mut connections = status.connections.iter();
    connections.any(|c| c.peer_node_id.get() == peer && c.connection_state == ConnState::Connected)
}

/// True if the own disk and those of all connected peers are UpToDate and equal.
pub fn is_healthy(status: &ResourceStatus) -> bool {
    use vocab::{DiskState, ReplState};
    let fine = |state: DiskState, client: bool| state == DiskState::UpToDate || client;
    let device = device(status);
    let connected =
        status.connections.iter().filter(|c| c.connection_state == ConnState::Connected);
    fine(device.disk_state, device.client)
        && connected.flat_map(|c| &c.peer_devices).all(|p| {
            let client = p.peer_client || p.peer_disk_state == DiskState::Diskless;
            fine(p.peer_disk_state, client)
                && p.replication_state == ReplState::Established
                && p.out_of_sync == 0
        })
}

/// The log folder is where the run's folder is: short enough for a socket's path.
pub fn run_folder() -> anyhow::Result<PathBuf> {
    // A socket's path has room for 107 bytes; the rest of ours takes less than 40.
    let temp = std::env::temp_dir();
    let parent = if temp.as_os_str().len() <= 60 { temp } else { PathBuf::from("/tmp") };
    folder_in(&parent)
}

/// A new folder of the demo in `parent`.
pub fn folder_in(parent: &Path) -> anyhow::Result<PathBuf> {
    let made = tempfile::Builder::new().prefix("ashlar-demo-").tempdir_in(parent);
    let made = made.with_context(|| format!("can not make a folder in {}", parent.display()))?;
    Ok(made.keep())
}
