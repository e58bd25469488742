//! The application of the demo: writes and reads blocks through an NBD socket, 32 at a time, and
//! notes every promise in the ledger.
//!
//! A [`Workload`] is what the application knows; it survives the servers it talks to. [`Running`]
//! is one connection's worth of it, on a thread of its own, while the story goes on:
//!
//! ```text
//! Workload ── start(connection) ──► Running ── stop(), or the server dies ──► Workload
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::block::{self, BLOCK, Damage};
use super::ledger::{Ledger, Verdict};
use super::nbd::{Connection, Error, Op};
use super::random::Random;
use super::screen::count;

/// Requests in flight.
pub const DEPTH: usize = 32;

/// Granularity of the choice of blocks, in bytes: what one activity log extent covers.
const EXTENT: u64 = 4 << 20;
/// The application works on one in so many extents, as real ones do: most of a volume rests.
const WORKING_SET: u64 = 8;
/// One operation in so many is a read.
const READS: u64 = 5;
/// One write in so many must be durable at once.
const FUA: u64 = 64;
/// One operation in so many is a flush.
const FLUSHES: u64 = 1024;
/// How long to wait for an answer before looking at the stop flag.
const TICK: Duration = Duration::from_millis(20);

/// Incidents that are told.
const INCIDENTS: usize = 8;

/// What the application did and found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Reads that found what had to be there.
    pub reads: u64,
    /// Reads that found an older write than one acknowledged before the read began.
    pub stale: u64,
    /// Reads that found bytes no write explains.
    pub wrong: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
}

/// The application's knowledge.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Marks this run's blocks.
    pub run: u64,
    /// What was promised.
    pub ledger: Ledger,
    /// What was found.
    pub counts: Counts,
    /// The first few things that should not have been, in words.
    pub incidents: Vec<String>,
    random: Random,
    /// First block of every extent of the working set.
    extents: Vec<u64>,
    /// Blocks per extent; less on a volume smaller than one.
    extent_blocks: u64,
}

/// What a request in flight is.
#[derive(Clone, Copy, Debug)]
enum Pending {
    Read { block: u64 },
    Write { block: u64, sequence: u64 },
    Flush,
}

/// Numbers the story watches while the application runs.
#[derive(Debug, Default)]
struct Gauges {
    acknowledged: AtomicU64,
    in_flight: AtomicU64,
    stop: AtomicBool,
    first: OnceLock<Instant>,
}

/// How a connection's worth of work ended.
#[derive(Debug)]
pub struct Ended {
    /// The application, to go on elsewhere.
    pub workload: Workload,
    /// Why, unless it was asked to stop.
    pub lost: Option<Error>,
    /// Requests that will never be answered.
    pub abandoned: usize,
}

/// The application at work.
#[derive(Debug)]
pub struct Running {
    thread: JoinHandle<Ended>,
    gauges: Arc<Gauges>,
    before: u64,
}

impl Workload {
    /// An application for a volume of that many bytes. All its choices follow from `seed`.
    pub fn new(seed: u64, volume_bytes: u64) -> Workload {
        let mut random = Random::new(seed);
        let run = random.next();
        let extents = (volume_bytes / EXTENT).max(1);
        let count = (extents / WORKING_SET).max(1) as usize;
        let chosen = random.choose(count, extents);
        let extent_blocks = (volume_bytes.min(EXTENT)) / BLOCK as u64;
        let extents = chosen.into_iter().map(|extent| extent * EXTENT / BLOCK as u64).collect();
        let (ledger, counts, incidents) = (Ledger::new(), Counts::default(), Vec::new());
        Workload { run, ledger, counts, incidents, random, extents, extent_blocks }
    }

