//! The story of a control plane: what an operator does, what applications see of it, and what it
//! comes to. Every volume is written by an application that keeps a ledger; whatever is told at the
//! end was read back.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use codec::admin::{ConnectionStatus, ResourceStatus};
use vocab::ConnState;

use super::super::block::BLOCK;
use super::super::nbd::Connection;
use super::super::random::Random;
use super::super::replicas;
use super::super::screen::{Screen, count, size, time};
use super::super::story::Setting;
use super::super::workload::{Ended, Running, Workload};
use super::observe::{Node, NodeInfo, Pool, Volume};
use super::plane::{NAMES, Plane};
use super::summary::Summary;

/// Steps of the story.
pub const STEPS: usize = 6;

/// Volumes.
const VOLUMES: usize = 20;
/// How many are spawned at the same time.
const OPERATORS: usize = 4;
/// Replicas of each.
const PLACE: usize = 2;
/// The group that they are spawned from.
const GROUP: &str = "db";
/// The pool on each node.
const POOL: &str = "disks";
/// The snapshot, and the volume that is made of it.
const SNAPSHOT: &str = "before";
const RESTORED: &str = "restored";

/// Writes to each volume that is not the busy one.
const WRITES: u64 = 100;
/// How long an export may take to open; a promotion is part of it.
const OPEN: Duration = Duration::from_secs(20);
/// A step that waits for a number of writes is content with fewer after this time.
const ENOUGH: Duration = Duration::from_secs(3);
/// How often the numbers on the screen change.
const TICK: Duration = Duration::from_millis(5);

/// The options that make failures show within seconds. The defaults are for networks that are slow
/// and machines that are busy; here all is local. By default a resync would give way to the workload
/// for minutes.
const OPTIONS: [&str; 4] = [
    "DrbdOptions/Net/timeout=9",
    "DrbdOptions/Net/ping-int=1",
    "DrbdOptions/Net/connect-int=1",
    "DrbdOptions/PeerDevice/c-min-rate=0",
];

/// What is known of a volume.
struct Written {
    name: String,
    application: Workload,
    bytes: u64,
}

struct Story<'a> {
    plane: Plane,
    screen: &'a mut Screen,
    random: Random,
    volume_bytes: u64,
    summary: Summary,
}

/// Tells the story.
///
/// # Errors
/// If something could not be done, or did not happen. Lost and stale data is no error but part of
/// the summary.
pub fn tell(setting: Setting<'_>) -> anyhow::Result<Summary> {
    let begin = Instant::now();
    let Setting { places, disk_bytes, seed, keep, leftovers, interrupted, screen } = setting;
    let plane = Plane::prepare(places, keep, leftovers, interrupted)?;
    let own = if plane.pools.mounted { ", an XFS for the time of the run" } else { "" };
    screen.line(&format!(
        "{}: a controller and three nodes, {} to {}; seed {seed}, pools in {}{own}",
        screen.strong("ashlar demo --cluster"),
        plane.of(NAMES[0]),
        plane.of(NAMES[2]),
        plane.pools.folder.display()
    ));
    screen.line(&match &plane.network.namespaces {
        Ok(()) => "Each node is in a network namespace of its own.".to_owned(),
        Err(why) => {
            format!("All are on the loopback interface, without network namespaces: {why}.")
        }
    });
    let (random, mut summary) = (Random::new(seed), Summary::default());
    summary.namespaces = plane.network.namespaces.is_ok();
    let mut story = Story { plane, screen, random, volume_bytes: disk_bytes, summary };
    story.bring_nodes_in()?;
    let mut others = story.spawn()?;
    let busy = others.remove(0);
    let (busy, first, running, second) = story.drain(busy)?;
    let (busy, mut application) = story.lose_a_node(busy, running, &first, &second)?;
    application = story.snapshot(&busy, application, &second)?;
    others.insert(0, Written { name: busy.name, application, bytes: busy.bytes });
    story.prove(others)?;
    let Story { plane, screen, mut summary, .. } = story;
    if keep {
        summary.controller = Some(plane.url());
    }
    summary.show(screen, begin.elapsed());
    if keep {
        explain_use(&plane, screen);
    }
    Ok(summary)
}

