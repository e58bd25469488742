//! A controller that is killed at every write, in memory: after each script of commands was cut off at
//! its first write, its second, and so on, another controller takes over what was stored. Every call
//! that was answered is there, no call is there by half, and everything comes true with the agents,
//! which go on.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::simulated::Simulated;
use cluster::change::{Change, Object};
use cluster::command::{Command, NewDefinition, NewNetInterface};
use cluster::model::Model;
use cluster::name::*;
use cluster::objects::{Encryption, Filter, JoinToken, Millis, NodeKind, Props, Provider};
use cluster::props::PropsEdit;
use controller::store::{self, Log, Store};
use controller::{Handle, start};
use linstor::access::{Record, Role, UnderWay, within};
use linstor::controller::{Controller, Report, ReportFilter};

const GIB: u64 = 1 << 30;

/// At which write the controller is killed, and whether that write is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kill {
    Before(usize),
    After(usize),
    Never,
}

/// What is on the disk. It outlives controllers.
#[derive(Default)]
struct Disk {
    rows: Model,
    records: BTreeMap<u64, Record>,
    written: bool,
    commits: usize,
}

/// A store in memory, whose process is killed at a write: then it answers nothing any more.
struct Memory {
    disk: Arc<Mutex<Disk>>,
    kill: Kill,
    dead: bool,
}

impl Memory {
    fn dead(&self) -> store::Error {
        let cause = "killed".to_owned();
        store::Error::Failed { file: "memory".into(), doing: "writing", cause }
    }
}

impl Store for Memory {
    fn load(&mut self) -> Result<Vec<Object>, store::Error> {
        let disk = self.disk.lock().unwrap();
        match (self.dead, disk.written) {
            (true, _) => Err(self.dead()),
            (false, true) => Ok(disk.rows.rows().collect()),
            (false, false) => Ok(Vec::new()),
        }
    }

    fn commit(&mut self, changes: &[Change], log: &Log) -> Result<(), store::Error> {
        if self.dead {
            return Err(self.dead());
        }
        let mut disk = self.disk.lock().unwrap();
        disk.commits += 1;
        if self.kill == Kill::Before(disk.commits) {
            self.dead = true;
            return Err(self.dead());
        }
        changes.iter().cloned().for_each(|change| disk.rows.follow(change));
        disk.records.extend(log.added.iter().chain(&log.replaced).cloned());
        disk.written = true;
        if self.kill == Kill::After(disk.commits) {
            self.dead = true;
            return Err(self.dead());
        }
        Ok(())
    }

    fn backup(&mut self, _: &Path) -> Result<(), store::Error> {
        Err(self.dead())
    }

    fn add_report(&mut self, _: &Report) -> Result<(), store::Error> {
        Ok(())
    }

    fn next_report(&mut self) -> Result<u64, store::Error> {
        Ok(0)
    }

    fn reports(&mut self, _: &ReportFilter) -> Result<Vec<Report>, store::Error> {
        Ok(Vec::new())
    }

    fn delete_reports(&mut self, _: &ReportFilter) -> Result<usize, store::Error> {
        Ok(0)
    }

    fn records(&mut self, before: Option<u64>) -> Result<Vec<(u64, Record)>, store::Error> {
        let disk = self.disk.lock().unwrap();
        let records = disk.records.range(..before.unwrap_or(u64::MAX)).rev();
        Ok(records.map(|(number, record)| (*number, record.clone())).collect())
    }
}

fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

fn resource(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Nodes, pools, two volumes, one of which grows and one of which goes again, and an entry of the
/// key-value store.
fn script() -> Vec<Command> {
    let mut script = Vec::new();
    for (number, name) in NODES.into_iter().enumerate() {
        let interface = NewNetInterface {
            name: NetIfName::new("default").unwrap(),
            address: format!("10.0.0.{}", number + 1).parse().unwrap(),
            agent: Some((3366, Encryption::Plain)),
        };
        script.push(Command::CreateNode {
            name: node(name),
            kind: NodeKind::Satellite,
            net_interfaces: vec![interface],
            props: Props::new(),
        });
        script.push(Command::CreatePool {
            node: node(name),
            name: PoolName::new("pool").unwrap(),
            provider: Provider::FileThin,
            props: Props::from([("StorDriver/FileDir".to_owned(), "/srv".to_owned())]),
            shared_space: None,
            external_locking: false,
        });
    }
    for name in ["one", "two"] {
        script.push(Command::Spawn {
            group: GroupName::default_group(),
            definition: NewDefinition { name: Some(resource(name)), ..NewDefinition::default() },
            sizes: vec![GIB, GIB],
            filter: Filter::default(),
            partial: false,
            definitions_only: false,
            passphrases: Vec::new(),
        });
    }
    script.push(Command::ModifyVolumeDefinition {
        name: resource("one"),
        number: 1,
        size: Some(2 * GIB),
        props: PropsEdit::default(),
        gross_size: None,
    });
    script.push(Command::ModifyStore {
        name: StoreName::new("kept").unwrap(),
        edit: PropsEdit::set("key", "value"),
    });
    script.push(Command::DeleteDefinition { name: resource("two") });
    script
}

/// What of the model a command answers for: whether it is there as a whole, not at all, or by half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum There {
    Whole,
    Not,
    Half,
}

