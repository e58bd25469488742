//! The workload that keeps a ledger: some writers, each with blocks of its own, one request at a
//! time, through whichever node lets them.
//!
//! Every block says which block it is and from which write. Per block the ledger has the newest
//! write that was acknowledged or seen, and the writes that never got an answer: those may take
//! effect or not, but once seen they may not vanish.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::nbd::Client;
use super::random::Random;

/// Size of a block in bytes.
pub const BLOCK: usize = 4096;
/// Writers.
pub const LANES: u64 = 8;
/// Blocks of each writer, spread over the volume.
const BLOCKS: u64 = 1024;
/// One operation in so many is a read.
const READS: u64 = 4;
/// Longer than any freeze: a server that is silent for so long is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts to open an export.
const RETRY: Duration = Duration::from_millis(50);
/// Complaints that are kept.
const COMPLAINTS: usize = 20;

/// What all writers share.
pub struct Shared {
    /// Exports, by node.
    pub exports: Vec<PathBuf>,
    /// Index of the node that is believed to let clients write.
    pub current: AtomicUsize,
    /// Set to end them.
    pub stop: AtomicBool,
    /// Writes acknowledged.
    pub acked: AtomicU64,
    /// Reads that found what they had to find.
    pub reads: AtomicU64,
    /// Reads that found an older write than one acknowledged or seen before.
    pub stale: AtomicU64,
    /// Reads that found bytes no write explains.
    pub wrong: AtomicU64,
    /// Requests that failed or got no answer.
    pub unanswered: AtomicU64,
    /// When a write was acknowledged last, and the longest time without any.
    pub gap: Mutex<(Instant, Duration)>,
    /// What was wrong, in words.
    pub complaints: Mutex<Vec<String>>,
    begin: Instant,
}

impl Shared {
    /// Nothing has happened.
    pub fn new(exports: Vec<PathBuf>, begin: Instant) -> Shared {
        Shared {
            exports,
            current: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            acked: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            gap: Mutex::new((Instant::now(), Duration::ZERO)),
            complaints: Mutex::default(),
            begin,
        }
    }

    /// Opens an export of the node that lets clients write, whichever that is now.
    fn open(&self) -> Option<(usize, Client)> {
        while !self.stop.load(Ordering::Relaxed) {
            let node = self.current.load(Ordering::Relaxed);
            match Client::open(&self.exports[node], "v0", PATIENCE) {
                Ok(client) => return Some((node, client)),
                Err(_) => self.leave(node),
            }
            std::thread::sleep(RETRY);
        }
        None
    }

    /// The node does not serve: all go to the next, unless somebody has found one already.
    pub fn leave(&self, node: usize) {
        let next = (node + 1) % self.exports.len();
        let relaxed = Ordering::Relaxed;
        let _ = self.current.compare_exchange(node, next, relaxed, relaxed);
    }

    fn acknowledged(&self) {
        self.acked.fetch_add(1, Ordering::Relaxed);
        let mut gap = self.gap.lock().expect("nobody panics while holding it");
        gap.1 = gap.1.max(gap.0.elapsed());
        gap.0 = Instant::now();
    }

    fn complain(&self, text: String) {
        let mut complaints = self.complaints.lock().expect("nobody panics while holding it");
        if complaints.len() < COMPLAINTS {
            complaints.push(format!("{:8.3} {text}", self.begin.elapsed().as_secs_f64()));
        }
    }
}

/// What is known of a block.
#[derive(Clone, Default)]
struct Entry {
    floor: u64,
    open: BTreeSet<u64>,
    /// When and where the newest write was acknowledged or seen, for complaints.
    seen: String,
}

/// A writer: its blocks are those with `number % LANES == lane`.
pub struct Lane {
    lane: u64,
    random: Random,
    entries: Vec<Entry>,
    last: u64,
}

