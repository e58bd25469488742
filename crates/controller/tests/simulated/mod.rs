//! Agents in memory: they carry out orders on invented disks, at once, and report what they have.
//! Data are a flag, "has every write"; what the rules about data are worth is for the simulator.
//!
//! They outlive the controller that they report to: the next one is given by [`Simulated::report_to`].
#![allow(dead_code, reason = "no program that has this needs all of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use api::link::{Agents, Heard, News, Order};
use cluster::disks;
use cluster::layer::Layer;
use cluster::name::{NodeName, PoolName, ResourceName, SnapshotName};
use cluster::objects::{Generation, Provider};
use cluster::observed::{
    DownForRollback, NodeState, PoolState, ReplicaState, SnapshotState, Suspension,
    SuspensionState, VolumeState,
};
use cluster::plan::{Action, Begin};
use cluster::question::{Question, Reply};
use controller::Handle;
use tokio::sync::mpsc;
use vocab::options::Secret;
use vocab::{Bytes, DiskState, LogLevel, VolumeNr};

const GIB: u64 = 1 << 30;

/// All agents of a cluster.
pub struct Simulated {
    orders: mpsc::UnboundedSender<(NodeName, Order)>,
    nodes: Mutex<BTreeMap<NodeName, Node>>,
    controller: Mutex<Option<Handle>>,
    steps: AtomicU64,
    /// Held by who wants that orders wait; and how many have come, those that wait included.
    gate: tokio::sync::Mutex<()>,
    came: AtomicU64,
}

#[derive(Default)]
struct Node {
    /// The number of its link; none while it is away.
    link: Option<u64>,
    links: u64,
    pools: BTreeMap<PoolName, PoolState>,
    records: BTreeMap<ResourceName, Record>,
    /// Orders of this kind fail.
    fails: Option<&'static str>,
    /// The master key that it was told.
    master: Option<Secret>,
    /// Disks that nobody uses, and the pools that were made of others.
    disks: Vec<disks::Disk>,
    made: Vec<String>,
    /// What is at paths where external files may be.
    files: BTreeMap<String, Vec<u8>>,
    level: Option<LogLevel>,
}

#[derive(Default)]
struct Record {
    confirmed: Generation,
    peers: Option<BTreeSet<NodeName>>,
    sizes: BTreeMap<u16, u64>,
    disks: BTreeMap<u16, Disk>,
    snapshots: BTreeMap<SnapshotName, (Generation, BTreeMap<u16, Disk>)>,
    suspension: Option<Suspension>,
    down: Option<DownForRollback>,
}

#[derive(Clone, Default)]
struct Disk {
    size: u64,
    metadata: bool,
    current: bool,
    passphrase_changes: u32,
}

impl Agents for Simulated {
    fn send(&self, node: &NodeName, order: Order) {
        let _ = self.orders.send((node.clone(), order));
    }
}

impl Simulated {
    /// Agents, and the orders for them, which `run` carries out.
    pub fn new() -> (Arc<Simulated>, mpsc::UnboundedReceiver<(NodeName, Order)>) {
        let (orders, receiver) = mpsc::unbounded_channel();
        let agents = Simulated {
            orders,
            nodes: Mutex::default(),
            controller: Mutex::default(),
            steps: AtomicU64::new(0),
            gate: tokio::sync::Mutex::default(),
            came: AtomicU64::new(0),
        };
        (Arc::new(agents), receiver)
    }

    /// Carries out orders for as long as there are agents.
    pub async fn run(
        self: Arc<Simulated>,
        controller: Handle,
        orders: mpsc::UnboundedReceiver<(NodeName, Order)>,
    ) {
        self.report_to(Some(controller));
        self.carry_out_all(orders).await;
    }