fn look(model: &Model, command: &Command) -> There {
    let whole = |whole: bool| if whole { There::Whole } else { There::Not };
    match command {
        Command::CreateNode { name, .. } => {
            // A node comes with its pool for diskless resources.
            match (model.node(name), model.pool(name, &PoolName::diskless())) {
                (Some(_), Some(_)) => There::Whole,
                (None, None) => There::Not,
                _ => There::Half,
            }
        }
        Command::CreatePool { node, name, .. } => whole(model.pool(node, name).is_some()),
        Command::Spawn { definition, .. } => {
            let name = definition.name.as_ref().unwrap();
            let Some(found) = model.definition(name) else {
                let resources = model.resources_of(name).count();
                return if resources == 0 { There::Not } else { There::Half };
            };
            let full = |r: &&cluster::objects::Resource| r.volumes.len() == 2;
            // Two replicas and a tie-breaker.
            let resources = model.resources_of(name).filter(full).count();
            let going = found.flags.contains(&cluster::objects::DefinitionFlag::Delete);
            if going || found.volumes.len() == 2 && resources == 3 {
                There::Whole
            } else {
                There::Half
            }
        }
        Command::ModifyVolumeDefinition { name, number, size, .. } => {
            let volume = &model.definition(name).unwrap().volumes[&vocab::VolumeNr(*number)];
            whole(Some(volume.size.0) == *size)
        }
        Command::ModifyStore { name, .. } => whole(model.store(name).is_some()),
        Command::DeleteDefinition { name } => match model.definition(name) {
            None => There::Whole,
            Some(found) => whole(found.flags.contains(&cluster::objects::DefinitionFlag::Delete)),
        },
        other => panic!("{other:?}"),
    }
}

/// The call that a command is for.
fn call(command: &Command) -> Arc<UnderWay> {
    Arc::new(UnderWay::new(Record {
        time: Millis(1),
        who: "loopback".to_owned(),
        role: Role::Admin,
        from: None,
        method: "POST".to_owned(),
        path: format!("{command:?}"),
        status: 0,
        codes: Vec::new(),
        objects: BTreeMap::new(),
    }))
}

struct Cluster {
    agents: Arc<Simulated>,
    handle: Handle,
    owner: JoinHandle<Result<(), store::Error>>,
}

impl Cluster {
    fn open(disk: &Arc<Mutex<Disk>>, agents: &Arc<Simulated>, kill: Kill) -> Option<Cluster> {
        let store = Memory { disk: disk.clone(), kill, dead: false };
        // It may be killed before it has begun.
        let (handle, owner) = start(Box::new(store), agents.clone()).ok()?;
        Some(Cluster { agents: agents.clone(), handle, owner })
    }

    async fn connect(&self) {
        self.agents.report_to(Some(self.handle.clone()));
        for name in NODES {
            self.agents.connect(&self.handle, name).await;
        }
    }

    /// Has commands carried out. Returns those that were answered, up to the kill.
    async fn does(&self, script: &[Command]) -> usize {
        for (index, command) in script.iter().enumerate() {
            let carry_out = async { self.handle.carry_out(command.clone()).await };
            let done = within(Some(call(command)), carry_out).await;
            let Ok(done) = done else { return index };
            // What follows may not come any more, but the call was answered.
            if tokio::time::timeout(Duration::from_secs(20), done.followed).await.unwrap().is_err()
            {
                return index + 1;
            }
        }
        script.len()
    }

    /// The process is gone; agents and disk are not.
    async fn end(self) {
        let Cluster { agents, handle, owner, .. } = self;
        agents.report_to(None);
        drop(handle);
        let _ = tokio::task::spawn_blocking(|| owner.join().unwrap()).await.unwrap();
    }
}

/// What it comes to when nobody is killed, and how many writes that takes.
async fn undisturbed() -> (usize, Vec<String>) {
    let disk = Arc::new(Mutex::new(Disk::default()));
    let (agents, orders) = Simulated::new();
    let cluster = Cluster::open(&disk, &agents, Kill::Never).unwrap();
    tokio::spawn(agents.clone().run(cluster.handle.clone(), orders));
    cluster.connect().await;
    let script = script();
    assert_eq!(cluster.does(&script).await, script.len());
    let commits = disk.lock().unwrap().commits;
    let disks = volumes(&agents);
    cluster.end().await;
    (commits, disks)
}

/// Volumes on disks, by resource: which nodes were chosen is chance.
fn volumes(agents: &Simulated) -> Vec<String> {
    let disks = agents.disks();
    let mut volumes: Vec<String> =
        disks.iter().map(|disk| disk.split_once(' ').unwrap().1.to_owned()).collect();
    volumes.sort();
    volumes
}

