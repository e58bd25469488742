//! The story: what is done to the cluster, what is observed, and what it comes to.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use surfaces::cli::why;
use vocab::Role;

use super::NodeNr;
use super::block::BLOCK;
use super::cluster::{
    Cluster, DISKFUL, DISKLESS, Places, RESOURCE, device, is_healthy, name, sees, towards,
};
use super::leftovers::Leftovers;
use super::nbd::Connection;
use super::random::Random;
use super::replicas;
use super::screen::{Screen, count, size, time};
use super::summary::Summary;
use super::watch::Watch;
use super::workload::{DEPTH, Ended, Running, Workload};

/// Steps of the story.
pub const STEPS: usize = 7;

/// How long an export may take to open; a promotion is part of it.
const OPEN: Duration = Duration::from_secs(20);
/// A step that waits for a number of writes is content with fewer after this time, so that a slow
/// disk does not make a long story.
const ENOUGH: Duration = Duration::from_secs(4);
/// How long a suspension is looked at.
const LOOK: Duration = Duration::from_millis(700);
/// How often the numbers on the screen change.
const TICK: Duration = Duration::from_millis(5);

/// What a run is given.
pub struct Setting<'a> {
    /// Where everything goes.
    pub places: Places,
    /// Size of each disk.
    pub disk_bytes: u64,
    /// Decides everything that is not given.
    pub seed: u64,
    /// The cluster is to live on.
    pub keep: bool,
    /// What is cleaned up by the caller.
    pub leftovers: Leftovers,
    /// Set by signals.
    pub interrupted: Arc<AtomicBool>,
    /// Where it is told.
    pub screen: &'a mut Screen,
}

/// Who plays which part.
#[derive(Clone, Copy, Debug)]
struct Cast {
    /// Primary at first.
    first: NodeNr,
    /// Secondary that is killed.
    victim: NodeNr,
    /// Primary after the first.
    second: NodeNr,
}

struct Story<'a> {
    cluster: Cluster,
    screen: &'a mut Screen,
    random: Random,
    cast: Cast,
    volume_bytes: u64,
}

/// Tells the story.
///
/// # Errors
/// If something could not be done, or did not happen. Lost and stale data is no error but part of
/// the summary.
pub fn tell(setting: Setting<'_>) -> anyhow::Result<Summary> {
    let begin = Instant::now();
    let Setting { places, disk_bytes, seed, keep, leftovers, interrupted, screen } = setting;
    let mut random = Random::new(seed);
    let cast = cast(&mut random);
    screen.line(&format!(
        "{}: a volume on three nodes, 127.0.0.1 to 127.0.0.3; seed {seed}, disks of {} in {}",
        screen.strong("ashlar demo"),
        size(disk_bytes),
        places.disks.display()
    ));
    let cluster = Cluster::prepare(places, disk_bytes, leftovers, interrupted)?;
    let mut story = Story { cluster, screen, random, cast, volume_bytes: 0 };

    story.create()?;
    let application = Workload::new(story.random.next(), story.volume_bytes);
    let running = story.write(application)?;
    let (running, resync_bytes) = story.lose_a_secondary(running)?;
    let (running, takeover) = story.lose_the_primary(running)?;
    let running = story.work_without_a_disk(running)?;
    let application = story.lose_the_majority(running)?;
    let mut summary = story.prove(application)?;
    summary.takeover_ms = takeover.as_millis() as u64;
    summary.resync_bytes = resync_bytes;
    if keep {
        story.release(&mut summary)?;
    }
    summary.show(story.screen, begin.elapsed());
    if keep {
        story.explain_use(&summary);
    }
    Ok(summary)
}

fn cast(random: &mut Random) -> Cast {
    let first = random.below(DISKFUL.into()) as NodeNr + 1;
    let others: Vec<NodeNr> = (1..=DISKFUL).filter(|node| *node != first).collect();
    let mut other = || others[random.below(others.len() as u64) as usize];
    Cast { first, victim: other(), second: other() }
}

