//! Equal reads or writes on a file, so many at a time, each of them timed.
//!
//! They come in bursts, and as long as a burst took nothing is done after it: half of the time is
//! left to those who use the disk for work. Pauses do not count.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use codec::admin::Series;
use runtime::{BufPool, Completed, DiskFile, Errno, Payload, Ring, Token};
use vocab::{SECTOR_SIZE, Sector};

use crate::random::Random;

/// Length of a burst, and of the pause after it.
const BURST: Duration = Duration::from_millis(50);
/// Most operations of a series.
const OPERATIONS_MAX: usize = 100_000;
/// Memory for a series, in bytes.
const POOL: usize = 8 << 20;
/// How long an operation may take before the disk counts as one that does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    Read,
    Write,
    /// Each a write of a block and a flush after it; the time of the flush counts.
    Flush,
    /// A flush alone.
    FlushOnly,
}

/// Where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// One block behind the other, from a place drawn, and from the start again at the end.
    Sequential,
    /// From the start, and once.
    Through,
    Random,
}

/// A series to be done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) what: What,
    pub(super) order: Order,
    /// Bytes of an operation, a multiple of 4 KiB.
    pub(super) block: u32,
    pub(super) depth: u32,
    /// Bytes from the start of the file that may be used.
    pub(super) area: u64,
    /// Time at most, with pauses.
    pub(super) time: Duration,
    /// Bytes at most.
    pub(super) bytes: u64,
}

/// Means to do series with.
pub(super) struct Runner {
    ring: Ring,
    pool: BufPool,
    random: Random,
}

impl Runner {
    pub(super) fn new() -> Result<Runner, String> {
        let ring = Ring::with_entries(64).map_err(|e| e.to_string())?;
        let pool = BufPool::new(POOL).map_err(|e| format!("no memory for the blocks: {e}"))?;
        Ok(Runner { ring, pool, random: Random::new() })
    }

    /// Does a series. It ends with its time, its bytes or its file, whichever comes first, and at
    /// the first error, after what is under way.
    pub(super) fn run(&mut self, file: &DiskFile, plan: Plan) -> Result<Series, Errno> {
        let blocks = plan.area / u64::from(plan.block);
        if blocks == 0 {
            return Err(Errno::ENOSPC);
        }
        let most = (plan.bytes / u64::from(plan.block)).clamp(1, OPERATIONS_MAX as u64) as usize;
        let most = if plan.order == Order::Through { most.min(blocks as usize) } else { most };
        let mut next =
            if plan.order == Order::Sequential { self.random.next() % blocks } else { 0 };
        let mut run = Run { times: Vec::with_capacity(most), active: Duration::ZERO, error: None };
        let start = Instant::now();
        let mut started = 0;
        while started < most && start.elapsed() < plan.time && run.error.is_none() {
            let burst = Instant::now();
            let mut in_flight = InFlight::new(plan.depth);
            loop {
                let open = started < most && run.error.is_none() && burst.elapsed() < BURST;
                while open
                    && started < most
                    && let Some(slot) = in_flight.free.pop_front()
                {
                    let block = match plan.order {
                        Order::Random => self.random.next() % blocks,
                        Order::Sequential | Order::Through => {
                            next += 1;
                            (next - 1) % blocks
                        }
                    };
                    started += 1;
                    in_flight.since[slot] = Instant::now();
                    if let Err(errno) = self.start(file, plan, slot, block) {
                        in_flight.free.push_back(slot);
                        run.error = Some(errno);
                        break;
                    }
                }
                if in_flight.free.len() == plan.depth as usize {
                    break;
                }
                self.take(file, plan, &mut in_flight, &mut run)?;
            }
            let took = burst.elapsed();
            run.active += took;
            let left = plan.time.saturating_sub(start.elapsed());
            std::thread::sleep(took.min(BURST).min(left));
        }
        match run.error {
            Some(errno) => Err(errno),
            None => Ok(run.series(plan)),
        }
    }

    fn start(&mut self, file: &DiskFile, plan: Plan, slot: usize, block: u64) -> Result<(), Errno> {
        let token = Token(slot as u64);
        let sector = Sector(block * u64::from(plan.block) / SECTOR_SIZE);
        if plan.what == What::FlushOnly {
            file.flush(&mut self.ring, token);
            return Ok(());
        }
        let mut buf = self.pool.alloc(plan.block as usize).map_err(|_| Errno::ENOMEM)?;
        if plan.what == What::Read {
            file.read(&mut self.ring, token, sector, buf);
            return Ok(());
        }
        // Blocks that no device can make light of because it knows them.
        if let Some(bytes) = buf.as_mut_slice() {
            for word in bytes.chunks_exact_mut(8) {
                word.copy_from_slice(&self.random.next().to_ne_bytes());
            }
        }
        file.write(&mut self.ring, token, sector, buf, false);
        Ok(())
    }

    /// Waits for something to complete.
    fn take(
        &mut self,
        file: &DiskFile,
        plan: Plan,
        in_flight: &mut InFlight,
        run: &mut Run,
    ) -> Result<(), Errno> {
        let mut events: Vec<Completed> = Vec::new();
        self.ring.wait(Some(runtime::clock::now() + PATIENCE), &mut events)?;
        if events.is_empty() && in_flight.since.iter().all(|since| since.elapsed() >= PATIENCE) {
            return Err(Errno(libc::ETIMEDOUT));
        }
        for done in events {
            let slot = done.token.0 as usize;
            match done.result {
                Err(errno) => _ = run.error.get_or_insert(errno),
                Ok(_) if plan.what == What::Flush && matches!(done.payload, Payload::Buf(_)) => {
                    // The write is there; what is timed begins now.
                    in_flight.since[slot] = Instant::now();
                    file.flush(&mut self.ring, done.token);
                    continue;
                }
                Ok(_) => run.times.push(in_flight.since[slot].elapsed()),
            }
            in_flight.free.push_back(slot);
        }
        Ok(())
    }
}