async fn killed_at(kill: Kill, script: &[Command], expected: &[String]) {
    let disk = Arc::new(Mutex::new(Disk::default()));
    let (agents, orders) = Simulated::new();
    let orders = tokio::spawn(agents.clone().carry_out_all(orders));
    let mut answered = 0;
    if let Some(cluster) = Cluster::open(&disk, &agents, kill) {
        cluster.connect().await;
        answered = cluster.does(script).await;
        cluster.end().await;
    }
    let (stored, records) = {
        let disk = disk.lock().unwrap();
        (disk.rows.clone(), disk.records.clone())
    };
    for (index, command) in script.iter().enumerate() {
        // Where nothing was stored there is not even a row of the controller.
        let exists = match command {
            Command::ModifyVolumeDefinition { name, .. } => stored.definition(name).is_some(),
            Command::DeleteDefinition { .. } => index <= answered,
            _ => true,
        };
        if !exists {
            continue;
        }
        let there = look(&stored, command);
        assert_ne!(there, There::Half, "{kill:?}: {command:?}");
        // No change without its record, and no record without its change.
        let path = &call(command).begun.path;
        let recorded = records.values().filter(|record| record.path == *path).count();
        let changed = there == There::Whole && index <= answered || index < answered;
        assert_eq!(recorded, usize::from(changed), "{kill:?}: {command:?}");
        if index < answered {
            let gone = matches!(command, Command::Spawn { definition, .. }
                if definition.name == Some(resource("two")))
                && look(&stored, script.last().unwrap()) == There::Whole;
            assert!(there == There::Whole || gone, "{kill:?}: answered, and lost: {command:?}");
        }
    }
    // Another goes on. A client whose call was not answered asks again.
    let cluster = Cluster::open(&disk, &agents, Kill::Never).unwrap();
    cluster.connect().await;
    let mut rest: Vec<Command> = script[answered..].to_vec();
    // Unless what it asked for is there.
    if rest.first().is_some_and(|first| look(&stored, first) == There::Whole) {
        rest.remove(0);
    }
    assert_eq!(cluster.does(&rest).await, rest.len(), "{kill:?}");
    // What was under way when it was killed comes true without anybody asking.
    let begun = std::time::Instant::now();
    while volumes(&agents) != expected || cluster.handle.state().model.definitions().count() != 1 {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{kill:?}: {:?} instead of {expected:?}",
            volumes(&agents)
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // What is shown is stored, also by those that are still at work.
    while cluster.handle.state().model != disk.lock().unwrap().rows {
        assert!(begun.elapsed() < Duration::from_secs(20), "{kill:?}: shown and not stored");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cluster.end().await;
    orders.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_that_was_answered_survives_a_kill_at_every_write() {
    let (commits, expected) = undisturbed().await;
    assert!(!expected.is_empty());
    let script = script();
    // What follows a command is a write of its own.
    assert!(commits > script.len(), "{commits} writes are no test");
    for number in 1..=commits {
        for kill in [Kill::Before(number), Kill::After(number)] {
            killed_at(kill, &script, &expected).await;
        }
    }
    println!("{commits} writes, killed before and after each");
}

/// Two tokens by which nodes join, one of which is used.
fn joining() -> [Command; 3] {
    let token = |digest: &str| Command::CreateJoinToken {
        token: JoinToken { digest: digest.to_owned(), node: None, expires: Millis(u64::MAX) },
    };
    [token("aa"), token("bb"), uses("aa")]
}

fn uses(digest: &str) -> Command {
    Command::UseJoinToken { digest: digest.to_owned(), node: node("n1") }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_used_once_however_the_controller_is_killed() {
    // The first write is that of a new cluster.
    for number in 1..=joining().len() + 1 {
        for kill in [Kill::Before(number), Kill::After(number)] {
            let disk = Arc::new(Mutex::new(Disk::default()));
            let (agents, _orders) = Simulated::new();
            let mut answered = 0;
            if let Some(cluster) = Cluster::open(&disk, &agents, kill) {
                answered = cluster.does(&joining()).await;
                cluster.end().await;
            }
            let cluster = Cluster::open(&disk, &agents, Kill::Never).unwrap();
            for (digest, made, used) in [("aa", 1, 3), ("bb", 2, usize::MAX)] {
                let stored = |write| match kill {
                    Kill::Before(number) => number > write,
                    _ => number >= write,
                };
                let first = cluster.handle.carry_out(uses(digest)).await;
                let good = stored(made + 1) && !(used < 4 && stored(used + 1));
                assert_eq!(first.is_ok(), good, "{kill:?}: {digest}");
                assert!(answered < made || first.is_ok() || used < 4, "{kill:?}: {digest} is lost");
                assert!(answered < used || first.is_err(), "{kill:?}: {digest} is good twice");
                let second = cluster.handle.carry_out(uses(digest)).await;
                assert!(second.is_err(), "{kill:?}: {digest} is good for ever");
            }
            cluster.end().await;
        }
    }
}
