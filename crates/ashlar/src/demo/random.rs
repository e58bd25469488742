//! One source of chance per run, so that a seed repeats every decision.

/// SplitMix64: small, fast, and good enough to choose blocks and moments.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of that seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "there is no number below 0");
        // The bias of the remainder is far below what anyone could see here.
        self.next() % end
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// `count` different numbers below `end`, ascending.
    pub fn choose(&mut self, count: usize, end: u64) -> Vec<u64> {
        let mut all: Vec<u64> = (0..end).collect();
        let count = count.min(all.len());
        for i in 0..count {
            let j = i + self.below((all.len() - i) as u64) as usize;
            all.swap(i, j);
        }
        all.truncate(count);
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_sequence() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (random.next(), random.below(100), random.choose(4, 16))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn chosen_numbers_are_different_and_within_range() {
        for seed in 0..50 {
            let chosen = Random::new(seed).choose(5, 8);
            assert_eq!(chosen.len(), 5);
            assert!(chosen.windows(2).all(|w| w[0] < w[1]));
            assert!(chosen.iter().all(|n| *n < 8));
        }
        assert_eq!(Random::new(1).choose(9, 3), [0, 1, 2]);
    }
}