    /// The same, before there is a controller.
    pub async fn carry_out_all(
        self: Arc<Simulated>,
        mut orders: mpsc::UnboundedReceiver<(NodeName, Order)>,
    ) {
        while let Some((node, order)) = orders.recv().await {
            self.came.fetch_add(1, Ordering::Relaxed);
            drop(self.gate.lock().await);
            let grows = matches!(&order, Order::Step { action: Action::GrowDevice { .. }, .. });
            let news = self.carry_out(&node, order);
            let controller = self.controller.lock().unwrap().clone();
            let Some(controller) = controller else { continue };
            for heard in news {
                controller.heard(heard).await;
                // Each is looked at by itself, as where it comes from another machine.
                if grows {
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
            }
        }
    }

    /// From now on that controller is told. With none all links are lost: orders that come late find
    /// nobody, as those of a controller that was killed.
    pub fn report_to(&self, controller: Option<Handle>) {
        if controller.is_none() {
            self.nodes.lock().unwrap().values_mut().for_each(|node| node.link = None);
        }
        *self.controller.lock().unwrap() = controller;
    }

    /// Orders wait until this is dropped.
    pub async fn hold(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.gate.lock().await
    }

    /// How many orders have come so far.
    pub fn came(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }

    /// Steps of plans that have come so far.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// A node's agent connects.
    pub async fn connect(&self, controller: &Handle, name: &str) {
        let hello = {
            let mut nodes = self.nodes.lock().unwrap();
            let name = NodeName::new(name).unwrap();
            let node = nodes.entry(name.clone()).or_default();
            node.links += 1;
            node.link = Some(node.links);
            let state = NodeState {
                layers: Layer::ALL.iter().copied().collect(),
                providers: Provider::ALL.iter().copied().collect(),
                pools: node.pools.clone(),
                ..NodeState::default()
            };
            let names: Vec<ResourceName> = node.records.keys().cloned().collect();
            let replicas = names.into_iter().map(|r| {
                let report = report(&nodes, &having(&nodes, &r), &name, &r);
                (r, report)
            });
            let replicas = replicas.collect();
            let link = nodes[&name].links;
            Heard { node: name, link, news: Some(News::Hello { node: state, replicas }) }
        };
        controller.heard(hello).await;
    }

    /// A node's link is lost.
    pub async fn cut(&self, controller: &Handle, name: &str) {
        let name = NodeName::new(name).unwrap();
        let link = {
            let mut nodes = self.nodes.lock().unwrap();
            let node = nodes.get_mut(&name).unwrap();
            node.link = None;
            node.links
        };
        controller.heard(Heard { node: name, link, news: None }).await;
    }

    /// From now on a node fails at orders that begin with this word; at none.
    pub fn fail(&self, name: &str, order: Option<&'static str>) {
        self.nodes.lock().unwrap().get_mut(&NodeName::new(name).unwrap()).unwrap().fails = order;
    }

    /// The master key that a node was told.
    pub fn told(&self, name: &str) -> Option<Secret> {
        self.nodes.lock().unwrap().get(&NodeName::new(name).unwrap())?.master.clone()
    }

    /// From now on a node has these disks that nobody uses.
    pub fn give_disks(&self, name: &str, disks: Vec<disks::Disk>) {
        self.nodes.lock().unwrap().entry(NodeName::new(name).unwrap()).or_default().disks = disks;
    }

    /// A file is on a node from now on.
    pub fn put_file(&self, name: &str, path: &str, content: &[u8]) {
        let mut nodes = self.nodes.lock().unwrap();
        let node = nodes.entry(NodeName::new(name).unwrap()).or_default();
        node.files.insert(path.to_owned(), content.to_owned());
    }

    /// The places of the pools that were made of disks of a node.
    pub fn made(&self, name: &str) -> Vec<String> {
        self.nodes.lock().unwrap()[&NodeName::new(name).unwrap()].made.clone()
    }

    /// What there is on all disks: nodes, resources and volumes, and snapshots.
    pub fn disks(&self) -> Vec<String> {
        let nodes = self.nodes.lock().unwrap();
        let mut all = Vec::new();
        for (node, state) in nodes.iter() {
            for (name, record) in &state.records {
                all.extend(record.disks.keys().map(|number| format!("{node} {name}/{number}")));
                all.extend(record.snapshots.keys().map(|snap| format!("{node} {name}@{snap}")));
            }
        }
        all
    }

    fn carry_out(&self, name: &NodeName, order: Order) -> Vec<Heard> {
        let mut nodes = self.nodes.lock().unwrap();
        let Some(node) = nodes.get_mut(name).filter(|node| node.link.is_some()) else {
            return Vec::new();
        };
        let link = node.links;
        match order {
            Order::Master { key } => {
                node.master = Some(key);
                Vec::new()
            }
            Order::Ask { token, question } => {
                let reply = answer(node, &question);
                vec![Heard { node: name.clone(), link, news: Some(News::Answer { token, reply }) }]
            }
            Order::Pools { pools, .. } => {
                let space = PoolState {
                    free: Bytes(100 * GIB),
                    total: Bytes(100 * GIB),
                    ..PoolState::default()
                };
                node.pools = pools.into_keys().map(|pool| (pool, space.clone())).collect();
                let news = Some(News::Pools(node.pools.clone()));
                vec![Heard { node: name.clone(), link, news }]
            }
            Order::Step { resource, generation, action } => {
                let text = action.to_string();
                if node.fails.is_some_and(|word| text.starts_with(word)) {
                    let news = Some(News::Failed {
                        resource: Some(resource),
                        generation,
                        order: text,
                        cause: "the disk is on fire".to_owned(),
                        correction: "put it out".to_owned(),
                    });
                    return vec![Heard { node: name.clone(), link, news }];
                }
                self.steps.fetch_add(1, Ordering::Relaxed);
                let grows = matches!(action, Action::GrowDevice { .. });
                let before = grows.then(|| copying(&nodes, name, &resource));
                step(&mut nodes, name, &resource, generation, action);
                let having = having(&nodes, &resource);
                resync(&mut nodes, &having, &resource);
                // Peers notice, too.
                let linked = having.iter().filter(|peer| nodes[*peer].link.is_some());
                let after =
                    linked.map(|peer| (peer.clone(), report(&nodes, &having, peer, &resource)));
                let (own, others): (Vec<_>, Vec<_>) = after.partition(|(peer, _)| peer == name);
                let all = before.into_iter().flatten().chain(own).chain(others);
                all.map(|(peer, state)| {
                    let news = Some(News::Replica { resource: resource.clone(), state });
                    Heard { link: nodes[&peer].links, node: peer, news }
                })
                .collect()
            }
        }
    }
}

fn answer(node: &mut Node, question: &Question) -> Reply {
    let text = match question {
        Question::Disks {} => "look",
        Question::MakePool(_) => "make",
        Question::UnmakePool(_) => "unmake",
        Question::MayPut { .. } | Question::File { .. } => "file",
        Question::LogLevel {} | Question::SetLogLevel(_) => "log",
        Question::Reactor(_) => "reactor",
        Question::Diagnosis { .. } => "diagnosis",
    };
    if node.fails.is_some_and(|word| text == word) {
        let cause = "the disk is on fire".to_owned();
        return Reply::Refused { cause, correction: "put it out".to_owned() };
    }
    match question {
        Question::Disks {} => return Reply::Disks { disks: node.disks.clone() },
        Question::MakePool(pool) => {
            let is_there = |path: &&String| node.disks.iter().any(|disk| disk.device == **path);
            if let Some(path) = pool.devices.iter().find(|path| !is_there(path)) {
                let cause = format!("{path} is not unused");
                return Reply::Refused { cause, correction: "use another".to_owned() };
            }
            node.disks.retain(|disk| !pool.devices.contains(&disk.device));
            node.made.push(pool.place());
        }
        Question::UnmakePool(pool) => {
            let back = pool.devices.iter().map(|device| disks::Disk {
                device: device.clone(),
                size: Bytes(GIB),
                ..disks::Disk::default()
            });
            node.disks.extend(back);
            node.made.retain(|place| *place != pool.place());
        }
        Question::MayPut { path } => {
            return Reply::MayPut { allowed: path.as_str().starts_with("/etc/") };
        }
        Question::File { path, content } => {
            let found = node.files.get(path.as_str());
            return Reply::File { there: found.is_some(), same: found == Some(content) };
        }
        Question::LogLevel {} => return Reply::LogLevel(node.level.unwrap_or(LogLevel::Info)),
        Question::SetLogLevel(level) => node.level = Some(*level),
        Question::Reactor(call) => {
            let (output, errors) = (format!("{call}\n"), format!("wait {}\n", call.wait));
            return Reply::Said { status: 3, output, errors };
        }
        Question::Diagnosis { since } => {
            let since = since.map(|since| since.0.to_string()).unwrap_or_default();
            let files = [("journal.txt".to_owned(), since), ("../up".to_owned(), String::new())];
            return Reply::Diagnosis { files: files.into() };
        }
    }
    Reply::Done {}
}

/// What the replicas with which a device grows may say before they have its new size: what is new is
/// copied already.
fn copying(
    nodes: &BTreeMap<NodeName, Node>,
    name: &NodeName,
    resource: &ResourceName,
) -> Vec<(NodeName, ReplicaState)> {
    let having = having(nodes, resource);
    let linked = having.iter().filter(|peer| *peer != name && nodes[*peer].link.is_some());
    linked
        .map(|peer| {
            let mut state = report(nodes, &having, peer, resource);
            let disks = state.volumes.values_mut().filter_map(|volume| volume.disk.as_mut());
            disks.for_each(|disk| *disk = DiskState::Inconsistent);
            (peer.clone(), state)
        })
        .collect()
}

fn step(
    nodes: &mut BTreeMap<NodeName, Node>,
    node: &NodeName,
    name: &ResourceName,
    generation: Generation,
    action: Action,
) {
    let records = &mut nodes.get_mut(node).unwrap().records;
    let source = match &action {
        Action::RestoreVolume { volume, from, snapshot, .. } => {
            let taken = records.get(from).and_then(|record| record.snapshots.get(snapshot));
            taken.and_then(|(_, disks)| disks.get(volume)).cloned()
        }
        _ => None,
    };
    let record = records.entry(name.clone()).or_default();
    match action {
        Action::CreateVolume { volume, backing } => {
            let passphrase_changes = backing.passphrase_changes;
            let new = Disk { passphrase_changes, ..Disk::default() };
            let disk = record.disks.entry(volume).or_insert(new);
            disk.size = disk.size.max(backing.size.0);
        }
        Action::AdoptVolume { .. } => panic!("nothing was there before this cluster"),
        Action::RestoreVolume { volume, backing, .. } => {
            let source = source.expect("a snapshot is restored where it is");
            let (size, passphrase_changes) = (backing.size.0, backing.passphrase_changes);
            let disk = Disk { size, passphrase_changes, ..source };
            record.disks.entry(volume).or_insert(disk);
        }
        Action::CreateMetadata { volume, begin, .. } => {
            let disk = record.disks.get_mut(&volume).unwrap();
            if !disk.metadata {
                (disk.metadata, disk.current) = (true, begin == Begin::First);
            }
        }
        Action::BeginData { volume } => record.disks.get_mut(&volume).unwrap().current = true,
        Action::GrowVolume { volume, size } => {
            let disk = record.disks.get_mut(&volume).unwrap();
            disk.size = disk.size.max(size.0);
        }
        Action::ChangePassphrase { volume, changes, .. } => {
            record.disks.get_mut(&volume).unwrap().passphrase_changes = changes;
        }
        Action::GrowDevice { volume, size } => {
            for node in nodes.values_mut() {
                if let Some(record) = node.records.get_mut(name) {
                    record.sizes.insert(volume, size.0);
                }
            }
        }
        Action::Configure(config) => {
            record.peers = Some(config.connections.keys().cloned().collect());
            let old = std::mem::take(&mut record.sizes);
            let sizes = config.volumes.iter().map(|(number, volume)| {
                // A device that exists grows by a step of its own.
                (*number, old.get(number).copied().unwrap_or(volume.size.0))
            });
            record.sizes = sizes.collect();
            record.confirmed = generation;
            record.down = None;
        }
        Action::RemoveDisk(_) => record.disks.clear(),
        Action::RemoveVolume { volume } => {
            record.disks.remove(&volume);
            record.sizes.remove(&volume);
        }
        Action::Remove(_) => {
            record.disks.clear();
            record.sizes.clear();
            record.peers = None;
            record.confirmed = generation;
        }
        Action::Suspend { token } => {
            record.suspension = Some(Suspension { token, state: SuspensionState::Held });
        }
        Action::TakeSnapshot { token, snapshot } => {
            let disks = record.disks.clone();
            record.snapshots.insert(snapshot, (token, disks));
        }
        Action::Resume { token } => {
            record.suspension = Some(Suspension { token, state: SuspensionState::Released });
        }
        Action::DeleteSnapshot { snapshot } => drop(record.snapshots.remove(&snapshot)),
        Action::TakeDown { token, .. } => {
            record.peers = None;
            record.down = Some(DownForRollback { token, changed: false });
        }
        Action::RollBack { token, snapshot } => {
            record.disks = record.snapshots[&snapshot].1.clone();
            record.down = Some(DownForRollback { token, changed: true });
        }
        Action::Upload(_) | Action::Download(_) | Action::StopShipping { .. } => {
            panic!("agents without a disk ship nothing")
        }
        Action::Discard { token } => {
            record.disks.clear();
            record.down = Some(DownForRollback { token, changed: true });
        }
    }
}

/// The nodes that have something of a resource: nobody else is looked at, so that a step costs the
/// same among few nodes and many.
fn having(nodes: &BTreeMap<NodeName, Node>, name: &ResourceName) -> Vec<NodeName> {
    let has = nodes.iter().filter(|(_, node)| node.records.contains_key(name));
    has.map(|(node, _)| node.clone()).collect()
}

/// Every replica whose connected peer has every write gets them.
fn resync(nodes: &mut BTreeMap<NodeName, Node>, having: &[NodeName], name: &ResourceName) {
    for node in having {
        let peers = connected(nodes, having, node, name);
        let Some(record) = nodes[node].records.get(name) else { continue };
        let numbers: Vec<u16> = record.disks.keys().copied().collect();
        for number in numbers {
            let has = |peer: &NodeName| {
                nodes[peer].records[name].disks.get(&number).is_some_and(|disk| disk.current)
            };
            if peers.iter().any(has) {
                let record = nodes.get_mut(node).unwrap().records.get_mut(name).unwrap();
                let disk = record.disks.get_mut(&number).unwrap();
                disk.current = disk.current || disk.metadata;
            }
        }
    }
}

fn connected(
    nodes: &BTreeMap<NodeName, Node>,
    having: &[NodeName],
    node: &NodeName,
    name: &ResourceName,
) -> Vec<NodeName> {
    let knows = |from: &NodeName, to: &NodeName| {
        let record = nodes.get(from).and_then(|node| node.records.get(name));
        record.and_then(|r| r.peers.as_ref()).is_some_and(|peers| peers.contains(to))
    };
    having.iter().filter(|peer| knows(node, peer) && knows(peer, node)).cloned().collect()
}

fn report(
    nodes: &BTreeMap<NodeName, Node>,
    having: &[NodeName],
    node: &NodeName,
    name: &ResourceName,
) -> ReplicaState {
    let record = &nodes[node].records[name];
    let connected = connected(nodes, having, node, name);
    let numbers: BTreeSet<u16> = record.disks.keys().chain(record.sizes.keys()).copied().collect();
    let volumes = numbers.into_iter().map(|number| {
        let disk = record.disks.get(&number);
        let state = match disk {
            None => DiskState::Diskless,
            Some(disk) if disk.current => DiskState::UpToDate,
            Some(_) => DiskState::Inconsistent,
        };
        // Nobody looks into a disk that is not attached.
        let attached = record.down.is_none();
        let volume = VolumeState {
            backing: disk.map(|disk| Bytes(disk.size)),
            metadata: disk.is_some_and(|disk| disk.metadata),
            disk: attached.then_some(state),
            size: Bytes(
                record.sizes.get(&number).copied().filter(|_| attached).unwrap_or_default(),
            ),
            done_percent: None,
            passphrase_changes: disk.map_or(0, |disk| disk.passphrase_changes),
            mapped: None,
        };
        (VolumeNr(number), volume)
    });
    let peers = record.peers.iter().flatten();
    let snapshots = record.snapshots.iter();
    ReplicaState {
        generation: record.confirmed,
        up: record.peers.is_some(),
        in_use: None,
        volumes: volumes.collect(),
        connections: peers.map(|peer| (peer.clone(), connected.contains(peer))).collect(),
        suspension: record.suspension,
        rollback: record.down,
        snapshots: snapshots
            .map(|(snapshot, (token, _))| (snapshot.clone(), SnapshotState { token: *token }))
            .collect(),
        shipments: Vec::new(),
    }
}