impl Lane {
    /// A writer that has not written.
    pub fn new(lane: u64, seed: u64) -> Lane {
        let random = Random(seed ^ lane.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Lane { lane, random, entries: vec![Entry::default(); BLOCKS as usize], last: 0 }
    }

    fn number(&self, index: usize) -> u64 {
        index as u64 * LANES + self.lane
    }

    /// Reads and writes until told to stop.
    pub fn work(mut self, shared: &Arc<Shared>) -> Lane {
        while let Some((node, mut client)) = shared.open() {
            while !shared.stop.load(Ordering::Relaxed) {
                let index = self.random.below(BLOCKS) as usize;
                let result = match self.random.below(READS) {
                    0 => self.read(shared, &mut client, node, index),
                    _ => self.write(shared, &mut client, node, index),
                };
                if result.is_err() {
                    shared.unanswered.fetch_add(1, Ordering::Relaxed);
                    shared.leave(node);
                    break;
                }
            }
            client.close();
        }
        self
    }

    /// Reads every block; called when all is calm.
    pub fn read_back(&mut self, shared: &Shared, node: usize) -> std::io::Result<()> {
        let mut client = Client::open(&shared.exports[node], "v0", PATIENCE)?;
        for index in 0..self.entries.len() {
            self.read(shared, &mut client, node, index)?;
        }
        client.close();
        Ok(())
    }

    fn write(
        &mut self,
        shared: &Shared,
        client: &mut Client,
        node: usize,
        index: usize,
    ) -> std::io::Result<()> {
        self.last += 1;
        let (number, version) = (self.number(index), self.last);
        let result = client.write(number * BLOCK as u64, &content(number, version));
        let entry = &mut self.entries[index];
        match &result {
            Ok(()) => {
                entry.rise(version, format!("acknowledged by n{} {}", node + 1, now(shared)));
                shared.acknowledged();
            }
            Err(_) => _ = entry.open.insert(version),
        }
        result
    }

    fn read(
        &mut self,
        shared: &Shared,
        client: &mut Client,
        node: usize,
        index: usize,
    ) -> std::io::Result<()> {
        let number = self.number(index);
        let bytes = client.read(number * BLOCK as u64, BLOCK)?;
        let found = u64::from_le_bytes(bytes[..8].try_into().expect("a block is longer"));
        let entry = &mut self.entries[index];
        let (floor, seen) = (entry.floor, entry.seen.clone());
        let on = node + 1;
        if bytes != content(number, found) {
            shared.wrong.fetch_add(1, Ordering::Relaxed);
            shared.complain(format!("n{on}: block {number} holds bytes that no write explains"));
        } else if found < floor {
            shared.stale.fetch_add(1, Ordering::Relaxed);
            shared.complain(format!(
                "n{on}: block {number} holds write {found} instead of {floor}, {seen}"
            ));
        } else if found > floor && !entry.open.contains(&found) {
            shared.wrong.fetch_add(1, Ordering::Relaxed);
            shared.complain(format!("n{on}: block {number} holds write {found}, never sent"));
        } else {
            shared.reads.fetch_add(1, Ordering::Relaxed);
            if found > floor {
                entry.rise(found, format!("seen on n{on} {}", now(shared)));
            }
        }
        Ok(())
    }
}

impl Entry {
    fn rise(&mut self, version: u64, seen: String) {
        self.floor = version;
        self.open = self.open.split_off(&(version + 1));
        self.seen = seen;
    }
}

fn now(shared: &Shared) -> String {
    format!("at {:.3}", shared.begin.elapsed().as_secs_f64())
}

/// What write `version` leaves in block `number`: the version, then noise that follows from both.
fn content(number: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    if version > 0 {
        let mut random = Random(version << 20 ^ number);
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&random.next().to_le_bytes());
        }
        bytes[..8].copy_from_slice(&version.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_may_not_vanish_and_what_is_open_may_appear() {
        let mut entry = Entry::default();
        entry.rise(3, String::new());
        entry.open.extend([4, 6]);
        entry.rise(5, String::new());
        assert_eq!(
            (entry.floor, entry.open.contains(&4), entry.open.contains(&6)),
            (5, false, true)
        );
    }

    #[test]
    fn blocks_tell_their_place_and_their_write() {
        assert_eq!(content(7, 0), vec![0; BLOCK]);
        assert_ne!(content(7, 1), content(8, 1));
        assert_ne!(content(7, 1), content(7, 2));
    }
}
