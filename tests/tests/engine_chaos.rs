//! Engines are killed, stopped and cut off at random while a client writes. Whatever happens, a
//! block holds the last write that was acknowledged for it, or a later one that was not.
//!
//! `ASHLAR_CHAOS_SECONDS` and `ASHLAR_CHAOS_SEED` choose how long and which run; the seed decides
//! what is done, not how threads interleave.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::engine_support::nbd::Client;
use crate::engine_support::{Cluster, Setup, elapsed, pattern};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 2048;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// What each block may hold, and what happened to it.
struct Model {
    /// Versions that a read may show; 0 is what was there in the beginning.
    possible: Vec<BTreeSet<u64>>,
    history: Vec<Vec<String>>,
    last: u64,
}

impl Model {
    fn new() -> Model {
        let possible = vec![BTreeSet::from([0]); BLOCKS as usize];
        Model { possible, history: vec![Vec::new(); BLOCKS as usize], last: 0 }
    }

    fn note(&mut self, block: u64, what: &str) {
        let line = format!("{:9.3} {what}", elapsed().as_secs_f64());
        self.history[block as usize].push(line);
    }

    fn begin(&mut self, block: u64, node: usize) -> u64 {
        self.last += 1;
        self.possible[block as usize].insert(self.last);
        self.note(block, &format!("write {} on node {node}", self.last));
        self.last
    }

    fn ended(&mut self, block: u64, version: u64, result: &std::io::Result<()>) {
        self.note(block, &format!("write {version} ended: {result:?}"));
        if result.is_ok() {
            self.possible[block as usize] = BTreeSet::from([version]);
        }
    }

    /// A read shows one of the possible versions, and from then on only that one.
    fn observed(&mut self, block: u64, content: &[u8], node: usize) {
        let found = u64::from_le_bytes(content[..8].try_into().unwrap());
        assert!(content == version_bytes(block, found), "block {block} is torn");
        self.note(block, &format!("read {found} on node {node}"));
        let possible = &mut self.possible[block as usize];
        if !possible.contains(&found) {
            let possible = possible.clone();
            let history = self.history[block as usize].join("\n");
            panic!(
                "{:.3}: block {block} holds version {found}, expected {possible:?}:\n{history}",
                elapsed().as_secs_f64()
            );
        }
        *possible = BTreeSet::from([found]);
    }
}

/// The version, then bytes that follow from it.
fn version_bytes(block: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK];
    }
    let mut bytes = pattern(version << 16 | block, BLOCK);
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// Writes and checks through whichever node lets it, until told to stop.
fn client(
    sockets: &[PathBuf],
    stop: &AtomicBool,
    model: &Mutex<Model>,
    acknowledged: &AtomicU64,
    seed: u64,
) {
    let mut random = Random(seed);
    while !stop.load(Ordering::Relaxed) {
        let node = random.below(sockets.len() as u64) as usize;
        let Ok(mut client) = Client::open(&sockets[node], "r0/0") else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        for turn in 0..300 {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let block = random.below(BLOCKS);
            let mut model = model.lock().unwrap();
            if turn < 20 || random.below(4) == 0 {
                match client.read(block * BLOCK as u64, BLOCK) {
                    Ok(content) => model.observed(block, &content, node),
                    Err(_) => break,
                }
                continue;
            }
            let version = model.begin(block, node);
            let result = client.write(block * BLOCK as u64, &version_bytes(block, version));
            model.ended(block, version, &result);
            if result.is_err() {
                break;
            }
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        client.close();
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

#[test]
#[ignore = "long and random: run it with --ignored, as long as you like"]
fn no_acknowledged_write_is_ever_lost() {
    let seed = number("ASHLAR_CHAOS_SEED", u64::from(std::process::id()) | 1);
    let duration = Duration::from_secs(number("ASHLAR_CHAOS_SECONDS", 15));
    println!("ASHLAR_CHAOS_SEED={seed}");
    let setup = Setup {
        sections: "options { quorum majority; on-no-quorum io-error; } \
                   net { ping-int 1; timeout 9; connect-int 1; } disk { c-min-rate 40M; }"
            .to_owned(),
        ..Setup::default()
    };
    let mut cluster = Cluster::up(&setup);
    let sockets: Vec<PathBuf> = cluster.nodes.iter().map(|n| n.export()).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let model = Arc::new(Mutex::new(Model::new()));
    let acknowledged = Arc::new(AtomicU64::new(0));
    let writer = {
        let (sockets, stop) = (sockets.clone(), stop.clone());
        let (model, acknowledged) = (model.clone(), acknowledged.clone());
        std::thread::spawn(move || client(&sockets, &stop, &model, &acknowledged, seed))
    };
    let mut random = Random(seed);
    let start = Instant::now();
    while start.elapsed() < duration && !writer.is_finished() {
        std::thread::sleep(Duration::from_millis(random.below(1500)));
        let node = random.below(3) as usize;
        let pause = Duration::from_millis(random.below(2500));
        let name = cluster.nodes[node].name;
        match random.below(8) {
            0..=3 => {
                println!("{:?} kill {name} for {pause:?}", elapsed());
                cluster.nodes[node].kill();
                std::thread::sleep(pause);
                cluster.nodes[node].start();
            }
            4 => {
                println!("{:?} freeze {name} for {pause:?}", elapsed());
                cluster.nodes[node].signal(libc::SIGSTOP);
                std::thread::sleep(pause);
                cluster.nodes[node].signal(libc::SIGCONT);
            }
            5 => {
                println!("{:?} stop {name} for {pause:?}", elapsed());
                assert!(cluster.nodes[node].stop());
                std::thread::sleep(pause);
                cluster.nodes[node].start();
            }
            _ => {
                let peer = cluster.nodes[(node + 1) % 3].name;
                println!("{:?} cut {name} from {peer} for {pause:?}", elapsed());
                let connection = format!("r0:{peer}");
                cluster.nodes[node].ok(&["disconnect", &connection, "--force"]);
                std::thread::sleep(pause);
                let _ = cluster.nodes[node].cli(&["connect", &connection]);
                // The other end was told not to try again.
                let peer = &cluster.nodes[(node + 1) % 3];
                let _ = peer.cli(&["connect", &format!("r0:{name}")]);
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().expect("the client found every block as it must be");
    for node in &cluster.nodes {
        let _ = node.cli(&["connect", "r0"]);
    }
    cluster.wait_connected();
    cluster.wait("everything is in sync", |c| {
        c.all_up_to_date() && c.nodes.iter().all(|n| n.out_of_sync() == 0)
    });
    let mut client = Client::open(&sockets[0], "r0/0").unwrap();
    let mut model = model.lock().unwrap();
    for block in 0..BLOCKS {
        let content = client.read(block * BLOCK as u64, BLOCK).unwrap();
        model.observed(block, &content, 0);
    }
    client.close();
    cluster.assert_equal(0, &[0, 1, 2]);
    let writes = acknowledged.load(Ordering::Relaxed);
    println!("{writes} writes were acknowledged");
    assert!(writes > 100, "the cluster was writable most of the time");
}
