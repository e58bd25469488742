//! What a conflict query, an insertion and a removal cost with many intervals in flight:
//! `cargo bench -p replication --bench intervals`.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement, not the core")]

use std::time::Instant;

use replication::intervals::{Intervals, Kind};
use vocab::SectorRange;

/// Short, so that some passes run undisturbed on a machine with other load.
const ROUNDS: usize = 10_000;
const PASSES: usize = 300;
/// Sectors of the volume: 1 TiB.
const VOLUME: u64 = 1 << 31;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % limit
    }

    /// Mostly up to 1 MiB in whole blocks, some of single sectors, a few up to 128 MiB.
    fn range(&mut self) -> SectorRange {
        let len = match self.below(40) {
            0 => self.below(262_144) + 1,
            1..8 => self.below(7) + 1,
            _ => (self.below(256) + 1) * 8,
        };
        SectorRange::new(self.below(VOLUME), len)
    }
}

fn main() {
    for in_flight in [64usize, 1024, 8000] {
        let mut rng = Random(7);
        let mut set = Intervals::with_capacity(in_flight + 1);
        let mut slots: Vec<_> =
            (0..in_flight).map(|i| set.insert(rng.range(), Kind::LocalWrite, i as u64)).collect();
        let ranges: Vec<_> = (0..4096).map(|_| rng.range()).collect();
        let mut best = f64::INFINITY;
        let mut hits = 0u64;
        for pass in 0..PASSES {
            let begin = Instant::now();
            for i in pass * ROUNDS..(pass + 1) * ROUNDS {
                let range = ranges[i % ranges.len()];
                hits += u64::from(set.first_conflict(range, |e| e.kind.is_write()).is_some());
                let slot = set.insert(range, Kind::LocalWrite, i as u64);
                set.remove(std::mem::replace(&mut slots[i % in_flight], slot));
            }
            best = best.min(begin.elapsed().as_nanos() as f64 / ROUNDS as f64);
        }
        println!(
            "{in_flight} in flight: {best:.0} ns per query, insertion and removal ({hits} conflicts)"
        );
    }
}
