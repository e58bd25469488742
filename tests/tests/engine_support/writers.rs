//! Clients that write and read back for as long as something is done to the engines, and who watches.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::nbd::Client;
use super::{pattern, text};

/// Blocks that each of them writes again and again.
const BLOCKS: u64 = 16;
const BLOCK: usize = 4096;

/// What writers share.
#[derive(Default)]
pub struct Writing {
    stop: AtomicBool,
    writes: AtomicU64,
    /// The longest that one has waited for an answer, in microseconds.
    longest: AtomicU64,
}

impl Writing {
    /// Writes and reads back until it is told to stop, and reads all of it at the end. An error is a
    /// failure of the test.
    fn work(&self, socket: &Path, writer: u64) {
        let mut client = Client::open(socket, "r0/0").unwrap();
        let offset = |block: u64| (writer * BLOCKS + block) * BLOCK as u64;
        let mut last = vec![None; BLOCKS as usize];
        let mut seed = writer << 32;
        while !self.stop.load(Ordering::Acquire) {
            seed += 1;
            let block = seed % BLOCKS;
            let begin = Instant::now();
            client.write(offset(block), &pattern(seed, BLOCK)).unwrap();
            let waited = u64::try_from(begin.elapsed().as_micros()).unwrap();
            self.longest.fetch_max(waited, Ordering::AcqRel);
            self.writes.fetch_add(1, Ordering::AcqRel);
            last[block as usize] = Some(seed);
            assert_eq!(client.read(offset(block), BLOCK).unwrap(), pattern(seed, BLOCK));
        }
        for (block, seed) in (0..).zip(last) {
            if let Some(seed) = seed {
                assert_eq!(client.read(offset(block), BLOCK).unwrap(), pattern(seed, BLOCK));
            }
        }
        client.close();
    }

    /// Waits until so many more were acknowledged.
    pub fn wait_for_writes(&self, more: u64) {
        let goal = self.writes.load(Ordering::Acquire) + more;
        let begin = Instant::now();
        while self.writes.load(Ordering::Acquire) < goal {
            assert!(begin.elapsed() < Duration::from_secs(60), "writes go on");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The longest that one of them has waited.
    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.longest.load(Ordering::Acquire))
    }

    /// Runs something while so many are at work on a node's volume.
    pub fn during(socket: &Path, writers: u64, work: impl FnOnce(&Writing)) {
        let writing = Writing::default();
        std::thread::scope(|scope| {
            for writer in 0..writers {
                let writing = &writing;
                scope.spawn(move || writing.work(socket, writer));
            }
            writing.wait_for_writes(500);
            work(&writing);
            writing.stop.store(true, Ordering::Release);
        });
    }
}

/// What an operator was shown, who has watched until now.
pub fn watched(mut watcher: Child) -> String {
    // `timeout`, which runs it, hands on what it can.
    let ended = Command::new("kill").arg(watcher.id().to_string()).status().unwrap();
    assert!(ended.success());
    let mut output = Vec::new();
    watcher.stdout.take().unwrap().read_to_end(&mut output).unwrap();
    watcher.wait().unwrap();
    text(&output)
}
