//! A control plane on one machine: engines and agents as real processes, and a small controller in
//! the test that drives them with the real model and plans over the real link.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "this whole file is a test")]

pub mod bare;
pub mod joins;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use api::link::{Agents, Heard, News, Order, Pool};
use cluster::apply::apply;
use cluster::command::{Command, NewDefinition, NewNetInterface, NewResource, NewVolumeDefinition};
use cluster::edit::Context;
use cluster::model::Model;
use cluster::name::*;
use cluster::objects::{Generation, Millis, NodeKind, Props, Provider, Uuid};
use cluster::observed::{Observed, ReplicaState};
use cluster::plan::plan;
use cluster::props::PropsEdit;
use controller::link::authority::{self, Authority};
use controller::link::{Link, Options};
use vocab::{Bytes, DiskState, VolumeNr};

use crate::engine_support::{binary, text};

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A step that was sent and not reported is sent again after this time.
const AGAIN: Duration = Duration::from_secs(3);

pub const MIB: u64 = 1 << 20;

pub fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

pub fn rd(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

pub fn pool() -> PoolName {
    PoolName::new("thin").unwrap()
}

/// A folder for pools, on a file system whose files share blocks where one can be mounted.
pub struct Pools {
    directory: tempfile::TempDir,
    pub has_snapshots: bool,
}

impl Pools {
    pub fn new() -> Pools {
        let directory = tempfile::Builder::new().prefix("ashlar-pools").tempdir().unwrap();
        let (image, at) = (directory.path().join("image"), directory.path().join("at"));
        File::create(&image).unwrap().set_len(2048 * MIB).unwrap();
        fs::create_dir(&at).unwrap();
        let runs = |argv: &[&str]| {
            let done = Process::new(argv[0]).args(&argv[1..]).output();
            let ok = done.as_ref().is_ok_and(|output| output.status.success());
            if !ok {
                println!("without snapshots: {argv:?} does not work here: {done:?}");
            }
            ok
        };
        let (image, to) = (image.to_str().unwrap(), at.to_str().unwrap());
        let has_snapshots =
            runs(&["mkfs.xfs", "-q", image]) && runs(&["mount", "-o", "loop", image, to]);
        Pools { directory, has_snapshots }
    }

    pub fn of(&self, node: &str) -> PathBuf {
        self.directory.path().join("at").join(node)
    }

    pub fn files(&self, node: &str) -> Vec<String> {
        let entries = fs::read_dir(self.of(node)).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        if !self.has_snapshots {
            return;
        }
        // An engine that another one has handed over to is no child that was waited for.
        for _ in 0..50 {
            let unmounted = Process::new("umount").arg(self.directory.path().join("at")).status();
            if unmounted.is_ok_and(|status| status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// A node: an engine and an agent.
pub struct Node {
    pub name: &'static str,
    pub directory: PathBuf,
    /// What engine and agent are started from.
    pub program: PathBuf,
    address: Ipv4Addr,
    engine: Option<Child>,
    /// The engine that has taken over from that one.
    heir: Option<u32>,
    agent: Option<Child>,
}

impl Node {
    /// A node that runs nothing yet; its folder is made.
    pub fn new(name: &'static str, directory: PathBuf, address: Ipv4Addr) -> Node {
        fs::create_dir(&directory).unwrap();
        let program = binary().to_owned();
        Node { name, directory, program, address, engine: None, heir: None, agent: None }
    }

    /// Makes it a member by a token.
    pub fn join(&self, token: &str) {
        let state = self.directory.join("agent").display().to_string();
        let mut process = Process::new(&self.program);
        process.args(["node", "join", token, "--node", self.name, "--state-dir", &state]);
        let output = process.output().unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && out.contains("has joined"), "{out}{err}");
    }

    fn log(&self, of: &str) -> File {
        File::options().create(true).append(true).open(self.directory.join(of)).unwrap()
    }

    pub fn start_engine(&mut self) {
        let (socket, state) = (self.directory.join("sock"), self.directory.join("state"));
        let log = self.log("engine.log");
        let mut process = Process::new(&self.program);
        process.arg("engine").arg("--socket").arg(socket).arg("--state-dir").arg(state);
        process.args(["--node", self.name, "--threads", "1", "--log-level", "debug"]);
        self.engine = Some(process.stdin(Stdio::null()).stderr(log).spawn().unwrap());
        self.ok(&["info", "--wait-engine", "30"]);
    }

    pub fn start_agent(&mut self) {
        assert!(self.agent.is_none());
        let log = self.log("agent.log");
        let mut process = Process::new(&self.program);
        process.arg("--socket").arg(self.directory.join("sock")).arg("agent");
        process.arg("--state-dir").arg(self.directory.join("agent"));
        process.args(["--suspend-timeout", "10"]);
        self.agent = Some(process.stdin(Stdio::null()).stderr(log).spawn().unwrap());
    }

    /// Has an engine of another release take over while volumes are in use.
    pub fn upgrade_engine(&mut self, program: &Path) {
        let answer = self.ok(&["upgrade", "--binary", program.to_str().unwrap()]);
        let pid = answer.split(' ').nth(1).and_then(|pid| pid.parse().ok());
        self.heir = Some(pid.expect("it names the process"));
        assert!(self.engine.take().unwrap().wait().unwrap().success(), "it ends well");
        self.program = program.to_owned();
    }

    pub fn agent_pid(&self) -> u32 {
        self.agent.as_ref().unwrap().id()
    }

    /// Ends the agent at once, as a crash would.
    pub fn kill_agent(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    /// Ends the engine at once, as a crash would.
    pub fn kill_engine(&mut self) {
        let mut engine = self.engine.take().unwrap();
        engine.kill().unwrap();
        engine.wait().unwrap();
    }

    pub fn signal_agent(&self, signal: i32) {
        let signal = format!("-{signal}");
        let pid = self.agent_pid().to_string();
        assert!(Process::new("kill").args([signal, pid]).status().unwrap().success());
    }

    fn command(&self, args: &[&str]) -> Process {
        let mut process = Process::new("timeout");
        process.arg("60").arg(binary()).arg("--socket").arg(self.directory.join("sock"));
        process.args(args);
        process
    }

    /// An operator's command that must succeed.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{}: {args:?}\n{out}{err}", self.name);
        out
    }

    /// Serves volume 0 of a resource over NBD.
    pub fn export(&self, resource: &str) -> PathBuf {
        let socket = self.directory.join(format!("{resource}.nbd"));
        let volume = format!("{resource}/0");
        self.ok(&["export", &volume, "--listen", &socket.display().to_string()]);
        socket
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for child in [self.agent.take(), self.engine.take()].iter_mut().flatten() {
            // Ended or not, it must not outlive the test.
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(heir) = self.heir {
            let _ = Process::new("kill").args(["-9", &heir.to_string()]).status();
        }
    }
}

/// A failure as an agent reported it.
#[derive(Clone, Debug)]
pub struct Failure {
    pub node: NodeName,
    pub order: String,
    pub cause: String,
}

/// The controller, and the nodes.
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub model: Model,
    pub observed: Observed,
    pub failures: Vec<Failure>,
    pub pools: Pools,
    link: Option<Link>,
    heard: mpsc::Receiver<Heard>,
    sender: mpsc::Sender<Heard>,
    links: BTreeMap<NodeName, u64>,
    sent: BTreeMap<(NodeName, ResourceName, String), Instant>,
    draws: u8,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

/// A loopback network for each cluster, so that tests can run at the same time.
pub fn network() -> [u8; 3] {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    [127, 16 + (pid % 200) as u8, 100 + NEXT.fetch_add(1, Ordering::Relaxed)]
}

impl Cluster {
    /// Nodes that have joined and are connected, each with a pool of kind FILE_THIN.
    pub fn up(names: &[&'static str]) -> Cluster {
        let directory = tempfile::Builder::new().prefix("ashlar").tempdir().unwrap();
        let pools = Pools::new();
        let [a, b, c] = network();
        let (sender, heard) = mpsc::channel();
        let address = SocketAddr::from((Ipv4Addr::new(a, b, c, 250), 0));
        let mut cluster = Cluster {
            nodes: Vec::new(),
            model: Model::new(Uuid(1)),
            observed: Observed::default(),
            failures: Vec::new(),
            pools,
            link: None,
            heard,
            sender,
            links: BTreeMap::new(),
            sent: BTreeMap::new(),
            draws: 0,
            address,
            directory,
        };
        cluster.listen();
        for (key, value) in [("timeout", "9"), ("connect-int", "1"), ("ping-int", "1")] {
            let props = PropsEdit::set(&format!("DrbdOptions/Net/{key}"), value);
            cluster.command(Command::ModifyController { props });
        }
        for (index, name) in names.iter().enumerate() {
            let address = Ipv4Addr::new(a, b, c, index as u8 + 1);
            fs::create_dir(cluster.pools.of(name)).unwrap();
            let mut node = Node::new(name, cluster.directory.path().join(name), address);
            node.start_engine();
            cluster.join(&node);
            node.start_agent();
            cluster.nodes.push(node);
            cluster.describe(index);
        }
        cluster.wait("all agents are linked", |cluster| {
            names.iter().all(|name| cluster.observed.is_connected(&node(name)))
        });
        cluster.send_pools();
        cluster.wait("all pools are known", |cluster| {
            names.iter().all(|name| {
                let pool = cluster.observed.pool(&node(name), &pool());
                pool.is_some_and(|pool| pool.error.is_none() && pool.total.0 > 0)
            })
        });
        cluster
    }

    /// Begins to listen, at the same address as before.
    pub fn listen(&mut self) {
        let folder = self.directory.path().join("controller");
        let options = Options {
            listen: self.address,
            authority: Arc::new(Authority::open(&folder, authority::VALID).unwrap()),
            joins: Arc::new(joins::Once::default()),
        };
        let sender = self.sender.clone();
        let heard = move |heard| _ = sender.send(heard);
        let link = Link::listen(&options, heard, |line| println!("controller: {line}")).unwrap();
        self.address = link.address();
        self.link = Some(link);
    }

    /// The controller is gone, and knows nothing of the nodes when it is back.
    pub fn stop_listening(&mut self) {
        self.link = None;
        while self.heard.try_recv().is_ok() {}
        self.observed = Observed::default();
        self.sent.clear();
        self.links.clear();
    }

    fn join(&self, node: &Node) {
        let link = self.link.as_ref().unwrap();
        let (token, _) = link.authority().invite(&self.address.to_string()).unwrap().unwrap();
        node.join(&token.to_string());
    }

    fn describe(&mut self, index: usize) {
        let (name, address) = (self.nodes[index].name, self.nodes[index].address);
        let interface = NewNetInterface {
            name: NetIfName::new("default").unwrap(),
            address: address.into(),
            agent: None,
        };
        self.command(Command::CreateNode {
            name: node(name),
            kind: NodeKind::Satellite,
            net_interfaces: vec![interface],
            props: Props::new(),
        });
        let path = self.pools.of(name).display().to_string();
        self.command(Command::CreatePool {
            node: node(name),
            name: pool(),
            provider: Provider::FileThin,
            props: [("StorDriver/StorPoolName".to_owned(), path)].into(),
            shared_space: None,
            external_locking: false,
        });
    }

    pub fn index(&self, name: &str) -> usize {
        self.nodes.iter().position(|node| node.name == name).unwrap()
    }

    pub fn node(&mut self, name: &str) -> &mut Node {
        let index = self.index(name);
        &mut self.nodes[index]
    }

    /// A command that must be carried out.
    pub fn command(&mut self, command: Command) {
        let text = format!("{command:?}");
        if let Err(refusal) = self.try_command(command) {
            panic!("{text}: {refusal}");
        }
        if !matches!(text.as_str(), "Tick") {
            self.look_at_all();
        }
    }

    fn try_command(&mut self, command: Command) -> Result<(), String> {
        self.draws = self.draws.wrapping_add(1);
        let entropy = std::array::from_fn(|at| self.draws.wrapping_mul(31).wrapping_add(at as u8));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        let context = Context { observed: &self.observed, now: Millis(now), entropy };
        apply(&mut self.model, &context, command).map(drop).map_err(|refusal| refusal.to_string())
    }

    /// A resource definition with a volume.
    pub fn define(&mut self, name: &str, size: u64) {
        let definition = NewDefinition { name: Some(rd(name)), ..NewDefinition::default() };
        self.command(Command::CreateDefinition { definition });
        let volume = NewVolumeDefinition { size: Bytes(size), ..NewVolumeDefinition::default() };
        self.command(Command::CreateVolumeDefinition { name: rd(name), volume });
    }

    pub fn place(&mut self, name: &str, on: &[&str]) {
        for on in on {
            let resource = NewResource { pool: Some(pool()), ..NewResource::default() };
            self.command(Command::CreateResource { name: rd(name), node: node(on), resource });
        }
    }

    fn send_pools(&self) {
        for node in &self.nodes {
            let name = self::node(node.name);
            let pools = self.model.pools_of(&name).map(|pool| {
                (pool.name.clone(), Pool { provider: pool.provider, props: pool.props.clone() })
            });
            let pools = pools.collect();
            self.send(&name, Order::Pools { generation: self.model.generation(), pools });
        }
    }

    pub fn send(&self, node: &NodeName, order: Order) {
        if let Some(link) = &self.link {
            link.send(node, order);
        }
    }

    fn look_at_all(&mut self) {
        let names: Vec<_> = self.model.definitions().map(|d| d.name.clone()).collect();
        for name in names {
            self.look(&name);
        }
    }

    /// Takes note of what was reported, and sends the steps that wait for no other.
    fn look(&mut self, name: &ResourceName) {
        self.try_command(Command::Settle { name: name.clone() }).unwrap();
        let plan = plan(&self.model, &self.observed, name);
        for step in plan.ready() {
            let text = format!("{} {}", plan.generation.0, step.action);
            let key = (step.node.clone(), name.clone(), text);
            if self.sent.get(&key).is_some_and(|sent| sent.elapsed() < AGAIN) {
                continue;
            }
            println!("{:?} {name}: {} is to {}", elapsed(), step.node, key.2);
            self.sent.insert(key, Instant::now());
            let (resource, action) = (name.clone(), step.action.clone());
            self.send(&step.node, Order::Step { resource, generation: plan.generation, action });
        }
    }

    fn hear(&mut self, heard: Heard) {
        let Heard { node, link, news } = heard;
        let newest = self.links.entry(node.clone()).or_default();
        if link < *newest {
            return;
        }
        *newest = link;
        match news {
            None => {
                println!("{:?} {node} is away", elapsed());
                if let Some(state) = self.observed.nodes.get_mut(&node) {
                    state.connected = false;
                }
            }
            Some(News::Hello { node: state, replicas }) => {
                println!("{:?} {node} is there", elapsed());
                self.observed.nodes.insert(node.clone(), state);
                for all in self.observed.resources.values_mut() {
                    all.remove(&node);
                }
                for (name, state) in replicas {
                    self.observed.resources.entry(name).or_default().insert(node.clone(), state);
                }
                self.send_pools();
                self.look_at_all();
            }
            Some(News::Pools(pools)) => {
                if let Some(state) = self.observed.nodes.get_mut(&node) {
                    state.pools = pools;
                }
            }
            Some(News::Replica { resource, state }) => {
                // What was not done by now is sent again when it is not reported.
                self.observed.resources.entry(resource.clone()).or_default().insert(node, state);
                self.look(&resource);
            }
            // Nothing is asked here.
            Some(News::Answer { .. }) => {}
            Some(News::Failed { order, cause, correction, .. }) => {
                println!("{:?} {node} could not {order}: {cause}; {correction}", elapsed());
                self.failures.push(Failure { node, order, cause });
            }
        }
    }

    /// Runs the controller for a moment.
    pub fn turn(&mut self) {
        if let Ok(heard) = self.heard.recv_timeout(Duration::from_millis(100)) {
            self.hear(heard);
            while let Ok(heard) = self.heard.try_recv() {
                self.hear(heard);
            }
        } else {
            self.look_at_all();
        }
    }

    /// Runs the controller until something holds.
    pub fn wait(&mut self, what: &str, mut condition: impl FnMut(&Cluster) -> bool) {
        let start = Instant::now();
        println!("{:?} ==== until {what}", elapsed());
        while !condition(self) {
            assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
            self.turn();
        }
    }

    /// Everything is as wanted of a resource definition, and every replica that is active UpToDate.
    pub fn is_settled(&self, name: &str) -> bool {
        let plan = plan(&self.model, &self.observed, &rd(name));
        let resources: Vec<_> = self.model.resources_of(&rd(name)).collect();
        let active = |node: &NodeName| {
            let resource = self.model.resource(&rd(name), node);
            resource.is_some_and(|resource| resource.deactivated.is_none())
        };
        plan.is_done()
            && resources.iter().all(|resource| {
                !resource.is_deleting()
                    && self.replica(name, resource.node.as_str()).is_some_and(|replica| {
                        if !active(&resource.node) {
                            return !replica.up;
                        }
                        let mut peers = replica.connections.iter();
                        replica.up
                            && replica.connections.len() == resources.len() - 1
                            && peers.all(|(peer, connected)| *connected || !active(peer))
                            && replica.volumes.values().all(|volume| {
                                !resource.is_replica() || volume.disk == Some(DiskState::UpToDate)
                            })
                    })
            })
    }

    pub fn wait_settled(&mut self, name: &str) {
        self.wait(&format!("{name} is settled"), |cluster| cluster.is_settled(name));
    }

    pub fn replica(&self, name: &str, on: &str) -> Option<&ReplicaState> {
        self.observed.replica(&rd(name), &node(on))
    }

    pub fn size(&self, name: &str, on: &str) -> u64 {
        let replica = self.replica(name, on);
        replica.and_then(|r| r.volumes.get(&VolumeNr(0))).map_or(0, |volume| volume.size.0)
    }

    /// Bytes of a replica's backing volume.
    pub fn backing(&self, name: &str, on: &str) -> u64 {
        let replica = self.replica(name, on);
        let volume = replica.and_then(|r| r.volumes.get(&VolumeNr(0)));
        volume.and_then(|volume| volume.backing).map_or(0, |bytes| bytes.0)
    }

    /// The first bytes of a replica's backing volume.
    pub fn content(&self, name: &str, on: &str, len: u64) -> Vec<u8> {
        let mut bytes = fs::read(self.pools.of(on).join(format!("{name}_00000.img"))).unwrap();
        bytes.truncate(len as usize);
        bytes
    }

    pub fn generation(&self) -> Generation {
        self.model.generation()
    }
}

fn elapsed() -> Duration {
    crate::engine_support::elapsed()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for definition in self.model.definitions() {
            let plan = plan(&self.model, &self.observed, &definition.name);
            let steps: Vec<String> =
                plan.steps.iter().map(|s| format!("{}: {}", s.node, s.action)).collect();
            println!("{}: steps {steps:?} waits {:?}", definition.name, plan.waits);
            for (node, replica) in
                self.observed.resources.get(&definition.name).iter().flat_map(|r| *r)
            {
                println!("{node}: {replica:?}");
            }
        }
        for node in &self.nodes {
            println!("==== {} ====", node.name);
            let status = node.command(&["status", "-vv"]).output().unwrap();
            println!("{}", text(&status.stdout));
            for (log, shown) in [("agent.log", 60), ("engine.log", 60)] {
                println!("---- {log}");
                show_end(&node.directory.join(log), shown);
            }
        }
    }
}

fn show_end(path: &Path, count: usize) {
    let log = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    println!("{}", lines[lines.len().saturating_sub(count)..].join("\n"));
}
