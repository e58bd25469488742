//! How long I/O waits when the engine is killed and at once started again, as its supervisor does: by NBD, a
//! loop device with a process of FUSE behind it, and vhost-user. A client of each writes one block after the
//! other; those of NBD and vhost-user go on with the next engine, and look for it every few milliseconds.
//! The figure is the longest that one write took.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::OFlags;
use serde::Serialize;

use super::Options;
use super::cluster::{Cluster, Shape};
use super::faces::{Driver, FACES};
use super::options::Disks;
use super::results::{Machine, Tree, now};
use super::statistics::median;
use crate::process;
use crate::torture::nbd;

/// Of each face.
const DEATHS: usize = 11;
/// Size of the volumes, unless another is asked for.
const MIB: u64 = 256;
/// Bytes of a write.
const BLOCK: usize = 4096;
/// How often a client of NBD looks for the next engine.
const RETRY: Duration = Duration::from_millis(5);
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long clients write before the engine is killed.
const BEFORE: Duration = Duration::from_millis(500);

/// All of it, as `--json` prints it.
#[derive(Serialize)]
struct Results {
    time: String,
    tree: Tree,
    machine: Machine,
    replicas: usize,
    rows: Vec<Row>,
}

/// The deaths of an engine that was used by one face.
#[derive(Serialize)]
struct Row {
    face: &'static str,
    /// Milliseconds: of all deaths, sorted.
    waited_ms: Vec<f64>,
    median_ms: f64,
}

/// What a client has seen.
#[derive(Clone, Copy)]
struct Seen {
    /// When its last write was answered.
    answered: Instant,
    /// The longest that one took.
    longest: Duration,
}

/// Somebody who writes.
enum Client {
    Nbd { socket: PathBuf, open: Option<nbd::Client> },
    Loop { device: File, block: Vec<u8> },
    Vhost(Box<Driver>),
}

impl Client {
    fn on_device(path: &Path) -> Result<Client> {
        let direct =
            OpenOptions::new().write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path);
        let device = direct.with_context(|| path.display().to_string())?;
        Ok(Client::Loop { device, block: vec![0x5a; 2 * BLOCK] })
    }

    /// Writes a block, and returns when that is answered.
    fn write(&mut self, number: u64, mib: u64) -> Result<()> {
        let offset = number % (mib << 8) * BLOCK as u64;
        match self {
            Client::Nbd { socket, open } => {
                let begun = Instant::now();
                let block = [0x5a; BLOCK];
                loop {
                    let tried = match open {
                        Some(client) => client.write(offset, &block),
                        None => nbd::Client::open(socket, "r0", PATIENCE)
                            .and_then(|client| open.insert(client).write(offset, &block)),
                    };
                    let Err(error) = tried else { return Ok(()) };
                    ensure!(begun.elapsed() < PATIENCE, "no engine answers: {error}");
                    *open = None;
                    std::thread::sleep(RETRY);
                }
            }
            Client::Loop { device, block } => {
                // Direct I/O wants memory at an address of its own alignment.
                let from = block.as_ptr().align_offset(BLOCK);
                device.write_all_at(&block[from..from + BLOCK], offset).context("the device")
            }
            Client::Vhost(driver) => driver.write(mib),
        }
    }
}

/// The measurement.
pub fn run(program: &Path, options: &Options) -> Result<()> {
    let mib = options.mib.unwrap_or(MIB);
    let parent = super::place::parent(Disks::Ram)?;
    let directory = tempfile::Builder::new().prefix("ashlar-bench").tempdir_in(parent)?;
    let shape = Shape {
        replicas: options.nodes,
        diskless: false,
        volumes: FACES.len(),
        mib,
        sparse: false,
        served: 1,
        net: Vec::new(),
        // A resync does not give way to the clients: the next death waits for it.
        disk: "c-plan-ahead 0; resync-rate 1G; c-min-rate 0;".to_owned(),
        quorum: true,
        engine: &["--threads=1"],
    };
    let mut cluster = Cluster::start(program, directory, shape)?;
    let mut rows = Vec::new();
    for (volume, face) in FACES.into_iter().enumerate() {
        let (client, device) = match face {
            "nbd" => (Client::Nbd { socket: cluster.nbd(0, volume), open: None }, None),
            "loop" => {
                let device = cluster.command(0, &["map", "r1/0", "--face", "fuse"]);
                let device = device.context("a loop device needs root")?;
                (Client::on_device(Path::new(device.trim()))?, Some("r1/0"))
            }
            _ => {
                let socket = cluster.file("vhost");
                let path = socket.display().to_string();
                cluster.command(0, &["export", "r2/0", "--vhost-user", &path])?;
                (Client::Vhost(Box::new(Driver::new(&socket)?)), None)
            }
        };
        let waited = deaths(&mut cluster, client, mib).with_context(|| face.to_owned());
        if let Some(volume) = device {
            cluster.command(0, &["unmap", volume])?;
        }
        rows.push(Row::new(face, &waited?)?);
    }
    let (time, tree, machine) = (now()?, Tree::here()?, Machine::here()?);
    let results = Results { time, tree, machine, replicas: options.nodes, rows };
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&results)?),
        false => print(&results),
    }
    Ok(())
}

/// Kills the engine under the client, again and again. Returns the longest wait of each death.
fn deaths(cluster: &mut Cluster, mut client: Client, mib: u64) -> Result<Vec<Duration>> {
    client.write(0, mib)?;
    let seen = Mutex::new(Seen { answered: Instant::now(), longest: Duration::ZERO });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<()> {
            for number in 1.. {
                let made = Instant::now();
                client.write(number, mib)?;
                let mut seen = lock(&seen);
                seen.answered = Instant::now();
                seen.longest = seen.longest.max(seen.answered - made);
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            Ok(())
        });
        let mut waited = Vec::new();
        let killed = (0..DEATHS).try_for_each(|_| {
            process::check_signals()?;
            cluster.settle()?;
            std::thread::sleep(BEFORE);
            lock(&seen).longest = Duration::ZERO;
            cluster.kill(0)?;
            let started = Instant::now();
            while lock(&seen).answered < started {
                if writer.is_finished() || started.elapsed() > PATIENCE {
                    bail!("nothing is answered any more");
                }
                std::thread::sleep(RETRY);
            }
            waited.push(lock(&seen).longest);
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        let written = writer.join().map_err(|_| anyhow::anyhow!("the client has panicked"))?;
        written.and(killed).map(|()| waited)
    })
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn print(results: &Results) {
    let Results { replicas, rows, .. } = results;
    println!(
        "{replicas} replicas in memory; the longest that a write waits when the engine is killed and at once \
         started again, of {DEATHS} deaths"
    );
    println!("| face | median | longest |");
    println!("|---|---|---|");
    for Row { face, waited_ms, median_ms } in rows {
        let longest = waited_ms.last().copied().unwrap_or_default();
        println!("| {face} | {median_ms:.0} ms | {longest:.0} ms |");
    }
}

impl Row {
    fn new(face: &'static str, waited: &[Duration]) -> Result<Row> {
        let mut waited_ms: Vec<f64> = waited.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        waited_ms.sort_by(f64::total_cmp);
        let median_ms = median(&waited_ms).context("there are deaths")?;
        Ok(Row { face, waited_ms, median_ms })
    }
}