    /// Works through `connection` until stopped or cut off.
    pub fn start(mut self, connection: Connection) -> Running {
        let before = self.ledger.acknowledged();
        let gauges = Arc::new(Gauges::default());
        let shared = Arc::clone(&gauges);
        let thread = thread::spawn(move || {
            let mut session = Session::new(connection, &shared);
            let result = session.work(&mut self);
            let abandoned = session.abandon(&mut self);
            let lost = match result {
                Ok(()) => session.connection.close(Duration::from_secs(10)).err(),
                Err(e) => Some(e),
            };
            Ended { workload: self, lost, abandoned }
        });
        Running { thread, gauges, before }
    }

    /// Reads every block that was ever written and returns how many are old or wrong. `progress`
    /// is told how many of how many are read, and says whether to go on.
    ///
    /// # Errors
    /// If the connection ends, or `progress` says so.
    pub fn read_back(
        &mut self,
        connection: &mut Connection,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<u64, Error> {
        let blocks: Vec<u64> = self.ledger.written().collect();
        let (mut next, mut done, mut bad) = (0, 0, 0);
        let mut heard = Instant::now();
        while done < blocks.len() {
            while next < blocks.len() && connection.in_flight() < DEPTH {
                let offset = blocks[next] * BLOCK as u64;
                connection.submit(next as u64, Op::Read { offset, len: BLOCK as u32 });
                next += 1;
            }
            connection.flush()?;
            let count = connection.receive(TICK, &mut |reply| {
                let number = blocks[reply.cookie as usize];
                let verdict = self.judge("reading back", number, reply.data);
                bad += u64::from(verdict != Verdict::Right);
            })?;
            if count > 0 {
                heard = Instant::now();
            } else if heard.elapsed() > SILENCE {
                return Err(Error::Protocol("it does not answer"));
            }
            done += count;
            if !progress(done, blocks.len()) {
                return Err(Error::Stopped);
            }
        }
        Ok(bad)
    }

    /// A block of the working set without an operation in flight.
    fn idle_block(&mut self, slots: &[Option<Pending>]) -> u64 {
        loop {
            let extent = self.extents[self.random.below(self.extents.len() as u64) as usize];
            let block = extent + self.random.below(self.extent_blocks);
            let busy = slots.iter().flatten().any(|pending| match *pending {
                Pending::Read { block: b } | Pending::Write { block: b, .. } => b == block,
                Pending::Flush => false,
            });
            if !busy {
                return block;
            }
        }
    }
}

/// A server that says nothing for so long while it is asked something is lost. Longer than any
/// suspension in the story.
const SILENCE: Duration = Duration::from_secs(30);

struct Session<'a> {
    connection: Connection,
    gauges: &'a Gauges,
    slots: [Option<Pending>; DEPTH],
}

impl Session<'_> {
    fn new(connection: Connection, gauges: &Gauges) -> Session<'_> {
        Session { connection, gauges, slots: [None; DEPTH] }
    }

    fn work(&mut self, workload: &mut Workload) -> Result<(), Error> {
        let mut heard = Instant::now();
        loop {
            let stopping = self.gauges.stop.load(Ordering::Relaxed);
            if !stopping {
                while let Some(slot) = self.slots.iter().position(Option::is_none) {
                    self.submit(workload, slot);
                }
            } else if self.connection.in_flight() == 0 {
                return Ok(());
            }
            self.gauges.in_flight.store(self.connection.in_flight() as u64, Ordering::Relaxed);
            self.connection.flush()?;
            let Session { connection, gauges, slots } = self;
            let answers = connection.receive(TICK, &mut |reply| {
                let pending = slots[reply.cookie as usize].take().expect("it was asked for");
                workload.answer(pending, reply.error, reply.data);
                if matches!(pending, Pending::Write { .. }) && reply.error == 0 {
                    gauges.first.get_or_init(Instant::now);
                }
            })?;
            gauges.acknowledged.store(workload.ledger.acknowledged(), Ordering::Relaxed);
            if answers > 0 {
                heard = Instant::now();
            } else if heard.elapsed() > SILENCE {
                return Err(Error::Protocol("it does not answer"));
            }
        }
    }

    fn submit(&mut self, workload: &mut Workload, slot: usize) {
        let cookie = slot as u64;
        if workload.random.one_in(FLUSHES) {
            self.slots[slot] = Some(Pending::Flush);
            self.connection.submit(cookie, Op::Flush);
            return;
        }
        let number = workload.idle_block(&self.slots);
        let offset = number * BLOCK as u64;
        if workload.random.one_in(READS) {
            self.slots[slot] = Some(Pending::Read { block: number });
            self.connection.submit(cookie, Op::Read { offset, len: BLOCK as u32 });
        } else {
            let sequence = workload.ledger.begin_write(number);
            let mut data = [0; BLOCK];
            block::encode(workload.run, offset, sequence, &mut data);
            self.slots[slot] = Some(Pending::Write { block: number, sequence });
            let fua = workload.random.one_in(FUA);
            self.connection.submit(cookie, Op::Write { offset, data: &data, fua });
        }
    }

    /// Notes that what is in flight will not be answered.
    fn abandon(&mut self, workload: &mut Workload) -> usize {
        let mut count = 0;
        for pending in self.slots.iter_mut().filter_map(Option::take) {
            count += 1;
            if let Pending::Write { block, sequence } = pending {
                workload.ledger.abandon(block, sequence);
            }
        }
        count
    }
}