impl Story<'_> {
    /// Step 1.
    fn create(&mut self) -> anyhow::Result<()> {
        self.screen.step("Three nodes create a volume");
        let begin = Instant::now();
        for node in 1..=DISKFUL {
            self.screen.now(|| format!("starting {}", name(node)));
            self.cluster.start(node)?;
        }
        let pids: Vec<_> = self.cluster.pids().values().map(u32::to_string).collect();
        self.screen.note(&format!("three engines started, processes {}", pids.join(", ")));
        for node in 1..=DISKFUL {
            self.cluster.command(node, &["create-md", RESOURCE])?;
            self.cluster.bring_up(node)?;
        }
        self.screen.now(|| "connecting".to_owned());
        self.cluster.until("the nodes to connect", |cluster| {
            for node in 1..=DISKFUL {
                let status = cluster.status(node)?;
                if others(node).any(|peer| !sees(&status, peer)) {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        // The disks are new and all zero, so there is nothing to copy at first.
        let volume = format!("{RESOURCE}/0");
        self.cluster.command(1, &["new-current-uuid", "--clear-bitmap", &volume])?;
        self.cluster.until("the disks to be UpToDate", |c| is_whole(c, DISKFUL))?;
        let bytes = device(&self.cluster.status(1)?).size * 1024;
        self.screen.note(&format!(
            "volume of {} created in {}, UpToDate on all three, protocol C, quorum majority",
            size(bytes),
            time(begin.elapsed())
        ));
        self.volume_bytes = bytes - bytes % BLOCK as u64;
        Ok(())
    }

    /// Step 2.
    fn write(&mut self, application: Workload) -> anyhow::Result<Running> {
        self.screen.step("An application writes");
        let Cast { first, .. } = self.cast;
        let connection = self.open(first)?;
        let role = self.cluster.status(first)?.role;
        ensure!(role == Role::Primary, "{} is {role} although its export is open", name(first));
        self.screen.note(&format!(
            "it opened {}, which made {} Primary",
            self.cluster.nbd_uri(first),
            name(first)
        ));
        let running = application.start(connection);
        let begin = Instant::now();
        let writes = 3_000 + self.random.below(2_000);
        self.until_written(&running, writes)?;
        let (done, took) = (running.acknowledged(), begin.elapsed());
        self.screen.note(&format!(
            "{} writes of 4 KiB acknowledged in {}, {DEPTH} requests in flight ({} per second)",
            count(done),
            time(took),
            count((done as f64 / took.as_secs_f64()) as u64)
        ));
        Ok(running)
    }

    /// Step 3. Returns what was resynced, in bytes.
    fn lose_a_secondary(&mut self, running: Running) -> anyhow::Result<(Running, u64)> {
        let Cast { first, victim, .. } = self.cast;
        self.screen.step("A secondary dies and returns");
        let before = running.acknowledged();
        self.cluster.kill(victim)?;
        self.screen.note(&format!(
            "{} killed (SIGKILL) with {} requests in flight",
            name(victim),
            running.in_flight()
        ));
        let writes = 3_000 + self.random.below(3_000);
        self.until_written(&running, before + writes)?;
        let meanwhile = running.acknowledged() - before;
        let missed = towards(&self.cluster.status(first)?, victim).map_or(0, |p| p.out_of_sync);
        self.screen.note(&format!(
            "{} writes acknowledged meanwhile; {} marked as missed by {}",
            count(meanwhile),
            size(missed * 1024),
            name(victim)
        ));
        let bytes = self.bring_back(first, victim, &running)?;
        Ok((running, bytes))
    }

    /// Restarts a node and waits until it is as good as `primary`. Returns what it had to copy.
    fn bring_back(
        &mut self,
        primary: NodeNr,
        node: NodeNr,
        running: &Running,
    ) -> anyhow::Result<u64> {
        let begin = Instant::now();
        self.cluster.start(node)?;
        let watch = Watch::start(&self.cluster.places().socket(node))?;
        self.screen.now(|| format!("{} is back and resyncs", name(node)));
        let mut connected = None;
        self.cluster.until(&format!("{} to be resynced", name(node)), |cluster| {
            if connected.is_none() && sees(&cluster.status(primary)?, node) {
                connected = Some(Instant::now());
            }
            Ok(connected.is_some() && is_whole(cluster, DISKFUL)? && watch.is_idle())
        })?;
        ensure!(
            !running.is_over(),
            "the application lost its volume while {} resynced",
            name(node)
        );
        let connected = connected.expect("it was seen");
        let bytes = watch.copied();
        self.screen.note(&format!(
            "{} restarted; connected after {}, resynced {} of {} in {}, with writes going on",
            name(node),
            time(connected - begin),
            size(bytes),
            size(self.volume_bytes),
            time(connected.elapsed())
        ));
        Ok(bytes)
    }

    /// Step 4. Returns how long the application had to wait.
    fn lose_the_primary(&mut self, running: Running) -> anyhow::Result<(Running, Duration)> {
        let Cast { first, second, .. } = self.cast;
        self.screen.step("The primary dies");
        let writes = running.acknowledged() + 500 + self.random.below(1_000);
        self.until_written(&running, writes)?;
        let moment = self.cluster.kill(first)?;
        let Ended { workload, lost, abandoned } = running.wait();
        lost.context("the application did not notice that its server died")?;
        self.screen.note(&format!(
            "{} killed (SIGKILL); {abandoned} requests will never be answered",
            name(first)
        ));
        let connection = self.open(second)?;
        let running = workload.start(connection);
        self.until_written(&running, 1)?;
        let answered = running.first_acknowledged().context("a write was acknowledged")?;
        let takeover = answered - moment;
        self.screen.note(&format!(
            "the application went to {}: first write acknowledged {} after the kill",
            name(second),
            time(takeover)
        ));
        let writes = 1_500 + self.random.below(1_500);
        self.until_written(&running, writes)?;
        self.bring_back(second, first, &running)?;
        Ok((running, takeover))
    }

    /// Step 5.
    fn work_without_a_disk(&mut self, running: Running) -> anyhow::Result<Running> {
        let Cast { second, .. } = self.cast;
        self.screen.step("A node without a disk joins");
        let application = self.stop(running)?;
        self.cluster.start(DISKLESS)?;
        self.cluster.bring_up(DISKLESS)?;
        self.cluster.until("the diskless node to connect", |c| is_whole(c, DISKLESS))?;
        let before = application.counts.reads;
        let connection = self.open(DISKLESS)?;
        let status = self.cluster.status(DISKLESS)?;
        let (role, disk) = (status.role, device(&status).disk_state);
        let running = application.start(connection);
        let begin = Instant::now();
        let writes = 1_000 + self.random.below(1_000);
        self.until_written(&running, writes)?;
        let (done, took) = (running.acknowledged(), begin.elapsed());
        let application = self.stop(running)?;
        self.screen.note(&format!(
            "{} on 127.0.0.{DISKLESS} is {role} and {disk}: {} writes and {} reads over the \
             network in {}",
            name(DISKLESS),
            count(done),
            count(application.counts.reads - before),
            time(took)
        ));
        let connection = self.open(second)?;
        self.screen.note(&format!("the application went back to {}", name(second)));
        Ok(application.start(connection))
    }

    /// Step 6.
    fn lose_the_majority(&mut self, running: Running) -> anyhow::Result<Workload> {
        let Cast { second, .. } = self.cast;
        self.screen.step("A partition leaves the primary in a minority");
        let writes = 500 + self.random.below(1_000);
        self.until_written(&running, writes)?;
        self.cluster.network().isolate(second);
        let cut = Instant::now();
        self.screen.note(&format!("every link of {} is cut", name(second)));
        self.screen.now(|| "waiting for the nodes to notice".to_owned());
        self.cluster.until("I/O to be suspended", |c| Ok(c.status(second)?.suspended.quorum))?;
        let (after, waiting) = (running.acknowledged(), running.in_flight());
        let status = self.cluster.status(second)?;
        ensure!(!device(&status).quorum, "I/O is suspended although there is quorum");
        self.screen.note(&format!(
            "{} later {} suspends I/O: {waiting} requests wait, none fails",
            time(cut.elapsed()),
            name(second)
        ));
        self.screen.note(&format!("`ashlar why {RESOURCE}` there: {}", explain(&status)?));
        self.cluster.until("the others to notice", |cluster| {
            for node in others(second) {
                if sees(&cluster.status(node)?, second) {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        let mut majority = Vec::new();
        for node in others(second) {
            let status = self.cluster.status(node)?;
            ensure!(device(&status).quorum, "{} has lost quorum with the majority", name(node));
            majority.push(name(node));
        }
        self.screen.note(&format!(
            "the other side ({}) is a majority and keeps quorum: it could take over",
            majority.join(", ")
        ));
        std::thread::sleep(LOOK);
        self.cluster.check()?;
        let unsafe_writes = running.acknowledged() - after;
        ensure!(unsafe_writes == 0, "{unsafe_writes} writes were acknowledged without quorum");

        self.cluster.network().heal(second);
        let healed = Instant::now();
        self.screen.now(|| "reconnecting".to_owned());
        self.until_written(&running, after + waiting.max(1))?;
        let answered = healed.elapsed();
        self.cluster.until("all to be resynced", |c| is_whole(c, DISKLESS))?;
        self.screen.note(&format!(
            "links mended: {} after that the waiting requests were done, I/O goes on",
            time(answered)
        ));
        self.stop(running)
    }

    /// Step 7.
    fn prove(&mut self, mut application: Workload) -> anyhow::Result<Summary> {
        self.screen.step("Proof");
        let (Cast { first, .. }, volume_bytes) = (self.cast, self.volume_bytes);
        let mut connection = self.open(first)?;
        let (screen, cluster) = (&mut *self.screen, &self.cluster);
        let old = application.read_back(&mut connection, &mut |done, all| {
            screen.now(|| format!("reading back, {} of {}", count(done as u64), count(all as u64)));
            cluster.check().is_ok()
        });
        self.cluster.check()?;
        let old = old.with_context(|| format!("reading back on {}", name(first)))?;
        connection.close(OPEN)?;
        self.screen.note(&format!(
            "{} written blocks read back on {}: {} not as acknowledged",
            count(application.ledger.written().len() as u64),
            name(first),
            count(old)
        ));
        self.cluster.until("everything to be quiet", |c| is_whole(c, DISKLESS))?;
        for node in (1..=DISKLESS).rev() {
            self.screen.now(|| format!("ending {}", name(node)));
            self.cluster.shut_down(node)?;
        }
        let disks: Vec<_> = (1..=DISKFUL).map(|node| self.cluster.places().disk(node)).collect();
        let (screen, ledger) = (&mut *self.screen, &application.ledger);
        let found = replicas::compare(&disks, volume_bytes, |b| ledger.knows(b), &mut |at| {
            screen.now(|| format!("comparing the disks, {} of {}", size(at), size(volume_bytes)));
        })?;
        let replicas::Comparison { different, stray } = found;
        self.screen.note(&match different {
            0 => format!("engines ended; the three disks hold the same {}", size(volume_bytes)),
            n => format!("engines ended; {} blocks are not the same on all disks", count(n)),
        });
        if stray > 0 {
            self.screen.note(&format!("{} blocks hold data that nobody wrote", count(stray)));
        }
        for incident in &application.incidents {
            self.screen.note(&self.screen.verdict(incident, false));
        }
        let counts = application.counts;
        ensure!(counts.errors == 0, "{} requests were answered with an error", counts.errors);
        Ok(Summary {
            acked_writes: application.ledger.acknowledged(),
            lost: old + counts.wrong + stray,
            stale: counts.stale,
            takeover_ms: 0,
            resync_bytes: 0,
            volume_bytes,
            replicas_identical: different == 0,
            nbd_uris: Vec::new(),
            engine_pids: Vec::new(),
        })
    }

    /// Leaves a cluster behind.
    fn release(&mut self, summary: &mut Summary) -> anyhow::Result<()> {
        self.screen.now(|| "starting the cluster again".to_owned());
        self.cluster.release()?;
        self.cluster.until("the cluster to be whole again", |c| is_whole(c, DISKLESS))?;
        let pids = self.cluster.pids();
        let first = self.cast.first;
        let order = std::iter::once(first).chain((1..=DISKLESS).filter(|node| *node != first));
        for node in order {
            summary.nbd_uris.push(self.cluster.nbd_uri(node));
            summary.engine_pids.push(pids[&node]);
        }
        Ok(())
    }

    /// How to use the cluster that is left behind.
    fn explain_use(&mut self, summary: &Summary) {
        let places = self.cluster.places().clone();
        let first = self.cast.first;
        let (uri, address) = (self.cluster.nbd_uri(first), self.cluster.nbd(first));
        let pids: Vec<_> = summary.engine_pids.iter().map(u32::to_string).collect();
        let mut folders = vec![places.run.display().to_string()];
        if places.disks != places.run {
            folders.push(places.disks.display().to_string());
        }
        let tool = std::env::current_exe().map_or("ashlar".into(), |p| p.display().to_string());
        let (screen, at) = (&mut *self.screen, places.socket(first));
        screen.line("");
        screen.line("The cluster runs on. Whoever opens one of these makes its node Primary:");
        for uri in &summary.nbd_uris {
            screen.line(&format!("  {uri}"));
        }
        screen.line("");
        for line in [
            format!(
                "fio --name=demo --ioengine=nbd --uri={uri} --rw=randwrite --bs=4k \
                     --iodepth=32 --size=64m"
            ),
            format!("qemu-img info {uri}"),
            format!("nbd-client {} {} /dev/nbd0 -N {RESOURCE}", address.ip(), address.port()),
            format!("{tool} --socket {} status", at.display()),
        ] {
            screen.line(&format!("  {line}"));
        }
        screen.line("");
        screen.line("To end it:");
        screen.line(&format!("  kill {}; rm -r {}", pids.join(" "), folders.join(" ")));
    }

    /// Opens the export of a node; tries again while the node is not allowed to serve.
    fn open(&mut self, node: NodeNr) -> anyhow::Result<Connection> {
        let address = self.cluster.nbd(node);
        self.screen.now(|| format!("opening {}", self.cluster.nbd_uri(node)));
        let end = Instant::now() + OPEN;
        loop {
            self.cluster.check()?;
            match Connection::open(address, RESOURCE, OPEN) {
                Ok(connection) => {
                    let size = connection.size();
                    ensure!(size >= self.volume_bytes, "{} serves only {size} bytes", name(node));
                    return Ok(connection);
                }
                Err(e) if Instant::now() > end => {
                    return Err(e)
                        .with_context(|| format!("opening {}", self.cluster.nbd_uri(node)));
                }
                Err(_) => std::thread::sleep(TICK),
            }
        }
    }

    /// Ends the application's connection in order and waits until nobody is Primary.
    fn stop(&mut self, running: Running) -> anyhow::Result<Workload> {
        let Ended { workload, lost, .. } = running.stop();
        if let Some(e) = lost {
            return Err(e).context("the application lost its volume");
        }
        let up: Vec<NodeNr> = self.cluster.pids().into_keys().collect();
        self.cluster.until("the volume to be closed", |cluster| {
            for node in &up {
                if cluster.status(*node)?.role == Role::Primary {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        Ok(workload)
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
            self.cluster.check()?;
            ensure!(!running.is_over(), "the application lost its volume");
            ensure!(!self.screen.is_broken(), "nobody reads the output");
            if begin.elapsed() > OPEN {
                bail!("no write was acknowledged for {} s", OPEN.as_secs());
            }
            std::thread::sleep(TICK);
        }
    }
}

/// Nodes with a disk other than `node`.
fn others(node: NodeNr) -> impl Iterator<Item = NodeNr> {
    (1..=DISKFUL).filter(move |other| *other != node)
}

/// True if nodes 1 to `last` are all connected with each other, and find every disk UpToDate and
/// equal to their own.
fn is_whole(cluster: &mut Cluster, last: NodeNr) -> anyhow::Result<bool> {
    for node in 1..=last {
        let status = cluster.status(node)?;
        if (1..=last).any(|peer| peer != node && !sees(&status, peer)) || !is_healthy(&status) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Why I/O is suspended, in the words of `ashlar why`.
fn explain(status: &codec::admin::ResourceStatus) -> anyhow::Result<String> {
    let findings = why::explain(status);
    let suspension = findings.iter().find(|f| f.fact.contains("suspended"));
    let found = suspension.context("`ashlar why` does not explain the suspension")?;
    Ok(format!("{}; {}", found.fact, found.reason))
}