impl Story<'_> {
    /// Step 1: three of the five commands.
    fn bring_nodes_in(&mut self) -> anyhow::Result<()> {
        self.screen.step("Three bare nodes become a cluster");
        let begin = Instant::now();
        self.screen.now(|| "starting the controller".to_owned());
        self.plane.start_controller()?;
        self.plane.ask(&[&["property", "set", "controller"][..], &OPTIONS].concat())?;
        let nodes: Vec<String> =
            NAMES.iter().map(|name| format!("{name}={}", self.plane.of(name))).collect();
        let link = self.plane.link().to_string();
        let mut create = vec!["node", "create", "--invite", &link];
        create.extend(nodes.iter().map(String::as_str));
        let invited = self.plane.ask(&create)?;
        self.say("node create alpha=… bravo=… charlie=… --invite CONTROLLER");
        for (name, line) in NAMES.iter().zip(invited.lines()) {
            let token = line.rsplit(' ').next().unwrap_or_default();
            self.screen.now(|| format!("{name} joins"));
            self.plane.start_engine(name)?;
            let agent = self.plane.agent(name);
            let agent = agent.to_str().context("the folder's name is not UTF-8")?;
            self.plane.join(name, token, agent)?;
            self.plane.start_agent(name)?;
        }
        self.say("node join TOKEN, on each node");
        self.plane.until_told("the nodes to be online", &["node", "list"], |all: &Vec<Node>| {
            all.iter().filter(|node| node.state == "online").count() == NAMES.len()
        })?;
        let provider = self.plane.pools.provider();
        for name in NAMES {
            let folder = self.plane.pools.of(name);
            let folder = folder.to_str().context("the folder's name is not UTF-8")?;
            self.plane.ask(&["storage-pool", "create", POOL, provider, folder, "--on", name])?;
        }
        self.say(&format!("storage-pool create {POOL} {provider} FOLDER"));
        self.plane.until_told("the pools", &["storage-pool", "list"], |all: &Vec<Pool>| {
            let good = |pool: &&Pool| pool.total_kib > Some(0) && pool.problems.is_empty();
            all.iter().filter(good).count() == NAMES.len()
        })?;
        let place = PLACE.to_string();
        self.plane.ask(&["resource-group", "create", GROUP, "--place", &place, "--pool", POOL])?;
        self.say(&format!("resource-group create {GROUP} --place {PLACE} --pool {POOL}"));
        self.screen.note(&format!("three nodes are online after {}", time(begin.elapsed())));
        Ok(())
    }

    fn say(&mut self, command: &str) {
        let line = self.screen.faint(&format!("$ ashlar {command}"));
        self.screen.note(&line);
    }

    /// Step 2.
    fn spawn(&mut self) -> anyhow::Result<Vec<Written>> {
        self.screen.step("Twenty volumes are spawned and written");
        let size_text = format!("{}K", self.volume_bytes / 1024);
        let names: Vec<String> = (1..=VOLUMES).map(|number| format!("vol{number:02}")).collect();
        self.screen.now(|| format!("spawning {VOLUMES} volumes"));
        let (begin, plane) = (Instant::now(), &self.plane);
        let spawn = |names: &[String]| -> anyhow::Result<Vec<Duration>> {
            let one = |name: &String| {
                let begin = Instant::now();
                plane.ask(&["resource-group", "spawn", GROUP, name, &size_text])?;
                Ok(begin.elapsed())
            };
            names.iter().map(one).collect()
        };
        let mut took = std::thread::scope(|scope| {
            let parts = names.chunks(VOLUMES.div_ceil(OPERATORS));
            let all: Vec<_> = parts.map(|part| scope.spawn(|| spawn(part))).collect();
            let mut took = Vec::new();
            for one in all {
                match one.join() {
                    Ok(part) => took.extend(part?),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            anyhow::Ok(took)
        })?;
        took.sort_unstable();
        let (half, all) = (took[took.len() / 2], begin.elapsed());
        self.say(&format!("resource-group spawn {GROUP} vol01 {}", size(self.volume_bytes)));
        let volumes = self.volumes()?;
        ensure!(volumes.len() == VOLUMES, "{} volumes are listed", volumes.len());
        for volume in &volumes {
            let good = volume.is_whole() && volume.replicas.len() == PLACE;
            ensure!(good, "{} is {} on {:?}", volume.volume, volume.state, volume.replicas);
        }
        self.screen.note(&format!(
            "{VOLUMES} volumes of {}, each UpToDate on {PLACE} nodes, in {}; half of them within {}",
            size(self.volume_bytes),
            time(all),
            time(half)
        ));
        self.summary.volumes = VOLUMES as u64;
        self.summary.spawn_ms = half.as_millis() as u64;
        let mut written = Vec::new();
        for name in names {
            self.screen.now(|| format!("writing {name}"));
            let node = self.random_replica(&name)?;
            let connection = self.open(&node, &name)?;
            let bytes = connection.size() - connection.size() % BLOCK as u64;
            ensure!(bytes >= self.volume_bytes, "{name} has only {bytes} bytes");
            let running = Workload::new(self.random.next(), bytes).start(connection);
            self.until_written(&running, WRITES)?;
            let application = self.close(running, &node, &name)?;
            written.push(Written { name, application, bytes });
        }
        let writes = written.iter().map(|one| one.application.ledger.acknowledged()).sum();
        self.screen.note(&format!("{} writes acknowledged over NBD", count(writes)));
        Ok(written)
    }

    /// Step 3. Returns the node that was drained, the application at work on another one, and that.
    fn drain(&mut self, busy: Written) -> anyhow::Result<(Rest, String, Running, String)> {
        self.screen.step("A node is drained while a volume is written there");
        let Written { name, application, bytes } = busy;
        let first = self.random_replica(&name)?;
        let connection = self.open(&first, &name)?;
        let running = application.start(connection);
        self.until_written(&running, 500)?;
        let had = self.replicas_on(&first)?;
        let (begin, before) = (Instant::now(), running.acknowledged());
        self.plane.ask(&["node", "drain", &first, "--no-wait"])?;
        self.say(&format!("node drain {first}"));
        let info = ["node", "info", &first];
        self.screen.now(|| format!("{had} replicas leave {first}"));
        let what = format!("all but {name} to leave {first}");
        self.plane.until_told(&what, &info, |info: &NodeInfo| {
            info.volumes.iter().all(|volume| volume.volume == name)
        })?;
        ensure!(!running.is_over(), "the application lost its volume while {first} was drained");
        let writes = running.acknowledged() - before;
        self.screen.note(&format!(
            "{} of {had} replicas moved in {}, {} writes to {name} meanwhile; it is in use, so it stays",
            had - 1,
            time(begin.elapsed()),
            count(writes)
        ));
        let application = self.close(running, &first, &name)?;
        self.screen.now(|| format!("{name} is closed and moves"));
        self.plane.ask(&["node", "drain", &first])?;
        let left: NodeInfo = self.plane.listed(&info)?;
        ensure!(left.volumes.is_empty(), "{first} still has {:?}", left.volumes);
        let took = begin.elapsed();
        self.screen.note(&format!(
            "{name} was closed, and moved, too: {first} is empty, {} after the drain began",
            time(took)
        ));
        let second = self.random_replica(&name)?;
        let connection = self.open(&second, &name)?;
        let running = application.start(connection);
        self.until_written(&running, 1_000)?;
        self.screen.note(&format!("the application goes on at {second}"));
        self.plane.ask(&["node", "restore", &first])?;
        self.say(&format!("node restore {first}"));
        // Without a tie-breaker that is connected, two replicas have no majority when one is lost.
        self.screen.now(|| format!("{first} becomes a tie-breaker"));
        self.plane.until("a tie-breaker to be connected", || {
            let status = self.plane.on(&second, &["status", &name, "--json"])?;
            let status: Vec<ResourceStatus> = serde_json::from_str(&status)?;
            let connections = status.iter().flat_map(|resource| &resource.connections);
            let connected = |c: &&ConnectionStatus| c.connection_state == ConnState::Connected;
            Ok(connections.filter(connected).count() == NAMES.len() - 1)
        })?;
        self.summary.drained_replicas = had as u64;
        self.summary.drain_ms = took.as_millis() as u64;
        Ok((Rest { name, bytes }, first, running, second))
    }

    /// Step 4. The application goes on while the node dies, and is at rest when replicas are made.
    fn lose_a_node(
        &mut self,
        busy: Rest,
        running: Running,
        first: &str,
        second: &str,
    ) -> anyhow::Result<(Rest, Workload)> {
        self.screen.step("A node is lost");
        let victim = NAMES.into_iter().find(|name| *name != first && *name != second);
        let victim = victim.context("there are three nodes")?;
        let had = self.replicas_on(victim)?;
        let before = running.acknowledged();
        let moment = self.plane.kill(victim)?;
        self.screen
            .note(&format!("engine and agent of {victim} killed (SIGKILL), with {had} replicas"));
        self.screen.now(|| "waiting for the controller to notice".to_owned());
        self.plane.until_told("the node to be offline", &["node", "list"], |all: &Vec<Node>| {
            all.iter().any(|node| node.node == victim && node.state == "offline")
        })?;
        self.plane.ask(&["node", "lost", victim])?;
        self.say(&format!("node lost {victim}"));
        let so_far = running.acknowledged();
        self.until_written(&running, so_far + 500)?;
        let writes = running.acknowledged() - before;
        self.screen.note(&format!("{} writes to {} since the kill", count(writes), busy.name));
        let application = self.close(running, second, &busy.name)?;
        self.screen.now(|| "making the replicas again".to_owned());
        self.plane.ask(&["resource-group", "adjust", GROUP])?;
        self.say(&format!("resource-group adjust {GROUP}"));
        let took = moment.elapsed();
        for volume in self.volumes()? {
            let Volume { volume: name, state, replicas } = &volume;
            let elsewhere = replicas.len() == PLACE && !replicas.iter().any(|node| node == victim);
            ensure!(volume.is_whole() && elsewhere, "{name} is {state} on {replicas:?}");
        }
        self.screen.note(&format!(
            "every volume has {PLACE} UpToDate replicas again, {} after the kill",
            time(took)
        ));
        self.summary.lost_replicas = had as u64;
        self.summary.replaced_ms = took.as_millis() as u64;
        Ok((busy, application))
    }

    /// Step 5: a snapshot, more writes, and a volume that has the content of then.
    fn snapshot(
        &mut self,
        busy: &Rest,
        application: Workload,
        node: &str,
    ) -> anyhow::Result<Workload> {
        self.screen.step("A snapshot becomes a volume");
        if let Some(why) = self.plane.pools.without_snapshots.clone() {
            self.screen.note(&format!("left out: {why}"));
            self.summary.left_out = Some(why);
            return Ok(application);
        }
        let name = busy.name.as_str();
        let mut then = application.clone();
        let begin = Instant::now();
        self.plane.ask(&["snapshot", "create", name, SNAPSHOT])?;
        self.say(&format!("snapshot create {name} {SNAPSHOT}"));
        let taken = begin.elapsed();
        let running = application.start(self.open(node, name)?);
        self.until_written(&running, 1_000)?;
        let since = running.acknowledged();
        let application = self.close(running, node, name)?;
        self.screen.note(&format!("taken in {}; then {} more writes", time(taken), count(since)));
        let begin = Instant::now();
        self.plane.ask(&["snapshot", "restore", name, SNAPSHOT, RESTORED])?;
        self.say(&format!("snapshot restore {name} {SNAPSHOT} {RESTORED}"));
        let made = begin.elapsed();
        let at = self.random_replica(RESTORED)?;
        let bad = self.read_back(&mut then, &at, RESTORED)?;
        let blocks = then.ledger.written().len() as u64;
        self.screen.note(&format!(
            "{RESTORED} is there after {}: {} blocks read on {at}, {} not as they were then",
            time(made),
            count(blocks),
            count(bad)
        ));
        self.tell_incidents(&then);
        self.summary.lost += bad;
        self.summary.snapshot_blocks = Some(blocks);
        Ok(application)
    }

    /// Step 6.
    fn prove(&mut self, mut all: Vec<Written>) -> anyhow::Result<()> {
        self.screen.step("Proof");
        let (mut blocks, mut bad) = (0, 0);
        for Written { name, application, .. } in &mut all {
            let node = self.random_replica(name)?;
            self.screen.now(|| format!("reading {name} back on {node}"));
            bad += self.read_back(application, &node, name)?;
            blocks += application.ledger.written().len() as u64;
        }
        self.screen.note(&format!(
            "{} written blocks of {VOLUMES} volumes read back: {} not as acknowledged",
            count(blocks),
            count(bad)
        ));
        let (mut different, mut stray, mut bytes) = (0, 0, 0);
        for Written { name, application, bytes: own } in &all {
            self.screen.now(|| format!("comparing the replicas of {name}"));
            self.plane.check()?;
            let volume = self.volume(name)?;
            ensure!(volume.is_whole(), "{name} is {}", volume.state);
            let on = volume.replicas.iter();
            let disks: Vec<_> = on.map(|node| self.plane.pools.replica(node, name)).collect();
            let ledger = &application.ledger;
            let found = replicas::compare(&disks, *own, |b| ledger.knows(b), &mut |_| ())?;
            different += found.different;
            stray += found.stray;
            bytes += own;
        }
        self.screen.note(&match different {
            0 => format!("both replicas of each volume hold the same {}", size(bytes)),
            n => format!("{} blocks are not the same on both replicas", count(n)),
        });
        if stray > 0 {
            self.screen.note(&format!("{} blocks hold data that nobody wrote", count(stray)));
        }
        let mut errors = 0;
        for Written { application, .. } in &all {
            self.tell_incidents(application);
            let counts = application.counts;
            errors += counts.errors;
            self.summary.acked_writes += application.ledger.acknowledged();
            self.summary.lost += counts.wrong;
            self.summary.stale += counts.stale;
        }
        self.summary.lost += bad + stray;
        self.summary.replicas_identical = different == 0;
        ensure!(errors == 0, "{errors} requests were answered with an error");
        Ok(())
    }

    fn tell_incidents(&mut self, application: &Workload) {
        for incident in &application.incidents {
            self.screen.note(&self.screen.verdict(incident, false));
        }
    }

    fn volumes(&self) -> anyhow::Result<Vec<Volume>> {
        self.plane.listed(&["volume", "list"])
    }

    fn volume(&self, name: &str) -> anyhow::Result<Volume> {
        let all: Vec<Volume> = self.plane.listed(&["volume", "list", name])?;
        all.into_iter().next().with_context(|| format!("{name} is not listed"))
    }

    /// A node with a replica.
    fn random_replica(&mut self, name: &str) -> anyhow::Result<String> {
        let volume = self.volume(name)?;
        ensure!(!volume.replicas.is_empty(), "{name} has no replica");
        let index = self.random.below(volume.replicas.len() as u64) as usize;
        Ok(volume.replicas[index].clone())
    }

    /// Replicas with data on a node.
    fn replicas_on(&self, node: &str) -> anyhow::Result<usize> {
        let info: NodeInfo = self.plane.listed(&["node", "info", node])?;
        Ok(info.volumes.iter().filter(|volume| volume.part.starts_with("replica")).count())
    }

    /// Serves a volume on a node and opens it; tries again while the node is not allowed to serve.
    fn open(&mut self, node: &str, name: &str) -> anyhow::Result<Connection> {
        let listen = self.plane.nbd(node);
        let text = listen.to_string();
        self.plane.on(node, &["export", name, "--name", name, "--listen", &text])?;
        let end = Instant::now() + OPEN;
        loop {
            self.plane.check()?;
            match Connection::open(listen, name, OPEN) {
                Ok(connection) => return Ok(connection),
                Err(e) if Instant::now() > end => {
                    return Err(e).with_context(|| format!("opening {name} on {node}"));
                }
                Err(_) => std::thread::sleep(TICK),
            }
        }
    }

    /// Ends an application's connection in order, and the export.
    fn close(&mut self, running: Running, node: &str, name: &str) -> anyhow::Result<Workload> {
        let Ended { workload, lost, .. } = running.stop();
        if let Some(e) = lost {
            return Err(e).with_context(|| format!("the application lost {name} on {node}"));
        }
        self.plane.on(node, &["unexport", name])?;
        Ok(workload)
    }

    /// Reads what an application has written; returns how many blocks are old or wrong.
    fn read_back(
        &mut self,
        application: &mut Workload,
        node: &str,
        name: &str,
    ) -> anyhow::Result<u64> {
        let mut connection = self.open(node, name)?;
        let plane = &self.plane;
        let bad = application.read_back(&mut connection, &mut |_, _| plane.check().is_ok());
        self.plane.check()?;
        let bad = bad.with_context(|| format!("reading {name} back on {node}"))?;
        connection.close(OPEN)?;
        self.plane.on(node, &["unexport", name])?;
        Ok(bad)
    }

    /// Lets the application work until so many writes are acknowledged on this connection.
    fn until_written(&mut self, running: &Running, writes: u64) -> anyhow::Result<()> {
        let (begin, at_first) = (Instant::now(), running.acknowledged());
        loop {
            let done = running.acknowledged();
            self.screen.now(|| {
                format!("{} writes acknowledged, {} in flight", count(done), running.in_flight())
            });
            let enough = begin.elapsed() > ENOUGH && done > at_first;
            if done >= writes || enough {
                return Ok(());
            }
            self.plane.check()?;
            ensure!(!running.is_over(), "the application lost its volume");
            ensure!(!self.screen.is_broken(), "nobody reads the output");
            if begin.elapsed() > OPEN {
                bail!("no write was acknowledged for {} s", OPEN.as_secs());
            }
            std::thread::sleep(TICK);
        }
    }
}

/// A volume whose application is at work.
struct Rest {
    name: String,
    bytes: u64,
}

/// How to use the control plane that is left running.
fn explain_use(plane: &Plane, screen: &mut Screen) {
    let tool = std::env::current_exe().map_or("ashlar".into(), |p| p.display().to_string());
    let url = plane.url();
    screen.line("");
    screen.line(&format!("The control plane runs on until Ctrl-C; its REST API is at {url}:"));
    for words in ["node list", "volume list", "resource-group spawn db mine 64M", "volume why mine"]
    {
        screen.line(&format!("  {tool} {words} --controllers {url}"));
    }
    screen.line(&format!("  linstor --controllers {} volume list", url.replace("http", "linstor")));
    let socket = plane.socket(NAMES[0]);
    screen.line(&format!("  {tool} status --socket {}", socket.display()));
}