impl Workload {
    /// Compares what was found on a block with what was promised.
    fn judge(&mut self, when: &str, number: u64, data: &[u8]) -> Verdict {
        let address = number * BLOCK as u64;
        // A request that failed returned no data, which is not what had to be there.
        let found = data.try_into().map_err(|_| Damage::Garbage);
        let found = found.and_then(|data| block::decode(self.run, address, data));
        let (newest, verdict) = (self.ledger.newest(number), self.ledger.judge(number, &found));
        if verdict != Verdict::Right {
            let ledger = &self.ledger;
            let after = count(ledger.acknowledged());
            self.incident(match found {
                Ok(old) => format!(
                    "{when} of the block at byte {address} found write {old} instead of {newest}, \
                     after {after} writes"
                ),
                Err(damage) => format!(
                    "{when} of the block at byte {address} found {damage} instead of write \
                     {newest}, after {after} writes"
                ),
            });
        }
        verdict
    }

    fn incident(&mut self, text: String) {
        if self.incidents.len() < INCIDENTS {
            self.incidents.push(text);
        }
    }

    fn answer(&mut self, pending: Pending, error: u32, data: &[u8]) {
        if error != 0 {
            self.counts.errors += 1;
            self.incident(format!("{pending:?} was answered with error {error}"));
        }
        match pending {
            Pending::Write { block, sequence } if error == 0 => {
                self.ledger.acknowledge(block, sequence);
            }
            Pending::Write { block, sequence } => self.ledger.abandon(block, sequence),
            Pending::Read { block } if error == 0 => match self.judge("a read", block, data) {
                Verdict::Right => self.counts.reads += 1,
                Verdict::Old => self.counts.stale += 1,
                Verdict::Wrong => self.counts.wrong += 1,
            },
            Pending::Read { .. } | Pending::Flush => {}
        }
    }
}

impl Running {
    /// Writes acknowledged since this connection began.
    pub fn acknowledged(&self) -> u64 {
        self.gauges.acknowledged.load(Ordering::Relaxed).saturating_sub(self.before)
    }

    /// Requests without an answer at the moment.
    pub fn in_flight(&self) -> u64 {
        self.gauges.in_flight.load(Ordering::Relaxed)
    }

    /// When the first write was acknowledged.
    pub fn first_acknowledged(&self) -> Option<Instant> {
        self.gauges.first.get().copied()
    }

    /// True once the thread has ended, asked or not.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Sends nothing new, waits for the answers and closes the export.
    pub fn stop(self) -> Ended {
        self.gauges.stop.store(true, Ordering::Relaxed);
        self.wait()
    }

    /// Waits until the server is lost.
    pub fn wait(self) -> Ended {
        match self.thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

#[cfg(test)]
mod tests;
