//! The one source of chance of a run: a seed decides everything.

/// xoshiro256**, seeded by splitmix64 (Blackman and Vigna, public domain algorithms).
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// A generator; equal seeds give equal sequences.
    pub fn new(seed: u64) -> Rng {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Rng { state: [next(), next(), next(), next()] }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `n`, which is not zero. The bias of at most `n / 2^64` does not matter here.
    pub fn below(&mut self, n: u64) -> u64 {
        debug_assert!(n > 0, "nothing is below zero");
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number in `low..=high` whose magnitude, not its value, is evenly distributed: most
    /// delays are short and a few are very long.
    pub fn skewed(&mut self, low: u64, high: u64) -> u64 {
        let low = low.max(1);
        if high <= low {
            return low;
        }
        let octaves = u64::from((high / low).ilog2());
        let base = low << self.below(octaves + 1);
        self.range(base, (base * 2 - 1).min(high))
    }

    /// True in `percent` of 100 cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True in one of `n` cases.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of the items, of which there is at least one.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// An index, chosen in proportion to its weight.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut left = self.below(weights.iter().sum());
        for (index, weight) in weights.iter().enumerate() {
            if left < *weight {
                return index;
            }
            left -= weight;
        }
        unreachable!("the draw is below the sum of all weights")
    }

    /// An independent generator, so that choices made by one part of the simulator do not shift
    /// those of another.
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_sequences_and_ranges_hold() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        for _ in 0..1000 {
            assert_eq!(a.bits(), b.bits());
            let r = a.range(3, 9);
            assert!((3..=9).contains(&r) && b.range(3, 9) == r);
            let s = a.skewed(10, 5000);
            assert!((10..=5000).contains(&s) && b.skewed(10, 5000) == s);
            assert_eq!(a.weighted(&[0, 1, 0]), 1);
            b.weighted(&[0, 1, 0]);
        }
    }
}