/// What is under way.
struct InFlight {
    since: Vec<Instant>,
    free: VecDeque<usize>,
}

impl InFlight {
    fn new(depth: u32) -> InFlight {
        let depth = depth as usize;
        InFlight { since: vec![Instant::now(); depth], free: (0..depth).collect() }
    }
}

/// What was done.
struct Run {
    times: Vec<Duration>,
    active: Duration,
    error: Option<Errno>,
}

impl Run {
    fn series(self, plan: Plan) -> Series {
        summary(self.times, self.active, plan.block, plan.depth)
    }
}

/// A series of operations that took so long each, and so long in all.
pub(super) fn summary(mut times: Vec<Duration>, all: Duration, block: u32, depth: u32) -> Series {
    times.sort_unstable();
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let at = |percent: usize| {
        let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(index).map_or(0, |time| nanos(*time))
    };
    Series {
        block,
        depth,
        operations: times.len() as u64,
        nanoseconds: nanos(all),
        median: at(50),
        p99: at(99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::DiskOptions;
    use std::os::unix::fs::FileExt;

    #[test]
    fn medians_are_of_the_operations() {
        let times = |ms: &[u64]| ms.iter().map(|ms| Duration::from_millis(*ms)).collect();
        let series = summary(times(&[3, 1, 2]), Duration::from_millis(6), 4096, 1);
        assert_eq!((series.operations, series.median, series.p99), (3, 2_000_000, 3_000_000));
        assert!((series.per_second() - 500.0).abs() < 1e-6);
        assert!((series.mib_per_second() - 500.0 / 256.0).abs() < 1e-6);
        let all: Vec<u64> = (1..=200).collect();
        let series = summary(times(&all), Duration::from_secs(1), 512, 1);
        assert_eq!((series.median, series.p99), (100_000_000, 198_000_000));
        assert_eq!(summary(Vec::new(), Duration::ZERO, 512, 1).per_second(), 0.0);
    }

    #[test]
    fn reads_change_nothing_and_writes_stay_in_their_area() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let content = vec![7u8; 1 << 20];
        std::fs::write(&path, &content).unwrap();
        let mut runner = Runner::new().unwrap();
        let plan = Plan {
            what: What::Read,
            order: Order::Random,
            block: 4096,
            depth: 8,
            area: 1 << 20,
            time: Duration::from_secs(5),
            bytes: 100 * 4096,
        };
        let read_only = DiskOptions { write: false, exclusive: false, ..DiskOptions::default() };
        let file = DiskFile::open(&path, read_only).unwrap();
        let series = runner.run(&file, plan).unwrap();
        assert_eq!((series.operations, series.depth), (100, 8));
        assert!(series.median > 0 && series.p99 >= series.median);
        // Written from the start, and no further than it may.
        let file = DiskFile::open(&path, DiskOptions::default()).unwrap();
        let area = 64 << 10;
        let through =
            Plan { what: What::Write, order: Order::Through, area, bytes: 1 << 30, ..plan };
        assert_eq!(runner.run(&file, through).unwrap().operations, 16);
        let flushes = Plan { what: What::Flush, depth: 1, area: 4096, bytes: 3 * 4096, ..plan };
        assert_eq!(runner.run(&file, flushes).unwrap().operations, 3);
        let flushes = Plan { what: What::FlushOnly, ..flushes };
        assert_eq!(runner.run(&file, flushes).unwrap().operations, 3);
        drop(file);
        let file = std::fs::File::open(&path).unwrap();
        let mut now = vec![0; content.len()];
        file.read_exact_at(&mut now, 0).unwrap();
        assert_ne!(now[..65_536], content[..65_536]);
        assert_eq!(now[65_536..], content[65_536..]);
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    }

    #[test]
    fn a_series_ends_with_its_time_and_with_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::write(&path, vec![0u8; 64 << 10]).unwrap();
        let read_only = DiskOptions { write: false, exclusive: false, ..DiskOptions::default() };
        let file = DiskFile::open(&path, read_only).unwrap();
        let mut runner = Runner::new().unwrap();
        let plan = Plan {
            what: What::Read,
            order: Order::Sequential,
            block: 4096,
            depth: 1,
            area: 64 << 10,
            time: Duration::from_millis(120),
            bytes: u64::MAX,
        };
        let start = Instant::now();
        let series = runner.run(&file, plan).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(120));
        // Pauses are left out.
        assert!(series.nanoseconds < 120_000_000 && series.operations > 0, "{series:?}");
        // Behind the end there is nothing.
        let beyond = Plan { area: 1 << 20, depth: 4, ..plan };
        assert!(runner.run(&file, beyond).is_err());
        // A file that is open for reading is not written to.
        assert!(runner.run(&file, Plan { what: What::Write, ..plan }).is_err());
        assert_eq!(runner.run(&file, Plan { area: 100, ..plan }), Err(Errno::ENOSPC));
        assert_eq!(runner.run(&file, plan).map(|s| s.depth), Ok(1), "it goes on after errors");
    }
}
